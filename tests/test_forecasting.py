"""Models of how wrong forecasts are: exact where they must be, and wrong in the way they say."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lowtide.errors import InvalidInput, InvalidTime, NotCovered
from lowtide.forecast import Forecast, ForecastModel, LeadScaled, Perfect, Persistence, Replay
from lowtide.signal import Signal
from support.strategies import COARSE_S, signals

HOUR, DAY = 3600.0, 86400.0
START = 1_719_792_000.0


def hourly(*values, start=START, **kwargs):
    return Signal.from_values(values, start=start, step_s="1h", **kwargs)


models = st.sampled_from(
    [
        Perfect(),
        Perfect(reach_s=2 * HOUR),
        LeadScaled(seed=1),
        LeadScaled(seed=2, relative_error=0.5, autocorrelation=0.0, reach_s=HOUR),
        Persistence(),
        Persistence(period_s=3 * HOUR),
    ]
)


@st.composite
def questions(draw, **kwargs):
    """A signal, a moment within it, and how far to look ahead."""
    signal = draw(signals(min_size=2, max_size=40, steps=COARSE_S, **kwargs))
    share = draw(st.sampled_from([0.0, 0.25, 0.5, 0.61]))
    issued = signal.start + share * len(signal) * signal.step_s
    horizon_s = draw(st.sampled_from([1.0, 0.5, 0.3])) * (signal.end - issued)
    return signal, issued, horizon_s


@given(questions(), models)
def test_what_has_begun_is_exact_and_the_rest_covers_the_horizon(question, model):
    signal, issued, horizon_s = question
    made = model.forecast(signal, issued, horizon_s)
    assert isinstance(model, ForecastModel)
    assert made.signal.covers(issued, issued + horizon_s)
    begun = made.leads_s <= 1e-6
    assert begun.any()
    count = int(begun.sum())
    assert np.array_equal(made.signal.values[:count], signal.values[:count])
    assert np.all(made.signal.values >= 0)
    again = model.forecast(signal, issued, horizon_s)
    assert again.signal.values.tobytes() == made.signal.values.tobytes()


@given(questions(), models)
def test_a_longer_horizon_changes_nothing_nearer(question, model):
    signal, issued, horizon_s = question
    near = model.forecast(signal, issued, horizon_s).signal.values
    far = model.forecast(signal, issued, signal.end - issued).signal.values
    assert np.array_equal(far[: near.size], near)


@given(questions(), st.sampled_from([DAY, 3 * HOUR]), st.floats(0, 900))
def test_persistence_looks_at_nothing_that_is_yet_to_come(question, period_s, other):
    signal, issued, horizon_s = question
    model = Persistence(period_s=period_s)
    ahead = signal.edges[:-1] > issued + 1e-6
    changed = replace(signal, values=np.where(ahead, other, signal.values))
    before, after = (
        each.forecast(s, issued, horizon_s) for each, s in ((model, signal), (model, changed))
    )
    assert np.array_equal(before.signal.values, after.signal.values)


def test_perfect_is_the_signal():
    signal = hourly(300, 100, 200)
    made = Perfect().forecast(signal, START, 3 * HOUR)
    assert np.array_equal(made.signal.values, signal.values)
    assert made.signal.filled == 0


def test_persistence_repeats_days_or_weeks_or_holds():
    signal = hourly(*range(48))
    made = Persistence().forecast(signal, START + 30 * HOUR, 60 * HOUR)
    # It reaches beyond the signal's own end.
    assert made.signal.values.tolist() == [*range(31), *range(7, 31), *range(7, 31), *range(7, 18)]
    week = Persistence(period_s=7 * DAY).forecast(signal, START + 30 * HOUR, 3 * HOUR)
    assert week.signal.values[31:].tolist() == [30.0, 30.0]
    assert (made.lower, made.upper) == (None, None)


def test_beyond_its_reach_a_forecast_repeats_the_day_before_and_says_so():
    signal = hourly(*range(48))
    made = Perfect(reach_s=6 * HOUR).forecast(signal, START + 24 * HOUR, 12 * HOUR)
    assert made.signal.values.tolist() == [*range(30), *range(6, 12)]
    assert made.signal.filled == 6
    assert "the last 6 steps, beyond what it covers, repeat the day before" in made.signal.source
    wide = LeadScaled(reach_s=6 * HOUR, seed=4).forecast(signal, START + 24 * HOUR, 12 * HOUR)
    assert wide.signal.filled == 6
    assert wide.lower.filled == wide.upper.filled == 6


@cache
def sample(*, hours=120, **kwargs):
    """Relative errors, seeds by hours ahead, of forecasts issued at one moment."""
    signal = hourly(*[300.0] * (hours + 1))
    made = [
        LeadScaled(seed=seed, **kwargs).forecast(signal, START, hours * HOUR) for seed in range(400)
    ]
    return np.array([each.relative_errors(signal) for each in made]), made


def test_the_error_grows_with_lead_time_to_what_was_stated():
    errors, _ = sample(relative_error=0.1, autocorrelation=0.9)
    spread = errors.std(axis=0)
    assert spread[0] == 0
    assert spread[[1, 6, 24, 48]] == pytest.approx([0.1 / 24**0.5, 0.05, 0.1, 0.141], rel=0.12)
    # Four times the lead has twice the error; further ahead it grows no more.
    assert spread[[96, 110, 119]] == pytest.approx([0.2, 0.2, 0.2], rel=0.12)
    assert errors[:, 24].mean() == pytest.approx(0.0, abs=0.015)
    capped, _ = sample(hours=60, relative_error=0.1, most=0.12)
    assert capped.std(axis=0)[[40, 59]] == pytest.approx([0.12, 0.12], rel=0.12)


def test_neighbouring_errors_go_together():
    errors, _ = sample(relative_error=0.1, autocorrelation=0.9)
    assert np.corrcoef(errors[:, 50], errors[:, 51])[0, 1] == pytest.approx(0.9, abs=0.04)
    assert np.corrcoef(errors[:, 50], errors[:, 60])[0, 1] == pytest.approx(0.9**10, abs=0.12)
    # The later step awaits one more hour's news, which matters where there was little.
    for hours in (1, 2, 4, 8, 24):
        found = np.corrcoef(errors[:, hours], errors[:, hours + 1])[0, 1]
        assert found == pytest.approx(0.9 * math.sqrt(hours / (hours + 1)), abs=0.06)
    loose, _ = sample(hours=52, autocorrelation=0.0)
    assert np.corrcoef(loose[:, 50], loose[:, 51])[0, 1] == pytest.approx(0.0, abs=0.12)


def test_the_bands_hold_the_share_of_the_truth_that_they_claim():
    _, made = sample(hours=60, relative_error=0.2, coverage=0.6)
    inside = [
        (each.lower.values <= 300.0 + 1e-9) & (each.upper.values >= 300.0 - 1e-9) for each in made
    ]
    assert np.mean(inside, axis=0)[[10, 30, 59]] == pytest.approx([0.6, 0.6, 0.6], abs=0.08)
    assert made[0].lower.values[0] == made[0].upper.values[0] == 300.0


def test_forecasts_of_the_same_hour_draw_near_to_the_truth():
    signal = hourly(*[300.0] * 51)
    errors = np.array(
        [
            [
                LeadScaled(seed=seed)
                .forecast(signal, START + hour * HOUR, (51 - hour) * HOUR)
                .signal.values[50]
                / 300.0
                - 1.0
                for hour in range(2, 51, 6)
            ]
            for seed in range(200)
        ]
    )
    spread = errors.std(axis=0)
    assert np.all(np.diff(spread) < 0)
    assert spread[-1] == 0
    # News comes bit by bit: what is foreseen changes less in 6 hours than it errs in all.
    assert np.abs(np.diff(errors, axis=1))[:, 0].mean() < 0.7 * np.abs(errors[:, 0]).mean()


def test_a_finer_grid_has_the_same_kind_of_error():
    hours = hourly(*[300.0] * 26)
    fine = Signal.from_values([300.0] * 26 * 12, start=START, step_s="5m")
    spreads = [
        np.std(
            [
                LeadScaled(seed=seed).forecast(signal, START, 25 * HOUR).signal.at(START + DAY)
                for seed in range(300)
            ]
        )
        for signal in (hours, fine)
    ]
    assert spreads == pytest.approx([30.0, 30.0], rel=0.12)


def test_a_sign_is_kept_and_zero_stays_zero():
    prices = hourly(*[-0.1, 0.0, 0.2] * 8, kind="price", unit="EUR/kWh")
    made = LeadScaled(relative_error=0.5).forecast(prices, START, 24 * HOUR)
    assert np.array_equal(np.sign(made.signal.values), np.sign(prices.values))
    assert np.all(made.lower.values <= made.upper.values)


def test_a_replay_takes_the_newest_there_was():
    truth = hourly(1, 2, 3, 4, 5, 6)
    old = Forecast(issued=START - DAY, signal=hourly(10, 20, 30, 40))
    new = Forecast(issued=START + HOUR, signal=hourly(11, 21, 31, 41), upper=hourly(11, 22, 33, 44))
    replay = Replay([new, old])
    first = replay.forecast(truth, START, 4 * HOUR)
    assert first.signal.values.tolist() == [1, 20, 30, 40]
    later = replay.forecast(truth, START + 1.5 * HOUR, 4 * HOUR)
    # Hours that have begun are known; beyond the recording the last known value is held.
    assert later.signal.values.tolist() == [1, 2, 31, 41, 41, 41]
    assert later.signal.filled == 2
    assert later.upper.values.tolist() == [1, 2, 33, 44, 44, 44]
    assert later.lower is None
    with pytest.raises(NotCovered, match="no forecast was recorded by"):
        Replay([new]).forecast(truth, START, HOUR)


def test_a_replay_of_finer_steps_takes_their_mean_and_one_of_another_kind_is_refused():
    truth = hourly(1, 2, 3)
    fine = Signal.from_values([10, 20, 30, 50, 1, 3], start=START, step_s="30m")
    made = Replay([Forecast(issued=START, signal=fine)]).forecast(truth, START, 3 * HOUR)
    assert made.signal.values.tolist() == [1, 40, 2]
    marginal = Forecast(issued=START, signal=hourly(1, 2, 3, kind="marginal"))
    direct = Forecast(issued=START, signal=hourly(1, 2, 3, basis="direct"))
    for other in (marginal, direct):
        with pytest.raises(InvalidInput, match="says nothing of a signal of average lifecycle"):
            Replay([other]).forecast(truth, START, HOUR)


@pytest.mark.parametrize("model", [Perfect(), LeadScaled(), Persistence()])
def test_a_moment_outside_the_signal_is_refused(model):
    signal = hourly(1, 2, 3)
    with pytest.raises(NotCovered):
        model.forecast(signal, START - HOUR, HOUR)
    with pytest.raises(InvalidTime, match="reaches further than its moment"):
        model.forecast(signal, START, 0.0)
    with pytest.raises(InvalidTime):
        model.forecast(signal, float("nan"), HOUR)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: LeadScaled(relative_error=-0.1), "relative error is from 0 to 1"),
        (lambda: LeadScaled(relative_error=float("nan")), "relative error is from 0 to 1"),
        (lambda: LeadScaled(relative_error=0.2, most=0.1), "from relative_error = 0.2 to 1"),
        (lambda: LeadScaled(lead_s=0), "lead of the stated error"),
        (lambda: LeadScaled(autocorrelation=1.0), "from 0 to below 1"),
        (lambda: LeadScaled(coverage=1.0), "between 0 and 1"),
        (lambda: LeadScaled(seed=-1), "seed is a whole number"),
        (lambda: LeadScaled(seed=1.5), "seed is a whole number"),
        (lambda: LeadScaled(reach_s=0), "how far a forecast sees"),
        (lambda: Perfect(reach_s=float("inf")), "None for everything"),
        (lambda: Persistence(period_s=0), "period is longer than 0 s"),
        (lambda: Replay([]), "at least one recorded forecast"),
    ],
)
def test_bad_parameters_are_refused(make, message):
    with pytest.raises(InvalidInput, match=message):
        make()
