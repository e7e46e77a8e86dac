"""SWF 2.2, the Standard Workload Format of the parallel workloads archive, in and out.

Header lines `; Key: value`, then one line per job of 18 columns, −1 for unknown; further columns
are ignored. Submit times count from `UnixStartTime` where the header has it. What the format
states per processor (CPU time, memory) a trace holds for the whole job.

Numbers are written to six decimals, times thus to the microsecond. Texts that are no numbers are
numbered as they are first seen, from 1, and the header notes which number is whose.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

from lowtide.errors import FormatError, InvalidInput
from lowtide.formats.jobs import seconds_only
from lowtide.formats.source import Source, is_number
from lowtide.formats.swf_kernel import parse_columns
from lowtide.signal import FloatArray
from lowtide.states import STATUSES
from lowtide.trace import TEXTS, Column, Trace

COLUMNS = (
    "id",
    "arrival",
    "wait_s",
    "length_s",
    "cpus",
    "cpu_time_s",
    "memory_bytes",
    "requested_cpus",
    "requested_s",
    "requested_memory_bytes",
    "status",
    "user",
    "group",
    "executable",
    "queue",
    "partition",
    "preceding",
    "think_s",
)
# Those that number things rather than measure them.
WHOLE = frozenset(("id", "status", "user", "group", "executable", "queue", "partition"))

# What the status numbers mean; −1 is unknown.
STATUS = {
    0: "failed",
    1: "completed",
    2: "partial",
    3: "partial_completed",
    4: "partial_failed",
    5: "cancelled",
}

BYTES_PER_KB = 1024.0


__all__ = ["read", "recognises", "render"]

Table = dict[str, npt.NDArray[Any]]

# Numbers beyond this are slips: no count, second or kilobyte of a job comes near it.
_MOST = 1e15

_KEY = re.compile(r"([A-Za-z][\w -]*?)\s*:\s*(.*)")
# Arrivals this late are instants rather than seconds since some origin (1973).
_EPOCH_LIKE = 1e8
_STATUS = {name: code for code, name in STATUS.items()} | {
    "timeout": 0,
    "out_of_memory": 0,
    "node_failure": 0,
    "preempted": 5,
    "requeued": 5,
}


def recognises(source: Source) -> bool:
    """Return whether there is a header, or the first line holds 18 numbers."""
    if source.head.lstrip().startswith(";"):
        return True
    for line in source.head.splitlines():
        if cells := line.split():
            return len(cells) >= len(COLUMNS) and all(map(is_number, cells[: len(COLUMNS)]))
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
            if not is_number(cell) or (name in WHOLE and not float(cell).is_integer()):
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


def render(trace: Trace) -> str:
    """Return a trace as an SWF file.

    >>> print(render(Trace(columns={"arrival": [0], "length_s": [60], "user": ["ann"]})), end="")
    ; Version: 2.2
    ; Note: user 1 is ann
    1 0 -1 60 -1 -1 -1 -1 -1 -1 -1 1 -1 -1 -1 -1 -1 -1
    """
    header = {"Version": "2.2", **trace.header}
    begin = _begin(trace)
    if begin:
        header["UnixStartTime"] = str(int(begin))
    else:
        header.pop("UnixStartTime", None)
    columns, notes = [], []
    for name in COLUMNS:
        if name in TEXTS:
            numbers, mapping = _numbered(trace.column(name), by_row=name == "id")
            columns.append(numbers)
            notes += [f"{name} {number} is {text}" for text, number in mapping.items()]
        elif name == "status":
            codes = [str(_STATUS.get(status, -1)) for status in STATUSES]
            columns.append([codes[code] for code in trace.column("status")])
        else:
            columns.append([_number(value) for value in _values(trace, name, begin).tolist()])
    if notes:
        header["Note"] = "\n".join([*([header["Note"]] if "Note" in header else []), *notes])
    lines = [
        f"; {key}: {line}" if key else f"; {line}"
        for key, value in header.items()
        for line in value.split("\n")
    ]
    lines += map(" ".join, zip(*columns, strict=True))
    return "\n".join(lines) + "\n"


def _begin(trace: Trace) -> float:
    """Return what the submit times are written relative to."""
    if not len(trace):
        return 0.0
    first = float(trace.arrival[0])
    if first < 0:
        raise InvalidInput(
            f"SWF counts submit times from 0, and the first job arrives at {first:g} s: move the "
            "trace with trace.shifted(0)"
        )
    try:
        stated = float(trace.header.get("UnixStartTime", "0").split()[0])
    except (IndexError, ValueError):
        stated = 0.0
    if 0 < stated <= first:
        return float(np.floor(stated))
    return float(np.floor(first)) if first >= _EPOCH_LIKE else 0.0


def _values(trace: Trace, name: str, begin: float) -> FloatArray:
    values = np.asarray(trace.column(name), dtype=np.float64)
    if name == "arrival":
        return values - begin
    holders = {
        "cpu_time_s": "cpus",
        "memory_bytes": "cpus",
        "requested_memory_bytes": "requested_cpus",
    }
    if name not in holders:
        return values
    per = trace.column(holders[name])
    unit = 1.0 if name == "cpu_time_s" else BYTES_PER_KB
    # Nothing shared by no processors is nothing for each.
    shared = np.divide(values, per * unit, out=np.full(len(trace), np.nan), where=per > 0)
    return np.where((per == 0) & (values == 0), 0.0, shared)


def _numbered(texts: Column, *, by_row: bool) -> tuple[list[str], dict[str, int]]:
    """Return a text column as numbers, and which number stands for what if they were made up."""
    plain = [None if text is None else " ".join(str(text).split()) for text in texts.tolist()]
    if all(text is None or _is_plain_number(text) for text in plain):
        if by_row and None in plain:
            return [str(row + 1) for row in range(len(plain))], {}
        return [text or "-1" for text in plain], {}
    if by_row:
        return [str(row + 1) for row in range(len(plain))], {}
    mapping: dict[str, int] = {}
    for text in plain:
        if text is not None:
            mapping.setdefault(text, len(mapping) + 1)
    return ["-1" if text is None else str(mapping[text]) for text in plain], mapping


def _is_plain_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and str(int(text)) == text and int(text) < 2**62


def _number(value: float) -> str:
    if not np.isfinite(value):
        return "-1"
    return f"{value:.6f}".rstrip("0").rstrip(".")
