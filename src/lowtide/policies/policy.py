"""What a policy is, and where policies are found by name."""

from __future__ import annotations

import inspect
import re
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeGuard, runtime_checkable

from lowtide.errors import InvalidInput
from lowtide.job import Job
from lowtide.registry import Registry
from lowtide.schedule import Schedule, State
from lowtide.signal import Signal


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """What a policy decided for a job.

    Attributes:
        schedule: How the job shall run.
        lower_bound: What no schedule that keeps the job's rules can go below, in the signal's
            unit (grams, or money for a price), where the policy proves one.
        step_s: The step between the moments that were considered, None for any moment.
        resolution_gap: The most that considering only those can have cost, where it is known.
        mixed: Whether the two count more than the signal, such as waiting or rent.
        note: What the policy has to say of its decision, such as a guarantee.
        effort_s: About how long it took on one core, where that was counted.
    """

    schedule: Schedule
    lower_bound: float | None = None
    step_s: float | None = None
    resolution_gap: float | None = None
    mixed: bool = False
    note: str = ""
    effort_s: float = field(default=0.0, compare=False)


@runtime_checkable
class Policy(Protocol):
    """Anything that decides when a job runs."""

    def decide(self, job: Job, signal: Signal) -> Decision:
        """Decide for one job.

        Args:
            job: What is to be run.
            signal: What a kWh emits or costs; it covers the job's whole window.
        """
        ...


@runtime_checkable
class Labelled(Protocol):
    """A policy that is not told by its kind alone, such as one that changes another."""

    @property
    def label(self) -> str:
        """What it is called."""
        ...


class GoesOn(Policy, Protocol):
    """A policy that can decide for the rest of a job that has begun."""

    def decide(self, job: Job, signal: Signal, *, state: State | None = None) -> Decision:
        """Decide for one job.

        Args:
            job: What is to be run.
            signal: What a kWh emits or costs; it covers the job's whole window.
            state: Where the job stands, by default at its arrival.
        """
        ...


def goes_on(policy: Policy) -> TypeGuard[GoesOn]:
    """Return whether a policy can decide for the rest of a job that has begun."""
    return "state" in inspect.signature(policy.decide).parameters


def require_decision(decision: object, policy: Policy, job: Job) -> Decision:
    """Return what a policy decided, and refuse what is no decision.

    Args:
        decision: What its `decide` returned.
    """
    if isinstance(decision, Decision) and isinstance(decision.schedule, Schedule):
        return decision
    given = "None" if decision is None else f"a {type(decision).__name__}"
    if isinstance(decision, Decision):
        given = f"one whose schedule is a {type(decision.schedule).__name__}"
    raise InvalidInput(
        f"job {job.id}: decide of {type(policy).__name__} is to return a Decision, not {given}: "
        "end it with return Decision(schedule=...)"
    )


POLICIES: Registry[type[Policy]] = Registry("lowtide.policies", "policy", method="decide")


def make_policy(policy: str | Policy, **parameters: Any) -> tuple[str, Policy]:
    """Return a policy and its name from a name or an object.

    Args:
        policy: A registered name, or an object with a `decide` method.
    """
    if isinstance(policy, type):
        policy = policy()
    if not isinstance(policy, str):
        if not isinstance(policy, Policy):
            raise InvalidInput(f"a policy is a name or has a decide method, unlike {policy!r}")
        if parameters:
            raise InvalidInput(f"give {', '.join(parameters)} to the policy object itself")
        if isinstance(policy, Labelled):
            return policy.label, policy
        # The name a policy of this kind would be registered under: WaitAwhile is wait_awhile.
        return re.sub(r"(?<!^)(?=[A-Z])", "_", type(policy).__name__).lower(), policy
    kind = POLICIES.load(policy)
    known = inspect.signature(kind).parameters
    for name in parameters:
        if name not in known:
            raise InvalidInput(
                f"policy {policy!r} takes no {name}"
                + (f": it takes {', '.join(known)}" if known else ", nor any other parameter")
            )
    return policy, kind(**parameters)


def stops_jobs(policy: Policy) -> bool:
    """Return whether a policy is known to stop jobs that may be stopped, to go on later.

    A policy says so by an attribute `stops_jobs`; of others it is seen once they have decided.
    """
    inner = getattr(policy, "policy", None)
    if inner is not None:
        return stops_jobs(make_policy(inner)[1])
    return bool(getattr(policy, "stops_jobs", False))
