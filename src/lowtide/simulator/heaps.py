"""A heap of numbered things, soonest first, from which any can be taken out.

A heap is one table, which keeps compiling the kernels short. Row 0 tells in `thing` how many
things there are; those lie in the rows from 1 on, with their `time`. The columns `place` and
`tie` are by the number of the thing: where it lies, and which of two things that are due at once
comes first.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from lowtide.compiled import compiled

Rows = npt.NDArray[np.void]

# NumPy's numbers, here and in other kernels: numba compiles a function anew for every plain one.
TOP: Any = np.int64(1)

_COLUMNS = np.dtype(
    [("time", np.float64), ("thing", np.int64), ("place", np.int64), ("tie", np.int64)]
)


def make_heap(most: int) -> Rows:
    """Return an empty heap, in which the lower number comes first of two that are due at once."""
    heap = np.zeros(most + 1, dtype=_COLUMNS)
    heap["tie"] = np.arange(most + 1)
    return heap


@compiled(inner=True)
def due(heap: Rows) -> float:
    """Return when the first thing is due, infinite if there is none."""
    return float(heap[1]["time"]) if heap[0]["thing"] else np.inf


@compiled(inner=True)
def push(heap: Rows, time: float, thing: int) -> None:
    """Add a thing that is not in the heap."""
    heap[0]["thing"] += 1
    _rise(heap, heap[0]["thing"], time, thing)


@compiled(inner=True)
def pop(heap: Rows) -> int:
    """Take out the first thing and return which it is."""
    thing = heap[1]["thing"]
    _close(heap, TOP)
    return int(thing)


@compiled(inner=True)
def remove(heap: Rows, thing: int) -> None:
    """Take out a thing that is in the heap."""
    _close(heap, heap[thing]["place"])


@compiled(inner=True)
def _before(heap: Rows, time: float, thing: int, other: int) -> bool:
    """Return whether a thing comes before that of another row."""
    if time != heap[other]["time"]:
        return bool(time < heap[other]["time"])
    return bool(heap[thing]["tie"] < heap[heap[other]["thing"]]["tie"])


@compiled(inner=True)
def _put(heap: Rows, at: int, time: float, thing: int) -> None:
    heap[at]["time"] = time
    heap[at]["thing"] = thing
    heap[thing]["place"] = at


@compiled(inner=True)
def _rise(heap: Rows, at: int, time: float, thing: int) -> None:
    """Put a thing into a row, or above it."""
    while at > 1:
        parent = at >> 1
        if not _before(heap, time, thing, parent):
            break
        _put(heap, at, heap[parent]["time"], heap[parent]["thing"])
        at = parent
    _put(heap, at, time, thing)


@compiled(inner=True)
def _close(heap: Rows, at: int) -> None:
    """Close the gap that a row leaves with the last one."""
    last = heap[0]["thing"]
    heap[0]["thing"] = last - 1
    if at == last:
        return
    time, thing = heap[last]["time"], heap[last]["thing"]
    if at > 1 and _before(heap, time, thing, at >> 1):
        _rise(heap, at, time, thing)
        return
    while 2 * at < last:
        child = 2 * at
        if child + 1 < last and _before(
            heap, heap[child + 1]["time"], heap[child + 1]["thing"], child
        ):
            child += 1
        if _before(heap, time, thing, child):
            break
        _put(heap, at, heap[child]["time"], heap[child]["thing"])
        at = child
    _put(heap, at, time, thing)
