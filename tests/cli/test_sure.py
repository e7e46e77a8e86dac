"""`--sure`, and between when a job is done: profiles that say how much runs differ."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from lowtide.errors import InvalidProfile
from lowtide.job import Job
from lowtide.profile import Phase, PowerProfile, Spread
from lowtide.schedule import Schedule, Stretch
from lowtide.units import parse_time
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
    assert line.endswith(", with 0.95 kWh to 1.1 kWh (90 %).")
    times = [word for word in line.split() if ":" in word]
    minutes = [60 * int(word[:2]) + int(word[3:5]) for word in times]
    assert (minutes[1] - minutes[0]) % (24 * 60) == 72


@pytest.mark.parametrize("verb", ["when", "plan"])
def test_programs_are_told_it_too(
    capsys: pytest.CaptureFixture[str], learned: Path, verb: str
) -> None:
    said = run(capsys, verb, "--profile", str(learned), *GRID, "--json")
    document = json.loads(said.out)
    each = document["best"] if verb == "when" else document["plans"][-1]
    end = parse_time(each["end"])
    assert parse_time(each["done_low"]) == pytest.approx(end - 720, abs=1)
    assert parse_time(each["done_high"]) == pytest.approx(end + 3600, abs=1)
    assert (each["energy_low"], each["energy_high"]) == pytest.approx((0.95 * 3.6e6, 1.1 * 3.6e6))
    said = run(capsys, verb, "--profile", str(learned), *GRID, "-P")
    head, *_, last = (line.split("|") for line in said.out.splitlines())
    row = dict(zip(head, last, strict=True))
    assert row["done_high"] == each["done_high"]
    assert float(row["energy_low"]) == pytest.approx(each["energy_low"])
    # Of a job whose watts nobody knows, no joules are told; of one whose runs are not known, none.
    said = run(capsys, "plan", "-t", "2:00:00", "--power", "500", *GRID, "--json")
    plans = json.loads(said.out)["plans"]
    assert all(each["energy_low"] is None and each["done_high"] is None for each in plans)


def replayed(schedule: Schedule, share: float) -> float:
    """Return when a job is done that does everything so many times as slowly, step by step."""
    step_s, work_s = 1.0, sum(each.duration_s for each in schedule.spans if each.kind == "work")
    left_s = share * work_s
    for number, spans in enumerate(schedule.runs):
        now = spans[0].start
        setup_s = share * sum(
            each.duration_s for each in spans if each.kind in ("startup", "restart")
        )
        stopped = max(each.end for each in spans if each.kind != "stop")
        while number == schedule.starts - 1 or now < stopped - 1e-9:
            now += step_s
            if setup_s > 0:
                setup_s -= step_s
            else:
                left_s -= step_s
            if left_s <= 0:
                return now
    raise AssertionError("the last start runs until the job is done")


@pytest.mark.parametrize("seed", range(25))
def test_a_plan_with_stops_is_done_when_its_replay_is(seed: int) -> None:
    rng = np.random.default_rng([14, seed])
    work_s = float(rng.integers(2000, 9000))
    profile = PowerProfile(
        startup=[Phase(name="load", duration_s=float(rng.integers(60, 400)), power_w=80)],
        restart=[Phase(name="again", duration_s=float(rng.integers(30, 300)), power_w=70)],
        work=[Phase(name="train", duration_s=work_s, power_w=500)],
        stop=[Phase(name="save", duration_s=float(rng.integers(10, 60)), power_w=90)],
    )
    job = Job(id="a", arrival=0, deadline="+9d", profile=profile, interruptible="anywhere")
    cuts = np.sort(rng.choice(np.arange(300, work_s - 300, 50), int(rng.integers(0, 4)), False))
    stretches, start = [], float(rng.integers(0, 5000))
    for number, part_s in enumerate(np.diff([0.0, *cuts, work_s]).tolist()):
        stretches.append(Stretch(start=start, work_s=part_s))
        start += profile.starting_s(number) + part_s + profile.stop_s + rng.integers(0, 5000)
    schedule = Schedule.from_stretches(job, stretches)
    shares = np.sort(rng.uniform(0.4, 2.0, 30)).tolist()
    ends = [schedule.end_if(share) for share in shares]
    assert schedule.end_if(1.0) == pytest.approx(schedule.end)
    # Who takes longer is never done sooner: so a run between two shares is done between their ends.
    assert ends == sorted(ends)
    for share, end in zip(shares, ends, strict=True):
        # Each start is rounded up to a whole step.
        assert -1 <= replayed(schedule, share) - end <= 2 + 2 * schedule.starts, share


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
