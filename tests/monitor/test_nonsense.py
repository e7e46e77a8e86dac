"""Whatever the files of a node say, a reading ends well: what makes no sense is left out."""

from __future__ import annotations

import shutil
import tempfile
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lowtide.monitor.reader import NodeReader
from lowtide.monitor.snapshot import Snapshot
from support.nightly import drawn
from support.trees import (
    CONTAINER,
    NODE,
    write,
    write_group,
    write_legacy,
    write_process,
    write_unified,
)

JUNK = (
    *(b"", b"\n", b"-1\n", b"nan\n", b"inf\n", b"max\n", b"1e5\n", b"0x10\n", b"\xff\xfe\0\n"),
    *(b"9" * 31 + b"\n", b"9" * 400 + b"\n", b"9" * 5000 + b"\n", "١٢\n".encode(), "²\n".encode()),
    *(b"usage_usec\n", b"usage_usec x\n", b"usage_usec -5\n", b"usage_usec " + b"9" * 400 + b"\n"),
    *(
        b"some total=\n",
        b"some total=-1\n",
        b"total=1\n",
        b"8:0\n",
        b"8:0 rbytes=x\n",
        b"a:b:c:d\n",
    ),
    *(b"0-\n", b"-\n", b"5-1\n", b"1-5:1/0\n", b"0-99999999999\n", b"0-6:x/2\n", b"0 0\n"),
    *(b"cpu\n", b"cpu x y z a b c d\n", b"cpu  1 2 3\n", b"cpu " + b"9" * 400 + b" 1 1 1 1 1 1\n"),
    *(b"btime x\n", b"cpu  1 1 1 1 1 1 1\nbtime nan\n", b"MemTotal:\n", b"MemTotal: x kB\n"),
    *(
        b" eth0: x 0 0 0 0 0 0 0 y 0\n",
        b"eth0: 5\n",
        b":\n",
        b"8 0 sda\n",
        b"8 0 sda 1 0 x 0 1 0 y\n",
    ),
    *(b"(((\n", b")(\n", b"1 (a) S\n", b"read_bytes: 1: 2\nwrite_bytes\n", b"read_bytes: nan\n"),
    b"5 (x) S 1 1 1 0 -1 4 0 0 0 0 x 0 0 0 20 0 1 0 1 0 1\n",
    b"5 (x) S 1 1 1 0 -1 4 0 0 0 0 " + b"9" * 400 + b" 0 0 0 20 0 1 0 1 0 1\n",
    b"SLURM_JOB_ID=\xc2\xb2\0SLURM_CPUS_ON_NODE=\xc2\xb2\0",
    b"SLURM_JOB_ID=9\0SLURM_JOB_GPUS=0-99999999999\0",
)


def build(root: Path) -> None:
    """Write a node of both versions of control groups, with processes inside and outside."""
    write(root, NODE)
    for number in range(2):
        where = f"sys/devices/system/cpu/cpu{number}/topology/physical_package_id"
        write(root, f"{where} = {number}")
    write(root, "sys/class/net/eth0/device/vendor = 1\nproc/loadavg = 0.1 0.1 0.1 1/2 80")
    two = write_unified(root / "cgroup/unified")
    job = write_group(two / "system.slice/slurmstepd.scope/job_1", cgroup_procs="70\n")
    write(job, "cpu.max = 100000 100000")
    write_group(two / f"docker/{CONTAINER}", cgroup_procs="71\n")
    write_legacy(root / "cgroup", "/slurm/uid_5/job_3", procs="72")
    proc = root / "proc"
    for pid, cgroup in ((1, "0::/"), (70, "0::/system.slice/slurmstepd.scope/job_1"), (80, "0::/")):
        write_process(proc, pid, cgroup=cgroup, cpu_s=50.0, environment={"SLURM_JOB_ID": "9"})
    write_process(proc, 71, cgroup=f"0::/docker/{CONTAINER}", cpu_s=5.0)
    for pid, space in ((1, 1), (71, 2)):
        write(proc / str(pid), "net/dev = eth0: 1 0 0 0 0 0 0 0 1 0")
        (proc / str(pid) / "ns").mkdir()
        (proc / str(pid) / "ns/net").symlink_to(f"net:[{space}]")


def sane(shot: Snapshot) -> None:
    """Columns fit, and nothing in them is negative or without end."""
    columns = [shot.cpu_s, shot.memory_bytes, shot.read_bytes, shot.written_bytes, shot.processes]
    columns += [shot.reserved_cpus, shot.reserved_bytes]
    columns += [each for each in (shot.received_bytes, shot.sent_bytes) if each is not None]
    for column in columns:
        assert column.shape == (len(shot.units),)
        known = column[~np.isnan(column)]
        assert (known >= 0).all()
        assert (known < np.inf).all()
    assert 0 <= shot.node.cpus < 100_000
    assert not shot.node.busy_s < 0
    assert shot.rejected >= 0
    assert len({unit.key for unit in shot.units}) == len(shot.units)


@settings(max_examples=drawn(20, 400))
@given(
    turns=st.lists(
        st.lists(
            st.tuples(
                st.integers(0, 10**6),
                st.sampled_from(["junk", "junk", "junk", "cut", "gone", "renamed", "folder"]),
                st.sampled_from(JUNK) | st.binary(max_size=40),
            ),
            min_size=1,
            max_size=5,
        ),
        min_size=1,
        max_size=4,
    ),
    early=st.booleans(),
)
def test_no_file_ends_a_reading(turns: list[list[tuple[int, str, bytes]]], early: bool) -> None:
    with tempfile.TemporaryDirectory() as place:
        root = Path(place)
        build(root)
        files = sorted(each for each in root.rglob("*") if each.is_file())
        reader = None
        try:
            if not early:
                reader = read_at(root)
                sane(reader.read())
            for turn in turns:
                for number, how, junk in turn:
                    spoil(files[number % len(files)], how, junk)
                reader = reader or read_at(root)
                reader.look()
                sane(reader.read())
        finally:
            if reader is not None:
                reader.close()


def read_at(root: Path) -> NodeReader:
    return NodeReader(procfs=root / "proc", sysfs=root / "sys", cgroupfs=root / "cgroup", name=str)


def spoil(file: Path, how: str, junk: bytes) -> None:
    """Make a file say something else, or be something else."""
    if not file.is_file():
        return
    if how == "junk":
        file.write_bytes(junk)
    elif how == "cut":
        said = file.read_bytes()
        file.write_bytes(said[: len(said) // 2])
    elif how == "gone":
        shutil.rmtree(file.parent)
    elif how == "renamed":
        other = file.with_name("other")
        other.write_bytes(junk)
        other.replace(file)
    else:
        file.unlink()
        file.mkdir()


@pytest.mark.parametrize("early", [False, True])
def test_all_files_say_the_same_nonsense(tmp_path: Path, early: bool) -> None:
    build(tmp_path)
    files = sorted(each for each in tmp_path.rglob("*") if each.is_file())
    said = {file: file.read_bytes() for file in files}
    for junk in JUNK:
        with ExitStack() as stack:
            if not early:
                reader = stack.enter_context(read_at(tmp_path))
                sane(reader.read())
            for file in files:
                file.write_bytes(junk)
            if early:
                reader = stack.enter_context(read_at(tmp_path))
            sane(reader.read())
            for file in files:
                file.write_bytes(said[file])
            shot = reader.read()
            sane(shot)
            assert {unit.job_id for unit in shot.units} >= {"1", "3", CONTAINER[:12]}
            assert shot.cpu_s.max() == 60491.070351
