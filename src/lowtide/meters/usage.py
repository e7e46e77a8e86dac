"""How busy the whole machine is: what power models are learned from, and estimate by.

Kernel counters only ever grow, so two looks at them tell the use in between, whatever happened
meanwhile. What cannot be read is NaN.
"""

from __future__ import annotations

import math
import time
from collections.abc import Collection
from dataclasses import dataclass, field

from lowtide.meters.meter import Roots
from lowtide.meters.nvml import Nvml
from lowtide.monitor.kernel_files import OpenFiles
from lowtide.monitor.node import NodeFiles, busy_of

# What a machine's use is called, and the column of a recording that keeps it.
FEATURES = {
    "cpu": "machine.cpu_share",
    "memory": "machine.memory_share",
    "disk": "machine.disk_bytes_per_s",
    "gpu": "machine.gpu_share",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Counts:
    """What the counters showed at one moment, NaN for what is not known.

    Attributes:
        time_s: When, by a clock that nobody sets.
        cpu_s: CPU time that has passed, over all cores.
        busy_s: The busy part of it.
        memory_share: Share of the memory in use now.
        disk_bytes: What was read from disks and written to them.
        gpu_share: Share of the time in which the GPUs were busy lately, their mean.
    """

    time_s: float
    cpu_s: float = math.nan
    busy_s: float = math.nan
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
    _files: NodeFiles = field(init=False)

    def __post_init__(self) -> None:
        # A recorded tree may be brought up to date by files in place of others.
        files = OpenFiles(len(FEATURES), replaced=not self.roots.is_here)
        self._files = NodeFiles(self.roots.procfs, self.roots.sysfs, files)

    def look(self) -> Counts:
        """Read the counters."""
        modes = self._files.modes() if "cpu" in self.features else {}
        memory = self._files.memory() if "memory" in self.features else {}
        total = memory.get("MemTotal") or math.nan
        return Counts(
            time_s=time.monotonic(),
            cpu_s=sum(modes.values()) if modes else math.nan,
            busy_s=busy_of(modes),
            memory_share=1.0 - memory.get("MemAvailable", math.nan) / total,
            disk_bytes=sum(self._files.storage()) if "disk" in self.features else math.nan,
            gpu_share=math.nan if self.gpus is None else self.gpus.busy_share(),
        )

    def close(self) -> None:
        """Let go of files and GPUs."""
        self._files.close()
        if self.gpus is not None:
            self.gpus.close()


def use_between(before: Counts, after: Counts) -> dict[str, float]:
    """Return the machine's use between two looks, by the names of `FEATURES`.

    >>> earlier = Counts(time_s=10.0, cpu_s=10.0, busy_s=1.0, disk_bytes=0)
    >>> later = Counts(time_s=12.0, cpu_s=14.0, busy_s=4.0, disk_bytes=8)
    >>> use = use_between(earlier, later)
    >>> use["cpu"], use["disk"], use["memory"]
    (0.75, 4.0, nan)
    """
    cpu_s, passed_s = after.cpu_s - before.cpu_s, after.time_s - before.time_s
    busy = (after.busy_s - before.busy_s) / cpu_s if cpu_s > 0 else math.nan
    moved = after.disk_bytes - before.disk_bytes
    return {
        "cpu": min(max(busy, 0.0), 1.0) if not math.isnan(busy) else math.nan,
        "memory": after.memory_share,
        "disk": moved / passed_s if passed_s > 0 and moved >= 0 else math.nan,
        "gpu": after.gpu_share,
    }
