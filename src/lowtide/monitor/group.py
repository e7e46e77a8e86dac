"""What each control group has used, read from files that stay open."""

from __future__ import annotations

import errno
import math
import os
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Generic

from lowtide.monitor.cgroups import (
    Layout,
    Limits,
    Place,
    Value,
    read_cache,
    read_count,
    read_limits,
)
from lowtide.monitor.kernel_files import NONSENSE, KernelFile, OpenFiles, Problems
from lowtide.monitor.node import Traffic
from lowtide.monitor.owners import find_reserved, list_gpus, list_pids
from lowtide.monitor.snapshot import Unit

# How often limits, pressure and file cache are read: they change seldom or cost much.
SLOW_S = 60.0
# A group is filled and given its limits soon after its start: until then they are read often.
YOUNG_S, _OFTEN_S = 15.0, 3.0
# Slurm makes a group first and limits it then: until it has, it is looked at again soon, and less
# and less so.
_SOON_S = 0.1
# Over how long it is judged how busy something is: looks may follow each other within milliseconds.
_RATE_S = 2.0
# The file cache is also read again when memory has changed by so much.
_CACHE_SHARE, _CACHE_BYTES = 0.05, 16 * 2**20
# Traffic has a line of about 80 bytes for each disk; few nodes have more than these hold.
_PAGE, _LONG = 4096, 65536


def smooth(rate: float, used_s: float, passed_s: float) -> float:
    """Return how many CPUs something keeps busy, of late.

    Args:
        rate: How many it did before; NaN where not known.
        used_s: CPU time that it used since.

    >>> round(smooth(1.0, 0.0, 0.01), 2), round(smooth(1.0, 0.0, 10.0), 2)
    (1.0, 0.01)
    """
    if passed_s <= 0:
        return rate
    now = used_s / passed_s
    return now if math.isnan(rate) else now + (rate - now) * math.exp(-passed_s / _RATE_S)


@dataclass(slots=True)
class Means:
    """What reading groups takes.

    Attributes:
        layout: Where the counters are.
        files: How many files may stay open.
        problems: Where to name what goes wrong.
        disks: The disks whose traffic counts, as major:minor; all where it is empty.
        all_cpus: How many CPUs the node has.
    """

    layout: Layout
    files: OpenFiles
    problems: Problems
    disks: frozenset[bytes] = frozenset()
    all_cpus: int = 0


@dataclass(slots=True)
class _Counter(Generic[Value]):
    file: KernelFile
    parse: Callable[..., Value]


@dataclass(slots=True, eq=False)
class Group:
    """A control group and what it has used so far; NaN for what is not known.

    Attributes:
        path: Where it is.
        unit: Whose use it counts.
        began: When it began, by a clock that nobody sets.
        found: When it was found, by the same clock.
        folders: Where it is in each hierarchy.
        cpu_s: CPU time so far.
        system_s: The part of it that was spent in the kernel, where the same file says so.
        rate: CPUs that it kept busy in the last seconds before it was last read.
        cpu_read: When that was.
        memory_bytes: Memory without file cache that is not in use; once it has ended, the most that
            was read since the last snapshot, or in it.
        read_bytes: Read from storage so far.
        written_bytes: Written to storage so far.
        major_faults: Pages that had to be read from storage, read as seldom as the file cache.
        processes: Processes with their threads, as the kernel counts them, else processes; how many
            they are is read as seldom as the limits.
        limits: What it is kept to.
        traffic: What went over a network of its own.
        cpu_folder: Where its CPU time is counted.
        pool: The outermost ancestor of that.
        environment: What matters of its processes' environment.
        devices: Which devices it may use, for version 1.
        asked: How often those were looked for.
        clusters: Which of Slurm's clusters its processes are of, as they were told.
        gone: Whether it is no more.
        ended_at: When it ended or was found to have, by the same clock; NaN while it is there.
        hidden: Whether others count its use.
        loose: Whether its processes count by themselves: never.
        allocates: Whether it keeps what is kept for a job by being there: never.
    """

    path: str
    unit: Unit
    began: float
    found: float = -math.inf
    folders: dict[str, int] = field(default_factory=dict)
    cpu_s: float = math.nan
    system_s: float = math.nan
    rate: float = math.nan
    cpu_read: float = math.nan
    memory_bytes: float = math.nan
    read_bytes: float = math.nan
    written_bytes: float = math.nan
    major_faults: float = math.nan
    processes: float = math.nan
    limits: Limits = field(default_factory=Limits)
    traffic: Traffic = field(default_factory=Traffic)
    cpu_folder: str = ""
    pool: str = ""
    environment: dict[str, str] = field(default_factory=dict)
    devices: str = ""
    asked: int = 0
    clusters: set[str] = field(default_factory=set)
    gone: bool = False
    ended_at: float = math.nan
    hidden: bool = False
    loose: bool = field(default=False, init=False)
    allocates: bool = field(default=False, init=False)
    _most_bytes: float = math.nan
    _cpu: _Counter[tuple[float, float]] | None = None
    _memory: _Counter[float] | None = None
    _storage: _Counter[tuple[float, float]] | None = None
    _said: bytes = b""
    _slow_at: float = -math.inf
    _limits_at: float = -math.inf
    _cache_bytes: float = math.nan
    _held_bytes: float = 0.0

    @property
    def cpus(self) -> frozenset[int] | None:
        """Which CPUs it is kept to; None where it may use all of them."""
        return self.limits.cpus

    @property
    def reserved_cpus(self) -> float:
        """CPUs that are kept for it: its own limit, else what Slurm told its processes."""
        own = self.limits.reserved_cpus
        return find_reserved(self.environment)[0] if math.isnan(own) and self.environment else own

    @property
    def reserved_bytes(self) -> float:
        """Memory that is kept for it, likewise."""
        own = self.limits.reserved_bytes
        return find_reserved(self.environment)[1] if math.isnan(own) and self.environment else own

    @property
    def gpus(self) -> tuple[str, ...]:
        """The GPUs that it was given, as its environment names them."""
        return list_gpus(self.environment) if self.environment else ()

    @property
    def counts_itself(self) -> bool:
        """Whether the kernel counts its CPU time; otherwise its processes are added up."""
        return self._cpu is not None

    @property
    def counts_storage(self) -> bool:
        """Whether the kernel counts what it moves to and from storage."""
        return self._storage is not None

    @property
    def unread_s(self) -> float:
        """How long it went on after its CPU time was last read."""
        read = self.began if math.isnan(self.cpu_read) else self.cpu_read
        return max(self.ended_at - read, 0.0)

    @property
    def awaits_limits(self) -> bool:
        """Whether Slurm has not limited it yet, as far as was seen."""
        is_young = self.cpu_read != self.cpu_read or self.cpu_read - self.began < YOUNG_S
        return self.unit.source == "slurm" and is_young and math.isnan(self.limits.reserved_cpus)

    def begin_step(self) -> None:
        """Begin a step from one snapshot to the next, with what it holds now."""
        self._most_bytes = self.memory_bytes

    def find_counters(self, means: Means) -> None:
        """Open the counters that are there and are not open yet."""
        layout = means.layout
        if self._cpu is None:
            self._cpu = self._find(layout.cpu_places, means)
            if self._cpu is not None:
                self.cpu_folder = self._cpu.file.path.rpartition("/")[0]
                above = self.cpu_folder.removesuffix(self.path)
                self.pool = f"{above}/{self.path.split('/')[1]}"
        if self._memory is None:
            self._memory = self._find(layout.memory_places, means)
        if self._storage is None:
            self._storage = self._find(layout.storage_places, means)

    def look(self) -> bytes:
        """Return what its counter of CPU time says now; nothing where there is none."""
        try:
            return b"" if self._cpu is None else self._cpu.file.read()
        except OSError:
            return b""

    def read(self, now: float, means: Means, said: bytes = b"") -> bool:
        """Read what has changed; say whether what changes seldom was read too.

        A group that has used no CPU time since has done nothing else either, so that one file is
        enough for it.

        Args:
            now: Seconds by a clock that nobody sets.
            said: What its counter of CPU time said just now; nothing to read it here.
        """
        slow = now >= self._slow_at
        if not slow and self.awaits_limits and now >= self._limits_at:
            self._read_limits(now, means)
        counter = self._cpu
        if slow or (
            (counter is None or self._memory is None or self._storage is None)
            and now - self.began < SLOW_S
        ):
            self.find_counters(means)
            counter = self._cpu
        if counter is not None:
            try:
                said = said or counter.file.read()
                # What stays the same may be another's by now.
                if said == self._said and counter.file.renew():
                    said = counter.file.read()
                    self._reopen(means)
            except OSError as error:
                self.gone = error.errno in (errno.ENODEV, errno.ENOENT)
                return False
            if said == self._said and not slow:
                self.rate = smooth(self.rate, 0.0, now - self.cpu_read)
                self.cpu_read = now
                return False
            self._said = said
            self._count_cpu(said, counter, now, means)
        if self._memory is not None:
            self._read_memory(self._memory, means, slow=slow)
        if self._storage is not None:
            self._read_storage(self._storage, means)
        if slow:
            self._read_slowly(now, means)
        return slow

    def end(self, now: float) -> None:
        """Let go of the files, and keep what was counted.

        Args:
            now: Seconds by a clock that nobody sets.
        """
        for counter in (self._cpu, self._memory, self._storage):
            if counter is not None:
                counter.file.close()
        self._cpu = self._memory = self._storage = None
        self.gone = True
        self.ended_at = now
        # A group is empty before it is removed, which says nothing about the job that was in it.
        self.memory_bytes = self._most_bytes
        self.processes = 0.0

    def _reopen(self, means: Means) -> None:
        """Open the other files anew, which others have taken the place of as well."""
        for counter in (self._memory, self._storage):
            if counter is not None:
                counter.file.close()
        self._memory = self._storage = None
        self.find_counters(means)

    def _find(self, places: Sequence[Place[Value]], means: Means) -> _Counter[Value] | None:
        for place in places:
            path = f"{place.folder}{self.path}/{place.file}"
            try:
                return _Counter(KernelFile(path, means.files), place.parse)
            except PermissionError:
                means.problems.forbidden(path)
            except OSError:
                continue
        return None

    def _count_cpu(
        self, said: bytes, counter: _Counter[tuple[float, float]], now: float, means: Means
    ) -> None:
        try:
            used_s, system_s = counter.parse(said)
        except NONSENSE:
            means.problems.reject("broken cpu", f"{counter.file.path} makes no sense: {said!r}")
            return
        if used_s < self.cpu_s:
            means.problems.reject(
                "backwards", f"{counter.file.path} ran backwards; such readings are left out"
            )
            return
        if not math.isnan(self.cpu_read):
            self.rate = smooth(self.rate, used_s - self.cpu_s, now - self.cpu_read)
        elif now - self.began > _RATE_S:
            self.rate = used_s / (now - self.began)
        self.cpu_s, self.cpu_read = used_s, now
        self.system_s = system_s

    def _read_memory(self, counter: _Counter[float], means: Means, *, slow: bool) -> None:
        try:
            held = counter.parse(counter.file.read())
        except OSError:
            # Its controller was taken away, or the group is going; the CPU time will tell.
            counter.file.close()
            self._memory = None
            return
        except NONSENSE:
            means.problems.reject("broken memory", f"{counter.file.path} makes no sense")
            return
        before = self._held_bytes
        unknown = math.isnan(self._cache_bytes)
        if slow or unknown or abs(held - before) > max(_CACHE_BYTES, _CACHE_SHARE * before):
            self._held_bytes = held
            self._cache_bytes, self.major_faults = read_cache(means.layout, self.path)
        self.memory_bytes = max(held - self._cache_bytes, 0.0)
        if not self._most_bytes >= self.memory_bytes:
            self._most_bytes = self.memory_bytes

    def _read_storage(self, counter: _Counter[tuple[float, float]], means: Means) -> None:
        try:
            said = counter.file.read(_PAGE)
            if len(said) == _PAGE:
                said = counter.file.read(_LONG)
            self.read_bytes, self.written_bytes = counter.parse(said, means.disks)
        except OSError:
            counter.file.close()
            self._storage = None
        except NONSENSE:
            means.problems.reject("broken storage", f"{counter.file.path} makes no sense")

    def _read_limits(self, now: float, means: Means) -> None:
        self._limits_at = now + max(_SOON_S, 0.5 * (now - self.found))
        self.limits = read_limits(
            means.layout,
            self.path,
            strict=self.unit.source == "slurm",
            all_cpus=means.all_cpus,
        )

    def _read_slowly(self, now: float, means: Means) -> None:
        if now - self.began < YOUNG_S:
            self._slow_at = now + _OFTEN_S
        else:
            # Groups that were found together are not all read slowly at the same tick ever after.
            first = self._slow_at == -math.inf
            share = (zlib.crc32(os.fsencode(self.path)) % 64 + 1) / 64 if first else 1.0
            self._slow_at = now + share * SLOW_S
        self._read_limits(now, means)
        self.processes = read_count(means.layout, self.path)
        if math.isnan(self.processes) and self.folders:
            self.processes = float(len(list_pids(next(iter(self.folders)))))
