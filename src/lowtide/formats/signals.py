"""Signals in and out: what a format has to do, and the two functions that people call.

A format is a module (or any object) with the two functions of `SignalFormat`, registered under
the entry-point group `lowtide.signal_formats`. It finds times, values and labels in a file;
order, step, gaps and bounds are the same for all and live here.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np

from lowtide import files
from lowtide.errors import Argument, FormatError, InvalidInput
from lowtide.formats.source import Place, Source
from lowtide.formats.times import GAP_POLICIES, check_floor, lay_out
from lowtide.registry import Registry
from lowtide.signal import BASES, FloatArray, MarkArray, Signal
from lowtide.units import intensity_factor

# The format that knows least of what it reads is asked last.
_LAST = "table"
_FLOORS = {
    "average": (0.0, "carbon intensity must be 0 or more"),
    "marginal": (0.0, "carbon intensity must be 0 or more"),
    "price": (-np.inf, "a price must be finite"),
    "pue": (1.0, "PUE must be at least 1"),
    "power": (0.0, "a power cap must be 0 W or more"),
    "nodes": (0.0, "there cannot be fewer than 0 nodes"),
}
# Beyond these a value is a slip.
_MOST = 1e9
_MOST_G = 1e5
# A whole file below this is hardly in g/kWh.
_LEAST_ASSUMED_G = 5.0
# What files may hold; other kinds of signal are computed.
READ_KINDS = tuple(_FLOORS)


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """What the caller said about a signal; None where nothing was said.

    Attributes:
        kind: `average`, `marginal`, `price` or `pue`.
        basis: `lifecycle` or `direct`.
        zone: The grid zone.
        unit: The unit of the values in the file.
        column: The heading or key of the values.
        tz: The zone of times without an offset.
    """

    kind: str | None = None
    basis: str | None = None
    zone: str | None = None
    unit: str | None = None
    column: str | None = None
    tz: str | None = None

    def agree(self, what: str, stated: str | None, path: Path) -> str | None:
        """Return what file and caller say, and refuse if they contradict each other.

        Args:
            stated: What the file says of itself, None where it is silent.
        """
        asked: str | None = getattr(self, what)
        if stated is not None and asked is not None and stated != asked:
            given = Argument(what)
            raise InvalidInput(
                f"{path} says that its {what} is {stated!r}, and {asked!r} was asked for: "
                f"leave out {given} or read another file",
                arguments=(given,),
            )
        return asked if stated is None else stated


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """What a format finds in a file.

    Attributes:
        times: When each value's step begins, in epoch seconds.
        values: The values in the file's unit, NaN where there is none.
        place: Where they stand.
        unit: The file's unit.
        source: Where they come from, in words.
        kind: `average`, `marginal`, `price` or `pue`.
        basis: `lifecycle` or `direct`.
        zone: The grid zone.
        step_s: The step, where the file states it.
        synthetic: Whether the file says that a model made it.
        marks: Which values the file says were filled in or estimated.
        assumed: Whether nobody said the unit, and it is taken to be g/kWh.
    """

    times: FloatArray
    values: FloatArray
    place: Place
    unit: str
    source: str
    kind: str = "average"
    basis: str | None = "lifecycle"
    zone: str | None = None
    step_s: float | None = None
    synthetic: bool = False
    marks: MarkArray | None = None
    assumed: bool = False


class SignalFormat(Protocol):
    """One way of writing a signal into a file."""

    def recognises(self, source: Source) -> bool:
        """Return whether the content looks like this format."""
        ...

    def series(self, source: Source, wish: Wish) -> Series:
        """Find times, values and labels in the file."""
        ...


FORMATS: Registry[SignalFormat] = Registry("lowtide.signal_formats", "signal format")


def read_signal(
    path: Path | str,
    *,
    format: str | None = None,  # noqa: A002 - the word everyone uses for it
    kind: str | None = None,
    basis: str | None = None,
    zone: str | None = None,
    unit: str | None = None,
    column: str | None = None,
    tz: str | None = None,
    gaps: str = "refuse",
) -> Signal:
    """Read a carbon-intensity, price or PUE signal; the format is told by the content.

    An intensity whose heading names no unit is taken as g/kWh; a price is never guessed.

    Args:
        path: The file, plain or gzip.
        format: Which format it is, where it should not be told by its content.
        kind: `average`, `marginal`, `price` or `pue`, where the file does not say.
        basis: `lifecycle` or `direct`; picks the column where a file has both.
        zone: The grid zone; picks the rows where a file has several.
        unit: The unit of the values, where the file does not say.
        column: The heading (or JSON key) of the values.
        tz: The IANA zone, or `UTC`, of times that carry no offset.
        gaps: `refuse` missing steps, `hold` the last value, or `interpolate` linearly.
    """
    for what, given, known in (
        ("kind", kind, READ_KINDS),
        ("basis", basis, BASES),
        ("gaps", gaps, GAP_POLICIES),
    ):
        if given is not None and given not in known:
            raise InvalidInput(f"{what} is one of {', '.join(known)}, not {given!r}")
    source = Source.open(path)
    wish = Wish(kind=kind, basis=basis, zone=zone, unit=unit, column=column, tz=tz)
    series = _format_of(source, format).series(source, wish)
    lowest, rule = _FLOORS[series.kind]
    check_floor(series.values, lowest, rule, series.place)
    _check_ceiling(series)
    line = lay_out(
        series.times,
        series.values,
        series.place,
        gaps=gaps,
        step_s=series.step_s,
        marks=series.marks,
    )
    if series.assumed:
        _check_assumed(series)
    return Signal.from_values(
        line.values,
        start=line.start,
        step_s=line.step_s,
        kind=series.kind,
        basis=series.basis,
        zone=series.zone,
        unit=series.unit,
        source=series.source,
        synthetic=series.synthetic,
        marks=line.marks,
    )


def _check_ceiling(series: Series) -> None:
    """Refuse values beyond all reason, and say where they stand."""
    most, rule = _MOST, f"no {series.kind} is that large"
    if series.kind in ("average", "marginal"):
        factor = intensity_factor(series.unit)
        most, rule = _MOST_G / factor, "carbon intensity must be from 0 to 100,000 g/kWh"
    wild = np.flatnonzero(np.abs(series.values) > most)
    if wild.size:
        given, hold = f"{series.values[wild[0]]:g}", Argument("gaps", "hold")
        raise series.place.error(
            f"{rule}, not {given} ({series.unit}): mend the value, or leave it empty and say "
            f"{hold}",
            int(wild[0]),
            hold,
        )


def _check_assumed(series: Series) -> None:
    """Refuse to take for grams what may be kilograms: no grid of any size stays below 5 g/kWh."""
    known = series.values[np.isfinite(series.values)]
    if known.size and known.max() < _LEAST_ASSUMED_G:
        kilograms, grams = Argument("unit", "kg/kWh"), Argument("unit", "g/kWh")
        raise series.place.error(
            f"the heading names no unit, and all values lie below {_LEAST_ASSUMED_G:g} (up to "
            f"{known.max():.4g}), which looks like kilograms: say {kilograms}, or {grams} "
            "if it is that",
            None,
            kilograms,
            grams,
        )


def write_signal(signal: Signal, path: Path | str) -> None:
    """Write a signal as a plain table that `read_signal` reads back equal.

    Times are written to the microsecond.
    """
    from lowtide.formats.table import render  # polars comes with it

    files.write_whole(path, render(signal))


def _format_of(source: Source, name: str | None) -> SignalFormat:
    if name is not None:
        return FORMATS.load(name)
    names = sorted(FORMATS.names(), key=lambda known: (known == _LAST, known))
    for known in names:
        candidate = FORMATS.load(known)
        if candidate.recognises(source):
            return candidate
    raise unrecognised(source, "signal", names)


def unrecognised(source: Source, what: str, names: list[str]) -> FormatError:
    """Return the error for a file that no format knows."""
    from lowtide.formats.table_reader import Sheet  # polars comes with it

    sheet = Sheet.of(source) if source.is_parquet else None
    if sheet is not None:
        seen = f"It is a table of {', '.join(sheet.headings)}"
    else:
        first = source.head.strip().split("\n")[0][:60]
        seen = f"It begins with {first!r}"
    return FormatError(
        f"no known format of a {what}; tried {', '.join(names)}. {seen}. "
        "If it is one of these, say which with format=",
        path=source.path,
        arguments=(Argument("format"),),
    )
