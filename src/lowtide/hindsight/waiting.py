"""What waiting would have saved: a job that has run, planned again on a grid's signal."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from lowtide.errors import InvalidInput
from lowtide.hindsight.behaviour import binned
from lowtide.job import Job
from lowtide.monitor.snapshot import FloatArray
from lowtide.policies import Plan, plan
from lowtide.profile import PowerProfile
from lowtide.signal import Signal
from lowtide.store import Series
from lowtide.units import format_time

WAITS_S = (6 * 3600.0, 24 * 3600.0, 48 * 3600.0)
# What a watcher knew of the grid changes no faster than this.
_STEP_S = 300.0
# Unless it is about less time than this: then in smaller steps.
_LONG_S = 7200.0
_SHORT_STEP_S = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Waiting:
    """What a job comes to that may wait.

    Attributes:
        wait_s: How long it may wait in all.
        plan: The cleanest schedule within that, beside running at once.
    """

    wait_s: float
    plan: Plan


def plan_waiting(
    profile: PowerProfile,
    signal: Signal,
    *,
    arrival: float,
    waits_s: Sequence[float] = WAITS_S,
    interruptible: str = "never",
    pue: float = 1.0,
) -> tuple[Waiting, ...]:
    """Plan a job for every time that it may wait, as far as the signal reaches.

    Args:
        pue: What the building draws for each watt of the job's.
    """
    # A kWh of the job's takes so many of the grid's.
    at_the_node = replace(signal, values=pue * signal.values)
    found = []
    for wait_s in sorted(set(waits_s)):
        deadline = arrival + profile.run_s + wait_s
        if not signal.covers(arrival, deadline):
            continue
        job = Job(
            id="job",
            arrival=arrival,
            deadline=deadline,
            profile=profile,
            interruptible=interruptible,
        )
        found.append(Waiting(wait_s=wait_s, plan=plan(job, at_the_node, policy="exact")))
    return tuple(found)


def arrival_within(signal: Signal, started: float, profile: PowerProfile) -> tuple[float, str]:
    """Return when a job is taken to come, and a note where that is not when it came."""
    if signal.covers(started, started + profile.run_s):
        return started, ""
    if not signal.covers(signal.start, signal.start + profile.run_s):
        raise InvalidInput(
            f"the signal covers {format_time(signal.start)} to {format_time(signal.end)}, which "
            "is shorter than the job"
        )
    return signal.start, (
        f"The signal covers {format_time(signal.start)} to {format_time(signal.end)}, not the "
        "days of the job: as if it had come at its first moment."
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownGrid:
    """What is known of the grid from when a job began.

    Attributes:
        signal: The intensity, from then on without a hole; None where nothing is known then.
        watched_until: Up to when the watcher of the node knew it; the beginning where it did not.
    """

    signal: Signal | None
    watched_until: float


def known_grid(
    node: Series,
    *,
    start: float,
    end: float,
    beyond: Callable[[float, float], Signal] | None = None,
) -> KnownGrid:
    """Return the intensity that the watcher of a node knew, and what another source says after it.

    Args:
        node: What the node did, from when the job began until now.
        beyond: Says the intensity between two moments, where the watcher did not know it.
    """
    last = min(float(node.times[-1]), end) if len(node) else start
    # A minute's job deserves a curve that does not end minutes after it.
    span_s = (last if beyond is None else end) - start
    step_s = _STEP_S if span_s > _LONG_S else _SHORT_STEP_S
    count = max(math.ceil(span_s / step_s - 1e-6), 0)
    edges = start + step_s * np.arange(count + 1, dtype=np.float64)
    values = binned(node, "intensity_g_per_kwh", edges)
    values[edges[:-1] >= last] = np.nan
    # A signal has no holes: it ends where nobody watched.
    known = _until_hole(values)
    watched_until = min(float(edges[known]), last) if known else start
    source, synthetic = "what was known when the node was watched", False
    if beyond is not None and known < values.size:
        other = beyond(float(edges[known]), end)
        inside = np.isnan(values) & (edges[:-1] >= other.start) & (edges[1:] <= other.end)
        values[inside] = other.integral(edges[:-1][inside], edges[1:][inside]) / step_s
        known = _until_hole(values)
        source = f"{source}, then {other.source}" if watched_until > start else other.source
        synthetic = other.synthetic
    if not known:
        return KnownGrid(signal=None, watched_until=start)
    signal = Signal(
        values=values[:known], start=start, step_s=step_s, source=source, synthetic=synthetic
    )
    return KnownGrid(signal=signal, watched_until=watched_until)


def _until_hole(values: FloatArray) -> int:
    """Return how many values there are before the first that is not known."""
    unknown = np.isnan(values)
    return int(np.argmax(unknown)) if unknown.any() else values.size
