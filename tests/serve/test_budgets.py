"""Budgets: what an account is to use, how much it has, what that leads to, and who is told."""

from __future__ import annotations

import html
import math
import random
import re
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest
import sqlalchemy as sa

from lowtide.errors import LowtideError
from lowtide.serve import schema
from lowtide.serve.app import make_app
from lowtide.serve.budgets import Budgets, period_span
from lowtide.serve.settings import Account, Budget, Settings
from lowtide.serve.viewer import Rights, Viewer
from lowtide.store.database import Database
from support.nightly import drawn
from support.pushed import CLUSTER, centre
from support.worlds import BOBS, NOW, SETTINGS, World, world

HOUR_S, DAY_S = 3600.0, 86400.0
ACCOUNTS = {
    **SETTINGS.accounts,
    "phys": replace(SETTINGS.accounts["phys"], budget=Budget(kwh=0.25, kg=0.2, per="month")),
    "chem": replace(SETTINGS.accounts["chem"], budget=Budget(kwh=1000.0, per="year")),
    "none": Account(budget=Budget(kg=5.0)),
}


@pytest.fixture(scope="module")
def one(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    folder = tmp_path_factory.mktemp("budgets")
    where = str(folder / "centre.sqlite")
    with world(where, folder, BOBS["many"], accounts=ACCOUNTS) as made:
        yield made


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("kwh = 1000", ""),
        ('kg = 3.5\nper = "year"', ""),
        ("", "name one"),
        ("kwh = 0", "name one"),
        ("kwh = -1", "from 0 on"),
        ("kwh = inf", "from 0 on"),
        ("kwh = nan", "from 0 on"),
        ("kwh = true", "is a number"),
        ('kwh = "many"', "is a number"),
        ('kwh = 1\nper = "week"', "week"),
        ("kWh = 1", "kwh"),
    ],
)
def test_a_file_says_what_is_to_be_used(tmp_path: Path, text: str, says: str) -> None:
    path = tmp_path / "serve.toml"
    path.write_text(
        f'cluster = "alps"\n[accounts.chem]\nmembers = ["a"]\n[accounts.chem.budget]\n{text}\n'
    )
    if not says:
        assert Settings.read(path).accounts["chem"].budget is not None
        return
    with pytest.raises(LowtideError, match=says):
        Settings.read(path)


def test_a_budget_is_a_table(tmp_path: Path) -> None:
    path = tmp_path / "serve.toml"
    path.write_text("[accounts.chem]\nbudget = 1000\n")
    with pytest.raises(LowtideError, match=r"\[accounts.chem.budget\] of .* is a table"):
        Settings.read(path)
    path.write_text("[accounts]\nchem = 5\n")
    with pytest.raises(LowtideError, match=r"\[accounts.chem\] of .* is a table"):
        Settings.read(path)


def test_periods_are_those_of_the_calendar() -> None:
    chance = random.Random(3)
    for _ in range(200):
        now = chance.uniform(0, 4e9)
        for per, months in (("month", 1), ("quarter", 3), ("year", 12)):
            begin, end = (datetime.fromtimestamp(each, UTC) for each in period_span(now, per))
            assert begin.timestamp() <= now < end.timestamp()
            assert (end.year - begin.year) * 12 + end.month - begin.month == months
            assert (begin.month - 1) % months == 0
            assert (begin.day, begin.hour, begin.minute, begin.second) == (1, 0, 0, 0)


Part = tuple[float, float]


def keep(database: Database, parts: list[Part], user: str = "u1") -> None:
    """Keep what was used in some hours as the sums of a centre."""
    names = (*schema.COUNTED, *schema.SUMMED)
    for table, begin_of in schema.USAGE.items():
        sums: dict[int, float] = {}
        for hour, energy_j in parts:
            sums[begin_of(hour)] = sums.get(begin_of(hour), 0.0) + energy_j
        rows = [
            {"begins": begins, "cluster": CLUSTER, "account": "chem", "user": user,
             "partition": "", "state": "completed", **dict.fromkeys(names, 0),
             "parts": 1, "jobs": 1, "energy_j": energy_j, "carbon_g": energy_j / 1e4}
            for begins, energy_j in sums.items()
        ]  # fmt: skip
        with database.writing() as connection:
            connection.execute(sa.insert(table), rows)


@pytest.mark.parametrize("seed", range(drawn(6, 200)))
def test_what_it_comes_to_is_as_by_hand(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    now = datetime(2024, 5, 1, tzinfo=UTC).timestamp() + chance.uniform(0, 31 * DAY_S)
    age = chance.choice([3.0, 20.0, 100.0, 400.0])
    parts = [
        ((now - chance.uniform(0, age * DAY_S)) // HOUR_S * HOUR_S, chance.uniform(1e5, 1e8))
        for _ in range(chance.randint(1, 60))
    ]
    per = chance.choice(["month", "quarter", "year"])
    budget = Budget(kwh=100.0, kg=chance.choice([0.0, 40.0]), per=per)
    settings = replace(SETTINGS, accounts={"chem": Account(budget=budget)})
    with centre(str(tmp_path / "centre.sqlite")) as database:
        keep(database, parts)
        viewer = Viewer(database, "sue", Rights(role="owner"), now)
        found = Budgets(settings).of(viewer, f"{CLUSTER}/chem")
    assert found is not None and found.energy is not None
    begin, end = period_span(now, per)
    used = math.fsum(joules for hour, joules in parts if begin <= hour)
    late = now // HOUR_S * HOUR_S + HOUR_S - 30 * DAY_S
    lately = [each for each in parts if each[0] >= late]
    since = late
    if all(hour >= late for hour, _ in parts):
        since = max(late, min(hour for hour, _ in parts) // DAY_S * DAY_S)
    pace = math.fsum(joules for _, joules in lately) / max(now - since, HOUR_S)
    assert found.energy.used == pytest.approx(used)
    assert found.energy.by_end == pytest.approx(used + pace * (end - now))
    assert found.energy.share == pytest.approx(used / 3.6e8)
    assert (found.carbon is None) == (budget.kg == 0)
    if found.carbon is not None:
        assert found.carbon.share == pytest.approx(used / 1e4 / 40e3)
    assert not found.partial


def budgets(one: World, who: str, asked: str = "by=account") -> dict[str, dict[str, object]]:
    found = one.get(who, f"/api/v1/usage?{asked}").json()["budgets"]
    return {each["account"]: each for each in found}


def test_only_who_is_told_the_sums_is_told_of_the_budget(one: World) -> None:
    for who, accounts in {
        "ada": {"phys"}, "bob": {"phys", "chem"}, "cy": {"chem"}, "lea": {"phys"},
        "sue": {"phys", "chem", "none"}, "adam": {"phys", "chem", "none"}, "nobody": set(),
    }.items():  # fmt: skip
        # What nobody is in, and nobody used, the staff alone knows of.
        assert set(budgets(one, who)) == accounts, who
        for account in ("phys", "chem"):
            answer = one.get(who, f"/projects/{CLUSTER}/{account}")
            assert answer.status == (200 if account in accounts else 404)
            assert (b"Budget of this" in answer.body) == (account in accounts)
    assert b"Budget" not in one.get("lea", f"/projects/{CLUSTER}/quark").body
    for asked in ("by=user", "by=day", "by=account&cluster=jura", "by=account&account=x"):
        assert budgets(one, "adam", asked) == {}
    assert set(budgets(one, "adam", "by=account&account=chem&cluster=alps")) == {"chem"}


def test_many_budgets_take_few_questions(one: World, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    usage = Viewer.usage

    def counted(viewer: Viewer, by: str, **how: object) -> object:
        asked.append(by)
        return usage(viewer, by, **how)  # type: ignore[arg-type]

    many = {f"x{number}": Account(budget=Budget(kg=1.0)) for number in range(50)}
    settings = replace(one.keeper.settings, accounts={**ACCOUNTS, **many})
    viewer = Viewer(one.keeper.database, "", Rights(role="owner"), NOW)
    monkeypatch.setattr(Viewer, "usage", counted)
    monkeypatch.setattr(
        Viewer, "accounts", lambda _: [f"{CLUSTER}/{name}" for name in settings.accounts]
    )
    found = Budgets(settings).all(viewer, {})
    assert [each.account for each in found] == sorted([*many, "chem", "none", "phys"])
    # Sums of two kinds of periods, of late and before; and when the two began that are new.
    assert sorted(asked) == ["account"] * 4 + ["day"] * 2
    for each in found:
        assert Budgets(settings).of(viewer, f"{CLUSTER}/{each.account}") == each


def test_the_parts_that_are_told_are_those_of_the_sums(one: World) -> None:
    month = period_span(NOW, "month")
    asked = f"by=account&account=phys&start={month[0]:.0f}&end={NOW // 3600 * 3600 + 3600:.0f}"
    for who in ("ada", "bob", "lea", "sue"):
        [row] = one.get(who, f"/api/v1/usage?{asked}").json()["usage"] or [{"energy_j": 0}]
        told = budgets(one, who)["phys"]
        energy: dict[str, float] = told["energy_j"]  # type: ignore[assignment]
        assert energy["used"] == row["energy_j"]
        assert told["partial"] == (who in ("ada", "bob"))
        # Where it leads would tell what the others use.
        assert (energy["by_end"] is None) == (who in ("ada", "bob"))
        assert energy["budget"] == 0.25 * 3.6e6


def test_two_worlds_have_one_budget(tmp_path: Path) -> None:
    """What bob used of chem changes no byte for cy, who is in it."""
    answers = []
    for name, deeds in BOBS.items():
        folder = tmp_path / name
        folder.mkdir()
        with world(str(folder / "c.sqlite"), folder, deeds, accounts=ACCOUNTS) as made:
            answers.append([
                made.get("cy", target).body
                for target in (f"/projects/{CLUSTER}/chem", "/api/v1/usage?by=account")
            ])  # fmt: skip
    assert answers[0] == answers[1] == answers[2]
    assert b"Budget of this year" in answers[0][0]


def test_a_page_says_what_is_over(one: World) -> None:
    def row(who: str, label: str) -> str:
        page = html.unescape(one.get(who, f"/projects/{CLUSTER}/phys").body.decode())
        table = page.split("Budget of this month</h2>")[1].split("</table>")[0]
        return re.search(rf"<tr><th scope=\"row\">{label}</th>.*?</tr>", table, re.S)[0]  # type: ignore[index]

    energy = budgets(one, "lea")["phys"]["energy_j"]
    share = energy["used"] / energy["budget"]  # type: ignore[index]
    by_end = energy["by_end"] / energy["budget"]  # type: ignore[index]
    assert 0 < share < 1 < by_end
    told = row("lea", "Energy")
    assert f"{100 * share:.1f} %" in told
    assert '<strong class="bad">' in told and "over</strong>" in told
    # The budget of emissions is far away; a member is told of the month so far, at least.
    assert "over" not in row("ada", "CO2e")
    assert len(re.findall("<td", row("ada", "Energy"))) == 4
    assert len(re.findall("<td", told)) == 5
    spent = {**ACCOUNTS, "phys": replace(ACCOUNTS["phys"], budget=Budget(kwh=share * 0.2))}
    keeper = replace(one.keeper, settings=replace(one.keeper.settings, accounts=spent))
    over = replace(one, client=replace(one.client, app=make_app(keeper)))
    page = over.get("lea", f"/projects/{CLUSTER}/phys").body.decode()
    assert len(re.findall(r'<strong class="bad">[^<]*over</strong>', page)) == 2
    assert b"A budget is of energy" in one.get("ada", "/method").body
