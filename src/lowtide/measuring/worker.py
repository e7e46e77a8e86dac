"""Doing what may hang or fail during a measurement, without being held up by it.

A thread that hangs in the kernel, in a read of a broken driver or a write to a lost server, cannot
be ended. So whoever must not hang lets another thread do it, and goes on without that one if it
does not come back. What goes wrong is told once, however often it happens.
"""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from queue import Empty, SimpleQueue
from typing import TypeVar

T = TypeVar("T")
# A number that stands by itself: that of `gpu-0` is part of a name.
_NUMBER = re.compile(r"(?<=\s)[-+]?\d+(?:\.\d+)?(?:e[-+]?\d+)?(?=[\s,;]|$)", re.IGNORECASE)


class Hung(Exception):
    """What was to be done has not come back in time."""


@dataclass(slots=True)
class Worker:
    """A thread that does one thing after the other.

    It ends with the process, whatever it does then.

    >>> worker = Worker()
    >>> worker.do(lambda: 2 + 3, patience_s=5.0)
    5
    >>> worker.stop()
    """

    _queue: SimpleQueue[Callable[[], object] | None] = field(
        default_factory=SimpleQueue, init=False
    )
    _busy_since_s: float | None = field(default=None, init=False)
    _thread: threading.Thread | None = field(default=None, init=False)

    @property
    def busy_s(self) -> float:
        """How long it has been at what it does; 0 where it does nothing."""
        since_s = self._busy_since_s
        return 0.0 if since_s is None else time.monotonic() - since_s

    @property
    def waiting(self) -> int:
        """How many things wait to be done."""
        return self._queue.qsize()

    def post(self, action: Callable[[], object]) -> None:
        """Have something done, after all that was asked for before.

        Args:
            action: What; it raises nothing.
        """
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, daemon=True)
            self._thread.start()
        self._queue.put(action)

    def do(self, action: Callable[[], T], *, patience_s: float) -> T:
        """Have something done and return what it returns, or raise what it raises.

        Args:
            patience_s: How long it may take; `Hung` is raised where it, or what came before it,
                takes longer.
        """
        if self.busy_s > patience_s:
            raise Hung
        answer: SimpleQueue[tuple[T | None, Exception | None]] = SimpleQueue()

        gone: list[bool] = []

        def answered() -> None:
            if gone:
                return
            try:
                answer.put((action(), None))
            except Exception as error:  # noqa: BLE001 - it is raised where it was asked for
                answer.put((None, error))

        self.post(answered)
        try:
            result, error = answer.get(timeout=patience_s)
        except Empty:
            gone.append(True)
            raise Hung from None
        if error is not None:
            raise error
        return result  # type: ignore[return-value]

    def left(self) -> list[Callable[[], object]]:
        """Take back what was not begun, in its order."""
        found: list[Callable[[], object]] = []
        while True:
            try:
                action = self._queue.get_nowait()
            except Empty:
                return found
            if action is not None:
                found.append(action)

    def stop(self) -> None:
        """End once all is done, without waiting for that."""
        self._queue.put(None)

    def _work(self) -> None:
        while (action := self._queue.get()) is not None:
            self._busy_since_s = time.monotonic()
            action()
            self._busy_since_s = None


@dataclass(slots=True, kw_only=True)
class _Trouble:
    """One thing that went wrong."""

    first: str
    worst: float | None = None
    started: float | None = None
    count: int = 1
    told: str | None = None

    def words(self) -> str:
        if self.count == 1:
            return self.first
        worst = "" if self.worst == self.started else f", at worst {self.worst:g}"
        return f"{self.first} ({self.count} times{worst})"


@dataclass(slots=True)
class Troubles:
    """Everything that went wrong, in the order in which it first did.

    >>> troubles = Troubles()
    >>> for watts in (2e6, 3e6, 2.5e6):
    ...     troubles.add_value(f"meter nvml: gpu-0 read {watts:g} W, which a gpu cannot draw")
    >>> troubles.notes()
    ['meter nvml: gpu-0 read 2e+06 W, which a gpu cannot draw (3 times, at worst 3e+06)']
    """

    _found: dict[str, _Trouble] = field(default_factory=dict, init=False)

    def add(self, text: str, *, kind: str | None = None, value: float | None = None) -> None:
        """Keep what went wrong; the first of a kind is told in its own words, others are counted.

        Args:
            kind: What it shares with others; by default all its words.
        """
        known = self._found.get(kind or text)
        if known is None:
            self._found[kind or text] = _Trouble(first=text, worst=value, started=value)
            return
        known.count += 1
        if value is not None and (known.worst is None or abs(value) > abs(known.worst)):
            known.worst = value

    def add_value(self, text: str) -> None:
        """Keep a value that cannot be; texts that differ in their numbers are of one kind."""
        numbers = _NUMBER.findall(text)
        value = float(numbers[0]) if numbers else None
        self.add(text, kind=_NUMBER.sub("#", text), value=value)

    def notes(self) -> list[str]:
        """Return everything in words."""
        return [each.words() for each in self._found.values()]

    def news(self, *, counts: bool = False) -> list[tuple[str, str | None]]:
        """Return what was not told yet, each with the words that told less of the same before."""
        found = []
        for each in self._found.values():
            words = each.words()
            if each.told is None or (counts and words != each.told):
                found.append((words, each.told))
                each.told = words
        return found
