"""Published policies that stop jobs, and what their wishes come to on the real job.

Deciding and paying are two things. A published policy decides with the model it knows, often
constant power and free stops. Here its wish is carried out on the real job, by one rule for all:

- every stretch of work is preceded by a startup, placed just before it;
- stretches closer together than a stop and a startup are joined: the job runs through the gap;
- a stop between checkpoints of a job that keeps only checkpoints throws work away, and that work
  is done again;
- a job is not stopped where its rules forbid it (`never`, `max_starts`, `min_run_s`), nor where
  it could not be done by its deadline afterwards: when the slack is gone it runs through.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from lowtide.accounting import Stretches
from lowtide.errors import InvalidInput
from lowtide.job import Job
from lowtide.policies.columns import by_value, require_windows, rules_of, series_of, stretches_of
from lowtide.policies.policy import Decision, decide_one
from lowtide.schedule import Schedule
from lowtide.signal import Signal
from lowtide.workload import Workload


def run_from(job: Job, start: float) -> Schedule:
    """Carry out the wish to start at one moment and not to stop."""
    return Schedule.uninterrupted(job, min(max(start, job.arrival), job.latest_start))


def carry_out(job: Job, wanted: Sequence[tuple[float, float]]) -> Schedule:
    """Carry out the wish to work in certain stretches of time.

    Args:
        wanted: When the policy would have the job work: begin and end, in order, apart.

    >>> from lowtide.profile import Phase, PowerProfile
    >>> profile = PowerProfile(startup=[Phase(name="load", duration_s=600, power_w=50)],
    ...                        work=[Phase(name="run", duration_s=7200, power_w=200)])
    >>> job = Job(id="a", arrival=0, deadline="+9h", profile=profile, interruptible="anywhere")
    >>> schedule = carry_out(job, [(3600.0, 7200.0), (14400.0, 18000.0)])
    >>> [(span.kind, span.start) for span in schedule.spans]
    [('startup', 3000.0), ('work', 3600.0), ('suspended', 7200.0), ('startup', 13800.0),
     ('work', 14400.0)]
    """
    from lowtide.policies.published_kernels import carried_out

    begins, ends = (np.array([each[k] for each in wanted], dtype=np.float64) for k in (0, 1))
    made = carried_out(rules_of(Workload.from_jobs([job])), begins, ends)
    return Schedule.from_stretches(job, stretches_of(made).of(0))


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitAwhile:
    """Work in the cheapest moments between arrival and deadline, ties to the earlier.

    It knows how long the job works and takes its power for constant and its stops for free. What
    that costs on the real job is paid when the decision is carried out.
    """

    stops_jobs: ClassVar[bool] = True

    def decide(self, job: Job, signal: Signal) -> Decision:
        """Decide for one job."""
        # The steps that matter are put in order, not all that there are.
        known = signal.window(job.arrival, job.deadline)
        return Decision(schedule=decide_one(self, job, known))

    def decide_many(self, jobs: Workload, signal: Signal) -> Stretches:
        """Decide for many jobs, as for each."""
        from lowtide.policies.published_kernels import work_in_cheapest

        require_windows(jobs, signal)
        order, rank = by_value(signal)
        return stretches_of(work_in_cheapest(rules_of(jobs), series_of(signal), order, rank))


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
        known = signal.window(job.arrival, min(self.looks_until(job), signal.end))
        return Decision(schedule=decide_one(self, job, known), step_s=signal.step_s)

    def decide_many(self, jobs: Workload, signal: Signal) -> Stretches:
        """Decide for many jobs, as for each."""
        from lowtide.policies.published_kernels import work_below

        require_windows(jobs, signal)
        order, rank = by_value(signal)
        series, horizon_s = series_of(signal), float(self.horizon_s)
        return stretches_of(
            work_below(rules_of(jobs), series, order, rank, horizon_s, float(self.quantile))
        )

    def looks_until(self, job: Job) -> float:
        """Return until when the signal is looked at, as far as there is any."""
        return max(job.arrival + self.horizon_s, job.deadline)


def cheapest_moments(
    signal: Signal, begin: float, end: float, length_s: float
) -> list[tuple[float, float]]:
    """Return the stretches that make up the cheapest `length_s` seconds of a window.

    Args:
        length_s: How many seconds are needed.

    >>> curve = Signal.from_values([3, 1, 2, 1], start=0, step_s=10)
    >>> cheapest_moments(curve, 0.0, 40.0, 25.0)
    [(10.0, 25.0), (30.0, 40.0)]
    """
    from lowtide.policies.published_kernels import cheapest

    window = signal.window(begin, end)
    begins, ends = cheapest(begin, end, length_s, series_of(window), *by_value(window))
    return list(zip(begins.tolist(), ends.tolist(), strict=True))


def quantile_between(signal: Signal, begin: float, end: float, share: float) -> float:
    """Return the lowest value that a signal is at or below for more than a share of the time.

    So it is below that value for no more than the share.

    Args:
        share: From 0 to 1; for 1 it is the highest value.

    >>> curve = Signal.from_values([400, 100, 200, 300], start=0, step_s="1h")
    >>> [quantile_between(curve, 0.0, 14400.0, share) for share in (0.2, 0.25, 0.3, 1.0)]
    [100.0, 200.0, 200.0, 400.0]
    """
    from lowtide.policies.published_kernels import quantile

    window = signal.window(begin, end)
    return float(quantile(begin, end, share, series_of(window), *by_value(window)))
