"""One job, one schedule, and what it is worth."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from lowtide.accounting import Footprint, footprint
from lowtide.errors import InvalidInput
from lowtide.grid import Grid, carbon_and_price, deciding_signal, mixed_signal
from lowtide.job import Job, require_job
from lowtide.policies.policy import Decision, Policy, goes_on, make_policy, require_decision
from lowtide.registry import chart_of
from lowtide.schedule import Schedule, State, Stretch
from lowtide.signal import Signal
from lowtide.units import (
    JOULES_PER_KWH,
    DurationLike,
    format_html,
    format_percent,
    format_time,
    parse_duration,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """A schedule with its footprint, beside what running at once would have come to.

    Attributes:
        schedule: How the job shall run.
        footprint: What that draws and emits.
        baseline: What starting at arrival and never stopping draws and emits (`run_now`), or,
            of a job that has begun, going on at once.
        lower_bound: What no schedule of this job, deciding at the same moments, can go below, in
            the unit of what was minimised: grams, money, or what weights, waiting and rent count.
            Of `exact` it is what the plan comes to. None where nothing is proven.
        lower_bound_g: The same in grams; None without a carbon signal. Where not carbon alone was
            minimised it is a general bound.
        policy: Which policy decided.
        synthetic: Whether the signal it was decided on comes from a model.
        step_s: The step between the moments that were considered, None for any moment.
        resolution_gap: The most that considering only those can have cost, in the unit of
            lower_bound; None where it is not known. No schedule at all comes to less than
            lower_bound − resolution_gap. At any moment it is 0, unless losing the work of a first
            start, for a cheaper restart, would gain something.
        resolution_gap_g: The same in grams, where carbon alone was minimised.
        note: What the policy has to say of its decision, such as a guarantee.
    """

    schedule: Schedule
    footprint: Footprint
    baseline: Footprint
    lower_bound: float | None
    lower_bound_g: float | None
    policy: str
    synthetic: bool
    step_s: float | None = None
    resolution_gap: float | None = None
    resolution_gap_g: float | None = None
    note: str = ""

    @property
    def saving(self) -> float | None:
        """The share of the baseline's carbon (or cost, without carbon) that is saved.

        None where the baseline is nothing to save from.
        """
        at_once = self.baseline.amount
        if at_once <= 0:
            return None
        share = 1.0 - self.footprint.amount / at_once
        # What is left of equal amounts after rounding is nothing.
        return share if abs(share) > 1e-12 else 0.0

    def chart(self, signal: Signal | Grid, *, deadline: float | None = None) -> Any:
        """Return the schedule under the signal it was planned on, as a chart of Altair.

        Args:
            deadline: Where to mark it; by default the end of the schedule.
        """
        curve, due = deciding_signal(signal), self.schedule.end if deadline is None else deadline
        # Something of the hours around it, to see what it was chosen from.
        around_s = max(due - self.schedule.start, 6 * 3600.0) / 2
        first = max(curve.start, self.schedule.start - around_s)
        shown = curve.window(first, min(curve.end, due + around_s))
        return chart_of("plan", shown, {self.policy: self.schedule}, deadline=due)

    def _repr_html_(self) -> str:
        return format_html(f"{self}\n\n{self.schedule}")

    def __str__(self) -> str:
        note = " (synthetic grid)" if self.synthetic else ""
        return (
            f"{self.policy}: start {format_time(self.schedule.start)}, "
            f"done {format_time(self.schedule.end)}; {self.footprint}; "
            f"saves {format_percent(self.saving)} against run_now{note}"
        )


def plan(
    job: Job,
    signal: Signal | Grid,
    *,
    policy: str | Policy = "exact",
    step_s: DurationLike | None = None,
    weights: Mapping[str, float] | None = None,
    state: State | None = None,
) -> Plan:
    """Plan one job, or the rest of one.

    Args:
        job: What is to be run.
        signal: What a kWh emits or costs. Of a grid, the average intensity decides and the price
            says what the schedule costs.
        policy: A policy's name, or a policy.
        step_s: Decide at multiples of this after arrival, where the policy can; by default at
            any moment.
        weights: Minimise a mix instead of the signal: what a gram (`carbon`), a unit of money
            (`price`) and, where the policy can, a second of delay (`wait`) count.
        state: Where a job stands that has begun, for policies that can go on from there
            (`exact`). Schedule, footprint and baseline are then those of the rest.

    >>> curve = Signal.from_values([400, 400, 100, 100], start=0, step_s="1h")
    >>> from lowtide.profile import PowerProfile
    >>> job = Job(id="a", arrival=0, deadline="+4h", profile=PowerProfile.constant(1000, "2h"))
    >>> best = plan(job, curve, policy="oracle")
    >>> best.schedule.start / 3600, best.footprint.carbon_g, best.saving
    (2.0, 200.0, 0.75)
    """
    require_job(job)
    if state is not None and not isinstance(state, State):
        raise InvalidInput(f"state is a State(now=..., progress_s=...), not {state!r}")
    parameters = {} if step_s is None else {"step_s": parse_duration(step_s)}
    name, policy, target = prepare(signal, policy, parameters, weights)
    decision = decide(policy, job, target, state, name=name)
    gram = None
    if weights is not None and {each for each in weights if weights[each]} <= {"carbon", "wait"}:
        gram = weights["carbon"]
    return finish(job, signal, target, name, decision, state=state, gram=gram)


def prepare(
    signal: Signal | Grid,
    policy: str | Policy,
    parameters: Mapping[str, float],
    weights: Mapping[str, float] | None,
) -> tuple[str, Policy, Signal]:
    """Return a policy's name, the policy, and the signal that it is to minimise.

    Args:
        weights: As `plan` takes them.
    """
    target = deciding_signal(signal)
    made_with = dict(parameters)
    if weights is not None:
        if not isinstance(weights, Mapping):
            raise InvalidInput(
                "weights say what each counts, such as {'carbon': 1, 'price': 1000}, not "
                f"{weights!r}"
            )
        counted = {name: weight for name, weight in weights.items() if name != "wait"}
        target = mixed_signal(signal, counted)
        if "wait" in weights:
            made_with["wait"] = weights["wait"]
    return (*make_policy(policy, **made_with), target)


def decide(
    policy: Policy, job: Job, target: Signal, state: State | None, *, name: str = ""
) -> Decision:
    """Let a policy decide for a job, or for the rest of one.

    Args:
        state: Where the job stands, if it has begun.
    """
    if state is None:
        target.require(job.arrival, job.deadline, what=f"job {job.id}: the signal")
        decision = policy.decide(job, target)
    elif not goes_on(policy):
        raise InvalidInput(f"{name} cannot go on with a job that has begun: use exact")
    else:
        decision = policy.decide(job, target, state=state)
    return require_decision(decision, policy, job)


def at_once(job: Job, state: State | None) -> Schedule:
    """Return the schedule of a job that starts at arrival, or goes on now, and never stops.

    Args:
        state: Where it stands, if it has begun.
    """
    if state is None:
        return Schedule.uninterrupted(job, job.arrival)
    rest = Stretch(start=state.now, work_s=job.profile.work_s - state.progress_s)
    return Schedule.from_stretches(job, [rest], state=state)


def finish(
    job: Job,
    signal: Signal | Grid,
    target: Signal,
    policy: str,
    decision: Decision,
    *,
    state: State | None = None,
    gram: float | None = None,
) -> Plan:
    """Pay for a decision, and set it beside running at once.

    Args:
        state: Where the job stood, if it had begun.
        gram: What a gram counts in what was minimised, where carbon alone was.
    """
    carbon, price = carbon_and_price(signal)
    paid = decision.paid
    # Of a grid with a price both are told.
    alone = carbon is None or price is None
    if paid is None or not (alone and paid.is_of(decision.schedule, job, deciding_signal(signal))):
        ours = footprint(decision.schedule, job, signal)
    else:
        ours = paid.footprint
    bound, gap = decision.lower_bound, decision.resolution_gap
    if bound is None and state is None and not decision.mixed:
        bound = _general_bound(job, target)
    bound_g = gap_g = None
    if target is carbon:
        gram = 1.0
    if gram is not None and not decision.mixed:
        bound_g = None if bound is None else bound / gram
        gap_g = None if gap is None else gap / gram
    elif carbon is not None and state is None:
        bound_g = _general_bound(job, carbon)
    return Plan(
        schedule=decision.schedule,
        footprint=ours,
        baseline=footprint(at_once(job, state), job, signal),
        lower_bound=bound,
        lower_bound_g=bound_g,
        policy=policy,
        synthetic=target.synthetic,
        step_s=decision.step_s,
        resolution_gap=gap,
        resolution_gap_g=gap_g,
        note=decision.note,
    )


def _general_bound(job: Job, signal: Signal) -> float | None:
    """Return what no schedule goes below, None where prices below 0 let more energy cost less."""
    if signal.values.min() < 0 and signal.window(job.arrival, job.deadline).values.min() < 0:
        return None
    return rearrangement_bound(job, signal)


def rearrangement_bound(job: Job, signal: Signal) -> float:
    """Return the cost of the dearest phases in the cheapest moments, order set aside.

    Every schedule runs each phase of one startup and the work for its duration somewhere in the
    window. By the rearrangement inequality no placement beats pairing the highest powers with the
    lowest intensities. Further starts, lost work and suspended power only add to that.
    """
    phases = (*job.profile.startup, *job.profile.work)
    power_w = np.array([phase.power_w for phase in phases])
    duration_s = np.array([phase.duration_s for phase in phases])
    falling = np.argsort(-power_w, kind="stable")

    window = signal.window(job.arrival, job.deadline)
    edges = np.clip(window.edges, job.arrival, job.deadline)
    rising = np.argsort(window.values, kind="stable")

    used_s = np.concatenate(([0.0], np.cumsum(duration_s[falling])))
    offered_s = np.concatenate(([0.0], np.cumsum(np.diff(edges)[rising])))
    cuts = np.union1d(used_s, offered_s[offered_s < used_s[-1]])
    middle = (cuts[:-1] + cuts[1:]) / 2
    which_phase = np.minimum(np.searchsorted(used_s, middle) - 1, len(phases) - 1)
    which_step = np.minimum(np.searchsorted(offered_s, middle) - 1, rising.size - 1)
    products = power_w[falling][which_phase] * window.values[rising][which_step] * np.diff(cuts)
    return float(products.sum() / JOULES_PER_KWH)
