"""The GAIA comparison of carbon-aware start policies, run again: 17 runs of 1,000 jobs.

Jobs of a trace start somewhere in a carbon curve. Each may wait 6 h if it is shorter than 2 h, else
24 h, and runs on reserved, spot or on-demand machines. Two sets of rules are at hand:

- `ORIGINAL`, as published: time in steps of 5 s to which arrivals and lengths are cut; starts a
  whole number of hours after arrival; reserved machines usable one step after they are free, and
  paid for until the last start.
- `FIXED`: seconds as they are; starts at any moment; machines usable at once, and paid for until
  the last job ends.

Both serve equal arrivals in the order of the trace and average waiting over jobs.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from lowtide.accounting import integrate
from lowtide.errors import InvalidInput, InvalidTrace
from lowtide.job import Job
from lowtide.policies.dtpr import taken
from lowtide.policies.starts import LowestSlot, cost_by_delay, first_lowest
from lowtide.policies.stopping import cheapest_moments, quantile_between
from lowtide.profile import PowerProfile
from lowtide.signal import FILLED, FloatArray, Signal
from lowtide.simulator.buying import start_on_reserved
from lowtide.simulator.cluster import ON_DEMAND_PRICE, RESERVED_PRICE, SPOT_PRICE
from lowtide.trace import Trace
from lowtide.units import format_hours

if TYPE_CHECKING:
    pass

# The threshold policy looks at the 30 % cleanest moments of the day ahead.
LOOK_AHEAD_S = 86400.0
QUANTILE = 0.3
# Jobs shorter than this go to the short queue, and to spot machines where there are any.
SHORT_S = 7200.0
POWER_W_PER_CPU = 1.0
HOUR_S = 3600.0

IndexArray = npt.NDArray[np.intp]
BoolArray = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True, kw_only=True)
class GaiaRules:
    """How the comparison counts.

    Attributes:
        step_s: The step to which arrivals and lengths are cut; None leaves them as they are.
        start_step_s: The step between the starts that are tried; None tries every moment.
        release_lag_s: How long after its end a job still holds reserved machines.
        reserved_to_end: Whether reserved machines are paid for until the last job ends, rather
            than until it starts.
    """

    step_s: float | None
    start_step_s: float | None
    release_lag_s: float
    reserved_to_end: bool


ORIGINAL = GaiaRules(step_s=5.0, start_step_s=HOUR_S, release_lag_s=5.0, reserved_to_end=False)
# One error after the other is fixed; under the last rules all are.
_SECONDS = replace(ORIGINAL, step_s=None)
_ANY_MOMENT = replace(_SECONDS, start_step_s=None)
_AT_ONCE = replace(_ANY_MOMENT, release_lag_s=0.0)
FIXED = replace(_AT_ONCE, reserved_to_end=True)
FIXES = {
    "seconds, not 5-s steps": _SECONDS,
    "starts at any moment": _ANY_MOMENT,
    "freed machines usable at once": _AT_ONCE,
    "reserved paid until the last end": FIXED,
}


@dataclass(frozen=True, slots=True)
class GaiaRun:
    """One run: a policy, and the machines it has.

    Attributes:
        policy: What the run is called.
        scheduling_policy: How jobs pass the queue, in the original's words.
        carbon_policy: How the start is chosen, in the original's words.
        reserved: How many CPUs are reserved.
        waiting: Hours that short and long jobs may wait.
    """

    policy: str
    scheduling_policy: str
    carbon_policy: str
    reserved: int = 0
    waiting: str = "6x24"

    @property
    def waits_s(self) -> tuple[float, float]:
        """How long short and long jobs may wait."""
        short, long = (HOUR_S * float(hours) for hours in self.waiting.split("x"))
        return short, long

    @property
    def eager(self) -> bool:
        """Whether jobs start early where reserved machines have room."""
        return "cost" in self.scheduling_policy

    @property
    def spot(self) -> bool:
        """Whether short jobs run on spot machines."""
        return "spot" in self.scheduling_policy

    @property
    def decision(self) -> str:
        """Which rule decides when a job is due."""
        if "suspend" in self.scheduling_policy:
            return "threshold" if "threshold" in self.scheduling_policy else "wait_awhile"
        return self.carbon_policy if "carbon" in self.scheduling_policy else "latest"


RUNS = (
    GaiaRun("NJW", "carbon", "oracle", waiting="0x0"),
    GaiaRun("Oracle(-w 6x24)", "carbon", "oracle"),
    GaiaRun("Lowest-Slot", "carbon", "lowest"),
    GaiaRun("Lowest-Window", "carbon", "waiting"),
    GaiaRun("Carbon-Time", "carbon", "cst_average"),
    GaiaRun("CST-Oracle", "carbon", "cst_oracle"),
    GaiaRun("Wait-Awhile", "suspend-resume", "oracle"),
    GaiaRun("Ecovisor", "suspend-resume-threshold", "oracle"),
    GaiaRun("NJW r9", "carbon", "oracle", 9, "0x0"),
    GaiaRun("AJW-T r9", "cost", "oracle", 9),
    GaiaRun("Carbon-Time r9", "carbon", "cst_average", 9),
    GaiaRun("Res-First-Carbon-Time r9", "carbon-cost", "cst_average", 9),
    GaiaRun("Res-First-Carbon-Time r20", "carbon-cost", "cst_average", 20),
    GaiaRun("Wait-Awhile r9", "suspend-resume", "oracle", 9),
    GaiaRun("Spot-First-Carbon-Time", "carbon-spot", "cst_average"),
    GaiaRun("Spot-First-Ecovisor", "suspend-resume-spot-threshold", "oracle"),
    GaiaRun("Spot-Res-Carbon-Time r9", "carbon-cost-spot", "cst_average", 9),
)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class GaiaOutcome:
    """What a run comes to: one entry per stretch that a job runs without a stop.

    Attributes:
        rules: How it was counted.
        job: Which job of the trace each stretch belongs to.
        arrival_s: When that job arrived, after the curve's first moment.
        reserved: Whether it runs on reserved machines.
        carbon_g: What it emits, at 1 W per CPU.
        cost: What it costs in dollars; reserved machines cost nothing here.
    """

    run: GaiaRun
    rules: GaiaRules
    job: IndexArray
    arrival_s: FloatArray
    start_s: FloatArray
    length_s: FloatArray
    cpus: FloatArray
    reserved: BoolArray
    carbon_g: FloatArray
    cost: FloatArray

    @property
    def end_s(self) -> FloatArray:
        """When each stretch ends."""
        ends: FloatArray = self.start_s + self.length_s
        return ends

    @property
    def jobs(self) -> int:
        """How many jobs there are."""
        return int(np.unique(self.job).size)

    @property
    def reserved_cost(self) -> float:
        """What the reserved machines cost, used or not."""
        until_s = float((self.end_s if self.rules.reserved_to_end else self.start_s).max())
        return self.run.reserved * RESERVED_PRICE / HOUR_S * until_s

    @property
    def total_cost(self) -> float:
        """What all machines cost, in dollars."""
        return float(self.cost.sum()) + self.reserved_cost

    @property
    def mean_wait_h(self) -> float:
        """How much later than at once a job is done, averaged over jobs."""
        _, first = np.unique(self.job, return_index=True)
        done_s = np.maximum.reduceat(self.end_s, first)
        busy_s = np.add.reduceat(self.length_s, first)
        return float(np.mean(done_s - self.arrival_s[first] - busy_s)) / HOUR_S

    @property
    def mean_segment_wait_h(self) -> float:
        """The time from arrival to start averaged over stretches, as the original's figures do."""
        return float(np.mean(self.start_s - self.arrival_s)) / HOUR_S

    def document(self) -> dict[str, Any]:
        """Return the totals under the names that the original gives them."""
        totals: dict[str, Any] = {
            "carbon_cost": float(self.carbon_g.sum()),
            "dollar_cost": self.total_cost,
            "n_jobs": self.jobs,
            "n_segments": int(self.job.size),
            "mean_wait_h": self.mean_wait_h,
        }
        step_s = self.rules.step_s
        if step_s is None:
            return {**totals, "last_exit_h": float(self.end_s.max()) / HOUR_S}
        return {
            **totals,
            "sum_busy_steps": round(float(self.length_s.sum()) / step_s),
            "last_exit_step": round(float(self.end_s.max()) / step_s),
        }


def cut_signal(signal: Signal, trace: Trace, start_row: int) -> Signal:
    """Return the part of a curve that the jobs of a trace need, counted from its first moment.

    Args:
        signal: What a kWh emits; steps that a gap policy made up are no rows of its file.
        start_row: The row, counted from 0, at which the first job arrives.
    """
    if signal.kind not in ("average", "marginal"):
        raise InvalidInput(f"the comparison needs a carbon intensity, not a {signal.kind} signal")
    needed_s = 0.0
    for jobs in (_Jobs.of(trace, rules) for rules in (ORIGINAL, FIXED)):
        longest_s = np.maximum(jobs.length_s, jobs.expected_s) + max(RUNS[1].waits_s)
        ahead_s = np.maximum(longest_s, LOOK_AHEAD_S)
        needed_s = max(needed_s, float((jobs.arrival_s + ahead_s).max()))
    made_up = np.zeros(len(signal), dtype=bool) if signal.marks is None else signal.marks == FILLED
    rows = np.flatnonzero(~made_up)
    last = (
        int(np.searchsorted(rows, len(signal) - math.ceil(needed_s / signal.step_s), "right")) - 1
    )
    if last < 0:
        raise InvalidInput(
            f"the jobs need a curve of {format_hours(needed_s)}, and this one has "
            f"{format_hours(len(signal) * signal.step_s)}: take a longer one"
        )
    if not 0 <= start_row <= last:
        raise InvalidInput(
            f"the start row is from 0 to {last}, so that {format_hours(needed_s)} are left for the "
            f"jobs, not {start_row}"
        )
    begin = signal.start + int(rows[start_row]) * signal.step_s
    # Times are counted from 0: small numbers keep whole seconds exact.
    return replace(signal.window(begin, begin + needed_s), start=0.0)


def best_delay(
    job: Job, signal: Signal, *, start_step_s: float | None, per_time: bool = False
) -> float:
    """Return how long after arrival a run is cleanest, or saves most per time until its end.

    Args:
        job: A job of the length that the policy believes in.
        start_step_s: Try only whole multiples of this; None tries every moment.
        per_time: Whether to divide what is saved by the time from arrival to the end.
    """
    run_s = job.profile.run_s
    if start_step_s is None:
        delays_s, costs = cost_by_delay(job, signal)
    else:
        # Integrals rather than points of the curve above: equal runs then cost exactly the same.
        delays_s = np.arange(0.0, job.slack_s + 1e-9 * start_step_s, start_step_s)
        costs = signal.integral(job.arrival + delays_s, job.arrival + delays_s + run_s)
    if per_time:
        # Between two bends this is one linear function over another, so it has no minimum there.
        costs = (costs - costs[0]) / (delays_s + run_s)
    return first_lowest(delays_s, costs, math.inf)


def below_threshold(job: Job, signal: Signal, *, step_s: float | None) -> list[tuple[float, float]]:
    """Return when a job runs that runs in clean moments, and always once it has waited enough.

    Args:
        step_s: The step that the quantile of the day ahead is counted in; None counts time.
    """
    end = job.arrival + LOOK_AHEAD_S
    limit = (
        quantile_between(signal, job.arrival, end, QUANTILE)
        if step_s is None
        else _quantile_of_steps(signal, job.arrival, end, step_s)
    )
    return taken(job, signal, lambda slot: slot.price < limit)


def job_of(arrival_s: float, length_s: float, wait_s: float) -> Job:
    """Return a job of 1 W that may wait so long."""
    return Job(
        id="job",
        arrival=arrival_s,
        deadline=arrival_s + wait_s + length_s,
        profile=PowerProfile.constant(1.0, length_s),
    )


def _quantile_of_steps(signal: Signal, begin: float, end: float, step_s: float) -> float:
    """Return the 30 % quantile of the day ahead as the original takes it: of 5-s steps.

    Between the two steps whose ranks surround the quantile's lies a straight line.
    """
    window = signal.window(begin, end)
    order = np.argsort(window.values, kind="stable")
    values: FloatArray = window.values[order]
    upto_s = np.cumsum(np.diff(np.clip(window.edges, begin, end))[order])
    rank = QUANTILE * ((end - begin) / step_s - 1)
    below, above = (
        float(values[np.searchsorted(upto_s, each * step_s, side="right")])
        for each in (math.floor(rank), math.ceil(rank))
    )
    return below + (rank - math.floor(rank)) * (above - below)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Jobs:
    """The jobs of a trace as the rules count them.

    Attributes:
        arrival_s: When each arrives, after the first.
        expected_s: How long each is believed to run: the mean of its queue.
        short: Which of them are in the short queue.
        spot: Which of them run on spot machines, where there are any.
    """

    arrival_s: FloatArray
    length_s: FloatArray
    cpus: FloatArray
    expected_s: FloatArray
    short: BoolArray
    spot: BoolArray

    @classmethod
    def of(cls, trace: Trace, rules: GaiaRules) -> _Jobs:
        step_s = rules.step_s

        def counted(seconds: FloatArray) -> FloatArray:
            return seconds if step_s is None else np.floor(seconds / step_s) * step_s

        raw_s, cpus = trace.length_s, trace.cpus
        length_s = counted(raw_s)
        usable = (length_s > 0) & (cpus > 0)
        if not len(trace) or not usable.all():
            raise InvalidTrace(
                f"{np.count_nonzero(~usable)} of {len(trace)} jobs have no CPUs or are shorter "
                "than a step of 5 s: leave them out"
            )
        short = length_s < SHORT_S
        # The original counts a job of exactly 2 h in the means of both queues.
        upto, beyond = raw_s < SHORT_S, raw_s >= SHORT_S
        if step_s is not None:
            upto = raw_s <= SHORT_S
        means = [float(raw_s[part].mean()) if part.any() else 0.0 for part in (upto, beyond)]
        return cls(
            arrival_s=counted(trace.arrival - trace.arrival[0]),
            length_s=length_s,
            cpus=np.asarray(cpus, dtype=np.float64),
            expected_s=counted(np.where(short, *means)),
            short=short,
            spot=short if step_s is None else upto,
        )


class Due(NamedTuple):
    """When stretches are due, before any queue: whose each is, its last start, how long it runs."""

    job: IndexArray
    due_s: FloatArray
    length_s: FloatArray


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Bench:
    """Jobs and a curve; decisions that several runs share are made once.

    Attributes:
        signal: What a kWh emits, as `cut_signal` returns it.
    """

    trace: Trace
    signal: Signal
    _made: dict[tuple[object, ...], Due] = field(default_factory=dict, init=False)

    def outcome(self, run: GaiaRun, rules: GaiaRules) -> GaiaOutcome:
        """Return what a run comes to."""
        jobs, due = _Jobs.of(self.trace, rules), self.due(run, rules)
        arrival_s, cpus = jobs.arrival_s[due.job], jobs.cpus[due.job]
        spot = jobs.spot[due.job] & run.spot
        queued: IndexArray = np.flatnonzero(~spot)
        begun_s = np.full(due.job.size, np.nan)
        begun_s[queued] = start_on_reserved(
            arrival_s[queued],
            due.due_s[queued],
            due.length_s[queued],
            cpus[queued],
            float(run.reserved),
            eager=np.full(queued.size, run.eager),
            lag_s=rules.release_lag_s,
        )
        reserved = ~np.isnan(begun_s)
        start_s: FloatArray = np.where(reserved, begun_s, due.due_s)
        rate = np.where(spot, SPOT_PRICE, np.where(reserved, 0.0, ON_DEMAND_PRICE))
        end_s = start_s + due.length_s
        return GaiaOutcome(
            run=run,
            rules=rules,
            job=due.job,
            arrival_s=arrival_s,
            start_s=start_s,
            length_s=due.length_s,
            cpus=cpus,
            reserved=reserved,
            carbon_g=integrate(POWER_W_PER_CPU * cpus, start_s, end_s, self.signal),
            cost=cpus * due.length_s * rate / HOUR_S,
        )

    def due(self, run: GaiaRun, rules: GaiaRules) -> Due:
        """Return when the jobs of a run are due."""
        key = (run.decision, run.waiting, rules.step_s, rules.start_step_s)
        if key not in self._made:
            self._made[key] = self._decide(run, rules)
        return self._made[key]

    def _decide(self, run: GaiaRun, rules: GaiaRules) -> Due:
        jobs = _Jobs.of(self.trace, rules)
        wait_s: FloatArray = np.where(jobs.short, *run.waits_s)
        if run.decision in ("wait_awhile", "threshold"):
            return self._stretches(run, jobs, wait_s, rules)
        delay_s = wait_s
        if run.decision != "latest" and wait_s.any():
            delay_s = self._delays(run, jobs, wait_s, rules)
        every: IndexArray = np.arange(jobs.length_s.size)
        return Due(job=every, due_s=jobs.arrival_s + delay_s, length_s=jobs.length_s)

    def _delays(
        self, run: GaiaRun, jobs: _Jobs, wait_s: FloatArray, rules: GaiaRules
    ) -> FloatArray:
        """Return how long each job waits."""
        guesses = run.decision in ("waiting", "cst_average")
        believed_s = jobs.expected_s if guesses else jobs.length_s
        delays_s = np.empty(wait_s.size)
        rows = zip(jobs.arrival_s.tolist(), believed_s.tolist(), wait_s.tolist(), strict=True)
        for number, row in enumerate(rows):
            job = job_of(*row)
            delays_s[number] = (
                LowestSlot().decide(job, self.signal).schedule.start - job.arrival
                if run.decision == "lowest"
                else best_delay(
                    job,
                    self.signal,
                    start_step_s=rules.start_step_s,
                    per_time=run.decision.startswith("cst"),
                )
            )
        return delays_s

    def _stretches(self, run: GaiaRun, jobs: _Jobs, wait_s: FloatArray, rules: GaiaRules) -> Due:
        """Return the stretches of jobs that may be stopped."""
        rows = zip(jobs.arrival_s.tolist(), jobs.length_s.tolist(), wait_s.tolist(), strict=True)
        found = [
            # The cleanest moments that make up its length, or those below a threshold.
            cheapest_moments(self.signal, job.arrival, job.deadline, job.profile.run_s)
            if run.decision == "wait_awhile"
            else below_threshold(job, self.signal, step_s=rules.step_s)
            for job in (job_of(*row) for row in rows)
        ]
        job: IndexArray = np.repeat(np.arange(len(found)), [len(each) for each in found])
        begin_s, end_s = np.array([stretch for each in found for stretch in each]).T
        return Due(job=job, due_s=begin_s, length_s=end_s - begin_s)
