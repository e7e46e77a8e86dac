"""Runs that say nothing: the levels of power that they pass through, and their epochs.

Each run is cut where its power changes (`pieces`), what comes again is found from a few of them
(`bodies`), and every run is laid along that with as many epochs as fit it best.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import median

import numpy as np

from lowtide.changepoints import find_changes
from lowtide.learning.alignment import align, common_levels, refine
from lowtide.learning.bodies import ROUNDS, find_row
from lowtide.learning.laying import Kinds, Laid, Pieces
from lowtide.learning.pieces import Looking, merge_near, ramp_between
from lowtide.learning.series import RunSeries
from lowtide.learning.shape import MarkedStretches, Outline, usual_epochs
from lowtide.signal import FloatArray

# So many runs tell what comes again.
MOST_ROWS = 8
# How many times as much noise as was told there may be, and what a stay costs that looks alike.
NOISES = (1.0, 6.0, 36.0)
_ALIKE_STAYS = 6.0
# Edges are moved within so many steps at least.
_REACH = 4
# Runs whose lengths differ by less than this share of an epoch have as many.
_ABOUT = 0.4
# A level that is off by this share of the range of power, or an epoch's stretch so many times as
# long as usual, is not that of the others; so much of a run may be so.
_UNLIKE, _UNLIKE_LENGTH = 0.12, 1.8
_ODD = 0.35


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Levels:
    """The levels that runs pass through.

    Attributes:
        levels_w: Those of a run with the usual number of epochs.
        outline: Which of them are epochs, and how each run has them.
        row: The kinds that they are of; None where nothing comes again.
    """

    levels_w: FloatArray
    outline: Outline
    row: Kinds | None
    looking: Looking

    def stretches_in(self, series: RunSeries) -> MarkedStretches:
        """Return the levels of a run, with as many epochs as fit it best."""
        if self.row is None:
            # Where they are is to be found by their power.
            edges_s = np.linspace(0.0, series.length_s, self.levels_w.size + 1)
            guessed = np.ones(edges_s.size, dtype=np.bool_)
            guessed[[0, -1]] = False
            slots = np.arange(self.levels_w.size)
            trace, grid = self.looking.trace(series)
            if trace.size >= slots.size:
                edges_s = grid[align(trace, self.levels_w)[0]]
            return MarkedStretches(slots=slots, edges_s=edges_s, guessed=guessed, epochs=1)
        trace, grid = self.looking.trace(series)
        pieces = self.looking.pieces(trace)
        laid = self.looking.laid(pieces, self.row)
        return _stretches(series, grid, pieces, laid, self.row, self.outline.count, self.looking)

    def unlike(self, series: RunSeries, own: MarkedStretches) -> float:
        """Return the share of a run's time in which it is not what the levels say.

        A single level has no range to be off by: by how much runs may differ, nodes tell, and
        `likeness` has looked at that.
        """
        if self.levels_w.size == 1:
            return 0.0
        seconds = np.diff(own.edges_s)
        apart_w = np.abs(series.mean_w(own.edges_s) - self.levels_w[own.slots])
        steps = np.maximum(seconds / self.looking.step_s, 1.0)
        room_w = _UNLIKE * self.looking.range_w + 3 * np.sqrt(self.looking.noise / steps)
        wrong = apart_w > room_w
        if self.row is not None:
            # Epochs take as long as others; a startup may take longer.
            kinds = self.outline.kinds(own)
            inside = (own.slots >= self.outline.first) & (own.slots < self.outline.end)
            usual = self.row.steps[np.where(inside, kinds, 0)]
            ratio = np.maximum(steps, usual) / np.minimum(steps, usual)
            wrong |= inside & (ratio > _UNLIKE_LENGTH) & (np.abs(steps - usual) > 3)
        return float(seconds[wrong].sum() / seconds.sum())


def find_levels(
    series: Sequence[RunSeries],
    looking: Looking,
    *,
    shortest_s: float,
    noises: Sequence[float] = NOISES,
) -> tuple[Levels, list[int], list[str]]:
    """Return the levels that runs share, which runs have them, and why others are left out.

    Args:
        shortest_s: How long a level lasts at least where nothing comes again.
        noises: How many times as much noise there may be as runs tell by themselves.
    """
    used = list(range(len(series)))
    for turn in range(ROUNDS):
        chosen = [series[number] for number in used]
        levels = _common(chosen, looking, shortest_s, noises)
        unlike = [
            levels.unlike(each, own) for each, own in zip(chosen, levels.outline.runs, strict=True)
        ]
        alike = [number for number, share in zip(used, unlike, strict=True) if share <= _ODD]
        if len(alike) == len(used) or turn == ROUNDS - 1:
            break
        others = [number for number in used if number not in alike]
        used = alike if 2 * len(alike) >= len(used) else others
    return levels, used, _left_out(series, levels, used)


def _left_out(series: Sequence[RunSeries], levels: Levels, used: Sequence[int]) -> list[str]:
    notes = []
    for number, each in enumerate(series):
        if number not in used:
            share = levels.unlike(each, levels.stretches_in(each))
            notes.append(
                f"run {each.run.id} is unlike the others, at other levels of power or for other "
                f"lengths of time in {100 * share:.0f} % of it, and is left out: it seems to be "
                "another program's"
            )
    return notes


def _common(
    series: Sequence[RunSeries], looking: Looking, shortest_s: float, noises: Sequence[float]
) -> Levels:
    """Return the levels of runs of one program."""
    some = [looking.trace(each) for each in series[:MOST_ROWS]]
    found = []
    # Power flutters about its level as it works, which a calm startup does not tell: if stays are
    # not alike in units of the noise, there is more of it.
    for times in noises:
        louder = replace(
            looking, noise=times * looking.noise, price=times * looking.price, times=times
        )
        cuts = [find_changes(trace, louder.price) for trace, _ in some]
        louder = replace(louder, ramp=ramp_between(some, cuts, looking.range_w))
        pieces = [louder.pieces(trace) for trace, _ in some]
        best = find_row(some, cuts, pieces, louder)
        if best is not None:
            found.append((best, pieces, louder))
            if best.per_stay <= _ALIKE_STAYS:
                break
    if found:
        best, pieces, louder = min(found, key=lambda each: each[0].share)
        return _found(series, best.row, some, pieces, louder)
    cuts = [find_changes(trace, looking.price) for trace, _ in some]
    levels_w, _ = common_levels(
        [trace for trace, _ in some],
        [float(grid[1] - grid[0]) for _, grid in some],
        own_edges=[
            merge_near(trace, edges, least_w=looking.least_w, shortest=shortest_s / looking.step_s)
            for (trace, _), edges in zip(some, cuts, strict=True)
        ],
        price=looking.price,
        shortest_s=shortest_s,
        least_w=looking.least_w,
    )
    outline = Outline(first=0, length=0, count=1, runs=())
    plain = Levels(levels_w=levels_w, outline=outline, row=None, looking=looking)
    runs = tuple(plain.stretches_in(each) for each in series)
    return replace(plain, outline=replace(outline, runs=runs))


def _found(
    series: Sequence[RunSeries],
    row: Kinds,
    some: Sequence[tuple[FloatArray, FloatArray]],
    pieces: Sequence[Pieces],
    looking: Looking,
) -> Levels:
    """Lay all runs along a row of kinds."""
    laid = []
    for number, each in enumerate(series):
        trace, grid = some[number] if number < len(some) else looking.trace(each)
        own = pieces[number] if number < len(pieces) else looking.pieces(trace)
        laid.append((each, grid, own, looking.laid(own, row)))
    counts = Counter(int((own.kinds == row.first).sum()) for *_, own in laid)
    count = usual_epochs(counts)
    usual_s = [one.length_s for one, *_, lies in laid if (lies.kinds == row.first).sum() == count]
    epoch_s = float(row.steps[row.first : row.end].sum()) * looking.step_s
    runs = []
    for run in laid:
        found = _stretches(*run, row, count, looking)
        # A run that takes as long as those of the usual number of epochs has as many.
        if found.epochs != count and abs(run[0].length_s - median(usual_s)) < _ABOUT * epoch_s:
            found = _guessed(run[0], row, count)
        runs.append(found)
    kinds = np.concatenate(
        (
            np.arange(row.first),
            np.tile(np.arange(row.first, row.end), count),
            np.arange(row.end, row.steps.size),
        )
    )
    return Levels(
        levels_w=row.levels_w[kinds],
        outline=Outline(first=row.first, length=row.length, count=count, runs=tuple(runs)),
        row=row,
        looking=looking,
    )


def _guessed(series: RunSeries, row: Kinds, count: int) -> MarkedStretches:
    """Return the stretches of a run with so many epochs; where they are is to be found by power."""
    inside = np.tile(row.steps[row.first : row.end], count)
    steps = np.concatenate((row.steps[: row.first], inside, row.steps[row.end :]))
    edges_s = np.concatenate(([0.0], np.cumsum(steps))) * series.length_s / steps.sum()
    guessed = np.ones(edges_s.size, dtype=np.bool_)
    guessed[[0, -1]] = False
    return MarkedStretches(
        slots=np.arange(steps.size), edges_s=edges_s, guessed=guessed, epochs=count
    )


def _stretches(
    series: RunSeries,
    grid: FloatArray,
    pieces: Pieces,
    laid: Laid,
    row: Kinds,
    count: int,
    looking: Looking,
) -> MarkedStretches:
    """Return where a run has its levels, moved within steps to where energy tells them to be."""
    epoch = np.maximum(np.cumsum(laid.kinds == row.first) - 1, 0)
    slots = laid.kinds + row.length * np.minimum(epoch, count - 1)
    slots = np.where(laid.kinds >= row.end, laid.kinds + row.length * (count - 1), slots)
    edges_s = np.append(grid[pieces.edges[laid.begins]], series.length_s)
    levels_w = row.levels_w[laid.kinds]
    edges_s = refine(
        series.upto_j,
        edges_s,
        levels_w,
        step_s=(max(looking.ramp, _REACH) + 1) * looking.step_s,
        least_w=looking.least_w,
    )
    return MarkedStretches(
        slots=slots,
        edges_s=edges_s,
        guessed=np.zeros(edges_s.size, dtype=np.bool_),
        epochs=int(epoch[-1]) + 1,
    )
