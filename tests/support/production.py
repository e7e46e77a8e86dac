"""Jobs of known programs, as a watcher keeps them: a cluster that never was, with the truth."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from lowtide.monitor.snapshot import JobFacts, NodeCounts, Unit
from lowtide.monitor.tick import Tick
from lowtide.signal import FloatArray
from lowtide.store import Store
from support.snapshots import GIB, tick

START = 1_720_051_200.0  # 2024-07-04T00:00Z


@dataclass(frozen=True, kw_only=True)
class Program:
    """A program: startup, epochs of two phases, end, each as (seconds, watts).

    Attributes:
        busy: How many CPUs it keeps busy for each watt.
        jitter: By what share the length of each phase varies, and its power half as much.
    """

    name: str = "train"
    user: str = "ada"
    startup: tuple[float, float] = (120.0, 100.0)
    epoch: tuple[tuple[float, float], ...] = ((300.0, 400.0), (60.0, 200.0))
    end: tuple[float, float] = (60.0, 80.0)
    epochs: int = 5
    cpus: float = 8.0
    gpus: float = 0.0
    busy: float = 0.01
    jitter: float = 0.01

    @property
    def parts(self) -> list[tuple[float, float]]:
        return [self.startup, *(self.epoch * self.epochs), self.end]

    @property
    def duration_s(self) -> float:
        return sum(seconds for seconds, _ in self.parts)

    @property
    def energy_j(self) -> float:
        return sum(seconds * watts for seconds, watts in self.parts)

    def course(self, rng: np.random.Generator) -> tuple[FloatArray, FloatArray]:
        """Return edges in seconds after the start, and the watts between them, of one run."""
        parts = np.array(self.parts)
        seconds = parts[:, 0] * np.exp(self.jitter * rng.standard_normal(len(parts)))
        watts = parts[:, 1] * np.exp(0.5 * self.jitter * rng.standard_normal(len(parts)))
        return np.concatenate(([0.0], np.cumsum(seconds))), watts


@dataclass(frozen=True, kw_only=True)
class Job:
    """One run of a program.

    Attributes:
        facts: What Slurm says otherwise than that it completed.
        hidden: From when to when nobody watched, in seconds after its start.
        measured: The share of its energy that was measured.
    """

    number: int
    program: Program
    start: float
    edges_s: FloatArray
    watts: FloatArray
    name: str = ""
    facts: dict[str, Any] = field(default_factory=dict)
    hidden: tuple[float, float] = (0.0, 0.0)
    measured: float = 1.0

    @property
    def end(self) -> float:
        return self.start + float(self.edges_s[-1])

    @property
    def energy_j(self) -> float:
        return float(np.diff(self.edges_s) @ self.watts)

    def upto_j(self, time: float) -> float:
        reached = np.concatenate(([0.0], np.cumsum(np.diff(self.edges_s) * self.watts)))
        return float(np.interp(time - self.start, self.edges_s, reached))

    @property
    def first_seen(self) -> float:
        return self.start + (self.hidden[1] if self.hidden[0] <= 0 else 0.0)

    def is_seen(self, time: float) -> bool:
        return not self.hidden[0] <= time - self.start < self.hidden[1]

    def unit(self) -> Unit:
        return Unit(
            source="slurm",
            job_id=str(self.number),
            started=self.start,
            user=self.program.user,
            name=self.name or self.program.name,
        )

    def told(self) -> JobFacts:
        known = {
            "state": "completed",
            "exit_code": 0,
            "restarts": 0,
            "nodes": ("n1",),
            "ended": self.end,
            **self.facts,
        }
        return JobFacts(
            source="slurm",
            job_id=str(self.number),
            shown_id=str(self.number),
            user=self.program.user,
            name=self.name or self.program.name,
            submitted=self.start - 60,
            started=self.start,
            cpus=self.program.cpus,
            gpus=self.program.gpus,
            **known,
        )


def jobs_of(
    program: Program,
    count: int,
    *,
    seed: int = 0,
    start: float = START,
    every_s: float | None = None,
    first: int = 1,
    naming: Callable[[int], str] | None = None,
    **more: Any,
) -> list[Job]:
    """Return runs of a program, one after another."""
    rng = np.random.default_rng([seed, first])
    found = []
    for number in range(first, first + count):
        edges_s, watts = program.course(rng)
        found.append(
            Job(
                number=number,
                program=program,
                start=start,
                edges_s=edges_s,
                watts=watts,
                name=naming(number) if naming else "",
                **more,
            )
        )
        start += every_s or float(np.ceil(edges_s[-1] / 60)) * 60 + 120
    return found


def ticks_of(jobs: Sequence[Job], *, step_s: float, host: str = "n1") -> Iterator[Tick]:
    """Yield what a watcher of a node says while jobs run there."""
    waiting = sorted(jobs, key=lambda job: job.start)
    there: list[Job] = []
    time = step_s * np.floor(waiting[0].start / step_s)
    node_j = 0.0
    while waiting or there:
        since, time = float(time), float(time + step_s)
        while waiting and waiting[0].start < time:
            there.append(waiting.pop(0))
        there = [job for job in there if job.end > since]
        middle = (since + time) / 2
        seen = [job for job in there if job.is_seen(middle)]
        if not there:
            time = step_s * np.floor(waiting[0].start / step_s) if waiting else time
            continue
        used = np.array([job.upto_j(time) - job.upto_j(since) for job in seen])
        # A watcher counts from when it first sees a job.
        total = np.array([job.upto_j(time) - job.upto_j(job.first_seen) for job in seen])
        watts = used / step_s
        node_j += float(used.sum()) + 100 * step_s
        busy = watts * [job.program.busy for job in seen]
        yield tick(
            [job.unit() for job in seen],
            host=host,
            time=time,
            since=since,
            node=NodeCounts(cpus=64, busy_s=time, memory_bytes=256 * GIB, available_bytes=GIB),
            cpu_s=total * [job.program.busy for job in seen],
            cpus_busy=busy,
            memory_bytes=GIB,
            gpus_busy=[job.program.gpus * 0.5 for job in seen],
            reserved_cpus=[job.program.cpus for job in seen],
            reserved_gpus=[job.program.gpus for job in seen],
            energy_j=total,
            measured_j=total * [job.measured for job in seen],
            power_w=watts,
            idle_w=100.0,
            unattributed_w=0.0,
            node_energy_j=node_j,
        )


def keep(store: Store, jobs: Iterable[Job], *, step_s: float = 10.0) -> None:
    """Have a store hold jobs as if they had been watched."""
    listed = list(jobs)
    for each in ticks_of(listed, step_s=step_s):
        store.append(each)
    store.put_facts([job.told() for job in listed])
