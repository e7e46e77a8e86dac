"""How busy a machine is, from trees whose values are known."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from lowtide.meters import Roots
from lowtide.meters.usage import FEATURES, Counts, MachineUse, use_between

DISKS = """\
   8       0 sda 10 0 200 0 5 0 100 0 0 0 0
   8       1 sda1 10 0 200 0 5 0 100 0 0 0 0
 259       0 nvme0n1 10 0 1000 0 5 0 0 0 0 0 0
 253       0 dm-0 10 0 200 0 5 0 100 0 0 0 0
   7       0 loop0 10 0 99 0 5 0 99 0 0 0 0
"""


@pytest.fixture
def roots(tmp_path: Path) -> Roots:
    for name in ("sda", "nvme0n1", "dm-0", "loop0"):
        (tmp_path / "sys/block" / name).mkdir(parents=True)
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/stat").write_text("cpu 100 0 100 700 100 0 0 0 0 0\ncpu0 1\n")
    (tmp_path / "proc/meminfo").write_text("MemTotal: 1000 kB\nMemFree: 1 kB\nMemAvailable: 250 kB")
    (tmp_path / "proc/diskstats").write_text(DISKS)
    return Roots(sysfs=tmp_path / "sys", procfs=tmp_path / "proc")


def test_counters_are_read(roots: Roots) -> None:
    counts = MachineUse(roots=roots).look()
    assert (counts.cpu_ticks, counts.busy_ticks) == (1000, 200)
    assert counts.memory_share == 0.75
    # Partitions and what is made of disks are in the disks already.
    assert counts.disk_bytes == 512 * (200 + 100 + 1000)
    assert math.isnan(counts.gpu_share)


def test_only_what_is_asked_for_is_read(roots: Roots) -> None:
    counts = MachineUse(features=("memory",), roots=roots).look()
    assert counts.memory_share == 0.75
    assert math.isnan(counts.cpu_ticks)
    assert math.isnan(counts.disk_bytes)


def test_what_is_not_there_is_missing(tmp_path: Path) -> None:
    counts = MachineUse(roots=Roots(sysfs=tmp_path, procfs=tmp_path)).look()
    use = use_between(counts, counts)
    assert set(use) == set(FEATURES)
    assert all(math.isnan(value) for value in use.values())


def test_a_counter_that_falls_tells_nothing() -> None:
    before = Counts(time_s=0.0, disk_bytes=100.0)
    assert math.isnan(use_between(before, Counts(time_s=1.0, disk_bytes=50.0))["disk"])
