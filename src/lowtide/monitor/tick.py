"""One step of watching a node: what each job used, drew and emitted since the step before.

A tick is what the store keeps, what the exporter shows and what `lowtide node` prints. Everything
in it adds up: the jobs, what is idle and what nobody can be charged for make the node.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from lowtide.monitor.snapshot import FloatArray, GpuCounts, NodeCounts, Unit


@dataclass(frozen=True, slots=True, kw_only=True)
class Shares:
    """How the node's power is shared out. NaN where it is not known.

    Attributes:
        node_w: What the node drew on average since the tick before, PUE left out.
        power_w: What each unit is charged with.
        gpu_w: The part of it that its GPUs drew.
        idle_w: What nobody has reserved draws, busy or not.
        unattributed_w: What was drawn for no unit: the system itself, GPUs of unknown holders.
        measured_w: The part of each unit's power that a meter measured; a model estimated the rest.
        node_measured_w: The part of the node's power that meters measured.
        measured: Whether meters measured all of it.
        lacking: The places of units whose power lacks a part, since a meter of it was silent.
        node_lacks: Whether the node's power lacks a part.
        cards_w: What each GPU drew, by the name of the whole card.
        sees: What meters see of the node: `node` for all of it, else `package`, `dram` and `gpu`.
            What is in none of them is not in `node_w` either, unless it is estimated.
    """

    node_w: float
    power_w: FloatArray
    gpu_w: FloatArray
    idle_w: float
    unattributed_w: float
    measured_w: FloatArray
    node_measured_w: float
    measured: bool
    lacking: frozenset[int] = frozenset()
    node_lacks: bool = False
    cards_w: Mapping[str, float] = field(default_factory=dict)
    sees: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Tick:
    """What happened on a node since the tick before. One entry per unit in each column.

    Attributes:
        host: The node's name.
        since: When the tick before was, epoch seconds.
        time: When this one is.
        node: What the node has used so far.
        units: What runs on it.
        cpu_s: CPU time that each has used: since it began where a control group counts it, and
            since it was first seen where nothing does.
        cpus_busy: CPUs that each kept busy since the tick before.
        memory_bytes: Memory that each holds.
        read_bytes: Read from storage since it was first seen.
        written_bytes: Written to storage since it was first seen.
        received_bytes: Received over a network of its own since then; NaN for most.
        sent_bytes: Sent, likewise.
        cpu_wait_s: Time since then in which it waited for CPUs, read once a minute.
        memory_wait_s: The same for memory.
        io_wait_s: The same for storage.
        gpus_busy: GPUs that each kept busy.
        gpu_memory_bytes: Memory that each holds on them.
        reserved_cpus: CPUs that are kept for each.
        reserved_bytes: Memory that is kept for each.
        reserved_gpus: GPUs that each holds.
        shares: How the node's power was shared out.
        energy_j: What each was charged with since it was first seen.
        measured_j: The part of it that was measured.
        carbon_g: What that emitted, PUE included, by average intensity; NaN without a signal.
        marginal_g: The same by marginal intensity; NaN without one.
        embodied_g: Its share of what making the node emitted; NaN where that is not known.
        unmetered_s: How long it ran while nobody could tell what it drew, or a part of that: energy
            lacks it.
        unpriced_j: The energy whose emissions nobody can tell: grams lack that.
        node_energy_j: What the node drew since watching began.
        idle_energy_j: The part of it that is idle.
        unattributed_energy_j: The part of it that nobody is charged with.
        node_carbon_g: What the node emitted since watching began, PUE included; NaN without a
            signal.
        idle_carbon_g: The part of it that is idle.
        unattributed_carbon_g: The part of it that nobody is charged with.
        node_unmetered_s: How long nobody could tell what the node drew, or a part of that: its
            energy lacks it.
        node_unpriced_j: The node's energy whose emissions nobody can tell: its grams lack that.
        intensity_g_per_kwh: Average intensity at this moment; NaN without a signal.
        marginal_g_per_kwh: Marginal intensity, likewise.
        pue: What the building draws for each watt of the node's; NaN where nobody says.
        synthetic: Whether the intensity comes from a model, and grams with it.
        watched_cpu_s: The part of `cpu_s` since it was first seen; None where that is all of it.
        gpus: The GPUs that are read.
        gpus_unread: How many there are besides; None where nobody knows.
        gpu_use_known: Whether use of GPUs is known although the GPUs are not: some logs tell of
            processes alone.
        meters: The meters, and whether each said something new within the last minute.
        package_energy_j: What each CPU socket drew since watching began, where meters see it.
        dram_energy_j: What memory drew since watching began; NaN where no meter sees it.
        system_s: The part of `cpu_s` that was spent in the kernel, NaN where it is not told apart;
            None where it is for nobody.
        skipped_s: By how much the clock was set forward since the tick before, which makes a gap
            in which no time passed.
        ended: When each ended, epoch seconds, NaN for those that are there; None where all are.
        rejected: How many readings made no sense since watching began, and were left out.
        problems: What went wrong, in words.
        cluster: Which cluster the node is of, empty where not known or none.
    """

    host: str
    since: float
    time: float
    node: NodeCounts
    units: tuple[Unit, ...]
    cpu_s: FloatArray
    cpus_busy: FloatArray
    memory_bytes: FloatArray
    read_bytes: FloatArray
    written_bytes: FloatArray
    received_bytes: FloatArray
    sent_bytes: FloatArray
    cpu_wait_s: FloatArray
    memory_wait_s: FloatArray
    io_wait_s: FloatArray
    gpus_busy: FloatArray
    gpu_memory_bytes: FloatArray
    reserved_cpus: FloatArray
    reserved_bytes: FloatArray
    reserved_gpus: FloatArray
    shares: Shares
    energy_j: FloatArray
    measured_j: FloatArray
    carbon_g: FloatArray
    marginal_g: FloatArray
    embodied_g: FloatArray
    unmetered_s: FloatArray
    unpriced_j: FloatArray
    node_energy_j: float
    idle_energy_j: float
    unattributed_energy_j: float
    intensity_g_per_kwh: float
    node_carbon_g: float = math.nan
    idle_carbon_g: float = math.nan
    unattributed_carbon_g: float = math.nan
    node_unmetered_s: float = 0.0
    node_unpriced_j: float = 0.0
    marginal_g_per_kwh: float = math.nan
    pue: float = math.nan
    synthetic: bool = False
    watched_cpu_s: FloatArray | None = None
    gpus: tuple[GpuCounts, ...] = ()
    gpus_unread: int | None = None
    gpu_use_known: bool = False
    meters: Mapping[str, bool] = field(default_factory=dict)
    package_energy_j: tuple[float, ...] = ()
    dram_energy_j: float = math.nan
    system_s: FloatArray | None = None
    skipped_s: float = 0.0
    ended: FloatArray | None = None
    rejected: int = 0
    problems: tuple[str, ...] = ()
    cluster: str = ""

    def __post_init__(self) -> None:
        # Who was not seen on a GPU used none only if all GPUs were looked at.
        if self.gpu_use_known or self.gpus_unread == 0 or (self.gpus and not self.gpus_unread):
            return
        for name in ("gpus_busy", "gpu_memory_bytes", "reserved_gpus"):
            object.__setattr__(self, name, _unless_0(getattr(self, name)))
        if not self.shares.cards_w:
            gpu_w = _unless_0(self.shares.gpu_w)
            object.__setattr__(self, "shares", replace(self.shares, gpu_w=gpu_w))

    @property
    def gpu_count(self) -> float:
        """How many GPUs the node has, instances as parts of one; NaN where nobody knows."""
        if not self.gpus and self.gpus_unread is None:
            return math.nan
        return math.fsum(gpu.share for gpu in self.gpus) + (self.gpus_unread or 0)


def _unless_0(values: FloatArray) -> FloatArray:
    return np.where(values > 0, values, np.nan)
