"""Deciding for many jobs at once.

A policy that can decide for a whole workload in a few vector operations says so by a method
`decide_many`; any other is asked job by job.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from time import perf_counter
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, cast, runtime_checkable

import numpy as np
import numpy.typing as npt

from lowtide.accounting import Stretches
from lowtide.policies.policy import Policy, require_decision
from lowtide.schedule import Schedule
from lowtide.signal import FloatArray, Signal
from lowtide.workload import IntArray, Workload

if TYPE_CHECKING:
    # Compiled code is imported where many jobs are decided for: a single one does not need it.
    from lowtide.policies.many_kernels import Rules, Series

# How many jobs are decided for at first, how long a batch shall take, how much it may grow.
_FEW = 64
_BATCH_S = 0.5
_GROWTH = 64

Array = TypeVar("Array", bound=npt.NDArray[Any])


@runtime_checkable
class DecidesMany(Protocol):
    """A policy that decides for a whole workload at once, as it would job by job."""

    def decide_many(self, jobs: Workload, signal: Signal) -> Stretches:
        """Decide for many jobs.

        Args:
            jobs: What is to be run.
            signal: What a kWh emits or costs; it covers every job's window.
        """
        ...


def decide_many(
    policy: Policy,
    jobs: Workload,
    signal: Signal,
    *,
    advance: Callable[[int], None] = lambda _: None,
) -> Stretches:
    """Return how a policy would run each of many jobs, at once where it can.

    Args:
        advance: Told how many jobs were decided, each time some were.
    """
    if isinstance(policy, DecidesMany):
        return _in_batches(policy, jobs, signal, advance)
    schedules: list[Schedule] = []
    for job in jobs:
        schedules.append(require_decision(policy.decide(job, signal), policy, job).schedule)
        advance(1)
    return Stretches.of_schedules(jobs, schedules)


def _in_batches(
    policy: DecidesMany, jobs: Workload, signal: Signal, advance: Callable[[int], None]
) -> Stretches:
    """Let a policy decide for some jobs after the others, as many at once as it does quickly.

    So it is seen how far a slow one is, and it can be interrupted; a quick one hardly notices.
    """
    if len(jobs) <= _FEW:
        stretches = policy.decide_many(jobs, signal)
        advance(len(jobs))
        return stretches
    parts, done, size = [], 0, _FEW
    while done < len(jobs):
        rows = np.arange(done, min(done + size, len(jobs)))
        clock = perf_counter()
        parts.append(renumbered(policy.decide_many(jobs.take(rows), signal), rows))
        took_s = perf_counter() - clock
        advance(rows.size)
        done += rows.size
        # The first batch may have been compiled for, so it may grow fast afterwards.
        size = int(max(min(size * _BATCH_S / max(took_s, 1e-9), size * _GROWTH), _FEW))
    return merged(*parts)


def decide_some(policy: Policy, jobs: Workload, signal: Signal, rows: IntArray) -> Stretches:
    """Return how a policy runs some of many jobs, asked job by job."""
    part = jobs.take(rows)
    decided = Stretches.of_schedules(
        part, [require_decision(policy.decide(job, signal), policy, job).schedule for job in part]
    )
    return renumbered(decided, rows)


def renumbered(part: Stretches, rows: IntArray) -> Stretches:
    """Return the stretches of some of many jobs as those of all."""
    return Stretches(job=rows[part.job], start=part.start, work_s=part.work_s, lost_s=part.lost_s)


def merged(*parts: Stretches) -> Stretches:
    """Return the stretches of several sets of jobs as one, in the order of the jobs.

    Args:
        parts: Stretches, each job in one of them only.
    """
    job = np.concatenate([part.job for part in parts])
    order = np.argsort(job, kind="stable")
    return Stretches(
        job=job[order],
        start=np.concatenate([part.start for part in parts])[order],
        work_s=np.concatenate([part.work_s for part in parts])[order],
        lost_s=np.concatenate([part.lost_s for part in parts])[order],
    )


def within_windows(jobs: Workload, start: FloatArray) -> Stretches:
    """Return one start per job, each moved into its window, as `carrying_out.run_from` does."""
    return Stretches.one_each(jobs, np.minimum(np.maximum(start, jobs.arrival), jobs.latest_start))


def require_windows(jobs: Workload, signal: Signal) -> None:
    """Raise `NotCovered` for the first job whose window a signal does not cover."""
    if not len(jobs) or signal.covers(float(jobs.arrival.min()), float(jobs.deadline.max())):
        return
    for row in range(len(jobs)):
        signal.require(
            float(jobs.arrival[row]),
            float(jobs.deadline[row]),
            what=f"job {jobs.id[row]}: the signal",
        )


def column(array: Array) -> Array:
    """Return an array in one piece and unchangeable, as those of a signal are.

    Kernels are compiled anew for every kind of array.

    Args:
        array: Numbers per job, or per something else.
    """
    made = np.ascontiguousarray(array).view()
    made.flags.writeable = False
    return cast(Array, made)


def ragged(rows: Iterable[npt.ArrayLike]) -> tuple[FloatArray, IntArray]:
    """Return rows of any length one behind the other, and where each begins and the last ends.

    Args:
        rows: Numbers; an empty list for nothing.
    """
    made = [np.asarray(row, dtype=np.float64) for row in rows]
    bounds = np.cumsum([0, *(row.size for row in made)], dtype=np.int64)
    return column(np.concatenate([np.empty(0), *made])), column(bounds)


def series_of(signal: Signal) -> Series:
    """Return a signal as the kernels take it."""
    from lowtide.policies.many_kernels import Series

    return Series(signal.values, signal.prefix, signal.start, signal.step_s)


def rules_of(jobs: Workload) -> Rules:
    """Return how jobs may be stopped, and what that takes, as the kernels take it."""
    from lowtide.policies.many_kernels import Rules

    stop_s = np.array([*(each.stop_s for each in jobs.profiles), 0.0])[jobs.profile]
    points_s, bounds = ragged(each.checkpoints_s for each in jobs.profiles)
    return Rules(
        arrival=column(jobs.arrival),
        deadline=column(jobs.deadline),
        startup_s=column(jobs.startup_s),
        stop_s=column(stop_s),
        work_s=column(jobs.work_s),
        interruptible=column(jobs.interruptible),
        max_starts=column(jobs.max_starts),
        min_run_s=column(jobs.min_run_s),
        place=column(jobs.profile),
        points_s=points_s,
        bounds=bounds,
    )


def by_value(signal: Signal) -> tuple[IntArray, IntArray]:
    """Return a signal's steps from the cheapest to the dearest, ties by time, and their places."""
    order = np.argsort(signal.values, kind="stable")
    rank = np.empty_like(order)
    rank[order] = np.arange(order.size)
    return column(order), column(rank)
