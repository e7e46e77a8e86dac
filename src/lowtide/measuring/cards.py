"""Which GPUs are the program's, and what share of each."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from lowtide.errors import InvalidInput
from lowtide.meters import Channel, Meter
from lowtide.meters.nvml import Nvml, NvmlGpus
from lowtide.monitor.gpus import GpuReading, hold
from lowtide.monitor.owners import Card, pick_gpus, visible_gpus

# How often it is asked who runs on the GPUs; that takes milliseconds.
_ASK_S = 2.0


@dataclass(slots=True, kw_only=True)
class Cards:
    """The GPUs that meters read, of which some are the program's.

    Attributes:
        said: `all`, `none`, or numbers and identities; empty to go by the environment.
        environment: What the program will find in its environment.
        notes: What should be known about the choice.
    """

    said: str = ""
    environment: Mapping[str, str] = field(default_factory=lambda: os.environ)
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
        if isinstance(meter, Nvml):
            self._given = set(names if chosen is None else chosen)
            meter.heeded = frozenset(self._given)
        if chosen is None or len(chosen) == len(names):
            return tuple(channels)
        self.notes.append(
            f"of the GPUs that {meter.name} reads ({', '.join(names)}), "
            f"{', '.join(chosen) or 'none'} {'are' if len(chosen) > 1 else 'is'} the program's; "
            "--gpus names others"
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
            return [replace(each, identities=_identity(meter, each.name)) for each in plain]
        return [
            Card(
                name=name,
                minor=next((each.minor for each in readings if each.name == name), -1),
                identities=(
                    *_identity(meter, name),
                    *(each.uuid for each in readings if _card(each) == name and each.uuid),
                ),
            )
            for name in names
        ]


def _card(reading: GpuReading) -> str:
    """Return the card that a GPU is, or is an instance of."""
    return reading.name.partition("/")[0]


def _identity(meter: Nvml, name: str) -> tuple[str, ...]:
    nvml: Any = meter.library
    try:
        said = nvml.nvmlDeviceGetUUID(nvml.nvmlDeviceGetHandleByIndex(int(name[4:])))
    except Exception:  # noqa: BLE001 - without it there are the numbers
        return ()
    return (said.decode() if isinstance(said, bytes) else str(said),)
