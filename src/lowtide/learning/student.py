"""Student's t: intervals of a mean, and Welch's test of two means."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy import special


@dataclass(frozen=True, slots=True, kw_only=True)
class Interval:
    """A mean and how well it is known.

    Attributes:
        value: The mean.
        half: Half the width of its interval, None where one value alone is known.
        count: How many values it is the mean of.
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
        difference: The first mean less the second.
        half: Half the width of its interval, None where a sample has fewer than two values.
        t: The difference over its standard error.
        freedom: Degrees of freedom, by Welch and Satterthwaite.
        p: Probability of so large a difference, either way, between samples of one mean.
        counts: How many values the samples have.
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
