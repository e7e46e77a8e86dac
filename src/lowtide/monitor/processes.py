"""What a process and all its children use, read from /proc.

Reading every process of a machine ten times a second would cost more than it tells. So the tree is
walked from its root along the kernel's lists of children, and files stay open between readings.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

_TICKS = os.sysconf("SC_CLK_TCK")
_PAGE = os.sysconf("SC_PAGE_SIZE")


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """What a tree of processes has used so far, and holds now.

    Attributes:
        processes: How many are alive.
        cpu_s: CPU time so far, children that have ended included.
        memory_bytes: Memory they hold now (resident).
        read_bytes: What was read from storage by those alive.
        written_bytes: What was written to storage by those alive.
    """

    processes: int
    cpu_s: float
    memory_bytes: float
    read_bytes: float
    written_bytes: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Stat:
    """A line of /proc/PID/stat.

    Attributes:
        name: The command's name, up to 15 characters; it may hold blanks and brackets.
        parent: The parent's process id.
        group: The process group.
        session: The session.
        cpu_s: CPU time of the process, and of children that have ended and were waited for.
        started_s: When it started, seconds after boot.
        memory_bytes: Resident memory.
    """

    name: str
    parent: int
    group: int
    session: int
    cpu_s: float
    started_s: float
    memory_bytes: float


def read_stat(text: str) -> Stat:
    """Return what a line of /proc/PID/stat says.

    Args:
        text: The line.

    >>> read_stat("7 (a (b) c) S 1 7 7 0 -1 4 0 0 0 0 50 25 10 15 20 0 1 0 300 0 2").cpu_s
    1.0
    """
    # The name may hold brackets: it ends with the last one.
    first, last = text.index("("), text.rindex(")")
    fields = text[last + 2 :].split()
    return Stat(
        name=text[first + 1 : last],
        parent=int(fields[1]),
        group=int(fields[2]),
        session=int(fields[3]),
        cpu_s=sum(int(each) for each in fields[11:15]) / _TICKS,
        started_s=int(fields[19]) / _TICKS,
        memory_bytes=int(fields[21]) * _PAGE,
    )


@dataclass(slots=True, kw_only=True)
class ProcessTree:
    """A process and its descendants.

    Who belongs to the tree is looked up at most every `refresh_s`; a process that comes and goes
    in between is seen in what its parent has used once it has ended.

    Attributes:
        root: The first process.
        procfs: Where /proc is.
        refresh_s: How often the tree is walked.
    """

    root: int
    procfs: Path = Path("/proc")
    refresh_s: float = 0.5
    _pids: list[int] = field(default_factory=list, init=False)
    _walked: float = field(default=-math.inf, init=False)
    _stored: tuple[float, float] = field(default=(0.0, 0.0), init=False)
    _files: dict[int, int] = field(default_factory=dict, init=False)

    def usage(self) -> Usage:
        """Return what the tree has used so far."""
        now = time.monotonic()
        if now - self._walked >= self.refresh_s:
            self._walked = now
            self._pids = list(self._walk())
            self._stored = self._storage()
        stats = [stat for pid in self._pids if (stat := self._stat(pid)) is not None]
        return Usage(
            processes=len(stats),
            cpu_s=sum(stat.cpu_s for stat in stats),
            memory_bytes=sum(stat.memory_bytes for stat in stats),
            read_bytes=self._stored[0],
            written_bytes=self._stored[1],
        )

    @property
    def pids(self) -> list[int]:
        """The process ids of the tree when it was last walked, parents first."""
        return self._pids

    def close(self) -> None:
        """Close the files that were kept open."""
        for file in self._files.values():
            os.close(file)
        self._files.clear()

    def _walk(self) -> Iterator[int]:
        left = [self.root]
        seen = set()
        while left:
            pid = left.pop()
            if pid not in seen:
                seen.add(pid)
                yield pid
                left.extend(self._children(pid))

    def _children(self, pid: int) -> list[int]:
        found: list[int] = []
        tasks = f"{self.procfs}/{pid}/task"
        try:
            # A Path would cost more than the reading.
            threads = os.listdir(tasks)  # noqa: PTH208
        except OSError:
            return found
        for thread in threads:
            found.extend(int(each) for each in _text(f"{tasks}/{thread}/children").split())
        return found

    def _stat(self, pid: int) -> Stat | None:
        try:
            file = self._files.get(pid)
            if file is None:
                file = os.open(f"{self.procfs}/{pid}/stat", os.O_RDONLY)
                self._files[pid] = file
            return read_stat(os.pread(file, 1024, 0).decode(errors="replace"))
        except (OSError, ValueError, IndexError):
            # It has ended; its number may be another's by now, so its file is let go.
            if (gone := self._files.pop(pid, None)) is not None:
                os.close(gone)
            return None

    def _storage(self) -> tuple[float, float]:
        """Return what the living have read from storage and written to it."""
        read = written = 0.0
        for pid in self._pids:
            for line in _text(f"{self.procfs}/{pid}/io").splitlines():
                key, _, value = line.partition(": ")
                if key == "read_bytes":
                    read += float(value)
                elif key == "write_bytes":
                    written += float(value)
        return read, written


def _text(path: str) -> str:
    """Return a small file of the kernel's, empty where it cannot be read."""
    try:
        file = os.open(path, os.O_RDONLY)
    except OSError:
        return ""
    try:
        return os.read(file, 65536).decode(errors="replace")
    except OSError:
        return ""
    finally:
        os.close(file)
