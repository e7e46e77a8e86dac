"""Passwords, proxies, how often may be guessed, and what the doors tell those who do."""

from __future__ import annotations

import os
import stat
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from anyio.from_thread import start_blocking_portal

from lowtide.errors import InvalidInput
from lowtide.serve.app import make_app
from lowtide.serve.gate import Doorkeeper
from lowtide.serve.login import MOST_BEGUN, MOST_FAILED, WINDOW_S, count_try
from lowtide.serve.settings import ProxyLogin, Settings
from support.asking import Answered, Client
from support.pushed import CLUSTER, centre

SECRET = "between-the-proxy-and-us"
NOW = 1_800_000_000.0
# PAM itself asks this, of the name that it was given and the word that it was told.
ASKED = """#!{python} -IS
import os, sys
word = sys.stdin.buffer.read().rstrip(b"\\0").decode()
known = {{"ada": "right", "bob": "pass & = % word"}}
sys.exit(0 if known.get(os.environ["PAM_USER"]) == word else 1)
"""


@pytest.fixture(scope="module")
def services(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Services of PAM's in a folder of their own."""
    folder = tmp_path_factory.mktemp("pam")
    script = folder / "asked.py"
    script.write_text(ASKED.format(python=sys.executable))
    script.chmod(0o755)
    lines = f"auth required pam_exec.so quiet expose_authtok {script}\naccount required {{}}.so\n"
    (folder / "lowtide").write_text(lines.format("pam_permit"))
    (folder / "shut").write_text(lines.format("pam_deny"))
    (folder / "broken").write_text("auth required no_such_module.so\n")
    return folder


@pytest.fixture
def keeper(tmp_path: Path, services: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Doorkeeper]:
    monkeypatch.setattr("lowtide.serve.login_routes.FAILED_S", 0.0)
    secret = tmp_path / "secret"
    secret.touch(mode=0o600)
    secret.write_text(SECRET)
    settings = Settings(
        cluster=CLUSTER, pam="lowtide", pam_folder=str(services), proxy="10.0.0.7",
        proxy_login=ProxyLogin(header="X-Remote-User", secret_file=str(secret)),
    )  # fmt: skip
    with centre(str(tmp_path / "centre.sqlite")) as database:
        yield Doorkeeper(database, settings, clock=lambda: NOW)


@pytest.fixture
def client(keeper: Doorkeeper) -> Iterator[Client]:
    with start_blocking_portal() as portal:
        yield Client(portal, make_app(keeper))


def _try(client: Client, user: str, password: str, **headers: str) -> Answered:
    from urllib.parse import urlencode

    body = urlencode({"user": user, "password": password}).encode()
    return client.ask("POST", "/login/password", body=body, **headers)


def _who(client: Client, answer: Answered) -> str | None:
    cookie = answer.headers.get("set-cookie", "").partition(";")[0]
    told = client.get("/api/v1/me", cookie=cookie or None)
    return told.json()["user"] if told.status == 200 else None


def test_who_knows_a_password_comes_in(client: Client) -> None:
    assert b'action="/login/password"' in client.get("/login").body
    # Whoever is not known is shown the doors, wherever they wanted to go.
    assert b'action="/login/password"' in client.get("/jobs").body
    assert _who(client, _try(client, "ada", "right")) == "ada"
    assert _who(client, _try(client, "bob", "pass & = % word")) == "bob"


@pytest.mark.parametrize(
    ("user", "password"),
    [
        *(("ada", "wrong"), ("ada", ""), ("nobody-here", "right"), ("", "right")),
        *(("ada", "right\0"), ("ada\0", "right"), ("ada\n", "right"), ("../ada", "right")),
        *(("x" * 200, "right"), ("ada", "x" * 4000), ("ada bob", "right"), ("-ada", "right")),
    ],
)
def test_who_fails_is_told_no_more_than_that(client: Client, user: str, password: str) -> None:
    answer = _try(client, user, password)
    assert answer.status == 401
    assert "set-cookie" not in answer.headers
    # The same for a user that there is and for one that there is not, to the byte.
    assert answer.body == _try(client, "ada", "wrong", x="y").body


def test_an_account_that_ended_stays_out(keeper: Doorkeeper) -> None:
    for service in ("shut", "broken", "no-such-service"):
        settings = replace(keeper.settings, pam=service)
        with start_blocking_portal() as portal:
            answer = _try(
                Client(portal, make_app(replace(keeper, settings=settings))), "ada", "right"
            )
        assert answer.status in (401, 503)
        assert "set-cookie" not in answer.headers


def test_whoever_fails_has_to_wait(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lowtide.serve.login_routes.FAILED_S", 0.4)
    begun = time.monotonic()
    # No process is started for a name that cannot be one, and it takes as long.
    assert _try(client, "../x", "y").status == 401
    assert time.monotonic() - begun > 0.3


def test_nobody_guesses_often(keeper: Doorkeeper, client: Client) -> None:
    for _ in range(MOST_FAILED):
        assert _try(client, "ada", "wrong").status == 401
    # Not even the right one is looked at by then; nor another's, from the same address.
    assert _try(client, "ada", "right").status == 429
    assert _try(client, "ADA", "right").status == 429
    assert _try(client, "bob", "pass & = % word").status == 429
    later = replace(keeper, clock=lambda: NOW + WINDOW_S + 1.0)
    with start_blocking_portal() as portal:
        assert _try(Client(portal, make_app(later)), "ada", "right").status == 303


def test_an_address_is_what_the_proxy_has_seen(keeper: Doorkeeper) -> None:
    def scope(client: Any, *told: str) -> dict[str, Any]:
        headers = [(b"x-forwarded-for", each.encode()) for each in told]
        return {"type": "http", "client": client, "headers": headers}

    assert keeper.address(scope(("1.2.3.4", 5), "6.6.6.6")) == "1.2.3.4"
    assert keeper.address(scope(("10.0.0.7", 5), "6.6.6.6, 5.5.5.5")) == "5.5.5.5"
    assert keeper.address(scope(("10.0.0.7", 5), "6.6.6.6", "5.5.5.5")) == "5.5.5.5"
    assert keeper.address(scope(("10.0.0.7", 5))) == "10.0.0.7"
    # Where no socket is the proxy's, who comes without an address is not believed either.
    assert keeper.address(scope(None, "6.6.6.6")) == ""


def test_who_knows_a_password_guesses_no_others_by_it(client: Client) -> None:
    for _ in range(MOST_FAILED - 1):
        assert _try(client, "bob", "wrong").status == 401
    assert _try(client, "ada", "right").status == 303
    assert _try(client, "bob", "wrong").status == 429


def test_many_at_once_do_not_come_by_together(place: str) -> None:
    from concurrent.futures import ThreadPoolExecutor

    with centre(place) as database, ThreadPoolExecutor(12) as pool:

        def one(name: str) -> bool:
            return count_try(database, [name], now=NOW, most=MOST_FAILED)

        for name in ("user ada", "user bob", "user cy", "user lea"):
            assert sum(pool.map(one, [name] * 24)) == MOST_FAILED
        # Whom a database would not even name is counted as well.
        assert not one("user a\0da")


def test_logins_that_are_only_begun_are_counted(keeper: Doorkeeper) -> None:
    settings = replace(keeper.settings, munge=True, url="http://127.0.0.1:8470")
    for _ in range(MOST_BEGUN):
        assert count_try(keeper.database, ["begin 127.0.0.1"], now=NOW, most=MOST_BEGUN)
    with start_blocking_portal() as portal:
        client = Client(portal, make_app(replace(keeper, settings=settings)))
        answer = client.ask("POST", "/login/challenge")
    assert (answer.status, answer.headers["retry-after"]) == (429, f"{WINDOW_S:.0f}")


PROXIED = {"x_remote_user": "ada", "x_lowtide_secret": SECRET}


class _FromElsewhere(Client):
    """Somebody who asks from an address."""

    address: tuple[str, int] | None = ("10.0.0.7", 5)

    async def _run(self, scope: dict[str, Any], body: bytes) -> Answered:
        return await super()._run({**scope, "client": self.address}, body)


@pytest.fixture
def proxy(client: Client) -> _FromElsewhere:
    return _FromElsewhere(client.portal, client.app)


def test_a_proxy_that_shows_its_secret_is_believed(client: Client, proxy: _FromElsewhere) -> None:
    answer = proxy.get("/login/proxy", **PROXIED)
    assert answer.status == 303
    cookie = answer.headers["set-cookie"].partition(";")[0]
    assert proxy.get("/api/v1/me", cookie=cookie, **PROXIED).json()["user"] == "ada"
    # By then another sits there, says the proxy.
    other = {**PROXIED, "x_remote_user": "bob"}
    assert proxy.get("/api/v1/me", cookie=cookie, **other).status == 401
    # A header alone opens no other door, and it is no session.
    assert proxy.get("/api/v1/me", **PROXIED).status == 401
    assert client.get("/api/v1/me", **PROXIED).status == 401


@pytest.mark.parametrize(
    "changed",
    [
        {"x_lowtide_secret": "guessed-by-somebody-else"},
        {"x_lowtide_secret": None},
        {"x_lowtide_secret": ""},
        {"x_remote_user": None},
        {"x_remote_user": ""},
        {"x_remote_user": "ada, adam"},
        {"x_remote_user": "../ada"},
    ],
)
def test_a_proxy_that_does_not_is_not(
    proxy: _FromElsewhere, changed: dict[str, str | None]
) -> None:
    assert proxy.get("/login/proxy", **{**PROXIED, **changed}).status == 401


def test_others_than_the_proxy_are_not_believed(client: Client, proxy: _FromElsewhere) -> None:
    assert client.get("/login/proxy", **PROXIED).status == 401
    assert client.get("/login/proxy", **PROXIED, x_forwarded_for="10.0.0.7").status == 401

    class Silent(_FromElsewhere):
        address = None

    assert Silent(client.portal, client.app).get("/login/proxy", **PROXIED).status == 401


def test_a_secret_that_everybody_may_read_is_none(keeper: Doorkeeper) -> None:
    path = Path(keeper.settings.proxy_login.secret_file)
    path.chmod(path.stat().st_mode | stat.S_IROTH)
    with start_blocking_portal() as portal, pytest.raises(InvalidInput, match="may read"):
        Client(portal, make_app(keeper))


def test_forms_of_other_pages_are_refused(client: Client) -> None:
    for origin in ("https://evil.example", "null", "http://127.0.0.1.evil.example", "http://[x"):
        assert _try(client, "ada", "right", origin=origin).status == 403
    assert _try(client, "ada", "right", sec_fetch_site="cross-site").status == 403
    assert _try(client, "ada", "right", origin="http://127.0.0.1:8470").status == 303


def test_doors_that_are_not_open_are_not_there(keeper: Doorkeeper) -> None:
    with start_blocking_portal() as portal:
        client = Client(portal, make_app(replace(keeper, settings=Settings(cluster=CLUSTER))))
        for path in ("/login/oidc", "/login/oidc/back", "/login/proxy", "/login/password"):
            nothing = client.ask("POST", "/login/no-such-door")
            for method in ("GET", "POST"):
                assert client.ask(method, path) == nothing
        assert client.get("/login").status == 200


def test_nothing_of_ours_becomes_another_user(root: Path) -> None:
    """No program of this package has to be run with more rights than its user has."""
    for path in (root / "src").rglob("*"):
        assert not path.stat().st_mode & (stat.S_ISUID | stat.S_ISGID) or path.is_dir()
        if path.suffix == ".py":
            text = path.read_text(encoding="utf-8")
            assert not any(f"os.{name}(" in text for name in ("setuid", "seteuid", "setresuid"))
    assert os.access(root, os.R_OK)
