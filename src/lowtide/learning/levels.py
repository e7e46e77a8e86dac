"""Runs that say nothing: rows of levels of power, and what comes again in them.

Each run is cut where its power changes. Levels that are near to each other share a label, so that a
run becomes a row of labels as a program's marks would make it, and the shape that rows share tells
what repeats. The levels of that shape are then laid into every run anew, with as many epochs as fit
it best: a change that was missed or seen in vain in one epoch is put right by the others.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from lowtide.changepoints import IntArray
from lowtide.learning.alignment import align, common_levels
from lowtide.learning.series import RunSeries, even_edges
from lowtide.learning.shape import MarkedStretches, Outline, Row, Shape, find_shape, parse
from lowtide.signal import FloatArray

# So many runs tell the shape; all tell the levels.
MOST_ROWS = 8
# Levels share a label up to a gap of so many times what makes two levels, or this share of the
# range of power: power drifts as a machine warms up.
_GAP_LEVELS = 1.5
_GAP_RANGE = 0.04
# How often levels are laid into runs and averaged.
_ROUNDS = 3
# Runs are laid out in so many steps at most.
_MOST_STEPS = 2000
# Epochs of a run together may take so many epochs more or less than usual.
_ABOUT = 0.6
# Epochs that were seen may be so many too few or too many.
_REACH = 2


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Levels:
    """The levels that runs pass through.

    Attributes:
        levels_w: Those of a run with the usual number of epochs.
        usual_s: How long each lasts.
        outline: Which of them are epochs, and how each run has them.
        price: What a further level has to explain, in W² of a step.
    """

    levels_w: FloatArray
    usual_s: FloatArray
    outline: Outline
    price: float
    step_s: float

    def row(self, epochs: int) -> IntArray:
        """Return which levels a run with so many epochs passes through."""
        outline = self.outline
        size = self.levels_w.size
        if not outline.length:
            return np.arange(size)
        at = np.arange(outline.length * epochs)
        epoch = np.minimum(at // outline.length, outline.count - 1)
        body = outline.first + epoch * outline.length + at % outline.length
        return np.concatenate((np.arange(outline.first), body, np.arange(outline.end, size)))

    def stretches_in(self, series: RunSeries) -> MarkedStretches:
        """Return the levels of a run, with as many epochs as fit it best."""
        outline = self.outline
        epochs = outline.count
        if outline.length:
            inside = slice(outline.first, outline.end)
            epoch_s = float(self.usual_s[inside].sum()) / outline.count
            rest_s = float(self.usual_s.sum()) - epoch_s * outline.count
            about = round((series.length_s - rest_s) / max(epoch_s, 1e-9))
            epochs = self._epochs(series, max(about, 1))
        return self.stretches(series, epochs)

    def _epochs(self, series: RunSeries, about: int) -> int:
        step_s = max(self.step_s, series.length_s / _MOST_STEPS)
        grid = even_edges(0.0, series.length_s, step_s)
        trace = series.mean_w(grid)
        best, least = about, (True, np.inf)
        inside = slice(self.outline.first, self.outline.end)
        epoch_s = float(self.usual_s[inside].sum()) / self.outline.count
        for epochs in range(max(about - _REACH, 1), about + _REACH + 1):
            levels_w = self.levels_w[self.row(epochs)]
            if levels_w.size > trace.size:
                continue
            edges, left = align(trace, levels_w)
            inside = slice(self.outline.first, self.outline.first + self.outline.length * epochs)
            lasts_s = np.diff(grid[edges])[inside].reshape(epochs, -1).sum(axis=1)
            # An epoch that lasts next to nothing is none.
            if lasts_s.min() < 0.4 * epoch_s:
                continue
            # Power may deceive where a machine was throttled; so many epochs take their time.
            unlike = abs(float(lasts_s.sum()) / epoch_s - epochs) > _ABOUT
            cost = left * step_s / self.step_s + self.price * levels_w.size
            if (unlike, cost) < least:
                best, least = epochs, (unlike, cost)
        return best

    def stretches(self, series: RunSeries, epochs: int) -> MarkedStretches:
        """Return the levels of a run with so many epochs; where they are is to be found."""
        slots = self.row(epochs)
        ends_s = np.cumsum(self.usual_s[slots] + 1e-9)
        edges_s = np.concatenate(([0.0], series.length_s * ends_s / ends_s[-1]))
        guessed = np.ones(edges_s.size, dtype=np.bool_)
        guessed[[0, -1]] = False
        return MarkedStretches(slots=slots, edges_s=edges_s, guessed=guessed, epochs=epochs)


def find_levels(
    series: Sequence[RunSeries],
    *,
    step_s: float,
    price: float,
    shortest_s: float,
    least_w: float,
    changes: Sequence[IntArray],
) -> Levels:
    """Return the levels that runs share, and what of them comes again.

    Args:
        step_s: The step in which runs are looked at.
        price: What a further level has to explain, in W² of a step.
        shortest_s: How long a level lasts at least.
        least_w: How far apart two levels are at least.
        changes: Where the power of the first of them changes, in steps.
    """
    grids = [even_edges(0.0, each.length_s, step_s) for each in series]
    traces = [each.mean_w(grid) for each, grid in zip(series, grids, strict=True)]
    cut = [
        merge_near(trace, edges, least_w=least_w, shortest=shortest_s / step_s)
        for trace, edges in zip(traces, changes, strict=False)
    ]
    some = traces[: len(cut)]
    rows = _labelled(some, cut, step_s, least_w)
    shape, _ = find_shape(rows, said=False)
    if shape.body:
        found = _settle(
            series,
            rows,
            shape,
            traces,
            grids,
            price=price,
            step_s=step_s,
            shortest_s=shortest_s,
        )
        if found is not None:
            return found
    levels_w, edges = common_levels(
        some,
        [float(grid[1] - grid[0]) for grid in grids[: len(cut)]],
        own_edges=cut,
        price=price,
        shortest_s=shortest_s,
        least_w=least_w,
    )
    seconds = np.mean(
        [np.diff(grid[edge]) for grid, edge in zip(grids, edges, strict=False)], axis=0
    )
    outline = Outline(first=0, length=0, count=1, runs=())
    plain = Levels(levels_w=levels_w, usual_s=seconds, outline=outline, price=price, step_s=step_s)
    return replace(
        plain, outline=replace(outline, runs=tuple(plain.stretches(each, 1) for each in series))
    )


def merge_near(trace: FloatArray, edges: IntArray, *, least_w: float, shortest: float) -> IntArray:
    """Return the edges of stretches of constant power, those of stretches that are none left out.

    Args:
        least_w: Neighbours that are nearer to each other than this are one.
        shortest: Stretches of fewer steps than this belong to the neighbour that is nearer.
    """
    upto = np.concatenate(([0.0], np.cumsum(trace)))
    kept = edges.tolist()

    def mean(place: int) -> float:
        begin, end = kept[place], kept[place + 1]
        return float((upto[end] - upto[begin]) / (end - begin))

    while len(kept) > 2:
        levels_w = np.array([mean(place) for place in range(len(kept) - 1)])
        apart_w = np.abs(np.diff(levels_w))
        nearest = int(np.argmin(apart_w))
        if apart_w[nearest] < least_w:
            del kept[nearest + 1]
            continue
        lasts = np.diff(kept)
        brief = int(np.argmin(lasts))
        if lasts[brief] >= shortest:
            break
        before = apart_w[brief - 1] if brief else np.inf
        after = apart_w[brief] if brief < apart_w.size else np.inf
        del kept[brief if before <= after else brief + 1]
    return np.array(kept, dtype=np.intp)


def _labelled(
    traces: Sequence[FloatArray], cut: Sequence[IntArray], step_s: float, least_w: float
) -> list[Row]:
    """Return rows in which levels that are near to each other share a label."""
    means = [
        np.add.reduceat(trace, edges[:-1]) / np.diff(edges)
        for trace, edges in zip(traces, cut, strict=True)
    ]
    every = np.sort(np.concatenate(means))
    gap_w = max(_GAP_LEVELS * least_w, _GAP_RANGE * float(np.ptp(every)))
    bounds_w = (every[1:] + every[:-1])[np.diff(every) > gap_w] / 2
    return [
        Row(
            labels=tuple(str(label) for label in np.searchsorted(bounds_w, levels_w)),
            seconds=np.diff(edges) * step_s,
            watts=levels_w,
        )
        for levels_w, edges in zip(means, cut, strict=True)
    ]


def _settle(
    series: Sequence[RunSeries],
    rows: Sequence[Row],
    shape: Shape,
    traces: Sequence[FloatArray],
    grids: Sequence[FloatArray],
    *,
    price: float,
    step_s: float,
    shortest_s: float,
) -> Levels | None:
    """Lay the levels of a shape into all runs, and average what they come to."""
    parses = [parse(row.labels, shape) for row in rows]
    sizes = (shape.startup, len(shape.body), len(shape.tail))
    sums = np.zeros((3, sum(sizes)))
    for row, found in zip(rows, parses, strict=True):
        for kind, place in zip(_kinds(sizes, found.epochs), found.places, strict=True):
            if place >= 0:
                seconds = row.seconds[place]
                sums[:, kind] += (1.0, seconds, seconds * row.watts[place])
    if (sums[0] == 0).any():
        return None
    count = _usual([found.epochs for found in parses])
    levels = _levels(sums, sizes, count, price=price, step_s=step_s)
    owns = [levels.stretches_in(each) for each in series]
    for _ in range(_ROUNDS):
        kinds = _kinds(sizes, count)
        sums = np.zeros((3, sum(sizes)))
        for trace, grid, own in zip(traces, grids, owns, strict=True):
            if own.slots.size > trace.size:
                return None
            edges, _ = align(trace, levels.levels_w[own.slots])
            seconds = np.diff(grid[edges])
            watts = np.add.reduceat(trace, edges[:-1]) / np.diff(edges)
            for total, values in zip(
                sums, (np.ones_like(seconds), seconds, seconds * watts), strict=True
            ):
                total += np.bincount(kinds[own.slots], weights=values, minlength=total.size)
        before, count = levels, _usual([own.epochs for own in owns])
        # What all runs together show for too short a time is a ramp between others.
        brief = np.flatnonzero(sums[1] < shortest_s * sums[0])
        parts = np.repeat((0, 1, 2), sizes)
        kept = np.delete(np.arange(sums.shape[1]), brief)
        if brief.size and {*parts[kept]} >= {1}:
            sums = sums[:, kept]
            startup, length, tail = (int((parts[kept] == part).sum()) for part in (0, 1, 2))
            sizes = (startup, length, tail)
        levels = _levels(sums, sizes, count, price=price, step_s=step_s)
        owns = [levels.stretches(each, own.epochs) for each, own in zip(series, owns, strict=True)]
        same = levels.levels_w.size == before.levels_w.size
        if same and np.allclose(levels.levels_w, before.levels_w, rtol=1e-4):
            break
    return replace(levels, outline=replace(levels.outline, runs=tuple(owns)))


def _levels(
    sums: FloatArray, sizes: tuple[int, int, int], count: int, *, price: float, step_s: float
) -> Levels:
    """Return levels from how often each came, for how long, and what was drawn."""
    times, seconds, joules = np.maximum(sums, 1e-9)[:, _kinds(sizes, count)]
    outline = Outline(first=sizes[0], length=sizes[1], count=count, runs=())
    return Levels(
        levels_w=joules / seconds,
        usual_s=seconds / times,
        outline=outline,
        price=price,
        step_s=step_s,
    )


def _kinds(sizes: tuple[int, int, int], epochs: int) -> IntArray:
    """Return for each level of a run with so many epochs which it is, whatever the epoch.

    Args:
        sizes: How many levels startup, an epoch and the tail have.
    """
    startup, length, tail = sizes
    return np.concatenate(
        (
            np.arange(startup),
            np.tile(np.arange(startup, startup + length), epochs),
            np.arange(startup + length, startup + length + tail),
        )
    )


def _usual(epochs: Sequence[int]) -> int:
    """Return the commonest number, the least of those that are."""
    counts = Counter(epochs)
    most = max(counts.values())
    return min(number for number, times in counts.items() if times == most)
