"""What an explanation says adds up and agrees with planning under other rules."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import lowtide as lt
from lowtide.errors import InvalidInput, TooLaborious
from lowtide.policies import POLICIES, explain
from lowtide.policies.exact import Exact
from lowtide.policies.wrappers import Blind


@pytest.fixture(params=["anywhere", "checkpoints"])
def case(request):
    rng = np.random.default_rng(5)
    signal = lt.Signal.from_values(rng.uniform(50, 500, 48), start=0, step_s=3600)
    work = [
        lt.Phase(name="w", duration_s=3600, power_w=float(power), checkpoint=True)
        for power in (100, 600) * 5
    ]
    startup = [lt.Phase(name="s", duration_s=1800, power_w=300)]
    profile = lt.PowerProfile(startup=startup, work=work, suspended_power_w=5)
    job = lt.Job(
        id="a", arrival=0, deadline=signal.end, profile=profile, interruptible=request.param
    )
    return job, signal


def test_the_parts_add_up(case) -> None:
    job, signal = case
    best = lt.plan(job, signal)
    why = lt.explain(best, job, signal)
    assert len(why.blocks) == best.schedule.starts
    assert why.total == pytest.approx(best.footprint.carbon_g)
    assert sum(block.amount for block in why.blocks) + why.suspended == pytest.approx(why.total)
    assert sum(block.work_s for block in why.blocks) == pytest.approx(job.profile.work_s)
    assert all(0 < block.overhead < block.amount for block in why.blocks)
    assert why.run_now == pytest.approx(best.baseline.carbon_g)


def test_other_choices_cost_what_planning_for_them_costs(case) -> None:
    job, signal = case
    best = lt.plan(job, signal)
    why = lt.explain(best, job, signal)
    starts = best.schedule.starts
    assert starts > 2
    fewer = lt.plan(replace(job, max_starts=starts - 1), signal).footprint.carbon_g
    assert why.one_start_fewer == pytest.approx(fewer)
    assert why.one_start_more >= why.total - 1e-9
    single = lt.plan(replace(job, interruptible="never"), signal).footprint.carbon_g
    assert why.uninterrupted == pytest.approx(single)
    assert why.blind_to_phases >= why.total - 1e-9


def test_one_start_more_is_the_best_with_exactly_that_many() -> None:
    from support.planning_oracles import SlotJob, least_cost

    values = (5.0, 1.0, 4.0, 1.0, 6.0, 2.0)
    signal = lt.Signal.from_values(values, start=0, step_s=3600)
    startup = [lt.Phase(name="s", duration_s=3600, power_w=1000)]
    work = [lt.Phase(name="w", duration_s=3600, power_w=1000) for _ in range(2)]
    job = lt.Job(
        id="a",
        arrival=0,
        deadline=6 * 3600,
        profile=lt.PowerProfile(startup=startup, work=work),
        interruptible="anywhere",
    )
    best = lt.plan(job, signal)
    assert best.schedule.starts == 1
    assert best.footprint.carbon_g == pytest.approx(least_cost(SlotJob((1.0,), (1.0, 1.0)), values))
    # Two starts: ready at 1 or later and at 3 or later; every pair tried by hand.
    pairs = [
        values[a - 1] + values[a] + values[b - 1] + values[b]
        for a in range(1, 6)
        for b in range(a + 2, 6)
    ]
    assert lt.explain(best, job, signal).one_start_more == pytest.approx(min(pairs))


def test_a_job_that_is_never_stopped_has_no_other_number_of_starts() -> None:
    signal = lt.Signal.from_values([5, 1, 4], start=0, step_s=3600)
    job = lt.Job(id="a", arrival=0, deadline=10800, profile=lt.PowerProfile.constant(1000, "1h"))
    why = lt.explain(lt.plan(job, signal), job, signal)
    assert why.one_start_fewer is why.one_start_more is None


def two_halves(interruptible: str, **rules) -> tuple[lt.Job, lt.Signal]:
    """Two hours of work with two clean hours to go to, and as many starts as can be."""
    signal = lt.Signal.from_values([500, 10, 500, 500, 10, 500, 300, 400], start=0, step_s=3600)
    work = [lt.Phase(name="w", duration_s=3600, power_w=1000, checkpoint=True)] * 2
    job = lt.Job(
        id="a",
        arrival=0,
        deadline=8 * 3600,
        profile=lt.PowerProfile(work=work),
        interruptible=interruptible,
        **rules,
    )
    return job, signal


@pytest.mark.parametrize("interruptible", ["anywhere", "checkpoints"])
def test_one_start_fewer_is_known_where_no_more_could_be_made(interruptible: str) -> None:
    job, signal = two_halves(interruptible)
    best = lt.plan(job, signal)
    why = lt.explain(best, job, signal)
    assert best.schedule.starts == 2
    assert why.one_start_fewer == pytest.approx(510)
    assert why.one_start_more is None


def test_one_start_fewer_is_always_known() -> None:
    for seed in range(25):
        rng = np.random.default_rng(seed)
        signal = lt.Signal.from_values(rng.uniform(20, 500, 100), start=0, step_s=3600)
        work = [
            lt.Phase(name="w", duration_s=float(seconds), power_w=float(power), checkpoint=True)
            for seconds, power in zip(
                rng.uniform(600, 9000, 4), rng.uniform(50, 700, 4), strict=True
            )
        ]
        startup = [lt.Phase(name="s", duration_s=float(rng.uniform(10, 900)), power_w=90)]
        job = lt.Job(
            id="a",
            arrival=float(rng.uniform(0, 5000)),
            deadline=signal.end,
            profile=lt.PowerProfile(startup=startup, work=work),
            interruptible="checkpoints",
        )
        best = lt.plan(job, signal)
        why = lt.explain(best, job, signal)
        assert (why.one_start_fewer is None) == (best.schedule.starts == 1)
        for other in (why.one_start_fewer, why.one_start_more, why.uninterrupted):
            assert other is None or other >= why.total * (1 - 1e-9)


@pytest.mark.parametrize("policy", ["exact", "oracle", "wait_awhile", "threshold", "dtpr"])
def test_phases_of_a_job_of_constant_power_are_worth_nothing(policy: str) -> None:
    rng = np.random.default_rng(8)
    signal = lt.Signal.from_values(rng.uniform(20, 500, 48), start=0, step_s=3600)
    profile = lt.PowerProfile(
        startup=[lt.Phase(name="s", duration_s=700, power_w=300)],
        work=[lt.Phase(name="w", duration_s=30000, power_w=300)],
        suspended_power_w=3,
    )
    job = lt.Job(id="a", arrival=77, deadline="+40h", profile=profile, interruptible="anywhere")
    why = lt.explain(lt.plan(job, signal, policy=policy), job, signal)
    assert why.blind_to_phases == why.total


def test_a_policy_is_set_beside_itself_made_blind(case) -> None:
    job, signal = case
    for policy in ("wait_awhile", "oracle", "dtpr"):
        made = lt.plan(job, signal, policy=policy)
        blind = lt.plan(job, signal, policy=Blind(policy=POLICIES.load(policy)()))
        why = lt.explain(made, job, signal)
        assert why.blind_to_phases == pytest.approx(blind.footprint.carbon_g)
        assert why.total == pytest.approx(made.footprint.carbon_g)


def test_forbidden_windows_hold_for_the_other_choices_too() -> None:
    job, signal = two_halves("anywhere")
    planner = Exact(forbidden=[(3600, 7200), (4 * 3600, 5 * 3600)])
    made = lt.plan(job, signal, policy=planner)
    why = lt.explain(made, job, signal, policy=planner)
    assert why.total == pytest.approx(700)
    # Running at once would run into a window.
    assert why.run_now is None
    assert why.uninterrupted == pytest.approx(700)
    # Stopping and going on at once costs nothing here.
    assert why.one_start_more == pytest.approx(700)
    with pytest.raises(InvalidInput, match="comes to 700, but exact decides for 20: give explain"):
        lt.explain(made, job, signal)


def test_the_rest_of_a_job_is_explained_from_where_it_stands() -> None:
    job, signal = two_halves("anywhere", max_starts=3)
    state = lt.State(now=2 * 3600, progress_s=3600, running=True)
    made = lt.plan(job, signal, state=state)
    why = lt.explain(made, job, signal, state=state)
    assert why.total == pytest.approx(10)
    others = (why.run_now, why.uninterrupted, why.one_start_fewer)
    assert others == pytest.approx((500, 500, 500))
    # An hour of work has one hour to start it in.
    assert why.one_start_more is None
    # The run under way is no start, and stopped at once it does nothing.
    going = lt.State(now=3600, progress_s=1800, running=True)
    made = lt.plan(job, signal, state=going)
    why = lt.explain(made, job, signal, state=going)
    assert [block.work_s for block in why.blocks] == [3600, 1800]
    assert (why.total, why.one_start_fewer) == pytest.approx((15, 260))
    with pytest.raises(InvalidInput, match="state that the plan was made with"):
        lt.explain(made, job, signal)


def test_weights_rent_and_waiting_add_up() -> None:
    job, signal = two_halves("anywhere")
    price = [1, 50, 50, 1, 50, 50, 50, 50]
    price = lt.Signal.from_values(price, start=0, step_s=3600, kind="price", unit="EUR/MWh")
    grid = lt.Grid(average=signal, price=price)
    weights = {"price": 1}
    why = lt.explain(lt.plan(job, grid, weights=weights), job, grid, weights=weights)
    assert (why.total, why.run_now) == pytest.approx((0.002, 0.051))
    assert why.one_start_fewer == why.uninterrupted > why.total
    rent = lt.Signal.from_values([0.01] * 8, start=0, step_s=3600, kind="occupancy")
    planner = Exact(occupancy=rent, wait=0.001)
    made = lt.plan(job, signal, policy=planner)
    why = lt.explain(made, job, signal, policy=planner)
    assert why.rent == pytest.approx(0.01 * 4 * 3600)
    assert why.waiting == pytest.approx(0.001 * 3 * 3600)
    assert why.total == pytest.approx(made.lower_bound)
    parts = sum(block.amount for block in why.blocks) + why.suspended
    assert parts + why.rent + why.waiting == pytest.approx(why.total)


def test_a_blind_plan_that_would_take_too_long_is_missing(case, monkeypatch) -> None:
    job, signal = case
    best = lt.plan(job, signal)
    usual = explain.decide

    def decide(policy, planned, *args, **options):
        if isinstance(policy, Blind):
            raise TooLaborious("would take about 3 min")
        return usual(policy, planned, *args, **options)

    monkeypatch.setattr(explain, "decide", decide)
    why = lt.explain(best, job, signal)
    assert why.blind_to_phases is None
    assert why.total == pytest.approx(best.footprint.carbon_g)
