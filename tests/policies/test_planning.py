"""What holds for every policy, and what `plan` adds."""

import json
from dataclasses import dataclass, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lowtide.accounting import footprint
from lowtide.errors import DeadlineTooEarly, InvalidInput, InvalidSignal, NotCovered, UnknownName
from lowtide.grid import Grid
from lowtide.job import Job
from lowtide.policies import POLICIES, Decision, Policy, plan
from lowtide.policies.exact import Exact
from lowtide.policies.planning import rearrangement_bound
from lowtide.policies.starts import Oracle
from lowtide.profile import Phase, PowerProfile
from lowtide.schedule import Schedule
from lowtide.signal import Signal
from support.nightly import drawn
from support.strategies import cases, scheduled

HOUR = 3600.0
BUILT_IN = ["lowest_slot", "oracle", "run_now", "wait_awhile"]


def hourly(*values, **kwargs):
    return Signal.from_values(values, start=0, step_s="1h", **kwargs)


def small(**kwargs):
    defaults = {"id": "a", "arrival": 0, "deadline": "+4h"}
    defaults["profile"] = PowerProfile.constant(1000, "2h")
    return Job(**(defaults | kwargs))


def test_the_built_in_policies_are_registered():
    assert set(BUILT_IN) <= set(POLICIES.names())
    for name in BUILT_IN:
        assert isinstance(POLICIES.load(name)(), Policy)


@pytest.mark.parametrize("name", BUILT_IN)
@settings(max_examples=drawn(50, 500))
@given(case=cases())
def test_every_plan_keeps_the_rules_and_is_what_it_says(name, case):
    job, signal = case
    made = plan(job, signal, policy=name)
    made.schedule.check(job)
    assert made.schedule.job_id == job.id
    assert made.policy == name
    assert made.footprint == footprint(made.schedule, job, signal)
    assert made.baseline == footprint(Schedule.uninterrupted(job, job.arrival), job, signal)
    assert made.lower_bound_g <= made.footprint.carbon_g * (1 + 1e-9) + 1e-9
    assert plan(job, signal, policy=name) == made


@pytest.mark.parametrize("name", BUILT_IN)
@settings(max_examples=40)
@given(case=cases(kind="price"))
def test_every_policy_plans_by_price(name, case):
    job, signal = case
    made = plan(job, signal, policy=name)
    made.schedule.check(job)
    assert made.footprint.carbon_g is None
    assert made.lower_bound_g is None
    assert made.footprint == footprint(made.schedule, job, signal)


@given(case=cases(interruptible="never"))
def test_the_oracle_is_the_best_of_those_that_never_stop(case):
    job, signal = case
    best = plan(job, signal, policy="oracle")
    assert best.lower_bound_g == best.footprint.carbon_g
    for name in BUILT_IN:
        other = plan(job, signal, policy=name).footprint.carbon_g
        assert best.footprint.carbon_g <= other * (1 + 1e-9) + 1e-9


@given(case=scheduled())
def test_no_valid_schedule_goes_below_the_bound(case):
    job, signal, schedule = case
    paid = footprint(schedule, job, signal).carbon_g
    assert rearrangement_bound(job, signal) <= paid * (1 + 1e-9) + 1e-9
    assert plan(job, signal, policy="oracle").lower_bound_g <= paid * (1 + 1e-9) + 1e-9


def test_the_bound_pairs_the_dearest_phase_with_the_cheapest_moment():
    profile = PowerProfile(
        startup=[Phase(name="load", duration_s="1h", power_w=500)],
        work=[
            Phase(name="low", duration_s="1h", power_w=100),
            Phase(name="high", duration_s="90m", power_w=1000),
        ],
    )
    job = small(profile=profile, deadline="+5h")
    bound = rearrangement_bound(job, hourly(500, 400, 100, 200, 300))
    assert bound == pytest.approx(
        1 * 100 + 0.5 * 200 + 0.25 * 200 + 0.25 * 300 + 0.05 * (300 + 400)
    )


def test_the_bound_is_reached_where_nothing_stands_in_the_way():
    job = small(interruptible="anywhere")
    made = plan(job, hourly(300, 100, 200, 100), policy="wait_awhile")
    assert made.footprint.carbon_g == pytest.approx(made.lower_bound_g) == pytest.approx(200.0)


def test_an_unknown_policy_lists_the_known():
    with pytest.raises(UnknownName, match=r"unknown policy 'orcale' \(did you mean 'oracle'") as e:
        plan(small(), hourly(1, 1, 1, 1), policy="orcale")
    assert set(BUILT_IN) <= set(e.value.known)


@pytest.mark.parametrize("name", ["run_now", "lowest_slot", "wait_awhile"])
def test_a_step_for_a_policy_that_takes_none(name):
    with pytest.raises(InvalidInput, match=f"policy '{name}' takes no step_s, nor any other"):
        plan(small(), hourly(1, 1, 1, 1), policy=name, step_s="1h")


def test_a_step_goes_to_the_policy_object_itself():
    with pytest.raises(InvalidInput, match="give step_s to the policy object itself"):
        plan(small(), hourly(1, 1, 1, 1), policy=Oracle(), step_s="1h")
    made = plan(small(), hourly(5, 4, 1, 1), policy=Oracle(step_s=HOUR))
    assert (made.schedule.start, made.policy) == (2 * HOUR, "oracle")


def test_a_strangers_policy_is_a_policy():
    @dataclass(frozen=True)
    class Latest:
        def decide(self, job, signal):
            return Decision(schedule=Schedule.uninterrupted(job, job.latest_start))

    made = plan(small(), hourly(4, 3, 2, 1), policy=Latest())
    assert made.schedule.start == 2 * HOUR
    assert made.policy == "latest"
    assert made.lower_bound_g == pytest.approx(3.0)
    with pytest.raises(InvalidInput, match="a policy is a name or has a decide method"):
        plan(small(), hourly(4, 3, 2, 1), policy=5)


@pytest.mark.parametrize("name", BUILT_IN)
def test_a_signal_that_does_not_cover_the_window_is_refused(name):
    with pytest.raises(NotCovered, match="ends 1 h too early"):
        plan(small(), hourly(1, 1, 1), policy=name)
    with pytest.raises(NotCovered, match="begins 1 h too late"):
        plan(small(arrival=-HOUR, deadline="+4h"), hourly(1, 1, 1, 1), policy=name)


def test_on_a_grid_carbon_decides_and_the_price_is_paid():
    price = hourly(0.0, 0.0, 1.0, 1.0, kind="price", unit="EUR/kWh")
    grid = Grid(average=hourly(300, 300, 100, 100), price=price)
    made = plan(small(), grid)
    assert made.schedule.start == 2 * HOUR
    assert (made.footprint.carbon_g, made.footprint.cost) == pytest.approx((200.0, 2.0))
    assert made.saving == pytest.approx(2 / 3)
    by_price = plan(small(), price)
    assert by_price.schedule.start == 0.0
    assert by_price.saving is None


def test_pue_is_nothing_to_plan_by():
    with pytest.raises(InvalidSignal, match="give it as pue="):
        plan(small(), hourly(1.5, 1.5, 1.5, 1.5, kind="pue"))


def test_what_a_plan_says_of_itself():
    signal = hourly(400, 400, 100, 100, synthetic=True)
    made = plan(small(), signal)
    assert made.synthetic
    assert made.saving == pytest.approx(0.75)
    assert str(made) == (
        "exact: start 1970-01-01 02:00 UTC, done 1970-01-01 04:00 UTC; "
        "2 kWh, 200 g CO2e, 1 start; saves 75.0 % against run_now (synthetic grid)"
    )
    assert plan(small(), hourly(0, 0, 0, 0)).saving is None
    assert plan(small(), replace(signal, synthetic=False)).synthetic is False


# The planning goldens: slots of an hour, power times intensity.


def golden(data):
    instances = json.loads(data("goldens/planning/instances.json").read_text())
    assert len(instances) == 14
    for instance in instances:
        profile = {
            group: [
                Phase(name=f"p{i}", duration_s=slots * HOUR, power_w=power)
                for i, (slots, power) in enumerate(instance[group])
            ]
            for group in ("startup", "work")
        }
        signal = Signal.from_values(instance["carbon"], start=0, step_s=HOUR)
        job = {"arrival": 0, "deadline": instance["T"] * HOUR, "profile": PowerProfile(**profile)}
        yield instance, job, signal


def test_golden_starts(data):
    seen = 0
    for instance, parts, signal in golden(data):
        if not instance["feasible"]:
            with pytest.raises(DeadlineTooEarly):
                Job(id="golden", **parts)
            continue
        job = Job(id="golden", **parts)
        now = plan(job, signal, policy="run_now").footprint.carbon_g
        by_slot = plan(job, signal, policy="oracle", step_s="1h")
        free = plan(job, signal, policy="oracle")
        want = instance["uninterrupted_oracle_obj"] / 1000
        assert now == pytest.approx(instance["run_now_obj"] / 1000, rel=1e-9)
        assert by_slot.footprint.carbon_g == pytest.approx(want, rel=1e-9)
        assert by_slot.schedule.start == instance["uninterrupted_oracle_start"] * HOUR
        assert free.footprint.carbon_g <= want * (1 + 1e-12)
        optimum = instance["dp_obj"] / 1000
        anyhow = Job(id="golden", interruptible="anywhere", **parts)
        assert plan(anyhow, signal).lower_bound_g <= optimum * (1 + 1e-12)
        seen += 1
    assert seen == 13


def test_golden_free_stops_equal_wait_awhile(data):
    instance, parts, signal = next(golden(data))
    assert instance["name"] == "no_startup_free"
    job = Job(id="golden", interruptible="anywhere", **parts)
    made = plan(job, signal, policy="wait_awhile")
    assert made.footprint.carbon_g == pytest.approx(instance["dp_obj"] / 1000, rel=1e-9)
    made.schedule.check(job)


@settings(max_examples=30)
@given(st.lists(st.integers(1, 9), min_size=7, max_size=7))
def test_no_policy_goes_below_the_best_of_all_slot_patterns(carbon):
    job = Job(
        id="a",
        arrival=0,
        deadline="+7h",
        profile=PowerProfile(
            startup=[Phase(name="s", duration_s="1h", power_w=1000)],
            work=[Phase(name="w", duration_s="3h", power_w=1000)],
        ),
        interruptible="anywhere",
    )
    least = min(
        sum(c for c, busy in zip(carbon, pattern, strict=True) if busy)
        for pattern in _patterns(7, startup=1, work=3)
    )
    for name in BUILT_IN:
        made = plan(job, hourly(*carbon), policy=name)
        assert made.footprint.carbon_g >= least - 1e-9


def _patterns(slots, *, startup, work):
    """Yield every on/off pattern that does the work, each run of slots paying its startup."""
    for number in range(2**slots):
        on = [number >> i & 1 for i in range(slots)]
        runs = [len(run) for run in "".join(map(str, on)).split("0") if run]
        if all(run > startup for run in runs) and sum(runs) - startup * len(runs) == work:
            yield on


# What is proven, in the unit of what was minimised.


def test_a_bound_on_money_is_carried_as_one_on_grams_is():
    price = hourly(50, 10, 30, 20, kind="price", unit="EUR/MWh")
    made = plan(small(interruptible="anywhere"), price)
    assert made.lower_bound == pytest.approx(made.footprint.cost) == pytest.approx(0.03)
    assert (made.resolution_gap, made.lower_bound_g, made.resolution_gap_g) == (0.0, None, None)
    ragged = plan(
        small(interruptible="anywhere", arrival=1000, deadline=4 * HOUR), replace(price), step_s=777
    )
    assert ragged.resolution_gap > 0
    assert ragged.lower_bound == pytest.approx(ragged.footprint.cost)
    # Other policies have a general bound, but not where prices may pay for more energy.
    assert plan(small(), price, policy="run_now").lower_bound == pytest.approx(0.03)
    below = hourly(50, -10, 30, 20, kind="price", unit="EUR/MWh")
    assert plan(small(), below, policy="run_now").lower_bound is None


def test_carbon_weighed_alone_keeps_its_bound():
    signal = hourly(300, 100, 200, 150)
    job = small(interruptible="anywhere", arrival=1000, deadline=4 * HOUR)
    plain = plan(job, signal, step_s=777)
    weighed = plan(job, signal, step_s=777, weights={"carbon": 4, "price": 0})
    assert weighed.lower_bound_g == pytest.approx(plain.lower_bound_g)
    assert weighed.resolution_gap_g == pytest.approx(plain.resolution_gap_g)
    assert weighed.lower_bound == pytest.approx(4 * plain.lower_bound)
    assert 0 < weighed.resolution_gap == pytest.approx(4 * plain.resolution_gap)
    assert (plain.lower_bound, plain.resolution_gap) == (
        plain.lower_bound_g,
        plain.resolution_gap_g,
    )


def test_rent_and_waiting_are_part_of_what_is_proven():
    signal = hourly(300, 100, 200, 150)
    rent = Signal.from_values([0.01] * 4, start=0, step_s=HOUR, kind="occupancy")
    job = small(interruptible="anywhere")
    for policy in (Exact(occupancy=rent), Exact(wait=0.01)):
        made = plan(job, signal, policy=policy)
        least = policy.optimise(job, signal).solution.cost
        assert made.footprint.carbon_g < made.lower_bound == pytest.approx(least)
        assert (made.resolution_gap, made.resolution_gap_g) == (0.0, None)
        # In grams only the general bound is left.
        assert made.lower_bound_g == pytest.approx(250)
    coarse = plan(
        replace(job, arrival=1000, deadline=4 * HOUR),
        signal,
        policy=Exact(occupancy=rent, step_s=777),
    )
    assert coarse.resolution_gap > 0
    assert coarse.resolution_gap_g is None


def test_a_mix_is_proven_as_a_mix():
    price = hourly(50, 10, 30, 20, kind="price", unit="EUR/MWh")
    grid = Grid(average=hourly(300, 100, 200, 150), price=price)
    made = plan(small(interruptible="anywhere"), grid, weights={"carbon": 1, "price": 1000})
    assert made.lower_bound == pytest.approx(made.footprint.carbon_g + 1000 * made.footprint.cost)
    assert made.resolution_gap == 0
    assert made.lower_bound_g == pytest.approx(250)
    assert made.resolution_gap_g is None


@pytest.mark.parametrize(
    ("signal", "times"),
    [
        (hourly(400, 100, 300, 200), 2),
        (Grid(average=hourly(400, 100, 300, 200)), 2),
        (hourly(0.4, 0.1, 0.3, 0.2, kind="price", unit="EUR/kWh"), 2),
        # What it emits decides, and what it costs is told besides.
        (
            Grid(
                average=hourly(400, 100, 300, 200),
                price=hourly(0.1, 0.4, 0.3, 0.2, kind="price", unit="EUR/kWh"),
            ),
            3,
        ),
    ],
)
def test_a_plan_and_its_baseline_are_accounted_for_once(signal, times, monkeypatch):
    from lowtide import accounting

    cut, seen = accounting._pieces, []
    monkeypatch.setattr(accounting, "_pieces", lambda *given: seen.append(given[0]) or cut(*given))
    found = plan(small(), signal)
    assert len(seen) == times
    assert found.footprint == footprint(found.schedule, small(), signal)


@dataclass(frozen=True)
class Meddling:
    """A stranger's policy that takes another's decision and changes what it is about."""

    what: str

    def decide(self, job, signal):
        if self.what == "signal":
            other = replace(signal, values=signal.values[::-1].copy())
            return Exact().decide(job, other)
        if self.what == "job":
            return Exact().decide(replace(job, profile=PowerProfile.constant(10, "2h")), signal)
        found = Exact().decide(job, signal)
        return replace(found, schedule=Schedule.uninterrupted(job, job.arrival))


@pytest.mark.parametrize("what", ["signal", "job", "schedule"])
def test_what_another_decided_on_is_not_taken_for_what_it_comes_to(what):
    curve = hourly(400, 100, 300, 200)
    found = plan(small(), curve, policy=Meddling(what))
    assert found.footprint == footprint(found.schedule, small(), curve)
