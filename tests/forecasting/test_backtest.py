"""Testing forecasts on the past: errors by lead, and what plans lost by them."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from lowtide.errors import NotCovered
from lowtide.forecast import Forecast, LeadScaled, Perfect, Persistence, Replay
from lowtide.forecasting.auto import LEADS_H, WAYS, Auto
from lowtide.forecasting.backtest import MODELS, able, lead_errors, moments, regrets
from lowtide.formats import read_signal
from lowtide.signal import ESTIMATED, Signal

HOUR, DAY = 3600.0, 86400.0
START = 1_704_067_200.0


def hourly(values, **kwargs):
    return Signal.from_values(values, start=START, step_s="1h", **kwargs)


def noisy(days, seed=0):
    rng = np.random.default_rng(seed)
    hours = np.arange(24 * days)
    return hourly(300 + 100 * np.sin(2 * np.pi * hours / 24) + 30 * rng.normal(size=hours.size))


def test_errors_by_lead_are_what_loops_say():
    signal = noisy(20)
    marks = np.zeros(len(signal), np.uint8)
    marks[300:330] = ESTIMATED
    signal = replace(signal, marks=marks)
    at = [START + hour * HOUR for hour in (250, 280, 301)]
    found = lead_errors(signal, at, {"persistence": Persistence()})
    for row in found:
        low = max((lead for lead in LEADS_H if lead < row.lead_h), default=0)
        differences = [
            signal.values[now + lead - 24 * math.ceil(lead / 24)] - signal.values[now + lead]
            for now in (250, 280, 301)
            for lead in range(1, 169)
            if low < lead <= row.lead_h and now + lead < len(signal) and not marks[now + lead]
        ]
        assert row.steps == len(differences)
        assert row.error == pytest.approx(np.abs(differences).mean())
        assert row.bias == pytest.approx(np.mean(differences))
        assert row.covered is None
    # The third moment's next hours were all imputed, so the first lead has one step less.
    assert [row.lead_h for row in found] == list(LEADS_H)
    assert found[0].steps == 2


def test_a_band_is_judged_by_how_much_it_holds():
    signal = noisy(30)
    at = moments(signal, 40, ahead_s=2 * DAY)
    (first, *_, last) = lead_errors(signal, at, {"noisy": LeadScaled(relative_error=0.2, seed=1)})
    for row in (first, last):
        assert 0.6 < row.covered < 0.95


def test_who_knows_the_future_regrets_nothing():
    signal = noisy(12)
    at = moments(signal, 4, ahead_s=2 * DAY)
    for interruptible in ("never", "anywhere"):
        for row in regrets(signal, at, {"perfect": Perfect()}, interruptible=interruptible):
            assert row.kept == pytest.approx(1.0)
            assert row.regret == pytest.approx(0.0, abs=1e-9)
            assert row.jobs == 12


def test_regret_is_what_trying_every_start_says():
    signal = noisy(12, seed=3)
    at = moments(signal, 5, ahead_s=2 * DAY)
    (row,) = regrets(signal, at, {"day": Persistence()}, plans=("once",), lengths_s=(5 * HOUR,))
    paid = np.zeros(3)
    for moment in at:
        now = round((moment - signal.start) / HOUR)
        truth = signal.values[now : now + 48]
        seen = [truth[0], *(signal.values[now + h - 24 * math.ceil(h / 24)] for h in range(1, 48))]
        by_start = [
            [sum(values[first : first + 5]) / 5 for first in range(44)] for values in (truth, seen)
        ]
        chosen = int(np.argmin(by_start[1]))
        paid += [by_start[0][0], by_start[0][chosen], min(by_start[0])]
    assert [row.at_once, row.foreseen, row.perfect] == pytest.approx((paid / 5).tolist())
    assert row.kept == pytest.approx((paid[0] - paid[1]) / (paid[0] - paid[2]))
    assert row.saving == pytest.approx(1 - paid[1] / paid[0])
    assert row.possible == pytest.approx(1 - paid[2] / paid[0])


def test_where_nothing_can_be_saved_nothing_is_kept():
    flat = hourly([200.0] * 24 * 8)
    (row,) = regrets(flat, [START + 3 * DAY], {"day": Persistence()}, plans=("once",))
    assert (row.kept, row.regret, row.saving) == (None, 0.0, 0.0)
    free = hourly([0.0] * 24 * 8)
    (row,) = regrets(free, [START + 3 * DAY], {"day": Persistence()}, plans=("once",))
    assert (row.kept, row.saving, row.possible) == (None, None, None)


def test_what_a_provider_foresaw_is_tested_beside_the_others():
    signal = noisy(12)
    wrong = replace(signal, values=signal.values + 50.0)
    kept = [
        Forecast(issued=START + day * DAY, signal=wrong.window(START + day * DAY, signal.end))
        for day in range(3, 11)
    ]
    found = lead_errors(signal, [START + 6 * DAY], {"provider": Replay(kept)})
    assert {round(row.error, 6) for row in found} == {50.0}


def test_moments_lie_where_there_is_a_past_and_a_future():
    signal = noisy(10)
    at = moments(signal, 7, ahead_s=2 * DAY)
    assert len(at) == 7
    assert (at[0], at[-1]) == (START + 5 * DAY, START + 8 * DAY)
    assert moments(signal, 500, ahead_s=2 * DAY, since=START)[0] == START + DAY
    with pytest.raises(NotCovered, match="there is no such moment"):
        moments(signal, 3, ahead_s=6 * DAY)


def test_ways_that_cannot_foresee_yet_are_left_out_and_named():
    taking, out = able(noisy(12), START + 5 * DAY, MODELS)
    assert list(taking) == ["persistence", "auto"]
    assert [each.split()[0] for each in out] == ["profile", "linear", "boosting"]


def test_on_a_real_grid_plans_with_auto_keep_more_than_with_the_day_before(data):
    signal = read_signal(data("carbon/GB.csv"))
    at = moments(signal, 40, ahead_s=2 * DAY, since=signal.end - 40 * DAY)
    # Trees take seconds to grow, and would add little.
    chosen = {"before": MODELS["persistence"], "auto": Auto(ways=WAYS[:-1])}
    before, auto = regrets(signal, at, chosen, plans=("once",), lengths_s=(8 * HOUR,))
    assert before.jobs == auto.jobs == 40
    assert auto.kept > before.kept
