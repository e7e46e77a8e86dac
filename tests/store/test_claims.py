"""One watcher for a host, and a server that hangs costs seconds."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import sqlalchemy as sa

from lowtide.errors import StoreProblem
from lowtide.store import Store
from support.ticks import Watcher, unit

HOLDS = """
import sys, time
from lowtide.store import Store
with Store.open(sys.argv[1]) as store, store.claim("n1"):
    print("held", flush=True)
    time.sleep(60)
"""


def test_a_host_is_watched_by_one(place: str) -> None:
    with Store.open(place) as one, Store.open(place) as other:
        with one.claim("n1"):
            with (
                pytest.raises(StoreProblem, match=rf"n1 is .*process {os.getpid()}.*end that one"),
                other.claim("n1"),
            ):
                pass
            with other.claim("n2"):
                pass
        with other.claim("n1"):
            pass


def test_a_holder_that_is_killed_lets_go(place: str) -> None:
    Store.open(place).close()
    child = subprocess.Popen(
        [sys.executable, "-c", HOLDS, place], stdout=subprocess.PIPE, text=True
    )
    assert child.stdout is not None
    try:
        assert child.stdout.readline() == "held\n"
        with Store.open(place) as store:
            with pytest.raises(StoreProblem, match=f"process {child.pid}"), store.claim("n1"):
                pass
            child.send_signal(signal.SIGKILL)
            child.wait()
            deadline = time.monotonic() + 10
            while True:
                try:
                    with store.claim("n1"):
                        break
                except StoreProblem:
                    # A server looks after its connections when it gets round to it.
                    assert time.monotonic() < deadline
                    time.sleep(0.05)
    finally:
        child.kill()
        child.wait()
        child.stdout.close()


def test_a_claim_leaves_nothing_behind(tmp_path: Path) -> None:
    path = tmp_path / "store.sqlite"
    link = tmp_path / "link.sqlite"
    link.symlink_to(path)
    with Store.open(path) as store, Store.open(link) as same:
        with store.claim("a/b"):
            # A link leads to the same store.
            with pytest.raises(StoreProblem, match="a/b is"), same.claim("a/b"):
                pass
            assert [each.name for each in tmp_path.glob("*.lock")] == ["store.sqlite.a%2Fb.lock"]
        assert not list(tmp_path.glob("*.lock"))


def test_a_server_that_hangs_costs_seconds(server: str, monkeypatch: pytest.MonkeyPatch) -> None:
    watcher = Watcher()
    with Store.open(server) as store:
        store.append(watcher.tick([unit(1)]))
        monkeypatch.setattr(store._database, "_answer_s", 0.5)
        began = time.monotonic()
        process = 0
        try:
            with (
                pytest.raises(StoreProblem, match=r"does not answer: no answer in 0\.5 s"),
                store._database.reading() as connection,
            ):
                process = connection.execute(sa.text("SELECT pg_backend_pid()")).scalar_one()
                os.kill(process, signal.SIGSTOP)
                connection.execute(sa.text("SELECT 1"))
            # The next has a connection of its own.
            store.append(watcher.tick([unit(1)]))
        finally:
            os.kill(process, signal.SIGCONT)
        assert time.monotonic() - began < 5
        assert store.jobs()[0].energy_j == 2000.0
