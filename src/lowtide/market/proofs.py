"""What is proven of a plan: of all that it counts, and of emissions or cost alone.

A plan pays for waiting too, so that what is proven of all that it counts says little of its grams:
those have prices of their own. Where jobs are late the proof is of all plans in which the same jobs
are done no later than in this one, and everybody else is in time.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from lowtide.job import TIME_TOLERANCE_S
from lowtide.market.certificate import certify
from lowtide.market.instance import Instance
from lowtide.market.lateness import remade
from lowtide.market.layout import cells_of
from lowtide.market.prices import Auction, Prices
from lowtide.signal import FloatArray
from lowtide.workload import IntArray

# So many states of jobs are gone through for prices, in so many passes at least and at most.
_CELLS = 1e8
_FEWEST, _MOST = 40, 300
# A bound that is as near as this to what the plan comes to is near enough.
_NEAR = 1e-4


@dataclass(frozen=True, kw_only=True, eq=False)
class Proof:
    """Prices, and what they prove.

    Attributes:
        instance: What they are prices of.
        prices: The prices.
        bound: What no plan of the instance can come to less than.
    """

    instance: Instance
    prices: Prices
    bound: float

    @classmethod
    def of(cls, auction: Auction) -> Proof:
        """Return what an auction has proven."""
        return cls(instance=auction.instance, prices=auction.prices, bound=auction.bound)

    def certify(self) -> float:
        """Compute the bound again, by other code."""
        return certify(self.instance, self.prices)


def prove(
    instance: Instance, prices: Prices | None, total: float, is_over: Callable[[], bool]
) -> Proof:
    """Return what the best prices that are found prove of an instance.

    Args:
        prices: Where to begin.
        total: What a plan of it comes to.
        is_over: Whether time is up; one pass is made all the same.
    """
    auction = Auction(instance, None if prices is None else spread(prices, instance))
    passes = int(np.clip(_CELLS / float(cells_of(instance.queue).sum()), _FEWEST, _MOST))
    for _ in range(passes):
        going = auction.advance(total)
        if not going or is_over() or total - auction.bound <= _NEAR * abs(total):
            break
    else:
        auction.settle()
    return Proof.of(auction)


def without_waiting(instance: Instance) -> Instance:
    """Return an instance of one place in which waiting counts nothing, and all grams alike."""
    rows = instance.queue.jobs.copy()
    rows["wait"] = rows["already"] = 0.0
    rows["weight"] = 1.0
    queue = instance.queue._replace(jobs=rows)
    return replace(instance, queue=queue, wait=np.zeros(len(instance)))


def waits(instance: Instance) -> bool:
    """Return whether anything counts but what jobs emit or cost."""
    rows = instance.queue.jobs
    return bool(rows["wait"].any() or (rows["weight"] != 1.0).any())


def as_late(instance: Instance, late: IntArray, end: FloatArray) -> Instance:
    """Return an instance in which some jobs may be as late as they are in a plan, and no later.

    Args:
        late: Which jobs.
        end: When each job is done in the plan.
    """
    deadline = instance.jobs.deadline.copy()
    deadline[late] = end[late] + TIME_TOLERANCE_S / 2
    return remade(instance, deadline, float(deadline.max()))


def spread(prices: Prices, instance: Instance) -> Prices:
    """Return prices on the slots of an instance that begins when theirs does, 0 beyond them."""
    if prices.rent.shape == instance.capacity.shape:
        return prices
    found = Prices.nothing(instance)
    count = min(prices.rent.shape[-1], instance.slots)
    found.rent[:, :count] = prices.rent[:, :count]
    found.power[..., :count] = prices.power[..., :count]
    return found
