"""Cray pm_counters: a node's power and energy, as its blade controller reports them."""

from __future__ import annotations

import math
import re
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

from lowtide.errors import MeterProblem
from lowtide.meters.meter import Channel, Counter, Found, Reading, Roots, checked

_DOMAINS = {"": "node", "cpu": "package", "memory": "dram"}


@dataclass(slots=True)
class _Part:
    channel: Channel
    power: Path
    energy: Path
    counter: Counter


@dataclass(slots=True, kw_only=True)
class Cray:
    """Counters under `/sys/cray/pm_counters`: `873 W 1700000000 us` and `8730 J ...`.

    A power of 0 W means that there is no such sensor.

    Attributes:
        roots: Where the kernel's files are.
    """

    name: ClassVar[str] = "cray"
    measured: ClassVar[bool] = True
    means: ClassVar[bool] = False
    slow: ClassVar[bool] = False
    roots: Roots = field(default_factory=Roots)
    _parts: list[_Part] = field(default_factory=list, init=False)

    @classmethod
    def find(cls, roots: Roots) -> Found:
        """Say whether this is a Cray node.

        Args:
            roots: Where the kernel's files are.
        """
        parts = _parts(roots)
        if not parts:
            return Found(meter=cls.name, state="absent", what="no pm_counters")
        return Found(
            meter=cls.name, state="works", what=", ".join(each.channel.name for each in parts)
        )

    def open(self) -> tuple[Channel, ...]:
        """Find the counters that count."""
        self._parts = _parts(self.roots)
        if not self._parts:
            raise MeterProblem("this is no Cray node: /sys/cray/pm_counters is not there")
        return tuple(each.channel for each in self._parts)

    def sample(self) -> Reading:
        """Read all counters."""
        now = time.time()
        powers = [read_counter(each.power) for each in self._parts]
        energies = [each.counter.add(read_counter(each.energy)) for each in self._parts]
        return checked(now, [each.channel for each in self._parts], powers, energies)

    def close(self) -> None:
        """Nothing is kept open."""


def read_counter(path: Path) -> float:
    """Return the number of a file such as `873 W 1700000000 us`; NaN where there is none.

    Args:
        path: The file.
    """
    try:
        match = re.match(r"\s*(-?\d+(?:\.\d+)?)\s*[WJ]\b", path.read_text())
    except OSError:
        return math.nan
    return float(match[1]) if match else math.nan


def _parts(roots: Roots) -> list[_Part]:
    base = roots.sysfs / "cray" / "pm_counters"
    found = []
    for path in sorted(base.glob("*power")):
        part = path.name.removesuffix("power").rstrip("_")
        if not read_counter(path) > 0:
            continue
        domain = _DOMAINS.get(part, "gpu" if part.startswith("accel") else "other")
        found.append(
            _Part(
                channel=Channel(name=part or "node", domain=domain),
                power=path,
                energy=base / path.name.replace("power", "energy"),
                counter=Counter(unit_j=1.0),
            )
        )
    return found
