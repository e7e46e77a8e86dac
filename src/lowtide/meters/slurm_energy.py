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
from lowtide.meters.meter import Channel, Counter, Found, Reading, Roots, checked, run_tool

_CHANNEL = Channel(name="node", domain="node")
# What Slurm shows where no plugin counts energy.
_NONE = ("n/s", "0", "")


@dataclass(slots=True, kw_only=True)
class SlurmEnergy:
    """What `scontrol show node` says this node draws and has consumed.

    Slurm reads its sensors every `JobAcctGatherFrequency`/`EnergyIPMIFrequency` seconds, so values
    repeat in between.

    Attributes:
        node: The node's name; by default that of the job this runs in, or the machine's.
        timeout_s: How long scontrol may take.
    """

    name: ClassVar[str] = "slurm"
    measured: ClassVar[bool] = True
    means: ClassVar[bool] = False
    slow: ClassVar[bool] = True
    node: str = field(
        default_factory=lambda: os.environ.get("SLURMD_NODENAME") or os.uname().nodename
    )
    timeout_s: float = 5.0
    _counter: Counter = field(default_factory=lambda: Counter(unit_j=1.0), init=False)

    @classmethod
    def find(cls, roots: Roots) -> Found:  # noqa: ARG003 - asks a tool, not the kernel
        """Say whether Slurm counts energy here.

        Args:
            roots: Not looked at.
        """
        if shutil.which("scontrol") is None:
            return Found(meter=cls.name, state="absent", what="no Slurm")
        try:
            watts, joules = cls()._ask()
        except MeterProblem as error:
            return Found(meter=cls.name, state="absent", what=str(error))
        if math.isnan(watts) and math.isnan(joules):
            return Found(
                meter=cls.name,
                state="constant 0",
                what="this Slurm counts no energy",
                cure="set AcctGatherEnergyType in slurm.conf",
            )
        return Found(meter=cls.name, state="works", what="node")

    def open(self) -> tuple[Channel, ...]:
        """Ask once, and refuse a Slurm that counts nothing."""
        watts, joules = self._ask()
        if math.isnan(watts) and math.isnan(joules):
            raise MeterProblem("this Slurm counts no energy (AcctGatherEnergyType is none)")
        return (_CHANNEL,)

    def sample(self) -> Reading:
        """Ask scontrol."""
        now = time.time()
        watts, joules = self._ask()
        return checked(now, [_CHANNEL], [watts], [self._counter.add(joules)])

    def close(self) -> None:
        """Nothing is kept open."""

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
