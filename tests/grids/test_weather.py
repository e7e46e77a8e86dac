"""Sun, wind and demand: geometry, distribution and calendar."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime

import numpy as np
import pytest

from lowtide.grids import GRID_NAMES, GRIDS, weather
from lowtide.units import parse_time

HOUR = 3600.0


def hours_from(start: str, days: float) -> np.ndarray:
    return parse_time(start) + (np.arange(int(days * 24)) + 0.5) * HOUR


def daylight_h(date: str, latitude_deg: float) -> float:
    instants = parse_time(f"{date}T00:00Z") + np.arange(24 * 60) * 60.0
    up = weather.sun_height(instants, latitude_deg=latitude_deg, longitude_deg=0.0) > 0
    return float(up.sum() / 60)


@pytest.mark.parametrize("latitude", [25.0, 40.0, 55.0])
def test_summer_days_are_longer_than_winter_days_and_the_more_so_further_north(latitude):
    gain = daylight_h("2024-06-21", latitude) - daylight_h("2024-12-21", latitude)
    nearer = daylight_h("2024-06-21", latitude - 10) - daylight_h("2024-12-21", latitude - 10)
    assert gain > nearer > 0
    # South of the equator it is the other way round.
    assert daylight_h("2024-06-21", -latitude) < daylight_h("2024-12-21", -latitude)


def test_day_lengths_agree_with_the_sunrise_equation():
    # cos(half day) = −tan(latitude)·tan(declination); at 50° on the solstice that is 16.2 h.
    half = np.arccos(-np.tan(np.radians(50)) * np.tan(np.radians(23.44)))
    assert daylight_h("2024-06-21", 50.0) == pytest.approx(float(half) / np.pi * 24, abs=0.1)


def test_the_sun_is_highest_at_local_solar_noon():
    instants = parse_time("2024-03-20T00:00Z") + np.arange(24 * 60) * 60.0
    height = weather.sun_height(instants, latitude_deg=40.0, longitude_deg=-90.0)
    assert int(height.argmax()) / 60 == pytest.approx(18.0, abs=0.1)  # 6 h west of Greenwich


def test_the_day_of_year_stays_near_the_calendar():
    for year in range(1990, 2061):
        instant = datetime(year, 7, 1, tzinfo=UTC).timestamp()
        real = (instant - datetime(year, 1, 1, tzinfo=UTC).timestamp()) / 86400
        assert abs(float(weather.day_of_year(np.array([instant]))[0]) - real) < 2


@pytest.mark.parametrize("name", GRID_NAMES)
def test_there_is_no_sun_at_night_and_never_more_than_capacity(name):
    model = GRIDS[name]
    instants = hours_from("2024-01-01T00:00Z", 366)
    share = weather.solar_share(instants, model, begin=instants[0] - 1800, seed=0)
    height = weather.sun_height(
        instants, latitude_deg=model.latitude_deg, longitude_deg=model.longitude_deg
    )
    assert np.all(share[height <= 0] < 1e-20)
    assert share.min() >= 0
    assert 0.5 < share.max() <= 1
    assert 0.08 < share.mean() < 0.26


def test_wind_speed_is_rayleigh_with_the_stated_mean_and_memory():
    model = replace(GRIDS["windy"], latitude_deg=0.0)
    instants = hours_from("2020-01-01T00:00Z", 3653)
    speed = weather.wind_speed(instants, model, begin=instants[0] - 1800, seed=0)
    assert speed.mean() == pytest.approx(model.wind_m_per_s, rel=0.05)
    assert speed.std() / speed.mean() == pytest.approx(np.sqrt(4 / np.pi - 1), rel=0.06)

    def correlation(lag: int) -> float:
        return float(np.corrcoef(speed[:-lag], speed[lag:])[0, 1])

    assert correlation(1) > 0.93
    assert 0.5 < correlation(12) < 0.8
    assert abs(correlation(24 * 14)) < 0.1
    # A length forgets about twice as fast as its components do.
    assert correlation(20) == pytest.approx(np.exp(-2 * 20 / model.wind_memory_h), abs=0.1)


def test_winter_is_windier_on_either_half_of_the_globe():
    instants = hours_from("2020-01-01T00:00Z", 3653)
    january = weather.season(instants, 15.0) > 0
    for latitude, windier in ((55.0, january), (-55.0, ~january)):
        model = replace(GRIDS["windy"], latitude_deg=latitude)
        speed = weather.wind_speed(instants, model, begin=instants[0] - 1800, seed=0)
        assert speed[windier].mean() > speed[~windier].mean()


def test_the_power_curve_rises_to_full_and_stops_in_a_storm():
    speed = np.linspace(0, 40, 401)
    share = weather.wind_share(speed)
    assert share.min() == 0 and share.max() == 1
    assert np.all(share[speed < 3] == 0) and np.all(share[speed > 27] == 0)
    assert np.all(np.diff(share[speed < 23]) >= 0)


@pytest.mark.parametrize("name", GRID_NAMES)
def test_demand_follows_the_week_and_the_year(name):
    model = GRIDS[name]
    instants = hours_from("2024-01-01T00:00Z", 364)  # a Monday, and 52 whole weeks
    demand = weather.demand(instants, model, begin=instants[0] - 1800, seed=0)
    local = [datetime.fromtimestamp(t + model.utc_offset_h * HOUR, UTC) for t in instants]
    weekday = np.array([moment.weekday() for moment in local])
    hour = np.array([moment.hour for moment in local])
    saturday, sunday, work = demand[weekday == 5], demand[weekday == 6], demand[weekday < 5]
    assert sunday.mean() < saturday.mean() < work.mean()
    assert saturday.mean() / work.mean() == pytest.approx(model.saturday, abs=0.02)
    assert demand.mean() == pytest.approx(model.demand_mw, rel=0.02)
    assert demand[hour == 3].mean() < demand[hour == 12].mean() < demand[hour == 19].mean()
    peak = weather.season(instants, model.demand_peak_day) > 0
    assert demand[peak].mean() > demand[~peak].mean()


def test_a_finer_step_sees_the_same_weather():
    begin = parse_time("2024-07-01T00:00Z")
    model = GRIDS["windy"]
    for process in (weather.wind_speed, weather.solar_share, weather.demand):
        coarse = process(begin + (np.arange(48) + 0.5) * HOUR, model, begin=begin, seed=4)
        fine = process(begin + (np.arange(48 * 3) + 0.5) * HOUR / 3, model, begin=begin, seed=4)
        assert np.allclose(fine[1::3], coarse, rtol=1e-9)
