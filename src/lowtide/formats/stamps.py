"""Timestamps as people write them into files, and the instants they mean.

Nothing is guessed: a stamp without an offset needs a zone, a local time that never was or was
twice is refused, and so is a column that mixes one notation with another.
"""

from __future__ import annotations

import re
from datetime import datetime
from typing import Literal
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import numpy as np
import polars as pl

from lowtide.errors import InvalidTime
from lowtide.formats.source import Place
from lowtide.signal import FloatArray

_OFFSET = r":\d\d(?:\.\d+)? ?(Z|z|UTC|[+-]\d\d(?::?\d\d)?)$"
_SUFFIX = r" ?(?:Z|z|UTC)$|(:\d\d(?:\.\d+)?) ?[+-]\d\d(?::?\d\d)?$"
# The most common one first: each takes its time to find out that it does not fit.
_NOTATIONS = ("%Y-%m-%dT%H:%M:%S", "%Y-%m-%dT%H:%M", "%Y-%m-%dT%H:%M:%S%.f", "%Y-%m-%d")
_NUMBER = r"-?\d+(?:\.\d+)?"
# Epoch seconds stay below this until the year 5138; milliseconds have been above it since 1973.
_MILLISECONDS_FROM = 1e11
# The year 9999 ends here, and calendars with it.
_LAST_S = 253402300800.0


def check_zone(tz: str | None) -> None:
    """Refuse a zone that is not in the time zone database.

    Args:
        tz: Its name, or None.
    """
    if tz is None:
        return
    try:
        ZoneInfo(tz)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        raise InvalidTime(
            f"unknown time zone {tz!r}: write an IANA name such as 'Europe/Berlin', or 'UTC'"
        ) from None


def instants(stamps: pl.Series, place: Place, *, tz: str | None) -> FloatArray:
    """Return epoch seconds from ISO 8601 texts or epoch numbers.

    Epoch numbers from 10¹¹ on are milliseconds.

    Args:
        tz: The zone of stamps that carry no offset of their own.

    >>> from pathlib import Path
    >>> place = Place(path=Path("a.csv"), column="time")
    >>> instants(pl.Series(["1970-01-01T02:00+01:00"]), place, tz=None).tolist()
    [3600.0]
    """
    check_zone(tz)
    texts = stamps.str.strip_chars()
    if texts.has_nulls():
        raise place.error("a time is missing", int(texts.is_null().arg_true()[0]))
    if re.fullmatch(_NUMBER, texts[0]):
        return _from_epoch(texts, place)
    if texts.str.ends_with("Z").all():
        return _seconds(_clock(texts.str.strip_suffix("Z"), place))
    offsets = texts.str.extract(_OFFSET)
    clock = _clock(texts.str.replace(_SUFFIX, "${1}"), place)
    known = offsets.is_not_null()
    if known.all():
        return _seconds(clock) - _offset_seconds(offsets, place)
    if known.any():
        row = int((known != known[0]).arg_true()[0])
        raise place.error(
            f"{texts[row]!r} {'has' if known[row] else 'lacks'} a UTC offset, unlike the times "
            "above it: a column is all local or all with offsets",
            row,
        )
    if tz is None:
        raise place.error(
            f"{texts[0]!r} does not say its time zone: say tz='UTC', or tz='Europe/Berlin' for "
            "local times there",
            0,
        )
    return _from_local(clock, texts, place, tz)


def _from_epoch(texts: pl.Series, place: Place) -> FloatArray:
    numbers = texts.cast(pl.Float64, strict=False)
    if numbers.is_null().any():
        row = int(numbers.is_null().arg_true()[0])
        raise place.error(f"{texts[row]!r} is not epoch seconds, as other times here are", row)
    seconds = np.array(numbers.to_numpy(), dtype=np.float64)
    if np.abs(seconds).max() >= _MILLISECONDS_FROM:
        seconds /= 1000.0
    beyond = np.abs(seconds) >= _LAST_S
    if beyond.any():
        row = int(np.flatnonzero(beyond)[0])
        raise place.error(f"no calendar goes as far as {texts[row]!r}: mend that time", row)
    return seconds


def _clock(texts: pl.Series, place: Place) -> pl.Series:
    clock = texts.str.to_datetime(_NOTATIONS[0], time_unit="us", strict=False)
    if clock.has_nulls():
        bare = texts.str.replace(" ", "T", literal=True)
        for notation in _NOTATIONS:
            clock = clock.fill_null(bare.str.to_datetime(notation, time_unit="us", strict=False))
            if not clock.has_nulls():
                break
    if clock.has_nulls():
        row = int(clock.is_null().arg_true()[0])
        raise place.error(f"cannot read time {texts[row]!r}: write e.g. 2024-07-01T06:00Z", row)
    return clock


def _seconds(clock: pl.Series) -> FloatArray:
    return np.asarray(clock.dt.timestamp("us").to_numpy(), dtype=np.float64) / 1e6


def _offset_seconds(offsets: pl.Series, place: Place) -> FloatArray | float:
    known: dict[str, float] = {}
    for text in offsets.unique().to_list():
        try:
            delta = datetime.strptime(_plain_offset(text), "%z").utcoffset()
        except ValueError:
            row = int((offsets == text).arg_true()[0])
            raise place.error(f"no zone is {text} from UTC: mend the offset", row) from None
        known[text] = 0.0 if delta is None else delta.total_seconds()
    if len(known) == 1:
        return next(iter(known.values()))
    return np.array([known[text] for text in offsets.to_list()])


def _plain_offset(text: str) -> str:
    if text in ("Z", "z", "UTC"):
        return "Z"
    return text if len(text) > 3 else f"{text}00"


def _from_local(clock: pl.Series, texts: pl.Series, place: Place, tz: str) -> FloatArray:
    def zoned(ambiguous: Literal["earliest", "null"]) -> pl.Series:
        return clock.dt.replace_time_zone(tz, ambiguous=ambiguous, non_existent="null")

    try:
        local = zoned("null")
    except pl.exceptions.PolarsError as error:
        raise InvalidTime(f"time zone {tz!r} cannot be used ({error}): try 'UTC'") from None
    if local.has_nulls():
        row = int(local.is_null().arg_true()[0])
        why = (
            "never was: the clocks went forward over it"
            if zoned("earliest")[row] is None
            else "was twice: the clocks went back"
        )
        raise place.error(
            f"{texts[row]} in {tz} {why}. Check tz=, or use a file in UTC or with offsets", row
        )
    return _seconds(local)
