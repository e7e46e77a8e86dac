"""The exact planner: the least that a job can emit, and the schedule that reaches it.

Jobs that are stopped at checkpoints or never are planned in continuous time (`continuous`), jobs
that may be stopped anywhere on a grid of progress and delay (`gridded`). Both follow the same
recursion; the documentation's page on the algorithm derives it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import ClassVar

import numpy as np

from lowtide.accounting import Stretches, amount_of
from lowtide.errors import Cure, Infeasible, InvalidInput, InvalidJob, LowtideError, TooLaborious
from lowtide.job import TIME_TOLERANCE_S, Job
from lowtide.policies import continuous, feasibility, gridded
from lowtide.policies.policy import Decision, Paid
from lowtide.policies.problem import (
    MOST_BYTES,
    Problem,
    Solution,
    Start,
    check_state,
    make_problem,
)
from lowtide.policies.starts import Oracle
from lowtide.policies.stopping import WaitAwhile
from lowtide.schedule import Schedule, State, Stretch
from lowtide.signal import Signal
from lowtide.units import TimeLike, format_hours, parse_duration, parse_time, require_number
from lowtide.workload import Workload

# What one core gets through in a second.
STATES_PER_SECOND = 3e8
# Where no more than these are to be looked at, nothing quicker is looked for.
FEW_STATES = 1e5
# How many times its budget a plan may take that is not possible on a coarser step.
_PATIENCE = 100

# By how much another policy must be ahead, relative to the cost: more than rounding can do.
AHEAD = 1e-9

# Steps that people can read, for problems without a common one.
NICE_S = (
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
        others: The same problem with the same step counted from elsewhere, solved too.
    """

    problem: Problem
    solution: Solution
    step_s: float | None
    asked: Problem | None
    others: tuple[tuple[Problem, Solution], ...] = ()

    @cached_property
    def gap(self) -> float | None:
        """The most that deciding on the step can have cost, None where that is not known."""
        lossless = self.asked is None
        problem = self.asked or self.problem
        return resolution_gap(problem, self.solution.cost, self.step_s, lossless=lossless)

    @property
    def stretches(self) -> list[Stretch]:
        """What is to be run from the state on; a job that runs goes on with the first."""
        problem = self.problem
        now, starts = problem.state.now, self.solution.starts
        progress_s = [start.progress_s for start in starts]
        stretches = []
        # Delays count from `base`, when the next start would be over.
        lead_s, later_s = problem.startup_s, problem.startup_s
        if problem.state.running:
            until_s = progress_s[0] if starts else problem.work_s
            stretches.append(Stretch(start=now, work_s=until_s))
            later_s = 0.0
        for start, until_s in zip(starts, [*progress_s[1:], problem.work_s], strict=False):
            stretch = Stretch(
                start=now + max(start.progress_s + start.delay_s + (later_s - lead_s), 0.0),
                work_s=until_s - start.progress_s,
            )
            last = until_s == problem.work_s
            stretches.append(_beside_windows(problem, stretch, lead_s, last=last))
            lead_s = problem.restart_s
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
        time_budget_s: How long choosing its own step may make a plan take, about. A plan in
            continuous time that is foreseen to take longer than this, and than two minutes, is
            refused.
    """

    stops_jobs: ClassVar[bool] = True
    step_s: float | None = None
    wait: float = 0.0
    occupancy: Signal | None = None
    forbidden: Sequence[tuple[TimeLike, TimeLike]] = ()
    time_budget_s: float = 0.1

    def __post_init__(self) -> None:
        if self.step_s is not None:
            # A text such as 1h is as good, as it is to plan().
            object.__setattr__(self, "step_s", parse_duration(self.step_s))
            if not self.step_s > 0:
                raise InvalidInput(
                    f"the step between decisions must be longer than 0 s, not {self.step_s}"
                )
        if not require_number(self.time_budget_s, "time_budget_s") > 0:
            raise InvalidInput(f"a plan may take longer than 0 s, not {self.time_budget_s}")
        require_number(self.wait, "what a second of waiting counts", least=0.0)
        _ = self.windows  # refused here, not at the first job

    @property
    def windows(self) -> list[tuple[float, float]]:
        """The forbidden stretches of time, as instants."""
        try:
            pairs = [(begin, end) for begin, end in self.forbidden]
        except (TypeError, ValueError):
            raise InvalidInput(
                "forbidden stretches are pairs of moments, such as "
                f"[('2024-07-01T06:00Z', '2024-07-01T18:00Z')], not {self.forbidden!r}"
            ) from None
        return [(parse_time(begin), parse_time(end)) for begin, end in pairs]

    def decide(self, job: Job, signal: Signal, *, state: State | None = None) -> Decision:
        """Decide for one job.

        Args:
            state: Where the job stands, by default at its arrival.
        """
        try:
            optimum = self.optimise(job, signal, state=state)
        except InvalidJob:
            followed = None if state is None else self._followed(job, signal, state)
            if followed is None:
                raise
            cost = self.amount(followed, job, signal, state=state)
            return Decision(
                schedule=followed, lower_bound=cost, step_s=self.step_s, mixed=self._mixed
            )
        schedule = self.lay_out(optimum, job, signal, state=state)
        # What it comes to is for the accounting to say: a planner's sums over a year are rounded.
        paid = Paid.of(schedule, job, signal)
        cost = (
            paid.footprint.amount + self.rent(schedule) + self.waiting(schedule, job, state=state)
        )
        gap = optimum.gap
        if gap:
            gap = max(cost - optimum.solution.cost + gap, 0.0)
        return Decision(
            schedule=schedule,
            lower_bound=cost,
            step_s=optimum.step_s,
            resolution_gap=gap,
            paid=paid,
            mixed=self._mixed,
            effort_s=optimum.solution.effort_s,
        )

    @property
    def _mixed(self) -> bool:
        return bool(self.wait) or self.occupancy is not None

    def lay_out(
        self, optimum: Optimum, job: Job, signal: Signal, *, state: State | None = None
    ) -> Schedule:
        """Return the schedule of an optimum, without proving how good it is.

        Args:
            state: Where the job stands, by default at its arrival.
        """
        schedule = Schedule.from_stretches(job, optimum.stretches, state=state)
        if optimum.asked is None and not _may_lose_work(optimum.problem, optimum.step_s):
            return schedule
        if state is not None:
            followed = self._followed(job, signal, state)
            if followed is not None:
                both = (schedule, followed)
                return min(both, key=lambda each: self.amount(each, job, signal, state=state))
        elif not (self._mixed or self.forbidden):
            # Policies that decide between the steps may come out ahead by a little, and so may
            # those that lose work for a cheap restart. They are measured by the planner's own sum,
            # as where many jobs are decided for.
            least = optimum.solution.cost
            for rival in (WaitAwhile(), Oracle()):
                other = rival.decide(job, signal).schedule
                paid = amount_of(other, job, signal)
                if paid < least - AHEAD * abs(least):
                    schedule, least = other, paid
        return schedule

    def _followed(self, job: Job, signal: Signal, state: State) -> Schedule | None:
        """Return the rest of the plan that the job was given at its arrival, if it followed that.

        Steps that are counted from where a job stands may miss the moments of that plan.
        """
        if not signal.covers(job.arrival, job.deadline):
            return None
        occupancy = self.occupancy
        if occupancy is not None and not occupancy.covers(job.arrival, job.deadline):
            return None
        try:
            check_state(job, state)
            whole = self.lay_out(self.optimise(job, signal), job, signal)
        except InvalidJob:
            return None
        return whole.rest(state)

    def amount(
        self, schedule: Schedule, job: Job, signal: Signal, *, state: State | None = None
    ) -> float:
        """Return what a schedule comes to in what is minimised, rent and waiting included.

        Args:
            state: Where the job stood, by default at its arrival.
        """
        paid = amount_of(schedule, job, signal)
        return paid + self.rent(schedule) + self.waiting(schedule, job, state=state)

    def rent(self, schedule: Schedule) -> float:
        """Return what holding the machine counts."""
        if self.occupancy is None:
            return 0.0
        return float(sum(self.occupancy.integral(span.start, span.end) for span in schedule.spans))

    def waiting(self, schedule: Schedule, job: Job, *, state: State | None = None) -> float:
        """Return what being done later than at once counts."""
        if not self.wait:
            return 0.0
        state = state or State(now=job.arrival)
        needed_s = job.profile.work_s - state.progress_s
        if not state.running:
            needed_s += job.profile.starting_s(state.starts)
        return self.wait * (schedule.end - state.now - needed_s)

    def decide_many(self, jobs: Workload, signal: Signal) -> Stretches:
        """Decide for many jobs, as for each.

        Those that run through and those that may be stopped anywhere are planned together; others
        one by one.
        """
        from lowtide.policies.bulk import decide_together

        return decide_together(self, jobs, signal)

    def optimise(
        self,
        job: Job,
        signal: Signal,
        *,
        state: State | None = None,
        whole: bool = False,
        counted: int | None = None,
        most_s: float | None = None,
    ) -> Optimum:
        """Return the best way to run a job from a state on.

        Args:
            state: Where the job stands, by default at its arrival.
            whole: Whether the least by the delay and by the number of starts is asked for, too,
                which takes far longer if there are many checkpoints.
            counted: A number of starts from the state on for which alone it is.
            most_s: About how long a plan in continuous time may take, by default two minutes or
                `time_budget_s`.
        """
        try:
            problem = self._problem(job, signal, state)
        except Infeasible as error:
            raise Infeasible(error.what, self._curing(error.cures, job, signal, state)) from None
        step_s, asked = None, None
        if problem.slack_s < -TIME_TOLERANCE_S:
            raise feasibility.refusal(problem, None, (), self._can_plan)
        if _is_gridded(problem):
            step_s, lossless = self._step(problem)
            free = not (whole or state or self.step_s) and problem.stops_are_free
            if free and not (lossless and _fits(problem, step_s, FEW_STATES)):
                solution = _cheapest(problem)
                return Optimum(problem=problem, solution=solution, step_s=None, asked=None)
            found = [(problem, gridded.solve(problem, step_s))]
            if not lossless:
                asked = problem
                found = _better_aligned(*found[0], step_s)
                shut = found[0][1].cost == np.inf
                finer_s = self._finer(problem, step_s) if shut else None
                if finer_s is not None:
                    step_s = finer_s
                    found = _better_aligned(problem, gridded.solve(problem, step_s), step_s)
        elif problem.slack_s <= TIME_TOLERANCE_S:
            found = [(problem, _forced(problem))]
        else:
            if most_s is None:
                most_s = max(self.time_budget_s, continuous.MOST_S)
            solved = continuous.solve(problem, most_s=most_s, whole=whole, counted=counted)
            found = [(problem, solved)]
        (best, solution), *others = found
        if solution.cost == np.inf:
            usable = [each for each in NICE_S if _fits(problem, each, math.inf)]
            raise feasibility.refusal(problem, step_s, usable, self._can_plan)
        return Optimum(
            problem=best, solution=solution, step_s=step_s, asked=asked, others=tuple(others)
        )

    def _problem(self, job: Job, signal: Signal, state: State | None) -> Problem:
        return make_problem(
            job,
            signal,
            wait=self.wait,
            occupancy=self.occupancy,
            forbidden=self.windows,
            state=state,
        )

    def _curing(
        self, cures: Sequence[Cure], job: Job, signal: Signal, state: State | None
    ) -> list[Cure]:
        """Return those of some changes of a job or its state after which there is a plan.

        Of several values for one argument it is the first that cures.
        """
        found: dict[str, Cure] = {}
        state = state or State(now=job.arrival)
        for cure in cures:
            change = {cure.argument: cure.value}
            try:
                if cure.of == "job":
                    problem = self._problem(replace(job, **change), signal, state)
                else:
                    problem = self._problem(job, signal, replace(state, **change))
                if self._can_plan(problem):
                    found.setdefault(cure.argument, cure)
            except LowtideError:
                continue  # It would break another rule.
        return list(found.values())

    def _can_plan(self, problem: Problem) -> bool:
        """Return whether there is a schedule, and a step on which it would be found."""
        possible = feasibility.solvable(problem)
        if not possible or not _is_gridded(problem):
            return possible
        if self.step_s is not None:
            return feasibility.solvable(problem, self.step_s)
        step_s, lossless = self._step(problem)
        return (
            lossless
            or feasibility.solvable(problem, step_s)
            or self._finer(problem, step_s) is not None
        )

    def _finer(self, problem: Problem, step_s: float) -> float | None:
        """Return a finer step on which a job can be run, if there is one and none was asked for."""
        if self.step_s is not None:
            return None
        most = _PATIENCE * self.time_budget_s * STATES_PER_SECOND
        steps_s = [each for each in NICE_S if _fits(problem, each, most)]
        return feasibility.finer_step(problem, step_s, steps_s)

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
            lossless = bool(
                gridded.divides(self.step_s, math.nan if common_s is None else common_s)
            )
            return self.step_s, lossless
        most = self.time_budget_s * STATES_PER_SECOND
        if common_s is not None and _fits(problem, common_s, most):
            return common_s, True
        return _finest(problem, most), False


def common_step(problem: Problem) -> float | None:
    """Return the longest step that divides every duration that matters, None if there is none."""
    profile, base = problem.job.profile, problem.base
    edges_s, _ = problem.work
    lengths = {
        problem.slack_s,
        problem.job.min_run_s,
        problem.must_run_s,
        *(edges_s[1:] - edges_s[:-1]).tolist(),
        *(phase.duration_s for phase in (*problem.starting, *profile.stop)),
        *(edge - base for window in problem.forbidden for edge in window),
    }
    if problem.starting is not problem.resuming:
        lengths |= {phase.duration_s for phase in problem.resuming}
    for signal in problem.signals:
        lengths |= {signal.step_s, (base - signal.start) % signal.step_s}
    return gridded.common_step(lengths)


def resolution_gap(
    problem: Problem, cost: float, step_s: float | None, *, lossless: bool
) -> float | None:
    """Return the most that deciding on a step can have cost, None where that is not known.

    Args:
        cost: What the best plan on the step comes to.
        step_s: The step, None for continuous time.
        lossless: Whether the step divides every duration that matters.
    """
    if step_s is None:
        if not _may_lose_work(problem, step_s):
            return 0.0
        try:
            least = continuous.solve(problem, ahead=True).cost
        except TooLaborious:
            return None
        return max(cost - least, 0.0)
    if lossless:
        if problem.pays_to_start_idly:
            return None
        if not problem.pays_to_start_ahead:
            return 0.0
        return max(cost - gridded.solve(problem, step_s, ahead=True).cost, 0.0)
    if not problem.boundable:
        return None
    return max(cost - gridded.lower_bound(problem, step_s), 0.0)


def _may_lose_work(problem: Problem, step_s: float | None) -> bool:
    """Return whether losing the work of a first start, which is not planned, could be worth it.

    Args:
        step_s: The step between decisions, None for continuous time.
    """
    stopped = problem.job.interruptible == "checkpoints"
    return step_s is None and stopped and problem.pays_to_start_ahead


def _is_gridded(problem: Problem) -> bool:
    """Return whether a problem has moments of stopping to choose between, and not a few."""
    once = problem.starts_left == int(not problem.state.running)
    anywhere = problem.job.interruptible == "anywhere"
    return anywhere and not once and problem.slack_s > TIME_TOLERANCE_S


def _fits(problem: Problem, step_s: float, most: float) -> bool:
    size = gridded.size_of(problem, step_s)
    return size.effort <= most and size.memory_bytes <= MOST_BYTES


def _finest(problem: Problem, most: float) -> float:
    """Return the finest readable step at which a problem takes no more than so much effort."""
    for step_s in NICE_S:
        if _fits(problem, step_s, most):
            return float(step_s)
    return problem.work_s


def _beside_windows(problem: Problem, stretch: Stretch, lead_s: float, *, last: bool) -> Stretch:
    """Return a stretch that rounding let reach into a forbidden window, moved to its edge."""
    # As a schedule lays its spans out, one after the other: sums of epoch seconds are rounded.
    lengths_s = (lead_s, stretch.work_s, 0.0 if last else problem.stop_s)
    start = stretch.start

    def end(begin: float) -> float:
        return sum(lengths_s, begin)

    for low, high in problem.forbidden:
        before, after = end(start) - low, high - start
        if min(before, after) <= 0:
            continue
        if before > after:
            start = high
            continue
        earlier = start - before
        while end(earlier) > low:
            earlier = math.nextafter(earlier, -math.inf)
        start = earlier
    # Where a window's end and the next one's beginning leave exactly its length, it starts there.
    ends = [high for _, high in problem.forbidden if 0 < high - start <= TIME_TOLERANCE_S]
    return replace(stretch, start=max([start, problem.state.now, *ends]))


def _better_aligned(
    problem: Problem, solution: Solution, step_s: float
) -> list[tuple[Problem, Solution]]:
    """Try the same step with decisions where the signal steps; return both, the better first."""
    state = problem.state
    later = feasibility.aligned(problem, step_s)
    if later is None:
        return [(problem, solution)]
    aligned = gridded.solve(later, step_s)
    extra = problem.wait * (later.state.now - state.now)
    if state.starts:
        extra += later.held_before - problem.held_before
    delays_s, costs = aligned.by_delay
    aligned = replace(
        aligned,
        cost=aligned.cost + extra,
        by_delay=(delays_s, costs + extra),
        by_starts=tuple(cost + extra for cost in aligned.by_starts),
    )
    both = [(problem, solution), (later, aligned)]
    return both[::-1] if aligned.cost < solution.cost else both


def _cheapest(problem: Problem) -> Solution:
    """Return the best where nothing counts but when a job works: in the cheapest moments.

    No step is as good, and a fine one takes as long as a plan may.
    """
    schedule = WaitAwhile().decide(problem.job, problem.energy).schedule
    starts, done_s = [], 0.0
    for span in schedule.spans:
        if span.kind == "work":
            starts.append(Start(done_s, span.start - problem.base - done_s))
            done_s += span.duration_s
    cost = amount_of(schedule, problem.job, problem.energy)
    return Solution(cost=cost, starts=tuple(starts), by_delay=(np.empty(0), np.empty(0)))


def _forced(problem: Problem) -> Solution:
    """Return the only way there is to run a job without slack."""
    now = np.zeros(1)
    cost = problem.evaluate(problem.run(0.0, problem.work_s), now)
    starts: tuple[Start, ...] = ()
    if not problem.state.running:
        starts = (Start(0.0, 0.0),)
        cost += problem.evaluate(problem.startup(0.0), now)
        if problem.starts_left == 0 or problem.work_s < problem.job.min_run_s - TIME_TOLERANCE_S:
            cost += np.inf
    # Two ends of a stretch of no length, as a plan in continuous time gives them.
    return Solution(cost=float(cost[0]), starts=starts, by_delay=(np.zeros(2), np.repeat(cost, 2)))
