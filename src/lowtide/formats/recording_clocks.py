"""How far the clocks of machines are apart, by what each heard of the other."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Offset:
    """What the clock of one machine shows more than that of another.

    Attributes:
        low_s: It is no less than this.
        high_s: It is no more than this.
    """

    low_s: float = -math.inf
    high_s: float = math.inf

    @property
    def half_s(self) -> float:
        """How well it is known."""
        return (self.high_s - self.low_s) / 2

    @property
    def shift_s(self) -> float:
        """What to go by: none where the clocks may well agree."""
        return 0.0 if self.low_s <= 0 <= self.high_s else (self.low_s + self.high_s) / 2


def offset_between(
    ours: Iterable[tuple[float, float]], theirs: Iterable[tuple[float, float]]
) -> Offset:
    """Return what our clock shows more than theirs.

    What is read was written before, whatever the file system did in between: that is all it goes
    by, so that slow and lazy file systems make it less sure, and never wrong.

    Args:
        ours: What we read of their clock, each with what ours showed then.
        theirs: What they read of ours, each with what theirs showed then.

    >>> offset_between([(100.0, 160.5)], [(161.0, 101.25)])
    Offset(low_s=59.75, high_s=60.5)
    """
    return Offset(
        low_s=max((written - read for written, read in theirs), default=-math.inf),
        high_s=min((read - written for written, read in ours), default=math.inf),
    )
