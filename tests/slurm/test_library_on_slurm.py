"""Jobs of two programs on a real Slurm, watched, become a library that foretells the next runs."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from support.slurm import ask, running_slurm

pytestmark = [pytest.mark.alone, pytest.mark.slurm]

LOWTIDE = Path(sys.executable).with_name("lowtide")
# One keeps a CPU busy for half of its time, the other waits.
PROGRAMS = {
    "burn": "timeout 2 sh -c 'while :; do :; done'; sleep 2",
    "wait": "sleep 3.5",
}
KNOWN = 3


def until(is_so: Callable[[], object]) -> None:
    """Wait for something that a busy machine may take long for."""
    end = time.monotonic() + 90
    while not is_so():
        assert time.monotonic() < end
        time.sleep(0.2)


def test_watched_jobs_foretell_the_next_runs(tmp_path: Path) -> None:
    store, library = tmp_path / "store.sqlite", tmp_path / "library"
    environment = {**os.environ, "LOWTIDE_PROFILES": str(library), "LOWTIDE_STORE": str(store)}

    def told(*words: str) -> Any:
        done = subprocess.run(
            [str(LOWTIDE), *words, "--json"], env=environment, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    def known(state: str = "completed") -> set[str]:
        return {row["job_id"] for row in told("jobs") if row["state"] == state}

    with running_slurm(nodes=1, cpus=2) as slurm:
        environment |= slurm
        watch = subprocess.Popen(
            [str(LOWTIDE), "watch", "--interval", "0.5", "--meter", "estimate"],
            env=environment,
            stdout=subprocess.DEVNULL,
        )

        def run_all(*numbers: int) -> dict[str, str]:
            """Run each program once for each number, two jobs at a time; return the last ones."""
            jobs = {
                (name, number): ask(
                    slurm,
                    *("sbatch", "--parsable", "-c", "1", "-o", "/dev/null"),
                    *("-J", f"{name}_{number}", "--wrap", command),
                )
                for number in numbers
                for name, command in PROGRAMS.items()
            }
            # To ask Slurm costs less than to ask the store, which is asked once they are over.
            until(lambda: not ask(slurm, "squeue", "-h"))
            until(lambda: set(jobs.values()) <= known())
            return {name: jobs[name, numbers[-1]] for name in PROGRAMS}

        try:
            until(store.exists)
            run_all(*range(KNOWN))
            learned = told("learn", "--from-store")
            last = run_all(KNOWN)
        finally:
            watch.send_signal(signal.SIGTERM)
            watch.wait(timeout=30)

    found = {each["name"]: each for each in learned["programs"]}
    assert set(found) == {"burn_#", "wait_#"}
    rows = {row["job_id"]: row for row in told("jobs")}
    for name, job in last.items():
        program = found[f"{name}_#"]
        assert program["profile"] == name, program
        # A busy machine may have looked at one of them in part; what was left out is named.
        assert program["runs"] + len(program["left_out"]) == KNOWN
        assert program["power"] == "estimated"
        row = rows[job]
        assert program["duration_s"]["value"] == pytest.approx(row["elapsed_s"], rel=0.3, abs=2.5)
        assert program["energy_j"]["value"] == pytest.approx(row["energy_j"], rel=0.5)
        assert told("show", job)["expected"]["profile"] == name
    planned = told("plan", "--profile", "burn", "--deadline", "+2h", "--grid", "windy")
    assert planned["plans"][0]["footprint"]["energy_j"] == pytest.approx(
        found["burn_#"]["energy_j"]["value"], rel=1e-3
    )
    mean_w = {
        name: each["energy_j"]["value"] / each["duration_s"]["value"]
        for name, each in found.items()
    }
    assert mean_w["burn_#"] > mean_w["wait_#"]
