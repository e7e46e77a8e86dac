"""Queues planned together: bound ≤ optimum ≤ plan, and the machines can run every plan."""

from __future__ import annotations

import os
import re
from dataclasses import replace

import numpy as np
import pytest

import lowtide as lt
from lowtide.accounting import Stretches
from lowtide.errors import (
    Infeasible,
    InvalidInput,
    InvalidJob,
    InvalidSchedule,
    NotCovered,
    TooLaborious,
    UnknownName,
)
from lowtide.grid import DECIDING
from lowtide.job import Resources
from lowtide.market.certificate import certify
from lowtide.market.instance import make_instance
from lowtide.market.lateness import counting, prove_late, require_alone
from lowtide.market.planner import Clock, solve
from lowtide.market.planning import wait_rate
from lowtide.market.prices import Prices
from lowtide.profile import Phase, PowerProfile
from lowtide.signal import Signal
from lowtide.simulator.carrying import Away, carry_out
from lowtide.simulator.simulation import as_workload
from support.nightly import drawn
from support.queues import (
    STEP_S,
    best_together,
    draw_instance,
    draw_job,
    draw_signal,
    every_way,
    use,
)

MANY = 300 if os.environ.get("LOWTIDE_NIGHTLY") else 12
QUICK = {"gap": 1e-9, "effort": 0.02, "clock": Clock(None), "seed": 3}


def draw_plan(rng, count=12, nodes=6, **how):
    jobs = [draw_job(rng, f"j{number}") for number in range(count)]
    cluster = how.pop("cluster", lt.Cluster(nodes=nodes, cpus_per_node=1))
    return lt.plan_cluster(jobs, cluster, draw_signal(rng, 90), effort=0.02, **how)


def plain_job(name, arrival_h, hours, slack_h, *, watts=1000.0, **how):
    return lt.Job(
        id=name,
        arrival=arrival_h * STEP_S,
        deadline=f"+{hours + slack_h}h",
        profile=lt.PowerProfile.constant(watts, f"{hours}h"),
        **how,
    )


def test_the_bound_is_below_the_optimum_and_the_plan_above_it():
    ratios = []
    for seed in range(MANY):
        rng = np.random.default_rng([seed, 1])
        instance = draw_instance(rng, int(rng.integers(4, 9)), int(rng.integers(3, 7)), most=3)
        found = solve(instance, **QUICK)
        optimum = best_together(instance)
        assert found.auction.bound <= optimum + 1e-6 * abs(optimum), seed
        assert found.total >= optimum - 1e-6 * abs(optimum), seed
        # Who is late, as few as can be, is not a matter of what they weigh.
        ratios += [found.total / optimum] * (found.late.size == 0)
    assert len(ratios) >= 4
    assert np.median(ratios) <= 1.0005
    assert np.max(ratios) <= 1.05


def test_as_few_are_late_as_can_be_and_that_is_proven():
    for seed in range(MANY):
        rng = np.random.default_rng([seed, 77])
        count, nodes = int(rng.integers(4, 9)), int(rng.integers(3, 7))
        instance = draw_instance(rng, count, nodes, most=3, real=seed % 3 == 0)
        found = solve(instance, **{**QUICK, "effort": 0.002})
        must = round(best_together(instance, leave=1.0))
        assert found.late.size == must, seed
        if found.proof is not None:
            by_other = certify(counting(instance), found.proof.prices)
            assert by_other == pytest.approx(found.proof.bound, abs=1e-9)
            # What does not lie on slots could be placed between them, so that less is proven.
            assert found.least_late == must or (seed % 3 == 0 and found.least_late < must), seed


def test_what_no_choice_of_jobs_adds_up_to_is_of_no_use():
    for seed in range(max(MANY // 2, 6)):
        rng = np.random.default_rng([seed, 21])
        instance = draw_instance(rng, 5, int(rng.integers(3, 9)), real=bool(seed % 2), widest=4)
        reach = []
        for row in range(len(instance)):
            ways = every_way(instance, row)
            reach.append(sum(use(instance, row, way) for way in ways) > 1e-9)
        for slot in range(instance.slots):
            sums = {0.0}
            for row in range(len(instance)):
                if reach[row][slot]:
                    sums |= {each + instance.jobs.nodes[row] for each in sums}
            most = max(each for each in sums if each <= instance.cluster.nodes)
            assert instance.usable[0, slot] == most


@pytest.mark.parametrize("real", [False, True])
def test_other_code_proves_the_same_bound_for_any_prices(real):
    for seed in range(MANY):
        rng = np.random.default_rng([seed, real, 2])
        instance = draw_instance(rng, 6, 4, real=real)
        found = solve(instance, **QUICK)
        assert certify(instance, found.auction.prices) == pytest.approx(
            found.auction.bound, rel=1e-9
        )
        rent = rng.uniform(0, 300, (1, instance.slots)) * (rng.random(instance.slots) < 0.3)
        other = Prices(rent=rent, power=np.zeros(instance.slots))
        assert certify(instance, other) <= found.total + 1e-6


def test_prices_below_nothing_or_of_another_size_prove_nothing():
    instance = draw_instance(np.random.default_rng(1), 3, 3)
    with pytest.raises(InvalidInput, match="not below 0"):
        Prices(rent=np.full((1, instance.slots), -1.0), power=np.zeros(instance.slots))
    with pytest.raises(InvalidInput, match="not below 0"):
        Prices(rent=np.full((1, instance.slots), np.nan), power=np.zeros(instance.slots))
    with pytest.raises(InvalidInput, match="for each of 1 resources"):
        certify(instance, Prices(rent=np.zeros((1, 2)), power=np.zeros(2)))


def test_the_simulator_carries_out_every_plan_and_comes_to_the_same():
    for seed in range(MANY):
        plan = draw_plan(np.random.default_rng([seed, 3]))
        jobs, late = plan.jobs, {each.row for each in plan.late}
        for row, schedule in enumerate(plan.schedules):
            if row not in late:
                schedule.check(jobs.job(row))
        # Counted by hand, at every instant at which something begins.
        begin, end = plan.simulation.runs
        wide = jobs.nodes[plan.stretches.job]
        for now in begin:
            assert wide[(begin <= now + 1e-6) & (end > now + 1e-5)].sum() <= 6
        one_by_one = sum(
            lt.footprint(schedule, jobs.job(row), plan.simulation.signal).carbon_g
            for row, schedule in enumerate(plan.schedules)
        )
        assert plan.amount == pytest.approx(one_by_one, rel=1e-9)
        if not plan.late:
            waited = float((plan.planned_on.wait * plan.simulation.wait_s).sum())
            assert plan.counted == pytest.approx(one_by_one + waited, rel=1e-9)
            assert plan.lower_bound <= plan.counted * (1 + 1e-9)
            assert plan.lower_bound_g <= plan.amount * (1 + 1e-9)
        assert plan.certify() == pytest.approx(plan.lower_bound, rel=1e-9)


def test_a_plan_that_does_not_fit_is_refused_where_it_first_does_not():
    jobs = lt.Workload.from_jobs([plain_job("a", 0, 2, 6), plain_job("b", 0, 2, 6)])
    cluster = lt.Cluster(nodes=1, cpus_per_node=1)
    both = Stretches.one_each(jobs, np.array([0.0, 2 * STEP_S]))
    assert carry_out(jobs, both, cluster).placed.node.tolist() == [0, 0]
    clash = Stretches.one_each(jobs, np.array([0.0, 1.5 * STEP_S]))
    with pytest.raises(InvalidSchedule, match=r"job b \(row 2\) cannot run at 1970-01-01 01:30"):
        carry_out(jobs, clash, cluster)
    away = [Away(begin=3 * STEP_S, end=4 * STEP_S, nodes=1)]
    with pytest.raises(InvalidSchedule, match="2 nodes would be taken of 1"):
        carry_out(jobs, both, replace(cluster, away=away))
    with pytest.raises(InvalidSchedule, match="above the power cap of 900 W"):
        carry_out(jobs, both, replace(cluster, power_cap_w=None), power_cap=900.0)


def test_the_same_seed_gives_the_same_bytes():
    plans = [draw_plan(np.random.default_rng(9), count=20, nodes=5, gap=0.0) for _ in range(2)]
    for name in ("start", "work_s", "job"):
        first, second = (getattr(plan.stretches, name).tobytes() for plan in plans)
        assert first == second
    assert plans[0].prices.rent.tobytes() == plans[1].prices.rent.tobytes()


def test_how_many_of_jobs_that_are_alike_must_be_late_is_proven():
    alike = [plain_job(str(n), 0, 2, 22) for n in range(16)]
    grid = draw_signal(np.random.default_rng(1), 60)
    two = lt.Cluster(nodes=2, cpus_per_node=1)
    watts = float(alike[0].profile.work[0].power_w)
    caps = lt.Signal.from_values(
        np.tile([2 * watts, watts], 30), start=grid.start, step_s=STEP_S, kind="power"
    )
    # A day has room for 12 of them, one after the other: on one node, or under a cap that leaves
    # one of them alone in every other hour.
    for cluster, cap in ((lt.Cluster(nodes=1, cpus_per_node=1), None), (two, caps)):
        plan = lt.plan_cluster(alike, cluster, grid, effort=0.02, power_cap=cap)
        assert len(plan.late) == plan.least_late == 4
        instance = make_instance(as_workload(alike), cluster, grid, power_cap=cap)
        proof = prove_late(instance)
        assert certify(proof.instance, proof.prices) == pytest.approx(proof.bound, abs=1e-9)
        assert proof.bound == pytest.approx(4)


def test_who_cannot_be_in_time_is_named_with_the_proven_least_number():
    jobs = [plain_job(name, 0, 2, 1) for name in "abcd"]
    grid = draw_signal(np.random.default_rng(1), 40)
    plan = lt.plan_cluster(jobs, lt.Cluster(nodes=1, cpus_per_node=1), grid, effort=0.02)
    # Three hours are enough for one of them.
    assert len(plan.late) == plan.least_late == 3
    assert sorted(each.by_s / STEP_S for each in plan.late) == [1, 3, 5]
    assert "3 jobs late, by 05:00:00 at most; at least 3 must be" in str(plan)
    # Proven of all plans in which nobody is later: here there is no other.
    assert plan.lower_bound_g == pytest.approx(plan.amount, rel=1e-3)
    assert plan.gap_g < 1e-3 and plan.certify() == pytest.approx(plan.lower_bound, rel=1e-9)
    assert "with these jobs as late at most" in str(plan)
    assert "cannot be in time" in plan.why(plan.jobs.id[plan.late[0].row])
    short = grid.window(0, 4 * STEP_S)
    with pytest.raises(Infeasible, match="get a longer signal, take fewer jobs"):
        lt.plan_cluster(jobs, lt.Cluster(nodes=1, cpus_per_node=1), short, effort=0.02)


def test_what_is_proven_of_carbon_is_told_apart_from_what_is_with_waiting():
    for seed in range(max(MANY // 4, 3)):
        rng = np.random.default_rng([seed, 21])
        plan = draw_plan(rng, wait=float(rng.choice([0.0, 0.01, 0.2])))
        other = draw_plan(np.random.default_rng([seed, 21]), wait=0, compare=False)
        if plan.late or other.late:
            continue
        # Its own prices prove about as much as those of a plan that minds no waiting.
        assert plan.lower_bound_g <= other.amount * (1 + 1e-9)
        assert plan.lower_bound_g == pytest.approx(other.lower_bound_g, rel=0.02)
        assert f"within {100 * plan.gap_g:.2f} % of the least" in str(plan)
        assert ("waiting counted" in str(plan)) == plan.minds_waiting
        near = 1 - plan.lower_bound_g / plan.amount
        assert plan.gap_g == pytest.approx(max(near, 0.0), abs=1e-12)


def test_late_jobs_leave_a_bound_on_all_plans_in_which_nobody_is_later():
    for seed in range(max(MANY // 4, 3)):
        rng = np.random.default_rng([seed, 22])
        plan = draw_plan(rng, count=10, nodes=3, wait=0)
        assert plan.lower_bound <= plan.counted * (1 + 1e-9)
        assert plan.lower_bound_g <= plan.amount * (1 + 1e-9)
        assert plan.certify() == pytest.approx(plan.lower_bound, rel=1e-9)


def test_by_default_waiting_costs_as_little_where_little_can_be_saved():
    hour = [plain_job("a", 0, 1, 40)]
    jobs, curve = as_workload(hour), draw_signal(np.random.default_rng(3), 48)
    flatter = replace(curve, values=300.0 + (curve.values - curve.values.mean()) / 10)
    steep, flat = (wait_rate(None, jobs, each)[0] for each in (curve, flatter))
    assert flat == pytest.approx(steep / 10)


def test_one_signal_decides_and_all_are_paid():
    grid = lt.synthetic_grid("sunny", start="2024-07-01T00:00Z", days=3, seed=1)
    jobs = [plain_job(str(n), n % 3, 2, 20) for n in range(8)]
    begin = grid.average.start
    jobs = [
        replace(job, arrival=job.arrival + begin, deadline=job.deadline + begin) for job in jobs
    ]
    few, how = lt.Cluster(nodes=2, cpus_per_node=1), {"wait": 0, "effort": 0.05}
    plans = {by: lt.plan_cluster(jobs, few, grid, decide=by, **how) for by in DECIDING}
    paid = {
        by: {name: ours for name, (ours, _) in plan.paid().items()} for by, plan in plans.items()
    }
    for by, plan in plans.items():
        assert set(paid[by]) == set(DECIDING)
        assert paid[by][by] <= min(other[by] for other in paid.values()) * 1.005
        assert plan.amount == pytest.approx(paid[by][by])
        assert plan.lower_bound_g <= plan.amount * (1 + 1e-9)
    assert grid.price.currency in str(plans["price"])
    with pytest.raises(InvalidInput, match="leave one out"):
        lt.plan_cluster(jobs, few, grid, decide="price", weights={"carbon": 1})


def test_who_made_room_is_told_with_those_who_run_there():
    curve = Signal.from_values([300, 100, 200, 200, 300, 300], start=0, step_s="1h")
    jobs = [plain_job(name, 0, 1, 4, watts=watts) for name, watts in (("a", 2000.0), ("b", 1000.0))]
    plan = lt.plan_cluster(jobs, lt.Cluster(nodes=1, cpus_per_node=1), curve, wait=0, effort=0.05)
    (moved,) = plan.moved()
    assert (moved.id, moved.alone, moved.start, moved.to) == ("b", STEP_S, 2 * STEP_S, ("a",))
    assert moved.more == pytest.approx(100.0)


def test_nobody_waits_for_nothing():
    flat = Signal.from_values(np.full(48, 200.0), start=0, step_s="1h")
    jobs = [plain_job(str(number), number % 5, 2, 20) for number in range(8)]
    plan = lt.plan_cluster(jobs, lt.Cluster(nodes=8, cpus_per_node=1), flat, effort=0.02)
    assert plan.simulation.wait_s.max() == 0.0


def test_nodes_that_are_away_and_a_power_cap_over_time_are_kept_to():
    for seed in range(max(MANY // 4, 3)):
        rng = np.random.default_rng([seed, 4])
        cap = Signal.from_values(rng.integers(2500, 5000, 90), start=0, step_s="1h", kind="power")
        reserved = [(6 * STEP_S, 9 * STEP_S, 3), (8 * STEP_S, 10 * STEP_S, 1)]
        plan = draw_plan(rng, count=8, nodes=7, reserved=reserved, power_cap=cap)
        begin, end = plan.simulation.runs
        wide = plan.jobs.nodes[plan.stretches.job]
        for now, there in ((6.5, 4), (8.5, 3), (9.5, 6)):
            running = (begin < now * STEP_S) & (end > now * STEP_S)
            assert wide[running].sum() <= there
        power = plan.simulation.power
        assert np.all(power.values <= cap.at(np.minimum(power.times, cap.end - 1)) + 1e-3)
        assert plan.lower_bound <= plan.counted * (1 + 1e-9)
        assert plan.certify() == pytest.approx(plan.lower_bound, rel=1e-9)


def test_jobs_that_share_nodes_each_have_one_with_room():
    for seed in range(max(MANY // 2, 6)):
        rng = np.random.default_rng([seed, 5])
        gpus = rng.choice([1, 2, 4, 5, 8], 40)
        jobs = [
            replace(
                draw_job(rng, f"j{number}", widest=1),
                resources=Resources(cpus=int(rng.integers(1, 30)), gpus=int(gpu)),
            )
            for number, gpu in enumerate(gpus)
        ]
        jobs = [replace(each, deadline=each.deadline + 30 * STEP_S) for each in jobs]
        cluster = lt.Cluster(nodes=6, cpus_per_node=64, gpus_per_node=8)
        plan = lt.plan_cluster(jobs, cluster, draw_signal(rng, 90), effort=0.02)
        assert plan.resources == ("cpus", "gpus", "nodes")
        assert not plan.late
        # The simulator has looked at every node; here the sums once more.
        assert np.all(plan.held(resource="gpus") <= 48 + 1e-9)
        assert plan.lower_bound <= plan.counted * (1 + 1e-9)
        assert plan.certify() == pytest.approx(plan.lower_bound, rel=1e-9)


def test_what_is_large_in_one_resource_lies_beside_what_is_large_in_another():
    grid = Signal.from_values([100, 900, 900, 900], start=0, step_s="1h")
    many, few = Resources(cpus=50, gpus=1), Resources(cpus=4, gpus=7)
    jobs = [plain_job("a", 0, 1, 0, resources=many), plain_job("b", 0, 1, 3, resources=few)]
    cluster = lt.Cluster(nodes=1, cpus_per_node=64, gpus_per_node=8)
    plan = lt.plan_cluster(jobs, cluster, grid, effort=0.02, wait=0)
    assert plan.resources == ("cpus", "gpus", "nodes_cpus", "nodes_gpus")
    assert not plan.late and not plan.least_late
    assert plan.amount == plan.lower_bound_g == 200
    # What the room of one is worth to others is told of all that it holds.
    jobs[1] = replace(jobs[1], resources=Resources(cpus=40, gpus=7))
    moved = lt.plan_cluster(jobs, cluster, grid, effort=0.02, wait=0)
    assert moved.amount == pytest.approx(1000)
    assert moved.quote("b").alone == pytest.approx(100)


def test_jobs_that_share_a_node_pay_for_its_being_on_together():
    grid = Signal.from_values([100.0] * 6, start=0, step_s="1h")
    held = (Resources(cpus=40, gpus=1), Resources(cpus=24, gpus=6))
    jobs = [plain_job(f"j{n}", 0, 2, 1, resources=each) for n, each in enumerate(held)]
    on = {"idle_power_w": 500, "off_after_s": 0}
    cluster = lt.Cluster(nodes=2, cpus_per_node=64, gpus_per_node=8, **on)
    plan = lt.plan_cluster(jobs, cluster, grid, effort=0.02, wait=0)
    # Both on one node, at the same time: it is on for two hours.
    assert plan.lower_bound_g <= 500 + 1e-6 and plan.lower_bound_g <= plan.amount


def test_peaks_take_turns_under_a_power_cap():
    phases = [Phase(name=f"at {watts} W", duration_s=3600, power_w=watts) for watts in (800, 150)]
    kw = {"arrival": 0, "deadline": "+3h", "profile": PowerProfile(work=phases)}
    jobs = [lt.Job(id=name, resources=Resources(gpus=1), **kw) for name in "ab"]
    grid = Signal.from_values([100.0] * 6, start=0, step_s="1h")
    for size in ({"gpus_per_node": 4}, {"gpus_per_node": 1}):
        cluster = lt.Cluster(nodes=2, cpus_per_node=8, **size)
        plan = lt.plan_cluster(jobs, cluster, grid, effort=0.02, power_cap=1000.0)
        assert not plan.late and sorted(plan.tally.start) == [0, 3600]
    # The hour in which more may be drawn is long enough for the phase that draws more.
    cap = Signal.from_values([900, 200, 900, 200, 200, 200], start=0, step_s="1h", kind="power")
    plan = lt.plan_cluster(jobs[:1], cluster, grid, effort=0.02, power_cap=cap)
    assert not plan.late
    with pytest.raises(Infeasible, match="room and power for 1 h: that is 1 h too little"):
        low = replace(cap, values=np.where(cap.values > 200, 700, 200))
        lt.plan_cluster(jobs[:1], cluster, grid, effort=0.02, power_cap=low)


def test_a_power_cap_is_kept_though_nodes_boot_and_are_idle():
    kept = 0
    for seed in (9, 13, 18, 52):
        rng = np.random.default_rng([seed, 5, 5])
        jobs = [draw_job(rng, f"j{number}") for number in range(6)]
        size = {"cpus_per_node": 1}
        if seed % 2:
            size["cpus_per_node"] = 4
            cpus = [Resources(cpus=int(rng.integers(1, 4))) for _ in jobs]
            jobs = [replace(job, resources=each) for job, each in zip(jobs, cpus, strict=True)]
        boot_s, off_s = float(rng.choice([0, 300.0])), float(rng.choice([0, 600.0, 4000.0]))
        boot_j = boot_s * float(rng.choice([60.0, 150.0]))
        cluster = lt.Cluster(
            nodes=6,
            idle_power_w=80,
            off_power_w=5,
            off_after_s=off_s,
            boot_s=boot_s,
            boot_j=boot_j,
            **size,
        )
        peak_w = float(lt.Workload.from_jobs(jobs).peak_w.max())
        cap_w = 6 * 5 + peak_w + 3 * 80 + float(rng.integers(50, 700))
        how = {"effort": 0.01, "power_cap": cap_w, "compare": False}
        try:
            plan = lt.plan_cluster(jobs, cluster, draw_signal(rng, 90), **how)
        except Infeasible as error:
            assert "raise it by" in str(error)
            continue
        kept += 1
        # The simulator has looked at every moment; the bound is still that of the whole cap.
        assert plan.certify() == pytest.approx(plan.lower_bound, rel=1e-9)
        assert plan.lower_bound_g <= plan.amount
        assert plan.planned_on.cluster.power_cap_w == cap_w
    assert kept >= 3


def test_stopped_jobs_go_on_holding_what_they_keep():
    grid = Signal.from_values([100, 900, 900, 900, 100, 500, 500, 500], start=0, step_s="1h")
    memory = Resources(cpus=1, memory_bytes=60 * 2**30)
    first = plain_job("a", 0, 2, 3, interruptible="anywhere", resources=memory)
    second = plain_job("b", 1, 2, 2, watts=10, resources=memory)
    cluster = lt.Cluster(nodes=1, cpus_per_node=4, memory_bytes_per_node=100 * 2**30)
    free = lt.plan_cluster([first, second], cluster, grid, effort=0.02, wait=0)
    assert free.tally.starts.tolist() == [2, 1] and not free.late
    kept = lt.plan_cluster([first, second], cluster, grid, effort=0.02, wait=0, keeps=["memory"])
    # Stopped, the first would still be in the second's way.
    assert kept.tally.amount[0] > free.tally.amount[0]
    assert kept.certify() == pytest.approx(kept.lower_bound, rel=1e-9)


def test_what_a_stopped_job_keeps_does_not_lie_on_a_node_that_is_away():
    grid = Signal.from_values([100, 900, 100, 500, 500], start=0, step_s="1h")
    memory = Resources(cpus=1, memory_bytes=60 * 2**30)
    jobs = [plain_job("a", 0, 2, 2, interruptible="anywhere", resources=memory)]
    cluster = lt.Cluster(nodes=1, cpus_per_node=4, memory_bytes_per_node=100 * 2**30)
    cluster = replace(cluster, away=[(3600, 7200, 1)])
    for keeps, starts in (([], [0, 7200]), (["memory"], [7200])):
        plan = lt.plan_cluster(jobs, cluster, grid, effort=0.02, wait=0, keeps=keeps)
        assert plan.stretches.start.tolist() == starts and not plan.late


def test_nodes_that_can_be_switched_off_count():
    rng = np.random.default_rng(8)
    cluster = lt.Cluster(
        nodes=14,
        cpus_per_node=1,
        idle_power_w=100,
        off_power_w=5,
        off_after_s=600,
        boot_s=300,
        boot_j=30_000,
    )
    plan = draw_plan(rng, cluster=cluster)
    spans = plan.simulation.node_spans
    assert plan.lower_bound <= plan.counted * (1 + 1e-9)
    assert plan.lower_bound_g <= plan.amount
    nodes_g = float(
        (spans.power_w * plan.simulation.signal.integral(spans.begin, spans.end)).sum() / 3.6e6
    )
    jobs_g = float(plan.tally.amount.sum())
    assert plan.amount == pytest.approx(jobs_g + nodes_g, rel=1e-9)
    waited = float((plan.planned_on.wait * plan.simulation.wait_s).sum())
    assert plan.counted == pytest.approx(jobs_g + nodes_g + waited, rel=1e-6)
    always = draw_plan(np.random.default_rng(8), cluster=replace(cluster, off_after_s=None))
    assert always.amount > plan.amount
    assert always.lower_bound <= always.counted * (1 + 1e-9)


def test_nobody_pays_for_others_where_easy_shows_that_nobody_has_to():
    shown = 0
    for seed in range(8):
        rng = np.random.default_rng([seed, 6])
        jobs = lt.Workload.from_jobs([draw_job(rng, f"j{n}", plain=True) for n in range(20)])
        jobs = replace(jobs, deadline=jobs.deadline + 12 * STEP_S, user=np.arange(20) % 6)
        cluster = lt.Cluster(nodes=int(rng.integers(5, 9)), cpus_per_node=1)
        plan = lt.plan_cluster(
            jobs, cluster, draw_signal(rng, 90), effort=0.01, wait=0, fair="users"
        )
        if plan.easy.missed.any():
            continue
        shown += 1
        assert not plan.late
        for user, (ours, easy) in plan.users().items():
            assert ours <= easy * (1 + 1e-6), (seed, user)
        assert plan.lower_bound <= plan.counted <= plan.easy.tally.amount.sum() * (1 + 1e-9)
    assert shown >= 3


def test_no_more_are_late_than_under_easy():
    for seed in range(max(MANY // 2, 6)):
        rng = np.random.default_rng([seed, 31])
        plan = draw_plan(rng, count=20, nodes=int(rng.integers(4, 8)))
        assert len(plan.late) <= plan.easy.missed.sum()
        assert plan.least_late <= len(plan.late)
        assert plan.certify() == pytest.approx(plan.lower_bound, rel=1e-9)


def test_fewer_users_pay_for_others():
    paying = {None: 0, "users": 0}
    for seed in range(5):
        rng = np.random.default_rng([seed, 6])
        jobs = lt.Workload.from_jobs([draw_job(rng, f"j{n}", plain=True) for n in range(24)])
        jobs = replace(jobs, deadline=jobs.deadline + 12 * STEP_S, user=np.arange(24) % 6)
        grid, cluster = draw_signal(rng, 90), lt.Cluster(nodes=8, cpus_per_node=1)
        for fair in paying:
            plan = lt.plan_cluster(jobs, cluster, grid, effort=0.01, wait=0, fair=fair)
            worse = [u for u, (ours, easy) in plan.users().items() if ours > easy * (1 + 1e-6)]
            paying[fair] += len(worse)
            assert plan.lower_bound <= plan.counted * (1 + 1e-9)
            assert ("more than under EASY" in str(plan)) == bool(worse)
            # Only where somebody is late there is something that goes before it.
            assert fair is None or plan.late or not worse
    assert paying["users"] < paying[None]


def test_a_mix_of_carbon_and_price_is_what_is_counted():
    rng = np.random.default_rng(3)
    carbon = draw_signal(rng, 40)
    price = Signal.from_values(
        rng.uniform(0.05, 0.4, 40), start=0, step_s="1h", kind="price", unit="EUR/kWh"
    )
    jobs = [draw_job(rng, f"j{number}") for number in range(8)]
    grid, cluster = lt.Grid(average=carbon, price=price), lt.Cluster(nodes=9, cpus_per_node=1)
    weights = {"carbon": 1.0, "price": 500.0}
    plan = lt.plan_cluster(jobs, cluster, grid, weights=weights, effort=0.02, wait=0)
    tally = plan.tally
    assert plan.amount == pytest.approx(tally.carbon_g.sum() + 500 * tally.cost.sum())
    assert plan.lower_bound_g <= plan.amount * (1 + 1e-9)
    money = lt.plan_cluster(jobs, cluster, price, effort=0.02, wait="0.1 EUR/node-h")
    assert "EUR" in str(money)


def test_quotes_say_what_a_job_displaces_and_what_an_hour_more_is_worth():
    grid = Signal.from_values([500, 100, 300, 50, 400, 400], start=0, step_s="1h")
    two = [plain_job("a", 0, 1, 2), plain_job("b", 0, 1, 2)]
    plan = lt.plan_cluster(two, lt.Cluster(nodes=1, cpus_per_node=1), grid, wait=0, effort=0.02)
    quotes = {name: plan.quote(name) for name in "ab"}
    assert sorted(each.amount for each in quotes.values()) == [100.0, 300.0]
    for each in quotes.values():
        assert (each.alone, each.at_once) == pytest.approx((100.0, 500.0))
        # An hour later either could have the cleanest hour, which nobody wants.
        assert each.hour_worth == pytest.approx(250.0, abs=15.0)
    with pytest.raises(UnknownName, match="unknown job 'c'"):
        plan.quote("c")
    with pytest.raises(UnknownName, match="unknown resource 'gpus'"):
        plan.worth("gpus")


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"gap": 2}, "gap is a share"),
        ({"effort": 0}, "effort is more than 0"),
        ({"seconds": 0}, "seconds are more than 0"),
        ({"wait": -1}, "wait is a share"),
        ({"wait": "3 g"}, "known units are g/node-h"),
        ({"wait": "much"}, "wait is a share"),
        ({"step": "50m"}, "slots divide the signal's steps"),
        ({"step": "2h"}, "slots divide the signal's steps"),
        ({"reserved": [(0, 5)]}, "nodes that are not there"),
        ({"reserved": [(0, 3600, 9)]}, "from 1 to 2 nodes may be away"),
        ({"power_cap": 5.0, "cluster": "idle"}, "less than the 200 W .* raise it by 195 W"),
        ({"power_cap": 900.0}, "takes the cluster to 1000 W, above its power cap of 900 W"),
        ({"reserved": [(0, 9000, 2)]}, "for 30 min: that is 30 min too little"),
        ({"keeps": ["disks"]}, "may go on holding"),
        ({"fair": "jobs"}, "fair is 'users'"),
    ],
)
def test_what_cannot_be_is_named_before_computing(wrong, words):
    grid = draw_signal(np.random.default_rng(1), 40)
    cluster = lt.Cluster(nodes=2, cpus_per_node=1)
    if wrong.pop("cluster", None):
        cluster = replace(cluster, idle_power_w=100)
    with pytest.raises(InvalidInput, match=words):
        lt.plan_cluster([plain_job("a", 0, 1, 2)], cluster, grid, **wrong)


def test_who_could_not_be_in_time_alone_is_refused_and_nobody_else():
    """Which is what going through every way to run it on the machines that are there says."""
    refused = 0
    for seed in range(drawn(40, 400)):
        rng = np.random.default_rng([seed, 61])
        away = [
            (float(a) * STEP_S, float(a + rng.integers(1, 7)) * STEP_S, int(rng.integers(1, 4)))
            for a in rng.integers(0, 14, 3)
        ]
        job = replace(
            draw_job(rng, "a", plain=True), interruptible=str(rng.choice(["never", "anywhere"]))
        )
        jobs, grid = lt.Workload.from_jobs([job]), draw_signal(rng, 60)
        cluster = lt.Cluster(nodes=3, cpus_per_node=1, away=away)
        instance = make_instance(jobs, cluster, grid, step_s=STEP_S)
        left = [
            3 - sum(n for a, b, n in away if a <= (slot + 0.5) * STEP_S + instance.origin < b)
            for slot in range(instance.slots)
        ]
        fits = any(
            np.all((use(instance, 0, way) <= 1e-9) | (np.array(left) >= job.resources.nodes))
            for way in every_way(instance, 0)
        )
        try:
            require_alone(instance)
        except Infeasible as error:
            refused += 1
            assert not fits and "too little" in str(error)
        else:
            # Stops and starts that take time may need more than there is in all.
            assert fits or (job.interruptible == "anywhere" and job.profile.restart_s > 0), seed
    assert refused > 2


def test_a_plan_that_would_take_too_long_is_refused_with_a_step_that_would_not():
    job = plain_job("a", 0, 10, 20, interruptible="anywhere")
    cluster, grid = lt.Cluster(nodes=2, cpus_per_node=1), draw_signal(np.random.default_rng(1), 40)
    with pytest.raises(TooLaborious, match=r"take a step of .*--step") as caught:
        lt.plan_cluster([job], cluster, grid, step="1s")
    step = re.search(r"--step (\d+)s", str(caught.value)).group(1)
    assert make_instance(lt.Workload.from_jobs([job]), cluster, grid, step_s=float(step)).slots > 30


def test_who_is_due_after_the_signal_ends_is_named():
    jobs = [plain_job("soon", 0, 1, 2), plain_job("late", 0, 1, 30)]
    grid = Signal.from_values([1.0] * 24, start=0, step_s="1h")
    with pytest.raises(NotCovered, match=r"job late is due last, and the signal .* 7 h too early"):
        lt.plan_cluster(jobs, lt.Cluster(nodes=2, cpus_per_node=1), grid)


def test_jobs_that_fit_nowhere_are_refused_dropped_or_spread():
    grid = draw_signal(np.random.default_rng(1), 40)
    wide = plain_job("wide", 0, 1, 2, resources=Resources(cpus=4))
    jobs, cluster = [wide, plain_job("a", 0, 1, 2)], lt.Cluster(nodes=4, cpus_per_node=2)
    with pytest.raises(InvalidJob, match="asks for 4 CPUs on a node that has 2"):
        lt.plan_cluster(jobs, cluster, grid)
    assert len(lt.plan_cluster(jobs, cluster, grid, oversized="drop", effort=0.02)) == 1
    assert len(lt.plan_cluster(jobs, cluster, grid, oversized="spread", effort=0.02)) == 2


def test_a_plan_that_emits_more_says_so_and_a_cap_that_changes_is_not_minded_by_easy():
    jobs = [plain_job(str(n), 0, 2, 4, watts=1000.0) for n in range(2)]
    grid = Signal.from_values([100.0] * 4 + [400.0] * 8, start=0, step_s="1h")
    two = lt.Cluster(nodes=2, cpus_per_node=1)
    cap = Signal.from_values([1000.0] * 4 + [2000.0] * 8, start=0, step_s="1h", kind="power")
    jobs[1:] = [plain_job("1", 0, 3, 4)]
    plan = lt.plan_cluster(jobs, two, grid, effort=0.02, power_cap=cap)
    assert "60.0 % more than EASY, which minds no cap that changes; nobody late" in str(plan)
    # At all times it does, and there is nobody whose jobs came to more.
    plan = lt.plan_cluster(jobs, two, grid, effort=0.02, power_cap=1000)
    assert plan.easy is not None and plan.easy.missed.sum() == 0
    assert str(plan).endswith("less than EASY; nobody late") and plan.users() == {}


def test_what_is_no_cap_and_what_is_no_seed_is_refused():
    jobs = [plain_job("a", 0, 2, 4)]
    grid = Signal.from_values([100.0] * 12, start=0, step_s="1h")
    one = lt.Cluster(nodes=1, cpus_per_node=1)
    with pytest.raises(InvalidInput, match="a power cap is of kind 'power', in W, not average"):
        lt.plan_cluster(jobs, one, grid, power_cap=grid)
    for seed in (-1, 0.5, True):
        with pytest.raises(InvalidInput, match="a seed is a whole number of at least 0"):
            lt.plan_cluster(jobs, one, grid, seed=seed)
