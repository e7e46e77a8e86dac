"""From recordings to a power profile that says how good it is."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from lowtide import files
from lowtide.changepoints import IntArray
from lowtide.errors import InvalidInput, UnknownName
from lowtide.learning.checking import Check, check, summaries
from lowtide.learning.costs import Cost, format_joules, stopping_costs
from lowtide.learning.intervals import Interval, next_one, supported_level
from lowtide.learning.lag import find_lag
from lowtide.learning.likeness import of_one_program
from lowtide.learning.phase_model import PhaseModel
from lowtide.learning.phases import METHODS, PhaseFinder
from lowtide.learning.repetition import Structure, find_structure
from lowtide.learning.series import (
    RunSeries,
    common_step_s,
    idle_power_w,
    noted,
    uninterrupted,
)
from lowtide.learning.validation import Prediction, Validation, left_out_ratios, validate
from lowtide.profile import Phase, PowerProfile, Spread, profile_path
from lowtide.recording import Recording, Run, pairs, runs_of
from lowtide.signal import FloatArray
from lowtide.units import DurationLike, format_count, format_hours, parse_duration

BASELINES = ("included", "excluded")
# How often an unseen run is to lie between the ends that are told.
SPREAD_LEVEL = 0.9
# A first epoch after a start that takes so much longer than others is slower.
_CLEARLY_SLOWER = 0.02


@dataclass(frozen=True, slots=True, kw_only=True)
class LearnedPhase:
    """One phase of what was learned, a repeated one once.

    Attributes:
        group: `startup` or `work`.
        duration_s: How long it takes, with the interval of the mean over runs.
        power_w: What it draws, with the interval of the mean over runs.
        checkpoint: Whether a checkpoint lies at its end.
    """

    group: str
    name: str
    duration_s: Interval
    power_w: Interval
    checkpoint: bool
    times: int


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PhaseFit:
    """Phases with what repeats averaged: what a profile is made of."""

    model: PhaseModel
    structure: Structure
    duration_s: FloatArray
    power_w: FloatArray

    @classmethod
    def of(cls, model: PhaseModel, structure: Structure) -> PhaseFit:
        """Average what repeats."""
        duration_s, power_w = model.duration_s.copy(), model.power_w.copy()
        if (block := structure.block) is not None:
            rows = np.arange(block.first, block.end).reshape(block.count, block.length)
            energy_j = (duration_s * power_w)[rows].sum(axis=0)
            seconds = duration_s[rows].sum(axis=0)
            duration_s[rows] = seconds / block.count
            power_w[rows] = energy_j / np.maximum(seconds, 1e-9)
        return cls(model=model, structure=structure, duration_s=duration_s, power_w=power_w)

    @property
    def lasting(self) -> npt.NDArray[np.bool_]:
        """Which phases last: an epoch of a single run may lack one, and a profile holds no such."""
        return self.duration_s > 0

    def predict(self, series: RunSeries) -> Prediction:
        """Return what the phases say of a run with as many epochs as that one."""
        found = self.model.locate(series)
        if found is None:
            row, own_s = np.arange(self.duration_s.size), None
        else:
            own_s, row = found
        return Prediction(
            duration_s=self.duration_s[row],
            power_w=self.power_w[row],
            own_edges_s=own_s,
            lag_s=self.model.lag_s,
        )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Learned:
    """A profile and all that is known about it.

    Attributes:
        profile: The profile.
        phases: Its phases with intervals, repeated ones once.
        validation: How well it predicts runs left out; None after a single run.
        checks: What it says of stops and kills with their resumption, which it has not seen.
        costs: What an extra start and lost work cost, measured.
        fit: The phases in every run.
        series: The runs it was learned from.
        baseline_w: What was taken off, 0 if nothing.
        power: `measured` or `estimated`.
        notes: What was left out, and what could not be told.
    """

    profile: PowerProfile
    phases: tuple[LearnedPhase, ...]
    validation: Validation | None
    checks: tuple[Check, ...]
    costs: tuple[Cost, ...]
    fit: PhaseFit
    series: tuple[RunSeries, ...]
    baseline_w: float
    power: str
    notes: tuple[str, ...]

    @property
    def epochs(self) -> int | None:
        """How many epochs a run usually has, None where nothing repeats."""
        block, outline = self.fit.structure.block, self.fit.model.outline
        if outline.length and (outline.count > 1 or block is not None):
            return outline.count * outline.each + outline.rest
        return None if block is None else block.count

    def text(self) -> str:
        """Return what was learned and how good it is, in a few lines."""
        runs = format_count(len(self.series), "uninterrupted run")
        way = "the program's marks" if self.fit.model.marks is not None else "power alone"
        lines = [
            f"Learned from {runs} by {way}; power {self.power}, baseline "
            + (f"of {self.baseline_w:.1f} W excluded." if self.baseline_w else "included.")
        ]
        if (validation := self.validation) is not None:
            absolute, aligned = validation.view("absolute"), validation.view("aligned")
            told = [f"{absolute.rmse_w} W RMSE at absolute time"]
            if aligned.rmse_w is not None:
                told.append(f"{aligned.rmse_w} W aligned")
            told.append(f"{absolute.constant_rmse_w} W for constant power")
            lines.append(
                f"Leaving one run out: {', '.join(told)}; energy {validation.energy_text()}; "
                f"duration {validation.duration_text()}."
            )
        if self.profile.spread is not None:
            differ = len(set(self.fit.model.epochs)) > 1
            lines.append(spread_text(self.profile, epochs=self.epochs if differ else None))
        said = [f"predicted, not learned from: {each}" for each in summaries(self.checks)]
        said += map(str, self.costs)
        if self.costs:
            startup_j = sum(phase.energy_j for phase in self.profile.startup)
            starts = f"the profile's startup comes to {format_joules(startup_j)}"
            if self.profile.restart is not None:
                restart_j = sum(phase.energy_j for phase in self.profile.restart)
                starts += f", a restart to {format_joules(restart_j)}"
            said.append(starts)
        said += self.notes
        return "\n".join([*lines, *(f"{each[:1].upper()}{each[1:]}." for each in said)])

    def dump(self, path: Path | str) -> None:
        """Write the profile as TOML or JSON, what repeats as a block; it reads back equal."""
        files.write_document(profile_document(self), profile_path(path))

    def document(self) -> dict[str, Any]:
        """Return all of it as plain lists and numbers."""
        return learned_document(self)


def learn(
    recordings: Recording | Iterable[Recording],
    *,
    events: bool | None = None,
    baseline: str = "included",
    method: str = "aligned",
    repeats: bool = True,
    shortest: DurationLike | None = None,
    level: float = 0.95,
    validated: bool = True,
) -> Learned:
    """Learn the power profile of a program from recordings of its runs.

    Args:
        recordings: Measured runs. Phases come from the uninterrupted ones; resumed ones tell
            startup from work; stops and kills with their resumption are predicted as a test.
        events: Whether to go by what the program said; by default if it said anything.
        baseline: `included`, or `excluded`: idle power is measured and taken off.
        method: `aligned`, or `published`: mean power between events, mean event times.
        repeats: Whether phases that come again and again are averaged into a repeated block.
        shortest: The shortest phase to be found by its power; by default four sampling steps.
        level: Level of the intervals.
        validated: Whether runs are left out in turn, which takes most of the time.
    """
    if baseline not in BASELINES:
        raise UnknownName("baseline", baseline, BASELINES)
    if method not in METHODS:
        raise UnknownName("method", method, METHODS)
    given = [recordings] if isinstance(recordings, Recording) else list(recordings)
    runs = runs_of(given)
    notes = noted(given)
    chosen, left_out = uninterrupted(runs)
    notes += left_out
    chosen, unlike = of_one_program(chosen)
    notes += unlike
    if not chosen:
        kinds = ", ".join(sorted({run.kind or "unknown" for run in runs}))
        why = "; ".join(notes) or f"there are only runs of kind {kinds}"
        raise InvalidInput(
            f"there is no uninterrupted run to learn from: {why}. Measure one: lowtide measure -- "
            "PROGRAM"
        )
    baseline_w = idle_power_w(runs) if baseline == "excluded" else 0.0
    series = [RunSeries.of(run, baseline_w=baseline_w) for run in chosen]
    resumed = [
        RunSeries.of(run, baseline_w=baseline_w)
        for run in runs
        if run.kind == "resume" and not run.gaps
    ]
    finder = PhaseFinder(
        step_s=common_step_s(series),
        events=_use_events(series, events),
        method=method,
        shortest_s=None if shortest is None else parse_duration(shortest),
    )
    fit = _fit(series, finder=finder, resumed=resumed, repeats=repeats)
    # Runs whose marks are not the others' say nothing about how well the others predict.
    series = [series[number] for number in fit.model.used]
    again = partial(_fit, finder=finder, resumed=resumed, repeats=repeats)
    validation = validate(series, again) if validated else None
    profile = make_profile(fit, find_spread(fit.model), find_restart(fit, resumed))
    notes += _told(fit, finder.events, series)
    estimated = any(run.power == "estimated" for run in chosen)
    return Learned(
        profile=profile,
        phases=tuple(with_intervals(fit, level)),
        validation=validation,
        checks=tuple(_unseen_pairs(fit, profile, runs, resumed, baseline_w)),
        costs=tuple(stopping_costs(runs, level=level)),
        fit=fit,
        series=tuple(series),
        baseline_w=baseline_w,
        power="estimated" if estimated else "measured",
        notes=tuple(notes),
    )


def find_spread(model: PhaseModel) -> Spread | None:
    """Return between what an unseen run lies: as runs differ from what the others say of them."""
    outline = model.outline
    bounds = np.concatenate(([0], np.cumsum(model.parts)))
    first, end = (
        (int(bounds[outline.first]), int(bounds[outline.end]) - model.ending)
        if outline.length
        else (0, 0)
    )
    ratios = left_out_ratios(
        model.run_s,
        [own_s * own_w for own_s, own_w in zip(model.run_s, model.run_power_w, strict=True)],
        [(row >= first) & (row < end) for row in model.rows],
        model.epochs,
    )
    if len(model.runs) < 2 or not np.isfinite(ratios).all():
        return None
    ends = []
    # A run differs by more from the others' mean than from that of all, which the next one will
    # differ from: `next_one` makes up for the latter, and both would count it twice.
    nearer = (len(model.runs) - 1) / len(model.runs)
    for values in ratios:
        apart = (1 + nearer * (np.array(values) - 1)).tolist()
        low, high = next_one(apart, level=SPREAD_LEVEL) or (1.0, 1.0)
        ends.append((_rounded(min(max(low, 0.0), 1.0)), _rounded(max(high, 1.0))))
    return Spread(level=SPREAD_LEVEL, runs=len(model.runs), duration=ends[0], energy=ends[1])


def find_restart(fit: PhaseFit, resumed: Sequence[RunSeries]) -> tuple[Phase, ...] | None:
    """Return what resumed runs start with, None where there are none or no startup.

    The median: a run of another day, or one that the meter watched for longer, is not the others'.
    By how much the first epoch after a start is slower belongs to it as well, where that of a first
    start is: whoever stops pays for it again.
    """
    count = fit.structure.startup
    seconds, watts, slower = [], [], []
    for series in resumed if count else ():
        found = fit.model.lay(series)
        if found is None:
            continue
        edges_s, row = found
        inside = row < count
        power_w = series.mean_w(series.seen_s(edges_s + fit.model.lag_s))
        seconds.append(np.diff(edges_s)[inside])
        watts.append(power_w[inside])
        slower.append(_slower(fit, np.diff(edges_s), power_w, row))
    if not seconds:
        return None
    phases = [
        Phase(name=name, duration_s=_rounded(lasts_s), power_w=_rounded(max(drawn_w, 0.0)))
        for name, lasts_s, drawn_w in zip(
            _names(fit),
            np.median(seconds, axis=0).tolist(),
            np.median(watts, axis=0).tolist(),
            strict=False,
        )
        if lasts_s > 0
    ]
    more_s, more_j = (float(each) for each in np.median(slower, axis=0))
    if more_s > 0 and more_j > 0:
        more_w = min(more_j / more_s, float(fit.power_w.max()))
        if phases and more_w < float(fit.power_w[fit.lasting].min()):
            # Slower at less power: no phase draws less than the machine, so the last takes it in.
            last = phases.pop()
            more_j += last.energy_j
            more_s += last.duration_s
            name, more_w = last.name, more_j / more_s
        else:
            name = "slow first epoch"
        phases.append(Phase(name=name, duration_s=_rounded(more_s), power_w=_rounded(more_w)))
    return tuple(phases)


def _slower(
    fit: PhaseFit, seconds: FloatArray, power_w: FloatArray, row: IntArray
) -> tuple[float, float]:
    """Return how many seconds and joules more than others a run's first epoch takes.

    Nothing where a first epoch does not stand apart, and where this one is hardly slower.

    Args:
        row: Which phase each of the run's is.
    """
    block, outline, parts = fit.structure.block, fit.model.outline, fit.model.parts
    begin = max(sum(parts[: outline.first]), fit.structure.startup)
    second = sum(parts[: outline.first + outline.length])
    if block is None or not outline.length or block.first < second:
        return 0.0, 0.0
    inside, usual = (row >= begin) & (row < second), slice(block.first, block.first + block.length)
    usual_s = float(fit.duration_s[usual].sum())
    more_s = float(seconds[inside].sum()) - usual_s
    more_j = float(seconds[inside] @ power_w[inside] - fit.duration_s[usual] @ fit.power_w[usual])
    return (more_s, more_j) if more_s > _CLEARLY_SLOWER * usual_s else (0.0, 0.0)


def _unseen_pairs(
    fit: PhaseFit,
    profile: PowerProfile,
    runs: Sequence[Run],
    resumed: Sequence[RunSeries],
    baseline_w: float,
) -> list[Check]:
    """Check stops and kills with their resumption, which the restart is then not learned from."""
    checks = []
    for kind in ("stop", "kill"):
        for first, second in pairs(runs, kind):
            others = [each for each in resumed if each.run is not second]
            unseen = replace(profile, restart=find_restart(fit, others))
            checks += check(unseen, [first, second], baseline_w=baseline_w)
    return checks


def make_profile(
    fit: PhaseFit, spread: Spread | None = None, restart: tuple[Phase, ...] | None = None
) -> PowerProfile:
    """Return the profile that phases make up, its numbers rounded to six digits."""
    names, lasting = _names(fit), fit.lasting
    saved = np.array(fit.model.checkpoints)
    for place in np.flatnonzero(~lasting & saved)[::-1]:
        # It was saved all the same, where the phase before it ends.
        saved[max(place - 1, 0)] = True
    phases = [
        Phase(
            name=names[place],
            duration_s=_rounded(float(fit.duration_s[place])),
            power_w=_rounded(max(float(fit.power_w[place]), 0.0)),
            checkpoint=bool(saved[place]) and place >= fit.structure.startup,
        )
        for place in np.flatnonzero(lasting).tolist()
    ]
    startup = min(int(lasting[: fit.structure.startup].sum()), len(phases) - 1)
    return PowerProfile(
        startup=phases[:startup], restart=restart, work=phases[startup:], spread=spread
    )


def spread_text(profile: PowerProfile, *, epochs: int | None = None) -> str:
    """Return between what an unseen run of a profile lies, in words.

    Args:
        epochs: How many epochs that run has, where runs differ in that.
    """
    spread = profile.spread
    if spread is None:
        return "How much runs differ is not known."
    low_j, high_j = (share * profile.energy_j for share in spread.energy)
    low_s, high_s = (share * profile.run_s for share in spread.duration)
    how = (
        "counted"
        if supported_level(spread.level, spread.runs) == spread.level
        else "by Student's t, since they are few"
    )
    of = "" if epochs is None else f" of {format_count(epochs, 'epoch')}"
    return (
        f"An unseen run{of} draws {format_joules(low_j)} to {format_joules(high_j)} and takes "
        f"{format_hours(low_s)} to {format_hours(high_s)} ({100 * spread.level:.0f} %, from "
        f"{format_count(spread.runs, 'run')} {how})."
    )


def _fit(
    series: Sequence[RunSeries], *, finder: PhaseFinder, resumed: Sequence[RunSeries], repeats: bool
) -> PhaseFit:
    model = finder.find(series)
    averaged = repeats and finder.method != "published"
    return PhaseFit.of(model, find_structure(model, resumed, repeats=averaged))


def _use_events(series: Sequence[RunSeries], events: bool | None) -> bool:
    inner = [
        any(0 < event.time - each.run.start < each.length_s for event in each.events)
        for each in series
    ]
    if events and not all(inner):
        silent = next(each.run.id for each, said in zip(series, inner, strict=True) if not said)
        raise InvalidInput(
            f"run {silent} has no events while the program runs: learn by power alone, or mark "
            "what the program does"
        )
    # Of runs that are mostly marked, a silent one is left out, and said to be.
    return 2 * sum(inner) > len(inner) if events is None else events


def _told(fit: PhaseFit, events: bool, series: Sequence[RunSeries]) -> list[str]:
    """Return what a reader has to know of how the profile came about."""
    model = fit.model
    notes = list(model.notes)
    if len(model.names) == 1:
        notes.append("one phase: power does not change by more than it varies anyway")
    else:
        notes.append(fit.structure.why)
    if model.outline.length and max(model.epochs) == 1:
        notes.append("all runs have a single epoch: --epochs needs runs of several")
    elif model.outline.length and fit.structure.block is None:
        notes.append("epochs differ from each other, and none are averaged: --epochs is refused")
    elif (each := model.outline.each) > 1:
        notes.append(
            f"epochs are not alike one by one, but each {each} together: --epochs takes "
            f"{format_count(each, 'epoch')} more or fewer at a time"
        )
    if len(series) == 1:
        notes.append("a single run cannot be validated: record at least one more")
    if model.lag_s:
        notes.append(_lag_words(model, series))
    if not any(model.checkpoints):
        notes.append(
            "no checkpoints are known: say where the program can resume, by events marked as "
            "checkpoints or labelled 'saved'"
            + ("" if events or not any(each.events for each in series) else ", and use the events")
        )
    if (fit.power_w < 0).any():
        notes.append("a phase draws less than the idle machine and is set to 0 W")
    return notes


def _lag_words(model: PhaseModel, series: Sequence[RunSeries]) -> str:
    """Return how long after the marks power changes, and how far runs agree on that."""
    late = (
        "follows the program's marks by" if model.lag_s > 0 else "precedes the program's marks by"
    )
    said = f"power {late} {abs(model.lag_s):.2f} s"
    marks = model.marks
    if marks is None or len(series) < 2:
        return said
    each = [
        find_lag([run], replace(marks, outline=replace(marks.outline, runs=(own,))), model.step_s)
        for own, run in zip(marks.outline.runs, series, strict=True)
    ]
    sign = 1 if model.lag_s > 0 else -1
    low, high = sorted((sign * min(each), sign * max(each)))
    return f"{said} ({low:.2f} to {high:.2f} s, run by run)"


def _names(fit: PhaseFit) -> list[str]:
    """Return the phases' names; those of a block share what most of them are called."""
    names = list(fit.model.names)
    if (block := fit.structure.block) is not None:
        for place in range(block.first, block.first + block.length):
            again = range(place, block.end, block.length)
            common = Counter(names[phase] for phase in again).most_common(1)[0][0]
            for phase in again:
                names[phase] = common
    return names


def with_intervals(fit: PhaseFit, level: float = 0.95) -> list[LearnedPhase]:
    """Return phases with the intervals of their means over runs, repeated ones once."""
    model, block = fit.model, fit.structure.block
    found = []
    for place, name in enumerate(_names(fit)):
        if not fit.lasting[place]:
            continue
        again = [place]
        if block is not None and block.first <= place < block.end:
            if place >= block.first + block.length:
                continue
            again = list(range(place, block.end, block.length))
        # Runs are what was repeated independently; within a run, occurrences are averaged.
        per_run_s, per_run_w = [], []
        for own_s, own_w, row in zip(model.run_s, model.run_power_w, model.rows, strict=True):
            inside = np.isin(row, again)
            if inside.any():
                per_run_s.append(float(own_s[inside].mean()))
            if (spent_s := float(own_s[inside].sum())) > 0:
                per_run_w.append(float(own_s[inside] @ own_w[inside]) / spent_s)
        duration = Interval.of(per_run_s, level=level)
        power = Interval.of(per_run_w, level=level)
        found.append(
            LearnedPhase(
                group="startup" if place < fit.structure.startup else "work",
                name=name,
                duration_s=duration,
                power_w=Interval(
                    value=float(fit.power_w[place]), half=power.half, count=power.count
                ),
                checkpoint=model.checkpoints[place] and place >= fit.structure.startup,
                times=len(again),
            )
        )
    return found


def _rounded(number: float) -> float:
    return float(f"{number:.6g}")


def profile_document(learned: Learned) -> dict[str, Any]:
    """Return the profile as `PowerProfile.from_dict` reads it, with repeated blocks."""
    plain = learned.profile.to_dict()
    document: dict[str, Any] = {"about": learned.text()}
    document |= {group: plain[group] for group in ("startup", "restart") if group in plain}
    work = plain["work"]
    if (block := learned.fit.structure.block) is not None:
        lasting = learned.fit.lasting
        first = int(lasting[: block.first].sum()) - len(learned.profile.startup)
        length = int(lasting[block.first : block.first + block.length].sum())
        end = first + length * block.count
        repeated: dict[str, Any] = {"repeat": block.count}
        if (outline := learned.fit.model.outline).each > 1:
            repeated["epochs"] = outline.each
        repeated["phases"] = work[first : first + length]
        begins = np.concatenate(([0], np.cumsum(learned.fit.model.parts)))
        after = slice(*begins[[outline.end, outline.end + outline.rest_length]].tolist())
        further = int(lasting[after].sum())
        rest = [{"epochs": outline.rest, "phases": work[end : end + further]}] if further else []
        work = [*work[:first], repeated, *rest, *work[end + further :]]
    document["work"] = work
    return document | ({"spread": plain["spread"]} if "spread" in plain else {})


def learned_document(learned: Learned) -> dict[str, Any]:
    """Return everything that was learned as plain lists and numbers."""
    model, structure = learned.fit.model, learned.fit.structure
    profile = profile_document(learned)
    return {
        "profile": profile,
        "power": learned.power,
        "baseline_w": learned.baseline_w,
        "runs": list(model.runs),
        "by": "power" if model.marks is None else "marks",
        "lag_s": model.lag_s,
        "phases": [asdict(phase) for phase in learned.phases],
        "repeated": None if structure.block is None else asdict(structure.block),
        "edges_s": {
            name: edges_s.tolist() for name, edges_s in zip(model.runs, model.edges_s, strict=True)
        },
        "validation": None if learned.validation is None else asdict(learned.validation),
        "checks": [asdict(each) for each in learned.checks],
        "costs": [asdict(cost) for cost in learned.costs],
        "notes": list(learned.notes),
    }
