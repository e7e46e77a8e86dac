"""From a plain table and a seed to a workload."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from lowtide.errors import InvalidInput
from lowtide.formats import read_jobs
from lowtide.states import STATUSES
from lowtide.units import format_count
from lowtide.workload import Workload
from lowtide.workloads.kinds import Sizes
from lowtide.workloads.mixes import Mix, Part
from lowtide.workloads.spec import TraceSpec, WorkloadSpec, read_spec

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
        wait=0.0,
        power_w_per_cpu=spec.power_w_per_cpu or 0.0,
        power_w_per_gpu=spec.power_w_per_gpu or 0.0,
        profiles=spec.profiles,
    )
    _check_power(spec, jobs)
    run_s = jobs.run_s
    requested_s = jobs.requested_s
    if spec.overestimate is not None:
        factor = spec.overestimate(len(jobs), streams["overestimate"])
        requested_s = run_s * np.maximum(factor, 1.0)
    return replace(
        jobs,
        deadline=jobs.arrival + run_s + spec.wait(run_s, streams["wait"]),
        requested_s=requested_s,
        interruptible=spec.interruptible(len(jobs), streams["interruptible"]).astype(np.int64),
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
