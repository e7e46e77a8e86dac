"""A published evaluation of suspend & resume, run again: 2,400 jobs, planned to the optimum.

The original crossed seven factors on the German grid of July 2024. It is run here two ways:

- `carved`, as published: the startup is carved out of the job's length, so that a longer startup
  leaves less work, and a job that is not stopped starts a whole number of hours after arrival.
- `added`, as it should be: the startup comes on top of the length and of the deadline, and a job
  that is not stopped starts at any moment, as one that is stopped may.

In both, `averaged` is another job, not a planner that knows less: its real power is the mean of
startup and work together, throughout.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import product
from operator import attrgetter
from pathlib import Path

import numpy as np

from lowtide import files
from lowtide.errors import FormatError, InvalidInput, InvalidTime
from lowtide.job import Job
from lowtide.policies.exact import Exact
from lowtide.policies.starts import Oracle, cost_by_delay
from lowtide.profile import Phase, PowerProfile
from lowtide.schedule import Schedule
from lowtide.signal import Signal
from lowtide.studies.statistics import Effect, anova
from lowtide.units import JOULES_PER_KWH, parse_duration

STARTUP_MODES = ("carved", "added")
STRATEGIES = ("uninterrupted", "suspend")
# Minutes at 200 W and at 100 W, in seconds here.
PHASES = {"60/60": (3600, 3600), "60/30": (3600, 1800), "30/60": (1800, 3600)}
LEVELS: dict[str, tuple[str | int, ...]] = {
    "startup_mode": STARTUP_MODES,
    "strategy": STRATEGIES,
    "power": ("phased", "averaged"),
    "phases": tuple(PHASES),
    "startup_s": (0, 300, 600, 1800),
    "startup_w": (100, 200),
    "wait_h": (6, 12, 24, 48, 96),
    "length_s": (3600, 7200, 14400, 28800, 57600),
}
HOURLY_S = 3600.0

_SAME_JOB = attrgetter(*(name for name in LEVELS if name != "strategy"))

_FACTORS = {
    "wait": "wait_h",
    "length": "length_s",
    "phases": "phases",
    "startup": "startup_s",
    "startup power": "startup_w",
    "power": "power",
}
# Waiting helps long jobs and not short ones. Left in the residual, that would drown the rest.
_INTERACTIONS = (("wait", "length"),)
_HIGH_W, _LOW_W = 200.0, 100.0
# Factors that are durations: what a selection may call them for short, and what they count in.
_SHORT = {"length": "length_s", "startup": "startup_s", "wait": "wait_h"}
_UNIT_S = {"length_s": 1, "startup_s": 1, "wait_h": 3600}
# The file keeps six decimals of a gram; totals of 20 g and more then agree to this.
_AGREE = 1e-7


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One job of the evaluation.

    Attributes:
        startup_mode: `carved` out of the length, or `added` to it.
        strategy: `uninterrupted`, or `suspend` & resume.
        power: `phased`, or `averaged` over startup and work.
        phases: Minutes at 200 W / minutes at 100 W, repeated and cut to fill.
        startup_s: How long each start takes.
        wait_h: How long the job may wait, in hours.
        length_s: How long it is, with the startup (carved) or without (added).
    """

    startup_mode: str
    strategy: str
    power: str
    phases: str
    startup_s: int
    startup_w: int
    wait_h: int
    length_s: int

    @property
    def start_step_s(self) -> float | None:
        """The step between the starts that an uninterrupted job may choose from."""
        return HOURLY_S if self.startup_mode == "carved" else None

    @property
    def window_s(self) -> float:
        """How long after arrival the job must be done."""
        added_s = self.startup_s if self.startup_mode == "added" else 0
        return 3600.0 * self.wait_h + self.length_s + added_s

    def job(self, arrival: float, *, max_starts: int | None = None) -> Job:
        """Return the job itself."""
        carved = self.startup_mode == "carved"
        work_s = self.length_s - (self.startup_s if carved else 0)
        profile = _profile(self.power, self.phases, self.startup_s, self.startup_w, work_s)
        return Job(
            id="-".join(str(getattr(self, name)) for name in LEVELS),
            arrival=arrival,
            deadline=arrival + self.window_s,
            profile=profile,
            interruptible="anywhere" if self.strategy == "suspend" else "never",
            max_starts=max_starts,
        )

    def schedule(self, signal: Signal) -> Schedule:
        """Return how the job runs at its best, arriving at the signal's first moment."""
        suspend = self.strategy == "suspend"
        policy = Exact() if suspend else Oracle(step_s=self.start_step_s)
        return policy.decide(self.job(signal.start), signal).schedule


@dataclass(frozen=True, slots=True, kw_only=True)
class ThesisOutcome:
    """What one job comes to at its best.

    Attributes:
        carbon_g: Its emissions: the optimum of `suspend`, the best start of `uninterrupted`.
        starts: How often it is started.
        free_start_g: What an uninterrupted job emits that starts at the best moment of all, on
            the hour or not; None for `suspend`.
    """

    case: Case
    carbon_g: float
    starts: int
    free_start_g: float | None = None

    def document(self) -> dict[str, str | int | float]:
        """Return the outcome as a JSON document."""
        names = ("strategy", "power", "phases", "startup_s", "startup_w", "wait_h", "length_s")
        return {
            **{name: getattr(self.case, name) for name in names},
            "startup_mode": self.case.startup_mode,
            "carbon_g": self.carbon_g,
            "starts": self.starts,
        }


def make_cases(
    *, startup_modes: Iterable[str] = STARTUP_MODES, only: str | None = None
) -> list[Case]:
    """Return the jobs of the evaluation, 2,400 for each reading of the startup.

    Args:
        only: A selection such as `length=16h,wait=24h`; a factor given again adds a level.

    >>> len(make_cases()), len(make_cases(only="length=16h,wait=24h,startup_mode=carved"))
    (4800, 96)
    """
    wanted = _selection(only)
    levels = {name: wanted.get(name, values) for name, values in LEVELS.items()}
    modes = tuple(startup_modes)
    levels["startup_mode"] = tuple(mode for mode in levels["startup_mode"] if mode in modes)
    cases = [Case(**dict(zip(levels, row, strict=True))) for row in product(*levels.values())]  # type: ignore[arg-type]
    if not cases:
        raise InvalidInput(f"nothing is left of the evaluation: {only!r} excludes every job")
    return cases


def evaluate(signal: Signal, cases: Sequence[Case]) -> Iterator[ThesisOutcome]:
    """Plan jobs that arrive at a signal's first moment, one after another."""
    if signal.kind not in ("average", "marginal"):
        raise InvalidInput(f"the evaluation needs a carbon intensity, not a {signal.kind} signal")
    # A year of values would be looked through for every job.
    signal = signal.window(signal.start, signal.start + max(case.window_s for case in cases))
    exact = Exact()
    for case in cases:
        job = case.job(signal.start)
        if case.strategy == "suspend":
            solution = exact.optimise(job, signal).solution
            # Starts at the same delay follow each other without a gap: they are one.
            starts = len({start.delay_s for start in solution.starts})
            yield ThesisOutcome(case=case, carbon_g=solution.cost, starts=starts)
        else:
            hourly_g, free_g = best_starts(job, signal)
            carbon_g = free_g if case.start_step_s is None else hourly_g
            yield ThesisOutcome(case=case, carbon_g=carbon_g, starts=1, free_start_g=free_g)


def best_starts(job: Job, signal: Signal) -> tuple[float, float]:
    """Return what the best start on the arrival's own hours emits, and the best of all.

    Args:
        job: A job that is not stopped.
    """
    delays_s, costs = cost_by_delay(job, signal)
    hours_s = np.arange(0.0, job.slack_s + 1e-6, HOURLY_S)
    hourly = np.interp(hours_s, delays_s, costs).min()
    return float(hourly) / JOULES_PER_KWH, float(costs.min()) / JOULES_PER_KWH


def savings(outcomes: Sequence[ThesisOutcome], *, free_start: bool = False) -> dict[Case, float]:
    """Return what suspending saves over the best uninterrupted start, by the suspended job.

    Args:
        free_start: Whether to measure against the best start of all, even where the published
            evaluation started on the hour only.
    """
    best_g = {
        _SAME_JOB(outcome.case): outcome.free_start_g if free_start else outcome.carbon_g
        for outcome in outcomes
        if outcome.case.strategy == "uninterrupted"
    }
    found: dict[Case, float] = {}
    for outcome in outcomes:
        base_g = best_g.get(_SAME_JOB(outcome.case))
        if outcome.case.strategy == "suspend" and base_g:
            found[outcome.case] = 1.0 - outcome.carbon_g / base_g
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Published:
    """One published total.

    Attributes:
        published_g: The total as published.
        true_g: What the published schedule emits, accounted for correctly.
        reference_g: What the schedule should have reached: the optimum, or the best start on
            the hour of a job that is not stopped. The file's own figure, to check ours by.
        stretches: How many stretches the schedule has; 0 where the solver found none.
    """

    published_g: float
    true_g: float
    reference_g: float
    stretches: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ThesisVerdict:
    """How a set of published suspend & resume totals compares with the optimum.

    Attributes:
        jobs: Totals that were published.
        empty: Those without a schedule: published as 0 g, and left out of all below.
        below: Published totals below the optimum, which nothing can be.
        wrong: Published totals that are not what their own schedule emits.
        above: Schedules that truly emit more than the optimum.
        worst: The largest excess of a true total over the optimum, as a share.
    """

    jobs: int
    empty: int
    below: int
    wrong: int
    above: int
    worst: float


def read_totals(path: Path | str) -> dict[Case, Published]:
    """Read a file of published totals, by the job they belong to.

    Args:
        path: A CSV file with the factors and `published_g`, `true_g`, `n_segments`,
            `best_hourly_start_g`, `optimum_g`.
    """
    names = [name for name in LEVELS if name != "startup_mode"]
    totals: dict[Case, Published] = {}
    rows = csv.DictReader(files.read_text(path).splitlines())
    for line, row in enumerate(rows, start=2):
        try:
            levels = {
                name: int(row[name]) if isinstance(LEVELS[name][0], int) else row[name]
                for name in names
            }
            case = Case(startup_mode="carved", **levels)  # type: ignore[arg-type]
            suspend = case.strategy == "suspend"
            totals[case] = Published(
                published_g=float(row["published_g"]),
                true_g=float(row["true_g"]),
                reference_g=float(row["optimum_g" if suspend else "best_hourly_start_g"]),
                stretches=int(row["n_segments"]),
            )
        except (KeyError, TypeError, ValueError) as error:
            raise FormatError(
                f"is no row of published totals ({error})", path=path, line=line
            ) from None
    return totals


def belongs(published: Mapping[Case, Published], outcomes: Sequence[ThesisOutcome]) -> bool:
    """Return whether totals were published for the signal that these outcomes come from."""
    pairs = [
        (outcome.carbon_g, published[outcome.case].reference_g)
        for outcome in outcomes
        if outcome.case in published
    ]
    return bool(pairs) and all(math.isclose(a, b, rel_tol=_AGREE) for a, b in pairs)


def judge(
    published: Mapping[Case, Published], outcomes: Sequence[ThesisOutcome]
) -> ThesisVerdict | None:
    """Compare published suspend & resume totals with the optimum; None where there are none."""
    pairs = [
        (outcome.carbon_g, published[outcome.case])
        for outcome in outcomes
        if outcome.case.strategy == "suspend" and outcome.case in published
    ]
    if not pairs:
        return None
    real = [(best_g, total) for best_g, total in pairs if total.stretches]
    return ThesisVerdict(
        jobs=len(pairs),
        empty=len(pairs) - len(real),
        below=sum(total.published_g < best_g * (1 - _AGREE) for best_g, total in real),
        wrong=sum(
            not math.isclose(total.published_g, total.true_g, rel_tol=_AGREE) for _, total in real
        ),
        above=sum(total.true_g > best_g * (1 + _AGREE) for best_g, total in real),
        worst=max((total.true_g / best_g - 1 for best_g, total in real), default=0.0),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ThesisStudy:
    """The outcomes of an evaluation, and what was published of it.

    Attributes:
        outcomes: What each job comes to at its best.
        published: Published totals; None where there are none to compare with.
    """

    outcomes: tuple[ThesisOutcome, ...]
    published: Mapping[Case, Published] | None = None

    @property
    def startup_modes(self) -> list[str]:
        """The readings of the startup that were planned."""
        found = {outcome.case.startup_mode for outcome in self.outcomes}
        return [mode for mode in STARTUP_MODES if mode in found]

    def of(self, mode: str) -> list[ThesisOutcome]:
        """Return the outcomes of one reading of the startup.

        Args:
            mode: `carved` or `added`.
        """
        return [outcome for outcome in self.outcomes if outcome.case.startup_mode == mode]

    @property
    def comparable(self) -> Mapping[Case, Published]:
        """The published totals, none where they belong to another signal."""
        known = self.published or {}
        return known if belongs(known, self.outcomes) else {}


def choose(study: ThesisStudy) -> list[ThesisOutcome]:
    """Return the jobs whose schedules tell most: those like the one that suspending saves most.

    They differ in strategy and length of the startup alone.
    """
    outcomes = study.of(study.startup_modes[0])
    saved = savings(outcomes)
    if not saved:
        return []
    best = max(saved, key=lambda case: saved[case])
    same = ("power", "phases", "startup_w", "wait_h", "length_s")
    return sorted(
        (
            each
            for each in outcomes
            if all(getattr(each.case, name) == getattr(best, name) for name in same)
        ),
        key=lambda each: (each.case.strategy == "suspend", each.case.startup_s),
    )


def effects(study: ThesisStudy, mode: str, about: str) -> list[Effect]:
    """Return the analysis of variance for one reading of the startup; empty with too few jobs.

    Args:
        mode: `carved` or `added`.
        about: `saving` or `emissions`.
    """
    outcomes = study.of(mode)
    if about == "saving":
        values = savings(outcomes)
    else:
        values = {
            each.case: math.log(each.carbon_g)
            for each in outcomes
            if each.case.strategy == "suspend" and each.carbon_g > 0
        }
    if len(values) < 2:
        return []
    factors = {
        name: [getattr(case, column) for case in values] for name, column in _FACTORS.items()
    }
    return anova(list(values.values()), factors, interactions=_INTERACTIONS)


@lru_cache(maxsize=1024)
def _profile(power: str, phases: str, startup_s: int, startup_w: int, work_s: int) -> PowerProfile:
    high_s, low_s = PHASES[phases]
    startup = [Phase(name="startup", duration_s=startup_s, power_w=startup_w)] if startup_s else []
    profile = PowerProfile.periodic(
        [
            Phase(name="high", duration_s=high_s, power_w=_HIGH_W),
            Phase(name="low", duration_s=low_s, power_w=_LOW_W),
        ],
        work_s,
        startup=startup,
    )
    return profile.averaged() if power == "averaged" else profile


def _selection(only: str | None) -> dict[str, tuple[str | int, ...]]:
    chosen: dict[str, list[object]] = {}
    for part in only.split(",") if only is not None else ():
        key, equals, text = (piece.strip() for piece in part.partition("="))
        name = _SHORT.get(key, key)
        if not equals or name not in LEVELS:
            raise InvalidInput(
                f"a selection is KEY=VALUE,… such as length=16h, not {part!r}: "
                f"known keys are {', '.join(sorted({*LEVELS, *_SHORT}))}"
            )
        level = _level(name, text, bare=key == name)
        if level not in LEVELS[name]:
            known = ", ".join(_shown(name, each) for each in LEVELS[name])
            raise InvalidInput(f"the evaluation has no {key}={text}: known values are {known}")
        chosen.setdefault(name, []).append(level)
    return {
        name: tuple(level for level in LEVELS[name] if level in levels)
        for name, levels in chosen.items()
    }


def _level(name: str, text: str, *, bare: bool) -> str | float:
    """Return a level as it is meant; a text that means none comes back as it is.

    A bare number will do where the factor was called by the name that carries its unit.
    """
    if name in _UNIT_S:
        unit_s = _UNIT_S[name]
        try:
            return parse_duration(text, bare_unit_s=unit_s if bare else None) / unit_s
        except InvalidTime:
            return text
    return int(text) if isinstance(LEVELS[name][0], int) and text.isdecimal() else text


def _shown(name: str, level: str | int) -> str:
    if name not in _UNIT_S:
        return str(level)
    minutes = int(level) * _UNIT_S[name] // 60
    return f"{minutes // 60}h" if minutes and minutes % 60 == 0 else f"{minutes}m"
