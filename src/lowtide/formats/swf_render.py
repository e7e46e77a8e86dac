"""SWF out: a trace as lines of 18 numbers.

Numbers are written to six decimals, times thus to the microsecond. Texts that are no numbers are
numbered as they are first seen, from 1, and the header notes which number is whose.
"""

from __future__ import annotations

import numpy as np

from lowtide.errors import InvalidInput
from lowtide.formats.swf_columns import BYTES_PER_KB, COLUMNS, STATUS
from lowtide.signal import FloatArray
from lowtide.states import STATUSES
from lowtide.trace import TEXTS, Column, Trace

# Arrivals this late are instants rather than seconds since some origin (1973).
_EPOCH_LIKE = 1e8

_STATUS = {name: code for code, name in STATUS.items()} | {
    "timeout": 0,
    "out_of_memory": 0,
    "node_failure": 0,
    "preempted": 5,
    "requeued": 5,
}


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
