"""Where a power trace changes its level, found without any log of what the program did.

The trace is cut so that the squared distance to each piece's mean, plus a price per piece, is
least: an exact dynamic programme. The price comes from the data. It is three times the noise
times the logarithm of the trace's length (the modified BIC of Zhang and Siegmund 2007), and the
noise is the median variance within windows of two seconds, or of eight steps where these are
longer: most windows hold no change, and unlike differences between neighbours such windows see
noise that is correlated over time.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from lowtide.signal import FloatArray

IntArray = npt.NDArray[np.intp]

_WINDOW_S = 2.0
# The median variance of shorter windows is well below the variance: of pairs it is less than half.
_LEAST_WINDOW = 8
# In fewer windows than this each may hold a change.
_WINDOWS = 20
_PRICE = 3.0
# Noise below this share of the mean power is rounding of the meter.
_LEAST_NOISE = 1e-3


def noise_variance(power_w: FloatArray, step_s: float) -> float:
    """Return the variance of the noise in a trace, in W².

    >>> rng = np.random.default_rng(0)
    >>> round(math.sqrt(noise_variance(100 + 5 * rng.standard_normal(2000), 0.1)), 1)
    5.0
    """
    width = max(round(_WINDOW_S / step_s), min(_LEAST_WINDOW, power_w.size // _WINDOWS), 2)
    floor = (_LEAST_NOISE * float(np.abs(power_w).mean())) ** 2
    windows = power_w.size // width
    if not windows:
        width, windows = power_w.size, 1
    if width < 2:
        return floor
    inside = power_w[: windows * width].reshape(windows, width)
    return max(float(np.median(inside.var(axis=1, ddof=1))), floor)


def price_of_a_change(noise: float, steps: float) -> float:
    """Return by how much the squared distance must fall for a change to be believed, in W²."""
    # A trace of zeros has no noise, and no change in it costs nothing: ask for more than rounding.
    return max(_PRICE * noise * math.log(max(steps, 2.0)), 1e-12)


def find_changes(power_w: FloatArray, price: float) -> IntArray:
    """Return the edges of stretches of constant power: 0, each change, and the trace's length.

    >>> find_changes(np.array([5.0] * 20 + [9.0] * 30 + [5.0] * 10), price=10.0).tolist()
    [0, 20, 50, 60]
    """
    count = power_w.size
    # About its mean the trace keeps more digits through sums and squares.
    centred = power_w - power_w.mean()
    sums = np.concatenate(([0.0], np.cumsum(centred)))
    squares = np.concatenate(([0.0], np.cumsum(centred**2)))
    best = np.zeros(count + 1)
    before = np.zeros(count + 1, dtype=np.intp)
    # Where the last piece may begin. A beginning that is dearer now even without the price of a
    # change stays so, and is dropped (Killick et al. 2012).
    begins = np.zeros(1, dtype=np.intp)
    for end in range(1, count + 1):
        apart = squares[end] - squares[begins]
        apart -= (sums[end] - sums[begins]) ** 2 / (end - begins)
        costs = best[begins] + apart
        place = int(np.argmin(costs))
        best[end] = costs[place] + price
        before[end] = begins[place]
        begins = np.append(begins[costs <= best[end]], end)
    edges = [count]
    while edges[-1] > 0:
        edges.append(int(before[edges[-1]]))
    return np.array(edges[::-1], dtype=np.intp)
