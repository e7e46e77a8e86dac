"""Phases from runs: the stretches between marks, cut where the power changes.

Without marks the whole run is one stretch, and the change points are all there is. The published
way (`method="published"`) takes the stretches as they are: mean power of all samples between two
events, difference of the mean event times.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise

import numpy as np

from lowtide.changepoints import IntArray, find_changes, noise_variance, price_of_a_change
from lowtide.errors import InvalidInput
from lowtide.learning.alignment import align, common_levels, refine
from lowtide.learning.marks import Marks, common_marks, find_lag
from lowtide.learning.series import RunSeries, even_edges
from lowtide.signal import FloatArray

METHODS = ("aligned", "published")
# Phases of fewer steps than this are ramps between others.
_SHORTEST_STEPS = 4
# Levels that differ by this many times the noise tell where between two steps one ends.
_CLEAR = 3.0
# Marks closer together than clocks are written down were made at once.
_CLOCK_S = 2e-4


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PhaseModel:
    """What runs have in common: phases in order, and where each run has them.

    Attributes:
        names: What the phases are called: the mark their stretch began with, numbered where it has
            several, or their number where there are no marks.
        stretches: What the stretch of each is called; epochs share it.
        checkpoints: Whether a checkpoint lies at the end of each.
        duration_s: How long each takes, the mean over runs.
        power_w: What each draws: energy over time, all runs together.
        edges_s: Where the phases of each run begin, and the end of the last.
        run_power_w: What each run drew in each phase.
        runs: The names of the runs, in the order of the rows above.
        marks: The marks that cut runs into stretches, None if there are none.
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
    edges_s: FloatArray
    run_power_w: FloatArray
    runs: tuple[str, ...]
    marks: Marks | None
    parts: tuple[int, ...]
    lag_s: float
    step_s: float
    noise: float
    notes: tuple[str, ...] = ()
    used: tuple[int, ...] = ()

    def align(self, series: RunSeries) -> FloatArray | None:
        """Return where a run that was not learned from has the phases, None where it cannot."""
        if self.marks is None:
            outer: FloatArray | None = np.array([0.0, series.length_s])
        else:
            outer = self.marks.edges_in(series, self.lag_s)
        if outer is None:
            return None
        edges = [np.zeros(1)]
        first = 0
        for (begin_s, end_s), count in zip(pairwise(outer), self.parts, strict=True):
            levels_w = self.power_w[first : first + count]
            inner = self._aligned(series, begin_s, end_s, levels_w)
            edges.append(inner[1:])
            first += count
        return np.concatenate(edges)

    def _aligned(
        self, series: RunSeries, begin_s: float, end_s: float, levels_w: FloatArray
    ) -> FloatArray:
        grid = even_edges(begin_s, end_s, self.step_s)
        if grid.size <= levels_w.size:
            # Too short to tell: an even share for each.
            shares: FloatArray = np.linspace(begin_s, end_s, levels_w.size + 1)
            return shares
        edges, _ = align(series.mean_w(grid), levels_w)
        least_w = _CLEAR * math.sqrt(self.noise)
        return refine(series.upto_j, grid[edges], levels_w, step_s=self.step_s, least_w=least_w)


@dataclass(slots=True, kw_only=True)
class PhaseFinder:
    """Finds the phases of runs.

    Attributes:
        step_s: The step in which runs are compared.
        events: Whether to go by what the program said.
        method: `aligned`, or `published`.
        shortest_s: How long a phase found by its power lasts at least; None leaves it to the step.
    """

    step_s: float
    events: bool
    method: str = "aligned"
    shortest_s: float | None = None
    # Change points of a run do not depend on the others: leaving one out need not find them anew.
    _changes: dict[tuple[RunSeries, float, float], IntArray] = field(default_factory=dict)
    _noises: dict[RunSeries, float] = field(default_factory=dict)

    def find(self, series: Sequence[RunSeries]) -> PhaseModel:
        """Return the phases of runs."""
        marks: Marks | None = None
        used, notes = list(range(len(series))), list[str]()
        if self.events:
            gap_s = _CLOCK_S if self.method == "published" else self.step_s
            marks, used, notes = common_marks(series, gap_s)
        chosen = [series[number] for number in used]
        if self.method == "published":
            if marks is None:
                raise InvalidInput("the published way needs events: leave out method='published'")
            return replace(self._published(chosen, marks, notes), used=tuple(used))
        lag_s = 0.0 if marks is None else find_lag(chosen, marks, self.step_s)
        if marks is None:
            outer = np.array([[0.0, each.length_s] for each in chosen])
        else:
            outer = marks.shifted(lag_s)
        stretches = [
            self._cut(chosen, outer[:, place], outer[:, place + 1])
            for place in range(outer.shape[1] - 1)
        ]
        parts = tuple(edges.shape[1] - 1 for edges in stretches)
        edges_s = np.hstack([stretches[0][:, :1], *(edges[:, 1:] for edges in stretches)])
        model = _model(
            chosen,
            edges_s,
            marks=marks,
            parts=parts,
            lag_s=lag_s,
            step_s=self.step_s,
            noise=self._common_noise(chosen),
            notes=notes,
        )
        return replace(model, used=tuple(used))

    def _cut(
        self, series: Sequence[RunSeries], begin_s: FloatArray, end_s: FloatArray
    ) -> FloatArray:
        """Return the edges of phases within a stretch, in each run."""
        grids = [
            even_edges(begin, end, self.step_s) for begin, end in zip(begin_s, end_s, strict=True)
        ]
        if min(grid.size for grid in grids) < 3:
            return np.column_stack([begin_s, end_s])
        traces = [each.mean_w(grid) for each, grid in zip(series, grids, strict=True)]
        noise = self._common_noise(series)
        steps = float(np.mean([each.length_s for each in series])) / self.step_s
        shortest_s = self.shortest_s
        if shortest_s is None:
            shortest_s = _SHORTEST_STEPS * self.step_s
        levels_w, edges = common_levels(
            traces,
            [float(grid[1] - grid[0]) for grid in grids],
            own_edges=[
                self._own_changes(each, trace, float(grid[0]), float(grid[-1]))
                for each, trace, grid in zip(series, traces, grids, strict=True)
            ],
            price=price_of_a_change(noise, steps),
            shortest_s=shortest_s,
        )
        return np.array(
            [
                refine(
                    each.upto_j,
                    grid[edge],
                    levels_w,
                    step_s=self.step_s,
                    least_w=_CLEAR * math.sqrt(noise),
                )
                for each, grid, edge in zip(series, grids, edges, strict=True)
            ]
        )

    def _own_changes(
        self, series: RunSeries, trace: FloatArray, begin_s: float, end_s: float
    ) -> IntArray:
        key = (series, begin_s, end_s)
        if key not in self._changes:
            price = price_of_a_change(self._noise(series), series.length_s / self.step_s)
            self._changes[key] = find_changes(trace, price)
        return self._changes[key]

    def _common_noise(self, series: Sequence[RunSeries]) -> float:
        return float(np.median([self._noise(each) for each in series]))

    def _noise(self, series: RunSeries) -> float:
        if series not in self._noises:
            grid = even_edges(0.0, series.length_s, self.step_s)
            self._noises[series] = noise_variance(series.mean_w(grid), float(grid[1] - grid[0]))
        return self._noises[series]

    def _published(self, series: Sequence[RunSeries], marks: Marks, notes: list[str]) -> PhaseModel:
        model = _model(
            series,
            marks.edges_s,
            marks=marks,
            parts=(1,) * len(marks.labels),
            lag_s=0.0,
            step_s=self.step_s,
            noise=self._common_noise(series),
            notes=notes,
        )
        samples: list[list[FloatArray]] = [[] for _ in marks.labels]
        for each, edges in zip(series, marks.edges_s, strict=True):
            cuts = np.searchsorted(each.times_s, edges)
            for phase, (first, last) in enumerate(pairwise(cuts)):
                samples[phase].append(each.power_w[first:last])
        pooled = [np.concatenate(each) for each in samples]
        model.power_w[:] = [each.mean() if each.size else 0.0 for each in pooled]
        return model


def _model(
    series: Sequence[RunSeries],
    edges_s: FloatArray,
    *,
    marks: Marks | None,
    parts: tuple[int, ...],
    lag_s: float,
    step_s: float,
    noise: float,
    notes: Sequence[str],
) -> PhaseModel:
    run_power_w = np.array(
        [each.mean_w(edges) for each, edges in zip(series, edges_s, strict=True)]
    )
    seconds = np.diff(edges_s, axis=1)
    stretches = ("phase",) if marks is None else marks.names
    saved = (False,) if marks is None else marks.checkpoints
    cut = [
        (stretch, number, count, at_end)
        for stretch, count, at_end in zip(stretches, parts, saved, strict=True)
        for number in range(1, count + 1)
    ]
    return PhaseModel(
        names=tuple(name if count == 1 else f"{name} {number}" for name, number, count, _ in cut),
        stretches=tuple(name for name, *_ in cut),
        checkpoints=tuple(at_end and number == count for _, number, count, at_end in cut),
        duration_s=seconds.mean(axis=0),
        power_w=(run_power_w * seconds).sum(axis=0) / seconds.sum(axis=0),
        edges_s=edges_s,
        run_power_w=run_power_w,
        runs=tuple(each.run.id for each in series),
        marks=marks,
        parts=parts,
        lag_s=lag_s,
        step_s=step_s,
        noise=noise,
        notes=tuple(notes),
    )
