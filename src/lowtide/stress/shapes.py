"""The courses that levels take over the steps of a plan, none of which follows another.

A shape draws one part at a time. Of several draws the one is kept that goes least with the parts
before it, and draws go on until every correlation is below the limit.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType

import numpy as np

from lowtide.errors import InvalidInput, UnknownName
from lowtide.signal import FloatArray

# What counts as independent.
MOST_CORRELATION = 0.2
# What is accepted stays below it in two digits as well.
_ACCEPTED = 0.19
# So many draws are compared, and so many are made before giving up.
_COMPARED = 32
_MOST_DRAWS = 4096
# A staircase has so many levels: 0, 25, 50, 75 and 100 %.
_STAIRS = 5

# Returns levels from 0 to 1 over a number of steps; told which part it is, counted from 0.
Shape = Callable[[int, int, np.random.Generator], FloatArray]


def _ramp(steps: int, part: int, rng: np.random.Generator) -> FloatArray:
    """Rise and fall evenly, each part twice as often as the one before it."""
    # Triangles whose frequencies differ by a power of two are orthogonal whatever their phases.
    phase = rng.random() if part else 0.0
    place = (2.0**part * np.arange(steps) / max(steps - 1, 1) + phase) % 1.0
    return 1.0 - np.abs(2.0 * place - 1.0)


def _steps(steps: int, part: int, rng: np.random.Generator) -> FloatArray:
    """Hold one level after another, each part changing within what the one before it holds."""
    stairs = min(_STAIRS, steps)
    blocks = min(stairs ** (part + 1), steps)
    cycles = [rng.permutation(stairs) for _ in range(-(-blocks // stairs))]
    levels: FloatArray = np.concatenate(cycles)[:blocks] / (stairs - 1)
    held: FloatArray = levels[np.arange(steps) * blocks // steps]
    return held


def _random(steps: int, _part: int, rng: np.random.Generator) -> FloatArray:
    """Draw every level by itself, from anywhere."""
    return rng.random(steps)


def _latin(steps: int, _part: int, rng: np.random.Generator) -> FloatArray:
    """Visit as many evenly spaced levels as there are steps, each once, in any order."""
    return rng.permutation(steps) / max(steps - 1, 1)


SHAPES: Mapping[str, Shape] = MappingProxyType(
    {"ramp": _ramp, "steps": _steps, "random": _random, "latin": _latin}
)


def draw_levels(
    shape: str, ranges: Sequence[tuple[float, float]], steps: int, *, seed: int
) -> FloatArray:
    """Return levels in percent, a row per step and a column per part.

    Every part reaches both ends of its range. No two parts correlate by `MOST_CORRELATION` or more.

    Args:
        shape: One of `SHAPES`.
        ranges: The lowest and the highest level of each part, in percent.

    >>> draw_levels("latin", [(0, 100)], 5, seed=1).ravel().tolist()
    [100.0, 0.0, 25.0, 50.0, 75.0]
    """
    if shape not in SHAPES:
        raise UnknownName("shape", shape, SHAPES)
    if steps < 2 and any(low < high for low, high in ranges):
        raise InvalidInput(
            "a part reaches its lowest and its highest level in 2 steps or more, and here is "
            f"{steps}: make the plan longer, or its steps shorter"
        )
    chosen: list[FloatArray] = []
    for part, (low, high) in enumerate(ranges):
        rng = np.random.default_rng([seed, part])
        best, least = None, np.inf
        for number in range(_MOST_DRAWS):
            drawn = _spread(SHAPES[shape](steps, part, rng), low, high)
            if drawn is None:
                continue
            most = _dependence(drawn, chosen)
            if most < least:
                best, least = drawn, most
            if least == 0.0 or (number >= _COMPARED and least < _ACCEPTED):
                break
        if best is None or least >= _ACCEPTED:
            raise InvalidInput(
                f"{steps} steps of the shape {shape} are too few for {len(ranges)} parts that do "
                f"not go together (a correlation of {MOST_CORRELATION:g} is too much): make the "
                "plan longer, its steps shorter, or leave out a part"
            )
        chosen.append(best)
    return np.column_stack(chosen)


def correlation(one: FloatArray, other: FloatArray) -> float:
    """Return Pearson's correlation, NaN where one of them never changes.

    >>> round(correlation(np.array([0.0, 1.0, 2.0]), np.array([5.0, 3.0, 1.0])), 6)
    -1.0
    """
    first, second = one - one.mean(), other - other.mean()
    size = float(np.sqrt((first @ first) * (second @ second)))
    return float(first @ second) / size if size > 0 else np.nan


def _dependence(drawn: FloatArray, others: Sequence[FloatArray]) -> float:
    """Return the largest correlation, whatever its sign; a level that never changes has none."""
    found = (abs(correlation(drawn, other)) for other in others)
    return max((each for each in found if not np.isnan(each)), default=0.0)


def _spread(levels: FloatArray, low: float, high: float) -> FloatArray | None:
    """Stretch levels to the whole range in tenths of a percent, None if they are all the same."""
    if low == high:
        return np.full(levels.size, float(low))
    bottom, top = levels.min(), levels.max()
    if bottom == top:
        return None
    spread = np.round(low + (high - low) * (levels - bottom) / (top - bottom), 1)
    # An end that is no tenth of a percent is reached all the same.
    return np.where(levels == bottom, low, np.where(levels == top, high, spread))
