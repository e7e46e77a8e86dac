"""A made-up node: what it had counted at some moments, and what it drew."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from lowtide.attribution import NodePower
from lowtide.monitor.snapshot import Snapshot, Unit
from support import snapshots

START = 1_700_000_000.0


def unit(job_id: str, started: float = START - 100) -> Unit:
    return snapshots.unit(job_id, started=started, user="ada")


def snapshot(time: float, jobs: dict[Unit, float], *, busy_s: float, **more: Any) -> Snapshot:
    """Return a node of 8 CPUs whose jobs have used so much CPU time, with 2 CPUs kept for each."""
    made = snapshots.snapshot(
        START + time,
        of=tuple(jobs),
        cpu_s=list(jobs.values()),
        busy_s=busy_s,
        cpus=8,
        reserved=2.0,
        **more,
    )
    count = len(jobs)
    return replace(
        made, read_bytes=np.full(count, 500.0 + time), written_bytes=np.full(count, np.nan)
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
    rejected: int = 0

    def read(self) -> NodePower:
        node_w = self.watts.pop(0) if len(self.watts) > 1 else self.watts[0]
        return NodePower(node_w=node_w, measured=self.measured)
