"""Job traces in and out: what a format has to do, the two functions that people call, and tables.

A format is a module (or any object) with the two functions of `JobFormat`, registered under the
entry-point group `lowtide.job_formats`. One that can also write has `render`. This module is one
itself: plain tables with `arrival_time,length,cpus`, and more where there is. Published ones differ
in their unit of time and do not say it. Seconds are the default, but lengths that look like hours
are refused until the caller says what they are.
"""

from __future__ import annotations

import csv
import io
import re
from difflib import get_close_matches
from pathlib import Path
from typing import Protocol, runtime_checkable

import numpy as np

from lowtide import files
from lowtide.errors import Argument, FormatError, InvalidInput
from lowtide.formats.signals import unrecognised
from lowtide.formats.source import Source
from lowtide.formats.table_reader import Sheet
from lowtide.formats.times import instants
from lowtide.registry import Registry
from lowtide.signal import FloatArray
from lowtide.states import STATUSES, status_code
from lowtide.trace import Trace
from lowtide.units import TimeLike

TIME_UNITS_S = {"s": 1.0, "min": 60.0, "h": 3600.0}
FORMATS: Registry[JobFormat] = Registry("lowtide.job_formats", "job format")
_NUMBERS = ("arrival_time", "length", "cpus")
# Columns that need not be there, by what a trace calls them.
_MORE_NUMBERS = {
    "gpus": "gpus",
    "nodes": "nodes",
    "requested": "requested_s",
    "priority": "priority",
}
# How soon a job's turn is may be less than nothing, as it is to some queues.
_BELOW_0 = ("priority",)
# What lowtide's own table of simulated jobs has, and no other.
_OWN = frozenset(("arrival", "deadline", "run_s", "cpus", "wait_s"))
_ZONED = re.compile(r"(Z|z|UTC|:\d\d(\.\d+)? ?[+-]\d\d(:?\d\d)?)$")
_DATED = re.compile(r"\d{4}-\d\d-\d\d")
_TEXTS = ("status", "user", "name")
_KNOWN = (*_NUMBERS, *_MORE_NUMBERS, *_TEXTS)
# A median job of under a minute is rare; one of under sixty hours is not.
_SHORTEST_MEDIAN_S = 60.0


class JobFormat(Protocol):
    """One way of writing job traces into a file."""

    def recognises(self, source: Source) -> bool:
        """Return whether the content looks like this format."""
        ...

    def read(self, source: Source, time_unit: str | None) -> Trace:
        """Read the jobs."""
        ...


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
        time_unit: What a plain table counts time in: `s` (the default), `min` or `h`.
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
        format: The format to write, by default SWF.
    """
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


def _format_of(source: Source, name: str | None) -> JobFormat:
    if name is not None:
        return FORMATS.load(name)
    for known in FORMATS.names():
        candidate = FORMATS.load(known)
        if candidate.recognises(source):
            return candidate
    raise unrecognised(source, "job trace", FORMATS.names())


def recognises(source: Source) -> bool:
    """Return whether two of the headings are these columns', or nearly."""
    sheet = Sheet.of(source)
    if sheet is None:
        return False
    if set(sheet.headings) >= _OWN:
        return True
    near = {name for heading in sheet.headings for name in get_close_matches(heading, _KNOWN, n=1)}
    return len(near) >= 2


def read(source: Source, time_unit: str | None) -> Trace:
    """Read the jobs.

    Args:
        time_unit: What arrivals and lengths count in; None is seconds, if they look like it.
    """
    sheet = Sheet.of(source)
    if sheet is None:
        raise FormatError("not a table: the first line has no headings", path=source.path, line=1)
    if set(sheet.headings) >= _OWN:
        return _read_own(sheet)
    _check_headings(sheet)
    said = [name for name in _TEXTS if name in sheet.headings]
    more = [name for name in _MORE_NUMBERS if name in sheet.headings]
    arrivals, dated = _arrivals(sheet)
    texts, numbers = sheet.read(texts=said, numbers=[*_NUMBERS[dated:], *more])
    numbers = [arrivals, *numbers] if arrivals is not None else numbers
    for name, values in zip([*_NUMBERS, *more], numbers, strict=True):
        least = -np.inf if name in _BELOW_0 else 0.0
        wrong = np.flatnonzero(~((values >= least) & np.isfinite(values)))
        if wrong.size:
            row = int(wrong[0])
            given = "missing" if np.isnan(values[row]) else f"{values[row]:g}"
            what = "a number" if name in _BELOW_0 else "a number of 0 or more"
            raise sheet.place(name).error(f"{what} is needed here, not {given}", row)
    arrival, length, cpus = numbers[:3]
    if time_unit is None and (median := float(np.median(length))) < _SHORTEST_MEDIAN_S:
        raise FormatError(
            f"half the jobs are shorter than {median:g}, which looks like hours rather than "
            "seconds: say time_unit='h', 'min' or 's'",
            path=source.path,
            column="length",
            arguments=(Argument("time_unit", "h"),),
        )
    factor = TIME_UNITS_S[time_unit or "s"]
    columns = {
        "arrival": arrival if dated else arrival * factor,
        "length_s": length * factor,
        "cpus": cpus,
    }
    for name, values in zip(more, numbers[3:], strict=True):
        columns[_MORE_NUMBERS[name]] = values * factor if name == "requested" else values
    for name, text in zip(said, texts, strict=True):
        if name == "status":
            codes = {state: status_code(state) for state in text.unique().to_list()}
            columns[name] = np.array([codes[state] for state in text.to_list()])
        else:
            columns[name] = np.array(text.to_list(), dtype=object)
    return Trace(columns=columns, source=f"job table, {source.path.name}")


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
    """Return jobs as a table that `read` reads back: what this format has no column for is lost."""
    columns: dict[str, list[str]] = {
        "arrival_time": [f"{value!r}" for value in trace.column("arrival").tolist()],
        "length": _cells(trace, "length_s"),
        "cpus": _cells(trace, "cpus"),
    }
    for heading, name in _MORE_NUMBERS.items():
        if name in trace.columns and np.isfinite(trace.column(name)).all():
            columns[heading] = _cells(trace, name)
    if "status" in trace.columns:
        columns["status"] = [STATUSES[code] for code in trace.column("status").tolist()]
    for name in ("user", "name"):
        if name in trace.columns:
            said = trace.column(name).tolist()
            columns[name] = ["" if each is None else str(each) for each in said]
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows(zip(*columns.values(), strict=True))
    return text.getvalue()


def _cells(trace: Trace, name: str) -> list[str]:
    values = trace.column(name)
    unknown = np.flatnonzero(np.isnan(values))
    if unknown.size:
        raise InvalidInput(
            f"job {int(unknown[0]) + 1} has no {name}, which a job table needs: write .swf, or "
            f"leave out the {unknown.size} jobs without it"
        )
    return [f"{value:g}" if value.is_integer() else repr(value) for value in values.tolist()]


def _arrivals(sheet: Sheet) -> tuple[FloatArray | None, bool]:
    """Return arrivals that are written as dates, None where they are numbers."""
    heading = _NUMBERS[0]
    first = sheet.first(heading)
    if first is None or not _DATED.match(first.strip()):
        return None, False
    if not _ZONED.search(first.strip()):
        raise sheet.place(heading).error(
            f"{first!r} has no time zone: write {first.strip()}Z, or its offset behind it", 0
        )
    (texts,), _ = sheet.read(texts=[heading])
    return instants(texts, sheet.place(heading), tz=None), True


def _check_headings(sheet: Sheet) -> None:
    missing = [name for name in _NUMBERS if name not in sheet.headings]
    for heading in sheet.headings:
        if heading in _KNOWN:
            continue
        near = get_close_matches(heading, missing or _KNOWN, n=1)
        cure = f"rename it to {near[0]!r}" if near else "leave it out"
        raise FormatError(
            f"unknown column, {cure}: known are {', '.join(_KNOWN)}",
            path=sheet.source.path,
            column=heading,
        )
    if missing:
        raise FormatError(
            f"the column is missing: a job table has {', '.join(_NUMBERS)}, and may have "
            f"{', '.join((*_MORE_NUMBERS, *_TEXTS))}",
            path=sheet.source.path,
            column=missing[0],
        )
