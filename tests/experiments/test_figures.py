"""Charts."""

from __future__ import annotations

import math

import pytest


@pytest.mark.parametrize(("span_s", "tells"), [(90.0, "%S"), (86400.0, "%d"), (math.inf, "%d")])
def test_marks_on_an_axis_of_times_differ(span_s: float, tells: str) -> None:
    figures = pytest.importorskip("lowtide.experiments.figures")
    axis = figures.time_axis("time", span_s=span_s).to_dict()
    assert tells in axis["axis"]["format"]
