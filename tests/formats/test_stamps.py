"""Timestamps: what is understood, and what is refused."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import polars as pl
import pytest

from lowtide.errors import FormatError, InvalidTime
from lowtide.formats.source import Place
from lowtide.formats.times import instants

PLACE = Place(path=Path("a.csv"), column="time", line=lambda row: row + 2)


def read(*stamps: str | None, tz: str | None = None) -> list[float]:
    return instants(pl.Series(stamps, dtype=pl.String), PLACE, tz=tz).tolist()


@pytest.mark.parametrize(
    "stamp",
    [
        "1970-01-02T00:00:00Z",
        "1970-01-02T00:00Z",
        "1970-01-02 00:00:00.000Z",
        "1970-01-02 00:00 UTC",
        "1970-01-02T01:00:00+01:00",
        "1970-01-01T19:00:00-0500",
        "1970-01-02T02:00+02",
        "86400",
        "86400.0",
        "86400000000000",
    ],
)
def test_notations(stamp: str) -> None:
    expected = 86400e6 if stamp.endswith("000000") else 86400.0
    assert read(stamp) == [expected]


def test_dates_alone() -> None:
    assert read("1970-01-01", "1970-01-02", tz="UTC") == [0.0, 86400.0]


def test_local_times_follow_daylight_saving() -> None:
    assert read("2024-03-31T01:00", "2024-03-31T03:00", tz="Europe/Berlin") == [
        1711843200.0,
        1711846800.0,
    ]


@pytest.mark.parametrize(
    ("stamps", "tz", "message"),
    [
        (["2024-07-01T00:00"], None, r"line 2, column 'time': .* say tz='UTC'"),
        (["2024-07-01T00:00Z", "2024-07-01T01:00"], None, "line 3.*lacks a UTC offset"),
        (["2024-07-01T00:00", "2024-07-01T01:00Z"], "UTC", "line 3.*has a UTC offset"),
        (["2024-07-01T00:00+01:00", "2024-07-01T01:00+82"], None, r"line 3.*no zone is \+82"),
        (["2024-03-31T02:30"], "Europe/Berlin", "never was"),
        (["2024-10-27T02:30"], "Europe/Berlin", "was twice"),
        (["2024-07-01T00:00Z", "soon"], None, "line 3.*cannot read time 'soon'"),
        (["2024-13-01T00:00Z"], None, "cannot read time"),
        (["0", "2024-07-01T00:00Z"], None, "line 3.*not epoch seconds"),
        (["2024-07-01T00:00Z", None], None, "line 3.*a time is missing"),
        (["0", "3600", "1e20"], None, "line 4.*no calendar goes as far as '1e20'"),
        (["0", "1e308"], None, "line 3.*no calendar goes as far as '1e308'"),
    ],
)
def test_refused(stamps: list[str | None], tz: str | None, message: str) -> None:
    with pytest.raises(FormatError, match=message):
        read(*stamps, tz=tz)


def test_own_offsets_are_read_when_a_zone_is_given() -> None:
    assert read("1970-01-01T01:00+01:00", "1970-01-01T03:00+02:00", tz="UTC") == [0.0, 3600.0]


def test_unknown_zone() -> None:
    with pytest.raises(InvalidTime, match="unknown time zone 'Mars'"):
        read("2024-07-01T00:00", tz="Mars")


def test_local_times_with_offsets_over_a_change_of_clocks() -> None:
    stamps = [f"2024-10-27T0{hour}:00+0{offset}:00" for hour, offset in ((1, 2), (2, 2), (2, 1))]
    found = instants(pl.Series(stamps), PLACE, tz=None)
    assert np.diff(found).tolist() == [3600.0, 3600.0]
