"""Jobs that wait for others: planned, carried out and simulated in turn."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import lowtide as lt
from lowtide.accounting import Stretches
from lowtide.errors import InvalidInput, InvalidJob, InvalidSchedule, UnknownName
from lowtide.market.certificate import certify
from lowtide.market.instance import make_instance
from lowtide.market.lateness import counting
from lowtide.market.planner import Clock, solve
from lowtide.market.prices import Prices
from lowtide.precedence import broken, links_of, windows
from lowtide.simulator.carrying import carry_out
from lowtide.trace import Trace
from lowtide.workload import Workload
from support.nightly import drawn
from support.queues import STEP_S, best_together, draw_job, draw_signal

MANY = drawn(10, 200)
QUICK = {"gap": 1e-9, "effort": 0.02, "clock": Clock(None), "seed": 3}


def draw_linked(rng, count, *, extra_h=0, share=0.5, **how):
    """Jobs of which some wait for one or two of those before them, in any order of arrival."""
    jobs = [draw_job(rng, f"j{number}", **how) for number in range(count)]
    made = []
    for number, job in enumerate(jobs):
        first = rng.permutation(number)[: rng.integers(1, 3)] if rng.random() < share else ()
        made.append(
            replace(
                job,
                deadline=job.deadline + extra_h * STEP_S,
                after=[f"j{each}" for each in first],
                think_s=float(rng.choice([0.0, 0.0, STEP_S, 1800.0])),
            )
        )
    return in_time(Workload.from_jobs(made))


def in_time(jobs):
    """The same jobs, with deadlines that leave time for those that they wait for."""
    arrival, _ = windows(jobs, links_of(jobs))
    return replace(jobs, deadline=np.maximum(jobs.deadline, arrival + jobs.run_s + 2 * STEP_S))


def broken_by(simulation):
    jobs, tally = simulation.jobs, simulation.tally
    return broken(tally.start, tally.end, links_of(jobs))


def test_the_bound_is_below_the_optimum_and_the_plan_above_it():
    ratios, held = [], 0
    for seed in range(MANY):
        rng = np.random.default_rng([seed, 41])
        jobs = draw_linked(rng, int(rng.integers(4, 8)), most=3)
        cluster = lt.Cluster(nodes=int(rng.integers(4, 9)), cpus_per_node=1)
        instance = make_instance(
            jobs, cluster, draw_signal(rng, 60), step_s=STEP_S, wait=float(rng.choice([0, 0.002]))
        )
        found, optimum = solve(instance, **QUICK), best_together(instance)
        assert found.auction.bound <= optimum + 1e-6 * abs(optimum), seed
        assert found.total >= optimum - 1e-6 * abs(optimum), seed
        held += instance.links.before.size
        if not found.late.size:
            ratios.append(found.total / optimum)
            start, end = instance.begins_and_ends(found.board.delay, found.board.placed)
            gap = instance.links.gap_s / STEP_S
            assert np.all(end[instance.links.before] + gap <= start[instance.links.after] + 1e-7)
    assert held > MANY and len(ratios) >= MANY // 2
    assert np.median(ratios) <= 1.001


def test_prices_of_links_prove_more_than_windows_alone():
    """One dirty hour between two clean ones: who waits for another cannot have the first."""
    grid = lt.Signal.from_values([100, 500, 100, 500, 500, 500], start=0, step_s="1h")
    hour = lt.PowerProfile.constant(1000, "1h")
    jobs = [
        lt.Job(id="a", arrival=0, deadline="+4h", profile=hour),
        lt.Job(id="b", arrival=0, deadline="+4h", profile=hour, after=["a"], think_s="30m"),
    ]
    plan = lt.plan_cluster(jobs, lt.Cluster(nodes=2, cpus_per_node=1), grid, wait=0, effort=0.05)
    assert plan.amount == pytest.approx(200.0)
    dear = lt.Signal.from_values([100, 500, 500, 500], start=0, step_s="1h")
    jobs[1] = replace(jobs[1], think_s=0.0)
    plan = lt.plan_cluster(jobs, lt.Cluster(nodes=2, cpus_per_node=1), dear, wait=0, effort=0.05)
    assert plan.amount == pytest.approx(600.0)
    # By windows b cannot be in the clean hour, and nothing else is left to prove.
    assert plan.lower_bound_g == pytest.approx(600.0)
    late = lt.Signal.from_values([500, 500, 100, 500, 500, 500], start=0, step_s="1h")
    plan = lt.plan_cluster(jobs, lt.Cluster(nodes=2, cpus_per_node=1), late, wait=0, effort=0.05)
    assert plan.amount == pytest.approx(600.0)
    # Both could have the clean hour by their windows: 200 g without a price of the link.
    assert plan.lower_bound_g > 598.0
    assert plan.certify() == pytest.approx(plan.lower_bound, rel=1e-9)


@pytest.mark.parametrize("real", [False, True])
def test_other_code_proves_the_same_bound_for_any_prices(real):
    for seed in range(MANY):
        rng = np.random.default_rng([seed, real, 42])
        jobs = draw_linked(rng, 6, real=real)
        cluster = lt.Cluster(nodes=4, cpus_per_node=1)
        instance = make_instance(jobs, cluster, draw_signal(rng, 60), step_s=STEP_S)
        found = solve(instance, **QUICK)
        assert certify(instance, found.auction.prices) == pytest.approx(
            found.auction.bound, rel=1e-9
        )
        other = Prices(
            rent=rng.uniform(0, 300, instance.capacity.shape),
            power=np.zeros(instance.slots),
            bonds=rng.uniform(0, 50, (instance.links.before.size, instance.slots)),
        )
        assert certify(instance, other) <= found.total + 1e-6
        if found.proof is not None:
            by_other = certify(counting(instance), found.proof.prices)
            assert by_other == pytest.approx(found.proof.bound, abs=1e-9)


def test_plans_and_every_policy_keep_jobs_in_turn():
    for seed in range(max(MANY // 3, 3)):
        rng = np.random.default_rng([seed, 43])
        jobs, grid = draw_linked(rng, 14, extra_h=8, share=0.7), draw_signal(rng, 150)
        cluster = lt.Cluster(nodes=6, cpus_per_node=1)
        plan = lt.plan_cluster(jobs, cluster, grid, effort=0.02)
        assert links_of(plan.jobs).before.size > 4
        assert not broken_by(plan.simulation).any()
        assert not broken_by(plan.easy).any()
        assert plan.lower_bound <= plan.counted * (1 + 1e-9)
        assert plan.certify() == pytest.approx(plan.lower_bound, rel=1e-9)
        for policy in ("run_now", "oracle", "exact", "booking", "booked", "cluster_plan"):
            for machines in (None, cluster):
                queue = {} if machines is None else {"discipline": "easy"}
                if machines is None and policy in ("booking", "booked", "cluster_plan"):
                    continue
                ran = lt.simulate(
                    jobs, grid, policy=policy, cluster=machines, baseline=None, **queue
                )
                assert not broken_by(ran).any(), (seed, policy)
                if machines is None:
                    assert not ran.missed.any()


def test_jobs_that_share_nodes_wait_for_others_too():
    for seed in range(3):
        rng = np.random.default_rng([seed, 44])
        jobs = draw_linked(rng, 16, extra_h=20, widest=1)
        jobs = replace(jobs, cpus=rng.integers(1, 30, len(jobs)))
        plan = lt.plan_cluster(
            jobs, lt.Cluster(nodes=2, cpus_per_node=64), draw_signal(rng, 150), effort=0.02
        )
        assert not broken_by(plan.simulation).any()


def test_a_start_before_its_turn_is_refused():
    hour = lt.PowerProfile.constant(1000, "1h")
    a = lt.Job(id="a", arrival=0, deadline="+9h", profile=hour)
    b = replace(a, id="b", after=["a"], think_s="30m")
    jobs = Workload.from_jobs([a, b])
    cluster = lt.Cluster(nodes=2, cpus_per_node=1)
    carry_out(jobs, Stretches.one_each(jobs, np.array([0.0, 1.5 * STEP_S])), cluster)
    with pytest.raises(InvalidSchedule, match=r"job b \(row 2\).*waits for job a until .* 01:30"):
        carry_out(jobs, Stretches.one_each(jobs, np.array([0.0, 1.4 * STEP_S])), cluster)


def test_what_cannot_be_is_named_before_computing():
    hour = lt.PowerProfile.constant(1000, "1h")
    a = lt.Job(id="a", arrival=0, deadline="+2h", profile=hour, after=["b"])
    b = replace(a, id="b", after=["c"])
    c = replace(a, id="c", after=["a"])
    grid, cluster = draw_signal(np.random.default_rng(1)), lt.Cluster(nodes=2, cpus_per_node=1)
    with pytest.raises(InvalidJob, match=r"3 jobs wait for each other in a circle \(.*, .*, .*\)"):
        lt.plan_cluster([a, b, c, replace(a, id="d", after=["c"])], cluster, grid)
    with pytest.raises(InvalidJob, match=r"job a \(row 1\) waits for b.*by 1(\.0)? h"):
        lt.plan_cluster([a, b, replace(c, after=[])], cluster, grid)
    with pytest.raises(InvalidJob, match="waits for b"):
        lt.simulate([a, b, replace(c, after=[])], grid)
    with pytest.raises(UnknownName, match="unknown job that a waits for 'b'"):
        lt.plan_cluster([a], cluster, grid)
    with pytest.raises(InvalidJob, match="waits for itself"):
        replace(a, after=["a"])
    two = [replace(a, after=[]), replace(a, after=[]), replace(b, after=["a"])]
    with pytest.raises(InvalidJob, match="rows 1 and 2 are both called a"):
        lt.plan_cluster(two, cluster, grid)
    longer = [replace(each, deadline="+9h", interruptible="anywhere") for each in (b, c)]
    with pytest.raises(InvalidInput, match="round_robin knows of no jobs that wait"):
        lt.simulate(
            [replace(longer[0]), replace(longer[1], after=[])],
            grid,
            cluster=cluster,
            discipline="round_robin",
        )


def test_a_trace_says_whom_a_job_waits_for(tmp_path):
    path = tmp_path / "few.swf"
    lines = [
        "1 0 -1 3600 1 -1 -1 1 3600 -1 1 1 1 -1 -1 -1 -1 -1",
        "2 10 -1 60 1 -1 -1 1 60 -1 1 1 1 -1 -1 -1 1 300",
        "3 20 -1 60 1 -1 -1 1 60 -1 1 1 1 -1 -1 -1 99 300",
    ]
    path.write_text("; Version: 2.2\n" + "\n".join(lines) + "\n")
    trace = lt.read_jobs(path)
    assert not Workload.from_trace(trace, wait="1d").has_links
    jobs = Workload.from_trace(trace, wait="1d", dependencies=True)
    grid = draw_signal(np.random.default_rng(1))
    ran = lt.simulate(jobs, grid, cluster=lt.Cluster(nodes=3, cpus_per_node=1), baseline=None)
    assert ran.tally.start.tolist() == [0, 3900, 20]


def test_a_trace_names_those_that_come_before() -> None:
    columns = {
        "id": ["a", "b", "c"],
        "arrival": [0.0, 0.0, 0.0],
        "length_s": [60.0] * 3,
        "cpus": [1.0] * 3,
        "power_w": [100.0] * 3,
        "after": [None, "a", "a b"],
    }
    jobs = Workload.from_trace(Trace(columns=columns), wait="1h", dependencies=True)
    assert jobs.after.tolist() == [None, ("a",), ("a", "b")]
    # Who is named in `after` is waited for unless it is said that nobody is.
    assert Workload.from_trace(Trace(columns=columns), wait="1h").after.tolist() == [
        *jobs.after.tolist()
    ]
    alone = Workload.from_trace(Trace(columns=columns), wait="1h", dependencies=False)
    assert not alone.has_links
