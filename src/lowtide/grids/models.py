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
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import files
from types import MappingProxyType
from typing import Any

from lowtide.errors import InvalidInput, UnknownName
from lowtide.signal import BASES

#: Source → basis → g CO₂ equivalent per kWh.
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


def _load() -> dict[str, GridModel]:
    document = tomllib.loads((files("lowtide.grids") / "grids.toml").read_text("utf-8"))
    return {
        name: GridModel(
            name=name,
            hour_shape=tuple(document["hour_shapes"][said.pop("hour_shape")]),
            plants=tuple(
                Plant(**{key: _fixed(value) for key, value in plant.items()})
                for plant in said.pop("plants")
            ),
            **said,
        )
        for name, said in document["grids"].items()
    }


def _fixed(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


GRIDS: Mapping[str, GridModel] = MappingProxyType(_load())

#: The names that `synthetic_grid` knows, sorted.
GRID_NAMES: tuple[str, ...] = tuple(sorted(GRIDS))
