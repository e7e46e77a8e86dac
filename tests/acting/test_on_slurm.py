"""On a real Slurm: begins are kept inside it, moved, left to their users; jobs stop and go on."""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

import pytest

from lowtide.acting.backend import PENDING, RUNNING
from lowtide.acting.driver import Driver
from lowtide.acting.judge import Rules
from lowtide.acting.slurm import SlurmBackend
from lowtide.acting.submission import Submission
from lowtide.acting.tag import Tag, decode, new_token
from lowtide.errors import Refused, Unreachable
from lowtide.signal import Signal
from lowtide.slurm import SlurmClient
from lowtide.units import parse_time
from support.commands import run
from support.faces import assert_keys_as_kept
from support.nightly import drawn
from support.slurm import ask
from support.slurm_jobs import (
    PATIENCE_S,
    counting_in,
    driver,
    nothing_lost_nothing_doubled,
    seen,
    steps,
    submitted,
    wait_for,
    waits_again,
)

pytestmark = [pytest.mark.alone, pytest.mark.slurm]

# How many jobs are to begin at a moment, one after another.
MET = drawn(5, 10)
# Clean from eight hours on, and by another forecast from fourteen, whatever the time of day.
GRID, OTHER = ("--signal", "grid.csv"), ("--signal", "other.csv")


@pytest.fixture
def here(slurm, tmp_path, monkeypatch):
    """A folder with a script, from which Slurm can be asked."""
    with counting_in(slurm, tmp_path, monkeypatch):
        for words, dirty_h in ((GRID, 8), (OTHER, 14)):
            Path(words[1]).write_text(clean_after(dirty_h))
        yield slurm


def clean_after(dirty_h):
    """Return a table of a grid: dirty for so many hours, then clean, a little less with each."""
    first = time.time() // 3600
    rows = (
        f"{(first + hour) * 3600:.0f},{900 if hour < dirty_h else 100 + hour}" for hour in range(60)
    )
    return "\n".join(["timestamp,carbon_intensity_g_per_kwh", *rows]) + "\n"


def submit(capsys, *words):
    answer = run(capsys, "sbatch", *words)
    assert answer.code == 0, answer.err
    return json.loads(answer.out)


def test_a_begin_is_kept_in_slurm_moved_by_the_driver_and_left_to_its_user(here, capsys):
    words = ("--finish-by", "+30h", *GRID, "--no-check", "--json", "--comment=mine", "count.sh")
    said = submit(capsys, *words)
    columns = ("-P", *(word for word in words if word != "--json"))
    assert_keys_as_kept("verbs/sbatch.txt", said, header(capsys, "sbatch", *columns))
    number = said["job_id"]
    job = seen(number)
    tag, text = decode(job.comment)
    assert (job.state, text, tag.token) == (PENDING, "mine", said["token"])
    # Nobody has to be alive for it: Slurm itself begins it, and not too late.
    assert time.time() < job.begin <= parse_time(said["latest"])
    assert job.begin == pytest.approx(parse_time(said["begin"]), abs=PATIENCE_S)
    listed = json.loads(run(capsys, "queue", *GRID, "--json").out)
    assert_keys_as_kept("verbs/queue.txt", listed, header(capsys, "queue", *GRID, "-P"))
    assert {number} <= {each["job_id"] for each in listed["jobs"]}
    unasked = json.loads(run(capsys, "queue", "--json").out)["jobs"]
    assert {each["what"] for each in unasked} == {"waits"}
    # Without a forecast it would let everything begin now.
    assert run(capsys, "drive", "--once").code == 2

    def drive(grid):
        words = ("drive", "--once", *grid)
        document = json.loads(run(capsys, *words, "--json").out)
        assert_keys_as_kept("verbs/drive.txt", document, header(capsys, *words, "-P"))
        return [move for move in document["moves"] if move["job_id"] == number]

    # Another forecast moves it; the same once more does not.
    moves = drive(OTHER)
    assert moves[0]["done"]
    assert drive(OTHER) == []
    moved = seen(number)
    assert moved.begin == pytest.approx(parse_time(moves[0]["at"]), abs=PATIENCE_S)
    assert abs(moved.begin - job.begin) >= 300.0
    # What its user moves by hand is the user's, whatever the forecast.
    ask(here, "scontrol", "update", f"JobId={number}", "StartTime=now+5hours")
    drive(GRID)
    by_hand = seen(number)
    assert decode(by_hand.comment)[0].users_own
    for grid in (GRID, OTHER):
        assert drive(grid) == []
    assert seen(number).begin == by_hand.begin


def header(capsys, *words):
    return run(capsys, *words).out.splitlines()[0]


def test_without_a_deadline_or_any_idea_of_its_length_it_begins_now(here, capsys):
    Path("short.sh").write_text("#!/bin/sh\ntrue\n")
    for words in (["--finish-by", "+30h", "short.sh"], ["-t", "5", "short.sh"]):
        said = submit(capsys, *GRID, "--no-check", "--json", *words)
        assert "it begins now" in said["why"]
        assert said["token"] is None
        assert parse_time(said["begin"]) <= time.time()


def test_a_deadline_that_cannot_be_promised_is_said_and_it_begins_now(here, capsys):
    words = ("--finish-by", "+2h", *GRID, "--no-check", "--json", "count.sh")
    said = submit(capsys, *words)
    assert "too early to be promised" in said["why"]
    wait_for(lambda: (job := seen(said["job_id"])) and job.state == RUNNING)
    Path("enough").touch()


def test_before_a_maintenance_nothing_is_deferred(here, capsys):
    words = ("--finish-by", "+30h", *GRID, "--no-check", "--json", "count.sh")
    waits = submit(capsys, *words)["job_id"]
    day = ("StartTime=now+20hours", "Duration=60", "Users=root", "Nodes=ALL", "Flags=MAINT")
    name = ask(here, "scontrol", "create", "reservation", *day).rpartition(" ")[2]
    try:
        assert "reserved before" in submit(capsys, *words)["why"]
        (begin, end) = SlurmBackend().look().closed[0]
        assert end - begin == 3600.0
        assert begin == pytest.approx(time.time() + 20 * 3600, abs=PATIENCE_S)
        # What was deferred before that was announced is let go.
        moves = json.loads(run(capsys, "drive", "--once", *GRID, "--json").out)["moves"]
        assert [move["done"] for move in moves if move["job_id"] == waits] == [True]
        wait_for(lambda: (job := seen(waits)) and job.state == RUNNING)
    finally:
        Path("enough").touch()
        ask(here, "scontrol", "delete", f"ReservationName={name}")


def test_what_is_held_is_left_and_what_is_gone_is_refused(here, capsys):
    said = submit(capsys, "--finish-by", "+30h", *GRID, "--no-check", "--json", "count.sh")
    number = said["job_id"]
    ask(here, "scontrol", "hold", number)
    job = seen(number)
    assert job.held
    answer = json.loads(run(capsys, "drive", "--once", *OTHER, "--json").out)
    assert number not in {move["job_id"] for move in answer["moves"]}
    ask(here, "scancel", number)
    with pytest.raises(Refused):
        SlurmBackend().begin(job, time.time() + 60.0, job.comment)


def test_tasks_of_an_array_are_moved_together_and_one_by_one(here, capsys):
    words = ("--finish-by", "+30h", *GRID, "--no-check", "--json", "-a", "0-4", "count.sh")
    number = submit(capsys, *words)["job_id"]
    backend = SlurmBackend()
    (whole,) = [job for job in backend.look().jobs if job.id.startswith(f"{number}_")]
    at = time.time() + 40_000.0
    backend.begin(whole, at, whole.comment)
    # One of them is its own from then on.
    ask(here, "scontrol", "update", f"JobId={number}_2", "StartTime=now+3hours")
    tasks = {job.id: job for job in backend.look().jobs if job.id.startswith(f"{number}_")}
    assert set(tasks) == {f"{number}_2", f"{number}_[0-1,3-4]"}
    alone = tasks.pop(f"{number}_2")
    (others,) = tasks.values()
    assert others.begin == pytest.approx(at, abs=PATIENCE_S)
    assert alone.begin == pytest.approx(time.time() + 3 * 3600, abs=PATIENCE_S)
    backend.begin(others, at + 9_000.0, others.comment)
    assert seen(f"{number}_2").begin == alone.begin


def test_who_wants_a_feature_waits_for_the_nodes_that_have_it(here, capsys):
    words = ("--finish-by", "+30h", *GRID, "--no-check", "--json", "-C", "large", "count.sh")
    ask(here, "scontrol", "update", "NodeName=n1", "AvailableFeatures=large")
    number = submit(capsys, *words)["job_id"]
    try:
        look = SlurmBackend().look()
        (place,) = [job.place for job in look.jobs if job.id == number]
        assert (look.rooms[place].nodes, look.rooms[place].cpus) == ({"n1"}, 2.0)
        assert look.rooms["main"].nodes == {"n1", "n2"}
    finally:
        ask(here, "scancel", number)
        ask(here, "scontrol", "update", "NodeName=n1", "AvailableFeatures=")


def test_who_is_not_there_is_unreachable_and_not_waited_for(here, monkeypatch, tmp_path):
    text = Path(here["SLURM_CONF"]).read_text()
    conf = tmp_path / "gone.conf"
    conf.write_text(
        "\n".join(
            "SlurmctldPort=9" if line.startswith("SlurmctldPort") else line
            for line in text.splitlines()
        )
    )
    monkeypatch.setenv("SLURM_CONF", str(conf))
    backend = SlurmBackend(client=SlurmClient(timeout_s=1.0))
    turn = Driver(backend=backend, forecast=lambda _: None).turn()
    assert turn.problems
    with pytest.raises(Unreachable):
        backend.look()


def test_it_stops_in_dirty_hours_and_goes_on_with_a_driver_that_dies_every_time(here, capsys):
    now = time.time()
    number, tag = submitted(here)
    wait_for(steps)
    # It has begun when the grid turns dirty, for an hour.
    values = [900.0] * 360 + [100.0] * 1440
    grid = Signal.from_values(values, start=time.time() - 10.0, step_s=10.0)

    def turn():
        # It remembers nothing of the turn before.
        driver(grid).turn()
        return waits_again(number)()

    stopped = wait_for(turn)
    kept = decode(stopped.comment)[0]
    assert kept.progress_s > 0
    assert now + 3000.0 < stopped.begin < tag.deadline - 1700.0
    done = int(Path("saved").read_text())
    # Its user wants it now, and gets it.
    ask(here, "scontrol", "update", f"JobId={number}", "StartTime=now")
    wait_for(lambda: len(steps()) > done + 5)
    Path("enough").touch()
    wait_for(lambda: seen(number) is None)
    assert nothing_lost_nothing_doubled()


def test_a_begin_told_by_a_clock_that_is_wrong_is_not_trusted(here, capsys):
    words = ("--finish-by", "+30h", *GRID, "--no-check", "--json", "count.sh")
    number = submit(capsys, *words)["job_id"]
    mind_clocks = sys.modules["lowtide.cli.submitting"]._mind_clocks
    submitted = seen(number).submitted
    mind_clocks(SlurmBackend(), number, submitted + 20.0)
    assert seen(number).begin > time.time()
    mind_clocks(SlurmBackend(), number, submitted - 3600.0)
    wait_for(lambda: (job := seen(number)) and job.state == RUNNING)
    Path("enough").touch()
    assert "differ by 3600 s" in capsys.readouterr().err


def test_what_slurm_has_lost_is_submitted_anew_under_the_same_token(here, capsys, monkeypatch):
    submitting = sys.modules["lowtide.cli.submitting"]
    monkeypatch.setattr(submitting, "_SETTLED_S", 0.1)
    backend = SlurmBackend()
    lost = []

    def forgetful(backend, number, tag, has=submitting._has):
        if not lost:
            lost.append(number)
            ask(here, "scancel", number)
            return has(backend, "999999", tag)
        return has(backend, number, tag)

    monkeypatch.setattr(submitting, "_has", forgetful)
    said = submit(capsys, "--finish-by", "+30h", *GRID, "--json", "count.sh")
    assert said["job_id"] not in lost
    tokens = [decode(job.comment)[0].token for job in backend.look().jobs]
    assert tokens.count(said["token"]) == 1


def test_one_job_is_released_held_and_forgotten_by_a_word(here, capsys):
    words = ("--finish-by", "+30h", *GRID, "--no-check", "--json", "--comment=mine", "count.sh")

    def change(what, number):
        answer = run(capsys, "queue", what, number, "--json")
        assert answer.code == 0, answer.err
        kept = header(capsys, "queue", what, number, "-P")
        assert_keys_as_kept(f"verbs/queue {what}.txt", json.loads(answer.out), kept)

    number = submit(capsys, *words)["job_id"]
    change("hold", number)
    assert seen(number).held
    change("release", number)
    wait_for(lambda: (job := seen(number)) and job.state == RUNNING)
    assert decode(seen(number).comment)[0].users_own
    other = submit(capsys, *words)["job_id"]
    begin = seen(other).begin
    assert run(capsys, "queue", "forget", other).code == 0
    assert seen(other) is None
    said = ask(here, "squeue", "-h", "-j", other, "-O", "Comment:100").strip()
    assert said == "mine"
    assert begin > time.time()
    ask(here, "scancel", other)
    answer = run(capsys, "queue", "forget", other)
    assert answer.code == 2
    assert "no job" in answer.err
    Path("enough").touch()


def started_after_begin(here, turn=None) -> list[float]:
    """Return how long after their begins jobs have started, each on its own, in order."""
    Path("says.sh").write_text('#!/bin/sh\ndate +%s.%N > "started.$SLURM_JOB_ID"\n')
    waited = []
    for _ in range(MET):
        now = time.time()
        tag = Tag(token=new_token(), deadline=now + 9e4, arrival=now, run_s=60.0, begin=now + 1.6)
        submission = Submission.read(["--mem=50M", "-t", "5", "says.sh"], {})
        number = ask(here, *submission.command(tag, now=now))
        begin = wait_for(lambda number=number: seen(number)).begin
        told = Path(f"started.{number}")

        def is_told(told=told) -> bool:
            if turn is not None:
                turn()
            return told.exists() and told.read_text().strip()

        waited.append(float(wait_for(is_told)) - begin)
    return sorted(waited)


def test_begins_are_met_within_two_seconds_with_a_driver_and_without(here):
    clean = Signal.from_values([100.0] * 900, start=time.time() - 60.0, step_s=60.0)
    nudging = driver(clean, rules=Rules(settle_s=5.0), loops=None)
    alone, nudged = started_after_begin(here), started_after_begin(here, nudging.turn)
    print(f"begin to first line, n = {MET}, {os.getloadavg()[0]:.1f} programs want a CPU:")
    for name, waited in (("alone", alone), ("nudged", nudged)):
        print(f"{name:6} median {waited[MET // 2]:.1f} s, longest {waited[-1]:.1f} s")
    # Its loops are of two seconds; whoever has more to do than CPUs is given as long again.
    room_s = 2.0 * max(os.getloadavg()[0] / os.cpu_count(), 1.0)
    assert max(alone[MET // 2], nudged[MET // 2]) <= room_s
