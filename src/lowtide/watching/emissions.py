"""What a node's energy emits: the grid at that moment, the building around it, its making."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from lowtide.errors import InvalidInput
from lowtide.grid import Grid
from lowtide.monitor.snapshot import FloatArray
from lowtide.signal import Signal
from lowtide.units import JOULES_PER_KWH, format_time

if TYPE_CHECKING:
    from lowtide.grids.live import LiveGrid


@dataclass(frozen=True, slots=True, kw_only=True)
class Emissions:
    """How energy and time become grams.

    Attributes:
        grid: Intensity of the node's zone; None where it is not known.
        pue: What the building draws for each watt of the node's.
        embodied_g: What making the node emitted; None where it is not known.
        lifetime_s: How long the node is expected to serve.
        notes: What is wrong with the grid's signal at the moment, in words.
    """

    grid: Grid | None = None
    pue: float = 1.0
    embodied_g: float | None = None
    lifetime_s: float = 4 * 365.25 * 86400.0
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not 1.0 <= self.pue < math.inf:
            raise InvalidInput(f"PUE is 1 or more, not {self.pue:g}")
        if self.embodied_g is not None and not 0 <= self.embodied_g < math.inf:
            raise InvalidInput(f"embodied emissions are 0 g or more, not {self.embodied_g:g}")
        if not 0 < self.lifetime_s < math.inf:
            raise InvalidInput(f"a node's lifetime is more than 0 s, not {self.lifetime_s:g}")

    @property
    def synthetic(self) -> bool:
        """Whether the intensity comes from a model: then so do all grams."""
        return self.grid is not None and self.grid.average.synthetic

    def average(self, since: float, until: float) -> float:
        """Return the average intensity between two moments, g/kWh; NaN where it is not known."""
        return _mean(None if self.grid is None else self.grid.average, since, until)

    def marginal(self, since: float, until: float) -> float:
        """Return the marginal intensity between two moments, g/kWh; NaN where it is not known."""
        return _mean(None if self.grid is None else self.grid.marginal, since, until)

    def problems(self, moment: float) -> tuple[str, ...]:
        """Return why the intensity of a moment is not known, where it should be."""
        if self.grid is None or self.grid.average.covers(moment, moment):
            return self.notes
        signal = self.grid.average
        begin, end = format_time(signal.start), format_time(signal.end)
        return (
            *self.notes,
            f"the grid's signal goes from {begin} to {end}: what is emitted outside of that is not "
            "known; watch with a newer one",
        )

    def renewed(self, live: LiveGrid, now: float) -> Emissions:
        """Return the same with what is known of the grid now.

        Args:
            now: Epoch seconds.
        """
        return replace(self, grid=live.grid(now), notes=live.failures)

    def emitted_g(self, energy_j: FloatArray, intensity_g_per_kwh: float) -> FloatArray:
        """Return what some energy emitted, the building included."""
        return energy_j * (self.pue * intensity_g_per_kwh / JOULES_PER_KWH)

    def made_g(self, reserved_share: FloatArray, passed_s: float) -> FloatArray:
        """Return the share of the node's making that falls to some time on a part of it.

        Args:
            reserved_share: Which part of the node is kept for whom, from 0 to 1.
        """
        if self.embodied_g is None:
            return np.full(reserved_share.shape, np.nan)
        return reserved_share * (self.embodied_g * passed_s / self.lifetime_s)


def _mean(signal: Signal | None, since: float, until: float) -> float:
    """Return the mean of a signal, of what is left of it where it ends; NaN outside."""
    if signal is None or not since < until or not signal.covers(since, until):
        return math.nan
    return signal.mean(since, until)
