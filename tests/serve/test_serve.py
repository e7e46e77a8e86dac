"""What people type: lowtide serve on a machine of one's own, and as the centre of a cluster."""

from __future__ import annotations

import json
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from http.cookiejar import CookieJar
from pathlib import Path

import pytest

from lowtide.serve.local import Mirror
from lowtide.store import Store
from lowtide.store.database import Database
from support.commands import run
from support.pushed import centre, rows
from support.ticks import Watcher, facts, unit

pytestmark = pytest.mark.alone
LOWTIDE = (sys.executable, "-m", "lowtide")
PATIENCE_S = 60.0


def _port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return int(taken.getsockname()[1])


@contextmanager
def _running(*words: str, says: str) -> Iterator[str]:
    """Start a command that goes on, yield what it said, and end it."""
    process = subprocess.Popen([*LOWTIDE, *words], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        line = process.stdout.readline()
        assert re.search(says, line), line
        yield line
        process.send_signal(signal.SIGINT)
        process.wait(PATIENCE_S)
    finally:
        process.kill()
        process.communicate()


def _read(opener: urllib.request.OpenerDirector, url: str) -> str:
    """Read a page, as soon as the server is there."""
    end = time.monotonic() + PATIENCE_S
    while True:
        try:
            with opener.open(url, timeout=PATIENCE_S) as answer:
                return str(answer.read().decode())
        except urllib.error.HTTPError:
            raise
        except OSError:
            if time.monotonic() > end:
                raise
            time.sleep(0.1)


def test_a_machine_s_own_store_is_a_page_for_its_user(tmp_path: Path) -> None:
    path = tmp_path / "store.sqlite"
    watcher = Watcher(time=time.time() - 3600.0)
    began = watcher.time
    with Store.open(path) as store:
        for _ in range(100):
            store.append(watcher.tick([unit(7, started=began, name="<b>fold</b>")], step_s=30.0))
        known = {"user": "ada", "account": "phys", "nodes": ("n1",)}
        ended = watcher.time
        store.put_facts([facts(7, state="completed", started=began, ended=ended, **known)])
    port = _port()
    words = ("serve", "--store", str(path), "--listen", f"127.0.0.1:{port}")
    with _running(*words, says=r"http://127\.0\.0\.1:\d+/enter/lt_") as line:
        opener = urllib.request.build_opener(urllib.request.HTTPCookieProcessor(CookieJar()))
        link = re.search(r"http://\S+", line)
        assert link is not None
        home = _read(opener, link[0])
        assert "&lt;b&gt;fold&lt;/b&gt;" in home
        assert "<b>fold" not in home
        ref = re.search(r"/jobs/(\w{15})", home)
        assert ref is not None
        page = _read(opener, f"http://127.0.0.1:{port}/jobs/{ref[1]}")
        assert "300 kJ" in page
        assert len(page) < 60_000
        with pytest.raises(urllib.error.HTTPError, match="401"):
            _read(urllib.request.build_opener(), f"http://127.0.0.1:{port}/")


def test_a_node_joins_a_centre(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A token, a watcher that pushes, and what it watched is there."""
    config = tmp_path / "serve.toml"
    config.write_text('cluster = "alps"\nadmins = ["adam"]\n')
    place = tmp_path / "centre.sqlite"
    host = socket.gethostname()
    own = ("--store", str(place), "--config", str(config))
    made = run(capsys, "serve", "node-token", host, "--json", *own)
    assert made.code == 0
    told = json.loads(made.out)
    token_file = tmp_path / "token"
    token_file.write_text(told["token"])
    token_file.chmod(0o600)
    port = _port()
    with (
        _running("serve", *own, "--listen", f"127.0.0.1:{port}", says="centre of alps"),
        subprocess.Popen(
            [
                *(*LOWTIDE, "watch", "--interval", "0.5", "--store", str(tmp_path / "n.sqlite")),
                *("--push", f"http://127.0.0.1:{port}/alps", "--push-token-file", str(token_file)),
            ],
            stdout=subprocess.DEVNULL,
            env={"PATH": "/usr/bin:/bin"},
        ) as node,
    ):
        try:
            end = time.monotonic() + 90.0
            found: list[dict[str, object]] = []
            while not found and time.monotonic() < end:
                time.sleep(0.5)
                database = Database(place, readonly=True)
                from lowtide.serve import schema

                found = rows(database, schema.incarnations)
                database.close()
        finally:
            node.terminate()
            node.wait(PATIENCE_S)
    assert [(row["cluster"], row["host"]) for row in found] == [("alps", host)]


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--listen", "8470"), "an address and a port"),
        (("--config", "no.toml"), "no.toml"),
        (("--config", "odd.toml"), "did you mean 'cluster'"),
        (("--config", "serve.toml"), "a store of its own"),
        (
            ("--config", "serve.toml", "--store", "c.sqlite", "--listen", "0.0.0.0:80"),
            "in the clear",
        ),
        (("--store", "nothing.sqlite"), "there is no store"),
    ],
)
def test_what_cannot_be_served_says_why(
    words: tuple[str, ...],
    says: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("serve.toml").write_text('cluster = "alps"\n')
    Path("odd.toml").write_text('clustr = "alps"\n')
    answer = run(capsys, "serve", *words)
    assert answer.code == 2
    assert says in answer.err


def test_a_mirror_is_as_its_store(tmp_path: Path) -> None:
    """Also where a part of the store was made coarser before anybody served it."""
    path = tmp_path / "store.sqlite"
    with Store.open(path) as store:
        watcher = Watcher()
        for number in range(300):
            store.append(watcher.tick([unit(number // 100)]))
        late = watcher.time + 30 * 86400.0
        store.prune(now=late)
        watcher.time = late
        for _ in range(100):
            store.append(watcher.tick([unit(5, started=late)]))
        now = watcher.time
        wanted = {each.job_id: each.energy_j for each in store.jobs(now=now)}
        source = Database(path, readonly=True)
        with centre(str(tmp_path / "centre.sqlite")) as database:
            mirror = Mirror(source, database)
            mirror.catch_up(now=now)
            for _ in range(10):
                store.append(watcher.tick([unit(5, started=late)]))
            mirror.catch_up(now=watcher.time)
            assert mirror.catch_up(now=watcher.time) == 0
            from lowtide.serve import schema

            found = {row["job_id"]: row["energy_j"] for row in rows(database, schema.jobs)}
            assert not rows(database, schema.quarantine)
        source.close()
    wanted["5"] += 10_000.0
    assert found == pytest.approx(wanted)


def test_a_centre_that_is_set_up_nowhere_says_how(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    usual = tmp_path / "etc" / "serve.toml"
    monkeypatch.setattr("lowtide.serve.settings.USUAL_PLACE", usual)
    monkeypatch.delenv("LOWTIDE_STORE", raising=False)
    for words in (("node-token", "n1"), ("tokens",)):
        refused = run(capsys, "serve", *words)
        assert refused.code == 2
        assert f"none at {usual}" in refused.err
        assert "--config FILE" in refused.err
    usual.parent.mkdir()
    usual.write_text('cluster = "alps"\n')
    refused = run(capsys, "serve", "node-token", "n1")
    assert refused.code == 2
    assert "--store" in refused.err
    usual.write_text(f'cluster = "alps"\nstore = "{tmp_path / "centre.sqlite"}"\n')
    made = run(capsys, "serve", "node-token", "n1", "--json")
    assert made.code == 0
    assert json.loads(made.out)["token"].startswith("lt_")


def test_a_machine_without_a_store_says_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("LOWTIDE_STORE", str(tmp_path / "none.sqlite"))
    refused = run(capsys, "serve")
    assert refused.code != 0
    assert "start watching with lowtide watch" in refused.err
