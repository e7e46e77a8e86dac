"""Few jobs under any mix of rules on machines of any kind: the best of all that can be carried out.

Every combination of ways to run the jobs is laid on the machines by the simulator, the cheapest
first, until one fits: nothing of the planner's is believed.
"""

from __future__ import annotations

import heapq
import itertools
from dataclasses import replace

import numpy as np
import pytest

import lowtide as lt
from lowtide.accounting import footprint
from lowtide.errors import Infeasible, InvalidJob, InvalidSchedule
from lowtide.job import Resources
from lowtide.market.cluster_plan import amount_of, least_of_nodes
from lowtide.schedule import Schedule
from lowtide.signal import Signal
from lowtide.simulator.carrying import carry_out, replay
from support.nightly import drawn
from support.queues import STEP_S, draw_job, every_way, stretches_of

MANY = drawn(14, 1000)
# So many combinations are gone through at most.
MOST, MOST_WAYS = 400, 4e3
WAITS = (0, None, "3 g/node-h")


def draw_machines(rng, nodes, jobs):
    """Return machines of any kind, and jobs that may share them."""
    kw = {"nodes": nodes, "cpus_per_node": 1}
    if rng.random() < 0.3:
        kw |= {"cpus_per_node": 4, "gpus_per_node": 4, "memory_bytes_per_node": 8 * 2**30}
        held = [(rng.integers(1, 4), rng.integers(0, 5), rng.integers(0, 5)) for _ in jobs]
        jobs = [
            replace(
                job, resources=Resources(cpus=int(c), gpus=int(g), memory_bytes=float(m) * 2**30)
            )
            for job, (c, g, m) in zip(jobs, held, strict=True)
        ]
        kw["keeps"] = ("memory",) if rng.random() < 0.4 else ()
    kw["pue"] = float(rng.choice([1.0, 1.3]))
    kw["idle_power_w"] = float(rng.choice([0.0, 80.0]))
    if kw["idle_power_w"] and rng.random() < 0.7:
        kw |= {"off_after_s": float(rng.choice([600.0, 4000.0])), "off_power_w": 5.0}
        kw |= {"boot_s": 300.0, "boot_j": 3e4, "shutdown_s": 60.0, "shutdown_j": 2e3}
    if rng.random() < 0.5:
        begin = float(rng.integers(0, 10)) + rng.choice([0.0, 0.0, 0.5])
        end = begin + float(rng.integers(1, 4))
        kw["away"] = [(begin * STEP_S, end * STEP_S, int(rng.integers(1, nodes + 1)))]
    if rng.random() < 0.3:
        there = rng.integers(1, nodes + 2, 60)
        step_s = float(rng.choice([STEP_S, STEP_S / 2]))
        kw["capacity"] = Signal.from_values(there, start=0, step_s=step_s, kind="nodes")
    return lt.Cluster(**kw), jobs


def draw_world(seed):
    """Return jobs, machines, a grid, and how they are to be planned."""
    rng = np.random.default_rng([seed, 90210])
    real, count, nodes = rng.random() < 0.3, int(rng.integers(2, 4)), int(rng.integers(2, 4))
    jobs = [draw_job(rng, f"j{n}", real=real, most=3, widest=2) for n in range(count)]
    jobs = [
        replace(
            job,
            deadline=min(
                job.deadline, job.arrival + job.profile.run_s + rng.integers(1, 4) * STEP_S
            ),
        )
        for job in jobs
    ]
    cluster, jobs = draw_machines(rng, nodes, jobs)
    if rng.random() < 0.3:
        more_s, think_s = 5 * STEP_S, float(rng.choice([0.0, STEP_S]))
        deadline = jobs[1].deadline + more_s
        jobs[1] = replace(jobs[1], after=("j0",), think_s=think_s, deadline=deadline)
    step_s = float(rng.choice([STEP_S, STEP_S, STEP_S / 2]))
    grid = Signal.from_values(
        rng.integers(20, 600, int(40 * STEP_S / step_s)), start=0, step_s=step_s
    )
    how = {"wait": WAITS[int(rng.integers(3))], "step": None}
    if real or rng.random() < 0.3:
        how["step"] = step_s / float(rng.choice([1, 2, 6] if real else [1, 2]))
    if rng.random() < 0.3 and cluster.off_after_s is None:
        own_w = nodes * cluster.idle_power_w
        peak_w = float(lt.Workload.from_jobs(jobs).peak_w.max())
        cap_w = own_w + peak_w + float(rng.integers(150, 900))
        how["power_cap"] = cap_w
        if rng.random() < 0.5:
            over_w = cap_w + rng.integers(0, 400, 120)
            how["power_cap"] = Signal.from_values(over_w, start=0, step_s=STEP_S / 2, kind="power")
    return jobs, cluster, grid, how


def best_of_all(plan, ways):
    """Return the least that jobs and nodes can come to, None for nothing that fits or too many."""
    instance, cluster = plan.planned_on, plan.planned_on.cluster
    jobs = instance.jobs
    if np.prod([float(len(each)) for each in ways]) > MOST_WAYS:
        return None
    costs = []
    for row, each in enumerate(ways):
        job = jobs.job(row)
        paid = [
            footprint(Schedule.from_stretches(job, way), job, instance.signal, pue=cluster.pue)
            for way in each
        ]
        costs.append(sorted((one.amount, place) for place, one in enumerate(paid)))
    if not all(costs):
        return None
    until = max(float(jobs.deadline.max()), float(plan.tally.end.max()))
    first = (0,) * len(costs)
    heap, seen, best = [(sum(each[0][0] for each in costs), first)], {first}, None
    for _ in range(MOST):
        if not heap:
            return best
        total, at = heapq.heappop(heap)
        if best is not None and total >= best:
            return best
        chosen = [ways[row][costs[row][place][1]] for row, place in enumerate(at)]
        try:
            cap = instance.terms["power_cap"]
            ran = replay(
                jobs, stretches_of(chosen), instance.signal, cluster, power_cap=cap, until=until
            )
            came_to = amount_of(ran, None) - least_of_nodes(ran, instance)
            best = came_to if best is None else min(best, came_to)
        except InvalidSchedule:
            pass
        for row, place in enumerate(at):
            if place + 1 < len(costs[row]):
                other = (*at[:row], place + 1, *at[row + 1 :])
                if other not in seen:
                    seen.add(other)
                    more = costs[row][place + 1][0] - costs[row][place][0]
                    heapq.heappush(heap, (total + more, other))
    return None


def test_no_way_to_run_all_jobs_comes_to_less_than_the_bound_or_the_plan():
    checked, moments, near = 0, 0, []
    for seed in range(MANY):
        jobs, cluster, grid, how = draw_world(seed)
        try:
            plan = lt.plan_cluster(jobs, cluster, grid, effort=0.02, gap=1e-6, **how)
        except (Infeasible, InvalidJob):
            # Somebody could not be in time alone.
            continue
        plan.certify()
        instance = plan.planned_on
        apart = least_of_nodes(plan.simulation, instance)
        if instance.whole_nodes:
            cap, until = how.get("power_cap"), float(plan.simulation.node_spans.end.max())
            again = replay(plan.jobs, plan.stretches, grid, cluster, power_cap=cap, until=until)
            assert amount_of(again, None) == pytest.approx(plan.amount, rel=1e-9), seed
        assert plan.lower_bound_g <= plan.amount * (1 + 1e-9), seed
        assert plan.lower_bound <= plan.counted * (1 + 1e-9), seed
        rows = range(len(plan))
        # Those that are late may be as late as they are, and everybody else is in time.
        given = plan._proofs[1].instance
        best = best_of_all(plan, [every_way(given, row) for row in rows])
        if best is not None:
            checked += 1
            assert plan.lower_bound_g - apart <= best * (1 + 1e-9) + 1e-6, seed
            # Where nothing but carbon counts, and room in sum is room, all is as good as it can be.
            plain = instance.whole_nodes and cluster.off_after_s is None
            if plain and how["wait"] == 0 and not plan.late:
                near.append((plan.amount - apart) / max(best, 1e-9))
        if plan.least_late:
            # Where so many must be late, nothing fits in which nobody is.
            assert best_of_all(plan, [every_way(instance, row) for row in rows]) is None, seed
        best = best_of_all(plan, [every_way(given, row, finer=2) for row in rows])
        if best is not None and plan.any_moment_bound_g is not None:
            moments += 1
            assert plan.any_moment_bound_g - apart <= best * (1 + 1e-9) + 1e-6, seed
    assert checked >= MANY // 4 and moments >= MANY // 4
    assert all(1 - 1e-9 <= each <= 1.02 for each in near)


def all_fit(plan, ways):
    """Return whether any combination of ways can be carried out, however much it comes to."""
    instance, cap = plan.planned_on, plan.planned_on.terms["power_cap"]
    for chosen in itertools.product(*ways):
        try:
            carry_out(plan.jobs, stretches_of(chosen), instance.cluster, power_cap=cap)
        except InvalidSchedule:
            continue
        return True
    return False


def test_on_shared_nodes_nobody_is_late_who_need_not_be():
    late = 0
    # In the first ones peaks take turns, jobs go on elsewhere, or their nodes come and go.
    for seed in (246, 307, 2008, 4056, 4497, *range(4000, 4000 + drawn(30, 3000))):
        jobs, cluster, grid, how = draw_world(seed)
        if not cluster.gpus_per_node:
            continue
        try:
            plan = lt.plan_cluster(jobs, cluster, grid, effort=0.02, gap=1e-6, **how)
        except (Infeasible, InvalidJob):
            continue
        if plan.late:
            late += 1
            rows = range(len(plan))
            assert not all_fit(plan, [every_way(plan.planned_on, row) for row in rows]), seed
    assert late >= drawn(1, 50)
