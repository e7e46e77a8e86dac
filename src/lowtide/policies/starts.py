"""Policies that choose a start and never stop: at once, late, and by what the run would cost.

With piecewise-constant power and intensity the cost of a run is a piecewise-linear function of
its start, so its minimum lies where some change of power meets some step of the signal, or at
either end of the window. All those moments are few enough to try: the slope of the cost changes
at each by (change of power) × (step of the signal), and two running sums give every cost.

Who does not know how long a job runs can still expect something, such as the mean of its queue.
The published model: the job draws constant power for the expected length, whatever it then does.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from lowtide.accounting import Stretches, footprint
from lowtide.errors import InvalidInput
from lowtide.job import Job
from lowtide.policies.columns import column, ragged, require_windows, series_of, within_windows
from lowtide.policies.policy import Decision, decide_one
from lowtide.policies.stopping import run_from
from lowtide.profile import PowerProfile
from lowtide.signal import FloatArray, Signal
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
class AsRecorded:
    """Start when the job did, as its trace says, and never stop: what happened, to compare with.

    On limited machines starts are carried out as they stand: nobody queues again, and what does
    not fit is refused.
    """

    def decide(self, job: Job, signal: Signal) -> Decision:  # noqa: ARG002 - looks at nothing
        """Refuse: what was recorded stands in a trace."""
        raise InvalidInput(
            f"as_recorded starts jobs when their trace says, and job {job.id} is of none: simulate "
            "a workload of a trace that says how long its jobs waited"
        )

    def decide_many(self, jobs: Workload, signal: Signal) -> Stretches:  # noqa: ARG002 - looks at nothing
        """Return the starts that were recorded."""
        if jobs.waited_s is None or np.isnan(jobs.waited_s).any():
            row = 0 if jobs.waited_s is None else int(np.isnan(jobs.waited_s).argmax())
            raise InvalidInput(
                f"as_recorded starts jobs when they did, and of job {jobs.id[row]} that is not "
                "known: take a trace with the wait of every job (SWF, sacct, or a table with a "
                "column waited or start_time), or leave such jobs out"
            )
        return Stretches.one_each(jobs, jobs.arrival + jobs.waited_s)

    def decide_queue(self, jobs: Workload, signal: Signal, cluster: object) -> Stretches:  # noqa: ARG002
        """Return the same for jobs that share machines."""
        return self.decide_many(jobs, signal)


@dataclass(frozen=True, slots=True, kw_only=True)
class LowestSlot:
    """Start at the first moment at which the signal is lowest within the waiting time.

    It looks at the moment of the start alone, not at how long the job then runs.
    """

    def decide(self, job: Job, signal: Signal) -> Decision:
        """Decide for one job."""
        return Decision(schedule=decide_one(self, job, signal))

    def decide_many(self, jobs: Workload, signal: Signal) -> Stretches:
        """Decide for many jobs, as for each."""
        from lowtide.policies.published_kernels import lowest_slots

        require_windows(jobs, signal)
        arrival, latest = column(jobs.arrival), column(jobs.latest_start)
        return within_windows(jobs, lowest_slots(arrival, latest, series_of(signal)))


# Costs closer than this, relative to the dearest, differ by rounding alone: the earliest wins.
TIE = 1e-12
# So do those no further apart than what a run comes to, at its dearest, in so many seconds of each
# second since 1970: instants are told no better, and edges of steps such as 3600/7 s are rounded.
TIE_INSTANT = 2.0**-49


@dataclass(frozen=True, slots=True, kw_only=True)
class Oracle:
    """Start when the whole run is cleanest, knowing its length, its phases and the signal.

    Attributes:
        step_s: Try only arrival + k·step_s, as published versions do; None tries every moment.
    """

    step_s: float | None = None

    def __post_init__(self) -> None:
        if self.step_s is not None and not self.step_s > 0:
            raise InvalidInput(
                f"the step between starts must be longer than 0 s, not {self.step_s}"
            )

    def decide(self, job: Job, signal: Signal) -> Decision:
        """Decide for one job."""
        schedule = decide_one(self, job, signal)
        proven = self.step_s is None and job.interruptible == "never"
        bound = footprint(schedule, job, signal).amount if proven else None
        return Decision(schedule=schedule, lower_bound=bound, step_s=self.step_s)

    def decide_many(self, jobs: Workload, signal: Signal) -> Stretches:
        """Decide for many jobs, as for each."""
        from lowtide.policies.columns import JobRuns
        from lowtide.policies.published_kernels import best_delays

        require_windows(jobs, signal)
        changes = [_power_falls(profile) for profile in jobs.profiles]
        offsets_s, bounds = ragged(offsets_s for offsets_s, _ in changes)
        falls, _ = ragged(falls_w for _, falls_w in changes)
        runs = JobRuns(
            arrival=column(jobs.arrival),
            slack_s=column(np.maximum(jobs.slack_s, 0.0)),
            end=column(jobs.deadline),
            length_s=column(jobs.run_s),
            power=column(jobs.power),
            place=column(jobs.profile),
            offsets_s=offsets_s,
            falls=falls,
            bounds=bounds,
        )
        delays_s = best_delays(runs, series_of(signal), float(self.step_s or 0.0), False)
        return within_windows(jobs, jobs.arrival + delays_s)


def cost_by_delay(job: Job, signal: Signal) -> tuple[FloatArray, FloatArray]:
    """Return the cost of an uninterrupted run as a piecewise-linear function of its delay.

    Args:
        signal: What a kWh emits or costs; it covers the job's window.

    Returns:
        The delays at which the function bends, in seconds after arrival, from 0 to the slack; and
        its values there, in grams (or money) times joules per kWh.
    """
    from lowtide.policies.published_kernels import costs_by_delay

    signal.require(job.arrival, job.deadline)
    offsets_s, falls_w = _power_falls(job.profile)
    slack_s = max(job.slack_s, 0.0)
    return costs_by_delay(job.arrival, job.deadline, slack_s, offsets_s, falls_w, series_of(signal))


def first_lowest(delays_s: FloatArray, costs: FloatArray, longest_s: float) -> float:
    """Return the first delay, no longer than allowed, at which a run costs least."""
    within = delays_s <= longest_s
    if not within.all():
        costs = np.append(costs[within], np.interp(longest_s, delays_s, costs))
        delays_s = np.append(delays_s[within], longest_s)
    tie = TIE * float(np.abs(costs).max())
    return float(delays_s[np.flatnonzero(costs <= costs.min() + tie)[0]])


def _power_falls(profile: PowerProfile) -> tuple[FloatArray, FloatArray]:
    """Return when a run's power changes, seconds after its start, and by how much it falls."""
    phases = (*profile.startup, *profile.work)
    power_w = np.array([0.0, *(phase.power_w for phase in phases), 0.0])
    offsets_s = np.concatenate(([0.0], np.cumsum([phase.duration_s for phase in phases])))
    falls_w = -np.diff(power_w)
    # The start stays even if nothing changes there, so that there is always one.
    kept = (falls_w != 0.0) | (offsets_s == 0.0)
    return offsets_s[kept], falls_w[kept]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Expecting:
    """A policy that chooses a start by how long the job is expected to run.

    Attributes:
        expected_s: How long the job is expected to run, startup included; None for as long as it
            does. It counts up to the signal's end only: for every start of a job alike it is cut
            to what the signal covers after the latest one. That is at least the job's own length.
        step_s: Try only arrival + k·step_s, as published versions do; None tries every moment.
    """

    per_time: ClassVar[bool]
    expected_s: float | None = None
    step_s: float | None = None

    def __post_init__(self) -> None:
        check_expectation(self.expected_s, self.step_s)

    def decide(self, job: Job, signal: Signal) -> Decision:
        """Decide for one job."""
        return Decision(schedule=decide_one(self, job, signal), step_s=self.step_s)

    def decide_many(self, jobs: Workload, signal: Signal) -> Stretches:
        """Decide for many jobs, as for each."""
        return start_expected(jobs, signal, self.expected_s, self.step_s, per_time=self.per_time)

    def looks_until(self, job: Job) -> float:
        """Return until when the signal is looked at, as far as there is any."""
        return job.latest_start + (self.expected_s or job.profile.run_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class LowestWindow(_Expecting):
    """Start when a run of the expected length would be cleanest."""

    per_time = False


def check_expectation(expected_s: float | None, step_s: float | None) -> None:
    """Refuse an expected length, or a step between starts, that is none."""
    if expected_s is not None and not 0 < expected_s < np.inf:
        raise InvalidInput(f"a job is expected to run for longer than 0 s, not {expected_s}")
    Oracle(step_s=step_s)


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
    from lowtide.policies.columns import JobRuns
    from lowtide.policies.published_kernels import best_delays

    require_windows(jobs, signal)
    run_s, latest = jobs.run_s, jobs.latest_start
    covered_s = np.maximum(signal.end - latest, run_s)
    length_s = np.minimum(expected_s or run_s, covered_s)
    end = latest + length_s
    nothing, bounds = ragged(())
    runs = JobRuns(
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


@dataclass(frozen=True, slots=True, kw_only=True)
class CarbonTime(_Expecting):
    """Start when the most is saved per time until the job is done; at once if nothing is saved.

    The cleanest window may be a day away and hardly better than one an hour away. This weighs the
    two: it maximises (C(arrival) − C(start)) / ((start − arrival) + length), where C is what a run
    of the expected length costs. Between two bends of C that is a ratio of linear functions, which
    has no maximum inside, so that the bends are all there is to try.
    """

    per_time = True
