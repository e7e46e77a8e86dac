"""Traces as data centres published them: files are drawn, and what they say is known beforehand."""

from __future__ import annotations

import bz2
import csv
import gzip
import io
import json
import lzma
import random
import tarfile
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from lowtide.errors import FileProblem, FormatError, InvalidInput
from lowtide.formats import read_jobs
from lowtide.formats.phased_jobs import sampled_profile
from lowtide.states import STATUSES
from lowtide.trace import Trace
from lowtide.workload import Workload

SEEDS = range(4)


def state(trace: Trace, row: int) -> str:
    return STATUSES[int(trace.column("status")[row])]


def by_id(trace: Trace) -> dict[str, int]:
    return {str(name): row for row, name in enumerate(trace.column("id").tolist())}


def write_rows(path: Path, rows: list[list[Any]]) -> Path:
    with path.open("w", newline="") as file:
        csv.writer(file).writerows(rows)
    return path


@pytest.mark.parametrize("seed", SEEDS)
def test_azure(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    rows, expected = [], {}
    for number in range(40):
        created, length = rng.randrange(0, 10**6, 300), rng.randrange(0, 10**5, 300)
        cores, memory = rng.choice([2, 4, 8, ">24"]), rng.choice([4, 32, ">64"])
        share = round(rng.uniform(0, 100), 3)
        name = f"vm+{number}/=="
        kind = rng.choice(["Delay-insensitive", "Interactive", "Unknown"])
        used = [99.5, share, 90.1]
        user = f"s{number % 5}"
        rows.append([name, user, "d", created, created + length, *used, kind, cores, memory])
        expected[name] = (created, length, 24 if cores == ">24" else cores, share, number % 5)
    trace = read_jobs(write_rows(tmp_path / "vmtable.csv", rows))
    assert trace.source.startswith("Azure VM table")
    rows_of = by_id(trace)
    for name, (created, length, cores, share, user) in expected.items():
        row = rows_of[name]
        assert (trace.arrival[row], trace.length_s[row]) == (created, length)
        assert trace.cpus[row] == cores
        assert trace.column("cpu_time_s")[row] == pytest.approx(length * cores * share / 100)
        assert trace.column("user")[row] == f"s{user}"
    assert any("more cores" in note for note in trace.notes)


@pytest.mark.parametrize("heading", [True, False])
@pytest.mark.parametrize("seed", SEEDS)
def test_pai(tmp_path: Path, seed: int, heading: bool) -> None:
    rng = random.Random(seed)
    rows: list[list[Any]] = []
    expected: dict[str, Any] = {}
    for number in range(30):
        name, tasks = f"{number:024x}", rng.randint(1, 3)
        spans, cpus, gpus, states = [], 0.0, 0.0, []
        for task in range(tasks):
            start = rng.randrange(10**6)
            end = start + rng.randrange(10**5)
            count, cpu, gpu = rng.randint(1, 4), 100 * rng.randint(1, 8), rng.choice([0, 25, 100])
            said = rng.choice(["Terminated", "Failed"])
            rows.append([name, f"t{task}", float(count), said, float(start), float(end)])
            rows[-1] += [float(cpu), 29.296875, float(gpu) if gpu else "", "V100"]
            spans.append((start, end))
            cpus, gpus = cpus + count * cpu / 100, gpus + count * gpu / 100
            states.append(said)
        begin, end = min(a for a, _ in spans), max(b for _, b in spans)
        told = "failed" if "Failed" in states else "completed"
        expected[name] = (begin, end - begin, cpus, gpus, told)
    rows.append(["never", "t", 1.0, "Waiting", "", "", 100.0, 1.0, "", "MISC"])
    rows.append(["still", "t", 1.0, "Running", 5.0, "", 100.0, 1.0, 50.0, "MISC"])
    rng.shuffle(rows)
    head = (
        "job_name,task_name,inst_num,status,start_time,end_time,plan_cpu,plan_mem,plan_gpu,gpu_type"
    )
    trace = read_jobs(
        write_rows(tmp_path / "pai_task_table.csv", [head.split(",")] * heading + rows)
    )
    rows_of = by_id(trace)
    assert set(rows_of) == {*expected, "still"}
    for name, (begin, length, cpus, gpus, told) in expected.items():
        row = rows_of[name]
        assert (trace.arrival[row], trace.length_s[row]) == (begin, length)
        assert (trace.cpus[row], trace.column("gpus")[row]) == (cpus, gpus)
        assert state(trace, row) == told
    assert np.isnan(trace.length_s[rows_of["still"]])
    assert state(trace, rows_of["still"]) == "running"
    assert any("1 job that never started" in note for note in trace.notes)


def google_events(rng: random.Random) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    events: list[dict[str, Any]] = []
    expected: dict[str, Any] = {}
    ends = {6: "completed", 5: "failed", 7: "cancelled"}
    names = [str(10**11 + number) for number in range(25)]
    for place, name in enumerate(names):
        submitted = rng.randrange(600_000_000, 10**12)
        begun = submitted + rng.randrange(10**9)
        instances = rng.randint(1, 5)
        last = begun + rng.randrange(1, 10**11)
        final = rng.choice(list(ends))
        after = rng.sample(names[:place], min(place, rng.randint(0, 2)))
        common = {"collection_id": name, "priority": str(rng.choice([0, 103, 200]))}
        common |= {"collection_type": "0", "user": "u" + str(place % 3)}
        common |= {"start_after_collection_ids": after} if after else {}
        asked = []
        for index in range(instances):
            cpus = rng.choice([0.0, 0.01, 0.25])
            asked.append(cpus)
            mine = common | {"instance_index": str(index)}
            mine |= {"resource_request": {"cpus": cpus, "memory": 0.1}}
            over = last if index == 0 else begun + (last - begun) // 2
            events.append(mine | {"time": str(submitted), "type": "0"})
            events.append(mine | {"time": str(begun), "type": "3"})
            if rng.random() < 0.3:  # Evicted and scheduled again: that is no end.
                events.append(mine | {"time": str(begun + 1), "type": "4"})
                events.append(mine | {"time": str(begun + 1), "type": "3"})
            events.append(mine | {"time": str(over), "type": str(final)})
        expected[name] = (submitted, begun, last, sum(asked), instances, ends[final], after)
    before = {"collection_id": "1", "collection_type": "0", "time": "0", "type": "0"}
    events.append(before)
    events.append({"collection_id": "2", "collection_type": "1", "time": "700", "type": "0"})
    events.sort(key=lambda event: int(event["time"]))
    return events, expected


def as_lines(path: Path, events: list[dict[str, Any]]) -> None:
    path.write_text("".join(json.dumps(event) + "\n" for event in events))


def as_table(path: Path, events: list[dict[str, Any]]) -> None:
    keys = list(dict.fromkeys(key for event in events for key in event))
    rows = [[event.get(key, "") for key in keys] for event in events]
    write_rows(path, [keys, *rows])


def as_parquet(path: Path, events: list[dict[str, Any]]) -> None:
    keys = list(dict.fromkeys(key for event in events for key in event))
    pl.DataFrame(
        {key: [event.get(key) for event in events] for key in keys}, strict=False
    ).write_parquet(path)


@pytest.mark.parametrize("write", [as_lines, as_table, as_parquet])
@pytest.mark.parametrize("seed", SEEDS)
def test_google(
    tmp_path: Path, seed: int, write: Callable[[Path, list[dict[str, Any]]], None]
) -> None:
    events, expected = google_events(random.Random(seed))
    write(tmp_path / "events", events)
    trace = read_jobs(tmp_path / "events")
    rows_of = by_id(trace)
    assert set(rows_of) == set(expected)
    for name, (submitted, begun, last, cpus, instances, told, after) in expected.items():
        row = rows_of[name]
        assert trace.arrival[row] == pytest.approx(submitted / 1e6)
        assert trace.column("wait_s")[row] == pytest.approx((begun - submitted) / 1e6)
        assert trace.length_s[row] == pytest.approx((last - begun) / 1e6)
        assert trace.cpus[row] == pytest.approx(cpus)
        assert trace.column("nodes")[row] == instances
        assert state(trace, row) == told
        assert (trace.column("after")[row] or "").split() == after
    assert any("1 job submitted before" in note for note in trace.notes)
    assert any("1 event of allocation sets" in note for note in trace.notes)


@pytest.mark.parametrize("seed", SEEDS)
def test_philly(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    log, expected = [], {}

    def clock(moment: datetime) -> str:
        return f"{moment:%Y-%m-%d %H:%M:%S}"

    for number in range(30):
        submitted = datetime(2017, 10, 1, tzinfo=UTC) + timedelta(seconds=rng.randrange(10**6))
        moment, ran, attempts = submitted, 0, []
        gpus: list[int] = []
        wait = None
        for _ in range(rng.randint(0, 3)):
            moment += timedelta(seconds=rng.randrange(1000))
            wait = (moment - submitted).total_seconds() if wait is None else wait
            length = rng.randrange(10**4)
            gpus = [rng.randint(1, 8) for _ in range(rng.randint(1, 3))]
            detail = [
                {"ip": f"m{place}", "gpus": [f"gpu{each}" for each in range(count)]}
                for place, count in enumerate(gpus)
            ]
            end = moment + timedelta(seconds=length)
            attempts.append({"start_time": clock(moment), "end_time": clock(end), "detail": detail})
            moment, ran = end, ran + length
        said = rng.choice(["Pass", "Killed", "Failed"])
        log.append({"status": said, "vc": "ee9e8c", "jobid": f"application_{number}"})
        log[-1] |= {"attempts": attempts, "submitted_time": clock(submitted), "user": "ce2f4c"}
        expected[f"application_{number}"] = (submitted, wait, ran, gpus, said)
    running = {"start_time": "2017-10-07 01:12:09", "end_time": "None", "detail": []}
    log.append({"status": "?", "vc": None, "jobid": "still", "attempts": [running]})
    log[-1] |= {"submitted_time": "2017-10-07 01:12:00", "user": None}
    (tmp_path / "cluster_job_log").write_text(json.dumps(log, indent=1))
    trace = read_jobs(tmp_path / "cluster_job_log")
    rows_of = by_id(trace)
    for name, (submitted, wait, ran, gpus, said) in expected.items():
        row = rows_of[name]
        assert trace.arrival[row] == submitted.timestamp()
        assert trace.length_s[row] == ran
        if wait is None:
            assert np.isnan(trace.column("wait_s")[row])
            assert np.isnan(trace.column("gpus")[row])
        else:
            assert trace.column("wait_s")[row] == wait
            assert trace.column("gpus")[row] == sum(gpus)
            assert trace.column("nodes")[row] == len(gpus)
        words = {"Pass": "completed", "Killed": "cancelled", "Failed": "failed"}
        assert state(trace, row) == words[said]
    assert np.isnan(trace.length_s[rows_of["still"]])
    assert state(trace, rows_of["still"]) == "running"
    assert np.isnan(trace.cpus).all()


def pm100_frame(rng: random.Random) -> tuple[pl.DataFrame, list[list[tuple[int, float]]]]:
    """Jobs of known levels: for each, how many samples it has of how many watts."""
    start = datetime(2020, 5, 1, tzinfo=UTC)
    levels = [
        [(rng.randint(20, 90), 100.0 * rng.randint(2, 30)) for _ in range(rng.randint(1, 4))]
        for _ in range(20)
    ]
    levels = [
        [each for place, each in enumerate(job) if place == 0 or each[1] != job[place - 1][1]]
        for job in levels
    ]
    samples = [[watts for count, watts in job for _ in range(count)] for job in levels]
    submit = [start + timedelta(seconds=rng.randrange(10**6)) for _ in levels]
    wait = [rng.randrange(10**4) for _ in levels]
    frame = pl.DataFrame(
        {
            "job_id": list(range(500, 500 + len(levels))),
            "user_id": [rng.randint(1, 5) for _ in levels],
            "job_state": [rng.choice(["COMPLETED", "TIMEOUT", "FAILED"]) for _ in levels],
            "partition": ["1"] * len(levels),
            "submit_time": submit,
            "start_time": [at + timedelta(seconds=by) for at, by in zip(submit, wait, strict=True)],
            "run_time": [20 * len(each) for each in samples],
            "time_limit": [1440] * len(levels),
            "num_nodes_alloc": [rng.randint(1, 4) for _ in levels],
            "num_cores_alloc": [32 * rng.randint(1, 4) for _ in levels],
            "num_gpus_alloc": [rng.randint(0, 4) for _ in levels],
            "nodes": ["[1]"] * len(levels),
            "node_power_consumption": samples,
            "cpu_power_consumption": samples,
            "mem_power_consumption": samples,
        }
    )
    return frame, levels


@pytest.mark.parametrize("seed", SEEDS)
def test_pm100_becomes_profiles(tmp_path: Path, seed: int) -> None:
    frame, levels = pm100_frame(random.Random(seed))
    frame.write_parquet(tmp_path / "job_table.parquet")
    trace = read_jobs(tmp_path / "job_table.parquet")
    jobs = Workload.from_trace(trace, wait="1d")
    rows_of = by_id(trace)
    for place, job in enumerate(levels):
        row = rows_of[str(500 + place)]
        waited = frame["start_time"][place] - frame["submit_time"][place]
        assert trace.column("wait_s")[row] == waited.total_seconds()
        assert trace.column("requested_s")[row] == 86_400
        energy_j = sum(20 * count * watts for count, watts in job)
        assert jobs.energy_j[row] == pytest.approx(energy_j, rel=1e-12)
        assert jobs.run_s[row] == frame["run_time"][place]
        drawn = [(phase.duration_s, phase.power_w) for phase in jobs.job(row).profile.work]
        assert drawn == [(20 * count, watts) for count, watts in job]


def test_samples_of_a_job_keep_their_energy() -> None:
    rng = np.random.default_rng(7)
    for _ in range(200):
        count, length_s = int(rng.integers(1, 200)), float(rng.uniform(1, 4000))
        watts = 300 + 200 * (rng.random(count) < 0.2).cumsum() % 900 + 5 * rng.random(count)
        lost = rng.random(count) < 0.1
        given = [None if gone else float(each) for each, gone in zip(watts, lost, strict=True)]
        made = sampled_profile(given, 20.0, length_s)
        if lost.all():
            assert made is None
            continue
        # By hand: walk the samples, and let the one before hold where one is lost.
        known = next(each for each in given if each is not None)
        energy_j, begin = 0.0, 0.0
        for place, each in enumerate(given):
            known = known if each is None else each
            last = place + 1 == count
            end = length_s if last else min(begin + 20.0, length_s)
            if begin < length_s:
                energy_j += known * (end - begin)
            begin = max(end, begin)
        assert made is not None
        assert made.energy_j == pytest.approx(energy_j)
        assert made.work_s == pytest.approx(length_s)


def test_carbs(tmp_path: Path) -> None:
    phases = [
        {"name": "high", "power": 200, "duration": 900},
        {"name": "low", "power": 100, "duration": 2700, "is_checkpoint": True},
    ]
    startup = [{"name": "load", "power": 50, "duration": 600}]
    both = {"startup": startup, "work": phases}
    ml = {"start_duration": 10, "start_power": 60, "training_duration": 100, "epochs": 3}
    ml |= {"training_power": 200, "evaluate_duration": 20, "evaluate_power": 100}
    ml |= {"save_duration": 5, "save_power": 80}
    rows = [
        (0, 3600, "constant", 250),
        (10, 3600, "phases", phases),
        (20, 4200, "phases", both),
        (30, 3600, "constant-from-phases", phases),
        (40, 8400, "periodic-phases", [both, 8400]),
        (50, 8400, "constant-from-periodic-phases", both),
        (60, 385, "ml", ml),
        (70, 1800, "", ""),
    ]
    text = "arrival_time|length|cpus|type|args\n"
    text += "".join(f"{at}|{length}|1|{kind}|{args}\n" for at, length, kind, args in rows)
    (tmp_path / "phased.csv").write_text(text)
    trace = read_jobs(tmp_path / "phased.csv")
    jobs = Workload.from_trace(trace, wait="1d", power_w_per_cpu=7)
    phased_j = 900 * 200 + 2700 * 100
    periodic_j = 600 * 50 + 2 * phased_j + 600 * 200
    ml_j = 10 * 60 + 3 * (100 * 200 + 20 * 100 + 5 * 80)
    # 8400 s of one whole run are 600 s of startup, two periods of 3600 s, and 600 s of a third.
    expected = [3600 * 250, phased_j, 600 * 50 + phased_j, phased_j, periodic_j, periodic_j, ml_j]
    assert jobs.energy_j.tolist() == pytest.approx([*expected, 7 * 1800])
    assert jobs.run_s.tolist() == pytest.approx([3600, 3600, 4200, 3600, 8400, 8400, 385, 1800])
    assert jobs.job(1).profile.checkpoints_s == (3600.0,)
    assert len(jobs.job(3).profile.work) == 2
    assert {round(phase.power_w, 9) for phase in jobs.job(5).profile.work} == {periodic_j / 8400}


@pytest.mark.parametrize(
    ("kind", "args", "message"),
    [
        ("constant", "x", "no literal"),
        ("constant", "-1", "the power is a number of 0 or more"),
        ("phases", "[{'duration': 5}]", "the power of a phase"),
        ("phases", "[]", "at least one phase of work"),
        ("phases", "__import__('os')", "no literal"),
        ("periodic-phases", "[{'duration': 1e-9, 'power': 1}]", "more than 100000 phases"),
        ("ml", "{'epochs': 3}", "need start_duration"),
        ("sawtooth", "3", "unknown type 'sawtooth'"),
    ],
)
def test_carbs_that_make_no_sense(tmp_path: Path, kind: str, args: str, message: str) -> None:
    path = tmp_path / "jobs.csv"
    path.write_text(f"arrival_time|length|cpus|type|args\n0|60|1||\n0|3600|1|{kind}|{args}\n")
    with pytest.raises(FormatError, match=f"line 3, column 'args'.*{message}"):
        read_jobs(path)


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("azure", "a,b,c,5,4,1,1,1,Unknown,4,8\n", "deleted before it was created"),
        ("azure", "a,b,c,5,9,1,1,1,Unknown,many,8\n", "column 'cores'.*'many' is no size"),
        ("azure", "a,b\n", "has 11 cells"),
        ("pai", "j,t,1,Terminated,-5,9,600,1,50,V100\n", "column 'start_time'"),
        ("pai", "j,t,1,Waiting,,,600,1,50,V100\n", "no task of the table ever started"),
        ("google", '{"time": "5", "type": "0"}\n', "needs a collection_id"),
        ("google", '{"time": "x", "type": "0", "collection_id": 1}\n', "line 1.*microseconds"),
        ("google", '{"time": 5, "type": "99", "collection_id": 1}\n', "type is one of SUBMIT"),
        ("google", '{"time": 0, "type": 0, "collection_id": 1}\n', "no job was submitted within"),
        ("philly", "[]", "is a list of objects"),
        (
            "philly",
            '[{"jobid": 1, "attempts": [], "submitted_time": "yesterday"}]',
            "record 1: a time is written",
        ),
        ("pm100", "job_id,submit_time,run_time\n1,2,3\n", "is a Parquet file"),
    ],
)
def test_refused_traces(tmp_path: Path, name: str, text: str, message: str) -> None:
    path = tmp_path / "trace"
    path.write_text(text)
    with pytest.raises(FormatError, match=message):
        read_jobs(path, format=name)


@pytest.mark.parametrize("name", ["azure", "pai", "google", "philly", "pm100", "carbs"])
def test_published_traces_count_in_seconds(tmp_path: Path, name: str) -> None:
    (tmp_path / "trace").write_text("x")
    with pytest.raises(InvalidInput, match="counts in seconds"):
        read_jobs(tmp_path / "trace", format=name, time_unit="h")


def test_azure_with_a_heading(tmp_path: Path) -> None:
    row = "v,s,d,10,70,9.5,5.5,9.1,Unknown,4,8\n"
    heading = (
        "vm id,subscription id,deployment id,timestamp vm created,timestamp vm deleted,max cpu,"
        "avg cpu,p95 max cpu,vm category,vm core count,vm memory\n"
    )
    (tmp_path / "with").write_text(heading + row)
    (tmp_path / "without").write_text(row)
    told, plain = (read_jobs(tmp_path / name) for name in ("with", "without"))
    assert told.arrival.tolist() == plain.arrival.tolist() == [10]
    assert told.cpus.tolist() == plain.cpus.tolist() == [4]
    (tmp_path / "bad").write_text(heading + row.replace("10,70", "70,10"))
    with pytest.raises(FormatError, match="line 2, column 'deleted'"):
        read_jobs(tmp_path / "bad")


def test_times_that_contradict_each_other_are_told_of(tmp_path: Path) -> None:
    good = "good,t,1,Terminated,10,70,100,1,0,V100\n"
    (tmp_path / "pai").write_text(good + good.replace("good", "bad").replace("70", "5"))
    trace = read_jobs(tmp_path / "pai")
    rows = by_id(trace)
    assert trace.length_s[rows["good"]] == 60
    assert np.isnan(trace.length_s[rows["bad"]])
    assert any("1 job said to end before the start" in note for note in trace.notes)
    span = {"start_time": "2017-10-07 03:00:00", "end_time": "2017-10-07 02:00:00", "detail": []}
    log = [{"status": "Pass", "vc": "a", "jobid": "x", "attempts": [span], "user": "u"}]
    log[0]["submitted_time"] = "2017-10-07 01:00:00"
    (tmp_path / "philly").write_text(json.dumps(log))
    trace = read_jobs(tmp_path / "philly")
    assert np.isnan(trace.length_s).all()
    assert any("1 attempt said to end before the start" in note for note in trace.notes)


def test_pm100_with_holes_in_its_times(tmp_path: Path) -> None:
    frame, _ = pm100_frame(random.Random(3))
    path = tmp_path / "job_table.parquet"
    begun: list[datetime | None] = frame["start_time"].to_list()
    submitted = frame["submit_time"].to_list()
    begun[0], begun[1] = None, submitted[1] - timedelta(seconds=5)
    holes = frame.with_columns(start_time=pl.Series(begun, dtype=frame["start_time"].dtype))
    holes.write_parquet(path)
    trace = read_jobs(path)
    rows = by_id(trace)
    waited = trace.column("wait_s")
    assert np.isnan(waited[[rows["500"], rows["501"]]]).all()
    assert np.isfinite(waited[rows["502"]])
    assert trace.notes == (
        "1 job said to start before it was submitted: how long that waited is unknown",
    )
    # Times without a zone are taken for UTC, and that is told once.
    bare = pl.col("submit_time", "start_time").dt.replace_time_zone(None)
    frame.with_columns(bare).write_parquet(path)
    naive = read_jobs(path)
    assert naive.arrival.tolist() == trace.arrival.tolist()
    assert sum("have no zone" in note for note in naive.notes) == 1
    frame.with_columns(submit_time=pl.Series([None, *submitted[1:]])).write_parquet(path)
    with pytest.raises(FormatError, match="record 1: a time is missing"):
        read_jobs(path)


# What follows are files as they are found, or as people make them of these in passing.


def pm100_published(rng: random.Random) -> pl.DataFrame:
    """The columns of job_table.parquet in their order, as pandas wrote them."""
    frame, _ = pm100_frame(rng)
    count, nodes = frame.height, frame["num_nodes_alloc"].to_list()
    named = [rng.sample(range(980), each) for each in nodes]
    start = frame["start_time"]
    told = {
        "cores_alloc_layout": [str({node: list(range(32)) for node in each}) for each in named],
        "cores_allocated": [str(dict.fromkeys(each, 128)) for each in named],
        "cores_per_task": [4] * count,
        "derived_ec": ["1:0"] * count,
        "eligible_time": frame["submit_time"],
        "end_time": frame.select(start + pl.duration(seconds="run_time")).to_series(),
        "group_id": [25200] * count,
        "job_id": frame["job_id"],
        "job_state": frame["job_state"],
        "nodes": named,
        "num_cores_req": [32 * each for each in nodes],
        "num_cores_alloc": [128 * each for each in nodes],
        "num_nodes_req": nodes,
        "num_nodes_alloc": nodes,
        "num_tasks": [None, *[64.0] * (count - 1)],
        "partition": ["1"] * count,
        "priority": [rng.randint(1, 400_000) for _ in nodes],
        "qos": ["1"] * count,
        "req_nodes": [None, *named[1:]],
        "req_switch": [0] * count,
        "run_time": frame["run_time"],
        "shared": ["OK"] * count,
        "start_time": start,
        "state_reason": ["None"] * count,
        "submit_time": frame["submit_time"],
        "threads_per_core": pl.Series([None] * count, dtype=pl.Float64),
        "time_limit": [270, 4_294_967_295, *[30] * (count - 2)],
        "num_gpus_req": [4 * each for each in nodes],
        "num_gpus_alloc": [4 * each for each in nodes],
        "mem_req": [237 * each for each in nodes],
        "mem_alloc": [237 * each for each in nodes],
        "user_id": frame["user_id"],
        "node_power_consumption": frame["node_power_consumption"].cast(pl.List(pl.Int64)),
        "mem_power_consumption": frame["mem_power_consumption"].cast(pl.List(pl.Int64)),
        "cpu_power_consumption": frame["cpu_power_consumption"].cast(pl.List(pl.Int64)),
    }
    return pl.DataFrame(told)


@pytest.mark.parametrize("seed", SEEDS)
def test_pm100_as_it_is_published(tmp_path: Path, seed: int) -> None:
    frame = pm100_published(random.Random(seed))
    path = tmp_path / "job_table.parquet"
    frame.write_parquet(path)
    trace = read_jobs(path)
    assert trace.source == "PM100, job_table.parquet"
    assert trace.notes == ()
    rows = [by_id(trace)[str(each)] for each in frame["job_id"].to_list()]
    assert trace.cpus[rows].tolist() == frame["num_cores_alloc"].to_list()
    assert trace.column("requested_cpus")[rows].tolist() == frame["num_cores_req"].to_list()
    limits = trace.column("requested_s")[rows]
    assert (limits[0], limits[2]) == (270 * 60, 30 * 60)
    assert np.isnan(limits[1])
    assert len(trace.profiles) > 0
    # Times as pandas keeps them, and as numbers of seconds or nanoseconds, are the same times.
    clocks = ["eligible_time", "end_time", "start_time", "submit_time"]
    for changed in (
        pl.col(clocks).dt.cast_time_unit("ns"),
        pl.col(clocks).dt.convert_time_zone("Europe/Rome"),
        pl.col(clocks).dt.epoch("s"),
        pl.col(clocks).dt.epoch("us"),
        pl.col(clocks).dt.epoch("ns"),
    ):
        frame.with_columns(changed).write_parquet(path)
        assert read_jobs(path).arrival.tolist() == trace.arrival.tolist()
    # Ids and users among which one is missing are fractions to pandas, and stay what they were.
    frame.with_columns(pl.col("job_id", "user_id").cast(pl.Float64)).write_parquet(path)
    assert by_id(read_jobs(path)) == by_id(trace)


def test_pm100_with_less_than_all_its_columns(tmp_path: Path) -> None:
    frame = pm100_published(random.Random(5))
    path = tmp_path / "jobs.parquet"
    frame.drop("run_time").write_parquet(path)
    frame.write_parquet(tmp_path / "all.parquet")
    whole = read_jobs(tmp_path / "all.parquet")
    assert read_jobs(path).length_s.tolist() == whole.length_s.tolist()
    # A job that ends before it starts, and a table that says nothing of the length.
    backwards = frame.with_columns(end_time=pl.col("start_time") - pl.duration(seconds=1))
    backwards.drop("run_time").write_parquet(path)
    with pytest.raises(FormatError, match="'end_time': record 1: the job ends before it starts"):
        read_jobs(path)
    frame.drop("run_time", "end_time").write_parquet(path)
    with pytest.raises(FormatError, match=r"no known format.*It is a table of cores_alloc_layout"):
        read_jobs(path)
    # Nodes of which nobody says how many CPUs are those of Marconi100, and so it is said.
    frame.drop("num_cores_alloc", "num_cores_req").write_parquet(path)
    trace = read_jobs(path)
    assert trace.cpus.tolist() == whole.cpus.tolist()
    assert trace.notes == ("each node counts as 128 CPUs, as Slurm counted on Marconi100",)
    assert len(Workload.from_trace(trace, wait="6h")) == frame.height


def test_pm100_power_that_is_none(tmp_path: Path) -> None:
    frame = pm100_published(random.Random(6))
    path = tmp_path / "jobs.parquet"
    frame.with_columns(node_power_consumption=pl.lit(None)).write_parquet(path)
    trace = read_jobs(path)
    assert np.isnan(trace.column("power_w")).all()
    assert trace.profiles == ()
    watts = frame["node_power_consumption"].to_list()
    expected = read_jobs_of(frame, path)
    watts[0] = [watts[0][0], -7, *watts[0][2:]]
    damaged = frame.with_columns(node_power_consumption=pl.Series(watts))
    mended = read_jobs_of(damaged, path)
    # The first two samples of a job are of one level, so that nothing is lost here.
    assert mended.column("power_w").tolist() == expected.column("power_w").tolist()
    assert mended.notes == (
        "1 sample of power below 0, or beyond all that a job draws: the one before holds on",
    )
    for wrong, message in (
        (pl.duration(seconds=pl.col("run_time")), "numbers are needed here, not Duration"),
        (pl.col("nodes"), "numbers are needed here, not List"),
    ):
        frame.with_columns(run_time=wrong).write_parquet(path)
        with pytest.raises(FormatError, match=f"column 'run_time': {message}"):
            read_jobs(path)
    frame.with_columns(user_id=pl.col("nodes")).write_parquet(path)
    with pytest.raises(FormatError, match="column 'user_id': texts are needed here, not List"):
        read_jobs(path)


def read_jobs_of(frame: pl.DataFrame, path: Path) -> Trace:
    frame.write_parquet(path)
    return read_jobs(path)


AZURE_ROWS = (
    "71fJw0x+Sm/xKA=,VDU4C8cq+OR,Pc2VLB8/oAi==,558300,1673700,91.77696,0.7288786,20.794908,"
    "Delay-insensitive,>24,64\n"
    "bb=,s2,d2,424500,425400,37.879261,3.3253582,37.87926,Unknown,4,32\n"
)
AZURE_HEADINGS = (
    "vmid,subscriptionid,deploymentid,vmcreated,vmdeleted,maxcpu,avgcpu,p95maxcpu,vmcategory,"
    "vmcorecountbucket,vmmemorybucket",
    "vm_id,subscription_id,deployment_id,vm_created,vm_deleted,max_cpu,avg_cpu,p95_max_cpu,"
    "vm_category,vm_core_count_bucket,vm_memory_bucket",
    "Encrypted VM id,Encrypted subscription id,Encrypted deployment id,Timestamp VM created,"
    "Timestamp VM deleted,Max CPU utilization,Avg CPU utilization,P95 of Max CPU utilization,"
    "VM category,VM virtual core count bucket,VM memory (GBs) bucket",
)


@pytest.mark.parametrize("heading", AZURE_HEADINGS)
@pytest.mark.parametrize("quoted", [False, True])
def test_azure_under_any_heading(tmp_path: Path, heading: str, quoted: bool) -> None:
    text = f"{heading}\n{AZURE_ROWS}"
    if quoted:
        text = text.replace(",", '","').replace("\n", '"\r\n"').removesuffix('"')
        text = f'"{text}'
    (tmp_path / "vmtable.csv").write_bytes(text.encode())
    trace = read_jobs(tmp_path / "vmtable.csv")
    assert trace.arrival.tolist() == [424500, 558300]
    assert trace.cpus.tolist() == [4, 24]


@pytest.mark.parametrize("form", ["azure", "pai"])
def test_tables_that_end_within_a_line(tmp_path: Path, form: str) -> None:
    text = AZURE_ROWS
    if form == "pai":
        text = "j,t,1.0,Terminated,5.0,9.0,600.0,29.3,50.0,V100\n" * 2
    (tmp_path / "part.csv").write_text(text + text[: text.index("\n") // 2])
    with pytest.raises(FormatError, match=r"line 3: the last line has .* cells: fetch the file"):
        read_jobs(tmp_path / "part.csv")


def test_google_parts_and_what_lies_outside_the_trace(tmp_path: Path) -> None:
    def event(moment: int, kind: int, name: int, **more: Any) -> dict[str, Any]:
        told = {"time": str(moment), "type": str(kind), "collection_id": str(name)}
        return told | {"collection_type": "0", "instance_index": "0", **more}

    whole = [event(700 * 10**6, 0, 1), event(701 * 10**6, 3, 1), event(9 * 10**8, 6, 1)]
    others = [
        event(0, 2, 2),  # There before the trace, whatever is told of it first.
        event(2**63 - 1, 0, 3),
        event(800 * 10**6, 6, 4),  # Its submission is in another part.
        event(800 * 10**6, 0, 5),
        event(790 * 10**6, 3, 5),
        event(2**63 - 1, 8, 5),
    ]
    as_lines(tmp_path / "first", whole)
    as_lines(tmp_path / "second", others)
    # Parts of a trace that were packed one by one are one when they are joined.
    packed = b"".join(gzip.compress((tmp_path / part).read_bytes()) for part in ("first", "second"))
    (tmp_path / "all.json.gz").write_bytes(packed)
    trace = read_jobs(tmp_path / "all.json.gz")
    assert trace.column("id").tolist() == ["1", "5"]
    assert trace.length_s.tolist()[0] == 199
    assert np.isnan(trace.length_s[1])
    assert np.isnan(trace.column("wait_s")[1])
    for note in (
        "1 job submitted before the trace begins left out",
        "1 job submitted after the trace ends left out",
        "1 job whose SUBMIT is not in this file, but maybe in another part of the trace, left out",
        "1 job said to start before it was submitted: how long that waited is unknown",
    ):
        assert note in trace.notes


@pytest.mark.parametrize("seed", SEEDS)
def test_google_events_that_became_fractions(tmp_path: Path, seed: int) -> None:
    events, expected = google_events(random.Random(seed))
    flat = []
    for event in events:
        request = event.get("resource_request", {"cpus": None, "memory": None})
        whole = ("time", "type", "collection_id", "instance_index", "collection_type")
        told = {key: float(event[key]) for key in whole if key in event}
        ids = [float(each) for each in event.get("start_after_collection_ids", ())]
        told |= {f"resource_request_{what}": request[what] for what in request}
        flat.append(told | {"start_after_collection_ids": ids})
    flat.append(
        {"time": float(2**63 - 1), "type": 8.0, "collection_id": float(next(iter(expected)))}
    )
    as_parquet(tmp_path / "events.parquet", flat)
    trace = read_jobs(tmp_path / "events.parquet")
    rows_of = by_id(trace)
    assert set(rows_of) == set(expected)
    for name, (submitted, _, last, cpus, instances, told, after) in expected.items():
        row = rows_of[name]
        assert trace.arrival[row] == pytest.approx(submitted / 1e6)
        assert trace.length_s[row] + trace.column("wait_s")[row] == pytest.approx(
            (last - submitted) / 1e6
        )
        assert trace.cpus[row] == pytest.approx(cpus)
        assert trace.column("nodes")[row] == instances
        assert state(trace, row) == told
        assert (trace.column("after")[row] or "").split() == after


def philly_job(name: str, submitted: str | None, start: str | None) -> dict[str, Any]:
    attempt = {"start_time": start, "end_time": None, "detail": []}
    job = {"status": "Pass", "vc": "a", "jobid": name, "attempts": [attempt]}
    return job | {"submitted_time": submitted, "user": "u"}


def test_philly_times_that_are_missing_or_say_more(tmp_path: Path) -> None:
    path = tmp_path / "cluster_job_log"
    first = philly_job("first", "2017-10-07 01:11:39", "2017-10-07 01:11:49")
    log = [first, philly_job("unsaid", "None", None), philly_job("null", None, None)]
    log.append(philly_job("early", "2017-10-07 02:00:00", "2017-10-07 01:00:00"))
    path.write_text(json.dumps(log))
    trace = read_jobs(path)
    assert trace.column("id").tolist() == ["first", "early"]
    assert trace.column("wait_s").tolist()[0] == 10
    assert np.isnan(trace.column("wait_s")[1])
    assert "2 jobs without a time of submission left out" in trace.notes
    assert any("1 job said to start before it was submitted" in note for note in trace.notes)
    assert any("have no zone" in note for note in trace.notes)
    path.write_text(json.dumps(log[1:3]))
    with pytest.raises(FormatError, match="no job of the log says when it was submitted"):
        read_jobs(path)
    # Half past one on the day the clocks went back was twice: the zone says which it is.
    zoned = [philly_job(zone, f"2017-11-05 01:30:00 {zone}", None) for zone in ("PST", "PDT")]
    path.write_text(json.dumps(zoned))
    trace = read_jobs(path)
    assert trace.column("id").tolist() == ["PDT", "PST"]
    assert trace.arrival.tolist() == [
        datetime(2017, 11, 5, hour, 30, tzinfo=UTC).timestamp() for hour in (8, 9)
    ]
    assert not any("zone" in note for note in trace.notes)


def archive(path: Path, members: dict[str, str]) -> Path:
    with tarfile.open(path, "w:gz") as packed:
        for name, text in members.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(text.encode())
            packed.addfile(entry, io.BytesIO(text.encode()))
    return path


def test_archives(tmp_path: Path) -> None:
    table = "j,t,1.0,Terminated,5.0,9.0,600.0,29.3,50.0,V100\n"
    # PAI's tables are archives of one file each; a Mac adds what it knows of that file.
    one = archive(
        tmp_path / "pai_task_table.tar.gz", {"._x.csv": "\0", "pai_task_table.csv": table}
    )
    trace = read_jobs(one)
    assert (trace.source, trace.length_s.tolist()) == ("PAI task table, pai_task_table.tar.gz", [4])
    many = archive(tmp_path / "trace-data.tar.gz", {"cluster_job_log": "[]", "machines": "m1,8"})
    with pytest.raises(FormatError, match=r"2 files \(cluster_job_log, machines\): unpack it"):
        read_jobs(many)
    cut = tmp_path / "cut.tar"
    cut.write_bytes(gzip.decompress(one.read_bytes())[:700])
    with pytest.raises(FormatError, match="archive"):
        read_jobs(cut)
    with pytest.raises(FileProblem, match="is a folder: name a file in it"):
        read_jobs(tmp_path)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (bz2.compress(b"a,b\n"), "packed with bzip2: unpack it first, with bunzip2 jobs"),
        (lzma.compress(b"a,b\n"), "packed with xz: unpack it first, with unxz jobs"),
        (b"\x28\xb5\x2f\xfd\x04\x00", "packed with zstd: unpack it first, with unzstd jobs"),
        (b"PK\x03\x04\x14\x00\x00", "packed with zip: unpack it first, with unzip jobs"),
    ],
)
def test_what_is_packed_otherwise(tmp_path: Path, data: bytes, message: str) -> None:
    (tmp_path / "jobs").write_bytes(data)
    with pytest.raises(FormatError, match=message):
        read_jobs(tmp_path / "jobs")


def test_carbs_with_the_columns_of_any_table(tmp_path: Path) -> None:
    path = tmp_path / "phased.csv"
    path.write_text(
        "\nid|arrival_time|length|cpus|name|args|user|deadline|colour\n"
        "#9|50|3600|1|phases|[{'duration': 3600, 'power': 9}]|ann|9000|red\n"
        "\n"
        "7|10|7200|2|phases|[{'duration': 3600, 'power': 5}]|bob||blue\n"
    )
    trace = read_jobs(path)
    assert trace.source == "carbs, phased.csv"
    assert trace.column("id").tolist() == ["7", "#9"]
    assert trace.column("user").tolist() == ["bob", "ann"]
    assert trace.column("deadline")[1] == 9000
    powers = [trace.profiles[place].work[0].power_w for place in trace.column("profile").tolist()]
    assert powers == [5, 9]
    assert trace.notes == (
        "columns ignored: colour",
        "1 job whose phases do not add up to the length: the phases count",
    )
    path.write_text(path.read_text().replace("bob||", "bob|soon|"))
    with pytest.raises(FormatError, match="line 5, column 'deadline': 'soon' is not a number"):
        read_jobs(path)
