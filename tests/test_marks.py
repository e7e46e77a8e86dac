"""Marks: one clock with the recorder, and no empty ones."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from lowtide import marks
from lowtide.errors import InvalidInput


@pytest.fixture
def events(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "events.csv"
    path.write_text("time,run,event,checkpoint\n")
    monkeypatch.setenv(marks.EVENTS_VARIABLE, str(path))
    monkeypatch.setenv(marks.RUN_VARIABLE, "full_0")
    return path


def marked(events: Path) -> float:
    marks.mark("a")
    return float(events.read_text().splitlines()[-1].partition(",")[0])


def test_marks_go_by_the_recorders_clock(events: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert marked(events) == pytest.approx(time.time(), abs=1)
    # The machine's clock was set by an hour after the recorder had begun.
    offset_s = time.time() - time.monotonic() - 3600
    monkeypatch.setenv(marks.CLOCK_VARIABLE, marks.clock_words(offset_s))
    assert marked(events) == pytest.approx(time.time() - 3600, abs=1)


def test_the_steady_clock_of_another_machine_tells_nothing(
    events: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(marks.CLOCK_VARIABLE, "12345.0 another-boot")
    assert marked(events) == pytest.approx(time.time(), abs=1)
    monkeypatch.setenv(marks.CLOCK_VARIABLE, marks.clock_words(0.0).replace("0.0", "soon"))
    assert marked(events) == pytest.approx(time.time(), abs=1)


@pytest.mark.parametrize("label", ["", "  ", "\n"])
def test_a_mark_says_something(events: Path, label: str) -> None:
    with pytest.raises(InvalidInput, match="a mark says what begins, such as epoch_1"):
        marks.mark(label)
    assert len(events.read_text().splitlines()) == 1


def test_a_label_that_is_no_text_fails_no_program(events: Path) -> None:
    assert marks.mark("caf\udce9")
    assert events.read_text().endswith("caf?,0\n")
