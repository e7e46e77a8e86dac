"""What the store answers with: jobs, what they used over time, and when nobody watched."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from lowtide.certainty import word_for_power
from lowtide.monitor.quantities import ADDED, COUNTED, Quantities, with_columns
from lowtide.monitor.snapshot import FloatArray

DAY_S = 86400.0


@with_columns(
    *(name for name in (*COUNTED, *ADDED) if name != "cpu_s"),
    kind="float",
    default=math.nan,
    after="watched_cpu_s",
)
class JobRecord(Quantities):
    """One start of one job: what was asked for, what was seen, and how it ended.

    It has all that is counted for a job besides, as `monitor.quantities` names it: `read_bytes`,
    `energy_j`, `carbon_g` and so on. Texts and facts are None, measured quantities NaN where they
    are not known. CPU time counts from the job's beginning where a control group counts it.
    Everything else that was used counts from the first look on: a job that ran while nobody watched
    used more, which `unmetered_s` says.

    Attributes:
        number: The store's own number for it.
        source: Where it was found, one of `monitor.snapshot.SOURCES`.
        job_id: The number it is accounted by.
        shown_id: What users type.
        state: One of `states.STATES`.
        user: Who runs it.
        account: Who pays for it.
        partition: Where it runs.
        name: What it is called.
        comment: What the user wrote beside it.
        cluster: Which of several clusters it is of; empty where not known or none.
        hosts: Where it was seen, or else where facts say that it runs.
        submitted: When it was submitted, epoch seconds.
        started: When it began.
        ended: When it was over, as facts have it, or else as it was seen.
        time_limit_s: How long it may run.
        exit_code: The program's exit status.
        restarts: How often it was requeued before this start.
        cpus: CPUs that it asked for, or else that are kept for it.
        memory_bytes: Memory that it asked for, or else that is kept for it.
        gpus: GPUs that it asked for, or else that it holds.
        nodes_asked: How many nodes it asked for, as long as it has none.
        elapsed_s: How long it ran, so far or until it ended; unknown for what was seen once, and
            nobody knows the end of.
        first_seen: When it was first looked at.
        last_seen: When it was last looked at.
        looks: How often it was looked at.
        seen_s: How long it was watched, up to its end.
        cpu_s: CPU time.
        watched_cpu_s: The part of it that was used while it was watched.
        gpu_j: The part of the energy that its GPUs drew.
        gpu_busy_s: Time that its GPUs were busy, added up.
        mean_memory_bytes: Memory that it held, on average.
        peak_cpus: Most CPUs that it kept busy between two looks.
        peak_memory_bytes: Most memory that it held.
        peak_gpus: Most GPUs that it kept busy.
        peak_gpu_memory_bytes: Most memory that it held on them.
        peak_power_w: Most power between two looks.
    """

    number: int
    source: str
    job_id: str
    shown_id: str
    state: str | None
    user: str | None
    account: str | None
    partition: str | None
    name: str | None
    comment: str | None
    cluster: str
    hosts: tuple[str, ...]
    submitted: float
    started: float
    ended: float
    time_limit_s: float
    exit_code: int | None
    restarts: int | None
    cpus: float
    memory_bytes: float
    gpus: float
    nodes_asked: float
    elapsed_s: float
    first_seen: float
    last_seen: float
    looks: int
    seen_s: float
    cpu_s: float
    watched_cpu_s: float
    gpu_j: float
    gpu_busy_s: float
    mean_memory_bytes: float
    peak_cpus: float
    peak_memory_bytes: float
    peak_gpus: float
    peak_gpu_memory_bytes: float
    peak_power_w: float

    @property
    def host(self) -> str | None:
        """Its first host."""
        return self.hosts[0] if self.hosts else None

    @property
    def known_s(self) -> float:
        """How long it was watched; unknown for what was seen once, and nobody knows its end."""
        is_known = self.looks > 1 or not math.isnan(self.ended)
        return self.seen_s if is_known else math.nan

    @property
    def mean_power_w(self) -> float:
        """What it drew on average while a meter or an estimate told."""
        told_s = metered_s(self.seen_s, self.elapsed_s, self.unmetered_s)
        return self.energy_j / told_s if told_s > 0 else math.nan

    @property
    def mean_cpus(self) -> float:
        """CPUs that it kept busy on average while it was watched."""
        return self.watched_cpu_s / self.seen_s if self.seen_s > 0 else math.nan

    @property
    def mean_gpus(self) -> float:
        """GPUs that it kept busy on average while it was watched."""
        return self.gpu_busy_s / self.seen_s if self.seen_s > 0 else math.nan

    @property
    def cpu_efficiency(self) -> float:
        """The share of its CPUs that it kept busy while it was watched."""
        return self.mean_cpus / self.cpus if self.cpus > 0 else math.nan

    @property
    def memory_efficiency(self) -> float:
        """The share of its memory that it ever held."""
        return self.peak_memory_bytes / self.memory_bytes if self.memory_bytes > 0 else math.nan

    @property
    def gpu_efficiency(self) -> float:
        """The share of its GPUs that it kept busy while it was watched."""
        return self.mean_gpus / self.gpus if self.gpus > 0 else math.nan

    @property
    def power(self) -> str | None:
        """Whether its energy was `measured`, `estimated`, or each in `part`."""
        return word_for_power(self.energy_j, self.measured_j)


def metered_s(seen_s: float, elapsed_s: float, unmetered_s: float) -> float:
    """Return how long a job was watched while somebody could tell what it drew.

    Args:
        elapsed_s: How long it ran; NaN where that is not known.
        unmetered_s: How long nobody could tell, watching or not; NaN where that is not known.

    >>> metered_s(60.0, 100.0, 50.0)
    50.0
    """
    unwatched_s = max(elapsed_s - seen_s, 0.0) if elapsed_s == elapsed_s else 0.0
    blind_s = max(unmetered_s - unwatched_s, 0.0) if unmetered_s == unmetered_s else 0.0
    return seen_s - min(blind_s, seen_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """What was used over time, in steps that follow each other without a break.

    Attributes:
        times: When each step ended, epoch seconds.
        step_s: How long it was. Older steps are longer: they were rolled up.
        columns: One value per step, NaN where there is no data. Quantities such as `energy_j` and
            `carbon_g` are those of the step; everything else is its mean.
    """

    times: FloatArray
    step_s: FloatArray
    columns: Mapping[str, FloatArray]

    def __len__(self) -> int:
        return self.times.size

    @property
    def starts(self) -> FloatArray:
        """When each step began."""
        return self.times - self.step_s

    @property
    def edges(self) -> FloatArray:
        """Where steps begin, and the end of the last."""
        return np.append(self.starts[:1], self.times)

    @classmethod
    def nothing(cls, names: tuple[str, ...]) -> Series:
        """Return a series without any step."""
        empty = np.empty(0)
        return cls(times=empty, step_s=empty, columns=dict.fromkeys(names, empty))


def thinned(series: Series, points: int) -> Series:
    """Return a course in fewer steps: amounts are added, everything else is a mean over time."""
    edges = np.linspace(0, len(series), points + 1).astype(int)[:-1]
    step_s = np.add.reduceat(series.step_s, edges)
    columns = {}
    for name, column in series.columns.items():
        amounts = name.endswith(("_j", "_g", "_s", "_bytes")) and "memory" not in name
        known = ~np.isnan(column)
        weight = known * (1.0 if amounts else series.step_s)
        total = np.add.reduceat(np.where(known, column, 0.0) * weight, edges)
        length = np.add.reduceat(known * series.step_s, edges)
        with np.errstate(invalid="ignore", divide="ignore"):
            values = total if amounts else total / length
        columns[name] = np.where(length > 0, values, np.nan)
    times = series.times[np.append(edges[1:], len(series)) - 1]
    return Series(times=times, step_s=step_s, columns=columns)


def gaps_in(
    series: Series, interval_s: float, *, start: float | None = None, end: float | None = None
) -> tuple[tuple[float, float], ...]:
    """Return when nobody watched a node: stretches of more than two intervals.

    Args:
        start: Look from this moment on; by default from the first tick.
        end: Look up to this moment; by default up to the last tick.
    """
    if not len(series):
        return ((start, end),) if start is not None and end is not None else ()
    missing = np.isnan(series.columns["jobs"])
    stretches = list(zip(series.starts[missing], series.times[missing], strict=True))
    if start is not None:
        stretches.insert(0, (start, float(series.starts[0])))
    if end is not None:
        stretches.append((float(series.times[-1]), end))
    return tuple(
        (float(first), float(last)) for first, last in stretches if last - first > 2 * interval_s
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class HostRecord:
    """A host that is or was watched.

    Attributes:
        number: The store's own number for it.
        name: Its name.
        node_unit: The number that the node itself has as a unit.
        last_time: When its last tick was; NaN before the first.
        interval_s: How long its ticks are.
    """

    number: int
    name: str
    node_unit: int
    last_time: float
    interval_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Retention:
    """How long what is kept how finely.

    Attributes:
        looks_s: How long every look is kept.
        minutes_s: How long a value per minute is kept; after that, one per hour.
    """

    looks_s: float = 7 * DAY_S
    minutes_s: float = 90 * DAY_S
