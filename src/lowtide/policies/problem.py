"""What an exact planner is to solve: a job's rules and costs as functions of time.

Progress is counted from where the job stands. The delay x of a stretch of work says how much
later than `base` its progress 0 would have been: work at progress w runs at `base + w + x`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from lowtide.errors import Cure, Infeasible, InvalidInput, InvalidJob
from lowtide.job import TIME_TOLERANCE_S, Job
from lowtide.profile import Phase
from lowtide.schedule import State
from lowtide.signal import FloatArray, Signal
from lowtide.units import JOULES_PER_KWH, format_time

# The most memory that a plan may take.
MOST_BYTES = 2**30


class Term(NamedTuple):
    """Σ weight · C(base + offset + delay), C the running integral of a signal."""

    signal: Signal
    offsets_s: FloatArray
    weights: FloatArray


class Start(NamedTuple):
    """A start that a planner chose: at which progress, and the delay it works with from then on."""

    progress_s: float
    delay_s: float


class Cost(NamedTuple):
    """What doing something costs as a function of the delay.

    `busy` says from when to when it keeps the job running, seconds after `base` at delay 0.
    """

    terms: tuple[Term, ...]
    busy: tuple[float, float] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Solution:
    """The least cost, and how to reach it.

    Attributes:
        cost: The least cost; inf where no schedule keeps the rules.
        starts: The starts in order, without one that is already running.
        by_delay: Delays of the finish, and the least cost of being done with each; linear in
            between where the plan is in continuous time. Empty where many checkpoints left only
            the best to be looked for.
        by_starts: The least cost with exactly 0, 1, 2, ... starts, where their number is limited
            and so told apart; else empty. There, too, inf for what was not looked for.
        effort_s: About how long it took on one core, counted and not timed; 0 on a grid.
    """

    cost: float
    starts: tuple[Start, ...]
    by_delay: tuple[FloatArray, FloatArray]
    by_starts: tuple[float, ...] = ()
    effort_s: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Problem:
    """One job to be planned from a state on, and what its time costs.

    Attributes:
        job: The job.
        state: Where it stands.
        energy: Cost of a kWh over time.
        occupancy: Cost of a second of running, or of holding resources while suspended; None
            for nothing.
        wait: Cost of a second of delay of the finish.
        forbidden: Stretches of time in which the job must not run.
        starting: Phases of the next start: the first of all, unless the job has begun.
        resuming: Phases of each start after that.
        startup_s: How long the next start takes.
        restart_s: How long each start after that takes.
        stop_s: How long a stop takes.
        work_s: How much work is left.
        base: The instant at which work goes on at delay 0.
        slack_s: The largest delay.
    """

    job: Job
    state: State
    energy: Signal
    occupancy: Signal | None = None
    wait: float = 0.0
    forbidden: tuple[tuple[float, float], ...] = ()
    starting: tuple[Phase, ...] = field(init=False)
    resuming: tuple[Phase, ...] = field(init=False)
    startup_s: float = field(init=False)
    restart_s: float = field(init=False)
    stop_s: float = field(init=False)
    work_s: float = field(init=False)
    base: float = field(init=False)
    slack_s: float = field(init=False)

    def __post_init__(self) -> None:
        # Cached properties, each behind a lock, would take longer than planning a small job.
        profile, state = self.job.profile, self.state
        starting, resuming = profile.starting(state.starts), profile.starting(1)
        restart_s = sum(phase.duration_s for phase in resuming)
        startup_s = restart_s if starting is resuming else profile.startup_s
        work_s = profile.work_s - state.progress_s
        base = state.now + (0.0 if state.running else startup_s)
        for name, value in (
            ("starting", starting),
            ("resuming", resuming),
            ("startup_s", startup_s),
            ("restart_s", restart_s),
            ("stop_s", profile.stop_s),
            ("work_s", work_s),
            ("base", base),
            ("slack_s", self.job.deadline - base - work_s),
        ):
            object.__setattr__(self, name, value)

    @property
    def signals(self) -> tuple[Signal, ...]:
        """What time costs: energy, and holding the machine where that costs something."""
        return (self.energy,) if self.occupancy is None else (self.energy, self.occupancy)

    @cached_property
    def starts_left(self) -> int | None:
        """How often the job may still be started; None for any number."""
        if self.job.interruptible == "never":
            return 0 if self.state.running or self.state.starts else 1
        if self.job.max_starts is None:
            return None
        return max(self.job.max_starts - self.state.starts, 0)

    @cached_property
    def checkpoints_s(self) -> FloatArray:
        """Progress ahead, short of the end, at which a stop keeps all work."""
        points = np.array(self.job.profile.checkpoints_s) - self.state.progress_s
        return points[(points > TIME_TOLERANCE_S) & (points < self.work_s - TIME_TOLERANCE_S)]

    @cached_property
    def must_run_s(self) -> float:
        """How much work a running job must still do before it may be stopped."""
        ran_s = self.state.ran_s
        if ran_s is None:
            return 0.0
        short_s = self.job.min_run_s - ran_s
        return short_s if short_s > TIME_TOLERANCE_S else 0.0

    @cached_property
    def may_stop_now(self) -> bool:
        """Whether a running job may be stopped where it stands without losing work."""
        if self.must_run_s:
            return False
        if self.job.interruptible == "anywhere":
            return True
        points = np.array([0.0, *self.job.profile.checkpoints_s])
        near = np.abs(points - self.state.progress_s) <= TIME_TOLERANCE_S
        return self.job.interruptible == "checkpoints" and bool(near.any())

    @cached_property
    def values_ahead(self) -> FloatArray:
        """The energy signal's values between the state's moment and the deadline."""
        return _ahead(self.energy, self.state.now, self.job.deadline)

    @cached_property
    def largest(self) -> float:
        """More than a run without restarts can cost: what rounding is measured by."""
        profile = self.job.profile
        start = max(self.starting, self.resuming, key=_energy_j)
        energy_kwh = _energy_j((*start, *profile.work, *profile.stop)) / JOULES_PER_KWH
        span_s = self.job.deadline - self.state.now
        energy_kwh += profile.suspended_power_w * span_s / JOULES_PER_KWH
        most = energy_kwh * float(np.abs(self.values_ahead).max())
        if self.occupancy is not None:
            most += span_s * float(np.abs(self.occupancy.values).max())
        return most

    @cached_property
    def pays_to_start_idly(self) -> bool:
        """Whether a start without work could be worth making.

        Then the less work each such start does the better: there is no best schedule, and the
        finer a grid the lower its optimum. Between two others such a start is worth making if its
        phases cost less than being suspended does. The first or the last of all also changes how
        long the job is suspended, which is worth something only where a price is below 0; and the
        first lets others be a restart, for which see `pays_to_start_ahead`.
        """
        profile = self.job.profile
        phases = (*self.resuming, *profile.stop)
        if not self._may_start_idly:
            return False
        lowest, highest = self.values_ahead.min(), self.values_ahead.max()
        if lowest < 0 < profile.suspended_power_w:
            return True
        more_w = np.array([phase.power_w for phase in phases]) - profile.suspended_power_w
        return bool(phases) and bool((more_w.min() < 0 < highest) or (more_w.max() > 0 > lowest))

    @property
    def _may_start_idly(self) -> bool:
        # One start more takes a restart and a stop.
        return self.job.min_run_s <= 0 and self.slack_s >= self.restart_s + self.stop_s

    @cached_property
    def pays_to_start_ahead(self) -> bool:
        """Whether a first start that keeps no work could be worth making: for the restart after it.

        It makes the start that does the work cheaper by what the startup draws beyond the restart
        up to the same moment, at the highest price at the most; and costs another startup and a
        stop, at the lowest price at the least. In a forbidden window there is room for the shorter.
        """
        if self.starting is self.resuming or not self._may_start_idly or self.starts_left == 1:
            return False
        if self.forbidden and self.startup_s > self.restart_s:
            return True
        lowest, highest = float(self.values_ahead.min()), float(self.values_ahead.max())
        more_j, less_j = _differences_j(self.starting, self.resuming)
        spent_j = _energy_j((*self.starting, *self.job.profile.stop))
        return lowest < 0 or more_j * highest > (less_j + spent_j) * lowest

    @cached_property
    def boundable(self) -> bool:
        """Whether `gridded.lower_bound` holds: nothing costs less than being suspended does."""
        profile = self.job.profile
        starts = (*self.starting, *self.resuming)
        phases = (*starts, *profile.work, *profile.stop)
        if any(phase.power_w < profile.suspended_power_w for phase in phases):
            return False
        if self.occupancy is not None:
            rent = _ahead(self.occupancy, self.state.now, self.job.deadline)
            if rent.min() < 0:
                return False
        plain = not (starts or profile.stop or profile.suspended_power_w)
        return plain or bool(self.values_ahead.min() >= 0)

    @property
    def stops_are_free(self) -> bool:
        """Whether nothing counts but in which moments it works, each as much as any other."""
        profile, (_, power_w) = self.job.profile, self.work
        paid = self.starting or self.resuming or profile.stop or profile.suspended_power_w
        paid = paid or self.wait or self.occupancy is not None
        ruled = self.forbidden or self.job.min_run_s or self.starts_left is not None
        return not (paid or ruled) and bool((power_w == power_w[0]).all())

    @cached_property
    def work(self) -> tuple[FloatArray, FloatArray]:
        """Progress ahead at which power changes, from 0 to the end, and the watts in between."""
        profile, done_s = self.job.profile, self.state.progress_s
        if not done_s:
            return profile.work_edges_s, np.array([phase.power_w for phase in profile.work])
        edges_s = profile.work_edges_s - done_s
        first = int(np.searchsorted(edges_s, TIME_TOLERANCE_S, side="right")) - 1
        first = min(max(first, 0), len(profile.work) - 1)
        edges_s = edges_s[first:].copy()
        edges_s[0] = 0.0
        return edges_s, np.array([phase.power_w for phase in profile.work[first:]])

    def run(self, begin_s: float, end_s: float) -> Cost:
        """Return what working from one progress to another costs, by the delay."""
        edges_s, power_w = self.work
        i = max(int(np.searchsorted(edges_s, begin_s + TIME_TOLERANCE_S, side="right")) - 1, 0)
        j = int(np.searchsorted(edges_s, end_s - TIME_TOLERANCE_S, side="left"))
        cuts_s = edges_s[i : j + 1].copy()
        cuts_s[0], cuts_s[-1] = begin_s, end_s
        return self._cost(cuts_s, power_w[i:j])

    def startup(self, progress_s: float) -> Cost:
        """Return what the next start costs if it goes on at some progress, by the delay."""
        return self._phases(self.starting, progress_s - self.startup_s)

    def restart(self, progress_s: float) -> Cost:
        """Return what a start after that costs that goes on at some progress, by the delay."""
        return self._phases(self.resuming, progress_s - self.restart_s)

    def stop(self, progress_s: float) -> Cost:
        """Return what a stop at some progress costs, by the delay up to then."""
        return self._phases(self.job.profile.stop, progress_s)

    def held(self, offset_s: float) -> Cost:
        """Return the cost of being suspended up to some time after progress 0, by the delay."""
        suspended_w = self.job.profile.suspended_power_w
        at = np.array([offset_s])
        terms = []
        if suspended_w:
            terms.append(Term(self.energy, at, np.array([suspended_w / JOULES_PER_KWH])))
        if self.occupancy is not None:
            terms.append(Term(self.occupancy, at, np.array([1.0])))
        return Cost(tuple(terms), None)

    @cached_property
    def held_before(self) -> float:
        """What `held` comes to at the state's moment: a job is not charged for what lies before."""
        return float(self.evaluate(self.held(self.state.now - self.base), np.zeros(1))[0])

    def _phases(self, phases: Sequence[Phase], begin_s: float) -> Cost:
        if not phases:
            return Cost((), None)
        durations_s = [phase.duration_s for phase in phases]
        cuts_s = begin_s + np.concatenate(([0.0], np.cumsum(durations_s)))
        return self._cost(cuts_s, np.array([phase.power_w for phase in phases]))

    def _cost(self, cuts_s: FloatArray, power_w: FloatArray) -> Cost:
        # Σ q_k (C(e_k) − C(e_{k−1})) = Σ (q_k − q_{k+1}) C(e_k), with nothing drawn outside.
        falls = -np.diff(np.concatenate(([0.0], power_w, [0.0]))) / JOULES_PER_KWH
        terms = [Term(self.energy, cuts_s, falls)]
        busy = (float(cuts_s[0]), float(cuts_s[-1]))
        if self.occupancy is not None:
            terms.append(Term(self.occupancy, np.array(busy), np.array([-1.0, 1.0])))
        return Cost(tuple(terms), busy)

    def hit(self, begin_s: FloatArray, end_s: FloatArray) -> npt.NDArray[np.bool_]:
        """Return which stretches, in seconds after `base`, would run in a forbidden window."""
        touched = np.zeros(begin_s.shape, dtype=bool)
        for low, high in self.forbidden:
            touched |= (end_s > low - self.base + TIME_TOLERANCE_S) & (
                begin_s < high - self.base - TIME_TOLERANCE_S
            )
        # What takes no time is never in the way.
        return touched & (end_s > begin_s)

    def evaluate(self, cost: Cost, delays_s: FloatArray) -> FloatArray:
        """Return a cost at many delays; inf where the job would run in a forbidden window."""
        total = np.zeros(delays_s.shape)
        for term in cost.terms:
            shift_s = self.base - term.signal.start
            start = np.zeros(delays_s.size)
            for offset_s, weight in zip(term.offsets_s, term.weights, strict=True):
                end = delays_s + (offset_s + shift_s)
                total += weight * term.signal.integral(start, end, origin=term.signal.start)
        if cost.busy is not None and self.forbidden:
            total[self.hit(delays_s + cost.busy[0], delays_s + cost.busy[1])] = np.inf
        return total


def make_problem(
    job: Job,
    energy: Signal,
    *,
    wait: float = 0.0,
    occupancy: Signal | None = None,
    forbidden: Sequence[tuple[float, float]] = (),
    state: State | None = None,
) -> Problem:
    """Return the problem of planning a job, its input checked; not whether it can be solved.

    Args:
        occupancy: Cost of a second of running or of being held while suspended.
        forbidden: Stretches of time in which the job must not run.
        state: Where the job stands, by default at its arrival.
    """
    state = state or State(now=job.arrival)
    for begin, end in forbidden:
        if not end > begin:
            raise InvalidInput(
                f"a forbidden window ends after it begins, unlike {format_time(begin)} to "
                f"{format_time(end)}"
            )
    if job.interruptible == "never" and job.profile.stop:
        raise InvalidJob(
            f"job {job.id} has stop phases but may never be stopped: leave them out, or let it be "
            "interruptible anywhere or at checkpoints"
        )
    check_state(job, state)
    energy.require(state.now, job.deadline)
    if occupancy is not None:
        if occupancy.kind != "occupancy":
            raise InvalidInput(f"occupancy is a signal of that kind, not {occupancy.kind!r}")
        occupancy.require(state.now, job.deadline, what="the occupancy price")
    return Problem(
        job=job,
        state=state,
        energy=energy,
        occupancy=occupancy,
        wait=wait,
        forbidden=tuple(forbidden),
    )


def _energy_j(phases: Sequence[Phase]) -> float:
    return sum(phase.energy_j for phase in phases)


def _differences_j(phases: Sequence[Phase], others: Sequence[Phase]) -> tuple[float, float]:
    """Return what phases draw beyond others that end when they do, and the others beyond them."""

    def until_end(of: Sequence[Phase]) -> tuple[FloatArray, FloatArray]:
        ends_s = np.cumsum([phase.duration_s for phase in of[::-1]])
        # Before the first of them nothing is drawn.
        return ends_s, np.array([*(phase.power_w for phase in of[::-1]), 0.0])

    (ends_s, power_w), (other_ends_s, other_w) = until_end(phases), until_end(others)
    cuts_s = np.union1d(ends_s, other_ends_s)
    more_w = power_w[np.searchsorted(ends_s, cuts_s)]
    more_w = more_w - other_w[np.searchsorted(other_ends_s, cuts_s)]
    more_j = more_w * np.diff(cuts_s, prepend=0.0)
    return float(np.maximum(more_j, 0.0).sum()), float(np.maximum(-more_j, 0.0).sum())


def _ahead(signal: Signal, begin: float, end: float) -> FloatArray:
    """Return a signal's values between two instants."""
    first = max(math.floor((begin - signal.start) / signal.step_s + 1e-9), 0)
    last = math.ceil((end - signal.start) / signal.step_s - 1e-9)
    return signal.values[first : max(last, first + 1)]


def check_state(job: Job, state: State) -> None:
    """Refuse a state that the job cannot be in; of the cures it is not known whether each cures."""
    work_s = job.profile.work_s
    if state.now < job.arrival - TIME_TOLERANCE_S:
        arrival, now = format_time(job.arrival), format_time(state.now)
        raise Infeasible(
            f"job {job.id} arrives at {arrival}: it cannot be planned from {now} on",
            [
                Cure("state", "now", job.arrival, f"plan it from {arrival} on"),
                Cure("job", "arrival", state.now, f"let it arrive at {now}"),
            ],
        )
    if not 0 <= state.progress_s < work_s - TIME_TOLERANCE_S:
        raise InvalidInput(
            f"job {job.id}: progress is from 0 to less than {work_s:g} s of work, not "
            f"{state.progress_s:g} s: a job that is done needs no plan"
        )
    never = job.interruptible == "never"
    limit = 1 if never else job.max_starts
    used = state.starts + int(not state.running)
    if not state.running and job.interruptible == "checkpoints":
        points = np.array([0.0, *job.profile.checkpoints_s])
        kept_s = float(points[points <= state.progress_s + TIME_TOLERANCE_S].max())
        if state.progress_s - kept_s > TIME_TOLERANCE_S:
            raise Infeasible(
                f"job {job.id}: a stopped job has kept {kept_s:g} s, its last checkpoint, not "
                f"{state.progress_s:g} s",
                [
                    Cure("state", "progress_s", kept_s, f"plan it from {kept_s:g} s on"),
                    Cure("job", "interruptible", "anywhere", "let it be stopped anywhere"),
                ],
            )
    if limit is None or used <= limit:
        return
    what = f"job {job.id} was started {state.starts} times, and may be {limit} times"
    if used == limit + 1 and not state.running:
        what = f"job {job.id} is stopped and has used all its starts ({state.starts} of {limit})"
    if never:
        text = "let it be stopped anywhere (now never)"
        raise Infeasible(what, [Cure("job", "interruptible", "anywhere", text)])
    cures = [Cure("job", "max_starts", used, f"raise max_starts from {limit} to {used}")]
    raise Infeasible(what, [*cures, Cure("job", "max_starts", None, "set no max_starts")])
