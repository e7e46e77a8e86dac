"""Exact planning on a grid, for jobs that may be stopped anywhere.

Progress and delay are cut into steps of one length. Phases need not fit the steps: what a step
costs is always integrated exactly, only the moments of decision are on the grid. Where the step
divides every duration and the signal's own step, nothing is lost: an optimal schedule can be
shifted, without costing more, until its decisions fall on the grid.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from lowtide.policies.kernels import (
    fill_rest,
    forward,
    forward_with_rules,
    off_grid,
    row_powers,
    settle,
    slot_costs,
    way_back,
)
from lowtide.policies.problem import Problem, Solution, Start
from lowtide.profile import Phase
from lowtide.signal import FloatArray, Signal
from lowtide.units import JOULES_PER_KWH

# A row in which the power changes is integrated piece by piece, which takes this many times longer.
_SPECIAL_EFFORT = 25

# Durations closer than this to whole milliseconds are whole.
SAME_MS = 1e-3
# One group: it begins at the first row.
_ONE = np.zeros(1, dtype=np.int64)

# A rent of nothing, for jobs whose machine costs nothing. As unchangeable as the arrays of a
# signal: kernels are compiled anew for every kind of array.
NO_RENT = (np.zeros(2), np.zeros(1), 1.0, 0.0)
NO_RENT[0].flags.writeable = NO_RENT[1].flags.writeable = False


class Size(NamedTuple):
    """How large a problem is on a grid.

    Attributes:
        rows: Steps of work.
        columns: Delays.
        layers: Numbers of starts that are told apart.
        special: Steps of work in which the power changes.
        least: Steps of work that each start must do.
    """

    rows: int
    columns: int
    layers: int
    special: int
    least: int

    @property
    def states(self) -> int:
        """How many states there are."""
        return self.rows * self.columns * self.layers

    @property
    def effort(self) -> int:
        """How long it takes, in states of the plain kind."""
        ruled = 4 if self.layers > 1 or self.least else 1
        return ruled * self.states + _SPECIAL_EFFORT * self.special * self.columns

    @property
    def memory_bytes(self) -> int:
        """How much memory it takes: a byte for the way back, and costs where they are kept."""
        kept = self.special + self.layers * (self.least + 1)
        return self.states + 8 * kept * self.columns


class _Tables(NamedTuple):
    """Costs per time slot, row and column, as the kernels take them; `final` per last column."""

    begin: FloatArray
    power: FloatArray
    special: np.ndarray[tuple[int], np.dtype[np.int64]]
    special_cost: FloatArray
    slot: FloatArray
    slot_extra: FloatArray
    blocked: np.ndarray[tuple[int], np.dtype[np.int64]]
    last_blocked: np.ndarray[tuple[int], np.dtype[np.bool_]]
    leave: FloatArray
    start: FloatArray
    lag: int
    first: int
    least: int
    last: int
    final: FloatArray | None = None


def size_of(problem: Problem, step_s: float) -> Size:
    """Return how large a problem is at a step."""
    rows = max(math.ceil(problem.work_s / step_s - 1e-9), 1)
    columns = math.floor(max(problem.slack_s, 0.0) / step_s + 1e-9) + 1
    left = problem.starts_left
    lag_s = problem.restart_s + problem.stop_s
    # More starts than fit between work and slack cannot be made, so they need not be counted.
    most = rows if lag_s <= 0 else min(rows, math.floor(problem.slack_s / lag_s + 1e-9) + 1)
    layers = 1 if left is None or left >= most + 1 else left + 1
    edges_s, _ = problem.work
    return Size(
        rows=rows,
        columns=columns,
        layers=layers,
        special=min(rows, off_grid(edges_s, float(step_s)) + 1),
        least=math.ceil(problem.job.min_run_s / step_s - 1e-9),
    )


def common_steps(lengths_s: FloatArray, first: npt.NDArray[np.int64] = _ONE) -> FloatArray:
    """Return the longest steps that divide groups of durations, NaN where there is none.

    Durations are compared to the millisecond.

    Args:
        lengths_s: Durations; of several columns each is by itself.
        first: The row at which each group begins; by default they are one.
    """
    length_ms = 1000 * lengths_s
    whole_ms = np.rint(length_ms)
    off = ~(np.abs(length_ms - whole_ms) <= SAME_MS)
    divisor = np.gcd.reduceat(np.where(off, 0.0, whole_ms).astype(np.int64), first)
    divided = (divisor > 0) & ~np.logical_or.reduceat(off, first)
    return np.where(divided, divisor / 1000, np.nan)


def common_step(lengths_s: Iterable[float]) -> float | None:
    """Return the longest step that divides a few durations, as `common_steps`, None for no such.

    Arrays take 30 µs for so few, a third of what a small plan takes.
    """
    divisor = 0
    for length_s in lengths_s:
        whole_ms = round(1000 * length_s)
        if abs(1000 * length_s - whole_ms) > SAME_MS:
            return None
        divisor = math.gcd(divisor, whole_ms)
    return divisor / 1000 if divisor else None


def divides(step_s: FloatArray | float, common_s: FloatArray | float) -> npt.NDArray[np.bool_]:
    """Return whether a step divides what the longest common step does."""
    multiple = np.asarray(common_s) / step_s
    whole: npt.NDArray[np.bool_] = (np.abs(multiple - np.round(multiple)) < 1e-9) & (multiple >= 1)
    return whole


def solve(problem: Problem, step_s: float, *, ahead: bool = False) -> Solution:
    """Return the least cost and the starts that reach it, on a grid.

    Args:
        ahead: Whether another start comes before, for the sake of the restarts after it. It keeps
            no work, so that no schedule reaches the cost: they come near it.
    """
    if not ahead:
        size = size_of(problem, step_s)
        return _run(problem, size, step_s, _tables(problem, size, step_s))
    if problem.job.max_starts is not None:
        problem = replace(problem, job=replace(problem.job, max_starts=problem.job.max_starts - 1))
    size = size_of(problem, step_s)
    tables = _tables(problem, size, step_s)
    return _run(problem, size, step_s, tables._replace(begin=_begun_ahead(tables)))


def lower_bound(problem: Problem, step_s: float) -> float:
    """Return a cost that no schedule goes below, whatever the moments of its decisions.

    The same recursion, with every cost at its lowest over the cells that a decision could be
    moved within, and starts and stops allowed to be shorter by less than a step.

    Args:
        problem: A job that may be stopped anywhere, and that is `boundable`.
    """
    size = size_of(problem, step_s)
    return _run(problem, size, step_s, _optimistic(problem, size, step_s)).cost


class Rest:
    """What is still to be paid at least, from wherever a job may get.

    The recursion of `lower_bound` from the end back, kept in every row. Progress lies between two
    rows. The bound there is a minimum of functions that are linear in the share of the row's
    energy that is still to come, so it is concave in that share, and not below what lies between
    the bounds of the two rows.
    """

    def __init__(self, problem: Problem, step_s: float, layers: int = 1) -> None:
        """Bound what is to be paid.

        Args:
            problem: A job that is `boundable`, on a signal that is nowhere below 0.
            layers: How many numbers of starts left are told apart, from 0 on; 1 for none.
        """
        size = size_of(problem, step_s)
        tables = _optimistic(problem, size, step_s)
        self.problem, self.step_s = problem, step_s
        self._delays_s = _multiples(step_s, size.columns)
        self._rest = np.empty((layers, size.rows + 1, size.columns))
        self._rest[:, -1] = _held(problem, self._delays_s + problem.work_s)
        self._rest[:, -1] += problem.wait * self._delays_s
        fill_rest(tables.power, tables.slot, tables.leave, tables.start, tables.lag, self._rest)
        self._row_j = np.append(0.0, np.cumsum(tables.power)) * JOULES_PER_KWH
        self._edges_s, self._energy_j = _excess(problem)
        self._known: tuple[float, dict[int, FloatArray]] = (-1.0, {})

    def at(self, progress_s: float, starts_left: int = 0) -> FloatArray:
        """Return the least that a job that runs has still to pay, per step of its delay.

        Args:
            starts_left: How often it may still be started, where numbers are told apart.
        """
        if self._known[0] != progress_s:
            self._known = progress_s, {}
        known = self._known[1]
        if starts_left not in known:
            known[starts_left] = self._at(progress_s, starts_left)
        return known[starts_left]

    def _at(self, progress_s: float, starts_left: int) -> FloatArray:
        row = min(int(progress_s / self.step_s), self._row_j.size - 2)
        i = min(int(np.searchsorted(self._edges_s, progress_s)), self._edges_s.size - 1)
        i = max(i, 1)
        low_s, high_s = self._edges_s[i - 1], self._edges_s[i]
        gone = (progress_s - low_s) / (high_s - low_s)
        here_j = self._energy_j[i - 1] + gone * (self._energy_j[i] - self._energy_j[i - 1])
        begin_j, end_j = self._row_j[row], self._row_j[row + 1]
        share = min(max((end_j - here_j) / (end_j - begin_j), 0.0), 1.0) if end_j > begin_j else 0.0
        layer = self._rest[min(starts_left, len(self._rest) - 1)]
        rest: FloatArray = share * layer[row] + (1.0 - share) * layer[row + 1]
        # From here on, and not from the first start; the latest of a step has paid the most.
        return rest - _held(self.problem, self._delays_s + (progress_s + self.step_s))


def _run(problem: Problem, size: Size, step_s: float, tables: _Tables) -> Solution:
    limited = size.layers > 1
    running = problem.state.running
    cost = np.full((size.layers, size.columns), np.inf)
    if running:
        cost[0, 0] = 0.0
    ruled = limited or tables.least > 0
    if ruled:
        flags = np.zeros((size.rows + 1, size.layers, size.columns), dtype=np.uint8)
        forward_with_rules(
            cost,
            tables.begin,
            tables.power,
            tables.special,
            tables.special_cost,
            tables.slot,
            tables.slot_extra,
            tables.blocked,
            tables.last_blocked,
            tables.leave,
            tables.start,
            tables.lag,
            tables.first,
            tables.least,
            tables.last,
            limited,
            flags,
        )
    else:
        if not running:
            cost[0] = tables.begin
        extra, special_cost = tables.slot_extra, tables.special_cost
        if problem.forbidden:
            shut = np.where(np.diff(tables.blocked) > 0, np.inf, 0.0)
            extra = extra + shut
            special_cost = special_cost.copy()
            for place, row in enumerate(np.flatnonzero(tables.special >= 0)):
                special_cost[place] += shut[row : row + size.columns]
            if tables.special[-1] >= 0:
                # The last row may be a part of one: what follows it in its slot does not count.
                whole = tables.special_cost[-1]
                special_cost[-1] = np.where(tables.last_blocked, np.inf, whole)
        flags = np.zeros((size.rows, 1, size.columns), dtype=np.uint8)
        forward(
            cost[0],
            tables.power,
            tables.special,
            special_cost,
            tables.slot,
            extra,
            tables.leave,
            tables.start,
            tables.lag,
            tables.first,
            flags.reshape(size.rows, size.columns),
        )
    if tables.final is not None:
        cost += tables.final
    delays_s = _multiples(step_s, size.columns)
    by_delay = np.empty(size.columns)
    column = settle(cost, problem.wait * step_s, by_delay)
    least = float(by_delay[column])
    starts: tuple[Start, ...] = ()
    if least < np.inf:
        layer = int(cost[:, column].argmin()) if limited else 0
        first = 0 if ruled else tables.first
        rows, columns = way_back(
            flags, layer, column, tables.lag, first, tables.least, limited, running
        )
        starts = tuple(
            Start(step_s * row, step_s * place)
            for row, place in zip(rows[::-1].tolist(), columns[::-1].tolist(), strict=True)
        )
    return Solution(
        cost=least,
        starts=starts,
        by_delay=(delays_s, by_delay),
        by_starts=tuple(cost.min(axis=1).tolist()) if limited else (),
    )


def _tables(problem: Problem, size: Size, step_s: float) -> _Tables:
    slots = size.rows + size.columns
    slot, extra, start, held, leave = _slot_costs(problem, slots, step_s, problem.resuming)
    if problem.forbidden:
        at_s = _multiples(step_s, slots + 1)
        start[problem.hit(at_s - problem.restart_s, at_s)] = np.inf
        leave[problem.hit(at_s, at_s + problem.stop_s)] = np.inf
    if problem.state.running:
        begin = np.full(size.columns, np.inf)
    elif problem.starting is problem.resuming:
        begin = start[: size.columns].copy()
        if problem.state.starts:
            begin += held[: size.columns] - problem.held_before
    else:
        begin = _slot_costs(problem, size.columns, step_s, problem.starting)[2][: size.columns]
        if problem.forbidden:
            ready_s = _multiples(step_s, size.columns)
            begin[problem.hit(ready_s - problem.startup_s, ready_s)] = np.inf
    first = 1
    if problem.state.running:
        first = math.ceil(problem.must_run_s / step_s - 1e-9)
    last_blocked = np.zeros(size.columns, dtype=np.bool_)
    if problem.forbidden:
        delays_s = _multiples(step_s, size.columns)
        last_blocked = problem.hit(delays_s + (size.rows - 1) * step_s, delays_s + problem.work_s)
    edges_s, power_w = problem.work
    power, special = row_powers(edges_s, power_w / JOULES_PER_KWH, step_s, size.rows)
    return _Tables(
        begin=begin,
        power=power,
        special=special,
        special_cost=_special_costs(problem, size, step_s, special),
        slot=slot,
        slot_extra=extra,
        blocked=_blocked(problem, step_s, slots),
        last_blocked=last_blocked,
        leave=leave,
        start=start + held,
        lag=math.ceil((problem.restart_s + problem.stop_s) / step_s - 1e-9),
        first=first,
        least=size.least,
        last=min(
            math.floor((problem.work_s - problem.job.min_run_s) / step_s + 1e-9), size.rows - 1
        ),
    )


def _slot_costs(
    problem: Problem, count: int, step_s: float, starting: Sequence[Phase]
) -> tuple[FloatArray, FloatArray, FloatArray, FloatArray, FloatArray]:
    """Return what `slot_costs` does of a problem, for starts of some phases."""
    profile = problem.job.profile
    return slot_costs(
        count,
        step_s,
        problem.job.deadline - problem.base,
        _series(problem.energy, problem.base),
        NO_RENT if problem.occupancy is None else _series(problem.occupancy, problem.base),
        _phase_table(starting),
        _phase_table(profile.stop),
        profile.suspended_power_w / JOULES_PER_KWH,
    )


def _begun_ahead(tables: _Tables) -> FloatArray:
    """Return, per column, the cost of a restart at row 0 after a first start that did no work."""
    columns, lag = tables.begin.size, tables.lag
    begin = np.full(columns, np.inf)
    stopped = np.minimum.accumulate(tables.begin + tables.leave[:columns])
    begin[lag:] = stopped[: max(columns - lag, 0)] + tables.start[lag:columns]
    return begin


def _series(signal: Signal, base: float) -> tuple[FloatArray, FloatArray, float, float]:
    return signal.prefix, signal.values, signal.step_s, base - signal.start


def _phase_table(phases: Sequence[Phase]) -> FloatArray:
    durations_s = [phase.duration_s for phase in phases]
    power = [phase.power_w / JOULES_PER_KWH for phase in phases]
    return np.array([durations_s, power], dtype=np.float64)


def _multiples(step_s: float, count: int) -> FloatArray:
    numbers: FloatArray = np.arange(count, dtype=np.float64)
    return step_s * numbers


def _blocked(
    problem: Problem, step_s: float, slots: int
) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """Return how many slots before each touch a forbidden window."""
    before = np.zeros(slots + 1, dtype=np.int64)
    if problem.forbidden:
        at_s = _multiples(step_s, slots + 1)
        before[1:] = np.cumsum(problem.hit(at_s[:-1], at_s[1:]))
    return before


def _special_costs(
    problem: Problem,
    size: Size,
    step_s: float,
    special: np.ndarray[tuple[int], np.dtype[np.int64]],
) -> FloatArray:
    """Return, per delay, the costs of the rows in which the power changes or the work ends."""
    if special.max() < 0:
        return np.empty((0, size.columns))
    numbers = np.flatnonzero(special >= 0)
    costs = np.empty((numbers.size, size.columns))
    delays_s = _multiples(step_s, size.columns)
    open_problem = replace(problem, forbidden=())
    for place, row in enumerate(numbers.tolist()):
        end_s = min((row + 1) * step_s, problem.work_s)
        costs[place] = open_problem.evaluate(problem.run(row * step_s, end_s), delays_s)
    return costs


def _optimistic(problem: Problem, size: Size, step_s: float) -> _Tables:
    """Return tables in which every cost is the least it could be within its cell.

    Suspended power and rent are paid from the first start to the end, whatever the job does in
    between; phases are charged with what they draw beyond that.
    """
    slots = size.rows + size.columns
    at_s = _multiples(step_s, slots + 1)
    profile = problem.job.profile
    suspended_w = profile.suspended_power_w

    def least(low_s: FloatArray, high_s: FloatArray) -> FloatArray:
        return _lowest(problem.energy, problem.base, low_s, high_s)

    def phases(group: Sequence[Phase], offset_s: float) -> FloatArray:
        # A start or stop costs at least each of its phases' energy at the lowest value that the
        # phase could meet. Progress and delay may each be off by less than a step.
        total = np.zeros(slots + 1)
        for phase in group:
            low_s = at_s + offset_s - step_s
            high_s = at_s + offset_s + phase.duration_s + 2 * step_s
            energy_j = (phase.power_w - suspended_w) * phase.duration_s
            total += energy_j / JOULES_PER_KWH * least(low_s, high_s)
            offset_s += phase.duration_s
        return total

    edges_s, energy_j = _excess(problem)
    cuts_s = np.minimum(_multiples(step_s, size.rows + 1), problem.work_s)
    per_row = np.diff(np.interp(cuts_s, edges_s, energy_j))
    resume = phases(problem.resuming, -problem.restart_s)
    delays_s = at_s[: size.columns]
    begin = np.full(size.columns, np.inf)
    final = _held(problem, delays_s + problem.work_s)
    if problem.state.starts:
        final -= problem.held_before
    if not problem.state.running:
        begin = phases(problem.starting, -problem.startup_s)[: size.columns]
        if not problem.state.starts:
            begin -= _held(problem, delays_s + step_s - problem.startup_s)
    tables = _Tables(
        begin=begin,
        power=per_row / JOULES_PER_KWH,
        special=np.full(size.rows, -1, dtype=np.int64),
        special_cost=np.empty((0, size.columns)),
        slot=least(at_s[:-1], at_s[:-1] + 2 * step_s),
        slot_extra=np.zeros(slots),
        blocked=np.zeros(slots + 1, dtype=np.int64),
        last_blocked=np.zeros(size.columns, dtype=np.bool_),
        leave=phases(profile.stop, 0.0),
        start=resume,
        lag=math.floor((problem.restart_s + problem.stop_s) / step_s + 1e-9),
        first=0,
        # Either end of a stretch may have been moved by less than a step.
        least=max(math.ceil(problem.job.min_run_s / step_s - 1e-9) - 2, 0),
        last=size.rows - 1,
        final=final,
    )
    if problem.starting is problem.resuming:
        return tables
    return tables._replace(begin=np.minimum(begin, _begun_ahead(tables)))


def _excess(problem: Problem) -> tuple[FloatArray, FloatArray]:
    """Return edges of work, and what it has drawn up to each beyond what it would suspended."""
    edges_s, power_w = problem.work
    more_w = power_w - problem.job.profile.suspended_power_w
    return edges_s, np.concatenate(([0.0], np.cumsum(np.diff(edges_s) * more_w)))


def _held(problem: Problem, until_s: FloatArray) -> FloatArray:
    """Return what being suspended up to some times after progress 0 costs, cut to the window."""
    held = problem.held(0.0)
    if not held.terms:
        return np.zeros(until_s.size)
    now_s, end_s = problem.state.now - problem.base, problem.job.deadline - problem.base
    return problem.evaluate(held, np.clip(until_s, now_s, end_s))


def _lowest(signal: Signal, base: float, low_s: FloatArray, high_s: FloatArray) -> FloatArray:
    """Return the lowest value that a signal has between times, cut to its span."""
    shift = base - signal.start
    last = len(signal) - 1
    i = np.clip(np.floor((low_s + shift) / signal.step_s + 1e-9), 0, last).astype(np.intp)
    j = np.clip(np.ceil((high_s + shift) / signal.step_s - 1e-9) - 1, 0, last).astype(np.intp)
    j = np.maximum(i, j)
    lowest = signal.values[i].copy()
    for offset in range(1, int((j - i).max()) + 1):
        np.minimum(lowest, signal.values[np.minimum(i + offset, j)], out=lowest)
    return lowest
