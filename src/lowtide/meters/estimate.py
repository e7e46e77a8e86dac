"""No meter: power estimated from how busy the machine is. Always labelled as an estimate."""

from __future__ import annotations

import math
import os
import time
from collections import deque
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import ClassVar

from lowtide.errors import MeterProblem
from lowtide.files import read_or_empty
from lowtide.meters.meter import BaseMeter, Channel, Found, Reading, Roots, checked
from lowtide.meters.nvml import Nvml
from lowtide.meters.power_model import UtilisationModel
from lowtide.meters.tegrastats import Tegrastats
from lowtide.monitor.kernel_files import OpenFiles
from lowtide.monitor.node import NodeFiles, busy_of, count_cpus, modes_of

_CHANNEL = Channel(name="node", domain="node")


@dataclass(slots=True, kw_only=True)
class Estimate(BaseMeter):
    """The node's power by a model of its use; there whenever /proc is.

    Attributes:
        model: The model; None for a generic one.
        roots: Where the kernel's files are.
    """

    name: ClassVar[str] = "estimate"
    measured: ClassVar[bool] = False
    means: ClassVar[bool] = True
    model: UtilisationModel | None = None
    roots: Roots = field(default_factory=Roots)
    _use: MachineUse | None = field(default=None, init=False)
    _seen: deque[Counts] = field(default_factory=deque, init=False)
    _last: Reading | None = field(default=None, init=False)

    @classmethod
    def find(cls, roots: Roots) -> Found:
        """Say that there is always an estimate, and of which kind."""
        if not modes_of(read_or_empty(f"{roots.procfs}/stat")):
            return Found(meter=cls.name, state="absent", what="no /proc/stat")
        return Found(
            meter=cls.name,
            state="works",
            what="estimated from CPU use: no measurement",
            cure="a rough guess that nobody has checked here: learn a model with lowtide model",
        )

    @property
    def idle_w(self) -> float:
        """What the machine is estimated to draw when nothing runs."""
        model = self._model()
        return model.at({feature.name: 0.0 for feature in model.features}).power_w

    @property
    def sees_gpus(self) -> bool:
        """Whether the model goes by the use of GPUs, so that what they draw is in its estimate."""
        return any(feature.name.startswith("gpu") for feature in self._model().features)

    def open(self) -> tuple[Channel, ...]:
        """Take the first look at the machine's use."""
        self.model = self._model()
        names = [feature.name for feature in self.model.features]
        if unknown := [name for name in names if name not in FEATURES]:
            raise MeterProblem(
                f"the model goes by {', '.join(unknown)}, and the use of a machine is read as "
                f"{', '.join(FEATURES)}: learn it with names of these, such as "
                f"--features gpu={unknown[0]}"
            )
        shown = None
        # The GPUs of this machine say nothing about a recorded one.
        if set(names) - set(_OF_KERNEL) and self.roots.is_here:
            shown = Tegrastats() if Tegrastats.find(self.roots).state == "works" else Nvml()
            shown.open()
        self._use = MachineUse(features=names, roots=self.roots, gpus=shown)
        first = self._use.look()
        known = {
            "cpu": first.cpu_s,
            "memory": first.memory_share,
            "disk": first.disk_bytes,
            "gpu": first.gpu_share,
            **first.shown,
        }
        if silent := [name for name in names if math.isnan(known.get(name, math.nan))]:
            raise MeterProblem(f"there is no {', '.join(silent)} use to estimate from")
        self._seen = deque([first])
        self._last = None
        return (_CHANNEL,)

    def sample(self) -> Reading:
        """Return the estimate of the time since the last look, or of what the model averages."""
        if self.model is None or self._use is None:
            raise MeterProblem("the estimate is opened before it is read")
        now = time.time()
        counts = self._use.look()
        if counts.cpu_s == self._seen[-1].cpu_s and self._last is not None:
            # The kernel counts in hundredths of a second: without a tick it is as it was.
            return checked(now, [_CHANNEL], self._last.power_w, problems=self._last.problems)
        self._seen.append(counts)
        while len(self._seen) > 2 and counts.time_s - self._seen[1].time_s >= self.model.average_s:
            self._seen.popleft()
        estimated = self.model.at(use_between(self._seen[0], counts))
        self._last = checked(now, [_CHANNEL], [estimated.power_w], problems=estimated.outside)
        return self._last

    def _model(self) -> UtilisationModel:
        return self.model or UtilisationModel.generic(
            count_cpus(self.roots.procfs, self.roots.sysfs) or os.cpu_count() or 1
        )

    def close(self) -> None:
        """Let go of what was looked at."""
        if self._use is not None:
            self._use.close()
        self._use = None


# How busy the whole machine is: what power models are learned from, and estimate by.
#
# Kernel counters only ever grow, so two looks at them tell the use in between, whatever happened
# meanwhile. What cannot be read is NaN.

# What a machine's use is called, and the column of a recording that keeps it.
FEATURES = {
    "cpu": "machine.cpu_share",
    "memory": "machine.memory_share",
    "disk": "machine.disk_bytes_per_s",
    "gpu": "machine.gpu_share",
    "gpu_memory_busy": "machine.gpu_memory_busy_share",
    "gpu_memory": "machine.gpu_memory_share",
    "gpu_clock": "machine.gpu_clock_mhz",
    "gpu_open": "machine.gpu_open",
    "emc": "machine.emc_share",
    "emc_clock": "machine.emc_clock_mhz",
    "cpu_clock": "machine.cpu_clock_mhz",
    "temperature": "machine.temperature_c",
}
# Those that the kernel tells; GPUs and boards tell the others.
_OF_KERNEL = ("cpu", "memory", "disk")


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
        shown: What GPUs and boards show of themselves beside that, by the names of `FEATURES`.
    """

    time_s: float
    cpu_s: float = math.nan
    busy_s: float = math.nan
    memory_share: float = math.nan
    disk_bytes: float = math.nan
    gpu_share: float = math.nan
    shown: Mapping[str, float] = field(default_factory=dict)


@dataclass(slots=True, kw_only=True)
class MachineUse:
    """The counters of one machine.

    Attributes:
        features: Which of `FEATURES` are read.
        roots: Where the kernel's files are.
        gpus: The GPUs, or the board that they are on, open; None where they are not read.
    """

    features: Collection[str] = tuple(FEATURES)
    roots: Roots = field(default_factory=Roots)
    gpus: Nvml | Tegrastats | None = None
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
        shown = {} if self.gpus is None else self.gpus.use()
        return Counts(
            time_s=time.monotonic(),
            cpu_s=sum(modes.values()) if modes else math.nan,
            busy_s=busy_of(modes),
            memory_share=1.0 - memory.get("MemAvailable", math.nan) / total,
            disk_bytes=sum(self._files.storage()) if "disk" in self.features else math.nan,
            gpu_share=shown.get("gpu", math.nan),
            shown=shown,
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
        **{name: after.shown.get(name, math.nan) for name in FEATURES},
        "cpu": min(max(busy, 0.0), 1.0) if not math.isnan(busy) else math.nan,
        "memory": after.memory_share,
        "disk": moved / passed_s if passed_s > 0 and moved >= 0 else math.nan,
        "gpu": after.gpu_share,
    }
