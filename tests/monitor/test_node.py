"""What the whole node uses."""

from __future__ import annotations

import math
import os
from pathlib import Path

import pytest

from lowtide.monitor.kernel_files import OpenFiles
from lowtide.monitor.node import NodeFiles
from support.trees import NODE, write


def read(root: Path) -> NodeFiles:
    return NodeFiles(root / "proc", root / "sys", OpenFiles(10))


def test_what_a_node_counts(tmp_path: Path) -> None:
    write(tmp_path, NODE)
    node = read(tmp_path)
    counts = node.read()
    assert counts.cpus == 80
    # user, nice, system, irq, softirq; not idle, iowait or stolen.
    assert counts.busy_s == pytest.approx(1530 / os.sysconf("SC_CLK_TCK"))
    assert counts.memory_bytes == 16e6 * 1024
    assert counts.available_bytes == 8e6 * 1024
    # The disk itself: neither its partition nor what is made of it.
    assert (counts.read_bytes, counts.written_bytes) == (4 * 512, 6 * 512)
    assert (counts.received_bytes, counts.sent_bytes) == (700, 300)
    assert counts.pressure_s == {"cpu": 2.0, "memory": 0.0, "io": 0.5}
    hertz = os.sysconf("SC_CLK_TCK")
    assert [round(hertz * spent_s) for spent_s in counts.mode_s.values()] == [
        *(1000, 200, 300, 90000, 50, 10, 20, 30)
    ]
    assert list(counts.mode_s)[3:5] == ["idle", "iowait"]
    assert node.boot == 1.7e9
    assert node.disks == {b"8:0"}
    node.close()


def test_what_is_not_there_is_not_known(tmp_path: Path) -> None:
    counts = read(tmp_path).read()
    assert counts.cpus == 0
    for value in (counts.busy_s, counts.memory_bytes, counts.read_bytes, counts.sent_bytes):
        assert math.isnan(value)
    assert counts.pressure_s == {}


def test_broken_files_are_not_known(tmp_path: Path) -> None:
    write(
        tmp_path,
        """
        proc/stat = cpu  1 2
        proc/meminfo = MemTotal:
        proc/diskstats = 8 0
        proc/net/dev = eth0: 5
        """,
    )
    counts = read(tmp_path).read()
    assert math.isnan(counts.busy_s)
    assert math.isnan(counts.memory_bytes)
    assert math.isnan(counts.received_bytes)
    assert math.isnan(counts.sent_bytes)


def test_sockets_are_numbered_in_order(tmp_path: Path) -> None:
    for cpu, package in enumerate((3, 0, 3)):
        where = f"sys/devices/system/cpu/cpu{cpu}/topology/physical_package_id"
        write(tmp_path, f"{where} = {package}")
    assert read(tmp_path).sockets == {0: 1, 1: 0, 2: 1}


def test_threads_of_a_core_are_known_where_the_kernel_says_so(tmp_path: Path) -> None:
    assert math.isnan(read(tmp_path).read().threads_per_core)
    for cpu in range(8):
        where = f"sys/devices/system/cpu/cpu{cpu}/topology"
        write(tmp_path, f"{where}/core_cpus_list = {cpu % 4},{cpu % 4 + 4}")
    assert read(tmp_path).read().threads_per_core == 2
