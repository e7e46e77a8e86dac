"""What waiting would have saved: a job that has run, planned again on a grid's signal."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from lowtide.errors import InvalidInput
from lowtide.hindsight.behaviour import binned
from lowtide.job import Job
from lowtide.policies import Plan, plan
from lowtide.profile import PowerProfile
from lowtide.signal import Signal
from lowtide.store import Series
from lowtide.units import format_time

WAITS_S = (6 * 3600.0, 24 * 3600.0, 48 * 3600.0)
# What a watcher knew of the grid changes no faster than this.
_STEP_S = 300.0


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
) -> tuple[Waiting, ...]:
    """Plan a job for every time that it may wait, as far as the signal reaches.

    Args:
        profile: What it draws.
        signal: What a kWh emits or costs.
        arrival: When it could have begun.
        waits_s: How long it may wait.
        interruptible: Whether it may be stopped meanwhile: never, anywhere, checkpoints.
    """
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
        found.append(Waiting(wait_s=wait_s, plan=plan(job, signal, policy="exact")))
    return tuple(found)


def arrival_within(signal: Signal, started: float, profile: PowerProfile) -> tuple[float, str]:
    """Return when a job is taken to come, and a note where that is not when it came.

    Args:
        signal: The signal, which may be of other days.
        started: When the job began.
        profile: What it draws.
    """
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


def watched_signal(node: Series, *, start: float) -> Signal | None:
    """Return the intensity that the watcher of a node knew, None where it knew none.

    Args:
        node: What the node did, from when the job began until now.
        start: When the job began.
    """
    if not len(node):
        return None
    count = math.floor((float(node.times[-1]) - start) / _STEP_S)
    if count < 1:
        return None
    edges = start + _STEP_S * np.arange(count + 1, dtype=np.float64)
    values = binned(node, "intensity_g_per_kwh", edges)
    known = ~np.isnan(values)
    if not known[0]:
        return None
    # A signal has no holes: it ends where nobody watched.
    until = values.size if known.all() else int(np.argmin(known))
    return Signal(
        values=values[:until],
        start=start,
        step_s=_STEP_S,
        source="what was known when the node was watched",
    )
