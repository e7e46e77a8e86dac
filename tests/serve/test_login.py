"""Login by munge: a seal for this centre, made now, opens it once; nothing else does."""

from __future__ import annotations

import getpass
import io
import json
import re
import secrets
import shutil
import subprocess
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from anyio.from_thread import start_blocking_portal

from lowtide.centre.munge import sealed, words_for
from lowtide.serve.app import make_app
from lowtide.serve.gate import Doorkeeper
from lowtide.serve.settings import Settings
from lowtide.serve.tokens import list_tokens, read_token
from support.asking import Client, serving
from support.commands import run
from support.needs import is_missing
from support.pushed import CLUSTER, centre

pytestmark = pytest.mark.alone
URL = "http://127.0.0.1:8470"


@pytest.fixture(scope="module")
def socket() -> Iterator[str]:
    """A munge of its own."""
    if shutil.which("munged") is None:
        is_missing("needs munge: apt-get install munge")
    folder = Path(tempfile.mkdtemp(prefix="munge-"))
    key = folder / "munge.key"
    key.touch(mode=0o600)
    key.write_bytes(secrets.token_bytes(128))
    places = {"key-file": "munge.key", "socket": "sock", "pid-file": "pid", "log-file": "log"}
    places["seed-file"] = "seed"
    daemon = subprocess.Popen(
        [
            *("munged", "--foreground", "--force"),
            *(f"--{name}={folder / value}" for name, value in places.items()),
        ],
        stderr=subprocess.DEVNULL,
    )
    try:
        end = time.monotonic() + 20.0
        while not (folder / "sock").exists() and time.monotonic() < end:
            time.sleep(0.02)
        yield str(folder / "sock")
    finally:
        daemon.terminate()
        daemon.wait(20.0)
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def keeper(tmp_path: Path, socket: str) -> Iterator[Doorkeeper]:
    with centre(str(tmp_path / "centre.sqlite")) as database:
        settings = Settings(cluster=CLUSTER, url=URL, munge=True, munge_socket=socket)
        yield Doorkeeper(database, settings)


@pytest.fixture
def client(keeper: Doorkeeper) -> Iterator[Client]:
    with start_blocking_portal() as portal:
        yield Client(portal, make_app(keeper))


def _challenge(client: Client) -> str:
    return str(client.ask("POST", "/login/challenge").json()["challenge"])


def _enter(client: Client, credential: str, *, query: str = "") -> tuple[int, dict[str, str]]:
    answer = client.ask("POST", f"/login/munge{query}", body=credential.encode())
    return answer.status, answer.json()


def test_a_seal_opens_once(client: Client, socket: str) -> None:
    seal = sealed(words_for(URL, _challenge(client)), socket)
    status, told = _enter(client, seal)
    assert (status, told["user"]) == (200, getpass.getuser())
    # What it opens, and for whom, is in `test_login_links`.
    assert client.ask("POST", f"/enter/{told['link']}").status == 200
    assert client.ask("POST", f"/enter/{told['link']}").status == 401
    assert _enter(client, seal)[0] == 401
    seal = sealed(words_for(URL, _challenge(client)), socket)
    token = _enter(client, seal, query="?token=1")[1]["token"]
    assert client.get("/api/v1/me", authorization=f"Bearer {token}").json()["user"] == told["user"]


def test_other_seals_open_nothing(client: Client, socket: str) -> None:
    number = _challenge(client)
    for words in (
        words_for("http://127.0.0.1:9999", number),
        words_for(URL, "lt_" + "x" * 43),
        f"lowtide-login\n{URL}\n{number}",
        f"lowtide-login\n{URL}\n{number}\nmore\n",
        f"job 4711\n{URL}\n{number}\n",
        "",
    ):
        assert _enter(client, sealed(words, socket))[0] == 401
    for noise in ("", "MUNGE:", "MUNGE:AwQD:", "x" * 4000, "MUNGE:" + "A" * 200 + ":"):
        assert _enter(client, noise)[0] == 401
    assert _enter(client, "x" * 6000)[0] == 413
    # What was asked for is still good for the one who asked.
    assert _enter(client, sealed(words_for(URL, number), socket))[0] == 200


def test_a_number_is_good_for_a_minute(keeper: Doorkeeper, socket: str) -> None:
    with start_blocking_portal() as portal:
        number = _challenge(Client(portal, make_app(keeper)))
        later = replace(keeper, clock=lambda: time.time() + 61.0)
        seal = sealed(words_for(URL, number), socket)
        assert _enter(Client(portal, make_app(later)), seal)[0] == 401


def test_without_munge_there_is_no_such_door(keeper: Doorkeeper) -> None:
    shut = replace(keeper, settings=replace(keeper.settings, munge=False))
    with start_blocking_portal() as portal:
        client = Client(portal, make_app(shut))
        assert client.ask("POST", "/login/challenge").status == 404


class _Person:
    """Opens in a browser what was printed, and types in what it shows."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self.capsys = capsys

    def readline(self, _most: int = -1) -> str:
        told = json.loads(self.capsys.readouterr().out)
        assert set(told) == {"user", "link"}
        opened = urllib.request.Request(told["link"], data=b"", method="POST")
        with urllib.request.urlopen(opened, timeout=20) as page:
            found = re.search(r"<b>(\d{6})</b>", page.read().decode())
        assert found is not None
        return found[1] + "\n"


def test_people_log_in(
    keeper: Doorkeeper,
    socket: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    kept = tmp_path / "config" / "lowtide" / "centre.json"
    with serving(keeper) as url:
        monkeypatch.setattr("sys.stdin", _Person(capsys))
        told = run(capsys, "login", url, "--browser", "--json", "--socket", socket)
        assert told.code == 0
        assert "go on in the browser" in told.err
        monkeypatch.setattr("sys.stdin", io.StringIO("123456\n"))
        wrong = run(capsys, "login", url, "--browser", "--socket", socket)
        assert wrong.code != 0
        assert "that is not the code" in wrong.err
        token = run(capsys, "login", url, "--token", "--socket", socket)
        assert token.out.startswith("lt_")
        assert not kept.exists()
        assert run(capsys, "login", url, "--socket", socket).code == 0
        assert kept.stat().st_mode & 0o777 == 0o600
        assert "No such jobs" in run(capsys, "jobs").out
        # It is the same centre as before.
        assert run(capsys, "login", "--token", "--socket", socket).out.startswith("lt_")
        secret = json.loads(kept.read_text())["token"]
        assert len(list_tokens(keeper.database, owner=None, now=time.time())) == 3
        assert run(capsys, "logout").code == 0
        assert not kept.exists()
        assert read_token(keeper.database, secret, now=time.time()) is None
        assert "not logged in" in run(capsys, "logout").out
    for where in ("http://energy.example.org", "ftp://x", url):
        assert run(capsys, "login", where).code == 2
    assert run(capsys, "login").code == 2
    assert run(capsys, "login", url, "--browser", "--token").code == 2
