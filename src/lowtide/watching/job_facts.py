"""Asking Slurm about its jobs beside the ticks, so that none of them waits for it."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field

from lowtide.monitor.facts import JobFacts
from lowtide.slurm.client import SlurmClient


@dataclass(slots=True, kw_only=True)
class FactsSource:
    """Asks in a thread of its own, and has the answers ready.

    Attributes:
        client: Whom it asks.
        every_s: How often.
    """

    client: SlurmClient
    every_s: float = 30.0
    _found: list[JobFacts] = field(default_factory=list, init=False)
    _problems: list[str] = field(default_factory=list, init=False)
    _lock: threading.Lock = field(default_factory=threading.Lock, init=False)
    _stop: threading.Event = field(default_factory=threading.Event, init=False)
    _thread: threading.Thread | None = field(default=None, init=False)

    def open(self) -> None:
        """Begin to ask."""
        self._thread = threading.Thread(target=self._ask_on, name="slurm facts", daemon=True)
        self._thread.start()

    def take(self) -> tuple[list[JobFacts], tuple[str, ...]]:
        """Return what was found since this was last called, and what went wrong."""
        with self._lock:
            found, self._found = self._found, []
            problems, self._problems = tuple(self._problems), []
        return found, problems

    def close(self) -> None:
        """Stop asking; an answer that is still awaited is not waited for."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join(timeout=1.0)

    def _ask_on(self) -> None:
        since = time.time() - 3600.0
        while True:
            asked = time.time()
            found, problems = self.client.facts(since=since)
            with self._lock:
                # A later answer about a job replaces an earlier one when it is kept.
                self._found += found
                self._problems += problems
            # What ended while the last question was on its way is asked for again.
            since = asked - 60.0
            if self._stop.wait(self.every_s):
                return
