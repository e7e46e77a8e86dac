"""Ctrl-C ends every command at once, with 130 and one line."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path

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
from lowtide.cli import doctor as verb
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

verb.doctor = doctor
sys.argv = ["lowtide", "doctor"]
from lowtide.__main__ import main
main()
"""


# Ending takes half a second at most on a machine that has nothing else to do. On a busy one the
# process may have to wait for its turn, which is no time of its own.
LIMIT_CPU_S, LIMIT_S = 1.0, 10.0


def cpu_s(pid):
    """Return the CPU time of a process, of its children not."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return sum(map(int, fields[11:13])) / os.sysconf("SC_CLK_TCK")


def members(group):
    """Return the processes of a group."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):  # It has gone meanwhile.
            if int(path.read_text().rpartition(")")[2].split()[2]) == group:
                found.append(int(path.parent.name))
    return found


def interrupted(words, cwd, *, when, **environment):
    """Start a command in a process group of its own, press Ctrl-C, and see that it ends at once.

    Args:
        words: What follows the name of the interpreter.
        cwd: Where it runs.
        when: The CPU-seconds after which Ctrl-C comes, or a word that it waits to be said.
        environment: Variables that are other than here.
    """
    process = subprocess.Popen(
        [sys.executable, *words],
        cwd=cwd,
        env={**os.environ, **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    said = ""
    # Nothing waits for ever, even where what it waits for is not said.
    overdue = threading.Timer(120, os.killpg, (process.pid, signal.SIGKILL))
    overdue.start()
    try:
        if isinstance(when, str):
            while when not in said:
                line = process.stdout.readline()
                assert line, f"it ended before it said {when!r}: {said}"
                said += line
        else:
            while sum(map(cpu_s, members(process.pid))) < when:
                assert process.poll() is None, process.communicate()
                time.sleep(0.01)
        spent_s, clock = cpu_s(process.pid), time.monotonic()
        os.killpg(process.pid, signal.SIGINT)
        while os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT | os.WNOHANG) is None:
            assert time.monotonic() - clock < LIMIT_S
            time.sleep(0.01)
        assert cpu_s(process.pid) - spent_s < LIMIT_CPU_S
        said += process.communicate()[0]
        return process.returncode, said
    finally:
        overdue.cancel()
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()


def test_a_kernel_that_runs_for_long_is_ended(tmp_path):
    (tmp_path / "long.py").write_text(LONG_KERNEL)
    assert interrupted(["long.py"], tmp_path, when="running") == (
        130,
        "running\nlowtide: interrupted\n",
    )


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
    script += LONG_KERNEL[LONG_KERNEL.index("\nverb.doctor") :]
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


def test_an_interrupt_in_code_made_of_a_string_ends_as_any_other(tmp_path):
    # Libraries make classes that way; `python -m` then died by the signal, though it was handled.
    made = """
import os, signal, time

def doctor():
    exec("os.kill(os.getpid(), signal.SIGINT); time.sleep(60)", globals())
"""
    script = LONG_KERNEL[: LONG_KERNEL.index("@compiled")] + made
    script += LONG_KERNEL[LONG_KERNEL.index("\nverb.doctor") :]
    (tmp_path / "made.py").write_text(script)
    done = subprocess.run(
        [sys.executable, "-m", "made"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert (done.returncode, done.stderr) == (130, "lowtide: interrupted\n")


# Python and its libraries on their way; the workload; the compiled loop of the queue.
@pytest.mark.parametrize("when", [0.02, 0.3, 0.7, 1.2, 2.5])
def test_simulate_ends_at_any_moment(tmp_path, when):
    (tmp_path / "long.toml").write_text(EXPERIMENT)
    code, said = interrupted(["-m", "lowtide", "simulate", "long.toml"], tmp_path, when=when)
    if when < 1 and (code == -signal.SIGINT or (code == 1 and "__main__.py" not in said)):
        return  # Python was still on its way to lowtide.
    assert code == 130, said
    lines = [line for line in said.splitlines() if "compil" not in line]
    assert lines == ["lowtide: interrupted"]


def test_compiling_ends_at_once(tmp_path):
    (tmp_path / "long.toml").write_text(EXPERIMENT)
    words = ["-m", "lowtide", "simulate", "long.toml"]
    # Nothing is compiled yet, wherever it may be looked for.
    empty = dict.fromkeys(("LOWTIDE_CACHE", "HOME", "XDG_CACHE_HOME", "TMPDIR"), str(tmp_path))
    code, said = interrupted(words, tmp_path, when="compiling", **empty)
    assert (code, said.splitlines()[1:]) == (130, ["lowtide: interrupted"])
    assert list(tmp_path.glob("*.kernel"))  # What was compiled is kept.


def long_queue(folder):
    """Write a queue that takes minutes to plan, as a simulation takes minutes to run."""
    (folder / "long.toml").write_text(
        EXPERIMENT.replace("300d", "20d").replace('"oracle"', '"run_now"')
    )


def dirty_now(folder):
    """Write a forecast by which to wait is better, and a year before it, long to judge."""
    now = time.time() // 3600 * 3600
    rows = [
        f"{now + 3600 * hour:.0f},{500 if hour < 6 else 100 + hour}" for hour in range(-8760, 60)
    ]
    text = "\n".join(["timestamp,carbon_intensity_g_per_kwh", *rows]) + "\n"
    (folder / "forecast.csv").write_text(text)


# Verbs that came later: compiled loops, waiting for a clean hour, and asking a Slurm for ever.
@pytest.mark.parametrize(
    ("verb", "when", "code"),
    [
        ("plan-cluster long.toml", 4.0, 130),
        ("grid backtest --signal forecast.csv", 1.0, 130),
        (
            "run --finish-by +30h -t 1:00:00 --signal forecast.csv -- /usr/bin/touch ran",
            "begins",
            130,
        ),
        ("drive --signal forecast.csv --every 1", "lowtide: ", 0),
    ],
)
def test_verbs_that_compute_wait_or_ask_end_at_once(tmp_path, verb, when, code):
    long_queue(tmp_path)
    dirty_now(tmp_path)
    alone = {"PATH": "/usr/bin/none", "LOWTIDE_ACTING": str(tmp_path / "acting")}
    ended, said = interrupted(["-m", "lowtide", *verb.split()], tmp_path, when=when, **alone)
    assert ended == code, said
    assert "Traceback" not in said and "own" not in said
    assert ("lowtide: interrupted" in said) == (code == 130)
    assert not (tmp_path / "ran").exists()


def test_a_sweep_ends_with_its_workers_and_says_how_to_go_on(tmp_path):
    (tmp_path / "long.toml").write_text(EXPERIMENT + "\n[sweep]\nrun.seed = [1, 2, 3]\n")
    words = ["-m", "lowtide", "sweep", "long.toml", "-j", "2"]
    code, said = interrupted(words, tmp_path, when=4.0)
    assert code == 130, said
    assert "0 of 3 runs are kept" in said and "Traceback" not in said


def test_errors_that_compiled_code_makes_of_an_interrupt_are_one():
    from lowtide.studies.engines import Task, attempt

    def wrapped(_):
        raise SystemError("CPUDispatcher returned a result") from KeyboardInterrupt()

    with pytest.raises(KeyboardInterrupt):
        attempt(wrapped, Task("a", {}))
