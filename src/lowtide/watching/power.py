"""What a node and its parts drew between two ticks, by all its meters.

Where a meter counts energy, the difference of two counts is what was drawn, however seldom it is
read. Where it only tells power, the mean of the two readings stands for the time between them.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from lowtide.attribution import NodePower
from lowtide.meters import Channel, Meter, Reading
from lowtide.meters.estimate import Estimate
from lowtide.meters.meter import plausible
from lowtide.meters.source import Source

# A reading that is older than this says nothing about now: management controllers go stale.
_STALE_S = 60.0


@dataclass(slots=True, kw_only=True)
class PowerReader:
    """The meters of a node.

    Attributes:
        meters: The meters.
        problems: What went wrong since this was last emptied, in words.
    """

    meters: Sequence[Meter]
    problems: list[str] = field(default_factory=list)
    _sources: list[Source] = field(default_factory=list, init=False)
    _before: list[tuple[float, Reading | None]] = field(default_factory=list, init=False)

    def open(self) -> None:
        """Open the meters and take a first reading."""
        for meter in self.meters:
            source = Source(meter, meter.open())
            source.begin()
            self._sources.append(source)
        self._before = self._look()

    @property
    def measured(self) -> bool:
        """Whether all power is measured."""
        return all(meter.measured for meter in self.meters)

    @property
    def idle_w(self) -> float | None:
        """What the node draws when nothing runs, where a model says so; None where it does not."""
        found = [meter.idle_w for meter in self.meters if isinstance(meter, Estimate)]
        return found[0] if found and not self.measured else None

    @property
    def names(self) -> list[str]:
        """The meters and their channels, in words."""
        return [
            f"{source.meter.name} ({', '.join(channel.name for channel in source.channels)})"
            for source in self._sources
        ]

    def read(self) -> NodePower:
        """Return what was drawn since this was last called, or since the meters were opened."""
        node_w, psys_w, dram_w = math.nan, math.nan, math.nan
        packages: dict[str, float] = {}
        gpus: dict[str, float] = {}
        after = self._look()
        for source, (since, earlier), (now, later) in zip(
            self._sources, self._before, after, strict=True
        ):
            self._note(source, later)
            for place, channel in enumerate(source.channels):
                watts = self._drawn(source.meter, channel, place, now - since, earlier, later)
                if channel.domain == "node" and math.isnan(node_w):
                    node_w = watts
                elif channel.domain == "psys":
                    psys_w = watts
                elif channel.domain == "package":
                    packages[channel.name] = watts
                elif channel.domain == "dram" and not math.isnan(watts):
                    dram_w = watts if math.isnan(dram_w) else dram_w + watts
                elif channel.domain == "gpu":
                    gpus[channel.name] = watts
        self._before = after
        if math.isnan(node_w) and not math.isnan(psys_w):
            # The platform's counter sees all but the cards.
            node_w = psys_w + sum(watts for watts in gpus.values() if not math.isnan(watts))
        return NodePower(
            node_w=node_w,
            package_w=tuple(packages.values()),
            dram_w=dram_w,
            gpu_w=gpus,
            measured=self.measured,
        )

    def close(self) -> None:
        """Let go of the meters."""
        for source in self._sources:
            source.end()
        self._sources.clear()

    def _look(self) -> list[tuple[float, Reading | None]]:
        # The clock that nobody sets: a step of the other would be taken for power.
        return [(time.monotonic(), source.read()) for source in self._sources]

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
        if later is None or later.time < time.time() - _STALE_S:
            return math.nan
        if earlier is None or meter.means:
            return later.power_w[place]
        if meter.slow:
            # It was read at another time than it was asked for.
            passed_s = later.time - earlier.time
        counted_j = later.energy_j[place] - earlier.energy_j[place]
        if passed_s > 0 and counted_j >= 0:
            watts, problem = plausible(channel, counted_j / passed_s)
            if problem:
                self.problems.append(f"meter {meter.name}: {problem}; left out")
            return watts
        known = [each.power_w[place] for each in (earlier, later)]
        known = [watts for watts in known if not math.isnan(watts)]
        return sum(known) / len(known) if known else math.nan

    def _note(self, source: Source, reading: Reading | None) -> None:
        name = source.meter.name
        if reading is None:
            why = f": {source.problem}" if source.problem else ""
            self.problems.append(f"meter {name} does not answer{why}; nothing is filled in")
            return
        if reading.time < time.time() - _STALE_S:
            self.problems.append(f"meter {name} is stale: its last reading is over a minute old")
        self.problems += [f"meter {name}: {problem}" for problem in reading.problems]
