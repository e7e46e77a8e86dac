"""A node read as a whole, on trees whose values are known."""

from __future__ import annotations

import math
import os
import select
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lowtide.monitor import kernel_files, reader
from lowtide.monitor.cgroups import find_value
from lowtide.monitor.gpus import GpuReading, GpuSource
from lowtide.monitor.group import Group
from lowtide.monitor.reader import NodeReader
from lowtide.monitor.snapshot import Snapshot
from support.needs import is_missing
from support.nightly import drawn
from support.trees import (
    CONTAINER,
    NODE,
    cpu,
    write,
    write_group,
    write_legacy,
    write_process,
    write_unified,
)

pytestmark = pytest.mark.alone

SCOPE = "system.slice/slurmstepd.scope"
# When the node of `NODE` was started.
BOOT = 1.7e9


@pytest.fixture
def root(tmp_path: Path) -> Path:
    write(tmp_path, NODE)
    return tmp_path


@pytest.fixture
def two(root: Path) -> Path:
    """The root of version 2."""
    return write_unified(root / "cgroup")


def read_at(root: Path, gpus: GpuSource | None = None) -> NodeReader:
    places = {"procfs": root / "proc", "sysfs": root / "sys", "cgroupfs": root / "cgroup"}
    return NodeReader(**places, name=str, gpus=gpus)  # type: ignore[arg-type]


def table(snapshot: Snapshot, column: str = "cpu_s") -> dict[str, float]:
    values = getattr(snapshot, column)
    assert len(values) == len(snapshot.units)
    return {unit.job_id: value for unit, value in zip(snapshot.units, values, strict=True)}


def test_a_job_of_version_2(root: Path, two: Path) -> None:
    folder = write_group(two / SCOPE / "job_4711")
    write_group(folder / "step_0")
    os.utime(folder, (1.7e9, 1.7e9))
    uid = 1000 if os.getuid() == 0 else os.getuid()
    os.chown(folder, uid, -1)
    with read_at(root) as node:
        snapshot = node.read()
    (unit,) = snapshot.units
    assert (unit.source, unit.job_id, unit.started, unit.user) == ("slurm", "4711", 1.7e9, str(uid))
    assert snapshot.cpu_s == [60491.070351]
    assert snapshot.memory_bytes == [4111491072 - 8192000]
    assert snapshot.read_bytes == [1000]
    assert snapshot.written_bytes == [2000]
    assert snapshot.processes == [5]
    assert snapshot.reserved_cpus == [2]
    assert snapshot.reserved_bytes == [4294967296]
    waits = (snapshot.cpu_wait_s, snapshot.memory_wait_s, snapshot.io_wait_s)
    assert waits == ([1.5], [0.0], [0.25])
    assert snapshot.major_faults == [12]
    assert snapshot.problems == ()
    assert abs(snapshot.time - time.time()) < 60


def test_a_job_of_version_1(root: Path) -> None:
    path = "/slurm_n1/uid_1000/job_12"
    write_legacy(root / "cgroup", path, usage_s=60375.292848, cpus="1,41")
    write_legacy(root / "cgroup", f"{path}/step_0", usage_s=60000.0)
    with read_at(root) as node:
        snapshot = node.read()
    (unit,) = snapshot.units
    assert (unit.source, unit.job_id, unit.user) == ("slurm", "12", "1000")
    assert snapshot.cpu_s == [60375.292848]
    assert snapshot.memory_bytes == [4000000]
    assert snapshot.major_faults == [34]
    assert (snapshot.read_bytes, snapshot.written_bytes) == ([30], [40])
    assert snapshot.reserved_cpus == [2]
    assert np.isnan(snapshot.reserved_bytes).all()


def test_a_node_of_both_versions(root: Path) -> None:
    # Services are in version 2 without controllers, jobs in version 1.
    write_legacy(root / "cgroup", "/slurm/uid_5/job_3", usage_s=7.0)
    write_unified(root / "cgroup/unified")
    write(root / "cgroup/unified", "system.slice/web.service/cpu.stat = usage_usec 4000000")
    # To version 2, the job's processes are still those of slurmd.
    write(root / "cgroup/unified", "system.slice/slurmd.service/cpu.stat = usage_usec 9000000")
    lines = "2:cpuacct:/slurm/uid_5/job_3/step_0\n0::/system.slice/slurmd.service"
    write_process(root / "proc", 50, cgroup=lines)
    with read_at(root) as node:
        found = table(node.read())
    assert found == {"3": 7.0, "web.service": 4.0}


def test_all_kinds_stand_beside_each_other_and_nothing_counts_twice(root: Path, two: Path) -> None:
    write_group(two / SCOPE / "job_1" / "step_batch", cpu_stat=cpu(10))
    write_group(two / SCOPE / "job_1", cpu_stat=cpu(10))
    write_group(two / SCOPE, cpu_stat=cpu(10))
    write_group(two / "system.slice/nginx.service", cpu_stat=cpu(2))
    write_group(two / f"system.slice/docker-{CONTAINER}.scope", cpu_stat=cpu(3))
    # A container with a system of its own inside, and a service that holds a container.
    write_group(two / f"system.slice/docker-{CONTAINER}.scope/init.scope", cpu_stat=cpu(3))
    other = "ab" * 32
    write_group(two / "system.slice/k3s.service", cpu_stat=cpu(50))
    write_group(two / f"system.slice/k3s.service/kubepods/pod12345678/{other}", cpu_stat=cpu(40))
    user = two / "user.slice/user-7.slice"
    write_group(user / "user@7.service", cpu_stat=cpu(5))
    write_group(user / "user@7.service/app.slice/vi.scope", cpu_stat=cpu(4))
    write_group(user / "session-2.scope", cpu_stat=cpu(1))
    write_group(two / "system.slice", cpu_stat=cpu(65))
    with read_at(root) as node:
        snapshot = node.read()
    assert table(snapshot) == {
        "1": 10.0,
        "nginx.service": 2.0,
        CONTAINER[:12]: 3.0,
        other[:12]: 40.0,
        "user@7.service/vi.scope": 4.0,
        "session-2.scope": 1.0,
    }
    assert {unit.job_id: unit.user for unit in snapshot.units}["session-2.scope"] == "7"


NAMES = (
    *("system.slice", "user.slice", "slurmstepd.scope", "uid_5", "plain"),
    *("job_1", "job_2", "a.service", "b.scope", "c.service", "ab" * 32, "cd" * 32),
)
PATHS = st.lists(st.sampled_from(NAMES), min_size=1, max_size=5).map("/".join)


@settings(max_examples=drawn(20, 400), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(own=st.dictionaries(PATHS, st.integers(0, 1000), max_size=25))
def test_units_and_the_rest_make_the_root(own: dict[str, int]) -> None:
    """What was used in each folder is one unit's or the rest's, whatever the tree."""
    folders = {path.rsplit("/", cuts)[0] for path in own for cuts in range(path.count("/") + 1)}
    with tempfile.TemporaryDirectory() as place:
        root = Path(place)
        write(root, NODE)
        two = write_unified(root / "cgroup")
        for folder in folders:
            used = sum(each for path, each in own.items() if f"{path}/".startswith(f"{folder}/"))
            write(two / folder, f"cpu.stat = usage_usec {used}000000")
        with read_at(root) as node:
            snapshot = node.read()
    rest = sum(used for path, used in own.items() if not _is_charged(path, folders))
    units = snapshot.cpu_s.sum() if len(snapshot.units) else 0.0
    assert units + rest == sum(own.values())


def _is_charged(path: str, folders: set[str]) -> bool:
    """The rule in other words: inside a job or container, or a service that holds no unit."""
    parts = path.split("/")
    for depth in range(1, len(parts) + 1):
        last, above = parts[depth - 1], parts[depth - 2] if depth > 1 else ""
        if len(last) == 64 or (last.startswith("job_") and above in ("uid_5", "slurmstepd.scope")):
            return True
        here = "/".join(parts[:depth])
        if last in ("a.service", "b.scope", "c.service") and not any(
            _is_unit(each) for each in folders if each.startswith(f"{here}/")
        ):
            return True
    return False


def _is_unit(path: str) -> bool:
    parts = ["", *path.split("/")]
    return (
        len(parts[-1]) == 64
        or parts[-1] in ("a.service", "b.scope", "c.service")
        or (parts[-1].startswith("job_") and parts[-2] in ("uid_5", "slurmstepd.scope"))
    )


def test_a_job_that_vanishes_is_seen_once_more_with_what_it_used(root: Path, two: Path) -> None:
    job = write_group(two / SCOPE / "job_1", cpu_stat=cpu(10))
    write_group(two / SCOPE / "job_2", cpu_stat=cpu(5))
    write_group(two / "system.slice", cpu_stat=cpu(15))
    with read_at(root) as node:
        node.read()
        # It used 4 s more, of which nobody read; its ancestor knows.
        shutil.rmtree(job)
        write_group(two / "system.slice", cpu_stat=cpu(20))
        write_group(two / SCOPE / "job_2", cpu_stat=cpu(6))
        time.sleep(0.06)  # 80 CPUs can use 4 s in this
        snapshot = node.read()
        assert table(snapshot) == {"2": 6.0, "1": pytest.approx(14.0)}
        assert table(snapshot, "processes")["1"] == 0
        # What it held when it was last read, which is all that anybody knows.
        assert table(snapshot, "memory_bytes")["1"] == 4111491072 - 8192000
        assert table(node.read()) == {"2": 6.0}


def test_a_job_that_ended_says_when(root: Path, two: Path) -> None:
    job = write_group(two / SCOPE / "job_1", cpu_stat=cpu(10))
    write_group(two / SCOPE / "job_2", cpu_stat=cpu(5))
    with read_at(root) as node:
        assert node.read().ended is None
        shutil.rmtree(job)
        gone = time.time()
        node.look()
        time.sleep(0.2)
        snapshot = node.read()
        ended = table(snapshot, "ended")
        assert math.isnan(ended["2"])
        assert ended["1"] == pytest.approx(gone, abs=0.1)
        assert ended["1"] < snapshot.time - 0.15
        assert node.read().ended is None


def test_a_short_job_held_what_was_read_while_it_ran(root: Path, two: Path) -> None:
    write_group(two / SCOPE)
    with read_at(root) as node:
        node.read()
        job = write_group(two / SCOPE / "job_1", cpu_stat=cpu(1))
        write_group(two / SCOPE / "job_2", cpu_stat=cpu(1))
        shutil.rmtree(two / SCOPE / "job_2")
        (two / "system.slice/cpu.stat").write_text(cpu(3))
        node.look()
        # It is empty before it is removed.
        write_group(job, cpu_stat=cpu(2), memory_current="8192000")
        (job / "cgroup.events").write_text("populated 0\nfrozen 0\n")
        node.look()
        shutil.rmtree(job)
        held = table(node.read(), "memory_bytes")
    assert held["1"] == 4111491072 - 8192000
    assert math.isnan(held["2"])


@pytest.fixture
def wait(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Let time pass at once; nothing else makes it pass."""
    wall, boot = [time.time()], [1000.0]
    monkeypatch.setattr("lowtide.monitor.kernel_files.time.time", lambda: wall[0])
    monkeypatch.setattr("lowtide.monitor.kernel_files.since_boot", lambda: boot[0])

    def passing(passed_s: float) -> None:
        wall[0] += passed_s
        boot[0] += passed_s

    return passing


def test_a_job_that_nobody_saw_takes_what_no_other_would_have_used(
    root: Path, two: Path, wait: Callable[[float], None]
) -> None:
    """All of its life was between two looks: the watcher was stopped."""
    busy = write_group(two / SCOPE / "job_1", cpu_stat=cpu(10))
    write_group(two / "system.slice", cpu_stat=cpu(10))
    with read_at(root) as node:
        node.read()
        wait(20.0)
        (busy / "cpu.stat").write_text(cpu(20))
        (two / "system.slice/cpu.stat").write_text(cpu(20))
        node.read()
        shutil.rmtree(write_group(two / SCOPE / "job_2", cpu_stat=cpu(3)))
        wait(20.0)
        shutil.rmtree(busy)
        (two / "system.slice/cpu.stat").write_text(cpu(20 + 10 + 3))
        snapshot = node.read()
        assert table(snapshot) == {"1": pytest.approx(30.0), "2": pytest.approx(3.0)}
        started = {unit.job_id: unit.started for unit in snapshot.units}["2"]
        assert snapshot.time - started == pytest.approx(20.0)
        assert table(snapshot, "ended")["2"] == pytest.approx(snapshot.time)
        assert math.isnan(table(snapshot, "memory_bytes")["2"])
        assert node.read().units == ()


def test_a_group_that_sleeps_takes_nothing_from_one_that_works(
    root: Path, two: Path, wait: Callable[[float], None]
) -> None:
    asleep = write_group(two / SCOPE / "job_1", cpu_stat=cpu(1))
    busy = write_group(two / SCOPE / "job_2", cpu_stat=cpu(1))
    write_group(two / "system.slice", cpu_stat=cpu(2))
    with read_at(root) as node:
        node.read()
        wait(10.0)
        (busy / "cpu.stat").write_text(cpu(9))
        (two / "system.slice/cpu.stat").write_text(cpu(10))
        node.read()
        wait(10.0)
        for job in (asleep, busy):
            shutil.rmtree(job)
        (two / "system.slice/cpu.stat").write_text(cpu(17))
        assert table(node.read()) == {"1": 1.0, "2": pytest.approx(16.0)}


class Working:
    """Two jobs, what they have used, and the slice that counts both."""

    def __init__(self, two: Path) -> None:
        self.two, self.used_s, self.ended = two, {"job_1": 1.0, "job_2": 1.0}, set[str]()
        self.use(job_1=0, job_2=0)

    def use(self, **more_s: float) -> None:
        for name, more in more_s.items():
            self.used_s[name] += more
            if name not in self.ended:
                write_group(self.two / SCOPE / name, cpu_stat=cpu(self.used_s[name]))
        write_group(self.two / "system.slice", cpu_stat=cpu(sum(self.used_s.values())))

    def end(self, name: str, used_s: float) -> None:
        shutil.rmtree(self.two / SCOPE / name)
        self.ended.add(name)
        self.use(**{name: used_s})


@pytest.mark.parametrize("which", [1, 2])
def test_what_others_use_while_a_reading_lasts_is_not_given_to_a_job_that_ended(
    root: Path, two: Path, wait: Callable[[float], None], which: int
) -> None:
    """A busy machine may stop the reader for a while after it has read the groups."""
    jobs = Working(two)

    class Gpus:
        """Are read after the groups, and take long."""

        long = False

        def read(self) -> tuple[GpuReading, ...]:
            if self.long:
                jobs.use(job_2=0.4)
            return ()

        def close(self) -> None:
            pass

    gpus = Gpus()
    with read_at(root, gpus=gpus) as node:
        node.read()
        wait(1.0)
        jobs.use(job_1=0.3, job_2=0.9)
        # It is the reading before the end that takes long, or the one that finds it.
        gpus.long = which == 1
        node.read()
        gpus.long = which == 2
        wait(1.0)
        jobs.end("job_1", 0.3)
        jobs.use(job_2=0.5)
        assert table(node.read())["1"] == pytest.approx(jobs.used_s["job_1"])


@pytest.mark.parametrize("which", [1, 2])
def test_a_reader_that_is_stopped_between_two_groups_reads_them_again(
    root: Path,
    two: Path,
    wait: Callable[[float], None],
    monkeypatch: pytest.MonkeyPatch,
    which: int,
) -> None:
    """What is read before it is stopped and after it does not belong together."""
    jobs, look, stops = Working(two), Group.look, [False]

    def look_and_stop(group: Group) -> bytes:
        said = look(group)
        if stops[0] and group.unit.job_id == "2":
            stops[0] = False
            time.sleep(0.05)
            jobs.use(job_2=0.4)
        return said

    monkeypatch.setattr(Group, "look", look_and_stop)
    with read_at(root) as node:
        node.read()
        wait(1.0)
        jobs.use(job_1=0.3, job_2=0.9)
        stops[0] = which == 1
        assert table(node.read())["2"] == jobs.used_s["job_2"]
        stops[0] = which == 2
        wait(1.0)
        jobs.end("job_1", 0.3)
        jobs.use(job_2=0.5)
        assert table(node.read()) == pytest.approx({"1": 1.6, "2": jobs.used_s["job_2"]})


def test_a_job_that_begins_to_go_is_read_while_it_can_be(root: Path) -> None:
    """Slurm removes the folders of a job one by one, and after the last job what is above them."""
    path = "/slurm_n1/uid_0/job_7"
    write_legacy(root / "cgroup", path, usage_s=100.0)
    for name in ("cpuacct", "memory", "freezer"):
        os.utime(root / "cgroup" / f"{name}{path}", (BOOT, BOOT))
    with read_at(root) as node:
        node.read()
        (root / f"cgroup/cpuacct{path}/cpuacct.usage").write_text("108500000000\n")
        shutil.rmtree(root / f"cgroup/memory{path}")
        node.look()
        shutil.rmtree(root / "cgroup/cpuacct/slurm_n1")
        node.look()
        assert table(node.read()) == {"7": pytest.approx(108.5)}


def test_a_job_between_two_readings_is_seen(root: Path, two: Path) -> None:
    write_group(two / SCOPE)
    write_group(two / "system.slice", cpu_stat=cpu(100))
    write_group(two / "system.slice/web.service", cpu_stat=cpu(1))
    with read_at(root) as node:
        assert table(node.read()) == {"web.service": 1.0}
        assert select.select([node.events], [], [], 0)[0] == []
        job = write_group(two / SCOPE / "job_9", cpu_stat=cpu(0))
        assert select.select([node.events], [], [], 1)[0] == [node.events]
        assert node.look() == reader.LOOK_S
        (job / "cpu.stat").write_text(cpu(2.5))
        node.look()
        shutil.rmtree(job)
        node.look()
        (two / "system.slice/cpu.stat").write_text(cpu(103))
        time.sleep(0.02)
        assert table(node.read()) == {"web.service": 1.0, "9": pytest.approx(3.0)}


def test_a_job_that_nobody_could_read_is_seen_too(root: Path, two: Path) -> None:
    write_group(two / "system.slice", cpu_stat=cpu(100))
    write_group(two / SCOPE)
    with read_at(root) as node:
        node.read()
        # Its end is told by an event before it is gone.
        job = write_group(two / SCOPE / "job_9", cpu_stat=cpu(1))
        node.look()
        (job / "cpu.stat").write_text(cpu(2))
        (job / "cgroup.events").write_text("populated 0\nfrozen 0\n")
        node.look()
        shutil.rmtree(job)
        assert table(node.read())["9"] == 2.0


def test_a_number_that_is_used_again_is_another_job(root: Path, two: Path) -> None:
    job = write_group(two / SCOPE / "job_1", cpu_stat=cpu(10))
    os.utime(job, (1.7e9, 1.7e9))
    with read_at(root) as node:
        node.read()
        shutil.rmtree(job)
        write_group(job, cpu_stat=cpu(1))
        os.utime(job, (1.7e9 + 100, 1.7e9 + 100))
        snapshot = node.read()
        found = {unit.key: used for unit, used in zip(snapshot.units, snapshot.cpu_s, strict=True)}
        assert found == {"slurm:1@1700000000": 10.0, "slurm:1@1700000100": 1.0}


def test_without_events_the_trees_are_walked_now_and_then(
    root: Path, two: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lowtide.monitor.group_tree.Changes._watch", lambda *_: False)
    job = write_group(two / SCOPE / "job_1", cpu_stat=cpu(10))
    clock = [1000.0]
    monkeypatch.setattr("lowtide.monitor.kernel_files.since_boot", lambda: clock[0])
    with read_at(root) as node:
        first = node.read()
        assert table(first) == {"1": 10.0}
        assert "fs.inotify.max_user_watches" in first.problems[0]
        shutil.rmtree(job)
        write_group(two / SCOPE / "job_2", cpu_stat=cpu(3))
        clock[0] += 10
        # That one is gone is told by its own files.
        assert table(node.read()) == {"1": 10.0}
        clock[0] += 60
        assert table(node.read()) == {"2": 3.0}


def test_broken_files_leave_the_last_value(root: Path, two: Path) -> None:
    job = write_group(two / SCOPE / "job_1", cpu_stat=cpu(10))
    with read_at(root) as node:
        node.read()
        for broken in ("", "usage_usec", "usage_usec 11", "\0\0\0\0", cpu(3)):
            (job / "cpu.stat").write_text(broken)
            (job / "memory.current").write_text("half")
            (job / "io.stat").write_text("8:0 rbytes=x")
            assert table(node.read()) == {"1": 10.0}
        assert node.problems.rejected >= 5
        (job / "cpu.stat").write_text(cpu(12))
        (job / "memory.current").write_text("9000000\n")
        snapshot = node.read()
        assert table(snapshot) == {"1": 12.0}
        assert snapshot.memory_bytes == [9000000 - 8192000]


def test_problems_are_named_once(root: Path, two: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in (1, 2):
        write_group(two / SCOPE / f"job_{number}", cpu_stat=cpu(10))
    opened = os.open

    def guarded(path: str, *rest: int, **more: int) -> int:
        if str(path).endswith("memory.current"):
            raise PermissionError(13, "not yours", path)
        return opened(path, *rest, **more)

    monkeypatch.setattr(kernel_files.os, "open", guarded)
    with read_at(root) as node:
        first = node.read()
        (problem,) = first.problems
        assert "memory.current may not be read" in problem
        assert "root" in problem
        assert table(first) == {"1": 10.0, "2": 10.0}
        assert np.isnan(first.memory_bytes).all()
        assert node.read().problems == ()


def test_a_group_without_controllers_has_cpu_time_at_least(root: Path, two: Path) -> None:
    write(two / SCOPE / "job_1", "cpu.stat = usage_usec 5\ncgroup.procs =")
    with read_at(root) as node:
        snapshot = node.read()
    assert snapshot.cpu_s == [5e-6]
    for column in ("memory_bytes", "read_bytes", "reserved_cpus", "reserved_bytes"):
        assert math.isnan(getattr(snapshot, column)[0])


def test_a_job_that_only_the_freezer_knows_is_counted_by_its_processes(root: Path) -> None:
    write_legacy(root / "cgroup", "/slurm/uid_0/job_1", usage_s=3.0)
    write(root / "cgroup", "freezer/slurm/uid_0/job_2/cgroup.procs = 70")
    write_process(root / "proc", 70, cgroup="6:freezer:/slurm/uid_0/job_2", cpu_s=8.0)
    write_process(root / "proc", 71, parent=70, cgroup="6:freezer:/slurm/uid_0/job_2", cpu_s=1.0)
    write_process(root / "proc", 72, cgroup="2:cpuacct:/slurm/uid_0/job_1", cpu_s=100.0)
    with read_at(root) as node:
        assert table(node.read()) == {"1": 3.0, "2": 9.0}


def test_slurm_jobs_without_control_groups_hide_the_service_they_run_in(
    root: Path, two: Path
) -> None:
    write_group(two / "system.slice/slurmd.service", cpu_stat=cpu(50))
    inside = "0::/system.slice/slurmd.service"
    write_process(root / "proc", 60, cgroup=inside, name="slurmd", cpu_s=3.0)
    with read_at(root) as node:
        assert table(node.read()) == {"slurmd.service": 50.0}
        told = {"SLURM_JOB_ID": "8", "SLURM_CPUS_ON_NODE": "4", "SLURM_MEM_PER_NODE": "100"}
        write_process(root / "proc", 61, parent=60, cgroup=inside, cpu_s=2.0, environment=told)
        write_process(root / "proc", 62, parent=61, cgroup=inside, cpu_s=1.0)
        snapshot = node.read()
        assert table(snapshot) == {"8": 3.0}
        assert snapshot.reserved_cpus == [4]
        assert snapshot.reserved_bytes == [100 * 2**20]


def test_sockets_are_told_apart_by_the_cpuset(root: Path, two: Path) -> None:
    for number in range(4):
        where = f"sys/devices/system/cpu/cpu{number}/topology/physical_package_id"
        write(root, f"{where} = {7 * (number // 2)}")
    write_group(two / SCOPE / "job_1", cpuset_cpus="0-2\n")
    write_group(two / "system.slice/web.service", cpuset_cpus="\n")
    with read_at(root) as node:
        shares = node.read().socket_shares
    assert shares[0] == pytest.approx([2 / 3, 1 / 3])
    assert np.isnan(shares[1]).all()


def test_one_job_in_the_groups_of_several_slurmd_is_one_unit(root: Path) -> None:
    for name in ("n1", "n2"):
        write_legacy(root / "cgroup", f"/slurm_{name}/uid_0/job_5", usage_s=2.0, cpus="0")
    with read_at(root) as node:
        snapshot = node.read()
    assert table(snapshot) == {"5": 4.0}
    assert snapshot.reserved_cpus == [2]


@pytest.mark.parametrize("step_s", [-7200.0, 7200.0])
def test_a_clock_that_is_set_is_followed_and_changes_no_interval(
    root: Path, two: Path, monkeypatch: pytest.MonkeyPatch, step_s: float
) -> None:
    write_group(two / "system.slice")
    real = time.time
    with read_at(root) as node:
        first = node.read()
        monkeypatch.setattr("lowtide.monitor.kernel_files.time.time", lambda: real() + step_s)
        # One came after the clock was set, one before.
        job = write_group(two / "system.slice/a.service")
        os.utime(job, (real() + step_s, real() + step_s))
        write_group(two / "system.slice/b.service")
        write_process(root / "proc", 9, cpu_s=1.0, started_s=real() - BOOT)
        second = node.read()
        assert abs(second.time - real() - step_s) < 5
        assert 0 <= second.seconds_after(first) < 5
        assert second.time_of(first) == second.begins(first)
        assert abs(second.time_of(first) - first.time - step_s) < 0.1
        assert f"the clock was set by {step_s:+.0f} s" in second.problems[0]
        assert {unit.job_id for unit in second.units} == {"9", "a.service", "b.service"}
        for unit in second.units:
            assert -0.1 < unit.started - second.time_of(first) < 5.0, unit
        third = node.read()
        assert third.problems == ()
        assert third.begins(second) == pytest.approx(second.time, abs=1e-3)


def test_a_node_without_anything(tmp_path: Path) -> None:
    with read_at(tmp_path) as node:
        snapshot = node.read()
        assert node.look() == reader.LOOK_S
    assert snapshot.units == ()
    assert snapshot.cpu_s.shape == (0,)
    assert snapshot.node.cpus == 0
    assert math.isnan(snapshot.node.busy_s)


def test_closing_leaves_no_file_open(root: Path, two: Path) -> None:
    def opened() -> int:
        return len(list(Path("/proc/self/fd").iterdir()))

    before = opened()
    for number in range(20):
        write_group(two / SCOPE / f"job_{number}")
    node = read_at(root)
    node.read()
    assert opened() > before + 40
    shutil.rmtree(two / SCOPE / "job_3")
    node.read()
    node.close()
    assert opened() == before


def test_this_machine_can_be_read() -> None:
    with NodeReader() as node:
        first, second = node.read(), node.read()
    assert second.node.busy_s >= first.node.busy_s > 0
    assert second.node.cpus == os.cpu_count()
    assert 0 < second.node.available_bytes < second.node.memory_bytes
    before = {unit.key: used for unit, used in zip(first.units, first.cpu_s, strict=True)}
    for unit, used in zip(second.units, second.cpu_s, strict=True):
        assert used >= before.get(unit.key, 0.0)


def test_real_groups_of_version_2(root: Path) -> None:
    """A process in a real group: its CPU time, its end, and what is left of it afterwards."""
    mounts = [line.split() for line in Path("/proc/mounts").read_text().splitlines()]
    roots = [Path(each[1]) for each in mounts if each[2] == "cgroup2"]
    if not roots or not os.access(roots[0], os.W_OK):
        is_missing("needs a cgroup2 file system that may be written to")
    scope = roots[0] / f"lowtide-{os.getpid()}" / "slurmstepd.scope"
    job = scope / "job_5"
    scope.mkdir(parents=True)
    spin = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        with NodeReader(cgroupfs=roots[0], procfs=root / "proc", sysfs=root / "sys") as node:
            assert "5" not in table(node.read())
            job.mkdir()
            (job / "cgroup.procs").write_text(str(spin.pid))
            assert select.select([node.events], [], [], 2)[0]
            node.look()
            time.sleep(0.3)
            running = table(node.read())["5"]
            assert running > 0.02
            time.sleep(0.1)
            spin.kill()
            spin.wait()
            used = find_value((job / "cpu.stat").read_bytes(), b"usage_usec") / 1e6
            job.rmdir()
            assert table(node.read())["5"] == pytest.approx(used, rel=0.05)
            assert "5" not in table(node.read())
    finally:
        spin.kill()
        spin.wait()
        for folder in (job, scope, scope.parent):
            if folder.exists():
                folder.rmdir()


def test_a_short_job_without_a_group_is_seen(root: Path, two: Path) -> None:
    """It is known by its environment alone, and nothing else runs outside of groups."""
    write_group(two / "system.slice/web.service", cpu_stat=cpu(1))
    with read_at(root) as node:
        assert table(node.read()) == {"web.service": 1.0}
        told = {"SLURM_JOB_ID": "55", "SLURM_CPUS_ON_NODE": "1"}
        for used_s in (0.5, 1.5, 2.5):
            write_process(root / "proc", 80, cpu_s=used_s, environment=told, started_s=1000.0)
            assert node.look() == reader.LOOK_S
        shutil.rmtree(root / "proc/80")
        assert node.look() == reader.LOOK_S
        assert table(node.read()) == {"web.service": 1.0, "55": 2.5}


def test_files_that_are_replaced_are_read(root: Path, two: Path) -> None:
    """A recorded tree is brought up to date as rsync does it: a new file takes the place."""
    job = write_group(two / SCOPE / "job_1", cpu_stat=cpu(10))

    def replaced(file: Path, said: str) -> None:
        new = file.with_name("new")
        new.write_text(said)
        new.replace(file)

    with read_at(root) as node:
        first = node.read()
        for number in (1, 2):
            replaced(job / "cpu.stat", cpu(10 + number))
            replaced(job / "memory.current", f"{9_000_000 + number}\n")
            replaced(job / "io.stat", f"8:0 rbytes={number} wbytes={2 * number}\n")
            replaced(root / "proc/stat", f"cpu  {1000 + number} 200 300 9 5 10 20 30 0 0\n")
            snapshot = node.read()
            assert table(snapshot) == {"1": 10.0 + number}
            assert table(snapshot, "read_bytes") == {"1": number}
            assert table(snapshot, "memory_bytes") == {"1": 9_000_000 + number - 8192000}
            ticks = os.sysconf("SC_CLK_TCK")
            assert snapshot.node.busy_s == pytest.approx(first.node.busy_s + number / ticks)
        (job / "cpu.stat").unlink()
        assert table(node.read()) == {"1": 12.0}


def test_limits_that_are_written_late_are_read_again_soon(root: Path, two: Path) -> None:
    """Slurm makes the group of a job, and limits it some moments later."""
    with read_at(root) as node:
        node.read()
        folder = write_group(two / SCOPE / "job_7", cpu_stat=cpu(0.1), cpuset_cpus="\n")
        (folder / "memory.max").write_text("max\n")
        assert node.look() < 1.0
        (folder / "cpuset.cpus").write_text("3\n")
        (folder / "memory.max").write_text("1048576\n")
        time.sleep(0.15)
        node.look()
        shutil.rmtree(folder)
        snapshot = node.read()
    assert snapshot.reserved_cpus == [1]
    assert snapshot.reserved_bytes == [1048576]


def test_a_job_named_by_sluid_is_known_by_it_until_its_number_is(root: Path, two: Path) -> None:
    name = "s5K1KKYAYG5D00"
    folder = write_group(two / SCOPE / name)
    write_group(two / SCOPE / "s5K1KKYAYG5DI0")  # no such digit
    write_group(two / "system.slice" / name)  # nothing of Slurm's
    with read_at(root) as node:
        (first,) = node.read().units
        assert (first.source, first.job_id, first.sluid) == ("slurm", name, name)
        node.number_jobs({name: "4711"})
        (second,) = node.read().units
        assert (second.job_id, second.sluid, second.key) == ("4711", name, first.key)
        # What is outside of the group is known by the number.
        write_process(root / "proc", 70, environment={"SLURM_JOB_ID": "4711"}, cpu_s=1.0)
        (third,) = node.read().units
        assert third.key == first.key
        shutil.rmtree(folder)
        shutil.rmtree(root / "proc/70")
        assert [unit.key for unit in node.read().units] == [first.key]


@pytest.mark.parametrize(("second", "number"), [("4711", "4711"), ("4712", "s5K1KKYAYG5D00")])
def test_the_number_of_a_job_is_told_by_its_processes_where_they_agree(
    root: Path, two: Path, second: str, number: str
) -> None:
    folder = write_group(two / SCOPE / "s5K1KKYAYG5D00")
    (folder / "cgroup.procs").write_text("70\n71\n")
    inside = f"0::/{SCOPE}/s5K1KKYAYG5D00"
    for pid, job in ((70, "4711"), (71, second)):
        write_process(root / "proc", pid, environment={"SLURM_JOB_ID": job}, cgroup=inside)
    with read_at(root) as node:
        assert [unit.job_id for unit in node.read().units] == [number]


def test_storage_of_a_job_is_counted_by_its_processes_where_no_controller_does(
    root: Path, two: Path
) -> None:
    """A parent that waits for its child takes over what it moved: nothing counts twice."""
    folder = write_group(two / SCOPE / "job_7", cpu_stat=cpu(1))
    (folder / "io.stat").unlink()
    inside = f"0::/{SCOPE}/job_7"

    def process(pid: int, read: int, written: int, parent: int = 1, began: float = 100.0) -> None:
        write_process(
            *(root / "proc", pid),
            parent=parent,
            started_s=began,
            cgroup=inside,
            stored=(read, written),
        )

    def moved(step: int) -> tuple[float, float]:
        (folder / "cpu.stat").write_text(cpu(1 + step))
        snapshot = node.read()
        return float(snapshot.read_bytes[0]), float(snapshot.written_bytes[0])

    with read_at(root) as node:
        assert np.isnan(moved(0)).all()
        (folder / "cgroup.procs").write_text("70\n71\n")
        process(70, 10, 100)
        process(71, 5, 50, parent=70, began=101.0)
        assert moved(1) == (15, 150)
        process(71, 6, 70, parent=70, began=101.0)
        assert moved(2) == (16, 170)
        # The child ends, having moved a little more; its parent has waited for it.
        shutil.rmtree(root / "proc/71")
        (folder / "cgroup.procs").write_text("70\n")
        process(70, 10 + 8, 100 + 75)
        assert moved(3) == (18, 175)
        # Its number is used again, by a process of the same job.
        (folder / "cgroup.procs").write_text("70\n71\n")
        process(71, 2, 3, parent=70, began=500.0)
        assert moved(4) == (20, 178)
        (root / "proc/71/io").unlink()
        assert moved(5) == (20, 178)
