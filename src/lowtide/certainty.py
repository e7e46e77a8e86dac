"""How sure a figure is, and the marks that say so: `~` estimated, `>` at least.

Whatever tells of energy and grams decides it here: whether a model had a part in it, and whether
a part of it is not known. Figures may be floats or arrays of them.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, overload

from lowtide.units import MISSING

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    FloatArray = npt.NDArray[np.float64]
    BoolArray = npt.NDArray[np.bool_]

# Less than this share of a quantity is rounding.
ROUNDING = 1e-9
# What stands in front of figures, in this order, and what it means.
ESTIMATED, AT_LEAST = "~", ">"
_MEANINGS = {
    ESTIMATED: "~ estimated, in whole or in part: not measured.",
    AT_LEAST: "> at least: what was drawn or emitted in part of the time is not known.",
}


@overload
def is_estimated(energy_j: float, measured_j: float) -> bool: ...
@overload
def is_estimated(energy_j: FloatArray, measured_j: FloatArray) -> BoolArray: ...
def is_estimated(energy_j: Any, measured_j: Any) -> Any:
    """Say whether a model had a part in energy that is known.

    >>> is_estimated(100.0, 40.0), is_estimated(100.0, 100.0), is_estimated(math.nan, 0.0)
    (True, False, False)
    """
    # What was measured may not be known itself: then it is not as much as was drawn.
    enough = measured_j >= energy_j * (1 - ROUNDING)
    return (energy_j == energy_j) & (enough ^ True)


@overload
def lacks_grams(energy_j: float, unmetered_s: float, unpriced_j: float) -> bool: ...
@overload
def lacks_grams(
    energy_j: FloatArray, unmetered_s: FloatArray, unpriced_j: FloatArray
) -> BoolArray: ...
def lacks_grams(energy_j: Any, unmetered_s: Any, unpriced_j: Any) -> Any:
    """Say whether grams lack a part: where a time was not metered, or energy was not priced.

    >>> lacks_grams(100.0, 0.0, 0.0), lacks_grams(100.0, 0.0, 5.0), lacks_grams(100.0, 60.0, 0.0)
    (False, True, True)
    """
    return (unmetered_s > 0) | (unpriced_j > ROUNDING * energy_j)


def word_for_power(energy_j: float, measured_j: float) -> str | None:
    """Return whether energy was measured, estimated, or each in part; None where it is unknown.

    >>> word_for_power(100.0, 40.0)
    'part'
    """
    if math.isnan(energy_j):
        return None
    if not is_estimated(energy_j, measured_j):
        return "measured"
    return "part" if measured_j > 0 else "estimated"


def tells_of_model(word: str | None) -> bool:
    """Say whether a word of `word_for_power` says that a model had a part in it."""
    return word in ("estimated", "part")


class Marked(str):
    """A text that knows how it is marked."""

    __slots__ = ("marks",)

    def __new__(cls, text: str, marks: str = "") -> Marked:
        """Mark a text; what is missing has no marks."""
        marks = "" if text == MISSING else marks
        made = super().__new__(cls, marks + text)
        made.marks = marks
        return made

    marks: str


def marks_for(*, estimated: bool = False, partial: bool = False) -> str:
    """Return the marks of a quantity.

    Args:
        partial: Whether part of it is not known.
    """
    return AT_LEAST * bool(partial) + ESTIMATED * bool(estimated)


def marked(text: str, *, estimated: bool = False, partial: bool = False) -> Marked:
    """Return a quantity with what has to be known of it.

    >>> marked("3.2 kWh", estimated=True, partial=True), marked("---", estimated=True)
    ('>~3.2 kWh', '---')
    """
    return Marked(text, marks_for(estimated=estimated, partial=partial))


def marks_in(rows: Iterable[Iterable[str]]) -> set[str]:
    """Return the marks that texts in rows have."""
    return {mark for row in rows for text in row if isinstance(text, Marked) for mark in text.marks}


def mark_notes(marks: Iterable[str]) -> list[str]:
    """Return what the marks mean that a table has."""
    shown = set(marks)
    return [meaning for mark, meaning in _MEANINGS.items() if mark in shown]
