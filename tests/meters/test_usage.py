"""How busy a machine is, from trees whose values are known."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from lowtide.meters import Roots
from lowtide.meters.estimate import FEATURES, Counts, MachineUse, use_between
from lowtide.monitor.kernel_files import OpenFiles
from lowtide.monitor.node import NodeFiles
from lowtide.monitor.processes import TICKS_PER_S

DISKS = """\
   8       0 sda 10 0 200 0 5 0 100 0 0 0 0
   8       1 sda1 10 0 200 0 5 0 100 0 0 0 0
 259       0 nvme0n1 10 0 1000 0 5 0 0 0 0 0 0
 253       0 dm-0 10 0 200 0 5 0 100 0 0 0 0
   7       0 loop0 10 0 99 0 5 0 99 0 0 0 0
"""


@pytest.fixture
def roots(tmp_path: Path) -> Roots:
    for name, number in {"sda": "8:0", "nvme0n1": "259:0", "dm-0": "253:0", "loop0": "7:0"}.items():
        folder = tmp_path / "sys/block" / name
        # What is made of other disks, or of files, has no device of its own.
        (folder if name in ("dm-0", "loop0") else folder / "device").mkdir(parents=True)
        (folder / "dev").write_text(f"{number}\n")
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/stat").write_text("cpu 100 0 100 700 100 0 0 0 0 0\ncpu0 1\n")
    (tmp_path / "proc/meminfo").write_text("MemTotal: 1000 kB\nMemFree: 1 kB\nMemAvailable: 250 kB")
    (tmp_path / "proc/diskstats").write_text(DISKS)
    return Roots(sysfs=tmp_path / "sys", procfs=tmp_path / "proc")


def test_counters_are_read(roots: Roots) -> None:
    counts = MachineUse(roots=roots).look()
    assert (counts.cpu_s * TICKS_PER_S, counts.busy_s * TICKS_PER_S) == (1000, 200)
    assert counts.memory_share == 0.75
    # Partitions and what is made of disks are in the disks already.
    assert counts.disk_bytes == 512 * (200 + 100 + 1000)
    assert math.isnan(counts.gpu_share)


def test_time_that_the_hypervisor_took_is_not_use(roots: Roots) -> None:
    before = MachineUse(features=("cpu",), roots=roots).look()
    (roots.procfs / "stat").write_text("cpu 200 0 100 700 100 0 0 300 0 0\ncpu0 1\n")
    after = MachineUse(features=("cpu",), roots=roots).look()
    assert use_between(before, after)["cpu"] == pytest.approx(100 / 400)
    watched = NodeFiles(roots.procfs, roots.sysfs, OpenFiles(10)).read()
    assert watched.busy_s == after.busy_s


def test_only_what_is_asked_for_is_read(roots: Roots) -> None:
    counts = MachineUse(features=("memory",), roots=roots).look()
    assert counts.memory_share == 0.75
    assert math.isnan(counts.cpu_s)
    assert math.isnan(counts.disk_bytes)


def test_what_is_not_there_is_missing(tmp_path: Path) -> None:
    counts = MachineUse(roots=Roots(sysfs=tmp_path, procfs=tmp_path)).look()
    use = use_between(counts, counts)
    assert set(use) == set(FEATURES)
    assert all(math.isnan(value) for value in use.values())


def test_a_counter_that_falls_tells_nothing() -> None:
    before = Counts(time_s=0.0, disk_bytes=100.0)
    assert math.isnan(use_between(before, Counts(time_s=1.0, disk_bytes=50.0))["disk"])
