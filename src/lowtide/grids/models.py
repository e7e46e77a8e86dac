"""The four synthetic grids, their plants, weather and demand; and what each source emits.

Each grid has a mean demand of 10 GW, so capacities read as shares at a glance. They are sketches
of kinds of grids, not of countries: good for testing a planner on a shape of signal, never for
stating what a real job emitted. There is no storage and no trade; dispatchable hydro stands for
both, with a range of water values instead of an amount of water.

Emission factors are the medians of table A.III.2 in Annex III of the IPCC's fifth assessment
report, working group III (Schlömer et al., 2014). `lifecycle` counts building, fuel supply, methane
and infrastructure as well as burning; `direct` counts the stack alone. Two rows of that table need
a choice. Biomass has no direct value there, because its stack's CO₂ is booked where the plants
grew; here it is 0, as greenhouse gas inventories report it. Gas is combined cycle and coal is
pulverised coal; other plants of the same fuel scale with the fuel they burn (`Plant.heat_rate`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from lowtide.errors import InvalidInput, UnknownName
from lowtide.signal import BASES

EMISSION_FACTORS_G_PER_KWH: Mapping[str, Mapping[str, float]] = MappingProxyType(
    {
        source: MappingProxyType({"lifecycle": lifecycle, "direct": direct})
        for source, lifecycle, direct in (
            ("biomass", 230.0, 0.0),
            ("coal", 820.0, 760.0),
            ("gas", 490.0, 370.0),
            ("hydro", 24.0, 0.0),
            ("nuclear", 12.0, 0.0),
            ("solar", 48.0, 0.0),
            ("wind_offshore", 12.0, 0.0),
            ("wind_onshore", 11.0, 0.0),
        )
    }
)


def emission_factor(source: str, *, basis: str = "lifecycle") -> float:
    """Return the grams of CO₂ equivalent that one kilowatt-hour from a source emits.

    Args:
        source: A key of `EMISSION_FACTORS_G_PER_KWH`.
        basis: `lifecycle` or `direct`.

    >>> emission_factor("gas"), emission_factor("gas", basis="direct")
    (490.0, 370.0)
    """
    if source not in EMISSION_FACTORS_G_PER_KWH:
        raise UnknownName("source of electricity", source, EMISSION_FACTORS_G_PER_KWH)
    if basis not in BASES:
        raise UnknownName("basis", basis, BASES)
    return EMISSION_FACTORS_G_PER_KWH[source][basis]


#: Sources whose output the weather decides.
WEATHER_SOURCES = ("solar", "wind_offshore", "wind_onshore")


@dataclass(frozen=True, slots=True, kw_only=True)
class Plant:
    """A fleet of plants of one kind.

    Must-run and weather-driven fleets offer what they can at or below 0 EUR/MWh; the others run
    in order of cost. Ranges are (cheapest unit, dearest unit), even in between.

    Attributes:
        name: What charts call it, unique in its grid.
        source: A key of the emission factors.
        capacity_mw: What it can deliver; for must-run fleets the mean over the year.
        must_run: Whether it runs regardless of price (contracts, heat, slow to restart).
        seasonal_swing: By what share a must-run fleet's output rises and falls over the year.
        peak_day: Day of the year, from 0, on which a must-run fleet delivers most.
        heat_rate: Fuel burnt per MWh relative to the plant behind the emission factor; scales
            emissions, fuel cost and CO₂ cost.
        cost_eur_per_mwh: Costs other than fossil fuel and CO₂: upkeep, biomass, uranium, or what
            water would earn later.
    """

    name: str
    source: str
    capacity_mw: float
    must_run: bool = False
    seasonal_swing: float = 0.0
    peak_day: float = 15.0
    heat_rate: tuple[float, float] = (1.0, 1.0)
    cost_eur_per_mwh: tuple[float, float] = (0.0, 0.0)

    def __post_init__(self) -> None:
        if self.source not in EMISSION_FACTORS_G_PER_KWH:
            raise UnknownName("source of electricity", self.source, EMISSION_FACTORS_G_PER_KWH)
        if not (math.isfinite(self.capacity_mw) and self.capacity_mw >= 0):
            raise InvalidInput(
                f"plant {self.name!r} needs a capacity of 0 MW or more, not {self.capacity_mw}"
            )
        if not 0 <= self.seasonal_swing <= 1:
            raise InvalidInput(
                f"plant {self.name!r} has a seasonal swing of {self.seasonal_swing}: give a share "
                "of its capacity from 0 to 1"
            )
        if min(self.heat_rate) <= 0:
            raise InvalidInput(
                f"plant {self.name!r} has a heat rate of {min(self.heat_rate)}: 1 is the plant "
                "behind the emission factor, and none burns 0 or less"
            )
        if self.dispatchable and min(self.cost_eur_per_mwh) < 0:
            raise InvalidInput(
                f"plant {self.name!r} costs {min(self.cost_eur_per_mwh)} EUR/MWh: a plant that "
                "wants to run below 0 is must_run=True"
            )

    @property
    def dispatchable(self) -> bool:
        """Whether price decides if it runs."""
        return not self.must_run and self.source not in WEATHER_SOURCES


#: What every grid falls back on when demand exceeds its plants: as many gas turbines as it takes.
RESERVE = Plant(name="reserve", source="gas", capacity_mw=0.0, heat_rate=(1.7, 1.7))


@dataclass(frozen=True, slots=True, kw_only=True)
class GridModel:
    """Everything that a synthetic grid is made of.

    Attributes:
        name: What it is asked for by.
        description: One line for listings.
        latitude_deg: Positive in the north; decides day lengths and when winter is.
        longitude_deg: Positive in the east; decides when the sun is highest.
        utc_offset_h: Local clock minus UTC, all year: there is no summer time.
        demand_mw: Mean demand.
        hour_shape: Demand in each local hour of a working day, in any unit.
        saturday: Demand on Saturdays relative to working days.
        sunday: Demand on Sundays relative to working days.
        demand_swing: Share by which demand rises and falls over the year.
        demand_peak_day: Day of the year, from 0, with the highest demand.
        wind_m_per_s: Mean wind speed at hub height on land.
        wind_memory_h: Hours after which the wind's correlation with itself has fallen to 1/e.
        clearness: Share of a clear sky's sun that typical clouds let through, between 0 and 1.
        plants: The fleets.
    """

    name: str
    description: str
    latitude_deg: float
    longitude_deg: float
    utc_offset_h: float
    demand_mw: float
    hour_shape: tuple[float, ...]
    saturday: float
    sunday: float
    demand_swing: float
    demand_peak_day: float
    wind_m_per_s: float
    wind_memory_h: float
    clearness: float
    plants: tuple[Plant, ...]

    def __post_init__(self) -> None:
        if len(self.hour_shape) != 24 or min(self.hour_shape) <= 0:
            raise InvalidInput(
                f"grid {self.name!r} needs 24 positive values of hour_shape, one per local hour"
            )
        if not -90 <= self.latitude_deg <= 90:
            raise InvalidInput(f"a latitude is −90° to 90°, not {self.latitude_deg}")
        if not 0 < self.clearness < 1:
            raise InvalidInput(f"clearness is a share between 0 and 1, not {self.clearness}")
        for field in ("demand_mw", "saturday", "sunday", "wind_m_per_s", "wind_memory_h"):
            value = getattr(self, field)
            if not (math.isfinite(value) and value > 0):
                raise InvalidInput(f"grid {self.name!r} needs {field} above 0, not {value}")
        if not 0 <= self.demand_swing < 1:
            raise InvalidInput(
                f"grid {self.name!r} has a demand swing of {self.demand_swing}: give a share "
                "from 0 to below 1"
            )
        names = [plant.name for plant in (*self.plants, RESERVE)]
        for name in names:
            if names.count(name) > 1:
                raise InvalidInput(
                    f"grid {self.name!r} has two plants called {name!r}: give each its own name "
                    f"({RESERVE.name!r} is the one that every grid has)"
                )


# Night low, morning rise, flat day, evening peak: the usual shape of a working day.
_EVENING_PEAK = (
    *(78.0, 74.0, 72.0, 71.0, 72.0, 77.0, 87.0, 98.0),
    *(104.0, 106.0, 107.0, 108.0, 108.0, 106.0, 104.0, 103.0),
    *(104.0, 109.0, 115.0, 117.0, 114.0, 106.0, 96.0, 86.0),
)
# Air conditioning holds the afternoon up, and the evening peak comes late.
_LATE_PEAK = (
    *(84.0, 79.0, 76.0, 75.0, 75.0, 77.0, 84.0, 92.0),
    *(98.0, 102.0, 105.0, 107.0, 109.0, 110.0, 109.0, 108.0),
    *(108.0, 109.0, 112.0, 115.0, 117.0, 115.0, 107.0, 95.0),
)
# Heavy industry works through the night.
_INDUSTRIAL = (
    *(86.0, 83.0, 82.0, 81.0, 82.0, 86.0, 93.0, 100.0),
    *(105.0, 107.0, 108.0, 108.0, 107.0, 106.0, 104.0, 103.0),
    *(104.0, 107.0, 110.0, 111.0, 109.0, 104.0, 97.0, 90.0),
)

_OPEN_CYCLE = (1.40, 1.70)  # gas turbines without a steam cycle burn that much more

_SUNNY = GridModel(
    name="sunny",
    description="much solar power over gas: a deep dip around midday, dear evenings",
    latitude_deg=38.0,
    longitude_deg=-4.0,
    utc_offset_h=1.0,
    demand_mw=10_000.0,
    hour_shape=_LATE_PEAK,
    saturday=0.92,
    sunday=0.86,
    demand_swing=0.06,
    demand_peak_day=205.0,
    wind_m_per_s=6.5,
    wind_memory_h=30.0,
    clearness=0.90,
    plants=(
        Plant(name="nuclear", source="nuclear", capacity_mw=1_100, must_run=True),
        Plant(
            name="river hydro",
            source="hydro",
            capacity_mw=400,
            must_run=True,
            seasonal_swing=0.4,
            peak_day=100,
        ),
        Plant(name="wind", source="wind_onshore", capacity_mw=3_000),
        Plant(name="solar", source="solar", capacity_mw=9_000),
        Plant(name="hydro", source="hydro", capacity_mw=1_300, cost_eur_per_mwh=(35, 120)),
        Plant(name="biomass", source="biomass", capacity_mw=250, cost_eur_per_mwh=(60, 75)),
        Plant(
            name="gas",
            source="gas",
            capacity_mw=8_000,
            heat_rate=(0.92, 1.25),
            cost_eur_per_mwh=(2, 4),
        ),
        Plant(
            name="gas turbines",
            source="gas",
            capacity_mw=2_500,
            heat_rate=_OPEN_CYCLE,
            cost_eur_per_mwh=(5, 8),
        ),
    ),
)

_WINDY = GridModel(
    name="windy",
    description="more wind than anything else: swings over days, calm spells burn coal and gas",
    latitude_deg=55.0,
    longitude_deg=9.0,
    utc_offset_h=1.0,
    demand_mw=10_000.0,
    hour_shape=_EVENING_PEAK,
    saturday=0.91,
    sunday=0.87,
    demand_swing=0.12,
    demand_peak_day=18.0,
    wind_m_per_s=7.5,
    wind_memory_h=40.0,
    clearness=0.55,
    plants=(
        Plant(
            name="biomass",
            source="biomass",
            capacity_mw=1_300,
            must_run=True,
            seasonal_swing=0.4,
            peak_day=18,
        ),
        Plant(name="offshore wind", source="wind_offshore", capacity_mw=4_800),
        Plant(name="onshore wind", source="wind_onshore", capacity_mw=5_500),
        Plant(name="solar", source="solar", capacity_mw=3_000),
        Plant(name="hydro", source="hydro", capacity_mw=2_000, cost_eur_per_mwh=(25, 110)),
        Plant(
            name="coal",
            source="coal",
            capacity_mw=1_800,
            heat_rate=(0.95, 1.15),
            cost_eur_per_mwh=(3, 4),
        ),
        Plant(
            name="gas",
            source="gas",
            capacity_mw=6_000,
            heat_rate=(0.92, 1.25),
            cost_eur_per_mwh=(2, 4),
        ),
        Plant(
            name="gas turbines",
            source="gas",
            capacity_mw=3_000,
            heat_rate=_OPEN_CYCLE,
            cost_eur_per_mwh=(5, 8),
        ),
    ),
)

_NUCLEAR = GridModel(
    name="nuclear",
    description="nuclear power and hydro: low and flat, with gas on winter evenings",
    latitude_deg=46.5,
    longitude_deg=2.5,
    utc_offset_h=1.0,
    demand_mw=10_000.0,
    hour_shape=_EVENING_PEAK,
    saturday=0.92,
    sunday=0.87,
    demand_swing=0.17,
    demand_peak_day=18.0,
    wind_m_per_s=6.8,
    wind_memory_h=36.0,
    clearness=0.70,
    plants=(
        Plant(
            name="nuclear, steady",
            source="nuclear",
            capacity_mw=4_600,
            must_run=True,
            seasonal_swing=0.15,
            peak_day=18,
        ),
        Plant(
            name="river hydro",
            source="hydro",
            capacity_mw=700,
            must_run=True,
            seasonal_swing=0.3,
            peak_day=130,
        ),
        Plant(name="wind", source="wind_onshore", capacity_mw=2_200),
        Plant(name="solar", source="solar", capacity_mw=2_200),
        Plant(
            name="nuclear, following",
            source="nuclear",
            capacity_mw=3_400,
            cost_eur_per_mwh=(9, 45),
        ),
        Plant(name="hydro", source="hydro", capacity_mw=1_700, cost_eur_per_mwh=(30, 100)),
        Plant(name="biomass", source="biomass", capacity_mw=200, cost_eur_per_mwh=(60, 75)),
        Plant(
            name="gas",
            source="gas",
            capacity_mw=2_600,
            heat_rate=(0.92, 1.25),
            cost_eur_per_mwh=(2, 4),
        ),
        Plant(
            name="gas turbines",
            source="gas",
            capacity_mw=2_000,
            heat_rate=_OPEN_CYCLE,
            cost_eur_per_mwh=(5, 8),
        ),
    ),
)

_COAL = GridModel(
    name="coal",
    description="coal by day and night: high and fairly flat",
    latitude_deg=52.0,
    longitude_deg=19.0,
    utc_offset_h=1.0,
    demand_mw=10_000.0,
    hour_shape=_INDUSTRIAL,
    saturday=0.93,
    sunday=0.88,
    demand_swing=0.08,
    demand_peak_day=18.0,
    wind_m_per_s=6.6,
    wind_memory_h=36.0,
    clearness=0.50,
    plants=(
        Plant(
            name="biomass",
            source="biomass",
            capacity_mw=300,
            must_run=True,
            seasonal_swing=0.3,
        ),
        Plant(name="river hydro", source="hydro", capacity_mw=150, must_run=True),
        Plant(
            name="coal, steady",
            source="coal",
            capacity_mw=4_500,
            must_run=True,
            seasonal_swing=0.10,
            heat_rate=(1.05, 1.05),
        ),
        Plant(name="wind", source="wind_onshore", capacity_mw=2_200),
        Plant(name="solar", source="solar", capacity_mw=2_000),
        Plant(
            name="coal",
            source="coal",
            capacity_mw=6_000,
            heat_rate=(0.92, 1.20),
            cost_eur_per_mwh=(3, 5),
        ),
        Plant(
            name="gas",
            source="gas",
            capacity_mw=1_500,
            heat_rate=(0.95, 1.20),
            cost_eur_per_mwh=(2, 4),
        ),
        Plant(
            name="gas turbines",
            source="gas",
            capacity_mw=1_500,
            heat_rate=_OPEN_CYCLE,
            cost_eur_per_mwh=(5, 8),
        ),
    ),
)

#: Name → model.
GRIDS: Mapping[str, GridModel] = MappingProxyType(
    {model.name: model for model in (_COAL, _NUCLEAR, _SUNNY, _WINDY)}
)

#: The names that `synthetic_grid` knows, sorted.
GRID_NAMES: tuple[str, ...] = tuple(sorted(GRIDS))


#: Source → basis → g CO₂ equivalent per kWh.
