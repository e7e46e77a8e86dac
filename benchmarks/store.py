"""How fast and how small the store is, against a plain table with a row per sample in the same run.

The plain table has the same values and the same database, with an index on the job. Everything is
made here, from a seed. Exits with 1 if a figure is beyond its limit.
"""

from __future__ import annotations

import os
import resource
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from lowtide.monitor.snapshot import FloatArray, JobFacts, NodeCounts, Unit
from lowtide.monitor.tick import Shares, Tick
from lowtide.store import Retention, Store
from lowtide.store.layout import UNIT

MOST_BYTES_PER_VALUE = 4.0
MOST_LIST_S = 1.0
# The plain table needs so many times as much at least.
LEAST_RATIO = {"append": 0.7, "room": 3.0, "list": 1.2}
STEP_S = 10.0
# What one would write at first: sum up every job's samples, and print a line for each.
PLAIN_LIST = """
import sqlite3, sys
rows = sqlite3.connect(sys.argv[1]).execute(
    "SELECT job, user, max(time) - min(time), max(cpu_s), max(reserved_cpus), max(memory_bytes), "
    "max(reserved_bytes), max(energy_j), max(carbon_g) FROM samples GROUP BY job"
)
for job, user, s, cpu, cpus, mem, asked, joules, grams in rows:
    print(f"{job:>8} {user:<8} {s:8.0f} {100 * cpu / s / cpus:6.1f} % {100 * mem / asked:6.1f} % "
          f"{joules / s:8.1f} {joules:12.4g} J {grams:10.4g} g")
"""
USERS = 40
# What each job uses, and what it does not.
COUNTERS = (
    *("cpu_s", "read_bytes", "written_bytes", "energy_j", "measured_j", "carbon_g"),
    *("marginal_g", "embodied_g"),
)
ZEROS = ("cpu_wait_s", "memory_wait_s", "io_wait_s", "unmetered_s", "unpriced_j")


def main() -> int:
    """Print one line per figure and return the exit status."""
    with tempfile.TemporaryDirectory() as folder:
        fine = [
            appending(Path(folder)),
            room(Path(folder)),
            listing(Path(folder), jobs=int(os.environ.get("JOBS", "100000"))),
        ]
    return 0 if all(fine) else 1


class Node:
    """A node whose jobs use what chance has it.

    Args:
        units: Its jobs.
        begin: When its first tick begins, epoch seconds.
        rng: The source of chance.
    """

    def __init__(self, units: list[Unit], begin: float, rng: np.random.Generator) -> None:
        self.units = tuple(units)
        self._rng = rng
        self._time = begin
        self._used = np.zeros((len(units), len(COUNTERS)))
        self._memory = rng.uniform(1e8, 4e10, len(units))
        self._power = rng.uniform(20, 300, len(units))
        self._node_j = 0.0

    def ticks(self, count: int, *, step_s: float = STEP_S) -> Iterator[Tick]:
        """Yield successive ticks.

        Args:
            count: How many.
            step_s: Seconds between them.
        """
        number = len(self.units)
        rng = self._rng
        for _ in range(count):
            since = self._time
            # Nobody wakes up to the millisecond.
            self._time = since + step_s + float(rng.normal(0, 0.002))
            passed = self._time - since
            busy = rng.uniform(3.6, 4.0, number)
            power = self._power * rng.normal(1, 0.03, number)
            self._memory *= rng.normal(1, 0.01, number)
            energy = power * passed
            used = (
                *(busy * passed, rng.integers(0, 500, number) * 4096.0, 4096.0 * (busy > 3.8)),
                *(energy, energy, energy * 350 / 3.6e6, energy * 500 / 3.6e6),
                np.full(number, 1e-4 * passed),
            )
            self._used = self._used + np.stack(used, axis=1)
            self._node_j += float(energy.sum()) + 100 * passed
            columns = dict(zip(COUNTERS, self._used.T, strict=True))
            # Nobody has a network of its own, and nobody waits.
            columns |= dict.fromkeys(("received_bytes", "sent_bytes"), np.full(number, np.nan))
            columns |= dict.fromkeys(ZEROS, np.zeros(number))
            yield Tick(
                host="n1",
                since=since,
                time=self._time,
                node=NodeCounts(cpus=128, busy_s=since, memory_bytes=5e11, available_bytes=2e11),
                units=self.units,
                cpus_busy=busy,
                memory_bytes=self._memory,
                gpus_busy=np.zeros(number),
                gpu_memory_bytes=np.zeros(number),
                reserved_cpus=np.full(number, 4.0),
                reserved_bytes=np.full(number, 8.0 * 2**30),
                reserved_gpus=np.zeros(number),
                shares=Shares(
                    node_w=float(power.sum()) + 100,
                    power_w=power,
                    gpu_w=np.zeros(number),
                    idle_w=90.0,
                    unattributed_w=10.0,
                    measured_w=power,
                    node_measured_w=float(power.sum()) + 100,
                    measured=True,
                ),
                node_energy_j=self._node_j,
                idle_energy_j=0.9 * self._node_j,
                unattributed_energy_j=0.1 * self._node_j,
                intensity_g_per_kwh=350.0,
                **columns,
            )


class PlainTable:
    """A row per job and sample.

    Args:
        path: The file.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._base = sqlite3.connect(path)
        self._base.execute("PRAGMA journal_mode=WAL")
        self._base.execute("PRAGMA synchronous=NORMAL")
        names = ", ".join(f"{name} REAL" for name in UNIT.names)
        self._base.execute(f"CREATE TABLE samples (job TEXT, user TEXT, time REAL, {names})")
        self._base.execute("CREATE INDEX by_job ON samples (job, time)")

    def append(self, tick: Tick) -> None:
        """Write a tick.

        Args:
            tick: The tick.
        """
        rows = table_of(tick).tolist()
        marks = ", ".join("?" * (3 + len(UNIT.names)))
        with self._base:
            self._base.executemany(
                f"INSERT INTO samples VALUES ({marks})",
                [
                    (unit.job_id, unit.user, tick.time, *row)
                    for unit, row in zip(tick.units, rows, strict=True)
                ],
            )

    def close(self) -> None:
        """Write everything into the file itself."""
        self._base.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        self._base.close()


def table_of(tick: Tick) -> FloatArray:
    """Return a tick's values, a row per job.

    Args:
        tick: The tick.
    """
    columns: dict[str, FloatArray] = {
        name: getattr(tick, name) for name in UNIT.names if hasattr(tick, name)
    }
    # Somebody watched all the time.
    columns |= {"gpu_w": tick.shares.gpu_w, "unwatched_cpu_s": np.zeros(len(tick.units))}
    return np.stack([columns[name] for name in UNIT.names], axis=1)


def jobs_of(count: int, *, begin: float, first: int = 1) -> list[Unit]:
    """Return jobs of some users.

    Args:
        count: How many.
        begin: When they started.
        first: The first one's number.
    """
    return [
        Unit(
            source="slurm",
            job_id=str(number),
            started=begin,
            user=f"user{number % USERS:02}",
            name="train",
        )
        for number in range(first, first + count)
    ]


def appending(folder: Path) -> bool:
    """Time commits of ticks with 1,000 jobs, in CPU time: others use this machine, too.

    Args:
        folder: Where files may go.
    """
    begin = time.time() - 3600
    node = Node(jobs_of(1000, begin=begin), begin, seeded(1))
    plain = PlainTable(folder / "plain-commits.sqlite")
    ours: list[float] = []
    others: list[float] = []
    with Store.open(folder / "commits.sqlite") as store:
        for tick in node.ticks(121):
            for append, times in ((store.append, ours), (plain.append, others)):
                began = time.process_time()
                append(tick)
                times.append(time.process_time() - began)
    plain.close()
    # The first makes a row for each job; the mean has what is done every ten minutes in it.
    mean_s, plain_s = float(np.mean(ours[1:])), float(np.mean(others[1:]))
    print(
        f"tick of 1,000 jobs   {1000 * float(np.median(ours[1:])):6.1f} ms in the median, "
        f"{1000 * mean_s:.1f} ms on average ({100 * mean_s / STEP_S:.3f} % of a core at 10 s)   "
        f"plain {1000 * plain_s:.1f} ms   {plain_s / mean_s:.1f}x"
    )
    return plain_s / mean_s >= LEAST_RATIO["append"]


def room(folder: Path) -> bool:
    """Measure how many bytes a value takes, as it was seen and after rolling up.

    Args:
        folder: Where files may go.
    """
    midnight = time.time() // 86400 * 86400
    never = Retention(looks_s=1e9, minutes_s=1e9)
    coarse = Retention(looks_s=0.0, minutes_s=0.0)
    # Many jobs for half a day, looked at every 10 s; and a few for 30 days, every 5 min.
    day = Node(jobs_of(50, begin=midnight - 40 * 86400), midnight - 40 * 86400, seeded(2))
    month = Node(jobs_of(20, begin=midnight - 95 * 86400), midnight - 95 * 86400, seeded(3))
    fine = [
        *kept_bytes(folder / "day", day, 4320, {"as seen": (0, never), "1 min": (60, Retention())}),
        *kept_bytes(folder / "month", month, 8640, {"1 h": (3600, coarse)}, step_s=300.0),
    ]
    return all(fine)


def kept_bytes(
    path: Path,
    node: Node,
    ticks: int,
    ways: dict[str, tuple[int, Retention]],
    *,
    step_s: float = STEP_S,
) -> Iterator[bool]:
    """Fill a store, and yield whether a value takes little enough room in each way of keeping.

    Args:
        path: The file, its ending left out.
        node: What is watched.
        ticks: How often.
        ways: What each way is called, its resolution, and how it comes about.
        step_s: Seconds between ticks.
    """
    plain = PlainTable(path.with_suffix(".plain"))
    width = len(UNIT.names)
    with Store.open(path, retention=Retention(looks_s=1e9, minutes_s=1e9)) as store:
        empty = store.sizes()["bytes"]
        for tick in node.ticks(ticks, step_s=step_s):
            store.append(tick)
            plain.append(tick)
    plain.close()
    others = plain.path.stat().st_size / (ticks * len(node.units) * width)
    for words, (resolution, retention) in ways.items():
        with Store.open(path, retention=retention) as store:
            store.prune()
            sizes = store.sizes()
        # The node's own values are counted as if they were a job's, of which they have more.
        values = sizes[f"points_{resolution}"] * width
        each = (sizes["bytes"] - empty) / values
        fine = each <= MOST_BYTES_PER_VALUE and others / each >= LEAST_RATIO["room"]
        print(
            f"room, {words:<14} {each:6.2f} bytes per value ({values:,} values)   plain "
            f"{others:.2f}   {others / each:.1f}x (at most {MOST_BYTES_PER_VALUE:g} bytes)  "
            f"{'ok' if fine else 'too much'}"
        )
        yield fine


def listing(folder: Path, jobs: int) -> bool:
    """Time `lowtide jobs` over many jobs, the whole command, and a plain sum over samples.

    Args:
        folder: Where files may go.
        jobs: How many jobs.
    """
    at_once, looks = 1000, 12
    begin = time.time() - 20 * 86400
    path = folder / "list.sqlite"
    plain = PlainTable(folder / "plain-list.sqlite")
    rng = seeded(4)
    with Store.open(path) as store:
        for first in range(1, jobs + 1, at_once):
            units = jobs_of(min(at_once, jobs + 1 - first), begin=begin, first=first)
            for tick in Node(units, begin, rng).ticks(looks):
                store.append(tick)
                plain.append(tick)
            store.put_facts(
                JobFacts(
                    source="slurm",
                    job_id=unit.job_id,
                    state="completed",
                    started=unit.started,
                    ended=unit.started + looks * STEP_S,
                    cpus=4,
                    memory_bytes=8.0 * 2**30,
                )
                for unit in units
            )
            begin += looks * STEP_S + 600
    plain.close()
    program = str(Path(sys.executable).with_name("lowtide"))
    words = [program, "jobs", "-S", "now-30days", "--store", str(path)]
    plain_words = [sys.executable, "-c", PLAIN_LIST, str(plain.path)]
    # As it is installed, with its byte code, also where this environment keeps none.
    installed = {**os.environ, "PYTHONPYCACHEPREFIX": str(folder / "bytecode")}
    installed.pop("PYTHONDONTWRITEBYTECODE", None)
    spent(words, installed)
    pairs = [(spent(words, installed), spent(plain_words, installed)) for _ in range(5)]
    wall_s, cpu_s = (min(ours[place] for ours, _ in pairs) for place in (0, 1))
    others_s = min(others[0] for _, others in pairs)
    start_s = min(spent([program, "version"], installed)[1] for _ in range(3))
    ratio = others_s / wall_s
    # Others use this machine, too: what counts is the CPU time that the command took.
    fine = ratio >= LEAST_RATIO["list"] and cpu_s <= MOST_LIST_S
    print(
        f"list {jobs:,} jobs   {wall_s:6.2f} s, whole command ({cpu_s:.2f} s of CPU time, at most "
        f"{MOST_LIST_S:g}; of that {start_s:.2f} s to start)   plain sum over {looks} samples a "
        f"job {others_s:.2f} s   {ratio:.1f}x  {'ok' if fine else 'too slow'}"
    )
    return fine


def spent(words: list[str], environment: dict[str, str]) -> tuple[float, float]:
    """Run a command, and return the time that passed and the CPU time it took, in seconds.

    Args:
        words: The command.
        environment: Its environment.
    """
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    began = time.perf_counter()
    subprocess.run(words, env=environment, check=True, stdout=subprocess.PIPE)
    wall_s = time.perf_counter() - began
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return wall_s, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def seeded(seed: int) -> np.random.Generator:
    """Return a source of chance.

    Args:
        seed: Which one.
    """
    return np.random.default_rng(seed)


if __name__ == "__main__":
    sys.exit(main())
