"""Statistics against textbook figures, known quantiles, enumeration and simulation."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lowtide.errors import InvalidInput
from lowtide.studies import statistics
from lowtide.studies.statistics import (
    anova,
    block_bootstrap,
    f_tail,
    holm,
    is_balanced,
    signed_rank,
)


@pytest.mark.parametrize(
    ("above", "below", "quantile", "p"),
    [
        # Upper quantiles of F as printed in any table.
        (1, 1, 161.4476, 0.05),
        (1, 10, 4.964603, 0.05),
        (2, 10, 4.102821, 0.05),
        (3, 20, 3.098391, 0.05),
        (5, 2, 19.29641, 0.05),
        (4, 60, 3.649047, 0.01),
        (10, 10, 4.849147, 0.01),
        (1, 120, 6.850893, 0.01),
    ],
)
def test_upper_quantiles_of_f(above: int, below: int, quantile: float, p: float) -> None:
    assert f_tail(quantile, above, below) == pytest.approx(p, rel=1e-5)


def test_f_has_closed_forms() -> None:
    # With two degrees of freedom above, P(F > f) = (1 + 2f/n)^(−n/2); with (1, 1), an arctangent.
    for below, f in product((1, 5, 37, 1168), (0.0, 0.1, 1.0, 7.5, 80.0)):
        assert f_tail(f, 2, below) == pytest.approx((1 + 2 * f / below) ** (-below / 2), rel=1e-10)
        assert f_tail(f, 1, 1) == pytest.approx(1 - 2 / np.pi * np.arctan(np.sqrt(f)), rel=1e-10)


def test_one_way_textbook_example() -> None:
    # Three groups of five; the sums of squares are easily done by hand.
    groups = {"a": [6, 8, 4, 5, 3], "b": [8, 12, 9, 11, 6], "c": [13, 9, 11, 8, 7]}
    values = [value for group in groups.values() for value in group]
    levels = [name for name, group in groups.items() for _ in group]
    effect, residual = anova(values, {"treatment": levels})
    within = sum((value - np.mean(group)) ** 2 for group in groups.values() for value in group)
    between = sum(5 * (np.mean(group) - np.mean(values)) ** 2 for group in groups.values())
    assert (effect.freedom, residual.freedom) == (2, 12)
    assert effect.squares == pytest.approx(between)
    assert residual.squares == pytest.approx(within)
    assert effect.f == pytest.approx((between / 2) / (within / 12))
    assert effect.p == pytest.approx((1 + 2 * effect.f / 12) ** -6)


def test_balanced_shares_sum_to_one_in_any_order() -> None:
    rng = np.random.default_rng(1)
    rows = list(product("ab", "cde", "fghi"))
    factors = dict(zip("xyz", zip(*rows, strict=True), strict=True))
    values = rng.normal(size=len(rows)) + np.array([row[0] == "a" for row in rows])
    forward = {e.name: e for e in anova(values, factors, interactions=[("x", "y")])}
    backward = {e.name: e for e in anova(values, dict(reversed(factors.items())))}
    assert sum(e.share for e in forward.values()) == pytest.approx(1)
    assert sum(e.freedom for e in forward.values()) == len(rows) - 1
    for name in "xyz":
        assert forward[name].squares == pytest.approx(backward[name].squares)
    assert forward["x × y"].freedom == 2
    assert forward["x × y"].squares + forward["residual"].squares == pytest.approx(
        backward["residual"].squares
    )


def test_a_later_factor_is_charged_with_what_it_adds() -> None:
    same = ["a", "a", "b", "b"]
    first, second, _ = anova([1, 2, 5, 7], {"one": same, "copy": same})
    assert first.squares == pytest.approx(20.25)
    assert (second.squares, second.freedom, second.f) == (pytest.approx(0), 0, None)


def test_without_residual_there_is_no_f() -> None:
    effect, residual = anova([1, 2], {"one": ["a", "b"]})
    assert (effect.f, effect.p, residual.freedom) == (None, None, 0)
    flat, _ = anova([3, 3, 3, 3], {"one": ["a", "a", "b", "b"]})
    assert (flat.share, flat.f) == (None, None)


def test_a_factor_of_one_level_is_left_out() -> None:
    assert [e.name for e in anova([1, 2, 4], {"one": "aaa", "two": "aab"})] == ["two", "residual"]


@pytest.mark.parametrize(
    "call",
    [
        lambda: anova([1.0], {}),
        lambda: anova([1.0, np.nan], {}),
        lambda: anova([1.0, 2.0], {"one": ["a"]}),
        lambda: f_tail(-1.0, 1, 1),
        lambda: f_tail(1.0, 0, 1),
        lambda: block_bootstrap([]),
        lambda: block_bootstrap([1.0, np.inf]),
        lambda: signed_rank([]),
    ],
)
def test_bad_input_is_refused(call) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(InvalidInput):
        call()


def test_two_way_example_by_hand() -> None:
    # Cell means 2, 6, 4 and 12 around 6: rows 4 and 8, columns 3 and 9, each value 1 off its cell.
    values = [1, 3, 5, 7, 3, 5, 11, 13]
    factors = {"row": "aaaabbbb", "column": "ccddccdd"}
    effects = anova(values, factors, interactions=[("row", "column")])
    assert [effect.squares for effect in effects] == pytest.approx([32, 72, 8, 8])
    assert [effect.share for effect in effects] == pytest.approx([4 / 15, 9 / 15, 1 / 15, 1 / 15])
    assert [effect.freedom for effect in effects] == [1, 1, 1, 4]
    assert [effect.f for effect in effects[:3]] == pytest.approx([16, 36, 4])
    # P(F(1, 4) > 16) is what a t of 4 with 4 degrees of freedom has in both tails.
    assert effects[0].p == pytest.approx(0.0161301, abs=1e-7)


def test_balance() -> None:
    assert is_balanced({"a": "xxyy", "b": "1212"})
    assert not is_balanced({"a": "xxy", "b": "121"})
    assert not is_balanced({"a": "xxxyy", "b": "11212"})


@given(st.lists(st.integers(-4, 4), min_size=1, max_size=9))
def test_signed_rank_counts_every_assignment_of_signs(differences: list[int]) -> None:
    given_ = np.array([each for each in differences if each], dtype=float)
    if not given_.size:
        assert signed_rank(differences) is None
        return
    sizes = np.abs(given_)
    ranks = np.array([(sizes < size).sum() + ((sizes == size).sum() + 1) / 2 for size in sizes])
    seen = ranks[given_ > 0].sum()
    sums = [ranks[list(signs)].sum() for signs in product((False, True), repeat=given_.size)]
    tail = min(np.mean([each <= seen for each in sums]), np.mean([each >= seen for each in sums]))
    assert signed_rank(differences) == pytest.approx(min(1.0, 2 * tail), abs=1e-12)


def test_signed_rank_of_a_textbook_example() -> None:
    # Hollander and Wolfe (1973), depression scores of nine patients before and after a visit.
    before = [1.83, 0.50, 1.62, 2.48, 1.68, 1.88, 1.55, 3.06, 1.30]
    after = [0.878, 0.647, 0.598, 2.05, 1.06, 1.29, 1.06, 3.14, 1.29]
    assert signed_rank(np.subtract(before, after)) == pytest.approx(0.0390625)


def test_the_normal_curve_is_close_where_signs_are_not_counted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    differences = np.random.default_rng(3).normal(0.25, 1, 80)
    exact = signed_rank(differences)
    monkeypatch.setattr(statistics, "_COUNTED", 0)
    assert signed_rank(differences) == pytest.approx(exact, rel=0.03)
    assert signed_rank(np.round(differences, 1)) == pytest.approx(exact, rel=0.15)


def test_holm_by_hand() -> None:
    assert holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
    assert holm([0.9, None, 0.8]) == [1.0, None, 1.0]


# What follows each other in time.


def autoregressive(rng: np.random.Generator, count: int, likeness: float) -> np.ndarray:
    """Return numbers with mean 0 each of which remembers the last."""
    shocks = rng.exponential(size=count + 100) - 1
    values = np.zeros(count + 100)
    for place in range(1, values.size):
        values[place] = likeness * values[place - 1] + shocks[place]
    return values[100:]


@pytest.mark.parametrize(("count", "likeness"), [(26, 0.0), (52, 0.5), (104, 0.7)])
def test_block_intervals_hold_the_truth_although_neighbours_are_alike(
    count: int, likeness: float
) -> None:
    rng = np.random.default_rng(7)
    held = plain = 0
    for trial in range(250):
        sample = 3.0 + autoregressive(rng, count, likeness)
        found = block_bootstrap(sample, resamples=400, seed=trial)
        assert found.low is not None
        assert found.high is not None
        held += found.low <= 3.0 <= found.high
        means = sample[rng.integers(0, count, size=(400, count))].mean(axis=1)
        low, high = np.quantile(means, [0.025, 0.975])
        plain += low <= 3.0 <= high
    assert held / 250 >= 0.9
    # Drawn one by one, what is alike seems to say more than it does.
    assert plain < held


def test_a_few_independent_numbers_have_the_interval_of_student() -> None:
    rng = np.random.default_rng(3)
    held = 0
    for trial in range(400):
        found = block_bootstrap(rng.normal(size=4), length=1, resamples=400, seed=trial)
        assert found.low is not None
        assert found.high is not None
        held += found.low <= 0 <= found.high
    assert 0.9 <= held / 400 <= 0.99


def test_what_cannot_be_cut_into_blocks_has_no_interval() -> None:
    assert block_bootstrap([4.0]).low is None
    flat = block_bootstrap([2.0] * 30)
    assert (flat.value, flat.low, flat.high) == (2.0, 2.0, 2.0)
    with pytest.raises(InvalidInput, match="a block has 1 to 3 of 3 numbers, not 4"):
        block_bootstrap([1.0, 2.0, 3.0], length=4)
