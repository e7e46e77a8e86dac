"""Handing a job to Slurm once: who is cut off, or forgotten, leaves neither two of it nor none."""

from __future__ import annotations

import os
import re
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import typer

from lowtide.cli.output import waiting, warn
from lowtide.errors import NoSuchJob, Refused, SlurmProblem, Unreachable

if TYPE_CHECKING:
    from lowtide.acting.slurm import SlurmBackend
    from lowtide.acting.submission import Submission
    from lowtide.acting.tag import Tag

# What a controller that dies may forget of what it has said yes to, twice over.
_SETTLED_S = 10.0
# By how much the clocks of this machine and of Slurm's controller may differ.
_MOST_OFF_S = 30.0
# A busy controller may take long to take a job: who is cut off does not know whether it has.
_SUBMITTED_S = 120.0


class Order(Protocol):
    """A job that is to be handed in.

    Attributes:
        submission: What its user wrote.
        tag: What it carries, if `is_tagged`.
        begin: When it is to begin.
        wrapped: A script around its own, which is of no use once Slurm has it.
    """

    submission: Submission
    tag: Tag
    is_tagged: bool
    begin: float
    wrapped: Path | None

    def command(self, now: float) -> list[str]:
        """Return the sbatch that submits it, told when it is run.

        Args:
            now: When it is run.
        """


def submit(backend: SlurmBackend, order: Order, *, check: bool) -> str:
    """Submit a job, once; look again whether Slurm has kept it."""
    try:
        if "wait" in order.submission.options:
            return _waited_for(order.command(time.time()))
        at = time.time()
        number = _number(backend, order)
        if check and order.is_tagged:
            try:
                with waiting("looking whether Slurm has kept it"):
                    time.sleep(_SETTLED_S)
            except KeyboardInterrupt:
                warn(f"job {number} is submitted; whether Slurm has kept it was not looked at")
                raise
            if not _has(backend, number, order):
                warn(f"Slurm has lost job {number}: it is submitted anew")
                at = time.time()
                number = _number(backend, order)
            _mind_clocks(backend, number, at)
        return number
    finally:
        if order.wrapped is not None:
            with suppress(OSError):
                order.wrapped.unlink()


def _number(backend: SlurmBackend, order: Order) -> str:
    """Submit a job; return its number."""
    from lowtide.acting.slurm import asked

    patient = replace(backend, client=replace(backend.client, timeout_s=_SUBMITTED_S))
    problem = ""
    try:
        said = asked(patient, *order.command(time.time())).split()
        # Whoever was told to be quiet (-Q in a script) has said nothing.
        if said and said[-1].partition(";")[0].isdecimal():
            return said[-1].partition(";")[0]
    except Unreachable as error:
        # It may have been taken all the same.
        problem = f": {error}"
    with suppress(Unreachable, Refused):
        for job in backend.look().jobs:
            if order.is_tagged and f'"id":"{order.tag.token}"' in job.comment:
                return job.id.partition("_")[0]
    raise Unreachable(
        f"sbatch did not say whether the job was taken{problem}: look with squeue --me before you "
        "submit it again"
    )


def _waited_for(command: list[str]) -> str:
    """Run a submission that waits for the end of its job; end as it does where that failed."""
    import subprocess

    try:
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)  # noqa: S603
    except OSError as error:
        raise Refused(f"sbatch cannot be run: {error.strerror}") from None
    if done.returncode:
        raise typer.Exit(done.returncode)
    return (done.stdout.split() or [""])[-1].partition(";")[0]


def _has(backend: SlurmBackend, number: str, order: Order) -> bool:
    """Return whether Slurm has kept a job. In doubt it has: two of one job are worse than none."""
    try:
        said = backend.client.tell("scontrol", "show", "job", number)
    except NoSuchJob:
        site = backend.site
        # Who has begun may have ended, and be forgotten by now.
        ahead = order.begin > time.time() + 1.0
        return not ahead and site is not None and site.kept_s < 2 * _SETTLED_S
    except SlurmProblem as error:
        # It does not answer, or says no and nothing of the job.
        warn(f"it cannot be seen whether Slurm has kept job {number}: {error}")
        return True
    if order.tag.token in said:
        return True
    if f"JobId={number}" not in said:
        # An answer that tells of no job is none.
        warn(f"it cannot be seen whether Slurm has kept job {number}: it tells nothing of it")
        return True
    if '"id":"' in said.partition("lt1:{")[2]:
        # One of the user's own that was submitted after it, and has got its number.
        return False
    # A site may change comments. What has its number, its name and its user is no stranger.
    name = re.escape(order.submission.name)
    if not re.search(rf"\bJobName={name}\s+UserId=[^(]*\({os.getuid()}\)", said):
        return False
    warn(
        f"this Slurm does not keep the comment of job {number}: it begins when it is to, and "
        "lowtide drive cannot look after it"
    )
    return True


def _mind_clocks(backend: SlurmBackend, number: str, at: float) -> None:
    """Let a job begin now whose begin was told by a clock that the controller does not share.

    Args:
        at: When it was submitted, by the clock here.
    """
    with suppress(OSError):
        for job in backend.look().jobs:
            off_s = (job.submitted or at) - at
            if job.id.partition("_")[0] == number and abs(off_s) > _MOST_OFF_S:
                backend.begin(job, at, job.comment)
                warn(
                    f"the clocks of Slurm and of this machine differ by {off_s:.0f} s: job "
                    f"{number} begins now"
                )
