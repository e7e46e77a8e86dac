"""Jobs that have ended: their phases are found while all that they drew is still known.

Later only an average for each minute is left, then one for each hour. To find phases takes up to a
tenth of a second, so it is done now and then, one job at a time.
"""

from __future__ import annotations

import json
import math
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from lowtide.errors import LowtideError
from lowtide.monitor.snapshot import Unit
from lowtide.monitor.tick import Tick
from lowtide.store import JobRecord, Store

# A job that was not seen for this long is over.
_GONE_S = 60.0
# Jobs of fewer ticks than this show no phases worth keeping.
_LEAST_TICKS = 12
# How many wait for it; `lowtide show` looks at those that are left out by itself.
_MOST_WAITING = 1000
# The share of a CPU that it may take.
_SHARE = 0.002


@dataclass(slots=True, kw_only=True)
class Endings:
    """Finds the phases of jobs that have ended, and keeps them.

    Attributes:
        store: Where jobs are kept.
        gone_s: How long a job is not seen before it is over.
        share: The share of a CPU that this may take.
        clock: Says how much time has passed.
    """

    store: Store
    gone_s: float = _GONE_S
    share: float = _SHARE
    clock: Callable[[], float] = time.monotonic
    _units: tuple[Unit, ...] = field(default=(), init=False)
    _gone: dict[str, tuple[Unit, float]] = field(default_factory=dict, init=False)
    _over: deque[Unit] = field(default_factory=lambda: deque(maxlen=_MOST_WAITING), init=False)
    _due: float = field(default=-math.inf, init=False)

    def take(self, tick: Tick) -> None:
        """Look which jobs are over, and find the phases of one of them if that is due.

        Args:
            tick: What happened; the store has it.
        """
        self._see(tick)
        if not self._over or self.clock() < self._due:
            return
        spent_s = -time.thread_time()
        try:
            self._find(tick.host, self._over.popleft())
        finally:
            spent_s += time.thread_time()
            self._due = self.clock() + spent_s / self.share

    def _see(self, tick: Tick) -> None:
        if tick.units != self._units:
            here = {unit.key for unit in tick.units}
            for key in self._gone.keys() & here:
                # It did nothing for a while, and was left out.
                del self._gone[key]
            left = [unit for unit in self._units if unit.key not in here]
            self._gone |= {unit.key: (unit, tick.since) for unit in left}
            self._units = tick.units
        for key, (unit, last) in list(self._gone.items()):
            if tick.time - last >= self.gone_s:
                del self._gone[key]
                if last - unit.started >= _LEAST_TICKS * (tick.time - tick.since):
                    self._over.append(unit)

    def _find(self, host: str, unit: Unit) -> None:
        # What finds phases takes memory, and many nodes have no job that ends.
        from lowtide.hindsight.phases import phases_document, phases_of

        record = self._record(host, unit)
        if record is None or record.looks < _LEAST_TICKS:
            return
        series = self.store.series(record)
        try:
            learned = phases_of(record, series)
        except LowtideError:
            # Where nobody watched in between there are none, and `lowtide show` says why.
            return
        self.store.put_phases(record, json.dumps(phases_document(learned)))

    def _record(self, host: str, unit: Unit) -> JobRecord | None:
        found = self.store.jobs(ids=[unit.job_id], hosts=[host])
        mine = [each for each in found if each.source == unit.source]
        # A number that is used again is the younger one's.
        return max(mine, key=lambda each: each.last_seen, default=None)
