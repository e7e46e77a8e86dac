"""Planning anew with every forecast, and trusting that as far as one likes.

Time passes as it would: a forecast of the rest of the window is issued, the job is planned with
it from where it stands, and follows that plan until the next forecast. What it did by then can
not be changed any more. What it does in the end is paid on the signal as it came to be.

DTPR looks at no forecast and keeps a promise; a plan made with a good forecast does better and
promises nothing. `Advice` opens a band around DTPR's threshold for a slot. Below the band the slot
is taken and above it is left, whatever the forecast says; inside it the rolling plan decides:

    u − λ·(u − L)  …  u + λ·(U − u)

u is DTPR's threshold for the slot, L and U its range of prices. With trust λ = 0 the band is
closed and the rule is DTPR's; with λ = 1 it is the whole range and the plan decides everything.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Any, ClassVar, NamedTuple

from lowtide.accounting import footprint
from lowtide.errors import InvalidInput
from lowtide.forecast import ForecastModel, LeadScaled
from lowtide.job import TIME_TOLERANCE_S, Job
from lowtide.policies.dtpr import Dtpr, Slot, taken
from lowtide.policies.exact import Exact
from lowtide.policies.policy import Decision
from lowtide.policies.stopping import carry_out
from lowtide.schedule import Schedule, State, Stretch
from lowtide.signal import Signal

# A kill must promise more than rounding, relative to what the job costs in all.
_WORTH = 1e-9
# A plan that is renewed within the hour need not be fine.
_TIME_BUDGET_S = 0.02


@dataclass(frozen=True, slots=True, kw_only=True)
class Rolling:
    """Follow the exact plan on the newest forecast, renewed from where the job stands.

    The first forecast is issued at arrival, the others every so often, counted from the signal's
    start. A job that cannot be stopped at such a moment (in its startup, writing a checkpoint,
    short of `min_run_s`) is planned anew as soon as it can. Between two checkpoints both going on
    and killing the job are planned, and the cheaper is done.

    Attributes:
        forecasts: What is known of the signal at each moment, and how wrong it is.
        every_s: Time between two forecasts.
        step_s: Step between decisions of a job that may be stopped anywhere; by default chosen
            as `exact` does, but for plans that take about a fifth of its time.
    """

    stops_jobs: ClassVar[bool] = True
    forecasts: ForecastModel = field(default_factory=LeadScaled)
    every_s: float = 3600.0
    step_s: float | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.forecasts, ForecastModel):
            raise InvalidInput(
                f"forecasts come from a model's forecast(), unlike {self.forecasts!r}"
            )
        if not (math.isfinite(self.every_s) and self.every_s > 0):
            raise InvalidInput(
                f"the time between forecasts must be longer than 0 s, not {self.every_s}"
            )
        Exact(step_s=self.step_s)

    def decide(self, job: Job, signal: Signal) -> Decision:
        """Decide for one job.

        Args:
            signal: What a kWh emits or costs, as it came to be: only the forecasts see it.
        """
        plan: list[Stretch] = []
        planner = Exact(step_s=self.step_s, time_budget_s=_TIME_BUDGET_S)
        step_s = None
        decided = -math.inf
        for moment in _moments(job, signal, self.every_s):
            if moment <= decided:
                continue
            course = _Course.at(job, plan, moment)
            if moment < course.free < math.inf:
                course = _Course.at(job, plan, course.free)
            if course.settled:
                break
            if course.free > course.now:
                continue
            decided = course.now
            forecast = self.forecasts.forecast(signal, decided, job.deadline - decided)
            known = forecast.signal.window(job.arrival, job.deadline)
            plan, considered_s = _renewed(course, known, planner)
            step_s = step_s or considered_s
        return Decision(schedule=Schedule.from_stretches(job, plan), step_s=step_s)


class _Way(NamedTuple):
    """A way on: the stretches that are over, the run that goes on, and the state to plan from."""

    past: Sequence[Stretch]
    current: Stretch | None
    state: State


@dataclass(frozen=True, slots=True, kw_only=True)
class _Course:
    """Where a job stands at a moment, having followed a plan so far.

    Attributes:
        job: The job.
        now: The moment.
        past: The stretches that are over.
        current: The stretch under way, with the work done so far; None for a stopped job.
        free: The first moment from `now` on at which something can be decided: later where the
            job must not be broken off, inf where it is not known.
    """

    job: Job
    now: float
    past: tuple[Stretch, ...]
    current: Stretch | None
    free: float

    @classmethod
    def at(cls, job: Job, plan: Sequence[Stretch], now: float) -> _Course:
        """Return where a job stands that has followed a plan; an empty one before the first."""
        for number, stretch in enumerate(plan):
            past = tuple(plan[:number])
            if now <= stretch.start + TIME_TOLERANCE_S:
                # A stop takes its time, and nothing can be started before it is over.
                free = max(now, _over(job, past)) if past else now
                return cls(job=job, now=now, past=past, current=None, free=free)
            begin = stretch.start + job.profile.starting_s(number)
            if now <= begin + stretch.work_s + stretch.lost_s + TIME_TOLERANCE_S:
                ran_s = min(max(now - begin, 0.0), stretch.work_s)
                free = now
                if ran_s < max(job.min_run_s, 2 * TIME_TOLERANCE_S) - TIME_TOLERANCE_S:
                    free = begin + job.min_run_s if job.min_run_s > 0 else math.inf
                current = Stretch(start=stretch.start, work_s=ran_s)
                return cls(job=job, now=now, past=past, current=current, free=free)
        return cls(job=job, now=now, past=tuple(plan), current=None, free=now)

    @property
    def kept_s(self) -> float:
        """Work that a stop before the run under way has kept."""
        return sum(stretch.work_s for stretch in self.past)

    @property
    def left_s(self) -> float:
        """Work that is left."""
        ran_s = 0.0 if self.current is None else self.current.work_s
        return self.job.profile.work_s - self.kept_s - ran_s

    @property
    def settled(self) -> bool:
        """Whether nothing is left to decide: the plan that is followed is the only one."""
        job = self.job
        needed_s = self.left_s
        if self.current is None:
            if needed_s > TIME_TOLERANCE_S:
                needed_s += job.profile.starting_s(len(self.past))
        elif job.interruptible == "never" or len(self.past) + 1 == job.max_starts:
            return True
        done = self.left_s <= TIME_TOLERANCE_S
        tight = bool(self.past or self.current) and (
            job.deadline - self.now - needed_s <= TIME_TOLERANCE_S
        )
        return done or tight

    def ways(self) -> list[_Way]:
        """Return the ways on: from where the job stands, or after a kill."""
        job, done_s = self.job, self.job.profile.work_s - self.left_s
        starts = len(self.past) + (self.current is not None)
        state = State(
            now=self.now,
            progress_s=done_s,
            running=self.current is not None,
            starts=starts,
            ran_s=None if self.current is None else self.current.work_s,
        )
        ways = [_Way(self.past, self.current, state)]
        if self.current is None or job.interruptible != "checkpoints":
            return ways
        reached = [point for point in job.profile.checkpoints_s if point <= done_s]
        saved_s = max([*reached, self.kept_s])
        again_s = job.profile.work_s - saved_s
        stopped = self.now + job.profile.stop_s
        allowed = (
            done_s - saved_s > TIME_TOLERANCE_S
            and min(saved_s - self.kept_s, again_s) >= job.min_run_s
            and stopped + job.profile.restart_s + again_s <= job.deadline
        )
        if allowed:
            killed = Stretch(
                start=self.current.start, work_s=saved_s - self.kept_s, lost_s=done_s - saved_s
            )
            state = State(now=stopped, progress_s=saved_s, starts=starts)
            ways.append(_Way((*self.past, killed), None, state))
        return ways


def _renewed(course: _Course, known: Signal, planner: Exact) -> tuple[list[Stretch], float | None]:
    """Return the best way on: all stretches, past and future, and the step between decisions."""
    job = course.job
    best: list[Stretch] = []
    lowest = math.inf
    step_s = None
    for past, current, state in course.ways():
        optimum = planner.optimise(job, known, state=state)
        step_s = step_s or optimum.step_s
        ahead = optimum.stretches
        if current is not None:
            ahead[0] = Stretch(start=current.start, work_s=current.work_s + ahead[0].work_s)
        plan = [*past, *ahead]
        cost = footprint(Schedule.from_stretches(job, plan), job, known).amount
        if not best or cost < lowest - _WORTH * abs(lowest):
            best, lowest = plan, cost
    return best, step_s


def _over(job: Job, past: Sequence[Stretch]) -> float:
    """Return when the last of the stretches that were stopped is over, its stop phases included."""
    last = past[-1]
    ran_s = last.work_s + last.lost_s
    return last.start + job.profile.starting_s(len(past) - 1) + ran_s + job.profile.stop_s


def _moments(job: Job, signal: Signal, every_s: float) -> Iterator[float]:
    """Yield when forecasts are issued: at arrival, and then in time with the signal's steps."""
    yield job.arrival
    first = math.floor((job.arrival - signal.start) / every_s + 1e-9) + 1
    for number in count(first):
        moment = signal.start + number * every_s
        if moment >= job.deadline:
            return
        yield moment


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
        return first.start + job.profile.starting_s(slot.starts) < slot.end - TIME_TOLERANCE_S


def looking_again(name: str, forecasts: ForecastModel) -> dict[str, Any] | None:
    """Return with what a policy is made that looks at forecasts itself, or at none.

    Args:
        forecasts: The forecasts.

    Returns:
        None for policies that decide once: `Forecasted` gives them a forecast.
    """
    made: dict[str, dict[str, Any]] = {
        "rolling": {"forecasts": forecasts},
        "advice": {"rolling": Rolling(forecasts=forecasts)},
        "dtpr": {},
    }
    return made.get(name)


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
    lead_s = job.profile.starting_s(slot.starts)
    now = max(slot.begin - lead_s, stopped)
    left_s = profile.work_s - done_s
    slack_s = job.deadline - now - lead_s - left_s
    if slack_s <= TIME_TOLERANCE_S or left_s < job.min_run_s:
        return None
    return State(now=now, progress_s=done_s, starts=slot.starts)
