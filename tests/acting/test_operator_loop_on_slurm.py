"""The whole loop with an operator on a real Slurm: deferred, boosted at S, stopped, resumed."""

from __future__ import annotations

import json
import os
import pwd
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from lowtide.units import format_iso, parse_time
from support.slurm import RunningSlurm, ask, running_slurm
from support.slurm_users import COUNTING, SCRIPT, User, beside, until, write_grid
from support.users import open_to_all

pytestmark = [pytest.mark.alone, pytest.mark.slurm]

# Who runs the service: nobody's root, with an account that says Operator.
SERVICE = 1
STEPS = 200
CPUS = 8
# It is dirty for so long, and clean after that; it has to begin this long after it was submitted.
DIRTY_S, ROOM_S = 90, 110.0
WAITED_S = 20.0


def test_an_operator_defers_boosts_stops_and_resumes_the_job_of_a_plain_user(
    common: Path,
) -> None:
    home = open_to_all(common / "home")
    store = open_to_all(common / "watched") / "store.sqlite"
    (home / "train.sh").write_text(SCRIPT.format(limit="2 --signal=B:USR1@5"))
    (home / "count.py").write_text(COUNTING.format(steps=STEPS))
    more = "AuthInfo=socket={folder}/munge.sock,cred_expire=8"
    with running_slurm(nodes=1, cpus=CPUS, accounting=True, more=more) as slurm:
        make_operator(slurm)
        watch = [sys.executable, "-m", "lowtide", "watch", "--interval", "1"]
        watch += ["--meter", "estimate"]
        environment = {**os.environ, **slurm, "LOWTIDE_STORE": str(store)}
        with beside(watch, env=environment, stdout=subprocess.DEVNULL):
            until(store.exists)
            user = User(home, slurm, store)
            service = User(open_to_all(common / "service"), slurm, store, SERVICE)
            user.learns(at_once=1)
            found, clean = carry_it_out(user, service, slurm)
    assert (found["outcome"], found["in_time"], found["starts"]) == ("completed", True, 2)
    assert found["planned"] > 0
    assert found["measured"] == pytest.approx(found["replayed"], rel=0.5)
    assert found["saving"] is not None
    steps = [line.split() for line in (home / "last" / "steps").read_text().splitlines()]
    assert [int(number) for number, _ in steps] == list(range(STEPS))
    # What it did while it was dirty is what it had to; the rest waited.
    saved = int((home / "last" / "saved").read_text())
    assert 0 < saved < STEPS
    assert all(float(at) > clean - 2.0 for _, at in steps[saved:])


def make_operator(slurm: RunningSlurm) -> None:
    """Give the service's user an account whose level is Operator."""
    name = pwd.getpwuid(SERVICE).pw_name
    ask(slurm, "sacctmgr", "-i", "add", "account", "site")
    more = ("account=site", "adminlevel=Operator")
    ask(slurm, "sacctmgr", "-i", "add", "user", name, *more)
    said = ("sacctmgr", "-n", "-P", "show", "user", name, "format=user,adminlevel")
    assert ask(slurm, *said) == f"{name}|Operator"


def a_week_behind(user: User) -> None:
    """Let it be known that jobs like this one waited for so long in the last days."""
    old = time.time() - 3 * 86_400.0
    rows = [
        {"kind": "main/1", "eligible": old + 600.0 * k, "started": old + 600.0 * k + WAITED_S}
        for k in range(80)
    ]
    folder = open_to_all(user.folder / "acting")
    (folder / "waits.json").write_text(
        json.dumps([{**row, "id": f"old/{k}"} for k, row in enumerate(rows)])
    )
    (folder / "waits.json").chmod(0o666)


def carry_it_out(user: User, service: User, slurm: RunningSlurm) -> tuple[dict[str, Any], float]:
    """Have it submitted and driven on a cluster that fills up; return what came, and when clean."""
    open_to_all(user.folder / "last")
    user.environment["RUN_IN"] = "last"
    signal_ = ("--signal", "grid.csv")
    words = (*signal_, "--saves", "--min-run", "4s", "--no-check", "train.sh")
    log = service.folder / "log"

    def grid() -> float:
        starts = [
            write_grid(each.folder / "grid.csv", time.time(), (DIRTY_S, 400))[0][0]
            for each in (user, service)
        ]
        return starts[0]

    grid()
    for each in (user, service):
        a_week_behind(each)
    # What is compiled at first is not while a grid of seconds passes by. What is to be done by then
    # has to begin so long before.
    latest = user.types("sbatch", "--dry-run", "--finish-by", "+6h", *words)["latest"]
    margin_s = time.time() + 6 * 3600.0 - parse_time(latest)
    service.types("drive", "--once", "--all-users", *signal_)

    def row(of: User = user) -> dict[str, Any] | None:
        more = ("--all-users",) if of is service else ()
        rows = of.types("queue", *signal_, *more)["jobs"]
        return next((each for each in rows if each["job_id"] == number), None)

    with (
        log.open("wb") as file,
        service.leaves_running("drive", "--all-users", *signal_, "--every", "1", stderr=file),
    ):
        until((service.folder / "acting" / "driver").exists)
        clean = grid()
        by = format_iso(time.time() + ROOM_S + margin_s)
        said = user.types("sbatch", "--finish-by", by, *words)
        number = said["job_id"]
        assert parse_time(said["begin"]) == pytest.approx(clean, abs=5.0), said
        assert parse_time(said["begin"]) <= parse_time(said["latest"])
        assert said["planned_saving"] > 0.3
        seen = row()
        assert seen is not None
        assert (seen["what"], seen["planned"] > 0) == ("waits", True)
        crowd = fill(slurm)
        # Who stands in line leaves it no time to wait: S has come, and the operator lets it go
        # first.
        until(lambda: f"{number}: boost" in log.read_text())
        runs = ("squeue", "-h", "-t", "R", "-o", "%A")
        until(lambda: number in ask(slurm, *runs).split())
        assert set(crowd) <= set(ask(slurm, "squeue", "-h", "-t", "PD", "-o", "%A").split())
        for each in crowd:
            ask(slurm, "scancel", each)
        # There is room again, and it is dirty still: it is stopped, and waits for cleaner hours.
        until((user.folder / "last" / "saved").exists)
        seen = until(lambda: (found := row(service)) and found["what"] == "waits" and found)
        assert seen["user"] == "nobody"
        until(lambda: row() is None)

        def measured() -> dict[str, Any] | None:
            ended = user.types("queue", *signal_)["ended"]
            return next((each for each in ended if each["measured"] is not None), None)

        return until(measured), clean


def fill(slurm: RunningSlurm) -> list[str]:
    """Fill the cluster, with others in line; return these."""
    whole = (
        "sbatch",
        "--parsable",
        "-c",
        str(CPUS),
        "--mem=50M",
        "-t",
        "10",
        "-o",
        "/dev/null",
        "--wrap",
    )
    first = ask(slurm, *whole, "sleep 12")
    until(lambda: first in ask(slurm, "squeue", "-h", "-t", "R", "-o", "%A").split())
    return [ask(slurm, *whole, "sleep 300") for _ in range(3)]
