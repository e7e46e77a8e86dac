"""The signals of one zone together, and which of them decides: one by name, or a mix."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from lowtide.errors import InvalidInput, InvalidSignal, UnknownName
from lowtide.signal import Signal
from lowtide.units import format_html, require_number

# What jobs may be decided by, of what a grid says.
DECIDING = ("average", "marginal", "price")


@dataclass(frozen=True, slots=True, kw_only=True)
class Grid:
    """Average intensity, and where known marginal intensity and price, of one zone.

    `plan` and `footprint` take a grid where they take a signal: carbon is then counted with the
    average intensity and cost with the price.

    Attributes:
        average: Average carbon intensity.
        marginal: Marginal carbon intensity.
        price: Wholesale price.

    >>> flat = Signal.from_values([300.0], start=0, step_s="1h")
    >>> Grid(average=flat).price is None
    True
    """

    average: Signal
    marginal: Signal | None = None
    price: Signal | None = None

    def __post_init__(self) -> None:
        for name in ("average", "marginal", "price"):
            signal = getattr(self, name)
            if signal is not None and signal.kind != name:
                raise InvalidSignal(
                    f"a grid's {name} is a signal of that kind, not {signal.kind!r}"
                )

    @property
    def signals(self) -> list[Signal]:
        """The signals that it has."""
        return [each for each in (self.average, self.marginal, self.price) if each is not None]

    def chart(self) -> Any:
        """Return its curves below each other, as a chart of Altair."""
        from lowtide.registry import chart_of

        return chart_of("grid", self)

    def _repr_html_(self) -> str:
        return format_html("\n".join(map(repr, self.signals)))


def carbon_and_price(signal: Signal | Grid) -> tuple[Signal | None, Signal | None]:
    """Return the signal that carbon is counted with and the one that cost is, where given."""
    _require_signal(signal)
    if isinstance(signal, Grid):
        return signal.average, signal.price
    if signal.kind == "price":
        return None, signal
    if signal.kind == "pue":
        raise InvalidSignal(
            "PUE says what a site adds to energy: give it as pue=, not as the signal"
        )
    return signal, None


def deciding_signal(signal: Signal | Grid) -> Signal:
    """Return the signal that a planner minimises: carbon where there is any, else the price."""
    _require_signal(signal)
    return signal.average if isinstance(signal, Grid) else signal


def ruling_signal(signal: Signal | Grid, by: str | Mapping[str, float] | None) -> Signal:
    """Return the signal that decides: one of a grid's by name, or a mix of its grams and money.

    What is decided by one can be paid for in all.

    Args:
        by: `average`, `marginal` or `price`; weights of `carbon` and `price`; None for carbon
            where there is any, else the price.

    >>> curve = Signal.from_values([300, 100], start=0, step_s="1h", kind="marginal")
    >>> ruling_signal(curve, "marginal") is curve
    True
    """
    if by is None:
        return deciding_signal(signal)
    if isinstance(by, Mapping):
        return mixed_signal(signal, by)
    if by not in DECIDING:
        raise UnknownName("signal to decide by", str(by), DECIDING)
    _require_signal(signal)
    if isinstance(signal, Grid):
        found = getattr(signal, by)
    else:
        found = signal if signal.kind == by else None
    if found is None:
        raise InvalidInput(
            f"jobs are to be decided by {by}, and the grid says nothing of it: give a Grid with "
            f"{by}= (a file: grid.{by} in an experiment), or decide by something else"
        )
    return found  # type: ignore[no-any-return]


def _require_signal(signal: object) -> None:
    if isinstance(signal, Signal | Grid):
        return
    given = "None" if signal is None else f"a {type(signal).__name__}"
    raise InvalidInput(
        f"what a kWh emits or costs is a Signal or a Grid, not {given}: read one with "
        "read_signal(FILE), make one with Signal.from_values or synthetic_grid, and give it after "
        "the job"
    )


def mixed_signal(signal: Signal | Grid, weights: Mapping[str, float]) -> Signal:
    """Return what a kWh counts when grams and money each have a weight.

    Args:
        signal: A grid, or a signal where only one of the two has a weight.
        weights: What a gram (`carbon`) and a unit of money (`price`) count.

    >>> carbon = Signal.from_values([300, 100], start=0, step_s="1h")
    >>> price = Signal.from_values([50, 90], start=0, step_s="1h", kind="price", unit="EUR/MWh")
    >>> mixed_signal(Grid(average=carbon, price=price), {"carbon": 1, "price": 1000}).values
    array([350., 190.])
    """
    for name, weight in weights.items():
        if name not in ("carbon", "price"):
            raise InvalidInput(f"unknown weight {name!r}: known are carbon, price and wait")
        require_number(weight, f"the weight of {name}", least=0.0)
    carbon, price = carbon_and_price(signal)
    parts: list[tuple[float, Signal]] = []
    for name, found in (("carbon", carbon), ("price", price)):
        weight = float(weights.get(name, 0.0))
        if not weight:
            continue
        if found is None:
            raise InvalidInput(
                f"{name} has a weight, but the signal says nothing of it: give a Grid"
            )
        parts.append((weight, found))
    if not parts:
        raise InvalidInput("carbon and price both weigh nothing: give one of them a weight")
    shared = parts[0][1]
    for _, other in parts[1:]:
        if (other.start, other.step_s, len(other)) != (shared.start, shared.step_s, len(shared)):
            raise InvalidSignal("signals can be mixed on the same steps only: bring them to one")
    values = np.sum([weight * part.values for weight, part in parts], axis=0)
    return replace(shared, values=values, kind="objective", unit="1/kWh")
