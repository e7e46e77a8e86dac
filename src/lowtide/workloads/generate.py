"""From a plain table and a seed to a workload: the table is read once, checked, and drawn from."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from lowtide.errors import InvalidInput, InvalidUnit, LowtideError, UnknownName, require_known
from lowtide.formats import read_jobs
from lowtide.job import INTERRUPTIBLE
from lowtide.precedence import links_of, windows
from lowtide.profile import PowerProfile
from lowtide.samples import load_profile
from lowtide.states import STATUSES
from lowtide.units import format_count, parse_size, parse_time
from lowtide.workload import Workload
from lowtide.workloads.checks import build, number, seconds
from lowtide.workloads.draws import (
    ARRIVALS,
    LENGTHS,
    WAIT_KEYS,
    Arrivals,
    Draw,
    Lengths,
    Wait,
    constant,
    read_draw,
    read_wait,
    same,
)
from lowtide.workloads.kinds import KINDS, OWN_KEYS, Kind, Mix, Part, Sizes

_START = "2024-07-01T00:00Z"
_DURATION = "7d"

# Whole workloads by name. What a document says goes before what stands here.
SCENARIOS: Mapping[str, Mapping[str, Any]] = MappingProxyType(
    {
        "nightly": {
            "arrivals": {"kind": "nightly", "hour": 1},
            "lengths": {"kind": "constant", "length": "30m"},
            "jobs": {"kind": "constant", "power_w": 1000},
            "wait": "8h",
        },
        "periodic": {
            "arrivals": {"kind": "periodic", "period": "6h"},
            "lengths": {"kind": "constant", "length": "1h"},
            "jobs": {"kind": "constant", "power_w": 1000},
            "wait": "5h",
        },
    }
)

_SHARED = (*WAIT_KEYS, "start", "interruptible", "overestimate")
_DRAWN = (
    "scenario",
    "duration",
    "arrivals",
    "lengths",
    "jobs",
    "cpus",
    "gpus",
    "nodes",
    "memory",
    "priority",
    "failing",
)
_TRACED = (
    "trace",
    "format",
    "time_unit",
    "first",
    "power_w_per_cpu",
    "power_w_per_gpu",
    "profiles",
    "dependencies",
)

# Each column draws from a generator of its own, so a change to one leaves the others as they
# were. Their order is part of what a seed means: only ever add at the end.
_STREAMS = (
    "arrivals",
    "lengths",
    "cpus",
    "gpus",
    "nodes",
    "wait",
    "interruptible",
    "overestimate",
    "failing",
    "jobs",
    "memory",
    "priority",
)

Streams = Mapping[str, np.random.Generator]


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkloadSpec:
    """Jobs to be drawn by chance.

    Attributes:
        start: The instant from which jobs arrive.
        duration_s: For how long they do.
        arrivals: When they come; see `workloads.arrivals`.
        lengths: How long they work, None where `jobs` says it; see `workloads.lengths`.
        jobs: What they draw; see `workloads.kinds`. Of several kinds, see `workloads.mixes`.
        wait: How long they may wait; see `workloads.waits`.
        cpus: CPU cores each holds.
        gpus: GPUs each holds.
        nodes: On how many nodes each runs.
        memory: Bytes of memory each holds.
        priority: The higher, the sooner its turn, where a queue looks at it.
        interruptible: How each may be stopped, as its place in `job.INTERRUPTIBLE`.
        overestimate: How many times its run time each one's user asks for; below 1 counts as 1.
        failing: Which share of the jobs fails.
    """

    start: float
    duration_s: float
    arrivals: Arrivals
    lengths: Lengths | None
    jobs: Kind | tuple[Part, ...]
    wait: Wait
    cpus: Draw = field(default_factory=partial(same, 1.0))
    gpus: Draw = field(default_factory=partial(same, 0.0))
    nodes: Draw = field(default_factory=partial(same, 1.0))
    memory: Draw = field(default_factory=partial(same, 0.0))
    priority: Draw = field(default_factory=partial(same, 0.0))
    interruptible: Draw = field(default_factory=partial(same, 0.0))
    overestimate: Draw = field(default_factory=partial(same, 1.0))
    failing: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceSpec:
    """Jobs to be read from a trace.

    Attributes:
        trace: The file.
        wait: How long those may wait of which the file says nothing, None where it says it of all;
            see `workloads.waits`.
        format: Which format the file has, None to tell by its content.
        time_unit: What a plain table counts time in: `s`, `min`, `h` or `ms`, None for seconds.
        first: How many rows to take, None for all.
        start: The instant the first arrival is moved to, None to leave it.
        power_w_per_cpu: What a job draws per CPU, None where that is not known.
        power_w_per_gpu: What a job draws per GPU, None where that is not known.
        profiles: What jobs of a given name draw instead.
        interruptible: How those may be stopped of which the file says nothing, as a place in
            `job.INTERRUPTIBLE`.
        overestimate: How many times its run time each one's user asks for; None for what the
            trace says.
        dependencies: Whether jobs wait for those that the trace says preceded them; None for those
            of its column `after` alone.
    """

    trace: Path
    wait: Wait | None
    format: str | None = None
    time_unit: str | None = None
    first: int | None = None
    start: float | None = None
    power_w_per_cpu: float | None = None
    power_w_per_gpu: float | None = None
    profiles: Mapping[str, PowerProfile] = field(default_factory=dict)
    interruptible: Draw = field(default_factory=partial(same, 0.0))
    overestimate: Draw | None = None
    dependencies: bool | None = None


def read_spec(document: Mapping[str, Any]) -> WorkloadSpec | TraceSpec:
    """Return what a plain table says of a workload, checked.

    Args:
        document: The table, as it stands in a TOML file.

    >>> read_spec({"scenario": "nightly", "duration": "30d"}).duration_s / 86400
    30.0
    """
    if not isinstance(document, Mapping):
        raise InvalidInput(f"a workload is a table with arrivals or a trace, not {document!r}")
    return _read_traced(document) if "trace" in document else _read_drawn(document)


def _read_drawn(document: Mapping[str, Any]) -> WorkloadSpec:
    for key in document:
        if key in _TRACED:
            raise InvalidInput(f"{key!r} belongs to a trace: give trace = 'FILE', or leave it out")
    require_known(document, (*_SHARED, *_DRAWN), "key of a workload")
    document = _with_scenario(document)
    if "arrivals" not in document:
        raise InvalidInput(
            "say when jobs come: arrivals = {kind = 'poisson', per_hour = 10}, "
            f"trace = 'FILE', or scenario = {' or '.join(map(repr, sorted(SCENARIOS)))}"
        )
    return WorkloadSpec(
        start=parse_time(document.get("start", _START)),
        duration_s=seconds(document.get("duration", _DURATION), "duration"),
        arrivals=build(document["arrivals"], ARRIVALS, "arrivals"),
        lengths=_read_lengths(document.get("lengths")),
        jobs=_read_jobs(document.get("jobs")),
        wait=read_wait(document),
        cpus=_read_column("cpus", document.get("cpus", 1)),
        gpus=_read_column("gpus", document.get("gpus", 0)),
        nodes=_read_column("nodes", document.get("nodes", 1)),
        memory=_read_column("memory", document.get("memory", 0)),
        priority=_read_column("priority", document.get("priority", 0)),
        interruptible=_read_interruptible(document),
        overestimate=_read_overestimate(document.get("overestimate", 1.0)),
        failing=number(document.get("failing", 0.0), "failing", most=1),
    )


def _with_scenario(document: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a document with what its scenario says where it says nothing itself."""
    if "scenario" not in document:
        return document
    name = document["scenario"]
    if not isinstance(name, str) or name not in SCENARIOS:
        raise UnknownName("scenario", str(name), SCENARIOS)
    merged = dict(SCENARIOS[name])
    if any(key in document for key in WAIT_KEYS):
        del merged["wait"]
    for key, value in document.items():
        if isinstance(value, Mapping) and "kind" not in value and "kind" in merged.get(key, ()):
            merged[key] = {**merged[key], **value}
        else:
            merged[key] = value
    jobs = merged["jobs"]
    if "lengths" not in document and isinstance(jobs, Mapping) and jobs.get("kind") == "profile":
        del merged["lengths"]
    return merged


def _read_jobs(value: object) -> Kind | tuple[Part, ...]:
    """Return what jobs draw: one kind, or several with their shares."""
    if not isinstance(value, list | tuple):
        return build(value, KINDS, "jobs")
    if not value:
        raise InvalidInput("jobs is a table with a kind, or a list of at least one such table")
    parts = tuple(_read_part(each, place) for place, each in enumerate(value, 1))
    if not any(part.share for part in parts):
        raise InvalidInput("the shares of jobs are all 0: one at least is more")
    return parts


def _read_part(table: object, place: int) -> Part:
    what = f"jobs (table {place} of the list)"
    if not isinstance(table, Mapping):
        raise InvalidInput(
            f"{what} is a table with a kind, one of {', '.join(sorted(KINDS))}, not {table!r}"
        )
    of_kind = {key: value for key, value in table.items() if key not in (*OWN_KEYS, "share")}
    jobs = build(of_kind, KINDS, what)
    has_length = of_kind["kind"] == "profile"
    if has_length and "lengths" in table:
        raise InvalidInput(f"{what}: a profile says how long its jobs are: leave lengths out")
    return Part(
        jobs=jobs,
        share=number(table.get("share", 1), f"share of {what}"),
        own={key: _read_column(key, table[key]) for key in OWN_KEYS if key in table},
        has_length=has_length,
    )


def _read_column(key: str, value: object) -> Draw:
    """Return what draws a column of jobs."""
    if key == "lengths":
        lengths = _read_lengths(value)
        if lengths is None:
            raise InvalidInput(f"lengths is one length, or a table with a kind, not {value!r}")
        return lengths
    return read_draw(value, key, _READERS[key])


def _read_lengths(value: object) -> Lengths | None:
    if value is None:
        return None
    if isinstance(value, str | int | float):
        return constant(length=value)
    return build(value, LENGTHS, "lengths")


def _read_traced(document: Mapping[str, Any]) -> TraceSpec:
    for key in document:
        if key in _DRAWN:
            raise InvalidInput(f"{key!r} is for generated jobs, not for a trace: leave it out")
    require_known(document, (*_SHARED, *_TRACED), "key of a workload from a trace")
    if not isinstance(document["trace"], str | Path):
        raise InvalidInput(f"trace is the name of a file, not {document['trace']!r}")
    watts = {
        key: None if document.get(key) is None else number(document[key], key)
        for key in ("power_w_per_cpu", "power_w_per_gpu")
    }
    profiles = document.get("profiles", {})
    if not isinstance(profiles, Mapping):
        raise InvalidInput(f"profiles is a table of names and files, not {profiles!r}")
    says_wait = any(document.get(key) is not None for key in WAIT_KEYS)
    says_watts = bool(profiles) or any(value is not None for value in watts.values())
    if not (says_wait and says_watts):
        own = _own_columns(document)
        if not says_watts and not own & {"power_w", "profile"}:
            raise InvalidInput(
                "a trace does not say what its jobs draw: give power_w_per_cpu, power_w_per_gpu or "
                "profiles, or each job a power_w or a profile in a column of the trace"
            )
        says_wait = says_wait or not own & {"deadline", "slack_s"}
    first, start = document.get("first"), document.get("start")
    asked = document.get("overestimate")
    waits = document.get("dependencies")
    if waits is not None and not isinstance(waits, bool):
        raise InvalidInput(f"dependencies is true or false, not {waits!r}")
    return TraceSpec(
        dependencies=waits,
        trace=Path(document["trace"]),
        wait=read_wait(document) if says_wait else None,
        format=document.get("format"),
        time_unit=document.get("time_unit"),
        first=None if first is None else int(number(first, "first", least=1, whole=True)),
        start=None if start is None else parse_time(start),
        profiles={name: load_profile(each) for name, each in profiles.items()},
        interruptible=_read_interruptible(document),
        overestimate=None if asked is None else _read_overestimate(asked),
        **watts,
    )


def _own_columns(document: Mapping[str, Any]) -> set[str]:
    """Return what a trace says of its jobs, by column; nothing where it cannot be read.

    Who reads it for its jobs will say what is wrong with it.
    """
    try:
        said = {key: document.get(key) for key in ("format", "time_unit")}
        return set(read_jobs(document["trace"], **said).columns)
    except LowtideError:
        return set()


def _read_interruptible(document: Mapping[str, Any]) -> Draw:
    return _read_column("interruptible", document.get("interruptible", "never"))


def _bytes(value: object, what: str) -> float:
    if not isinstance(value, str):
        return number(value, what)
    try:
        return parse_size(value)
    except InvalidUnit as error:
        raise InvalidInput(f"{what}: {error}") from error


def _place(value: object, _: str) -> float:
    if value not in INTERRUPTIBLE:
        raise UnknownName("way to stop a job, interruptible =", str(value), INTERRUPTIBLE)
    return float(INTERRUPTIBLE.index(str(value)))


_READERS: Mapping[str, Callable[[object, str], float]] = {
    "cpus": partial(number, whole=True),
    "gpus": partial(number, whole=True),
    "nodes": partial(number, least=1, whole=True),
    "interruptible": _place,
    "memory": _bytes,
    "priority": partial(number, least=-math.inf),
}


def _read_overestimate(value: object) -> Draw:
    return read_draw(value, "overestimate", partial(number, positive=True), spread=True)


def generate(spec: Mapping[str, Any] | WorkloadSpec | TraceSpec, *, seed: int) -> Workload:
    """Return the jobs that a table describes; the same seed gives the same bytes.

    Args:
        spec: The table as it stands in a TOML file, or what `read_spec` makes of one.
        seed: What chance follows, 0 or more.

    >>> generate({
    ...     "duration": "30d",
    ...     "arrivals": {"kind": "daily", "per_day": 200},
    ...     "lengths": {"kind": "lognormal", "median": "2h", "sigma": 1.2},
    ...     "jobs": {"kind": "constant", "power_w": 300},
    ...     "wait": "24h",
    ... }, seed=1)
    <Workload: 6051 jobs; generated, seed 1>
    """
    if isinstance(seed, bool) or not isinstance(seed, int | np.integer) or seed < 0:
        raise InvalidInput(f"a seed is a whole number from 0 up, not {seed!r}")
    known = spec if isinstance(spec, WorkloadSpec | TraceSpec) else read_spec(spec)
    seeds = np.random.SeedSequence(int(seed)).spawn(len(_STREAMS))
    streams = {
        name: np.random.Generator(np.random.PCG64(each))
        for name, each in zip(_STREAMS, seeds, strict=True)
    }
    if isinstance(known, TraceSpec):
        return _traced(known, streams)
    return _drawn(known, streams, source=f"generated, seed {seed}")


def _drawn(spec: WorkloadSpec, streams: Streams, *, source: str) -> Workload:
    arrival = spec.arrivals(spec.start, spec.start + spec.duration_s, streams["arrivals"])
    count = arrival.size
    parts = spec.jobs if isinstance(spec.jobs, tuple) else (Part(jobs=spec.jobs),)
    mix = Mix.drawn(parts, count, streams["jobs"])
    drawn = {
        name: mix.column(name, getattr(spec, name)(count, streams[name]))
        for name in ("cpus", "gpus", "nodes", "memory", "priority", "interruptible")
    }
    shared = (
        np.full(count, np.nan) if spec.lengths is None else spec.lengths(count, streams["lengths"])
    )
    factor = spec.overestimate(count, streams["overestimate"])
    # Two numbers per job, whatever the share: those that fail at 5 % also fail at 10 %.
    chance, part = streams["failing"].random((count, 2)).T
    fails = chance < spec.failing
    sizes = Sizes(
        length_s=mix.column("lengths", shared),
        # A failing job does some work: of [0, 1) the part is what is left.
        part=np.where(fails, 1 - part, 1.0),
        cpus=drawn["cpus"],
        gpus=drawn["gpus"],
    )
    shapes = mix.shapes(sizes, has_lengths=spec.lengths is not None)
    # Users plan for the whole run: they do not know which jobs will fail.
    wait_s = spec.wait(shapes.planned_s, streams["wait"])
    return Workload(
        arrival=arrival,
        deadline=arrival + shapes.planned_s + wait_s,
        work_s=shapes.work_s,
        power=shapes.power,
        profile=shapes.profile,
        profiles=shapes.profiles,
        interruptible=drawn["interruptible"].astype(np.int64),
        requested_s=shapes.planned_s * np.maximum(factor, 1.0),
        cpus=drawn["cpus"],
        gpus=drawn["gpus"],
        nodes=drawn["nodes"],
        memory_bytes=drawn["memory"],
        priority=drawn["priority"],
        status=np.where(fails, STATUSES.index("failed"), STATUSES.index("completed")),
        source=source,
    )


def _traced(spec: TraceSpec, streams: Streams) -> Workload:
    trace = read_jobs(spec.trace, format=spec.format, time_unit=spec.time_unit)
    if spec.first is not None:
        trace = trace.select(slice(spec.first))
    if spec.start is not None:
        trace = trace.shifted(spec.start)
    jobs = Workload.from_trace(
        trace,
        wait=None if spec.wait is None else 0.0,
        power_w_per_cpu=spec.power_w_per_cpu or 0.0,
        power_w_per_gpu=spec.power_w_per_gpu or 0.0,
        profiles=spec.profiles,
        dependencies=spec.dependencies,
    )
    _check_power(spec, jobs)
    trace = trace.select(trace.length_s > 0)
    run_s = jobs.run_s
    # Who waits for another could not have begun at its arrival.
    soonest, _ = windows(jobs, links_of(jobs))
    requested_s = jobs.requested_s
    if spec.overestimate is not None:
        factor = spec.overestimate(len(jobs), streams["overestimate"])
        requested_s = run_s * np.maximum(factor, 1.0)
    stops = spec.interruptible(len(jobs), streams["interruptible"]).astype(np.int64)
    wait_s = 0.0 if spec.wait is None else spec.wait(run_s, streams["wait"])
    return replace(
        jobs,
        deadline=trace.due(run_s, wait_s, soonest),
        requested_s=requested_s,
        interruptible=trace.stops(stops),
    )


def _check_power(spec: TraceSpec, jobs: Workload) -> None:
    """Refuse jobs whose watts nobody gave, and profiles that no job has."""
    if spec.profiles and len(jobs) and not np.any(jobs.profile >= 0):
        raise InvalidInput(
            f"no job of {spec.trace} has the name of a profile ({', '.join(spec.profiles)}): "
            "only formats with names, such as sacct, can use profiles"
        )
    idle = np.flatnonzero(jobs.power <= 0)
    if idle.size:
        row = int(idle[0])
        raise InvalidInput(
            f"{format_count(idle.size, 'job')} of {spec.trace} would draw 0 W, the first is "
            f"{jobs.id[row]} with {jobs.cpus[row]:g} CPUs and {jobs.gpus[row]:g} GPUs: give "
            "power_w_per_cpu and power_w_per_gpu"
        )
