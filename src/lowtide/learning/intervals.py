"""Intervals: of a mean by Student's t, of a difference by Welch's test, of what a model says.

The last take no errors to be normal. Windows of one run are alike, so it is runs that are drawn
anew, not windows. Each run weighs the same, and one more run of which nothing is known stands for
the one to come: with K runs it weighs 1 / (K + 1) and may be off by anything. So K runs support a
level of K / (K + 1) at most: nine runs for 90 %. This is conformal prediction for data in groups
(Dunn, Wasserman and Ramdas, 2022; Lee, Barber and Willett, 2023), with errors that come from
leaving runs out in turn.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy import special

from lowtide.errors import InvalidInput
from lowtide.signal import FloatArray


@dataclass(frozen=True, slots=True, kw_only=True)
class Interval:
    """A mean and how well it is known.

    Attributes:
        half: Half the width of its interval, None where one value alone is known.
    """

    value: float
    half: float | None
    count: int

    @classmethod
    def of(cls, values: Sequence[float], *, level: float = 0.95) -> Interval:
        """Return the mean of values and its t interval.

        >>> interval = Interval.of([9.0, 10.0, 11.0])
        >>> interval.value, round(interval.half, 3)
        (10.0, 2.484)
        """
        numbers = np.asarray(values, dtype=np.float64)
        half = None
        if numbers.size > 1:
            error = float(numbers.std(ddof=1)) / math.sqrt(numbers.size)
            half = quantile(level, numbers.size - 1) * error
        return cls(value=float(numbers.mean()), half=half, count=numbers.size)


@dataclass(frozen=True, slots=True, kw_only=True)
class Welch:
    """The difference of two means, their variances not taken to be equal.

    Attributes:
        half: Half the width of its interval, None where a sample has fewer than two values.
        freedom: Degrees of freedom, by Welch and Satterthwaite.
        p: Probability of so large a difference, either way, between samples of one mean.
    """

    difference: float
    half: float | None
    t: float | None
    freedom: float | None
    p: float | None
    counts: tuple[int, int]


def welch(first: Sequence[float], second: Sequence[float], *, level: float = 0.95) -> Welch:
    """Compare two means.

    >>> test = welch([20.0, 22.0, 24.0], [10.0, 11.0, 12.0, 13.0])
    >>> test.difference, round(test.t, 3), round(test.freedom, 2)
    (10.5, 7.937, 3.23)
    """
    ours, theirs = np.asarray(first, dtype=np.float64), np.asarray(second, dtype=np.float64)
    difference = float(ours.mean() - theirs.mean())
    counts = (ours.size, theirs.size)
    shares = [
        float(each.var(ddof=1)) / each.size if each.size > 1 else 0.0 for each in (ours, theirs)
    ]
    if min(counts) < 2 or not sum(shares):
        return Welch(difference=difference, half=None, t=None, freedom=None, p=None, counts=counts)
    error = math.sqrt(sum(shares))
    freedom = sum(shares) ** 2 / sum(
        share**2 / (count - 1) for share, count in zip(shares, counts, strict=True)
    )
    t = difference / error
    return Welch(
        difference=difference,
        half=quantile(level, freedom) * error,
        t=t,
        freedom=freedom,
        p=tail(t, freedom),
        counts=counts,
    )


def tail(t: float, freedom: float) -> float:
    """Return the probability that |T| exceeds |t|.

    >>> round(tail(2.228, 10), 4)
    0.05
    """
    return float(2 * special.stdtr(freedom, -abs(t)))


def quantile(level: float, freedom: float) -> float:
    """Return the t that |T| stays below with a probability.

    >>> round(quantile(0.95, 10), 3)
    2.228
    """
    return float(special.stdtrit(freedom, (1 + level) / 2))


def next_one(values: Sequence[float], *, level: float = 0.9) -> tuple[float, float] | None:
    """Return between what the next of some values lies, so often; None where one alone is known.

    With enough of them values are counted: their largest distances from the middle are exceeded as
    often as one more would be. That holds on average, while for one of many programs it hangs on
    the two or three values that lie outermost, so the interval is no narrower than that of
    Student's t, which goes by all of them. With fewer values t alone takes them to be normal: two
    tell little, and the interval is as wide as that.

    >>> low, high = next_one([9.0, 10.0, 11.0])
    >>> round(low, 2), round(high, 2)
    (6.63, 13.37)
    """
    numbers = np.asarray(values, dtype=np.float64)
    if numbers.size < 2:
        return None
    count = numbers.size
    mean = float(numbers.mean())
    error = float(numbers.std(ddof=1)) * math.sqrt(1 + 1 / count)
    half = quantile(level, count - 1) * error
    if supported_level(level, count) == level:
        # Each seen from the mean of the others, as the next will be from the mean of all.
        apart = np.sort(np.abs(numbers - mean)) * count / (count - 1)
        # Between two of them where the level lies between: 18 values would else promise 95 %.
        half = max(half, float(np.interp(level * (count + 1), np.arange(1, count + 1), apart)))
    return mean - half, mean + half


@dataclass(frozen=True, slots=True, kw_only=True)
class Coverage:
    """How often intervals held the power of runs that they were not made from.

    Attributes:
        level: How often they should at least, the runs being alike.
        mean: How often they did, mean over runs.
        least: How often for the run that they suit worst.
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
