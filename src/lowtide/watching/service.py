"""Watching without end: how a watch is put together, and ticks in time to all who want them."""

from __future__ import annotations

import math
import os
import platform
import select
import time
import traceback
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Protocol

from lowtide.errors import LowtideError, MeterProblem, MissingExtra, Once
from lowtide.meters import Roots
from lowtide.meters.amd import AmdGpus
from lowtide.meters.estimate import Estimate
from lowtide.meters.nvml import NvmlGpus
from lowtide.meters.source import MeterSearch, choose_meters
from lowtide.monitor.gpus import Card, GpuSource, name_unread
from lowtide.monitor.reader import NodeReader
from lowtide.monitor.tick import Tick
from lowtide.watching.emissions import Emissions
from lowtide.watching.power import PowerReader
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
    _said: Once = field(default_factory=Once, init=False)
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
            if self._said.is_new(problem):
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


# So long the first word of a tool that tells of GPUs is waited for.
_FIRST_S = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Watch:
    """A node that is being watched.

    Attributes:
        watcher: Takes the ticks.
        reader: Reads the node.
        power: Reads the meters.
    """

    watcher: Watcher
    reader: NodeReader
    power: PowerReader


@contextmanager
def open_watch(
    *,
    meters: Sequence[str] = (),
    roots: Roots | None = None,
    cgroupfs: Path | None = None,
    emissions: Emissions | None = None,
    rules: str = "conserving",
    idle_w: float | None = None,
    host: str | None = None,
    nodes: Collection[str] = (),
) -> Iterator[Watch]:
    """Open everything that watching this node takes.

    Args:
        meters: Which meters to read; all that work here by default, and an estimate of what they
            do not see.
        roots: Where the kernel's files are. Of a recorded tree only what it holds is read, and this
            machine's drivers and tools where `meters` names them.
        cgroupfs: Where the control groups are; below /sys by default.
        idle_w: What the node draws when nothing runs; None to learn it.
        host: What the node is called; its own name by default.
        nodes: What Slurm calls it, or nodes that are on this machine.
    """
    roots = roots or Roots()
    search = None
    if not meters:
        search = MeterSearch(roots=roots)
        search.begin()
    gpus, unread = find_gpus(meters, roots)
    power = PowerReader(
        meters=choose_meters(meters, roots) if meters else (),
        search=search,
        estimate=None if meters else Estimate(roots=roots),
    )
    try:
        power.open()
        if isinstance(gpus, AmdGpus):
            gpus.wait(_FIRST_S)
        with NodeReader(
            procfs=roots.procfs,
            sysfs=roots.sysfs,
            cgroupfs=cgroupfs or roots.sysfs / "fs" / "cgroup",
            gpus=gpus,
            nodes=nodes or (host or platform.node(),),
        ) as reader:
            cards = [card for card in reader.cards or () if card.maker in unread]
            for card, told in name_unread(cards).items():
                reader.problems.name(told, f"{told}: {cure_of(card, unread[card.maker])}")
            watcher = Watcher(
                reader=reader,
                power=power,
                emissions=emissions or Emissions(),
                rules=rules,
                idle_w=idle_w,
                host=host or platform.node(),
            )
            yield Watch(watcher=watcher, reader=reader, power=power)
    finally:
        power.close()


def find_gpus(meters: Sequence[str], roots: Roots) -> tuple[GpuSource | None, dict[str, Exception]]:
    """Return who reads the GPUs, None where nobody can, and why those of which maker are not read.

    Of a recorded tree nobody reads them, unless `meters` names this machine's.
    """
    unread: dict[str, Exception] = {"Intel": MeterProblem("lowtide reads none of Intel's")}
    wanted: dict[str, tuple[str, Callable[[], GpuSource]]] = {
        "NVIDIA": ("nvml", NvmlGpus),
        "AMD": ("amd", lambda: AmdGpus(sysfs=roots.sysfs)),
    }
    source: GpuSource | None = None
    for maker, (meter, make) in wanted.items():
        if source is not None:
            unread[maker] = MeterProblem("of a node with two makers' GPUs those of one are read")
        elif roots.is_here or meter in meters:
            try:
                source = make()
            except (MissingExtra, MeterProblem) as error:
                unread[maker] = error
        elif meter == "nvml" and find_spec("pynvml") is None:
            unread[maker] = MissingExtra("reading NVIDIA GPUs", extra="watch")
        else:
            unread[maker] = MeterProblem(f"of a recorded tree only with --meter {meter}")
    return source, unread


def cure_of(card: Card, error: Exception) -> str:
    """Return what to do about a GPU that is not read.

    Args:
        card: The GPU.
    """
    if isinstance(error, MissingExtra):
        return f"pip install 'lowtide[{error.extra}]'"
    if not card.has_driver and card.maker != "Intel":
        return f"no driver has taken {card.address}: install {card.maker}'s, or load it ({error})"
    mend = {
        "NVIDIA": "see whether nvidia-smi shows it to this user, and give it the permission",
        "AMD": "install amd-smi or rocm-smi, and let this user use it",
    }
    return f"{mend[card.maker]} ({error})" if card.maker in mend else str(error)
