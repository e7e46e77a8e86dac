"""Measured runs of a program: what was drawn when, and what the program said it was doing.

A `Run` is one start of a program with the samples around it; a `Recording` is the runs that were
measured together. Runs that belong together, a stop and the resumption after it, share a `pair`.
Times are epoch seconds. A sample's power holds from its time until the next sample's.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt

from lowtide.errors import InvalidInput
from lowtide.signal import FloatArray
from lowtide.steps import Steps
from lowtide.units import format_count, format_energy, format_hours

KINDS = ("full", "stop", "resume", "kill", "startup", "idle")
POWERS = ("measured", "estimated")
# No node draws a megawatt; what does is a slip of units or a broken meter.
MOST_W = 1e6
# A stretch without samples is a gap if it is both long and longer than sampling explains.
_GAP_STEPS = 20
_GAP_S = 2.0
# Where the meters are known to have been silent, less is one: a late reading is none yet.
_SILENT_STEPS = 2.5
# A program may begin before the first sample and end after the last by this much: they hold.
_REACH_STEPS = 3
_REACH_S = 0.5
_NUMBER = re.compile(r"\d+(?:\.\d+)?")


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """Something the program said, or was heard to do.

    Attributes:
        time: When, in epoch seconds.
        label: What; it starts the phase it names.
        checkpoint: Whether a later start can resume from here.
    """

    time: float
    label: str
    checkpoint: bool = False

    def __post_init__(self) -> None:
        if not np.isfinite(self.time):
            raise InvalidInput(f"event {self.label!r} needs a time, not {self.time}")
        if not self.label:
            raise InvalidInput("an event needs a label")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False, init=False)
class Run:
    """One start of a program, measured.

    Attributes:
        id: What it is called, unlike any other of its recording.
        times: When each sample was taken.
        power_w: What was drawn from each sample's time on, until the next.
        start: When the program began; samples before it are of the idle machine.
        end: When it was over; samples after it are of the idle machine.
        kind: `full`, `stop`, `resume`, `kill`, `startup`, `idle`, or None where nobody said.
        pair: What runs that belong together share, such as a stop and its resumption.
        columns: Further measurements by name, one value per sample, NaN where there is none.
        events: What the program said, in order.
        power: `measured` or `estimated`.
        meters: Which meters were read.
        machine: Facts about the machine.
        exit_status: How the program ended, None where that is not known.
        notes: What went wrong: a meter that vanished, a clock that stepped.
        silent: Stretches in which the meters were asked and did not answer, as (from, to), without
            samples in between; no sample holds across them.

    >>> run = Run(id="a", times=[0, 1, 2], power_w=[50, 200, 100], start=0.5, end=2.5)
    >>> run.energy_j(), run.mean_w
    (275.0, 137.5)
    """

    id: str
    times: FloatArray
    power_w: FloatArray
    start: float
    end: float
    kind: str | None
    pair: str | None
    columns: Mapping[str, FloatArray]
    events: tuple[Event, ...]
    power: str
    meters: tuple[str, ...]
    machine: Mapping[str, Any]
    exit_status: int | None
    notes: tuple[str, ...]
    silent: tuple[tuple[float, float], ...]
    _since: FloatArray = field(init=False)
    _until: FloatArray = field(init=False)
    _watched: tuple[float, float] = field(init=False)
    _drawn: Steps = field(init=False)

    def __init__(
        self,
        *,
        id: str,  # noqa: A002 - the word everyone uses for it
        times: npt.ArrayLike,
        power_w: npt.ArrayLike,
        start: float | None = None,
        end: float | None = None,
        kind: str | None = None,
        pair: str | None = None,
        columns: Mapping[str, npt.ArrayLike] | None = None,
        events: Iterable[Event] = (),
        power: str = "measured",
        meters: Iterable[str] = (),
        machine: Mapping[str, Any] | None = None,
        exit_status: int | None = None,
        notes: Iterable[str] = (),
        silent: Iterable[tuple[float, float]] = (),
    ) -> None:
        when, drawn = _own(times), _own(power_w)
        _check_samples(id, when, drawn)
        if kind is not None and kind not in KINDS:
            raise InvalidInput(f"run {id}: the kind is one of {', '.join(KINDS)}, not {kind!r}")
        if power not in POWERS:
            raise InvalidInput(f"run {id}: power is measured or estimated, not {power!r}")
        quiet = tuple(sorted((float(first), float(last)) for first, last in silent))
        since, until = _holds(when, quiet)
        # Samples and silence together are what was watched.
        first = min([float(since[0]), *(early for early, _ in quiet)])
        last = max([float(until[-1]), *(late for _, late in quiet)])
        begin = first if start is None else float(start)
        over = last if end is None else float(end)
        reach = reach_s(when)
        if not (first - reach <= begin < over <= last + reach):
            raise InvalidInput(
                f"run {id}: the program ran from {begin:.3f} to {over:.3f}, and samples cover "
                f"{first:.3f} to {last:.3f}"
            )
        # The first sample and the last hold a little beyond, unless the meters were silent there.
        if first == since[0]:
            since[0] = first = min(first, begin)
        if last == until[-1]:
            until[-1] = last = max(last, over)
        further = {name: _own(values) for name, values in (columns or {}).items()}
        for name, values in further.items():
            if values.shape != when.shape:
                raise InvalidInput(
                    f"run {id}: column {name!r} has {values.size} values for {when.size} samples"
                )
        said = sorted(events, key=lambda event: event.time)
        for array in (when, drawn, since, until, *further.values()):
            array.flags.writeable = False
        for attribute, value in (
            ("id", id),
            ("times", when),
            ("power_w", drawn),
            ("start", begin),
            ("end", over),
            ("kind", kind),
            ("pair", pair),
            ("columns", MappingProxyType(further)),
            ("events", tuple(said)),
            ("power", power),
            ("meters", tuple(meters)),
            ("machine", MappingProxyType(dict(machine or {}))),
            ("exit_status", exit_status),
            ("notes", tuple(notes)),
            ("silent", quiet),
            ("_since", since),
            ("_until", until),
            ("_watched", (min(first, begin), max(last, over))),
            ("_drawn", Steps.held(since, until, drawn)),
        ):
            object.__setattr__(self, attribute, value)

    @property
    def duration_s(self) -> float:
        """How long the program ran."""
        return self.end - self.start

    @property
    def node_w(self) -> FloatArray:
        """What the whole machine drew at each sample, where that was told from the program's."""
        return self.columns.get("node_w", self.power_w)

    @property
    def step_s(self) -> float:
        """The usual time between two samples."""
        return float(np.median(np.diff(self.times)))

    @property
    def sampled(self) -> int:
        """How many samples were taken while the program ran."""
        return int(np.count_nonzero((self.times >= self.start) & (self.times < self.end)))

    @property
    def mean_w(self) -> float:
        """What was drawn on average while the program ran and was measured."""
        return self.energy_j() / (self.duration_s - self.missing_s or np.nan)

    @property
    def gaps(self) -> tuple[tuple[float, float], ...]:
        """Stretches of the program without samples, as (from, to)."""
        first, last = self._watched
        begins = np.append(first, self._until)
        ends = np.append(self._since, last)
        open_ = (ends > begins) & (ends > self.start) & (begins < self.end)
        return tuple(zip(begins[open_].tolist(), ends[open_].tolist(), strict=True))

    @property
    def missing_s(self) -> float:
        """For how long the program ran without being measured."""
        return sum(min(end, self.end) - max(begin, self.start) for begin, end in self.gaps)

    def energy_j(self, start: float | None = None, end: float | None = None) -> float:
        """Return what was drawn between two instants, by default while the program ran.

        What was drawn in gaps is not known and not counted: `missing_s` says for how long. NaN
        where there is nothing else.
        """
        begin = self.start if start is None else start
        over = self.end if end is None else end
        if any(first <= begin and over <= last for first, last in self.gaps):
            return np.nan
        return float(np.diff(self.energies_j(np.array([begin, over])))[0])

    def energies_j(self, instants: FloatArray) -> FloatArray:
        """Return what was drawn from the first sample until each instant.

        Args:
            instants: Epoch seconds within the samples.
        """
        slack = 1e-6
        first, last = self._watched
        if instants.min() < first - slack or instants.max() > last + slack:
            raise InvalidInput(
                f"run {self.id}: samples cover {first:.3f} to {last:.3f}, "
                f"not {instants.min():.3f} to {instants.max():.3f}"
            )
        return self._drawn.upto(instants)

    def means_w(self, edges: FloatArray) -> FloatArray:
        """Return the mean power between each instant and the next, NaN where any of it is lacking.

        Args:
            edges: Epoch seconds, rising; they may lie outside of the samples.

        >>> Run(id="a", times=[0, 1], power_w=[50, 100]).means_w(np.array([0.0, 2.0, 3.0]))
        array([75., nan])
        """
        inside = np.clip(edges, self._since[0], self._until[-1])
        covered_s = self._drawn.known_s(inside)
        steps_s = np.diff(edges)
        whole = covered_s >= steps_s - 1e-6 * np.maximum(steps_s, 1.0)
        means_w: FloatArray = np.where(whole, np.diff(self.energies_j(inside)) / steps_s, np.nan)
        return means_w

    def idle(self) -> FloatArray:
        """Return the samples of the idle machine: those before the program, or all of an idle run.

        What comes after the program is left out: a machine takes its time to calm down.
        """
        if self.kind == "idle":
            return self.power_w[(self.times >= self.start) & (self.times < self.end)]
        return self.power_w[self._until <= self.start]

    def __repr__(self) -> str:
        kind = self.kind or "unknown kind"
        return (
            f"<Run {self.id}: {kind}, {format_hours(self.duration_s)}, "
            f"{format_energy(self.energy_j())} {self.power}, "
            f"{format_count(self.times.size, 'sample')}, {format_count(len(self.events), 'event')}>"
        )

    def __reduce__(self) -> tuple[Any, ...]:
        state = {name: getattr(self, name) for name in self.__dataclass_fields__ if name[0] != "_"}
        return _remake, ({**state, "columns": dict(self.columns), "machine": dict(self.machine)},)


@dataclass(frozen=True, slots=True, kw_only=True)
class Unmeasured:
    """One start of a program of whose power nothing is known: it has fewer than two samples.

    Attributes:
        id: What it is called, unlike any other of its recording.
        start: When the program began, None where that is not known.
        end: When it was over, None where that is not known.
        kind: As a run's.
        pair: As a run's.
        events: What the program said.
        power: What its power would have been: `measured` or `estimated`.
        meters: Which meters were read.
        machine: Facts about the machine.
        exit_status: How the program ended, None where that is not known.
        notes: What went wrong.
    """

    id: str
    start: float | None = None
    end: float | None = None
    kind: str | None = None
    pair: str | None = None
    events: tuple[Event, ...] = ()
    power: str = "measured"
    meters: tuple[str, ...] = ()
    machine: Mapping[str, Any] = field(default_factory=dict)
    exit_status: int | None = None
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class Recording:
    """Runs that were measured together.

    Attributes:
        runs: The runs, in order.
        source: Where they were read, in words.
        notes: What a reader should know: a part that could not be read, a run that was cut short.
        unmeasured: Runs whose power is not known: the program did not exist, or was over at once.

    >>> Recording(runs=[Run(id="a", times=[0, 1], power_w=[5, 5], kind="full")], source="by hand")
    <Recording: 1 run (1 full), by hand>
    """

    runs: tuple[Run, ...]
    source: str = ""
    notes: tuple[str, ...] = ()
    unmeasured: tuple[Unmeasured, ...] = ()

    def __post_init__(self) -> None:
        for name in ("runs", "notes", "unmeasured"):
            object.__setattr__(self, name, tuple(getattr(self, name)))
        names = [run.id for run in self.runs] + [run.id for run in self.unmeasured]
        if not names:
            raise InvalidInput("a recording has at least one run")
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise InvalidInput(f"runs of a recording have names of their own: {twice[0]} is twice")

    def __len__(self) -> int:
        return len(self.runs)

    def __iter__(self) -> Iterator[Run]:
        return iter(self.runs)

    def __getitem__(self, name: str) -> Run:
        """Return the run of that name."""
        for run in self.runs:
            if run.id == name:
                return run
        raise KeyError(name)

    def __repr__(self) -> str:
        kinds = [run.kind or "unknown" for run in self.runs]
        told = ", ".join(f"{kinds.count(kind)} {kind}" for kind in dict.fromkeys(kinds))
        told = f" ({told})" if told else ""
        if self.unmeasured:
            told += f", {len(self.unmeasured)} without samples"
        source = f", {self.source}" if self.source else ""
        return f"<Recording: {format_count(len(self), 'run')}{told}{source}>"


def runs_of(recordings: Iterable[Recording]) -> list[Run]:
    """Return the runs of recordings, each with a name of its own.

    Recordings are made one by one, and call their runs and pairs alike: runs are then called after
    where they were read too, and a pair that is whole in one recording is none of another's.

    >>> one, other = (
    ...     Recording(runs=[Run(id="full_0", times=[0, 1], power_w=[5, 5])], source=source)
    ...     for source in ("monday", "friday")
    ... )
    >>> [run.id for run in runs_of([one, other])], runs_of([one])[0].id
    (['monday/full_0', 'friday/full_0'], 'full_0')
    """
    every = [(number, each, run) for number, each in enumerate(recordings) for run in each]
    plain = Counter(run.id for *_, run in every)
    names = [
        f"{each.source}/{run.id}" if plain[run.id] > 1 and each.source else run.id
        for _, each, run in every
    ]
    # Two folders of one name may hold runs of one name, and some have none.
    full = Counter(names)
    names = [
        name if full[name] == 1 else f"{name} ({place})" for place, name in enumerate(names, 1)
    ]
    members: dict[tuple[int, str], set[bool]] = {}
    for number, _, run in every:
        if run.pair:
            members.setdefault((number, run.pair), set()).add(run.kind == "resume")
    shared = Counter(pair for _, pair in members)
    found = []
    for (number, _, run), name in zip(every, names, strict=True):
        pair = run.pair
        if pair and shared[pair] > 1 and len(members[number, pair]) == 2:
            pair = f"{number} {pair}"
        same = (name, pair) == (run.id, run.pair)
        found.append(run if same else replace(run, id=name, pair=pair))
    return found


def told_together(said: Iterable[tuple[str, str]]) -> list[tuple[str, list[str]]]:
    """Return what was said, once where it differs by its numbers alone, and who said it.

    Args:
        said: What, and by whom.

    >>> told_together([("the first 3.5 s draw 90 W", "a"), ("the first 3.1 s draw 90 W", "b")])
    [('the first 3.1 to 3.5 s draw 90 W', ['a', 'b'])]
    """
    alike: dict[tuple[str, ...], list[tuple[str, str]]] = {}
    for words, who in said:
        alike.setdefault(tuple(_NUMBER.split(words)), []).append((words, who))
    found = []
    for between, each in alike.items():
        text = between[0]
        numbers = zip(*(_NUMBER.findall(words) for words, _ in each), strict=True)
        for own, words in zip(numbers, between[1:], strict=True):
            low, high = min(own, key=float), max(own, key=float)
            text += (low if low == high else f"{low} to {high}") + words
        found.append((text, [who for _, who in each]))
    return found


def pairs(runs: Iterable[Run], kind: str) -> list[tuple[Run, Run]]:
    """Return stops or kills with the resumption that belongs to each, where both are there.

    Args:
        kind: `stop` or `kill`.
    """
    everything = list(runs)
    resumed = {run.pair: run for run in everything if run.kind == "resume" and run.pair}
    return [
        (run, resumed[run.pair]) for run in everything if run.kind == kind and run.pair in resumed
    ]


def reach_s(times: FloatArray) -> float:
    """Return how far before the first sample a program may begin, and end after the last."""
    return max(_REACH_STEPS * float(np.median(np.diff(times))), _REACH_S)


def _holds(
    times: FloatArray, silent: Iterable[tuple[float, float]]
) -> tuple[FloatArray, FloatArray]:
    """Return since when and until when each sample holds."""
    steps = np.diff(times)
    step_s = float(np.median(steps))
    since, until = times.copy(), np.append(times[1:], times[-1] + step_s)
    wide = np.flatnonzero(steps > max(_GAP_STEPS * step_s, _GAP_S))
    until[wide] = times[wide] + step_s
    for begin, end in silent:
        before = int(np.searchsorted(times, begin, side="right")) - 1
        long = end - begin > _SILENT_STEPS * step_s
        if before < 0:
            since[0] = times[0] if long else min(since[0], begin)
        elif long:
            until[before] = min(until[before], max(begin, times[before]))
        elif before == times.size - 1:
            until[before] = max(until[before], end)
    return since, until


def _own(values: npt.ArrayLike) -> FloatArray:
    return np.array(values, dtype=np.float64)


def _check_samples(name: str, times: FloatArray, power_w: FloatArray) -> None:
    if times.ndim != 1 or times.shape != power_w.shape or times.size < 2:
        raise InvalidInput(
            f"run {name}: needs two samples or more, each a time and a power, not "
            f"{times.size} times and {power_w.size} powers"
        )
    if not np.isfinite(times).all():
        raise InvalidInput(f"run {name}: sample {np.argmin(np.isfinite(times)) + 1} has no time")
    back = np.flatnonzero(np.diff(times) <= 0)
    if back.size:
        row = int(back[0]) + 1
        raise InvalidInput(
            f"run {name}: sample {row + 1} at {times[row]:.6f} does not come after the one before "
            f"it at {times[row - 1]:.6f}: sort the samples and leave out repetitions"
        )
    trouble = power_trouble(power_w)
    if trouble is not None:
        row, why = trouble
        raise InvalidInput(f"run {name}: sample {row + 1}: {why}")


def power_trouble(power_w: FloatArray) -> tuple[int, str] | None:
    """Return the first sample that cannot be a power and why, None where all can be.

    >>> power_trouble(np.array([50.0, 2e6]))
    (1, '2e+06 W is not what a machine draws (0 to 1e+06 W): check unit and meter')
    """
    wrong = np.flatnonzero(~((power_w >= 0) & (power_w <= MOST_W)))
    if not wrong.size:
        return None
    row = int(wrong[0])
    if np.isnan(power_w[row]):
        return row, "the power is missing: leave the sample out"
    return row, (
        f"{power_w[row]:g} W is not what a machine draws (0 to {MOST_W:g} W): check unit and meter"
    )


def _remake(state: dict[str, Any]) -> Run:
    return Run(**state)
