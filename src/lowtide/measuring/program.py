"""A program that is being measured, with everything that it starts.

Processes that lose their parent are handed to this process, and so stay the program's: they are
counted with it, told to stop with it, and waited for here.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import resource
import select
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from lowtide.measuring.output import Listener, pipes_for
from lowtide.monitor.processes import ProcessTree, children_of, read_stat

# prctl: orphans become children of this process.
_PR_SET_CHILD_SUBREAPER = 36
# How long what was killed may take to be gone, and its last words to arrive.
_GONE_S = 5.0
_LAST_WORDS_S = 2.0
_LOOK_S = 0.02
# How often it is looked for more of a program that is being paused.
_MOST_ROUNDS = 50
_STDOUT, _STDERR = 1, 2
# As shells say that there is no such program, or that it is none.
NOT_FOUND, NOT_A_PROGRAM = 127, 126


@dataclass(slots=True, kw_only=True)
class StartedProgram:
    """A running program.

    Attributes:
        tree: Its processes.
        status: How the first of them ended, as Python counts: negative for a signal; None while it
            runs.
        listener: Hears its output, where anybody wants to.
    """

    tree: ProcessTree
    status: int | None = None
    listener: Listener | None = None
    _popen: subprocess.Popen[bytes] = field(repr=False)
    _handle: int | None = None
    _kill_at: float | None = field(default=None, init=False)
    _killed_at: float | None = field(default=None, init=False)

    @classmethod
    def start(
        cls,
        command: Sequence[str],
        *,
        environment: Mapping[str, str],
        listener: Listener | None = None,
        to_stderr: bool = False,
    ) -> StartedProgram:
        """Start a program.

        Args:
            listener: Hears its output; by default nobody does.
            to_stderr: Whether what it prints goes to stderr, because stdout is taken.
        """
        adopt_orphans()
        with contextlib.suppress(ValueError):
            if signal.getsignal(signal.SIGCHLD) is signal.SIG_IGN:
                # Whoever started this may not want to know how children end. Here it is asked.
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        pipes = () if listener is None else _listened(listener, to_stderr=to_stderr)
        out, err = pipes or (_STDERR if to_stderr else None, None)
        try:
            # What was started until now, the relay of its output for one, is none of its own.
            spared = frozenset(children_of(os.getpid()))
            popen = subprocess.Popen(  # noqa: S603 - what the user asked to run
                list(command), env=dict(environment), stdout=out, stderr=err
            )
        finally:
            for end in set(pipes):
                os.close(end)
        # Orphans are handed to the main thread. What that starts meanwhile is none: so it must be
        # the one that waits here.
        alone = threading.current_thread() is threading.main_thread()
        adopter = os.getpid() if alone else None
        tree = ProcessTree(root=popen.pid, adopter=adopter, spared=spared)
        handle = None
        with contextlib.suppress(OSError, AttributeError):
            handle = os.pidfd_open(popen.pid)
        return cls(tree=tree, listener=listener, _popen=popen, _handle=handle)

    def poll(self) -> int | None:
        """Wait for processes that have ended; return how the first one did, None while it runs."""
        for pid in list(self.tree.adopted):
            self._wait_for(pid)
        if self.status is None:
            ended = self._wait_for(self._popen.pid)
            if ended is not None:
                self.status = self._popen.returncode = ended
        return self.status

    def wait(self, seconds: float) -> bool:
        """Wait a while, but no longer than until the first process ends; return whether it has."""
        if self._handle is None or self.status is not None:
            time.sleep(seconds)
            return self.poll() is not None
        # Unlike select, it takes handles of any number.
        waiting = select.poll()
        waiting.register(self._handle, select.POLLIN)
        return bool(waiting.poll(1000 * seconds))

    def is_over(self) -> bool:
        """Return whether nothing of it is left."""
        left = self.tree.living()
        return self.poll() is not None and not set(left) - {self._popen.pid}

    def tell(self, what: signal.Signals) -> None:
        """Send a signal to every process of it."""
        for pid in self.tree.living():
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, what)

    def pause(self) -> list[int]:
        """Stop every process of it where it stands; return which those are.

        A session of its own, or a parent that is gone, takes nothing out of it.
        """
        told: set[int] = set()
        # What is started while others are being stopped is stopped in the next round.
        for _ in range(_MOST_ROUNDS):
            if not set(self.tree.living()) - told:
                break
            told.update(self.tree.pids)
            self.tell(signal.SIGSTOP)
        return sorted(told)

    def resume(self) -> None:
        """Let all of it go on."""
        self.tell(signal.SIGCONT)

    @property
    def asked(self) -> bool:
        """Whether it was told to end."""
        return self._kill_at is not None

    @property
    def is_stuck(self) -> bool:
        """Whether it goes on long after it was killed, as what waits for a broken disk does."""
        return self._killed_at is not None and time.monotonic() > self._killed_at + _GONE_S

    def ask(self, what: signal.Signals | None, *, patience_s: float) -> None:
        """Tell all of it to end.

        Args:
            what: How; None if somebody else has done so.
        """
        if what is not None:
            self.tell(what)
        # What is paused would not hear of it.
        self.resume()
        now = time.monotonic()
        self._kill_at = now + patience_s
        if what is signal.SIGKILL:
            self._killed_at = now

    def insist(self, *, hurried: bool = False) -> bool:
        """Kill what was told to end and took too long; return whether this is the first time."""
        if self._killed_at is None:
            late = self._kill_at is not None and time.monotonic() >= self._kill_at
            if not (late or hurried):
                return False
            self._killed_at = time.monotonic()
            self.tell(signal.SIGKILL)
            return True
        # Something may have been started while it was being killed.
        self.tell(signal.SIGKILL)
        return False

    def kill(self) -> None:
        """End whatever is left of it, at once."""
        until = time.monotonic() + _GONE_S
        while not self.is_over() and time.monotonic() < until:
            self.tell(signal.SIGKILL)
            time.sleep(_LOOK_S)

    def close(self) -> None:
        """Let go of everything that was opened for it."""
        self.tree.close()
        if self._handle is not None:
            os.close(self._handle)
            self._handle = None
        if self.listener is not None:
            self.listener.join(_LAST_WORDS_S)

    def _wait_for(self, pid: int) -> int | None:
        """Wait for a child of this process if it has ended; return how, None if it has not."""
        try:
            ended, status, used = os.wait4(pid, os.WNOHANG)
        except ChildProcessError:
            return None
        if not ended:
            return None
        self.tree.bury(pid, used.ru_utime + used.ru_stime)
        return os.waitstatus_to_exitcode(status)


def _listened(listener: Listener, *, to_stderr: bool) -> tuple[int, int]:
    """Have somebody listen to pipes; return the ends that a program writes stdout and stderr to."""
    sys.stdout.flush()
    ends, sinks = pipes_for(_STDERR if to_stderr else _STDOUT, _STDERR)
    sources = list(dict.fromkeys(reading for reading, _ in ends))
    try:
        listener.relay(sources, sinks)
    except OSError as error:
        listener.troubles.append(
            f"output is passed on by the measurement itself, since nobody else could be started to "
            f"({error}): the program may end with it"
        )
        for source, sink in zip(sources, sinks, strict=True):
            to = sys.stderr if sink == _STDERR else sys.stdout
            listener.follow(os.fdopen(source, "rb"), to)
    (_, out), (_, err) = ends
    return out, err


def refusal(command: Sequence[str]) -> tuple[int, str] | None:
    """Return why a program cannot be run, with the exit status a shell has for it, else None."""
    name = command[0]
    if shutil.which(name):
        return None
    path = Path(name)
    if "/" not in name:
        if not name or not path.exists():
            return NOT_FOUND, f"{name!r} is no program: nothing of that name is on the PATH"
        return NOT_FOUND, f"{name!r} is no program on the PATH: for the one here say ./{name}"
    if not path.exists():
        return NOT_FOUND, f"{name} is no program: there is no such file"
    if path.is_dir():
        return NOT_A_PROGRAM, f"{name} is no program: it is a folder"
    return NOT_A_PROGRAM, f"{name} may not be run: make it a program with chmod +x {name}"


def prepare(
    command: str,
    *,
    environment: Mapping[str, str],
    to_stderr: bool,
    stopped: Callable[[], bool],
) -> int:
    """Run a shell command to its end, or until this is to stop; return how it ended."""
    sink = _STDERR if to_stderr else None
    with subprocess.Popen(  # noqa: S602 - the user's own
        command, shell=True, stdout=sink, env=dict(environment)
    ) as shell:
        while shell.poll() is None:
            if stopped():
                shell.terminate()
            time.sleep(_LOOK_S)
    return shell.returncode


def adopt_orphans() -> None:
    """Make orphans of the programs run here children of this process, where the kernel can."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def own_cpu_s() -> float:
    """Return the CPU time of this process so far, with all its threads and all that it started."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    spent_s = sum(each.ru_utime + each.ru_stime for each in used)
    for pid in children_of(os.getpid()):
        # The kernel adds those that run to ours once they have ended and were waited for.
        with contextlib.suppress(OSError, ValueError, IndexError):
            spent_s += read_stat(Path(f"/proc/{pid}/stat").read_text(errors="replace")).cpu_s
    return spent_s


def terminal_tells() -> bool:
    """Return whether Ctrl-C reaches the program, too: a terminal tells all of its foreground."""
    try:
        terminal = os.open("/dev/tty", os.O_RDONLY | os.O_NOCTTY)
    except OSError:
        return False
    try:
        return os.tcgetpgrp(terminal) == os.getpgrp()
    except OSError:
        return False
    finally:
        os.close(terminal)
