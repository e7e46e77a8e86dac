"""A node whose jobs waste by plan: what each draws for nothing is known before anybody looks.

Every core draws its part of the floor once it is kept, and more while it is busy; a GPU draws
something idle, and more while it is busy. The store gets what a watcher would tell it.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from lowtide.monitor.snapshot import GpuCounts, JobFacts, NodeCounts, Unit
from lowtide.monitor.tick import Shares, Tick
from support.ticks import START, facts, unit

CORES, CARDS, MEMORY = 64, 8, 512 * 2.0**30
CORE_FLOOR_W, CORE_BUSY_W = 2.0, 5.0
GPU_IDLE_W, GPU_BUSY_W, GPU_MEMORY = 50.0, 300.0, 80 * 2.0**30
STEP_S = 600.0
GRAMS_PER_KWH = 360.0
GIB = 2.0**30


@dataclass(frozen=True)
class Job:
    """A job that is to run.

    Attributes:
        rule: The rule that it is to be named by; empty for one that wastes nothing.
        wasted_j: What it draws for nothing.
        busy: Cores, GPUs that are busy in a step, by its place among the steps and their number.
        stays: For how many steps something of it is there after the end.
    """

    number: int
    rule: str
    steps: int
    cpus: int = 1
    gpus: int = 0
    memory: float = GIB
    held: float = 0.9 * GIB
    gpu_memory: float = 0.9
    busy: Callable[[int, int], tuple[float, float]] = lambda _at, _of: (0.95, 0.0)
    limit_s: float = 0.0
    stays: int = 0
    wasted_j: float = 0.0
    user: str = "ada"

    @property
    def ran_s(self) -> float:
        return self.steps * STEP_S

    def watts(self, cores: float, cards: float) -> tuple[float, float]:
        """Return what it draws, and the part of its GPUs."""
        gpu_w = self.gpus * GPU_IDLE_W + cards * (GPU_BUSY_W - GPU_IDLE_W)
        return self.cpus * CORE_FLOOR_W + cores * CORE_BUSY_W + gpu_w, gpu_w


def wasteful(rule: str, number: int, chance: random.Random, *, gpus: bool = True) -> Job:
    """Draw a job that wastes by a rule, or one that wastes nothing where the rule is empty.

    Args:
        gpus: Whether it may have GPUs where the rule does not ask for them.
    """
    steps = chance.randint(15, 30)
    ran_s = steps * STEP_S
    cores = chance.choice((2, 4, 6, 8))
    cards = chance.randint(1, 4)
    job = Job(number, rule, steps)
    full = 0.95 * cores
    if rule == "":
        made = replace(job, cpus=cores, gpus=cards, busy=lambda _at, _of: (full, 0.9 * cards))
        return (
            made
            if gpus and chance.random() < 0.5
            else replace(job, cpus=cores, busy=lambda *_: (full, 0))
        )
    if rule == "serial":
        cores = chance.choice((4, 8, 16))
        wasted = (cores - 1) * CORE_FLOOR_W * ran_s
        return replace(job, cpus=cores, busy=lambda *_: (0.97, 0.0), wasted_j=wasted)
    if rule == "idle_cores":
        used = chance.randint(2, 4)
        asked = used * chance.randint(2, 4)
        wasted = (asked - used) * CORE_FLOOR_W * ran_s
        return replace(job, cpus=asked, busy=lambda *_: (0.98 * used, 0.0), wasted_j=wasted)
    if rule == "idle_gpus":
        wasted = cards * GPU_IDLE_W * ran_s
        return replace(job, cpus=cores, gpus=cards, busy=lambda *_: (full, 0.0), wasted_j=wasted)
    if rule == "left_gpus":
        idle = chance.randint(4, steps // 2)
        begins = chance.choice((steps - idle, chance.randint(1, steps - idle)))
        wasted = cards * GPU_IDLE_W * idle * STEP_S

        def course(at: int, _of: int) -> tuple[float, float]:
            return full, 0.0 if begins <= at < begins + idle else 0.8 * cards

        return replace(job, cpus=cores, gpus=cards, busy=course, wasted_j=wasted)
    if rule == "bad_gpus":
        share = chance.uniform(0.05, 0.2)
        gpu_w = cards * GPU_IDLE_W + share * cards * (GPU_BUSY_W - GPU_IDLE_W)
        return replace(
            job, cpus=cores, gpus=cards, gpu_memory=0.1,
            busy=lambda *_: (full, share * cards), wasted_j=(1 - share) * gpu_w * ran_s,
        )  # fmt: skip
    if rule == "dead_weight":
        cards *= gpus
        dead = chance.randint(7, steps - 3)
        wasted = (cores * CORE_FLOOR_W + cards * GPU_IDLE_W) * dead * STEP_S

        def stops(at: int, of: int) -> tuple[float, float]:
            return (full, 0.9 * cards) if at < of - dead else (0.0, 0.0)

        return replace(job, cpus=cores, gpus=cards, busy=stops, wasted_j=wasted)
    if rule == "zombies":
        stays = chance.randint(2, 5)
        left_w = cores * CORE_FLOOR_W + full * CORE_BUSY_W
        return replace(
            job, cpus=cores, busy=lambda *_: (full, 0.0), stays=stays,
            wasted_j=left_w * stays * STEP_S,
        )  # fmt: skip
    if rule == "idle_memory":
        asked = chance.randint(64, 256) * GIB
        held = chance.uniform(0.1, 0.4) * asked
        # Its memory has more cores behind it than it asked for.
        share = [max(size / MEMORY * CORES - cores, 0.0) for size in (asked, 1.2 * held)]
        return replace(
            job, cpus=cores, memory=asked, held=held, busy=lambda *_: (full, 0.0),
            wasted_j=(share[0] - share[1]) * CORE_FLOOR_W * ran_s,
        )  # fmt: skip
    assert rule == "time_limit"
    limit = ran_s * chance.uniform(2.1, 5) + 6 * 3600.0
    return replace(job, cpus=cores, busy=lambda *_: (full, 0.0), limit_s=limit)


@dataclass
class WastefulNode:
    """A node that runs them, one after the other.

    Attributes:
        cards: Its GPUs; one that nobody holds draws for nobody, as free cores do.
    """

    host: str = "n1"
    time: float = START
    cards: int = CARDS

    def ticks(self, jobs: Sequence[Job]) -> list[tuple[Tick, list[JobFacts]]]:
        """Return what a watcher sees, and the facts that it hears after each look."""
        told: list[tuple[Tick, list[JobFacts]]] = []
        counts: dict[str, np.ndarray] = {}
        whole = np.zeros(3)
        busy_s = 0.0
        for job in jobs:
            began = self.time
            for at in range(job.steps + job.stays):
                cores, cards = job.busy(min(at, job.steps - 1), job.steps)
                here = unit(job.number, started=began, user=job.user)
                power_w, gpu_w = job.watts(cores, cards)
                idle_w = (CORES - job.cpus) * CORE_FLOOR_W + (self.cards - job.gpus) * GPU_IDLE_W
                since, self.time = self.time, self.time + STEP_S
                busy_s += cores * STEP_S
                whole = whole + STEP_S * np.array([power_w + idle_w, idle_w, 0.0])
                energy = power_w * STEP_S
                used = [cores * STEP_S, 0.0, 0.0, energy, energy, energy / 3.6e6 * GRAMS_PER_KWH]
                counts[here.key] = counts.get(here.key, np.zeros(6)) + used
                told.append((self._tick(job, here, since, (cores, cards), (power_w, gpu_w, idle_w),
                                        counts[here.key], whole, busy_s), []))  # fmt: skip
                if at == job.steps - 1:
                    told[-1][1].append(self._facts(job, began))
        return told

    def _facts(self, job: Job, began: float) -> JobFacts:
        found: JobFacts = facts(
            job.number, state="completed", user=job.user, account="phys", started=began,
            ended=self.time, cpus=float(job.cpus), gpus=float(job.gpus), memory_bytes=job.memory,
            nodes=(self.host,), name=f"job-{job.number}", time_limit_s=job.limit_s or job.ran_s,
        )  # fmt: skip
        return found

    def _tick(
        self, job: Job, here: Unit, since: float, busy: tuple[float, float],
        watts: tuple[float, float, float], counts: np.ndarray, whole: np.ndarray, busy_s: float,
    ) -> Tick:  # fmt: skip
        power_w, gpu_w, idle_w = watts
        names = ("cpu_s", "read_bytes", "written_bytes", "energy_j", "measured_j", "carbon_g")
        held = GPU_MEMORY * job.gpu_memory
        cards = tuple(
            GpuCounts(
                name=f"gpu-{place}", uuid=f"{place}",
                busy=busy[1] / job.gpus if place < job.gpus else 0.0,
                memory_bytes=held if place < job.gpus else 0.0, total_bytes=GPU_MEMORY,
                holders={0: 1.0} if place < job.gpus else {},
            )
            for place in range(self.cards)
        )  # fmt: skip
        return Tick(
            host=self.host, since=since, time=self.time, units=(here,), gpus=cards,
            gpus_unread=0,
            node=NodeCounts(cpus=CORES, busy_s=busy_s, memory_bytes=MEMORY,
                            available_bytes=MEMORY - job.held, pressure_s={"cpu": 0.0}),
            cpus_busy=np.array([busy[0]]), memory_bytes=np.array([job.held]),
            gpus_busy=np.array([busy[1]]), gpu_memory_bytes=np.array([held * job.gpus]),
            reserved_cpus=np.array([float(job.cpus)]), reserved_bytes=np.array([job.memory]),
            reserved_gpus=np.array([float(job.gpus)]),
            shares=Shares(
                node_w=power_w + idle_w, power_w=np.array([power_w]), gpu_w=np.array([gpu_w]),
                idle_w=idle_w, unattributed_w=0.0, measured_w=np.array([power_w]),
                node_measured_w=power_w + idle_w, measured=True,
            ),
            node_energy_j=float(whole[0]), idle_energy_j=float(whole[1]),
            unattributed_energy_j=0.0, intensity_g_per_kwh=GRAMS_PER_KWH,
            **{name: np.array([value]) for name, value in zip(names, counts, strict=True)},
            **{name: np.zeros(1) for name in ("unmetered_s", "unpriced_j", "cpu_wait_s")},
            **{name: np.zeros(1) for name in ("memory_wait_s", "io_wait_s", "embodied_g")},
        )  # fmt: skip
