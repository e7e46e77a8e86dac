"""Synthetic grids as users see them: shape, magnitudes, determinism, labels and refusals."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import cache
from itertools import pairwise
from time import perf_counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lowtide import grids
from lowtide.errors import InvalidInput, InvalidTime, UnknownName
from lowtide.grids import GRID_NAMES, GRIDS, GridRun, synthetic_grid, synthetic_run
from lowtide.grids.weather import MUST_RUN_BID_EUR_PER_MWH, SCARCITY_EUR_PER_MWH
from support.nightly import drawn

KINDS = ("average", "marginal", "price")


@cache
def year(name: str) -> GridRun:
    return synthetic_run(name, start="2024-01-01T00:00Z", days=366, seed=0)


def by_local_hour(run: GridRun, values: np.ndarray) -> np.ndarray:
    hours = (run.start / 3600 + run.model.utc_offset_h + np.arange(values.size)).astype(int) % 24
    return np.array([values[hours == hour].mean() for hour in range(24)])


def lag_correlation(values: np.ndarray, lag: int) -> float:
    return float(np.corrcoef(values[:-lag], values[lag:])[0, 1])


def test_all_is_sorted_and_there():
    assert grids.__all__ == sorted(grids.__all__)
    assert all(hasattr(grids, name) for name in grids.__all__)


@pytest.mark.parametrize(
    ("name", "mean", "low", "high"),
    [
        ("sunny", (200, 320), 25, 500),
        ("windy", (200, 320), 20, 550),
        ("nuclear", (18, 60), 11, 200),
        ("coal", (650, 800), 400, 850),
    ],
)
def test_magnitudes_over_a_year_are_plausible(name, mean, low, high):
    run = year(name)
    assert mean[0] < run.average_g_per_kwh.mean() < mean[1]
    assert low < run.average_g_per_kwh.min()
    assert run.average_g_per_kwh.max() < high
    assert 30 < run.price_eur_per_mwh.mean() < 110
    assert (run.price_eur_per_mwh == SCARCITY_EUR_PER_MWH).mean() < 0.002
    assert (run.price_eur_per_mwh == MUST_RUN_BID_EUR_PER_MWH).mean() < 0.002


def test_nuclear_is_lowest_and_coal_is_highest():
    means = {name: year(name).average_g_per_kwh.mean() for name in GRID_NAMES}
    assert min(means, key=means.__getitem__) == "nuclear"
    assert max(means, key=means.__getitem__) == "coal"


def test_the_sunny_grid_dips_at_midday_and_is_dear_in_the_evening():
    run = year("sunny")
    intensity = by_local_hour(run, run.average_g_per_kwh)
    price = by_local_hour(run, run.price_eur_per_mwh)
    assert 11 <= int(intensity.argmin()) <= 15
    assert intensity.min() < 0.55 * intensity.max()
    assert 18 <= int(price.argmax()) <= 22


def test_the_windy_grid_swings_over_days_not_hours():
    run = year("windy")
    daily = run.average_g_per_kwh.reshape(-1, 24).mean(axis=1)
    hourly = by_local_hour(run, run.average_g_per_kwh)
    assert daily.std() > 2 * hourly.std()
    assert np.percentile(daily, 95) > 3 * np.percentile(daily, 5)


def test_coal_is_fairly_flat():
    run = year("coal")
    assert run.average_g_per_kwh.std() < 0.12 * run.average_g_per_kwh.mean()


@pytest.mark.parametrize("name", GRID_NAMES)
def test_wind_power_remembers_hours_and_forgets_weeks(name):
    run = year(name)
    wind = sum(
        run.generation_mw[plant.name] + run.curtailed_mw[plant.name]
        for plant in run.model.plants
        if plant.source.startswith("wind")
    )
    assert lag_correlation(wind, 1) > 0.9
    assert lag_correlation(wind, 6) > 0.5
    assert abs(lag_correlation(wind, 24 * 10)) < 0.25


@pytest.mark.parametrize("name", GRID_NAMES)
def test_there_is_no_solar_power_around_midnight(name):
    run = year(name)
    assert by_local_hour(run, run.generation_mw["solar"])[[23, 0, 1, 2]].max() < 1e-9
    summer = run.generation_mw["solar"][24 * 152 : 24 * 244]
    winter = run.generation_mw["solar"][: 24 * 60]
    assert (summer > 1.0).mean() > (winter > 1.0).mean()
    assert summer.mean() > 1.3 * winter.mean()


def test_the_south_has_its_summer_in_january():
    south = replace(GRIDS["sunny"], name="southern", latitude_deg=-34.0)
    run = synthetic_run(south, start="2024-01-01T00:00Z", days=366)
    solar = run.generation_mw["solar"] + run.curtailed_mw["solar"]
    assert solar[: 24 * 60].mean() > 1.3 * solar[24 * 152 : 24 * 212].mean()
    assert run.grid().average.zone == "synthetic-southern"


def test_direct_counts_less_than_lifecycle_and_leaves_prices_alone():
    lifecycle = synthetic_grid("windy", days=30)
    direct = synthetic_grid("windy", days=30, basis="direct")
    assert direct.average.basis == "direct"
    assert np.all(direct.average.values < lifecycle.average.values)
    assert np.array_equal(direct.price.values, lifecycle.price.values)


@pytest.mark.parametrize("name", GRID_NAMES)
def test_signals_say_that_they_are_synthetic_and_from_where(name):
    grid = synthetic_grid(name, seed=5)
    for kind in KINDS:
        signal = getattr(grid, kind)
        assert signal.kind == kind
        assert signal.synthetic and "synthetic" in signal.label
        assert signal.zone == f"synthetic-{name}"
        assert name in signal.source and "seed 5" in signal.source and "model 1" in signal.source
        assert len(signal) == 168
        assert signal.start == datetime(2024, 7, 1, tzinfo=UTC).timestamp()
    assert grid.average.basis == grid.marginal.basis == "lifecycle"
    assert grid.price.unit == "EUR/kWh"
    run = synthetic_run(name, seed=5)
    assert np.allclose(grid.price.values * 1000, run.price_eur_per_mwh)
    assert name in repr(run) and "synthetic" in repr(run)


def test_a_run_cannot_be_changed_by_accident():
    run = synthetic_run("sunny", days=1)
    with pytest.raises(ValueError, match="read-only"):
        run.generation_mw["solar"][0] = 1.0


starts = st.integers(631_152_000, 2_840_140_800)  # 1990 to 2060, to the second
names = st.sampled_from(GRID_NAMES)
seeds = st.integers(0, 2**64)


@settings(max_examples=drawn(30, 600))
@given(
    name=names,
    start=starts,
    days=st.integers(1, 40),
    seed=seeds,
    step=st.sampled_from([300, 900, "30m", "1h"]),
)
def test_values_are_finite_and_share_their_steps(name, start, days, seed, step):
    grid = synthetic_grid(name, start=start, days=days, seed=seed, step_s=step)
    for kind in KINDS:
        signal = getattr(grid, kind)
        assert np.isfinite(signal.values).all()
        assert (signal.start, signal.step_s, len(signal)) == (
            grid.average.start,
            grid.average.step_s,
            len(grid.average),
        )
        assert signal.end - signal.start == days * 86400
    assert grid.average.values.min() > 0
    assert grid.marginal.values.min() > 0
    assert grid.price.values.min() * 1000 >= MUST_RUN_BID_EUR_PER_MWH - 1e-9
    assert grid.price.values.max() * 1000 <= SCARCITY_EUR_PER_MWH + 1e-9


@settings(max_examples=drawn(30, 600))
@given(name=names, start=starts, days=st.integers(1, 20), more=st.integers(1, 400), seed=seeds)
def test_a_longer_run_begins_with_the_shorter(name, start, days, more, seed):
    short = synthetic_grid(name, start=start, days=days, seed=seed)
    long = synthetic_grid(name, start=start, days=days + more, seed=seed)
    for kind in KINDS:
        ours = getattr(short, kind).values
        assert getattr(long, kind).values[: ours.size].tobytes() == ours.tobytes()


def test_the_same_seed_gives_the_same_bytes_and_another_does_not():
    runs = {seed: synthetic_grid("windy", seed=seed) for seed in range(4)}
    again = synthetic_grid("windy", seed=np.int64(2), start=datetime(2024, 7, 1, tzinfo=UTC))
    for kind in KINDS:
        assert getattr(again, kind).values.tobytes() == getattr(runs[2], kind).values.tobytes()
    for a, b in pairwise(runs.values()):
        assert not np.array_equal(a.average.values, b.average.values)


def test_values_have_not_moved_without_a_new_model_version():
    grid = synthetic_grid("windy", seed=1, days=1)
    assert grid.average.values[[0, 6, 12, 18]] == pytest.approx(
        [175.9546753696223, 248.39174541618013, 30.998838421440507, 102.15278093503088], rel=1e-9
    )


def test_weekdays_and_seasons_follow_the_calendar_whatever_the_start():
    whole = synthetic_run("coal", start="2024-06-01T00:00Z", days=60)
    late = synthetic_run("coal", start="2024-06-16T00:00Z", days=45)
    # Noise differs, the calendar does not.
    ratio = late.demand_mw / whole.demand_mw[15 * 24 :]
    assert np.all(np.abs(ratio - 1) < 0.13)
    assert lag_correlation(np.concatenate((late.demand_mw, whole.demand_mw[15 * 24 :])), 1080) > 0.9


def test_a_zone_other_than_utc_is_the_same_instant():
    local = datetime.fromisoformat("2024-07-01T02:00+02:00")
    assert local.utcoffset() == timedelta(hours=2)
    a, b = synthetic_grid("sunny", start=local), synthetic_grid("sunny")
    assert np.array_equal(a.average.values, b.average.values)


def test_a_year_of_hours_is_quick():
    synthetic_grid("windy", days=1)
    begin = perf_counter()
    synthetic_grid("windy", days=3650)
    assert perf_counter() - begin < 3.0  # 0.1 s on an idle machine


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"days": 0}, "more than 0 and at most 3,660 days .* not 0: give days=365"),
        ({"days": -3}, "not -3"),
        ({"days": 5000}, "ten years"),
        ({"days": float("nan")}, "not nan"),
        ({"days": float("inf")}, "not inf"),
        ({"days": "7"}, "days is a number such as 7, not '7'"),
        ({"days": True}, "not True"),
        ({"days": 0.3}, "not a whole number of steps of 1 h: give days=0.333333"),
        ({"step_s": "1d"}, "steps of 5 min to 1 h, not 24 h"),
        ({"step_s": 60}, "steps of 5 min to 1 h, not 60 s"),
        ({"step_s": 0}, "steps of 5 min to 1 h"),
        ({"step_s": 1000}, "does not divide a day .* e.g. 300, 900"),
        ({"seed": -1}, "whole number from 0 up, not -1"),
        ({"seed": 1.5}, "whole number from 0 up, not 1.5"),
        ({"seed": True}, "whole number from 0 up, not True"),
    ],
)
def test_bad_input_is_refused_with_the_cure(arguments, message):
    with pytest.raises(InvalidInput, match=message):
        synthetic_grid("windy", **arguments)


def test_the_cure_for_a_broken_day_works():
    assert len(synthetic_grid("windy", days=0.5).average) == 12
    assert len(synthetic_grid("windy", days=8 / 24).average) == 8


def test_naive_starts_and_texts_without_a_unit_are_refused():
    with pytest.raises(InvalidTime, match="no time zone"):
        synthetic_grid("windy", start="2024-07-01T00:00")
    with pytest.raises(InvalidTime, match="no unit"):
        synthetic_grid("windy", step_s="15")


def test_unknown_names_list_the_known():
    with pytest.raises(UnknownName, match=r"unknown synthetic grid 'windi' \(did you mean 'windy"):
        synthetic_grid("windi")
    with pytest.raises(UnknownName, match="known are coal, nuclear, sunny, windy"):
        synthetic_grid("")
    with pytest.raises(UnknownName, match="unknown basis 'stack'"):
        synthetic_grid("windy", basis="stack")
