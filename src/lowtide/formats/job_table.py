"""Jobs in plain tables: `arrival_time,length,cpus`, and more where there is.

Published files differ in their unit of time and do not say it. Seconds are the default, but
lengths that look like hours are refused until the caller says what they are.
"""

from __future__ import annotations

from difflib import get_close_matches

import numpy as np

from lowtide.errors import FormatError
from lowtide.formats.jobs import TIME_UNITS_S
from lowtide.formats.sheet import Sheet
from lowtide.formats.source import Source
from lowtide.formats.states import status_code
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
_TEXTS = ("status", "user", "name")
_KNOWN = (*_NUMBERS, *_MORE_NUMBERS, *_TEXTS)
# A median job of under a minute is rare; one of under sixty hours is not.
_SHORTEST_MEDIAN_S = 60.0


def recognises(source: Source) -> bool:
    """Return whether two of the headings are these columns', or nearly.

    Args:
        source: The file.
    """
    sheet = Sheet.of(source)
    if sheet is None:
        return False
    near = {name for heading in sheet.headings for name in get_close_matches(heading, _KNOWN, n=1)}
    return len(near) >= 2


def read(source: Source, time_unit: str | None) -> Trace:
    """Read the jobs.

    Args:
        source: The file.
        time_unit: What arrivals and lengths count in; None is seconds, if they look like it.
    """
    sheet = Sheet.of(source)
    if sheet is None:
        raise FormatError("not a table: the first line has no headings", path=source.path, line=1)
    _check_headings(sheet)
    said = [name for name in _TEXTS if name in sheet.headings]
    more = [name for name in _MORE_NUMBERS if name in sheet.headings]
    texts, numbers = sheet.read(texts=said, numbers=[*_NUMBERS, *more])
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
    columns = {"arrival": arrival * factor, "length_s": length * factor, "cpus": cpus}
    for name, values in zip(more, numbers[3:], strict=True):
        columns[_MORE_NUMBERS[name]] = values * factor if name == "requested" else values
    for name, text in zip(said, texts, strict=True):
        if name == "status":
            codes = {state: status_code(state) for state in text.unique().to_list()}
            columns[name] = np.array([codes[state] for state in text.to_list()])
        else:
            columns[name] = np.array(text.to_list(), dtype=object)
    return Trace(columns=columns, source=f"job table, {source.path.name}")


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
