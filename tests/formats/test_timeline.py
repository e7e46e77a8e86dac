"""Steps and gaps."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from lowtide.errors import FormatError, InvalidInput
from lowtide.formats.source import Place
from lowtide.formats.times import Timeline, lay_out
from lowtide.signal import FILLED

PLACE = Place(path=Path("a.csv"), column="value", line=lambda row: row + 2)
NAN = float("nan")


def lay(times: list[float], values: list[float], **options: object) -> Timeline:
    return lay_out(np.array(times), np.array(values), PLACE, **options)  # type: ignore[arg-type]


def test_without_gaps() -> None:
    line = lay([10, 20, 30], [1, 2, 3])
    assert (line.start, line.step_s, line.marks.any()) == (10.0, 10.0, False)
    assert line.values.tolist() == [1, 2, 3]


def test_hold_and_interpolate_count_what_they_fill() -> None:
    times, values = [0.0, 10, 20, 50, 60], [1.0, NAN, 3, 6, 7]
    held = lay(times, values, gaps="hold")
    assert held.values.tolist() == [1, 1, 3, 3, 3, 6, 7]
    assert np.count_nonzero(held.marks == FILLED) == 3
    between = lay(times, values, gaps="interpolate")
    assert between.values.tolist() == [1, 2, 3, 4, 5, 6, 7]
    assert np.count_nonzero(between.marks == FILLED) == 3


@pytest.mark.parametrize(
    ("times", "values", "gaps", "message"),
    [
        ([0, 10, 20, 40], [1, 2, 3, 4], "refuse", "line 5.*1 of 5 steps are missing.*00:00:30 UTC"),
        ([0, 10, 20, 40], [1, NAN, 3, 4], "refuse", "line 3.*2 of 5 steps.*00:00:10 UTC"),
        ([0, 10, 30, 40], [1, 2, NAN, 4], "refuse", "line 4.*2 of 5 steps.*00:00:20 UTC"),
        ([0, 10, 10], [1, 2, 3], "refuse", "line 4.*twice"),
        ([0, 10, 5], [1, 2, 3], "refuse", "line 4.*sort the file"),
        ([0, 10, 20, 33], [1, 2, 3, 4], "refuse", "line 5.*whole number of steps"),
        ([0], [1], "refuse", "one value alone"),
        ([0, 10, 20], [NAN, 2, 3], "hold", "no value before it"),
        ([0, 10, 20], [1, 2, NAN], "interpolate", "line 4.*gaps='hold' can"),
        ([0, 10, 20, 100], [1, 2, 3, 4], "hold", "invent the signal"),
    ],
)
def test_refused(times: list[float], values: list[float], gaps: str, message: str) -> None:
    with pytest.raises(FormatError, match=message):
        lay(times, values, gaps=gaps)


def test_unknown_gap_policy() -> None:
    with pytest.raises(InvalidInput, match="refuse, hold, interpolate, not 'zero'"):
        lay([0, 1], [1, 2], gaps="zero")


@pytest.mark.parametrize("step_s", [0.0, -1.0, float("nan"), float("inf")])
def test_a_stated_step_is_longer_than_nothing(step_s: float) -> None:
    with pytest.raises(FormatError, match="a step is longer than 0 s"):
        lay_out(np.array([0.0, 3600.0]), np.ones(2), Place(path=Path("a.csv")), step_s=step_s)


def test_a_time_that_is_none_is_named_by_its_line() -> None:
    times = np.array([0.0, 3600.0, np.nan, 10800.0])
    with pytest.raises(FormatError, match="this is no moment in time"):
        lay_out(times, np.ones(4), Place(path=Path("a.csv")), gaps="hold")
