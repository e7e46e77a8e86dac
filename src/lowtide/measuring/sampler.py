"""Reading all meters and what a program uses, in step."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from lowtide.measuring.troubles import Troubles
from lowtide.meters import Channel, Meter, Reading
from lowtide.meters.nvml import Nvml
from lowtide.meters.source import Source, counted
from lowtide.meters.usage import FEATURES, Counts, MachineUse, use_between
from lowtide.monitor.processes import ProcessTree, Usage

# A clock that moves this far against the other has been set.
_STEPPED_S = 0.5


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
        troubles: What went wrong so far, each thing once.
    """

    meters: Sequence[Meter]
    troubles: Troubles = field(default_factory=Troubles)
    _machine: MachineUse = field(default_factory=MachineUse, init=False)
    _sources: list[Source] = field(default_factory=list, init=False)
    _clock: tuple[float, float] = field(default=(0.0, 0.0), init=False)
    _off_s: float = field(default=0.0, init=False)
    _before: _Look | None = field(default=None, init=False)

    def open(self) -> None:
        """Open the meters."""
        for meter in self.meters:
            source = Source(meter, meter.open())
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
        if abs(off - self._off_s) > _STEPPED_S:
            self._off_s = off
            self.troubles.add(f"the clock was set by {off:+.3f} s meanwhile; times go on as before")
        return moment

    @property
    def clock_offset_s(self) -> float:
        """What `now` shows more than the machine's steady clock."""
        wall, steady = self._clock
        return wall - steady

    def sample(self, tree: ProcessTree | None) -> Sample | None:
        """Read everything; return what was drawn and used since the last time, None at the first.

        Args:
            tree: The program, where one runs.
        """
        now = self.now()
        look = _Look(
            time=now,
            readings=[each.read() for each in self._sources],
            machine=self._machine.look(),
            usage=None if tree is None else tree.usage(),
        )
        made = None if self._before is None else self._made(self._before, look, tree)
        self._before = look
        return made

    def restart(self) -> None:
        """Forget what was read last: what is drawn between two runs belongs to neither."""
        self._before = None
        self.troubles, self._off_s = Troubles(), 0.0
        for source in self._sources:
            source.last = source.silent_since = None

    def conclude(self) -> None:
        """Note the meters that never answered since the last restart."""
        for source in self._sources:
            if source.last is None and source.silent_since is not None:
                self.troubles.add(f"meter {source.meter.name} never answered")

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

    def _watch(self, source: Source, reading: Reading | None, now: float) -> None:
        """Note a meter that falls silent or says what cannot be."""
        name = source.meter.name
        if reading is None or all(math.isnan(watts) for watts in reading.power_w):
            if source.silent_since is None:
                source.silent_since = now
                # A slow meter takes a while to say its first word.
                if source.last is not None:
                    why = f" ({source.problem})" if source.problem else ""
                    text = f"meter {name} fell silent at {now:.3f}{why}; nothing is filled in"
                    self.troubles.add(text, kind=f"{name} silent")
        else:
            source.silent_since = None
            source.last = reading
        for problem in () if reading is None else reading.problems:
            self.troubles.add_value(f"meter {name}: {problem}")


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
