"""Looking for meters side by side: one that hangs keeps nobody waiting, and may still come."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Container, Sequence
from dataclasses import dataclass, field

from lowtide.errors import LowtideError
from lowtide.meters.meter import Found, Meter, Roots
from lowtide.meters.source import Source, kinds_here, made

# What is there and cannot be read is told; what is not there is nobody's problem.
_TOLD = ("no permission", "no answer")
# Tools that tell power are programs of their own, and some take half a second of a core: what
# watches for months asks them less often than what measures a run.
_PAUSE_S = 2.0


@dataclass(slots=True, kw_only=True)
class MeterSearch:
    """All meters that measure something here, each looked for by itself.

    Attributes:
        roots: Where the kernel's files are.
        within_s: How long all of them together are waited for. One that comes later is taken then.
    """

    roots: Roots = field(default_factory=Roots)
    within_s: float = 2.0
    _came: queue.SimpleQueue[tuple[str, Source | None, str]] = field(
        default_factory=queue.SimpleQueue, init=False
    )
    _missing: set[str] = field(default_factory=set, init=False)
    _over: threading.Event = field(default_factory=threading.Event, init=False)

    def begin(self) -> None:
        """Begin to look."""
        for kind in kinds_here(self.roots):
            self._missing.add(kind.name)
            threading.Thread(target=self._look, args=(kind,), daemon=True).start()

    def first(self) -> tuple[list[Source], list[str]]:
        """Wait for what answers in time; return the meters, open, and what is wrong, in words."""
        sources: list[Source] = []
        problems: list[str] = []
        until = time.monotonic() + self.within_s
        while self._missing:
            try:
                came = self._came.get(timeout=max(until - time.monotonic(), 0.0))
            except queue.Empty:
                break
            self._sort(came, sources, problems)
        problems += [
            f"meter {name} has not answered within {self.within_s:g} s: left out until it does"
            for name in sorted(self._missing)
        ]
        return sorted(sources, key=lambda source: source.meter.name), problems

    def late(self) -> tuple[list[Source], list[str]]:
        """Return the meters that have answered since, and what is wrong; wait for none."""
        sources: list[Source] = []
        problems: list[str] = []
        while self._missing and not self._came.empty():
            self._sort(self._came.get(), sources, problems)
        return sources, problems

    def close(self) -> None:
        """Take no more of them."""
        self._over.set()
        for source in self.late()[0]:
            source.end()

    def _sort(
        self,
        came: tuple[str, Source | None, str],
        sources: list[Source],
        problems: list[str],
    ) -> None:
        name, source, problem = came
        self._missing.discard(name)
        if source is not None:
            sources.append(source)
        if problem:
            problems.append(problem)

    def _look(self, kind: type[Meter]) -> None:
        source, problem = None, ""
        try:
            found = kind.find(self.roots)
            problem = _told(found)
            if found.state == "works":
                meter = made(kind, self.roots)
                source = Source(meter, meter.open(), pause_s=_PAUSE_S)
                source.begin(first=meter.slow)
        except LowtideError as error:
            problem = f"meter {kind.name}: {error}"
        except Exception as error:  # noqa: BLE001 - a stranger's meter may fail in any way
            problem = f"meter {kind.name}: {type(error).__name__}: {error}"
        if source is not None and self._over.is_set():
            source.end()
            return
        self._came.put((kind.name, source, problem))


def _told(found: Found) -> str:
    """Return what to say of a meter that is there and cannot be read, with the cure."""
    if found.state not in _TOLD:
        return ""
    why = "may not be read" if found.state == "no permission" else "does not answer"
    cure = f": {found.cure}" if found.cure else ""
    return f"meter {found.meter} {why} ({found.what}){cure}"


def covers_node(sources: Sequence[Source], silent: Container[tuple[str, str]] = ()) -> bool:
    """Return whether meters see more of a node than its cards: all of it, or its sockets."""
    domains = {
        channel.domain
        for source in sources
        if source.meter.measured
        for channel in source.channels
        if (source.meter.name, channel.name) not in silent
    }
    return not domains.isdisjoint(("node", "psys", "package"))
