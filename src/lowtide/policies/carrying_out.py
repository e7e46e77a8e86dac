"""From what a policy wants to what the real job does.

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

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

from lowtide.job import TIME_TOLERANCE_S, Job
from lowtide.schedule import Schedule, Stretch


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
