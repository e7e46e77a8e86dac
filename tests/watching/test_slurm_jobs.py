"""Two jobs side by side on a real Slurm, and a watch that is right about both."""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from support.slurm import ask, running_slurm, used_s

pytestmark = [pytest.mark.alone, pytest.mark.slurm]

LOWTIDE = Path(sys.executable).with_name("lowtide")
# Control groups v1 as Slurm uses them; a host with v2 alone tracks its jobs otherwise.
HAS_V1 = all(Path(f"/sys/fs/cgroup/{name}/tasks").exists() for name in ("cpuacct", "freezer"))

# Keeps a part of one CPU busy for a while, children included, and waits until it may end. Its last
# act is to say what all of it used: by the kernel's account of its group where it has one, else by
# what its shell and all that this waited for used. What is left is the end of a shell.
BURN = """#!/bin/bash
{python} -c '
import subprocess, sys, time
end = time.time() + {seconds}
while time.time() < end:
    until = time.time() + 0.05
    while time.time() < until:
        pass
    time.sleep({pause})
for _ in range(3):
    subprocess.run([sys.executable, "-c", "sum(range(3_000_000))"])
'
until [ -e {go} ]; do sleep 0.2; done
group=/sys/fs/cgroup/cpuacct/slurm_n1/uid_$(id -u)/job_$SLURM_JOB_ID
if [ -e $group ]; then cat $group/cpuacct.usage; else times; fi
"""


def until(is_so: Callable[[], object]) -> None:
    """Wait for something that a busy machine may take long for."""
    end = time.monotonic() + 60
    while not is_so():
        assert time.monotonic() < end
        time.sleep(0.1)


@contextmanager
def watching(
    store: Path, environment: dict[str, str]
) -> Iterator[Callable[[], list[dict[str, Any]]]]:
    """Run `lowtide watch` beside; what is yielded returns all its ticks so far."""
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

    def ticks() -> list[dict[str, Any]]:
        # The last line may be half written.
        return [json.loads(line) for line in said.read_text().split("\n")[:-1]]

    try:
        until(ticks)
        yield ticks
    finally:
        program.send_signal(signal.SIGTERM)
        program.wait(timeout=30)
    assert program.returncode == 0


@pytest.mark.parametrize("cgroups", [False, *([True] if HAS_V1 else [])])
def test_two_jobs_side_by_side(tmp_path: Path, cgroups: bool) -> None:
    store = tmp_path / "store.sqlite"
    said: dict[str, Path] = {}

    def submit(name: str, *command: str) -> str:
        options = ("sbatch", "--parsable", "-c", "1", "-J", name)
        return ask(environment, *options, "-o", str(tmp_path / f"{name}.out"), *command)

    def is_over(job: str) -> bool:
        there = [{each["job_id"] for each in tick["jobs"]} for tick in so_far()]
        return job not in there[-1] and any(job in jobs for jobs in there)

    with running_slurm(nodes=1, cpus=3, cgroups=cgroups) as environment:
        with watching(store, environment) as so_far:
            # Slurm removes with the groups of its last job all that stands above them, and with
            # that what the job used in its last moments: this one stays.
            submit("stays", "--wrap", "sleep 300")
            for name, pause in (("hard", 0.0), ("easy", 0.1)):
                script, go = tmp_path / f"{name}.sh", tmp_path / f"{name}.go"
                script.write_text(BURN.format(python=sys.executable, seconds=5, pause=pause, go=go))
                said[submit(name, str(script))] = tmp_path / f"{name}.out"
            hard, easy = said
            # Of two that end in one step only the sum is known.
            for name, job in (("easy", easy), ("hard", hard)):
                (tmp_path / f"{name}.go").touch()
                until(lambda job=job: is_over(job))
            ask(environment, "scancel", "-n", "stays")
            until(lambda: not ask(environment, "squeue", "-h"))
        ticks = so_far()

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
    for job, path in said.items():
        # What a job says of itself lacks the end of its shell, and the start of Slurm's helper,
        # which is outside of the group; each process is counted in hundredths of a second.
        assert rows[job]["cpu_s"] == pytest.approx(used_s(path.read_text()), abs=0.15)
        assert rows[job]["source"] == "slurm"
        assert rows[job]["energy_j"] > 0
        assert rows[job]["carbon_g"] > 0
    assert rows[hard]["energy_j"] > 1.3 * rows[easy]["energy_j"]
    last = ticks[-1]
    seen = {}
    for tick in ticks:
        seen |= {(job["source"], job["job_id"], job["started"]): job for job in tick["jobs"]}
    together = math.fsum(job["energy_j"] for job in seen.values())
    whole = together + last["idle_energy_j"] + last["unattributed_energy_j"]
    assert whole == pytest.approx(last["node_energy_j"], rel=1e-9)
