"""Paying for machines: reserved ones that are free first, then on demand or spot.

After GAIA (Hanafy et al., *Going Green for Less Green*, 2024), in continuous time.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from lowtide.compiled import compiled
from lowtide.errors import InvalidInput
from lowtide.job import TIME_TOLERANCE_S
from lowtide.signal import FloatArray
from lowtide.simulator.cluster import Cluster, whole_units
from lowtide.simulator.heaps import Rows, due, first_within, make_heap, pop, push, set_leaf
from lowtide.units import format_count
from lowtide.workload import IntArray, Workload

BOUGHT = ("reserved", "on_demand", "spot")
_RESERVED, _ON_DEMAND, _SPOT = range(3)
_FIRST: Any = np.int64(0)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Bought:
    """When jobs start on machines that are bought, and what that costs, in columns.

    Attributes:
        start: When each job starts.
        bought: What it runs on, a place in `BOUGHT`.
        cost: What its own machines cost; nothing for a job on reserved ones.
        reserved_cpus: How many CPUs are reserved, and paid for, used or not.
        reserved_cost: What they cost.
    """

    start: FloatArray
    bought: npt.NDArray[np.int8]
    cost: FloatArray
    reserved_cpus: int
    reserved_cost: float

    @property
    def names(self) -> list[str]:
        """What each job runs on, in words."""
        return [BOUGHT[place] for place in self.bought.tolist()]

    @property
    def on_reserved(self) -> npt.NDArray[np.bool_]:
        """Which jobs run on reserved machines."""
        held: npt.NDArray[np.bool_] = self.bought == _RESERVED
        return held

    @property
    def total(self) -> float:
        """What all machines cost together."""
        return float(self.cost.sum()) + self.reserved_cost


def buy(
    jobs: Workload,
    wished: FloatArray,
    cluster: Cluster,
    *,
    uses_reserved: bool = True,
    uses_spot: bool = False,
    spot_longest_s: float = 7200.0,
) -> Bought:
    """Start jobs on reserved machines as soon as these are free, else when they wish to.

    A job starts on reserved CPUs as soon as all that it needs are free; of several that could,
    the one that arrived first. At the latest it starts at its wished instant, on demand if there
    are no reserved CPUs for it. Capacity on demand and on spot has no end.

    Args:
        wished: When each job starts at the latest, at its arrival or later.
        cluster: How many CPUs are reserved, and what machines cost.
        uses_reserved: Whether reserved CPUs are bought.
        uses_spot: Whether short jobs run on spot, always at their wished instants.

    >>> jobs = Workload(arrival=[0, 0], deadline=9999, work_s=3600, cpus=[4, 2])
    >>> made = buy(jobs, np.array([0.0, 3600.0]), Cluster(nodes=1, cpus_per_node=8,
    ...            reserved_cpus=4))
    >>> made.start.tolist(), made.names, made.reserved_cost
    ([0.0, 3600.0], ['reserved', 'reserved'], 0.19968)
    """
    wished = np.asarray(wished, dtype=np.float64)
    if wished.shape != jobs.arrival.shape:
        raise InvalidInput(
            f"{wished.size} wished instants were given for {format_count(len(jobs), 'job')}"
        )
    good = (wished >= jobs.arrival - TIME_TOLERANCE_S) & np.isfinite(wished)
    if not good.all():
        row = int(np.argmin(good))
        raise InvalidInput(
            f"job {jobs.id[row]} (row {row + 1}) wishes to start at {wished[row]:g}, and arrives "
            f"at {jobs.arrival[row]:g}: a job starts at its arrival or later"
        )
    start = np.maximum(wished, jobs.arrival)
    run_s = jobs.run_s
    bought = np.full(len(jobs), _ON_DEMAND, dtype=np.int8)
    if uses_spot:
        bought[run_s <= spot_longest_s] = _SPOT
    reserved_cpus = cluster.reserved_cpus if uses_reserved else 0
    if reserved_cpus:
        rows = np.flatnonzero(bought == _ON_DEMAND)
        # In whole small units, so that parts of CPUs add up to no more than the whole.
        begun = start_on_reserved(
            jobs.arrival[rows],
            start[rows],
            run_s[rows],
            whole_units(jobs.cpus[rows]).astype(np.float64),
            float(whole_units(np.full(1, reserved_cpus))[0]),
        )
        taken = np.isfinite(begun)
        start[rows[taken]] = begun[taken]
        bought[rows[taken]] = _RESERVED
    prices = np.array([0.0, cluster.on_demand_price, cluster.spot_price])
    paid_s = float(np.max(start + run_s) - jobs.arrival.min()) if len(jobs) else 0.0
    return Bought(
        start=start,
        bought=bought,
        cost=jobs.cpus * run_s / 3600 * prices[bought],
        reserved_cpus=reserved_cpus,
        reserved_cost=reserved_cpus * cluster.reserved_price * paid_s / 3600,
    )


def start_on_reserved(
    arrival: FloatArray,
    wished: FloatArray,
    run_s: FloatArray,
    cpus: FloatArray,
    reserved: float,
    *,
    eager: npt.NDArray[np.bool_] | None = None,
    lag_s: float = 0.0,
) -> FloatArray:
    """Return when jobs start on reserved CPUs, NaN for those that do not find any in time.

    Of several that could, the one that arrived first starts first; one that fits does not wait
    for one that does not.

    Args:
        wished: When it starts at the latest, at its arrival or later.
        cpus: How many CPUs it needs.
        eager: Which of them take reserved CPUs as soon as they are free, rather than at their
            wished instants alone; None for all.
        lag_s: How long after its end a job still holds its CPUs.

    >>> times = np.array([0.0, 0.0]), np.array([5.0, 20.0]), np.array([10.0, 10.0])
    >>> start_on_reserved(*times, np.ones(2), 1.0).tolist()
    [0.0, 10.0]
    """
    count = arrival.size
    begun = np.full(count, np.nan)
    size = 1 << max(count - 1, 0).bit_length()
    _start_on_reserved(
        np.append(arrival, np.inf),
        np.append(wished, np.inf),
        np.append(np.argsort(wished, kind="stable"), count),
        run_s,
        cpus[:, None],
        np.full(1, reserved),
        np.ones(count, dtype=np.bool_) if eager is None else eager,
        float(lag_s),
        np.full((2 * size, 1), np.inf),
        make_heap(count),
        begun,
    )
    return begun


@compiled()
def _start_on_reserved(
    arrival: FloatArray,
    wished: FloatArray,
    by_wish: IntArray,
    run_s: FloatArray,
    cpus: FloatArray,
    free: FloatArray,
    eager: npt.NDArray[np.bool_],
    lag_s: float,
    waiting: FloatArray,
    ends: Rows,
    begun: FloatArray,
) -> None:
    """Start jobs on reserved CPUs.

    Args:
        arrival: When each arrives, rising; and one more that never does.
        wished: When it starts at the latest; likewise.
        by_wish: The jobs in the order of that, and the one that never does.
        cpus: How many CPUs it needs; a single column.
        free: How many are reserved; a single number.
        eager: Which of them take CPUs before their wished instants.
        lag_s: How long after its end a job still holds its CPUs.
        waiting: A tree of what those need who wait, all infinite.
        begun: When each starts; left alone for those who do not.
    """
    arrived = leaving = _FIRST
    size = waiting.shape[0] // 2
    nobody = np.full(1, np.inf)
    while leaving < run_s.size:
        now = min(min(due(ends), arrival[arrived]), wished[by_wish[leaving]])
        while due(ends) <= now:
            free[0] += cpus[pop(ends), 0]
        while arrival[arrived] <= now:
            if eager[arrived]:
                set_leaf(waiting, _FIRST, size, arrived, cpus[arrived])
            arrived += 1
        # Others join at their wished instants, at which they also leave.
        place = leaving
        while wished[by_wish[place]] <= now:
            if not eager[by_wish[place]]:
                set_leaf(waiting, _FIRST, size, by_wish[place], cpus[by_wish[place]])
            place += 1
        while True:
            job = first_within(waiting, _FIRST, size, free, _FIRST)
            if job < 0:
                break
            begun[job] = now
            free[0] -= cpus[job, 0]
            set_leaf(waiting, _FIRST, size, job, nobody)
            push(ends, now + run_s[job] + lag_s, job)
        while leaving < place:
            set_leaf(waiting, _FIRST, size, by_wish[leaving], nobody)
            leaving += 1
