"""The report of a study: what it finds in numbers that follow a known law, and how it says so."""

from __future__ import annotations

import csv
import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import altair as alt
import numpy as np
import polars as pl
import pytest
import vl_convert

from lowtide.errors import FileProblem, FormatError, InvalidInput, UnknownName
from lowtide.grids import synthetic_grid
from lowtide.page.page import Figure, Section, Table
from lowtide.signal import Signal
from lowtide.simulator import simulate
from lowtide.studies.analysis import compare, find_ranges, frontier, group, policy_numbers, telling
from lowtide.studies.axes import find_axes, make_axis, policy_labels, uncrossed
from lowtide.studies.chance import Chance, Numbers
from lowtide.studies.closeup import (
    Closeup,
    choose_jobs,
    choose_row,
    look_closely,
    quantiles,
    spread_answer,
)
from lowtide.studies.policies import comparison_answer, format_p
from lowtide.studies.report import Report, facts, make_sections, write_study_report
from lowtide.studies.study import Study, read_study, run_parameters
from lowtide.workloads import generate
from support.commands import run
from support.studies import GRIDS, LENGTHS, POLICIES, WAITS, write_study

FEW: dict[str, Any] = {"grids": ["sunny", "coal"], "waits": ["6h", "24h"], "lengths": ["4h"]}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_study(
        tmp_path_factory.mktemp("study"),
        seeds=[0, 1, 2, 3],
        failures={9: "the signal ends too early", 13: "the signal ends too early"},
        report={"figures": [{"x": "workload.wait", "facet": "grid.synthetic"}]},
    )


@pytest.fixture(scope="module")
def study(folder: Path) -> Study:
    return read_study(folder)


@pytest.fixture(scope="module")
def report(study: Study) -> Report:
    return write_study_report(study)


def figures(sections: tuple[Section, ...] | list[Section]) -> dict[str, Figure]:
    parts = [part for section in sections for part in section.parts]
    return {part.name: part for part in parts if isinstance(part, Figure)}


def answers(sections: tuple[Section, ...] | list[Section]) -> dict[str, str]:
    return {section.name: section.answer for section in sections}


# What is read.


def test_a_study_is_read_back(study: Study) -> None:
    assert len(study) == 958
    assert study.failed.height == 2
    assert study.ranking == ["exact", "oracle", "wait_awhile", "lowest_slot", "run_now"]
    assert [(axis.name, axis.kind, axis.levels) for axis in study.axes] == [
        ("synthetic grid", "category", tuple(GRIDS)),
        ("allowed wait", "number", (6.0, 12.0, 24.0, 48.0)),
        ("job length", "number", (1.0, 4.0, 16.0)),
    ]
    assert (study.grids, study.baseline, study.outcome.key) == (
        "synthetic grids",
        "run_now",
        "saving",
    )


@pytest.mark.parametrize(
    ("key", "values", "kind", "unit", "levels"),
    [
        ("workload.wait", ["2d", "24h", None], "number", "h", (24.0, 48.0)),
        ("workload.wait", ["0", "90 min"], "number", "h", (0.0, 1.5)),
        ("policy.step_s", [600, 300], "number", "min", (5.0, 10.0)),
        ("cluster.nodes", [100, 8], "number", "", (8.0, 100.0)),
        ("cluster.idle_w", [50.0, 0.0], "number", "W", (0.0, 50.0)),
        ("run.repeat_signal", [True, False], "category", "", ("yes", "no")),
        ("grid.zone", ["DE", "AU-SA"], "category", "", ("DE", "AU-SA")),
        ("grid.file", ["/data/b.csv", "/data/a.csv"], "category", "", ("b.csv", "a.csv")),
        ("workload.x", ["[1, 2]", "3"], "category", "", ("[1, 2]", "3")),
        ("workload.y", ["1", "2"], "category", "", ("1", "2")),
        (
            "grid.start",
            ["2023-07-01T00:00Z", "2023-01-01T00:00Z"],
            *("time", "", (1672531200.0, 1688169600.0)),
        ),
    ],
)
def test_parameters_become_axes(
    key: str, values: list[Any], kind: str, unit: str, levels: tuple[Any, ...]
) -> None:
    axis = make_axis(key, values)
    assert (axis.kind, axis.unit, axis.levels) == (kind, unit, levels)


def test_seeds_constants_and_doubles_are_no_axes() -> None:
    columns = {
        "grid.file": ["/a/DE.csv", "/a/FR.csv", "/a/DE.csv"],
        "grid.zone": ["DE", "FR", "DE"],
        "grid.days": [7, 7, 7],
        "run.seed": [0, 1, 2],
        "workload.lengths.sigma": [1.0, 1.0, 2.0],
        "workload.cpus.sigma": [1.0, 2.0, 2.0],
    }
    assert [axis.name for axis in find_axes(columns)] == [
        "zone",
        "spread of job lengths",
        "sigma",
    ]


CONFOUNDED: dict[str, list[Any]] = {
    "workload.interruptible": ["anywhere", "checkpoints", "checkpoints"] * 2,
    "workload.jobs.checkpoint_every_s": [None, "1h", "8h"] * 2,
    "workload.jobs.high_w": [300, 300, 300, 480, 480, 480],
    "workload.jobs.low_w": [300, 300, 300, 60, 60, 60],
}


def test_parameters_that_vary_together_are_one_axis_named_after_all() -> None:
    stops, spacing, watts = find_axes(CONFOUNDED)
    assert (stops.name, spacing.name) == ("interruptible", "checkpoint every")
    assert (watts.name, watts.kind, watts.levels) == (
        *("high + low", "category"),
        ("300 W", "480 W / 60 W"),
    )
    assert watts.keys == ("workload.jobs.high_w", "workload.jobs.low_w")
    assert stops.keys == ("workload.interruptible",)
    assert uncrossed([stops, spacing, watts]) == [(stops, spacing, 3)]


def test_a_list_of_cases_gives_its_axis_a_name() -> None:
    cases = {
        "stops": ["workload.interruptible", "workload.jobs.checkpoint_every_s"],
        "contrast": ["workload.jobs.high_w", "workload.jobs.low_w"],
    }
    stops, contrast = find_axes(CONFOUNDED, cases)
    assert (stops.name, contrast.name) == ("stops", "contrast")
    assert stops.levels == ("anywhere", "checkpoints / 1 h", "checkpoints / 8 h")
    assert uncrossed([stops, contrast]) == []
    # The same number under two keys is a number, and what is crossed stays apart.
    same = {"a.x_s": ["1h", "8h"] * 2, "a.y_s": ["1h", "8h"] * 2, "a.z": ["p", "p", "q", "q"]}
    both, alone = find_axes(same, {"phases": ["a.x_s", "a.y_s", "a.z"]})
    assert (both.name, both.kind, both.levels) == ("phases", "number", (1.0, 8.0))
    assert alone.name == "z"


def test_axes_that_would_share_a_name_are_called_by_their_key() -> None:
    columns = {"workload.cpus.median": [1, 2, 2], "workload.gpus.median": [1, 1, 2]}
    assert [axis.name for axis in find_axes(columns)] == ["cpus median", "gpus median"]


def test_policies_are_told_by_what_differs() -> None:
    names = {"policy.name": ["exact", "exact", "run_now"]}
    assert policy_labels(names, 3) == (["exact", "exact", "run_now"], {"policy.name"})
    blind = names | {"policy.knows_phases": [True, False, None]}
    assert policy_labels(blind, 3)[0] == ["exact", "exact (phases unknown)", "run_now"]
    steps = names | {"policy.max_starts": [1, 2, None]}
    assert policy_labels(steps, 3)[0] == ["exact (max_starts 1)", "exact (max_starts 2)", "run_now"]
    # What goes with the name alone says nothing beside it.
    fixed = names | {"policy.step_s": [60, 60, None]}
    assert policy_labels(fixed, 3)[0] == names["policy.name"]
    # More than there are colours for: the parameter is an axis instead.
    many = {"policy.name": ["exact"] * 20, "policy.quantile": [0.05 * n for n in range(20)]}
    assert policy_labels(many, 20) == (["exact"] * 20, {"policy.name"})
    assert policy_labels({}, 2) == (["run_now", "run_now"], set())


@pytest.mark.parametrize(
    ("synthetic", "said"),
    [
        ([False, False], "real grids"),
        ([True, False], "some grids are synthetic"),
        ([True, None], "whether grids are synthetic is not known"),
    ],
)
def test_what_grids_are_is_said(tmp_path: Path, synthetic: list[bool | None], said: str) -> None:
    write_study(tmp_path, policies=["exact"], grids=["sunny"], waits=["6h"], lengths=["1h"])
    path = tmp_path / "table.parquet"
    table = pl.read_parquet(path).with_columns(synthetic=pl.Series(synthetic, dtype=pl.Boolean))
    table.write_parquet(path)
    assert read_study(tmp_path).grids == said


# What it says.


def test_means_follow_the_law(study: Study) -> None:
    exact = next(each for each in policy_numbers(study) if each["policy"] == "exact")
    mean = np.mean(list(GRIDS.values())) * np.mean(list(WAITS.values()))
    wanted = float(mean * np.mean(list(LENGTHS.values())))
    assert exact["saving"] == pytest.approx(wanted, rel=0.01)
    assert exact["saving_low"] < exact["saving"] < exact["saving_high"]
    assert exact["mean_wait_s"] == pytest.approx(3600 * 22.5 * POLICIES["exact"][1], rel=0.02)
    assert (exact["runs"], exact["deadline_misses"], exact["cost"]) == (192, 0.0, None)


def test_the_front_is_what_nothing_beats(study: Study) -> None:
    points, by = frontier(study)
    assert by is not None
    assert by.key == "workload.wait"
    assert len(points) == 5 * 4
    for point in points:
        better = [
            (point.wait.value - other.wait.value, other.outcome.value - point.outcome.value)
            for other in points
        ]
        beaten = any(
            (less > 1 / 60 or more > 0.1) and less >= -1 / 60 and more >= -0.1
            for less, more in better
        )
        assert point.on_front != beaten
    front = {(point.policy, point.level) for point in points if point.on_front}
    assert ("exact", 48.0) in front
    assert not any(policy == "wait_awhile" for policy, _ in front)


def test_pairs_are_of_the_same_settings(study: Study) -> None:
    found = {each.policy: each for each in compare(study, "exact")}
    oracle = found["oracle"].pairs
    assert oracle is not None
    # A run that failed takes its pair with it.
    assert oracle.difference.count == 191
    assert (oracle.higher, oracle.lower) == (0, 191)
    assert oracle.difference.value == pytest.approx(-0.2 * 13.5, rel=0.05)
    # Four draws cannot reach a small p, however many settings each was run in.
    assert found["oracle"].p is None
    assert oracle.difference.high is not None
    assert oracle.difference.high < 0


def test_the_outcome_depends_most_on_what_has_the_widest_range(study: Study) -> None:
    ranges = {each.axis.name: each for each in find_ranges(study)}
    assert next(iter(ranges)) == "synthetic grid"
    grids = ranges["synthetic grid"]
    assert (grids.low[0], grids.high[0], grids.levels) == ("coal", "sunny", 4)
    own = np.array(study.policies) == "exact"
    sunny = own & (study.runs["grid.synthetic"] == "sunny").to_numpy()
    assert grids.high[1] == pytest.approx(study.outcomes[sunny].mean())
    # What savings are told against saves nothing by definition.
    assert ranges["policy"].low[0] == "lowest_slot"
    assert telling(study, study.outcomes, most_levels=20)[0].key == "grid.synthetic"


def test_groups_leave_out_what_is_not_set() -> None:
    axis = make_axis("cluster.nodes", [1, 2, None, 2])
    values = np.array([1.0, 2.0, 9.0, np.nan])
    groups = group([axis], Numbers(values=values, parts=[None] * 4, chance=Chance(kind="nothing")))
    assert [(each.levels["cluster.nodes"], each.interval.value) for each in groups] == [
        (1.0, 1.0),
        (2.0, 2.0),
    ]


def test_every_question_is_answered_with_figures_of_the_data(report: Report) -> None:
    said = answers(report.sections)
    assert re.fullmatch(
        r"Policy exact saves 13\.\d % \(95 % interval 1\d\.\d to 1\d\.\d over 4 draws of "
        r"run\.seed\) on average over 48 settings, 2\.\d points more than policy oracle; its jobs "
        r"wait 10\.\d h on average\. Single settings range from 0\.\d % \(synthetic grid coal, "
        r"allowed wait 6 h, job length 16 h\) to 5\d\.\d % \(synthetic grid sunny, allowed "
        r"wait 48 h, job length 1 h\)\.",
        said["policies"],
    )
    assert said["paired"].startswith("Policy oracle saves 2.")
    assert re.search(
        r"less in 191 of 191 pairs of runs; policies wait_awhile, lowest_slot and run_now save "
        r"\d.\d to 13.\d points less\. Savings are against policy run_now\. An interval says how "
        r"far other seeds",
        said["paired"],
    )
    assert said["effects"].startswith(
        "The mean saving of policy exact changes most with synthetic grid: "
    )
    assert said["by-1"].startswith("Policy exact saves most with sunny (26.")
    assert "synthetic grid coal, job length 16 h" in said["map"]
    assert said["failed"] == "2 of 960 failed, most often because: the signal ends too early."
    assert all(section.question.endswith("?") for section in report.sections)
    assert all(section.answer.endswith(".") for section in report.sections)
    rising = [text for text in said.values() if "rises from" in text]
    falling = [text for text in said.values() if "falls from" in text]
    assert rising[0].startswith("From allowed wait 6 h to 48 h the saving of policy exact rises")
    assert falling[0].startswith("From job length 1 h to 16 h the saving of policy exact falls")


def test_one_run_is_simulated_again(report: Report) -> None:
    said = answers(report.sections)
    assert said["run"].startswith("Under policy exact ")
    assert "less than under policy run_now" in said["run"]
    assert said["spread"].startswith("Under policy exact half of the jobs wait at most ")
    drawn = figures(report.sections)
    assert {"jobs", "over-time", "cumulative", "cdf-wait", "cdf-slowdown", "cdf-saving"} <= set(
        drawn
    )
    kinds = {row["kind"] for row in drawn["jobs"].tables["rows"]}
    assert {"allowed", "work", "under run_now"} <= kinds
    # The made-up table does not hold what the simulation gives, and the page says so.
    section = next(each for each in report.sections if each.name == "run")
    assert any("came out differently" in note for note in section.notes)


def test_the_run_that_is_shown_lies_in_the_middle(study: Study) -> None:
    row = choose_row(study)
    own = study.outcomes[study.rows("exact")]
    assert study.policies[row] == "exact"
    assert abs(study.outcomes[row] - np.median(own)) == np.abs(own - np.median(own)).min()


@pytest.mark.parametrize(("period", "length"), [("160h", "4h"), ("247h", "16h"), ("2h", "30m")])
def test_jobs_are_drawn_large_enough_to_be_seen(period: str, length: str) -> None:
    workload = {
        "start": "2023-01-01T00:00Z",
        "duration": "80d",
        "arrivals": {"kind": "periodic", "period": period},
        "lengths": length,
        "jobs": {"kind": "constant", "power_w": 1},
        "wait": "24h",
    }
    signal = synthetic_grid("windy", start="2023-01-01T00:00Z", days=90)
    run = simulate(generate(workload, seed=0), signal, policy="oracle")
    chosen = choose_jobs(run, 16)
    look = Closeup(row=0, setting="", simulations={"oracle": run}, chosen=chosen)
    begin, end = look.jobs_span
    rows = list(chosen)
    assert begin == run.jobs.arrival[rows].min()
    assert run.tally.end[rows].max() <= end <= run.tally.end[rows].max() + 0.03 * (end - begin)
    # A chart is 680 points wide: no job is thinner than four.
    assert 680 * run.jobs.run_s[0] / (end - begin) >= 4
    assert len(chosen) == {"160h": 1, "247h": 2, "2h": 16}[period]


def test_axes_of_spreads_write_thousands_out(report: Report) -> None:
    document = figures(report.sections)["cdf-slowdown"].document
    (x,) = [layer["encoding"]["x"] for layer in document["layer"]]
    assert x["title"] == "slowdown: from arrival to end, over run time"
    chart = alt.Chart(alt.Data(values=[{"value": v} for v in (1, 1000)])).mark_point()
    svg = vl_convert.vegalite_to_svg(chart.encode(x=alt.X.from_dict(x)).to_json())
    assert ">1,000<" in svg
    assert "e+" not in svg


def test_jobs_chosen_lie_together_and_all_policies_have_the_same(study: Study) -> None:
    from lowtide.studies.run import simulate_run

    look = look_closely(study, lambda every: [simulate_run(each) for each in every])
    assert list(look.simulations) == study.ranking
    arrivals = look.first.jobs.arrival
    assert all((each.jobs.arrival == arrivals).all() for each in look.simulations.values())
    assert list(look.chosen) == sorted(set(look.chosen))
    assert 3 <= len(look.chosen) <= 16
    assert (np.diff(look.steps) > 0).all()


def test_distributions_are_few_points_that_lie_on_the_curve() -> None:
    values = np.random.default_rng(0).integers(0, 50, 100_000).astype(float)
    along, share = quantiles(values)
    assert along.size <= 200
    assert share[-1] == 1.0
    for each, part in zip(along, share, strict=True):
        assert part == pytest.approx((values <= each).mean())


# How it looks.


def test_the_page_stands_alone(report: Report) -> None:
    page = report.path.read_text()
    outside = re.sub(r"<script>.*?</script>", "", page, flags=re.DOTALL)
    assert not re.search(r"\ssrc=|https?://", outside)
    links = set(re.findall(r'href="([^"]*)"', outside))
    assert all(link.startswith(("#", "figures/")) for link in links)
    for link in links:
        name = link.removeprefix("#")
        there = (report.path.parent / link).is_file()
        assert there if link.startswith("figures/") else f'id="{name}"' in outside
    assert "the signal ends too early" in outside
    assert "prefers-color-scheme: dark" in page
    assert "0.1.0" in outside


def test_every_figure_is_valid_and_says_what_its_grids_are(report: Report) -> None:
    drawn = figures(report.sections)
    assert len(drawn) >= 13
    for figure in drawn.values():
        # Data are valid whatever they are, and would be copied at every turn.
        alt.Chart.from_dict({**figure.document, "datasets": {}}, validate=True)
        assert figure.document["title"]["subtitle"][0] == "Synthetic grids"
        assert figure.caption.endswith(".")


def test_every_figure_is_written_three_ways(report: Report) -> None:
    folder = report.path.parent / "figures"
    for name, figure in figures(report.sections).items():
        assert (folder / f"{name}.svg").read_text().startswith("<svg")
        assert (folder / f"{name}.png").read_bytes().startswith(b"\x89PNG")
        with (folder / f"{name}.csv").open() as file:
            assert len(list(csv.DictReader(file))) == len(figure.tables["rows"])
    assert (folder / "jobs-curve.csv").is_file()


def test_the_same_study_gives_the_same_bytes(study: Study, report: Report, tmp_path: Path) -> None:
    again = write_study_report(study, tmp_path / "again.html", images=False)
    plain = re.sub(r'<div class="files">.*?</div>', "", report.path.read_text())
    assert again.path.read_text() == plain
    assert again.figures == ()


def test_text_from_outside_is_escaped(tmp_path: Path) -> None:
    write_study(tmp_path, **FEW, failures={3: "</script><b>bold</b>"})
    manifest = json.loads((tmp_path / "manifest.json").read_text())
    manifest |= {"title": "A <b>study</b>", "experiment": "title = '</pre><i>'"}
    (tmp_path / "manifest.json").write_text(json.dumps(manifest))
    page = write_study_report(read_study(tmp_path), images=False).path.read_text()
    assert "<b>" not in re.sub(r"<script>.*?</script>", "", page, flags=re.DOTALL)
    assert "<i>" not in page.replace("<i>", "", 0).split("<body>")[1].split("<script>")[0]
    assert page.count("</script>") == 2


# What little there may be.


def test_one_policy_leaves_nothing_to_compare(tmp_path: Path) -> None:
    study = read_study(write_study(tmp_path, **FEW, policies=["exact"]))
    sections = make_sections(study)
    assert {"paired", "lead"}.isdisjoint(answers(sections))
    assert answers(sections)["policies"].startswith("Policy exact saves 14.")
    assert {"frontier", "map", "effects", "jobs"} <= set(figures(sections))


def test_a_single_run_is_told_as_such(tmp_path: Path) -> None:
    one = {"grids": ["sunny"], "waits": ["6h"], "lengths": ["4h"], "seeds": [0]}
    sections = make_sections(read_study(write_study(tmp_path, **one, policies=["exact"])))
    assert list(answers(sections)) == ["policies", "run", "spread", "manifest"]
    assert re.match(r"Policy exact saves \d+\.\d % in its only run;", answers(sections)["policies"])


def test_without_savings_carbon_is_what_counts(tmp_path: Path) -> None:
    study = read_study(write_study(tmp_path, **FEW, savings=False))
    assert (study.outcome.key, study.baseline, study.leader) == ("carbon_g", None, "exact")
    said = answers(make_sections(study))
    assert re.match(
        r"Policy exact emits 4\d\d kg on average over 4 settings, \d+\.\d kg less than policy "
        "oracle",
        said["policies"],
    )
    assert said["paired"].startswith("Policy oracle emits ")
    assert " kg more than policy exact" in said["paired"]


def test_a_report_says_what_varies_together(tmp_path: Path) -> None:
    write_study(tmp_path, **FEW)
    path = tmp_path / "table.parquet"
    spaced = pl.when(pl.col("workload.wait") == "6h")
    table = pl.read_parquet(path).with_columns(
        spaced.then(pl.lit("never")).otherwise(pl.lit("anywhere")).alias("workload.interruptible"),
        spaced.then(60).otherwise(3600).alias("workload.jobs.startup_s"),
    )
    table.write_parquet(path)
    study = read_study(tmp_path)
    name = "allowed wait + interruptible + startup"
    assert [axis.name for axis in study.axes] == ["synthetic grid", name]
    note = (
        f"Allowed wait varies together with interruptible and startup (here {name}): which of "
        "them makes a difference cannot be told from these runs."
    )
    sections = make_sections(study)
    told = [each.name for each in sections if note in each.notes]
    assert told == ["effects", next(each.name for each in sections if name in each.question)]
    keys = "workload.wait, workload.interruptible, workload.jobs.startup_s, which vary together"
    assert f"6 h / never / 0.01667 h, 24 h / anywhere / 1 h ({keys})" in dict(facts(study))[name]
    # Named after its list of cases, where the experiment has one.
    manifest = json.loads((tmp_path / "manifest.json").read_text())
    manifest["experiment"] = (
        "[[cases.patience]]\nworkload.wait = '6h'\nworkload.interruptible = 'never'\n"
        "workload.jobs.startup_s = 60"
    )
    (tmp_path / "manifest.json").write_text(json.dumps(manifest))
    assert [axis.name for axis in read_study(tmp_path).axes][1] == "patience"


def test_runs_that_save_the_same_are_judged_by_what_differs(tmp_path: Path) -> None:
    write_study(tmp_path, **FEW, policies=["run_now"])
    path = tmp_path / "table.parquet"
    table = pl.read_parquet(path).with_columns(saving=pl.lit(0.0), utilisation=pl.lit(0.5))
    queues = {"fifo": 3.0, "priority": 2.0, "easy": 1.5}
    pl.concat(
        table.with_columns(
            pl.lit(name).alias("queue.name"),
            pl.col("id") + name,
            mean_wait_s=3600 * hours + pl.int_range(pl.len()),
        )
        for name, hours in queues.items()
    ).write_parquet(path)
    study = read_study(tmp_path)
    assert study.outcome.key == "mean_wait_s"
    sections = make_sections(study)
    said = answers(sections)
    assert said["policies"].startswith("Policy run_now comes to a mean wait of 2.17 h on average")
    note = "The saving is 0.0 % in every run, so they are judged by their mean wait."
    assert note in sections[0].notes
    assert said["by-1"] == (
        "The mean wait of policy run_now is highest with fifo (3.00 h) and lowest with easy "
        "(1.50 h)."
    )
    assert "frontier" not in figures(sections)
    # Where waits are the same too, the next that differs.
    pl.read_parquet(path).with_columns(
        mean_wait_s=pl.lit(7.0), mean_slowdown=1.0 + pl.int_range(pl.len())
    ).write_parquet(path)
    assert read_study(tmp_path).outcome.key == "mean_slowdown"
    same = pl.read_parquet(path).with_columns(mean_slowdown=pl.lit(1.0), carbon_g=pl.lit(3.0))
    same.write_parquet(path)
    assert (read_study(tmp_path).outcome.key, read_study(tmp_path).judged) == ("saving", "")


def test_significance_comes_with_its_size(tmp_path: Path) -> None:
    write_study(tmp_path, **FEW, policies=["exact", "oracle", "run_now"])
    path = tmp_path / "table.parquet"
    table = pl.read_parquet(path)
    best = dict(table.filter(pl.col("policy.name") == "exact").select("id", "saving").iter_rows())
    values = list(best.values())
    # A hair less in every single run, and a p value that says no more than that.
    hairs = iter(values[place] - 0.0003 for place in range(len(values)))
    table = table.with_columns(
        pl.Series(
            "saving",
            [
                next(hairs) if name == "oracle" else saving
                for name, saving in table.select("policy.name", "saving").iter_rows()
            ],
        )
    )
    table.write_parquet(path)
    study = read_study(tmp_path)
    near, far = compare(study, "exact")
    assert (near.counts, far.counts, near.practical) == (False, True, 0.1)
    said = answers(make_sections(study))
    assert (
        ", 0.03 points more than policy oracle, which is no practical difference;"
        in said["policies"]
    )
    assert said["paired"].startswith(
        "Policy oracle saves 0.03 points less than policy exact, and less in 8 of 8 pairs of runs: "
        "no practical difference; policy run_now saves 13.9 points less. Savings are against "
        "policy run_now. Nothing "
    )
    section = next(each for each in make_sections(study) if each.name == "paired")
    assert section.notes[-1].startswith(
        "A mean difference below 0.1 points counts as none in practice."
    )
    table_shown = next(part for part in section.parts if isinstance(part, Table))
    assert [row[-1] for row in table_shown.rows] == [
        "no practical difference",
        "differs in these runs",
    ]


def test_it_is_said_which_policy_saves_how_much_more_or_less(tmp_path: Path) -> None:
    study = read_study(write_study(tmp_path, **FEW, policies=["exact", "oracle", "run_now"]))
    better, worse = compare(study, "oracle")
    assert (better.policy, worse.policy) == ("exact", "run_now")
    said = comparison_answer(study, [worse, better])
    more, less = (abs(each.pairs.difference.value) for each in (better, worse))
    assert f"Policy run_now saves {less:.1f} points less than policy oracle" in said
    assert f"; policy exact saves {more:.1f} points more. Savings are against" in said
    assert "differ" not in said.partition("Savings")[0]
    # Of several, those on the same side are told in one go.
    several = replace(worse, policy="other")
    said = comparison_answer(study, [better, worse, several])
    assert f"; policies run_now and other save {less:.1f} points less." in said


def test_what_electricity_costs_has_its_currency(tmp_path: Path) -> None:
    path = write_study(tmp_path, **FEW, policies=["exact", "run_now"]) / "table.parquet"
    table = pl.read_parquet(path).with_columns(
        cost=pl.col("carbon_g") / 1000, currency=pl.lit("SEK")
    )
    table.write_parquet(path)
    sections = make_sections(read_study(tmp_path))
    first = next(each for each in sections if each.name == "policies")
    shown = next(part for part in first.parts if isinstance(part, Table))
    column = next(n for n, name in enumerate(shown.header) if "cost of electricity" in name)
    assert all("SEK" in row[column] for row in shown.rows)
    assert "cost of electricity, SEK" in json.dumps(figures(sections)["tradeoffs"].document)


@pytest.mark.parametrize(("kind", "unit"), [("price", "EUR/kWh"), ("average", "g/kWh")])
def test_jobs_that_save_nothing_cost_more_where_only_the_price_is_known(
    tmp_path: Path, kind: str, unit: str
) -> None:
    study = read_study(write_study(tmp_path, **FEW, policies=["exact", "run_now"]))
    workload = {
        "start": "2023-01-01T00:00Z",
        "duration": "1d",
        "arrivals": {"kind": "periodic", "period": "3h"},
        "lengths": "4h",
        "jobs": {"kind": "constant", "power_w": 300},
        "wait": "6h",
    }
    jobs = generate(workload, seed=0)
    signal = Signal.from_values(
        [30.0, 10.0] * 24, start=float(jobs.arrival.min()), step_s=3600, kind=kind, unit=unit
    )
    look = Closeup(row=0, setting="", simulations={"exact": simulate(jobs, signal)}, chosen=(0,))
    what, other = ("cost", "emit") if kind == "price" else ("emit", "cost")
    said = spread_answer(study, look)
    assert f"0.0 % {what} more than under policy run_now" in said
    assert other not in said


def test_savings_can_be_told_against_another_policy(tmp_path: Path) -> None:
    study = read_study(write_study(tmp_path, **FEW), baseline="oracle")
    numbers = {each["policy"]: each["saving"] for each in policy_numbers(study)}
    assert numbers["oracle"] == 0.0
    assert numbers["exact"] > 0 > numbers["run_now"]
    table = pl.read_parquet(tmp_path / "table.parquet")
    carbon = {
        name: table.filter(pl.col("policy.name") == name)["carbon_g"].to_numpy()
        for name in ("exact", "oracle")
    }
    wanted = (1 - carbon["exact"] / carbon["oracle"]).mean()
    assert numbers["exact"] == pytest.approx(wanted)


def test_policies_that_come_to_the_same_are_told_as_such(tmp_path: Path) -> None:
    write_study(tmp_path, **FEW)
    path = tmp_path / "table.parquet"
    table = pl.read_parquet(path)
    twin = table.filter(pl.col("policy.name") == "exact").with_columns(
        pl.lit("twin").alias("policy.name"), pl.col("id") + "twin"
    )
    pl.concat([twin.cast(dict(table.schema)), table]).write_parquet(path)
    study = read_study(tmp_path)
    assert study.ranking[:2] == ["twin", "exact"]
    said = answers(make_sections(study))
    assert ", as does policy exact; its jobs wait" in said["policies"]
    assert said["paired"].startswith("Policy oracle saves ")
    assert "; policy exact came to the same as policy twin in every pair of runs." in said["paired"]
    assert said["lead"].startswith("The lead of policy twin over policy oracle is largest")


def test_runs_that_are_gone_are_told_and_the_rest_stands(tmp_path: Path) -> None:
    study = read_study(write_study(tmp_path, **FEW))
    (tmp_path / "runs" / f"{study.runs['id'][choose_row(study)]}.json").unlink()
    sections = make_sections(study)
    assert answers(sections)["run"].startswith("Left out, as the run cannot be simulated again")
    assert "frontier" in figures(sections)
    with pytest.raises(FileProblem):
        run_parameters(study, choose_row(study))


def test_input_files_that_are_gone_are_told(tmp_path: Path) -> None:
    study = read_study(write_study(tmp_path, **FEW))
    for path in (tmp_path / "runs").iterdir():
        record = json.loads(path.read_text())
        record["parameters"]["grid"] = {"file": str(tmp_path / "gone.csv")}
        path.write_text(json.dumps(record))
    assert "gone.csv" in answers(make_sections(study))["run"]


def test_a_study_without_a_manifest_says_so(tmp_path: Path) -> None:
    write_study(tmp_path, **FEW)
    (tmp_path / "manifest.json").unlink()
    said = answers(make_sections(read_study(tmp_path)))
    assert said["manifest"] == "That is not known: the folder has no manifest.json."


def test_small_numbers_are_told_apart() -> None:
    assert [format_p(p) for p in (None, 0.2, 0.0421, 1e-9)] == ["---", "0.2", "0.042", "< 0.001"]


# What is refused.


def test_a_folder_without_a_table_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(FileProblem, match=r"has no table of runs .* run `lowtide sweep"):
        read_study(tmp_path)
    with pytest.raises(FileProblem, match="is no folder"):
        read_study(tmp_path / "nowhere")
    (tmp_path / "table.parquet").write_text("no parquet")
    with pytest.raises(FormatError, match="not a table of runs"):
        read_study(tmp_path)
    pl.DataFrame({"a": [1]}).write_parquet(tmp_path / "table.parquet")
    with pytest.raises(FormatError, match="no id, status and reason"):
        read_study(tmp_path)


def test_a_study_of_failures_is_refused_with_the_first_reason(tmp_path: Path) -> None:
    write_study(tmp_path, **FEW, failures=dict.fromkeys(range(40), "no such zone"))
    with pytest.raises(InvalidInput, match="40 runs failed; the first because: no such zone"):
        read_study(tmp_path)


def test_an_unknown_baseline_names_the_nearest(study: Study) -> None:
    with pytest.raises(UnknownName, match="did you mean 'oracle'"):
        read_study(study.folder, baseline="orakle")


@pytest.mark.parametrize(
    ("asked", "told"),
    [
        ({"figure": []}, "did you mean 'figures'"),
        ({"figures": {}}, "are tables"),
        ({"figures": [{"y": "workload.wait"}]}, "unknown key of"),
        ({"figures": [{"x": "workload.wait", "colour": "policy"}]}, "did you mean 'color'"),
        ({"figures": [{"x": "workload.waits"}]}, "did you mean 'workload.wait'"),
        ({"figures": [{"x": "workload.wait", "value": "carbon"}]}, "did you mean 'carbon_g'"),
        ({"figures": [{"color": "policy"}]}, "needs x"),
        ({"figures": [{"x": "workload.wait", "over": "orakle"}]}, "did you mean 'oracle'"),
        ({"figures": [{"x": "workload.wait", "policy": "exakt"}]}, "did you mean 'exact'"),
        ({"figures": [{"x": "workload.wait", "where": 3}]}, "is a table of keys and lists"),
        (
            {"figures": [{"x": "workload.wait", "where": {"workload.wiat": ["6h"]}}]},
            "did you mean 'workload.wait'",
        ),
        (
            {"figures": [{"x": "workload.wait", "where": {"workload.wait": ["7h"]}}]},
            "or none is left by where",
        ),
    ],
)
def test_figures_that_make_no_sense_are_refused(
    tmp_path: Path, asked: dict[str, Any], told: str
) -> None:
    study = read_study(write_study(tmp_path, **FEW, report=asked))
    with pytest.raises((UnknownName, InvalidInput), match=told):
        make_sections(study)


def test_figures_of_the_experiment_are_drawn(tmp_path: Path) -> None:
    asked = [
        {"x": "policy", "value": "p95_wait_s", "title": "Who waits"},
        {"x": "workload.wait", "color": "grid.synthetic", "facet": "policy.name"},
    ]
    drawn = figures(
        make_sections(read_study(write_study(tmp_path, **FEW, report={"figures": asked})))
    )
    assert drawn["extra-1"].document["title"]["text"] == ["Who waits"]
    assert {row["policy"] for row in drawn["extra-1"].tables["rows"]} == set(POLICIES)
    assert len(drawn["extra-2"].tables["rows"]) == 2 * 2 * 5


def test_figures_may_set_one_policy_beside_another(tmp_path: Path) -> None:
    asked = {
        "x": "workload.wait",
        "color": "grid.synthetic",
        "policy": "oracle",
        "over": "exact",
        "where": {"grid": {"synthetic": ["sunny"]}},
    }
    write_study(tmp_path, **FEW, report={"figures": [asked]})
    section = next(each for each in make_sections(read_study(tmp_path)) if each.name == "extras")
    figure, shown = section.parts
    assert isinstance(figure, Figure)
    assert isinstance(shown, Table)
    table = pl.read_parquet(tmp_path / "table.parquet").filter(pl.col("grid.synthetic") == "sunny")
    for row, wait in zip(figure.tables["pairs"], ("6h", "24h"), strict=True):
        found = {
            name: 100
            * table.filter((pl.col("workload.wait") == wait) & (pl.col("policy.name") == name))[
                "saving"
            ].to_numpy()
            for name in ("exact", "oracle")
        }
        difference = found["oracle"] - found["exact"]
        assert row["mean"] == pytest.approx(difference.mean())
        assert (row["worst"], row["best"]) == pytest.approx((difference.min(), difference.max()))
        assert (row["pairs"], row["worse"], row["worse by 0.1"]) == (2, 1.0, 1.0)
    assert [row[:2] for row in shown.rows] == [["6 h", "sunny"], ["24 h", "sunny"]]
    assert shown.header[-1] == "worse by more than 0.1 points"


# What a run looks like on machines.


def test_a_run_on_machines_shows_its_nodes_and_their_use(tmp_path: Path) -> None:
    one = {"grids": ["sunny"], "waits": ["6h"], "lengths": ["4h"], "seeds": [0]}
    write_study(tmp_path, **one, policies=["run_now", "oracle"])
    for path in (tmp_path / "runs").iterdir():
        record = json.loads(path.read_text())
        machines = {"nodes": 2, "cpus_per_node": 1, "idle_power_w": 50, "peak_power_w": 400}
        record["parameters"]["cluster"] = machines
        path.write_text(json.dumps(record))
    drawn = figures(make_sections(read_study(tmp_path)))
    rows = drawn["over-time"].tables["rows"]
    assert {row["policy"] for row in rows} == {"run_now", "oracle"}
    # Jobs are counted whole.
    assert all(row["queue"] == round(row["queue"]) for row in rows)
    assert max(row["queue"] for row in rows) >= 1
    assert all(0 <= row["use"] <= 100 + 1e-9 for row in rows)
    assert max(row["use"] for row in rows) > 0
    assert all(0 <= row["nodes"] <= row["power"] + 1e-9 for row in rows)
    assert max(row["nodes"] for row in rows) > 0
    # Of nodes that draw nothing of their own there is nothing to see.
    for path in (tmp_path / "runs").iterdir():
        record = json.loads(path.read_text())
        record["parameters"]["cluster"] = {"nodes": 2, "cpus_per_node": 1}
        path.write_text(json.dumps(record))
    figure = figures(make_sections(read_study(tmp_path)))["over-time"]
    assert "nodes" not in figure.tables["rows"][0]
    assert "power of nodes alone" not in json.dumps(figure.document)


def test_cumulative_carbon_ends_at_what_the_jobs_came_to(study: Study, report: Report) -> None:
    from lowtide.studies.run import simulate_run

    look = look_closely(study, lambda every: [simulate_run(each) for each in every])
    rows = figures(report.sections)["cumulative"].tables["rows"]
    for name, simulation in look.simulations.items():
        sums = [row["amount"] for row in rows if row["policy"] == name]
        assert sums == sorted(sums)
        assert simulation.tally.carbon_g is not None
        assert sums[-1] == pytest.approx(simulation.tally.carbon_g.sum() / 1000)


def test_a_baseline_that_no_run_is_of_is_drawn_beside_the_others(tmp_path: Path) -> None:
    one = {"grids": ["sunny"], "waits": ["6h"], "lengths": ["4h"], "seeds": [0]}
    drawn = figures(make_sections(read_study(write_study(tmp_path, **one, policies=["exact"]))))
    assert {row["policy"] for row in drawn["cumulative"].tables["rows"]} == {"exact", "run_now"}
    assert any(row["kind"] == "under run_now" for row in drawn["jobs"].tables["rows"])


def test_no_figure_has_a_scale_without_numbers(report: Report, tmp_path: Path) -> None:
    # The renderer warns of fields without extent, and of charts whose own data went missing.
    few = make_sections(read_study(write_study(tmp_path, **FEW, seeds=[0])))
    for figure in [*figures(report.sections).values(), *figures(few).values()]:
        text = json.dumps({**figure.document, "datasets": {}})
        rows = figure.tables["rows"]
        for field in ("low", "wait low", "least"):
            if f'"field": "{field}"' in text and f'"x": {{"field": "{field}"' in text:
                assert any(row[field] is not None for row in rows), figure.name
        named = set(re.findall(r'"data": \{"name": "([^"]+)"', text))
        assert named <= set(figure.document["datasets"]), figure.name


def test_titles_say_what_whose_where_and_when(report: Report) -> None:
    for figure in figures(report.sections).values():
        title = figure.document["title"]
        assert any("sunny, windy, nuclear, coal" in line for line in title["subtitle"])
    drawn = figures(report.sections)
    for name in ("jobs", "over-time", "cumulative"):
        assert re.search(r"2023-07-\d\d", " ".join(drawn[name].document["title"]["text"]))


# From the command line.


def test_the_verb_writes_and_tells(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    answer = run(capsys, "report", str(folder), "--no-figures", "-o", str(folder / "page.html"))
    assert (answer.code, answer.err) == (0, "")
    assert "A made-up study: 958 runs, 2 more failed, synthetic grids." in answer.out
    assert "Policy exact saves 13." in answer.out
    assert str(folder / "page.html") in answer.out
    assert "figures:" not in answer.out
    assert (folder / "page.html").is_file()


def test_the_verb_puts_figures_where_it_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_study(tmp_path / "s", **FEW)
    words = ("report", str(tmp_path / "s"), "--figures", str(tmp_path / "f"), "--json")
    document = json.loads(run(capsys, *words).out)
    assert {Path(path).parent for path in document["figures"]} == {tmp_path / "f"}
    assert document["policies"][0]["policy"] == "exact"
    assert (document["runs"], document["failed"]) == (40, 0)
    assert document["answers"][0]["answer"].startswith("Policy exact saves")
    assert 'href="../f/frontier.svg"' in Path(document["report"]).read_text()


def test_the_verb_refuses_in_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_study(tmp_path / "s", **FEW)
    for words, told in (
        (("report", str(tmp_path)), "run `lowtide sweep"),
        (("report", str(tmp_path / "s"), "--baseline", "exakt"), "did you mean 'exact'"),
        (("report", str(tmp_path / "s"), "--no-figures", "--figures", "f"), "exclude each other"),
    ):
        answer = run(capsys, *words)
        assert answer.code == 2
        assert told in answer.err
        assert answer.err.count("\n") == 1


def test_several_processes_give_the_same(tmp_path: Path, study: Study) -> None:
    one = {"grids": ["sunny"], "waits": ["6h"], "lengths": ["4h"], "policies": ["run_now", "exact"]}
    small = read_study(write_study(tmp_path, **one, seeds=[0]))
    alone = write_study_report(small, tmp_path / "a.html", figures=tmp_path / "a")
    beside = write_study_report(small, tmp_path / "b.html", figures=tmp_path / "b", workers=2)
    for first, second in zip(alone.figures, beside.figures, strict=True):
        assert first.read_bytes() == second.read_bytes()
