"""The shape that rows share: against brute force, and rows whose shape is known."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lowtide.learning.shape import Ignored, Row, Shape, find_shape, parse


def row(text: str, *, seconds: list[float] | None = None, watts: list[float] | None = None) -> Row:
    labels = tuple(text.split())
    return Row(
        labels=labels,
        seconds=np.ones(len(labels)) if seconds is None else np.array(seconds),
        watts=np.ones(len(labels)) if watts is None else np.array(watts),
    )


def fewest_edits(one: tuple[str, ...], other: tuple[str, ...]) -> int:
    """Labels to leave out and to put in, by the longest row that both contain."""
    common = np.zeros((len(one) + 1, len(other) + 1), dtype=int)
    for i, left in enumerate(one):
        for j, right in enumerate(other):
            common[i + 1, j + 1] = (
                common[i, j] + 1 if left == right else max(common[i, j + 1], common[i + 1, j])
            )
    return len(one) + len(other) - 2 * int(common[-1, -1])


LETTERS = st.sampled_from("abc")
BRIEF = st.lists(LETTERS, max_size=2).map(tuple)


@given(st.lists(LETTERS, min_size=1, max_size=7).map(tuple), BRIEF, BRIEF, BRIEF)
def test_no_other_number_of_epochs_has_less_wrong(
    labels: tuple[str, ...],
    startup: tuple[str, ...],
    body: tuple[str, ...],
    tail: tuple[str, ...],
) -> None:
    shape = Shape(head=startup + body, body=body, tail=tail)
    found = parse(labels, shape)
    most = len(labels) + 2 if body else 2
    best = min(fewest_edits(labels, shape.row(epochs)) for epochs in range(1, most))
    assert found.wrong == best
    wanted = shape.row(found.epochs)
    assert len(found.places) == len(wanted)
    known = [place for place in found.places if place >= 0]
    assert known == sorted(set(known))
    assert all(
        labels[place] == label
        for place, label in zip(found.places, wanted, strict=True)
        if place >= 0
    )


@pytest.mark.parametrize("epochs", [2, 3, 7, 50])
def test_any_number_of_epochs_is_the_same_shape(epochs: int) -> None:
    rows = [row("S a" + " t v s" * count + " F") for count in (epochs, epochs + 1, epochs + 3)]
    shape, ignored = find_shape(rows)
    assert shape == Shape(head=tuple("Satvs"), body=tuple("tvs"), tail=("F",))
    assert ignored == Ignored()
    assert [parse(each.labels, shape).epochs for each in rows] == [epochs, epochs + 1, epochs + 3]


@pytest.mark.parametrize("lost", range(4, 13))
def test_a_missing_mark_makes_no_other_shape(lost: int) -> None:
    whole = ["S", "a", "t", "v", "s", "t", "v", "s", "t", "v", "s", "t", "v", "s", "F"]
    one = row(" ".join(whole[:lost] + whole[lost + 1 :]))
    shape, _ = find_shape([one, row(" ".join(whole)), row(" ".join(whole))])
    found = parse(one.labels, shape)
    assert (shape.body, found.epochs, found.wrong) == (("t", "v", "s"), 4, 1)
    assert found.places[lost] == -1


def test_what_is_said_now_and_then_is_left_out() -> None:
    rows = [
        row("S x t x v s t v x s x x t v s t x v s F"),
        row("S t v x s x t x v s t v s x t x v s F"),
        row("S t x x v s t v s x x t v s t v s F"),
    ]
    shape, _ = find_shape(rows)
    assert shape.body == ("t", "v", "s")
    assert all(parse(each.labels, shape).epochs == 4 for each in rows[1:])


def test_marks_that_tell_what_is_over() -> None:
    # The startup is over, then training, validation and saving, three times; the end has no mark.
    one = row(
        "S L t v s t v s t v s",
        seconds=[20, 6, 2, 3, 6, 2, 3, 6, 2, 3, 1],
        watts=[1, 9, 2, 3, 9, 2, 3, 9, 2, 3, 1],
    )
    shape, _ = find_shape([one])
    assert shape == Shape(head=tuple("SLtv"), body=tuple("stv"), tail=("s",))
    assert parse(one.labels, shape).epochs == 3


def test_nothing_repeats() -> None:
    shape, _ = find_shape([row("S a b c"), row("S a b c")])
    assert shape == Shape(head=tuple("Sabc"))
    assert parse(("S", "a", "c"), shape).places == (0, 1, -1, 2)


@pytest.mark.parametrize("epochs", [(5,), (3, 4), (6, 6, 6)])
def test_steps_of_an_epoch_count_once(epochs: tuple[int, ...]) -> None:
    rows = []
    for count in epochs:
        text = "S a" + (" x" * 8 + " v") * count + " F"
        rows.append(row(text, seconds=[2.0, 9.0, *([1.0] * 8 + [3.0]) * count, 4.0]))
    shape, ignored = find_shape(rows)
    assert shape == Shape(head=tuple("Saxv"), body=tuple("xv"), tail=("F",))
    assert ignored == Ignored(again=frozenset("x"))


@pytest.mark.parametrize(("every", "epochs"), [(2, 8), (3, 9), (3, 10), (4, 10), (5, 12)])
def test_a_body_may_be_several_epochs_of_which_one_saves(every: int, epochs: int) -> None:
    said = ["t v s" if epoch % every == 0 else "t v" for epoch in range(1, epochs + 1)]
    shape, _ = find_shape([row(f"S a {' '.join(said)} F")] * 2)
    assert shape.body == (*("t", "v") * every, "s")
    assert shape.broken_off == 2 * (epochs % every)
