"""Nobody learns what is not theirs: worlds that differ in bob's jobs alone answer alike."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from functools import partial

import pytest

from lowtide.serve.app import make_app
from lowtide.serve.schema import tokens
from lowtide.serve.tokens import READ_OWN, list_tokens, make_token
from support.nightly import drawn
from support.postgres import emptied
from support.pushed import rows
from support.worlds import BOBS, NOW, PEOPLE, START, World, world

# Who sees none of bob's jobs. Of the account that cy shares with him fewer than five others are.
BLIND = ("ada", "cy", "lea", "nobody", None)
REFS = ("{mine}", "{his}", "0" * 20, "..", "%2e%2e", "1", "' OR 1=1 --", "%00")
REFS += ("{his}/", "{his}%2f", "{his}%00", "<script>")
NODES = ("n1", "n2", "N1", "n1%00", "%", "bob", "n1/..")
# All that may be asked. Two things do differ with what others do on a node, and are meant to; they
# are left out of what is compared, and nothing else is.
# 1. What a node does now is told to all, as one sum (`NOW_OF_NODES`).
# 2. While one's own jobs ran on a node its past is told, and jobs that share a node share its
#    power: bob ran beside the others on n1, and never on n2 while cy did (`SHARED`).
PATHS = (
    *("/", "/jobs", "/usage", "/looks", "/static/lowtide.css", "/static/../app.py"),
    *("/api/v1/me", "/api/v1/jobs", "/api/v1/usage", "/api/v1/looks", "/api/v1/openapi.json"),
    *("/jobs/{ref}", "/api/v1/jobs/{ref}", "/api/v1/jobs/{ref}/course", "//jobs", "/API/v1/jobs"),
    *("/api/v1/jobs/{ref}/steps", "/api/v1/table", "/api/v1/synthetic", "/api/v1/health"),
    *("/waste", "/api/v1/waste", "/projects", "/projects/alps/phys", "/projects/alps/chem"),
    *("/projects/chem", "/projects/{ref}", "/reports", "/reports/2023-11.parquet", "/settings"),
    *("/compare", "/when", "/method", "/health", "/audit", "/stop/{ref}", "/login"),
    *("/shared/{ref}", "/shared/{ref}.csv", "/shared/", "/jobs/{ref}/links"),
    *(
        "/compare?a={ref}&b={ref}",
        "/when?like={ref}",
        "/settings/tokens/1",
        "/api/v1/grid",
        "/api/v1/queue",
        "/api/v1/plans?like={ref}",
        "/api/v1/tokens",
    ),
    *("/api/v1//jobs/{ref}", "/enter/{ref}", "/nothing", "/api/v1/jobs/{ref}/../../jobs"),
    *("/nodes", "/nodes/{node}", "/api/v1/nodes", "/api/v1/nodes/{node}", "/cluster"),
    *("/api/v1/nodes/{node}/course", "/api/v1/nodes/{node}/steps"),
)
POSTS = ("/leave", "/settings/mails", "/settings/tokens", "/settings/tokens/{number}")
POSTS += (
    "/jobs/{ref}/links",
    "/shared/{ref}",
    "/stop/{ref}",
    "/enter/{ref}",
    "/jobs",
    "/api/v1/jobs",
    "/nodes/{node}",
)
VALUES = {
    "user": ("bob%00", "bob", "ada", "bob,ada", "b%", "*", "' OR '1'='1", "bob\0", ""),
    "account": ("chem", "phys", "quark", "chem' --", "%"),
    "state": ("completed", "running", "COMPLETED", "bogus", "completed' OR 1=1"),
    "name": ("%00", "secret", "s", "=x", "%", "_", "job"),
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
    "from": ("2023-11-14", "2023-11-15", "", "0001-01-01", "x"),
    "to": ("2023-11-14", "9999-12-31", "-1"),
    "page": ("1", "2", "0", "-1", "1e9", "x"),
    "month": ("2023-11", "2023-10", "2023-13", "", "0000-00", "9999-99", "2023-11' --"),
    "time": ("6:00:00", "-1", "nan", "1e400", "0", "x"),
}


NOW_OF_NODES = re.compile(
    rb'"busy":[^,]*,"power_w":[^}]*|<li>now<b>.*?</b></li><li>power, of all on it<b>.*?</b></li>'
    rb'|<td class="now">.*?</td><td class="n now">.*?</td>'
)
SHARED = re.compile(r"(/api/v1)?/nodes/n1(/course|/steps)?(\?|$)")
METHODS = ("GET",) * 7 + ("POST", "POST", "HEAD", "PUT", "OPTIONS")


@pytest.fixture(scope="module", params=["sqlite", "postgresql"])
def worlds(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, World]]:
    with ExitStack() as stack:
        folder = tmp_path_factory.mktemp("worlds")
        places = {name: str(folder / f"{name}.sqlite") for name in BOBS}
        if request.param == "postgresql":
            address = request.getfixturevalue("postgres")
            places = {name: stack.enter_context(emptied(address, f"world_{name}")) for name in BOBS}
        yield {
            name: stack.enter_context(world(places[name], folder / name, deeds))
            for name, deeds in BOBS.items()
        }


def _refs(one: World, who: str) -> list[str]:
    found = one.get(who, "/api/v1/jobs?most=500").json()["jobs"]
    return [each["ref"] for each in found]


def _asked(chance: random.Random, mine: list[str], his: list[str]) -> tuple[str, str, bytes]:
    """Draw what is asked: how, of what, and what is sent along."""
    ref = chance.choice(REFS).format(mine=chance.choice(mine), his=chance.choice(his))
    method = chance.choice(METHODS)
    paths = PATHS if method in ("GET", "HEAD") else PATHS + POSTS * 5
    path = chance.choice(paths).format(
        ref=ref, node=chance.choice(NODES), number=chance.randrange(1, 9)
    )
    names = chance.sample(sorted(VALUES), chance.randint(0, 3))
    words = "&".join(f"{name}={chance.choice(VALUES[name])}" for name in names)
    if method == "POST":
        more = chance.choice(["", "form_key=x", "scope=read:all&days=7", "mails=no"])
        return method, path, "&".join(filter(None, (words, more))).encode()
    return method, path + ("&" if "?" in path else "?") * bool(words) + words, b""


def test_worlds_without_leave_to_see_bob_are_one_world(
    worlds: dict[str, World], request: pytest.FixtureRequest
) -> None:
    chance = random.Random(8)
    his = [ref for one in worlds.values() for ref in _refs(one, "bob")]
    mine = _refs(worlds["none"], "ada") + _refs(worlds["none"], "cy")
    assert his
    assert mine
    answered: dict[int, int] = {}
    asked, differ = 0, []
    on_a_file = "sqlite" in request.node.name
    for _ in range(drawn(250, 35_000) if on_a_file else drawn(100, 6_000)):
        who = chance.choice(BLIND)
        method, path, body = _asked(chance, mine, his)
        if who in ("ada", "cy", "lea") and SHARED.match(path):
            continue
        first, *others = [one.send(method, who, path, body) for one in worlds.values()]
        asked += len(worlds)
        plain = NOW_OF_NODES.sub(b"", first.body)
        for other in others:
            same = (other.status, other.headers) == (first.status, first.headers)
            if plain != first.body:
                same = other.status == first.status
            if not same or NOW_OF_NODES.sub(b"", other.body) != plain:
                differ.append((who, method, path))
        assert first.status < 500, (who, method, path, first)
        answered[first.status] = answered.get(first.status, 0) + 1
    print(f"{asked} requests, {len(differ)} differ; by status: {answered}")
    assert not differ
    # Most of what was asked was answered, so that there was something to compare.
    assert answered[200] > sum(answered.values()) / 5
    assert answered[404] > 0


def test_what_is_left_out_does_differ(worlds: dict[str, World]) -> None:
    """Both exceptions are there for something, and are no wider than it."""
    now = [one.get("nobody", "/api/v1/nodes/n2").body for one in worlds.values()]
    assert len(set(now)) > 1
    assert len({NOW_OF_NODES.sub(b"", each) for each in now}) == 1
    shared = [one.get("ada", "/api/v1/nodes/n1/steps").body for one in worlds.values()]
    assert len(set(shared)) == len(worlds)
    for who in ("cy", "nobody"):
        alone = [one.get(who, "/api/v1/nodes/n2/steps").body for one in worlds.values()]
        assert len(set(alone)) == 1
    # To cy n2 is told of the quarter of an hour of their own job, and of no other time.
    told = worlds["many"].get("cy", "/api/v1/nodes/n2/steps").json()
    power = told["columns"]["power_w"]
    assert sum(value is not None for value in power) == 15


def test_those_who_may_see_bob_do(worlds: dict[str, World]) -> None:
    """The test above can fail: what it compares does differ for others."""
    for who in ("bob", "sue", "adam"):
        seen = {one.get(who, "/api/v1/jobs?user=bob").body for one in worlds.values()}
        assert len(seen) == len(worlds)


# What stands in each route's place for what is bob's, and for what nobody has.
HIS = {"account": ("chem", "none"), "cluster": ("alps",)}
# What a route's place stands for that is nobody's own, or that only its holder has.
OPEN = {"name": "nodes, of which all know", "month": "months", "key": "secrets of one use"}
OPEN |= {"host": "for nodes", "incarnation": "for nodes", "seq:int": "for nodes"}


def _put_in(ids: dict[str, Sequence[str]], number: int, place: re.Match[str]) -> str:
    known = ids[place[1]]
    return known[min(number, len(known) - 1)]


def test_what_is_not_yours_is_not_there(worlds: dict[str, World]) -> None:
    """Whatever bob has, as any other kind of viewer, on every route that takes it."""
    one = worlds["many"]
    database = one.keeper.database
    numbers = [str(each.number) for each in list_tokens(database, owner="bob", now=NOW)]
    ids = {**HIS, "ref": (*_refs(one, "bob"), "0" * 20), "number:int": (*numbers, "999999")}
    one.tokens["sue, for her own"] = make_token(
        database, owner="sue", scope=READ_OWN, lasts_s=1e6, now=START
    )
    tried = 0
    for route in make_app(one.keeper)._routes:  # type: ignore[attr-defined]
        places = re.findall(r"{([^}]*)}", route.path)
        if not places or set(places) & set(OPEN):
            continue
        method = "GET" if "GET" in (getattr(route, "methods", None) or ("GET",)) else "POST"
        for who in ("ada", "cy", "lea", "nobody", None, "sue, for her own"):
            if "account" in places and who == "cy":
                # Cy is in chem, and is told that it is there.
                continue
            count = max(len(ids[name]) for name in places)
            *targets, nothing = [
                re.sub(r"{([^}]*)}", partial(_put_in, ids, number), route.path)
                for number in range(count)
            ]
            there = one.send(method, who, nothing, b"")
            assert there.status == (401 if who is None else 404)
            for target in targets:
                tried += 1
                assert one.send(method, who, target, b"") == there, (who, target)
    assert tried > 100
    assert {str(each["id"]) for each in rows(database, tokens)} >= set(numbers)


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


def test_a_member_is_told_of_no_account_of_few(worlds: dict[str, World]) -> None:
    """What is told of accounts of many is in `test_sums_of_few`."""
    one = worlds["many"]
    hour = f"start={START // 3600 * 3600:.0f}&end={NOW // 3600 * 3600 + 3600:.0f}"
    told = one.get("cy", f"/api/v1/usage?by=account&{hour}").json()["usage"]
    # Of chem only bob has used anything: that sum would be his.
    assert {row["account"] for row in told} == {"quark"}
    for asked in (
        "by=account",
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
    assert len(set(found)) == len(found) == 19


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
    assert set(csv["name"]) >= {f"'=x{number}" for number in range(6)}
    assert set(parquet["name"]) >= {f"=x{number}" for number in range(6)}
    assert not any(name.startswith("=") for name in csv["name"])


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
