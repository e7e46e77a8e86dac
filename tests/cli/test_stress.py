"""`lowtide stress plan` and `run`: what a person types, and what they see."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from lowtide.formats.recording_folder import read as read_recording
from lowtide.stress.plan import LoadPlan, make_plan
from lowtide.stress.run import END_MARK
from support.commands import run

pytestmark = pytest.mark.alone


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for name in ("LOWTIDE_JOB_ID", "SLURM_JOB_ID"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


def test_a_plan_is_shown_and_saved(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = (
        "stress",
        "plan",
        "--shape",
        "steps",
        "--seed",
        "3",
        "--cpu",
        "0-100",
        "--gpu",
        "10-90",
    )
    answer = run(capsys, *words, "-o", "plan.toml")
    assert answer.code == 0
    assert "steps, seed 3: 120 steps of 0.5 s, 60 s: cpu, gpu" in answer.out
    assert "10.0 %" in answer.out
    assert "lowtide stress run plan.toml" in answer.out
    first = (folder / "plan.toml").read_bytes()
    document = json.loads(run(capsys, *words, "-o", "plan.toml", "--json").out)
    assert (folder / "plan.toml").read_bytes() == first
    saved = LoadPlan.load(folder / "plan.toml")
    assert document["parts"]["gpu"]["levels"] == saved.of("gpu").tolist()
    (pair,) = document["correlations"]
    assert abs(pair["correlation"]) < 0.2
    assert "Not saved" in run(capsys, *words).out


def test_one_number_is_a_level_that_never_changes(capsys: pytest.CaptureFixture[str]) -> None:
    answer = run(capsys, "stress", "plan", "--cpu", "0 - 80%", "--memory", "40", "-P")
    assert [line.split("|")[:3] for line in answer.out.splitlines()[1:]] == [
        ["cpu", "0", "80"],
        ["memory", "40", "40"],
    ]
    assert answer.out.splitlines()[2].endswith("|")


def test_a_plan_may_be_for_a_larger_machine(capsys: pytest.CaptureFixture[str]) -> None:
    answer = run(capsys, "stress", "plan", "--cores", "9999")
    assert answer.code == 0
    assert "For another machine" in answer.out


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("plan", "--shape", "rampe"), "did you mean 'ramp'?"),
        (("plan", "--duration", "0.2s"), "shorter than its step of 0.5 s"),
        (("plan", "--duration", "soon"), "cannot read duration 'soon'"),
        (("plan", "--step", "50ms"), "cannot read duration"),
        (("plan", "--step", "0.05s"), "at least 0.1 s, not 0.05 s"),
        (("plan", "--cpu", "0-140"), "between 0 and 100 %, not from 0 to 140"),
        (("plan", "--cpu", "80-20"), "not from 80 to 20"),
        (("plan", "--cpu=-5-20"), "--cpu takes a lowest and a highest level"),
        (("plan", "--memory", "all"), "--memory takes a lowest and a highest level"),
        (("plan", "--cores", "0"), "at least 1 core"),
        (("plan", "--duration", "1s", "--cpu", "0-9", "--gpu", "0-9"), "too few for 2 parts"),
        (("plan", "-o", "plan.csv"), "a .toml file"),
        (("run", "none.toml"), "no such file"),
        (("run", "damaged.toml"), "that of cpu is 140.0"),
        (("run", "large.toml"), "the plan loads 9999 cores"),
        (("run", "gpu.toml"), "or leave it out, --without gpu"),
        (("run", "gpu.toml", "--without", "gpuu"), "did you mean 'gpu'?"),
        (("run", "gpu.toml", "--without", "gpu", "--job-id", "a b"), "letters, digits"),
        (("run", "disk.toml", "--folder", "nowhere"), "name another folder with --folder"),
    ],
)
def test_bad_input_is_answered_in_one_line(
    words: tuple[str, ...],
    says: str,
    folder: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("lowtide.stress.run.gpu_library", lambda: None)
    both = {"cpu": (0.0, 50.0), "gpu": (0.0, 50.0)}
    make_plan("latin", both, duration="4s").dump(folder / "gpu.toml")
    make_plan("latin", {"disk": (0.0, 50.0)}, duration="4s").dump(folder / "disk.toml")
    plan = make_plan("latin", {"cpu": (0.0, 100.0)}, duration="2s", cores=9999)
    plan.dump(folder / "large.toml")
    text = make_plan("latin", {"cpu": (0.0, 100.0)}, duration="2s").toml()
    (folder / "damaged.toml").write_text(text.replace("[100.0]", "[140.0]"))
    answer = run(capsys, "stress", *words)
    assert answer.code == 2
    assert says in answer.err
    assert len(answer.err.splitlines()) == 1
    assert answer.err.startswith("lowtide: ")


def test_a_run_says_what_was_reached(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make_plan(
        "random", {"cpu": (0.0, 40.0), "gpu": (0.0, 40.0)}, duration="0.8s", step="0.1s", cores=1
    ).dump(folder / "plan.toml")
    words = ("stress", "run", "plan.toml", "--without", "gpu")
    answer = run(capsys, *words, "--job-id", "warm-up")
    assert (answer.code, answer.err) == (0, "")
    assert answer.out.startswith("job warm-up: 8 steps of 0.1 s, 0.8 s: cpu\n")
    assert "ms late in the median" in answer.out
    document = json.loads(run(capsys, *words, "--json").out)
    assert document["job_id"].startswith("stress-")
    assert list(document["parts"]) == ["cpu"]
    assert len(document["late_s"]) == 8


def lowtide(*words: str) -> list[str]:
    return [sys.executable, "-m", "lowtide", *words]


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_run_says_so(how: signal.Signals, folder: Path) -> None:
    make_plan("random", {"cpu": (0.0, 20.0)}, duration="60s", cores=1).dump(folder / "plan.toml")
    (folder / "events.csv").write_text("")
    with subprocess.Popen(
        lowtide("stress", "run", "plan.toml"),
        env={**os.environ, "LOWTIDE_EVENTS": str(folder / "events.csv")},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            until = time.monotonic() + 20
            while not (folder / "events.csv").read_text():
                assert time.monotonic() < until
                time.sleep(0.05)
            process.send_signal(how)
            out, err = process.communicate(timeout=10)
        finally:
            process.kill()  # No test waits for a minute of load.
    assert process.returncode == 130
    # One step, or a few where the machine is busy.
    assert re.fullmatch(r"lowtide: interrupted in step \d+ of 120: the load is gone\n", err)
    assert out.startswith("job ")
    assert (folder / "events.csv").read_text().splitlines()[-1].split(",")[2] == END_MARK


def test_below_measure_every_step_is_labelled(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plan = make_plan("latin", {"cpu": (0.0, 100.0)}, duration="1.5s", step="0.3s", cores=1)
    plan.dump(folder / "plan.toml")
    answer = run(
        capsys,
        *("measure", "--meter", "estimate", "--idle", "0.1", "--interval", "0.05", "-o", "loaded"),
        *("--", *lowtide("stress", "run", "plan.toml")),
    )
    assert answer.code == 0
    (measured,) = read_recording(folder / "loaded")
    said = [event.label for event in measured.events]
    assert said == [*(plan.label(number) for number in range(5)), END_MARK]
