"""Jobs on limited machines: who runs when, and what the machines do meanwhile.

For the kernels jobs are put in the order in which they become ready, and what they need is counted
in whole small units.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from lowtide.accounting import Stretches
from lowtide.errors import InvalidInput, InvalidJob, LowtideError
from lowtide.job import INTERRUPTIBLE, TIME_TOLERANCE_S
from lowtide.signal import FloatArray
from lowtide.simulator.backfilling import (
    ASKING,
    KEYS,
    KIND,
    LONGEST_S,
    MOMENT,
    Backfill,
    run_easy,
    run_in_order,
)
from lowtide.simulator.cluster import KEEPABLE, Cluster, whole_units
from lowtide.simulator.disciplines import (
    Discipline,
    Easy,
    Feedback,
    OwnDiscipline,
    Priority,
    RoundRobin,
    make_discipline,
)
from lowtide.simulator.heaps import Rows, make_heap
from lowtide.simulator.machines import (
    CPUS,
    GPUS,
    JOB,
    MEMORY,
    RESOURCES,
    SITE,
    SPAN_KINDS,
    World,
    make_nodes,
    make_timers,
)
from lowtide.simulator.turns import COURSE, LEVEL, Turns, run_in_turns
from lowtide.units import format_count
from lowtide.workload import IntArray, Workload

# All kinds of jobs are gone through each time that jobs end, so there should not be too many.
_MOST_KINDS = 256


class QueuedRuns(NamedTuple):
    """Every start, as the kernels tell it.

    Attributes:
        job: Whose it is, by the order in which jobs became ready.
        held: When it took its nodes.
        start: When it started.
        work_s: Work done and kept.
        lost_s: Work done and lost.
        until: When it gave its nodes back.
        places: Its nodes, one start after the other.
        log: What nodes did: node, begin, end and kind of a span in a row.
    """

    job: IntArray
    held: FloatArray
    start: FloatArray
    work_s: FloatArray
    lost_s: FloatArray
    until: FloatArray
    places: IntArray
    log: FloatArray


def prepare(
    jobs: Workload, ready: FloatArray, order: IntArray, cluster: Cluster, *, pooled: bool
) -> World:
    """Return jobs and machines as the kernels take them.

    Args:
        order: The rows of the jobs in the order of that.
        pooled: Whether nodes may be taken for one large node where that makes no difference but
            to who runs on which.
    """
    nodes, count = jobs.nodes[order].astype(np.int64), cluster.nodes
    capacity, need = needs_of(jobs, order, cluster)
    if pooled and cluster.off_after_s is None and np.any(2 * need.min(axis=0) > capacity):
        # No two jobs can share a node, so nodes are as good as CPUs of one large node.
        capacity, need = np.array([count, 0, 0]), np.column_stack((nodes, 0 * nodes, 0 * nodes))
        nodes, count = np.ones_like(nodes), 1
    rows = np.zeros(len(jobs) + 1, dtype=JOB)
    # Nobody else is ready after the last.
    rows["ready"] = np.append(ready[order], np.inf)
    rows["place"] = np.concatenate(([0], np.cumsum(nodes)))
    rows["held"] = rows["start"] = np.inf
    some = rows[:-1]
    some["startup_s"] = jobs.startup_s[order]
    some["work_s"] = jobs.work_s[order]
    some["estimate_s"] = np.minimum(jobs.requested_s[order], LONGEST_S)
    some["need"] = need
    site = np.zeros(1, dtype=SITE)
    site["nodes"], site["jobs"] = count, len(jobs)
    site["states"] = 1 if cluster.off_after_s is None else len(SPAN_KINDS)
    site["boot_s"], site["shutdown_s"] = cluster.boot_s, cluster.shutdown_s
    site["off_after_s"] = np.inf if cluster.off_after_s is None else cluster.off_after_s
    if cluster.power_cap_w is not None:
        some["peak"] = whole_units(jobs.peak_w[order])
        # While a node boots, it must have the power to be on afterwards.
        drawn_w = power_by_state(cluster)
        drawn_w[SPAN_KINDS.index("boot")] = max(cluster.boot_power_w, cluster.idle_power_w)
        site["drawn"] = whole_units(drawn_w)
        # One unit more, so that rounding keeps out no job that just fits.
        cap = whole_units(np.array(cluster.power_cap_w)) + 1
        site["power"] = cap - cluster.nodes * site["drawn"][:, SPAN_KINDS.index("idle")]
    # Nodes are there from the first arrival on, though a policy may let everybody wait.
    tree = make_nodes(capacity, count, float(jobs.arrival.min()))
    return World(
        jobs=rows,
        places=np.zeros(int(rows["place"][-1]), dtype=np.int64),
        site=site,
        nodes=tree,
        changes=make_heap(count),
        timers=make_timers(tree, site),
        ends=make_heap(len(jobs)),
        log=np.empty((0, 4)),
    )


def needs_of(jobs: Workload, order: IntArray, cluster: Cluster) -> tuple[IntArray, IntArray]:
    """Return what a node has and what each job needs on each of its nodes, per resource."""
    nodes = jobs.nodes[order]
    capacity = whole_units(np.array([cluster.cpus_per_node, cluster.gpus_per_node, 0]))
    need = np.zeros((nodes.size, RESOURCES), dtype=np.int64)
    need[:, CPUS] = whole_units(jobs.cpus[order] / nodes)
    need[:, GPUS] = whole_units(jobs.gpus[order] / nodes)
    if np.isfinite(cluster.memory_bytes_per_node):
        capacity[MEMORY] = int(cluster.memory_bytes_per_node)
        need[:, MEMORY] = np.floor(jobs.memory_bytes[order] / nodes)
    return capacity, need


def kept_of(need: IntArray, cluster: Cluster) -> IntArray:
    """Return what jobs go on holding on each of their nodes while they are stopped."""
    kept: IntArray = need * np.array([name in cluster.keeps for name in KEEPABLE])
    return kept


def power_by_state(cluster: Cluster) -> FloatArray:
    """Return what a node draws, in the order of `SPAN_KINDS`."""
    return np.array(
        [
            cluster.idle_power_w,
            cluster.boot_power_w,
            cluster.shutdown_power_w,
            cluster.off_power_w,
        ]
    )


def serve_in_order(world: World, first_by: FloatArray | None) -> QueuedRuns:
    """Run jobs strictly in order.

    Args:
        first_by: The lower, the sooner a job's turn; None for the order of the jobs.
    """
    count = world.jobs.size - 1
    by_rank = np.arange(count) if first_by is None else np.argsort(first_by, kind="stable")
    world.jobs["rank"][by_rank] = np.arange(count)
    return _run_through(world, run_in_order(world, make_heap(count)))


def serve_easy(world: World) -> QueuedRuns:
    """Run jobs in order, others going ahead of the first in the queue."""
    count = world.jobs.size - 1
    some = world.jobs[:-1]
    nodes = np.diff(world.jobs["place"])
    kind = _kinds(np.column_stack((nodes, some["need"], some["peak"])))
    by_kind = np.argsort(kind, kind="stable")
    many = np.bincount(kind)
    begin = np.cumsum(many) - many
    # Behind the jobs comes one like the least demanding of each kind, and where its nodes end.
    like = np.zeros(many.size + 1, dtype=JOB)
    like["need"][:-1] = np.minimum.reduceat(some["need"][by_kind], begin)
    like["peak"][:-1] = np.minimum.reduceat(some["peak"][by_kind], begin)
    like["place"][1:] = np.cumsum(np.minimum.reduceat(nodes[by_kind], begin))
    like["place"] += world.places.size
    kinds = np.zeros(many.size, dtype=KIND)
    kinds["like"] = count + 1 + np.arange(many.size)
    # Trees have a power of two of leaves, and twice as many branches.
    kinds["size"] = np.left_shift(1, np.ceil(np.log2(many)).astype(np.int64))
    ends = np.cumsum(2 * kinds["size"])
    kinds["base"] = ends - 2 * kinds["size"]
    asking = np.zeros(count, dtype=ASKING)
    asking["kind"] = kind
    asking["rank"][by_kind] = np.arange(count) - np.repeat(begin, many)
    leaves = np.full(int(ends[-1]) // 2, -1)
    leaves[kinds["base"][kind] // 2 + asking["rank"]] = np.arange(count)
    world = world._replace(
        jobs=np.concatenate((world.jobs, like)),
        places=np.zeros(int(like["place"][-1]), dtype=np.int64),
    )
    queue = Backfill(
        asking=asking,
        kinds=kinds,
        tree=np.full((int(ends[-1]), KEYS), np.inf),
        leaves=leaves,
        moments=np.zeros(2, dtype=MOMENT),
        requested=make_heap(count),
        frontier=make_heap(count + 1),
    )
    return _run_through(world, run_easy(world, queue))


def _kinds(needs: IntArray) -> IntArray:
    """Sort jobs by what they need: by every difference if there are few, else by large ones."""
    kind = np.zeros(len(needs), dtype=np.int64)
    differing = [column for column in needs.T if column.min() < column.max()]
    for steps in (None, 8, 4, 2, 1):
        kind[:] = 0
        for number, column in enumerate(differing):
            coarse = column if steps is None else np.floor(steps * np.log2(1.0 + column))
            values, place = np.unique(coarse, return_inverse=True)
            kind = kind * values.size + place
            if number:
                kind = np.unique(kind, return_inverse=True)[1]
        if kind.max() < _MOST_KINDS:
            break
    return kind


def _run_through(world: World, log: FloatArray) -> QueuedRuns:
    """Return one start for each job."""
    count = int(world.site["jobs"][0])
    rows = world.jobs[:count]
    return QueuedRuns(
        job=np.arange(count),
        held=rows["held"],
        start=rows["start"],
        work_s=rows["work_s"],
        lost_s=np.zeros(count),
        until=rows["start"] + rows["startup_s"] + rows["work_s"],
        places=world.places[: world.jobs["place"][count]],
        log=log,
    )


def serve_in_turns(
    jobs: Workload,
    order: IntArray,
    world: World,
    discipline: RoundRobin | Feedback,
    *,
    keep_nodes: bool,
    cluster_keeps: tuple[str, ...] = (),
) -> QueuedRuns:
    """Run jobs in turns.

    Args:
        cluster_keeps: What stopped jobs would go on holding.
        order: The rows of the jobs in the order in which they become ready.
    """
    _check_turns(jobs, discipline)
    if cluster_keeps:
        raise InvalidInput(
            f"{discipline.name} lets stopped jobs go on anywhere, and the cluster lets them hold "
            f"{', '.join(cluster_keeps)}: leave keeps out, or take fifo, priority or easy"
        )
    count, place = len(jobs), jobs.profile[order]
    saved = [np.array(each.checkpoints_s) for each in jobs.profiles]
    # A job without a profile has no checkpoints: its place, the last one, is empty.
    saved.append(np.empty(0))
    saved_to = np.cumsum([each.size for each in saved])
    course = np.zeros(count, dtype=COURSE)
    course["anywhere"] = jobs.interruptible[order] == INTERRUPTIBLE.index("anywhere")
    course["min_run_s"] = jobs.min_run_s[order]
    course["max_starts"] = jobs.max_starts[order]
    course["restart_s"] = jobs.restart_s[order]
    course["stop_s"] = np.array([*(each.stop_s for each in jobs.profiles), 0.0])[place]
    course["saved_to"] = saved_to[place]
    course["saved_from"] = saved_to[place] - np.array([each.size for each in saved])[place]
    course["stopped"] = -np.inf
    levels = np.zeros(len(_quanta_s(discipline)), dtype=LEVEL)
    levels["quantum_s"] = _quanta_s(discipline)
    levels["first"] = -1
    boost_s = discipline.boost_s if isinstance(discipline, Feedback) else None
    queue = Turns(
        course=course,
        saved_s=np.concatenate(saved),
        levels=levels,
        overs=make_heap(count),
        context_s=float(discipline.context_s),
        boost_s=np.inf if boost_s is None else float(boost_s),
        keep_nodes=keep_nodes,
    )
    rows, places, log = run_in_turns(world, queue)
    return QueuedRuns(
        job=rows[:, 0].astype(np.int64),
        held=rows[:, 1],
        start=rows[:, 2],
        work_s=rows[:, 3],
        lost_s=rows[:, 4],
        until=rows[:, 5],
        places=places,
        log=log,
    )


def _quanta_s(discipline: RoundRobin | Feedback) -> tuple[float, ...]:
    return (discipline.quantum_s,) if isinstance(discipline, RoundRobin) else discipline.quanta_s


def _check_turns(jobs: Workload, discipline: RoundRobin | Feedback) -> None:
    """Refuse jobs that cannot take turns."""

    def told(bad: npt.NDArray[np.bool_]) -> str:
        row, more = int(np.argmax(bad)), int(np.count_nonzero(bad)) - 1
        others = f" and {format_count(more, 'other job')}" if more else ""
        return f"job {jobs.id[row]} (row {row + 1}){others}"

    rigid = jobs.interruptible == INTERRUPTIBLE.index("never")
    if rigid.any():
        raise InvalidJob(
            f"{discipline.name} stops jobs, and {told(rigid)} may never be stopped: make them "
            "interruptible 'anywhere' or at 'checkpoints', or take fifo, priority or easy"
        )
    shortest_s = min(_quanta_s(discipline))
    start_s = np.maximum(jobs.startup_s, jobs.restart_s)
    slow = start_s >= shortest_s
    if slow.any():
        raise InvalidJob(
            f"a turn of {shortest_s:g} s is over before {told(slow)} could do any work: take "
            f"turns longer than {float(start_s.max()):g} s, the longest startup"
        )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class NodeSpans:
    """What every node does itself, whatever jobs draw on top, in columns.

    The spans of a node follow each other without gaps from the first job's arrival on.

    Attributes:
        node: Which node.
        begin: When it begins.
        end: When it ends.
        power_w: What the node draws.
        kind: What it does, a place in `SPAN_KINDS`: `idle` is being on, used or not; `boot`,
            `shutdown`, `off`.
    """

    node: IntArray
    begin: FloatArray
    end: FloatArray
    power_w: FloatArray
    kind: npt.NDArray[np.int8]

    @property
    def booting(self) -> npt.NDArray[np.bool_]:
        """Which spans a node spends on its way on or off."""
        return np.isin(self.kind, [SPAN_KINDS.index("boot"), SPAN_KINDS.index("shutdown")])

    @property
    def on(self) -> npt.NDArray[np.bool_]:
        """Which spans a node is on, used or not."""
        return np.isin(self.kind, [SPAN_KINDS.index("idle")])

    @property
    def energy_j(self) -> FloatArray:
        """What is drawn in each."""
        return self.power_w * (self.end - self.begin)

    def until(self, end: float) -> NodeSpans:
        """Return the spans up to an instant."""
        kept = self.begin < end
        return NodeSpans(
            node=self.node[kept],
            begin=self.begin[kept],
            end=np.minimum(self.end[kept], end),
            power_w=self.power_w[kept],
            kind=self.kind[kept],
        )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Placed:
    """On which nodes jobs ran, in columns.

    Attributes:
        stretch: Which row of the stretches.
        node: A node that it held.
    """

    stretch: IntArray
    node: IntArray


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Queued:
    """How jobs got through a queue.

    A job waits from being ready to `held_from` of its first stretch, and from `held_until` of
    each stretch to `held_from` of its next.

    Attributes:
        ready: When each job entered the queue.
        stretches: How each ran.
        held_from: When each stretch took its nodes: before its start if they had to be woken, or
            if the job had been stopped and switching to it takes time.
        held_until: When it gave them back: once it had stopped.
        nodes: What the nodes did, and will do if nobody comes any more: the last span of each has
            no end.
        placed: On which nodes each stretch ran; None where that was not asked.
    """

    ready: FloatArray
    stretches: Stretches
    held_from: FloatArray
    held_until: FloatArray
    nodes: NodeSpans
    placed: Placed | None

    @property
    def node_spans(self) -> NodeSpans:
        """What the nodes did until the last job ended."""
        return self.nodes.until(float(self.held_until.max()))


def run_queue(
    jobs: Workload,
    ready: FloatArray,
    cluster: Cluster,
    discipline: str | Discipline = "fifo",
    *,
    keep_nodes: bool = False,
) -> Queued:
    """Run jobs on machines, in the order that a discipline sets.

    Jobs that become ready at once are taken in the order of their rows. A job takes the first
    nodes, by number, that have what it needs on each: those that are on before those that boot,
    and those before the ones that are off. The same arguments give the same bytes.

    Args:
        ready: When each job enters the queue: at its arrival, or later.

    >>> cluster = Cluster(nodes=1, cpus_per_node=4)
    >>> jobs = Workload(arrival=[0, 0, 0], deadline=99, work_s=[5, 3, 4], cpus=[2, 4, 2])
    >>> run_queue(jobs, jobs.arrival, cluster).stretches.start
    array([0., 5., 8.])
    """
    discipline = make_discipline(discipline)
    if isinstance(discipline, OwnDiscipline):
        raise InvalidInput(f"{discipline.name} has no kernel: see serving.run_scheduler")
    ready = _checked_ready(jobs, ready)
    cluster.check_fits(jobs)
    order = np.argsort(ready, kind="stable")
    world = prepare(jobs, ready, order, cluster, pooled=not keep_nodes)
    if isinstance(discipline, RoundRobin | Feedback):
        runs = serve_in_turns(
            jobs, order, world, discipline, keep_nodes=keep_nodes, cluster_keeps=cluster.keeps
        )
    elif isinstance(discipline, Easy):
        runs = serve_easy(world)
    else:
        by_priority = isinstance(discipline, Priority)
        runs = serve_in_order(world, -jobs.priority[order] if by_priority else None)
    if not np.isfinite(runs.start).all() or runs.job.size < len(jobs):
        raise LowtideError("the queue came to a stand while jobs waited: please report this")
    return _queued(jobs, ready, order, cluster, world, runs, keep_nodes=keep_nodes)


def _checked_ready(jobs: Workload, ready: FloatArray) -> FloatArray:
    ready = np.asarray(ready, dtype=np.float64)
    if ready.shape != jobs.arrival.shape or not ready.size:
        raise InvalidInput(f"{ready.size} instants were given for {format_count(len(jobs), 'job')}")
    good = (ready >= jobs.arrival - TIME_TOLERANCE_S) & np.isfinite(ready)
    if not good.all():
        row = int(np.argmin(good))
        raise InvalidInput(
            f"job {jobs.id[row]} (row {row + 1}) is ready at {ready[row]:g}, before its arrival at "
            f"{jobs.arrival[row]:g}: a job enters the queue at its arrival or later"
        )
    return ready


def _queued(
    jobs: Workload,
    ready: FloatArray,
    order: IntArray,
    cluster: Cluster,
    world: World,
    runs: QueuedRuns,
    *,
    keep_nodes: bool,
) -> Queued:
    """Return what the kernels tell, by rows of the workload."""
    row = order[runs.job]
    sequence = np.lexsort((runs.start, row))
    placed = None
    if keep_nodes:
        stretch = np.empty_like(sequence)
        stretch[sequence] = np.arange(sequence.size)
        stretch = np.repeat(stretch, jobs.nodes[row].astype(np.int64))
        by_stretch = np.lexsort((runs.places, stretch))
        placed = Placed(stretch=stretch[by_stretch], node=runs.places[by_stretch])
    return Queued(
        ready=ready,
        stretches=Stretches(
            job=row[sequence],
            start=runs.start[sequence],
            work_s=runs.work_s[sequence],
            lost_s=runs.lost_s[sequence],
        ),
        held_from=runs.held[sequence],
        held_until=runs.until[sequence],
        nodes=_node_spans(cluster, world, runs.log, float(jobs.arrival.min())),
        placed=placed,
    )


def _node_spans(cluster: Cluster, world: World, log: FloatArray, begin: float) -> NodeSpans:
    """Return what the nodes did: what was logged, and what they do from then on."""
    rows = log[: int(world.site["logged"][0])]
    if cluster.off_after_s is None:
        parts = [_rows(np.arange(cluster.nodes), begin, np.inf, "idle")]
    else:
        size = world.nodes.size // 2
        parts = [rows, *_tails(world.nodes[size : size + cluster.nodes], cluster)]
    rows = np.concatenate(parts)
    rows = rows[rows[:, 1] < rows[:, 2]]
    rows = rows[np.lexsort((rows[:, 1], rows[:, 0]))]
    kind = rows[:, 3].astype(np.int8)
    return NodeSpans(
        node=rows[:, 0].astype(np.int64),
        begin=rows[:, 1],
        end=rows[:, 2],
        power_w=power_by_state(cluster)[kind],
        kind=kind,
    )


def _tails(leaves: Rows, cluster: Cluster) -> list[FloatArray]:
    """Return what nodes do once the last job has ended: those that are on go off, and stay off."""
    node = np.arange(leaves.size)
    state, since = leaves["state"], leaves["since"]
    # A node that boots does so for a job, and all of them are done.
    on, going = state == SPAN_KINDS.index("idle"), state == SPAN_KINDS.index("shutdown")
    goes = np.where(on, leaves["idle"] + cluster.off_after_s, since)
    off = np.where(on | going, goes + cluster.shutdown_s, since)
    moving = on | going
    return [
        _rows(node[on], since[on], goes[on], "idle"),
        _rows(node[moving], goes[moving], off[moving], "shutdown"),
        _rows(node, off, np.inf, "off"),
    ]


def _rows(
    node: IntArray, begin: FloatArray | float, end: FloatArray | float, kind: str
) -> FloatArray:
    """Return spans as the log has them: node, begin, end and kind."""
    rows = np.empty((node.size, 4))
    rows[:, 0], rows[:, 1], rows[:, 2], rows[:, 3] = node, begin, end, SPAN_KINDS.index(kind)
    return rows
