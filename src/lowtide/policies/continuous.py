"""Exact planning in continuous time, for jobs that are stopped at checkpoints or never.

V(x) is the least cost of being at some progress with delay x. It is piecewise linear, and so is
everything that happens to it from one checkpoint to the next:

- running adds a sum of shifted running integrals of the signal;
- stopping and starting again turns it into min(V(x), min over y ≤ x − lag of V(y) + costs).

So no grid of times is needed, and the result is exact. Where there are many checkpoints, V is kept
only where it can be a part of the best plan: see `solve`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np

from lowtide.errors import TooLaborious
from lowtide.job import TIME_TOLERANCE_S
from lowtide.policies import gridded, piecewise
from lowtide.policies.piecewise import FloatArray, Function
from lowtide.policies.problem import MOST_BYTES, Cost, Problem, Solution, Start
from lowtide.units import JOULES_PER_KWH

# A restart must be worth more than rounding, relative to what is paid in all.
_WORTH = 1e-12
# About how long a plan may take on one core unless it is told otherwise.
MOST_S = 120.0
# What one core gets through in a second: knots of functions and of what is added to them.
_KNOTS_PER_SECOND = 1e7
# From how many checkpoints on V is kept only where it can matter, and by how many times fewer
# checkpoints a plan is made first.
_MANY = 150
_FINER = 8
# How many bounds on what is still to be paid are kept, for how many delays at the most (each is
# looked at for every checkpoint), and for how many starts they are told apart.
_CELLS = 3e6
_DELAYS = 2e4
_LAYERS = 16
# What rounding may do to a cost, relative to the largest, however few sums it takes.
_MARGIN = 1e-9
# How many times a number is rounded where a running integral is read.
_ROUNDED = 4
# How many checkpoints are passed between two looks at how long the rest will take.
_LOOK = 32
# How far delays reach beyond the slack while a job is planned, so that the last is not lost where
# it is the only one.
_ROOM_S = TIME_TOLERANCE_S / 2


@dataclass(frozen=True, slots=True)
class _Origin:
    """A start: at which point, how many starts are then used, and the cost by the delay."""

    point: int
    layer: int
    function: Function


@dataclass(slots=True, kw_only=True)
class _Point:
    """A checkpoint, or either end of the work: what the way back needs to know of it.

    Costs themselves are forgotten as soon as they are passed. All is kept by the number of starts
    used, and delays from and to which something holds as `piecewise.lower_of` gives them.

    Attributes:
        progress_s: Where it lies.
        joined: Starts made earlier that may be stopped from here on, and the delays with which
            each is cheaper than those before it and than running on.
        begun: The delays with which a start made here is cheaper than running on.
        stopped: With which delay it was best stopped for a start made here with another, as
            `piecewise.first_lows` gives it; a stop and a start later.
    """

    progress_s: float
    joined: dict[int, list[tuple[int, FloatArray]]] = field(default_factory=dict)
    begun: dict[int, FloatArray] = field(default_factory=dict)
    stopped: dict[int, tuple[FloatArray, FloatArray]] = field(default_factory=dict)


def solve(
    problem: Problem,
    *,
    most_s: float = MOST_S,
    whole: bool = False,
    counted: int | None = None,
    ahead: bool = False,
) -> Solution:
    """Return the least cost and the starts that reach it.

    With many checkpoints nearly all of V is of no use: from most delays on, whatever follows, the
    job comes to more than a plan that is known. So it is first planned with a part of its
    checkpoints, which is such a plan, and then with more of them and only where V, together with
    the least that is still to be paid, is no more than that. What is left out cannot be a part of
    the best plan, which is as good as that one or better. Should rounding have left out too much
    all the same, which shows in a plan that is worse, or in none, everything is kept.

    Args:
        most_s: About how long it may take on one core; more is refused as soon as it is foreseen.
        whole: Whether the least by the delay and by the number of starts is asked for, too.
        ahead: As for `gridded.solve`: whether another start, which keeps no work, comes before.
    """
    make = partial(_Planner, problem, most_s=most_s, ahead=ahead)
    planner = make()
    if whole or len(planner.points) <= _MANY or not _prunable(problem):
        return planner.solve()
    layers = 1 if planner.limit is None or planner.limit >= _LAYERS else planner.limit + 1
    step_s = math.sqrt(problem.work_s * planner.longest_s * layers / _CELLS)
    rest = gridded.Rest(problem, max(step_s, planner.longest_s / _DELAYS), layers)
    most = np.inf
    effort_s = 0.0
    strides = [1]
    while len(planner.points) / strides[-1] > _MANY:
        strides.append(_FINER * strides[-1])
    for stride in reversed(strides):
        planner = make(stride=stride, rest=rest, most=most)
        solution = planner.solve()
        if _wanted(solution, counted) > planner.most:
            effort_s += solution.effort_s
            planner = make(stride=stride)
            solution = planner.solve()
        effort_s += solution.effort_s
        most = min(most, _wanted(solution, counted))
    # What is more than the plan that was known is not all there.
    by_starts = tuple(cost if cost <= planner.most else np.inf for cost in solution.by_starts)
    nothing = (np.empty(0), np.empty(0))
    return replace(solution, by_delay=nothing, by_starts=by_starts, effort_s=effort_s)


def _wanted(solution: Solution, counted: int | None) -> float:
    """Return the cost that a solution was asked for: with a number of starts, or the least."""
    if counted is not None and counted < len(solution.by_starts):
        return solution.by_starts[counted]
    return solution.cost


def _rounding(problem: Problem, points: int) -> float:
    """Return what rounding may add to a cost: running integrals are far larger than it is.

    Each is read at the ends of stretches of work and of the phases of a stop and a start, at each
    point at the most.
    """
    profile = problem.job.profile
    start = max(problem.starting, problem.resuming, key=len)
    highest_w = max(
        phase.power_w
        for phase in (*problem.starting, *problem.resuming, *profile.stop, *profile.work)
    )
    reads = 2 * (points * (len(start) + len(profile.stop) + 2) + len(profile.work))
    total = 0.0
    for signal, weight in zip(problem.signals, (highest_w / JOULES_PER_KWH, 1.0), strict=False):
        reach_s = problem.job.deadline - signal.start
        total += weight * reach_s * float(np.abs(signal.values).max())
    return _ROUNDED * reads * total * float(np.finfo(float).eps)


def _prunable(problem: Problem) -> bool:
    """Return whether what is still to be paid can be bounded."""
    return problem.boundable and bool(problem.values_ahead.min() >= 0) and problem.slack_s > 0


class _Planner:
    """The points of one problem: filled on the way out, read on the way back."""

    def __init__(
        self,
        problem: Problem,
        *,
        most_s: float = MOST_S,
        stride: int = 1,
        rest: gridded.Rest | None = None,
        most: float = np.inf,
        ahead: bool = False,
    ) -> None:
        self.problem = problem
        self.most_s = most_s
        self.ahead = ahead
        self.rest = rest if most < np.inf else None
        self.effort = self.looked = 0.0
        self.lag_s = problem.restart_s + problem.stop_s
        self.slack_s = max(problem.slack_s, 0.0)
        self.longest_s = self.slack_s + _ROOM_S
        self.worth = _WORTH * problem.largest
        never = problem.job.interruptible == "never"
        inner = [] if never else problem.checkpoints_s.tolist()
        left = problem.starts_left
        if left is not None:
            left -= int(ahead)
        # Where the limit cannot bind, one layer holds every number of starts.
        self.limit = None if left is None or left > len(inner) + 1 else left
        inner = inner[stride - 1 :: stride]
        self.points = [_Point(progress_s=at) for at in (0.0, *inner, problem.work_s)]
        # Rounding may not make a plan cost more than it does.
        margin = max(_MARGIN * problem.largest, _rounding(problem, len(self.points)))
        self.most = most + margin
        self.kept_bytes = 0
        # What a stop and a start cost at progress 0: elsewhere it is the same, shifted.
        self.ready = problem.startup(0.0)
        self.again = self.stop = self.stopped = self.resumed = Cost((), None)
        if inner or problem.state.running or problem.state.starts or ahead:
            self.again = problem.restart(0.0)
            self.stop, self.stopped = problem.stop(0.0), problem.held(problem.stop_s)
            self.resumed = problem.held(-problem.restart_s)

    def solve(self) -> Solution:
        problem, last = self.problem, len(self.points) - 1
        at_once = problem.job.min_run_s <= 0
        running = {0: _now(self.longest_s)} if problem.state.running else {}
        waiting: list[_Origin] = []
        for number, point in enumerate(self.points):
            if number:
                cost = problem.run(self.points[number - 1].progress_s, point.progress_s)
                passed = {
                    layer: self._useful(self._add(each, cost), point, layer)
                    for layer, each in running.items()
                }
                running = {layer: each for layer, each in passed.items() if _anywhere(each)}
            for each in [each for each in waiting if self._ran_enough(each, point)]:
                # What it ran in the meantime is added in one go: step by step it would be gone
                # through once for every checkpoint that it passes.
                cost = problem.run(self.points[each.point].progress_s, point.progress_s)
                edges = self._join(running, replace(each, function=self._add(each.function, cost)))
                point.joined.setdefault(each.layer, []).append((each.point, edges))
            waiting = [each for each in waiting if not self._ran_enough(each, point)]
            if number == last:
                break
            begun = self._start(running, number)
            if at_once:
                for each in begun:
                    point.begun[each.layer] = self._join(running, each)
            else:
                waiting += begun
            self._refuse_if_large([*running.values(), *(each.function for each in waiting)])
            if number and number % _LOOK == 0:
                self._refuse_if_long(number)
        return self._solution(running)

    def _ran_enough(self, origin: _Origin, point: _Point) -> bool:
        ran_s = point.progress_s - self.points[origin.point].progress_s
        return ran_s > 0 and ran_s >= self.problem.job.min_run_s - TIME_TOLERANCE_S

    def _join(self, functions: dict[int, Function], origin: _Origin) -> FloatArray:
        """Lower a function to that of a start where it is cheaper, and return where it is."""
        before = functions.get(origin.layer)
        if before is None:
            functions[origin.layer] = origin.function
            return np.array([-np.inf, np.inf])
        functions[origin.layer], edges = piecewise.lower_of(*before, *origin.function, self.worth)
        self.kept_bytes += edges.nbytes
        return edges

    def _refuse_if_large(self, functions: list[Function]) -> None:
        used = self.kept_bytes + sum(part.nbytes for each in functions for part in each)
        if used > MOST_BYTES:
            raise self._too_much(
                f"takes more than {MOST_BYTES / 2**30:.3g} GiB",
                "or let it be stopped anywhere with a step_s",
            )

    def _refuse_if_long(self, number: int) -> None:
        # Work is counted, not timed, so that the same plan is refused on every machine. The rest
        # goes on as the last checkpoints went; functions seldom become simpler on the way.
        recent = (self.effort - self.looked) / _LOOK
        self.looked = self.effort
        needed_s = (self.effort + recent * (len(self.points) - 1 - number)) / _KNOTS_PER_SECOND
        if needed_s > self.most_s:
            raise self._too_much(
                f"would take about {math.ceil(needed_s / 60)} min",
                f"let it be stopped anywhere, or allow it with "
                f"Exact(time_budget_s={_round_up(needed_s)})",
            )

    def _too_much(self, what: str, last: str) -> TooLaborious:
        """Return an error that says what a plan would take, and what takes less."""
        lower = "" if self.limit is None else ", a lower max_starts"
        return TooLaborious(
            f"job {self.problem.job.id}: planning {len(self.points) - 2:,} checkpoints on "
            f"{self.problem.values_ahead.size:,} steps of the signal {what}: give it fewer "
            f"checkpoints{lower} or a coarser signal, {last}"
        )

    def _start(self, running: dict[int, Function], number: int) -> list[_Origin]:
        """Return the starts that can be made at a point."""
        problem, point = self.problem, self.points[number]
        progress_s = point.progress_s
        if number == 0 and not problem.state.running:
            if self.limit == 0:
                return []
            first = self._add(piecewise.constant(0.0, self.longest_s), self.ready)
            if problem.state.starts:
                # It was stopped before, and is held until it starts again.
                first = self._add(first, self.resumed)
                first = (first[0], first[1] - problem.held_before, first[2] - problem.held_before)
            if self.ahead:
                first = self._resume(self._stop(first, 0.0), 0.0)
            return [_Origin(0, 0 if self.limit is None else 1, first)]
        if number == 0 and not problem.may_stop_now:
            return []
        if progress_s < problem.must_run_s - TIME_TOLERANCE_S:
            # Up to here there is only the run that was under way, and it must go on.
            return []
        begun = []
        for layer, arrived in running.items():
            if self.limit is not None and layer >= self.limit:
                continue
            lowest = self._stop(arrived, progress_s)
            point.stopped[layer] = piecewise.first_lows(*lowest, self.worth)
            self.kept_bytes += sum(part.nbytes for part in point.stopped[layer])
            used = layer if self.limit is None else layer + 1
            function = self._useful(self._resume(lowest, progress_s), point, used)
            if _anywhere(function):
                begun.append(_Origin(number, used, function))
        return begun

    def _stop(self, arrived: Function, progress_s: float) -> Function:
        """Return the least cost of having been stopped at a point, by the delay from then on."""
        leaving = self._add(arrived, self.stop, progress_s)
        leaving = self._add(leaving, self.stopped, progress_s, sign=-1.0)
        return piecewise.delayed_minimum(*leaving, self.lag_s)

    def _resume(self, stopped: Function, progress_s: float) -> Function:
        """Return the cost of starting again at a point, by the delay."""
        return self._add(self._add(stopped, self.again, progress_s), self.resumed, progress_s)

    def _useful(self, function: Function, point: _Point, layer: int) -> Function:
        """Return a function where it can still lead to the best plan."""
        if self.rest is None:
            return function
        left = 0 if self.limit is None else self.limit - layer
        rest = self.rest.at(point.progress_s, left)
        return piecewise.no_more_than(*function, rest, self.rest.step_s, self.most)

    def _add(
        self, function: Function, cost: Cost, later_s: float = 0.0, *, sign: float = 1.0
    ) -> Function:
        """Add a cost to a function of the delay, or that of the same so much later."""
        problem = self.problem
        for term in cost.terms:
            signal = term.signal
            self.effort += function[0].size + term.offsets_s.size * (self.longest_s / signal.step_s)
            function = piecewise.add_shifted(
                *function,
                term.offsets_s + (later_s + (problem.base - signal.start)),
                sign * term.weights,
                signal.prefix,
                signal.values,
                signal.step_s,
            )
        if cost.busy is not None:
            for low, high in problem.forbidden:
                function = piecewise.without(
                    *function,
                    low - problem.base - (cost.busy[1] + later_s),
                    high - problem.base - (cost.busy[0] + later_s),
                )
        return function

    def _solution(self, arrived: dict[int, Function]) -> Solution:
        """Find the best end and walk back to the starts that lead to it."""
        wait = self.problem.wait
        final = None
        layer, delay_s, cost = -1, 0.0, np.inf
        by_starts = [np.inf] * (0 if self.limit is None else self.limit + 1)
        for number, function in arrived.items():
            if wait:
                x, left, right = function
                function = (x, left + wait * x[:-1], right + wait * x[1:])
            at, value = piecewise.first_minimum(*function, self.slack_s)
            if value == np.inf:
                at, value = piecewise.first_minimum(*function, self.longest_s)
            if by_starts:
                by_starts[number] = value
            if value < cost - _WORTH * abs(value):
                layer, delay_s, cost = number, at, value
            if final is None:
                final = function
            else:
                final, _ = piecewise.lower_of(*final, *function, 0.0)
        if final is None:
            final = piecewise.constant(np.inf, self.longest_s)
        starts = self._way_back(layer, delay_s) if cost < np.inf else ()
        return Solution(
            cost=cost,
            starts=starts,
            by_delay=piecewise.ends_upto(*final, self.slack_s),
            by_starts=tuple(by_starts),
            effort_s=self.effort / _KNOTS_PER_SECOND,
        )

    def _way_back(self, layer: int, delay_s: float) -> tuple[Start, ...]:
        starts: list[Start] = []
        number = len(self.points) - 1
        while True:
            origin = self._origin(number, layer, delay_s)
            if origin is None:
                number -= 1
                if number < 0:
                    break
                continue
            point = self.points[origin]
            starts.append(Start(point.progress_s, min(delay_s, self.slack_s)))
            if origin == 0 and not self.problem.state.running:
                break
            layer -= 0 if self.limit is None else 1
            begin, place = point.stopped[layer]
            best = float(place[np.searchsorted(begin, delay_s, side="right") - 1])
            delay_s = (delay_s if best < 0 else best) - self.lag_s
            number = origin
        return tuple(reversed(starts))

    def _origin(self, number: int, layer: int, delay_s: float) -> int | None:
        """Return where the start was made that leads to a point, None for that before it."""
        for origin, edges in reversed(self.points[number].joined.get(layer, [])):
            if _holds(edges, delay_s):
                return origin
        if number and _holds(self.points[number - 1].begun.get(layer), delay_s):
            return number - 1
        return None


def _round_up(seconds: float) -> int:
    """Return whole minutes, with room for an estimate that was too low by half."""
    return 60 * math.ceil(1.5 * seconds / 60)


def _holds(edges: FloatArray | None, delay_s: float) -> bool:
    """Return whether a delay lies between an edge and the next that goes with it."""
    return edges is not None and bool(np.searchsorted(edges, delay_s, side="right") % 2)


def _anywhere(function: Function) -> bool:
    """Return whether a function can be at any delay."""
    _, left, _ = function
    return left.size > 1 or left[0] < np.inf


def _now(slack_s: float) -> Function:
    """Return the function of a job that runs: delay 0 costs nothing, no other can be."""
    function = piecewise.constant(0.0, slack_s)
    return piecewise.without(*function, 0.0, np.inf)
