"""`lowtide learn --utilisation` on the command line, and the meter that uses what it wrote."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from lowtide.formats import read_recordings
from lowtide.formats.recording_writer import write_recording
from lowtide.meters.power_model import UtilisationModel
from support.commands import run
from support.machines import linear, machine_runs, nothing


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    write_recording(machine_runs(4, linear, seconds=30.0), tmp_path / "mine")
    return tmp_path


def test_a_model_is_learned_and_measured_by(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ("-o", "cpu.json", "--card", "cpu.md", "--image", "cpu.png")
    answer = run(capsys, "learn", "--utilisation", "mine", *words)
    assert (answer.code, answer.err) == (0, "")
    for word in ("the mean power", "a small network", "chosen", "within ±", "written: cpu.json"):
        assert word in answer.out
    model = UtilisationModel.load(folder / "cpu.json")
    assert model.at({"cpu": 0.5}).power_w == pytest.approx(130.0, abs=3.0)
    assert "# Power from utilisation" in (folder / "cpu.md").read_text()
    assert (folder / "cpu.png").read_bytes().startswith(b"\x89PNG")
    before = (folder / "cpu.json").read_bytes()
    run(capsys, "learn", "--utilisation", "mine", "-o", "cpu.json", "--seed", "0")
    assert (folder / "cpu.json").read_bytes() == before

    measured = run(
        capsys,
        "measure",
        "--meter",
        "estimate:cpu.json",
        "--idle",
        "0.3",
        "-o",
        "run",
        "--",
        "true",
    )
    assert measured.code == 0, measured.err
    (recording,) = read_recordings("run")
    (seen,) = recording
    assert seen.power == "estimated"
    assert 55 < seen.power_w.min() <= seen.power_w.max() < 205
    # What the machine did is kept too: with a meter, this is what one learns from.
    share = seen.columns["machine.cpu_share"]
    assert ((share >= 0) & (share <= 1))[np.isfinite(share)].all()
    assert np.isfinite(share).any()
    assert (seen.columns["machine.memory_share"] > 0).all()
    refused = run(capsys, "learn", "--utilisation", "run")
    assert refused.code == 2
    assert "was itself estimated" in refused.err


def test_json_and_columns(capsys: pytest.CaptureFixture[str]) -> None:
    document = json.loads(run(capsys, "learn", "--utilisation", "mine", "--json").out)
    assert document["chosen"] in ("interpolation", "ridge")
    assert document["model"]["features"][0]["name"] == "cpu"
    assert document["tried"][0]["name"] == "mean"
    lines = run(capsys, "learn", "--utilisation", "mine", "-P", "--level", "0.5").out.splitlines()
    assert lines[0].startswith("rung|rmse_w|rmse_error_w|gain_w")
    assert len(lines) == 7
    assert sum("|yes|yes|" in line for line in lines) == 1


def test_noise_is_shown_and_refused(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_recording(machine_runs(3, nothing), folder / "noise")
    words = ("learn", "--utilisation", "noise", "-o", "no.json", "--card", "no.md")
    answer = run(capsys, *words)
    assert answer.code == 2
    assert "the mean power" in answer.out
    assert "these data do not support a model" in answer.err
    assert not (folder / "no.json").exists()
    assert "These data do not support a model" in (folder / "no.md").read_text()
    insisted = run(capsys, *words, "--rung", "ridge")
    assert insisted.code == 0
    assert UtilisationModel.load(folder / "no.json").about["rung"] == "ridge"


def test_use_is_joined_from_a_table(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    runs = machine_runs(3, linear, names=("queue",))
    write_recording(runs, folder / "bare")
    assert "--usage" in run(capsys, "learn", "--utilisation", "bare").err
    lines = ["time,load_percent"]
    for each in runs:
        pairs = zip(each.times, each.columns["queue"], strict=True)
        lines += [f"{time:.3f},{100 * share:.4f}" for time, share in pairs]
    (folder / "use.csv").write_text("\n".join(lines) + "\n")
    answer = run(
        capsys,
        *("learn", "--utilisation", "bare", "--usage", "use.csv"),
        *("--features", "cpu=load_percent/100", "--average", "0.5", "-o", "model.json"),
    )
    assert answer.code == 0, answer.err
    model = UtilisationModel.load(folder / "model.json")
    assert model.at({"cpu": 1.0}).power_w == pytest.approx(200.0, abs=4.0)
    assert model.average_s == 0.5


def test_a_table_is_entered(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "spec.csv").write_text("load,watts\nactive idle,60\n50%,150\n100%,200\n")
    words = ("learn", "--utilisation", "--table", "spec.csv")
    answer = run(capsys, *words, "-o", "spec.json", "--source", "a data sheet")
    assert answer.code == 0
    assert "From a data sheet: as stated there, not measured here" in answer.out
    model = UtilisationModel.load(folder / "spec.json")
    assert model.source == "a data sheet"
    assert model.at({"cpu": 0.25}).power_w == 105.0
    assert run(capsys, *words, "-P").out.splitlines()[1:] == ["0|60", "0.5|150", "1|200"]
    assert json.loads(run(capsys, *words, "--json").out)["source"] == "table spec.csv"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--utilisation",), "name the measured runs"),
        ((), "name the measured runs"),
        (("--utilisation", "mine", "--no-events"), "No such option: --no-events"),
        (("--utilisation", "mine", "--table", "x.csv"), "--table enters numbers"),
        (("--utilisation", "mine", "--source", "x"), "--source says where a --table"),
        (("--utilisation", "mine", "-o", "model.pkl"), "a utilisation model is a .json file"),
        (("--utilisation", "mine", "--card", "card.html"), "a model card is a .md file"),
        (("--utilisation", "mine", "--features", "gpu"), "no column 'machine.gpu_share'"),
        (("--utilisation", "mine", "--rung", "magic"), "unknown rung 'magic'"),
        (("--utilisation", "mine", "--level", "2"), "a level lies between 0 and 1"),
        (("--utilisation", "mine", "--average", "0"), "a time above 0 s"),
        (("--utilisation", "mine", "--usage", "none.csv"), "no such file: none.csv"),
        (("--utilisation", "--table", "none.csv"), "no such file: none.csv"),
    ],
)
def test_bad_input(
    words: tuple[str, ...], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    answer = run(capsys, "learn", *words)
    assert answer.code == 2
    assert message in answer.err
