"""One step of watching a node: what each job used, drew and emitted since the step before.

A tick is what the store keeps, what the exporter shows and what `lowtide node` prints. Everything
in it adds up: the jobs, what is idle and what nobody can be charged for make the node.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from lowtide.monitor.quantities import TOLD, Quantities, fill_unknown, names_of, with_columns
from lowtide.monitor.snapshot import FloatArray, GpuCounts, NodeCounts, Unit

_SHARED = names_of("power")


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


COLUMNS = (*TOLD, "system_s")


@with_columns(*COLUMNS)
class Tick(Quantities):
    """What happened on a node since the tick before.

    Of each quantity of jobs there is a column with one entry per unit, NaN where it is not known.
    What only grows counts from when the unit was first seen, CPU time from its beginning where a
    control group counts it; `system_s` is the part of that in the kernel.

    Attributes:
        host: The node's name.
        since: When the tick before was, epoch seconds.
        time: When this one is.
        node: What the node has used so far.
        units: What runs on it.
        shares: How the node's power was shared out.
        node_energy_j: What the node drew since watching began.
        idle_energy_j: The part of it that is idle.
        unattributed_energy_j: The part of it that nobody is charged with.
        intensity_g_per_kwh: Average intensity at this moment; NaN without a signal.
        node_carbon_g: What the node emitted since watching began, PUE included; NaN without a
            signal.
        idle_carbon_g: The part of it that is idle.
        unattributed_carbon_g: The part of it that nobody is charged with.
        node_unmetered_s: How long nobody could tell what the node drew, or a part of that: its
            energy lacks it.
        node_unpriced_j: The node's energy whose emissions nobody can tell: its grams lack that.
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
    shares: Shares
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
    skipped_s: float = 0.0
    ended: FloatArray | None = None
    rejected: int = 0
    problems: tuple[str, ...] = ()
    cluster: str = ""

    def __post_init__(self) -> None:
        fill_unknown(self, COLUMNS, len(self.units))
        # Who was not seen on a GPU used none only if all GPUs were looked at.
        if self.gpu_use_known or self.gpus_unread == 0 or (self.gpus and not self.gpus_unread):
            return
        for name in names_of("gpus"):
            object.__setattr__(self, name, _unless_0(getattr(self, name)))
        if not self.shares.cards_w:
            gpu_w = _unless_0(self.shares.gpu_w)
            object.__setattr__(self, "shares", replace(self.shares, gpu_w=gpu_w))

    def column(self, name: str) -> FloatArray:
        """Return what is known of the units, one entry for each."""
        found: FloatArray = getattr(self.shares if name in _SHARED else self, name)
        return found

    @property
    def unit_count(self) -> int:
        """How many units there are."""
        return len(self.units)

    @property
    def cpus_reserved(self) -> float:
        """CPUs that are kept for units."""
        return float(np.nansum(self.reserved_cpus))

    @property
    def memory_used_bytes(self) -> float:
        """Memory of the node that is in use."""
        return self.node.memory_bytes - self.node.available_bytes

    @property
    def cards_busy(self) -> float:
        """GPUs of the node that are busy."""
        return self._of_cards("busy")

    @property
    def cards_bytes(self) -> float:
        """Memory in use on GPUs."""
        return self._of_cards("memory_bytes")

    @property
    def cards_total_bytes(self) -> float:
        """All memory of GPUs."""
        return self._of_cards("total_bytes")

    def _of_cards(self, name: str) -> float:
        # What those do that nobody reads is in none of these sums.
        cards = () if self.gpus_unread else self.gpus
        return math.fsum(getattr(gpu, name) for gpu in cards) if cards else math.nan

    @property
    def gpu_count(self) -> float:
        """How many GPUs the node has, instances as parts of one; NaN where nobody knows."""
        if not self.gpus and self.gpus_unread is None:
            return math.nan
        return math.fsum(gpu.share for gpu in self.gpus) + (self.gpus_unread or 0)


def _unless_0(values: FloatArray) -> FloatArray:
    return np.where(values > 0, values, np.nan)
