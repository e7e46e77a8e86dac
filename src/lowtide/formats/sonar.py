"""Samples of sonar's, another monitor of HPC jobs, as ticks: logs of years can be looked at.

Sonar knows nothing of power. What samples say becomes ticks in which power, energy and carbon are
unknown, so that the store can show who used what.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from lowtide.errors import FormatError, InvalidInput
from lowtide.formats.sonar_samples import Process, SonarSample, read_samples, recognises
from lowtide.formats.source import Source
from lowtide.monitor.snapshot import FloatArray, GpuCounts, NodeCounts, Unit
from lowtide.monitor.tick import Shares, Tick

# Longer than this many of the usual steps without a sample is a time that nobody watched.
GAP_STEPS = 2.0


# When a host was last looked at, and the CPU time of what ran there.
LastLook = tuple[float, Mapping[Unit, float]]


def read_ticks(
    paths: Iterable[Path | str],
    *,
    source: str = "slurm",
    known: Callable[[str], LastLook | None] = lambda _host: None,
    left_out: dict[str, int] | None = None,
) -> Iterator[Tick]:
    """Yield what happened on each host, in the order of time.

    A job has begun at the last sample that it was not in yet. A job that is gone from a sample and
    comes back is another, or another start of it. After more than two usual steps without a sample
    nobody knows what happened: the tick behind such a gap takes no time, and counts nothing but CPU
    time of Slurm's jobs, whenever that was used.

    Args:
        source: Where the jobs of the older forms come from, which do not say: `slurm`, or
            `process` for hosts without a batch system.
        known: Says what is known of a host already: its jobs go on from there, and samples that are
            not later are left out.
    """
    samples: dict[tuple[str, float], SonarSample] = {}
    sizes: dict[str, tuple[int, float]] = {}
    for path in paths:
        opened = Source.open(path)
        if not recognises(opened):
            raise FormatError(
                "these are no samples of sonar's: lines such as v=0.13.0,time=…,host=…, "
                "the bare columns of 0.6, or JSON with samples or attributes",
                path=path,
            )
        for sample in read_samples(opened, source=source, sizes=sizes):
            # Files may overlap: a second record of a moment says nothing new.
            samples.setdefault((sample.host, sample.time), sample)
    if not samples:
        raise InvalidInput("there is no sample in these files, only facts about hosts or jobs")
    ordered = sorted(samples.values(), key=lambda sample: (sample.time, sample.host))
    usual_s = _usual_steps(ordered)
    # Sonar says nothing of GPUs that it does not see: whoever is on none used none only on a host
    # where it saw some.
    with_gpus = {sample.host for sample in ordered if _tells_of_gpus(sample)}
    hosts: dict[str, _Host] = {}
    for sample in ordered:
        cpus, memory = sizes.get(sample.host, (0, math.nan))
        sample.cpus = sample.cpus or cpus
        if math.isnan(sample.memory_bytes):
            sample.memory_bytes = memory
        if sample.host not in hosts:
            hosts[sample.host] = _Host.going_on(known(sample.host), usual_s[sample.host])
        host = hosts[sample.host]
        if host.last is not None and sample.time <= host.last:
            if left_out is not None:
                left_out[sample.host] = left_out.get(sample.host, 0) + 1
            continue
        yield host.tick(sample, gpu_use_known=sample.host in with_gpus)


def _tells_of_gpus(sample: SonarSample) -> bool:
    return bool(sample.gpus) or any(
        process.gpus or process.gpus_busy > 0 or process.gpu_memory_bytes > 0
        for process in sample.processes
    )


def _usual_steps(samples: Iterable[SonarSample]) -> dict[str, float]:
    times: dict[str, list[float]] = {}
    for sample in samples:
        times.setdefault(sample.host, []).append(sample.time)
    return {
        host: float(np.median(np.diff(each))) if len(each) > 1 else math.nan
        for host, each in times.items()
    }


@dataclass(slots=True)
class _Seen:
    """A job as it was seen last.

    Attributes:
        unit: The job.
        processes: CPU time of its processes; None where only its sum is known.
        cpu_s: CPU time since it was first seen.
        unseen_s: CPU time before that, and while nobody looked.
    """

    unit: Unit
    processes: dict[tuple[int, str], float] | None
    cpu_s: float = 0.0
    unseen_s: float = 0.0


@dataclass(slots=True, kw_only=True)
class _Host:
    """What is remembered of a host from sample to sample."""

    usual_s: float
    last: float | None = None
    jobs: dict[tuple[str, str], _Seen] = field(default_factory=dict)

    @classmethod
    def going_on(cls, known: LastLook | None, usual_s: float) -> _Host:
        """Return a host as it was left."""
        if known is None:
            return cls(usual_s=usual_s)
        last, units = known
        jobs = {
            (unit.source, unit.job_id): _Seen(unit, None, unseen_s=cpu_s)
            for unit, cpu_s in units.items()
        }
        return cls(usual_s=usual_s, last=last, jobs=jobs)

    def tick(self, sample: SonarSample, *, gpu_use_known: bool) -> Tick:
        watched = self.last is not None and sample.time - self.last <= GAP_STEPS * self.usual_s
        since = self.last if watched and self.last is not None else sample.time
        jobs: dict[tuple[str, str], list[Process]] = {}
        for process in sample.processes:
            jobs.setdefault((process.source, process.job_id), []).append(process)
        seen: dict[tuple[str, str], _Seen] = {}
        busy = []
        for key, processes in jobs.items():
            now, cpus = self._seen(key, processes, sample.time, since, watched=watched)
            seen[key] = now
            busy.append(cpus)
        self.jobs, self.last = seen, sample.time
        return _make_tick(
            sample, since, list(jobs.values()), list(seen.values()), busy, gpu_use_known
        )

    def _seen(
        self,
        key: tuple[str, str],
        processes: list[Process],
        time: float,
        since: float,
        *,
        watched: bool,
    ) -> tuple[_Seen, float]:
        """Return a job as it stands now, and the CPUs that it kept busy."""
        counted = _cpu_times(processes)
        before = self.jobs.get(key)
        if before is not None and not watched and key[0] == "process":
            # While nobody watched, the number may have become another's.
            before = before if (before.processes or {}).keys() & counted.keys() else None
        if before is None:
            unit = Unit(
                source=key[0],
                job_id=key[1],
                started=since,
                user=processes[0].user,
                name=max(processes, key=_weight).command,
            )
            now = _Seen(unit, counted)
            # On a host that was watched all its CPU time is younger than the sample before.
            used_s = math.fsum(counted.values())
        else:
            now = _Seen(before.unit, counted, before.cpu_s, before.unseen_s)
            used_s = _used_since(before, counted)
        if not watched:
            # When it was used nobody knows; whose it is, a batch system does.
            if key[0] == "slurm" and used_s > 0:
                now.unseen_s += used_s
            used_s = math.nan
        if not math.isnan(used_s):
            now.cpu_s += used_s
        elif any(math.isnan(each) for each in counted.values()):
            # Bare columns of 0.6 do not tell it.
            now.cpu_s = math.nan
        step_s = time - since
        if step_s > 0 and not math.isnan(used_s):
            return now, used_s / step_s
        return now, math.fsum(process.cpus_busy for process in processes)


def _used_since(before: _Seen, counted: Mapping[tuple[int, str], float]) -> float:
    """Return the CPU time since a job was seen last."""
    if before.processes is not None:
        return _used_s(before.processes, counted)
    if before.unit.source != "slurm":
        return math.nan
    return max(math.fsum(counted.values()) - before.unseen_s, 0.0)


def _cpu_times(processes: Iterable[Process]) -> dict[tuple[int, str], float]:
    counted: dict[tuple[int, str], float] = {}
    for process in processes:
        key = (process.pid, "" if process.pid else process.command)
        counted[key] = counted.get(key, 0.0) + process.cpu_s
    return counted


def _used_s(before: Mapping[tuple[int, str], float], now: Mapping[tuple[int, str], float]) -> float:
    """Return the CPU time between two samples of a job.

    When a process ends, its time goes to its parent, so the sum over a job only falls when nobody
    in it was there to take it: then what the others used is all that is known.
    """
    used_s = math.fsum(now.values()) - math.fsum(before.values())
    if used_s >= 0 or math.isnan(used_s):
        return used_s
    return math.fsum(max(now[key] - before[key], 0.0) for key in now if key in before)


def _weight(process: Process) -> tuple[float, float]:
    return (0.0 if math.isnan(process.cpu_s) else process.cpu_s, process.count)


def _make_tick(
    sample: SonarSample,
    since: float,
    jobs: list[list[Process]],
    seen: list[_Seen],
    cpus_busy: list[float],
    gpu_use_known: bool,
) -> Tick:
    count = len(jobs)

    def sums(name: str) -> FloatArray:
        return np.array([math.fsum(getattr(each, name) for each in job) for job in jobs])

    def unknown() -> FloatArray:
        return np.full(count, np.nan)

    return Tick(
        host=sample.host,
        since=since,
        time=sample.time,
        node=NodeCounts(
            cpus=sample.cpus,
            busy_s=sample.busy_s,
            memory_bytes=sample.memory_bytes,
            available_bytes=sample.memory_bytes - sample.used_bytes,
        ),
        units=tuple(each.unit for each in seen),
        cpu_s=np.array([each.unseen_s + each.cpu_s for each in seen], dtype=np.float64),
        watched_cpu_s=np.array([each.cpu_s for each in seen], dtype=np.float64),
        cpus_busy=np.array(cpus_busy, dtype=np.float64),
        memory_bytes=sums("memory_bytes"),
        read_bytes=unknown(),
        written_bytes=unknown(),
        received_bytes=unknown(),
        sent_bytes=unknown(),
        cpu_wait_s=unknown(),
        memory_wait_s=unknown(),
        io_wait_s=unknown(),
        gpus_busy=sums("gpus_busy"),
        gpu_memory_bytes=sums("gpu_memory_bytes"),
        reserved_cpus=unknown(),
        reserved_bytes=unknown(),
        reserved_gpus=np.array([_held(job) for job in jobs], dtype=np.float64),
        shares=Shares(
            node_w=math.nan,
            power_w=unknown(),
            gpu_w=unknown(),
            idle_w=math.nan,
            unattributed_w=math.nan,
            measured_w=unknown(),
            node_measured_w=math.nan,
            measured=False,
        ),
        energy_j=unknown(),
        measured_j=unknown(),
        carbon_g=unknown(),
        marginal_g=unknown(),
        embodied_g=unknown(),
        unmetered_s=unknown(),
        unpriced_j=unknown(),
        node_energy_j=math.nan,
        idle_energy_j=math.nan,
        unattributed_energy_j=math.nan,
        intensity_g_per_kwh=math.nan,
        gpus=_gpu_counts(sample, jobs),
        gpu_use_known=gpu_use_known,
    )


def _held(processes: list[Process]) -> float:
    """Return how many GPUs a job uses, NaN where sonar could not tell which."""
    if any(process.gpus is None for process in processes):
        return math.nan
    return float(len({name for process in processes for name in process.gpus or ()}))


def _gpu_counts(sample: SonarSample, jobs: list[list[Process]]) -> tuple[GpuCounts, ...]:
    found = []
    for name, uuid, busy, used, total in sample.gpus:
        use = {
            place: math.fsum((process.gpus or {}).get(name, 0.0) for process in job)
            for place, job in enumerate(jobs)
            if any(name in (process.gpus or {}) for process in job)
        }
        whole = math.fsum(use.values())
        holders = {place: part / whole if whole else 1 / len(use) for place, part in use.items()}
        found.append(
            GpuCounts(
                name=name,
                uuid=uuid,
                busy=busy,
                memory_bytes=used,
                total_bytes=total,
                holders=holders,
            )
        )
    return tuple(found)
