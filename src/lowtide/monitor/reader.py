"""One pass over everything that a node counts: control groups, processes, GPUs, the node itself."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from lowtide.files import read_or_empty
from lowtide.monitor.cgroups import Layout, find_hierarchies
from lowtide.monitor.columns import Columns
from lowtide.monitor.gpus import GpuReading, GpuSource, hold, match_devices, match_gpus
from lowtide.monitor.group_counts import Group, Means
from lowtide.monitor.group_table import GroupTable
from lowtide.monitor.group_tree import GroupTree
from lowtide.monitor.kernel_files import OpenFiles, Problems
from lowtide.monitor.node import NodeFiles
from lowtide.monitor.owners import UserNames
from lowtide.monitor.process_table import ProcessTable
from lowtide.monitor.process_units import ProcessUnit
from lowtide.monitor.snapshot import Snapshot

# How soon to look again while something young is there.
LOOK_S = 1.0
_STEPPED_S = 1.0


class NodeReader:
    """Reads a node, again and again, at little cost.

    What ended since the last reading is in one more snapshot, with no processes and no memory, and
    with all that it used in the end.

    Attributes:
        problems: What could not be read; `problems.rejected` counts readings without sense.
    """

    def __init__(
        self,
        *,
        procfs: Path = Path("/proc"),
        sysfs: Path = Path("/sys"),
        cgroupfs: Path = Path("/sys/fs/cgroup"),
        gpus: GpuSource | None = None,
        name: Callable[[int], str] | None = None,
    ) -> None:
        """Find what there is to read.

        Args:
            procfs: Where /proc is.
            sysfs: Where /sys is.
            cgroupfs: Where the control groups are.
            gpus: The GPUs; None to leave them out.
            name: Finds the name of a user; None to ask the system.
        """
        files = OpenFiles()
        self.problems = Problems()
        self._gpus = gpus
        self._procfs = str(procfs)
        self._node = NodeFiles(procfs, sysfs, files)
        layout = Layout(find_hierarchies(cgroupfs))
        boot, name = self._node.boot, name or UserNames()
        self._groups = GroupTable(
            tree=GroupTree(layout=layout, problems=self.problems),
            means=Means(layout, files, self.problems, disks=self._node.disks),
            procfs=self._procfs,
            boot=boot,
            name=name,
            ask=gpus is not None,
        )
        self._processes = ProcessTable(
            procfs=self._procfs,
            boot=boot,
            home=self._groups.home,
            name=name,
            problems=self.problems,
        )
        self._epoch = time.time() - _since_boot()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        where: TracebackType | None,
    ) -> None:
        self.close()

    @property
    def events(self) -> int:
        """A file descriptor for `select`: readable when a group came, went or emptied; or -1.

        Call `look` then.
        """
        return self._groups.tree.changes.events

    def look(self) -> float | None:
        """Look at what has just come and what is about to go, at hardly any cost.

        Returns:
            After how many seconds to look again, unless `events` or the next reading is earlier;
            None if there is no need.
        """
        now = _since_boot()
        self._groups.follow(now)
        young = self._groups.read_young(now)
        if self._processes.units:
            self._processes.look(now, only_young=True)
        return LOOK_S if young or self._processes.units else None

    def read(self) -> Snapshot:
        """Return what everything has used so far and holds now."""
        now = _since_boot()
        node = self._node.read()
        self._groups.means.all_cpus = node.cpus
        self._processes.memory_bytes = node.memory_bytes
        self._groups.follow(now)
        self._groups.read(now)
        self._processes.look(now)
        self._processes.read_storage()
        readings = self._gpus.read() if self._gpus is not None else ()
        # Whoever is on a GPU matters, however little else it does.
        on_gpus = {each.pid: self._of_pid(each.pid) for gpu in readings for each in gpu.processes}
        rows: list[Group | ProcessUnit] = [*self._groups.settle(now)]
        rows += self._processes.ended
        self._processes.ended = []
        rows = [
            *self._groups.counted(),
            *(each for each in self._processes.units.values() if each.shown),
            *rows,
        ]
        columns = Columns(rows)
        place_of = {id(row): place for row, place in zip(rows, columns.places, strict=True)}
        self._check_clock(now)
        return Snapshot(
            time=self._epoch + now,
            node=node,
            units=tuple(columns.units),
            cpu_s=columns.column("cpu_s"),
            memory_bytes=columns.column("memory_bytes"),
            read_bytes=columns.column("read_bytes"),
            written_bytes=columns.column("written_bytes"),
            processes=columns.column("processes"),
            reserved_cpus=columns.column("reserved_cpus"),
            reserved_bytes=columns.column("reserved_bytes"),
            gpus=hold(
                readings,
                lambda pid: place_of.get(id(on_gpus[pid])),
                _given(rows, columns.places, readings),
            ),
            socket_shares=columns.socket_shares(self._node.sockets),
            pressure_s=columns.pressures(),
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

    def _check_clock(self, now: float) -> None:
        off_s = time.time() - self._epoch - now
        if abs(off_s) > _STEPPED_S:
            self.problems.name(
                "clock",
                f"the clock was set by {off_s:+.0f} s: times go on by the old one until the next "
                "start, so that no interval is too long or too short",
            )


def _given(
    rows: Sequence[Group | ProcessUnit], places: Sequence[int], readings: Sequence[GpuReading]
) -> dict[str, list[int]]:
    """Return for each GPU the units that it was given to, by environment or by devices."""
    given: dict[str, list[int]] = {}
    for row, place in zip(rows, places, strict=True) if readings else ():
        names = match_gpus(row.gpus, readings) or match_devices(row.devices, readings)
        for each in names:
            given.setdefault(each, []).append(place)
    return given


def _since_boot() -> float:
    """Return seconds by a clock that nobody sets, and that goes on while the node sleeps."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)
