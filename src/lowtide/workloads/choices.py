"""One value per job: the same for all, one of several, or spread around a median."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, TypeGuard

import numpy as np

from lowtide.errors import InvalidInput
from lowtide.signal import FloatArray
from lowtide.workloads.checks import check_keys, number

Draw = Callable[[int, np.random.Generator], FloatArray]


def read_draw(
    value: object, what: str, read: Callable[[object, str], float], *, spread: bool = False
) -> Draw:
    """Return what draws one value per job.

    Args:
        value: One value, `{choices = [...], weights = [...]}`, or, where values may be spread,
            `{kind = "lognormal", median = ..., sigma = ...}`.

    >>> draw = read_draw({"choices": [1, 8], "weights": [3, 1]}, "cpus", number)
    >>> draw(6, np.random.default_rng(1)).tolist()
    [1.0, 8.0, 1.0, 8.0, 1.0, 1.0]
    """
    if not isinstance(value, Mapping):
        return same(read(value, what))
    if "choices" in value:
        check_keys(value, ("choices", "weights"), what)
        return _choice(value["choices"], value.get("weights"), what, read)
    if not spread or value.get("kind") != "lognormal":
        or_spread = " or {kind = 'lognormal', median = ..., sigma = ...}" if spread else ""
        raise InvalidInput(
            f"{what} is one value, or {{choices = [...], weights = [...]}}{or_spread}, "
            f"not {dict(value)!r}"
        )
    check_keys(value, ("kind", "median", "sigma"), what)
    return partial(
        _lognormal,
        median=read(value.get("median"), f"median of {what}"),
        sigma=number(value.get("sigma"), f"sigma of {what}"),
    )


def same(value: float) -> Draw:
    """Return what gives every job the same value."""
    return partial(_same, value=value)


def _choice(
    choices: object, weights: object, what: str, read: Callable[[object, str], float]
) -> Draw:
    if not _is_list(choices) or len(choices) == 0:
        raise InvalidInput(f"choices of {what} is a list of at least one, not {choices!r}")
    values = np.array([read(each, what) for each in choices])
    if weights is None:
        shares = np.ones(values.size)
    elif _is_list(weights) and len(weights) == values.size:
        shares = np.array([number(each, f"a weight of {what}") for each in weights])
    else:
        raise InvalidInput(f"weights of {what} has a number per choice, {values.size} in all")
    if not shares.sum():
        raise InvalidInput(f"weights of {what} are all 0: one at least is more")
    return partial(_one_of, values=values, bounds=np.cumsum(shares) / shares.sum())


def _is_list(value: object) -> TypeGuard[Sequence[Any]]:
    return isinstance(value, Sequence | np.ndarray) and not isinstance(value, str)


def _same(count: int, _: np.random.Generator, *, value: float) -> FloatArray:
    return np.full(count, value)


def _one_of(
    count: int, rng: np.random.Generator, *, values: FloatArray, bounds: FloatArray
) -> FloatArray:
    # Rounding may leave the last bound below 1; what falls above it is the last choice too.
    places = np.searchsorted(bounds[:-1], rng.random(count), side="right")
    drawn: FloatArray = values[places]
    return drawn


def _lognormal(count: int, rng: np.random.Generator, *, median: float, sigma: float) -> FloatArray:
    drawn: FloatArray = median * np.exp(sigma * rng.standard_normal(count))
    return drawn
