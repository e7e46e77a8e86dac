"""What became of jobs that have left the queue: how they ended, what they drew, what that saved.

How a job ended is asked of Slurm, while it remembers, and of its accounting. What it drew is told
by the store of whoever watches the nodes. Whatever of that is missing stays missing.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

from lowtide.acting.book import DAY_S, Begun, Book, BookPage
from lowtide.acting.experience import Experiences
from lowtide.acting.journal import Journal
from lowtide.acting.reckoning import amount, measured, replay
from lowtide.acting.tag import decode
from lowtide.errors import (
    InvalidInput,
    LowtideError,
    NoAccounting,
    NoSuchJob,
    Refused,
    SlurmProblem,
    Unreachable,
)
from lowtide.hindsight.job import known_grid
from lowtide.library.sources import run_of
from lowtide.monitor.snapshot import JobFacts
from lowtide.profile import PowerProfile
from lowtide.recording import Run
from lowtide.schedule import Stretch
from lowtide.signal import Signal
from lowtide.slurm import SlurmClient
from lowtide.states import NOT_OVER
from lowtide.store import JobRecord, Store

# By how much clocks may differ.
_OFF_S = 60.0
# After so many looks without a trace a job is lost.
_LOST_AFTER = 2
# A script that ends with this has saved, and wants to go on; killed, it was not let.
_SAVED, _KILLED = 75, (137, 143)
# Who says so sooner than this after its start, unasked, is not started again by its wrapper either.
_SOON_S = 60.0
# Which share of its time may be unwatched of a job that counts as measured.
_LACKS = 0.02


@dataclass(frozen=True, slots=True, kw_only=True)
class Settler:
    """Whoever finds out what became of jobs.

    Attributes:
        client: Who asks Slurm.
        book: Where jobs are kept.
        experiences: Learns from how they came out.
        journal: Knows their profiles.
        store: What was watched; None where nobody watches.
        signal: What is known of the grid; None for what the watcher knew alone.
        rescue: Brings a job back that has saved and is said to have failed, since a controller that
            was killed has forgotten its requeue; None for nobody.
    """

    client: SlurmClient
    book: Book
    experiences: Experiences
    journal: Journal
    store: Store | None = None
    signal: Signal | None = None
    rescue: Callable[[str], None] | None = None

    def settle(self, gone: Sequence[BookPage], *, now: float) -> list[BookPage]:
        """Find out what became of jobs that are in no queue, and of those not measured so far.

        Args:
            gone: Jobs that are in the queue no more, as `Book.see` returns them.
        """
        ended = [self._ended(page) for page in gone]
        open_ = [
            page
            for page in self.book.pages(now=now, newer_s=30 * DAY_S)
            if page.is_over and page.measured is None and now - (page.ended or 0.0) < DAY_S
        ]
        known = {page.token for page in ended}
        found = [*ended, *(page for page in open_ if page.token not in known)]
        settled = [self._reckoned(page) if page.is_over else page for page in found]
        for page in settled:
            self.book.put(page)
            self.experiences.learn(page)
            self.journal.habits.learn(page)
        return settled

    def _ended(self, page: BookPage) -> BookPage:
        """Return a page with how its job ended; nobody who knows it is asked for ever."""
        try:
            facts = self._facts(page)
        except (InvalidInput, SlurmProblem):
            return page
        if not facts:
            return self._without_facts(page, is_kept=facts is not None)
        last: dict[str, JobFacts] = {}
        for each in sorted(facts, key=lambda each: each.started or 0.0):
            last[each.shown_id or each.job_id] = each
        states = [each.state or "" for each in last.values()]
        if any(state in NOT_OVER or not state for state in states):
            return page
        if self._brought_back(last):
            return page
        outcome = next((state for state in states if state != "completed"), "completed")
        ends = [each.ended for each in last.values() if each.ended is not None]
        return replace(page, outcome=outcome, ended=max(ends, default=None))

    def _brought_back(self, last: Mapping[str, JobFacts]) -> bool:
        """Bring back whoever of a job was to go on; return whether anybody may be."""
        if self.rescue is None:
            return False
        may_be = False
        for name in (name for name, each in last.items() if _was_to_go_on(each)):
            try:
                self.rescue(name)
            except Refused:
                # Slurm has forgotten it by now: it is told as what it is.
                continue
            except Unreachable:
                # It is asked again at the next turn.
                pass
            may_be = True
        return may_be

    def _without_facts(self, page: BookPage, *, is_kept: bool) -> BookPage:
        """Return a page of a job that Slurm does not know any more: as it was watched, or lost.

        Args:
            is_kept: Whether there are accounts, so that a job that ended would be in them.
        """
        records = self._records(page)
        states = [record.state or "" for record in records]
        if states and not any(state in NOT_OVER or not state for state in states):
            last = max(records, key=lambda record: record.started)
            ended = None if math.isnan(last.ended) else last.ended
            return replace(page, outcome=last.state or "unknown", ended=ended)
        missing = page.missing + 1
        outcome = "" if missing < _LOST_AFTER else "lost" if is_kept else "unknown"
        return replace(page, missing=missing, outcome=outcome)

    def _facts(self, page: BookPage) -> list[JobFacts] | None:
        """Return what is known of a job's starts; None where nobody keeps accounts either."""
        found: list[JobFacts] = []
        with suppress(NoSuchJob):
            found = self.client.job(page.job_id)
        found = [each for each in found if _is_of(each.comment, each.started, page)]
        if not found:
            try:
                since = page.arrival - _OFF_S
                found = self.client.accounting(since=since, ids=[page.job_id])
            except NoAccounting:
                return None
            found = [each for each in found if _is_of(each.comment, each.started, page)]
        return found

    def _reckoned(self, page: BookPage) -> BookPage:
        """Return a page with what its job came to, as far as is known."""
        if page.outcome != "completed" or page.ended is None:
            return page
        records = self._records(page)
        runs = self._runs(page, records)
        profile = self.journal.profile_named(page.profile)
        if runs and len(records) > len(page.begun):
            # Nobody of this book has looked while it ran: another's driver has.
            begun = tuple(Begun(task=each.shown_id, start=each.started) for each in records)
            page = replace(page, begun=begun)
        tasks = _tasks(records, profile) if runs else page.stretches
        signal = self._grid(page, profile, records)
        if signal is None or not tasks:
            return page
        came = None if runs is None else measured(runs, signal)
        if came is not None:
            kinds = {run.power for run in runs or ()}
            page = replace(page, measured=came, power=kinds.pop() if len(kinds) == 1 else None)
        if profile is None:
            return _without_profile(page, runs, came, signal)
        laid = [replay(profile, stretches, signal) for stretches in tasks]
        replayed = [each for each in laid if each is not None]
        if len(replayed) < len(laid):
            return page
        once = amount(profile, [Stretch(start=page.arrival, work_s=profile.work_s)], signal)
        page = replace(
            page,
            tasks=len(tasks),
            replayed=sum(each.amount for each in replayed),
            at_once=None if once is None else once * len(tasks),
        )
        if runs is None or came is None:
            return page
        again = sum(len(stretches) - 1 for stretches in tasks)
        expected_s = len(tasks) * profile.run_s + again * (profile.starting_s(1) + profile.stop_s)
        drawn_j = sum(run.energy_j() for run in runs)
        return replace(
            page,
            energy_ratio=drawn_j / sum(each.energy_j for each in replayed),
            duration_ratio=sum(run.end - run.start for run in runs) / expected_s,
        )

    def _records(self, page: BookPage) -> list[JobRecord]:
        """Return the starts of a job that were watched."""
        if self.store is None:
            return []
        try:
            found = self.store.jobs(ids=[page.job_id], start=page.arrival - _OFF_S)
        except LowtideError:
            return []
        return [
            each
            for each in found
            if each.source == "slurm" and _is_of(each.comment, each.started, page)
        ]

    def _runs(self, page: BookPage, records: Sequence[JobRecord]) -> list[Run] | None:
        """Return what was measured of all starts; None where something of it is lacking."""
        seen = {each.start for each in page.begun}
        if self.store is None or not records or len(records) < len(seen):
            return None
        runs = []
        for record in records:
            lacks_s = 0.0 if math.isnan(record.unmetered_s) else record.unmetered_s
            if math.isnan(record.ended) or lacks_s > _LACKS * record.elapsed_s + 2.0:
                return None
            try:
                runs.append(run_of(record, self.store.series(record)))
            except LowtideError:
                return None
        return runs

    def _grid(
        self, page: BookPage, profile: PowerProfile | None, records: Sequence[JobRecord]
    ) -> Signal | None:
        """Return the grid as it came, from when a job was handed in until all is over."""
        run_s = 0.0 if profile is None else profile.run_s + profile.stop_s
        end = max(page.ended or 0.0, page.arrival + run_s)
        if self.signal is not None and self.signal.covers(page.arrival, end):
            return self.signal
        hosts = [host for record in records for host in record.hosts]
        if self.store is None or not hosts:
            return None
        try:
            node = self.store.node_series(hosts[0], start=page.arrival)
            known = known_grid(node, start=page.arrival, end=end).signal
        except LowtideError:
            return None
        return known if known is not None and known.covers(page.arrival, end) else None


def _without_profile(
    page: BookPage, runs: Sequence[Run] | None, came: float | None, signal: Signal
) -> BookPage:
    """Return a page of which nothing is told but what was measured, beside the same at once."""
    if not runs or came is None:
        return page
    length_s = sum(run.end - run.start for run in runs)
    flat = PowerProfile.constant(sum(run.energy_j() for run in runs) / length_s, length_s)
    once = amount(flat, [Stretch(start=page.arrival, work_s=length_s)], signal)
    return replace(page, at_once=once)


def _tasks(records: Sequence[JobRecord], profile: PowerProfile | None) -> list[list[Stretch]]:
    """Return the starts of each element, with the work that each can have done."""
    tasks: dict[str, list[Stretch]] = {}
    for record in sorted(records, key=lambda record: record.started):
        starts = tasks.setdefault(record.shown_id, [])
        apart_s = 0.0
        if profile is not None:
            apart_s = profile.starting_s(len(starts)) + profile.stop_s
        work_s = max(record.ended - record.started - apart_s, 0.0)
        starts.append(Stretch(start=record.started, work_s=work_s))
    return list(tasks.values())


def _was_to_go_on(facts: JobFacts) -> bool:
    """Return whether a job that is over has saved to go on later, as far as its wrapper knew."""
    tag, _ = decode(facts.comment)
    if tag is None or not tag.interruptible or facts.state != "failed":
        return False
    ran_s = (facts.ended or 0.0) - (facts.started or math.inf)
    asked = tag.asked > 0
    return (facts.exit_code == _SAVED and (asked or ran_s >= _SOON_S)) or (
        asked and facts.exit_code in _KILLED
    )


def _is_of(comment: str | None, started: float | None, page: BookPage) -> bool:
    """Return whether a start is of a job and not of another that got its number."""
    tag, _ = decode(comment)
    if tag is not None:
        return tag.token == page.token
    return started is None or math.isnan(started) or started >= page.arrival - _OFF_S
