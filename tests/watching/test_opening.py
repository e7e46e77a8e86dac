"""A watch put together: which meters and GPUs it has, of this machine and of recorded ones."""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from lowtide.meters import Roots
from lowtide.monitor.tick import Tick
from lowtide.watching.service import Watch, open_watch
from support.meters import BOOT, hanging, rapl_tree, tree
from support.trees import NODE, cpu, write, write_group, write_process, write_unified

CARDS = [
    {
        "gpu": 0,
        "power": {"socket_power": {"value": 300, "unit": "W"}},
        "usage": {"gfx_activity": {"value": 40, "unit": "%"}},
        "mem_usage": {
            "total_vram": {"value": 64, "unit": "MB"},
            "used_vram": {"value": 16, "unit": "MB"},
        },
    }
]


@pytest.fixture
def tools(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")
    monkeypatch.setitem(__import__("sys").modules, "pynvml", None)
    return folder


def machine(root: Path, *, here: bool) -> Callable[[int], None]:
    """Write a node with a job that was given GPU 0; return what lets it count on."""
    write(root, NODE)
    if here:
        tree(root, {BOOT: (Path("/") / BOOT).read_text()})
    two = write_unified(root / "sys/fs/cgroup")
    job = two / "system.slice/slurmstepd.scope/job_7"
    write(job / "step_0", "cgroup.procs = 80")
    write_process(
        root / "proc",
        80,
        cgroup="0::/system.slice/slurmstepd.scope/job_7/step_0",
        environment={"SLURM_JOB_ID": "7", "SLURM_JOB_GPUS": "0", "ROCR_VISIBLE_DEVICES": "0"},
    )

    def go_on(step: int) -> None:
        ticks = f"{1000 + 50 * step} 0 0 {9000 + 50 * step} 0 0 0 0"
        write(root, f"proc/stat = cpu  {ticks}\\ncpu0 1 1 1\\nbtime 1700000000")
        write_group(job, cpu_stat=cpu(100 + 0.5 * step))

    go_on(0)
    return go_on


def next_tick(watch: Watch) -> Tick:
    time.sleep(0.6)
    tick = watch.watcher.tick()
    assert tick is not None
    return tick


def test_amd_cards_are_their_holders_and_the_rest_is_estimated(tmp_path: Path, tools: Path) -> None:
    go_on = machine(tmp_path, here=True)
    (tools / "amd-smi").write_text(f"#!/bin/sh\necho '{json.dumps(CARDS)}'\n")
    (tools / "amd-smi").chmod(0o755)
    roots = Roots(sysfs=tmp_path / "sys", procfs=tmp_path / "proc")
    with open_watch(roots=roots, host="n1") as watch:
        watch.watcher.tick()
        go_on(1)
        tick = next_tick(watch)
    place = [unit.job_id for unit in tick.units].index("7")
    assert tick.shares.gpu_w[place] == 300.0
    assert tick.gpus[0].holders == {place: 1.0}
    assert (tick.gpus_busy[place], tick.reserved_gpus[place]) == (0.4, 1.0)
    assert tick.gpu_memory_bytes[place] == 16 * 2**20
    # The tool says nothing about the rest of the node, which is estimated and said to be.
    assert tick.shares.node_w > 300.0
    assert tick.shares.node_measured_w == pytest.approx(300.0)
    assert (tick.shares.measured, tick.shares.sees) == (False, ("gpu",))
    assert tick.shares.measured_w[place] == pytest.approx(300.0)
    assert 0 < tick.measured_j[place] < tick.energy_j[place]
    whole = math.fsum([*tick.energy_j, tick.idle_energy_j, tick.unattributed_energy_j])
    assert whole == pytest.approx(tick.node_energy_j, rel=1e-12)
    assert not [each for each in tick.problems if "does not answer" in each]


def test_a_recorded_tree_is_not_mixed_with_this_machine(tmp_path: Path, tools: Path) -> None:
    go_on = machine(tmp_path, here=False)
    (tools / "amd-smi").write_text(f"#!/bin/sh\necho '{json.dumps(CARDS)}'\n")
    (tools / "amd-smi").chmod(0o755)
    roots = Roots(sysfs=tmp_path / "sys", procfs=tmp_path / "proc")
    with open_watch(roots=roots) as watch:
        watch.watcher.tick()
        go_on(1)
        tick = next_tick(watch)
        assert watch.power.names == ["estimate (node)"]
    assert tick.gpus == ()
    assert not tick.shares.measured
    # The card of this machine alone would come to more.
    assert tick.shares.node_w < 300


def test_what_hangs_or_may_not_be_read_is_named_and_the_rest_goes_on(
    tmp_path: Path, tools: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    go_on = machine(tmp_path, here=True)
    rapl_tree(tmp_path)
    allowed = os.access

    def refused(path: Path, mode: int) -> bool:
        return "energy_uj" not in str(path) and allowed(path, mode)

    monkeypatch.setattr("lowtide.meters.rapl.os.access", refused)
    for name in ("ipmitool", "scontrol"):
        hanging(tools, name)
    roots = Roots(sysfs=tmp_path / "sys", procfs=tmp_path / "proc")
    begun = time.monotonic()
    with open_watch(roots=roots) as watch:
        assert time.monotonic() - begun < 3.0
        watch.watcher.tick()
        go_on(1)
        first = next_tick(watch)
        go_on(2)
        second = next_tick(watch)
    told = [each for each in first.problems if each.startswith("meter ")]
    assert [each.split()[1] for each in told] == ["rapl", "ipmi", "slurm"]
    assert "chmod" in told[0]
    assert not [each for each in second.problems if each in told], "each is named once"
    assert np.isfinite(first.shares.power_w).all()
    assert not first.shares.measured


def test_counters_that_stand_still_are_no_measurement(tmp_path: Path, tools: Path) -> None:
    """Nothing moves: what the node draws is estimated, and never a measured 0 W."""
    go_on = machine(tmp_path, here=False)
    rapl_tree(tmp_path)
    roots = Roots(sysfs=tmp_path / "sys", procfs=tmp_path / "proc")
    with open_watch(roots=roots) as watch:
        watch.watcher.tick()
        go_on(1)
        first = next_tick(watch)
        go_on(2)
        second = next_tick(watch)
    for seen in (first, second):
        assert not seen.shares.measured
        assert seen.shares.node_w > 0
        assert seen.shares.node_measured_w == 0
