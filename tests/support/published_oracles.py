"""Published policies as one would write them down for one job, in NumPy: slow, and plain.

The kernels are the definition; these say the same in other words, and tests hold the two equal.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from lowtide.job import TIME_TOLERANCE_S, Job
from lowtide.policies.dtpr import taken
from lowtide.policies.starts import (
    TIE,
    TIE_INSTANT,
    CarbonTime,
    LowestSlot,
    LowestWindow,
    Oracle,
)
from lowtide.policies.stopping import Threshold, WaitAwhile, run_from
from lowtide.profile import Phase, PowerProfile
from lowtide.schedule import Schedule, Stretch
from lowtide.signal import FloatArray, Signal


def decided(policy: object, job: Job, signal: Signal) -> Schedule | None:
    """Return what a published policy decides for a job, None for a policy that is none of them."""
    if isinstance(policy, LowestSlot):
        edges = signal.edges[:-1]
        later = edges[(edges > job.arrival) & (edges <= job.latest_start)]
        candidates = np.concatenate(([job.arrival], later))
        return run_from(job, float(candidates[np.argmin(signal.at(candidates))]))
    if isinstance(policy, Oracle):
        delays_s = delays_to_try(job, signal, policy.step_s)
        phases = phases_of(job)
        costs = [run_cost(phases, job, each, signal) for each in delays_s]
        tie = no_saving(phases, costs, signal.window(job.arrival, job.deadline))
        return run_from(job, job.arrival + first_best(delays_s, costs, tie))
    if isinstance(policy, LowestWindow | CarbonTime):
        # Expected is a run at 1 W. For every start alike it is cut to what the signal covers.
        run_s = job.profile.run_s
        length_s = min(policy.expected_s or run_s, max(signal.end - job.latest_start, run_s))
        level = [(1.0, length_s)]
        delays_s = delays_to_try(job, signal, policy.step_s, level)
        costs = [run_cost(level, job, each, signal) for each in delays_s]
        end = min(job.latest_start + length_s, signal.end)
        tie = no_saving(level, costs, signal.window(job.arrival, end))
        if isinstance(policy, LowestWindow):
            return run_from(job, job.arrival + first_best(delays_s, costs, tie))
        # Per second until it would be done, as published: what is saved, less the more it waits.
        missed = [
            (cost - costs[0]) / (each + length_s)
            for each, cost in zip(delays_s, costs, strict=True)
        ]
        return run_from(job, job.arrival + first_best(delays_s, missed, tie / length_s))
    if isinstance(policy, WaitAwhile):
        begin = job.arrival + job.profile.startup_s
        return carry_out(job, cheapest_moments(signal, begin, job.deadline, job.profile.work_s))
    if isinstance(policy, Threshold):
        end = min(job.arrival + policy.horizon_s, signal.end)
        limit = quantile_between(signal, job.arrival, end, policy.quantile)
        return carry_out(job, taken(job, signal, lambda slot: slot.price < limit))
    return None


def phases_of(job: Job) -> list[tuple[float, float]]:
    """Return what an uninterrupted run draws, one after another: watts and seconds."""
    phases = (*job.profile.startup, *job.profile.work)
    return [(phase.power_w, phase.duration_s) for phase in phases]


def run_cost(phases: list[tuple[float, float]], job: Job, delay_s: float, signal: Signal) -> float:
    """Return what a run comes to that starts so late, in grams times joules per kWh."""
    total, now_s, most_s = 0.0, delay_s, signal.end - job.arrival
    for power_w, duration_s in phases:
        until_s = now_s + duration_s
        within_s = [min(now_s, most_s), min(until_s, most_s)]
        total += power_w * float(signal.integral(*within_s, origin=job.arrival))
        # Instants are told to a part of a microsecond: as late as can be is a little too late.
        total += power_w * (until_s - now_s - (within_s[1] - within_s[0])) * signal.values[-1]
        now_s = until_s
    return total


def delays_to_try(
    job: Job,
    signal: Signal,
    step_s: float | None,
    phases: list[tuple[float, float]] | None = None,
) -> list[float]:
    """Return delays among which the cheapest is: no delay, the longest, and all that count.

    With a step its multiples count. Else the cost is straight between delays at which an edge of
    a phase meets one of the signal, so that it is lowest at one of these.
    """
    slack_s = max(job.slack_s, 0.0)
    if step_s is not None:
        count = int((slack_s + 1e-9 * step_s) / step_s)
        return [each * step_s for each in range(count + 1)]
    offsets_s = [0.0]
    for _, duration_s in phases or phases_of(job):
        offsets_s.append(offsets_s[-1] + duration_s)
    meet_s = {edge - job.arrival - each for edge in signal.edges.tolist() for each in offsets_s}
    return sorted({0.0, slack_s, *(each for each in meet_s if 0.0 < each < slack_s)})


def no_saving(phases: list[tuple[float, float]], costs: list[float], signal: Signal) -> float:
    """Return by how much costs may differ for rounding alone, that of sums and that of instants.

    Args:
        signal: The steps that the job's window touches.
    """
    peak_w = max(power_w for power_w, _ in phases)
    told_s = TIE_INSTANT * max(abs(signal.start), abs(signal.end))
    return TIE * max(map(abs, costs)) + told_s * peak_w * float(np.abs(signal.values).max())


def first_best(delays_s: list[float], costs: list[float], tie: float) -> float:
    """Return the first delay at which a run costs least, up to what is no saving."""
    least = min(costs)
    return next(each for each, cost in zip(delays_s, costs, strict=True) if cost <= least + tie)


def cheapest_moments(
    signal: Signal, begin: float, end: float, length_s: float
) -> list[tuple[float, float]]:
    """Return the stretches that make up the cheapest `length_s` seconds of a window.

    Args:
        length_s: How many seconds are needed.
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


def quantile_between(signal: Signal, begin: float, end: float, share: float) -> float:
    """Return the lowest value that a signal is at or below for more than a share of the time.

    So it is below that value for no more than the share.

    Args:
        share: From 0 to 1; for 1 it is the highest value.
    """
    window = signal.window(begin, end)
    size_s = np.diff(np.clip(window.edges, begin, end))
    order = np.argsort(window.values, kind="stable")
    upto_s = np.cumsum(size_s[order])
    above = int(np.searchsorted(upto_s, share * upto_s[-1] + TIME_TOLERANCE_S, side="right"))
    return float(window.values[order[min(above, order.size - 1)]])


def carry_out(job: Job, wanted: Sequence[tuple[float, float]]) -> Schedule:
    """Carry out the wish to work in certain stretches of time.

    Args:
        wanted: When the policy would have the job work: begin and end, in order, apart.
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
    # The first start runs the startup; those after it what they need to go on.
    restart_s = sum(phase.duration_s for phase in again_phases(profile))
    startup_s = restart_s if state.starts else profile.startup_s
    ready = state.now + startup_s
    ahead = [(begin, end) for begin, end in wanted if end > ready + TIME_TOLERANCE_S]
    latest = job.deadline - startup_s - state.left_s
    wish = ahead[0][0] - startup_s if ahead else latest
    start = max(min(wish, latest), state.now)
    begin = start + startup_s

    for (_, end), following in zip(ahead, [*ahead[1:], None], strict=False):
        if following is None or end - begin >= state.left_s - TIME_TOLERANCE_S:
            break
        if following[0] - end <= profile.stop_s + restart_s:
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
    restart_s = sum(phase.duration_s for phase in again_phases(profile))
    if after.now + restart_s + after.left_s > job.deadline + TIME_TOLERANCE_S:
        return None
    return after


def again_phases(profile: PowerProfile) -> tuple[Phase, ...]:
    """Return the phases of a start after the first."""
    return profile.startup if profile.restart is None else profile.restart
