"""The exact planner: the least that a job can emit, and the schedule that reaches it.

Jobs that are stopped at checkpoints or never are planned in continuous time (`continuous`), jobs
that may be stopped anywhere on a grid of progress and delay (`gridded`). Both follow the same
recursion; the documentation's page on the algorithm derives it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from lowtide.accounting import footprint
from lowtide.errors import InvalidInput, InvalidJob
from lowtide.job import TIME_TOLERANCE_S, Job
from lowtide.policies import continuous, gridded
from lowtide.policies.oracle import Oracle
from lowtide.policies.policy import Decision
from lowtide.policies.problem import Problem, Solution, Start, make_problem
from lowtide.policies.wait_awhile import WaitAwhile
from lowtide.schedule import Schedule, State, Stretch
from lowtide.signal import Signal
from lowtide.units import TimeLike, format_hours, format_time, parse_time

# What one core gets through in a second, and the most memory that a plan may take.
STATES_PER_SECOND = 3e8
MOST_BYTES = 2**30

# The effort that telling why a job cannot run may take each time it tries, and how many more
# starts it tries.
_QUICK = 10_000_000
_MOST_STARTS = 64

# Steps that people can read, for problems without a common one.
_NICE_S = (
    *(0.001, 0.01, 0.1, 0.5, 1, 2, 5, 10, 15, 20, 30),
    *(60, 120, 300, 600, 900, 1200, 1800, 3600, 7200, 14400, 21600, 43200, 86400),
)


@dataclass(frozen=True, kw_only=True)
class Optimum:
    """The best there is for a job, proven.

    Attributes:
        problem: What was solved.
        solution: The least cost and the starts that reach it.
        step_s: The step between decisions, None for continuous time.
        asked: What would have been solved on a finer step; None if deciding on this one costs
            nothing.
    """

    problem: Problem
    solution: Solution
    step_s: float | None
    asked: Problem | None

    @cached_property
    def gap(self) -> float:
        """The most that deciding on the step can have cost."""
        if self.asked is None or self.step_s is None:
            return 0.0
        return max(self.solution.cost - gridded.lower_bound(self.asked, self.step_s), 0.0)

    @property
    def stretches(self) -> list[Stretch]:
        """What is to be run from the state on; a job that runs goes on with the first."""
        problem = self.problem
        starts = self.solution.starts
        progress_s = [start.progress_s for start in starts]
        stretches = []
        if problem.state.running:
            until_s = progress_s[0] if starts else problem.work_s
            stretches.append(Stretch(start=problem.state.now, work_s=until_s))
        for start, until_s in zip(starts, [*progress_s[1:], problem.work_s], strict=False):
            ready = problem.base + start.progress_s + start.delay_s
            stretches.append(
                Stretch(start=ready - problem.startup_s, work_s=until_s - start.progress_s)
            )
        return stretches


@dataclass(frozen=True, slots=True, kw_only=True)
class Exact:
    """Run as cleanly as can be, knowing phases, startup, checkpoints and the signal.

    Attributes:
        step_s: Step between decisions of a job that may be stopped anywhere; by default the
            greatest common divisor of all durations if that is quick enough, else the finest
            readable step that is.
        wait: What a second of delay counts, in the signal's unit.
        occupancy: Cost of a second of running, or of being held while suspended.
        forbidden: Stretches of time in which the job must not run.
        time_budget_s: How long choosing its own step may make a plan take, about.
    """

    step_s: float | None = None
    wait: float = 0.0
    occupancy: Signal | None = None
    forbidden: Sequence[tuple[TimeLike, TimeLike]] = ()
    time_budget_s: float = 0.1

    def __post_init__(self) -> None:
        if self.step_s is not None and not self.step_s > 0:
            raise InvalidInput(
                f"the step between decisions must be longer than 0 s, not {self.step_s}"
            )
        if not (math.isfinite(self.wait) and self.wait >= 0):
            raise InvalidInput(f"a second of waiting counts 0 or more, not {self.wait}")

    def decide(self, job: Job, signal: Signal, *, state: State | None = None) -> Decision:
        """Decide for one job.

        Args:
            job: What is to be run.
            signal: What a kWh emits or costs.
            state: Where the job stands, by default at its arrival.
        """
        optimum = self.optimise(job, signal, state=state)
        schedule = Schedule.from_stretches(job, optimum.stretches, state=state)
        # A bound on a mix of costs is none on the signal's own.
        if self.wait or self.occupancy is not None:
            return Decision(schedule=schedule, step_s=optimum.step_s)
        cost = optimum.solution.cost
        bound = cost - optimum.gap
        if optimum.gap and not self.forbidden and state is None:
            # Policies that decide between the steps may come out ahead by a little.
            for rival in (WaitAwhile(), Oracle()):
                other = rival.decide(job, signal).schedule
                paid = footprint(other, job, signal).amount
                if paid < cost:
                    schedule, cost = other, paid
        return Decision(
            schedule=schedule,
            lower_bound=cost,
            step_s=optimum.step_s,
            resolution_gap=max(cost - bound, 0.0),
        )

    def optimise(self, job: Job, signal: Signal, *, state: State | None = None) -> Optimum:
        """Return the best way to run a job from a state on.

        Args:
            job: What is to be run.
            signal: What a kWh emits or costs.
            state: Where the job stands, by default at its arrival.
        """
        problem = make_problem(
            job,
            signal,
            wait=self.wait,
            occupancy=self.occupancy,
            forbidden=[(parse_time(begin), parse_time(end)) for begin, end in self.forbidden],
            state=state,
        )
        step_s, asked = None, None
        if problem.slack_s <= TIME_TOLERANCE_S:
            solution = _forced(problem)
        elif job.interruptible == "anywhere" and problem.starts_left != int(
            not problem.state.running
        ):
            step_s, lossless = self._step(problem)
            solution = gridded.solve(problem, step_s)
            if not lossless:
                asked = problem
                problem, solution = _better_aligned(problem, solution, step_s)
        else:
            solution = continuous.solve(problem)
        if solution.cost == np.inf:
            raise InvalidJob(_infeasible(problem))
        return Optimum(problem=problem, solution=solution, step_s=step_s, asked=asked)

    def _step(self, problem: Problem) -> tuple[float, bool]:
        """Return the step to decide on, and whether nothing is lost by it."""
        common_s = common_step(problem)
        if self.step_s is not None:
            needed = gridded.size_of(problem, self.step_s).memory_bytes
            if needed > MOST_BYTES:
                fits = _finest(problem, math.inf)
                raise InvalidInput(
                    f"a step of {format_hours(self.step_s)} would take {needed / 2**30:.1f} GiB: "
                    f"use a step of {format_hours(fits)} or longer"
                )
            multiple = None if common_s is None else common_s / self.step_s
            lossless = (
                multiple is not None and abs(multiple - round(multiple)) < 1e-9 and multiple >= 1
            )
            return self.step_s, lossless
        most = self.time_budget_s * STATES_PER_SECOND
        if common_s is not None and _fits(problem, common_s, most):
            return common_s, True
        return _finest(problem, most), False


def common_step(problem: Problem) -> float | None:
    """Return the longest step that divides every duration that matters, None if there is none.

    Durations are compared to the millisecond.

    Args:
        problem: A job that may be stopped anywhere.
    """
    profile, base = problem.job.profile, problem.base
    edges_s, _ = problem.work
    lengths = {
        problem.slack_s,
        problem.job.min_run_s,
        *(edges_s[1:] - edges_s[:-1]).tolist(),
        *(phase.duration_s for phase in (*profile.startup, *profile.stop)),
        *(edge - base for window in problem.forbidden for edge in window),
    }
    for signal in (problem.energy, problem.occupancy):
        if signal is not None:
            lengths |= {signal.step_s, (base - signal.start) % signal.step_s}
    divisor = 0
    for length_s in lengths:
        whole_ms = round(1000 * length_s)
        if abs(1000 * length_s - whole_ms) > 1e-3:
            return None
        divisor = math.gcd(divisor, whole_ms)
    return divisor / 1000 if divisor else None


def _fits(problem: Problem, step_s: float, most: float) -> bool:
    size = gridded.size_of(problem, step_s)
    return size.effort <= most and size.memory_bytes <= MOST_BYTES


def _finest(problem: Problem, most: float) -> float:
    """Return the finest readable step at which a problem takes no more than so much effort."""
    for step_s in _NICE_S:
        if _fits(problem, step_s, most):
            return float(step_s)
    return problem.work_s


def _better_aligned(
    problem: Problem, solution: Solution, step_s: float
) -> tuple[Problem, Solution]:
    """Try the same step with decisions where the signal steps; return the better of the two.

    A job seldom arrives on the minute, and then a grid that counts from its arrival meets none of
    the moments at which the signal changes.
    """
    state = problem.state
    offset_s = (problem.energy.start - problem.base) % step_s
    if state.running or not TIME_TOLERANCE_S < offset_s < problem.slack_s - step_s:
        return problem, solution
    later = replace(problem, state=replace(state, now=state.now + offset_s))
    aligned = gridded.solve(later, step_s)
    held = later.held_before - problem.held_before if state.starts else 0.0
    wait = problem.wait * offset_s
    if not aligned.cost + held + wait < solution.cost:
        return problem, solution
    return later, replace(aligned, cost=aligned.cost + held + wait)


def _forced(problem: Problem) -> Solution:
    """Return the only way there is to run a job without slack."""
    now = np.zeros(1)
    cost = problem.evaluate(problem.run(0.0, problem.work_s), now)
    starts: tuple[Start, ...] = ()
    if not problem.state.running:
        starts = (Start(0.0, 0.0),)
        cost += problem.evaluate(problem.startup(0.0), now)
        if problem.starts_left == 0:
            cost += np.inf
    return Solution(cost=float(cost[0]), starts=starts, by_delay=(now, cost))


def _infeasible(problem: Problem) -> str:
    """Say which rule leaves no way to run a job, and by how much it would have to give."""
    job = problem.job
    cures = []
    if problem.forbidden and _solvable(replace(problem, forbidden=())):
        cures.append("allow some of the forbidden windows")
    if job.max_starts is not None and _solvable(_with(problem, max_starts=None)):
        now = job.max_starts
        more = _least(lambda n: _with(problem, max_starts=now + n), _MOST_STARTS)
        cures.append(f"raise max_starts from {now}" + (f" to {now + more}" if more else ""))
    if job.min_run_s > 0:
        least_s = job.min_run_s
        minutes = _least(
            lambda n: _with(problem, min_run_s=max(least_s - 60.0 * n, 0.0)),
            math.ceil(least_s / 60.0),
        )
        if minutes is not None:
            lower_s = max(least_s - 60.0 * minutes, 0.0)
            cures.append(f"lower min_run_s from {format_hours(least_s)} to {format_hours(lower_s)}")
    if job.interruptible != "anywhere" and _solvable(_with(problem, interruptible="anywhere")):
        cures.append(f"let it be stopped anywhere (now {job.interruptible})")
    span_s = job.deadline - problem.state.now
    minutes = _least(
        lambda n: _later(problem, 60.0 * n), math.ceil(max(8 * span_s, 30 * 86400.0) / 60.0)
    )
    if minutes is not None:
        cures.append(f"move the deadline by {format_hours(60.0 * minutes)}")
    return (
        f"job {job.id} cannot be run by its rules between "
        f"{format_time(problem.state.now)} and {format_time(job.deadline)}: "
        f"{', or '.join(cures) or 'nothing short of new rules helps'}"
    )


def _with(problem: Problem, **rules: Any) -> Problem:
    """Return the problem of the same job with other rules."""
    return replace(problem, job=replace(problem.job, **rules))


def _later(problem: Problem, extra_s: float) -> Problem:
    """Return the problem with more time, and a signal that reaches as far."""
    deadline = problem.job.deadline + extra_s
    now = problem.state.now
    flat = Signal.from_values([1.0], start=now, step_s=deadline - now)
    return replace(_with(problem, deadline=deadline), energy=flat, occupancy=None)


def _least(relaxed: Callable[[int], Problem], most: int) -> int | None:
    """Return by how little a rule must give to make a problem solvable, None if it is no cure."""
    high = 1
    while not _solvable(relaxed(high)):
        if high >= most:
            return None
        high = min(2 * high, most)
    low = high // 2
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if _solvable(relaxed(middle)) else (middle, high)
    return high


def _solvable(problem: Problem) -> bool:
    if problem.job.interruptible != "anywhere":
        return continuous.solve(problem).cost < np.inf
    step_s = common_step(problem)
    if step_s is None or not _fits(problem, step_s, _QUICK):
        step_s = _finest(problem, _QUICK)
    return gridded.solve(problem, step_s).cost < np.inf
