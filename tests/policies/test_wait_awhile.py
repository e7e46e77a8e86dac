"""The cheapest moments, as if stopping were free."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lowtide.job import Job
from lowtide.policies import plan
from lowtide.policies.stopping import cheapest_moments
from lowtide.profile import Phase, PowerProfile
from lowtide.signal import Signal
from support import published_oracles
from support.oracles import cheapest_choice
from support.strategies import signals

HOUR = 3600.0


def hourly(*values, start=0.0):
    return Signal.from_values(values, start=start, step_s="1h")


@given(
    st.lists(st.integers(0, 9), min_size=1, max_size=9),
    st.data(),
    st.sampled_from([0.0, 1.72e9, 1719792000.1]),
)
def test_with_free_stops_it_is_the_k_cheapest_slots(carbon, data, start):
    k = data.draw(st.integers(1, len(carbon)))
    job = Job(
        id="a",
        arrival=start,
        deadline=start + len(carbon) * HOUR,
        profile=PowerProfile.constant(1000, k * HOUR),
        interruptible="anywhere",
    )
    made = plan(job, hourly(*carbon, start=start), policy="wait_awhile")
    made.schedule.check(job)
    assert made.footprint.carbon_g == pytest.approx(cheapest_choice(carbon, k), rel=1e-9)


@given(st.data(), signals(min_size=2, max_size=20))
def test_cheapest_moments_are_the_right_length_in_order_and_inside(data, signal):
    begin = signal.start + data.draw(st.sampled_from([0.0, 0.4])) * signal.step_s
    window_s = signal.end - begin
    length_s = data.draw(st.floats(0.05, 1.0)) * window_s
    moments = cheapest_moments(signal, begin, signal.end, length_s)
    plain = published_oracles.cheapest_moments(signal, begin, signal.end, length_s)
    assert np.array(moments) == pytest.approx(np.array(plain), rel=0, abs=1e-6)
    assert sum(b - a for a, b in moments) == pytest.approx(length_s, abs=1e-5)
    assert all(a < b for a, b in moments)
    assert all(before[1] < after[0] for before, after in pairwise(moments))
    assert moments[0][0] >= begin
    assert moments[-1][1] <= signal.end
    # No moment left out is cheaper than the dearest moment taken.
    taken = [
        i
        for i, (a, b) in enumerate(pairwise(signal.edges.tolist()))
        if any(min(b, end) - max(a, start) > 1e-5 for start, end in moments)
    ]
    left = [
        i
        for i, (a, b) in enumerate(pairwise(signal.edges.tolist()))
        if (b - max(a, begin))
        - sum(max(0.0, min(b, end) - max(a, start)) for start, end in moments)
        > 1e-5
    ]
    if taken and left:
        assert max(signal.values[taken]) <= min(signal.values[left])


def test_ties_go_to_the_earlier():
    assert cheapest_moments(hourly(2, 1, 1, 1), 0.0, 4 * HOUR, HOUR) == [(HOUR, 2 * HOUR)]
    assert cheapest_moments(hourly(1, 1, 1, 1), 1800.0, 4 * HOUR, HOUR) == [(1800.0, 5400.0)]
    assert cheapest_moments(hourly(2, 1, 2, 1), 0.0, 4 * HOUR, 2.5 * HOUR) == [
        (0.0, 1800.0),
        (HOUR, 2 * HOUR),
        (3 * HOUR, 4 * HOUR),
    ]


def test_a_startup_is_paid_though_it_was_not_foreseen():
    profile = PowerProfile(
        startup=[Phase(name="load", duration_s="30m", power_w=100)],
        work=[Phase(name="run", duration_s="2h", power_w=1000)],
    )
    job = Job(id="a", arrival=0, deadline="+6h", profile=profile, interruptible="anywhere")
    made = plan(job, hourly(500, 100, 400, 100, 400, 400), policy="wait_awhile")
    assert [(s.kind, s.start / HOUR) for s in made.schedule.spans] == [
        ("startup", 0.5),
        ("work", 1.0),
        ("suspended", 2.0),
        ("startup", 2.5),
        ("work", 3.0),
    ]
    assert made.footprint.carbon_g == pytest.approx(0.05 * (500 + 400) + 200)


THIRDS = [
    Phase(name="one", duration_s=1319.4, power_w=200),
    Phase(name="two", duration_s=1462.2, power_w=200),
    Phase(name="three", duration_s=818.4, power_w=200),
]


def test_rounding_of_the_works_length_costs_no_start():
    # The work is 3600.0000000000005 s: no reason to start twice for an hour.
    profile = PowerProfile(startup=[Phase(name="load", duration_s=60, power_w=200)], work=THIRDS)
    assert profile.work_s > HOUR
    job = Job(id="a", arrival=0, deadline="+7h", profile=profile, interruptible="anywhere")
    made = plan(job, hourly(5, 2, 5, 5, 1, 5, 5), policy="wait_awhile")
    assert made.schedule.starts == 1
    made.schedule.check(job)


@pytest.mark.parametrize("short", [1e-9, 1e-7, 5e-13])
def test_a_hair_less_than_whole_steps_is_no_gap(short):
    # The dearest chosen hour ends a hair before the cheaper one that follows.
    profile = PowerProfile.constant(200, 2 * HOUR - short)
    job = Job(id="a", arrival=0, deadline="+5h", profile=profile, interruptible="anywhere")
    made = plan(job, hourly(5, 2, 1, 5, 5), policy="wait_awhile")
    made.schedule.check(job)
    assert made.schedule.starts == 1


@pytest.mark.parametrize("startup_s", [5.349, 23.4603, 0.1, 60.7, 7.0])
@pytest.mark.parametrize("start", [1_719_792_000.0, 1_719_792_000.1])
def test_many_checkpoints_do_not_drift_away(startup_s, start):
    # Epochs of exactly one slot, started 30 times: rounding of epoch seconds must not add up.
    profile = PowerProfile.ml(epochs=30, train=(HOUR, 300), startup=(startup_s, 100))
    values = [400.0, 100.0] * 40
    job = Job(
        id="a",
        arrival=start,
        deadline=start + 79 * HOUR,
        profile=profile,
        interruptible="checkpoints",
    )
    made = plan(job, hourly(*values, start=start), policy="wait_awhile")
    made.schedule.check(job)
    assert made.schedule.starts == 30
    assert not [span for span in made.schedule.spans if span.kind == "lost"]
