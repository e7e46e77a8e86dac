"""Slurm's own energy accounting: what its plugin has counted for a job or a node."""

from __future__ import annotations

import math
import os
import re
import shutil
import time
from dataclasses import dataclass, field
from typing import ClassVar

from lowtide.errors import MeterProblem
from lowtide.meters.meter import (
    BaseMeter,
    Channel,
    Counter,
    Found,
    NoAnswer,
    Reading,
    Roots,
    checked,
    run_tool,
    silent,
)

_CHANNEL = Channel(name="node", domain="node")
# What Slurm shows where no plugin counts energy: words, nothing, or its largest numbers but one
# (NO_VAL and INFINITE of 32 and 64 bits, slurm.h).
_NONE = {"n/s", "0", "", *(str(2**bits - less) for bits in (32, 64) for less in (1, 2))}
# A count that does not move for so many times as long as it took before is no longer renewed.
_STALE_TURNS = 3


@dataclass(slots=True, kw_only=True)
class SlurmEnergy(BaseMeter):
    """What `scontrol show node` says this node draws and has consumed.

    Slurm reads its sensors every `JobAcctGatherFrequency`/`EnergyIPMIFrequency` seconds, so values
    repeat in between. Where it shows joules alone, power is their difference from one time that
    they moved to the next.

    Attributes:
        node: The node's name; by default that of the job this runs in, or the machine's.
        timeout_s: How long scontrol may take.
    """

    name: ClassVar[str] = "slurm"
    slow: ClassVar[bool] = True
    node: str = field(
        default_factory=lambda: os.environ.get("SLURMD_NODENAME") or os.uname().nodename
    )
    timeout_s: float = 5.0
    # Joules of a minute come all at once: what that means per second says nothing of a reset.
    _counter: Counter = field(default_factory=lambda: Counter(unit_j=1.0), init=False)
    # The joules before, when they last moved, how long that took, and what was drawn meanwhile.
    _joules: float = field(default=math.nan, init=False)
    _moved_s: float | None = field(default=None, init=False)
    _turn_s: float = field(default=math.nan, init=False)
    _mean_w: float = field(default=math.nan, init=False)

    @classmethod
    def find(cls, roots: Roots) -> Found:  # noqa: ARG003 - asks a tool, not the kernel
        """Say whether Slurm counts energy here."""
        if shutil.which("scontrol") is None:
            return Found(meter=cls.name, state="absent", what="no Slurm")
        try:
            watts, joules = cls()._ask()
        except NoAnswer as error:
            return silent(cls.name, error)
        except MeterProblem as error:
            return Found(meter=cls.name, state="absent", what=str(error))
        if math.isnan(watts) and math.isnan(joules):
            return Found(
                meter=cls.name,
                state="constant 0",
                what="this Slurm counts no energy",
                cure="set AcctGatherEnergyType in slurm.conf",
            )
        by = ", by its joules alone" if math.isnan(watts) else ""
        return Found(meter=cls.name, state="works", what=f"node{by}")

    def open(self) -> tuple[Channel, ...]:
        """Ask once, and refuse a Slurm that counts nothing."""
        watts, joules = self._ask()
        if math.isnan(watts) and math.isnan(joules):
            raise MeterProblem("this Slurm counts no energy (AcctGatherEnergyType is none)")
        return (_CHANNEL,)

    def sample(self) -> Reading:
        """Ask scontrol."""
        now, moment = time.time(), time.monotonic()
        watts, joules = self._ask()
        counted_j = self._counter.add(joules, moment)
        mean_w = self._mean(counted_j, moment)
        resets = [_CHANNEL] if self._counter.was_reset else []
        power_w = mean_w if math.isnan(watts) else watts
        return checked(now, [_CHANNEL], [power_w], [counted_j], resets=resets)

    def _mean(self, joules: float, moment: float) -> float:
        """Return what was drawn between the last two times that the joules moved."""
        if not math.isnan(joules):
            if self._counter.was_reset:
                self._moved_s, self._turn_s, self._mean_w = None, math.nan, math.nan
            elif joules > self._joules:
                if self._moved_s is not None:
                    self._turn_s = moment - self._moved_s
                    self._mean_w = (joules - self._joules) / self._turn_s
                self._moved_s = moment
            self._joules = joules
        if self._moved_s is None or moment - self._moved_s > _STALE_TURNS * self._turn_s:
            return math.nan
        return self._mean_w

    def _ask(self) -> tuple[float, float]:
        text = run_tool(("scontrol", "-o", "show", "node", self.node), timeout_s=self.timeout_s)
        return read_node(text)


def read_node(text: str) -> tuple[float, float]:
    """Return watts now and joules consumed, NaN for what is not counted.

    Args:
        text: What `scontrol show node` printed.
    """

    def number(key: str) -> float:
        match = re.search(rf"\b{key}=(\S*)", text)
        if match is None or match[1] in _NONE:
            return math.nan
        value = re.match(r"\d+(?:\.\d+)?", match[1])
        return float(value[0]) if value else math.nan

    return number("CurrentWatts"), number("ConsumedJoules")
