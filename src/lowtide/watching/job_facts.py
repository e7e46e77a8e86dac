"""Asking Slurm about its jobs beside the ticks, so that none of them waits for it.

Nothing that Slurm tells is lost on the way: an outage of Slurm is caught up with when it is over,
from the last answer on, and what a store does not take is kept for it. Jobs that wait may be many,
and every node of a cluster asks for them, so that is done at a pace which costs Slurm little.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace

from lowtide.monitor.facts import ELSEWHERE, UNKNOWN, JobFacts
from lowtide.monitor.snapshot import Unit
from lowtide.slurm.client import MOST_IDS, SlurmClient

# How far back jobs are asked about that ended before this began.
_BACK_S, _FARTHEST_S = 3600.0, 30 * 86400.0
# How many waiting jobs are kept, in the order of the queue.
MOST_WAITING = 5000
# By how much what is seen may begin before what is told.
_EARLY_S = 2.0
# How long the start of a job that is not seen any more may still be explained.
_REMEMBERED_S = 600.0
# How long the last question may take.
_LAST_S = 3.0

_Key = tuple[str, float | None]


@dataclass(slots=True)
class _Start:
    """A start of a job that was seen.

    Attributes:
        unit: The job.
        seen: When it was last seen, in seconds of a clock that only counts.
        told: When Slurm says that it began; None before it said so.
        ended: Whether it was once not seen any more.
    """

    unit: Unit
    seen: float
    told: float | None = None
    ended: bool = False


@dataclass(slots=True, kw_only=True)
class FactsSource:
    """Asks in a thread of its own, and has the answers ready.

    Attributes:
        client: Whom it asks.
        every_s: How often.
        soonest_s: How soon again when jobs begin or end.
        waiting_every_s: How often it asks for jobs that wait, at most.
        waiting_share: The share of the time that Slurm may spend on answering that, at most.
        since: From when on it asks for jobs that have ended, epoch seconds; by default an hour ago.
        waiting: Numbers of jobs that were last known to wait, and when they were submitted.
        say: Told what goes wrong, each thing once.
    """

    client: SlurmClient
    every_s: float = 30.0
    soonest_s: float = 2.0
    waiting_every_s: float = 60.0
    waiting_share: float = 0.005
    since: float | None = None
    waiting: Iterable[tuple[str, float | None]] = ()
    say: Callable[[str], None] = print
    _found: dict[_Key, JobFacts] = field(default_factory=dict, init=False)
    _waiting: dict[str, JobFacts] = field(default_factory=dict, init=False)
    _waiting_due: float = field(default=-math.inf, init=False)
    _names: set[str] = field(default_factory=set, init=False)
    _starts: dict[str, _Start] = field(default_factory=dict, init=False)
    _said: set[str] = field(default_factory=set, init=False)
    _lock: threading.Lock = field(default_factory=threading.Lock, init=False)
    _wake: threading.Event = field(default_factory=threading.Event, init=False)
    _stop: threading.Event = field(default_factory=threading.Event, init=False)
    _thread: threading.Thread | None = field(default=None, init=False)

    def open(self) -> None:
        """Begin to ask."""
        now = time.time()
        since = now if self.since is None or not math.isfinite(self.since) else self.since
        self.since = max(min(since, now - _BACK_S), now - _FARTHEST_S)
        for job_id, submitted in self.waiting:
            known = JobFacts(source="slurm", job_id=job_id, state="pending", submitted=submitted)
            self._waiting[job_id] = known
        self._thread = threading.Thread(target=self._ask_on, name="slurm facts", daemon=True)
        self._thread.start()

    def see(self, units: Sequence[Unit]) -> None:
        """Take note of what runs: of jobs that begin or end Slurm is asked soon.

        Args:
            units: All that runs now.
        """
        now = time.monotonic()
        running = {unit.key: unit for unit in units if unit.source == "slurm"}
        with self._lock:
            for key, unit in running.items():
                start = self._starts.get(key)
                if start is None:
                    start = self._starts[key] = _Start(unit, now)
                    self._wake.set()
                start.seen = now
            for key in self._starts.keys() - running.keys():
                # Some do nothing for a while and are left out: they ask once for all their ends.
                if not self._starts[key].ended:
                    self._starts[key].ended = True
                    self._wake.set()

    def hand_over(self, put: Callable[[Sequence[JobFacts]], None]) -> None:
        """Give away what was found; what cannot be taken is there the next time again.

        Args:
            put: Takes facts, or raises.
        """
        with self._lock:
            found = dict(self._found)
        if not found:
            return
        put(list(found.values()))
        with self._lock:
            for key, facts in found.items():
                if self._found.get(key) is facts:
                    del self._found[key]

    def close(self) -> None:
        """Ask one last time, if Slurm answers at all, and stop; a late answer is not waited for."""
        self._stop.set()
        self._wake.set()
        if self._thread is not None:
            self._thread.join(timeout=_LAST_S)

    def _ask_on(self) -> None:
        while True:
            # The last question comes after the call to stop: jobs may have ended just now.
            last = self._stop.is_set()
            self._wake.clear()
            if last:
                self._waiting_due = -math.inf
            try:
                self._ask()
            except Exception as error:  # noqa: BLE001 - nothing may end the asking for good
                self._tell([f"what Slurm says is not understood: {type(error).__name__}: {error}"])
            if last:
                return
            self._stop.wait(self.soonest_s)
            self._wake.wait(max(self.every_s - self.soonest_s, 0.0))
            if self._stop.is_set() and self.client.is_resting:
                return

    def _ask(self) -> None:
        answer = self.client.facts(since=self.since)
        self._tell(answer.problems)
        if answer.until is not None:
            self.since = answer.until
        self._keep(answer.facts)
        if answer.is_whole:
            self._explain_starts(answer.facts)
            self._ask_for_waiting(answer.facts)

    def _explain_starts(self, facts: Sequence[JobFacts]) -> None:
        """Say of earlier starts of a requeued job what is known of the later one.

        Where there is accounting, it tells of each start by itself.
        """
        latest = {each.job_id: each for each in facts}
        now = time.monotonic()
        with self._lock:
            starts = list(self._starts.values())
        for start in starts:
            unit, fact = start.unit, latest.get(start.unit.job_id)
            begun = None if fact is None else fact.started
            if begun is not None and begun <= unit.started + _EARLY_S:
                start.told = begun
            elif fact is not None and fact.restarts and not self.client.has_accounting:
                earlier = replace(fact, state="requeued", nodes=(), submitted=None, restarts=None)
                when = unit.started if start.told is None else start.told
                self._keep([replace(earlier, started=when, ended=None, exit_code=None)])
                start.seen = -math.inf
        with self._lock:
            for start in starts:
                if now - start.seen > _REMEMBERED_S:
                    self._starts.pop(start.unit.key, None)

    def _ask_for_waiting(self, facts: Sequence[JobFacts]) -> None:
        if self.client.asks_node is None:
            # All were told already.
            self._follow([each for each in facts if each.state == "pending"], facts)
            return
        # Slurm may know the node by another name than it was asked by.
        self._names |= {each.nodes[0] for each in facts if len(each.nodes) == 1}
        begun = time.monotonic()
        if begun < self._waiting_due:
            return
        answer = self.client.waiting()
        self._tell(answer.problems)
        if answer.is_whole:
            self._follow(answer.facts, facts)
        took_s = time.monotonic() - begun
        self._waiting_due = begun + max(self.waiting_every_s, took_s / self.waiting_share)

    def _follow(self, waiting: Sequence[JobFacts], facts: Sequence[JobFacts]) -> None:
        """Keep which jobs wait, and find out what became of those that do no more."""
        now = {each.job_id: each for each in waiting[:MOST_WAITING]}
        if len(waiting) > MOST_WAITING:
            self._tell([f"more than {MOST_WAITING:,} jobs wait: those that come first are kept"])
        self._keep(each for job_id, each in now.items() if self._waiting.get(job_id) != each)
        begun = {each.job_id for each in facts if self._is_later(each)}
        gone = [job_id for job_id in self._waiting if job_id not in now and job_id not in begun]
        asked = gone[:MOST_IDS]
        # What there is no time for is asked about the next time.
        rest = {job_id: self._waiting[job_id] for job_id in gone[MOST_IDS:]}
        if asked:
            since = min(self._waiting[each].submitted or 0.0 for each in asked)
            answer = self.client.stand(asked, since=max(since, time.time() - _FARTHEST_S))
            self._tell(answer.problems)
            told = self._resolve(asked, answer.facts) if answer.is_whole else asked
            rest |= {job_id: self._waiting[job_id] for job_id in told}
        self._waiting = now | rest

    def _is_later(self, facts: JobFacts) -> bool:
        """Return whether facts tell what became of a waiting job, and not of an earlier start."""
        waited = self._waiting.get(facts.job_id)
        if waited is None or facts.state == "pending":
            return False
        return facts.started is None or facts.started >= (waited.submitted or 0.0) - _EARLY_S

    def _resolve(self, asked: Sequence[str], facts: Sequence[JobFacts]) -> list[str]:
        """Keep what became of jobs; return those that wait after all."""
        here = self._names | {self.client.asks_node}
        # Of several starts the last one counts.
        last = {each.job_id: each for each in sorted(facts, key=lambda each: each.submitted or 0.0)}
        waiting = []
        for job_id in asked:
            stands = last.get(job_id, JobFacts(source="slurm", job_id=job_id, state=UNKNOWN))
            if stands.state == "pending":
                waiting.append(job_id)
            elif stands.nodes and None not in here and here.isdisjoint(stands.nodes):
                # Other nodes have watches of their own.
                self._keep([JobFacts(source="slurm", job_id=job_id, state=ELSEWHERE)])
            else:
                self._keep([stands])
        return waiting

    def _keep(self, facts: Iterable[JobFacts]) -> None:
        with self._lock:
            for each in facts:
                # A later answer replaces an earlier one, and comes after what is older.
                key = each.job_id, each.started
                self._found.pop(key, None)
                self._found[key] = each

    def _tell(self, problems: Sequence[str]) -> None:
        for problem in problems:
            if problem not in self._said:
                self._said.add(problem)
                self.say(problem)
