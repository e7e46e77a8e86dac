"""What waiting saves, per time until the job is done.

The cleanest window may be a day away and hardly better than one an hour away. Carbon-Time weighs
the two: it maximises (C(arrival) − C(start)) / ((start − arrival) + length), where C is what a run
of the expected length costs. Between two bends of C that is a ratio of linear functions, which
has no maximum inside, so that the bends are all there is to try.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from lowtide.accounting import Stretches
from lowtide.job import Job
from lowtide.policies.carrying_out import run_from
from lowtide.policies.lowest_window import check_expectation, expected_costs, start_expected
from lowtide.policies.oracle import TIE
from lowtide.policies.policy import Decision
from lowtide.signal import Signal
from lowtide.workload import Workload


@dataclass(frozen=True, slots=True, kw_only=True)
class CarbonTime:
    """Start when the most is saved per time until the job is done; at once if nothing is saved.

    Attributes:
        expected_s: How long the job is expected to run, startup included; None for as long as it
            does. It is cut to what the signal covers after the latest start.
        step_s: Try only arrival + k·step_s, as published versions do; None tries every moment.
    """

    expected_s: float | None = None
    step_s: float | None = None

    def __post_init__(self) -> None:
        check_expectation(self.expected_s, self.step_s)

    def decide(self, job: Job, signal: Signal) -> Decision:
        """Decide for one job."""
        delays_s, costs, length_s = expected_costs(job, signal, self.expected_s, self.step_s)
        saved = (costs[0] - costs) / (delays_s + length_s)
        # A saving that is rounding alone is none, and of equal ones the first is taken.
        tie = TIE * float(np.abs(costs).max()) / length_s
        best = int(np.argmax(saved >= saved.max() - tie))
        start = job.arrival + float(delays_s[best])
        return Decision(schedule=run_from(job, start), step_s=self.step_s)

    def decide_many(self, jobs: Workload, signal: Signal) -> Stretches:
        """Decide for many jobs, as for each."""
        return start_expected(jobs, signal, self.expected_s, self.step_s, per_time=True)

    def looks_until(self, job: Job) -> float:
        """Return until when the signal is looked at, as far as there is any."""
        return job.latest_start + (self.expected_s or job.profile.run_s)
