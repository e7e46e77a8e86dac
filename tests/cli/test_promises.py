"""What the command line promises of itself: `--help` answers at once, and watching costs little."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.alone

# On an idle machine --help takes 0.2 s. Beside others a second takes longer to do as much in.
HELP_CPU_S = 0.4
WATCHER_BYTES = 80e6
TICKS = 5


def cpu_s(*words: str) -> float:
    """Return the CPU time that a command of lowtide takes, with all that it starts."""
    before = os.times()
    subprocess.run([sys.executable, "-m", "lowtide", *words], check=True, capture_output=True)
    after = os.times()
    return (after.children_user - before.children_user) + (
        after.children_system - before.children_system
    )


def test_help_answers_at_once() -> None:
    assert min(cpu_s("--help") for _ in range(5)) < HELP_CPU_S


def test_the_watcher_takes_little_memory(tmp_path: Path) -> None:
    """It keeps what it sees, and serves it: both as on a node."""
    command = [
        *(sys.executable, "-m", "lowtide", "watch", "--interval", "0.3", "--json"),
        *("--store", str(tmp_path / "store.sqlite"), "--listen", f"unix:{tmp_path / 'metrics'}"),
    ]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as watch:
        assert watch.stdout is not None
        try:
            ticks = [json.loads(watch.stdout.readline()) for _ in range(TICKS)]
            status = Path(f"/proc/{watch.pid}/status").read_text()
        finally:
            watch.terminate()
        watch.stdout.read()
    assert [tick["node_w"] is not None for tick in ticks] == [True] * TICKS
    resident = 1024 * int(status.partition("VmRSS:")[2].split()[0])
    assert resident < WATCHER_BYTES
    assert watch.returncode == 0
