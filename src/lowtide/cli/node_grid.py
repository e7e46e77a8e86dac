"""From the options of a node to its grid, and to what its energy emits.

What reads signals takes as much memory as all the rest of a watch: it is imported where it is used.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING

from lowtide.cli.options import NodeOptions, require_one_grid
from lowtide.errors import InvalidInput

if TYPE_CHECKING:
    from lowtide.grid import Grid
    from lowtide.grids.live import LiveGrid
    from lowtide.signal import Signal
    from lowtide.watching.emissions import Emissions

# How far a synthetic grid goes from today.
_SYNTHETIC_DAYS = 400
# How long the first answer of a provider is waited for.
_ANSWER_S = 3.0
# What of `--how` is true of the file with marginal intensity, too.
_SHARED = ("format", "gaps", "tz", "zone")


def load_live(asked: NodeOptions) -> LiveGrid | None:
    """Return the grid of a provider's zone, kept up to date; None where none is named."""
    if asked.grid is None or asked.signal is not None:
        # What reads signals takes as much memory as all the rest of a watch.
        return None
    from lowtide.cli.inputs import refuse_how
    from lowtide.grids.live import LiveGrid
    from lowtide.grids.providers import names_a_zone

    if not names_a_zone(asked.grid):
        return None
    refuse_how(asked.how, "a provider")
    live = LiveGrid.named(asked.grid)
    live.grid(time.time())
    live.wait(_ANSWER_S)
    return live


def load_emissions(
    asked: NodeOptions, live: LiveGrid | None, embodied_kg: float | None, lifetime: str
) -> Emissions:
    """Return how energy becomes grams."""
    from lowtide.units import parse_duration
    from lowtide.watching.emissions import Emissions

    require_one_grid(asked.signal, asked.grid)
    if asked.marginal is not None and asked.signal is None:
        raise InvalidInput(
            "--marginal goes with the average intensity in --signal FILE; a provider's zone of "
            "each kind is --grid AVERAGE+MARGINAL, as in electricitymaps:DE+watttime:DE"
        )
    if asked.how and asked.signal is None and asked.grid is None:
        raise InvalidInput("--how says how to read a file: add --signal FILE")
    grid = None
    if live is None and (asked.grid is not None or asked.signal is not None):
        grid = _node_grid(asked)
    return Emissions(
        grid=grid,
        pue=asked.pue,
        embodied_g=None if embodied_kg is None else 1000.0 * embodied_kg,
        lifetime_s=parse_duration(lifetime),
    )


def _node_grid(asked: NodeOptions) -> Grid:
    from lowtide.cli.inputs import find_grid, read_how
    from lowtide.grid import Grid

    if asked.signal is None:
        midnight = time.time() // 86400 * 86400
        found = find_grid(
            str(asked.grid),
            "synthetic",
            since=midnight,
            days=_SYNTHETIC_DAYS,
            how=asked.how,
            seed=asked.seed,
        )
        return Grid(**found.signals)
    said = read_how(asked.how)
    average = _read_intensity(
        asked.signal,
        said,
        "average",
        "what is reported is counted by the average; marginal intensity goes with it as --marginal",
    )
    if asked.marginal is None:
        return Grid(average=average)
    beside = {key: value for key, value in said.items() if key in _SHARED}
    marginal = _read_intensity(
        asked.marginal, {**beside, "kind": "marginal"}, "marginal", "it goes with --signal"
    )
    return Grid(average=average, marginal=marginal)


def _read_intensity(path: Path, said: dict[str, str], kind: str, rule: str) -> Signal:
    from lowtide.formats import read_signal

    read = read_signal(str(path), **said)
    if read.kind == "price":
        raise InvalidInput(f"{path} has prices: emissions need a carbon intensity")
    if read.kind != kind:
        raise InvalidInput(f"{path} has {read.kind} intensity: {rule}")
    return read
