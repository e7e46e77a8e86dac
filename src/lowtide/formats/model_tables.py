"""Tables that power models are made of: how busy a machine was, and its watts at given loads.

Use has `time` in epoch seconds and a column for each thing. Such tables come from other tools (a
Prometheus export, `sar`, a log of one's own), sampled by a clock of their own, and are joined with
a recording on time.

Watts at given loads are as SPECpower reports and data sheets state them, a row per load: `100%,250`
to `10%,90` and `active idle,60`, in any order. Loads are percentages or shares; other columns are
left alone. `# source: …` above the heading says where the numbers are from.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np

from lowtide.errors import FormatError
from lowtide.formats.source import Source
from lowtide.formats.table_reader import Sheet
from lowtide.signal import FloatArray

_LOAD = re.compile(r"load|utili[sz]ation|^cpu|^share$|^level$")
_POWER = re.compile(r"watt|power|\(w\)|^w$|_w$")
_IDLE = re.compile(r"(active\s*)?idle")


def read_usage(path: Path | str) -> tuple[FloatArray, dict[str, FloatArray]]:
    """Return the times of a table and its other columns, NaN where a cell is empty.

    Args:
        path: A CSV file, plain or gzip.
    """
    sheet = Sheet.of(Source.open(path))
    if sheet is None or "time" not in sheet.headings:
        raise FormatError(
            "a table of use has a heading with 'time' (epoch seconds) and a column for each thing",
            path=path,
        )
    names = [name for name in dict.fromkeys(sheet.headings) if name not in ("time", "run")]
    if not names:
        raise FormatError("there is no column besides the time", path=path)
    _, (times, *values) = sheet.read(numbers=["time", *names])
    unknown = ~np.isfinite(times)
    if unknown.any():
        row = int(unknown.argmax())
        given = "missing" if np.isnan(times[row]) else "beyond all numbers: write epoch seconds"
        raise sheet.place("time").error(f"a time is {given}", row)
    back = np.flatnonzero(times[1:] <= times[:-1])
    if back.size:
        row = int(back[0]) + 1
        raise sheet.place("time").error(
            f"{times[row]:.3f} does not come after the row before it: sort the rows by time", row
        )
    if times.size < 2:
        raise FormatError("two rows or more are needed to tell a use over time", path=path)
    return times, dict(zip(names, values, strict=True))


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadTable:
    """Loads and what is drawn at each.

    Attributes:
        share: Loads from 0 to 1, rising.
        power_w: Watts at each, never falling.
        source: Where they come from, empty where the file does not say.
    """

    share: tuple[float, ...]
    power_w: tuple[float, ...]
    source: str


def read_load_table(path: Path | str) -> LoadTable:
    """Read loads and watts, and see that power does not fall as the load rises.

    Args:
        path: A CSV file.
    """
    sheet = Sheet.of(Source.open(path))
    if sheet is None:
        raise FormatError("a table of loads has a heading, such as load,watts", path=path)
    load, power = _column(sheet, _LOAD, "load"), _column(sheet, _POWER, "watts")
    (loads, powers), _ = sheet.read(texts=[load, power])
    rows = []
    for row, (said, drawn) in enumerate(zip(loads, powers, strict=True)):
        value = _number(said, idle=True)
        watts = _number(drawn)
        if value is None:
            raise sheet.place(load).error(f"{said!r} is no load: 70%, 0.7 or active idle", row)
        if watts is None or watts < 0:
            raise sheet.place(power).error(f"{drawn!r} is no power in watts", row)
        rows.append((value, watts, row))
    rows.sort()
    percent = "%" in load or "percent" in load.lower() or any("%" in (each or "") for each in loads)
    top = rows[-1][0]
    if not percent and top not in (1.0, 100.0):
        raise sheet.place(load).error(
            f"the highest load is {top:g}, so it cannot be told whether loads are percentages or "
            "shares: write 70% or head the column load_percent",
            rows[-1][2],
        )
    scale = 100.0 if percent or top > 1 else 1.0
    if rows[0][0] < 0 or top > scale:
        wrong = rows[0] if rows[0][0] < 0 else rows[-1]
        raise sheet.place(load).error(
            f"a load lies from 0 to {scale:g}, not {wrong[0]:g}", wrong[2]
        )
    if len(rows) < 2:
        raise FormatError("two loads or more are needed, such as idle and 100%", path=path)
    for (low, low_w, _), (high, high_w, row) in pairwise(rows):
        if low == high:
            raise sheet.place(load).error(f"the load {high:g} is there twice", row)
        if high_w < low_w:
            raise sheet.place(power).error(
                f"power falls from {low_w:g} W at load {low:g} to {high_w:g} W at {high:g}, which "
                "no machine does: check the table",
                row,
            )
    return LoadTable(
        share=tuple(value / scale for value, _, _ in rows),
        power_w=tuple(watts for _, watts, _ in rows),
        source=sheet.notes.get("source", ""),
    )


def _column(sheet: Sheet, pattern: re.Pattern[str], what: str) -> str:
    found = [name for name in dict.fromkeys(sheet.headings) if pattern.search(name.lower())]
    if len(found) == 1:
        return found[0]
    if what in found:
        return what
    those = f"which of {', '.join(found)} is it" if found else "there is none"
    raise FormatError(
        f"a table of loads has one column {what!r}; {those}? The headings are "
        f"{', '.join(sheet.headings)}",
        path=sheet.source.path,
    )


def _number(cell: str | None, *, idle: bool = False) -> float | None:
    text = (cell or "").strip().lower()
    if idle and _IDLE.fullmatch(text):
        return 0.0
    # A report may write thousands as 1,204 W.
    plain = re.sub(r"\s*(%|w|watts?)$", "", text).replace(",", "")
    try:
        value = float(plain)
    except ValueError:
        return None
    return value if value - value == 0 else None
