"""A table of how busy a machine was: `time` in epoch seconds, and a column for each thing.

Such tables come from other tools (a Prometheus export, `sar`, a log of one's own), sampled by a
clock of their own. They are joined with a recording on time.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from lowtide.errors import FormatError
from lowtide.formats.sheet import Sheet
from lowtide.formats.source import Source
from lowtide.signal import FloatArray


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
