"""A curve in the terminal."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta, tzinfo

import numpy as np

from lowtide.signal import FloatArray, Signal
from lowtide.units import format_number

Marks = Sequence[tuple[str, Sequence[tuple[float, float]]]]

_BLOCKS = " ▁▂▃▄▅▆▇█"
# Hours that may lie between two times on an axis.
_EVERY_H = (1 / 60, 1 / 12, 1 / 6, 1 / 2, 1, 3, 6, 12, 24, 48, 168)


def draw(
    signal: Signal,
    *,
    marks: Marks = (),
    width: int | None = None,
    height: int = 8,
    unit: str | None = None,
    tz: tzinfo | None = UTC,
) -> str:
    """Return a signal drawn in blocks, with the time below and stretches of time marked.

    Args:
        signal: What to draw; each column shows the mean of its time.
        marks: Rows to put under the curve: a name, and the stretches to mark.
        width: Columns to use, by default the terminal's.
        unit: What its values are in, by default what the signal says.
        tz: The zone of the times below; None for this machine's.
    """
    columns = _columns(width, marks, most=4 * len(signal))
    edges = np.linspace(signal.start, signal.end, columns + 1)
    values = signal.integral(edges[:-1], edges[1:]) / np.diff(edges)
    unit = signal.unit if unit is None else unit
    return draw_curve(values, signal.start, signal.end, unit, marks=marks, height=height, tz=tz)


def draw_curve(
    values: FloatArray,
    start: float,
    end: float,
    unit: str,
    *,
    marks: Marks = (),
    height: int = 8,
    tz: tzinfo | None = UTC,
) -> str:
    """Return values, one per column, drawn in blocks over the time they span.

    Args:
        values: One per column, NaN where nothing is known: a dot marks the place.
        marks: Rows to put under the curve: a name, and the stretches to mark.
        tz: The zone of the times below; None for this machine's.
    """
    columns = values.size
    edges = np.linspace(start, end, columns + 1)
    # A curve of intensities starts at 0, so that half as high means half as much.
    known = np.isfinite(values)
    shown = values[known] if known.any() else np.zeros(1)
    floor, top = float(shown.min()), float(shown.max())
    if floor > -1e-9 * float(np.abs(shown).max()):
        floor = 0.0
    span = max(top - floor, 1e-12)
    eighths = np.round((np.where(known, values, floor) - floor) / span * height * 8).astype(int)
    labels = {height - 1: format_number(top), 0: format_number(floor)}
    label_width = max(_label_width(marks), *map(len, labels.values()))
    lines = []
    for line in range(height - 1, -1, -1):
        label = labels.get(line, "")
        blocks = [_BLOCKS[int(np.clip(high - 8 * line, 0, 8))] for high in eighths]
        if line == 0:
            blocks = [
                block if is_known else "·" for block, is_known in zip(blocks, known, strict=True)
            ]
        row = "".join(blocks)
        lines.append(f"{label:>{label_width}} {row}")
    middles = (edges[:-1] + edges[1:]) / 2
    for name, stretches in marks:
        hit = np.zeros(columns, dtype=bool)
        for first, last in stretches:
            hit |= (middles >= first) & (middles < last)
            # Even the shortest stretch is worth a mark.
            place = int((first - start) / (end - start) * columns)
            hit[min(max(place, 0), columns - 1)] = True
        lines.append(f"{name:>{label_width}} " + "".join("━" if mark else " " for mark in hit))
    lines.append(f"{unit:>{label_width}} {_time_axis(start, end, columns, tz)}")
    return "\n".join(line.rstrip() for line in lines)


def _label_width(marks: Marks) -> int:
    return max([7, *(len(name) for name, _ in marks)]) + 1


def _columns(width: int | None, marks: Marks, *, most: int) -> int:
    room = (width or shutil.get_terminal_size((80, 24)).columns) - _label_width(marks) - 2
    return max(min(room, most, 120), 10)


def _time_axis(start: float, end: float, columns: int, tz: tzinfo | None) -> str:
    """Write times below the columns, the date where the day begins, and the zone at the end."""
    zone = datetime.fromtimestamp(start, UTC).astimezone(tz).strftime("%Z")
    whole, columns = columns, max(columns - len(zone) - 1, 1)
    hours = (end - start) / 3600
    wanted = max(columns // 12, 1)
    every = next((step for step in _EVERY_H if hours / step <= wanted), 672)
    axis = [" "] * columns
    # Days begin where the zone's do.
    offset = datetime.fromtimestamp(start, UTC).astimezone(tz).utcoffset() or timedelta()
    ahead_s = offset.total_seconds()
    first = -(-(start + ahead_s) // (every * 3600)) * every * 3600 - ahead_s
    for instant in np.arange(first, end, every * 3600):
        place = round((instant - start) / (end - start) * whole)
        moment = datetime.fromtimestamp(float(instant), UTC).astimezone(tz)
        midnight = moment.hour == moment.minute == 0
        text = f"{moment:%d %b}" if every >= 24 or midnight else f"{moment:%H:%M}"
        if place + len(text) + 1 <= columns:
            axis[place : place + len(text) + 1] = f"╵{text}"
    return f"{''.join(axis)} {zone}"
