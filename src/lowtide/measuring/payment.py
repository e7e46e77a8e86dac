"""What a measured run emitted and cost, by a grid's signal at the time when it ran."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from lowtide.certainty import marked
from lowtide.errors import LowtideError
from lowtide.grid import Grid, carbon_and_price
from lowtide.recording import Run
from lowtide.signal import Signal
from lowtide.units import JOULES_PER_KWH, format_mass, format_number


@dataclass(frozen=True, slots=True, kw_only=True)
class Paid:
    """What a run came to.

    Attributes:
        carbon_g: What it emitted, None where that is not known.
        cost: What it cost, None where that is not known.
        currency: What that is in.
        synthetic: Whether the grid comes from a model.
        partial: Whether part of the run was not measured: it came to at least that.
        notes: Why something is not known, in words.
    """

    carbon_g: float | None = None
    cost: float | None = None
    currency: str = ""
    synthetic: bool = False
    partial: bool = False
    notes: tuple[str, ...] = ()

    def words(self) -> list[str]:
        """Return what is known of it, for people."""
        told = []
        if self.carbon_g is not None:
            told.append(f"{marked(format_mass(self.carbon_g), partial=self.partial)} CO2e")
        if self.cost is not None:
            told.append(f"{marked(format_number(self.cost), partial=self.partial)} {self.currency}")
        if told and self.synthetic:
            told[-1] += " (synthetic grid)"
        return told


def pay(run: Run, grid: str | Path | Signal | Grid) -> Paid:
    """Return what a run emitted and cost.

    What cannot be told, because the grid says nothing of that time or cannot be had, is None.

    Args:
        grid: A synthetic grid, a provider's zone, a file, or a signal.
    """
    if math.isnan(run.energy_j()):
        return Paid(notes=("what it emitted is not known, as what it drew is not",))
    try:
        known = grid if isinstance(grid, Signal | Grid) else _resolved(str(grid), run)
        carbon, price = carbon_and_price(known)
        grams = None if carbon is None else amount_of_run(run, carbon)
        cost = None if price is None else amount_of_run(run, price)
    except LowtideError as error:
        return Paid(notes=(f"what it emitted is not known: {error}",))
    decided = carbon or price
    return Paid(
        carbon_g=grams,
        cost=cost,
        currency="" if price is None else price.currency,
        synthetic=decided is not None and decided.synthetic,
        partial=run.missing_s > 0,
    )


def check_grid(grid: str | Path | Signal | Grid) -> None:
    """Refuse a grid that nobody knows, or a file that cannot be read; no provider is asked."""
    from lowtide.grids.resolve import kind_of, resolve

    if not isinstance(grid, Signal | Grid) and kind_of(str(grid), files=True) == "file":
        resolve(str(grid), kind="file")


def _resolved(name: str, run: Run) -> Signal | Grid:
    from lowtide.grids.resolve import kind_of, resolve

    kind = kind_of(name, files=True)
    if kind == "file":
        return resolve(name, kind=kind).grid
    until = run.end if kind == "synthetic" else None
    return resolve(name, kind=kind, since=run.start, until=until).grid


def amount_of_run(run: Run, signal: Signal) -> float:
    """Return the integral of power times signal over a run, exactly; NaN power counts nothing."""
    signal.require(run.start, run.end, what="the grid's signal")
    inner = signal.edges[(signal.edges > run.start) & (signal.edges < run.end)]
    cuts = np.concatenate(([run.start], inner, [run.end]))
    energy_j = np.diff(run.energies_j(cuts))
    return float((energy_j * signal.at(cuts[:-1])).sum() / JOULES_PER_KWH)
