"""Trees that find the first of many numbers that is small enough.

Several trees may lie in one array: each begins at its `base` and has a power of two of leaves,
`size`, and as many branches, of which branch 1 is the root. A branch knows the least below it.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from numba import njit

FloatArray = npt.NDArray[np.float64]


@njit(cache=True, nogil=True, error_model="numpy")
def set_leaf(tree: FloatArray, base: int, size: int, leaf: int, value: float) -> None:
    """Set a number, infinite for none."""
    branch = size + leaf
    tree[base + branch] = value
    while branch > 1:
        branch >>= 1
        least = min(tree[base + 2 * branch], tree[base + 2 * branch + 1])
        if tree[base + branch] == least:
            return
        tree[base + branch] = least


@njit(cache=True, nogil=True, error_model="numpy")
def first_at_most(tree: FloatArray, base: int, size: int, limit: float, at: int) -> int:
    """Return the first leaf from one on that is at most so much, −1 if there is none."""
    if at >= size:
        return -1
    branch = at + size if at else 1
    while True:
        if tree[base + branch] <= limit:
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
