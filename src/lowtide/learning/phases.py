"""Phases from runs: the stretches between marks, cut where the power changes.

Stretches that are the same again, in every epoch and every run, are cut together, so that they have
the same levels everywhere. Levels that are nearer to each other than the noise, or than a small
share of the range of power, are one. Without marks the rows of levels are all there is
(`lowtide.learning.levels`). The published way (`method="published"`) takes the stretches as they
are: mean power of all samples between two events, difference of the mean event times.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise

import numpy as np

from lowtide.changepoints import IntArray, find_changes, price_of_a_change, wandering_noise
from lowtide.errors import InvalidInput
from lowtide.learning.alignment import align, common_levels
from lowtide.learning.lag import find_lag, off_by_clock_s
from lowtide.learning.levels import NOISES, Levels, find_levels
from lowtide.learning.marks import Marks, common_marks
from lowtide.learning.phase_model import PhaseModel, Placing, as_metered
from lowtide.learning.pieces import Looking
from lowtide.learning.series import RunSeries, even_edges
from lowtide.learning.shape import Outline
from lowtide.signal import FloatArray

METHODS = ("aligned", "published")
# Phases of fewer steps than this are ramps between others.
_SHORTEST_STEPS = 4
# Without marks, a level that is no ramp, such as a dip, lasts so many steps at least.
_SHORTEST_DIP = 2.5
# Marks closer together than clocks are written down were made at once.
_CLOCK_S = 2e-4
# Levels nearer than this share of the range of power are one.
_SAME_LEVEL = 0.02
# Runs whose length is off the middle one by more than this share, and by so many times as much as
# half of them are, are not of the usual length.
_USUAL, _USUAL_SPREADS = 0.05, 6.0
# So many stretches of a kind tell its levels, each in so many steps: more tell no more.
_MOST_CUT = 10
_MOST_STEPS = 400
_RAMP_STEPS = 1.5
# A level of the first epoch is that of the others if it differs by no more than this share.
_SAME_AGAIN = 0.10
# What it has beside them lasts no more than so many times as long in one run as in others.
_AS_LONG = 3


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
    _lasting: dict[RunSeries, float] = field(default_factory=dict)
    _ends_w: dict[RunSeries, tuple[float, float]] = field(default_factory=dict)
    # How loud the noise is while programs work is told by all runs that are looked at first.
    _louder: float | None = None

    def find(self, series: Sequence[RunSeries]) -> PhaseModel:
        """Return the phases of runs."""
        if not self.events:
            return self._by_power(series)
        gap_s = _CLOCK_S if self.method == "published" else self.step_s
        marks, used, notes = self._marks(series, gap_s)
        if marks is None:
            found = self._by_power(series)
            return replace(found, notes=(*notes, *found.notes))
        chosen = [series[number] for number in used]
        if self.method == "published":
            return self._published(series, used, marks, notes)
        lag_s = find_lag(chosen, marks, self.step_s)
        outline = marks.outline
        levels_w, ending = self._cut_alike(chosen, outline, len(marks.labels), lag_s)
        return self._model(
            chosen,
            outline,
            levels_w,
            marks=marks,
            lag_s=lag_s,
            notes=notes,
            used=used,
            ending=ending,
        )

    def _marks(
        self, series: Sequence[RunSeries], gap_s: float
    ) -> tuple[Marks | None, list[int], list[str]]:
        """Return the marks that runs share, those left out whose clocks differ."""
        marks, used, notes = common_marks(series, gap_s)
        if marks is None or self.method == "published":
            return marks, used, notes
        off_s = {
            number: by_s
            for number, own in zip(used, marks.outline.runs, strict=True)
            if (by_s := off_by_clock_s(series[number], own, marks.outline)) is not None
        }
        if not off_s:
            return marks, used, notes
        said = [
            f"the marks of run {series[number].run.id} lie {abs(by_s):.0f} s "
            f"{'before' if by_s > 0 else 'after'} what they tell of in its power: the clocks of "
            "who said them and of the meter differ"
            for number, by_s in off_s.items()
        ]
        sound = [number for number in used if number not in off_s]
        if not sound:
            said.append("no run's marks can be believed: phases are told by power alone")
            return None, [], said
        marks, used, notes = common_marks([series[number] for number in sound], gap_s)
        said = [f"{each}, and it is left out" for each in said]
        return marks, [sound[number] for number in used], [*said, *notes]

    def _by_power(self, series: Sequence[RunSeries]) -> PhaseModel:
        if self.method == "published":
            raise InvalidInput("the published way needs events: leave out method='published'")
        lasting = [self._noise(each) * self._lasting[each] for each in series]
        looking = Looking(
            step_s=self.step_s,
            noise=float(np.median(lasting)),
            price=self._price(series),
            range_w=self._range_w(series),
            least_w=self._least_w(series),
            shortest=_SHORTEST_DIP if self.shortest_s is None else self.shortest_s / self.step_s,
        )
        levels, used, notes = find_levels(
            series,
            looking,
            shortest_s=self._shortest_s,
            noises=NOISES if self._louder is None else (self._louder,),
        )
        if self._louder is None:
            self._louder = levels.looking.times
        levels_w = [np.array([level]) for level in levels.levels_w]
        chosen = [series[number] for number in used]
        model = self._model(chosen, levels.outline, levels_w, levels=levels, notes=notes, used=used)
        return model if levels.row is not None else _of_usual_length(model, chosen)

    def _cut_alike(
        self, series: Sequence[RunSeries], outline: Outline, size: int, lag_s: float
    ) -> tuple[list[FloatArray], int]:
        """Return the levels of every stretch: the same ones wherever a stretch is the same again.

        A first epoch may warm up, and a last one end in what nobody marked: they are cut apart, and
        count as the same again as far as they are. How many levels only the last has is told too.
        """
        found: dict[tuple[int, str], list[tuple[RunSeries, float, float]]] = {}
        for each, own in zip(series, outline.runs, strict=True):
            bounds = [
                (
                    kind,
                    # Of an epoch beyond the usual ones, none but the last is the last.
                    self._which(slot, outline, size)
                    if slot < size - 1 or last == own.slots.size
                    else "",
                    first,
                    last,
                )
                for slot, kind, (first, last) in zip(
                    own.slots, outline.kinds(own), pairwise(range(own.edges_s.size)), strict=True
                )
            ]
            for kind, which, first, last in bounds:
                if not own.guessed[first] and not own.guessed[last]:
                    place = (each, float(own.edges_s[first]), float(own.edges_s[last]))
                    found.setdefault((int(kind), which), []).append(place)
        levels: list[FloatArray] = []
        ending = 0
        cut = {key: self._cut(places, lag_s) for key, places in found.items()}
        for slot in range(size):
            which = self._which(slot, outline, size)
            kind = slot
            if outline.length and outline.first <= slot < outline.end:
                kind = outline.first + (slot - outline.first) % outline.length
            usual = cut.get((kind, ""))
            own_levels = cut.get((kind, which), usual)
            if own_levels is None:
                own_levels = next(
                    (value for (other, _), value in cut.items() if other == kind),
                    np.array([float(np.mean([each.power_w.mean() for each in series]))]),
                )
            if which and usual is not None:
                places = found.get((kind, which), [])
                if self._goes_with(own_levels, usual, which):
                    own_levels = self._no_more_of_it(own_levels, usual, which)
                elif which == "first" and places:
                    own_levels = self._better(places, lag_s, own_levels, usual)
                else:
                    own_levels = usual
                if not self._in_most(places, lag_s, own_levels, usual, which):
                    own_levels = usual
                ending = own_levels.size - usual.size if which == "last" else 0
            levels.append(own_levels)
        if outline.length and not ending and outline.count == 2 and outline.end == size:
            # Where all runs have two epochs, the first tells what the second has besides.
            first_w, last_w = levels[-1 - outline.length], levels[-1]
            if last_w.size > first_w.size and self._goes_with(last_w, first_w, "last"):
                ending = last_w.size - first_w.size
        return levels, ending

    @staticmethod
    def _no_more_of_it(own_w: FloatArray, usual_w: FloatArray, which: str) -> FloatArray:
        """Return levels without those that are the usual one again, where more come before it."""
        if which == "last":
            own_w, usual_w = own_w[::-1], usual_w[::-1]
        more, same = own_w[: own_w.size - usual_w.size], own_w[own_w.size - usual_w.size :]
        while more.size and abs(more[-1] - usual_w[0]) <= _SAME_AGAIN * abs(usual_w[0]):
            more = more[:-1]
        found = np.concatenate((more, same))
        return found[::-1] if which == "last" else found

    @staticmethod
    def _which(slot: int, outline: Outline, size: int) -> str:
        """Return whether a stretch is of the first epoch, or the last of a run that ends so."""
        if not outline.length:
            return ""
        most = max(own.epochs for own in outline.runs)
        # Of two epochs one may be the usual one: where all runs have two, the last is.
        ends = slot == size - 1 == outline.end - 1 and most > min(outline.count, 2)
        if outline.count > 1 and outline.first <= slot < outline.first + outline.length:
            return "first"
        return "last" if ends else ""

    def _goes_with(self, own_w: FloatArray, usual_w: FloatArray, which: str) -> bool:
        """Return whether levels are the usual ones, with more before or after them at most."""
        if own_w.size < usual_w.size:
            return False
        same = own_w[-usual_w.size :] if which == "first" else own_w[: usual_w.size]
        return bool((np.abs(same - usual_w) <= _SAME_AGAIN * np.abs(usual_w)).all())

    def _better(
        self,
        places: Sequence[tuple[RunSeries, float, float]],
        lag_s: float,
        own_w: FloatArray,
        usual_w: FloatArray,
    ) -> FloatArray:
        """Return the usual levels, unless a stretch's own explain far more of most of them."""
        noise = self._common_noise([each for each, *_ in places])
        some = places[:_MOST_CUT]
        far = 0
        for each, begin_s, end_s in some:
            trace = self._trace(each, begin_s, end_s, lag_s)[0]
            own, usual = (
                align(trace, levels_w)[1] if trace.size >= levels_w.size else 0.0
                for levels_w in (own_w, usual_w)
            )
            # Twice what is left, and no less than a clear change.
            far += usual > max(2 * own, own + 100 * noise / len(some))
        return own_w if 2 * far > len(some) else usual_w

    def _in_most(
        self,
        places: Sequence[tuple[RunSeries, float, float]],
        lag_s: float,
        own_w: FloatArray,
        usual_w: FloatArray,
        which: str,
    ) -> bool:
        """Return whether most runs stay as long at the levels that are there beside the usual ones.

        An epoch that was slowed down in one run is no warm-up.
        """
        more = own_w.size - usual_w.size
        stays = []
        for each, begin_s, end_s in places[:_MOST_CUT] if more > 0 else ():
            trace = self._trace(each, begin_s, end_s, lag_s)[0]
            if trace.size > own_w.size:
                edges = align(trace, own_w)[0]
                stays.append(edges[more] if which == "first" else edges[-1] - edges[-1 - more])
        about = [_AS_LONG * stay >= max(stays) for stay in stays]
        return 2 * sum(about) > len(about) or not about

    def _cut(self, places: Sequence[tuple[RunSeries, float, float]], lag_s: float) -> FloatArray:
        """Return the levels within stretches that are the same again."""
        stride = -(-len(places) // _MOST_CUT)
        some = places[::stride]
        traces, steps_s, changes = [], [], []
        for each, begin_s, end_s in some:
            trace, step_s = self._trace(each, begin_s, end_s, lag_s)
            if trace.size >= 2:
                traces.append(trace)
                steps_s.append(step_s)
                changes.append(self._own_changes(each, begin_s + lag_s, end_s + lag_s))
        if not traces:
            return np.array([float(np.mean([self._mean_w(place, lag_s) for place in some]))])
        series = [each for each, *_ in some]
        levels_w, _ = common_levels(
            traces,
            steps_s,
            own_edges=changes,
            price=self._price(series),
            # Of a long stretch, a step in which power changes is a ramp as well.
            shortest_s=max(self._shortest_s, _RAMP_STEPS * max(steps_s)),
            least_w=self._least_w(series),
        )
        return levels_w

    def _trace(
        self, series: RunSeries, begin_s: float, end_s: float, lag_s: float
    ) -> tuple[FloatArray, float]:
        """Return the power of a stretch as the meter saw it, in steps, and how long these are."""
        seen_s = series.seen_s(np.array([begin_s, end_s]) + lag_s)
        step_s = max(self.step_s, float(seen_s[1] - seen_s[0]) / _MOST_STEPS)
        grid = even_edges(seen_s[0], max(seen_s[1], seen_s[0] + 1e-6), step_s)
        return series.mean_w(grid), float(grid[1] - grid[0])

    def _mean_w(self, place: tuple[RunSeries, float, float], lag_s: float) -> float:
        series, begin_s, end_s = place
        seen_s = series.seen_s(np.array([begin_s, end_s]) + lag_s)
        if seen_s[1] - seen_s[0] < 0.5 * self.step_s:
            seen_s[0] = max(seen_s[1] - self.step_s, 0.0)
        return float(series.mean_w(seen_s)[0])

    def _own_changes(self, series: RunSeries, begin_s: float, end_s: float) -> IntArray:
        """Return where a run's power changes between two times of the meter's clock."""
        key = (series, begin_s, end_s)
        if key not in self._changes:
            price = self._price([series])
            whole = begin_s == 0.0 and end_s == series.length_s
            if whole:
                trace = series.mean_w(even_edges(0.0, series.length_s, self.step_s))
            else:
                trace = self._trace(series, begin_s, end_s, 0.0)[0]
            self._changes[key] = find_changes(trace, price)
        return self._changes[key]

    @property
    def _shortest_s(self) -> float:
        return _SHORTEST_STEPS * self.step_s if self.shortest_s is None else self.shortest_s

    def _least_w(self, series: Sequence[RunSeries]) -> float:
        """Return how far apart two levels are at least."""
        return max(math.sqrt(self._common_noise(series)), _SAME_LEVEL * self._range_w(series))

    def _range_w(self, series: Sequence[RunSeries]) -> float:
        """Return how far apart the least and the most are that runs draw."""
        for each in series:
            if each not in self._ends_w:
                low_w, high_w = np.quantile(each.power_w, (0.01, 0.99)).tolist()
                self._ends_w[each] = (low_w, high_w)
        ends_w = [self._ends_w[each] for each in series]
        return max(high for _, high in ends_w) - min(low for low, _ in ends_w)

    def _price(self, series: Sequence[RunSeries]) -> float:
        """Return what a change has to explain, all the more the longer noise lasts."""
        steps = float(np.mean([each.length_s for each in series])) / self.step_s
        lasting = [self._noise(each) * self._lasting[each] for each in series]
        return price_of_a_change(float(np.median(lasting)), steps)

    def _common_noise(self, series: Sequence[RunSeries]) -> float:
        return float(np.median([self._noise(each) for each in series]))

    def _noise(self, series: RunSeries) -> float:
        if series not in self._noises:
            grid = even_edges(0.0, series.length_s, self.step_s)
            trace = series.mean_w(grid)
            noise, lasting = wandering_noise(trace, float(grid[1] - grid[0]))
            self._noises[series], self._lasting[series] = noise, lasting
        return self._noises[series]

    def _model(
        self,
        series: Sequence[RunSeries],
        outline: Outline,
        levels_w: Sequence[FloatArray],
        *,
        marks: Marks | None = None,
        levels: Levels | None = None,
        lag_s: float = 0.0,
        notes: Sequence[str] = (),
        used: Sequence[int],
        ending: int = 0,
    ) -> PhaseModel:
        """Lay the levels of stretches into every run, and average what they come to."""
        noise = self._common_noise(series)
        parts = tuple(each.size for each in levels_w)
        placing = Placing(step_s=self.step_s, noise=noise, lag_s=lag_s, ending=ending)
        edges, rows = [], []
        for each, own in zip(series, outline.runs, strict=True):
            edges_s, row = placing.edges(each, own, levels_w)
            edges.append(edges_s)
            rows.append(row)
        run_w = [
            np.array([self._mean_w((each, begin, end), lag_s) for begin, end in pairwise(edges_s)])
            if lag_s
            else each.mean_w(edges_s)
            for each, edges_s in zip(series, edges, strict=True)
        ]
        return _averaged(
            series,
            edges,
            run_w,
            rows,
            marks=marks,
            levels=levels,
            outline=outline,
            parts=parts,
            lag_s=lag_s,
            step_s=self.step_s,
            noise=noise,
            notes=notes,
            used=used,
            ending=ending,
        )

    def _published(
        self, series: Sequence[RunSeries], used: Sequence[int], marks: Marks, notes: list[str]
    ) -> PhaseModel:
        usual = [
            place
            for place, own in enumerate(marks.outline.runs)
            if own.epochs == marks.outline.count and not own.guessed.any()
        ]
        if not usual:
            raise InvalidInput(
                "the published way needs a run that lacks no mark, and every run lacks one: leave "
                "out method='published'"
            )
        chosen = [series[used[place]] for place in usual]
        outline = replace(marks.outline, runs=tuple(marks.outline.runs[place] for place in usual))
        edges = [own.edges_s for own in outline.runs]
        model = _averaged(
            chosen,
            edges,
            [each.mean_w(edges_s) for each, edges_s in zip(chosen, edges, strict=True)],
            [own.slots for own in outline.runs],
            marks=replace(marks, outline=outline),
            levels=None,
            outline=outline,
            parts=(1,) * len(marks.labels),
            lag_s=0.0,
            step_s=self.step_s,
            noise=self._common_noise(chosen),
            notes=notes,
            used=[used[place] for place in usual],
        )
        samples: list[list[FloatArray]] = [[] for _ in marks.labels]
        for each, edges_s in zip(chosen, edges, strict=True):
            cuts = np.searchsorted(each.times_s, edges_s)
            for phase, (first, last) in enumerate(pairwise(cuts)):
                samples[phase].append(each.power_w[first:last])
        pooled = [np.concatenate(each) for each in samples]
        model.power_w[:] = [each.mean() if each.size else 0.0 for each in pooled]
        return model


def _of_usual_length(model: PhaseModel, series: Sequence[RunSeries]) -> PhaseModel:
    """Return phases as most runs have them, where some take far longer or shorter than most.

    Nothing shows what such a run does more often. It counts for how much runs differ, and not for
    how long they usually take.
    """
    lengths_s = np.array([each.length_s for each in series])
    middle_s = float(np.median(lengths_s))
    apart_s = np.abs(lengths_s - middle_s)
    usual = apart_s <= max(_USUAL * middle_s, _USUAL_SPREADS * float(np.median(apart_s)))
    if usual.all() or 2 * usual.sum() <= usual.size:
        return model
    seconds, watts = np.array(model.run_s)[usual], np.array(model.run_power_w)[usual]
    odd = ", ".join(
        each.run.id for each, is_usual in zip(series, usual, strict=True) if not is_usual
    )
    return replace(
        model,
        duration_s=seconds.mean(axis=0),
        power_w=(seconds * watts).sum(axis=0) / np.maximum(seconds.sum(axis=0), 1e-9),
        notes=(
            *model.notes,
            f"far longer or shorter than most, with nothing that repeats to tell why: {odd}; the "
            "profile is that of the others, its spread that of all",
        ),
    )


def _averaged(
    series: Sequence[RunSeries],
    edges: Sequence[FloatArray],
    run_w: Sequence[FloatArray],
    rows: Sequence[IntArray],
    *,
    marks: Marks | None,
    levels: Levels | None,
    outline: Outline,
    parts: tuple[int, ...],
    lag_s: float,
    step_s: float,
    noise: float,
    notes: Sequence[str],
    used: Sequence[int],
    ending: int = 0,
) -> PhaseModel:
    """Average what phases of runs take and draw."""
    size = sum(parts)
    run_s = [np.diff(edges_s) for edges_s in edges]
    row, seconds, watts = np.concatenate(rows), np.concatenate(run_s), np.concatenate(run_w)
    times = np.maximum(np.bincount(row, minlength=size), 1)
    spent_s = np.bincount(row, weights=seconds, minlength=size)
    drawn_j = np.bincount(row, weights=seconds * watts, minlength=size)
    power_w = drawn_j / np.maximum(spent_s, 1e-9)
    # A late meter shows something else before the start and after the end: what runs drew stays.
    total_j, told_j = sum(each.energy_j for each in series), float(seconds @ watts)
    if lag_s and told_j > 0 and total_j > 0:
        power_w *= total_j / told_j
    if marks is not None:
        stretches, saved = marks.names, marks.checkpoints
    else:
        stretches, saved = ("phase",) * len(parts), (False,) * len(parts)
    cut = [
        (stretch, number, count, at_end)
        for stretch, count, at_end in zip(stretches, parts, saved, strict=True)
        for number in range(1, count + 1)
    ]
    if marks is None:
        names = [f"phase {number}" if size > 1 else "phase" for number in range(1, size + 1)]
    else:
        names = [name if count == 1 else f"{name} {number}" for name, number, count, _ in cut]
    return PhaseModel(
        names=tuple(names),
        stretches=tuple(name for name, *_ in cut),
        checkpoints=tuple(at_end and number == count for _, number, count, at_end in cut),
        duration_s=spent_s / times,
        power_w=power_w,
        edges_s=tuple(as_metered(edges_s, lag_s) for edges_s in edges),
        run_s=tuple(run_s),
        run_power_w=tuple(run_w),
        rows=tuple(rows),
        epochs=tuple(own.epochs for own in outline.runs),
        runs=tuple(each.run.id for each in series),
        marks=marks,
        outline=outline,
        levels=levels,
        parts=parts,
        lag_s=lag_s,
        step_s=step_s,
        noise=noise,
        ending=ending,
        notes=tuple(notes),
        used=tuple(used),
    )
