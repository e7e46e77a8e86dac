"""What happens to a queue, and what a scheduler is told of it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple

from lowtide.workload import IntArray


class Happening(IntEnum):
    """What may happen at an instant: first those who give nodes back, then those who want some."""

    END = 0
    GIVEN = 1
    STOP = 2
    BACK = 3
    DOWN = 4
    READY = 5
    STEP = 6
    WAKE = 7
    ON = 8


class QueueEvent(NamedTuple):
    """Something that has happened.

    Attributes:
        kind: `arrival`: a job has joined the queue, once all that it waits for are done; `end`: one
            is done; `stopped`: one that was stopped has given its nodes back; `step`: the signal
            has a new value; `wake`: it is as late as was asked for; `on`: a node that was switched
            on has booted; `down`: a node has broken down, and whoever ran there waits again;
            `back`: nodes that were away are there again.
        time: When.
        job: Which, a row of the workload; −1 for none. Of a node that is on, down or repaired, its
            number.
    """

    kind: str
    time: float
    job: int = -1


@dataclass(slots=True, eq=False)
class Running:
    """A job that runs.

    Attributes:
        job: Which, a row of the workload.
        start: When it started; later than now where its nodes have to be woken.
        latest: When it will be over at the latest, going by what its user requested.
        nodes: On which nodes; None where one is as good as another.
        lead_s: How long its startup takes.
    """

    job: int
    start: float
    latest: float
    nodes: IntArray | None
    lead_s: float

    @property
    def work_from(self) -> float:
        """When its startup is over."""
        return self.start + self.lead_s


class Pause(NamedTuple):
    """A pause that a policy wishes for: until when, after how much work kept, and how much lost."""

    until: float
    upto_s: float
    lost_s: float
