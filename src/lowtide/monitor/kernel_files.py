"""Small files of the kernel's, kept open to be read again; problems, told once; clocks."""

from __future__ import annotations

import os
import resource
import time
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field

from lowtide.errors import Once

# What a file that makes no sense may raise while it is read.
NONSENSE = (ValueError, IndexError, KeyError, ArithmeticError)
# No counter of the kernel's goes further.
_MOST = 2**63
# Enough for one line with one number; less is quicker.
_LINE = 128
# What is read at a time of a file of any length.
_LONG = 65536
# What the rest of the program may open besides.
_SPARE = 256


@dataclass(slots=True)
class OpenFiles:
    """How many files may stay open between readings.

    All files are read in turn, so keeping the last used ones would keep none for the next turn: the
    first ones stay open, and those beyond are opened each time.

    Attributes:
        allowed: How many may stay open; by default what the process may have, less some to spare.
        replaced: Whether files may be replaced by others, as in a recorded tree that is brought up
            to date; the kernel's own never are.
    """

    allowed: int = -1
    replaced: bool = False
    _open: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        if self.allowed < 0:
            self.allowed = max(raise_file_limit() - _SPARE, 0)

    def __len__(self) -> int:
        return self._open

    def take(self) -> bool:
        """Say whether one more may stay open, and count it."""
        if self._open >= self.allowed:
            return False
        self._open += 1
        return True

    def give_back(self) -> None:
        """Count one less."""
        self._open -= 1


class KernelFile:
    """One file, read from its beginning each time.

    Attributes:
        path: The file.
    """

    __slots__ = ("_files", "_handle", "path")

    def __init__(self, path: str, files: OpenFiles) -> None:
        """Open the file; an OSError says that it is not there or may not be read."""
        self.path = path
        self._files = files
        self._handle = -1
        handle = os.open(path, os.O_RDONLY)
        if files.take():
            self._handle = handle
        else:
            os.close(handle)

    def read(self, size: int = _LINE) -> bytes:
        """Return what the file says now, at most so many bytes of it."""
        if self._handle >= 0:
            return os.pread(self._handle, size, 0)
        handle = os.open(self.path, os.O_RDONLY)
        try:
            return os.read(handle, size)
        finally:
            os.close(handle)

    def read_all(self) -> bytes:
        """Return all that the file says now, however much; the kernel hands out lists in pages."""
        handle = self._handle if self._handle >= 0 else os.open(self.path, os.O_RDONLY)
        said = b""
        try:
            while part := os.pread(handle, _LONG, len(said)):
                said += part
        finally:
            if handle != self._handle:
                os.close(handle)
        return said

    def renew(self) -> bool:
        """Open the file anew if another has taken its place; say whether one has."""
        if self._handle < 0 or not self._files.replaced or os.fstat(self._handle).st_nlink > 0:
            return False
        handle = os.open(self.path, os.O_RDONLY)
        os.close(self._handle)
        self._handle = handle
        return True

    def close(self) -> None:
        """Let go of the file."""
        if self._handle >= 0:
            os.close(self._handle)
            self._handle = -1
            self._files.give_back()


@dataclass(slots=True)
class Problems:
    """What could not be read, each thing named once.

    Attributes:
        rejected: Readings that made no sense and were left out.
    """

    rejected: int = 0
    _named: Once = field(default_factory=Once, init=False)
    _new: list[str] = field(default_factory=list, init=False)

    def name(self, what: str, told: str) -> None:
        """Name a problem, unless one of its kind was named before."""
        if self._named.is_new(what):
            self._new.append(told)

    def reject(self, what: str, told: str) -> None:
        """Count a reading that made no sense, and name the first of its kind."""
        self.rejected += 1
        self.name(what, told)

    def forbidden(self, path: str) -> None:
        """Name a file that may not be read."""
        kind = os.path.basename(path)  # noqa: PTH119 - a Path for each file would cost more
        self.name(
            f"forbidden {kind}",
            f"{path} may not be read, and others like it: run as root, or give the service "
            "CAP_DAC_READ_SEARCH and CAP_SYS_PTRACE",
        )

    def take(self) -> tuple[str, ...]:
        """Return what is new since the last time."""
        new, self._new = tuple(self._new), []
        return new


def parse_count(said: bytes) -> int:
    """Return a number that was counted: none is negative, or larger than the kernel can count."""
    count = int(said)
    if not 0 <= count < _MOST:
        raise ValueError(f"no count is {count:.6g}")
    return count


def are_kernels(folders: Iterable[str]) -> bool:
    """Say whether folders are of the kernel's own file systems, which take no room.

    Args:
        folders: The folders; those that are not there count as such.
    """
    for each in folders:
        with suppress(OSError):
            if os.statvfs(each).f_blocks > 0:
                return False
    return True


def raise_file_limit() -> int:
    """Raise the number of files that the process may open as far as it may, and return it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
            soft = hard
        except (OSError, ValueError):
            # Some systems allow no more than they say they do.
            pass
    return 2**20 if soft == resource.RLIM_INFINITY else soft


# When something was read: stamps follow the clock on the wall, intervals one that nobody sets.

# A clock that differs by less than this from one reading to the next was not set.
STEPPED_S = 1.0


@dataclass(frozen=True, slots=True)
class Moment:
    """When something was read.

    Attributes:
        since_boot: Seconds by a clock that nobody sets.
        stepped_s: By how much the clock was set since the moment before; 0 if it was not.
        ahead_s: By how much `time` is ahead of the clock on the wall.
    """

    time: float
    since_boot: float
    stepped_s: float
    ahead_s: float


@dataclass(slots=True)
class Clock:
    """Gives stamps.

    When the clock on the wall goes back by less than a second, stamps go on at half their speed
    until it has caught up, so that none comes before another. When it is set by more, they follow
    it at once: a second that takes two would double all that is told per second, and to have the
    same minute twice is better.
    """

    _wall: float = field(init=False)
    _since_boot: float = field(init=False)
    _stamp: float = field(default=0.0, init=False)

    def __post_init__(self) -> None:
        self._wall, self._since_boot = time.time(), since_boot()

    def look(self) -> Moment:
        """Return what time it is."""
        wall, now = time.time(), since_boot()
        passed_s = now - self._since_boot
        off_s = wall - self._wall - passed_s
        stepped_s = off_s if abs(off_s) > STEPPED_S else 0.0
        slowest = self._stamp + passed_s / 2
        waits = not stepped_s and slowest - wall < STEPPED_S
        self._stamp = max(slowest, wall) if waits else wall
        self._wall, self._since_boot = wall, now
        return Moment(self._stamp, now, stepped_s, self._stamp - wall)


def since_boot() -> float:
    """Return seconds by a clock that nobody sets, and that goes on while the node sleeps."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)
