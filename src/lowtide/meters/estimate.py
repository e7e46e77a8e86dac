"""No meter: power estimated from how busy the machine is. Always labelled as an estimate."""

from __future__ import annotations

import math
import os
import time
from collections import deque
from dataclasses import dataclass, field
from typing import ClassVar

from lowtide.errors import MeterProblem
from lowtide.files import read_or_empty
from lowtide.meters.meter import Channel, Found, Reading, Roots, checked
from lowtide.meters.nvml import Nvml
from lowtide.meters.usage import (
    FEATURES,
    Counts,
    MachineUse,
    use_between,
)
from lowtide.meters.utilisation import UtilisationModel
from lowtide.monitor.node import count_cpus, modes_of

_CHANNEL = Channel(name="node", domain="node")


@dataclass(slots=True, kw_only=True)
class Estimate:
    """The node's power by a model of its use; there whenever /proc is.

    Attributes:
        model: The model; None for a generic one.
        roots: Where the kernel's files are.
    """

    name: ClassVar[str] = "estimate"
    measured: ClassVar[bool] = False
    means: ClassVar[bool] = True
    slow: ClassVar[bool] = False
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
            cure="a rough guess that nobody has checked here: learn a model with lowtide learn "
            "--utilisation",
        )

    @property
    def idle_w(self) -> float:
        """What the machine is estimated to draw when nothing runs."""
        model = self._model()
        return model.at({feature.name: 0.0 for feature in model.features}).power_w

    @property
    def sees_gpus(self) -> bool:
        """Whether the model goes by the use of GPUs, so that what they draw is in its estimate."""
        return any(feature.name == "gpu" for feature in self._model().features)

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
        gpus = None
        # The GPUs of this machine say nothing about a recorded one.
        if "gpu" in names and self.roots.is_here:
            gpus = Nvml()
            gpus.open()
        self._use = MachineUse(features=names, roots=self.roots, gpus=gpus)
        first = self._use.look()
        known = {
            "cpu": first.cpu_s,
            "memory": first.memory_share,
            "disk": first.disk_bytes,
            "gpu": first.gpu_share,
        }
        if silent := [name for name in names if math.isnan(known[name])]:
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
