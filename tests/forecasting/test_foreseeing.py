"""Forecasts of a signal's own history: what they may know, what they say, what they refuse."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lowtide.errors import InvalidInput, InvalidSignal, NotCovered, UnknownName
from lowtide.forecast import ForecastModel, Persistence
from lowtide.forecasting import auto, models
from lowtide.forecasting.auto import WAYS, Auto, make_forecasts
from lowtide.forecasting.past import Past
from lowtide.signal import ESTIMATED, FILLED, Signal
from support.nightly import drawn

HOUR, DAY = 3600.0, 86400.0
START = 1_704_067_200.0  # a Monday, at midnight
SIMPLE = Auto(ways=("persistence", "profile"))
# Without trees, which take seconds to grow.
LIGHT = Auto(ways=WAYS[:-1])


def course(days, *, step_s=HOUR, seed=0, noise=20.0, start=START, **kwargs):
    """A grid with days, weekends, weather that stays for a while, and noise."""
    rng = np.random.default_rng(seed)
    count = round(days * DAY / step_s)
    hours = (np.arange(count) * step_s) / HOUR
    weather = np.empty(count)
    level, kept = 0.0, 0.97 ** (step_s / HOUR)
    for place, push in enumerate(rng.normal(size=count)):
        level = kept * level + noise * math.sqrt(1 - kept * kept) * push
        weather[place] = level
    values = 300 - 80 * np.sin(2 * np.pi * (hours - 6) / 24) - 40 * (hours // 24 % 7 >= 5) + weather
    return Signal.from_values(np.maximum(values, 0), start=start, step_s=step_s, **kwargs)


@cache
def season():
    return course(60, seed=1)


def told(forecast):
    parts = (forecast.signal, forecast.lower, forecast.upper)
    return [None if part is None else part.values.tobytes() for part in parts]


def forget():
    auto._try_out.cache_clear()
    auto._grown.cache_clear()


@st.composite
def histories(draw):
    """A signal of some days with gaps and estimates, and a moment at which half a day is known."""
    step_s = draw(st.sampled_from([300.0, 900.0, 1800.0, 3600.0, 6 * HOUR]))
    days = draw(st.integers(2, 24 if step_s >= 1800 else 10))
    offset = draw(st.integers(0, 30)) * step_s
    signal = course(days, step_s=step_s, seed=draw(st.integers(0, 99)), start=START + offset)
    marks = np.zeros(len(signal), dtype=np.uint8)
    for kind in draw(st.lists(st.sampled_from([FILLED, ESTIMATED]), max_size=3)):
        first = draw(st.integers(0, len(signal) - 1))
        marks[first : first + draw(st.integers(1, round(0.4 * DAY / step_s)))] = kind
    issued = signal.start + draw(st.floats(1.0, float(days))) * DAY
    return replace(signal, marks=marks), min(issued, signal.end)


@given(histories(), st.sampled_from(["other", "zero", "estimated"]))
@settings(max_examples=drawn(20, 400))
def test_a_forecast_knows_nothing_of_what_comes(history, change):
    signal, issued = history
    ahead = signal.edges[:-1] > issued + 1e-6
    values = {"other": signal.values[::-1] + 7, "zero": np.zeros(len(signal))}.get(change)
    marks = np.zeros(len(signal), np.uint8) if signal.marks is None else signal.marks
    changed = replace(
        signal,
        values=signal.values if values is None else np.where(ahead, values, signal.values),
        marks=np.where(ahead, ESTIMATED if change == "estimated" else 0, marks),
    )
    try:
        before = SIMPLE.forecast(signal, issued, 2 * DAY)
    except NotCovered as error:
        with pytest.raises(NotCovered, match=str(error)[:30]):
            SIMPLE.forecast(changed, issued, 2 * DAY)
        return
    forget()
    assert told(before) == told(SIMPLE.forecast(changed, issued, 2 * DAY))
    ended = replace(signal, values=signal.values[~ahead], marks=marks[~ahead])
    assert told(before) == told(SIMPLE.forecast(ended, min(issued, ended.end), 2 * DAY))


def test_what_was_learned_knows_nothing_of_what_comes_and_is_the_same_twice():
    signal, issued = season(), START + 45.3 * DAY
    first = Auto(seed=3).forecast(signal, issued, 3 * DAY)
    assert "boosting" in first.signal.source
    ahead = signal.edges[:-1] > issued
    changed = replace(signal, values=np.where(ahead, 5.0, signal.values))
    forget()
    assert told(first) == told(Auto(seed=3).forecast(changed, issued, 3 * DAY))
    assert told(first) != told(Auto(seed=4).forecast(signal, issued, 3 * DAY))


@given(histories())
@settings(max_examples=25)
def test_it_begins_with_what_is_known_and_a_longer_horizon_changes_nothing_nearer(history):
    signal, issued = history
    try:
        near, far = (SIMPLE.forecast(signal, issued, days * DAY) for days in (1, 9))
    except NotCovered:
        return
    assert isinstance(SIMPLE, ForecastModel)
    begun = min(int((near.leads_s <= 1e-6).sum()), len(signal))
    assert np.array_equal(near.signal.values[:begun], signal.values[:begun])
    assert np.array_equal(far.signal.values[: len(near.signal)], near.signal.values)
    assert far.signal.covers(issued, issued + 9 * DAY)
    assert near.signal.values.min() >= 0
    # What is foreseen is marked as no measurement, and what repeats the day before as filled.
    assert set(near.signal.marks[begun:].tolist()) <= {ESTIMATED}
    assert (far.signal.marks == FILLED).sum() >= round(DAY / signal.step_s)


@pytest.mark.parametrize("seed", range(drawn(12, 100)))
@pytest.mark.filterwarnings("error")
def test_gaps_of_days_and_weeks_are_lived_with(seed, monkeypatch):
    monkeypatch.setattr(models, "_ROWS", 3000)
    monkeypatch.setattr(models, "_TREES", 5)
    forget()
    rng = np.random.default_rng([14, seed])
    signal = course(int(rng.integers(45, 75)), seed=seed, step_s=3600.0)
    marks = np.zeros(len(signal), dtype=np.uint8)
    for _ in range(int(rng.integers(1, 4))):
        first = int(rng.integers(0, len(signal) - 24))
        length = int(np.exp(rng.uniform(np.log(20), np.log(300))))
        marks[first : first + length] = rng.choice([FILLED, ESTIMATED])
    marks[-24:] = 0
    # What a gap was filled with is of no account.
    other = np.where(marks == FILLED, 1e4, signal.values)
    made = Auto().forecast(replace(signal, marks=marks), signal.end, 7 * DAY)
    for part in (made.signal, made.lower, made.upper):
        assert part is None or np.isfinite(part.values).all()
    if made.lower is not None:
        assert np.all(made.lower.values <= made.upper.values)
    # As far off as the course of a day, and no further.
    ahead = made.signal.values[len(signal) :]
    assert signal.values.min() - 200 < ahead.min() <= ahead.max() < signal.values.max() + 200
    again = Auto().forecast(replace(signal, values=other, marks=marks), signal.end, 7 * DAY)
    assert np.array_equal(again.signal.values[len(signal) :], ahead)


def plain_persistence(past, ahead):
    """What stood there whole days before, the first of them that is known."""
    now = len(past) - 1
    for days in range(1, 20):
        step = now + ahead - days * past.per_day
        if step <= now and not math.isnan(past.values[step] if step >= 0 else math.nan):
            return past.values[step]
    return math.nan


def plain_profile(past, ahead):
    """What is usual by the last 28 days and the last 4 weeks, and what is left of the unusual."""
    now, day = len(past) - 1, past.per_day

    def known(step):
        return past.values[step] if 0 <= step <= now else math.nan

    def usual(step, period, count, latest):
        back = [step - period * turn for turn in range(1, 40) if step - period * turn <= latest]
        values = [known(each) for each in back[:count]]
        found = [value for value in values if not math.isnan(value)]
        return sum(found) / len(found) if found else math.nan

    of_day, of_week = usual(now + ahead, day, 28, now), usual(now + ahead, 7 * day, 4, now)
    unusual = []
    for step in range(now - max(day // 8, 1) + 1, now + 1):
        before = usual(step, day, 7, step - day)
        if not math.isnan(known(step) - before):
            unusual.append(known(step) - before)
    course = of_day if math.isnan(of_week) else (of_day + of_week) / 2
    left = models._LEFT_AFTER_A_DAY ** (ahead / day)
    return course + (left * sum(unusual) / len(unusual) if unusual else 0.0)


@given(histories())
@settings(max_examples=25)
def test_the_ways_are_what_plain_loops_say(history):
    signal, _ = history
    try:
        past = Past.of(signal)
    except NotCovered:
        return
    ahead = np.unique(np.geomspace(1, 7 * past.per_day, 9).astype(int))
    now = np.full(ahead.size, len(past) - 1)
    for way, plain in (
        (models.day_before, plain_persistence),
        (models.usual_course, plain_profile),
    ):
        expected = [plain(past, int(each)) for each in ahead]
        np.testing.assert_allclose(way(past, now, ahead), expected, rtol=1e-9)


def test_lines_are_ridge_regressions_of_each_hour_and_lead():
    signal = course(40, seed=8)
    past = Past.of(signal)
    foresee = models.draw_lines(past)
    moments = np.arange(7 * 24, len(past))
    signs = models._signs(past, moments)
    centre, scale = np.nanmean(signs, axis=0), np.nanstd(signs, axis=0) + 1e-9
    inputs = np.nan_to_num((signs - centre) / scale)
    asked = models._signs(past, np.array([len(past) - 1]))
    asked = np.nan_to_num((asked - centre) / scale)
    hour = (len(past) - 1) % 24
    apart = np.minimum((moments - hour) % 24, (hour - moments) % 24)
    for lead in (1, 5, 30):
        fits = (apart <= models._NEAR_H) & (moments + lead < len(past))
        rows, weights = moments[fits], 1 - apart[fits] / (models._NEAR_H + 1)
        usual = past.usual[rows + lead - 24 * math.ceil(lead / 24)]
        # What the last days lack of answers counts as if it had been as the rest.
        all_of_it = (1 - apart[apart <= models._NEAR_H] / (models._NEAR_H + 1)).sum()
        every = np.column_stack([np.ones(moments.size), inputs])[apart <= models._NEAR_H]
        every_weight = 1 - apart[apart <= models._NEAR_H] / (models._NEAR_H + 1)
        square = (every * every_weight[:, None]).T @ every
        own = np.column_stack([np.ones(rows.size), inputs[fits]]) * weights[:, None]
        product = own.T @ (past.values[rows + lead] - usual) * all_of_it / weights.sum()
        held = models._HELD_BACK * np.eye(len(square))
        held[0, 0] = 1e-9
        factors = np.linalg.solve(square + held, product)
        last = past.usual[len(past) - 1 + lead - 24 * math.ceil(lead / 24)]
        expected = last + factors[0] + float((asked @ factors[1:])[0])
        made = foresee(past, np.array([len(past) - 1]), np.array([lead]))
        assert made[0] == pytest.approx(expected)


def test_lines_foresee_what_is_usual_where_nothing_was_measured():
    signal = course(45, seed=2)
    marks = np.where(np.arange(len(signal)) % 24 < 5, ESTIMATED, 0).astype(np.uint8)
    past = Past.of(replace(signal, marks=marks))
    foresee, now = models.draw_lines(past), np.full(48, len(past) - 1)
    ahead = np.arange(1, 49)
    made = foresee(past, now, ahead)
    usual = past.at(past.usual, models._same_time(past, now, ahead, 1))
    # Hours are learned together with those next to them, of which none was measured here.
    never = (now + ahead) % 24 == 2
    assert np.array_equal(made[never], usual[never])
    assert not np.isclose(made[~never], usual[~never]).all()


@pytest.mark.parametrize("step_s", [300.0, 1800.0, 5400.0, 6 * HOUR])
def test_lines_are_drawn_in_steps_of_any_length(step_s):
    signal = course(45, seed=5, step_s=step_s)
    errors = {name: [] for name in ("persistence", "linear")}
    for moment in np.linspace(36, 42, 7):
        issued = START + moment * DAY
        for name, each in errors.items():
            made = make_forecasts(name).forecast(signal, issued, 2 * DAY)
            ahead = np.flatnonzero(made.leads_s[: len(signal)] > 0)
            each.append(np.abs(made.signal.values[ahead] - signal.values[ahead]).mean())
    assert np.mean(errors["linear"]) < np.mean(errors["persistence"])


def test_a_course_that_moves_by_an_hour_is_followed_in_days():
    """Clocks change: what people do comes an hour earlier in UTC from one day on."""
    signal = course(70, seed=4, noise=5.0)
    moved = np.concatenate([signal.values[: 50 * 24], signal.values[50 * 24 + 1 :], [300.0]])
    errors = {}
    for name, values in (("as before", signal.values), ("moved", moved)):
        for day in (52, 58, 66):
            made = LIGHT.forecast(replace(signal, values=values), START + day * DAY, 2 * DAY)
            ahead = np.flatnonzero(made.leads_s > 0)
            error = float(np.abs(made.signal.values[ahead] - values[ahead]).mean())
            errors[name, day] = error
    assert errors["moved", 52] > errors["as before", 52]
    assert errors["moved", 66] < 1.5 * errors["as before", 66]


def test_persistence_is_that_of_the_test_bed():
    signal, issued = season(), START + 20.5 * DAY
    ours = Auto(ways=("persistence",)).forecast(signal, issued, 3 * DAY).signal.values
    assert np.array_equal(ours, Persistence().forecast(signal, issued, 3 * DAY).signal.values)


@pytest.mark.parametrize("step_s", [300.0, 900.0, 1800.0])
def test_finer_steps_of_the_same_values_are_foreseen_alike(step_s):
    hourly = course(20, seed=4)
    finer = replace(hourly, values=np.repeat(hourly.values, round(HOUR / step_s)), step_s=step_s)
    one, other = (
        Auto(ways=("persistence",)).forecast(each, START + 15 * DAY + HOUR - step_s, DAY).signal
        for each in (hourly, finer)
    )
    at = START + 15 * DAY + HOUR * np.arange(1, 20)
    assert np.array_equal(one.at(at), other.at(at))
    assert np.allclose(
        SIMPLE.forecast(finer, START + 15 * DAY + HOUR - step_s, DAY).signal.at(at),
        SIMPLE.forecast(hourly, START + 15 * DAY + HOUR - step_s, DAY).signal.at(at),
        rtol=0.1,
    )


def test_the_band_holds_the_share_that_it_says():
    signal = course(150, seed=7)
    held = []
    for moment in np.linspace(60, 145, 120):
        issued = START + moment * DAY
        made = SIMPLE.forecast(signal, issued, 2 * DAY)
        ahead = np.flatnonzero(made.leads_s > 0)[:-1]
        truth = signal.values[ahead]
        held += list((made.lower.values[ahead] <= truth) & (truth <= made.upper.values[ahead]))
    assert 0.74 <= np.mean(held) <= 0.86


def test_what_is_learned_is_better_than_the_day_before_and_counts_for_more():
    signal = season()
    errors = {name: [] for name in (*WAYS, "auto")}
    for moment in np.arange(50, 57, 1.1):
        issued = START + moment * DAY
        for name in errors:
            made = make_forecasts(name).forecast(signal, issued, 2 * DAY)
            ahead = np.flatnonzero(made.leads_s > 0)
            errors[name].append(np.abs(made.signal.values[ahead] - signal.values[ahead]).mean())
    mean = {name: np.mean(each) for name, each in errors.items()}
    assert mean["linear"] < 0.9 * mean["persistence"]
    assert mean["boosting"] < 0.9 * mean["persistence"]
    assert mean["auto"] < 0.9 * mean["persistence"]


def test_ways_sit_out_while_the_history_is_too_short_for_them():
    signal = season()
    few = Auto().about(signal, START + 5 * DAY)
    assert few[0] == "Foreseen from 5 d of history, by persistence."
    assert any(each.startswith("Profile sits out: it needs 8 whole days") for each in few)
    assert any(each.startswith("Boosting sits out: it needs 31 d") for each in few)
    assert Auto().forecast(signal, START + 5 * DAY, DAY).lower is None
    for name in ("profile", "boosting"):
        with pytest.raises(NotCovered, match=f"{name} sits out: it needs"):
            make_forecasts(name).forecast(signal, START + 5 * DAY, DAY)
    more = Auto().about(signal, START + 10 * DAY)
    assert "profile" in more[0]
    assert "boosting" not in more[0]


def test_without_the_library_that_learns_the_others_foresee(monkeypatch):
    forget()
    monkeypatch.setitem(__import__("sys").modules, "sklearn.ensemble", None)
    said = Auto().about(season(), START + 45 * DAY)
    forget()
    assert any("pip install 'lowtide[learn]'" in each for each in said)
    assert "boosting" not in said[0]


@pytest.mark.parametrize(
    ("signal", "error", "message"),
    [
        (course(0.9), NotCovered, "needs a day of history at least, and there are 22 h"),
        (course(4, step_s=7 * 60.0), InvalidSignal, "whole number makes a day .* not of 7 min"),
        (course(9, step_s=DAY), InvalidSignal, "not of 24 h"),
    ],
)
def test_what_nothing_can_be_foreseen_from_is_refused(signal, error, message):
    with pytest.raises(error, match=message):
        Auto().forecast(signal, signal.end, DAY)


def test_a_last_day_that_is_not_known_is_refused():
    signal = course(10)
    marks = np.zeros(len(signal), dtype=np.uint8)
    marks[-15:] = FILLED
    with pytest.raises(NotCovered, match=r"37.5 % of the day up to .* is known"):
        Auto().forecast(replace(signal, marks=marks), signal.end, DAY)
    marks[-15:-9] = 0
    assert Auto().forecast(replace(signal, marks=marks), signal.end, DAY)


def test_values_that_were_filled_in_count_for_nothing():
    signal = course(45, seed=2)
    marks = np.zeros(len(signal), dtype=np.uint8)
    marks[400:470] = FILLED
    marks[-30:-20] = FILLED
    one, other = (
        LIGHT.forecast(
            replace(signal, values=np.where(marks == FILLED, filled, signal.values), marks=marks),
            signal.end,
            DAY,
        )
        for filled in (0.0, 900.0)
    )
    assert np.array_equal(one.signal.values[len(signal) :], other.signal.values[len(signal) :])
    assert np.array_equal(one.lower.values[len(signal) :], other.lower.values[len(signal) :])


@pytest.mark.parametrize("level", [0.0, 250.0])
def test_a_constant_history_is_named_and_foreseen_as_it_is(level):
    flat = Signal.from_values([level] * 24 * 40, start=START, step_s="1h")
    made = Auto().forecast(flat, flat.end, 2 * DAY)
    assert np.allclose(made.signal.values, level, atol=1e-9)
    assert np.allclose(made.upper.values - made.lower.values, 0.0, atol=1e-9)
    said = " ".join(Auto().about(flat, flat.end))
    assert f"The history is constant, {level:g} throughout." in said


def test_a_shift_of_level_is_named_and_followed():
    signal = course(60, seed=5)
    values = signal.values + np.where(signal.edges[:-1] >= START + 50 * DAY, 500.0, 0.0)
    shifted = replace(signal, values=values)
    assert "The level has shifted" in " ".join(Auto().about(shifted, START + 51 * DAY))
    assert "shifted" not in " ".join(Auto().about(signal, START + 51 * DAY))
    for days, most in ((1.0, 260.0), (3.0, 150.0), (8.0, 100.0)):
        made = LIGHT.forecast(shifted, START + (50 + days) * DAY, DAY)
        ahead = np.flatnonzero(made.leads_s > 0)
        assert np.abs(made.signal.values[ahead] - values[ahead]).mean() < most


def test_imputed_hours_are_named_and_not_learned_from():
    signal = course(40, seed=6)
    marks = np.where(np.arange(len(signal)) % 24 < 2, ESTIMATED, 0).astype(np.uint8)
    some = replace(signal, marks=marks)
    assert "80 of 960 steps of the history are imputed" in " ".join(Auto().about(some, some.end))
    past = Past.of(some)
    now, ahead = models._questions(past, np.random.default_rng(0))
    assert past.sure[now + ahead].all()
    every = replace(signal, marks=np.full(len(signal), ESTIMATED, np.uint8))
    assert Past.of(every).sure.all()


def test_a_history_that_is_mostly_imputed_is_not_learned_from():
    signal = season()
    marks = np.where(np.arange(len(signal)) < 1100, ESTIMATED, 0).astype(np.uint8)
    some = replace(signal, marks=marks)
    said = " ".join(Auto().about(some, START + 50 * DAY))
    assert "Boosting sits out: it needs 31 d of measured history." in said
    assert Auto().forecast(some, START + 50 * DAY, DAY)


def test_a_forecast_of_the_step_under_way_alone_foresees_nothing():
    made = LIGHT.forecast(season(), START + 45 * DAY, HOUR)
    assert np.array_equal(made.signal.values, season().values[: len(made.signal)])


@pytest.mark.parametrize(
    ("kind", "unit", "low"),
    [("price", "EUR/kWh", -0.1), ("pue", "1", 1.0), ("marginal", "g/kWh", 0)],
)
def test_every_kind_of_signal_can_be_foreseen(kind, unit, low):
    shape = course(40, seed=9).values / 400
    signal = Signal.from_values(
        low + shape - shape.min(), start=START, step_s="1h", kind=kind, unit=unit
    )
    made = LIGHT.forecast(signal, signal.end, 3 * DAY)
    assert (made.signal.kind, made.signal.unit) == (signal.kind, signal.unit)
    assert made.lower is not None


@pytest.mark.parametrize(
    "wrong", [{"ways": ()}, {"ways": ("luck",)}, {"coverage": 1.0}, {"seed": -1}, {"seed": True}]
)
def test_wrong_parameters_are_refused(wrong):
    with pytest.raises(InvalidInput):
        Auto(**wrong)
    with pytest.raises(UnknownName, match="known are"):
        make_forecasts("luck")
