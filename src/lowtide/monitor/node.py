"""What the whole node uses: CPU time, memory, storage, network, pressure."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from pathlib import Path

from lowtide.files import read_or_empty
from lowtide.monitor.cgroups import parse_cpus, parse_pressure
from lowtide.monitor.kernel_files import KernelFile, OpenFiles
from lowtide.monitor.processes import TICKS_PER_S
from lowtide.monitor.snapshot import PRESSURES, NodeCounts

_SECTOR_BYTES = 512
_KILOBYTE = 1024
# What a node with many disks and interfaces says in these files.
_LONG = 65536


@dataclass(slots=True)
class NodeFiles:
    """The files of the kernel's that speak of the whole node.

    Attributes:
        procfs: Where /proc is.
        sysfs: Where /sys is.
        files: How many files may stay open.
        disks: The disks that stand for themselves, as major:minor.
        sockets: The socket of each CPU; empty where it is not known.
    """

    procfs: Path
    sysfs: Path
    files: OpenFiles
    disks: frozenset[bytes] = field(default=frozenset(), init=False)
    sockets: dict[int, int] = field(default_factory=dict, init=False)
    _open: dict[str, KernelFile] = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        self.disks = _find_disks(self.sysfs)
        self.sockets = _find_sockets(self.sysfs)

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
            except ValueError:
                continue
        return NodeCounts(
            cpus=self._cpus(stat),
            busy_s=_busy(stat),
            memory_bytes=memory.get(b"MemTotal", math.nan),
            available_bytes=memory.get(b"MemAvailable", math.nan),
            read_bytes=read,
            written_bytes=written,
            received_bytes=received,
            sent_bytes=sent,
            pressure_s=pressures,
        )

    @property
    def boot(self) -> float:
        """When the node was started, epoch seconds; 0 where it is not known."""
        for line in self._said("stat").splitlines():
            if line.startswith(b"btime "):
                return float(line[6:])
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
            return self._open[name].read(_LONG)
        except OSError:
            return b""

    def _cpus(self, stat: bytes) -> int:
        online = read_or_empty(f"{self.sysfs}/devices/system/cpu/online")
        try:
            found = len(parse_cpus(online.decode()))
        except ValueError:
            found = 0
        # The first line of the file adds them up.
        return found or max(stat.count(b"\ncpu"), 0)

    def _memory(self) -> dict[bytes, float]:
        found = {}
        for line in self._said("meminfo").splitlines():
            name, _, rest = line.partition(b":")
            if name in (b"MemTotal", b"MemAvailable"):
                try:
                    found[name] = float(int(rest.split()[0])) * _KILOBYTE
                except (ValueError, IndexError):
                    continue
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
                    read += int(fields[5])
                    written += int(fields[9])
            except (ValueError, IndexError):
                continue
        return float(read * _SECTOR_BYTES), float(written * _SECTOR_BYTES)

    def _network(self) -> tuple[float, float]:
        said = self._said("net/dev")
        if not said:
            return math.nan, math.nan
        received = sent = 0
        for line in said.splitlines():
            name, colon, rest = line.partition(b":")
            fields = rest.split()
            if colon and name.strip() != b"lo" and len(fields) >= 9:
                received += int(fields[0])
                sent += int(fields[8])
        return float(received), float(sent)


def _busy(stat: bytes) -> float:
    """Return the CPU time in use: user, nice, system, irq, softirq; guests are users."""
    first = stat.partition(b"\n")[0].split()
    try:
        ticks = [int(each) for each in first[1:8]]
        user, nice, system, _, _, irq, softirq = ticks
    except ValueError:
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
            number = each.name.removeprefix("cpu")
            said = read_or_empty(f"{each}/topology/physical_package_id").strip()
            if number.isdigit() and said.isdigit():
                packages[int(number)] = int(said)
    except OSError:
        return {}
    order = sorted(set(packages.values()))
    return {cpu: order.index(package) for cpu, package in packages.items()}
