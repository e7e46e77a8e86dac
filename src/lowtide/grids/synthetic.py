"""Grids that come from a model: carbon intensity and price that belong together.

`synthetic_grid` runs a small physical model of a power system: people, sun and wind by the hour,
then plants in merit order. Average intensity, marginal intensity and price come from one
dispatch, so they agree with each other as those of a real grid do. Whatever it returns says that
it is synthetic.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from lowtide.errors import InvalidInput, UnknownName
from lowtide.grid import Grid
from lowtide.grids import weather
from lowtide.grids.models import GRIDS, GridModel
from lowtide.grids.weather import dispatch
from lowtide.signal import BASES, FloatArray, Signal
from lowtide.units import DurationLike, TimeLike, format_hours, parse_duration, parse_time

#: Rises whenever the same arguments give other values than before.
MODEL_VERSION = 1

_DAY_S = 86_400.0
_MAX_DAYS = 3_660.0
_SHORTEST_STEP_S = 300.0
_LONGEST_STEP_S = 3_600.0


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class GridRun:
    """What a synthetic grid did, step by step.

    At every step the generation of all plants adds up to demand.

    Attributes:
        model: The grid that ran.
        seed: What chance followed.
        basis: Which emissions the intensities count.
        start: The instant at which the first step begins.
        step_s: Length of every step.
        demand_mw: Demand per step.
        generation_mw: Plant → MW per step, in the model's order, then the reserve.
        curtailed_mw: Plant → MW per step that nobody needed, for the plants that offer at or
            below 0 EUR/MWh.
        average_g_per_kwh: Emissions over generation.
        marginal_g_per_kwh: Intensity of the plant that would serve one more MWh.
        price_eur_per_mwh: What that plant asks for.
        marginal_plant: The place of that plant in `generation_mw`.
    """

    model: GridModel
    seed: int
    basis: str
    start: float
    step_s: float
    demand_mw: FloatArray
    generation_mw: Mapping[str, FloatArray]
    curtailed_mw: Mapping[str, FloatArray]
    average_g_per_kwh: FloatArray
    marginal_g_per_kwh: FloatArray
    price_eur_per_mwh: FloatArray
    marginal_plant: np.ndarray[tuple[int], np.dtype[np.intp]]

    def __post_init__(self) -> None:
        for array in (
            self.demand_mw,
            *self.generation_mw.values(),
            *self.curtailed_mw.values(),
            self.average_g_per_kwh,
            self.marginal_g_per_kwh,
            self.price_eur_per_mwh,
            self.marginal_plant,
        ):
            array.flags.writeable = False

    def __repr__(self) -> str:
        length = format_hours(self.demand_mw.size * self.step_s)
        return f"<GridRun: {self.model.name} (synthetic), seed {self.seed}, {length}>"

    def grid(self) -> Grid:
        """Return average intensity, marginal intensity and price as signals."""
        average, marginal, price = (
            Signal.from_values(
                values,
                start=self.start,
                step_s=self.step_s,
                kind=kind,
                basis=self.basis,
                zone=f"synthetic-{self.model.name}",
                unit=unit,
                source=(
                    f"lowtide synthetic grid model {MODEL_VERSION}, "
                    f"grid {self.model.name!r}, seed {self.seed}"
                ),
                synthetic=True,
            )
            for kind, unit, values in (
                ("average", "g/kWh", self.average_g_per_kwh),
                ("marginal", "g/kWh", self.marginal_g_per_kwh),
                ("price", "EUR/MWh", self.price_eur_per_mwh),
            )
        )
        return Grid(average=average, marginal=marginal, price=price)


def synthetic_grid(
    name: str | GridModel,
    *,
    start: TimeLike = "2024-07-01T00:00Z",
    days: float = 7,
    seed: int = 0,
    step_s: DurationLike = 3600,
    basis: str = "lifecycle",
) -> Grid:
    """Return the signals of a synthetic grid.

    The same arguments give the same bytes, and a longer run begins with the values of a shorter
    one. Weather follows the seed from the start on: another start is other weather, in the right
    season and on the right weekdays.

    Args:
        name: One of `GRID_NAMES`, or a model of your own.
        start: When the first step begins: aware datetime, ISO text or epoch seconds.
        days: How many days, up to ten years; parts of a day where steps fit.
        seed: What chance follows, 0 or more.
        step_s: Length of a step, 5 min to 1 h, in seconds or as a text such as `15m`.
        basis: `lifecycle` or `direct` emissions.

    >>> grid = synthetic_grid("nuclear", days=2, seed=3)
    >>> grid.average.label, len(grid.average), grid.price.unit
    ('average carbon intensity, synthetic-nuclear', 48, 'EUR/kWh')
    """
    return synthetic_run(name, start=start, days=days, seed=seed, step_s=step_s, basis=basis).grid()


def synthetic_run(
    name: str | GridModel,
    *,
    start: TimeLike = "2024-07-01T00:00Z",
    days: float = 7,
    seed: int = 0,
    step_s: DurationLike = 3600,
    basis: str = "lifecycle",
) -> GridRun:
    """Run a synthetic grid and return what every plant did.

    Args:
        name: One of `GRID_NAMES`, or a model of your own.
        seed: What chance follows, 0 or more.
        step_s: Length of a step, 5 min to 1 h.
        basis: `lifecycle` or `direct` emissions.

    >>> run = synthetic_run("windy", days=1)
    >>> bool(np.allclose(sum(run.generation_mw.values()), run.demand_mw))
    True
    """
    model = name if isinstance(name, GridModel) else _find(name)
    begin = parse_time(start)
    step = _check_step(parse_duration(step_s))
    count = _check_days(days, step)
    if isinstance(seed, bool) or not isinstance(seed, int | np.integer) or seed < 0:
        raise InvalidInput(f"a seed is a whole number from 0 up, not {seed!r}")
    if basis not in BASES:
        raise UnknownName("basis", basis, BASES)

    # Each step stands for its middle.
    instants: FloatArray = begin + (np.arange(count, dtype=np.float64) + 0.5) * step
    demand_mw = weather.demand(instants, model, begin=begin, seed=int(seed))
    solar = weather.solar_share(instants, model, begin=begin, seed=int(seed))
    wind_m_per_s = weather.wind_speed(instants, model, begin=begin, seed=int(seed))
    available_mw = {
        plant.name: weather.available(plant, instants, solar=solar, wind_m_per_s=wind_m_per_s)
        for plant in model.plants
        if not plant.dispatchable
    }
    result = dispatch(model, demand_mw, available_mw, basis=basis)
    return GridRun(
        model=model,
        seed=int(seed),
        basis=basis,
        start=begin,
        step_s=step,
        demand_mw=demand_mw,
        generation_mw=result.generation_mw,
        curtailed_mw=result.curtailed_mw,
        average_g_per_kwh=result.average_g_per_kwh,
        marginal_g_per_kwh=result.marginal_g_per_kwh,
        price_eur_per_mwh=result.price_eur_per_mwh,
        marginal_plant=result.marginal_plant,
    )


def _find(name: str) -> GridModel:
    if name not in GRIDS:
        raise UnknownName("synthetic grid", str(name), GRIDS)
    return GRIDS[name]


def _check_step(step_s: float) -> float:
    if not _SHORTEST_STEP_S <= step_s <= _LONGEST_STEP_S:
        raise InvalidInput(
            f"a synthetic grid has steps of 5 min to 1 h, not {format_hours(step_s)}: "
            "give step_s='15m' or '1h', say"
        )
    if not (_DAY_S / step_s).is_integer():
        raise InvalidInput(
            f"a step of {step_s:g} s does not divide a day into equal parts: "
            "give one that does, e.g. 300, 900, 1800 or 3600"
        )
    return step_s


def _check_days(days: float, step_s: float) -> int:
    if isinstance(days, bool) or not isinstance(days, int | float | np.integer | np.floating):
        raise InvalidInput(f"days is a number such as 7, not {days!r}")
    if not (math.isfinite(days) and 0 < days <= _MAX_DAYS):
        raise InvalidInput(
            f"a synthetic grid runs for more than 0 and at most {_MAX_DAYS:,.0f} days (ten years), "
            f"not {days:g}: give days=365 for a year"
        )
    steps = float(days) * _DAY_S / step_s
    if abs(steps - round(steps)) > 1e-6 or round(steps) == 0:
        raise InvalidInput(
            f"{days:g} days are not a whole number of steps of {format_hours(step_s)}: "
            f"give days={max(math.ceil(steps), 1) * step_s / _DAY_S:g}"
        )
    return round(steps)
