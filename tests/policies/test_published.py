"""Published policies: what each does, and the totals that GAIA printed."""

import csv
import json
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from lowtide.accounting import tally
from lowtide.errors import InvalidInput, UnknownName
from lowtide.forecast import LeadScaled, Perfect, Persistence
from lowtide.job import Job
from lowtide.policies import POLICIES, plan
from lowtide.policies.policy import Decision
from lowtide.policies.starts import CarbonTime, LowestSlot, LowestWindow, Oracle, RunNow
from lowtide.policies.stopping import Threshold, WaitAwhile, quantile_between
from lowtide.policies.wrappers import Forecasted, Purchasing, ReservedFirst, SpotFirst, SpotReserved
from lowtide.profile import Phase, PowerProfile
from lowtide.signal import FILLED, Signal
from lowtide.workload import Workload
from support import published_oracles
from support.nightly import drawn
from support.oracles import every_bend, exact_integral
from support.strategies import cases

HOUR = 3600.0


def hourly(*values, start=0.0, **kwargs):
    return Signal.from_values(values, start=start, step_s="1h", **kwargs)


def constant(hours, *, window, arrival=0.0, **kwargs):
    return Job(
        id="a",
        arrival=arrival,
        deadline=arrival + window * HOUR,
        profile=PowerProfile.constant(1000, hours * HOUR),
        **kwargs,
    )


def start_of(job, signal, policy):
    made = plan(job, signal, policy=policy)
    made.schedule.check(job)
    return (made.schedule.start - job.arrival) / HOUR


@pytest.fixture(scope="module")
def golden(data):
    path = data("goldens/gaia/totals_US-CAL-CISO.json")
    rows = json.loads(path.read_text(encoding="utf-8"))
    return {row["policy"]: row["carbon_cost"] for row in rows}


@pytest.fixture(scope="module")
def californian(data):
    with data("carbon/US-CAL-CISO.csv").open(encoding="utf-8") as lines:
        values = [float(row["carbon_intensity_g_per_kwh"]) for row in csv.DictReader(lines)]
    return hourly(*values[7000:])


@pytest.fixture(scope="module")
def queues(data):
    """Short and long jobs on multiples of 5 s, with the length that each queue expects."""
    with data("traces/pai_1k.csv").open(encoding="utf-8") as lines:
        rows = list(csv.DictReader(lines))
    arrival, length_s, cpus = (
        np.array([float(row[name]) for row in rows]) for name in ("arrival_time", "length", "cpus")
    )
    arrival, length_s = (np.floor(each / 5) * 5 for each in (arrival, length_s))
    short = length_s < 2 * HOUR
    return [
        (
            Workload(
                arrival=arrival[queue],
                deadline=(arrival + length_s)[queue] + wait_s,
                work_s=length_s[queue],
                power=cpus[queue],
                interruptible=1,
            ),
            expected_s,
        )
        for queue, wait_s, expected_s in (
            (short, 6 * HOUR, 454 * 5.0),
            (~short, 24 * HOUR, 5221 * 5.0),
        )
    ]


@pytest.mark.parametrize(
    ("name", "policy"),
    [
        ("NJW", lambda _: RunNow()),
        ("Lowest-Slot", lambda _: LowestSlot()),
        ("Oracle(-w 6x24)", lambda _: Oracle(step_s=HOUR)),
        ("Lowest-Window", lambda each_s: LowestWindow(expected_s=each_s, step_s=HOUR)),
        ("Carbon-Time", lambda each_s: CarbonTime(expected_s=each_s, step_s=HOUR)),
        ("CST-Oracle", lambda _: CarbonTime(step_s=HOUR)),
        ("Wait-Awhile", lambda _: WaitAwhile()),
        ("Ecovisor", lambda _: Threshold()),
    ],
)
def test_the_totals_that_gaia_printed_come_out(golden, californian, queues, name, policy):
    total = sum(
        tally(jobs, policy(expected_s).decide_many(jobs, californian), californian).amount.sum()
        for jobs, expected_s in queues
    )
    assert total == pytest.approx(golden[name], rel=1e-12)


@given(cases())
def test_latest_starts_when_it_must(case):
    job, signal = case
    made = plan(job, signal, policy="latest")
    made.schedule.check(job)
    assert made.schedule.start == job.latest_start
    assert made.schedule.end == pytest.approx(job.deadline, abs=1e-5)


@settings(max_examples=drawn(30, 600))
@given(cases(), st.sampled_from([None, 600.0, 3600.0, 5000.0]))
def test_lowest_window_is_the_best_of_every_bend_at_constant_power(case, expected_s):
    job, signal = case
    length_s = expected_s or job.profile.run_s
    assume(job.latest_start + length_s <= signal.end)
    level = Job(
        id="l",
        arrival=job.arrival,
        deadline=job.latest_start + length_s,
        profile=PowerProfile.constant(1, length_s),
    )
    start = plan(job, signal, policy=LowestWindow(expected_s=expected_s)).schedule.start
    costs = [
        exact_integral(signal, at, at + Fraction(length_s)) for at in every_bend(level, signal)
    ]
    got = exact_integral(signal, start, Fraction(start) + Fraction(length_s))
    most = float(signal.values.max()) * length_s
    assert float(got) == pytest.approx(float(min(costs)), rel=1e-9, abs=1e-9 * most + 1e-3)


@settings(max_examples=drawn(30, 600))
@given(cases(), st.sampled_from([None, 600.0, 3600.0, 5000.0]), st.floats(0.0, 1.0))
def test_no_start_saves_faster_than_carbon_time(case, expected_s, share):
    job, signal = case
    length_s = expected_s or job.profile.run_s
    assume(job.latest_start + length_s <= signal.end)
    chosen = plan(job, signal, policy=CarbonTime(expected_s=expected_s)).schedule.start

    def per_second(start):
        costs = [
            exact_integral(signal, Fraction(at), Fraction(at) + Fraction(length_s))
            for at in (job.arrival, start)
        ]
        return float(costs[0] - costs[1]) / (start - job.arrival + length_s)

    best = per_second(chosen)
    tie = 1e-6 * float(signal.values.max()) + 1e-9
    assert best >= -tie
    for start in (job.arrival + share * max(job.slack_s, 0.0), job.latest_start):
        assert best >= per_second(start) - tie


def test_lowest_window_with_the_true_length_is_the_oracle_of_a_constant_job():
    signal = hourly(5, 3, 4, 1, 2, 6, 1, 1)
    job = constant(1.5, window=8)
    assert start_of(job, signal, "lowest_window") == start_of(job, signal, "oracle")


def test_lowest_window_looks_as_far_as_it_expects_to_run():
    signal = hourly(5, 2, 9, 3, 3, 9, 9, 9)
    job = constant(1, window=6)
    assert start_of(job, signal, LowestWindow()) == 1
    assert start_of(job, signal, LowestWindow(expected_s=2 * HOUR)) == 3
    assert start_of(job, signal, LowestWindow(expected_s=2 * HOUR, step_s=2 * HOUR)) == 0


def test_an_expected_length_is_cut_where_the_signal_ends():
    # Its own window is covered, so it is not refused: of 9 h expected, 2 h are known from the
    # latest start on, and all starts are compared by 2 h.
    signal = hourly(4, 2, 9, 3, 3)
    job = constant(1, window=4)
    for policy in (LowestWindow(expected_s=9 * HOUR), LowestWindow(expected_s=2 * HOUR)):
        assert start_of(job, signal, policy) == 0
    ends_with_it = constant(1, window=5)
    assert start_of(ends_with_it, signal, LowestWindow(expected_s=9 * HOUR)) == 1
    assert start_of(ends_with_it, signal, CarbonTime(expected_s=9 * HOUR)) == 1


def test_carbon_time_weighs_a_saving_by_the_time_until_it_is_done():
    # Waiting an hour saves 5 in 2 h, waiting four hours 6 in 5 h.
    signal = hourly(10, 5, 9, 9, 4, 9, 9)
    job = constant(1, window=6)
    assert start_of(job, signal, "carbon_time") == 1
    assert start_of(job, signal, "lowest_window") == 4


@pytest.mark.parametrize("values", [[3] * 8, [1, 2, 3, 4, 5, 6, 7, 8]])
def test_carbon_time_starts_at_once_where_nothing_is_gained(values):
    for step_s in (None, HOUR):
        job = constant(2, window=8)
        assert start_of(job, hourly(*values), CarbonTime(step_s=step_s)) == 0


@pytest.mark.parametrize("kind", [LowestWindow, CarbonTime])
def test_an_expected_length_and_a_step_are_longer_than_nothing(kind):
    for value in (0.0, -1.0, float("nan"), float("inf")):
        with pytest.raises(InvalidInput, match="expected to run for longer than 0 s"):
            kind(expected_s=value)
    with pytest.raises(InvalidInput, match="longer than 0 s"):
        kind(step_s=0.0)


def test_threshold_works_below_the_quantile_of_the_next_day():
    signal = hourly(5, 1, 6, 2, 7, 8, 9, 9, 9)
    job = constant(2, window=8, interruptible="anywhere")
    # 2.7 of the nine hours may lie below: 1 and 2 do, and 5 is the limit.
    made = plan(job, signal, policy="threshold")
    assert [(s.kind, s.start / HOUR, s.duration_s / HOUR) for s in made.schedule.spans] == [
        ("work", 1.0, 1.0),
        ("suspended", 2.0, 1.0),
        ("work", 3.0, 1.0),
    ]


def test_threshold_runs_through_once_the_slack_is_gone():
    signal = hourly(5, 1, 6, 6, 7, 8, 0, 0, 0, 0)
    job = constant(3, window=5, interruptible="anywhere")
    made = plan(job, signal, policy="threshold")
    # Nothing before hour 6 lies below 0 or 1, so the two hours of waiting are used up.
    assert [(s.kind, s.start / HOUR, s.end / HOUR) for s in made.schedule.spans] == [
        ("work", 2.0, 5.0)
    ]


def test_threshold_starts_a_job_that_cannot_be_stopped_at_the_first_moment_below():
    signal = hourly(5, 1, 6, 2, 7, 8, 9, 9, 9)
    assert start_of(constant(2, window=8), signal, "threshold") == 1
    profile = PowerProfile(
        startup=[Phase(name="load", duration_s="30m", power_w=10)],
        work=[Phase(name="run", duration_s="2h", power_w=100)],
    )
    job = Job(id="a", arrival=0, deadline="+8h", profile=profile)
    # The startup is placed before the moment at which it would work.
    assert start_of(job, signal, "threshold") == 0.5


def test_a_threshold_looks_as_far_as_its_horizon():
    signal = hourly(5, 4, 6, 2, 1, 1, 1, 1, 1, 1)
    job = constant(1, window=4)
    assert start_of(job, signal, Threshold(quantile=0.5, horizon_s=3 * HOUR)) == 1
    assert start_of(job, signal, Threshold(quantile=0.5, horizon_s=4 * HOUR)) == 1
    assert start_of(job, signal, Threshold(quantile=0.5)) == 3
    assert start_of(job, signal, Threshold(quantile=1.0)) == 0


@given(cases(), st.sampled_from([0.0, 0.1, 0.3, 0.5, 0.77, 1.0]))
def test_a_quantile_splits_the_time(case, share):
    job, signal = case
    value = quantile_between(signal, job.arrival, job.deadline, share)
    assert value == published_oracles.quantile_between(signal, job.arrival, job.deadline, share)
    edges = np.clip(signal.edges, job.arrival, job.deadline)
    size_s = np.diff(edges)
    tie = 1e-5 * len(signal)
    assert size_s[signal.values < value].sum() <= share * size_s.sum() + tie
    assert size_s[signal.values <= value].sum() >= share * size_s.sum() - tie


@settings(max_examples=drawn(30, 600))
@given(cases(), st.sampled_from([0.0, 0.3, 1.0]), st.sampled_from([1800.0, 86400.0]))
def test_no_threshold_breaks_a_rule(case, quantile, horizon_s):
    job, signal = case
    policy = Threshold(quantile=quantile, horizon_s=horizon_s)
    plan(job, signal, policy=policy).schedule.check(job)


def test_a_threshold_has_its_limits():
    with pytest.raises(InvalidInput, match="a quantile is from 0 to 1, not 30"):
        Threshold(quantile=30)
    with pytest.raises(InvalidInput, match="longer than 0 s ahead"):
        Threshold(horizon_s=0)


class TestPurchasing:
    def test_each_says_what_it_runs_on(self):
        kinds = {"reserved_first": (True, False), "spot_first": (False, True),
                 "spot_reserved": (True, True)}  # fmt: skip
        for name, uses in kinds.items():
            policy = POLICIES.load(name)()
            assert isinstance(policy, Purchasing)
            assert (policy.uses_reserved, policy.uses_spot) == uses
            assert isinstance(policy.inner, CarbonTime)
            assert policy.spot_longest_s == (7200.0 if policy.uses_spot else 0.0)

    def test_without_a_cluster_it_is_the_start_policy(self):
        signal = hourly(5, 3, 4, 1, 2, 6, 1, 1)
        job = constant(2, window=8)
        for inner in ("oracle", Oracle(), "carbon_time"):
            for kind in (ReservedFirst, SpotFirst, SpotReserved):
                made = plan(job, signal, policy=kind(start=inner))
                assert made.schedule == plan(job, signal, policy=inner).schedule
                name = inner if isinstance(inner, str) else "oracle"
                assert f"without a cluster nothing is reserved and nothing is spot: as {name} " in (
                    made.note
                )

    def test_a_wrong_start_policy_is_told_at_once(self):
        with pytest.raises(UnknownName, match="carbon_time"):
            ReservedFirst(start="carbon_tme")
        with pytest.raises(InvalidInput, match="spot machines, not of -1"):
            SpotFirst(spot_longest_s=-1)
        with pytest.raises(InvalidInput, match="spot machines, not of nan"):
            SpotReserved(spot_longest_s=float("nan"))


class TestForecasted:
    @settings(max_examples=drawn(20, 400))
    @given(cases())
    def test_perfect_foresight_changes_nothing(self, case):
        job, signal = case
        for policy in (Oracle(), WaitAwhile(), Threshold(), CarbonTime(expected_s=1800.0)):
            seen = Forecasted(policy, Perfect()).decide(job, signal)
            assert seen.schedule == policy.decide(job, signal).schedule
            assert seen.lower_bound is None

    @settings(max_examples=drawn(20, 400))
    @given(cases(), st.integers(0, 5), st.sampled_from([None, 900.0, 7200.0]))
    def test_a_wrong_forecast_breaks_no_rule(self, case, seed, horizon_s):
        job, signal = case
        model = LeadScaled(relative_error=0.5, seed=seed)
        for policy in ("oracle", "wait_awhile", "threshold"):
            known = Forecasted(policy, model, horizon_s=horizon_s)
            known.decide(job, signal).schedule.check(job)

    def test_it_decides_by_what_was_foreseen_and_pays_what_came(self):
        yesterday, today = [300, 300, 100, 300], [300, 100, 300, 300]
        signal = Signal.from_values([*yesterday, *today], start=0, step_s="6h")
        job = constant(6, window=24, arrival=86400.0)
        made = plan(job, signal, policy=Forecasted("oracle", Persistence()))
        assert made.schedule.start == job.arrival + 12 * HOUR
        assert made.footprint.carbon_g == pytest.approx(6 * 300)

    def test_beyond_the_horizon_there_is_nothing_to_wait_for(self):
        signal = hourly(300, 200, 400, 100, 100)
        job = constant(1, window=4)
        for horizon_s, hours in ((None, 3), (4 * HOUR, 3), (3.9 * HOUR, 1), (HOUR, 0), (60.0, 0)):
            policy = Forecasted("oracle", Perfect(), horizon_s=horizon_s)
            assert start_of(job, signal, policy) == hours, horizon_s

    def test_what_is_not_known_is_the_mean_and_says_so(self):
        seen = []

        class Look:
            def decide(self, job, signal):
                seen.append(signal)
                return Decision(schedule=RunNow().decide(job, signal).schedule)

        job = constant(1, window=3, arrival=0.5 * HOUR)
        Forecasted(Look(), Perfect(), horizon_s=1.5 * HOUR).decide(job, hourly(300, 200, 400, 100))
        known = seen[0]
        mean = (0.5 * 300 + 200) / 1.5
        assert known.values.tolist() == pytest.approx([300, 200, mean, mean])
        assert known.marks.tolist() == [0, 0, FILLED, FILLED]

    def test_it_needs_a_policy_a_model_and_a_horizon(self):
        with pytest.raises(UnknownName):
            Forecasted("orcale", Perfect())
        with pytest.raises(InvalidInput, match="forecasts come from a model"):
            Forecasted("oracle", "perfect")
        with pytest.raises(InvalidInput, match="how far ahead is known"):
            Forecasted("oracle", Perfect(), horizon_s=0.0)
