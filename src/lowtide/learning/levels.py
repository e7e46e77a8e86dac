"""Runs that say nothing: levels of power, and what comes again in them.

Each run is cut where its power changes. Bodies that may come again are proposed wherever a row of
levels is followed by one like it, and runs are laid along each of them (`lowtide.learning.laying`):
the body that leaves least to be explained by levels of their own is what comes again. What lies
before it and after it makes a row of kinds with it, along which every run is laid then, with as
many epochs as fit it best.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from statistics import median

import numpy as np

from lowtide.changepoints import IntArray, find_changes
from lowtide.learning.alignment import align, common_levels, refine
from lowtide.learning.laying import KIND, Kinds, Laid, Pieces, lay
from lowtide.learning.series import RunSeries, even_edges
from lowtide.learning.shape import MarkedStretches, Outline
from lowtide.signal import FloatArray

# So many runs tell what comes again, and so many of them choose among all proposals.
MOST_ROWS = 8
_CHOOSERS = 3
# Pieces are cut at this share of the price of a change, and there are no more than so many.
_FINELY = 0.3
_FLUTTER = 0.7
_MOST_PIECES = 250
# Levels of a row may be the same again up to this share of the range of power and their noise, and
# lengths up to this factor: a first epoch may be slower than all others.
_SAME_LEVEL = 0.06
_SAME_LENGTH = 2.0
# So much of a body has to be the same again for it to be proposed.
_ALIKE = 0.7
_LONGEST_BODY = 10
_MOST_BODIES = 30
# So many bodies are looked at closely.
_FINALISTS = 4
# How many times as much noise as was told there may be, and what a stay costs that looks alike.
NOISES = (1.0, 6.0, 36.0)
_ALIKE_STAYS = 6.0
# Epochs begin with what draws most: what it costs if they do not.
_TURNED = 15.0
# From level to level, if these are so far apart, the meter takes about as long each time.
_CLEAR_MOVE = 0.15
_LONG_PIECE = 8
# Edges are moved within so many steps at least.
_REACH = 4
# A kind between two others that lasts fewer steps than this is a ramp.
_BRIEF_RAMP = 3.5
# A meter may be late by this.
_LATE_S = 2.5
_ROUNDS = 3
# Runs whose lengths differ by less than this share of an epoch have as many.
_ABOUT = 0.4
# A level that is off by this share of the range of power, or an epoch's stretch so many times as
# long as usual, is not that of the others; so much of a run may be so.
_UNLIKE, _UNLIKE_LENGTH = 0.12, 1.8
_ODD = 0.35


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
        if self.shortest > _BRIEF_RAMP:
            # What was asked to be none is none.
            weights[steps < self.shortest] = 0.0
        # A late meter shows what was before the start for a while.
        if steps.size > 1 and steps[0] <= max(self.shortest, _LATE_S / self.step_s):
            weights[0] = 0.0
        return Pieces(edges=edges, means_w=means_w, weights=weights)

    def laid(self, pieces: Pieces, row: Kinds) -> Laid:
        """Return how a run lies along a row of kinds."""
        return lay(pieces, row, noise=self.noise, range_w=self.range_w)


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
        """Return the share of a run's time in which it is not what the levels say."""
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
    for turn in range(_ROUNDS):
        chosen = [series[number] for number in used]
        levels = _common(chosen, looking, shortest_s, noises)
        unlike = [
            levels.unlike(each, own) for each, own in zip(chosen, levels.outline.runs, strict=True)
        ]
        alike = [number for number, share in zip(used, unlike, strict=True) if share <= _ODD]
        if len(alike) == len(used) or turn == _ROUNDS - 1:
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
                f"lengths of time in {100 * share:.0f} % of it, and is left out: is it another "
                "program?"
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
        louder = replace(louder, ramp=_ramp(some, cuts, looking.range_w))
        pieces = [louder.pieces(trace) for trace, _ in some]
        best = _find_row(some, cuts, pieces, louder)
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


def _ramp(
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


def _without_ramps(trace: FloatArray, edges: IntArray, ramp: int) -> IntArray:
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


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Row:
    """A run's levels in order, and how many steps each lasts."""

    levels_w: FloatArray
    steps: FloatArray


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Best:
    """The row that describes runs most briefly.

    Attributes:
        share: What it costs, as a share of what levels of their own cost.
        per_stay: What a stay costs on average, beside its kind.
    """

    row: Kinds
    share: float
    per_stay: float


def _find_row(
    some: Sequence[tuple[FloatArray, FloatArray]],
    cuts: Sequence[IntArray],
    pieces: Sequence[Pieces],
    looking: Looking,
) -> _Best | None:
    """Return the row of kinds that describes runs most briefly; None if nothing comes again."""
    rows = []
    for (trace, _), cut, fine in zip(some, cuts, pieces, strict=True):
        for edges in (cut, fine.edges):
            steady = _without_ramps(trace, edges, looking.ramp)
            steady = merge_near(trace, steady, least_w=looking.least_w, shortest=looking.shortest)
            levels_w = means_between(trace, steady)
            rows.append(_Row(levels_w=levels_w, steps=np.diff(steady).astype(np.float64)))
    plain = Kinds(levels_w=np.array([np.nan]), steps=np.ones(1), first=0, length=0)
    whole = _typical([looking.laid(each, plain).cost for each in pieces])
    choosers = pieces[:_CHOOSERS]
    rows_of = [_body_alone(body.levels_w, body.steps) for body in _bodies(rows, looking)]

    judged = sorted(
        (_typical([looking.laid(each, row).cost for each in choosers]) + _own_cost(row), at)
        for at, row in enumerate(rows_of)
    )
    best, least = None, whole
    for about, place in judged[:_FINALISTS]:
        if about >= whole:
            break
        row = rows_of[place]
        # Once more with the levels that were found: the first epoch may be one after all.
        for _ in range(2):
            turn = [_settle(kinds, pieces, looking) for kinds in _whole_rows(row, pieces, looking)]
            settled, all_cost = min(turn, key=lambda each: each[1])
            if all_cost < least:
                best, least = settled, all_cost
            inside = slice(settled.first, settled.end)
            row = _body_alone(settled.levels_w[inside], settled.steps[inside])
    if best is None:
        return None
    stays = median(looking.laid(each, best).kinds.size for each in pieces)
    per_stay = (least - _own_cost(best)) / stays
    return _Best(row=best, share=least / whole, per_stay=per_stay)


def _typical(costs: Sequence[float]) -> float:
    """Return the mean cost of runs, to which none adds far more than the middle one.

    A run of another program must not choose for all.
    """
    most = 2 * median(costs) + KIND
    return sum(min(cost, most) for cost in costs) / len(costs)


def _body_alone(levels_w: FloatArray, steps: FloatArray) -> Kinds:
    """Return a body with anything before it and after it."""
    unknown = np.array([np.nan])
    return Kinds(
        levels_w=np.concatenate((unknown, levels_w, unknown)),
        steps=np.concatenate(([1.0], steps, [1.0])),
        first=1,
        length=steps.size,
    )


def _own_cost(row: Kinds) -> float:
    """Return what the kinds of a row cost by themselves."""
    body_w = row.levels_w[row.first : row.end]
    turned = _TURNED if body_w.size and int(np.argmax(body_w)) else 0.0
    return KIND * int(np.isfinite(row.levels_w).sum()) + turned


def _bodies(rows: Sequence[_Row], looking: Looking) -> list[_Row]:
    """Return what may come again: rows of levels that are followed by some like them."""
    found = [each for row in rows for each in _repeated(row, looking)]
    found.sort(key=lambda each: (-each[0], each[1].steps.size))
    kept: list[_Row] = []
    for _, body in found:
        if len(kept) >= _MOST_BODIES:
            break
        # What begins elsewhere in one run may begin with what draws most.
        by = -int(np.argmax(body.levels_w))
        turned = _Row(levels_w=np.roll(body.levels_w, by), steps=np.roll(body.steps, by))
        for each in (body, turned):
            if not any(_same_body(each, other, looking) for other in kept):
                kept.append(each)
    return kept


def _same_body(one: _Row, other: _Row, looking: Looking) -> bool:
    if one.steps.size != other.steps.size:
        return False
    near = np.abs(one.levels_w - other.levels_w) <= 0.5 * _SAME_LEVEL * looking.range_w
    return bool(near.all() and (np.abs(np.log(one.steps / other.steps)) <= 0.3).all())


def _repeated(row: _Row, looking: Looking) -> Iterator[tuple[float, _Row]]:
    """Yield bodies of a row, each with how much of the row it explains."""
    size = row.steps.size
    room = _SAME_LEVEL * looking.range_w
    for length in range(2, min(size // 2, _LONGEST_BODY) + 1):
        noise_w = 2 * np.sqrt(looking.noise * (1 / row.steps[:-length] + 1 / row.steps[length:]))
        same = np.abs(row.levels_w[length:] - row.levels_w[:-length]) <= room + noise_w
        ratio = row.steps[length:] / row.steps[:-length]
        same &= (ratio <= _SAME_LENGTH) & (ratio >= 1 / _SAME_LENGTH)
        enough = np.convolve(same, np.ones(length), "valid") >= _ALIKE * length
        # Of a row of epochs, what begins a whole epoch later is the same with one epoch less.
        again = np.concatenate((np.zeros(length, dtype=np.bool_), enough[:-length]))
        for begin in np.flatnonzero(enough & ~again[: enough.size]).tolist():
            times = 2
            while begin + times * length <= size - length and enough[begin + (times - 1) * length]:
                times += 1
            if begin + times * length > size:
                continue
            # The first epoch may be slower, the last run into what follows.
            inside = slice(begin, begin + times * length)
            levels_w = np.median(row.levels_w[inside].reshape(times, length), axis=0)
            steps = np.median(row.steps[inside].reshape(times, length), axis=0)
            body = _Row(levels_w=levels_w, steps=steps)
            if not _is_power(body, room):
                yield float(same[begin : begin + (times - 1) * length].sum()), body


def _is_power(body: _Row, room_w: float) -> bool:
    """Return whether a body is a shorter one several times."""
    size = body.steps.size
    for part in range(2, size // 2 + 1):
        if size % part == 0:
            apart_w = np.abs(body.levels_w[part:] - body.levels_w[:-part])
            ratio = np.abs(np.log(body.steps[part:] / body.steps[:-part]))
            if (apart_w <= room_w).all() and (ratio <= np.log(_SAME_LENGTH)).all():
                return True
    return False


def _whole_rows(row: Kinds, pieces: Sequence[Pieces], looking: Looking) -> list[Kinds]:
    """Return rows with all that comes before and after a body, as runs have it."""
    found: dict[tuple[int, int], list[tuple[float, Kinds]]] = {}
    last = row.levels_w.size - 1
    for each in pieces:
        laid = looking.laid(each, row)
        outside = [np.flatnonzero(laid.kinds == kind) for kind in (0, last)]
        own = [each.between(laid.begins[places], laid.ends[places]) for places in outside]
        (first_w, first), (last_w, rest) = own
        inside = slice(row.first, row.end)
        kinds = Kinds(
            levels_w=np.concatenate((first_w, row.levels_w[inside], last_w)),
            steps=np.concatenate((first, row.steps[inside], rest)),
            first=first.size,
            length=row.length,
        )
        found.setdefault((first.size, rest.size), []).append((laid.cost, kinds))
    common = sorted(found.values(), key=lambda each: -len(each))[:_CHOOSERS]
    return [min(each, key=lambda one: one[0])[1] for each in common]


def _settle(row: Kinds, pieces: Sequence[Pieces], looking: Looking) -> tuple[Kinds, float]:
    """Lay runs along a row, find its levels and lengths from that anew; return what it costs."""
    best, least = row, np.inf
    for _ in range(_ROUNDS):
        laid = [looking.laid(each, row) for each in pieces]
        cost = _typical([each.cost for each in laid]) + _own_cost(row)
        if cost >= least - 1e-6:
            break
        best, least = row, cost
        row = _again(row, pieces, laid, looking)
    return best, least


def _again(row: Kinds, pieces: Sequence[Pieces], laid: Sequence[Laid], looking: Looking) -> Kinds:
    """Return a row with the levels and lengths that kinds have in runs."""
    told = [
        (own.kinds, *each.between(own.begins, own.ends))
        for each, own in zip(pieces, laid, strict=True)
    ]
    kinds, watts, steps = (np.concatenate(values) for values in zip(*told, strict=True))
    there = steps > 0
    size = row.steps.size
    levels_w = _medians(kinds[there], watts[there], size)
    usual = np.nan_to_num(_medians(kinds[there], steps[there], size))
    # What most runs lack is no kind of theirs.
    present = np.bincount(kinds[there], minlength=size)
    usual[2 * present <= np.bincount(kinds, minlength=size)] = 0.0
    least = np.where(_between(row, levels_w), max(looking.shortest, _BRIEF_RAMP), looking.shortest)
    kept = np.flatnonzero(usual >= least).tolist()
    # Neighbours that are nearer to each other than two levels are one.
    sections = [(kind >= row.first) + (kind >= row.end) for kind in range(row.steps.size)]
    for place in range(len(kept) - 1, 0, -1):
        one, other = kept[place - 1], kept[place]
        near = abs(levels_w[one] - levels_w[other]) < looking.least_w
        if near and sections[one] == sections[other]:
            both = usual[one] + usual[other]
            levels_w[one] = (usual[one] * levels_w[one] + usual[other] * levels_w[other]) / both
            usual[one] = both
            del kept[place]
    inside = [kind for kind in kept if sections[kind] == 1]
    if len(inside) < 2:
        return row
    return Kinds(
        levels_w=levels_w[kept],
        steps=usual[kept],
        first=sum(kind < row.first for kind in kept),
        length=len(inside),
    )


def _medians(kinds: IntArray, values: FloatArray, size: int) -> FloatArray:
    """Return the median value of each kind, NaN where there is none.

    >>> _medians(np.array([0, 2, 0, 2, 2]), np.array([1.0, 5, 2, 9, 7]), 3).tolist()
    [1.5, nan, 7.0]
    """
    counts = np.bincount(kinds, minlength=size)
    found = np.full(size, np.nan)
    some = counts > 0
    ordered = values[np.lexsort((values, kinds))]
    begins = np.cumsum(counts) - counts
    low, high = begins + (counts - 1) // 2, begins + counts // 2
    found[some] = (ordered[low[some]] + ordered[high[some]]) / 2
    return found


def _between(row: Kinds, levels_w: FloatArray) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    """Return which kinds lie between what comes before and after them: they may be ramps."""
    found = on_the_way(levels_w)
    if row.length:
        first, last = row.first, row.end - 1
        again = on_the_way(
            np.concatenate(
                (levels_w[last : row.end], levels_w[first : last + 1], levels_w[first : first + 1])
            )
        )[1:-1]
        found[first : row.end] = again
    return found


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
    most = max(counts.values())
    count = min(number for number, times in counts.items() if times == most)
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
