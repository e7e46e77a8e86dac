"""A scheduler that is none: jobs that wait, run, save and come back, and all that goes wrong there.

Jobs do not share machines here: how long each waits in the queue is drawn. What is simulated is
what a driver can rely on: begins that are kept, tags that survive, requests that get lost, answers
that do not come, nodes that fail, programs that do not hear, users who change their minds.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from lowtide.acting.backend import OVER, PENDING, RUNNING, Look, Seen
from lowtide.acting.promise import WARNING_S, Loops
from lowtide.acting.tag import decode, encode
from lowtide.errors import Refused, Unreachable
from lowtide.schedule import Stretch

# What a controller that is killed forgets of what it has said yes to.
_FORGETS_S = 5.0
_NEVER = math.inf


@dataclass(frozen=True, slots=True, kw_only=True)
class Faults:
    """What goes wrong, and how often.

    Attributes:
        lost: The share of requests that are acknowledged and never done.
        halved: The share of moves of which the comment is written and the begin is not.
        unsaved: The share of stops after which the begin is not written: Slurm's own counts.
        fails_every_s: Mean time between failures of a running job's node.
        outages: When the controller does not answer, from when to when.
    """

    lost: float = 0.0
    halved: float = 0.0
    unsaved: float = 0.0
    fails_every_s: float = _NEVER
    outages: Sequence[tuple[float, float]] = ()


@dataclass(slots=True, kw_only=True)
class SimulatedJob:
    """A job as it is, whatever is seen of it.

    Attributes:
        work_s: How much work there is.
        startup_s: What each start takes before.
        stop_s: What saving takes.
        saves: Whether it saves when it is asked to.
        deaf: Whether it does not hear that it is.
        saved_s: Work that is saved.
        runs: Its starts with what work each did and lost.
        ended: When it was over; None while it is not.
        outcome: `completed`, `timeout` or `cancelled`.
        failures: How often its node failed.
        longest_wait_s: The longest that the queue has kept it.
    """

    seen: Seen
    work_s: float
    startup_s: float = 0.0
    stop_s: float = 0.0
    saves: bool = False
    deaf: bool = False
    saved_s: float = 0.0
    runs: list[Stretch] = field(default_factory=list)
    ended: float | None = None
    outcome: str = ""
    failures: int = 0
    longest_wait_s: float = 0.0
    _wait_s: float = 0.0
    _fails_at: float = _NEVER
    _saving_at: float = _NEVER

    def copy(self) -> SimulatedJob:
        """Return the job as it is now."""
        return replace(self, runs=list(self.runs))


@dataclass(slots=True, kw_only=True)
class SimulatedBackend:
    """A backend on which time passes when it is told to.

    Attributes:
        clock: What time it is.
        seed: Of all that is drawn.
        wait_s: Draws how long a job waits in the queue from its begin on.
        faults: What goes wrong.
        loops: What requeuing takes.
        powers: What it can do besides moving begins.
        can_crash: Whether to keep what a crash would need.
        jobs: All jobs, by their numbers.
        stale: What every look shows, whatever is true; None for the truth.
    """

    clock: float = 0.0
    seed: int = 0
    wait_s: Callable[[random.Random], float] = lambda _: 0.0
    faults: Faults = field(default_factory=Faults)
    loops: Loops = field(default_factory=Loops)
    powers: frozenset[str] = frozenset(("stop",))
    can_crash: bool = False
    jobs: dict[str, SimulatedJob] = field(default_factory=dict, init=False)
    stale: Look | None = field(default=None, init=False)
    _random: random.Random = field(init=False)
    _kept: list[tuple[float, dict[str, SimulatedJob], int]] = field(
        default_factory=list, init=False
    )
    _next: int = field(default=1, init=False)
    _active: dict[str, SimulatedJob] = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        self._random = random.Random(self.seed)

    def now(self) -> float:
        """Return what time it is."""
        return self.clock

    def can(self) -> frozenset[str]:
        """Return what it can do besides moving begins."""
        return self.powers

    def look(self) -> Look:
        """Return all jobs that carry a tag; where it is told to lie, those of an earlier look."""
        self._reach()
        if self.stale is not None:
            return self.stale
        shown = [job.seen for job in self._active.values() if decode(job.seen.comment)[0]]
        return Look(jobs=shown, now=self.clock)

    def submit(self, job: SimulatedJob) -> str:
        """Take a job; return its number."""
        self._keep()
        number = str(self._next)
        self._next += 1
        begin = None if job.seen.begin is None else max(job.seen.begin, self.clock)
        why = "BeginTime" if begin is not None and begin > self.clock else "None"
        job.seen = replace(
            job.seen, id=number, state=PENDING, submitted=self.clock, begin=begin, why=why
        )
        job._wait_s = self.wait_s(self._random)
        self.jobs[number] = self._active[number] = job
        return number

    def begin(self, job: Seen, at: float, comment: str) -> None:
        """Move the begin of a pending job, and write its comment."""
        self._reach()
        self._keep()
        if self._random.random() < self.faults.lost:
            return
        mine = self._mine(job)
        if mine.seen.state != PENDING:
            raise Refused(f"job {job.id} is no longer pending")
        mine.seen = replace(mine.seen, comment=comment)
        if self._random.random() < self.faults.halved:
            return
        ahead = at > self.clock
        why = "BeginTime" if ahead else "None"
        mine.seen = replace(mine.seen, begin=max(at, self.clock), why=why)

    def note(self, job: Seen, comment: str) -> None:
        """Write the comment of a job."""
        self._reach()
        self._keep()
        mine = self._mine(job)
        if self._random.random() >= self.faults.lost:
            mine.seen = replace(mine.seen, comment=comment)

    def stop(self, job: Seen) -> None:
        """Ask a running job to save and leave."""
        self._reach()
        mine = self._mine(job)
        if mine.seen.state != RUNNING:
            raise Refused(f"job {job.id} does not run")
        if mine.saves and not mine.deaf and self._random.random() >= self.faults.lost:
            mine._saving_at = min(mine._saving_at, self.clock + mine.stop_s)

    def boost(self, job: Seen) -> None:
        """Let a pending job start at once where its begin has come."""
        self._reach()
        self._keep()
        mine = self._mine(job)
        mine._wait_s, mine.seen = 0.0, replace(mine.seen, is_next=True)

    def reserve(self, job: Seen, at: float) -> None:
        """Let a pending job start at its begin without a wait."""
        self._reach()
        self._keep()
        mine = self._mine(job)
        mine._wait_s, mine.seen = 0.0, replace(mine.seen, reserved=at)

    def release(self, job: Seen) -> None:
        """Let go of a job that is held."""
        self._reach()
        self._keep()
        mine = self._mine(job)
        mine.seen = replace(mine.seen, held=False, stuck=False, why="None")

    def crash(self) -> None:
        """Kill the controller: it comes back without what it has said yes to of late.

        Numbers of jobs that it has forgotten are given out again. What runs goes on running.
        """
        recent = [each for each in self._kept if each[0] >= self.clock - _FORGETS_S]
        if not recent:
            return
        _, before, self._next = recent[0]
        for number, now in list(self._active.items()):
            then = before.get(number)
            if then is None:
                del self.jobs[number], self._active[number]
            elif now.seen.state == PENDING == then.seen.state:
                self.jobs[number] = self._active[number] = then
        self._kept.clear()

    def advance(self, until: float) -> None:
        """Let time pass."""
        for number, job in list(self._active.items()):
            at = self.clock
            while job.ended is None and (step := self._step(job, at, until)) is not None:
                at = step
            if job.ended is not None:
                del self._active[number]
        self.clock = max(until, self.clock)

    def change(self, number: str, **changes: object) -> None:
        """Let a user change something of a pending job by hand: its begin, a hold, its comment."""
        self._keep()
        job = self.jobs[number]
        job.seen = replace(job.seen, **changes)  # type: ignore[arg-type]

    def cancel(self, number: str) -> None:
        """Let a user cancel a job."""
        self._keep()
        self._end(self.jobs[number], self.clock, "cancelled")
        self._active.pop(number, None)

    def _step(self, job: SimulatedJob, at: float, until: float) -> float | None:
        """Let a job go on to what happens next; return when that was, None if not until then."""
        if job.seen.state == PENDING:
            start = self._starts_at(job, at)
            if start > until:
                return None
            seen = replace(job.seen, state=RUNNING, started=start, why="None")
            job.longest_wait_s = max(job.longest_wait_s, job._wait_s)
            job.seen = seen
            job._fails_at = start + _drawn(self._random, self.faults.fails_every_s)
            job._saving_at = _NEVER
            if job.saves and seen.limit_s is not None:
                job._saving_at = start + seen.limit_s - WARNING_S
            return start
        started = job.seen.started or at
        done = started + job.startup_s + job.work_s - job.saved_s
        killed = _NEVER if job.seen.limit_s is None else started + job.seen.limit_s
        happens = min(done, job._fails_at, job._saving_at, killed)
        if happens > until:
            return None
        worked_s = max(happens - started - job.startup_s, 0.0)
        if happens == done:
            job.runs.append(Stretch(start=started, work_s=job.work_s - job.saved_s))
            self._end(job, happens, "completed")
        elif happens == job._fails_at:
            job.failures += 1
            job.runs.append(Stretch(start=started, work_s=0.0, lost_s=worked_s))
            self._requeue(job, happens, happens + self.loops.requeue_s)
        elif happens == job._saving_at:
            # What it does while it saves is no work.
            saved_s = max(worked_s - job.stop_s, 0.0)
            job.runs.append(Stretch(start=started, work_s=saved_s))
            job.saved_s += saved_s
            self._save(job, happens)
        else:
            job.runs.append(Stretch(start=started, work_s=0.0, lost_s=worked_s))
            self._end(job, happens, "timeout")
        return happens

    def _save(self, job: SimulatedJob, at: float) -> None:
        """Requeue a job that has saved, as the wrapper around it does."""
        tag, text = decode(job.seen.comment)
        soon = at + self.loops.requeue_s
        if tag is None or self._random.random() < self.faults.unsaved:
            self._requeue(job, at, soon)
            return
        comment = encode(replace(tag, progress_s=float(math.floor(job.saved_s))), text)
        job.seen = replace(job.seen, comment=comment)
        ahead = tag.begin is not None and tag.begin > at
        self._requeue(job, at, tag.begin if ahead and tag.begin is not None else soon)

    def _requeue(self, job: SimulatedJob, at: float, begin: float) -> None:
        job.seen = replace(
            job.seen,
            state=PENDING,
            submitted=at,
            begin=begin,
            started=None,
            restarts=job.seen.restarts + 1,
            why="BeginTime",
        )
        job._wait_s = self.wait_s(self._random)

    def _end(self, job: SimulatedJob, at: float, outcome: str) -> None:
        job.seen = replace(job.seen, state=OVER)
        job.ended, job.outcome = at, outcome

    def _starts_at(self, job: SimulatedJob, at: float) -> float:
        if job.seen.held:
            return _NEVER
        ready = max(job.seen.begin or 0.0, job.seen.submitted or 0.0)
        start = max(ready + job._wait_s, at)
        for begin, end in self.faults.outages:
            if begin <= start < end:
                start = end
        return start

    def _mine(self, job: Seen) -> SimulatedJob:
        mine = self.jobs.get(job.id)
        if mine is None or mine.ended is not None:
            raise Refused(f"there is no job {job.id}")
        return mine

    def _reach(self) -> None:
        if any(begin <= self.clock < end for begin, end in self.faults.outages):
            raise Unreachable("the controller does not answer")

    def _keep(self) -> None:
        """Keep how everything stands, for what a crash forgets."""
        if not self.can_crash:
            return
        self._kept = [each for each in self._kept if each[0] >= self.clock - _FORGETS_S]
        copies = {number: job.copy() for number, job in self._active.items()}
        self._kept.append((self.clock, copies, self._next))


def _drawn(source: random.Random, mean_s: float) -> float:
    return _NEVER if mean_s == _NEVER else source.expovariate(1.0 / mean_s)
