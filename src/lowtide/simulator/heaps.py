"""A heap of numbered things, soonest first, and trees that find the first row that fits.

A heap is one table, which keeps compiling the kernels short. Row 0 tells in `thing` how many
things there are; those lie in the rows from 1 on, with their `time`. The columns `place` and
`tie` are by the number of the thing: where it lies, and which of two things that are due at once
comes first. Any thing can be taken out.

A tree finds the first of many rows of numbers in which each is small enough. Several may lie in one
table: each begins at its `base` and has a power of two of leaves, `size`, and as many branches, of
which branch 1 is the root. A branch knows the least of each number below it, so that whole branches
can be passed over.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from lowtide.compiled import compiled

Rows = npt.NDArray[np.void]
FloatArray = npt.NDArray[np.float64]

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


@compiled(inner=True)
def set_leaf(tree: FloatArray, base: int, size: int, leaf: int, values: FloatArray) -> None:
    """Set the numbers of a leaf, infinite for none."""
    branch = size + leaf
    for key in range(values.size):
        tree[base + branch, key] = values[key]
    while branch > 1:
        branch >>= 1
        same = True
        for key in range(values.size):
            least = min(tree[base + 2 * branch, key], tree[base + 2 * branch + 1, key])
            if tree[base + branch, key] != least:
                tree[base + branch, key] = least
                same = False
        if same:
            return


@compiled(inner=True)
def within(tree: FloatArray, row: int, limits: FloatArray) -> bool:
    """Return whether no number of a row exceeds its limit."""
    for key in range(limits.size):  # noqa: SIM110 - numba knows no generators
        if tree[row, key] > limits[key]:
            return False
    return True


@compiled(inner=True)
def next_branch(branch: int) -> int:
    """Return the branch to the right that has not been looked at yet, 0 if there is none."""
    while branch & 1:
        branch >>= 1
    return branch + 1 if branch else 0


@compiled(inner=True)
def first_within(tree: FloatArray, base: int, size: int, limits: FloatArray, at: int) -> int:
    """Return the first leaf from one on that exceeds no limit, −1 if there is none."""
    if at >= size:
        return -1
    branch = at + size if at else 1
    while True:
        if within(tree, base + branch, limits):
            if branch >= size:
                return branch - size
            branch *= 2
        else:
            branch = next_branch(branch)
            if branch == 0:
                return -1
