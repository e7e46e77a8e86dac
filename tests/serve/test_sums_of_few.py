"""Sums that are told to those who may not see what is in them: of enough others, or not at all."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from lowtide.errors import InvalidInput
from lowtide.serve import schema
from lowtide.serve.settings import Account, Settings
from lowtide.serve.tokens import SCOPES, make_token
from lowtide.serve.viewer import Rights, Viewer
from lowtide.store.database import Database
from support.nightly import drawn
from support.pushed import Node, centre
from support.ticks import START, facts
from support.worlds import BOBS, NOW, SETTINGS, Deed, World, world

HOUR, DAY = 3600, 86400
FIRST = int(datetime(2023, 9, 10, tzinfo=UTC).timestamp())
EDGES = [int(datetime(2023, month, 1, tzinfo=UTC).timestamp()) for month in (9, 10, 11, 12)]
LATER = datetime(2023, 12, 20, tzinfo=UTC).timestamp()
# A part of a sum: the hour, the account, the user, and joules.
Part = tuple[int, str, str, float]


def parts(chance: random.Random) -> list[Part]:
    """Draw what some users used of some accounts: of some few, of others many."""
    found = []
    for account in ("big", "mid", "small", "tiny"):
        users = [f"u{number}" for number in range(chance.randint(0, 9))] + ["ada", "lea"]
        for user in users:
            for _ in range(chance.randint(0, 8)):
                hour = FIRST + HOUR * chance.randrange(24 * 90)
                found.append((hour, account, user, float(chance.randrange(1, 1000))))
    return found


@contextmanager
def kept(where: str, these: list[Part]) -> Iterator[Database]:
    """Keep parts as the sums of a centre."""
    with centre(where) as database:
        for table, begin_of in schema.USAGE.items():
            sums: dict[tuple[int, str, str], list[float]] = defaultdict(list)
            for hour, account, user, energy_j in these:
                sums[begin_of(hour), account, user].append(energy_j)
            rows = [
                {
                    "begins": begins, "cluster": "alps", "account": account, "user": user,
                    "partition": "", "state": "completed",
                    **dict.fromkeys((*schema.COUNTED, *schema.SUMMED), 0),
                    "parts": len(each), "jobs": len(each), "energy_j": sum(each),
                }
                for (begins, account, user), each in sums.items()
            ]  # fmt: skip
            with database.writing() as connection:
                connection.execute(sa.insert(table), rows)
        with database.writing() as connection:
            connection.execute(sa.insert(schema.members), [
                {"cluster": "alps", "account": account, "user": user, "leads": False,
                 "since": 0.0, "until": None}
                for account, user in sorted({each[1:3] for each in these})
                if not user.startswith("forged")
            ])  # fmt: skip
        yield database


def asked(chance: random.Random) -> Iterator[tuple[str, dict[str, Any], dict[str, str]]]:
    """Draw questions: whole months, parts of them, days and hours, with and without filters."""
    for _ in range(60):
        start = chance.choice([*EDGES, FIRST + HOUR * chance.randrange(24 * 100)])
        end = chance.choice([*EDGES, FIRST + HOUR * chance.randrange(24 * 101)])
        start = start // HOUR * HOUR
        if start < end:
            by = chance.choice(["account", "account", "user", "day", "hour", "state"])
            wanted = {"account": chance.choice(["big", "small"])} if chance.random() < 0.4 else {}
            if chance.random() < 0.2:
                wanted["user"] = chance.choice(["ada", "u1"])
            yield by, {"start": start, "end": end}, wanted


def member(database: Database, **more: Any) -> Viewer:
    """Return ada, who is in all accounts, and leads one."""
    everything = frozenset(f"alps/{name}" for name in ("big", "mid", "small", "tiny"))
    rights = Rights(leads=frozenset(("alps/tiny",)), member=everything)
    return Viewer(database, "ada", rights, LATER, **more)


def expected(these: list[Part], start: float, end: float, least: int) -> dict[str, float]:
    """Return what ada is told by account: hers, and others' where enough used a whole month."""
    sums: dict[str, float] = defaultdict(float)
    for hour, account, user, energy_j in these:
        if start <= hour < end and (user == "ada" or account == "tiny"):
            sums[account] += energy_j
    for first, last in pairwise(EDGES):
        for account in ("big", "mid", "small"):
            others = [each for each in these if first <= each[0] < last and each[1] == account
                      and each[2] != "ada"]  # fmt: skip
            if start <= first and last <= end and len({each[2] for each in others}) >= least:
                sums[account] += sum(each[3] for each in others)
    return dict(sums)


@pytest.mark.parametrize("seed", range(drawn(4, 40)))
def test_a_member_is_told_whole_months_of_enough_others(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    these = parts(chance)
    with kept(str(tmp_path / "centre.sqlite"), these) as database:
        for least in (5, 3):
            viewer = member(database, least_users=least)
            for by, span, wanted in asked(chance):
                if by == "account" and not wanted:
                    rows = viewer.usage(by, **span)
                    found = {row["account"]: row["energy_j"] for row in rows}
                    assert found == pytest.approx(expected(these, least=least, **span))
                    # Whether others' use is lacking is not told: only that it may be.
                    assert all(row["partial"] == (row["account"] != "tiny") for row in rows)


@pytest.mark.parametrize("seed", range(drawn(2, 40)))
def test_whoever_sees_all_is_told_every_part(place: str, seed: int) -> None:
    """Whatever months, days and hours a sum is made of, and whenever it is asked for."""
    chance = random.Random(seed)
    these = parts(chance)
    with kept(place, these) as database:
        for by, span, wanted in asked(chance):
            now = chance.choice([LATER, span["end"], FIRST + DAY * chance.randrange(100)])
            role = chance.choice(["owner", "support"])
            sums: dict[object, float] = defaultdict(float)
            for hour, account, user, energy_j in these:
                row = {"account": account, "user": user, "state": "completed"}
                if span["start"] <= hour < span["end"] and wanted.items() <= row.items():
                    times = {"hour": hour, "day": hour // DAY * DAY}
                    sums[{**row, **times}[by]] += energy_j
            found = Viewer(database, "sue", Rights(role=role), now).usage(by, **span, wanted=wanted)
            assert {row[by]: row["energy_j"] for row in found} == pytest.approx(sums, rel=1e-9)
        if these:
            # Whose sum it is that a look was at is known of months, too.
            with database.reading() as connection:
                owners = set(connection.execute(sa.select(schema.audit.c.owner)).scalars())
            assert owners <= {each[2] for each in these}


@pytest.mark.parametrize("seed", range(drawn(4, 40)))
def test_no_difference_of_sums_is_of_a_few(tmp_path: Path, seed: int) -> None:
    """All that is asked depends on the sums of months of many alone, and on nothing below them."""
    chance = random.Random(seed)
    these = parts(chance)
    groups: dict[tuple[int, str], list[Part]] = defaultdict(list)
    for each in these:
        if each[2] != "ada" and each[1] != "tiny":
            month = max((edge for edge in EDGES if edge <= each[0]), default=0)
            groups[month, each[1]].append(each)
    other = [each for each in these if each[2] == "ada" or each[1] == "tiny"]
    for (month, account), of in groups.items():
        users = sorted({each[2] for each in of})
        if len(users) < 5 or month == EDGES[-1]:
            # In the other world nobody was there; or, of the month under way, somebody else.
            continue
        # In the other world others of the group used the same in all, at other hours.
        whole = [each[3] for each in of]
        chance.shuffle(whole)
        while len(users) < len(of):
            users.append(chance.choice(users))
        for user, energy_j in zip(users, whole, strict=True):
            hour = month + HOUR * chance.randrange(24 * 29)
            other.append((max(hour, FIRST), account, user, energy_j))
    questions = list(asked(chance))
    with ExitStack() as stack:
        answers = [
            [
                [
                    {name: round(value, 6) if isinstance(value, float) else value
                     for name, value in row.items()}
                    for row in member(database).usage(by, **span, wanted=wanted)
                ]
                for by, span, wanted in questions
            ]
            for database in (
                stack.enter_context(kept(str(tmp_path / f"{name}.sqlite"), some))
                for name, some in (("one", these), ("other", other))
            )
        ]  # fmt: skip
    assert answers[0] == answers[1]
    assert any(answers[0])


def test_who_leads_another_cluster_s_account_is_told_a_part(tmp_path: Path) -> None:
    """Accounts of two clusters may have one name: who leads the one does not lead the other."""
    these: list[Part] = [(FIRST, "big", "ada", 7.0), (FIRST, "big", "u1", 50.0)]
    with kept(str(tmp_path / "c.sqlite"), these) as database:
        for leads, wanted, partial in (
            ({"alps/big"}, {}, False),
            ({"alps/big"}, {"cluster": "alps"}, False),
            ({"sea/big"}, {"cluster": "alps"}, True),
            ({"sea/big"}, {}, True),
        ):
            rights = Rights(leads=frozenset(leads), member=frozenset({"alps/big", *leads}))
            viewer = Viewer(database, "ada", rights, LATER)
            [row] = viewer.usage("account", start=EDGES[0], end=EDGES[1], wanted=wanted)
            assert row["partial"] is partial, (leads, wanted)
            assert row["energy_j"] == (7.0 if partial else 57.0)


MANY = tuple(Deed(30 + n, f"u{n}", "chem", 3 * n, 40 + 3 * n, 60.0 + n) for n in range(5))


@pytest.fixture(scope="module")
def few_and_many(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[World, World]]:
    """A centre with four users, and one with five more."""
    folder = tmp_path_factory.mktemp("groups")
    with (
        world(str(folder / "few.sqlite"), folder / "few", BOBS["many"]) as few,
        world(
            str(folder / "many.sqlite"),
            folder / "many",
            (*BOBS["many"], *MANY),
            accounts={
                **SETTINGS.accounts,
                "chem": Account(members=("bob", "cy", *(each.user for each in MANY))),
            },
        ) as many,
    ):
        yield few, many


def test_what_all_nodes_draw_is_told_of_enough(few_and_many: tuple[World, World]) -> None:
    few, many = few_and_many
    # An hour earlier five others had jobs in the last full quarter.
    then = replace(many.keeper, clock=lambda: NOW - 2700.0)
    asking = replace(many, client=replace(many.client, app=_app(then)))
    for who in ("ada", "cy", "nobody"):
        assert b"W = nodes" in asking.get(who, "/cluster").body
        assert b"at least 5 others" in few.get(who, "/cluster").body
        assert b"W = nodes" not in few.get(who, "/cluster").body
    for one in few_and_many:
        assert b"W = nodes" in one.get("sue", "/cluster").body
    opened = replace(few.keeper, settings=replace(few.keeper.settings, cluster_totals="all"))
    asking = replace(few, client=replace(few.client, app=_app(opened)))
    assert b"W = nodes" in asking.get("nobody", "/cluster").body


def test_what_all_nodes_draw_less_what_one_sees_is_nobodys(
    few_and_many: tuple[World, World], place: str, tmp_path: Path
) -> None:
    """Who leads an account counts none of it among the others, by whichever token they ask."""
    made = few_and_many[1]
    people = replace(made.keeper.settings.accounts["chem"], leads=("lee",))
    accounts = {**made.keeper.settings.accounts, "chem": people}
    with world(place, tmp_path, (*BOBS["many"], *MANY), accounts=accounts) as one:
        then = replace(one.keeper, clock=lambda: NOW - 2700.0)
        asking = replace(one, client=replace(one.client, app=_app(then)))
        for who in ("lee", "nobody"):
            for scope in SCOPES:
                token = make_token(
                    one.keeper.database, owner=who, scope=scope, lasts_s=1e6, now=START
                )
                page = asking.client.get("/cluster", authorization=f"Bearer {token}").body
                # There is ada, and hardly anybody else: beside chem's six.
                assert (b"W = nodes" in page) == (who == "nobody"), (who, scope)


def _app(keeper: Any) -> Any:
    from lowtide.serve.app import make_app

    return make_app(keeper)


def test_a_node_is_told_in_quarters_of_an_hour(few_and_many: tuple[World, World]) -> None:
    one = few_and_many[0]
    told = one.get("nobody", "/api/v1/nodes/n1").json()
    assert told["busy"] is True
    assert (told["ends"] - told["begins"], told["ends"] % 900) == (900.0, 0.0)
    assert told["power_w"] == float(f"{told['power_w']:.2g}") > 0
    # However often it is asked within a quarter, the answer is the same.
    for seconds in (0.0, 1.0, 400.0, 899.0):
        at = NOW // 900 * 900 + seconds
        keeper = replace(one.keeper, clock=lambda at=at: at)
        asking = replace(one, client=replace(one.client, app=_app(keeper)))
        assert asking.get("nobody", "/api/v1/nodes/n1").json() == told
    assert one.get("nobody", "/api/v1/nodes/n9").status == 404


def test_a_nodes_past_is_told_while_own_jobs_ran(few_and_many: tuple[World, World]) -> None:
    one = few_and_many[0]
    mine = {
        who: one.get(who, f"/api/v1/jobs?user={who}&host=n1").json()["jobs"]
        for who in ("ada", "cy", "bob", "nobody")
    }
    known = {}
    for path in ("course?start=0&points=2000", "steps"):
        for who, jobs in mine.items():
            told = one.get(who, f"/api/v1/nodes/n1/{path}").json()
            whole = one.get("sue", f"/api/v1/nodes/n1/{path}").json()
            assert told["times"] == whole["times"]
            for name, column in told["columns"].items():
                for place, value in enumerate(column):
                    ends, step_s = told["times"][place], told["step_s"][place]
                    inside = any(
                        each["started"] <= ends - step_s + 1 and ends - 1 <= (each["ended"] or NOW)
                        for each in jobs
                    )
                    if inside or name in ("intensity_g_per_kwh", "cpus", "memory_bytes"):
                        assert value == whole["columns"][name][place]
                    elif name not in (
                        "gpus",
                        "gpu_memory_total_bytes",
                        "pue",
                        "marginal_g_per_kwh",
                    ):
                        assert value is None, (who, name)
            known[who] = sum(value is not None for value in told["columns"]["power_w"])
        assert known["nobody"] == 0 < known["cy"] < known["bob"]


def test_who_is_forged_is_no_other(tmp_path: Path, few_and_many: tuple[World, World]) -> None:
    """Root on a node has jobs of users that are nobody, to see what the one who is real used."""
    month = EDGES[1]
    these = [(month, "big", "bob", 5.0), (month, "big", "u1", 7.0), (month, "big", "ada", 1.0)]
    these += [(month, "big", f"forged{n}", 3.0) for n in range(9)]
    with kept(str(tmp_path / "centre.sqlite"), these) as database:
        [row] = member(database).usage("account", start=EDGES[0], end=EDGES[3])
        assert row["energy_j"] == 1.0
        more = [(month, "big", f"u{n}", 2.0) for n in range(2, 5)]
    with kept(str(tmp_path / "more.sqlite"), these + more) as database:
        [row] = member(database).usage("account", start=EDGES[0], end=EDGES[3])
        assert row["energy_j"] == 5.0 + 7.0 + 1.0 + 27.0 + 6.0
    with few_and_many[1].keeper.database.writing() as connection:
        of = schema.members.c
        gone = connection.execute(sa.select(schema.members).where(of.user.startswith("u"))).all()
        connection.execute(sa.delete(schema.members).where(of.user.startswith("u")))
    try:
        assert b"W = nodes" not in few_and_many[1].get("ada", "/cluster").body
    finally:
        with few_and_many[1].keeper.database.writing() as connection:
            connection.execute(sa.insert(schema.members), [dict(each._mapping) for each in gone])


def test_a_group_is_no_single_user() -> None:
    with pytest.raises(InvalidInput, match="least_users"):
        Settings(least_users=1)


def test_a_forged_job_opens_no_nodes_past(tmp_path: Path) -> None:
    """Root on one node tells of a job of theirs on another, where none of theirs ever ran."""
    with world(str(tmp_path / "c.sqlite"), tmp_path, BOBS["many"]) as one:
        node = Node(tmp_path / "n7.sqlite", "n7", time=NOW, tells_all=False)
        node.tick([])
        node.put_facts(
            [
                facts(99, state="completed", user="nobody", account="phys", name="forged",
                      started=START, ended=NOW, cpus=4.0, nodes=("n1", "n7")),
                # And of one that did run there, that it did so from the beginning.
                facts(6, state="completed", user="cy", account="quark", name="job-6",
                      started=START, ended=NOW, cpus=4.0, nodes=("n2", "n7")),
            ]
        )  # fmt: skip
        assert [each.reason for each in node.push(one.keeper.database)] == [""]
        assert one.get("nobody", "/api/v1/jobs?name=forged").json()["jobs"]
        told = one.get("nobody", "/api/v1/nodes/n1/course?start=0").json()
        assert not any(told["columns"]["power_w"])
        told = one.get("cy", "/api/v1/nodes/n2/steps").json()
        assert sum(value is not None for value in told["columns"]["power_w"]) == 15
        [forged] = one.get("nobody", "/api/v1/jobs?name=forged").json()["jobs"]
        page = one.get("nobody", f"/jobs/{forged['ref']}")
        assert page.status == 200
        assert one.get("nobody", f"/api/v1/jobs/{forged['ref']}/course").json()["times"] == []
