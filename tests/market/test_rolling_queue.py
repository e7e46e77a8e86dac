"""Queues planned step by step, by somebody who knows no job before it arrives."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import lowtide as lt
from lowtide.errors import InvalidInput
from lowtide.job import Resources
from lowtide.market.rolling import Booking, ClusterPolicy
from support.queues import STEP_S, draw_job, draw_signal


def draw_queue(rng, count=20, *, real=False, plain=False):
    jobs = [draw_job(rng, f"j{number}", real=real, plain=plain) for number in range(count)]
    workload = lt.Workload.from_jobs(jobs)
    shift = np.sort(rng.integers(0, 24, count)) * STEP_S
    return replace(
        workload, arrival=workload.arrival + shift, deadline=workload.deadline + shift + 4 * STEP_S
    )


@pytest.mark.parametrize("real", [False, True])
@pytest.mark.parametrize("policy", [ClusterPolicy(effort=0.02), Booking()])
def test_every_rule_is_kept_and_the_machines_can_run_it(policy, real):
    for seed in range(4):
        rng = np.random.default_rng([seed, real])
        jobs = draw_queue(rng, real=real)
        cluster = lt.Cluster(nodes=8, cpus_per_node=1)
        ran = lt.simulate(
            jobs,
            draw_signal(rng, 120),
            policy=policy,
            cluster=cluster,
            repeat_signal=True,
            baseline=None,
        )
        assert ran.discipline is None
        for row in range(len(jobs)):
            job = jobs.job(row)
            schedule = ran.schedule(row)
            schedule.check(replace(job, deadline=max(job.deadline, schedule.end)))


def test_alone_on_the_machines_a_job_that_arrives_is_run_to_the_optimum():
    for seed in range(6):
        rng = np.random.default_rng([seed, 3])
        job, grid = draw_job(rng, "a"), draw_signal(rng)
        ran = lt.simulate(
            [job], grid, policy=ClusterPolicy(), cluster=lt.Cluster(nodes=3, cpus_per_node=1)
        )
        assert ran.tally.amount[0] == pytest.approx(lt.plan(job, grid).footprint.carbon_g)


def test_step_by_step_most_of_what_all_knowledge_would_save_is_saved():
    shares, late = [], 0
    for seed in range(3):
        rng = np.random.default_rng([seed, 4])
        jobs = draw_queue(rng, 40, plain=True)
        grid, cluster = draw_signal(rng, 120), lt.Cluster(nodes=18, cpus_per_node=1)
        best = lt.plan_cluster(jobs, cluster, grid, wait=0, effort=0.05)
        ran = lt.simulate(
            jobs, grid, policy=ClusterPolicy(effort=0.1), cluster=cluster, baseline=None
        )
        easy = float(best.easy.tally.amount.sum())
        shares.append((easy - float(ran.tally.amount.sum())) / (easy - best.amount))
        late += int(ran.missed.sum()) - int(best.easy.missed.sum())
    assert np.mean(shares) > 0.6
    assert late <= 0


def test_nodes_that_jobs_share_are_refused():
    job = draw_job(np.random.default_rng(1), "a", widest=1)
    jobs = [replace(job, resources=Resources(cpus=1))]
    for policy in (ClusterPolicy(), Booking()):
        with pytest.raises(InvalidInput, match="on nodes that jobs do not share"):
            lt.simulate(
                jobs,
                draw_signal(np.random.default_rng(2)),
                policy=policy,
                cluster=lt.Cluster(nodes=2, cpus_per_node=8),
            )
