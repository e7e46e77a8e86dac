"""Which plants run: the merit order of a synthetic grid.

Must-run and weather-driven fleets come first, at bids of 0 EUR/MWh or less; the others follow in
order of marginal cost. Costs do not change over time, so all of them together are one staircase
over the load that is left for them, and a step of time is one look-up in it.

Two things happen at the ends. When the first fleets offer more than demand, the last of them in
merit order is curtailed, and one more MWh would come from it: the price is its bid and the
marginal intensity its factor. When demand exceeds every plant, a reserve of gas turbines without
limit serves the rest at the scarcity price, so that nothing goes unserved.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from lowtide.grids.factors import emission_factor
from lowtide.grids.models import RESERVE, GridModel, Plant
from lowtide.signal import FloatArray

#: Price of emission allowances; the EU's averaged about 65 EUR/t over 2024.
CO2_EUR_PER_T = 65.0

#: Fuel for one MWh of electricity from the plant behind the emission factor.
FUEL_EUR_PER_MWH = {"coal": 30.0, "gas": 55.0}

#: What fleets bid that would rather pay than stop: contracts, heat and slow restarts for
#: must-run plants, support per MWh for wind.
MUST_RUN_BID_EUR_PER_MWH = -30.0
WEATHER_BIDS_EUR_PER_MWH = {"wind_offshore": -6.0, "wind_onshore": -3.0, "solar": 0.0}

#: What electricity costs while the reserve runs.
SCARCITY_EUR_PER_MWH = 1000.0

_UNITS_PER_PLANT = 20  # a fleet's range of costs is cut into that many equal steps


@dataclass(frozen=True, slots=True, kw_only=True)
class Unit:
    """A slice of a dispatchable fleet with one cost.

    Attributes:
        plant: The fleet's place in the model.
        capacity_mw: What it can deliver.
        cost_eur_per_mwh: Its marginal cost.
        intensity_g_per_kwh: What it emits.
    """

    plant: int
    capacity_mw: float
    cost_eur_per_mwh: float
    intensity_g_per_kwh: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Dispatch:
    """What ran, and what one more MWh would have meant.

    Attributes:
        generation_mw: Plant → MW per step, in the model's order, then the reserve.
        curtailed_mw: Plant → MW per step that it could have delivered, for the fleets that offer
            at 0 EUR/MWh or less.
        average_g_per_kwh: Emissions over generation.
        marginal_g_per_kwh: Intensity of the plant that would serve one more MWh.
        price_eur_per_mwh: Its cost.
        marginal_plant: Its place in `generation_mw`.
    """

    generation_mw: dict[str, FloatArray]
    curtailed_mw: dict[str, FloatArray]
    average_g_per_kwh: FloatArray
    marginal_g_per_kwh: FloatArray
    price_eur_per_mwh: FloatArray
    marginal_plant: np.ndarray[tuple[int], np.dtype[np.intp]]


def bid(plant: Plant) -> float:
    """Return what a must-run or weather-driven fleet asks for, in EUR/MWh."""
    return MUST_RUN_BID_EUR_PER_MWH if plant.must_run else WEATHER_BIDS_EUR_PER_MWH[plant.source]


def merit_order(model: GridModel, *, basis: str = "lifecycle") -> list[Unit]:
    """Return the dispatchable units of a grid, cheapest first.

    Args:
        basis: Which emissions count; costs are the same for both.
    """
    middles = (np.arange(_UNITS_PER_PLANT) + 0.5) / _UNITS_PER_PLANT
    units = []
    for place, plant in enumerate(model.plants):
        if not plant.dispatchable or plant.capacity_mw == 0:
            continue
        fuel_and_co2 = (
            FUEL_EUR_PER_MWH.get(plant.source, 0.0)
            + emission_factor(plant.source, basis="direct") / 1000 * CO2_EUR_PER_T
        )
        for middle in middles.tolist():
            heat_rate = _between(plant.heat_rate, middle)
            units.append(
                Unit(
                    plant=place,
                    capacity_mw=plant.capacity_mw / _UNITS_PER_PLANT,
                    cost_eur_per_mwh=_between(plant.cost_eur_per_mwh, middle)
                    + heat_rate * fuel_and_co2,
                    intensity_g_per_kwh=heat_rate * emission_factor(plant.source, basis=basis),
                )
            )
    return sorted(units, key=lambda unit: unit.cost_eur_per_mwh)


def dispatch(
    model: GridModel,
    demand_mw: FloatArray,
    available_mw: dict[str, FloatArray],
    *,
    basis: str = "lifecycle",
) -> Dispatch:
    """Serve demand at every step at the least cost.

    Args:
        demand_mw: Demand per step.
        available_mw: What each must-run and weather-driven fleet could deliver.
    """
    generation: dict[str, FloatArray] = {
        plant.name: np.zeros_like(demand_mw) for plant in (*model.plants, RESERVE)
    }
    curtailed: dict[str, FloatArray] = {}
    emissions = np.zeros_like(demand_mw)
    reserve_place = len(model.plants)

    left = demand_mw.copy()
    spare: list[tuple[int, float, float]] = []
    first = [(place, p) for place, p in enumerate(model.plants) if not p.dispatchable]
    for place, plant in sorted(first, key=lambda item: bid(item[1])):
        served = np.minimum(available_mw[plant.name], left)
        left -= served
        intensity = _mean_intensity(plant, basis)
        emissions += served * intensity
        generation[plant.name] = served
        curtailed[plant.name] = available_mw[plant.name] - served
        spare.append((place, bid(plant), intensity))

    units = merit_order(model, basis=basis)
    capacity = np.array([unit.capacity_mw for unit in units])
    edges = np.concatenate(([0.0], np.cumsum(capacity)))
    within = np.minimum(left, edges[-1])
    for place, plant in enumerate(model.plants):
        if plant.dispatchable:
            own = np.array([unit.capacity_mw if unit.plant == place else 0.0 for unit in units])
            generation[plant.name] = _up_to(within, edges, own)
    intensities = np.array([unit.intensity_g_per_kwh for unit in units])
    emissions += _up_to(within, edges, capacity * intensities)
    reserve_intensity = _mean_intensity(RESERVE, basis)
    generation[RESERVE.name] = left - within
    emissions += generation[RESERVE.name] * reserve_intensity

    # The first unit that is not full; behind the last one comes the reserve.
    next_unit = np.searchsorted(edges[1:], left, side="right")
    marginal = np.append(intensities, reserve_intensity)[next_unit]
    price = np.array([*(unit.cost_eur_per_mwh for unit in units), SCARCITY_EUR_PER_MWH])[next_unit]
    plants = np.array([*(unit.plant for unit in units), reserve_place], dtype=np.intp)[next_unit]
    # From the dearest bid down, so that the cheapest fleet with something to spare has the word.
    for place, asked, intensity in reversed(spare):
        has = curtailed[model.plants[place].name] > 0
        marginal[has], price[has], plants[has] = intensity, asked, place

    return Dispatch(
        generation_mw=generation,
        curtailed_mw=curtailed,
        average_g_per_kwh=emissions / demand_mw,
        marginal_g_per_kwh=marginal,
        price_eur_per_mwh=price,
        marginal_plant=plants,
    )


def _between(ends: tuple[float, float], share: float) -> float:
    return ends[0] + (ends[1] - ends[0]) * share


def _mean_intensity(plant: Plant, basis: str) -> float:
    return _between(plant.heat_rate, 0.5) * emission_factor(plant.source, basis=basis)


def _up_to(load_mw: FloatArray, edges_mw: FloatArray, amounts: FloatArray) -> FloatArray:
    """Sum the amounts of all units below a load, the one it falls into in part."""
    return np.interp(load_mw, edges_mw, np.concatenate(([0.0], np.cumsum(amounts))))
