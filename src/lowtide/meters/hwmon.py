"""hwmon: power sensors that the kernel shows, in microwatts."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

from lowtide.errors import MeterProblem
from lowtide.meters.meter import BaseMeter, Channel, Found, Reading, Roots, checked, read_number

# Chips whose power is that of a known part. All others are shown, but not added up.
_DOMAINS = {"amdgpu": "gpu", "nouveau": "gpu", "power_meter": "node", "acpi_power_meter": "node"}
# Meters that read the same devices by another way.
_SAME = {"amdgpu": "amd", "nouveau": "nvml"}


@dataclass(slots=True, kw_only=True)
class Hwmon(BaseMeter):
    """Power sensors of the machine: `power*_average`, or `power*_input` where there is none.

    Attributes:
        roots: Where the kernel's files are.
        beside: Names of the meters that are read as well. A card that one of them reads is shown
            here, but not counted a second time.
    """

    name: ClassVar[str] = "hwmon"
    roots: Roots = field(default_factory=Roots)
    beside: frozenset[str] = frozenset()
    _sensors: list[tuple[Path, Channel]] = field(default_factory=list, init=False)

    @classmethod
    def find(cls, roots: Roots) -> Found:
        """Say whether this machine has power sensors."""
        sensors = _sensors(roots)
        if not sensors:
            return Found(meter=cls.name, state="absent", what="no power sensor")
        names = ", ".join(channel.name for _, channel in sensors)
        readings = [read_number(path) for path, _ in sensors]
        if all(math.isnan(each) for each in readings):
            return Found(
                meter=cls.name,
                state="no permission",
                what=names,
                cure="run as root, or let your user read /sys/class/hwmon/hwmon*/power*",
            )
        if not any(each > 0 for each in readings):
            return Found(meter=cls.name, state="constant 0", what=names, cure="use another meter")
        return Found(meter=cls.name, state="works", what=names)

    def open(self) -> tuple[Channel, ...]:
        """Find the sensors."""
        self._sensors = _sensors(self.roots, self.beside)
        if not self._sensors:
            raise MeterProblem("this machine has no power sensor under hwmon")
        return tuple(channel for _, channel in self._sensors)

    def sample(self) -> Reading:
        """Read all sensors."""
        now = time.time()
        watts = [1e-6 * read_number(path) for path, _ in self._sensors]
        return checked(now, [channel for _, channel in self._sensors], watts)


def _sensors(roots: Roots, beside: frozenset[str] = frozenset()) -> list[tuple[Path, Channel]]:
    found = []
    for chip in sorted((roots.sysfs / "class" / "hwmon").glob("hwmon*")):
        try:
            kind = (chip / "name").read_text().strip()
        except OSError:
            continue
        domain = "other" if _SAME.get(kind) in beside else _DOMAINS.get(kind, "other")
        numbers = sorted(
            {path.name.split("_")[0] for path in chip.glob("power*_*")}, key=lambda each: each
        )
        for number in numbers:
            paths = [chip / f"{number}_{how}" for how in ("average", "input")]
            path = next((each for each in paths if each.exists()), None)
            if path is None:
                continue
            label = chip / f"{number}_label"
            part = label.read_text().strip() if label.exists() else number
            channel = Channel(
                name=f"{chip.name}-{kind}-{part}".replace(" ", "_"),
                domain=domain,
            )
            found.append((path, channel))
    return found
