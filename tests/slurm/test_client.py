"""Asking: a real Slurm, one that is dead, and none at all."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from lowtide.errors import SlurmProblem
from lowtide.monitor.facts import JobFacts
from lowtide.slurm import SlurmClient
from support.slurm import ask


def submit(slurm: dict[str, str], *options: str, run: str = "sleep 30") -> str:
    said = ask(slurm, "sbatch", "--mem=50M", "-o", "/dev/null", *options, "--wrap", run)
    return said.split()[-1]


def seen(look: Callable[[], JobFacts | None], is_so: Callable[[JobFacts], bool]) -> JobFacts:
    end = time.monotonic() + 15
    while (facts := look()) is None or not is_so(facts):
        assert time.monotonic() < end, facts
        time.sleep(0.2)
    return facts


def test_a_real_slurm(slurm: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in slurm.items():
        monkeypatch.setenv(name, value)
    client = SlurmClient(timeout_s=10)

    def of(job: str) -> JobFacts | None:
        return next((each for each in client.queue() if each.job_id == job), None)

    name = "a|b 'c' = ünï"
    again = submit(slurm, "--requeue", "-J", name, "-t", "90", "--comment", "x|y")
    gone = submit(slurm, "-J", "gone")
    bad = submit(slurm, run="exit 3")
    first = seen(lambda: of(again), lambda facts: facts.state == "running")
    assert (first.name, first.comment, first.time_limit_s) == (name, "x|y", 5400)
    assert (first.cpus, first.memory_bytes, first.restarts) == (1, 50 * 1024**2, 0)
    assert client.job(again) == [of(again)]
    seen(lambda: of(gone), lambda facts: facts.state == "running")

    ask(slurm, "scancel", gone)
    ask(slurm, "scontrol", "requeue", again)
    ended = seen(lambda: of(gone), lambda facts: facts.ended is not None)
    assert ended.state == "cancelled"
    failed = seen(lambda: of(bad), lambda facts: facts.ended is not None)
    assert (failed.state, failed.exit_code) == ("failed", 3)
    waiting = seen(lambda: of(again), lambda facts: facts.state == "pending")
    assert (waiting.restarts, waiting.started) == (1, None)
    # Its node must have let go of the first start, or the second fails to launch.
    seen(lambda: waiting, lambda _: ask(slurm, "sinfo", "-h", "-t", "idle", "-o", "%D") == "2")
    time.sleep(1)
    ask(slurm, "scontrol", "update", f"JobId={again}", "StartTime=now")
    second = seen(lambda: of(again), lambda facts: facts.state == "running")
    assert first.started is not None
    assert second.started is not None
    assert second.started > first.started
    # Asked about one node it is asked in another way, and says the same.
    for name in (second.nodes[0], f"{second.nodes[0]}.example.org", "stranger"):
        told = {facts.job_id: facts for facts in SlurmClient(node=name).queue()}
        assert told[again] == second
    # Without accounting that is said once, and the queue is still told.
    for problems in (("sacct has nothing to say here: this Slurm keeps no accounting",), ()):
        found, said = client.facts(since=time.time() - 60)
        assert {again, gone, bad} <= {facts.job_id for facts in found}
        assert said == problems


def stand_in(folder: Path, name: str, script: str) -> None:
    program = folder / name
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)


def test_a_dead_slurm_is_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in(tmp_path, "squeue", f"echo . >> {tmp_path}/asked; exec sleep 60")
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    client = SlurmClient(timeout_s=0.3)
    before = time.monotonic()
    found, problems = client.facts(since=0.0)
    assert (found, problems) == ([], ("squeue did not answer within 0.3 s",))
    assert client.facts(since=0.0) == ([], ())
    assert time.monotonic() - before < 2
    assert (tmp_path / "asked").read_text() == ".\n"
    with pytest.raises(SlurmProblem, match="did not answer"):
        client.queue()


def test_without_json_it_is_asked_for_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recorded = Path(__file__).parent / "recorded" / "squeue.txt"
    stand_in(
        tmp_path,
        "squeue",
        f'case "$*" in *--json*) echo unrecognized option >&2; exit 1;; esac; cat {recorded}',
    )
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    client = SlurmClient()
    assert len(client.queue()) == len(client.queue()) == 11


def test_accounting_adds_what_has_left_the_queue(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stand_in(tmp_path, "squeue", "echo '{\"jobs\": []}'")
    stand_in(
        tmp_path,
        "sacct",
        f'echo "$SLURM_TIME_FORMAT $*" > {tmp_path}/asked\n'
        "echo 'JobIDRaw|JobID|Submit|Start|End|State|JobName'\n"
        "echo '4|4|1000|1060|1660|COMPLETED|night|shift'",
    )
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    (facts,), problems = SlurmClient().facts(since=0.0)
    assert (facts.name, facts.state, facts.ended, problems) == (
        "night|shift",
        "completed",
        1660,
        (),
    )
    assert (tmp_path / "asked").read_text().startswith("%s -P -D -X -a -S 1970-01-01T")


def test_no_slurm_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert not SlurmClient.is_here()
    assert SlurmClient().facts() == ([], ("squeue is not installed",))
