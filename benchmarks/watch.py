"""What watching a node costs, against reading and rendering the same in the straightforward way.

A node with a thousand jobs, a process in each, and a power meter is written to memory, its counters
move between ticks, and both ways read the same files. What is printed is CPU time, so that others
on the machine matter little.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from itertools import pairwise
from pathlib import Path
from statistics import median
from time import process_time, sleep, time

from prometheus_client import CollectorRegistry, Gauge, generate_latest

from lowtide.monitor.reader import NodeReader
from lowtide.monitor.snapshot import Snapshot

JOBS = 1000
TICKS = 5
TICK_S = 10.0
WHOLE_TICKS = 12
FIRST_PID = 10_000
HOUR_AGO = time() - 3600
# Which share of the jobs does something between two ticks.
BUSY = {"all jobs busy": 1.0, "one in ten busy": 0.1}


class Node:
    """A node of made-up files, on a file system in memory where there is one."""

    def __init__(self, jobs: int) -> None:
        """Write all files.

        Args:
            jobs: How many jobs.
        """
        memory = Path("/dev/shm")
        place = memory if os.access(memory, os.W_OK) else None
        self.root = Path(tempfile.mkdtemp(prefix="lowtide-watch-", dir=place))
        self.cgroupfs, self.procfs, self.sysfs = (
            self.root / name for name in ("cgroup", "proc", "sys")
        )
        scope = self.cgroupfs / "system.slice" / "slurmstepd.scope"
        self.folders = [scope / f"job_{4000 + number}" for number in range(jobs)]
        self.tick = 0
        self.procfs.mkdir(parents=True)
        self.socket = self.sysfs / "class" / "powercap" / "intel-rapl:0"
        self.socket.mkdir(parents=True)
        (self.socket / "name").write_text("package-0\n")
        (self.socket / "max_energy_range_uj").write_text("262143328850\n")
        (self.procfs / "meminfo").write_text("MemTotal: 16000 kB\nMemAvailable: 8000 kB\n")
        for folder in self.folders:
            (folder / "step_0").mkdir(parents=True)
            (folder / "memory.stat").write_text(_MEMORY_STAT)
            (folder / "memory.max").write_text("4294967296\n")
            (folder / "cpuset.cpus").write_text("1,41\n")
            (folder / "pids.current").write_text("5\n")
            (folder / "cgroup.events").write_text("populated 1\nfrozen 0\n")
            (folder / "cgroup.procs").write_text("")
            (folder / "step_0" / "cgroup.procs").write_text(f"{self._run(folder)}\n")
        (self.cgroupfs / "cgroup.controllers").write_text("cpuset cpu io memory pids\n")
        self.go_on(1.0)
        for folder in self.folders:
            # Young jobs are looked at more closely, and there are never so many of them.
            os.utime(folder, (HOUR_AGO, HOUR_AGO))

    def _run(self, job: Path) -> int:
        """Write the files of a process of a job; return its number."""
        pid = FIRST_PID + int(job.name.removeprefix("job_"))
        process = self.procfs / str(pid)
        process.mkdir()
        (process / "stat").write_text(_PROCESS_STAT.format(pid=pid))
        (process / "cgroup").write_text(f"0::/{job.relative_to(self.cgroupfs)}/step_0\n")
        (process / "status").write_text("Name:\tpython\nUid:\t1000\t1000\t1000\t1000\n")
        (process / "statm").write_text("100 50 10 1 0 20 0\n")
        (process / "environ").write_text("")
        return pid

    def go_on(self, busy: float) -> None:
        """Let some of the jobs use something.

        Args:
            busy: Which share of them.
        """
        self.tick += 1
        rewrite(self.procfs / "stat", _STAT.format(100_000 + 100 * self.tick))
        rewrite(self.socket / "energy_uj", f"{1_000_000_000 + 50_000_000 * self.tick}\n")
        for number, folder in enumerate(self.folders[: round(busy * len(self.folders))]):
            used = 1_000_000 * self.tick * (number + 1)
            rewrite(folder / "cpu.stat", _CPU_STAT.format(used, used // 2, used // 2))
            rewrite(folder / "memory.current", f"{4_000_000_000 + 4096 * self.tick}\n")
            rewrite(folder / "io.stat", _IO_STAT.format(used, used))

    def reader(self) -> NodeReader:
        """Return what reads it."""
        return NodeReader(procfs=self.procfs, sysfs=self.sysfs, cgroupfs=self.cgroupfs)


def rewrite(path: Path, text: str) -> None:
    """Write a file at one blow, as the kernel does: whoever reads it meanwhile reads all of it.

    Args:
        path: The file.
        text: What is in it now: never less than before.
    """
    handle = os.open(path, os.O_WRONLY | os.O_CREAT, 0o644)
    os.write(handle, text.encode())
    os.close(handle)


_PROCESS_STAT = (
    "{pid} (python) S 1 {pid} {pid} 0 -1 4194304 100 0 0 0 50 20 0 0 20 0 1 0 100 100000 2000 "
    "18446744073709551615 0 0 0 0 0 0 0 0 0 0 0 0 17 0 0 0 0 0 0\n"
)
_STAT = "cpu  {} 200 300 90000 50 10 20 30 0 0\nbtime 17\n"
_CPU_STAT = (
    "usage_usec {}\nuser_usec {}\nsystem_usec {}\nnr_periods 0\nnr_throttled 0\nthrottled_usec 0\n"
)
_IO_STAT = "8:0 rbytes={} wbytes={} rios=192 wios=353 dbytes=0 dios=0\n"
_MEMORY_STAT = "".join(
    f"{name} {value}\n"
    for name, value in {
        **{f"before_{number}": number for number in range(14)},
        "anon": 4083281920,
        "file": 12288000,
        "inactive_file": 8192000,
        "active_file": 4000000,
        **{f"after_{number}": number for number in range(24)},
    }.items()
)


def plain_read(cgroupfs: Path) -> dict[str, dict[str, float]]:
    """Read all jobs as one would write it down: walk, read each file, split each line."""
    jobs = {}
    for folder in cgroupfs.rglob("job_*"):
        cpu = _pairs((folder / "cpu.stat").read_text())
        memory = _pairs((folder / "memory.stat").read_text())
        moved = {"rbytes": 0.0, "wbytes": 0.0}
        for line in (folder / "io.stat").read_text().splitlines():
            for field in line.split()[1:]:
                key, _, value = field.partition("=")
                if key in moved:
                    moved[key] += float(value)
        current = float((folder / "memory.current").read_text())
        jobs[folder.name.removeprefix("job_")] = {
            "cpu_s": cpu["usage_usec"] / 1e6,
            "memory_bytes": current - memory["inactive_file"],
            "read_bytes": moved["rbytes"],
            "written_bytes": moved["wbytes"],
            "processes": float((folder / "pids.current").read_text()),
            "reserved_cpus": float(len((folder / "cpuset.cpus").read_text().split(","))),
            "reserved_bytes": float((folder / "memory.max").read_text()),
        }
    return jobs


def _pairs(text: str) -> dict[str, float]:
    return {key: float(value) for key, value in (line.split() for line in text.splitlines())}


def cpu_ms(call: Callable[[], object], before: Callable[[], object], ticks: int = TICKS) -> float:
    """Return the CPU time of a call in milliseconds: the least of some, each after a change."""
    least = float("inf")
    for _ in range(ticks):
        before()
        clock = process_time()
        call()
        least = min(least, process_time() - clock)
    return 1000 * least


def same(snapshot: Snapshot, plain: dict[str, dict[str, float]]) -> bool:
    """Say whether both ways read the same."""
    places = {unit.job_id: place for place, unit in enumerate(snapshot.units)}
    return places.keys() == plain.keys() and all(
        getattr(snapshot, column)[places[job]] == value
        for job, values in plain.items()
        for column, value in values.items()
    )


def reading() -> bool:
    """Compare the reading of a thousand jobs."""
    node = Node(JOBS)
    good = True
    try:
        with node.reader() as reader:
            first_ms = cpu_ms(reader.read, lambda: None, 1)
            print(f"{JOBS:,} jobs, first reading: {first_ms:.0f} ms of CPU time")
            for name, busy in BUSY.items():
                go_on = partial(node.go_on, busy)
                ours_ms = cpu_ms(reader.read, go_on)
                plain_ms = cpu_ms(lambda: plain_read(node.cgroupfs), go_on)
                equal = same(reader.read(), plain_read(node.cgroupfs))
                ratio = plain_ms / ours_ms
                share = ours_ms / 1000 / TICK_S
                print(
                    f"{JOBS:,} jobs, {name:<16} {ours_ms:6.1f} ms per tick = {share:.2%} of a core "
                    f"every {TICK_S:.0f} s (wanted 0.50 %); plain {plain_ms:6.1f} ms: "
                    f"{ratio:.0f}x (wanted 8x); same values: {equal}"
                )
                good &= equal and ratio >= 8
            look_ms = cpu_ms(reader.look, lambda: None)
            print(f"{JOBS:,} jobs, a look between two ticks: {look_ms:.2f} ms")
        done = subprocess.run(
            [sys.executable, __file__, "--resident", str(node.root)],
            capture_output=True,
            text=True,
            check=True,
        )
        print(f"{JOBS:,} jobs, resident: {float(done.stdout):.0f} MB (wanted 80 MB)")
        good &= float(done.stdout) <= 80
    finally:
        shutil.rmtree(node.root)
    return good


def whole() -> bool:
    """Measure `lowtide watch` itself, a thousand jobs read, shared out, served, and kept."""
    node = Node(JOBS)
    files = ("--procfs", node.procfs, "--sysfs", node.sysfs, "--cgroupfs", node.cgroupfs)
    lowtide = (Path(sys.executable).with_name("lowtide"), "watch", "--interval", "1", *files)
    served = (*lowtide, "--listen", "127.0.0.1:0")
    try:
        plain_ms, _ = ticking(node, sys.executable, __file__, "--plain", node.root)
        print(f"{JOBS:,} jobs, read and rendered plainly: {plain_ms:.0f} ms per tick")
        served_ms, _ = ticking(node, *served, "--no-store")
        kept_ms, resident = ticking(node, *served, "--store", node.root / "store.sqlite")
    finally:
        shutil.rmtree(node.root)
    print(
        f"{JOBS:,} jobs, lowtide watch, read, shared out and rendered: {served_ms:.1f} ms per "
        f"tick, {plain_ms / served_ms:.0f}x (wanted 8x)"
    )
    print(
        f"{JOBS:,} jobs, lowtide watch, kept as well: {kept_ms:.1f} ms per tick = "
        f"{kept_ms / 1000 / TICK_S:.2%} of a core every {TICK_S:.0f} s (wanted 0.50 %), "
        f"{resident:.0f} MB (wanted 80 MB)"
    )
    return plain_ms / served_ms >= 8 and resident <= 80


def ticking(node: Node, *command: str | Path) -> tuple[float, float]:
    """Return the CPU time of a tick of a program in milliseconds, and its memory in MB."""
    program = subprocess.Popen(command, stderr=subprocess.DEVNULL)
    try:
        sleep(5.0)
        spent, since = [used_s(program.pid)], time()
        for _ in range(WHOLE_TICKS):
            node.go_on(1.0)
            since += 1.0
            sleep(max(since - time(), 0.0))
            spent.append(used_s(program.pid))
        # The usual one: others on the machine make some ticks dearer.
        tick_ms = 1000 * median(after - before for before, after in pairwise(spent))
        held = Path(f"/proc/{program.pid}/status").read_text()
        return tick_ms, float(held.partition("VmRSS:")[2].split()[0]) * 1024 / 1e6
    finally:
        program.terminate()
        program.wait()


def used_s(pid: int) -> float:
    """Return the CPU time that a process has used."""
    tasks = Path(f"/proc/{pid}/task").iterdir()
    return sum(int((task / "schedstat").read_text().split()[0]) for task in tasks) / 1e9


class PlainPage:
    """An exporter as it is commonly written, of what a plain reader reads."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.gauges: dict[str, Gauge] = {}

    def render(self, jobs: dict[str, dict[str, float]]) -> bytes:
        """Set every value and return the text.

        Args:
            jobs: What was read.
        """
        for job, values in jobs.items():
            for name, value in values.items():
                if name not in self.gauges:
                    self.gauges[name] = Gauge(name, name, ("job_id",), registry=self.registry)
                self.gauges[name].labels(job).set(value)
        return generate_latest(self.registry)


def watch_plainly(root: Path) -> None:
    """Read a node and render it in the straightforward way, once a second."""
    page, due = PlainPage(), time()
    while True:
        page.render(plain_read(root / "cgroup"))
        due += 1.0
        sleep(max(due - time(), 0.0))


def print_resident(root: Path) -> None:
    """Read a node some times in a process of its own, and print what that holds in MB."""
    places = {f"{name}fs": root / name for name in ("proc", "sys", "cgroup")}
    with NodeReader(**places) as reader:  # type: ignore[arg-type]
        for _ in range(3):
            reader.read()
            sleep(0.1)
        pages = int(Path("/proc/self/statm").read_text().split()[1])
    print(pages * os.sysconf("SC_PAGE_SIZE") / 1e6)


def main() -> int:
    """Print the figures; return 1 if a ratio is below its floor."""
    good = reading()
    good &= whole()
    return int(not good)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--resident"]:
        print_resident(Path(sys.argv[2]))
    elif sys.argv[1:2] == ["--plain"]:
        watch_plainly(Path(sys.argv[2]))
    else:
        sys.exit(main())
