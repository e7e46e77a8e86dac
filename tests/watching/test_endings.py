"""Phases of jobs that have ended, found by the watch while every look is still there."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path

import pytest

from lowtide.hindsight.phases import phases_document, phases_of
from lowtide.store import Store
from lowtide.watching.writer import Endings
from support.ticks import START, Watcher, unit

LONG, OTHER = unit(7), unit(8)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store.open(tmp_path / "store.sqlite") as kept:
        yield kept


class Clock:
    """A clock that is set by hand."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


def play(
    store: Store, endings: Endings, watcher: Watcher, *, ticks: int, watts: Callable[[int], float]
) -> None:
    """Let two jobs run, the first with a power of its own for each tick."""
    for number in range(ticks):
        step = watcher.tick([LONG, OTHER], watts={"7": watts(number)})
        store.append(step)
        endings.take(step)


def rest(store: Store, endings: Endings, watcher: Watcher, *, ticks: int) -> None:
    """Let the second job run alone."""
    for _ in range(ticks):
        step = watcher.tick([OTHER])
        store.append(step)
        endings.take(step)


def kept_phases(store: Store, number: str) -> str | None:
    (record,) = store.jobs(ids=[number])
    return store.phases(record)


def test_the_phases_of_a_job_that_ended_are_kept(store: Store) -> None:
    endings, watcher = Endings(store=store, clock=Clock()), Watcher()
    play(store, endings, watcher, ticks=40, watts=lambda n: 100.0 if n < 20 else 300.0)
    rest(store, endings, watcher, ticks=4)
    assert kept_phases(store, "7") is None, "not seen for 40 s only"
    rest(store, endings, watcher, ticks=4)
    said = kept_phases(store, "7")
    assert said is not None
    found = json.loads(said)
    assert [round(phase["power_w"]) for phase in found] == [100, 300]
    assert sum(phase["duration_s"] for phase in found) == pytest.approx(400, rel=0.05)
    # The same as `show --json` says.
    (record,) = store.jobs(ids=["7"])
    assert found == phases_document(phases_of(record, store.series(record)))
    assert kept_phases(store, "8") is None, "it still runs"


def test_a_job_that_comes_back_has_not_ended(store: Store) -> None:
    endings, watcher = Endings(store=store, clock=Clock()), Watcher()
    play(store, endings, watcher, ticks=20, watts=lambda _: 100.0)
    rest(store, endings, watcher, ticks=3)
    play(store, endings, watcher, ticks=20, watts=lambda _: 100.0)
    assert kept_phases(store, "7") is None


def test_short_jobs_have_no_phases(store: Store) -> None:
    endings, watcher = Endings(store=store, clock=Clock()), Watcher()
    play(store, endings, watcher, ticks=8, watts=lambda _: 100.0)
    rest(store, endings, watcher, ticks=12)
    assert kept_phases(store, "7") is None


def test_finding_takes_a_small_share_of_a_core(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock, spent = Clock(), [0.0]
    monkeypatch.setattr("time.thread_time", lambda: spent[0])
    endings, watcher = Endings(store=store, clock=clock), Watcher()
    found: list[tuple[float, str]] = []

    def find(_: Endings, host: str, over: object) -> None:
        found.append((clock.now, host))
        spent[0] += 0.1

    monkeypatch.setattr(Endings, "_find", find)
    jobs = [unit(number, started=START - 1000) for number in range(5)]
    endings.take(watcher.tick(jobs))
    for _ in range(40):
        clock.now += 10.0
        endings.take(watcher.tick([]))
    # A tenth of a second every fifty is the fifth of a percent that is allowed.
    moments = [moment for moment, _ in found]
    assert len(moments) == 5
    assert [later - earlier for earlier, later in pairwise(moments)] == [50.0] * 4
