"""A queue, its machines and a signal, laid out in slots: what is to be planned together."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from lowtide.accounting import Stretches
from lowtide.errors import InvalidInput, TooLaborious
from lowtide.job import INTERRUPTIBLE, TIME_TOLERANCE_S
from lowtide.market.kernels import Desk, Queue, Room, Tariff
from lowtide.market.layout import Standing, cells_of, lay_out
from lowtide.policies.gridded import common_steps
from lowtide.precedence import Links, links_of, windows
from lowtide.signal import FloatArray, Signal
from lowtide.simulator.cluster import Cluster
from lowtide.simulator.outages import Away
from lowtide.units import format_count, format_duration, format_hours, format_time
from lowtide.workload import IntArray, Workload

_HOUR_S = 3600.0
_GIB = 2.0**30
# So many cells of progress and delay are quick to go through some hundred times; of a step that
# is one of many fewer will do.
_QUICK_CELLS = 8e6
_FINE_CELLS = 1e6
# Above this, a plan is refused: what a job needs to be planned by itself, and all of them.
_MOST_CELLS = 2e9
_MOST_JOB_CELLS = 5e7
# Up to so many units of a resource it is worked out which sums jobs can make up.
_MOST_UNITS = 100_000
# A slot is a whole part of the signal's step: into so many.
_PARTS = (1, 2, 3, 4, 6, 12, 20, 30, 60)
# A job that may be stopped anywhere may be so this often in a step of the signal at least.
_CUTS = 4
_ANYWHERE = INTERRUPTIBLE.index("anywhere")


@dataclass(frozen=True, kw_only=True, eq=False)
class Instance:
    """A queue to be planned together.

    Attributes:
        jobs: The jobs.
        cluster: The machines.
        signal: What a kWh counts.
        origin: The instant at which slot 0 begins.
        step_s: How long a slot is.
        slots: How many there are.
        cut: After every how many slots of work a job may be stopped that may be stopped anywhere.
        lossless: Whether everything that matters lies on slots, so that nothing is lost by
            deciding on them.
        resources: What rows of capacity are called, with their units.
        whole_nodes: Whether jobs never share a node, so that nodes are as good as one large one.
        queue: The jobs as the kernels take them.
        energy: Running sums of what a kilowatt counts, slot by slot.
        capacity: What there is of each resource in each slot, on average.
        room: What there is at every instant of it.
        cap_kw: What jobs may draw together, on average and at every instant; infinite for
            anything.
        base: When each job would start at delay 0.
        progress_s: Work done at the beginning of each part.
        wait: What a second of delay of each job counts.
        terms: What else it was made with: `power_cap`, `keeps`, `weight`.
        links: Who waits for whom.
        window: From when each can run and by when it must be done, because of that too.
        beside: What each way counts beside what its site says of it.
        sites: Where there are several kinds of machines, or several places: each by itself. Arrays
            over slots then have a row for each.
        site_rows: Which rows of ways, and of resources, each of them has.
        splits: Whether somebody may take any part of what there is, so that all of it is of use.
        again: Makes the same queue with other deadlines, given with how far to look; None where
            what is here says it all.
    """

    jobs: Workload
    cluster: Cluster
    signal: Signal
    origin: float
    step_s: float
    slots: int
    cut: int
    lossless: bool
    resources: tuple[str, ...]
    whole_nodes: bool
    queue: Queue
    energy: FloatArray
    capacity: FloatArray
    room: FloatArray
    cap_kw: tuple[FloatArray, FloatArray]
    base: FloatArray
    progress_s: FloatArray
    wait: FloatArray
    terms: dict[str, Any]
    links: Links
    window: tuple[FloatArray, FloatArray]
    beside: FloatArray
    sites: tuple[Instance, ...] = ()
    site_rows: tuple[tuple[IntArray, slice], ...] = ()
    splits: bool = False
    again: Callable[[FloatArray, float], Instance] | None = None

    def __len__(self) -> int:
        return int(self.queue.ways.size - 1)

    @cached_property
    def job_of(self) -> IntArray:
        """Which job each way is one of."""
        return np.repeat(np.arange(len(self)), np.diff(self.queue.ways))

    def by_job(self, of_ways: FloatArray) -> FloatArray:
        """Return sums over the ways of each job."""
        sums: FloatArray = np.add.reduceat(of_ways, self.queue.ways[:-1])
        return sums

    @property
    def away(self) -> tuple[Away, ...]:
        """When nodes are not there; no two spans overlap."""
        return self.cluster.gone()

    @property
    def capped(self) -> bool:
        """Whether what jobs draw together is limited."""
        return bool(np.isfinite(self.cap_kw[0]).any())

    @property
    def edges(self) -> FloatArray:
        """The instants at which slots begin, and the end of the last."""
        steps: FloatArray = np.arange(self.slots + 1, dtype=np.float64)
        return self.origin + steps * self.step_s

    @cached_property
    def desk(self) -> Desk:
        """Room for the kernels to work in."""
        rows, parts = self.queue.jobs, self.queue.parts
        layers = np.maximum(rows["starts"], 1)
        columns = np.maximum(rows["delays"], 1)
        count = rows["end"] - rows["part"]
        window = int((np.ceil(parts["at"][rows["end"]]) + columns).max()) + 4
        wide = int((layers * columns).max())
        cells = int(((count + 1) * layers * columns).max())
        return Desk(
            energy=np.zeros(window),
            rent=np.zeros(window),
            held=np.zeros(window),
            closed=np.zeros((1 + int((rows["legs"] - rows["startup"]).max()), window), np.int64),
            shut=np.zeros(window, dtype=np.int64),
            halted=np.empty(int(columns.max()), dtype=np.int64),
            beyond=np.empty(wide),
            through=np.empty(int(columns.max())),
            fresh=np.empty(int(columns.max())),
            leave=np.empty(int(columns.max())),
            finish=np.empty(int(columns.max())),
            came=np.empty(cells, dtype=np.int32),
            since=np.empty(cells, dtype=np.int32),
            later=np.empty(cells if self._holds_on else wide),
        )

    @cached_property
    def usable(self) -> FloatArray:
        """What jobs can hold of each resource in each slot, on average.

        They come whole: on five nodes jobs of two hold four at most. So what no choice of those
        that may run in a slot adds up to is of no use to any plan.
        """
        usable, rows = self.capacity.copy(), self.queue.jobs
        if self.splits:
            return usable
        last = rows["first"] + np.ceil(self.queue.parts["at"][rows["end"]]).astype(np.int64)
        last = np.minimum(last + np.maximum(rows["delays"], 1) - 1, self.slots)
        for m, need in enumerate(self.queue.need.T):
            whole = np.all(need == np.floor(need)) and not self.queue.keep[:, m].any()
            some = (need > 0) & (rows["delays"] > 0)
            if not whole or not some.any() or usable[m].max() > _MOST_UNITS:
                continue
            widths = np.unique(need[some]).astype(np.int64)
            many = np.zeros((widths.size, self.slots + 1), dtype=np.int64)
            place = np.searchsorted(widths, need)
            np.add.at(many, (place[some], rows["first"][some]), 1)
            np.add.at(many, (place[some], last[some]), -1)
            many = np.cumsum(many, axis=1)[:, :-1]
            # Where nodes go away within a slot, what is there differs from moment to moment.
            steady = (usable[m] == self.room[m]) & (usable[m] == np.floor(usable[m]))
            # Enough jobs of one unit fill whatever the others leave.
            short = many[0] < (usable[m] if widths[0] > 1 else widths[-1] - 1)
            for slot in np.flatnonzero(steady & (short | (widths @ many < usable[m]))).tolist():
                usable[m, slot] = _largest_sum(widths, many[:, slot], int(usable[m, slot]))
        return usable

    @cached_property
    def _holds_on(self) -> bool:
        """Whether a start of some job must run for a while before it may be stopped."""
        rows, parts = self.queue.jobs, self.queue.parts
        row_of = np.arange(parts.size) - np.repeat(rows["part"], rows["end"] - rows["part"] + 1)
        return bool((parts["free"] > row_of).any())

    def tariff(self, rent: FloatArray, power: FloatArray, bonds: FloatArray) -> Tariff:
        """Return what time costs under prices.

        Args:
            rent: Of a unit of each resource, for each slot.
            power: Of a kilowatt, for each slot.
            bonds: Of each link and slot: of having started by then without the other being done.
        """
        power, energy = (np.atleast_2d(each) for each in (_running(power), self.energy))
        bond = np.zeros((max(bonds.shape[0], 1), self.slots + 2))
        bond[: bonds.shape[0], : self.slots] = np.cumsum(bonds[:, ::-1], axis=1)[:, ::-1]
        return Tariff(energy, power, _running(rent), bond)

    def leaving(self) -> FloatArray:
        """Return what leaving all jobs out counts, told at the first way of each."""
        cost = np.zeros(self.queue.jobs.size)
        first = self.queue.ways[:-1]
        cost[first] = self.queue.jobs["leave"][first]
        return cost

    def full_room(self) -> Room:
        """Return what there is when nobody runs."""
        return Room(self.room.copy(), np.atleast_2d(self.cap_kw[1]).copy())

    def new_notes(self) -> FloatArray:
        """Return notes of what is drawn at each site and held of each resource, to be written."""
        sites = np.atleast_2d(self.energy).shape[0]
        return np.zeros((sites + len(self.resources), self.slots + 2))

    def begins_and_ends(self, delay: IntArray, placed: Any) -> tuple[FloatArray, FloatArray]:
        """Return when each job starts and ends, in slots; NaN for those that do not run."""
        rows, parts = self.queue.jobs, self.queue.parts
        start, end = np.full((2, len(self)), np.nan)
        job, some = self.job_of[placed], rows[placed]
        start[job] = some["first"] + some["begin"] + delay[some["part"]]
        end[job] = some["first"] + parts["at"][some["end"]] + delay[some["end"] - 1]
        return start, end

    def new_delay(self) -> IntArray:
        """Return delays of all parts of all jobs, to be written to."""
        return np.zeros(self.queue.parts.size, dtype=np.int64)

    def stretches(self, delay: IntArray, placed: Any) -> Stretches:
        """Return how jobs run.

        Args:
            delay: The delay of every part.
            placed: Which jobs run.
        """
        rows, parts = self.queue.jobs, self.queue.parts
        count = rows["end"] - rows["part"] + 1
        job = np.repeat(np.arange(rows.size), count)
        number = np.arange(parts.size) - np.repeat(rows["part"], count)
        inner = (number < count[job] - 1) & placed[job]
        starts = inner & ((number == 0) | np.append(True, delay[1:] != delay[:-1]))
        row = np.flatnonzero(starts)
        of = job[row]
        begins_s = self.progress_s[row]
        work_s = self.jobs.work_s[of]
        last = np.append(of[1:] != of[:-1], True)
        until_s = np.where(last, work_s, np.append(begins_s[1:], 0.0))
        first = number[row] == 0
        lead_s = np.where(
            first, 0.0, (parts["at"][row] - rows["begin"][of] - rows["restart_t"][of]) * self.step_s
        )
        return Stretches(
            job=of,
            start=self.base[of] + (lead_s + delay[row] * self.step_s),
            work_s=until_s - begins_s,
            lost_s=np.zeros(row.size),
        )


def _largest_sum(widths: IntArray, many: IntArray, most: int) -> int:
    """Return the largest number, up to one, that so many of each of some widths add up to."""
    # A bit for each number that they add up to.
    sums, all_of_them = 1, (1 << (most + 1)) - 1
    for width, count in zip(widths.tolist(), many.tolist(), strict=True):
        some, count = 1, min(count, most // width)
        while count > 0 and not sums >> most:
            some = min(some, count)
            sums |= (sums << (some * width)) & all_of_them
            count, some = count - some, 2 * some
    return sums.bit_length() - 1


def _running(values: FloatArray) -> FloatArray:
    """Return running sums over slots, from 0 to one slot past the last."""
    sums = np.zeros((*values.shape[:-1], values.shape[-1] + 2))
    np.cumsum(values, axis=-1, out=sums[..., 1:-1])
    sums[..., -1] = sums[..., -2]
    return sums


def make_instance(
    jobs: Workload,
    cluster: Cluster,
    signal: Signal,
    *,
    step_s: float | None = None,
    wait: FloatArray | float = 0.0,
    power_cap: Signal | float | None = None,
    keeps: Sequence[str] = (),
    until: float | None = None,
    weight: FloatArray | None = None,
    standing: Standing | None = None,
    begin: float | None = None,
    window: tuple[FloatArray, FloatArray] | None = None,
) -> Instance:
    """Lay a queue out in slots.

    Args:
        jobs: What is to be run; what fits nowhere was refused before.
        signal: What a kWh counts.
        step_s: How long a slot is, None for one that loses nothing or the finest that is quick.
        wait: What a second of delay counts: of every job, or of each.
        power_cap: What nodes and jobs may draw together; None for what the cluster says.
        keeps: Which resources a stopped job goes on holding.
        until: How far to look beyond the last deadline.
        weight: What a gram of each job counts, by default 1.
        standing: Where jobs stand that have begun; by default none has.
        begin: From when on to look, by default from the first arrival on.
        window: From when each job can run and by when it must be done, where more than its own
            times says that; by default whom it waits for does.
    """
    begin = float(jobs.arrival.min()) if begin is None else begin
    end = max(float(jobs.deadline.max()) if window is None else begin, until or -math.inf)
    signal.require(begin, end if window is not None else float(jobs.deadline.max()))
    closed = cluster.gone()
    step_s, lossless = _step(jobs, signal, step_s, closed)
    first = math.floor((begin - signal.start) / step_s + 1e-9)
    origin = signal.start + first * step_s
    slots = math.ceil((min(end, signal.end) - origin) / step_s - 1e-9)
    edges: FloatArray = origin + np.arange(slots + 1, dtype=np.float64) * step_s
    mean = np.diff(signal.integral(np.full(slots + 1, origin), np.minimum(edges, signal.end)))
    energy = _running(mean * cluster.pue / _HOUR_S)
    names, need, held, whole, amounts = _resources(jobs, cluster, keeps)
    capacity, room = _capacity(cluster, closed, edges, amounts)
    extra_kw = _node_kw(jobs, cluster)
    caps = _cap_kw(cluster, power_cap, edges)
    rate = np.broadcast_to(np.asarray(wait, dtype=np.float64), len(jobs))
    links = links_of(jobs)
    window = windows(jobs, links) if window is None else window
    dearest = float(np.abs(mean).max()) / step_s
    # On short slots, which are there for starts and ends, jobs are stopped at every few of them.
    cut = 1 if lossless else max(round(signal.step_s / step_s / _CUTS), 1)
    queue, base, progress_s = lay_out(
        jobs,
        origin,
        step_s,
        need,
        held,
        extra_kw,
        rate,
        weight,
        dearest,
        standing,
        links,
        window,
        cut,
    )
    cells = cells_of(queue)
    if cells.max() > _MOST_JOB_CELLS or cells.sum() > _MOST_CELLS:
        _refuse_labour(jobs, signal, step_s, cells)
    return Instance(
        jobs=jobs,
        cluster=cluster,
        signal=signal,
        origin=origin,
        step_s=step_s,
        slots=slots,
        cut=cut,
        lossless=lossless,
        resources=names,
        whole_nodes=whole,
        queue=queue,
        energy=energy,
        capacity=capacity,
        room=room,
        cap_kw=caps,
        base=base,
        progress_s=progress_s,
        wait=rate,
        terms={"power_cap": power_cap, "keeps": keeps, "weight": weight},
        links=links,
        window=window,
        beside=np.zeros(len(jobs)),
    )


def _refuse_labour(jobs: Workload, signal: Signal, step_s: float, cells: FloatArray) -> None:
    """Refuse what would take too long, and say on which step it would not, or of how many jobs."""
    row = int(np.argmax(cells))
    # On a step that is twice as long a job has half as many delays, and half as many stops.
    rate = np.array([(signal.step_s / each / step_s) ** 2 for each in _PARTS])
    fits = (cells.sum() / rate <= _MOST_CELLS) & (cells.max() / rate <= _MOST_JOB_CELLS)
    if fits.any():
        longer_s = signal.step_s / _PARTS[int(np.flatnonzero(fits)[-1])]
        cure = (
            f"take a step of {format_duration(longer_s)} (step='{longer_s:g}s' in Python, --step "
            f"{longer_s:g}s), on which jobs start up to {format_duration(longer_s - step_s)} later"
        )
    else:
        cure = f"take {int(len(jobs) * _MOST_CELLS / cells.sum())} jobs or fewer"
        if cells.max() > _MOST_JOB_CELLS:
            cure = f"give job {jobs.id[row]} an earlier deadline, or fewer moments to be stopped at"
    raise TooLaborious(
        f"planning {format_count(len(jobs), 'job')} on steps of {format_duration(step_s)} would "
        f"take too long: they have {cells.sum():.2g} states of {_MOST_CELLS:.2g} at most, job "
        f"{jobs.id[row]} alone {cells[row]:.2g} of {_MOST_JOB_CELLS:.2g}: {cure}"
    )


def _step(
    jobs: Workload, signal: Signal, asked: float | None, closed: Sequence[Away]
) -> tuple[float, bool]:
    """Return how long a slot is, and whether nothing is lost by it."""
    common_s = _common_step(jobs, signal, closed)
    if asked is not None:
        parts = signal.step_s / asked if asked > 0 else math.nan
        if not (parts >= 1 - 1e-9 and abs(parts - round(parts)) < 1e-9 * parts):
            raise InvalidInput(
                f"slots divide the signal's steps of {format_hours(signal.step_s)} into equal "
                f"parts, which {asked:g} s does not: take "
                + " or ".join(f"{signal.step_s / each:g} s" for each in (1, 2, 4))
            )
        lossless = common_s is not None and abs(common_s / asked % 1.0) < 1e-9
        return signal.step_s / round(parts), lossless
    slack_s = np.maximum(jobs.slack_s, 0.0)
    stops = jobs.interruptible == _ANYWHERE
    phases = np.array([*(len(each.work) for each in jobs.profiles), 1])[jobs.profile]

    def cells(step_s: float) -> float:
        rows = np.where(stops, jobs.work_s / step_s, 0.0) + phases
        return float((rows * (slack_s / step_s + 1)).sum())

    if common_s is not None and cells(common_s) <= _QUICK_CELLS:
        return common_s, True
    steps = [signal.step_s / each for each in _PARTS]
    return ([each for each in steps if cells(each) <= _FINE_CELLS] or steps[:1])[-1], False


def _common_step(jobs: Workload, signal: Signal, closed: Sequence[Away]) -> float | None:
    """Return the longest step that divides all that matters, None if there is none."""
    phases = [
        phase.duration_s
        for each in jobs.profiles
        for phase in (*each.startup, *each.starting(1), *each.work, *each.stop)
    ]
    lengths = np.concatenate(
        (
            jobs.arrival - signal.start,
            jobs.deadline - signal.start,
            jobs.work_s[jobs.profile < 0],
            jobs.min_run_s,
            jobs.think_s,
            np.array([edge - signal.start for each in closed for edge in each[:2]]),
            np.array([signal.step_s, *phases]),
        )
    )
    common_s = float(common_steps(lengths)[0])
    return common_s if common_s * max(_PARTS) >= signal.step_s - 1e-9 else None


def _resources(
    jobs: Workload, cluster: Cluster, keeps: Sequence[str]
) -> tuple[tuple[str, ...], FloatArray, FloatArray, bool, FloatArray]:
    """Return the rows of capacity: names, what jobs hold, what stopped ones do, what a node has.

    Where no two jobs can share a node, nodes are all that counts. Else two jobs cannot that each
    take more than half of the same resource of one: what is large in CPUs may lie beside what is
    large in memory, so that nodes are counted once for each.
    """
    known = _on_nodes(jobs, cluster)
    nodes = jobs.nodes
    large = {name: 2 * column / nodes > most for name, (column, most) in known.items()}
    if any(each.all() for each in large.values()) and not keeps:
        return ("nodes",), nodes[:, None].copy(), np.zeros((len(jobs), 1)), True, np.ones(1)
    names, need, amounts = [], [], []
    for name, (column, most) in known.items():
        if column.any():
            names.append(name)
            need.append(column)
            amounts.append(most)
    # Nobody is asked twice: those large in one resource may all be so in another.
    apart = {
        name: each
        for place, (name, each) in enumerate(large.items())
        if each.any()
        and not any(
            (each <= other).all() and ((each != other).any() or place > before)
            for before, other in enumerate(large.values())
            if before != place
        )
    }
    for name, each in apart.items():
        names.append("nodes" if len(apart) == 1 else f"nodes_{name}")
        need.append(np.where(each, nodes, 0.0))
        amounts.append(1.0)
    needed = np.column_stack(need).astype(np.float64)
    held = needed * np.array([name in keeps for name in names])
    return tuple(names), np.ascontiguousarray(needed), held, False, np.array(amounts)


def _on_nodes(jobs: Workload, cluster: Cluster) -> dict[str, tuple[FloatArray, float]]:
    """Return what jobs hold of each resource that is limited, and what a node has of it."""
    known = {
        "cpus": (jobs.cpus, float(cluster.cpus_per_node)),
        "gpus": (jobs.gpus, float(cluster.gpus_per_node)),
        "memory": (jobs.memory_bytes / _GIB, cluster.memory_bytes_per_node / _GIB),
    }
    return {name: each for name, each in known.items() if 0 < each[1] < math.inf}


def _capacity(
    cluster: Cluster, closed: Sequence[Away], edges: FloatArray, amounts: FloatArray
) -> tuple[FloatArray, FloatArray]:
    """Return what there is of each resource in each slot: on average, and at every instant."""
    away, most = np.zeros(edges.size - 1), np.zeros(edges.size - 1)
    length_s = edges[1] - edges[0]
    for each in closed:
        overlap_s = np.minimum(edges[1:], each.end) - np.maximum(edges[:-1], each.begin)
        away += each.nodes * np.clip(overlap_s / length_s, 0.0, 1.0)
        most = np.maximum(most, each.nodes * (overlap_s > TIME_TOLERANCE_S))
    there = np.stack((cluster.nodes - away, cluster.nodes - most)).clip(min=0.0)
    mean, least = amounts[:, None] * there[0], amounts[:, None] * there[1]
    return mean, least


def _node_kw(jobs: Workload, cluster: Cluster) -> FloatArray:
    """Return what nodes draw for each job, where they would otherwise be off.

    Those that share a node are charged no more than one together, whoever they are: all by their
    share of one resource, or each for a whole node that takes more than half of it.
    """
    if cluster.off_after_s is None:
        return np.zeros(len(jobs))
    shares = [np.zeros(len(jobs))]
    for column, most in _on_nodes(jobs, cluster).values():
        each = column / jobs.nodes / most
        shares += [each, (each > 0.5).astype(np.float64)]
    share = max(shares, key=lambda each: float((each * jobs.nodes * jobs.run_s).sum()))
    return jobs.nodes * share * (cluster.idle_power_w - cluster.off_power_w) / 1000


def _cap_kw(
    cluster: Cluster, power_cap: Signal | float | None, edges: FloatArray
) -> tuple[FloatArray, FloatArray]:
    """Return what the cap leaves to jobs in each slot: on average, and at every instant."""
    if power_cap is None:
        power_cap = cluster.power_cap_w
    if power_cap is None:
        without = np.full(edges.size - 1, np.inf)
        return without, without
    if isinstance(power_cap, Signal):
        if power_cap.kind != "power":
            raise InvalidInput(f"a power cap is of kind 'power', in W, not {power_cap.label}")
        power_cap.require(float(edges[0]), float(edges[-1]), what="the power cap")
        mean = np.diff(power_cap.integral(np.full(edges.size, edges[0]), edges))
        mean /= edges[1] - edges[0]
        least = _lowest(power_cap, edges)
    else:
        mean = least = np.full(edges.size - 1, float(power_cap))
    slot = int(np.argmin(least))
    require_cap(cluster, float(least[slot]), f" at {format_time(float(edges[slot]))}")
    own_w = own_power_w(cluster)
    return (mean - own_w) / 1000, (least - own_w) / 1000


def own_power_w(cluster: Cluster) -> float:
    """Return what the nodes draw whoever runs."""
    idle = cluster.off_after_s is None
    return cluster.nodes * (cluster.idle_power_w if idle else cluster.off_power_w)


def require_cap(cluster: Cluster, cap_w: float, when: str = "") -> None:
    """Refuse a power cap that is below what the nodes draw themselves.

    Args:
        when: At which moment it is, in words.
    """
    own_w = own_power_w(cluster)
    if cap_w < own_w:
        raise InvalidInput(
            f"the power cap leaves {cap_w:g} W{when}, less than the {own_w:g} W that the nodes "
            f"draw themselves: raise it by {own_w - cap_w:g} W"
        )


def _lowest(signal: Signal, edges: FloatArray) -> FloatArray:
    """Return the lowest value of a signal between neighbouring instants."""
    first = np.floor((edges[:-1] - signal.start) / signal.step_s + 1e-9).astype(int)
    last = np.ceil((edges[1:] - signal.start) / signal.step_s - 1e-9).astype(int)
    return np.array(
        [signal.values[a:b].min() for a, b in zip(first, last, strict=True)], dtype=np.float64
    )
