"""`lowtide simulate` and `lowtide sweep`: what they say, refuse, and survive."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from lowtide.studies.experiment import Experiment
from lowtide.units import format_percent
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
CLUSTER = ("sweep", "exp.toml", "--set", "cluster.nodes=1", "--set", "cluster.cpus_per_node=2")


def EXACT_WITH(setting: str) -> tuple[str, ...]:  # noqa: N802 - a constant but for its setting
    return ("sweep", "exp.toml", "--set", "policy.name=exact", "--set", setting)


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
    words = ("sweep", "exp.toml", "-j", "1", "-o", "out")
    fewer = run(capsys, *words, "--set", "policy.name=exact")
    assert "out has 3 runs of this experiment before it was changed" in fewer.out
    assert table("out").height == 3


def test_a_folder_of_another_experiment_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    words = ("sweep", "exp.toml", "-j", "1", "-o", "out")
    assert run(capsys, *words).code == 0
    before = stamps("out")
    changed = run(capsys, *words, "--set", "grid.seed=7")
    assert changed.code == 2
    assert "out holds 6 runs of this very file, but none of those" in changed.err
    assert "another folder with -o DIR" in changed.err
    Path("exp.toml").write_text(EXPERIMENT.replace("days = 6", "days = 7"))
    other = run(capsys, *words)
    assert other.code == 2
    assert "out holds 6 runs of another experiment (Nights), or of this one before" in other.err
    assert stamps("out") == before


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
        (("sweep", "exp.toml", "--set", "policy.nam=exact"), "did you mean 'name'?"),
        (
            EXACT_WITH("policy.stp_s=1"),
            "key of [policy] for exact 'stp_s' (did you mean 'step_s'?)",
        ),
        (("sweep", "exp.toml", "--set", "policy.knows_phases=no"), "true or false, not 'no'"),
        (("sweep", "exp.toml", "--set", "run.repeat_signal='false'"), "true or false, not 'false'"),
        (("sweep", "exp.toml", "--set", "run.repeat_signal=1"), "true or false, not 1"),
        (("sweep", "exp.toml", "--set", "run.seed=true"), "whole number from 0 up, not True"),
        (("sweep", "exp.toml", "--set", "run.oversized=drp"), "did you mean 'drop'?"),
        (("sweep", "exp.toml", "--set", "queue.nme=easy"), "did you mean 'name'?"),
        (
            ("sweep", "exp.toml", "--set", "queue.name=round_robin", "--set", "queue.quantm_s=9"),
            "key of [queue] for round_robin 'quantm_s' (did you mean 'quantum_s'?)",
        ),
        (("sweep", "exp.toml", "--set", "forecast.knd=perfect"), "did you mean 'kind'?"),
        (("sweep", "exp.toml", "--set", "workload.jobs={knd='phased'}"), "did you mean 'kind'?"),
        ((*CLUSTER, "--set", "cluster.nodes=true"), "nodes is a whole number"),
        (
            (*CLUSTER, "--set", "workload.cpus=0"),
            "[workload]: workload.cpus is 0, and a job that holds nothing",
        ),
        (("sweep", "exp.toml", "--set", "workload.wiat=1"), "did you mean 'wait'?"),
        (("sweep", "exp.toml", "--set", "cluster.node=1"), "did you mean 'nodes'?"),
        (("sweep", "exp.toml", "--set", "cluster.nodes=1"), "[cluster] needs cpus_per_node"),
        (("sweep", "exp.toml", "--set", "queue.name=fif"), "did you mean 'fifo'?"),
        (
            ("sweep", "exp.toml", "--set", "queue.name=round_robin"),
            "[queue] says how machines are shared (name = 'round_robin'), but there is",
        ),
        (
            ("sweep", "exp.toml", "--set", "queue.discipline=easy"),
            "add [cluster] with nodes and cpus_per_node, or leave [queue] out",
        ),
        (
            (*CLUSTER, "--set", "queue.discipline=easy", "--set", "queue.name=easy"),
            "[queue] has name and discipline, which say the same",
        ),
        (("sweep", "exp.toml", "--set", "forecast.kind=x"), "known are auto, lead_scaled"),
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
    assert "`lowtide sweep exp.toml -j 1 -o out` continues" in told.err


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
        "`lowtide sweep exp.toml -j 2 -o out` continues\n"
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


ON_DATA = """
title = "Nights"

[grid]
start = "2023-01-02T00:00Z"

[workload]
scenario = "nightly"
duration = "3d"

[sweep]
grid.zone = ["DE", "FR"]
policy.name = ["lowest_slot", "exact"]
run.seed = [SEEDS]

[without_data.grid]
days = 9

[without_data.sweep]
grid.zone = false
grid.synthetic = ["windy", "sunny"]
"""


def write_zone(data: str, zone: str, level: int) -> None:
    """Nine days of a zone as public files have them: times and values, and no more."""
    hours = [f"2023-01-{day:02}T{hour:02}:00:00Z" for day in range(1, 10) for hour in range(24)]
    lines = [f"{when},{level + place % 24}" for place, when in enumerate(hours)]
    folder = Path(data) / "carbon"
    folder.mkdir(parents=True, exist_ok=True)
    text = "\n".join(["datetime,carbon_intensity_g_per_kwh", *lines, ""])
    (folder / f"{zone}.csv").write_text(text)


def test_what_an_interrupted_sweep_says_goes_on_with_it(
    capsys: pytest.CaptureFixture[str],
) -> None:
    write_zone("my data", "DE", 300)
    write_zone("my data", "FR", 50)
    seeds = ", ".join(str(seed) for seed in range(100))
    Path("exp.toml").write_text(ON_DATA.replace("SEEDS", seeds))

    words = ("-j", "1", "--data", "my data", "--set", "workload.wait=6h")
    first = start_sweep(*words)
    wait_until(lambda: count(Path("exp-results/runs")) > 20, "20 runs")
    first.send_signal(signal.SIGINT)
    _, said = first.communicate(timeout=60)
    assert first.returncode == 130, said
    kept = stamps("exp-results")
    assert 20 < len(kept) < 400
    again = shlex.split(said.split("`")[1])
    assert again == ["lowtide", "sweep", "exp.toml", *words]

    # Without the data the file describes other runs: none of them is begun among these.
    for other in (("-j", "1"), ("-j", "1", "--data", "my data")):
        refused = run(capsys, "sweep", "exp.toml", *other)
        assert refused.code == 2
        assert f"exp-results holds {len(kept)} runs of this very file" in refused.err
        assert "say --data, --set and --full as they were said then" in refused.err
        assert stamps("exp-results") == kept

    done = run(capsys, *again[1:])
    assert done.code == 0
    assert f"{len(kept)} of them done before" in done.out
    assert kept.items() <= stamps("exp-results").items()
    assert table("exp-results").height == 400
    assert set(table("exp-results")["synthetic"]) == {False}


def test_errors_name_the_file_and_the_section(capsys: pytest.CaptureFixture[str]) -> None:
    for section, says in (
        ('[policy]\nname = "exakt"', "lowtide: exp.toml: [policy]: unknown policy 'exakt'"),
        ('[policy]\nnme = "exact"', "lowtide: exp.toml: unknown key of [policy] for run_now 'nme'"),
        ('[queue]\nname = "fif"', "lowtide: exp.toml: [queue]: unknown discipline 'fif'"),
        (
            '[queue]\ndiscipline = "easy"',
            "lowtide: exp.toml: [queue] says how machines are shared (name = 'easy'), but there is",
        ),
        ("[cluster]\nnodes = 1", "lowtide: exp.toml: [cluster] needs cpus_per_node"),
        ('[forecast]\nkind = "x"', "lowtide: exp.toml: [forecast]: unknown kind of forecast 'x'"),
        ("[run]\nrepeat_signal = 1", "lowtide: exp.toml: [run]: run.repeat_signal is true or"),
    ):
        Path("exp.toml").write_text(
            EXPERIMENT.replace("[sweep]", f"{section}\n[sweep]").replace(
                'policy.name = ["lowest_slot", "exact"]\n', ""
            )
        )
        for verb in ("sweep", "simulate"):
            words = ("--set", "run.seed=1") if verb == "simulate" and "[run]" not in section else ()
            told = run(capsys, verb, "exp.toml", *words)
            if verb == "simulate" and not words:
                continue
            assert told.code == 2
            assert told.err.startswith(says), told.err
            assert not Path("exp-results").exists()
    text = EXPERIMENT.replace('scenario = "nightly"', 'scenario = "nightli"')
    Path("exp.toml").write_text(text)
    told = run(capsys, "sweep", "exp.toml")
    assert told.err.startswith("lowtide: exp.toml: [workload]: unknown scenario 'nightli'")
    # What was set from outside is no fault of the file.
    Path("exp.toml").write_text(EXPERIMENT)
    told = run(capsys, "sweep", "exp.toml", "--set", "policy.name=exakt")
    assert told.err.startswith("lowtide: [policy]: unknown policy 'exakt' (did you mean 'exact'?)")


@pytest.mark.parametrize(
    ("report", "says"),
    [
        ("[report]\nfoo = 1", "unknown key of [report] 'foo': known are figures"),
        ("[report]\nfigures = 3", "[[report.figures]] are tables"),
        ("[[report.figures]]\nvalu = 1", "did you mean 'value'?"),
        ('[[report.figures]]\nvalue = "saving"', "needs x"),
        (
            '[[report.figures]]\nx = "run.sed"',
            "for x of [[report.figures]] 'run.sed' (did you mean",
        ),
    ],
)
def test_a_report_that_cannot_be_is_refused_before_the_sweep(
    report: str, says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("exp.toml").write_text(f"{EXPERIMENT}\n{report}\n")
    told = run(capsys, "sweep", "exp.toml", "-j", "1")
    assert told.code == 2
    assert told.err.startswith("lowtide: exp.toml: ")
    assert says in told.err
    assert not Path("exp-results").exists()
    good = '[[report.figures]]\nx = "run.seed"\nfacet = "policy.name"\ncolor = "policy"\n'
    Path("exp.toml").write_text(EXPERIMENT + good)
    assert run(capsys, "sweep", "exp.toml", "-j", "1").code == 0


TRACED = """
[grid]
synthetic = "windy"
days = 6

[workload]
trace = "jobs.csv"
wait = "6h"
power_w_per_cpu = 10

[cluster]
nodes = 2
cpus_per_node = 2
"""
TRACE = """arrival_time,length,cpus,priority
0,7200,2,0
0,3600,2,0
600,3600,2,1
700,3600,2,5
800,0,1,0
"""


def test_priorities_of_a_trace_are_looked_at(capsys: pytest.CaptureFixture[str]) -> None:
    Path("jobs.csv").write_text(TRACE)
    Path("exp.toml").write_text(f'{TRACED}\n[sweep]\nqueue.name = ["fifo", "priority"]\n')
    told = run(capsys, "sweep", "exp.toml", "-j", "1")
    assert told.code == 0, told.err
    # Rows that never ran are told of, and so they are in every run's numbers.
    assert "left out: 1 job of the trace that never ran, in 2 of 2 runs" in told.out
    rows = table("exp-results")
    assert rows["left_out_never_ran"].to_list() == [1, 1]
    # In turn the third job starts at 3,600 s and the fourth at 7,200 s; by priority not.
    words = ("simulate", "exp.toml", "--jobs-table", "jobs.parquet", "--set")
    starts = {}
    for name in ("fifo", "priority"):
        told = run(capsys, *words, f"queue.name={name}")
        assert "left out: jobs of the trace that never ran" in told.out
        jobs = pl.read_parquet("jobs.parquet")
        starts[name] = (jobs["start"] - jobs["arrival"][0]).to_list()
    assert starts["fifo"][2:] == [3600, 7200]
    assert starts["priority"][2:] == [7200, 3600]


def test_jobs_too_large_for_the_nodes_are_refused_or_dropped(
    capsys: pytest.CaptureFixture[str],
) -> None:
    Path("jobs.csv").write_text(TRACE.replace("0,3600,2,0", "0,3600,3,0"))
    Path("exp.toml").write_text(TRACED)
    told = run(capsys, "simulate", "exp.toml")
    assert told.code == 2
    assert "asks for 3 CPUs on a node that has 2" in told.err
    assert "run.oversized = 'drop' in an experiment" in told.err
    told = run(capsys, "simulate", "exp.toml", "--set", "run.oversized=drop")
    assert told.code == 0
    assert "left out: jobs too large for the nodes" in told.out
    swept = run(capsys, "sweep", "exp.toml", "-j", "1", "--set", "run.oversized=drop")
    assert "left out: 1 job too large for the nodes, in 1 of 1 runs" in swept.out
    (row,) = table("exp-results").to_dicts()
    assert (row["jobs"], row["left_out_oversized"], row["left_out_never_ran"]) == (3, 1, 1)


def test_what_nobody_says_of_watts_is_told_from_the_nodes(
    capsys: pytest.CaptureFixture[str],
) -> None:
    Path("jobs.csv").write_text(TRACE)
    bare = TRACED.replace("power_w_per_cpu = 10\n", "")
    Path("exp.toml").write_text(bare)
    told = run(capsys, "simulate", "exp.toml")
    assert told.code == 2
    assert "a trace does not say what its jobs draw" in told.err
    Path("exp.toml").write_text(f"{bare}idle_power_w = 40\npeak_power_w = 100\n")
    told = run(capsys, "simulate", "exp.toml")
    assert told.code == 0, told.err
    assert "assumed watts per CPU, of the nodes" in told.out
    document = json.loads(run(capsys, "simulate", "exp.toml", "--json").out)
    assert document["assumed_power_w_per_cpu"] == 30.0
    # Five hours on two CPUs.
    assert document["energy_j"] == pytest.approx(5 * 3600 * 2 * 30)
    swept = run(capsys, "sweep", "exp.toml", "-j", "1")
    assert "assumed: power_w_per_cpu = 30, from what the nodes draw" in swept.out
    manifest = json.loads(Path("exp-results/manifest.json").read_text())
    assert manifest["assumed"] == {"power_w_per_cpu": [30.0]}
    # Whoever says what jobs draw is believed.
    said = json.loads(
        run(capsys, "simulate", "exp.toml", "--json", "--set", "workload.power_w_per_cpu=7").out
    )
    assert "assumed_power_w_per_cpu" not in said
    assert said["energy_j"] == pytest.approx(5 * 3600 * 2 * 7)
    # Jobs that are drawn may leave it open as well.
    drawn = bare.replace('trace = "jobs.csv"', 'arrivals = {kind = "periodic", period = "6h"}')
    drawn = drawn.replace('wait = "6h"', 'wait = "6h"\nlengths = "1h"\nduration = "1d"')
    Path("exp.toml").write_text(f"{drawn}idle_power_w = 40\npeak_power_w = 100\n")
    document = json.loads(run(capsys, "simulate", "exp.toml", "--json").out)
    assert document["assumed_power_w_per_cpu"] == 30.0
    assert document["energy_j"] == pytest.approx(document["jobs"] * 3600 * 30)


def test_errors_of_readers_name_keys_of_the_file(capsys: pytest.CaptureFixture[str]) -> None:
    Path("jobs.csv").write_text("arrival_time,length,cpus\n0,2,1\n1,3,1\n")
    Path("exp.toml").write_text(TRACED)
    told = run(capsys, "simulate", "exp.toml")
    assert told.code == 2
    assert "say workload.time_unit='h', 'min' or 's'" in told.err
    assert "--time-unit" not in told.err
    assert run(capsys, "simulate", "exp.toml", "--set", "workload.time_unit=h").code == 0


def test_a_sweep_repeats_the_signal_where_it_is_told_to(
    capsys: pytest.CaptureFixture[str],
) -> None:
    words = ("sweep", "exp.toml", "-j", "1", "--set", "grid.days=2", "--set", "policy.name=exact")
    told = run(capsys, *words)
    assert told.code == 1
    assert "run.repeat_signal = true or --repeat-signal for an experiment" in told.out
    assert run(capsys, *words, "-o", "again", "--repeat-signal").code == 0


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        (("policy.name=exact",), "3 jobs by exact, on"),
        (
            ("policy.name=exact", "policy.knows_phases=false"),
            "3 jobs by exact, blind to phases, on",
        ),
        (("policy.name=exact", "forecast.kind=perfect"), "3 jobs by exact with forecasts, on"),
        (
            ("policy.name=exact", "forecast.kind=perfect", "policy.knows_phases=false"),
            "3 jobs by exact, blind to phases, with forecasts, on",
        ),
        (("policy.name=rolling", "forecast.kind=perfect"), "3 jobs by rolling, on"),
    ],
)
def test_a_run_names_its_policy(
    settings: tuple[str, ...], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [word for each in (*settings, "run.seed=1") for word in ("--set", each)]
    told = run(capsys, "simulate", "exp.toml", *words)
    assert told.code == 0, told.err
    assert told.out.startswith(says)


def test_a_run_names_its_zone(capsys: pytest.CaptureFixture[str]) -> None:
    write_zone("data", "DE", 300)
    text = EXPERIMENT.replace('synthetic = "windy"\ndays = 6', 'zone = "DE"')
    Path("exp.toml").write_text(text)
    words = ("--set", "policy.name=exact", "--set", "run.seed=1")
    told = run(capsys, "simulate", "exp.toml", "--data", "data", *words)
    assert told.code == 0, told.err
    assert "on average carbon intensity, DE." in told.out
    told = run(capsys, "simulate", "exp.toml", *words, "--set", "grid.file=data/carbon/DE.csv")
    assert "DE.csv)." in told.out


def test_what_was_imputed_is_told_by_every_verb_and_kept(
    capsys: pytest.CaptureFixture[str],
) -> None:
    write_zone("data", "DE", 300)
    path = Path("data/carbon/DE.csv")
    lines = path.read_text().splitlines()
    # The end of the file is not used by a run, and not counted.
    marked = [
        f"{line},{'true' if 24 <= row < 48 else 'false'}" for row, line in enumerate(lines[1:])
    ]
    path.write_text("\n".join([f"{lines[0]},imputed", *marked]) + "\n")
    text = EXPERIMENT.replace('synthetic = "windy"\ndays = 6', 'zone = "DE"')
    Path("exp.toml").write_text(text)
    words = ("--data", "data", "--set", "policy.name=exact", "--set", "run.seed=1")
    told = run(capsys, "simulate", "exp.toml", *words)
    assert "24 of" in told.out, told.err
    assert "steps imputed (filled in or estimated)" in told.out
    document = json.loads(run(capsys, "simulate", "exp.toml", *words, "--json").out)
    share = document["imputed_share"]
    assert share == document["signal"]["imputed_share"] > 24 / len(marked)
    assert document["signal"]["estimated"] == 24
    swept = run(capsys, "sweep", "exp.toml", "-j", "1", *words)
    says = f"{100 * share:.1f} % of the grid's steps in the time of a run were filled in or"
    assert says in swept.out
    manifest = json.loads(Path("exp-results/manifest.json").read_text())
    assert manifest["imputed"] == {"DE": pytest.approx(share)}
    assert manifest["synthetic"] is False
    assert run(capsys, "report", "exp-results", "--no-figures").code == 0
    assert says in Path("exp-results/report.html").read_text()


def test_emissions_are_told_apart_beside_the_baseline(capsys: pytest.CaptureFixture[str]) -> None:
    words = [*CLUSTER[1:], "--set", "cluster.idle_power_w=90", "--set", "run.seed=1"]
    words += ["--set", "policy.name=oracle"]
    told = run(capsys, "simulate", *words).out
    lines = {tuple(line.split()[:2]): line for line in told.splitlines()}
    numbers = json.loads(run(capsys, "simulate", *words, "--json").out)
    assert "what" in told
    assert "by oracle" in told
    assert "by run_now" in told
    assert "EUR" in next(line for line in told.splitlines() if "cost of electricity" in line)
    assert format_percent(numbers["saving"]) in told
    assert format_percent(numbers["jobs_saving"]) in lines["CO2e", "jobs"]
    assert "or cost without it" not in told
    # No unit changes within a quantity.
    start = told.index("CO2e")
    block = told[start : told.index("cost of electricity")]
    assert len({word for word in block.split() if word in ("g", "kg", "t")}) == 1
    plain = run(capsys, "simulate", *words, "-P").out
    assert "synthetic|yes" in plain
    groups = json.loads(run(capsys, "sweep", *words, "-j", "1", "--json").out)
    assert groups["synthetic"] is True
    (group,) = groups["groups"]
    saving = 1 - group["total_carbon_g"] / group["baseline_total_carbon_g"]
    assert group["saving"] == pytest.approx(saving)
    assert group["total_carbon_g"] == pytest.approx(group["carbon_g"] + group["node_carbon_g"])
    shown = run(capsys, "sweep", *words, "-j", "1").out
    assert "by the baseline" in shown
    assert "synthetic: the grids of all runs" in shown


def test_machines_that_are_bought_have_no_queue(capsys: pytest.CaptureFixture[str]) -> None:
    words = [*CLUSTER[1:], "--set", "policy.name=reserved_first", "--set", "run.seed=1"]
    told = run(capsys, "simulate", *words, "--set", "cluster.reserved_cpus=4")
    assert told.code == 0, told.err
    assert "queue fifo" not in told.out
    # On demand alone there is nothing to be used or not.
    document = json.loads(run(capsys, "simulate", *words, "--json").out)
    assert document["utilisation"] is None
    # Who buys machines may look at forecasts, and buys them still.
    told = run(capsys, "simulate", *words, "--set", "forecast.kind=perfect")
    assert told.out.startswith("3 jobs by reserved_first, on")
    assert "cost of machines" in told.out


def is_at_work(pid: str) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def test_a_report_says_what_its_savings_are_of_where_nodes_draw_power(tmp_path, capsys):
    file = tmp_path / "e.toml"
    file.write_text(
        '[grid]\nsynthetic = "windy"\ndays = 10\n[workload]\nscenario = "nightly"\n'
        'duration = "5d"\n[cluster]\nnodes = 4\ncpus_per_node = 64\nidle_power_w = 100\n'
        '[sweep]\npolicy.name = ["run_now", "oracle"]\n'
    )
    out, page = str(tmp_path / "out"), tmp_path / "out" / "report.html"
    assert run(capsys, "sweep", str(file), "-o", out, "-j", "1").code == 0
    own = run(capsys, "report", out, "--no-figures").out
    assert "carbon in all" in own and "without what nodes draw" not in page.read_text()
    told = run(capsys, "report", out, "--no-figures", "--baseline", "run_now").out
    assert "carbon of jobs" in told and "without what nodes draw" in page.read_text()
