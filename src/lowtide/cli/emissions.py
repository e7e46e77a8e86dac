"""What a node's energy emits, as the options of `watch` and `node` say."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from lowtide.grids.live import LiveGrid
    from lowtide.signal import Grid, Signal
    from lowtide.watching.emissions import Emissions
    from lowtide.watching.service import Watch

# How far a synthetic grid goes from today.
_SYNTHETIC_DAYS = 400
# How long the first answer of a provider is waited for.
_ANSWER_S = 3.0
# What of `--how` is true of the file with marginal intensity, too.
_SHARED = ("format", "gaps", "tz", "zone")


def load_live(grid: str | None, signal: Path | None, how: list[str] | None) -> LiveGrid | None:
    """Return the grid of a provider's zone, kept up to date; None where none is named.

    Args:
        grid: A provider's zone, or the name of a synthetic grid.
    """
    if grid is None or signal is not None:
        # What reads signals takes as much memory as all the rest of a watch.
        return None
    from lowtide.cli.inputs import refuse_how
    from lowtide.grids.live import LiveGrid
    from lowtide.grids.providers import names_a_zone

    if not names_a_zone(grid):
        return None
    refuse_how(how, "a provider")
    live = LiveGrid.named(grid)
    live.grid(time.time())
    live.wait(_ANSWER_S)
    return live


def renewing(live: LiveGrid | None, opened: Watch) -> list[Callable[[float], None]]:
    """Return what keeps the grid of a watch up to date.

    Args:
        live: The grid; None where it does not change.
    """
    if live is None:
        return []
    watcher = opened.watcher

    def renew(now: float) -> None:
        watcher.emissions = watcher.emissions.renewed(live, now)

    return [renew]


def load_emissions(
    signal: Path | None,
    grid: str | None,
    how: list[str] | None,
    seed: int,
    *,
    marginal: Path | None = None,
    pue: float,
    embodied_kg: float | None = None,
    lifetime: str = "1461d",
) -> Emissions:
    """Return how energy becomes grams, as the options say.

    Args:
        marginal: A file with the grid's marginal intensity, beside the other.
        pue: What the building draws for each watt of the node's.
    """
    from lowtide.errors import InvalidInput
    from lowtide.units import parse_duration
    from lowtide.watching.emissions import Emissions

    if signal is not None and grid is not None:
        raise InvalidInput("a node is on one grid: give --signal or --grid, not both")
    if marginal is not None and signal is None:
        raise InvalidInput(
            "--marginal goes with the average intensity in --signal FILE; a provider's zone of "
            "each kind is --grid AVERAGE+MARGINAL, as in electricitymaps:DE+watttime:DE"
        )
    if how and signal is None and grid is None:
        raise InvalidInput("--how says how to read a file: add --signal FILE")
    known = None
    if grid is not None or signal is not None:
        known = _load_grid(signal, grid, how, seed, marginal)
    return Emissions(
        grid=known,
        pue=pue,
        embodied_g=None if embodied_kg is None else 1000.0 * embodied_kg,
        lifetime_s=parse_duration(lifetime),
    )


def _load_grid(
    signal: Path | None, grid: str | None, how: list[str] | None, seed: int, marginal: Path | None
) -> Grid:
    from lowtide.cli.inputs import read_how, refuse_how
    from lowtide.grids import synthetic_grid
    from lowtide.signal import Grid

    if grid is not None:
        refuse_how(how, "a synthetic grid")
        midnight = time.time() // 86400 * 86400
        return synthetic_grid(grid, start=midnight, days=_SYNTHETIC_DAYS, seed=seed)
    said = read_how(how)
    average = _read(
        signal,
        said,
        "average",
        "what is reported is counted by the average; marginal intensity goes with it as --marginal",
    )
    if marginal is None:
        return Grid(average=average)
    beside = {key: value for key, value in said.items() if key in _SHARED}
    return Grid(
        average=average,
        marginal=_read(
            marginal, {**beside, "kind": "marginal"}, "marginal", "it goes with --signal"
        ),
    )


def _read(path: Path | None, said: dict[str, str], kind: str, rule: str) -> Signal:
    from lowtide.errors import InvalidInput
    from lowtide.formats import read_signal

    read = read_signal(str(path), **said)
    if read.kind == "price":
        raise InvalidInput(f"{path} has prices: emissions need a carbon intensity")
    if read.kind != kind:
        raise InvalidInput(f"{path} has {read.kind} intensity: {rule}")
    return read
