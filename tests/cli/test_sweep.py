"""`lowtide simulate` and `lowtide sweep`: what they say, refuse, and survive."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from lowtide.experiments.experiment import Experiment
from support.commands import run

EXPERIMENT = """
title = "Nights"

[grid]
synthetic = "windy"
days = 6

[workload]
scenario = "nightly"
duration = "3d"

[sweep]
policy.name = ["lowest_slot", "exact"]
run.seed = [1, 2, 3]
"""
# What may differ between two sweeps of the same.
CLOCKS = ("wall_s", "attempts")


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("LOWTIDE_DATA", raising=False)
    (tmp_path / "exp.toml").write_text(EXPERIMENT)
    return tmp_path


def table(folder: str) -> pl.DataFrame:
    return pl.read_parquet(Path(folder) / "table.parquet").drop(CLOCKS)


def test_simulate_tells_of_one_run(capsys: pytest.CaptureFixture[str]) -> None:
    words = ("simulate", "exp.toml", "--set", "policy.name=exact", "--set", "run.seed=1")
    told = run(capsys, *words)
    assert (told.code, told.err) == (0, "")
    assert "3 jobs by exact" in told.out
    assert "the grid is synthetic" in told.out
    for what in ("missed deadlines", "CO2e", "saving", "wait", "slowdown"):
        assert what in told.out
    assert "machines" not in told.out
    document = json.loads(run(capsys, *words, "--json").out)
    assert document["parameters"]["policy"] == {"name": "exact"}
    assert document["synthetic"] is True
    assert document["deadline_misses"] == 0
    assert 0 < document["saving"] < 1


def test_simulate_shows_machines_where_there_are_some(capsys: pytest.CaptureFixture[str]) -> None:
    words = ("simulate", "exp.toml", "--set", "policy.name=lowest_slot", "--set", "run.seed=1")
    cluster = ("--set", "cluster.nodes=1", "--set", "cluster.cpus_per_node=4")
    told = run(capsys, *words, *cluster, "--set", "cluster.idle_power_w=50")
    assert told.code == 0, told.err
    assert "utilisation" in told.out
    assert "queue fifo" in told.out


def test_the_example_of_a_large_sweep_runs(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = root / "examples" / "policies-by-zone.toml"
    experiment = Experiment.load(file)
    assert len(experiment) >= 500
    assert len(Experiment.load(file, full=True)) == 3 * len(experiment)
    # One combination of each policy; the whole is for people with a minute or two to spare.
    first = {key: values[0] for key, values in experiment.sweep.items()}
    words = [word for key, value in first.items() for word in ("--set", f"{key}={value}")]
    told = run(capsys, "sweep", str(file), "-j", "1", "-o", "out", *words)
    assert told.code == 0, told.out
    assert table("out")["policy.name"].to_list()[-1] == "exact"
    assert table("out").filter(pl.col("deadline_misses") > 0).height == 0


@pytest.mark.parametrize("name", ["jobs.parquet", "jobs.csv"])
def test_simulate_writes_every_job(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    words = ("simulate", "exp.toml", "--set", "policy.name=exact", "--set", "run.seed=1")
    assert run(capsys, *words, "--jobs-table", name).code == 0
    jobs = pl.read_csv(name) if name.endswith("csv") else pl.read_parquet(name)
    assert jobs.height == 3
    assert {"id", "carbon_g", "wait_s", "starts"} <= set(jobs.columns)


def test_simulate_repeats_the_signal_where_it_is_told_to(
    capsys: pytest.CaptureFixture[str],
) -> None:
    words = ("simulate", "exp.toml", "--set", "policy.name=exact", "--set", "run.seed=1")
    short = (*words, "--set", "grid.days=2")
    refused = run(capsys, *short)
    assert refused.code == 2
    assert "longer" in refused.err
    assert run(capsys, *short, "--repeat-signal").code == 0


def test_a_sweep_tells_how_many_where_and_what_next(capsys: pytest.CaptureFixture[str]) -> None:
    told = run(capsys, "sweep", "exp.toml", "-j", "1", "-o", "out")
    assert (told.code, told.err) == (0, "")
    assert "Nights: 6 runs over policy.name (2), run.seed (3)" in told.out
    assert "6 done, 0 failed; 6 run now" in told.out
    assert "lowtide report out" in told.out
    again = run(capsys, "sweep", "exp.toml", "-j", "1", "-o", "out")
    assert "6 of them done before" in again.out
    assert "0 run now" in again.out
    changed = run(capsys, "sweep", "exp.toml", "-j", "1", "-o", "out", "--set", "grid.seed=7")
    assert "out has 6 runs of another experiment" in changed.out
    assert table("out").height == 6


def test_results_go_beside_by_default(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(capsys, "sweep", "exp.toml", "-j", "1").code == 0
    assert table("exp-results").height == 6


def test_failures_are_told_and_end_in_1(capsys: pytest.CaptureFixture[str]) -> None:
    # Six hours at 1 o'clock of the last night: some policies need the signal for longer.
    words = ("sweep", "exp.toml", "-j", "1", "-o", "out", "--set", "grid.days=2")
    told = run(capsys, *words)
    assert told.code == 1
    assert "6 runs failed (--retry-failed runs them again)" in told.out
    assert "6 × the signal ends" in told.out
    assert "0 run now" in run(capsys, *words).out
    assert "6 run now" in run(capsys, *words, "--retry-failed").out
    document = json.loads(run(capsys, *words, "--json").out)
    assert (document["failed"], document["done"], list(document["reasons"].values())) == (6, 0, [6])


def test_dask_gives_the_same_table_as_processes(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(capsys, "sweep", "exp.toml", "-j", "1", "-o", "one").code == 0
    told = run(capsys, "sweep", "exp.toml", "-j", "2", "-o", "two", "--engine", "dask")
    assert (told.code, told.err) == (0, "")
    assert table("one").equals(table("two"))
    assert json.loads(Path("two/manifest.json").read_text())["engine"] == "dask"


def test_a_large_sweep_is_asked_about(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    seeds = ", ".join(str(seed) for seed in range(1001))
    text = EXPERIMENT.replace("[1, 2, 3]", f"[{seeds}]")
    Path("exp.toml").write_text(text)
    told = run(capsys, "sweep", "exp.toml", "-o", "out")
    assert told.code == 2
    assert "2,002 runs may take about" in told.err
    assert "say --yes" in told.err
    # Nothing was begun, and nothing is left behind.
    assert not Path("out").exists()
    monkeypatch.setattr(sys.modules["lowtide.cli.sweep"], "MOST_RUNS", 4)
    assert run(capsys, "sweep", "exp.toml", "-o", "out", "--set", "run.seed=1").code == 0
    Path("exp.toml").write_text(EXPERIMENT)
    assert run(capsys, "sweep", "exp.toml", "-j", "1", "-o", "out", "--yes").code == 0


def test_a_large_sweep_whose_first_run_fails_is_refused(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.modules["lowtide.cli.sweep"], "MOST_RUNS", 4)
    told = run(capsys, "sweep", "exp.toml", "--set", "grid.days=2")
    assert told.code == 2
    assert "the first of 6 runs fails: the signal ends" in told.err


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("simulate", "exp.toml"), "describes 6 runs: choose one with --set KEY=VALUE"),
        (("simulate", "exp.toml"), "policy.name (lowest_slot, exact); run.seed (1, 2, 3)"),
        (("simulate", "exp.toml", "--jobs-table", "jobs.xls"), ".parquet or .csv file"),
        (("simulate", "nowhere.toml"), "no such file"),
        (("sweep", "exp.toml", "--set", "policy.name"), "--set takes KEY=VALUE"),
        (("sweep", "exp.toml", "--set", "polcy.name=a"), "did you mean 'policy'?"),
        (("sweep", "exp.toml", "--set", "grid.syntetic=coal"), "did you mean 'synthetic'?"),
        (("sweep", "exp.toml", "--set", "grid.synthetic=cole"), "did you mean 'coal'?"),
        (("sweep", "exp.toml", "--set", "policy.name=exakt"), "did you mean 'exact'?"),
        (("sweep", "exp.toml", "--set", "policy.stp_s=1"), "takes no stp_s"),
        (("sweep", "exp.toml", "--set", "workload.wiat=1"), "did you mean 'wait'?"),
        (("sweep", "exp.toml", "--set", "cluster.node=1"), "did you mean 'nodes'?"),
        (("sweep", "exp.toml", "--set", "cluster.nodes=1"), "[cluster] needs cpus_per_node"),
        (("sweep", "exp.toml", "--set", "queue.name=fif"), "did you mean 'fifo'?"),
        (("sweep", "exp.toml", "--set", "forecast.kind=x"), "known are lead_scaled"),
        (("sweep", "exp.toml", "--set", "forecast.relative_eror=1"), "relative_error"),
        (("sweep", "exp.toml", "--set", "run.baseline=runnow"), "did you mean 'run_now'?"),
        (("sweep", "exp.toml", "--set", "grid.how.tz=UTC"), "grid.how is for a file"),
        (("sweep", "exp.toml", "--set", "grid.zone=DE"), "--data DIR or LOWTIDE_DATA"),
        (("sweep", "exp.toml", "--data", "."), "has no folder carbon"),
        (("sweep", "exp.toml", "--full"), "there is no [full]"),
        (("sweep", "exp.toml", "--engine", "slrm"), "did you mean 'slurm'?"),
        (("sweep", "exp.toml", "--address", "tcp://x:1"), "--address is for --engine dask"),
        (("sweep", "exp.toml", "--slurm", "cores"), "--slurm takes KEY=VALUE"),
        (("sweep", "exp.toml", "-o", "exp.toml"), "is a file"),
        (("sweep", "exp.toml", "-o", "."), "holds other things than the results of a sweep"),
    ],
)
def test_bad_input_teaches(
    words: tuple[str, ...], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    told = run(capsys, *words)
    assert told.code == 2
    assert says in told.err
    assert told.out == ""
    assert told.err.startswith("lowtide: ")
    assert "Traceback" not in told.err


def test_a_full_disk_says_how_to_go_on(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from lowtide import files
    from lowtide.errors import FileProblem

    write_whole = files.write_whole

    def full(path: Path | str, content: str | bytes, **options: Any) -> None:
        if Path(path).parent.name == "runs" and len(list(Path("out").glob("runs/*"))) == 2:
            raise FileProblem(f"cannot write {path}: No space left on device", path=path)
        write_whole(path, content, **options)

    monkeypatch.setattr(files, "write_whole", full)
    told = run(capsys, "sweep", "exp.toml", "-j", "1", "-o", "out")
    assert told.code == 2
    assert "No space left on device; 2 of 6 runs are kept in out" in told.err
    assert "`lowtide sweep exp.toml -o out` continues" in told.err


def start_sweep(*words: str) -> subprocess.Popen[str]:
    command = [str(Path(sys.executable).with_name("lowtide")), "sweep", "exp.toml", *words]
    return subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def wait_until(there: Callable[[], bool], what: str) -> None:
    end = time.monotonic() + 120
    while not there():
        assert time.monotonic() < end, f"no {what} after two minutes"
        time.sleep(0.01)


def count(runs: Path) -> int:
    return len(list(runs.glob("*.json")))


def stamps(folder: str) -> dict[str, tuple[int, str]]:
    files = Path(folder).glob("runs/*.json")
    return {each.name: (each.stat().st_mtime_ns, each.read_text()) for each in files}


def test_a_sweep_that_is_interrupted_and_killed_goes_on_where_it_was(
    capsys: pytest.CaptureFixture[str],
) -> None:
    seeds = ", ".join(str(seed) for seed in range(260))
    Path("exp.toml").write_text(EXPERIMENT.replace("[1, 2, 3]", f"[{seeds}]"))
    runs = Path("out/runs")

    first = start_sweep("-j", "2", "-o", "out")
    wait_until(lambda: count(runs) > 100, "100 runs")
    # A terminal's Ctrl-C goes to the workers too.
    os.killpg(first.pid, signal.SIGINT)
    _, said = first.communicate(timeout=60)
    assert first.returncode == 130, said
    interrupted = stamps("out")
    assert said == (
        f"lowtide: interrupted: {len(interrupted)} of 520 runs are kept in out, and "
        "`lowtide sweep exp.toml -o out` continues\n"
    )
    assert 100 < len(interrupted) < 450
    assert table("out").height == len(interrupted)
    assert json.loads(Path("out/manifest.json").read_text())["ended"] is None

    second = start_sweep("-j", "2", "-o", "out")
    wait_until(lambda: count(runs) > len(interrupted) + 100, "100 more runs")
    children = Path(f"/proc/{second.pid}/task/{second.pid}/children").read_text().split()
    second.kill()
    second.communicate(timeout=60)
    killed = stamps("out")
    assert interrupted.items() <= killed.items()
    assert len(killed) < 520
    # Workers notice that nobody is left to tell.
    wait_until(lambda: not any(is_at_work(pid) for pid in children), "end of its workers")

    third = run(capsys, "sweep", "exp.toml", "-j", "1", "-o", "out")
    assert third.code == 0
    assert f"{len(killed)} of them done before" in third.out
    finished = stamps("out")
    assert killed.items() <= finished.items()
    assert len(finished) == 520
    assert not list(runs.glob(".*.json"))

    assert run(capsys, "sweep", "exp.toml", "-j", "1", "-o", "whole").code == 0
    assert table("out").equals(table("whole"))


def is_at_work(pid: str) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False
