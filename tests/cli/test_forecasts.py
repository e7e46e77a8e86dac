"""Planning on a forecast made of a history, and testing such forecasts, on the command line."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import lowtide as lt
from lowtide.formats import write_signal
from lowtide.signal import Signal
from lowtide.units import format_iso, parse_time
from support.commands import run
from support.grid_providers import TOKEN, StandIn, stand_in

JOB = ("-t", "6:00:00", "--deadline", "+40h")
START = parse_time("2024-03-20T00:00Z")
NOW = ("--now", "2024-04-05T10:00Z")


@pytest.fixture
def history(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Three weeks of hours, of which the first 16 days are the past."""
    monkeypatch.chdir(tmp_path)
    grid = lt.synthetic_grid("sunny", start=START, days=21, seed=2)
    write_signal(grid.average, "DE.csv")
    return Path("DE.csv")


def test_the_rest_of_the_file_changes_the_regret_and_nothing_else(history, capsys):
    whole = lt.read_signal(history)
    cut = whole.window(whole.start, parse_time("2024-04-05T10:30Z"))
    write_signal(cut, "cut.csv")
    told = []
    for path in (str(history), "cut.csv"):
        answer = run(capsys, "when", *JOB, "--signal", path, *NOW, "--forecast", "auto", "--json")
        assert (answer.code, answer.err) == (0, "")
        told.append(json.loads(answer.out))
    known, unknown = told
    assert known["best"] == unknown["best"]
    assert known["forecast"]["values"] == unknown["forecast"]["values"]
    assert unknown["regret"] == []
    (regret,) = known["regret"]
    assert regret["perfect"] <= regret["foreseen"]
    job = lt.Job(
        id="1",
        arrival="2024-04-05T10:00Z",
        deadline="+40h",
        profile=lt.PowerProfile.constant(1000, "6h"),
    )
    assert regret["perfect"] == pytest.approx(lt.plan(job, whole).footprint.carbon_g)
    paid = lt.Schedule.uninterrupted(job, parse_time(known["best"]["start"]))
    assert regret["foreseen"] == pytest.approx(lt.footprint(paid, job, whole).carbon_g)
    said = run(capsys, "when", *JOB, "--signal", str(history), *NOW, "--forecast", "auto").out
    assert "Foreseen from 16 d of history, by persistence" in said
    assert "Boosting sits out: it needs 31 d of measured history." in said
    assert "regret" in said


def test_policies_that_look_again_do_so_with_the_forecasts(history, capsys):
    words = ("--policy", "exact", "--policy", "rolling", "--policy", "advice", "--json")
    asked = (*JOB, "--power", "300", "--signal", str(history), *NOW)
    answer = run(capsys, "plan", *asked, "--forecast", "auto", *words)
    assert (answer.code, answer.err) == (0, "")
    document = json.loads(answer.out)
    names = [each["policy"] for each in document["plans"]]
    assert names == ["run_now", "exact with forecasts", "rolling", "advice"]
    perfect = json.loads(run(capsys, "plan", *asked, "--json").out)["plans"][-1]
    for each, regret in zip(document["plans"][1:], document["regret"], strict=True):
        assert regret["plan"] == each["policy"]
        assert regret["foreseen"] == pytest.approx(each["footprint"]["carbon_g"])
        assert regret["perfect"] == pytest.approx(perfect["footprint"]["carbon_g"])
    told = run(capsys, "plan", *asked, "--forecast", "auto", "--explain")
    assert (told.code, told.err) == (0, "")
    # As long as nothing has come, all have the forecast of now and nothing else.
    whole = lt.read_signal(history)
    write_signal(whole.window(whole.start, parse_time("2024-04-05T10:00Z")), "cut.csv")
    asked = (*JOB, "--power", "300", "--signal", "cut.csv", *NOW)
    answer = run(capsys, "plan", *asked, "--forecast", "auto", *words)
    plans = json.loads(answer.out)["plans"]
    assert plans[1]["start"] == plans[2]["start"]
    told = run(capsys, "tradeoff", *asked, "--forecast", "profile")
    assert (told.code, told.err) == (0, "")


def test_an_experiment_can_have_such_forecasts(history, capsys):
    Path("exp.toml").write_text(
        """
[grid]
file = "DE.csv"
start = "2024-04-05T00:00Z"
[workload]
duration = "2d"
lengths = "4h"
wait = "24h"
arrivals = { kind = "periodic", period = "9h" }
jobs = { kind = "constant", power_w = 300 }
[policy]
name = "oracle"
[forecast]
kind = "auto"
ways = ["persistence", "profile"]
"""
    )
    answer = run(capsys, "simulate", "exp.toml")
    assert (answer.code, answer.err) == (0, "")
    assert "6 jobs by oracle with forecasts" in answer.out


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--forecast", "luck"), "unknown forecast 'luck'"),
        (("--forecast", "boosting"), "boosting sits out: it needs 31 d of measured history"),
        (("--forecast", "auto", "--now", "2024-03-01T00:00Z"), "after now: get one that covers"),
        (("--forecast", "auto", "--now", "2024-05-01T00:00Z"), "forecasts reach 7 d ahead"),
        (("--forecast", "auto", "--now", "2024-03-20T12:00Z"), "needs a day of history at least"),
        (
            ("--forecast", "auto", "--arrival", "2024-04-01T00:00Z", "--deadline", "+10h"),
            "is past: leave it out",
        ),
    ],
)
def test_what_cannot_be_foreseen_is_refused_with_the_reason(history, capsys, options, message):
    answer = run(capsys, "when", *JOB, "--signal", str(history), *NOW, *options)
    assert (answer.code, answer.out) == (2, "")
    assert message in answer.err.replace("\n", " ")


@pytest.mark.parametrize("hours", [20, 24, 30, 48, 100])
@pytest.mark.parametrize("moment", ["2023-01-01T00:00Z", "2025-01-01T00:00Z"])
def test_the_moment_that_is_named_instead_of_now_will_do(tmp_path, capsys, hours, moment):
    path = tmp_path / "short.csv"
    write_signal(Signal.from_values(range(100, 100 + hours), start=START, step_s="1h"), path)
    asked = ("when", "-t", "1:00:00", "--deadline", "+4h", "--signal", str(path))
    refused = run(capsys, *asked, "--forecast", "auto", "--now", moment)
    assert refused.code == 2
    named = re.findall(r"--now (\S+)", refused.err)
    assert len(named) == (hours >= 24)
    for now in named:
        assert run(capsys, *asked, "--forecast", "auto", "--now", now).code == 0


def test_a_history_over_the_change_of_clocks_and_with_gaps(history, capsys):
    """Stamps with offsets, an hour told twice by the wall, another that never was, a gap."""
    from datetime import UTC, datetime
    from zoneinfo import ZoneInfo

    whole = lt.read_signal(history)
    rows = ["datetime,carbon_intensity_g_per_kwh"]
    for edge, value in zip(whole.edges, whole.values, strict=False):
        local = datetime.fromtimestamp(edge, UTC).astimezone(ZoneInfo("Europe/Berlin"))
        if not START + 7.5 * 86400 <= edge < START + 7.8 * 86400:
            rows.append(f"{local.isoformat()},{float(value)!r}")
    assert {row[19:25] for row in rows[1:]} == {"+01:00", "+02:00"}
    Path("local.csv").write_text("\n".join(rows) + "\n")
    asked = ("when", *JOB, "--signal", "local.csv", *NOW, "--forecast", "auto")
    refused = run(capsys, *asked)
    assert refused.code == 2
    assert "--how gaps=hold" in refused.err
    told = []
    for how in ("hold", "interpolate"):
        answer = run(capsys, *asked, "--how", f"gaps={how}", "--json")
        assert (answer.code, answer.err) == (0, "")
        told.append(json.loads(answer.out))
    assert "8 of 395 steps of the history are missing or filled in" in told[0]["note"]
    # Whatever a gap was filled with, nothing is foreseen from it.
    assert told[0]["forecast"]["values"] == told[1]["forecast"]["values"]


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[StandIn]:
    """Electricity Maps with a free token, and GB."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
    monkeypatch.setenv("LOWTIDE_ELECTRICITYMAPS_TOKEN", TOKEN)
    with stand_in() as state:
        state.forecast_for_free = False
        for name in ("GB", "ELECTRICITYMAPS"):
            monkeypatch.setenv(f"LOWTIDE_GRID_URL_{name}", state.url)
        yield state


def test_a_free_token_is_enough(server: StandIn, capsys):
    zone = ("--grid", "electricitymaps:DE")
    assert run(capsys, "when", *JOB, *zone).code == 2
    answer = run(capsys, "when", *JOB, *zone, "--forecast", "auto", "--json")
    assert answer.code == 0
    document = json.loads(answer.out)
    assert "by persistence" in document["forecast"]["source"]
    assert document["regret"] == []
    assert parse_time(document["best"]["end"]) <= time.time() + 40 * 3600


def test_the_cache_grows_into_a_history_with_gaps(server: StandIn, tmp_path: Path, capsys):
    zone = ("--grid", "electricitymaps:DE")
    assert run(capsys, "when", *JOB, *zone, "--forecast", "auto").code == 0
    path = tmp_path / ".cache/lowtide/grids/electricitymaps/DE.json"
    document = json.loads(path.read_text())
    kept, first = document["history"], document["history"]["times"][0]
    # What was told three weeks ago, for twelve days, and then nobody asked.
    hours = 12 * 24
    kept["times"] = [first - 3600.0 * (21 * 24 - hour) for hour in range(hours)] + kept["times"]
    kept["values"] = [300.0 + hour % 24 for hour in range(hours)] + kept["values"]
    kept["states"] = [0] * hours + kept["states"]
    kept["retrieved"] = [first] * hours + kept["retrieved"]
    path.write_text(json.dumps(document))
    answer = run(capsys, "when", *JOB, *zone, "--forecast", "auto", "--json")
    note = json.loads(answer.out)["note"]
    assert answer.code == 0
    assert f"{9 * 24} of {22 * 24 + 1} steps of the history are missing" in note
    assert "profile" in note


def test_what_a_provider_foresaw_is_kept_and_tested(server: StandIn, tmp_path: Path, capsys):
    assert run(capsys, "grid", "gb").code == 0
    path = tmp_path / ".cache/lowtide/grids/gb/GB.forecasts.jsonl"
    (line,) = path.read_text().splitlines()
    told = json.loads(line)
    assert len(told["values"]) >= 95
    document = json.loads((path.parent / "GB.json").read_text())
    # Four days of history, and a forecast that was issued three days before now, 7 too high.
    kept = document["history"]
    first = kept["times"][0]
    more = [first - 1800.0 * step for step in range(144, 0, -1)]
    rng = np.random.default_rng(0)
    values = (200 + 50 * rng.random(144)).tolist()
    for key, new in (("times", more), ("values", values)):
        kept[key] = new + kept[key]
    kept["states"], kept["retrieved"] = [0] * 144 + kept["states"], more + kept["retrieved"]
    (path.parent / "GB.json").write_text(json.dumps(document))
    start = more[60]
    old = {**told, "issued": start - 1.0, "start": start, "values": [v + 7 for v in values[60:]]}
    path.write_text("broken\n" + json.dumps(old) + "\n" + line + "\n")
    answer = run(capsys, "grid", "backtest", "--grid", "gb", "--moments", "1", "--within", "20h",
                 "-t", "2:00:00", "--json")  # fmt: skip
    assert answer.code == 0, answer.err
    (zone,) = json.loads(answer.out)["zones"]
    errors = {row["lead_h"]: row["error"] for row in zone["errors"] if row["model"] == "gb"}
    assert errors[1] == pytest.approx(7.0)
    assert parse_time(zone["from"]) >= old["issued"]


def test_a_backtest_of_several_zones_says_the_same_to_people_and_programs(history, capsys):
    flat = Signal.from_values([100.0] * 24 * 12, start=START, step_s="1h", zone="XX")
    write_signal(flat, "flat.csv")
    words = ("grid", "backtest", "--signal", "DE.csv", "--signal", "flat.csv", "--moments", "3")
    document = json.loads(run(capsys, *words, "--json").out)
    real, constant = document["zones"]
    assert [real["zone"], constant["zone"]] == ["DE.csv", "flat.csv"]
    assert {row["model"] for row in real["regret"]} == {"persistence", "profile", "auto"}
    assert all(row["kept"] is None and row["regret"] == 0 for row in constant["regret"])
    assert all(row["error"] == pytest.approx(0, abs=1e-9) for row in constant["errors"])
    lines = run(capsys, *words, "-P").out.splitlines()
    assert lines[0].startswith("zone|model|lead_h|error")
    assert len(lines) == 1 + sum(
        len(each["errors"]) + len(each["regret"]) for each in (real, constant)
    )
    said = run(capsys, *words).out
    assert "boosting is left out" in said
    assert "in auto's band" in said


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ((), "say which history to test on"),
        (("--signal", "DE.csv", "--within", "3h"), "cannot wait within 3 h"),
        (("--signal", "DE.csv", "--interruptible", "checkpoints"), "never or anywhere"),
        (("--signal", "DE.csv", "--from", format_iso(START + 21 * 86400)), "no such moment"),
    ],
)
def test_a_backtest_that_cannot_be_is_refused(history, capsys, words, message):
    answer = run(capsys, "grid", "backtest", *words)
    assert answer.code == 2
    assert message in answer.err
