"""`--sure`, and between when a job is done: profiles that say how much runs differ."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from lowtide.errors import InvalidProfile
from lowtide.profile import Phase, PowerProfile, Spread
from support.commands import run

GRID = ("--arrival", "2024-07-01T00:00Z", "--deadline", "+10h", "--grid", "windy", "--seed", "4")


@pytest.fixture
def learned(tmp_path: Path) -> Path:
    path = tmp_path / "learned.toml"
    PowerProfile(
        work=[Phase(name="train", duration_s="2h", power_w=500)],
        spread=Spread(level=0.9, runs=5, duration=(0.9, 1.5), energy=(0.95, 1.1)),
    ).dump(path)
    return path


@pytest.mark.parametrize("suffix", ["toml", "json"])
def test_a_spread_survives_the_file(tmp_path: Path, learned: Path, suffix: str) -> None:
    profile = PowerProfile.load(learned)
    profile.dump(tmp_path / f"again.{suffix}")
    assert PowerProfile.load(tmp_path / f"again.{suffix}") == profile
    assert profile.spread is not None
    assert profile.spread.late_s(profile.run_s) == 3600


@pytest.mark.parametrize("verb", ["when", "plan"])
def test_when_it_is_done_is_told(
    capsys: pytest.CaptureFixture[str], learned: Path, verb: str
) -> None:
    said = run(capsys, verb, "--profile", str(learned), *GRID)
    assert said.code == 0
    (line,) = [line for line in said.out.splitlines() if line.startswith("Done between")]
    assert line.endswith("(90 %).")
    # Two hours as expected: twelve minutes less to an hour more.
    times = [word for word in line.split() if ":" in word]
    minutes = [60 * int(word[:2]) + int(word[3:5]) for word in times]
    assert (minutes[1] - minutes[0]) % (24 * 60) == 72


@pytest.mark.parametrize("verb", ["when", "plan"])
def test_a_deadline_is_kept_at_the_upper_end(
    capsys: pytest.CaptureFixture[str], learned: Path, verb: str
) -> None:
    ends = []
    for more in ((), ("--sure",)):
        said = run(capsys, verb, "--profile", str(learned), *GRID, *more, "--json")
        assert said.code == 0
        document = json.loads(said.out)
        ends.append(document.get("deadline") or document["job"]["deadline"])
    assert ends[0].startswith("2024-07-01T10:00:00")
    assert ends[1].startswith("2024-07-01T09:00:00")


def test_sure_needs_a_spread(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = tmp_path / "plain.toml"
    PowerProfile.constant(500, "2h").dump(path)
    said = run(capsys, "when", "--profile", str(path), *GRID, "--sure")
    assert said.code == 2
    assert "--sure needs a profile that says how much runs differ" in said.err


@pytest.mark.parametrize(
    ("spread", "said"),
    [
        ({"level": 0.9}, "a spread lacks duration, energy, runs"),
        ({"level": 2, "runs": 3, "duration": [1, 1], "energy": [1, 1]}, "between 0 and 1"),
        ({"level": 0.9, "runs": 3, "duration": [1.2, 1.4], "energy": [1, 1]}, "duration of a"),
        ({"level": 0.9, "runs": 3, "duration": [0.9], "energy": [1, 1]}, "duration of a spread"),
        ({"level": 0.9, "runs": "3", "duration": [1, 1], "energy": [1, 1]}, "whole number of runs"),
        ({"level": 0.9, "runs": 3, "duration": 1, "energy": [1, 1]}, "two numbers each"),
        ({"levl": 0.9}, "did you mean 'level'"),
        (0.9, "spread is a table"),
    ],
)
def test_a_spread_that_is_none_is_refused(spread: object, said: str) -> None:
    work = [{"name": "a", "duration_s": 1, "power_w": 1}]
    with pytest.raises(InvalidProfile, match=said):
        PowerProfile.from_dict({"work": work, "spread": spread})
