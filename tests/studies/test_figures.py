"""Charts."""

from __future__ import annotations

import math
import re
from pathlib import Path

import pytest

from support.commands import run


@pytest.mark.parametrize(("span_s", "tells"), [(90.0, "%S"), (86400.0, "%d"), (math.inf, "%d")])
def test_marks_on_an_axis_of_times_differ(span_s: float, tells: str) -> None:
    figures = pytest.importorskip("lowtide.page.looks")
    axis = figures.time_axis("time", span_s=span_s).to_dict()
    assert tells in axis["axis"]["format"]


@pytest.mark.parametrize(
    ("options", "said"), [([], "CO2e, % of run_now"), (["--power", "100"], "CO2e, g")]
)
def test_an_axis_is_titled_once(
    options: list[str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    image = tmp_path / "least.svg"
    job = ["-t", "2:00:00", "--deadline", "+12h", "--grid", "windy"]
    answer = run(capsys, "when", *job, *options, "--tradeoff", "--image", str(image))
    assert answer.code == 0, answer.err
    titles = re.findall(r">([^<>]+)</text>", image.read_text())
    assert titles.count(said) == 1
    assert any(title.startswith("Least CO2e of the job, by when it is done") for title in titles)
