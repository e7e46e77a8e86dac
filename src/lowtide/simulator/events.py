"""Jobs on limited machines: who runs when, and what the machines do meanwhile."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from lowtide.errors import InvalidInput, LowtideError
from lowtide.job import TIME_TOLERANCE_S
from lowtide.signal import FloatArray
from lowtide.simulator.cluster import Cluster
from lowtide.simulator.disciplines import (
    Discipline,
    Easy,
    Feedback,
    Priority,
    RoundRobin,
    make_discipline,
)
from lowtide.simulator.heaps import Rows
from lowtide.simulator.machines import SPAN_KINDS
from lowtide.simulator.serving import (
    Prepared,
    Runs,
    power_by_state,
    prepare,
    serve_easy,
    serve_in_order,
    serve_in_turns,
)
from lowtide.tally import Stretches
from lowtide.units import format_count
from lowtide.workload import IntArray, Workload


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
    ready = _checked_ready(jobs, ready)
    cluster.check_fits(jobs)
    order = np.argsort(ready, kind="stable")
    prepared = prepare(jobs, ready, order, cluster, pooled=not keep_nodes)
    if isinstance(discipline, RoundRobin | Feedback):
        runs = serve_in_turns(jobs, order, prepared, discipline, keep_nodes=keep_nodes)
    elif isinstance(discipline, Easy):
        runs = serve_easy(prepared)
    else:
        by_priority = isinstance(discipline, Priority)
        runs = serve_in_order(prepared, -jobs.priority[order] if by_priority else None)
    if not np.isfinite(runs.start).all() or runs.job.size < len(jobs):
        raise LowtideError("the queue came to a stand while jobs waited: please report this")
    return _queued(jobs, ready, order, cluster, prepared, runs, keep_nodes=keep_nodes)


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
    prepared: Prepared,
    runs: Runs,
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
        nodes=_node_spans(cluster, prepared, runs.log, float(jobs.arrival.min())),
        placed=placed,
    )


def _node_spans(cluster: Cluster, prepared: Prepared, log: FloatArray, begin: float) -> NodeSpans:
    """Return what the nodes did: what was logged, and what they do from then on."""
    rows = log[: int(prepared.site["logged"][0])]
    if cluster.off_after_s is None:
        parts = [_rows(np.arange(cluster.nodes), begin, np.inf, "idle")]
    else:
        size = prepared.nodes.size // 2
        parts = [rows, *_tails(prepared.nodes[size : size + cluster.nodes], cluster)]
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
