"""The whole loop as a plain user on a real Slurm: learned, deferred, stopped, resumed, reckoned."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from lowtide.units import parse_time
from support.slurm import running_slurm
from support.slurm_users import COUNTING, SCRIPT, User, beside, until, write_grid
from support.users import open_to_all

pytestmark = [pytest.mark.alone, pytest.mark.slurm]

EXPIRES_S = 8
STEPS = 200
# Seconds of dirty and clean, in turns: no clean stretch is long enough for all of the work.
TURNS_S = (12, 14, 14, 14, 14, 14, 14, 14, 300)


def test_a_learned_program_is_deferred_stopped_resumed_and_reckoned_for_a_plain_user(
    common: Path,
) -> None:
    home = open_to_all(common / "home")
    store = open_to_all(common / "watched") / "store.sqlite"
    (home / "train.sh").write_text(SCRIPT.format(limit=10))
    (home / "count.py").write_text(COUNTING.format(steps=STEPS))
    more = f"AuthInfo=socket={{folder}}/munge.sock,cred_expire={EXPIRES_S}"
    with running_slurm(nodes=1, cpus=8, more=more) as slurm:
        watch = [sys.executable, "-m", "lowtide", "watch", "--interval", "0.5"]
        watch += ["--meter", "estimate"]
        environment = {**os.environ, **slurm, "LOWTIDE_STORE": str(store)}
        with beside(watch, env=environment, stdout=subprocess.DEVNULL):
            until(store.exists)
            user = User(home, slurm, store)
            user.learns()
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


def carry_it_out(user: User) -> tuple[dict[str, Any], list[tuple[float, float]]]:
    """Submit it, drive it, kill the driver once; return what the queue says of it in the end."""
    open_to_all(user.folder / "last")
    user.environment["RUN_IN"] = "last"
    grid = user.folder / "grid.csv"
    # It takes a moment to look after jobs, and to submit one.
    clean = write_grid(grid, time.time() + 12.0, TURNS_S)
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
