"""Many jobs and a signal in columns, as kernels take them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple, TypeVar, cast

import numpy as np
import numpy.typing as npt

from lowtide.accounting import Stretches
from lowtide.job import INTERRUPTIBLE, Job
from lowtide.profile import PowerProfile
from lowtide.signal import FloatArray, Signal
from lowtide.workload import IntArray, Workload

Array = TypeVar("Array", bound=npt.NDArray[Any])


class SignalSteps(NamedTuple):
    """A signal: its values, their integrals up to each step, where it begins, and its step."""

    values: FloatArray
    prefix: FloatArray
    start: float
    step_s: float


# Prefix integrals, values and step of what a second of holding a machine costs, and where the
# planner's first moment lies in it.
Rent = tuple[FloatArray, FloatArray, float, float]

# Where the phases of each part stand among those of a profile. NumPy's numbers, and so a few more:
# a kernel that is given a plain 0 is compiled for that alone, then again.
STARTUP: Any = np.int64(0)
RESTART: Any = np.int64(1)
WORK: Any = np.int64(2)
STOP: Any = np.int64(3)
PARTS: Any = np.int64(4)


class Jobs(NamedTuple):
    """Jobs in columns, and a table of the phases of their profiles.

    A job of constant power (`place` −1) draws `power` for `work_s`. Others draw `power` times what
    their profile does: the phases of its startup, its restart, its work and its stop are those
    from `bounds[PARTS * place + part]` to `bounds[PARTS * place + part + 1]`. Those of a restart
    count where the profile `resumes` by them, and not by its startup.
    """

    arrival: FloatArray
    deadline: FloatArray
    startup_s: FloatArray
    stop_s: FloatArray
    work_s: FloatArray
    power: FloatArray
    interruptible: IntArray
    max_starts: IntArray
    min_run_s: FloatArray
    place: IntArray
    durations_s: FloatArray
    watts: FloatArray
    saves: npt.NDArray[np.bool_]
    bounds: IntArray
    suspended_w: FloatArray
    resumes: npt.NDArray[np.bool_]

    @classmethod
    def of(cls, jobs: Workload) -> Jobs:
        """Return the jobs of a workload."""
        return cls._made(
            jobs.profiles,
            jobs.profile,
            arrival=jobs.arrival,
            deadline=jobs.deadline,
            work_s=jobs.work_s,
            power=jobs.power,
            interruptible=jobs.interruptible,
            max_starts=jobs.max_starts,
            min_run_s=jobs.min_run_s,
        )

    @classmethod
    def of_list(cls, jobs: Sequence[Job]) -> Jobs:
        """Return jobs in the order that they are given in, as a workload's are not."""
        places: dict[int, int] = {}
        profiles: list[PowerProfile] = []
        place = []
        for job in jobs:
            number = places.get(id(job.profile))
            if number is None:
                number = places[id(job.profile)] = len(profiles)
                profiles.append(job.profile)
            place.append(number)
        of_job = np.array(place, dtype=np.int64)
        return cls._made(
            profiles,
            of_job,
            arrival=np.array([job.arrival for job in jobs]),
            deadline=np.array([job.deadline for job in jobs]),
            work_s=np.array([*(each.work_s for each in profiles), 0.0])[of_job],
            power=np.ones(len(jobs)),
            interruptible=np.array(
                [INTERRUPTIBLE.index(job.interruptible) for job in jobs], dtype=np.int64
            ),
            max_starts=np.array([job.max_starts or 0 for job in jobs], dtype=np.int64),
            min_run_s=np.array([job.min_run_s for job in jobs], dtype=np.float64),
        )

    @classmethod
    def _made(cls, profiles: Sequence[PowerProfile], place: IntArray, **given: Any) -> Jobs:
        parts = [
            part
            for each in profiles
            for part in (each.startup, each.restart or (), each.work, each.stop)
        ]
        phases = [phase for part in parts for phase in part]
        startup_s, stop_s = (
            np.array([*(getattr(each, name) for each in profiles), 0.0])[place]
            for name in ("startup_s", "stop_s")
        )
        columns = {
            **given,
            "startup_s": startup_s,
            "stop_s": stop_s,
            "place": place,
            "durations_s": np.array([phase.duration_s for phase in phases], dtype=np.float64),
            "watts": np.array([phase.power_w for phase in phases], dtype=np.float64),
            "saves": np.array([phase.checkpoint for phase in phases], dtype=np.bool_),
            "bounds": np.cumsum([0, *(len(part) for part in parts)], dtype=np.int64),
            "suspended_w": np.array([each.suspended_power_w for each in profiles], np.float64),
            "resumes": np.array([each.restart is not None for each in profiles], np.bool_),
        }
        return cls(**{name: column(values) for name, values in columns.items()})


class JobRuns(NamedTuple):
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


class StopRules(NamedTuple):
    """Jobs that may be stopped, in columns, and a table of checkpoints by profile.

    The checkpoints of a job with profile `place` are `points_s[bounds[place]:bounds[place + 1]]`.
    """

    arrival: FloatArray
    deadline: FloatArray
    startup_s: FloatArray
    restart_s: FloatArray
    stop_s: FloatArray
    work_s: FloatArray
    interruptible: IntArray
    max_starts: IntArray
    min_run_s: FloatArray
    place: IntArray
    points_s: FloatArray
    bounds: IntArray


def stretches_of(made: tuple[IntArray, FloatArray, FloatArray, FloatArray]) -> Stretches:
    """Return what a kernel made as stretches."""
    return Stretches(job=made[0], start=made[1], work_s=made[2], lost_s=made[3])


def within_windows(jobs: Workload, start: FloatArray) -> Stretches:
    """Return one start per job, each moved into its window, as `stopping.run_from` does."""
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


def series_of(signal: Signal) -> SignalSteps:
    """Return a signal as the kernels take it."""
    return SignalSteps(signal.values, signal.prefix, signal.start, signal.step_s)


def rules_of(jobs: Workload) -> StopRules:
    """Return how jobs may be stopped, and what that takes, as the kernels take it."""
    stop_s = np.array([*(each.stop_s for each in jobs.profiles), 0.0])[jobs.profile]
    points_s, bounds = ragged(each.checkpoints_s for each in jobs.profiles)
    return StopRules(
        arrival=column(jobs.arrival),
        deadline=column(jobs.deadline),
        startup_s=column(jobs.startup_s),
        restart_s=column(jobs.restart_s),
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
