"""Published policies that stop jobs, and what their wishes come to on the real job.

Deciding and paying are two things. A published policy decides with the model it knows, often
constant power and free stops. Here its wish is carried out on the real job, by one rule for all:

- every stretch of work is preceded by a startup, placed just before it;
- stretches closer together than a stop and a startup are joined: the job runs through the gap;
- a stop between checkpoints of a job that keeps only checkpoints throws work away, and that work
  is done again;
- a job is not stopped where its rules forbid it (`never`, `max_starts`, `min_run_s`), nor where
  it could not be done by its deadline afterwards: when the slack is gone it runs through.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from lowtide.accounting import Stretches
from lowtide.errors import InvalidInput
from lowtide.job import TIME_TOLERANCE_S, Job
from lowtide.policies.columns import by_value, require_windows, rules_of, series_of
from lowtide.policies.policy import Decision
from lowtide.schedule import Schedule, Stretch
from lowtide.signal import FloatArray, Signal
from lowtide.workload import Workload


def run_from(job: Job, start: float) -> Schedule:
    """Carry out the wish to start at one moment and not to stop."""
    return Schedule.uninterrupted(job, min(max(start, job.arrival), job.latest_start))


def carry_out(job: Job, wanted: Sequence[tuple[float, float]]) -> Schedule:
    """Carry out the wish to work in certain stretches of time.

    Args:
        wanted: When the policy would have the job work: begin and end, in order, apart.

    >>> from lowtide.profile import Phase, PowerProfile
    >>> profile = PowerProfile(startup=[Phase(name="load", duration_s=600, power_w=50)],
    ...                        work=[Phase(name="run", duration_s=7200, power_w=200)])
    >>> job = Job(id="a", arrival=0, deadline="+9h", profile=profile, interruptible="anywhere")
    >>> schedule = carry_out(job, [(3600.0, 7200.0), (14400.0, 18000.0)])
    >>> [(span.kind, span.start) for span in schedule.spans]
    [('startup', 3000.0), ('work', 3600.0), ('suspended', 7200.0), ('startup', 13800.0),
     ('work', 14400.0)]
    """
    stretches: list[Stretch] = []
    state = _State(job=job, now=job.arrival, kept_s=0.0, starts=0)
    while state.left_s > TIME_TOLERANCE_S:
        stretch, state = _run_once(state, wanted)
        stretches.append(stretch)
    return Schedule.from_stretches(job, stretches)


@dataclass(frozen=True, slots=True, kw_only=True)
class _State:
    """A stopped job: when it is, what is done and saved, and how often it was started."""

    job: Job
    now: float
    kept_s: float
    starts: int

    @property
    def left_s(self) -> float:
        return self.job.profile.work_s - self.kept_s


def _run_once(state: _State, wanted: Sequence[tuple[float, float]]) -> tuple[Stretch, _State]:
    """Start the job once, run it until it may and wants to stop, and say what then is."""
    job, profile = state.job, state.job.profile
    startup_s = profile.startup_s
    ready = state.now + startup_s
    ahead = [(begin, end) for begin, end in wanted if end > ready + TIME_TOLERANCE_S]
    latest = job.deadline - startup_s - state.left_s
    wish = ahead[0][0] - startup_s if ahead else latest
    start = max(min(wish, latest), state.now)
    begin = start + startup_s

    for (_, end), following in zip(ahead, [*ahead[1:], None], strict=False):
        if following is None or end - begin >= state.left_s - TIME_TOLERANCE_S:
            break
        if following[0] - end <= profile.stop_s + startup_s:
            continue
        after = _after_stop(state, begin, end)
        if after is not None:
            kept_s = after.kept_s - state.kept_s
            lost_s = (end - begin) - kept_s
            if lost_s < TIME_TOLERANCE_S:
                kept_s, lost_s = end - begin, 0.0
            return Stretch(start=start, work_s=kept_s, lost_s=lost_s), after
    done = _State(job=job, now=job.deadline, kept_s=profile.work_s, starts=state.starts + 1)
    return Stretch(start=start, work_s=state.left_s), done


def _after_stop(state: _State, begin: float, end: float) -> _State | None:
    """Return the state after working from `begin` to `end` and stopping, None where forbidden."""
    job, profile = state.job, state.job.profile
    if job.interruptible == "never":
        return None
    if job.max_starts is not None and state.starts + 1 >= job.max_starts:
        return None
    reached_s = state.kept_s + (end - begin)
    kept_s = reached_s
    if job.interruptible == "checkpoints":
        points = (0.0, *profile.checkpoints_s)
        last = points[bisect_right(points, reached_s + TIME_TOLERANCE_S) - 1]
        kept_s = max(min(last, reached_s), state.kept_s)
    after = _State(job=job, now=end + profile.stop_s, kept_s=kept_s, starts=state.starts + 1)
    if min(kept_s - state.kept_s, after.left_s) < job.min_run_s - TIME_TOLERANCE_S:
        return None
    if after.now + profile.startup_s + after.left_s > job.deadline + TIME_TOLERANCE_S:
        return None
    return after


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitAwhile:
    """Work in the cheapest moments between arrival and deadline, ties to the earlier.

    It knows how long the job works and takes its power for constant and its stops for free. What
    that costs on the real job is paid when the decision is carried out.
    """

    stops_jobs: ClassVar[bool] = True

    def decide(self, job: Job, signal: Signal) -> Decision:
        """Decide for one job."""
        wanted = cheapest_moments(
            signal, job.arrival + job.profile.startup_s, job.deadline, job.profile.work_s
        )
        return Decision(schedule=carry_out(job, wanted))

    def decide_many(self, jobs: Workload, signal: Signal) -> Stretches:
        """Decide for many jobs, as for each."""
        from lowtide.policies.published_kernels import work_in_cheapest

        require_windows(jobs, signal)
        order, rank = by_value(signal)
        job, start, work_s, lost_s = work_in_cheapest(
            rules_of(jobs), series_of(signal), order, rank
        )
        return Stretches(job=job, start=start, work_s=work_s, lost_s=lost_s)


def cheapest_moments(
    signal: Signal, begin: float, end: float, length_s: float
) -> list[tuple[float, float]]:
    """Return the stretches that make up the cheapest `length_s` seconds of a window.

    Args:
        length_s: How many seconds are needed.

    >>> curve = Signal.from_values([3, 1, 2, 1], start=0, step_s=10)
    >>> cheapest_moments(curve, 0.0, 40.0, 25.0)
    [(10.0, 25.0), (30.0, 40.0)]
    """
    window = signal.window(begin, end)
    edges = np.clip(window.edges, begin, end)
    size_s = np.diff(edges)
    order = np.argsort(window.values, kind="stable")
    before_s = np.concatenate(([0.0], np.cumsum(size_s[order])[:-1]))
    # Of the last step that is needed only the first part is taken.
    taken_s: FloatArray = np.empty_like(size_s)
    taken_s[order] = np.clip(length_s - before_s, 0.0, size_s[order])
    # What rounding leaves of a step, or of a gap, is none: nobody stops a job for a microsecond.
    taken_s[taken_s <= TIME_TOLERANCE_S] = 0.0
    full = taken_s >= size_s - TIME_TOLERANCE_S
    taken_s[full] = size_s[full]
    stretches: list[tuple[float, float]] = []
    for start, seconds in zip(edges[:-1].tolist(), taken_s.tolist(), strict=True):
        if seconds <= 0:
            continue
        if stretches and stretches[-1][1] >= start - TIME_TOLERANCE_S:
            stretches[-1] = (stretches[-1][0], start + seconds)
        else:
            stretches.append((start, start + seconds))
    return stretches


@dataclass(frozen=True, slots=True, kw_only=True)
class Threshold:
    """Work while the signal is below a quantile of what lies ahead, or once the slack is gone.

    The quantile is taken once, at arrival. Like `wait_awhile` it takes power for constant and
    stops for free, and is carried out on the real job; one that may never be stopped begins to
    work at the first moment below the quantile and runs through.

    Attributes:
        quantile: The share of the time ahead, from 0 to 1.
        horizon_s: How far ahead the signal is looked at, at most up to its end.
    """

    stops_jobs: ClassVar[bool] = True
    quantile: float = 0.3
    horizon_s: float = 86400.0

    def __post_init__(self) -> None:
        if not 0 <= self.quantile <= 1:
            raise InvalidInput(f"a quantile is from 0 to 1, not {self.quantile}")
        if not (math.isfinite(self.horizon_s) and self.horizon_s > 0):
            raise InvalidInput(
                f"a threshold is taken from longer than 0 s ahead, not {self.horizon_s}"
            )

    def decide(self, job: Job, signal: Signal) -> Decision:
        """Decide for one job."""
        from lowtide.policies.dtpr import taken

        end = min(job.arrival + self.horizon_s, signal.end)
        limit = quantile_between(signal, job.arrival, end, self.quantile)
        wanted = taken(job, signal, lambda slot: slot.price < limit)
        return Decision(schedule=carry_out(job, wanted), step_s=signal.step_s)

    def decide_many(self, jobs: Workload, signal: Signal) -> Stretches:
        """Decide for many jobs, as for each."""
        from lowtide.policies.published_kernels import work_below

        require_windows(jobs, signal)
        order, rank = by_value(signal)
        job, start, work_s, lost_s = work_below(
            rules_of(jobs),
            series_of(signal),
            order,
            rank,
            float(self.horizon_s),
            float(self.quantile),
        )
        return Stretches(job=job, start=start, work_s=work_s, lost_s=lost_s)

    def looks_until(self, job: Job) -> float:
        """Return until when the signal is looked at, as far as there is any."""
        return max(job.arrival + self.horizon_s, job.deadline)


def quantile_between(signal: Signal, begin: float, end: float, share: float) -> float:
    """Return the lowest value that a signal is at or below for more than a share of the time.

    So it is below that value for no more than the share.

    Args:
        share: From 0 to 1; for 1 it is the highest value.

    >>> curve = Signal.from_values([400, 100, 200, 300], start=0, step_s="1h")
    >>> [quantile_between(curve, 0.0, 14400.0, share) for share in (0.2, 0.25, 0.3, 1.0)]
    [100.0, 200.0, 200.0, 400.0]
    """
    window = signal.window(begin, end)
    size_s = np.diff(np.clip(window.edges, begin, end))
    order = np.argsort(window.values, kind="stable")
    upto_s = np.cumsum(size_s[order])
    above = int(np.searchsorted(upto_s, share * upto_s[-1] + TIME_TOLERANCE_S, side="right"))
    return float(window.values[order[min(above, order.size - 1)]])
