"""Watching without end: ticks in time, to all who want them, whatever goes wrong meanwhile."""

from __future__ import annotations

import math
import os
import select
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from lowtide.errors import LowtideError
from lowtide.monitor.tick import Tick
from lowtide.watching.watcher import Watcher

# The first tick comes after this long: long enough for the kernel's clock of hundredths of a
# second to tell something, short enough to wait for.
FIRST_S = 1.0
# When groups come and go in numbers, they are looked at this often.
_LOOK_S = 0.05


class Events(Protocol):
    """Whatever is told when jobs come and go."""

    @property
    def events(self) -> int:
        """A file descriptor that can be read when something came or went; -1 if there is none."""
        ...

    def look(self) -> float | None:
        """Take note of it; return after how many seconds to look again, None for not at all."""
        ...


@dataclass(slots=True, kw_only=True)
class Service:
    """Takes ticks until it is told to stop.

    Attributes:
        watcher: What takes them.
        events: What is told of jobs that come and go between two ticks; None where nothing is.
        sinks: Who gets every tick. One that fails is told about once, and gets the next again.
        interval_s: Time between two ticks.
        before: Called before each tick with the time: to renew a signal, for example.
        say: Told what goes wrong, each thing once.
    """

    watcher: Watcher
    events: Events | None = None
    sinks: Sequence[Callable[[Tick], None]] = ()
    interval_s: float = 10.0
    before: Sequence[Callable[[float], None]] = ()
    say: Callable[[str], None] = print
    _said: set[str] = field(default_factory=set, init=False)
    _ticked: float = field(default=-math.inf, init=False)
    _ends: tuple[int, int] = field(default_factory=os.pipe, init=False)
    _stopped: bool = field(default=False, init=False)

    def run(self, *, ticks: int | None = None) -> None:
        """Take ticks.

        Args:
            ticks: How many; None until `stop` is called.
        """
        endless = ticks is None
        self._tick(endless=endless)
        taken = 0
        due = time.monotonic() + min(FIRST_S, self.interval_s)
        while self._wait(due):
            taken += self._tick(endless=endless)
            if ticks is not None and taken >= ticks:
                return
            # A node that slept, or that was too busy, does not catch up on what it missed.
            due = max(due + self.interval_s, time.monotonic() + self.interval_s / 10)
        # What was used since the last tick belongs to it, unless that was a moment ago.
        if time.monotonic() - self._ticked >= min(FIRST_S, self.interval_s) / 2:
            self._tick(endless=endless)

    def stop(self) -> None:
        """End after the tick that is being taken. May be called by a signal's handler."""
        self._stopped = True
        os.write(self._ends[1], b".")

    def close(self) -> None:
        """Let go of what was opened."""
        for end in self._ends:
            os.close(end)

    def tell(self, problems: Sequence[str]) -> None:
        """Say what went wrong, unless it was said before."""
        for problem in problems:
            if problem not in self._said:
                self._said.add(problem)
                self.say(problem)

    def _tick(self, *, endless: bool) -> bool:
        """Take a tick; what nobody foresaw ends one that is waited for, but no endless watch."""
        tick = None
        with self._going_on(endless=endless):
            now = time.time()
            for prepare in self.before:
                prepare(now)
            tick = self.watcher.tick()
        self._ticked = time.monotonic()
        if tick is None:
            return False
        self.tell(tick.problems)
        for sink in self.sinks:
            with self._going_on(endless=endless):
                try:
                    sink(tick)
                except BrokenPipeError:
                    # Whoever read what is shown has gone: that is the end, not a problem.
                    raise
                except (LowtideError, OSError) as error:
                    self.tell((str(error),))
        return True

    @contextmanager
    def _going_on(self, *, endless: bool) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            if not endless or isinstance(error, BrokenPipeError):
                raise
            where = traceback.extract_tb(error.__traceback__)[-1]
            name = f"{Path(where.filename).name}:{where.lineno}"
            self.tell(
                (
                    f"a tick failed, {type(error).__name__} in {name}: {error}; watching goes on, "
                    "please report it",
                )
            )

    def _wait(self, due: float) -> bool:
        """Wait for the next tick, and look whenever jobs come or go; False if it is over."""
        events = -1 if self.events is None else self.events.events
        waiting = select.poll()
        for end in (self._ends[0], events):
            if end >= 0:
                waiting.register(end, select.POLLIN)
        again = self._look()
        while not self._stopped:
            now = time.monotonic()
            if now >= due:
                return True
            ready = waiting.poll(1000 * max(min(due, again) - now, 0.0))
            if any(end == events for end, _ in ready) or time.monotonic() >= again:
                again = self._look()
                time.sleep(min(_LOOK_S, max(due - time.monotonic(), 0.0)))
        return False

    def _look(self) -> float:
        """Look at what came and went; return when to look again."""
        wait_s = None if self.events is None else self.events.look()
        return math.inf if wait_s is None else time.monotonic() + wait_s
