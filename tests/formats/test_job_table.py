"""Plain tables of jobs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import lowtide as lt
from lowtide.errors import FormatError, InvalidInput, UnknownName
from lowtide.formats import read_jobs, write_jobs
from lowtide.states import STATUSES
from lowtide.trace import Trace


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
    with pytest.raises(FormatError, match="shorter than 49, which looks like hours"):
        read_jobs(path)
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
    with pytest.raises(InvalidInput, match="time_unit is one of s, min, h, not 'd'"):
        read_jobs(path, time_unit="d")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("arrival_time,lenght,cpus\n0,100,1\n", "column 'lenght': unknown.*to 'length'"),
        ("arrival_time,length,cpus,mood\n0,100,1,2\n", "column 'mood': unknown column, leave"),
        ("arrival_time,length\n0,100\n", "column 'cpus': the column is missing"),
        ("arrival_time,length,cpus\n0,100,1\n5,-1,1\n", "line 3, column 'length'.*not -1"),
        ("arrival_time,length,cpus\n0,100,1\n5,100,nan\n", "line 3, column 'cpus'.*missing"),
        ("arrival_time,length,cpus\n0,100,1\n5,100\n", "line 3, column 'cpus'.*missing"),
        ("arrival_time,length,cpus\n0,100,1\nx,100,1\n", "line 3, column 'arrival_time': 'x'"),
        ("arrival_time,length,cpus\n0,inf,1\n", "line 2, column 'length'"),
        ("arrival_time,length,cpus\n", "no row below"),
        ("datetime,intensity\n0,1\n", "tried csv, sacct, swf"),
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
    for wrong in ("", "inf"):
        with pytest.raises(FormatError, match=r"line 3, column 'priority'.*a number is needed"):
            read_jobs(put(tmp_path, table.format(wrong)))


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
