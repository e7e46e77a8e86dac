"""The last plan, to begin with when the queue is planned again: most of it is still good."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from lowtide.market.instance import Instance
from lowtide.market.placing import Board
from lowtide.signal import FloatArray
from lowtide.workload import IntArray

# In slots: what lies farther off a slot's edge than this is not where it was planned.
_OFF = 1e-3


class LastPlan:
    """When each part of each job was to run, as the last plan had it.

    A job has fewer parts the more of it is done; those that are left are its last ones.
    """

    def __init__(self, board: Board, names: IntArray) -> None:
        """Take note of a plan.

        Args:
            names: What each job is known by from one plan to the next.
        """
        instance = board.instance
        rows, parts = instance.queue.jobs, instance.queue.parts
        some = np.flatnonzero(board.placed)
        some = some[np.argsort(names[some], kind="stable")]
        self._names = names[some]
        sizes = (rows["end"] - rows["part"])[some]
        self._ends = np.cumsum(sizes)
        at = _ranges(rows["part"][some], sizes)
        first = np.repeat(rows["first"][some], sizes)
        slots = first + parts["at"][at] + board.delay[at]
        self._begins: FloatArray = instance.origin + slots * instance.step_s
        self._sizes = sizes

    def delays(self, instance: Instance, names: IntArray) -> tuple[IntArray, npt.NDArray[np.bool_]]:
        """Return the delay of every part as it was planned, and of which jobs that still holds."""
        delay, holds = instance.new_delay(), np.zeros(len(instance), dtype=np.bool_)
        rows, parts = instance.queue.jobs, instance.queue.parts
        place = np.minimum(np.searchsorted(self._names, names), max(self._names.size - 1, 0))
        if not self._names.size:
            return delay, holds
        sizes = rows["end"] - rows["part"]
        # A startup that is under way is a part that was none.
        known = (self._names[place] == names) & (rows["delays"] > 0)
        known &= rows["running"] | (sizes <= self._sizes[place])
        some = np.flatnonzero(known)
        if not some.size:
            return delay, holds
        sizes, place = sizes[some], place[some]
        mine = _ranges(rows["part"][some], sizes)
        job = np.repeat(np.arange(some.size), sizes)
        back = np.repeat(np.cumsum(sizes), sizes) - np.arange(job.size)
        was = back <= self._sizes[place][job]
        begins = np.full(job.size, -np.inf)
        begins[was] = self._begins[(self._ends[place][job] - back)[was]]
        own = rows[some][job]
        slots = (begins - instance.origin) / instance.step_s - own["first"] - parts["at"][mine]
        slots[own["running"] & (slots < 0) & (begins <= instance.origin + 1e-6)] = 0.0
        whole = np.round(slots)
        good = (np.abs(slots - whole) < _OFF) & (whole >= 0) & (whole < own["delays"])
        whole[~good] = 0.0
        before = np.append(0.0, whole[:-1])
        inner = np.append(False, job[1:] == job[:-1])
        before[~inner] = 0.0
        rises = whole > before
        # The first part of one that does not run may start whenever it likes.
        free = ~inner & ~own["running"]
        good &= (whole >= before) & (~rises | free | parts["stop"][mine])
        kept = np.logical_and.reduceat(good, np.cumsum(sizes) - sizes)
        holds[some] = kept
        delay[mine[kept[job]]] = whole[kept[job]].astype(np.int64)
        holds[instance.links.after] = False
        return delay, holds


def _ranges(first: IntArray, sizes: IntArray) -> IntArray:
    """Return so many numbers from each of some on."""
    ends = np.cumsum(sizes)
    upto = int(ends[-1]) if ends.size else 0
    numbers: IntArray = np.arange(upto) + np.repeat(first - (ends - sizes), sizes)
    return numbers
