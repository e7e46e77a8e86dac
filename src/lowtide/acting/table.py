"""A table of clean moments that Slurm's own `job_submit.lua` reads when a job is handed in.

Nothing is planned inside the controller, and nobody is asked over a network there: the driver
writes beforehand what has to be known. For several lengths of a job it holds the moments at which
beginning is cleaner than at any moment before. Whoever knows by when a job has to begin takes the
last of them that is not later. What is promised does not come from the table: the latest begin is
computed from the job's own limit and deadline.

    lowtide 1 1731700000 1731707200 271
    wait main 5400
    wait * 14400
    begin 3600 1731701000 1731711000
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import MappingProxyType

import numpy as np

from lowtide.acting.promise import Loops
from lowtide.acting.waits import UNKNOWN_WAIT_S, WaitModel
from lowtide.files import write_whole
from lowtide.signal import Signal

# A table that is older than this is not used any more: whoever wrote it is dead.
_VALID_S = 2 * 3600.0
# How far ahead moments are told, and in what steps.
_AHEAD_S, _STEP_S = 4 * 86_400.0, 900.0
LENGTHS_S = tuple(3600.0 * each for each in (0.25, 0.5, 1, 2, 4, 8, 12, 24, 48, 96))


def clean_moments(signal: Signal, now: float, length_s: float) -> list[int]:
    """Return the moments at which beginning is cleaner than at any before, the first being now.

    Args:
        length_s: How long a job runs from there on.
    """
    end = min(now + _AHEAD_S, signal.end - length_s)
    if now < signal.start or end < now:
        return []
    starts = np.arange(now, end + 1.0, _STEP_S)
    amounts = signal.integral(starts, starts + length_s)
    before = np.minimum.accumulate(np.concatenate(([np.inf], amounts[:-1])))
    # What is cleaner by a thousandth is not worth waiting for.
    return [math.ceil(start) for start in starts[amounts < before * 0.999]]


def table_of(
    signal: Signal | None,
    waits: WaitModel,
    loops: Loops,
    now: float,
    backlog_s: Mapping[str, float] = MappingProxyType({}),
) -> str:
    """Return the table as a text; one without moments where nothing is expected of the grid.

    Args:
        backlog_s: Of partitions with jobs in line, how long these take.
    """
    lines = [f"lowtide 1 {math.floor(now)} {math.floor(now + _VALID_S)} {math.ceil(loops.total_s)}"]
    for partition, wait_s in sorted(_waits(waits, now)):
        lines.append(f"wait {partition} {math.ceil(max(wait_s, backlog_s.get(partition, 0.0)))}")
    lines.append(f"wait * {math.ceil(UNKNOWN_WAIT_S)}")
    for length_s in LENGTHS_S if signal is not None else ():
        moments = clean_moments(signal, now, length_s) if signal is not None else []
        if moments:
            lines.append(f"begin {length_s:.0f} {' '.join(map(str, moments))}")
    return "\n".join(lines) + "\n"


def write_table(
    path: Path,
    signal: Signal | None,
    waits: WaitModel,
    loops: Loops,
    now: float,
    backlog_s: Mapping[str, float] = MappingProxyType({}),
) -> None:
    """Write the table, whole or not at all: the controller may read it at any moment."""
    write_whole(path, table_of(signal, waits, loops, now, backlog_s), lasting=False)


def _waits(waits: WaitModel, now: float) -> Iterable[tuple[str, float]]:
    """Return the longest W of each partition; the controller does not tell sizes apart.

    Of a partition with a class that was foretold too badly nobody is deferred.
    """
    found: dict[str, float] = {}
    for kind in waits.kinds:
        partition = kind.partition("/")[0]
        if not partition or any(map(str.isspace, partition)):
            continue
        trusted = waits.is_trusted(kind, now)
        wait_s = waits.wait_s(kind, now) if trusted else 10**9
        found[partition] = max(found.get(partition, 0.0), wait_s)
    return found.items()
