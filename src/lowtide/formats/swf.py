"""SWF 2.2, the Standard Workload Format of the parallel workloads archive, in and out.

Header lines `; Key: value`, then one line per job of 18 columns, −1 for unknown; further columns
are ignored. Submit times count from `UnixStartTime` where the header has it. What the format
states per processor (CPU time, memory) a trace holds for the whole job.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

from lowtide.errors import FormatError
from lowtide.formats.columns_kernel import parse_columns
from lowtide.formats.jobs import seconds_only
from lowtide.formats.source import Source
from lowtide.formats.swf_columns import BYTES_PER_KB, COLUMNS, STATUS, WHOLE
from lowtide.formats.swf_render import render
from lowtide.signal import FloatArray
from lowtide.states import STATUSES
from lowtide.trace import TEXTS, Trace

__all__ = ["read", "recognises", "render"]

Table = dict[str, npt.NDArray[Any]]

# Numbers beyond this are slips: no count, second or kilobyte of a job comes near it.
_MOST = 1e15

_KEY = re.compile(r"([A-Za-z][\w -]*?)\s*:\s*(.*)")


def recognises(source: Source) -> bool:
    """Return whether there is a header, or the first line holds 18 numbers."""
    if source.head.lstrip().startswith(";"):
        return True
    for line in source.head.splitlines():
        if cells := line.split():
            return len(cells) >= len(COLUMNS) and all(map(_is_number, cells[: len(COLUMNS)]))
    return False


def read(source: Source, time_unit: str | None) -> Trace:
    """Read the jobs.

    Args:
        time_unit: Nothing but seconds, which is what the format has.
    """
    seconds_only(time_unit, "SWF")
    header, body = _header(source)
    table = _fast(source.data, body)
    if table is None:
        table = _slow(source, body)
    _check(table, source, body)
    begin = _unix_start(header, source)
    codes = np.zeros(len(STATUSES) + 1, dtype=np.int8)
    for code, name in STATUS.items():
        codes[code] = STATUSES.index(name)
    columns: Table = {"arrival": table["arrival"] + begin}
    columns["status"] = codes[table["status"]]
    for name, values in table.items():
        if name in ("arrival", "status") or values.max() < 0:
            continue
        columns[name] = _names(values) if name in TEXTS else _known(values)
    for name, unit, holders in (
        ("cpu_time_s", 1.0, "cpus"),
        ("memory_bytes", BYTES_PER_KB, "cpus"),
        ("requested_memory_bytes", BYTES_PER_KB, "requested_cpus"),
    ):
        if name in columns:
            columns[name] = table[name] * unit * _known(table[holders])
    for values in columns.values():
        # Handed over for good: the trace need not copy what nobody else can change.
        values.flags.writeable = False
    return Trace(columns=columns, header=header, source=f"SWF, {source.path.name}")


def _is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return True


def _header(source: Source) -> tuple[dict[str, str], int]:
    """Return what the header says and where the jobs begin; lines of one key are kept in order."""
    header: dict[str, str] = {}
    body = 0
    while body < len(source.data):
        end = source.data.find(b"\n", body) + 1 or len(source.data)
        line = source.data[body:end].decode("utf-8", "replace").strip()
        if line and not line.startswith(";"):
            break
        body = end
        text = line.lstrip("; \t")
        if text:
            match = _KEY.fullmatch(text)
            key, value = (match[1], match[2]) if match else ("", text)
            header[key] = f"{header[key]}\n{value}" if key in header else value
    if body == len(source.data):
        raise FormatError("there is a header and no job below it", path=source.path)
    return header, body


def _unix_start(header: dict[str, str], source: Source) -> float:
    said = header.get("UnixStartTime", "0").split("\n")[0]
    try:
        begin = float(said.split()[0]) if said else 0.0
    except ValueError:
        raise FormatError(
            f"UnixStartTime is a number of seconds, not {said!r}", path=source.path
        ) from None
    return max(begin, 0.0)


def _fast(data: bytes, body: int) -> Table | None:
    """Read all columns in one pass; None where some line needs a closer look."""
    raw = np.frombuffer(data, dtype=np.uint8)
    whole = np.array([name in WHOLE for name in COLUMNS])
    # Columns lie one after the other, so each can be handed on as it is.
    numbers = np.empty((len(COLUMNS), data.count(b"\n", body) + 1))
    size = parse_columns(raw, body, whole, numbers)
    if size < 0:
        return None
    return {
        name: values[:size].astype(np.int64) if name in WHOLE else values[:size]
        for name, values in zip(COLUMNS, numbers, strict=True)
    }


def _lines(source: Source, body: int) -> Iterator[tuple[int, list[str]]]:
    before = source.data.count(b"\n", 0, body) + 1
    for number, line in enumerate(source.data[body:].split(b"\n"), start=before):
        cells = line.decode("utf-8", "replace").split()
        if cells and not cells[0].startswith(";"):
            yield number, cells


def _slow(source: Source, body: int) -> Table:
    """Read line by line, and say where the file stops making sense."""
    rows = []
    for number, cells in _lines(source, body):
        if len(cells) < len(COLUMNS):
            raise FormatError(
                f"a job has {len(COLUMNS)} columns, this line {len(cells)}: it may be cut short",
                path=source.path,
                line=number,
            )
        row = []
        for name, cell in zip(COLUMNS, cells, strict=False):
            if not _is_number(cell) or (name in WHOLE and not float(cell).is_integer()):
                raise FormatError(
                    f"{cell!r} is not a {'whole ' if name in WHOLE else ''}number",
                    path=source.path,
                    line=number,
                    column=name,
                )
            if name in WHOLE and not abs(float(cell)) <= _MOST:
                raise FormatError(
                    f"a number from 0 to {_MOST:g} is needed here, or -1 for unknown, not {cell}",
                    path=source.path,
                    line=number,
                    column=name,
                )
            row.append(float(cell))
        rows.append(row)
    columns = np.array(rows).T
    return {
        name: values.astype(np.int64) if name in WHOLE else values
        for name, values in zip(COLUMNS, columns, strict=True)
    }


def _check(table: Table, source: Source, body: int) -> None:
    for name, values in table.items():
        least = 0 if name == "arrival" else -1
        most = max(STATUS) if name == "status" else _MOST
        # A quick look first; it fails on NaN too.
        if values.min() >= 0 and values.max() <= most:
            continue
        fits = (values >= 0) & (values <= most) | (values == least)
        if fits.all():
            continue
        if name == "arrival":
            rule = "a job needs the time it was submitted at"
        elif name == "status":
            rule = f"a status is one of {', '.join(map(str, STATUS))}, or -1 for unknown"
        else:
            rule = f"a number from 0 to {_MOST:g} is needed here, or -1 for unknown"
        row = int(np.flatnonzero(~fits)[0])
        line = next(number for i, (number, _) in enumerate(_lines(source, body)) if i == row)
        raise FormatError(f"{rule}, not {values[row]:g}", path=source.path, line=line, column=name)


def _known(values: FloatArray) -> FloatArray:
    """Turn −1 into NaN, in place: these arrays are large."""
    values[values < 0] = np.nan
    return values


def _names(numbers: npt.NDArray[np.int64]) -> npt.NDArray[Any]:
    """Return numbers as they are where all are known, else as texts with None for −1."""
    if numbers.min() >= 0:
        return numbers
    largest = int(numbers.max())
    if largest > numbers.size // 2:
        texts = pl.Series(numbers).cast(pl.String).to_numpy(writable=True)
        texts[numbers < 0] = None
        return texts
    # Each text is made once; the place after the last, which −1 looks up, is unknown.
    return np.array([*map(str, range(largest + 1)), None], dtype=object)[numbers]
