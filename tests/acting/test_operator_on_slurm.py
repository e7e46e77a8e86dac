"""An operator's Slurm: jobs deferred as they are handed in, large arrays, programs that requeue."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from lowtide.acting.backend import PENDING, RUNNING, Seen
from lowtide.acting.driver import Driver
from lowtide.acting.slurm import SlurmBackend
from lowtide.acting.submission import Submission
from lowtide.acting.table import write_table
from lowtide.acting.tag import Tag, decode, encode, new_token
from lowtide.acting.waits import WaitModel
from lowtide.signal import Signal
from support.slurm import RunningSlurm, ask, running_slurm
from support.slurm_jobs import (
    PATIENCE_S,
    counting_in,
    driver,
    seen,
    steps,
    submitted,
    wait_for,
    waits_again,
)

pytestmark = [pytest.mark.alone, pytest.mark.slurm]

LUA = (Path(__file__).parents[2] / "deploy" / "slurm" / "job_submit.lua").read_text()
# Long enough for who leaves to see whether the controller has kept that.
SETTINGS = """\
AuthInfo=socket={folder}/munge.sock,cred_expire=8
KillWait=15
MaxArraySize=10001
MaxJobCount=20000
JobSubmitPlugins=lua
"""


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("table") / "begins"


@pytest.fixture(scope="module")
def site(table: Path) -> Iterator[RunningSlurm]:
    """A Slurm whose controller reads a table as jobs are handed in."""
    lua = LUA.replace("/var/lib/lowtide/begins", str(table))
    with running_slurm(nodes=1, cpus=4, more=SETTINGS, files={"job_submit.lua": lua}) as slurm:
        yield slurm


@pytest.fixture
def here(site, tmp_path, monkeypatch):
    with counting_in(site, tmp_path, monkeypatch):
        Path("short.sh").write_text("#!/bin/sh\nsleep 1\n")
        yield site


def clean_from(seconds: float) -> Signal:
    """A grid that is dirty until then, and clean for days."""
    dirty = int(seconds // 60)
    values = [900.0] * dirty + [100.0] * (4 * 1440)
    return Signal.from_values(values, start=time.time() - 30.0, step_s=60.0)


def sbatch(site, comment: str, *more: str) -> Seen | None:
    words = ("--parsable", "--mem=50M", f"--comment={comment}", *more, "short.sh")
    return seen(ask(site, "sbatch", *words))


def test_who_says_green_to_sbatch_is_deferred_by_the_controller_itself(here, table):
    grid = clean_from(3 * 3600.0)
    backend = SlurmBackend()
    look = backend.look()
    write_table(table, grid, WaitModel(), look.loops, look.now)
    job = sbatch(here, "mine green;finish-by=+20h", "-t", "60")
    tag, text = decode(job.comment)
    # As the driver would have done it: at the first clean moment, with the same promise.
    assert (job.state, text) == (PENDING, "mine green;finish-by=+20h")
    clean = grid.start + 3 * 3600.0
    assert clean - 900.0 - 1.0 <= job.begin <= clean + 900.0
    assert (tag.run_s, tag.wait_s) == (3600.0, 4 * 3600.0)
    assert tag.begin == pytest.approx(job.begin, abs=2.0)
    assert tag.deadline == pytest.approx(time.time() + 20 * 3600.0, abs=PATIENCE_S)
    assert job.begin <= tag.deadline - tag.run_s - tag.wait_s - look.loops.total_s
    assert "lowtide: done by" in ask(here, "scontrol", "show", "job", job.id)
    # It is looked after from then on like any other.
    (verdict,) = Driver(backend=backend, forecast=lambda _: grid, dry=True).turn().verdicts
    assert verdict.what == "waits"
    # With little room it begins at the last moment that is clean enough and safe, or now.
    assert sbatch(here, "green;finish-by=+6h", "-t", "60") is not None
    for comment, more in (
        ("green;finish-by=+2h", ("-t", "60")),
        ("green;finish-by=soon", ("-t", "60")),
        ("green;finish-by=99:99", ("-t", "60")),
        ("green", ("-t", "60")),
        ("green;finish-by=+20h", ("-t", "60", "--begin=now+1hour")),
        ("nothing of that", ("-t", "60")),
    ):
        assert sbatch(here, comment, *more) is None, comment
    # Nobody has written for hours, or anything that makes sense.
    write_table(table, grid, WaitModel(), look.loops, look.now - 3 * 3600.0)
    assert sbatch(here, "green;finish-by=+20h", "-t", "60") is None
    for text in ("", "lowtide", "lowtide 1 x y z\nbegin 60 z\n", "\0" * 99):
        table.write_text(text)
        assert sbatch(here, "green;finish-by=+20h", "-t", "60") is None


def test_five_thousand_tasks_of_an_array_take_one_look_and_one_move(here):
    now = time.time()
    tag = Tag(token=new_token(), deadline=now + 9e4, arrival=now, run_s=60.0, begin=now + 3000.0)
    # With gaps, so that each has to be named.
    submission = Submission.read(["-a", "0-9998:2", "--mem=50M", "short.sh"], {})
    number = ask(here, *submission.command(tag, now=now))
    spent = time.process_time()
    turn = driver(clean_from(3600.0)).turn()
    spent = time.process_time() - spent
    assert [deed.problem for deed in turn.deeds] == [""]
    assert len(turn.verdicts) == 1
    assert spent < 5.0
    # Of a long array with a step squeue does not tell the last; scontrol does.
    told = re.findall(
        r"ArrayTaskId=(\S+) .*?EligibleTime=(\S+)",
        ask(here, "scontrol", "-o", "show", "job", number),
    )
    assert [tasks for tasks, _ in told] == ["0-9998:2"]
    assert turn.verdicts[0].seen.id.endswith(",9996,9998]")
    # What a user has taken apart stays apart.
    ask(here, "scontrol", "update", f"JobId={number}_8", "StartTime=now+9hours")
    driver(clean_from(7200.0)).turn()
    assert decode(seen(f"{number}_8").comment)[0].users_own


def counting(site, *words: str) -> str:
    """Submit a program that counts; return its number once it does."""
    number, _ = submitted(site, *words)
    wait_for(lambda: len(steps()) > 20)
    return number


def stop(number: str, again_s: float) -> None:
    """Ask a job to stop, as the driver does it."""
    backend, job = SlurmBackend(), seen(number)
    tag, text = decode(job.comment)
    told = replace(tag, begin=time.time() + again_s, asked=1, asked_at=time.time())
    backend.note(job, encode(told, text))
    backend.stop(job)


def goes_on(site, number: str, *, more: int = 0) -> None:
    """Let a job begin again; see that it goes on where it was, and nothing was done twice.

    Args:
        more: How many steps it may have done since it saved.
    """
    done, saved = len(steps()), int(Path("saved").read_text())
    assert 0 <= done - saved <= more
    # Told while its node is not free yet, Slurm would keep it back for its own delay.
    wait_for(lambda: not ask(site, "squeue", "-h", "-t", "CG"))
    ask(site, "scontrol", "update", f"JobId={number}", "StartTime=now")
    wait_for(lambda: len(steps()) > done)
    assert steps() == [*range(done), *range(saved, saved + len(steps()) - done)]


def test_a_requeue_that_the_controller_forgets_loses_no_job(here):
    number = counting(here)
    # What it has written down by now it knows; what follows within five seconds it forgets.
    time.sleep(5.5)
    ask(here, "sbatch", "-H", "--mem=50M", "--wrap", "true")
    time.sleep(0.3)
    stop(number, 3000.0)
    wait_for(lambda: ask(here, "squeue", "-h", "-j", number, "-o", "%T") != "RUNNING")
    here.daemons["slurmctld"].kill()
    here.daemons["slurmctld"].start()
    wait_for(lambda: "UP" in ask(here, "scontrol", "ping"))
    # It would be said to run for ever, and nobody does.
    job = wait_for(waits_again(number))
    assert job.begin > time.time() + 2000.0
    goes_on(here, number)


def test_a_program_that_requeues_itself_and_runs_on_is_ended_and_begins_as_planned(here):
    number = counting(here, "--requeues")
    stop(number, 3000.0)
    job = wait_for(waits_again(number))
    assert job.begin == pytest.approx(time.time() + 3000.0, abs=PATIENCE_S)
    assert decode(job.comment)[0].progress_s > 0
    # Slurm kills what a job runs one by one, who waits for a program after that.
    goes_on(here, number, more=1)


SUBMITTED = """
import os, sys, time
import submitit

class Counts:
    def __init__(self, done=0):
        self.done = done
    def __call__(self):
        while not os.path.exists("enough"):
            time.sleep(0.05)
            self.done += 1
            with open("steps", "a") as file:
                print(self.done - 1, file=file)
        return self.done
    def checkpoint(self):
        open("saved", "w").write(str(self.done))
        return submitit.helpers.DelayedSubmission(Counts(self.done))

executor = submitit.AutoExecutor(folder="logs", cluster="slurm")
executor.update_parameters(timeout_min=60, mem_gb=0.1, cpus_per_task=1)
job = executor.submit(Counts())
print("number", job.job_id, flush=True)
print("result", job.result())
"""


def test_submitit_goes_on_unmodified(here, monkeypatch):
    Path("submitted.py").write_text(SUBMITTED)
    tools = Path("tools")
    tools.mkdir()
    # Whoever calls sbatch gets lowtide, which calls the real one.
    (tools / "sbatch").write_text(
        f"#!/bin/sh\nPATH={os.environ['PATH']} exec {sys.executable} -m lowtide sbatch "
        '--finish-by +2h --grid windy --saves --no-check "$@"\n'
    )
    (tools / "sbatch").chmod(0o755)
    environment = {**os.environ, "PATH": f"{tools.absolute()}:{os.environ['PATH']}"}
    words = [sys.executable, "submitted.py"]
    submitting = subprocess.Popen(words, env=environment, stdout=subprocess.PIPE, text=True)
    try:
        assert submitting.stdout is not None
        number = submitting.stdout.readline().split()[1]
        wait_for(lambda: len(steps()) > 20)
        stop(number, 3000.0)
        job = wait_for(waits_again(number))
        assert job.begin > time.time() + 2000.0
        done = int(Path("saved").read_text())
        wait_for(lambda: not ask(here, "squeue", "-h", "-t", "CG"))
        ask(here, "scontrol", "update", f"JobId={number}", "StartTime=now")
        wait_for(lambda: len(steps()) > done + 5 and seen(number).state == RUNNING)
        Path("enough").touch()
        told = submitting.stdout.read()
    finally:
        submitting.kill()
        submitting.communicate()
    assert re.search(r"^result (\d+)$", told, re.M)[1] == str(steps()[-1] + 1)
