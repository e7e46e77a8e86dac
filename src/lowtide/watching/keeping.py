"""Keeping ticks beside the watching: a store that hangs holds nothing up.

Ticks wait in a short queue for a thread that gives them to the store. While the store is well, a
tick is kept before anything else is done with it. When it hangs, fills up or is restarted, ticks
wait, and the oldest give way when there are too many: what jobs use is counted on in the next one,
which also tells of those that ended in between. So no energy is lost with them, and how many they
were is said.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from types import TracebackType
from typing import Self

from lowtide.errors import LowtideError
from lowtide.monitor.tick import Tick
from lowtide.store import Store
from lowtide.units import format_count
from lowtide.watching.joining import joined

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
        self._said: set[str] = set()
        self._thread = threading.Thread(target=self._work, name="store", daemon=True)

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            stack.callback(self._store.close)
            stack.enter_context(self._store.claim(self._host))
            self._held = stack.pop_all()
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
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
        if problem not in self._said:
            self._said.add(problem)
            self._say(problem)


def _words(error: Exception) -> str:
    if isinstance(error, LowtideError | OSError):
        return str(error)
    return f"{type(error).__name__}: {error}; watching goes on, please report it"
