"""A made-up node: what it had counted at some moments, and what it drew."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from lowtide.attribution import NodePower
from lowtide.monitor.snapshot import NodeCounts, Snapshot, Unit

START = 1_700_000_000.0


def unit(job_id: str, started: float = START - 100) -> Unit:
    return Unit(source="slurm", job_id=job_id, started=started, user="ada")


def snapshot(time: float, jobs: dict[Unit, float], *, busy_s: float, **more: Any) -> Snapshot:
    """Return a node of 8 CPUs whose jobs have used so much CPU time, with 2 CPUs kept for each."""
    count = len(jobs)
    return Snapshot(
        time=START + time,
        node=NodeCounts(cpus=8, busy_s=busy_s, memory_bytes=64e9, available_bytes=32e9),
        units=tuple(jobs),
        cpu_s=np.array(list(jobs.values())),
        memory_bytes=np.full(count, 1e9),
        read_bytes=np.full(count, 500.0 + time),
        written_bytes=np.full(count, np.nan),
        processes=np.ones(count),
        reserved_cpus=np.full(count, 2.0),
        reserved_bytes=np.full(count, 8e9),
        **more,
    )


@dataclass
class Replay:
    """Yields snapshots one after the other."""

    left: list[Snapshot]
    given: list[Snapshot] = field(default_factory=list)

    def read(self) -> Snapshot:
        self.given.append(self.left.pop(0))
        return self.given[-1]


@dataclass
class Drawn:
    """Says what was drawn, one after the other; the last one again and again."""

    watts: list[float]
    measured: bool = True
    problems: list[str] = field(default_factory=list)

    def read(self) -> NodePower:
        node_w = self.watts.pop(0) if len(self.watts) > 1 else self.watts[0]
        return NodePower(node_w=node_w, measured=self.measured)
