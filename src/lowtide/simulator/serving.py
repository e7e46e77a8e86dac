"""Jobs and machines as the kernels take them, and the kernels called.

Jobs are put in the order in which they become ready, and what they need is counted in whole small
units.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from lowtide.errors import InvalidJob
from lowtide.job import INTERRUPTIBLE
from lowtide.signal import FloatArray
from lowtide.simulator.backfilling import ASKING, KEYS, KIND, LONGEST_S, MOMENT, run_easy
from lowtide.simulator.cluster import Cluster, whole_units
from lowtide.simulator.disciplines import Feedback, RoundRobin
from lowtide.simulator.heaps import Rows, make_heap
from lowtide.simulator.kernels import run_in_order
from lowtide.simulator.machines import (
    CPUS,
    GPUS,
    JOB,
    MEMORY,
    RESOURCES,
    SITE,
    SPAN_KINDS,
    make_nodes,
    make_timers,
)
from lowtide.simulator.turns import COURSE, LEVEL, run_in_turns
from lowtide.units import format_count
from lowtide.workload import IntArray, Workload

# All kinds of jobs are gone through each time that jobs end, so there should not be too many.
_MOST_KINDS = 256


class Prepared(NamedTuple):
    """Jobs and machines as all kernels take them.

    Attributes:
        jobs: The jobs in the order in which they become ready, and one that never is.
        places: Where the nodes of jobs are written to.
        site: What holds for all nodes.
        nodes: The nodes.
        changes: A heap of nodes that boot or shut down, by when they will have.
        timers: A heap of nodes by when to look whether they have been idle for long enough.
    """

    jobs: Rows
    places: IntArray
    site: Rows
    nodes: Rows
    changes: Rows
    timers: Rows


class Runs(NamedTuple):
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
) -> Prepared:
    """Return jobs and machines as the kernels take them.

    Args:
        order: The rows of the jobs in the order of that.
        pooled: Whether nodes may be taken for one large node where that makes no difference but
            to who runs on which.
    """
    nodes, count = jobs.nodes[order].astype(np.int64), cluster.nodes
    capacity, need = _needs(jobs, order, cluster)
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
    site["nodes"] = count
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
    return Prepared(
        jobs=rows,
        places=np.zeros(int(rows["place"][-1]), dtype=np.int64),
        site=site,
        nodes=tree,
        changes=make_heap(count),
        timers=make_timers(tree, site),
    )


def _needs(jobs: Workload, order: IntArray, cluster: Cluster) -> tuple[IntArray, IntArray]:
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


def serve_in_order(prepared: Prepared, first_by: FloatArray | None) -> Runs:
    """Run jobs strictly in order.

    Args:
        first_by: The lower, the sooner a job's turn; None for the order of the jobs.
    """
    count = prepared.jobs.size - 1
    by_rank = np.arange(count) if first_by is None else np.argsort(first_by, kind="stable")
    prepared.jobs["rank"][by_rank] = np.arange(count)
    ends, waiting = make_heap(count), make_heap(count)
    log = run_in_order(count, *prepared, ends, waiting, np.empty((0, 4)))
    return _run_through(prepared, count, log)


def serve_easy(prepared: Prepared) -> Runs:
    """Run jobs in order, others going ahead of the first in the queue."""
    count = prepared.jobs.size - 1
    some = prepared.jobs[:-1]
    nodes = np.diff(prepared.jobs["place"])
    kind = _kinds(np.column_stack((nodes, some["need"], some["peak"])))
    by_kind = np.argsort(kind, kind="stable")
    many = np.bincount(kind)
    begin = np.cumsum(many) - many
    # Behind the jobs comes one like the least demanding of each kind, and where its nodes end.
    like = np.zeros(many.size + 1, dtype=JOB)
    like["need"][:-1] = np.minimum.reduceat(some["need"][by_kind], begin)
    like["peak"][:-1] = np.minimum.reduceat(some["peak"][by_kind], begin)
    like["place"][1:] = np.cumsum(np.minimum.reduceat(nodes[by_kind], begin))
    like["place"] += prepared.places.size
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
    prepared = prepared._replace(
        jobs=np.concatenate((prepared.jobs, like)),
        places=np.zeros(int(like["place"][-1]), dtype=np.int64),
    )
    log = run_easy(
        count,
        *prepared,
        asking,
        kinds,
        np.full((int(ends[-1]), KEYS), np.inf),
        leaves,
        np.zeros(2, dtype=MOMENT),
        make_heap(count),
        make_heap(count),
        make_heap(count + 1),
        np.empty((0, 4)),
    )
    return _run_through(prepared, count, log)


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


def _run_through(prepared: Prepared, count: int, log: FloatArray) -> Runs:
    """Return one start for each job."""
    rows = prepared.jobs[:count]
    return Runs(
        job=np.arange(count),
        held=rows["held"],
        start=rows["start"],
        work_s=rows["work_s"],
        lost_s=np.zeros(count),
        until=rows["start"] + rows["startup_s"] + rows["work_s"],
        places=prepared.places[: prepared.jobs["place"][count]],
        log=log,
    )


def serve_in_turns(
    jobs: Workload,
    order: IntArray,
    prepared: Prepared,
    discipline: RoundRobin | Feedback,
    *,
    keep_nodes: bool,
) -> Runs:
    """Run jobs in turns.

    Args:
        order: The rows of the jobs in the order in which they become ready.
    """
    _check_turns(jobs, discipline)
    count, place = len(jobs), jobs.profile[order]
    saved = [np.array(each.checkpoints_s) for each in jobs.profiles]
    # A job without a profile has no checkpoints: its place, the last one, is empty.
    saved.append(np.empty(0))
    saved_to = np.cumsum([each.size for each in saved])
    course = np.zeros(count, dtype=COURSE)
    course["anywhere"] = jobs.interruptible[order] == INTERRUPTIBLE.index("anywhere")
    course["min_run_s"] = jobs.min_run_s[order]
    course["max_starts"] = jobs.max_starts[order]
    course["stop_s"] = np.array([*(each.stop_s for each in jobs.profiles), 0.0])[place]
    course["saved_to"] = saved_to[place]
    course["saved_from"] = saved_to[place] - np.array([each.size for each in saved])[place]
    course["stopped"] = -np.inf
    levels = np.zeros(len(_quanta_s(discipline)), dtype=LEVEL)
    levels["quantum_s"] = _quanta_s(discipline)
    levels["first"] = -1
    boost_s = discipline.boost_s if isinstance(discipline, Feedback) else None
    rows, places, log = run_in_turns(
        count,
        *prepared,
        course,
        np.concatenate(saved),
        levels,
        float(discipline.context_s),
        np.inf if boost_s is None else float(boost_s),
        make_heap(count),
        make_heap(count),
        np.empty((0, 4)),
        keep_nodes,
    )
    return Runs(
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
    slow = jobs.startup_s >= shortest_s
    if slow.any():
        raise InvalidJob(
            f"a turn of {shortest_s:g} s is over before {told(slow)} could do any work: take "
            f"turns longer than {float(jobs.startup_s.max()):g} s, the longest startup"
        )
