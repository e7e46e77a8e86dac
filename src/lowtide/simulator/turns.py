"""The queue over time, for jobs that take turns and are stopped when theirs is over."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from lowtide.compiled import compiled
from lowtide.simulator.heaps import Rows, due, pop, push
from lowtide.simulator.machines import (
    FIRST,
    FloatArray,
    IntArray,
    World,
    find,
    give,
    room_for,
    settle,
    switch_off,
    take,
)

# Times are told apart to this; a shorter rest of work is done at once.
_TOLERANCE_S = 1e-6
_NOBODY: Any = np.int64(-1)

# What else is to be known of a job that takes turns.
COURSE = np.dtype(
    [
        ("anywhere", np.bool_),  # Whether it may be stopped anywhere, not at checkpoints only.
        ("min_run_s", np.float64),  # How much work each start must do and keep.
        ("max_starts", np.int64),  # How often it may be started, 0 for any number.
        ("restart_s", np.float64),  # How long a start after the first takes.
        ("stop_s", np.float64),  # How long stopping takes.
        ("saved_from", np.int64),  # Where the checkpoints ahead begin in the list of them.
        ("saved_to", np.int64),  # Where they end.
        ("level", np.int64),
        ("behind", np.int64),  # Who is behind it in the queue, −1 for nobody.
        ("starts", np.int64),  # How often it was started.
        ("done_s", np.float64),  # Work done and kept before the present start.
        ("ran_s", np.float64),  # How long this start will have run when its turn is over.
        ("boosts", np.int64),  # How many boosts there had been when its level was last set.
        ("stopped", np.float64),  # When it was last stopped.
        ("ended", np.bool_),  # Whether it is over when it next gives its nodes back.
    ]
)
LEVEL = np.dtype(
    [
        ("quantum_s", np.float64),  # How long a turn is.
        ("first", np.int64),  # Who is first in the queue, −1 for nobody.
        ("last", np.int64),  # Who is last.
        ("length", np.int64),  # How many there are.
        ("fresh", np.int64),  # How many of them were stopped at this very instant.
    ]
)


class Turns(NamedTuple):
    """What a queue of turns knows besides.

    Attributes:
        course: What else is to be known of the jobs.
        saved_s: The checkpoints of all.
        levels: The levels of the queue, from the highest on, nobody waiting.
        overs: A heap of jobs by when their turns are over; its ties are the order of starts.
        context_s: How much longer a job holds its nodes before it starts again.
        boost_s: How often all jobs are lifted to the highest level, infinite for never.
        keep_nodes: Whether to tell of every start on which nodes it was.
    """

    course: Rows
    saved_s: FloatArray
    levels: Rows
    overs: Rows
    context_s: float
    boost_s: float
    keep_nodes: bool


@compiled(inner=True)
def _join(levels: Rows, course: Rows, job: int) -> None:
    """Put a job at the end of its level."""
    level = levels[course[job]["level"]]
    course[job]["behind"] = -1
    if level["first"] < 0:
        level["first"] = job
    else:
        course[level["last"]]["behind"] = job
    level["last"] = job
    level["length"] += 1


@compiled(inner=True)
def _front(levels: Rows) -> int:
    """Return whose turn it is, −1 if nobody waits."""
    for number in range(levels.size):
        if levels[number]["first"] >= 0:
            return int(levels[number]["first"])
    return -1


@compiled(inner=True)
def _leave(levels: Rows, course: Rows, job: int, now: float) -> None:
    """Take out a job that is first in its level."""
    level = levels[course[job]["level"]]
    level["first"] = course[job]["behind"]
    level["length"] -= 1
    if course[job]["stopped"] == now:
        level["fresh"] -= 1


@compiled(inner=True)
def _lift(levels: Rows, course: Rows) -> None:
    """Lift everybody who waits to the highest level, in the order of their turns."""
    for number in range(1, levels.size):
        job = levels[number]["first"]
        levels[number]["first"] = -1
        levels[number]["length"] = 0
        while job >= 0:
            following = course[job]["behind"]
            course[job]["level"] = 0
            _join(levels, course, job)
            job = following


@compiled(inner=True)
def _has_to_go(levels: Rows, row: Rows, work_s: float, kept_s: float) -> bool:
    """Return whether a job whose turn is over is stopped: for others, and by its own rules."""
    waiting = 0
    for number in range(row["level"] + 1):
        # Those who just had to go themselves do not count.
        waiting += levels[number]["length"] - levels[number]["fresh"]
    # A start that keeps nothing would be in vain, and so would be the one after it.
    least_s = max(float(row["min_run_s"]) - _TOLERANCE_S, _TOLERANCE_S)
    return bool(
        waiting > 0
        and min(kept_s, work_s - float(row["done_s"]) - kept_s) >= least_s
        and (row["max_starts"] == 0 or row["starts"] < row["max_starts"])
    )


@compiled(inner=True)
def _kept_s(row: Rows, saved_s: FloatArray, worked_s: float) -> float:
    """Return how much of the work of this start a stop would keep."""
    if row["anywhere"]:
        return worked_s
    kept_s = 0.0
    for place in range(row["saved_from"], row["saved_to"]):
        if saved_s[place] > row["done_s"] + worked_s + _TOLERANCE_S:
            break
        kept_s = saved_s[place] - row["done_s"]
    return kept_s


@compiled(inner=True)
def _and_run(
    runs: FloatArray, number: int, jobs: Rows, job: int, kept_s: float, lost_s: float, until: float
) -> FloatArray:
    """Return a table of starts with one more written behind its first so many."""
    if number == runs.shape[0]:
        larger = np.empty((2 * number, runs.shape[1]))
        for row in range(number):
            for column in range(runs.shape[1]):
                larger[row, column] = runs[row, column]
        runs = larger
    runs[number, 0] = job
    runs[number, 1] = jobs[job]["held"]
    runs[number, 2] = jobs[job]["start"]
    runs[number, 3] = kept_s
    runs[number, 4] = lost_s
    runs[number, 5] = until
    return runs


@compiled(inner=True)
def _and_nodes(kept: IntArray, number: int, jobs: Rows, places: IntArray, job: int) -> IntArray:
    """Return a list of nodes with those of a job written behind its first so many."""
    first, size = jobs[job]["place"], jobs[job + 1]["place"] - jobs[job]["place"]
    if number + size > kept.size:
        larger = np.empty(2 * (number + size), dtype=np.int64)
        for at in range(number):
            larger[at] = kept[at]
        kept = larger
    for at in range(size):
        kept[number + at] = places[first + at]
    return kept


@compiled()
def run_in_turns(world: World, queue: Turns) -> tuple[FloatArray, IntArray, FloatArray]:
    """Run jobs in turns.

    Returns:
        Every start in a row: job, when it took its nodes, when it started, the work that it did
        and kept, the work that it lost, when it gave its nodes back. The nodes of every start,
        one after the other. The log.
    """
    jobs, places, site, nodes, changes, timers, ends, log = world
    course, saved_s, levels, overs, context_s, boost_s, keep_nodes = queue
    count = site[0]["jobs"]
    runs, kept = np.empty((count, 6)), np.empty(0, dtype=np.int64)
    arrived = done = run = noted = starts = FIRST
    boosts, before = FIRST, -np.inf
    while done < count:
        now = min(min(due(ends), due(overs)), min(due(changes), due(timers)))
        now = min(now, jobs[arrived]["ready"])
        if now == np.inf:
            break
        log = room_for(site, log)
        if now > before:
            before = now
            for number in range(levels.size):
                levels[number]["fresh"] = 0
        since_s = now - jobs[0]["ready"]
        if since_s >= (boosts + 1) * boost_s:
            boosts = max(boosts + 1, np.int64(since_s // boost_s))
            _lift(levels, course)
        while jobs[arrived]["ready"] <= now:
            _join(levels, course, arrived)
            arrived += 1
        while due(ends) <= now:
            job = pop(ends)
            give(site, nodes, timers, jobs, places, job, now)
            if course[job]["ended"]:
                done += 1
            else:
                # A boost reaches those who were being stopped as well.
                if course[job]["boosts"] < boosts:
                    course[job]["level"] = 0
                _join(levels, course, job)
        settle(site, nodes, changes, now, log)
        blocked = False
        while True:
            job = _NOBODY if blocked else _front(levels)
            if job >= 0 and find(site, nodes, jobs, places, job):
                _leave(levels, course, job, now)
                take(site, nodes, changes, jobs, places, job, now, log)
                if course[job]["starts"]:
                    jobs[job]["start"] += context_s
                    jobs[job]["startup_s"] = course[job]["restart_s"]
                course[job]["starts"] += 1
                course[job]["ran_s"] = 0.0
                overs[job]["tie"] = starts
                starts += 1
            elif due(overs) <= now:
                blocked = True
                job = pop(overs)
                row = course[job]
                lifted = row["boosts"] < boosts
                row["level"] = 0 if lifted else min(row["level"] + 1, levels.size - 1)
                row["boosts"] = boosts
                worked_s = row["ran_s"] - jobs[job]["startup_s"]
                kept_s = _kept_s(row, saved_s, worked_s)
                if _has_to_go(levels, row, jobs[job]["work_s"], kept_s):
                    until = now + row["stop_s"]
                    lost_s = max(worked_s - kept_s, 0.0)
                    runs = _and_run(runs, run, jobs, job, kept_s, lost_s, until)
                    run += 1
                    if keep_nodes:
                        kept = _and_nodes(kept, noted, jobs, places, job)
                        noted += jobs[job + 1]["place"] - jobs[job]["place"]
                    row["done_s"] += kept_s
                    while (
                        row["saved_from"] < row["saved_to"]
                        and saved_s[row["saved_from"]] <= row["done_s"] + _TOLERANCE_S
                    ):
                        row["saved_from"] += 1
                    if until > now:
                        push(ends, until, job)
                    else:
                        give(site, nodes, timers, jobs, places, job, now)
                        _join(levels, course, job)
                        levels[row["level"]]["fresh"] += 1
                        row["stopped"] = now
                        blocked = False
                    continue
            elif switch_off(site, nodes, changes, timers, now, log):
                # A node that goes off may leave enough power for the next job.
                blocked = False
                continue
            else:
                break
            # A turn begins, the first of a start or another one.
            row = course[job]
            row["boosts"] = boosts
            rest_s = jobs[job]["work_s"] - row["done_s"]
            quantum_s = levels[row["level"]]["quantum_s"]
            if jobs[job]["startup_s"] + rest_s - row["ran_s"] <= quantum_s + _TOLERANCE_S:
                until = jobs[job]["start"] + jobs[job]["startup_s"] + rest_s
                runs = _and_run(runs, run, jobs, job, rest_s, 0.0, until)
                run += 1
                if keep_nodes:
                    kept = _and_nodes(kept, noted, jobs, places, job)
                    noted += jobs[job + 1]["place"] - jobs[job]["place"]
                row["ended"] = True
                push(ends, until, job)
            else:
                row["ran_s"] += quantum_s
                push(overs, jobs[job]["start"] + row["ran_s"], job)
    return runs[:run], kept[:noted], log
