"""Putting a watch together: the reader, the meters and the rules, open and ready."""

from __future__ import annotations

import platform
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from lowtide.errors import MeterProblem, MissingExtra
from lowtide.meters import Roots
from lowtide.meters.estimate import Estimate
from lowtide.meters.search import MeterSearch
from lowtide.meters.source import choose_meters
from lowtide.monitor.gpus import GpuSource
from lowtide.monitor.nvml_gpus import NvmlGpus
from lowtide.monitor.pci_gpus import Card, name_unread
from lowtide.monitor.reader import NodeReader
from lowtide.watching.amd_gpus import AmdGpus
from lowtide.watching.emissions import Emissions
from lowtide.watching.power import PowerReader
from lowtide.watching.watcher import Watcher

# So long the first word of a tool that tells of GPUs is waited for.
_FIRST_S = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Watch:
    """A node that is being watched.

    Attributes:
        watcher: Takes the ticks.
        reader: Reads the node.
        power: Reads the meters.
    """

    watcher: Watcher
    reader: NodeReader
    power: PowerReader


@contextmanager
def open_watch(
    *,
    meters: Sequence[str] = (),
    roots: Roots | None = None,
    cgroupfs: Path | None = None,
    emissions: Emissions | None = None,
    rules: str = "conserving",
    idle_w: float | None = None,
    host: str | None = None,
    nodes: Collection[str] = (),
) -> Iterator[Watch]:
    """Open everything that watching this node takes.

    Args:
        meters: Which meters to read; all that work here by default, and an estimate of what they
            do not see.
        roots: Where the kernel's files are. Of a recorded tree only what it holds is read, and this
            machine's drivers and tools where `meters` names them.
        cgroupfs: Where the control groups are; below /sys by default.
        idle_w: What the node draws when nothing runs; None to learn it.
        host: What the node is called; its own name by default.
        nodes: What Slurm calls it, or nodes that are on this machine.
    """
    roots = roots or Roots()
    search = None
    if not meters:
        search = MeterSearch(roots=roots)
        search.begin()
    gpus, unread = find_gpus(meters, roots)
    power = PowerReader(
        meters=choose_meters(meters, roots) if meters else (),
        search=search,
        estimate=None if meters else Estimate(roots=roots),
    )
    try:
        power.open()
        if isinstance(gpus, AmdGpus):
            gpus.wait(_FIRST_S)
        with NodeReader(
            procfs=roots.procfs,
            sysfs=roots.sysfs,
            cgroupfs=cgroupfs or roots.sysfs / "fs" / "cgroup",
            gpus=gpus,
            nodes=nodes or (host or platform.node(),),
        ) as reader:
            cards = [card for card in reader.cards or () if card.maker in unread]
            for card, told in name_unread(cards).items():
                reader.problems.name(told, f"{told}: {cure_of(card, unread[card.maker])}")
            watcher = Watcher(
                reader=reader,
                power=power,
                emissions=emissions or Emissions(),
                rules=rules,
                idle_w=idle_w,
                host=host or platform.node(),
            )
            yield Watch(watcher=watcher, reader=reader, power=power)
    finally:
        power.close()


def find_gpus(meters: Sequence[str], roots: Roots) -> tuple[GpuSource | None, dict[str, Exception]]:
    """Return who reads the GPUs, None where nobody can, and why those of which maker are not read.

    Of a recorded tree nobody reads them, unless `meters` names this machine's.
    """
    unread: dict[str, Exception] = {"Intel": MeterProblem("lowtide reads none of Intel's")}
    wanted: dict[str, tuple[str, Callable[[], GpuSource]]] = {
        "NVIDIA": ("nvml", NvmlGpus),
        "AMD": ("amd", lambda: AmdGpus(sysfs=roots.sysfs)),
    }
    source: GpuSource | None = None
    for maker, (meter, make) in wanted.items():
        if source is not None:
            unread[maker] = MeterProblem("of a node with two makers' GPUs those of one are read")
        elif roots.is_here or meter in meters:
            try:
                source = make()
            except (MissingExtra, MeterProblem) as error:
                unread[maker] = error
        elif meter == "nvml" and find_spec("pynvml") is None:
            unread[maker] = MissingExtra("reading NVIDIA GPUs", extra="watch")
        else:
            unread[maker] = MeterProblem(f"of a recorded tree only with --meter {meter}")
    return source, unread


def cure_of(card: Card, error: Exception) -> str:
    """Return what to do about a GPU that is not read.

    Args:
        card: The GPU.
    """
    if isinstance(error, MissingExtra):
        return f"pip install 'lowtide[{error.extra}]'"
    if not card.has_driver and card.maker != "Intel":
        return f"no driver has taken {card.address}: install {card.maker}'s, or load it ({error})"
    mend = {
        "NVIDIA": "see whether nvidia-smi shows it to this user, and give it the permission",
        "AMD": "install amd-smi or rocm-smi, and let this user use it",
    }
    return f"{mend[card.maker]} ({error})" if card.maker in mend else str(error)
