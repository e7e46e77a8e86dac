"""What goes wrong on a real Slurm, row by row: daemons, drivers and wrappers are really killed."""

from __future__ import annotations

import contextlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from lowtide.acting.backend import PENDING
from lowtide.acting.driver import Driver
from lowtide.acting.slurm import SlurmBackend
from lowtide.acting.submission import Submission
from lowtide.acting.tag import Tag, decode, encode, new_token
from lowtide.acting.waits import WaitModel
from lowtide.signal import Signal
from support.commands import run
from support.nightly import drawn
from support.slurm import RunningSlurm, ask, running_slurm
from support.slurm_jobs import (
    EAGER,
    PATIENCE_S,
    counting_in,
    driver,
    members_of,
    nothing_lost_nothing_doubled,
    runs,
    seen,
    steps,
    submitted,
    wait_for,
    waits_again,
)

pytestmark = [pytest.mark.alone, pytest.mark.slurm]

# How long Slurm keeps back what was requeued, so that nobody has to wait for two minutes here.
EXPIRES_S = 8
SETTINGS = f"""\
AuthInfo=socket={{folder}}/munge.sock,cred_expire={EXPIRES_S}
Prolog={{folder}}/prolog
"""


@pytest.fixture(scope="module")
def frail() -> Iterator[RunningSlurm]:
    """A Slurm whose daemons may be killed, and whose nodes may refuse to start a job."""
    with running_slurm(nodes=2, more=SETTINGS) as slurm:
        prolog(slurm, "exit 0")
        yield slurm


def prolog(slurm: RunningSlurm, *lines: str) -> None:
    path = Path(slurm["SLURM_CONF"]).with_name("prolog")
    new = path.with_suffix(".new")
    new.write_text("\n".join(["#!/bin/sh", *lines, ""]))
    new.chmod(0o755)
    new.rename(path)


@pytest.fixture
def here(frail, tmp_path, monkeypatch):
    """A folder with a script, from which Slurm can be asked."""
    with counting_in(frail, tmp_path, monkeypatch):
        yield frail


def dirty(for_s: float) -> Signal:
    """A grid that is dirty from now on for a while, and clean after that."""
    count = int(for_s // 5)
    return Signal.from_values([900.0] * count + [100.0] * 3000, start=time.time() - 5.0, step_s=5.0)


def crash(slurm: RunningSlurm) -> None:
    """Kill the controller, and start it again with whatever it has kept."""
    slurm.daemons["slurmctld"].kill()
    slurm.daemons["slurmctld"].start()
    wait_for(lambda: "UP" in ask(slurm, "scontrol", "ping"))


def change_something(slurm: RunningSlurm) -> str:
    """Have the controller write everything down: what comes within five seconds after is not."""
    number = ask(slurm, "sbatch", "--parsable", "-H", "--mem=50M", "--wrap", "true")
    time.sleep(0.3)
    return number


def test_without_any_driver_a_job_starts_at_the_begin_it_carries(here):
    number, tag = submitted(here, begin_s=4.0)
    job = wait_for(runs(number))
    assert int(tag.begin) - 1 <= job.started <= tag.begin + PATIENCE_S


def test_a_controller_that_is_down_at_the_begin_starts_the_job_when_it_is_back(here):
    number, tag = submitted(here, begin_s=4.0)
    controller = here.daemons["slurmctld"]
    controller.end()
    turn = driver(dirty(60.0)).turn()
    assert turn.problems
    assert not turn.deeds
    time.sleep(max(tag.begin + 1.0 - time.time(), 0.0))
    controller.start()
    job = wait_for(lambda: "UP" in ask(here, "scontrol", "ping") and runs(number)())
    assert job.started > tag.begin


def test_what_a_controller_has_forgotten_is_written_again(here):
    number, _ = submitted(here, begin_s=3000.0)
    # Long enough ago to be kept, unlike what follows.
    time.sleep(5.5)
    change_something(here)
    grid = dirty(600.0)
    driver(grid).turn()
    wanted = seen(number).begin
    assert abs(wanted - (grid.start + 600.0)) < PATIENCE_S
    crash(here)
    # Forgotten or not, the next one who looks leaves it where it should be, and says so in its tag.
    driver(grid).turn()
    job = seen(number)
    assert job.begin == pytest.approx(wanted, abs=PATIENCE_S)
    assert decode(job.comment)[0].begin == pytest.approx(job.begin, abs=5.0)
    # Plans are as fine as there is time for, and a busy machine takes seconds between two.
    assert not driver(grid, rules=replace(EAGER, least_move_s=60.0)).turn().deeds


def test_what_a_controller_has_lost_is_submitted_anew_and_a_stranger_is_not_touched(
    here, capsys, monkeypatch
):
    submitting = sys.modules["lowtide.cli.submitting"]
    monkeypatch.setattr(submitting, "_SETTLED_S", 0.0)
    strangers: list[str] = []
    numbers: list[str] = []

    def after_a_crash(backend, number, tag, has=submitting._has):
        numbers.append(number)
        if len(numbers) == 1:
            crash(here)
            # Numbers that were lost are given out again, that of the job among them.
            strangers.append(change_something(here))
            while int(strangers[-1]) < int(number):
                strangers.append(change_something(here))
        return has(backend, number, tag)

    monkeypatch.setattr(submitting, "_has", after_a_crash)
    words = ("--finish-by", "+30h", "--grid", "windy", "--json", "count.sh")
    for _ in range(5):
        # A machine that is busy may take longer to submit than there is to be forgotten.
        strangers.clear()
        numbers.clear()
        change_something(here)
        said = json.loads(run(capsys, "sbatch", *words).out)
        jobs = SlurmBackend().look().jobs
        assert [decode(job.comment)[0].token for job in jobs].count(said["token"]) == 1
        if strangers[-1] == numbers[0]:
            break
    assert strangers[-1] == numbers[0] != said["job_id"], "the crash has lost nothing"
    before = ask(here, "scontrol", "show", "job", numbers[0])
    driver(dirty(600.0)).turn()
    assert ask(here, "scontrol", "show", "job", numbers[0]) == before


def test_a_wrapper_killed_between_requeue_and_begin_costs_carbon_alone(here, tmp_path):
    # It requeues, and whoever asked it to is gone.
    real = shutil.which("scontrol", path=here["PATH"])
    tools = tmp_path / "tools"
    tools.mkdir()
    (tools / "scontrol").write_text(
        f'#!/bin/bash\n"{real}" "$@"; [ "$1" = requeue ] && kill -9 $PPID\nexit 0\n'
    )
    (tools / "scontrol").chmod(0o755)
    number, _ = submitted({**here, "PATH": f"{tools}:{here['PATH']}"})
    wait_for(lambda: len(steps()) > 30)
    job = seen(number)
    backend = SlurmBackend()
    tag, text = decode(job.comment)
    backend.note(job, encode(replace(tag, begin=time.time() + 3000.0), text))
    backend.stop(job)
    again = wait_for(waits_again(number))
    # Its begin is Slurm's own and comes soon; what it has saved is known.
    assert again.begin < time.time() + EXPIRES_S + 5.0
    assert decode(again.comment)[0].progress_s > 0
    done = int(Path("saved").read_text())
    wait_for(lambda: len(steps()) > done)
    assert nothing_lost_nothing_doubled()


def test_a_failed_node_costs_what_was_not_saved_and_the_driver_goes_on(here):
    number, _ = submitted(here)
    wait_for(lambda: len(steps()) > 5)
    Path("saved").write_text("3")
    node = ask(here, "squeue", "-h", "-j", number, "-o", "%N")
    lose_power(here, node, number)
    done = len(steps())
    # The controller would find out by itself after minutes.
    ask(here, "scontrol", "update", f"NodeName={node}", "State=DOWN", "Reason=test")
    try:
        wait_for(waits_again(number))
        # Now is as clean as it gets: Slurm's own delay is not waited for.
        grid = Signal.from_values([100.0] * 9000, start=time.time() - 5.0, step_s=5.0)

        def goes_on():
            driver(grid).turn()
            return len(steps()) > done

        wait_for(goes_on)
    finally:
        here.daemons[node].start()
        ask(here, "scontrol", "update", f"NodeName={node}", "State=RESUME")
    # From what it had saved, and what it did since once more.
    assert steps() == [*range(done), *range(3, 3 + len(steps()) - done)]


def lose_power(slurm: RunningSlurm, node: str, number: str) -> None:
    """Kill all that a node runs: both are on this machine, and what went on would be heard of."""
    slurm.daemons[node].kill()
    while members := members_of(slurm, number):
        # Who looks after the job would tell how it ended, and is no child of the daemon.
        keepers = {int(Path(f"/proc/{pid}/stat").read_text().split()[3]) for pid in members}
        for pid in (*(pid for pid in keepers if is_keeper(pid)), *members):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.05)


def is_keeper(pid: int) -> bool:
    return b"slurmstepd" in Path(f"/proc/{pid}/cmdline").read_bytes()


def test_who_was_killed_before_it_could_be_requeued_is_brought_back(here, capsys):
    number, tag = submitted(here)
    wait_for(lambda: len(steps()) > 20)
    # It is known from then on, and was asked to save.
    assert run(capsys, "drive", "--once", "--grid", "windy").code == 0
    backend, job = SlurmBackend(), seen(number)
    backend.note(job, encode(replace(decode(job.comment)[0], asked=1, asked_at=time.time())))
    Path("saved").write_text("3")
    (wrapper,) = (
        pid
        for pid in members_of(here, number)
        if b"slurm_script" in Path(f"/proc/{pid}/cmdline").read_bytes()
    )
    os.kill(wrapper, signal.SIGKILL)
    wait_for(lambda: seen(number) is None)
    assert "failed" in ask(here, "scontrol", "show", "job", number).lower()
    assert run(capsys, "drive", "--once", "--grid", "windy").code == 0
    again = wait_for(lambda: seen(number))
    assert decode(again.comment)[0].token == tag.token
    ask(here, "scontrol", "update", f"JobId={number}", "StartTime=now")
    # It goes on from what it had saved.
    wait_for(lambda: steps().count(3) == 2)


def test_what_slurm_itself_holds_is_let_go_once(here):
    prolog(here, "exit 1")
    try:
        number, _ = submitted(here)
        held = wait_for(lambda: (job := seen(number)) and job.stuck and job)
        assert held.held
    finally:
        prolog(here, "exit 0")
    for node in ("n1", "n2"):
        ask(here, "scontrol", "update", f"NodeName={node}", "State=RESUME")
    (deed,) = driver(None).turn().deeds
    assert (deed.move.kind, deed.problem) == ("release", "")
    released = seen(number)
    assert not released.held
    assert decode(released.comment)[0].released

    def starts():
        driver(None).turn()
        time.sleep(1.0)
        return runs(number)()

    wait_for(starts)


def test_the_time_zone_of_who_submits_does_not_move_a_begin(here, capsys, monkeypatch):
    # Five and a half hours and a summer time lie between who submits and the controller.
    monkeypatch.setenv("TZ", "Australia/Adelaide")
    time.tzset()
    try:
        words = ("--finish-by", "+30h", "--grid", "windy", "--no-check", "--json", "count.sh")
        said = json.loads(run(capsys, "sbatch", *words).out)
    finally:
        monkeypatch.delenv("TZ")
        time.tzset()
    job = seen(said["job_id"])
    tag = decode(job.comment)[0]
    assert job.begin == pytest.approx(tag.begin, abs=10.0)
    assert job.begin < tag.deadline


def test_a_driver_killed_at_random_moments_loses_nothing_and_doubles_nothing(here):
    number, tag = submitted(here, max_starts=1000)
    draw = random.Random(11)
    kills, stops, most = 0, 0, drawn(12, 50)
    until = time.monotonic() + drawn(60, 600)
    # One that dies between asking a job and telling it so has asked for nothing: the next one asks.
    hasty = replace(EAGER, patience_s=2.0, most_asked=1000)
    wait_for(lambda: steps())
    # What a driver loads when it plans for the first time would take most of each short life.
    time.sleep(1.0)
    driver(dirty(60.0), rules=hasty, dry=True).turn()
    while time.monotonic() < until and (kills < most or not stops):
        # A grid that is dirty for some seconds, again and again: there is always something to do.
        now = time.time()
        values = [900.0, 100.0, 100.0] * 1000
        grid = Signal.from_values(values, start=now - draw.uniform(0.0, 12.0), step_s=4.0)
        child = os.fork()
        if child == 0:
            try:
                while True:
                    driver(grid, rules=hasty).turn()
            finally:
                os._exit(0)
        time.sleep(draw.uniform(0.02, 1.5))
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        kills += 1
        job = seen(number)
        assert job is not None
        stops = max(stops, job.restarts)
        found = decode(job.comment)[0]
        assert (found.token, found.deadline) == (tag.token, float(int(tag.deadline)))
        if job.state == PENDING and job.begin is not None:
            assert job.begin <= max(tag.deadline - 1800.0, now + EXPIRES_S + PATIENCE_S)
    print(f"{kills} kills of the driver, {stops} stops of the job")
    assert kills >= min(most, 10)
    assert stops, "it was never stopped"
    done = len(steps())
    ask(here, "scontrol", "update", f"JobId={number}", "StartTime=now")
    wait_for(lambda: len(steps()) > done)
    assert nothing_lost_nothing_doubled()
    # One job it was, and one it is.
    assert len([job for job in SlurmBackend().look().jobs if tag.token in job.comment]) == 1


def test_a_thousand_tasks_of_an_array_take_one_look_and_one_move(here):
    now = time.time()
    tag = Tag(token=new_token(), deadline=now + 9e4, arrival=now, run_s=60.0, begin=now + 3000.0)
    submission = Submission.read(["-a", "0-999", "count.sh"], {})
    number = ask(here, *submission.command(tag, now=now))
    spent = time.process_time()
    turn = driver(dirty(3600.0)).turn()
    spent = time.process_time() - spent
    assert [deed.problem for deed in turn.deeds] == [""]
    job = seen(f"{number}_[0-999]")
    assert job.begin == pytest.approx(time.time() + 3600.0, abs=PATIENCE_S)
    assert spent < 5.0
    # Each of them is asked for by its number, not by that of the array.
    done = subprocess.run(
        ["squeue", "-h", "-r", "-j", number, "-o", "%S"], capture_output=True, text=True, check=True
    )
    assert len(set(done.stdout.split())) == 1


def test_nodes_that_are_reserved_are_free_at_the_begin_of_a_full_cluster(here):
    number, tag = submitted(here, begin_s=15.0, interruptible=False)
    clean = Signal.from_values([900.0] * 3 + [100.0] * 3000, start=time.time() - 0.5, step_s=5.0)

    def operate():
        return Driver(
            backend=SlurmBackend(operator=True, reserves=True),
            forecast=lambda _: clean,
            waits=WaitModel(unknown_s=0.0),
            rules=replace(EAGER, least_move_s=60.0),
        ).turn()

    (deed,) = operate().deeds
    assert (deed.move.kind, deed.problem) == ("reserve", "")
    assert operate().deeds == []
    # Both nodes are taken by whoever fits in before, and there are more than that in the queue.
    crowd = ("-N1", "--exclusive", "--mem=50M", "-t", "1", "--wrap", "sleep 6")
    for _ in range(16):
        ask(here, "sbatch", *crowd)
    job = wait_for(runs(number))
    assert job.started <= tag.begin + 5.0
    assert ask(here, "squeue", "-h", "-t", "PD", "-o", "%A"), "nobody else was waiting"
    ask(here, "scancel", number)
    wait_for(lambda: seen(number) is None)
    # Idle, it would be given back by itself after five minutes.
    ask(here, "scontrol", "delete", f"ReservationName=lowtide_{tag.token}")


def test_an_operator_lets_a_job_go_first_that_has_to_begin(here):
    blockers = [
        ask(here, "sbatch", "--parsable", "-N1", "--exclusive", "-t", "5", "--wrap", "sleep 6")
        for _ in range(2)
    ]
    # What ran before may take a moment to leave its node.
    wait_for(lambda: set(blockers) <= set(ask(here, "squeue", "-h", "-t", "R", "-o", "%A").split()))
    others = [
        ask(here, "sbatch", "--parsable", "-N2", "--exclusive", "-t", "5", "--wrap", "sleep 60")
        for _ in range(2)
    ]
    # It comes last, and who stands in line before it leaves it no time to wait.
    loops = SlurmBackend().look().loops
    number, _ = submitted(here, deadline=time.time() + 1800.0 + loops.total_s + 30.0)
    wait_for(lambda: (job := seen(number)) and job.why in ("Priority", "Resources"))
    assert driver(None).turn().deeds == []

    def operate():
        return Driver(
            backend=SlurmBackend(operator=True),
            forecast=lambda _: None,
            waits=WaitModel(unknown_s=0.0),
        ).turn()

    (deed,) = operate().deeds
    assert (deed.move.kind, deed.problem) == ("boost", "")
    assert seen(number).is_next
    # Asked again, there is nothing left to do.
    assert operate().deeds == []
    wait_for(runs(number))
    states = ask(here, "squeue", "-h", "-t", "PD", "-o", "%A").split()
    assert set(others) <= set(states), "it went behind the others"
