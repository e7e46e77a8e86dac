"""Intervals of data in groups."""

from __future__ import annotations

import numpy as np
import pytest

from lowtide.errors import InvalidInput
from lowtide.learning.intervals import coverage, half_width_w, next_one, supported_level


def errors_of(rng: np.random.Generator, runs: int, windows: int = 40) -> list[np.ndarray]:
    """Errors of runs that are each off by something of their own, besides noise."""
    return [np.abs(3 * rng.standard_normal() + rng.standard_normal(windows)) for _ in range(runs)]


@pytest.mark.parametrize("runs", [9, 19, 39])
def test_intervals_hold_for_a_new_run_as_often_as_they_say(runs: int) -> None:
    rng = np.random.default_rng(runs)
    held = []
    for _ in range(400):
        half_w = half_width_w(errors_of(rng, runs), 0.9)
        held.append(np.mean(errors_of(rng, 1)[0] <= half_w))
    standard_error = np.std(held) / 20
    # At least what was promised; with more runs no more than that by much.
    assert np.mean(held) > 0.9 - 2 * standard_error
    if runs >= 19:
        assert np.mean(held) < 0.9 + 1 / (runs + 1) + 2 * standard_error


def test_windows_taken_for_independent_would_promise_too_much() -> None:
    """The plain quantile over all windows of three runs holds too seldom for new runs."""
    rng = np.random.default_rng(1)
    plain, grouped = [], []
    for _ in range(400):
        some, new = errors_of(rng, 3), errors_of(rng, 1)[0]
        plain.append(np.mean(new <= np.quantile(np.concatenate(some), 0.9)))
        level = supported_level(0.9, 3)
        grouped.append(np.mean(new <= half_width_w(some, level)))
    assert np.mean(plain) < 0.85
    assert np.mean(grouped) > level == 0.75


def test_every_run_weighs_the_same() -> None:
    short, long = np.array([10.0]), np.full(999, 1.0)
    # Two runs and one to come: half of the weight of what is known lies on the short one.
    assert half_width_w([short, long], 1 / 3) == 1.0
    assert half_width_w([short, long], 2 / 3) == 10.0


def test_few_runs_support_no_high_level() -> None:
    assert supported_level(0.9, 9) == 0.9
    assert supported_level(0.9, 8) == pytest.approx(8 / 9)
    assert supported_level(0.5, 2) == 0.5
    with pytest.raises(InvalidInput, match="between 0 and 1"):
        supported_level(90, 3)


def test_coverage_is_measured_on_runs_left_out() -> None:
    rng = np.random.default_rng(5)
    found = coverage(errors_of(rng, 60), 0.9)
    assert found is not None
    assert found.level == 0.9
    assert found.mean == pytest.approx(0.9, abs=0.06)
    assert found.least < found.mean
    assert coverage(errors_of(rng, 2), 0.9) is None
    few = coverage(errors_of(rng, 4), 0.9)
    assert few is not None
    assert few.level == 0.75


@pytest.mark.parametrize("runs", [2, 3, 5, 9, 20])
def test_the_next_run_lies_between_the_ends_as_often_as_they_say(runs: int) -> None:
    rng = np.random.default_rng(runs)
    held = []
    for _ in range(3000):
        values = 1 + 0.02 * rng.standard_normal(runs + 1)
        ends = next_one(values[:-1].tolist())
        assert ends is not None
        held.append(ends[0] <= values[-1] <= ends[1])
    # Counted, they hold a little more often: by as much as one run weighs.
    error = 2 * np.sqrt(0.09 / 3000)
    more = 1 / (runs + 1) if runs >= 9 else 0.0
    assert 0.9 - error <= np.mean(held) <= 0.9 + more + error


def test_one_value_tells_nothing_of_the_next() -> None:
    assert next_one([1.0]) is None
    assert next_one([2.0, 2.0, 2.0]) == (2.0, 2.0)
