"""What is random in a study: drawn seeds, weeks of arrivals, or nothing; and what is said then."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lowtide.errors import FormatError
from lowtide.studies.analysis import compare, frontier, pareto, policy_numbers
from lowtide.studies.axes import find_design
from lowtide.studies.chance import Blocks, block_sums, blocks_table, find_chance, read_blocks
from lowtide.studies.engines import Local
from lowtide.studies.experiment import Experiment
from lowtide.studies.folder import sweep
from lowtide.studies.report import make_sections
from lowtide.studies.run import run_row, simulate_run
from lowtide.studies.study import read_study
from support.studies import write_study

ONE: dict[str, Any] = {"grids": ["sunny"], "waits": ["24h"], "lengths": ["4h"], "seeds": [0]}
WEEKS = 60


def said(folder: Path, **options: Any) -> dict[str, str]:
    sections = make_sections(read_study(folder, **options))
    return {section.name: section.answer for section in sections}


def words(folder: Path) -> str:
    """Return every sentence and table of a report as one text."""
    texts = []
    for section in make_sections(read_study(folder)):
        texts += [section.question, section.answer, *section.notes]
        for part in section.parts:
            texts += (
                [*part.header, *(cell for row in part.rows for cell in row)]
                if hasattr(part, "rows")
                else [part.caption]
            )
    return "\n".join(texts)


def add_weeks(folder: Path, savings: dict[str, np.ndarray[Any, Any]]) -> None:
    """Give each policy's only run weeks in which it saves so much, and the table their sum."""
    table = pl.read_parquet(folder / "table.parquet")
    before = np.full(WEEKS, 1000.0)
    blocks = []
    for row in table.iter_rows(named=True):
        ours = before * (1 - savings.get(row["policy.name"], np.zeros(WEEKS)))
        blocks.append(
            (
                row["id"],
                {
                    "step_s": 7 * 86_400.0,
                    "number": list(range(WEEKS)),
                    "jobs": [10.0] * WEEKS,
                    "amount": ours.tolist(),
                    "baseline_amount": before.tolist(),
                },
            )
        )
    blocks_table(blocks).write_parquet(folder / "blocks.parquet")
    sums = {name: 1 - sum(each["amount"]) / before.sum() for name, each in blocks}
    table.with_columns(
        saving=pl.col("id").replace_strict(sums), deadline_misses=pl.lit(0)
    ).write_parquet(folder / "table.parquet")


# What was drawn, and what was chosen.

CHOSEN = ("grid.zone", "workload.wait", "cluster.nodes")
SEEDS = ("run.seed", "grid.seed", "forecast.seed")


@given(
    chosen=st.lists(st.integers(1, 3), min_size=3, max_size=3),
    seeds=st.lists(st.integers(1, 3), min_size=3, max_size=3),
    nested=st.booleans(),
)
def test_seeds_repeat_and_everything_else_is_chosen(
    chosen: list[int], seeds: list[int], nested: bool
) -> None:
    cells = list(np.ndindex(*chosen))
    draws = list(np.ndindex(*seeds))
    rows = [
        # Nested: a seed of its own for every setting, which repeats none of them.
        (cell, (place,) * 3 if nested else draw)
        for place, cell in enumerate(cells)
        for draw in (draws[:1] if nested else draws)
    ]
    columns: dict[str, list[Any]] = {
        key: [f"v{cell[at]}" for cell, _ in rows] for at, key in enumerate(CHOSEN)
    } | {key: [draw[at] for _, draw in rows] for at, key in enumerate(SEEDS)}
    design = find_design(columns, len(rows))
    varied = [key for at, key in enumerate(SEEDS) if (len(cells) if nested else seeds[at]) > 1]
    assert design.seeds == tuple(varied)
    assert len({*design.cells}) == len(cells)
    assert {*design.repeats} == {1 if nested else len(draws)}
    # Only what was repeated often enough is random.
    rng = np.random.default_rng(1)
    chance = find_chance(design, rng.normal(size=len(rows)), [None] * len(rows))
    assert (chance.kind == "draws") == (not nested and len(draws) >= 3)
    # Seeds that change nothing draw nothing.
    same = np.array(design.cells, dtype=float)
    assert find_chance(design, same, [None] * len(rows)).kind == "nothing"


def test_an_interval_over_seeds_is_that_of_the_means_of_each_draw(tmp_path: Path) -> None:
    study = read_study(write_study(tmp_path, seeds=[0, 1, 2, 3, 4, 5, 6]))
    assert (study.chance.kind, study.chance.count) == ("draws", 7)
    found = next(each for each in compare(study, "exact") if each.policy == "oracle")
    table = study.runs
    means = {
        name: table.filter(pl.col("policy.name") == name)
        .group_by("run.seed", maintain_order=True)
        .agg(pl.col("saving").mean())["saving"]
        .to_numpy()
        for name in ("exact", "oracle")
    }
    apart = 100 * (means["oracle"] - means["exact"])
    assert found.pairs is not None
    difference = found.pairs.difference
    half = 2.4469 * apart.std(ddof=1) / np.sqrt(7)
    assert difference.value == pytest.approx(apart.mean())
    assert difference.low == pytest.approx(apart.mean() - half, abs=0.25 * half)
    assert difference.high == pytest.approx(apart.mean() + half, abs=0.25 * half)
    # All seven draws agree, which a coin does twice in 128 tosses of seven.
    assert found.pairs.p == pytest.approx(2 / 128)


# Where nothing was random.


def test_chosen_settings_have_ranges_and_neither_p_nor_interval(tmp_path: Path) -> None:
    write_study(tmp_path, seeds=[0])
    study = read_study(tmp_path)
    assert study.chance.kind == "nothing"
    assert all(each["saving_low"] is None for each in policy_numbers(study))
    text = words(tmp_path)
    for word in ("η²", "p =", "p <", "95 % interval", "chance", "Wilcoxon"):
        assert word not in text
    answer = said(tmp_path)["policies"]
    exact = study.outcomes[study.rows("exact")]
    assert "on average over 48 settings" in answer
    assert f"range from {exact.min():.1f} % (synthetic grid coal" in answer
    assert f"to {exact.max():.1f} % (synthetic grid sunny" in answer
    assert said(tmp_path)["paired"].endswith(
        "Nothing here is random: this holds for these runs and says nothing of others."
    )


def test_one_run_per_policy_on_a_long_trace_is_told_by_its_weeks(tmp_path: Path) -> None:
    rng = np.random.default_rng(2)
    write_study(tmp_path, **ONE, policies=["run_now", "oracle", "lowest_slot"])
    base = 0.2 + 0.05 * rng.normal(size=WEEKS)
    add_weeks(tmp_path, {"oracle": base, "lowest_slot": base - 0.05})
    study = read_study(tmp_path)
    assert (study.chance.kind, study.chance.count) == ("weeks", WEEKS)
    (near, _) = compare(study, "oracle")
    assert near.pairs is not None
    # The same weeks are good for both: their difference is far surer than either saving.
    assert near.pairs.difference.value == pytest.approx(-5.0)
    assert near.pairs.difference.low is None or near.pairs.difference.high < -4.9  # type: ignore[operator]
    answers = said(tmp_path)
    assert answers["paired"].startswith(
        "Policy lowest_slot saves 5.0 points less than policy oracle"
    )
    assert f"over {WEEKS} weeks of arrivals" in answers["policies"]
    assert "other traces and grids may differ" in answers["paired"]
    assert not {"p", "η²"} & set(words(tmp_path).split())


def test_intervals_over_alike_weeks_hold_the_true_difference(tmp_path: Path) -> None:
    rng = np.random.default_rng(11)
    write_study(tmp_path, **ONE, policies=["run_now", "oracle", "lowest_slot"])
    held, trials = 0, 60
    for _ in range(trials):
        shocks = 0.03 * rng.normal(size=WEEKS + 50)
        alike = np.zeros(WEEKS + 50)
        for place in range(1, alike.size):
            alike[place] = 0.5 * alike[place - 1] + shocks[place]
        add_weeks(tmp_path, {"oracle": np.full(WEEKS, 0.25), "lowest_slot": 0.2 + alike[50:]})
        pairs = next(
            each.pairs
            for each in compare(read_study(tmp_path), "oracle")
            if each.policy == "lowest_slot"
        )
        assert pairs is not None
        held += pairs.difference.low <= -5.0 <= pairs.difference.high  # type: ignore[operator]
    assert held / trials >= 0.88


def test_blocks_that_are_not_the_runs_own_give_no_interval(tmp_path: Path) -> None:
    write_study(tmp_path, **ONE, policies=["run_now", "oracle"])
    add_weeks(tmp_path, {"oracle": np.linspace(0.1, 0.3, WEEKS)})
    path = tmp_path / "table.parquet"
    pl.read_parquet(path).with_columns(saving=pl.col("saving") + 0.01).write_parquet(path)
    assert all(each["saving_low"] is None for each in policy_numbers(read_study(tmp_path)))


# What a run keeps of its days and weeks.


@pytest.mark.parametrize("cluster", [False, True])
@pytest.mark.parametrize("days", [30, 160])
def test_blocks_add_up_to_the_run(cluster: bool, days: int) -> None:
    parameters: dict[str, Any] = {
        "grid": {"synthetic": "windy", "start": "2023-01-04T00:00Z", "days": days + 20},
        "workload": {
            "duration": f"{days}d",
            "arrivals": {"kind": "poisson", "per_hour": 0.2},
            "lengths": "5h",
            "jobs": {"kind": "constant", "power_w": 300},
            "wait": "24h",
        },
        "policy": {"name": "oracle"},
        "cluster": {"nodes": 3, "cpus_per_node": 4, "idle_power_w": 50, "peak_power_w": 200}
        if cluster
        else {},
        "queue": {},
        "forecast": {},
        "run": {},
    }
    simulation, row = simulate_run(parameters), run_row(parameters)
    told = block_sums(simulation)
    assert told["step_s"] == (7 if days > 140 else 1) * 86_400.0
    assert sum(told["jobs"]) == row["jobs"]
    assert sum(told["carbon_g"]) == pytest.approx(row["carbon_g"])
    assert sum(told["wait_s"]) / row["jobs"] == pytest.approx(row["mean_wait_s"])
    assert sum(told["baseline_amount"]) == pytest.approx(row["baseline_amount"])
    saved = 1 - sum(told["amount"]) / sum(told["baseline_amount"])
    assert saved == pytest.approx(row["saving"], abs=1e-9)
    # Monday, 9 January 2023 begins a week and a day.
    first = 345_600 + told["step_s"] * np.array(told["number"])
    arrival = simulation.jobs.arrival
    place = np.searchsorted(first, arrival, side="right") - 1
    assert (arrival - first[place] < told["step_s"]).all()
    assert np.bincount(place).tolist() == told["jobs"]
    if days > 140:
        assert (first % (7 * 86_400) == 345_600).all()


def test_days_are_counted_together_as_weeks() -> None:
    days = Blocks(
        step_s=86_400.0,
        number=np.array([0, 3, 6, 7, 20]),
        sums={"amount": np.array([1.0, 2.0, 3.0, 4.0, 5.0])},
    )
    weeks = days.by_weeks()
    assert weeks.number.tolist() == [0, 1, 2]
    assert weeks.sums["amount"].tolist() == [6.0, 4.0, 5.0]
    assert weeks.by_weeks() is weeks


def test_blocks_are_read_back_as_they_were_written(tmp_path: Path) -> None:
    one = {"step_s": 86_400.0, "number": [3, 5], "jobs": [1.0, 2.0], "amount": [4.0, 5.0]}
    two = {"step_s": 604_800.0, "number": [9], "jobs": [7.0], "cost": [8.0]}
    blocks_table([("b", one), ("a", two)]).write_parquet(tmp_path / "blocks.parquet")
    found = read_blocks(tmp_path)
    assert {name: each.number.tolist() for name, each in found.items()} == {"a": [9], "b": [3, 5]}
    assert (found["a"].step_s, found["b"].step_s) == (604_800.0, 86_400.0)
    assert {key: each.tolist() for key, each in found["b"].sums.items()} == {
        "jobs": [1.0, 2.0],
        "amount": [4.0, 5.0],
    }
    assert set(found["a"].sums) == {"jobs", "cost"}
    assert read_blocks(tmp_path / "nowhere") == {}
    (tmp_path / "blocks.parquet").write_text("none")
    with pytest.raises(FormatError, match="not a table of blocks"):
        read_blocks(tmp_path)


def test_a_sweep_keeps_blocks_beside_its_table(tmp_path: Path) -> None:
    file = tmp_path / "e.toml"
    file.write_text(
        "[grid]\nsynthetic = 'windy'\ndays = 40\n[workload]\nduration = '30d'\nlengths = '3h'\n"
        "arrivals = { kind = 'periodic', period = '7h' }\nwait = '12h'\n"
        "jobs = { kind = 'constant', power_w = 100 }\n"
        "[sweep]\npolicy.name = ['run_now', 'oracle']\n"
    )
    table = sweep(Experiment.load(file), tmp_path / "out", engine=Local(workers=1))
    assert "blocks" not in table.columns
    assert table["baseline_deadline_misses"].to_list() == [0, 0]
    found = read_blocks(tmp_path / "out")
    assert set(found) == set(table["id"])
    study = read_study(tmp_path / "out")
    assert (study.chance.kind, study.chance.count) == ("days", 30)
    oracle = policy_numbers(study)[0]
    assert oracle["saving_low"] < oracle["saving"] < oracle["saving_high"]
    # Told against a policy of the study, the same days bear it out.
    again = policy_numbers(read_study(tmp_path / "out", baseline="run_now"))[0]
    assert again["saving_low"] == pytest.approx(oracle["saving_low"])
    # Sweeps of before kept none, and are reported all the same.
    (tmp_path / "out" / "blocks.parquet").unlink()
    assert read_study(tmp_path / "out").chance.kind == "nothing"


# Deadlines.


def missing(folder: Path, misses: dict[str, int], baseline: int | None = None) -> None:
    path = folder / "table.parquet"
    table = pl.read_parquet(path)
    counts = [misses.get(name, 0) for name in table["policy.name"]]
    table = table.with_columns(deadline_misses=pl.Series(counts))
    if baseline is not None:
        table = table.with_columns(baseline_deadline_misses=pl.lit(baseline))
    table.write_parquet(path)


def test_who_misses_deadlines_is_not_named_best(tmp_path: Path) -> None:
    write_study(tmp_path, **ONE)
    missing(tmp_path, {"exact": 7})
    study = read_study(tmp_path)
    assert (study.leader, study.ranking[-1]) == ("oracle", "exact")
    answer = said(tmp_path)["policies"]
    assert answer.startswith("Policy oracle saves ")
    saved = study.outcomes[study.rows("exact")][0]
    assert answer.endswith(
        f"Set aside for missed deadlines: policy exact saves {saved:.1f} %, but 7 of 24 jobs "
        "missed their deadline, 7 more than under policy run_now."
    )


def test_who_misses_no_more_than_the_baseline_may_be_best(tmp_path: Path) -> None:
    write_study(tmp_path, **ONE)
    missing(tmp_path, {"exact": 7, "oracle": 2, "run_now": 7})
    assert read_study(tmp_path).leader == "exact"
    missing(tmp_path, {"exact": 7}, baseline=6)
    assert read_study(tmp_path).leader == "oracle"
    missing(tmp_path, {"exact": 7}, baseline=7)
    assert read_study(tmp_path).leader == "exact"


def test_where_all_miss_more_the_fewest_misses_lead(tmp_path: Path) -> None:
    write_study(tmp_path, **ONE)
    missing(tmp_path, {"exact": 9, "oracle": 8, "wait_awhile": 3, "lowest_slot": 5})
    study = read_study(tmp_path)
    assert study.ranking == ["wait_awhile", "lowest_slot", "oracle", "exact", "run_now"]
    answer = said(tmp_path)["policies"]
    assert "No policy keeps as many deadlines as policy run_now; this one comes nearest." in answer


# What makes no difference.


def test_two_seconds_of_waiting_beat_nobody(tmp_path: Path) -> None:
    write_study(tmp_path, **ONE, policies=["run_now", "oracle", "exact"])
    path = tmp_path / "table.parquet"
    values = {"run_now": (0.0, 0.0), "oracle": (0.2, 36_000.0), "exact": (0.2, 36_002.0)}
    table = pl.read_parquet(path)
    table = table.with_columns(
        saving=pl.Series([values[name][0] for name in table["policy.name"]]),
        mean_wait_s=pl.Series([values[name][1] for name in table["policy.name"]]),
    )
    table.write_parquet(path)
    points, _ = frontier(read_study(tmp_path))
    assert all(point.on_front for point in points)
    table.with_columns(mean_wait_s=pl.col("mean_wait_s") * 1.01).write_parquet(path)
    text = words(tmp_path)
    assert "Less than 1 min of waiting and 0.1 points of saving count as equal." in text
    assert "No policy is beaten: " in text


@given(
    st.lists(
        st.tuples(st.integers(-20, 20), st.integers(-20, 20), st.integers(-20, 20)),
        min_size=1,
        max_size=12,
    )
)
def test_the_front_without_tolerance_is_paretos(points: list[tuple[int, int, int]]) -> None:
    front = pareto(points, (0.0, 0.0, 0.0))
    for one, on_front in zip(points, front, strict=True):
        beaten = any(
            other != one and all(a >= b for a, b in zip(other, one, strict=True))
            for other in points
        )
        assert on_front != beaten
    # Whatever is beaten is so by somebody, and more tolerance never beats what less did not.
    assert any(pareto(points, (3.0, 3.0, 3.0)))


def test_a_manifest_is_told_in_words(tmp_path: Path) -> None:
    write_study(tmp_path, **ONE, policies=["run_now", "exact"])
    path = tmp_path / "manifest.json"
    manifest = json.loads(path.read_text()) | {"left_out": 0, "seeds": [0], "earlier": []}
    path.write_text(json.dumps(manifest))
    section = next(each for each in make_sections(read_study(tmp_path)) if each.name == "manifest")
    rows = {row[0]: row[1] for row in section.parts[0].rows}  # type: ignore[union-attr]
    assert rows["seeds that were used, by number"] == "0"
    assert rows["earlier sweep into this folder"] == "none"
    assert rows["runs in the folder that are no longer of this experiment"] == "0"
    assert not {"left_out", "earlier", "seeds"} & set(rows)
