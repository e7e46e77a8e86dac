"""What is known beforehand is refused beforehand, and what was computed is told."""

from __future__ import annotations

import json

import numpy as np
import pytest

from lowtide.errors import InvalidInput, InvalidJob
from lowtide.policies.policy import POLICIES, stops_jobs
from lowtide.signal import Signal
from lowtide.simulator import Cluster, simulate
from lowtide.studies.report import facts
from lowtide.studies.study import read_study
from lowtide.workload import Workload
from support.commands import run

EXPERIMENT = """
[workload]
duration = "2d"
arrivals = { kind = "daily", per_day = 20 }
lengths = { kind = "lognormal", median = "1h", sigma = 1.0, high = "6h" }
wait = "12h"
interruptible = "anywhere"
jobs = { kind = "constant", power_w = 100 }
[grid]
synthetic = "windy"
days = 10
"""
ON_CLUSTER = "[cluster]\nnodes = 4\ncpus_per_node = 4\n"
# In turns jobs are stopped by the queue, and not by a policy as well.
IN_TURNS = f'{ON_CLUSTER}[queue]\nname = "round_robin"\n'
CURVE = Signal.from_values(300.0 + np.arange(96) % 24, start=0, step_s=3600)


def workload(interruptible, **more):
    return Workload(
        arrival=[0.0, 0.0],
        deadline=86400.0,
        work_s=3600.0,
        power=100.0,
        interruptible=interruptible,
        **more,
    )


def never(*_):
    raise AssertionError("nobody shall have been decided for")


@pytest.mark.parametrize("name", ["exact", "wait_awhile", "threshold", "dtpr", "rolling", "advice"])
def test_policies_that_stop_are_refused_before_the_first_job(name, monkeypatch):
    kind = POLICIES.load(name)
    assert stops_jobs(kind())
    monkeypatch.setattr(kind, "decide", never)
    if hasattr(kind, "decide_many"):
        monkeypatch.setattr(kind, "decide_many", never)
    machines = Cluster(nodes=2, cpus_per_node=4)
    with pytest.raises(InvalidInput, match="stops them"):
        simulate(workload(1), CURVE, policy=name, cluster=machines, discipline="round_robin")


@pytest.mark.parametrize("name", ["run_now", "oracle", "carbon_time", "lowest_window"])
def test_policies_that_choose_a_start_are_not(name):
    assert not stops_jobs(POLICIES.load(name)())
    assert len(simulate(workload(1), CURVE, policy=name, cluster=Cluster(nodes=2, cpus_per_node=4)))


def test_a_sweep_is_refused_before_its_first_run(tmp_path, capsys):
    file = tmp_path / "e.toml"
    file.write_text(EXPERIMENT + IN_TURNS + '[sweep]\npolicy.name = ["run_now", "exact"]\n')
    answer = run(capsys, "sweep", str(file), "-o", str(tmp_path / "out"), "-j", "1")
    assert answer.code == 2 and "stops them" in answer.err
    assert "done" not in answer.out


JOBS = {
    "checkpoints": """
interruptible = "checkpoints"
jobs = { kind = "phased", high_w = 500, high_s = "40m", low_w = 200, low_s = "20m", \
startup_w = 300, startup_s = "10m", checkpoint_every_s = "30m" }
""",
    "a mix": """
jobs = [{ kind = "constant", power_w = 100, interruptible = "never" }, \
{ kind = "constant", power_w = 100, interruptible = "anywhere" }]
""",
}


@pytest.mark.parametrize("kind", JOBS)
def test_a_sweep_of_other_jobs_that_can_be_stopped_is_refused_too(kind, tmp_path, capsys):
    rest = "".join(
        f"{line}\n"
        for line in EXPERIMENT.splitlines()
        if not line.startswith(("interruptible", "jobs"))
    )
    head, grid = rest.split("[grid]")
    text = f"{head}{JOBS[kind]}[grid]{grid}{IN_TURNS}"
    file, out = tmp_path / "e.toml", tmp_path / "out"
    file.write_text(text + '[sweep]\npolicy.name = ["run_now", "exact"]\n')
    answer = run(capsys, "sweep", str(file), "-o", str(out), "-j", "1")
    assert answer.code == 2 and "stops them" in answer.err, answer.err
    assert not out.exists()


def test_a_sweep_of_a_trace_whose_jobs_can_be_stopped_is_refused_too(tmp_path, capsys):
    (tmp_path / "t.csv").write_text("arrival_time,length,cpus\n0,7200,1\n3600,7200,1\n")
    file, out = tmp_path / "e.toml", tmp_path / "out"
    for interruptible, machines, code in (("anywhere", IN_TURNS, 2), ("never", ON_CLUSTER, 0)):
        file.write_text(
            f'[workload]\ntrace = "t.csv"\ninterruptible = "{interruptible}"\nwait = "12h"\n'
            f'time_unit = "s"\npower_w_per_cpu = 10\n[grid]\nsynthetic = "windy"\ndays = 10\n'
            f'{machines}[sweep]\npolicy.name = ["run_now", "exact"]\n'
        )
        answer = run(capsys, "sweep", str(file), "-o", str(out), "-j", "1")
        assert answer.code == code, answer.err
        assert ("stops them" in answer.err, out.exists()) == (code == 2, code == 0)


def test_the_summary_is_told_where_the_table_cannot_be_written(tmp_path, capsys):
    file = tmp_path / "e.toml"
    file.write_text(EXPERIMENT)
    (tmp_path / "taken").write_text("")
    table = str(tmp_path / "taken" / "jobs.csv")
    answer = run(capsys, "simulate", str(file), "--jobs-table", table)
    assert answer.code == 2 and "cannot write" in answer.err
    assert "saving per job" in answer.out and "written:" not in answer.out


def test_a_policy_is_swept_by_its_place(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text(
        "from lowtide.policies.starts import Latest\n\nclass Mine(Latest):\n    pass\n"
    )
    (tmp_path / "e.toml").write_text(
        EXPERIMENT + '[sweep]\npolicy.name = ["latest", "./mine.py:Mine", "mine:Mine"]\n'
    )
    answer = run(capsys, "sweep", "e.toml", "-j", "2", "-P")
    assert answer.code == 0, answer.err
    rows = [line.split("|") for line in answer.out.splitlines()[1:]]
    assert [row[0] for row in rows] == ["latest", "./mine.py:Mine", "mine:Mine"]
    assert rows[0][1:] == rows[1][1:] == rows[2][1:]


def test_jobs_wider_than_a_node_are_offered_more_nodes_and_take_them():
    jobs, machines = workload(0, cpus=[256.0, 8.0]), Cluster(nodes=4, cpus_per_node=64)
    with pytest.raises(InvalidJob, match=r"here 4 \(run.oversized = 'spread'"):
        simulate(jobs, CURVE, cluster=machines)
    made = simulate(jobs, CURVE, cluster=machines, oversized="spread")
    assert made.jobs.nodes.tolist() == [4.0, 1.0]
    with pytest.raises(InvalidJob, match="give the cluster more"):
        simulate(workload(0, cpus=[1000.0, 8.0]), CURVE, cluster=machines)


def test_doctor_can_be_read_off_a_terminal(capsys):
    answer = run(capsys, "doctor")
    assert max(map(len, answer.out.splitlines())) <= 120


def test_a_queue_beside_machines_that_are_bought_is_said_to_play_no_part(tmp_path, capsys):
    file = tmp_path / "e.toml"
    text = EXPERIMENT.replace('interruptible = "anywhere"\n', "") + ON_CLUSTER
    file.write_text(text + '[queue]\nname = "easy"\n')
    bought = run(capsys, "simulate", str(file), "--set", "policy.name=reserved_first")
    assert bought.code == 0 and "[queue] played no part" in bought.out
    queued = run(capsys, "simulate", str(file), "--set", "policy.name=run_now")
    assert queued.code == 0 and "queue easy" in queued.out and "no part" not in queued.out
    # Whoever reads no table is told as well.
    for policy, used in (("reserved_first", False), ("run_now", True)):
        words = ("simulate", str(file), "--set", f"policy.name={policy}")
        assert json.loads(run(capsys, *words, "--json").out)["queue_used"] is used
        assert f"queue_used|{'yes' if used else 'no'}" in run(capsys, *words, "-P").out
    file.write_text(file.read_text() + '[sweep]\npolicy.name = ["reserved_first", "run_now"]\n')
    swept = run(capsys, "sweep", str(file), "-j", "1", "-o", str(tmp_path / "r"))
    told = "[queue] played no part in 1 of 2 runs: reserved_first bought machines"
    assert swept.code == 0 and told in swept.out
    assert dict(facts(read_study(tmp_path / "r")))["queue"].startswith(told)
    file.write_text(file.read_text().replace('"reserved_first"', '"booking"'))
    # Room is booked on nodes that jobs do not share.
    whole = ("--set", "cluster.cpus_per_node=1")
    swept = run(capsys, "sweep", str(file), "-j", "1", "-o", str(tmp_path / "s"), *whole)
    assert swept.code == 0
    assert "in 1 of 2 runs: booking decided who runs when\n" in swept.out


@pytest.mark.parametrize("verb", ["plan", "when"])
@pytest.mark.parametrize(
    ("said", "past"),
    [
        (["--arrival", "2024-07-01T00:00Z"], True),
        (["--arrival", "2024-07-01T00:00Z", "--now", "2024-06-30T00:00Z"], False),
        (["--arrival", "+2h"], False),
        ([], False),
    ],
)
def test_an_arrival_that_is_past_is_remarked_upon(verb, said, past, capsys):
    power = ["--power", "300"] * (verb == "plan")
    job = ["-t", "1:00:00", *power, "--deadline", "+8h", "--grid", "sunny"]
    answer = run(capsys, verb, *job, *said)
    assert answer.code == 0
    assert ("--arrival is past" in answer.out + answer.err) == past
