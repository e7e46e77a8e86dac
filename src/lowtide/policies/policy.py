"""What a policy is, where policies are found by name, and how they are asked for many jobs."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from time import perf_counter
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeGuard, runtime_checkable

import numpy as np

from lowtide.accounting import Footprint, Stretches, footprint
from lowtide.errors import InvalidInput
from lowtide.job import Job
from lowtide.registry import Registry
from lowtide.schedule import Schedule, State
from lowtide.signal import Signal
from lowtide.workload import IntArray, Workload

if TYPE_CHECKING:
    # Most plans take the signal as it is, and all of them wait for what is imported.
    from lowtide.forecast import ForecastModel


class Paid(NamedTuple):
    """What a schedule of a job comes to by a signal."""

    schedule: Schedule
    job: Job
    signal: Signal
    footprint: Footprint

    @classmethod
    def of(cls, schedule: Schedule, job: Job, signal: Signal) -> Paid:
        """Account for a schedule."""
        return cls(schedule, job, signal, footprint(schedule, job, signal))

    def is_of(self, schedule: Schedule, job: Job, signal: Signal) -> bool:
        """Return whether it is this very schedule, job and signal that were accounted for."""
        return schedule is self.schedule and job is self.job and signal is self.signal


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """What a policy decided for a job.

    Attributes:
        schedule: How the job shall run.
        lower_bound: What no schedule that keeps the job's rules can go below, in the signal's
            unit (grams, or money for a price), where the policy proves one.
        step_s: The step between the moments that were considered, None for any moment.
        resolution_gap: The most that considering only those can have cost, where it is known.
        paid: What the schedule comes to, where the policy had that accounted for: it need not be
            again.
        mixed: Whether bound and gap count more than the signal, such as waiting or rent.
        note: What the policy has to say of its decision, such as a guarantee.
        effort_s: About how long it took on one core, where that was counted.
    """

    schedule: Schedule
    lower_bound: float | None = None
    step_s: float | None = None
    resolution_gap: float | None = None
    paid: Paid | None = field(default=None, compare=False, repr=False)
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
    """Return whether a policy, and one that it asks, can decide for the rest of a begun job."""
    inner = getattr(policy, "policy", policy)
    return "state" in inspect.signature(policy.decide).parameters and (
        inner is policy or isinstance(inner, str) or goes_on(inner)
    )


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


@runtime_checkable
class SeesQueue(Protocol):
    """What decides on machines, event by event: a scheduler (see `simulator.scheduling`)."""

    def on(self, event: Any, view: Any) -> None:
        """Start, stop and resume jobs.

        Args:
            event: What has happened.
            view: The queue and the machines as they are.
        """
        ...


@dataclass(frozen=True, slots=True)
class Scheduled:
    """A scheduler as a policy of simulations.

    Attributes:
        scheduler: Who decides.
        forecasts: What is foreseen of the signal at each moment; None for all of it.
    """

    scheduler: SeesQueue
    forecasts: ForecastModel | None = None

    @property
    def label(self) -> str:
        """What it is called: as its class is."""
        return name_of(self.scheduler)

    def decide(self, job: Job, signal: Signal) -> Decision:  # noqa: ARG002 - it takes machines
        """Refuse: there is no queue to be seen."""
        raise InvalidInput(
            f"{self.label} decides who of a queue runs on which machines, and there are none: give "
            "a cluster ([cluster] with nodes and cpus_per_node in a file, cluster= in Python)"
        )


def name_of(policy: object) -> str:
    """Return the name that a policy of this kind would be registered under.

    >>> name_of(Scheduled(None))
    'scheduled'
    """
    return re.sub(r"(?<!^)(?=[A-Z])", "_", type(policy).__name__).lower()


POLICIES: Registry[type[Policy | SeesQueue]] = Registry(
    "lowtide.policies", "policy", methods=("decide", "on")
)


def make_policy(policy: str | Policy | SeesQueue, **parameters: Any) -> tuple[str, Policy]:
    """Return a policy and its name from a name or an object.

    Args:
        policy: A registered name, an object with a `decide` method, or a scheduler, with `on`.
    """
    if isinstance(policy, type):
        policy = policy()
    if not isinstance(policy, str):
        if not isinstance(policy, Policy):
            if not isinstance(policy, SeesQueue):
                raise InvalidInput(
                    f"a policy is a name or has a decide method (or on), unlike {policy!r}"
                )
            policy = Scheduled(policy)
        if parameters:
            raise InvalidInput(f"give {', '.join(parameters)} to the policy object itself")
        if isinstance(policy, Labelled):
            return policy.label, policy
        return name_of(policy), policy
    kind = POLICIES.load(policy)
    # To look at a signature takes as long as to plan a small job.
    known = inspect.signature(kind).parameters if parameters else {}
    for name in parameters:
        if name not in known:
            raise InvalidInput(
                f"policy {policy!r} takes no {name}"
                + (f": it takes {', '.join(known)}" if known else ", nor any other parameter")
            )
    made = kind(**parameters)
    return policy, made if isinstance(made, Policy) else Scheduled(made)


def stops_jobs(policy: Policy) -> bool:
    """Return whether a policy is known to stop jobs that may be stopped, to go on later.

    A policy says so by an attribute `stops_jobs`; of others it is seen once they have decided.
    """
    inner = getattr(policy, "policy", None)
    if inner is not None:
        return stops_jobs(make_policy(inner)[1])
    return bool(getattr(policy, "stops_jobs", False))


# How many jobs are decided for at first, how long a batch shall take, how much it may grow.
_FEW = 64
_BATCH_S = 0.5
_GROWTH = 64


@runtime_checkable
class DecidesMany(Protocol):
    """A policy that decides for a whole workload at once, as it would job by job."""

    def decide_many(self, jobs: Workload, signal: Signal) -> Stretches:
        """Decide for many jobs.

        Args:
            jobs: What is to be run.
            signal: What a kWh emits or costs; it covers every job's window.
        """
        ...


def decide_one(policy: DecidesMany, job: Job, signal: Signal) -> Schedule:
    """Return how a policy that decides for many jobs runs one."""
    return Schedule.from_stretches(job, policy.decide_many(Workload.from_jobs([job]), signal).of(0))


def decide_many(
    policy: Policy,
    jobs: Workload,
    signal: Signal,
    *,
    advance: Callable[[int], None] = lambda _: None,
) -> Stretches:
    """Return how a policy would run each of many jobs, at once where it can.

    Args:
        advance: Told how many jobs were decided, each time some were.
    """
    if isinstance(policy, DecidesMany):
        return _in_batches(policy, jobs, signal, advance)
    schedules: list[Schedule] = []
    for job in jobs:
        schedules.append(require_decision(policy.decide(job, signal), policy, job).schedule)
        advance(1)
    return Stretches.of_schedules(jobs, schedules)


def _in_batches(
    policy: DecidesMany, jobs: Workload, signal: Signal, advance: Callable[[int], None]
) -> Stretches:
    """Let a policy decide for some jobs after the others, as many at once as it does quickly.

    So it is seen how far a slow one is, and it can be interrupted; a quick one hardly notices.
    """
    if len(jobs) <= _FEW:
        stretches = policy.decide_many(jobs, signal)
        advance(len(jobs))
        return stretches
    parts, done, size = [], 0, _FEW
    while done < len(jobs):
        rows = np.arange(done, min(done + size, len(jobs)))
        clock = perf_counter()
        parts.append(renumbered(policy.decide_many(jobs.take(rows), signal), rows))
        took_s = perf_counter() - clock
        advance(rows.size)
        done += rows.size
        # The first batch may have been compiled for, so it may grow fast afterwards.
        size = int(max(min(size * _BATCH_S / max(took_s, 1e-9), size * _GROWTH), _FEW))
    return merged(*parts)


def renumbered(part: Stretches, rows: IntArray) -> Stretches:
    """Return the stretches of some of many jobs as those of all."""
    return Stretches(job=rows[part.job], start=part.start, work_s=part.work_s, lost_s=part.lost_s)


def merged(*parts: Stretches) -> Stretches:
    """Return the stretches of several sets of jobs as one, in the order of the jobs.

    Args:
        parts: Stretches, each job in one of them only.
    """
    job = np.concatenate([part.job for part in parts])
    order = np.argsort(job, kind="stable")
    return Stretches(
        job=job[order],
        start=np.concatenate([part.start for part in parts])[order],
        work_s=np.concatenate([part.work_s for part in parts])[order],
        lost_s=np.concatenate([part.lost_s for part in parts])[order],
    )
