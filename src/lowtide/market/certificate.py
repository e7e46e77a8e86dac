"""The bound once more, by code that shares nothing with the planner's.

Prices prove a bound whoever found them. Here each job is planned from its end backwards, from the
job itself, with integrals of the signals themselves; the planner goes forwards through tables. If
the two agree, neither slots nor search nor rounding can have made the bound.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

import numpy as np
import numpy.typing as npt

from lowtide.errors import InvalidInput
from lowtide.job import TIME_TOLERANCE_S, Job
from lowtide.market.instance import Instance
from lowtide.market.prices import Prices
from lowtide.profile import Phase
from lowtide.signal import FloatArray, Signal
from lowtide.units import JOULES_PER_KWH


def certify(
    instance: Instance, prices: Prices, *, advance: Callable[[int], None] = lambda _: None
) -> float:
    """Return what no plan of a queue that starts and stops on slots can come to less than.

    Args:
        advance: Told how many jobs were planned, each time one was.
    """
    right = prices.power.shape == instance.cap_kw[0].shape
    if not right or prices.rent.shape != instance.capacity.shape:
        raise InvalidInput(
            f"prices are given for each of {len(instance.resources)} resources and "
            f"{instance.slots} slots, not for {prices.rent.shape}"
        )
    terms = [-prices.worth(instance)]
    links, bonds = instance.links, prices.bonds_of(instance)
    # What it counts to have started by a slot, or before it.
    ahead = np.append(bonds, np.zeros((links.gap_s.size, 1)), axis=1)
    ahead = np.cumsum(ahead[:, ::-1], axis=1)[:, ::-1]
    least = np.full(len(instance), np.inf)
    for part, own, of in _sites(instance, prices):
        peak_w = part.jobs.peak_w
        for row, job in enumerate(of.tolist()):
            one = _Backwards(part, own, row, float(peak_w[row]))
            begin_s = one.base - instance.origin + one.delays_s
            end_s = begin_s + one.job.profile.run_s

            for place in np.flatnonzero(links.after == job):
                one.early += ahead[place, _slots(begin_s, instance)]
            for place in np.flatnonzero(links.before == job):
                one.late -= ahead[place, _slots(end_s + links.gap_s[place], instance)]
            least[job] = min(least[job], one.least() + float(part.beside[row]))
            advance(1)
    out = instance.queue.jobs["leave"][instance.queue.ways[:-1]].copy()
    np.subtract.at(out, links.before, ahead[:, 0])
    return math.fsum([*terms, *np.minimum(least, out).tolist()])


def _slots(after_s: FloatArray, instance: Instance) -> npt.NDArray[np.int64]:
    """Return in which slot times after the origin lie, the last for those beyond."""
    slot: npt.NDArray[np.int64] = np.floor(after_s / instance.step_s + 1e-7).astype(np.int64)
    return np.minimum(slot, instance.slots)


def _sites(
    instance: Instance, prices: Prices
) -> Iterator[tuple[Instance, Prices, npt.NDArray[np.int64]]]:
    """Yield every site by itself, its prices, and which jobs its rows are."""
    if not instance.sites:
        yield instance, prices, np.arange(len(instance))
        return
    for number, (part, (rows, resources)) in enumerate(
        zip(instance.sites, instance.site_rows, strict=True)
    ):
        own = Prices(rent=prices.rent[resources], power=prices.power[number])
        yield part, own, instance.job_of[rows]


class _Backwards:
    """One job, planned from its end on."""

    def __init__(self, instance: Instance, prices: Prices, row: int, peak_w: float) -> None:
        self.job: Job = instance.jobs.job(row)
        self.step_s, self.base = instance.step_s, float(instance.base[row])
        self.cut_s = instance.cut * instance.step_s
        profile = self.job.profile
        slack_s = float(instance.window[1][row]) - self.base - profile.run_s
        count = max(math.floor((slack_s + TIME_TOLERANCE_S) / self.step_s + 1e-9), -1) + 1
        self.delays_s: FloatArray = self.step_s * np.arange(count, dtype=np.float64)
        # What ends and starts count for those that it is linked to, by the delay.
        self.late, self.early = np.zeros(count), np.zeros(count)
        self.weight = float(instance.queue.jobs["weight"][row]) * instance.cluster.pue
        self.wait = float(instance.wait[row])
        self.end_s = float(instance.edges[-1]) - self.base
        self.signal = instance.signal
        extra_kw = float(instance.queue.jobs["peak_kw"][row]) - peak_w / 1000
        self.extra_w = 1000 * extra_kw if extra_kw > 1e-12 else 0.0

        def rent(amounts: FloatArray) -> Signal:
            return Signal.from_values(
                amounts @ prices.rent / self.step_s,
                start=instance.origin,
                step_s=self.step_s,
                kind="occupancy",
            )

        self.running = rent(instance.queue.need[row])
        self.stopped = rent(instance.queue.keep[row])
        self.power = Signal.from_values(
            prices.power * 3600 / self.step_s,
            start=instance.origin,
            step_s=self.step_s,
            kind="objective",
        )

    def _draw(self, watts: float, begin_s: float, end_s: float, rent: Signal) -> FloatArray:
        """Return what drawing watts between two times after `base` costs, by the delay."""
        # Without delay a restart longer than the startup would begin before the job came, and with
        # the longest a stop would end after the last slot. No plan has that, so whatever it is said
        # to cost is never taken.
        low, high = (np.clip(self.delays_s + at_s, 0.0, self.end_s) for at_s in (begin_s, end_s))
        cost = self.weight * self.signal.integral(low, high, origin=self.base)
        cost += self.power.integral(low, high, origin=self.base)
        paid: FloatArray = rent.integral(low, high, origin=self.base)
        paid += watts / JOULES_PER_KWH * cost
        return paid

    def _phases(self, phases: tuple[Phase, ...], begin_s: float) -> FloatArray:
        total = np.zeros(self.delays_s.size)
        for phase in phases:
            until_s = begin_s + phase.duration_s
            total += self._draw(phase.power_w + self.extra_w, begin_s, until_s, self.running)
            begin_s = until_s
        return total

    def _work(self, begin_s: float, end_s: float) -> FloatArray:
        """Return what working from one progress to another costs, by the delay."""
        profile = self.job.profile
        total, lead_s = np.zeros(self.delays_s.size), profile.startup_s
        edges = profile.work_edges_s
        for number, phase in enumerate(profile.work):
            low, high = max(edges[number], begin_s), min(edges[number + 1], end_s)
            if high > low:
                total += self._draw(
                    phase.power_w + self.extra_w, lead_s + low, lead_s + high, self.running
                )
        return total

    def _suspended(self, until_s: float) -> FloatArray:
        """Return what being suspended from `base` to a time after it costs, by the delay."""
        spent = np.zeros(self.delays_s.size)
        per_s = self.job.profile.suspended_power_w / JOULES_PER_KWH
        end = np.clip(self.delays_s + until_s, 0.0, self.end_s)
        zero = np.zeros(end.size)
        spent += per_s * self.weight * self.signal.integral(zero, end, origin=self.base)
        spent += per_s * self.power.integral(zero, end, origin=self.base)
        spent += self.stopped.integral(zero, end, origin=self.base)
        return spent

    def least(self) -> float:
        """Return the least that the job can cost; infinite where there is no time for it."""
        if not self.delays_s.size:
            return math.inf
        job, profile = self.job, self.job.profile
        work_s, again, restart_s = profile.work_s, profile.starting(1), profile.restart_s
        if job.interruptible == "anywhere":
            stops = self.cut_s * np.arange(1, math.ceil(work_s / self.cut_s - 1e-7))
        elif job.interruptible == "checkpoints":
            stops = np.array([s for s in profile.checkpoints_s if s < work_s - TIME_TOLERANCE_S])
        else:
            stops = np.empty(0)
        limit = 1 if job.interruptible == "never" else job.max_starts
        # Where any number of starts is allowed, each has as many left as the one before.
        fewer = 0 if limit is None else 1
        layers = 1 if limit is None else min(limit, stops.size + 1)
        points = [0.0, *stops.tolist(), work_s]
        last = len(points) - 1
        gap = max(math.ceil((restart_s + profile.stop_s) / self.step_s - 1e-7), 1)
        size = self.delays_s.size
        # What is ahead of a job that runs at a point, by the starts that it has left.
        ahead: list[list[FloatArray]] = [[np.zeros(0)] * layers for _ in points]
        late = self.wait * (self.base - job.arrival + self.delays_s) + self.late
        ahead[last] = [late] * layers
        begun: list[list[FloatArray]] = [[np.zeros(0)] * layers for _ in points]
        for place in range(last - 1, -1, -1):
            begin_s = points[place]
            through = self._work(begin_s, points[place + 1])
            enough = next(
                (
                    other
                    for other in range(place + 1, last + 1)
                    if points[other] - begin_s >= job.min_run_s - TIME_TOLERANCE_S
                ),
                None,
            )
            run = None if enough is None else self._work(begin_s, points[enough])
            for left in range(layers):
                # A start from here must run on until it has done enough.
                begun[place][left] = (
                    np.full(size, np.inf)
                    if run is None or enough is None
                    else run + ahead[enough][left]
                )
                best = through + ahead[place + 1][left]
                if place and left >= fewer:
                    lead_s = profile.startup_s + begin_s
                    start = self._phases(again, lead_s - restart_s) + begun[place][left - fewer]
                    start += self._suspended(lead_s - restart_s)
                    leave = self._phases(profile.stop, lead_s)
                    leave -= self._suspended(lead_s + profile.stop_s)
                    later = np.full(size, np.inf)
                    if size > gap:
                        from_end = np.minimum.accumulate(start[::-1])[::-1]
                        later[: size - gap] = from_end[gap:]
                    best = np.minimum(best, leave + later)
                ahead[place][left] = best
        first = self._phases(profile.startup, 0.0) + begun[0][layers - 1]
        return float((first + self.early).min())
