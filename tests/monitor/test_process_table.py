"""Processes outside of control groups: what each unit used, and nothing twice."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from lowtide.monitor.kernel_files import Problems
from lowtide.monitor.process_table import ProcessTable
from support.trees import write_process


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
    unit = units.units["process", "10"].unit
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
    assert units.units["process", "10"].cpu_s == 1.0


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
    assert units.units["process", "10"].unit.started == 1.7e9 + 205


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
    job = units.units["slurm", "4711"]
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
    units.read_storage()
    shutil.rmtree(child)
    # The child's bytes are its parent's now, and 7 are new.
    write_process(procfs, 10, cpu_s=40.0, stored=(157, 15))
    units.look(210.0)
    units.read_storage()
    unit = units.units["process", "10"]
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
