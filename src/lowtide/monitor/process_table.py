"""What runs outside of control groups: Slurm jobs by their environment, the rest by process group.

A node has hundreds of process groups, most of them asleep. One becomes a unit once it matters: it
keeps a hundredth of a CPU busy, holds a hundredth of the memory, or is on a GPU. From then on it
stays one. All others, and the kernel's own threads, are the system's use.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field, replace

from lowtide.files import read_or_empty
from lowtide.monitor.group import YOUNG_S, Group
from lowtide.monitor.kernel_files import NONSENSE, Problems
from lowtide.monitor.node import Networks
from lowtide.monitor.owners import (
    Clusters,
    find_cluster,
    find_job,
    find_reserved,
    find_uid,
    holds_allocation,
    list_gpus,
    read_environment,
)
from lowtide.monitor.process_units import Key, Process, ProcessUnit
from lowtide.monitor.processes import Stat, read_stat
from lowtide.monitor.snapshot import Unit

_BUSY_CPUS = 0.01
_LEAST_CPU_S = 0.1
_LARGE_SHARE = 0.01
# A process may change its program and its groups right after its start, so it is placed twice;
# and now and then again, since numbers are used again.
_AGAIN_S, _SETTLED_S = 0.9, 300.0
# The first process, and the parent of the kernel's threads.
_FIRST, _KERNEL = 1, 2


@dataclass(slots=True, kw_only=True)
class ProcessTable:
    """All processes outside of control groups that count themselves.

    Attributes:
        procfs: Where /proc is.
        boot: When the node was started, epoch seconds.
        home: Finds the control group of a process from what /proc/PID/cgroup says.
        name: Finds the name of a user.
        networks: The networks that some of them have of their own.
        problems: Where to name what goes wrong.
        clusters: Which of Slurm's clusters have nodes here.
        nodes: What Slurm calls this node, or nodes that are on this machine.
        memory_bytes: All memory of the node.
        ahead_s: By how much the clock of snapshots is ahead of the one on the wall.
        units: The units that are there.
        ended: Those that ended and were not yet taken from here, with those that do not matter.
    """

    procfs: str
    boot: float
    home: Callable[[str], Group | None]
    name: Callable[[int], str]
    networks: Networks
    problems: Problems
    clusters: Clusters = field(default_factory=Clusters)
    nodes: Collection[str] = ()
    memory_bytes: float = math.nan
    ahead_s: float = 0.0
    units: dict[Key, ProcessUnit] = field(default_factory=dict, init=False)
    ended: list[ProcessUnit] = field(default_factory=list, init=False)
    _processes: dict[int, Process] = field(default_factory=dict, init=False)
    _newest: bytes = field(default=b"", init=False)
    _placed: float = field(default=-math.inf, init=False)
    _counted: float = field(default=math.nan, init=False)

    def look(self, now: float, *, only_young: bool = False) -> None:
        """Find new processes, and count all that are outside.

        Args:
            now: Seconds since boot.
            only_young: Count only those that were not there long ago.
        """
        pids = self._list()
        self._bury(self._processes.keys() - pids, now)
        read: dict[int, Stat] = {}
        vanished: set[int] = set()
        members: dict[Key, list[int]] = {}
        # Parents come before their children, which may be known by them.
        for pid in sorted(self._awake(pids, now), key=self._order):
            process = self._processes.get(pid)
            if only_young and process is not None and process.seen < now - YOUNG_S:
                if process.key is not None and not process.stat.dead:
                    members.setdefault(process.key, []).append(pid)
                continue
            stat = self._stat(pid)
            if stat is None:
                vanished |= {pid} & self._processes.keys()
                continue
            if process is not None and process.stat.started_s != stat.started_s:
                self._bury({pid}, now)
                process = None
            # What has ended does not say any more what it was.
            if process is None or (not stat.dead and now >= process.due):
                process = self._place(pid, stat, process, now)
            elif process.key is not None and self._has_moved(pid, process, stat):
                if stat.dead:
                    process.key = None
                else:
                    process = self._place(pid, stat, process, now)
                if process.key is None:
                    # What it used since it was last read may be in the counters of the group.
                    process.stat, process.read = stat, now
            if process.key is None:
                if process.hosts:
                    read[pid] = stat
                continue
            read[pid] = stat
            if process.key[0] == "process":
                process.key = ("process", str(stat.group), "")
            # What has ended uses nothing any more, though nobody may have waited for it yet.
            if not stat.dead:
                members.setdefault(process.key, []).append(pid)
        # Those that ended since they were listed: who waited for them is asked again.
        for parent in {self._processes[pid].stat.parent for pid in vanished} & read.keys():
            read[parent] = self._stat(parent) or read[parent]
        self._bury(vanished, now)
        self._count(members, self._gains(read, now), now)

    def set_clock(self, off_s: float) -> None:
        """Go by the clock on the wall after it was set."""
        self.boot += off_s
        for unit in self.units.values():
            # Others are known by when they began.
            if not unit.shown:
                unit.unit = replace(unit.unit, started=unit.unit.started + off_s)

    def has_new(self, now: float) -> bool:
        """Say whether a process was started since this was last asked, or nobody can tell.

        Args:
            now: Seconds since boot.
        """
        said = read_or_empty(f"{self.procfs}/loadavg").split()
        # The last word is the number that was given away last.
        before, self._newest = self._newest, said[-1] if said else b""
        unsettled = now - self._placed < 2 * _AGAIN_S
        return self._newest != before or unsettled or not said

    def of_pid(self, pid: int) -> ProcessUnit | None:
        """Return the unit of a process, which matters from now on: it is on a GPU."""
        process = self._processes.get(pid)
        found = self.units.get(process.key) if process is not None and process.key else None
        if found is not None:
            found.shown = True
        return found

    def read_traffic(self) -> None:
        """Read what the units that matter have moved to and from storage, and over the network."""
        for unit in self.units.values():
            if unit.shown:
                if not unit.traffic.settled:
                    self.networks.find(unit.traffic, sorted(unit.pids))
                self.networks.read(unit.traffic)
            for pid in unit.pids if unit.shown else ():
                gained = self._processes[pid].gain_storage(self.procfs, pid)
                if gained is not None:
                    unit.add_storage(*gained)

    def _list(self) -> set[int]:
        try:
            names = os.listdir(self.procfs)  # noqa: PTH208 - a Path for each would cost more
        except OSError:
            return set()
        return {int(each) for each in names if each.isdecimal() and each.isascii()}

    def _awake(self, pids: set[int], now: float) -> Iterator[int]:
        """Yield processes to look at: most belong to a group, and are looked at again in time."""
        for pid in pids:
            process = self._processes.get(pid)
            if process is None or process.key is not None or now >= process.due or process.hosts:
                yield pid

    def _order(self, pid: int) -> tuple[float, int]:
        """Return what sorts a parent before its children: numbers are used again, ages are not."""
        process = self._processes.get(pid)
        return (math.inf if process is None else process.stat.started_s), pid

    def _gains(self, read: dict[int, Stat], now: float) -> dict[Key, float]:
        """Return the CPU time that is new for each unit, from what its processes say now."""
        gains: dict[Key, float] = {}
        is_first = math.isnan(self._counted)
        # The first process is the last, since orphans are its children.
        for pid in reversed(read):
            gained, orphaned_s = self._processes[pid].gain(read[pid], now, is_first=is_first)
            for key, gained_s in gained.items():
                gains[key] = gains.get(key, 0.0) + gained_s
            if orphaned_s > 0 and pid != _FIRST and _FIRST in self._processes:
                self._processes[_FIRST].expect(orphaned_s)
        return gains

    def _bury(self, gone: set[int], now: float) -> None:
        """Forget processes; whoever waited for them has taken over their counters."""
        left = set(gone)
        while left:
            # Children first: their parent hands on what it took over from them.
            parents = {self._processes[pid].stat.parent for pid in left}
            childless = left - parents or left
            left = left - childless
            for pid in childless:
                ended = self._processes.pop(pid)
                if ended.key in self.units:
                    self.units[ended.key].pids.discard(pid)
                parent = self._processes.get(ended.stat.parent)
                if parent is not None:
                    parent.take_over(ended, now)

    def _stat(self, pid: int) -> Stat | None:
        try:
            return read_stat(read_or_empty(f"{self.procfs}/{pid}/stat").decode(errors="replace"))
        except NONSENSE:
            return None

    def _place(self, pid: int, stat: Stat, known: Process | None, now: float) -> Process:
        """Find out what a process counts for."""
        wait_s = _AGAIN_S if known is None else _SETTLED_S
        if known is None:
            self._placed = now
            is_old = math.isnan(self._counted) and stat.started_s < now - YOUNG_S
            seen = -math.inf if is_old else now
            nothing = replace(stat, cpu_s=0.0, waited_s=0.0)
            known = Process(nothing, read=stat.started_s, due=now, seen=seen)
        process = known
        inside = pid in self._processes and process.key is None and not process.hosts
        process.due = now + wait_s
        self._processes[pid] = process
        process.key = process.group = None
        if pid == _KERNEL or stat.parent == _KERNEL:
            return process
        self.clusters.meet(pid, stat.name)
        process.said = self._groups_of(pid)
        group = self.home(process.said)
        parent = self._processes.get(stat.parent)
        if group is not None and not group.counts_itself:
            process.group = group
            process.key = (group.unit.source, group.unit.job_id, self._among(group.unit.cluster))
        elif group is None or group.unit.job_id.startswith("slurmd"):
            process.environment = self._environment(pid)
            if job := find_job(process.environment):
                cluster = find_cluster(process.environment)
                self.clusters.learn("", cluster)
                process.key = ("slurm", job, self._among(cluster))
            elif parent is not None and parent.key and parent.key[0] == "slurm":
                process.key = parent.key
            if process.key is not None:
                if group is not None:
                    # The counters of the service hold its jobs, which count by themselves.
                    group.hidden = True
            elif group is None:
                process.key = ("process", str(stat.group), "")
        if inside and process.key is not None:
            # The group that it was in has counted what it used until now.
            process.stat, process.read = stat, now
        if parent is None:
            return process
        if process.key is None:
            parent.foreign = True
        elif parent.key is None and stat.parent != _FIRST and not parent.hosts:
            parent.hosts = True
            parent.stat = self._stat(stat.parent) or parent.stat
        return process

    def _among(self, cluster: str) -> str:
        """Return what tells jobs of one number apart, where there are several clusters."""
        return cluster if len(self.clusters.names) > 1 else ""

    def _has_moved(self, pid: int, process: Process, stat: Stat) -> bool:
        """Return whether a process that counts by itself may be counted by a group by now.

        Slurm makes the groups of a job one after the other, and moves its processes into them; so
        what was outside a moment ago may be inside. Its counters were read before this is asked:
        what is outside now was so all the time.
        """
        if process.is_inside:
            return True
        used = stat.cpu_s > process.stat.cpu_s
        said = self._groups_of(pid) if used and not stat.dead else ""
        return said not in ("", process.said)

    def _groups_of(self, pid: int) -> str:
        return read_or_empty(f"{self.procfs}/{pid}/cgroup").decode(errors="replace")

    def _environment(self, pid: int) -> dict[str, str]:
        path = f"{self.procfs}/{pid}/environ"
        if not os.access(path, os.R_OK) and os.path.exists(path):  # noqa: PTH110
            self.problems.forbidden(path)
        return read_environment(self.procfs, pid)

    def _count(self, members: dict[Key, list[int]], gains: dict[Key, float], now: float) -> None:
        age_s = passed_s = now - self._counted
        # They ended at some time since the last look.
        ended_at = now - (passed_s / 2 if passed_s > 0 else 0.0)
        self._counted = now
        for key, unit in list(self.units.items()):
            pids = members.get(key)
            # The number of a process group is used again, by others.
            if pids is None or (key[0] == "process" and unit.pids.isdisjoint(pids)):
                if any(self._lives(pid) for pid in unit.pids):
                    # Its processes are another's by now, with what they hold.
                    unit.memory_bytes = 0.0
                unit.pids = set()
                unit.ended_at = max(ended_at, unit.unit.started - self.boot - self.ahead_s)
                del self.units[key]
                self.ended.append(unit)
                self.networks.end(unit.traffic)
        for unit in self.ended:
            if unit.key not in members:
                gained_s = gains.pop(unit.key, 0.0)
                unit.cpu_s += gained_s
                # What it used at its end may be all that it ever did.
                unit.shown = unit.shown or gained_s >= _LEAST_CPU_S
        for key, pids in members.items():
            found = self.units.get(key)
            if found is None:
                found = self.units[key] = self._make(key, pids)
            found.pids = set(pids)
            gained_s = gains.get(key, 0.0)
            found.cpu_s += gained_s
            found.memory_bytes = sum(self._processes[pid].stat.memory_bytes for pid in pids)
            if math.isnan(passed_s):
                age_s = max(now - min(self._processes[pid].stat.started_s for pid in pids), 0.0)
            busy = gained_s >= max(_LEAST_CPU_S, _BUSY_CPUS * age_s)
            large = found.memory_bytes >= _LARGE_SHARE * self.memory_bytes
            found.shown = found.shown or busy or large

    def _lives(self, pid: int) -> bool:
        return pid in self._processes and not self._processes[pid].stat.dead

    def _make(self, key: Key, pids: list[int]) -> ProcessUnit:
        processes = [self._processes[pid] for pid in pids]
        oldest = min(processes, key=lambda each: each.stat.started_s)
        told = next((each.environment for each in processes if find_job(each.environment)), {})
        uid = find_uid((), pids, self.procfs)
        unit = Unit(
            source=key[0],
            job_id=key[1],
            started=self.boot + self.ahead_s + oldest.stat.started_s,
            user="" if uid is None else self.name(uid),
            name=told.get("SLURM_JOB_NAME", "") if key[0] == "slurm" else oldest.stat.name,
            cluster=find_cluster(told),
            slurmd=key[2],
        )
        if oldest.group is not None:
            unit = oldest.group.unit
        cpus, memory_bytes = find_reserved(told)
        allocates = any(holds_allocation(each.environment, self.nodes) for each in processes)
        if "SLURM_CPUS_ON_NODE" not in told and not allocates:
            # Others have what is kept there: this is where the shell of an allocation runs.
            cpus = memory_bytes = math.nan
        gpus = next((found for each in processes if (found := list_gpus(each.environment))), ())
        return ProcessUnit(
            key=key,
            unit=unit,
            reserved_cpus=cpus,
            reserved_bytes=memory_bytes,
            gpus=gpus,
            shown=key[0] != "process",
            allocates=allocates,
        )
