"""Run while the grid is cleaner than it is for most of the next day."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from lowtide.accounting import Stretches
from lowtide.errors import InvalidInput
from lowtide.job import TIME_TOLERANCE_S, Job
from lowtide.policies.carrying_out import carry_out
from lowtide.policies.dtpr import taken
from lowtide.policies.many import by_value, require_windows, rules_of, series_of
from lowtide.policies.policy import Decision
from lowtide.signal import Signal
from lowtide.workload import Workload


@dataclass(frozen=True, slots=True, kw_only=True)
class Threshold:
    """Work while the signal is below a quantile of what lies ahead, or once the slack is gone.

    The quantile is taken once, at arrival. Like `wait_awhile` it takes power for constant and
    stops for free, and is carried out on the real job; one that may never be stopped begins to
    work at the first moment below the quantile and runs through.

    Attributes:
        quantile: The share of the time ahead, from 0 to 1.
        horizon_s: How far ahead the signal is looked at, at most up to its end.
    """

    stops_jobs: ClassVar[bool] = True
    quantile: float = 0.3
    horizon_s: float = 86400.0

    def __post_init__(self) -> None:
        if not 0 <= self.quantile <= 1:
            raise InvalidInput(f"a quantile is from 0 to 1, not {self.quantile}")
        if not (math.isfinite(self.horizon_s) and self.horizon_s > 0):
            raise InvalidInput(
                f"a threshold is taken from longer than 0 s ahead, not {self.horizon_s}"
            )

    def decide(self, job: Job, signal: Signal) -> Decision:
        """Decide for one job."""
        end = min(job.arrival + self.horizon_s, signal.end)
        limit = quantile_between(signal, job.arrival, end, self.quantile)
        wanted = taken(job, signal, lambda slot: slot.price < limit)
        return Decision(schedule=carry_out(job, wanted), step_s=signal.step_s)

    def decide_many(self, jobs: Workload, signal: Signal) -> Stretches:
        """Decide for many jobs, as for each."""
        from lowtide.policies.stopping_kernels import work_below

        require_windows(jobs, signal)
        order, rank = by_value(signal)
        job, start, work_s, lost_s = work_below(
            rules_of(jobs),
            series_of(signal),
            order,
            rank,
            float(self.horizon_s),
            float(self.quantile),
        )
        return Stretches(job=job, start=start, work_s=work_s, lost_s=lost_s)

    def looks_until(self, job: Job) -> float:
        """Return until when the signal is looked at, as far as there is any."""
        return max(job.arrival + self.horizon_s, job.deadline)


def quantile_between(signal: Signal, begin: float, end: float, share: float) -> float:
    """Return the lowest value that a signal is at or below for more than a share of the time.

    So it is below that value for no more than the share.

    Args:
        share: From 0 to 1; for 1 it is the highest value.

    >>> curve = Signal.from_values([400, 100, 200, 300], start=0, step_s="1h")
    >>> [quantile_between(curve, 0.0, 14400.0, share) for share in (0.2, 0.25, 0.3, 1.0)]
    [100.0, 200.0, 200.0, 400.0]
    """
    window = signal.window(begin, end)
    size_s = np.diff(np.clip(window.edges, begin, end))
    order = np.argsort(window.values, kind="stable")
    upto_s = np.cumsum(size_s[order])
    above = int(np.searchsorted(upto_s, share * upto_s[-1] + TIME_TOLERANCE_S, side="right"))
    return float(window.values[order[min(above, order.size - 1)]])
