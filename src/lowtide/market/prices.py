"""What a slot on the machines is worth: prices, and the bound that they prove.

For any prices of 0 or more, no plan costs less than all jobs would, each planned by itself with
prices to pay, less what the prices make of all that there is (Lagrangian relaxation). Prices are
raised where too much is asked for and lowered where something is left (a subgradient), with steps
as Polyak chose them, towards a little more than the best bound so far.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, TypeAlias, cast

import numpy as np
import numpy.typing as npt

from lowtide.accounting import Stretches
from lowtide.errors import InvalidInput
from lowtide.market.instance import Instance
from lowtide.market.kernels import ALONE, FITTING, NEAR, Room, Tariff
from lowtide.market.placing_kernels import Guard, Taken, place
from lowtide.signal import FloatArray
from lowtide.workload import IntArray

# Delays of all parts, which jobs are placed, and what each costs.
Plan: TypeAlias = tuple[IntArray, npt.NDArray[np.bool_], FloatArray]

# How far above the best bound is aimed.
_AIM = 0.03
# After so many passes without a better bound, steps are shortened by so much.
_PATIENCE = 12
_SHORTER = 0.6
# Steps that have become as short as this are no use.
_SHORTEST = 2e-3
# Where prices are near the best to begin with: how far above the bound is aimed, and the patience.
_NEAR_AIM = 0.0015
_NEAR_PATIENCE = 6
# How much of each direction is that of the one before, there and where many prices are tried.
_AS_BEFORE = 0.7
# Prices swing around what they should be: how much the newest counts in their mean.
_NEWEST = 0.1


# Jobs that a search takes out at once, and how often all parts of so many can be remembered.
_AT_ONCE = 8
_REMEMBERED = 4
# Shares of the prices that it puts them back with.
_SHARES = (0.0, 0.35, 0.7, 1.0)


@dataclass(frozen=True, kw_only=True, eq=False)
class Prices:
    """What each slot counts.

    Attributes:
        rent: Of a unit of each resource, in each slot.
        power: Of a kilowatt under the power cap, in each slot.
        bonds: Of each link of two jobs and each slot: of having started by then though the one that
            is waited for is not done; None for nothing.
    """

    rent: FloatArray
    power: FloatArray
    bonds: FloatArray | None = None

    def __post_init__(self) -> None:
        for each in (self.rent, self.power, np.zeros(0) if self.bonds is None else self.bonds):
            if not (np.isfinite(each).all() and (each >= 0).all()):
                raise InvalidInput(
                    "prices prove something only where they are known and not below 0"
                )

    def worth(self, instance: Instance) -> float:
        """Return what all that can be held comes to."""
        worth = float((self.rent * instance.usable).sum())
        if instance.capped:
            capped = np.isfinite(instance.cap_kw[0])
            worth += float((self.power[capped] * instance.cap_kw[0][capped]).sum())
        return worth

    def bonds_of(self, instance: Instance) -> FloatArray:
        """Return the prices of links, one for each that there is."""
        if self.bonds is None:
            return np.zeros((instance.links.gap_s.size, instance.slots))
        return self.bonds

    @classmethod
    def nothing(cls, instance: Instance) -> Prices:
        """Return prices at which nothing of an instance costs anything."""
        return cls(rent=np.zeros(instance.capacity.shape), power=np.zeros(instance.cap_kw[0].shape))

    def towards(self, other: Prices, share: float) -> Prices:
        """Return prices between these and others."""
        bonds = self.bonds
        if bonds is not None and other.bonds is not None:
            bonds = bonds + share * (other.bonds - bonds)
        return Prices(
            rent=self.rent + share * (other.rent - self.rent),
            power=self.power + share * (other.power - self.power),
            bonds=other.bonds if bonds is None else bonds,
        )

    def evened(self, instance: Instance) -> Prices:
        """Return prices that are the same within each step of the signal."""
        parts = round(instance.signal.step_s / instance.step_s)
        first = round((instance.origin - instance.signal.start) / instance.step_s) % parts
        step = (np.arange(instance.slots) + first) // parts
        count = np.bincount(step)

        def even(values: FloatArray) -> FloatArray:
            mean = np.array([np.bincount(step, weights=row) for row in np.atleast_2d(values)])
            return (mean / count)[:, step].reshape(values.shape)

        return Prices(rent=even(self.rent), power=even(self.power))

    def tariff(self, instance: Instance, share: float = 1.0) -> Tariff:
        """Return what time costs under a share of the prices."""
        bonds = share * self.bonds_of(instance)
        return instance.tariff(share * self.rent, share * self.power, bonds)


_ANYTHING = Guard(np.zeros(0, dtype=np.int64), *(np.zeros(0) for _ in range(4)))


class Search(NamedTuple):
    """How to search around a plan.

    Attributes:
        steps: How often to take some jobs out and put them back.
        heat: By how much worse a plan may be that is kept, about.
        chance: What is drawn from.
        best: The best so far: delays, who is placed, and the total.
        guard: What users may come to; by default anything.
    """

    steps: int
    heat: float
    chance: npt.NDArray[np.uint64]
    best: Plan
    guard: Guard = _ANYTHING


def run(
    instance: Instance,
    room: Room,
    plan: Plan,
    prices: Tariff | Prices,
    *,
    how: Any = FITTING,
    order: IntArray | None = None,
    search: Search | None = None,
    notes: FloatArray | None = None,
    reduced: FloatArray | None = None,
) -> None:
    """Go through jobs with the kernel; what it is told to change is changed.

    Args:
        plan: Delays, who is placed, and costs.
        prices: What time costs; to search with shares of them, the prices themselves.
        how: As the kernel has it: alone, fitting or told.
        order: Which jobs, the first first; by default none.
        notes: Where what is drawn and held is noted.
        reduced: Where it is told what each costs with prices.
    """
    if isinstance(prices, Prices):
        shares = tuple(prices.tariff(instance, share) for share in _SHARES)
    else:
        shares = (prices,) * len(_SHARES)
    rows, parts = instance.queue.jobs, instance.queue.parts
    sizes = rows["end"] - rows["part"]
    largest = int(sizes.max()) + 1
    totals = np.zeros(1) if reduced is None else reduced
    asked = search or Search(0, 0.0, np.zeros(1, dtype=np.uint64), (plan[0], plan[1], totals))
    remembered = max(int(sizes.mean() * _AT_ONCE * _REMEMBERED), largest) if search else 1
    taken = Taken(
        job=np.zeros(_AT_ONCE, dtype=np.int64),
        way=np.zeros(_AT_ONCE, dtype=np.int64),
        cost=np.zeros(_AT_ONCE),
        key=np.zeros(_AT_ONCE),
        delay=np.empty(remembered, dtype=np.int64),
        mark=np.full(len(instance) if search else 1, -1, dtype=np.int64),
    )
    place(
        how,
        np.ascontiguousarray(np.empty(0) if order is None else order, dtype=np.int64),
        asked.steps,
        asked.heat,
        asked.chance,
        instance.queue,
        cast(Any, shares),
        room,
        instance.desk,
        plan,
        asked.best,
        taken,
        asked.guard,
        instance.new_notes() if notes is None else notes,
        int((np.ceil(parts["at"][rows["end"]]) + rows["delays"]).max()),
    )


class Others(Protocol):
    """Jobs that are planned in another way than the kernel's, at the same prices."""

    @property
    def rows_beside(self) -> IntArray:
        """Which rows of the instance the kernel plans."""
        ...

    def least(self, prices: Prices, notes: FloatArray) -> float:
        """Return the least that they count at prices, and note what they draw and hold then."""
        ...


class Auction:
    """Prices of an instance, and how they are found.

    Steps aim at a share `aim` above the best bound, or above a `unit` where it is less than that.
    Who is `patient` tries about three times as many prices, and comes nearer to the best; who is
    `steady` keeps to the direction of the last steps, which is worth it where many are tried.
    `others` are planned beside what the kernel plans.

    Attributes:
        instance: What is planned.
        bound: The best bound so far.
        prices: The prices that prove it.
        passes: How often all jobs were planned.
        cost: What each job counted at the last prices, without them.
        reduced: What each did with them.
    """

    def __init__(
        self,
        instance: Instance,
        prices: Prices | None = None,
        *,
        aim: float = _AIM,
        unit: float = 0.0,
        patient: bool = False,
        steady: bool = False,
        others: Others | None = None,
    ) -> None:
        self.instance = instance
        self._others = others
        self._aim, self._unit = aim, unit
        self._patience, self._shortest = (30, 1e-4) if patient else (_PATIENCE, _SHORTEST)
        self.bound = -np.inf
        self.prices = prices or Prices.nothing(instance)
        self.passes = 0
        self.cost = np.zeros(instance.queue.jobs.size)
        self.reduced = np.zeros(len(instance))
        self._room = instance.full_room()
        self._plan = (instance.new_delay(), np.zeros(self.cost.size, dtype=np.bool_), self.cost)
        self._order = np.arange(len(instance)) if others is None else others.rows_beside
        self._notes = instance.new_notes()
        self._sites = self._notes.shape[0] - len(instance.resources)
        # Resources come in units of all sizes: what is scarce is told as a share of all.
        self._scale = np.maximum(instance.capacity.max(axis=1), 1e-300)
        caps = instance.cap_kw[0]
        self._kw = max(float(caps[np.isfinite(caps)].max()), 1e-300) if instance.capped else 1.0
        # A link counts as much as the job that waits holds of all that there is.
        held = (instance.queue.need / self._scale).max(axis=1)[instance.queue.ways[:-1]]
        self._share = held[instance.links.after][:, None]
        self._step, self._stale = 1.0, 0
        self._next = self.prices
        self._mean: Prices | None = None
        # Prices of links come to what they should be sooner without.
        self._as_before = _AS_BEFORE if steady and not instance.links.before.size else 0.0
        self._last: tuple[FloatArray, FloatArray, FloatArray] | None = None

    def begin_with(self, prices: Prices | None) -> None:
        """Begin with prices that are near the best ones; None for those there are."""
        if prices is not None:
            self.prices = self._next = prices
            self._aim, self._patience = min(self._aim, _NEAR_AIM), _NEAR_PATIENCE
            self._as_before = _AS_BEFORE

    def settle(self) -> None:
        """Try the mean of the last prices, which is mostly better than any of them."""
        if self._mean is not None:
            self.price(self._mean)

    def schedules(self) -> Stretches:
        """Return how each job would run by itself at the last prices; none is left out."""
        return self.instance.stretches(self._plan[0], np.ones(self.cost.size, dtype=np.bool_))

    @property
    def is_over(self) -> bool:
        """Whether steps have become too short to be of use."""
        return self._step < self._shortest

    def price(self, prices: Prices) -> float:
        """Plan every job under prices, and return the bound that they prove."""
        self._notes[:] = 0.0
        run(
            self.instance,
            self._room,
            self._plan,
            prices.tariff(self.instance),
            how=ALONE,
            order=self._order,
            notes=self._notes,
            reduced=self.reduced,
        )
        self.passes += 1
        bound = float(self.reduced.sum()) - prices.worth(self.instance)
        if self._others is not None:
            bound += self._others.least(prices, self._notes)
        if bound > self.bound:
            self.bound, self.prices = bound, prices
        return bound

    def advance(self, ceiling: float = np.inf) -> bool:
        """Try one more set of prices; return whether there is another to try.

        Args:
            ceiling: What the best plan costs.
        """
        before, prices = self.bound, self._next
        bound = self.price(prices)
        self._mean = prices if self._mean is None else self._mean.towards(prices, _NEWEST)
        better = self.bound > before + 1e-9 * abs(self.bound)
        self._stale = 0 if better else self._stale + 1
        if self._stale >= self._patience:
            self._step, self._stale = self._step * _SHORTER, 0
            if self._as_before:
                self.settle()
            self._next, self._last = self.prices, None
            return not self.is_over
        over, above, early = self._directions(prices)
        steepness = sum(float((each * each).sum()) for each in (over, above, early))
        if steepness < 1e-14:
            self._step = 0.0
            return False
        scale = max(abs(self.bound), self._unit, 1e-6 * float(np.abs(self.cost).sum()), 1e-12)
        aim = min(ceiling, self.bound + self._aim * scale)
        by = self._step * max(aim - bound, 1e-6 * scale) / steepness
        bonds = prices.bonds_of(self.instance)
        self._next = Prices(
            rent=np.maximum(prices.rent + by * over / self._scale[:, None], 0.0),
            power=np.maximum(prices.power + by * above / self._kw, 0.0),
            bonds=np.maximum(bonds + by * early * self._share, 0.0),
        )
        return True

    def _directions(self, prices: Prices) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Return how much more is asked for than there is: of resources, power and links.

        What was asked for before counts too, so that prices do not go to and fro; what is cheap
        as nothing gets no cheaper.
        """
        over = np.cumsum(self._notes[self._sites :], axis=1)[:, :-2] - self.instance.usable
        over /= self._scale[:, None]
        above = np.zeros(prices.power.shape)
        if self.instance.capped:
            drawn = np.cumsum(self._notes[: self._sites], axis=1)[:, :-2].reshape(above.shape)
            above = (drawn - self.instance.cap_kw[0]) / self._kw
        early = self._early() * self._share
        if self._last is not None and self._as_before:
            for each, last in zip((over, above, early), self._last, strict=True):
                each += self._as_before * last
        for each, price in (
            (over, prices.rent),
            (above, prices.power),
            (early, prices.bonds_of(self.instance)),
        ):
            each[(price <= 0) & (each < 0)] = 0.0
        self._last = (over, above, early)
        return over, above, early

    def _early(self) -> FloatArray:
        """Return of each link and slot whether one has started by then (1), or the other is done.

        0 where both are, or neither: who is left out is as good as done, and starts never.
        """
        instance, links = self.instance, self.instance.links
        if not links.before.size:
            return np.zeros((0, instance.slots))
        delay, placed, _ = self._plan
        start, end = instance.begins_and_ends(delay, placed)
        done = np.nan_to_num(end[links.before] + links.gap_s / instance.step_s, nan=-1.0)
        begun = np.nan_to_num(start[links.after], nan=np.inf)
        slots = np.arange(instance.slots) + 1 - NEAR
        return np.subtract(begun[:, None] < slots, done[:, None] < slots, dtype=np.float64)
