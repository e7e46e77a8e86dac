"""Signals of one grid."""

import pytest

from lowtide.errors import InvalidSignal
from lowtide.grid import Grid, carbon_and_price
from lowtide.signal import Signal

UNITS = {"average": "g/kWh", "marginal": "g/kWh", "price": "EUR/kWh", "pue": "1"}
SIGNALS = {
    kind: Signal.from_values([1.5], start=0, step_s="1h", kind=kind, unit=unit)
    for kind, unit in UNITS.items()
}


def test_each_place_takes_its_kind():
    grid = Grid(average=SIGNALS["average"], marginal=SIGNALS["marginal"], price=SIGNALS["price"])
    assert carbon_and_price(grid) == (SIGNALS["average"], SIGNALS["price"])


@pytest.mark.parametrize("place", ["average", "marginal", "price"])
@pytest.mark.parametrize("kind", list(UNITS))
def test_no_place_takes_another_kind(place, kind):
    if kind == place:
        return
    with pytest.raises(InvalidSignal, match=f"a grid's {place} is a signal of that kind"):
        Grid(**({"average": SIGNALS["average"]} | {place: SIGNALS[kind]}))


def test_one_signal_is_carbon_or_price():
    assert carbon_and_price(SIGNALS["average"]) == (SIGNALS["average"], None)
    assert carbon_and_price(SIGNALS["marginal"]) == (SIGNALS["marginal"], None)
    assert carbon_and_price(SIGNALS["price"]) == (None, SIGNALS["price"])
    assert carbon_and_price(Grid(average=SIGNALS["average"])) == (SIGNALS["average"], None)


def test_pue_is_no_signal_to_pay_by():
    with pytest.raises(InvalidSignal, match="give it as pue="):
        carbon_and_price(SIGNALS["pue"])
