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
    restart: tuple[float, ...] | None = None

    def starting(self, starts: int) -> tuple[float, ...]:
        """What a start draws that comes after so many others."""
        return self.startup if starts == 0 or self.restart is None else self.restart


@dataclass(frozen=True)
class SlotState:
    """Where a job stands: the slot, work done, whether it runs, its starts, and work since."""

    now: int = 0
    done: int = 0
    running: bool = False
    starts: int = 0
    ran: int = 0


ARRIVED = SlotState()


def least_cost(
    job: SlotJob,
    values: tuple[float, ...],
    *,
    forbidden: frozenset[int] = frozenset(),
    occupancy: tuple[float, ...] | None = None,
    wait: float = 0.0,
    state: SlotState = ARRIVED,
    ahead: bool = False,
) -> float:
    """Return the least Σ power · value + occupancy + wait · delay, inf if there is no schedule.

    With `ahead` the first start may do no work: what schedules come near whose first does little.
    """
    horizon, needed = len(values), len(job.work)
    rent = occupancy or (0.0,) * horizon
    lead = 0 if state.running else len(job.starting(state.starts))
    earliest = state.now + lead + needed - state.done

    def busy(slot: int, power: float) -> float:
        return math.inf if slot in forbidden else power * values[slot] + rent[slot]

    def may_stop(done: int, ran: int, worked: bool) -> bool:
        allowed = job.checkpoints is None or done in job.checkpoints or done == 0
        return allowed and done < needed and ran >= job.min_run and worked

    @cache
    def off(slot: int, done: int, starts: int) -> float:
        """Not running: before the first start nothing is paid, later the job is held."""
        if slot >= horizon:
            return math.inf
        held = 0.0 if starts == 0 else job.suspended * values[slot] + rent[slot]
        best = held + off(slot + 1, done, starts)
        if job.max_starts is None or starts < job.max_starts:
            total, at = 0.0, slot
            for power in job.starting(starts):
                if at >= horizon:
                    return best
                total += busy(at, power)
                at += 1
            best = min(best, total + working(at, done, 0, starts + 1, ahead and not starts, False))
        return best

    @cache
    def working(slot: int, done: int, ran: int, starts: int, worked: bool, first: bool) -> float:
        """Running, with `ran` slots of work since the last start, `first` if that was before."""
        if done == needed:
            # A run that was under way is what it is, even if it comes to too little.
            return wait * (slot - earliest) if first or ran >= job.min_run else math.inf
        if slot >= horizon:
            return math.inf
        best = busy(slot, job.work[done]) + working(
            slot + 1, done + 1, min(ran + 1, job.min_run), starts, True, first
        )
        if may_stop(done, ran, worked):
            total, at = 0.0, slot
            for power in job.stop:
                if at >= horizon:
                    return best
                total += busy(at, power)
                at += 1
            best = min(best, total + off(at, done, starts))
        return best

    if state.running:
        return working(state.now, state.done, state.ran, state.starts, True, True)
    return off(state.now, state.done, state.starts)
