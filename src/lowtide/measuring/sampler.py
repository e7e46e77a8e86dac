"""Reading all meters and what a program uses, in step; and which GPUs are the program's."""

from __future__ import annotations

import math
import os
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TypeVar

from lowtide.attribution import IdleFloor
from lowtide.errors import InvalidInput, MeterProblem, UnknownName
from lowtide.formats.recording_parts import GPUS, LEADS, MEASURES, SUM, WHOLE
from lowtide.measuring.sharing import SHARES, GpuPower, Sharing
from lowtide.measuring.tasks import Companions
from lowtide.measuring.worker import Troubles
from lowtide.meters import Channel, Meter, Reading
from lowtide.meters.estimate import FEATURES, Counts, Estimate, MachineUse, use_between
from lowtide.meters.nvml import Nvml, NvmlGpus
from lowtide.meters.source import PowerSource, counted, late, side_by_side
from lowtide.meters.tegrastats import Tegrastats
from lowtide.monitor.gpus import GpuReading, hold
from lowtide.monitor.owners import Card, pick_gpus, visible_gpus
from lowtide.monitor.processes import ProcessTree, Usage

# A clock that moves this far against the other has been set.
_STEPPED_S = 0.5
# How long meters may take to be let go of, all together.
_LET_GO_S = 5.0
# How long meters may take to open: those that were found here, and those that somebody named.
_OPEN_S, _NAMED_S = 3.0, 20.0

T = TypeVar("T")
# How often it is asked who runs on the GPUs; that takes milliseconds.
_ASK_S = 2.0
# How often a task looks whether the one that reads the meters is gone.
_TAKE_OVER_S = 2.0


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
        share: Whose power is asked for on a machine that others use too: the program's (`process`)
            or all (`node`), and both are kept. None for all, without looking at others.
        gpus: Which GPUs are the program's: `all`, `none`, numbers and identities; empty for those
            that the environment lets it see.
        named: Whether the meters were asked for by name, so that one that does not open is an
            error. Others are left out then, and the program need not wait for them.
        left_out: Which meters are left out and why, in words: noted in every run.
        companions: Other tasks on this machine that are measured too, of which one reads the
            meters; None where there are none.
        successor: Returns the meters to go on with where this task takes over from another.
        troubles: What went wrong so far, each thing once.
        took_over: Whether this task has just taken over.
    """

    meters: Sequence[Meter]
    share: str | None = None
    gpus: str = ""
    named: bool = True
    left_out: list[str] = field(default_factory=list)
    companions: Companions | None = None
    successor: Callable[[], Sequence[Meter]] = field(default=tuple)
    troubles: Troubles = field(default_factory=Troubles)
    took_over: bool = field(default=False, init=False)
    _cards: Cards = field(init=False)
    _sharing: Sharing | None = field(default=None, init=False)
    _whole: bool = field(default=False, init=False)
    # The columns of all GPUs; those of others are not added up.
    _gpus: set[str] = field(default_factory=set, init=False)
    _machine: MachineUse = field(default_factory=MachineUse, init=False)
    _sources: list[PowerSource] = field(default_factory=list, init=False)
    _clock: tuple[float, float] = field(default=(0.0, 0.0), init=False)
    _off_s: float = field(default=0.0, init=False)
    _before: _Look | None = field(default=None, init=False)
    _look_s: float = field(default=0.0, init=False)
    _base_s: float = field(default=0.0, init=False)
    _leading: bool = field(default=False, init=False)
    _heir: list[Sampler] = field(default_factory=list, init=False)

    def open(self) -> None:
        """Open the meters."""
        self._cards = Cards(said=self.gpus)
        if self.companions is not None:
            self._leading = self.companions.leads
            self._cards.take = self.companions.take
        opened = self._opened()
        self.meters = [meter for meter, _ in opened]
        for meter, channels in opened:
            self._gpus |= {f"{meter.name}.{each.name}" for each in channels if each.domain == "gpu"}
            source = PowerSource(meter, self._cards.choose(meter, channels))
            if self._follows and not any(each.domain == "gpu" for each in source.channels):
                # Others read what it sees.
                self._heed(meter.close, None)
                continue
            source.begin()
            self._sources.append(source)
            if isinstance(meter, Nvml | Tegrastats):
                self._machine.gpus = meter
        self._cards.check()
        self._clock = (time.time(), time.monotonic())
        if self.share is not None and not self._follows:
            if self.share not in SHARES:
                raise UnknownName("share of the machine's power", self.share, SHARES)
            models = [each for each in self.meters if isinstance(each, Estimate)]
            self._sharing = Sharing(
                share=self.share,
                idle_w=models[0].idle_w if len(models) == len(self.meters) else math.nan,
                measured=self.measured,
                sees_cpus=any(name not in self._gpus for name in self.counted),
            )
            if not self._sharing.can_tell:
                self._sharing = None

    def _opened(self) -> list[tuple[Meter, tuple[Channel, ...]]]:
        """Open all meters beside each other; return those that opened, with their channels."""
        within_s = _NAMED_S if self.named else _OPEN_S
        answers = side_by_side([meter.open for meter in self.meters], within_s)
        opened = []
        for meter, answer in zip(self.meters, answers, strict=True):
            if isinstance(answer, tuple):
                opened.append((meter, answer))
            elif not self.named:
                why = f"meter {meter.name} is left out: {answer}"
                self.left_out.append(why if answer else late(meter.name, within_s))
            elif answer is None:
                raise MeterProblem(
                    f"meter {meter.name} did not answer within {within_s:g} s: leave --meter out "
                    "to measure with those that do"
                )
            else:
                raise answer
        if not opened and not self._follows:
            estimate = Estimate()
            opened = [(estimate, estimate.open())]
        return opened

    @property
    def _follows(self) -> bool:
        """Whether another task of this machine reads its meters."""
        return self.companions is not None and not self._leading

    @property
    def facts(self) -> dict[str, str]:
        """Whose power is measured, as far as that was asked, and what of the machine's."""
        facts: dict[str, str] = {}
        if self.companions is not None:
            channels = [channel for source in self._sources for channel in source.channels]
            whole = any(channel.domain == "node" for channel in channels)
            facts[MEASURES] = GPUS if self._follows else WHOLE if whole else SUM
        if self.share is not None and not self._follows:
            facts["share"] = "node" if self._sharing is None else self.share
        return facts

    @property
    def measured(self) -> bool:
        """Whether all power is measured."""
        return all(meter.measured for meter in self.meters)

    @property
    def names(self) -> list[str]:
        """The meters and their channels, in words."""
        return [source.name for source in self._sources]

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
        if self._follows:
            self._heed(self._succeed, None)
        own = tree
        if tree is not None and self.companions is not None and self._leading:
            tree = self._heed(partial(self.companions.tree, tree), tree)
        now = self.now()
        look = _Look(
            time=now,
            readings=[each.read() for each in self._sources],
            machine=self._heed(self._machine.look, Counts(time_s=time.monotonic())),
            usage=None if tree is None else self._heed(tree.usage, None),
        )
        if look.usage is not None and tree is not own:
            # What the tasks used before their programs began is none of the programs'.
            if self._before is None or self._before.usage is None:
                self._base_s = look.usage.cpu_s
            used_s = look.usage.cpu_s - self._base_s
            look = replace(look, usage=replace(look.usage, cpu_s=used_s))
        if self._sharing is not None:
            self._sharing.look(None if look.usage is None else look.usage.cpu_s)
        made = None if self._before is None else self._made(self._before, look, tree)
        self._before = look
        return made

    def _succeed(self) -> None:
        """Take over where the task that read the meters is gone; opening them takes a while."""
        if self._heir:
            heir = self._heir.pop()
            before = self._sources
            for name in ("meters", "_cards", "_sharing", "_gpus", "_machine", "_sources"):
                setattr(self, name, getattr(heir, name))
            # What the last look saw is not what the next one sees.
            self._before, self._leading, self.took_over = None, True, True
            for source in before:
                self._heed(source.end, None)
        elif time.monotonic() >= self._look_s and self.companions is not None:
            self._look_s = time.monotonic() + _TAKE_OVER_S
            if self.companions.lead():
                # Until its meters are open, and if they never are, this one reads what it did.
                self._look_s = math.inf
                threading.Thread(
                    target=self._heed, args=(self._raise_heir, None), daemon=True
                ).start()

    def _raise_heir(self) -> None:
        """Open the machine's meters for this task, which had none or GPUs alone."""
        heir = Sampler(
            meters=self.successor(),
            share=self.share,
            gpus=self.gpus,
            named=False,
            companions=self.companions,
        )
        heir.open()
        self._heir.append(heir)

    def restart(self, *, whole: bool = False) -> None:
        """Forget what was read last: what is drawn between two runs belongs to neither.

        Args:
            whole: Whether no program will run, so that the machine's power is asked for.
        """
        self._before, self._whole = None, whole
        self.troubles, self._off_s = Troubles(), 0.0
        for note in (*self.left_out, *self._cards.notes):
            self.troubles.add(note)
        if self._sharing is not None:
            self._sharing.restart()
        elif self.share == "process" and not self._follows:
            self.troubles.add(
                "this machine does not say how busy it is: the power is all of the machine's"
            )
        for source in self._sources:
            source.last = source.silent_since = None

    def conclude(self) -> None:
        """Note the meters that never answered since the last restart, and who else was busy."""
        if self._sharing is not None and not self._whole:
            for note in self._sharing.notes():
                self.troubles.add(note)
        for source in self._sources:
            if source.last is None and source.silent_since is not None:
                self.troubles.add(f"meter {source.meter.name} never answered")

    def set_aside(self) -> str:
        """Go on without the meter that does not come back; return its name, empty if none is so."""
        for source in self._sources:
            if source.set_aside():
                return source.meter.name
        return ""

    def close(self) -> None:
        """Let go of the meters; those that do not let go within a while are left to the kernel."""
        ends = [*(source.end for source in self._sources), self._cards.close]
        threads = [
            threading.Thread(target=self._heed, args=(end, None), daemon=True) for end in ends
        ]
        for thread in threads:
            thread.start()
        until_s = time.monotonic() + _LET_GO_S
        for thread in threads:
            thread.join(max(until_s - time.monotonic(), 0.0))
        self._sources.clear()
        if self.companions is not None:
            self.companions.close()

    def _heed(self, ask: Callable[[], T], otherwise: T) -> T:
        """Ask, and note what goes wrong: who asks is busy with somebody else's program."""
        try:
            return ask()
        except Exception as error:  # noqa: BLE001 - no list of what may go wrong is complete
            self.troubles.add(f"{type(error).__name__}: {error}", kind=type(error).__name__)
            return otherwise

    def _made(self, before: _Look, after: _Look, tree: ProcessTree | None) -> Sample:
        columns: dict[str, float] = {}
        drawn: list[tuple[Channel, float]] = []
        shares: dict[str, float] = {}
        if tree is not None and self._sharing is not None:
            shares = self._heed(partial(self._cards.shares, tree.pids), shares)
        gpus: list[GpuPower] = []
        for number, source in enumerate(self._sources):
            # A mean is of the time since the last reading; a moment's power holds from then on.
            reading = (after if source.meter.means else before).readings[number]
            self._watch(source, reading, after.time)
            for place, channel in enumerate(source.channels):
                watts = math.nan if reading is None else reading.power_w[place]
                joules = math.nan if reading is None else reading.energy_j[place]
                name = f"{source.meter.name}.{channel.name}"
                columns[f"{name}_w"] = watts
                if not math.isnan(joules):
                    columns[f"{name}_j"] = joules
                drawn.append((channel, watts))
                if name in self._gpus:
                    part = shares.get(channel.name, 1.0) if isinstance(source.meter, Nvml) else 1.0
                    given = channel.domain == "gpu"
                    part = part if given else 0.0
                    gpus.append(GpuPower(name=name, power_w=watts, share=part, given=given))
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
                    nothing: dict[str, float] = {}
                    columns |= self._heed(partial(source.meter.usage, set(tree.pids)), nothing)
        power_w = total_w(drawn)
        if self.companions is not None:
            # A task that takes over reads more than it did before.
            columns[LEADS] = float(not self._follows)
        if self._sharing is not None:
            power_w = self._shared(power_w, gpus, columns, runs=after.usage is not None)
        return Sample(time=before.time, power_w=power_w, columns=columns)

    def _shared(
        self, total_w: float, gpus: list[GpuPower], columns: dict[str, float], *, runs: bool
    ) -> float:
        """Keep the machine's power and the program's; return the one that is asked for."""
        if self._sharing is None:
            return total_w
        if not any(channel.domain == "node" for each in self._sources for channel in each.channels):
            # GPUs of others are not in the sum.
            counted = set(self.counted)
            gpus = [gpu for gpu in gpus if gpu.name in counted]
        tell = partial(self._sharing.program_w, total_w, gpus, runs=runs)
        program_w = self._heed(tell, math.nan)
        columns["node_w"], columns["program_w"] = total_w, program_w
        columns["others_cpus"] = self._sharing.others_cpus()
        return total_w if self._whole or self._sharing.share == "node" else program_w

    def _watch(self, source: PowerSource, reading: Reading | None, now: float) -> None:
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

    >>> total_w([(Channel(name="package-0", domain="package"), 50.0),
    ...          (Channel(name="gpu-0", domain="gpu"), 300.0)])
    350.0
    """
    channels = [channel for channel, _ in drawn]
    parts = [watts for (_, watts), is_in in zip(drawn, counted(channels), strict=True) if is_in]
    return sum(parts) if parts else math.nan


def busy_share(samples: Collection[Sample]) -> str | None:
    """Return in words that a machine that should be idle is not; None where it is, or unknown."""
    shares = [each.columns.get(FEATURES["cpu"], math.nan) for each in samples]
    known = [share for share in shares if not math.isnan(share)]
    # At the first look a kernel's counters, in hundredths of a second, tell little.
    if len(known) < 3 or sum(known) / len(known) <= IdleFloor().idle_share:
        return None
    return (
        f"the machine is not idle: {100 * sum(known) / len(known):.0f} % of its CPUs were busy "
        "before the start, so what it draws idle is not known from this"
    )


@dataclass(slots=True, kw_only=True)
class Cards:
    """The GPUs that meters read, of which some are the program's.

    Attributes:
        said: `all`, `none`, or numbers and identities; empty to go by the environment.
        environment: What the program will find in its environment.
        take: Says whether a GPU of some identity is to be read here, where other tasks may.
        notes: What should be known about the choice.
    """

    said: str = ""
    environment: Mapping[str, str] = field(default_factory=lambda: os.environ)
    take: Callable[[str], bool] | None = None
    notes: list[str] = field(default_factory=list, init=False)
    _source: NvmlGpus | None = field(default=None, init=False)
    _given: set[str] = field(default_factory=set, init=False)
    _shares: dict[str, float] = field(default_factory=dict, init=False)
    _asked_s: float = field(default=-math.inf, init=False)
    _unmatched: list[str] | None = field(default=None, init=False)

    def choose(self, meter: Meter, channels: Sequence[Channel]) -> tuple[Channel, ...]:
        """Return a meter's channels, of which those of others' GPUs are not added up."""
        names = [channel.name for channel in channels if channel.domain == "gpu"]
        if not names:
            return tuple(channels)
        cards = self._cards(meter, names)
        chosen: list[str] | None
        if self.said == "none":
            chosen = []
        elif self.said and self.said != "all":
            found, rest = pick_gpus(self.said, cards, cards)
            chosen = [card.name for card in found]
            # With GPUs of two makers, a name needs to be one's alone.
            if self._unmatched is None or len(rest) < len(self._unmatched):
                self._unmatched = rest
        else:
            chosen = None
            if not self.said:
                chosen = visible_gpus(self.environment, cards, amd=not isinstance(meter, Nvml))
        visible = chosen
        if self.take is not None:
            identity = {
                card.name: (*card.identities, f"{meter.name} {card.name}") for card in cards
            }
            chosen = [
                name
                for name in (names if chosen is None else chosen)
                if self.take(identity[name][0])
            ]
        if isinstance(meter, Nvml):
            self._given = set(names if chosen is None else chosen)
            meter.heeded = frozenset(self._given)
        if chosen is None or len(chosen) == len(names):
            return tuple(channels)
        if visible is not None and len(visible) < len(names):
            self.notes.append(
                f"of the GPUs that {meter.name} reads ({', '.join(names)}), "
                f"{', '.join(visible) or 'none'} {'are' if len(visible) > 1 else 'is'} the "
                "program's; --gpus names others"
            )
        return tuple(
            replace(each, domain="other")
            if each.name in names and each.name not in chosen
            else each
            for each in channels
        )

    def check(self) -> None:
        """Raise an error where GPUs were named that there are not."""
        if self.said in ("", "all", "none"):
            return
        if self._unmatched is None or self._unmatched:
            rest = ", ".join(self._unmatched or [self.said])
            raise InvalidInput(
                f"--gpus takes all, none, or numbers and identities of GPUs that a meter reads, "
                f"and {rest} is none of these: lowtide doctor lists them"
            )

    def shares(self, pids: Collection[int]) -> dict[str, float]:
        """Return the program's share of each NVIDIA GPU, by the names of their channels."""
        now = time.monotonic()
        if self._source is not None and now >= self._asked_s + _ASK_S:
            self._asked_s = now
            ours = set(pids)

            def whose(pid: int) -> int | None:
                # What this machine does not know is of another name space, and may be ours.
                return 0 if pid in ours or not os.path.exists(f"/proc/{pid}") else None  # noqa: PTH110

            readings = self._source.read()
            given = {each.name: [0] for each in readings if _card(each) in self._given}
            whole: dict[str, float] = {}
            for reading, gpu in zip(readings, hold(readings, whose, given), strict=True):
                share = gpu.holders.get(0, 0.0) * (gpu.share if "/" in gpu.name else 1.0)
                whole[_card(reading)] = whole.get(_card(reading), 0.0) + share
            self._shares = {
                name: min(share, 1.0) for name, share in whole.items() if name in self._given
            }
        return {name: self._shares.get(name, 1.0) for name in self._given}

    def close(self) -> None:
        """Let go of the GPUs."""
        if self._source is not None:
            self._source.close()
            self._source = None

    def _cards(self, meter: Meter, names: Sequence[str]) -> list[Card]:
        """Return what is known about the GPUs of a meter, beside their names."""
        plain = [Card(name=name) for name in names]
        if not isinstance(meter, Nvml):
            return plain
        try:
            self._source = NvmlGpus(library=meter.library)
            readings = self._source.read()
        except Exception:  # noqa: BLE001 - an older library does not know every question
            self._source = None
            return [replace(each, identities=meter.identities(each.name)) for each in plain]
        return [
            Card(
                name=name,
                minor=next((each.minor for each in readings if each.name == name), -1),
                identities=(
                    *meter.identities(name),
                    *(each.uuid for each in readings if _card(each) == name and each.uuid),
                ),
            )
            for name in names
        ]


def _card(reading: GpuReading) -> str:
    """Return the card that a GPU is, or is an instance of."""
    return reading.name.partition("/")[0]
