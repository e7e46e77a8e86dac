"""Slurm as a backend: one look at the queue a turn, and as few changes as can be.

Everything here may be done by a plain user to jobs of his own. Times are given to Slurm as so many
seconds from now, so that no zone and no summer time comes between. A begin and the comment that
tells of it are written in one request.
"""

from __future__ import annotations

import math
import re
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import TYPE_CHECKING

from lowtide.acting.backend import LEAVING, OVER, PENDING, RUNNING, SUSPENDED, Look, Seen
from lowtide.acting.places import COLUMNS, Demand, Places, Room, backlog_s
from lowtide.acting.site import SlurmSite, read_site
from lowtide.acting.tag import decode
from lowtide.acting.waits import Wait, class_of
from lowtide.errors import (
    InvalidInput,
    LowtideError,
    Refused,
    SlurmProblem,
    SlurmSilent,
    Unreachable,
)
from lowtide.slurm import SlurmClient
from lowtide.slurm.fields import (
    count_gpus,
    expand_nodes,
    parse_tres,
    read_instant,
    read_number,
)
from lowtide.slurm.records import SEPARATOR, QueuedJob
from lowtide.states import read_state

if TYPE_CHECKING:
    from lowtide.simulator.cluster import Cluster

_STATES = {"running": RUNNING, "pending": PENDING, "suspended": SUSPENDED}
# What waits for one of these does not wait for its turn.
_NOT_IN_LINE = (
    "BeginTime",
    "Dependency",
    "JobHeld",
    "DependencyNeverSatisfied",
    "JobArrayTaskLimit",
)
# Who waits for one of these competes with all others; limits of its user or QOS keep back the rest.
_COMPETES = ("None", "Priority", "Resources")
# What the accounting is asked for, and of how many days.
_PAST_FIELDS = ("JobIDRaw", "Eligible", "Start", "Partition", "NCPUS", "AllocTRES")
_PAST = "now-7days"
# A controller that is down keeps who asks it waiting for nine seconds.
_PATIENCE_S = 15.0
# Arrays of fewer elements are told whole, each by its number.
_LONG_ARRAY = 8
# Clocks that differ by no more are taken for one.
_CLOCKS_S = 10.0
# How often it is asked what is reserved, and how the site is set.
_RESERVED_S = 600.0
_RESERVED = re.compile(r"\bStartTime=(\d+)\s+EndTime=(\d+)\b")
# How what is reserved here is called.
_OURS = "lowtide_"
# Higher than any that Slurm computes: those that it counts down begin just below 2 to the 32nd.
_NEXT = 2**32 - 3
# How Slurm says that it has put a job on hold itself, in one word or in four.
_STUCK = re.compile(r"requeued.held|JobHoldMaxRequeue", re.IGNORECASE)


@dataclass(slots=True, kw_only=True)
class SlurmBackend:
    """The jobs of a Slurm.

    Attributes:
        user: Whose jobs are looked after; None for all that carry a tag.
        operator: Whether priorities may be changed.
        reserves: Whether nodes may be reserved.
        sees_others: Whether jobs without a tag are told of as well.
        client: Who asks Slurm.
    """

    user: str | None = None
    operator: bool = False
    reserves: bool = False
    sees_others: bool = False
    client: SlurmClient = field(default_factory=lambda: SlurmClient(timeout_s=_PATIENCE_S))
    _reserved: Sequence[_Reservation] = field(default=(), init=False)
    _places: Places = field(default_factory=Places, init=False)
    _asked: float = field(default=-math.inf, init=False)
    _site: SlurmSite | None = field(default=None, init=False)
    _off_s: float = field(default=0.0, init=False)

    def now(self) -> float:
        """Return what time it is by the controller's clock, which decides when jobs begin."""
        return time.time() + self._off_s

    def can(self) -> frozenset[str]:
        """Return what it can do besides moving begins."""
        powers = {"stop": True, "boost": self.operator, "reserve": self.reserves}
        return frozenset(name for name, may in powers.items() if may)

    def look(self) -> Look:
        """Return all jobs with a tag, and how long all jobs that can be seen have waited."""
        asked = time.time()
        try:
            queue = self.client.waiting_line()
        except (SlurmProblem, InvalidInput) as error:
            raise _told(error) from None
        self._ask_site(asked)
        now = asked + self._off_s
        records: dict[str, list[QueuedJob]] = {}
        ahead: dict[str, list[QueuedJob]] = {}
        others = []
        for job in queue:
            tagged = "lt1:" in job.comment
            is_ours = self.user in (None, job.user)
            if not (tagged and is_ours) and (tagged or job.reason == "BeginTime"):
                ahead.setdefault(job.job_id, []).append(job)
            if not is_ours:
                continue
            if tagged:
                records.setdefault(job.job_id, []).append(job)
            elif self.sees_others and "_" not in job.shown_id:
                others.append(self._seen([job], now))
        for jobs in records.values():
            self._complete(jobs)
        starts = {each.name: each.begin for each in self._reserved}
        mine = []
        for jobs in records.values():
            seen = self._seen(jobs, now)
            if jobs[0].reservation:
                seen = replace(seen, reserved=starts.get(jobs[0].reservation))
            mine.append(seen)
        cpus = [self._taken_cpus(job) for job in queue]
        waits = [
            wait
            for job, count in zip(queue, cpus, strict=True)
            if (wait := _wait(job, now, count)) is not None
        ]
        loops = None if self._site is None else self._site.loops
        if loops is not None and self._off_s:
            # Who of the two is right nobody knows.
            loops = replace(loops, spare_s=loops.spare_s + abs(self._off_s))
        busy: dict[str, list[tuple[float, float]]] = {}
        for job, count in zip(queue, cpus, strict=True) if self.operator else ():
            if read_state(job.state) == "running" and job.started is not None:
                until = job.started + (math.inf if job.limit_s is None else job.limit_s)
                busy.setdefault(job.partition or "", []).append((until, count))
        return Look(
            jobs=mine,
            waits=waits,
            now=now,
            closed=tuple((each.begin, each.end) for each in self._reserved if each.closes),
            taken=self.taken(now),
            others=others,
            loops=loops,
            busy=busy,
            backlog_s=self._backlog_s(zip(queue, cpus, strict=True), now),
            ahead=[self._seen(jobs, now) for jobs in ahead.values()],
            rooms=self._places.rooms,
        )

    def _taken_cpus(self, job: QueuedJob) -> float:
        """Return how many CPUs a job keeps from others."""
        room = self._places.rooms.get((job.partition or "").partition(",")[0])
        if room is None:
            return job.cpus or 1.0
        return room.taken_cpus(job.cpus, nodes=job.nodes, memory=job.memory, whole=job.is_alone)

    def _place(self, job: QueuedJob) -> str:
        """Return on which nodes a job may run."""
        parts = max(job.nodes or 1.0, 1.0)
        demand = Demand(
            partitions=job.partition or "",
            features=job.features,
            cpus=(job.cpus or 1.0) / parts,
            # No more is known than how much it is in all.
            memory=job.memory / parts,
            gpus=(job.gpus or 0.0) / parts,
            gpu_kinds=job.gpu_kinds,
        )
        return self._places.place_of(demand)

    def place_of(self, demand: Demand) -> str:
        """Return on which nodes a job may run that is not submitted yet."""
        return self._places.place_of(demand)

    def _seen(self, jobs: list[QueuedJob], now: float) -> Seen:
        return _seen(jobs, now, self._taken_cpus(jobs[0]), self._place(jobs[0]))

    def _backlog_s(
        self, queue: Iterable[tuple[QueuedJob, float]], now: float
    ) -> Mapping[str, float]:
        """Return how long places with jobs in line take for all others that run or wait there."""
        held: list[tuple[str, float, float | None]] = []
        in_line: list[tuple[str, float, float | None]] = []
        for job, count in queue:
            state = read_state(job.state)
            if "lt1:" in job.comment:
                # What those take is counted job by job.
                continue
            if state == "running" and job.started is not None:
                left_s = None if job.limit_s is None else job.started + job.limit_s - now
                held.append((self._place(job), count, left_s))
                continue
            is_due = state == "pending" and (job.eligible or math.inf) <= now
            if is_due and job.reason in _COMPETES:
                in_line.append((self._place(job), count, job.limit_s))
        return backlog_s(held, in_line, self._places.rooms)

    def past_waits(self) -> list[Wait]:
        """Return how long jobs waited that have started in the last days, of all users.

        A look shows those alone that run, or wait: after a quiet hour none that had to wait long.
        """
        self._ask_site(time.time())
        columns = (f"--delimiter={SEPARATOR}", f"--format={','.join(_PAST_FIELDS)}")
        said = self._do("sacct", "-a", "-X", "-D", "-n", "-P", "-S", _PAST, *columns)
        lines = said.splitlines()
        return [
            wait for line in lines if (wait := _past_wait(line, self._places.rooms)) is not None
        ]

    def _complete(self, jobs: list[QueuedJob]) -> None:
        """Add what squeue has left out: of a long array with a step it does not tell the last."""
        tasks = [int(job.shown_id.rpartition("_")[2]) for job in jobs[1:]]
        steps = {after - before for before, after in pairwise(tasks)}
        if len(tasks) < _LONG_ARRAY or len(steps) != 1 or steps == {1}:
            return
        with suppress(SlurmProblem):
            said = self.client.tell("scontrol", "-o", "show", "job", jobs[0].job_id)
            found = re.search(r"\bArrayTaskId=\d+-(\d+):\d+", said)
            if found and (last := int(found[1])) == max(tasks) + steps.pop():
                array = jobs[0].shown_id.rpartition("_")[0]
                jobs.append(replace(jobs[0], shown_id=f"{array}_{last}"))

    def nodes(self, partition: str) -> Cluster | None:
        """Return the nodes of a partition; None where nobody says."""
        from lowtide.acting.together import read_nodes

        with suppress(SlurmProblem):
            return read_nodes(self.client.tell("sinfo", "-h", "-o", "%R %D %c %G")).get(partition)
        return None

    @property
    def site(self) -> SlurmSite | None:
        """How the site has set its Slurm; None where it was not told."""
        self._ask_site(time.time())
        return self._site

    def _ask_site(self, now: float) -> None:
        """Ask what is reserved and how the controller is set, at times."""
        is_new = 0 <= now - self._asked < _RESERVED_S
        if is_new and not self.reserves:
            return
        with suppress(SlurmProblem):
            self._reserved = _read_reserved(
                self.client.tell("scontrol", "-o", "show", "reservation")
            )
            if is_new:
                return
            before = time.time()
            self._site = read_site(self.client.tell("scontrol", "show", "config"))
            # It tells whole seconds, at some moment between the question and its answer.
            told, after = self._site.told_at, time.time()
            self._off_s = 0.0
            if told is not None and not before - _CLOCKS_S <= told <= after + _CLOCKS_S:
                self._off_s = told - (before + after) / 2
            self._asked = now
            self._places = Places.read(
                self.client.tell("sinfo", "--all", "-h", "-e", "-o", COLUMNS),
                minds_memory=self._site.shares.minds_memory,
            )

    def taken(self, now: float) -> dict[str, list[tuple[float, float]]]:
        """Return when most nodes of a place are going to be reserved, for others than us."""
        taken: dict[str, list[tuple[float, float]]] = {}
        for each in self._reserved:
            if each.begin > now and not each.closes and not each.name.startswith(_OURS):
                for name, room in self._places.rooms.items():
                    if 2 * len(room.nodes & each.nodes) >= len(room.nodes):
                        taken.setdefault(name, []).append((each.begin, each.end))
        return taken

    def begin(self, job: Seen, at: float, comment: str) -> None:
        """Let a pending job not start before a moment, and write its comment."""
        self._update(job, f"StartTime={_from_now(at)}", f"Comment={comment}")

    def note(self, job: Seen, comment: str) -> None:
        """Write a job's comment."""
        self._update(job, f"Comment={comment}")

    def stop(self, job: Seen) -> None:
        """Ask the wrapper of a running job to have it save, and to requeue it."""
        self._do("scancel", "--batch", "--signal=USR1", job.id)

    def boost(self, job: Seen) -> None:
        """Let a job be next."""
        self._update(job, f"Priority={_NEXT}")

    def reserve(self, job: Seen, at: float) -> None:
        """Keep whole nodes free for a job from a moment on, until it is over or its deadline is.

        Parts of nodes would leave it without the memory that others have taken. Whoever dies before
        the job was told of them has kept nodes free that are given back after five minutes.
        """
        tag, _ = decode(job.comment)
        if tag is None:
            raise Refused(f"job {job.id} carries no tag")
        name = f"{_OURS}{tag.token}"
        if name not in {each.name for each in self._reserved}:
            minutes = math.ceil(max(tag.deadline - at, job.limit_s or 0.0) / 60.0) + 1
            where = (f"PartitionName={job.partition}", f"Users={job.user}")
            size = f"NodeCnt={max(math.ceil(job.nodes or 1), 1)}"
            length = f"Duration={minutes}"
            when = (f"ReservationName={name}", f"StartTime={_from_now(at)}", length)
            flags = "Flags=FLEX,PURGE_COMP"
            self._do("scontrol", "create", "reservation", *when, *where, size, flags)
        self._update(job, f"ReservationName={name}")

    def bring_back(self, number: str) -> None:
        """Requeue a job that has ended, as long as Slurm remembers it; it keeps its comment."""
        self._do("scontrol", "requeue", number)

    def release(self, job: Seen) -> None:
        """Let go of a job that is on hold."""
        self._do("scontrol", "release", job.id)

    def _update(self, job: Seen, *changes: str) -> None:
        self._do("scontrol", "update", f"JobId={job.id}", *changes)

    def _do(self, *command: str) -> str:
        return asked(self, *command)


@dataclass(frozen=True, slots=True)
class _Reservation:
    """Nodes that are kept free; it closes the site where that is for maintenance."""

    name: str
    begin: float
    end: float
    closes: bool
    nodes: frozenset[str]


def _read_reserved(text: str) -> list[_Reservation]:
    """Read `scontrol -o show reservation`; what cannot be read is nobody's."""
    found = []
    for line in text.splitlines():
        when = _RESERVED.search(line)
        said = dict(re.findall(r"(\w+)=(\S*)", line))
        if when is None:
            continue
        nodes: tuple[str, ...] = ()
        with suppress(InvalidInput):
            nodes = expand_nodes(said.get("Nodes"))
        found.append(
            _Reservation(
                said.get("ReservationName", ""),
                float(when[1]),
                float(when[2]),
                "MAINT" in said.get("Flags", ""),
                frozenset(nodes),
            )
        )
    return found


def asked(backend: SlurmBackend, *command: str) -> str:
    """Have one of Slurm's programs do something; return what it printed."""
    try:
        return backend.client.tell(*command)
    except SlurmProblem as error:
        raise _told(error) from None


def _told(error: LowtideError) -> LowtideError:
    return (Unreachable if isinstance(error, SlurmSilent) else Refused)(str(error))


def _from_now(at: float) -> str:
    left_s = math.floor(at - time.time())
    return f"now+{left_s}" if left_s > 0 else "now"


def _address(jobs: list[QueuedJob]) -> str:
    """Return what a record is addressed by: elements of an array that are one by all of them.

    The number of the array would stand for those as well that were set apart.
    """
    if len(jobs) == 1:
        return jobs[0].shown_id
    array = jobs[0].shown_id.partition("_")[0]
    tasks = [int(job.shown_id.rpartition("_")[2]) for job in jobs]
    ranges: list[list[int]] = []
    for task in sorted(tasks):
        if ranges and task == ranges[-1][1] + 1:
            ranges[-1][1] = task
        else:
            ranges.append([task, task])
    words = (str(low) if low == high else f"{low}-{high}" for low, high in ranges)
    return f"{array}_[{','.join(words)}]"


def _seen(jobs: list[QueuedJob], now: float, cpus: float, place: str) -> Seen:
    """Return a job, or elements of an array that are one.

    Args:
        cpus: CPUs that it keeps from others.
        place: On which nodes it may run.
    """
    job = jobs[0]
    state = _STATES.get(read_state(job.state) or "", OVER)
    if job.state in ("COMPLETING", "STAGE_OUT", "SIGNALING", "CONFIGURING"):
        state = LEAVING
    ahead = job.eligible is not None and job.eligible > now
    stuck = _STUCK.search(job.reason) is not None
    return Seen(
        id=_address(jobs),
        state=state,
        comment=job.comment,
        submitted=job.submitted,
        begin=job.eligible if ahead or state == PENDING else None,
        started=job.started,
        restarts=job.restarts,
        limit_s=job.limit_s,
        killed_at=job.deadline,
        why=job.reason,
        held=stuck or "held" in job.reason.lower(),
        stuck=stuck,
        is_next=(job.priority or 0) >= _NEXT,
        kind=class_of(job.partition, cpus, job.gpus),
        partition=job.partition or "",
        place=place,
        cpus=cpus,
        gpus=job.gpus,
        nodes=job.nodes,
        tasks=len(jobs),
        name=job.name,
        user=job.user or "",
    )


def _wait(job: QueuedJob, now: float, cpus: float) -> Wait | None:
    """Return how long a job waited for its turn; None where it did not, or nobody can tell.

    Args:
        cpus: CPUs that it keeps from others.
    """
    eligible, started = job.eligible, job.started
    if eligible is None or eligible > now:
        return None
    state = read_state(job.state)
    if state == "pending" and job.reason.startswith(_NOT_IN_LINE):
        return None
    if state not in ("pending", "running") or (started is not None and started < eligible):
        return None
    return Wait(
        kind=class_of(job.partition, cpus, job.gpus),
        eligible=eligible,
        started=started if state == "running" else None,
        id=f"{job.job_id}/{eligible:.0f}",
    )


def _past_wait(line: str, rooms: Mapping[str, Room]) -> Wait | None:
    """Return how long a job waited that the accounting tells of; None where it did not start."""
    cells = line.split(SEPARATOR)
    if len(cells) != len(_PAST_FIELDS):
        return None
    number, eligible, started = cells[0], read_instant(cells[1]), read_instant(cells[2])
    if eligible is None or started is None or started < eligible:
        return None
    tres = parse_tres(cells[5])
    cpus = tres.get("cpu") or read_number(cells[4])
    if (room := rooms.get(cells[3])) is not None:
        # Who had whole nodes is told with all of their CPUs.
        cpus = room.taken_cpus(cpus, nodes=1, memory=tres.get("mem", 0.0), whole=False)
    kind = class_of(cells[3] or None, cpus, count_gpus(tres))
    return Wait(kind=kind, eligible=eligible, started=started, id=f"{number}/{eligible:.0f}")
