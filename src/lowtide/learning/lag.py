"""How late power is after marks: by a meter's lag, or by as much as clocks of two hosts differ."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from lowtide.learning.marks import Marks
from lowtide.learning.series import RunSeries
from lowtide.learning.shape import MarkedStretches, Outline

# Meters are late, clocks differ: how far the power may lag behind what the program said.
_LAGS_S = np.round(np.arange(-0.5, 4.0 + 0.01, 0.05), 2)
# So much around a mark tells that, as far as its stretches go.
_BEFORE_S, _AFTER_S = 3.0, 6.0
# Marks that leave more than this share of the variance of power may be off; they are if elsewhere
# they leave less than this share of that. Runs are looked at in so many steps.
_UNTOLD, _TOLD = 0.4, 0.35
_CLOCK_STEPS = 400
_CLOCK_PARTS = 4


def find_lag(series: Sequence[RunSeries], marks: Marks, step_s: float) -> float:
    """Return how late the meter is: the shift of all marks at which power jumps most.

    Power is looked at around each mark alone: what it does within a stretch tells nothing of when
    the next one began.

    Args:
        step_s: A lag shorter than this cannot be told from none.
    """
    first_s, last_s = (
        min(float(np.diff(own.edges_s)[at]) for own in marks.outline.runs) for at in (0, -1)
    )
    # No stretch is turned around. Ties, and all but ties, go to the smaller lag.
    lags = np.array(
        [lag for lag in sorted(_LAGS_S.tolist(), key=abs) if lag == 0 or -first_s < lag < last_s]
    )
    told = np.zeros(lags.size)
    for each, own in zip(series, marks.outline.runs, strict=True):
        said = np.flatnonzero(~own.guessed[1:-1]) + 1
        edges_s = own.edges_s[said]
        around_s = (
            np.maximum(edges_s - _BEFORE_S, own.edges_s[said - 1]),
            np.minimum(edges_s + _AFTER_S, own.edges_s[said + 1]),
        )
        begin, end = np.searchsorted(each.times_s, around_s)[:, :, None]
        moved = np.searchsorted(each.times_s, edges_s[:, None] + lags)
        inner = np.clip(moved, begin, end)
        upto = np.concatenate(([0.0], np.cumsum(each.power_w)))
        for low, high in ((begin, inner), (inner, end)):
            told += ((upto[high] - upto[low]) ** 2 / np.maximum(high - low, 1)).sum(axis=0)
    most = float(told.max())
    best_s = float(lags[np.argmax(told >= most * (1 - 1e-9))])
    return best_s if abs(best_s) >= step_s else 0.0


def off_by_clock_s(series: RunSeries, own: MarkedStretches, outline: Outline) -> float | None:
    """Return by how much a run's marks are off its power, None where they are not by much.

    Clocks of two hosts may differ by minutes. Marks explain power where they are, or where they
    would be by another clock.
    """
    size = min(_CLOCK_STEPS, series.times_s.size)
    grid = np.linspace(0.0, series.length_s, size + 1)
    if size < 2 * own.slots.size or own.slots.size < 2:
        return None
    power_w = series.mean_w(grid)
    mids = (grid[1:] + grid[:-1]) / 2
    inside = np.clip(np.searchsorted(own.edges_s, mids, side="right") - 1, 0, own.slots.size - 1)
    # Power may have several levels in a stretch: the parts of each are looked at by themselves.
    share = (mids - own.edges_s[inside]) / np.maximum(np.diff(own.edges_s)[inside], 1e-9)
    parts = np.clip((_CLOCK_PARTS * share).astype(np.intp), 0, _CLOCK_PARTS - 1)
    again = outline.kinds(own)
    if again.size > 1 and again[0] in again[1:]:
        # An epoch that begins with the run holds its startup as well.
        again = np.append(again.max() + 1, again[1:])
    kinds = _CLOCK_PARTS * again[inside] + parts
    # Where a mark is missing, nothing is said of power.
    kinds = np.where((own.guessed[:-1] | own.guessed[1:])[inside], -1, kinds)
    if 2 * np.count_nonzero(kinds >= 0) < size:
        return None

    def left(by: int) -> float:
        """Return the share of variance that marks leave if they are moved by so many steps."""
        shown = power_w[max(by, 0) : size + min(by, 0)]
        said = kinds[max(-by, 0) : size - max(by, 0)]
        shown, said = shown[said >= 0], said[said >= 0]
        counts = np.maximum(np.bincount(said), 1)
        sums = np.bincount(said, weights=shown)
        whole = float(shown.var()) * shown.size
        told = float((sums**2 / counts).sum() - shown.sum() ** 2 / shown.size)
        return 1 - told / (whole or 1.0)

    step_s = series.length_s / size
    near = range(-int(1 / step_s) - 1, int(_LAGS_S[-1] / step_s) + 2)
    least = 1.0
    for by in sorted(near, key=abs):
        least = min(least, left(by))
        if least < _UNTOLD:
            return None
    shifts = [by for by in range(-size // 2, size // 2 + 1) if by not in near]
    best = min(shifts, key=left)
    return best * step_s if left(best) < _TOLD * least else None
