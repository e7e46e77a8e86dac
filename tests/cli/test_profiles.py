"""The library on the command line: learning it, looking at it, and planning by a job's name."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from lowtide.profile import PowerProfile
from lowtide.store import Store
from support.commands import run
from support.production import START, Program, jobs_of, keep

TRAIN = Program(
    name="train",
    startup=(600.0, 100.0),
    epoch=((1200.0, 400.0), (600.0, 200.0)),
    end=(600.0, 80.0),
    epochs=4,
)
PLAN = ("--deadline", "+24h", "--grid", "windy", "-P")


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Five runs of one program and two of another, one of which failed."""
    path = tmp_path_factory.mktemp("watched") / "store.sqlite"
    other = replace(TRAIN, name="prep", user="bob", epochs=2, epoch=((600.0, 150.0),))
    jobs = jobs_of(TRAIN, 5, naming=lambda number: f"train_{number}")
    jobs += jobs_of(other, 1, first=50, start=START + 900)
    jobs += jobs_of(other, 1, first=51, start=START + 9000, facts={"state": "failed"})
    with Store.open(path) as kept:
        keep(kept, jobs, step_s=60.0)
    return path


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LOWTIDE_PROFILES", str(tmp_path / "library"))
    return tmp_path


def test_a_store_becomes_a_library_that_plans(
    store: Path, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    answer = run(capsys, "learn", "--from-store", str(store), "--json")
    assert (answer.code, answer.err) == (0, "")
    said = {each["profile"]: each for each in json.loads(answer.out)["programs"]}
    assert set(said) == {"train", "prep"}
    assert said["train"]["used"] == ["1", "2", "3", "4", "5"]
    assert [each["why"] for each in said["prep"]["left_out"]] == ["failed"]
    assert said["prep"]["energy_j"]["low"] is None
    shown = run(capsys, "learn", "--from-store", "--store", str(store))
    assert "unchanged" in shown.out and "1 failed" in shown.out
    assert "prep: 1 run only" in shown.out
    # By the name in the library and by that of a job to come; as a file it reads as any profile.
    plans = [run(capsys, "plan", "--profile", name, *PLAN) for name in ("train", "train_99")]
    assert plans[0].code == plans[1].code == 0
    energy = float(plans[0].out.splitlines()[1].split("|")[5])
    assert energy == pytest.approx(TRAIN.energy_j, rel=0.02)
    profile = PowerProfile.load(folder / "library" / "train.toml")
    assert profile.energy_j == pytest.approx(energy, rel=1e-6)
    longer = run(capsys, "plan", "--profile", "train", "--epochs", "40", *PLAN)
    much = float(longer.out.splitlines()[1].split("|")[5])
    assert much == pytest.approx(replace(TRAIN, epochs=40).energy_j, rel=0.02)
    when = run(capsys, "when", "--profile", "train", *PLAN)
    assert when.code == 0


def test_choosing_by_name_user_and_time(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def learned(*words: str) -> set[str]:
        answer = run(capsys, "learn", "--from-store", str(store), "--json", *words)
        assert answer.code == 0
        return {each["name"] for each in json.loads(answer.out)["programs"]}

    assert learned("--name", "tr*") == {"train_#"}
    assert learned("--user", "bob") == {"prep"}
    answer = run(capsys, "learn", "--from-store", str(store), "--start", "now-1hour")
    assert answer.code == 2 and "no such jobs" in answer.err


def test_what_was_before_can_be_compared(
    store: Path, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for words in (("-E", "2024-07-04T04:00Z"), ()):
        assert run(capsys, "learn", "--from-store", str(store), *words).code == 0
    answer = run(capsys, "profiles", "diff", "train")
    assert (answer.code, answer.err) == (0, "")
    assert "before" in answer.out and "now" in answer.out
    assert run(capsys, "profiles", "show", "train_7").code == 0
    listed = run(capsys, "profiles", "list", "-P").out.splitlines()
    assert [line.split("|")[0] for line in listed] == ["profile", "prep", "train"]
    alone = run(capsys, "profiles", "diff", "prep")
    assert alone.code == 2 and "learned once" in alone.err


def test_what_a_later_start_draws_is_shown(
    store: Path, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(capsys, "learn", "--from-store", str(store)).code == 0
    path = folder / "library" / "train.toml"
    again = 'restart = [ { name = "reload", duration_s = 90, power_w = 70 } ]\n'
    path.write_text(again + path.read_text())
    for words in (("show", "train"), ("diff", "train", "h200")):
        rows = json.loads(run(capsys, "profiles", *words, "--json").out)["phases"]
        assert [row["phase"] for row in rows if row["part"] == "restart"] == ["reload"]


def test_show_says_whether_a_job_was_as_expected(
    store: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(capsys, "learn", "--from-store", str(store)).code == 0
    told = json.loads(run(capsys, "show", "3", "--store", str(store), "--json").out)["expected"]
    assert told["profile"] == "train"
    assert told["energy_j"]["is_as_expected"] is True
    said = run(capsys, "show", "3", "--store", str(store)).out
    assert "By profile train of 5 runs: drew" in said and "as expected" in said
    single = run(capsys, "show", "51", "--store", str(store)).out
    assert "by a single run" in single


def test_a_damaged_file_is_named_and_the_others_are_there(
    store: Path, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(capsys, "learn", "--from-store", str(store)).code == 0
    good = (folder / "library" / "train.toml").read_text()
    for name, text in {
        "empty": "",
        "cut": good[: len(good) // 2],
        "plain": good[: good.index("[program]")],
        "words": good.replace("runs = 5", 'runs = "many"'),
        "noise": "\0\1\2",
    }.items():
        (folder / "library" / f"{name}.toml").write_text(text)
        answer = run(capsys, "profiles", "list", "-P")
        assert answer.code == 0
        assert f"{name}.toml" in answer.err
        assert len(answer.out.splitlines()) == 3
        shown = run(capsys, "profiles", "show", name)
        assert shown.code == 2 and f"{name}.toml" in shown.err
        (folder / "library" / f"{name}.toml").unlink()


@pytest.mark.parametrize(
    ("words", "rule"),
    [
        (("learn", "--from-store", "--from-recordings"), "one place at a time"),
        (("learn", "--from-store", "a", "b"), "one store"),
        (("learn", "--from-recordings"), "name the folders"),
        (("learn", "--from-recordings", "x", "--name", "y"), "--name chooses among jobs"),
        (("learn", "--from-recordings", "nowhere"), "no such file or folder"),
        (("learn", "h200", "--name", "y"), "No such option: --name"),
        (("learn", "--from-store", "-o", "p.toml"), "No such option: -o"),
        (("learn", "--from-prometheus", "http://127.0.0.1:9"), "cannot be reached"),
        (("learn", "--from-prometheus", "localhost"), "https://"),
        (("profiles", "show", "nothing"), "lowtide profiles learn"),
        (("plan", "--profile", "nothing", *PLAN), "lowtide profiles learn"),
        (("plan", "-t", "60", "--power", "3", "--epochs", "3", *PLAN), "give --profile"),
        (("plan", "--profile", "h200", "--epochs", "0", *PLAN), "epochs"),
    ],
)
def test_what_cannot_be_is_refused_with_the_rule(
    words: tuple[str, ...], rule: str, capsys: pytest.CaptureFixture[str]
) -> None:
    answer = run(capsys, *words)
    assert answer.code == 2
    assert rule in answer.err
    assert "Traceback" not in answer.err


def test_recordings_become_programs_with_what_stopping_costs(
    capsys: pytest.CaptureFixture[str],
) -> None:
    answer = run(capsys, "learn", "--from-recordings", "h200", "--json")
    assert answer.code == 0
    (found,) = json.loads(answer.out)["programs"]
    assert (found["profile"], found["runs"]) == ("h200", 3)
    assert found["energy_j"]["value"] == pytest.approx(25_670, rel=0.02)
