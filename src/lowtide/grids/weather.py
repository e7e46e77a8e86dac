"""What sun, wind and people do in a synthetic grid, and which plants run then.

Sun, seasons, weekdays and hours follow absolute time, so they are right for any start. Chance
follows the seed: every process draws from its own generator, one number after the other from the
start on, which is why a longer run begins with exactly the values of a shorter one.

Must-run and weather-driven fleets come first, at bids of 0 EUR/MWh or less; the others follow in
order of marginal cost. Costs do not change over time, so all of them together are one staircase
over the load that is left for them, and a step of time is one look-up in it. Two things happen at
the ends. When the first fleets offer more than demand, the last of them in merit order is
curtailed, and one more MWh would come from it: the price is its bid and the marginal intensity its
factor. When demand exceeds every plant, a reserve of gas turbines without limit serves the rest at
the scarcity price, so that nothing goes unserved.
"""

from __future__ import annotations

import math
import zlib
from dataclasses import dataclass
from itertools import accumulate

import numpy as np

from lowtide.grids.models import RESERVE, GridModel, Plant, emission_factor
from lowtide.signal import FloatArray

_DAY_S = 86_400.0
_YEAR_DAYS = 365.2425
_TILT_DEG = 23.44  # of the Earth's axis
_MONDAY_SHIFT_DAYS = 3  # the epoch began on a Thursday

# Clear-sky irradiance on flat ground, W/m², after Haurwitz (1945).
_CLEAR_SKY_W_PER_M2 = 1098.0
_CLEAR_SKY_LOSS = 0.059
_PANEL_SHARE_PER_W_PER_M2 = 1.1 / 1000.0  # tilted panels, and more of them than inverter
_DARKEST = 0.15  # share of a clear sky's sun under the thickest cloud
_CLOUD_SPREAD = 1.3
_CLOUD_MEMORY_H = 14.0

_CUT_IN_M_PER_S = 3.0
_RATED_M_PER_S = 12.5
_CUT_OUT_M_PER_S = 25.0
_OFFSHORE_SPEED = 1.22  # the sea slows the wind less than land does
_WINTER_WIND = 0.10  # share by which winter is windier, and summer calmer, than the mean

_DEMAND_NOISE = 0.02
_DEMAND_MEMORY_H = 18.0

# The numbers of the processes are part of what a seed means: never reuse one.
_WIND_EAST, _WIND_NORTH, _CLOUD, _DEMAND = range(4)
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


def day_of_year(instants: FloatArray) -> FloatArray:
    """Return days since the turn of the year, to within a day or two of the calendar.

    A year of mean length keeps seasons smooth where the calendar leaps.
    """
    return (instants / _DAY_S) % _YEAR_DAYS


def season(instants: FloatArray, peak_day: float) -> FloatArray:
    """Return a yearly wave that is 1 on the peak day and −1 half a year away.

    Args:
        peak_day: Day of the year, from 0.
    """
    return np.cos(2 * np.pi * (day_of_year(instants) - peak_day) / _YEAR_DAYS)


def sun_height(instants: FloatArray, *, latitude_deg: float, longitude_deg: float) -> FloatArray:
    """Return the sine of the sun's elevation; below 0 it is night.

    The equation of time, at most a quarter of an hour, is left out.

    >>> solstice_noon = np.array([1718971200.0])
    >>> sun_height(solstice_noon, latitude_deg=23.44, longitude_deg=0).round(3).tolist()
    [1.0]
    """
    latitude = math.radians(latitude_deg)
    # The northern winter solstice comes ten days before the year turns.
    declination = -math.radians(_TILT_DEG) * season(instants, -10.0)
    hour_angle = 2 * np.pi * (instants / _DAY_S % 1.0 + longitude_deg / 360.0 - 0.5)
    height: FloatArray = math.sin(latitude) * np.sin(declination) + math.cos(latitude) * np.cos(
        declination
    ) * np.cos(hour_angle)
    return height


def solar_share(instants: FloatArray, model: GridModel, *, begin: float, seed: int) -> FloatArray:
    """Return solar output as a share of its capacity."""
    height = np.maximum(
        sun_height(instants, latitude_deg=model.latitude_deg, longitude_deg=model.longitude_deg),
        1e-3,  # so low that the loss leaves nothing, and never a division by 0
    )
    clear = _CLEAR_SKY_W_PER_M2 * height * np.exp(-_CLEAR_SKY_LOSS / height)
    typical = math.log(model.clearness / (1 - model.clearness))
    chance = _noise(instants, model, _CLOUD, _CLOUD_MEMORY_H, begin=begin, seed=seed)
    through = _DARKEST + (1 - _DARKEST) / (1 + np.exp(-typical - _CLOUD_SPREAD * chance))
    share: FloatArray = np.minimum(clear * through * _PANEL_SHARE_PER_W_PER_M2, 1.0)
    return share


def wind_speed(instants: FloatArray, model: GridModel, *, begin: float, seed: int) -> FloatArray:
    """Return wind speed at hub height on land, in m/s.

    East and north wind are two Ornstein-Uhlenbeck processes. The length of such a vector has
    Rayleigh's distribution, which wind standards (IEC 61400) assume too.
    """
    east, north = (
        _noise(instants, model, process, model.wind_memory_h, begin=begin, seed=seed)
        for process in (_WIND_EAST, _WIND_NORTH)
    )
    mid_winter = 15.0 if model.latitude_deg >= 0 else 15.0 + _YEAR_DAYS / 2
    mean = model.wind_m_per_s * (1 + _WINTER_WIND * season(instants, mid_winter))
    speed: FloatArray = mean * np.sqrt((east**2 + north**2) * (2 / np.pi))
    return speed


def wind_share(speed_m_per_s: FloatArray) -> FloatArray:
    """Return wind output as a share of capacity: nothing, cubic, full, and nothing in a storm.

    >>> wind_share(np.array([2.0, 8.0, 14.0, 30.0])).round(2).tolist()
    [0.0, 0.25, 1.0, 0.0]
    """
    rising = (speed_m_per_s**3 - _CUT_IN_M_PER_S**3) / (_RATED_M_PER_S**3 - _CUT_IN_M_PER_S**3)
    # A fleet does not stop at once: its turbines reach the storm one after the other.
    stopping = (_CUT_OUT_M_PER_S + 2.0 - speed_m_per_s) / 4.0
    share: FloatArray = np.clip(rising, 0.0, 1.0) * np.clip(stopping, 0.0, 1.0)
    return share


def demand(instants: FloatArray, model: GridModel, *, begin: float, seed: int) -> FloatArray:
    """Return demand in MW by hour, weekday and season, with mild noise."""
    days = np.array([1.0, 1.0, 1.0, 1.0, 1.0, model.saturday, model.sunday])
    week = np.outer(days, model.hour_shape).ravel()
    week /= week.mean()
    local_days = instants / _DAY_S + model.utc_offset_h / 24 + _MONDAY_SHIFT_DAYS
    # Each value of the shape holds for the middle of its hour.
    hour_of_week = local_days % 7 * 24 - 0.5
    shape = np.interp(hour_of_week, np.arange(-1, 169), np.concatenate((week[-1:], week, week[:1])))
    seasonal = 1 + model.demand_swing * season(instants, model.demand_peak_day)
    chance = _noise(instants, model, _DEMAND, _DEMAND_MEMORY_H, begin=begin, seed=seed)
    # Three standard deviations bound the noise, so demand stays above 0 whatever the seed.
    noisy = 1 + _DEMAND_NOISE * np.clip(chance, -3.0, 3.0)
    mw: FloatArray = model.demand_mw * shape * seasonal * noisy
    return mw


def available(
    plant: Plant, instants: FloatArray, *, solar: FloatArray, wind_m_per_s: FloatArray
) -> FloatArray:
    """Return what a must-run or weather-driven fleet could deliver, in MW."""
    if plant.source == "solar":
        share = solar
    elif plant.source == "wind_onshore":
        share = wind_share(wind_m_per_s)
    elif plant.source == "wind_offshore":
        share = wind_share(wind_m_per_s * _OFFSHORE_SPEED)
    else:
        share = 1 + plant.seasonal_swing * season(instants, plant.peak_day)
    return plant.capacity_mw * share


def _noise(
    instants: FloatArray,
    model: GridModel,
    process: int,
    memory_h: float,
    *,
    begin: float,
    seed: int,
) -> FloatArray:
    """Return an Ornstein-Uhlenbeck process of mean 0 and variance 1.

    It is drawn hour by hour and straight in between, so a finer step sees the same weather.
    """
    hours = (instants - begin) / 3600.0
    count = int(hours[-1]) + 2
    entropy = [seed, zlib.crc32(model.name.encode()), process]
    draws = np.random.default_rng(np.random.SeedSequence(entropy)).standard_normal(count)
    kept = math.exp(-1.0 / memory_h)
    fresh = math.sqrt(1 - kept * kept)
    draws[1:] *= fresh
    nodes = np.fromiter(accumulate(draws.tolist(), lambda x, new: kept * x + new), float, count)
    left = hours.astype(np.intp)
    share = hours - left
    between: FloatArray = nodes[left] * (1 - share) + nodes[left + 1] * share
    return between


@dataclass(frozen=True, slots=True, kw_only=True)
class PlantUnit:
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


def merit_order(model: GridModel, *, basis: str = "lifecycle") -> list[PlantUnit]:
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
                PlantUnit(
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
