"""Intervals from runs that a model has not seen, without taking errors to be normal.

Windows of one run are alike, so it is runs that are drawn anew, not windows. Each run weighs the
same, and one more run of which nothing is known stands for the one to come: with K runs it weighs
1 / (K + 1) and may be off by anything. So K runs support a level of K / (K + 1) at most: nine runs
for 90 %. This is conformal prediction for data in groups (Dunn, Wasserman and Ramdas, 2022; Lee,
Barber and Willett, 2023), with errors that come from leaving runs out in turn.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from lowtide.errors import InvalidInput
from lowtide.signal import FloatArray


@dataclass(frozen=True, slots=True, kw_only=True)
class Coverage:
    """How often intervals held the power of runs that they were not made from.

    Attributes:
        level: How often they should at least, the runs being alike.
        mean: How often they did, mean over runs.
        least: How often for the run that they suit worst.
        runs: How many runs.
    """

    level: float
    mean: float
    least: float
    runs: int


def supported_level(level: float, runs: int) -> float:
    """Return the level that so many runs support, the asked one at most.

    Args:
        level: The level that is asked for, between 0 and 1.

    >>> supported_level(0.9, 20), supported_level(0.9, 4)
    (0.9, 0.8)
    """
    if not 0 < level < 1:
        raise InvalidInput(f"a level lies between 0 and 1, not {level:g}")
    return min(level, runs / (runs + 1))


def half_width_w(errors: Sequence[FloatArray], level: float) -> float:
    """Return half the width of an interval that holds the power of a new run so often.

    Args:
        errors: The absolute errors of each run, by a model that has not seen it.
        level: How often; what `supported_level` returns.

    >>> half_width_w([np.array([1.0, 2.0]), np.array([3.0, 4.0]), np.array([5.0, 6.0])], 0.5)
    4.0
    """
    every = np.concatenate(errors)
    weights = np.concatenate(
        [np.full(each.size, 1 / (each.size * (len(errors) + 1))) for each in errors]
    )
    order = np.argsort(every, kind="stable")
    reached = np.cumsum(weights[order])
    # Sums of weights miss their level by rounding.
    place = int(np.searchsorted(reached, level - 1e-9))
    return float(every[order][min(place, every.size - 1)])


def coverage(errors: Sequence[FloatArray], level: float) -> Coverage | None:
    """Return how often intervals hold, each run's made from the others; None for fewer than three.

    Args:
        errors: The absolute errors of each run, by a model that has not seen it.
    """
    if len(errors) < 3:
        return None
    less = supported_level(level, len(errors) - 1)
    held = []
    for place, own in enumerate(errors):
        others = [each for number, each in enumerate(errors) if number != place]
        held.append(float(np.mean(own <= half_width_w(others, less))))
    return Coverage(level=less, mean=float(np.mean(held)), least=min(held), runs=len(errors))
