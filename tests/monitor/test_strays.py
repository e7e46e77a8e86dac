"""Processes of a job outside of its group: they add what they use, and change nothing else."""

from __future__ import annotations

import math
import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from test_columns import Part, job

from lowtide.monitor.columns import Columns, Jobs
from lowtide.monitor.group import Group
from lowtide.monitor.metrics import Exposition
from lowtide.monitor.reader import NodeReader
from lowtide.monitor.snapshot import Snapshot
from lowtide.watching.watcher import Watcher
from support.nodes import Drawn
from support.trees import NODE, write, write_group, write_legacy, write_process, write_unified

SCOPE = "system.slice/slurmstepd.scope"
TOLD = {"SLURM_JOB_ID": "4", "SLURM_CPUS_ON_NODE": "2", "SLURMD_NODENAME": "n1"}
SHELL = {"SLURM_JOB_ID": "4", "SLURM_JOB_CPUS_PER_NODE": "2", "SLURM_JOB_NODELIST": "n1"}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    write(tmp_path, NODE)
    write_unified(tmp_path / "cgroup")
    return tmp_path


def reading(root: Path) -> NodeReader:
    names = {"procfs": root / "proc", "sysfs": root / "sys", "cgroupfs": root / "cgroup"}
    return NodeReader(**names, name=str, nodes=("n1",))  # type: ignore[arg-type]


def group(root: Path, user_s: float, system_s: float, *, started: float | None = None) -> Path:
    usage = [round(1e6 * each) for each in (user_s + system_s, user_s, system_s)]
    said = "usage_usec {}\nuser_usec {}\nsystem_usec {}\n".format(*usage)
    folder = write_group(root / "cgroup" / SCOPE / "job_4", cpu_stat=said)
    if started is not None:
        os.utime(folder, (started, started))
    return folder


def stray(root: Path, cpu_s: float, pid: int = 70, told: dict[str, str] = TOLD) -> Path:
    return write_process(root / "proc", pid, cpu_s=cpu_s, environment=told, pages=9_000)


def only(snapshot: Snapshot) -> dict[str, float]:
    assert [unit.job_id for unit in snapshot.units] == ["4"]
    names = ("cpu_s", "memory_bytes", "read_bytes", "processes", "reserved_cpus", "reserved_bytes")
    found = {name: float(getattr(snapshot, name)[0]) for name in names}
    return found | {"system_s": float(snapshot.system_s[0]), "loose": float(len(snapshot.loose))}


def test_a_stray_adds_its_cpu_time_and_nothing_else(root: Path) -> None:
    group(root, 10.0, 2.0)
    with reading(root) as node:
        alone = only(first := node.read())
        stray(root, 1.5)
        group(root, 13.0, 2.5)
        both = only(second := node.read())
        stray(root, 4.0)
        later = only(node.read())
        shutil.rmtree(root / "proc/70")
        without = only(last := node.read())
    assert both == alone | {"cpu_s": 15.5 + 1.5, "system_s": 2.5}
    assert later == both | {"cpu_s": 15.5 + 4.0}
    assert without == later
    assert {each.units[0].key for each in (first, second, last)} == {first.units[0].key}
    assert (alone["reserved_cpus"], alone["reserved_bytes"]) == (2, 4294967296)


def test_what_a_stray_used_before_anybody_looked_is_not_added(root: Path) -> None:
    group(root, 10.0, 2.0)
    stray(root, 100.0)
    with reading(root) as node:
        assert only(node.read())["cpu_s"] == 12.0
        stray(root, 101.0)
        assert only(node.read())["cpu_s"] == 13.0


def test_what_moves_out_of_its_group_is_not_counted_twice(root: Path) -> None:
    group(root, 10.0, 2.0)
    inside = f"0::/{SCOPE}/job_4"
    write_process(root / "proc", 70, cpu_s=9.0, environment=TOLD, cgroup=inside)
    with reading(root) as node:
        assert only(node.read())["cpu_s"] == 12.0
        write_process(root / "proc", 70, cpu_s=9.0, environment=TOLD)
        for process in node._processes._processes.values():
            process.due = 0.0
        assert only(node.read())["cpu_s"] == 12.0
        stray(root, 9.5)
        assert only(node.read())["cpu_s"] == 12.5


JOB = "/slurm_n1/uid_0/job_4"
OUTSIDE = "6:freezer:/\n2:cpuacct,cpu:/"
FROZEN = f"6:freezer:{JOB}/step_batch\n2:cpuacct,cpu:/"
INSIDE = f"6:freezer:{JOB}/step_batch\n2:cpuacct,cpu:{JOB}/step_batch/task_0"


@pytest.fixture
def one(tmp_path: Path) -> Path:
    """A node of version 1 before its first job."""
    write(tmp_path, NODE)
    for name in ("cpuacct", "freezer"):
        write(tmp_path, f"cgroup/{name}/tasks =\ncgroup/{name}/cgroup.procs =")
        (tmp_path / "cgroup" / name / JOB.split("/")[1]).mkdir()
    return tmp_path


def run(root: Path, cpu_s: float, cgroup: str, **more: Any) -> Path:
    more = {"environment": TOLD, "parent": 60} | more
    return write_process(root / "proc", 70, cpu_s=cpu_s, cgroup=cgroup, **more)


def cpu_of(snapshot: Snapshot) -> float:
    assert [unit.job_id for unit in snapshot.units] == ["4"]
    return float(snapshot.cpu_s[0])


def count(root: Path, usage_s: float) -> None:
    write_legacy(root / "cgroup", JOB, usage_s=usage_s)


def test_what_slurm_moves_into_a_group_is_not_counted_twice(one: Path) -> None:
    """Slurm makes the freezer's group first, and the one that counts a moment later."""
    write_process(one / "proc", 60, name="slurmstepd", cgroup=OUTSIDE)
    with reading(one) as node:
        node.read()
        (one / "cgroup/freezer" / JOB[1:]).mkdir(parents=True)
        run(one, 0.05, FROZEN)
        node.look()
        count(one, 0.3)
        run(one, 0.35, INSIDE)
        node.look()
        assert cpu_of(node.read()) == pytest.approx(0.35)
        count(one, 2.3)
        run(one, 2.35, INSIDE)
        assert cpu_of(node.read()) == pytest.approx(2.35)


def test_what_moves_from_one_place_outside_to_another_goes_on_counting(root: Path) -> None:
    group(root, 10.0, 2.0)
    with reading(root) as node:
        node.read()
        for cpu_s, cgroup in ((1.5, "0::/"), (4.0, "0::/elsewhere"), (4.5, "0::/elsewhere")):
            write_process(root / "proc", 70, cpu_s=cpu_s, environment=TOLD, cgroup=cgroup)
            assert cpu_of(node.read()) == pytest.approx(12.0 + cpu_s)


def test_what_is_in_a_group_that_nobody_saw_come_is_not_counted_twice(one: Path) -> None:
    """The group is made after the groups were looked at, and before the processes were."""
    with reading(one) as node:
        node.read()
        home = node._processes.home

        def made(said: str) -> Group | None:
            count(one, 0.2)
            return home(said)

        run(one, 0.2, INSIDE, parent=1)
        node._processes.home = made
        assert cpu_of(node.read()) == pytest.approx(0.2)
        node._processes.home = home
        count(one, 0.9)
        run(one, 0.9, INSIDE, parent=1)
        node.look()
        assert cpu_of(node.read()) == pytest.approx(0.9)


@pytest.mark.parametrize("dead", [False, True])
def test_what_moves_into_a_group_and_ends_is_not_counted_by_who_waited(
    one: Path, dead: bool
) -> None:
    """Slurm's helper is outside of the group that counts, and waits for the script."""
    helper = {"name": "slurmstepd", "cgroup": FROZEN}
    (one / "cgroup/freezer" / JOB[1:]).mkdir(parents=True)
    write_process(one / "proc", 60, **helper)  # type: ignore[arg-type]
    with reading(one) as node:
        node.read()
        script = run(one, 0.05, FROZEN)
        node.look()
        count(one, 0.7)
        if dead:
            run(one, 0.75, "0::/", environment={}, dead=True)
            node.look()
        shutil.rmtree(script)
        write_process(one / "proc", 60, cpu_s=0.75, waited_s=0.75, **helper)  # type: ignore[arg-type]
        assert cpu_of(node.read()) == pytest.approx(0.75)
        assert cpu_of(node.read()) == pytest.approx(0.75)


def test_the_shell_of_an_allocation_and_its_steps_are_one_job(root: Path) -> None:
    """A shell, two steps that come and go one after the other, and the end of the shell."""
    folder = root / "cgroup" / SCOPE / "job_4"
    seen: list[Snapshot] = []
    with reading(root) as node:
        stray(root, 0.1, told=SHELL)
        node.read()
        for number in (1, 2):
            group(root, 3.0, 1.0, started=1.7e9 + 500 * number)
            seen.append(node.read())
            shutil.rmtree(folder)
            seen.append(node.read())
            seen.append(node.read())
        stray(root, 0.3, told=SHELL)
        seen.append(node.read())
        shutil.rmtree(root / "proc/70")
        seen.append(node.read())
        assert node.read().units == ()
    assert len({each.units[0].key for each in seen}) == 1
    assert [len(each.units) for each in seen] == [1] * len(seen)
    used = [float(each.cpu_s[0]) for each in seen]
    assert used == pytest.approx([4.1, 4.1, 4.1, 8.1, 8.1, 8.1, 8.3, 8.3])
    # What is kept for the job is kept between its steps, too.
    assert {float(each.reserved_cpus[0]) for each in seen} == {2.0}
    assert not any(each.loose for each in seen)
    assert seen[-1].ended is not None


def test_what_outlives_its_job_keeps_nothing(root: Path) -> None:
    folder = group(root, 10.0, 2.0)
    stray(root, 1.0)
    with reading(root) as node:
        node.read()
        shutil.rmtree(folder)
        node.read()
        left = only(node.read())
    assert math.isnan(left["reserved_cpus"])
    assert left["cpu_s"] == 12.0


def test_a_shell_elsewhere_than_its_allocation_keeps_nothing(root: Path) -> None:
    stray(root, 1.0, told=SHELL | {"SLURM_JOB_NODELIST": "n7"})
    with reading(root) as node:
        assert np.isnan(node.read().reserved_cpus).all()


@pytest.mark.parametrize("first", [True, False])
def test_no_counter_of_a_page_is_negative_or_falls(root: Path, first: bool) -> None:
    watcher = Watcher(reader=reading(root), power=Drawn([50.0]), host="n1")
    page = Exposition(compat=("ceems",))
    counted: dict[str, float] = {}
    group(root, 1000.0, 500.0)
    if first:
        stray(root, 50.0)
    watcher.tick()
    for step in range(6):
        group(root, 1000.0 + step, 500.0 + 2 * step)
        if step == 3:
            shutil.rmtree(root / "proc/70", ignore_errors=True)
        elif step:
            stray(root, 50.0 + step)
        tick = watcher.tick()
        assert tick is not None
        for line in page.render(tick).whole.decode().splitlines():
            name, _, value = line.rpartition(" ")
            if "seconds_total{" in name and not line.startswith("#"):
                assert float(value) >= counted.get(name, 0.0), line
                counted[name] = float(value)
        assert tick.cpu_s[0] >= 1500.0
    watcher.reader.close()  # type: ignore[attr-defined]


@given(st.data())
def test_parts_that_come_and_go_make_one_job(data: st.DataObject) -> None:
    """However groups and strays of a job come and go, it is one, and counts what they used."""
    jobs = Jobs()
    live: list[Part] = []
    last_s, kept, key = 0.0, math.nan, None
    total_s = 0.0
    for step in range(data.draw(st.integers(2, 12))):
        came = data.draw(st.sampled_from(["", "group", "stray"])) if live else "group"
        if came:
            loose = came == "stray"
            begun_s = data.draw(st.integers(0, 5))
            live.append(Part(job(100.0 + 50 * step), begun_s, loose=loose))
            total_s += begun_s
            if not loose:
                live[-1].reserved_cpus, live[-1].memory_bytes = 2.0, 7.0
            else:
                live[-1].reserved_cpus, live[-1].memory_bytes = 99.0, 99.0
        for part in live:
            used_s = data.draw(st.integers(0, 3))
            part.cpu_s += used_s
            total_s += used_s
        # One that was there before stays: else it could as well be another start of the job.
        if len(live) > 1 + bool(came) and data.draw(st.booleans()):
            live[data.draw(st.integers(0, len(live) - 1))].gone = True
        columns = Columns(list(live), jobs)  # type: ignore[arg-type]
        (unit,) = columns.units
        key = key or unit.key
        assert unit.key == key
        used = float(columns.column("cpu_s")[0])
        assert used == pytest.approx(total_s)
        assert used >= last_s
        last_s = used
        groups = [part for part in live if not part.loose and not part.gone]
        ended = [part for part in live if not part.loose and part.gone]
        kept = 2.0 * len(groups or ended) or math.nan
        assert float(columns.reserved("reserved_cpus")[0]) == pytest.approx(kept, nan_ok=True)
        if groups:
            assert float(columns.held("memory_bytes")[0]) == 7.0 * len(groups)
        assert columns.loose == frozenset()
        live = [part for part in live if not part.gone]
