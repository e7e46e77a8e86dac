"""Jobs that wait for others: who comes after whom, and what that leaves of their windows."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from lowtide.errors import InvalidJob
from lowtide.job import TIME_TOLERANCE_S
from lowtide.signal import FloatArray
from lowtide.units import format_count, format_hours, format_time
from lowtide.workload import IntArray, Workload

# So many names of a circle are told.
_SHOWN = 5


class Links(NamedTuple):
    """Which jobs wait for which, row by row of a workload.

    Attributes:
        before: Who comes first.
        after: Who waits for it.
        gap_s: How long after the end of the one the other may start at the soonest.
        level: Of every job how many come one after the other before it.
    """

    before: IntArray
    after: IntArray
    gap_s: FloatArray
    level: IntArray

    def deepest(self) -> int:
        """Return how many jobs wait for each other one after the other, at most, less one."""
        return int(self.level.max()) if self.level.size else 0


def links_of(jobs: Workload) -> Links:
    """Return who waits for whom; refuse jobs that wait for each other in a circle.

    Jobs that are not in the workload count as done.
    """
    waiting = np.flatnonzero([bool(each) for each in jobs.after]) if jobs.has_links else _NONE
    if not waiting.size:
        return Links(_NONE, _NONE, np.zeros(0), np.zeros(len(jobs), dtype=np.int64))
    wanted = {str(name) for row in waiting.tolist() for name in jobs.after[row]}
    places: dict[str, int] = {}
    for row, name in enumerate(map(str, jobs.id.tolist())):
        if name in wanted and places.setdefault(name, row) != row:
            raise InvalidJob(
                f"rows {places[name] + 1} and {row + 1} are both called {name}, and others wait "
                "for it: give each an id of its own"
            )
    pairs = [
        (places[str(name)], row)
        for row in waiting.tolist()
        for name in jobs.after[row]
        if str(name) in places
    ]
    table = np.array(pairs, dtype=np.int64).reshape(-1, 2)
    before, after = table.T.copy()
    return Links(before, after, jobs.think_s[after], _levels(jobs, before, after))


_NONE: IntArray = np.empty(0, dtype=np.int64)


def _levels(jobs: Workload, before: IntArray, after: IntArray) -> IntArray:
    """Return how many jobs come before each, one after the other."""
    level = np.zeros(len(jobs), dtype=np.int64)
    for _ in range(len(jobs)):
        least = level.copy()
        np.maximum.at(least, after, level[before] + 1)
        if np.array_equal(least, level):
            return level
        level = least
        if level.max() >= len(jobs):
            break
    # Whoever still climbs is in a circle, or waits for one: going back leads round it.
    row, seen = int(np.argmax(level)), list[int]()
    came = {int(b): int(a) for a, b in zip(before, after, strict=True) if level[a] >= level[b] - 1}
    while row not in seen:
        seen.append(row)
        row = came[row]
    circle = [str(jobs.id[each]) for each in seen[seen.index(row) :]][::-1]
    names = ", ".join(circle[:_SHOWN]) + ", ..." * (len(circle) > _SHOWN)
    raise InvalidJob(
        f"{format_count(len(circle), 'job')} wait for each other in a circle ({names}): none could "
        "ever start; take one of them out of `after`"
    )


def windows(
    jobs: Workload, links: Links, run_s: FloatArray | None = None
) -> tuple[FloatArray, FloatArray]:
    """Return from when each job can run and by when it must be done, for those it is linked to.

    Args:
        run_s: How long each takes at the least; by default how long it does here.
    """
    arrival, deadline = jobs.arrival.copy(), jobs.deadline.copy()
    lasts_s = jobs.run_s if run_s is None else run_s
    for level in range(1, links.deepest() + 1):
        some = links.level[links.after] == level
        a, b, gap_s = links.before[some], links.after[some], links.gap_s[some]
        np.maximum.at(arrival, b, arrival[a] + lasts_s[a] + gap_s)
    for level in range(links.deepest() - 1, -1, -1):
        some = links.level[links.before] == level
        a, b, gap_s = links.before[some], links.after[some], links.gap_s[some]
        np.minimum.at(deadline, a, deadline[b] - lasts_s[b] - gap_s)
    return arrival, deadline


def require_time(jobs: Workload, links: Links, run_s: FloatArray | None = None) -> None:
    """Refuse jobs that cannot be in time because of whom they wait for, and say by how much."""
    arrival, _ = windows(jobs, links, run_s)
    lasts_s = jobs.run_s if run_s is None else run_s
    short_s = arrival + lasts_s - jobs.deadline
    late = short_s > TIME_TOLERANCE_S
    if late.any():
        row, more = int(np.argmax(short_s)), int(np.count_nonzero(late)) - 1
        names = ", ".join(str(each) for each in jobs.after[row] or ())
        others = f"; so do {format_count(more, 'other job')}" if more else ""
        raise InvalidJob(
            f"job {jobs.id[row]} (row {row + 1}) waits for {names} and can start "
            f"{format_time(float(arrival[row]))} at the soonest, so that it misses its deadline by "
            f"{format_hours(float(short_s[row]))}{others}: move the deadline, or take out what it "
            "waits for"
        )


def in_order(key: npt.ArrayLike, links: Links) -> IntArray:
    """Return jobs by a key, the lowest first, but nobody before one that it waits for."""
    least = np.asarray(key, dtype=np.float64).copy()
    for level in range(1, links.deepest() + 1):
        some = links.level[links.after] == level
        np.maximum.at(least, links.after[some], least[links.before[some]])
    return np.lexsort((links.level, least))


def broken(start: FloatArray, end: FloatArray, links: Links) -> npt.NDArray[np.bool_]:
    """Return which links are broken by when jobs start and end."""
    early: npt.NDArray[np.bool_] = (
        start[links.after] < end[links.before] + links.gap_s - 2 * TIME_TOLERANCE_S
    )
    return early
