"""The best uninterrupted start, against trying them all."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lowtide.errors import InvalidInput
from lowtide.job import Job
from lowtide.policies import plan
from lowtide.policies.starts import Oracle, cost_by_delay
from lowtide.profile import Phase, PowerProfile
from lowtide.signal import Signal
from support import published_oracles
from support.nightly import drawn
from support.oracles import every_bend, run_cost
from support.strategies import cases, profiles

HOUR = 3600.0


def hourly(*values, **kwargs):
    return Signal.from_values(values, start=0, step_s="1h", **kwargs)


def most(job, signal):
    return job.profile.energy_j / 3.6e6 * float(np.abs(signal.values).max())


def tied(job, signal):
    """Return what costs may differ by and be equal: epoch seconds are rounded to some 0.2 us."""
    peak_w = max(phase.power_w for phase in (*job.profile.startup, *job.profile.work))
    rounding = 1e-6 * peak_w / 3.6e6 * float(np.abs(signal.values).max())
    return 1e-9 * most(job, signal) + rounding + 1e-12


@settings(max_examples=drawn(30, 600))
@given(cases())
def test_the_oracle_equals_the_best_of_every_bend(case):
    job, signal = case
    starts = every_bend(job, signal)
    costs = [run_cost(job.profile, signal, start) for start in starts]
    made = plan(job, signal, policy="oracle")
    tie = tied(job, signal)
    assert made.footprint.carbon_g == pytest.approx(min(costs), rel=1e-9, abs=tie)
    # Of starts that are clearly as good, it takes the earliest.
    strictly = 1e-13 * most(job, signal)
    earliest = next(s for s, c in zip(starts, costs, strict=True) if c <= min(costs) + strictly)
    assert made.schedule.start <= float(earliest) + 1e-6


@settings(max_examples=drawn(30, 600))
@given(cases(), st.integers(2, 40))
def test_no_start_on_a_fine_grid_is_better(case, count):
    job, signal = case
    best = plan(job, signal, policy="oracle").footprint.carbon_g
    tie = tied(job, signal)
    for start in np.linspace(job.arrival, job.latest_start, count):
        assert best <= run_cost(job.profile, signal, float(start)) + tie


@settings(max_examples=drawn(30, 600))
@given(cases(kind="price"))
def test_negative_prices_are_sought(case):
    job, signal = case
    best = plan(job, signal, policy="oracle").footprint.cost
    costs = [run_cost(job.profile, signal, start) for start in every_bend(job, signal)]
    assert best == pytest.approx(min(costs), rel=1e-9, abs=tied(job, signal))


@settings(max_examples=drawn(30, 600))
@given(cases(), st.sampled_from([300.0, 3600.0, 1234.5]))
def test_a_step_tries_multiples_after_arrival_only(case, step_s):
    job, signal = case
    made = plan(job, signal, policy="oracle", step_s=step_s)
    # A step that the rounding of epoch seconds makes too long by nanoseconds is tried as well.
    count = int(max(job.slack_s, 0.0) / step_s + 1e-9) + 1
    costs = [run_cost(job.profile, signal, job.arrival + k * step_s) for k in range(count)]
    tie = tied(job, signal)
    assert made.footprint.carbon_g == pytest.approx(min(costs), rel=1e-9, abs=tie)
    delay = made.schedule.start - job.arrival
    assert delay / step_s == pytest.approx(round(delay / step_s), abs=1e-6)
    assert plan(job, signal, policy="oracle").footprint.carbon_g <= min(costs) + tie


@given(profiles(), st.sampled_from([0.0, 1.72e9, 1719792000.1]))
def test_without_slack_there_is_one_start(profile, arrival):
    job = Job(id="a", arrival=arrival, deadline=arrival + profile.run_s, profile=profile)
    signal = Signal.from_values([3, 2] * 12, start=arrival, step_s=1800)
    for step_s in (None, 60.0):
        made = plan(job, signal, policy="oracle", step_s=step_s)
        assert made.schedule.start == pytest.approx(arrival, abs=1e-6)


def test_the_curve_of_cost_by_delay():
    job = Job(id="a", arrival=0, deadline="+4h", profile=PowerProfile.constant(1000, "1h"))
    delays_s, costs = cost_by_delay(job, hourly(300, 100, 200, 200))
    got = np.interp([0, HOUR / 2, HOUR, 1.5 * HOUR, 3 * HOUR], delays_s, costs) / 3.6e6
    assert got.tolist() == pytest.approx([300, 200, 100, 150, 200])


@given(cases())
def test_the_curve_is_the_cost_everywhere(case):
    job, signal = case
    delays_s, costs = cost_by_delay(job, signal)
    assert np.all(np.diff(delays_s) >= 0)
    tie = tied(job, signal)
    plain_s = published_oracles.delays_to_try(job, signal, None)
    plain = [
        published_oracles.run_cost(published_oracles.phases_of(job), job, each, signal) / 3.6e6
        for each in plain_s
    ]
    assert np.interp(plain_s, delays_s, costs) / 3.6e6 == pytest.approx(plain, abs=tie)
    for share in (0.0, 0.123, 0.5, 0.77, 1.0):
        delay = share * max(job.slack_s, 0.0)
        want = run_cost(job.profile, signal, job.arrival + delay)
        got = np.interp(delay, delays_s, costs) / 3.6e6
        assert got == pytest.approx(want, rel=1e-9, abs=tie)


def test_a_start_between_slots_beats_every_slot():
    profile = PowerProfile(
        work=[
            Phase(name="low", duration_s="30m", power_w=10),
            Phase(name="high", duration_s="1h", power_w=1000),
        ]
    )
    job = Job(id="a", arrival=0, deadline="+4h", profile=profile)
    signal = hourly(300, 300, 100, 300)
    assert plan(job, signal).schedule.start == 1.5 * HOUR
    assert plan(job, signal, policy="oracle", step_s="1h").schedule.start == 2 * HOUR


@pytest.mark.parametrize("start", [0.0, 1.72e9])
@pytest.mark.parametrize("run_s", ["2h", 60.7, 1.5477])
def test_equal_days_go_to_the_first(start, run_s):
    day = [300.0, 250.3, 100.1, 100.1, 180.9, 260.0, 310.7, 400.0] * 3
    signal = Signal.from_values(day * 60, start=start, step_s=HOUR)
    job = Job(id="a", arrival=start, deadline="+59d", profile=PowerProfile.constant(333.3, run_s))
    assert plan(job, signal).schedule.start == start + 2 * HOUR


@pytest.mark.parametrize("level", [0.0, 0.1, 300.0])
def test_on_a_flat_signal_it_starts_at_once(level):
    profile = PowerProfile.ml(epochs=7, train=(61.3, 333.3), save=(1.7, 99.9), startup=(5.3, 50))
    signal = Signal.from_values([level] * 500, start=1.72e9, step_s=300)
    job = Job(id="a", arrival=1.72e9 + 17, deadline="+1d", profile=profile)
    assert plan(job, signal).schedule.start == job.arrival
    assert plan(job, signal, policy="oracle", step_s="10m").schedule.start == job.arrival


@pytest.mark.parametrize("step_s", [0, -5, float("nan")])
def test_a_step_is_longer_than_nothing(step_s):
    with pytest.raises(InvalidInput, match="longer than 0 s"):
        Oracle(step_s=step_s)
