"""Run in the cheapest moments of the window, as if stopping were free."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from lowtide.accounting import Stretches
from lowtide.job import TIME_TOLERANCE_S, Job
from lowtide.policies.carrying_out import carry_out
from lowtide.policies.many import by_value, require_windows, rules_of, series_of
from lowtide.policies.policy import Decision
from lowtide.signal import FloatArray, Signal
from lowtide.workload import Workload


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitAwhile:
    """Work in the cheapest moments between arrival and deadline, ties to the earlier.

    It knows how long the job works and takes its power for constant and its stops for free. What
    that costs on the real job is paid when the decision is carried out.
    """

    stops_jobs: ClassVar[bool] = True

    def decide(self, job: Job, signal: Signal) -> Decision:
        """Decide for one job."""
        wanted = cheapest_moments(
            signal, job.arrival + job.profile.startup_s, job.deadline, job.profile.work_s
        )
        return Decision(schedule=carry_out(job, wanted))

    def decide_many(self, jobs: Workload, signal: Signal) -> Stretches:
        """Decide for many jobs, as for each."""
        from lowtide.policies.stopping_kernels import work_in_cheapest

        require_windows(jobs, signal)
        order, rank = by_value(signal)
        job, start, work_s, lost_s = work_in_cheapest(
            rules_of(jobs), series_of(signal), order, rank
        )
        return Stretches(job=job, start=start, work_s=work_s, lost_s=lost_s)


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
    window = signal.window(begin, end)
    edges = np.clip(window.edges, begin, end)
    size_s = np.diff(edges)
    order = np.argsort(window.values, kind="stable")
    before_s = np.concatenate(([0.0], np.cumsum(size_s[order])[:-1]))
    # Of the last step that is needed only the first part is taken.
    taken_s: FloatArray = np.empty_like(size_s)
    taken_s[order] = np.clip(length_s - before_s, 0.0, size_s[order])
    # What rounding leaves of a step, or of a gap, is none: nobody stops a job for a microsecond.
    taken_s[taken_s <= TIME_TOLERANCE_S] = 0.0
    full = taken_s >= size_s - TIME_TOLERANCE_S
    taken_s[full] = size_s[full]
    stretches: list[tuple[float, float]] = []
    for start, seconds in zip(edges[:-1].tolist(), taken_s.tolist(), strict=True):
        if seconds <= 0:
            continue
        if stretches and stretches[-1][1] >= start - TIME_TOLERANCE_S:
            stretches[-1] = (stretches[-1][0], start + seconds)
        else:
            stretches.append((start, start + seconds))
    return stretches
