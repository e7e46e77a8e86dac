"""What programs said: labels, checkpoints, lags."""

from __future__ import annotations

import numpy as np
import pytest

from lowtide.learning.lag import find_lag
from lowtide.learning.marks import common_marks, plain_label, says_checkpoint
from lowtide.learning.series import RunSeries
from lowtide.recording import Event, Run
from support.recordings import make_run, make_runs


@pytest.mark.parametrize(
    ("label", "plain"),
    [
        ("epoch_12_train", "epoch_train"),
        ("Epoch 3.0. Saved. Steps: 36", "Epoch. Saved. Steps"),
        ("step 5: loss=0.31", "step: loss"),
        ("a/b", "a-b"),
        ("42", "42"),
        ("", "start"),
    ],
)
def test_labels_lose_their_numbers(label: str, plain: str) -> None:
    assert plain_label(label) == plain


@pytest.mark.parametrize(
    ("label", "is_one"),
    [
        ("epoch_1_saved", True),
        ("Epoch 1.0. Saved. Steps: 12", True),
        ("checkpoint written", True),
        ("epoch_1_save", False),
        ("Evaluate", False),
        ("unsaved changes", False),
        ("checkpoint", False),
    ],
)
def test_checkpoints_are_said_not_guessed(label: str, is_one: bool) -> None:
    assert says_checkpoint(Event(time=0, label=label)) is is_one
    assert says_checkpoint(Event(time=0, label=label, checkpoint=True))


def run(name: str, said: list[tuple[float, str]]) -> RunSeries:
    times = np.arange(0, 10, 0.1)
    events = [Event(time=time, label=label) for time, label in said]
    return RunSeries.of(
        Run(id=name, times=times, power_w=np.ones(100), start=0, end=10, events=events)
    )


def test_marks_made_at_once_are_one_edge() -> None:
    said = [
        (0.0, "go"),
        (2.0, "a_saved"),
        (2.001, "b"),
        (5.0, "c"),
        (9.99, "d_saved"),
        (10.0, "exit"),
    ]
    marks, used, notes = common_marks([run("x", said), run("y", said)], 0.1)
    assert marks is not None
    assert (used, notes) == ([0, 1], [])
    assert marks.labels == ("go", "b", "c")
    assert marks.said == (("a_saved", "b"), ("c",))
    assert marks.checkpoints == (True, False, True)
    np.testing.assert_allclose(marks.edges_s[0], [0, 2.001, 5, 10])


def test_a_run_with_an_extra_mark_is_used_and_one_that_lacks_some_is_not() -> None:
    usual = [(2.0, "a"), (5.0, "b")]
    series = [
        run("x", usual),
        run("y", [(2.0, "a"), (3.0, "hiccup"), (5.5, "b")]),
        run("z", [(2.0, "a")]),
        run("w", usual),
    ]
    marks, used, notes = common_marks(series, 0.1)
    assert marks is not None
    assert used == [0, 1, 3]
    assert "run z lacks marks" in notes[0]
    np.testing.assert_allclose(marks.edges_s[1], [0, 2, 5.5, 10])
    assert marks.stretches_in(series[2]) is None


def test_labels_that_tell_losses_are_compared_without_numbers() -> None:
    series = [run(str(i), [(2.0, f"loss {i / 7}"), (5.0, f"loss {i / 9}")]) for i in range(1, 5)]
    marks, used, _ = common_marks(series, 0.1)
    assert marks is not None
    assert used == [0, 1, 2, 3]
    assert marks.names == ("start", "loss", "loss")


def test_nothing_said() -> None:
    marks, used, notes = common_marks([run("x", []), run("y", [])], 0.1)
    assert (marks, used, notes) == (None, [0, 1], [])


@pytest.mark.parametrize("lag_s", [0.0, 0.35, 0.8, -0.2])
def test_the_lag_of_the_meter_is_found(lag_s: float) -> None:
    series = [RunSeries.of(each) for each in make_runs(3, lag_s=lag_s)]
    marks, _, _ = common_marks(series, 0.1)
    assert marks is not None
    assert find_lag(series, marks, 0.1) == pytest.approx(lag_s, abs=0.051)


def test_a_lag_never_turns_a_stretch_around() -> None:
    short = make_run(
        "a", [(5.0, 60.0), (0.3, 400.0), (5.0, 60.0)], labels=("a", "b", "c"), jitter=0
    )
    marks, _, _ = common_marks([RunSeries.of(short)], 0.1)
    assert marks is not None
    lag_s = find_lag([RunSeries.of(short)], marks, 0.1)
    begin_s, *inner_s, end_s = marks.edges_s[0]
    assert (np.diff([begin_s, *np.add(inner_s, lag_s), end_s]) > 0).all()
