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

from lowtide.compiled import compiled
from lowtide.signal import FloatArray

IntArray = npt.NDArray[np.intp]

_WINDOW_S = 2.0
# The median variance of shorter windows is well below the variance: of pairs it is less than half.
_LEAST_WINDOW = 8
# In fewer windows than this each may hold a change.
_WINDOWS = 20
_PRICE = 3.0
# The median of the square of a normal number, and how much noise is left in the next step at most.
_MEDIAN_SQUARE = 0.4549
_MOST_KEPT = 0.9
# So many times the usual move from step to step is a jump.
_JUMP = 4.0
# What a meter rounds to is no more than this share of the range of power.
_ROUNDING = 0.05
# Noise below this share of the mean power is rounding of the meter.
_LEAST_NOISE = 1e-3


def noise_variance(power_w: FloatArray, step_s: float) -> float:
    """Return the variance of the noise in a trace, in W².

    >>> rng = np.random.default_rng(0)
    >>> round(math.sqrt(noise_variance(100 + 5 * rng.standard_normal(2000), 0.1)), 1)
    5.0
    """
    width, floor = _width(power_w, step_s), _floor(power_w)
    windows = power_w.size // width
    if not windows:
        width, windows = power_w.size, 1
    if width < 2:
        return floor
    inside = power_w[: windows * width].reshape(windows, width)
    return max(float(np.median(inside.var(axis=1, ddof=1))), floor)


def _width(power_w: FloatArray, step_s: float) -> int:
    return max(round(_WINDOW_S / step_s), min(_LEAST_WINDOW, power_w.size // _WINDOWS), 2)


def _floor(power_w: FloatArray) -> float:
    return (_LEAST_NOISE * float(np.abs(power_w).mean())) ** 2


def wandering_noise(power_w: FloatArray, step_s: float) -> tuple[float, float]:
    """Return the variance of the noise in W², and how many times as much it weighs as it wanders.

    Noise of which a share is left in the next step averages out more slowly than noise that is new
    in every step, and looks like changes of level. That share is told from by how much two steps
    differ that are one, two and four apart: half of all such pairs hold no change.

    >>> rng = np.random.default_rng(0)
    >>> new, wandering = rng.standard_normal(5000), np.zeros(5000)
    >>> for place in range(1, 5000):
    ...     wandering[place] = 0.8 * wandering[place - 1] + 0.6 * new[place]
    >>> [round(wandering_noise(100 + each, 0.1)[1]) for each in (new, wandering)]
    [1, 7]
    """
    noise = noise_variance(power_w, step_s)
    if power_w.size < 4 * _LEAST_WINDOW:
        return noise, 1.0
    moves, floor = np.abs(np.diff(power_w)), _floor(power_w)
    # A meter that rounds coarsely shows no move most of the time: what it rounds to is usual then.
    rounded = float(np.median(moves)) ** 2 <= floor
    shown = moves[moves**2 > floor] if rounded else moves
    if not shown.size:
        return noise, 1.0
    usual = float(np.quantile(shown, 0.25 if rounded else 0.5)) / math.sqrt(_MEDIAN_SQUARE)
    if rounded and usual > _ROUNDING * float(np.ptp(power_w)):
        # All that is shown are changes of level: there is no noise to speak of.
        usual = math.sqrt(floor)
    # Power jumps where a level changes. Pairs and windows that hold a jump tell nothing of noise.
    jumps = np.concatenate(([0], np.cumsum(moves > _JUMP * usual)))
    apart = []
    for by in (1, 2, 4):
        pairs = (power_w[by:] - power_w[:-by])[jumps[by:] == jumps[:-by]] ** 2
        if pairs.size < _LEAST_WINDOW:
            return noise, 1.0
        middle = pairs.mean() * _MEDIAN_SQUARE if rounded else np.median(pairs)
        apart.append(max(float(middle), 1e-12))
    kept = min(apart[1] / apart[0] - 1, math.sqrt(max(apart[2] / apart[1] - 1, 0.0)))
    kept = min(max(kept, 0.0), _MOST_KEPT)
    variance = max(apart[0] / (2 * _MEDIAN_SQUARE * (1 - kept)), floor)
    width = _width(power_w, step_s)
    begins = np.arange(power_w.size // width) * width
    whole = jumps[begins] == jumps[begins + width - 1]
    if whole.sum() >= _LEAST_WINDOW:
        inside = power_w[: whole.size * width].reshape(whole.size, width)[whole]
        variance = max(variance, float(np.median(inside.var(axis=1, ddof=1))))
    return variance, (1 + kept) / (1 - kept)


def price_of_a_change(noise: float, steps: float) -> float:
    """Return by how much the squared distance must fall for a change to be believed, in W²."""
    # A trace of zeros has no noise, and no change in it costs nothing: ask for more than rounding.
    return max(_PRICE * noise * math.log(max(steps, 2.0)), 1e-12)


def find_changes(power_w: FloatArray, price: float) -> IntArray:
    """Return the edges of stretches of constant power: 0, each change, and the trace's length.

    >>> find_changes(np.array([5.0] * 20 + [9.0] * 30 + [5.0] * 10), price=10.0).tolist()
    [0, 20, 50, 60]
    """
    # About its mean the trace keeps more digits through sums and squares.
    return _cut(power_w - power_w.mean(), price)


@compiled()
def _cut(power_w: FloatArray, price: float) -> IntArray:
    count = power_w.size
    sums, squares = np.zeros(count + 1), np.zeros(count + 1)
    for at in range(count):
        sums[at + 1] = sums[at] + power_w[at]
        squares[at + 1] = squares[at] + power_w[at] ** 2
    best = np.zeros(count + 1)
    before = np.zeros(count + 1, dtype=np.intp)
    # Where the last piece may begin. A beginning that is dearer now even without the price of a
    # change stays so, and is dropped (Killick et al. 2012).
    room, costs = np.zeros(count + 2, dtype=np.intp), np.zeros(count + 2)
    size = 1
    for end in range(1, count + 1):
        place = 0
        for at in range(size):
            begin = room[at]
            apart = sums[end] - sums[begin]
            costs[at] = best[begin] + squares[end] - squares[begin] - apart * apart / (end - begin)
            if costs[at] < costs[place]:
                place = at
        best[end] = costs[place] + price
        before[end] = room[place]
        kept = 0
        for at in range(size):
            if costs[at] <= best[end]:
                room[kept] = room[at]
                kept += 1
        room[kept] = end
        size = kept + 1
    pieces, at = 0, count
    while at > 0:
        at = before[at]
        pieces += 1
    edges = np.empty(pieces + 1, dtype=np.intp)
    at = count
    for place in range(pieces, 0, -1):
        edges[place] = at
        at = before[at]
    edges[0] = 0
    return edges
