"""Jobs of the past, in columns."""

import math
import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lowtide.errors import DeadlineTooEarly, InvalidTrace, UnknownName
from lowtide.trace import NUMBERS, TEXTS, Trace


def small(**columns):
    defaults = {"arrival": [10, 0, 10], "length_s": [60, 30, 90], "cpus": [1, 2, 4]}
    return Trace(columns=defaults | columns, header={"Computer": "X"}, source="a test")


def test_rows_are_ordered_by_arrival_then_as_they_came():
    trace = small(id=["a", "b", "c"], status=[1, 2, 0])
    assert [row.id for row in trace] == ["b", "a", "c"]
    assert trace.length_s.tolist() == [30, 60, 90]
    assert [row.status for row in trace] == ["failed", "completed", "unknown"]


@given(st.lists(st.integers(0, 5), max_size=30))
def test_sorting_is_stable(arrivals):
    trace = Trace(columns={"arrival": arrivals, "length_s": range(len(arrivals))})
    expected = sorted(zip(arrivals, range(len(arrivals)), strict=True))
    got = list(zip(trace.arrival.tolist(), trace.length_s.tolist(), strict=True))
    assert got == expected


def test_what_a_trace_does_not_say_is_unknown():
    trace = Trace(columns={"arrival": [5.0], "gpus": [math.nan], "user": [None]})
    row = trace[0]
    assert (row.id, row.arrival, row.status) == ("1", 5.0, "unknown")
    assert row.length_s is row.cpus is row.gpus is row.nodes is row.user is None
    for name in NUMBERS[1:]:
        assert np.isnan(trace.column(name)).all()
    for name in TEXTS:
        assert trace.column(name).tolist() == ([1] if name == "id" else [None])
    assert trace.column("status").tolist() == [0]


def test_rows_count_from_either_end():
    trace = small(user=["u", None, "w"])
    assert trace[-1] == trace[2]
    assert trace[2].user == "w"
    assert trace[0].user is None
    assert (len(trace), len(list(trace))) == (3, 3)
    for row in (3, -4):
        with pytest.raises(IndexError, match="a trace with 3 jobs"):
            trace[row]


@pytest.mark.parametrize(
    ("columns", "error", "message"),
    [
        ({"length_s": [1]}, InvalidTrace, "needs an arrival for every job"),
        ({"arrival": [1, 2], "cpus": [1]}, InvalidTrace, "one entry per job"),
        ({"arrival": [[1, 2]]}, InvalidTrace, "one entry per job"),
        ({"arrival": [1, math.nan]}, InvalidTrace, "job 2 of the trace has no arrival"),
        ({"arrival": [1, 2], "length_s": [5, -1]}, InvalidTrace, "job 2 of the trace ran -1 s"),
        ({"arrival": [1], "lenght_s": [5]}, UnknownName, "did you mean 'length_s'?"),
    ],
)
def test_columns_that_make_no_trace_are_refused(columns, error, message):
    with pytest.raises(error, match=re.escape(message)):
        Trace(columns=columns)


def test_asking_for_an_unknown_column_lists_the_known():
    with pytest.raises(UnknownName, match="unknown trace column 'watts'"):
        small().column("watts")


def test_a_trace_cannot_be_changed():
    trace = small()
    with pytest.raises(ValueError, match="read-only"):
        trace.arrival[0] = 5
    with pytest.raises(TypeError):
        trace.columns["cpus"] = None
    with pytest.raises(TypeError):
        trace.header["x"] = "y"


def test_a_trace_leaves_its_callers_arrays_alone():
    arrival, cpus = np.array([0.0, 1.0]), np.array([1.0, 2.0])
    trace = Trace(columns={"arrival": arrival, "cpus": cpus})
    cpus[0] = 99.0
    assert trace.cpus.tolist() == [1.0, 2.0]


def test_select_and_shift_keep_the_rest():
    trace = small().select(np.array([True, False, True]))
    assert trace.arrival.tolist() == [0, 10]
    assert (dict(trace.header), trace.source) == ({"Computer": "X"}, "a test")
    moved = trace.shifted("2024-07-01T00:00Z")
    assert (moved.arrival - 1719792000.0).tolist() == [0, 10]
    assert moved.cpus.tolist() == trace.cpus.tolist()
    assert len(trace.select(slice(1, None))) == 1


def test_an_empty_trace_is_a_trace():
    trace = Trace(columns={"arrival": []})
    assert len(trace) == 0
    assert trace.shifted(0).jobs(power_w_per_cpu=1, wait=0) == []


def test_jobs_get_power_by_cpus_and_time_by_the_wait():
    jobs = small(id=["a", "b", "c"], gpus=[0, math.nan, 2]).jobs(
        power_w_per_cpu=10, wait="1h", interruptible="anywhere"
    )
    assert [job.id for job in jobs] == ["b", "a", "c"]
    assert [job.profile.energy_j for job in jobs] == [600, 600, 3600]
    assert [job.slack_s for job in jobs] == [3600, 3600, 3600]
    assert [job.deadline for job in jobs] == [3630, 3670, 3700]
    assert [job.resources.gpus for job in jobs] == [0, 0, 2]
    assert {job.interruptible for job in jobs} == {"anywhere"}


def test_jobs_without_length_or_cpus_are_not_made_up():
    trace = small(length_s=[60, 0, 60], cpus=[1, 1, math.nan])
    message = "2 of 3 jobs have no length or no CPUs, the first in row 1: leave them out with"
    with pytest.raises(InvalidTrace, match=re.escape(message)):
        trace.jobs(power_w_per_cpu=10, wait=0)
    kept = trace.select((trace.length_s > 0) & (trace.cpus > 0))
    assert len(kept.jobs(power_w_per_cpu=10, wait=0)) == 1
    with pytest.raises(DeadlineTooEarly):
        kept.jobs(power_w_per_cpu=10, wait=-1)


def test_repr_names_the_columns():
    assert repr(small()) == "<Trace: 3 jobs, arrival, length_s, cpus, id; a test>"


def test_jobs_keep_their_numbers_when_others_are_left_out():
    trace = small()
    assert [row.id for row in trace] == ["2", "1", "3"]
    kept = trace.select(trace.arrival > 0)
    assert [row.id for row in kept] == ["1", "3"]
