"""Everything that is known of a job once it has run: its behaviour, and what waiting would save."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from lowtide.errors import InvalidInput, LowtideError
from lowtide.hindsight.phases import JobPhases, look_for_phases
from lowtide.job import Job
from lowtide.learning.likeness import use_of
from lowtide.library import Entry, Library
from lowtide.library.sources import program_of, run_of
from lowtide.monitor.snapshot import PRESSURES, FloatArray
from lowtide.monitor.verdicts import SATURATED, Behaviour, Use, Verdict, judge
from lowtide.policies import Plan, plan
from lowtide.profile import PowerProfile
from lowtide.signal import Signal
from lowtide.steps import Steps
from lowtide.store import JobRecord, Series, Store
from lowtide.store.layout import NODE
from lowtide.units import format_duration, format_time

# Says the intensity between two moments, for a time that the watcher did not know.
Beyond = Callable[[float, float], Signal]
_NAME_ONE = (
    "name it with --grid (gb, electricitymaps:DE, a synthetic one such as windy) or --signal FILE"
)

WAITS_S = (6 * 3600.0, 24 * 3600.0, 48 * 3600.0)
# What a watcher knew of the grid changes no faster than this.
_STEP_S = 300.0
# Unless it is about less time than this: then in smaller steps.
_LONG_S = 7200.0
_SHORT_STEP_S = 60.0


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Hindsight:
    """A job, looked back at.

    Attributes:
        phases: Its phases; None where they cannot be told.
        begin: When what is known of it begins, epoch seconds.
        pue: What the building drew for each watt of the node's; NaN where nobody said.
        signal: The grid that waiting is planned on; None where there is none.
        arrival: When it is taken to have come, epoch seconds; NaN without a signal.
        at_once: What running then comes to, in grams or money; NaN where it cannot be told.
        expected: The program of the library that it is; None where it is not known.
        notes: What could not be told, and why.
    """

    record: JobRecord
    series: Series
    behaviour: Behaviour
    verdicts: tuple[Verdict, ...]
    phases: JobPhases | None
    begin: float
    pue: float
    signal: Signal | None
    arrival: float
    at_once: float
    waiting: tuple[Waiting, ...]
    notes: tuple[str, ...]
    expected: Entry | None = None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SeenJob:
    """What was seen of a job while it ran: of one that is over it stays as it is.

    Attributes:
        begin: When what is known of it begins, epoch seconds.
        end: When it ends.
        phases: Its phases; None where they cannot be told.
        notes: What could not be told, and why.
    """

    series: Series
    begin: float
    end: float
    behaviour: Behaviour
    pue: float
    phases: JobPhases | None
    notes: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeUse:
    """What a node has, and how busy it was, in values that those of later times can be added to.

    Attributes:
        sizes: The most that it was said to have, by column; NaN where nobody said.
        busy_core_s: Time that its cores were busy, added up.
        busy_known_s: For how long that was known.
        pue_s: The building's factor, times for how long it was that.
        pue_known_s: For how long that was known.
    """

    sizes: Mapping[str, float]
    busy_core_s: float
    busy_known_s: float
    pue_s: float
    pue_known_s: float

    @classmethod
    def of(cls, node: Series) -> NodeUse:
        """Return that of a node over some time."""
        busy_core_s, busy_known_s = _added_up(node, "cpus_busy")
        pue_s, pue_known_s = _added_up(node, "pue")
        return cls(
            sizes={name: _most(node, name) for name in _SIZES},
            busy_core_s=busy_core_s,
            busy_known_s=busy_known_s,
            pue_s=pue_s,
            pue_known_s=pue_known_s,
        )

    def __add__(self, later: NodeUse) -> NodeUse:
        return NodeUse(
            sizes={name: float(np.fmax(self.sizes[name], later.sizes[name])) for name in _SIZES},
            busy_core_s=self.busy_core_s + later.busy_core_s,
            busy_known_s=self.busy_known_s + later.busy_known_s,
            pue_s=self.pue_s + later.pue_s,
            pue_known_s=self.pue_known_s + later.pue_known_s,
        )

    @property
    def pue(self) -> float:
        """What the building drew for each watt, on average; NaN where nobody said."""
        # It is kept to four digits or so, and told to two or three.
        return round(self.pue_s / self.pue_known_s, 3) if self.pue_known_s > 0 else math.nan

    @property
    def load(self) -> float:
        """Which share of its cores was busy on average; NaN where that is not known."""
        cores = _positive(self.sizes["cpus"])
        return self.busy_core_s / self.busy_known_s / cores if self.busy_known_s > 0 else math.nan


# What a node has that jobs can ask for, and what else is added up of it.
_SIZES = ("cpus", "memory_bytes", "gpus", "gpu_memory_total_bytes")
NODE_COLUMNS = (*_SIZES, "cpus_busy", "pue")


def look_at(store: Store, record: JobRecord) -> SeenJob:
    """Read what a job did, and its nodes meanwhile: of many nodes and a day that takes a second."""
    series = store.series(record)
    begin = float(series.starts[0]) if len(series) else record.first_seen
    end = float(series.times[-1]) if len(series) else record.last_seen
    watched = {host.name for host in store.hosts()}
    nodes = store.many_node_series(
        [host for host in record.hosts if host in watched], start=begin, end=end
    )
    return seen_of(record, series, [NodeUse.of(node) for node in nodes], store.phases(record))


def seen_of(
    record: JobRecord, series: Series, nodes: Sequence[NodeUse], kept: str | None
) -> SeenJob:
    """Return what was seen of a job.

    Args:
        nodes: What its nodes did meanwhile, in the order of its hosts.
        kept: What the store has of phases found earlier, as JSON text.
    """
    phases = None
    try:
        phases = look_for_phases(record, series, kept)
        notes = (phases.note,) * bool(phases.note)
    except LowtideError as error:
        notes = (f"No phases: {error}.",)
    return SeenJob(
        series=series,
        begin=float(series.starts[0]) if len(series) else record.first_seen,
        end=float(series.times[-1]) if len(series) else record.last_seen,
        behaviour=behaviour_of(record, series, nodes),
        pue=nodes[0].pue if nodes else math.nan,
        phases=phases,
        notes=notes,
    )


def look_back(
    store: Store,
    record: JobRecord,
    *,
    seen: SeenJob | None = None,
    signal: Signal | None = None,
    beyond: Beyond | None = None,
    waits_s: Sequence[float] = WAITS_S,
    interruptible: str = "never",
    library: Library | None = None,
    cure: str = _NAME_ONE,
) -> Hindsight:
    """Look back at a job.

    Args:
        seen: What it did, where that is known; otherwise it is read.
        cure: What whoever reads it can do where too little is known of the grid; empty for nothing.
        signal: What a kWh emits or costs, to plan on; by default what the watcher knew.
        library: Knows what was to be expected of it; None where nobody asks.
    """
    if seen is None:
        seen = look_at(store, record)
    series, begin, pue, phases = seen.series, seen.begin, seen.pue, seen.phases
    notes = list(seen.notes)
    arrival = at_once = math.nan
    waiting: tuple[Waiting, ...] = ()
    if phases is None:
        notes.append("Without phases there is nothing to plan: what waiting saves is unknown.")
    else:
        run_s = phases.profile.run_s
        missing = "The signal ends"
        try:
            if signal is None:
                # What waiting would have saved depends on what came after the job, too.
                node = (
                    store.node_series(record.host, start=begin)
                    if record.host in {host.name for host in store.hosts()}
                    else Series.nothing(NODE.names)
                )
                known = known_grid(
                    node, start=begin, end=begin + run_s + max(waits_s), beyond=beyond
                )
                signal = known.signal
                notes += _told_of(known, run_s, begin, beyond, cure)
                missing = "What is known of the grid ends"
            if signal is not None:
                arrival, note = arrival_within(signal, begin, phases.profile)
                notes += [note] * bool(note)
                # To begin at once is to wait for no time.
                now, *waiting_for = plan_waiting(
                    phases.profile,
                    signal,
                    arrival=arrival,
                    waits_s=(0.0, *(each for each in waits_s if each > 0)),
                    interruptible=interruptible,
                    pue=1.0 if math.isnan(pue) else pue,
                )
                at_once, waiting = now.plan.baseline.amount, tuple(waiting_for)
                notes += _too_early(signal, arrival + run_s, waits_s, missing, cure)
                if math.isnan(pue):
                    notes.append("Nobody said what the building draws: PUE is taken to be 1.")
        except LowtideError as error:
            notes.append(f"Waiting cannot be planned: {error}.")
    return Hindsight(
        record=record,
        series=series,
        behaviour=seen.behaviour,
        verdicts=judge(seen.behaviour),
        phases=phases,
        begin=begin,
        pue=pue,
        signal=signal,
        arrival=arrival,
        at_once=at_once,
        waiting=waiting,
        notes=tuple(notes),
        expected=None if library is None else _expected(library, record, series),
    )


def _expected(library: Library, record: JobRecord, series: Series) -> Entry | None:
    try:
        use = use_of(run_of(record, series))
    except LowtideError:
        use = None
    return library.expected_of(program_of(record), use)


def _told_of(
    known: KnownGrid, run_s: float, begin: float, beyond: Beyond | None, cure: str
) -> list[str]:
    """Return what a reader has to know of where the grid comes from."""
    what_to_do = f": {cure}" if cure else ""
    if known.signal is None and beyond is None:
        aim = " to see what waiting saves" if cure else ""
        return [f"The grid was not known while it ran{what_to_do}{aim}."]
    if known.signal is None:
        return ["The grid that was named says nothing of the time in which it began."]
    until = format_time(known.watched_until)
    if beyond is not None and begin < known.watched_until < known.signal.end:
        return [f"Up to {until} the grid is what the watcher knew, from then on the one named."]
    if beyond is None and known.signal.end < begin + run_s:
        return [f"The grid was known up to {until} only, not to the job's end{what_to_do}."]
    return []


def _too_early(
    signal: Signal, done: float, waits_s: Sequence[float], what: str, cure: str
) -> list[str]:
    """Return which waits cannot be planned, and what they lack."""
    short = sorted({wait_s for wait_s in waits_s if not signal.covers(signal.start, done + wait_s)})
    if not short:
        return []
    listed = ", ".join(map(format_duration, short))
    return [
        f"{what} {format_time(signal.end)}, too early for waits of {listed}, which need it up to "
        f"{format_time(done + short[-1])}"
        + (f": {cure}." if cure and what.startswith("What") else ".")
    ]


def behaviour_of(record: JobRecord, series: Series, nodes: Sequence[NodeUse]) -> Behaviour:
    """Return what was seen of a job."""
    cpus = _sizes(nodes, "cpus")
    held = record.gpus if record.gpus > 0 else math.nan
    gpu_memory = _sizes(nodes, "gpu_memory_total_bytes")
    gpus = _sizes(nodes, "gpus", none=True)
    return Behaviour(
        length_s=record.known_s if record.known_s > 0 else math.nan,
        cpus=Use(
            asked=_positive(record.cpus), node=cpus, mean=record.mean_cpus, peak=record.peak_cpus
        ),
        memory=Use(
            asked=_positive(record.memory_bytes),
            node=_sizes(nodes, "memory_bytes"),
            mean=record.mean_memory_bytes,
            peak=record.peak_memory_bytes,
        ),
        gpus=Use(
            asked=record.gpus,
            node=gpus,
            mean=record.mean_gpus,
            peak=_known_peak(record.peak_gpus, series, "gpus_busy"),
        ),
        gpu_memory=Use(
            # GPUs of a node are alike: those held have their part of all memory.
            asked=gpu_memory * held / gpus if gpus > 0 else math.nan,
            node=gpu_memory,
            mean=mean_of(series, "gpu_memory_bytes"),
            peak=record.peak_gpu_memory_bytes,
        ),
        load=_load(nodes),
        **{f"{kind}_wait": _waited(record, series, kind) for kind in PRESSURES},
        watched=_watched(record),
        out_of_memory=record.state == "out_of_memory",
    )


def _waited(record: JobRecord, series: Series, kind: str) -> float:
    """Return for which share of the time a job waited; where it had several nodes, on average."""
    waited_s = float(getattr(record, f"{kind}_wait_s"))
    known = ~np.isnan(series.columns.get(f"{kind}_wait_s", np.empty(0)))
    # A job that is seen on several nodes waits on each of them.
    watched_s = float(series.step_s[known].sum()) * max(len(record.hosts), 1)
    return min(waited_s / watched_s, 1.0) if watched_s > 0 else math.nan


def _watched(record: JobRecord) -> float:
    """Return for which share of its time a job was watched."""
    if math.isnan(record.elapsed_s):
        return math.nan
    return min(record.seen_s / record.elapsed_s, 1.0) if record.elapsed_s > 0 else 1.0


def _known_peak(peak: float, series: Series, name: str) -> float:
    """Return the most that was used; no use is unknown where there were times nobody knows of."""
    unknown = np.isnan(series.columns.get(name, np.empty(0))).any()
    return math.nan if peak == 0 and unknown else peak


def mean_of(series: Series, name: str) -> float:
    """Return the mean of a column over the time that is known; NaN where none is."""
    values = series.columns.get(name, np.empty(0))
    known = ~np.isnan(values)
    if not known.any():
        return math.nan
    return float(np.average(values[known], weights=series.step_s[known]))


def binned(series: Series, name: str, edges: FloatArray) -> FloatArray:
    """Return the means of a column between edges, NaN where nothing is known.

    Args:
        edges: Epoch seconds, ascending.
    """
    values = series.columns.get(name)
    if values is None or not len(series):
        return np.full(edges.size - 1, np.nan)
    steps = Steps.between(series.edges, values)
    seconds = steps.known_s(edges)
    # Rounding leaves a trace of time where there is none.
    return np.where(seconds > 1e-6, steps.amounts(edges) / np.maximum(seconds, 1e-6), np.nan)


def _sizes(nodes: Sequence[NodeUse], name: str, *, none: bool = False) -> float:
    """Return how much all nodes have, unknown where one of them does not say."""
    sizes = [node.sizes[name] for node in nodes]
    found = sizes if none else [_positive(size) for size in sizes]
    return math.fsum(found) if found else math.nan


def _load(nodes: Sequence[NodeUse]) -> float:
    """Return how busy the cores of the busiest node were on average; others may be unknown."""
    loads = [node.load for node in nodes]
    known = [load for load in loads if not math.isnan(load)]
    # One that is full is enough to hold a job up, and one that nobody knows may be.
    most = max(known, default=math.nan)
    return most if len(known) == len(loads) or most >= SATURATED else math.nan


def _added_up(series: Series, name: str) -> tuple[float, float]:
    """Return what a column comes to, each value times its step, and for how long it is known."""
    values = series.columns.get(name, np.empty(0))
    known = ~np.isnan(values)
    step_s = series.step_s[: known.size][known]
    return float((values[known] * step_s).sum()), float(step_s.sum())


def _most(series: Series, name: str) -> float:
    """Return the most of a column; NaN where nothing of it is known."""
    values = series.columns.get(name, np.empty(0))
    known = values[~np.isnan(values)]
    return float(known.max()) if known.size else math.nan


def _positive(value: float) -> float:
    """Return a size; one of 0 was never told."""
    return value if value > 0 else math.nan


@dataclass(frozen=True, slots=True, kw_only=True)
class Waiting:
    """What a job comes to that may wait.

    Attributes:
        wait_s: How long it may wait in all.
        plan: The cleanest schedule within that, beside running at once.
    """

    wait_s: float
    plan: Plan


def plan_waiting(
    profile: PowerProfile,
    signal: Signal,
    *,
    arrival: float,
    waits_s: Sequence[float] = WAITS_S,
    interruptible: str = "never",
    pue: float = 1.0,
) -> tuple[Waiting, ...]:
    """Plan a job for every time that it may wait, as far as the signal reaches.

    Args:
        pue: What the building draws for each watt of the job's.
    """
    # A kWh of the job's takes so many of the grid's.
    at_the_node = replace(signal, values=pue * signal.values)
    found = []
    for wait_s in sorted(set(waits_s)):
        deadline = arrival + profile.run_s + wait_s
        if not signal.covers(arrival, deadline):
            continue
        job = Job(
            id="job",
            arrival=arrival,
            deadline=deadline,
            profile=profile,
            interruptible=interruptible,
        )
        found.append(Waiting(wait_s=wait_s, plan=plan(job, at_the_node, policy="exact")))
    return tuple(found)


def arrival_within(signal: Signal, started: float, profile: PowerProfile) -> tuple[float, str]:
    """Return when a job is taken to come, and a note where that is not when it came."""
    if signal.covers(started, started + profile.run_s):
        return started, ""
    if not signal.covers(signal.start, signal.start + profile.run_s):
        raise InvalidInput(
            f"the signal covers {format_time(signal.start)} to {format_time(signal.end)}, which "
            "is shorter than the job"
        )
    return signal.start, (
        f"The signal covers {format_time(signal.start)} to {format_time(signal.end)}, not the "
        "days of the job: as if it had come at its first moment."
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownGrid:
    """What is known of the grid from when a job began.

    Attributes:
        signal: The intensity, from then on without a hole; None where nothing is known then.
        watched_until: Up to when the watcher of the node knew it; the beginning where it did not.
    """

    signal: Signal | None
    watched_until: float


def known_grid(
    node: Series,
    *,
    start: float,
    end: float,
    beyond: Callable[[float, float], Signal] | None = None,
) -> KnownGrid:
    """Return the intensity that the watcher of a node knew, and what another source says after it.

    Args:
        node: What the node did, from when the job began until now.
        beyond: Says the intensity between two moments, where the watcher did not know it.
    """
    last = min(float(node.times[-1]), end) if len(node) else start
    # A minute's job deserves a curve that does not end minutes after it.
    span_s = (last if beyond is None else end) - start
    step_s = _STEP_S if span_s > _LONG_S else _SHORT_STEP_S
    count = max(math.ceil(span_s / step_s - 1e-6), 0)
    edges = start + step_s * np.arange(count + 1, dtype=np.float64)
    values = binned(node, "intensity_g_per_kwh", edges)
    values[edges[:-1] >= last] = np.nan
    # A signal has no holes: it ends where nobody watched.
    known = _until_hole(values)
    watched_until = min(float(edges[known]), last) if known else start
    source, synthetic = "what was known when the node was watched", False
    if beyond is not None and known < values.size:
        other = beyond(float(edges[known]), end)
        inside = np.isnan(values) & (edges[:-1] >= other.start) & (edges[1:] <= other.end)
        values[inside] = other.integral(edges[:-1][inside], edges[1:][inside]) / step_s
        known = _until_hole(values)
        source = f"{source}, then {other.source}" if watched_until > start else other.source
        synthetic = other.synthetic
    if not known:
        return KnownGrid(signal=None, watched_until=start)
    signal = Signal(
        values=values[:known], start=start, step_s=step_s, source=source, synthetic=synthetic
    )
    return KnownGrid(signal=signal, watched_until=watched_until)


def _until_hole(values: FloatArray) -> int:
    """Return how many values there are before the first that is not known."""
    unknown = np.isnan(values)
    return int(np.argmax(unknown)) if unknown.any() else values.size
