"""Asking Slurm beside the ticks: outages, stores that refuse, jobs that wait and come again."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from lowtide.errors import StoreProblem
from lowtide.monitor.snapshot import ELSEWHERE, UNKNOWN, JobFacts
from lowtide.slurm.client import MOST_IDS, Answer
from lowtide.store import Store
from lowtide.watching import slurm_facts
from lowtide.watching.slurm_facts import FactsSource
from support.snapshots import unit

NOW = 1_700_000_000.0


def job(job_id: str, state: str = "running", **known: Any) -> JobFacts:
    return JobFacts(source="slurm", job_id=job_id, state=state, **known)


class Slurm:
    """Answers what it is told to."""

    def __init__(self, *, node: str | None = "n1", accounting: bool = False) -> None:
        self.asks_node = node
        self.cluster = ""
        self.wants_sluid = False
        self.queued = 0
        self.waited = 0
        self.has_accounting = accounting
        self.is_resting = False
        self.is_up = True
        self.queue: list[JobFacts] = []
        self.pending: list[JobFacts] = []
        self.elsewhere: list[JobFacts] = []
        self.asked: list[float | None] = []
        self.stood: list[list[str]] = []
        self.now = NOW
        self.error: Exception | None = None

    def name_nodes(self, names: Iterable[str]) -> None:
        self.named = set(names)

    def facts(self, *, since: float | None, queue: bool = True) -> Answer:
        assert queue == (since is None)
        if queue:
            self.queued += 1
        else:
            self.asked.append(since)
        if self.error is not None:
            raise self.error
        if not self.is_up:
            return Answer([], ("squeue did not answer",), None, False)
        return Answer(list(self.queue), (), None if queue else self.now - 60, True)

    def waiting(self) -> Answer:
        self.waited += 1
        return Answer(list(self.pending), (), None, self.is_up)

    def stand(self, ids: Sequence[str], *, since: float) -> Answer:
        self.stood.append(list(ids))
        known = [*self.queue, *self.pending, *self.elsewhere]
        return Answer([each for each in known if each.job_id in ids], (), None, self.is_up)


class Asking:
    """A source whose questions are asked when a test says so, at the times it says."""

    def __init__(self, slurm: Slurm, monkeypatch: pytest.MonkeyPatch, **options: Any) -> None:
        self.slurm = slurm
        self.said: list[str] = []
        monkeypatch.setattr(slurm_facts.threading, "Thread", Never)
        monkeypatch.setattr(slurm_facts.time, "time", lambda: slurm.now)
        monkeypatch.setattr(slurm_facts.time, "monotonic", lambda: slurm.now)
        options = {"waiting_every_s": 0.0, "every_s": 30.0} | options
        self.source = FactsSource(client=slurm, say=self.said.append, **options)  # type: ignore[arg-type]
        self.source.open()

    def ask(self, after_s: float = 30.0) -> None:
        """Ask all there is to ask, one question after the other."""
        self.slurm.now += after_s
        waited = self.slurm.waited
        for _ in range(3):
            if self.slurm.waited == waited:
                self.source._ask()

    def taken(self) -> list[JobFacts]:
        found: list[JobFacts] = []
        self.source.hand_over(found.extend)
        return found


class Never:
    def __init__(self, **_: Any) -> None:
        pass

    def start(self) -> None:
        pass


@pytest.fixture
def asking(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Asking]:
    return lambda slurm, **options: Asking(slurm, monkeypatch, **options)


def test_after_an_outage_it_asks_from_the_last_answer_on(asking: Callable[..., Asking]) -> None:
    slurm = Slurm(accounting=True)
    it = asking(slurm)
    it.ask()
    answered = slurm.now
    slurm.is_up = False
    for _ in range(20):
        it.ask()
    slurm.is_up = True
    it.ask()
    it.ask()
    # While all goes well the queue tells everything, and the accounting is left alone.
    assert slurm.asked == [NOW - 3600, answered - 60]
    assert it.said == ["squeue did not answer"]


@pytest.mark.parametrize(
    ("since", "asked"),
    [
        (None, 3600),
        (NOW - 60, 3600),
        (NOW - 3 * 86400, 3 * 86400),
        (0.0, 30 * 86400),
        (math.nan, 3600),
    ],
)
def test_it_begins_where_an_earlier_watch_left_off(
    asking: Callable[..., Asking], since: float | None, asked: float
) -> None:
    slurm = Slurm(accounting=True)
    asking(slurm, since=since).ask(0.0)
    assert slurm.asked == [NOW - asked]


def test_what_a_store_refuses_is_there_again(asking: Callable[..., Asking]) -> None:
    slurm = Slurm()
    it = asking(slurm)
    slurm.queue = [job("1", started=NOW)]
    it.ask()

    def refuse(_: object) -> None:
        raise StoreProblem("the disk is full", where="x")

    with pytest.raises(StoreProblem):
        it.source.hand_over(refuse)
    # What is learned meanwhile replaces it.
    slurm.queue = [job("1", "completed", started=NOW, ended=NOW + 40)]
    it.ask()
    assert it.taken() == slurm.queue
    assert it.taken() == []


def test_nothing_ends_the_asking() -> None:
    slurm = Slurm()
    slurm.error = TypeError("unheard of")
    said: list[str] = []
    source = FactsSource(client=slurm, every_s=0.02, soonest_s=0.01, say=said.append)  # type: ignore[arg-type]
    with opened(source):
        until(lambda: slurm.queued >= 3)
        slurm.queue = [job("1", started=NOW)]
        slurm.error = None
        found: list[JobFacts] = []
        until(lambda: source.hand_over(found.extend) is None and bool(found))
    assert said == ["what Slurm says is not understood: TypeError: unheard of"]


def test_it_asks_at_once_when_jobs_begin_or_end_and_at_last() -> None:
    slurm = Slurm()
    slurm.queue = [job("7", "completed", started=unit(7).started, ended=NOW)]
    source = FactsSource(client=slurm, every_s=60.0, soonest_s=0.01)  # type: ignore[arg-type]
    with opened(source):
        until(lambda: slurm.queued == 1)
        for units in ((unit(7), unit("x.service", source="systemd")), ()):
            before = slurm.queued
            source.see(units)
            until(lambda before=before: slurm.queued == before + 1)  # type: ignore[misc]
            # What goes on as it was is no news.
            source.see(units)
            time.sleep(0.05)
            assert slurm.queued == before + 1
    assert slurm.queued == 4
    slurm.is_resting = True
    with opened(FactsSource(client=slurm, every_s=60.0, soonest_s=0.01)):  # type: ignore[arg-type]
        until(lambda: slurm.queued == 5)
    assert slurm.queued == 5


def test_waiting_jobs_are_followed_until_it_is_known_what_became_of_them(
    asking: Callable[..., Asking], tmp_path: Path
) -> None:
    slurm = Slurm()
    slurm.pending = [job(name, "pending", submitted=NOW) for name in ("1", "2", "3", "4", "5")]
    slurm.elsewhere = [
        job("2", "running", started=NOW + 40, submitted=NOW, nodes=("n2",)),
        job("3", "cancelled", submitted=NOW, ended=NOW + 50),
    ]
    with Store.open(tmp_path / "s.sqlite") as store:
        # One that an earlier watch saw waiting, and that is forgotten by now.
        store.put_facts([job("9", "pending", submitted=NOW - 99)])
        it = asking(slurm, waiting=store.waiting("slurm"))

        def states() -> dict[str, str | None]:
            it.source.hand_over(store.put_facts)
            return {each.job_id: each.state for each in store.jobs()}

        it.ask()
        assert states() == {**dict.fromkeys("12345", "pending"), "9": None}
        del slurm.pending[:4]
        slurm.queue = [job("1", "running", started=NOW + 40, submitted=NOW, nodes=("n1",))]
        it.ask()
        assert states() == {"1": "running", "3": "cancelled", "4": None, "5": "pending", "9": None}
        assert slurm.stood == [["9"], ["2", "3", "4"]]
        # While Slurm is down nobody knows, and what was known stays.
        slurm.pending.clear()
        slurm.is_up = False
        it.ask()
        assert states()["5"] == "pending"
        slurm.is_up = True
        it.ask()
        assert states()["5"] is None


def test_an_earlier_start_does_not_tell_what_became_of_a_later_wait(
    asking: Callable[..., Asking],
) -> None:
    slurm = Slurm(accounting=True)
    before = job("1", "requeued", started=NOW - 50, ended=NOW - 5, submitted=NOW - 90)
    slurm.queue = [before]
    slurm.pending = [job("1", "pending", submitted=NOW)]
    it = asking(slurm)
    it.ask()
    slurm.pending.clear()
    slurm.elsewhere = [job("1", "cancelled", submitted=NOW, ended=NOW + 30)]
    it.ask()
    assert before in (taken := it.taken())
    assert slurm.elsewhere[0] in taken


def test_many_that_vanish_are_asked_about_a_few_at_a_time(asking: Callable[..., Asking]) -> None:
    slurm = Slurm()
    slurm.pending = [job(str(number), "pending", submitted=NOW) for number in range(MOST_IDS + 20)]
    it = asking(slurm)
    it.ask()
    it.taken()
    # Nothing new: nothing to write.
    it.ask()
    assert it.taken() == []
    slurm.pending.clear()
    it.ask()
    it.ask()
    it.ask()
    assert [len(ids) for ids in slurm.stood] == [MOST_IDS, 20]
    assert {facts.state for facts in it.taken()} == {UNKNOWN}


def test_of_very_many_the_first_are_kept(asking: Callable[..., Asking]) -> None:
    slurm = Slurm()
    slurm.pending = [job(str(number), "pending", submitted=NOW) for number in range(5001)]
    it = asking(slurm)
    it.ask()
    it.ask()
    assert len(it.taken()) == 5000
    assert it.said == ["more than 5,000 jobs wait: those that come first are kept"]
    # One that comes in from behind, and one that falls back and still waits.
    slurm.pending.reverse()
    it.ask()
    assert [facts.job_id for facts in it.taken()] == ["5000"]
    slurm.pending = slurm.pending[:-1]
    it.ask()
    assert [(facts.job_id, facts.state) for facts in it.taken()] == [("0", UNKNOWN)]


def test_slurm_is_not_asked_for_waiting_jobs_more_than_it_can_bear(
    asking: Callable[..., Asking], monkeypatch: pytest.MonkeyPatch
) -> None:
    slurm = Slurm()
    it = asking(slurm, waiting_every_s=60.0)
    clock = [0.0]
    monkeypatch.setattr(slurm_facts.time, "monotonic", lambda: clock[0])
    asked = []

    def slow() -> Answer:
        asked.append(clock[0])
        clock[0] += 1.0
        return Answer([], (), None, True)

    monkeypatch.setattr(slurm, "waiting", slow)
    while clock[0] < 900:
        it.ask()
        clock[0] += 10
    assert len(asked) == 5


def test_where_all_are_told_nobody_is_asked_twice(
    asking: Callable[..., Asking], monkeypatch: pytest.MonkeyPatch
) -> None:
    slurm = Slurm(node=None)
    monkeypatch.setattr(slurm, "waiting", lambda: pytest.fail("asked"))
    slurm.queue = [job("1", "pending", submitted=NOW), job("2", started=NOW, nodes=("n7",))]
    it = asking(slurm)
    it.ask()
    slurm.queue = slurm.queue[1:]
    slurm.elsewhere = [job("1", "running", started=NOW + 9, submitted=NOW, nodes=("n7",))]
    it.ask()
    assert {(facts.job_id, facts.state) for facts in it.taken()} == {
        *(("1", "pending"), ("1", "running"), ("2", "running"))
    }


@pytest.mark.parametrize("was_told", [False, True])
def test_each_start_of_a_requeued_job_has_its_facts(
    asking: Callable[..., Asking], tmp_path: Path, was_told: bool
) -> None:
    slurm = Slurm()
    known: dict[str, Any] = {"name": "train", "partition": "main", "nodes": ("n1",)}
    it = asking(slurm)
    first, second = unit(5, started=NOW + 3), unit(5, started=NOW + 23)
    if was_told:
        slurm.queue = [job("5", started=NOW, restarts=0, **known)]
        it.source.see([first])
        it.ask(10)
    it.source.see([first])
    it.source.see([second])
    slurm.queue = [job("5", started=NOW + 20, restarts=1, **known)]
    it.ask(20)
    with Store.open(tmp_path / "s.sqlite") as store:
        it.source.hand_over(store.put_facts)
        rows = [(each.started, each.state, each.name) for each in store.jobs()]
    begun = NOW if was_told else NOW + 3
    assert sorted(rows) == [(begun, "requeued", "train"), (NOW + 20, "running", "train")]
    # That is said once.
    it.taken()
    it.ask()
    assert it.taken() == slurm.queue


def test_what_is_being_requeued_explains_its_last_start_alone(
    asking: Callable[..., Asking],
) -> None:
    slurm = Slurm()
    it = asking(slurm)
    it.source.see([unit(5, started=NOW)])
    slurm.queue = [job("5", "pending", submitted=NOW, restarts=1)]
    it.source._ask()
    # That it waits is told, and followed, when it is asked who does.
    assert [(each.state, each.started) for each in it.taken()] == [("requeued", NOW)]


def test_where_there_is_accounting_it_tells_of_each_start(asking: Callable[..., Asking]) -> None:
    slurm = Slurm(accounting=True)
    it = asking(slurm)
    it.source.see([unit(5, started=NOW)])
    slurm.queue = [job("5", started=NOW + 20, restarts=1)]
    it.ask()
    assert it.taken() == slurm.queue


def test_taking_back_touches_nothing_but_what_waits(tmp_path: Path) -> None:
    ran = job("1", "completed", started=NOW, ended=NOW + 5)
    with Store.open(tmp_path / "s.sqlite") as store:
        store.put_facts([ran, job("2", "pending", submitted=NOW)])
        for state in (UNKNOWN, ELSEWHERE):
            store.put_facts([job("1", state), job("3", state)])
        assert {each.job_id for each in store.jobs()} == {"1", "2"}
        assert store.waiting("slurm") == [("2", NOW)]
        store.put_facts([job("2", ELSEWHERE)])
        assert [(each.job_id, each.state) for each in store.jobs()] == [("1", "completed")]


def test_a_node_asks_one_question_at_a_time_and_only_when_there_is_news() -> None:
    """Nobody is asked where nothing happens, and never two questions within the least time."""
    slurm = Slurm(accounting=True)
    calls: list[float] = []
    for name in ("facts", "waiting", "stand"):
        asked = getattr(slurm, name)

        def told(*given: Any, asked: Callable[..., Answer] = asked, **named: Any) -> Answer:
            calls.append(time.monotonic())
            return asked(*given, **named)

        setattr(slurm, name, told)
    source = FactsSource(
        client=slurm,  # type: ignore[arg-type]
        every_s=60.0,
        soonest_s=0.1,
        waiting_every_s=60.0,
    )
    with opened(source):
        until(lambda: len(calls) == 3)  # what is there, what was, what waits
        time.sleep(0.4)
        assert len(calls) == 3
        for number in range(20):
            source.see([unit(number, started=NOW)])
            slurm.queue = [
                job(str(each), "completed" if each < number else "running", started=NOW, ended=NOW)
                for each in range(number + 1)
            ]
            time.sleep(0.02)
        time.sleep(0.5)
    assert len(calls) < 15
    spaced = [later - earlier for earlier, later in pairwise(calls[:-2])]
    assert min(spaced) >= 0.095


def test_what_the_queue_has_forgotten_the_accounting_tells(asking: Callable[..., Asking]) -> None:
    slurm = Slurm(accounting=True)
    it = asking(slurm)
    it.ask()
    assert len(slurm.asked) == 1
    slurm.queue = [job("5", started=NOW)]
    it.source.see([unit(5, started=NOW)])
    it.ask()
    it.source.see([])
    it.ask()
    slurm.queue = []
    it.ask()
    assert len(slurm.asked) == 2
    slurm.queue = [job("5", "completed", started=NOW, ended=NOW + 70)]
    it.ask()
    it.ask()
    it.ask()
    assert len(slurm.asked) == 2


def test_numbers_of_jobs_that_are_named_otherwise_are_handed_on(
    asking: Callable[..., Asking],
) -> None:
    told: list[Mapping[str, str]] = []
    slurm = Slurm()
    it = asking(slurm, number=told.append)
    name = "s5K1KKYAYG5D00"
    it.source.see([replace(unit(1, started=NOW), job_id=name, sluid=name)])
    assert slurm.wants_sluid
    slurm.queue = [job("4711", started=NOW, sluid=name), job("5", started=NOW, sluid="sX")]
    it.ask()
    it.ask()
    assert told == [{name: "4711"}]


def until(is_so: Callable[[], bool]) -> None:
    end = time.monotonic() + 5
    while not is_so():
        assert time.monotonic() < end
        time.sleep(0.005)


@contextmanager
def opened(source: FactsSource) -> Iterator[None]:
    source.open()
    try:
        yield
    finally:
        source.close()
