"""Bounds for plans at any moment, against ever finer slots; and prices of a smaller likeness."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import lowtide as lt
from lowtide.market.any_moment import bound_at_any_moment
from lowtide.market.certificate import certify
from lowtide.market.instance import make_instance
from lowtide.market.likeness import first_prices
from lowtide.market.prices import Auction, Prices
from lowtide.signal import Signal
from support.nightly import drawn
from support.queues import draw_instance, draw_job, draw_signal

QUARTER_S = 900.0


def on_finer_slots(instance, prices, parts):
    """Return what the same prices prove of plans on slots that are so many times as short."""
    fine = make_instance(
        instance.jobs,
        instance.cluster,
        instance.signal,
        step_s=instance.step_s / parts,
        wait=instance.wait,
        begin=instance.origin,
    )
    rent = np.repeat(prices.rent, parts, axis=1)[:, : fine.slots] / parts
    finer = Prices(rent=np.ascontiguousarray(rent), power=np.zeros(fine.slots))
    # Which sums jobs add up to is not asked at any moment.
    return certify(fine, finer) + float((finer.rent * (fine.usable - fine.capacity)).sum())


def draw_prices(rng, instance):
    rent = rng.uniform(0, 20, (1, instance.slots)) * (rng.random(instance.slots) < 0.5)
    return Prices(rent=rent, power=np.zeros(instance.slots))


def test_no_plan_on_finer_slots_comes_to_less_than_the_bound_for_any_moment():
    for seed in range(drawn(12, 300)):
        rng = np.random.default_rng([seed, 51])
        instance = draw_instance(rng, 4, 4, real=True, step_s=QUARTER_S)
        prices = draw_prices(rng, instance)
        bound = bound_at_any_moment(instance, prices)
        for parts in (1, 5):
            other = on_finer_slots(instance, prices, parts)
            assert bound <= other + 1e-9 * abs(other), (seed, parts)


def test_of_jobs_that_are_never_stopped_it_is_what_ever_finer_slots_come_to():
    for seed in range(drawn(4, 60)):
        rng = np.random.default_rng([seed, 52])
        jobs = [replace(draw_job(rng, "a", real=True, plain=True), interruptible="never")]
        instance = make_instance(
            lt.Workload.from_jobs(jobs),
            lt.Cluster(nodes=4, cpus_per_node=1),
            draw_signal(rng),
            step_s=QUARTER_S,
        )
        prices = draw_prices(rng, instance)
        bound, worth = bound_at_any_moment(instance, prices), float(prices.rent.sum() * 4)
        least = on_finer_slots(instance, prices, 60) + worth
        # A quarter of a minute of the dearest hour is the most that slots of it lose.
        assert bound + worth == pytest.approx(least, rel=0.02)


def test_where_all_lies_on_slots_nothing_is_lost_by_them():
    rng = np.random.default_rng(3)
    jobs = [
        replace(draw_job(rng, str(number), plain=True), interruptible="never")
        for number in range(8)
    ]
    grid, cluster = draw_signal(rng, 90), lt.Cluster(nodes=5, cpus_per_node=1)
    plan = lt.plan_cluster(jobs, cluster, grid, wait=0, effort=0.02)
    assert plan.lossless and plan.any_moment_bound_g == plan.lower_bound_g
    free = bound_at_any_moment(plan.planned_on, plan.prices, waiting=False)
    worth = float((plan.prices.rent * (plan.planned_on.capacity - plan.planned_on.usable)).sum())
    assert free + worth == pytest.approx(plan.lower_bound_g, rel=1e-9)


def test_a_plan_of_real_lengths_is_proven_for_any_moment_and_carried_out():
    rng = np.random.default_rng(8)
    jobs = [draw_job(rng, f"j{number}", real=True, plain=True) for number in range(30)]
    grid, cluster = draw_signal(rng, 90), lt.Cluster(nodes=60, cpus_per_node=1)
    coarse, fine = (
        lt.plan_cluster(jobs, cluster, grid, wait=0, step=step, effort=0.05)
        for step in ("20m", "2m")
    )
    assert not fine.lossless and not fine.late
    assert fine.any_moment_bound_g <= fine.lower_bound_g <= fine.amount
    assert coarse.any_moment_bound_g <= fine.any_moment_bound_g * (1 + 1e-9)
    # With room for all the bound is that of each job alone.
    alone = sum(lt.plan(job, grid).footprint.carbon_g for job in jobs)
    assert fine.any_moment_bound_g <= alone * (1 + 1e-9)
    assert fine.any_moment_bound_g == pytest.approx(alone, rel=0.02)


def test_where_a_kwh_may_cost_less_than_nothing_no_such_bound_is_told():
    rng = np.random.default_rng(5)
    jobs = [draw_job(rng, "a", real=True, plain=True)]
    values = rng.uniform(-50, 90, 90)
    price = Signal.from_values(values, start=0, step_s="1h", kind="price", unit="EUR/MWh")
    plan = lt.plan_cluster(jobs, lt.Cluster(nodes=9, cpus_per_node=1), price, effort=0.02)
    assert plan.any_moment_bound_g is None


@pytest.mark.parametrize("step_s", [3600.0, 1200.0])
def test_prices_of_a_likeness_are_a_better_start_than_none(step_s):
    rng = np.random.default_rng(6)
    count, grid = 2100, draw_signal(rng, 90)
    arrival = np.sort(rng.integers(0, 40 * 3, count)) * 1200.0
    work_s = rng.integers(1, 12, count) * 1200.0
    jobs = lt.Workload(
        arrival=arrival,
        deadline=arrival + work_s + rng.integers(0, 30, count) * 1200.0,
        work_s=work_s,
        power=rng.uniform(100, 900, count),
        interruptible=rng.integers(0, 2, count),
    )
    instance = make_instance(jobs, lt.Cluster(nodes=160, cpus_per_node=1), grid, step_s=step_s)
    prices = first_prices(instance, lambda: False)
    assert prices is not None and prices.rent.shape == instance.capacity.shape
    assert prices.rent.any()
    started, plain = Auction(instance), Auction(instance)
    started.begin_with(prices)
    started.advance()
    for _ in range(5):
        plain.advance()
    assert started.bound > plain.bound
    assert first_prices(instance, lambda: True) is None
