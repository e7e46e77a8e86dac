"""Policies that choose a start by looking at single moments: at once, late, the cleanest slot."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from lowtide.accounting import Stretches
from lowtide.job import Job
from lowtide.policies.carrying_out import run_from
from lowtide.policies.many import column, require_windows, series_of, within_windows
from lowtide.policies.policy import Decision
from lowtide.signal import Signal
from lowtide.workload import Workload


@dataclass(frozen=True, slots=True, kw_only=True)
class RunNow:
    """Start at arrival and never stop: what happens without any policy."""

    def decide(self, job: Job, signal: Signal) -> Decision:  # noqa: ARG002 - looks at nothing
        """Decide for one job."""
        return Decision(schedule=run_from(job, job.arrival))

    def decide_many(self, jobs: Workload, signal: Signal) -> Stretches:  # noqa: ARG002 - looks at nothing
        """Decide for many jobs, as for each."""
        return within_windows(jobs, jobs.arrival)


@dataclass(frozen=True, slots=True, kw_only=True)
class StartAt:
    """Start so much after arrival, whatever the signal: for a delay that was chosen elsewhere.

    Attributes:
        delay_s: How long to wait.
    """

    delay_s: float

    def decide(self, job: Job, signal: Signal) -> Decision:  # noqa: ARG002 - looks at nothing
        """Decide for one job."""
        return Decision(schedule=run_from(job, job.arrival + self.delay_s))

    def decide_many(self, jobs: Workload, signal: Signal) -> Stretches:  # noqa: ARG002 - looks at nothing
        """Decide for many jobs, as for each."""
        return within_windows(jobs, jobs.arrival + self.delay_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class Latest:
    """Start as late as the deadline allows, and never stop.

    It saves nothing by itself: it leaves a job as long as can be to machines that are paid for
    anyway, and is what waiting comes to when it is for nothing.
    """

    def decide(self, job: Job, signal: Signal) -> Decision:  # noqa: ARG002 - looks at nothing
        """Decide for one job."""
        return Decision(schedule=run_from(job, job.latest_start))

    def decide_many(self, jobs: Workload, signal: Signal) -> Stretches:  # noqa: ARG002 - looks at nothing
        """Decide for many jobs, as for each."""
        return within_windows(jobs, jobs.latest_start)


@dataclass(frozen=True, slots=True, kw_only=True)
class LowestSlot:
    """Start at the first moment at which the signal is lowest within the waiting time.

    It looks at the moment of the start alone, not at how long the job then runs.
    """

    def decide(self, job: Job, signal: Signal) -> Decision:
        """Decide for one job."""
        edges = signal.edges[:-1]
        later = edges[(edges > job.arrival) & (edges <= job.latest_start)]
        candidates = np.concatenate(([job.arrival], later))
        start = float(candidates[np.argmin(signal.at(candidates))])
        return Decision(schedule=run_from(job, start))

    def decide_many(self, jobs: Workload, signal: Signal) -> Stretches:
        """Decide for many jobs, as for each."""
        from lowtide.policies.many_kernels import lowest_slots

        require_windows(jobs, signal)
        arrival, latest = column(jobs.arrival), column(jobs.latest_start)
        return within_windows(jobs, lowest_slots(arrival, latest, series_of(signal)))
