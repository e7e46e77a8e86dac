"""Let's Wait Awhile run again: equal to the goldens case by case, and fixed as it says."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np
import pytest

import lowtide as lt
from lowtide.errors import FormatError, NotCovered
from lowtide.policies import plan
from lowtide.reproductions import wait_awhile_report as report
from lowtide.reproductions.findings import read_published
from lowtide.reproductions.wait_awhile import (
    FIXED,
    FIXES,
    ORIGINAL,
    SLOT_S,
    YEAR_START,
    ZONES,
    Curve,
    SlotRules,
    TrainingJobs,
    autocorrelated,
    describe,
    emit,
    nights,
    read_curve,
    read_training_jobs,
    train,
)
from lowtide.reproductions.wait_awhile_report import WaitAwhileStudy
from support.commands import run
from support.faces import assert_keys_as_kept

GOLDENS = "goldens/wait-awhile"
CURVE = "carbon-raw/wait-awhile_{}_ci.csv"
PAGE = "docs/studies/lets-wait-awhile.md"
# Sums of thousands of slots, in another order.
EXACT = 1e-12

Data = Callable[[str], Path]


@pytest.fixture(scope="module")
def curves(data: Data) -> dict[str, Curve]:
    return {zone: read_curve(data(CURVE.format(zone)), zone) for zone in ZONES}


@pytest.fixture(scope="module")
def jobs(data: Data) -> TrainingJobs:
    return read_training_jobs(data(f"{GOLDENS}/ml_jobs.csv"))


@pytest.fixture(scope="module")
def published(data: Data) -> dict[str, dict[str, object]]:
    return json.loads(data(f"{GOLDENS}/published.json").read_text())


@pytest.fixture(scope="module")
def study(
    curves: dict[str, Curve], jobs: TrainingJobs, published: dict[str, dict[str, object]]
) -> WaitAwhileStudy:
    """All of one zone, and the others by the original's rules."""
    parts = list(report.evaluate([curves["gb"]], jobs))
    parts += [
        report.ZonePart(
            curve=curves[zone],
            rules=ORIGINAL,
            training=tuple(train(curves[zone], jobs, ORIGINAL)),
            nightly=tuple(nights(curves[zone], ORIGINAL)),
        )
        for zone in ("ger", "fr")
    ]
    return WaitAwhileStudy(parts=tuple(parts), published=published)


@pytest.fixture(scope="module")
def british(study: WaitAwhileStudy) -> WaitAwhileStudy:
    parts = tuple(part for part in study.parts if part.curve.zone == "gb")
    return WaitAwhileStudy(parts=parts, published=study.published)


def test_every_golden_saving_is_met(study: WaitAwhileStudy, data: Data) -> None:
    golden = json.loads(data(f"{GOLDENS}/ml_numpy.json").read_text())
    met = set()
    for part in study.parts:
        if part.rules != ORIGINAL:
            continue
        for case in part.training:
            kind = "int" if case.stops else "nonint"
            name = f"{case.zone}|{case.deadline}|{kind}|{case.error:g}"
            wanted = golden[name]
            assert case.emissions == pytest.approx(wanted["emissions_sum"], rel=EXACT), name
            assert 100 * case.saving == pytest.approx(wanted["saving_pct"], rel=1e-10), name
            base = golden[f"{case.zone}|baseline_extra_slot"]
            assert case.baseline == pytest.approx(base, rel=EXACT)
            met |= {name, f"{case.zone}|baseline_extra_slot"}
    assert {name for name in golden if not name.endswith("baseline_strict")} == met


def test_the_strict_baseline_is_the_golden_one(
    curves: dict[str, Curve], jobs: TrainingJobs, data: Data
) -> None:
    golden = json.loads(data(f"{GOLDENS}/ml_numpy.json").read_text())
    for zone, curve in curves.items():
        first = next(train(curve, jobs, FIXES["windows"]))
        assert first.baseline == pytest.approx(golden[f"{zone}|baseline_strict"], rel=EXACT)


def test_every_golden_night_is_met(study: WaitAwhileStudy, data: Data) -> None:
    golden = json.loads(data(f"{GOLDENS}/periodic_numpy.json").read_text())
    met = 0
    for part in study.parts:
        if part.rules != ORIGINAL:
            continue
        for night in part.nightly:
            wanted = golden[night.zone]["err05" if night.error else "err0"][night.window]
            assert night.intensity == pytest.approx(wanted, rel=EXACT)
            met += 1
    assert met == 3 * 2 * 17


def test_every_published_figure_is_met(
    study: WaitAwhileStudy, curves: dict[str, Curve], published: dict[str, dict[str, object]]
) -> None:
    for zone, curve in curves.items():
        for stops in (False, True):
            wanted = study.published_pct(zone, "next_workday", stops=stops, error=0.05)
            found = study.saving_pct[ORIGINAL, zone, "next_workday", stops, 0.05]
            assert round(found, 2) == wanted
        found = describe(curve, sampled=True)
        for name, wanted in published["ci_2020"][zone].items():
            assert round(found[name], 6) == wanted
        assert round(found["weekend_drop_pct"], 2) == published["weekend_drop_pct"][zone]
    ratios = published["ratio_err0_over_err5_minus1_pct"]
    for row, values in zip(ratios["rows"], ratios["values"], strict=True):
        deadline, kind = row.split()
        for zone, wanted in zip(ratios["cols"], values, strict=True):
            if zone in curves:
                found = report.ratio_pct(study, ORIGINAL, zone, deadline, stops=kind == "int")
                assert found == pytest.approx(wanted, abs=1e-8)


def due_by_calendar(done: datetime, deadline: str, rules: SlotRules) -> datetime:
    """The deadline of a job that would be done at a moment, day by day."""
    if deadline == "next_workday":
        if done.weekday() < 5 and 9 <= done.hour + done.minute / 60 <= 17:
            return done
        if rules.saturday and done.weekday() == 4 and done.hour >= 17:
            return done.replace(hour=9, minute=0) + timedelta(days=1)
        wanted = range(5)
    else:
        wanted = (0, 3)
    moment = done.replace(hour=9, minute=0)
    while moment < done or moment.weekday() not in wanted:
        moment += timedelta(days=1)
    return moment


@pytest.mark.parametrize("rules", [ORIGINAL, FIXED], ids=["original", "fixed"])
@pytest.mark.parametrize("deadline", ["next_workday", "semi_weekly"])
def test_deadlines_are_those_of_the_calendar(deadline: str, rules: SlotRules) -> None:
    arrival = np.arange(0, 14 * 48, dtype=np.int64)
    every = TrainingJobs(arrival=arrival, length=np.ones(arrival.size, dtype=np.int64))
    origin = datetime(2020, 1, 1, tzinfo=UTC)
    for slot, found in zip((arrival + 1).tolist(), every.due(deadline, rules), strict=True):
        done = origin + timedelta(minutes=30 * slot)
        wanted = due_by_calendar(done, deadline, rules)
        assert origin + timedelta(minutes=30 * int(found)) == wanted, done


def test_jobs_are_placed_like_a_plain_search() -> None:
    rng = np.random.default_rng(2)
    for _ in range(200):
        actual = rng.integers(1, 30, 40).astype(float)
        noise = rng.normal(0, 5, 40) * rng.integers(0, 2)
        spread = np.array([0.0, 0.5, 1.0])
        begin = int(rng.integers(0, 10))
        need = int(rng.integers(1, 12))
        end = begin + need + int(rng.integers(0, 12))
        wide = spread[np.minimum(np.arange(end - begin), 2)]
        foreseen = actual[begin:end] + wide * noise[begin:end]
        means = [foreseen[k : k + need].sum() for k in range(foreseen.size - need + 1)]
        first = begin + int(np.argmin(np.round(means, 9)))
        cheapest = begin + np.argsort(foreseen, kind="stable")[:need]
        for stops, wanted in (
            (False, actual[first : first + need].sum()),
            (True, actual[cheapest].sum()),
        ):
            found = emit(
                actual,
                noise,
                spread,
                np.array([begin]),
                np.array([end]),
                np.array([need]),
                stops,
            )
            assert found[0] == pytest.approx(wanted)


def test_fixed_without_error_is_what_lowtide_plans(
    curves: dict[str, Curve], jobs: TrainingJobs
) -> None:
    some = TrainingJobs(arrival=jobs.arrival[::40], length=jobs.length[::40])
    curve = curves["ger"]
    signal = lt.Signal.from_values(
        curve.means, start=YEAR_START - curve.lead_in * SLOT_S, step_s=SLOT_S
    )
    due = some.due("next_workday", FIXED)
    cases = {(each.deadline, each.stops, each.error): each for each in train(curve, some, FIXED)}
    for stops, policy in ((False, "oracle"), (True, "wait_awhile")):
        case = cases["next_workday", stops, 0.0]
        carbon_g, at_once_g = 0.0, 0.0
        for arrival, length, end in zip(some.arrival, some.length, due, strict=True):
            job = lt.Job(
                id="training",
                arrival=YEAR_START + arrival * SLOT_S,
                deadline=YEAR_START + end * SLOT_S,
                profile=lt.PowerProfile.constant(2000.0, length * SLOT_S),
                interruptible="anywhere" if stops else "never",
            )
            best = plan(job, signal, policy=policy)
            carbon_g += best.footprint.carbon_g
            at_once_g += best.baseline.carbon_g
        # A slot of 2 kW is 1 kWh, so the sum of intensities is grams.
        assert case.emissions == pytest.approx(carbon_g, rel=1e-9)
        assert case.baseline == pytest.approx(at_once_g, rel=1e-9)


def test_the_fixed_year_has_every_night(curves: dict[str, Curve]) -> None:
    curve = curves["fr"]
    found = {night.window: night.intensity for night in nights(curve, FIXED) if not night.error}
    planned = curve.lead_in + np.arange(366) * 48 + 2
    for window in (0, 5, 16):
        lowest = [curve.means[at - window : at + window + 1].min() for at in planned]
        assert found[window] == pytest.approx(np.mean(lowest))


def test_errors_that_grow_go_together() -> None:
    series = autocorrelated(np.random.default_rng(1).normal(size=200_000), 0.9)
    assert series.std() == pytest.approx(1.0, abs=0.03)
    assert np.corrcoef(series[:-1], series[1:])[0, 1] == pytest.approx(0.9, abs=0.01)


def test_errors_drawn_anew_flatter_long_jobs(study: WaitAwhileStudy) -> None:
    for deadline in ("next_workday", "semi_weekly"):
        original, fixed = (
            report.ratio_pct(study, rules, "gb", deadline, stops=False)
            for rules in (ORIGINAL, FIXED)
        )
        assert fixed > 5 * original


def test_a_changing_step_is_brought_to_half_hours(tmp_path: Path) -> None:
    path = tmp_path / "gb.csv"
    path.write_text(
        "Time,Carbon Intensity\n2019-12-31 23:30:00,10\n2020-01-01 00:00:00,20\n"
        "2020-01-01 00:15:00,40\n2020-01-01 00:30:00,50\n2020-01-01 00:45:00,10\n"
    )
    curve = read_curve(path, "gb")
    assert curve.lead_in == 1
    assert curve.sampled.tolist() == [10.0, 20.0, 50.0]
    assert curve.means.tolist() == [10.0, 30.0, 30.0]
    assert curve.values(ORIGINAL) is curve.sampled
    assert curve.values(FIXED) is curve.means


def test_the_british_file_changes_its_step(curves: dict[str, Curve]) -> None:
    differs = np.flatnonzero(curves["gb"].sampled != curves["gb"].means)
    first = differs[0] - curves["gb"].lead_in
    assert (
        first // 48 == (datetime(2020, 10, 31, tzinfo=UTC) - datetime(2020, 1, 1, tzinfo=UTC)).days
    )
    assert np.array_equal(curves["fr"].sampled, curves["fr"].means)


@pytest.mark.parametrize(
    ("rows", "told"),
    [
        ("2020-01-01 00:00:00,5\n2020-01-01 01:00:00,6\n", "line 2"),
        ("2020-01-01 00:15:00,5\n2020-01-01 00:30:00,6\n", "half-hour"),
        ("2020-01-01 00:00:00,5\n2020-01-01 00:30:00,\n", "missing"),
        ("2020-01-01 00:00:00,5\nsoon,6\n", "cannot read time"),
    ],
)
def test_damaged_curves_name_the_line(rows: str, told: str, tmp_path: Path) -> None:
    path = tmp_path / "curve.csv"
    path.write_text(f"Time,Carbon Intensity\n{rows}")
    with pytest.raises(FormatError, match=told):
        read_curve(path, "gb")


def test_other_files_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "some.csv"
    for text, told in (("hello\n", "not a table"), ("a,b\n1,2\n", "no column")):
        path.write_text(text)
        with pytest.raises(FormatError, match=told):
            read_curve(path, "gb")
        with pytest.raises(FormatError, match=told):
            read_training_jobs(path)
    path.write_text("arrival_min,duration_min\n30,60\n45,60\n")
    with pytest.raises(FormatError, match=r"line 3.*half-hours"):
        read_training_jobs(path)
    path.write_text("{")
    with pytest.raises(FormatError, match="not valid JSON"):
        read_published(path)
    assert read_published(tmp_path / "none.json") == {}


def test_a_curve_that_ends_too_early_is_refused() -> None:
    short = np.full(48 * 3, 100.0)
    curve = Curve(zone="gb", sampled=short, means=short, lead_in=48)
    late = TrainingJobs(arrival=np.array([20]), length=np.array([90]))
    with pytest.raises(NotCovered, match="get a longer file"):
        list(train(curve, late, FIXED))


def test_without_published_figures_nothing_is_compared(british: WaitAwhileStudy) -> None:
    alone = WaitAwhileStudy(parts=british.parts, published={})
    assert {row[4] for row in report.training_table(alone).tables[0].rows} == {"---"}
    assert {row[3] for row in report.forecasts_table(alone).tables[0].rows} == {"---"}
    assert {row[2] for row in report.curves_table(alone).tables[0].rows} == {"---"}


def test_the_page_shows_what_is_printed_and_figures_are_written(
    british: WaitAwhileStudy,
    data: Data,
    root: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(report, "evaluate", lambda curves, jobs: iter(british.parts))
    folder = data(GOLDENS).parents[1]
    words = ("reproduce", "wait-awhile", "--data", str(folder), "--zone", "gb")
    shown = run(capsys, *words, "--out", str(tmp_path))
    assert (shown.code, shown.err) == (0, "")
    printed = {line.rstrip() for line in shown.out.splitlines()}
    blocks = (root / PAGE).read_text(encoding="utf-8").split("```text\n")[1:]
    lines = [line for block in blocks for line in block.split("```")[0].splitlines() if line]
    ours = [line for line in lines if line.startswith("gb ")]
    assert len(ours) > 12
    assert set(ours) <= printed
    assert {path.name for path in tmp_path.iterdir()} == {
        "report.html",
        "results.csv",
        "training.png",
        "training.svg",
        "nightly.png",
        "nightly.svg",
    }
    rows = list(csv.reader((tmp_path / "results.csv").read_text().splitlines()))
    assert tuple(rows[0]) == report.COLUMNS
    assert len(rows) == 1 + 5 * (12 + 34)
    columns = run(capsys, *words, "-P").out.splitlines()
    assert len(columns) == len(rows)


def test_the_verb_prints_one_object_per_case(
    british: WaitAwhileStudy,
    data: Data,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(report, "evaluate", lambda curves, jobs: iter(british.parts))
    folder = data(GOLDENS).parents[1]
    answer = run(capsys, "reproduce", "wait-awhile", "--data", str(folder), "--json")
    assert (answer.code, answer.err) == (0, "")
    document = json.loads(answer.out)
    assert len(document) == 12 + 34
    assert_keys_as_kept("verbs/reproduce wait-awhile.txt", document, "|".join(report.COLUMNS))
    case = next(
        each
        for each in document
        if each["scenario"] == "training"
        and (each["deadline"], each["interruptible"], each["error"]) == ("next_workday", True, 0.05)
    )
    assert case["published_pct"] == round(case["saving_pct"], 2) == 9.03
    assert list(case["by_fix_pct"]) == list(FIXES)
    assert case["fixed_pct"] == case["by_fix_pct"]["fixed"] == pytest.approx(10.04, abs=5e-3)


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("--zone", "cal"), "known are fr, gb, ger"),
        (("--start-row", "7000"), "No such option: --start-row"),
        (("--data", "nowhere"), "no such file: nowhere"),
    ],
)
def test_bad_words_are_exit_code_2(
    words: tuple[str, ...], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    answer = run(capsys, "reproduce", "wait-awhile", *words)
    assert answer.code == 2
    assert told in answer.err
