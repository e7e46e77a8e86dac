"""Putting a watch together: the reader, the meters and the rules, open and ready."""

from __future__ import annotations

import platform
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from lowtide.errors import LowtideError, MeterProblem
from lowtide.meters import Roots
from lowtide.meters.estimate import Estimate
from lowtide.meters.search import MeterSearch
from lowtide.meters.source import choose_meters
from lowtide.monitor.gpus import GpuSource
from lowtide.monitor.nvml_gpus import NvmlGpus
from lowtide.monitor.reader import NodeReader
from lowtide.watching.amd_gpus import AmdGpus
from lowtide.watching.emissions import Emissions
from lowtide.watching.power import PowerReader
from lowtide.watching.watcher import Watcher


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
        emissions: How energy becomes grams.
        rules: How power is shared out.
        idle_w: What the node draws when nothing runs; None to learn it.
        host: What the node is called; its own name by default.
        nodes: What Slurm calls it, or nodes that are on this machine.
    """
    roots = roots or Roots()
    search = None
    if not meters:
        search = MeterSearch(roots=roots)
        search.begin()
    gpus = _find_gpus(meters, roots)
    power = PowerReader(
        meters=choose_meters(meters, roots) if meters else (),
        search=search,
        estimate=None if meters else Estimate(roots=roots),
    )
    try:
        power.open()
        with NodeReader(
            procfs=roots.procfs,
            sysfs=roots.sysfs,
            cgroupfs=cgroupfs or roots.sysfs / "fs" / "cgroup",
            gpus=gpus,
            nodes=nodes or (host or platform.node(),),
        ) as reader:
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


def _find_gpus(meters: Sequence[str], roots: Roots) -> GpuSource | None:
    """Return the GPUs of this machine, None where there are none, or where another is watched."""
    # Without the library or the tool, or without cards, there are none to look at.
    if roots.is_here or "nvml" in meters:
        with suppress(LowtideError, MeterProblem):
            return NvmlGpus()
    if roots.is_here or "amd" in meters:
        with suppress(LowtideError, MeterProblem):
            return AmdGpus(sysfs=roots.sysfs)
    return None
