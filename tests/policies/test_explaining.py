"""What an explanation says adds up and agrees with planning under other rules."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import lowtide as lt


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
