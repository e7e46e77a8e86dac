"""Jobs in plain tables: `arrival_time,length,cpus`, and more where there is.

Published files differ in their unit of time and do not say it. Seconds are the default, but
lengths that look like hours are refused until the caller says what they are.
"""

from __future__ import annotations

import csv
import io
import re
from difflib import get_close_matches

import numpy as np

from lowtide.errors import FormatError, InvalidInput
from lowtide.formats.jobs import TIME_UNITS_S
from lowtide.formats.sheet import Sheet
from lowtide.formats.source import Source
from lowtide.formats.stamps import instants
from lowtide.signal import FloatArray
from lowtide.states import STATUSES, status_code
from lowtide.trace import Trace

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
