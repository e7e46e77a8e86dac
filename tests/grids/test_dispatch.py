"""Merit order: energy balance, marginal plant, curtailment and scarcity, against a plain loop."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from lowtide.grids import GRID_NAMES, GRIDS, Plant, emission_factor, synthetic_run
from lowtide.grids.models import RESERVE
from lowtide.grids.weather import (
    MUST_RUN_BID_EUR_PER_MWH,
    SCARCITY_EUR_PER_MWH,
    bid,
    dispatch,
    merit_order,
)


def serve_one_by_one(model, demand_mw, available_mw, basis):
    """Fill one step unit by unit, in plain Python: average, marginal, price and generation."""
    offers = [
        (
            bid(plant),
            place,
            available_mw[plant.name],
            emission_factor(plant.source, basis=basis) * sum(plant.heat_rate) / 2,
        )
        for place, plant in enumerate(model.plants)
        if not plant.dispatchable
    ]
    offers += [
        (unit.cost_eur_per_mwh, unit.plant, unit.capacity_mw, unit.intensity_g_per_kwh)
        for unit in merit_order(model, basis=basis)
    ]
    offers.append(
        (
            SCARCITY_EUR_PER_MWH,
            len(model.plants),
            float("inf"),
            1.7 * emission_factor("gas", basis=basis),
        )
    )
    left, emissions, generation = demand_mw, 0.0, [0.0] * (len(model.plants) + 1)
    marginal = None
    for price, place, offered, intensity in sorted(offers, key=lambda offer: offer[0]):
        served = min(left, offered)
        left -= served
        generation[place] += served
        emissions += served * intensity
        if marginal is None and offered - served > 1e-6:
            marginal = (price, place, intensity)
    assert left == 0 and marginal is not None
    return emissions / demand_mw, marginal, generation


@pytest.mark.parametrize("basis", ["lifecycle", "direct"])
@pytest.mark.parametrize("name", GRID_NAMES)
def test_dispatch_equals_filling_units_one_by_one(name, basis):
    model = GRIDS[name]
    rng = np.random.default_rng(7)
    demand = rng.uniform(0.2, 2.2, 200) * model.demand_mw  # from surplus to scarcity
    available = {
        plant.name: rng.uniform(0, 1, demand.size) * plant.capacity_mw
        for plant in model.plants
        if not plant.dispatchable
    }
    result = dispatch(model, demand, available, basis=basis)
    for i in range(demand.size):
        now = {plant: float(mw[i]) for plant, mw in available.items()}
        average, (price, place, intensity), generation = serve_one_by_one(
            model, float(demand[i]), now, basis
        )
        assert result.average_g_per_kwh[i] == pytest.approx(average)
        assert result.price_eur_per_mwh[i] == price
        assert result.marginal_g_per_kwh[i] == intensity
        assert result.marginal_plant[i] == place
        assert [mw[i] for mw in result.generation_mw.values()] == pytest.approx(
            generation, abs=1e-6
        )


@pytest.mark.parametrize("name", GRID_NAMES)
def test_energy_balances_at_every_step(name):
    run = synthetic_run(name, start="2024-01-01T00:00Z", days=366, seed=2)
    total = sum(run.generation_mw.values())
    assert np.allclose(total, run.demand_mw, rtol=0, atol=1e-6)
    for plant in run.model.plants:
        generation = run.generation_mw[plant.name]
        assert generation.min() >= 0
        if plant.dispatchable:
            assert generation.max() <= plant.capacity_mw + 1e-6
        else:
            assert run.curtailed_mw[plant.name].min() >= 0
            offered = generation + run.curtailed_mw[plant.name]
            assert offered.max() <= plant.capacity_mw * (1 + plant.seasonal_swing) + 1e-6


@pytest.mark.parametrize("name", GRID_NAMES)
def test_the_marginal_plant_is_the_dearest_running_or_the_next(name):
    run = synthetic_run(name, start="2024-01-01T00:00Z", days=366, seed=2)
    units = merit_order(run.model)
    cheapest = {}
    for unit in units:
        cheapest.setdefault(unit.plant, unit.cost_eur_per_mwh)
    for place, plant in enumerate(run.model.plants):
        running = run.generation_mw[plant.name] > 1e-6
        lowest = cheapest[place] if plant.dispatchable else bid(plant)
        assert np.all(run.price_eur_per_mwh[running] >= lowest - 1e-9)
        # A plant that could run for less than the price, and does not, would be out of order.
        if plant.dispatchable:
            asked = run.price_eur_per_mwh > lowest + 1e-9
            assert np.all(run.generation_mw[plant.name][asked] > 0)


def test_units_come_in_order_of_cost_and_costs_do_not_depend_on_the_basis():
    for model in GRIDS.values():
        lifecycle, direct = merit_order(model), merit_order(model, basis="direct")
        costs = [unit.cost_eur_per_mwh for unit in lifecycle]
        assert costs == sorted(costs) == [unit.cost_eur_per_mwh for unit in direct]
        assert costs[0] > 0
        assert costs[-1] < SCARCITY_EUR_PER_MWH
        capacity = sum(plant.capacity_mw for plant in model.plants if plant.dispatchable)
        assert sum(unit.capacity_mw for unit in lifecycle) == pytest.approx(capacity)


def test_curtailed_wind_and_sun_mean_a_price_of_0_or_less_and_little_carbon():
    for name in ("sunny", "windy"):
        run = synthetic_run(name, start="2024-01-01T00:00Z", days=366, seed=0)
        curtailed = sum(run.curtailed_mw.values()) > 0
        assert curtailed.any()
        assert np.all(run.price_eur_per_mwh[curtailed] <= 0)
        assert np.all(run.price_eur_per_mwh[~curtailed] > 0)
        assert np.all(run.marginal_g_per_kwh[curtailed] <= 48)
        # Nothing that burns fossil fuel runs while sun or wind is turned away.
        assert np.all(run.generation_mw["gas"][curtailed] == 0)


def test_direct_emissions_of_curtailed_wind_are_0():
    run = synthetic_run("windy", days=366, basis="direct")
    curtailed = run.curtailed_mw["onshore wind"] > 0
    assert curtailed.any()
    assert np.all(run.marginal_g_per_kwh[curtailed] == 0)


def test_too_much_must_run_is_turned_down_last_and_pays_for_it():
    model = GRIDS["nuclear"]
    available = {p.name: np.array([p.capacity_mw]) for p in model.plants if not p.dispatchable}
    result = dispatch(model, np.array([3_000.0]), available)
    assert result.price_eur_per_mwh[0] == MUST_RUN_BID_EUR_PER_MWH
    assert result.generation_mw["wind"][0] == result.generation_mw["solar"][0] == 0
    assert result.curtailed_mw["wind"][0] == available["wind"][0]


def test_scarcity_starts_the_reserve_at_the_scarcity_price():
    small = replace(GRIDS["coal"], demand_mw=40_000.0)
    run = synthetic_run(small, days=2)
    assert np.all(run.price_eur_per_mwh == SCARCITY_EUR_PER_MWH)
    assert np.all(run.generation_mw[RESERVE.name] > 0)
    assert np.allclose(sum(run.generation_mw.values()), run.demand_mw)


def test_a_grid_without_plants_lives_on_its_reserve():
    run = synthetic_run(replace(GRIDS["coal"], plants=()), days=1)
    assert np.allclose(run.generation_mw[RESERVE.name], run.demand_mw)
    assert np.allclose(run.average_g_per_kwh, 1.7 * 490)


def test_a_surplus_of_sun_alone_is_priced_at_its_bid():
    plants = (
        Plant(name="river", source="hydro", capacity_mw=100, must_run=True),
        Plant(name="sun", source="solar", capacity_mw=1_000),
    )
    model = replace(GRIDS["sunny"], plants=plants)
    available = {"river": np.array([100.0]), "sun": np.array([900.0])}
    result = dispatch(model, np.array([400.0]), available)
    assert result.price_eur_per_mwh[0] == 0
    assert result.marginal_g_per_kwh[0] == 48
    assert result.curtailed_mw["sun"][0] == 600
    assert result.average_g_per_kwh[0] == pytest.approx((100 * 24 + 300 * 48) / 400)
