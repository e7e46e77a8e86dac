"""Plan a whole queue together: prices, plans at those prices, and how near to the best they are."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from lowtide.errors import Infeasible, InvalidInput
from lowtide.market.instance import Instance, make_instance
from lowtide.market.placing import Board, construct, improve, rebuilt, squeaky_wheel
from lowtide.market.prices import Auction, Prices
from lowtide.signal import FloatArray
from lowtide.units import format_count, format_hours
from lowtide.workload import IntArray

# So many passes of prices at most, and a plan after every so many.
_PASSES = 450
_EVERY = 25
# How often all jobs are placed anew, and how many steps a search has, at an effort of 1.
_ROUNDS = 200
_STEPS = 1_000_000
# A round places all cells of all jobs: not more than this in all rounds, nor in all steps.
_MOST_CELLS = 4e8
_SEARCH_CELLS = 3e9
# Passes for a bound on how many jobs must be late.
_COUNTING = 300
# How often who is late is searched for, and how readily another is.
_TURNS = 4
_RESTLESS = 0.35
# Orders in which late jobs are tried.
_ORDERS = 24


@dataclass(frozen=True, kw_only=True, eq=False)
class QueueSolution:
    """A plan of an instance and what is proven of it.

    Attributes:
        board: Who runs when; jobs that cannot be in time have a later deadline in its instance.
        auction: The prices and their bound.
        late: Rows of jobs that are not in time, none where all are.
        least_late: How many must be late whatever is planned, as is proven.
        total: What the plan counts, with what leaving late jobs out does.
        stopped: What ended the search: `gap`, `effort` or `seconds`.
    """

    board: Board
    auction: Auction
    total: float
    late: IntArray
    least_late: int
    stopped: str


class Budget:
    """When to stop: near enough, or out of time."""

    def __init__(self, auction: Auction, gap: float, seconds: float | None) -> None:
        self._auction, self._gap = auction, gap
        self._until = math.inf if seconds is None else time.process_time() + seconds
        self.stopped = "effort"

    def is_enough(self, total: float) -> bool:
        """Return whether a plan is near enough to the bound, or time is up."""
        if total - self._auction.bound <= self._gap * abs(total):
            self.stopped = "gap"
            return True
        if time.process_time() > self._until:
            self.stopped = "seconds"
            return True
        return False


def solve(
    instance: Instance,
    *,
    gap: float,
    effort: float,
    seconds: float | None,
    seed: int,
    prices: Prices | None = None,
    doing: Callable[[str, float], None] = lambda _what, _share: None,
) -> QueueSolution:
    """Plan an instance.

    Args:
        gap: How near to the bound is near enough.
        effort: How long to search, 1 for as long as usual. Counted in steps, so that the same
            seed gives the same plan.
        seconds: CPU seconds after which the best so far is taken; None for any.
        prices: Prices to begin with.
        doing: Told what is being done, and how far that is.
    """
    auction = Auction(instance, prices)
    budget = Budget(auction, gap, seconds)
    board: Board | None = None
    passes = max(round(_PASSES * min(effort, 1.0)), _EVERY)
    enough = False
    for number in range(1, passes + 1):
        going = auction.advance(np.inf if board is None else board.total)
        if number % _EVERY == 0 or not going:
            tried = construct(instance, auction.prices)
            board = tried if board is None or tried.total < board.total else board
            enough = budget.is_enough(board.total)
            doing("prices", number / passes)
        if enough or not going:
            break
    if board is None:
        board = construct(instance, auction.prices)
    rows = instance.queue.jobs
    cells = float(((rows["end"] - rows["part"] + 1.0) * rows["delays"]).sum())
    # A step takes out and puts back about five jobs.
    most = _SEARCH_CELLS / (5.0 * cells / len(instance))
    steps = max(round(min(_STEPS, most) * effort), 1)
    if not budget.is_enough(board.total):
        rounds = max(min(round(_ROUNDS * effort), int(_MOST_CELLS * effort / cells)), 1)
        doing("placing", 0.0)
        board = squeaky_wheel(auction, board, rounds=rounds, seed=seed, is_enough=budget.is_enough)
    if not budget.is_enough(board.total) and len(instance) > 1:
        doing("searching", 0.0)
        board = improve(auction, board, steps=steps, seed=seed, is_enough=budget.is_enough)
    budget.is_enough(board.total)
    board = rebuilt(instance, board.delay, board.placed, auction.prices)
    late, total = np.flatnonzero(~board.placed), board.total
    least = 0
    if late.size:
        doing("late jobs", 0.0)
        board, least = _fewer_late(board, auction, steps, seed)
        late, total = np.flatnonzero(~board.placed), board.total
    if late.size:
        board = place_late(board, late)
    return QueueSolution(
        board=board,
        auction=auction,
        total=total,
        late=late,
        least_late=least,
        stopped=budget.stopped,
    )


def least_late(instance: Instance) -> int:
    """Return how many jobs cannot be in time, whatever is planned: a proven least number."""
    return max(math.ceil(_counting(instance).bound - 1e-6), 0)


def _counting(instance: Instance) -> Auction:
    """Return prices and their bound where nothing counts but leaving a job out."""
    rows = instance.queue.jobs.copy()
    rows["leave"], rows["wait"], rows["already"] = 1.0, 0.0, 0.0
    flat = replace(
        instance,
        queue=instance.queue._replace(jobs=rows),
        energy=np.zeros_like(instance.energy),
    )
    auction = Auction(flat, aim=0.2, unit=2.5)
    for _ in range(_COUNTING):
        if not auction.advance():
            break
    return auction


def _fewer_late(board: Board, auction: Auction, steps: int, seed: int) -> tuple[Board, int]:
    """Return a plan with as few late jobs as a search for that alone finds, and the least number.

    Who is left out matters little to it, so that it gets from one to another.
    """
    instance = board.instance
    counting = _counting(instance)
    least = max(math.ceil(counting.bound - 1e-6), 0)
    flat = rebuilt(counting.instance, board.delay, board.placed, counting.prices)
    for turn in range(_TURNS):
        flat = improve(
            counting,
            flat,
            steps=steps,
            seed=seed + turn,
            is_enough=lambda total: total < least + 0.5,
            heat=_RESTLESS,
        )
    if np.count_nonzero(~flat.placed) >= np.count_nonzero(~board.placed):
        return board, least
    fewer = rebuilt(instance, flat.delay, flat.placed, auction.prices)
    return improve(auction, fewer, steps=steps, seed=seed, is_enough=lambda _: False), least


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
    longer = make_instance(
        replace(jobs, deadline=deadline),
        instance.cluster,
        signal,
        step_s=instance.step_s,
        wait=instance.wait,
        until=until,
        **instance.terms,
    )
    rows = longer.queue.jobs
    length = longer.queue.parts["at"][rows["end"]]
    # More than anything that a slot of delay could save.
    dearest = float(np.abs(np.diff(longer.energy)).max())
    return longer, 2.0 * dearest * np.maximum(rows["peak_kw"] * length, 1e-9)[late]


def refuse_late(instance: Instance, late: IntArray, short: IntArray) -> None:
    """Refuse jobs that the signal does not reach far enough for."""
    jobs, signal = instance.jobs, instance.signal
    raise Infeasible(
        f"{format_count(late.size, 'job')} cannot be in time, and the signal ends "
        f"{format_hours(signal.end - float(jobs.deadline.max()))} after the last deadline, too "
        f"early for {short.size} of them, such as job {jobs.id[short[0]]}: get a longer signal, "
        "take fewer jobs, or give more nodes",
        [],
    )


def place_late(board: Board, late: IntArray) -> Board:
    """Place jobs that cannot be in time as soon as there is room.

    Of several orders the one with the least lateness is taken, and of those the fairest: with the
    least of the latest.
    """
    deadline = board.instance.jobs.deadline
    longer, penalty = lengthened(board.instance, late)
    rows, waits = longer.queue.jobs, longer.queue.jobs["wait"].copy()
    rows["wait"][late] = penalty
    none = Prices(
        rent=np.zeros((len(longer.resources), longer.slots)), power=np.zeros(longer.slots)
    )
    rng = np.random.default_rng(0)
    keys = (longer.queue.parts["at"][rows["end"]], deadline)
    orders = [late[np.argsort(key[late], kind="stable")] for key in keys]
    orders += [rng.permutation(late) for _ in range(_ORDERS)]
    best: tuple[float, float] | None = None
    kept: Board | None = None
    fixed = rebuilt(longer, board.delay, board.placed, none)
    for order in orders:
        tried = fixed.copy().insert(order, none.tariff(longer))
        if not tried.placed.all():
            continue
        by_s = lateness_s(tried, deadline)[late]
        score = (float(by_s.sum()), float(by_s.max()))
        if best is None or score < best:
            best, kept = score, tried
    if kept is None:
        refuse_late(board.instance, late, late[~tried.placed[late]])
        return board
    rows["wait"] = waits
    return rebuilt(longer, kept.delay, kept.placed, none)


def lateness_s(board: Board, deadline: FloatArray) -> FloatArray:
    """Return how long after a deadline each job is done, 0 for those in time."""
    instance = board.instance
    rows, parts = instance.queue.jobs, instance.queue.parts
    done = parts["at"][rows["end"]] - rows["begin"] + board.delay[rows["end"] - 1]
    end = instance.base + done * instance.step_s
    by_s: FloatArray = np.maximum(end - deadline, 0.0)
    by_s[by_s < 1e-3] = 0.0
    return by_s


def require_options(gap: float, effort: float, seconds: float | None) -> None:
    """Refuse budgets that are none."""
    for name, value in (("gap", gap), ("effort", effort), ("seconds", seconds)):
        if value is not None and (isinstance(value, bool) or not isinstance(value, int | float)):
            raise InvalidInput(f"{name} is a number, not {value!r}")
    if not 0 <= gap < 1:
        raise InvalidInput(f"gap is a share of what a plan comes to, from 0 to 1, not {gap!r}")
    if not 0 < effort < math.inf:
        raise InvalidInput(f"effort is more than 0, 1 for the usual, not {effort!r}")
    if seconds is not None and not seconds > 0:
        raise InvalidInput(f"seconds are more than 0, not {seconds!r}")
