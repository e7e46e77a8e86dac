"""Comparing runs: what of a difference may be chance, and that none is made up of one run."""

from __future__ import annotations

import html
import math
import random
import re
from collections.abc import Iterator
from dataclasses import fields, replace
from typing import Any

import numpy as np
import pytest
from scipy import stats

from lowtide.serve.comparing import ComparedRow, compared, compared_phases, energy_by_phase
from lowtide.serve.people import rights_of
from lowtide.serve.viewer import Viewer, VisibleJob
from support.nightly import drawn
from support.worlds import NOW, Deed, World, world

# Four runs of a program before a change and three after it, and other people's.
BEFORE = tuple(
    Deed(40 + n, "cy", "quark", 12 * n, 12 * n + 10, 90.0 + 3 * n, "before") for n in range(4)
)
AFTER = tuple(
    Deed(50 + n, "cy", "quark", 14 * n, 14 * n + 8, 60.0 + 2 * n, "after", "n2") for n in range(3)
)
OTHERS = (
    Deed(60, "bob", "chem", 3, 20, 95.0, "before"),
    Deed(61, "ada", "phys", 3, 9, 9.0, "twin"),
)


@pytest.fixture(scope="module")
def one(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    folder = tmp_path_factory.mktemp("comparing")
    with world(str(folder / "centre.sqlite"), folder, (*BEFORE, *AFTER, *OTHERS)) as made:
        yield made


def refs(one: World, who: str, name: str) -> list[str]:
    found = one.get(who, f"/api/v1/jobs?most=500&name={name}").json()["jobs"]
    return [each["ref"] for each in found]


def address(first: list[str], second: list[str]) -> str:
    return "/compare?" + "&".join([*(f"a={ref}" for ref in first), *(f"b={ref}" for ref in second)])


def page(one: World, who: str, target: str) -> str:
    answer = one.get(who, target)
    assert answer.status == 200
    return html.unescape(answer.body.decode()).replace("\u00a0", " ")


def cells(text: str, label: str) -> list[str]:
    [row] = re.findall(rf'<tr><th scope="row" class="wrap">{label}</th>(.*?)</tr>', text)
    return [re.sub("<.*?>", "", cell) for cell in re.findall(r"<td.*?>(.*?)</td>", row)]


@pytest.fixture(scope="module")
def some(one: World) -> VisibleJob:
    database = one.keeper.database
    found = Viewer(database, "cy", rights_of(database, "cy"), NOW).job(refs(one, "cy", "before")[0])
    assert found is not None
    return found


def runs(some: VisibleJob, joules: list[float], name: str = "x") -> list[VisibleJob]:
    return [
        replace(some, ref=f"{name}{place}", record=replace(some.record, energy_j=each))
        for place, each in enumerate(joules)
    ]


def plain(row: ComparedRow) -> ComparedRow:
    """Return a row as it reads, wherever its lines may break."""
    texts = {each.name: getattr(row, each.name).replace("\u00a0", " ") for each in fields(row)}
    return ComparedRow(**texts)


def number(text: str) -> float:
    return float(text.replace(",", "").removesuffix(" kWh"))


@pytest.mark.parametrize("seed", range(drawn(20, 500)))
def test_intervals_are_those_of_the_books(some: VisibleJob, seed: int) -> None:
    chance = random.Random(seed)
    first, second = (
        [chance.gauss(chance.choice([5e6, 6e6]), chance.choice([1e5, 2e6]))
         for _ in range(chance.randint(2, 9))]
        for _ in range(2)
    )  # fmt: skip
    row = plain(compared(runs(some, first), runs(some, second, "y"))[0])
    test = stats.ttest_ind(second, first, equal_var=False)
    low, high = test.confidence_interval(0.95)
    told = re.fullmatch(r"([+-].*) \((.*) to (.*)\)", row.difference)
    assert told is not None
    wanted = [np.mean(second) - np.mean(first), low, high]
    for text, value in zip(told.groups(), wanted, strict=True):
        assert number(text) == pytest.approx(value / 3.6e6, rel=1e-3, abs=2e-3)
    assert row.verdict == ("beyond chance" if test.pvalue < 0.05 else "may be chance")
    mean, half = row.first.split(" ± ")
    assert number(mean) == pytest.approx(np.mean(first) / 3.6e6, rel=1e-3)
    wide = stats.t.ppf(0.975, len(first) - 1) * stats.sem(first)
    assert number(half) == pytest.approx(wide / 3.6e6, rel=1e-3, abs=2e-3)


def test_runs_that_are_alike_are_seldom_beyond_chance(some: VisibleJob) -> None:
    chance = random.Random(5)
    beyond = 0
    for _ in range(400):
        sides = ([chance.gauss(5e6, 3e5) for _ in range(4)] for _ in range(2))
        one, other = (runs(some, side, name) for side, name in zip(sides, "xy", strict=True))
        beyond += compared(one, other)[0].verdict == "beyond chance"
    # One in twenty; four standard deviations of that to either side.
    assert 3 <= beyond <= 37


@pytest.mark.parametrize(
    ("first", "second", "told"),
    [
        ([5e6], [6e6], ("1.389 kWh", "1.667 kWh", "+0.2778 kWh", "", "+20 %")),
        ([6e6], [5e6, 5.5e6], ("1.667 kWh", "", "-0.2083 kWh", "", "-12.5 %")),
        ([5e6, 5e6], [5e6, 5e6], ("1.389 kWh", "1.389 kWh", "0 kWh", "", "0 %")),
        ([math.nan], [5e6], ("---", "1.389 kWh", "---", "", "---")),
        ([math.nan, 5e6], [5e6], ("1.389 kWh, of 1", "1.389 kWh", "0 kWh", "", "0 %")),
    ],
)
def test_of_one_run_no_interval_is_made_up(
    some: VisibleJob, first: list[float], second: list[float], told: tuple[str, ...]
) -> None:
    row = plain(compared(runs(some, first), runs(some, second, "y"))[0])
    found = (row.first, row.second, row.difference, row.verdict, row.change)
    for text, wanted in zip(found, told, strict=True):
        if wanted:
            assert text == wanted or text.startswith(f"{wanted} ±"), row
    assert row.verdict == "" and "(" not in row.difference


def test_a_run_on_both_sides_is_no_evidence(some: VisibleJob) -> None:
    both = runs(some, [5e6, 5.1e6, 5.2e6])
    for row in compared(both, [*both[:1], *runs(some, [9e6, 9.1e6], "y")]):
        assert (row.verdict, "(" in row.difference) == ("", False)
    drew = {each.ref: {"work": 1.0 + place} for place, each in enumerate(both)}
    [row] = compared_phases(drew, {"x0": {"work": 9.0}, "y": {"work": 8.0}})
    assert (row.verdict, "(" in row.difference) == ("", False)


def test_phases_are_compared_where_they_were_found() -> None:
    first = {"a": {"load": 1e6, "work": 4e6}, "b": {"load": 1.2e6, "work": 5e6}, "c": {"work": 6e6}}
    second = {"d": {"work": 1e6}, "e": {"work": 1.5e6, "save": 1e5}}
    rows: dict[str, ComparedRow] = {
        each.label: plain(each) for each in compared_phases(first, second)
    }
    assert list(rows) == ["load", "work", "save"]
    assert rows["load"].first.endswith(", of 2")
    assert (rows["load"].second, rows["load"].difference, rows["load"].verdict) == (
        "---",
        "---",
        "",
    )
    assert rows["work"].verdict == "beyond chance"
    assert rows["save"].second == "0.02778 kWh, of 1" or rows["save"].second == "100 kJ, of 1"
    assert energy_by_phase(None) == {}


def test_a_page_tells_runs_from_chance(one: World) -> None:
    before, after = refs(one, "cy", "before"), refs(one, "cy", "after")
    assert (len(before), len(after)) == (4, 3)
    text = page(one, "cy", address(before, after))
    assert "First, mean of 4" in text and "Second, mean of 3" in text
    energy = cells(text.split("Which runs</h2>")[0], "energy")
    assert " ± " in energy[0] and " ± " in energy[1]
    assert re.fullmatch(r"-.* \(-.* to -.*\)", energy[2])
    assert energy[3] == "no"
    assert "Energy by phase" in text
    assert "95 % intervals" in text
    # All that was ticked stays ticked.
    assert len(re.findall(r'type="checkbox"[^>]* checked', text)) == 7
    # One run each: no interval, and the runs like each are offered.
    single = page(one, "cy", address(before[:1], after[:1]))
    assert "no interval" in single and " ± " not in single.split("Which runs</h2>")[0]
    [link] = re.findall(r'href="(/compare\?[^"]*)">With all runs like each', single)
    assert "4 like the first, 3 like the second" in single
    assert page(one, "cy", link).count(" ± ") == text.count(" ± ")
    # Two runs of the same program: whose side the others are on nobody knows.
    assert "With all runs like each" not in page(one, "cy", address(before[:1], before[1:2]))
    mixed = page(one, "cy", address(before, [*before[:1], *after]))
    assert "stands on both sides" in mixed and "May be chance?" not in mixed
    assert "one side is one run" in page(one, "cy", address(before, after[:1]))


def test_only_what_may_be_seen_is_compared(one: World) -> None:
    before, after = refs(one, "cy", "before"), refs(one, "cy", "after")
    [his] = refs(one, "bob", "before")
    nothing = one.get("cy", "/jobs/x")
    for first, second in (([his], after), (before, [his]), ([*before, his], after), ([his], [])):
        assert one.get("cy", address(first, second)) == nothing
    assert one.get("cy", address(before, ["0" * 15])) == nothing
    # Bob's runs of the same name are like none of cy's; nor does anybody see them in a list.
    assert his not in page(one, "cy", address(before[:1], after[:1]))
    assert one.get("ada", address(before, after)) == one.get("ada", "/jobs/x")


@pytest.mark.parametrize(
    ("target", "status"),
    [
        ("/compare?a=&b=", 200),
        ("/compare?a={ref}", 200),
        ("/compare?b={ref}&name=aft", 200),
        ("/compare?a={ref}&a={ref}&b={ref}", 200),
        ("/compare?a={ref}&b=%3Cscript%3E", 404),
        ("/compare?a={ref}&b=' OR 1=1", 404),
        ("/compare?" + "&".join(f"a=x{number}" for number in range(13)), 400),
        ("/compare?" + "&".join(f"a=x{number}" for number in range(12)), 404),
        ("/compare?name=%25", 200),
        ("/compare?name=%00", 400),
    ],
)
def test_a_page_takes_what_is_asked(one: World, target: str, status: int) -> None:
    ref = refs(one, "cy", "before")[0]
    answer = one.get("cy", target.format(ref=ref))
    assert answer.status == status
    if "name=aft" in target:
        text = answer.body.decode()
        # What is ticked stays, whatever else is looked for.
        assert len(re.findall(rf'value="{ref}"', text)) == 2
        assert "after" in text


def test_what_a_run_drew_is_looked_for_once(one: World, monkeypatch: pytest.MonkeyPatch) -> None:
    before, after = refs(one, "cy", "before"), refs(one, "cy", "after")
    page(one, "cy", address(before, after))
    looked: list[Any] = []
    seen_of = Viewer.seen_of

    def counted(viewer: Viewer, found: VisibleJob) -> object:
        looked.append(found.ref)
        return seen_of(viewer, found)

    monkeypatch.setattr(Viewer, "seen_of", counted)
    page(one, "cy", address(before, after))
    # The curves of the two that are drawn, and nothing of the others.
    assert looked == [before[0], after[0]]
