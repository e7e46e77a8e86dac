"""The cache on disk: never torn, never lost, and safe among processes."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import threading
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from lowtide.errors import FileProblem, FormatError, ProviderProblem
from lowtide.grids.cache import Cache, Entry, cache_folder
from lowtide.grids.history import History, merge
from lowtide.grids.providers import ZoneName

NAME = ZoneName(provider="gb", zone="13")


def history(first: int, count: int) -> History:
    times = np.arange(first, first + count) * 1800.0
    return History(
        name=NAME,
        title="GB Carbon Intensity",
        kind="average",
        basis="direct",
        area="London",
        step_s=1800.0,
        times=times,
        values=times % 977,
        states=np.zeros(count, dtype=np.uint8),
        retrieved=np.full(count, 5.0),
    )


def test_where_it_is(tmp_path: Path) -> None:
    assert cache_folder({"XDG_CACHE_HOME": "/c", "HOME": "/h"}) == Path("/c/lowtide/grids")
    assert Cache(tmp_path).path(NAME) == tmp_path / "gb" / "13.json"


def test_a_round_trip(cache: Cache) -> None:
    assert cache.load(NAME) == Entry(name=NAME)
    entry = Entry(name=NAME, history=history(0, 4), asked=2.0, retrieved=1.5, since=-9.0,
                  wait_until=7.0, problems=("no forecast",))  # fmt: skip
    cache.keep(entry)
    again = cache.load(NAME)
    assert replace(again, history=None) == replace(entry, history=None)
    assert again.history is not None
    assert again.history.document() == history(0, 4).document()
    assert cache.names("gb") == [NAME]
    assert cache.names("other") == []


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b"\xff",
        b'{"lowtide_grid": 2}',
        b'{"lowtide_grid": 1}',
        b"[" * 9**5,
    ],
)
def test_a_file_that_is_none_is_set_aside(cache: Cache, content: bytes) -> None:
    for suffix in ("", "-2"):
        cache.path(NAME).parent.mkdir(parents=True, exist_ok=True)
        cache.path(NAME).write_bytes(content)
        with pytest.raises(FormatError, match=f"now called 13.unreadable{suffix}.json"):
            cache.load(NAME)
        assert (cache.path(NAME).parent / f"13.unreadable{suffix}.json").read_bytes() == content
    assert cache.load(NAME) == Entry(name=NAME)
    assert cache.names("gb") == []


def test_a_folder_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    cache = Cache(tmp_path / "file")
    with pytest.raises(FileProblem):
        cache.keep(Entry(name=NAME))
    with cache.asking(NAME, patience_s=0.1):
        pass


def test_one_asks_at_a_time(cache: Cache) -> None:
    inside, most, order = 0, 0, []

    def ask(number: int) -> None:
        nonlocal inside, most
        with cache.asking(NAME, patience_s=10.0):
            inside += 1
            most = max(most, inside)
            time.sleep(0.02)
            inside -= 1
            order.append(number)

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most == 1
    assert sorted(order) == [0, 1, 2, 3]


def test_patience_ends(cache: Cache) -> None:
    with (
        cache.asking(NAME, patience_s=1.0),
        pytest.raises(ProviderProblem, match="another process has been asking for gb:13"),
        cache.asking(NAME, patience_s=0.1),
    ):
        pass
    with cache.asking(ZoneName(provider="gb", zone="12"), patience_s=0.0):
        pass


def add_steps(folder: Path, first: int) -> None:
    cache = Cache(folder)
    for step in range(first, first + 10):
        with cache.asking(NAME, patience_s=30.0):
            known = cache.load(NAME).history
            new = history(step, 1)
            cache.keep(Entry(name=NAME, history=new if known is None else merge(known, new)))


def write_on(folder: Path) -> None:
    cache, size = Cache(folder), 0
    while True:
        size = size % 400 + 50
        cache.keep(Entry(name=NAME, history=history(0, size)))


def test_processes_lose_nothing_of_each_other(cache: Cache) -> None:
    context = multiprocessing.get_context("spawn")
    writers = [context.Process(target=add_steps, args=(cache.folder, 10 * n)) for n in range(3)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
        assert writer.exitcode == 0
    known = cache.load(NAME).history
    assert known is not None
    assert known.document() == history(0, 30).document()


def test_whoever_is_killed_leaves_a_whole_file(cache: Cache) -> None:
    context = multiprocessing.get_context("spawn")
    writer = context.Process(target=write_on, args=(cache.folder,))
    writer.start()
    try:
        deadline = time.monotonic() + 60
        while not cache.path(NAME).exists():
            assert time.monotonic() < deadline
            time.sleep(0.01)
        seen: set[int] = set()
        looks = 0
        # Whatever moment it is looked at, there is a whole file.
        while looks < 50 or len(seen) < 2:
            assert time.monotonic() < deadline
            seen.add(len(json.loads(cache.path(NAME).read_bytes())["history"]["times"]))
            looks += 1
    finally:
        os.kill(writer.pid, signal.SIGKILL)
        writer.join()
    assert cache.load(NAME).history is not None
