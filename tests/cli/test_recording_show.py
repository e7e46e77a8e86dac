"""`lowtide recording show`, and what `lowtide measure` tells beside the energy."""

from __future__ import annotations

import json
import time
from importlib import import_module as module
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest

from lowtide.formats import read_recordings, write_signal
from lowtide.formats.recording_writer import write_recording
from lowtide.page.recordings import recording_chart
from lowtide.recording import Event, Recording, Run, Unmeasured
from lowtide.signal import Signal
from support.commands import run

pytestmark = pytest.mark.alone
NAMES = ("gpu_util", "cpu_util")


@pytest.fixture
def kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two runs, of which one was not measured for a while."""
    monkeypatch.chdir(tmp_path)
    times = np.concatenate((np.arange(0.0, 20.0, 0.1), np.arange(30.0, 50.0, 0.1)))
    power_w = np.where(times % 10 < 5, 300.0, 100.0)
    columns = {"machine.cpu_share": np.where(times % 10 < 5, 0.9, 0.1)}
    runs = [
        Run(
            id=name,
            times=times,
            power_w=power_w,
            start=2.0,
            end=48.0,
            kind="full",
            columns=columns,
            events=[Event(time=5.0 * turn, label=f"epoch_{turn}") for turn in range(1, 9)],
        )
        for name in ("one", "two")
    ]
    write_recording(Recording(runs=runs), tmp_path / "kept")
    return tmp_path / "kept"


def test_it_tells_runs_marks_and_lost_time(kept, capsys):
    answer = run(capsys, "recording", "show", "kept", "--json")
    assert (answer.code, answer.err) == (0, "")
    document = json.loads(answer.out)
    assert [each["run"] for each in document["runs"]] == ["one", "two"]
    assert len(document["marks"]) == 16
    (lost, _) = document["lost"]
    assert (lost["from_s"], lost["to_s"]) == pytest.approx((18.0, 28.0), abs=0.2)
    said = run(capsys, "recording", "show", "kept", "--run", "two", "--image", "kept.png").out
    assert "one" not in said.split()
    assert "two: not measured from 18.0 to 28.0 s" in said
    assert "lost" in said
    # What was drawn meanwhile nobody knows: it is that much at least.
    assert ">7.2" in said and "> at least" in said
    assert Path("kept.png").read_bytes().startswith(b"\x89PNG")
    lines = run(capsys, "recording", "show", "kept", "-P").out.splitlines()
    assert lines[0].startswith("run|kind|duration_s|energy_j")
    assert len(lines) == 3


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("nowhere",), "no such file or folder: nowhere"),
        (("kept", "--run", "three"), "unknown run 'three'"),
        (("kept", "--image", "kept.pdf"), "a figure is a .png or .svg file"),
        (("kept", "--grid", "moon"), "unknown grid 'moon'"),
        (("kept", "--grid", "windy", "--signal", "x.csv"), "one grid"),
    ],
)
def test_what_cannot_be_shown_is_refused(kept, capsys, words, message):
    answer = run(capsys, "recording", "show", *words)
    assert (answer.code, answer.out) == (2, "")
    assert message in answer.err


def test_what_a_recording_emitted_goes_by_the_time_when_it_ran(kept, capsys):
    write_signal(Signal.from_values([100.0, 500.0], start=0, step_s=25.0, zone="XX"), "then.csv")
    answer = run(capsys, "recording", "show", "kept", "--signal", "then.csv", "--json")
    first = json.loads(answer.out)["runs"][0]
    times = np.concatenate((np.arange(2.0, 20.0, 0.1), np.arange(30.0, 48.0, 0.1)))
    drawn = np.where(times % 10 < 5, 300.0, 100.0) * 0.1
    plain = float((drawn * np.where(times < 25, 100.0, 500.0)).sum()) / 3.6e6
    assert first["carbon_g"] == pytest.approx(plain, rel=0.01)
    said = run(capsys, "recording", "show", "kept", "--signal", "then.csv").out
    assert said.count(">") == 2 * 2 + 1
    today = run(capsys, "recording", "show", "kept", "--grid", "gb:99", "--json")
    assert today.code == 0
    assert json.loads(today.out)["runs"][0]["carbon_g"] is None


def test_what_a_program_drew_that_was_not_always_measured_is_at_least_that(kept):
    """What `lowtide run` reckons of starts of which some time, or all, was not measured."""
    whole = Run(id="whole", times=np.arange(60.0, 90.0), power_w=np.full(30, 50.0), kind="full")
    (gaps, _) = read_recordings(kept)[0].runs
    never = Unmeasured(id="never", kind="full", notes=("no meter",))
    signal = Signal.from_values([3600.0] * 4, start=0, step_s="1h")
    for runs, unmeasured, known, missing_s in (
        ((whole,), (), whole.energy_j() / 1000, 0.0),
        ((whole, gaps), (), (whole.energy_j() + gaps.energy_j()) / 1000, gaps.missing_s),
        ((whole,), (never,), None, None),
    ):
        recorder = Mock()
        recorder.writer.recording.return_value = Recording(runs=runs, unmeasured=unmeasured)
        job = Mock(profile=None, reckoning=None, missing_s=None, deadline=None)
        module("lowtide.cli.run")._reckon(job, Mock(), recorder, Mock(forecast=lambda _: signal), 0)
        assert job.reckoning.measured == (known and pytest.approx(known))
        assert job.missing_s == (missing_s and pytest.approx(missing_s))


def test_measure_warms_up_and_tells_emissions(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    signal = Signal.from_values([250.0] * 48, start=time.time() // 3600 * 3600, step_s="1h")
    write_signal(signal, "now.csv")
    program = ("sh", "-c", "echo run >> runs.txt; sleep 0.4")
    words = ("--idle", "0.2", "--warmup", "2", "-o", "kept", "--signal", "now.csv", "--json")
    answer = run(capsys, "measure", *words, "--", *program)
    assert answer.code == 0
    (row,) = json.loads(answer.out)["runs"]
    assert Path("runs.txt").read_text().splitlines() == ["run"] * 3
    assert row["carbon_g"] == pytest.approx(250.0 * row["energy_j"] / 3.6e6)
    assert (row["cost"], row["synthetic"]) == (None, False)
    refused = run(capsys, "measure", "--grid", "moon", "-o", "other", "--", *program)
    assert refused.code == 2
    assert len(Path("runs.txt").read_text().splitlines()) == 3


def test_use_that_others_recorded_is_drawn_and_words_leave_room(tmp_path: Path) -> None:
    """Shares and percent of another's table, whatever they are called; no clock, no constant."""
    times = np.arange(0.0, 20.0, 0.1)
    busy = np.where(times % 10 < 5, 1.0, 0.0)
    columns = {"gpu_util": 90 * busy, "cpu_util": 0.4 * busy, "sm_clock_mhz": 345 + 1600 * busy}
    words = "gemm_of_some_size_that_is_written_at_length"
    measured = Run(
        id="a",
        times=times,
        power_w=100 + 500 * busy,
        columns=columns,
        events=[Event(time=5.0, label=words)],
    )
    document = recording_chart(Recording(runs=(measured,))).to_dict()
    (drawn,) = document["vconcat"]
    power, use = drawn["vconcat"]
    data = document["datasets"][use["data"]["name"]]
    tops = {name: max(row["value"] for row in data if row["what"] == name) for name in NAMES}
    assert tops == pytest.approx({"gpu_util": 90.0, "cpu_util": 40.0})
    assert {row["what"] for row in data} == set(NAMES)
    line, *_, said = power["layer"]
    assert line["encoding"]["y"]["scale"]["domain"][1] > 1000
    (row,) = document["datasets"][said["data"]["name"]]
    assert row["label"] == words
    assert row["written"].startswith("gemm") and row["written"].endswith("length")
    assert len(row["written"]) < 20
