"""From a name to a grid: a synthetic one, a provider's zone or a file, the same for everybody."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lowtide.errors import FileProblem, InvalidInput, UnknownName
from lowtide.grid import Grid
from lowtide.grids.models import GRID_NAMES
from lowtide.grids.providers import PROVIDERS, names_a_zone
from lowtide.grids.synthetic import synthetic_grid
from lowtide.signal import Signal
from lowtide.units import TimeLike, parse_time

if TYPE_CHECKING:
    from lowtide.grids.live import Retrieved

_DAY_S = 86_400.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Resolved:
    """A grid that somebody named.

    Attributes:
        name: What it was called.
        signals: What is known of it by kind, what was mainly asked for first.
        retrieved: What providers said; nothing of grids that are no zones.
    """

    name: str
    signals: Mapping[str, Signal]
    retrieved: Sequence[Retrieved] = ()

    @property
    def grid(self) -> Signal | Grid:
        """What a job can be planned on: the signal of a file, prices included, or what is known."""
        if len(self.signals) == 1 and not self.retrieved:
            return next(iter(self.signals.values()))
        average, marginal = self.signals.get("average"), self.signals.get("marginal")
        if average is not None:
            return Grid(average=average, marginal=marginal, price=self.signals.get("price"))
        if marginal is None:
            raise InvalidInput(f"{self.name} tells no carbon intensity")
        return marginal

    @property
    def average(self) -> Signal:
        """What is emitted on average, which a grid may not tell."""
        if "average" not in self.signals:
            raise InvalidInput(f"{self.name} tells no average intensity")
        return self.signals["average"]

    def note(self, now: float) -> str:
        """Return what should be known of the signals: how old they are, and other caveats."""
        return " ".join(filter(None, (each.note(now) for each in self.retrieved)))


def kind_of(name: str, *, files: bool = False) -> str:
    """Return whether a name is that of a `synthetic` grid, a provider's `zone` or a `file`.

    Args:
        files: Whether it may be a file at all.

    >>> kind_of("windy"), kind_of("gb:13")
    ('synthetic', 'zone')
    """
    if name in GRID_NAMES:
        return "synthetic"
    if names_a_zone(name):
        return "zone"
    if not files:
        raise UnknownName("grid", name.partition(":")[0], [*GRID_NAMES, *PROVIDERS.names()])
    if not Path(name).exists():
        raise FileProblem(
            f"{name!r} is neither a file nor a synthetic grid ({', '.join(GRID_NAMES)}) nor a "
            f"zone of a provider ({', '.join(PROVIDERS.names())})",
            path=name,
        )
    return "file"


def resolve(
    name: str,
    *,
    kind: str | None = None,
    since: TimeLike | None = None,
    until: float | None = None,
    how: Mapping[str, Any] | None = None,
    settled: bool = False,
    **weather: Any,
) -> Resolved:
    """Return the grid that a name stands for.

    Args:
        kind: What `kind_of` says of the name, where that is known already.
        since: The first moment that is needed. A synthetic grid begins there, or with its day where
            it is to reach `until`.
        until: How far a synthetic grid is to reach, where `days` does not say it.
        how: How it is read: a file as `read_signal` takes it, a zone with `gaps`.
        settled: Whether of a zone all that ever came is asked for, and nothing that was expected.
        weather: What else `synthetic_grid` takes.
    """
    kind = kind or kind_of(name)
    if kind == "synthetic":
        if until is not None and since is not None:
            first = parse_time(since)
            since = first - first % _DAY_S
            weather["days"] = max(math.ceil((until - since) / _DAY_S), 1)
        if since is not None:
            weather["start"] = since
        made = synthetic_grid(name, **weather)
        found = {"average": made.average, "marginal": made.marginal, "price": made.price}
        return Resolved(name=name, signals={key: each for key, each in found.items() if each})
    if kind == "zone":
        from lowtide.grids.live import fetch_named

        told = fetch_named(name, since=since, settled=settled, **(how or {}))
        return Resolved(
            name=name, signals={each.signal.kind: each.signal for each in told}, retrieved=told
        )
    from lowtide.formats import read_signal

    signal = read_signal(name, **(how or {}))
    return Resolved(name=name, signals={signal.kind: signal})
