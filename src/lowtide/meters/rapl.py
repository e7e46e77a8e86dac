"""RAPL: energy counters of CPU packages and memory, through the kernel's powercap files.

A counter that is present but says nothing is absent: virtual machines and some boards show
counters that stay at 0 or wherever they stood, and what they stand for would be taken as nothing
drawn. Nothing that is powered draws nothing, so a counter that stands still is unknown.
"""

from __future__ import annotations

import math
import os
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
    read_number,
)

_CURE = (
    "let your user read the counters: sudo chmod -R a+r /sys/class/powercap/intel-rapl*/energy_uj "
    "(until the next boot), or run as root"
)
_HIDDEN = "the host hides its counters: measure there, or use another meter"
# Counters are renewed about every millisecond. After the first of these, none has moved because
# nothing will; after the second, one that stands still beside others that move is dead.
_FIRST_MOVE_S = 0.05
_ALL_MOVE_S = 0.3
# One that stood still for so long says nothing, and after the second it is told.
_STILL_S = 0.25
_DEAD_S = 2.0


@dataclass(slots=True)
class _Zone:
    """One counter: an open file, so that reading it is one call."""

    channel: Channel
    counter: Counter
    file: int
    first: float
    moved: bool = False
    last: tuple[float, float] | None = None
    count: float = math.nan
    still_since: float = field(default_factory=time.monotonic)

    def look(self) -> float:
        try:
            count = float(os.pread(self.file, 32, 0))
        except (OSError, ValueError):
            return math.nan
        self.moved = self.moved or count != self.first
        if count != self.count:
            self.count, self.still_since = count, time.monotonic()
        return count


@dataclass(slots=True, kw_only=True)
class Rapl(BaseMeter):
    """Energy counters of CPU packages (`intel-rapl:N`) and their memory (`intel-rapl:N:M`).

    Parts of a package other than memory (core, uncore) are left out: the package has them
    already. A platform counter (`psys`) covers the packages and more, and is a domain of its own.
    Counters that stay at 0, or stand still while others move, are left out as well. One that
    stands still tells nothing for as long as it does.

    Attributes:
        roots: Where the kernel's files are.
    """

    name: ClassVar[str] = "rapl"
    means: ClassVar[bool] = True
    roots: Roots = field(default_factory=Roots)
    _zones: list[_Zone] = field(default_factory=list, init=False)

    @classmethod
    def find(cls, roots: Roots) -> Found:
        """Say whether this machine has RAPL counters."""
        folders = _folders(roots)
        if not folders:
            return Found(meter=cls.name, state="absent", what="no powercap counters")
        names = ", ".join(channel.name for _, channel in folders)
        readable = [each for each in folders if os.access(each[0] / "energy_uj", os.R_OK)]
        if not readable:
            return Found(meter=cls.name, state="no permission", what=names, cure=_CURE)
        alive = [channel for path, channel in readable if read_number(path / "energy_uj") != 0]
        if not alive:
            return Found(meter=cls.name, state="constant 0", what=names, cure=_HIDDEN)
        counters = [path / "energy_uj" for path, channel in readable if channel in alive]
        # Those of a recorded tree stand still by nature.
        if roots.is_here and not _any_moves(counters):
            still = f"{names}: they stand still"
            return Found(meter=cls.name, state="constant 0", what=still, cure=_HIDDEN)
        what = ", ".join(channel.name for channel in alive)
        if dead := [channel.name for _, channel in readable if channel not in alive]:
            what += f" (always 0, so left out: {', '.join(dead)})"
        return Found(meter=cls.name, state="works", what=what)

    def open(self) -> tuple[Channel, ...]:
        """Open every counter that can be read and counts."""
        denied = False
        silent = []
        for path, channel in _folders(self.roots):
            count = read_number(path / "energy_uj")
            if count == 0:
                silent.append(channel.name)
                continue
            try:
                file = os.open(path / "energy_uj", os.O_RDONLY)
            except PermissionError:
                denied = True
                continue
            except OSError:
                continue
            wraps_at = read_number(path / "max_energy_range_uj")
            counter = Counter(
                unit_j=1e-6,
                wraps_at=wraps_at if wraps_at > 0 else None,
                most_w=MOST_W[channel.domain],
            )
            self._zones.append(_Zone(channel, counter, file, count))
        if not self._zones:
            if denied:
                raise MeterProblem(f"RAPL counters are there but may not be read: {_CURE}")
            if silent:
                raise MeterProblem(f"RAPL counters ({', '.join(silent)}) stay at 0: {_HIDDEN}")
            raise MeterProblem("this machine has no RAPL counters")
        self._leave_out_the_dead()
        self.sample()
        return tuple(zone.channel for zone in self._zones)

    def sample(self) -> Reading:
        """Read all counters; power is the mean since the last reading, NaN at the first."""
        powers, energies, problems, resets = [], [], [], []
        now = time.time()
        for zone in self._zones:
            count = zone.look()
            moment = time.monotonic()
            joules = zone.counter.add(count, moment)
            watts = math.nan
            if zone.counter.was_reset:
                resets.append(zone.channel)
            elif zone.last is not None and moment > zone.last[0]:
                watts = (joules - zone.last[1]) / (moment - zone.last[0])
            zone.last = (moment, joules)
            still_s = moment - zone.still_since
            if not zone.moved or still_s > _STILL_S:
                watts = joules = math.nan
                if zone.moved:
                    # Where it goes on, what it counts then is that of an unknown time.
                    zone.last = None
                if still_s > _DEAD_S:
                    since = "stands still" if zone.moved else "never moved"
                    problems.append(
                        f"the energy counter of {zone.channel.name} {since}: it counts as absent"
                    )
            powers.append(watts)
            energies.append(joules)
        channels = [zone.channel for zone in self._zones]
        return checked(now, channels, powers, energies, problems, resets)

    def close(self) -> None:
        """Close the counters."""
        for zone in self._zones:
            os.close(zone.file)
        self._zones.clear()

    def _leave_out_the_dead(self) -> None:
        """Look whether counters move; keep those that do, or all where none does yet."""
        begun = time.monotonic()
        while not all(zone.moved for zone in self._zones):
            for zone in self._zones:
                zone.look()
            waited_s = time.monotonic() - begun
            some = any(zone.moved for zone in self._zones)
            if waited_s > (_ALL_MOVE_S if some else _FIRST_MOVE_S):
                break
            time.sleep(0.005)
        if any(zone.moved for zone in self._zones):
            for zone in [zone for zone in self._zones if not zone.moved]:
                os.close(zone.file)
                self._zones.remove(zone)


def _any_moves(paths: list[Path]) -> bool:
    """Return whether any counter moves, looking no longer than it takes them to."""
    first = [read_number(path) for path in paths]
    until = time.monotonic() + _FIRST_MOVE_S
    while time.monotonic() < until:
        if any(read_number(path) != count for path, count in zip(paths, first, strict=True)):
            return True
        time.sleep(0.002)
    return False


def read_counters(roots: Roots) -> list[tuple[str, str, float]]:
    """Return what counters say just now: what they count for, where they are, and their joules."""
    found = [
        (channel.domain, str(path), 1e-6 * read_number(path / "energy_uj"))
        for path, channel in _folders(roots)
    ]
    return [each for each in found if each[2] > 0]


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
