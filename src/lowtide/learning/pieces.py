"""Runs without marks, cut into pieces where their power changes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from lowtide.changepoints import IntArray, find_changes
from lowtide.learning.laying import Kinds, Laid, Pieces, lay
from lowtide.learning.series import RunSeries, even_edges
from lowtide.signal import FloatArray

# Pieces are cut at this share of the price of a change, and there are no more than so many.
_FINELY = 0.3
_FLUTTER = 0.7
_MOST_PIECES = 250
# From level to level, if these are so far apart, the meter takes about as long each time.
_CLEAR_MOVE = 0.15
_LONG_PIECE = 8
# A kind between two others that lasts fewer steps than this is a ramp.
BRIEF_RAMP = 3.5
# A meter may be late by this.
_LATE_S = 2.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Looking:
    """How runs are looked at.

    Attributes:
        step_s: The step in which they are.
        noise: The variance of the noise in a step, as it weighs over many steps, in W².
        price: What a further level has to explain, in W² of a step.
        range_w: The range of power.
        least_w: How far apart two levels are at least.
        shortest: How many steps a level lasts at least.
        ramp: How many steps the meter is on its way between two levels.
        times: How many times as much noise as a run tells by itself this is.
    """

    step_s: float
    noise: float
    price: float
    range_w: float
    least_w: float
    shortest: float
    ramp: int = 1
    times: float = 1.0

    def trace(self, series: RunSeries) -> tuple[FloatArray, FloatArray]:
        """Return a run's power in steps, and their edges in seconds."""
        grid = even_edges(0.0, series.length_s, self.step_s)
        return series.mean_w(grid), grid

    def pieces(self, trace: FloatArray) -> Pieces:
        """Return a run in pieces, cut rather too finely."""
        price = _FINELY * self.price
        while (edges := find_changes(trace, price)).size > _MOST_PIECES:
            price *= 2
        # What flutters about a level is not worth a piece of its own.
        edges = merge_near(trace, edges, least_w=_FLUTTER * self.least_w, shortest=0.0)
        means_w, steps = means_between(trace, edges), np.diff(edges)
        weights = np.where(on_the_way(means_w) & (steps <= self.ramp + 1), 0.0, steps)
        if self.shortest > BRIEF_RAMP:
            # What was asked to be none is none.
            weights[steps < self.shortest] = 0.0
        # A late meter shows what was before the start for a while.
        if steps.size > 1 and steps[0] <= max(self.shortest, _LATE_S / self.step_s):
            weights[0] = 0.0
        return Pieces(edges=edges, means_w=means_w, weights=weights)

    def laid(self, pieces: Pieces, row: Kinds) -> Laid:
        """Return how a run lies along a row of kinds."""
        return lay(pieces, row, noise=self.noise, range_w=self.range_w)


def means_between(trace: FloatArray, edges: IntArray) -> FloatArray:
    """Return the mean of a trace between each edge and the next."""
    means: FloatArray = np.add.reduceat(trace, edges[:-1]) / np.diff(edges)
    return means


def on_the_way(means_w: FloatArray) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    """Return which levels lie between the one before and the one after.

    >>> on_the_way(np.array([1.0, 2.0, 5.0, 3.0, 4.0])).tolist()
    [False, True, False, False, False]
    """
    found = np.zeros(means_w.size, dtype=np.bool_)
    moves = np.sign(np.diff(means_w))
    found[1:-1] = moves[1:] * moves[:-1] > 0
    return found


def merge_near(trace: FloatArray, edges: IntArray, *, least_w: float, shortest: float) -> IntArray:
    """Return the edges of stretches of constant power, those of stretches that are none left out.

    Args:
        least_w: Neighbours that are nearer to each other than this are one.
        shortest: Stretches of fewer steps than this belong to the neighbour that is nearer.
    """
    upto = np.concatenate(([0.0], np.cumsum(trace)))
    kept = edges.tolist()
    levels = ((upto[edges[1:]] - upto[edges[:-1]]) / np.diff(edges)).tolist()
    while len(kept) > 2:
        apart_w = np.abs(np.diff(levels))
        gone = int(np.argmin(apart_w)) + 1
        if apart_w[gone - 1] >= least_w:
            lasts = np.diff(kept)
            brief = int(np.argmin(lasts))
            if lasts[brief] >= shortest:
                break
            before = apart_w[brief - 1] if brief else np.inf
            after = apart_w[brief] if brief < apart_w.size else np.inf
            gone = brief if before <= after else brief + 1
        begin, end = kept[gone - 1], kept[gone + 1]
        levels[gone - 1 : gone + 1] = [float((upto[end] - upto[begin]) / (end - begin))]
        del kept[gone]
    return np.array(kept, dtype=np.intp)


def ramp_between(
    some: Sequence[tuple[FloatArray, FloatArray]], cuts: Sequence[IntArray], range_w: float
) -> int:
    """Return how many steps the meter is on its way between two levels."""
    lasts = []
    for (trace, _), edges in zip(some, cuts, strict=True):
        means_w, steps = means_between(trace, edges), np.diff(edges)
        rests = np.flatnonzero(steps >= _LONG_PIECE)
        for before, after in pairwise(rests.tolist()):
            moves = np.diff(means_w[before : after + 1])
            if (np.sign(moves) == np.sign(moves[0])).all() and abs(
                moves.sum()
            ) >= _CLEAR_MOVE * range_w:
                lasts.append(int(edges[after] - edges[before + 1]))
    # A brief phase between two levels is not on every way.
    return max(int(np.quantile(lasts, 0.3)), 1) if len(lasts) > 2 else 1


def without_ramps(trace: FloatArray, edges: IntArray, ramp: int) -> IntArray:
    """Return edges of which those of a meter on its way between two levels are one."""
    means_w, steps = means_between(trace, edges), np.diff(edges)
    brief = on_the_way(means_w) & (steps <= ramp + 1)
    kept = [0]
    place = 0
    while place < brief.size:
        if not brief[place]:
            kept.append(int(edges[place + 1]))
            place += 1
            continue
        last = place
        while brief[last + 1]:
            last += 1
        begin, end = int(edges[place]), int(edges[last + 1])
        apart_w = means_w[last + 1] - means_w[place - 1]
        # Energy tells where one level would have become the other at once.
        share = (means_w[last + 1] - trace[begin:end].mean()) / apart_w
        kept[-1] = begin + round(float(np.clip(share, 0.0, 1.0)) * (end - begin))
        place = last + 1
    return np.unique(np.array(kept, dtype=np.intp))
