"""What power models are learned from: power and use of a machine, run by run, joined on time.

Meters and counters have clocks of their own. So nothing is ever joined by its row: each series is
averaged over the same windows of time, and what does not cover a window is missing there.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from lowtide.errors import InvalidInput
from lowtide.learning.marks import START, plain_label
from lowtide.meters.estimate import FEATURES
from lowtide.recording import Recording, Run, runs_of
from lowtide.signal import FloatArray
from lowtide.steps import Steps

IntArray = npt.NDArray[np.intp]
Usage = tuple[FloatArray, Mapping[str, FloatArray]]

# A column of another's table that looks like a use of something.
_USE = re.compile(
    r"util|busy|load|usage|percent|share|clock|freq|mhz|mem\w*_(mib|bytes)|context|temperature",
    re.IGNORECASE,
)
_POWER = re.compile(r"(power|energy|^w$|_u?m?k?[wj]$)", re.IGNORECASE)
_CHOICE = re.compile(r"(?:(?P<name>[^=/()]+)=)?(?P<rate>rate\()?(?P<column>[^=()]+?)\)?")
# A sample holds until the next, but no longer than so many usual steps: then there is a gap.
_HOLDS_STEPS = 5.0
# A window counts if so much of it is covered.
_COVERED = 0.5
# Fewer windows than these tell nothing: of a run, of a load, and of all.
_LEAST_OF_RUN = 5
_LEAST_OF_LOAD = 2
_LEAST = 30
# Fewer loads than these cannot be left out in turn.
_LEAST_LOADS = 3
_IDLE = "idle"
# Runs that share so much of what they mark are of one program.
_ALIKE = 0.5
# Power and use are read by different clocks and sensors: how far apart they may be, and how much
# less must be left unexplained before that is believed.
_LAGS_S = np.round(np.arange(-1.0, 2.0 + 0.01, 0.05), 2)
_LESS_LEFT, _MOST_LEFT = 0.8, 0.3
# So many runs, and samples of each, are looked at for it.
_LAG_RUNS, _LAG_SAMPLES = 12, 8192
# Runs whose own lags are this near to each other agree.
_NEAR_S = 0.2
# Power that varies by less than this share of itself is constant.
_CONSTANT = 1e-3
# More than this many windows are thinned: models do not get better, only slower.
_MOST = 20_000
# Facts that may differ between recordings of one machine.
_PASSING = ("python", "system", "sampling_cpu_share", "measured")


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """A feature as a user names it.

    Attributes:
        name: What it is called in the model.
        rate: Whether the column is a counter, of which the rate is taken.
    """

    name: str
    column: str
    rate: bool = False
    divisor: float = 1.0

    @classmethod
    def of(cls, text: str) -> Choice:
        """Return what a text chooses.

        Args:
            text: `cpu`, `gpu=gpu_util/100`, `disk=rate(read_bytes)`.

        >>> Choice.of("gpu=gpu_util/100")
        Choice(name='gpu', column='gpu_util', rate=False, divisor=100.0)
        """
        head, slash, divisor = text.strip().rpartition("/")
        if not slash:
            head, divisor = divisor, "1"
        match = _CHOICE.fullmatch(head.strip())
        try:
            by = float(divisor)
        except ValueError:
            by = 0.0
        if match is None or not by > 0 or bool(match["rate"]) != head.rstrip().endswith(")"):
            raise InvalidInput(
                "a feature is NAME, NAME=COLUMN, NAME=COLUMN/NUMBER or NAME=rate(COLUMN), such as "
                f"gpu=gpu_util/100, not {text!r}"
            )
        column = match["column"].strip()
        name = (match["name"] or column).strip()
        # Prometheus ends the names of its counters so.
        rate = bool(match["rate"]) or column.endswith("_total")
        return cls(name=name, column=FEATURES.get(column, column), rate=rate, divisor=by)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Observations:
    """Windows of time with the power drawn and the use made in each.

    Attributes:
        power_w: Mean power of each window.
        group: The run each window belongs to, counted from 0; of a single run, the load.
        load: The load each window belongs to, counted from 0; empty where there are too few loads
            to be left out in turn.
        loads: What they are called: programs, or what a single run marked.
        lag_s: By how much use follows power; use is moved by that.
        lags_s: The same, found run by run.
        machine: What is known about the machine, and alike in all runs.
    """

    features: tuple[str, ...]
    use: FloatArray
    power_w: FloatArray
    group: IntArray
    runs: tuple[str, ...]
    average_s: float
    load: IntArray = field(default_factory=lambda: np.empty(0, dtype=np.intp))
    loads: tuple[str, ...] = ()
    lag_s: float = 0.0
    lags_s: tuple[float, ...] = ()
    machine: Mapping[str, Any] = field(default_factory=dict)
    meters: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    def __len__(self) -> int:
        return self.power_w.size

    @property
    def leading(self) -> int:
        """The feature that power follows most closely, counted from 0."""
        spread = self.use.std(axis=0) * self.power_w.std()
        centred = (self.use - self.use.mean(axis=0)) * (self.power_w - self.power_w.mean())[:, None]
        return int(np.argmax(np.abs(centred.mean(axis=0)) / spread))


def observe(
    recordings: Iterable[Recording],
    *,
    features: Sequence[str] | None = None,
    usage: Sequence[Usage] = (),
    average_s: float = 1.0,
) -> Observations:
    """Return power and use of all measured runs, averaged over windows.

    Args:
        features: What to go by, as `Choice.of` reads it; by default the machine's use where the
            recordings have it, else every column whose name says that it is a use.
    """
    if not average_s > 0:
        raise InvalidInput(f"use is averaged over a time above 0 s, not {average_s:g} s")
    notes: list[str] = []
    named = _measured(list(recordings), notes)
    choices = _choices(features, [run for _, run in named], usage)
    lag_s, lags_s = _find_lag([run for _, run in named], choices, usage)
    names, tables, machines = [], [], []
    mids: dict[str, FloatArray] = {}
    meters: list[str] = []
    for name, run in named:
        rows, middles = _windows(run, choices, usage, average_s, lag_s)
        known = ~np.isnan(rows).any(axis=1)
        whole = rows[known]
        if whole.shape[0] < _LEAST_OF_RUN:
            notes.append(
                f"run {name} is left out: {whole.shape[0]} of its {rows.shape[0]} windows of "
                f"{average_s:g} s have both power and use"
            )
            continue
        names.append(name)
        tables.append(whole)
        mids[name] = middles[known]
        machines.append(dict(run.machine))
        meters += run.meters
    count = sum(table.shape[0] for table in tables)
    if count < _LEAST:
        raise InvalidInput(
            f"{count} windows of {average_s:g} s with power and use are too few to learn from, "
            f"{_LEAST} are needed: measure for longer{_because(notes)}"
        )
    stride = -(-count // _MOST)
    if stride > 1:
        notes.append(f"of {count} windows one in {stride} is used")
    tables = [each[::stride] for each in tables]
    mids = {name: each[::stride] for name, each in mids.items()}
    table = np.concatenate(tables)
    group = np.repeat(np.arange(len(tables)), [each.shape[0] for each in tables])
    power_w = table[:, 0]
    if power_w.std() <= _CONSTANT * power_w.mean():
        raise InvalidInput(
            f"the power is constant ({power_w.mean():.1f} W), so nothing can be learned about it: "
            "measure the machine from idle to full load"
        )
    kept = np.flatnonzero(np.ptp(table[:, 1:], axis=0) > 0)
    constant = [each.name for place, each in enumerate(choices) if place not in kept]
    if constant:
        notes.append(f"{', '.join(constant)} never changed and is left out")
    if not kept.size:
        raise InvalidInput(
            f"no use changed ({', '.join(constant)}): measure the machine from idle to full load"
        )
    load, loads = _loads([each for each in named if each[0] in mids], mids)
    if len(names) == 1 and loads:
        notes.append(
            f"{names[0]} is a single run: its {len(loads)} marked loads are left out in turn"
        )
        group, names = load, list(loads)
    if lag_s:
        late = "follows" if lag_s > 0 else "precedes"
        spread = f" ({min(lags_s):+.2f} to {max(lags_s):+.2f} s, run by run)" if lags_s else ""
        notes.append(f"use {late} power by {abs(lag_s):.2f} s{spread}, and is moved by that")
    return Observations(
        features=tuple(choices[place].name for place in kept),
        use=np.ascontiguousarray(table[:, 1:][:, kept]),
        power_w=power_w,
        group=group,
        runs=tuple(names),
        average_s=average_s,
        load=load,
        loads=loads,
        lag_s=lag_s,
        lags_s=lags_s,
        machine=_alike(machines, notes),
        meters=tuple(dict.fromkeys(meters)),
        notes=tuple(notes),
    )


def _loads(
    named: Sequence[tuple[str, Run]], mids: Mapping[str, FloatArray]
) -> tuple[IntArray, tuple[str, ...]]:
    """Return the load of each window of all runs in turn, and what each is called.

    Programs are loads, and so is each thing that a program marked which was run once, as a sweep
    is. Where these are too few, what programs marked is: without its numbers, so that an epoch
    that was left out is not known by the next, else to the letter. Nothing where that is too few.
    An idle machine is no load of its own.
    """
    programs: list[tuple[set[str], list[str]]] = []
    for name, run in named:
        marks = {plain_label(event.label) for event in run.events}
        for known, members in programs:
            shared = len(known & marks) / len(known | marks) if known | marks else 1.0
            if shared >= _ALIKE:
                members.append(name)
                break
        else:
            programs.append((marks, [name]))
    first = {name: members[0] for _, members in programs for name in members}
    once = {members[0] for _, members in programs if len(members) == 1}

    def by_program(name: str, label: str) -> str:
        return label if name in once else first[name]

    for tell in (by_program, lambda _, label: plain_label(label), lambda _, label: label):
        said = np.concatenate(
            [_labelled(first[name], run, mids[name], partial(tell, name)) for name, run in named]
        )
        names, load, counts = np.unique(said, return_inverse=True, return_counts=True)
        busy = [count for name, count in zip(names, counts, strict=True) if name != _IDLE]
        if sum(count >= _LEAST_OF_LOAD for count in busy) >= _LEAST_LOADS:
            return load, tuple(str(name) for name in names)
    return np.empty(0, dtype=np.intp), ()


def _labelled(
    program: str, run: Run, mids: FloatArray, tell: Callable[[str], str]
) -> npt.NDArray[np.str_]:
    """Return what load each window of a run is said to be."""
    words = [START, *(event.label for event in run.events)]
    if run.kind == "idle" or not run.events:
        return np.full(mids.size, _IDLE if run.kind == "idle" else program)
    begins = np.array([event.time for event in run.events])
    loads = np.array([word if word == _IDLE else tell(word) for word in words])
    found: npt.NDArray[np.str_] = loads[np.searchsorted(begins, mids, side="right")]
    return found


def _find_lag(
    runs: Sequence[Run], choices: Sequence[Choice], usage: Sequence[Usage]
) -> tuple[float, tuple[float, ...]]:
    """Return by how much use follows power: that at which a line leaves least unexplained.

    Also the same for each run by itself, as far as it tells. Lags shorter than the samples cannot
    be told, and what is hardly better than none is none.
    """
    if usage or not runs:
        # Others' tables have clocks of their own, and are joined as they are.
        return 0.0, ()
    step_s = max(run.step_s for run in runs)
    lags = [lag for lag in sorted(_LAGS_S.tolist(), key=abs) if lag == 0 or abs(lag) >= step_s]
    if len(lags) < 2 or step_s > 0.5:
        return 0.0, ()
    window_s = max(2 * step_s, 0.2)
    some = [_middle(run, choices) for run in runs[:: -(-len(runs) // _LAG_RUNS)]]
    left = np.array([[_unexplained(run, choices, window_s, lag) for lag in lags] for run in some])
    left = left[np.isfinite(left).all(axis=1) & (left[:, 0] > 0)]
    if not left.size:
        return 0.0, ()

    def best(shares: FloatArray) -> float:
        place = int(np.argmin(shares))
        return lags[place] if shares[place] < _LESS_LEFT * shares[0] else 0.0

    # Where power does not go by use as a line does, chance decides which lag fits it best.
    left = left[left.min(axis=1) < _MOST_LEFT]
    if not left.size:
        return 0.0, ()
    lag_s, each = best(left.mean(axis=0)), tuple(best(row) for row in left)
    agree = [abs(own_s - lag_s) <= max(2 * step_s, _NEAR_S) for own_s in each]
    return (lag_s, each) if 2 * sum(agree) > len(agree) else (0.0, each)


def _middle(run: Run, choices: Sequence[Choice]) -> Run:
    """Return as much of a run as tells its lag: of a day, a quarter of an hour will do."""
    known = np.flatnonzero(np.isfinite(run.node_w))
    skipped = max(known.size - _LAG_SAMPLES, 0) // 2
    rows = known[skipped : skipped + _LAG_SAMPLES]
    columns = {choice.column: run.columns[choice.column][rows] for choice in choices}
    return Run(id=run.id, times=run.times[rows], power_w=run.node_w[rows], columns=columns)


def _unexplained(run: Run, choices: Sequence[Choice], window_s: float, lag_s: float) -> float:
    """Return the share of power's variance that a line over use leaves, lagged by so much."""
    rows, _ = _windows(run, choices, (), window_s, lag_s, margin_s=float(np.abs(_LAGS_S).max()))
    rows = rows[~np.isnan(rows).any(axis=1)]
    varied = [
        place for place in range(1, rows.shape[1]) if rows.size and np.ptp(rows[:, place]) > 0
    ]
    if rows.shape[0] < _LEAST or not varied:
        return math.nan
    use = np.column_stack([np.ones(rows.shape[0]), rows[:, varied]])
    _, left, _, _ = np.linalg.lstsq(use / np.abs(use).max(axis=0), rows[:, 0], rcond=None)
    total = float(np.square(rows[:, 0] - rows[:, 0].mean()).sum())
    return float(left[0]) / total if left.size and total > 0 else math.nan


def rates(times: FloatArray, counts: FloatArray) -> FloatArray:
    """Return how fast a counter grew from each reading until the next, NaN for the last.

    A counter that falls was reset: how far it had come until then is not known. Nor is what it did
    at which time while it was not read.

    >>> rates(np.array([0.0, 2.0, 3.0, 4.0]), np.array([10.0, 30.0, 35.0, 5.0]))
    array([10.,  5., nan, nan])
    """
    steps_s = np.diff(times)
    grown = np.diff(counts) / steps_s
    known = (grown >= 0) & (steps_s <= _HOLDS_STEPS * np.median(steps_s))
    return np.append(np.where(known, grown, np.nan), np.nan)


def window_means(times: FloatArray, values: FloatArray, edges: FloatArray) -> FloatArray:
    """Return the mean of a series in each window, NaN where it covers less than half of it.

    Args:
        times: When each value begins to hold, until the next does.
        values: The values, NaN where they are missing.

    >>> window_means(np.array([0.0, 1.0, 2.0]), np.array([4.0, 8.0, np.nan]), np.array([0, 2, 4]))
    array([ 6., nan])
    """
    steps = np.diff(times)
    usual = float(np.median(steps))
    ends = np.minimum(np.append(times[1:], times[-1] + usual), times + _HOLDS_STEPS * usual)
    known = np.isfinite(values)
    held = Steps.held(times, ends, np.where(known, values, np.nan))
    covered, total = held.known_s(edges), held.amounts(edges)
    enough = covered >= _COVERED * np.diff(edges) * (1 - 1e-9)
    if not enough.any():
        return np.full(enough.size, np.nan)
    # A mean lies within its values; rounding would have a share of 1 come out above it.
    mean = np.clip(total / np.where(enough, covered, 1.0), values[known].min(), values[known].max())
    return np.where(enough, mean, np.nan)


def _windows(
    run: Run,
    choices: Sequence[Choice],
    usage: Sequence[Usage],
    average_s: float,
    lag_s: float = 0.0,
    margin_s: float = 0.0,
) -> tuple[FloatArray, FloatArray]:
    """Return a row per window, power and then each feature; and the middle of each window.

    Args:
        lag_s: By how much use follows power.
        margin_s: How much of either end is left out, so that windows are the same for all lags.
    """
    times, first = run.times, run.times[0] + margin_s
    length_s = float(times[-1] - run.times[0]) + run.step_s - 2 * margin_s
    edges = first + average_s * np.arange(max(int(length_s / average_s + 1e-6), 0) + 1)
    if edges.size < 2:
        return np.empty((0, 1 + len(choices))), np.empty(0)
    # What a machine draws goes with how busy all of it is.
    columns = [window_means(times, run.node_w, edges)]
    for choice in choices:
        when, values = _series(choice, run, usage)
        if choice.rate:
            values = rates(when, values)
        columns.append(window_means(when, values / choice.divisor, edges + lag_s))
    return np.column_stack(columns), (edges[:-1] + edges[1:]) / 2


def use_between(
    run: Run, features: Sequence[str], edges: FloatArray
) -> tuple[list[str], FloatArray]:
    """Return how busy the machine was between each moment and the next, whatever it drew.

    Args:
        features: What to go by, as `Choice.of` reads it.

    Returns:
        What the features are called, and a row of them for each stretch, NaN where not known.
    """
    choices = _choices(features, [run], ())
    columns = []
    for choice in choices:
        values = run.columns[choice.column]
        if choice.rate:
            values = rates(run.times, values)
        columns.append(window_means(run.times, values / choice.divisor, edges))
    return [choice.name for choice in choices], np.column_stack(columns)


def _series(choice: Choice, run: Run, usage: Sequence[Usage]) -> tuple[FloatArray, FloatArray]:
    for when, columns in usage:
        if choice.column in columns:
            return when, columns[choice.column]
    return run.times, run.columns[choice.column]


def _measured(recordings: list[Recording], notes: list[str]) -> list[tuple[str, Run]]:
    """Return measured runs, each with a name of its own."""
    named = [(run.id, run) for run in runs_of(recordings)]
    estimated = [name for name, run in named if run.power == "estimated"]
    if len(estimated) == len(named):
        raise InvalidInput(
            "the power of these runs was itself estimated from use: a model is learned from power "
            "that was measured (lowtide doctor lists the meters)"
        )
    if estimated:
        notes.append(f"left out, since power was estimated: {', '.join(estimated)}")
    return [(name, run) for name, run in named if run.power != "estimated"]


def _choices(
    features: Sequence[str] | None, runs: Sequence[Run], usage: Sequence[Usage]
) -> list[Choice]:
    beside = {name for _, columns in usage for name in columns}
    known = [*dict.fromkeys(name for run in runs for name in run.columns), *sorted(beside)]
    usable = [name for name in known if not _POWER.search(name)]
    if features is not None:
        choices = [Choice.of(text) for text in features]
        names = [choice.name for choice in choices]
        if len(set(names)) < len(names) or not names:
            raise InvalidInput("features have names of their own, and there is at least one")
    else:
        everywhere = [
            name for name in usable if name in beside or all(name in run.columns for run in runs)
        ]
        own = [name for name, column in FEATURES.items() if column in everywhere]
        used = [name for name in everywhere if _USE.search(name) and name not in FEATURES.values()]
        # What was named on purpose, in a table beside the recordings, is wanted.
        extra = [name for name in sorted(beside) if not _POWER.search(name)]
        chosen = dict.fromkeys([*(own or used), *extra])
        choices = [Choice.of(name) for name in chosen]
        if not choices:
            raise InvalidInput(
                "these runs say nothing about how busy the machine was: columns are "
                f"{', '.join(usable) or 'none but power'}. Name one with --features, join a "
                "table with --usage, or measure again with lowtide measure"
            )
    for choice in choices:
        lacking = [run.id for run in runs if choice.column not in run.columns]
        if choice.column not in beside and lacking:
            raise InvalidInput(
                f"run {lacking[0]} has no column {choice.column!r} for the feature "
                f"{choice.name!r}: there are {', '.join(usable) or 'none but power'}. Say which is "
                f"it with --features {choice.name}=COLUMN, or record it with lowtide measure"
            )
    return choices


def _alike(machines: Sequence[Mapping[str, Any]], notes: list[str]) -> dict[str, Any]:
    """Return the facts that are the same in all runs; note where machines differ."""
    first = machines[0]
    differ = sorted(
        key
        for key in {key for machine in machines for key in machine}
        if key not in _PASSING and any(machine.get(key) != first.get(key) for machine in machines)
    )
    if differ:
        notes.append(
            f"the runs differ in {', '.join(differ)}: a model of several machines fits none of them"
        )
    return {key: first[key] for key in sorted(first) if key not in (*_PASSING, *differ)}


def _because(notes: Sequence[str]) -> str:
    return "".join(f"; {note}" for note in notes)
