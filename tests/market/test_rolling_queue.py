"""Queues planned step by step, by somebody who knows no job before it arrives."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import lowtide as lt
from lowtide.errors import InvalidInput
from lowtide.forecast import Perfect, Persistence
from lowtide.job import Resources
from lowtide.market.all_known import AllKnown
from lowtide.market.booking import Booked, Booking
from lowtide.market.placing import Board
from lowtide.market.prices import Auction, Prices
from lowtide.market.rolling import ClusterPolicy, Replanning, _runs
from lowtide.market.stand_ins import those_of_another_time, those_of_history
from lowtide.precedence import in_order
from lowtide.simulator.serving import run_scheduler
from lowtide.steps import Steps
from support.queues import STEP_S, draw_job, draw_signal


def draw_queue(rng, count=20, *, real=False, plain=False):
    jobs = [draw_job(rng, f"j{number}", real=real, plain=plain) for number in range(count)]
    workload = lt.Workload.from_jobs(jobs)
    shift = np.sort(rng.integers(0, 24, count)) * STEP_S
    return replace(
        workload, arrival=workload.arrival + shift, deadline=workload.deadline + shift + 4 * STEP_S
    )


@pytest.mark.parametrize("real", [False, True])
@pytest.mark.parametrize(
    "policy", [ClusterPolicy(effort=0.02), Booking(), Booked(), AllKnown(effort=0.01)]
)
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
            [job], grid, policy=ClusterPolicy(wait=0), cluster=lt.Cluster(nodes=3, cpus_per_node=1)
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
        # As a policy of the test bed, who knows all comes to what the plan does.
        known = AllKnown(gap=0.005, effort=0.05)
        told = lt.simulate(jobs, grid, policy=known, cluster=cluster, baseline=None)
        assert float(told.tally.amount.sum()) == pytest.approx(best.amount)
    assert np.mean(shares) > 0.6
    assert late <= 0


def test_a_start_policy_that_books_takes_what_it_would_alone_where_there_is_room():
    for seed, name in enumerate(("carbon_time", "oracle", "lowest_window", "run_now")):
        rng = np.random.default_rng([seed, 9])
        jobs, grid = draw_queue(rng, plain=True), draw_signal(rng, 120)
        free = lt.simulate(jobs, grid, policy=name, baseline=None)
        roomy, tight = (lt.Cluster(nodes=nodes, cpus_per_node=1) for nodes in (90, 5))
        booked = lt.simulate(jobs, grid, policy=Booked(start=name), cluster=roomy, baseline=None)
        assert booked.tally.start == pytest.approx(free.tally.start)
        assert booked.policy == f"booked {name}"
        ran = lt.simulate(
            jobs,
            grid,
            policy=Booked(start=name),
            cluster=tight,
            baseline=None,
            repeat_signal=True,
        )
        # It fits, or it would have been refused; who finds room in time books it.
        for row in np.flatnonzero(ran.missed).tolist():
            before = np.arange(len(jobs)) < row
            start, end = ran.tally.start[before], ran.tally.end[before]
            for at in np.arange(jobs.arrival[row], jobs.latest_start[row] + 1, STEP_S / 4):
                beside = (start < at + jobs.run_s[row] - 1e-3) & (end > at + 1e-3)
                used = Steps.of_spans(start[beside], end[beside], jobs.nodes[before][beside])
                inside = np.append(used.times[(used.times > at)], at)
                inside = inside[inside < at + jobs.run_s[row] - 1e-3]
                assert used.at(inside).max() + jobs.nodes[row] > 5
    with pytest.raises(InvalidInput, match="exact stops jobs"):
        Booked(start="exact")


def test_stand_ins_are_yesterdays_jobs_or_none():
    with pytest.raises(InvalidInput, match="'history' or 'none', not 'ghosts'"):
        ClusterPolicy(stand_ins="ghosts")
    rng = np.random.default_rng(4)
    jobs = draw_queue(rng, 30, plain=True)
    assert those_of_another_time(None, 0.0, 30 * STEP_S, 0.0)[0] is None
    assert those_of_history(jobs, float(jobs.arrival[0]), 30 * STEP_S, STEP_S)[0] is None
    now = float(jobs.arrival[0]) + 12 * STEP_S
    known = jobs.arrival[(jobs.arrival > now - 12 * STEP_S) & (jobs.arrival <= now)]
    ghosts, each_for = those_of_history(jobs, now, 30 * STEP_S, STEP_S)
    assert each_for == 1.0
    again = np.concatenate([known + number * 12 * STEP_S for number in (1, 2, 3)])
    assert ghosts.arrival.tolist() == sorted(again[again < now + 30 * STEP_S].tolist())
    assert np.all(ghosts.slack_s >= 0)
    assert np.all(ghosts.id < 0) and np.unique(ghosts.id).size == len(ghosts)


@pytest.mark.parametrize("weeks", [1, 3])
def test_jobs_of_earlier_weeks_come_again_at_their_hours_of_the_week(weeks):
    rng = np.random.default_rng([weeks, 21])
    week_s = 168 * STEP_S
    begun = weeks * week_s
    hours = np.arange(weeks * 168) + rng.random(weeks * 168)
    jobs = lt.Workload(
        arrival=hours * STEP_S,
        deadline=hours * STEP_S + 6 * STEP_S,
        work_s=np.full(hours.size, STEP_S),
        power=rng.uniform(100, 900, hours.size),
    )
    names = {}
    for now in begun + np.array([0.0, 5.0, 100.0, 167.0, 200.0, 400.0]) * STEP_S:
        ghosts, each_for = those_of_another_time(jobs, float(now), 48 * STEP_S, begun)
        assert each_for == pytest.approx(1 / weeks)
        # As many at every hour as there were, and every one of those hours.
        ahead = (ghosts.arrival - now) / STEP_S
        assert ahead.min() > 0 and ahead.max() < 48
        assert len(ghosts) == pytest.approx(48 * weeks, abs=weeks)
        like = {round(power, 9): at for power, at in zip(jobs.power, jobs.arrival, strict=True)}
        for row in range(len(ghosts)):
            was = like[round(float(ghosts.power[row]), 9)]
            later = (ghosts.arrival[row] - was) / week_s
            assert round(later) >= 1 and later == pytest.approx(round(later), abs=1e-9)
            # Whoever comes again at a time is called the same whenever that is looked at.
            key = (round(float(ghosts.power[row]), 9), round(float(ghosts.arrival[row])))
            assert names.setdefault(int(ghosts.id[row]), key) == key
    # Those of the time to come are taken as they are.
    told, each_for = those_of_another_time(jobs, 10.0 * STEP_S, 48 * STEP_S, 0.0)
    inside = (jobs.arrival > 10 * STEP_S) & (jobs.arrival < 58 * STEP_S)
    assert told.arrival.tolist() == jobs.arrival[inside].tolist() and each_for == 1.0


class _Remembering(Replanning):
    """Replanning that compares what it goes on from with what was planned the last time."""

    def __init__(self, *given):
        super().__init__(*given)
        self.planned, self.held, self.there = {}, 0, 0

    def _plan(self, now):
        runs = super()._plan(now)
        self.planned = {each.row: found for each, found in zip(self.live, runs, strict=True)}
        return runs

    def _as_before(self, instance, auction, real):
        board = super()._as_before(instance, auction, real)
        if self.last is not None:
            _, holds = self.last.delays(instance, self._names(instance))
            self.there += sum(each.row in self.planned for each in self.live)
            for place in np.flatnonzero(holds & real):
                each = self.live[int(instance.jobs.id[place])]
                self.held += 1
                if board is None:
                    continue
                now = instance.origin
                again = [run for run in _runs(instance, board, place, each) if not run.goes_on]
                before = [run for run in self.planned[each.row] if run.begin > now - 1e-3]
                assert [run.begin for run in again] == pytest.approx([r.begin for r in before])
                assert [run.work_s for run in again] == pytest.approx([r.work_s for r in before])
        return board


def test_a_plan_goes_on_where_the_last_one_was():
    there = held = 0
    for seed in range(6):
        rng = np.random.default_rng([seed, 41])
        jobs, grid = draw_queue(rng, 24, plain=bool(seed % 2)), draw_signal(rng, 200)
        cluster = lt.Cluster(nodes=7, cpus_per_node=1)
        loop = _Remembering(ClusterPolicy(effort=0.1), jobs, grid, cluster, STEP_S)
        run_scheduler(jobs, cluster, loop)
        there, held = there + loop.there, held + loop.held
    # All but those that wait for others, or were given more time.
    assert held > 0.9 * there > 100


def test_with_forecasts_it_plans_by_what_is_foreseen():
    rng = np.random.default_rng(6)
    jobs, grid = draw_queue(rng, 12, plain=True), draw_signal(rng, 200)
    cluster = lt.Cluster(nodes=9, cpus_per_node=1)

    def starts(**how):
        policy = ClusterPolicy(effort=0.02, **how)
        ran = lt.simulate(jobs, grid, policy=policy, cluster=cluster, baseline=None)
        return ran.tally.start.tolist()

    assert starts(forecasts=Perfect()) == starts()
    assert starts(forecasts=Persistence()) != starts()


def test_nodes_that_jobs_share_are_planned_in_sum_and_taken_where_there_is_room():
    rng = np.random.default_rng(11)
    jobs = [
        replace(
            draw_job(rng, f"j{n}", plain=True), resources=Resources(cpus=int(rng.integers(1, 6)))
        )
        for n in range(24)
    ]
    jobs = lt.Workload.from_jobs(jobs)
    jobs = replace(jobs, deadline=jobs.deadline + 8 * STEP_S)
    grid, cluster = draw_signal(rng, 200), lt.Cluster(nodes=4, cpus_per_node=8)
    ran = lt.simulate(
        jobs, grid, policy=ClusterPolicy(effort=0.02), cluster=cluster, discipline="easy"
    )
    assert not ran.missed.any()
    assert ran.summary()["saving"] > 0.05
    # Who books runs in advance would have to book nodes.
    for policy in (Booking(), Booked()):
        with pytest.raises(InvalidInput, match="on nodes that jobs do not share"):
            lt.simulate(jobs, grid, policy=policy, cluster=cluster)


def test_how_long_a_job_really_runs_is_not_known_before_it_is_done():
    rng = np.random.default_rng(12)
    jobs, grid = draw_queue(rng, 16, plain=True), draw_signal(rng, 200)
    cluster = lt.Cluster(nodes=8, cpus_per_node=1)
    longer = replace(jobs, requested_s=jobs.run_s + 3 * STEP_S)
    policy = ClusterPolicy(effort=0.02)
    ran, other = (
        lt.simulate(each, grid, policy=policy, cluster=cluster, baseline=None)
        for each in (longer, jobs)
    )
    assert ran.tally.start.tolist() != other.tally.start.tolist()
    # Who runs for less than was requested is done when its work is.
    assert np.bincount(ran.stretches.job, weights=ran.stretches.work_s) == pytest.approx(
        jobs.work_s
    )
    alone = replace(longer.take(np.array([0])), requested_s=[60 * STEP_S])
    alone = replace(alone, deadline=alone.arrival + 30 * STEP_S)
    # By its request it could never be in time, so that it may not wait.
    at_once = lt.simulate(alone, grid, policy=policy, cluster=cluster, baseline=None)
    assert at_once.tally.start[0] <= alone.arrival[0] + STEP_S


def test_what_stands_for_a_job_that_is_not_done_runs_as_long_as_was_requested():
    rng = np.random.default_rng(14)
    drawn_jobs, grid = draw_queue(rng, 20, plain=True), draw_signal(rng, 200)
    now = float(drawn_jobs.arrival[0]) + 8 * STEP_S
    asked_s = drawn_jobs.run_s + np.arange(20) % 2 * 2 * STEP_S
    jobs = replace(drawn_jobs, requested_s=asked_s, deadline=drawn_jobs.deadline + 2 * STEP_S)
    cluster = lt.Cluster(nodes=4, cpus_per_node=1)
    loop = Replanning(ClusterPolicy(), jobs, grid, cluster, STEP_S)
    loop._meet(now)
    loop.live = [each for each in loop.live if each.row % 3]
    guessed = loop._guessed()
    assert guessed and all(row % 2 and row % 3 for row in guessed)
    known, _ = those_of_history(jobs, now, 9 * STEP_S, STEP_S)
    told, _ = those_of_history(jobs, now, 9 * STEP_S, STEP_S, guessed=guessed)
    longer = np.array([2 * STEP_S if row in guessed else 0.0 for row in range(20)])
    shown = (jobs.arrival > now - 8 * STEP_S) & (jobs.arrival <= now)
    assert len(told) == len(known) == np.count_nonzero(shown)
    assert told.run_s.sum() == pytest.approx((jobs.run_s + longer)[shown].sum())
    assert sorted(told.arrival) == sorted(known.arrival) and told.slack_s.min() >= 0


def test_no_more_are_without_room_than_if_all_ran_as_soon_as_they_can():
    # What is promised of each plan: those that are there, by arrivals or by deadlines, at once.
    seen = 0
    for seed in range(6):
        rng = np.random.default_rng([seed, 31])
        jobs, grid = draw_queue(rng, 24, plain=True), draw_signal(rng, 200)
        cluster = lt.Cluster(nodes=4, cpus_per_node=1)
        loop = Replanning(ClusterPolicy(effort=0.1), jobs, grid, cluster, STEP_S)
        loop._meet(float(jobs.arrival.max()))
        instance, real = loop._instance(float(jobs.arrival.max()))
        auction = Auction(instance)
        board = loop._place(instance, auction, real)
        missing = np.count_nonzero(~board.placed & real)
        for key in (instance.jobs.arrival, instance.jobs.deadline):
            running = instance.queue.jobs["running"]
            rank = np.lexsort((key, ~running, ~real)).argsort().astype(float)
            order = in_order(rank, instance.links)
            rows = instance.queue.jobs.copy()
            rows["weight"], rows["wait"] = 0.0, 1.0
            soon = replace(instance, queue=instance.queue._replace(jobs=rows))
            nothing = Prices.nothing(soon).tariff(soon)
            at_once = Board.empty(soon).insert(order[real[order]], nothing)
            assert missing <= np.count_nonzero(~at_once.placed & real)
        seen += missing > 0
    assert seen, "nobody was without room: the queues are too easy to show anything"
