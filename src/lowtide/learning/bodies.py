"""What comes again in runs without marks: the row of kinds along which they lie best.

Bodies that may come again are proposed wherever a row of levels is followed by one like it, and
runs are laid along each of them (`lowtide.learning.laying`): the body that leaves least to be
explained by levels of their own is what comes again. What lies before it and after it makes a row
of kinds with it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import median

import numpy as np

from lowtide.changepoints import IntArray
from lowtide.learning.laying import KIND, Kinds, Laid, Pieces
from lowtide.learning.pieces import (
    BRIEF_RAMP,
    Looking,
    means_between,
    merge_near,
    on_the_way,
    without_ramps,
)
from lowtide.signal import FloatArray

# So many runs choose among all proposals.
_CHOOSERS = 3
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
# Epochs begin with what draws most: what it costs if they do not.
_TURNED = 15.0
# So often a row is drawn anew from how runs lie along it.
ROUNDS = 3


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


def find_row(
    some: Sequence[tuple[FloatArray, FloatArray]],
    cuts: Sequence[IntArray],
    pieces: Sequence[Pieces],
    looking: Looking,
) -> _Best | None:
    """Return the row of kinds that describes runs most briefly; None if nothing comes again."""
    rows = []
    for (trace, _), cut, fine in zip(some, cuts, pieces, strict=True):
        for edges in (cut, fine.edges):
            steady = without_ramps(trace, edges, looking.ramp)
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
    for _ in range(ROUNDS):
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
    least = np.where(_between(row, levels_w), max(looking.shortest, BRIEF_RAMP), looking.shortest)
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
