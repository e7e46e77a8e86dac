"""Choosing slots by a forecast, job after job."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from lowtide.compiled import compiled

FloatArray = npt.NDArray[np.float64]
IndexArray = npt.NDArray[np.int64]


@compiled(inner=True)
def _smallest(values: FloatArray, size: int, count: int) -> float:
    """Return the `count`-th smallest of the first `size` values, which change their order.

    A selection of our own compiles in a fraction of the time that the library's takes.
    """
    low, high, wanted = 0, size - 1, count - 1
    while low < high:
        pivot = values[(low + high) // 2]
        i, j = low, high
        while i <= j:
            while values[i] < pivot:
                i += 1
            while values[j] > pivot:
                j -= 1
            if i <= j:
                values[i], values[j] = values[j], values[i]
                i += 1
                j -= 1
        if wanted <= j:
            high = j
        elif wanted >= i:
            low = i
        else:
            break
    return float(values[wanted])


@compiled()
def emit(
    actual: FloatArray,
    noise: FloatArray,
    spread: FloatArray,
    begin: IndexArray,
    end: IndexArray,
    length: IndexArray,
    stops: bool,
) -> FloatArray:
    """Return what jobs emit that run when a forecast is lowest: intensities of their slots added.

    Args:
        noise: What the forecast of each slot is off by, per unit of spread.
        spread: How wide the error is so many slots ahead; the last holds from there on.
        begin: The slot at which each job arrives, and at which its forecast is made.
        end: The slot at which it must be done.
    """
    sums = np.zeros(begin.size)
    widest = 0
    for i in range(begin.size):
        widest = max(widest, end[i] - begin[i])
    foreseen, scratch = np.empty(widest), np.empty(widest)
    last = spread.size - 1
    for i in range(begin.size):
        first, size, need = begin[i], end[i] - begin[i], length[i]
        for k in range(size):
            foreseen[k] = actual[first + k] + spread[min(k, last)] * noise[first + k]
        if stops:
            for k in range(size):
                scratch[k] = foreseen[k]
            limit = _smallest(scratch, size, need)
            spare = need
            for k in range(size):
                if foreseen[k] < limit:
                    spare -= 1
            # Of slots that look the same, the earlier ones are taken.
            for k in range(size):
                if foreseen[k] == limit and spare > 0:
                    spare -= 1
                    sums[i] += actual[first + k]
                elif foreseen[k] < limit:
                    sums[i] += actual[first + k]
            continue
        total = 0.0
        for k in range(need):
            total += foreseen[k]
        best, start = total, 0
        for k in range(need, size):
            total += foreseen[k] - foreseen[k - need]
            if total < best:
                best, start = total, k - need + 1
        for k in range(start, start + need):
            sums[i] += actual[first + k]
    return sums


@compiled()
def autocorrelated(draws: FloatArray, rho: float) -> FloatArray:
    """Return a series of the same spread in which neighbours go together."""
    series = draws.copy()
    fresh = np.sqrt(1.0 - rho * rho)
    for k in range(1, series.size):
        series[k] = rho * series[k - 1] + fresh * draws[k]
    return series
