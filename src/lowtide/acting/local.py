"""A program on this machine that waits for clean hours, and is paused or saved in dirty ones.

It is a backend of one job. What is paused keeps its memory and goes on where it stood; what can
save is asked to by a signal, which is sent to whoever of it listens and to nobody else; it leaves
with exit code 75 and is started again. Should this process be killed, whatever it has paused goes
on.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import dataclass, field, replace

from lowtide.acting.backend import OVER, PENDING, RUNNING, Look, Seen
from lowtide.acting.gpu_pause import GpuPause
from lowtide.acting.tag import Tag, decode, encode
from lowtide.errors import Refused
from lowtide.measuring.program import StartedProgram
from lowtide.schedule import Stretch

# What a program that has saved and wants to go on exits with (EX_TEMPFAIL).
SAVED = 75
# Lets go on what is paused when whoever paused it is gone: each line names all that is. What it is
# given besides is run for these then.
_GUARDIAN = """\
while read -r line; do pids=$line; done
[ -z "$pids" ] || { kill -CONT $pids 2>/dev/null; [ $# = 0 ] || exec "$@" $pids; }
"""


@dataclass(slots=True, kw_only=True)
class LocalBackend:
    """A program that is to be run here.

    Attributes:
        tag: What the job would carry in its comment.
        with_signal: How it is asked to save; None to pause it where it stands.
        gpus: Who takes it off its GPUs before it is paused; None to leave it there.
        troubles: What went wrong with that, in words.
        runs: Its starts so far, with the work that each did.
        pauses: When it was paused, and when it went on.
    """

    tag: Tag
    with_signal: signal.Signals | None = None
    gpus: GpuPause | None = None
    troubles: list[str] = field(default_factory=list, init=False)
    runs: list[Stretch] = field(default_factory=list, init=False)
    pauses: list[tuple[float, float]] = field(default_factory=list, init=False)
    _seen: Seen = field(init=False)
    _program: StartedProgram | None = field(default=None, init=False)
    _paused_at: float | None = field(default=None, init=False)
    _asked_at: float | None = field(default=None, init=False)
    _asks: int = field(default=0, init=False)
    _gpus_do: str = field(default="", init=False)
    _guardian: subprocess.Popen[bytes] | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        # Until its begin was decided on it is not submitted.
        self._seen = Seen(id="local", state=PENDING, comment=encode(self.tag))

    def now(self) -> float:
        """Return what time it is."""
        return time.time()

    def look(self) -> Look:
        """Return the one job."""
        return Look(jobs=[self._seen], now=time.time())

    def can(self) -> frozenset[str]:
        """Return that it can be stopped."""
        return frozenset(("stop",))

    @property
    def begin_at(self) -> float:
        """When the job is to begin, or to go on."""
        return self._seen.begin or 0.0

    @property
    def is_due(self) -> bool:
        """Whether the time has come."""
        return self._seen.state == PENDING and self.begin_at <= time.time()

    @property
    def is_paused(self) -> bool:
        """Whether it stands still in the midst of its work."""
        return self._paused_at is not None

    def begin(self, job: Seen, at: float, comment: str) -> None:
        """Let the job not start, or go on, before a moment."""
        if self._seen.state != PENDING:
            raise Refused("the program runs already")
        self._seen = replace(self._seen, begin=at)
        self.note(job, comment)

    def note(self, job: Seen, comment: str) -> None:  # noqa: ARG002 - there is but one
        """Keep the comment."""
        submitted = self._seen.submitted or time.time()
        self._seen = replace(self._seen, comment=comment, submitted=submitted)

    def boost(self, job: Seen) -> None:
        """Do nothing: nobody else waits here."""

    def reserve(self, job: Seen, at: float) -> None:
        """Do nothing: nobody else takes anything here."""

    def release(self, job: Seen) -> None:
        """Do nothing: nobody holds anything here."""

    def stop(self, job: Seen) -> None:  # noqa: ARG002
        """Pause the program, or ask it to save."""
        program = self._program
        if program is None or self._seen.state != RUNNING:
            raise Refused("the program does not run")
        if self.with_signal is not None:
            self._asks += 1
            # A shell around it, or a child, may not know the signal and would be ended by it.
            heard = program.tree.listeners(self.with_signal, everyone=self._asks > 1)
            if not heard:
                name = signal.Signals(self.with_signal).name
                raise Refused(f"nobody of the program listens for {name} now: it is not sent")
            self._asked_at = self._asked_at or time.time()
            for pid in heard:
                with suppress(ProcessLookupError):
                    os.kill(pid, self.with_signal)
            return
        if self.gpus is None:
            self._stand_still(program)
        elif not self._gpus_do:
            # Stopped, it could not let go of its GPUs: it stands still once it has.
            self._asked_at = time.time()
            pids = program.tree.living()
            self._guard(pids)
            self.gpus.take_off(pids)
            self._gpus_do = "leave"

    def _stand_still(self, program: StartedProgram) -> None:
        self._guard(program.pause())
        self._paused_at = time.time()
        self._requeue(self._paused_at)

    def prepare(self) -> None:
        """Have somebody see to it that nothing stays paused should this process be killed.

        It is started before the program, of which it is no part.
        """
        give_back = [sys.executable, "-m", "lowtide.acting.gpu_pause"] if self.gpus else []
        self._guardian = subprocess.Popen(  # noqa: S603 - our own words
            ["/bin/sh", "-c", _GUARDIAN, "guardian", *give_back],
            stdin=subprocess.PIPE,
            start_new_session=True,
        )

    def started(self, program: StartedProgram) -> None:
        """Be told that the program runs."""
        self._program = program
        self._run(time.time())

    def attend(self) -> None:
        """Let a paused program go on once its time has come, or once it was told to end."""
        if self._program is None:
            return
        if self.gpus is not None and self._gpus_do:
            self._see_gpus(self.gpus, self._program)
        if self.is_paused and (self.is_due or self._program.asked):
            self.go_on()

    def _see_gpus(self, gpus: GpuPause, program: StartedProgram) -> None:
        """Go on once the driver has done what it was asked."""
        if gpus.is_busy:
            return
        problem, did, self._gpus_do = gpus.result(), self._gpus_do, ""
        if problem:
            told = "" if did == "come back" else "it goes on without a pause: "
            self.troubles.append(f"{told}{problem}")
        if did == "come back":
            self._went_on()
        elif problem:
            # It has all that it had, and runs on.
            self._asked_at = None
            self._guard([])
        else:
            self._stand_still(program)

    def go_on(self) -> None:
        """Let a paused program go on now."""
        if self._program is None or self._paused_at is None or self._gpus_do:
            return
        self._program.resume()
        if self.gpus is None:
            self._went_on()
        else:
            # What it asks of its GPUs waits until it has them.
            self.gpus.give_back()
            self._gpus_do = "come back"

    def _went_on(self) -> None:
        self._guard([])
        now = time.time()
        self.pauses.append((self._paused_at or now, now))
        self._paused_at = None
        self._run(now)

    def ended(self, status: int | None) -> bool:
        """Be told how the program ended; return whether it has saved and is to be started again."""
        now = time.time()
        self._program, again = None, status == SAVED and self.with_signal is not None
        if again:
            self._requeue(now)
        else:
            if self._seen.state == RUNNING:
                self._keep_run(now)
            self._seen = replace(self._seen, state=OVER)
        return again

    def close(self) -> None:
        """Let go of whatever is left."""
        if self._guardian is not None and self._guardian.stdin is not None:
            with suppress(OSError):
                self._guardian.stdin.close()
            self._guardian.wait()
            self._guardian = None

    def _run(self, now: float) -> None:
        self._asked_at, self._asks = None, 0
        self._seen = replace(self._seen, state=RUNNING, started=now, begin=None)

    def _keep_run(self, now: float) -> float:
        """Keep what the start that is over has done; return how much work that was."""
        start = self._seen.started or now
        # What is paused and goes on has no second startup.
        startup_s = 0.0 if self.pauses else self.tag.startup_s
        worked_s = max(now - start - startup_s, 0.0)
        self.runs.append(Stretch(start=start, work_s=worked_s))
        return worked_s

    def _requeue(self, now: float) -> None:
        tag, text = decode(self._seen.comment)
        tag = tag or self.tag
        # What it took to save was no work.
        done_s = tag.progress_s + self._keep_run(now if self._asked_at is None else self._asked_at)
        self._seen = replace(
            self._seen,
            state=PENDING,
            started=None,
            submitted=now,
            begin=tag.begin,
            restarts=self._seen.restarts + 1,
            comment=encode(replace(tag, progress_s=done_s), text),
        )

    def _guard(self, pids: list[int]) -> None:
        if self._guardian is not None and self._guardian.stdin is not None:
            with suppress(OSError):
                self._guardian.stdin.write((" ".join(map(str, pids)) + "\n").encode())
                self._guardian.stdin.flush()
