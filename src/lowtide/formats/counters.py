"""Power from an energy counter, as read by a sampler that asks more often than it ticks."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from lowtide.errors import InvalidInput
from lowtide.signal import FloatArray

RowArray = npt.NDArray[np.intp]

# A counter ticks by itself, rather than whenever it is asked, if it stands still this often.
_STANDSTILL = 2.5
# A count that rises by more than so many times the most it did elsewhere did not just go on.
_LEAP = 10.0
# Over less than this, being a tick late is as much as what is to be corrected.
_LEAST_S = 10.0


def follow_counter(
    energy_j: FloatArray, range_j: float | None = None
) -> tuple[FloatArray, list[int]]:
    """Return a count that goes on where the counter wrapped or was reset, and where it was reset.

    A counter that falls has wrapped if its range is known and what it then counted is about what
    it counts elsewhere. If it falls to near 0 otherwise, it was reset: what it counts since goes
    on from where it was, and what it had counted until then is lost.

    Args:
        range_j: Where it starts from 0 again; None where that is not known.

    Returns:
        The count, and the rows that come first after a reset.

    >>> follow_counter(np.array([90.0, 95.0, 2.0, 8.0]), 100.0)
    (array([ 90.,  95., 102., 108.]), [])
    >>> follow_counter(np.array([50.0, 55.0, 2.0, 8.0]))
    (array([50., 55., 57., 63.]), [2])
    """
    moved = np.diff(energy_j)
    if (moved >= 0).all():
        return energy_j, []
    most_j = _LEAP * moved.max(initial=0.0)
    resets = []
    for row in (np.flatnonzero(moved < 0) + 1).tolist():
        before_j, after_j = float(energy_j[row - 1]), float(energy_j[row])
        if range_j is not None and 0 <= after_j + range_j - before_j <= most_j:
            moved[row - 1] = after_j + range_j - before_j
        elif 0 <= after_j <= most_j:
            moved[row - 1] = after_j
            resets.append(row)
        else:
            raise InvalidInput(
                f"the energy counter falls from {before_j:g} to {after_j:g} J in sample {row + 1}, "
                "which is neither a wrap nor a reset: add its range as a column such as "
                "max_energy_range_uj, or cut the run there"
            )
    return np.concatenate((energy_j[:1], energy_j[:1] + np.cumsum(moved))), resets


def power_from_counter(
    times: FloatArray, energy_j: FloatArray
) -> tuple[FloatArray, FloatArray, RowArray]:
    """Return when a counter moved, what was drawn from then on, and the sample that showed it.

    A counter that ticks ten times a second and is read fifty times a second is seen to move up to
    20 ms late, by turns more and less: a tenth or a quarter of a period, and as much error in
    watts. But it ticks evenly, and each tick lies between the last sample before it and the first
    after it. So the ticks are laid out evenly, and moved only where a sample says otherwise.

    Args:
        energy_j: What it showed, without a fall (`follow_counter`).

    Returns:
        Times of all ticks but the last, watts from each to the next, and rows of the samples.

    >>> times, energy_j = np.arange(0, 2, 0.02), np.floor(np.arange(0, 2, 0.02) * 10 + 0.5) * 30
    >>> _, power_w, _ = power_from_counter(times, energy_j)
    >>> bool(np.allclose(power_w[5:], 300))
    True
    """
    moved = np.diff(energy_j)
    rows = np.flatnonzero(moved > 0) + 1
    if rows.size < 3:
        raise InvalidInput("the energy counter moves fewer than three times: it tells no power")
    ticks = times[rows]
    if np.median(np.diff(ticks)) >= _STANDSTILL * np.median(np.diff(times)):
        ticks = _even_ticks(times[rows - 1], ticks)
    power_w = np.diff(energy_j[rows]) / np.diff(ticks)
    return ticks[:-1], power_w, rows[:-1]


def counter_factor(times: FloatArray, power_w: FloatArray, energy_j: FloatArray) -> float:
    """Return what power is to be multiplied with so that it comes to what a counter counted.

    A power that is read now and then misses what happens in between; a counter misses nothing, but
    is dear to read. So power gives the shape, and the counter the height. NaN where the counter
    was read too seldom to tell.

    Args:
        times: When power was read; each reading holds until the next.
        energy_j: What the counter showed at the same time, NaN where it was not read.

    >>> counter_factor(np.arange(21.0), np.full(21, 98.0), np.arange(21.0) * 100)
    1.0204081632653061
    """
    read = np.flatnonzero(np.isfinite(energy_j))
    # It is up to a tenth of a second behind, at both ends.
    if read.size < 2 or times[read[-1]] - times[read[0]] < _LEAST_S:
        return np.nan
    part = slice(read[0], read[-1])
    sampled_j = np.sum(power_w[part] * np.diff(times[read[0] : read[-1] + 1]))
    counted_j = energy_j[read[-1]] - energy_j[read[0]]
    return float(counted_j / sampled_j) if sampled_j > 0 and counted_j >= 0 else np.nan


def _even_ticks(after: FloatArray, until: FloatArray) -> FloatArray:
    """Return ticks as even as their bounds allow."""
    steps = np.diff(until)
    periods = np.maximum(np.rint(steps / np.median(steps)), 1.0)
    count = np.concatenate(([0.0], np.cumsum(periods)))
    # Over half of all ticks, being late by a sample at either end hardly matters.
    lag = max(until.size // 2, 1)
    period_s = float(np.median((until[lag:] - until[:-lag]) / (count[lag:] - count[:-lag])))

    def laid_out(after: FloatArray, until: FloatArray, periods: FloatArray) -> FloatArray:
        found = [(after[0] + until[0]) / 2]
        for low, high, between in zip(after[1:], until[1:], periods, strict=True):
            even = min(max(found[-1] + between * period_s, low), high)
            found.append(even if even > found[-1] else (found[-1] + high) / 2)
        return np.array(found)

    # Bounds that come later tell of earlier ticks too: go there and back, and take the middle.
    there = laid_out(after, until, periods)
    back = -laid_out(-until[::-1], -after[::-1], periods[::-1])[::-1]
    return (there + back) / 2
