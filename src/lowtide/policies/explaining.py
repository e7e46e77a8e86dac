"""Why a schedule is as it is: what its parts cost, and what other choices would have."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from lowtide.accounting import footprint
from lowtide.grid import Grid, deciding_signal
from lowtide.job import Job
from lowtide.policies.exact import Exact
from lowtide.policies.planning import Plan
from lowtide.schedule import Schedule
from lowtide.signal import Signal
from lowtide.units import JOULES_PER_KWH


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """One start of a job and what it comes to.

    Attributes:
        start: When it starts.
        end: When it stops.
        work_s: Work that it does and keeps.
        energy_j: What it draws.
        amount: What that emits or costs.
        overhead: The part of it that startup, stopping and lost work make up.
        mean: What a kWh of it emits or costs, None if it draws nothing.
    """

    start: float
    end: float
    work_s: float
    energy_j: float
    amount: float
    overhead: float
    mean: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """What the choices behind a plan are worth. Amounts are grams, or money on a price.

    Attributes:
        blocks: Its starts.
        suspended: What being suspended between them costs.
        total: What it comes to.
        run_now: What starting at arrival and never stopping comes to.
        uninterrupted: The best that one start can do.
        one_start_fewer: The best with exactly one start less, None with a single start.
        one_start_more: The best with exactly one start more, None where rules or time forbid it.
        blind_to_phases: What the best plan comes to that knows the job's mean power only.
    """

    blocks: tuple[Block, ...]
    suspended: float
    total: float
    run_now: float
    uninterrupted: float
    one_start_fewer: float | None
    one_start_more: float | None
    blind_to_phases: float


def explain(plan: Plan, job: Job, signal: Signal | Grid) -> Explanation:
    """Say why a plan is as it is.

    Args:
        plan: A plan of the job on the signal.
        job: The job.
        signal: What a kWh emits or costs.
    """
    target = deciding_signal(signal)
    blocks = []
    for run in plan.schedule.runs:
        part = footprint(Schedule(job_id=job.id, spans=run), job, target)
        extra = [entry for name, entry in part.by_phase.items() if not name.startswith("work/")]
        carbon = part.carbon_g is not None
        overhead = sum((entry.carbon_g if carbon else entry.cost) or 0.0 for entry in extra)
        energy_kwh = part.energy_j / JOULES_PER_KWH
        blocks.append(
            Block(
                start=run[0].start,
                end=run[-1].end,
                work_s=sum(span.duration_s for span in run if span.kind == "work"),
                energy_j=part.energy_j,
                amount=part.amount,
                overhead=overhead,
                mean=part.amount / energy_kwh if energy_kwh else None,
            )
        )
    total = footprint(plan.schedule, job, target).amount
    suspended = total - sum(block.amount for block in blocks)
    starts = plan.schedule.starts
    best = Exact().optimise(replace(job, max_starts=starts + 1), target).solution.by_starts
    allowed = job.interruptible != "never" and (job.max_starts is None or job.max_starts > starts)
    return Explanation(
        blocks=tuple(blocks),
        suspended=suspended if abs(suspended) > 1e-9 * abs(total) else 0.0,
        total=total,
        run_now=footprint(Schedule.uninterrupted(job, job.arrival), job, target).amount,
        uninterrupted=Exact().optimise(replace(job, max_starts=1), target).solution.cost,
        one_start_fewer=_possible(best, starts - 1) if starts > 1 else None,
        one_start_more=_possible(best, starts + 1) if allowed else None,
        blind_to_phases=_blind(job, target),
    )


def _possible(by_starts: tuple[float, ...], starts: int) -> float | None:
    found = by_starts[starts] if starts < len(by_starts) else np.inf
    return found if np.isfinite(found) else None


def _blind(job: Job, signal: Signal) -> float:
    """Return what planning with the mean power alone comes to on the real job."""
    optimum = Exact().optimise(replace(job, profile=job.profile.averaged()), signal)
    return footprint(Schedule.from_stretches(job, optimum.stretches), job, signal).amount
