"""What deferring risks in a crowded queue: the study by which the margin W was chosen.

Jobs share the CPUs of one partition under EASY backfill by their limits. Some of them are flexible:
they have a deadline and wait for clean hours, with a margin for the queue by one of several rules.
All others start as early as they can. What is told is how many deadlines are missed, and what
carbon that saved.
"""

from __future__ import annotations

import heapq
import math
import random
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from lowtide.acting.promise import Loops
from lowtide.acting.waits import Wait, WaitModel, class_of
from lowtide.signal import Signal

HOUR_S = 3600.0
_POWER_W = 1000.0
# Backfill looks at so many jobs of the queue.
_LOOKED_AT = 300
# How often begins are decided upon anew, and in what steps clean hours are looked for.
_TURN_S = HOUR_S
_STEP_S = 900.0
RULES = ("at once", "none", "4 h", "7 days", "7 days, estimate", "7 days, boost")


@dataclass(frozen=True, slots=True, kw_only=True)
class LineJob:
    """A job of the study.

    Attributes:
        arrival: When it is submitted, seconds from the beginning.
        length_s: How long it runs.
        limit_s: How long it says it may.
        cpus: How many CPUs it takes.
        flexible: Whether it may wait for clean hours.
    """

    arrival: float
    length_s: float
    limit_s: float
    cpus: int
    flexible: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitStudy:
    """What is studied.

    Attributes:
        cpus: CPUs of the partition.
        slack_s: How much later than at once a flexible job may be done.
        rule: How W is said, one of `RULES`.
        accrues: Whether jobs that wait for their begin grow older in the queue meanwhile.
        loops: What the scheduler's loops take.
    """

    cpus: int
    slack_s: float
    rule: str = "7 days, estimate"
    accrues: bool = False
    loops: Loops = field(default_factory=Loops)


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyOutcome:
    """What became of the flexible jobs.

    Attributes:
        jobs: How many there were.
        missed: How many were done too late.
        promised: How many could be promised to be in time, when they came or later.
        broken: How many of these were done too late.
        change: By what share more was emitted than at once without any queue; below 0 is saved.
        load: Which share of all CPUs was in use until the last job came.
    """

    jobs: int
    missed: int
    promised: int
    broken: int
    change: float
    load: float


def drawn_jobs(
    arrivals: Sequence[float],
    lengths_s: Sequence[float],
    cpus: Sequence[int],
    *,
    seed: int = 0,
    share: float = 0.1,
) -> list[LineJob]:
    """Return jobs with limits of one to five times their length, some of them flexible.

    Args:
        share: Of jobs of ten minutes or more on 64 CPUs or less, how many are flexible.
    """
    source = random.Random(seed)
    jobs = []
    for arrival, length_s, count in sorted(zip(arrivals, lengths_s, cpus, strict=True)):
        limit_s = max(length_s, 60.0) * source.uniform(1.0, 5.0)
        willing = source.random() < share and length_s >= 600.0 and count <= 64
        jobs.append(
            LineJob(
                arrival=arrival, length_s=length_s, limit_s=limit_s, cpus=count, flexible=willing
            )
        )
    return jobs


def study(jobs: Sequence[LineJob], signal: Signal, settings: WaitStudy) -> StudyOutcome:
    """Let all jobs pass through the queue.

    Args:
        jobs: All jobs, by arrival; none takes more CPUs than there are.
        signal: What a kWh emits, from the beginning until the last job is over.
    """
    return _Line(jobs, signal, settings).run()


class _Line:
    """The queue and the machine behind it."""

    def __init__(self, jobs: Sequence[LineJob], signal: Signal, settings: WaitStudy) -> None:
        self.jobs, self.settings, self.signal = jobs, settings, signal
        self.free = settings.cpus
        # Ends that come, with number; what runs, by number: when its limit ends it, and CPUs.
        self.ends: list[tuple[float, int]] = []
        self.running: dict[int, tuple[float, int]] = {}
        # Who waits: in order of age, the boosted before all others.
        self.queue: list[tuple[float, float, int]] = []
        self.started: dict[int, float] = {}
        self.deferred: dict[int, float] = {}
        self.eligible: dict[int, float] = {}
        self.model = WaitModel()
        self.kinds = [class_of("main", job.cpus, 0) for job in jobs]
        self.waiting_cpu_s = 0.0
        self.promised: set[int] = set()
        self.said: dict[str, tuple[float, float]] = {}
        self.boosted_at = -math.inf

    def run(self) -> StudyOutcome:
        coming = [(job.arrival, number) for number, job in enumerate(self.jobs)]
        heapq.heapify(coming)
        turn = 0.0
        now = 0.0
        while coming or self.ends or self.deferred:
            soonest = [each[0][0] for each in (coming, self.ends) if each]
            if self.deferred:
                soonest += [turn, min(self.deferred.values())]
            now = max(min(soonest), now)
            while self.ends and self.ends[0][0] <= now:
                _, number = heapq.heappop(self.ends)
                self.free += self.running.pop(number)[1]
            while coming and coming[0][0] <= now:
                _, number = heapq.heappop(coming)
                if self.jobs[number].flexible and self.settings.rule != "at once":
                    self.deferred[number] = math.inf
                    self._decide(number, now)
                else:
                    self._enter(number, now)
            if turn <= now and self.deferred:
                self._forget(now)
                for number in list(self.deferred):
                    self._decide(number, now)
            turn = now + _TURN_S if turn <= now else turn
            for number, begin in list(self.deferred.items()):
                if begin <= now:
                    del self.deferred[number]
                    self._enter(number, now)
            if now - self.boosted_at >= self.settings.loops.pass_s:
                self.boosted_at = now
                self._boost(now)
            self._start(now)
        return self._outcome()

    def _enter(self, number: int, now: float) -> None:
        """Let a job stand in line."""
        job = self.jobs[number]
        self.eligible[number] = now
        age = job.arrival if self.settings.accrues else now
        heapq.heappush(self.queue, (0.0, age, number))
        self.waiting_cpu_s += job.cpus * job.limit_s
        kind = self.kinds[number]
        self.model.learn([Wait(kind=kind, eligible=now, id=str(number))])

    def _forget(self, now: float) -> None:
        self.model.settle(now, (str(number) for _, _, number in self.queue))

    def _boost(self, now: float) -> None:
        """Let those go first that have to begin."""
        if not self.settings.rule.endswith("boost"):
            return
        moved = False
        for place, (first, age, number) in enumerate(self.queue):
            job = self.jobs[number]
            if first or not job.flexible:
                continue
            wait_s = self._wait_s(number, now)
            fair = job.arrival + (0.0 if number in self.promised else wait_s)
            if now >= max(self._deadline(job) - job.length_s - wait_s, fair):
                self.queue[place] = (-1.0, age, number)
                moved = True
        if moved:
            heapq.heapify(self.queue)

    def _deadline(self, job: LineJob) -> float:
        return job.arrival + job.length_s + self.settings.slack_s

    def _wait_s(self, number: int, now: float) -> float:
        """Return W by the rule."""
        rule = self.settings.rule
        if rule == "none":
            return 0.0
        if rule == "4 h":
            return 4 * HOUR_S
        kind = self.kinds[number]
        at, wait_s = self.said.get(kind, (-math.inf, 0.0))
        if now - at >= _STEP_S:
            wait_s = self.model.wait_s(kind, now)
            self.said[kind] = now, wait_s
        return max(wait_s, self._estimate_s(now)) if "estimate" in rule else wait_s

    def _estimate_s(self, now: float) -> float:
        """Return what Slurm says of a job that is submitted now: pessimistic, blind to arrivals."""
        if not self.queue and self.free > 0:
            return 0.0
        held = sum(max(end - now, 0.0) * cpus for end, cpus in self.running.values())
        return (held + self.waiting_cpu_s) / self.settings.cpus

    def _decide(self, number: int, now: float) -> None:
        """Say when a flexible job begins: at the cleanest moment, no later than is safe."""
        job = self.jobs[number]
        margin_s = 0.0 if self.settings.rule == "none" else self.settings.loops.total_s
        latest = self._deadline(job) - job.length_s - self._wait_s(number, now) - margin_s
        if latest <= now:
            self.deferred[number] = now
            return
        self.promised.add(number)
        # The last moment is one of them, as it is for the driver.
        starts = np.append(np.arange(now, latest, _STEP_S), latest)
        amounts = self.signal.integral(
            self.signal.start + starts, self.signal.start + starts + job.length_s
        )
        begin, pass_s = float(starts[int(np.argmin(amounts))]), self.settings.loops.pass_s
        # A begin is met when the scheduler looks at its queue again.
        self.deferred[number] = math.ceil(begin / pass_s) * pass_s if begin > now else now

    def _start(self, now: float) -> None:
        """Start whoever fits: in order, then whoever does not delay the first."""
        queue = self.queue
        while queue and self.jobs[queue[0][2]].cpus <= self.free:
            self._begin(heapq.heappop(queue)[2], now)
        if not queue or self.free <= 0:
            return
        head = self.jobs[queue[0][2]]
        shadow, extra = self._reserved(head.cpus, now)
        taken = set()
        for entry in heapq.nsmallest(_LOOKED_AT, queue)[1:]:
            job = self.jobs[entry[2]]
            if job.cpus > self.free:
                continue
            ends_before = now + job.limit_s <= shadow
            if ends_before or job.cpus <= extra:
                extra -= 0 if ends_before else job.cpus
                taken.add(entry[2])
                self._begin(entry[2], now)
                if self.free <= 0:
                    break
        if taken:
            self.queue = [entry for entry in queue if entry[2] not in taken]
            heapq.heapify(self.queue)

    def _reserved(self, cpus: int, now: float) -> tuple[float, int]:
        """Return when the first of the queue can start by the limits, and what is free then."""
        free = self.free
        for end, held in sorted(self.running.values()):
            free += held
            if free >= cpus:
                return max(end, now), free - cpus
        return math.inf, 0

    def _begin(self, number: int, now: float) -> None:
        job = self.jobs[number]
        self.free -= job.cpus
        self.waiting_cpu_s -= job.cpus * job.limit_s
        self.running[number] = (now + job.limit_s, job.cpus)
        self.started[number] = now
        heapq.heappush(self.ends, (now + job.length_s, number))
        wait = Wait(
            kind=self.kinds[number], eligible=self.eligible[number], started=now, id=str(number)
        )
        self.model.learn([wait])

    def _outcome(self) -> StudyOutcome:
        willing = [number for number, job in enumerate(self.jobs) if job.flexible]
        missed = {
            number
            for number in willing
            if self.started[number] + self.jobs[number].length_s
            > self._deadline(self.jobs[number]) + 1.0
        }
        lengths = np.array([self.jobs[number].length_s for number in willing])

        def emitted(starts: Sequence[float]) -> float:
            begin = self.signal.start + np.asarray(starts)
            return float(self.signal.integral(begin, begin + lengths).sum())

        came = emitted([self.started[number] for number in willing])
        once = emitted([self.jobs[number].arrival for number in willing])
        last = max(job.arrival for job in self.jobs)
        used = sum(
            max(min(start + self.jobs[number].length_s, last) - start, 0.0) * self.jobs[number].cpus
            for number, start in self.started.items()
        )
        return StudyOutcome(
            jobs=len(willing),
            missed=len(missed),
            promised=len(self.promised),
            broken=len(missed & self.promised),
            change=came / once - 1.0,
            load=used / (last * self.settings.cpus),
        )
