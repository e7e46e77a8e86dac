"""The reading verbs, asked of a centre: the same to the letter as of a store on this machine."""

from __future__ import annotations

import io
import json
import math
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lowtide.centre.account import CentreLogin, login_file, read_login
from lowtide.centre.store import CentreStore
from lowtide.errors import FileProblem
from lowtide.serve import remote_store
from lowtide.serve.gate import Doorkeeper
from lowtide.serve.people import Roster
from lowtide.serve.settings import Account, Settings
from lowtide.serve.tokens import READ_ALL, make_token
from lowtide.store import Store
from support.asking import serving
from support.commands import run
from support.faces import assert_keys_as_kept
from support.pushed import CLUSTER, Node, centre
from support.ticks import START, facts, unit

SETTINGS = Settings(
    cluster=CLUSTER, admins=("adam",), accounts={"phys": Account(members=("ada", "bob"))}
)
SINCE = ("-S", "2020-01-01", "-E", "2023-11-16")
USERS = ("ada", "bob", "cy")


def _watched(folder: Path) -> tuple[Node, Node]:
    """Watch two nodes: jobs that end, that go on, that wait, an array, and one on both."""
    both = Store.open(folder / "local.sqlite")
    nodes = tuple(Node(folder / f"{host}.sqlite", host, also=both) for host in ("n1", "n2"))
    for step in range(120):
        for place, node in enumerate(nodes):
            here = [
                unit(
                    job,
                    user=USERS[job % 3],
                    started=START + 60.0 * job,
                    name=f"run-{job}",
                    cluster=CLUSTER,
                )
                for job in range(1, 9)
                if job <= step < 12 * job and (job == 7 or job % 2 == place)
            ]
            node.tick(here, step_s=60.0, watts={str(job): 40.0 + 9 * job for job in range(9)})
    told = [
        facts(
            job, state="running" if job == 8 else "failed" if job == 3 else "completed",
            user=USERS[job % 3], account="phys" if job % 2 else "chem", partition="main",
            started=START + 60.0 * job, cpus=4.0, name=f"run-{job}", cluster=CLUSTER,
            memory_bytes=8e9, submitted=START - 50.0, time_limit_s=9000.0,
            shown_id=f"77_{job}" if job < 3 else None,
            **({} if job == 8 else {"ended": START + 720.0 * job}),
        )
        for job in range(1, 9)
    ]  # fmt: skip
    told.append(
        facts(
            50, state="pending", user="ada", account="phys", submitted=START + 7e3, cluster=CLUSTER
        )
    )
    for node in nodes:
        node.store.put_facts(told)
    both.put_facts(told)
    both.close()
    return nodes[0], nodes[1]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, str, Doorkeeper]]:
    """A store of one machine, and a centre that was told the same."""
    folder = tmp_path_factory.mktemp("centre-store")
    with centre(str(folder / "centre.sqlite")) as database:
        Roster.from_settings(SETTINGS).keep(database, now=START)
        for node in _watched(folder):
            assert not any(answer.reason for answer in node.push(database))
            node.store.close()
        keeper = Doorkeeper(database, SETTINGS)
        with serving(keeper) as url:
            yield str(folder / "local.sqlite"), url, keeper


@pytest.fixture
def as_user(
    place: tuple[str, str, Doorkeeper], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Any:
    """Log somebody in."""
    import time

    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.delenv("LOWTIDE_STORE", raising=False)

    def enter(who: str) -> CentreLogin:
        token = make_token(
            place[2].database, owner=who, scope=READ_ALL, lasts_s=1e6, now=time.time()
        )
        login = CentreLogin(place[1], who, token)
        login.save()
        return login

    return enter


QUESTIONS = [
    ("jobs", *SINCE),
    ("jobs", *SINCE, "-o", "ALL"),
    ("jobs", *SINCE, "--sort", "-energy", "-P"),
    ("jobs", "-j", "77"),
    ("jobs", "-j", "77_[1-2]", "-n"),
    ("jobs", *SINCE, "--name", "run-[34]", "-s", "CD"),
    ("jobs", *SINCE, "-s", "F", "-o", "JobID,State,Phases"),
    ("jobs", *SINCE, "-N", "n2", "-A", "chem"),
    ("jobs", *SINCE, "-i", "2"),
    ("jobs", "-S", "2023-11-14T23:00Z", "-E", "2023-11-14T23:20Z"),
    *(("usage", *SINCE, "--by", by) for by in ("user", "account")),
    ("usage", "-S", "2023-11-14T22:40Z", "-E", "2023-11-15T01:00Z", "--by", "hour"),
    ("usage", "-S", "2023-11-14T22:40Z", "-E", "2023-11-14T23:10Z", "--json"),
    ("show", "7", "--grid", "windy"),
    ("show", "4", "--json", "--grid", "windy"),
]


def _plain(text: str) -> Any:
    """Return what was printed, without the numbers that each store has of its own."""
    try:
        document = json.loads(text)
    except ValueError:
        return text
    rows = document if isinstance(document, list) else [document, document.get("job")]
    for row in rows:
        if isinstance(row, dict):
            row.pop("number", None)
    return document


@pytest.mark.parametrize("asked", QUESTIONS, ids=" ".join)
def test_a_centre_prints_what_a_store_does(
    place: tuple[str, str, Doorkeeper],
    as_user: Any,
    asked: tuple[str, ...],
    capsys: pytest.CaptureFixture[str],
) -> None:
    as_user("adam")
    here = run(capsys, *asked, "--store", place[0])
    there = run(capsys, *asked)
    assert (there.code, there.err) == (here.code, here.err)
    said = there.out.replace(place[1], place[0])
    assert _plain(said) == _plain(here.out)
    assert here.code == 0


def test_everyone_is_told_of_their_own(
    place: tuple[str, str, Doorkeeper], as_user: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    for who in USERS:
        as_user(who)
        asked = ("jobs", *SINCE, "-o", "JobID,User,Energy,State", "-P")
        mine = run(capsys, *asked, "-u", who, "--store", place[0])
        assert run(capsys, *asked).out == mine.out
        assert len(mine.out.splitlines()) >= 3
    other = run(capsys, "show", "4")
    nothing = run(capsys, "show", "99")
    # 4 is bob's: to cy it is not there.
    assert (other.code, nothing.code) == (2, 2)
    assert other.err.replace("4", "99") == nothing.err.replace("4", "99")


def test_long_lists_and_courses_come_in_parts(
    place: tuple[str, str, Doorkeeper], as_user: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    login = as_user("adam")
    whole = CentreStore(login)
    wanted = whole.jobs()
    courses = list(whole.many_series(wanted))
    monkeypatch.setattr(remote_store, "MOST_JOBS", 4)
    monkeypatch.setattr(remote_store, "MOST_STEPS", 25)
    again = CentreStore(login)
    found = again.jobs()
    assert [each.shown_id for each in found] == [each.shown_id for each in wanted]
    for first, second in zip(courses, again.many_series(found), strict=True):
        assert first.times.tolist() == second.times.tolist()
        energies = [each.columns["energy_j"].tolist() for each in (first, second)]
        assert str(energies[0]) == str(energies[1])
    assert sum(len(each) for each in courses) > 100


def test_of_many_nodes_no_sum_is_told(
    place: tuple[str, str, Doorkeeper],
    as_user: Any,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    as_user("adam")
    assert "The nodes in all" in run(capsys, "usage", *SINCE).out
    monkeypatch.setattr("lowtide.centre.store.MOST_NODES", 1)
    told = run(capsys, "usage", *SINCE)
    assert told.code == 0
    assert "The nodes in all" not in told.out


def test_many_elements_are_asked_for_together(
    place: tuple[str, str, Doorkeeper], as_user: Any
) -> None:
    store = CentreStore(as_user("adam"))
    ids = ["4", *(f"77_{number}" for number in range(2, 5000))]
    assert {each.job_id for each in store.jobs(ids=ids)} == {"2", "4"}


def test_a_login_that_ended_is_said_so(
    place: tuple[str, str, Doorkeeper], as_user: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    CentreLogin(place[1], "ada", "lt_nothing").save()
    told = run(capsys, "jobs")
    assert told.code != 0
    assert "lowtide login" in told.err
    CentreLogin("http://127.0.0.1:9", "ada", "lt_nothing").save()
    away = run(capsys, "jobs")
    assert "does not answer" in away.err
    assert "--store" in away.err
    assert run(capsys, "jobs", "--store", "https://other.example").code == 2
    as_user("ada")
    assert run(capsys, "jobs", "--store", place[1]).code == 0


def test_a_login_that_others_may_read_is_none(as_user: Any) -> None:
    login = as_user("ada")
    assert read_login() == login
    login_file().chmod(0o644)
    with pytest.raises(FileProblem, match="others may read"):
        read_login()
    for text in ("", "{}", '{"url": "", "user": "", "token": ""}', "[1]", '{"url": 5}'):
        login_file().unlink()
        login_file().touch(mode=0o600)
        login_file().write_text(text)
        with pytest.raises((FileProblem, ValueError)):
            read_login()


def test_logging_in_needs_no_server_of_ones_own() -> None:
    """Nothing of the extra `serve` is loaded by those who only ask."""
    hidden = "('fastapi', 'starlette', 'jinja2', 'uvicorn', 'msgspec', 'zstandard', 'authlib')"
    code = f"""
import sys
for name in {hidden}:
    sys.modules[name] = None
import lowtide.centre.store, lowtide.centre.munge
from lowtide.cli.login import login
from lowtide.errors import LowtideError
try:
    login("http://127.0.0.1:9", socket="/nowhere")
except LowtideError as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "does not answer" in done.stdout, done.stderr


def test_numbers_of_the_centre_are_not_told(
    place: tuple[str, str, Doorkeeper], as_user: Any
) -> None:
    told = as_user("cy").ask("/api/v1/table")
    assert told["jobs"]["ref"]
    assert "id" not in told["jobs"]["columns"]
    assert not any(math.isnan(value or 0.0) for row in told["jobs"]["totals"] for value in row)


def test_who_logs_in_and_out_is_told_in_every_form(
    place: tuple[str, str, Doorkeeper],
    as_user: Any,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def told(*words: str) -> tuple[dict[str, Any], str]:
        said = []
        for form in ("--json", "-P"):
            token = as_user("ada").token
            if words[0] == "login":
                login_file().unlink()
            monkeypatch.setattr("sys.stdin", io.StringIO(f"{token}\n"))
            answer = run(capsys, *words, form)
            assert answer.code == 0, answer.err
            said.append(answer.out)
        return json.loads(said[0]), said[1]

    document, columns = told("login", place[1], "--with-token")
    assert document == {"url": place[1], "user": "ada"}
    assert_keys_as_kept("verbs/login.txt", document, columns.splitlines()[0])
    document, columns = told("logout")
    assert document == {"url": place[1], "logged_out": True, "token_ended": True}
    assert_keys_as_kept("verbs/logout.txt", document, columns.splitlines()[0])
    assert not login_file().exists()
    assert json.loads(run(capsys, "logout", "--json").out)["logged_out"] is False
    assert run(capsys, "logout").out == "You are not logged in to any centre.\n"
