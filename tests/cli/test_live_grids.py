"""Grids by a provider's zone on the command line, at a server that answers as providers do."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from lowtide import compiled
from lowtide.store import Store
from lowtide.units import format_iso, format_time, parse_time
from support.commands import run
from support.grid_providers import PASSWORD, TOKEN, USER, StandIn, said, stand_in, truth
from support.snapshots import unit
from support.watched import course

JOB = ("-t", "2:00:00", "--deadline", "+20h")


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[StandIn]:
    """All three providers, at the time it is, and a user with all keys."""
    monkeypatch.chdir(tmp_path)
    # What is compiled already: a busy machine would say that it compiles.
    monkeypatch.setenv("LOWTIDE_CACHE", str(compiled.folders()[0].path))
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
    monkeypatch.setenv("LOWTIDE_ELECTRICITYMAPS_TOKEN", TOKEN)
    monkeypatch.setenv("LOWTIDE_WATTTIME_USER", USER)
    monkeypatch.setenv("LOWTIDE_WATTTIME_PASSWORD", PASSWORD)
    with stand_in() as state:
        for name in ("GB", "ELECTRICITYMAPS", "WATTTIME"):
            monkeypatch.setenv(f"LOWTIDE_GRID_URL_{name}", state.url)
        yield state


def age(home: Path, seconds: float) -> None:
    """Make the cache of GB so much older."""
    path = home / ".cache/lowtide/grids/gb/GB.json"
    document = json.loads(path.read_text())
    for key in ("asked", "retrieved"):
        document[key] -= seconds
    path.write_text(json.dumps(document))


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("gb", "average"),
        ("gb:13", "average"),
        ("electricitymaps:DE", "average"),
        ("watttime:CAISO_NORTH", "marginal"),
        ("gb+watttime:CAISO_NORTH", "average"),
    ],
)
def test_when_and_plan_on_a_live_grid(
    server: StandIn, capsys: pytest.CaptureFixture[str], name: str, kind: str
) -> None:
    begin = time.time()
    answer = run(capsys, "when", *JOB, "--grid", name, "--json")
    assert (answer.code, answer.err) == (0, "")
    document = json.loads(answer.out)
    assert document["signal"]["kind"] == kind
    assert document["signal"]["synthetic"] is False
    assert "; a forecast from " in document["note"] or "estimated from" in document["note"]
    start = parse_time(document["best"]["start"])
    assert begin - 2 <= start <= begin + 20 * 3600
    for flags in ((), ("-P",)):
        answer = run(capsys, "plan", *JOB, "--power", "300", "--grid", name, *flags)
        assert (answer.code, answer.err) == (0, "")
    assert "ago" in run(capsys, "when", *JOB, "--grid", name).out


def test_the_grid_is_drawn_from_yesterday_on(
    server: StandIn, capsys: pytest.CaptureFixture[str]
) -> None:
    now = time.time()
    document = json.loads(run(capsys, "grid", "gb", "--json").out)
    start = parse_time(document["start"])
    assert now - 86400 - 1800 <= start <= now - 86400 + 60
    assert document["values"][0] == truth(start)
    assert parse_time(document["end"]) > now + 47 * 3600
    assert document["estimated"] in (96, 97)
    begin = 86400 * (now // 86400 - 30)
    answer = run(capsys, "grid", "gb", "--from", format_iso(begin), "--to", "+2d")
    assert f"{format_time(begin)} to {format_time(begin + 2 * 86400)}" in answer.out
    assert "gb:GB: retrieved" in answer.out


def test_one_kind_of_two(server: StandIn, capsys: pytest.CaptureFixture[str]) -> None:
    name = "gb+watttime:CAISO_NORTH"
    for kind in ("average", "marginal"):
        document = json.loads(run(capsys, "grid", name, "--kind", kind, "--json").out)
        assert document["kind"] == kind
    answer = run(capsys, "grid", name, "--kind", "price")
    assert answer.code == 2
    assert "known are average, marginal" in answer.err


def test_without_network_the_cache_answers_and_says_how_old_it_is(
    server: StandIn, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    run(capsys, "grid", "gb")
    age(tmp_path, 7200)
    server.overrides[""] = lambda: said({}, 500)
    answer = run(capsys, "when", *JOB, "--grid", "gb", "--json")
    assert answer.code == 0
    assert re.fullmatch(
        r"lowtide: .*out of order \(HTTP 500\); the cache answers, 2 h old\n", answer.err
    )
    assert "2 h ago" in json.loads(answer.out)["note"]


def test_the_future_ends_where_the_forecast_does(
    server: StandIn, capsys: pytest.CaptureFixture[str]
) -> None:
    answer = run(capsys, "when", "-t", "60", "--deadline", "+3d", "--grid", "gb")
    assert answer.code == 2
    assert re.search(r"gb:GB covers .* and ends 2.* h too early", answer.err)
    server.forecast_for_free = False
    answer = run(capsys, "when", *JOB, "--grid", "electricitymaps:DE")
    assert answer.code == 2
    first, second = answer.err.splitlines()
    assert "no forecast: " in first
    assert "electricitymaps:DE covers" in second


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("grid", "gb:99"), "a zone of gb is named as in gb:13, not '99'"),
        (("grid", "electricitymaps"), "electricitymaps:DE, and none is named"),
        (("grid", "gb", "--days", "3"), "--days is for synthetic grids"),
        (("grid", "gb", "--how", "tz=UTC"), "a provider is none"),
        (("grid", "gb", "--how", "gaps=guess"), "gaps is one of"),
        (("grid", "nowhere"), "nor a zone of a provider (electricitymaps, gb, watttime)"),
        (("grid", "gb", "--from", "2020-01-01T00:00Z"), "the last 400 d at most"),
        (("when", *JOB, "--grid", "wattime:CAISO_NORTH"), "did you mean 'watttime'?"),
    ],
)
def test_what_is_refused(
    server: StandIn, capsys: pytest.CaptureFixture[str], words: tuple[str, ...], says: str
) -> None:
    answer = run(capsys, *words)
    assert (answer.code, answer.out) == (2, "")
    assert says in answer.err


def doctored(capsys: pytest.CaptureFixture[str]) -> dict[str, dict[str, str]]:
    checks = json.loads(run(capsys, "doctor", "--json").out)
    return {check["what"]: check for check in checks if check["what"].startswith("grid ")}


def test_doctor(
    server: StandIn,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert {check["state"] for check in doctored(capsys).values()} == {"ready"}
    assert server.asked == []
    run(capsys, "grid", "gb")
    age(tmp_path, 3 * 3600)
    check = doctored(capsys)["grid gb"]
    assert check["state"] == "works"
    assert "gb:GB in the cache, 3 h old" in check["detail"]
    server.overrides[""] = lambda: said({}, 500)
    run(capsys, "grid", "gb")
    check = doctored(capsys)["grid gb"]
    assert check["state"] == "no answer"
    assert "HTTP 500" in check["detail"]
    monkeypatch.delenv("LOWTIDE_WATTTIME_PASSWORD")
    check = doctored(capsys)["grid watttime"]
    assert (check["state"], "set LOWTIDE_WATTTIME_USER" in check["cure"]) == ("no key", True)
    keys = tmp_path / ".config/lowtide/keys.toml"
    keys.parent.mkdir(parents=True)
    keys.write_text(f'[watttime]\npassword = "{PASSWORD}"\n')
    keys.chmod(0o644)
    check = doctored(capsys)["grid watttime"]
    assert check["state"] == "no permission"
    assert f"chmod 600 {keys}" in check["cure"]
    keys.chmod(0o600)
    assert doctored(capsys)["grid watttime"]["state"] == "ready"


def test_a_broken_cache_does_not_break_the_doctor(
    server: StandIn, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    path = tmp_path / ".cache/lowtide/grids/gb/GB.json"
    path.parent.mkdir(parents=True)
    path.write_text("{")
    check = doctored(capsys)["grid gb"]
    assert check["state"] == "ready"
    assert "GB.unreadable.json" in check["detail"]


def test_a_node_is_watched_on_a_live_grid(
    server: StandIn, capsys: pytest.CaptureFixture[str]
) -> None:
    server.now = None
    answer = run(capsys, "watch", "--once", "--json", "--grid", "electricitymaps:DE")
    tick = json.loads(answer.out)
    # It is an hourly signal: the tick may lie across the end of one.
    hours = {truth(moment // 3600 * 3600) for moment in (tick["since"], tick["time"])}
    assert min(hours) <= tick["intensity_g_per_kwh"] <= max(hours)
    assert tick["problems"] == []


def test_a_job_is_looked_back_at_on_what_is_forecast(
    server: StandIn, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    now = time.time()
    start = now - now % 1800 - 3600
    with Store.open(tmp_path / "today.sqlite") as store:
        for tick in course(unit(5, started=start), hours=0.5, step_s=60.0, start=start):
            store.append(tick)
    words = ("show", "5", "--store", str(tmp_path / "today.sqlite"))
    answer = run(capsys, *words, "--grid", "gb", "--wait", "12h", "--json")
    assert (answer.code, answer.err) == (0, "")
    document = json.loads(answer.out)
    (wait,) = document["waiting"]
    # Constant power in half an hour, of which the provider tells each.
    assert document["at_once"] == pytest.approx(0.15 / 2 * truth(start), rel=1e-3)
    assert wait["carbon_g"] <= document["at_once"]
    assert not wait["synthetic"]
    # One that tells marginal intensity alone is no answer, and the rest is shown all the same.
    answer = run(capsys, *words, "--grid", "watttime:CAISO_NORTH")
    assert answer.code == 0
    assert (
        "Waiting cannot be planned: watttime:CAISO_NORTH tells no average intensity." in answer.out
    )
