"""A queue as a mixed-integer programme, for HiGHS: what the planner is held against.

Every job is a network: a variable for each part of its work and each delay, for each start, each
stop and each slot of waiting in between. A job's own polytope has whole corners, so the linear
relaxation is as high as the best prices can prove.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import numpy as np
from scipy.optimize import LinearConstraint, milp
from scipy.sparse import coo_array

from lowtide.market.instance import Instance


class Solved(NamedTuple):
    """What HiGHS found: the best plan, what it proves, and the linear relaxation."""

    best: float
    proven: float
    relaxed: float


class _Model:
    """Columns with their costs, and entries of rows."""

    def __init__(self, instance: Instance) -> None:
        self.instance = instance
        self.costs: list[float] = []
        self.rows: list[int] = []
        self.columns: list[int] = []
        self.values: list[float] = []
        # Capacity first, then what is to be in balance.
        self.low = [-np.inf] * instance.capacity.size
        self.high = instance.capacity.ravel().tolist()

    def column(self, cost: float, use: Iterable[tuple[int, float]] = ()) -> int:
        self.costs.append(cost)
        for row, amount in use:
            self.entry(row, len(self.costs) - 1, amount)
        return len(self.costs) - 1

    def entry(self, row: int, column: int, value: float) -> None:
        self.rows.append(row)
        self.columns.append(column)
        self.values.append(value)

    def row(self, right: float = 0.0) -> int:
        self.low.append(right)
        self.high.append(right)
        return len(self.low) - 1

    def spent(self, kw: float, begin: float, end: float) -> float:
        places = np.arange(self.instance.energy.size)
        low, high = np.interp([begin, end], places, self.instance.energy)
        return float(kw * (high - low))

    def held(self, job: int, begin: float, end: float) -> Iterator[tuple[int, float]]:
        slots = self.instance.slots
        for slot in range(int(begin + 1e-7), int(np.ceil(end - 1e-7))):
            share = min(end, slot + 1.0) - max(begin, float(slot))
            for m, amount in enumerate(self.instance.queue.need[job].tolist()):
                if amount and share > 1e-9:
                    yield m * slots + slot, amount * share

    def legs(self, first: int, last: int, begin: float) -> float:
        total, legs = 0.0, self.instance.queue.legs
        for leg in legs[first:last]:
            total += self.spent(float(leg["kw"]), begin, begin + float(leg["lasts"]))
            begin += float(leg["lasts"])
        return total

    def add(self, job: int) -> None:
        """Add the network of a job."""
        row, parts = self.instance.queue.jobs[job], self.instance.queue.parts
        own = parts[row["part"] : row["end"] + 1]
        shift, delays = float(row["first"]), int(row["delays"])
        gap = max(int(np.ceil(row["restart_t"] + row["stop_t"] - 1e-7)), 1)
        once = self.row(1.0)
        self.entry(once, self.column(float(row["leave"])), 1.0)
        before: list[int] = []
        for k in range(own.size - 1):
            at, until = shift + float(own["at"][k]), shift + float(own["at"][k + 1])
            works = []
            for x in range(delays):
                cost = self.spent(float(own["kw"][k]), at + x, until + x)
                if k == own.size - 2:
                    cost += float(row["wait"]) * x
                works.append(self.column(cost, self.held(job, at + x, until + x)))
            flow = [self.row() for _ in range(delays)]
            for x in range(delays):
                self.entry(flow[x], works[x], -1.0)
                if before:
                    self.entry(flow[x], before[x], 1.0)
            if k == 0:
                begin = shift + float(row["begin"])
                for x in range(delays):
                    cost = self.legs(row["startup"], row["restart"], begin + x)
                    start = self.column(cost, self.held(job, begin + x, at + x))
                    self.entry(flow[x], start, 1.0)
                    self.entry(once, start, 1.0)
            elif own["stop"][k]:
                self._pause(job, row, at, flow, gap)
            before = works

    def _pause(self, job: int, row: Any, at: float, flow: list[int], gap: int) -> None:
        """Add what stopping before a part, waiting and starting again take."""
        delays = len(flow)
        waits = [self.row() for _ in range(delays)]
        for x in range(delays):
            if x + gap < delays:
                end = at + x + float(row["stop_t"])
                cost = self.legs(row["stop"], row["legs"], at + x)
                leave = self.column(cost, self.held(job, at + x, end))
                self.entry(flow[x], leave, -1.0)
                self.entry(waits[x + gap], leave, 1.0)
            if x >= gap:
                begin = at + x - float(row["restart_t"])
                cost = self.legs(row["restart"], row["stop"], begin)
                start = self.column(cost, self.held(job, begin, at + x))
                self.entry(flow[x], start, 1.0)
                self.entry(waits[x], start, -1.0)
            if x + 1 < delays:
                on = self.column(0.0)
                self.entry(waits[x], on, -1.0)
                self.entry(waits[x + 1], on, 1.0)


def solve_whole(instance: Instance, *, seconds: float, whole: bool = True) -> Solved:
    """Return what HiGHS makes of a queue; of one without `max_starts` and `min_run_s`.

    Args:
        whole: Whether jobs have to come whole; else the relaxation alone is solved.
    """
    model = _Model(instance)
    for job in range(len(instance)):
        model.add(job)
    shape = (len(model.low), len(model.costs))
    matrix = coo_array((model.values, (model.rows, model.columns)), shape=shape).tocsr()
    within = LinearConstraint(matrix, np.array(model.low), np.array(model.high))
    costs, bounds = np.array(model.costs), (0, np.inf)
    already = float(instance.queue.jobs["already"].sum())
    relaxed = milp(costs, bounds=bounds, constraints=within)
    if not whole:
        return Solved(np.nan, float(relaxed.fun) + already, float(relaxed.fun) + already)
    solved = milp(
        costs,
        integrality=np.ones(costs.size),
        bounds=bounds,
        constraints=within,
        options={"time_limit": seconds, "mip_rel_gap": 1e-6},
    )
    best = np.nan if solved.x is None else float(solved.fun) + already
    return Solved(best, float(solved.mip_dual_bound) + already, float(relaxed.fun) + already)
