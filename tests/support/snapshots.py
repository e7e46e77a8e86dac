"""Snapshots, and steps of watching, for tests: as few words as a test needs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from lowtide.monitor.metrics import Exposition
from lowtide.monitor.snapshot import FloatArray, GpuCounts, NodeCounts, Snapshot, Unit
from lowtide.monitor.tick import Shares, Tick

GIB = 2.0**30


def unit(job_id: object = 1, *, source: str = "slurm", started: float = 0.0, **more: str) -> Unit:
    return Unit(source=source, job_id=str(job_id), started=started, **more)


def units(count: int) -> tuple[Unit, ...]:
    return tuple(
        unit(number, user=f"user{number % 50}", name=f"run {number}") for number in range(count)
    )


def column(values: Sequence[float] | float, count: int) -> FloatArray:
    return np.array(np.broadcast_to(np.asarray(values, dtype=np.float64), count))


def snapshot(
    time: float = 0.0,
    *,
    of: Sequence[Unit] = (),
    cpu_s: Sequence[float] | float = 0.0,
    busy_s: float = 0.0,
    cpus: int = 64,
    memory_bytes: Sequence[float] | float = 0.0,
    node_bytes: float = 256 * GIB,
    reserved: Sequence[float] | float = np.nan,
    gpus: Sequence[GpuCounts] = (),
    socket_shares: Sequence[Sequence[float]] | None = None,
) -> Snapshot:
    count = len(of)
    return Snapshot(
        time=time,
        node=NodeCounts(
            cpus=cpus, busy_s=busy_s, memory_bytes=node_bytes, available_bytes=node_bytes
        ),
        units=tuple(of),
        cpu_s=column(cpu_s, count),
        memory_bytes=column(memory_bytes, count),
        read_bytes=column(0, count),
        written_bytes=column(0, count),
        processes=column(1, count),
        reserved_cpus=column(reserved, count),
        reserved_bytes=column(np.nan, count),
        gpus=tuple(gpus),
        socket_shares=None if socket_shares is None else np.array(socket_shares, dtype=np.float64),
    )


def gpu(
    name: str = "gpu-0",
    holders: Mapping[int, float] | None = None,
    *,
    busy: float = 0.0,
    total_bytes: float = 80 * GIB,
) -> GpuCounts:
    return GpuCounts(
        name=name,
        uuid=f"GPU-{name}",
        busy=busy,
        memory_bytes=busy * total_bytes / 2,
        total_bytes=total_bytes,
        holders=holders or {},
    )


def measured_parts(power_w: FloatArray, others_w: float, measured: bool) -> dict[str, Any]:
    """Return what was measured of shares: all or nothing."""
    return {
        "measured_w": power_w if measured else 0.0 * power_w,
        "node_measured_w": float(np.nansum(power_w)) + others_w if measured else 0.0,
        "measured": measured,
    }


def render(of: Tick, *, compat: Sequence[str] = ()) -> bytes:
    """Return the whole page of metrics for one tick."""
    return Exposition(compat=compat).render(of).whole


def tick(of: Sequence[Unit] = (), *, time: float = 1000.0, **columns: Any) -> Tick:
    """Return a tick whose columns are what is given, and something plausible where nothing is."""
    count = len(of)
    each = np.arange(count, dtype=np.float64)
    power_w = column(columns.pop("power_w", 10.0 + each), count)
    idle_w, unattributed_w = columns.pop("idle_w", 50.0), columns.pop("unattributed_w", 5.0)
    known: dict[str, Any] = {
        "host": "n1",
        "since": time - 10.0,
        "time": time,
        "node": NodeCounts(
            cpus=64,
            busy_s=1234.5,
            memory_bytes=256 * GIB,
            available_bytes=200 * GIB,
            pressure_s={"cpu": 1.5},
        ),
        "cpu_s": 100.0 + each,
        "cpus_busy": 1.0,
        "memory_bytes": GIB,
        "read_bytes": 4096.0,
        "written_bytes": 8192.0,
        "received_bytes": np.nan,
        "sent_bytes": np.nan,
        "cpu_wait_s": 0.5,
        "memory_wait_s": np.nan,
        "io_wait_s": 0.25,
        "gpus_busy": 0.0,
        "gpu_memory_bytes": 0.0,
        "reserved_cpus": 2.0,
        "reserved_bytes": 4 * GIB,
        "reserved_gpus": 0.0,
        "energy_j": 1000.0 + each,
        "measured_j": 1000.0 + each,
        "carbon_g": 0.5,
        "marginal_g": np.nan,
        "embodied_g": 0.01,
        "unmetered_s": 0.0,
        "unpriced_j": 0.0,
        "node_energy_j": 9000.0,
        "idle_energy_j": 600.0,
        "unattributed_energy_j": 60.0,
        "intensity_g_per_kwh": 250.0,
        "shares": Shares(
            node_w=float(np.nansum(power_w)) + idle_w + unattributed_w,
            power_w=power_w,
            gpu_w=column(columns.pop("gpu_w", 0.0), count),
            idle_w=idle_w,
            unattributed_w=unattributed_w,
            **measured_parts(power_w, idle_w + unattributed_w, columns.pop("measured", True)),
        ),
        **columns,
    }
    for name in TICK_COLUMNS:
        known[name] = column(known[name], count)
    return Tick(units=tuple(of), **known)


TICK_COLUMNS = (
    "cpu_s",
    "cpus_busy",
    "memory_bytes",
    "read_bytes",
    "written_bytes",
    "received_bytes",
    "sent_bytes",
    "cpu_wait_s",
    "memory_wait_s",
    "io_wait_s",
    "gpus_busy",
    "gpu_memory_bytes",
    "reserved_cpus",
    "reserved_bytes",
    "reserved_gpus",
    "energy_j",
    "measured_j",
    "carbon_g",
    "marginal_g",
    "embodied_g",
    "unmetered_s",
    "unpriced_j",
)


def tick_of_everything() -> Tick:
    """A tick that has all there is."""
    jobs = [unit("1", user="ann", name='say "hi"\n', started=5.0), unit("2", source="container")]
    return replace(
        tick(
            jobs,
            power_w=[100.25, 50.0],
            gpu_w=[60.0, 0.0],
            gpus_busy=[0.5, 0.0],
            gpu_memory_bytes=[GIB, 0.0],
            reserved_gpus=[1.0, 0.0],
            carbon_g=[1.5, 0.25],
            marginal_g=[2.5, np.nan],
            embodied_g=[0.125, 0.5],
            gpus=(gpu("gpu-0", {0: 0.75}, busy=0.5),),
            problems=("no RAPL",),
            received_bytes=[np.nan, 500.0],
            sent_bytes=[np.nan, 70.0],
            cpu_wait_s=[1.5, 0.0],
            memory_wait_s=[0.25, np.nan],
            major_faults=[12.0, np.nan],
            unmetered_s=[30.0, 0.0],
            unpriced_j=[0.0, 12.5],
            node_carbon_g=9.0,
            idle_carbon_g=6.0,
            unattributed_carbon_g=1.25,
            marginal_g_per_kwh=700.0,
            pue=1.25,
            node_unmetered_s=30.0,
            node_unpriced_j=12.5,
            rejected=4,
        ),
        package_energy_j=(11.0, 22.0),
        dram_energy_j=3.0,
    )
