"""Jobs that share the nodes of a partition, with a scheduler that leaves none of them idle."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from lowtide.acting.backend import PENDING, RUNNING, Look, Room
from lowtide.acting.tag import decode
from support.simulated_queue import SimulatedBackend, SimulatedJob


@dataclass(slots=True, kw_only=True)
class SharedNodes(SimulatedBackend):
    """A partition on which whoever is eligible and fits is started, by some order.

    Attributes:
        cpus: How many there are.
        order: Who of those that are eligible is looked at first.
    """

    cpus: float
    order: Callable[[SimulatedJob], float]
    ends: dict[str, float] = field(default_factory=dict, init=False)

    def look(self) -> Look:
        """Return all jobs that carry a tag, and what there is for them."""
        self._reach()
        shown = [job.seen for job in self._active.values() if decode(job.seen.comment)[0]]
        return Look(jobs=shown, now=self.clock, rooms={"main": Room(self.cpus)})

    def advance(self, until: float) -> None:
        """Let time pass from event to event."""
        while True:
            for number, end in list(self.ends.items()):
                if end <= self.clock:
                    self._end(self._active.pop(number), end, "completed")
                    del self.ends[number]
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
            if job.seen.cpus <= free:
                free -= job.seen.cpus
                job.seen = replace(job.seen, state=RUNNING, started=self.clock, begin=None)
                self.ends[job.seen.id] = self.clock + job.startup_s + job.work_s
