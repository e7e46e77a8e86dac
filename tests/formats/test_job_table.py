"""Plain tables of jobs."""

from __future__ import annotations

import random
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

import lowtide as lt
from lowtide.errors import FormatError, InvalidInput, InvalidJob, InvalidTrace, UnknownName
from lowtide.formats import read_jobs, write_jobs
from lowtide.profile import Phase, PowerProfile
from lowtide.samples import sample_profile
from lowtide.states import STATUSES
from lowtide.trace import NUMBERS, TEXTS, Trace
from support.nightly import drawn


def put(folder: Path, text: str) -> Path:
    path = folder / "jobs.csv"
    path.write_text(text)
    return path


@pytest.mark.parametrize(
    ("name", "jobs"),
    [
        ("pai_1k.csv", 1000),
        ("azure-100k_seconds.csv.gz", 99_988),
        ("mustang-trace-2015-100k_seconds.csv.gz", 100_000),
        ("pai-100k_seconds.csv.gz", 99_998),
    ],
)
def test_real_traces(data: Callable[[str], Path], name: str, jobs: int) -> None:
    trace = read_jobs(data(f"traces/{name}"))
    assert len(trace) == jobs
    assert trace.source == f"job table, {name}"


def test_scorelab(data: Callable[[str], Path]) -> None:
    path = data("traces/scorelab.csv")
    with pytest.raises(FormatError, match="shorter than 49, which looks like hours") as refused:
        read_jobs(path)
    # In hours it would last for centuries, so seconds are offered first.
    assert "span 132,507 days in hours, and 37 in seconds): say time_unit='s', 'h' or 'min'" in str(
        refused.value
    )
    trace = read_jobs(path, time_unit="s")
    assert len(trace) == 45_735
    counts = [int((trace.column("status") == code).sum()) for code in range(len(STATUSES))]
    assert counts[STATUSES.index("completed")] == 34_057
    assert counts[STATUSES.index("out_of_memory")] == 36


def test_units_and_start(tmp_path: Path) -> None:
    path = put(tmp_path, "arrival_time,length,cpus\n1,2,3\n2,4,5\n")
    trace = read_jobs(path, time_unit="h", start="2024-07-01T00:00Z")
    assert trace.length_s.tolist() == [7200.0, 14400.0]
    assert trace.arrival.tolist() == [1719792000.0, 1719795600.0]
    with pytest.raises(InvalidInput, match="time_unit is one of s, min, h, ms, not 'd'"):
        read_jobs(path, time_unit="d")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("arrival_time,lenght,cpus\n0,100,1\n", "column 'lenght': unknown.*to 'length'"),
        ("arrival_time,length\n0,100\n", "column 'cpus': the column is missing"),
        ("arrival_time,length,cpus\n0,100,1\n5,-1,1\n", "line 3, column 'length'.*not -1"),
        ("arrival_time,length,cpus\n0,100,1\n5,100,nan\n", "line 3, column 'cpus'.*missing"),
        ("arrival_time,length,cpus\n0,100,1\n5,100\n", "line 3, column 'cpus'.*missing"),
        ("arrival_time,length,cpus\n0,100,1\nx,100,1\n", "line 3, column 'arrival_time': 'x'"),
        ("arrival_time,length,cpus\n0,inf,1\n", "line 2, column 'length'"),
        ("arrival_time,length,cpus\n", "no row below"),
        ("datetime,intensity\n0,1\n", "tried azure, carbs, csv, .*, sacct, swf"),
    ],
)
def test_refused(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(FormatError, match=message):
        read_jobs(put(tmp_path, text))


def test_formats_by_name(tmp_path: Path) -> None:
    path = put(tmp_path, "arrival_time,length,cpus\n0,100,1\n")
    with pytest.raises(UnknownName, match="did you mean 'swf'"):
        read_jobs(path, format="swff")
    with pytest.raises(InvalidInput, match=r"can only be read: .* are csv, swf"):
        write_jobs(read_jobs(path), tmp_path / "b.csv", format="sacct")


def test_more_columns_where_there_are(tmp_path) -> None:
    path = tmp_path / "jobs.csv"
    path.write_text(
        "arrival_time,length,cpus,gpus,nodes,requested,user,name\n"
        "0,2,8,1,2,5,ada,train\n"
        "1,3,4,0,1,4,bob,other\n"
    )
    trace = read_jobs(path, time_unit="h")
    assert trace.column("requested_s").tolist() == [5 * 3600, 4 * 3600]
    assert trace.column("gpus").tolist() == [1, 0]
    assert trace.column("nodes").tolist() == [2, 1]
    assert (trace[0].user, trace.column("name")[1]) == ("ada", "other")


def test_priorities_may_be_below_0(tmp_path: Path) -> None:
    table = "arrival_time,length,cpus,priority\n0,100,1,-2.5\n5,100,1,{}\n"
    trace = read_jobs(put(tmp_path, table.format(7)))
    assert trace.column("priority").tolist() == [-2.5, 7]
    with pytest.raises(FormatError, match=r"line 3, column 'priority'.*a number is needed"):
        read_jobs(put(tmp_path, table.format("inf")))
    # What a row does not say is not known.
    assert np.isnan(read_jobs(put(tmp_path, table.format(""))).column("priority")[1])


def test_jobs_are_written_and_read_back(tmp_path: Path) -> None:
    text = (
        "arrival_time,length,cpus,gpus,requested,priority,status,user,name\n"
        '0.5,100,1,0,200,-3,completed,ada,"a, b"\n'
        "7,900.25,64,2,1000,0,failed,bob,x\n"
    )
    trace = read_jobs(put(tmp_path, text))
    write_jobs(trace, tmp_path / "b.csv", format="csv")
    again = read_jobs(tmp_path / "b.csv")
    assert list(again.columns) == list(trace.columns)
    for name in trace.columns:
        assert again.column(name).tolist() == trace.column(name).tolist(), name


NUMBERED = ("id", "user", "group", "executable", "queue", "partition")


def drawn_trace(rng: random.Random) -> Trace:
    """A trace with some of all columns, some of their cells unknown."""
    count = rng.randint(1, 12)
    arrival = [rng.choice([0.0, 1.5, 1e9]) + rng.random() * 1e6 for _ in range(count)]
    columns: dict[str, Any] = {"arrival": arrival}
    columns["length_s"] = [rng.choice([0.1, 3.0, 1_234_567.0, 1e9 / 7]) for _ in range(count)]
    for name in NUMBERS:
        if name in columns or (rng.random() < 0.4 and name != "cpus"):
            continue
        values = [rng.choice([0.0, 1 / 3, 7.0, 2.0**40 + 1, 1e-9]) for _ in range(count)]
        lacks = 0.0 if name == "cpus" else 0.3
        columns[name] = [np.nan if rng.random() < lacks else value for value in values]
    for name in TEXTS:
        if rng.random() < 0.5:
            words = ["never", "anywhere", "checkpoints"]
            words = words if name == "interruptible" else ["a b", 'c,"d', "7", "é|ü", "#9"]
            cells = [rng.choice([*words, None]) for _ in range(count)]
            if name == "id":
                cells = [f"{each}{place}" for place, each in enumerate(cells)]
            columns[name] = np.array(cells, dtype=object)
            if name in NUMBERED and rng.random() < 0.3:
                columns[name] = np.array([rng.randrange(10**9) for _ in range(count)])
    if rng.random() < 0.7:
        columns["status"] = [rng.randrange(len(STATUSES)) for _ in range(count)]
    profiles: list[PowerProfile] = []
    if rng.random() < 0.6:
        profiles = [
            PowerProfile(
                startup=[Phase(name="s", duration_s=1 / 3, power_w=5)] * rng.randint(0, 1),
                work=[Phase(name="w", duration_s=rng.random() + 0.1, power_w=rng.random() * 900)]
                * rng.randint(1, 3),
            )
            for _ in range(rng.randint(1, 3))
        ]
        columns["profile"] = [rng.randrange(-1, len(profiles)) for _ in range(count)]
    return Trace(columns=columns, profiles=profiles)


def told(trace: Trace, name: str) -> list[Any]:
    """A column as it is compared: numbers to the last digit, texts by what they say."""
    values = trace.column(name).tolist()
    if name in TEXTS:
        return [None if each is None else str(each) for each in values]
    if name == "profile":
        return [None if each < 0 else trace.profiles[each] for each in values]
    return [None if each != each else each for each in values]


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_traces_are_written_and_read_back_whole(tmp_path: Path, kind: str) -> None:
    for seed in range(drawn(60, 2000)):
        trace = drawn_trace(random.Random(seed))
        path = tmp_path / f"jobs.{kind}"
        write_jobs(trace, path, format=kind)
        again = read_jobs(path)
        for name in trace.columns:
            assert told(again, name) == told(trace, name), (seed, name)
        assert set(again.columns) <= {*trace.columns}, seed
        assert again.notes == ()


def test_parquet_keeps_jobs_of_unknown_length(tmp_path: Path) -> None:
    trace = Trace(columns={"arrival": [0.0, 1.0], "length_s": [np.nan, 90.0], "gpus": [1.0, 2.0]})
    write_jobs(trace, tmp_path / "b.parquet", format="parquet")
    again = read_jobs(tmp_path / "b.parquet")
    assert told(again, "length_s") == [None, 90.0]
    assert np.isnan(again.cpus).all()


def test_columns_that_mean_nothing_are_told_of(tmp_path: Path) -> None:
    text = "arrival_time,length,cpus,mood,prioritie\n0,100,1,good,5\n"
    trace = read_jobs(put(tmp_path, text))
    assert trace.notes == ("columns ignored: mood, prioritie (did you mean 'priority'?)",)
    assert trace.shifted(50).select(slice(1)).notes == trace.notes


def test_what_a_row_says_goes_before_what_is_said_for_all(tmp_path: Path) -> None:
    text = (
        "arrival_time,length,cpus,power_w,deadline,wait,waited,interruptible,profile,priority,id\n"
        "0,1000,2,300,,,5,anywhere,,4,a\n"
        "10,1000,2,,5000,,0,,,,b\n"
        "20,1000,2,,,60,7.5,checkpoints,,,c\n"
        "30,1000,2,,,,1,,h200,,d\n"
    )
    trace = read_jobs(put(tmp_path, text))
    jobs = lt.Workload.from_trace(trace, wait="1h", power_w_per_cpu=10)
    h200 = sample_profile("h200")
    assert jobs.deadline.tolist() == [1000 + 3600, 5000, 20 + 1000 + 60, 30 + h200.run_s + 3600]
    assert jobs.energy_j.tolist() == [300_000, 20_000, 20_000, h200.energy_j]
    assert jobs.interruptible.tolist() == [1, 0, 2, 0]
    assert jobs.priority.tolist() == [4, 0, 0, 0]
    assert jobs.waited_s is not None
    assert jobs.waited_s.tolist() == [5, 0, 7.5, 1]
    # As jobs one by one, too.
    alone = trace.jobs(power_w_per_cpu=10, wait="1h")
    for one, other in zip(alone, jobs, strict=True):
        assert (one.deadline, one.interruptible) == (other.deadline, other.interruptible)
        assert one.profile.energy_j == other.profile.energy_j
        assert one.priority == other.priority
    with pytest.raises(InvalidTrace, match="how long job a may wait"):
        lt.Workload.from_trace(trace, power_w_per_cpu=10)
    moved = trace.shifted("2024-07-01T00:00Z")
    assert moved.column("deadline")[1] - moved.arrival[1] == 4990


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_times_of_all_kinds_may_be_dates(tmp_path: Path, kind: str) -> None:
    start = datetime(2024, 7, 1, tzinfo=UTC)
    due = [start + timedelta(hours=9), None]
    if kind == "csv":
        path = put(
            tmp_path,
            "arrival_time,length,cpus,deadline,start_time\n"
            "2024-07-01T00:00Z,3600,1,2024-07-01T11:00+02:00,2024-07-01 00:10:00Z\n"
            "2024-07-01T01:00Z,3600,1,,2024-07-01 01:00:00Z\n",
        )
    else:
        path = tmp_path / "jobs.parquet"
        pl.DataFrame(
            {
                "arrival_time": [start, start + timedelta(hours=1)],
                "length": [3600, 3600],
                "cpus": [1, 1],
                "deadline": due,
                "start_time": [start + timedelta(minutes=10), start + timedelta(hours=1)],
            }
        ).write_parquet(path)
    trace = read_jobs(path)
    assert trace.arrival.tolist() == [start.timestamp(), start.timestamp() + 3600]
    assert told(trace, "deadline") == [start.timestamp() + 9 * 3600, None]
    assert trace.column("wait_s").tolist() == [600, 0]


@pytest.mark.parametrize(
    ("heading", "cell", "message"),
    [
        ("deadline", "soon", "'soon' is not a number"),
        ("deadline", "-5", "0 or more"),
        ("interruptible", "maybe", "never, anywhere, checkpoints, not 'maybe'"),
        ("profile", "h201", "unknown sample profile 'h201'"),
        ("profile", "missing.toml", "no such file"),
        ("profile", '"{""work"": []}"', "work"),
        ("profile", "{", "Expecting"),
        ("start_time", "3", "starts 2 s before it arrives"),
        ("power_w", "1e300", "0 or more"),
    ],
)
def test_refused_cells(tmp_path: Path, heading: str, cell: str, message: str) -> None:
    text = f"arrival_time,length,cpus,{heading}\n5,100,1,\n5,100,1,{cell}\n"
    with pytest.raises(FormatError, match=f"line 3, column '{heading}'.*{message}"):
        read_jobs(put(tmp_path, text))


def test_a_deadline_too_early_names_its_job(tmp_path: Path) -> None:
    trace = read_jobs(put(tmp_path, "arrival_time,length,cpus,deadline,id\n0,100,1,99,x7\n"))
    with pytest.raises(InvalidJob, match=r"job x7 \(row 1\) cannot be done by its deadline"):
        lt.Workload.from_trace(trace)


def test_a_damaged_parquet_file_is_refused(tmp_path: Path) -> None:
    write_jobs(drawn_trace(random.Random(1)), tmp_path / "a.parquet", format="parquet")
    whole = (tmp_path / "a.parquet").read_bytes()
    (tmp_path / "b.parquet").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(FormatError, match="not a readable Parquet file"):
        read_jobs(tmp_path / "b.parquet")


def test_a_job_without_a_length_has_no_row(tmp_path: Path) -> None:
    trace = Trace(columns={"arrival": [0.0], "length_s": [np.nan], "cpus": [1.0]})
    with pytest.raises(InvalidInput, match="job 1 has no length_s"):
        write_jobs(trace, tmp_path / "b.csv", format="csv")


def test_arrivals_may_be_dates(tmp_path: Path) -> None:
    path = put(
        tmp_path,
        "arrival_time,length,cpus\n2024-10-27T02:30+02:00,2,1\n2024-10-27T02:30+01:00,3,1\n",
    )
    trace = read_jobs(path, time_unit="h")
    assert np.diff(trace.column("arrival")).tolist() == [3600.0]
    assert trace.column("length_s").tolist() == [7200.0, 10800.0]
    with pytest.raises(FormatError, match=r"line 2, column 'arrival_time'.*no time zone.*02:30Z"):
        read_jobs(put(tmp_path, "arrival_time,length,cpus\n2024-10-27T02:30,600,1\n"))


def test_jobs_of_a_simulation_can_be_simulated_again(tmp_path: Path) -> None:
    grid = lt.Signal.from_values([300, 100, 200], start=0, step_s="1h")
    jobs = lt.Workload(
        arrival=[0, 600],
        deadline=10_000,
        profile=[0, 0],
        profiles=[lt.PowerProfile.constant(100, "30s")],
    )
    lt.simulate(jobs, grid, policy="run_now").table().write_csv(tmp_path / "jobs.csv")
    trace = read_jobs(tmp_path / "jobs.csv")
    assert trace.column("arrival").tolist() == [0, 600]
    assert trace.column("length_s").tolist() == [30, 30]


def test_milliseconds_are_not_taken_for_seconds(tmp_path: Path) -> None:
    path = put(tmp_path, "arrival_time,length,cpus\n1719813600000,100000,1\n")
    with pytest.raises(FormatError, match=r"line 2, column 'arrival_time'.*say time_unit='ms'"):
        read_jobs(path)
    trace = read_jobs(path, time_unit="ms")
    assert trace.arrival.tolist() == [1719813600.0]
    assert trace.length_s.tolist() == [100.0]
