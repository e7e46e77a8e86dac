"""Student's t against printed tables, Welch's test against a hand-worked case."""

from __future__ import annotations

import pytest

from lowtide.learning.costs import stopping_costs
from lowtide.learning.intervals import Interval, quantile, tail, welch
from support.recordings import make_run


@pytest.mark.parametrize(
    ("level", "freedom", "t"),
    [
        (0.95, 1, 12.706),
        (0.95, 2, 4.303),
        (0.95, 9, 2.262),
        (0.95, 30, 2.042),
        (0.90, 5, 2.015),
        (0.99, 10, 3.169),
        (0.999, 20, 3.850),
    ],
)
def test_quantiles_are_those_of_the_tables(level: float, freedom: int, t: float) -> None:
    assert quantile(level, freedom) == pytest.approx(t, abs=5e-4)
    assert tail(t, freedom) == pytest.approx(1 - level, abs=4e-5)


def test_an_interval_by_hand() -> None:
    # Mean 5, variance (9 + 1 + 1 + 9) / 3, standard error √(20/3/4), t(3) = 3.1824.
    interval = Interval.of([2.0, 4.0, 6.0, 8.0])
    assert interval.value == 5.0
    assert interval.half == pytest.approx(3.18245 * (20 / 3 / 4) ** 0.5, rel=1e-5)
    assert Interval.of([7.0]).half is None


def test_welch_by_hand() -> None:
    # Means 21 and 16, variances 10/3 and 2, shares 10/3/4 and 2/5.
    test = welch([19.0, 20.0, 22.0, 23.0], [14.0, 16.0, 16.0, 16.0, 18.0])
    share, other = 10 / 3 / 4, 2 / 5
    assert test.difference == 5.0
    assert test.t == pytest.approx(5 / (share + other) ** 0.5)
    assert test.freedom == pytest.approx((share + other) ** 2 / (share**2 / 3 + other**2 / 4))
    assert test.p == pytest.approx(0.0044, abs=5e-4)
    assert test.half == pytest.approx(quantile(0.95, test.freedom) * (share + other) ** 0.5)


def test_welch_needs_two_values_each() -> None:
    test = welch([19.0], [14.0, 16.0])
    assert (test.difference, test.half, test.p) == (4.0, None, None)
    assert welch([1.0, 1.0], [1.0, 1.0]).t is None


def test_costs_are_differences_between_kinds() -> None:
    extra = [(5.0, 100.0)]
    work = [(10.0, 200.0)]
    runs = [make_run(f"f{i}", work, seed=i, jitter=0, marked=False) for i in range(4)]
    for i in range(3):
        for kind, first, second in (("stop", [], extra), ("kill", work, extra)):
            names = (f"{kind}{i}", f"{kind}{i}r")
            half = [(5.0, 200.0)]
            runs.append(
                make_run(
                    names[0],
                    [*half, *first],
                    seed=40 + i,
                    jitter=0,
                    marked=False,
                    kind=kind,
                    pair=names[0],
                )
            )
            runs.append(
                make_run(
                    names[1],
                    [*second, *half],
                    seed=50 + i,
                    jitter=0,
                    marked=False,
                    kind="resume",
                    pair=names[0],
                )
            )
    start, kill, lost = stopping_costs(runs)
    assert start.energy_j.difference == pytest.approx(500, abs=10)
    assert kill.energy_j.difference == pytest.approx(2500, abs=10)
    assert lost.energy_j.difference == pytest.approx(2000, abs=10)
    assert str(start).startswith("an extra start costs 0.50 ± 0.0")
    assert "p < 0.0001" in str(start)
    assert start.energy_j.counts == (3, 4)
    assert "no interval" in str(stopping_costs([*runs[:4], *runs[4:6]])[0])
    assert stopping_costs(runs[:4]) == []
