"""What stopping costs, in words."""

from __future__ import annotations

import pytest

from lowtide.learning.costs import Cost, format_joules
from lowtide.learning.intervals import welch


@pytest.mark.parametrize(
    ("energy_j", "half_j", "said"),
    [
        (970.0, 70.0, "0.97 ± 0.07 kJ"),
        # A small node: hundredths of a kilojoule would say nothing.
        (-38.0, 51.2, "-38.0 ± 51.2 J"),
        (134.4, None, "134.4 J"),
        (25_670.0, None, "25.67 kJ"),
        (3_200_000.0, 41_000.0, "3.20 ± 0.04 MJ"),
        (0.0, 0.0, "0.0 ± 0.0 J"),
    ],
)
def test_units_suit_what_they_tell(energy_j: float, half_j: float | None, said: str) -> None:
    assert format_joules(energy_j, half_j) == said


def test_costs_of_a_small_node_are_told_in_joules() -> None:
    cost = Cost(what="an extra start", energy_j=welch([131.0, 133.0, 138.0], [1.0, 2.0, 3.0]))
    assert str(cost).startswith("an extra start costs 132.0 ± ")
    assert " J (Welch" in str(cost)
