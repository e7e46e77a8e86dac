"""What verbs that defer jobs have in common: by when, on which forecast, and what that is worth."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Annotated

import typer

from lowtide.cli.options import UsualGridOptions
from lowtide.cli.output import warn
from lowtide.errors import InvalidInput
from lowtide.units import format_iso, format_number, format_percent

if TYPE_CHECKING:
    from lowtide.acting.reckoning import Reckoning
    from lowtide.signal import Signal

FinishBy = Annotated[
    str | None,
    typer.Option(
        "--finish-by",
        help="When it must be done: 8am, 18:00, 2024-07-01T06:00Z, +12h.  [default: it runs now]",
        metavar="TIME",
    ),
]
NO_FORECAST = (
    "there is no forecast: name your grid by --grid (gb, electricitymaps:DE, ...) or LOWTIDE_GRID"
)
# The end of the year 9999, after which nobody can write a date.
_LAST = 253_402_300_000.0
# How far ahead synthetic grids are known.
_AHEAD_S = 2 * 86_400.0


def iso_or_none(instant: float) -> str | None:
    """Return an instant for programs, None where it lies outside of what clocks show."""
    return format_iso(instant) if 0 <= instant < _LAST else None


def read_finish(text: str | None, now: float) -> float | None:
    """Return by when a job has to be done; None where nobody says."""
    from lowtide.cli.moments import local_echo, parse_ahead

    if text is None:
        return None
    deadline = parse_ahead(text, now=now)
    if deadline <= now:
        raise InvalidInput(f"--finish-by {text} has passed: name a time ahead")
    if said := local_echo("--finish-by", text, deadline):
        warn(said)
    return deadline


def forecaster(
    asked: UsualGridOptions, *, until: float | None = None
) -> Callable[[float], Signal | None]:
    """Return who says what is expected of a grid at a moment; nothing where no grid is named.

    Args:
        until: How far a synthetic grid has to reach.
    """
    from lowtide.cli.inputs import find_grid, read_how
    from lowtide.grid import deciding_signal
    from lowtide.grids.resolve import kind_of

    file, how = asked.signal, asked.how
    grid = asked.usual
    if grid is not None and kind_of(grid) == "zone":
        from lowtide.grids.live import LiveGrid

        live = LiveGrid.named(grid)
        live.grid(time.time())
        live.wait(30.0)

        def told(now: float) -> Signal | None:
            known = live.grid(now)
            return None if known is None else deciding_signal(known)

        return told
    kept: dict[object, Signal] = {}

    def renewed(now: float) -> Signal | None:
        """Return what a file or a model says; a file that was written anew is read anew."""
        if file is not None:
            from lowtide.formats import read_signal

            key: object = None
            # Who may not look at it is told so as it is read.
            with suppress(OSError):
                key = file.stat().st_mtime_ns
            if key not in kept:
                kept.clear()
                kept[key] = read_signal(str(file), **read_how(how))
        elif grid is not None:
            key = now // 86_400.0
            if key not in kept:
                kept.clear()
                end = max(until or now, now + _AHEAD_S)
                found = find_grid(grid, "synthetic", since=now, until=end, how=how, seed=asked.seed)
                kept[key] = deciding_signal(found.grid)
        return next(iter(kept.values()), None)

    renewed(time.time())
    return renewed


def worth(known: Reckoning, unit: str | None, once: str) -> str:
    """Return what a plan is to save, in words.

    Args:
        unit: Of amounts; None where they are not known, and shares alone are.
        once: What it is compared with.
    """
    if known.planned_saving is None:
        return ""
    said = f"planned to save {format_percent(known.planned_saving)} against {once}"
    if unit is None or known.planned is None or known.at_once is None:
        return said
    amounts = f"{format_number(known.planned)} {unit} instead of {format_number(known.at_once)}"
    return f"{said} ({amounts} {unit})"
