"""A program that counts, jobs of it on a test's Slurm, and what a driver makes of them."""

from __future__ import annotations

import getpass
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from lowtide.acting.backend import PENDING, RUNNING, Seen
from lowtide.acting.driver import Driver
from lowtide.acting.judge import Rules
from lowtide.acting.promise import NO_LOOPS
from lowtide.acting.slurm import SlurmBackend
from lowtide.acting.submission import Submission
from lowtide.acting.tag import Tag, new_token
from lowtide.acting.waits import WaitModel
from lowtide.signal import Signal
from support.slurm import ask

PATIENCE_S = 60.0
# Jobs of seconds are moved and stopped as others are within hours.
EAGER = Rules(settle_s=1.0, least_move_s=2.0, least_run_s=1.0, least_pause_s=2.0)
_COUNTS = """#!/bin/bash
#SBATCH -t 1:00:00 --mem=50M
exec python3 count.py "$@"
"""
# Writes down every step, in one write each, and how far it is when it is asked to save.
_COUNTING = """
import os, signal, subprocess, sys, time
done = int(open("saved").read()) if os.path.exists("saved") else 0

def save(*_):
    open("saved.new", "w").write(str(done))
    os.rename("saved.new", "saved")
    if "--requeues" not in sys.argv:
        sys.exit(75)
    # As PyTorch Lightning does: it requeues its own job, and goes on until it is killed.
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    subprocess.call(["scontrol", "requeue", os.environ["SLURM_JOB_ID"]])

signal.signal(signal.SIGUSR1, save)
while not os.path.exists("enough"):
    time.sleep(0.05)
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])
    with open("steps", "a") as file:
        print(done, file=file)
    done += 1
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGUSR1])
"""


@contextmanager
def counting_in(
    slurm: Mapping[str, str], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[None]:
    """Go to a folder with a script that counts, from which Slurm can be asked; end all jobs."""
    monkeypatch.chdir(folder)
    for name, value in slurm.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("LOWTIDE_ACTING", str(folder / "acting"))
    (folder / "count.sh").write_text(_COUNTS)
    (folder / "count.py").write_text(_COUNTING)
    yield
    monkeypatch.setenv("SLURM_CONF", slurm["SLURM_CONF"])
    (folder / "enough").touch()
    # Those that wait first: they would take the place of who is ended.
    for more in (("--state", "PENDING"), ()):
        ask(dict(slurm), "scancel", "--user", getpass.getuser(), *more)
    wait_for(lambda: not ask(dict(slurm), "squeue", "-h"))


def wait_for(is_so: Callable[[], Any]) -> Any:
    """Wait for something that a busy machine may take long for; return what it is."""
    until = time.monotonic() + PATIENCE_S
    while time.monotonic() < until:
        if found := is_so():
            return found
        time.sleep(0.1)
    raise AssertionError(f"it did not come to that: {SlurmBackend().look().jobs[:5]}")


def seen(number: str) -> Seen | None:
    """Return a job as the backend shows it, None once it is gone."""
    return {job.id: job for job in SlurmBackend().look().jobs}.get(number)


def runs(number: str) -> Callable[[], Seen | None]:
    """Return a question: whether a job runs."""
    return lambda: job if (job := seen(number)) and job.state == RUNNING else None


def waits_again(number: str) -> Callable[[], Seen | None]:
    """Return a question: whether a job that was stopped waits."""
    return lambda: job if (job := seen(number)) and job.state == PENDING and job.restarts else None


def submitted(
    slurm: Mapping[str, str], *words: str, begin_s: float | None = None, **changes: Any
) -> tuple[str, Tag]:
    """Submit the script that counts, with a tag as a test wants it; return number and tag.

    Args:
        words: What the program is given.
        begin_s: How many seconds from now it begins; None for now.
        changes: What the tag says else.
    """
    now = time.time()
    tag = Tag(
        token=new_token(),
        deadline=now + 9000.0,
        arrival=now,
        run_s=1800.0,
        stop_s=1.0,
        wait_s=0.0,
        interruptible=True,
        begin=None if begin_s is None else now + begin_s,
    )
    tag = replace(tag, **changes)
    submission = Submission.read(["count.sh", *words], {})
    Path("wrapped.sh").write_text(submission.wrapped())
    number = ask(dict(slurm), *submission.command(tag, now=now, wrapped=Path("wrapped.sh")))
    assert number, "it was not submitted"
    return number, tag


def driver(grid: Signal | None, **settings: Any) -> Driver:
    """Return a driver that knows nothing."""
    usual = {"waits": WaitModel(unknown_s=0.0), "loops": NO_LOOPS, "rules": EAGER}
    return Driver(backend=SlurmBackend(), forecast=lambda _: grid, **{**usual, **settings})


def steps() -> list[int]:
    """Return the steps that were done, in their order."""
    path = Path("steps")
    return [int(each) for each in path.read_text().split()] if path.exists() else []


def nothing_lost_nothing_doubled() -> bool:
    """Return whether each step was done once, in order."""
    done = steps()
    return done == list(range(len(done)))


def members_of(slurm: Mapping[str, str], number: str) -> list[int]:
    """Return the processes of a job of this Slurm: others have numbers of their own."""
    wanted = {f"SLURM_JOB_ID={number}".encode(), f"SLURM_CONF={slurm['SLURM_CONF']}".encode()}
    found = []
    for path in Path("/proc").glob("[0-9]*/environ"):
        with suppress(OSError):
            if wanted <= set(path.read_bytes().split(b"\0")):
                found.append(int(path.parent.name))
    return found
