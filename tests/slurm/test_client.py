"""Asking: a real Slurm, one that is dead, and none at all."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import pytest

from lowtide.errors import NoAccounting, NoSuchJob, NoSuchNode, SlurmProblem, SlurmSilent
from lowtide.monitor.snapshot import JobFacts
from lowtide.serve.ingest import take_facts
from lowtide.serve.viewer import Rights, Viewer
from lowtide.slurm import SlurmClient
from support.pushed import centre
from support.slurm import ask

pytestmark = [pytest.mark.alone, pytest.mark.slurm]


def submit(slurm: dict[str, str], *options: str, run: str = "sleep 30") -> str:
    said = ask(slurm, "sbatch", "--mem=50M", "-o", "/dev/null", *options, "--wrap", run)
    return said.split()[-1]


def seen(look: Callable[[], JobFacts | None], is_so: Callable[[JobFacts], bool]) -> JobFacts:
    end = time.monotonic() + 15
    while (facts := look()) is None or not is_so(facts):
        assert time.monotonic() < end, facts
        time.sleep(0.2)
    return facts


def test_a_real_slurm(
    slurm: dict[str, str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
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
    for name in (second.nodes[0], f"{second.nodes[0]}.example.org", "n1,n2", "c1,n1,n2"):
        told = {facts.job_id: facts for facts in SlurmClient(node=name).queue()}
        assert told[again] == second
    # What waits tells what it asked for, whoever is asked.
    wide = submit(slurm, "--hold", "-N", "2", "-n", "4")
    held = of(wide)
    assert held is not None
    assert (held.state, held.nodes_asked, held.cpus, held.nodes) == ("pending", 2, 4, ())
    assert (again, second.nodes_asked) == (second.job_id, None)
    for told_by in (client.waiting().facts, client.job(wide)):
        [same] = [each for each in told_by if each.job_id == wide]
        assert (same.nodes_asked, same.cpus, same.submitted) == (2, 4, held.submitted)
    with centre(str(tmp_path / "centre.sqlite")) as database:
        take_facts(database, client.queue(), now=time.time())
        state = Viewer(database, "", Rights(role="owner"), time.time()).queue()
        [line] = [each for each in state.lines if each.partition == held.partition]
        assert (line.jobs, line.nodes, line.cpus, line.gpus) == (1, 2, 4, 0)
        assert 0 <= line.wait_s < 60
        ask(slurm, "scancel", wide)
        take_facts(database, client.queue(), now=time.time())
        assert not Viewer(database, "", Rights(role="owner"), time.time()).queue().lines
    # Never for all jobs of the cluster where it does not know the node.
    answer = SlurmClient(node="stranger").facts()
    assert (answer.facts, answer.is_whole) == ([], False)
    assert "Slurm knows no node called stranger" in answer.problems[0]
    assert "--slurm-node" in answer.problems[0]
    assert SlurmClient.find_cluster() == "test"
    # A field that this Slurm does not know takes nothing from the others.
    asking = SlurmClient(node=second.nodes[0], wants_sluid=True)
    assert {facts.job_id: facts for facts in asking.queue()}[again] == second
    # Without accounting that is said once, and the queue is still told.
    for problems in (("sacct has nothing to say here: this Slurm keeps no accounting",), ()):
        answer = client.facts(since=time.time() - 60)
        assert {again, gone, bad} <= {facts.job_id for facts in answer.facts}
        assert (answer.problems, answer.is_whole) == (problems, True)


def stand_in(folder: Path, name: str, script: str) -> None:
    program = folder / name
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)


def test_all_nodes_of_a_machine_are_asked_about_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stand_in(tmp_path, "squeue", f'echo "$4 $5 $6" >> {tmp_path}/asked')
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    guessed, told = SlurmClient(node="vm", is_guess=True), SlurmClient(node="n7")
    for client in (guessed, told):
        client.queue()
        client.name_nodes(["aud2", "aud1"])
        client.queue()
    asked = [line.split()[-1] for line in (tmp_path / "asked").read_text().splitlines()]
    assert asked == ["vm", "aud1,aud2", "n7", "n7"]


@pytest.mark.parametrize(
    ("said", "kind"),
    [
        ("slurm_load_jobs error: Invalid job id specified", NoSuchJob),
        ("slurm_load_node error: Invalid node name specified", NoSuchNode),
        ("Slurm accounting storage is disabled", NoAccounting),
        ("error: Unable to contact slurm controller (connect failure)", SlurmSilent),
        ("Access/permission denied", SlurmProblem),
        ("", SlurmProblem),
    ],
)
def test_what_a_program_complains_of_is_told_apart_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: str, kind: type[SlurmProblem]
) -> None:
    stand_in(tmp_path, "scontrol", f"echo first; echo '{said}' >&2; exit 1")
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    with pytest.raises(SlurmProblem, match=r"^scontrol failed: ") as caught:
        SlurmClient().tell("scontrol", "show", "job", "5")
    assert type(caught.value) is kind


def test_a_dead_slurm_is_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in(tmp_path, "squeue", f"echo . >> {tmp_path}/asked; exec sleep 60")
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    client = SlurmClient(timeout_s=0.3)
    before = time.monotonic()
    assert client.facts(since=0.0) == ([], ("squeue did not answer within 0.3 s",), None, False)
    assert client.facts(since=0.0) == client.waiting() == ([], (), None, False)
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
        "tr '|' '\\037' << END\n"
        "JobIDRaw|JobID|Submit|Start|End|State|NodeList|JobName|\n"
        "4|4|1000|1060|1660|COMPLETED|n1|night shift|\n"
        "5|5|1000|Unknown|Unknown|PENDING|None assigned|waits|\n"
        "END",
    )
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    before = time.time()
    (facts,), problems, until, is_whole = SlurmClient().facts(since=before - 60)
    assert (facts.name, facts.state, facts.ended) == ("night shift", "completed", 1660)
    assert (problems, is_whole) == ((), True)
    assert until is not None
    assert before - 60 <= until <= time.time() - 60
    start = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(before - 60))
    assert (tmp_path / "asked").read_text().startswith(f"%s -p -D -X -a -S {start} --")


def test_a_long_time_is_caught_up_with_in_parts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stand_in(tmp_path, "squeue", "echo '{\"jobs\": []}'")
    # Answers about half a day at most, as one does who has much to tell.
    stand_in(
        tmp_path,
        "sacct",
        'while [ "$1" != -S ]; do shift; done; begin=$(date -u -d "$2" +%s); end=$(date +%s)\n'
        '[ "$3" = -E ] && end=$(date -u -d "$4" +%s)\n'
        f'echo "$begin $end" >> {tmp_path}/asked\n'
        "[ $((end - begin)) -gt 43300 ] && exec sleep 60\n"
        "printf 'JobIDRaw\\037State\\037\\n'",
    )
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    client = SlurmClient(timeout_s=0.5, rest_s=0.0)
    since = began = time.time() - 3 * 86400
    answers = []
    while since < time.time() - 100 and len(answers) < 6:
        answers.append(client.facts(since=since))
        # It stays where it was until there is an answer.
        assert answers[-1].is_whole == (answers[-1].until is not None)
        since = answers[-1].until or since
    assert not answers[0].is_whole
    assert since >= time.time() - 100
    asked = [
        tuple(map(int, line.split())) for line in (tmp_path / "asked").read_text().splitlines()
    ]
    answered = [(begin, end) for begin, end in asked if end - begin <= 43300]
    assert abs(answered[0][0] - began) <= 1
    assert all(later[0] < earlier[1] for earlier, later in pairwise(answered))


def test_a_job_that_cannot_be_read_is_said_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs = '{"jobs": [{"job_id": 1}, {"job_id": 2, "nodes": "n["}, {"job_id": 3, "nodes": "n["}]}'
    stand_in(tmp_path, "squeue", f"echo '{jobs}'")
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    client = SlurmClient()
    answer = client.facts()
    assert [facts.job_id for facts in answer.facts] == ["1"]
    assert answer.problems == (
        "squeue: a job is left out, for cannot read the list of nodes 'n[': write e.g. "
        "node[01-03,7]",
    )
    assert client.facts().problems == ()


def test_no_slurm_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert not SlurmClient.is_here()
    assert SlurmClient().facts() == ([], ("squeue is not installed",), None, False)
