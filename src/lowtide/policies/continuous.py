"""Exact planning in continuous time, for jobs that are stopped at checkpoints or never.

V(x) is the least cost of being at some progress with delay x. It is piecewise linear, and so is
everything that happens to it from one checkpoint to the next:

- running adds a sum of shifted running integrals of the signal;
- stopping and starting again turns it into min(V(x), min over y ≤ x − lag of V(y) + costs).

So no grid of times is needed, and the result is exact.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from lowtide.job import TIME_TOLERANCE_S
from lowtide.policies import piecewise
from lowtide.policies.piecewise import Function
from lowtide.policies.problem import Cost, Problem, Solution, Start

# A restart must be worth more than rounding, relative to what is paid in all.
_WORTH = 1e-12
# How far a job may reach into a forbidden window, or past its slack while it is planned, so that a
# single delay that just fits is not lost.
_ROOM_S = TIME_TOLERANCE_S / 2
# How long delay 0 of a running job lasts: just long enough to be told from no time at all.
_NOW_S = 3e-7


@dataclass(frozen=True, slots=True)
class _Origin:
    """A start: at which point, how many starts are then used, and the cost by the delay."""

    point: int
    layer: int
    function: Function


@dataclass(slots=True, kw_only=True)
class _Point:
    """A checkpoint, or either end of the work. Functions are kept by the number of starts used.

    Attributes:
        progress_s: Where it lies.
        own: Cost of arriving by running on from the point before.
        joined: Starts made earlier that may be stopped from here on.
        arrived: The lower of the two.
        leaving: Cost of stopping here after arriving.
        begun: Starts made here.
    """

    progress_s: float
    own: dict[int, Function]
    joined: list[_Origin]
    arrived: dict[int, Function]
    leaving: dict[int, Function] = field(default_factory=dict)
    begun: list[_Origin] = field(default_factory=list)


def solve(problem: Problem) -> Solution:
    """Return the least cost and the starts that reach it.

    Args:
        problem: A job that is stopped at checkpoints or never.
    """
    return _Planner(problem).solve()


class _Planner:
    """The points of one problem: filled on the way out, read on the way back."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self.lag_s = problem.startup_s + problem.stop_s
        self.longest_s = problem.slack_s + _ROOM_S
        never = problem.job.interruptible == "never"
        inner = [] if never else problem.checkpoints_s.tolist()
        self.progress_s: list[float] = [0.0, *inner, problem.work_s]
        left = problem.starts_left
        # Where the limit cannot bind, one layer holds every number of starts.
        self.limit = None if left is None or left > len(inner) + 1 else left
        self.points: list[_Point] = []

    def solve(self) -> Solution:
        problem = self.problem
        at_once = problem.job.min_run_s <= 0
        running = {0: _now(self.longest_s)} if problem.state.running else {}
        waiting: list[_Origin] = []
        last = len(self.progress_s) - 1
        for number, progress_s in enumerate(self.progress_s):
            if number:
                cost = problem.run(self.progress_s[number - 1], progress_s)
                running = {layer: self._add(each, cost) for layer, each in running.items()}
                waiting = [
                    _Origin(each.point, each.layer, self._add(each.function, cost))
                    for each in waiting
                ]
            joined = [each for each in waiting if self._ran_enough(each, progress_s)]
            waiting = [each for each in waiting if not self._ran_enough(each, progress_s)]
            arrived = dict(running)
            for each in joined:
                _lower(arrived, each)
            point = _Point(progress_s=progress_s, own=running, joined=joined, arrived=arrived)
            self.points.append(point)
            running = dict(arrived)
            if number == last:
                break
            point.begun = self._start(point, number)
            if at_once:
                for each in point.begun:
                    _lower(running, each)
            else:
                waiting += point.begun
        return self._solution(running)

    def _ran_enough(self, origin: _Origin, progress_s: float) -> bool:
        ran_s = float(progress_s - self.progress_s[origin.point])
        return ran_s > 0 and ran_s >= self.problem.job.min_run_s - TIME_TOLERANCE_S

    def _start(self, point: _Point, number: int) -> list[_Origin]:
        """Return the starts that can be made at a point."""
        problem, progress_s = self.problem, point.progress_s
        ready = problem.startup(progress_s)
        resumed = problem.held(progress_s - problem.startup_s)
        if number == 0 and not problem.state.running:
            if self.limit == 0:
                return []
            first = self._add(piecewise.constant(0.0, self.longest_s), ready)
            if problem.state.starts:
                # It was stopped before, and is held until it starts again.
                first = self._add(first, resumed)
                first = (first[0], first[1] - problem.held_before, first[2] - problem.held_before)
            return [_Origin(0, 0 if self.limit is None else 1, first)]
        if number == 0 and not problem.may_stop_now:
            return []
        begun = []
        for layer, arrived in point.arrived.items():
            if self.limit is not None and layer >= self.limit:
                continue
            leaving = self._add(arrived, problem.stop(progress_s))
            leaving = self._add(leaving, problem.held(progress_s + problem.stop_s), sign=-1.0)
            point.leaving[layer] = leaving
            function = piecewise.delayed_minimum(*leaving, self.lag_s)
            function = self._add(self._add(function, ready), resumed)
            begun.append(_Origin(number, layer if self.limit is None else layer + 1, function))
        return begun

    def _add(self, function: Function, cost: Cost, *, sign: float = 1.0) -> Function:
        """Add a cost to a function of the delay."""
        problem = self.problem
        for term in cost.terms:
            signal = term.signal
            function = piecewise.add_shifted(
                *function,
                term.offsets_s + (problem.base - signal.start),
                sign * term.weights,
                signal.prefix,
                signal.values,
                signal.step_s,
            )
        if cost.busy is not None:
            for low, high in problem.forbidden:
                function = piecewise.without(
                    *function,
                    low - problem.base - cost.busy[1] + _ROOM_S,
                    high - problem.base - cost.busy[0] - _ROOM_S,
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
            at, value = piecewise.first_minimum(*function, self.longest_s)
            if by_starts:
                by_starts[number] = value
            if value < cost - _WORTH * abs(value):
                layer, delay_s, cost = number, at, value
            final = function if final is None else piecewise.lower_of(*final, *function)
        if final is None:
            final = piecewise.constant(np.inf, self.longest_s)
        starts = self._way_back(layer, delay_s, _WORTH * abs(cost)) if cost < np.inf else ()
        x, left, right = final
        ends = np.minimum(np.column_stack((x[:-1], x[1:])).ravel(), self.problem.slack_s)
        values = np.column_stack((left, right)).ravel()
        return Solution(
            cost=cost, starts=starts, by_delay=(ends, values), by_starts=tuple(by_starts)
        )

    def _way_back(self, layer: int, delay_s: float, tie: float) -> tuple[Start, ...]:
        starts: list[Start] = []
        number = len(self.points) - 1
        while number >= 0:
            point = self.points[number]
            origin = self._cheaper(point.joined, point.own.get(layer), layer, delay_s, tie)
            if origin is None:
                number -= 1
                if number < 0:
                    break
                before = self.points[number]
                if self.problem.job.min_run_s <= 0:
                    origin = self._cheaper(
                        before.begun, before.arrived.get(layer), layer, delay_s, tie
                    )
                if origin is None:
                    continue
            source = self.points[origin.point]
            starts.append(Start(source.progress_s, min(delay_s, self.problem.slack_s)))
            if origin.point == 0 and not self.problem.state.running:
                break
            layer -= 0 if self.limit is None else 1
            delay_s, _ = piecewise.first_minimum(*source.leaving[layer], delay_s - self.lag_s)
            number = origin.point
        return tuple(reversed(starts))

    @staticmethod
    def _cheaper(
        origins: list[_Origin], other: Function | None, layer: int, delay_s: float, tie: float
    ) -> _Origin | None:
        """Return the start that leads to a delay more cheaply than running on, if one does."""
        best = None
        lowest = np.inf if other is None else piecewise.value_at(*other, delay_s) - tie
        for origin in origins:
            if origin.layer == layer:
                value = piecewise.value_at(*origin.function, delay_s)
                if value < lowest:
                    best, lowest = origin, value
        return best


def _lower(functions: dict[int, Function], origin: _Origin) -> None:
    before = functions.get(origin.layer)
    functions[origin.layer] = (
        origin.function if before is None else piecewise.lower_of(*before, *origin.function)
    )


def _now(slack_s: float) -> Function:
    """Return the function of a job that runs: delay 0 costs nothing, no other can be."""
    function = piecewise.constant(0.0, slack_s)
    return piecewise.without(*function, _NOW_S, np.inf)
