"""Who runs jobs, as the driver sees them: Slurm, this machine, or a simulation of either."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from lowtide.acting.places import Room
from lowtide.acting.promise import Loops
from lowtide.acting.waits import Wait

# How a job stands, as far as it matters here.
PENDING, RUNNING, LEAVING, SUSPENDED, OVER = "pending", "running", "leaving", "suspended", "over"


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """One job as its backend shows it. None where it is not known.

    Attributes:
        id: What it is addressed by.
        state: `pending`, `running`, `leaving` (it ends or is being requeued), `suspended`, `over`.
        comment: What stands beside it, the tag included.
        submitted: When it was handed in, or last requeued.
        begin: Before when it does not start; None where that is now.
        started: When it last started, of one that runs.
        restarts: How often it was requeued.
        limit_s: After how long it is ended; None for never.
        killed_at: When its backend cancels it (`--deadline` of sbatch).
        why: Why it waits, in the backend's word.
        held: Whether somebody holds it.
        stuck: Whether that is the backend itself, after it failed to start the job.
        is_next: Whether it goes before all others that wait.
        reserved: From when on nodes are kept free for it alone.
        kind: The class that it waits with.
        partition: Where it is to run.
        place: On which nodes it may, by which `Look.rooms` has them; empty for its partition.
        cpus: CPUs that it asks for.
        gpus: GPUs that it asks for.
        nodes: How many nodes it takes.
        tasks: How many elements of an array it stands for.
        name: What it is called.
        user: Whose it is.
    """

    id: str
    state: str
    comment: str = ""
    submitted: float | None = None
    begin: float | None = None
    started: float | None = None
    restarts: int = 0
    limit_s: float | None = None
    killed_at: float | None = None
    why: str = ""
    held: bool = False
    stuck: bool = False
    is_next: bool = False
    reserved: float | None = None
    kind: str = "-/1"
    partition: str = ""
    place: str = ""
    cpus: float | None = None
    gpus: float | None = None
    nodes: float | None = None
    tasks: int = 1
    name: str = ""
    user: str = ""

    @property
    def where(self) -> str:
        """Where it may run: its place, or of its partitions the first."""
        return self.place or self.partition.partition(",")[0]


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """What a backend shows in one look.

    Attributes:
        jobs: The jobs that carry a tag.
        waits: How long jobs waited, all that can be seen.
        now: What time it is by the backend's clock.
        closed: When nothing is started, from when to when: maintenance that is announced.
        taken: Of each place, when most of its nodes are reserved for others.
        others: Jobs without a tag, where somebody wants to know of them.
        loops: What the backend's own loops take; None where it does not say.
        busy: Of each partition, until when what runs may go on and how many CPUs it holds.
        backlog_s: Of each place with jobs in line, how long its CPUs take for all of them and for
            what runs, by their limits; those with a tag are none of them.
        ahead: Jobs of others that are to begin later, and those of others that carry a tag.
        rooms: What there is of each place where jobs may run, where that is known.
    """

    jobs: Sequence[Seen]
    waits: Sequence[Wait] = ()
    now: float = 0.0
    closed: Sequence[tuple[float, float]] = ()
    taken: Mapping[str, Sequence[tuple[float, float]]] = field(default_factory=dict)
    others: Sequence[Seen] = ()
    loops: Loops | None = None
    busy: Mapping[str, Sequence[tuple[float, float]]] = field(default_factory=dict)
    backlog_s: Mapping[str, float] = field(default_factory=dict)
    ahead: Sequence[Seen] = ()
    rooms: Mapping[str, Room] = field(default_factory=dict)


class Backend(Protocol):
    """Who runs jobs.

    What is asked for is how something shall be, not a change of it: asked twice, it is the same.
    Whoever does not answer raises `Unreachable`, and nothing is known of what became of the
    request; whoever answers that it will not raises `Refused`.
    """

    def now(self) -> float:
        """Return what time it is, epoch seconds."""
        ...

    def look(self) -> Look:
        """Return all jobs that carry a tag."""
        ...

    def begin(self, job: Seen, at: float, comment: str) -> None:
        """Let a pending job not start before a moment, and write its comment with that.

        Args:
            at: The moment; what is not ahead is now.
        """
        ...

    def stop(self, job: Seen) -> None:
        """Ask a running job to save and leave, to begin again when its tag says."""
        ...

    def note(self, job: Seen, comment: str) -> None:
        """Write a job's comment."""
        ...

    def can(self) -> frozenset[str]:
        """Return what it can do besides moving begins: `stop`, `boost`, `reserve`."""
        ...

    def boost(self, job: Seen) -> None:
        """Let a job be next, where that is allowed."""
        ...

    def reserve(self, job: Seen, at: float) -> None:
        """Keep nodes free for a job from a moment on, where that is allowed."""
        ...

    def release(self, job: Seen) -> None:
        """Let go of a job that is on hold."""
        ...
