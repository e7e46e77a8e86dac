"""Asking over HTTP, and everything that can go wrong with it."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime

import pytest

from lowtide.errors import FormatError, InvalidInput, LowtideError, ProviderProblem
from lowtide.formats.signals import Wish
from lowtide.grids import web
from support.grid_providers import TOKEN, StandIn, said


def test_an_answer_comes_whole(server: StandIn) -> None:
    body = bytes(range(256)) * 4096
    server.overrides["/x"] = lambda: (200, {}, body)
    assert web.get(f"{server.url}/x") == body


@pytest.mark.parametrize(
    ("status", "words"),
    [
        (400, "check the zone's name"),
        (401, "does not accept the key"),
        (403, "does not show this with the key there is"),
        (404, "check the zone's name"),
        (429, "asked too often"),
        (500, "out of order"),
        (302, "not followed"),
    ],
)
def test_a_refusal_is_told_in_words_without_the_key(
    server: StandIn, status: int, words: str
) -> None:
    said_of_it = f"token {TOKEN} \x1b[31mis wrong"
    server.overrides["/x"] = lambda: said(
        {"error": {"message": said_of_it}}, status, Location="http://127.0.0.1:9/elsewhere"
    )
    with pytest.raises(ProviderProblem, match=words) as caught:
        web.get(f"{server.url}/x?zone=DE", headers={"auth-token": TOKEN}, secrets=[TOKEN])
    text = str(caught.value)
    assert f"HTTP {status}, 'token *** [31mis wrong'" in text
    assert TOKEN not in text
    assert "\x1b" not in text
    assert caught.value.wait_s == 0
    assert caught.value.__cause__ is None


@pytest.mark.parametrize(
    ("said_so", "wait_s"),
    [("120", 120.0), ("1e9", 3600.0), ("-5", 0.0), ("nan", 0.0), ("soon", 0.0), ("", 0.0)],
)
def test_how_long_to_wait(server: StandIn, said_so: str, wait_s: float) -> None:
    server.overrides["/x"] = lambda: said({}, 429, Retry_After=said_so)
    with pytest.raises(ProviderProblem) as caught:
        web.get(f"{server.url}/x")
    assert caught.value.wait_s == wait_s


def test_a_wait_may_be_told_as_a_date(server: StandIn) -> None:
    until = format_datetime(datetime.now(UTC) + timedelta(minutes=10), usegmt=True)
    server.overrides["/x"] = lambda: said({}, 503, Retry_After=until)
    with pytest.raises(ProviderProblem, match="asks to wait") as caught:
        web.get(f"{server.url}/x")
    assert caught.value.wait_s == pytest.approx(600, abs=5)


def test_a_slow_server_is_left(server: StandIn) -> None:
    server.delay_s = 30.0
    begin = time.monotonic()
    with pytest.raises(ProviderProblem, match=r"does not answer within 0\.2 s"):
        web.get(f"{server.url}/intensity", timeout_s=0.2)
    assert time.monotonic() - begin < 2.0


def test_an_answer_that_breaks_off_is_none(server: StandIn) -> None:
    server.overrides["/x"] = lambda: (200, {"Content-Length": "100"}, b"{}")
    with pytest.raises(ProviderProblem, match="broke off"):
        web.get(f"{server.url}/x", timeout_s=0.5)


def test_an_endless_answer_is_cut(server: StandIn, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(web, "_LARGEST_BYTES", 2**20)
    server.overrides["/x"] = lambda: (200, {}, b" " * 2**21)
    with pytest.raises(ProviderProblem, match="more than 1 MB"):
        web.get(f"{server.url}/x")


def test_nobody_there(server: StandIn) -> None:
    with pytest.raises(ProviderProblem, match="cannot be reached: Connection refused"):
        web.get("http://127.0.0.1:9/x")


@pytest.mark.parametrize("url", ["ftp://example.org/x", "file:///etc/passwd", "example.org", ""])
def test_only_the_web_is_asked(url: str) -> None:
    with pytest.raises(InvalidInput, match="begins with https://"):
        web.get(url)


def test_no_key_goes_out_unencrypted() -> None:
    with pytest.raises(InvalidInput, match="unencrypted") as caught:
        web.get("http://ada:word@example.org/x", secrets=[TOKEN])
    assert "word" not in str(caught.value)


@pytest.mark.parametrize(
    ("body", "error"),
    [
        (b"", ProviderProblem),
        (b'{"data": []}', ProviderProblem),
        (b'{"data": {"regionid": 3, "data": []}}', ProviderProblem),
        (b'{"data": [{"regionid": 3, "data": []}]}', ProviderProblem),
        (b'{"history": null}', ProviderProblem),
        (b'{"data": [', FormatError),
        (b"<html>Log in to the wireless</html>", FormatError),
        (b"\xff\xfe{}", FormatError),
        (b"5", FormatError),
        (b"[1, 2]", FormatError),
        (b'{"data": [{"from": 1, "to": 2, "intensity": 3}]}', FormatError),
        (b'{"data": [{"from": "2024-01-01T00:00Z", "to": null, "intensity": {}}]}', FormatError),
    ],
)
def test_no_answer_makes_the_reader_stumble(body: bytes, error: type[LowtideError]) -> None:
    with pytest.raises(error):
        web.read_series(body, Wish(column="forecast"), url="https://example.org/x", form="gb")


def test_json(server: StandIn) -> None:
    server.overrides["/x"] = lambda: said({"a": 1})
    server.overrides["/y"] = lambda: (200, {}, b"{")
    assert web.get_json(f"{server.url}/x") == {"a": 1}
    with pytest.raises(ProviderProblem, match="no JSON"):
        web.get_json(f"{server.url}/y")
