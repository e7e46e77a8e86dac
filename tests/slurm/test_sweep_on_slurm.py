"""Sweeps on a real Slurm: started for these tests, on loopback, and ended after them."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import dask
import polars as pl
import pytest

from lowtide.errors import InvalidInput
from lowtide.studies.dask import OnSlurm
from lowtide.studies.engines import Outcome, Task
from support.commands import run
from support.slurm import ask
from support.stand_ins import squares

pytestmark = [pytest.mark.alone, pytest.mark.slurm]

EXPERIMENT = """
[grid]
synthetic = "windy"
days = 6

[workload]
scenario = "nightly"
duration = "3d"

[sweep]
policy.name = ["lowest_slot", "exact"]
run.seed = [1, 2, 3, 4, 5]
"""


@pytest.fixture(autouse=True)
def inside(
    slurm: dict[str, str], tmp_path: Path, root: Path, monkeypatch: pytest.MonkeyPatch
) -> dict[str, str]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("LOWTIDE_DATA", raising=False)
    for name, value in slurm.items():
        monkeypatch.setenv(name, value)
    # Jobs inherit the environment: workers find the stand-ins there.
    paths = [str(root / "tests"), os.environ.get("PYTHONPATH", "")]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(path for path in paths if path))
    return slurm


def test_slurm_gives_the_same_table_as_processes(
    slurm: dict[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    Path("exp.toml").write_text(EXPERIMENT)
    assert run(capsys, "sweep", "exp.toml", "-j", "1", "-o", "here").code == 0
    slurm_options = ("host=127.0.0.1", "memory=1GB", "walltime=00:05:00", "queue=main")
    words = [word for each in slurm_options for word in ("--slurm", each)]
    before = signal.getsignal(signal.SIGINT)
    told = run(capsys, "sweep", "exp.toml", "-j", "2", "-o", "there", "--engine", "slurm", *words)
    assert (told.code, told.err) == (0, "")
    tables = [pl.read_parquet(f"{name}/table.parquet") for name in ("here", "there")]
    here, there = (table.drop("wall_s", "attempts") for table in tables)
    assert here.height == 10
    assert here.equals(there)
    # No job, no key and no log is left, and Ctrl-C is what it was.
    assert ask(slurm, "squeue", "-h", "-t", "PENDING,RUNNING") == ""
    assert {path.name for path in Path("there").iterdir()} == {
        *(".lock", "blocks.parquet", "manifest.json", "runs", "table.parquet")
    }
    assert signal.getsignal(signal.SIGINT) == before


def test_a_job_that_is_cancelled_is_replaced(slurm: dict[str, str]) -> None:
    tasks = [task(seed) for seed in range(40)]
    engine = OnSlurm(workers=1, host="127.0.0.1", memory="1GB")
    told: list[Outcome] = []
    # A job is taken for lost after 15 s by default, so that workers may be started again in it.
    with dask.config.set({"distributed.deploy.lost-worker-timeout": "2s"}):
        for outcome in engine.run(squares, tasks):
            told.append(outcome)
            if len(told) == 1:
                ask(slurm, "scancel", *ask(slurm, "squeue", "-h", "-o", "%i").split())
    assert sorted(int(each.id) for each in told) == list(range(40))
    assert all(each.row is not None for each in told)


def task(seed: int, **workload: Any) -> Task:
    return Task(str(seed), {"run": {"seed": seed}, "workload": workload})


def test_what_slurm_refuses_is_told_at_once() -> None:
    engine = OnSlurm(workers=1, host="127.0.0.1", queue="nowhere")
    with pytest.raises(InvalidInput, match="invalid partition specified: nowhere"):
        list(engine.run(squares, [task(1)]))
