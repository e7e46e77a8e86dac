"""Traces of data centres as they were published: Azure, Alibaba PAI, Google 2019 and Philly.

Each is laid out in its own way, and says less than a plain table does. What a trace leaves open,
and what was made of it, its notes tell.
"""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import numpy as np
import numpy.typing as npt

from lowtide.errors import FormatError
from lowtide.formats.jobs import ZONELESS, JobReader, seconds_only, waits
from lowtide.formats.source import Place, Source, is_number
from lowtide.formats.table_reader import MOST, ParquetSheet, Sheet, are_records
from lowtide.signal import FloatArray
from lowtide.states import STATUSES
from lowtide.trace import Trace
from lowtide.units import format_count

_GIB = 2.0**30
_MORE_THAN = re.compile(r"\s*>\s*(\d+(?:\.\d+)?)\s*")

_AZURE = (
    *("vmid", "subscription", "deployment", "created", "deleted", "maxcpu", "avgcpu"),
    *("p95maxcpu", "category", "cores", "memory_gb"),
)
_PAI = (
    *("job_name", "task_name", "inst_num", "status", "start_time", "end_time"),
    *("plan_cpu", "plan_mem", "plan_gpu", "gpu_type"),
)
_PAI_STATES = {"terminated": "completed", "failed": "failed", "running": "running"}
_PAI_STATES |= {"waiting": "pending"}
# What a job comes to whose tasks came to several things: the first of these.
_WORST = ("running", "pending", "failed", "cancelled", "preempted", "unknown", "completed")


def _headless(source: Source, headings: Sequence[str], numbers: Sequence[str]) -> Sheet | None:
    """Return a table whose columns are known by their places; None where a line is not like it.

    A heading, which some copies have, is passed over: a line that fits but for its numbers.

    Args:
        numbers: Columns that hold numbers, or nothing.
    """
    if source.is_parquet:
        return None
    lines = source.head.split("\n", 2)
    try:
        rows = [next(csv.reader([line.strip()]), []) for line in lines[:2]]
    except csv.Error:
        return None
    if any(len(row) != len(headings) for row in rows[:1]):
        return None
    places = [headings.index(name) for name in numbers]
    body = 0
    if len(rows) > 1 and not any(_fits(rows[0][place]) for place in places):
        body = len(lines[0].encode()) + 1
        rows = rows[1:]
    if len(rows[0]) != len(headings) or not all(_fits(rows[0][place]) for place in places):
        return None
    return Sheet(source=source, headings=tuple(headings), notes={}, separator=",", body=body)


def _fits(cell: str) -> bool:
    return cell.strip() == "" or is_number(cell)


def _require_whole(sheet: Sheet) -> None:
    """Refuse a table that ends within a line, as one does that was not fetched to its end."""
    if isinstance(sheet, ParquetSheet):
        return
    last = sheet.source.data[sheet.body :].rstrip().rpartition(b"\n")[2].decode("utf-8", "replace")
    try:
        count = len(next(csv.reader([last], delimiter=sheet.separator), []))
    except csv.Error:
        # Whoever reads the rows will say what is wrong with them.
        return
    if count < len(sheet.headings):
        raise FormatError(
            f"the last line has {count} of {len(sheet.headings)} cells: fetch the file again, it "
            "may be cut short",
            path=sheet.source.path,
            line=sheet.source.data.rstrip().count(b"\n") + 1,
        )


def _azure_sheet(source: Source) -> Sheet | None:
    return _headless(source, _AZURE, ("created", "deleted", "maxcpu", "avgcpu", "p95maxcpu"))


def _recognises_azure(source: Source) -> bool:
    sheet = _azure_sheet(source)
    return sheet is not None and not is_number(sheet.first("category") or "0")


def _read_azure(source: Source, time_unit: str | None) -> Trace:
    seconds_only(time_unit, "the Azure VM table")
    sheet = _azure_sheet(source)
    if sheet is None:
        raise FormatError(
            f"a line of the Azure VM table has {len(_AZURE)} cells: {', '.join(_AZURE)}",
            path=source.path,
            line=1,
        )
    _require_whole(sheet)
    texts, numbers = sheet.read(
        texts=["vmid", "subscription", "deployment", "category", "cores", "memory_gb"],
        numbers=["created", "deleted", "avgcpu"],
    )
    created, deleted, share = numbers
    for heading, values in zip(("created", "deleted", "avgcpu"), numbers, strict=True):
        sheet.require_sane(heading, values)
    sheet.require("created", np.isfinite(created), "a machine needs the time it was created at")
    sheet.require("deleted", ~(deleted < created), "it was deleted before it was created")
    cores, above = _bucket(sheet, "cores", texts[4].to_list())
    memory, _ = _bucket(sheet, "memory_gb", texts[5].to_list())
    notes = ["a job is a virtual machine, from its creation to its end"]
    if above:
        notes.append(f"{format_count(above, 'machine')} of more cores than the largest bucket says")
    held_s = deleted - created
    ids, users, groups, queues = (np.array(each.to_list(), dtype=object) for each in texts[:4])
    return Trace(
        columns={
            "arrival": created,
            "length_s": held_s,
            "cpus": cores,
            "memory_bytes": memory * _GIB,
            "cpu_time_s": held_s * cores * share / 100,
            "id": ids,
            "user": users,
            "group": groups,
            "queue": queues,
        },
        source=f"Azure VM table, {source.path.name}",
        notes=notes,
    )


def _bucket(sheet: Sheet, name: str, cells: Sequence[str | None]) -> tuple[FloatArray, int]:
    """Return sizes, of which some are said to be above one, as that one; and how many are."""
    sizes, above = [], 0
    for row, cell in enumerate(cells):
        text = (cell or "").strip()
        more = _MORE_THAN.fullmatch(text)
        above += more is not None
        number = more[1] if more else text
        value = float(number) if is_number(number) else np.nan
        if number and not 0 <= value <= MOST:
            raise sheet.place(name).error(f"{text!r} is no size: a number, or >24", row)
        sizes.append(value)
    return np.array(sizes), above


def _pai_sheet(source: Source) -> Sheet | None:
    sheet = Sheet.of(source)
    if sheet is not None and {"job_name", "task_name", "plan_cpu"} <= set(sheet.headings):
        return sheet
    return _headless(
        source, _PAI, ("inst_num", "start_time", "end_time", "plan_cpu", "plan_mem", "plan_gpu")
    )


def _recognises_pai(source: Source) -> bool:
    sheet = _pai_sheet(source)
    if sheet is None:
        return False
    state = (sheet.first("status") or "").strip().lower() if "status" in sheet.headings else ""
    return sheet.body > 0 or state in _PAI_STATES


def _read_pai(source: Source, time_unit: str | None) -> Trace:
    seconds_only(time_unit, "the PAI task table")
    sheet = _pai_sheet(source)
    if sheet is None:
        raise FormatError(
            f"a line of the PAI task table has {len(_PAI)} cells: {', '.join(_PAI)}",
            path=source.path,
            line=1,
        )
    for heading in _PAI[:9]:
        sheet.find(heading)
    _require_whole(sheet)
    (names, states), numbers = sheet.read(
        texts=["job_name", "status"],
        numbers=["inst_num", "start_time", "end_time", "plan_cpu", "plan_mem", "plan_gpu"],
    )
    for heading, values in zip(_PAI[2:3] + _PAI[4:9], numbers, strict=True):
        sheet.require_sane(heading, values)
    count, start, end, cpu, memory, gpu = numbers
    count = np.where(np.isnan(count), 1.0, count)
    sheet.require("job_name", names.is_not_null().to_numpy(), "a task needs the name of its job")
    jobs = _Groups(names.rank("dense").to_numpy())
    begin, end = jobs.over(np.fmin, start), jobs.over(np.maximum, end)
    # One task whose end is not known leaves that of the job open.
    ran_s = end - begin
    words = {state: _PAI_STATES.get(state, "unknown") for state in map(_lower, states.unique())}
    worst = np.array([_WORST.index(words[_lower(state)]) for state in states])
    codes = np.array([STATUSES.index(word) for word in _WORST])
    columns = {
        "id": jobs.first(np.array(names.to_list(), dtype=object)),
        "arrival": begin,
        "length_s": np.where(ran_s >= 0, ran_s, np.nan),
        "cpus": jobs.summed(count * cpu / 100),
        "gpus": np.nan_to_num(jobs.summed(count * gpu / 100)),
        "memory_bytes": jobs.summed(count * memory * _GIB),
        "status": codes[jobs.over(np.minimum, worst)],
    }
    started = np.isfinite(begin)
    waiting, backwards = int(np.count_nonzero(~started)), int(np.count_nonzero(ran_s < 0))
    if not started.any():
        raise FormatError("no task of the table ever started", path=source.path)
    notes = ["a job arrives when its first task starts: the task table has no submission"]
    if waiting:
        notes.append(f"{format_count(waiting, 'job')} that never started left out")
    if backwards:
        notes.append(_ended_early(backwards, "job"))
    return Trace(
        columns={name: values[started] for name, values in columns.items()},
        source=f"PAI task table, {source.path.name}",
        notes=notes,
    )


class _Groups:
    """Rows that belong together, in the order in which the first of each comes.

    Args:
        keys: A number for each row, the same for those of one group.
    """

    def __init__(self, keys: npt.NDArray[Any]) -> None:
        order = np.argsort(keys, kind="stable")
        self._begins = np.flatnonzero(np.diff(keys[order], prepend=-1))
        self._rows = order
        self._order = np.argsort(order[self._begins])

    def first(self, values: npt.NDArray[Any]) -> npt.NDArray[Any]:
        return values[self._rows[self._begins]][self._order]

    def over(self, how: np.ufunc, values: npt.NDArray[Any]) -> npt.NDArray[Any]:
        reduced: npt.NDArray[Any] = how.reduceat(values[self._rows], self._begins)
        return reduced[self._order]

    def summed(self, values: FloatArray) -> FloatArray:
        """Return sums, NaN where none of a group is known."""
        known = self.over(np.logical_or, np.isfinite(values))
        return np.where(known, self.over(np.add, np.nan_to_num(values)), np.nan)


def _lower(text: str | None) -> str:
    return (text or "").strip().lower()


def _ended_early(count: int, what: str) -> str:
    """Return the note on those whose times contradict each other."""
    return f"{format_count(count, what)} said to end before the start: how long that ran is unknown"


# Google: what its events are called by number, and how jobs end by them.
_EVENTS = (
    *("SUBMIT", "QUEUE", "ENABLE", "SCHEDULE", "EVICT", "FAIL", "FINISH", "KILL", "LOST"),
    *("UPDATE_PENDING", "UPDATE_RUNNING"),
)
_ENDS = {"EVICT": "preempted", "FAIL": "failed", "FINISH": "completed", "KILL": "cancelled"}
_ENDS |= {"LOST": "unknown"}
_NEEDED = ("time", "type", "collection_id")
# Times of what was before the trace began, and after it ended.
_BEFORE, _AFTER = 0, 2**63 - 1
_MICRO = 1e-6


def _recognises_google(source: Source) -> bool:
    if source.head.lstrip()[:1] == "{":
        try:
            first = json.loads(source.head.lstrip().split("\n", 1)[0])
        except (ValueError, RecursionError):
            return False
        return isinstance(first, dict) and set(_NEEDED) <= set(first)
    sheet = Sheet.of(source)
    return sheet is not None and set(_NEEDED) <= set(sheet.headings)


def _events(source: Source) -> Iterator[tuple[int, Mapping[str, Any]]]:
    """Yield the events with the line, or the number of the record, of each."""
    if source.head.lstrip()[:1] == "{":
        for line, text in enumerate(source.text.split("\n"), 1):
            if not text.strip():
                continue
            try:
                event = json.loads(text)
            except (ValueError, RecursionError) as error:
                raise FormatError(
                    f"not valid JSON ({error}): the file may be cut short",
                    path=source.path,
                    line=line,
                ) from None
            if not isinstance(event, dict):
                raise FormatError("an event is an object", path=source.path, line=line)
            yield line, event
        return
    sheet = Sheet.of(source)
    if sheet is None:
        raise FormatError("neither a table of events nor JSON, line by line", path=source.path)
    for heading in _NEEDED:
        sheet.find(heading)
    if isinstance(sheet, ParquetSheet):
        yield from enumerate(sheet.frame.iter_rows(named=True), 1)
        return
    texts, _ = sheet.read(texts=list(dict.fromkeys(sheet.headings)))
    names = list(dict.fromkeys(sheet.headings))
    columns = [each.to_list() for each in texts]
    for row, cells in enumerate(zip(*columns, strict=True)):
        yield row + 2, dict(zip(names, cells, strict=True))


class _Collection:
    """What is known of a job of Google's so far."""

    __slots__ = ("after", "begun", "end", "instances", "priority", "state", "submitted", "user")

    def __init__(self) -> None:
        self.submitted: int | None = None
        self.begun: int | None = None
        self.end: int | None = None
        self.state: str | None = None
        self.priority = np.nan
        self.user: str | None = None
        self.after: str | None = None
        # What each instance asks for: CPUs and memory, normalised.
        self.instances: dict[str, tuple[float, float]] = {}


def _read_google(source: Source, time_unit: str | None) -> Trace:
    seconds_only(time_unit, "Google's trace")
    found: dict[str, _Collection] = {}
    sets = 0
    for line, event in _events(source):
        place = Place(path=source.path, line=lambda row: row)
        if _plain(event.get("collection_type")) not in ("", "0", "JOB"):
            sets += 1
            continue
        moment = _whole(event.get("time"), place, line, "time")
        kind = _event_kind(event.get("type"), place, line)
        name = _plain(event.get("collection_id"))
        if not name:
            raise place.error("an event needs a collection_id", line)
        _add_event(found.setdefault(name, _Collection()), moment, kind, event)
    jobs = {
        name: each for name, each in found.items() if each.submitted not in (None, _BEFORE, _AFTER)
    }
    if not jobs:
        raise FormatError("no job was submitted within the trace", path=source.path)
    notes = ["cpus are normalised: 1 is the largest machine; memory is left out for the same"]
    for submitted, why in (
        (_BEFORE, "submitted before the trace begins"),
        (_AFTER, "submitted after the trace ends"),
        (None, "whose SUBMIT is not in this file, but maybe in another part of the trace,"),
    ):
        if count := sum(each.submitted == submitted for each in found.values()):
            notes.append(f"{format_count(count, 'job')} {why} left out")
    if sets:
        notes.append(f"{format_count(sets, 'event')} of allocation sets left out")
    columns = _google_columns(jobs)
    columns["wait_s"] = waits(columns["arrival"], columns.pop("begun"), notes)
    return Trace(columns=columns, source=f"Google 2019, {source.path.name}", notes=notes)


def _add_event(job: _Collection, moment: int, kind: str, event: Mapping[str, Any]) -> None:
    if kind == "SUBMIT" or moment == _BEFORE:
        job.submitted = moment if job.submitted is None else min(job.submitted, moment)
    elif kind == "SCHEDULE":
        job.begun = moment if job.begun is None else min(job.begun, moment)
    elif kind in _ENDS and moment != _AFTER and (job.end is None or moment >= job.end):
        # An instance that is evicted may be scheduled again: the last word counts.
        job.end, job.state = moment, _ENDS[kind]
    said = str(event.get("priority", ""))
    if is_number(said) and abs(float(said)) <= MOST:
        job.priority = float(said)
    job.user = job.user or (str(event["user"]) if event.get("user") else None)
    if event.get("start_after_collection_ids"):
        ids = event["start_after_collection_ids"]
        words = ids if isinstance(ids, list | tuple) else re.findall(r"\d+", str(ids))
        job.after = " ".join(_plain(each) for each in words) or None
    if event.get("instance_index") not in (None, ""):
        index = _plain(event["instance_index"])
        asked = _asked(event)
        if np.isfinite(asked[0]):
            before = job.instances.get(index, (0.0, 0.0))
            job.instances[index] = (max(before[0], asked[0]), max(before[1], asked[1]))


def _asked(event: Mapping[str, Any]) -> tuple[float, float]:
    """Return what an instance asks for, however the export writes it."""
    request = event.get("resource_request")
    if isinstance(request, str) and request.strip()[:1] == "{":
        try:
            request = json.loads(request.replace("'", '"'))
        except (ValueError, RecursionError):
            request = None
    nested = request if isinstance(request, Mapping) else {}
    values = []
    for what in ("cpus", "memory"):
        flat = event.get(f"resource_request.{what}", event.get(f"resource_request_{what}"))
        said = nested.get(what, flat)
        known = said is not None and is_number(str(said)) and 0 <= float(said) <= MOST
        values.append(float(said) if known else np.nan)
    return values[0], values[1]


def _google_columns(jobs: Mapping[str, _Collection]) -> dict[str, Any]:
    columns: dict[str, list[Any]] = {
        name: [] for name in ("arrival", "begun", "length_s", "cpus", "nodes", "priority", "status")
    }
    for each in jobs.values():
        submitted = int(each.submitted or 0)
        begun = np.nan if each.begun in (None, _AFTER) else float(each.begun or 0)
        over = each.end is not None and each.end >= begun
        columns["arrival"].append(submitted * _MICRO)
        columns["begun"].append(begun * _MICRO)
        columns["length_s"].append((float(each.end or 0) - begun) * _MICRO if over else np.nan)
        asked = [cpus for cpus, _ in each.instances.values()]
        columns["cpus"].append(float(np.sum(asked)) if asked else np.nan)
        columns["nodes"].append(float(len(asked)) if asked else np.nan)
        columns["priority"].append(each.priority)
        state = each.state if over else "running" if np.isfinite(begun) else "pending"
        if each.end is not None and np.isnan(begun):
            state = each.state
        columns["status"].append(STATUSES.index(state or "unknown"))
    texts: dict[str, list[Any]] = {
        "id": list(jobs),
        "user": [each.user for each in jobs.values()],
        "after": [each.after for each in jobs.values()],
    }
    known = {name: cells for name, cells in texts.items() if any(cells)}
    return {name: np.array(cells) for name, cells in columns.items()} | {
        name: np.array(cells, dtype=object) for name, cells in known.items()
    }


def _event_kind(value: Any, place: Place, line: int) -> str:
    text = _plain(value).upper()
    if text.isascii() and text.isdigit() and int(text[:4]) < len(_EVENTS):
        return _EVENTS[int(text[:4])]
    if text not in _EVENTS:
        raise place.error(f"type is one of {', '.join(_EVENTS)} or its number, not {value!r}", line)
    return text


def _whole(value: Any, place: Place, line: int, what: str) -> int:
    try:
        number = int(_plain(value))
    except ValueError:
        number = -1
    # A fraction of 64 bits has no 2⁶³ − 1.
    if not 0 <= number <= _AFTER + 1:
        raise place.error(f"{what} is a number of microseconds, not {value!r}"[:200], line)
    return min(number, _AFTER)


def _plain(value: Any) -> str:
    """Return a number or a word as its text; whole numbers that became fractions as they were."""
    text = "" if value is None else str(value).strip()
    if "." in text and is_number(text) and float(text).is_integer():
        return str(int(float(text)))
    return text


# Where Philly's logs say a zone, as some of them do.
_PACIFIC = {" PST": "-08:00", " PDT": "-07:00"}
_PHILLY_STATES = {"pass": "completed", "killed": "cancelled", "failed": "failed"}


def _recognises_philly(source: Source) -> bool:
    if source.head.lstrip()[:1] != "[" or '"attempts"' not in source.head:
        return False
    return are_records(source.document, "jobid", "attempts", "submitted_time")


def _read_philly(source: Source, time_unit: str | None) -> Trace:
    seconds_only(time_unit, "Philly")
    document = source.document
    if not are_records(document, "jobid", "attempts", "submitted_time"):
        raise FormatError(
            "a job log of Philly is a list of objects with jobid, attempts and submitted_time",
            path=source.path,
        )
    columns: dict[str, list[Any]] = {
        name: [] for name in ("arrival", "length_s", "gpus", "nodes", "status")
    }
    texts: dict[str, list[Any]] = {"id": [], "user": [], "queue": []}
    starts: list[float] = []
    backwards = unsaid = 0
    for row, record in enumerate(document):
        submitted = _clock(record.get("submitted_time"), source, row, "submitted_time")
        if submitted is None:
            unsaid += 1
            continue
        attempts = record.get("attempts")
        attempts = attempts if isinstance(attempts, list) else []
        spans: list[float] = []
        begun: float | None = None
        machines: list[dict[str, Any]] = []
        for attempt in attempts:
            if not isinstance(attempt, dict):
                raise Place(path=source.path, column="attempts").error(
                    f"an attempt is an object, not {attempt!r}"[:200], row
                )
            start = _clock(attempt.get("start_time"), source, row, "start_time")
            end = _clock(attempt.get("end_time"), source, row, "end_time")
            begun = start if begun is None else begun
            ran_s = np.nan if start is None or end is None else end - start
            backwards += ran_s < 0
            spans.append(ran_s if ran_s >= 0 else np.nan)
            detail = attempt.get("detail")
            listed = detail if isinstance(detail, list) else []
            machines = [each for each in listed if isinstance(each, dict)] or machines
        columns["arrival"].append(submitted)
        starts.append(np.nan if begun is None else begun)
        columns["length_s"].append(sum(spans) if spans else 0.0)
        gpus = [each.get("gpus") for each in machines]
        held = sum(len(each) for each in gpus if isinstance(each, list))
        columns["gpus"].append(float(held) if machines else np.nan)
        columns["nodes"].append(float(len(machines)) if machines else np.nan)
        state = _PHILLY_STATES.get(str(record.get("status")).lower(), "unknown")
        if spans and np.isnan(spans[-1]) and state == "unknown":
            state = "running"
        columns["status"].append(STATUSES.index(state))
        for name, key in (("id", "jobid"), ("user", "user"), ("queue", "vc")):
            value = record.get(key)
            texts[name].append(None if value is None else str(value))
    notes = ["a job's length is that of its attempts together; CPUs are not told"]
    if not any(zone in str(document[0].get("submitted_time")) for zone in _PACIFIC):
        notes.insert(0, ZONELESS)
    if not starts:
        raise FormatError("no job of the log says when it was submitted", path=source.path)
    if unsaid:
        notes.append(f"{format_count(unsaid, 'job')} without a time of submission left out")
    if backwards:
        notes.append(_ended_early(backwards, "attempt"))
    wait_s = waits(np.array(columns["arrival"]), np.array(starts), notes)
    told = {key: np.array(each, dtype=object) for key, each in texts.items()}
    return Trace(
        columns={**columns, **told, "wait_s": wait_s},
        source=f"Philly, {source.path.name}",
        notes=notes,
    )


def _clock(value: Any, source: Source, row: int, key: str) -> float | None:
    """Return a time of Philly's log; None where it says none."""
    if value in (None, "", "None"):
        return None
    text = str(value).strip()
    for zone, offset in _PACIFIC.items():
        text = text.replace(zone, offset)
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise Place(path=source.path, column=key).error(
            f"a time is written 2017-10-07 01:12:09, not {value!r}"[:200], row
        ) from None
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()


AZURE = JobReader(_recognises_azure, _read_azure)
PAI = JobReader(_recognises_pai, _read_pai)
GOOGLE = JobReader(_recognises_google, _read_google)
PHILLY = JobReader(_recognises_philly, _read_philly)
