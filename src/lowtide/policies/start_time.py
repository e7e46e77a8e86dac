"""Policies that choose a start by looking at single moments: at once, or the cleanest slot."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from lowtide.job import Job
from lowtide.policies.carrying_out import run_from
from lowtide.policies.policy import Decision
from lowtide.signal import Signal


@dataclass(frozen=True, slots=True, kw_only=True)
class RunNow:
    """Start at arrival and never stop: what happens without any policy."""

    def decide(self, job: Job, signal: Signal) -> Decision:  # noqa: ARG002 - looks at nothing
        """Decide for one job.

        Args:
            job: What is to be run.
            signal: Not looked at.
        """
        return Decision(schedule=run_from(job, job.arrival))


@dataclass(frozen=True, slots=True, kw_only=True)
class StartAt:
    """Start so much after arrival, whatever the signal: for a delay that was chosen elsewhere.

    Attributes:
        delay_s: How long to wait.
    """

    delay_s: float

    def decide(self, job: Job, signal: Signal) -> Decision:  # noqa: ARG002 - looks at nothing
        """Decide for one job.

        Args:
            job: What is to be run.
            signal: Not looked at.
        """
        return Decision(schedule=run_from(job, job.arrival + self.delay_s))


@dataclass(frozen=True, slots=True, kw_only=True)
class LowestSlot:
    """Start at the first moment at which the signal is lowest within the waiting time.

    It looks at the moment of the start alone, not at how long the job then runs.
    """

    def decide(self, job: Job, signal: Signal) -> Decision:
        """Decide for one job.

        Args:
            job: What is to be run.
            signal: What a kWh emits or costs.
        """
        edges = signal.edges[:-1]
        later = edges[(edges > job.arrival) & (edges <= job.latest_start)]
        candidates = np.concatenate(([job.arrival], later))
        start = float(candidates[np.argmin(signal.at(candidates))])
        return Decision(schedule=run_from(job, start))
