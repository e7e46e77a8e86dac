"""GPUs: how busy each is, and which units hold it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from lowtide.monitor.snapshot import GpuCounts

# The kernel's numbers for the devices of NVIDIA's GPUs and of all others.
NVIDIA_MAJOR = 195
DRM_MAJOR = 226


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuProcess:
    """A process on a GPU, NaN for what is not known.

    Attributes:
        pid: The process.
        memory_bytes: Memory that it holds there.
        busy: Which share of the GPU it kept busy lately, from 0 to 1.
    """

    pid: int
    memory_bytes: float = math.nan
    busy: float = math.nan


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuReading:
    """One GPU, or one instance of a divided one, NaN for what is not known.

    Attributes:
        name: The channel of its meter, by its number on the node: `gpu-0`; an instance of it is
            `gpu-0/1`.
        uuid: Its identity.
        major: The kernel's number for its kind of device.
        minor: The number of its device file, such as /dev/nvidiaN; -1 where there is none.
        busy: How busy it is, from 0 to 1.
        memory_bytes: Memory in use on it.
        total_bytes: All its memory.
        share: Which share of a whole GPU it is, by memory: 1 unless it is an instance.
        processes: What runs on it; None where nobody can tell.
        rejected: What was read of it and made no sense, in words; it is left out.
    """

    name: str
    uuid: str = ""
    major: int = NVIDIA_MAJOR
    minor: int = -1
    busy: float = math.nan
    memory_bytes: float = math.nan
    total_bytes: float = math.nan
    share: float = 1.0
    processes: tuple[GpuProcess, ...] | None = ()
    rejected: tuple[str, ...] = ()


class GpuSource(Protocol):
    """Where GPUs are read from."""

    def read(self) -> Sequence[GpuReading]:
        """Return all GPUs; instances instead of a GPU that is divided."""
        ...

    def close(self) -> None:
        """Let go of whatever was opened."""
        ...


def hold(
    readings: Iterable[GpuReading],
    unit_of: Callable[[int], int | None],
    given: Mapping[str, Iterable[int]],
) -> tuple[GpuCounts, ...]:
    """Return the GPUs with the units that hold them.

    A GPU is held by those it was given to and by whoever runs on it. Its use is shared by those who
    run on it; where it is idle, or nobody does, by those it was given to, in equal parts.

    Args:
        readings: The GPUs.
        unit_of: The unit of a process, None where it is none of them.
        given: For names of GPUs, the units that they were given to.
    """
    counts = []
    for gpu in readings:
        runs: dict[int | None, list[GpuProcess]] = {}
        for process in gpu.processes or ():
            runs.setdefault(unit_of(process.pid), []).append(process)
        places = sorted(set(given.get(gpu.name, ())))
        if runs and not (places and gpu.busy <= 0):
            # What strangers use is nobody's.
            used = {unit: share for unit, share in _by_use(runs).items() if unit is not None}
            holders = dict.fromkeys(places, 0.0) | used
        else:
            # A display, or whatever watches GPUs, has something on each of them, and uses none.
            holders = {each: 1 / len(places) for each in places}
        counts.append(
            GpuCounts(
                name=gpu.name,
                uuid=gpu.uuid,
                busy=gpu.busy,
                memory_bytes=gpu.memory_bytes,
                total_bytes=gpu.total_bytes,
                share=gpu.share,
                holders=holders,
                users_known=bool(holders or runs) or not _is_used(gpu),
            )
        )
    return tuple(counts)


def _is_used(gpu: GpuReading) -> bool:
    """Say whether somebody uses a GPU, as far as it can be told."""
    return gpu.processes is None if math.isnan(gpu.busy) else gpu.busy > 0


def _by_use(runs: Mapping[int | None, Sequence[GpuProcess]]) -> dict[int | None, float]:
    """Return each unit's share by how busy it kept the GPU, else by memory, else in equal parts."""
    for what in ("busy", "memory_bytes"):
        weights = {
            unit: math.fsum(weight for each in processes if (weight := getattr(each, what)) > 0)
            for unit, processes in runs.items()
        }
        whole = math.fsum(weights.values())
        if whole > 0:
            return {unit: weight / whole for unit, weight in weights.items()}
    return {unit: 1 / len(runs) for unit in runs}


def match_gpus(said: Iterable[str], gpus: Iterable[GpuReading]) -> list[str]:
    """Return the names of the GPUs that somebody speaks of by number or identity.

    Args:
        said: Numbers or identities; the beginning of an identity is enough.
        gpus: The GPUs that there are.
    """
    wanted = list(said)
    found = []
    for gpu in gpus:
        # Who was given a divided GPU by its number was given all its instances.
        number = gpu.name.partition("/")[0].removeprefix("gpu-")
        if any(each == number or (len(each) > 4 and gpu.uuid.startswith(each)) for each in wanted):
            found.append(gpu.name)
    return found


def match_devices(said: str, gpus: Iterable[GpuReading]) -> list[str]:
    """Return the names of the GPUs whose devices a group may use.

    Args:
        said: The group's file devices.list of version 1.
        gpus: The GPUs that there are.
    """
    devices = set()
    for line in said.splitlines():
        fields = line.split()
        if len(fields) == 3 and fields[0] == "c":
            major, _, minor = fields[1].partition(":")
            # A star allows all GPUs to all groups, and says nothing about who holds them.
            if major.isdigit() and minor.isdigit():
                devices.add((int(major), int(minor)))
    return [gpu.name for gpu in gpus if (gpu.major, gpu.minor) in devices]


def check(
    name: str, *, busy: float, memory_bytes: float, total_bytes: float
) -> tuple[float, float, tuple[str, ...]]:
    """Return how busy a GPU is and how full, NaN for what cannot be, and what that was in words.

    Args:
        name: The GPU.

    >>> check("gpu-0", busy=5.0, memory_bytes=10.0, total_bytes=80.0)
    (nan, 10.0, ('gpu-0 says that it is busy for less than none or more than all of the time',))
    """
    rejected = []
    if not (math.isnan(busy) or 0 <= busy <= 1):
        busy = math.nan
        rejected.append(
            f"{name} says that it is busy for less than none or more than all of the time"
        )
    if not math.isnan(memory_bytes) and (memory_bytes < 0 or memory_bytes > total_bytes):
        memory_bytes = math.nan
        rejected.append(f"{name} says that it uses less memory than none or more than it has")
    return busy, memory_bytes, tuple(rejected)
