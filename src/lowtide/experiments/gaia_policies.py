"""What the policies of the GAIA comparison decide for one job, before any queue."""

from __future__ import annotations

import math

import numpy as np

from lowtide.job import Job
from lowtide.policies.dtpr import taken
from lowtide.policies.oracle import cost_by_delay, first_lowest
from lowtide.policies.start_time import LowestSlot
from lowtide.policies.threshold import quantile_between
from lowtide.policies.wait_awhile import cheapest_moments
from lowtide.profile import PowerProfile
from lowtide.signal import FloatArray, Signal

# The threshold policy looks at the 30 % cleanest moments of the day ahead.
LOOK_AHEAD_S = 86400.0
QUANTILE = 0.3


def best_delay(
    job: Job, signal: Signal, *, start_step_s: float | None, per_time: bool = False
) -> float:
    """Return how long after arrival a run is cleanest, or saves most per time until its end.

    Args:
        job: A job of the length that the policy believes in.
        signal: What a kWh emits.
        start_step_s: Try only whole multiples of this; None tries every moment.
        per_time: Whether to divide what is saved by the time from arrival to the end.
    """
    run_s = job.profile.run_s
    if start_step_s is None:
        delays_s, costs = cost_by_delay(job, signal)
    else:
        # Integrals rather than points of the curve above: equal runs then cost exactly the same.
        delays_s = np.arange(0.0, job.slack_s + 1e-9 * start_step_s, start_step_s)
        costs = signal.integral(job.arrival + delays_s, job.arrival + delays_s + run_s)
    if per_time:
        # Between two bends this is one linear function over another, so it has no minimum there.
        costs = (costs - costs[0]) / (delays_s + run_s)
    return first_lowest(delays_s, costs, math.inf)


def lowest_slot_delay(job: Job, signal: Signal) -> float:
    """Return how long after arrival the signal is lowest for the first time.

    Args:
        job: A job; its length does not matter.
        signal: What a kWh emits.
    """
    return LowestSlot().decide(job, signal).schedule.start - job.arrival


def wait_awhile(job: Job, signal: Signal) -> list[tuple[float, float]]:
    """Return the cleanest moments that make up a job's length.

    Args:
        job: A job that may be stopped for free.
        signal: What a kWh emits.
    """
    return cheapest_moments(signal, job.arrival, job.deadline, job.profile.run_s)


def below_threshold(job: Job, signal: Signal, *, step_s: float | None) -> list[tuple[float, float]]:
    """Return when a job runs that runs in clean moments, and always once it has waited enough.

    Args:
        job: A job that may be stopped for free.
        signal: What a kWh emits.
        step_s: The step that the quantile of the day ahead is counted in; None counts time.
    """
    end = job.arrival + LOOK_AHEAD_S
    limit = (
        quantile_between(signal, job.arrival, end, QUANTILE)
        if step_s is None
        else _quantile_of_steps(signal, job.arrival, end, step_s)
    )
    return taken(job, signal, lambda slot: slot.price < limit)


def job_of(arrival_s: float, length_s: float, wait_s: float) -> Job:
    """Return a job of 1 W that may wait so long.

    Args:
        arrival_s: When it arrives.
        length_s: How long it runs.
        wait_s: How long it may wait.
    """
    return Job(
        id="job",
        arrival=arrival_s,
        deadline=arrival_s + wait_s + length_s,
        profile=PowerProfile.constant(1.0, length_s),
    )


def _quantile_of_steps(signal: Signal, begin: float, end: float, step_s: float) -> float:
    """Return the 30 % quantile of the day ahead as the original takes it: of 5-s steps.

    Between the two steps whose ranks surround the quantile's lies a straight line.
    """
    window = signal.window(begin, end)
    order = np.argsort(window.values, kind="stable")
    values: FloatArray = window.values[order]
    upto_s = np.cumsum(np.diff(np.clip(window.edges, begin, end))[order])
    rank = QUANTILE * ((end - begin) / step_s - 1)
    below, above = (
        float(values[np.searchsorted(upto_s, each * step_s, side="right")])
        for each in (math.floor(rank), math.ceil(rank))
    )
    return below + (rank - math.floor(rank)) * (above - below)
