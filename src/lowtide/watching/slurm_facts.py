"""Asking Slurm about its jobs beside the ticks, so that none of them waits for it.

Nothing that Slurm tells is lost on the way: an outage of Slurm is caught up with when it is over,
from the last answer on, and what a store does not take is kept for it. A cluster has thousands of
nodes, so a node asks little: one question at a time, for its own jobs, when there is news of them.
The accounting is asked only for what the queue has forgotten.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from lowtide.errors import Once
from lowtide.monitor.snapshot import ELSEWHERE, UNKNOWN, JobFacts, Unit
from lowtide.slurm.client import MOST_IDS, SlurmClient
from lowtide.states import NOT_OVER

# How far back jobs are asked about that ended before this began.
_BACK_S, _FARTHEST_S = 3600.0, 30 * 86400.0
# How many waiting jobs are kept, in the order of the queue.
MOST_WAITING = 5000
# By how much what is seen may begin before what is told.
_EARLY_S = 2.0
# How long the start of a job that is not seen any more may still be explained.
_REMEMBERED_S = 600.0
# How long the last questions may take.
_LAST_S = 3.0
# How often Slurm is asked about a start of which it does not tell.
_MOST_ASKED = 8
# What ended while a question was on its way is asked for again.
_OVERLAP_S = 60.0

_Key = tuple[str, float | None]


@dataclass(slots=True)
class _Start:
    """A start of a job that was seen.

    Attributes:
        unit: The job.
        seen: When it was last seen, in seconds of a clock that only counts.
        told: When Slurm says that it began; None before it said so.
        ended: Whether it was once not seen any more.
        asked: How often Slurm was asked while it had not told all of it.
        is_over: Whether Slurm has told how it ended.
    """

    unit: Unit
    seen: float
    told: float | None = None
    ended: bool = False
    asked: int = 0
    is_over: bool = False

    @property
    def is_open(self) -> bool:
        """Whether Slurm is still to tell something of it, and may be hoped to."""
        missing = self.told is None or (self.ended and not self.is_over)
        return missing and self.asked < _MOST_ASKED


@dataclass(slots=True, kw_only=True)
class FactsSource:
    """Asks in a thread of its own, and has the answers ready.

    Attributes:
        client: Whom it asks.
        every_s: How often, where there is no news.
        soonest_s: How soon again when jobs begin or end: no two questions are closer.
        follows_waiting: Whether it asks for jobs that wait, too.
        waiting_every_s: How often it asks for jobs that wait, at most.
        waiting_share: The share of the time that Slurm may spend on answering that, at most.
        since: From when on it asks for jobs that have ended, epoch seconds; by default an hour ago.
        waiting: Numbers of jobs that were last known to wait, and when they were submitted.
        say: Told what goes wrong, each thing once.
        number: Told the numbers of jobs whose groups are named by SLUID.
    """

    client: SlurmClient
    every_s: float = 240.0
    soonest_s: float = 10.0
    follows_waiting: bool = True
    waiting_every_s: float = 60.0
    waiting_share: float = 0.005
    since: float | None = None
    waiting: Iterable[tuple[str, float | None]] = ()
    say: Callable[[str], None] = print
    number: Callable[[Mapping[str, str]], None] = lambda _: None
    _numbers: dict[str, str] = field(default_factory=dict, init=False)
    # Whether the accounting has something to tell that the queue has not; at first, the past.
    _past_due: bool = field(default=True, init=False)
    _found: dict[_Key, JobFacts] = field(default_factory=dict, init=False)
    _waiting: dict[str, JobFacts] = field(default_factory=dict, init=False)
    _waiting_due: float = field(default=-math.inf, init=False)
    _queue_due: float = field(default=-math.inf, init=False)
    _told_queue: bool = field(default=False, init=False)
    _here: list[JobFacts] = field(default_factory=list, init=False)
    _restarts: dict[str, int] = field(default_factory=dict, init=False)
    _names: set[str] = field(default_factory=set, init=False)
    _starts: dict[str, _Start] = field(default_factory=dict, init=False)
    _said: Once = field(default_factory=Once, init=False)
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
            known = self._stands(job_id, "pending")
            self._waiting[job_id] = replace(known, submitted=submitted)
        self._thread = threading.Thread(target=self._ask_on, name="slurm facts", daemon=True)
        self._thread.start()

    def see(self, units: Sequence[Unit]) -> None:
        """Take note of what runs: of jobs that begin or end Slurm is asked soon."""
        now = time.monotonic()
        # Of another cluster's jobs on this machine this Slurm knows nothing.
        mine = ("", self.client.cluster)
        running = {
            unit.key: unit
            for unit in units
            if unit.source == "slurm" and (not mine[1] or unit.cluster in mine)
        }
        for other in sorted({unit.cluster for unit in units} - {*mine}) if mine[1] else ():
            self._tell(
                [
                    f"jobs of the cluster {other} run here, too: Slurm is asked about "
                    f"{mine[1]} alone, so that nobody says how those end and what they are called"
                ]
            )
        self.client.name_nodes(unit.node_name for unit in running.values() if unit.node_name)
        self.client.wants_sluid |= any(unit.sluid for unit in running.values())
        with self._lock:
            for key, unit in running.items():
                start = self._starts.get(key)
                if start is None:
                    start = self._starts[key] = _Start(unit, now)
                    self._hear_news()
                start.seen, start.unit = now, unit
            for key in self._starts.keys() - running.keys():
                # Some do nothing for a while and are left out: they ask once for all their ends.
                if not self._starts[key].ended:
                    self._starts[key].ended = True
                    self._starts[key].asked = 0
                    self._hear_news()

    def _hear_news(self) -> None:
        self._queue_due = -math.inf
        self._wake.set()

    def hand_over(self, put: Callable[[Sequence[JobFacts]], None]) -> None:
        """Give away what was found; what cannot be taken is there the next time again."""
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
                self._waiting_due = self._queue_due = -math.inf
            try:
                self._ask()
                # At the end there is no later: what is open is asked for at once.
                if last and self._told_queue and self._past_due:
                    self._ask_for_past()
                if last and self._told_queue and self._asks_for_waiting():
                    self._ask_for_waiting()
            except Exception as error:  # noqa: BLE001 - nothing may end the asking for good
                self._tell([f"what Slurm says is not understood: {type(error).__name__}: {error}"])
            if last:
                return
            self._stop.wait(self.soonest_s)
            self._wake.wait(max(self._next_s() - self.soonest_s, 0.0))
            if self._stop.is_set() and self.client.is_resting:
                return

    def _next_s(self) -> float:
        """Return after how long to ask again, where nothing wakes it."""
        if self._past_due and self._told_queue:
            return self.soonest_s
        due = [self._queue_due, *([self._waiting_due] if self._asks_for_waiting() else [])]
        return max(min(due) - time.monotonic(), self.soonest_s)

    def _ask(self) -> None:
        """Ask one question: for the queue, for what has left it, or for those that wait."""
        now = time.monotonic()
        if self._past_due and self._told_queue:
            self._ask_for_past()
        elif self._asks_for_waiting() and self._waiting_due <= now < self._queue_due:
            self._ask_for_waiting()
        else:
            self._ask_for_queue()

    def _ask_for_queue(self) -> None:
        begun = time.monotonic()
        with self._lock:
            self._queue_due = begun + self.every_s
        answer = self.client.facts(since=None)
        self._tell(answer.problems)
        begun_here = [each for each in answer.facts if each.state != "pending"]
        # Of a node only what is being requeued is told to wait: all that waits is asked for apart,
        # and followed from then on.
        self._keep(answer.facts if self.client.asks_node is None else begun_here)
        self._told_queue = answer.is_whole
        if not answer.is_whole:
            # What ended meanwhile the queue may have forgotten.
            self._past_due, self._queue_due = self.client.has_accounting, begun + self.soonest_s
            return
        self._here = begun_here
        self._explain_starts(answer.facts)
        if not self._is_explained(answer.facts):
            self._past_due = True
        self._past_due = self._past_due and self.client.has_accounting
        if not self._past_due:
            # Whatever ended is known, so that an outage begins here.
            self.since = max(self.since or 0.0, time.time() - _OVERLAP_S)
        with self._lock:
            open_ = [start.asked for start in self._starts.values() if start.is_open]
            if open_:
                # Of what Slurm does not tell it is asked more and more rarely.
                again = begun + self.soonest_s * 2 ** min(open_)
                self._queue_due = min(self._queue_due, again)
        if self.client.asks_node is None and self.follows_waiting:
            # All were told already.
            self._follow([each for each in answer.facts if each.state == "pending"], answer.facts)

    def _ask_for_past(self) -> None:
        answer = self.client.facts(since=self.since, queue=False)
        self._tell(answer.problems)
        self._keep(answer.facts)
        if answer.until is not None:
            self.since, self._past_due = answer.until, False
            self._explain_starts(answer.facts)
        else:
            # One that is out of order does not keep the other from being asked.
            self._told_queue = False

    def _is_explained(self, facts: Sequence[JobFacts]) -> bool:
        """Return whether the queue tells of all that was seen, so that nobody else need be asked.

        It forgets jobs some minutes after their end, and of one that was requeued it tells the last
        start alone.
        """
        there = {name for each in facts for name in (each.job_id, each.sluid)}
        with self._lock:
            starts = [
                start
                for start in self._starts.values()
                if start.is_open and start.ended and start.unit.job_id not in there
            ]
        restarts = {each.job_id: each.restarts or 0 for each in facts}
        again = any(count > self._restarts.get(job_id, 0) for job_id, count in restarts.items())
        self._restarts = restarts
        return not starts and not again

    def _asks_for_waiting(self) -> bool:
        return self.follows_waiting and self.client.asks_node is not None

    def _explain_starts(self, facts: Sequence[JobFacts]) -> None:
        """Say of earlier starts of a requeued job what is known of the later one.

        Where there is accounting, it tells of each start by itself.
        """
        latest = {each.job_id: each for each in facts}
        named = {each.sluid: each for each in facts if each.sluid}
        self._number({sluid: each.job_id for sluid, each in named.items()})
        ends: dict[str, list[JobFacts]] = {}
        for each in facts:
            if each.started is not None and each.state not in NOT_OVER:
                ends.setdefault(each.job_id, []).append(each)
        now = time.monotonic()
        with self._lock:
            starts = list(self._starts.values())
        for start in starts:
            unit = start.unit
            fact = named.get(unit.sluid) if unit.sluid else latest.get(unit.job_id)
            start.asked += start.is_open
            begun = None if fact is None else fact.started
            if begun is not None and begun <= unit.started + _EARLY_S:
                start.told = begun
            elif fact is not None and fact.restarts and not self.client.has_accounting:
                earlier = replace(fact, state="requeued", nodes=(), submitted=None, restarts=None)
                when = unit.started if start.told is None else start.told
                self._keep([replace(earlier, started=when, ended=None, exit_code=None)])
                start.seen = -math.inf
            number = unit.job_id if fact is None else fact.job_id
            for end in ends.get(number, ()):
                begun = end.started or 0.0
                if begun - _EARLY_S <= unit.started <= (end.ended or math.inf) + _EARLY_S:
                    start.told, start.is_over = begun, True
        with self._lock:
            for start in starts:
                if now - start.seen > _REMEMBERED_S:
                    self._starts.pop(start.unit.key, None)

    def _number(self, numbers: Mapping[str, str]) -> None:
        """Hand on the numbers of jobs, and forget those of jobs that nobody sees."""
        with self._lock:
            seen = {start.unit.sluid for start in self._starts.values()}
        known = {name: number for name, number in self._numbers.items() if name in seen}
        known |= {name: number for name, number in numbers.items() if name in seen}
        if known != self._numbers:
            self._numbers = known
            self.number(known)

    def _ask_for_waiting(self) -> None:
        # Slurm may know the node by another name than it was asked by.
        self._names |= {each.nodes[0] for each in self._here if len(each.nodes) == 1}
        begun = time.monotonic()
        answer = self.client.waiting()
        self._tell(answer.problems)
        if answer.is_whole:
            self._follow(answer.facts, self._here)
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
        here = {*self._names, *(self.client.asks_node or "").split(",")} - {""}
        # Of several starts the last one counts.
        last = {each.job_id: each for each in sorted(facts, key=lambda each: each.submitted or 0.0)}
        waiting = []
        for job_id in asked:
            stands = last.get(job_id) or self._stands(job_id, UNKNOWN)
            if stands.state == "pending":
                waiting.append(job_id)
            elif stands.nodes and self.client.asks_node and here.isdisjoint(stands.nodes):
                # Other nodes have watches of their own.
                self._keep([self._stands(job_id, ELSEWHERE)])
            else:
                self._keep([stands])
        return waiting

    def _stands(self, job_id: str, state: str) -> JobFacts:
        cluster = self.client.cluster or None
        return JobFacts(source="slurm", job_id=job_id, state=state, cluster=cluster)

    def _keep(self, facts: Iterable[JobFacts]) -> None:
        with self._lock:
            for each in facts:
                # A later answer replaces an earlier one, and comes after what is older.
                key = each.job_id, each.started
                self._found.pop(key, None)
                self._found[key] = each

    def _tell(self, problems: Sequence[str]) -> None:
        for problem in problems:
            if self._said.is_new(problem):
                self.say(problem)
