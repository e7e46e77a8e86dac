"""Sonar's log files, read into samples: what each process used on a host at a moment.

Four forms are known: lines of named fields (from 0.7 on: `v=0.13.0,time=…,host=…,job=…`), lines of
bare columns (0.6), the names of the lines in JSON (`{"v": …, "samples": […]}`), and the structured
JSON of newer releases (`{"meta": …, "data": {"type": "sample", "attributes": …}}`). A file may hold
many samples, samples of many hosts, and lines of both kinds where sonar was renewed meanwhile.
Numbers that are left out are 0; sizes are in KiB and shares in percent.

Bare columns know neither CPU time nor process numbers: how many CPUs a process kept busy is its
mean since it began, all that 0.6 says.
"""

from __future__ import annotations

import csv
import json
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lowtide.errors import FormatError, InvalidTime
from lowtide.formats.source import Source
from lowtide.units import parse_time

_KIB = 1024.0
# Sonar packs the CPU time of every core into base 45; the first digit of a number is taken from
# letters of its own.
_FIRST_DIGITS = "(){}[]<>+-abcdefghijklmnopqrstuvwxyz!@#$%^&*_"
_OTHER_DIGITS = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ~|';:.?/`"
# What 0.6 wrote, in this order; the columns of GPUs came later, and may be missing.
_BARE = ("time", "host", "cores", "user", "job", "cmd", "cpu%", "cpukib")
_BARE_GPUS = ("gpus", "gpu%", "gpumem%", "gpukib")
_BARE_START = re.compile(r"\d{4}-\d\d-\d\dT[\d:.]+(Z|[+-]\d\d:?\d\d)(,[^\n]*){7}")


@dataclass(slots=True, kw_only=True)
class Process:
    """One process of a sample, or several alike that were rolled up into one.

    Attributes:
        source: Where its job was found, one of `snapshot.SOURCES`.
        job_id: The job's number.
        user: Whose it is.
        pid: Its number, 0 where it stands for several.
        command: What runs.
        cpu_s: CPU time so far, ended children included; NaN where not known.
        cpus_busy: CPUs it keeps busy now; NaN where not known.
        memory_bytes: Memory that it holds; NaN where not known.
        gpus: The GPUs that it uses, each with how busy it keeps it; None where which is not known.
        gpus_busy: How busy it keeps them in all.
        gpu_memory_bytes: Memory that it holds on them.
        count: How many processes it stands for.
    """

    source: str
    job_id: str
    user: str
    pid: int
    command: str
    cpu_s: float
    cpus_busy: float
    memory_bytes: float
    gpus: dict[str, float] | None
    gpus_busy: float
    gpu_memory_bytes: float
    count: int = 1


@dataclass(slots=True, kw_only=True)
class SonarSample:
    """What sonar saw on one host at one moment.

    Attributes:
        host: The host.
        processes: What ran.
        cpus: Hardware threads of the host, 0 where not known.
        busy_s: CPU time in use since boot.
        memory_bytes: All memory of the host.
        used_bytes: Memory in use.
        gpus: Its GPUs: name, identity, how busy, bytes in use, bytes in all.
    """

    host: str
    time: float
    processes: list[Process] = field(default_factory=list)
    cpus: int = 0
    busy_s: float = math.nan
    memory_bytes: float = math.nan
    used_bytes: float = math.nan
    gpus: list[tuple[str, str, float, float, float]] = field(default_factory=list)


def recognises(source: Source) -> bool:
    """Return whether a file looks like sonar's."""
    head = source.head.lstrip()
    if head[:1] in ("{", "["):
        return '"samples"' in head or '"attributes"' in head
    if _BARE_START.match(head):
        return True
    return "," in head and all(f"{name}=" in head for name in ("time", "host"))


def read_samples(
    opened: Source, *, source: str, sizes: dict[str, tuple[int, float]]
) -> Iterator[SonarSample]:
    """Yield the samples of a file.

    Args:
        source: Where the jobs of forms come from that do not say, one of `snapshot.SOURCES`.
        sizes: Is told what the file says of hosts: their CPUs, and their memory in bytes.
    """
    if opened.head.lstrip()[:1] not in ("{", "["):
        yield from _from_lines(opened, source)
        return
    for line, document in _documents(opened):
        place = _Place(path=opened.path, line=line)
        if "samples" in document:
            yield _from_flat(document, source, place)
            continue
        data = document.get("data")
        if not isinstance(data, dict) or not isinstance(data.get("attributes"), dict):
            # An envelope of errors only.
            continue
        attributes = data["attributes"]
        if data.get("type") == "sysinfo":
            cores = (
                place.number(attributes, name, least=1)
                for name in ("sockets", "cores_per_socket", "threads_per_core")
            )
            memory = place.number(attributes, "memory") * _KIB or math.nan
            sizes[str(attributes.get("node"))] = (int(math.prod(cores)), memory)
        elif "jobs" in attributes or "system" in attributes:
            yield _from_structured(attributes, place)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Place:
    """Where in a file something stands, and how numbers are read there."""

    path: Path
    line: int

    def error(self, message: str, column: str | None = None) -> FormatError:
        return FormatError(message, path=self.path, line=self.line, column=column)

    def number(
        self, fields: Mapping[str, Any], name: str, *, absent: float = 0.0, least: float = 0.0
    ) -> float:
        """Return a number; sonar leaves out those that are 0."""
        value = fields.get(name)
        if value in (None, ""):
            return max(absent, least) if not math.isnan(absent) else absent
        try:
            number = float(value)
        except (TypeError, ValueError, OverflowError):
            raise self.error(f"{str(value)[:40]!r} is not a number", name) from None
        if not 0 <= number < math.inf:
            raise self.error(f"a number of 0 or more is needed here, not {value}", name)
        return number

    def table(self, value: Any, name: str) -> Mapping[str, Any]:
        """Return an object of JSON, empty where it was left out."""
        if not isinstance(value, dict | None):
            raise self.error(f"an object is needed here, not {str(value)[:40]!r}", name)
        return value or {}

    def tables(self, fields: Mapping[str, Any], name: str) -> list[Mapping[str, Any]]:
        """Return a list of objects of JSON, empty where it was left out."""
        value = fields.get(name)
        if not isinstance(value, list | None):
            raise self.error(f"a list is needed here, not {str(value)[:40]!r}", name)
        return [self.table(each, name) for each in value or ()]

    def numbers(self, values: Any, name: str) -> list[float]:
        """Return a list of numbers, empty where it was left out."""
        if not isinstance(values, list | None):
            raise self.error(f"a list is needed here, not {str(values)[:40]!r}", name)
        return [self.number({name: each}, name) for each in values or ()]

    def moment(self, fields: Mapping[str, Any]) -> float:
        value = fields.get("time")
        if not isinstance(value, str):
            raise self.error("a sample needs its time", "time")
        try:
            return parse_time(value)
        except InvalidTime as error:
            raise self.error(str(error), "time") from None

    def name(self, fields: Mapping[str, Any], name: str) -> str:
        if not fields.get(name):
            raise self.error(f"a sample needs its {name}", name)
        return str(fields[name])


def _from_lines(opened: Source, source: str) -> Iterator[SonarSample]:
    """Yield a sample for every moment: its lines are a process each, the host beside it."""
    try:
        rows = list(csv.reader(opened.text.splitlines(), strict=True))
    except csv.Error as error:
        raise FormatError(f"the quotes do not close ({error})", path=opened.path) from None
    samples: dict[tuple[str, float], SonarSample] = {}
    for line, cells in enumerate(rows, start=1):
        place = _Place(path=opened.path, line=line)
        if not cells:
            continue
        bare = "=" not in cells[0]
        fields = _bare_fields(cells, place) if bare else _named_fields(cells, place)
        host, time = place.name(fields, "host"), place.moment(fields)
        sample = samples.setdefault((host, time), SonarSample(host=host, time=time))
        _add_host(sample, fields, place)
        process = _flat_process(fields, source, place)
        if bare:
            process.cpu_s, process.cpus_busy = math.nan, place.number(fields, "cpu%") / 100.0
        sample.processes.append(process)
    yield from samples.values()


def _named_fields(cells: list[str], place: _Place) -> dict[str, str]:
    fields = {}
    for cell in cells:
        name, equals, value = cell.partition("=")
        if not equals:
            raise place.error(f"{cell!r} has no name: a field is written name=value")
        fields[name] = value
    return fields


def _bare_fields(cells: list[str], place: _Place) -> dict[str, str]:
    """Return the columns of a line of 0.6 under the names, and as the values, of later releases."""
    whole = _BARE + _BARE_GPUS
    if len(cells) not in (len(_BARE), len(whole)) or not cells[2].isdecimal():
        raise place.error(
            f"these are not the columns of sonar 0.6 ({', '.join(_BARE)}; then none or all of "
            f"{', '.join(_BARE_GPUS)}): the line may be cut short; older releases wrote others, "
            "which cannot be read"
        )
    fields = dict(zip(whole, cells, strict=False))
    bits = fields.get("gpus", "0")
    if bits == "1" * 32:
        fields["gpus"] = "unknown"
    elif set(bits) <= {"0", "1"}:
        cards = [str(card) for card, bit in enumerate(reversed(bits)) if bit == "1"]
        fields["gpus"] = ",".join(cards)
    else:
        raise place.error(f"{bits[:40]!r} is no set of GPUs: 0.6 wrote a bit for each", "gpus")
    return fields


def _from_flat(document: Mapping[str, Any], source: str, place: _Place) -> SonarSample:
    sample = SonarSample(host=place.name(document, "host"), time=place.moment(document))
    _add_host(sample, document, place)
    for fields in place.tables(document, "samples"):
        sample.processes.append(_flat_process(fields, source, place))
    return sample


def _add_host(sample: SonarSample, fields: Mapping[str, Any], place: _Place) -> None:
    # One line of a moment may say what the others leave out.
    sample.cpus = int(place.number(fields, "cores")) or sample.cpus
    sample.memory_bytes = place.number(fields, "memtotalkib") * _KIB or sample.memory_bytes
    load = fields.get("load")
    if isinstance(load, str) and load:
        load = _unpacked(load, place)
    if isinstance(load, list) and load:
        sample.cpus, sample.busy_s = len(load), math.fsum(place.numbers(load, "load"))


def _unpacked(text: str, place: _Place) -> list[float]:
    """Return the CPU time of each core from sonar's base 45: a base, and what each has more."""
    numbers: list[int] = []
    power = 1
    for letter in text:
        if letter in _FIRST_DIGITS:
            numbers.append(_FIRST_DIGITS.index(letter))
            power = 45
        elif letter in _OTHER_DIGITS and numbers:
            numbers[-1] += power * _OTHER_DIGITS.index(letter)
            power *= 45
        else:
            raise place.error(f"{letter!r} is no digit of sonar's base 45", "load")
    return [float(numbers[0] + each) for each in numbers[1:]]


def _flat_process(fields: Mapping[str, Any], source: str, place: _Place) -> Process:
    job = int(place.number(fields, "job"))
    pid = int(place.number(fields, "pid"))
    user, command = str(fields.get("user") or ""), str(fields.get("cmd") or "")
    gpus: dict[str, float] | None = {}
    said = str(fields.get("gpus") or "none")
    busy = place.number(fields, "gpu%") / 100.0
    if said == "unknown":
        gpus = None
    elif said != "none":
        cards = [f"gpu-{card.strip()}" for card in said.split(",")]
        gpus = {card: busy / len(cards) for card in cards}
    resident = place.number(fields, "rssanonkib", absent=math.nan)
    if math.isnan(resident):
        # Before 0.8 only the address space was known, which is at least what is resident.
        resident = place.number(fields, "cpukib", absent=math.nan)
    return Process(
        # A process without a job is one by itself, and never one with others of that kind.
        source=source if job else "process",
        job_id=str(job or pid or f"{user}:{command}"),
        user=user,
        pid=pid,
        command=command,
        cpu_s=place.number(fields, "cputime_sec"),
        cpus_busy=math.nan,
        memory_bytes=resident * _KIB,
        gpus=gpus,
        gpus_busy=busy,
        gpu_memory_bytes=place.number(fields, "gpukib") * _KIB,
        count=1 + int(place.number(fields, "rolledup")),
    )


def _from_structured(attributes: Mapping[str, Any], place: _Place) -> SonarSample:
    sample = SonarSample(host=place.name(attributes, "node"), time=place.moment(attributes))
    system = place.table(attributes.get("system"), "system")
    cores = place.numbers(system.get("cpus"), "cpus")
    if cores:
        sample.cpus = len(cores)
        sample.busy_s = math.fsum(cores)
    sample.used_bytes = place.number(system, "used_memory", absent=math.nan) * _KIB
    names = {}
    for card in place.tables(system, "gpus"):
        name = f"gpu-{int(place.number(card, 'index'))}"
        names[str(card.get("uuid", name))] = name
        used, share = place.number(card, "memory") * _KIB, place.number(card, "memory_util") / 100
        busy = place.number(card, "ce_util") / 100
        total = used / share if share else math.nan
        sample.gpus.append((name, str(card.get("uuid", "")), busy, used, total))
    for job in place.tables(attributes, "jobs"):
        for process in place.tables(job, "processes"):
            sample.processes.append(_structured_process(job, process, names, place))
    return sample


def _structured_process(
    job: Mapping[str, Any],
    process: Mapping[str, Any],
    names: Mapping[str, str],
    place: _Place,
) -> Process:
    number = int(place.number(job, "job"))
    pid = int(place.number(process, "pid"))
    gpus: dict[str, float] = {}
    memory = 0.0
    for card in place.tables(process, "gpus"):
        name = f"gpu-{int(place.number(card, 'index'))}"
        name = names.get(str(card.get("uuid", name)), name)
        gpus[name] = gpus.get(name, 0.0) + place.number(card, "gpu_util") / 100
        memory += place.number(card, "gpu_memory") * _KIB
    return Process(
        # Jobs of the batch system have no epoch, all others that of the boot.
        source="process" if job.get("epoch") or not number else "slurm",
        job_id=str(number or pid or process.get("cmd")),
        user=str(job.get("user") or ""),
        pid=pid,
        command=str(process.get("cmd") or ""),
        cpu_s=place.number(process, "cpu_time"),
        cpus_busy=place.number(process, "cpu_util", absent=math.nan) / 100,
        memory_bytes=place.number(process, "resident_memory") * _KIB,
        gpus=gpus,
        gpus_busy=math.fsum(gpus.values()),
        gpu_memory_bytes=memory,
        count=1 + int(place.number(process, "rolledup")),
    )


def _documents(opened: Source) -> Iterator[tuple[int, Mapping[str, Any]]]:
    """Yield the JSON objects of a file: one, a list of them, or one after another."""
    text = opened.text
    decoder = json.JSONDecoder()
    place, line = 0, 1
    while True:
        start = place
        while place < len(text) and text[place] in " \t\r\n,":
            place += 1
        line += text.count("\n", start, place)
        if place >= len(text):
            return
        try:
            value, end = decoder.raw_decode(text, place)
        except (ValueError, RecursionError):
            raise FormatError(
                "not valid JSON from here on: the file may be cut short",
                path=opened.path,
                line=line,
            ) from None
        for document in value if isinstance(value, list) else [value]:
            if not isinstance(document, dict):
                raise FormatError("a sample is a JSON object", path=opened.path, line=line)
            yield line, document
        line += text.count("\n", place, end)
        place = end
