"""A real Slurm with its accounting: what squeue and sacct say, and what is made of it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from lowtide.monitor.snapshot import ELSEWHERE, JobFacts
from lowtide.slurm import SlurmClient
from lowtide.units import parse_duration
from lowtide.watching.slurm_facts import FactsSource
from support.slurm import HAS_CGROUPS, ask, used_s

pytestmark = [pytest.mark.alone, pytest.mark.slurm]

LOWTIDE = Path(sys.executable).with_name("lowtide")
NAME = "a|b 'c'\nd = ünï"
COMMENT = "x|y\n7\tz"
# Burns a while on one CPU, all of it in children that the batch script waits for.
BURN = "timeout {seconds} {python} -c 'while True: pass'; true"
EATS = f"""{sys.executable} -c 'x = b"a" * 300_000_000; import time; time.sleep(3)'"""


@pytest.fixture
def slurm(accounted_slurm: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    for name, value in accounted_slurm.items():
        monkeypatch.setenv(name, value)
    return accounted_slurm


def submit(slurm: dict[str, str], *options: str, run: str = "sleep 30") -> str:
    command = ("sbatch", "--parsable", "--mem=50M", "-o", "/dev/null", *options)
    return ask_with(slurm, f"#!/bin/sh\n{run}\n", *command)


def ask_with(slurm: dict[str, str], text: str, *command: str) -> str:
    return subprocess.run(
        command,
        input=text,
        env={**os.environ, **slurm},
        capture_output=True,
        text=True,
        timeout=20,
        check=True,
    ).stdout.strip()


def until(is_so: Callable[[], bool], what: object = "", *, every_s: float = 0.2) -> None:
    """Wait for what takes a moment, and a minute where nobody saw a job that was known to wait."""
    end = time.monotonic() + 120
    while not is_so():
        assert time.monotonic() < end, (what, ask({}, "squeue", "-t", "all"))
        time.sleep(every_s)


def test_sacct_and_squeue_say_the_same_of_every_kind_of_end(slurm: dict[str, str]) -> None:
    client = SlurmClient(timeout_s=10)

    def queued(job: str) -> JobFacts | None:
        return next((each for each in client.queue() if each.job_id == job), None)

    def stands(job: str, *states: str) -> Callable[[], bool]:
        return lambda: (facts := queued(job)) is not None and facts.state in states

    begun = time.time() - 60
    again = submit(slurm, "--requeue", "-J", "again", "-t", "90")
    failed = submit(slurm, "-J", NAME, "--comment", COMMENT, run="exit 3")
    until(stands(again, "running"))
    first = queued(again)
    assert first is not None
    ask(slurm, "scontrol", "requeue", again)
    killed = submit(slurm, "-J", "killed")
    array = submit(slurm, "-a", "1-2", run="true")
    het = submit(slurm, "-n1", ":", "-n1", "--mem=20M", "-o", "/dev/null", run="true")
    held = submit(slurm, "--hold", "-J", "held")
    eater = submit(slurm, "-J", "eater", run=EATS)
    waiting = next(each for each in client.waiting().facts if each.job_id == held)
    assert (waiting.state, waiting.started, waiting.nodes) == ("pending", None, ())
    until(stands(killed, "running"))
    ask(slurm, "scancel", killed, held)
    others = ",".join((failed, killed, array, het, held, eater))
    until(lambda: ask(slurm, "squeue", "-h", "-t", "PD,R,CG", "-j", others) == "", others)
    # Its node must have let go of the first start, or the second fails to launch.
    until(lambda: ask(slurm, "sinfo", "-h", "-t", "idle", "-o", "%D") == "2")
    time.sleep(1)
    # Left alone it would begin two minutes later.
    ask(slurm, "scontrol", "update", f"JobId={again}", "StartTime=now")
    until(stands(again, "running"), again)
    ask(slurm, "scancel", again)
    until(stands(again, "cancelled"))
    # The accounting is written a moment later.
    until(lambda: len(jobs(client, begun)) >= 9 and all(e.ended for e in jobs(client, begun)))

    # What never was to run it tells only when asked for it by its number.
    ended = [*jobs(client, begun), *client.accounting(since=begun, ids=[held])]
    kept = {(each.job_id, each.started): each for each in ended}
    queue = client.queue()
    for facts in queue:
        told = kept[facts.job_id, facts.started]
        # It knows neither how often a job was requeued nor, for some, how the program ended.
        known = replace(facts, restarts=told.restarts)
        if told.exit_code is None:
            known = replace(known, exit_code=None)
        assert told == known
    states = {each.job_id: each for each in queue}
    assert {states[job].state for job in (array, het, str(int(het) + 1), failed, killed, held)} == {
        "completed",
        "failed",
        "cancelled",
    }
    assert (states[failed].name, states[failed].comment) == (NAME, COMMENT)
    assert (states[failed].exit_code, states[array].exit_code) == (3, 0)
    assert {each.shown_id for each in queue} >= {f"{array}_1", f"{array}_2", f"{het}+0", f"{het}+1"}
    assert (states[held].state, states[held].started) == ("cancelled", None)
    if HAS_CGROUPS:
        assert (states[eater].state, states[eater].exit_code) == ("out_of_memory", None)
    # Each start of the one that was requeued, and the first at the moment it was seen at.
    runs = [each for each in jobs(client, begun) if each.job_id == again]
    assert [each.state for each in runs] == ["requeued", "cancelled"]
    assert (runs[0].started, runs[0].name) == (first.started, "again")
    # All that has ended, asked about one node as well.
    node = states[failed].nodes[0]
    answer = SlurmClient(node=node, timeout_s=10).facts(since=begun)
    assert (answer.problems, answer.is_whole) == ((), True)
    assert failed in {each.job_id for each in answer.facts}


def jobs(client: SlurmClient, since: float) -> list[JobFacts]:
    return client.accounting(since=since)


def test_jobs_that_wait_are_followed(slurm: dict[str, str]) -> None:
    source = FactsSource(
        client=SlurmClient(node="n1", timeout_s=10),
        every_s=0.3,
        soonest_s=0.1,
        waiting_every_s=0.2,
        waiting_share=1.0,
        waiting=[("99999", time.time() - 60)],
    )
    kept: dict[str, JobFacts] = {}

    def take(facts: Any) -> None:
        kept.update({each.job_id: each for each in facts})

    def becomes(job: str, state: str) -> None:
        until(lambda: source.hand_over(take) or (job in kept and kept[job].state == state), kept)

    jobs = {where: submit(slurm, "--hold", *options) for where, options in PLACES.items()}
    source.open()
    try:
        for job in jobs.values():
            becomes(job, "pending")
        becomes("99999", "unknown")
        ask(slurm, "scancel", jobs["nowhere"])
        ask(slurm, "scontrol", "release", jobs["here"], jobs["there"])
        becomes(jobs["nowhere"], "cancelled")
        becomes(jobs["there"], ELSEWHERE)
        becomes(jobs["here"], "running")
    finally:
        source.close()
        ask(slurm, "scancel", *jobs.values())
    until(lambda: ask(slurm, "squeue", "-h") == "")


PLACES = {"here": ("-w", "n1"), "there": ("-w", "n2"), "nowhere": ()}


@contextmanager
def watching(store: Path, *options: str, **environment: str) -> Iterator[None]:
    with store.with_suffix(".json").open("w") as output:
        program = subprocess.Popen(
            [
                *(str(LOWTIDE), "watch", "--interval", "1", "--json", *options),
                *("--store", str(store), "--meter", "estimate", "--grid", "windy"),
            ],
            stdout=output,
            env={**os.environ, **environment},
        )
    try:
        until(lambda: store.with_suffix(".json").stat().st_size > 0)
        yield
    finally:
        program.send_signal(signal.SIGTERM)
        program.wait(timeout=30)
    assert program.returncode == 0


@contextmanager
def made_in_the_end(*files: Path) -> Iterator[None]:
    """Let nothing wait for files for ever, whatever goes wrong."""
    try:
        yield
    finally:
        for each in files:
            each.touch()


def listed(store: Path, *options: str) -> dict[str, dict[str, Any]]:
    return {row["job_id"]: row for row in rows_of(store, *options)}


def rows_of(store: Path, *options: str) -> list[dict[str, Any]]:
    done = subprocess.run(
        [str(LOWTIDE), "jobs", "--store", str(store), "--json", *options],
        capture_output=True,
        text=True,
        check=True,
    )
    return [row for row in json.loads(done.stdout) if row["source"] == "slurm"]


def test_two_jobs_side_by_side_have_the_cpu_time_that_sacct_says(
    slurm: dict[str, str], tmp_path: Path
) -> None:
    store = tmp_path / "store.sqlite"
    held = submit(slurm, "--hold", "-J", "held")

    def known(job: str) -> str | None:
        return str(listed(store).get(job, {}).get("state"))

    with watching(store):
        until(lambda: held in listed(store, "-s", "PD"), every_s=0.5)
        # Slurm removes with the groups of a node's last job all that stands above them, and with
        # that what the job used in its last moments: this one stays.
        stays = submit(slurm, "-w", "n1", run="sleep 300")
        burning = [
            submit(
                slurm,
                "-J",
                name,
                "-w",
                "n1",
                run=BURN.format(python=sys.executable, seconds=seconds),
            )
            for name, seconds in (("long", 7), ("short", 3))
        ]
        until(lambda: ask(slurm, "squeue", "-h", "-t", "R,CG,CD", "-j", burning[1]) != "")
        ask(slurm, "scancel", held)
        until(lambda: all(known(job) == "completed" for job in burning), every_s=0.5)
        ask(slurm, "scancel", stays)
        until(lambda: ask(slurm, "squeue", "-h") == "")
    rows = listed(store)
    # Of those that wait it asks more rarely, and once more when it ends.
    assert rows[held]["state"] == "cancelled"
    table = ask(slurm, "sacct", "-n", "-P", "-j", ",".join(burning), "--format=JobIDRaw,TotalCPU")
    total = dict(line.split("|") for line in table.splitlines())
    for job in burning:
        told_s = parse_duration(total[job])
        assert told_s > 0.3
        # Slurm's helper counts until it has made the group, the longer the busier the machine is.
        assert rows[job]["cpu_s"] == pytest.approx(told_s, abs=0.3)
        assert (rows[job]["source"], rows[job]["exit_code"]) == ("slurm", 0)
        assert rows[job]["energy_j"] > 0
    assert rows[burning[0]]["cpu_s"] > rows[burning[1]]["cpu_s"]


def logged_clients(folder: Path, path: str) -> Path:
    """Write squeue and sacct that note when they are called; return where to."""
    folder.mkdir()
    for name in ("squeue", "sacct", "scontrol"):
        program = folder / name
        program.write_text(
            f'#!/bin/sh\ndate +%s.%N >> {folder}/calls\nPATH="{path}" exec {name} "$@"\n'
        )
        program.chmod(0o755)
    return folder


def test_one_job_is_one_row_whatever_sacct_has_to_tell(
    slurm: dict[str, str], tmp_path: Path
) -> None:
    """An allocation, strays, an array, a requeue and sixty short jobs, all at once."""
    store = tmp_path / "store.sqlite"
    begun = time.time()
    burn = BURN.format(python=sys.executable, seconds=3)
    clients = logged_clients(tmp_path / "bin", slurm["PATH"])
    path = os.pathsep.join([str(clients), slurm["PATH"]])
    go, left, own = (tmp_path / name for name in ("go", "left", "own"))
    with watching(store, "--embodied", "1000", PATH=path), made_in_the_end(go, left):
        again = submit(slurm, "--requeue", "-J", "again", "-w", "n2", run="sleep 300")
        waits = f"until [ -e {left} ]; do sleep 0.2; done"
        control = submit(slurm, "-J", "control", "-w", "n1", run=f"{burn}; {waits}")
        until(lambda: ask(slurm, "squeue", "-h", "-t", "R", "-j", control) != "")
        # As an ssh does that forwards the environment.
        stray = subprocess.Popen(
            [sys.executable, "-c", STRAY],
            env={**os.environ, "SLURM_JOB_ID": control, "SLURM_CPUS_ON_NODE": "1"},
            stdout=subprocess.PIPE,
            text=True,
        )
        # All that hardly does anything is on the other node: of those that end in one step only the
        # sum is known.
        array = submit(slurm, "-a", "1-4", "-J", "array", "-w", "n2", run="sleep 2")
        short = [submit(slurm, "-J", "short", "-w", "n2", run="sleep 2") for _ in range(60)]
        script = tmp_path / "step.sh"
        script.write_text(f"#!/bin/sh\n{burn}\n")
        script.chmod(0o755)
        shell = subprocess.Popen(
            [
                *("salloc", "-w", "n1", "--mem=50M", "-J", "shell", "sh", "-c"),
                f"until [ -e {go} ]; do sleep 0.5; done; srun {script}; sleep 2; srun true; "
                f"times > {own}",
            ],
            env={**os.environ, **slurm},
            stderr=subprocess.DEVNULL,
        )
        outside, _ = stray.communicate(timeout=60)
        left.touch()
        until(lambda: ask(slurm, "squeue", "-h", "-t", "R", "-j", again) != "")
        ask(slurm, "scontrol", "requeue", again)
        until(lambda: listed(store)[control]["state"] == "completed", every_s=0.5)
        go.touch()
        assert shell.wait(timeout=60) == 0
        until(lambda: ask(slurm, "squeue", "-h", "-t", "R", "-n", "again") == "")
        names = "control,shell,array,short"
        until(lambda: ask(slurm, "squeue", "-h", "-n", names) == "")
        ask(slurm, "scontrol", "update", f"JobId={again}", "StartTime=now")
        until(lambda: ask(slurm, "squeue", "-h", "-t", "R", "-j", again) != "", again)
        ask(slurm, "scancel", again)
        until(lambda: ask(slurm, "squeue", "-h") == "")
        until(lambda: all(row["state"] not in OPEN for row in rows_of(store)), every_s=0.5)

    table = sacct(slurm, begun)
    # Others that this Slurm ran before are told of, too.
    rows = [row for row in rows_of(store) if (row["submitted"] or 0) >= int(begun)]
    told = sorted((line["JobIDRaw"], line["State"].split()[0].lower()) for line in table)
    assert len(table) == 60 + 4 + 2 + 2
    assert sorted((row["job_id"], row["state"]) for row in rows) == told
    assert {row["cluster"] for row in rows} == {"test"}
    by_name = {row["name"]: row for row in rows if row["name"] in ("control", "shell")}
    hold, free = by_name["control"], by_name["shell"]
    both = f"{hold['job_id']},{free['job_id']}"
    said = ask(slurm, "sacct", "-n", "-P", "-j", both, "--format=JobIDRaw,TotalCPU")
    used = {each: parse_duration(cpu) for each, cpu in (row.split("|") for row in said.split())}
    # What a stray says of itself lacks its end; Slurm's helper counts until it has made the group:
    # 0.21 s were seen on a busy machine, less than 0.1 on an idle one.
    outside_s = {free["job_id"]: used_s(own.read_text()), hold["job_id"]: float(outside)}
    # With the groups of a node's last step goes all that stands above them, and what it used since
    # it was last read: a second at most of the one CPU that the allocation keeps busy.
    unread_s = {free["job_id"]: 1.0, hold["job_id"]: 0.15}
    for row in (free, hold):
        more_s = row["cpu_s"] - used[row["job_id"]] - outside_s[row["job_id"]]
        assert -unread_s[row["job_id"]] < more_s < 0.3
    # An allocation is charged as a batch job is that lasts as long.
    for row in (hold, free):
        assert row["cpus"] == 1
        per_s = 1e6 / (1461 * 86400) / (os.cpu_count() or 1)
        # Slurm does not count the seconds that it takes to end a job, several on a busy machine.
        assert 0.7 < row["embodied_g"] / row["elapsed_s"] / per_s < 1.7
    assert array in {row["shown_id"].partition("_")[0] for row in rows}
    assert set(short) <= {row["job_id"] for row in rows}
    # One question at a time, and no more than one in a second.
    calls = [float(line) for line in (clients / "calls").read_text().split()]
    assert min(later - earlier for earlier, later in pairwise(calls[:-3])) > 0.8


OPEN = ("pending", "running", None)
STRAY = """
import os, time
end = time.time() + 3
while time.time() < end:
    pass
used = os.times()
print(used.user + used.system, flush=True)
# To end as Python does takes long on a busy machine, and is not in what it said.
os._exit(0)
"""


def sacct(slurm: dict[str, str], since: float) -> list[dict[str, str]]:
    """What the accounting has of all starts since then."""
    fields = "JobIDRaw,State,JobName"
    begin = time.strftime("%Y-%m-%dT%H:%M:%S", time.localtime(since))
    said = ask(slurm, "sacct", "-a", "-X", "-D", "-n", "-P", "-S", begin, f"--format={fields}")
    rows = [
        dict(zip(fields.split(","), line.split("|"), strict=True)) for line in said.splitlines()
    ]
    return [
        row for row in rows if row["JobName"] in ("again", "control", "shell", "array", "short")
    ]


def test_without_its_accounting_jobs_are_submitted_and_driven_as_before(
    accounted_slurm: Any, slurm: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOWTIDE_ACTING", str(tmp_path / "acting"))
    script = tmp_path / "a.sh"
    script.write_text("#!/bin/sh\n#SBATCH -t 10 --mem=50M -o /dev/null\nsleep 2\n")

    def told(*words: str) -> Any:
        done = subprocess.run(
            [str(LOWTIDE), words[0], "--json", *words[1:]],
            capture_output=True,
            text=True,
            cwd=tmp_path,
        )
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    daemon = accounted_slurm.daemons["slurmdbd"]
    daemon.kill()
    try:
        grid = ("--grid", "windy")
        number = told("sbatch", "--finish-by", "+30h", *grid, "--no-check", str(script))["job_id"]
        (job,) = [each for each in told("queue", *grid)["jobs"] if each["job_id"] == number]
        assert job["what"] == "waits"
        assert told("drive", "--once", *grid)["jobs"] == 1
        ask(slurm, "scontrol", "update", f"JobId={number}", "StartTime=now")
        until(lambda: told("queue", *grid)["jobs"] == [])
    finally:
        daemon.start()

    # Nothing was lost: the accounts are made up for when it is back.
    def account() -> str:
        return ask(slurm, "sacct", "-X", "-n", "-P", "-j", number, "-o", "State,Comment")

    until(lambda: account().startswith("COMPLETED|") and "lt1:" in account())
    (ended,) = told("queue", *grid)["ended"]
    assert (ended["job_id"], ended["outcome"], ended["in_time"]) == (number, "completed", True)
    assert ended["measured"] is None
