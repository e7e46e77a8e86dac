"""Analysis of variance against textbook figures, known quantiles and a direct computation."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lowtide.errors import InvalidInput
from lowtide.experiments.statistics import anova, f_tail, incomplete_beta


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


@given(
    x=st.floats(0.0, 1.0),
    a=st.integers(1, 60),
    b=st.integers(1, 60),
)
def test_incomplete_beta_is_a_binomial_tail(x: float, a: int, b: int) -> None:
    from math import comb

    n = a + b - 1
    tail = sum(comb(n, k) * x**k * (1 - x) ** (n - k) for k in range(a, n + 1))
    assert incomplete_beta(x, a, b) == pytest.approx(tail, rel=1e-9, abs=1e-13)
    assert incomplete_beta(x, a, b) + incomplete_beta(1 - x, b, a) == pytest.approx(1, abs=1e-12)


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
        lambda: incomplete_beta(1.5, 1, 1),
    ],
)
def test_bad_input_is_refused(call) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(InvalidInput):
        call()
