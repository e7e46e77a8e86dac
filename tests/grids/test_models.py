"""The table of grids, and what a model of one's own may not say."""

from __future__ import annotations

import pickle
from dataclasses import replace

import pytest

from lowtide.errors import InvalidInput, UnknownName
from lowtide.grids import GRID_NAMES, GRIDS, Plant


def test_there_are_four_grids_and_each_says_what_it_is():
    assert GRID_NAMES == ("coal", "nuclear", "sunny", "windy")
    for name in GRID_NAMES:
        assert GRIDS[name].name == name
        assert GRIDS[name].description


def test_models_travel_between_processes():
    for model in GRIDS.values():
        assert pickle.loads(pickle.dumps(model)) == model


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"capacity_mw": -1.0}, "capacity of 0 MW or more"),
        ({"capacity_mw": float("nan")}, "capacity of 0 MW or more"),
        ({"seasonal_swing": 1.5}, "from 0 to 1"),
        ({"heat_rate": (0.0, 1.0)}, "heat rate"),
        ({"cost_eur_per_mwh": (-5.0, 5.0)}, "must_run=True"),
    ],
)
def test_impossible_plants_are_refused(change, message):
    plant = Plant(name="gas", source="gas", capacity_mw=1.0)
    with pytest.raises(InvalidInput, match=message):
        replace(plant, **change)


def test_a_plant_needs_a_source_with_a_factor():
    with pytest.raises(UnknownName, match="known are biomass, coal"):
        Plant(name="oil", source="oil", capacity_mw=1.0)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"hour_shape": (1.0,) * 23}, "24 positive values"),
        ({"hour_shape": (0.0,) * 24}, "24 positive values"),
        ({"latitude_deg": 91.0}, "latitude"),
        ({"clearness": 1.0}, "between 0 and 1"),
        ({"demand_mw": 0.0}, "demand_mw above 0"),
        ({"sunday": -0.1}, "sunday above 0"),
        ({"wind_memory_h": float("nan")}, "wind_memory_h above 0"),
        ({"demand_swing": 1.0}, "demand swing"),
        ({"plants": (GRIDS["coal"].plants[0],) * 2}, "two plants called 'biomass'"),
        (
            {"plants": (Plant(name="reserve", source="gas", capacity_mw=1.0),)},
            "every grid has",
        ),
    ],
)
def test_impossible_grids_are_refused(change, message):
    with pytest.raises(InvalidInput, match=message):
        replace(GRIDS["coal"], **change)
