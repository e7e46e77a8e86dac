"""Two ticks as one: the later, and what ended in the earlier, which no later one tells of."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import numpy as np

from lowtide.monitor.snapshot import FloatArray
from lowtide.monitor.tick import Shares, Tick

# What a tick may leave out for all its units, and what is so then.
_LEFT_OUT = ("watched_cpu_s", "system_s", "ended")


def joined(earlier: Tick, later: Tick) -> Tick:
    """Return a tick that stands for two that follow each other.

    Everything that is counted goes on from tick to tick, so the later one tells of both, but for
    units that it has no more.
    """
    here = {unit.key for unit in later.units}
    left = [place for place, unit in enumerate(earlier.units) if unit.key not in here]
    skipped_s = earlier.skipped_s + later.skipped_s
    if not left:
        return replace(later, skipped_s=skipped_s)
    count = len(later.units)
    columns = _columns(earlier, later, left)
    columns |= {name: _put(name, earlier, later, left) for name in _LEFT_OUT}
    lacking = {count + at for at, place in enumerate(left) if place in earlier.shares.lacking}
    shares = replace(
        later.shares,
        **_columns(earlier.shares, later.shares, left),
        lacking=later.shares.lacking | lacking,
    )
    return replace(
        later,
        units=(*later.units, *(earlier.units[place] for place in left)),
        skipped_s=skipped_s,
        shares=shares,
        **columns,
    )


def _columns(earlier: Tick | Shares, later: Tick | Shares, left: list[int]) -> dict[str, Any]:
    """Return all columns that both have, with the rows that are left of the earlier one."""
    return {
        field.name: np.concatenate([column, getattr(earlier, field.name)[left]])
        for field in fields(later)
        if field.name not in _LEFT_OUT
        and isinstance(column := getattr(later, field.name), np.ndarray)
    }


def _put(name: str, earlier: Tick, later: Tick, left: list[int]) -> FloatArray | None:
    """Return a column that either may leave out."""
    if name == "ended":
        # Who is not there any more was gone by the later one, whether or not anybody saw it go.
        gone = _otherwise(name, earlier)[left]
        gone = np.where(np.isnan(gone), earlier.time, gone)
        return np.concatenate([_otherwise(name, later), gone])
    if getattr(earlier, name) is None and getattr(later, name) is None:
        return None
    return np.concatenate([_otherwise(name, later), _otherwise(name, earlier)[left]])


def _otherwise(name: str, tick: Tick) -> FloatArray:
    """Return a column, or what is so where it is left out."""
    column: FloatArray | None = getattr(tick, name)
    if column is not None:
        return column
    return tick.cpu_s if name == "watched_cpu_s" else np.full(len(tick.units), np.nan)
