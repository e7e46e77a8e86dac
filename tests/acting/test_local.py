"""A program on this machine: waits, is paused with all of it, and is never left paused."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace

import pytest

from lowtide.acting import local
from lowtide.acting.driver import Driver
from lowtide.acting.judge import Rules
from lowtide.acting.local import SAVED, LocalBackend
from lowtide.acting.promise import NO_LOOPS
from lowtide.acting.reckoning import Reckoning, amount, paused_and_running_w
from lowtide.acting.tag import Tag, decode
from lowtide.acting.waits import WaitModel
from lowtide.errors import Refused
from lowtide.measuring.program import StartedProgram
from lowtide.profile import Phase, PowerProfile
from lowtide.signal import Signal
from support.commands import run
from support.recordings import make_run

PATIENCE_S = 60.0
START = 1_700_000_000.0
HOUR_S = 3600.0


def state_of(pid: int) -> str:
    with suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    return "gone"


def is_paused(pid: int) -> bool:
    # Who has just started another waits for it, until that one goes on.
    return state_of(pid) in ("T", "t", "D")


def wait_until(is_so) -> bool:
    until = time.monotonic() + PATIENCE_S
    while not is_so() and time.monotonic() < until:
        time.sleep(0.02)
    return bool(is_so())


class Pretended:
    """A program that does nothing but remember what it was told."""

    asked = False

    def __init__(self):
        self.told = []
        self.tree = SimpleNamespace(root=-1)

    def pause(self):
        self.told.append("pause")
        return [1, 2]

    def resume(self):
        self.told.append("resume")


@pytest.fixture
def clock(monkeypatch):
    now = SimpleNamespace(s=START)
    monkeypatch.setattr(local, "time", SimpleNamespace(time=lambda: now.s))
    return now


def day(*values: float) -> Signal:
    return Signal.from_values(list(values), start=START, step_s="1h")


def made(signal, *, run_s, deadline_s, **settings):
    tag = Tag(
        token="a",
        deadline=START + deadline_s,
        arrival=START,
        run_s=run_s,
        wait_s=0.0,
        interruptible=True,
        max_starts=1000,
    )
    backend = LocalBackend(tag=tag, **settings)
    driver = Driver(
        backend=backend,
        forecast=lambda _: signal,
        waits=WaitModel(unknown_s=0.0),
        loops=NO_LOOPS,
        rules=Rules.on_this_machine(run_s, 600.0),
    )
    return backend, driver


def test_it_waits_for_clean_hours_pauses_in_dirty_ones_and_keeps_its_progress(clock):
    grid = day(500, 100, 500, 500, 100, 500, 500, 500)
    backend, driver = made(grid, run_s=2 * HOUR_S, deadline_s=8 * HOUR_S)
    program = Pretended()
    begun = False
    while clock.s < START + 8 * HOUR_S:
        driver.turn()
        if backend.is_due and not begun:
            begun = True
            backend.started(program)
        backend.attend()
        done_s = sum(each.work_s for each in backend.runs)
        if begun and not backend.is_paused:
            done_s += clock.s - backend._seen.started
        if done_s >= 2 * HOUR_S:
            backend.ended(0)
            break
        clock.s += 60.0
    assert program.told == ["pause", "resume"]
    worked = [(each.start - START, each.work_s) for each in backend.runs]
    assert worked[0][0] == pytest.approx(HOUR_S, abs=120)
    assert worked[0][1] == pytest.approx(HOUR_S, abs=120)
    assert worked[1][0] == pytest.approx(4 * HOUR_S, abs=120)
    profile = PowerProfile.constant(1000, "2h")
    assert amount(profile, backend.runs, grid) == pytest.approx(200.0, rel=0.05)


def test_what_saves_is_started_again_and_any_other_end_is_the_end(clock):
    backend, driver = made(day(*[100] * 9), run_s=HOUR_S, deadline_s=8 * HOUR_S, with_signal=12)
    driver.turn()
    assert backend.is_due
    backend.started(Pretended())
    clock.s += 1800.0
    assert backend.ended(SAVED)
    assert decode(backend.look().jobs[0].comment)[0].progress_s == 1800.0
    driver.turn()
    assert backend.is_due
    backend.started(Pretended())
    assert not backend.ended(1)
    assert not backend.is_due


def test_what_it_takes_to_save_here_is_no_work(clock):
    backend, driver = made(day(*[100] * 9), run_s=HOUR_S, deadline_s=8 * HOUR_S, with_signal=12)
    driver.turn()
    for worked_s, progress_s in ((1800.0, 1800.0), (1200.0, 3000.0)):
        # Whoever listens, it is nobody.
        hears = SimpleNamespace(listeners=lambda *_, **__: [2**22 + 1])
        backend.started(SimpleNamespace(tree=hears))
        clock.s += worked_s
        backend.stop(backend.look().jobs[0])
        clock.s += 900.0
        assert backend.ended(SAVED)
        assert decode(backend.look().jobs[0].comment)[0].progress_s == progress_s


def test_a_program_that_is_only_paused_has_no_word_for_saved(clock):
    backend, driver = made(day(*[100] * 9), run_s=HOUR_S, deadline_s=8 * HOUR_S)
    driver.turn()
    backend.started(Pretended())
    assert not backend.ended(SAVED)


def test_all_of_a_program_is_paused_whatever_sessions_it_made():
    words = "setsid sleep 300 & (setsid sh -c 'sleep 300 & sleep 300' &) ; sleep 300"
    program = StartedProgram.start(["sh", "-c", words], environment=dict(os.environ))
    try:
        assert wait_until(lambda: len(program.tree.living()) >= 6)
        pids = program.pause()
        assert set(program.tree.living()) <= set(pids)
        assert wait_until(lambda: all(is_paused(pid) for pid in program.tree.living()))
        program.resume()
        assert wait_until(lambda: not any(is_paused(pid) for pid in program.tree.living()))
        program.pause()
        # Even what is paused hears that it shall end.
        program.ask(signal.SIGTERM, patience_s=PATIENCE_S)
        assert wait_until(program.is_over)
    finally:
        program.kill()
        program.close()


# Counts to twelve, a step each half a second, and saves where it is when it is asked to.
SAVER = """
import os, signal, sys, time
time.sleep(float(os.environ.get("LATE", "0")))
done = int(open("saved").read()) if os.path.exists("saved") else 0

def save(*_):
    open("saved", "w").write(str(done))
    sys.exit(75)

signal.signal(signal.SIGUSR1, save)
open("ready", "w").close()
while done < int(os.environ.get("STEPS", "12")):
    time.sleep(0.5)
    done += 1
open("done", "w").close()
"""
WRAPPED = {
    "a shell": "python3 saver.py || exit $?",
    "a session of its own": "setsid -w python3 saver.py || exit $?",
    "a shell that becomes it": "exec python3 saver.py",
    "a shell in the background": "python3 saver.py & wait $!; exit $?",
    "shells in shells": "sh -c 'bash -c \"python3 saver.py; exit \\$?\"; exit $?'; exit $?",
    "beside a child that knows no signal": "sleep 60 & python3 saver.py; s=$?; kill $!; exit $s",
}


def started_in(folder, monkeypatch, words, **settings):
    monkeypatch.chdir(folder)
    (folder / "saver.py").write_text(SAVER)
    (folder / "t.sh").write_text(words + "\n")
    backend, driver = made(day(*[100] * 9), run_s=HOUR_S, deadline_s=1e9, **settings)
    driver.turn()
    environment = {**os.environ, "STEPS": "600"}
    program = StartedProgram.start(["sh", "t.sh"], environment=environment)
    backend.started(program)
    return backend, program


@pytest.mark.parametrize("how", list(WRAPPED))
def test_whoever_listens_is_asked_to_save_and_nobody_else(how, tmp_path, monkeypatch):
    backend, program = started_in(tmp_path, monkeypatch, WRAPPED[how], with_signal=signal.SIGUSR1)
    try:
        assert wait_until((tmp_path / "ready").exists)
        backend.stop(backend.look().jobs[0])
        assert wait_until(lambda: program.poll() is not None)
        assert backend.ended(program.status), program.status
        assert (tmp_path / "saved").exists()
    finally:
        program.kill()
        program.close()


def test_nobody_is_signalled_before_anybody_listens(tmp_path, monkeypatch):
    monkeypatch.setenv("LATE", "2")
    words = WRAPPED["a shell"]
    backend, program = started_in(tmp_path, monkeypatch, words, with_signal=signal.SIGUSR1)
    try:
        with pytest.raises(Refused, match="nobody of the program listens for SIGUSR1"):
            backend.stop(backend.look().jobs[0])
        assert wait_until((tmp_path / "ready").exists)
        assert program.poll() is None
        # Asked again, it is heard.
        backend.stop(backend.look().jobs[0])
        assert wait_until(lambda: program.poll() is not None)
        assert backend.ended(program.status)
    finally:
        program.kill()
        program.close()


def test_who_never_listens_is_deaf_and_left_to_run(clock):
    grid = day(100, 900, 100, 100, 100, 100, 100, 100, 100)
    backend, driver = made(grid, run_s=2 * HOUR_S, deadline_s=8 * HOUR_S, with_signal=12)
    driver.turn()
    backend.started(SimpleNamespace(tree=SimpleNamespace(listeners=lambda *_, **__: [])))
    problems = set()
    while clock.s < START + 2 * HOUR_S:
        clock.s += 60.0
        problems |= {deed.problem for deed in driver.turn().deeds}
    tag, _ = decode(backend.look().jobs[0].comment)
    assert tag.deaf
    assert any("listens" in each for each in problems)
    assert backend.look().jobs[0].state == "running"


def run_dirty(tmp_path, monkeypatch, capfd, words, *more):
    """Run a script of six seconds on a grid that is dirty from the third to the tenth."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "saver.py").write_text(SAVER)
    (tmp_path / "t.sh").write_text(words + "\n")
    now = time.time()
    values = [9000.0 if 4 <= step < 12 else 100.0 for step in range(400)]
    rows = [f"{now - 1 + step},{value}" for step, value in enumerate(values)]
    text = "\n".join(["time,carbon_intensity (gCO2eq/kWh)", *rows]) + "\n"
    (tmp_path / "s.csv").write_text(text)
    options = ["--signal", "s.csv", "-t", "0:00:07", "--min-run", "1s", "-o", "rec", "--json"]
    return run(capfd, "run", *options, *more, "--save-on", "USR1", "--", "sh", "t.sh")


def test_a_script_around_a_program_that_saves_is_stopped_and_goes_on(tmp_path, monkeypatch, capfd):
    words = WRAPPED["a shell"]
    answer = run_dirty(tmp_path, monkeypatch, capfd, words, "--finish-by", "+5m")
    assert answer.code == 0, answer.err
    assert (tmp_path / "saved").exists(), answer.err
    assert (tmp_path / "done").exists()
    assert json.loads(answer.out)["exit_status"] == 0


def test_what_failed_has_saved_nothing(tmp_path, monkeypatch, capfd):
    words = "sleep 1; exit 3"
    answer = run_dirty(tmp_path, monkeypatch, capfd, words, "--finish-by", "+5m")
    assert answer.code == 3
    assert json.loads(answer.out)["saving"] is None
    for counts, saving in ((True, 0.5), (False, None)):
        known = Reckoning(measured=1.0, replayed=1.0, at_once=2.0, counts=counts)
        assert known.saving == saving


KILLED = """
import os, sys, time
from lowtide.acting.local import LocalBackend
from lowtide.acting.tag import Tag
from lowtide.measuring.program import StartedProgram

backend = LocalBackend(tag=Tag(token="a", deadline=time.time() + 900, arrival=0.0, run_s=60.0))
backend.prepare()
program = StartedProgram.start(["sh", "-c", "sleep 300 & sleep 300"], environment=dict(os.environ))
backend.begin(None, 0.0, backend.look().jobs[0].comment)
backend.started(program)
while len(program.tree.living()) < 3:
    time.sleep(0.02)
backend.stop(backend.look().jobs[0])
print(*program.tree.living(), flush=True)
time.sleep(300)
"""


def test_what_was_paused_goes_on_when_whoever_paused_it_is_killed():
    process = subprocess.Popen([sys.executable, "-c", KILLED], stdout=subprocess.PIPE, text=True)
    pids = []
    try:
        pids = [int(each) for each in process.stdout.readline().split()]
        assert len(pids) == 3
        assert wait_until(lambda: all(is_paused(pid) for pid in pids))
        process.kill()
        process.wait()
        assert wait_until(lambda: not any(is_paused(pid) for pid in pids))
        assert all(state_of(pid) != "gone" for pid in pids)
    finally:
        process.kill()
        process.wait()
        process.stdout.close()
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def test_run_passes_on_how_it_ended_and_says_what_it_came_to(tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    words = ["--grid", "windy", "--interval", "0.1", "-o", "rec", "--json"]
    answer = run(capfd, "run", *words, "-t", "0:00:01", "--", "sh", "-c", "sleep 0.3; exit 3")
    assert answer.code == 3
    said = json.loads(answer.out)
    assert said["exit_status"] == 3
    assert said["finish_by"] is None
    assert "it runs now" in said["why"]
    assert (tmp_path / "rec").is_dir()


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["--finish-by", "+2s", "-t", "1:00:00", "--grid", "windy"], "will be late by"),
        (["--finish-by", "+9h", "-t", "1:00:00"], "no forecast"),
        (["--finish-by", "+9h", "--grid", "windy"], "neither -t nor --profile"),
        (["-t", "1:00:00", "--grid", "windy"], "no --finish-by"),
    ],
)
def test_in_doubt_it_runs_now_and_says_why(words, reason, capsys):
    answer = run(capsys, "run", *words, "--dry-run", "--json", "--", "sleep", "1")
    said = json.loads(answer.out)
    assert reason in said["why"]
    assert abs(time.time() - lt_time(said["begin"])) < PATIENCE_S


def lt_time(text: str) -> float:
    from lowtide.units import parse_time

    return parse_time(text)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--finish-by", "2020-01-01", "--", "true"], "has passed"),
        (["--pause", "--save-on", "USR1", "--", "true"], "not both"),
        (["--save-on", "KILL", "--", "true"], "can hear"),
        (["--save-on", "BANANA", "--", "true"], "can hear"),
        ([], "say what to run"),
        (["--profile", "h200", "-t", "1:00:00", "--", "true"], "leave out -t"),
    ],
)
def test_what_makes_no_sense_is_refused(words, said, capsys):
    answer = run(capsys, "run", *words)
    assert answer.code == 2
    assert said in answer.err


def test_what_cannot_be_run_is_said_before_anything_waits(capsys):
    answer = run(capsys, "run", "--finish-by", "+9h", "--", "no-such-program")
    assert answer.code == 127
    assert "Nothing was run" in answer.err


def test_what_is_paused_starts_up_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    profile = PowerProfile(
        startup=[Phase(name="start", duration_s="20m", power_w=600)],
        work=[Phase(name="work", duration_s="2h", power_w=900)],
    )
    profile.dump(tmp_path / "p.toml")
    # Clean for an hour and a half, dirty for three, clean again: it is done best in two parts.
    now = time.time()
    at = [now + 0.5 * HOUR_S * step for step in range(-1, 20)]
    values = [100.0 if step < 3 or step >= 9 else 800.0 for step in range(-1, 20)]
    rows = [f"{instant},{value}" for instant, value in zip(at, values, strict=True)]
    (tmp_path / "s.csv").write_text("\n".join(["time,carbon_intensity (gCO2eq/kWh)", *rows]) + "\n")
    planned = {}
    for how in (["--pause"], ["--save-on", "USR1"]):
        words = ["--signal", str(tmp_path / "s.csv"), "--profile", str(tmp_path / "p.toml")]
        words += [*how, "--finish-by", "+6h", "--min-run", "10m", "--dry-run", "--json"]
        answer = run(capsys, "run", *words, "--", "true")
        assert answer.code == 0, answer.err
        planned[how[0]] = json.loads(answer.out)["planned"]
    once = 100 * (0.6 / 3 + 0.9 * 2)
    assert planned["--pause"] == pytest.approx(once, rel=0.02)
    assert planned["--save-on"] == pytest.approx(once + 100 * 0.6 / 3, rel=0.02)


def test_what_is_drawn_while_paused_is_told_from_the_rest() -> None:
    made = make_run("full_0", [(30.0, 500.0), (40.0, 120.0), (20.0, 300.0)], labels=(), noise_w=0.0)
    begin = made.start + 30.0 * made.duration_s / 90.0
    end = begin + 40.0 * made.duration_s / 90.0
    paused_w, running_w = paused_and_running_w([made], [(begin, end)])
    assert paused_w == pytest.approx(120.0, rel=0.1)
    assert running_w == pytest.approx((30 * 500 + 20 * 300) / 50, rel=0.1)
