"""One of many: measuring a task of a job whose other tasks are measured as well.

Slurm starts `lowtide measure` once for every task. Each writes a part of its own, and on every
machine one of them, whichever comes first, reads the meters for all: it holds a name that the
kernel gives to one process at a time, and takes back when that process is gone, however it ended.
Then another task takes over. A GPU is read by the one that reads the machine if that can see it,
else by the first of the tasks that can.
"""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Any

from lowtide.files import read_or_empty
from lowtide.formats.recording_parts import CLOCK
from lowtide.monitor.owners import find_job
from lowtide.monitor.processes import ProcessTree, read_stat

# Clocks are compared after so long, and then less and less often; never in step with others.
_FIRST_S, _LATER, _SELDOM_S = 0.3, 1.31, 30.0
# So many clocks are read in a turn: a folder of a thousand parts is no load for a file server.
_MOST_CLOCKS = 8
# What launchers of MPI programs call a task's number and how many there are.
_LAUNCHERS = (("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"), ("PMI_RANK", "PMI_SIZE"))
_STEPD = "slurmstepd"


@dataclass(frozen=True, slots=True, kw_only=True)
class SlurmTask:
    """A task of a Slurm step, or an element of an array.

    Attributes:
        job: The job's number; of an array, the element's own.
        array_job: The array's number, None where it is none.
        element: Which element of the array, None where it is none.
        step: Which step, None in a batch script.
        rank: Which of the tasks, counted from 0.
        tasks: How many there are.
        node: Which of the nodes, counted from 0.
        nodes: How many there are.
        restart: How often the job was put back into the queue.
        cluster: Which cluster, empty where Slurm does not say.
        begun: When the job began, as Slurm says, empty where it does not.
    """

    job: str
    array_job: str | None = None
    element: int | None = None
    step: str | None = None
    rank: int = 0
    tasks: int = 1
    node: int = 0
    nodes: int = 1
    restart: int = 0
    cluster: str = ""
    begun: str = ""

    @classmethod
    def of(cls, environment: Mapping[str, str]) -> SlurmTask | None:
        """Return which task this is, None where there are no others whose recording it shares.

        >>> SlurmTask.of({"SLURM_JOB_ID": "7"})
        >>> SlurmTask.of({"SLURM_JOB_ID": "7", "SLURM_STEP_ID": "0", "SLURM_PROCID": "1",
        ...          "SLURM_STEP_NUM_TASKS": "2"}).rank
        1
        """
        if not (job := find_job(environment)):
            return None

        def number(*names: str, otherwise: int) -> int:
            said = (environment.get(name, "") for name in names)
            return next((int(each) for each in said if each.isdecimal()), otherwise)

        step = environment.get("SLURM_STEP_ID", "")
        # In a batch script Slurm speaks of tasks that nobody has started.
        in_step = step.isdecimal() and "SLURM_PROCID" in environment
        ranks, sizes = zip(*_LAUNCHERS, strict=True)
        tasks = number(*sizes, "SLURM_STEP_NUM_TASKS", otherwise=1) if in_step else 1
        array = environment.get("SLURM_ARRAY_JOB_ID", "")
        element = environment.get("SLURM_ARRAY_TASK_ID", "")
        is_array = array.isdecimal() and element.isdecimal()
        if tasks < 2 and not is_array:
            return None
        several = tasks > 1
        return cls(
            job=job,
            array_job=array if is_array else None,
            element=int(element) if is_array else None,
            step=step if in_step else None,
            rank=number(*ranks, "SLURM_PROCID", otherwise=0) if several else 0,
            tasks=tasks,
            node=number("SLURM_NODEID", otherwise=0) if several else 0,
            nodes=number("SLURM_STEP_NUM_NODES", otherwise=1) if several else 1,
            restart=number("SLURM_RESTART_COUNT", otherwise=0),
            cluster=environment.get("SLURM_CLUSTER_NAME", ""),
            begun=environment.get("SLURM_JOB_START_TIME", ""),
        )

    @property
    def shared(self) -> dict[str, Any]:
        """What all parts of the recording have in common: the words of its manifest."""
        said = {
            "job": self.array_job or self.job,
            "array_job": self.array_job,
            "step": self.step,
            "restart": 0 if self.array_job else self.restart,
            "cluster": self.cluster,
            "begun": "" if self.array_job else self.begun,
        }
        if self.array_job is None:
            said |= {"tasks": self.tasks, "nodes": self.nodes}
        return {key: value for key, value in said.items() if value not in (None, "")}

    @property
    def folder(self) -> str:
        """What the recording is called: the same for all parts of it."""
        words = ["recording", self.array_job or self.job]
        if self.step is not None:
            words[-1] += f".{self.step}"
        if self.restart and not self.array_job:
            words.append(f"restart{self.restart}")
        return "-".join(words)

    def part(self, host: str) -> str:
        """Return what this part of it is called."""
        host = re.sub(r"[^\w.-]", "_", host.partition(".")[0])
        return f"{self.prefix}{self.node}-{host}-{self.rank}"

    @property
    def prefix(self) -> str:
        """How the names of all parts of this run begin."""
        if self.element is None:
            return "part-"
        return f"part-element_{self.element}" + (f"r{self.restart}-" if self.restart else "-")

    def about(self, host: str) -> dict[str, Any]:
        """Return what the part's manifest says of it."""
        said = {
            "job": self.job,
            "element": self.element,
            "restart": self.restart,
            "step": self.step,
            "rank": self.rank,
            "tasks": self.tasks,
            "node": self.node,
            "nodes": self.nodes,
            "host": host.partition(".")[0],
            "boot": _boot(),
        }
        return {key: value for key, value in said.items() if value is not None}


@dataclass(slots=True, kw_only=True)
class Companions:
    """The other tasks on this machine, and what is agreed with them.

    Attributes:
        task: Which task this is.
        leads: Whether this one reads the meters of the machine.
    """

    task: SlurmTask
    leads: bool = False
    _held: dict[str, socket.socket] = field(default_factory=dict, init=False)
    _step: list[ProcessTree] | None = field(default=None, init=False)

    def lead(self) -> bool:
        """Return whether this task reads the machine's meters, from now on where nobody else does.

        What cannot be agreed upon is not agreed upon: then this one reads, and whoever brings the
        parts together counts the machine once.
        """
        self.leads = self.leads or self.take("machine")
        return self.leads

    def take(self, what: str) -> bool:
        """Return whether this task has something that one task of a machine has at a time."""
        if what in self._held:
            return True
        task = self.task
        words = f"{os.getuid()} {task.cluster} {task.job} {task.step} {task.restart} {what}"
        try:
            held = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC)
        except OSError:
            return True
        try:
            # In no file system: nothing is left behind, and nothing can be in the way.
            held.bind(b"\0lowtide-" + sha256(words.encode()).hexdigest().encode())
        except OSError:
            held.close()
            return False
        self._held[what] = held
        return True

    def tree(self, own: ProcessTree) -> ProcessTree:
        """Return the processes of all tasks of the step on this node, else those of this one."""
        if self._step is None:
            root = _stepd()
            self._step = [] if root is None else [ProcessTree(root=root)]
            # Where users may not see what is not theirs, nothing comes from it.
            if self._step and own.root not in self._step[0].walk():
                self._step.clear()
        return self._step[0] if self._step else own

    def close(self) -> None:
        """Let others take over."""
        for held in self._held.values():
            held.close()
        self._held.clear()
        self.leads = False


@dataclass(slots=True, kw_only=True)
class Clocks:
    """Comparing this machine's clock with those of the other parts, through the folder they share.

    Attributes:
        part: The folder of this part.
        prefix: How the names of all parts of the run begin.
        now: The clock that its samples go by.
    """

    part: Path
    prefix: str
    now: Callable[[], float]
    _due_s: float = field(default=0.0, init=False)
    _pause_s: float = field(default=_FIRST_S, init=False)
    _turn: int = field(default=0, init=False)

    def is_due(self, moment_s: float) -> bool:
        """Return whether it is time to compare, by a steady clock."""
        if moment_s < self._due_s:
            return False
        self._due_s = moment_s + self._pause_s
        self._pause_s = min(_LATER * self._pause_s, _SELDOM_S)
        return True

    def compare(self) -> None:
        """Write down what this clock shows, and what can be read of others."""
        with suppress(OSError):
            path = self.part / CLOCK
            if not path.exists():
                _add(path, [])
            others = sorted(
                each for each in self.part.parent.glob(f"{self.prefix}*/{CLOCK}") if each != path
            )
            lines = []
            # The first is the one that all are compared with, and reads the others in turns.
            first = not others or path < others[0]
            chosen = others[:1]
            if first and others:
                chosen = [
                    others[(self._turn + at) % len(others)]
                    for at in range(min(_MOST_CLOCKS, len(others)))
                ]
                self._turn += len(chosen)
            for each in chosen:
                shown = _last(each)
                if shown:
                    lines.append(f"{self.now()!r},{each.parent.name},{shown}\n")
            _add(path, [*lines, f"{self.now()!r},,\n"])


def _add(path: Path, lines: list[str]) -> None:
    # In place: file systems that look for a new file of the name once a minute see this at once.
    with path.open("a") as file:
        file.write("".join(lines))


def _last(path: Path) -> str:
    """Return what a clock showed last when it was written down, empty where that is not known."""
    try:
        with path.open("rb") as file:
            file.seek(max(file.seek(0, os.SEEK_END) - 4096, 0))
            text = file.read().decode(errors="replace")
    except OSError:
        return ""
    own = [line for line in text.rpartition("\n")[0].splitlines() if line.endswith(",,")]
    return own[-1].partition(",")[0] if own else ""


def _boot() -> str:
    """Return what tells this start of this machine from others, and no more than that."""
    boot = read_or_empty("/proc/sys/kernel/random/boot_id").strip()
    return sha256(boot).hexdigest()[:16] if boot else ""


def _stepd() -> int | None:
    """Return the process of Slurm's that all tasks of this step on this node come from."""
    pid = os.getpid()
    while pid > 1:
        with suppress(ValueError, IndexError):
            stat = read_stat(read_or_empty(f"/proc/{pid}/stat").decode(errors="replace"))
            if stat.name.startswith(_STEPD):
                return pid
            pid = stat.parent
            continue
        return None
    return None
