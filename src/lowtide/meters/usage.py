"""How busy the whole machine is: what power models are learned from, and estimate by.

Kernel counters only ever grow, so two looks at them tell the use in between, whatever happened
meanwhile. What cannot be read is NaN.
"""

from __future__ import annotations

import math
import time
from collections.abc import Collection
from dataclasses import dataclass, field

from lowtide.files import read_or_empty
from lowtide.meters.meter import Roots
from lowtide.meters.nvml import Nvml

# What a machine's use is called, and the column of a recording that keeps it.
FEATURES = {
    "cpu": "machine.cpu_share",
    "memory": "machine.memory_share",
    "disk": "machine.disk_bytes_per_s",
    "gpu": "machine.gpu_share",
}
_SECTOR_BYTES = 512
# These stand for other disks or for none: counting them would count twice.
_NO_DISKS = ("loop", "ram", "zram", "dm-", "md", "sr", "fd")


@dataclass(frozen=True, slots=True, kw_only=True)
class Counts:
    """What the counters showed at one moment, NaN for what is not known.

    Attributes:
        time_s: When, by a clock that nobody sets.
        cpu_ticks: CPU time that has passed, in ticks over all cores.
        busy_ticks: The busy part of it.
        memory_share: Share of the memory in use now.
        disk_bytes: What was read from disks and written to them.
        gpu_share: Share of the time in which the GPUs were busy lately, their mean.
    """

    time_s: float
    cpu_ticks: float = math.nan
    busy_ticks: float = math.nan
    memory_share: float = math.nan
    disk_bytes: float = math.nan
    gpu_share: float = math.nan


@dataclass(slots=True, kw_only=True)
class MachineUse:
    """The counters of one machine.

    Attributes:
        features: Which of `FEATURES` are read.
        roots: Where the kernel's files are.
        gpus: The GPUs, open; None where they are not read.
    """

    features: Collection[str] = tuple(FEATURES)
    roots: Roots = field(default_factory=Roots)
    gpus: Nvml | None = None
    _disks: frozenset[bytes] | None = field(default=None, init=False)

    def look(self) -> Counts:
        """Read the counters."""
        ticks = read_cpu_times(self.roots) if "cpu" in self.features else None
        cpu_ticks, busy_ticks = ticks or (math.nan, math.nan)
        return Counts(
            time_s=time.monotonic(),
            cpu_ticks=cpu_ticks,
            busy_ticks=busy_ticks,
            memory_share=self._memory_share() if "memory" in self.features else math.nan,
            disk_bytes=self._disk_bytes() if "disk" in self.features else math.nan,
            gpu_share=math.nan if self.gpus is None else self.gpus.busy_share(),
        )

    def _memory_share(self) -> float:
        kilobytes = {}
        try:
            for line in read_or_empty(f"{self.roots.procfs}/meminfo").splitlines():
                name, _, rest = line.partition(b":")
                if name in (b"MemTotal", b"MemAvailable"):
                    kilobytes[name] = float(rest.split()[0])
            return 1.0 - kilobytes[b"MemAvailable"] / kilobytes[b"MemTotal"]
        except (ValueError, LookupError, ZeroDivisionError):
            return math.nan

    def _disk_bytes(self) -> float:
        try:
            if self._disks is None:
                names = (each.name for each in (self.roots.sysfs / "block").iterdir())
                self._disks = frozenset(
                    each.encode() for each in names if not each.startswith(_NO_DISKS)
                )
            lines = read_or_empty(f"{self.roots.procfs}/diskstats").splitlines()
            if not lines:
                return math.nan
            rows = [line.split() for line in lines]
            return float(
                sum(
                    _SECTOR_BYTES * (int(row[5]) + int(row[9]))
                    for row in rows
                    if row[2] in self._disks
                )
            )
        except (OSError, ValueError, IndexError):
            return math.nan


def use_between(before: Counts, after: Counts) -> dict[str, float]:
    """Return the machine's use between two looks, by the names of `FEATURES`.

    Args:
        before: The earlier look.
        after: The later one.

    >>> earlier = Counts(time_s=10.0, cpu_ticks=1000, busy_ticks=100, disk_bytes=0)
    >>> later = Counts(time_s=12.0, cpu_ticks=1400, busy_ticks=400, disk_bytes=8)
    >>> use = use_between(earlier, later)
    >>> use["cpu"], use["disk"], use["memory"]
    (0.75, 4.0, nan)
    """
    ticks, passed_s = after.cpu_ticks - before.cpu_ticks, after.time_s - before.time_s
    busy = (after.busy_ticks - before.busy_ticks) / ticks if ticks > 0 else math.nan
    moved = after.disk_bytes - before.disk_bytes
    return {
        "cpu": min(max(busy, 0.0), 1.0) if not math.isnan(busy) else math.nan,
        "memory": after.memory_share,
        "disk": moved / passed_s if passed_s > 0 and moved >= 0 else math.nan,
        "gpu": after.gpu_share,
    }


def read_cpu_times(roots: Roots) -> tuple[float, float] | None:
    """Return all CPU time and the busy part of it, in ticks, over all cores.

    Args:
        roots: Where the kernel's files are.
    """
    try:
        line = read_or_empty(f"{roots.procfs}/stat").partition(b"\n")[0]
        # user nice system idle iowait irq softirq steal; guest time is in user time already.
        ticks = [float(each) for each in line.split()[1:9]]
    except ValueError:
        return None
    if len(ticks) < 5:
        return None
    idle = ticks[3] + ticks[4]
    return sum(ticks), sum(ticks) - idle


def count_cpus(roots: Roots) -> int:
    """Return how many CPUs the kernel counts time for, 0 where it does not say.

    Args:
        roots: Where the kernel's files are.
    """
    lines = read_or_empty(f"{roots.procfs}/stat").splitlines()
    return sum(line[:3] == b"cpu" and line[3:4].isdigit() for line in lines)
