"""What a process and all its children use, read from /proc.

Reading every process of a machine ten times a second would cost more than it tells. So the tree is
walked from its root along the kernel's lists of children, and files stay open between readings.
"""

from __future__ import annotations

import math
import os
import signal
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from lowtide.files import read_or_empty
from lowtide.monitor.kernel_files import NONSENSE, parse_count

TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_PAGE = os.sysconf("SC_PAGE_SIZE")
# Walking a tree, and reading its processes, may take these shares of a core.
_WALK_SHARE = 0.001
_READ_SHARE = 0.001
# What a reading may take is counted over this time at most; so many are always read.
_LONGEST_S = 1.0
_LEAST_READ = 2
# CPU time that is missing for longer than this does not turn up any more.
_LATE_S = 1.0
# How often, and how far apart, it is looked whether a process goes on keeping a signal back.
_LOOKS, _LOOK_S = 5, 0.1


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
        dead: Whether it has ended, and nobody has waited for it yet.
        parent: The parent's process id.
        group: The process group.
        cpu_s: CPU time of the process, and of children that have ended and were waited for.
        waited_s: The part of it that is its children's.
        started_s: When it started, seconds after boot.
        memory_bytes: Resident memory.
    """

    name: str
    dead: bool
    parent: int
    group: int
    cpu_s: float
    waited_s: float
    started_s: float
    memory_bytes: float


def read_stat(text: str) -> Stat:
    """Return what a line of /proc/PID/stat says.

    >>> read_stat("7 (a (b) c) S 1 7 7 0 -1 4 0 0 0 0 50 25 10 15 20 0 1 0 300 0 2").cpu_s
    1.0
    """
    # The name may hold brackets: it ends with the last one.
    first, last = text.index("("), text.rindex(")")
    # What comes after the memory is not asked for, and would cost as much again to split.
    fields = text[last + 2 :].split(None, 22)
    waited = int(fields[13]) + int(fields[14])
    return Stat(
        name=text[first + 1 : last],
        dead=fields[0] in ("Z", "X"),
        parent=int(fields[1]),
        group=int(fields[2]),
        cpu_s=(int(fields[11]) + int(fields[12]) + waited) / TICKS_PER_S,
        waited_s=waited / TICKS_PER_S,
        started_s=int(fields[19]) / TICKS_PER_S,
        memory_bytes=float(int(fields[21]) * _PAGE),
    )


@dataclass(slots=True, kw_only=True)
class ProcessTree:
    """A process, its descendants, and what was orphaned by them.

    Who belongs to the tree is looked up at most every `refresh_s`; a process that comes and goes
    in between is seen in what its parent has used once it has ended. Where there are so many
    processes that this would cost more than a fixed share of a core, they are looked up less often
    and read in turns.

    Attributes:
        root: The first process.
        procfs: Where /proc is.
        refresh_s: How often the tree is walked, at most.
        adopter: The process that orphans are handed to, where one asked for that: its children are
            of the tree, too.
        spared: Children of the adopter that are none of the tree's.
    """

    root: int
    procfs: Path = Path("/proc")
    refresh_s: float = 0.5
    adopter: int | None = None
    spared: frozenset[int] = frozenset()
    _pids: list[int] = field(default_factory=list, init=False)
    _adopted: list[int] = field(default_factory=list, init=False)
    _walk_at: float = field(default=-math.inf, init=False)
    _stored: tuple[float, float] = field(default=(0.0, 0.0), init=False)
    _files: dict[int, int] = field(default_factory=dict, init=False)
    _stats: dict[int, Stat] = field(default_factory=dict, init=False)
    _fresh: list[int] = field(default_factory=list, init=False)
    _cpu_ticks: int = field(default=0, init=False)
    _memory_bytes: float = field(default=0.0, init=False)
    _alive: int = field(default=0, init=False)
    _turn: int = field(default=0, init=False)
    _asked: float = field(default=-math.inf, init=False)
    _read_cost_s: float = field(default=0.0, init=False)
    _rootless: bool = field(default=False, init=False)
    _buried_s: float = field(default=0.0, init=False)
    _peak_s: float = field(default=0.0, init=False)
    _lost_s: float = field(default=0.0, init=False)
    _short_since: float | None = field(default=None, init=False)

    def usage(self) -> Usage:
        """Return what the tree has used so far."""
        now = time.monotonic()
        if now >= self._walk_at:
            self.walk()
        self._read(now)
        return Usage(
            processes=self._alive,
            cpu_s=self._grown(now),
            memory_bytes=self._memory_bytes,
            read_bytes=self._stored[0],
            written_bytes=self._stored[1],
        )

    @property
    def pids(self) -> list[int]:
        """The process ids of the tree when it was last walked, parents first."""
        return self._pids

    @property
    def adopted(self) -> list[int]:
        """Those of them that were handed to the adopter."""
        return self._adopted

    @property
    def buried_s(self) -> float:
        """CPU time of those that were waited for here."""
        return self._buried_s

    def walk(self) -> list[int]:
        """Look up now who belongs to the tree; return the process ids, parents first."""
        clock = time.thread_time()
        self._pids = list(self._walk())
        self._stored = self._storage()
        for pid in self._stats.keys() - set(self._pids):
            self._forget(pid)
        self._fresh = [pid for pid in self._pids if pid not in self._stats]
        cost_s = time.thread_time() - clock
        self._walk_at = time.monotonic() + max(self.refresh_s, cost_s / _WALK_SHARE)
        return self._pids

    def living(self) -> list[int]:
        """Look up now who of the tree has not ended."""
        stats = {pid: self._stat(pid) for pid in self.walk()}
        return [pid for pid, stat in stats.items() if stat is not None and not stat.dead]

    def listeners(self, what: signal.Signals, *, everyone: bool = False) -> list[int]:
        """Look up now who of the tree handles a signal, and would not be ended by it.

        Whoever listens passes it on to those below if need be: told twice, a program would begin to
        save in the midst of saving.

        Args:
            everyone: Whether those below who listen are told as well, but never a fork of one that
                does: a worker has the handlers of its program, and would save beside it.
        """
        self.walk()
        found: list[int] = []
        left = [(pid, b"") for pid in self._adopted]
        left += [] if self._rootless else [(self.root, b"")]
        seen = set()
        while left:
            pid, told = left.pop()
            words = read_or_empty(f"{self.procfs}/{pid}/cmdline")
            if pid in seen or (told and words == told):
                continue
            seen.add(pid)
            listens = _listens(pid, what, self.procfs)
            if listens:
                found.append(pid)
            if everyone or not listens:
                below = words if listens else b""
                left += [(child, below) for child in children_of(pid, self.procfs)]
        return found

    def bury(self, pid: int, cpu_s: float) -> None:
        """Keep counting what a process has used that has been waited for.

        Args:
            cpu_s: CPU time of it, and of those it had waited for.
        """
        self._buried_s += cpu_s
        self._forget(pid)
        # Its number may be another's from now on.
        self._rootless |= pid == self.root
        for known in (self._pids, self._adopted):
            if pid in known:
                known.remove(pid)

    def close(self) -> None:
        """Close the files that were kept open."""
        for file in self._files.values():
            os.close(file)
        self._files.clear()

    def _read(self, now: float) -> None:
        """Read as many processes as may be, going on where the last reading stopped."""
        clock = time.thread_time()
        room_s = _READ_SHARE * min(now - self._asked, _LONGEST_S)
        self._asked = now
        count = every = len(self._pids)
        if self._read_cost_s > 0:
            count = min(every, max(_LEAST_READ, int(room_s / self._read_cost_s)))
        chosen = [*self._fresh, *(self._pids[(self._turn + i) % every] for i in range(count))]
        self._turn += count
        self._fresh = []
        read = 0
        for pid in dict.fromkeys(chosen):
            read += 1
            if self._update(pid):
                # It has waited for children and counts what they used: they count no more.
                below = [each for each, stat in self._stats.items() if stat.parent == pid]
                read += len(below)
                for child in below:
                    self._update(child)
        if read:
            cost_s = (time.thread_time() - clock) / read
            self._read_cost_s += (cost_s - self._read_cost_s) * (0.2 if self._read_cost_s else 1.0)

    def _update(self, pid: int) -> bool:
        """Read one process; return whether it has waited for a child since the last time."""
        before, stat = self._stats.get(pid), self._stat(pid)
        if stat is None:
            return False
        self._count(before, -1)
        self._count(stat, 1)
        self._stats[pid] = stat
        return before is not None and stat.waited_s > before.waited_s

    def _count(self, stat: Stat | None, sign: int) -> None:
        """Add a process to the sums, or take it off."""
        if stat is not None:
            self._cpu_ticks += sign * round(stat.cpu_s * TICKS_PER_S)
            if not stat.dead:
                self._alive += sign
                self._memory_bytes += sign * stat.memory_bytes

    def _grown(self, now: float) -> float:
        """Return the CPU time so far, which never falls.

        A child that ends while the tree is being read may be missing in one reading and be in its
        parent's count in the next. What stays missing is of children that nobody waits for.
        """
        so_far_s = self._cpu_ticks / TICKS_PER_S + self._buried_s + self._lost_s
        if so_far_s >= self._peak_s:
            self._peak_s, self._short_since = so_far_s, None
        elif self._short_since is None:
            self._short_since = now
        elif now - self._short_since > _LATE_S:
            self._lost_s += self._peak_s - so_far_s
            self._short_since = None
        return self._peak_s

    def _walk(self) -> Iterator[int]:
        self._adopted = []
        if self.adopter is not None:
            # The kernel hands orphans to the first thread; what other threads started is theirs.
            task = f"{self.procfs}/{self.adopter}/task/{self.adopter}/children"
            handed = [int(each) for each in read_or_empty(task).split()]
            self._adopted = [pid for pid in handed if pid != self.root and pid not in self.spared]
        left = list(reversed(self._adopted))
        if not self._rootless:
            left.append(self.root)
        seen = set()
        while left:
            pid = left.pop()
            if pid not in seen:
                seen.add(pid)
                yield pid
                left.extend(children_of(pid, self.procfs))

    def _stat(self, pid: int) -> Stat | None:
        try:
            file = self._files.get(pid)
            if file is None:
                file = os.open(f"{self.procfs}/{pid}/stat", os.O_RDONLY)
                self._files[pid] = file
            return read_stat(os.pread(file, 1024, 0).decode(errors="replace"))
        except (OSError, *NONSENSE):
            # It has ended; its number may be another's by now, so its file is let go.
            self._forget(pid)
            return None

    def _forget(self, pid: int) -> None:
        self._count(self._stats.pop(pid, None), -1)
        if (file := self._files.pop(pid, None)) is not None:
            os.close(file)

    def _storage(self) -> tuple[float, float]:
        """Return what the living have read from storage and written to it."""
        read = written = 0.0
        for pid in self._pids:
            for line in read_or_empty(f"{self.procfs}/{pid}/io").splitlines():
                key, _, value = line.partition(b": ")
                with suppress(*NONSENSE):
                    if key == b"read_bytes":
                        read += parse_count(value)
                    elif key == b"write_bytes":
                        written += parse_count(value)
        return read, written


def _listens(pid: int, what: signal.Signals, procfs: Path) -> bool:
    """Return whether a process handles a signal, or keeps it back to take when it likes to.

    A shell keeps all of them back for the moment in which it starts a program.
    """
    for _ in range(_LOOKS):
        status = read_or_empty(f"{procfs}/{pid}/status")
        masks = dict(line.split(b":", 1) for line in status.splitlines() if b":" in line)
        handled, kept = (
            int(masks.get(name, b"0"), 16) >> (what - 1) & 1 for name in (b"SigCgt", b"SigBlk")
        )
        if handled or not kept:
            return bool(handled)
        time.sleep(_LOOK_S)
    return True


def children_of(pid: int, procfs: Path = Path("/proc")) -> list[int]:
    """Return the children of a process, whichever of its threads started them."""
    found: list[int] = []
    tasks = f"{procfs}/{pid}/task"
    try:
        # A Path would cost more than the reading.
        threads = os.listdir(tasks)  # noqa: PTH208
    except OSError:
        return found
    for thread in threads:
        found.extend(int(each) for each in read_or_empty(f"{tasks}/{thread}/children").split())
    return found
