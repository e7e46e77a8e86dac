"""Ticks in time, to all who want them, whatever goes wrong."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from itertools import pairwise
from typing import Any, cast

import pytest

from lowtide.errors import StoreProblem
from lowtide.monitor.snapshot import Snapshot
from lowtide.monitor.tick import Tick
from lowtide.watching.service import Service
from lowtide.watching.watcher import Watcher
from support.nodes import START, Drawn, snapshot, unit

pytestmark = pytest.mark.alone


class Node:
    """A node with one job; its clock is the real one."""

    def read(self) -> Snapshot:
        now = time.time()
        return snapshot(now - START, {unit("1"): now % 1e5}, busy_s=now % 1e5)


class Doorbell:
    """Tells of jobs that come, when rung."""

    def __init__(self) -> None:
        self.ends = os.pipe()
        self.looks: list[float] = []

    @property
    def events(self) -> int:
        return self.ends[0]

    def ring(self) -> None:
        os.write(self.ends[1], b".")

    def look(self) -> float | None:
        self.looks.append(time.monotonic())
        # The first look comes with the first tick, the second is the bell's.
        if len(self.looks) != 2:
            return None
        os.read(self.ends[0], 1)
        return 0.1


@pytest.fixture
def bell() -> Iterator[Doorbell]:
    found = Doorbell()
    yield found
    for end in found.ends:
        os.close(end)


def service(**how: Any) -> Service:
    watcher = Watcher(reader=Node(), power=Drawn([100.0]), host="node1")
    return Service(watcher=watcher, **{"interval_s": 0.1, **how})


def test_ticks_come_in_time() -> None:
    ticks: list[Tick] = []
    watched = service(sinks=[ticks.append])
    begin = time.monotonic()
    watched.run(ticks=5)
    watched.close()
    assert len(ticks) == 5
    assert 0.45 < time.monotonic() - begin < 2.0
    assert all(a.time == b.since for a, b in pairwise(ticks))


def test_one_who_fails_is_told_about_once_and_the_others_go_on() -> None:
    kept: list[Tick] = []
    said: list[str] = []

    def fail(_: Tick) -> None:
        raise StoreProblem("the disk is full", where="store.sqlite")

    watched = service(sinks=[fail, kept.append], say=said.append)
    watched.run(ticks=3)
    watched.close()
    assert len(kept) == 3
    assert said == ["the disk is full"]


def test_it_looks_at_once_when_jobs_come(bell: Doorbell) -> None:
    watched = service(events=bell, interval_s=1.0)
    begin = time.monotonic()
    threading.Timer(0.2, bell.ring).start()
    watched.run(ticks=1)
    watched.close()
    assert 0.2 <= bell.looks[1] - begin < 0.7, "not only with the next tick"
    # Asked to, it looks again.
    assert len(bell.looks) == 3
    assert bell.looks[2] - bell.looks[1] >= 0.1


def test_it_stops_when_it_is_told_to() -> None:
    watched = service(interval_s=30.0)
    threading.Timer(0.2, watched.stop).start()
    begin = time.monotonic()
    watched.run()
    watched.close()
    assert time.monotonic() - begin < 5.0


def test_what_is_to_be_done_before_is_done_before() -> None:
    order: list[str] = []
    watched = service(
        before=[lambda now: order.append("before")],
        sinks=[cast("Any", lambda tick: order.append("tick"))],
    )
    watched.run(ticks=2)
    watched.close()
    assert order == ["before", "before", "tick", "before", "tick"]


class Stumbling(Node):
    """A node whose second and third look fail as nobody foresaw."""

    def __init__(self) -> None:
        self.looks = 0

    def read(self) -> Snapshot:
        self.looks += 1
        if self.looks in (2, 3):
            raise ZeroDivisionError("1-5:1/0")
        return super().read()


def test_a_tick_that_fails_is_told_about_once_and_the_next_comes() -> None:
    said: list[str] = []
    ticks: list[Tick] = []
    watcher = Watcher(reader=Stumbling(), power=Drawn([100.0]), host="node1")

    def take(tick: Tick) -> None:
        ticks.append(tick)
        if len(ticks) == 2:
            watched.stop()

    watched = Service(watcher=watcher, interval_s=0.05, sinks=[take], say=said.append)
    watched.run()
    watched.close()
    assert len(ticks) == 2
    assert len(said) == 1
    assert "ZeroDivisionError in test_service.py" in said[0]
    assert "1-5:1/0" in said[0]


def test_one_sample_that_fails_is_an_error() -> None:
    watcher = Watcher(reader=Stumbling(), power=Drawn([100.0]), host="node1")
    watched = Service(watcher=watcher, interval_s=0.05)
    with pytest.raises(ZeroDivisionError):
        watched.run(ticks=1)
    watched.close()


def test_a_clean_stop_takes_a_last_tick() -> None:
    ticks: list[Tick] = []
    watched = service(interval_s=30.0, sinks=[ticks.append])
    # The first tick comes after a second, the next would come after half a minute.
    threading.Timer(1.8, watched.stop).start()
    watched.run()
    watched.close()
    assert len(ticks) == 2
    assert ticks[1].since == ticks[0].time
    assert 0.5 < ticks[1].time - ticks[1].since < 5.0


def test_a_reader_who_goes_ends_it() -> None:
    def gone(_: Tick) -> None:
        raise BrokenPipeError(32, "Broken pipe")

    said: list[str] = []
    watched = service(sinks=[gone], say=said.append)
    with pytest.raises(BrokenPipeError):
        watched.run()
    watched.close()
    assert said == []
