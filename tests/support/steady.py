"""A meter whose readings are known, and programs to measure with it."""

from __future__ import annotations

import math
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

from lowtide.errors import MeterProblem
from lowtide.meters import Channel, Found, Reading, Roots


@dataclass
class Steady:
    """A meter that reads 100 W, until it falls silent."""

    name: ClassVar[str] = "steady"
    measured: ClassVar[bool] = True
    means: ClassVar[bool] = False
    slow: ClassVar[bool] = False
    silent_after: int = 10**9
    back_after: int = 10**9
    absurd: bool = False
    gauge: Path | None = None
    readings: int = field(default=0)

    @classmethod
    def find(cls, roots: Roots) -> Found:
        return Found(meter=cls.name, state="works")

    def open(self) -> tuple[Channel, ...]:
        return (Channel(name="node", domain="node"),)

    def sample(self) -> Reading:
        self.readings += 1
        if self.silent_after < self.readings <= self.back_after:
            raise MeterProblem("gone")
        problems = (f"node read {2e6 + self.readings:.0f} W, which a node cannot draw",)
        watts = 100.0 if self.gauge is None else float(self.gauge.read_text() or "100")
        return Reading(
            time=time.time(),
            power_w=(math.nan if self.absurd else watts,),
            energy_j=(math.nan,),
            problems=problems if self.absurd else (),
        )

    def close(self) -> None:
        pass


def python(code: str) -> list[str]:
    return [sys.executable, "-c", code]
