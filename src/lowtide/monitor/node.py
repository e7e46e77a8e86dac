"""What the whole node uses: CPU time, memory, storage, network, pressure."""

from __future__ import annotations

import math
import os
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from lowtide.files import read_or_empty
from lowtide.monitor.cgroups import parse_cpus, parse_pressure
from lowtide.monitor.kernel_files import NONSENSE, KernelFile, OpenFiles, Problems, parse_count
from lowtide.monitor.networks import Cards, parse_traffic
from lowtide.monitor.processes import TICKS_PER_S
from lowtide.monitor.snapshot import PRESSURES, NodeCounts

_SECTOR_BYTES = 512
_KILOBYTE = 1024
# What the columns of the first line of /proc/stat are; guests, which follow, are users.
_MODES = ("user", "nice", "system", "idle", "iowait", "irq", "softirq", "steal")


@dataclass(slots=True)
class NodeFiles:
    """The files of the kernel's that speak of the whole node.

    Attributes:
        procfs: Where /proc is.
        sysfs: Where /sys is.
        files: How many files may stay open.
        problems: Where to name what makes no sense.
        disks: The disks that stand for themselves, as major:minor.
        sockets: The socket of each CPU; empty where it is not known.
        threads_per_core: Hardware threads in a core, None where that is not known.
    """

    procfs: Path
    sysfs: Path
    files: OpenFiles
    problems: Problems = field(default_factory=Problems)
    disks: frozenset[bytes] = field(default=frozenset(), init=False)
    sockets: dict[int, int] = field(default_factory=dict, init=False)
    threads_per_core: int | None = field(default=None, init=False)
    _open: dict[str, KernelFile] = field(default_factory=dict, init=False)
    _cards: Cards = field(init=False)

    def __post_init__(self) -> None:
        self._cards = Cards(str(self.sysfs))
        self.disks = _find_disks(self.sysfs)
        self.sockets = _find_sockets(self.sysfs)
        self.threads_per_core = count_threads_per_core(self.sysfs)

    def read(self) -> NodeCounts:
        """Return what the node has used so far and holds now."""
        stat = self._said("stat")
        memory = self._memory()
        read, written = self._storage()
        received, sent = self._network()
        pressures = {}
        for each in PRESSURES:
            try:
                pressures[each] = parse_pressure(self._said(f"pressure/{each}"))
            except NONSENSE:
                continue
        return NodeCounts(
            cpus=self._cpus(stat),
            busy_s=busy_of(stat),
            memory_bytes=memory.get(b"MemTotal", math.nan),
            available_bytes=memory.get(b"MemAvailable", math.nan),
            read_bytes=read,
            written_bytes=written,
            received_bytes=received,
            sent_bytes=sent,
            pressure_s=pressures,
            mode_s=_modes(stat),
            threads_per_core=self.threads_per_core or math.nan,
        )

    @property
    def boot(self) -> float:
        """When the node was started, epoch seconds; 0 where it is not known."""
        for line in self._said("stat").splitlines():
            if line.startswith(b"btime "):
                with suppress(*NONSENSE):
                    return float(parse_count(line[6:]))
        return 0.0

    def close(self) -> None:
        """Let go of the files."""
        for file in self._open.values():
            file.close()
        self._open.clear()

    def _said(self, name: str) -> bytes:
        try:
            if name not in self._open:
                self._open[name] = KernelFile(f"{self.procfs}/{name}", self.files)
            self._open[name].renew()
            return self._open[name].read_all()
        except OSError:
            # It may be there again, as another file.
            if name in self._open:
                self._open.pop(name).close()
            return b""

    def _reject(self, name: str, line: bytes) -> None:
        told = f"{self.procfs}/{name} makes no sense: {line[:80]!r}"
        self.problems.reject(f"broken {name}", told)

    def _cpus(self, stat: bytes) -> int:
        online = read_or_empty(f"{self.sysfs}/devices/system/cpu/online")
        try:
            found = len(parse_cpus(online.decode()))
        except NONSENSE:
            found = 0
        # The first line of the file adds them up.
        return found or max(stat.count(b"\ncpu"), 0)

    def _memory(self) -> dict[bytes, float]:
        found = {}
        for line in self._said("meminfo").splitlines():
            name, _, rest = line.partition(b":")
            if name in (b"MemTotal", b"MemAvailable"):
                try:
                    found[name] = float(parse_count(rest.split()[0])) * _KILOBYTE
                except NONSENSE:
                    self._reject("meminfo", line)
        return found

    def _storage(self) -> tuple[float, float]:
        said = self._said("diskstats")
        if not said or not self.disks:
            return math.nan, math.nan
        read = written = 0
        for line in said.splitlines():
            fields = line.split()
            try:
                if b"%s:%s" % (fields[0], fields[1]) in self.disks:
                    read += parse_count(fields[5])
                    written += parse_count(fields[9])
            except NONSENSE:
                self._reject("diskstats", line)
        return float(read * _SECTOR_BYTES), float(written * _SECTOR_BYTES)

    def _network(self) -> tuple[float, float]:
        said = self._said("net/dev")
        if not said:
            return math.nan, math.nan
        moved = parse_traffic(said, self.problems)
        counted = [moved[name] for name in self._cards.choose(moved)]
        if not counted:
            return math.nan, math.nan
        received, sent = (sum(each) for each in zip(*counted, strict=True))
        return float(received), float(sent)


def _modes(stat: bytes) -> dict[str, float]:
    """Return the CPU time since boot by what it went to."""
    first = stat.partition(b"\n")[0].split()[1:]
    try:
        return {
            name: parse_count(each) / TICKS_PER_S for name, each in zip(_MODES, first, strict=False)
        }
    except NONSENSE:
        return {}


def busy_of(stat: bytes) -> float:
    """Return the CPU time in use: user, nice, system, irq, softirq; guests are users.

    Args:
        stat: What /proc/stat says.
    """
    first = stat.partition(b"\n")[0].split()
    try:
        ticks = [parse_count(each) for each in first[1:8]]
        user, nice, system, _, _, irq, softirq = ticks
    except NONSENSE:
        return math.nan
    # Time that the hypervisor took away was used by others.
    return (user + nice + system + irq + softirq) / TICKS_PER_S


def _find_disks(sysfs: Path) -> frozenset[bytes]:
    """Return the disks that have a device; others are made of those, and would count twice."""
    found = set()
    try:
        for each in (sysfs / "block").iterdir():
            if (each / "device").exists():
                found.add(read_or_empty(f"{each}/dev").strip())
    except OSError:
        return frozenset()
    return frozenset(found - {b""})


def _find_sockets(sysfs: Path) -> dict[int, int]:
    """Return the socket of each CPU, counted from 0 in the order of their numbers."""
    packages = {}
    try:
        for each in (sysfs / "devices/system/cpu").iterdir():
            number = os.fsencode(each.name).removeprefix(b"cpu")
            said = read_or_empty(f"{each}/topology/physical_package_id").strip()
            with suppress(*NONSENSE):
                packages[parse_count(number)] = parse_count(said)
    except OSError:
        return {}
    order = sorted(set(packages.values()))
    return {cpu: order.index(package) for cpu, package in packages.items()}


def count_threads_per_core(sysfs: Path) -> int | None:
    """Return how many hardware threads share a core at most, None where nobody says.

    Args:
        sysfs: Where /sys is.
    """
    most = 0
    for core in (sysfs / "devices/system/cpu").glob("cpu[0-9]*/topology"):
        # The second is what older kernels call it.
        said = read_or_empty(f"{core}/core_cpus_list") or read_or_empty(
            f"{core}/thread_siblings_list"
        )
        with suppress(*NONSENSE):
            most = max(most, len(parse_cpus(said.decode())))
    return most or None
