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
    threading.Timer(0.2, bell.ring).start()
    begin = time.monotonic()
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
