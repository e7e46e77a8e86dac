"""The inner loops of policies that stop many jobs and start them again."""

from __future__ import annotations

import numpy as np

from lowtide.compiled import compiled
from lowtide.job import INTERRUPTIBLE, TIME_TOLERANCE_S
from lowtide.policies.many_kernels import (
    NONE_YET,
    FloatArray,
    IntArray,
    Made,
    Rules,
    Series,
    longer,
    no_stretches,
    steps_of,
)

_NEVER, _CHECKPOINTS = INTERRUPTIBLE.index("never"), INTERRUPTIBLE.index("checkpoints")


@compiled(inner=True)
def _carry_out(
    jobs: Rules, job: int, begins: FloatArray, ends: FloatArray, made: Made, count: int
) -> int:
    """Carry out the wish to work in certain stretches, as `carrying_out.carry_out` does.

    Args:
        made: Job, start, work and lost work of stretches; filled in, with room for one more than
            there are wishes.

    Returns:
        How many there are then.
    """
    startup_s, stop_s = jobs.startup_s[job], jobs.stop_s[job]
    work_s, deadline = jobs.work_s[job], jobs.deadline[job]
    now, kept_s, starts = jobs.arrival[job], 0.0, NONE_YET
    wish = 0
    while work_s - kept_s > TIME_TOLERANCE_S:
        left_s = work_s - kept_s
        while wish < ends.size and ends[wish] <= now + startup_s + TIME_TOLERANCE_S:
            wish += 1
        latest = deadline - startup_s - left_s
        wanted = begins[wish] - startup_s if wish < ends.size else latest
        start = max(min(wanted, latest), now)
        begin = start + startup_s
        made[0][count], made[1][count] = job, start
        made[2][count], made[3][count] = left_s, 0.0
        stopped_s = -1.0
        for i in range(wish, ends.size - 1):
            if ends[i] - begin >= left_s - TIME_TOLERANCE_S:
                break
            if begins[i + 1] - ends[i] <= stop_s + startup_s:
                continue
            stopped_s = _kept(jobs, job, kept_s, starts, begin, ends[i])
            if stopped_s >= 0.0:
                made[2][count] = stopped_s - kept_s
                made[3][count] = (ends[i] - begin) - (stopped_s - kept_s)
                if made[3][count] < TIME_TOLERANCE_S:
                    made[2][count], made[3][count] = ends[i] - begin, 0.0
                now = ends[i] + stop_s
                break
        kept_s = stopped_s if stopped_s >= 0.0 else work_s
        starts += 1
        count += 1
    return count


@compiled(inner=True)
def _kept(jobs: Rules, job: int, before_s: float, starts: int, begin: float, end: float) -> float:
    """Return the work that is kept if a job is stopped, −1 where it must not be."""
    if jobs.interruptible[job] == _NEVER:
        return -1.0
    if jobs.max_starts[job] > 0 and starts + 1 >= jobs.max_starts[job]:
        return -1.0
    reached_s = before_s + (end - begin)
    kept_s = reached_s
    if jobs.interruptible[job] == _CHECKPOINTS:
        place, last_s = jobs.place[job], 0.0
        if place >= 0:
            for i in range(jobs.bounds[place], jobs.bounds[place + 1]):
                if jobs.points_s[i] <= reached_s + TIME_TOLERANCE_S:
                    last_s = jobs.points_s[i]
        kept_s = max(min(last_s, reached_s), before_s)
    left_s = jobs.work_s[job] - kept_s
    if min(kept_s - before_s, left_s) < jobs.min_run_s[job] - TIME_TOLERANCE_S:
        return -1.0
    done = end + jobs.stop_s[job] + jobs.startup_s[job] + left_s
    return -1.0 if done > jobs.deadline[job] + TIME_TOLERANCE_S else float(kept_s)


@compiled(inner=True)
def _sorted(numbers: IntArray) -> IntArray:
    """Return numbers in order, by Shell's sort."""
    # A sort from the library would do, but takes seconds to compile.
    made = numbers.copy()
    gap = 1
    while gap < made.size // 3:
        gap = 3 * gap + 1
    while gap > 0:
        for i in range(gap, made.size):
            number, j = made[i], i
            while j >= gap and made[j - gap] > number:
                made[j] = made[j - gap]
                j -= gap
            made[j] = number
        gap //= 3
    return made


@compiled(inner=True)
def _by_value(
    begin: float, end: float, first: int, last: int, series: Series, rank: IntArray
) -> tuple[FloatArray, IntArray]:
    """Return the edges of a window's steps, cut to it, and the steps in order of their values."""
    edges = np.empty(last - first + 1)
    base = series.start + first * series.step_s
    for i in range(edges.size):
        edges[i] = min(max(base + i * series.step_s, begin), end)
    return edges, _sorted(rank[first:last])


@compiled()
def work_in_cheapest(jobs: Rules, series: Series, order: IntArray, rank: IntArray) -> Made:
    """Let jobs work in the cheapest moments of their windows, as `wait_awhile` does.

    Args:
        order: The signal's steps, from the cheapest to the dearest, ties by time.

    Returns:
        Job, start, work and lost work of every stretch.
    """
    made = no_stretches(2 * jobs.arrival.size + 64)
    count = NONE_YET
    for job in range(jobs.arrival.size):
        begin, end = jobs.arrival[job] + jobs.startup_s[job], jobs.deadline[job]
        first, last = steps_of(begin, end, series)
        edges, ranks = _by_value(begin, end, first, last, series, rank)
        taken_s = np.zeros(last - first)
        used_s = 0.0
        for k in range(ranks.size):
            i = order[ranks[k]] - first
            size_s = edges[i + 1] - edges[i]
            seconds = min(max(jobs.work_s[job] - used_s, 0.0), size_s)
            if seconds <= TIME_TOLERANCE_S:
                seconds = 0.0
            if seconds >= size_s - TIME_TOLERANCE_S:
                seconds = size_s
            taken_s[i] = seconds
            used_s += size_s
        begins, ends = np.empty(taken_s.size), np.empty(taken_s.size)
        wishes = 0
        for i in range(taken_s.size):
            if taken_s[i] <= 0:
                continue
            if wishes and ends[wishes - 1] >= edges[i] - TIME_TOLERANCE_S:
                ends[wishes - 1] = edges[i] + taken_s[i]
            else:
                begins[wishes], ends[wishes] = edges[i], edges[i] + taken_s[i]
                wishes += 1
        if count + wishes + 1 > made[0].size:
            made = longer(made, 2 * (count + wishes + 1))
        count = _carry_out(jobs, job, begins[:wishes], ends[:wishes], made, count)
    return made[0][:count], made[1][:count], made[2][:count], made[3][:count]


@compiled()
def work_below(
    jobs: Rules,
    series: Series,
    order: IntArray,
    rank: IntArray,
    horizon_s: float,
    quantile: float,
) -> Made:
    """Let jobs work below a quantile of what lies ahead of their arrival, as `threshold` does.

    Returns:
        Job, start, work and lost work of every stretch.
    """
    made = no_stretches(2 * jobs.arrival.size + 64)
    count = NONE_YET
    signal_end = series.start + series.values.size * series.step_s
    for job in range(jobs.arrival.size):
        begin = jobs.arrival[job]
        end = min(begin + horizon_s, signal_end)
        first, last = steps_of(begin, end, series)
        edges, ranks = _by_value(begin, end, first, last, series, rank)
        total_s = 0.0
        for k in range(ranks.size):
            i = order[ranks[k]] - first
            total_s += edges[i + 1] - edges[i]
        limit = series.values[order[ranks[-1]]]
        below_s = 0.0
        for k in range(ranks.size):
            i = order[ranks[k]] - first
            below_s += edges[i + 1] - edges[i]
            if below_s > quantile * total_s + TIME_TOLERANCE_S:
                limit = series.values[order[ranks[k]]]
                break

        begin, end = begin + jobs.startup_s[job], jobs.deadline[job]
        first, last = steps_of(begin, end, series)
        begins, ends = np.empty(last - first), np.empty(last - first)
        wishes = _below(begin, end, jobs.work_s[job], first, last, series, limit, begins, ends)
        if count + wishes + 1 > made[0].size:
            made = longer(made, 2 * (count + wishes + 1))
        count = _carry_out(jobs, job, begins[:wishes], ends[:wishes], made, count)
    return made[0][:count], made[1][:count], made[2][:count], made[3][:count]


@compiled(inner=True)
def _below(
    begin: float,
    end: float,
    work_s: float,
    first: int,
    last: int,
    series: Series,
    limit: float,
    begins: FloatArray,
    ends: FloatArray,
) -> int:
    """Fill in when a job works that takes slots below a limit, as `dtpr.taken` does."""
    wishes, done_s = 0, 0.0
    running = False
    base = series.start + first * series.step_s
    for i in range(last - first):
        a = min(max(base + i * series.step_s, begin), end)
        b = min(max(base + (i + 1) * series.step_s, begin), end)
        latest = end - (work_s - done_s)
        if latest <= a + TIME_TOLERANCE_S:
            if not running:
                begins[wishes] = a
                wishes += 1
            ends[wishes - 1] = end
            break
        if series.values[first + i] < limit:
            until = min(b, a + work_s - done_s)
            if not running:
                begins[wishes] = a
                wishes += 1
            ends[wishes - 1] = until
            done_s += until - a
            running = True
            if work_s - done_s <= TIME_TOLERANCE_S:
                break
        elif latest < b - TIME_TOLERANCE_S:
            begins[wishes], ends[wishes] = latest, end
            wishes += 1
            break
        else:
            running = False
    return wishes
