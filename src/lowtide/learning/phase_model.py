"""Phases as they lie in a run: a model of what they draw, and where they begin."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from lowtide.changepoints import IntArray
from lowtide.learning.alignment import align, refine
from lowtide.learning.levels import Levels
from lowtide.learning.marks import Marks
from lowtide.learning.series import RunSeries, even_edges
from lowtide.learning.shape import MarkedStretches, Outline
from lowtide.signal import FloatArray

# Levels that differ by this many times the noise tell where between two steps one ends.
_CLEAR = 3.0


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PhaseModel:
    """What runs have in common: phases in order, and where each run has them.

    Attributes:
        names: What the phases of a run with the usual number of epochs are called: the mark their
            stretch began with, numbered where it has several, or their number where there are no
            marks.
        stretches: What the stretch of each is called; epochs share it.
        checkpoints: Whether a checkpoint lies at the end of each.
        duration_s: How long each takes, the mean over runs.
        power_w: What each draws: energy over time, all runs together.
        edges_s: Where the phases of each run begin as the meter sees them, and the run's end.
        run_s: How long each run's phases took by the program's clock: no lag shortens the last.
        run_power_w: What each run drew in each phase.
        rows: Which phase each of a run's is; those of an epoch beyond the usual ones are the last
            epoch's.
        epochs: How many epochs each run has.
        runs: The names of the runs, in the order of the rows above.
        marks: The marks that cut runs into stretches, None if there are none.
        outline: Which stretches are epochs; None where runs were not compared so.
        parts: How many phases each stretch has.
        lag_s: How late the meter sees the marks.
        step_s: The step in which runs were compared.
        noise: The variance of the noise in them.
        used: Which of the runs that were given these are.
    """

    names: tuple[str, ...]
    stretches: tuple[str, ...]
    checkpoints: tuple[bool, ...]
    duration_s: FloatArray
    power_w: FloatArray
    edges_s: tuple[FloatArray, ...]
    run_s: tuple[FloatArray, ...]
    run_power_w: tuple[FloatArray, ...]
    rows: tuple[IntArray, ...]
    epochs: tuple[int, ...]
    runs: tuple[str, ...]
    marks: Marks | None
    outline: Outline
    parts: tuple[int, ...]
    lag_s: float
    step_s: float
    noise: float
    levels: Levels | None = None
    notes: tuple[str, ...] = ()
    used: tuple[int, ...] = ()

    def values(self, phase: int, of: Sequence[FloatArray]) -> list[FloatArray]:
        """Return what each run has of a phase: nothing, one value, or that of several epochs.

        Args:
            of: `run_s` or `run_power_w`.
        """
        return [values[row == phase] for values, row in zip(of, self.rows, strict=True)]

    def row(self, epochs: int) -> IntArray:
        """Return the phases of a run with so many epochs."""
        begins = np.concatenate(([0], np.cumsum(self.parts)))
        outline, size = self.outline, len(self.names)
        if not outline.length or epochs == outline.count:
            return np.arange(size)
        first, end = int(begins[outline.first]), int(begins[outline.end])
        last = int(begins[outline.end - outline.length])
        if epochs > outline.count:
            more = np.tile(np.arange(last, end), epochs - outline.count)
            return np.concatenate((np.arange(end), more, np.arange(end, size)))
        kept = int(begins[outline.first + outline.length * (epochs - 1)])
        if epochs < 2:
            kept = first
        return np.concatenate((np.arange(kept), np.arange(last, size)))

    def locate(self, series: RunSeries) -> tuple[FloatArray, IntArray] | None:
        """Return where the meter sees which phases of another run, None where that is unknown."""
        found = self.lay(series)
        return None if found is None else (as_metered(found[0], self.lag_s), found[1])

    def lay(self, series: RunSeries) -> tuple[FloatArray, IntArray] | None:
        """Return where a run that was not learned from has which phases, None where it cannot."""
        if self.levels is not None:
            own: MarkedStretches | None = self.levels.stretches_in(series)
        elif self.marks is not None:
            own = self.marks.stretches_in(series)
        else:
            whole = np.array([0.0, series.length_s])
            own = MarkedStretches(
                slots=np.zeros(1, dtype=np.intp),
                edges_s=whole,
                guessed=np.zeros(2, dtype=np.bool_),
                epochs=1,
            )
        if own is None:
            return None
        begins = np.concatenate(([0], np.cumsum(self.parts)))
        levels_w = [self.power_w[first:last] for first, last in pairwise(begins.tolist())]
        placing = Placing(step_s=self.step_s, noise=self.noise, lag_s=self.lag_s)
        edges_s, slots = placing.edges(series, own, levels_w)
        row = np.concatenate([np.arange(begins[slot], begins[slot + 1]) for slot in slots])
        return edges_s, row


@dataclass(frozen=True, slots=True, kw_only=True)
class Placing:
    """How phases are found in a run whose levels are known."""

    step_s: float
    noise: float
    lag_s: float

    def edges(
        self, series: RunSeries, own: MarkedStretches, levels_w: Sequence[FloatArray]
    ) -> tuple[FloatArray, IntArray]:
        """Return where a run's phases begin by the program's clock, and whose stretches they are.

        Stretches between which a mark is missing are looked for together.

        Args:
            levels_w: The levels of every stretch.
        """
        edges = [np.zeros(1)]
        known = np.flatnonzero(~own.guessed)
        for first, last in pairwise(known):
            levels = np.concatenate([levels_w[slot] for slot in own.slots[first:last]])
            begin_s, end_s = own.edges_s[first], own.edges_s[last]
            inner = self._inner(series, begin_s, end_s, levels)
            inner[-1] = end_s
            edges.append(inner[1:])
        return np.concatenate(edges), own.slots

    def _inner(
        self, series: RunSeries, begin_s: float, end_s: float, levels_w: FloatArray
    ) -> FloatArray:
        if levels_w.size == 1:
            return np.array([begin_s, end_s])
        seen_s = series.seen_s(np.array([begin_s, end_s]) + self.lag_s)
        grid = even_edges(seen_s[0], max(seen_s[1], seen_s[0] + 1e-6), self.step_s)
        if grid.size <= levels_w.size:
            # Too short to tell: an even share for each.
            shares: FloatArray = np.linspace(begin_s, end_s, levels_w.size + 1)
            return shares
        edges, _ = align(series.mean_w(grid), levels_w)
        least_w = _CLEAR * math.sqrt(self.noise)
        found = refine(series.upto_j, grid[edges], levels_w, step_s=self.step_s, least_w=least_w)
        return found - self.lag_s


def as_metered(edges_s: FloatArray, lag_s: float) -> FloatArray:
    """Return edges by the program's clock as the meter sees them; start and end stay."""
    inner = np.clip(edges_s[1:-1] + lag_s, edges_s[0], edges_s[-1])
    return np.concatenate((edges_s[:1], inner, edges_s[-1:]))
