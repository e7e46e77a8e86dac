"""`lowtide jobs`, `usage` and `store`: what people, scripts and programs get to read."""

from __future__ import annotations

import itertools
import json
import math
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from lowtide.cli.job_columns import ENERGIES, MASSES, durations, percents, scaled
from lowtide.cli.jobs import users_of
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
                facts(
                    1,
                    state="completed",
                    started=begin,
                    ended=begin + 600,
                    account="physics",
                    partition="gpu",
                ),
                facts(9, state="pending", submitted=begin, user="bob"),
                # An array of last week, one element of a user without a name.
                *(
                    facts(
                        60 + number,
                        shown_id=f"60_{number}",
                        state=state,
                        started=begin - 6e5,
                        ended=begin - 6e5 + 60,
                        user=user,
                    )
                    for number, (state, user) in enumerate(
                        (("out_of_memory", "987654"), ("node_fail", "eve"), ("failed", "eve")), 1
                    )
                ),
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
    assert plain[2] == ["9", "bob", *["---"] * 8], "nobody watches: it may have begun long ago"
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
        (("-u", "ada,bob", "-s", "CD,PD"), ["1"]),
        (("-s", "completed"), ["1"]),
        (("-j", "1,4"), ["1", "4"]),
        (("-S", "now-65minutes"), ["3", "4"]),
        (("-E", "now-100minutes"), ["1", "2", "9"]),
        (("-E", "now-7days"), ["61", "62", "63"]),
        (("-S", "now-3days", "-E", "now-2days"), []),
        (("-N", "n1", "-s", "R"), []),
        (("-a", "-X", "-j", "1.batch,2.0,4.extern"), ["1", "2", "4"]),
        (("-A", "physics"), ["1"]),
        (("-r", "gpu"), ["1"]),
        (("--name", "job-2,job-3"), ["2", "3"]),
        (("-i", "1", "-u", "bob"), ["2"]),
        (("-i", "2-8"), []),
        (("-j", "60"), ["61", "62", "63"]),
        (("-j", "60_[1-2]"), ["61", "62"]),
        (("-j", "60_[0-2:2,3%2],1"), ["1", "62", "63"]),
        (("-j", "60_3.batch"), ["63"]),
        (("-u", "987654", "-S", "now-30days"), ["61"]),
        (("-s", "OOM", "-S", "now-30days"), ["61"]),
        (("-s", "NF,preempted", "-S", "now-30days"), ["62"]),
        (("-s", "CG,DL,BF,RQ"), []),
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
        (("jobs", "-i", "some"), "such as 4 or 2-8"),
        (("jobs", "-j", "4_[1-99999]"), "more than 10000 jobs"),
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


def test_columns_are_as_wide_as_asked_for(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ("jobs", "-j", "60", "-o", "JobID%6,User%-4,State%5,NCPUS,ConsumedEnergy,JobIDRaw")
    header, first, second, _ = lines(run(capsys, *words).out)
    assert header == "JobID   User  State  NCPUS  ConsumedEnergy  JobIDRaw"
    assert first == "60_1    987+  OUT_+    ---             ---  61"
    assert second.startswith("60_2    eve   NODE+")
    everything = run(capsys, "jobs", "-j", "1", "-o", "ALL", "-P").out
    assert len(lines(everything)[0].split("|")) > 40
    wrong = run(capsys, "jobs", "-o", "JobID%wide")
    assert (wrong.code, "JobID%20" in wrong.err) == (2, True)


def test_phases_that_were_kept_are_listed(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = [
        {"name": "a", "group": "startup", "times": 1, "duration_s": 60.0, "power_w": 90.0},
        {"name": "b", "group": "work", "times": 3, "duration_s": 120.0, "power_w": 450.0},
    ]
    with Store.open(place) as store:
        store.put_phases(store.jobs(ids=["1"])[0], json.dumps(found))
    out = run(capsys, "jobs", "-j", "1,2", "-o", "JobID,Phases", "-n").out
    assert lines(out) == ["1  00:01:00 90 W, 3x 00:02:00 450 W", "2  ---"]
    document = json.loads(run(capsys, "jobs", "-j", "1,2", "-o", "JobID,Phases", "--json").out)
    assert [job["phases"] for job in document] == [found, None]


def test_what_lacks_a_part_is_marked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    begin = time.time() - 7200
    watcher = Watcher(time=begin)
    one, two = unit(1, started=begin), unit(2, started=begin)
    with Store.open(tmp_path / "part.sqlite") as store:
        for number in range(1, 11):
            tick = watcher.tick([one, two])
            # Half of the first one's time was not metered, half of the second's energy not priced.
            store.append(
                replace(
                    tick,
                    energy_j=tick.energy_j * [0.5, 1.0],
                    measured_j=tick.energy_j * [0.0, 1.0],
                    unmetered_s=np.array([5.0, 0.0]) * number,
                    unpriced_j=tick.energy_j * [0.0, 0.5],
                )
            )
    words = ("--store", str(tmp_path / "part.sqlite"))
    _, first, second, *notes = lines(
        run(capsys, "jobs", *words, "-o", "JobID,AvgW,Energy,CO2e").out
    )
    assert first.split() == ["1", "~100.0", ">~5", "kJ", ">~1", "g"]
    assert second.split() == ["2", "100.0", "10", "kJ", ">1", "g"]
    assert notes == [
        "~ estimated, in whole or in part: not measured.",
        "> at least: what was drawn or emitted in part of the time is not known.",
    ]
    document = json.loads(run(capsys, "jobs", *words, "--json").out)
    assert [(job["unmetered_s"], job["unpriced_j"]) for job in document] == [(50, 0), (0, 5000)]
    assert document[0]["mean_power_w"] == pytest.approx(100.0)
    (row,) = json.loads(run(capsys, "usage", *words, "--json").out)["rows"]
    assert (row["unmetered_s"], row["unpriced_j"]) == (pytest.approx(50), pytest.approx(5000))
    assert row["lacking"] == ["energy_j", "carbon_g"]


def test_usage_tells_what_no_job_is_charged_with(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    watcher = Watcher(time=time.time() - 7200)
    job = unit(1, started=watcher.time)
    with Store.open(tmp_path / "node.sqlite") as store:
        for _ in range(36):
            tick = watcher.tick([job])
            grams = {
                name.replace("energy_j", "carbon_g"): getattr(tick, name) / 10_000
                for name in ("node_energy_j", "idle_energy_j", "unattributed_energy_j")
            }
            store.append(replace(tick, **grams))
    words = ("usage", "--store", str(tmp_path / "node.sqlite"))
    nodes = json.loads(run(capsys, *words, "--json").out)["nodes"]
    assert nodes == {
        "energy_j": pytest.approx(151 * 360),
        "idle_j": pytest.approx(50 * 360),
        "unattributed_j": pytest.approx(360),
        "carbon_g": pytest.approx(5.436),
        "idle_g": pytest.approx(1.8),
        "unattributed_g": pytest.approx(0.036),
        "lacking": [],
    }
    assert (
        "The nodes in all: 54.36 kJ, 5.436 g CO2e; of that idle 18 kJ, 1.8 g CO2e; charged to "
        "nobody 360 J, 0.036 g CO2e."
    ) in run(capsys, *words).out
    assert json.loads(run(capsys, *words, "-u", "ada", "--json").out)["nodes"] is None


@pytest.mark.parametrize("columns", [30, 50, 80, 120])
def test_the_list_fits_the_terminal(
    place: Path,
    columns: int,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    out = run(capsys, "jobs").out
    assert all(len(line) <= columns for line in lines(out))
    header = lines(out)[0].split()
    assert {"JobID", "Energy", "CO2e"} <= set(header)
    assert ("MemEff" in header) == (columns == 120 or "No room" not in out)
    assert ("No room for" in out) == (columns < 80)


def test_numbers_stand_for_users() -> None:
    assert users_of(["0,ada", "987654"]) == ["0", "ada", "987654", "root"]


def test_usage_by_user_and_hour(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    document = json.loads(run(capsys, "usage", "--json", "-S", "now-1day").out)
    ada, bob = document["rows"]
    assert (ada["user"], ada["jobs"], bob["user"], bob["jobs"]) == ("ada", 3, "bob", 2)
    assert ada["energy_j"] == pytest.approx(216000 + 5000)
    assert ada["unknown_duration"] == 1
    # What is known is the least it can be, and is said to be that.
    assert ada["carbon_g"] == pytest.approx(21.6)
    assert (ada["lacking"], bob["lacking"]) == (["carbon_g", "gpu_h"], [])
    shown = run(capsys, "usage", "-S", "now-1day").out
    assert "~221 kJ  >~21.6 g" in shown
    assert "> at least: what was drawn or emitted in part of the time is not known." in shown
    assert "█" in shown
    assert "1 job of unknown duration (seen once)" in shown
    assert "No data of n1 from" in shown
    hours = json.loads(run(capsys, "usage", "--by", "hour", "--json", "-S", "now-1day").out)["rows"]
    assert sum(row["energy_j"] or 0.0 for row in hours) == pytest.approx(245000, rel=1e-6)
    assert any(row["energy_j"] is None and row["watched"] == 0 for row in hours)
    assert "no data" in run(capsys, "usage", "--by", "hour", "-S", "now-1day").out
    assert "No jobs in that time" in run(capsys, "usage", "-E", "now-20days").out
    # Jobs that nobody saw used something, and nobody knows how much.
    rows = json.loads(run(capsys, "usage", "-E", "now-2days", "--json").out)["rows"]
    eve = next(row for row in rows if row["user"] == "eve")
    assert (eve["jobs"], eve["energy_j"], eve["cpu_h"]) == (2, None, None)


def test_the_store_is_told_of_checked_and_handed_on(
    place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    info = json.loads(run(capsys, "store", "info", "--json").out)
    assert (info["jobs"], info["hosts"][0]["name"]) == (8, "n1")
    assert "8 jobs" in run(capsys, "store", "info").out
    assert "sound (1 hosts, 8 jobs" in run(capsys, "store", "check").out
    done = run(capsys, "store", "export", str(tmp_path / "out"))
    assert "8 jobs" in done.out
    assert pl.read_parquet(tmp_path / "out" / "jobs.parquet").height == 8
    assert "0 jobs and 0 chunks deleted" in run(capsys, "store", "prune").out
    pruned = json.loads(run(capsys, "store", "prune", "--older-than", "2d", "--json").out)
    assert pruned["jobs"] == 3
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


def test_a_rescue_that_saves_no_job_says_so(
    place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    import sqlite3

    with sqlite3.connect(place) as connection:
        # What is left are the nodes' own values.
        connection.execute("DELETE FROM chunks WHERE unit IN (SELECT id FROM units WHERE job > 0)")
        connection.execute("DELETE FROM units WHERE job > 0")
        connection.execute("DELETE FROM jobs")
    connection.close()
    answer = run(capsys, "store", "check", "--rescue", str(tmp_path / "fresh.sqlite"))
    assert answer.code == 1
    assert "No job of" in answer.out
    assert "Saved in" not in answer.out
    json_too = run(capsys, "store", "check", "--rescue", str(tmp_path / "other.sqlite"), "--json")
    assert json_too.code == 1
    assert json.loads(json_too.out)["saved"]["jobs"] == 0


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


def test_many_documents_are_printed_as_a_list_of_them(capsys: pytest.CaptureFixture[str]) -> None:
    from lowtide.cli.output import print_json, print_json_rows

    rows: list[dict[str, Any]] = [
        {"a": 1.5, "b": 'x "q" é', "c": ("n1", "n2"), "d": math.nan, "e": 3, "f": [{"k": 1.0}]},
        {"a": math.nan, "b": None, "c": (), "d": math.nan, "e": 4, "f": None},
        {"a": 1e-9, "b": "", "c": (), "d": math.nan, "e": 5, "f": None},
    ]
    for cuts in ([0, 3], [0, 1, 3], [0, 0, 2, 3]):
        print_json(rows)
        expected = capsys.readouterr().out
        parts = [rows[first:last] for first, last in itertools.pairwise(cuts)]
        print_json_rows({name: [row[name] for row in part] for name in rows[0]} for part in parts)
        assert capsys.readouterr().out == expected
    print_json([])
    expected = capsys.readouterr().out
    print_json_rows([])
    assert capsys.readouterr().out == expected


def test_moments_in_columns_are_written_as_one_by_one() -> None:
    from lowtide.cli.job_columns import _moments
    from lowtide.units import format_time

    rng = np.random.default_rng(1)
    values = np.concatenate(
        [
            rng.uniform(-1e9, 4e9, 200),
            rng.integers(0, 2**31, 50) * 60.0,
            [0.0, 0.5, 1.5, -0.5, math.nan, math.inf, 1e14, -1e13, 59.6],
        ]
    )
    assert _moments(values) == [format_time(value) for value in values.tolist()]
    assert _moments(np.empty(0)) == []
