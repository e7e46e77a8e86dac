"""What a watch remembers from one start to the next: how little the node draws when idle."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from lowtide import files
from lowtide.attribution import IdleFloor
from lowtide.errors import LowtideError
from lowtide.monitor.tick import Tick

FILE_NAME = "idle.json"
# How often it is written down while watching goes on: a kill costs no more than this.
_EVERY_S = 300.0


def load_floor(path: Path) -> IdleFloor:
    """Return what was remembered; nothing where there is no such file, or none that can be read."""
    try:
        document = json.loads(files.read_text(path))
        known = {
            str(meters): (float(seen), float(floor_w), float(spread_w))
            for meters, (seen, floor_w, spread_w) in document["idle"].items()
        }
    except (LowtideError, ValueError, KeyError, TypeError, AttributeError):
        # It is learned again in time; a wrong one would be worse than none.
        return IdleFloor()
    sound = {
        meters: numbers
        for meters, numbers in known.items()
        if all(math.isfinite(each) and each >= 0 for each in numbers)
    }
    return IdleFloor(known=sound)


def save_floor(path: Path, floor: IdleFloor) -> None:
    """Write what has been learned."""
    # It may be learned on while it is written.
    if known := dict(floor.known):
        files.write_whole(path, json.dumps({"idle": known}, indent=1) + "\n")


@dataclass(slots=True, kw_only=True)
class FloorMemory:
    """Writes down what is learned, now and then.

    Attributes:
        path: The file.
        floor: What is learned.
        every_s: How often.
        clock: Says how much time has passed.
    """

    path: Path
    floor: IdleFloor
    every_s: float = _EVERY_S
    clock: Callable[[], float] = time.monotonic
    _saved: float = field(default=-math.inf, init=False)

    def take(self, _: Tick) -> None:
        """Write it down if that is due."""
        now = self.clock()
        if now - self._saved >= self.every_s:
            # Where it cannot be written, it is not tried with every tick.
            self._saved = now
            save_floor(self.path, self.floor)
