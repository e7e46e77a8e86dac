"""Times in files: the instants that stamps mean, and values in equal steps from stamped ones.

Nothing is guessed: a stamp without an offset needs a zone, a local time that never was or was
twice is refused, and so is a column that mixes one notation with another.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import datetime
from typing import Literal

import numpy as np
import polars as pl

from lowtide.errors import Argument, InvalidInput, InvalidTime
from lowtide.formats.source import Place
from lowtide.signal import FILLED, FloatArray, MarkArray
from lowtide.units import format_hours, format_time, time_zone

_OFFSET = r":\d\d(?:\.\d+)? ?(Z|z|UTC|[+-]\d\d(?::?\d\d)?)$"
_SUFFIX = r" ?(?:Z|z|UTC)$|(:\d\d(?:\.\d+)?) ?[+-]\d\d(?::?\d\d)?$"
# The most common one first: each takes its time to find out that it does not fit.
_NOTATIONS = ("%Y-%m-%dT%H:%M:%S", "%Y-%m-%dT%H:%M", "%Y-%m-%dT%H:%M:%S%.f", "%Y-%m-%d")
_NUMBER = r"-?\d+(?:\.\d+)?"
# Epoch seconds stay below this until the year 5138; milliseconds have been above it since 1973.
MILLISECONDS_FROM = 1e11
# As far apart are micro- and nanoseconds, as pandas and others write them.
_FINER = ((1e17, 1e9), (1e14, 1e6), (MILLISECONDS_FROM, 1e3))
# The year 9999 ends here, and calendars with it.
_LAST_S = 253402300800.0
GAP_POLICIES = ("refuse", "hold", "interpolate")
# Files write times to the microsecond at best.
_TICK_S = 2e-6
# Two minutes of a signal in microseconds, or two centuries of it in minutes: more is a slip.
_MOST_STEPS = 100_000_000


def instants(stamps: pl.Series, place: Place, *, tz: str | None) -> FloatArray:
    """Return epoch seconds from ISO 8601 texts or epoch numbers.

    Epoch numbers from 10¹¹ on are milliseconds, and where all are from 10¹⁴ (10¹⁷) on, micro-
    (nano-)seconds.

    Args:
        tz: The zone of stamps that carry no offset of their own.

    >>> from pathlib import Path
    >>> place = Place(path=Path("a.csv"), column="time")
    >>> instants(pl.Series(["1970-01-01T02:00+01:00"]), place, tz=None).tolist()
    [3600.0]
    """
    if tz is not None:
        time_zone(tz)
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
        utc, local = Argument("tz", "UTC"), Argument("tz", "Europe/Berlin")
        raise place.error(
            f"{texts[0]!r} does not say its time zone: say {utc}, or {local} for local times there",
            0,
            utc,
            local,
        )
    return _from_local(clock, texts, place, tz)


def _from_epoch(texts: pl.Series, place: Place) -> FloatArray:
    numbers = texts.cast(pl.Float64, strict=False)
    if numbers.is_null().any():
        row = int(numbers.is_null().arg_true()[0])
        raise place.error(f"{texts[row]!r} is not epoch seconds, as other times here are", row)
    seconds = np.array(numbers.to_numpy(), dtype=np.float64)
    least, most = np.abs(seconds).min(), np.abs(seconds).max()
    for begin, per_second in _FINER:
        # One slip among milliseconds makes no nanoseconds of them.
        if most >= begin and (least >= begin or begin == MILLISECONDS_FROM):
            seconds /= per_second
            break
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeline:
    """Values on equal steps.

    Attributes:
        values: One per step.
        start: The instant at which the first step begins.
        step_s: The length of a step.
        marks: Which of them a gap policy made, or the provider estimated.
    """

    values: FloatArray
    start: float
    step_s: float
    marks: MarkArray


def lay_out(
    times: FloatArray,
    values: FloatArray,
    place: Place,
    *,
    gaps: str = "refuse",
    step_s: float | None = None,
    marks: MarkArray | None = None,
) -> Timeline:
    """Put stamped values on equal steps, or say which line does not fit.

    Args:
        times: When each value's step begins, in the order of the file.
        values: The values; NaN is a gap.
        gaps: `refuse`, `hold` (repeat the last value) or `interpolate` (linear).
        step_s: The step where the file states it; else the most common difference.

    >>> from pathlib import Path
    >>> times = np.array([0.0, 3600.0, 10800.0])
    >>> place = Place(path=Path("a.csv"))
    >>> lay_out(times, np.array([5.0, 6.0, 8.0]), place, gaps="interpolate").values.tolist()
    [5.0, 6.0, 7.0, 8.0]
    """
    if gaps not in GAP_POLICIES:
        raise InvalidInput(f"gaps is one of {', '.join(GAP_POLICIES)}, not {gaps!r}")
    _check_order(times, place)
    if step_s is not None and not 0 < step_s < np.inf:
        raise place.error(f"a step is longer than 0 s, and the file says {step_s:g} s: mend step_s")
    step = usual_step(times, place) if step_s is None else step_s
    index = _index(times, step, place)
    size = int(index[-1]) + 1
    known = np.isfinite(values)
    missing = size - int(np.count_nonzero(known))
    laid = np.full(size, FILLED, dtype=np.uint8)
    laid[index[known].astype(np.intp)] = 0 if marks is None else marks[known]
    if missing:
        _check_gaps(index, known, missing, place, gaps, float(times[0]), step)
        values = _fill(index[known], values[known], size, gaps)
    return Timeline(values=values, start=float(times[0]), step_s=step, marks=laid)


def _check_order(times: FloatArray, place: Place) -> None:
    if not np.all(np.isfinite(times)):
        raise place.error("this is no moment in time", int(np.flatnonzero(~np.isfinite(times))[0]))
    steps = np.diff(times)
    if np.any(steps <= 0):
        row = int(np.flatnonzero(steps <= 0)[0]) + 1
        now, before = format_time(times[row]), format_time(times[row - 1])
        if times[row] == times[row - 1]:
            raise place.error(f"{now} stands here twice: keep one value per time", row)
        raise place.error(f"{now} comes after {before}: sort the file by time", row)


def usual_step(times: FloatArray, place: Place) -> float:
    """Return the most common difference of times."""
    if times.size < 2:
        raise place.error("one value alone does not tell how long a step is: give two or more")
    steps, counts = np.unique(np.round(np.diff(times), 6), return_counts=True)
    return float(steps[np.argmax(counts)])


def _index(times: FloatArray, step_s: float, place: Place) -> FloatArray:
    with np.errstate(over="ignore"):
        exact = (times - times[0]) / step_s
    if not exact[-1] < _MOST_STEPS:
        raise place.error(
            f"{format_time(times[0])} to {format_time(times[-1])} is more than {_MOST_STEPS:,} "
            f"steps of {format_hours(step_s)}: a time is wrong, or the step",
            times.size - 1,
        )
    index: FloatArray = np.round(exact)
    off = np.abs(exact - index) * step_s > _TICK_S
    if np.any(off):
        row = int(np.flatnonzero(off)[0])
        raise place.error(
            f"{format_time(times[row])} is not a whole number of steps of {format_hours(step_s)} "
            f"after {format_time(times[0])}: give all values the same step",
            row,
        )
    return index


def _check_gaps(
    index: FloatArray,
    known: np.ndarray[tuple[int], np.dtype[np.bool_]],
    missing: int,
    place: Place,
    gaps: str,
    start: float,
    step_s: float,
) -> None:
    size = int(index[-1]) + 1
    jumps = np.flatnonzero(np.diff(index) > 1) + 1
    blanks = np.flatnonzero(~known)
    first = int(min([*jumps[:1], *blanks[:1]]))
    # The row behind a jump tells of it; a row without a value tells of itself.
    at = float(index[first - 1] + 1 if first in jumps[:1] else index[first])
    found = (
        f"{missing} of {size} steps are missing, the first at {format_time(start + at * step_s)}"
    )
    hold, between = Argument("gaps", "hold"), Argument("gaps", "interpolate")
    if gaps == "refuse":
        raise place.error(
            f"{found}: say {hold} to repeat the last value, or {between}", first, hold, between
        )
    if missing > size - missing:
        raise place.error(f"{found}: filling more than is known would invent the signal", first)
    if not known[0]:
        asked = Argument("gaps", gaps)
        raise place.error(f"{found}: there is no value before it for {asked}", first, asked)
    if gaps == "interpolate" and not known[-1]:
        raise place.error(
            f"{found}, and the last value is missing too: {hold} can fill it", known.size - 1, hold
        )


def _fill(index: FloatArray, values: FloatArray, size: int, gaps: str) -> FloatArray:
    steps = np.arange(size, dtype=np.float64)
    if gaps == "interpolate":
        return np.interp(steps, index, values)
    return values[np.searchsorted(index, steps, side="right") - 1]


def check_floor(values: FloatArray, lowest: float, rule: str, place: Place) -> None:
    """Refuse values that are below what their kind allows, or infinite.

    Args:
        values: The values; NaN is a gap and passes.
        rule: What to say of a value that is not.
    """
    bad = np.flatnonzero((values < lowest) | np.isinf(values))
    if bad.size:
        row = int(bad[0])
        raise place.error(f"{rule}, not {values[row]:g}: mend the value or leave it empty", row)
