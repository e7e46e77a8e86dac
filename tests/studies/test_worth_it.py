"""The flagship study: no run of it fails, and none of its jobs is anything but what is said."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lowtide.formats import read_signal
from lowtide.studies.engines import Local
from lowtide.studies.experiment import Experiment
from lowtide.studies.folder import sweep
from lowtide.studies.report import make_sections
from lowtide.studies.run import run_row
from lowtide.studies.settings import flatten
from lowtide.studies.study import read_study
from lowtide.units import parse_duration
from lowtide.workloads import generate

# Of everything but places, what reaches furthest into the future.
LONGEST: dict[str, Any] = {
    "workload.wait": "96h",
    "workload.jobs.startup_share": 0.1,
    "workload.jobs.high_w": 480,
    "workload.jobs.low_w": 60,
    "workload.jobs.high_s": "2h",
    "workload.jobs.low_s": "2h",
    "workload.interruptible": "checkpoints",
    "workload.jobs.checkpoint_every_s": "8h",
    "policy.name": "oracle",
    "policy.knows_phases": True,
}


@pytest.fixture
def file(root: Path) -> Path:
    return root / "examples" / "worth-it.toml"


def load(file: Path, data: Path | None, **options: Any) -> Experiment:
    longest = "7d" if options["full"] else "64h"
    settings = {**LONGEST, "workload.lengths": longest, **options.pop("settings", {})}
    return Experiment.load(file, data=data, settings=settings, **options)


@pytest.mark.parametrize("full", [False, True])
def test_every_place_has_data_for_its_longest_jobs(file: Path, full: bool, data: Any) -> None:
    experiment = load(file, data("carbon").parent, full=full)
    runs = list(experiment.runs())
    places = [(run.shown["grid"]["zone"], run.shown["grid"]["start"]) for run in runs]
    assert len({*places}) == len(places) == (34 if full else 4)
    for run in runs:
        assert run_row(run.parameters)["saving"] >= 0
    if full:
        zones = {zone for zone, _ in places}
        assert len(zones) == 10
        # A season is left out only where a file does not have it.
        for zone in zones:
            signal = read_signal(data(f"carbon/{zone}.csv"))
            starts = {start for name, start in places if name == zone}
            assert len(starts) == (4 if signal.end - signal.start > 300 * 86_400 else 1)


@pytest.mark.parametrize("full", [False, True])
def test_every_place_has_a_grid_without_data(
    file: Path, full: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("LOWTIDE_DATA", raising=False)
    runs = list(load(file, None, full=full).runs())
    assert len(runs) == (16 if full else 4)
    assert {run.shown["grid"]["synthetic"] for run in runs} == {"sunny", "windy", "nuclear", "coal"}
    for run in runs:
        assert run_row(run.parameters)["saving"] >= 0


def test_every_dimension_is_free_of_the_others(file: Path, data: Any) -> None:
    experiment = Experiment.load(file, full=True, data=data("carbon").parent)
    settings = [flatten({**case}) for case in experiment.cases]
    levels = {
        key: {str(case.get(key)) for case in settings}
        for key in (
            "workload.jobs.high_w",
            "workload.jobs.high_s",
            "workload.jobs.checkpoint_every_s",
        )
    }
    places = {(case["grid.zone"], case["grid.start"]) for case in settings}
    assert len(settings) == len(places) * np.prod([len(each) for each in levels.values()])
    assert {key: len(values) for key, values in experiment.sweep.items()} == {
        "workload.lengths": 5,
        "workload.wait": 3,
        "workload.jobs.startup_share": 3,
        "policy.name": 2,
        "policy.knows_phases": 2,
    }


def test_jobs_are_as_long_as_said_and_come_at_all_hours(file: Path, data: Any) -> None:
    experiment = Experiment.load(file, full=True, data=data("carbon").parent)
    hours: set[float] = set()
    for length in experiment.sweep["workload.lengths"]:
        run = next(
            load(
                file,
                data("carbon").parent,
                full=True,
                settings={"workload.lengths": length},
            ).runs()
        )
        jobs = generate({**run.parameters["workload"], "start": "2022-03-01T00:00Z"}, seed=0)
        assert len(jobs) == 8
        assert np.all(jobs.work_s == parse_duration(length))
        assert np.allclose(jobs.startup_s, 0.1 * parse_duration(length))
        hours = {*(jobs.arrival % 86_400 // 3600).tolist()}
    # No four hours of a day without an arrival.
    assert np.diff([*sorted(hours), min(hours) + 24]).max() <= 4


def test_a_part_of_it_runs_and_is_reported_without_data(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("LOWTIDE_DATA", raising=False)
    few = {"workload.wait": "24h", "workload.jobs.startup_share": 0.025, "workload.lengths": "16h"}
    experiment = Experiment.load(file, settings=few)
    table = sweep(experiment, tmp_path, engine=Local(workers=1))
    assert set(table["status"]) == {"done"}
    study = read_study(tmp_path)
    assert [axis.name for axis in study.axes] == ["synthetic grid", "contrast", "phases", "stops"]
    sections = make_sections(study)
    assert [each.name for each in sections if each.name == "extras"] == ["extras"]
    saving = dict(
        zip(zip(study.policies, study.settings, strict=True), study.outcomes, strict=True)
    )
    for (policy, setting), value in saving.items():
        # Whoever may stop, and whoever knows more, never does worse.
        assert saving["exact", setting] >= value - 1e-9
        if policy == "oracle (phases unknown)":
            assert saving["oracle", setting] >= value - 1e-9
