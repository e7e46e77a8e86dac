"""All control groups that are jobs, services or containers, with what each used up to its end."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace

from lowtide.files import read_or_empty
from lowtide.monitor.cgroups import RANKS, Layout, Named, name_group
from lowtide.monitor.group import YOUNG_S, Group, Means
from lowtide.monitor.group_tree import GroupEvent, GroupTree
from lowtide.monitor.kernel_files import NONSENSE
from lowtide.monitor.node import Networks
from lowtide.monitor.owners import (
    Clusters,
    find_cluster,
    find_job,
    find_start,
    find_uid,
    list_pids,
    read_environment,
)
from lowtide.monitor.process_units import GroupStorage
from lowtide.monitor.snapshot import Unit

# A job's first processes may not be its own yet, and later ones say no more.
_QUESTIONS = 4
# How long a group is watched closely for its limits, which Slurm writes right after making it.
_SOON_S = 1.0
_ASKED_PIDS = 16


@dataclass(slots=True, kw_only=True)
class GroupTable:
    """The groups, followed as they come and go.

    Attributes:
        tree: Which groups there are.
        means: What reading them takes.
        networks: The networks that some of them have of their own.
        procfs: Where /proc is.
        boot: When the node was started, epoch seconds.
        name: Finds the name of a user.
        clusters: Which of Slurm's clusters have nodes here.
        ask: Whether the environment of all jobs matters, since there are GPUs.
        ahead_s: By how much the clock of snapshots is ahead of the one on the wall.
        numbers: The numbers of jobs whose groups are named by SLUID, as far as Slurm told them.
        ended: Groups that ended and were not yet taken from here.
    """

    tree: GroupTree
    means: Means
    networks: Networks
    procfs: str
    boot: float
    name: Callable[[int], str]
    clusters: Clusters = field(default_factory=Clusters)
    ask: bool = False
    ahead_s: float = 0.0
    numbers: Mapping[str, str] = field(default_factory=dict)
    ended: list[Group] = field(default_factory=list, init=False)
    _groups: dict[str, Group] = field(default_factory=dict, init=False)
    _read_at: float = field(default=math.nan, init=False)
    _followed: float = field(default=math.nan, init=False)
    _unseen: dict[str, Group] = field(default_factory=dict, init=False)
    _counted: list[Group] | None = field(default=None, init=False)
    _uncounted: set[str] = field(default_factory=set, init=False)
    _storages: dict[str, GroupStorage] = field(default_factory=dict, init=False)
    _pools: Pools = field(init=False)

    def __post_init__(self) -> None:
        self._pools = Pools(self.means.layout)

    def follow(self, now: float) -> None:
        """Take note of groups that came or went.

        Args:
            now: Seconds by a clock that nobody sets.
        """
        for event in self.tree.update(now):
            group = self._groups.get(event.path)
            if event.kind == "came":
                self._came(event, group, now)
            elif event.kind == "missed":
                self._missed(event, now)
            elif group is not None and event.kind == "changed":
                self._read(group, now)
            elif group is not None:
                group.folders.pop(event.folder, None)
                if event.folder == group.cpu_folder or not group.folders:
                    self._end(group, now)
                else:
                    # Its other folders are about to go, too: this may be the last chance.
                    self._read(group, now)
        self._followed = now

    def set_clock(self, off_s: float, now: float) -> None:
        """Go by the clock on the wall after it was set.

        Args:
            now: Seconds by a clock that nobody sets.
        """
        self.boot += off_s
        self.follow(now)
        until = time.time() + self.ahead_s
        since = until - (now - self._read_at)
        for group in self._groups.values():
            # What has just come began since, and where that is not so, by the clock as it was.
            if group.found > self._read_at and not since - 1.0 <= group.unit.started <= until + 1.0:
                began = min(max(group.unit.started + off_s, since), until)
                group.unit = replace(group.unit, started=began)
                group.began = group.found
        self._counted = None

    def read(self, now: float) -> None:
        """Read all groups that count.

        Args:
            now: Seconds by a clock that nobody sets.
        """
        self._read_at = now
        living = self.counted()
        said = dict(zip(living, self._pools.look(living), strict=True))
        for group in list(self._groups.values()):
            if group.unit.sluid in self.numbers:
                self._number(group, self.numbers[group.unit.sluid])
            if not group.hidden:
                self._read(group, now, said.get(group, b""))
                group.begin_step()
                if group.unit.source == "slurm" and not group.gone and not group.counts_storage:
                    self._count_storage(group)

    def read_young(self, now: float) -> bool:
        """Read the groups that have just come; say whether any is to be limited any moment.

        Args:
            now: Seconds by a clock that nobody sets.
        """
        young = [each for each in self._groups.values() if now - each.began < YOUNG_S]
        for group in young:
            self._read(group, now)
        return any(group.awaits_limits and now - group.found < _SOON_S for group in young)

    def counted(self) -> list[Group]:
        """Return the groups whose use is counted, none of them inside of another."""
        if self._counted is None or any(each.hidden for each in self._counted):
            uncounted = self._holders() | {
                each.path for each in self._groups.values() if each.hidden
            }
            self._counted = [each for each in self._groups.values() if each.path not in uncounted]
            if uncounted != self._uncounted:
                self._uncounted = uncounted
                # A group that is not counted any more must not look like others that ended.
                self._pools.forget()
        return [each for each in self._counted if each.counts_itself]

    def settle(self, now: float) -> list[Group]:
        """Return the groups that ended since the last time, with all that they used.

        Args:
            now: Seconds by a clock that nobody sets.
        """
        ended, self.ended = self.ended, []
        ended = [each for each in ended if not each.hidden and each.cpu_folder]
        unseen, self._unseen = list(self._unseen.values()), {}
        self._pools.settle(self.counted(), [*ended, *unseen], now, self.means.all_cpus)
        return [*ended, *(each for each in unseen if each.cpu_s > 0)]

    def home(self, said: str) -> Group | None:
        """Return the group that a process counts for; others that count it too are hidden.

        Args:
            said: Its file /proc/PID/cgroup.
        """
        found, best = self._at(said)
        if (best is None or not best.counts_itself) and _names_group(said):
            # It came, or began to count, since anybody looked.
            self.follow(self._followed)
            found, best = self._at(said)
            if best is not None and math.isnan(best.cpu_s):
                self._read(best, self._followed)
        if best is None:
            return None
        groups = [self._groups[path] for path in found if path in self._groups]
        for group in groups:
            controller = "" if group.cpu_folder.startswith(self._unified()) else "cpuacct"
            if group is not best and group.counts_itself and controller in found[group.path]:
                group.hidden = True
        return best

    def _at(self, said: str) -> tuple[dict[str, set[str]], Group | None]:
        found = self.tree.home(said)
        groups = [self._groups[path] for path in found if path in self._groups]
        best = max(groups, key=lambda each: RANKS[each.unit.source], default=None)
        return found, best

    def close(self) -> None:
        """Let go of everything."""
        self.tree.close()
        for group in self._groups.values():
            group.end(self._followed)
        self._groups.clear()

    def _unified(self) -> tuple[str, ...]:
        return tuple(each.folder + "/" for each in self.means.layout.hierarchies if each.unified)

    def _came(self, event: GroupEvent, group: Group | None, now: float) -> None:
        present = self.tree.groups.get(event.path)
        if group is not None:
            group.folders[event.folder] = 0
            group.find_counters(self.means)
        elif present is not None:
            pids = list_pids(event.folder)[:_ASKED_PIDS]
            folders = list(present.folders)
            named = present.named
            uid = find_uid(folders, pids, self.procfs) if named.uid is None else named.uid
            started = find_start(folders, pids, self.procfs, self.boot)
            unit = self._unit(named, uid, started)
            age_s = max(time.time() - started, 0.0)
            group = Group(path=event.path, unit=unit, began=now - age_s, found=now)
            group.folders.update(present.folders)
            group.find_counters(self.means)
            self._groups[event.path] = group
        self._counted = None

    def _missed(self, event: GroupEvent, now: float) -> None:
        """Keep a group that came and went unseen: what it used is in its pool."""
        named = name_group(event.path)
        found = self.means.layout.split(event.folder)
        counting = {place.folder for place in self.means.layout.cpu_places}
        if named is None or found is None or found[0].folder not in counting:
            return
        # What is inside of another is counted there.
        if any(above in self._groups for above in _above(event.path)):
            return
        started = time.time() - (now - self._followed)
        self._unseen[event.path] = Group(
            path=event.path,
            unit=self._unit(named, named.uid, started),
            began=self._followed,
            found=now,
            cpu_folder=event.folder,
            pool=f"{found[0].folder}/{event.path.split('/')[1]}",
            processes=0.0,
            gone=True,
            ended_at=now,
        )

    def _unit(self, named: Named, uid: int | None, started: float) -> Unit:
        of = self.clusters.find(named.tree, named.node) if named.tree else ""
        return Unit(
            source=named.source,
            job_id=named.job_id,
            started=started + self.ahead_s,
            user="" if uid is None else self.name(uid),
            name=named.name,
            node_name=named.node,
            sluid=named.sluid,
            cluster=of,
            slurmd=named.slurmd,
        )

    def _read(self, group: Group, now: float, said: bytes = b"") -> None:
        slow = group.read(now, self.means, said)
        if group.gone:
            self._end(group, now)
            return
        young = now - group.began < YOUNG_S
        if not (slow or young):
            if group.traffic.pid:
                self.networks.read(group.traffic)
            return
        unknown = group.asked < _QUESTIONS and (
            not group.unit.user
            or self.ask
            or (group.unit.source == "slurm" and math.isnan(group.limits.reserved_cpus))
            or group.unit.sluid == group.unit.job_id
            or (group.unit.source == "slurm" and not group.clusters)
        )
        # Two slurmd of one name put jobs of one number into one group, at any time.
        crowded = group.unit.source == "slurm" and len(self.clusters.names) > 1
        asks = unknown or (crowded and slow)
        seeks = slow and not group.traffic.settled
        pids = self._pids(group) if asks or seeks else []
        if seeks:
            self.networks.find(group.traffic, pids[:_ASKED_PIDS], young=young)
        if group.traffic.pid:
            self.networks.read(group.traffic)
        if asks:
            # A group that is still being filled does not count as asked.
            group.asked += bool(pids) or not young
            self._ask(group, pids if crowded else pids[:_ASKED_PIDS])

    def _pids(self, group: Group) -> list[int]:
        return list_pids(group.cpu_folder or next(iter(group.folders), ""))

    def _ask(self, group: Group, pids: list[int]) -> None:
        """Find out from a group's processes what its files do not say."""
        if not group.unit.user:
            uid = find_uid((), pids, self.procfs)
            if uid is not None:
                group.unit = replace(group.unit, user=self.name(uid))
                self._counted = None
        if group.unit.source != "systemd" or self.ask:
            told = [read_environment(self.procfs, pid) for pid in pids]
            for each in told:
                group.environment.update(each)
            numbers = {find_job(each) for each in told} - {""}
            # One in whose job another was asked for has the number of that; Slurm will tell.
            if group.unit.sluid and group.unit.sluid not in self.numbers and len(numbers) == 1:
                self._number(group, numbers.pop())
            if group.unit.source == "slurm":
                self._see_clusters(group, told)
        for folder in self.means.layout.folders(group.path, "devices")[:1]:
            group.devices = read_or_empty(f"{folder}/devices.list").decode(errors="replace")

    def _see_clusters(self, group: Group, told: list[dict[str, str]]) -> None:
        """Find out whose job a group is: another cluster on this machine may have its number."""
        unit, named = group.unit, name_group(group.path)
        # What was started in a job may be told of another that it asked for.
        own = [each for each in told if find_job(each) == unit.job_id]
        group.clusters |= {find_cluster(each) for each in own} - {""}
        for cluster in group.clusters:
            self.clusters.learn("" if named is None else named.tree, cluster)
        if group.clusters and unit.cluster not in group.clusters:
            group.unit = replace(unit, cluster=min(group.clusters))
            self._counted = None
        if len(group.clusters) > 1:
            *others, last = sorted(group.clusters)
            self.means.problems.name(
                f"clusters {group.path}",
                f"the clusters {', '.join(others)} and {last} have a job {unit.job_id} in one "
                f"control group, {group.path}: the kernel counts them together, and all of it is "
                f"shown as {group.unit.cluster}'s; give the slurmd of each cluster a NodeName of "
                "its own (slurmd -N), or a container",
            )

    def _count_storage(self, group: Group) -> None:
        """Count by processes what the kernel does not: Slurm enables no controller for storage."""
        storage = self._storages.setdefault(group.path, GroupStorage())
        if storage.cpu_s != group.cpu_s:
            storage.cpu_s = group.cpu_s
            storage.count(self.procfs, self._pids(group))
            group.read_bytes, group.written_bytes = storage.read_bytes, storage.written_bytes

    def _number(self, group: Group, number: str) -> None:
        """Show a job by its number; what it is known by stays the name of its group."""
        if group.unit.job_id != number:
            group.unit = replace(group.unit, job_id=number)
            self._counted = None

    def _end(self, group: Group, now: float) -> None:
        group.end(now)
        self.networks.end(group.traffic)
        self._groups.pop(group.path, None)
        self._storages.pop(group.path, None)
        self.ended.append(group)
        self._counted = None

    def _holders(self) -> set[str]:
        """Return the groups that hold others."""
        return {above for path in self._groups for above in _above(path) if above in self._groups}


def _names_group(said: str) -> bool:
    """Return whether a file /proc/PID/cgroup names a job, a service or a container."""
    paths = [line.split(":", 2)[-1] for line in said.splitlines()]
    return any(name_group(each) is not None for path in paths for each in (path, *_above(path)))


def _above(path: str) -> Iterator[str]:
    """Yield the groups that a group is in."""
    above = path.rpartition("/")[0]
    while above:
        yield above
        above = above.rpartition("/")[0]


# What groups used that ended before they could be read again.
#
# When a group is removed, its counters go with it, and so would what it used since they were last
# read: all of a job that came and went between two ticks. But its ancestors keep counting what it
# used. What an ancestor counts beyond its living groups has grown by just what those that ended had
# used in all.

# How often a pool and its groups are read until nothing came in between: what they used meanwhile
# is little, or the reading took about as long as it keeps a CPU busy.
_TRIES = 4
_STEADY_S, _AT_ONCE_S = 0.005, 0.001


@dataclass(slots=True)
class Pools:
    """The outermost groups, which outlive those in them.

    Attributes:
        layout: Where the hierarchies are.
    """

    layout: Layout
    _rests_s: dict[str, float] = field(default_factory=dict, init=False)
    _counts_s: dict[str, float] = field(default_factory=dict, init=False)
    _is_new: bool = field(default=True, init=False)

    def look(self, living: Sequence[Group]) -> list[bytes]:
        """Return what the counters of groups say, read together with those of their pools.

        They go on while they are read, one after the other: the pools are read before and after
        them, and all of it again where the machine was too busy to let it be read at once.
        """
        pools = list({group.pool for group in living})
        best: list[bytes] = []
        least_s = math.inf
        for _ in range(_TRIES):
            clock, used = time.perf_counter(), time.thread_time()
            before_s = [self._read(pool) for pool in pools]
            said = [group.look() for group in living]
            after_s = [self._read(pool) for pool in pools]
            took_s = time.perf_counter() - clock
            each_s = list(zip(before_s, after_s, strict=True))
            # One that is not known is not greater than nothing.
            grown_s = math.fsum(max(0.0, after - before) for before, after in each_s)
            if grown_s < least_s:
                best, least_s = said, grown_s
                middle_s = [(before + after) / 2 for before, after in each_s]
                self._counts_s = dict(zip(pools, middle_s, strict=True))
            at_once = took_s < 2 * (time.thread_time() - used) + _AT_ONCE_S
            if at_once or least_s <= _STEADY_S:
                break
        return best

    def settle(
        self, living: Iterable[Group], ended: Iterable[Group], now: float, all_cpus: int
    ) -> None:
        """Give groups that ended what they used since they were last read.

        Args:
            living: The others, as they were read after the last look.
            now: Seconds by a clock that nobody sets.
            all_cpus: How many CPUs the node has: nobody can have used more.
        """
        sums_s: dict[str, float] = {}
        for group in living:
            if not math.isnan(group.cpu_s):
                sums_s[group.pool] = sums_s.get(group.pool, 0.0) + group.cpu_s
        counts_s, self._counts_s = self._counts_s, {}
        gone: dict[str, list[Group]] = {}
        for group in ended:
            if group.pool:
                gone.setdefault(group.pool, []).append(group)
        # At first also those without a group in them: they have counted others before.
        known = self._folders() if self._is_new else self._rests_s
        for pool in {*known, *sums_s, *gone}:
            counted_s = counts_s[pool] if pool in counts_s else self._read(pool)
            if math.isnan(counted_s):
                self._rests_s.pop(pool, None)
                continue
            rest_s = counted_s - sums_s.get(pool, 0.0)
            if pool in gone and not self._is_new:
                # One that came since the last time had counted nothing then.
                used_s = rest_s - self._rests_s.get(pool, 0.0)
                _share_out(used_s, gone[pool], now, all_cpus)
            self._rests_s[pool] = rest_s
        self._is_new = False

    def forget(self) -> None:
        """Begin anew, since groups count otherwise than before."""
        self._rests_s.clear()
        self._is_new = True

    def _folders(self) -> Iterator[str]:
        for folder in {place.folder for place in self.layout.cpu_places}:
            with suppress(OSError), os.scandir(folder) as entries:
                yield from [each.path for each in entries if each.is_dir()]

    def _read(self, pool: str) -> float:
        for place in self.layout.cpu_places:
            if pool.startswith(place.folder + "/"):
                try:
                    return place.parse(read_or_empty(f"{pool}/{place.file}"))[0]
                except NONSENSE:
                    continue
        return math.nan


def _share_out(used_s: float, ended: list[Group], now: float, all_cpus: int) -> None:
    """Share out what groups had used in all, by how busy each was when it was last read.

    What they would not have used at that goes to those of which nothing is known, where there are
    any: to jobs that came and went unread.
    """
    known_s = sum(0.0 if math.isnan(each.cpu_s) else each.cpu_s for each in ended)
    left_s = used_s - known_s
    if left_s <= 0:
        return
    unread_s = [each.unread_s for each in ended]
    unknown = [math.isnan(each.rate) for each in ended]
    expected_s = [
        0.0 if guess else each.rate * passed_s
        for each, guess, passed_s in zip(ended, unknown, unread_s, strict=True)
    ]
    # Nobody knows how many CPUs the others kept busy: one each.
    guessed_s = [passed_s * guess for guess, passed_s in zip(unknown, unread_s, strict=True)]
    beyond_s = left_s - sum(expected_s)
    if beyond_s > 0 and any(unknown):
        beyond = _divide(beyond_s, guessed_s, unknown)
        shares_s = [
            at_last_s + more_s for at_last_s, more_s in zip(expected_s, beyond, strict=True)
        ]
    else:
        weights_s = [known + guess for known, guess in zip(expected_s, guessed_s, strict=True)]
        shares_s = _divide(left_s, weights_s, [True] * len(ended))
    for each, share_s in zip(ended, shares_s, strict=True):
        read = each.began if math.isnan(each.cpu_read) else each.cpu_read
        before_s = 0.0 if math.isnan(each.cpu_s) else each.cpu_s
        each.cpu_s = before_s + min(share_s, (now - read) * all_cpus)


def _divide(whole_s: float, weights: list[float], takes: list[bool]) -> list[float]:
    """Return the parts of a whole by weight, or even ones for those that take where all are 0."""
    total = sum(weights)
    if total > 0:
        return [whole_s * weight / total for weight in weights]
    return [whole_s * each / sum(takes) for each in takes]
