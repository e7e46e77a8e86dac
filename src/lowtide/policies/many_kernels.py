"""The inner loops of deciding when many jobs start, and what other such loops share.

Each does for a column of jobs what a policy's `decide` does for one, in the same order of
additions, so that the two agree where costs are equal but for rounding.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from lowtide.compiled import compiled
from lowtide.policies.oracle import TIE

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]
Made = tuple[IntArray, FloatArray, FloatArray, FloatArray]

# NumPy's, as in `heaps`: a kernel that is given a plain 0 is compiled for that alone, then again.
NONE_YET: Any = np.int64(0)
# As in `signal`: how far into a step, in steps, rounding may put a moment that is its edge.
_EDGE_STEPS = 1e-9


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


@compiled(inner=True)
def steps_of(begin: float, end: float, series: Series) -> tuple[int, int]:
    """Return the first step that touches a window, and the first after it that does not."""
    first = max(int(np.floor((begin - series.start) / series.step_s + _EDGE_STEPS)), 0)
    last = int(np.ceil((end - series.start) / series.step_s - _EDGE_STEPS))
    return first, min(last, series.values.size)


@compiled(inner=True)
def upto(t: float, series: Series) -> float:
    """Return the integral of a signal from its start to `t` seconds after it."""
    step = int(t * (1.0 / series.step_s))
    whole = min(max(step, 0), series.values.size)
    value = series.values[whole] if whole < series.values.size else 0.0
    return float(series.prefix[whole] + value * (t - step * series.step_s))


@compiled()
def lowest_slots(arrival: FloatArray, latest: FloatArray, series: Series) -> FloatArray:
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
def best_delays(jobs: Runs, series: Series, step_s: float, per_time: bool) -> FloatArray:
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
        best[job] = tried_s[_best(tried_s, paid, jobs.length_s[job], per_time)]
    return best


@compiled(inner=True)
def _cost_by_delay(
    arrival: float,
    slack_s: float,
    offsets_s: FloatArray,
    falls: FloatArray,
    power: float,
    first: int,
    steps: int,
    series: Series,
    following: IntArray,
    delays_s: FloatArray,
    costs: FloatArray,
) -> int:
    """Fill in where a run's cost bends and what it is there, as `oracle.cost_by_delay` does.

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
def _best(delays_s: FloatArray, costs: FloatArray, length_s: float, per_time: bool) -> int:
    """Return the first delay that costs least, or saves most per second until the end."""
    dearest = 0.0
    for i in range(costs.size):
        dearest = max(dearest, abs(costs[i]))
    tie = TIE * dearest
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
