"""Nodes that come and go: counted by hand, against schedulers of other clusters, and refused."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

import lowtide as lt
from lowtide.errors import InvalidInput, InvalidSchedule
from lowtide.job import Resources
from lowtide.market.booking import Booked, Booking
from lowtide.market.rolling import ClusterPolicy
from lowtide.signal import Signal
from lowtide.simulator.carrying import carry_out
from lowtide.simulator.outages import Away, Failures, Gone, apart, below
from support.nightly import drawn
from support.queues import STEP_S, draw_job, draw_signal

HOUR = 3600.0


def draw_queue(rng, count=20, *, shared=False, **how):
    jobs = [draw_job(rng, f"j{number}", plain=True, **how) for number in range(count)]
    if shared:
        jobs = [
            replace(job, resources=Resources(cpus=int(rng.integers(1, 4)), nodes=1)) for job in jobs
        ]
    made = lt.Workload.from_jobs(jobs)
    shift = np.sort(rng.integers(0, 40, count)) * STEP_S
    return replace(made, arrival=made.arrival + shift, deadline=made.deadline + shift + 8 * STEP_S)


def draw_away(rng, nodes, count=4):
    first = rng.integers(0, 60, count)
    return [
        (float(a) * STEP_S, float(a + rng.integers(1, 9)) * STEP_S, int(rng.integers(1, nodes)))
        for a in first
    ]


def held_at(ran, when):
    """How many nodes are held at an instant, counted run by run."""
    begin, end = ran.runs
    wide = ran.jobs.nodes[ran.stretches.job]
    return float(wide[(begin <= when) & (end > when + 1e-5)].sum())


def test_spans_that_overlap_add_up_and_no_more_are_away_than_there_are():
    for seed in range(20):
        rng = np.random.default_rng(seed)
        away = [Away(*each) for each in draw_away(rng, 6, 6)]
        spans = apart(away, 5)
        gone = Gone(spans)
        for when in rng.uniform(-HOUR, 80 * HOUR, 40):
            many = min(sum(each.nodes for each in away if each.begin <= when < each.end), 5)
            assert sum(each.nodes for each in spans if each.begin <= when < each.end) == many
            assert gone.most(when, when) == many
        a, b = np.sort(rng.uniform(0, 80 * HOUR, 2))
        moments = [a, *(each.begin for each in spans if a <= each.begin < b)]
        most = max(
            sum(each.nodes for each in spans if each.begin <= when < each.end) for when in moments
        )
        assert gone.most(a, b) == most


@pytest.mark.parametrize("discipline", ["fifo", "easy", "priority"])
def test_nobody_runs_on_nodes_that_are_away(discipline):
    waited = 0
    for seed in range(drawn(6, 100)):
        rng = np.random.default_rng([seed, 3])
        jobs, grid = draw_queue(rng), draw_signal(rng, 400)
        plain = lt.Cluster(nodes=6, cpus_per_node=1)
        cluster = replace(plain, away=draw_away(rng, 6))
        # What ran is laid on nodes by other code, which refuses what is not there.
        ran = lt.simulate(jobs, grid, cluster=cluster, discipline=discipline, baseline=None)
        for each in cluster.gone():
            for when in np.linspace(each.begin, each.end, 5)[:-1]:
                assert held_at(ran, when) <= 6 - each.nodes
        other = lt.simulate(jobs, grid, cluster=plain, discipline=discipline, baseline=None)
        waited += ran.tally.end.max() > other.tally.end.max() + 1
    assert waited


def test_easy_fills_the_time_before_nodes_go_with_those_that_are_done_by_then():
    jobs = lt.Workload(
        id=["long", "short"],
        arrival=[0, 0],
        deadline=1e6,
        work_s=[6 * HOUR, 2 * HOUR],
        nodes=2,
        cpus=2,
    )
    cluster = lt.Cluster(nodes=2, cpus_per_node=1, away=[(3 * HOUR, 5 * HOUR, 1)])
    grid = Signal.from_values(np.ones(300), start=0, step_s="1h")
    for name, starts in (("easy", [5 * HOUR, 0.0]), ("fifo", [5 * HOUR, 11 * HOUR])):
        ran = lt.simulate(jobs, grid, cluster=cluster, discipline=name, baseline=None)
        assert ran.tally.start.tolist() == starts


@pytest.mark.parametrize("discipline", ["fifo", "easy"])
def test_nobody_is_started_on_a_node_that_wakes_too_late_before_it_goes(discipline):
    jobs = lt.Workload(arrival=[2 * HOUR - 300], deadline=1e6, work_s=HOUR)
    sleeping = {"idle_power_w": 80, "off_after_s": 0, "boot_s": 600, "boot_j": 6e4}
    cluster = lt.Cluster(nodes=1, cpus_per_node=1, away=[(3 * HOUR, 4 * HOUR, 1)], **sleeping)
    grid = Signal.from_values(np.ones(300), start=0, step_s="1h")
    ran = lt.simulate(jobs, grid, cluster=cluster, discipline=discipline, baseline=None)
    # On at once it would be over by then; it boots for ten minutes first.
    assert ran.tally.start[0] >= 4 * HOUR


def test_capacity_follows_a_signal_in_plans_and_in_queues():
    few = Signal.from_values([2, 2, 1, 0.5, 2, 9], start=0, step_s="1h", kind="nodes")
    assert below(few, 2) == (Away(2 * HOUR, 3 * HOUR, 1), Away(3 * HOUR, 4 * HOUR, 2))
    grid = Signal.from_values([9, 9, 1, 1, 5, 5, 9, 9], start=0, step_s="1h")
    cluster = lt.Cluster(nodes=2, cpus_per_node=1, capacity=few)
    jobs = lt.Workload(arrival=[0, 0, 0], deadline=6 * HOUR, work_s=HOUR, power=1000)
    plan = lt.plan_cluster(jobs, cluster, grid, wait=0, gap=0)
    # One in the clean hour with one node, none where there is half a node, two after that.
    assert sorted(plan.tally.start / HOUR) == [2, 4, 4] and plan.gap < 1e-3
    assert plan.capacity("nodes").tolist() == [2, 2, 1, 0, 2, 2]
    assert plan.easy.tally.start.max() <= HOUR
    for policy in (ClusterPolicy(wait=0), Booking(), Booked(start="oracle")):
        ran = lt.simulate(jobs, grid, policy=policy, cluster=cluster, baseline=None)
        assert sorted(ran.tally.start / HOUR) == [2, 4, 4], policy


@pytest.mark.parametrize("shared", [False, True])
def test_nodes_break_down_and_what_was_not_saved_is_lost(shared):
    lost = kept = 0
    for seed in range(drawn(6, 80)):
        rng = np.random.default_rng([seed, 7])
        jobs, grid = draw_queue(rng, shared=shared), draw_signal(rng, 3000)
        cluster = lt.Cluster(
            nodes=6,
            cpus_per_node=4 if shared else 1,
            failures=Failures(every_s=20 * HOUR, repair_s=3 * HOUR, seed=seed),
        )
        for policy in ("run_now", ClusterPolicy(effort=0.02)):
            ran = lt.simulate(
                jobs,
                grid,
                policy=policy,
                cluster=cluster,
                discipline="easy",
                baseline=None,
                repeat_signal=True,
            )
            runs = ran.stretches
            # All work is done, once; what was lost is paid for beside it.
            assert np.bincount(runs.job, weights=runs.work_s) == pytest.approx(jobs.work_s)
            for row in np.flatnonzero(np.bincount(runs.job, weights=runs.lost_s) > 0).tolist():
                lost += 1
                own = runs.job == row
                points = {0.0}
                if jobs.interruptible[row] == 2:
                    points |= set(jobs.profiles[jobs.profile[row]].checkpoints_s)
                done_s = np.cumsum(runs.work_s[own])
                for s, wasted_s in zip(done_s, runs.lost_s[own], strict=True):
                    if wasted_s > 1e-6 and jobs.interruptible[row] != 1:
                        assert min(abs(s - each) for each in points) < 1e-6
                        kept += s > 0
    assert lost > 5 and kept


def test_the_same_nodes_break_down_at_the_same_moments_under_any_policy():
    failures = Failures(every_s="10h", repair_s="1h", seed=4)
    first, again = (failures.of_node(2, 0.0) for _ in range(2))
    spans = [next(first) for _ in range(2000)]
    assert spans[:50] == [next(again) for _ in range(50)]
    ran_s = np.array([b[0] - a[1] for a, b in pairwise(spans)])
    assert ran_s.mean() == pytest.approx(10 * HOUR, rel=0.1)
    assert {round(b - a) for a, b in spans} == {3600}


def test_a_run_on_a_node_that_is_not_there_is_refused():
    jobs = lt.Workload(arrival=[0], deadline=1e6, work_s=4 * HOUR)
    cluster = lt.Cluster(nodes=1, cpus_per_node=1)
    runs = lt.accounting.Stretches.one_each(jobs, np.array([0.0]))
    with pytest.raises(InvalidSchedule, match="node 0 had broken down"):
        carry_out(jobs, runs, cluster, down=[(0, 2 * HOUR, 3 * HOUR)])
    with pytest.raises(InvalidSchedule, match="2 nodes would be taken of 1"):
        carry_out(jobs, runs, replace(cluster, away=[(2 * HOUR, 3 * HOUR, 1)]))


def test_what_cannot_be_is_named_before_computing():
    jobs = lt.Workload(arrival=[0], deadline=1e6, work_s=4 * HOUR)
    grid = Signal.from_values(np.ones(300), start=0, step_s="1h")
    often = Failures(every_s="10m", repair_s="1h")
    breaking = lt.Cluster(nodes=1, cpus_per_node=1, failures=often)
    with pytest.raises(InvalidInput, match="nobody knows in advance which node breaks down"):
        lt.plan_cluster(jobs, breaking, grid)
    with pytest.raises(InvalidInput, match="booking decides in advance"):
        lt.simulate(jobs, grid, policy="booking", cluster=breaking)
    with pytest.raises(InvalidInput, match="round_robin knows of no nodes that come and go"):
        lt.simulate(jobs, grid, cluster=breaking, discipline="round_robin")
    with pytest.raises(InvalidSchedule, match="lost its nodes 1000 times"):
        lt.simulate(jobs, grid, cluster=breaking, repeat_signal=True)
    with pytest.raises(InvalidInput, match="repair_s of failures is longer than 0 s"):
        Failures(every_s="1d", repair_s=0)
    with pytest.raises(InvalidInput, match="leave out keeps or failures"):
        replace(breaking, keeps=("memory",))
    with pytest.raises(InvalidInput, match="capacity is a signal of kind 'nodes'"):
        lt.Cluster(nodes=1, cpus_per_node=1, capacity=grid)
    with pytest.raises(InvalidInput, match="from 1 to 1 nodes may be away"):
        lt.Cluster(nodes=1, cpus_per_node=1, away=[(0, 1, 2)])


def test_maintenance_and_nodes_that_are_away_are_both_minded_in_a_file():
    from lowtide.studies.run import _machines

    given = _machines({"nodes": 3, "away": [[0, 10, 1]], "reserved": [[20, 30, 2]]})
    assert [each.nodes for each in lt.Cluster(cpus_per_node=1, **given).gone()] == [1, 2]
