"""Count what a number passes on its way through the tree.

    python tools/walk.py jobs       from a CSV of jobs to the report
    python tools/walk.py counter    from a counter of the kernel's to `lowtide jobs`

Walks the way with the commands that a person would type, and watches every call. Printed are hops
(pairs of modules of which one calls the other), modules (of which any function ran) and types
(of which anything was made), what runs while a module is imported aside; with --names which ones.
PYTHONPATH says which tree is walked:

    PYTHONPATH=OTHER/src python tools/walk.py jobs
"""

from __future__ import annotations

import contextlib
import inspect
import io
import os
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType

PACKAGE = "lowtide"
EXPERIMENT = """
[grid]
synthetic = "windy"
[workload]
trace = "jobs.csv"
wait = "24h"
power_w_per_cpu = 20
[sweep]
policy.name = ["run_now", "exact"]
"""
# A node with one job of Slurm's, as the kernel shows it.
NODE = {
    "proc/stat": "cpu  1000 200 300 90000 50 10 20 30 0 0\ncpu0 1 1 1\nbtime 1700000000\n",
    "proc/meminfo": "MemTotal: 16000000 kB\nMemAvailable: 8000000 kB\n",
    "sys/fs/cgroup/cgroup.controllers": "cpu io memory\n",
}
GROUP = "sys/fs/cgroup/system.slice/slurmstepd.scope/job_7"
JOB = {
    "cpu.stat": "usage_usec 9000000\nuser_usec 8000000\nsystem_usec 1000000\n",
    "memory.current": "4111491072\n",
    "cgroup.procs": "",
}
WATCHED_S = 3.0
# How many modules are being imported, in each thread.
_IMPORTED = threading.local()


@dataclass
class Counts:
    """What was passed."""

    hops: set[str] = field(default_factory=set)
    modules: set[str] = field(default_factory=set)
    types: set[str] = field(default_factory=set)

    def see(self, frame: FrameType, event: str, _: object) -> None:
        """Take note of a call."""
        module = _module(frame)
        if not module or event not in ("call", "return"):
            return
        if not frame.f_code.co_flags & inspect.CO_NEWLOCALS:
            # A module, or the body of a class: it runs once, and what it calls is on nobody's way.
            _IMPORTED.depth = getattr(_IMPORTED, "depth", 0) + (1 if event == "call" else -1)
            return
        if event == "return" or getattr(_IMPORTED, "depth", 0) > 0:
            return
        self.modules.add(module)
        above = _module(frame.f_back)
        if above not in ("", module):
            self.hops.add(f"{above} > {module}")
        made: object = None
        if frame.f_code.co_name in ("__init__", "__post_init__"):
            made = type(frame.f_locals.get("self"))
        elif frame.f_code.co_name == "__new__":
            made = frame.f_locals.get("_cls") or frame.f_locals.get("cls")
        if isinstance(made, type) and made.__module__.partition(".")[0] == PACKAGE:
            self.types.add(f"{made.__module__}.{made.__qualname__}")


def _module(frame: FrameType | None) -> str:
    name = "" if frame is None else str(frame.f_globals.get("__name__", ""))
    return name if name.partition(".")[0] == PACKAGE else ""


def walk_jobs(folder: Path) -> Iterator[list[str]]:
    """Yield the commands from a CSV of jobs to the report."""
    rows = [f"{3600 * each},{3000 + 700 * each},{1 + each % 3}" for each in range(12)]
    (folder / "jobs.csv").write_text("arrival_time,length,cpus\n" + "\n".join(rows) + "\n")
    (folder / "walk.toml").write_text(EXPERIMENT)
    results = str(folder / "results")
    yield ["sweep", str(folder / "walk.toml"), "-o", results, "-j", "1"]
    yield ["report", results, "-o", str(folder / "report.html"), "--no-figures"]


def walk_counter(folder: Path) -> Iterator[list[str]]:
    """Yield the commands from a counter of the kernel's to `lowtide jobs`."""
    for name, said in [*NODE.items(), *((f"{GROUP}/{name}", said) for name, said in JOB.items())]:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(said)
    roots = ["--procfs", str(folder / "proc"), "--sysfs", str(folder / "sys")]
    roots += ["--cgroupfs", str(folder / "sys/fs/cgroup")]
    store = ["--store", str(folder / "store.sqlite")]
    threading.Thread(target=_end, args=(folder / "store.sqlite",), daemon=True).start()
    yield ["watch", "--interval", "0.5", *roots, *store]
    yield ["jobs", "-S", "now-1hours", *store]


def _end(store: Path) -> None:
    """Tell a watcher to end as a service's manager does, some ticks after it began."""
    while not store.exists():
        time.sleep(0.1)
    time.sleep(WATCHED_S)
    os.kill(os.getpid(), signal.SIGTERM)


def main() -> None:
    """Walk, and print what was counted."""
    walks = {"jobs": walk_jobs, "counter": walk_counter}
    if len(sys.argv) < 2 or sys.argv[1] not in walks:
        sys.exit(__doc__)
    # What is made when verbs are imported is on nobody's way.
    from lowtide.__main__ import main as run
    from lowtide.cli import whole

    whole()
    counts = Counts()
    with tempfile.TemporaryDirectory() as folder:
        for words in walks[sys.argv[1]](Path(folder)):
            sys_argv, sys.argv = sys.argv, [PACKAGE, *words]
            threading.setprofile(counts.see)
            sys.setprofile(counts.see)
            try:
                with contextlib.redirect_stdout(io.StringIO()) as said:
                    run()
            except SystemExit as end:
                if end.code not in (None, 0):
                    sys.exit(f"{' '.join(words)} ended with {end.code}\n{said.getvalue()}")
            finally:
                sys.setprofile(None)
                sys.argv = sys_argv
    for name in ("hops", "modules", "types"):
        found = sorted(getattr(counts, name))
        print(f"{len(found):5} {name}")
        for each in found if "--names" in sys.argv else ():
            print(f"      {each}")


if __name__ == "__main__":
    main()
