"""When to run the next job: what the grid is expected to be, and what waiting for it brings."""

from __future__ import annotations

import math
from dataclasses import dataclass

from lowtide.errors import InvalidInput, LowtideError
from lowtide.hindsight.advice import HISTORY_S, best_begin, expected_grid
from lowtide.hindsight.job import WAITS_S, Waiting
from lowtide.job import Job
from lowtide.policies.tradeoff import Tradeoff, tradeoff
from lowtide.profile import PowerProfile
from lowtide.serve.viewer import Viewer
from lowtide.signal import Signal
from lowtide.units import parse_duration

# How long a next job is taken to be able to wait.
_WAIT_S = 24 * 3600.0
# The longest job of which it is told.
LONGEST_S = 7 * 86400.0 - WAITS_S[-1]
TOO_LITTLE = "Too little is known of the grid: it takes two days of a watcher that knows it."


@dataclass(frozen=True, slots=True, kw_only=True)
class NextJob:
    """A job that is to come, as far as it is known.

    Attributes:
        profile: What it draws; None where that is not known.
        host: Where it runs: it is that node's grid that counts.
        draws: Whether its watts are known, and not only how long it takes.
        note: Why nothing is known of it.
    """

    profile: PowerProfile | None = None
    host: str | None = None
    draws: bool = False
    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """What it comes to if a job may wait for so long.

    Attributes:
        begins: When it begins, epoch seconds.
        ends: When it is done.
        carbon_g: What it emits; None where its watts are not known.
        saving: By how much less that is than at once, as a share; None where nothing is emitted.
    """

    wait_s: float
    begins: float
    ends: float
    carbon_g: float | None
    saving: float | None


def next_job(viewer: Viewer, *, like: str, time: str) -> NextJob | None:
    """Return what is known of a job that is asked about; None where the one it is like is not.

    Args:
        like: The `ref` of a job of which it is another.
        time: How long it takes, where it is like none.
    """
    if like:
        seen = viewer.look_back(like)
        if seen is None:
            return None
        told = seen[1]
        if told.phases is None:
            note = "Its phases are not known: name a length instead."
            return NextJob(host=told.record.host, note=note)
        return NextJob(profile=told.phases.profile, host=told.record.host, draws=True)
    if not time:
        return NextJob()
    run_s = parse_duration(time, bare_unit_s=3600.0)
    if not 0 < run_s <= LONGEST_S:
        raise InvalidInput("a job takes more than nothing and five days at most here")
    # Savings are shares: what it draws does not matter to them.
    return NextJob(profile=PowerProfile.constant(1000.0, run_s), host=any_node(viewer))


def any_node(viewer: Viewer) -> str | None:
    """Return a node of the cluster, whose grid is that of all."""
    return next((each["name"] for each in viewer.nodes()), None)


def grid_ahead(viewer: Viewer, host: str | None, run_s: float) -> Signal | None:
    """Return what the grid of a node is expected to be, for as long as a job may take."""
    if host is None or run_s > LONGEST_S:
        return None
    series = viewer.grid_course(host, start=viewer.now - HISTORY_S)
    if series is None:
        return None
    found = expected_grid(series, now=viewer.now, ahead_s=run_s + WAITS_S[-1])
    # What it was made of comes first.
    return found and found.window(viewer.now, found.end)


def begin_within_a_day(
    profile: PowerProfile, grid: Signal, now: float, pue: float
) -> Waiting | None:
    """Return the cleanest begin for who can wait a day; None where it cannot be told."""
    try:
        return best_begin(profile, grid, now=now, wait_s=_WAIT_S, pue=pue)
    except LowtideError:
        return None


def options_of(job: NextJob, grid: Signal, now: float) -> list[Option]:
    """Return what waiting for some times comes to, the shortest first."""
    found: list[Option] = []
    if job.profile is None:
        return found
    for wait_s in (0.0, *WAITS_S):
        best = best_begin(job.profile, grid, now=now, wait_s=wait_s, pue=math.nan)
        if best is not None:
            plan = best.plan
            found.append(
                Option(
                    wait_s=wait_s,
                    begins=plan.schedule.start,
                    ends=plan.schedule.end,
                    carbon_g=plan.footprint.carbon_g if job.draws else None,
                    saving=plan.saving,
                )
            )
    return found


def every_finish(job: NextJob, grid: Signal, now: float) -> Tradeoff | None:
    """Return the least for every time by which it is to be done; None where that is not known."""
    if job.profile is None:
        return None
    deadline = now + job.profile.run_s + WAITS_S[-1]
    if not grid.covers(now, deadline):
        return None
    found = tradeoff(Job(id="job", arrival=now, deadline=deadline, profile=job.profile), grid)
    return found if len(found.finish) > 1 and found.baseline > 0 else None
