"""The queue in front of reserved machines, event by event."""

from __future__ import annotations

import heapq

import numpy as np
import numpy.typing as npt
from numba import njit

FloatArray = npt.NDArray[np.float64]
BoolArray = npt.NDArray[np.bool_]


@njit(cache=True, nogil=True, error_model="numpy")
def pass_queue(
    arrival_s: FloatArray,
    due_s: FloatArray,
    length_s: FloatArray,
    cpus: FloatArray,
    eager: BoolArray,
    spot: BoolArray,
    reserved: float,
    lag_s: float,
) -> tuple[FloatArray, BoolArray]:
    """Return when each stretch starts, and whether it runs on reserved machines.

    A stretch starts when it is due, wherever there is room; an eager one starts earlier, as soon
    as reserved machines have room for all of it. First come, first served.

    Args:
        arrival_s: When each stretch joins the queue; in ascending order.
        due_s: When each starts at the latest.
        length_s: How long each runs.
        cpus: How many CPUs each holds.
        eager: Which of them may start before they are due.
        spot: Which of them never run on reserved machines.
        reserved: How many CPUs are reserved.
        lag_s: How long after its end a stretch still holds its machines.
    """
    count = arrival_s.size
    start_s = np.full(count, np.nan)
    held = np.zeros(count, dtype=np.bool_)
    waiting = np.empty(count, dtype=np.int64)
    due = [(np.inf, 0)]
    ends = [(np.inf, 0)]
    arrived = waits = left = 0
    free = reserved
    while arrived < count or left:
        # Nothing can change before the next arrival, due start or release.
        now = min(due[0][0], ends[0][0] if left else np.inf)
        if arrived < count:
            now = min(now, arrival_s[arrived])
        freed = False
        while ends[0][0] <= now:
            free += cpus[heapq.heappop(ends)[1]]
            freed = True
        first = 0 if freed else waits
        while arrived < count and arrival_s[arrived] <= now:
            waiting[waits] = arrived
            heapq.heappush(due, (due_s[arrived], arrived))
            waits += 1
            arrived += 1
            left += 1
        starts_due = due[0][0] <= now
        # Who did not fit before fits now only if something was freed meanwhile, so that all are
        # looked at then, and else only those that came or are due.
        if starts_due:
            first = 0
        kept = first
        for k in range(first, waits):
            i = waiting[k]
            fits = not spot[i] and cpus[i] <= free
            if now < due_s[i] and not (eager[i] and fits):
                waiting[kept] = i
                kept += 1
                continue
            start_s[i] = now
            left -= 1
            if fits:
                held[i] = True
                free -= cpus[i]
                heapq.heappush(ends, (now + length_s[i] + lag_s, i))
        waits = kept
        # Stretches that started before they were due are still in the heap.
        while due[0][0] < np.inf and not np.isnan(start_s[due[0][1]]):
            heapq.heappop(due)
    return start_s, held
