"""Keeping beside the watching: nothing waits for the store, and nothing is lost unsaid."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import pytest

from lowtide.errors import InvalidInput, StoreProblem
from lowtide.monitor.tick import Tick
from lowtide.watching.writer import Keeper
from support.snapshots import tick, units


class Shelf:
    """A store that may hang, or fail."""

    name = "shelf.sqlite"

    def __init__(self) -> None:
        self.kept: list[float] = []
        self.units: set[str] = set()
        self.free = threading.Event()
        self.free.set()
        self.broken: Exception | None = None
        self.closed = False
        self.claimed = ""

    @contextmanager
    def claim(self, host: str) -> Iterator[None]:
        self.claimed = host
        yield
        self.claimed = ""

    def append(self, step: Tick) -> None:
        self.free.wait()
        if self.broken is not None:
            raise self.broken
        self.kept.append(step.time)
        self.units |= {unit.key for unit in step.units}

    def close(self) -> None:
        self.closed = True


def keeper(shelf: Shelf, said: list[str], **how: Any) -> Keeper:
    return Keeper(cast("Any", shelf), host="n1", say=said.append, **how)


def at(moment: float) -> Tick:
    return tick(units(2), time=moment)


def test_a_tick_is_kept_before_anything_else_is_done_with_it() -> None:
    shelf, said = Shelf(), list[str]()
    with keeper(shelf, said) as kept:
        for moment in (10.0, 20.0, 30.0):
            kept.take(at(moment))
            assert shelf.kept[-1] == moment
        assert shelf.claimed == "n1"
    assert said == []
    assert shelf.closed
    assert shelf.claimed == ""


def test_nobody_waits_for_a_store_that_hangs_and_what_is_left_out_is_counted() -> None:
    shelf, said = Shelf(), list[str]()
    with keeper(shelf, said, most=3) as kept:
        kept.take(at(10.0))
        shelf.free.clear()
        begin = time.monotonic()
        for moment in range(20, 90, 10):
            kept.take(at(float(moment)))
        assert time.monotonic() - begin < 2.0
        # One is being written, three wait, three are left out.
        assert len(said) == 1
        assert "does not keep up" in said[0]
        shelf.free.set()
    assert shelf.kept == [10.0, 20.0, 60.0, 70.0, 80.0]
    assert "answers again: 3 ticks were left out" in said[1]
    assert len(said) == 2


def test_jobs_that_ended_in_ticks_that_are_left_out_are_kept() -> None:
    shelf, said = Shelf(), list[str]()
    all_units = units(9)
    with keeper(shelf, said, most=2) as kept:
        shelf.broken = StoreProblem("the disk is full", where="shelf.sqlite")
        for place, each in enumerate(all_units):
            # Each is there for one tick only.
            kept.take(tick([each], time=10.0 * (place + 1)))
        shelf.broken = None
        kept.take(tick([], time=100.0))
    assert len(shelf.kept) < len(all_units)
    assert shelf.units == {each.key for each in all_units}


def test_what_fails_for_a_while_is_kept_later() -> None:
    shelf, said = Shelf(), list[str]()
    with keeper(shelf, said) as kept:
        shelf.broken = StoreProblem("the disk is full", where="shelf.sqlite")
        for moment in (10.0, 20.0):
            kept.take(at(moment))
        shelf.broken = None
        kept.take(at(30.0))
    assert shelf.kept == [10.0, 20.0, 30.0]
    assert said == ["the disk is full"]


def test_a_tick_that_no_store_takes_is_said_and_left_out() -> None:
    shelf, said = Shelf(), list[str]()
    with keeper(shelf, said) as kept:
        shelf.broken = InvalidInput("a unit is in a tick once")
        kept.take(at(10.0))
        shelf.broken = None
        kept.take(at(20.0))
    assert shelf.kept == [20.0]
    assert said == ["a unit is in a tick once"]


def test_the_end_waits_for_a_while_only_and_says_what_is_lost() -> None:
    shelf, said = Shelf(), list[str]()
    shelf.free.clear()
    begin = time.monotonic()
    with keeper(shelf, said, last_s=0.3) as kept:
        for moment in (10.0, 20.0):
            kept.take(at(moment))
    assert time.monotonic() - begin < 2.0
    assert said == [
        "2 ticks could not be kept in 0.3 s, what was used since the last one in shelf.sqlite is "
        "lost"
    ]
    shelf.free.set()


def test_what_is_done_besides_may_fail_and_does_not_come_before_the_tick() -> None:
    shelf, said = Shelf(), list[str]()
    seen: list[tuple[float, list[float]]] = []
    last: list[int] = []

    def fail(_: Tick) -> None:
        raise ZeroDivisionError("nothing")

    with keeper(
        shelf,
        said,
        after=[fail, lambda step: seen.append((step.time, list(shelf.kept)))],
        at_last=[lambda: last.append(len(shelf.kept))],
    ) as kept:
        kept.take(at(10.0))
        kept.take(at(20.0))
    assert seen == [(10.0, [10.0]), (20.0, [10.0, 20.0])]
    assert last == [2]
    assert said == ["ZeroDivisionError: nothing; watching goes on, please report it"]


def test_a_host_that_another_watches_is_refused() -> None:
    class Taken(Shelf):
        @contextmanager
        def claim(self, host: str) -> Iterator[None]:
            raise StoreProblem("n1 is watched already", where=self.name)
            yield

    shelf = Taken()
    with pytest.raises(StoreProblem, match="already"), keeper(shelf, []):
        pass
    assert shelf.closed


def test_a_tick_whose_store_fails_after_it_was_written_is_kept_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from lowtide.store import Store, writer
    from support.ticks import Watcher, unit

    monkeypatch.setattr(writer, "CHUNK_MOST_S", 20.0)
    tidied: list[float] = []

    def consolidate(self: writer.HostWriter) -> None:
        tidied.append(time.monotonic())
        if len(tidied) == 1:
            raise StoreProblem("the disk is full", where="store.sqlite")

    monkeypatch.setattr(writer.HostWriter, "consolidate", consolidate)
    said: list[str] = []
    watcher = Watcher()
    with Keeper(Store.open(tmp_path / "store.sqlite"), host="n1", say=said.append) as kept:
        for _ in range(4):
            kept.take(watcher.tick([unit(7)]))
    assert said == ["the disk is full"]
    with Store.open(tmp_path / "store.sqlite", readonly=True) as store:
        (job,) = store.jobs(ids=["7"])
        assert (job.looks, job.seen_s) == (4, 40.0)
        assert job.energy_j == pytest.approx(4 * 10 * 100.0)
