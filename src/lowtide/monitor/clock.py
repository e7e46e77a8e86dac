"""When something was read: stamps follow the clock on the wall, intervals one that nobody sets."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

# A clock that differs by less than this from one reading to the next was not set.
STEPPED_S = 1.0


@dataclass(frozen=True, slots=True)
class Moment:
    """When something was read.

    Attributes:
        time: Epoch seconds.
        since_boot: Seconds by a clock that nobody sets.
        stepped_s: By how much the clock was set since the moment before; 0 if it was not.
        ahead_s: By how much `time` is ahead of the clock on the wall.
    """

    time: float
    since_boot: float
    stepped_s: float
    ahead_s: float


@dataclass(slots=True)
class Clock:
    """Gives stamps.

    When the clock on the wall goes back by less than a second, stamps go on at half their speed
    until it has caught up, so that none comes before another. When it is set by more, they follow
    it at once: a second that takes two would double all that is told per second, and to have the
    same minute twice is better.
    """

    _wall: float = field(init=False)
    _since_boot: float = field(init=False)
    _stamp: float = field(default=0.0, init=False)

    def __post_init__(self) -> None:
        self._wall, self._since_boot = time.time(), since_boot()

    def look(self) -> Moment:
        """Return what time it is."""
        wall, now = time.time(), since_boot()
        passed_s = now - self._since_boot
        off_s = wall - self._wall - passed_s
        stepped_s = off_s if abs(off_s) > STEPPED_S else 0.0
        slowest = self._stamp + passed_s / 2
        waits = not stepped_s and slowest - wall < STEPPED_S
        self._stamp = max(slowest, wall) if waits else wall
        self._wall, self._since_boot = wall, now
        return Moment(self._stamp, now, stepped_s, self._stamp - wall)


def since_boot() -> float:
    """Return seconds by a clock that nobody sets, and that goes on while the node sleeps."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)
