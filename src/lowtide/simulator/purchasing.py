"""Paying for machines: reserved ones that are free first, then on demand or spot.

After GAIA (Hanafy et al., *Going Green for Less Green*, 2024), in continuous time.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from numba import njit

from lowtide.errors import InvalidInput
from lowtide.job import TIME_TOLERANCE_S
from lowtide.signal import FloatArray
from lowtide.simulator.cluster import Cluster, whole_units
from lowtide.simulator.heaps import Rows, due, make_heap, pop, push
from lowtide.simulator.trees import first_within, set_leaf
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
        reserved_cost: What the reserved machines cost, used or not.
    """

    start: FloatArray
    bought: npt.NDArray[np.int8]
    cost: FloatArray
    reserved_cost: float

    @property
    def names(self) -> list[str]:
        """What each job runs on, in words."""
        return [BOUGHT[place] for place in self.bought.tolist()]

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
        jobs: What is to be run.
        wished: When each job starts at the latest, at its arrival or later.
        cluster: How many CPUs are reserved, and what machines cost.
        uses_reserved: Whether reserved CPUs are bought.
        uses_spot: Whether short jobs run on spot, always at their wished instants.
        spot_longest_s: How long they may run.

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
    run_s, cpus = jobs.run_s, whole_units(jobs.cpus).astype(np.float64)
    bought = np.full(len(jobs), _ON_DEMAND, dtype=np.int8)
    if uses_spot:
        bought[run_s <= spot_longest_s] = _SPOT
    if uses_reserved and cluster.reserved_cpus:
        rows = np.flatnonzero(bought == _ON_DEMAND)
        begun = np.full(rows.size, np.nan)
        size = 1 << max(rows.size - 1, 0).bit_length()
        _start_on_reserved(
            np.append(jobs.arrival[rows], np.inf),
            np.append(start[rows], np.inf),
            np.append(np.argsort(start[rows], kind="stable"), rows.size),
            run_s[rows],
            cpus[rows, None],
            whole_units(np.full(1, cluster.reserved_cpus)).astype(np.float64),
            np.full((2 * size, 1), np.inf),
            make_heap(rows.size),
            begun,
        )
        taken = np.isfinite(begun)
        start[rows[taken]] = begun[taken]
        bought[rows[taken]] = _RESERVED
    prices = np.array([0.0, cluster.on_demand_price, cluster.spot_price])
    reserved_cost = 0.0
    if uses_reserved and len(jobs):
        paid_s = float(np.max(start + run_s)) - float(jobs.arrival.min())
        reserved_cost = cluster.reserved_cpus * cluster.reserved_price * paid_s / 3600
    return Bought(
        start=start,
        bought=bought,
        cost=jobs.cpus * run_s / 3600 * prices[bought],
        reserved_cost=reserved_cost,
    )


@njit(cache=True, nogil=True, error_model="numpy")
def _start_on_reserved(
    arrival: FloatArray,
    wished: FloatArray,
    by_wish: IntArray,
    run_s: FloatArray,
    cpus: FloatArray,
    free: FloatArray,
    waiting: FloatArray,
    ends: Rows,
    begun: FloatArray,
) -> None:
    """Start jobs on reserved CPUs.

    Args:
        arrival: When each arrives, rising; and one more that never does.
        wished: When it starts at the latest; likewise.
        by_wish: The jobs in the order of that, and the one that never does.
        run_s: How long it runs.
        cpus: How many CPUs it needs, in whole small units; a single column.
        free: How many are reserved, likewise; a single number.
        waiting: A tree of what those need who wait, all infinite.
        ends: An empty heap of jobs.
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
            set_leaf(waiting, _FIRST, size, arrived, cpus[arrived])
            arrived += 1
        while True:
            job = first_within(waiting, _FIRST, size, free, _FIRST)
            if job < 0:
                break
            begun[job] = now
            free[0] -= cpus[job, 0]
            set_leaf(waiting, _FIRST, size, job, nobody)
            push(ends, now + run_s[job], job)
        while wished[by_wish[leaving]] <= now:
            set_leaf(waiting, _FIRST, size, by_wish[leaving], nobody)
            leaving += 1
