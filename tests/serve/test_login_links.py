"""Links for browsers: good for the one that shows the code, and not for who has the link alone."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from anyio.from_thread import start_blocking_portal

from lowtide.serve.app import make_app
from lowtide.serve.gate import Doorkeeper
from lowtide.serve.login_links import CODE_S, LINK_S, MOST_TRIES, confirm_link, make_link
from lowtide.serve.settings import Settings
from support.asking import Answered, Client
from support.pushed import CLUSTER, centre

NOW = 1_800_000_000.0


@pytest.fixture
def keeper(tmp_path: Path) -> Iterator[Doorkeeper]:
    settings = Settings(cluster=CLUSTER, url="http://127.0.0.1:8470", munge=True)
    with centre(str(tmp_path / "centre.sqlite")) as database:
        yield Doorkeeper(database, settings, clock=lambda: NOW)


@pytest.fixture
def client(keeper: Doorkeeper) -> Iterator[Client]:
    with start_blocking_portal() as portal:
        yield Client(portal, make_app(keeper))


class Browser:
    """Keeps the cookies that it is given."""

    def __init__(self, client: Client) -> None:
        self.client = client
        self.cookies: dict[str, str] = {}

    def ask(self, method: str, path: str) -> Answered:
        cookie = "; ".join(f"{name}={value}" for name, value in self.cookies.items())
        answer = self.client.ask(method, path, cookie=cookie or None)
        if said := answer.headers.get("set-cookie"):
            name, _, value = said.partition(";")[0].partition("=")
            assert "HttpOnly" in said
            self.cookies[name] = value
        return answer

    def opens(self, key: str) -> str:
        """Open a link and return the code that is shown; empty for none."""
        assert self.ask("GET", f"/enter/{key}").status == 200
        found = re.search(rb"<b>(\d{6})</b>", self.ask("POST", f"/enter/{key}").body)
        return found[1].decode() if found else ""

    @property
    def user(self) -> str:
        told = self.ask("GET", "/api/v1/me")
        return told.json()["user"] if told.status == 200 else ""


def test_the_browser_that_shows_the_code_comes_in(keeper: Doorkeeper, client: Client) -> None:
    key, confirm = make_link(keeper.database, "ada", now=NOW)
    hers = Browser(client)
    code = hers.opens(key)
    # Nothing is open before the code was typed in.
    assert b"not typed in yet" in hers.ask("POST", f"/enter/{key}").body
    assert hers.user == ""
    told = client.ask("POST", "/login/link", body=f"{confirm} {code}".encode())
    assert told.json() == {"confirmed": True}
    assert hers.ask("POST", f"/enter/{key}").status == 303
    assert hers.user == "ada"
    assert Browser(client).ask("POST", f"/enter/{key}").status == 401


def test_a_link_alone_opens_nothing(keeper: Doorkeeper, client: Client) -> None:
    """Whoever saw the link and was first has the code, and not where it is to be typed in."""
    key, confirm = make_link(keeper.database, "ada", now=NOW)
    eves, hers = Browser(client), Browser(client)
    code = eves.opens(key)
    assert code
    assert hers.ask("POST", f"/enter/{key}").status == 401
    assert client.ask("POST", "/login/link", body=f"{key} {code}".encode()).status == 401
    assert eves.ask("POST", f"/enter/{key}").status == 200
    assert eves.user == ""
    # Ada sees no code, and types none. Had she, another browser would still not come in.
    assert confirm_link(keeper.database, confirm, code, now=NOW)
    assert hers.ask("POST", f"/enter/{key}").status == 401
    forged = Browser(client)
    forged.cookies = {"lowtide-login": "x" * 43}
    assert forged.ask("POST", f"/enter/{key}").status == 401


def test_a_link_of_somebody_else_logs_nobody_in(keeper: Doorkeeper, client: Client) -> None:
    """Eve sends ada her own link, so that ada's work should land with eve."""
    key, confirm = make_link(keeper.database, "eve", now=NOW)
    hers = Browser(client)
    hers.opens(key)
    for guess in ("000000", "123456", "", "999999"):
        client.ask("POST", "/login/link", body=f"{confirm} {guess}".encode())
    assert hers.ask("POST", f"/enter/{key}").status == 401
    assert hers.user == ""


def test_a_code_is_not_guessed_and_ends(keeper: Doorkeeper, client: Client) -> None:
    database = keeper.database
    key, confirm = make_link(database, "ada", now=NOW)
    assert not confirm_link(database, confirm, "", now=NOW), "nobody has opened it"
    code = Browser(client).opens(key)
    wrong = f"{(int(code) + 1) % 10**6:06}"
    for _ in range(MOST_TRIES):
        assert not confirm_link(database, confirm, wrong, now=NOW)
    assert not confirm_link(database, confirm, code, now=NOW)
    key, confirm = make_link(database, "ada", now=NOW)
    code = Browser(client).opens(key)
    assert not confirm_link(database, confirm, code, now=NOW + CODE_S)
    key, _ = make_link(database, "ada", now=NOW)
    late = replace(keeper, clock=lambda: NOW + LINK_S)
    assert Browser(replace(client, app=make_app(late))).opens(key) == ""


def test_whoever_only_follows_a_link_does_not_use_it(keeper: Doorkeeper, client: Client) -> None:
    key, _ = make_link(keeper.database, "ada", now=NOW)
    for _ in range(3):
        page = client.get(f"/enter/{key}")
        assert page.status == 200
        assert "set-cookie" not in page.headers
        # Whether there is such a link is not told either.
        assert page.body == client.get("/enter/" + "b" * len(key)).body.replace(
            b"b" * len(key), key.encode()
        )
    assert Browser(client).opens(key)
    assert client.ask("POST", f"/enter/{key}", sec_fetch_site="cross-site").status == 403
