"""The queue over time, for jobs that run through in the order of their ranks.

All kernels of queues see the jobs in the order in which they become ready, and go from one
instant at which something happens to the next. At each, what ends gives its nodes back, nodes are
done with booting or shutting down, jobs that are ready join the queue, and those whose turn it is
start. Last of all, nodes that have been idle for long enough go off.
"""

from __future__ import annotations

import numpy as np

from lowtide.compiled import compiled
from lowtide.simulator.heaps import Rows, due, pop, push
from lowtide.simulator.machines import (
    FIRST,
    FloatArray,
    IntArray,
    find,
    give,
    room_for,
    settle,
    switch_off,
    take,
)


@compiled(inner=True)
def end_of(jobs: Rows, job: int, start: float) -> float:
    """Return when a job is over that starts at an instant and runs through."""
    return float(start + jobs[job]["startup_s"] + jobs[job]["work_s"])


@compiled()
def run_in_order(
    count: int,
    jobs: Rows,
    places: IntArray,
    site: Rows,
    nodes: Rows,
    changes: Rows,
    timers: Rows,
    ends: Rows,
    waiting: Rows,
    log: FloatArray,
) -> FloatArray:
    """Run jobs through, strictly in the order of their ranks among those that wait.

    Args:
        jobs: The jobs, and one that is never ready; told when they took their nodes and started.
        changes: A heap of nodes that boot or shut down, by when they will have.
        timers: A heap of nodes by when to look whether they have been idle for long enough.

    Returns:
        The log.
    """
    arrived = done = FIRST
    while done < count:
        now = min(min(due(ends), jobs[arrived]["ready"]), min(due(changes), due(timers)))
        if now == np.inf:
            break
        log = room_for(site, log)
        while due(ends) <= now:
            give(site, nodes, timers, jobs, places, pop(ends), now)
            done += 1
        settle(site, nodes, changes, now, log)
        while jobs[arrived]["ready"] <= now:
            push(waiting, jobs[arrived]["rank"], arrived)
            arrived += 1
        while True:
            while waiting[0]["thing"] and find(site, nodes, jobs, places, waiting[1]["thing"]):
                job = pop(waiting)
                take(site, nodes, changes, jobs, places, job, now, log)
                push(ends, end_of(jobs, job, jobs[job]["start"]), job)
            # A node that goes off may leave enough power for the next job.
            if not switch_off(site, nodes, changes, timers, now, log):
                break
    return log
