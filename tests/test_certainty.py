"""How sure a figure is, against the words of its rule, for single figures and many at once."""

from __future__ import annotations

import math

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from lowtide.certainty import (
    Marked,
    is_estimated,
    lacks_grams,
    mark_notes,
    marked,
    marks_in,
    word_for_power,
)

FIGURE = st.sampled_from([0.0, 1e-3, 1.0, 40.0, 100.0, 1e9, math.nan])


@given(st.lists(st.tuples(FIGURE, FIGURE, FIGURE, FIGURE), min_size=1, max_size=5))
def test_many_at_once_are_as_sure_as_each(rows: list[tuple[float, float, float, float]]) -> None:
    energy, measured, unmetered, unpriced = np.array(rows).T
    guessed = is_estimated(energy, measured).tolist()
    lacking = lacks_grams(energy, unmetered, unpriced).tolist()
    for place, (joules, sure, dark_s, free) in enumerate(rows):
        # Energy that is not known is neither; where nobody knows what was measured, nothing was.
        word = None
        if joules == joules:
            word = "measured" if sure >= joules else "part" if sure > 0 else "estimated"
        assert word_for_power(joules, sure) == word
        assert guessed[place] == is_estimated(joules, sure) == (word in ("part", "estimated"))
        lacks = dark_s > 0 or (joules == joules and free > 1e-9 * joules)
        assert lacking[place] == lacks_grams(joules, dark_s, free) == lacks


def test_rounding_is_no_estimate() -> None:
    assert not is_estimated(1.0, 1.0 - 1e-12)
    assert not lacks_grams(1e6, 0.0, 1e-6)


def test_a_text_knows_its_marks() -> None:
    text = marked("4 g", estimated=True, partial=True)
    assert (text, text.marks) == (">~4 g", ">~")
    # What is missing is not marked, and a text that looks like a mark is none.
    assert (marked("---", estimated=True, partial=True), Marked("---", "~").marks) == ("---", "")
    assert marks_in([[text, "~/data"], [">x"]]) == {"~", ">"}
    assert mark_notes(marks_in([["~/data"]])) == []
    assert [note[0] for note in mark_notes(text.marks)] == ["~", ">"]
