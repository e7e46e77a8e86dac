"""The queue as it is told: all of it to the staff, to others what enough wait for, nobody named."""

from __future__ import annotations

import html
import math
import random
import re
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from anyio.from_thread import start_blocking_portal

from lowtide.errors import StoreProblem
from lowtide.monitor.snapshot import JobFacts
from lowtide.serve.app import make_app
from lowtide.serve.gate import Doorkeeper
from lowtide.serve.guards import READER
from lowtide.serve.ingest import take_facts
from lowtide.serve.people import Roster
from lowtide.serve.settings import Account
from lowtide.serve.tokens import READ_ALL, READ_OWN, READ_PROJECT, make_token
from lowtide.serve.viewer import Rights, Viewer
from lowtide.store.database import Database
from support.asking import Client
from support.nightly import drawn
from support.pushed import CLUSTER, centre
from support.worlds import SETTINGS, World

QUARTER = 1_700_000_100.0
NOW = QUARTER + 300.0
USERS = tuple(f"u{number}" for number in range(9))
PARTITIONS = ("gpu", "main", "main,gpu", "<script>", "")
ACCOUNTS = {
    "phys": Account(leads=("lea",), members=("ada", *USERS[:6])),
    "chem": Account(members=("bob", *USERS[4:])),
}


@dataclass(frozen=True)
class Waits:
    """A job, and how it stands: from when to when it waits, and what then becomes of it."""

    number: int
    user: str
    account: str
    partition: str
    submitted: float
    until: float
    then: str
    nodes: int
    cpus: float
    gpus: float
    array: bool = False

    def facts(self) -> JobFacts:
        waits = self.then == "pending"
        ran = self.then == "running"
        return JobFacts(
            source="slurm", job_id=str(self.number), state=self.then,
            shown_id=f"{self.number}_[1-9]" if self.array else None, user=self.user,
            account=self.account, partition=self.partition or None, cluster=CLUSTER,
            submitted=self.submitted, cpus=self.cpus, gpus=self.gpus or None,
            nodes_asked=float(self.nodes) if waits else None,
            nodes=tuple(f"n{place}" for place in range(self.nodes)) if ran else (),
            started=self.until if ran else None,
            ended=None if waits or ran else self.until,
        )  # fmt: skip


def draw(chance: random.Random) -> list[Waits]:
    found = []
    for number in range(1, chance.randint(2, 90)):
        user = chance.choice([*USERS, "ada", "bob", "forged"])
        submitted = NOW - chance.choice([10.0, 400.0, 5000.0, 2e5]) * chance.uniform(0.5, 1.0)
        then = chance.choice(["pending", "pending", "running", "cancelled"])
        until = math.inf if then == "pending" else chance.uniform(submitted, NOW)
        account = "chem" if user in ("bob", "forged") else "phys"
        found.append(
            Waits(
                number, user, account, chance.choice(PARTITIONS), submitted, until, then,
                chance.randint(1, 40), float(chance.randint(1, 999)), float(chance.randrange(3)),
                chance.random() < 0.2,
            )
        )  # fmt: skip
    return found


@contextmanager
def told(where: str, jobs: list[Waits]) -> Iterator[Database]:
    with centre(where) as database:
        Roster.from_settings(replace(SETTINGS, accounts=ACCOUNTS)).keep(database, now=0.0)
        # All of them waited, and of some it was told how they went on.
        waited = [replace(each, then="pending") for each in jobs]
        for told_first in (waited, jobs):
            take_facts(database, [each.facts() for each in told_first], now=NOW)
        yield database


def expected(
    jobs: list[Waits],
    moment: float,
    mine: set[str],
    least: int | None,
    known: frozenset[str] = frozenset(),
) -> Any:
    """Return what somebody is told, worked out one by one.

    Args:
        known: Whose jobs they may see by other means, so that these are left out here.
    """
    here = [each for each in jobs if each.submitted <= moment < each.until]
    lines: dict[str, list[float]] = {}
    for name in {each.partition for each in here}:
        of = [each for each in here if each.partition == name]
        line = [0.0] * 6
        for theirs in (False, True):
            part = [
                each
                for each in of
                if (least is None or each.user in mine) != theirs
                and not (theirs and each.user in known)
            ]
            others = {each.user for each in part} - {"forged"}
            if not part or (theirs and len(others) < (least or 0)):
                continue
            sums = [
                float(len(part)), *(float(sum(getattr(each, key) for each in part))
                                    for key in ("nodes", "cpus", "gpus", "array")),
                moment - min(each.submitted for each in part),
            ]  # fmt: skip
            if theirs:
                sums = [float(f"{each:.2g}") for each in sums]
            line = [*(a + b for a, b in zip(line[:5], sums[:5], strict=True)),
                    max(line[5], sums[5])]  # fmt: skip
            lines[name] = line
    return flat(lines)


def lines_of(viewer: Viewer) -> dict[tuple[str, int], float]:
    found = viewer.queue()
    return flat({
        each.partition: [
            each.jobs, each.nodes, each.cpus, each.gpus, each.arrays, each.wait_s,
        ]
        for each in found.lines
    })  # fmt: skip


def flat(lines: dict[str, list[float]]) -> dict[tuple[str, int], float]:
    return {
        (name, place): value for name, line in lines.items() for place, value in enumerate(line)
    }


@pytest.mark.parametrize("seed", range(drawn(6, 200)))
def test_each_is_told_what_is_theirs_and_of_enough_others(place: str, seed: int) -> None:
    chance = random.Random(seed)
    jobs = draw(chance)
    with told(place, jobs) as database:
        for role in ("owner", "support"):
            staff = Viewer(database, "sue", Rights(role=role), NOW)  # type: ignore[arg-type]
            assert lines_of(staff) == pytest.approx(expected(jobs, NOW, set(), None))
            assert not staff.queue().partial
        phys = {each.user for each in jobs if each.account == "phys"}
        led = frozenset((f"{CLUSTER}/phys",))
        for who, rights, mine in (
            ("ada", Rights(), {"ada"}),
            ("nobody", Rights(), set[str]()),
            ("lea", Rights(leads=led), phys),
            ("lea", Rights(knows=led), {"lea"}),
        ):
            known = frozenset(phys if rights.knows else ())
            for least in (5, 2, 3):
                viewer = Viewer(database, who, rights, NOW, least_users=least)
                found = viewer.queue()
                assert (found.moment, found.partial) == (QUARTER, True)
                assert lines_of(viewer) == pytest.approx(
                    expected(jobs, QUARTER, mine, least, known)
                )
                assert [each.jobs for each in found.lines] == sorted(
                    (each.jobs for each in found.lines), reverse=True
                )
        if not database.is_file:
            # Whatever is asked, a sum of one user is none; and no viewer, no sum.
            one = Viewer(database, "nobody", Rights(), NOW, least_users=0)
            assert lines_of(one) == pytest.approx(expected(jobs, QUARTER, set(), 2))
            with database.reading() as connection:
                connection.exec_driver_sql(f"SET LOCAL ROLE {READER}")
                asked = sa.text("SELECT count(*) FROM lowtide_queue(:now, 0)")
                assert connection.execute(asked, {"now": NOW}).scalar() == 0
            linked = Viewer(database, "ada", Rights(), NOW, only="x", least_users=0)
            assert lines_of(linked) == {}
            with (
                pytest.raises(StoreProblem, match="permission denied"),
                database.reading() as connection,
            ):
                connection.exec_driver_sql("SET LOCAL ROLE lowtide_ingest")
                connection.execute(asked, {"now": NOW})


def job(number: int, user: str, partition: str = "main", **more: Any) -> Waits:
    usual = {
        "account": "phys", "submitted": NOW - 3600.0, "until": math.inf, "then": "pending",
        "nodes": 2, "cpus": 64.0, "gpus": 4.0,
    }  # fmt: skip
    return Waits(number=number, user=user, partition=partition, **{**usual, **more})


FOUR = [job(number, f"u{number}") for number in range(4)]
# What bob waits for in other worlds: alone in his partition, with few, or for much more.
WORLDS: dict[str, list[Waits]] = {
    "none": [],
    "alone": [job(90, "bob", "gpu", account="chem"), job(91, "bob", "secret", cpus=7.0)],
    "forged": [job(90 + n, f"eve{n}", "gpu", account="chem") for n in range(9)],
    "late": [job(90 + n, f"u{n}", submitted=QUARTER + 10.0) for n in range(4, 9)],
}


@contextmanager
def asked(where: str, jobs: list[Waits]) -> Iterator[World]:
    settings = replace(SETTINGS, accounts=ACCOUNTS)
    with told(where, jobs) as database, start_blocking_portal() as portal:
        keeper = Doorkeeper(database, settings, clock=lambda: NOW)
        tokens = {
            who: make_token(database, owner=who, scope=READ_ALL, lasts_s=1e6, now=NOW)
            for who in ("ada", "cy", "nobody", "bob", "sue", "u1")
        }
        yield World(keeper, Client(portal, make_app(keeper)), tokens)


def test_worlds_without_leave_to_see_others_are_one(tmp_path: Path) -> None:
    mine = [job(50, "ada"), *FOUR]
    with ExitStack() as stack:
        worlds = {
            name: stack.enter_context(asked(str(tmp_path / f"{name}.sqlite"), [*mine, *more]))
            for name, more in WORLDS.items()
        }
        for who in ("ada", "nobody", "cy", "u1"):
            for path in ("/cluster", "/api/v1/queue"):
                answers = {name: one.get(who, path).body for name, one in worlds.items()}
                assert len(set(answers.values())) == 1, (who, path)
        [line] = worlds["none"].get("ada", "/api/v1/queue").json()["queue"]
        assert (line["partition"], line["jobs"], line["cpus"]) == ("main", 1, 64.0)
        # To whoever is none of them ada is the fifth other.
        [line] = worlds["none"].get("nobody", "/api/v1/queue").json()["queue"]
        assert (line["partition"], line["jobs"], line["cpus"]) == ("main", 5, 320.0)
        # It can fail: who may see them does see the difference.
        assert len({one.get("sue", "/api/v1/queue").body for one in worlds.values()}) == len(worlds)


def test_no_two_answers_differ_by_what_one_other_waits_for(tmp_path: Path) -> None:
    """Who leads is told of others without those that they see, by whichever token they ask."""
    led = [job(number, f"u{number}") for number in range(5)]
    bobs = job(90, "bob", account="chem", cpus=7.0)
    for number, more in enumerate(([], [bobs], [bobs, replace(bobs, number=91, nodes=9)])):
        with asked(str(tmp_path / f"{number}.sqlite"), [*led, *more]) as one:
            shown = {
                scope: make_token(
                    one.keeper.database, owner="lea", scope=scope, lasts_s=1e6, now=NOW
                )
                for scope in (READ_OWN, READ_PROJECT, READ_ALL)
            }
            told = {
                scope: one.client.get("/api/v1/queue", authorization=f"Bearer {token}").json()
                for scope, token in shown.items()
            }
            assert told[READ_OWN]["queue"] == []
            assert told[READ_PROJECT] == told[READ_ALL]
            [line] = told[READ_ALL]["queue"]
            assert (line["partition"], line["jobs"], line["cpus"]) == ("main", 5, 320.0)


def test_a_page_says_what_waits(tmp_path: Path) -> None:
    jobs = [*FOUR, job(4, "u4"), job(50, "ada", "<script>", nodes=3), job(51, "ada", gpus=0.0)]
    jobs.append(job(60, "bob", "gpu", account="chem", submitted=NOW - 90_000.0))
    with asked(str(tmp_path / "c.sqlite"), jobs) as one:

        def page(who: str) -> list[list[str]]:
            text = one.get(who, "/cluster").body.decode()
            assert "<script>" not in text
            table = text.split("<h2>The queue</h2>")[1].split("</table>")[0]
            return [
                [html.unescape(re.sub("<.*?>", "", cell)) for cell in
                 re.findall(r"<t[hd][^>]*>(.*?)</t[hd]>", row)]
                for row in table.split("<tr>")[2:]
            ]  # fmt: skip

        assert page("sue") == [
            ["main", "6", "12", "384", "20", "01:00:00"],
            ["<script>", "1", "3", "64", "4", "01:00:00"],
            ["gpu", "1", "2", "64", "4", "1-01:00:00"],
            ["all of these", "8", "17", "512", "28", "1-01:00:00"],
        ]
        # To two figures of the others' 10 nodes, 320 cores, 20 GPUs and 55 minutes, and ada's own.
        assert page("ada")[0][:5] == ["main", ">~6", ">~12", ">~384", ">~20"]
        assert [row[0] for row in page("nobody")] == ["main"]
        assert "u1" not in one.get("nobody", "/cluster").body.decode()
        # A partition of one user's is a look at them.
        looks = one.get("bob", "/api/v1/looks").json()["looks"]
        assert [(each["viewer"], each["what"]) for each in looks] == [("sue", "queue")]
        assert one.get("u1", "/api/v1/looks").json()["looks"] == []
        state = one.get("sue", "/api/v1/queue").json()
        assert (state["moment"], state["partial"]) == (NOW, False)
        assert state["queue"][0] == asdict(
            Viewer(one.keeper.database, "sue", Rights(role="support"), NOW).queue().lines[0]
        )


def test_what_is_not_known_is_not_nothing(tmp_path: Path) -> None:
    jobs = [replace(job(1, "ada").facts(), cpus=None, nodes_asked=None)]
    with centre(str(tmp_path / "c.sqlite")) as database:
        take_facts(database, jobs, now=NOW)
        [line] = Viewer(database, "ada", Rights(role="owner"), NOW).queue().lines
    assert (line.jobs, line.gpus, line.wait_s) == (1, 4.0, 3600.0)
    assert math.isnan(line.cpus) and math.isnan(line.nodes)


def test_an_empty_queue_is_said_to_be(tmp_path: Path) -> None:
    with asked(str(tmp_path / "c.sqlite"), []) as one:
        assert b"No job waits" in one.get("sue", "/cluster").body
        assert b"Nothing waits that you are told of" in one.get("nobody", "/cluster").body
        assert one.get("nobody", "/api/v1/queue").json()["queue"] == []


def test_an_array_is_at_least_what_one_of_it_asked_for(tmp_path: Path) -> None:
    with asked(
        str(tmp_path / "c.sqlite"), [job(1, "ada"), job(2, "ada", "gpu", array=True)]
    ) as one:
        [gpu, main] = one.get("sue", "/api/v1/queue").json()["queue"]
        assert (gpu["arrays"], main["arrays"]) == (1, 0)
        page = one.get("sue", "/cluster").body.decode()
        assert page.count('<td class="n">&gt;') == 8
        assert "An array of which nothing has begun" in page
