"""The whole loop as a plain user on a real Slurm: learned, deferred, stopped, resumed, reckoned."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from lowtide.units import format_iso, parse_time
from support.slurm import running_slurm
from support.users import open_to_all, run_as

pytestmark = [pytest.mark.alone, pytest.mark.slurm]

NOBODY = 65534
EXPIRES_S = 8
# Steps of a tenth of a second, each with when it was done: so many make the work.
STEPS = 200
SCRIPT = """#!/bin/bash
#SBATCH -t 10 --mem=50M -c 1 -o out.txt
cd "${RUN_IN:-.}"
exec python3 ../count.py
"""
COUNTING = f"""
import os, signal, sys, time
done = int(open("saved").read()) if os.path.exists("saved") else 0

def save(*_):
    open("saved.new", "w").write(str(done))
    os.rename("saved.new", "saved")
    sys.exit(75)

signal.signal(signal.SIGUSR1, save)
while done < {STEPS}:
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
# Seconds of dirty and clean, in turns: no clean stretch is long enough for all of the work.
TURNS_S = (12, 14, 14, 14, 14, 14, 14, 14, 300)


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

    def __init__(self, folder: Path, slurm: dict[str, str], store: Path) -> None:
        self.folder = folder
        self.environment = {
            "HOME": str(folder),
            "PATH": "/usr/bin:/bin:/usr/sbin:/sbin",
            "SLURM_CONF": slurm["SLURM_CONF"],
            "LOWTIDE_STORE": str(store),
            "LOWTIDE_ACTING": str(folder / "acting"),
            "LOWTIDE_PROFILES": str(folder / "library"),
        }

    def types(self, *words: str) -> Any:
        """Run a verb; return what it says to programs."""
        verb, *rest = words
        line = ["-m", "lowtide", verb, "--json", *rest]
        done = run_as(NOBODY, line, self.environment, self.folder)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    @contextmanager
    def leaves_running(self, *words: str) -> Iterator[subprocess.Popen[bytes]]:
        """Leave a verb running."""
        become = ["setpriv", "--reuid", str(NOBODY), "--clear-groups"]
        command = [*become, sys.executable, "-m", "lowtide", *words]
        environment = {**self.environment, "TMPDIR": str(self.folder)}
        with beside(command, env=environment, cwd=self.folder) as process:
            yield process


def write_grid(path: Path, start: float) -> list[tuple[float, float]]:
    """Write a grid of short dirty and clean stretches; return the clean ones."""
    lines, clean, at = ["time,carbon_intensity"], [], start - 60.0
    for seconds, dirty in ((60, True), *((s, k % 2 == 0) for k, s in enumerate(TURNS_S))):
        if not dirty:
            clean.append((at, at + seconds))
        for _ in range(seconds // 2):
            lines.append(f"{format_iso(at)},{900 if dirty else 100}")
            at += 2.0
    path.write_text("\n".join(lines) + "\n")
    path.chmod(0o644)
    return clean


def test_a_learned_program_is_deferred_stopped_resumed_and_reckoned_for_a_plain_user(
    tmp_path: Path,
) -> None:
    home = open_to_all(tmp_path / "home")
    store = open_to_all(tmp_path / "watched") / "store.sqlite"
    (home / "train.sh").write_text(SCRIPT)
    (home / "count.py").write_text(COUNTING)
    more = f"AuthInfo=socket={{folder}}/munge.sock,cred_expire={EXPIRES_S}"
    with running_slurm(nodes=1, cpus=8, more=more) as slurm:
        watch = [sys.executable, "-m", "lowtide", "watch", "--interval", "0.5"]
        watch += ["--meter", "estimate"]
        environment = {**os.environ, **slurm, "LOWTIDE_STORE": str(store)}
        with beside(watch, env=environment, stdout=subprocess.DEVNULL):
            until(store.exists)
            user = User(home, slurm, store)
            learn_it(user)
            found, clean = carry_it_out(user)
    assert (found["outcome"], found["in_time"]) == ("completed", True)
    assert found["starts"] >= 2
    assert found["planned"] > 0
    # The profile is right as far as a busy machine lets it be; the plan's times were kept.
    assert found["measured"] == pytest.approx(found["replayed"], rel=0.5)
    assert found["saving"] is not None
    steps = [line.split() for line in (home / "last" / "steps").read_text().splitlines()]
    # Nothing was lost, nothing done twice.
    assert [int(number) for number, _ in steps] == list(range(STEPS))
    in_clean = [any(a <= float(at) <= b + 4.0 for a, b in clean) for _, at in steps]
    assert sum(in_clean) > 0.6 * STEPS


def learn_it(user: User) -> None:
    """Let it run three times as it comes, and have it learned from what was watched."""
    numbers = []
    for name in ("first", "second", "third"):
        open_to_all(user.folder / name)
        environment = {**user.environment, "RUN_IN": name}
        words = ["import os, sys; os.execvp('sbatch', sys.argv[1:])", "sbatch", "--parsable"]
        done = run_as(NOBODY, ["-c", *words, "train.sh"], environment, user.folder)
        assert done.returncode == 0, done.stderr
        numbers.append(done.stdout.strip())

    def are_over() -> bool:
        rows = user.types("jobs")
        return {row["job_id"] for row in rows if row["state"] == "completed"} >= set(numbers)

    until(are_over)
    (program,) = user.types("learn", "--from-store")["programs"]
    assert program["profile"], program


def carry_it_out(user: User) -> tuple[dict[str, Any], list[tuple[float, float]]]:
    """Submit it, drive it, kill the driver once; return what the queue says of it in the end."""
    open_to_all(user.folder / "last")
    user.environment["RUN_IN"] = "last"
    grid = user.folder / "grid.csv"
    # It takes a moment to look after jobs, and to submit one.
    clean = write_grid(grid, time.time() + 12.0)
    signal_ = ("--signal", "grid.csv")
    words = ("--finish-by", "+6h", *signal_, "--saves", "--min-run", "4s", "--no-check", "train.sh")

    def row() -> dict[str, Any] | None:
        rows = user.types("queue", *signal_)
        return next((each for each in rows["jobs"] if each["job_id"] == number), None)

    # Where nobody looks after jobs none would be stopped, and it is planned in one piece.
    with user.leaves_running("drive", *signal_, "--every", "1") as driver:
        until((user.folder / "acting" / "driver").exists)
        said = user.types("sbatch", *words)
        assert parse_time(said["begin"]) > clean[0][0] - 3.0, said
        assert parse_time(said["begin"]) <= parse_time(said["latest"])
        assert said["planned_saving"] > 0.3
        number = said["job_id"]
        waiting = row()
        assert waiting is not None
        assert waiting["planned"] > 0
        until((user.folder / "last" / "saved").exists)
        driver.kill()
        driver.wait()
    with user.leaves_running("drive", *signal_, "--every", "1"):
        until(lambda: row() is None)

        def measured() -> dict[str, Any] | None:
            ended = user.types("queue", *signal_)["ended"]
            return next((each for each in ended if each["measured"] is not None), None)

        return until(measured), clean
