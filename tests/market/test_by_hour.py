"""Jobs that change their width by the hour: bound ≤ optimum ≤ plan, and plans are carried out."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest
from scipy.optimize import linprog

import lowtide as lt
from lowtide.errors import InvalidInput
from lowtide.job import Resources
from lowtide.market import plan_elastic
from lowtide.market.elastic import Widening, changes_width, find_prices, layers_of
from lowtide.market.instance import make_instance
from lowtide.market.prices import Prices
from lowtide.signal import Signal
from support.nightly import drawn
from support.queues import STEP_S, best_together, draw_job, draw_signal

MANY = drawn(6, 100)
CURVE = {2.0: 1.9, 4.0: 3.4}


def plain_job(rng, name, **how):
    nodes = int(rng.integers(1, 3))
    arrival, hours = float(rng.integers(0, 8)), float(rng.integers(1, 6))
    return lt.Job(
        id=name,
        arrival=arrival * STEP_S,
        deadline=(arrival + hours + rng.integers(0, 10)) * STEP_S,
        profile=lt.PowerProfile.constant(float(rng.integers(200, 900)), f"{hours}h"),
        interruptible="anywhere",
        resources=Resources(cpus=nodes, nodes=nodes),
        **how,
    )


def fluid(instance, curve):
    """The least that jobs can come to if any part of a node can be had, as a linear programme."""
    layers, jobs, slots = layers_of(curve), instance.jobs, instance.slots
    energy = np.diff(instance.energy)[:slots]
    costs, use, work, most = [], [], [], []
    for row in range(len(jobs)):
        job = jobs.job(row)
        for slot in range(slots):
            begin = max(instance.edges[slot], job.arrival)
            share = (min(instance.edges[slot + 1], job.deadline) - begin) / instance.step_s
            wide = np.cumsum([layer.width for layer in layers]) * jobs.nodes[row]
            for layer, nodes in zip(layers, wide, strict=True):
                # Nobody is wider than all that there is.
                if share <= 1e-9 or nodes > instance.cluster.nodes:
                    continue
                costs.append(jobs.peak_w[row] / 1000 * layer.width * energy[slot])
                use.append((slot, layer.width * jobs.nodes[row]))
                work.append((row, layer.gain))
                most.append(share)
    capacity, does = np.zeros((slots, len(costs))), np.zeros((len(jobs), len(costs)))
    for column, ((slot, amount), (row, gain)) in enumerate(zip(use, work, strict=True)):
        capacity[slot, column], does[row, column] = amount, gain
    solved = linprog(
        costs,
        A_ub=capacity,
        b_ub=instance.capacity[0],
        A_eq=does,
        b_eq=jobs.work_s / instance.step_s,
        bounds=list(zip([0.0] * len(most), most, strict=True)),
    )
    return float(solved.fun) if solved.success else None


def test_the_bound_is_near_the_linear_optimum_and_never_above_it():
    near = []
    for seed in range(MANY):
        rng = np.random.default_rng([seed, 81])
        jobs = lt.Workload.from_jobs([plain_job(rng, f"j{n}") for n in range(8)])
        cluster = lt.Cluster(nodes=int(rng.integers(6, 12)), cpus_per_node=1)
        instance = make_instance(jobs, cluster, draw_signal(rng), step_s=STEP_S)
        instance = replace(instance, splits=True)
        best = fluid(instance, CURVE)
        auction, widening = find_prices(instance, layers_of(CURVE), lambda: False)
        by_other = widening.bound(auction.prices) - auction.prices.worth(instance)
        assert by_other == pytest.approx(auction.bound, rel=1e-9)
        rent = rng.uniform(0, 300, (1, instance.slots)) * (rng.random(instance.slots) < 0.3)
        other = Prices(rent=rent, power=np.zeros(instance.slots))
        notes = np.zeros((2, instance.slots + 2))
        least = widening.least(other, notes)
        assert least == pytest.approx(widening.bound(other), rel=1e-9)
        if best is not None:
            assert least - other.worth(instance) <= best + 1e-6
            assert auction.bound <= best * (1 + 1e-9)
            near.append(auction.bound / best)
    assert len(near) >= MANY // 2
    assert min(near) > 0.995 and np.median(near) > 0.999


def test_one_job_alone_has_the_widths_that_going_through_all_finds():
    for seed in range(MANY):
        rng = np.random.default_rng([seed, 82])
        values = rng.integers(50, 500, 5)
        job = lt.Job(
            id="a",
            arrival=0,
            deadline="+5h",
            profile=lt.PowerProfile.constant(1000, "3h"),
            interruptible="anywhere",
        )
        # In whole hours, at whole speeds: nothing is left over.
        speeds = {0: 0, 1: 1, 2: 2, 3: 3}
        best = min(
            sum(w * v for w, v in zip(ways, values, strict=True))
            for ways in itertools.product(range(4), repeat=5)
            if sum(speeds[w] for w in ways) == 3
        )
        grid = Signal.from_values(values, start=0, step_s="1h")
        cluster = lt.Cluster(nodes=3, cpus_per_node=1)
        plan = plan_elastic([job], cluster, grid, elastic={2: 2, 3: 3}, wait=0, effort=0.05)
        assert plan.amount == pytest.approx(best) == pytest.approx(plan.lower_bound_g, rel=1e-3)


def test_carried_out_all_work_is_done_in_time_on_nodes_that_there_are():
    better = 0
    for seed in range(MANY):
        rng = np.random.default_rng([seed, 83])
        jobs = [plain_job(rng, f"e{n}") for n in range(12)]
        jobs += [draw_job(rng, f"r{n}", plain=True) for n in range(4)]
        grid, cluster = draw_signal(rng, 90), lt.Cluster(nodes=16, cpus_per_node=1)
        plan = plan_elastic(jobs, cluster, grid, elastic=CURVE, wait=0, effort=0.02)
        assert plan.certify() == pytest.approx(plan.lower_bound_g, rel=1e-9)
        rigid = lt.plan_cluster(jobs, cluster, grid, wait=0, effort=0.02)
        if plan.late.size or rigid.late:
            continue
        assert plan.lower_bound_g <= plan.amount * (1 + 1e-9)
        assert plan.lower_bound_g <= rigid.amount * (1 + 1e-9)
        better += plan.amount < rigid.amount * (1 - 1e-6)
        spans = plan.spans()
        held = np.zeros(90 * 60)
        for row, job in enumerate(plan.jobs.job(row) for row in range(len(plan))):
            assert spans["start"][row] >= job.arrival - 1e-6
            assert spans["end"][row] <= job.deadline + 1e-3
            nodes = plan.nodes_of(job)
            minutes = nodes.at(np.arange(90 * 60) * 60.0 + 30.0)
            held += minutes
            if row in plan.changing:
                # What it had over time, by the curve, is all of its work.
                wide = np.array([0.0, 1.0, 2.0, 4.0])
                speed = np.interp(nodes.values / job.resources.nodes, wide, [0, 1, 1.9, 3.4])
                did_s = float((speed[:-1] * np.diff(nodes.times)).sum())
                assert did_s >= job.profile.work_s * (1 - 1e-6)
        assert held.max() <= 16
    assert better


def test_who_cannot_change_its_width_keeps_it():
    rng = np.random.default_rng(5)
    job = plain_job(rng, "a")
    others = [
        replace(job, id="b", interruptible="never"),
        replace(job, id="c", max_starts=2),
        replace(job, id="d", after=["a"], deadline=job.deadline + 20 * STEP_S),
        replace(job, id="e", profile=replace(job.profile, suspended_power_w=5.0)),
    ]
    jobs = lt.Workload.from_jobs([replace(job, id="z"), job, *others])
    assert jobs.id[changes_width(jobs)].tolist() == ["z"]
    whole = replace(jobs, nodes=np.full(len(jobs), 3.0), cpus=np.full(len(jobs), 3.0))
    instance = make_instance(whole, lt.Cluster(nodes=9, cpus_per_node=1), draw_signal(rng))
    assert not Widening.of(instance, layers_of({0.5: 0.6})).rows.size
    assert Widening.of(instance, layers_of({2.0: 1.5})).rows.size == 1


def test_a_queue_in_which_nobody_can_change_is_planned_as_it_is():
    rng = np.random.default_rng(5)
    job, grid = plain_job(rng, "a"), draw_signal(rng)
    rigid = replace(job, interruptible="never")
    # Nobody has half a node.
    narrow = replace(job, resources=Resources(cpus=1, nodes=1))
    for each, curve in ((rigid, CURVE), (narrow, {0.5: 0.6})):
        plan = plan_elastic([each], lt.Cluster(nodes=4, cpus_per_node=1), grid, elastic=curve)
        assert plan.lower_bound_g <= plan.amount * (1 + 1e-9)
        assert not plan.late.size and not plan.hours_at()


def test_one_width_for_each_is_never_better_than_the_bound():
    for seed in range(max(MANY // 2, 3)):
        rng = np.random.default_rng([seed, 84])
        jobs = [plain_job(rng, f"j{n}") for n in range(5)]
        instance = make_instance(
            lt.Workload.from_jobs(jobs),
            lt.Cluster(nodes=5, cpus_per_node=1),
            draw_signal(rng),
            step_s=STEP_S,
        )
        auction, _ = find_prices(replace(instance, splits=True), layers_of(CURVE), lambda: False)
        assert auction.bound <= best_together(instance) * (1 + 1e-9)


def test_what_cannot_be_is_named():
    rng = np.random.default_rng(1)
    job, grid = plain_job(rng, "a"), draw_signal(rng)
    cluster = lt.Cluster(nodes=4, cpus_per_node=1)
    with pytest.raises(InvalidInput, match="each further node helps less than the one before"):
        plan_elastic([job], cluster, grid, elastic={2: 1.2, 3: 2.9})
    shared = replace(job, resources=Resources(cpus=1))
    with pytest.raises(InvalidInput, match="on nodes that jobs do not share"):
        plan_elastic([shared], replace(cluster, cpus_per_node=8), grid, elastic=CURVE)
    with pytest.raises(InvalidInput, match="elastic is a number of at least 0, not -1"):
        plan_elastic([job], cluster, grid, elastic={-1: 2})
