"""Quantities at the edge: times, durations, sizes and units, in and out.

Inside lowtide an instant is UTC seconds since the epoch (a float, named without suffix: `start`,
`deadline`), a duration is seconds (`_s`), power is watts (`_w`), energy joules (`_j`) and
emissions grams of CO₂ equivalent (`_g`). This module is where people's notations become those
and back.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta, tzinfo
from numbers import Real
from typing import TYPE_CHECKING, Any

from lowtide.errors import InvalidInput, InvalidTime, InvalidUnit

JOULES_PER_KWH = 3.6e6
GRAMS_PER_POUND = 453.59237

if TYPE_CHECKING:
    import numpy as np

    TimeLike = datetime | np.datetime64 | timedelta | np.timedelta64 | str | float | int
    DurationLike = timedelta | np.timedelta64 | str | float | int
else:  # NumPy is fetched when it is needed: `lowtide --help` does not wait for it.
    TimeLike = datetime | timedelta | str | float | int
    DurationLike = timedelta | str | float | int

MISSING = "---"

# From which size on a quantity is told in which unit: joules and grams.
ENERGIES = ((0.0, 1.0, "J"), (1e3, 1e3, "kJ"), (0.36e6, 3.6e6, "kWh"), (3.6e9, 3.6e9, "MWh"))
MASSES = ((0.0, 1.0, "g"), (1e3, 1e3, "kg"), (1e6, 1e6, "t"))
# Memory, and what is read and sent, count in powers of 1024, as Slurm has them.
GIB = 1024.0**3
SIZES = (
    (0.0, 1.0, "B"),
    *((1024.0**power, 1024.0**power, f"{unit}iB") for power, unit in enumerate("KMGT", start=1)),
)

_SECONDS = {"s": 1.0, "sec": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0, "w": 604800.0}
_PART = re.compile(r"\s*(\d+(?:\.\d*)?|\.\d+)\s*(sec|s|min|m|h|d|w)\s*")
_SLURM = re.compile(
    r"(?:(?P<d>\d+)-)?(?P<a>\d+)(?::(?P<b>\d+(?:\.\d+)?))?(?::(?P<c>\d+(?:\.\d+)?))?",
)

_DATE = re.compile(r"(\d{4}-\d\d-\d\d)(Z|[+-]\d\d:\d\d|)")

_INTENSITY_G_PER_KWH = {
    "g/kwh": 1.0,
    "gco2/kwh": 1.0,
    "gco2e/kwh": 1.0,
    "gco2eq/kwh": 1.0,
    "kg/mwh": 1.0,
    "kgco2/mwh": 1.0,
    "kgco2eq/mwh": 1.0,
    "kg/kwh": 1000.0,
    "t/mwh": 1000.0,
    "lb/mwh": GRAMS_PER_POUND / 1000.0,
    "lbs/mwh": GRAMS_PER_POUND / 1000.0,
    "lbs_co2_per_mwh": GRAMS_PER_POUND / 1000.0,
}
_PRICE = re.compile(r"(?P<currency>[A-Z]{3})/(?P<per>kWh|MWh)")


def parse_duration(value: DurationLike, *, bare_unit_s: float | None = None) -> float:
    """Return seconds from a number of seconds or a text.

    Texts are sums of numbers with units (`36h`, `1d12h`, `90 min`) or Slurm's notation
    (`6:00:00`, `1-12:00`, `45:00`). A text without any unit is refused unless the caller says
    what it means.

    Args:
        value: The duration; a number is seconds. Python's and NumPy's time deltas will do.
        bare_unit_s: Seconds that a unit-less text counts, e.g. 60 for Slurm's minutes.

    >>> parse_duration("1d12h") / 3600
    36.0
    >>> parse_duration("6:00:00")
    21600.0
    """
    if isinstance(value, timedelta):
        return value.total_seconds()
    if _of_numpy(value, "timedelta64"):
        return _numpy_seconds(value)
    if not isinstance(value, str):
        return _number(value, "a duration is seconds or a text such as '36h'")
    text = value.strip()
    if re.fullmatch(r"\d+(?:\.\d*)?", text):
        if bare_unit_s is None:
            raise InvalidTime(
                f"duration {value!r} has no unit: write '{text}s', '{text}m' or '{text}h'"
            )
        return float(text) * bare_unit_s
    parts, end = [], 0
    # One behind the other: to look for parts anywhere in thousands of digits takes seconds.
    while part := _PART.match(text, end):
        parts.append(part)
        end = part.end()
    if parts and end == len(text):
        return sum(float(part[1]) * _SECONDS[part[2]] for part in parts)
    match = _SLURM.fullmatch(text)
    if match is None or not (match["d"] or match["b"]):
        raise InvalidTime(
            f"cannot read duration {value!r}: write e.g. '36h', '1d12h' or '1-12:00:00'"
        )
    fields = [float(match[name] or 0) for name in ("a", "b", "c")]
    if match["d"]:  # D-HH[:MM[:SS]]
        hours, minutes, seconds = fields
        return float(match["d"]) * 86400 + hours * 3600 + minutes * 60 + seconds
    if match["c"]:  # HH:MM:SS
        return fields[0] * 3600 + fields[1] * 60 + fields[2]
    return fields[0] * 60 + fields[1]  # MM:SS


def _of_numpy(value: object, kind: str) -> bool:
    return type(value).__module__ == "numpy" and type(value).__name__ == kind


def _numpy_seconds(value: object) -> float:
    """Return seconds from NumPy's time delta, or from its time, which counts in UTC."""
    import numpy as np

    if np.isnat(value):  # type: ignore[call-overload]
        raise InvalidTime("a time or duration must be known, not NaT")
    unit, _ = np.datetime_data(value.dtype)  # type: ignore[attr-defined]
    delta = value if isinstance(value, np.timedelta64) else value - np.datetime64(0, "s")  # type: ignore[operator]
    if unit == "generic" or (unit in "YM" and isinstance(value, np.timedelta64)):
        raise InvalidTime(f"{value!r} is no fixed time: give it in weeks, days, hours, ... or 'ns'")
    return float(delta / np.timedelta64(1, "s"))


def _number(value: object, rule: str) -> float:
    """Return any kind of real number, NumPy's included, as a finite float."""
    if isinstance(value, bool) or not isinstance(value, Real):
        raise InvalidTime(f"{rule}, not {value!r}")
    try:
        number = float(value)
    except OverflowError:
        raise InvalidTime(f"{rule}, and finite, not one of {len(str(value))} digits") from None
    if not math.isfinite(number):
        raise InvalidTime(f"{rule}, and finite, not {number}")
    return number


def require_number(
    value: object,
    what: str,
    *,
    least: float = -math.inf,
    finite: bool = True,
    error: type[InvalidInput] = InvalidInput,
) -> float:
    """Return a number of any kind, NumPy's included, as a float, and refuse all else.

    Args:
        value: What was given; true and false are no numbers.
        least: What it must not lie below.
        finite: Whether infinity will not do.

    >>> require_number(3, "pue", least=1.0)
    3.0
    """
    if not isinstance(value, bool) and isinstance(value, Real):
        try:
            number = float(value)
        except OverflowError:
            number = math.inf
        if number >= least and (math.isfinite(number) or not finite):
            return number
    of = f" of at least {least:g}" if least > -math.inf else ""
    raise error(f"{what} is a number{of}, not {value!r}")


def parse_time(value: TimeLike, *, relative_to: float | None = None) -> float:
    """Return UTC seconds since the epoch.

    Args:
        value: An aware datetime, an ISO 8601 text with its offset, epoch seconds, or `+36h`.
            NumPy's times have no zone and are taken for UTC, as NumPy does.
        relative_to: What `+…`, or a time delta, counts from.

    >>> parse_time("2024-07-01T00:00Z")
    1719792000.0
    >>> parse_time("+36h", relative_to=0.0)
    129600.0
    """
    if isinstance(value, datetime):
        if value.tzinfo is None or value.utcoffset() is None:
            raise InvalidTime(
                f"time {value.isoformat()} has no time zone: use e.g. datetime(..., tzinfo=UTC)"
            )
        return value.timestamp()
    if _of_numpy(value, "datetime64"):
        return _numpy_seconds(value)
    text = value.strip() if isinstance(value, str) else ""
    if text.startswith("+") or isinstance(value, timedelta) or _of_numpy(value, "timedelta64"):
        if relative_to is None:
            raise InvalidTime(f"time {value!r} is relative, and here is nothing to count from")
        return relative_to + parse_duration(text[1:] if text else value)  # type: ignore[arg-type]
    if isinstance(value, str):
        # A date alone is its first moment, and may carry a zone as a time does.
        if dated := _DATE.fullmatch(text):
            text = f"{dated[1]}T00:00{dated[2]}"
        try:
            moment = datetime.fromisoformat(text)
        except ValueError:
            raise InvalidTime(
                f"cannot read time {value!r}: write e.g. 2024-07-01T06:00Z or +36h"
            ) from None
        if moment.tzinfo is None:
            whole = not (moment.second or moment.microsecond)
            plain = moment.isoformat(timespec="minutes" if whole else "auto")
            raise InvalidTime(f"time {value!r} has no time zone: write {plain}Z or {plain}+02:00")
        try:
            return moment.timestamp()
        except (OverflowError, ValueError):
            raise InvalidTime(f"time {value!r} lies outside of the calendar") from None
    return _number(value, "a time is a datetime, an ISO text or epoch seconds")


def parse_size(text: str) -> float:
    """Return bytes from Slurm's sizes: `4G`, `4000M`, `512`, with or without `n`/`c`.

    A number alone is megabytes, as Slurm has it.

    >>> parse_size("4G") == 4 * 1024**3
    True
    """
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([KMGTP]?)(?:[Bb])?([nc]?)", text.strip())
    if match is None:
        raise InvalidUnit(f"cannot read size {text!r}: write e.g. 4000M or 4G")
    power = "KMGTP".index(match[2] or "M") + 1
    return float(match[1]) * 1024.0**power


def intensity_factor(unit: str) -> float:
    """Return what a carbon intensity in `unit` is multiplied by to be g/kWh.

    >>> round(intensity_factor("lb/MWh"), 6)
    0.453592
    """
    plain = unit.replace("₂", "2").replace(" ", "").lower()
    try:
        return _INTENSITY_G_PER_KWH[plain]
    except KeyError:
        raise InvalidUnit(
            f"unknown unit of carbon intensity {unit!r}: known are g/kWh, kg/MWh, t/MWh, lb/MWh"
        ) from None


def price_factor(unit: str) -> tuple[float, str]:
    """Return what a price in `unit` is multiplied by, and the unit per kWh it then has.

    >>> price_factor("EUR/MWh")
    (0.001, 'EUR/kWh')
    """
    match = _PRICE.fullmatch(unit)
    if match is None:
        raise InvalidUnit(
            f"unknown unit of price {unit!r}: write a currency per energy, e.g. EUR/MWh"
        )
    return (1.0 if match["per"] == "kWh" else 0.001), f"{match['currency']}/kWh"


def format_count(number: int, noun: str) -> str:
    """Return a number with its noun, in the plural where that is due.

    >>> format_count(1, "start"), format_count(3, "start")
    ('1 start', '3 starts')
    """
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def format_duration(seconds: float | None) -> str:
    """Return `[D-]HH:MM:SS`, as Slurm prints it, or `---` where it is unknown.

    >>> format_duration(129600)
    '1-12:00:00'
    """
    if seconds is None or not math.isfinite(seconds):
        return MISSING
    whole = round(abs(seconds))
    days, rest = divmod(whole, 86400)
    clock = f"{rest // 3600:02}:{rest // 60 % 60:02}:{rest % 60:02}"
    return ("-" if seconds < 0 and whole else "") + (f"{days}-{clock}" if days else clock)


def format_hours(seconds: float) -> str:
    """Return a duration in the unit a person would say it in: `30 s`, `45 min`, `3.5 h`.

    >>> format_hours(12600)
    '3.5 h'
    """
    for limit, unit, size in ((120, "s", 1), (3600, "min", 60), (4 * 86400, "h", 3600)):
        if abs(seconds) < limit:
            return f"{seconds / size:.4g} {unit}"
    return f"{seconds / 86400:.4g} d"


def time_zone(name: str) -> tzinfo:
    """Return the zone of an IANA name.

    >>> time_zone("Europe/Berlin").utcoffset(datetime(2024, 7, 1)) / timedelta(hours=1)
    2.0
    """
    # It takes as long to import as all else here, and few ask for a zone.
    from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        raise InvalidTime(
            f"unknown time zone {name!r}: write an IANA name such as 'Europe/Berlin', or 'UTC'"
        ) from None


def format_time(instant: float | None, tz: tzinfo | None = UTC) -> str:
    """Return `2024-07-01 06:00` with its zone, or `---`.

    Seconds are shown only where there are any. Without a zone it is this machine's.

    >>> format_time(1719813600.0)
    '2024-07-01 06:00 UTC'
    """
    if instant is None or not math.isfinite(instant):
        return MISSING
    try:
        moment = datetime.fromtimestamp(round(instant), UTC).astimezone(tz)
    except (ValueError, OverflowError, OSError):  # no calendar goes there
        return f"{instant:g} s since 1970"
    return f"{moment:%Y-%m-%d %H:%M}{f':{moment:%S}' if moment.second else ''} {moment:%Z}"


def format_minute(instant: float | None, tz: tzinfo | None = UTC) -> str:
    """Return an instant to the minute, for columns whose heading names the zone.

    >>> format_minute(1719813600.0)
    '2024-07-01 06:00'
    """
    if instant is None or not math.isfinite(instant):
        return MISSING
    minute = datetime.fromtimestamp(60 * round(instant / 60), UTC).astimezone(tz)
    return f"{minute:%Y-%m-%d %H:%M}"


def format_iso(instant: float) -> str:
    """Return an instant as ISO 8601 in UTC, to the microsecond; always ends in `Z`.

    >>> format_iso(1719813600.0)
    '2024-07-01T06:00:00Z'
    """
    return datetime.fromtimestamp(instant, UTC).isoformat().replace("+00:00", "Z")


def format_energy(joules: float | None) -> str:
    """Return energy in J, kJ, or kWh from 0.1 kWh on, or `---`.

    >>> format_energy(25_700), format_energy(9e6)
    ('25.7 kJ', '2.5 kWh')
    """
    if joules is None or not math.isfinite(joules):
        return MISSING
    if abs(joules) >= 0.1 * JOULES_PER_KWH:
        return (
            f"{joules / JOULES_PER_KWH:,.4g} kWh"
            if abs(joules) < 3.6e9
            else f"{joules / 3.6e9:,.4g} MWh"
        )
    return f"{joules / 1000:.4g} kJ" if abs(joules) >= 1000 else f"{joules:.4g} J"


def format_mass(grams: float | None) -> str:
    """Return emissions in g or kg, or `---`.

    >>> format_mass(4321.0)
    '4.321 kg'
    """
    if grams is None or not math.isfinite(grams):
        return MISSING
    if abs(grams) >= 1e6:
        return f"{grams / 1e6:.4g} t"
    return f"{grams / 1000:.4g} kg" if abs(grams) >= 1000 else f"{grams:.4g} g"


def format_size(count: float | None) -> str:
    """Return bytes as files are told of, in kB or MB of a thousand each, or `---`.

    >>> format_size(52_000), format_size(1.5e9)
    ('52.0 kB', '1,500.0 MB')
    """
    if count is None or not math.isfinite(count):
        return MISSING
    return f"{count / 1e6:,.1f} MB" if count >= 1e5 else f"{count / 1e3:,.1f} kB"


def format_alike(
    values: Sequence[float | None], scales: Sequence[tuple[float, float, str]]
) -> list[str]:
    """Return the quantities of a column, all in the unit that suits the largest; `---` if unknown.

    Args:
        scales: `ENERGIES` or `MASSES`.

    >>> format_alike([170_000.0, 9e6, None], ENERGIES)
    ['0.04722 kWh', '2.5 kWh', '---']
    """
    known = [abs(value) for value in values if value is not None and math.isfinite(value)]
    largest = max(known, default=0.0)
    _, size, unit = [scale for scale in scales if scale[0] <= largest or scale is scales[0]][-1]
    return [
        MISSING if value is None or not math.isfinite(value) else f"{value / size:,.4g} {unit}"
        for value in values
    ]


def format_number(value: float | None, *, digits: int = 4) -> str:
    """Return a number to four digits, a larger one to its last before the point, or `---`.

    >>> format_number(357.4857), format_number(67_080.4), format_number(None)
    ('357.5', '67,080', '---')
    """
    if value is None or not math.isfinite(value):
        return MISSING
    return f"{value:,.0f}" if abs(value) >= 10**digits - 0.5 else f"{value:.{digits}g}"


def format_quantity(name: str, value: Any) -> str:
    """Return a quantity in the unit that its name ends in: `_j`, `_g`, `_s`; shares in percent.

    >>> format_quantity("energy_j", 9e6), format_quantity("saving", 0.25), format_quantity("n", 1e3)
    ('2.5 kWh', '25.0 %', '1000')
    """
    if value is None:
        return MISSING
    if not isinstance(value, float):
        counts = isinstance(value, int) and not isinstance(value, bool)
        return f"{value:,}" if counts else str(value)
    return (words_for(name) or format_number)(value)


def words_for(name: str) -> Callable[[float], str] | None:
    """Return what tells a quantity in the unit that its name ends in; None where it names none.

    >>> words_for("wait_s")(90), words_for("jobs")
    ('00:01:30', None)
    """
    return next((words for end, words in _WORDS.items() if name.endswith(end)), None)


def format_quantities(name: str, values: Sequence[Any]) -> list[str]:
    """Return the quantities of a column, energies and masses all in one unit."""
    for end, scales in (("_j", ENERGIES), ("_g", MASSES)):
        if name.endswith(end):
            return format_alike(values, scales)
    return [format_quantity(name, value) for value in values]


def format_html(text: str, rows: Sequence[Sequence[str]] = ()) -> str:
    """Return a text for people as a notebook shows it.

    Args:
        rows: A table below it, its head first.

    >>> format_html("a < b")
    '<pre>a &lt; b</pre>'
    >>> format_html("a", [["what", "plan"], ["late jobs", "0"]]).count("<td")
    2
    """
    # Notebooks alone ask for it, and all commands would wait for its table of characters.
    import html

    def line(cells: Sequence[str], cell: str) -> str:
        return "".join(f"<{cell}>{html.escape(each)}</{cell}>" for each in cells)

    if not rows:
        return f"<pre>{html.escape(text)}</pre>"
    body = "".join(f"<tr>{line(row, 'td')}</tr>" for row in rows[1:])
    head = f"<thead><tr>{line(rows[0], 'th')}</tr></thead>"
    return f"<p>{html.escape(text)}</p><table>{head}<tbody>{body}</tbody></table>"


def format_percent(share: float | None, *, digits: int = 1) -> str:
    """Return a share as a percentage, or `---`.

    >>> format_percent(0.3127), format_percent(0.3127, digits=0)
    ('31.3 %', '31 %')
    """
    if share is None or not math.isfinite(share):
        return MISSING
    # Rounding first, and adding 0, leaves no "-0.0 %".
    return f"{round(100 * share, digits) + 0.0:.{digits}f} %"


def format_less(share: float) -> str:
    """Return in words how much less something is than another.

    >>> format_less(0.127), format_less(-0.3)
    ('12.7 % less', '30.0 % more')
    """
    return f"{format_percent(abs(share))} {'less' if share > -5e-4 else 'more'}"


# In which words a quantity is told, by how its name ends.
_WORDS: dict[str, Callable[[float], str]] = {
    "_j": format_energy,
    "_g": format_mass,
    "_s": format_duration,
    "saving": format_percent,
    "utilisation": format_percent,
    "_share": format_percent,
}
