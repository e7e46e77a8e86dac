"""Whether a job can be run by its rules at all, and which rule would have to give.

For a job that may be stopped anywhere this needs no planner. A run cannot reach across a forbidden
window, and one run does more in an opening between two windows than several. So the question is
which openings to choose: not more than there are starts, each with room for `min_run_s`, and
together with room for the work. Where a restart takes another time than the startup, it matters in
which of them the first start is made.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from heapq import heappop, heappush
from typing import Any

import numpy as np

from lowtide.errors import Cure, Infeasible
from lowtide.job import TIME_TOLERANCE_S
from lowtide.policies import continuous, gridded
from lowtide.policies.problem import Problem
from lowtide.signal import Signal
from lowtide.units import format_hours, format_time, parse_duration

# How many more starts are tried as a cure.
_MOST_STARTS = 64


@dataclass(frozen=True, slots=True)
class _Room:
    """How much work fits between two forbidden windows: with a stop after it, and without."""

    stopped: float
    last: float


@dataclass(frozen=True, slots=True)
class _Needs:
    """What has to fit, in seconds or in steps.

    Attributes:
        work: Work to be done.
        least: Work that each start must do.
        last: Work that the last start must do.
        running: Work that a run under way must still do.
    """

    work: float
    least: float
    last: float
    running: float


def solvable(problem: Problem, step_s: float | None = None) -> bool:
    """Return whether a job can be run by its rules.

    Args:
        problem: The job, and where it stands.
        step_s: The step between the decisions of a job that may be stopped anywhere; None for
            any moment.
    """
    if problem.slack_s < -TIME_TOLERANCE_S:
        return False
    if problem.job.interruptible != "anywhere":
        # What the signal says changes nothing, and a plan on one that is flat is quick.
        return continuous.solve(_later(problem, problem.job.deadline)).cost < np.inf
    if step_s is None:
        return _fits(problem, *_in_seconds(problem))
    grids = (problem, aligned(problem, step_s))
    return any(_fits(each, *_in_steps(each, step_s)) for each in grids if each is not None)


def aligned(problem: Problem, step_s: float) -> Problem | None:
    """Return a problem from the first moment on that is whole steps from where the signal steps.

    A job seldom arrives on the minute, and then a grid that counts from its arrival meets none of
    the moments at which the signal changes.

    Returns:
        The problem; None if there is no such moment, or if it is now.
    """
    state = problem.state
    offset_s = (problem.energy.start - problem.base) % step_s
    if state.running or not TIME_TOLERANCE_S < offset_s < problem.slack_s - step_s:
        return None
    return replace(problem, state=replace(state, now=state.now + offset_s))


def _openings(problem: Problem) -> list[tuple[float, float]]:
    """Return from when to when runs may work or stop, in seconds after `base`.

    The first is that of the run under way, where there is one. In a forbidden window it has no
    length, or less where a stop takes time.
    """
    begin, end = problem.state.now - problem.base, problem.job.deadline - problem.base
    shut = sorted((low - problem.base, high - problem.base) for low, high in problem.forbidden)
    found = []
    for low, high in [*shut, (end, math.inf)]:
        if min(low, end) > begin + TIME_TOLERANCE_S:
            found.append((begin, min(low, end)))
        begin = max(begin, high)
    if problem.state.running and (not found or found[0][0] > TIME_TOLERANCE_S):
        found.insert(0, (0.0, 0.0))
    return found


def _in_seconds(problem: Problem) -> tuple[list[_Room], list[_Room], _Needs]:
    """Return what fits where, and what has to, if decisions are made at any moment."""

    def room(low: float, high: float) -> _Room:
        return _Room(high - problem.stop_s - low, high - low)

    least_s = problem.job.min_run_s
    needs = _Needs(problem.work_s, least_s, least_s, problem.must_run_s)
    return *_rooms(problem, room), needs


def _in_steps(problem: Problem, step_s: float) -> tuple[list[_Room], list[_Room], _Needs]:
    """Return what fits where, and what has to, as the planner on a grid sees it."""
    size = gridded.size_of(problem, step_s)
    end = size.rows + size.columns - 1
    # The last step of work may be a part of one.
    short_s = size.rows * step_s - problem.work_s

    def room(low: float, high: float) -> _Room:
        first = math.ceil((low - TIME_TOLERANCE_S) / step_s)
        stopped, last = (
            math.floor((at_s + TIME_TOLERANCE_S) / step_s)
            for at_s in (high - problem.stop_s, high + short_s)
        )
        return _Room(min(stopped, end) - first, min(last, end) - first)

    latest = math.floor((problem.work_s - problem.job.min_run_s) / step_s + 1e-9)
    least_last = max(size.rows - min(latest, size.rows - 1), size.least)
    running = math.ceil(problem.must_run_s / step_s - 1e-9)
    return *_rooms(problem, room), _Needs(size.rows, size.least, least_last, running)


def _rooms(
    problem: Problem, room: Callable[[float, float], _Room]
) -> tuple[list[_Room], list[_Room]]:
    """Return what fits into each opening if the first start is made there, and a later one.

    Of a job that runs, the first start is the one under way.
    """
    openings = _openings(problem)
    if problem.state.running:
        under_way = [room(*openings[0])]
        return under_way, [room(low + problem.restart_s, high) for low, high in openings[1:]]
    later = [room(low + problem.restart_s, high) for low, high in openings]
    if problem.starting is problem.resuming:
        return later, later
    return [room(low + problem.startup_s, high) for low, high in openings], later


def _fits(problem: Problem, first: list[_Room], later: list[_Room], needs: _Needs) -> bool:
    """Return whether rooms can be chosen that together hold the work."""
    starts = problem.starts_left
    spare = needs.work - needs.running - needs.last
    most = math.inf if starts is None else starts - 1
    if needs.least > 0:
        most = min(most, math.floor(spare / needs.least + 1e-9))
    possible = starts != 0 and spare >= -TIME_TOLERANCE_S
    if problem.state.running:
        done = first[0].stopped
        if first[0].last >= needs.work - TIME_TOLERANCE_S:
            return True
        enough = done >= needs.running - TIME_TOLERANCE_S
        return possible and enough and _hold(later, done, most, needs)
    if not possible or first is later:
        return possible and _hold(later, 0.0, most, needs)
    # The first start is unlike those after it, so each opening is tried for it.
    if _hold(first, 0.0, 0, needs):
        return True
    return most > 0 and any(
        _counts(room, needs) and _hold(later[number + 1 :], room.stopped, most - 1, needs)
        for number, room in enumerate(first)
    )


def _counts(room: _Room, needs: _Needs) -> bool:
    """Return whether a start that is stopped can be made in a room."""
    return room.stopped > 0 and room.stopped >= needs.least - TIME_TOLERANCE_S


def _hold(rooms: Sequence[_Room], done: float, most: float, needs: _Needs) -> bool:
    """Return whether the widest of rooms, so many at most, and one after them hold the work.

    Args:
        done: Work that is done before.
    """
    widest: list[float] = []
    for room in rooms:
        alone = room.last >= max(needs.last, TIME_TOLERANCE_S) - TIME_TOLERANCE_S
        if alone and done + room.last >= needs.work - TIME_TOLERANCE_S:
            return True
        if most > 0 and _counts(room, needs):
            heappush(widest, room.stopped)
            done += room.stopped
            if len(widest) > most:
                done -= heappop(widest)
    return False


def finer_step(problem: Problem, step_s: float, steps_s: Sequence[float]) -> float | None:
    """Return the longest of some steps, shorter than one, on which a job can be run."""
    for each_s in sorted(steps_s, reverse=True):
        if each_s < step_s and solvable(problem, each_s):
            return float(each_s)
    return None


def refusal(
    problem: Problem,
    step_s: float | None,
    steps_s: Sequence[float],
    can_plan: Callable[[Problem], bool],
) -> Infeasible:
    """Return an error that says which rule leaves no way to run a job, and what would cure it.

    Args:
        step_s: The step between decisions, None for any moment.
    """
    job, now = problem.job, problem.state.now
    if problem.slack_s < -TIME_TOLERANCE_S:
        needed_s = problem.base - now + problem.work_s
        what = (
            f"job {job.id} cannot be done in time: from {format_time(now)} on it needs "
            f"{_exactly(needed_s)}, and its deadline leaves {_exactly(job.deadline - now)}"
        )
        return Infeasible(what, _cures(problem, can_plan))
    window = f"between {format_time(now)} and {format_time(job.deadline)}"
    if step_s is None or not solvable(problem):
        what = f"job {job.id} cannot be run by its rules {window}"
        return Infeasible(what, _cures(problem, can_plan))
    finer_s = finer_step(problem, step_s, steps_s)
    if finer_s is None:
        cures = _cures(problem, can_plan)
    else:
        cures = [Cure("policy", "step_s", finer_s, f"a step_s of {_exactly(finer_s)} will do")]
    return Infeasible(
        f"job {job.id} can be run by its rules {window}, but not if decisions are "
        f"{_exactly(step_s)} apart, counted from {format_time(problem.base)}",
        cures,
    )


def _cures(problem: Problem, can_plan: Callable[[Problem], bool]) -> list[Cure]:
    """Return what would let a job be run, each by itself."""
    job = problem.job
    cures = []

    def least(relaxed: Callable[[int], Problem], most: int) -> int | None:
        """Return by how little a rule must give, None if that is no cure."""
        high = 1
        while not can_plan(relaxed(high)):
            if high >= most:
                return None
            high = min(2 * high, most)
        low = high // 2
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (low, middle) if can_plan(relaxed(middle)) else (middle, high)
        return high

    if problem.forbidden and can_plan(replace(problem, forbidden=())):
        # Which of them need not give is not looked for: there may be hundreds.
        cures.append(Cure("policy", "forbidden", (), "allow some of the forbidden windows"))
    if job.max_starts is not None and can_plan(_with(problem, max_starts=None)):
        now = job.max_starts
        more = least(lambda n: _with(problem, max_starts=now + n), _MOST_STARTS)
        text = f"raise max_starts from {now} to {now + more}" if more else "set no max_starts"
        cures.append(Cure("job", "max_starts", now + more if more else None, text))
    if job.min_run_s > 0:
        whole_s = math.ceil(job.min_run_s)
        fewer = least(lambda n: _with(problem, min_run_s=float(whole_s - n)), whole_s)
        if fewer is not None:
            lower_s = float(whole_s - fewer)
            text = f"lower min_run_s from {_exactly(job.min_run_s)} to {_exactly(lower_s)}"
            cures.append(Cure("job", "min_run_s", lower_s, text))
    if job.interruptible != "anywhere" and can_plan(_with(problem, interruptible="anywhere")):
        text = f"let it be stopped anywhere (now {job.interruptible})"
        cures.append(Cure("job", "interruptible", "anywhere", text))
    first = math.floor(job.deadline)
    most_s = max(8 * (job.deadline - problem.state.now), 30 * 86400.0)
    later = least(lambda n: _later(problem, float(first + n)), math.ceil(most_s))
    if later is not None:
        deadline = float(first + later)
        text = f"move the deadline to {format_time(deadline)} or later"
        if not all(each.covers(problem.state.now, deadline) for each in problem.signals):
            text += ", with a signal that reaches as far"
        cures.append(Cure("job", "deadline", deadline, text))
    return cures


def _with(problem: Problem, **rules: Any) -> Problem:
    """Return the problem of the same job with other rules."""
    return replace(problem, job=replace(problem.job, **rules))


def _later(problem: Problem, deadline: float) -> Problem:
    """Return the problem with another deadline, on a flat signal that reaches as far."""
    # From where the signal starts, so that steps can meet the same moments.
    start = problem.energy.start
    flat = Signal.from_values([1.0], start=start, step_s=deadline - start)
    return replace(_with(problem, deadline=deadline), energy=flat, occupancy=None)


def _exactly(seconds: float) -> str:
    """Return a duration in a person's unit that reads back the same."""
    text = format_hours(seconds)
    if parse_duration(text) == seconds:
        return text
    return f"{seconds / 60:g} min" if seconds % 60 == 0 else f"{seconds:.10g} s"
