"""Deciding for many jobs at once is deciding for each."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lowtide.accounting import Stretches, tally
from lowtide.errors import NotCovered
from lowtide.job import Job
from lowtide.policies.dtpr import Dtpr
from lowtide.policies.exact import Exact
from lowtide.policies.policy import DecidesMany, decide_many, merged, renumbered
from lowtide.policies.starts import (
    CarbonTime,
    Latest,
    LowestSlot,
    LowestWindow,
    Oracle,
    RunNow,
)
from lowtide.policies.stopping import Threshold, WaitAwhile
from lowtide.policies.wrappers import ReservedFirst
from lowtide.profile import PowerProfile
from lowtide.signal import Signal
from lowtide.workload import Workload
from support.nightly import drawn
from support.published_oracles import decided
from support.strategies import COARSE_S, STARTS, intensities, prices, profiles, seconds, watts

HOUR = 3600.0

POLICIES = [
    RunNow(),
    Latest(),
    LowestSlot(),
    Oracle(),
    Oracle(step_s=HOUR),
    LowestWindow(),
    LowestWindow(expected_s=5400.0),
    LowestWindow(expected_s=4321.0, step_s=1800.0),
    CarbonTime(),
    CarbonTime(expected_s=900.0),
    CarbonTime(expected_s=86400.0, step_s=HOUR),
    WaitAwhile(),
    Threshold(),
    Threshold(quantile=0.5, horizon_s=7200.0),
    Exact(step_s=1800.0),
    ReservedFirst(),
]


def constants():
    """Profiles of constant power, as most traces have."""
    return st.builds(PowerProfile.constant, watts, seconds)


@st.composite
def workloads(draw, *, profile=None, kind="average", most=4):
    """Some jobs and a signal that covers all their windows."""
    start, step_s = draw(st.sampled_from(STARTS)), draw(st.sampled_from(COARSE_S))
    size = draw(st.integers(2, 40))
    value = prices if kind == "price" else intensities
    values = draw(st.lists(value, min_size=size, max_size=size))
    signal = Signal.from_values(
        values,
        start=start,
        step_s=step_s,
        kind=kind,
        unit="EUR/kWh" if kind == "price" else "g/kWh",
    )
    span_s = size * step_s
    made = draw(
        st.lists(
            st.one_of(constants(), profiles()) if profile is None else profile,
            min_size=1,
            max_size=most,
        )
    )
    jobs = []
    for number, each in enumerate(made):
        spare_s = span_s - each.run_s
        if spare_s < 0:
            each = PowerProfile.constant(each.work[0].power_w, draw(st.floats(0.1, 1.0)) * span_s)
            spare_s = max(span_s - each.run_s, 0.0)
        share = st.sampled_from([0.0, 0.25, 0.5, 1.0]) | st.floats(0.0, 1.0)
        before_s = draw(share) * spare_s
        slack_s = draw(share) * (spare_s - before_s)
        arrival = start + before_s
        jobs.append(
            Job(
                id=str(number),
                arrival=arrival,
                deadline=min(arrival + each.run_s + slack_s, signal.end),
                profile=each,
                interruptible=draw(st.sampled_from(["never", "anywhere", "checkpoints"])),
                max_starts=draw(st.sampled_from([None, None, 1, 2, 3])),
                min_run_s=draw(st.sampled_from([0.0, 0.0, 0.1, 0.4])) * each.work_s,
            )
        )
    return Workload.from_jobs(jobs), signal


def assert_same(got: Stretches, want: Stretches) -> None:
    assert got.job.tolist() == want.job.tolist()
    for name in ("start", "work_s", "lost_s"):
        assert getattr(got, name) == pytest.approx(getattr(want, name), rel=0, abs=1e-6), name


def decide_some(policy, jobs, signal, rows):
    """How a policy runs some of many jobs, asked job by job."""
    part = jobs.take(rows)
    decisions = [policy.decide(job, signal).schedule for job in part]
    return renumbered(Stretches.of_schedules(part, decisions), rows)


def one_by_one(policy, jobs, signal):
    """What each alone is decided, by the policy and, for published ones, written down plainly."""
    alone = decide_some(policy, jobs, signal, np.arange(len(jobs)))
    plain = [decided(policy, job, signal) for job in jobs]
    if None not in plain:
        assert_same(alone, Stretches.of_schedules(jobs, plain))
    return alone


@pytest.mark.parametrize("policy", POLICIES, ids=repr)
@settings(max_examples=drawn(30, 300))
@given(case=workloads(profile=constants()))
def test_many_jobs_of_constant_power_are_decided_as_each(policy, case):
    jobs, signal = case
    assert isinstance(policy, DecidesMany)
    assert_same(policy.decide_many(jobs, signal), one_by_one(policy, jobs, signal))


@pytest.mark.parametrize("start", [-86400.0, 1_719_792_000.1, 1_719_792_000.25])
@pytest.mark.parametrize("policy", [Oracle(), LowestWindow()], ids=repr)
def test_of_equal_starts_the_first_is_taken_where_edges_are_rounded(policy, start):
    step_s = 3600 / 7
    lows = Signal.from_values([50.0, 0.0] * 10, start=start, step_s=step_s)
    jobs = Workload(arrival=[start, start], deadline=lows.end, work_s=[step_s, 1.0], power=1.0)
    got = policy.decide_many(jobs, lows)
    assert got.start == pytest.approx(start + step_s, rel=0, abs=1e-6)
    assert_same(got, one_by_one(policy, jobs, lows))
    # From an edge on nothing is emitted: the end of the window is no cleaner.
    late = Signal.from_values([0.0, 0.0, 0.0, 0.0, 50.0, 0.0], start=start, step_s=step_s)
    jobs = Workload(
        arrival=[start + 2506.3303571428605],
        deadline=start + 2651.926339285710,
        work_s=1.0,
        power=1.0,
    )
    got = policy.decide_many(jobs, late)
    assert got.start == pytest.approx(start + 5 * step_s, rel=0, abs=1e-6)
    assert_same(got, one_by_one(policy, jobs, late))


@pytest.mark.parametrize("policy", POLICIES, ids=repr)
@settings(max_examples=drawn(20, 200))
@given(case=workloads())
def test_many_jobs_with_phases_are_decided_as_each(policy, case):
    jobs, signal = case
    if isinstance(policy, Exact):
        # It refuses stop phases of jobs that may never be stopped, as `decide` does.
        stops = [bool(profile.stop) for profile in jobs.profiles]
        jobs = jobs.take(~(np.array([*stops, False])[jobs.profile] & (jobs.interruptible == 0)))
        if not len(jobs):
            return
    assert_same(policy.decide_many(jobs, signal), one_by_one(policy, jobs, signal))


@pytest.mark.parametrize("policy", POLICIES, ids=repr)
@settings(max_examples=drawn(15, 200))
@given(case=workloads(profile=constants(), kind="price"))
def test_prices_may_be_negative(policy, case):
    jobs, signal = case
    assert_same(policy.decide_many(jobs, signal), one_by_one(policy, jobs, signal))


@pytest.mark.parametrize("policy", POLICIES, ids=repr)
@pytest.mark.parametrize("interruptible", [0, 1, 2])
def test_a_year_with_many_equal_values(policy, interruptible):
    # Whole numbers make ties common; arrivals and lengths lie on no grid.
    rng = np.random.default_rng(interruptible)
    hours = np.arange(24 * 90)
    values = np.round(200 + 90 * np.sin(hours * np.pi / 12) + rng.normal(0, 30, hours.size), -1)
    signal = Signal.from_values(values, start=1_704_067_200, step_s=HOUR)
    count = 60
    work_s = np.exp(rng.uniform(np.log(60.0), np.log(86400.0), count))
    arrival = np.sort(signal.start + rng.uniform(0, 80 * 86400, count))
    jobs = Workload(
        arrival=arrival,
        deadline=arrival + work_s + rng.choice([0.0, 6 * HOUR, 24 * HOUR], count),
        work_s=work_s,
        power=rng.choice([0.0, 1.0, 333.3], count),
        interruptible=interruptible,
    )
    assert_same(policy.decide_many(jobs, signal), one_by_one(policy, jobs, signal))


@pytest.mark.parametrize("step_s", [600.0, HOUR])
@settings(max_examples=drawn(30, 300))
@given(case=workloads(profile=constants()), data=st.data())
def test_exact_on_a_step_is_decided_as_each_for_whole_numbers(step_s, case, data):
    # On a common step nothing is lost; next to it other policies may come out ahead.
    jobs, signal = case
    whole = data.draw(st.sampled_from([60.0, 600.0, 1.0]))
    work_s = np.maximum(np.round(jobs.work_s / whole), 1) * whole
    arrival = signal.start + np.floor((jobs.arrival - signal.start) / whole) * whole
    room_s = signal.end - arrival - work_s
    kept = room_s >= 0
    if not kept.any():
        return
    deadline = arrival + work_s + np.floor(room_s / whole / 2) * whole
    jobs = Workload(
        arrival=arrival[kept],
        deadline=deadline[kept],
        work_s=work_s[kept],
        power=jobs.power[kept],
        interruptible=1,
    )
    policy = Exact(step_s=step_s)
    assert_same(policy.decide_many(jobs, signal), one_by_one(policy, jobs, signal))


@pytest.mark.parametrize(
    "policy",
    [
        Exact(step_s=HOUR, wait=0.01),
        Exact(step_s=HOUR, forbidden=[(5400.0, 9000.0)]),
        Exact(),
        Exact(step_s=HOUR, occupancy=Signal.from_values([0.1, 0.2], start=0, step_s=5 * HOUR,
                                                        kind="occupancy")),
    ],
)  # fmt: skip
def test_exact_with_more_to_mind_is_decided_as_each(policy):
    signal = Signal.from_values([5, 3, 4, 1, 2, 6, 1, 1, 3, 2], start=0, step_s=HOUR)
    jobs = Workload(
        arrival=[0, 600, 3600],
        deadline=[8 * HOUR, 8 * HOUR, 10 * HOUR],
        work_s=[HOUR, 2.5 * HOUR, 3 * HOUR],
        power=100.0,
        interruptible=[1, 1, 0],
    )
    assert_same(policy.decide_many(jobs, signal), one_by_one(policy, jobs, signal))


@pytest.mark.parametrize("policy", [each for each in POLICIES if type(each) not in
                                    (RunNow, Latest)], ids=repr)  # fmt: skip
def test_a_job_beyond_the_signal_is_refused_by_name(policy):
    signal = Signal.from_values([5, 3, 4, 1], start=0, step_s=HOUR)
    jobs = Workload(id=["in", "out"], arrival=[0, HOUR], deadline=[HOUR, 5 * HOUR], work_s=HOUR)
    with pytest.raises(NotCovered, match="job out: the signal covers"):
        policy.decide_many(jobs, signal)


def test_a_policy_that_cannot_is_asked_job_by_job():
    signal = Signal.from_values([5, 3, 4, 1, 2, 6, 1, 1], start=0, step_s=HOUR)
    jobs = Workload(
        arrival=[0, 0, HOUR], deadline=8 * HOUR, work_s=2 * HOUR, power=100.0, interruptible=1
    )
    policy = Dtpr()
    assert not isinstance(policy, DecidesMany)
    told = []
    got = decide_many(policy, jobs, signal, advance=told.append)
    assert told == [1, 1, 1]
    assert_same(got, one_by_one(policy, jobs, signal))
    assert decide_many(RunNow(), jobs, signal, advance=told.append).start.tolist() == [0, 0, HOUR]
    assert told == [1, 1, 1, 3]


def test_parts_are_merged_in_the_order_of_the_jobs():
    signal = Signal.from_values([5, 3, 4, 1, 2, 6, 1, 1], start=0, step_s=HOUR)
    jobs = Workload(
        arrival=[0, 0, HOUR], deadline=8 * HOUR, work_s=2 * HOUR, power=100.0, interruptible=1
    )
    policy = WaitAwhile()
    parts = [decide_some(policy, jobs, signal, np.array(rows)) for rows in ([0, 2], [1])]
    assert_same(merged(*parts), policy.decide_many(jobs, signal))


def test_exact_is_no_worse_than_any_other():
    rng = np.random.default_rng(5)
    signal = Signal.from_values(rng.uniform(50, 500, 24 * 60), start=0, step_s=HOUR)
    work_s = rng.uniform(300, 30000, 200)
    arrival = np.sort(rng.uniform(0, 50 * 86400, 200))
    jobs = Workload(
        arrival=arrival,
        deadline=arrival + work_s + 86400,
        work_s=work_s,
        power=10.0,
        interruptible=1,
    )
    best = tally(jobs, Exact(step_s=HOUR).decide_many(jobs, signal), signal).amount
    for policy in POLICIES:
        if isinstance(policy, Exact):
            continue
        paid = tally(jobs, policy.decide_many(jobs, signal), signal).amount
        assert np.all(best <= paid * (1 + 1e-8)), policy
