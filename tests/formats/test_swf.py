"""The Standard Workload Format."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lowtide.errors import FormatError, InvalidInput
from lowtide.formats import read_jobs, write_jobs
from lowtide.states import STATUSES
from lowtide.trace import NUMBERS, TEXTS, Trace

HEADER = """; Version: 2.2
; Computer: a cluster
;Queue: 1 short
;Queue: 2 long
; free words
; UnixStartTime: 1000000000
"""
LINES = """  1\t 0   5   60   4   30  1024   8  3600   -1 1  7 2  -1  1  1 -1 -1\x20
      2   10  -1  120  2 0.5   -1   2  3600   -1 5  8 2  3   1  1  1  30  99
"""


def put(folder: Path, text: str) -> Path:
    path = folder / "a.swf"
    path.write_bytes(text.encode("latin-1"))
    return path


def same(one: Trace, other: Trace) -> bool:
    return len(one) == len(other) and all(
        one.column(name).tolist() == other.column(name).tolist()
        if name in (*TEXTS, "status")
        else np.array_equal(one.column(name), other.column(name), equal_nan=True)
        for name in (*NUMBERS, *TEXTS, "status")
    )


@pytest.mark.parametrize("newline", ["\n", "\r\n"])
def test_columns(tmp_path: Path, newline: str) -> None:
    trace = read_jobs(put(tmp_path, (HEADER + LINES).replace("\n", newline)))
    assert trace.arrival.tolist() == [1e9, 1e9 + 10]
    assert trace.column("cpu_time_s").tolist() == [120.0, 1.0]
    assert trace.column("memory_bytes")[0] == 4 * 1024 * 1024
    assert trace.column("user").tolist() == [7, 8]
    assert trace.column("executable").tolist() == [None, "3"]
    assert np.isnan(trace.column("wait_s")[1])
    assert "requested_memory_bytes" not in trace.columns
    assert [job.status for job in trace] == ["completed", "cancelled"]
    assert trace.header["Queue"] == "1 short\n2 long"
    assert trace.header[""] == "free words"
    assert trace[0].id == "1"


def test_the_slow_way_reads_the_same(tmp_path: Path) -> None:
    fast = read_jobs(put(tmp_path, HEADER + LINES))
    # A blank line and a whole number with a point are more than the fast way understands.
    odd = LINES.replace("\n", "\n; between\n\n", 1).replace("  1\t", "1.0\t", 1)
    assert same(fast, read_jobs(put(tmp_path, HEADER + odd)))


def test_odd_spacing_and_decimals_read_as_python_reads_them(tmp_path: Path) -> None:
    body = "".join(
        f"\t{i}   {i}.25 -1\t{60 + i / 7!r} 1{' -1' * 13} 9 9  \r\n\n; a remark\n"
        for i in range(1, 200)
    )
    trace = read_jobs(put(tmp_path, "; Note: crème\n" + body))
    assert len(trace) == 199
    assert trace.arrival.tolist() == [i + 0.25 for i in range(1, 200)]
    assert trace.length_s.tolist() == [60 + i / 7 for i in range(1, 200)]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (LINES + "3 4 5\n", "line 3: a job has 18 columns, this line 3"),
        (LINES.replace("120", "x", 1), "line 2, column 'length_s': 'x' is not a number"),
        (LINES.replace(" 8 2 ", " 8.5 2 ", 1), "line 2, column 'user': '8.5' is not a whole"),
        (LINES.replace("120", "-7", 1), "line 2, column 'length_s'.*-1 for unknown, not -7"),
        (LINES.replace("120", "nan", 1), "line 2, column 'length_s'"),
        (LINES.replace("   10 ", " -1 ", 1), "line 2, column 'arrival'.*submitted"),
        (LINES.replace("   -1 5 ", "   -1 6 ", 1), "line 2, column 'status': a status is one of"),
        ("; Version: 2.2\n", "no job below"),
        ("; UnixStartTime: noon\n" + LINES, "UnixStartTime is a number"),
    ],
)
def test_refused(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(FormatError, match=message):
        read_jobs(put(tmp_path, text))


def test_seconds_only(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="SWF counts in seconds"):
        read_jobs(put(tmp_path, LINES), time_unit="h")


def test_header_survives(tmp_path: Path) -> None:
    trace = read_jobs(put(tmp_path, HEADER + LINES))
    write_jobs(trace, tmp_path / "b.swf")
    back = read_jobs(tmp_path / "b.swf")
    assert dict(back.header) == dict(trace.header)
    assert same(trace, back)
    later = trace.shifted("2024-07-01T00:00Z")
    write_jobs(later.select(later.arrival > later.arrival[0]), tmp_path / "b.swf")
    assert read_jobs(tmp_path / "b.swf").arrival.tolist() == [later.arrival[1]]


def test_names_are_numbered_and_noted(tmp_path: Path) -> None:
    trace = Trace(
        columns={
            "arrival": [1.7e9, 1.7e9 + 5, 1.7e9 + 9],
            "id": np.array(["9_[1-3]", "10", "11"], dtype=object),
            "user": np.array(["bob", "ann", "bob"], dtype=object),
            "queue": np.array(["4", None, "4"], dtype=object),
            "status": [STATUSES.index(name) for name in ("timeout", "running", "preempted")],
        }
    )
    write_jobs(trace, tmp_path / "a.swf")
    back = read_jobs(tmp_path / "a.swf")
    assert back.arrival.tolist() == trace.arrival.tolist()
    assert back.column("user").tolist() == [1, 2, 1]
    assert back.column("queue").tolist() == ["4", None, "4"]
    assert back.column("id").tolist() == [1, 2, 3]
    assert [job.status for job in back] == ["failed", "unknown", "cancelled"]
    assert back.header["Note"] == "user 1 is bob\nuser 2 is ann"
    assert back.header["UnixStartTime"] == "1700000000"


def test_arrivals_before_the_origin_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="shifted"):
        write_jobs(Trace(columns={"arrival": [-5.0]}), tmp_path / "a.swf")


MEASURE = st.one_of(
    st.just("-1"),
    st.integers(0, 10**7).map(str),
    st.integers(0, 10**8).map(lambda cents: f"{cents / 100:.2f}"),
)
WHOLE = st.integers(-1, 10**6).map(str)
JOB = st.tuples(
    st.integers(1, 10**6).map(str),
    st.integers(0, 10**9).map(lambda tenths: f"{tenths / 10:.1f}"),
    *[MEASURE] * 2,
    st.integers(-1, 5000).map(str),
    *[MEASURE] * 2,
    st.integers(-1, 5000).map(str),
    *[MEASURE] * 2,
    st.integers(-1, 5).map(str),
    *[WHOLE] * 5,
    *[MEASURE] * 2,
)


@given(
    jobs=st.lists(JOB, min_size=1, max_size=8),
    begin=st.sampled_from(["", "; UnixStartTime: 1500000000\n", "; UnixStartTime: 0\n"]),
    gap=st.sampled_from([" ", "   ", "\t", " \t "]),
)
def test_round_trip(
    tmp_path_factory: pytest.TempPathFactory, jobs: list[tuple[str, ...]], begin: str, gap: str
) -> None:
    folder = tmp_path_factory.getbasetemp()
    path = put(folder, begin + "".join(gap + gap.join(job) + "\n" for job in jobs))
    trace = read_jobs(path)
    write_jobs(trace, folder / "b.swf")
    assert same(trace, read_jobs(folder / "b.swf"))
