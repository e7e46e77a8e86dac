"""Tables of use that other tools wrote."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from lowtide.errors import FormatError
from lowtide.formats.usage_table import read_usage


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
    ],
)
def test_bad_tables(text: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "use.csv"
    path.write_text(text)
    with pytest.raises(FormatError, match=message):
        read_usage(path)
