"""Many jobs planned to the optimum, with the same results as one by one.

Jobs that run through, and jobs that may be stopped anywhere, are planned together by compiled
loops, whatever their phases and whenever they arrive; others, such as those with checkpoints, one
by one. How good a plan is proven to be is asked for only when it is looked at, which is half the
work where a step loses something; so a million optima can be had without a million schedules.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import dataclass, field
from multiprocessing import get_context
from typing import Any, NamedTuple, overload

import numpy as np
import numpy.typing as npt

from lowtide.accounting import Stretches, integrate, pieces_of
from lowtide.errors import InvalidInput
from lowtide.grid import Grid, deciding_signal
from lowtide.job import INTERRUPTIBLE, TIME_TOLERANCE_S, Job, require_jobs
from lowtide.policies import exact, gridded
from lowtide.policies.columns import PARTS, WORK, Jobs, column, require_windows, series_of
from lowtide.policies.planning import Plan, finish, plan
from lowtide.policies.policy import Decision, Paid, Policy, make_policy, merged, renumbered
from lowtide.policies.problem import MOST_BYTES, make_problem
from lowtide.policies.starts import Oracle
from lowtide.policies.stopping import WaitAwhile
from lowtide.registry import chart_of
from lowtide.schedule import Schedule
from lowtide.signal import FloatArray, Signal
from lowtide.units import format_count, format_html
from lowtide.workload import IntArray, Workload

BoolArray = npt.NDArray[np.bool_]

# Fewer jobs than this are planned here: starting processes would take longer.
_WORTH_PROCESSES = 500
# A thread plans no more jobs than this at once, so that progress can be shown.
_MOST_AT_ONCE = 50_000
_NEVER, _ANYWHERE = INTERRUPTIBLE.index("never"), INTERRUPTIBLE.index("anywhere")

# So many plans are shown in a notebook.
_FIRST = 10


class _Optima(NamedTuple):
    """What planning many jobs together has found.

    Attributes:
        stretches: How each runs.
        amount: What each comes to.
        at_once: What each comes to when it runs at once.
        own: What each comes to by the planner's own plan, where another policy's is better.
        step_s: The step between decisions, NaN for any moment.
        lossless: Whether nothing is lost by that.
        rest: Which of the jobs are to be planned one by one.
    """

    stretches: Stretches
    amount: FloatArray
    at_once: FloatArray
    own: FloatArray
    step_s: FloatArray
    lossless: BoolArray
    rest: IntArray


def plan_together(
    planner: exact.Exact,
    jobs: Jobs,
    signal: Signal,
    some: Callable[[IntArray], Workload],
    *,
    workers: int = 1,
    advance: Callable[[int], None] = lambda _: None,
) -> _Optima:
    """Plan what can be planned together.

    Args:
        some: Returns a workload of some of the jobs, in the order of their arrivals.
        workers: How many threads to use.
        advance: Told how many jobs were planned, each time some were.
    """
    from lowtide.policies.bulk_kernels import best_gridded, best_straight

    straight, stepped = _kinds(planner, jobs, signal)
    count = jobs.arrival.size
    amount, at_once = np.full(count, np.nan), np.full(count, np.nan)
    step_s, lossless = np.full(count, np.nan), np.ones(count, dtype=bool)
    step_s[stepped], lossless[stepped], fits, few = _steps(planner, jobs, signal, stepped)
    free = np.zeros(stepped.size, dtype=bool)
    if planner.step_s is None:
        free = ~(lossless[stepped] & few) & np.append(_alike(jobs), True)[jobs.place[stepped]]
    step_s[stepped[~fits | free]] = np.nan
    free, stepped = stepped[free], stepped[fits & ~free]
    lossless[free] = True
    series = series_of(signal)
    parts: list[Stretches] = []

    def through(rows: IntArray) -> Stretches:
        start, amount[rows], at_once[rows] = best_straight(jobs, rows, series)
        return Stretches(
            job=rows, start=start, work_s=jobs.work_s[rows], lost_s=np.zeros(rows.size)
        )

    def on_steps(rows: IntArray) -> Stretches:
        made, amount[rows], at_once[rows] = best_gridded(
            jobs, rows, column(step_s[rows]), column(lossless[rows]), series, gridded.NO_RENT
        )
        return Stretches(job=rows[made[0]], start=made[1], work_s=made[2], lost_s=made[3])

    def at_will(rows: IntArray) -> Stretches:
        rows = rows[np.argsort(jobs.arrival[rows], kind="stable")]
        part = some(rows)
        made = WaitAwhile().decide_many(part, signal)
        amount[rows] = _paid(part, made, signal)
        at_once[rows] = _paid(part, Stretches.one_each(part, part.arrival), signal)
        return renumbered(made, rows)

    for rows, run in ((straight, through), (stepped, on_steps), (free, at_will)):
        for part, stretches in _in_threads(run, rows, workers):
            parts.append(stretches)
            advance(part.size)
    own = amount.copy()
    doubtful = stepped[~lossless[stepped]]
    undecided = doubtful[:0]
    if doubtful.size:
        doubtful = doubtful[np.argsort(jobs.arrival[doubtful], kind="stable")]
        parts, undecided = _rivals(parts, some(doubtful), doubtful, signal, amount)
        advance(-undecided.size)
    planned = np.zeros(count, dtype=bool)
    planned[straight] = planned[stepped] = planned[free] = True
    planned[undecided] = False
    nothing = np.empty(0)
    none = Stretches(job=np.empty(0, np.int64), start=nothing, work_s=nothing, lost_s=nothing)
    return _Optima(
        merged(*parts) if parts else none,
        amount,
        at_once,
        own,
        step_s,
        lossless,
        np.flatnonzero(~planned),
    )


def decide_together(planner: exact.Exact, jobs: Workload, signal: Signal) -> Stretches:
    """Return how a planner runs the jobs of a workload."""
    require_windows(jobs, signal)
    found = plan_together(planner, Jobs.of(jobs), signal, jobs.take)
    if not found.rest.size:
        return found.stretches
    part = jobs.take(found.rest)
    schedules = [planner.lay_out(planner.optimise(job, signal), job, signal) for job in part]
    alone = renumbered(Stretches.of_schedules(part, schedules), found.rest)
    return merged(found.stretches, alone)


def _in_threads(
    run: Callable[[IntArray], Stretches], rows: IntArray, workers: int
) -> Iterator[tuple[IntArray, Stretches]]:
    """Plan rows of jobs in parts, in threads where there are several workers and parts."""
    size = max(min(math.ceil(rows.size / workers), _MOST_AT_ONCE), 1)
    parts = [column(rows[first : first + size]) for first in range(0, rows.size, size)]
    if workers == 1 or len(parts) < 2:
        yield from ((part, run(part)) for part in parts)
        return
    with ThreadPoolExecutor(workers) as pool:
        yield from zip(parts, pool.map(run, parts), strict=True)


def _kinds(planner: exact.Exact, jobs: Jobs, signal: Signal) -> tuple[IntArray, IntArray]:
    """Return which jobs run through, and which may be stopped at any step."""
    if planner.wait or planner.occupancy is not None or planner.forbidden:
        return np.empty(0, np.int64), np.empty(0, np.int64)
    kinds = jobs.suspended_w.size
    saves = np.zeros(kinds + 1, dtype=bool)
    for kind in range(kinds):
        first, last = jobs.bounds[PARTS * kind + WORK : PARTS * kind + WORK + 2]
        # What is saved at the end is of no use to a stop.
        reached_s = np.cumsum(jobs.durations_s[first:last])
        ahead = reached_s < reached_s[-1] - TIME_TOLERANCE_S
        saves[kind] = bool(np.any(jobs.saves[first:last] & ahead))
    never, anywhere = jobs.interruptible == _NEVER, jobs.interruptible == _ANYWHERE
    slack_s = jobs.deadline - (jobs.arrival + jobs.startup_s) - jobs.work_s
    tight = slack_s <= TIME_TOLERANCE_S
    single = never | (jobs.max_starts == 1)
    # For a cheap restart it may be worth losing work, which `decide` looks at.
    loses = np.append(jobs.resumes, False)[jobs.place] & ~single & (jobs.min_run_s <= 0)
    once = never | ((~anywhere | (jobs.max_starts == 1)) & ~saves[jobs.place] & ~loses)
    # Left to `decide`, which refuses them: no signal, or a stop of what is never stopped.
    good = (jobs.arrival >= signal.start) & (jobs.deadline <= signal.end)
    good &= ~(never & (jobs.stop_s > 0)) & (slack_s >= -TIME_TOLERANCE_S)
    free = anywhere & (jobs.max_starts == 0) & (jobs.min_run_s <= 0)
    return np.flatnonzero(good & (once | tight)), np.flatnonzero(good & free & ~tight)


def _steps(
    planner: exact.Exact, jobs: Jobs, signal: Signal, rows: IntArray
) -> tuple[FloatArray, BoolArray, BoolArray, BoolArray]:
    """Return the step to decide on, whether nothing is lost by it, and whether it can be taken.

    And whether that leaves little to look at. It is what `Exact` chooses for one job.
    """
    place, work_s = jobs.place[rows], jobs.work_s[rows]
    base = jobs.arrival[rows] + jobs.startup_s[rows]
    slack_s = jobs.deadline[rows] - base - work_s
    own_s = np.where(place < 0, work_s, np.append(_units(jobs), np.nan)[place])
    offset_s = (base - signal.start) % signal.step_s
    lengths_s = np.stack([own_s, slack_s, np.full(rows.size, signal.step_s), offset_s])
    common_s = gridded.common_steps(lengths_s)[0]

    def fits(some: IntArray, step_s: FloatArray, most: float) -> BoolArray:
        cells = np.maximum(np.ceil(work_s[some] / step_s - 1e-9), 1)
        special = np.minimum(cells, _off_grid(jobs, place[some], work_s[some], step_s) + 1)
        columns = np.floor(slack_s[some] / step_s + 1e-9) + 1
        size: Any = gridded.Size(rows=cells, columns=columns, layers=1, special=special, least=0)  # type: ignore[arg-type]
        good: BoolArray = (size.effort <= most) & (size.memory_bytes <= MOST_BYTES)
        return good

    every = np.arange(rows.size)
    if planner.step_s is not None:
        step_s = np.full(rows.size, planner.step_s)
        good = fits(every, step_s, math.inf)
        return step_s, gridded.divides(step_s, common_s), good, good
    most = planner.time_budget_s * exact.STATES_PER_SECOND
    step_s = np.full(rows.size, np.nan)
    known = np.flatnonzero(~np.isnan(common_s))
    known = known[fits(known, common_s[known], most)]
    step_s[known] = common_s[known]
    lossless = ~np.isnan(step_s)
    for nice_s in exact.NICE_S:
        open_ = np.flatnonzero(np.isnan(step_s))
        if open_.size:
            step_s[open_[fits(open_, np.full(open_.size, float(nice_s)), most)]] = nice_s
    step_s = np.where(np.isnan(step_s), work_s, step_s)
    every_one = np.ones(rows.size, dtype=bool)
    return step_s, lossless, every_one, fits(every, step_s, exact.FEW_STATES)


def _alike(jobs: Jobs) -> BoolArray:
    """Return which profiles draw the same all the time, and nothing for starts and stops."""
    made = np.zeros(jobs.suspended_w.size, dtype=bool)
    for kind in range(made.size):
        bounds = jobs.bounds[PARTS * kind : PARTS * (kind + 1) + 1]
        watts = jobs.watts[bounds[WORK] : bounds[WORK + 1]]
        others = bounds[-1] - bounds[0] - watts.size
        made[kind] = not others and not jobs.suspended_w[kind] and np.ptp(watts) == 0
    return made


def _units(jobs: Jobs) -> FloatArray:
    """Return the longest step that divides all phases of each profile, NaN where there is none."""
    if not jobs.suspended_w.size:
        return np.empty(0)
    return gridded.common_steps(jobs.durations_s, jobs.bounds[: -1 : int(PARTS)])


def _off_grid(jobs: Jobs, place: IntArray, work_s: FloatArray, step_s: FloatArray) -> FloatArray:
    """Return how many edges of each job's phases lie between the beginnings of steps."""

    def off(edges_s: FloatArray, step_s: FloatArray | float) -> BoolArray:
        steps = edges_s / step_s
        beside: BoolArray = np.abs(steps - np.round(steps)) > 1e-9
        return beside

    count = off(work_s, step_s).astype(np.float64)
    shaped = place >= 0
    # Each kind of profile on each step once: numbers of two parts are sorted faster than pairs.
    pairs, which = np.unique(place[shaped] + 1j * step_s[shaped], return_inverse=True)
    of_pair = np.empty(pairs.size)
    for number, (kind, each_s) in enumerate(zip(pairs.real, pairs.imag, strict=True)):
        first, last = jobs.bounds[PARTS * int(kind) + WORK : PARTS * int(kind) + WORK + 2]
        of_pair[number] = off(np.cumsum(jobs.durations_s[first:last]), each_s).sum()
    count[shaped] = of_pair[which]
    return count


def _rivals(
    parts: list[Stretches], jobs: Workload, rows: IntArray, signal: Signal, amount: FloatArray
) -> tuple[list[Stretches], IntArray]:
    """Let policies that decide between the steps run jobs where they come out ahead, as `decide`.

    Args:
        parts: How all jobs run.
        jobs: Those for which the step loses something.
        rows: Their numbers.
        amount: What all jobs come to; changed in place.

    Returns:
        How jobs run, and the numbers of those for which `decide` itself must say, as rounding
        could turn the balance: they are left out.
    """
    lowest = amount[rows]
    chosen = np.zeros(rows.size, dtype=np.int64)
    close = np.zeros(rows.size, dtype=bool)
    rivals = [policy.decide_many(jobs, signal) for policy in (WaitAwhile(), Oracle())]
    for number, rival in enumerate(rivals, start=1):
        paid = _paid(jobs, rival, signal)
        enough = exact.AHEAD * np.abs(lowest)
        close |= np.abs(lowest - paid - enough) < enough / 2
        ahead = paid < lowest - enough
        chosen[ahead] = number
        lowest = np.where(ahead, paid, lowest)
    chosen[close] = -1
    amount[rows] = lowest
    kept = np.ones(amount.size, dtype=bool)
    kept[rows[chosen != 0]] = False
    made = [_chosen(part, kept) for part in parts]
    for number, rival in enumerate(rivals, start=1):
        made.append(renumbered(_chosen(rival, chosen == number), rows))
    return made, rows[close]


def _paid(jobs: Workload, stretches: Stretches, signal: Signal) -> FloatArray:
    """Return what jobs come to: no more of the accounting than this needs."""
    pieces = pieces_of(jobs, stretches)
    shift_s = pieces.origin - signal.start
    begin_s, end_s = pieces.begin_s + shift_s, pieces.end_s + shift_s
    parts = integrate(pieces.power_w, begin_s, end_s, signal, origin=signal.start)
    return np.bincount(pieces.of, weights=parts, minlength=len(jobs)).astype(np.float64)


def _chosen(stretches: Stretches, rows: BoolArray) -> Stretches:
    """Return the stretches of some of the jobs."""
    kept = rows[stretches.job]
    return Stretches(
        job=stretches.job[kept],
        start=stretches.start[kept],
        work_s=stretches.work_s[kept],
        lost_s=stretches.lost_s[kept],
    )


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
    _optima: _Optima | None = None
    _made: dict[int, Plan] = field(default_factory=dict)

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

    def chart(self) -> Any:
        """Return how many jobs save how much, as a chart of Altair."""
        return chart_of("plans", self)

    def _repr_html_(self) -> str:
        first = "\n".join(str(each) for each in self[:_FIRST])
        more = len(self) - _FIRST
        return format_html(f"{self!r}\n\n{first}" + (f"\nand {more:,} more" if more > 0 else ""))

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
        """Return a plan that was made together with others, and prove how good it is."""
        assert self._optima is not None  # noqa: S101 - every other plan was made before
        found, job, target = self._optima, self.jobs[number], deciding_signal(self.signal)
        schedule = Schedule.from_stretches(job, found.stretches.of(number))
        paid = Paid.of(schedule, job, target)
        cost = paid.footprint.amount
        step_s = None if np.isnan(found.step_s[number]) else float(found.step_s[number])
        lossless, own = bool(found.lossless[number]), float(found.own[number])
        gap = exact.resolution_gap(make_problem(job, target), own, step_s, lossless=lossless)
        decision = Decision(
            schedule=schedule,
            lower_bound=cost,
            step_s=step_s,
            resolution_gap=max(cost - own + gap, 0.0) if gap else gap,
            paid=paid,
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

    >>> from lowtide.profile import PowerProfile
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
    _, planner = make_policy(policy)
    amount, baseline = np.empty(len(jobs)), np.empty(len(jobs))
    found, made, rest = None, {}, list(range(len(jobs)))
    with _bar(progress, len(jobs)) as advance:
        if isinstance(planner, exact.Exact) and jobs:

            def some(rows: IntArray) -> Workload:
                return Workload.from_jobs([jobs[row] for row in rows])

            columns = Jobs.of_list(jobs)
            found = plan_together(planner, columns, target, some, workers=workers, advance=advance)
            amount, baseline, rest = found.amount, found.at_once, found.rest.tolist()
        for numbers, plans in _plan_apart(jobs, rest, signal, policy, workers):
            for number, each in zip(numbers, plans, strict=True):
                made[number] = each
                amount[number], baseline[number] = each.footprint.amount, each.baseline.amount
            advance(len(numbers))
    return Plans(
        jobs=jobs, signal=signal, amount=amount, baseline=baseline, _optima=found, _made=made
    )


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
