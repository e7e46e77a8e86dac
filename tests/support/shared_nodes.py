"""Jobs that share the nodes of a partition, with a scheduler that leaves none of them idle."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from lowtide.acting.backend import PENDING, RUNNING, Look, Seen
from lowtide.acting.places import Room
from lowtide.acting.tag import decode
from support.simulated_queue import SimulatedBackend, SimulatedJob


@dataclass(slots=True, kw_only=True)
class SharedNodes(SimulatedBackend):
    """A partition on which whoever is eligible and fits is started, by some order.

    Attributes:
        cpus: How many there are.
        order: Who of those that are eligible is looked at first.
        places: Which nodes jobs of a place may have; they take whole ones, any of these. Without
            that jobs are laid on the CPUs of one partition.
        tells: Whether it is told which nodes those are.
    """

    cpus: float
    order: Callable[[SimulatedJob], float]
    places: Mapping[str, frozenset[str]] = field(default_factory=dict)
    tells: bool = True
    ends: dict[str, float] = field(default_factory=dict, init=False)
    _has: dict[str, frozenset[str]] = field(default_factory=dict, init=False)

    def look(self) -> Look:
        """Return all jobs that carry a tag, and what there is for them."""
        self._reach()
        shown = [job.seen for job in self._active.values() if decode(job.seen.comment)[0]]
        return Look(jobs=shown, now=self.clock, rooms=self._rooms())

    def _rooms(self) -> dict[str, Room]:
        if not self.places:
            return {"main": Room(self.cpus)}
        each = self.cpus / len(frozenset().union(*self.places.values()))
        return {
            name: Room(each * len(nodes), node_cpus=each, nodes=nodes, reach=(nodes,))
            if self.tells
            else Room(each * len(nodes))
            for name, nodes in self.places.items()
        }

    def advance(self, until: float) -> None:
        """Let time pass from event to event."""
        while True:
            for number, end in list(self.ends.items()):
                if end <= self.clock:
                    self._end(self._active.pop(number), end, "completed")
                    del self.ends[number]
                    self._has.pop(number, None)
            self._start_some()
            begins = [
                job.seen.begin
                for job in self._active.values()
                if job.seen.state == PENDING and (job.seen.begin or 0.0) > self.clock
            ]
            happens = min([*self.ends.values(), *begins], default=math.inf)
            if happens > until:
                break
            self.clock = happens
        self.clock = max(self.clock, until)

    def _start_some(self) -> None:
        running = [self._active[number] for number in self.ends]
        free = self.cpus - sum(job.seen.cpus for job in running)
        ready = [
            job
            for job in self._active.values()
            if job.seen.state == PENDING and (job.seen.begin or 0.0) <= self.clock
        ]
        for job in sorted(ready, key=self.order):
            if self._fits(job.seen, free):
                free -= job.seen.cpus
                job.seen = replace(job.seen, state=RUNNING, started=self.clock, begin=None)
                self.ends[job.seen.id] = self.clock + job.startup_s + job.work_s

    def _fits(self, job: Seen, free: float) -> bool:
        """Return whether there is room for a job; its nodes are taken where there are such."""
        if not self.places:
            return job.cpus <= free
        taken = frozenset().union(*self._has.values())
        left = sorted(self.places[job.where or "main"] - taken)
        if len(left) < job.nodes:
            return False
        # Nobody says which of them a scheduler takes.
        self._has[job.id] = frozenset(
            random.Random(f"{self.seed}/{job.id}").sample(left, job.nodes)
        )
        return True
