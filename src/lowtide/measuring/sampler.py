"""Reading all meters and what a program uses, in step."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from lowtide.errors import InvalidInput, MeterProblem
from lowtide.meters import METERS, Channel, Meter, Reading, Roots
from lowtide.meters.estimate import Estimate
from lowtide.meters.external import External
from lowtide.meters.nvml import Nvml
from lowtide.meters.redfish import Redfish
from lowtide.meters.usage import FEATURES, Counts, MachineUse, use_between
from lowtide.meters.utilisation import UtilisationModel
from lowtide.monitor.processes import ProcessTree, Usage

# A clock that moves this far against the other has been set.
_STEPPED_S = 0.5


def choose_meters(said: Sequence[str], roots: Roots | None = None) -> list[Meter]:
    """Return the meters that were asked for, or all that this machine offers.

    Args:
        said: Names, each maybe with more after a colon (`external:meter.csv`); empty for all that
            work here, and an estimate where none does.
        roots: Where the kernel's files are.
    """
    roots = roots or Roots()
    if said:
        return [_named(each, roots) for each in said]
    found: list[Meter] = []
    for name in METERS.names():
        kind = METERS.load(name)
        if kind.measured and kind.find(roots).state == "works":
            found.append(_made(kind, roots))
    return found or [Estimate(roots=roots)]


def _named(text: str, roots: Roots) -> Meter:
    name, _, more = text.partition(":")
    kind = METERS.load(name)
    if kind is External:
        return External(source=more)
    if kind is Redfish and more:
        return Redfish(address=more)
    if kind is Estimate and more:
        return Estimate(model=UtilisationModel.load(more), roots=roots)
    if more:
        raise InvalidInput(f"meter {name} takes nothing after its name, unlike {text!r}")
    return _made(kind, roots)


def _made(kind: type[Meter], roots: Roots) -> Meter:
    fields = getattr(kind, "__dataclass_fields__", {})
    return kind(**({"roots": roots} if "roots" in fields else {}))


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """What was drawn and used from one moment to the next.

    Attributes:
        time: When it begins.
        power_w: What was drawn in all, NaN where no meter answered.
        columns: Every channel's watts and joules, how busy the machine was, and what the program
            used.
    """

    time: float
    power_w: float
    columns: dict[str, float]


@dataclass(slots=True)
class _Source:
    """A meter and what it said last."""

    meter: Meter
    channels: tuple[Channel, ...]
    last: Reading | None = None
    silent_since: float | None = None
    _newest: Reading | None = field(default=None, init=False)
    _stop: threading.Event = field(default_factory=threading.Event, init=False)
    _thread: threading.Thread | None = field(default=None, init=False)

    def begin(self) -> None:
        """Read a slow meter beside the others, so that none waits for it."""
        if self.meter.slow:
            self._thread = threading.Thread(target=self._listen, daemon=True)
            self._thread.start()

    def read(self) -> Reading | None:
        """Return the newest reading, None where the meter does not answer."""
        if self._thread is not None:
            return self._newest
        return self._ask()

    def end(self) -> None:
        """Let go of the meter."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join(timeout=10)
        self.meter.close()

    def _listen(self) -> None:
        while not self._stop.wait(0.5):
            self._newest = self._ask()

    def _ask(self) -> Reading | None:
        try:
            return self.meter.sample()
        except MeterProblem:
            return None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Look:
    """All that was read at one moment."""

    time: float
    readings: list[Reading | None]
    machine: Counts
    usage: Usage | None


@dataclass(slots=True, kw_only=True)
class Sampler:
    """All meters of a measurement, read in step with what a program uses.

    Attributes:
        meters: The meters.
        notes: What went wrong so far, each thing once.
        cpu_s: CPU time that reading took so far.
    """

    meters: Sequence[Meter]
    notes: list[str] = field(default_factory=list)
    cpu_s: float = 0.0
    _machine: MachineUse = field(default_factory=MachineUse, init=False)
    _sources: list[_Source] = field(default_factory=list, init=False)
    _clock: tuple[float, float] = field(default=(0.0, 0.0), init=False)
    _before: _Look | None = field(default=None, init=False)

    def open(self) -> None:
        """Open the meters."""
        for meter in self.meters:
            source = _Source(meter, meter.open())
            source.begin()
            self._sources.append(source)
            if isinstance(meter, Nvml):
                self._machine.gpus = meter
        self._clock = (time.time(), time.monotonic())

    @property
    def measured(self) -> bool:
        """Whether all power is measured."""
        return all(meter.measured for meter in self.meters)

    @property
    def names(self) -> list[str]:
        """The meters and their channels, in words."""
        return [
            f"{source.meter.name} ({', '.join(channel.name for channel in source.channels)})"
            for source in self._sources
        ]

    @property
    def counted(self) -> list[str]:
        """The columns that are added up to what was drawn in all."""
        named = [(each.meter.name, channel) for each in self._sources for channel in each.channels]
        is_in = counted([channel for _, channel in named])
        return [
            f"{meter}.{channel.name}" for (meter, channel), k in zip(named, is_in, strict=True) if k
        ]

    def now(self) -> float:
        """Return the time by a clock that nobody sets: a step of the other is noted."""
        wall, steady = self._clock
        moment = wall + (time.monotonic() - steady)
        off = time.time() - moment
        if abs(off) > _STEPPED_S:
            self.note(f"the clock was set by {off:+.3f} s meanwhile; times go on as before")
        return moment

    def note(self, text: str) -> None:
        """Keep something that went wrong, once.

        Args:
            text: What it is.
        """
        if text not in self.notes:
            self.notes.append(text)

    def sample(self, tree: ProcessTree | None) -> Sample | None:
        """Read everything; return what was drawn and used since the last time, None at the first.

        Args:
            tree: The program, where one runs.
        """
        clock = time.thread_time()
        now = self.now()
        look = _Look(
            time=now,
            readings=[each.read() for each in self._sources],
            machine=self._machine.look(),
            usage=None if tree is None else tree.usage(),
        )
        made = None if self._before is None else self._made(self._before, look, tree)
        self._before = look
        self.cpu_s += time.thread_time() - clock
        return made

    def restart(self) -> None:
        """Forget what was read last: what is drawn between two runs belongs to neither."""
        self._before = None

    def close(self) -> None:
        """Let go of the meters."""
        for source in self._sources:
            source.end()
        self._sources.clear()

    def _made(self, before: _Look, after: _Look, tree: ProcessTree | None) -> Sample:
        columns: dict[str, float] = {}
        drawn: list[tuple[Channel, float]] = []
        for number, source in enumerate(self._sources):
            # A mean is of the time since the last reading; a moment's power holds from then on.
            reading = (after if source.meter.means else before).readings[number]
            self._watch(source, reading, after.time)
            for place, channel in enumerate(source.channels):
                watts = math.nan if reading is None else reading.power_w[place]
                joules = math.nan if reading is None else reading.energy_j[place]
                columns[f"{source.meter.name}.{channel.name}_w"] = watts
                if not math.isnan(joules):
                    columns[f"{source.meter.name}.{channel.name}_j"] = joules
                drawn.append((channel, watts))
        for name, value in use_between(before.machine, after.machine).items():
            if not math.isnan(value):
                columns[FEATURES[name]] = value
        if after.usage is not None and before.usage is not None:
            took = after.time - before.time
            columns["cpus_busy"] = max(after.usage.cpu_s - before.usage.cpu_s, 0.0) / took
            columns["memory_bytes"] = after.usage.memory_bytes
            columns["processes"] = float(after.usage.processes)
            columns["read_bytes"] = after.usage.read_bytes
            columns["written_bytes"] = after.usage.written_bytes
            for source in self._sources:
                if isinstance(source.meter, Nvml) and tree is not None:
                    columns |= source.meter.usage(set(tree.pids))
        return Sample(time=before.time, power_w=total_w(drawn), columns=columns)

    def _watch(self, source: _Source, reading: Reading | None, now: float) -> None:
        """Note a meter that falls silent or says what cannot be."""
        name = source.meter.name
        if reading is None or all(math.isnan(watts) for watts in reading.power_w):
            if source.silent_since is None and source.last is not None:
                source.silent_since = now
                self.note(f"meter {name} fell silent at {now:.3f}; nothing is filled in")
        else:
            source.silent_since = None
            source.last = reading
        for problem in () if reading is None else reading.problems:
            self.note(f"meter {name}: {problem}")


def counted(channels: Sequence[Channel]) -> list[bool]:
    """Return which channels make up what was drawn in all, so that nothing is counted twice.

    A node's meter sees everything. Else the platform's counter stands for packages and memory, and
    GPUs are added to either. Channels of other kinds are parts of something, and not added.

    Args:
        channels: The channels of all meters.

    >>> counted([Channel(name="package-0", domain="package"), Channel(name="node", domain="node")])
    [False, True]
    """
    domains = [channel.domain for channel in channels]
    if "node" in domains:
        first = domains.index("node")
        return [place == first for place in range(len(domains))]
    parts = ("psys", "gpu") if "psys" in domains else ("package", "dram", "gpu")
    return [domain in parts for domain in domains]


def total_w(drawn: Sequence[tuple[Channel, float]]) -> float:
    """Return what was drawn in all.

    Args:
        drawn: Channels and their watts.

    >>> total_w([(Channel(name="package-0", domain="package"), 50.0),
    ...          (Channel(name="gpu-0", domain="gpu"), 300.0)])
    350.0
    """
    channels = [channel for channel, _ in drawn]
    parts = [watts for (_, watts), is_in in zip(drawn, counted(channels), strict=True) if is_in]
    return sum(parts) if parts else math.nan
