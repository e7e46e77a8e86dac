"""Jobs in plain tables: `arrival_time,length,cpus[,status]`.

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
_KNOWN = (*_NUMBERS, "status")
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
    states = [name for name in sheet.headings if name == "status"]
    texts, numbers = sheet.read(texts=states, numbers=_NUMBERS)
    for name, values in zip(_NUMBERS, numbers, strict=True):
        wrong = np.flatnonzero(~((values >= 0) & (values < np.inf)))
        if wrong.size:
            row = int(wrong[0])
            given = "missing" if np.isnan(values[row]) else f"{values[row]:g}"
            raise sheet.place(name).error(f"a number of 0 or more is needed here, not {given}", row)
    arrival, length, cpus = numbers
    if time_unit is None and (median := float(np.median(length))) < _SHORTEST_MEDIAN_S:
        raise FormatError(
            f"half the jobs are shorter than {median:g}, which looks like hours rather than "
            "seconds: say time_unit='h', 'min' or 's'",
            path=source.path,
            column="length",
        )
    factor = TIME_UNITS_S[time_unit or "s"]
    columns = {"arrival": arrival * factor, "length_s": length * factor, "cpus": cpus}
    if texts:
        codes = {state: status_code(state) for state in texts[0].unique().to_list()}
        columns["status"] = np.array([codes[state] for state in texts[0].to_list()])
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
            f"the column is missing: a job table has {', '.join(_NUMBERS)} and may have status",
            path=sheet.source.path,
            column=missing[0],
        )
