"""Workloads from plain tables: columns, seeds, traces, scenarios and every refusal."""

from __future__ import annotations

import csv
import gzip
import inspect
import math
import pickle
import tomllib
from dataclasses import replace
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
import pytest

from lowtide import workloads
from lowtide.errors import FileProblem, InvalidInput, InvalidTime, InvalidTrace, UnknownName
from lowtide.grids import synthetic_grid
from lowtide.job import INTERRUPTIBLE
from lowtide.profile import PowerProfile
from lowtide.samples import sample_profile
from lowtide.simulator import Cluster, simulate
from lowtide.states import STATUSES
from lowtide.units import parse_time
from lowtide.workload import Workload
from lowtide.workloads import TraceSpec, WorkloadSpec, generate, read_spec
from lowtide.workloads.draws import ARRIVALS, LENGTHS, read_wait, same, uniform
from lowtide.workloads.generate import SCENARIOS
from lowtide.workloads.kinds import KINDS, constant

MONDAY = parse_time("2024-07-01T00:00Z")
DAY = 86_400.0
FAILED, COMPLETED = STATUSES.index("failed"), STATUSES.index("completed")

BASE: dict[str, Any] = tomllib.loads("""
start = 2024-07-01T00:00:00Z
duration = "30d"
arrivals = { kind = "daily", per_day = 200 }
lengths = { kind = "lognormal", median = "2h", sigma = 1.2 }
jobs = { kind = "constant", power_w_per_cpu = 10 }
cpus = { choices = [1, 2, 4, 8], weights = [4, 3, 2, 1] }
gpus = { choices = [0, 1] }
nodes = { choices = [1, 2] }
memory = { choices = ["4G", "16G"] }
priority = { choices = [0, 10], weights = [9, 1] }
wait = { choices = ["6h", "24h"] }
interruptible = { choices = ["never", "anywhere", "checkpoints"] }
overestimate = { kind = "lognormal", median = 2.0, sigma = 0.5 }
failing = 0.1
""")
# What was recorded is not there for jobs that nobody recorded.
_OTHER = ("profiles", "source", "left_out", "waited_s")
COLUMNS = [name for name in Workload.__slots__ if name not in _OTHER]


def changed(one: Workload, other: Workload) -> set[str]:
    """The columns in which two workloads differ."""
    return {
        name
        for name in COLUMNS
        if name != "user" and not np.array_equal(getattr(one, name), getattr(other, name))
    }


def test_all_is_sorted_and_there():
    assert workloads.__all__ == sorted(workloads.__all__)
    assert all(hasattr(workloads, name) for name in workloads.__all__)


@pytest.mark.parametrize("makers", [ARRIVALS, LENGTHS, KINDS])
def test_every_kind_and_its_keys_are_on_the_page(root, makers):
    text = (root / "docs/howto/workloads.md").read_text(encoding="utf-8")
    for kind, make in makers.items():
        rows = [line for line in text.splitlines() if line.startswith(f"| `{kind}` |")]
        for key in inspect.signature(make).parameters:
            assert any(f"`{key}`" in row for row in rows), f"{kind}: {key}"


def test_every_key_and_scenario_is_on_the_page(root):
    text = (root / "docs/howto/workloads.md").read_text(encoding="utf-8")
    with pytest.raises(UnknownName) as of_drawn:
        read_spec({"nonsense": 1})
    with pytest.raises(UnknownName) as of_traced:
        read_spec({"trace": "x", "nonsense": 1})
    for key in {*of_drawn.value.known, *of_traced.value.known}:
        assert f"\n| `{key}` |" in text, key
    for name in SCENARIOS:
        assert f"\n| `{name}` |" in text, name


def test_the_columns_are_what_the_table_says():
    jobs = generate(BASE, seed=0)
    n = len(jobs)
    assert abs(n - 6000) < 4 * math.sqrt(6000) + 200  # 30 days hold 22 weekdays, not 21.4
    assert jobs.arrival.min() >= MONDAY
    assert jobs.arrival.max() < MONDAY + 30 * DAY
    assert np.array_equal(jobs.power, 10 * jobs.cpus)
    assert set(jobs.cpus) == {1.0, 2.0, 4.0, 8.0}
    assert abs((jobs.cpus == 1).mean() - 0.4) < 4 * math.sqrt(0.24 / n)
    assert set(jobs.gpus) == {0.0, 1.0}
    assert set(jobs.nodes) == {1.0, 2.0}
    assert set(jobs.memory_bytes) == {4 * 2.0**30, 16 * 2.0**30}
    assert set(jobs.priority) == {0.0, 10.0}
    assert abs((jobs.priority == 10).mean() - 0.1) < 4 * math.sqrt(0.09 / n)
    assert set(jobs.interruptible) == set(range(len(INTERRUPTIBLE)))
    assert jobs.source == "generated, seed 0"
    fails = jobs.status == FAILED
    assert np.all(fails | (jobs.status == COMPLETED))
    assert abs(fails.mean() - 0.1) < 4 * math.sqrt(0.09 / n)
    whole = jobs.take(~fails)
    assert np.all(np.isclose(whole.slack_s, 6 * 3600) | np.isclose(whole.slack_s, 24 * 3600))
    logs = np.log(whole.work_s)
    assert abs(logs.mean() - math.log(7200)) < 4 * 1.2 / math.sqrt(len(whole))


def test_defaults():
    plain = {
        "arrivals": {"kind": "uniform", "count": 14},
        "lengths": "1h",
        "jobs": {"kind": "constant", "power_w": 5},
        "wait": 0,
    }
    jobs = generate(plain, seed=0)
    assert jobs.arrival[0] == MONDAY
    assert jobs.arrival[-1] == MONDAY + 6.5 * DAY
    assert np.array_equal(jobs.requested_s, jobs.work_s)
    for name, value in {
        "cpus": 1,
        "gpus": 0,
        "nodes": 1,
        "memory_bytes": 0,
        "priority": 0,
        "interruptible": 0,
        "status": COMPLETED,
        "work_s": 3600,
        "power": 5,
    }.items():
        assert np.all(getattr(jobs, name) == value), name


def test_users_ask_for_at_least_what_their_jobs_need():
    jobs = generate({**BASE, "failing": 0}, seed=0)
    factor = jobs.requested_s / jobs.work_s
    assert factor.min() == 1.0
    # Φ((ln 1 − ln 2)/0.5) of the factors would be below 1, and are 1.
    share = 0.5 * math.erfc(math.log(2) / 0.5 / math.sqrt(2))
    assert abs((factor == 1).mean() - share) < 4 * math.sqrt(share / len(jobs))
    assert abs(np.median(factor) - 2) < 0.1
    double = generate({**BASE, "failing": 0, "overestimate": 2}, seed=0)
    assert np.allclose(double.requested_s, 2 * double.work_s)


def test_failing_jobs_do_an_even_part_of_their_work():
    whole = generate({**BASE, "failing": 0}, seed=0)
    jobs = generate(BASE, seed=0)
    fails = jobs.status == FAILED
    part = np.sort((jobs.work_s / whole.work_s)[fails])
    steps = np.arange(part.size + 1) / part.size
    distance = max(np.max(steps[1:] - part), np.max(part - steps[:-1]))
    assert math.sqrt(part.size) * distance < 1.95
    assert np.array_equal(jobs.work_s[~fails], whole.work_s[~fails])
    # Deadlines and requests are those of a run that does not fail.
    assert changed(whole, jobs) == {"work_s", "status"}
    more = generate({**BASE, "failing": 0.2}, seed=0)
    assert np.all(more.status[fails] == FAILED)


@pytest.mark.parametrize(
    "jobs",
    [
        {"kind": "constant", "power_w": 300},
        {"kind": "phased", "high_w": 9, "low_w": 1, "high_s": "20m", "low_s": "10m"},
        {"kind": "ml", "epoch_s": "10m", "train_w": 9, "startup_s": "5m", "startup_w": 5},
        {"kind": "profile", "profile": "h200"},
        [
            {"kind": "ml", "share": 0.3, "epoch_s": "10m", "train_w": 9, "lengths": "3h"},
            {"kind": "profile", "share": 0.2, "profile": "h200"},
            {"kind": "constant", "share": 0.5, "power_w": 1, "cpus": {"choices": [1, 3]}},
        ],
    ],
)
def test_the_same_seed_gives_the_same_bytes(jobs):
    spec = {**BASE, "jobs": jobs}
    if isinstance(jobs, dict) and jobs["kind"] == "profile":
        del spec["lengths"]
    one, again, other = generate(spec, seed=5), generate(spec, seed=5), generate(spec, seed=6)
    for name in COLUMNS:
        if name != "user":
            assert getattr(one, name).tobytes() == getattr(again, name).tobytes(), name
    assert one.profiles == again.profiles
    assert "arrival" in changed(one, other) or len(one) != len(other)


def test_a_seed_means_the_same_for_ever():
    # Results name their seeds: reordering the streams would make others of them.
    jobs = generate(BASE, seed=0)
    assert len(jobs) == 6148
    assert (jobs.arrival[:4] - MONDAY).round(1).tolist() == [1992.7, 2454.4, 3212.2, 3348.9]
    assert (jobs.work_s[:4]).round(1).tolist() == [18919.4, 725.9, 108.4, 22078.8]
    assert jobs.cpus[:12].tolist() == [4, 1, 2, 4, 1, 2, 2, 8, 1, 1, 1, 1]


@pytest.mark.parametrize(
    ("change", "columns"),
    [
        ({"lengths": {"kind": "lognormal", "median": "3h", "sigma": 1.2}}, {"work_s"}),
        ({"lengths": {"kind": "loguniform", "low": "1h", "high": "9h"}}, {"work_s"}),
        ({"cpus": 4}, {"cpus", "power"}),
        ({"gpus": 2}, {"gpus"}),
        ({"nodes": 1}, {"nodes"}),
        ({"memory": "1G"}, {"memory_bytes"}),
        ({"priority": -2.5}, {"priority"}),
        ({"wait": "12h"}, {"deadline"}),
        ({"wait": {"choices": ["6h", "24h"], "weights": [2, 1]}}, {"deadline"}),
        ({"interruptible": "anywhere"}, {"interruptible"}),
        ({"overestimate": 1.5}, {"requested_s"}),
        ({"failing": 0.3}, {"status", "work_s"}),
        ({"jobs": {"kind": "constant", "power_w": 7}}, {"power"}),
    ],
)
def test_a_change_to_one_column_leaves_the_others(change, columns):
    one, other = generate(BASE, seed=3), generate({**BASE, **change}, seed=3)
    follow = {"deadline", "requested_s"} if "work_s" in columns and "lengths" in change else set()
    assert changed(one, other) == columns | follow


def test_a_change_to_the_arrivals_leaves_the_rest():
    one = generate(BASE, seed=3)
    other = generate({**BASE, "arrivals": {"kind": "uniform", "count": len(one)}}, seed=3)
    assert changed(one, other) == {"arrival", "deadline"}
    assert np.allclose(one.slack_s, other.slack_s)


def test_columns_are_independent():
    jobs = generate({**BASE, "duration": "300d"}, seed=4)
    columns = [
        np.diff(jobs.arrival, prepend=MONDAY),
        np.log(jobs.work_s),
        jobs.cpus,
        jobs.gpus,
        jobs.nodes,
        jobs.interruptible,
        jobs.status,
        jobs.memory_bytes,
        jobs.priority,
    ]
    correlation = np.corrcoef(np.array(columns)) - np.eye(len(columns))
    # Failing jobs are shorter, as they must be; all else is within four standard errors.
    correlation[1, 6] = correlation[6, 1] = 0
    assert np.abs(correlation).max() < 4 / math.sqrt(len(jobs))


PHASED = {
    "kind": "phased",
    "high_w": 200,
    "low_w": 100,
    "high_s": "30m",
    "low_s": "15m",
    "startup_s": "5m",
    "startup_w": 80,
}


def test_many_phased_jobs_of_different_lengths_are_made_fast():
    spec = {
        **BASE,
        "duration": "100d",
        "lengths": {"kind": "lognormal", "median": "2h", "sigma": 1.2, "high": "7d"},
        "jobs": PHASED,
    }
    began = perf_counter()
    jobs = generate(spec, seed=0)
    assert perf_counter() - began < 3.0  # an idle machine takes 0.35 s
    plain = generate({**spec, "jobs": {"kind": "constant", "power_w": 1}}, seed=0)
    assert len(jobs) > 19_000
    assert np.allclose(jobs.work_s, plain.work_s, rtol=1e-8, atol=1e-3)
    assert np.all(jobs.startup_s == 300)
    assert jobs.job(0).profile == jobs.profiles[int(jobs.profile[0])]


def test_phased_jobs_of_few_lengths_share_their_profiles():
    spec = {**BASE, "lengths": "5h", "jobs": PHASED, "failing": 0}
    assert len(generate(spec, seed=0).profiles) == 1


def test_profile_jobs_need_no_lengths():
    spec = {key: value for key, value in BASE.items() if key != "lengths"}
    learned = {"jobs": {"kind": "profile", "profile": "h200"}}
    jobs = generate({**spec, **learned, "failing": 0}, seed=0)
    assert jobs.profiles == (sample_profile("h200"),)
    assert np.all(jobs.energy_j == jobs.profiles[0].energy_j)
    failing = generate({**spec, **learned}, seed=0)
    assert 1 < len(failing.profiles) <= len(jobs.profiles[0].work)
    assert failing.work_s[failing.status == FAILED].mean() < jobs.work_s[0]


def test_slack_and_queues_count_the_whole_run_with_its_startup():
    spec = {key: value for key, value in BASE.items() if key != "wait"} | {
        "failing": 0,
        "jobs": {"kind": "ml", "epoch_s": "1h", "train_w": 5, "startup_s": "1h", "startup_w": 1},
    }
    jobs = generate({**spec, "slack": 2.0}, seed=0)
    assert np.allclose(jobs.slack_s, 2 * (jobs.work_s + 3600))
    queues = {"short": {"below": "3h", "wait": "6h"}, "long": {"wait": "24h"}}
    queued = generate({**spec, "queues": queues}, seed=0)
    short = queued.work_s < 2 * 3600
    assert np.allclose(queued.slack_s, np.where(short, 6 * 3600, 24 * 3600))


def test_drawn_priorities_and_memory_reach_the_machines():
    spec = {
        "start": MONDAY,
        "duration": "2d",
        "arrivals": {"kind": "poisson", "count": 200},
        "lengths": "30m",
        "jobs": {"kind": "constant", "power_w": 100},
        "wait": "30d",
        "memory": "4G",
        "priority": {"choices": [0, 10]},
    }
    jobs = generate(spec, seed=1)
    signal = synthetic_grid("windy", start="2024-07-01T00:00Z", days=40)
    urgent = jobs.priority > 0
    # A node has memory for one job at a time, though it has two CPUs.
    cluster = Cluster(nodes=1, cpus_per_node=2, memory_bytes_per_node=6 * 2.0**30)
    waits = simulate(jobs, signal, cluster=cluster, discipline="priority").wait_s
    fifo = simulate(jobs, signal, cluster=cluster, discipline="fifo").wait_s
    assert waits[urgent].mean() < 0.5 * fifo[urgent].mean()
    assert waits[~urgent].mean() > fifo[~urgent].mean()
    roomy = replace(cluster, memory_bytes_per_node=12 * 2.0**30)
    assert simulate(jobs, signal, cluster=roomy).wait_s.mean() < 0.5 * fifo.mean()


def test_a_mix_of_kinds():
    spec = {
        **BASE,
        "jobs": [
            {"share": 3, "kind": "constant", "power_w": 7},
            {**PHASED, "gpus": 4, "interruptible": "anywhere", "lengths": "5h", "priority": 3},
            {"kind": "profile", "profile": "h200", "memory": "80G"},
        ],
    }
    jobs, plain = generate(spec, seed=3), generate(BASE, seed=3)
    kind = np.select([jobs.profile < 0, jobs.startup_s == 300], [0, 1], 2)
    shares = np.bincount(kind) / len(jobs)
    assert np.abs(shares - [0.6, 0.2, 0.2]).max() < 4 * math.sqrt(0.24 / len(jobs))
    assert np.all(jobs.power[kind == 0] == 7)
    assert np.array_equal(jobs.work_s[kind == 0], plain.work_s[kind == 0])
    whole = jobs.status == COMPLETED
    assert np.all(jobs.work_s[(kind == 1) & whole] == 5 * 3600)
    assert np.all(jobs.gpus[kind == 1] == 4)
    assert np.all(jobs.priority[kind == 1] == 3)
    assert np.all(jobs.interruptible[kind == 1] == INTERRUPTIBLE.index("anywhere"))
    sample = sample_profile("h200")
    assert np.all(jobs.work_s[(kind == 2) & whole] == sample.work_s)
    assert np.all(jobs.memory_bytes[kind == 2] == 80 * 2.0**30)
    # What kinds do not say is what it would be without them.
    assert np.array_equal(jobs.gpus[kind != 1], plain.gpus[kind != 1])
    for name in ("arrival", "cpus", "nodes", "status"):
        assert np.array_equal(getattr(jobs, name), getattr(plain, name)), name
    for row in range(0, len(jobs), 97):
        assert jobs.job(row).profile.work_s == jobs.work_s[row]


def test_a_mix_of_one_kind_is_that_kind():
    kind = {"kind": "constant", "power_w_per_cpu": 10}
    assert changed(generate({**BASE, "jobs": [kind]}, seed=3), generate(BASE, seed=3)) == set()


def test_a_change_to_one_kind_of_a_mix_leaves_the_others():
    jobs = [{"kind": "constant", "power_w": 7}, {**PHASED, "gpus": {"choices": [1, 2]}}]
    spec = {**BASE, "lengths": "5h", "failing": 0}
    one = generate({**spec, "jobs": jobs}, seed=3)
    jobs = [{**jobs[0], "gpus": {"choices": [7, 8]}, "share": 1.0}, jobs[1]]
    other = generate({**spec, "jobs": jobs}, seed=3)
    assert changed(one, other) == {"gpus"}
    assert np.array_equal(one.gpus[one.profile >= 0], other.gpus[one.profile >= 0])


def test_no_jobs_is_a_workload_too():
    jobs = generate({**BASE, "duration": "1s", "arrivals": {"kind": "nightly"}}, seed=0)
    assert len(jobs) == 0


def test_specs_are_read_once_and_cross_to_other_processes():
    spec = read_spec(BASE)
    assert isinstance(spec, WorkloadSpec)
    again = pickle.loads(pickle.dumps(spec))
    assert changed(generate(again, seed=1), generate(BASE, seed=1)) == set()


def test_a_spec_may_be_made_of_objects():
    spec = WorkloadSpec(
        start=0.0,
        duration_s=60.0,
        arrivals=uniform(count=2),
        lengths=same(30.0),
        jobs=constant(power_w=5),
        wait=read_wait({"wait": 0}),
    )
    jobs = generate(spec, seed=0)
    assert jobs.arrival.tolist() == [0.0, 30.0]
    assert jobs.deadline.tolist() == [30.0, 60.0]


# Scenarios


def test_the_nightly_scenario():
    jobs = generate({"scenario": "nightly", "duration": "3d"}, seed=0)
    assert jobs.arrival.tolist() == [MONDAY + 3600 + day * DAY for day in range(3)]
    assert np.all(jobs.work_s == 1800)
    assert np.all(jobs.power == 1000)
    assert np.allclose(jobs.slack_s, 8 * 3600)


def test_the_periodic_scenario():
    jobs = generate({"scenario": "periodic", "duration": "1d"}, seed=0)
    assert jobs.arrival.tolist() == [MONDAY + 6 * 3600 * each for each in range(4)]
    # Each can be done before the next comes.
    assert np.allclose(jobs.deadline[:-1], jobs.arrival[1:])


def test_a_scenario_gives_way_to_what_is_said():
    jobs = generate(
        {
            "scenario": "nightly",
            "duration": "2d",
            "arrivals": {"hour": 23, "each": 2},
            "lengths": "2h",
            "slack": 1.0,
        },
        seed=0,
    )
    assert jobs.arrival[0] == MONDAY + 23 * 3600
    assert len(jobs) == 4
    assert np.allclose(jobs.slack_s, 7200)
    learned = generate(
        {"scenario": "nightly", "jobs": {"kind": "profile", "profile": "h200"}}, seed=0
    )
    assert np.all(learned.work_s == sample_profile("h200").work_s)
    other = generate({"scenario": "nightly", "arrivals": {"kind": "uniform", "count": 3}}, seed=0)
    assert len(other) == 3


# Traces


def rows_of(path: Path) -> np.ndarray:
    opened = gzip.open if path.suffix == ".gz" else open
    with opened(path, "rt") as file:
        return np.array([[float(value) for value in row] for row in list(csv.reader(file))[1:]])


@pytest.mark.parametrize("name", ["pai_1k.csv", "azure-100k_seconds.csv.gz"])
def test_real_traces(data, name):
    path = data(f"traces/{name}")
    rows = rows_of(path)
    jobs = generate({"trace": str(path), "power_w_per_cpu": 3, "wait": "24h"}, seed=0)
    assert len(jobs) == len(rows)
    assert math.isclose(jobs.work_s.mean(), rows[:, 1].mean())
    assert math.isclose(jobs.energy_j.sum(), float((3 * rows[:, 1] * rows[:, 2]).sum()))
    assert np.array_equal(jobs.arrival, np.sort(rows[:, 0]))
    assert np.allclose(jobs.slack_s, DAY)
    assert np.array_equal(jobs.requested_s, jobs.work_s)


def test_the_queues_of_gaia(data):
    path = data("traces/pai_1k.csv")
    rows = rows_of(path)
    queues = {"short": {"below": "2h", "wait": "6h"}, "long": {"wait": "24h"}}
    jobs = generate({"trace": str(path), "power_w_per_cpu": 1, "queues": queues}, seed=0)
    short = int((rows[:, 1] < 7200).sum())
    assert 0 < short < 1000
    assert np.count_nonzero(np.isclose(jobs.slack_s, 6 * 3600)) == short
    assert np.count_nonzero(np.isclose(jobs.slack_s, 24 * 3600)) == 1000 - short


def test_the_first_rows_moved_to_an_instant(data):
    path = data("traces/pai_1k.csv")
    rows = rows_of(path)[:100]
    spec = {
        "trace": path,
        "power_w_per_cpu": 1,
        "first": 100,
        "start": "2024-07-01T00:00Z",
        "slack": 0.5,
        "interruptible": "anywhere",
        "overestimate": 1.5,
    }
    jobs = generate(spec, seed=0)
    assert np.array_equal(jobs.arrival, rows[:, 0] - rows[0, 0] + MONDAY)
    assert np.allclose(jobs.slack_s, 0.5 * rows[:, 1], atol=1e-5)
    assert np.allclose(jobs.requested_s, 1.5 * rows[:, 1])
    assert np.all(jobs.interruptible == INTERRUPTIBLE.index("anywhere"))


def test_drawn_columns_of_a_trace_follow_the_seed(data):
    spec = {
        "trace": data("traces/pai_1k.csv"),
        "power_w_per_cpu": 1,
        "wait": {"choices": ["1h", "2h"]},
        "interruptible": {"choices": ["never", "anywhere"]},
    }
    one, again, other = (generate(spec, seed=seed) for seed in (1, 1, 2))
    assert changed(one, again) == set()
    assert changed(one, other) == {"deadline", "interruptible"}
    assert isinstance(read_spec(spec), TraceSpec)


SACCT = """JobID|User|Submit|Start|ElapsedRaw|TimelimitRaw|State|NNodes|NCPUS|AllocTRES|JobName
1|ann|1719813600|1719813900|3600|120|COMPLETED|1|16|cpu=16,gres/gpu=2|md
2|bob|1719817200|1719817300|60|10|FAILED|2|4|cpu=4|test
3|bob|1719817300|Unknown|0|10|CANCELLED by 1000|1|4||md
4|ann|1719817400|1719817500|100|10|COMPLETED|1|1|cpu=1|train
"""


@pytest.fixture
def sacct(tmp_path: Path) -> Path:
    path = tmp_path / "day.txt"
    path.write_text(SACCT)
    return path


def test_a_row_may_name_a_profile(sacct):
    jobs = generate(
        {
            "trace": sacct,
            "power_w_per_cpu": 10,
            "power_w_per_gpu": 300,
            "profiles": {"train": "h200"},
            "slack": 1.0,
        },
        seed=0,
    )
    sample = sample_profile("h200")
    assert jobs.id.tolist() == ["1", "2", "4"]
    assert jobs.profile.tolist() == [-1, -1, 0]
    assert jobs.power.tolist() == [760.0, 40.0, 1.0]
    assert jobs.work_s.tolist() == [3600.0, 60.0, sample.work_s]
    assert np.allclose(jobs.slack_s, [3600, 60, sample.run_s])
    assert jobs.requested_s.tolist() == [7200.0, 600.0, 600.0]
    assert jobs.status.tolist() == [COMPLETED, FAILED, COMPLETED]
    assert jobs.user.tolist() == ["ann", "bob", "ann"]


def test_profiles_alone_must_cover_every_row(sacct):
    spec = {"trace": sacct, "wait": "1h", "profiles": {"md": "h200", "test": "h200"}}
    with pytest.raises(
        InvalidInput, match=r"1 job of .*day.txt would draw 0 W, the first is 4 wit"
    ):
        generate(spec, seed=0)
    spec["profiles"]["train"] = PowerProfile.constant(5, 60)
    assert generate(spec, seed=0).profile.tolist() == [0, 1, 2]
    with pytest.raises(InvalidInput, match=r"no job of .*day.txt has the name of a profile \(mx\)"):
        generate({"trace": sacct, "wait": 0, "profiles": {"mx": "h200"}}, seed=0)


def test_watts_per_gpu_alone_do_not_cover_jobs_without(sacct):
    with pytest.raises(InvalidInput, match=r"2 jobs of .* the first is 2 with 4 CPUs and 0 GPUs"):
        generate({"trace": sacct, "power_w_per_gpu": 300, "wait": "1h"}, seed=0)


def test_formats_and_units_are_passed_on(tmp_path):
    path = tmp_path / "jobs.csv"
    path.write_text("arrival_time,length,cpus\n1,2,3\n2,4,0\n")
    spec = {"trace": path, "time_unit": "h", "power_w_per_cpu": 1, "wait": 0}
    assert generate({**spec, "first": 1}, seed=0).work_s.tolist() == [7200.0]
    with pytest.raises(InvalidTrace, match="held no CPU"):
        generate(spec, seed=0)
    with pytest.raises(UnknownName, match="unknown job format 'swff'"):
        generate({**spec, "format": "swff"}, seed=0)
    with pytest.raises(InvalidInput, match="time_unit is one of s, min, h, ms, not 'd'"):
        generate({**spec, "time_unit": "d"}, seed=0)


# Refusals


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"arrival": {}}, UnknownName, r"unknown key of a workload 'arrival' .*'arrivals'\?\)"),
        ({"power_w_per_cpu": 1}, InvalidInput, "'power_w_per_cpu' belongs to a trace: give trace"),
        ({"arrivals": {"kind": "daily", "perday": 3}}, UnknownName, "'perday'.*'per_day'"),
        (
            {"arrivals": "daily"},
            InvalidInput,
            "arrivals is a table with a kind, one of bursts, dai",
        ),
        ({"arrivals": {"kind": "dayly"}}, UnknownName, "kind of arrivals 'dayly' .*'daily'"),
        ({"duration": 0}, InvalidTime, "duration is more than 0, not 0"),
        ({"start": "2024-07-01"}, InvalidTime, "has no time zone"),
        ({"jobs": None}, InvalidInput, "jobs is a table with a kind, one of constant, ml, phased"),
        ({"lengths": [1]}, InvalidInput, "lengths is a table with a kind"),
        ({"lengths": True}, InvalidTime, "length: a duration is seconds or a text"),
        ({"cpus": 1.5}, InvalidInput, "cpus is a whole number from 0 up, not 1.5"),
        ({"gpus": -1}, InvalidInput, "gpus is a whole number from 0 up, not -1"),
        ({"nodes": 0}, InvalidInput, "nodes is a whole number from 1 up, not 0"),
        ({"memory": "much"}, InvalidInput, "memory: cannot read size 'much': write e.g. 4000M"),
        ({"memory": -1}, InvalidInput, "memory is a number from 0 up, not -1"),
        ({"priority": "high"}, InvalidInput, "priority is a number, not 'high'"),
        ({"jobs": []}, InvalidInput, "a list of at least one such table"),
        ({"jobs": [7]}, InvalidInput, r"jobs \(table 1 of the list\) is a table with a kind, one"),
        (
            {"jobs": [{"kind": "constant", "power_w": 1, "cpu": 3}]},
            UnknownName,
            r"unknown key of constant jobs \(table 1 of the list\) 'cpu'",
        ),
        (
            {"jobs": [{"kind": "constant", "power_w": 1, "share": 0}]},
            InvalidInput,
            "the shares of jobs are all 0",
        ),
        (
            {"jobs": [{"kind": "constant", "power_w": 1, "share": -1}]},
            InvalidInput,
            "share of jobs .* is a number from 0 up, not -1",
        ),
        (
            {"jobs": [{"kind": "profile", "profile": "h200", "lengths": "2h"}]},
            InvalidInput,
            "a profile says how long its jobs are: leave lengths out",
        ),
        (
            {"jobs": [{"kind": "constant", "power_w": 1, "lengths": [3]}]},
            InvalidInput,
            "lengths is a table with a kind",
        ),
        ({"slack": 1}, InvalidInput, "give one of wait, slack, queues, not wait and slack"),
        ({"wait": None}, InvalidInput, "give one of wait, slack, queues, not none"),
        ({"interruptible": "any"}, UnknownName, "interruptible = 'any'.*: known are anywhere"),
        ({"interruptible": ["never"]}, UnknownName, "known are anywhere, checkpoints, never"),
        ({"overestimate": 0}, InvalidInput, "overestimate is a number above 0, not 0"),
        ({"failing": 1.1}, InvalidInput, "failing is a number from 0 to 1, not 1.1"),
        (
            {"scenario": "nighty"},
            UnknownName,
            r"unknown scenario 'nighty' \(did you mean 'nightly'",
        ),
        ({"scenario": ["nightly"]}, UnknownName, "unknown scenario"),
    ],
)
def test_refused(change, error, message):
    with pytest.raises(error, match=message):
        generate({**BASE, **change}, seed=0)


def test_something_must_arrive():
    with pytest.raises(InvalidInput, match=r"say when jobs come: .* 'nightly' or 'periodic'"):
        generate({}, seed=0)
    with pytest.raises(InvalidInput, match="a workload is a table with arrivals or a trace, not 3"):
        generate(3, seed=0)  # type: ignore[arg-type]


@pytest.mark.parametrize("seed", [-1, 1.5, "1", True, None])
def test_seeds_refused(seed):
    with pytest.raises(InvalidInput, match="a seed is a whole number from 0 up"):
        generate(BASE, seed=seed)


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"trace": 5}, InvalidInput, "trace is the name of a file, not 5"),
        ({"trace": "none.csv"}, FileProblem, "none.csv"),
        ({"cpus": 4}, InvalidInput, "'cpus' is for generated jobs, not for a trace"),
        ({"frist": 4}, UnknownName, "key of a workload from a trace 'frist' .*'first'"),
        ({"first": 0}, InvalidInput, "first is a whole number from 1 up, not 0"),
        ({"start": "soon"}, InvalidTime, "cannot read time 'soon'"),
        ({"power_w_per_cpu": None}, InvalidInput, "a trace does not say what its jobs draw"),
        ({"power_w_per_cpu": -1}, InvalidInput, "power_w_per_cpu is a number from 0 up, not -1"),
        ({"power_w_per_cpu": 0}, InvalidInput, "3 jobs of .* would draw 0 W"),
        ({"profiles": "h200"}, InvalidInput, "profiles is a table of names and files, not 'h200'"),
        ({"profiles": {"md": "h2000"}}, UnknownName, "unknown sample profile 'h2000'"),
        ({"wait": None}, InvalidInput, "give one of wait, slack, queues, not none"),
        ({"interruptible": "no"}, UnknownName, "interruptible = 'no'"),
        ({"overestimate": -1}, InvalidInput, "overestimate is a number above 0"),
    ],
)
def test_traces_refused(sacct, change, error, message):
    with pytest.raises(error, match=message):
        generate({"trace": sacct, "power_w_per_cpu": 1, "wait": "1h", **change}, seed=0)


def test_a_trace_that_says_power_and_deadlines_needs_no_more(tmp_path):
    path = tmp_path / "jobs.csv"
    path.write_text(
        "arrival_time,length,cpus,power_w,deadline,interruptible\n"
        "0,3600,1,200,9000,anywhere\n10,3600,1,300,9000,never\n20,0,1,,,\n"
    )
    jobs = generate({"trace": str(path)}, seed=0)
    assert jobs.power.tolist() == [200, 300]
    assert jobs.deadline.tolist() == [9000, 9000]
    assert jobs.interruptible.tolist() == [1, 0]
    # What is said for all is for those of whom the file says nothing.
    said = generate(
        {"trace": str(path), "power_w_per_cpu": 5, "wait": "1h", "interruptible": "checkpoints"},
        seed=0,
    )
    assert said.power.tolist() == [200, 300]
    assert said.deadline.tolist() == [9000, 9000]
    moved = generate({"trace": str(path), "start": 1_000_000}, seed=0)
    assert moved.deadline.tolist() == [1_009_000, 1_009_000]
    path.write_text("arrival_time,length,cpus,power_w\n0,3600,1,200\n5,3600,2,\n")
    with pytest.raises(InvalidInput, match="how long jobs may wait"):
        generate({"trace": str(path)}, seed=0)
    with pytest.raises(InvalidInput, match="would draw 0 W, the first is 2"):
        generate({"trace": str(path), "wait": "1h"}, seed=0)
    path.write_text("arrival_time,length,cpus,power_w,wait\n0,3600,1,200,60\n5,3600,2,9,\n")
    with pytest.raises(InvalidInput, match="how long job 2 may wait"):
        generate({"trace": str(path)}, seed=0)
