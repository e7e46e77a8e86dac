"""Curves in the terminal."""

from __future__ import annotations

import numpy as np

from lowtide.cli.chart import draw_curve


def test_what_is_unknown_is_a_dot_and_not_nothing() -> None:
    values = np.array([0.0, 8.0, np.nan, 4.0])
    lines = draw_curve(values, 0.0, 7200.0, "W", height=1).splitlines()
    assert lines[0] == "       0  █·▄"
    assert "····" in draw_curve(np.full(4, np.nan), 0.0, 7200.0, "W", height=1)


def test_short_times_have_minutes_below() -> None:
    axis = draw_curve(np.ones(60), 0.0, 900.0, "W").splitlines()[-1]
    assert [word for word in axis.split("╵")[1:] if word.strip()] != []
    assert "00:05" in axis
