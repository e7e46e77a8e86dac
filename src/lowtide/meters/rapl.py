"""RAPL: energy counters of CPU packages and memory, through the kernel's powercap files."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

from lowtide.errors import MeterProblem
from lowtide.meters.meter import Channel, Counter, Found, Reading, Roots, checked, read_number

_CURE = (
    "let your user read the counters: sudo chmod -R a+r /sys/class/powercap/intel-rapl*/energy_uj "
    "(until the next boot), or run as root"
)


@dataclass(slots=True)
class _Zone:
    """One counter: an open file, so that reading it is one call."""

    channel: Channel
    counter: Counter
    file: int = -1
    last: tuple[float, float] | None = None


@dataclass(slots=True, kw_only=True)
class Rapl:
    """Energy counters of CPU packages (`intel-rapl:N`) and their memory (`intel-rapl:N:M`).

    Parts of a package other than memory (core, uncore) are left out: the package has them
    already. A platform counter (`psys`) covers the packages and more, and is a domain of its own.

    Attributes:
        roots: Where the kernel's files are.
    """

    name: ClassVar[str] = "rapl"
    measured: ClassVar[bool] = True
    means: ClassVar[bool] = True
    slow: ClassVar[bool] = False
    roots: Roots = field(default_factory=Roots)
    _zones: list[_Zone] = field(default_factory=list, init=False)

    @classmethod
    def find(cls, roots: Roots) -> Found:
        """Say whether this machine has RAPL counters.

        Args:
            roots: Where the kernel's files are.
        """
        folders = _folders(roots)
        if not folders:
            return Found(meter=cls.name, state="absent", what="no powercap counters")
        names = ", ".join(channel.name for _, channel in folders)
        readable = [path for path, _ in folders if os.access(path / "energy_uj", os.R_OK)]
        if not readable:
            return Found(meter=cls.name, state="no permission", what=names, cure=_CURE)
        if all(read_number(path / "energy_uj") == 0 for path in readable):
            return Found(
                meter=cls.name,
                state="constant 0",
                what=names,
                cure="the host hides its counters: measure there, or use another meter",
            )
        return Found(meter=cls.name, state="works", what=names)

    def open(self) -> tuple[Channel, ...]:
        """Open every counter that can be read."""
        denied = False
        for path, channel in _folders(self.roots):
            try:
                file = os.open(path / "energy_uj", os.O_RDONLY)
            except PermissionError:
                denied = True
                continue
            except OSError:
                continue
            wraps_at = read_number(path / "max_energy_range_uj")
            counter = Counter(unit_j=1e-6, wraps_at=wraps_at if wraps_at > 0 else None)
            self._zones.append(_Zone(channel, counter, file))
        if not self._zones:
            raise MeterProblem(
                f"RAPL counters are there but may not be read: {_CURE}"
                if denied
                else "this machine has no RAPL counters"
            )
        self.sample()
        return tuple(zone.channel for zone in self._zones)

    def sample(self) -> Reading:
        """Read all counters; power is the mean since the last reading, NaN at the first."""
        powers, energies = [], []
        now = time.time()
        for zone in self._zones:
            try:
                count = float(os.pread(zone.file, 32, 0))
            except (OSError, ValueError):
                count = float("nan")
            moment = time.monotonic()
            joules = zone.counter.add(count)
            watts = float("nan")
            if zone.last is not None and moment > zone.last[0]:
                watts = (joules - zone.last[1]) / (moment - zone.last[0])
            zone.last = (moment, joules)
            powers.append(watts)
            energies.append(joules)
        return checked(now, [zone.channel for zone in self._zones], powers, energies)

    def close(self) -> None:
        """Close the counters."""
        for zone in self._zones:
            os.close(zone.file)
        self._zones.clear()


def _folders(roots: Roots) -> list[tuple[Path, Channel]]:
    """Return the counters that count, each with its channel."""
    base = roots.sysfs / "class" / "powercap"
    found = []
    for path in sorted(base.glob("intel-rapl:*")):
        try:
            label = (path / "name").read_text().strip()
        except OSError:
            continue
        numbers = path.name.split(":")[1:]
        if len(numbers) == 1 and label.startswith("package"):
            found.append((path, Channel(name=label, domain="package")))
        elif label == "dram":
            found.append((path, Channel(name=f"dram-{numbers[0]}", domain="dram")))
        elif label == "psys":
            found.append((path, Channel(name="psys", domain="psys")))
    return found
