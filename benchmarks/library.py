"""How long it takes to learn a library from a store, and how right it is about the next runs.

A store is made, from a seed, of jobs of many programs: each starts up, repeats epochs of two phases
and ends, and each run differs a little. Users share names. Every program is learned from all its
runs but the last five, which are predicted. Exits with 1 if a figure is beyond its limit. SEED=1
draws other programs than those of the record; the intervals were settled without looking at any.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from lowtide.library.programs import common_name
from lowtide.monitor.snapshot import FloatArray, JobFacts, NodeCounts, Unit
from lowtide.monitor.tick import Shares, Tick
from lowtide.store import Store

MOST_CPU_S = 60.0
MOST_BYTES = 1e9
# How far off the energy and the duration of the next run may be, at the median.
MOST_OFF = {"energy_j": 0.02, "duration_s": 0.03}
# Intervals of 90 % hold so many of the next runs: one of each program would tell that to 2 points
# in a hundred, five tell it to one.
HELD = (0.88, 0.95)
NEXT = 5
STEP_S = 30.0
TOGETHER = 200
BEGIN = 1.7e9
NAMES = ("train", "md", "cfd", "fold", "mcmc")
UNKNOWN = ("received_bytes", "sent_bytes", "carbon_g", "marginal_g", "embodied_g")
ZEROS = (
    *("cpu_wait_s", "memory_wait_s", "io_wait_s", "major_faults", "unmetered_s", "unpriced_j"),
    *("read_bytes", "written_bytes"),
)


@dataclass(frozen=True, kw_only=True)
class Run:
    """One job: whose, and what it draws from when to when, in seconds after its start."""

    unit: Unit
    cpus: float
    edges_s: FloatArray
    watts: FloatArray

    @property
    def end(self) -> float:
        """When it is over."""
        return self.unit.started + float(self.edges_s[-1])

    @property
    def energy_j(self) -> float:
        """What it draws in all."""
        return float(np.diff(self.edges_s) @ self.watts)

    def upto_j(self, time: float) -> float:
        """Return what it has drawn by some moment."""
        reached = np.concatenate(([0.0], np.cumsum(np.diff(self.edges_s) * self.watts)))
        return float(np.interp(time - self.unit.started, self.edges_s, reached))


def draw(programs: int, runs: int, rng: np.random.Generator) -> tuple[list[Run], list[Run]]:
    """Return the runs to learn from, and the next ones of each program."""
    known: list[Run] = []
    unseen: list[Run] = []
    for program in range(programs):
        high_w = float(rng.uniform(100, 900))
        startup = (rng.uniform(90, 300), rng.uniform(0.2, 0.5) * high_w)
        epoch = [
            (rng.uniform(240, 600), high_w),
            (rng.uniform(90, 240), rng.uniform(0.3, 0.7) * high_w),
        ]
        parts = np.array([startup, *(epoch * int(rng.integers(2, 6))), (90.0, 0.3 * high_w)])
        cpus = float(2 ** rng.integers(0, 6))
        spread = float(rng.choice([0.01, 0.03]))
        user, name = f"user{program % 40}", f"{NAMES[program % len(NAMES)]}{program // 40}"
        for number in range(runs + NEXT):
            seconds = parts[:, 0] * np.exp(spread * rng.standard_normal(len(parts)))
            watts = parts[:, 1] * np.exp(0.5 * spread * rng.standard_normal(len(parts)))
            job = 1 + program + programs * number
            made = Run(
                unit=Unit(
                    source="slurm",
                    job_id=str(job),
                    started=BEGIN + 7200.0 * (job // TOGETHER) + STEP_S * (job % 20),
                    user=user,
                    name=f"{'abcdefgh'[program // 40 % 8]}-{name}_{job}",
                ),
                cpus=cpus,
                edges_s=np.concatenate(([0.0], np.cumsum(seconds))),
                watts=watts,
            )
            (unseen if number >= runs else known).append(made)
    return known, unseen


def ticks(runs: list[Run]) -> Iterator[Tick]:
    """Yield what a watcher of one large node says while they run."""
    waiting = sorted(runs, key=lambda run: -run.unit.started)
    there: list[Run] = []
    now = BEGIN
    while waiting or there:
        since, now = now, now + STEP_S
        while waiting and waiting[-1].unit.started < now:
            there.append(waiting.pop())
        there = [run for run in there if run.end > since]
        if not there:
            now = max(STEP_S * np.floor(waiting[-1].unit.started / STEP_S), now) if waiting else now
            continue
        count = len(there)
        total = np.array([run.upto_j(now) for run in there])
        power = (total - [run.upto_j(since) for run in there]) / STEP_S
        yield Tick(
            host="n1",
            since=since,
            time=now,
            node=NodeCounts(cpus=4096, busy_s=now, memory_bytes=5e12, available_bytes=2e12),
            units=tuple(run.unit for run in there),
            cpu_s=total / 50,
            cpus_busy=power / 50,
            memory_bytes=np.full(count, 1e9),
            gpus_busy=np.zeros(count),
            gpu_memory_bytes=np.zeros(count),
            reserved_cpus=np.array([run.cpus for run in there]),
            reserved_bytes=np.full(count, 2e9),
            reserved_gpus=np.zeros(count),
            energy_j=total,
            measured_j=total,
            shares=Shares(
                node_w=float(power.sum()) + 100,
                power_w=power,
                gpu_w=np.zeros(count),
                idle_w=100.0,
                unattributed_w=0.0,
                measured_w=power,
                node_measured_w=float(power.sum()) + 100,
                measured=True,
            ),
            node_energy_j=0.0,
            idle_energy_j=0.0,
            unattributed_energy_j=0.0,
            intensity_g_per_kwh=np.nan,
            **dict.fromkeys(UNKNOWN, np.full(count, np.nan)),
            **dict.fromkeys(ZEROS, np.zeros(count)),
        )


def write_store(path: Path, runs: list[Run]) -> None:
    """Write a store in which all of them were watched and completed."""
    with Store.open(path) as store:
        for tick in ticks(runs):
            store.append(tick)
        store.put_facts(
            JobFacts(
                source="slurm",
                job_id=run.unit.job_id,
                state="completed",
                user=run.unit.user,
                name=run.unit.name,
                nodes=("n1",),
                started=run.unit.started,
                ended=run.end,
                cpus=run.cpus,
                exit_code=0,
                restarts=0,
            )
            for run in runs
        )


def main() -> int:
    """Print the figures; return 1 if one is missed."""
    programs, jobs = int(os.environ.get("PROGRAMS", "200")), int(os.environ.get("JOBS", "10000"))
    seed = int(os.environ.get("SEED", "14"))
    known, unseen = draw(programs, jobs // programs, np.random.default_rng(seed))
    with tempfile.TemporaryDirectory() as folder:
        store = Path(folder) / "store.sqlite"
        write_store(store, known)
        command = [sys.executable, "-m", "lowtide", "learn", "--from-store", str(store), "--json"]
        wall = time.perf_counter()
        done = subprocess.run(
            [*command, "--library", str(Path(folder) / "library")],
            check=True,
            capture_output=True,
            text=True,
        )
        wall = time.perf_counter() - wall
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu_s, most_bytes = used.ru_utime + used.ru_stime, 1024.0 * used.ru_maxrss
    print(f"{jobs} watched jobs of {programs} programs, the newest 40 of each looked at")
    missed = 0

    def line(what: str, value: float, low: float, high: float, unit: str, beside: str = "") -> None:
        nonlocal missed
        met = low <= value <= high
        missed += not met
        limits = f"({low:g} to {high:g}{'' if met else '  MISSED'})"
        print(f"{what:<44} {value:9.3f} {unit:<3} {limits} {beside}")

    line("CPU time to learn all of them", cpu_s, 0, MOST_CPU_S, "s", f"{wall:.1f} s by the clock")
    line("memory at most", most_bytes / 1e6, 0, MOST_BYTES / 1e6, "MB")
    found = json.loads(done.stdout)["programs"]
    right = {(each["user"], each["name"]): each for each in found if each["profile"]}
    line("programs found", len(found), programs, programs, "")
    off: dict[str, list[float]] = {"energy_j": [], "duration_s": []}
    held: dict[str, list[bool]] = {"energy_j": [], "duration_s": []}
    for run in unseen:
        name = common_name(run.unit.name)
        (entry,) = [e for (user, job), e in right.items() if user == run.unit.user and job == name]
        for key, truth in (("energy_j", run.energy_j), ("duration_s", float(run.edges_s[-1]))):
            expected = entry[key]
            off[key].append(abs(expected["value"] / truth - 1))
            held[key].append(expected["low"] <= truth <= expected["high"])
    for key in off:
        what = key.partition("_")[0]
        line(f"{what} of the next runs off by, median", np.median(off[key]), 0, MOST_OFF[key], "")
        line(f"{what} within its interval of 90 %", float(np.mean(held[key])), *HELD, "")
    return int(missed > 0)


if __name__ == "__main__":
    sys.exit(main())
