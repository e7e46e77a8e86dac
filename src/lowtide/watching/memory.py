"""What a watch remembers from one start to the next: how little the node draws when idle."""

from __future__ import annotations

import json
import math
from pathlib import Path

from lowtide import files
from lowtide.attribution import IdleFloor
from lowtide.errors import LowtideError

FILE_NAME = "idle.json"


def load_floor(path: Path) -> IdleFloor:
    """Return what was remembered; nothing where there is no such file, or none that can be read.

    Args:
        path: The file.
    """
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
    """Write what has been learned.

    Args:
        path: The file.
        floor: What was learned.
    """
    if floor.known:
        files.write_whole(path, json.dumps({"idle": floor.known}, indent=1) + "\n")
