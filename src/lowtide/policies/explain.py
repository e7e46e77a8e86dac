"""Why a schedule is as it is: what its parts cost, and what other choices would have."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from lowtide.accounting import footprint
from lowtide.errors import InvalidInput, InvalidJob, TooLaborious
from lowtide.grid import Grid
from lowtide.job import Job
from lowtide.policies import gridded
from lowtide.policies.exact import STATES_PER_SECOND, Exact
from lowtide.policies.planning import Plan, at_once, decide, prepare
from lowtide.policies.policy import Policy
from lowtide.policies.problem import Solution, make_problem
from lowtide.policies.wrappers import Blind
from lowtide.schedule import Schedule, Span, State
from lowtide.signal import Signal
from lowtide.units import JOULES_PER_KWH

# Amounts closer than this, relative to their size, differ by rounding alone.
_SAME = 1e-9
# How many times its budget, or what the plan itself took, another choice may take: telling numbers
# of starts apart takes longer. In continuous time each may take a second.
_PATIENCE = 3
_LEAST_S = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """One start of a job and what it comes to.

    Attributes:
        start: When it starts.
        end: When it stops.
        work_s: Work that it does and keeps.
        energy_j: What it draws.
        amount: What that emits or costs.
        overhead: The part of it that startup, stopping and lost work make up.
        mean: What a kWh of it emits or costs, None if it draws nothing.
    """

    start: float
    end: float
    work_s: float
    energy_j: float
    amount: float
    overhead: float
    mean: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """What the choices behind a plan are worth.

    Amounts are grams, money on a price, or what weights count. What is not there, not possible by
    the job's rules, or would take far longer to find than the plan did, is None.

    Attributes:
        blocks: Its starts.
        suspended: What being suspended between them costs.
        rent: What holding the machine counts, where occupancy has a price.
        waiting: What being done later counts, where waiting has a weight.
        total: What it comes to: the sum of all these.
        run_now: What starting at arrival (or going on now) and never stopping comes to.
        uninterrupted: The best that one start can do.
        one_start_fewer: The best with at least one start less.
        one_start_more: The best with exactly one start more.
        blind_to_phases: What the same policy comes to that knows the job's mean power only.
    """

    blocks: tuple[Block, ...]
    suspended: float
    rent: float
    waiting: float
    total: float
    run_now: float | None
    uninterrupted: float | None
    one_start_fewer: float | None
    one_start_more: float | None
    blind_to_phases: float | None


def explain(
    plan: Plan,
    job: Job,
    signal: Signal | Grid,
    *,
    policy: str | Policy | None = None,
    weights: Mapping[str, float] | None = None,
    state: State | None = None,
) -> Explanation:
    """Say why a plan is as it is.

    Args:
        plan: A plan of the job on the signal.
        job: The job.
        signal: What a kWh emits or costs.
        policy: The policy that made the plan, if it was given as an object; its forbidden windows
            and prices hold for the other choices too. With a longer `time_budget_s` of `Exact` more
            of them are found where there are many checkpoints.
        weights: What the plan was made with.
        state: What the plan was made with.
    """
    given = {}
    if policy is None and plan.policy in ("exact", "oracle") and plan.step_s is not None:
        given["step_s"] = plan.step_s
    name, decider, target = prepare(signal, policy or plan.policy, given, weights)
    decision = decide(decider, job, target, state, name=name)
    planner = decider if isinstance(decider, Exact) else Exact()
    case = _Case(job, target, state, planner, decision.effort_s)
    total, again = case.amount(plan.schedule), case.amount(decision.schedule)
    if abs(total - again) > _SAME * max(abs(total), abs(again)):
        raise InvalidInput(
            f"the plan of job {job.id} comes to {total:.6g}, but {name} decides for {again:.6g}: "
            "give explain the policy, weights and state that the plan was made with"
        )
    blocks = tuple(case.block(run) for run in plan.schedule.runs)
    rent, waiting = case.rent(plan.schedule), case.waiting(plan.schedule)
    suspended = total - rent - waiting - sum(block.amount for block in blocks)
    return Explanation(
        blocks=blocks,
        suspended=suspended if abs(suspended) > _SAME * abs(total) else 0.0,
        rent=rent,
        waiting=waiting,
        total=total,
        run_now=case.run_now(),
        uninterrupted=case.best(case.fewest),
        one_start_fewer=case.one_fewer(plan.schedule),
        one_start_more=case.one_more(plan.schedule),
        blind_to_phases=_blind(case, decider, total),
    )


def _blind(case: _Case, policy: Policy, total: float) -> float | None:
    """Return what a policy comes to that takes the job for one of its mean power."""
    job = case.job
    known = (*job.profile.startup, *job.profile.starting(1), *job.profile.work)
    if len({phase.power_w for phase in known}) == 1:
        return total
    try:
        return case.amount(decide(Blind(policy=policy), job, case.target, case.state).schedule)
    except TooLaborious:
        return None


@dataclass(frozen=True, slots=True)
class _Case:
    """A job to be explained: from where on, on what signal, and by what rules of the planner."""

    job: Job
    target: Signal
    state: State | None
    planner: Exact
    effort_s: float

    @property
    def fewest(self) -> int:
        """How often the job is started at least, counted from its first start."""
        if self.state is None:
            return 1
        return self.state.starts + (0 if self.state.running else 1)

    def starts(self, schedule: Schedule) -> int:
        """Return how often the job is started in all, counted from its first start."""
        if self.state is None:
            return schedule.starts
        # What goes on is no start.
        goes_on = self.state.running and schedule.spans[0].kind in ("work", "stop")
        return self.state.starts + schedule.starts - int(goes_on)

    def rent(self, schedule: Schedule) -> float:
        """Return what holding the machine counts."""
        return self.planner.rent(schedule)

    def waiting(self, schedule: Schedule) -> float:
        """Return what being done later than at once counts."""
        return self.planner.waiting(schedule, self.job, state=self.state)

    def amount(self, schedule: Schedule) -> float:
        """Return what a schedule comes to."""
        return self.planner.amount(schedule, self.job, self.target, state=self.state)

    def block(self, run: tuple[Span, ...]) -> Block:
        """Return what one start comes to."""
        part = footprint(Schedule(job_id=self.job.id, spans=run), self.job, self.target)
        extra = [entry for name, entry in part.by_phase.items() if not name.startswith("work/")]
        carbon = part.carbon_g is not None
        energy_kwh = part.energy_j / JOULES_PER_KWH
        return Block(
            start=run[0].start,
            end=run[-1].end,
            work_s=sum(span.duration_s for span in run if span.kind == "work"),
            energy_j=part.energy_j,
            amount=part.amount,
            overhead=sum((entry.carbon_g if carbon else entry.cost) or 0.0 for entry in extra),
            mean=part.amount / energy_kwh if energy_kwh else None,
        )

    def run_now(self) -> float | None:
        """Return what running at once comes to, None where a forbidden window is in the way."""
        schedule = at_once(self.job, self.state)
        for low, high in self.planner.windows:
            if any(span.start < high and span.end > low for span in schedule.spans):
                return None
        return self.amount(schedule)

    def best(self, starts: int) -> float | None:
        """Return the best with so many starts at most, counted from the first."""
        solution = self._solve(starts)
        return None if solution is None else solution.cost

    def one_fewer(self, schedule: Schedule) -> float | None:
        """Return the best with fewer starts than a schedule has."""
        starts = self.starts(schedule)
        return self.best(starts - 1) if starts > self.fewest else None

    def one_more(self, schedule: Schedule) -> float | None:
        """Return the best with exactly one start more than a schedule has."""
        job, starts = self.job, self.starts(schedule)
        used_up = job.max_starts is not None and starts >= job.max_starts
        if job.interruptible == "never" or used_up:
            return None
        # From the state on. Numbers that no schedule can have are not told apart.
        number = starts + 1 - (0 if self.state is None else self.state.starts)
        solution = self._solve(starts + 1, number)
        if solution is None or number >= len(solution.by_starts):
            return None
        found = solution.by_starts[number]
        return found if np.isfinite(found) else None

    def _solve(self, starts: int, counted: int | None = None) -> Solution | None:
        # Telling numbers of starts apart takes longer, and shall not make the step much coarser.
        budget_s = _PATIENCE * self.planner.time_budget_s
        most_s = max(budget_s, _PATIENCE * self.effort_s, _LEAST_S)
        planner = replace(self.planner, time_budget_s=budget_s)
        job = replace(self.job, max_starts=starts)
        try:
            problem = make_problem(job, self.target, state=self.state)
            if planner.step_s is not None and job.interruptible == "anywhere":
                effort = gridded.size_of(problem, planner.step_s).effort
                if effort > budget_s * STATES_PER_SECOND:
                    planner = replace(planner, step_s=None)
            return planner.optimise(
                job, self.target, state=self.state, counted=counted, most_s=most_s
            ).solution
        except (InvalidJob, TooLaborious):
            return None
