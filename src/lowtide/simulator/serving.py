"""A queue served by a scheduler, event by event, and what it did laid on the nodes."""

from __future__ import annotations

import heapq
import math

import numpy as np
import numpy.typing as npt

from lowtide.accounting import Stretches
from lowtide.errors import InvalidSchedule
from lowtide.forecast import ForecastModel
from lowtide.signal import FloatArray, Signal
from lowtide.simulator.carrying import carry_out
from lowtide.simulator.cluster import Cluster
from lowtide.simulator.disciplines import OwnDiscipline
from lowtide.simulator.events import Happening, Pause, QueueEvent
from lowtide.simulator.queueing import Placed, Queued
from lowtide.simulator.scheduling import QueueView, Scheduler
from lowtide.units import format_count
from lowtide.workload import Workload

# Where nobody runs and nothing but break-downs is to come, so many of them are waited for.
_IDLE = 1000


def run_scheduler(
    jobs: Workload,
    cluster: Cluster,
    scheduler: Scheduler,
    *,
    wished: Stretches | None = None,
    signal: Signal | None = None,
    forecasts: ForecastModel | None = None,
) -> Queued:
    """Run jobs on machines as a scheduler says.

    Args:
        wished: When a policy would let each job run and stop, by default from its arrival on. A
            job joins the queue at the start of each stretch.
        signal: What a kWh counts; None where the scheduler is told of none.
        forecasts: What is foreseen of it at each moment; None for all of it.
    """
    cluster.check_fits(jobs)
    inner = scheduler.scheduler if isinstance(scheduler, OwnDiscipline) else scheduler
    switches = bool(getattr(inner, "switches_nodes", False))
    view = QueueView(jobs, cluster, signal, forecasts, switches_nodes=switches)
    ready = jobs.arrival if wished is None else wished.start[wished.first]
    for job, when in enumerate(ready.tolist()):
        view._events.append((when, Happening.READY, job - len(jobs), job, None))
    if wished is not None and wished.job.size > len(jobs):
        last = np.append(np.diff(wished.job) != 0, True)
        upto_s = np.cumsum(wished.work_s)
        upto_s -= (upto_s - wished.work_s)[wished.first][wished.job]
        for place in np.flatnonzero(~last).tolist():
            row = int(wished.job[place])
            until, lost_s = float(wished.start[place + 1]), float(wished.lost_s[place])
            wish = Pause(until, float(upto_s[place]), lost_s)
            view._wishes.setdefault(row, []).append(wish)
    events = view._events
    heapq.heapify(events)
    if signal is not None:
        for edge in signal.edges[:-1][signal.edges[:-1] >= view.now].tolist():
            view._push(edge, Happening.STEP, -1)
    on, count = scheduler.on, len(jobs)
    told: list[QueueEvent] = []
    idle = 0
    while view.over < count and events and idle < _IDLE:
        now = view.now = view._pool.now = events[0][0]
        while events and events[0][0] <= now:
            _, code, _, job, run = heapq.heappop(events)
            event = view.happen(code, job, run)
            if event is not None:
                told.append(event)
        only_breaks = all(event.kind in ("down", "back") for event in told)
        for event in told:
            on(event, view)
        told.clear()
        idle = idle + 1 if only_breaks and not view.running else 0
    if view.over < count:
        waiting = view.queue
        name = f"job {jobs.id[waiting[0]]}" if waiting else "nobody"
        raise InvalidSchedule(
            f"{type(scheduler).__name__} left {format_count(len(waiting), 'job')} waiting, {name} "
            "first, when nothing else was to happen: start them at some event, or ask to be woken "
            "(view.wake)"
        )
    joined = np.array([view.joined[job] for job in range(count)])
    return _laid_out(jobs, cluster, view, joined)


def _laid_out(jobs: Workload, cluster: Cluster, view: QueueView, ready: FloatArray) -> Queued:
    """Return what a scheduler did, laid on the nodes."""
    runs = view.runs
    job = np.array([run[0] for run in runs], dtype=np.int64)
    start = np.array([run[1] for run in runs])
    order = np.lexsort((start, job))
    stretches = Stretches(
        job=job[order],
        start=start[order],
        work_s=np.array([run[2] for run in runs])[order],
        lost_s=np.array([run[3] for run in runs])[order],
    )
    placed = None
    pool = view._pool
    if not pool.pooled:
        nodes: list[npt.NDArray[np.int64]] = [
            each for each in (runs[place][4] for place in order.tolist()) if each is not None
        ]
        placed = Placed(
            stretch=np.repeat(np.arange(order.size), [each.size for each in nodes]),
            node=np.concatenate(nodes),
        )
    off = np.flatnonzero(np.isfinite(pool.off_at)).tolist()
    switched = [*pool.switched, *((node, float(pool.off_at[node]), math.inf) for node in off)]
    queued = carry_out(jobs, stretches, cluster, placed=placed, switched=switched, down=view.down)
    return Queued(
        ready=ready,
        stretches=queued.stretches,
        held_from=queued.held_from,
        held_until=queued.held_until,
        nodes=queued.nodes,
        placed=queued.placed,
    )
