"""What Slurm's programs print about jobs, read into facts.

Each form is brought to one record of texts and numbers first; what a record means is decided in
one place. What a job holds counts as what it asked for, since nobody else can have it.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from lowtide.errors import FormatError, InvalidInput
from lowtide.formats.sacct import Cells, headings_of, requested_memory, rows_of
from lowtide.formats.source import Source
from lowtide.formats.states import status_code
from lowtide.formats.tres import count_gpus, parse_tres, requested_gpus
from lowtide.monitor.facts import JobFacts
from lowtide.slurm.nodes import expand_nodes
from lowtide.trace import STATUSES
from lowtide.units import parse_duration

_STATES = {
    "completed": "completed",
    "failed": "failed",
    "cancelled": "cancelled",
    "timeout": "timeout",
    "out_of_memory": "failed",
    "node_failure": "lost",
    # Taken off its nodes, to be run again or not: that start of it is over.
    "preempted": "cancelled",
    "requeued": "cancelled",
    "running": "running",
    "pending": "pending",
    "suspended": "suspended",
}
_NOT_OVER = ("pending", "running", "suspended")
_NOTHING = frozenset(
    ("", "(null)", "n/a", "none", "unknown", "none assigned", "not_set", "invalid")
)
_ENDLESS = frozenset(("unlimited", "infinite", "partition_limit"))

# What is asked of squeue where it speaks no JSON. Fields are told apart by a character that no
# name can hold, for names and comments may hold any other.
SEPARATOR = "\x1f"
QUEUE_FIELDS = {
    "JobID": "job_id",
    "JobArrayID": "shown_id",
    "State": "state",
    "UserName": "user",
    "Account": "account",
    "Partition": "partition",
    "NodeList": "nodes",
    "SubmitTime": "submitted",
    "StartTime": "started",
    "EndTime": "ended",
    "TimeLimit": "limit",
    "NumCPUs": "cpus",
    "NumNodes": "node_count",
    "NumTasks": "tasks",
    "tres-alloc": "tres",
    "tres-per-job": "per_job",
    "tres-per-node": "per_node",
    "tres-per-task": "per_task",
    "exit_code": "exit_status",
    "RestartCnt": "restarts",
    "Comment": "comment",
    "Name": "name",
}
ACCOUNTING_FIELDS = (
    "JobIDRaw,JobID,User,Account,Partition,Submit,Start,End,TimelimitRaw,State,ExitCode,NNodes,"
    "NCPUS,ReqCPUS,ReqMem,AllocTRES,ReqTRES,NodeList,Comment,JobName"
)
# What scontrol prints behind texts that may hold anything: they end where one of these begins.
_FIELD = re.compile(
    r"(?:^|\s)(JobId|ArrayJobId|ArrayTaskId|HetJobId|HetJobOffset|HetJobIdSet|JobName|UserId|"
    r"GroupId|MCS_label|Priority|Account|QOS|JobState|Reason|Restarts|ExitCode|TimeLimit|TimeMin|"
    r"SubmitTime|EligibleTime|StartTime|EndTime|Deadline|Partition|NodeList|BatchHost|NumNodes|"
    r"NumCPUs|NumTasks|TRES|ReqTRES|AllocTRES|TresPerJob|TresPerNode|TresPerTask|TresPerSocket|"
    r"Command|WorkDir|Comment|StdErr|StdIn|StdOut|Power|AdminComment|SystemComment)="
)
_NAMED = re.compile(
    r"JobName=(?P<name>.*?)(?= (?:HetJobIdSet=\S* )?UserId=\S+\(\d+\) GroupId=\S+ MCS_label=)"
)
# Lines that are one text from beginning to end.
_WHOLE_LINES = ("Command", "WorkDir", "Comment", "AdminComment", "SystemComment")


def facts_from_json(text: str) -> list[JobFacts]:
    """Return what `squeue --json` says, of any release that has it.

    Args:
        text: What it printed.
    """
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InvalidInput(f"squeue --json printed what is not JSON: {error}") from None
    jobs = document.get("jobs") if isinstance(document, dict) else None
    if not isinstance(jobs, list):
        raise InvalidInput("squeue --json printed no list of jobs")
    return [_facts(_of_json(job)) for job in jobs if isinstance(job, dict)]


def facts_from_lines(text: str) -> list[JobFacts]:
    """Return what squeue says when it is asked for `QUEUE_FIELDS`.

    Args:
        text: What it printed, without headings.
    """
    found = []
    for line in text.removesuffix("\n").split("\n") if text else ():
        cells = line.removesuffix(SEPARATOR).split(SEPARATOR)
        if len(cells) != len(QUEUE_FIELDS):
            raise InvalidInput(
                f"squeue printed {len(cells)} fields where {len(QUEUE_FIELDS)} were asked for: "
                f"{line[:60]!r}"
            )
        record: dict[str, Any] = dict(zip(QUEUE_FIELDS.values(), cells, strict=True))
        status = _number(record.pop("exit_status"))
        record["exit_code"] = None if status is None else _from_wait(int(status))
        found.append(_facts(record))
    return found


def facts_from_scontrol(text: str) -> list[JobFacts]:
    """Return what `scontrol show job` says, on one line per job (`-o`) or on many.

    Args:
        text: What it printed.
    """
    blocks = re.split(r"^(?=JobId=\d)", text, flags=re.M)
    return [_facts(_of_scontrol(block)) for block in blocks if block.startswith("JobId=")]


def facts_from_sacct(text: str) -> list[JobFacts]:
    """Return what `sacct -P` says of jobs, one for every start of each; steps are left out.

    Args:
        text: What it printed, asked for `ACCOUNTING_FIELDS` with SLURM_TIME_FORMAT=%s.
    """
    source = Source(path=Path("sacct"), data=text.encode())
    headings = headings_of(source)
    if not {"JobIDRaw", "State"} <= set(headings):
        raise FormatError("there is no JobIDRaw or no State", path=source.path, line=1)
    found = []
    starts: dict[str, int] = {}
    for number, row in rows_of(source, headings):
        if "." not in row["JobIDRaw"]:
            facts = _of_accounting(Cells(row, source, number), starts.get(row["JobIDRaw"], 0))
            starts[facts.job_id] = starts.get(facts.job_id, 0) + 1
            found.append(facts)
    return found


def _of_json(job: Mapping[str, Any]) -> dict[str, Any]:
    number = {name: _json_number(job.get(name)) for name in _JSON_NUMBERS}
    states = job.get("job_state")
    array, task = number["array_job_id"], number["array_task_id"]
    shown = None
    if array:
        several = job.get("array_task_string")
        shown = f"{array:.0f}_" + (f"[{several}]" if several else f"{task or 0:.0f}")
    elif number["het_job_id"]:
        shown = f"{number['het_job_id']:.0f}+{number['het_job_offset'] or 0:.0f}"
    limit = number["time_limit"]
    return {
        "job_id": f"{number['job_id'] or 0:.0f}",
        "shown_id": shown,
        "state": _known_state(states if isinstance(states, list) else [states]),
        "user": job.get("user_name") or number["user_id"],
        "account": job.get("account"),
        "partition": job.get("partition"),
        "name": job.get("name"),
        "nodes": job.get("nodes"),
        "submitted": number["submit_time"],
        "started": number["start_time"],
        "ended": number["end_time"],
        "limit": None if limit is None else limit * 60.0,
        "cpus": number["cpus"],
        "node_count": number["node_count"],
        "tasks": number["tasks"],
        "tres": job.get("tres_alloc_str") or job.get("tres_req_str"),
        "per_job": job.get("tres_per_job"),
        "per_node": job.get("tres_per_node"),
        "per_task": job.get("tres_per_task"),
        "exit_code": _json_exit(job.get("exit_code")),
        "restarts": number["restart_cnt"],
        "comment": job.get("comment"),
    }


_JSON_NUMBERS = (
    *("job_id", "array_job_id", "array_task_id", "het_job_id", "het_job_offset", "user_id"),
    *("submit_time", "start_time", "end_time", "time_limit", "cpus", "node_count", "tasks"),
    "restart_cnt",
)


def _json_number(value: Any) -> float | None:
    """Return a number; releases from 23.02 on wrap it and say whether it is set or endless."""
    if isinstance(value, dict):
        if value.get("infinite") or not value.get("set", True):
            return None
        value = value.get("number")
    return _number(value)


def _json_exit(value: Any) -> int | None:
    if isinstance(value, dict):
        signal = value.get("signal")
        number = _json_number((signal.get("id") or signal.get("signal_id")) if signal else None)
        code = _json_number(value.get("return_code"))
        return 128 + int(number) if number else None if code is None else int(code)
    return None if value is None else _from_wait(int(value))


def _of_scontrol(block: str) -> dict[str, Any]:
    lines = block.strip().split("\n")
    fields: dict[str, str] = {}
    if len(lines) == 1:
        # The name ends where the user begins, and users have a group.
        if (match := _NAMED.search(block)) is not None:
            fields["JobName"] = match["name"]
            lines = [block[: match.start()], block[match.end() :]]
        for line in lines:
            _add_fields(fields, line)
    else:
        first, _, name = lines[0].partition("JobName=")
        fields["JobName"] = name
        for line in (first, *lines[1:]):
            key, equals, value = line.strip().partition("=")
            if equals and key in _WHOLE_LINES:
                fields.setdefault(key, value)
            else:
                _add_fields(fields, line)
    array, task = fields.get("ArrayJobId"), fields.get("ArrayTaskId", "")
    shown = None
    if array:
        shown = f"{array}_{task if task.isdigit() else f'[{task}]'}"
    elif "HetJobId" in fields:
        shown = f"{fields['HetJobId']}+{fields.get('HetJobOffset', '0')}"
    user = re.fullmatch(r"(.*)\((\d+)\)", fields.get("UserId", ""))
    return {
        "job_id": fields["JobId"],
        "shown_id": shown,
        "state": fields.get("JobState"),
        "user": None if user is None else user[1] or user[2],
        "account": fields.get("Account"),
        "partition": fields.get("Partition"),
        "name": fields.get("JobName"),
        "nodes": fields.get("NodeList"),
        "submitted": fields.get("SubmitTime"),
        "started": fields.get("StartTime"),
        "ended": fields.get("EndTime"),
        "limit": fields.get("TimeLimit"),
        "cpus": fields.get("NumCPUs"),
        # 2-4 where it may have between two and four.
        "node_count": fields.get("NumNodes", "").partition("-")[0],
        "tasks": fields.get("NumTasks"),
        "tres": _said(fields.get("AllocTRES"))
        or _said(fields.get("TRES"))
        or fields.get("ReqTRES"),
        "per_job": fields.get("TresPerJob"),
        "per_node": fields.get("TresPerNode"),
        "per_task": fields.get("TresPerTask"),
        "exit_code": _from_pair(fields.get("ExitCode")),
        "restarts": fields.get("Restarts"),
        "comment": fields.get("Comment"),
    }


def _add_fields(fields: dict[str, str], line: str) -> None:
    matches = list(_FIELD.finditer(line))
    ends = [*(each.start() for each in matches[1:]), len(line)]
    for match, end in zip(matches, ends, strict=False):
        # A word behind the value belongs to a field that nobody asked for.
        value = line[match.end() : end]
        text = value if match[1] in ("Comment", "WorkDir", "Command") else value.split(" ")[0]
        fields.setdefault(match[1], text.strip())


def _of_accounting(cells: Cells, before: int) -> JobFacts:
    row = cells.row
    nodes, cpus = cells.number("NNodes"), cells.number("NCPUS")
    asked = cells.number("ReqCPUS")
    minutes = cells.number("TimelimitRaw")
    shown = row.get("JobID", "")
    record: dict[str, Any] = {
        "job_id": row["JobIDRaw"],
        "shown_id": shown if shown != row["JobIDRaw"] else None,
        "state": row["State"],
        "user": cells.text("User"),
        "account": cells.text("Account"),
        "partition": cells.text("Partition"),
        "name": row.get("JobName"),
        "nodes": row.get("NodeList"),
        "submitted": cells.instant("Submit"),
        "started": cells.instant("Start"),
        "ended": cells.instant("End"),
        "limit": None if math.isnan(minutes) else minutes * 60.0,
        "cpus": cpus if cpus > 0 else asked,
        "node_count": nodes,
        "memory": requested_memory(cells, nodes, asked),
        "tres": cells.text("AllocTRES") or cells.text("ReqTRES"),
        "exit_code": _from_pair(cells.text("ExitCode")),
        # Starts before the time that was asked about are not seen.
        "restarts": before or None,
        "comment": cells.text("Comment"),
    }
    return _facts(record)


def _facts(record: Mapping[str, Any]) -> JobFacts:
    """Return what a record means: what is planned is no fact, and no word for nothing is one."""
    status = STATUSES[status_code(_said(record.get("state")))]
    state = _STATES.get(status)
    over = state is not None and state not in _NOT_OVER
    tres = parse_tres(_said(record.get("tres")))
    started = _instant(record.get("started"))
    restarts = _number(record.get("restarts"))
    return JobFacts(
        source="slurm",
        job_id=record["job_id"],
        shown_id=_said(record.get("shown_id")) or record["job_id"],
        state=state,
        user=_said(record.get("user")),
        account=_said(record.get("account")),
        partition=_said(record.get("partition")),
        # A job may well be called "none".
        name=record.get("name") or None,
        nodes=expand_nodes(_said(record.get("nodes"))),
        submitted=_instant(record.get("submitted")),
        started=None if state == "pending" else started,
        ended=_instant(record.get("ended")) if over else None,
        time_limit_s=_limit(record.get("limit")),
        cpus=tres.get("cpu") or _number(record.get("cpus")),
        memory_bytes=tres.get("mem") or _number(record.get("memory")) or None,
        gpus=_gpus(record, tres),
        exit_code=record.get("exit_code") if over else None,
        restarts=None if restarts is None else int(restarts),
        comment=_said(record.get("comment")),
    )


def _gpus(record: Mapping[str, Any], tres: Mapping[str, float]) -> float | None:
    """Return the GPUs: as counted, else as asked for where GPUs are not counted."""
    counted = count_gpus(tres)
    if counted:
        return counted
    for asked, times in (("per_job", None), ("per_node", "node_count"), ("per_task", "tasks")):
        gpus = requested_gpus(_said(record.get(asked)))
        if gpus:
            many = 1.0 if times is None else _number(record.get(times))
            return None if many is None else gpus * many
    return 0.0 if tres else None


def _known_state(states: Iterable[Any]) -> str | None:
    """Return the first state that says how the job stands; newer releases add flags to it."""
    names = [str(state) for state in states if state]
    return next((name for name in names if status_code(name)), None)


def _said(value: Any) -> str | None:
    text = "" if value is None else f"{value:.0f}" if isinstance(value, float) else str(value)
    return None if text.strip().lower() in _NOTHING else text.strip()


def _number(value: Any) -> float | None:
    try:
        number = math.nan if isinstance(value, bool) or value is None else float(value)
    except (TypeError, ValueError):
        return None
    return number if math.isfinite(number) else None


def _instant(value: Any) -> float | None:
    if isinstance(value, str) and (text := _said(value)) and not text.isdigit():
        raise InvalidInput(
            f"{text!r} is a local time without its zone: run the command with "
            "SLURM_TIME_FORMAT=%s, which gives epoch seconds"
        )
    # Slurm writes 0 for a time that has not come.
    return _number(value) or None


def _limit(value: Any) -> float | None:
    if not isinstance(value, str):
        return _number(value)
    text = _said(value)
    if text is None or text.lower() in _ENDLESS:
        return None
    return parse_duration(text, bare_unit_s=60.0)


def _from_pair(text: str | None) -> int | None:
    """Return the exit status of `3:0`; of `0:9`, which a signal ended, what a shell would say."""
    match = re.fullmatch(r"(\d+):(\d+)", text or "")
    if match is None:
        return None
    return 128 + int(match[2]) if int(match[2]) else int(match[1])


def _from_wait(status: int) -> int:
    """Return the exit status in what `wait` returns."""
    return 128 + (status & 0x7F) if status & 0x7F else status >> 8 & 0xFF
