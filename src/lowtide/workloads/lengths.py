"""How long jobs work: each kind takes its parameters and returns what draws so many lengths.

A length is work alone: what a start costs comes on top.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from statistics import NormalDist

import numpy as np

from lowtide.errors import InvalidInput
from lowtide.formats import read_jobs
from lowtide.signal import FloatArray
from lowtide.trace import Trace
from lowtide.units import DurationLike, format_hours
from lowtide.workloads.checks import number, optional_seconds, seconds

Lengths = Callable[[int, np.random.Generator], FloatArray]

# Below this share of lengths that fit, drawing until one fits takes long and says little.
_LEAST_SHARE = 1e-3


def constant(*, length: DurationLike) -> Lengths:
    """Return lengths that are all the same."""
    return partial(_constant, length_s=seconds(length, "length"))


def lognormal(
    *,
    median: DurationLike,
    sigma: float,
    low: DurationLike | None = None,
    high: DurationLike | None = None,
) -> Lengths:
    """Return lengths whose logarithms have a normal distribution.

    A length outside `low` and `high` is drawn again, so none piles up at the limits. Limits that
    cut one side more than the other move the median.

    Args:
        median: Half of all jobs are shorter, before any are drawn again.
        sigma: Standard deviation of the natural logarithm: 68 % of lengths lie between the median
            divided and multiplied by exp(sigma).

    >>> lognormal(median="2h", sigma=1.2, high="1d")(3, np.random.default_rng(0)).round().tolist()
    [8373.0, 6144.0, 15527.0]
    """
    median_s = seconds(median, "median")
    spread = number(sigma, "sigma")
    low_s, high_s = optional_seconds(low, "low") or 0.0, optional_seconds(high, "high") or math.inf
    if _share(median_s, spread, low_s, high_s) < _LEAST_SHARE:
        raise InvalidInput(
            f"fewer than 1 in 1,000 lengths with median {format_hours(median_s)} and sigma "
            f"{spread:g} lie between low and high: widen them, or move the median"
        )
    return partial(_lognormal, median_s=median_s, sigma=spread, low_s=low_s, high_s=high_s)


def loguniform(*, low: DurationLike, high: DurationLike) -> Lengths:
    """Return lengths as often between 1 h and 2 h as between 10 h and 20 h."""
    low_s, high_s = seconds(low, "low"), seconds(high, "high")
    if low_s > high_s:
        raise InvalidInput(f"low is at most high, but {low!r} is longer than {high!r}")
    return partial(_loguniform, low_s=low_s, high_s=high_s)


def from_trace(
    *,
    trace: Trace | Path | str,
    format: str | None = None,  # noqa: A002 - as in `read_jobs`
    time_unit: str | None = None,
) -> Lengths:
    """Return lengths drawn from those of a trace, with replacement.

    Jobs that never ran have no length and are left out.

    Args:
        format: Which format the file has, where it should not be told by its content.
        time_unit: What a plain table counts time in: `s`, `min` or `h`.

    >>> ran = Trace(columns={"arrival": [0, 1, 2], "length_s": [60, 0, 90]})
    >>> from_trace(trace=ran)(4, np.random.default_rng(0)).tolist()
    [90.0, 60.0, 60.0, 60.0]
    """
    ran = (
        trace if isinstance(trace, Trace) else read_jobs(trace, format=format, time_unit=time_unit)
    )
    known = ran.length_s[ran.length_s > 0]
    if not known.size:
        raise InvalidInput(f"no job of {ran.source or 'the trace'} has a length to draw from")
    return partial(_from_trace, known_s=known)


LENGTHS: Mapping[str, Callable[..., Lengths]] = {
    "constant": constant,
    "lognormal": lognormal,
    "loguniform": loguniform,
    "from_trace": from_trace,
}


def _constant(count: int, _: np.random.Generator, *, length_s: float) -> FloatArray:
    return np.full(count, length_s)


def _lognormal(
    count: int,
    rng: np.random.Generator,
    *,
    median_s: float,
    sigma: float,
    low_s: float,
    high_s: float,
) -> FloatArray:
    lengths = median_s * np.exp(sigma * rng.standard_normal(count))
    # Only those that do not fit are drawn again: other limits leave the rest as they were.
    while (wrong := np.flatnonzero((lengths < low_s) | (lengths > high_s))).size:
        lengths[wrong] = median_s * np.exp(sigma * rng.standard_normal(wrong.size))
    return lengths


def _loguniform(count: int, rng: np.random.Generator, *, low_s: float, high_s: float) -> FloatArray:
    lengths: FloatArray = low_s * (high_s / low_s) ** rng.random(count)
    return lengths


def _from_trace(count: int, rng: np.random.Generator, *, known_s: FloatArray) -> FloatArray:
    # One uniform number per job: job k keeps its place in the trace whatever comes after it.
    drawn: FloatArray = known_s[(rng.random(count) * known_s.size).astype(np.int64)]
    return drawn


def _share(median_s: float, sigma: float, low_s: float, high_s: float) -> float:
    """Return which share of lognormal lengths lies between two limits."""
    if sigma == 0:
        return float(low_s <= median_s <= high_s)
    normal = NormalDist(math.log(median_s), sigma)
    below = normal.cdf(math.log(low_s)) if low_s else 0.0
    return (normal.cdf(math.log(high_s)) if high_s < math.inf else 1.0) - below
