"""What the kernel and the GPUs had counted at one moment, for the node and for each of its jobs.

Counters only ever grow, so two snapshots tell what was used in between. Jobs are columns of one
table rather than objects: a node may have a thousand of them, ten times a second.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from lowtide.monitor.kernel_files import STEPPED_S
from lowtide.monitor.quantities import Quantities, fill_unknown, names_of, with_columns

FloatArray = npt.NDArray[np.float64]

# Where a job was found.
SOURCES = ("slurm", "systemd", "container", "process")

# What something may wait for; the kernel calls it pressure.
PRESSURES = ("cpu", "memory", "io")


@dataclass(frozen=True, slots=True, kw_only=True)
class Unit:
    """Something that runs on the node and is accounted for by itself: a job, a service.

    A number that is used again is another unit, since it starts at another time.

    Attributes:
        source: One of `SOURCES`.
        job_id: What its users call it: `4711`, `nginx.service`, a container's id, a process id.
        started: When it began, epoch seconds, as well as is known: the age of its control group,
            else of its oldest process.
        user: Whose it is, a name or a number; empty where not known.
        name: What it is called besides; empty where not known.
        node_name: The node's name as its group has it, where several of Slurm's nodes may be on one
            machine; empty for most.
        sluid: What Slurm names its group by, where that is not its number; empty for most. Until
            the number is known, `job_id` is the same.
        cluster: Which of Slurm's clusters it is of, as far as is known: one machine may have nodes
            of several, and each counts its jobs by itself.
        slurmd: Which of several slurmd on one machine has it: by the place of its group, else by
            the cluster that its processes were told; empty for most.
    """

    source: str
    job_id: str
    started: float
    user: str = ""
    name: str = ""
    node_name: str = ""
    sluid: str = ""
    cluster: str = ""
    slurmd: str = ""

    @property
    def key(self) -> str:
        """What tells it from everything else that ever ran on the node."""
        of = f" {self.slurmd}" if self.slurmd else ""
        return f"{self.source}:{self.sluid or self.job_id}@{self.started:.0f}{of}"


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeCounts:
    """What the whole node has used so far and holds now, NaN for what is not known.

    Attributes:
        cpus: Hardware threads.
        busy_s: CPU time in use since boot, over all of them.
        memory_bytes: All memory.
        available_bytes: Memory that could still be had.
        read_bytes: Read from storage since boot.
        written_bytes: Written to storage since boot.
        received_bytes: Received over the network since boot, by the cards: what is made of them
            would count the same again.
        sent_bytes: Sent, likewise.
        pressure_s: Time since boot in which something waited for `cpu`, `memory`, `io`.
        mode_s: CPU time since boot by what it went to, as the kernel calls it: `user`, `idle`.
        threads_per_core: Hardware threads in a core.
    """

    cpus: int
    busy_s: float
    memory_bytes: float
    available_bytes: float
    read_bytes: float = np.nan
    written_bytes: float = np.nan
    received_bytes: float = np.nan
    sent_bytes: float = np.nan
    pressure_s: Mapping[str, float] = field(default_factory=dict)
    mode_s: Mapping[str, float] = field(default_factory=dict)
    threads_per_core: float = np.nan


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuCounts:
    """One GPU, or one instance of a divided one.

    Attributes:
        name: The channel of its meter: `gpu-0`; an instance of it is `gpu-0/1`.
        uuid: Its identity, empty where not known.
        busy: How busy it is, from 0 to 1.
        memory_bytes: Memory in use on it.
        total_bytes: All its memory.
        share: Which share of a whole GPU it is, by memory: 1 unless it is an instance.
        holders: Which units hold it, as their places in the snapshot, each with its share of the
            use; the shares come to 1, to less where others use it too, or there are none.
        users_known: Whether it is known who uses it; where not, any unit may.
    """

    name: str
    uuid: str
    busy: float
    memory_bytes: float
    total_bytes: float
    share: float = 1.0
    holders: Mapping[int, float]
    users_known: bool = True


# What is read of each unit: what the kernel counts, and what is held at the moment.
COLUMNS = names_of("kernel", "held")


@with_columns(*COLUMNS)
class Snapshot(Quantities):
    """Everything that was read in one pass.

    Of each quantity that is counted or held there is a column with one entry per unit, NaN where
    it is not known: CPU time, storage and network so far, ended processes included; memory and
    processes now. The memory of processes without a group is the sum of what each holds, where
    pages that they share count for each. Waits are read once a minute.

    Attributes:
        time: Epoch seconds, by the clock on the wall, which may be set in between.
        node: The node itself.
        units: What runs on it, in the order in which it was found.
        gpus: The GPUs that are read.
        gpus_unread: How many there are besides; None where nobody knows.
        socket_shares: Which share of its CPUs each has on each socket, a row per unit and a column
            per socket, NaN for units that may run anywhere; None where sockets are not told apart.
        ended: When each ended, epoch seconds, NaN for those that are there; None where all are.
        loose: The places of units that no control group counts, but each of their processes.
        rejected: How many readings made no sense so far, and were left out.
        problems: What could not be read, in words, each with the cure where there is one; each is
            named once.
        clock_s: Seconds by a clock that nobody sets; NaN where there is only the other.
    """

    time: float
    node: NodeCounts
    units: tuple[Unit, ...]
    gpus: tuple[GpuCounts, ...] = ()
    gpus_unread: int | None = None
    socket_shares: FloatArray | None = None
    ended: FloatArray | None = None
    loose: frozenset[int] = frozenset()
    rejected: int = 0
    problems: tuple[str, ...] = ()
    clock_s: float = math.nan

    def __post_init__(self) -> None:
        fill_unknown(self, COLUMNS, len(self.units))

    def seconds_after(self, before: Snapshot) -> float:
        """Return how long after another it was taken, whatever the clock was set to in between."""
        passed_s = self.clock_s - before.clock_s
        return self.time - before.time if math.isnan(passed_s) else passed_s

    def time_of(self, before: Snapshot) -> float:
        """Return when another was taken, in epoch seconds by the clock as it is set now."""
        return self.time - self.seconds_after(before)

    def begins(self, before: Snapshot) -> float:
        """Return when the time between another and this began, in epoch seconds for a record.

        It is when the other was taken. Where the clock went back by less than a second, it is when
        the other said it was, so that no time is there twice. Where it was set back by more, some
        time is there twice, and every step takes as long as it took.
        """
        since = self.time_of(before)
        back_s = before.time - since
        return before.time if 0 < back_s <= STEPPED_S and before.time < self.time else since


# What is known of a job besides what it uses: who asked for how much, and how it ended.

# Said of a job that waited: nobody knows what became of it, or it went where nobody watches.
UNKNOWN, ELSEWHERE = "unknown", "elsewhere"


@dataclass(frozen=True, slots=True, kw_only=True)
class JobFacts:
    """One start of one job. None where it is not known.

    A job that was requeued, or a number that was used again, is told apart by its start.

    Attributes:
        source: Where the job was found, one of `snapshot.SOURCES`.
        job_id: The number it is accounted by.
        shown_id: What users type: `4711_3` for an element of an array.
        state: One of `states.STATES`; or `UNKNOWN` or `ELSEWHERE`, which take back that it waits.
        user: Who runs it.
        account: Who pays for it.
        partition: Where it runs.
        name: What it is called.
        nodes: The nodes it runs on.
        submitted: When it was submitted, epoch seconds.
        started: When it began.
        ended: When it was over.
        time_limit_s: How long it may run.
        cpus: CPUs that it asked for, over all nodes.
        memory_bytes: Memory that it asked for, over all nodes.
        gpus: GPUs that it asked for, over all nodes.
        nodes_asked: How many nodes it asked for, of one that waits.
        exit_code: The program's exit status.
        restarts: How often it was requeued before this start.
        comment: What the user wrote beside it.
        cluster: Which of several clusters it is on, since each counts its jobs by itself.
        sluid: What Slurm names its group by, from 26.05 on; each start has another.
        asked: When whoever tells was asked, epoch seconds: what happened later they did not know.
    """

    source: str
    job_id: str
    shown_id: str | None = None
    state: str | None = None
    user: str | None = None
    account: str | None = None
    partition: str | None = None
    name: str | None = None
    nodes: tuple[str, ...] = ()
    submitted: float | None = None
    started: float | None = None
    ended: float | None = None
    time_limit_s: float | None = None
    cpus: float | None = None
    memory_bytes: float | None = None
    gpus: float | None = None
    nodes_asked: float | None = None
    exit_code: int | None = None
    restarts: int | None = None
    comment: str | None = None
    cluster: str | None = None
    sluid: str | None = None
    asked: float | None = field(default=None, compare=False)
