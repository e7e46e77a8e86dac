"""Job traces in and out: what a format has to do, the two functions that people call, and tables.

A format is a module (or any object) with the two functions of `JobFormat`, registered under the
entry-point group `lowtide.job_formats`. One that can also write has `render`. This module is one
itself: plain tables with `arrival_time,length,cpus`, and more where there is, as text or Parquet.
Published ones differ in their unit of time and do not say it. Seconds are the default, but lengths
that look like hours are refused until the caller says what they are. Columns that mean nothing
here are left alone, and told of.
"""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np
import polars as pl

from lowtide import files
from lowtide.errors import Argument, FormatError, InvalidInput, LowtideError, guess_at
from lowtide.formats.signals import unrecognised
from lowtide.formats.source import Source
from lowtide.formats.table_reader import MOST, ParquetSheet, Sheet
from lowtide.formats.times import MILLISECONDS_FROM, instants
from lowtide.job import INTERRUPTIBLE
from lowtide.profile import PowerProfile
from lowtide.registry import Registry
from lowtide.samples import load_profile
from lowtide.signal import FloatArray
from lowtide.states import STATUSES, status_code
from lowtide.trace import Trace
from lowtide.units import TimeLike, format_count

TIME_UNITS_S = {"s": 1.0, "min": 60.0, "h": 3600.0, "ms": 1e-3}
FORMATS: Registry[JobFormat] = Registry("lowtide.job_formats", "job format")
_NUMBERS = ("arrival_time", "length", "cpus")
# Columns that need not be there, by what a trace calls them: durations, and other numbers.
_DURATIONS = {
    "requested": "requested_s",
    "waited": "wait_s",
    "wait": "slack_s",
    "cpu_time": "cpu_time_s",
    "suspended": "suspended_s",
    "think": "think_s",
}
_MORE_NUMBERS = {
    name: name
    for name in (
        *("gpus", "nodes", "priority", "power_w", "energy_j", "preceding", "requested_cpus"),
        *("memory_bytes", "requested_memory_bytes"),
    )
} | _DURATIONS
# How soon a job's turn is may be less than nothing, as it is to some queues.
_BELOW_0 = ("priority",)
# Instants, written as arrivals are; when a job did start says how long it waited.
_INSTANTS = ("deadline", "start_time")
# What lowtide's own table of simulated jobs has, and no other.
_OWN = frozenset(("arrival", "deadline", "run_s", "cpus", "wait_s"))
_ZONED = re.compile(r"(Z|z|UTC|:\d\d(\.\d+)? ?[+-]\d\d(:?\d\d)?)$")
_DATED = re.compile(r"\d{4}-\d\d-\d\d")
_TEXTS = (
    *("status", "user", "name", "group", "account", "executable", "queue", "partition"),
    *("interruptible", "after", "profile", "id"),
)
# Those that are numbers in most traces, and are kept as such where all are.
_NUMBERED = ("id", "user", "group", "executable", "queue", "partition")
_KNOWN = (*_NUMBERS, *_MORE_NUMBERS, *_INSTANTS, *_TEXTS)
# A median job of under a minute is rare; one of under sixty hours is not.
_SHORTEST_MEDIAN_S = 60.0
# What a reader notes of times that are taken for UTC.
ZONELESS = "times have no zone: they are taken as they stand, as if in UTC"
# No published trace lasts longer than this: whoever's would, in hours, has counted in seconds.
_LONGEST_DAYS = 3_650.0
# Whole numbers below this are told apart.
_EXACT = 2.0**53


class JobFormat(Protocol):
    """One way of writing job traces into a file."""

    def recognises(self, source: Source) -> bool:
        """Return whether the content looks like this format."""
        ...

    def read(self, source: Source, time_unit: str | None) -> Trace:
        """Read the jobs."""
        ...


@dataclass(frozen=True, slots=True)
class JobReader:
    """A format that is no module of its own."""

    recognises: Callable[[Source], bool]
    read: Callable[[Source, str | None], Trace]


@runtime_checkable
class JobWriter(Protocol):
    """A format that can be written too."""

    def render(self, trace: Trace) -> str:
        """Return the file's content."""
        ...


def read_jobs(
    path: Path | str,
    *,
    format: str | None = None,  # noqa: A002 - the word everyone uses for it
    time_unit: str | None = None,
    start: TimeLike | None = None,
) -> Trace:
    """Read a job trace; the format is told by the content.

    Args:
        path: The file, plain or gzip.
        format: Which format it is, where it should not be told by its content.
        time_unit: What a plain table counts time in: `s` (the default), `min`, `h` or `ms`.
        start: Move the first arrival to this instant.
    """
    if time_unit is not None and time_unit not in TIME_UNITS_S:
        raise InvalidInput(f"time_unit is one of {', '.join(TIME_UNITS_S)}, not {time_unit!r}")
    source = Source.open(path)
    trace = _format_of(source, format).read(source, time_unit)
    return trace if start is None else trace.shifted(start)


def write_jobs(trace: Trace, path: Path | str, *, format: str = "swf") -> None:  # noqa: A002
    """Write a job trace.

    Args:
        format: The format to write, by default SWF; `parquet` is the table of `csv` as Parquet.
    """
    if format == "parquet":
        files.write_whole(path, render_parquet(trace))
        return
    writer = FORMATS.load(format)
    if not isinstance(writer, JobWriter):
        able = [name for name in FORMATS.names() if isinstance(FORMATS.load(name), JobWriter)]
        raise InvalidInput(
            f"job format {format!r} can only be read: formats that can be written are "
            f"{', '.join(able)}"
        )
    files.write_whole(path, writer.render(trace))


def seconds_only(time_unit: str | None, what: str) -> None:
    """Refuse a time unit for a format that has its own."""
    if time_unit not in (None, "s"):
        given = Argument("time_unit", time_unit)
        raise InvalidInput(f"{what} counts in seconds: leave out {given}", arguments=(given,))


def waits(arrival: FloatArray, start: FloatArray, notes: list[str]) -> FloatArray:
    """Return how long jobs waited, NaN and a note for those that start before they arrive."""
    waited_s = start - arrival
    if early := int(np.count_nonzero(waited_s < 0)):
        notes.append(
            f"{format_count(early, 'job')} said to start before it was submitted: how long that "
            "waited is unknown"
        )
    return np.where(waited_s >= 0, waited_s, np.nan)


def _format_of(source: Source, name: str | None) -> JobFormat:
    if name is not None:
        return FORMATS.load(name)
    for known in FORMATS.names():
        candidate = FORMATS.load(known)
        if candidate.recognises(source):
            return candidate
    raise unrecognised(source, "job trace", FORMATS.names())


def recognises(source: Source) -> bool:
    """Return whether two of the headings are those that are needed, or nearly."""
    sheet = Sheet.of(source)
    if sheet is None:
        return False
    if set(sheet.headings) >= _OWN:
        return True
    near = {name for head in sheet.headings for name in get_close_matches(head, _NUMBERS, n=1)}
    return len(near) >= 2


def read(source: Source, time_unit: str | None) -> Trace:
    """Read the jobs.

    Args:
        time_unit: What times and durations count in; None is seconds, if they look like it.
    """
    sheet = Sheet.of(source)
    if sheet is None:
        raise FormatError("not a table: the first line has no headings", path=source.path, line=1)
    if set(sheet.headings) >= _OWN:
        return _read_own(sheet)
    notes = _check_headings(sheet)
    said = [name for name in _TEXTS if name in sheet.headings]
    dates = _dates(sheet)
    wanted = [
        name
        for name in (*_NUMBERS, *_MORE_NUMBERS)
        if name in sheet.headings and (name != _NUMBERS[0] or dates is None)
    ]
    texts, numbers = sheet.read(texts=said, numbers=wanted)
    found = dict(zip(wanted, numbers, strict=True))
    for name, values in found.items():
        _check_numbers(sheet, name, values)
    unit = time_unit or sheet.notes.get("time_unit")
    known_s = found["length"][np.isfinite(found["length"])]
    median = float(np.median(known_s)) if known_s.size else np.nan
    if unit is None and median < _SHORTEST_MEDIAN_S:
        raise _unit_unsaid(source, median, None if dates is not None else found[_NUMBERS[0]])
    if (factor := TIME_UNITS_S.get(unit or "s")) is None:
        raise FormatError(
            f"the note time_unit is one of {', '.join(TIME_UNITS_S)}, not {unit!r}",
            path=source.path,
        )
    arrival = found[_NUMBERS[0]] * factor if dates is None else dates
    if np.any(arrival >= MILLISECONDS_FROM):
        row = int(np.flatnonzero(arrival >= MILLISECONDS_FROM)[0])
        raise sheet.place(_NUMBERS[0]).error(
            f"{arrival[row] / factor:.0f} looks like milliseconds since 1970: say time_unit='ms' "
            "if lengths are milliseconds too, else divide arrivals by 1000",
            row,
            Argument("time_unit", "ms"),
        )
    columns: dict[str, Any] = {
        "arrival": arrival,
        "length_s": found["length"] * factor,
    }
    if "cpus" in found:
        columns["cpus"] = found["cpus"]
    for name in wanted:
        if name in _MORE_NUMBERS:
            values = found[name] * factor if name in _DURATIONS else found[name]
            columns[_MORE_NUMBERS[name]] = values
    for name in _INSTANTS:
        if name in sheet.headings:
            instant = _moments(sheet, name, dated=dates is not None, factor=factor)
            if name == "deadline":
                columns[name] = instant
            elif "wait_s" not in columns:
                columns["wait_s"] = _since(sheet, name, instant - columns["arrival"])
    profiles: list[PowerProfile] = []
    for name, text in zip(said, texts, strict=True):
        if name == "profile":
            columns[name] = _read_profiles(sheet, text, profiles)
        else:
            columns[name] = _read_texts(sheet, name, text)
    return Trace(
        columns=columns,
        source=f"job table, {source.path.name}",
        profiles=profiles,
        notes=notes,
    )


def _unit_unsaid(source: Source, median: float, arrival: FloatArray | None) -> FormatError:
    """Return the error for lengths that look like hours; how long all would last tells them apart.

    Args:
        arrival: When jobs arrive, in the unit that is not known; None where dates say it.
    """
    likely, spans = "h", ""
    if arrival is not None and arrival.size:
        in_days = {
            unit: float(np.ptp(arrival)) * TIME_UNITS_S[unit] / 86_400 for unit in ("h", "s")
        }
        likely = "s" if in_days["h"] > _LONGEST_DAYS else "h"
        hours, seconds = (f"{each:,.{0 if each >= 10 else 2}f}" for each in in_days.values())
        spans = f" (their arrivals would span {hours} days in hours, and {seconds} in seconds)"
    others = [f"'{unit}'" for unit in ("h", "min", "s") if unit != likely]
    return FormatError(
        f"half the jobs are shorter than {median:g}, which looks like hours rather than seconds"
        f"{spans}: say time_unit='{likely}', {others[0]} or {others[1]}",
        path=source.path,
        column="length",
        arguments=(Argument("time_unit", likely),),
    )


def _check_numbers(sheet: Sheet, name: str, values: FloatArray) -> None:
    least = -MOST if name in _BELOW_0 else 0.0
    good = (values >= least) & (values <= MOST)
    # What a row does not say is not known; but a line of text may have been cut short.
    if name not in _NUMBERS or (isinstance(sheet, ParquetSheet) and name != _NUMBERS[0]):
        good |= np.isnan(values)
    if not good.all():
        row = int(np.flatnonzero(~good)[0])
        given = "missing" if np.isnan(values[row]) else f"{values[row]:g}"
        what = "a number" if name in _BELOW_0 else "a number of 0 or more"
        raise sheet.place(name).error(f"{what} is needed here, not {given}", row)


def _read_texts(sheet: Sheet, name: str, text: pl.Series) -> Any:
    """Return a column of texts as a trace has it."""
    cells = text.str.strip_chars().to_list()
    if name == "status":
        codes = {state: status_code(state) for state in set(cells)}
        return np.array([codes[state] for state in cells])
    if name == "interruptible":
        for row, cell in enumerate(cells):
            if cell and cell not in INTERRUPTIBLE:
                raise sheet.place(name).error(
                    f"a job may be stopped {', '.join(INTERRUPTIBLE)}, not {cell!r}", row
                )
    cells = [cell or None for cell in cells]
    if name == "id" and None in cells:
        raise sheet.place(name).error("an id is missing", cells.index(None))
    if name in _NUMBERED and all(cell is not None and _is_plain_number(cell) for cell in cells):
        return np.array([int(cell) for cell in cells])
    return np.array(cells, dtype=object)


def _is_plain_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) < 19 and str(int(text)) == text


def _read_profiles(sheet: Sheet, text: pl.Series, profiles: list[PowerProfile]) -> Any:
    """Return each job's place in the profiles: a sample's name, a file, or the profile as JSON."""
    places: dict[str | None, int] = {None: -1, "": -1}
    found = []
    for row, cell in enumerate(text.str.strip_chars().to_list()):
        if cell not in places:
            try:
                if cell.startswith("{"):
                    made = PowerProfile.from_dict(json.loads(cell))
                else:
                    made = load_profile(cell, beside=sheet.source.path.parent)
            except (LowtideError, ValueError, RecursionError) as error:
                raise sheet.place("profile").error(str(error), row) from error
            places[cell] = len(profiles)
            profiles.append(made)
        found.append(places[cell])
    return np.array(found)


def _read_own(sheet: Sheet) -> Trace:
    """Read the table of jobs that a simulation writes: its jobs, not what became of them."""
    _, numbers = sheet.read(numbers=["arrival", "run_s", "cpus"])
    for name, values in zip(("arrival", "run_s", "cpus"), numbers, strict=True):
        wrong = np.flatnonzero(~(np.isfinite(values) & (values >= 0)))
        if wrong.size:
            raise sheet.place(name).error("a number of 0 or more is needed here", int(wrong[0]))
    columns = dict(zip(("arrival", "length_s", "cpus"), numbers, strict=True))
    return Trace(columns=columns, source=f"jobs of a simulation, {sheet.source.path.name}")


def render(trace: Trace) -> str:
    """Return jobs as a table that `read` reads back."""
    columns = {
        name: [_cell(value) for value in values.tolist()]
        if isinstance(values, np.ndarray)
        else ["" if value is None else value for value in values]
        for name, values in _headed(trace).items()
    }
    for heading, name in (("length", "length_s"), ("cpus", "cpus")):
        cells = columns.get(heading, [])
        if "" in cells:
            raise InvalidInput(
                f"job {cells.index('') + 1} has no {name}, which a job table needs: write .swf or "
                f".parquet, or leave out the {format_count(cells.count(''), 'job')} without it"
            )
    text = io.StringIO()
    if len(trace) and np.median(trace.length_s) < _SHORTEST_MEDIAN_S:
        # Whoever reads it would take these for hours.
        text.write("# time_unit: s\n")
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows(zip(*columns.values(), strict=True))
    return text.getvalue()


def render_parquet(trace: Trace) -> bytes:
    """Return the same table as Parquet, with what is unknown as null."""
    frame = pl.DataFrame(
        {
            name: pl.Series(values).fill_nan(None)
            if isinstance(values, np.ndarray) and values.dtype == np.float64
            else pl.Series(values)
            for name, values in _headed(trace).items()
        }
    )
    return files.parquet_of(frame, metadata={"time_unit": "s"})


def _headed(trace: Trace) -> dict[str, FloatArray | list[str | None]]:
    """Return the columns of a trace by their headings: numbers, or texts with None for unknown."""
    columns: dict[str, FloatArray | list[str | None]] = {
        "arrival_time": trace.column("arrival"),
        "length": trace.column("length_s"),
    }
    if "cpus" in trace.columns or "gpus" not in trace.columns:
        columns["cpus"] = trace.column("cpus")
    for heading, name in _MORE_NUMBERS.items():
        if name in trace.columns:
            columns[heading] = trace.column(name)
    if "deadline" in trace.columns:
        columns["deadline"] = trace.column("deadline")
    for name in _TEXTS:
        if name not in trace.columns:
            continue
        said: list[Any] = trace.column(name).tolist()
        if name == "id" and said == list(range(1, len(trace) + 1)):
            continue
        if name == "status":
            columns[name] = [STATUSES[code] for code in said]
        elif name == "profile":
            documents = [json.dumps(each.to_dict()) for each in trace.profiles]
            columns[name] = [None if place < 0 else documents[place] for place in said]
        else:
            columns[name] = [None if each is None else str(each) for each in said]
    return columns


def _cell(value: float) -> str:
    if np.isnan(value):
        return ""
    return str(int(value)) if value.is_integer() and abs(value) < _EXACT else repr(value)


def _dates(sheet: Sheet) -> FloatArray | None:
    """Return arrivals that are written as dates, None where they are numbers."""
    heading = _NUMBERS[0]
    first = sheet.first(heading)
    if first is None or not is_date(first):
        return None
    _require_zone(sheet, heading, first, 0)
    (texts,), _ = sheet.read(texts=[heading])
    return instants(texts, sheet.place(heading), tz=None)


def _moments(sheet: Sheet, heading: str, *, dated: bool, factor: float) -> FloatArray:
    """Return instants, NaN where a row has none, written as arrivals are.

    Args:
        dated: Whether arrivals are dates.
        factor: How many seconds their unit has, where they are numbers.
    """
    if not dated:
        _, (values,) = sheet.read(numbers=[heading])
        _check_numbers(sheet, heading, values)
        return values * factor
    (texts,), _ = sheet.read(texts=[heading])
    rows = np.flatnonzero(texts.is_not_null().to_numpy())
    found = np.full(len(texts), np.nan)
    if not rows.size:
        return found
    known, place = texts[rows], sheet.place(heading)
    if not is_date(known[0]):
        raise place.error(f"{known[0]!r} is no date, as arrivals are here", int(rows[0]))
    _require_zone(sheet, heading, known[0], int(rows[0]))
    line = place.line
    if line is not None:
        place = replace(place, line=lambda row: line(int(rows[row])))
    found[rows] = instants(known, place, tz=None)
    return found


def is_date(text: str) -> bool:
    """Return whether a time is written as a date rather than as a number."""
    return _DATED.match(text.strip()) is not None


def says_zone(text: str) -> bool:
    """Return whether a date says its zone."""
    return _ZONED.search(text.strip()) is not None


def _require_zone(sheet: Sheet, heading: str, text: str, row: int) -> None:
    if not says_zone(text):
        raise sheet.place(heading).error(
            f"{text!r} has no time zone: write {text.strip()}Z, or its offset behind it", row
        )


def _since(sheet: Sheet, heading: str, wait_s: FloatArray) -> FloatArray:
    """Return how long jobs waited; none starts before it arrives."""
    early = np.flatnonzero(wait_s < 0)
    if early.size:
        row = int(early[0])
        raise sheet.place(heading).error(
            f"the job starts {-wait_s[row]:g} s before it arrives: mend one of the times", row
        )
    return wait_s


def _check_headings(sheet: Sheet) -> list[str]:
    """Refuse a table that lacks what is needed; return notes on columns that mean nothing here."""
    missing = [name for name in _NUMBERS if name not in sheet.headings]
    if missing == ["cpus"] and "gpus" in sheet.headings:
        missing = []
    unknown = [heading for heading in sheet.headings if heading and heading not in _KNOWN]
    for heading in unknown if missing else ():
        if near := get_close_matches(heading, missing, n=1):
            raise FormatError(
                f"unknown column, rename it to {near[0]!r}: known are {', '.join(_KNOWN)}",
                path=sheet.source.path,
                column=heading,
            )
    if missing:
        raise FormatError(
            f"the column is missing: a job table has {', '.join(_NUMBERS)}, and may have "
            f"{', '.join((*_MORE_NUMBERS, *_INSTANTS, *_TEXTS))}",
            path=sheet.source.path,
            column=missing[0],
        )
    if not unknown:
        return []
    return [f"columns ignored: {', '.join(each + guess_at(each, _KNOWN) for each in unknown)}"]
