"""Jobs as the kernels take them: work in parts, starts and stops in legs, all in slots."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from lowtide.errors import InvalidJob
from lowtide.job import INTERRUPTIBLE, TIME_TOLERANCE_S
from lowtide.market.kernels import JOB, LEG, LINK, PART, Queue
from lowtide.precedence import Links
from lowtide.profile import PowerProfile
from lowtide.signal import FloatArray
from lowtide.workload import IntArray, Workload

_HOUR_S = 3600.0
# Leaving a job out counts so many times what running it in the worst hours would.
_LAST_RESORT = 20.0
_NEVER, _ANYWHERE, _CHECKPOINTS = range(len(INTERRUPTIBLE))


class Standing(NamedTuple):
    """Where jobs stand that have begun, as told when the rest of them is planned.

    Attributes:
        running: Whether each runs: then its arrival is now, and its startup is not repeated.
        begun: Whether it is suspended.
        fixed_s: For how much of its work it may not be stopped.
        stops_now: Whether a running one may be stopped at once.
        deadline: When it must be done: a running one needs no startup for it.
    """

    running: npt.NDArray[np.bool_]
    begun: npt.NDArray[np.bool_]
    fixed_s: FloatArray
    stops_now: npt.NDArray[np.bool_]
    deadline: FloatArray


class _Course(NamedTuple):
    """The work of a kind of job, in slots from where it begins."""

    at: FloatArray
    kw: FloatArray
    stop: Any
    free: IntArray


def lay_out(
    jobs: Workload,
    origin: float,
    step_s: float,
    need: FloatArray,
    held: FloatArray,
    extra_kw: FloatArray,
    wait: FloatArray,
    weight: FloatArray | None,
    dearest: float,
    standing: Standing | None,
    links: Links,
    window: tuple[FloatArray, FloatArray],
    cut: int,
) -> tuple[Queue, FloatArray, FloatArray]:
    """Return jobs as the kernels take them, when each would start, and progress of the parts.

    Args:
        links: Who waits for whom.
        window: From when each can run and by when it must be done, because of that too.
        cut: After every how many slots of work a job may be stopped that may be stopped anywhere.
    """
    count = len(jobs)
    never = (jobs.interruptible == _NEVER) | (jobs.max_starts == 1)
    kinds = np.where(never, _NEVER, jobs.interruptible)
    courses: dict[tuple[Any, ...], _Course] = {}
    of_job: list[_Course] = []
    for key in zip(
        jobs.profile.tolist(),
        kinds.tolist(),
        np.where(never, 0.0, jobs.min_run_s).tolist(),
        np.where(jobs.profile < 0, jobs.work_s, 0.0).tolist(),
        strict=True,
    ):
        if key not in courses:
            profile = jobs.profiles[key[0]] if key[0] >= 0 else None
            courses[key] = _course(profile, *key[1:], step_s, cut)
        of_job.append(courses[key])
    legs, bounds = _legs(jobs.profiles, step_s)
    sizes = np.array([course.at.size for course in of_job])
    ends = np.cumsum(sizes)
    rows = np.zeros(count, dtype=JOB)
    rows["part"], rows["end"] = ends - sizes, ends - 1
    spread = np.repeat(np.arange(count), sizes)
    startup_s = jobs.startup_s
    arrival, deadline = window
    if standing is not None:
        startup_s = np.where(standing.begun, jobs.restart_s, startup_s)
        startup_s = np.where(standing.running, 0.0, startup_s)
        deadline = np.minimum(
            standing.deadline, np.where(deadline < jobs.deadline, deadline, np.inf)
        )
    run_s = startup_s + jobs.work_s
    # A start lies on the edge of a slot, unless that would leave too little time.
    after = (arrival - origin) / step_s
    aligned = np.ceil(after - 1e-9)
    slack = (deadline - origin - run_s) / step_s + TIME_TOLERANCE_S / step_s
    begin = np.where(aligned <= slack + 1e-9, aligned, after)
    rows["first"] = np.floor(begin + 1e-9)
    rows["begin"] = np.maximum(begin - rows["first"], 0.0)
    rows["begin"][rows["begin"] < 1e-7] = 0.0
    rows["delays"] = np.maximum(np.floor(slack - begin + 1e-9) + 1, 0.0)
    parts = np.zeros(int(ends[-1]), dtype=PART)
    work_at = np.concatenate([course.at for course in of_job])
    parts["at"] = work_at + (rows["begin"] + startup_s / step_s)[spread]
    unit = jobs.power
    parts["kw"] = np.concatenate([course.kw for course in of_job]) * unit[spread] / 1000
    parts["kw"] += extra_kw[spread]
    parts["stop"] = np.concatenate([course.stop for course in of_job])
    parts["free"] = np.concatenate([course.free for course in of_job])
    place = jobs.profile
    own = bounds[place]
    # Legs are those of a profile, so power factors and what nodes draw need legs of one's own.
    legs, own = _own_legs(legs, own, unit / 1000, extra_kw)
    rows["startup"], rows["restart"], rows["stop"], rows["legs"] = own.T
    rows["restart_t"] = _lengths(legs, rows["restart"], rows["stop"])
    rows["stop_t"] = _lengths(legs, rows["stop"], rows["legs"])
    suspended_w = np.array([*(each.suspended_power_w for each in jobs.profiles), 0.0])[place]
    rows["suspended_kw"] = suspended_w * unit / 1000
    rows["wait"] = wait * step_s
    rows["already"] = wait * step_s * (begin - (jobs.arrival - origin) / step_s)
    rows["starts"] = np.where(never, 1, jobs.max_starts)
    # More starts than there is room for are no limit.
    rows["starts"][rows["starts"] >= sizes] = 0
    rows["starts"][never] = 1
    rows["weight"] = 1.0 if weight is None else weight
    rows["peak_kw"] = jobs.peak_w / 1000 + extra_kw
    rows["leave"] = _last_resort(jobs, rows, need, extra_kw, dearest)
    _require_rules(jobs)
    progress_s = work_at * step_s
    if standing is not None:
        _stand(rows, parts, progress_s, standing)
    base = origin + begin * step_s
    base = np.where(aligned <= slack + 1e-9, base, arrival)
    told, linked = link_table(links.before, links.after, links.gap_s / step_s, count)
    queue = Queue(
        jobs=rows,
        parts=parts,
        legs=legs,
        need=need,
        keep=held,
        ways=np.arange(count + 1),
        links=told,
        linked=linked,
        by_first=np.argsort(rows["first"], kind="stable"),
    )
    return queue, base, progress_s


def link_table(
    before: IntArray, after: IntArray, gap: FloatArray, count: int
) -> tuple[Any, IntArray]:
    """Return links told from both sides, job by job, and where those of each job begin.

    Args:
        gap: How many slots after the end of the one the other may start.
        count: How many jobs there are.
    """
    job = np.concatenate((after, before))
    order = np.argsort(job, kind="stable")
    table = np.zeros(max(job.size, 1), dtype=LINK)
    some = table[: job.size]
    some["other"] = np.concatenate((before, after))[order]
    some["number"] = np.concatenate((np.arange(after.size),) * 2)[order]
    some["gap"] = np.concatenate((gap, gap))[order]
    some["first"] = (np.arange(job.size) < after.size)[order]
    return table, np.searchsorted(job[order], np.arange(count + 1))


def _stand(rows: Any, parts: Any, progress_s: FloatArray, standing: Standing) -> None:
    """Let jobs that have begun go on from where they stand."""
    rows["running"], rows["begun"] = standing.running, standing.begun
    for row in np.flatnonzero(standing.running).tolist():
        own = slice(int(rows["part"][row]), int(rows["end"][row]) + 1)
        fixed_s = float(standing.fixed_s[row])
        parts["stop"][own] &= progress_s[own] >= fixed_s - TIME_TOLERANCE_S
        parts["stop"][own.start] = standing.stops_now[row]
        first = int(np.searchsorted(progress_s[own], fixed_s - TIME_TOLERANCE_S))
        parts["free"][own.start] = first


def _require_rules(jobs: Workload) -> None:
    stops = np.array([*(bool(each.stop) for each in jobs.profiles), False])[jobs.profile]
    bad = stops & (jobs.interruptible == _NEVER)
    if bad.any():
        row = int(np.argmax(bad))
        raise InvalidJob(
            f"job {jobs.id[row]} (row {row + 1}) has stop phases but may never be stopped: leave "
            "them out, or let it be interruptible anywhere or at checkpoints"
        )


def _last_resort(
    jobs: Workload, rows: Any, need: FloatArray, extra_kw: FloatArray, dearest: float
) -> FloatArray:
    """Return what leaving each job out counts: more than any way to run it, and others, does.

    What a job keeps others from counts too: a job that draws nothing may hold many nodes.
    """
    run_h = jobs.run_s / _HOUR_S
    mean_kw = jobs.energy_j / jobs.run_s / 1000 + extra_kw
    share = (need / np.maximum(need.max(axis=0), 1e-300)).max(axis=1)
    densest = float((mean_kw / np.maximum(share, 1e-300)).max())
    worst = dearest * run_h * np.maximum(mean_kw, densest * share)
    least: FloatArray = worst + rows["wait"] * rows["delays"] + rows["already"]
    return _LAST_RESORT * least + 1e-6


def _legs(profiles: Sequence[PowerProfile], step_s: float) -> tuple[Any, IntArray]:
    """Return the legs of profiles' starts and stops, and where those of each lie; none at last."""
    made: list[tuple[float, float]] = []
    bounds = []
    for each in profiles:
        places = [len(made)]
        for phases in (each.startup, each.starting(1), each.stop):
            made += [(phase.duration_s / step_s, phase.power_w) for phase in phases]
            places.append(len(made))
        bounds.append(places)
    bounds.append([len(made)] * 4)
    return np.array(made, dtype=LEG), np.array(bounds, dtype=np.int64)


def _own_legs(
    legs: Any, bounds: IntArray, factor: FloatArray, extra_kw: FloatArray
) -> tuple[Any, IntArray]:
    """Return legs in kilowatts, the same for all jobs of a profile that draw alike."""
    keys, which = np.unique(
        np.column_stack((bounds, factor, extra_kw)), axis=0, return_inverse=True
    )
    parts, places, at = [], [], 0
    for row in keys:
        first, last = int(row[0]), int(row[3])
        own = legs[first:last].copy()
        own["kw"] = own["kw"] * row[4] + row[5]
        parts.append(own)
        places.append(row[:4].astype(np.int64) - first + at)
        at += last - first
    if not at:
        # Kernels take no empty table.
        parts.append(np.zeros(1, dtype=LEG))
    return np.concatenate(parts), np.array(places)[which.ravel()]


def _lengths(legs: Any, first: IntArray, last: IntArray) -> FloatArray:
    upto = np.concatenate(([0.0], np.cumsum(legs["lasts"])))
    return upto[last] - upto[first]


def _course(
    profile: PowerProfile | None,
    kind: int,
    min_run_s: float,
    work_s: float,
    step_s: float,
    cut: int,
) -> _Course:
    """Return the parts of a job's work.

    Args:
        profile: Its profile, None for constant power of 1.
    """
    if profile is None:
        edges_s, watts, saved = np.array([0.0, work_s]), np.ones(1), np.zeros(1, dtype=bool)
    else:
        edges_s = profile.work_edges_s
        watts = np.array([phase.power_w for phase in profile.work])
        saved = np.array([phase.checkpoint for phase in profile.work])
    at = edges_s / step_s
    if kind == _ANYWHERE:
        cuts = cut * np.arange(math.ceil(at[-1] / cut - 1e-7) + 1.0)
        if np.any(np.abs(at - np.round(at)) > 1e-7):
            cuts = np.union1d(cuts[:-1], at)
            cuts = cuts[np.append(True, np.diff(cuts) > 1e-7)]
        cuts[-1] = at[-1]
        place = np.clip(np.searchsorted(at, cuts[:-1] + 1e-7, side="right") - 1, 0, None)
        stop = np.abs(cuts / cut - np.round(cuts / cut)) < 1e-7
        kw, at = watts[place], cuts
    else:
        kw = watts
        stop = np.append(False, saved) & (kind == _CHECKPOINTS)
    stop[-1] = False
    free = np.arange(at.size)
    if min_run_s > 0:
        done_s = at * step_s
        enough = np.searchsorted(done_s, done_s + min_run_s - TIME_TOLERANCE_S, side="left")
        free = np.maximum(enough, free)
    return _Course(at, np.append(kw, 0.0), stop, free)


def cells_of(queue: Queue) -> FloatArray:
    """Return how many states of progress and delay each job has."""
    rows = queue.jobs
    count = rows["end"] - rows["part"] + 1
    cells: FloatArray = count * np.maximum(rows["starts"], 1) * rows["delays"].astype(np.float64)
    return cells
