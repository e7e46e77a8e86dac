"""Trees of the kernel's files, written from small tables: what a node would show."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

CONTAINER = "4f1e" * 16
POD = "0a1b2c3d-4e5f-6071-8293-a4b5c6d7e8f9"

# The counters of a job on a real cluster, version 2.
JOB = """
cpu.stat = usage_usec 60491070351\\nuser_usec 60375292848\\nsystem_usec 115777503
memory.current = 4111491072
memory.stat = file 12288000\\nactive_file 4000000\\ninactive_file 8192000\\npgmajfault 12
memory.max = 4294967296
io.stat = 8:0 rbytes=1000 wbytes=2000 rios=1 wios=2 dbytes=0 dios=0
pids.current = 5
cpuset.cpus = 1,41
cpu.pressure = some avg10=0.00 avg60=0.00 avg300=0.00 total=1500000
memory.pressure = some avg10=0.00 avg60=0.00 avg300=0.00 total=0
io.pressure = some avg10=0.00 avg60=0.00 avg300=0.00 total=250000
cgroup.procs =
cgroup.events = populated 1\\nfrozen 0
"""

NODE = """
proc/stat = cpu  1000 200 300 90000 50 10 20 30 0 0\\ncpu0 1 1 1\\ncpu1 1 1 1\\nbtime 1700000000
proc/meminfo = MemTotal:       16000000 kB\\nMemFree: 1 kB\\nMemAvailable:    8000000 kB
proc/diskstats = 8 0 sda 1 0 4 0 1 0 6\\n8 1 sda1 1 0 4 0 1 0 6\\n253 0 dm-0 1 0 4 0 1 0 6
proc/net/dev = Inter-| Receive\\n lo: 9 0 0 0 0 0 0 0 9 0\\n eth0: 700 0 0 0 0 0 0 0 300 0
proc/pressure/cpu = some avg10=0.00 avg60=0.00 avg300=0.00 total=2000000
proc/pressure/memory = some avg10=0.00 avg60=0.00 avg300=0.00 total=0
proc/pressure/io = some avg10=0.00 avg60=0.00 avg300=0.00 total=500000
sys/block/sda/dev = 8:0
sys/block/sda/device/model = disk
sys/block/dm-0/dev = 253:0
sys/devices/system/cpu/online = 0-79
"""
_LEGACY_MEMORY = (
    "cache 9\\ninactive_file 1\\npgmajfault 1\\ntotal_inactive_file 1000000\\ntotal_pgmajfault 34"
)


def write(root: Path, table: str) -> None:
    """Write files: `path = what it says` in each line, with \\n for new lines."""
    for line in table.strip().splitlines():
        name, _, said = line.partition(" =")
        path = root / name.strip()
        path.parent.mkdir(parents=True, exist_ok=True)
        text = said.strip().replace("\\n", "\n")
        path.write_text(f"{text}\n" if text else "")


def write_group(folder: Path, table: str = JOB, **changed: str) -> Path:
    """Write a group; keywords change files, with _ for the dot: cpu_stat=..."""
    folder.mkdir(parents=True, exist_ok=True)
    write(folder, table)
    for name, said in changed.items():
        (folder / name.replace("_", ".", 1)).write_text(said)
    return folder


def cpu(usage_s: float) -> str:
    """What cpu.stat says after so many seconds."""
    return f"usage_usec {round(usage_s * 1e6)}\nuser_usec 0\nsystem_usec 0\n"


def write_unified(root: Path) -> Path:
    """Write the root of version 2."""
    write(root, "cgroup.controllers = cpuset cpu io memory pids\ncgroup.procs =")
    return root


def write_legacy(root: Path, path: str, *, usage_s: float = 2.0, **more: str) -> None:
    """Write a group of version 1 in the controllers that Slurm uses."""
    write(
        root,
        f"""
        cpuacct{path}/cpuacct.usage = {round(usage_s * 1e9)}
        cpuacct{path}/cgroup.procs = {more.get("procs", "")}
        memory{path}/memory.usage_in_bytes = 5000000
        memory{path}/memory.stat = {_LEGACY_MEMORY}
        memory{path}/memory.limit_in_bytes = {more.get("limit", "9223372036854771712")}
        cpuset{path}/cpuset.cpus = {more.get("cpus", "0-3")}
        blkio{path}/blkio.throttle.io_service_bytes = 8:0 Read 30\\n8:0 Write 40\\nTotal 70
        devices{path}/devices.list = {more.get("devices", "c 195:255 rwm")}
        freezer{path}/cgroup.procs = {more.get("procs", "")}
        """,
    )


def write_process(
    procfs: Path,
    pid: int,
    *,
    name: str = "work",
    parent: int = 1,
    group: int | None = None,
    cpu_s: float = 0.0,
    waited_s: float = 0.0,
    started_s: float = 100.0,
    pages: int = 1000,
    cgroup: str = "0::/",
    environment: Mapping[str, str] | None = None,
    uid: int | None = None,
    stored: tuple[int, int] = (0, 0),
    dead: bool = False,
) -> Path:
    """Write a process; a dead one has ended, and nobody has waited for it."""
    ticks = os.sysconf("SC_CLK_TCK")
    leader = pid if group is None else group
    fields = [parent, leader, leader, 0, -1, 4194304, 0, 0, 0, 0]
    fields += [round(cpu_s * ticks), 0, round(waited_s * ticks), 0, 20, 0, 1, 0]
    fields += [round(started_s * ticks), 0, pages]
    told = "\0".join(f"{key}={value}" for key, value in (environment or {}).items())
    folder = procfs / str(pid)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "stat").write_text(
        f"{pid} ({name}) {'Z' if dead else 'S'} {' '.join(map(str, fields))}\n"
    )
    (folder / "cgroup").write_text(cgroup + "\n")
    (folder / "environ").write_text(told)
    (folder / "io").write_text(f"rchar: 1\nread_bytes: {stored[0]}\nwrite_bytes: {stored[1]}\n")
    if uid is not None:
        os.chown(folder, uid, uid)
    return folder
