"""What a trace is like, against a count by hand."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from zoneinfo import ZoneInfo

import numpy as np
import pytest

import lowtide as lt
from lowtide.errors import InvalidInput
from lowtide.formats import write_jobs
from lowtide.states import STATUSES
from lowtide.studies.portrait import WEEKDAYS, Portrait
from lowtide.trace import Trace
from support.commands import run

START = datetime(2024, 3, 25, tzinfo=UTC)


def drawn_trace(seed: int, count: int = 200) -> Trace:
    rng = np.random.default_rng(seed)
    return Trace(
        columns={
            "arrival": START.timestamp() + np.sort(rng.uniform(0, 9 * 86400, count)),
            "length_s": np.where(rng.random(count) < 0.1, 0, rng.uniform(30, 40000, count)),
            "cpus": rng.integers(1, 64, count),
            "wait_s": rng.uniform(0, 7200, count),
            "requested_s": np.where(rng.random(count) < 0.3, np.nan, rng.uniform(1, 1e5, count)),
            "status": rng.integers(0, len(STATUSES), count),
            "user": np.array([f"u{each}" for each in rng.integers(0, 7, count)], dtype=object),
        },
        source="drawn",
    )


@pytest.mark.parametrize("zone", ["UTC", "Europe/Berlin", "America/St_Johns"])
def test_arrivals_by_hour_and_weekday(zone: str) -> None:
    # The clock goes forward within these days in Berlin.
    trace = drawn_trace(3)
    tz = UTC if zone == "UTC" else ZoneInfo(zone)
    portrait = Portrait(trace=trace, tz=tz)
    hours, days = [0] * 24, [0] * 7
    for instant in trace.arrival:
        moment = datetime.fromtimestamp(float(instant), tz)
        hours[moment.hour] += 1
        days[moment.weekday()] += 1
    assert [slot.jobs for slot in portrait.hours] == hours
    assert [slot.jobs for slot in portrait.weekdays] == days
    assert [slot.name for slot in portrait.weekdays] == list(WEEKDAYS)
    core_h = float((trace.cpus * trace.length_s).sum() / 3600)
    assert sum(slot.core_h or 0 for slot in portrait.hours) == pytest.approx(core_h)
    assert portrait.summary()["core_h"] == pytest.approx(core_h)


@pytest.mark.parametrize("seed", range(3))
def test_cpus_held_second_by_second(seed: int) -> None:
    rng = np.random.default_rng(seed)
    count = 40
    trace = Trace(
        columns={
            "arrival": START.timestamp() + np.sort(rng.integers(0, 20_000, count)),
            "length_s": rng.integers(0, 9000, count),
            "cpus": rng.integers(1, 9, count),
            "wait_s": rng.integers(0, 500, count),
        }
    )
    begin = trace.arrival + trace.column("wait_s")
    end = begin + trace.length_s
    first, last = int(trace.arrival[0]), int(end.max())
    held = np.zeros(last - first)
    for cpus, since, until in zip(trace.cpus, begin, end, strict=True):
        held[int(since) - first : int(until) - first] += cpus
    told = Portrait(trace=trace, cpus=64).summary()
    assert told["mean_held_cpus"] == pytest.approx(held.mean())
    assert told["peak_held_cpus"] == held.max()
    assert told["utilisation"] == pytest.approx(held.mean() / 64)
    # By hour of the day: the mean over all hours that the trace touches.
    origin = first - first % 3600
    padded = np.zeros(-(-(last - origin) // 3600) * 3600)
    padded[first - origin : last - origin] = held
    for slot in Portrait(trace=trace).hours:
        mine = padded[(origin + np.arange(padded.size)) // 3600 % 24 == int(slot.name)]
        assert slot.held_cpus == (pytest.approx(mine.mean()) if mine.size else None)


def test_spreads_states_and_the_curve() -> None:
    trace = drawn_trace(5)
    values = [100.0 + hour % 24 for hour in range(24 * 12)]
    signal = lt.Signal.from_values(values, start=START, step_s="1h")
    portrait = Portrait(trace=trace, signal=signal)
    assert [slot.intensity for slot in portrait.hours] == [100.0 + hour for hour in range(24)]
    asked = trace.column("requested_s") / np.where(trace.length_s > 0, trace.length_s, np.nan)
    asked = np.sort(asked[np.isfinite(asked)])
    parts = portrait.spreads["overestimate"]
    assert parts["known"] == asked.size
    assert parts["median"] == pytest.approx(float(np.median(asked)))
    assert parts["max"] == asked[-1]
    assert parts["p99"] == pytest.approx(float(np.percentile(asked, 99)))
    counts = {STATUSES[code]: int((trace.column("status") == code).sum()) for code in range(15)}
    assert {state: jobs for state, jobs, _ in portrait.states} == {
        state: jobs for state, jobs in counts.items() if jobs
    }
    assert portrait.summary()["users"] == 7
    assert "gpus" not in portrait.spreads  # Nothing is known of them, so nothing is told.


def test_classes_of_jobs_by_counting() -> None:
    trace = drawn_trace(9)
    portrait = Portrait(trace=trace)
    bounds = [0, 60, 600, 3600, 6 * 3600, 86_400, 7 * 86_400, np.inf]
    core_h = trace.cpus * trace.length_s / 3600
    for key in ("length_s", "wait_s"):
        for low, high, kind in zip(bounds, bounds[1:], portrait.classes[key], strict=False):
            mine = (trace.column(key) >= low) & (trace.column(key) < high)
            assert kind.jobs == mine.sum(), kind.name
            assert kind.core_h == pytest.approx(core_h[mine].sum())
            assert kind.share == pytest.approx(mine.mean())
    widths = {kind.name: kind.jobs for kind in portrait.classes["cpus"]}
    assert widths["2 to 4"] == ((trace.cpus >= 2) & (trace.cpus <= 4)).sum()
    assert widths["up to 1"] == (trace.cpus == 1).sum()
    assert sum(kind.core_share or 0 for kind in portrait.classes["cpus"]) == pytest.approx(1)
    # Of some nothing is known: they are in no class.
    asked = trace.column("requested_s")
    known = np.isfinite(asked) & (trace.length_s > 0)
    assert sum(kind.jobs for kind in portrait.classes["overestimate"]) == known.sum()
    assert "gpus" not in portrait.classes
    bare = Portrait(trace=Trace(columns={"arrival": [0.0, 5.0], "length_s": [60.0, 90.0]}))
    assert [kind.core_share for kind in bare.classes["length_s"]] == [None] * 7
    assert "jobs" in bare._repr_html_()


def test_load_that_follows_the_curve_is_seen() -> None:
    hours = np.arange(24 * 7)
    clean = np.where(hours % 24 < 12, 100.0, 300.0)
    signal = lt.Signal.from_values(clean, start=START, step_s="1h")
    busy = hours[hours % 24 < 12]
    trace = Trace(
        columns={
            "arrival": START.timestamp() + 3600.0 * busy,
            "length_s": np.full(busy.size, 3600.0),
            "cpus": np.full(busy.size, 8.0),
            "wait_s": np.zeros(busy.size),
        }
    )
    assert Portrait(trace=trace, signal=signal).correlation == pytest.approx(-1)
    assert Portrait(trace=trace).correlation is None
    other = lt.Signal.from_values(clean, start="2020-01-01T00:00Z", step_s="1h")
    beside = Portrait(trace=trace, signal=other)
    assert beside.correlation is None
    assert any("another time" in note for note in beside.notes)
    assert beside.hours[0].intensity == 100


def test_times_without_a_calendar() -> None:
    trace = Trace(columns={"arrival": [0.0, 3600.0, 90_000.0], "length_s": [60.0] * 3})
    portrait = Portrait(trace=trace)
    assert [slot.jobs for slot in portrait.hours][:2] == [1, 2]
    assert [slot.jobs for slot in portrait.weekdays][:2] == [2, 1]
    assert portrait.weekdays[0].name == "day 1"
    assert any("own beginning" in note for note in portrait.notes)
    assert portrait.summary()["mean_held_cpus"] is None
    with pytest.raises(InvalidInput, match="more than 0 CPUs"):
        Portrait(trace=trace, cpus=0)


def test_the_verb_speaks_to_all(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "jobs.csv"
    write_jobs(drawn_trace(7), path, format="csv")
    path.write_text(path.read_text().replace("arrival_time", "mood,arrival_time", 1))
    lines = path.read_text().splitlines()
    path.write_text("\n".join([lines[0], *(f"x,{line}" for line in lines[1:])]) + "\n")
    words = ["trace", str(path), "--cpus", "2000", "--grid", "windy", "--seed", "3"]
    page, image = tmp_path / "t.html", tmp_path / "t.svg"
    told = run(capsys, *words, "--html", str(page), "--image", str(image))
    assert (told.code, told.err) == (0, "")
    for part in ("200 jobs of 7 users", "Columns ignored: mood", "asked for over used", "Mon"):
        assert part in told.out
    assert "synthetic" in told.out
    assert "When do jobs come?" in page.read_text()
    assert "synthetic" in image.read_text()
    document = json.loads(run(capsys, *words, "--json").out)
    assert document["jobs"] == 200
    assert len(document["hours"]) == 24
    assert document["signal"]["synthetic"]
    rows = run(capsys, *words, "-P").out.splitlines()
    assert rows[0].startswith("part|name|value|jobs|share")
    hours = [row.split("|") for row in rows if row.startswith("hour|")]
    assert sum(int(row[3]) for row in hours) == 200
    both = run(capsys, *words, "--signal", "DE.csv")
    assert both.code == 2
    assert "give --signal or --grid" in both.err
    moved = run(
        capsys, "trace", str(path), "--start", f"{START + timedelta(days=1):%Y-%m-%dT%H:%MZ}"
    )
    assert "2024-03-26 00:00 UTC" in moved.out
