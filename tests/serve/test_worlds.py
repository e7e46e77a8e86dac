"""Nobody learns what is not theirs: worlds that differ in bob's jobs alone answer alike."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from support.nightly import drawn
from support.worlds import BOBS, NOW, PEOPLE, START, World, world

# Where nodes are told of, others' jobs are in the sum of a node.
OF_NODES = ("/nodes", "/api/v1/nodes", "/api/v1/health", "/cluster")
# Who sees none of bob's jobs, nor the sum of an account that they are of.
BLIND = ("ada", "lea", "nobody", None)
REFS = ("{mine}", "{his}", "0" * 20, "..", "%2e%2e", "1", "' OR 1=1 --", "%00")
REFS += ("{his}/", "{his}%2f", "{his}%00", "<script>")
PATHS = (
    *("/", "/jobs", "/usage", "/looks", "/static/lowtide.css", "/static/../app.py"),
    *("/api/v1/me", "/api/v1/jobs", "/api/v1/usage", "/api/v1/looks", "/api/v1/openapi.json"),
    *("/jobs/{ref}", "/api/v1/jobs/{ref}", "/api/v1/jobs/{ref}/course", "//jobs", "/API/v1/jobs"),
    *("/waste", "/api/v1/waste", "/projects", "/projects/alps/phys", "/projects/alps/chem"),
    *("/projects/chem", "/projects/{ref}", "/reports", "/reports/2023-11.parquet", "/settings"),
    *("/compare", "/when", "/method", "/health", "/audit", "/stop/{ref}"),
    *("/compare?a={ref}&b={ref}", "/when?like={ref}", "/settings/tokens/1"),
    *("/api/v1//jobs/{ref}", "/enter/{ref}", "/nothing", "/api/v1/jobs/{ref}/../../jobs"),
)
VALUES = {
    "user": ("bob", "ada", "bob,ada", "b%", "*", "' OR '1'='1", "bob\0", ""),
    "account": ("chem", "phys", "quark", "chem' --", "%"),
    "state": ("completed", "running", "COMPLETED", "bogus", "completed' OR 1=1"),
    "name": ("secret", "s", "=x", "%", "_", "job"),
    "job": ("11", "12", "1", "20", "2_1"),
    "host": ("n1", "%", "n"),
    "order": ("over", "energy_j", "user", "energy_j; DROP TABLE centre_jobs", "hours", "-over"),
    "most": ("1", "0", "-1", "500", "501", "1e9", "x"),
    "after": ("aW5mIDA", "bmFuIHg", "!!", "LWluZiA", ""),
    "by": ("account", "user", "state", "day", "hour", "partition", "hours", "1"),
    "start": (f"{START // 3600 * 3600}", "0", "nan", "-1", "inf", f"{NOW + 1e6}"),
    "end": (f"{NOW // 3600 * 3600 + 3600}", "1", "1e400"),
    "format": ("json", "csv", "parquet", "xml"),
    "points": ("2", "2000", "2001", "-5"),
    "days": ("7", "30", "0", "-1", "x", "1e9"),
    "month": ("2023-11", "2023-10", "2023-13", "", "0000-00", "9999-99", "2023-11' --"),
    "time": ("6:00:00", "-1", "nan", "1e400", "0", "x"),
}


@pytest.fixture(scope="module")
def worlds(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, World]]:
    with ExitStack() as stack:
        folder = tmp_path_factory.mktemp("worlds")
        yield {
            name: stack.enter_context(world(str(folder / f"{name}.sqlite"), folder / name, deeds))
            for name, deeds in BOBS.items()
        }


def _refs(one: World, who: str) -> list[str]:
    found = one.get(who, "/api/v1/jobs?most=500").json()["jobs"]
    return [each["ref"] for each in found]


def test_worlds_without_leave_to_see_bob_are_one_world(worlds: dict[str, World]) -> None:
    chance = random.Random(8)
    his = [ref for one in worlds.values() for ref in _refs(one, "bob")]
    mine = _refs(worlds["none"], "ada")
    assert his
    assert mine
    answered: dict[int, int] = {}
    for _ in range(drawn(250, 40_000)):
        who = chance.choice(BLIND)
        ref = chance.choice(REFS).format(mine=chance.choice(mine), his=chance.choice(his))
        path = chance.choice(PATHS).format(ref=ref)
        names = chance.sample(sorted(VALUES), chance.randint(0, 3))
        asked = "&".join(f"{name}={chance.choice(VALUES[name])}" for name in names)
        path += ("&" if "?" in path else "?") * bool(asked) + asked
        first, *others = [one.get(who, path) for one in worlds.values()]
        assert all(other == first for other in others), (who, path)
        assert first.status < 500, (who, path, first)
        answered[first.status] = answered.get(first.status, 0) + 1
    # Most of what was asked was answered, so that there was something to compare.
    assert answered[200] > sum(answered.values()) / 5
    assert answered[404] > 0


def test_those_who_may_see_bob_do(worlds: dict[str, World]) -> None:
    """The test above can fail: what it compares does differ for others."""
    for who in ("bob", "sue", "adam"):
        seen = {one.get(who, "/api/v1/jobs?user=bob").body for one in worlds.values()}
        assert len(seen) == len(worlds)


@pytest.mark.parametrize("who", ["ada", "cy", "lea", "nobody"])
def test_what_is_not_yours_is_not_there(worlds: dict[str, World], who: str) -> None:
    one = worlds["many"]
    for path in ("/jobs/{}", "/api/v1/jobs/{}", "/api/v1/jobs/{}/course"):
        nothing = one.get(who, path.format("0" * 20))
        assert nothing.status == 404
        for ref in _refs(one, "bob"):
            assert one.get(who, path.format(ref)) == nothing


def test_sums_equal_the_jobs(worlds: dict[str, World]) -> None:
    one = worlds["many"]
    hour = f"start={START // 3600 * 3600:.0f}&end={NOW // 3600 * 3600 + 3600:.0f}"
    for who in PEOPLE:
        jobs = one.get(who, "/api/v1/jobs?most=500").json()["jobs"]
        for by in ("user", "state", "day", "hour", "partition"):
            rows = one.get(who, f"/api/v1/usage?by={by}&{hour}").json()["usage"]
            whole = sum(each["energy_j"] for each in jobs)
            assert sum(row["energy_j"] for row in rows) == pytest.approx(whole, rel=1e-9)
            assert sum(row["jobs"] for row in rows) == len(jobs)


def test_a_member_is_told_of_the_account_as_a_whole(worlds: dict[str, World]) -> None:
    one = worlds["many"]
    hour = f"start={START // 3600 * 3600:.0f}&end={NOW // 3600 * 3600 + 3600:.0f}"
    told = one.get("cy", f"/api/v1/usage?by=account&{hour}").json()["usage"]
    assert {row["account"] for row in told} == {"chem", "quark"}
    # Of chem only bob has used anything: that sum is the account's. By user it is not told.
    for asked in (
        "by=user",
        "by=account&user=bob",
        "by=state&account=chem",
        "by=hour&account=chem",
    ):
        rows = one.get("cy", f"/api/v1/usage?{asked}&{hour}").json()["usage"]
        assert "bob" not in str(rows)
        assert not any(row.get("account") == "chem" for row in rows)


def test_a_lead_sees_accounts_below(worlds: dict[str, World]) -> None:
    one = worlds["many"]
    jobs = one.get("lea", "/api/v1/jobs?most=500").json()["jobs"]
    assert {each["user"] for each in jobs} == {"ada", "cy", "lea"}
    assert {each["account"] for each in jobs} >= {"phys", "quark"}


def test_who_of_the_staff_looked_is_told(worlds: dict[str, World]) -> None:
    one = worlds["none"]
    [ref, *_] = _refs(one, "cy")
    one.get("sue", f"/api/v1/jobs/{ref}")
    one.get("cy", f"/api/v1/jobs/{ref}")
    looks = one.get("cy", "/api/v1/looks").json()["looks"]
    assert (looks[0]["viewer"], looks[0]["role"]) == ("sue", "support")
    assert not any(look["viewer"] == "cy" for look in looks)
    assert b"sue" in one.get("cy", "/looks").body


@pytest.mark.parametrize("order", ["over", "energy_j", "started"])
def test_a_list_in_parts_is_the_list(worlds: dict[str, World], order: str) -> None:
    one = worlds["other"]
    whole = one.get("adam", f"/api/v1/jobs?most=500&order={order}").json()["jobs"]
    found: list[str] = []
    after = ""
    while True:
        part = one.get("adam", f"/api/v1/jobs?most=2&order={order}&after={after}").json()
        found += [each["ref"] for each in part["jobs"]]
        if part["next"] is None:
            break
        after = part["next"]
    assert found == [each["ref"] for each in whole]
    assert len(set(found)) == len(found) == 11


def test_the_same_list_in_other_forms(worlds: dict[str, World]) -> None:
    import io

    import polars as pl

    one = worlds["other"]
    rows = one.get("bob", "/api/v1/jobs?format=json").json()["jobs"]
    csv = pl.read_csv(one.get("bob", "/api/v1/jobs?format=csv").body)
    parquet = pl.read_parquet(io.BytesIO(one.get("bob", "/api/v1/jobs?format=parquet").body))
    for frame in (csv, parquet):
        assert frame["ref"].to_list() == [each["ref"] for each in rows]
        assert frame["energy_j"].to_list() == pytest.approx([each["energy_j"] for each in rows])
    # What would be a formula in a spreadsheet is text there.
    assert set(csv["name"]) == {f"'=x{number}" for number in range(6)}
    assert set(parquet["name"]) == {f"=x{number}" for number in range(6)}


def test_a_server_holds_rows_back_by_itself(server: str, tmp_path: Path) -> None:
    """On PostgreSQL a question that lacks the rule gets none of others' rows."""
    import sqlalchemy as sa

    from lowtide.serve import schema
    from lowtide.serve.people import rights_of
    from lowtide.serve.viewer import Viewer

    with world(server, tmp_path / "pg", BOBS["many"]) as one:
        database = one.keeper.database
        for who, wanted in (
            ("ada", {"ada"}),
            ("nobody", set()),
            ("lea", {"ada", "cy", "lea"}),
            ("sue", {"ada", "bob", "cy", "lea"}),
        ):
            viewer = Viewer(database, who, rights_of(database, who), NOW)
            with viewer._reading() as connection:
                found = set(connection.execute(sa.select(schema.jobs.c.user)).scalars())
                assert found == wanted
                with pytest.raises(sa.exc.ProgrammingError):
                    connection.execute(sa.select(schema.tokens))
        with database.reading() as connection:
            # Without any settings there are none.
            connection.exec_driver_sql(f"SET LOCAL ROLE {schema.READER}")
            assert not connection.execute(sa.select(schema.jobs.c.user)).all()
        for who in ("ada", "lea", "sue"):
            assert one.get(who, "/api/v1/jobs").status == 200
            assert one.get(who, "/usage?by=day").status == 200


def test_sums_say_how_sure_they_are(worlds: dict[str, World]) -> None:
    from lowtide.serve.pages import summed_energy, summed_mass

    known = {"energy_j": 7.2e6, "measured_j": 7.2e6, "carbon_g": 500.0, "unmetered_s": 0.0}
    known |= {"unpriced_j": 0.0, "without_energy": 0, "without_carbon": 0}
    assert (summed_energy(known), summed_mass(known)) == ("2 kWh", "500 g")
    assert summed_energy(known | {"measured_j": 1.0}) == "~2 kWh"
    assert summed_energy(known | {"unmetered_s": 5.0, "measured_j": 0.0}) == ">~2 kWh"
    assert summed_energy(known | {"without_energy": 1}) == ">2 kWh"
    assert summed_mass(known | {"unpriced_j": 4.0}) == ">500 g"
    nothing = known | {"energy_j": None, "carbon_g": None, "without_energy": 3}
    assert (summed_energy(nothing), summed_mass(nothing)) == ("---", "---")
    assert b"kWh" in worlds["many"].get("sue", "/usage?by=user").body
