"""What Slurm's programs print, recorded from a real Slurm 22.05 and read back."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from lowtide.errors import FormatError, InvalidInput
from lowtide.monitor.snapshot import JobFacts
from lowtide.slurm.records import (
    ACCOUNTING_FIELDS,
    SEPARATOR,
    facts_from_json,
    facts_from_lines,
    facts_from_sacct,
    facts_from_scontrol,
)
from lowtide.states import STATES

RECORDED = Path(__file__).parent / "recorded"
MB = 1024.0**2


def recorded(name: str) -> str:
    return (RECORDED / name).read_text()


@pytest.fixture(scope="module")
def queue() -> dict[str, JobFacts]:
    return {facts.job_id: facts for facts in facts_from_json(recorded("squeue.json"))}


def test_a_running_job(queue: dict[str, JobFacts]) -> None:
    assert queue["1"] == JobFacts(
        source="slurm",
        job_id="1",
        shown_id="1",
        state="running",
        user="ann",
        partition="main",
        name="plain|name UserId=evil(0) x",
        nodes=("n1",),
        submitted=1794754616.0,
        started=1794754617.0,
        # When it will have to end is no fact.
        ended=None,
        time_limit_s=5400.0,
        cpus=2.0,
        memory_bytes=300 * MB,
        gpus=0.0,
        restarts=0,
        comment="a|b c=d",
    )


def test_how_jobs_stand_and_ended(queue: dict[str, JobFacts]) -> None:
    assert {job: (facts.state, facts.exit_code) for job, facts in queue.items()} == {
        "1": ("running", None),
        "2": ("running", None),
        "3": ("failed", 3),
        "4": ("failed", 137),
        "5": ("running", None),
        "6": ("cancelled", 143),
        "7": ("suspended", None),
        **dict.fromkeys(("8", "9", "10", "11"), ("pending", None)),
    }
    assert queue["6"].ended == 1794754622.0
    assert queue["5"].restarts == 1
    # When it is planned to begin is no fact either.
    assert queue["11"].started is None


def test_numbers_that_users_type(queue: dict[str, JobFacts]) -> None:
    shown = {job: facts.shown_id for job, facts in queue.items()}
    assert (shown["8"], shown["9"], shown["10"]) == ("8+0", "8+1", "10_[1-9%1]")


def test_gpus_that_slurm_does_not_count_are_those_asked_for(queue: dict[str, JobFacts]) -> None:
    assert (queue["2"].gpus, queue["11"].gpus) == (2.0, 3.0)


@pytest.mark.parametrize(
    ("name", "read"),
    [
        ("scontrol.txt", facts_from_scontrol),
        ("scontrol_oneline.txt", facts_from_scontrol),
        ("squeue.txt", facts_from_lines),
    ],
)
def test_all_forms_say_the_same(queue: dict[str, JobFacts], name: str, read: Any) -> None:
    told = {facts.job_id: facts for facts in read(recorded(name))}
    assert told.keys() == queue.keys()
    if name == "scontrol_oneline.txt":
        # On one line a name that looks like a field cannot be told from it.
        told["1"] = replace(told["1"], name=queue["1"].name)
    assert told == queue


def test_newer_releases_wrap_numbers_and_list_states() -> None:
    def number(value: float) -> dict[str, Any]:
        return {"set": True, "infinite": False, "number": value}

    job = {
        "job_id": 77,
        "array_job_id": number(70),
        "array_task_id": number(3),
        "het_job_id": {"set": False, "infinite": False, "number": 0},
        "job_state": ["POWER_UP_NODE", "RUNNING"],
        "user_name": "bob",
        "nodes": "gpu[07-08]",
        "start_time": number(1000),
        "end_time": {"set": True, "infinite": False, "number": 2000},
        "submit_time": number(900),
        "time_limit": {"set": False, "infinite": True, "number": 0},
        "cpus": number(4),
        "node_count": number(2),
        "tres_alloc_str": "cpu=4,mem=8G,node=2,billing=4,gres/gpu=2,gres/gpu:a100=2",
        "exit_code": {"return_code": number(1), "signal": {"id": number(9)}},
        "restart_cnt": 0,
    }
    (running,) = facts_from_json(json.dumps({"jobs": [job]}))
    assert (running.shown_id, running.state, running.nodes) == (
        "70_3",
        "running",
        ("gpu07", "gpu08"),
    )
    assert (running.cpus, running.memory_bytes, running.gpus) == (4, 8 * 1024**3, 2)
    assert (running.time_limit_s, running.ended, running.exit_code) == (None, None, None)
    (ended,) = facts_from_json(json.dumps({"jobs": [{**job, "job_state": ["OUT_OF_MEMORY"]}]}))
    assert (ended.state, ended.ended, ended.exit_code) == ("out_of_memory", 2000, 137)
    # What is only said of it besides may come first.
    for states, state in (
        (["COMPLETING", "COMPLETED"], "completed"),
        (["REQUEUED", "PENDING"], "pending"),
        (["RESIZING"], "running"),
    ):
        (facts,) = facts_from_json(json.dumps({"jobs": [{**job, "job_state": states}]}))
        assert facts.state == state


@pytest.mark.parametrize(
    ("restarts", "limit_min", "end", "state"),
    [
        # No end, the end of a limit, and that of none in 32 bits: foretold, as of all that wait.
        *((1, 7, 0, "pending"), (1, 7, 2420, "pending"), (2, None, 2000 + 2**32 - 60, "pending")),
        # These are over, the first start and a later one.
        *((0, 7, 2060, "running"), (1, 7, 2060, "running"), (0, 7, 2420, "running")),
        (1, None, 2060, "running"),
    ],
)
def test_a_job_that_is_being_requeued_has_not_begun(
    restarts: int, limit_min: int | None, end: int, state: str
) -> None:
    record = {"job_id": 7, "job_state": "COMPLETING", "nodes": "n1", "submit_time": 1990}
    times = {"start_time": 2000, "end_time": end, "time_limit": limit_min, "restart_cnt": restarts}
    (queued,) = facts_from_json(json.dumps({"jobs": [record | times]}))
    limit = f"{limit_min}:00" if limit_min else "UNLIMITED"
    (shown,) = facts_from_scontrol(
        "JobId=7 JobName=a\n   JobState=COMPLETING Reason=None\n"
        f"   Restarts={restarts} TimeLimit={limit} SubmitTime=1990\n"
        f"   StartTime=2000 EndTime={end if 0 < end < 2**32 else 'Unknown'}\n   NodeList=n1\n"
    )
    for facts in (queued, shown):
        assert (facts.state, facts.submitted, facts.restarts) == (state, 1990, restarts)
        began = (None, ()) if state == "pending" else (2000, ("n1",))
        assert (facts.started, facts.nodes) == began


@pytest.mark.parametrize(
    ("field", "value"),
    [
        *(("exit_code", value) for value in ("x", [], {"signal": 9}, {"return_code": "x"})),
        *(("time_limit", "x"), ("nodes", ["n1"]), ("tres_alloc_str", "cpu=x,mem=1Q"), ("name", 5)),
        *(("user_name", ["a"]), ("comment", {"a": 1}), ("start_time", "abc"), ("job_state", 7)),
        *(("tres_per_node", 7), ("account", None), ("array_task_string", []), ("restart_cnt", "?")),
    ],
)
def test_what_makes_no_sense_is_not_known(field: str, value: Any) -> None:
    job = {"job_id": 5, "job_state": "FAILED", "nodes": "n1", "cpus": 2, field: value}
    (facts,) = facts_from_json(json.dumps({"jobs": [job]}))
    assert (facts.job_id, facts.cpus) == ("5", 2)
    assert isinstance(facts.name, str | None)


@pytest.mark.parametrize("job", [{"job_id": None}, {}, 7, {"job_id": 6, "nodes": "n[1-"}])
def test_one_bad_record_leaves_the_others_alone(job: Any) -> None:
    text = json.dumps({"jobs": [{"job_id": 5}, job, {"job_id": 7}]})
    unreadable: list[str] = []
    found = facts_from_json(text, unreadable=unreadable)
    assert ([facts.job_id for facts in found], len(unreadable)) == (["5", "7"], 1)
    with pytest.raises(InvalidInput):
        facts_from_json(text)


def test_names_may_hold_anything() -> None:
    name = "a|b\n12 c\n"
    lines = recorded("squeue.txt").replace("plain|name UserId=evil(0) x", name)
    first = next(facts for facts in facts_from_lines(lines) if facts.job_id == "1")
    assert first.name == name
    # Even what the fields are told apart by, which costs that one job its facts.
    unreadable: list[str] = []
    found = facts_from_lines(lines.replace(name, "x\x1fy"), unreadable=unreadable)
    assert (len(found), len(unreadable)) == (10, 1)
    told = facts_from_sacct(ACCOUNTED.replace("a\\b", name))
    assert told[0].name == name


def test_what_never_ran_has_no_start(queue: dict[str, JobFacts]) -> None:
    # Recorded: squeue has the moment of a waiting job's end for its start, and an exit status.
    job = {"job_id": 7, "job_state": "CANCELLED", "start_time": 204, "end_time": 204, "nodes": ""}
    (facts,) = facts_from_json(json.dumps({"jobs": [{**job, "exit_code": 1}]}))
    assert (facts.started, facts.ended, facts.exit_code) == (None, 204, None)


def test_how_a_program_ended_where_slurm_does_not_say() -> None:
    # Recorded: 0 for one that was cancelled, 125 where memory ran out.
    cancelled = ACCOUNTED.replace("\x1f0:15\x1f", "\x1f0:0\x1f")
    assert facts_from_sacct(cancelled)[1].exit_code is None
    eaten = ACCOUNTED.replace("\x1fCANCELLED by 1000\x1f0:15\x1f", "\x1fOUT_OF_MEMORY\x1f0:125\x1f")
    assert (facts_from_sacct(eaten)[1].state, facts_from_sacct(eaten)[1].exit_code) == (
        "out_of_memory",
        None,
    )


ACCOUNTED = f"""\
{ACCOUNTING_FIELDS.replace(",", "|")}|
11|11|ann|phys|main|1000|1060|1660|60|COMPLETED|0:0|2|8|8|4G|billing=8,cpu=8,mem=4G,gres/gpu:a100=2|billing=8,cpu=8|n[1-2]||a\\b|
11.batch|11.batch||phys||1060|1060|1660||COMPLETED|0:0|1|4|4||cpu=4||n1||batch|
14|12_4|bo|phys|main|1100|1200|1300|UNLIMITED|CANCELLED by 1000|0:15|1|1|1|2000Mc|cpu=1|cpu=1|n1||a|
13|13|bob|phys|main|900|950|960|10|NODE_FAIL|1:0|1|1|1|1G|cpu=1,mem=1G|cpu=1|n3|try|r|
13|13|bob|phys|main|960|990|Unknown|10|RUNNING|0:0|1|1|1|1G|cpu=1,mem=1G|cpu=1|n1|try|r|
15|12_[5-9]|bob|phys|main|1200|Unknown|Unknown|10|PENDING|0:0|1|0|4|1Gn||cpu=4|None assigned||w|
""".replace("|", SEPARATOR)


def test_accounting() -> None:
    first, element, lost, again, waiting = facts_from_sacct(ACCOUNTED)
    assert (first.name, first.nodes, first.gpus) == ("a\\b", ("n1", "n2"), 2)
    assert (first.memory_bytes, first.time_limit_s, first.exit_code) == (4096 * MB, 3600, 0)
    assert (element.job_id, element.shown_id, element.state) == ("14", "12_4", "cancelled")
    assert (element.time_limit_s, element.memory_bytes) == (None, 2000 * MB)
    assert (lost.state, lost.started, lost.restarts) == ("node_fail", 950, None)
    assert (again.state, again.started, again.ended, again.restarts) == ("running", 990, None, 1)
    assert (waiting.state, waiting.cpus, waiting.nodes) == ("pending", 4, ())
    # Of what has nodes it is these that count.
    assert [each.nodes_asked for each in (again, waiting)] == [None, 1]


def test_every_state_is_one_of_ours(queue: dict[str, JobFacts]) -> None:
    assert {facts.state for facts in queue.values()} <= set(STATES)


def test_local_times_are_refused_with_the_cure() -> None:
    text = recorded("scontrol.txt").replace("StartTime=1794754617", "StartTime=2026-11-15T14:48:40")
    with pytest.raises(InvalidInput, match="SLURM_TIME_FORMAT=%s"):
        facts_from_scontrol(text)
    with pytest.raises(FormatError, match="SLURM_TIME_FORMAT=%s"):
        facts_from_sacct(ACCOUNTED.replace("\x1f1060\x1f", "\x1f2024-07-01T00:00:00\x1f"))


@pytest.mark.parametrize("text", ["", "{", "[1]", '{"jobs": 3}'])
def test_what_is_no_queue_is_refused(text: str) -> None:
    with pytest.raises(InvalidInput, match="squeue"):
        facts_from_json(text)


def test_other_columns_are_refused() -> None:
    with pytest.raises(InvalidInput, match="3 fields"):
        facts_from_lines("1\x1f2\x1f3\x1f\n")
    assert facts_from_lines("") == []
