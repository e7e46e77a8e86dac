"""Doing what may hang for ever, a read of a broken driver or a write to a lost server, elsewhere.

A thread that hangs in the kernel cannot be ended. So whoever must not hang lets another thread do
it, and goes on without that one if it does not come back.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from queue import Empty, SimpleQueue
from typing import TypeVar

T = TypeVar("T")


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
