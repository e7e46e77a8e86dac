"""Trusting a forecast as far as one likes: the rolling plan's advice within DTPR's thresholds.

DTPR looks at no forecast and keeps a promise; a plan made with a good forecast does better and
promises nothing. The mix opens a band around DTPR's threshold for a slot. Below the band the slot
is taken and above it is left, whatever the forecast says; inside it the advice decides:

    u − λ·(u − L)  …  u + λ·(U − u)

u is DTPR's threshold for the slot, L and U its range of prices. With trust λ = 0 the band is
closed and the rule is DTPR's; with λ = 1 it is the whole range and the advice decides everything.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from lowtide.errors import InvalidInput
from lowtide.job import TIME_TOLERANCE_S, Job
from lowtide.policies.carrying_out import carry_out
from lowtide.policies.dtpr import Dtpr, Slot, taken
from lowtide.policies.exact import Exact
from lowtide.policies.policy import Decision
from lowtide.policies.rolling import Rolling
from lowtide.schedule import State
from lowtide.signal import Signal


@dataclass(frozen=True, slots=True, kw_only=True)
class Advice:
    """Let the rolling plan decide within a band around DTPR's threshold.

    For a slot inside the band a forecast is issued, and the job planned with it from where it
    stands: the advice is whether that plan works in the slot. Like DTPR's, the decision is one
    for constant power and is carried out on the real job; so no deadline is missed.

    Attributes:
        trust: λ, from 0, which is `dtpr`, to 1, which is `rolling`.
        rolling: Whose forecasts and planner advise.
        dtpr: Whose thresholds the band lies around.
    """

    stops_jobs: ClassVar[bool] = True
    trust: float = 0.5
    rolling: Rolling = field(default_factory=Rolling)
    dtpr: Dtpr = field(default_factory=Dtpr)

    def __post_init__(self) -> None:
        if not 0 <= self.trust <= 1:
            raise InvalidInput(f"trust is from 0 (dtpr) to 1 (rolling), not {self.trust}")
        if not isinstance(self.rolling, Rolling) or not isinstance(self.dtpr, Dtpr):
            raise InvalidInput("advice mixes a Rolling and a Dtpr policy: give rolling= and dtpr=")

    def decide(self, job: Job, signal: Signal) -> Decision:
        """Decide for one job.

        Args:
            signal: What a kWh emits or costs, as it comes to be.
        """
        if self.trust == 0:
            return self.dtpr.decide(job, signal)
        if self.trust == 1:
            # The plan's own moments, not whole slots, once nothing else is listened to.
            return self.rolling.decide(job, signal)
        promise = self.dtpr.guarantee(job, signal)

        def takes(slot: Slot) -> bool:
            limit = promise.threshold(slot.number, running=slot.running)
            if slot.price <= limit - self.trust * max(limit - promise.low, 0.0):
                return True
            if slot.price > limit + self.trust * max(promise.high - limit, 0.0):
                return False
            return self._advised(job, signal, slot)

        return Decision(schedule=carry_out(job, taken(job, signal, takes)), step_s=signal.step_s)

    def _advised(self, job: Job, signal: Signal, slot: Slot) -> bool:
        """Return whether a plan made with a forecast of now works in a slot."""
        state = _state(job, slot)
        if state is None:
            return True
        # The slot's own price is known when it is decided on, as it is to DTPR.
        issued = slot.begin
        known = self.rolling.forecasts.forecast(signal, issued, job.deadline - issued).signal
        planner = Exact(step_s=self.rolling.step_s)
        first = planner.optimise(
            job, known.window(job.arrival, job.deadline), state=state
        ).stretches[0]
        if slot.running:
            return first.work_s > TIME_TOLERANCE_S
        return first.start + job.profile.startup_s < slot.end - TIME_TOLERANCE_S


def _state(job: Job, slot: Slot) -> State | None:
    """Return where the real job stands before a slot, None if it cannot but run in it."""
    profile = job.profile
    most = 1 if job.interruptible == "never" else job.max_starts
    if most is not None and slot.starts >= most:
        return None
    if slot.running:
        ran_s = slot.begin - slot.since
        if ran_s < job.min_run_s:
            return None
        return State(
            now=slot.begin, progress_s=slot.done_s, running=True, starts=slot.starts, ran_s=ran_s
        )
    done_s = slot.done_s
    if job.interruptible == "checkpoints":
        done_s = max((point for point in profile.checkpoints_s if point <= done_s), default=0.0)
    # To work from the slot's beginning on, the startup begins before it.
    stopped = slot.since + (profile.stop_s if slot.starts else 0.0)
    now = max(slot.begin - profile.startup_s, stopped)
    left_s = profile.work_s - done_s
    slack_s = job.deadline - now - profile.startup_s - left_s
    if slack_s <= TIME_TOLERANCE_S or left_s < job.min_run_s:
        return None
    return State(now=now, progress_s=done_s, starts=slot.starts)
