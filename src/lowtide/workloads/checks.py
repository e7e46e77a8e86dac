"""What the tables of a workload may hold: names, numbers and durations."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping
from typing import TypeVar

import numpy as np

from lowtide.errors import InvalidInput, InvalidTime, UnknownName, require_known
from lowtide.units import DurationLike, parse_duration

T = TypeVar("T")


def number(
    value: object,
    what: str,
    *,
    least: float = 0.0,
    most: float = math.inf,
    positive: bool = False,
    whole: bool = False,
) -> float:
    """Return a number that keeps to its limits.

    Args:
        positive: Whether the least itself is too little.
        whole: Whether it must be a whole number.

    >>> number(0.5, "weekend_share", most=1)
    0.5
    """
    good = isinstance(value, int | float | np.number) and not isinstance(value, bool)
    try:
        given = float(value) if good else math.nan  # type: ignore[arg-type]
    except OverflowError:  # A whole number of hundreds of digits.
        given = math.inf
    within = least < given <= most if positive else least <= given <= most
    if math.isfinite(given) and within and not (whole and given % 1):
        return given
    kind = "a whole number" if whole else "a number"
    above = f" above {least:g}" if positive else f" from {least:g}"
    limit = f" to {most:g}" if most < math.inf else "" if positive else " up"
    allowed = f"{above}{limit}" if least > -math.inf else ""
    raise InvalidInput(f"{what} is {kind}{allowed}, not {value!r}")


def seconds(value: object, what: str, *, positive: bool = True) -> float:
    """Return a duration in seconds.

    Args:
        value: Seconds, or a text such as `2h`.
        positive: Whether 0 is too little.

    >>> seconds("90 min", "median")
    5400.0
    """
    try:
        given = parse_duration(value)  # type: ignore[arg-type]
    except InvalidTime as error:
        raise InvalidTime(f"{what}: {error}") from error
    if given < 0 or (positive and given == 0):
        raise InvalidTime(f"{what} is {'more than 0' if positive else '0 or more'}, not {value!r}")
    return given


def optional_seconds(value: DurationLike | None, what: str) -> float | None:
    """Return a duration in seconds, or None where there is none.

    Args:
        value: Seconds, a text, or None.
    """
    return None if value is None else seconds(value, what)


def one_of(given: Mapping[str, object], what: str) -> str:
    """Return the only name that has a value.

    Args:
        given: Names and values, None where there is none.
    """
    there = [name for name, value in given.items() if value is not None]
    if len(there) != 1:
        got = " and ".join(there) if there else "none"
        raise InvalidInput(f"{what}: give one of {', '.join(given)}, not {got}")
    return there[0]


def build(table: object, makers: Mapping[str, Callable[..., T]], what: str) -> T:
    """Return what a table with a `kind` describes.

    The keys of a kind are the parameters of the function that makes it.

    Args:
        table: `kind` and the parameters of that kind.
    """
    if not isinstance(table, Mapping) or "kind" not in table:
        raise InvalidInput(
            f"{what} is a table with a kind, one of {', '.join(sorted(makers))}, not {table!r}"
        )
    kind = table["kind"]
    if not isinstance(kind, str) or kind not in makers:
        raise UnknownName(f"kind of {what}", str(kind), makers)
    parameters = inspect.signature(makers[kind]).parameters
    given = {key: value for key, value in table.items() if key != "kind"}
    require_known(given, parameters, f"key of {kind} {what}")
    for name, parameter in parameters.items():
        if parameter.default is parameter.empty and name not in given:
            raise InvalidInput(f"{kind} {what} need {name!r}")
    return makers[kind](**given)
