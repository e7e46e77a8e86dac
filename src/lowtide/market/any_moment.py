"""A bound for plans that start and stop at any moment, where jobs do not keep to slots.

Prices are constant within a slot, and prove a bound for any moments of starting and stopping if
each job is planned by itself over all of them. What running a part of a job costs is linear in its
delay between the moments at which the part begins or ends with a slot, so that the lowest within a
slot of delay is found at one of a few. Each job is then planned as if every part of it had the
lowest: that is no more than the best plan in continuous time, and hardly less. A job that may be
stopped anywhere pays the lowest price that it could meet in each slot of its work: where within
that slot it is stopped is then a mix of stopping at either end.

Only times and prices are shared with the planner.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import NamedTuple, TypeAlias

import numpy as np

from lowtide.job import INTERRUPTIBLE, TIME_TOLERANCE_S, Job
from lowtide.market.instance import Instance
from lowtide.market.prices import Prices
from lowtide.profile import Phase
from lowtide.signal import FloatArray

_NEVER, _ANYWHERE = INTERRUPTIBLE.index("never"), INTERRUPTIBLE.index("anywhere")
# Places that lie closer together than this, in slots, are one.
_NEAR = 1e-7


def bound_at_any_moment(
    instance: Instance, prices: Prices, *, waiting: bool = True, rows: Sequence[int] | None = None
) -> float | None:
    """Return what no plan can come to less than, whenever it starts and stops jobs.

    None where a kWh may count less than nothing, or there are several sites: there it is not known.
    Links of jobs are left out of it.

    Args:
        waiting: Whether to count waiting.
        rows: Of which jobs alone, on their share of the machines: no bound, but it tells which of
            several prices proves more; None for all.
    """
    if instance.sites or instance.signal.values.min() < 0:
        return None
    worth = float((prices.rent * instance.capacity).sum())
    if instance.capped:
        worth += float((prices.power * instance.cap_kw[0]).sum())
    rent = np.pad(np.cumsum(prices.rent, axis=1), ((0, 0), (1, 0)))
    power = np.pad(np.cumsum(prices.power), (1, 0))
    leave, peak_w = instance.queue.jobs["leave"], instance.jobs.peak_w
    least = [
        min(
            _Free(instance, row, rent, power, float(peak_w[row]), waiting=waiting).least(),
            float(leave[row]),
        )
        for row in (range(len(instance)) if rows is None else rows)
    ]
    share = len(least) / len(instance)
    return math.fsum((-worth * share, *least))


_Legs: TypeAlias = tuple[list[tuple[float, FloatArray]], list[tuple[float, FloatArray]]]


class _Spent(NamedTuple):
    """A stretch of a job, in slots from the origin at no delay, and what time costs it."""

    begin: float
    end: float
    upto: FloatArray


class _Free:
    """One job, planned over slots of delay, at the lowest that each of them can cost."""

    def __init__(
        self,
        instance: Instance,
        row: int,
        rent: FloatArray,
        power: FloatArray,
        peak_w: float,
        *,
        waiting: bool,
    ) -> None:
        self.job: Job = instance.jobs.job(row)
        self.step_s, queue = instance.step_s, instance.queue
        self.places = np.arange(instance.slots + 1, dtype=np.float64)
        own, window = queue.jobs[row], (instance.window[0][row], instance.window[1][row])
        self.base = float(window[0] - instance.origin) / self.step_s
        slack_s = float(window[1] - window[0]) - self.job.profile.run_s
        self.most = max(slack_s, 0.0) / self.step_s
        self.low: FloatArray = np.arange(math.floor(self.most + _NEAR) + 1, dtype=np.float64)
        self.high: FloatArray = np.maximum(np.minimum(self.low + 1, self.most), self.low)
        weight = float(own["weight"]) if waiting else 1.0
        self.energy = weight * instance.energy[: instance.slots + 1] + power
        self.rent = queue.need[row] @ rent
        self.extra_kw = float(own["peak_kw"]) - peak_w / 1000
        self.held = float(own["suspended_kw"]) * self.energy + queue.keep[row] @ rent
        self.wait = float(instance.wait[row]) * self.step_s if waiting else 0.0
        self.already = self.wait * float(window[0] - self.job.arrival) / self.step_s

    def _upto(self, watts: float) -> FloatArray:
        upto: FloatArray = (watts / 1000 + self.extra_kw) * self.energy + self.rent
        return upto

    def _laid(self, phases: tuple[Phase, ...], begin_s: float) -> list[_Spent]:
        """Return phases one after the other, from so many seconds after the arrival on."""
        laid, at = [], self.base + begin_s / self.step_s
        for phase in phases:
            until = at + phase.duration_s / self.step_s
            laid.append(_Spent(at, until, self._upto(phase.power_w)))
            at = until
        return laid

    def _work(self, begin_s: float, end_s: float) -> list[_Spent]:
        """Return the phases of the work from one progress to another."""
        profile, laid = self.job.profile, list[_Spent]()
        edges_s = profile.work_edges_s
        for number, phase in enumerate(profile.work):
            low_s, high_s = max(edges_s[number], begin_s), min(edges_s[number + 1], end_s)
            if high_s > low_s:
                at, until = (
                    self.base + (profile.startup_s + each) / self.step_s for each in (low_s, high_s)
                )
                laid.append(_Spent(at, until, self._upto(phase.power_w)))
        return laid

    def _lowest(self, spent: list[_Spent]) -> FloatArray:
        """Return the least that stretches with one delay cost, for each slot of it."""
        edges = {each for stretch in spent for each in stretch[:2]}
        meets = [np.ceil(edge + self.low - _NEAR) - edge for edge in edges]
        delays = np.clip(np.array([self.low, self.high, *meets]), self.low, self.high)
        cost = np.zeros(delays.shape)
        for begin, end, upto in spent:
            cost += np.interp(end + delays, self.places, upto)
            cost -= np.interp(begin + delays, self.places, upto)
        lowest: FloatArray = cost.min(axis=0)
        return lowest

    def _begun_in(self, phases: tuple[Phase, ...]) -> list[tuple[float, FloatArray]]:
        """Return how long each phase takes, and the least that it costs if it begins in a slot."""
        table = []
        for phase in phases:
            last, upto = phase.duration_s / self.step_s, self._upto(phase.power_w)
            # At the edge of a slot, or so that it ends at one.
            starts = np.concatenate((self.places, np.ceil(self.places + last - _NEAR) - last))
            cost = np.interp(starts + last, self.places, upto)
            cost -= np.interp(starts, self.places, upto)
            edge, meets = cost.reshape(2, -1)
            least = np.minimum(np.minimum(edge, np.append(edge[1:], np.inf)), meets)
            table.append((last, least))
        return table

    def _near(
        self,
        table: list[tuple[float, FloatArray]],
        begin: FloatArray,
        end: FloatArray,
    ) -> FloatArray:
        """Return the least that phases cost that begin between two places, by the delay."""
        total = np.zeros(np.broadcast_shapes(np.shape(begin), self.low.shape))
        for last, least in table:
            total += _least_within(least, self.low, begin, end, self.most)
            begin, end = begin + last, end + last
        return total

    def least(self) -> float:
        """Return the least that the job can cost."""
        job, profile = self.job, self.job.profile
        kind = INTERRUPTIBLE.index(job.interruptible)
        if kind == _NEVER or job.max_starts == 1:
            whole = self._laid(profile.startup, 0.0) + self._work(0.0, profile.work_s)
            return self.already + float((self._lowest(whole) + self.wait * self.low).min())
        if kind == _ANYWHERE:
            points = self._rows()
            through = list(self._rows_of_work(np.array(points)))
            min_run_s = job.min_run_s - 2 * self.step_s
        else:
            stops = [s for s in profile.checkpoints_s if s < profile.work_s - TIME_TOLERANCE_S]
            points = [0.0, *stops, profile.work_s]
            through = [self._lowest(self._work(a, b)) for a, b in itertools.pairwise(points)]
            min_run_s = job.min_run_s
        return self._planned(points, through, min_run_s, anywhere=kind == _ANYWHERE)

    def _rows(self) -> list[float]:
        """Return progress cut where the power changes, and into slots."""
        work_s = self.job.profile.work_s
        whole = self.step_s * np.arange(math.ceil(work_s / self.step_s - _NEAR))
        cuts = np.union1d(whole, self.job.profile.work_edges_s)
        cuts = cuts[np.append(True, np.diff(cuts) > TIME_TOLERANCE_S)]
        return [*cuts[cuts < work_s - TIME_TOLERANCE_S].tolist(), work_s]

    def _rows_of_work(self, points_s: FloatArray) -> FloatArray:
        """Return the least that each slot of work costs at any of the prices it could meet."""
        profile = self.job.profile
        at = self.base + (profile.startup_s + points_s) / self.step_s
        begin, end = at[:-1, None], at[1:, None]
        # Progress is cut where the power changes: each row lies in one phase.
        middle_s = (points_s[:-1] + points_s[1:]) / 2
        phase = np.searchsorted(np.asarray(profile.work_edges_s)[1:-1], middle_s, side="right")
        cost = np.zeros((begin.size, self.low.size))
        for number, each in enumerate(profile.work):
            some = phase == number
            if some.any():
                price = np.append(np.diff(self._upto(each.power_w)), np.inf)
                least = _least_within(price, self.low, begin[some], end[some], self.most)
                cost[some] = (end - begin)[some] * least
        return cost

    def _planned(
        self, points: list[float], through: list[FloatArray], min_run_s: float, *, anywhere: bool
    ) -> float:
        """Return the least over stops at points of progress, from the end backwards."""
        job, profile = self.job, self.job.profile
        restart_s = profile.restart_s
        limit = job.max_starts
        fewer = 0 if limit is None else 1
        last = len(points) - 1
        layers = 1 if limit is None else min(limit, last)
        gap = math.floor((restart_s + profile.stop_s) / self.step_s + _NEAR)
        size = self.low.size
        legs = (self._begun_in(profile.starting(1)), self._begun_in(profile.stop))
        stops = self._stops(points, legs if anywhere else None)
        late = self.wait * self.low
        ahead = [[late] * layers for _ in points]
        begun = [[late] * layers for _ in points]
        for place in range(last - 1, -1, -1):
            done = np.array(points[place + 1 :]) - points[place] >= min_run_s - TIME_TOLERANCE_S
            enough = place + 1 + int(np.argmax(done)) if done.any() else None
            run = None if enough is None else sum(through[place:enough])
            start, leave = (each[place] for each in stops) if place else (late, late)
            for left in range(layers):
                begun[place][left] = (
                    np.full(size, np.inf)
                    if enough is None or run is None
                    else run + ahead[enough][left]
                )
                best = through[place] + ahead[place + 1][left]
                if place and left >= fewer:
                    anew = start + begun[place][left - fewer]
                    later = np.full(size, np.inf)
                    if size > gap:
                        later[: size - gap] = np.minimum.accumulate(anew[::-1])[::-1][gap:]
                    best = np.minimum(best, leave + later)
                ahead[place][left] = best
        first = self._lowest(self._laid(profile.startup, 0.0)) + begun[0][layers - 1]
        return self.already + float(first.min())

    def _stops(self, points: list[float], legs: _Legs | None) -> tuple[FloatArray, FloatArray]:
        """Return the least that starting again before each point, and stopping there, cost.

        Args:
            legs: What both cost, where the job may be stopped anywhere.
        """
        profile, at_s = self.job.profile, np.array(points)
        # A stop anywhere may be up to a slot of work before the point, or after it.
        shift = 1 if legs else 0
        before, after = (
            np.clip(np.arange(at_s.size) + by, 0, at_s.size - 1) for by in (-shift, shift)
        )
        soon, late = (
            (self.base + (profile.startup_s + at_s[each]) / self.step_s)[:, None]
            for each in (before, after)
        )
        restart = profile.restart_s / self.step_s
        if legs:
            start = self._near(legs[0], soon - restart, late - restart)
            leave = self._near(legs[1], soon, late)
        else:
            begins_s = [profile.startup_s + each for each in points]
            again = [self._laid(profile.starting(1), at - profile.restart_s) for at in begins_s]
            start = np.array([self._lowest(each) for each in again])
            leave = np.array([self._lowest(self._laid(profile.stop, at)) for at in begins_s])
        if self.held.any():
            stopped = late + profile.stop_s / self.step_s + self.high
            start += np.interp(soon - restart + self.low, self.places, self.held)
            leave -= np.interp(stopped, self.places, self.held)
        return start, leave


def _least_within(
    slot: FloatArray, low: FloatArray, begin: FloatArray, end: FloatArray, most: float
) -> FloatArray:
    """Return the least of the slots that lie between two places, moved by each slot of delay.

    Args:
        most: The longest delay.
    """
    first = np.floor(begin + low + _NEAR).astype(np.int64)
    last = np.ceil(end + np.minimum(low + 1, most) - _NEAR).astype(np.int64)
    least = np.full(first.shape, np.inf)
    for more in range(int((last - first).max(initial=1))):
        here = first + more
        found = slot[np.clip(here, 0, slot.size - 1)]
        if more:
            found[here >= last] = np.inf
        np.minimum(least, found, out=least)
    return least
