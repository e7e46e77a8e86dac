"""A node of Slurm 26.05, whose groups are named by SLUID, and stand-ins for Slurm's programs."""

from __future__ import annotations

import json
import os
import platform
import signal
import subprocess
import sys
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from lowtide.slurm.records import QUEUE_FIELDS
from support.trees import NODE, cpu, write, write_group, write_unified

pytestmark = [pytest.mark.alone, pytest.mark.slurm]

LOWTIDE = Path(sys.executable).with_name("lowtide")
NAME = "s5K1KKYAYG5D00"
KNOWN = {
    "job_id": "4711",
    "shown_id": "4700_3",
    "state": "RUNNING",
    "user": "ada",
    "nodes": platform.node(),
    "name": "train",
    "cpus": "2",
    "restarts": "0",
}
# Says what Slurm would, once it knows the job; notes what it was asked.
SQUEUE = """#!/bin/sh
echo "$(date +%s.%N) $*" >> {folder}/calls
[ -e {folder}/known ] || exit 0
case "$*" in
*SLUID*) printf '%s{name}\\037\\n' "$(cat {folder}/record)";;
*) printf '%s\\n' "$(cat {folder}/record)";;
esac
"""


SACCT = """#!/bin/sh
echo Slurm accounting storage is disabled >&2
exit 1
"""


def rows(store: Path, *options: str) -> list[dict[str, Any]]:
    done = subprocess.run(
        [str(LOWTIDE), "jobs", "--store", str(store), "--json", "-S", "2020-01-01", *options],
        capture_output=True,
        text=True,
        check=False,
    )
    return json.loads(done.stdout) if done.returncode == 0 else []


def until(is_so: Any) -> None:
    end = time.monotonic() + 60
    while not is_so():
        assert time.monotonic() < end
        time.sleep(0.2)


@pytest.fixture
def node(tmp_path: Path) -> Path:
    """The node and its Slurm."""
    write(tmp_path, NODE)
    scope = write_unified(tmp_path / "cgroup") / "system.slice/slurmstepd.scope"
    write_group(scope / NAME, cpu_stat=cpu(5))
    begun = str(int(time.time()))
    record = KNOWN | {"started": begun, "submitted": begun}
    text = "".join(f"{record.get(each, '')}\x1f" for each in QUEUE_FIELDS.values())
    (tmp_path / "record").write_text(text)
    (tmp_path / "slurm.conf").write_text("# a test\nClusterName = alpha # of two\n")
    (tmp_path / "bin").mkdir()
    for name, script in (("squeue", SQUEUE), ("sacct", SACCT)):
        program = tmp_path / "bin" / name
        program.write_text(script.format(folder=tmp_path, name=NAME))
        program.chmod(0o755)
    return tmp_path


def watching(node: Path, store: Path, *options: str) -> subprocess.Popen[bytes]:
    """Start to watch the node."""
    places = {name: str(node / name) for name in ("proc", "sys", "cgroup")}
    with (node / "ticks").open("w") as output:
        return subprocess.Popen(
            [
                *(str(LOWTIDE), "watch", "--interval", "0.5", "--store", str(store), "--json"),
                *("--meter", "estimate", "--procfs", places["proc"], "--sysfs", places["sys"]),
                *("--cgroupfs", places["cgroup"], *options),
            ],
            env={
                **os.environ,
                "PATH": f"{node / 'bin'}{os.pathsep}{os.environ['PATH']}",
                "SLURM_CONF": str(node / "slurm.conf"),
            },
            stdout=output,
        )


def test_a_job_is_one_row_before_and_after_its_number_is_known(node: Path) -> None:
    store = node / "store.sqlite"
    program = watching(node, store)
    try:
        until(lambda: [row["job_id"] for row in rows(store)] == [NAME])
        (node / "known").touch()
        until(lambda: [row["job_id"] for row in rows(store)] == ["4711"])
        until(lambda: '"job_id": "4711"' in (node / "ticks").read_text())
    finally:
        program.send_signal(signal.SIGTERM)
        program.wait(timeout=30)
    [row] = rows(store)
    assert (row["shown_id"], row["name"], row["cluster"]) == ("4700_3", "train", "alpha")
    assert rows(store, "-M", "beta") == []
    calls = [line.split(" ", 1) for line in (node / "calls").read_text().splitlines()]
    assert all("-w" in asked or "-t PD" in asked or "-j" in asked for _, asked in calls)
    times = [float(moment) for moment, _ in calls][:-2]
    assert all(later - earlier > 0.8 for earlier, later in pairwise(times))


@pytest.mark.parametrize("who", ["none", "store"])
def test_a_node_that_is_told_so_asks_nobody(node: Path, who: str) -> None:
    store = node / "store.sqlite"
    program = watching(node, store, "--facts-from", who)
    try:
        until(lambda: [row["job_id"] for row in rows(store)] == [NAME])
        time.sleep(1.5)
    finally:
        program.send_signal(signal.SIGTERM)
        program.wait(timeout=30)
    assert not (node / "calls").exists()
    assert [row["cluster"] for row in rows(store)] == ["alpha"]
