"""Planning many jobs to the optimum.

Jobs of constant power are planned together by compiled loops, others one by one. How good each
plan is proven to be is not asked for here, which is half the work where a step loses something.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from lowtide.accounting import Stretches, integrate
from lowtide.job import INTERRUPTIBLE, TIME_TOLERANCE_S
from lowtide.policies.exact import AHEAD, Exact
from lowtide.policies.exact_kernels import best_gridded, best_straight
from lowtide.policies.many import column, merged, renumbered, require_windows, series_of
from lowtide.policies.oracle import Oracle
from lowtide.policies.problem import MOST_BYTES
from lowtide.policies.wait_awhile import WaitAwhile
from lowtide.signal import FloatArray, Signal
from lowtide.units import JOULES_PER_KWH
from lowtide.workload import IntArray, Workload


def plan_together(planner: Exact, jobs: Workload, signal: Signal) -> Stretches:
    """Return how a planner runs many jobs."""
    require_windows(jobs, signal)
    plain = (jobs.profile < 0) & (
        not (planner.wait or planner.occupancy is not None or planner.forbidden)
    )
    anywhere = jobs.interruptible == INTERRUPTIBLE.index("anywhere")
    straight = plain & (~anywhere | (jobs.max_starts == 1))
    stepped = plain & anywhere & (jobs.max_starts == 0) & (jobs.min_run_s <= 0)
    if planner.step_s is None:
        stepped[:] = False
    else:
        steps = jobs.work_s / planner.step_s + 1, jobs.slack_s / planner.step_s + 1
        stepped &= (steps[0] + 24) * steps[1] <= MOST_BYTES
    rest = np.flatnonzero(~(straight | stepped))
    parts = []
    if straight.any():
        part = _straight(jobs.take(straight), signal)
        parts.append(renumbered(part, np.flatnonzero(straight)))
    if planner.step_s is not None and stepped.any():
        part = _stepped(planner, jobs.take(stepped), signal, float(planner.step_s))
        parts.append(renumbered(part, np.flatnonzero(stepped)))
    if rest.size:
        parts.append(_one_by_one(planner, jobs, signal, rest))
    return merged(*parts)


def _stepped(planner: Exact, jobs: Workload, signal: Signal, step_s: float) -> Stretches:
    """Decide for jobs of constant power that may be stopped anywhere."""
    lossless = _lossless(jobs, signal, step_s)
    made, costs = best_gridded(
        column(jobs.arrival),
        column(jobs.deadline),
        column(jobs.work_s),
        column(jobs.power / JOULES_PER_KWH),
        column(lossless),
        series_of(signal),
        step_s,
    )
    best = Stretches(job=made[0], start=made[1], work_s=made[2], lost_s=made[3])
    doubtful = np.flatnonzero(~lossless & (jobs.slack_s > TIME_TOLERANCE_S))
    if not doubtful.size:
        return best
    # Policies that decide between the steps may come out ahead by a little, as in `decide`.
    some = jobs.take(doubtful)
    lowest = costs[doubtful]
    chosen = np.zeros(len(jobs), dtype=np.int64)
    close = np.zeros(doubtful.size, dtype=bool)
    rivals = [policy.decide_many(some, signal) for policy in (WaitAwhile(), Oracle())]
    for number, rival in enumerate(rivals, start=1):
        paid = _paid(some, rival, signal)
        enough = AHEAD * np.abs(lowest)
        close |= np.abs(lowest - paid - enough) < enough / 2
        ahead = paid < lowest - enough
        chosen[doubtful[ahead]] = number
        lowest = np.where(ahead, paid, lowest)
    # Where rounding could turn the balance, `decide` itself must say.
    chosen[doubtful[close]] = -1
    parts = [_of_rows(best, chosen == 0)]
    for number, rival in enumerate(rivals, start=1):
        parts.append(_of_rows(renumbered(rival, doubtful), chosen == number))
    if close.any():
        parts.append(_one_by_one(planner, jobs, signal, doubtful[close]))
    return merged(*parts)


def _one_by_one(planner: Exact, jobs: Workload, signal: Signal, rows: IntArray) -> Stretches:
    """Decide for some of the jobs as for each."""
    part = jobs.take(rows)
    schedules = [planner.lay_out(planner.optimise(job, signal), job, signal)[0] for job in part]
    return renumbered(Stretches.of_schedules(part, schedules), rows)


def _straight(jobs: Workload, signal: Signal) -> Stretches:
    """Decide for jobs of constant power that run through."""
    start = best_straight(
        column(jobs.arrival),
        column(jobs.deadline),
        column(jobs.work_s),
        column(jobs.power / JOULES_PER_KWH),
        series_of(signal),
    )
    return Stretches.one_each(jobs, start)


def _paid(jobs: Workload, stretches: Stretches, signal: Signal) -> FloatArray:
    """Return what jobs of constant power come to, to more digits than epoch seconds have."""
    begin_s = stretches.start - signal.start
    power_w = jobs.power[stretches.job]
    parts = integrate(power_w, begin_s, begin_s + stretches.work_s, signal, origin=signal.start)
    return np.bincount(stretches.job, weights=parts, minlength=len(jobs)).astype(np.float64)


def _of_rows(stretches: Stretches, rows: npt.NDArray[np.bool_]) -> Stretches:
    """Return the stretches of some of the jobs."""
    kept = rows[stretches.job]
    return Stretches(
        job=stretches.job[kept],
        start=stretches.start[kept],
        work_s=stretches.work_s[kept],
        lost_s=stretches.lost_s[kept],
    )


def _lossless(jobs: Workload, signal: Signal, step_s: float) -> npt.NDArray[np.bool_]:
    """Return for which jobs of constant power a step divides every duration that matters."""
    lengths_s = np.stack(
        [
            jobs.slack_s,
            jobs.work_s,
            np.full(len(jobs), signal.step_s),
            (jobs.arrival - signal.start) % signal.step_s,
        ]
    )
    whole_ms = np.round(1000 * lengths_s)
    exact = np.all(np.abs(1000 * lengths_s - whole_ms) <= 1e-3, axis=0)
    multiple = np.gcd.reduce(whole_ms.astype(np.int64), axis=0) / 1000 / step_s
    divides = (np.abs(multiple - np.round(multiple)) < 1e-9) & (multiple >= 1)
    lossless: npt.NDArray[np.bool_] = exact & divides
    return lossless
