"""The signals of one grid that belong together."""

from __future__ import annotations

from dataclasses import dataclass

from lowtide.errors import InvalidSignal
from lowtide.signal import Signal


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


def carbon_and_price(signal: Signal | Grid) -> tuple[Signal | None, Signal | None]:
    """Return the signal that carbon is counted with and the one that cost is, where given."""
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
    return signal.average if isinstance(signal, Grid) else signal
