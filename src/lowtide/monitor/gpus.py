"""GPUs: which are built in, how busy each is, and which units hold it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from lowtide.files import read_or_empty
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


# GPUs on the PCI bus: what is built in, whoever can read it.
#
# That a node has no GPU may be said only where a GPU source or the bus says so. A card that the bus
# shows and no source reads is there all the same, and what it does is unknown.

_MAKERS = {"0x10de": "NVIDIA", "0x1002": "AMD", "0x8086": "Intel"}
# Display controllers (VGA, 3D, others) and accelerators. The makers' other devices, and the chips
# that show a server's console (ASPEED, Matrox), are none of these or of other makers.
_KINDS = ("0x0300", "0x0302", "0x0380", "0x1200")
# Graphics inside a processor of Intel's are on the first bus; those of AMD's have little memory of
# their own. Neither is what jobs ask for when they ask for a GPU.
_FIRST_BUS = "0000:00:"
_LEAST_BYTES = 2 * 2**30


@dataclass(frozen=True, slots=True, kw_only=True)
class Card:
    """A GPU on the bus.

    Attributes:
        maker: Who made it: NVIDIA, AMD, Intel.
        address: Where on the bus it is.
        has_driver: Whether a driver has taken it.
    """

    maker: str
    address: str
    has_driver: bool


def cards_on_bus(sysfs: Path) -> tuple[Card, ...] | None:
    """Return the GPUs that the bus shows; None where nobody can tell.

    Args:
        sysfs: Where /sys is; containers and recorded trees may have none.
    """
    bus = sysfs / "bus" / "pci" / "devices"
    try:
        devices = sorted(bus.iterdir())
    except OSError:
        return None
    # The GPU of a Tegra is on no bus.
    if b"tegra" in read_or_empty(str(sysfs / "firmware/devicetree/base/compatible")):
        return None
    return tuple(card for device in devices if (card := _card(device)) is not None)


def _card(device: Path) -> Card | None:
    maker = _MAKERS.get(_said(device, "vendor"))
    if maker is None or _said(device, "class")[:6] not in _KINDS:
        return None
    if (device / "physfn").exists() or (maker == "Intel" and device.name.startswith(_FIRST_BUS)):
        # A part of a card that is there as a whole, or graphics of the processor.
        return None
    memory = _said(device, "mem_info_vram_total")
    if maker == "AMD" and memory.isdigit() and int(memory) < _LEAST_BYTES:
        return None
    return Card(maker=maker, address=device.name, has_driver=(device / "driver").exists())


def _said(device: Path, name: str) -> str:
    return read_or_empty(str(device / name)).decode(errors="replace").strip().lower()


def count_unread(cards: tuple[Card, ...] | None, read: Iterable[str]) -> int | None:
    """Return how many GPUs of a node nobody reads; None where nobody knows whether there are more.

    Args:
        read: The names of those that are read: `gpu-0`, or `gpu-0/1` for an instance of it.
    """
    if cards is None:
        return None
    return max(len(cards) - len({name.partition("/")[0] for name in read}), 0)


def name_unread(cards: Iterable[Card]) -> dict[Card, str]:
    """Return in words which GPUs nobody reads: those of one maker together, by the first of them.

    Args:
        cards: The GPUs.
    """
    made: dict[str, list[Card]] = {}
    for card in cards:
        made.setdefault(card.maker, []).append(card)
    told = {}
    for maker, (first, *others) in made.items():
        many = "s are" if others else " is"
        more = f" and {len(others)} more" if others else ""
        them = "them" if others else "it"
        told[first] = (
            f"{1 + len(others)} {maker} GPU{many} on the PCI bus ({first.address}{more}) and "
            f"nobody reads {them}: what jobs use of {them} is unknown"
        )
    return told
