"""`lowtide learn` on the command line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from lowtide.formats.recording_writer import write_recording
from lowtide.profile import PowerProfile
from support.commands import run
from support.recordings import make_runs


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    write_recording(make_runs(3), tmp_path / "mine")
    return tmp_path


def test_a_profile_is_learned_and_checked(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    answer = run(capsys, "learn", "mine", "-o", "mine.toml", "--image", "mine.png")
    assert (answer.code, answer.err) == (0, "")
    for word in ("epoch_train", "checkpoint", "at absolute time", "averages over 10 s", "aligned"):
        assert word in answer.out
    assert "written: mine.toml" in answer.out
    profile = PowerProfile.load(folder / "mine.toml")
    assert len(profile.checkpoints_s) == 3
    assert (folder / "mine.png").read_bytes().startswith(b"\x89PNG")
    checked = run(capsys, "learn", "--check", "mine.toml", "mine")
    assert "3 uninterrupted runs: energy off by" in checked.out
    document = json.loads(run(capsys, "learn", "--check", "mine.toml", "mine", "--json").out)
    assert all(abs(each["error"]) < 0.1 for each in document["checks"])
    assert run(capsys, "learn", "--check", "mine.toml", "mine", "-P").out.count("\n") == 4


def test_what_was_an_option_is_a_verb_with_the_same_answer(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(capsys, "learn", "mine", "-o", "mine.toml").code == 0
    for verb, option, code, word in (
        ("learn check mine.toml mine", "learn mine --check mine.toml", 0, '"predicted_j"'),
        ("learn sizes mine --by size", "learn mine --by size", 2, "write mine@size=2"),
        ("model mine", "learn mine --utilisation", 2, "--features"),
        (
            "profiles learn --from-recordings mine --library one",
            "learn --from-recordings mine --library two",
            0,
            '"programs"',
        ),
    ):
        new, old = (run(capsys, *words.split(), "--json") for words in (verb, option))
        assert (new.code, new.err, new.out.replace('"one"', '"two"')) == (
            old.code,
            old.err,
            old.out,
        )
        assert new.code == code
        assert word in (new.err if code else new.out)
        assert not (new.out if code else new.err)
    one, two = (sorted(each.name for each in (folder / name).iterdir()) for name in ("one", "two"))
    assert one == two != []


def test_json_has_profile_and_validation(capsys: pytest.CaptureFixture[str]) -> None:
    document = json.loads(run(capsys, "learn", "mine", "--no-events", "--json").out)
    assert document["by"] == "power"
    assert document["validation"]["views"][0]["rmse_w"]["value"] > 0
    assert PowerProfile.from_dict(document["profile"]).work_s > 0


def test_the_sample_is_learned_in_a_clean_clone(capsys: pytest.CaptureFixture[str]) -> None:
    answer = run(capsys, "learn", "h200")
    assert answer.code == 0
    assert "one stop with its resumption: energy off by -2.0 %" in answer.out


def test_a_single_run_says_that_it_is_not_validated(capsys: pytest.CaptureFixture[str]) -> None:
    answer = run(capsys, "learn", "h200-sweep")
    assert answer.code == 0
    assert "A single run cannot be validated" in answer.out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("nowhere",), "no such file or folder: nowhere"),
        (("mine", "--baseline", "gone"), "unknown baseline 'gone'"),
        (("mine", "--check", "mine.toml", "--events"), "No such option: --events"),
        (("mine", "--features", "cpu"), "--features belongs to --machine"),
        (("mine", "--check", "none.toml"), "no such file: none.toml"),
        (("h200", "--check", "h200", "--baseline", "x"), "unknown baseline 'x'"),
        (("mine", "-o", "profile.yaml"), "a profile is a .toml or .json file"),
        (("mine", "--image", "figure.gif"), "a figure is a .png or .svg file"),
    ],
)
def test_bad_input(
    words: tuple[str, ...], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    answer = run(capsys, "learn", *words)
    assert answer.code == 2
    assert message in answer.err
