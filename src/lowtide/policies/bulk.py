"""Many jobs on one signal, planned in parallel with the same results as one by one.

Jobs of equal profiles that may be stopped anywhere and lie on a common step go through one kernel
together; others are shared out over processes. Plans of the former are laid out when they are
asked for, so that a million optima can be had without a million schedules.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import dataclass, field
from multiprocessing import get_context
from typing import Any, overload

import numpy as np
import numpy.typing as npt

from lowtide.accounting import Stretches, footprint, integrate
from lowtide.errors import InvalidInput
from lowtide.job import INTERRUPTIBLE, TIME_TOLERANCE_S, Job, require_jobs
from lowtide.policies.bulk_kernels import best_gridded, best_straight
from lowtide.policies.columns import column, require_windows, series_of
from lowtide.policies.exact import AHEAD, Exact
from lowtide.policies.planning import Plan, finish, plan
from lowtide.policies.policy import Decision, Policy, merged, renumbered
from lowtide.policies.problem import MOST_BYTES, make_problem
from lowtide.policies.starts import Oracle
from lowtide.policies.stopping import WaitAwhile
from lowtide.profile import PowerProfile
from lowtide.schedule import Schedule, Stretch
from lowtide.signal import FloatArray, Grid, Signal, deciding_signal
from lowtide.units import JOULES_PER_KWH, format_count
from lowtide.workload import IntArray, Workload

# Fewer jobs than this are planned here: starting processes would take longer.
_WORTH_PROCESSES = 500
# A common step that makes more states than this for a job is no matter for the kernel.
_MOST_STATES = 1_000_000
# More slots than this for each job take longer to lay out than the jobs do one by one.
_SLOTS_PER_JOB = 10_000
# Amounts that differ by less than this, relative to each other, are the same.
_SAME = 1e-10
# A thread plans no more jobs than this at once, so that progress can be shown.
_MOST_AT_ONCE = 50_000


@dataclass(frozen=True, slots=True)
class _Packed:
    """Starts of jobs that one kernel planned: last first, as rows and columns of a grid."""

    step_s: float
    numbers: IntArray
    count: IntArray
    rows: npt.NDArray[np.int32]
    columns: npt.NDArray[np.int32]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class Plans(Sequence[Plan]):
    """The plans of many jobs, in their order.

    Attributes:
        jobs: The jobs.
        signal: What they were planned on.
        amount: What each comes to: grams, or money on a price.
        baseline: What each comes to when it runs at once.
    """

    jobs: Sequence[Job]
    signal: Signal | Grid
    amount: FloatArray
    baseline: FloatArray
    _made: dict[int, Plan] = field(default_factory=dict)
    _packed: dict[int, tuple[_Packed, int]] = field(default_factory=dict)

    @property
    def saving(self) -> FloatArray:
        """The share of each baseline that is saved, NaN where there is nothing to save from."""
        with np.errstate(divide="ignore", invalid="ignore"):
            return np.where(self.baseline > 0, 1.0 - self.amount / self.baseline, np.nan)

    def __len__(self) -> int:
        return len(self.jobs)

    def __repr__(self) -> str:
        known = self.saving[~np.isnan(self.saving)]
        saving = f", mean saving {known.mean():.1%}" if known.size else ""
        return f"<Plans: {format_count(len(self), 'job')}{saving}>"

    @overload
    def __getitem__(self, index: int) -> Plan: ...
    @overload
    def __getitem__(self, index: slice) -> list[Plan]: ...
    def __getitem__(self, index: int | slice) -> Plan | list[Plan]:
        if isinstance(index, slice):
            return [self[number] for number in range(*index.indices(len(self)))]
        number = index + len(self) if index < 0 else index
        if not 0 <= number < len(self):
            raise IndexError(f"plan {index} of {len(self)}")
        if number not in self._made:
            self._made[number] = self._lay_out(number)
        return self._made[number]

    def __iter__(self) -> Iterator[Plan]:
        return (self[number] for number in range(len(self)))

    def _lay_out(self, number: int) -> Plan:
        packed, place = self._packed[number]
        job, target = self.jobs[number], deciding_signal(self.signal)
        count = int(packed.count[place])
        rows = packed.rows[place, :count][::-1].tolist()
        columns = packed.columns[place, :count][::-1].tolist()
        begins_s = [packed.step_s * row for row in rows]
        stretches = [
            Stretch(
                start=job.arrival + begin_s + packed.step_s * column,
                work_s=end_s - begin_s,
            )
            for begin_s, end_s, column in zip(
                begins_s, [*begins_s[1:], job.profile.work_s], columns, strict=True
            )
        ]
        schedule = Schedule.from_stretches(job, stretches)
        # As `Exact` says it: a job that cannot wait has one way to run, whatever the step.
        decides = job.slack_s > TIME_TOLERANCE_S
        unknown = decides and make_problem(job, target).pays_to_start_idly
        decision = Decision(
            schedule=schedule,
            lower_bound=footprint(schedule, job, target).amount,
            step_s=packed.step_s if decides else None,
            resolution_gap=None if unknown else 0.0,
        )
        return finish(job, self.signal, target, "exact", decision)


def plan_many(
    jobs: Sequence[Job],
    signal: Signal | Grid,
    *,
    policy: str | Policy = "exact",
    workers: int | None = None,
    progress: bool = False,
) -> Plans:
    """Plan many jobs, each for itself.

    Args:
        jobs: What is to be run.
        signal: What a kWh emits or costs.
        policy: A policy's name, or a policy.
        workers: How many processes to use, by default one per core.
        progress: Whether to show a progress bar on stderr.

    >>> curve = Signal.from_values([300, 100, 200, 100], start=0, step_s="1h")
    >>> jobs = [Job(id=str(hour), arrival=3600 * hour, deadline="+3h",
    ...             profile=PowerProfile.constant(1000, "1h")) for hour in range(2)]
    >>> plan_many(jobs, curve).amount
    array([100., 100.])
    """
    if workers is None:
        workers = os.cpu_count() or 1
    if workers < 1:
        raise InvalidInput(f"plans are made by at least one worker, not {workers}")
    jobs = require_jobs(jobs)
    target = deciding_signal(signal)
    plans = Plans(
        jobs=jobs,
        signal=signal,
        amount=np.empty(len(jobs)),
        baseline=np.empty(len(jobs)),
    )
    rest = list(range(len(jobs)))
    with _bar(progress, len(jobs)) as advance:
        if policy == "exact":
            rest = _plan_together(plans, target, workers, advance)
        for numbers, made in _plan_apart(plans.jobs, rest, signal, policy, workers):
            for number, each in zip(numbers, made, strict=True):
                plans._made[number] = each
                plans.amount[number] = each.footprint.amount
                plans.baseline[number] = each.baseline.amount
            advance(len(numbers))
    return plans


def _plan_apart(
    jobs: Sequence[Job],
    rest: list[int],
    signal: Signal | Grid,
    policy: str | Policy,
    workers: int,
) -> Iterator[tuple[list[int], list[Plan]]]:
    """Plan jobs one by one, here or in processes; yield them as they are done."""
    size = max(min(len(rest) // (8 * workers), 1000), 1)
    chunks = [rest[first : first + size] for first in range(0, len(rest), size)]
    if workers == 1 or len(rest) < _WORTH_PROCESSES:
        for chunk in chunks:
            yield chunk, [plan(jobs[number], signal, policy=policy) for number in chunk]
        return
    # Started anew rather than forked: libraries of ours keep threads, which a fork would break.
    with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool:
        pending = [
            (chunk, pool.submit(_plan_chunk, [jobs[number] for number in chunk], signal, policy))
            for chunk in chunks
        ]
        for chunk, future in pending:
            yield chunk, future.result()


def _plan_chunk(jobs: list[Job], signal: Signal | Grid, policy: str | Policy) -> list[Plan]:
    return [plan(job, signal, policy=policy) for job in jobs]


def _plan_together(
    plans: Plans, signal: Signal, workers: int, advance: Callable[[int], None]
) -> list[int]:
    """Plan the jobs that a kernel can take together; return the numbers of the others."""
    groups: dict[PowerProfile, list[int]] = {}
    # Comparing profiles takes a while: most are met again and again as the same object.
    known: dict[int, list[int]] = {}
    rest = []
    for number, job in enumerate(plans.jobs):
        profile = job.profile
        if (
            job.interruptible == "anywhere"
            and job.max_starts is None
            and not job.min_run_s
            and not profile.stop
            and not profile.suspended_power_w
        ):
            group = known.get(id(profile))
            if group is None:
                group = known[id(profile)] = groups.setdefault(profile, [])
            group.append(number)
        else:
            rest.append(number)
    for profile, numbers in groups.items():
        rest += _plan_group(plans, signal, profile, np.array(numbers), workers, advance)
    return sorted(rest)


def _plan_group(
    plans: Plans,
    signal: Signal,
    profile: PowerProfile,
    numbers: IntArray,
    workers: int,
    advance: Callable[[int], None],
) -> list[int]:
    """Plan jobs of one profile together; return the numbers of those that fit no common step."""
    step_s = _common_step(profile, signal)
    if step_s is None:
        return [int(number) for number in numbers]
    jobs = [plans.jobs[number] for number in numbers]
    arrival = np.array([job.arrival for job in jobs])
    deadline = np.array([job.deadline for job in jobs])
    slack_s = deadline - arrival - profile.run_s
    first = (arrival + profile.startup_s - signal.start) / step_s
    last = slack_s / step_s
    rows = round(profile.work_s / step_s)
    # What a job comes to must not depend on how it is planned: not even by rounding its arrival.
    apart_s = min(TIME_TOLERANCE_S, _SAME * profile.work_s)
    fits = (
        (np.abs(first - np.round(first)) * step_s < apart_s)
        & (np.abs(last - np.round(last)) * step_s < TIME_TOLERANCE_S)
        & (rows * (last + 1) <= _MOST_STATES)
        & (arrival >= signal.start)
        & (deadline <= signal.end)
    )
    if fits.any():
        origin = np.round(first[fits]).astype(np.int64)
        columns = np.round(last[fits]).astype(np.int64) + 1
        # What the kernel looks at must be laid out first, from the first arrival to the last end.
        span = int((origin + rows + columns).max() - origin.min())
        if span > _SLOTS_PER_JOB * origin.size:
            fits[:] = False
        else:
            _run_kernel(
                plans, signal, profile, step_s, numbers[fits], origin, columns, workers, advance
            )
    return [int(number) for number in numbers[~fits]]


def _run_kernel(
    plans: Plans,
    signal: Signal,
    profile: PowerProfile,
    step_s: float,
    numbers: IntArray,
    origin: IntArray,
    columns: IntArray,
    workers: int,
    advance: Callable[[int], None],
) -> None:
    from lowtide.policies.kernels import many

    rows = round(profile.work_s / step_s)
    lag = round(profile.startup_s / step_s)
    middles_s = step_s * (np.arange(rows) + 0.5)
    which = np.searchsorted(profile.work_edges_s, middles_s) - 1
    power = np.array([phase.power_w for phase in profile.work])[which]
    # Slots from the earliest startup on; the last delay ends where the last job must be done.
    begin = int(origin.min()) - lag
    origin = origin - begin
    count = int((origin + rows + columns).max()) - 1
    edges_s = step_s * np.arange(begin, begin + count + 1, dtype=np.float64)
    slot = signal.integral(edges_s[:-1], edges_s[1:], origin=signal.start) / JOULES_PER_KWH
    # A start that is ready at slot m runs in the slots before it.
    start = np.zeros(edges_s.size)
    start[:lag] = np.inf
    from_s = edges_s[: edges_s.size - lag]
    for phase in profile.startup:
        until_s = from_s + phase.duration_s
        energy = signal.integral(from_s, until_s, origin=signal.start)
        start[lag:] += phase.power_w / JOULES_PER_KWH * energy
        from_s = until_s
    most = int(min(rows, columns.max() // max(lag, 1) + 1)) + 1
    cost, at_once = np.empty(numbers.size), np.empty(numbers.size)
    starts = np.empty(numbers.size, dtype=np.int64)
    rows_of = np.empty((numbers.size, most), dtype=np.int32)
    columns_of = np.empty_like(rows_of)

    def run(part: slice) -> int:
        many(
            power,
            slot,
            start,
            origin[part],
            columns[part],
            lag,
            cost[part],
            at_once[part],
            starts[part],
            rows_of[part],
            columns_of[part],
        )
        return cost[part].size

    size = min(math.ceil(numbers.size / workers), _MOST_AT_ONCE)
    parts = [slice(first, first + size) for first in range(0, numbers.size, size)]
    if workers == 1 or len(parts) == 1:
        for part in parts:
            advance(run(part))
    else:
        with ThreadPoolExecutor(workers) as pool:
            for done in pool.map(run, parts):
                advance(done)
    plans.amount[numbers] = cost
    plans.baseline[numbers] = at_once
    packed = _Packed(step_s, numbers, starts, rows_of, columns_of)
    plans._packed.update((number, (packed, place)) for place, number in enumerate(numbers.tolist()))


def _common_step(profile: PowerProfile, signal: Signal) -> float | None:
    """Return the longest step that divides a profile's phases and the signal's step."""
    lengths_s = [
        signal.step_s,
        *(phase.duration_s for phase in (*profile.startup, *profile.work)),
    ]
    whole = [round(1000 * length_s) for length_s in lengths_s]
    exact = all(abs(1000 * each - ms) < 1e-6 for each, ms in zip(lengths_s, whole, strict=True))
    return math.gcd(*whole) / 1000 if exact else None


def _bar(shown: bool, total: int) -> Any:
    """Return a context that gives a function to call when so many more are done."""
    if not shown:
        return nullcontext(lambda _: None)
    from rich.console import Console
    from rich.progress import Progress

    class Bar(Progress):
        def __enter__(self) -> Any:
            super().__enter__()
            task = self.add_task("planning", total=total)
            return lambda more: self.advance(task, more)

    return Bar(console=Console(stderr=True))


def plan_together(planner: Exact, jobs: Workload, signal: Signal) -> Stretches:
    """Return how a planner runs many jobs."""
    require_windows(jobs, signal)
    plain = (jobs.profile < 0) & (
        not (planner.wait or planner.occupancy is not None or planner.forbidden)
    )
    anywhere = jobs.interruptible == INTERRUPTIBLE.index("anywhere")
    straight = plain & (~anywhere | (jobs.max_starts == 1))
    stepped = plain & anywhere & (jobs.max_starts == 0) & (jobs.min_run_s <= 0)
    if planner.step_s is None:
        stepped[:] = False
    else:
        steps = jobs.work_s / planner.step_s + 1, jobs.slack_s / planner.step_s + 1
        stepped &= (steps[0] + 24) * steps[1] <= MOST_BYTES
    rest = np.flatnonzero(~(straight | stepped))
    parts = []
    if straight.any():
        part = _straight(jobs.take(straight), signal)
        parts.append(renumbered(part, np.flatnonzero(straight)))
    if planner.step_s is not None and stepped.any():
        part = _stepped(planner, jobs.take(stepped), signal, float(planner.step_s))
        parts.append(renumbered(part, np.flatnonzero(stepped)))
    if rest.size:
        parts.append(_one_by_one(planner, jobs, signal, rest))
    return merged(*parts)


def _stepped(planner: Exact, jobs: Workload, signal: Signal, step_s: float) -> Stretches:
    """Decide for jobs of constant power that may be stopped anywhere."""
    lossless = _lossless(jobs, signal, step_s)
    made, costs = best_gridded(
        column(jobs.arrival),
        column(jobs.deadline),
        column(jobs.work_s),
        column(jobs.power / JOULES_PER_KWH),
        column(lossless),
        series_of(signal),
        step_s,
    )
    best = Stretches(job=made[0], start=made[1], work_s=made[2], lost_s=made[3])
    doubtful = np.flatnonzero(~lossless & (jobs.slack_s > TIME_TOLERANCE_S))
    if not doubtful.size:
        return best
    # Policies that decide between the steps may come out ahead by a little, as in `decide`.
    some = jobs.take(doubtful)
    lowest = costs[doubtful]
    chosen = np.zeros(len(jobs), dtype=np.int64)
    close = np.zeros(doubtful.size, dtype=bool)
    rivals = [policy.decide_many(some, signal) for policy in (WaitAwhile(), Oracle())]
    for number, rival in enumerate(rivals, start=1):
        paid = _paid(some, rival, signal)
        enough = AHEAD * np.abs(lowest)
        close |= np.abs(lowest - paid - enough) < enough / 2
        ahead = paid < lowest - enough
        chosen[doubtful[ahead]] = number
        lowest = np.where(ahead, paid, lowest)
    # Where rounding could turn the balance, `decide` itself must say.
    chosen[doubtful[close]] = -1
    parts = [_of_rows(best, chosen == 0)]
    for number, rival in enumerate(rivals, start=1):
        parts.append(_of_rows(renumbered(rival, doubtful), chosen == number))
    if close.any():
        parts.append(_one_by_one(planner, jobs, signal, doubtful[close]))
    return merged(*parts)


def _one_by_one(planner: Exact, jobs: Workload, signal: Signal, rows: IntArray) -> Stretches:
    """Decide for some of the jobs as for each."""
    part = jobs.take(rows)
    schedules = [planner.lay_out(planner.optimise(job, signal), job, signal)[0] for job in part]
    return renumbered(Stretches.of_schedules(part, schedules), rows)


def _straight(jobs: Workload, signal: Signal) -> Stretches:
    """Decide for jobs of constant power that run through."""
    start = best_straight(
        column(jobs.arrival),
        column(jobs.deadline),
        column(jobs.work_s),
        column(jobs.power / JOULES_PER_KWH),
        series_of(signal),
    )
    return Stretches.one_each(jobs, start)


def _paid(jobs: Workload, stretches: Stretches, signal: Signal) -> FloatArray:
    """Return what jobs of constant power come to, to more digits than epoch seconds have."""
    begin_s = stretches.start - signal.start
    power_w = jobs.power[stretches.job]
    parts = integrate(power_w, begin_s, begin_s + stretches.work_s, signal, origin=signal.start)
    return np.bincount(stretches.job, weights=parts, minlength=len(jobs)).astype(np.float64)


def _of_rows(stretches: Stretches, rows: npt.NDArray[np.bool_]) -> Stretches:
    """Return the stretches of some of the jobs."""
    kept = rows[stretches.job]
    return Stretches(
        job=stretches.job[kept],
        start=stretches.start[kept],
        work_s=stretches.work_s[kept],
        lost_s=stretches.lost_s[kept],
    )


def _lossless(jobs: Workload, signal: Signal, step_s: float) -> npt.NDArray[np.bool_]:
    """Return for which jobs of constant power a step divides every duration that matters."""
    lengths_s = np.stack(
        [
            jobs.slack_s,
            jobs.work_s,
            np.full(len(jobs), signal.step_s),
            (jobs.arrival - signal.start) % signal.step_s,
        ]
    )
    whole_ms = np.round(1000 * lengths_s)
    exact = np.all(np.abs(1000 * lengths_s - whole_ms) <= 1e-3, axis=0)
    multiple = np.gcd.reduce(whole_ms.astype(np.int64), axis=0) / 1000 / step_s
    divides = (np.abs(multiple - np.round(multiple)) < 1e-9) & (multiple >= 1)
    lossless: npt.NDArray[np.bool_] = exact & divides
    return lossless
