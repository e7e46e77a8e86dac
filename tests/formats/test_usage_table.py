"""Tables of use that other tools wrote."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from lowtide.errors import FormatError
from lowtide.formats.model_tables import read_usage


def test_columns_are_read(tmp_path: Path) -> None:
    path = tmp_path / "use.csv"
    path.write_text("time,cpu_percent,reads_total\n10,5,100\n11,,150\n13,20,\n")
    times, columns = read_usage(path)
    assert times.tolist() == [10, 11, 13]
    assert columns["cpu_percent"][0] == 5
    assert np.isnan(columns["cpu_percent"][1])
    assert list(columns) == ["cpu_percent", "reads_total"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("when,cpu\n1,2\n", "a heading with 'time'"),
        ("time,run\n1,2\n2,2\n", "no column besides the time"),
        ("time,cpu\n1,2\n", "two rows or more"),
        ("time,cpu\n2,2\n1,2\n", "line 3.*does not come after"),
        ("time,cpu\n1,2\n,2\n", "line 3.*a time is missing"),
        ("time,cpu\n1,2\n2,high\n", "'high' is not a number"),
        ("time,cpu\n1,2\n" + "9" * 400 + ",3\n" + "9" * 400 + ",4\n", "line 3.*beyond all numbers"),
        ("time,cpu\n1,2\n2,3\n\r", "line 3.*a time is missing"),
        # In a column of numbers, quotes that nothing closes.
        ('time,cpu\n1,2\n2,"\n', "not a"),
        ('time,cpu\n1,"\n2,3\n', "not a"),
        ('time,cpu\n1,2\n"', "line 3.*1 cells under 2 headings"),
    ],
)
def test_bad_tables(text: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "use.csv"
    path.write_text(text)
    with pytest.raises(FormatError, match=message):
        read_usage(path)


def test_quoted_numbers_are_numbers(tmp_path: Path) -> None:
    path = tmp_path / "use.csv"
    path.write_text('time,cpu\n"1","0.5"\n2,""\n"3",1\n')
    times, columns = read_usage(path)
    assert times.tolist() == [1, 2, 3]
    assert columns["cpu"].tolist() == pytest.approx([0.5, np.nan, 1], nan_ok=True)
