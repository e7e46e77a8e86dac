"""Processes that count together, and how none of their use is lost or counted twice.

Whoever waits for a process that ended takes over its counters. So a shell that waits for a program
would count all of it again, and what a program used at its very end is known to its parent alone.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from lowtide.files import read_or_empty
from lowtide.monitor.cgroups import Limits
from lowtide.monitor.group import Group, smooth
from lowtide.monitor.kernel_files import NONSENSE, parse_count
from lowtide.monitor.node import Traffic
from lowtide.monitor.processes import Stat, read_stat
from lowtide.monitor.snapshot import Unit

# The source and the id of a unit, and its cluster where there are several.
Key = tuple[str, str, str]
_NO_LIMITS = Limits()


@dataclass(slots=True, eq=False)
class ProcessUnit:
    """Processes that count together; NaN for what is not known.

    Attributes:
        key: What tells them from the others that are there.
        unit: What they are.
        pids: The living ones.
        cpu_s: CPU time so far, those that ended included as far as somebody waited for them.
        memory_bytes: Memory that they hold, added up: pages that they share count for each. What
            each has of those costs a walk over all its pages to find out. Once they have ended, it
            is what was last read.
        read_bytes: Read from storage so far.
        written_bytes: Written to storage so far.
        reserved_cpus: CPUs that are kept for them.
        reserved_bytes: Memory that is kept for them.
        gpus: GPUs that they were given, as their environment names them.
        shown: Whether they matter.
        ended_at: When they ended, by a clock that nobody sets; NaN while any is there.
        cpus: Which CPUs they are kept to: not known.
        devices: Which devices they may use: not known.
        major_faults: Pages that had to be read from storage: not known of those that ended.
        limits: What they are kept to, and for how long they waited: not known.
        system_s: The part of the CPU time that was spent in the kernel: not told apart.
        traffic: What went over a network of their own.
        loose: Whether they count by themselves: always.
        allocates: Whether a shell of theirs holds an allocation: what is kept for the job is kept
            on this node as long as they are there.
    """

    key: Key
    unit: Unit
    pids: set[int] = field(default_factory=set)
    cpu_s: float = 0.0
    memory_bytes: float = 0.0
    read_bytes: float = math.nan
    written_bytes: float = math.nan
    reserved_cpus: float = math.nan
    reserved_bytes: float = math.nan
    gpus: tuple[str, ...] = ()
    shown: bool = False
    ended_at: float = math.nan
    cpus: None = None
    devices: str = ""
    major_faults: float = math.nan
    limits: Limits = _NO_LIMITS
    system_s: float = math.nan
    traffic: Traffic = field(default_factory=Traffic)
    loose: bool = field(default=True, init=False)
    allocates: bool = False

    @property
    def processes(self) -> float:
        """How many are alive."""
        return float(len(self.pids))

    @property
    def gone(self) -> bool:
        """Whether all have ended."""
        return not self.pids

    def add_storage(self, read: float, written: float) -> None:
        """Count more bytes."""
        known = not math.isnan(self.read_bytes)
        self.read_bytes = read + (self.read_bytes if known else 0.0)
        self.written_bytes = written + (self.written_bytes if known else 0.0)


@dataclass(slots=True)
class Process:
    """A process that was placed: outside if it has a key.

    Attributes:
        stat: What it had used when it was last read.
        read: When that was, seconds since boot.
        due: When to place it again.
        key: The unit that it counts for; None inside of a group that counts itself.
        group: The group without counters that says so, where one does.
        said: The groups that it was in when it was placed, as /proc/PID/cgroup names them.
        environment: What matters of its environment.
        stored: What it had read and written.
        rate: CPUs that it kept busy in the last seconds until then; NaN where not known.
        foreign: Whether it waits for children that are counted elsewhere.
        tainted: Whether a child has ended since it was last read that did so, or that was counted
            elsewhere itself.
        hosts: Whether it is counted elsewhere, and waits for children that are not.
        seen: When it was first seen.
        ended: What its children counted for that ended since it was last read, each with the CPU
            time that it is likely to have used after its own last reading.
    """

    stat: Stat
    read: float
    due: float
    seen: float
    key: Key | None = None
    group: Group | None = None
    said: str = ""
    environment: dict[str, str] = field(default_factory=dict)
    stored: tuple[float, float] = (0.0, 0.0)
    rate: float = math.nan
    foreign: bool = False
    tainted: bool = False
    hosts: bool = False
    ended: list[tuple[Key, float]] = field(default_factory=list)

    @property
    def is_inside(self) -> bool:
        """Whether a group counts it; the group may have begun to since the process was placed."""
        return self.key is None or (self.group is not None and bool(self.group.cpu_folder))

    def gain(self, stat: Stat, now: float, *, is_first: bool) -> tuple[dict[Key, float], float]:
        """Return the CPU time that is new, for each unit that it belongs to.

        Also return the CPU time of those that were taken for its children's children, and that it
        did not get: they were orphaned, and others waited for them.

        Args:
            now: Seconds since boot.
            is_first: Whether this is the first look: what a shell waited for before is not its own.
        """
        before, self.stat = self.stat, stat
        passed_s, self.read = now - self.read, now
        heirs, self.ended = self.ended, []
        tainted, self.tainted = self.tainted, False
        if self.key is None:
            waited_s = max(stat.waited_s - before.waited_s, 0.0)
            return _divide(waited_s, heirs, tainted=tainted), 0.0
        own_s = (stat.cpu_s - stat.waited_s) - (before.cpu_s - before.waited_s)
        waited_s = stat.waited_s - before.waited_s
        if self.foreign or (is_first and self.key[0] == "process"):
            waited_s = 0.0
        gains = {self.key: max(own_s, 0.0)}
        # What those that ended used since they were last read; else children that nobody saw.
        heirs = heirs or [(self.key, max(waited_s, 0.0))]
        for heir, share_s in _divide(max(waited_s, 0.0), heirs, tainted=tainted).items():
            gains[heir] = gains.get(heir, 0.0) + share_s
        self.rate = smooth(self.rate, gains[self.key], passed_s)
        return gains, max(-waited_s, 0.0)

    def take_over(self, child: Process, now: float) -> None:
        """Take over the counters of a child that ended, which were counted while it lived.

        Args:
            now: Seconds since boot.
        """
        self.expect(child.stat.cpu_s)
        self.stored = self.stored[0] + child.stored[0], self.stored[1] + child.stored[1]
        self.ended += child.ended
        # Of one that hosts others it is known what it used, of all others inside it is not.
        unknown = child.is_inside and not child.hosts
        self.foreign = self.foreign or unknown
        self.tainted = self.tainted or child.tainted or child.foreign or unknown
        if child.key is not None and not child.is_inside:
            # One that was read after its end has used nothing since.
            unread_s = 0.0 if child.stat.dead else now - child.read
            likely_s = 0.0 if math.isnan(child.rate) else child.rate * unread_s
            self.ended.append((child.key, likely_s))

    def expect(self, waited_s: float) -> None:
        """Leave out what is going to show in the counters, since it was counted elsewhere.

        Args:
            waited_s: CPU time of processes that are waited for.
        """
        self.stat = replace(
            self.stat, cpu_s=self.stat.cpu_s + waited_s, waited_s=self.stat.waited_s + waited_s
        )

    def gain_storage(self, procfs: str, pid: int) -> tuple[float, float] | None:
        """Return the bytes that were read and written since the last time, None if not known."""
        now = _read_storage(procfs, pid)
        if now is None:
            return None
        (read, written), self.stored = self.stored, now
        if self.foreign:
            return 0.0, 0.0
        return max(now[0] - read, 0.0), max(now[1] - written, 0.0)


@dataclass(slots=True)
class GroupStorage:
    """What the processes of a group moved, where the kernel does not count that for the group.

    Whoever waits for a process takes over what it had moved, as with CPU time.

    Attributes:
        read_bytes: Read from storage so far; NaN where no process may be asked.
        written_bytes: Written to storage so far.
        cpu_s: CPU time of the group when they were last asked: what has used none moved nothing.
    """

    read_bytes: float = math.nan
    written_bytes: float = math.nan
    cpu_s: float = math.nan
    _stored: dict[int, tuple[Stat, float, float]] = field(default_factory=dict, init=False)

    def count(self, procfs: str, pids: Iterable[int]) -> None:
        """Count what was moved since the last time."""
        now: dict[int, tuple[Stat, float, float]] = {}
        for pid in pids:
            moved = _read_storage(procfs, pid)
            try:
                said = read_or_empty(f"{procfs}/{pid}/stat").decode(errors="replace")
                stat = read_stat(said)
            except NONSENSE:
                continue
            if moved is not None:
                now[pid] = (stat, *moved)
        before = dict(self._stored)
        # The youngest first: what they hand on is handed on by their parents in turn.
        for pid in sorted(before, key=lambda each: -before[each][0].started_s):
            stat, read, written = before[pid]
            ended = pid not in now or now[pid][0].started_s != stat.started_s
            if ended and (heir := before.get(stat.parent)) is not None:
                before[stat.parent] = (heir[0], heir[1] + read, heir[2] + written)
        for pid, (stat, read, written) in now.items():
            known = before.get(pid)
            if known is None or known[0].started_s != stat.started_s:
                known = (stat, 0.0, 0.0)
            self.read_bytes = max(read - known[1], 0.0) + _or_nothing(self.read_bytes)
            self.written_bytes = max(written - known[2], 0.0) + _or_nothing(self.written_bytes)
            now[pid] = (stat, max(read, known[1]), max(written, known[2]))
        self._stored = now


def _or_nothing(value: float) -> float:
    return 0.0 if math.isnan(value) else value


def _read_storage(procfs: str, pid: int) -> tuple[float, float] | None:
    """Return what a process has read from storage and written to it; None if not known."""
    said = read_or_empty(f"{procfs}/{pid}/io")
    values = {key: value for key, _, value in (each.partition(b": ") for each in said.split(b"\n"))}
    try:
        return float(parse_count(values[b"read_bytes"])), float(parse_count(values[b"write_bytes"]))
    except NONSENSE:
        return None


def _divide(waited_s: float, heirs: list[tuple[Key, float]], *, tainted: bool) -> dict[Key, float]:
    """Return what each unit gets of CPU time that was waited for, by what was likely.

    Args:
        waited_s: The CPU time.
        heirs: Units of processes that ended, each with what it is likely to have used.
        tainted: Whether some of it may be counted elsewhere: then nobody gets more than is likely.
    """
    likely_s = math.fsum(each_s for _, each_s in heirs)
    if tainted:
        waited_s = min(waited_s, likely_s)
    shares: dict[Key, float] = {}
    for heir, each_s in heirs:
        share = each_s / likely_s if likely_s > 0 else 1 / len(heirs)
        shares[heir] = shares.get(heir, 0.0) + share * waited_s
    return shares
