"""What Slurm's programs print about jobs, read into facts.

Each form is brought to one record of texts and numbers first; what a record means is decided in
one place. What a job holds counts as what it asked for, since nobody else can have it. Names and
comments are the users' own and may hold anything, line ends included; a record that cannot be
read costs that job's facts and no other's.
"""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeVar

from lowtide.errors import FormatError, InvalidInput, LowtideError
from lowtide.formats.source import Source
from lowtide.monitor.snapshot import JobFacts
from lowtide.slurm.fields import (
    Cells,
    choose_state,
    count_gpus,
    exit_status,
    expand_nodes,
    gpu_kinds,
    parse_tres,
    read_instant,
    read_limit,
    read_number,
    read_text,
    requested_gpus,
    requested_memory,
    status_of_pair,
    status_of_wait,
)
from lowtide.states import NOT_OVER, read_state

_Record = TypeVar("_Record")
_Read = TypeVar("_Read")


# Behind each field that squeue and sacct are asked for: a character that nobody types.
SEPARATOR = "\x1f"
# A record ends with a line where the next begins with a number: a line may end within a name.
_RECORD_END = re.compile(rf"{SEPARATOR}\n(?=\d[^\s{SEPARATOR}]*{SEPARATOR}|\Z)")
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
# What squeue is asked for about jobs that wait, or are to be moved.
WAITING_FIELDS = {
    "JobID": "job_id",
    "JobArrayID": "shown_id",
    "State": "state",
    "Reason": "reason",
    "UserName": "user",
    "Partition": "partition",
    "SubmitTime": "submitted",
    "EligibleTime": "eligible",
    "StartTime": "started",
    "TimeLimit": "limit",
    "Deadline": "deadline",
    "NumCPUs": "cpus",
    "NumNodes": "node_count",
    "NumTasks": "tasks",
    "tres-alloc": "tres",
    "tres-per-job": "per_job",
    "tres-per-node": "per_node",
    "tres-per-task": "per_task",
    "OverSubscribe": "shares",
    "Feature": "features",
    "RestartCnt": "restarts",
    "PriorityLong": "priority",
    "Reservation": "reservation",
    "Comment": "comment",
    "Name": "name",
}
# What squeue --json makes of no limit: minutes without end, as seconds in 32 bits.
_ENDLESS_S = 2.0**32 - 60
# What is asked for besides where groups are named by it; an older Slurm does not know it.
SLUID_FIELD = "SLUID"
ACCOUNTING_FIELDS = (
    "JobIDRaw,JobID,User,Account,Partition,Submit,Start,End,TimelimitRaw,State,ExitCode,NNodes,"
    "NCPUS,ReqCPUS,ReqMem,AllocTRES,ReqTRES,NodeList,Comment,JobName"
)
# What scontrol prints behind texts that may hold anything: they end where one of these begins.
_FIELD = re.compile(
    r"(?:^|\s)(JobId|ArrayJobId|ArrayTaskId|HetJobId|HetJobOffset|HetJobIdSet|JobName|UserId|"
    r"GroupId|MCS_label|Priority|Account|QOS|JobState|Reason|Restarts|ExitCode|TimeLimit|TimeMin|"
    r"SubmitTime|EligibleTime|StartTime|EndTime|Deadline|Partition|NodeList|BatchHost|NumNodes|"
    r"NumCPUs|NumTasks|SLUID|TRES|ReqTRES|AllocTRES|TresPerJob|TresPerNode|TresPerTask|TresPerSocket|"
    r"Command|WorkDir|Comment|StdErr|StdIn|StdOut|Power|AdminComment|SystemComment)="
)
_NAMED = re.compile(
    r"JobName=(?P<name>.*?)(?= (?:HetJobIdSet=\S* )?UserId=\S+\(\d+\) GroupId=\S+ MCS_label=)"
)
# Lines that are one text from beginning to end.
_WHOLE_LINES = ("Command", "WorkDir", "Comment", "AdminComment", "SystemComment")


def facts_from_json(text: str, *, unreadable: list[str] | None = None) -> list[JobFacts]:
    """Return what `squeue --json` says, of any release that has it.

    Args:
        unreadable: Gets why records cannot be read; without it the first such is an error.
    """
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InvalidInput(f"squeue --json printed what is not JSON: {error}") from None
    jobs = document.get("jobs") if isinstance(document, dict) else None
    if not isinstance(jobs, list):
        raise InvalidInput("squeue --json printed no list of jobs")
    return _each(jobs, lambda job: _facts(_of_json(job)), unreadable)


def facts_from_lines(
    text: str, *, unreadable: list[str] | None = None, has_sluid: bool = False
) -> list[JobFacts]:
    """Return what squeue says when it is asked for `QUEUE_FIELDS`.

    Args:
        unreadable: Gets why records cannot be read; without it the first such is an error.
        has_sluid: Whether it was asked for `SLUID_FIELD` behind them.
    """

    def read(cells: Sequence[str]) -> JobFacts:
        names = (*QUEUE_FIELDS.values(), *(["sluid"] * has_sluid))
        record: dict[str, Any] = _by_name("squeue", names, cells)
        status = read_number(record.pop("exit_status"))
        record["exit_code"] = None if status is None else status_of_wait(int(status))
        return _facts(record)

    return _each(_records(text), read, unreadable)


@dataclass(frozen=True, slots=True, kw_only=True)
class QueuedJob:
    """A job of the queue, with what decides when it starts. None where it is not known.

    Attributes:
        job_id: The number it is accounted by.
        shown_id: What users type: `4711_3` for an element of an array.
        state: Slurm's word.
        reason: Why it waits, in Slurm's word.
        eligible: Before when it does not start, or when it could have.
        started: When it did, of one that has.
        limit_s: After how long it is ended.
        deadline: When it is cancelled whether it runs or not.
        gpus: GPUs that it asked for, over all nodes.
        restarts: How often it was requeued.
        priority: Who has more goes first.
        reservation: What keeps nodes free for it; empty for nothing.
        memory: Bytes that it asked for, over all nodes.
        is_alone: Whether it shares its nodes with nobody, as it or its partition says.
        features: What its nodes must have.
        gpu_kinds: What kinds of GPUs it asked for; none for any.
    """

    job_id: str
    shown_id: str
    state: str
    reason: str
    user: str | None
    partition: str | None
    submitted: float | None
    eligible: float | None
    started: float | None
    limit_s: float | None
    deadline: float | None
    cpus: float | None
    gpus: float | None
    restarts: int
    priority: float | None
    comment: str
    name: str
    nodes: float | None = None
    reservation: str = ""
    memory: float = 0.0
    is_alone: bool = False
    features: str = ""
    gpu_kinds: tuple[str, ...] = ()


def queue_from_lines(text: str, *, unreadable: list[str] | None = None) -> list[QueuedJob]:
    """Return what squeue says when it is asked for `WAITING_FIELDS`.

    Args:
        unreadable: Gets why records cannot be read; without it the first such is an error.
    """
    return _each(filter(None, _RECORD_END.split(text)), _queued, unreadable)


# Most of a queue stands as it stood at the look before, to the letter.
@lru_cache(maxsize=1 << 15)
def _queued(line: str) -> QueuedJob:
    record = _by_name("squeue", tuple(WAITING_FIELDS.values()), line.split(SEPARATOR))
    tres = parse_tres(record["tres"])
    state = (read_text(record["state"]) or "").upper()
    started = read_instant(record["started"])
    return QueuedJob(
        job_id=record["job_id"],
        shown_id=read_text(record["shown_id"]) or record["job_id"],
        state=state,
        reason=record["reason"].strip(),
        user=read_text(record["user"]),
        partition=read_text(record["partition"]),
        submitted=read_instant(record["submitted"]),
        eligible=read_instant(record["eligible"]),
        # Of those that wait it is a guess.
        started=None if read_state(state) == "pending" else started,
        limit_s=read_limit(record["limit"]),
        deadline=read_instant(record["deadline"]),
        cpus=tres.get("cpu") or read_number(record["cpus"]),
        gpus=_gpus(record, tres),
        restarts=int(read_number(record["restarts"]) or 0),
        priority=read_number(record["priority"]),
        comment=record["comment"] if read_text(record["comment"]) else "",
        name=record["name"],
        nodes=read_number(record["node_count"]),
        reservation=read_text(record["reservation"]) or "",
        memory=tres.get("mem", 0.0),
        is_alone=record["shares"].strip().upper() in ("NO", "EXCLUSIVE"),
        features=read_text(record["features"]) or "",
        gpu_kinds=gpu_kinds(*(record[name] for name in ("per_job", "per_node", "per_task"))),
    )


def facts_from_scontrol(text: str, *, unreadable: list[str] | None = None) -> list[JobFacts]:
    """Return what `scontrol show job` says, on one line per job (`-o`) or on many.

    Args:
        unreadable: Gets why records cannot be read; without it the first such is an error.
    """
    blocks = re.split(r"^(?=JobId=\d)", text, flags=re.M)
    jobs = [block for block in blocks if block.startswith("JobId=")]
    return _each(jobs, lambda block: _facts(_of_scontrol(block)), unreadable)


def facts_from_sacct(text: str, *, unreadable: list[str] | None = None) -> list[JobFacts]:
    """Return what `sacct -p` says of jobs, one for every start of each; steps are left out.

    Args:
        text: What it printed with headings, asked for `ACCOUNTING_FIELDS` with `SEPARATOR` between
            them and SLURM_TIME_FORMAT=%s.
        unreadable: Gets why records cannot be read; without it the first such is an error.
    """
    source = Source(path=Path("sacct"), data=b"")
    first, _, rest = text.partition("\n")
    headings = first.removesuffix(SEPARATOR).split(SEPARATOR)
    if not {"JobIDRaw", "State"} <= set(headings):
        raise FormatError("there is no JobIDRaw or no State", path=source.path, line=1)
    starts: Counter[str] = Counter()

    def read(numbered: tuple[int, Sequence[str]]) -> JobFacts:
        number, cells = numbered
        row = _by_name("sacct", headings, cells)
        facts = _of_accounting(Cells(row, source, number), starts[row["JobIDRaw"]])
        starts[facts.job_id] += 1
        return facts

    place = headings.index("JobIDRaw")
    records = enumerate(_records(rest), start=2)
    return _each(
        ((number, cells) for number, cells in records if "." not in "".join(cells[place:][:1])),
        read,
        unreadable,
    )


def _records(text: str) -> Iterator[list[str]]:
    """Yield the cells of each record."""
    for record in _RECORD_END.split(text):
        if record:
            yield record.split(SEPARATOR)


def _by_name(program: str, names: Sequence[str], cells: Sequence[str]) -> dict[str, str]:
    if len(cells) != len(names):
        raise InvalidInput(
            f"{program} printed {len(cells)} fields where {len(names)} were asked for: "
            f"{SEPARATOR.join(cells)[:60]!r}"
        )
    return dict(zip(names, cells, strict=True))


def _each(
    records: Iterable[_Record], read: Callable[[_Record], _Read], unreadable: list[str] | None
) -> list[_Read]:
    """Return what each record says; one that says nonsense leaves the others alone."""
    found = []
    for record in records:
        try:
            found.append(read(record))
        except (
            LowtideError,
            LookupError,
            TypeError,
            ValueError,
            AttributeError,
            OverflowError,
        ) as error:
            if unreadable is None:
                raise
            unreadable.append(str(error))
    return found


def _of_json(job: Any) -> dict[str, Any]:
    if not isinstance(job, dict):
        raise InvalidInput(f"squeue --json printed a job that is none: {str(job)[:60]!r}")
    number = {name: _json_number(job.get(name)) for name in _JSON_NUMBERS}
    if not number["job_id"]:
        raise InvalidInput(f"squeue --json printed a job without a number: {str(job)[:60]!r}")
    states = job.get("job_state")
    array, task = number["array_job_id"], number["array_task_id"]
    shown = None
    if array:
        several = job.get("array_task_string")
        shown = f"{array:.0f}_" + (f"[{several}]" if several else f"{task or 0:.0f}")
    elif number["het_job_id"]:
        shown = f"{number['het_job_id']:.0f}+{number['het_job_offset'] or 0:.0f}"
    limit = number["time_limit"]
    step = job.get("step_id")
    return {
        "job_id": f"{number['job_id']:.0f}",
        "shown_id": shown,
        "state": choose_state(states if isinstance(states, list) else [states]),
        "user": _json_text(job.get("user_name")) or number["user_id"],
        "account": _json_text(job.get("account")),
        "partition": _json_text(job.get("partition")),
        "name": _json_text(job.get("name")),
        "nodes": _json_text(job.get("nodes")),
        "submitted": number["submit_time"],
        "started": number["start_time"],
        "ended": number["end_time"],
        "limit": None if limit is None else limit * 60.0,
        "cpus": number["cpus"],
        "node_count": number["node_count"],
        "tasks": number["tasks"],
        "tres": _json_text(job.get("tres_alloc_str")) or _json_text(job.get("tres_req_str")),
        "per_job": _json_text(job.get("tres_per_job")),
        "per_node": _json_text(job.get("tres_per_node")),
        "per_task": _json_text(job.get("tres_per_task")),
        "exit_code": _json_exit(job.get("exit_code")),
        "restarts": number["restart_cnt"],
        "comment": _json_text(job.get("comment")),
        "sluid": _json_text(job.get("sluid"))
        or (_json_text(step.get("sluid")) if isinstance(step, dict) else None),
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
    return read_number(value)


def _json_text(value: Any) -> str | None:
    """Return a text; what stands where one is expected and is none says nothing."""
    return value if isinstance(value, str) else None


def _json_exit(value: Any) -> int | None:
    if isinstance(value, dict):
        signal = value.get("signal")
        given = signal if isinstance(signal, dict) else {}
        number = _json_number(given.get("id") or given.get("signal_id"))
        code = _json_number(value.get("return_code"))
        return exit_status(None if code is None else int(code), int(number or 0))
    status = read_number(value)
    return None if status is None else status_of_wait(int(status))


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
        "tres": read_text(fields.get("AllocTRES"))
        or read_text(fields.get("TRES"))
        or fields.get("ReqTRES"),
        "per_job": fields.get("TresPerJob"),
        "per_node": fields.get("TresPerNode"),
        "per_task": fields.get("TresPerTask"),
        "exit_code": status_of_pair(fields.get("ExitCode")),
        "restarts": fields.get("Restarts"),
        "comment": fields.get("Comment"),
        "sluid": fields.get("SLUID"),
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
        "exit_code": status_of_pair(cells.text("ExitCode")),
        # Starts before the time that was asked about are not seen.
        "restarts": before or None,
        "comment": cells.text("Comment"),
        "sluid": row.get("SLUID"),
    }
    return _facts(record)


def _facts(record: Mapping[str, Any]) -> JobFacts:
    """Return what a record means: what is planned is no fact, and no word for nothing is one."""
    state = "pending" if _will_wait(record) else read_state(read_text(record.get("state")))
    over = state is not None and state not in NOT_OVER
    # Those that it leaves behind when it is requeued are of its last start.
    nodes = () if state == "pending" else expand_nodes(read_text(record.get("nodes")))
    # What has no nodes and is over never ran; squeue then has its end for its start, too.
    ran = state != "pending" and (bool(nodes) or not over)
    exit_code = record.get("exit_code") if over and ran else None
    tres = parse_tres(read_text(record.get("tres")))
    started = read_instant(record.get("started"))
    restarts = read_number(record.get("restarts"))
    return JobFacts(
        source="slurm",
        job_id=record["job_id"],
        shown_id=read_text(record.get("shown_id")) or record["job_id"],
        state=state,
        user=read_text(record.get("user")),
        account=read_text(record.get("account")),
        partition=read_text(record.get("partition")),
        # A job may well be called "none".
        name=record.get("name") or None,
        nodes=nodes,
        submitted=read_instant(record.get("submitted")),
        started=started if ran else None,
        ended=read_instant(record.get("ended")) if over else None,
        time_limit_s=read_limit(record.get("limit")),
        cpus=tres.get("cpu") or read_number(record.get("cpus")),
        memory_bytes=tres.get("mem") or read_number(record.get("memory")) or None,
        gpus=_gpus(record, tres),
        nodes_asked=read_number(record.get("node_count")) if state == "pending" else None,
        # The accounting has 0 for jobs that were ended from outside: nobody knows theirs.
        exit_code=exit_code if exit_code or state == "completed" else None,
        restarts=None if restarts is None else int(restarts),
        comment=read_text(record.get("comment")),
        sluid=read_text(record.get("sluid")),
    )


def _will_wait(record: Mapping[str, Any]) -> bool:
    """Return whether a job is being requeued: its last start is cleared away, and no other began.

    Slurm then counts the next start already, and foretells it as for all that wait: it would begin
    now, and end when its limit is reached. Of one that is over it tells when that was.
    """
    state = read_text(record.get("state")) or ""
    if state.upper() != "COMPLETING" or not read_number(record.get("restarts")):
        return False
    started, ended = (read_instant(record.get(name)) for name in ("started", "ended"))
    if started is None or ended is None:
        return True
    return ended - started in (read_limit(record.get("limit")), _ENDLESS_S)


def _gpus(record: Mapping[str, Any], tres: Mapping[str, float]) -> float | None:
    """Return the GPUs: as counted, else as asked for where GPUs are not counted."""
    counted = count_gpus(tres)
    if counted:
        return counted
    for asked, times in (("per_job", None), ("per_node", "node_count"), ("per_task", "tasks")):
        gpus = requested_gpus(read_text(record.get(asked)))
        if gpus:
            many = 1.0 if times is None else read_number(record.get(times))
            return None if many is None else gpus * many
    return 0.0 if tres else None
