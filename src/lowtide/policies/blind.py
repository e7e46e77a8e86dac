"""Deciding without knowing the phases."""

from __future__ import annotations

from dataclasses import dataclass, replace

from lowtide.job import Job
from lowtide.policies.policy import Decision, Policy, make_policy
from lowtide.signal import Signal


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

    def decide(self, job: Job, signal: Signal) -> Decision:
        """Decide for one job."""
        level = replace(job, profile=job.profile.averaged())
        decision = self.policy.decide(level, signal)
        # What is proven of a job of constant power is not proven of this one.
        return Decision(schedule=decision.schedule, step_s=decision.step_s)
