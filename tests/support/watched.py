"""A store with jobs that were watched, made up but whole."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from lowtide.monitor.snapshot import JobFacts, NodeCounts, Unit
from lowtide.monitor.tick import Tick
from lowtide.store import Store
from support.snapshots import GIB, gpu, tick, unit

START = 1_720_051_200.0  # 2024-07-04T00:00Z
STEP_S = 60.0


def power_of_training(time_s: float) -> float:
    """Return what a job draws: an hour at 150 W, then twice two hours at 400 W and one at 250 W."""
    if time_s < 3600:
        return 150.0
    return 400.0 if (time_s - 3600) % 10800 < 7200 else 250.0


def course(
    who: Unit,
    *,
    hours: float = 7.0,
    power_w: Callable[[float], float] = power_of_training,
    intensity: Callable[[float], float] = lambda _: float("nan"),
    after_h: float = 0.0,
    holes: Sequence[tuple[float, float]] = (),
    step_s: float = STEP_S,
    measured: bool = True,
    cpus: float = 8.0,
    gpus: float = 1.0,
    start: float = START,
    pue: float = 1.0,
) -> Iterator[Tick]:
    """Yield the ticks of a node on which one job runs beside a service, and then that alone."""
    energy_j = carbon_g = node_j = used_s = 0.0
    for time_s in np.arange(step_s, (hours + after_h) * 3600 + step_s / 2, step_s):
        now = start + float(time_s)
        middle_s = float(time_s) - step_s / 2
        if any(begin <= time_s < end for begin, end in holes):
            continue
        there = middle_s < hours * 3600
        watts = power_w(middle_s) if there else 0.0
        grid = intensity(now - step_s / 2)
        energy_j += watts * step_s
        carbon_g += watts * step_s * grid / 3.6e6
        node_j += (watts + 100.0) * step_s
        used_s += cpus * step_s * there
        yield tick(
            (who, SERVICE) if there else (SERVICE,),
            time=now,
            since=now - step_s,
            node=NodeCounts(
                cpus=64,
                busy_s=used_s,
                memory_bytes=256 * GIB,
                available_bytes=150 * GIB,
            ),
            cpu_s=_columns(there, used_s),
            cpus_busy=_columns(there, cpus),
            memory_bytes=_columns(there, 40 * GIB if middle_s > 3600 else 10 * GIB),
            gpus_busy=_columns(there, gpus * watts / 500),
            gpu_memory_bytes=_columns(there, 20 * GIB),
            reserved_cpus=_columns(there, 16.0),
            reserved_bytes=_columns(there, 64 * GIB),
            reserved_gpus=_columns(there, gpus),
            energy_j=_columns(there, energy_j),
            measured_j=_columns(there, energy_j if measured else 0.0),
            carbon_g=_columns(there, pue * carbon_g),
            embodied_g=_columns(there, 0.001 * float(time_s)),
            power_w=_columns(there, watts),
            idle_w=100.0,
            unattributed_w=0.0,
            node_energy_j=node_j,
            idle_energy_j=100.0 * float(time_s),
            unattributed_energy_j=0.0,
            intensity_g_per_kwh=grid,
            pue=pue,
            measured=measured,
            gpus=[gpu("gpu-0", {0: 1.0} if there else {}), *map(gpu, GPU_NAMES[1:])],
        )


GPU_NAMES = [f"gpu-{number}" for number in range(8)]
SERVICE = unit("sshd.service", source="systemd", started=START - 86400, user="root")


def _columns(there: bool, value: float) -> list[float]:
    return [value, 0.0] if there else [0.0]


FACTS = JobFacts(
    source="slurm",
    job_id="4711",
    shown_id="4711",
    state="completed",
    user="ada",
    account="phys",
    partition="gpu",
    name="training",
    nodes=("n1",),
    submitted=START - 600,
    started=START,
    ended=START + 7 * 3600,
    time_limit_s=12 * 3600.0,
    cpus=16.0,
    memory_bytes=64 * GIB,
    gpus=1.0,
    exit_code=0,
    restarts=0,
)


def daily(time: float) -> float:
    """A grid that is clean at noon and dirty at night."""
    return 300.0 - 200.0 * float(np.cos((time % 86400 - 43200) / 86400 * 2 * np.pi))


def write_store(path: Path | str, *, start: float = START) -> None:
    """Write a store with job 4711, and a day of its node after it."""
    job = unit(4711, started=start, user="ada", name="training")
    facts = replace(FACTS, submitted=start - 600, started=start, ended=start + 7 * 3600)
    with Store.open(path) as store:
        for each in course(job, intensity=daily, after_h=25.0, step_s=600.0, start=start):
            store.append(each)
        store.put_facts([facts])
