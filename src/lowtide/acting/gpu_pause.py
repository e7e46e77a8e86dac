"""GPUs of a program that is paused: its memory goes to the host, and its cards stand idle.

A program that is stopped where it stands keeps its cards at work for nobody. NVIDIA's driver can
take a process off them from outside (libcuda's process checkpoint, driver 570 and newer): calls of
CUDA are kept waiting (locked), memory is copied to the host and the card let go (checkpointed), and
all of that backwards. The driver's own thread within the process does the work, so a process that
is stopped by SIGSTOP would never answer: cards are let go first and the program is stopped after
that, and it goes on first and gets its cards back after that. Of several processes all are locked
before any lets go, and none is unlocked before all have their memory: no part of a program works
while another cannot.

A step that fails is taken back, and the program runs on. Run as a program of its own, this gives
processes their cards back:

    python -m lowtide.acting.gpu_pause PID...
"""

from __future__ import annotations

import ctypes
import os
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from lowtide.acting.promise import Loops
from lowtide.errors import InvalidInput, Refused

# Which libcuda is loaded, for those who have another one.
_LIBRARY = "LOWTIDE_LIBCUDA"
_USUAL = "libcuda.so.1"
RUNS, LOCKED, LET_GO, BROKEN = 0, 1, 2, 3
_CALLS = ("GetState", "Lock", "Checkpoint", "Restore", "Unlock")
# So long a process may go on with what it has asked of its card before it is locked: who waits for
# another that is locked would do so for ever.
_LOCK_MS = 20_000
# What letting go and coming back may take between two starts, for 140 GB of memory.
TAKES = Loops(pass_s=0.0, requeue_s=30.0, kill_s=90.0, spare_s=0.0)
# How often a card is asked for again that was not given back, and how long is waited between.
_TRIES, _PAUSE_S = 5, 1.0
# How often it is looked whether something has become of what was under way: locking may take so
# many seconds.
_LOOKS = 30


class _LockArgs(ctypes.Structure):
    _fields_ = (
        ("timeout_ms", ctypes.c_uint),
        ("reserved", ctypes.c_uint),
        ("more", ctypes.c_uint64 * 7),
    )


class Cuda:
    """What of libcuda is needed.

    Args:
        library: Its file; by default the driver's own, or what `LOWTIDE_LIBCUDA` names.

    Raises:
        InvalidInput: If it is not there, too old for this, or finds no GPU.
    """

    def __init__(self, library: str | None = None) -> None:
        name = library or os.environ.get(_LIBRARY) or _USUAL
        cure = "leave out --pause-gpu: --pause stops the program and leaves its memory on the GPU"
        try:
            cuda: Any = ctypes.CDLL(name)
        except OSError:
            raise InvalidInput(
                f"GPUs are paused by {name} of NVIDIA's driver, which is not here: {cure}"
            ) from None
        version = ctypes.c_int(0)
        with suppress(AttributeError):
            cuda.cuDriverGetVersion(ctypes.byref(version))
        try:
            self._calls = {each: getattr(cuda, f"cuCheckpointProcess{each}") for each in _CALLS}
            status = cuda.cuInit(0)
        except AttributeError:
            told = f"CUDA {version.value // 1000}.{version.value % 1000 // 10}"
            raise InvalidInput(
                f"GPUs are paused by drivers from 570 on (CUDA 12.8), and {name} is of {told}: "
                f"{cure}"
            ) from None
        if status:
            raise InvalidInput(f"{name} finds no GPU (CUDA error {status}): {cure}")

    def state(self, pid: int) -> int | None:
        """Return how a process stands; None where it has no GPU, or is gone."""
        state = ctypes.c_int(-1)
        failed = self._calls["GetState"](ctypes.c_int(pid), ctypes.byref(state))
        return None if failed else state.value

    def lock(self, pid: int) -> None:
        """Keep a process from asking anything more of its GPU, once what it has asked is done."""
        self._do("Lock", pid, ctypes.byref(_LockArgs(timeout_ms=_LOCK_MS)))

    def let_go(self, pid: int) -> None:
        """Copy a locked process's memory to the host, and let go of its GPU."""
        self._do("Checkpoint", pid)

    def restore(self, pid: int) -> None:
        """Give a process its memory on the GPU back; it stays locked."""
        self._do("Restore", pid)

    def unlock(self, pid: int) -> None:
        """Let a process go on with its GPU."""
        self._do("Unlock", pid)

    def _do(self, name: str, pid: int, arguments: Any = None) -> None:
        error = self._calls[name](ctypes.c_int(pid), arguments)
        if error:
            raise Refused(f"{name.lower()} of process {pid} failed (CUDA error {error})")


def take_off(cuda: Cuda, pids: Sequence[int]) -> list[int]:
    """Take all processes that have one off their GPUs; return which. All or none.

    Raises:
        Refused: If one could not be taken off. Those that were have their GPUs back.
    """
    holders = [pid for pid in pids if cuda.state(pid) is not None]
    if not holders:
        raise Refused("no process of it holds a GPU")
    try:
        for step, before in ((cuda.lock, RUNS), (cuda.let_go, LOCKED)):
            for pid in holders:
                if cuda.state(pid) == before:
                    step(pid)
        problem = ""
    except Refused as error:
        problem = str(error)
    keep = [pid for pid in holders if cuda.state(pid) != LET_GO and _lives(pid)]
    if keep and not problem:
        problem = f"process {keep[0]} keeps its GPU (state {cuda.state(keep[0])})"
    if problem:
        raise Refused(problem + _told(give_back(cuda, holders)))
    return holders


def give_back(cuda: Cuda, pids: Sequence[int]) -> list[int]:
    """Give all processes their GPUs back, whatever state they are in; return who got none."""
    left = list(pids)
    for turn in range(_TRIES):
        if turn:
            time.sleep(_PAUSE_S)
        for step, before in ((cuda.restore, LET_GO), (cuda.unlock, LOCKED)):
            for pid in left:
                if cuda.state(pid) == before:
                    with suppress(Refused):
                        step(pid)
        left = [pid for pid in left if cuda.state(pid) != RUNS and _lives(pid)]
        if not left:
            break
    return left


def _lives(pid: int) -> bool:
    with suppress(PermissionError):
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return False
    return True


def _told(left: Sequence[int]) -> str:
    if not left:
        return ""
    return (
        f", and process {', '.join(map(str, left))} did not get its GPU back: what it asks of it "
        "will fail or wait for ever"
    )


@dataclass(slots=True, kw_only=True)
class GpuPause:
    """Takes a program off its GPUs and gives them back, beside whatever else is done.

    What the driver is asked takes seconds, for which nobody may wait who watches the program.

    Attributes:
        cuda: The driver.
        took_s: How long it took to let go, and to get the cards back, each time.
    """

    cuda: Cuda
    took_s: list[tuple[str, float]] = field(default_factory=list, init=False)
    _thread: threading.Thread | None = field(default=None, init=False)
    _problem: str = field(default="", init=False)
    _off: list[int] = field(default_factory=list, init=False)

    @property
    def is_busy(self) -> bool:
        """Whether the driver has not answered so far."""
        return self._thread is not None and self._thread.is_alive()

    def take_off(self, pids: Sequence[int]) -> None:
        """Begin to take processes off their GPUs."""

        def work() -> None:
            self._off = take_off(self.cuda, pids)

        self._begin("let go", work)

    def give_back(self) -> None:
        """Begin to give back what was let go."""

        def work() -> None:
            left = give_back(self.cuda, self._off)
            self._off = []
            if left:
                raise Refused(f"its GPU was not given back{_told(left)}")

        self._begin("given back", work)

    def result(self) -> str:
        """Wait for what was begun; return what went wrong, nothing where all went well."""
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        problem, self._problem = self._problem, ""
        return problem

    def _begin(self, what: str, work: Callable[[], None]) -> None:
        self.result()

        def carefully() -> None:
            since = time.monotonic()
            try:
                work()
            except Refused as error:
                self._problem = str(error)
            else:
                self._problem = ""
                self.took_s.append((what, time.monotonic() - since))

        # A driver that never answers must not keep this program from ending.
        self._problem = "the driver was not asked"
        self._thread = threading.Thread(target=carefully, daemon=True)
        self._thread.start()


def main(words: Sequence[str]) -> int:
    """Give processes their GPUs back: for who lives longer than whoever has paused them."""
    cuda, pids = Cuda(), [int(each) for each in words]
    left: list[int] = []
    # What was being asked of the driver when its asker was killed may still be under way.
    for _ in range(_LOOKS):
        left = give_back(cuda, [pid for pid in pids if cuda.state(pid) is not None])
        time.sleep(_PAUSE_S)
    return 1 if left else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
