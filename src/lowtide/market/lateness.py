"""Where not all jobs can be in time: how few must be late, who is, and by how little.

How many must be late is proven as the least cost is: by prices, at which nothing counts but to
leave a job out. Who is late is searched for with those prices; of a few jobs all combinations are
gone through. Late jobs are then given more time, and placed as soon as there is room.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np

from lowtide.errors import Infeasible
from lowtide.job import INTERRUPTIBLE, TIME_TOLERANCE_S
from lowtide.market.enumeration import at_most_late, is_enumerable
from lowtide.market.instance import Instance, make_instance, own_power_w
from lowtide.market.placing import Board, improve, rebuilt
from lowtide.market.prices import Auction, Prices
from lowtide.precedence import in_order
from lowtide.signal import FloatArray, Signal
from lowtide.units import format_count, format_hours, format_time
from lowtide.workload import IntArray, Workload

# Passes for a bound on how many jobs must be late.
_PASSES = 300
# How far above it steps aim, as a share of it, and of how many jobs where it is less.
_AIM, _UNIT = 0.2, 2.5
# How often who is late is searched for, and how readily another is.
_TURNS = 4
_RESTLESS = 0.35
# Of so many jobs all combinations may be gone through.
_FEW = 24
# Watts that rounding may add up to.
_SAME_W = 1e-3
# Orders in which late jobs are tried.
_ORDERS = 24


def require_alone(instance: Instance) -> None:
    """Refuse jobs that could not be in time if they were alone, and say by how much.

    Nodes may be away for longer than a job can wait, or the power cap too low for it.
    """
    jobs, cluster = instance.jobs, instance.cluster
    cap = instance.terms["power_cap"]
    if not (instance.away or isinstance(cap, Signal)) and not instance.capped:
        return
    begin, end = float(jobs.arrival.min()), float(jobs.deadline.max())
    steps = cap.edges if isinstance(cap, Signal) else np.empty(0)
    moments = [begin, end, *(edge for each in instance.away for edge in each[:2]), *steps]
    times = np.unique(np.clip(moments, begin, end))
    middle = (times[:-1] + times[1:]) / 2
    there = np.full(middle.size, float(cluster.nodes))
    for each in instance.away:
        there -= each.nodes * ((middle > each.begin) & (middle < each.end))
    if isinstance(cap, Signal):
        left_w = cap.at(middle) - own_power_w(cluster)
    else:
        left_w = np.full(middle.size, 1000 * float(np.max(instance.cap_kw[1])))
    needed_w = 1000 * instance.queue.jobs["peak_kw"]
    nodes_w = needed_w - jobs.peak_w
    once = (jobs.interruptible == INTERRUPTIBLE.index("never")) | (jobs.max_starts == 1)
    some = (jobs.nodes > there.min()) | (needed_w > left_w.min() + _SAME_W)
    short_s = np.zeros(len(jobs))
    for row in np.flatnonzero(some).tolist():
        open_s = np.diff(np.clip(times, jobs.arrival[row], jobs.deadline[row]))
        lasts_s, watts = _phases(jobs, row)
        # Of all that draws so much or more: for as long there must be room for it.
        for level_w in np.unique(watts):
            shut = (there < jobs.nodes[row]) | (left_w < level_w + nodes_w[row] - _SAME_W)
            less = watts < level_w
            needed_s = _longest(lasts_s, less, once=bool(once[row]))
            room_s = _longest(open_s, shut, once=bool(once[row]))
            short_s[row] = max(short_s[row], needed_s - room_s)
    late = short_s > TIME_TOLERANCE_S
    if not late.any():
        return
    row, more = int(np.argmax(short_s)), int(np.count_nonzero(late)) - 1
    others = f"; as for {format_count(more, 'other job')}" if more else ""
    inside = np.diff(np.clip(times, jobs.arrival[row], jobs.deadline[row])) > 0
    cure = "move its deadline, or have the nodes back sooner"
    lacks_w = needed_w[row] - float(left_w[inside].max())
    if lacks_w > _SAME_W:
        cure = f"raise the power cap by {lacks_w:g} W, or leave it out"
    has_s = max(float(jobs.run_s[row] - short_s[row]), 0.0)
    nodes = format_count(int(jobs.nodes[row]), "node")
    raise Infeasible(
        f"job {jobs.id[row]} (row {row + 1}) needs {nodes} for "
        f"{format_hours(float(jobs.run_s[row]))}{' without a stop' if once[row] else ''} by "
        f"{format_time(float(jobs.deadline[row]))}, and alone it would find room and power for "
        f"{format_hours(has_s)}: that is {format_hours(float(short_s[row]))} too little{others}: "
        f"{cure}",
        None,
    )


def _phases(jobs: Workload, row: int) -> tuple[FloatArray, FloatArray]:
    """Return how long each phase of a job lasts that is run through, and what it draws."""
    profile = jobs.job(row).profile
    phases = (*profile.startup, *profile.work)
    return np.array([each.duration_s for each in phases]), np.array([p.power_w for p in phases])


def _longest(lasts_s: FloatArray, left_out: Any, *, once: bool) -> float:
    """Return how long stretches last that are not left out: together, or the longest at once."""
    stretch = np.cumsum(left_out) if once else np.zeros(lasts_s.size, dtype=np.int64)
    return float(np.bincount(stretch, weights=np.where(left_out, 0.0, lasts_s)).max())


def counting(instance: Instance) -> Instance:
    """Return an instance in which nothing counts but to leave a job out: 1 for each."""
    rows = instance.queue.jobs.copy()
    rows["leave"], rows["weight"] = 1.0, 0.0
    rows["wait"] = rows["already"] = 0.0
    return replace(instance, queue=instance.queue._replace(jobs=rows), wait=np.zeros(len(instance)))


def whole_jobs(bound: float) -> int:
    """Return how many jobs a bound on their number stands for: they come whole."""
    return max(math.ceil(bound - 1e-6), 0)


def prove_late(instance: Instance, is_over: Callable[[], bool] = lambda: False) -> Auction:
    """Return prices that prove how many jobs cannot be in time, whatever is planned."""
    auction = _tried(Auction(counting(instance), aim=_AIM, unit=_UNIT), is_over)
    even = None if is_over() else _even_prices(auction)
    if even is None:
        return auction
    return _tried(Auction(auction.instance, even, aim=_AIM, unit=_UNIT), is_over)


def _tried(auction: Auction, is_over: Callable[[], bool]) -> Auction:
    """Return an auction when no more of its prices are worth trying."""
    for _ in range(_PASSES):
        if not auction.advance() or is_over():
            break
    return auction


def _even_prices(auction: Auction) -> Prices | None:
    """Return prices of one thing, the same throughout a while, that prove more; None for none.

    Jobs that are alike all run to where it is cheapest, and prices that begin at nothing prove
    nothing then. At prices that leave nobody out what each pays grows with them, so that the best
    of all multiples is known at once.
    """
    instance = auction.instance
    best, found = whole_jobs(auction.bound) + 1e-6, None
    many, caps = len(instance.resources), instance.cap_kw[0]
    there = np.vstack([instance.usable, caps])
    there[~np.isfinite(there)] = 0.0
    for row, (begin, end) in product(range(len(there)), _spans(instance.slots)):
        span = there[row, begin:end]
        for where in (span > 0, (span > 0) & (span < span.mean())):
            if not where.any():
                continue
            each = np.zeros(there.shape)
            # Who held all of it would pay half of what it counts to leave a job out.
            each[row, begin:end] = 0.5 * where / span[where].sum()
            low = Prices(rent=each[:many], power=each[many:].reshape(caps.shape))
            auction.price(low)
            paid = np.sort(auction.reduced[auction.reduced > 1e-12])
            if not paid.size:
                continue
            bounds = (np.cumsum(paid) - 0.5) / paid + np.arange(paid.size - 1, -1, -1.0)
            if bounds.max() > best:
                best, times = float(bounds.max()), 1 / paid[np.argmax(bounds)]
                found = Prices(rent=times * low.rent, power=times * low.power)
    return found


def _spans(slots: int) -> list[tuple[int, int]]:
    """Return slots from and to which prices are tried: all, each half and each quarter."""
    edges = np.linspace(0, slots, 5).round().astype(int).tolist()
    spans = {(edges[at], edges[at + width]) for width in (4, 2, 1) for at in range(0, 4, width)}
    return sorted(each for each in spans if each[0] < each[1])


def fewest_late(
    board: Board,
    auction: Auction,
    proof: Auction,
    *,
    steps: int,
    seed: int,
    is_over: Callable[[], bool],
) -> tuple[Board, int]:
    """Return a plan with as few late jobs as were found, and how many must be late.

    Who is left out matters little to the search, so that it gets from one to another. Where few
    jobs are left to decide on, all combinations are gone through.

    Args:
        auction: The prices of the plan.
        proof: Those by which so many must be late.
        is_over: Whether time is up.
    """
    least = whole_jobs(proof.bound)
    flat = rebuilt(proof.instance, board.delay, board.placed, proof.prices)
    before = board.left_out.size

    def is_enough(total: float) -> bool:
        return total < least + 0.5 or is_over()

    for turn in range(_TURNS):
        if is_enough(flat.total):
            break
        flat = improve(
            proof,
            flat,
            steps=steps,
            seed=seed + turn,
            is_enough=is_enough,
            heat=_RESTLESS,
            shaken=turn % 2 == 0,
        )
    late = flat.left_out.size
    while late > least and len(board.instance) <= _FEW and is_enumerable(board.instance):
        found = at_most_late(proof.instance, proof, late - 1)
        if found.delay is None:
            # On slots that lose nothing there is no plan beyond those that were gone through.
            least = late if found.complete and board.instance.lossless else least
            break
        flat = rebuilt(proof.instance, found.delay, found.placed, proof.prices)
        late = flat.left_out.size
    if late >= before:
        return board, least
    # No one job may be worth more than another now, or two were left out for it again.
    rows = board.instance.queue.jobs.copy()
    rows["leave"] = board.instance.leaving().sum()
    even = replace(board.instance, queue=board.instance.queue._replace(jobs=rows))
    fewer = rebuilt(even, flat.delay, flat.placed, auction.prices)
    better = improve(
        Auction(even, auction.prices), fewer, steps=steps, seed=seed, is_enough=lambda _: is_over()
    )
    return rebuilt(board.instance, better.delay, better.placed, auction.prices), least


def lengthened(instance: Instance, late: IntArray) -> tuple[Instance, FloatArray]:
    """Return an instance in which some jobs may be late, and what a slot of it counts for each.

    It reaches as far as the signal, or as all of them need one after the other.
    """
    jobs, signal = instance.jobs, instance.signal
    last = float(jobs.deadline.max())
    needed_s = float(jobs.run_s[late].sum()) + last - float(jobs.arrival.min())
    until = min(signal.end, last + needed_s)
    deadline = jobs.deadline.copy()
    deadline[late] = until
    longer = remade(instance, deadline, until)
    rows = longer.queue.jobs
    length = longer.queue.parts["at"][rows["end"]]
    # More than anything that a slot of delay could save.
    dearest = float(np.abs(np.diff(longer.energy)).max())
    worst = np.maximum.reduceat(rows["peak_kw"] * length, longer.queue.ways[:-1])
    return longer, 2.0 * dearest * np.maximum(worst, 1e-9)[late]


def remade(instance: Instance, deadline: FloatArray, until: float) -> Instance:
    """Return the same queue with other deadlines.

    Args:
        until: How far to look at least.
    """
    if instance.again is not None:
        return instance.again(deadline, until)
    return make_instance(
        replace(instance.jobs, deadline=deadline),
        instance.cluster,
        instance.signal,
        step_s=instance.step_s,
        wait=instance.wait,
        until=until,
        **instance.terms,
    )


def refuse_late(instance: Instance, late: IntArray, short: IntArray) -> None:
    """Refuse jobs that the signal does not reach far enough for."""
    jobs, signal = instance.jobs, instance.signal
    raise Infeasible(
        f"{format_count(late.size, 'job')} cannot be in time, and the signal ends "
        f"{format_hours(signal.end - float(jobs.deadline.max()))} after the last deadline, too "
        f"early for {short.size} of them, such as job {jobs.id[short[0]]}: get a longer signal, "
        "take fewer jobs, or give more nodes",
        None,
    )


def place_late(board: Board, late: IntArray, is_over: Callable[[], bool] = lambda: False) -> Board:
    """Place jobs that cannot be in time as soon as there is room.

    Of several orders the one with the least lateness is taken, and of those the fairest: with the
    least of the latest.
    """
    deadline = board.instance.jobs.deadline
    longer, penalty = lengthened(board.instance, late)
    rows, waits = longer.queue.jobs, longer.queue.jobs["wait"].copy()
    hurrying = np.isin(longer.job_of, late)
    rows["wait"][hurrying] = penalty[np.searchsorted(late, longer.job_of[hurrying])]
    none = Prices.nothing(longer)
    rng = np.random.default_rng(0)
    lengths = longer.queue.parts["at"][rows["end"]][longer.queue.ways[:-1]]
    keys = [lengths, deadline, *(rng.random(deadline.size) for _ in range(_ORDERS))]
    orders = [order[np.isin(order, late)] for order in (in_order(k, longer.links) for k in keys)]
    best: tuple[float, float] | None = None
    kept: Board | None = None
    fixed = rebuilt(longer, board.delay, board.placed, none)
    for order in orders:
        tried = fixed.copy().insert(order, none.tariff(longer))
        if tried.left_out.size:
            continue
        by_s = lateness_s(tried, deadline)[late]
        score = (float(by_s.sum()), float(by_s.max()))
        if best is None or score < best:
            best, kept = score, tried
        if is_over():
            break
    if kept is None:
        refuse_late(board.instance, late, tried.left_out)
        return board
    rows["wait"] = waits
    return rebuilt(longer, kept.delay, kept.placed, none)


def lateness_s(board: Board, deadline: FloatArray) -> FloatArray:
    """Return how long after a deadline each job is done, 0 for those in time."""
    instance = board.instance
    rows, parts, placed = instance.queue.jobs, instance.queue.parts, board.placed
    done = parts["at"][rows["end"]] - rows["begin"] + board.delay[rows["end"] - 1]
    end = np.full(len(instance), np.nan)
    end[instance.job_of[placed]] = (instance.base + done * instance.step_s)[placed]
    by_s: FloatArray = np.fmax(end - deadline, 0.0)
    by_s[by_s < 1e-3] = 0.0
    return by_s
