"""The GAIA comparison run again: equal to the goldens run by run and task by task."""

from __future__ import annotations

import csv
import gzip
import heapq
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import lowtide as lt
from lowtide.accounting import footprint
from lowtide.errors import FormatError, InvalidInput, InvalidTrace
from lowtide.formats import read_jobs, read_signal
from lowtide.policies import plan
from lowtide.reproductions import gaia_report
from lowtide.reproductions.findings import read_published
from lowtide.reproductions.gaia import (
    FIXED,
    FIXES,
    HOUR_S,
    ORIGINAL,
    RUNS,
    Bench,
    GaiaOutcome,
    GaiaRun,
    below_threshold,
    best_delay,
    cut_signal,
    job_of,
)
from lowtide.reproductions.gaia_report import GaiaStudy
from lowtide.signal import FILLED
from lowtide.trace import Trace
from support.commands import run
from support.faces import assert_keys_as_kept

TOTALS = "goldens/gaia/totals_US-CAL-CISO.json"
NOTEBOOK = "goldens/gaia/published_notebook_AU-SA.json"
PAGE = "docs/studies/gaia.md"
STEP_S = 5.0
# Equal arrivals leave the original's heap in an order of its own.
HEAP = 3e-3
EXACT = 1e-9
BY_NAME = {each.policy: each for each in RUNS}
DETAILS = {
    "Oracle(-w 6x24)": "carbon-7000-oracle-US-CAL-CISO-0",
    "Carbon-Time": "carbon-7000-cst_average-US-CAL-CISO-0",
    "Wait-Awhile": "suspend-resume-7000-oracle-US-CAL-CISO-0",
    "Ecovisor": "suspend-resume-threshold-7000-oracle-US-CAL-CISO-0",
    "Res-First-Carbon-Time r9": "carbon-cost-7000-cst_average-US-CAL-CISO-9",
}

Data = Callable[[str], Path]


@pytest.fixture(scope="module")
def bench(data: Data) -> Bench:
    trace = read_jobs(data("traces/pai_1k.csv"))
    signal = read_signal(data("carbon/US-CAL-CISO.csv"))
    return Bench(trace=trace, signal=cut_signal(signal, trace, 7000))


@pytest.fixture(scope="module")
def study(bench: Bench, data: Data) -> GaiaStudy:
    return GaiaStudy(
        zone="US-CAL-CISO",
        start_row=7000,
        task_trace="pai_1k",
        outcomes=tuple(gaia_report.evaluate(bench)),
        totals=gaia_report.read_totals(data(TOTALS), 7000),
        notebook=read_published(data(NOTEBOOK)),
    )


def rows_of(path: Path) -> list[dict[str, str]]:
    """The tasks of a golden, by number and start; the last row holds the reserved machines."""
    with gzip.open(path, "rt") as file:
        rows = [row for row in csv.DictReader(file) if row["ID"] != "-1"]
    return sorted(rows, key=lambda row: (int(row["ID"]), int(row["start_time"])))


def details(data: Data, policy: str) -> list[dict[str, str]]:
    return rows_of(data(f"goldens/gaia/details-{DETAILS[policy]}-6x24.csv.gz"))


def test_every_golden_total_is_met(study: GaiaStudy, data: Data) -> None:
    golden = json.loads(data(TOTALS).read_text())
    assert [row["policy"] for row in golden] == [run.policy for run in RUNS]
    for row, found in zip(golden, study.documents(), strict=True):
        tolerance = HEAP if row["reserved"] else EXACT
        for name, wanted in row.items():
            if name in ("wall_s", "cpu_s", "rc"):
                continue
            if isinstance(wanted, float) or name == "last_exit_step":
                wanted = pytest.approx(wanted, rel=tolerance, abs=1e-12)
            assert found[name] == wanted, (row["policy"], name)


@pytest.mark.parametrize("policy", [name for name in DETAILS if not BY_NAME[name].reserved])
def test_every_golden_task_is_met(policy: str, study: GaiaStudy, data: Data) -> None:
    golden = details(data, policy)
    outcome = study.by_rules[ORIGINAL][policy]
    columns = {
        "ID": outcome.job,
        "arrival_time": outcome.arrival_s / STEP_S,
        "length": outcome.length_s / STEP_S,
        "cpus": outcome.cpus,
        "start_time": outcome.start_s / STEP_S,
        "waiting_time": (outcome.start_s - outcome.arrival_s) / STEP_S,
        "exit_time": outcome.end_s / STEP_S,
        "carbon_cost": outcome.carbon_g,
        "dollar_cost": outcome.cost,
    }
    assert len(golden) == outcome.job.size
    for name, found in columns.items():
        wanted = [float(row[name]) for row in golden]
        assert found == pytest.approx(wanted, rel=EXACT), name


def in_heap_order(bench: Bench, run: GaiaRun) -> tuple[list[int], list[bool]]:
    """Pass the queue step by step, as a heap orders it that knows of arrivals alone."""

    class Entry:
        def __init__(self, number: int) -> None:
            self.number = number

        def __lt__(self, other: Entry) -> bool:
            return arrival[self.number] < arrival[other.number]

    due, plain = bench.due(run, ORIGINAL), bench.outcome(run, ORIGINAL)
    arrival, wanted, length = (
        np.round(each / STEP_S).astype(int).tolist()
        for each in (plain.arrival_s, due.due_s, due.length_s)
    )
    cpus = plain.cpus.tolist()
    start, held = [0] * len(arrival), [False] * len(arrival)
    ends: dict[int, float] = {}
    queue: list[Entry] = []
    free, now, arrived = float(run.reserved), 0, 0
    while queue or arrived < len(arrival):
        while arrived < len(arrival) and arrival[arrived] <= now:
            heapq.heappush(queue, Entry(arrived))
            arrived += 1
        kept: list[Entry] = []
        while queue:
            entry = heapq.heappop(queue)
            i = entry.number
            fits = cpus[i] <= free
            if now < wanted[i] and not (run.eager and fits):
                heapq.heappush(kept, entry)
                continue
            start[i], held[i] = now, fits
            if fits:
                free -= cpus[i]
                ends[now + length[i]] = ends.get(now + length[i], 0.0) + cpus[i]
        queue = kept
        free += ends.pop(now, 0.0)
        now += 1
    return start, held


def test_what_is_left_of_a_difference_is_the_heap(bench: Bench, data: Data) -> None:
    policy = "Res-First-Carbon-Time r9"
    start, held = in_heap_order(bench, BY_NAME[policy])
    golden = details(data, policy)
    assert start == [int(row["start_time"]) for row in golden]
    assert held == [float(row["dollar_cost"]) == 0.0 for row in golden]
    plain = bench.outcome(BY_NAME[policy], ORIGINAL)
    moved = np.round(plain.start_s / STEP_S) != start
    assert 0 < np.count_nonzero(moved) < 250
    carbon_g = sum(float(row["carbon_cost"]) for row in golden)
    assert plain.carbon_g.sum() == pytest.approx(carbon_g, rel=HEAP)


def test_published_figures_that_need_no_curve(study: GaiaStudy) -> None:
    published = gaia_report.notebook_figures(study.notebook)
    here = gaia_report.jobs_alone(study.by_rules[ORIGINAL])
    for name, wanted in published.items():
        tolerance = HEAP if "r9" in name else 1e-6
        assert here[name] == pytest.approx(wanted, rel=tolerance), name
    assert published["wait AJW-T r9, h"] == pytest.approx(9.0101, abs=1e-4)


def test_fixed_starts_are_those_of_the_exact_policies(study: GaiaStudy, bench: Bench) -> None:
    outcomes = study.by_rules[FIXED]
    for number in range(0, 1000, 25):
        for policy, name in (("Oracle(-w 6x24)", "oracle"), ("Wait-Awhile", "wait_awhile")):
            outcome = outcomes[policy]
            mine = outcome.job == number
            length_s = bench.trace.length_s[number]
            job = lt.Job(
                id=str(number),
                arrival=bench.trace.arrival[number],
                deadline=bench.trace.arrival[number]
                + length_s
                + HOUR_S * (6 if length_s < 7200 else 24),
                profile=lt.PowerProfile.constant(bench.trace.cpus[number], length_s),
                interruptible="never" if name == "oracle" else "anywhere",
            )
            best = plan(job, bench.signal, policy=name)
            assert outcome.carbon_g[mine].sum() == pytest.approx(best.footprint.carbon_g, rel=1e-9)
            spans = [each for each in best.schedule.spans if each.kind == "work"]
            assert outcome.start_s[mine] == pytest.approx([each.start for each in spans])


def test_free_starts_beat_starts_on_the_hour_job_by_job(study: GaiaStudy) -> None:
    seconds = study.by_rules[FIXES["seconds, not 5-s steps"]]["Oracle(-w 6x24)"]
    free = study.by_rules[FIXES["starts at any moment"]]["Oracle(-w 6x24)"]
    assert np.all(free.carbon_g <= seconds.carbon_g + 1e-9)
    saved = 1 - free.carbon_g.sum() / seconds.carbon_g.sum()
    assert 0.001 < saved < 0.002
    best = study.by_rules[FIXED]["Wait-Awhile"].carbon_g.sum()
    assert best < free.carbon_g.sum() < study.by_rules[FIXED]["Carbon-Time"].carbon_g.sum()


def test_fixed_outcomes_keep_the_jobs(study: GaiaStudy, bench: Bench) -> None:
    wait_s = np.where(bench.trace.length_s < 7200, 6 * HOUR_S, 24 * HOUR_S)
    for policy, outcome in study.by_rules[FIXED].items():
        busy_s = np.bincount(outcome.job, weights=outcome.length_s)
        assert busy_s == pytest.approx(bench.trace.length_s), policy
        assert np.all(outcome.start_s >= outcome.arrival_s)
        latest = (bench.trace.arrival + bench.trace.length_s + wait_s)[outcome.job]
        assert np.all(outcome.end_s <= latest + 1e-6), policy
        in_use = sum(
            outcome.cpus[
                outcome.reserved
                & (outcome.start_s <= moment)
                & (moment < outcome.start_s + outcome.length_s)
            ].sum()
            > outcome.run.reserved
            for moment in outcome.start_s.tolist()
        )
        assert in_use == 0, policy


def test_reserved_machines_are_paid_until_the_end(study: GaiaStudy) -> None:
    original, fixed = (study.by_rules[rules]["NJW r9"] for rules in (ORIGINAL, FIXED))
    # 0.4 of what a CPU-hour costs on demand.
    rate = 9 * 0.4 * 0.0624 / HOUR_S
    assert original.reserved_cost == pytest.approx(rate * original.start_s.max())
    assert fixed.reserved_cost == pytest.approx(rate * fixed.end_s.max())
    spot = study.by_rules[ORIGINAL]["Spot-First-Carbon-Time"]
    short = spot.length_s < 7200
    paid = spot.cpus * spot.length_s / HOUR_S
    assert spot.cost[short] == pytest.approx(0.01248 * paid[short])
    assert spot.cost[~short] == pytest.approx(0.0624 * paid[~short])


def test_waiting_over_stretches_is_another_number(study: GaiaStudy) -> None:
    outcome = study.by_rules[ORIGINAL]["Wait-Awhile"]
    assert outcome.mean_wait_h == pytest.approx(6.419140, abs=1e-6)
    assert outcome.mean_segment_wait_h == pytest.approx(7.896870, abs=1e-6)


def test_the_threshold_is_that_of_single_steps() -> None:
    rng = np.random.default_rng(3)
    values = rng.integers(50, 400, 60).astype(float)
    curve = lt.Signal.from_values(values, start=0, step_s=3600)
    steps = np.repeat(values, 720)
    for _ in range(60):
        arrival, length = (int(each) for each in rng.integers(1, 9000, 2))
        wait = int(rng.integers(0, 18000))
        limit = np.quantile(steps[arrival : arrival + 17280], 0.3)
        runs, patience = [], wait
        for now in range(arrival, arrival + wait + length):
            if len(runs) < length and (steps[now] < limit or patience <= 0):
                runs.append(now)
            else:
                patience -= 1
        found = below_threshold(
            job_of(5.0 * arrival, 5.0 * length, 5.0 * wait), curve, step_s=STEP_S
        )
        every = [np.arange(begin / 5, end / 5) for begin, end in found]
        assert np.concatenate(every).tolist() == runs


def test_a_threshold_in_seconds_counts_time() -> None:
    # 7 h at 10 are less than 30 % of a day, 8 h are more: the limit is then 10 itself.
    for clean_h, runs_at in ((7, 0.0), (8, 36000.0)):
        values = [10.0] * clean_h + [20.0] * (40 - clean_h)
        curve = lt.Signal.from_values(values, start=0, step_s=3600)
        found = below_threshold(job_of(0.0, 3600.0, 36000.0), curve, step_s=None)
        assert found == [(runs_at, runs_at + 3600.0)]


def test_the_best_delay_may_weigh_savings_against_time() -> None:
    curve = lt.Signal.from_values([100, 60, 100, 100, 40] + [100] * 20, start=0, step_s=3600)
    job = job_of(0.0, 3600.0, 6 * 3600.0)
    assert best_delay(job, curve, start_step_s=None) == 4 * 3600.0
    # 40 saved within 2 h are worth more than 60 within 5 h.
    assert best_delay(job, curve, start_step_s=None, per_time=True) == 3600.0
    late = job_of(1800.0, 3600.0, 6 * 3600.0)
    assert best_delay(late, curve, start_step_s=None) == 3.5 * 3600.0
    assert best_delay(late, curve, start_step_s=3600.0) == 3 * 3600.0


def small() -> tuple[Trace, lt.Signal]:
    trace = Trace(columns={"arrival": [0.0, 7.0], "length_s": [600.0, 9000.0], "cpus": [1.0, 2.0]})
    return trace, lt.synthetic_grid("sunny", days=4, seed=1).average


def test_a_trace_of_ones_own_will_do() -> None:
    trace, signal = small()
    bench = Bench(trace=trace, signal=cut_signal(signal, trace, 3))
    original, fixed = (bench.outcome(BY_NAME["NJW"], rules) for rules in (ORIGINAL, FIXED))
    assert original.arrival_s.tolist() == [0.0, 5.0]
    assert fixed.arrival_s.tolist() == [0.0, 7.0]
    job = trace.jobs(power_w_per_cpu=1.0, wait="0h")[1]
    moved = replace(bench.signal, start=0.0)
    schedule = lt.Schedule.uninterrupted(job, job.arrival)
    assert fixed.carbon_g[1] == pytest.approx(footprint(schedule, job, moved).carbon_g)


def test_start_rows_that_leave_too_little_are_refused() -> None:
    trace, signal = small()
    last = len(signal) - 27
    assert len(cut_signal(signal, trace, last)) == 27
    for row in (-1, last + 1):
        with pytest.raises(InvalidInput, match=f"from 0 to {last}"):
            cut_signal(signal, trace, row)
    with pytest.raises(InvalidInput, match="take a longer one"):
        cut_signal(signal.window(signal.start, "+1d"), trace, 0)
    price = lt.Signal.from_values([1] * 99, start=0, step_s=3600, kind="price", unit="EUR/kWh")
    with pytest.raises(InvalidInput, match="carbon intensity"):
        cut_signal(price, trace, 0)


def test_rows_are_those_of_the_file_not_those_that_were_filled_in() -> None:
    trace, signal = small()
    marks = np.zeros(len(signal), dtype=np.uint8)
    marks[2:5] = FILLED
    marked = replace(signal, marks=marks)
    assert cut_signal(marked, trace, 2).values[0] == signal.values[5]
    assert cut_signal(marked, trace, 1).values[0] == signal.values[1]


def test_jobs_without_cpus_or_shorter_than_a_step_are_refused() -> None:
    trace = Trace(columns={"arrival": [0.0], "length_s": [3.0], "cpus": [1.0]})
    with pytest.raises(InvalidTrace, match="1 of 1 jobs"):
        cut_signal(small()[1], trace, 0)


def test_totals_of_another_row_are_not_compared(
    study: GaiaStudy, data: Data, tmp_path: Path
) -> None:
    assert gaia_report.read_totals(data(TOTALS), 6999) == {}
    assert gaia_report.read_totals(tmp_path / "none.json", 7000) == {}
    other = replace(study, totals={}, notebook={})
    assert {row[-1] for row in gaia_report.totals_table(other).tables[0].rows} == {"---"}
    assert gaia_report.notebook_table(other).tables == []
    damaged = tmp_path / "totals.json"
    for text in ("{", '[{"policy": "NJW"}]'):
        damaged.write_text(text)
        with pytest.raises(FormatError, match=r"totals\.json"):
            gaia_report.read_totals(damaged, 7000)


def test_what_each_fix_changes(study: GaiaStudy) -> None:
    rows = {row[0]: row[1:] for row in gaia_report.fixes_table(study).tables[0].rows}
    assert list(rows) == list(FIXES)
    assert rows["reserved paid until the last end"][:2] == ["---", "---"]
    assert rows["starts at any moment"][:2] == ["-0.20 %", "Carbon-Time"]


def test_the_page_shows_what_is_printed_and_figures_are_written(
    study: GaiaStudy,
    data: Data,
    root: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(gaia_report, "evaluate", lambda _: iter(study.outcomes))
    folder = str(data(TOTALS).parents[2])
    shown = run(capsys, "reproduce", "gaia", "--data", folder, "--out", str(tmp_path))
    assert (shown.code, shown.err) == (0, "")
    printed = {line.rstrip() for line in shown.out.splitlines()}
    blocks = (root / PAGE).read_text(encoding="utf-8").split("```text\n")[1:]
    lines = [line for block in blocks for line in block.split("```")[0].splitlines() if line]
    assert len(lines) > 25
    assert set(lines) <= printed
    assert {path.name for path in tmp_path.iterdir()} == {
        "report.html",
        "results.csv",
        "policies.png",
        "policies.svg",
    }
    rows = list(csv.reader((tmp_path / "results.csv").read_text().splitlines()))
    assert tuple(rows[0]) == gaia_report.COLUMNS
    assert len(rows) == 1 + gaia_report.STEPS


def test_the_verb_prints_runs_of_any_zone_and_row(
    data: Data, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ("--data", str(data(TOTALS).parents[2]), "--zone", "DE", "--start-row", "100")
    answer = run(capsys, "reproduce", "gaia", *words, "--json")
    assert (answer.code, answer.err) == (0, "")
    document = json.loads(answer.out)
    assert_keys_as_kept("verbs/reproduce gaia.txt", document, "|".join(gaia_report.COLUMNS))
    golden = json.loads(data(TOTALS).read_text())
    for found, row in zip(document, golden, strict=True):
        assert set(row) - {"wall_s", "cpu_s", "rc"} <= set(found)
        assert (found["carbon_trace"], found["start_index"]) == ("DE", 100)
        for name in ("policy", "scheduling_policy", "carbon_policy", "reserved", "waiting"):
            assert found[name] == row[name]
    assert document[0]["carbon_cost"] == pytest.approx(1195.72, abs=5e-3)
    assert document[0]["dollar_cost"] == pytest.approx(199.17586)


def test_columns_hold_every_outcome(study: GaiaStudy) -> None:
    rows = gaia_report.columns(study)
    assert len(rows) == len(study.outcomes) == gaia_report.STEPS

    def carbon_g(outcome: GaiaOutcome) -> float:
        return float(outcome.carbon_g.sum())

    found = [float(row[gaia_report.COLUMNS.index("carbon_g")]) for row in rows]
    assert found == pytest.approx([carbon_g(outcome) for outcome in study.outcomes])


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("--zone", "DEE"), "did you mean 'DE'"),
        (("--start-row", "-1"), "from 0 to 9975"),
        (("--start-row", "9976"), "from 0 to 9975"),
        (("--only", "length=3h"), "No such option: --only"),
    ],
)
def test_bad_words_are_exit_code_2(
    words: tuple[str, ...], told: str, data: Data, capsys: pytest.CaptureFixture[str]
) -> None:
    answer = run(capsys, "reproduce", "gaia", "--data", str(data(TOTALS).parents[2]), *words)
    assert answer.code == 2
    assert told in answer.err


def test_absent_data_is_said(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("LOWTIDE_DATA", raising=False)
    answer = run(capsys, "reproduce", "gaia")
    assert (answer.code, answer.out) == (2, "")
    assert "--data DIR" in answer.err
    answer = run(capsys, "reproduce", "gaia", "--data", "nowhere")
    assert answer.code == 2
    assert "no such file: nowhere/traces/pai_1k.csv" in answer.err
