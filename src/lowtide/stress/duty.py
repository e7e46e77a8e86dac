"""Keeping a level: work and rest in short slices, and what was worked."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Protocol

# Long against a piece of work, short against a step and against what meters average over.
SLICE_S = 0.025


class Load(Protocol):
    """Something that keeps one part of the machine busy."""

    def busy_s(self) -> float:
        """Return a clock that runs while the part is busy."""

    def work(self) -> float:
        """Work for a few milliseconds at most; return how much was done, in the load's unit."""


def keep_level(
    load: Load,
    share: float,
    *,
    start: float,
    end: float,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> tuple[float, float]:
    """Keep a load busy for a share of a stretch of time; return seconds worked and what was done.

    What a slice could not do because the machine was busy, the next slices make up for.

    Args:
        share: From 0, never, to 1, always.
        start: When the stretch begins, by the clock; it may be past.
        end: When it ends. The last piece of work begun before it may end later.
        sleep: Waits for so many seconds.
    """
    slices = max(round((end - start) / SLICE_S), 1)
    worked_s = done = piece_s = 0.0
    if (early_s := start - clock()) > 0:
        sleep(early_s)
    for number in range(1, slices + 1):
        until = start + (end - start) * number / slices
        owed_s = share * (until - start)
        # Stopping half a piece early as often as late leaves no bias.
        while worked_s + min(piece_s, SLICE_S) / 2 < owed_s and clock() < until:
            before_s = load.busy_s()
            done += load.work()
            piece_s = load.busy_s() - before_s
            worked_s += piece_s
        if (left_s := until - clock()) > 0:
            sleep(left_s)
    return worked_s, done
