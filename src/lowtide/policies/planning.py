"""One job, one schedule, and what it is worth."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from lowtide.accounting import Footprint, footprint
from lowtide.errors import InvalidInput
from lowtide.grid import Grid, carbon_and_price, deciding_signal, mixed_signal
from lowtide.job import Job
from lowtide.policies.bounds import rearrangement_bound
from lowtide.policies.policy import Decision, Policy, goes_on, make_policy
from lowtide.schedule import Schedule, State, Stretch
from lowtide.signal import Signal
from lowtide.units import DurationLike, format_percent, format_time, parse_duration


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """A schedule with its footprint, beside what running at once would have come to.

    Attributes:
        schedule: How the job shall run.
        footprint: What that draws and emits.
        baseline: What starting at arrival and never stopping draws and emits (`run_now`), or,
            of a job that has begun, going on at once.
        lower_bound_g: Emissions that no schedule of this job, deciding at the same moments, can
            go below; None without a carbon signal. Of `exact` it is what the plan emits.
        policy: Which policy decided.
        synthetic: Whether the signal it was decided on comes from a model.
        step_s: The step between the moments that were considered, None for any moment.
        resolution_gap_g: The most that considering only those can have cost; None where it is
            not known. No schedule at all emits less than lower_bound_g − resolution_gap_g.
        note: What the policy has to say of its decision, such as a guarantee.
    """

    schedule: Schedule
    footprint: Footprint
    baseline: Footprint
    lower_bound_g: float | None
    policy: str
    synthetic: bool
    step_s: float | None = None
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
    parameters = {} if step_s is None else {"step_s": parse_duration(step_s)}
    target = deciding_signal(signal)
    if weights is not None:
        counted = {name: weight for name, weight in weights.items() if name != "wait"}
        target = mixed_signal(signal, counted)
        if "wait" in weights:
            parameters["wait"] = weights["wait"]
    name, policy = make_policy(policy, **parameters)
    if state is None:
        target.require(job.arrival, job.deadline, what=f"job {job.id}: the signal")
        return finish(job, signal, target, name, policy.decide(job, target))
    if not goes_on(policy):
        raise InvalidInput(f"{name} cannot go on with a job that has begun: use exact")
    return finish(job, signal, target, name, policy.decide(job, target, state=state), state=state)


def finish(
    job: Job,
    signal: Signal | Grid,
    target: Signal,
    policy: str,
    decision: Decision,
    *,
    state: State | None = None,
) -> Plan:
    """Pay for a decision, and set it beside running at once.

    Args:
        job: What is to be run.
        signal: What a kWh emits or costs.
        target: What was minimised.
        policy: Which policy decided.
        decision: What it decided.
        state: Where the job stood, if it had begun.
    """
    carbon, _ = carbon_and_price(signal)
    bound = decision.lower_bound if target is carbon else None
    if state is None:
        at_once = Schedule.uninterrupted(job, job.arrival)
        if bound is None and carbon is not None:
            bound = rearrangement_bound(job, carbon)
    else:
        rest = Stretch(start=state.now, work_s=job.profile.work_s - state.progress_s)
        at_once = Schedule.from_stretches(job, [rest], state=state)
    return Plan(
        schedule=decision.schedule,
        footprint=footprint(decision.schedule, job, signal),
        baseline=footprint(at_once, job, signal),
        lower_bound_g=None if carbon is None else bound,
        policy=policy,
        synthetic=target.synthetic,
        step_s=decision.step_s,
        resolution_gap_g=decision.resolution_gap if target is carbon else None,
        note=decision.note,
    )
