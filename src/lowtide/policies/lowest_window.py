"""The cleanest window of the length that a job is expected to run.

Who does not know how long a job runs can still expect something, such as the mean of its queue.
The published model: the job draws constant power for the expected length, whatever it then does.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from lowtide.accounting import Stretches
from lowtide.errors import InvalidInput
from lowtide.job import Job
from lowtide.policies.carrying_out import run_from
from lowtide.policies.many import column, ragged, require_windows, series_of, within_windows
from lowtide.policies.oracle import Oracle, cost_by_delay, first_lowest, on_steps
from lowtide.policies.policy import Decision
from lowtide.profile import PowerProfile
from lowtide.signal import FloatArray, Signal
from lowtide.workload import Workload


@dataclass(frozen=True, slots=True, kw_only=True)
class LowestWindow:
    """Start when a run of the expected length would be cleanest.

    Attributes:
        expected_s: How long the job is expected to run, startup included; None for as long as it
            does. It counts up to the signal's end only: for every start of a job alike it is cut
            to what the signal covers after the latest one. That is at least the job's own length.
        step_s: Try only arrival + k·step_s, as published versions do; None tries every moment.
    """

    expected_s: float | None = None
    step_s: float | None = None

    def __post_init__(self) -> None:
        check_expectation(self.expected_s, self.step_s)

    def decide(self, job: Job, signal: Signal) -> Decision:
        """Decide for one job."""
        delays_s, costs, _ = expected_costs(job, signal, self.expected_s, self.step_s)
        start = job.arrival + first_lowest(delays_s, costs, np.inf)
        return Decision(schedule=run_from(job, start), step_s=self.step_s)

    def decide_many(self, jobs: Workload, signal: Signal) -> Stretches:
        """Decide for many jobs, as for each."""
        return start_expected(jobs, signal, self.expected_s, self.step_s, per_time=False)

    def looks_until(self, job: Job) -> float:
        """Return until when the signal is looked at, as far as there is any."""
        return job.latest_start + (self.expected_s or job.profile.run_s)


def check_expectation(expected_s: float | None, step_s: float | None) -> None:
    """Refuse an expected length, or a step between starts, that is none."""
    if expected_s is not None and not 0 < expected_s < np.inf:
        raise InvalidInput(f"a job is expected to run for longer than 0 s, not {expected_s}")
    Oracle(step_s=step_s)


def expected_costs(
    job: Job, signal: Signal, expected_s: float | None, step_s: float | None
) -> tuple[FloatArray, FloatArray, float]:
    """Return what a run of the expected length costs, by its delay.

    Args:
        expected_s: How long it is expected to run, None for as long as it does.
        step_s: Step between delays, None for every delay at which the cost bends.

    Returns:
        The delays; the cost at each, for 1 W; and the length that was reckoned with.
    """
    run_s = job.profile.run_s
    covered_s = max(signal.end - job.latest_start, run_s)
    length_s = min(expected_s or run_s, covered_s)
    level = Job(
        id=job.id,
        arrival=job.arrival,
        deadline=job.latest_start + length_s,
        profile=PowerProfile.constant(1.0, length_s),
    )
    delays_s, costs = cost_by_delay(level, signal)
    if step_s is not None:
        delays_s, costs = on_steps(delays_s, costs, step_s)
    return delays_s, costs, length_s


def start_expected(
    jobs: Workload,
    signal: Signal,
    expected_s: float | None,
    step_s: float | None,
    *,
    per_time: bool,
) -> Stretches:
    """Return the starts at which runs of the expected length cost least or save fastest.

    Args:
        expected_s: How long each is expected to run, None for as long as it does.
        step_s: Step between delays, None for any.
        per_time: Whether to seek what is saved per second until the job is done.
    """
    from lowtide.policies.many_kernels import Runs, best_delays

    require_windows(jobs, signal)
    run_s, latest = jobs.run_s, jobs.latest_start
    covered_s = np.maximum(signal.end - latest, run_s)
    length_s = np.minimum(expected_s or run_s, covered_s)
    end = latest + length_s
    nothing, bounds = ragged(())
    runs = Runs(
        arrival=column(jobs.arrival),
        slack_s=column(np.maximum(end - jobs.arrival - length_s, 0.0)),
        end=column(end),
        length_s=column(length_s),
        power=column(np.ones(len(jobs))),
        place=column(np.full(len(jobs), -1)),
        offsets_s=nothing,
        falls=nothing,
        bounds=bounds,
    )
    delays_s = best_delays(runs, series_of(signal), float(step_s or 0.0), per_time)
    return within_windows(jobs, jobs.arrival + delays_s)
