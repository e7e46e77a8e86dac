"""The whole trade-off between being done early and being done cleanly."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from lowtide.accounting import footprint
from lowtide.errors import InvalidTime
from lowtide.grid import Grid, deciding_signal
from lowtide.job import Job, require_job
from lowtide.policies.exact import Exact, Optimum
from lowtide.schedule import Schedule
from lowtide.signal import FloatArray, Signal
from lowtide.units import DurationLike, TimeLike, format_time, parse_duration, parse_time


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Tradeoff:
    """The least that a job can come to, for every time by which it may be done.

    Attributes:
        finish: Instants, rising, from the earliest possible finish to the deadline.
        amount: The least carbon (or cost, on a price) of being done by each; falling. Linear in
            between where decisions are in continuous time, else constant up to the next.
        baseline: What running at once comes to.
        step_s: The step between decisions, None for continuous time.
        synthetic: Whether the signal comes from a model.
    """

    finish: FloatArray
    amount: FloatArray
    baseline: float
    step_s: float | None
    synthetic: bool

    @property
    def saving(self) -> FloatArray:
        """The share of the baseline that being done by each instant can save."""
        if self.baseline <= 0:
            return np.full(self.amount.shape, np.nan)
        shares = 1.0 - self.amount / self.baseline
        return np.where(np.abs(shares) > 1e-12, shares, 0.0)

    @property
    def knee(self) -> int:
        """Where waiting longer begins to pay less: the point farthest above the straight line.

        Both axes are scaled to run from 0 to 1 first.
        """
        spans = np.ptp(self.finish), np.ptp(self.amount)
        if not (spans[0] and spans[1]):
            return 0
        waited = (self.finish - self.finish[0]) / spans[0]
        saved = (self.amount[0] - self.amount) / spans[1]
        return int(np.argmax(saved - waited))

    def by(self, instant: TimeLike) -> float:
        """Return the least that being done by an instant comes to.

        Args:
            instant: No earlier than the earliest finish; `+6h` counts from that.
        """
        at = parse_time(instant, relative_to=float(self.finish[0]))
        if at < self.finish[0]:
            raise InvalidTime(
                f"the job cannot be done by {format_time(at)}: at the earliest it is done at "
                f"{format_time(float(self.finish[0]))}"
            )
        if self.step_s is None:
            return float(np.interp(at, self.finish, self.amount))
        return float(self.amount[np.searchsorted(self.finish, at, side="right") - 1])


def tradeoff(job: Job, signal: Signal | Grid, *, step_s: DurationLike | None = None) -> Tradeoff:
    """Return the least that a job can come to for every finish time, in one pass.

    Args:
        job: What is to be run.
        signal: What a kWh emits or costs.
        step_s: Step between decisions of a job that may be stopped anywhere.

    >>> curve = Signal.from_values([400, 300, 100], start=0, step_s="1h")
    >>> from lowtide.profile import PowerProfile
    >>> job = Job(id="a", arrival=0, deadline="+3h", profile=PowerProfile.constant(1000, "1h"))
    >>> every = tradeoff(job, curve)
    >>> every.by("+30m"), every.by("+1h"), every.by("+2h")
    (350.0, 300.0, 100.0)
    """
    require_job(job)
    target = deciding_signal(signal)
    planner = Exact(step_s=None if step_s is None else parse_duration(step_s))
    optimum = planner.optimise(job, target, whole=True)
    if optimum.step_s is None:
        delays_s, costs = _falling(*optimum.solution.by_delay)
        finish = job.arrival + job.profile.run_s + delays_s
    else:
        finish, costs = _by_finish(optimum)
    possible = np.isfinite(costs)
    at_once = footprint(Schedule.uninterrupted(job, job.arrival), job, target).amount
    return Tradeoff(
        finish=finish[possible],
        amount=costs[possible],
        baseline=at_once,
        step_s=optimum.step_s,
        synthetic=target.synthetic,
    )


def _by_finish(optimum: Optimum) -> tuple[FloatArray, FloatArray]:
    """Return instants and the least of being done by each, from all grids that were tried."""
    solved = [(optimum.problem, optimum.solution), *optimum.others]
    finish = np.concatenate(
        [each.base + each.work_s + solution.by_delay[0] for each, solution in solved]
    )
    costs = np.concatenate([solution.by_delay[1] for _, solution in solved])
    order = np.argsort(finish, kind="stable")
    return finish[order], np.minimum.accumulate(costs[order])


def _falling(delays_s: FloatArray, costs: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Return the running minimum of a piecewise-linear function given by pairs of points."""
    xs: list[float] = []
    ys: list[float] = []
    lowest = np.inf
    for i in range(0, delays_s.size, 2):
        x0, x1 = float(delays_s[i]), float(delays_s[i + 1])
        y0, y1 = float(costs[i]), float(costs[i + 1])
        if not np.isfinite(y0) or min(y0, y1) >= lowest:
            continue
        if y0 < lowest:
            if xs:
                xs.append(x0)
                ys.append(lowest)
            xs.append(x0)
            ys.append(y0)
            lowest = y0
        if y1 < lowest:
            cross = x0 + (x1 - x0) * ((y0 - lowest) / (y0 - y1))
            xs += [cross, x1]
            ys += [lowest, y1]
            lowest = y1
    xs.append(float(delays_s[-1]))
    ys.append(lowest)
    points = np.array([xs, ys])
    new = np.append(True, np.any(np.diff(points) != 0, axis=0))
    return points[0, new], points[1, new]
