"""`lowtide jobs`, `usage` and `store`: what people, scripts and programs get to read."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from lowtide.cli.job_columns import ENERGIES, MASSES, durations, percents, scaled
from lowtide.store import Store
from lowtide.units import format_duration, format_energy, format_mass, format_percent
from support.commands import run
from support.ticks import Watcher, facts, unit


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A store with jobs of two users: measured, estimated, waiting, and seen once."""
    path = tmp_path / "store.sqlite"
    monkeypatch.setenv("LOWTIDE_STORE", str(path))
    begin = time.time() - 7200
    watcher = Watcher(time=begin)
    ada, bob = unit(1, started=begin), unit(2, started=begin, user="bob")
    with Store.open(path) as store:
        for _ in range(60):
            store.append(watcher.tick([ada, bob], watts={"1": 360.0, "2": 40.0}, gpus=1.0))
        store.put_facts(
            [
                facts(1, state="completed", started=begin, ended=begin + 600, account="physics"),
                facts(9, state="pending", submitted=begin, user="bob"),
            ]
        )
    guess = Watcher(time=begin + 3600, measured=False, intensity=float("nan"))
    with Store.open(path) as store:
        for number in range(4):
            once = [unit(4, started=guess.time)] if number == 3 else []
            store.append(guess.tick([unit(3, started=begin + 3600), *once]))
    return path


def lines(text: str) -> list[str]:
    return text.rstrip("\n").split("\n")


def test_the_list_is_as_people_know_it(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    answer = run(capsys, "jobs")
    assert (answer.code, answer.err) == (0, "")
    header, *rows, note = lines(answer.out)
    assert header.split() == [
        *("JobID", "User", "State", "Elapsed", "CPUEff", "MemEff", "GPUEff"),
        *("AvgW", "Energy", "CO2e"),
    ]
    cells = [[cell for cell in row.split("  ") if cell.strip()] for row in rows]
    plain = [[cell.strip() for cell in row] for row in cells]
    assert plain[0] == [
        *("1", "ada", "COMPLETED", "00:10:00", "50.0 %", "25.0 %", "50.0 %"),
        *("360.0", "216 kJ", "21.6 g"),
    ]
    assert plain[2] == ["9", "bob", "PENDING", *["---"] * 7]
    assert plain[3] == [
        *("3", "ada", "---", "00:00:40", "50.0 %", "25.0 %", "---"),
        *("~100.0", "~4 kJ", "---"),
    ]
    assert plain[4][:4] == ["4", "ada", "---", "---"], "seen once: unknown, not 0"
    assert note == "~ estimated, in whole or in part: not measured."
    assert len({len(row) for row in [header, *rows]}) == 1


def test_columns_can_be_chosen_sorted_and_left_bare(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ("jobs", "-o", "jobid,Energy,account,TimeEff,MaxRSS,power", "--sort", "-energy", "-n")
    answer = run(capsys, *words)
    rows = [row.split() for row in lines(answer.out)]
    assert [row[0] for row in rows] == ["1", "2", "3", "4", "9"], "what is unknown comes last"
    assert rows[0][1:] == ["216", "kJ", "physics", "---", "953.7", "MiB", "measured"]
    assert rows[2][-1] == "estimated"
    up = run(capsys, "jobs", "-o", "jobid", "--sort", "user,energy", "-n")
    assert lines(up.out) == ["4", "3", "1", "2", "9"]


@pytest.mark.parametrize(
    ("words", "found"),
    [
        (("-u", "bob"), ["2", "9"]),
        (("-u", "ada,bob", "-s", "CD,PD"), ["1", "9"]),
        (("-s", "completed"), ["1"]),
        (("-j", "1,4"), ["1", "4"]),
        (("-S", "now-65minutes"), ["9", "3", "4"]),
        (("-E", "now-100minutes"), ["1", "2", "9"]),
        (("-S", "now-3days", "-E", "now-2days"), []),
        (("-N", "n1", "-s", "R"), []),
    ],
)
def test_questions_are_those_of_sacct(
    place: Path, capsys: pytest.CaptureFixture[str], words: tuple[str, ...], found: list[str]
) -> None:
    document = json.loads(run(capsys, "jobs", *words, "--json").out)
    assert [job["job_id"] for job in document] == found
    if not found:
        assert "No such jobs in" in run(capsys, "jobs", *words).out


def test_scripts_get_numbers_and_nothing_for_the_unknown(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    header, first, _, waiting, *_ = lines(run(capsys, "jobs", "-P").out)
    keys = header.split("|")
    row = dict(zip(keys, first.split("|"), strict=True))
    assert row["elapsed_s"] == "600"
    assert row["cpu_efficiency"] == "0.5"
    assert float(row["energy_j"]) == 216000.0
    assert dict(zip(keys, waiting.split("|"), strict=True))["energy_j"] == ""
    assert lines(run(capsys, "jobs", "-P", "-n").out)[0] == first
    chosen = json.loads(run(capsys, "jobs", "-j", "1", "-o", "jobid,energy,start", "--json").out)
    assert list(chosen[0]) == ["job_id", "energy_j", "started"]


def test_programs_get_everything(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    one, two, waiting, guessed, _ = json.loads(run(capsys, "jobs", "--json").out)
    assert (one["power"], guessed["power"], waiting["power"]) == ("measured", "estimated", None)
    assert one["mean_power_w"] == 360.0
    assert two["state"] is None
    assert waiting["energy_j"] is None
    assert one["account"] == "physics"


def test_what_is_wrong_is_said(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for words, said in (
        (("jobs", "-o", "JobID,Enrgy"), "did you mean 'Energy'?"),
        (("jobs", "-s", "sleeping"), "unknown state 'sleeping'"),
        (("jobs", "-S", "yesteryear"), "cannot read the time 'yesteryear'"),
        (("jobs", "-S", "now", "-E", "now-1hour"), "begins before it ends"),
        (("jobs", "--sort", "-beauty"), "unknown column 'beauty'"),
        (("jobs", "--store", "nowhere.sqlite"), "lowtide watch"),
        (("usage", "--by", "moon"), "known are account"),
        (("usage", "-S", "now", "-E", "now-1hour"), "begins before it ends"),
        (("store", "prune", "--older-than", "3h"), "younger than 2 days"),
        (("store", "check", "--rescue", str(place)), "there already"),
        (("store", "check", "--store", "postgresql://h/x", "--rescue", "new"), "pg_dump"),
    ):
        answer = run(capsys, *words)
        assert answer.code == 2, words
        assert said in answer.err, words
        assert answer.out == ""


def test_usage_by_user_and_hour(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    document = json.loads(run(capsys, "usage", "--json", "-S", "now-1day").out)
    ada, bob = document["rows"]
    assert (ada["user"], ada["jobs"], bob["user"], bob["jobs"]) == ("ada", 3, "bob", 2)
    assert ada["energy_j"] == pytest.approx(216000 + 5000)
    assert ada["unknown_duration"] == 1
    assert ada["carbon_g"] is None, "unknown in part is unknown"
    shown = run(capsys, "usage", "-S", "now-1day").out
    assert "~221 kJ" in shown
    assert "█" in shown
    assert "1 job of unknown duration (seen once)" in shown
    assert "No data of n1 from" in shown
    hours = json.loads(run(capsys, "usage", "--by", "hour", "--json", "-S", "now-1day").out)["rows"]
    assert sum(row["energy_j"] or 0.0 for row in hours) == pytest.approx(245000, rel=1e-6)
    assert any(row["energy_j"] is None and row["watched"] == 0 for row in hours)
    assert "no data" in run(capsys, "usage", "--by", "hour", "-S", "now-1day").out
    assert "No jobs in that time" in run(capsys, "usage", "-E", "now-2days").out


def test_the_store_is_told_of_checked_and_handed_on(
    place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    info = json.loads(run(capsys, "store", "info", "--json").out)
    assert (info["jobs"], info["hosts"][0]["name"]) == (5, "n1")
    assert "5 jobs" in run(capsys, "store", "info").out
    assert "sound (1 hosts, 5 jobs" in run(capsys, "store", "check").out
    done = run(capsys, "store", "export", str(tmp_path / "out"))
    assert "5 jobs" in done.out
    assert pl.read_parquet(tmp_path / "out" / "jobs.parquet").height == 5
    assert "0 jobs and 0 chunks deleted" in run(capsys, "store", "prune").out
    pruned = json.loads(run(capsys, "store", "prune", "--older-than", "2d", "--json").out)
    assert pruned["jobs"] == 0
    said = run(capsys, "store", "prune", "--size", "1K").out
    assert "more than asked for" in said
    saved = run(capsys, "store", "check", "--rescue", str(tmp_path / "fresh.sqlite"))
    assert saved.code == 0
    assert (
        len(
            json.loads(run(capsys, "jobs", "--json", "--store", str(tmp_path / "fresh.sqlite")).out)
        )
        == 5
    )


def test_a_damaged_store_says_what_saves_it(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    import sqlite3

    with sqlite3.connect(place) as connection:
        connection.execute("UPDATE chunks SET body = X'00'")
    connection.close()
    answer = run(capsys, "store", "check")
    assert answer.code == 1
    assert "damaged" in answer.out
    assert "--rescue" in answer.out
    place.write_bytes(b"\0" * 8192)
    for words in (("jobs",), ("store", "check")):
        answer = run(capsys, *words)
        assert answer.code == 2
        assert "store check --rescue NEW.sqlite saves what can still be read" in answer.err


def test_a_missing_extra_says_how_to_get_it(place: Path) -> None:
    code = (
        "import sys\n"
        "sys.modules['sqlalchemy'] = None\n"
        "sys.argv = ['lowtide', 'jobs']\n"
        "from lowtide.cli import main\n"
        "main()\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "pip install 'lowtide[watch]'" in done.stderr


def test_columns_are_written_as_single_values_are() -> None:
    rng = np.random.default_rng(1)
    values = 10.0 ** rng.uniform(-3, 11, 2000)
    values[::7] = np.nan
    assert scaled(values, ENERGIES) == [
        format_energy(value).replace(",", "") for value in values.tolist()
    ]
    assert scaled(values, MASSES) == [format_mass(value) for value in values.tolist()]
    times = np.where(values < 1e7, values, np.nan)
    assert durations(times) == [format_duration(value) for value in times.tolist()]
    shares = np.where(values < 20, values, np.nan)
    assert percents(shares) == [format_percent(value) for value in shares.tolist()]
