"""Policies around another: with less knowledge, or with a choice of machines.

`Blind` decides without the phases. `Forecasted` decides once, with what is foreseen when a job
arrives; what it decides is paid on the signal as it came to be, by whoever asked.

The others say on what a job runs. Reserved machines are paid for whether they are used or not, so
a job that arrives while some are free may as well start at once; spot machines are cheap and may
be taken away, which short jobs need not mind. What is free when is known to a simulation with a
cluster, which looks at the attributes here.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import ClassVar, Protocol, runtime_checkable

import numpy as np

from lowtide.accounting import Stretches
from lowtide.errors import InvalidInput
from lowtide.forecast import ForecastModel
from lowtide.job import Job
from lowtide.policies.policy import Decision, Policy, decide_many, goes_on, make_policy
from lowtide.schedule import State
from lowtide.signal import FILLED, Signal
from lowtide.workload import Workload


@dataclass(frozen=True, slots=True, kw_only=True)
class Blind:
    """Another policy that knows how long a job takes and what it draws in all, but not when.

    It decides for a job of the same durations, all at its mean power; the real job is then run
    at those times. What that costs beyond the policy itself is what knowing the phases is worth.

    Attributes:
        policy: Who decides.
    """

    policy: Policy

    @property
    def label(self) -> str:
        """What it is called: the policy's name, and that it knows no phases."""
        return f"{make_policy(self.policy)[0]}, blind to phases"

    def decide(self, job: Job, signal: Signal, *, state: State | None = None) -> Decision:
        """Decide for one job.

        Args:
            state: Where the job stands, by default at its arrival.
        """
        level = replace(job, profile=job.profile.averaged())
        if state is not None and goes_on(self.policy):
            decision = self.policy.decide(level, signal, state=state)
        else:
            decision = self.policy.decide(level, signal)
        # What is proven of a job of constant power is not proven of this one.
        return Decision(schedule=decision.schedule, step_s=decision.step_s)


@runtime_checkable
class LooksBeyond(Protocol):
    """A policy that looks at the signal beyond a job's deadline."""

    def looks_until(self, job: Job) -> float:
        """Return until when the signal is looked at, as far as there is any.

        Args:
            job: What is to be run.
        """
        ...


@dataclass(frozen=True, slots=True)
class Forecasted:
    """Another policy that knows the signal only as it is foreseen at a job's arrival.

    Attributes:
        policy: Who decides: a name, or a policy.
        forecasts: What is known of the signal at each moment, and how wrong it is.
        horizon_s: How far ahead anything is known. Steps that end later than this after the
            arrival are all taken for the mean of the known ones from the arrival on: they are
            then nothing to wait for and nothing to flee. None for as far as forecasts reach.

    >>> from lowtide.forecast import Perfect
    >>> from lowtide.profile import PowerProfile
    >>> curve = Signal.from_values([300, 200, 400, 100], start=0, step_s="1h")
    >>> job = Job(id="a", arrival=0, deadline="+4h", profile=PowerProfile.constant(1000, "1h"))
    >>> hours = [None, 7200.0]
    >>> [Forecasted("oracle", Perfect(), horizon_s=each).decide(job, curve).schedule.start / 3600
    ...  for each in hours]
    [3.0, 1.0]
    """

    policy: str | Policy
    forecasts: ForecastModel
    horizon_s: float | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        make_policy(self.policy)
        if not isinstance(self.forecasts, ForecastModel):
            raise InvalidInput(
                f"forecasts come from a model's forecast(), unlike {self.forecasts!r}"
            )
        if self.horizon_s is not None and not (
            math.isfinite(self.horizon_s) and self.horizon_s > 0
        ):
            raise InvalidInput(
                f"how far ahead is known is above 0 s, not {self.horizon_s}: None for everything"
            )

    @property
    def label(self) -> str:
        """What it is called: the policy's name, and that it looks at forecasts."""
        name, _ = make_policy(self.policy)
        return f"{name}{',' * (',' in name)} with forecasts"

    def decide(self, job: Job, signal: Signal) -> Decision:
        """Decide for one job.

        Args:
            signal: What a kWh emits or costs, as it came to be: only the forecasts see it.
        """
        _, policy = make_policy(self.policy)
        until = job.deadline
        if isinstance(policy, LooksBeyond):
            until = max(until, min(policy.looks_until(job), signal.end))
        known = self.forecasts.forecast(signal, job.arrival, until - job.arrival).signal
        if self.horizon_s is not None:
            known = _level_beyond(known, job.arrival, job.arrival + self.horizon_s)
        decision = policy.decide(job, known)
        # What is proven of the forecast is not proven of what came to be.
        return Decision(schedule=decision.schedule, step_s=decision.step_s, note=decision.note)


def _level_beyond(known: Signal, now: float, horizon: float) -> Signal:
    """Return a signal whose steps that end beyond a horizon are the mean of the others."""
    edges = known.edges
    # A hair of a step is rounding. The step under way is known in any case.
    whole = edges[1:] <= horizon + 1e-9 * known.step_s
    beyond = ~(whole | (edges[:-1] <= now))
    if not beyond.any():
        return known
    first = int(np.argmax(beyond))
    values = known.values.copy()
    values[beyond] = known.mean(now, float(edges[first]))
    marks = np.zeros(len(known), dtype=np.uint8) if known.marks is None else known.marks.copy()
    marks[beyond] = FILLED
    return replace(known, values=values, marks=marks)


@dataclass(frozen=True, slots=True, kw_only=True)
class Purchasing:
    """A start policy, and which machines it runs on.

    Attributes:
        start: The policy that says when a job starts that runs on demand: a name, or a policy.
    """

    uses_reserved: ClassVar[bool] = False
    uses_spot: ClassVar[bool] = False

    start: str | Policy = "carbon_time"

    def __post_init__(self) -> None:
        make_policy(self.start)

    @property
    def inner(self) -> Policy:
        """The start policy."""
        return make_policy(self.start)[1]

    @property
    def spot_longest_s(self) -> float:
        """The longest run for which a job is put on a spot machine."""
        return 0.0

    def decide(self, job: Job, signal: Signal) -> Decision:
        """Decide for one job, for which there is no cluster: as the start policy does."""
        name, policy = make_policy(self.start)
        decision = policy.decide(job, signal)
        note = f"without a cluster nothing is reserved and nothing is spot: as {name} decides"
        return replace(decision, note="; ".join(part for part in (note, decision.note) if part))

    def decide_many(self, jobs: Workload, signal: Signal) -> Stretches:
        """Decide for many jobs, as for each."""
        return decide_many(self.inner, jobs, signal)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReservedFirst(Purchasing):
    """Start at once if reserved machines are free, else when the start policy says.

    A job that waits starts earlier than that as soon as enough reserved machines become free.

    Attributes:
        start: The policy that says when a job starts that runs on demand: a name, or a policy.
    """

    uses_reserved: ClassVar[bool] = True


@dataclass(frozen=True, slots=True, kw_only=True)
class SpotFirst(Purchasing):
    """Start when the start policy says, short jobs on spot machines.

    Attributes:
        start: The policy that says when a job starts: a name, or a policy.
        spot_longest_s: The longest run for which a job is put on a spot machine.
    """

    uses_spot: ClassVar[bool] = True

    spot_longest_s: float = 7200.0

    def __post_init__(self) -> None:
        make_policy(self.start)
        _check_longest(self.spot_longest_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class SpotReserved(Purchasing):
    """Start short jobs on spot machines when the start policy says, others as `ReservedFirst`.

    Attributes:
        start: The policy that says when a job starts that does not run on reserved machines.
        spot_longest_s: The longest run for which a job is put on a spot machine.
    """

    uses_reserved: ClassVar[bool] = True
    uses_spot: ClassVar[bool] = True

    spot_longest_s: float = 7200.0

    def __post_init__(self) -> None:
        make_policy(self.start)
        _check_longest(self.spot_longest_s)


def _check_longest(longest_s: float) -> None:
    if not longest_s >= 0:
        raise InvalidInput(f"jobs of 0 s or more run on spot machines, not of {longest_s} s")
