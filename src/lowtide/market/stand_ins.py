"""Jobs of another time that stand for those that will yet come, so that room is left for them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from lowtide.job import Job
from lowtide.signal import FloatArray
from lowtide.workload import IntArray, Workload

DAY_S = 86400.0
WEEK_S = 7 * DAY_S
# So many steps have to have passed before they say anything of those to come, and so many days
# say as much as is known.
_LEAST_HISTORY = 3
_DAYS = 3
# Of more stand-ins than this some stand for several.
_MOST = 1500
# Weeks that lack less of one than this are whole.
_SHORT_OF_A_WEEK = 0.1
# More jobs than come again at one time.
_ROWS = 1 << 26
# What jobs take of the machines.
HELD = ("cpus", "gpus", "nodes", "memory_bytes")


def those_of_another_time(
    jobs: Workload | None, now: float, ahead_s: float, begun: float
) -> tuple[Workload | None, float]:
    """Return the jobs of a workload that arrive within a time, and how many each stands for.

    Args:
        jobs: Those that stand for others; None for none. Of earlier weeks they come again at the
            same hours of the week, each for a part of one where there are several weeks.
        begun: Since when those that they stand for come: earlier is of earlier weeks.
    """
    if jobs is None:
        return None, 1.0
    past_s = now - jobs.arrival
    weeks = np.where(jobs.arrival < begun, np.floor(past_s / WEEK_S) + 1, 0.0)
    again = jobs.arrival + weeks * WEEK_S
    rows = np.flatnonzero((again > now) & (again < now + ahead_s))
    span = max(math.ceil((begun - float(jobs.arrival[0])) / WEEK_S - _SHORT_OF_A_WEEK), 1)
    return _few(_later(jobs, rows, weeks[rows] * WEEK_S), 1.0 / span)


def those_of_history(
    jobs: Workload,
    now: float,
    ahead_s: float,
    step_s: float,
    *,
    guessed: Mapping[int, Job] | None = None,
) -> tuple[Workload | None, float]:
    """Return the jobs of the last days at the same hours, and how many each stands for.

    They come as often as they would within the time. Those of several days each stand for a part of
    one; before a day has passed, what there was comes again and again.

    Args:
        jobs: All jobs, of which those that have arrived are looked at.
        step_s: How often anybody plans.
        guessed: Jobs of which nobody knows yet how long they run, by their rows, as far as it is
            known; None for none.
    """
    arrival = jobs.arrival
    passed_s = math.ceil((now - float(arrival[0])) / step_s) * step_s
    if passed_s < _LEAST_HISTORY * step_s:
        return None, 1.0
    days = min(max(int(passed_s // DAY_S), 1), _DAYS)
    period_s = min(DAY_S, passed_s)
    known = np.flatnonzero((arrival > now - days * period_s) & (arrival <= now))
    times = days + math.ceil(ahead_s / period_s)
    rows = np.tile(known, times)
    shift_s = np.repeat(np.arange(1, times + 1) * period_s, known.size)
    again = arrival[rows] + shift_s
    ahead = (again > now) & (again < now + ahead_s)
    rows, shift_s = rows[ahead], shift_s[ahead]
    order = np.argsort(rows, kind="stable")
    rows, shift_s = rows[order], shift_s[order]
    if guessed:
        open_rows = sorted(guessed)
        is_open = np.isin(rows, open_rows)
        # A workload is ordered by arrivals, as its rows are.
        as_said = Workload.from_jobs([guessed[row] for row in open_rows])
        places = np.searchsorted(open_rows, rows[is_open])
        said = _later(as_said, places, shift_s[is_open], rows[is_open])
        found = joined(_later(jobs, rows[~is_open], shift_s[~is_open]), said)
    else:
        found = _later(jobs, rows, shift_s)
    return _few(found, 1.0 / days)


def _later(
    jobs: Workload, rows: IntArray, by_s: FloatArray, known_as: IntArray | None = None
) -> Workload:
    """Return some jobs of a workload that come again later, waiting for nobody.

    Each is called by a number below 0 that is the same as long as it is the same job that comes
    again at the same time.

    Args:
        known_as: The rows that they are known by; by default their own.
    """
    some = jobs.take(rows).unlinked()
    rows = rows if known_as is None else known_as
    names = -1 - rows - _ROWS * np.round(by_s).astype(np.int64)
    return replace(some, id=names, arrival=some.arrival + by_s, deadline=some.deadline + by_s)


def _few(found: Workload, each_for: float) -> tuple[Workload | None, float]:
    """Return no more stand-ins than are quick to plan; those that are left stand for more."""
    if not len(found):
        return None, 1.0
    one_in = math.ceil(len(found) / _MOST)
    # The same ones each time: a plan begins with the last one.
    kept = found if one_in == 1 else found.take(found.id % one_in == 0)
    return (kept, each_for * one_in) if len(kept) else (None, 1.0)


def joined(first: Workload, second: Workload) -> Workload:
    """Return the jobs of two workloads."""
    shift = len(first.profiles)
    names = ("id", "arrival", "deadline", "work_s", "power", "interruptible", "min_run_s")
    columns: dict[str, Any] = {
        name: np.concatenate((getattr(first, name), getattr(second, name)))
        for name in (*names, "max_starts", "think_s", *HELD)
    }
    columns["after"] = [*first.after, *second.after]
    used, which = np.unique(second.profile, return_inverse=True)
    known = used[used >= 0]
    place = np.where(second.profile < 0, -1, which - (used.size - known.size) + shift)
    return Workload(
        profile=np.concatenate((first.profile, place)),
        profiles=(*first.profiles, *(second.profiles[each] for each in known.tolist())),
        **columns,
    )
