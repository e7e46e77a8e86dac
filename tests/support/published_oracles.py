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
from lowtide.policies.starts import TIE, CarbonTime, LowestSlot, LowestWindow, Oracle
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
        delays_s, costs = cost_by_delay(job, signal)
        if policy.step_s is not None:
            delays_s, costs = on_steps(delays_s, costs, policy.step_s)
        return run_from(job, job.arrival + first_lowest(delays_s, costs, np.inf))
    if isinstance(policy, LowestWindow | CarbonTime):
        delays_s, costs, length_s = expected_costs(job, signal, policy.expected_s, policy.step_s)
        if isinstance(policy, LowestWindow):
            return run_from(job, job.arrival + first_lowest(delays_s, costs, np.inf))
        saved = (costs[0] - costs) / (delays_s + length_s)
        # A saving that is rounding alone is none, and of equal ones the first is taken.
        tie = TIE * float(np.abs(costs).max()) / length_s
        best = int(np.argmax(saved >= saved.max() - tie))
        return run_from(job, job.arrival + float(delays_s[best]))
    if isinstance(policy, WaitAwhile):
        begin = job.arrival + job.profile.startup_s
        return carry_out(job, cheapest_moments(signal, begin, job.deadline, job.profile.work_s))
    if isinstance(policy, Threshold):
        end = min(job.arrival + policy.horizon_s, signal.end)
        limit = quantile_between(signal, job.arrival, end, policy.quantile)
        return carry_out(job, taken(job, signal, lambda slot: slot.price < limit))
    return None


def cost_by_delay(job: Job, signal: Signal) -> tuple[FloatArray, FloatArray]:
    """Return the cost of an uninterrupted run as a piecewise-linear function of its delay.

    Args:
        signal: What a kWh emits or costs; it covers the job's window.

    Returns:
        The delays at which the function bends, in seconds after arrival, from 0 to the slack; and
        its values there, in grams (or money) times joules per kWh.
    """
    offsets_s, falls_w = _power_falls(job.profile)
    window = signal.window(job.arrival, job.deadline)
    edges_s = window.edges[1:-1] - job.arrival
    steps = np.diff(window.values)
    slack_s = max(job.slack_s, 0.0)

    # The slope of Σ fall_k · C(delay + offset_k) is Σ fall_k · c(delay + offset_k): it changes
    # where a step of the signal meets a change of power, by the product of the two.
    first = np.searchsorted(edges_s, offsets_s, side="right")
    last = np.searchsorted(edges_s, offsets_s + slack_s, side="left")
    pairs = [
        (edges_s[i:j] - offset_s, fall_w * steps[i:j])
        for i, j, offset_s, fall_w in zip(first, last, offsets_s, falls_w, strict=True)
    ]
    meet_s = np.concatenate([pair[0] for pair in pairs])
    bend = np.concatenate([pair[1] for pair in pairs])
    inside = (meet_s > 0.0) & (meet_s < slack_s) & (bend != 0.0)
    order = np.argsort(meet_s[inside], kind="stable")
    delays_s = np.concatenate(([0.0], meet_s[inside][order], [slack_s]))

    at_once = window.values[first]
    # Summed, not multiplied as vectors: fused products would leave a slope where there is none.
    slope = float(np.sum(falls_w * at_once))
    slopes = slope + np.concatenate(([0.0], np.cumsum(bend[inside][order])))
    now = signal.integral(np.zeros(offsets_s.size), offsets_s, origin=job.arrival)
    return delays_s, falls_w @ now + np.concatenate(([0.0], np.cumsum(slopes * np.diff(delays_s))))


def on_steps(
    delays_s: FloatArray, costs: FloatArray, step_s: float
) -> tuple[FloatArray, FloatArray]:
    """Return multiples of a step among the delays, and what a run costs there.

    Args:
        delays_s: Where the cost bends, from 0 to the longest delay.
    """
    grid_s = np.arange(0.0, delays_s[-1] + 1e-9 * step_s, step_s)
    return grid_s, np.interp(grid_s, delays_s, costs)


def first_lowest(delays_s: FloatArray, costs: FloatArray, longest_s: float) -> float:
    """Return the first delay, no longer than allowed, at which a run costs least."""
    within = delays_s <= longest_s
    if not within.all():
        costs = np.append(costs[within], np.interp(longest_s, delays_s, costs))
        delays_s = np.append(delays_s[within], longest_s)
    tie = TIE * float(np.abs(costs).max())
    return float(delays_s[np.flatnonzero(costs <= costs.min() + tie)[0]])


def _power_falls(profile: PowerProfile) -> tuple[FloatArray, FloatArray]:
    """Return when a run's power changes, seconds after its start, and by how much it falls."""
    phases = (*profile.startup, *profile.work)
    power_w = np.array([0.0, *(phase.power_w for phase in phases), 0.0])
    offsets_s = np.concatenate(([0.0], np.cumsum([phase.duration_s for phase in phases])))
    falls_w = -np.diff(power_w)
    # The start stays even if nothing changes there, so that there is always one.
    kept = (falls_w != 0.0) | (offsets_s == 0.0)
    return offsets_s[kept], falls_w[kept]


def expected_costs(
    job: Job, signal: Signal, expected_s: float | None, step_s: float | None
) -> tuple[FloatArray, FloatArray, float]:
    """Return what a run of the expected length costs, by its delay.

    Args:
        expected_s: How long it is expected to run, None for as long as it does.
        step_s: Step between delays, None for every delay at which the cost bends.

    Returns:
        The delays; the cost at each, for 1 W; and the length that was reckoned with.
    """
    run_s = job.profile.run_s
    covered_s = max(signal.end - job.latest_start, run_s)
    length_s = min(expected_s or run_s, covered_s)
    level = Job(
        id=job.id,
        arrival=job.arrival,
        deadline=job.latest_start + length_s,
        profile=PowerProfile.constant(1.0, length_s),
    )
    delays_s, costs = cost_by_delay(level, signal)
    if step_s is not None:
        delays_s, costs = on_steps(delays_s, costs, step_s)
    return delays_s, costs, length_s


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
