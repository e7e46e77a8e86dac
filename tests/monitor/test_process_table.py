"""Processes outside of control groups: what each unit used, and nothing twice."""

from __future__ import annotations

import resource
import shlex
import shutil
import subprocess
import sys
import time
from itertools import permutations
from pathlib import Path
from typing import Any, cast

import pytest

from lowtide.monitor import process_table
from lowtide.monitor.group import Group
from lowtide.monitor.kernel_files import Problems, since_boot
from lowtide.monitor.node import Networks
from lowtide.monitor.owners import find_slurm_nodes
from lowtide.monitor.process_table import ProcessTable
from lowtide.monitor.snapshot import Unit
from support.trees import write_process

pytestmark = pytest.mark.alone


@pytest.fixture
def procfs(tmp_path: Path) -> Path:
    write_process(tmp_path, 1, name="init", parent=0, cpu_s=0.01, started_s=0.0, pages=1)
    write_process(tmp_path, 2, name="kthreadd", parent=0, cpu_s=50.0, started_s=0.0)
    write_process(tmp_path, 3, name="rcu", parent=2, cpu_s=50.0, started_s=0.0)
    return tmp_path


@pytest.fixture
def units(procfs: Path) -> ProcessTable:
    return ProcessTable(
        procfs=str(procfs),
        boot=1.7e9,
        home=lambda _: None,
        name=str,
        networks=Networks(str(procfs), Problems()),
        problems=Problems(),
        memory_bytes=16e9,
    )


def shown(units: ProcessTable) -> dict[str, float]:
    return {key[1]: each.cpu_s for key, each in units.units.items() if each.shown}


def test_only_groups_that_matter_are_units(procfs: Path, units: ProcessTable) -> None:
    # Seen for the first time after 200 s: 100 s old, busy, asleep, or large.
    write_process(procfs, 10, name="busy", cpu_s=40.0)
    write_process(procfs, 11, name="helper", group=10, parent=10, cpu_s=2.0)
    write_process(procfs, 20, name="asleep", cpu_s=0.5)
    write_process(procfs, 30, name="large", cpu_s=0.0, pages=50_000)
    units.look(200.0)
    assert shown(units) == {"10": 42.0, "30": 0.0}
    unit = units.units["process", "10", ""].unit
    assert (unit.name, unit.started) == ("busy", 1.7e9 + 100)
    # Once it is busy it is shown, and stays so.
    write_process(procfs, 20, name="asleep", cpu_s=1.5)
    units.look(210.0)
    units.look(220.0)
    assert shown(units) == {"10": 42.0, "20": 1.5, "30": 0.0}


def test_a_child_that_ends_is_not_counted_twice(procfs: Path, units: ProcessTable) -> None:
    """A shell waits for a program in a process group of its own, and takes over its counters."""
    write_process(procfs, 10, name="bash", cpu_s=5.0)
    child = write_process(procfs, 20, name="make", parent=10, cpu_s=30.0)
    units.look(200.0)
    shutil.rmtree(child)
    write_process(procfs, 10, name="bash", cpu_s=5.0, waited_s=30.5)
    units.look(210.0)
    # Half a second was new, and the child's.
    assert shown(units) == {"10": 5.0}
    (ended,) = units.ended
    assert (ended.unit.job_id, ended.cpu_s, ended.processes) == ("20", 30.5, 0)


def test_the_end_of_a_job_is_known_by_who_waited_for_it(procfs: Path, units: ProcessTable) -> None:
    told = {"SLURM_JOB_ID": "7"}
    write_process(procfs, 10, name="slurmstepd", cpu_s=1.0)
    script = write_process(procfs, 11, parent=10, cpu_s=2.0, environment=told)
    units.look(200.0)
    shutil.rmtree(script)
    write_process(procfs, 10, name="slurmstepd", cpu_s=1.0, waited_s=9.0)
    # A look finds it ended, and only the next reading asks its old parent.
    units.look(220.0, only_young=True)
    assert [each.cpu_s for each in units.ended] == [2.0]
    units.look(230.0)
    assert [each.cpu_s for each in units.ended] == [9.0]
    assert units.units["process", "10", ""].cpu_s == 1.0


def test_children_that_were_never_seen_count_for_their_parent(
    procfs: Path, units: ProcessTable
) -> None:
    write_process(procfs, 10, name="make", cpu_s=5.0, waited_s=100.0)
    units.look(200.0)
    # What it waited for before the watching began is not known to be its own.
    assert shown(units) == {"10": 5.0}
    write_process(procfs, 10, name="make", cpu_s=5.0, waited_s=120.0)
    units.look(210.0)
    assert shown(units) == {"10": 25.0}


def test_a_child_that_nobody_waits_for_stays_counted(procfs: Path, units: ProcessTable) -> None:
    write_process(procfs, 10, cpu_s=5.0)
    child = write_process(procfs, 11, group=10, cpu_s=30.0)
    units.look(200.0)
    shutil.rmtree(child)
    write_process(procfs, 10, cpu_s=6.0)
    units.look(210.0)
    assert shown(units) == {"10": 36.0}


def test_a_process_group_whose_number_is_used_again(procfs: Path, units: ProcessTable) -> None:
    first = write_process(procfs, 10, cpu_s=5.0)
    units.look(200.0)
    shutil.rmtree(first)
    write_process(procfs, 10, cpu_s=1.0, started_s=205.0)
    units.look(210.0)
    # It was the same number in both looks, so that only its start tells.
    assert [each.cpu_s for each in units.ended] == [5.0]
    assert units.units["process", "10", ""].unit.started == 1.7e9 + 205


def test_slurm_jobs_are_known_by_their_environment(procfs: Path, units: ProcessTable) -> None:
    told = {
        "SLURM_JOB_ID": "4711",
        "SLURM_JOB_NAME": "train",
        "SLURM_CPUS_ON_NODE": "2",
        "SLURM_JOB_GPUS": "1",
    }
    write_process(procfs, 10, name="slurmstepd", cpu_s=0.0)
    write_process(procfs, 11, parent=10, cpu_s=0.2, waited_s=3.0, environment=told)
    write_process(procfs, 12, parent=11, cpu_s=0.3, environment={"HOME": "/"})
    units.look(200.0)
    job = units.units["slurm", "4711", ""]
    # All that it waited for is the job's own.
    assert job.cpu_s == 3.5
    assert job.shown
    assert job.unit.name == "train"
    assert job.reserved_cpus == 2
    assert job.gpus == ("1",)


def test_a_look_in_between_counts_what_is_young(procfs: Path, units: ProcessTable) -> None:
    write_process(procfs, 10, cpu_s=40.0)
    units.look(200.0)
    write_process(procfs, 10, cpu_s=50.0)
    young = write_process(procfs, 20, cpu_s=1.0, started_s=219.0)
    units.look(220.0, only_young=True)
    write_process(procfs, 20, cpu_s=2.0, started_s=219.0)
    units.look(221.0, only_young=True)
    assert shown(units) == {"10": 40.0, "20": 2.0}
    shutil.rmtree(young)
    units.look(222.0, only_young=True)
    units.look(230.0)
    assert shown(units) == {"10": 50.0}
    assert [(each.unit.job_id, each.cpu_s) for each in units.ended] == [("20", 2.0)]


def test_storage_is_counted_from_the_start_and_once(procfs: Path, units: ProcessTable) -> None:
    write_process(procfs, 10, cpu_s=40.0, stored=(100, 10))
    child = write_process(procfs, 11, group=10, parent=10, stored=(50, 5))
    units.look(200.0)
    units.read_traffic()
    shutil.rmtree(child)
    # The child's bytes are its parent's now, and 7 are new.
    write_process(procfs, 10, cpu_s=40.0, stored=(157, 15))
    units.look(210.0)
    units.read_traffic()
    unit = units.units["process", "10", ""]
    assert (unit.read_bytes, unit.written_bytes) == (157.0, 15.0)


def test_processes_that_vanish_or_make_no_sense_are_left_out(
    procfs: Path, units: ProcessTable
) -> None:
    write_process(procfs, 10, cpu_s=40.0)
    (procfs / "11").mkdir()
    (procfs / "12").mkdir()
    (procfs / "12" / "stat").write_text("12 (half")
    units.look(200.0)
    assert shown(units) == {"10": 40.0}
    shutil.rmtree(procfs)
    units.look(210.0)
    assert units.units == {}


def test_an_environment_that_may_not_be_read_is_named_once(
    procfs: Path, units: ProcessTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lowtide.monitor.process_table.os.access", lambda *_: False)
    for pid in (10, 11):
        write_process(procfs, pid, cpu_s=40.0)
    units.look(200.0)
    (problem,) = units.problems.take()
    assert "environ may not be read" in problem
    assert "CAP_SYS_PTRACE" in problem
    assert shown(units) == {"10": 40.0, "11": 40.0}


@pytest.mark.parametrize("order", list(permutations((10, 20, 30))))
def test_a_program_and_who_ran_it_end_together(
    procfs: Path, units: ProcessTable, order: tuple[int, int, int]
) -> None:
    """A chain of three, whatever their numbers: numbers are used again from the lowest."""
    top, middle, last = order
    write_process(procfs, 5, name="shell", cpu_s=1.0, started_s=50.0)
    write_process(procfs, top, name="timeout", parent=5, group=top, cpu_s=0.5)
    write_process(procfs, middle, name="sh", parent=top, group=top, cpu_s=2.0)
    write_process(procfs, last, name="work", parent=middle, group=top, cpu_s=10.0)
    units.look(200.0)
    for each in order:
        shutil.rmtree(procfs / str(each))
    write_process(procfs, 5, name="shell", cpu_s=1.0, waited_s=13.0, started_s=50.0)
    units.look(210.0)
    # All it was counted for while it lived, and half a second at the end.
    assert [each.cpu_s for each in units.ended] == [13.0]
    assert units.units["process", "5", ""].cpu_s == 1.0


def test_what_ended_together_in_groups_of_its_own_shares_the_rest(
    procfs: Path, units: ProcessTable
) -> None:
    write_process(procfs, 5, name="shell", cpu_s=1.0)
    write_process(procfs, 10, name="make", parent=5, cpu_s=4.0)
    write_process(procfs, 20, name="cc", parent=10, cpu_s=6.0)
    units.look(200.0)
    for each in (10, 20):
        shutil.rmtree(procfs / str(each))
    write_process(procfs, 5, name="shell", cpu_s=1.0, waited_s=12.0)
    units.look(210.0)
    used = {each.unit.job_id: each.cpu_s for each in units.ended}
    # By what each had done so far: 4 and 6 s in the same time.
    assert used == {"10": pytest.approx(4.8), "20": pytest.approx(7.2)}


def test_siblings_share_what_was_waited_for_by_what_they_had_done(
    procfs: Path, units: ProcessTable
) -> None:
    write_process(procfs, 5, name="shell", cpu_s=1.0)
    units.look(200.0)
    for pid, used_s in ((10, 0.0), (20, 1.0), (30, 0.4)):
        told = {"SLURM_JOB_ID": str(pid)}
        write_process(procfs, pid, parent=5, cpu_s=used_s, started_s=201.0, environment=told)
    units.look(202.0, only_young=True)
    # One has ended, and was read once more before it was waited for.
    write_process(procfs, 30, parent=5, cpu_s=0.9, started_s=201.0, dead=True)
    told = {"SLURM_JOB_ID": "20"}
    write_process(procfs, 20, parent=5, cpu_s=1.5, started_s=201.0, environment=told)
    units.look(203.0, only_young=True)
    for pid in (10, 20, 30):
        shutil.rmtree(procfs / str(pid))
    write_process(procfs, 5, name="shell", cpu_s=1.0, waited_s=3.2)
    units.look(210.0)
    used = {each.unit.job_id: each.cpu_s for each in units.ended}
    assert used == {"10": 0.0, "20": pytest.approx(2.3), "30": pytest.approx(0.9)}


def test_what_is_counted_elsewhere_is_not_handed_up(procfs: Path) -> None:
    """A shell runs a helper that waits for a job in a group, and all end together."""
    group = Group(path="/job_1", unit=Unit(source="slurm", job_id="1", started=0.0), began=0.0)
    group._cpu = cast("Any", "a counter")
    units = ProcessTable(
        procfs=str(procfs),
        boot=1.7e9,
        home=lambda said: group if "job_1" in said else None,
        name=str,
        networks=Networks(str(procfs), Problems()),
        problems=Problems(),
        memory_bytes=16e9,
    )
    write_process(procfs, 5, name="bash", cpu_s=1.0)
    write_process(procfs, 10, name="helper", parent=5, group=5, cpu_s=0.5)
    write_process(procfs, 20, name="work", parent=10, cpu_s=50.0, cgroup="0::/job_1")
    units.look(200.0)
    for pid in (10, 20):
        shutil.rmtree(procfs / str(pid))
    write_process(procfs, 5, name="bash", cpu_s=1.0, waited_s=60.5)
    units.look(210.0)
    assert units.units["process", "5", ""].cpu_s == pytest.approx(1.5, abs=0.1)


def test_a_zombie_is_no_job_for_ever(procfs: Path, units: ProcessTable) -> None:
    told = {"SLURM_JOB_ID": "7"}
    write_process(procfs, 5, name="shell", cpu_s=1.0)
    write_process(procfs, 10, parent=5, cpu_s=2.0, environment=told)
    units.look(200.0)
    write_process(procfs, 10, parent=5, cpu_s=3.0, pages=0, environment=told, dead=True)
    for at in (201.0, 202.0, 210.0):
        units.look(at, only_young=at < 210)
    (ended,) = units.ended
    assert (ended.cpu_s, ended.processes) == (3.0, 0)
    # It ended between the last look that took it for alive and the one that did not.
    assert 202.0 <= ended.ended_at <= 210.0
    # It holds what it held while it lived.
    assert ended.memory_bytes == 1000 * resource.getpagesize()
    units.ended.clear()
    for at in (211.0, 212.0, 220.0, 221.0, 600.0, 601.0):
        units.look(at, only_young=at not in (220.0, 600.0))
        assert ("slurm", "7") not in units.units
        assert units.ended == []


def test_what_moves_into_a_group_takes_its_memory_along(procfs: Path) -> None:
    group = Group(path="/job_7", unit=Unit(source="slurm", job_id="7", started=0.0), began=0.0)
    group._cpu = cast("Any", "a counter")
    units = ProcessTable(
        procfs=str(procfs),
        boot=1.7e9,
        home=lambda said: group if "job_7" in said else None,
        name=str,
        networks=Networks(str(procfs), Problems()),
        problems=Problems(),
        memory_bytes=16e9,
    )
    told = {"SLURM_JOB_ID": "7"}
    write_process(procfs, 10, cpu_s=0.1, started_s=200.0, environment=told)
    units.look(200.1)
    write_process(procfs, 10, cpu_s=0.2, started_s=200.0, environment=told, cgroup="0::/job_7")
    units.look(201.1)
    (ended,) = units.ended
    assert ended.memory_bytes == 0.0


def test_an_orphan_that_the_first_process_waited_for_counts_once(
    procfs: Path, units: ProcessTable
) -> None:
    """All of a job is killed at once: the script's parent waits for it, nobody for its program."""
    write_process(procfs, 5, name="shell", cpu_s=1.0)
    write_process(procfs, 10, name="script", parent=5, cpu_s=2.0)
    write_process(procfs, 11, name="work", parent=10, group=10, cpu_s=30.0)
    units.look(200.0)
    for each in (10, 11):
        shutil.rmtree(procfs / str(each))
    write_process(procfs, 1, name="init", parent=0, cpu_s=0.01, waited_s=30.0, started_s=0.0)
    write_process(procfs, 5, name="shell", cpu_s=1.0, waited_s=2.0)
    units.look(210.0)
    assert [each.cpu_s for each in units.ended] == [32.0]
    assert units.units["process", "1", ""].cpu_s == pytest.approx(0.01)


def test_a_child_that_is_gone_once_it_is_read_counts_once(
    procfs: Path, units: ProcessTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was listed, its parent was read, and only then was it waited for."""
    write_process(procfs, 10, name="bash", cpu_s=5.0)
    child = write_process(procfs, 20, name="make", parent=10, cpu_s=30.0)
    units.look(200.0)
    read = process_table.read_or_empty

    def vanishing(path: str) -> bytes:
        if path.endswith("/20/stat") and child.exists():
            shutil.rmtree(child)
            write_process(procfs, 10, name="bash", cpu_s=5.0, waited_s=30.5)
        return read(path)

    monkeypatch.setattr(process_table, "read_or_empty", vanishing)
    units.look(210.0)
    units.look(220.0)
    assert shown(units) == {"10": 5.0}
    assert [each.cpu_s for each in units.ended] == [30.5]


def test_what_ended_before_it_mattered_is_told_by_who_waited(
    procfs: Path, units: ProcessTable
) -> None:
    write_process(procfs, 5, name="shell", cpu_s=1.0)
    units.look(200.0)
    child = write_process(procfs, 10, parent=5, cpu_s=0.01, started_s=201.0)
    units.look(201.1, only_young=True)
    shutil.rmtree(child)
    write_process(procfs, 5, name="shell", cpu_s=1.0, waited_s=0.9)
    units.look(202.0, only_young=True)
    units.look(210.0)
    assert [each.cpu_s for each in units.ended if each.shown] == [pytest.approx(0.9)]


def test_the_end_of_a_job_is_known_by_a_parent_that_is_counted_elsewhere(procfs: Path) -> None:
    """Slurm's helper is in a group that counts itself, and waits for the job's script."""
    service = Group(
        path="/slurmd.service",
        unit=Unit(source="systemd", job_id="slurmd.service", started=0.0),
        began=0.0,
    )
    service._cpu = cast("Any", "a counter")
    units = ProcessTable(
        procfs=str(procfs),
        boot=1.7e9,
        home=lambda said: service if "slurmd" in said else None,
        name=str,
        networks=Networks(str(procfs), Problems()),
        problems=Problems(),
        memory_bytes=16e9,
    )
    inside = "0::/slurmd.service"
    write_process(procfs, 10, name="slurmstepd", cpu_s=1.0, waited_s=50.0, cgroup=inside)
    units.look(200.0)
    assert shown(units) == {}
    told = {"SLURM_JOB_ID": "7"}
    job = write_process(procfs, 20, parent=10, cpu_s=2.0, cgroup=inside, environment=told)
    units.look(201.0, only_young=True)
    assert shown(units) == {"7": 2.0}
    shutil.rmtree(job)
    write_process(procfs, 10, name="slurmstepd", cpu_s=1.5, waited_s=52.9, cgroup=inside)
    units.look(202.0)
    assert [each.cpu_s for each in units.ended] == [pytest.approx(2.9)]
    assert shown(units) == {}


def test_whether_anything_was_started_is_asked_at_hardly_any_cost(
    procfs: Path, units: ProcessTable
) -> None:
    # A tree without the file may have new processes at any time.
    assert units.has_new(200.0)
    (procfs / "loadavg").write_text("0.1 0.2 0.3 1/200 5\n")
    assert units.has_new(200.0)
    assert not units.has_new(200.0)
    (procfs / "loadavg").write_text("0.2 0.2 0.3 1/201 6\n")
    assert units.has_new(201.0)
    units.look(201.0)
    # It may become another program yet.
    assert units.has_new(202.0)
    assert not units.has_new(203.0)


def test_a_process_that_becomes_another_program_is_placed_again(
    procfs: Path, units: ProcessTable
) -> None:
    units.look(200.0)
    write_process(procfs, 10, name="slurmstepd", started_s=200.5)
    units.look(200.6, only_young=True)
    assert shown(units) == {}
    told = {"SLURM_JOB_ID": "7"}
    write_process(procfs, 10, cpu_s=0.5, started_s=200.5, environment=told)
    units.look(201.6, only_young=True)
    assert shown(units) == {"7": 0.5}


def test_real_programs_that_end_together_count_once() -> None:
    """A program run by a script run by another, all over between two looks."""
    spin = "import time\nend = time.time() + 0.7\nwhile time.time() < end: pass"
    inner = f"{shlex.quote(sys.executable)} -c {shlex.quote(spin)}; true"
    outer = f"sh -c {shlex.quote(inner)}; true"
    problems = Problems()
    table = ProcessTable(
        procfs="/proc",
        boot=0.0,
        home=lambda _: None,
        name=str,
        networks=Networks("/proc", problems),
        problems=problems,
    )
    table.look(since_boot())
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    run = subprocess.Popen(["sh", "-c", outer], start_new_session=True)
    time.sleep(0.4)
    table.look(since_boot(), only_young=True)
    run.wait()
    table.look(since_boot())
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    used_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    (ended,) = [each for each in table.ended if each.unit.job_id == str(run.pid)]
    # The kernel rounds each of three down to hundredths of a second, twice.
    assert ended.cpu_s == pytest.approx(used_s, abs=0.07)


def test_what_slurm_calls_the_nodes_of_a_machine_is_told_by_slurmd(procfs: Path) -> None:
    for pid, name, words in (
        (10, "slurmd", ["/usr/sbin/slurmd", "-D", "-N", "aud2"]),
        (11, "slurmd", ["slurmd", "-Naud1", "-D"]),
        (12, "slurmd", ["slurmd", "-D"]),
        (13, "vi", ["vi", "-N", "notes"]),
        # A child that is about to be another program, or to end.
        (14, "slurmd", []),
    ):
        folder = write_process(procfs, pid, name=name)
        (folder / "comm").write_text(f"{name}\n")
        (folder / "cmdline").write_text("\0".join([*words, ""]))
    assert find_slurm_nodes(str(procfs)) == ("aud1", "aud2")
