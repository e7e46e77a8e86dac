"""Two jobs side by side on a real Slurm, and a watch that is right about both."""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from support.slurm import ask, running_slurm

pytestmark = pytest.mark.alone

LOWTIDE = Path(sys.executable).with_name("lowtide")
# Control groups v1 as Slurm uses them; a host with v2 alone tracks its jobs otherwise.
HAS_V1 = all(Path(f"/sys/fs/cgroup/{name}/tasks").exists() for name in ("cpuacct", "freezer"))

# Keeps a part of one CPU busy for a while, children included, and says how much that was: by the
# kernel's account of its group where it has one, else by its own.
BURN = """#!/bin/bash
exec {python} -c '
import os, subprocess, sys, time
end = time.time() + {seconds}
while time.time() < end:
    until = time.time() + 0.05
    while time.time() < until:
        pass
    time.sleep({pause})
for _ in range(3):
    subprocess.run([sys.executable, "-c", "sum(range(3_000_000))"])
group = "/sys/fs/cgroup/cpuacct/slurm_n1/uid_%d/job_%s" % (os.getuid(), os.environ["SLURM_JOB_ID"])
if os.path.exists(group):
    print(int(open(group + "/cpuacct.usage").read()) / 1e9)
else:
    used = os.times()
    print(used.user + used.system + used.children_user + used.children_system)
'
"""


@contextmanager
def watching(store: Path, environment: dict[str, str]) -> Iterator[list[dict[str, Any]]]:
    """Run `lowtide watch` beside; afterwards the list holds all its ticks."""
    ticks: list[dict[str, Any]] = []
    said = store.with_suffix(".json")
    with said.open("w") as output:
        program = subprocess.Popen(
            [
                *(str(LOWTIDE), "watch", "--interval", "1", "--json"),
                *("--store", str(store), "--meter", "estimate", "--grid", "windy"),
            ],
            env={**os.environ, **environment},
            stdout=output,
        )
    try:
        end = time.monotonic() + 20
        while not said.stat().st_size and time.monotonic() < end:
            time.sleep(0.1)
        yield ticks
    finally:
        program.send_signal(signal.SIGTERM)
        program.wait(timeout=30)
        ticks.extend(json.loads(line) for line in said.read_text().splitlines())
    assert program.returncode == 0


@pytest.mark.parametrize("cgroups", [False, *([True] if HAS_V1 else [])])
def test_two_jobs_side_by_side(tmp_path: Path, cgroups: bool) -> None:
    store = tmp_path / "store.sqlite"
    used = {}
    with running_slurm(nodes=1, cpus=2, cgroups=cgroups) as environment:
        with watching(store, environment) as ticks:
            for name, pause in (("hard", 0.0), ("easy", 0.1)):
                script = tmp_path / f"{name}.sh"
                script.write_text(BURN.format(python=sys.executable, seconds=8, pause=pause))
                output = tmp_path / f"{name}.out"
                said = ask(
                    environment, "sbatch", "-c", "1", "-J", name, "-o", str(output), str(script)
                )
                used[said.split()[-1]] = output
            end = time.monotonic() + 40
            while ask(environment, "squeue", "-h") and time.monotonic() < end:
                time.sleep(0.5)
            time.sleep(2.5)
        own_s = {job: float(path.read_text()) for job, path in used.items()}

    for tick in ticks:
        parts = [tick["idle_w"], tick["unattributed_w"], *(job["power_w"] for job in tick["jobs"])]
        assert math.fsum(parts) == pytest.approx(tick["node_w"], rel=1e-9)
    done = subprocess.run(
        [str(LOWTIDE), "jobs", "--store", str(store), "--json"],
        capture_output=True,
        text=True,
        check=True,
    )
    rows = {row["job_id"]: row for row in json.loads(done.stdout)}
    for job, cpu_s in own_s.items():
        # What is used in the last moments may go unseen: Slurm removes the groups of its last job
        # with all that stands above them. What a job says of itself lacks its shell's start.
        assert rows[job]["cpu_s"] == pytest.approx(cpu_s, rel=0.02, abs=0.15)
        assert rows[job]["source"] == "slurm"
        assert rows[job]["energy_j"] > 0
        assert rows[job]["carbon_g"] > 0
    hard, easy = (rows[job]["energy_j"] for job in own_s)
    assert hard > 1.3 * easy
    last = ticks[-1]
    seen = {}
    for tick in ticks:
        seen |= {(job["source"], job["job_id"], job["started"]): job for job in tick["jobs"]}
    together = math.fsum(job["energy_j"] for job in seen.values())
    whole = together + last["idle_energy_j"] + last["unattributed_energy_j"]
    assert whole == pytest.approx(last["node_energy_j"], rel=1e-9)
