"""Mails of what jobs wasted: who gets one, who does not, and what arrives at a real mail server."""

from __future__ import annotations

import email
import json
import math
import random
import socket
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from email.message import Message
from email.policy import default
from pathlib import Path
from typing import Any

import pytest
from aiosmtpd.controller import Controller

from lowtide.errors import InvalidInput, Unreachable
from lowtide.serve import schema
from lowtide.serve.mail import compose, letters, mail_text, send, set_mails, stop_mails
from lowtide.serve.settings import Exempt, MailSettings, Settings
from lowtide.store.database import Database
from support.commands import run
from support.faces import assert_keys_as_kept
from support.pushed import Node, centre, rows
from support.wasteful import WastefulNode, wasteful

# A Wednesday, and the Saturday after it.
DAY_S = 86400.0
USERS = ("ada", "bob", "cy")


class _Sink:
    """Keeps the mails that a server takes."""

    def __init__(self) -> None:
        self.taken: list[tuple[list[str], Message]] = []

    async def handle_DATA(self, _server: Any, _session: Any, envelope: Any) -> str:  # noqa: N802
        if any(each.startswith("refused@") for each in envelope.rcpt_tos):
            return "550 nobody of that name"
        told = email.message_from_bytes(envelope.content, policy=default)
        self.taken.append((envelope.rcpt_tos, told))
        return "250 OK"


@pytest.fixture
def sink() -> Iterator[tuple[_Sink, str]]:
    kept = _Sink()
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = int(taken.getsockname()[1])
    controller = Controller(kept, hostname="127.0.0.1", port=port)
    controller.start()
    try:
        yield kept, f"127.0.0.1:{port}"
    finally:
        controller.stop()


@pytest.fixture(scope="module")
def wasted(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Database, float]]:
    """A centre in which three users waste by plan, and the moment of the last of it."""
    folder = tmp_path_factory.mktemp("mail")
    chance = random.Random(5)
    kinds = ("serial", "idle_gpus", "idle_cores", "dead_weight", "bad_gpus", "left_gpus")
    jobs = [
        replace(wasteful(rule, number, chance), user=USERS[number % 3])
        for number, rule in enumerate(kinds, start=1)
    ]
    with centre(str(folder / "centre.sqlite")) as database:
        node = Node(folder / "n1.sqlite")
        told = WastefulNode()
        for tick, facts in told.ticks(jobs):
            node.store.append(tick)
            node.store.put_facts(facts)
        node.watcher.time = told.time
        assert not any(answer.reason for answer in node.push(database))
        node.store.close()
        yield database, told.time


@pytest.fixture
def quiet(wasted: tuple[Database, float]) -> Iterator[tuple[Database, float]]:
    """The same, as if nobody had ever been written to."""
    database, now = wasted
    with database.writing() as connection:
        connection.execute(schema.mails.delete())
        connection.execute(schema.mail_stops.delete())
    yield database, now


def _settings(server: str = "127.0.0.1:9", **more: Any) -> Settings:
    given = {"server": server, "sender": "hpc@example.org", "domain": "example.org"}
    mail = MailSettings(**{**given, "least_kwh": 0.0, **more})
    return Settings(cluster="alps", url="https://centre.example.org", mail=mail)


def _workday(now: float) -> float:
    """Return the same hour on the next day from Monday to Friday."""
    while datetime.fromtimestamp(now, UTC).weekday() >= 5:
        now += DAY_S
    return now


def test_mails_arrive_once(quiet: tuple[Database, float], sink: tuple[_Sink, str]) -> None:
    database, now = quiet
    now = _workday(now)
    kept, server = sink
    settings = _settings(server, copy_to="boss@example.org")
    found = letters(database, settings, now=now)
    assert {each.user for each in found} == set(USERS)
    assert not any(each.why_not for each in found)
    assert sorted(send(database, settings, found, now=now)) == sorted(USERS)
    to = {names[0] for names, _ in kept.taken}
    assert to == {f"{user}@example.org" for user in USERS}
    for names, message in kept.taken:
        assert names[1:] == ["boss@example.org"]
        assert message["Auto-Submitted"] == "auto-generated"
        text = message.get_content()  # type: ignore[attr-defined]
        assert "/stop/lt_" in text
        others = {user for user in USERS if f"{user}@" not in names[0]}
        assert not any(f" {user}" in text for user in others)
    # Not again, by whoever asks next and by whoever had asked at the same time.
    assert send(database, settings, found, now=now + 60.0) == []
    again = letters(database, settings, now=now + DAY_S)
    assert all(each.why_not for each in again)
    assert len(kept.taken) == len(USERS)
    assert len(rows(database, schema.mails)) == len(USERS)


def test_who_wants_none_gets_none(quiet: tuple[Database, float], sink: tuple[_Sink, str]) -> None:
    database, now = quiet
    now = _workday(now)
    kept, server = sink
    settings = _settings(server)
    set_mails(database, "ada", wanted=False, now=now)
    found = letters(database, settings, now=now)
    send(database, settings, found, now=now)
    assert {names[0] for names, _ in kept.taken} == {"bob@example.org", "cy@example.org"}
    # The link of a mail does the same, once, and for its reader alone.
    [text] = [
        message.get_content()  # type: ignore[attr-defined]
        for names, message in kept.taken
        if names[0].startswith("bob")
    ]
    key = text.split("/stop/")[1].split()[0]
    assert not stop_mails(database, key + "x", now=now)
    assert stop_mails(database, key, now=now)
    assert not stop_mails(database, key, now=now)
    assert {row["user"] for row in rows(database, schema.mail_stops)} == {"ada", "bob"}


def test_nobody_is_written_to_on_a_day_off(quiet: tuple[Database, float]) -> None:
    database, now = quiet
    for day in range(7):
        at = now + day * DAY_S
        today = datetime.fromtimestamp(at, UTC)
        written = [each for each in letters(database, _settings(), now=at) if not each.why_not]
        assert bool(written) == (today.weekday() < 5)
        free = _settings(holidays=(today.date().isoformat(),))
        assert not any(not each.why_not for each in letters(database, free, now=at))


def test_small_waste_and_exempt_jobs_are_no_matter(quiet: tuple[Database, float]) -> None:
    database, now = quiet
    now = _workday(now)
    found = {each.user: each.energy_j for each in letters(database, _settings(), now=now)}
    most = max(found.values()) / 3.6e6
    above = [
        each for each in letters(database, _settings(least_kwh=most), now=now) if not each.why_not
    ]
    assert [each.energy_j for each in above] == [max(found.values())]
    exempt = replace(_settings(), exempt=Exempt(users=("ada",), rules=("idle_gpus",)))
    for each in letters(database, exempt, now=now):
        assert each.user != "ada"
        assert all(job.finding.rule != "idle_gpus" for job in each.wasted)


def test_what_a_server_does_not_take_is_not_noted(
    quiet: tuple[Database, float], sink: tuple[_Sink, str]
) -> None:
    database, now = quiet
    now = _workday(now)
    found = letters(database, _settings(), now=now)
    with pytest.raises(Unreachable, match="does not take mails"):
        send(database, _settings(), found, now=now)
    assert not rows(database, schema.mails)


def test_what_is_estimated_is_marked_and_what_is_not_known_is_told_as_that(
    quiet: tuple[Database, float],
) -> None:
    database, now = quiet
    settings, now = _settings(), _workday(now)
    [letter, *_] = letters(database, settings, now=now)
    mail = compose(letter, settings, now=now, stop_key="k")
    assert str(mail["Subject"]).startswith("~")
    finding = replace(letter.wasted[0].finding, carbon_g=math.nan)
    text = mail_text([replace(letter.wasted[0], finding=finding)], settings)
    assert " --- CO2e" in text and "~---" not in text


@pytest.mark.parametrize(
    "user",
    ["ada\r\nBcc: eve@example.org", "ada@evil.org", "ada eve", "", "-oQ/tmp", "ada,eve", "ä"],
)
def test_a_name_cannot_become_a_header(quiet: tuple[Database, float], user: str) -> None:
    database, now = quiet
    now = _workday(now)
    [letter, *_] = letters(database, _settings(), now=now)
    record = replace(
        letter.wasted[0].job.record, user=user, name="x\r\nBcc: eve@example.org\x1b[2J"
    )
    job = replace(letter.wasted[0].job, record=record)
    odd = replace(letter.wasted[0], job=job)
    text = mail_text([odd], _settings())
    assert "\r" not in text
    assert "\x1b" not in text
    assert not any(line.startswith("Bcc") for line in text.splitlines())
    with database.writing() as connection:
        connection.execute(schema.jobs.update().values(user=user).where(schema.jobs.c.user == "cy"))
    try:
        found = {each.user: each for each in letters(database, _settings(), now=now)}
        assert found[user].why_not
        with pytest.raises((ValueError, InvalidInput)):
            header = compose(
                replace(letter, user="a\r\nBcc: b"), _settings(), now=now, stop_key="k"
            )
            assert header
    finally:
        with database.writing() as connection:
            back = schema.jobs.update().values(user="cy")
            connection.execute(back.where(schema.jobs.c.user == user))


@pytest.mark.parametrize(
    "wrong",
    [
        {"sender": "a@b\nBcc: c@d"}, {"sender": "nobody"}, {"domain": "x\r\ny"},
        {"copy_to": "a b@c"}, {"server": "mail"}, {"server": "mail:0"},
        {"every_days": 0}, {"least_kwh": float("nan")},
        {"holidays": ("tomorrow",)},
    ],
)  # fmt: skip
def test_settings_that_cannot_be_meant_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput):
        MailSettings(**wrong)


def test_a_dry_run_sends_nothing(
    quiet: tuple[Database, float],
    sink: tuple[_Sink, str],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    database, now = quiet
    kept, server = sink
    monkeypatch.setattr("time.time", lambda: _workday(now))
    config = tmp_path / "serve.toml"
    config.write_text(
        f'cluster = "alps"\n[mail]\nserver = "{server}"\nsender = "hpc@example.org"\n'
        'domain = "example.org"\nleast_kwh = 0\n'
    )
    words = ("serve", "mail", "--config", str(config), "--store", database.name)
    shown = run(capsys, *words, "--dry-run")
    assert shown.code == 0
    assert "To: ada@example.org" in shown.out
    assert not kept.taken
    assert not rows(database, schema.mails)
    columns = run(capsys, *words, "--dry-run", "-P").out.splitlines()
    document = json.loads(run(capsys, *words, "--dry-run", "--json").out)
    assert len(columns) - 1 == len(document["users"]) == len(USERS)
    assert_keys_as_kept("verbs/serve mail.txt", document, columns[0])
    sent = run(capsys, *words)
    assert sent.code == 0
    assert len(kept.taken) == len(USERS)


@pytest.mark.parametrize(
    "words",
    [
        ("--mail",),
        ("--mail", "results"),
        ("results", "--dry-run"),
        (),
        ("--mail", "--config", "no"),
    ],
)
def test_what_cannot_be_reported_says_why(
    words: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    answer = run(capsys, "report", *words)
    assert answer.code == 2
    assert "Traceback" not in answer.err
