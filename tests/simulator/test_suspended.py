"""Stopped jobs that hold on to something, and nodes that a scheduler switches itself."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import lowtide as lt
from lowtide.accounting import Stretches
from lowtide.errors import InvalidInput, InvalidSchedule
from lowtide.job import Resources
from lowtide.simulator.carrying import carry_out
from lowtide.simulator.disciplines import Easy, Fifo
from lowtide.simulator.queueing import Placed
from lowtide.simulator.serving import run_scheduler
from lowtide.workload import Workload
from support.nightly import drawn
from support.queues import STEP_S, draw_job, draw_signal

GIB = 2**30
MANY = drawn(8, 120)


def draw_memory(rng, count=20):
    jobs = [
        replace(
            draw_job(rng, f"j{number}", widest=1),
            resources=Resources(
                cpus=int(rng.integers(1, 5)), memory_bytes=float(rng.integers(5, 70)) * GIB
            ),
        )
        for number in range(count)
    ]
    made = Workload.from_jobs(jobs)
    shift = np.sort(rng.integers(0, 20, count)) * STEP_S
    return replace(made, arrival=made.arrival + shift, deadline=made.deadline + shift + 9 * STEP_S)


def memory_held(jobs, queued, *, keeps):
    """Return the most that any node holds, instant by instant, counted by hand."""
    stretches, most = queued.stretches, 0.0
    spans = []
    for run, row in enumerate(stretches.job.tolist()):
        nodes = queued.placed.node[queued.placed.stretch == run].tolist()
        spans += [
            (node, queued.held_from[run], queued.held_until[run], jobs.memory_bytes[row])
            for node in nodes
        ]
        if keeps and run + 1 < stretches.job.size and stretches.job[run + 1] == row:
            again = queued.placed.node[queued.placed.stretch == run + 1].tolist()
            assert again == nodes
            spans += [
                (node, queued.held_until[run], stretches.start[run + 1], jobs.memory_bytes[row])
                for node in nodes
            ]
    for node, begin, _, _ in spans:
        held = sum(
            amount
            for other, a, b, amount in spans
            if other == node and a <= begin + 1e-5 and b > begin + 1e-4
        )
        most = max(most, held)
    return most


@pytest.mark.parametrize("discipline", [Fifo(), Easy()])
def test_what_stopped_jobs_keep_is_never_given_to_others(discipline):
    stopped = without = 0
    for seed in range(MANY):
        rng = np.random.default_rng([seed, 61])
        jobs, grid = draw_memory(rng), draw_signal(rng, 150)
        wished = lt.simulate(jobs, grid, policy="exact", baseline=None).stretches
        room = lt.Cluster(nodes=3, cpus_per_node=6, memory_bytes_per_node=100 * GIB)
        for keeps in ((), ("memory",)):
            cluster = replace(room, keeps=keeps)
            queued = run_scheduler(jobs, cluster, discipline, wished=wished)
            assert memory_held(jobs, queued, keeps=bool(keeps)) <= 100 * GIB
            stopped += queued.stretches.job.size - len(jobs)
            without += not keeps and _moves(queued)
    assert stopped > MANY and without > 0


def _moves(queued):
    """Return whether a job goes on elsewhere than where it was stopped."""
    job, placed = queued.stretches.job, queued.placed
    return any(
        job[run] == job[run + 1]
        and placed.node[placed.stretch == run].tolist()
        != placed.node[placed.stretch == run + 1].tolist()
        for run in range(job.size - 1)
    )


def test_a_plan_that_lets_others_have_what_is_kept_is_refused():
    hour = lt.PowerProfile.constant(1000, "2h")
    memory = Resources(cpus=1, memory_bytes=60 * GIB)
    jobs = Workload.from_jobs(
        [
            lt.Job(
                id=name,
                arrival=0,
                deadline="+9h",
                profile=hour,
                interruptible="anywhere",
                resources=memory,
            )
            for name in "ab"
        ]
    )
    cluster = lt.Cluster(nodes=2, cpus_per_node=4, memory_bytes_per_node=100 * GIB)
    runs = Stretches(
        job=np.array([0, 0, 1]),
        start=np.array([0.0, 5.0, 1.0]) * STEP_S,
        work_s=np.array([1.0, 1.0, 2.0]) * STEP_S,
        lost_s=np.zeros(3),
    )
    on_one = Placed(stretch=np.arange(3), node=np.zeros(3, dtype=np.int64))
    carry_out(jobs, runs, cluster, placed=on_one)
    keeping = replace(cluster, keeps=("memory",))
    with pytest.raises(InvalidSchedule, match="node 0 has no room"):
        carry_out(jobs, runs, keeping, placed=on_one)
    # Left to itself the other goes to the node where nothing is kept.
    assert carry_out(jobs, runs, keeping).placed.node.tolist() == [0, 0, 1]
    moved = Placed(stretch=np.arange(3), node=np.array([0, 1, 1]))
    with pytest.raises(InvalidSchedule, match="keeps something on node 0"):
        carry_out(jobs, runs, keeping, placed=moved)


def test_plans_of_jobs_that_keep_memory_are_carried_out():
    for seed in range(max(MANY // 2, 4)):
        rng = np.random.default_rng([seed, 62])
        cluster = lt.Cluster(
            nodes=3, cpus_per_node=6, memory_bytes_per_node=100 * GIB, keeps=["memory"]
        )
        plan = lt.plan_cluster(draw_memory(rng), cluster, draw_signal(rng, 150), effort=0.02)
        assert plan.lower_bound <= plan.counted * (1 + 1e-9) or plan.late
        assert plan.certify() == pytest.approx(plan.lower_bound, rel=1e-9)


def test_what_cannot_be_kept_is_refused():
    with pytest.raises(InvalidInput, match="may go on holding cpus, gpus, memory, not 'disks'"):
        lt.Cluster(nodes=1, cpus_per_node=1, keeps=["disks"])
    rng = np.random.default_rng(1)
    jobs = replace(draw_memory(rng, 4), interruptible=np.ones(4, dtype=np.int64), profile=-1)
    cluster = lt.Cluster(nodes=2, cpus_per_node=6, keeps=("memory",))
    with pytest.raises(InvalidInput, match="round_robin lets stopped jobs go on anywhere"):
        lt.simulate(
            jobs, draw_signal(rng, 90), cluster=cluster, discipline="round_robin", baseline=None
        )


class Thrifty:
    """First come, first served; a node that nobody needs is off, and is woken an hour before."""

    switches_nodes = True

    def on(self, event, view):
        while view.first is not None and view.start(view.first):
            pass
        if event.kind == "wake":
            view.power_on(0)
        for node in view.idle_nodes:
            if view.is_on(node) and event.kind == "end" and view.now < 5 * STEP_S:
                view.power_off(node)
                view.wake(5 * STEP_S)


def test_a_scheduler_switches_nodes_and_pays_for_what_they_do():
    hour = lt.PowerProfile.constant(500, "1h")
    jobs = [
        lt.Job(id="a", arrival=0, deadline="+9h", profile=hour),
        lt.Job(id="b", arrival=6 * STEP_S, deadline="+9h", profile=hour),
    ]
    cluster = lt.Cluster(
        nodes=1,
        cpus_per_node=1,
        idle_power_w=100,
        off_power_w=10,
        boot_s=600,
        boot_j=60_000,
        shutdown_s=300,
        shutdown_j=6_000,
    )
    grid = lt.Signal.from_values(np.full(40, 100.0), start=0, step_s="1h")
    ran = lt.simulate(jobs, grid, cluster=cluster, policy=Thrifty(), baseline=None)
    # Woken an hour before, the node is on when the second job comes.
    assert ran.tally.start.tolist() == [0.0, 6 * STEP_S]
    did = ran.node_spans
    spans = list(zip(did.begin, did.end, did.power_w, strict=True))
    assert spans == [
        (0.0, 3600.0, 100.0),
        (3600.0, 3900.0, 20.0),
        (3900.0, 18000.0, 10.0),
        (18000.0, 18600.0, 100.0),
        (18600.0, 25200.0, 100.0),
    ]
    # Nobody woke it: the job waits for the boot.
    lazy = type("Lazy", (Thrifty,), {"on": lambda self, e, v: _off_when_idle(e, v)})()
    late = lt.simulate(jobs, grid, cluster=cluster, policy=lazy, baseline=None)
    assert late.tally.start.tolist() == [0.0, 6 * STEP_S + 600]


def _off_when_idle(event, view):
    while view.first is not None and view.start(view.first):
        pass
    for node in view.idle_nodes:
        if view.is_on(node) and event.kind == "end":
            view.power_off(node)


class Rude:
    switches_nodes = True

    def on(self, event, view):
        view.start(view.first)
        view.power_off(0)


def test_nodes_that_are_used_are_not_switched_off():
    job = lt.Job(id="a", arrival=0, deadline="+9h", profile=lt.PowerProfile.constant(500, "1h"))
    grid, one = draw_signal(np.random.default_rng(1)), lt.Cluster(nodes=1, cpus_per_node=1)
    with pytest.raises(InvalidSchedule, match="node 0 cannot be switched off"):
        lt.simulate([job], grid, cluster=one, policy=Rude(), baseline=None)
    blunt = type("Blunt", (Rude,), {"switches_nodes": False})()
    with pytest.raises(InvalidSchedule, match="switches_nodes = True"):
        lt.simulate([job], grid, cluster=one, policy=blunt, baseline=None)
