"""Moments as Slurm's programs take them: `now-30days`, `2024-07-01`, `07/01`, `06:00`, `midnight`.

A moment without a zone is one of the clock on the wall, as it is for sacct. Verbs that plan take
the same, and say which moment they took it for.
"""

from __future__ import annotations

import re
from datetime import UTC, date, datetime, timedelta, tzinfo
from datetime import time as clock

from lowtide.errors import InvalidTime
from lowtide.units import format_time, parse_time

_UNITS = {"second": 1, "minute": 60, "hour": 3600, "day": 86400, "week": 604800}
_NAMED = {"midnight": clock(0), "noon": clock(12), "fika": clock(15), "teatime": clock(16)}
_DAYS = {"today": 0, "yesterday": -1, "tomorrow": 1}
_NOW = re.compile(r"now(?:\s*([+-])\s*(\d+)\s*([a-z]*))?")
_NOON = 12
# A zone stands behind a clock, in ISO 8601; behind a day alone it is that of its midnight.
_ZONE = re.compile(r"(:\d{2}(\.\d+)?|[t ]\d{2})(z|[+-]\d{2}(:?\d{2})?)")
_DAY_AND_ZONE = re.compile(r"^(\d{4}-\d{2}-\d{2})(z|[+-]\d{2}:\d{2})$")
_CLOCK = r"(\d{1,2})(?::(\d{2})(?::(\d{2}))?\s*(am|pm)?|\s*(am|pm))"
_DATES = (
    (re.compile(r"(\d{4})-(\d{1,2})-(\d{1,2})"), ("year", "month", "day")),
    (re.compile(r"(\d{1,2})[/.](\d{1,2})(?:[/.](\d{2}))?"), ("month", "day", "year")),
    (re.compile(r"(\d{2})(\d{2})(\d{2})?"), ("month", "day", "year")),
)


def parse_moment(text: str, *, now: float, tz: tzinfo | None = None) -> float:
    """Return epoch seconds.

    Args:
        text: The moment; with an offset or `Z` it is that, otherwise it is local.
        tz: The local zone, by default this machine's.

    >>> parse_moment("now-30days", now=2_592_000.0)
    0.0
    >>> parse_moment("1970-01-02", now=0.0, tz=UTC)
    86400.0
    """
    words = _DAY_AND_ZONE.sub(r"\1t00:00\2", text.strip().lower())
    if found := _NOW.fullmatch(words):
        return now + _shift(text, found)
    if re.fullmatch(r"\d{9,}(\.\d+)?", words):
        return float(words)
    if _says_zone(words):
        try:
            return datetime.fromisoformat(words.upper()).timestamp()
        except ValueError:
            raise _unreadable(text) from None
    # Without a zone, astimezone takes this machine's.
    today = datetime.fromtimestamp(now, UTC).astimezone(tz)
    day_text, clock_text = _parted(words)
    day = _day(day_text, today.date(), text) if day_text else today.date()
    return _local(day, _clock(clock_text, text) if clock_text else clock(0), tz)


def parse_ahead(text: str, *, now: float, tz: tzinfo | None = None) -> float:
    """Return a moment that lies ahead: a clock without a day that has passed today is tomorrow's.

    Args:
        text: The moment; `+12h` counts from now.

    >>> parse_ahead("06:00", now=7 * 3600.0, tz=UTC) / 3600
    30.0
    """
    words = text.strip().lower()
    if words.startswith("+"):
        return parse_time(words, relative_to=now)
    moment = parse_moment(text, now=now, tz=tz)
    if moment <= now and (words in _NAMED or re.fullmatch(_CLOCK, words)):
        moment = parse_moment(f"tomorrow {words}", now=now, tz=tz)
    return moment


def local_echo(what: str, text: str, moment: float) -> str:
    """Return in words which moment a text without a zone was taken for; empty if that is plain."""
    words = text.strip().lower()
    told = _NOW.fullmatch(words) or words.startswith("+") or re.fullmatch(r"\d{9,}(\.\d+)?", words)
    if told or _says_zone(_DAY_AND_ZONE.sub(r"\1t00:00\2", words)):
        return ""
    here = format_time(moment, None)
    there = format_time(moment)
    return "" if here == there else f"{what} {text} is local time: {here} = {there}."


def _says_zone(words: str) -> bool:
    found = _ZONE.search(words)
    return found is not None and found.end() == len(words)


def _parted(words: str) -> tuple[str, str]:
    """Cut a day and a clock apart; either may be missing."""
    if words in _NAMED or re.fullmatch(_CLOCK, words):
        return "", words
    parts = re.fullmatch(rf"([\d/.-]*\d|{'|'.join(_DAYS)})(?:(?:t|\s+|-)({_CLOCK}|[a-z]+))?", words)
    if parts is None:
        raise _unreadable(words)
    return parts[1], parts[2] or ""


def _shift(text: str, found: re.Match[str]) -> float:
    if found[1] is None:
        return 0.0
    name = found[3] or "second"
    units = [unit for unit in _UNITS if unit.startswith(name) or f"{unit}s".startswith(name)]
    if not units:
        raise InvalidTime(
            f"cannot read {text!r}: now is moved by seconds, minutes, hours, days or weeks, such "
            "as now-30days"
        )
    size = int(found[2]) * _UNITS[units[0]]
    return float(size if found[1] == "+" else -size)


def _day(words: str, today: date, text: str) -> date:
    if words in _DAYS:
        return today + timedelta(days=_DAYS[words])
    for pattern, names in _DATES:
        if found := pattern.fullmatch(words):
            parts = {
                name: int(number)
                for name, number in zip(names, found.groups(), strict=True)
                if number is not None
            }
            year = parts.get("year", today.year)
            try:
                return date(year if year >= 100 else 2000 + year, parts["month"], parts["day"])
            except ValueError:
                break
    raise _unreadable(text)


def _clock(words: str, text: str) -> clock:
    if words in _NAMED:
        return _NAMED[words]
    found = re.fullmatch(_CLOCK, words)
    if found is None:
        raise _unreadable(text)
    hour = int(found[1])
    if half := found[4] or found[5]:
        if not 1 <= hour <= _NOON:
            raise _unreadable(text)
        hour = hour % _NOON + (_NOON if half == "pm" else 0)
    try:
        return clock(hour, int(found[2] or 0), int(found[3] or 0))
    except ValueError:
        raise _unreadable(text) from None


def _local(day: date, at: clock, tz: tzinfo | None) -> float:
    moment = datetime.combine(day, at)
    # Without a zone it is taken for this machine's.
    return (moment.replace(tzinfo=tz) if tz else moment).timestamp()


def _unreadable(text: str) -> InvalidTime:
    return InvalidTime(
        f"cannot read the time {text!r}: write e.g. now-30days, 2024-07-01, 2024-07-01T06:00, "
        "07/01, 06:00, today or midnight"
    )
