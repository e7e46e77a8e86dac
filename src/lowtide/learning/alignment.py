"""Fitting runs to one row of levels, each in its own time, before anything is averaged.

Runs of one program pass through the same levels, but not at the same times, and one may have a
hiccup that the others lack. Matching their pieces by number lets one odd piece shift all that
follow. So a run is aligned: given the levels in order, a dynamic programme (Viterbi's, for a
chain that only moves forward) finds the edges between them that fit best.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from lowtide.changepoints import IntArray
from lowtide.compiled import compiled
from lowtide.signal import FloatArray

# How often levels are found anew from the runs aligned to them, at most.
_ROUNDS = 20
_ROOM = 0.4


def align(power_w: FloatArray, levels_w: FloatArray) -> tuple[IntArray, float]:
    """Return the edges at which a trace passes from level to level, and the squared distance left.

    Every level lasts a step or more, so there must be no more levels than steps.

    >>> edges, left = align(np.array([1.0, 1, 5, 1, 9, 9]), np.array([1.0, 9.0]))
    >>> edges.tolist(), left
    ([0, 4, 6], 16.0)
    """
    return _align(power_w, levels_w)


@compiled()
def _align(power_w: FloatArray, levels_w: FloatArray) -> tuple[IntArray, float]:
    size, count = power_w.size, levels_w.size
    # cost[t]: the least squared distance of the first t steps, the last of them on this level.
    cost, begins = np.empty(size + 1), np.zeros((count, size + 1), dtype=np.intp)
    upto = 0.0
    cost[0] = np.inf
    for at in range(size):
        upto += (power_w[at] - levels_w[0]) ** 2
        cost[at + 1] = upto
    for level in range(1, count):
        # From s to t on a level costs upto[t] - upto[s]: the best s is a running minimum.
        upto, least, begin, entering = 0.0, np.inf, 0, cost[0]
        for at in range(size):
            if entering <= least:
                least, begin = entering, at
            upto += (power_w[at] - levels_w[level]) ** 2
            entering = cost[at + 1] - upto
            cost[at + 1] = least + upto
            begins[level, at + 1] = begin
        cost[0] = np.inf
    edges = np.empty(count + 1, dtype=np.intp)
    edges[count], edges[0] = size, 0
    for level in range(count - 1, 0, -1):
        edges[level] = begins[level, edges[level + 1]]
    return edges, cost[size]


def refine(
    upto_j: Callable[[FloatArray], FloatArray],
    edges_s: FloatArray,
    levels_w: FloatArray,
    *,
    step_s: float,
    least_w: float,
) -> FloatArray:
    """Return edges moved within a step, to where two levels explain the energy around them.

    A level changes within a step, not between two: the energy of the steps around an edge tells
    how much of them belongs to either level.

    Args:
        edges_s: Where the levels begin, and the end of the last.
        least_w: Edges between levels that differ by less stay where they are.
    """
    inner = edges_s[1:-1]
    if not inner.size:
        return edges_s
    # Less than half the way to the neighbours: two edges that move never meet.
    room_s = np.minimum(np.diff(edges_s)[:-1], np.diff(edges_s)[1:])
    reach_s = np.minimum(step_s, _ROOM * room_s)
    before_w, after_w = levels_w[:-1], levels_w[1:]
    clear = np.abs(after_w - before_w) >= max(least_w, 1e-9)
    energy_j = upto_j(inner + reach_s) - upto_j(inner - reach_s)
    apart_w = np.where(clear, after_w - before_w, 1.0)
    before_s = np.clip((2 * reach_s * after_w - energy_j) / apart_w, 0.0, 2 * reach_s)
    moved = np.where(clear, inner - reach_s + before_s, inner)
    return np.concatenate([edges_s[:1], moved, edges_s[-1:]])


def common_levels(
    traces: Sequence[FloatArray],
    step_s: Sequence[float],
    *,
    own_edges: Sequence[IntArray],
    price: float,
    shortest_s: float,
    least_w: float = 0.0,
) -> tuple[FloatArray, list[IntArray]]:
    """Return levels that all traces pass through, and the edges between them in each trace.

    The levels begin as those of the one trace that most others fit best. Neighbours that the
    traces together do not tell apart are merged, and levels that last too short are given up.

    Args:
        shortest_s: How long a level lasts at least in half of the traces.
        least_w: Neighbours that are nearer to each other than this are one level.
    """
    room = min(trace.size for trace in traces)
    candidates = []
    for trace, own in zip(traces, own_edges, strict=True):
        if own.size - 1 <= room:
            candidates.append(_means([trace], [own]))
    if not candidates:
        candidates.append(np.array([float(np.mean(np.concatenate(traces)))]))
    # The median: a hiccup of one run, however large, must not choose the levels of all.
    levels_w = min(
        candidates,
        key=lambda levels: (
            float(np.median([align(trace, levels)[1] for trace in traces])) + price * levels.size
        ),
    )
    for _ in range(_ROUNDS + levels_w.size):
        edges = [align(trace, levels_w)[0] for trace in traces]
        found = _means(traces, edges)
        kept = _worth_keeping(found, edges, step_s, price * len(traces), shortest_s, least_w)
        if kept.all() and np.allclose(found, levels_w, rtol=1e-9, atol=1e-9):
            break
        levels_w = found[kept]
    return found, edges


def _means(traces: Sequence[FloatArray], edges: Sequence[IntArray]) -> FloatArray:
    totals = sum(
        np.add.reduceat(trace, edge[:-1]) for trace, edge in zip(traces, edges, strict=True)
    )
    counts = sum(np.diff(edge) for edge in edges)
    means: FloatArray = np.asarray(totals / counts, dtype=np.float64)
    return means


def _worth_keeping(
    levels_w: FloatArray,
    edges: Sequence[IntArray],
    step_s: Sequence[float],
    price: float,
    shortest_s: float,
    least_w: float,
) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    """Return which levels to keep; of two neighbours, at most one goes in a round."""
    kept = np.ones(levels_w.size, dtype=np.bool_)
    if levels_w.size == 1:
        return kept
    counts = np.sum([np.diff(edge) for edge in edges], axis=0)
    seconds = np.median(
        [np.diff(edge) * step for edge, step in zip(edges, step_s, strict=True)], axis=0
    )
    # By how much the squared distance rises if two neighbours share a level.
    rise = counts[:-1] * counts[1:] / (counts[:-1] + counts[1:]) * np.diff(levels_w) ** 2
    rise[np.abs(np.diff(levels_w)) < least_w] *= 1e-9
    # The level with fewer steps goes; the next round lays the edge between its neighbours.
    weaker = np.arange(rise.size) + (counts[1:] < counts[:-1])
    going = sorted(zip(rise[rise < price], weaker[rise < price], strict=True))
    if not going:
        short = np.flatnonzero(seconds < shortest_s)
        going = sorted(zip(seconds[short], short, strict=True))
    touched = np.zeros(levels_w.size + 2, dtype=np.bool_)
    for _, level in going:
        if kept.sum() > 1 and not touched[level : level + 3].any():
            kept[level] = False
            touched[level : level + 3] = True
    return kept
