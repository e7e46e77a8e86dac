"""One pass over everything that a node counts: control groups, processes, GPUs, the node itself."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Self

import numpy as np

from lowtide.files import read_or_empty
from lowtide.monitor.cgroups import Layout, find_hierarchies
from lowtide.monitor.columns import Columns, Jobs
from lowtide.monitor.gpus import (
    GpuReading,
    GpuSource,
    cards_on_bus,
    count_unread,
    hold,
    match_devices,
    match_gpus,
)
from lowtide.monitor.group import Group, Means
from lowtide.monitor.group_table import GroupTable
from lowtide.monitor.group_tree import GroupTree
from lowtide.monitor.kernel_files import Clock, Moment, OpenFiles, Problems, are_kernels, since_boot
from lowtide.monitor.node import Networks, NodeFiles
from lowtide.monitor.owners import Clusters, UserNames
from lowtide.monitor.process_table import ProcessTable
from lowtide.monitor.process_units import ProcessUnit
from lowtide.monitor.snapshot import Snapshot

# How soon to look again: processes that end in less time may be missed.
LOOK_S = 1.0
# And how soon where a job has just come, and what is kept for it is not known yet.
SOON_S = 0.2


class NodeReader:
    """Reads a node, again and again, at little cost.

    What ended since the last reading is in one more snapshot, with no processes, with the memory
    that it held when it was last read, and with all that it used in the end.

    Attributes:
        problems: What could not be read; `problems.rejected` counts readings without sense.
        cards: The GPUs on the PCI bus, read or not; None where nobody can tell.
    """

    def __init__(
        self,
        *,
        procfs: Path = Path("/proc"),
        sysfs: Path = Path("/sys"),
        cgroupfs: Path = Path("/sys/fs/cgroup"),
        gpus: GpuSource | None = None,
        name: Callable[[int], str] | None = None,
        nodes: Collection[str] = (),
    ) -> None:
        """Find what there is to read.

        Args:
            gpus: The GPUs; None to leave them out.
            name: Finds the name of a user; None to ask the system.
            nodes: What Slurm calls this node, or nodes that are on this machine.
        """
        hierarchies = find_hierarchies(cgroupfs)
        places = (str(procfs), *(each.folder for each in hierarchies))
        files = OpenFiles(replaced=not are_kernels(places))
        self.problems = Problems()
        self.cards = cards_on_bus(sysfs)
        self._gpus = gpus
        self._procfs = str(procfs)
        self._node = NodeFiles(procfs, sysfs, files, self.problems)
        layout = Layout(hierarchies)
        networks = Networks(self._procfs, self.problems)
        boot, name = self._node.boot, name or UserNames()
        clusters = Clusters(self._procfs)
        self._groups = GroupTable(
            tree=GroupTree(layout=layout, problems=self.problems),
            means=Means(layout, files, self.problems, disks=self._node.disks),
            networks=networks,
            procfs=self._procfs,
            boot=boot,
            name=name,
            clusters=clusters,
            ask=gpus is not None,
        )
        self._processes = ProcessTable(
            procfs=self._procfs,
            boot=boot,
            home=self._groups.home,
            name=name,
            networks=networks,
            problems=self.problems,
            clusters=clusters,
            nodes=nodes,
        )
        self._clock = Clock()
        self._jobs = Jobs(self.problems)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def events(self) -> int:
        """A file descriptor for `select`: readable when a group came, went or emptied; or -1.

        Call `look` then.
        """
        return self._groups.tree.changes.events

    def number_jobs(self, numbers: Mapping[str, str]) -> None:
        """Be told the numbers of jobs whose groups have other names, from the next reading on.

        Args:
            numbers: The number for each SLUID.
        """
        self._groups.numbers = numbers

    def look(self) -> float:
        """Look at what has just come and what is about to go, at hardly any cost.

        Returns:
            After how many seconds to look again, unless `events` or the next reading is earlier.
        """
        now = since_boot()
        self._groups.follow(now)
        soon = self._groups.read_young(now)
        # Nothing tells of processes that come and go, so that somebody has to ask.
        if self._processes.has_new(now) or self._processes.units:
            self._processes.look(now, only_young=True)
        return SOON_S if soon else LOOK_S

    def read(self) -> Snapshot:
        """Return what everything has used so far and holds now."""
        moment = self._clock.look()
        now = moment.since_boot
        self._groups.ahead_s = self._processes.ahead_s = moment.ahead_s
        if moment.stepped_s:
            self._set_clock(moment)
        node = self._node.read()
        self._groups.means.all_cpus = node.cpus
        self._processes.memory_bytes = node.memory_bytes
        self._groups.follow(now)
        self._groups.read(now)
        self._processes.look(now)
        self._processes.read_traffic()
        readings = self._gpus.read() if self._gpus is not None else ()
        for told in (each for gpu in readings for each in gpu.rejected):
            self.problems.reject(told, f"{told}; left out")
        # Whoever is on a GPU matters, however little else it does.
        on_gpus = {
            each.pid: self._of_pid(each.pid) for gpu in readings for each in gpu.processes or ()
        }
        rows: list[Group | ProcessUnit] = [*self._groups.settle(now)]
        rows += [each for each in self._processes.ended if each.shown]
        self._processes.ended = []
        rows = [
            *self._groups.counted(),
            *(each for each in self._processes.units.values() if each.shown),
            *rows,
        ]
        columns = Columns(rows, self._jobs)
        ended_at = columns.ended_at()
        place_of = {id(row): place for row, place in zip(rows, columns.places, strict=True)}
        return Snapshot(
            time=moment.time,
            clock_s=now,
            node=node,
            units=tuple(columns.units),
            **columns.all(),
            gpus=hold(
                readings,
                lambda pid: place_of.get(id(on_gpus[pid])),
                _given(rows, columns.places, readings),
            ),
            gpus_unread=count_unread(self.cards, (gpu.name for gpu in readings)),
            socket_shares=columns.socket_shares(self._node.sockets),
            loose=columns.loose,
            ended=None if ended_at is None else moment.time - np.maximum(now - ended_at, 0.0),
            rejected=self.problems.rejected,
            problems=self.problems.take(),
        )

    def close(self) -> None:
        """Let go of all files."""
        self._groups.close()
        self._node.close()
        if self._gpus is not None:
            self._gpus.close()

    def _of_pid(self, pid: int) -> Group | ProcessUnit | None:
        said = read_or_empty(f"{self._procfs}/{pid}/cgroup").decode(errors="replace")
        group = self._groups.home(said)
        return group if group is not None and group.counts_itself else self._processes.of_pid(pid)

    def _set_clock(self, moment: Moment) -> None:
        """Go by the clock on the wall after it was set."""
        off_s = moment.stepped_s
        self._groups.set_clock(off_s, moment.since_boot)
        self._processes.set_clock(off_s)
        told = (
            "that time is left out" if off_s > 0 else "what comes now may bear the same times again"
        )
        self.problems.name(
            f"clock {off_s:.0f}",
            f"the clock was set by {off_s:+.0f} s: times follow it, and {told}; what was used is "
            "counted by a clock that nobody sets",
        )


def _given(
    rows: Sequence[Group | ProcessUnit], places: Sequence[int], readings: Sequence[GpuReading]
) -> dict[str, list[int]]:
    """Return for each GPU the units that it was given to, by environment or by devices."""
    given: dict[str, list[int]] = {}
    used = [
        each
        for each in readings
        if (bool(each.processes) if math.isnan(each.busy) else each.busy > 0)
    ]
    for row, place in zip(rows, places, strict=True) if readings else ():
        # The environment of a container names its GPUs to every shell in it, so that an idle one is
        # no process group's.
        may_have = used if row.unit.source == "process" else readings
        names = match_gpus(row.gpus, may_have) or match_devices(row.devices, readings)
        for each in names:
            given.setdefault(each, []).append(place)
    return given
