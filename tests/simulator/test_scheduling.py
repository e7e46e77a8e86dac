"""Schedulers that see the queue: the same as the kernels, and held to every rule."""

from __future__ import annotations

import os
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings

import lowtide as lt
from lowtide.errors import InvalidInput, InvalidSchedule, UnknownName
from lowtide.forecast import Persistence
from lowtide.job import INTERRUPTIBLE
from lowtide.policies.policy import Scheduled
from lowtide.signal import Signal
from lowtide.simulator.disciplines import REGISTERED, Easy, Fifo, Priority
from lowtide.simulator.queueing import run_queue
from lowtide.simulator.serving import run_scheduler
from lowtide.workload import Workload
from support.clusters import queues
from support.queues import STEP_S, draw_job, draw_signal

CASES = 1500 if os.environ.get("LOWTIDE_NIGHTLY") else 60
STOPPING = ("exact", "wait_awhile", "threshold", "rolling")


class ByTheDozen:
    """First come, first served; whoever may be stopped makes way after three hours."""

    def __init__(self, turn_s=3 * STEP_S):
        self.turn_s = turn_s
        self.events = []

    def on(self, event, view):
        self.events.append(event)
        for job, run in list(view.running.items()):
            if view.queue and view.now - run.start >= self.turn_s and view.may_stop(job):
                view.stop(job)
        while view.first is not None and view.start(view.first):
            view.wake(view.now + self.turn_s)


class Idler:
    def on(self, event, view):
        pass


def draw_workload(rng, count=24, **how):
    jobs = Workload.from_jobs([draw_job(rng, f"j{n}", **how) for n in range(count)])
    shift = np.sort(rng.integers(0, 30, count)) * STEP_S
    return replace(jobs, arrival=jobs.arrival + shift, deadline=jobs.deadline + shift + 6 * STEP_S)


@settings(max_examples=CASES, deadline=None)
@given(queues(switched=False))
def test_the_disciplines_decide_as_their_kernels_do(drawn):
    cluster, jobs, _ = drawn
    for discipline in (Fifo(), Priority(), Easy()):
        kernel = run_queue(jobs, jobs.arrival, cluster, discipline)
        seen = run_scheduler(jobs, cluster, discipline)
        assert seen.stretches.start.tolist() == kernel.stretches.start.tolist(), discipline


@pytest.mark.parametrize("real", [False, True])
@pytest.mark.parametrize("policy", STOPPING)
def test_with_room_for_all_a_policy_that_stops_jobs_does_as_without_limits(policy, real):
    for seed in range(3):
        rng = np.random.default_rng([seed, real])
        jobs, grid = draw_workload(rng, real=real), draw_signal(rng, 120)
        free = lt.simulate(jobs, grid, policy=policy, baseline=None)
        roomy = lt.Cluster(nodes=100, cpus_per_node=1)
        on_nodes = lt.simulate(
            jobs, grid, policy=policy, cluster=roomy, discipline="easy", baseline=None
        )
        assert np.any(free.tally.starts > 1)
        assert on_nodes.tally.starts.tolist() == free.tally.starts.tolist()
        assert on_nodes.tally.amount == pytest.approx(free.tally.amount)
        assert on_nodes.tally.end == pytest.approx(free.tally.end)


@pytest.mark.parametrize("discipline", ["fifo", "priority", "easy"])
@pytest.mark.parametrize("nodes", [4, 9])
def test_on_few_machines_jobs_that_are_stopped_keep_their_rules(discipline, nodes):
    for seed, policy in enumerate(STOPPING):
        rng = np.random.default_rng([seed, nodes])
        jobs, grid = draw_workload(rng, real=bool(seed % 2)), draw_signal(rng, 60)
        ran = lt.simulate(
            jobs,
            grid,
            policy=policy,
            cluster=lt.Cluster(nodes=nodes, cpus_per_node=1),
            discipline=discipline,
            repeat_signal=True,
        )
        for row in range(len(jobs)):
            job, schedule = jobs.job(row), ran.schedule(row)
            schedule.check(replace(job, deadline=max(job.deadline, schedule.end)))


def test_a_scheduler_of_ones_own_stops_jobs_and_lets_them_go_on():
    for seed in range(6):
        rng = np.random.default_rng([seed, 7])
        jobs, own = draw_workload(rng, real=bool(seed % 2)), ByTheDozen()
        cluster = lt.Cluster(nodes=5, cpus_per_node=1)
        ran = lt.simulate(
            jobs, draw_signal(rng, 60), policy=own, cluster=cluster, repeat_signal=True
        )
        assert ran.policy == "by_the_dozen" and ran.discipline is None
        assert ran.tally.starts.max() > 1
        for row in range(len(jobs)):
            job, schedule = jobs.job(row), ran.schedule(row)
            schedule.check(replace(job, deadline=max(job.deadline, schedule.end)))
        kinds = [event.kind for event in own.events]
        assert kinds.count("end") == kinds.count("arrival") == len(jobs)
        assert {"step", "wake"} <= set(kinds)
        times = [event.time for event in own.events]
        assert times == sorted(times)


class Sleepless:
    """Asks at every event to be woken when each job that waits has to begin."""

    def __init__(self):
        self.events = 0

    def on(self, event, view):
        self.events += 1
        while view.first is not None and view.start(view.first):
            pass
        for job in view.queue:
            view.wake(max(view.now, float(view.jobs.deadline[job] - view.jobs.run_s[job])))


def test_whoever_asks_again_and_again_is_woken_once():
    jobs = draw_workload(np.random.default_rng(5), count=60)
    one = Sleepless()
    run_scheduler(jobs, lt.Cluster(nodes=5, cpus_per_node=1), one)
    # Each job comes, may have to begin, and ends; those that are late ask once for each event.
    assert one.events <= 6 * len(jobs)


def test_as_a_discipline_it_gets_jobs_when_their_policy_lets_them_in():
    rng = np.random.default_rng(5)
    jobs, grid = draw_workload(rng, plain=True), draw_signal(rng, 60)
    cluster, own = lt.Cluster(nodes=6, cpus_per_node=1), ByTheDozen(1e9)
    how = {"policy": "carbon_time", "cluster": cluster, "repeat_signal": True, "baseline": None}
    seen = lt.simulate(jobs, grid, discipline=own, **how)
    fifo = lt.simulate(jobs, grid, discipline="fifo", **how)
    assert seen.discipline == "by_the_dozen"
    assert seen.tally.start.tolist() == fifo.tally.start.tolist()
    # It serves a queue: what is to be saved is the policy's matter.
    assert "step" not in {event.kind for event in own.events}


def test_it_sees_the_signal_as_it_is_foreseen():
    seen = {}

    class Looker(ByTheDozen):
        def on(self, event, view):
            seen[view.now] = view.signal.at(np.array([view.now, 50 * STEP_S]))
            super().on(event, view)

    rng = np.random.default_rng(1)
    jobs, grid = draw_workload(rng, 6), draw_signal(rng, 120)
    cluster = lt.Cluster(nodes=9, cpus_per_node=1)
    known = Scheduled(Looker(), Persistence())
    lt.simulate(jobs, grid, policy=known, cluster=cluster, repeat_signal=True, baseline=None)
    truth = grid.at(np.array([50 * STEP_S]))[0]
    assert len({values[1] for values in seen.values()}) > 1
    assert any(values[1] != truth for values in seen.values())


@pytest.mark.parametrize(
    ("move", "words"),
    [
        (lambda view: view.start(99), "it does not wait"),
        (lambda view: view.stop(0), "does not run"),
        (lambda view: (view.start(0), view.start(0)), "it does not wait"),
        (lambda view: (view.start(0), view.stop(0)), "its rules do not let it"),
        (lambda view: view.wake(view.now - 1), "a later instant"),
        (lambda view: view.start(0, nodes=[7, 7]), "2 different nodes"),
    ],
)
def test_what_no_machine_can_do_is_refused(move, words):
    class Wrong:
        def on(self, event, view):
            move(view)

    jobs = Workload(arrival=[0, 5], deadline=1e6, work_s=50, cpus=2, nodes=2)
    with pytest.raises(InvalidSchedule, match=words):
        run_scheduler(jobs, lt.Cluster(nodes=4, cpus_per_node=3), Wrong())


def test_one_that_leaves_jobs_waiting_for_ever_is_named():
    jobs = Workload(arrival=[0, 5], deadline=1e6, work_s=50, id=["a", "b"])
    with pytest.raises(InvalidSchedule, match="Idler left 2 jobs waiting, job a first"):
        run_scheduler(jobs, lt.Cluster(nodes=4, cpus_per_node=1), Idler())


def test_nodes_that_are_off_are_woken_first():
    jobs = Workload(arrival=[0, 5000, 20000], deadline=1e6, work_s=100)
    cluster = lt.Cluster(
        nodes=2, cpus_per_node=1, idle_power_w=9, off_after_s=1000, shutdown_s=50, boot_s=70
    )
    queued = run_scheduler(jobs, cluster, Fifo())
    assert queued.stretches.start.tolist() == [0, 5070, 20070]
    assert queued.stretches.start.tolist() == pytest.approx(
        run_queue(jobs, jobs.arrival, cluster, "fifo").stretches.start.tolist()
    )


def test_without_machines_there_is_no_queue_to_be_seen():
    jobs = Workload(arrival=[0, 5], deadline=1e6, work_s=50)
    grid = Signal.from_values([100.0] * 400, start=0, step_s=3600)
    with pytest.raises(InvalidInput, match="give a cluster"):
        lt.simulate(jobs, grid, policy=Fifo())
    with pytest.raises(InvalidInput, match="or has a method on"):
        lt.simulate(jobs, grid, cluster=lt.Cluster(nodes=1, cpus_per_node=1), discipline=object())
    stops = replace(jobs, interruptible=np.full(2, INTERRUPTIBLE.index("anywhere")))
    with pytest.raises(InvalidInput, match="round_robin decides when jobs start"):
        lt.simulate(
            stops,
            grid,
            policy="exact",
            cluster=lt.Cluster(nodes=1, cpus_per_node=1),
            discipline="round_robin",
        )


class Newest:
    """Last come, first served."""

    def on(self, event, view):
        for job in reversed(view.queue):
            if not view.start(job):
                return


class Point:
    """An entry point of a package that is not here."""

    name, value = "newest", "strangers.queues:Newest"

    def load(self):
        return Newest


def test_a_discipline_of_another_package_is_found_by_its_name(monkeypatch):
    monkeypatch.setattr(REGISTERED, "_points", {"newest": Point()})
    hour = lt.PowerProfile.constant(100, "1h")
    jobs = [lt.Job(id=name, arrival=0, deadline="+9h", profile=hour) for name in "abc"]
    one, grid = lt.Cluster(nodes=1, cpus_per_node=1), draw_signal(np.random.default_rng(1))
    ran = lt.simulate(jobs, grid, cluster=one, discipline="newest", baseline=None)
    assert (ran.tally.start / STEP_S).tolist() == [2, 1, 0]
    with pytest.raises(UnknownName, match=r"unknown discipline 'newst' \(did you mean 'newest'"):
        lt.simulate(jobs, grid, cluster=one, discipline="newst")
