"""Ctrl-C ends every command at once, with 130 and one line."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import pytest

pytestmark = pytest.mark.alone

# A run whose queue keeps the compiled kernel of the simulator busy for longer than anybody waits.
EXPERIMENT = """
[workload]
duration = "300d"
arrivals = { kind = "daily", per_day = 3000 }
lengths = { kind = "lognormal", median = "10h", sigma = 1.0, high = "2d" }
wait = "12h"
jobs = { kind = "constant", power_w = 100 }
[grid]
synthetic = "windy"
[run]
repeat_signal = true
[policy]
name = "oracle"
[cluster]
nodes = 300
cpus_per_node = 4
[queue]
name = "easy"
"""
# Stands in for a kernel that runs for long: compiled, and deaf to Python.
LONG_KERNEL = """
import sys
from lowtide import cli
from lowtide.compiled import compiled

@compiled()
def long(count):
    total = 0.0
    for i in range(count):
        total += (total * 3.0 + i) % 7.0
    return total

long(3)

def doctor():
    print("running", flush=True)
    long(10**12)

for each in cli.app.registered_commands:
    if each.callback.__name__ == "doctor":
        each.callback = doctor
sys.argv = ["lowtide", "doctor"]
from lowtide.__main__ import main
main()
"""


def interrupted(words, after_s, cwd, *, first_line=False):
    """Start a command in a process group of its own, press Ctrl-C, and see how it ends."""
    process = subprocess.Popen(
        [sys.executable, *words],
        cwd=cwd,
        env={**os.environ, "LOWTIDE_CACHE": str(cwd / "kernels")},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        if first_line:
            process.stdout.readline()
        time.sleep(after_s)
        os.killpg(process.pid, signal.SIGINT)
        clock = time.monotonic()
        _, said = process.communicate(timeout=30)
        return process.returncode, said, time.monotonic() - clock
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()


def test_a_kernel_that_runs_for_long_is_ended(tmp_path):
    (tmp_path / "long.py").write_text(LONG_KERNEL)
    code, said, took_s = interrupted(["long.py"], 0.3, tmp_path, first_line=True)
    assert (code, said) == (130, "lowtide: interrupted\n")
    assert took_s < 5  # A second on a machine that has nothing else to do.


def test_an_interrupt_that_python_throws_away_comes_again(tmp_path):
    # Whatever is raised where an object is deleted goes no further.
    deleted = """
import os, signal, time

class Gone:
    def __del__(self):
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(0.01)

def doctor():
    Gone()
    time.sleep(60)
"""
    script = LONG_KERNEL[: LONG_KERNEL.index("@compiled")] + deleted
    script += LONG_KERNEL[LONG_KERNEL.index("\nfor each in") :]
    (tmp_path / "deleted.py").write_text(script)
    done = subprocess.run(
        [sys.executable, "deleted.py"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert (done.returncode, done.stderr) == (130, "lowtide: interrupted\n")


@pytest.mark.parametrize("after_s", [0.05, 0.4, 0.9, 2.0, 4.0])
def test_simulate_ends_at_any_moment(tmp_path, after_s):
    (tmp_path / "long.toml").write_text(EXPERIMENT)
    code, said, took_s = interrupted(["-m", "lowtide", "simulate", "long.toml"], after_s, tmp_path)
    if after_s < 2 and (code == -signal.SIGINT or (code == 1 and "__main__.py" not in said)):
        return  # Python was still on its way to lowtide: that takes a while on a busy machine.
    assert code == 130, said
    lines = [line for line in said.splitlines() if "compiling" not in line]
    assert lines == ["lowtide: interrupted"]
    assert took_s < 5


def test_a_sweep_ends_with_its_workers_and_says_how_to_go_on(tmp_path):
    (tmp_path / "long.toml").write_text(EXPERIMENT + "\n[sweep]\nrun.seed = [1, 2, 3]\n")
    words = ["-m", "lowtide", "sweep", "long.toml", "-j", "2"]
    code, said, took_s = interrupted(words, 4.0, tmp_path)
    assert code == 130, said
    assert "0 of 3 runs are kept" in said and "Traceback" not in said
    assert took_s < 8


def test_errors_that_compiled_code_makes_of_an_interrupt_are_one():
    from lowtide.experiments.engines import Task
    from lowtide.experiments.engines.engine import attempt

    def wrapped(_):
        raise SystemError("CPUDispatcher returned a result") from KeyboardInterrupt()

    with pytest.raises(KeyboardInterrupt):
        attempt(wrapped, Task("a", {}))
