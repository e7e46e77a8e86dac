"""Any policy on imperfect knowledge: it decides with what is foreseen when a job arrives.

What it decides is paid on the signal as it came to be, by whoever asked. `rolling` looks at
forecasts again and again; this looks once.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import Protocol, runtime_checkable

import numpy as np

from lowtide.errors import InvalidInput
from lowtide.forecast import ForecastModel
from lowtide.job import Job
from lowtide.policies.policy import Decision, Policy, make_policy
from lowtide.signal import FILLED, Signal


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
