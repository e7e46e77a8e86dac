"""From what the store kept of a job and its nodes to what can be judged."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from lowtide.monitor.snapshot import PRESSURES, FloatArray
from lowtide.monitor.verdicts import SATURATED, Behaviour, Use
from lowtide.store import JobRecord, Series


def behaviour_of(record: JobRecord, series: Series, nodes: Sequence[Series]) -> Behaviour:
    """Return what was seen of a job."""
    cpus = _sizes(nodes, "cpus")
    held = record.gpus if record.gpus > 0 else math.nan
    gpu_memory = _sizes(nodes, "gpu_memory_total_bytes")
    gpus = _sizes(nodes, "gpus", none=True)
    return Behaviour(
        length_s=record.known_s if record.known_s > 0 else math.nan,
        cpus=Use(
            asked=_positive(record.cpus), node=cpus, mean=record.mean_cpus, peak=record.peak_cpus
        ),
        memory=Use(
            asked=_positive(record.memory_bytes),
            node=_sizes(nodes, "memory_bytes"),
            mean=record.mean_memory_bytes,
            peak=record.peak_memory_bytes,
        ),
        gpus=Use(
            asked=record.gpus,
            node=gpus,
            mean=record.mean_gpus,
            peak=_known_peak(record.peak_gpus, series, "gpus_busy"),
        ),
        gpu_memory=Use(
            # GPUs of a node are alike: those held have their part of all memory.
            asked=gpu_memory * held / gpus if gpus > 0 else math.nan,
            node=gpu_memory,
            mean=mean_of(series, "gpu_memory_bytes"),
            peak=record.peak_gpu_memory_bytes,
        ),
        load=_load(nodes),
        **{f"{kind}_wait": _waited(record, series, kind) for kind in PRESSURES},
        watched=_watched(record),
        out_of_memory=record.state == "out_of_memory",
    )


def _waited(record: JobRecord, series: Series, kind: str) -> float:
    """Return for which share of the time a job waited; where it had several nodes, on average."""
    waited_s = float(getattr(record, f"{kind}_wait_s"))
    known = ~np.isnan(series.columns.get(f"{kind}_wait_s", np.empty(0)))
    # A job that is seen on several nodes waits on each of them.
    watched_s = float(series.step_s[known].sum()) * max(len(record.hosts), 1)
    return min(waited_s / watched_s, 1.0) if watched_s > 0 else math.nan


def _watched(record: JobRecord) -> float:
    """Return for which share of its time a job was watched."""
    if math.isnan(record.elapsed_s):
        return math.nan
    return min(record.seen_s / record.elapsed_s, 1.0) if record.elapsed_s > 0 else 1.0


def _known_peak(peak: float, series: Series, name: str) -> float:
    """Return the most that was used; no use is unknown where there were times nobody knows of."""
    unknown = np.isnan(series.columns.get(name, np.empty(0))).any()
    return math.nan if peak == 0 and unknown else peak


def mean_of(series: Series, name: str) -> float:
    """Return the mean of a column over the time that is known; NaN where none is."""
    values = series.columns.get(name, np.empty(0))
    known = ~np.isnan(values)
    if not known.any():
        return math.nan
    return float(np.average(values[known], weights=series.step_s[known]))


def binned(series: Series, name: str, edges: FloatArray) -> FloatArray:
    """Return the means of a column between edges, NaN where nothing is known.

    Args:
        edges: Epoch seconds, ascending.
    """
    values = series.columns.get(name)
    if values is None or not len(series):
        return np.full(edges.size - 1, np.nan)
    known = ~np.isnan(values)
    ends = np.concatenate([series.starts[:1], series.times])

    def until(amounts: FloatArray) -> FloatArray:
        reached: FloatArray = np.interp(edges, ends, np.concatenate([[0.0], np.cumsum(amounts)]))
        return np.diff(reached)

    seconds = until(series.step_s * known)
    amounts = until(np.where(known, values, 0.0) * series.step_s)
    # Rounding leaves a trace of time where there is none.
    return np.where(seconds > 1e-6, amounts / np.maximum(seconds, 1e-6), np.nan)


def _sizes(nodes: Sequence[Series], name: str, *, none: bool = False) -> float:
    """Return how much all nodes have, unknown where one of them does not say."""
    found = []
    for node in nodes:
        values = node.columns.get(name, np.empty(0))
        known = values[~np.isnan(values)]
        size = float(known.max()) if known.size else math.nan
        found.append(size if none else _positive(size))
    return math.fsum(found) if found else math.nan


def _load(nodes: Sequence[Series]) -> float:
    """Return how busy the cores of the busiest node were on average; others may be unknown."""
    loads = [mean_of(node, "cpus_busy") / _sizes([node], "cpus") for node in nodes]
    known = [load for load in loads if not math.isnan(load)]
    # One that is full is enough to hold a job up, and one that nobody knows may be.
    most = max(known, default=math.nan)
    return most if len(known) == len(loads) or most >= SATURATED else math.nan


def _positive(value: float) -> float:
    """Return a size; one of 0 was never told."""
    return value if value > 0 else math.nan
