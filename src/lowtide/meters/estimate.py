"""No meter: power estimated from how busy the machine is. Always labelled as an estimate."""

from __future__ import annotations

import json
import math
import os
import time
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import ClassVar

from lowtide.errors import FormatError, MeterProblem
from lowtide.files import read_text
from lowtide.meters.meter import Channel, Found, Reading, Roots, checked

_CHANNEL = Channel(name="node", domain="node")

# Watts per hardware thread of a machine of unknown make, idle and at full load: the medians of the
# seven server micro-architectures (Haswell to Cascade Lake, EPYC 1 to 3) of the Cloud Carbon
# Footprint coefficients, which come from SPECpower results. Their maxima go from 1.6 to 6.0 W, so
# this is good to a factor of two at best, and everything made from it says "estimated".
_IDLE_W = 0.64
_BUSY_W = 3.54


@dataclass(frozen=True, slots=True, kw_only=True)
class UtilisationModel:
    """Node power as a piecewise-linear function of the share of CPU time in use.

    Attributes:
        share: Points from 0 to 1, rising.
        power_w: Watts at each.
        source: Where they come from.
    """

    share: tuple[float, ...]
    power_w: tuple[float, ...]
    source: str

    @classmethod
    def generic(cls, cpus: int) -> UtilisationModel:
        """Return a model of a machine of which only the number of CPUs is known.

        Args:
            cpus: How many hardware threads it has.
        """
        return cls(
            share=(0.0, 1.0),
            power_w=(_IDLE_W * cpus, _BUSY_W * cpus),
            source=f"generic, {cpus} CPUs",
        )

    @classmethod
    def load(cls, path: Path | str) -> UtilisationModel:
        """Read a model that `lowtide learn --utilisation` saved, or a table entered by hand.

        Args:
            path: JSON with `share` (0 to 1) and `power_w`.
        """
        try:
            document = json.loads(read_text(path))
            share = tuple(float(each) for each in document["share"])
            power_w = tuple(float(each) for each in document["power_w"])
        except (ValueError, KeyError, TypeError) as error:
            raise FormatError(
                f"a utilisation model has lists 'share' and 'power_w': {error}", path=Path(path)
            ) from None
        rising = all(a < b for a, b in pairwise(share))
        if len(share) != len(power_w) or len(share) < 2 or not rising:
            raise FormatError(
                "'share' rises from 0 to 1, with one 'power_w' for each", path=Path(path)
            )
        return cls(
            share=share, power_w=power_w, source=str(document.get("source", Path(path).name))
        )

    def at(self, share: float) -> float:
        """Return the watts at a share of CPU time in use.

        Args:
            share: From 0 to 1.
        """
        points = list(zip(self.share, self.power_w, strict=True))
        for (low, low_w), (high, high_w) in pairwise(points):
            if share <= high:
                return low_w + (high_w - low_w) * (share - low) / (high - low)
        return points[-1][1]


@dataclass(slots=True, kw_only=True)
class Estimate:
    """The node's power by a model of its CPU use; there whenever /proc is.

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
    _last: tuple[float, float] | None = field(default=None, init=False)
    _watts: float = field(default=math.nan, init=False)

    @classmethod
    def find(cls, roots: Roots) -> Found:
        """Say that there is always an estimate, and of which kind.

        Args:
            roots: Where the kernel's files are.
        """
        if read_cpu_times(roots) is None:
            return Found(meter=cls.name, state="absent", what="no /proc/stat")
        return Found(
            meter=cls.name,
            state="works",
            what="estimated from CPU use: no measurement",
            cure="good to a factor of two: learn a model with lowtide learn --utilisation",
        )

    def open(self) -> tuple[Channel, ...]:
        """Take the first look at the CPU times."""
        self._last = read_cpu_times(self.roots)
        if self._last is None:
            raise MeterProblem("there is no /proc/stat to estimate from")
        if self.model is None:
            self.model = UtilisationModel.generic(os.cpu_count() or 1)
        return (_CHANNEL,)

    def sample(self) -> Reading:
        """Return the estimate of the time since the last look."""
        now = time.time()
        times = read_cpu_times(self.roots)
        if times is None:
            self._watts = math.nan
        elif self._last is not None and self.model is not None and times[0] > self._last[0]:
            # The kernel counts in hundredths of a second: without a tick it is as it was.
            busy = (times[1] - self._last[1]) / (times[0] - self._last[0])
            self._watts = self.model.at(min(max(busy, 0.0), 1.0))
            self._last = times
        return checked(now, [_CHANNEL], [self._watts])

    def close(self) -> None:
        """Nothing is kept open."""


def read_cpu_times(roots: Roots) -> tuple[float, float] | None:
    """Return all CPU time and the busy part of it, in ticks, over all cores.

    Args:
        roots: Where the kernel's files are.
    """
    try:
        line = (roots.procfs / "stat").read_text().partition("\n")[0]
        # user nice system idle iowait irq softirq steal; guest time is in user time already.
        ticks = [float(each) for each in line.split()[1:9]]
    except (OSError, ValueError):
        return None
    if len(ticks) < 5:
        return None
    idle = ticks[3] + ticks[4]
    return sum(ticks), sum(ticks) - idle
