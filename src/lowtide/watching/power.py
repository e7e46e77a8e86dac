"""What a node and its parts drew between two ticks, by all its meters.

Where a meter counts energy, the difference of two counts is what was drawn, however seldom it is
read. Where it only tells power, the mean of the two readings stands for the time between them.
Where meters see only the cards of a node, a model estimates the rest of it.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from lowtide import files
from lowtide.attribution import IdleFloor, NodePower
from lowtide.errors import LowtideError
from lowtide.meters import Channel, Meter, Reading
from lowtide.meters.estimate import Estimate
from lowtide.meters.hwmon import Hwmon
from lowtide.meters.meter import plausible
from lowtide.meters.source import MeterSearch, PowerSource, covers_node, tell_apart
from lowtide.monitor.tick import Tick

# A reading that is older than this says nothing about now: management controllers go stale.
_STALE_S = 60.0
# The kernel counts CPU time in hundredths of a second: after this long it has counted some.
_STANDS_S = 0.5


@dataclass(slots=True)
class _Parts:
    """What was drawn, by what drew it."""

    node_w: float = math.nan
    psys_w: float = math.nan
    dram_w: float = math.nan
    estimated_w: float = math.nan
    silent: bool = False
    packages: dict[str, float] = field(default_factory=dict)
    gpus: dict[str, float] = field(default_factory=dict)
    answers: dict[str, bool] = field(default_factory=dict)

    def add(self, meter: Meter, channel: Channel, watts: float) -> None:
        if channel.domain == "node" and math.isnan(self.node_w):
            self.node_w = watts
        elif channel.domain == "psys":
            self.psys_w = watts
        elif channel.domain == "package":
            self.packages[channel.name] = watts
        elif channel.domain == "dram" and not math.isnan(watts):
            self.dram_w = watts + _known([self.dram_w])
        elif channel.domain == "gpu":
            # Cards of two makers in one node have the same numbers.
            taken = channel.name in self.gpus
            self.gpus[f"{meter.name} {channel.name}" if taken else channel.name] = watts


@dataclass(slots=True, kw_only=True)
class PowerReader:
    """The meters of a node.

    Attributes:
        meters: Meters that have to work.
        search: Looks for others; None to use no others.
        estimate: Estimates what no meter sees, where they see neither the node nor its sockets;
            None to leave that out.
        problems: What went wrong since this was last emptied, in words.
        rejected: How many readings made no sense so far, and were left out.
    """

    meters: Sequence[Meter] = ()
    search: MeterSearch | None = None
    estimate: Estimate | None = None
    problems: list[str] = field(default_factory=list)
    rejected: int = field(default=0, init=False)
    _sources: list[PowerSource] = field(default_factory=list, init=False)
    _spoke: set[tuple[str, str]] = field(default_factory=set, init=False)
    _mute: set[tuple[str, str]] = field(default_factory=set, init=False)
    _before: list[Reading | None] = field(default_factory=list, init=False)
    _before_s: float = field(default=math.nan, init=False)

    def open(self) -> None:
        """Open the meters and take a first reading."""
        for meter in self.meters:
            source = PowerSource(meter, meter.open())
            source.begin()
            self._sources.append(source)
        if self.search is not None:
            sources, problems = self.search.first()
            self._tell(*problems)
            self._adopt(sources)
        self._fill_in()
        if not covers_node(self._sources) and self._estimate is None:
            self._tell(
                "the meters see neither the node nor its sockets: what the rest of it draws is not "
                "in its power; add --meter estimate to estimate that"
            )
        self._before_s, self._before = self._look()

    @property
    def names(self) -> list[str]:
        """The meters and their channels, in words."""
        return [source.name for source in self._sources]

    def read(self) -> NodePower:
        """Return what was drawn since this was last called, or since the meters were opened."""
        parts = _Parts()
        now_s, after = self._look()
        passed_s = now_s - self._before_s
        for source, earlier, later in zip(self._sources, self._before, after, strict=True):
            self._note(source, earlier, later)
            if source.meter.measured:
                parts.answers[source.meter.name] = _says_something(later)
            for place, channel in enumerate(source.channels):
                watts = self._drawn(source.meter, channel, place, passed_s, earlier, later)
                if source.meter.measured:
                    parts.add(source.meter, channel, watts)
                    parts.silent |= self._falls_silent(source.meter, channel, watts)
                else:
                    parts.estimated_w = watts
        self._before_s, self._before = now_s, after
        power = self._made(parts, passed_s)
        if self.search is not None:
            sources, problems = self.search.late()
            self._tell(*problems)
            self._adopt(sources)
            self._fill_in()
        return power

    def close(self) -> None:
        """Let go of the meters."""
        if self.search is not None:
            self.search.close()
        for source in self._sources:
            source.end()
        self._sources.clear()

    @property
    def _estimate(self) -> Estimate | None:
        found = (each.meter for each in self._sources if isinstance(each.meter, Estimate))
        return next(found, None)

    def _adopt(self, sources: Sequence[PowerSource]) -> None:
        """Read meters from now on that were found, open."""
        if not sources:
            return
        self._sources += sources
        self._before += [source.read() for source in sources]
        tell_apart(source.meter for source in self._sources)
        for source in self._sources:
            if isinstance(source.meter, Hwmon):
                # A card that another meter reads is no longer counted here.
                source.channels = source.meter.open()

    def _fill_in(self) -> None:
        """Estimate what no meter sees, as long as none does."""
        if self.estimate is None:
            return
        place = next(
            (at for at, each in enumerate(self._sources) if each.meter is self.estimate), -1
        )
        if covers_node(self._sources, silent=self._mute):
            if place >= 0:
                self._sources.pop(place).end()
                self._before.pop(place)
        elif place < 0:
            try:
                source = PowerSource(self.estimate, self.estimate.open())
            except LowtideError as error:
                self._tell(f"nothing can be estimated either: {error}")
                self.estimate = None
            else:
                self._adopt([source])

    def _made(self, parts: _Parts, passed_s: float) -> NodePower:
        node_w, rest_w, idle_w = parts.node_w, math.nan, math.nan
        cards_w = _known(parts.gpus.values())
        if math.isnan(node_w) and not math.isnan(parts.psys_w):
            # The platform's counter sees all but the cards.
            node_w = parts.psys_w + cards_w
        estimate, measured = self._estimate, True
        if estimate is not None and math.isnan(node_w):
            if math.isnan(parts.estimated_w) and passed_s >= _STANDS_S:
                self._tell(
                    "nothing can be estimated: "
                    f"the CPU times in {estimate.roots.procfs}/stat stand still"
                )
            inner = [parts.dram_w, *parts.packages.values()]
            seen_w = _known(inner) + (cards_w if estimate.sees_gpus else 0.0)
            if seen_w <= 0:
                idle_w = estimate.idle_w
            if all(math.isnan(watts) for watts in (*inner, *parts.gpus.values())):
                node_w, measured = parts.estimated_w, False
            else:
                rest_w = max(parts.estimated_w - seen_w, 0.0)
                # Without an estimate the rest is lacking, and nobody measured the node.
                measured = not math.isnan(rest_w)
        return NodePower(
            node_w=node_w,
            package_w=tuple(parts.packages.values()),
            dram_w=parts.dram_w,
            gpu_w=parts.gpus,
            rest_w=rest_w,
            idle_w=idle_w,
            lacks=parts.silent or (estimate is not None and math.isnan(parts.estimated_w)),
            passed_s=passed_s,
            measured=measured,
            answers=parts.answers,
        )

    def _tell(self, *problems: str) -> None:
        self.problems += [each for each in dict.fromkeys(problems) if each not in self.problems]

    def _look(self) -> tuple[float, list[Reading | None]]:
        # The clock that nobody sets: a step of the other would be taken for power.
        return time.monotonic(), [source.read() for source in self._sources]

    def _drawn(
        self,
        meter: Meter,
        channel: Channel,
        place: int,
        passed_s: float,
        earlier: Reading | None,
        later: Reading | None,
    ) -> float:
        """Return the mean power of a channel between two readings, NaN if it cannot be told."""
        if later is None or _is_stale(later):
            return math.nan
        watts = later.power_w[place]
        if earlier is None or (meter.means and math.isnan(watts)):
            return watts
        if meter.slow:
            # It was read at another time than it was asked for.
            passed_s = later.time - earlier.time
        counted_j = later.energy_j[place] - earlier.energy_j[place]
        if passed_s > 0 and counted_j >= 0:
            watts, problem = plausible(channel, counted_j / passed_s)
            if problem:
                self.rejected += 1
                self._tell(f"meter {meter.name}: {problem}; left out")
            return watts
        if meter.means:
            return watts
        known = [each.power_w[place] for each in (earlier, later)]
        known = [watts for watts in known if not math.isnan(watts)]
        return sum(known) / len(known) if known else math.nan

    def _falls_silent(self, meter: Meter, channel: Channel, watts: float) -> bool:
        """Return whether something other than a card said what it drew before, and now does not."""
        key = (meter.name, channel.name)
        if not math.isnan(watts):
            self._spoke.add(key)
            self._mute.discard(key)
        elif key not in self._spoke:
            # It may be there, and say nothing for ever.
            self._mute.add(key)
        return math.isnan(watts) and key in self._spoke and channel.domain not in ("gpu", "other")

    def _note(self, source: PowerSource, earlier: Reading | None, later: Reading | None) -> None:
        name = source.meter.name
        if later is None:
            if not source.is_new:
                why = f": {source.problem}" if source.problem else ""
                self._tell(f"meter {name} does not answer{why}; nothing is filled in")
            return
        if later is earlier:
            # A slow meter has said nothing new.
            return
        self.rejected += later.rejected
        if _is_stale(later):
            self._tell(f"meter {name} is stale: its last reading is over a minute old")
        self._tell(*(f"meter {name}: {problem}" for problem in later.problems))


def _is_stale(reading: Reading) -> bool:
    return reading.time < time.time() - _STALE_S


def _says_something(reading: Reading | None) -> bool:
    if reading is None or _is_stale(reading):
        return False
    return not all(math.isnan(each) for each in (*reading.power_w, *reading.energy_j))


def _known(watts: Iterable[float]) -> float:
    """Return the sum of what is known."""
    return math.fsum(each for each in watts if not math.isnan(each))


# What a watch remembers from one start to the next: how little the node draws when idle.

FILE_NAME = "idle.json"
# How often it is written down while watching goes on: a kill costs no more than this.
_EVERY_S = 300.0


def load_floor(path: Path) -> IdleFloor:
    """Return what was remembered; nothing where there is no such file, or none that can be read."""
    try:
        document = files.read_document(path, "json")
        known = {
            str(meters): (float(seen), float(floor_w), float(spread_w))
            for meters, (seen, floor_w, spread_w) in document["idle"].items()
        }
    except (LowtideError, ValueError, KeyError, TypeError, AttributeError, OverflowError):
        # It is learned again in time; a wrong one would be worse than none.
        return IdleFloor()
    sound = {
        meters: numbers
        for meters, numbers in known.items()
        if all(math.isfinite(each) and each >= 0 for each in numbers)
    }
    return IdleFloor(known=sound)


def save_floor(path: Path, floor: IdleFloor) -> None:
    """Write what has been learned."""
    # It may be learned on while it is written.
    if known := dict(floor.known):
        files.write_whole(path, json.dumps({"idle": known}, indent=1) + "\n")


@dataclass(slots=True, kw_only=True)
class FloorMemory:
    """Writes down what is learned, now and then.

    Attributes:
        path: The file.
        floor: What is learned.
        every_s: How often.
        clock: Says how much time has passed.
    """

    path: Path
    floor: IdleFloor
    every_s: float = _EVERY_S
    clock: Callable[[], float] = time.monotonic
    _saved: float = field(default=-math.inf, init=False)

    def take(self, _: Tick) -> None:
        """Write it down if that is due."""
        now = self.clock()
        if now - self._saved >= self.every_s:
            # Where it cannot be written, it is not tried with every tick.
            self._saved = now
            save_floor(self.path, self.floor)
