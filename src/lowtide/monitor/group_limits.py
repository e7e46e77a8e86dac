"""What a control group may use and what it waited for: read now and then, not at every tick."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from lowtide.files import read_or_empty
from lowtide.monitor.cgroups import (
    Layout,
    find_value,
    parse_cpus,
    parse_limit,
    parse_number,
    parse_pressure,
    parse_quota,
)
from lowtide.monitor.kernel_files import NONSENSE
from lowtide.monitor.snapshot import PRESSURES


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What a group is kept to, and what it waited for; NaN for what is not known.

    Attributes:
        cpus: Which CPUs; None where it may use all of them.
        reserved_cpus: How many CPUs, or how much of their time.
        reserved_bytes: How much memory.
        pressure_s: For how long it waited for each of `snapshot.PRESSURES`.
    """

    cpus: frozenset[int] | None = None
    reserved_cpus: float = math.nan
    reserved_bytes: float = math.nan
    pressure_s: tuple[float, ...] = (math.nan,) * len(PRESSURES)


def read_limits(layout: Layout, path: str, *, strict: bool, all_cpus: int) -> Limits:
    """Return the limits of a group.

    Args:
        strict: Whether a list of all CPUs is a reservation of the whole node, as Slurm makes it;
            to others it happens for want of a choice.
        all_cpus: How many CPUs the node has.
    """
    memory = layout.folders(path, "memory")
    said = _first(f"{each}/cpuset.cpus" for each in layout.folders(path, "cpuset"))
    try:
        cpus = parse_cpus(said.decode()) or None
    except NONSENSE:
        cpus = None
    if cpus is not None and not strict and len(cpus) >= all_cpus:
        cpus = None
    pressures = [
        _first(f"{folder}/{each}.pressure" for folder in layout.unified(path)) for each in PRESSURES
    ]
    return Limits(
        cpus=cpus,
        reserved_cpus=float(len(cpus)) if cpus else _quota(layout, path),
        reserved_bytes=_known(
            parse_limit,
            _first(
                f"{folder}/{file}"
                for folder in memory
                for file in ("memory.max", "memory.limit_in_bytes")
            ),
        ),
        pressure_s=tuple(_known(parse_pressure, each) for each in pressures),
    )


def read_cache(layout: Layout, path: str) -> float:
    """Return the bytes of file cache that a group could do without."""
    said = _first(f"{each}/memory.stat" for each in layout.folders(path, "memory"))
    # Version 1 says first what the group alone holds, then what all below it hold together.
    for key in (b"total_inactive_file", b"inactive_file"):
        try:
            return find_value(said, key)
        except NONSENSE:
            continue
    return 0.0


def read_count(layout: Layout, path: str) -> float:
    """Return how many processes and threads a group has, NaN where the kernel does not count."""
    said = _first(f"{each}/pids.current" for each in layout.folders(path, "pids"))
    return _known(parse_number, said)


def _quota(layout: Layout, path: str) -> float:
    for folder in layout.folders(path, "cpu"):
        said = read_or_empty(f"{folder}/cpu.max") or b" ".join(
            read_or_empty(f"{folder}/cpu.cfs_{each}_us").strip() for each in ("quota", "period")
        )
        if said.strip():
            return _known(parse_quota, said)
    return math.nan


def _first(paths: Iterable[str]) -> bytes:
    """Return the first file of some that says anything."""
    return next((said for path in paths if (said := read_or_empty(path)).strip()), b"")


def _known(parse: Callable[[bytes], float], said: bytes) -> float:
    try:
        return parse(said)
    except NONSENSE:
        return math.nan
