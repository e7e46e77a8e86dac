"""Quantities that are constant between instants, against sums over small pieces of time."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lowtide.steps import Steps

whole = st.integers(-8, 8).map(float)


def pieces(steps: Steps, first: float, last: float) -> list[float]:
    """Return the value in each eighth of a second, looked for one by one."""
    found = []
    for middle in np.arange(first, last, 0.125) + 0.0625:
        value = 0.0
        for k in range(steps.times.size - 1):
            if steps.times[k] <= middle < steps.times[k + 1]:
                value = float(steps.values[k])
        found.append(value)
    return found


@given(
    st.lists(whole, min_size=2, max_size=7).map(sorted),
    st.lists(whole | st.just(np.nan), min_size=6, max_size=6),
    st.lists(whole, min_size=2, max_size=5).map(sorted),
)
def test_integrals_are_those_of_small_pieces(times, values, edges):
    """Edges fall between, onto and outside of the instants, which may be equal."""
    steps = Steps.between(np.array(times), np.array(values[: len(times) - 1]))
    cuts = np.array(edges)
    known = [np.array(pieces(steps, a, b)) for a, b in pairwise(edges)]
    assert steps.amounts(cuts) == pytest.approx([0.125 * np.nansum(part) for part in known])
    assert steps.unknown_s(cuts) == pytest.approx([0.125 * np.isnan(part).sum() for part in known])
    inside = np.diff(np.clip(cuts, times[0], times[-1]))
    assert steps.known_s(cuts) + steps.unknown_s(cuts) == pytest.approx(inside)


@given(
    st.lists(st.tuples(whole, st.integers(0, 6), st.integers(-3, 3)), max_size=6),
    st.lists(whole, min_size=1, max_size=4).map(np.array),
)
def test_spans_are_added(spans, instants):
    begin, length, amount = (np.array([each[k] for each in spans], float) for k in range(3))
    sums = Steps.of_spans(begin, begin + length, amount)
    for instant, value in zip(instants, sums.at(instants), strict=True):
        there = (begin <= instant) & (instant < begin + length)
        assert value == pytest.approx(amount[there].sum())
    before = np.clip(instants[:, None] - begin[None, :], 0.0, length) @ amount
    assert sums.upto(instants) == pytest.approx(before)


@given(st.lists(st.tuples(st.integers(0, 3), whole | st.just(np.nan)), min_size=1, max_size=6))
def test_amounts_come_back(steps):
    """Also those of steps that took no time."""
    edges = np.cumsum([0.0, *(length for length, _ in steps)])
    amounts = np.array([amount for _, amount in steps])
    found = Steps.of_amounts(edges, amounts)
    assert found.upto(edges[-1:])[0] == pytest.approx(np.nansum(amounts))


def test_between_two_spans_nothing_is_known():
    held = Steps.held(np.array([0.0, 4.0]), np.array([2.0, 5.0]), np.array([3.0, 1.0]))
    edges = np.array([-1.0, 1.0, 3.0, 6.0])
    assert held.amounts(edges).tolist() == [3.0, 3.0, 1.0]
    assert held.known_s(edges).tolist() == [1.0, 1.0, 1.0]
    assert held.unknown_s(edges).tolist() == [0.0, 1.0, 1.0]
