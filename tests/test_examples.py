"""Every example runs as it stands and says something."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from lowtide.studies.experiment import Experiment
from lowtide.studies.run import run_row

FOLDER = Path(__file__).parents[1] / "examples"
EXAMPLES = sorted(path.name for path in FOLDER.glob("*.py"))
LONGEST = 40


def test_there_are_examples() -> None:
    assert EXAMPLES


@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_runs(name: str, tmp_path: Path) -> None:
    environment = {key: value for key, value in os.environ.items() if key != "LOWTIDE_DATA"}
    done = subprocess.run(
        [sys.executable, "-W", "error", str(FOLDER / name)],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()
    assert not done.stderr


@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_is_short(name: str) -> None:
    assert len((FOLDER / name).read_text(encoding="utf-8").splitlines()) <= LONGEST


# Where a queue is planned anew at every hour, a run takes a second.
FEWEST = {"limited-machines.toml": 100}
EXPERIMENTS = sorted(path.name for path in FOLDER.glob("*.toml"))


@pytest.mark.parametrize("full", [False, True])
@pytest.mark.parametrize("name", EXPERIMENTS)
def test_an_experiment_runs_without_data(
    name: str, full: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("LOWTIDE_DATA", raising=False)
    experiment = Experiment.load(FOLDER / name, full=full)
    assert len(experiment) >= FEWEST.get(name, 500)
    row = run_row(next(experiment.runs()).parameters)
    assert row["deadline_misses"] == 0
    assert row["synthetic"]


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_an_experiment_runs_on_real_zones(name: str, data) -> None:
    experiment = Experiment.load(FOLDER / name, data=data("carbon").parent)
    row = run_row(next(experiment.runs()).parameters)
    assert not row["synthetic"]
    assert 0 <= row["saving"] < 1
