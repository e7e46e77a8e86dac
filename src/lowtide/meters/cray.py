"""Cray pm_counters: a node's power and energy, as its blade controller reports them."""

from __future__ import annotations

import math
import re
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

from lowtide.errors import MeterProblem
from lowtide.meters.meter import (
    MOST_W,
    BaseMeter,
    Channel,
    Counter,
    Found,
    Reading,
    Roots,
    checked,
)

_DOMAINS = {"": "node", "cpu": "package", "memory": "dram"}
_VALUE = re.compile(r"\s*(-?\d+(?:\.\d+)?)\s*[WJ]\b(?:\s+(\d+)\s*us\b)?")
# Counters are renewed ten times a second. What was not for so long comes from a controller that
# has stopped.
_STALE_S = 5.0


@dataclass(slots=True)
class _Gauge:
    """A file such as `873 W 1700000000000000 us`, and when it was last renewed."""

    path: Path
    stamp_us: float = math.nan
    renewed_s: float | None = None

    def read(self) -> tuple[float, bool]:
        """Return the number, NaN where there is none, and whether it is stale.

        The controller's clock may be wrong: what counts is that its stamps go on. Before one was
        seen to do so, a stamp that lies back by our clock is taken at its word.
        """
        value, stamp_us = read_counter(self.path)
        moment = time.monotonic()
        if math.isnan(stamp_us):
            return value, False
        if not math.isnan(self.stamp_us) and stamp_us != self.stamp_us:
            self.renewed_s = moment
        self.stamp_us = stamp_us
        if self.renewed_s is None:
            return value, time.time() - 1e-6 * stamp_us > _STALE_S
        return value, moment - self.renewed_s > _STALE_S


@dataclass(slots=True)
class _Part:
    channel: Channel
    power: _Gauge
    energy: _Gauge
    counter: Counter


@dataclass(slots=True, kw_only=True)
class Cray(BaseMeter):
    """Counters under `/sys/cray/pm_counters`: `873 W 1700000000000000 us` and `8730 J ...`.

    A power of 0 W means that there is no such sensor, or none that answers. What the controller
    has not renewed for some seconds is stale, and unknown.

    Attributes:
        roots: Where the kernel's files are.
    """

    name: ClassVar[str] = "cray"
    roots: Roots = field(default_factory=Roots)
    _parts: list[_Part] = field(default_factory=list, init=False)

    @classmethod
    def find(cls, roots: Roots) -> Found:
        """Say whether this is a Cray node."""
        paths = _paths(roots)
        if not paths:
            return Found(meter=cls.name, state="absent", what="no pm_counters")
        names = ", ".join(name for name, _ in paths)
        readings = [read_counter(path)[0] for _, path in paths]
        if all(math.isnan(watts) for watts in readings):
            return Found(
                meter=cls.name,
                state="no permission",
                what=names,
                cure="let your user read /sys/cray/pm_counters",
            )
        parts = _parts(roots)
        if not parts:
            return Found(
                meter=cls.name,
                state="constant 0",
                what=names,
                cure="the blade controller reports no power: ask who runs the machine",
            )
        return Found(
            meter=cls.name, state="works", what=", ".join(each.channel.name for each in parts)
        )

    def open(self) -> tuple[Channel, ...]:
        """Find the counters that count."""
        self._parts = _parts(self.roots)
        if not self._parts:
            raise MeterProblem(
                "/sys/cray/pm_counters shows no power above 0 W"
                if _paths(self.roots)
                else "this is no Cray node: /sys/cray/pm_counters is not there"
            )
        return tuple(each.channel for each in self._parts)

    def sample(self) -> Reading:
        """Read all counters."""
        now, moment = time.time(), time.monotonic()
        powers, energies, problems, resets = [], [], [], []
        for part in self._parts:
            watts, stale = part.power.read()
            if stale:
                problems.append(
                    f"{part.channel.name} is stale: the blade controller has not renewed it for "
                    f"over {_STALE_S:g} s"
                )
            powers.append(math.nan if stale or watts == 0 else watts)
            joules, stale = part.energy.read()
            energies.append(part.counter.add(math.nan if stale else joules, moment))
            if part.counter.was_reset:
                resets.append(part.channel)
        channels = [each.channel for each in self._parts]
        return checked(now, channels, powers, energies, problems, resets)


def read_counter(path: Path) -> tuple[float, float]:
    """Return the number and the stamp in microseconds of a file such as `873 W 17000000 us`.

    Args:
        path: The file; NaN for what it does not have.
    """
    try:
        match = _VALUE.match(path.read_text())
    except OSError:
        match = None
    if match is None:
        return math.nan, math.nan
    return float(match[1]), float(match[2] or "nan")


def _paths(roots: Roots) -> list[tuple[str, Path]]:
    found = sorted((roots.sysfs / "cray" / "pm_counters").glob("*power"))
    return [(path.name.removesuffix("power").rstrip("_") or "node", path) for path in found]


def _parts(roots: Roots) -> list[_Part]:
    found = []
    for name, path in _paths(roots):
        if not read_counter(path)[0] > 0:
            continue
        kind = "" if name == "node" else name
        domain = _DOMAINS.get(kind, "gpu" if kind.startswith("accel") else "other")
        found.append(
            _Part(
                channel=Channel(name=name, domain=domain),
                power=_Gauge(path),
                energy=_Gauge(path.with_name(path.name.replace("power", "energy"))),
                counter=Counter(unit_j=1.0, most_w=MOST_W.get(domain, math.inf)),
            )
        )
    return found
