"""The least cost of a job on slots, by trying every state: slow, and obviously right.

Time goes slot by slot. A job is off, suspended, starting up, working or stopping; in each slot it
does one of the things its rules allow. Nothing here knows of delays or piecewise functions.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache


@dataclass(frozen=True)
class SlotJob:
    """A job in slots: powers per slot of each kind, and its rules."""

    startup: tuple[float, ...]
    work: tuple[float, ...]
    stop: tuple[float, ...] = ()
    suspended: float = 0.0
    checkpoints: frozenset[int] | None = None
    max_starts: int | None = None
    min_run: int = 0


def least_cost(
    job: SlotJob,
    values: tuple[float, ...],
    *,
    forbidden: frozenset[int] = frozenset(),
    occupancy: tuple[float, ...] | None = None,
) -> float:
    """Return the least Σ power · value + occupancy over all schedules, inf if there is none."""
    horizon, needed = len(values), len(job.work)
    rent = occupancy or (0.0,) * horizon

    def busy(slot: int, power: float) -> float:
        return math.inf if slot in forbidden else power * values[slot] + rent[slot]

    def may_stop(done: int, ran: int) -> bool:
        allowed = job.checkpoints is None or done in job.checkpoints
        return allowed and 0 < done < needed and ran >= max(job.min_run, 1)

    @cache
    def off(slot: int, done: int, starts: int) -> float:
        """Not running: before the first start nothing is paid, later the job is held."""
        if slot >= horizon:
            return math.inf
        held = 0.0 if starts == 0 else job.suspended * values[slot] + rent[slot]
        best = held + off(slot + 1, done, starts)
        if job.max_starts is None or starts < job.max_starts:
            total, at = 0.0, slot
            for power in job.startup:
                if at >= horizon:
                    return best
                total += busy(at, power)
                at += 1
            best = min(best, total + working(at, done, 0, starts + 1))
        return best

    @cache
    def working(slot: int, done: int, ran: int, starts: int) -> float:
        """Running, with `ran` slots of work since the last start."""
        if done == needed:
            return 0.0 if ran >= job.min_run else math.inf
        if slot >= horizon:
            return math.inf
        best = busy(slot, job.work[done]) + working(
            slot + 1, done + 1, min(ran + 1, max(job.min_run, 1)), starts
        )
        if may_stop(done, ran):
            total, at = 0.0, slot
            for power in job.stop:
                if at >= horizon:
                    return best
                total += busy(at, power)
                at += 1
            best = min(best, total + off(at, done, starts))
        return best

    return off(0, 0, 0)
