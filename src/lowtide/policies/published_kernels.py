"""The inner loops of deciding when many jobs start, and what other such loops share.

Each does for a column of jobs what a policy's `decide` does for one, in the same order of
additions, so that the two agree where costs are equal but for rounding.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from lowtide.compiled import compiled
from lowtide.job import INTERRUPTIBLE, TIME_TOLERANCE_S
from lowtide.policies.columns import JobRuns, SignalSteps, StopRules
from lowtide.policies.starts import TIE, TIE_INSTANT

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]
Made = tuple[IntArray, FloatArray, FloatArray, FloatArray]

# NumPy's, as in `heaps`: a kernel that is given a plain 0 is compiled for that alone, then again.
NONE_YET: Any = np.int64(0)
# As in `signal`: how far into a step, in steps, rounding may put a moment that is its edge.
_EDGE_STEPS = 1e-9


@compiled(inner=True)
def steps_of(begin: float, end: float, series: SignalSteps) -> tuple[int, int]:
    """Return the first step that touches a window, and the first after it that does not."""
    first = max(int(np.floor((begin - series.start) / series.step_s + _EDGE_STEPS)), 0)
    last = int(np.ceil((end - series.start) / series.step_s - _EDGE_STEPS))
    return first, min(last, series.values.size)


@compiled(inner=True)
def upto(t: float, series: SignalSteps) -> float:
    """Return the integral of a signal from its start to `t` seconds after it; 0 beyond its end.

    A published policy may look past the end of what is known, the planner never does.
    """
    step = int(t * (1.0 / series.step_s))
    whole = min(max(step, 0), series.values.size)
    value = series.values[whole] if whole < series.values.size else 0.0
    return float(series.prefix[whole] + value * (t - step * series.step_s))


@compiled()
def lowest_slots(arrival: FloatArray, latest: FloatArray, series: SignalSteps) -> FloatArray:
    """Return each job's first moment of the lowest value up to its latest start.

    Args:
        latest: When each must have been started.
    """
    values, start, step_s = series.values, series.start, series.step_s
    chosen = np.empty(arrival.size)
    for job in range(arrival.size):
        at = arrival[job]
        # The first step that begins after the arrival, by looking at edges: dividing rounds.
        i = max(int((at - start) / step_s) - 1, 0)
        while i < values.size and start + i * step_s <= at:
            i += 1
        lowest = values[max(i - 1, 0)]
        chosen[job] = at
        while i < values.size and start + i * step_s <= latest[job]:
            if values[i] < lowest:
                lowest = values[i]
                chosen[job] = start + i * step_s
            i += 1
    return chosen


@compiled()
def best_delays(jobs: JobRuns, series: SignalSteps, step_s: float, per_time: bool) -> FloatArray:
    """Return the delay with which each job, run through, costs least or saves fastest.

    Args:
        step_s: Try multiples of this only; 0 for any moment.
        per_time: Whether to seek what is saved per second until the job is done.
    """
    plain_s, plain_falls = np.zeros(2), np.array([-1.0, 1.0])
    best = np.empty(jobs.arrival.size)
    delays_s, costs = np.empty(64), np.empty(64)
    grid_s, on_grid = np.empty(64), np.empty(64)
    following = np.empty(2, dtype=np.int64)
    for job in range(best.size):
        place = jobs.place[job]
        offsets_s, falls = plain_s, plain_falls
        if place < 0:
            plain_s[1] = jobs.length_s[job]
        else:
            low, high = jobs.bounds[place], jobs.bounds[place + 1]
            offsets_s, falls = jobs.offsets_s[low:high], jobs.falls[low:high]
        first, last = steps_of(jobs.arrival[job], jobs.end[job], series)
        most = offsets_s.size * max(last - first, 1) + 2
        if most > delays_s.size:
            delays_s, costs = np.empty(2 * most), np.empty(2 * most)
        if offsets_s.size > following.size:
            following = np.empty(offsets_s.size, dtype=np.int64)
        slack_s = jobs.slack_s[job]
        count = _cost_by_delay(
            jobs.arrival[job],
            slack_s,
            offsets_s,
            falls,
            jobs.power[job],
            first,
            last - first,
            series,
            following,
            delays_s,
            costs,
        )
        tried_s, paid = delays_s[:count], costs[:count]
        if step_s > 0:
            tried = int(np.ceil((slack_s + 1e-9 * step_s) / step_s))
            if tried > grid_s.size:
                grid_s, on_grid = np.empty(2 * tried), np.empty(2 * tried)
            _interpolate(step_s, tried_s, paid, grid_s[:tried], on_grid[:tried])
            tried_s, paid = grid_s[:tried], on_grid[:tried]
        told_s = TIE_INSTANT * max(abs(series.start), abs(jobs.end[job]))
        tie = told_s * jobs.power[job] * _dearest(falls, first, last, series)
        best[job] = tried_s[_best(tried_s, paid, jobs.length_s[job], per_time, tie)]
    return best


@compiled()
def costs_by_delay(
    arrival: float,
    deadline: float,
    slack_s: float,
    offsets_s: FloatArray,
    falls: FloatArray,
    series: SignalSteps,
) -> tuple[FloatArray, FloatArray]:
    """Return where the cost of a run bends, by its delay, and what it is there.

    Args:
        offsets_s: When its power changes, seconds after its start, and by how much it `falls`.
    """
    first, last = steps_of(arrival, deadline, series)
    most = offsets_s.size * max(last - first, 1) + 2
    delays_s, costs = np.empty(most), np.empty(most)
    following = np.empty(offsets_s.size, dtype=np.int64)
    steps = last - first
    count = _cost_by_delay(
        arrival, slack_s, offsets_s, falls, 1.0, first, steps, series, following, delays_s, costs
    )
    return delays_s[:count], costs[:count]


@compiled(inner=True)
def _cost_by_delay(
    arrival: float,
    slack_s: float,
    offsets_s: FloatArray,
    falls: FloatArray,
    power: float,
    first: int,
    steps: int,
    series: SignalSteps,
    following: IntArray,
    delays_s: FloatArray,
    costs: FloatArray,
) -> int:
    """Fill in where a run's cost bends and what it is there.

    Args:
        offsets_s: When its power changes, seconds after its start.
        first: The first step of the signal in the job's window.
        following: Room for a number per change of power.

    Returns:
        How many were filled in.
    """
    step_s = series.step_s
    values = series.values[first : first + steps]
    base = series.start + first * step_s
    slope, now = 0.0, 0.0
    before = upto(arrival - series.start, series)
    for k in range(offsets_s.size):
        i = max(int((arrival + offsets_s[k] - base) / step_s) - 1, 0)
        while i < steps - 1 and base + (i + 1) * step_s - arrival <= offsets_s[k]:
            i += 1
        following[k] = i
        slope += falls[k] * power * values[i]
        now += falls[k] * power * (upto(arrival - series.start + offsets_s[k], series) - before)
    delays_s[0], costs[0] = 0.0, now
    count, bent, total, at = 1, 0.0, 0.0, 0.0
    while True:
        # Of the changes of power, the one that next meets a step of the signal.
        nearest, meet_s, bend = -1, slack_s, 0.0
        for k in range(offsets_s.size):
            i = following[k]
            while i < steps - 1:
                fall = falls[k] * power * (values[i + 1] - values[i])
                if fall != 0.0 and base + (i + 1) * step_s - arrival - offsets_s[k] > 0.0:
                    break
                i += 1
            following[k] = i
            if i < steps - 1:
                each_s = base + (i + 1) * step_s - arrival - offsets_s[k]
                if each_s < meet_s:
                    nearest, meet_s = k, each_s
                    bend = falls[k] * power * (values[i + 1] - values[i])
        total += (slope + bent) * (meet_s - at)
        at = meet_s
        delays_s[count], costs[count] = at, now + total
        count += 1
        if nearest < 0:
            return count
        bent += bend
        following[nearest] += 1


@compiled(inner=True)
def _interpolate(
    step_s: float, x: FloatArray, y: FloatArray, grid_s: FloatArray, on_grid: FloatArray
) -> None:
    """Fill in multiples of a step, and a piecewise-linear function there."""
    k = 0
    for i in range(grid_s.size):
        at = i * step_s
        while k + 1 < x.size and x[k + 1] <= at:
            k += 1
        grid_s[i] = at
        if k + 1 < x.size:
            on_grid[i] = (y[k + 1] - y[k]) / (x[k + 1] - x[k]) * (at - x[k]) + y[k]
        else:
            on_grid[i] = y[k]


@compiled(inner=True)
def _dearest(falls: FloatArray, first: int, last: int, series: SignalSteps) -> float:
    """Return what a second of a run comes to at most: its highest power at the highest value."""
    power, most, value = 0.0, 0.0, 0.0
    for k in range(falls.size):
        power -= falls[k]
        most = max(most, abs(power))
    for i in range(first, last):
        value = max(value, abs(series.values[i]))
    return float(most * value)


@compiled(inner=True)
def _best(
    delays_s: FloatArray, costs: FloatArray, length_s: float, per_time: bool, tie: float
) -> int:
    """Return the first delay that costs least, or saves most per second until the end.

    Args:
        tie: How much more is no more, beside what sums are rounded by.
    """
    dearest = 0.0
    for i in range(costs.size):
        dearest = max(dearest, abs(costs[i]))
    tie += TIE * dearest
    if per_time:
        tie /= length_s
        for i in range(1, costs.size):
            costs[i] = (costs[i] - costs[0]) / (delays_s[i] + length_s)
        costs[0] = 0.0
    lowest = np.inf
    for i in range(costs.size):
        lowest = min(lowest, costs[i])
    for i in range(costs.size):
        if costs[i] <= lowest + tie:
            return i
    return 0


@compiled(inner=True)
def no_stretches(size: int) -> Made:
    """Return columns that have room for stretches."""
    return np.empty(size, dtype=np.int64), np.empty(size), np.empty(size), np.empty(size)


@compiled(inner=True)
def longer(made: Made, size: int) -> Made:
    """Return columns that have room for more."""
    job, start, work_s, lost_s = no_stretches(size)
    # A loop rather than slices: those take seconds to compile.
    for i in range(made[0].size):
        job[i], start[i], work_s[i], lost_s[i] = made[0][i], made[1][i], made[2][i], made[3][i]
    return job, start, work_s, lost_s


_NEVER, _CHECKPOINTS = INTERRUPTIBLE.index("never"), INTERRUPTIBLE.index("checkpoints")


@compiled(inner=True)
def _carry_out(
    jobs: StopRules, job: int, begins: FloatArray, ends: FloatArray, made: Made, count: int
) -> int:
    """Carry out the wish to work in certain stretches.

    Args:
        made: Job, start, work and lost work of stretches; filled in, with room for one more than
            there are wishes.

    Returns:
        How many there are then.
    """
    lead_s, restart_s, stop_s = jobs.startup_s[job], jobs.restart_s[job], jobs.stop_s[job]
    work_s, deadline = jobs.work_s[job], jobs.deadline[job]
    now, kept_s, starts = jobs.arrival[job], 0.0, NONE_YET
    wish = 0
    while work_s - kept_s > TIME_TOLERANCE_S:
        left_s = work_s - kept_s
        while wish < ends.size and ends[wish] <= now + lead_s + TIME_TOLERANCE_S:
            wish += 1
        latest = deadline - lead_s - left_s
        wanted = begins[wish] - lead_s if wish < ends.size else latest
        start = max(min(wanted, latest), now)
        begin = start + lead_s
        made[0][count], made[1][count] = job, start
        made[2][count], made[3][count] = left_s, 0.0
        stopped_s = -1.0
        for i in range(wish, ends.size - 1):
            if ends[i] - begin >= left_s - TIME_TOLERANCE_S:
                break
            if begins[i + 1] - ends[i] <= stop_s + restart_s:
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
        lead_s = restart_s
        starts += 1
        count += 1
    return count


@compiled(inner=True)
def _kept(
    jobs: StopRules, job: int, before_s: float, starts: int, begin: float, end: float
) -> float:
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
    done = end + jobs.stop_s[job] + jobs.restart_s[job] + left_s
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
    begin: float, end: float, first: int, last: int, series: SignalSteps, rank: IntArray
) -> tuple[FloatArray, IntArray]:
    """Return the edges of a window's steps, cut to it, and the steps in order of their values."""
    edges = np.empty(last - first + 1)
    base = series.start + first * series.step_s
    for i in range(edges.size):
        edges[i] = min(max(base + i * series.step_s, begin), end)
    return edges, _sorted(rank[first:last])


@compiled()
def cheapest(
    begin: float, end: float, length_s: float, series: SignalSteps, order: IntArray, rank: IntArray
) -> tuple[FloatArray, FloatArray]:
    """Return when the stretches begin and end that make up the cheapest seconds of a window.

    Args:
        length_s: How many seconds are needed.
        order: The signal's steps, from the cheapest to the dearest, ties by time.
        rank: The place of each step in that order.
    """
    first, last = steps_of(begin, end, series)
    edges, ranks = _by_value(begin, end, first, last, series, rank)
    taken_s = np.zeros(last - first)
    used_s = 0.0
    for k in range(ranks.size):
        i = order[ranks[k]] - first
        size_s = edges[i + 1] - edges[i]
        # Of the last step that is needed only the first part is taken. What rounding leaves of a
        # step, or of a gap, is none: nobody stops a job for a microsecond.
        seconds = min(max(length_s - used_s, 0.0), size_s)
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
    return begins[:wishes], ends[:wishes]


@compiled()
def quantile(
    begin: float, end: float, share: float, series: SignalSteps, order: IntArray, rank: IntArray
) -> float:
    """Return the lowest value that a signal is at or below for more than a share of a window."""
    first, last = steps_of(begin, end, series)
    edges, ranks = _by_value(begin, end, first, last, series, rank)
    total_s = 0.0
    for k in range(ranks.size):
        i = order[ranks[k]] - first
        total_s += edges[i + 1] - edges[i]
    below_s = 0.0
    for k in range(ranks.size):
        i = order[ranks[k]] - first
        below_s += edges[i + 1] - edges[i]
        if below_s > share * total_s + TIME_TOLERANCE_S:
            return float(series.values[order[ranks[k]]])
    return float(series.values[order[ranks[-1]]])


@compiled()
def carried_out(jobs: StopRules, begins: FloatArray, ends: FloatArray) -> Made:
    """Carry out the wish of one job to work in certain stretches."""
    made = no_stretches(ends.size + 1)
    count = _carry_out(jobs, NONE_YET, begins, ends, made, NONE_YET)
    return made[0][:count], made[1][:count], made[2][:count], made[3][:count]


@compiled()
def work_in_cheapest(jobs: StopRules, series: SignalSteps, order: IntArray, rank: IntArray) -> Made:
    """Let jobs work in the cheapest moments of their windows.

    Args:
        order: The signal's steps, from the cheapest to the dearest, ties by time.
        rank: The place of each step in that order.

    Returns:
        Job, start, work and lost work of every stretch.
    """
    made = no_stretches(2 * jobs.arrival.size + 64)
    count = NONE_YET
    for job in range(jobs.arrival.size):
        begin, end = jobs.arrival[job] + jobs.startup_s[job], jobs.deadline[job]
        begins, ends = cheapest(begin, end, jobs.work_s[job], series, order, rank)
        if count + ends.size + 1 > made[0].size:
            made = longer(made, 2 * (count + ends.size + 1))
        count = _carry_out(jobs, job, begins, ends, made, count)
    return made[0][:count], made[1][:count], made[2][:count], made[3][:count]


@compiled()
def work_below(
    jobs: StopRules,
    series: SignalSteps,
    order: IntArray,
    rank: IntArray,
    horizon_s: float,
    share: float,
) -> Made:
    """Let jobs work below a quantile of what lies ahead of their arrival.

    Returns:
        Job, start, work and lost work of every stretch.
    """
    made = no_stretches(2 * jobs.arrival.size + 64)
    count = NONE_YET
    signal_end = series.start + series.values.size * series.step_s
    for job in range(jobs.arrival.size):
        begin = jobs.arrival[job]
        end = min(begin + horizon_s, signal_end)
        limit = quantile(begin, end, share, series, order, rank)
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
    series: SignalSteps,
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
