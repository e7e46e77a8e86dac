"""Plans: jobs put one after the other where there is room, at what it is worth.

Who comes first matters: those with little time to spare for how much they hold, then those that
got a bad deal the last time (squeaky wheels). Where each job matters, a few are taken out around a
moment and put back another way (ruin and recreate).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from lowtide.job import TIME_TOLERANCE_S
from lowtide.market.instance import Instance
from lowtide.market.kernels import TOLD, Room, Tariff
from lowtide.market.placing_kernels import Guard
from lowtide.market.prices import Auction, Prices, Search, run
from lowtide.precedence import in_order
from lowtide.signal import FloatArray
from lowtide.workload import IntArray

BoolArray = npt.NDArray[np.bool_]

# Search steps between looks at the clock.
_STRIDE = 2000
# Steps between changes of prices by chance.
_SHAKEN = 50
# How hot a search is at first, and in the end: shares of a job's mean. With fewer steps than so
# many for each job it begins cooler: it would not cool again.
_HOT, _COOL = 0.1, 0.001
_LONG = 1000
# Sums of what is left are rounded by no more than this.
_SPARE = 1e-6


@dataclass(kw_only=True, eq=False)
class Board:
    """Who runs when, and what room is left.

    Attributes:
        instance: What is planned.
        delay: The delay of every part.
        placed: Which jobs have a place.
        cost: What each counts: what it comes to, or what leaving it out does.
        room: What is left.
    """

    instance: Instance
    delay: IntArray
    placed: BoolArray
    cost: FloatArray
    room: Room

    @classmethod
    def empty(cls, instance: Instance) -> Board:
        """Return a board without any job."""
        return cls(
            instance=instance,
            delay=instance.new_delay(),
            placed=np.zeros(instance.queue.jobs.size, dtype=np.bool_),
            cost=instance.leaving(),
            room=instance.full_room(),
        )

    @property
    def plan(self) -> tuple[IntArray, BoolArray, FloatArray]:
        """Delays, who is placed, and costs, as the kernel takes them."""
        return self.delay, self.placed, self.cost

    @property
    def left_out(self) -> IntArray:
        """Jobs that have no place."""
        return np.flatnonzero(~np.logical_or.reduceat(self.placed, self.instance.queue.ways[:-1]))

    @property
    def total(self) -> float:
        """What all count."""
        return float(self.cost.sum())

    def copy(self) -> Board:
        """Return the same, to be changed."""
        return Board(
            instance=self.instance,
            delay=self.delay.copy(),
            placed=self.placed.copy(),
            cost=self.cost.copy(),
            room=Room(self.room.free.copy(), self.room.kw.copy()),
        )

    @property
    def fits(self) -> bool:
        """Whether nothing is exceeded; sums that were rounded may say so by a little."""
        return bool(self.room.free.min() > -_SPARE and self.room.kw.min() > -_SPARE)

    def as_it_says(self, tariff: Tariff) -> Board:
        """Take the room that the schedules of those that are placed need, and say their costs."""
        everybody = np.arange(len(self.instance))
        run(self.instance, self.room, self.plan, tariff, how=TOLD, order=everybody)
        return self

    def insert(self, order: IntArray, tariff: Tariff) -> Board:
        """Put jobs where there is room, one after the other."""
        run(self.instance, self.room, self.plan, tariff, order=order)
        return self


def urgency(instance: Instance) -> FloatArray:
    """Return who is to be placed first: the lower, the sooner."""
    rows, parts = instance.queue.jobs, instance.queue.parts
    length = parts["at"][rows["end"]] - rows["begin"]
    share = (instance.queue.need / instance.capacity.max(axis=1)).max(axis=1)
    urgent: FloatArray = (rows["delays"] - 1 + 0.1) / np.maximum(share * length, 1e-300)
    # Who has several ways to choose from is as urgent as the best of them.
    return np.maximum.reduceat(urgent, instance.queue.ways[:-1])


def construct(instance: Instance, prices: Prices) -> Board:
    """Place all jobs, the most urgent first."""
    order = in_order(urgency(instance), instance.links)
    return Board.empty(instance).insert(order, prices.tariff(instance))


def as_told(instance: Instance, starts: FloatArray, prices: Prices) -> Board:
    """Return a board with jobs that run through from their starts on, as far as there is room.

    Where a start lies on no slot, or there is no room in the slots that all of them touch, jobs
    are placed as early as there is some, in the order of those starts.

    Args:
        starts: When each starts; one that would be late is left out.
    """
    rows = instance.queue.jobs
    after = (starts - instance.base) / instance.step_s
    whole = np.round(after)
    placed = (whole >= 0) & (whole < rows["delays"])
    delay = np.repeat(whole.astype(np.int64), rows["end"] - rows["part"] + 1)
    board = rebuilt(instance, delay, placed, prices)
    on_slots = np.all(np.abs(after - whole)[placed] * instance.step_s < TIME_TOLERANCE_S)
    if on_slots and board.fits:
        return board
    hasty = rows.copy()
    hasty["weight"], hasty["wait"] = 0.0, 1.0
    soon = replace(instance, queue=instance.queue._replace(jobs=hasty))
    nothing = prices.tariff(instance, 0.0)
    found = Board.empty(soon).insert(in_order(starts, instance.links), nothing)
    return rebuilt(instance, found.delay, found.placed, prices)


def squeaky_wheel(
    auction: Auction,
    board: Board,
    *,
    rounds: int,
    seed: int,
    is_enough: Callable[[float], bool],
) -> Board:
    """Place all jobs again and again, those with a bad deal the sooner, and return the best.

    Args:
        board: The best so far.
        is_enough: Told what the best costs after each round; whether to stop.
    """
    instance = auction.instance
    auction.price(auction.prices)
    alone = instance.by_job(auction.cost)
    tariff = auction.prices.tariff(instance)
    key, push = np.log(urgency(instance)), np.zeros(len(instance))
    rng = np.random.default_rng(seed)
    for _ in range(rounds):
        tried = Board.empty(instance).insert(in_order(key - push, instance.links), tariff)
        if tried.total < board.total - 1e-9:
            board = tried
        worse = np.maximum(instance.by_job(tried.cost) - alone, 0.0) / np.maximum(alone, 1e-9)
        worse[tried.left_out] = 5.0
        push = 0.9 * push + 2.0 * worse * rng.random(len(instance))
        if is_enough(board.total):
            break
    return board


def improve(
    auction: Auction,
    board: Board,
    *,
    steps: int,
    seed: int,
    is_enough: Callable[[float], bool],
    spent: Callable[[], float] = lambda: 0.0,
    heat: float | None = None,
    guard: Guard | None = None,
    shaken: bool = False,
) -> Board:
    """Search around a plan by ruin and recreate, and return the best that was found.

    Args:
        heat: By how much worse a plan may be that is kept, about; by default a share of what jobs
            cost that falls with time.
        guard: What users may come to; by default anything.
        shaken: Whether prices are changed by chance now and then, so that a job is put wherever
            there is room: where nothing but who is placed counts.
        is_enough: Told what the best costs now and then; whether to stop.
        spent: Which share of the time there is has passed: who is stopped by the clock is to have
            cooled by then.
    """
    instance = auction.instance
    now = board.copy()
    best = (now.delay.copy(), now.placed.copy(), np.array([now.total]))
    chance = np.array([seed], dtype=np.uint64)
    mean = float(np.abs(now.cost[now.placed]).mean()) if now.placed.any() else 1.0
    hot = max(_HOT * min(steps / (_LONG * len(instance)), 1.0), 2 * _COOL)
    done, stride, prices, begun = 0, _STRIDE, auction.prices, spent()
    rng = np.random.default_rng(seed)
    while done < steps and not is_enough(float(best[2][0])):
        if shaken:
            stride = _SHAKEN
            drawn = rng.random((2, *prices.rent.shape))
            own = auction.prices.rent + drawn[0] * auction.prices.rent.mean()
            prices = replace(prices, rent=own * drawn[1] + 1e-6 * drawn[0])
        some = min(stride, steps - done)
        # From where the search began to when time is up.
        cooled = max(done / steps, (spent() - begun) / max(1.0 - begun, 1e-9))
        now_hot = mean * hot * (_COOL / hot) ** cooled if heat is None else heat
        search = Search(some, now_hot, chance, best)
        search = search if guard is None else search._replace(guard=guard)
        run(instance, now.room, now.plan, prices, search=search)
        done += some
    return rebuilt(instance, best[0], best[1], auction.prices)


def rebuilt(instance: Instance, delay: IntArray, placed: BoolArray, prices: Prices) -> Board:
    """Return a board from schedules alone: sums that were changed step by step are rounded."""
    board = Board.empty(instance)
    board.delay[:], board.placed[:] = delay, placed
    return board.as_it_says(prices.tariff(instance))
