"""People with accounts on a test's Slurm, the program that they run, and a grid to run it on."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from lowtide.units import format_iso
from support.needs import is_missing
from support.slurm import RunningSlurm
from support.users import lend_kernels, open_to_all

NOBODY = 65534
SCRIPT = """#!/bin/bash
#SBATCH -t {limit} --mem=50M -c 1 -o out.txt
cd "${{RUN_IN:-.}}"
exec python3 ../count.py
"""
# Steps of a tenth of a second, each with when it was done: so many make the work.
COUNTING = """
import os, signal, sys, time
done = int(open("saved").read()) if os.path.exists("saved") else 0

def save(*_):
    open("saved.new", "w").write(str(done))
    os.rename("saved.new", "saved")
    sys.exit(75)

signal.signal(signal.SIGUSR1, save)
while done < {steps}:
    # Half of each step is work, so that there is something to be drawn.
    until = time.monotonic() + 0.05
    while time.monotonic() < until:
        pass
    time.sleep(0.05)
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])
    with open("steps", "a") as file:
        print(done, time.time(), file=file)
    done += 1
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGUSR1])
"""


def until(is_so: Callable[[], Any], *, patience_s: float = 150.0) -> Any:
    """Wait for something that a busy machine may take long for."""
    end = time.monotonic() + patience_s
    while not (found := is_so()):
        assert time.monotonic() < end, "it did not come to that"
        time.sleep(0.3)
    return found


@contextmanager
def beside(command: list[str], **settings: Any) -> Iterator[subprocess.Popen[bytes]]:
    """Run a program beside the test, and end it by its id."""
    process = subprocess.Popen(command, **settings)
    try:
        yield process
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(timeout=30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


class User:
    """Somebody with a folder, and nothing else."""

    def __init__(
        self, folder: Path, slurm: RunningSlurm, store: Path, number: int = NOBODY
    ) -> None:
        if os.geteuid() != 0 or not shutil.which("setpriv"):
            is_missing("needs root, and setpriv of util-linux, to become somebody else")
        self.folder = folder
        # Only root may enter a network: it is entered first.
        self.become = [*slurm.network, "setpriv", "--reuid", str(number), "--clear-groups"]
        self.environment = {
            "HOME": str(folder),
            "PATH": "/usr/bin:/bin:/usr/sbin:/sbin",
            "TMPDIR": str(folder),
            "SLURM_CONF": slurm["SLURM_CONF"],
            "LOWTIDE_STORE": str(store),
            # To compile takes longer than a grid of seconds lasts.
            "LOWTIDE_CACHE": str(lend_kernels(store.parent / "kernels")),
            "LOWTIDE_ACTING": str(folder / "acting"),
            "LOWTIDE_PROFILES": str(folder / "library"),
        }

    def types(self, *words: str) -> Any:
        """Run a verb; return what it says to programs."""
        verb, *rest = words
        return json.loads(self.runs([sys.executable, "-m", "lowtide", verb, "--json", *rest]))

    def runs(self, command: Sequence[str], **more: str) -> str:
        """Run a command; return what it prints."""
        done = subprocess.run(
            [*self.become, *command],
            env={**self.environment, **more},
            cwd=self.folder,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    @contextmanager
    def leaves_running(self, *words: str, **settings: Any) -> Iterator[subprocess.Popen[bytes]]:
        """Leave a verb running."""
        command = [*self.become, sys.executable, "-m", "lowtide", *words]
        with beside(command, env=self.environment, cwd=self.folder, **settings) as process:
            yield process

    def learns(self, *, at_once: int = 3) -> None:
        """Let the script run as it comes, and have it learned from what was watched.

        Args:
            at_once: How many times at once; again where a busy machine has watched all of them in
                part alone.
        """
        programs: list[dict[str, Any]] = []
        for turn in range(3):
            self._runs_as_it_comes([f"run_{turn}_{k}" for k in range(at_once)])
            programs = self.types("learn", "--from-store")["programs"]
            if sum(each["profile"] is not None for each in programs) == 1:
                return
        raise AssertionError(programs)

    def _runs_as_it_comes(self, names: Sequence[str]) -> None:
        numbers = []
        for name in names:
            open_to_all(self.folder / name)
            said = self.runs(["sbatch", "--parsable", "train.sh"], RUN_IN=name)
            numbers.append(said.strip())

        def are_over() -> bool:
            rows = self.types("jobs")
            return {row["job_id"] for row in rows if row["state"] == "completed"} >= set(numbers)

        until(are_over)


def write_grid(path: Path, start: float, turns_s: Sequence[int]) -> list[tuple[float, float]]:
    """Write a grid of dirty and clean stretches in turns, in seconds; return the clean ones."""
    lines, clean, at = ["time,carbon_intensity"], [], start - 60.0
    for seconds, dirty in ((60, True), *((s, k % 2 == 0) for k, s in enumerate(turns_s))):
        if not dirty:
            clean.append((at, at + seconds))
        for _ in range(seconds // 2):
            lines.append(f"{format_iso(at)},{900 if dirty else 100}")
            at += 2.0
    path.write_text("\n".join(lines) + "\n")
    path.chmod(0o644)
    return clean
