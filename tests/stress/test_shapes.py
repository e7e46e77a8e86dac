"""Levels reach both ends and do not go together, whatever the seed."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lowtide.errors import InvalidInput, UnknownName
from lowtide.stress.plan import MOST_CORRELATION, SHAPES, draw_levels
from support.nightly import drawn

RANGES = [(0.0, 100.0), (0.0, 100.0), (20.0, 80.0), (0.0, 33.33)]
# From so many steps on, four parts of any shape can be told apart.
ENOUGH = 12


@pytest.mark.parametrize("shape", SHAPES)
@settings(max_examples=drawn(30, 600))
@given(seed=st.integers(0, 2**31), steps=st.integers(ENOUGH, 400), count=st.integers(1, 4))
def test_levels_are_independent_and_reach_both_ends(
    shape: str, seed: int, steps: int, count: int
) -> None:
    levels = draw_levels(shape, RANGES[:count], steps, seed=seed)
    assert levels.shape == (steps, count)
    for column, (low, high) in zip(levels.T, RANGES[:count], strict=True):
        assert (column.min(), column.max()) == (low, high)
    # NumPy's own correlation is the oracle.
    found = np.atleast_2d(np.corrcoef(levels.T)) - np.eye(count)
    assert np.abs(found).max() < MOST_CORRELATION
    assert (draw_levels(shape, RANGES[:count], steps, seed=seed) == levels).all()


@pytest.mark.parametrize("shape", SHAPES)
def test_seeds_differ(shape: str) -> None:
    plans = [draw_levels(shape, RANGES[:2], 40, seed=seed).tobytes() for seed in range(10)]
    assert len(set(plans)) == 10


def test_a_ramp_rises_and_falls() -> None:
    first = draw_levels("ramp", [(0, 100)], 101, seed=3)[:, 0]
    assert (np.diff(first[:51]) > 0).all()
    assert (np.diff(first[50:]) < 0).all()


def test_steps_hold_a_few_levels() -> None:
    levels = draw_levels("steps", RANGES[:2], 100, seed=3)
    assert set(levels[:, 0]) == {0.0, 25.0, 50.0, 75.0, 100.0}
    assert np.count_nonzero(np.diff(levels[:, 0])) == 4
    # Every level of one meets every level of the other.
    assert len({tuple(row) for row in levels.tolist()}) == 25


def test_latin_visits_every_stratum_once() -> None:
    levels = draw_levels("latin", RANGES[:3], 51, seed=3)
    assert sorted(levels[:, 0]) == [2.0 * step for step in range(51)]
    assert len(set(levels[:, 2])) == 51


def test_a_level_that_never_changes_goes_with_none() -> None:
    levels = draw_levels("random", [(0, 100), (40, 40)], 10, seed=0)
    assert set(levels[:, 1]) == {40.0}


@pytest.mark.parametrize("shape", SHAPES)
def test_too_few_steps_are_refused(shape: str) -> None:
    with pytest.raises(InvalidInput, match="2 steps or more"):
        draw_levels(shape, [(0, 100)], 1, seed=0)
    with pytest.raises(InvalidInput, match="too few for 2 parts"):
        draw_levels(shape, RANGES[:2], 2, seed=0)


def test_an_unknown_shape_is_told_the_nearest() -> None:
    with pytest.raises(UnknownName, match="did you mean 'latin'"):
        draw_levels("latni", [(0, 100)], 9, seed=0)
