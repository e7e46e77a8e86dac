"""Trust in a forecast, from none to all."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from lowtide.errors import InvalidInput
from lowtide.forecast import Forecast, LeadScaled, Perfect, Persistence, Replay
from lowtide.grids import synthetic_grid
from lowtide.job import Job
from lowtide.policies import plan
from lowtide.policies.dtpr import Dtpr
from lowtide.policies.rolling import Advice, Rolling
from lowtide.profile import Phase, PowerProfile
from lowtide.signal import Signal
from support.nightly import drawn
from support.strategies import cases

HOUR = 3600.0


def hourly(*values):
    return Signal.from_values(values, start=0, step_s="1h")


def permitted(job: Job) -> None:
    # `exact` refuses stop phases of a job that is never stopped.
    assume(not (job.interruptible == "never" and job.profile.stop))


models = st.sampled_from([Perfect(), LeadScaled(relative_error=0.5), Persistence(period_s=HOUR)])


@settings(max_examples=drawn(37, 1000))
@given(cases(), st.sampled_from([0.1, 0.5, 0.99]), models)
def test_every_rule_is_kept_and_no_deadline_missed(case, trust, forecasts):
    job, signal = case
    permitted(job)
    rolling = Rolling(forecasts=forecasts, step_s=max(60.0, job.profile.work_s / 30))
    Advice(trust=trust, rolling=rolling).decide(job, signal).schedule.check(job)


@settings(max_examples=drawn(25, 500))
@given(cases(), models)
def test_no_trust_is_dtpr_and_full_trust_is_rolling(case, forecasts):
    job, signal = case
    permitted(job)
    rolling = Rolling(forecasts=forecasts, step_s=max(60.0, job.profile.work_s / 30))
    dtpr = Dtpr(beta=10.0)
    for trust, alone in ((0, dtpr), (1, rolling)):
        mixed = Advice(trust=trust, rolling=rolling, dtpr=dtpr)
        assert mixed.decide(job, signal).schedule == alone.decide(job, signal).schedule


@settings(max_examples=drawn(25, 500))
@given(cases(interruptible="anywhere"))
def test_next_to_no_trust_decides_as_dtpr(case):
    # A closing band leaves to the advice only prices that are the threshold itself.
    job, signal = case
    promise = Dtpr().guarantee(job, signal)
    limits = [promise.thresholds, promise.thresholds - 2 * promise.beta]
    near = np.abs(np.subtract.outer(np.concatenate(limits), signal.values)) < 1e-3
    assume(not near.any())
    mixed = Advice(trust=1e-9).decide(job, signal).schedule
    assert mixed == Dtpr().decide(job, signal).schedule


def training(hours=8, deadline="+48h", arrival=0):
    profile = PowerProfile(
        startup=[Phase(name="load", duration_s="10m", power_w=100)],
        work=[Phase(name="run", duration_s=hours * HOUR, power_w=1000)],
    )
    return Job(
        id="a", arrival=arrival, deadline=deadline, profile=profile, interruptible="anywhere"
    )


def mean_cost(policy):
    total = 0.0
    signal = synthetic_grid("windy", seed=5).average
    for number in range(8):
        job = training(arrival=signal.start + 11 * number * HOUR)
        total += plan(job, signal, policy=policy).footprint.carbon_g
    return total


def test_trust_in_good_advice_pays():
    perfect = [
        mean_cost(Advice(trust=trust, rolling=Rolling(forecasts=Perfect())))
        for trust in (0.0, 0.3, 0.6, 1.0)
    ]
    assert perfect == sorted(perfect, reverse=True)


def test_bad_advice_does_less_harm_to_those_who_trust_it_less():
    # The forecast always promises something very clean for later, and it always comes dirtier.
    truth = hourly(*[100.0 + 8 * number for number in range(49)])
    empty = Replay([Forecast(issued=0, signal=replace(truth, values=np.ones(49)))])
    costs = [
        plan(
            training(),
            truth,
            policy=Advice(
                trust=trust, rolling=Rolling(forecasts=empty), dtpr=Dtpr(low=20, high=500)
            ),
        ).footprint.carbon_g
        for trust in (0.0, 0.05, 0.1, 0.2, 1.0)
    ]
    assert costs == sorted(costs)
    assert costs[0] < 0.9 * costs[-1]


def test_inside_the_band_the_advice_decides_and_outside_it_does_not():
    dtpr = Dtpr(low=100, high=500, beta=0)
    job = Job(
        id="a",
        arrival=0,
        deadline="+6h",
        profile=PowerProfile.constant(1000, "1h"),
        interruptible="anywhere",
    )
    limit = float(dtpr.guarantee(job, hourly(*[300] * 6)).thresholds[0])
    below, above = limit - 0.5 * (limit - 100), limit + 0.5 * (500 - limit)

    def start(first, *, hope):
        truth = hourly(first, 500, 500, 500, 500, 500)
        foreseen = hourly(first, 500, hope, 500, 500, 500)
        rolling = Rolling(forecasts=Replay([Forecast(issued=0, signal=foreseen)]))
        made = plan(job, truth, policy=Advice(trust=0.5, rolling=rolling, dtpr=dtpr))
        return made.schedule.start / HOUR

    # Hope of a clean hour makes it wait, but not where the price is low enough anyway.
    assert start(below + 1, hope=0) > 0
    assert start(below - 1, hope=0) == 0
    # Without hope it takes what there is, but not at a price that is too high.
    assert start(above - 1, hope=500) == 0
    assert start(above + 1, hope=500) > 0


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"trust": -0.1}, "trust is from 0"),
        ({"trust": 1.1}, "trust is from 0"),
        ({"trust": float("nan")}, "trust is from 0"),
        ({"rolling": "rolling"}, "a Rolling and a Dtpr"),
        ({"dtpr": None}, "a Rolling and a Dtpr"),
    ],
)
def test_bad_parameters_are_refused(parameters, message):
    with pytest.raises(InvalidInput, match=message):
        Advice(**parameters)
