"""Runs laid along rows of kinds: against brute force, and programs whose rows are known."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lowtide.learning import laying
from lowtide.learning.laying import KIND, Kinds, Pieces, lay

RANGE_W, NOISE = 100.0, 4.0


def pieces_of(
    levels_w: list[float], steps: list[int], *, on_the_way: tuple[int, ...] = ()
) -> Pieces:
    weights = np.array(steps, dtype=float)
    weights[list(on_the_way)] = 0.0
    edges = np.concatenate(([0], np.cumsum(steps))).astype(np.intp)
    return Pieces(edges=edges, means_w=np.array(levels_w, dtype=float), weights=weights)


def row_of(levels_w: list[float], steps: list[float], first: int, length: int) -> Kinds:
    return Kinds(
        levels_w=np.array(levels_w, dtype=float),
        steps=np.array(steps, dtype=float),
        first=first,
        length=length,
    )


def stay_cost(pieces: Pieces, begin: int, end: int, row: Kinds, kind: int) -> float:
    """What a stay costs, as the module's docstring and constants have it."""
    weights, means = pieces.weights[begin:end], pieces.means_w[begin:end]
    lasts = float(pieces.edges[end] - pieces.edges[begin])
    steady = float(weights.sum())
    mean = float(weights @ means) / steady if steady else 0.0
    within = float(weights @ (means - mean) ** 2) / (NOISE + (laying._WITHIN * RANGE_W) ** 2)
    if within > laying._TOO_MUCH:
        return np.inf
    level_w, usual = row.levels_w[kind], row.steps[kind]
    if np.isnan(level_w):
        return KIND + within
    again = row.first <= kind < row.end
    if again and lasts > laying._LONGEST * usual + 3 and end - begin > 1:
        return np.inf
    cost = laying._STAY
    off = abs(np.log(lasts / usual))
    cost += min(
        off**2 / (laying._LENGTH**2 + (laying._LENGTH_STEPS / usual) ** 2),
        laying._WRONG_LENGTH + laying._FAR_LENGTH * max(off - laying._SLOW, 0.0),
    )
    if not steady:
        return cost + laying._WRONG_LEVEL
    spread = NOISE / steady + (laying._LEVEL * RANGE_W) ** 2
    far = max(abs(mean - level_w) / RANGE_W - laying._THROTTLED, 0.0)
    cost += min((mean - level_w) ** 2 / spread, laying._WRONG_LEVEL + laying._FAR * far)
    return cost + (min(within, laying._WRONG_WITHIN) if again else within)


def lacks_cost(row: Kinds, kind: int) -> float:
    again = row.first <= kind < row.end
    share = row.steps[kind] / row.steps[row.first : row.end].sum() if again else 0.0
    return laying._LACKS + laying._LACKS_ALL * float(share)


def brute(pieces: Pieces, row: Kinds) -> float:
    """The least cost of all ways to share out pieces, kind by kind, for any number of epochs."""
    size, count = pieces.weights.size, row.levels_w.size
    best = np.inf
    # An epoch takes a piece at least, so there are no more of them than pieces.
    for epochs in range(1, size + 1):
        kinds = [
            *range(row.first),
            *list(range(row.first, row.end)) * epochs,
            *range(row.end, count),
        ]
        # Each kind takes some pieces or none.
        for cuts in itertools.combinations_with_replacement(range(size + 1), len(kinds) - 1):
            bounds = [0, *cuts, size]
            cost = 0.0
            for kind, begin, end in zip(kinds, bounds[:-1], bounds[1:], strict=True):
                cost += (
                    lacks_cost(row, kind)
                    if begin == end
                    else stay_cost(pieces, begin, end, row, kind)
                )
            best = min(best, cost)
    return best


@settings(max_examples=20, deadline=None)
@given(
    st.lists(st.sampled_from([10.0, 30.0, 34.0, 90.0]), min_size=1, max_size=3),
    st.data(),
)
def test_no_other_way_costs_less(levels_w: list[float], data: st.DataObject) -> None:
    steps = [data.draw(st.integers(1, 12)) for _ in levels_w]
    on_the_way = tuple(place for place in range(len(steps)) if data.draw(st.booleans()))
    pieces = pieces_of(levels_w, steps, on_the_way=on_the_way)
    kinds = data.draw(st.integers(2, 3))
    first = data.draw(st.integers(0, kinds - 2))
    row = row_of(
        data.draw(st.lists(st.sampled_from([10.0, 31.0, 88.0]), min_size=kinds, max_size=kinds)),
        data.draw(st.lists(st.sampled_from([2.0, 6.0]), min_size=kinds, max_size=kinds)),
        first,
        2,
    )
    laid = lay(pieces, row, noise=NOISE, range_w=RANGE_W)
    assert laid.cost == pytest.approx(brute(pieces, row))
    # What is returned is a way that costs so much.
    assert laid.begins[0] == 0
    assert laid.ends[-1] == len(steps)
    np.testing.assert_array_equal(laid.begins[1:], laid.ends[:-1])
    told = sum(
        lacks_cost(row, kind) if begin == end else stay_cost(pieces, begin, end, row, kind)
        for kind, begin, end in zip(laid.kinds, laid.begins, laid.ends, strict=True)
    )
    assert told == pytest.approx(laid.cost)


def test_kinds_of_which_nothing_is_known_take_what_comes() -> None:
    pieces = pieces_of([10, 50, 90, 30, 90, 30, 90, 30, 20], [9, 7, 20, 5, 20, 5, 20, 5, 4])
    row = row_of([np.nan, 90, 30, np.nan], [1, 20, 5, 1], 1, 2)
    laid = lay(pieces, row, noise=NOISE, range_w=RANGE_W)
    assert laid.kinds.tolist() == [0, 0, 1, 2, 1, 2, 1, 2, 3]


def test_an_odd_epoch_is_one_still() -> None:
    # The second of three is throttled, and the change within the last was missed.
    pieces = pieces_of([10, 90, 30, 70, 24, 90, 84, 20], [9, 20, 5, 26, 6, 20, 5, 6])
    row = row_of([10, 90, 30, 20], [9, 20, 5, 6], 1, 2)
    laid = lay(pieces, row, noise=NOISE, range_w=RANGE_W)
    assert laid.kinds.tolist() == [0, 1, 2, 1, 2, 1, 2, 3]
