"""Many jobs and a signal in columns, as kernels take them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple, TypeVar, cast

import numpy as np
import numpy.typing as npt

from lowtide.accounting import Stretches
from lowtide.signal import FloatArray, Signal
from lowtide.workload import IntArray, Workload

Array = TypeVar("Array", bound=npt.NDArray[Any])


class Series(NamedTuple):
    """A signal: its values, their integrals up to each step, where it begins, and its step."""

    values: FloatArray
    prefix: FloatArray
    start: float
    step_s: float


class Runs(NamedTuple):
    """Jobs that run through, in columns, and a table of when the power of each kind changes.

    A job of constant power (`place` −1) draws `power` for `length_s`. Others draw `power` times
    what row `place` of the table says: changes `bounds[place]` to `bounds[place + 1]`.
    """

    arrival: FloatArray
    slack_s: FloatArray
    end: FloatArray
    length_s: FloatArray
    power: FloatArray
    place: IntArray
    offsets_s: FloatArray
    falls: FloatArray
    bounds: IntArray


class Rules(NamedTuple):
    """Jobs that may be stopped, in columns, and a table of checkpoints by profile.

    The checkpoints of a job with profile `place` are `points_s[bounds[place]:bounds[place + 1]]`.
    """

    arrival: FloatArray
    deadline: FloatArray
    startup_s: FloatArray
    stop_s: FloatArray
    work_s: FloatArray
    interruptible: IntArray
    max_starts: IntArray
    min_run_s: FloatArray
    place: IntArray
    points_s: FloatArray
    bounds: IntArray


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
    return Series(signal.values, signal.prefix, signal.start, signal.step_s)


def rules_of(jobs: Workload) -> Rules:
    """Return how jobs may be stopped, and what that takes, as the kernels take it."""
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
