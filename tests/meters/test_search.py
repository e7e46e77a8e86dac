"""Looking for meters: side by side, and nobody waits for one that hangs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from lowtide.meters import Roots
from lowtide.meters.source import MeterSearch
from support.meters import BOOT, hanging, rapl_tree, tool, tree


def here(root: Path) -> Roots:
    """A tree that is this machine's."""
    return tree(root, {BOOT: (Path("/") / BOOT).read_text()})


@pytest.mark.alone
def test_tools_that_hang_cost_the_same_whether_one_or_many(
    tmp_path: Path, tools: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lowtide.meters.rapl._any_moves", lambda _: True)
    for name in ("ipmitool", "amd-smi", "scontrol"):
        hanging(tools, name)
    rapl_tree(tmp_path)
    search = MeterSearch(roots=here(tmp_path), within_s=0.5)
    begun = time.monotonic()
    search.begin()
    sources, problems = search.first()
    assert time.monotonic() - begun < 1.5
    assert [each.meter.name for each in sources] == ["rapl"]
    silent = [f"meter {name} has not answered within 0.5 s" for name in ("amd", "ipmi", "slurm")]
    assert [each.partition(":")[0] for each in problems] == silent
    sources[0].end()
    search.close()


def test_one_that_takes_long_comes_late(tmp_path: Path, tools: Path) -> None:
    tool(tools, "ipmitool", "Instantaneous power reading: 218 Watts")
    path = tools / "ipmitool"
    path.write_text(path.read_text().replace("#!/bin/sh\n", "#!/bin/sh\nsleep 0.2\n"))
    search = MeterSearch(roots=here(tmp_path), within_s=0.1)
    search.begin()
    sources, problems = search.first()
    assert not sources
    assert problems == ["meter ipmi has not answered within 0.1 s: left out until it does"]
    deadline = time.monotonic() + 10
    while not sources and time.monotonic() < deadline:
        sources, problems = search.late()
        time.sleep(0.01)
    assert [each.meter.name for each in sources] == ["ipmi"]
    # It is open and has been read, so that it tells something from its first tick on.
    reading = sources[0].read()
    assert reading is not None
    assert reading.power_w == (218.0,)
    assert not problems
    sources[0].end()
    search.close()


def test_what_may_not_be_read_is_named_with_the_cure(
    tmp_path: Path, tools: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    roots = rapl_tree(tmp_path)
    readable = os.access

    def refused(path: Path, mode: int) -> bool:
        return "energy_uj" not in str(path) and readable(path, mode)

    monkeypatch.setattr("lowtide.meters.rapl.os.access", refused)
    search = MeterSearch(roots=roots)
    search.begin()
    sources, problems = search.first()
    assert not sources
    (problem,) = problems
    assert problem.startswith("meter rapl may not be read (package-0, dram-0): let your user read")
    assert "chmod" in problem


def test_this_machines_tools_are_no_part_of_a_recorded_tree(tmp_path: Path, tools: Path) -> None:
    tool(tools, "amd-smi", json.dumps([{"gpu": 0, "power": {"socket_power": "123 W"}}]))
    roots = rapl_tree(tmp_path)
    assert not roots.is_here
    search = MeterSearch(roots=roots)
    search.begin()
    sources, _ = search.first()
    assert [each.meter.name for each in sources] == ["rapl"]
    sources[0].end()


def test_what_counts_as_this_machine(tmp_path: Path) -> None:
    assert Roots().is_here
    assert not Roots(sysfs=tmp_path).is_here
    assert not Roots(procfs=tmp_path).is_here
    assert here(tmp_path).is_here
    tree(tmp_path, {BOOT: "another\n"})
    assert not Roots(procfs=tmp_path / "proc", sysfs=tmp_path / "sys").is_here


def test_a_tool_that_hangs_does_not_outlive_the_program(tmp_path: Path, tools: Path) -> None:
    path = tools / "ipmitool"
    path.write_text(f"#!/bin/sh\necho $$ > {tmp_path}/pid\nexec sleep 60\n")
    path.chmod(0o755)
    program = (
        "import time\n"
        "from lowtide.meters.source import MeterSearch\n"
        "search = MeterSearch(within_s=0.1)\n"
        "search.begin()\n"
        "search.first()\n"
        f"while not __import__('os').path.exists({str(tmp_path / 'pid')!r}): time.sleep(0.01)\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=30)
    pid = int((tmp_path / "pid").read_text())
    deadline = time.monotonic() + 5
    while _runs(pid) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not _runs(pid)


def _runs(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"
