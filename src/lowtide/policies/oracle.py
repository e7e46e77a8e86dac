"""The best start of a job that is never stopped, at any moment.

With piecewise-constant power and intensity the cost of a run is a piecewise-linear function of
its start, so its minimum lies where some change of power meets some step of the signal, or at
either end of the window. All those moments are few enough to try: the slope of the cost changes
at each by (change of power) × (step of the signal), and two running sums give every cost.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from lowtide.accounting import Stretches, footprint
from lowtide.errors import InvalidInput
from lowtide.job import Job
from lowtide.policies.carrying_out import run_from
from lowtide.policies.many import column, ragged, require_windows, series_of, within_windows
from lowtide.policies.policy import Decision
from lowtide.profile import PowerProfile
from lowtide.signal import FloatArray, Signal
from lowtide.workload import Workload

# Costs closer than this, relative to the dearest, differ by rounding alone: the earliest wins.
TIE = 1e-12


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
        delays_s, costs = cost_by_delay(job, signal)
        if self.step_s is not None:
            delays_s, costs = on_steps(delays_s, costs, self.step_s)
        schedule = run_from(job, job.arrival + first_lowest(delays_s, costs, np.inf))
        proven = self.step_s is None and job.interruptible == "never"
        bound = footprint(schedule, job, signal).amount if proven else None
        return Decision(schedule=schedule, lower_bound=bound, step_s=self.step_s)

    def decide_many(self, jobs: Workload, signal: Signal) -> Stretches:
        """Decide for many jobs, as for each."""
        from lowtide.policies.many_kernels import Runs, best_delays

        require_windows(jobs, signal)
        changes = [_power_falls(profile) for profile in jobs.profiles]
        offsets_s, bounds = ragged(offsets_s for offsets_s, _ in changes)
        falls, _ = ragged(falls_w for _, falls_w in changes)
        runs = Runs(
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
    offsets_s, falls_w = _power_falls(job.profile)
    window = signal.window(job.arrival, job.deadline)
    edges_s = window.edges[1:-1] - job.arrival
    steps = np.diff(window.values)
    slack_s = max(job.slack_s, 0.0)

    # The slope of Σ fall_k · C(delay + offset_k) is Σ fall_k · c(delay + offset_k): it changes
    # where a step of the signal meets a change of power, by the product of the two.
    first = np.searchsorted(edges_s, offsets_s, side="right")
    last = np.searchsorted(edges_s, offsets_s + slack_s, side="left")
    pairs = [
        (edges_s[i:j] - offset_s, fall_w * steps[i:j])
        for i, j, offset_s, fall_w in zip(first, last, offsets_s, falls_w, strict=True)
    ]
    meet_s = np.concatenate([pair[0] for pair in pairs])
    bend = np.concatenate([pair[1] for pair in pairs])
    inside = (meet_s > 0.0) & (meet_s < slack_s) & (bend != 0.0)
    order = np.argsort(meet_s[inside], kind="stable")
    delays_s = np.concatenate(([0.0], meet_s[inside][order], [slack_s]))

    at_once = window.values[first]
    # Summed, not multiplied as vectors: fused products would leave a slope where there is none.
    slope = float(np.sum(falls_w * at_once))
    slopes = slope + np.concatenate(([0.0], np.cumsum(bend[inside][order])))
    now = signal.integral(np.zeros(offsets_s.size), offsets_s, origin=job.arrival)
    return delays_s, falls_w @ now + np.concatenate(([0.0], np.cumsum(slopes * np.diff(delays_s))))


def on_steps(
    delays_s: FloatArray, costs: FloatArray, step_s: float
) -> tuple[FloatArray, FloatArray]:
    """Return multiples of a step among the delays, and what a run costs there.

    Args:
        delays_s: Where the cost bends, from 0 to the longest delay.
    """
    grid_s = np.arange(0.0, delays_s[-1] + 1e-9 * step_s, step_s)
    return grid_s, np.interp(grid_s, delays_s, costs)


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
