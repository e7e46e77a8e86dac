"""Ticks of a watcher that never was: a node, its jobs, and what they draw."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from lowtide.monitor.snapshot import NodeCounts, Unit
from lowtide.monitor.tick import Shares, Tick
from support.snapshots import measured_parts

START = 1_700_000_000.0
# What its kernel does not tell.
_UNKNOWN = ("received_bytes", "sent_bytes", "cpu_wait_s", "memory_wait_s", "io_wait_s")


def unit(number: int | str, *, started: float = START, user: str = "ada", **more: str) -> Unit:
    """A job of Slurm's."""
    given = {"source": "slurm", "name": f"job-{number}", **more}
    return Unit(job_id=str(number), started=started, user=user, **given)


def facts(number: int | str, **known: Any) -> Any:
    """What Slurm knows of a job."""
    from lowtide.monitor.snapshot import JobFacts

    return JobFacts(source="slurm", job_id=str(number), **known)


@dataclass
class Watcher:
    """Counts as a watcher does: from when it first sees a unit.

    Attributes:
        host: The node's name.
        time: When its last tick was.
        power_w: What a unit draws by default.
        idle_w: What nobody reserved draws.
        measured: Whether a meter measured it.
        intensity: Grams per kWh; NaN for no signal.
    """

    host: str = "n1"
    time: float = START
    power_w: float = 100.0
    idle_w: float = 50.0
    measured: bool = True
    intensity: float = 360.0
    counts: dict[str, np.ndarray] = field(default_factory=dict)
    node_j: np.ndarray = field(default_factory=lambda: np.zeros(3))
    busy_s: float = 1000.0

    def tick(
        self,
        units: Sequence[Unit],
        *,
        step_s: float = 10.0,
        watts: Mapping[str, float] | None = None,
        cpus: float = 2.0,
        memory_bytes: float = 1e9,
        gpus: float = 0.0,
    ) -> Tick:
        """Let time pass and return what was used in it."""
        since, self.time = self.time, self.time + step_s
        watts = watts or {}
        power = np.array([watts.get(each.job_id, self.power_w) for each in units])
        count = len(units)
        shares = Shares(
            node_w=float(power.sum()) + self.idle_w + 1.0,
            power_w=power,
            gpu_w=0.3 * power * (gpus > 0),
            idle_w=self.idle_w,
            unattributed_w=1.0,
            **measured_parts(power, self.idle_w + 1.0, self.measured),
        )
        self.busy_s += cpus * count * step_s
        self.node_j = self.node_j + step_s * np.array([shares.node_w, self.idle_w, 1.0])
        for each, watt in zip(units, power, strict=True):
            energy = watt * step_s
            grams = energy / 3.6e6 * self.intensity
            used = [
                *(cpus * step_s, 4096.0 * step_s, 512.0 * step_s),
                *(energy, energy * self.measured, grams, np.nan, 0.001 * step_s),
            ]
            self.counts[each.key] = self.counts.get(each.key, np.zeros(8)) + used
        table = np.array([self.counts[each.key] for each in units]).reshape(count, 8).T
        names = (
            *("cpu_s", "read_bytes", "written_bytes", "energy_j", "measured_j", "carbon_g"),
            *("marginal_g", "embodied_g"),
        )
        return Tick(
            host=self.host,
            since=since,
            time=self.time,
            node=NodeCounts(
                cpus=64,
                busy_s=self.busy_s,
                memory_bytes=256e9,
                available_bytes=200e9,
                pressure_s={"cpu": self.busy_s / 100},
            ),
            units=tuple(units),
            cpus_busy=np.full(count, cpus),
            memory_bytes=np.full(count, memory_bytes),
            gpus_busy=np.full(count, 0.5 * gpus),
            gpu_memory_bytes=np.full(count, 1e9 * gpus),
            reserved_cpus=np.full(count, 4.0),
            reserved_bytes=np.full(count, 4e9),
            reserved_gpus=np.full(count, gpus),
            shares=shares,
            node_energy_j=float(self.node_j[0]),
            idle_energy_j=float(self.node_j[1]),
            unattributed_energy_j=float(self.node_j[2]),
            intensity_g_per_kwh=self.intensity,
            **{name: np.full(count, np.nan) for name in _UNKNOWN},
            **{name: np.zeros(count) for name in ("unmetered_s", "unpriced_j")},
            **dict(zip(names, table, strict=True)),
        )
