"""The evaluation run again: equal to the goldens job by job, and honest about what it is."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable
from pathlib import Path

import pytest

import lowtide as lt
from lowtide.errors import FormatError, InvalidInput
from lowtide.formats import read_signal, write_signal
from lowtide.policies.exact import Exact
from lowtide.reproductions.thesis import (
    LEVELS,
    Case,
    ThesisStudy,
    choose,
    effects,
    evaluate,
    judge,
    make_cases,
    read_totals,
    savings,
)
from lowtide.reproductions.thesis_report import (
    COLUMNS,
    columns,
    figures,
    findings,
    published_table,
    savings_table,
    tables,
)
from support.commands import run

GOLDEN = "goldens/thesis/evaluation_jobs_to_8h.csv"
SIGNAL = "carbon/DE-july2024.csv"
# The goldens keep six decimals.
LAST_DIGIT_G = 5.1e-7

Data = Callable[[str], Path]


@pytest.fixture(scope="module")
def signal(data: Data) -> lt.Signal:
    return read_signal(data(SIGNAL), gaps="hold")


@pytest.fixture(scope="module")
def study(signal: lt.Signal, data: Data) -> ThesisStudy:
    outcomes = tuple(evaluate(signal, make_cases()))
    return ThesisStudy(outcomes=outcomes, published=read_totals(data(GOLDEN)))


@pytest.fixture(scope="module")
def golden(data: Data) -> dict[Case, dict[str, str]]:
    rows = {}
    with data(GOLDEN).open() as file:
        for row in csv.DictReader(file):
            levels = {
                name: type(values[0])(row[name])
                for name, values in LEVELS.items()
                if name != "startup_mode"
            }
            rows[Case(startup_mode="carved", **levels)] = row
    return rows


@pytest.fixture(scope="module")
def windy() -> lt.Signal:
    return lt.synthetic_grid("windy", start="2024-07-01T00:00Z", days=5, seed=0).average


def test_every_golden_row_is_met(study: ThesisStudy, golden: dict[Case, dict[str, str]]) -> None:
    found = {outcome.case: outcome.carbon_g for outcome in study.outcomes}
    assert len(golden) == 1920
    for case, row in golden.items():
        name = "optimum_g" if case.strategy == "suspend" else "best_hourly_start_g"
        assert found[case] == pytest.approx(float(row[name]), rel=1e-9, abs=LAST_DIGIT_G), case


def test_five_starts_at_most_meet_the_goldens(
    signal: lt.Signal, golden: dict[Case, dict[str, str]]
) -> None:
    curve = signal.window(signal.start, signal.start + 5 * 86400)
    for case, row in golden.items():
        if case.strategy == "suspend":
            job = case.job(curve.start, max_starts=5)
            optimum = Exact().optimise(job, curve)
            wanted = float(row["optimum_5_starts_g"])
            assert optimum.solution.cost == pytest.approx(wanted, rel=1e-9, abs=LAST_DIGIT_G)


def test_savings_of_16_h_jobs_are_the_mean_over_jobs(study: ThesisStudy) -> None:
    saved = savings(study.of("carved"))
    means = []
    for wait_h in LEVELS["wait_h"]:
        here = [
            value
            for case, value in saved.items()
            if (case.length_s, case.wait_h) == (57600, wait_h)
        ]
        assert len(here) == 48
        means.append(round(100 * sum(here) / len(here), 2))
    assert means == [0.12, 3.12, 17.90, 19.23, 12.36]
    row = next(row for row in savings_table(study).tables[0].rows if row[:2] == ["carved", "16 h"])
    assert row[2:] == ["0.12 %", "3.12 %", "17.90 %", "19.23 %", "12.36 %"]


def test_published_totals_against_the_optimum(study: ThesisStudy) -> None:
    verdict = judge(study.comparable, study.outcomes)
    assert verdict is not None
    counts = (verdict.jobs, verdict.empty, verdict.below, verdict.wrong, verdict.above)
    assert counts == (960, 4, 16, 31, 36)
    assert verdict.worst == pytest.approx(1.208782, abs=1e-6)


def test_carving_hides_what_a_startup_emits(study: ThesisStudy) -> None:
    def startup(mode: str, about: str) -> tuple[float, float]:
        effect = next(e for e in effects(study, mode, about) if e.name == "startup")
        assert effect.p is not None
        assert effect.share is not None
        return effect.p, effect.share

    assert startup("carved", "emissions")[0] > 0.5
    assert startup("added", "emissions")[0] < 1e-12
    for mode in ("carved", "added"):
        p, share = startup(mode, "saving")
        assert p < 1e-12
        assert share == pytest.approx(0.0032, abs=2e-4)


def test_totals_of_another_signal_are_not_compared(study: ThesisStudy, windy: lt.Signal) -> None:
    cases = make_cases(only="length=8h,wait=48h")
    other = ThesisStudy(outcomes=tuple(evaluate(windy, cases)), published=study.published)
    assert other.comparable == {}
    assert set(published_table(other).tables[0].rows[-1][1:]) == {"---"}
    assert all(row[-2:] == ["---", "---"] for row in columns(other))


def test_outcomes_are_those_of_the_one_accounting(windy: lt.Signal) -> None:
    cases = make_cases(only="length=8h,length=16h,wait=48h,startup_w=200,phases=60/30")
    for outcome in evaluate(windy, cases):
        job = outcome.case.job(windy.start)
        schedule = outcome.case.schedule(windy)
        schedule.check(job)
        footprint = lt.footprint(schedule, job, windy)
        assert footprint.carbon_g == pytest.approx(outcome.carbon_g, rel=1e-9)
        assert footprint.starts == outcome.starts
        if outcome.case.strategy == "suspend":
            assert Exact().optimise(job, windy).gap == 0.0


def test_suspending_never_costs(windy: lt.Signal) -> None:
    outcomes = list(evaluate(windy, make_cases(only="wait=24h")))
    for free_start in (False, True):
        saved = savings(outcomes, free_start=free_start)
        assert len(saved) == 480
        assert min(saved.values()) > -1e-9


def test_startup_is_carved_or_added() -> None:
    carved, added = (
        make_cases(startup_modes=[mode], only="length=4h,startup=30m")[0].job(0.0)
        for mode in ("carved", "added")
    )
    assert (carved.profile.work_s, carved.profile.run_s) == (12600, 14400)
    assert (added.profile.work_s, added.profile.run_s) == (14400, 16200)
    assert carved.slack_s == added.slack_s == 6 * 3600


def test_averaged_is_one_power_throughout() -> None:
    phased, averaged = (
        make_cases(only=f"power={power},phases=60/30,startup=10m")[0].job(0.0).profile
        for power in ("phased", "averaged")
    )
    assert averaged.energy_j == pytest.approx(phased.energy_j)
    assert len({phase.power_w for phase in (*averaged.startup, *averaged.work)}) == 1


@pytest.mark.parametrize(
    ("only", "count"),
    [
        (None, 4800),
        ("length=16h", 960),
        ("length=16h,length_s=3600,wait_h=6", 384),
        ("startup=0m,startup=30m,startup_w=100,strategy=suspend", 600),
        ("phases=60/30, power=averaged, startup_mode=added", 400),
    ],
)
def test_selections(only: str | None, count: int) -> None:
    assert len(make_cases(only=only)) == count


@pytest.mark.parametrize(
    ("only", "told"),
    [
        ("colour=red", "known keys are length"),
        ("length", "known keys are length"),
        ("length=3h", "known values are 1h, 2h, 4h, 8h, 16h"),
        ("wait=24", "known values are 6h"),
        ("startup=soon", "known values are 0m, 5m, 10m, 30m"),
        ("startup_w=150", "known values are 100, 200"),
        ("phases=60", "known values are 60/60"),
        ("", "known keys"),
    ],
)
def test_bad_selections_name_the_known(only: str, told: str) -> None:
    with pytest.raises(InvalidInput, match=told):
        make_cases(only=only)
    with pytest.raises(InvalidInput, match="excludes every job"):
        make_cases(startup_modes=["added"], only="startup_mode=carved")


def test_a_price_is_refused() -> None:
    price = lt.Signal.from_values([1] * 200, start=0, step_s=3600, kind="price", unit="EUR/kWh")
    with pytest.raises(InvalidInput, match="carbon intensity"):
        list(evaluate(price, make_cases()))


def test_a_damaged_file_of_totals_names_its_line(tmp_path: Path) -> None:
    path = tmp_path / "totals.csv"
    path.write_text("strategy,power\nsuspend,phased\n")
    with pytest.raises(FormatError, match="line 2"):
        read_totals(path)


def test_a_single_job_still_has_all_tables(windy: lt.Signal) -> None:
    only = "length=1h,wait=6h,strategy=suspend,phases=60/60,startup=5m,startup_w=100,power=phased"
    study = ThesisStudy(
        outcomes=tuple(evaluate(windy, make_cases(startup_modes=["added"], only=only)))
    )
    assert [[len(each.rows) for each in section.tables] for section in tables(study)] == [
        [],
        [],
        [1],
        [],
        [],
    ]
    assert choose(study) == []


def test_report_figures_and_table_are_written(windy: lt.Signal, tmp_path: Path) -> None:
    study = ThesisStudy(outcomes=tuple(evaluate(windy, make_cases(only="length=16h,wait=24h"))))
    written = findings(study, windy, note="synthetic").write(tmp_path)
    assert sorted(path.name for path in written) == [
        "report.html",
        "results.csv",
        "savings.png",
        "savings.svg",
        "schedules.png",
        "schedules.svg",
    ]
    rows = list(csv.reader((tmp_path / "results.csv").read_text().splitlines()))
    assert tuple(rows[0]) == COLUMNS
    assert len(rows) == 1 + len(study.outcomes)
    assert "synthetic" in (tmp_path / "savings.svg").read_text()
    assert "What explains the saving" in (tmp_path / "report.html").read_text()


def test_the_published_chart_is_drawn(study: ThesisStudy, signal: lt.Signal) -> None:
    drawn = [figure.name for section in figures(study, signal) for figure in section.figures]
    assert drawn == ["schedules", "savings", "published"]


def test_the_verb_prints_one_object_per_job(
    data: Data, golden: dict[Case, dict[str, str]], capsys: pytest.CaptureFixture[str]
) -> None:
    folder = data(SIGNAL).parents[1]
    words = ("reproduce", "thesis", "--data", str(folder), "--only", "length=8h,wait=48h")
    answer = run(capsys, *words, "--startup", "carved", "--json")
    assert (answer.code, answer.err) == (0, "")
    document = json.loads(answer.out)
    assert len(document) == 96
    for each in document:
        assert set(each) == {*LEVELS, "carbon_g", "starts"}
        row = golden[Case(**{name: each[name] for name in LEVELS})]
        wanted = float(row["optimum_g"] or row["best_hourly_start_g"])
        assert each["carbon_g"] == pytest.approx(wanted, rel=1e-9, abs=LAST_DIGIT_G)
    shown = run(capsys, *words)
    assert "16" in next(line for line in shown.out.splitlines() if line.startswith("all"))
    assert run(capsys, *words, "-P").out.splitlines()[1].count("|") == len(COLUMNS) - 1


def test_the_verb_says_loudly_that_a_grid_is_synthetic(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("LOWTIDE_DATA", str(tmp_path))
    words = ("reproduce", "thesis", "--only", "length=16h,wait=24h,phases=60/60")
    shown = run(capsys, *words)
    assert (shown.code, shown.err) == (0, "")
    assert shown.out.startswith("SYNTHETIC GRID")
    as_json = run(capsys, *words, "--json")
    assert "SYNTHETIC GRID" in as_json.err
    assert json.loads(as_json.out)


def test_the_verb_takes_a_signal(
    windy: lt.Signal, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_signal(windy, tmp_path / "grid.csv")
    words = ("reproduce", "thesis", "--only", "length=16h,wait=24h", "--json")
    given = run(capsys, *words, "--signal", str(tmp_path / "grid.csv"))
    cases = make_cases(only="length=16h,wait=24h")
    assert [each["carbon_g"] for each in json.loads(given.out)] == pytest.approx(
        [outcome.carbon_g for outcome in evaluate(windy, cases)]
    )


@pytest.mark.parametrize(
    "words",
    [
        ("reproduce", "thesis", "--startup", "sideways"),
        ("reproduce", "thesis", "--only", "length=3h"),
        ("reproduce", "thesis", "--data", "nowhere"),
        ("reproduce", "thesis", "--signal", "nothing.csv"),
    ],
)
def test_bad_words_are_exit_code_2(
    words: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    answer = run(capsys, *words)
    assert answer.code == 2
    assert answer.err.startswith("lowtide: ")
