"""What a project's own nodes drew for nobody: to the joule, kept by day, told to those who lead."""

from __future__ import annotations

import html
import math
import random
import re
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from anyio.from_thread import start_blocking_portal

from lowtide.errors import LowtideError
from lowtide.serve import schema
from lowtide.serve.app import make_app
from lowtide.serve.gate import Doorkeeper
from lowtide.serve.guards import READER
from lowtide.serve.ledger import close_stale
from lowtide.serve.node_idle import DAYS, keep_idle
from lowtide.serve.people import Roster, rights_of
from lowtide.serve.settings import Account, KeepSettings, Settings
from lowtide.serve.tokens import READ_ALL, make_token
from lowtide.serve.viewer import Rights, Viewer
from lowtide.store.compaction import drop_courses
from lowtide.store.database import Database
from support.asking import Client
from support.nightly import drawn
from support.pushed import CLUSTER, Node, centre, rows
from support.ticks import facts, unit
from support.worlds import SETTINGS

DAY_S = 86400.0
# Midnight, so that days are easy to tell.
MIDNIGHT = 1_700_006_400.0
OWN = replace(
    SETTINGS,
    accounts={
        "phys": Account(leads=("lea",), members=("ada", "bob"), nodes=("n[1-2]",)),
        "quark": Account(parent="phys", members=("cy",), nodes=("n3",)),
    },
)


@dataclass
class Told:
    """What nodes were told to draw: joules by node and day, and those of each account's jobs."""

    idle_j: dict[tuple[str, float], float] = field(default_factory=lambda: defaultdict(float))
    nobody_j: dict[tuple[str, float], float] = field(default_factory=lambda: defaultdict(float))
    seen_s: dict[tuple[str, float], float] = field(default_factory=lambda: defaultdict(float))
    jobs_j: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    node_j: float = 0.0
    end: float = 0.0


def watch(
    folder: Path, database: Database, chance: random.Random, *, days: int = 3
) -> tuple[Told, list[Node]]:
    """Watch three nodes for some days, with jobs, idle power that varies, and nights unwatched."""
    told = Told()
    nodes = []
    for host in ("n1", "n2", "n3"):
        folder.mkdir(parents=True, exist_ok=True)
        node = Node(folder / f"{host}.sqlite", host, time=MIDNIGHT + chance.randrange(600))
        nodes.append(node)
        number = 100 * int(host[1])
        while node.watcher.time < MIDNIGHT + days * DAY_S + 3600.0:
            user, account = chance.choice([("ada", "phys"), ("cy", "quark")])
            number += 1
            began = node.watcher.time
            busy = [unit(number, user=user, started=began)] if chance.random() < 0.7 else []
            if chance.random() < 0.1:
                # Nobody watches for a while; what is counted begins anew.
                node.watcher.time += chance.uniform(1e3, 5e4)
                time = node.watcher.time
                node.store.close()
                node.watcher = type(node.watcher)(host=host, time=time)
                node.open()
                continue
            for _ in range(chance.randint(1, 20)):
                step_s = 600.0
                node.watcher.idle_w = float(chance.randrange(20, 200))
                node.tick(busy, step_s=step_s)
                end = node.watcher.time
                for day in {(end - step_s) // DAY_S * DAY_S, end // DAY_S * DAY_S}:
                    inside = min(end, day + DAY_S) - max(end - step_s, day)
                    told.idle_j[host, day] += node.watcher.idle_w * inside
                    told.nobody_j[host, day] += inside
                    told.seen_s[host, day] += inside
                if busy:
                    told.jobs_j[account] += 100.0 * step_s
                told.node_j += (node.watcher.idle_w + 1.0 + 100.0 * len(busy)) * step_s
            if busy:
                known = {"started": began, "ended": node.watcher.time, "nodes": (host,)}
                node.put_facts([
                    facts(number, state="completed", user=user, account=account, cpus=4.0, **known)
                ])  # fmt: skip
            if chance.random() < 0.3:
                assert not any(answer.reason for answer in node.push(database))
        assert not any(answer.reason for answer in node.push(database))
        told.end = max(told.end, node.watcher.time)
    return told, nodes


def kept(database: Database) -> dict[tuple[str, float], dict[str, Any]]:
    return {(row["host"], row["day"]): row for row in rows(database, schema.node_idle)}


@pytest.mark.parametrize("seed", range(drawn(2, 30)))
def test_days_are_kept_to_the_joule(place: str, tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    with centre(place) as database:
        Roster.from_settings(OWN).keep(database, now=0.0)
        told, nodes = watch(tmp_path, database, chance)
        now = told.end + 60.0
        done = keep_idle(database, OWN, now=now)
        found = kept(database)
        today = now // DAY_S * DAY_S
        days = {key: seen for key, seen in told.seen_s.items() if key[1] < today and seen}
        assert len(found) == done
        assert set(days) <= set(found)
        for key, row in found.items():
            assert row["idle_j"] == pytest.approx(told.idle_j[key], rel=1e-3, abs=1.0)
            assert row["unattributed_j"] == pytest.approx(told.nobody_j[key], rel=1e-3, abs=1.0)
            assert row["seen_s"] == pytest.approx(told.seen_s[key], abs=1.0)
            assert row["account"] == ("quark" if key[0] == "n3" else "phys")
        # Nothing is worked out twice, unless more is learned.
        assert keep_idle(database, OWN, now=now) == 0
        for node in nodes:
            node.store.close()

        # What is told is what is kept, and adds up exactly.
        for named, hosts in ((f"{CLUSTER}/phys", ("n1", "n2")), (f"{CLUSTER}/quark", ("n3",))):
            for who, rights in (
                ("lea", rights_of(database, "lea")), ("sue", Rights(role="support")),
            ):  # fmt: skip
                own = Viewer(database, who, rights, now).own_nodes(named, hosts)
                assert own is not None
                assert (own.end, own.start) == (today, today - DAYS * DAY_S)
                sums = [
                    sum(row[name] for key, row in found.items()
                        if key[0] in hosts and own.start <= key[1] < own.end)
                    for name in ("idle_j", "unattributed_j", "seen_s")
                ]  # fmt: skip
                assert own.idle["energy_j"] == pytest.approx(sums[0], rel=1e-12)
                assert own.unattributed["energy_j"] == pytest.approx(sums[1], rel=1e-12)
                assert own.known == pytest.approx(sums[2] / (len(hosts) * DAYS * DAY_S), rel=1e-9)
                parts = (own.jobs, own.idle, own.unattributed)
                for name in ("energy_j", "carbon_g", "measured_j"):
                    there = [each[name] for each in parts if each[name] is not None]
                    assert own.whole[name] == math.fsum(there)
                # Nobody told these nodes' grid: their grams are not nothing.
                assert own.idle["carbon_g"] is None
                assert own.whole["without_carbon"] == 2
                of = {"account": named.split("/")[1], "cluster": CLUSTER}
                [usage] = Viewer(database, who, rights, now).usage(
                    "account", start=own.start, end=own.end, wanted=of
                )
                assert own.jobs == usage


def test_all_projects_together_are_the_nodes(place: str, tmp_path: Path) -> None:
    """Every node is somebody's here, and all jobs are of these projects: nothing is left over."""
    with centre(place) as database:
        Roster.from_settings(OWN).keep(database, now=0.0)
        told, nodes = watch(tmp_path, database, random.Random(77), days=2)
        # Three days later all of it is on days that are over.
        now = told.end + 3 * DAY_S
        close_stale(database, now=now)
        keep_idle(database, OWN, now=now)
        staff = Viewer(database, "", Rights(role="owner"), now)
        whole = 0.0
        for account, hosts in (("phys", ("n1", "n2")), ("quark", ("n3",))):
            own = staff.own_nodes(f"{CLUSTER}/{account}", hosts)
            assert own is not None
            assert own.jobs["energy_j"] == pytest.approx(told.jobs_j[account], rel=1e-4)
            whole += own.whole["energy_j"]
        assert whole == pytest.approx(told.node_j, rel=1e-4)
        for node in nodes:
            node.store.close()


def test_what_comes_late_is_counted_and_what_goes_stays(place: str, tmp_path: Path) -> None:
    with centre(place) as database:
        late = Node(tmp_path / "n1.sqlite", "n1", time=MIDNIGHT)
        now = MIDNIGHT + 2.5 * DAY_S
        for _ in range(100):
            late.tick([], step_s=600.0)
        assert not any(answer.reason for answer in late.push(database))
        keep_idle(database, OWN, now=now)
        before = kept(database)
        # Its last chunk might reach into the day after; of that nothing is known.
        assert before["n1", MIDNIGHT + DAY_S]["seen_s"] == 0.0
        assert before["n1", MIDNIGHT]["seen_s"] == pytest.approx(60_000.0)
        for _ in range(200):
            late.tick([], step_s=600.0)
        assert not any(answer.reason for answer in late.push(database))
        assert keep_idle(database, OWN, now=now) > 0
        after = kept(database)
        assert set(after) == {("n1", MIDNIGHT), ("n1", MIDNIGHT + DAY_S)}
        for key, row in after.items():
            assert row["idle_j"] == pytest.approx(50.0 * DAY_S, rel=1e-6)
            assert row["seen_s"] == pytest.approx(DAY_S)
            assert key not in before or before[key]["idle_j"] <= row["idle_j"] + 1.0
        # A node that is given to another project takes its past along.
        moved = replace(
            OWN, accounts={**OWN.accounts, "phys": Account(), "chem": Account(nodes=("n1",))}
        )
        keep_idle(database, moved, now=now)
        assert {row["account"] for row in kept(database).values()} == {"chem"}
        # The course is let go of, the sums are not.
        drop_courses(database, now, most=10_000)
        letting_go = replace(moved, keep=KeepSettings(looks_days=2, minutes_days=2, courses_days=2))
        keep_idle(database, letting_go, now=now)
        assert {key: row["idle_j"] for key, row in kept(database).items()} == {
            key: row["idle_j"] for key, row in after.items()
        }
        keep_idle(database, replace(OWN, accounts={}), now=now)
        assert kept(database) == {}
        late.store.close()


@pytest.mark.parametrize(
    ("nodes", "says"),
    [
        ('["n1", "n[2-4]"]', ""),
        ('["n[2-"]', "n"),
        ('["n1", "n[0-9]"]', "n5 is named as a node of other and of chem"),
        ('"n1"', "is a list of names"),
        ("[1]", "is a list of names"),
    ],
)
def test_a_file_says_whose_nodes_are(tmp_path: Path, nodes: str, says: str) -> None:
    path = tmp_path / "serve.toml"
    path.write_text(
        f'cluster = "alps"\n[accounts.other]\nnodes = ["n5"]\n[accounts.chem]\nnodes = {nodes}\n'
    )
    if says:
        with pytest.raises(LowtideError, match=says):
            Settings.read(path)
        return
    owners = Settings.read(path).node_owners
    assert owners == {"n5": "other", **dict.fromkeys(("n1", "n2", "n3", "n4"), "chem")}


@pytest.fixture(params=["sqlite", "postgresql"])
def one(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[Doorkeeper, Client]]:
    where = str(request.getfixturevalue("file" if request.param == "sqlite" else "server"))
    with centre(where) as database, start_blocking_portal() as portal:
        Roster.from_settings(OWN).keep(database, now=0.0)
        told, nodes = watch(tmp_path / "nodes", database, random.Random(5), days=1)
        for node in nodes:
            node.store.close()
        now = told.end + DAY_S
        keep_idle(database, OWN, now=now)
        keeper = Doorkeeper(database, OWN, clock=lambda: now)
        yield keeper, Client(portal, make_app(keeper))


def test_it_is_told_to_those_who_lead(one: tuple[Doorkeeper, Client]) -> None:
    keeper, client = one
    database, now = keeper.database, keeper.clock()

    def page(who: str, account: str) -> str:
        token = make_token(database, owner=who, scope=READ_ALL, lasts_s=100.0, now=now)
        shown = f"Bearer {token}"
        answer = client.get(f"/projects/{CLUSTER}/{account}", authorization=shown)
        return html.unescape(answer.body.decode()) if answer.status == 200 else ""

    for who, sees in {
        "lea": {"phys", "quark"}, "sue": {"phys", "quark"}, "adam": {"phys", "quark"},
        "ada": set(), "cy": set(), "nobody": set(),
    }.items():  # fmt: skip
        for account in ("phys", "quark"):
            assert ("Idle of its nodes" in page(who, account)) == (account in sees), (who, account)
    text = page("lea", "phys").split("With the idle of its nodes</h2>")[1]
    cells = re.findall(r'<td class="n">([^<]*)</td>', text.split("</table>")[0])
    assert len(cells) == 8
    # Most of the thirty days nobody watched: all that its nodes drew is at least what is known.
    assert all(each.startswith(">") for each in cells[2:])
    assert "are 2 nodes" in text and "is one node" in page("lea", "quark")
    member = Viewer(database, "ada", rights_of(database, "ada"), now)
    assert member.own_nodes(f"{CLUSTER}/phys", ("n1", "n2")) is None
    linked = Viewer(database, "lea", Rights(), now, only="x")
    assert linked.own_nodes(f"{CLUSTER}/phys", ("n1", "n2")) is None
    if database.is_file:
        return
    for viewer, seen in (
        (member, set()), (linked, set()), (Viewer(database, "lea", rights_of(database, "lea"), now),
                                           {"phys", "quark"}),
    ):  # fmt: skip
        with viewer.reading() as connection:
            accounts = connection.execute(sa.select(schema.node_idle.c.account)).scalars()
            assert set(accounts) == seen
    with database.reading() as connection:
        connection.exec_driver_sql(f"SET LOCAL ROLE {READER}")
        assert connection.execute(sa.select(schema.node_idle)).all() == []
