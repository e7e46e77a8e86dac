"""Slurm's accounting."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from lowtide.errors import FormatError
from lowtide.formats import read_jobs

HEADINGS = (
    "JobIDRaw|JobID|User|Account|Partition|QOS|Submit|Start|End|ElapsedRaw|TimelimitRaw|Suspended|"
    "State|NNodes|NCPUS|ReqCPUS|ReqMem|AllocTRES|TotalCPU|MaxRSS|ConsumedEnergyRaw|JobName"
)
ROWS = [
    "10|10|ann|phys|main|normal|1000|1060|1660|600|60|00:00:00|COMPLETED|2|8|8|4G|"
    "billing=8,cpu=8,gres/gpu:a100=2,gres/gpu=2|00:00:00||900000|a|b",
    "10.batch|10.batch||phys|||1060|1060|1660|600||00:00:00|COMPLETED|1|4|4|||01:00.500|2048K|0|batch",
    "10.0|10.0||phys|||1060|1060|1660|600||00:00:00|COMPLETED|2|8|8|||1-00:00:00|1G|0|step",
    "11|11_4|bob|phys|main|normal|1100|1200|1300|100|UNLIMITED|00:00:30|CANCELLED by 1000|1|1|1|"
    "2000Mc|cpu=1|00:00:07||18446744073709551614|array",
    "12|12_[5-9]|bob|phys|main|normal|1200|Unknown|Unknown|0|10|00:00:00|PENDING|1|0|4|1Gn||"
    "00:00:00|||wait",
    "13|13|bob|phys|main|normal|900|950|960|10|10|00:00:00|NODE_FAIL|1|1|1|0|cpu=1|00:00:00||0|r",
    "13.batch|13.batch||phys|||950|950|960|10||00:00:00|CANCELLED|1|1|1|||00:00:03|0|0|batch",
    "13|13|bob|phys|main|normal|900|990|1090|100|10|00:00:00|COMPLETED|1|1|1|0|cpu=1|00:00:00||0|r",
    "13.batch|13.batch||phys|||990|990|1090|100||00:00:00|COMPLETED|1|1|1|||00:01:39|0|0|batch",
]


def put(folder: Path, *rows: str, headings: str = HEADINGS) -> Path:
    path = folder / "a.txt"
    path.write_text("\n".join([headings, *rows]) + "\n")
    return path


@pytest.mark.parametrize("end", ["", "|"])
def test_jobs_and_their_steps(tmp_path: Path, end: str) -> None:
    path = put(tmp_path, *(row + end for row in ROWS), headings=HEADINGS + end)
    trace = read_jobs(path)
    jobs = {job.id: row for row, job in enumerate(trace)}
    assert list(jobs) == ["13", "13#2", "10", "11_4", "12_[5-9]"]

    def of(job: str, name: str) -> object:
        return trace.column(name)[jobs[job]]

    assert of("10", "name") == "a|b"
    assert (of("10", "arrival"), of("10", "wait_s"), of("10", "length_s")) == (1000, 60, 600)
    assert (of("10", "gpus"), of("10", "nodes"), of("10", "cpus")) == (2, 2, 8)
    assert (of("10", "cpu_time_s"), of("10", "memory_bytes")) == (86460.5, 2**30)
    assert (of("10", "energy_j"), of("10", "requested_s")) == (900000, 3600)
    assert of("10", "requested_memory_bytes") == 4 * 2**30
    assert np.isnan(of("11_4", "energy_j"))
    assert np.isnan(of("11_4", "requested_s"))
    assert (of("11_4", "cpu_time_s"), of("11_4", "suspended_s")) == (7, 30)
    assert of("11_4", "requested_memory_bytes") == 2000 * 2**20
    assert np.isnan(of("12_[5-9]", "length_s"))
    assert np.isnan(of("12_[5-9]", "gpus"))
    assert (of("13", "cpu_time_s"), of("13#2", "cpu_time_s")) == (3, 99)
    assert [job.status for job in trace] == [
        "node_failure",
        "completed",
        "completed",
        "cancelled",
        "pending",
    ]
    assert (of("13", "user"), of("13", "queue"), of("13", "partition")) == ("bob", "normal", "main")


SHORT = "JobID|Submit|State|ElapsedRaw"


@pytest.mark.parametrize(
    ("headings", "row", "message"),
    [
        (SHORT, "1|2024-07-01T00:00:00|COMPLETED|5", "line 2, column 'Submit'.*SLURM_TIME_FORMAT"),
        (SHORT, "1|Unknown|COMPLETED|5", "line 2, column 'Submit': a job needs the time"),
        (SHORT, "1|5|COMPLETED|long", "line 2, column 'ElapsedRaw': 'long' is not a number"),
        (SHORT, "1|5|COMPLETED|-4", "line 2, column 'ElapsedRaw'.*not -4"),
        (SHORT, "1|5|COMPLETED", "line 2: this line has 3 cells under 4 headings"),
        (SHORT, "1.batch|5|COMPLETED|4", "no job below"),
        (SHORT + "|TotalCPU", "1|5|COMPLETED|4|ages", "line 2, column 'TotalCPU'.*'ages'"),
        (SHORT + "|ReqMem", "1|5|COMPLETED|4|much", "line 2, column 'ReqMem'.*'much'"),
        ("JobID|State", "1|COMPLETED", "line 1, column 'Submit': the column is missing"),
    ],
)
def test_refused(tmp_path: Path, headings: str, row: str, message: str) -> None:
    with pytest.raises(FormatError, match=message):
        read_jobs(put(tmp_path, row, headings=headings))


def test_forced_on_something_else(tmp_path: Path) -> None:
    with pytest.raises(FormatError, match="column is missing"):
        read_jobs(put(tmp_path, "1,2", headings="a,b"), format="sacct")


def test_times_with_offsets_are_fine(tmp_path: Path) -> None:
    trace = read_jobs(put(tmp_path, "1|1970-01-01T00:01:00+00:00|COMPLETED|5", headings=SHORT))
    assert trace.arrival.tolist() == [60.0]
