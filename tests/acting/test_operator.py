"""What an operator gets besides: a table of clean moments, what waiting would save, a report."""

from __future__ import annotations

import json
import sys
import time
from dataclasses import replace
from pathlib import Path
from random import Random
from types import SimpleNamespace

import numpy as np
import pytest

from lowtide.acting.backend import PENDING, RUNNING, Look, Seen
from lowtide.acting.book import Book, BookPage, by_class
from lowtide.acting.driver import Driver
from lowtide.acting.promise import Loops
from lowtide.acting.supposed import Supposition, would_save
from lowtide.acting.table import LENGTHS_S, clean_moments, table_of
from lowtide.acting.waits import Wait, WaitModel
from lowtide.signal import Signal
from support.commands import run
from support.faces import assert_keys_as_kept

HOUR_S = 3600.0
NOW = 1_700_000_000.0


def grid(seed: int, days: int = 5) -> Signal:
    random = Random(seed)
    values = [random.uniform(100.0, 500.0) for _ in range(24 * days)]
    return Signal.from_values(values, start=NOW - 1800.0, step_s="1h")


@pytest.mark.parametrize("seed", range(5))
def test_the_last_moment_before_a_latest_begin_is_the_cleanest_up_to_then(seed):
    signal = grid(seed)
    for length_s in LENGTHS_S[:7]:
        moments = clean_moments(signal, NOW, length_s)
        assert moments[0] == NOW
        for latest in np.arange(NOW, NOW + 60 * HOUR_S, 5000.0):
            starts = np.arange(NOW, latest + 1.0, 900.0)
            least = min(float(signal.integral(at, at + length_s)) for at in starts)
            chosen = max(each for each in moments if each <= latest)
            # By a thousandth it may be less clean: nobody waits for that.
            assert float(signal.integral(chosen, chosen + length_s)) <= least / 0.998


def test_a_table_says_what_is_known_and_no_more():
    model = WaitModel()
    model.learn(
        Wait(kind="main/1", eligible=NOW - 99000.0 - k, started=NOW - 98000.0, id=str(k))
        for k in range(80)
    )
    lines = table_of(grid(1), model, Loops(), NOW).splitlines()
    assert lines[0] == f"lowtide 1 {NOW:.0f} {NOW + 7200:.0f} 271"
    assert lines[1:3] == ["wait main 1079", "wait * 14400"]
    # Who stands in line is counted as the driver counts him.
    crowded = table_of(grid(1), model, Loops(), NOW, {"main": 5000.0, "other": 1.0})
    assert crowded.splitlines()[1:3] == ["wait main 5000", "wait * 14400"]
    # Of lengths that the forecast does not reach for nothing is told.
    told = [float(line.split()[1]) for line in lines[3:]]
    assert told == [each for each in LENGTHS_S if each < signal_s(grid(1))]
    assert table_of(None, model, Loops(), NOW).splitlines() == lines[:3]
    old = Signal.from_values([5.0], start=NOW - 9000.0, step_s=600.0)
    assert table_of(old, model, Loops(), NOW).splitlines() == lines[:3]


def signal_s(signal: Signal) -> float:
    return signal.end - NOW


JOB = Seen(
    id="1", state=RUNNING, submitted=NOW - 60.0, started=NOW - 30.0, limit_s=HOUR_S, cpus=4.0
)


def supposing(path: Path, others: list[Seen], now: float = NOW, slack_s: float = 20 * HOUR_S):
    """Let a driver suppose that these jobs could wait, and see that it moves nothing."""
    asked = []

    class Shown:
        def look(self):
            return Look(jobs=[], others=others, now=now)

        def now(self):
            return now

        def can(self):
            return frozenset(("stop",))

        def __getattr__(self, name):
            asked.append(name)
            raise AttributeError(name)

    signal = Signal.from_values([500.0] * 6 + [100.0] * 90, start=NOW, step_s="1h")
    driver = Driver(
        backend=Shown(),
        forecast=lambda _: signal,
        waits=WaitModel(unknown_s=HOUR_S),
        dry=True,
        supposition=Supposition(path=path, slack_s=slack_s),
    )
    assert driver.turn().problems == []
    assert asked == []


def test_what_waiting_would_save_is_what_the_planner_says_and_is_counted_once(tmp_path):
    path = tmp_path / "supposed.json"
    others = [
        replace(JOB, kind="main/1"),
        # Who waits, who asks for less, and whose length leaves no room.
        replace(JOB, id="2", state=PENDING, started=None, kind="main/1", cpus=1.0),
        replace(JOB, id="3", limit_s=30 * HOUR_S, kind="main/2-8"),
        # Nobody can say when these would start, or how long they take; that one came long ago.
        replace(JOB, id="4", state=PENDING, why="Dependency"),
        replace(JOB, id="5", limit_s=None),
        replace(JOB, id="6", submitted=NOW - 9 * HOUR_S),
        replace(JOB, id="7", state=PENDING, begin=NOW + HOUR_S),
        replace(JOB, id="8", state=PENDING, held=True),
    ]
    for _ in range(2):
        supposing(path, others)
    rows = {row["kind"]: row for row in would_save(path, since=NOW - HOUR_S)}
    assert set(rows) == {"main/1", "main/2-8", "all"}
    # Five hours at 500, then 100: all of it lies in clean hours if it begins after six hours.
    assert rows["main/1"]["saving"] == pytest.approx(0.8, abs=0.01)
    assert (rows["main/1"]["jobs"], rows["main/1"]["deferred"]) == (2, 2)
    assert rows["main/1"]["cpu_hours"] == pytest.approx(5.0)
    assert rows["all"]["jobs"] == 3
    assert would_save(path, since=NOW + HOUR_S) == []


def test_with_no_room_to_wait_nothing_would_be_saved(tmp_path):
    path = tmp_path / "supposed.json"
    supposing(path, [JOB], slack_s=600.0)
    (_, whole) = would_save(path, since=0.0)
    assert (whole["deferred"], whole["saving"]) == (0, 0.0)


@pytest.mark.parametrize("text", ["", "[]", '{"a": 5, "b": {"kind": 3}}', "\0", '{"a": {}}'])
def test_what_was_supposed_and_is_spoilt_is_forgotten(tmp_path, text):
    path = tmp_path / "supposed.json"
    path.write_text(text)
    assert would_save(path, since=0.0) == []
    supposing(path, [JOB])
    assert len(would_save(path, since=0.0)) == 2


PAGE = BookPage(
    token="a",
    job_id="1",
    arrival=NOW,
    deadline=NOW + 9 * HOUR_S,
    kind="main/1",
    outcome="completed",
    ended=NOW + 8 * HOUR_S,
    planned=60.0,
    replayed=66.0,
    measured=70.0,
    at_once=100.0,
)


def test_a_report_tells_by_class_whose_gap_it_is():
    pages = [
        PAGE,
        # Late, and nobody has measured it: what it saved is not known.
        replace(PAGE, token="b", ended=NOW + 10 * HOUR_S, measured=None),
        replace(PAGE, token="c", kind="gpu/1", unit="EUR", planned=None, replayed=None),
        replace(PAGE, token="d", outcome="", ended=None),
        replace(PAGE, token="e", outcome="cancelled", measured=None, replayed=None),
    ]
    gpu, main = by_class(pages)
    assert (main["kind"], main["jobs"], main["in_time"], main["late"]) == ("main/1", 3, 1, 1)
    # From plan to replay over two jobs, from replay to measured over the one that has both.
    assert main["plan_gap"] == pytest.approx(132.0 / 120.0 - 1.0)
    assert main["profile_gap"] == pytest.approx(70.0 / 66.0 - 1.0)
    assert main["measured_jobs"] == 1
    assert main["saving"] == pytest.approx(PAGE.reckoning.saving)
    assert (gpu["unit"], gpu["plan_gap"], gpu["profile_gap"]) == ("EUR", None, None)
    assert gpu["saving"] == pytest.approx(0.3)
    assert by_class([]) == []


def test_the_class_of_a_job_is_kept_with_its_page(tmp_path):
    book = Book(tmp_path)
    book.put(replace(PAGE, kind="", outcome="", ended=None))
    tagged = 'lt1:{"id":"a","dl":1700032400,"a":1700000000,"r":60,"p":0}'
    book.see([Seen(id="1", state=PENDING, comment=tagged, kind="main/9-64")], now=NOW)
    assert [page.kind for page in Book(tmp_path).pages(now=NOW)] == ["main/9-64"]


@pytest.mark.parametrize(
    ("words", "cure"),
    [
        (("--suppose", "24h"), "add --dry-run"),
        (("--reserve",), "add --all-users"),
        (("--suppose", "soon", "--dry-run"), "cannot read duration"),
    ],
)
def test_what_does_not_go_together_is_said(capsys, words, cure):
    answer = run(capsys, "drive", "--grid", "windy", "--once", *words)
    assert answer.code == 2
    assert cure in answer.err


def test_a_report_is_told_to_people_and_to_scripts(capsys, tmp_path, monkeypatch):
    monkeypatch.setenv("LOWTIDE_ACTING", str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path))
    now = time.time()
    Book(tmp_path / "jobs").put(replace(PAGE, arrival=now - 60.0, deadline=now, ended=now - 5.0))
    supposing(tmp_path / "supposed.json", [replace(JOB, kind="main/1")])
    document = json.loads(run(capsys, "queue", "report", "--json").out)
    assert [row["kind"] for row in document["classes"]] == ["main/1"]
    # What was supposed is of another year.
    assert document["supposed"] == []
    head, row = run(capsys, "queue", "report", "-P").out.splitlines()
    assert_keys_as_kept("verbs/queue report.txt", document, head)
    assert row.startswith("main/1|1|1|0|60|66|70|g|")
    shown = run(capsys, "queue", "report", "--days", "9999").out
    assert "would save, by plan" in shown
    for verb, option in (("report", "--report"), ("waits", "--calibration")):
        new, old = (run(capsys, "queue", word, "--json") for word in (verb, option))
        assert (new.code, new.out) == (old.code, old.out), option
    (head,) = run(capsys, "queue", "waits", "-P").out.splitlines()
    assert_keys_as_kept("verbs/queue waits.txt", json.loads(new.out), head)


def test_what_is_forgotten_is_told(capsys, monkeypatch):
    noted = []
    backend = SimpleNamespace(note=lambda job, comment: noted.append((job.id, comment)))
    found = (backend, Seen(id="7", state=PENDING, name="train"), None, "mine")
    monkeypatch.setattr(sys.modules["lowtide.cli.queue"], "_found", lambda _: found)
    document = json.loads(run(capsys, "queue", "forget", "7", "--json").out)
    assert document["job_id"] == "7"
    head, row = run(capsys, "queue", "forget", "7", "-P").out.splitlines()
    assert row.startswith("7|train|job 7 is not looked after any more")
    assert_keys_as_kept("verbs/queue forget.txt", document, head)
    assert noted == [("7", "mine")] * 2
