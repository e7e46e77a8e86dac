"""Quantities at the edge."""

import math
import re
import time
from contextlib import suppress
from datetime import UTC, datetime, timedelta, timezone
from zoneinfo import ZoneInfo

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lowtide import units
from lowtide.errors import InvalidTime, InvalidUnit


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("36h", 129600),
        ("1d12h", 129600),
        ("90 min", 5400),
        ("90min", 5400),
        ("90m", 5400),
        ("30 sec", 30),
        ("30s", 30),
        ("2w", 1209600),
        ("1h 30m", 5400),
        ("1.5h", 5400),
        (".5h", 1800),
        ("6:00:00", 21600),
        ("1-12:00", 129600),
        ("1-12:00:00", 129600),
        ("2-0", 172800),
        ("45:00", 2700),
        ("45:30", 2730),
        ("00:00:01", 1),
    ],
)
def test_durations_in_every_documented_notation(text, seconds):
    assert units.parse_duration(text) == seconds


@given(st.floats(0, 1e9))
def test_a_number_is_seconds(number):
    assert units.parse_duration(number) == number


@given(st.integers(0, 10**8))
def test_what_format_duration_prints_parses_back(whole):
    assert units.parse_duration(units.format_duration(whole)) == whole


@pytest.mark.parametrize("text", ["1:{}x", "{}", "1-{}:x", "{}.x", "1h{}x", "1h{}"])
def test_a_duration_of_many_digits_is_read_or_refused_at_once(text):
    begin = time.process_time()
    with suppress(InvalidTime):
        units.parse_duration(text.format("9" * 40_000), bare_unit_s=1.0)
    # Looking at each digit once for each digit takes a minute.
    assert time.process_time() - begin < 5


@pytest.mark.parametrize(
    "text", ["", "h", "3x", "1h2", "-3h", "1:2:3:4", "3 hours ago", "1d-3", "nan", "inf"]
)
def test_an_unreadable_duration_says_how_to_write_one(text):
    with pytest.raises(InvalidTime, match=r"36h|unit"):
        units.parse_duration(text)


def test_a_bare_number_in_a_text_needs_a_meaning():
    with pytest.raises(InvalidTime, match="'5' has no unit: write '5s', '5m' or '5h'"):
        units.parse_duration("5")
    assert units.parse_duration("5", bare_unit_s=60) == 300


@pytest.mark.parametrize("value", [True, None, [], math.nan, math.inf])
def test_durations_that_are_no_numbers_are_refused(value):
    with pytest.raises(InvalidTime, match="duration"):
        units.parse_duration(value)


@pytest.mark.parametrize(
    "value",
    [
        "2024-07-01T06:00Z",
        "2024-07-01T06:00:00+00:00",
        "2024-07-01T08:00+02:00",
        "2024-07-01 06:00:00Z",
        " 2024-07-01T06:00Z ",
        1719813600,
        1719813600.0,
        datetime(2024, 7, 1, 6, tzinfo=UTC),
        datetime(2024, 7, 1, 8, tzinfo=ZoneInfo("Europe/Berlin")),
        datetime(2024, 7, 1, 0, 30, tzinfo=timezone(timedelta(hours=-5, minutes=-30))),
    ],
)
def test_an_instant_in_every_accepted_form(value):
    assert units.parse_time(value) == 1719813600.0


def test_relative_times_count_from_what_is_given():
    assert units.parse_time("+36h", relative_to=100.0) == 129700.0
    with pytest.raises(InvalidTime, match="nothing to count from"):
        units.parse_time("+36h")


@pytest.mark.parametrize("value", [datetime(2024, 7, 1), "2024-07-01T06:00", "2024-07-01"])  # noqa: DTZ001
def test_naive_times_are_refused(value):
    with pytest.raises(InvalidTime, match="no time zone"):
        units.parse_time(value)


@pytest.mark.parametrize("value", [True, None, "noon", math.nan, -math.inf, [1]])
def test_unreadable_times_are_refused(value):
    with pytest.raises(InvalidTime):
        units.parse_time(value)


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("4G", 4 * 2**30),
        ("4000M", 4000 * 2**20),
        ("512", 512 * 2**20),
        ("1.5T", 1.5 * 2**40),
        ("16K", 16384),
        ("4Gn", 4 * 2**30),
        ("4Gc", 4 * 2**30),
        ("2P", 2 * 2**50),
        ("4GB", 4 * 2**30),
    ],
)
def test_sizes_as_slurm_writes_them(text, size):
    assert units.parse_size(text) == size


@pytest.mark.parametrize("text", ["", "G", "4X", "-4G", "4 G G"])
def test_unreadable_sizes_say_how_to_write_one(text):
    with pytest.raises(InvalidUnit, match="4000M or 4G"):
        units.parse_size(text)


@pytest.mark.parametrize(
    ("unit", "factor"),
    [
        ("g/kWh", 1),
        ("gCO₂eq/kWh", 1),
        ("kg/MWh", 1),
        ("t/MWh", 1000),
        ("kg/kWh", 1000),
        ("lb/MWh", 0.45359237),
        ("lbs/MWh", 0.45359237),
    ],
)
def test_intensity_units(unit, factor):
    assert units.intensity_factor(unit) == pytest.approx(factor, rel=1e-15)


def test_price_units_keep_their_currency():
    assert units.price_factor("GBP/MWh") == (0.001, "GBP/kWh")
    assert units.price_factor("USD/kWh") == (1.0, "USD/kWh")


def test_units_of_the_wrong_kind_are_refused():
    with pytest.raises(InvalidUnit, match="known are g/kWh"):
        units.intensity_factor("EUR/MWh")
    with pytest.raises(InvalidUnit, match="EUR/MWh"):
        units.price_factor("g/kWh")


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "00:00:00"),
        (59.6, "00:01:00"),
        (86399.6, "1-00:00:00"),
        (129600, "1-12:00:00"),
        (-60, "-00:01:00"),
        (-0.2, "00:00:00"),
        (None, "---"),
        (math.nan, "---"),
        (math.inf, "---"),
    ],
)
def test_format_duration(seconds, text):
    assert units.format_duration(seconds) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(30, "30 s"), (2700, "45 min"), (12600, "3.5 h"), (86400 * 30, "30 d"), (-12600, "-3.5 h")],
)
def test_format_hours(seconds, text):
    assert units.format_hours(seconds) == text


def test_format_time_shows_the_zone_and_seconds_only_where_there_are_any():
    assert units.format_time(1719813600.0) == "2024-07-01 06:00 UTC"
    assert units.format_time(1719813607.0) == "2024-07-01 06:00:07 UTC"
    assert units.format_time(1719813600.0, ZoneInfo("Europe/Berlin")) == "2024-07-01 08:00 CEST"
    assert units.format_time(None) == units.format_time(math.nan) == "---"


@given(st.integers(-(10**15), 2 * 10**15).map(lambda micros: micros / 1e6))
def test_format_iso_reads_back_to_the_microsecond(instant):
    assert units.format_iso(instant).endswith("Z")
    assert units.parse_time(units.format_iso(instant)) == instant


@pytest.mark.parametrize(
    ("joules", "text"),
    [
        (12.0, "12 J"),
        (25_700, "25.7 kJ"),
        (9e6, "2.5 kWh"),
        (9e9, "2.5 MWh"),
        (None, "---"),
        (math.nan, "---"),
    ],
)
def test_format_energy(joules, text):
    assert units.format_energy(joules) == text


@pytest.mark.parametrize(
    ("grams", "text"),
    [(12.0, "12 g"), (4321.0, "4.321 kg"), (2.5e6, "2.5 t"), (None, "---"), (math.nan, "---")],
)
def test_format_mass(grams, text):
    assert units.format_mass(grams) == text


def test_format_percent():
    assert units.format_percent(0.3127) == "31.3 %"
    assert units.format_percent(None) == units.format_percent(math.nan) == "---"


@given(
    st.datetimes(min_value=datetime(1000, 1, 1)),  # noqa: DTZ001 - hypothesis asks for it so
    st.sampled_from(("%Y-%m-%d", "%Y-%m-%dT%H", "%Y-%m-%dT%H:%M", "%Y-%m-%d %H:%M:%S", "%Y%m%d")),
)
def test_the_cure_for_a_time_without_a_zone_cures(moment: datetime, notation: str) -> None:
    said = moment.strftime(notation)
    with pytest.raises(InvalidTime) as refused:
        units.parse_time(said)
    advised = re.search(r"write (\S+Z) or (\S+\+02:00)$", str(refused.value))
    assert advised is not None, str(refused.value)
    # What is advised is the same moment, in UTC or two hours earlier.
    meant = datetime.strptime(said, notation).replace(tzinfo=UTC).timestamp()
    assert units.parse_time(advised[1]) == meant
    assert units.parse_time(advised[2]) == meant - 7200


def test_a_date_may_carry_a_zone() -> None:
    assert units.parse_time("2024-07-01Z") == units.parse_time("2024-07-01T00:00Z")
    assert units.parse_time("2024-07-01+02:00") == units.parse_time("2024-06-30T22:00Z")


def test_numbers_of_hundreds_of_digits_are_refused() -> None:
    with pytest.raises(InvalidTime, match="one of 401 digits"):
        units.parse_duration(10**400)


@given(st.integers(0, 10**6), st.sampled_from(["s", "m", "h", "D", "W", "ms", "us", "ns"]))
def test_time_deltas_of_python_and_numpy_are_seconds(count: int, unit: str) -> None:
    size = {"s": 1, "m": 60, "h": 3600, "D": 86400, "W": 604800, "ms": 1e-3, "us": 1e-6, "ns": 1e-9}
    delta = np.timedelta64(count, unit)
    assert units.parse_duration(delta) == pytest.approx(count * size[unit], rel=1e-12)
    assert units.parse_time(delta, relative_to=7.0) == pytest.approx(7.0 + count * size[unit])
    assert units.parse_duration(timedelta(seconds=count)) == count


@pytest.mark.parametrize("unit", ["m", "s", "us", "ns"])
def test_times_of_numpy_are_utc(unit: str) -> None:
    moment = np.datetime64("2024-07-01T06:00").astype(f"datetime64[{unit}]")
    assert units.parse_time(moment) == units.parse_time("2024-07-01T06:00Z")


@pytest.mark.parametrize(
    "value",
    [np.timedelta64("NaT"), np.timedelta64(3), np.timedelta64(1, "M"), np.datetime64("NaT")],
)
def test_what_is_no_fixed_time_is_refused(value: np.timedelta64 | np.datetime64) -> None:
    with pytest.raises(InvalidTime):
        units.parse_time(value, relative_to=0.0)
    with pytest.raises(InvalidTime):
        units.parse_duration(value)  # type: ignore[arg-type]
    with pytest.raises(InvalidTime, match="nothing to count from"):
        units.parse_time(timedelta(hours=1))
