"""Plans carried out: jobs that start, stop and go on when a plan says, on machines that hold them.

Nobody waits for anybody here. What does not fit is refused, at the first instant at which it does
not: so a plan that gets through is one that the machines can run.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from lowtide.accounting import Stretches, pieces_of, tally
from lowtide.errors import InvalidSchedule
from lowtide.grid import Grid
from lowtide.job import TIME_TOLERANCE_S
from lowtide.precedence import broken, links_of
from lowtide.signal import FloatArray, Signal
from lowtide.simulator.cluster import Cluster
from lowtide.simulator.machines import SPAN_KINDS
from lowtide.simulator.outages import Away
from lowtide.simulator.queueing import (
    NodeSpans,
    Placed,
    Queued,
    kept_of,
    needs_of,
    power_by_state,
)
from lowtide.simulator.results import Simulation
from lowtide.steps import Steps
from lowtide.units import format_count, format_time
from lowtide.workload import IntArray, Workload

BoolArray = npt.NDArray[np.bool_]

# Ends come before starts that they make room for, though instants are rounded.
_EARLIER_S = 2 * TIME_TOLERANCE_S
# Watts that rounding may add up to.
_SAME_W = 1e-3


def carry_out(
    jobs: Workload,
    stretches: Stretches,
    cluster: Cluster,
    *,
    placed: Placed | None = None,
    power_cap: Signal | float | None = None,
    since: float | None = None,
    switched: Sequence[tuple[int, float, float]] = (),
    down: Sequence[tuple[int, float, float]] = (),
) -> Queued:
    """Lay planned runs on nodes at their times, and raise `InvalidSchedule` where they do not fit.

    A stopped job gives its nodes back, and may go on elsewhere; unless it keeps something.

    Args:
        placed: On which nodes each run is; by default it takes those that fit best when it starts.
        power_cap: What nodes and jobs may draw together, by default what the cluster says.
        since: From when on nodes are looked at, by default from the first arrival on.
        switched: Nodes that somebody switched off: which, when, and when they began to boot.
        down: Nodes that broke down: which, when, and when they were repaired.
    """
    cluster.check_fits(jobs)
    away = cluster.gone()
    until = _held_until(jobs, stretches)
    check_turns(jobs, stretches, until)
    if placed is None:
        placed = _place(jobs, stretches, until, cluster, away)
    else:
        _check_places(jobs, stretches, until, cluster, placed, away)
    _check_down(jobs, stretches, until, placed, down)
    begin = float(jobs.arrival.min()) if since is None else since
    _, gap = _pauses(jobs, stretches, cluster)
    # A node on which something is kept is not switched off.
    busy = np.where(gap, np.append(stretches.start[1:], 0.0), until)
    nodes = _node_spans(cluster, placed, stretches.start, busy, begin, switched)
    queued = Queued(
        ready=stretches.start[stretches.first],
        stretches=stretches,
        held_from=stretches.start,
        held_until=until,
        nodes=nodes,
        placed=placed,
    )
    cap = cluster.power_cap_w if power_cap is None else power_cap
    if cap is not None:
        _check_power(jobs, queued, cap)
    return queued


def replay(
    jobs: Workload,
    stretches: Stretches,
    signal: Signal | Grid,
    cluster: Cluster,
    *,
    policy: str = "plan",
    placed: Placed | None = None,
    power_cap: Signal | float | None = None,
    since: float | None = None,
    until: float | None = None,
    baseline: Simulation | None = None,
) -> Simulation:
    """Return what comes of a plan that is carried out.

    Args:
        since: From when on nodes are looked at, by default from the first arrival on.
        until: How long they are, at least: what else they draw depends on it.
        baseline: The same jobs on the same machines under another policy, to be told against.
    """
    queued = carry_out(jobs, stretches, cluster, placed=placed, power_cap=power_cap, since=since)
    end = max(float(queued.held_until.max()), until or -np.inf)
    spans = None
    if baseline is not None:
        spans = baseline.node_spans
    return Simulation(
        jobs=jobs,
        signal=signal,
        policy=policy,
        discipline=None,
        cluster=cluster,
        stretches=stretches,
        tally=tally(jobs, stretches, signal, pue=cluster.pue),
        baseline=None if baseline is None else baseline.tally,
        baseline_policy=None if baseline is None else baseline.policy,
        node_spans=queued.nodes.until(end),
        baseline_node_spans=spans,
        bought=None,
    )


def _held_until(jobs: Workload, stretches: Stretches) -> FloatArray:
    """Return when each run gives its nodes back: once it has stopped."""
    stops_s = np.array([*(each.stop_s for each in jobs.profiles), 0.0])[jobs.profile]
    last = np.append(np.diff(stretches.job) != 0, True)
    ran_s = stretches.work_s + stretches.lost_s + np.where(last, 0.0, stops_s[stretches.job])
    until: FloatArray = stretches.start + (stretches.starting_s(jobs) + ran_s)
    return until


def check_turns(jobs: Workload, stretches: Stretches, until: FloatArray) -> None:
    """Refuse a start before those that the job waits for are done.

    Args:
        until: When each run is over.
    """
    links = links_of(jobs)
    start, end = stretches.start[stretches.first], np.full(len(jobs), -np.inf)
    np.maximum.at(end, stretches.job, until)
    wrong = np.flatnonzero(broken(start, end, links))
    if wrong.size:
        place = wrong[np.argmin(start[links.after[wrong]])]
        first, row = int(links.before[place]), int(links.after[place])
        soonest = format_time(float(end[first] + links.gap_s[place]))
        _refuse(jobs, row, float(start[row]), f"it waits for job {jobs.id[first]} until {soonest}")


def _refuse(jobs: Workload, row: int, when: float, what: str) -> None:
    raise InvalidSchedule(
        f"job {jobs.id[row]} (row {row + 1}) cannot run at {format_time(when)}: {what}"
    )


def _pauses(jobs: Workload, stretches: Stretches, cluster: Cluster) -> tuple[IntArray, BoolArray]:
    """Return what jobs keep on each node, and after which runs they are stopped and keep it."""
    _, need = needs_of(jobs, np.arange(len(jobs)), cluster)
    kept = kept_of(need, cluster)
    stopped = np.append(np.diff(stretches.job) == 0, False)
    some: BoolArray = np.any(kept, axis=1, keepdims=True)[:, 0]
    return kept, stopped & some[stretches.job]


def _place(
    jobs: Workload, stretches: Stretches, until: FloatArray, cluster: Cluster, away: Sequence[Away]
) -> Placed:
    """Give each run the nodes that it fits on most tightly, in the order of their starts."""
    capacity, need = needs_of(jobs, np.arange(len(jobs)), cluster)
    # Where no two jobs can share a node, any free one is as good, and so is any that is away.
    kept, stays = _pauses(jobs, stretches, cluster)
    alone = bool(np.any(2 * need.min(axis=0) > capacity)) and not stays.any()
    if alone:
        _check_count(jobs, stretches, until, cluster, away)
    free = np.tile(capacity, (1 if alone else cluster.nodes, 1))
    unused = list(range(cluster.nodes))
    wide, scale = jobs.nodes.astype(np.int64), np.maximum(capacity, 1)
    running: list[tuple[float, int]] = []
    held: dict[int, IntArray] = {}
    # Of those that start at once the most demanding first.
    size = (need / scale).max(axis=1)[stretches.job]
    for run in np.lexsort((-size, stretches.start)).tolist():
        now, row = float(stretches.start[run]), int(stretches.job[run])
        while running and running[0][0] <= now + _EARLIER_S:
            _, over = heapq.heappop(running)
            if alone:
                for node in held[over].tolist():
                    heapq.heappush(unused, node)
            else:
                of = stretches.job[over]
                free[held[over]] += need[of] - kept[of] * stays[over]
        if alone:
            chosen = np.array([heapq.heappop(unused) for _ in range(int(wide[row]))])
        elif run and stays[run - 1]:
            chosen = held[run - 1]
            free[chosen] -= need[row] - kept[row]
            if (free[chosen] < 0).any():
                _refuse(jobs, row, now, "the nodes on which it keeps something have no room for it")
        else:
            fits = np.flatnonzero((free >= need[row]).all(axis=1))
            if fits.size < wide[row]:
                _refuse(jobs, row, now, f"it needs {_words(jobs, row)}, and {fits.size} have room")
            left = ((free[fits] - need[row]) / scale).sum(axis=1)
            chosen = np.sort(fits[np.argsort(left, kind="stable")[: wide[row]]])
            free[chosen] -= need[row]
        held[run] = chosen
        heapq.heappush(running, (float(until[run]), run))
    placed = Placed(
        stretch=np.repeat(np.arange(stretches.job.size), wide[stretches.job]),
        node=np.concatenate([held[run] for run in range(stretches.job.size)]),
    )
    if away and not alone:
        _check_places(jobs, stretches, until, cluster, placed, away)
    return placed


def _words(jobs: Workload, row: int) -> str:
    nodes = int(jobs.nodes[row])
    return (
        f"{format_count(nodes, 'node')} with {jobs.cpus[row] / nodes:g} CPUs and "
        f"{jobs.gpus[row] / nodes:g} GPUs each"
    )


def _check_count(
    jobs: Workload, stretches: Stretches, until: FloatArray, cluster: Cluster, away: Sequence[Away]
) -> None:
    """Refuse more nodes than there are."""
    used = Steps.of_spans(
        np.concatenate((stretches.start, [each.begin for each in away])),
        np.concatenate((until - _EARLIER_S, [each.end - _EARLIER_S for each in away])),
        np.concatenate((jobs.nodes[stretches.job], [float(each.nodes) for each in away])),
    )
    over = used.values > cluster.nodes + 1e-6
    if over.any():
        when = float(used.times[np.argmax(over)])
        asking = (stretches.start <= when) & (until > when + _EARLIER_S)
        run = int(np.flatnonzero(asking)[np.argmax(stretches.start[asking])])
        _refuse(
            jobs,
            int(stretches.job[run]),
            when,
            f"{used.values[np.argmax(over)]:g} nodes would be taken of {cluster.nodes}",
        )


def _check_places(
    jobs: Workload,
    stretches: Stretches,
    until: FloatArray,
    cluster: Cluster,
    placed: Placed,
    away: Sequence[Away],
) -> None:
    """Refuse runs on nodes that have no room for them, or are not there."""
    wide = jobs.nodes.astype(np.int64)[stretches.job]
    pairs = np.unique(np.column_stack((placed.stretch, placed.node)), axis=0)
    counts = np.bincount(pairs[:, 0], minlength=stretches.job.size)
    short = np.flatnonzero(counts != wide)
    if short.size or placed.node.size != pairs.shape[0]:
        run = int(short[0]) if short.size else 0
        row = int(stretches.job[run])
        _refuse(
            jobs,
            row,
            float(stretches.start[run]),
            f"it was given {counts[run]} different nodes of the {wide[run]} that it needs",
        )
    capacity, need = needs_of(jobs, np.arange(len(jobs)), cluster)
    begin, end = stretches.start[placed.stretch], until[placed.stretch] - _EARLIER_S
    amount = need[stretches.job[placed.stretch]]
    run_of, node_of = placed.stretch, placed.node
    kept, stays = _pauses(jobs, stretches, cluster)
    if stays.any():
        _check_stays(jobs, stretches, placed, stays)
        some = stays[run_of]
        begin = np.append(begin, until[run_of[some]])
        end = np.append(end, stretches.start[run_of[some] + 1] - _EARLIER_S)
        amount = np.concatenate((amount, kept[stretches.job[run_of[some]]]))
        run_of = np.append(run_of, run_of[some])
        node_of = np.append(node_of, node_of[some])
    edges = np.concatenate((begin, end))
    node = np.concatenate((node_of, node_of))
    change = np.concatenate((amount, -amount))
    order = np.lexsort((np.concatenate((np.ones(begin.size), np.zeros(end.size))), edges, node))
    # Sums over all nodes: each gives back all that it held before the next begins.
    used = np.cumsum(change[order], axis=0)
    over = np.flatnonzero((used > capacity).any(axis=1))
    if over.size:
        first = over[np.argmin(edges[order][over])]
        run = int(run_of[order[first] % begin.size])
        _refuse(
            jobs,
            int(stretches.job[run]),
            float(edges[order][first]),
            f"node {node[order][first]} has no room for it",
        )
    for each in away:
        gone = node_of >= cluster.nodes - each.nodes
        hit = gone & (begin < each.end - _EARLIER_S) & (end > each.begin)
        if hit.any():
            run = int(run_of[np.argmax(hit)])
            _refuse(
                jobs,
                int(stretches.job[run]),
                max(float(stretches.start[run]), each.begin),
                f"node {node_of[np.argmax(hit)]} is away until {format_time(each.end)}",
            )


def _check_down(
    jobs: Workload,
    stretches: Stretches,
    until: FloatArray,
    placed: Placed,
    down: Sequence[tuple[int, float, float]],
) -> None:
    """Refuse runs on nodes that had broken down."""
    begin, end = stretches.start[placed.stretch], until[placed.stretch] - _EARLIER_S
    for node, broke, repaired in down:
        hit = (placed.node == node) & (begin < repaired - _EARLIER_S) & (end > broke)
        if hit.any():
            run = int(placed.stretch[np.argmax(hit)])
            when = max(float(stretches.start[run]), broke)
            _refuse(jobs, int(stretches.job[run]), when, f"node {node} had broken down")


def _check_stays(jobs: Workload, stretches: Stretches, placed: Placed, stays: BoolArray) -> None:
    """Refuse a job that goes on elsewhere than where it keeps something."""
    order = np.lexsort((placed.node, placed.stretch))
    node, first = placed.node[order], np.searchsorted(placed.stretch[order], np.arange(stays.size))
    wide = jobs.nodes.astype(np.int64)[stretches.job]
    for run in np.flatnonzero(stays).tolist():
        here, there = (node[first[r] : first[r] + wide[r]] for r in (run, run + 1))
        if not np.array_equal(here, there):
            _refuse(
                jobs,
                int(stretches.job[run]),
                float(stretches.start[run + 1]),
                f"it keeps something on node {here[0]}, and was to go on elsewhere",
            )


def _node_spans(
    cluster: Cluster,
    placed: Placed,
    start: FloatArray,
    until: FloatArray,
    begin: float,
    switched: Sequence[tuple[int, float, float]],
) -> NodeSpans:
    """Return what the nodes do themselves: they are woken in time for each run."""
    idle, boot, shutdown, off = range(len(SPAN_KINDS))
    rows: list[tuple[int, float, float, int]] = []
    if cluster.off_after_s is None and not switched:
        rows = [(node, begin, np.inf, idle) for node in range(cluster.nodes)]
    else:
        after_s = np.inf if cluster.off_after_s is None else cluster.off_after_s
        order = np.lexsort((start[placed.stretch], placed.node))
        nodes, runs = placed.node[order], placed.stretch[order]
        bounds = np.searchsorted(nodes, np.arange(cluster.nodes + 1))
        rest_s = after_s + cluster.shutdown_s + cluster.boot_s
        by_hand: dict[int, list[tuple[float, float]]] = {}
        for node, goes, wakes in switched:
            by_hand.setdefault(node, []).append((goes, wakes))
        for node in range(cluster.nodes):
            on, free = begin, begin
            used = [
                (float(start[r]), float(until[r])) for r in runs[bounds[node] : bounds[node + 1]]
            ]
            hands = sorted(by_hand.get(node, []))
            for starts, ends in [*used, (np.inf, np.inf)]:
                while hands and hands[0][0] < starts:
                    goes, wakes = hands.pop(0)
                    down = goes + cluster.shutdown_s
                    rows += [(node, on, goes, idle), (node, goes, down, shutdown)]
                    rows += [(node, down, wakes, off), (node, wakes, wakes + cluster.boot_s, boot)]
                    on = free = wakes + cluster.boot_s
                if starts == np.inf or on == np.inf:
                    break
                if starts - free > rest_s:
                    goes = free + after_s
                    down, wakes = goes + cluster.shutdown_s, starts - cluster.boot_s
                    rows += [(node, on, goes, idle), (node, goes, down, shutdown)]
                    rows += [(node, down, wakes, off), (node, wakes, starts, boot)]
                    on = starts
                free = max(free, ends)
            goes = free + after_s
            rows += [(node, on, goes, idle), (node, goes, goes + cluster.shutdown_s, shutdown)]
            rows.append((node, goes + cluster.shutdown_s, np.inf, off))
    table = np.array([row for row in rows if row[1] < row[2]])
    kind = table[:, 3].astype(np.int8)
    return NodeSpans(
        node=table[:, 0].astype(np.int64),
        begin=table[:, 1],
        end=table[:, 2],
        power_w=power_by_state(cluster)[kind],
        kind=kind,
    )


def _check_power(jobs: Workload, queued: Queued, cap: Signal | float) -> None:
    """Refuse what takes nodes and jobs together above the power cap."""
    pieces, spans = pieces_of(jobs, queued.stretches), queued.node_spans
    # What ends as another begins is not drawn beside it.
    drawn = Steps.of_spans(
        np.concatenate((pieces.begin, spans.begin)),
        np.concatenate((pieces.end - _EARLIER_S, spans.end - _EARLIER_S)),
        np.concatenate((pieces.power_w, spans.power_w)),
    )
    times, watts = drawn.times, drawn.values
    if isinstance(cap, Signal):
        inside = (times >= cap.start) & (times < cap.end)
        steps = cap.edges[:-1]
        times = np.concatenate((times[inside], steps))
        watts = np.concatenate((watts[inside], drawn.at(steps)))
        most = cap.at(times)
    else:
        most = np.full(times.size, float(cap))
    over = np.flatnonzero(watts > most + _SAME_W)
    if over.size:
        at = over[np.argmin(times[over])]
        raise InvalidSchedule(
            f"at {format_time(float(times[at]))} nodes and jobs draw {watts[at]:g} W together, "
            f"above the power cap of {most[at]:g} W",
            over_w=float((watts - most).max()),
        )
