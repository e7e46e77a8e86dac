"""Plan a whole queue together: prices, plans at those prices, and how near to the best they are."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from lowtide.errors import InvalidInput
from lowtide.market.instance import Instance
from lowtide.market.lateness import fewest_late, place_late, prove_late
from lowtide.market.likeness import first_prices
from lowtide.market.placing import Board, as_told, construct, improve, rebuilt, squeaky_wheel
from lowtide.market.prices import Auction, Prices
from lowtide.signal import FloatArray
from lowtide.workload import IntArray

# So many passes of prices at most, and a plan after every so many.
_PASSES = 450
_EVERY = 25
# Of queues with so few states so many times as many.
_FEW_CELLS = 1e5
_PATIENT = 3
# An effort at which so many are tried that it is worth it to keep to their direction; what a few
# jobs ask for leaps from price to price.
_MANY, _SEVERAL = 0.1, 10
# By which share better prices prove more than the last ones, for all the time there is, to go on;
# and after which share of it that is looked at: prices get better by leaps.
_WORTH, _LOOK = 3e-4, 0.1
# How often all jobs are placed anew, and how many steps a search has, at an effort of 1.
_ROUNDS = 200
_STEPS = 1_000_000
# A round places all cells of all jobs: not more than this in all rounds, nor in all steps.
_MOST_CELLS = 1.5e8
_SEARCH_CELLS = 3e9


@dataclass(frozen=True, kw_only=True, eq=False)
class QueueSolution:
    """A plan of an instance and what is proven of it.

    Attributes:
        board: Who runs when; jobs that cannot be in time have a later deadline in its instance.
        auction: The prices and their bound.
        late: Rows of jobs that are not in time, none where all are.
        least_late: How many must be late whatever is planned, as is proven.
        proof: The prices that prove that, or of fewer; None where nobody is late.
        total: What the plan counts, with what leaving late jobs out does.
        stopped: What ended the search: `gap`, `effort` or `seconds`.
    """

    board: Board
    auction: Auction
    total: float
    late: IntArray
    least_late: int
    proof: Auction | None
    stopped: str


class Clock:
    """How much time there is, in CPU seconds, from now on."""

    def __init__(self, seconds: float | None) -> None:
        self._seconds = math.inf if seconds is None else seconds
        self._begun = time.process_time()

    def spent(self) -> float:
        """Return which share of the time there is has passed; 0 where there is any amount."""
        return (time.process_time() - self._begun) / self._seconds

    def is_over(self) -> bool:
        """Return whether time is up."""
        return self.spent() > 1.0


class Budget:
    """When to stop: near enough, or out of time."""

    def __init__(self, auction: Auction, gap: float, clock: Clock) -> None:
        self._auction, self._gap, self._clock = auction, gap, clock
        self.spent = clock.spent
        self.stopped = "effort"

    def is_enough(self, total: float) -> bool:
        """Return whether a plan is near enough to the bound, or time is up."""
        if total - self._auction.bound <= self._gap * abs(total):
            self.stopped = "gap"
            return True
        return self.is_over()

    def is_over(self) -> bool:
        """Return whether time is up."""
        if self._clock.is_over():
            self.stopped = "seconds"
            return True
        return False


def solve(
    instance: Instance,
    *,
    gap: float,
    effort: float,
    clock: Clock,
    seed: int,
    starts: FloatArray | None = None,
    prices: Prices | None = None,
    doing: Callable[[str, float], None] = lambda _what, _share: None,
) -> QueueSolution:
    """Plan an instance.

    Args:
        gap: How near to the bound is near enough.
        effort: How long to search, 1 for as long as usual. Counted in steps, so that the same
            seed gives the same plan.
        clock: When the best so far is taken.
        starts: When jobs start in a plan that is known, such as EASY's: no more are late than
            there, where its starts lie on slots.
        prices: Prices to begin with.
        doing: Told what is being done, and how far that is.
    """
    rows = instance.queue.jobs
    cells = float(((rows["end"] - rows["part"] + 1.0) * rows["delays"]).sum())
    # Where a pass takes no time, the last thousandth of the bound is worth some more.
    patient = cells <= _FEW_CELLS
    steady = patient and effort >= _MANY and len(instance) >= _SEVERAL
    auction = Auction(instance, prices, patient=patient, steady=steady)
    budget = Budget(auction, gap, clock)
    if prices is None:
        auction.begin_with(first_prices(instance, budget.is_over))
    board: Board | None = None
    passes = max(round((_PATIENT if patient else 1) * _PASSES * min(effort, 1.0)), _EVERY)
    enough, proven, since = False, auction.bound, budget.spent()
    for number in range(1, passes + 1):
        going = auction.advance(np.inf if board is None else board.total)
        over = budget.is_over()
        if number % _EVERY == 0 or not going or over:
            if not over:
                auction.settle()
            tried = construct(instance, auction.prices)
            board = tried if board is None or tried.total < board.total else board
            enough = budget.is_enough(board.total)
            doing("prices", number / passes)
            # Where time is short, searching with these is worth more than slightly better ones.
            took = budget.spent() - since
            if took > _LOOK:
                going = going and auction.bound - proven >= _WORTH * took * abs(auction.bound)
                proven, since = auction.bound, since + took
        if enough or over or not going:
            break
    if board is None:
        board = construct(instance, auction.prices)
    # A step takes out and puts back about five jobs.
    most = _SEARCH_CELLS / (5.0 * cells / len(instance))
    steps = max(round(min(_STEPS, most) * effort), 1)
    if not budget.is_enough(board.total):
        rounds = max(min(round(_ROUNDS * effort), int(_MOST_CELLS * effort / cells)), 1)
        doing("placing", 0.0)
        board = squeaky_wheel(auction, board, rounds=rounds, seed=seed, is_enough=budget.is_enough)
    if not budget.is_enough(board.total) and len(instance) > 1:
        doing("searching", 0.0)
        board = improve(
            auction,
            board,
            steps=steps,
            seed=seed,
            is_enough=budget.is_enough,
            spent=budget.spent,
        )
    budget.is_enough(board.total)
    board = rebuilt(instance, board.delay, board.placed, auction.prices)
    proof: Auction | None = None
    least = 0
    if board.left_out.size:
        doing("late jobs", 0.0)
        if starts is not None:
            known = as_told(instance, starts, auction.prices)
            board = known if known.left_out.size < board.left_out.size else board
        proof = prove_late(instance, budget.is_over)
        board, least = fewest_late(
            board, auction, proof, steps=steps, seed=seed, is_over=budget.is_over
        )
    late, total = board.left_out, board.total
    if late.size:
        board = place_late(board, late, budget.is_over)
    return QueueSolution(
        board=board,
        auction=auction,
        total=total,
        late=late,
        least_late=least,
        proof=proof if late.size else None,
        stopped=budget.stopped,
    )


def require_options(gap: float, effort: float, seconds: float | None, seed: int) -> None:
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
    if isinstance(seed, bool) or not isinstance(seed, int | np.integer) or not 0 <= seed < 2**64:
        raise InvalidInput(f"a seed is a whole number of at least 0, not {seed!r}")
