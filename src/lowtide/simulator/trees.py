"""Trees that find the first of many rows of numbers in which each is small enough.

Several trees may lie in one table: each begins at its `base` and has a power of two of leaves,
`size`, and as many branches, of which branch 1 is the root. A branch knows the least of each
number below it, so that whole branches can be passed over.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from lowtide.compiled import compiled

FloatArray = npt.NDArray[np.float64]


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
            # Up to where a branch to the right has not been looked at yet.
            while branch & 1:
                branch >>= 1
            if branch == 0:
                return -1
            branch += 1
