"""Keeping ticks beside the watching: a store that hangs holds nothing up.

Ticks wait in a short queue for a thread that gives them to the store. While the store is well, a
tick is kept before anything else is done with it. When it hangs, fills up or is restarted, ticks
wait, and the oldest give way when there are too many: what jobs use is counted on in the next one,
which also tells of those that ended in between. So no energy is lost with them, and how many they
were is said.
"""

from __future__ import annotations

import json
import math
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, fields, replace
from functools import partial
from typing import Any, Self

import numpy as np

from lowtide.errors import LowtideError, Once
from lowtide.monitor.snapshot import FloatArray, Unit
from lowtide.monitor.tick import Shares, Tick
from lowtide.store import JobRecord, Store
from lowtide.units import format_count

# How many ticks wait for a store: one of a thousand jobs takes a fifth of a megabyte.
MOST_WAITING = 30
# How long a tick waits to be kept before others get it all the same.
_PATIENCE_S = 0.5
# How long the end waits for what is not kept yet.
_LAST_S = 5.0


class Keeper:
    """Gives ticks to a store in a thread of its own.

    It claims the host, so that no other watch counts the same twice, and closes the store.

    Args:
        after: What else is done in that thread with each tick that was kept.
    """

    def __init__(
        self,
        store: Store,
        *,
        host: str,
        say: Callable[[str], None],
        after: Sequence[Callable[[Tick], None]] = (),
        at_last: Sequence[Callable[[], None]] = (),
        most: int = MOST_WAITING,
        last_s: float = _LAST_S,
    ) -> None:
        self._store = store
        self._host = host
        self._say = say
        self._after = after
        self._at_last = at_last
        self._most = most
        self._last_s = last_s
        self._held = ExitStack()
        self._changed = threading.Condition()
        self._waiting: deque[Tick] = deque()
        self._now: Tick | None = None
        self._news = self._closing = self._failing = self._elsewhere = False
        self._given = self._settled = self._dropped = 0
        self._said = Once()
        self._thread = threading.Thread(target=self._work, name="store", daemon=True)

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            stack.callback(self._store.close)
            stack.enter_context(self._store.claim(self._host))
            self._held = stack.pop_all()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        self._thread.join(self._last_s)
        with self._changed:
            lost = self._dropped + len(self._waiting) + (self._now is not None)
        if lost:
            hung = f" in {self._last_s:g} s" if self._thread.is_alive() else ""
            self._say(
                f"{format_count(lost, 'tick')} could not be kept{hung}, what was used since the "
                f"last one in {self._store.name} is lost"
            )

    def take(self, tick: Tick) -> None:
        """Have a tick kept."""
        with self._changed:
            busy = self._now is not None or self._elsewhere
            well = not (self._waiting or busy or self._failing)
            self._waiting.append(tick)
            self._given += 1
            mine = self._given
            if len(self._waiting) > self._most:
                self._drop_oldest()
            self._news = True
            self._changed.notify_all()
            if well:
                self._changed.wait_for(
                    lambda: self._settled >= mine or self._failing, timeout=_PATIENCE_S
                )

    def _drop_oldest(self) -> None:
        oldest = self._waiting.popleft()
        self._waiting[0] = joined(oldest, self._waiting[0])
        self._settled += 1
        self._dropped += 1
        self._tell(
            f"the store {self._store.name} does not keep up, and {self._most} ticks wait for it: "
            "older ones are left out; what jobs use is counted on in the next that is kept"
        )

    def _work(self) -> None:
        closing = False
        while not closing:
            with self._changed:
                self._changed.wait_for(lambda: self._news or self._closing)
                self._news = False
                closing = self._closing
            self._keep_waiting()
        for do in (*self._at_last, self._held.close):
            self._try(do)

    def _keep_waiting(self) -> None:
        """Keep all that wait, up to the first that the store does not take now."""
        while (tick := self._begin()) is not None:
            try:
                self._store.append(tick)
            except OSError as error:
                # The store's own troubles pass: the tick waits for that.
                self._tell(str(error))
                self._settle(tick, kept=False)
                return
            except Exception as error:  # noqa: BLE001 - one bad tick shall not end all keeping
                self._tell(_words(error))
            self._settle(tick, kept=True)
            self._do_more(tick)

    def _begin(self) -> Tick | None:
        with self._changed:
            self._now = self._waiting.popleft() if self._waiting else None
            return self._now

    def _settle(self, tick: Tick, *, kept: bool) -> None:
        with self._changed:
            self._now = None
            self._failing = not kept
            if kept:
                self._settled += 1
            else:
                self._waiting.appendleft(tick)
                if len(self._waiting) > self._most:
                    self._drop_oldest()
            dropped = self._dropped if kept else 0
            self._dropped -= dropped
            self._changed.notify_all()
        if dropped:
            self._say(
                f"the store {self._store.name} answers again: {format_count(dropped, 'tick')} were "
                "left out meanwhile"
            )

    def _do_more(self, tick: Tick) -> None:
        self._elsewhere = True
        for do in self._after:
            self._try(partial(do, tick))
        self._elsewhere = False

    def _try(self, do: Callable[[], None]) -> None:
        try:
            do()
        except Exception as error:  # noqa: BLE001 - whatever is done besides, keeping goes on
            self._tell(_words(error))

    def _tell(self, problem: str) -> None:
        if self._said.is_new(problem):
            self._say(problem)


def _words(error: Exception) -> str:
    if isinstance(error, LowtideError | OSError):
        return str(error)
    return f"{type(error).__name__}: {error}; watching goes on, please report it"


# Two ticks as one: the later, and what ended in the earlier, which no later one tells of.

# What a tick may leave out for all its units, and what is so then.
_LEFT_OUT = ("watched_cpu_s", "ended")


def joined(earlier: Tick, later: Tick) -> Tick:
    """Return a tick that stands for two that follow each other.

    Everything that is counted goes on from tick to tick, so the later one tells of both, but for
    units that it has no more.
    """
    here = {unit.key for unit in later.units}
    left = [place for place, unit in enumerate(earlier.units) if unit.key not in here]
    skipped_s = earlier.skipped_s + later.skipped_s
    if not left:
        return replace(later, skipped_s=skipped_s)
    count = len(later.units)
    columns = _columns(earlier, later, left)
    columns |= {name: _put(name, earlier, later, left) for name in _LEFT_OUT}
    lacking = {count + at for at, place in enumerate(left) if place in earlier.shares.lacking}
    shares = replace(
        later.shares,
        **_columns(earlier.shares, later.shares, left),
        lacking=later.shares.lacking | lacking,
    )
    return replace(
        later,
        units=(*later.units, *(earlier.units[place] for place in left)),
        skipped_s=skipped_s,
        shares=shares,
        **columns,
    )


def _columns(earlier: Tick | Shares, later: Tick | Shares, left: list[int]) -> dict[str, Any]:
    """Return all columns that both have, with the rows that are left of the earlier one."""
    return {
        field.name: np.concatenate([column, getattr(earlier, field.name)[left]])
        for field in fields(later)
        if field.name not in _LEFT_OUT
        and isinstance(column := getattr(later, field.name), np.ndarray)
    }


def _put(name: str, earlier: Tick, later: Tick, left: list[int]) -> FloatArray | None:
    """Return a column that either may leave out."""
    if name == "ended":
        # Who is not there any more was gone by the later one, whether or not anybody saw it go.
        gone = _otherwise(name, earlier)[left]
        gone = np.where(np.isnan(gone), earlier.time, gone)
        return np.concatenate([_otherwise(name, later), gone])
    if getattr(earlier, name) is None and getattr(later, name) is None:
        return None
    return np.concatenate([_otherwise(name, later), _otherwise(name, earlier)[left]])


def _otherwise(name: str, tick: Tick) -> FloatArray:
    """Return a column, or what is so where it is left out."""
    column: FloatArray | None = getattr(tick, name)
    if column is not None:
        return column
    return tick.cpu_s if name == "watched_cpu_s" else np.full(len(tick.units), np.nan)


# Jobs that have ended: their phases are found while all that they drew is still known.
#
# Later only an average for each minute is left, then one for each hour. To find phases takes up to
# a tenth of a second, so it is done now and then, one job at a time.

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
        mine = [
            each
            for each in found
            if each.source == unit.source
            and (not unit.cluster or each.cluster in ("", unit.cluster))
        ]
        # A number that is used again is the younger one's.
        return max(mine, key=lambda each: each.last_seen, default=None)
