"""What Slurm counts as trackable resources: `cpu=4,mem=8G,node=1,gres/gpu:a100=2`."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping

from lowtide.errors import InvalidUnit
from lowtide.units import parse_size

# A request for GPUs: gpu, gpu:2, gres:gpu:a100:2, gres/gpu:a100=2, with where they are behind it.
_REQUEST = re.compile(r"(?:gres[:/])?gpu(?P<rest>[:=][^(]*)?(?:\(.*\))?")


def parse_tres(text: str | None) -> dict[str, float]:
    """Return how much of each resource there is, memory in bytes.

    Args:
        text: Slurm's list; what is not known gives no entries.

    >>> parse_tres("cpu=4,mem=8G,gres/gpu=2")
    {'cpu': 4.0, 'mem': 8589934592.0, 'gres/gpu': 2.0}
    """
    found = {}
    for part in (text or "").split(","):
        name, equals, amount = part.strip().rpartition("=")
        if not equals:
            continue
        try:
            found[name] = parse_size(amount) if name == "mem" else _count(amount)
        except (InvalidUnit, ValueError):
            continue
    return found


def count_gpus(tres: Mapping[str, float]) -> float:
    """Return how many GPUs there are; kinds of GPU repeat the total where one is given.

    Args:
        tres: As `parse_tres` returns it.

    >>> count_gpus(parse_tres("cpu=8,gres/gpu=2,gres/gpu:a100=2"))
    2.0
    """
    if "gres/gpu" in tres:
        return tres["gres/gpu"]
    return math.fsum(count for name, count in tres.items() if name.startswith("gres/gpu:"))


def requested_gpus(text: str | None) -> float:
    """Return the GPUs of a request such as `gres:gpu:a100:2`, where no kind needs a number.

    Args:
        text: What was asked for per job, node or task.

    >>> requested_gpus("gres:gpu:a100:2"), requested_gpus("gpu"), requested_gpus("gres:tmpdisk:5")
    (2.0, 1.0, 0.0)
    """
    total = 0.0
    for part in re.split(r",(?![^(]*\))", text or ""):
        match = _REQUEST.fullmatch(part.strip())
        if match is not None:
            last = re.split("[:=]", match["rest"] or "")[-1]
            total += float(last) if last.isdigit() else 1.0
    return total


def _count(text: str) -> float:
    # Slurm shortens big counts with a K or M: energy=3K.
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([KMGT]?)", text)
    if match is None:
        raise ValueError(text)
    return float(match[1]) * 1000.0 ** ("KMGT".find(match[2]) + 1 if match[2] else 0)
