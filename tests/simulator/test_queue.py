"""Queues on limited machines: worked examples, a slow queue beside them, what always holds."""

from dataclasses import replace
from unittest import mock

import numpy as np
import pytest
from hypothesis import given, settings

from lowtide.accounting import tally
from lowtide.errors import InvalidInput, InvalidJob, UnknownName
from lowtide.profile import Phase, PowerProfile
from lowtide.signal import Signal
from lowtide.simulator import queueing
from lowtide.simulator.cluster import Cluster
from lowtide.simulator.disciplines import (
    DISCIPLINES,
    Easy,
    Feedback,
    Fifo,
    RoundRobin,
    make_discipline,
)
from lowtide.simulator.queueing import SPAN_KINDS, run_queue
from lowtide.workload import Workload
from support.clusters import ANYWHERE, TickingQueue, in_order, in_turns, most_at_once, queues
from support.nightly import drawn

CASES = drawn(40, 1500)
ONE_CPU = Cluster(nodes=1, cpus_per_node=1)
FOUR_NODES = Cluster(nodes=4, cpus_per_node=1)


def workload(arrival, work_s, **columns):
    """Jobs that hold one CPU on each of their nodes."""
    columns = {"cpus": columns.get("nodes", 1)} | columns
    return Workload(arrival=arrival, work_s=work_s, deadline=1e12, **columns)


def starts(jobs, cluster, discipline, **options):
    made = run_queue(jobs, jobs.arrival, cluster, discipline, **options)
    return [made.stretches.start[made.stretches.job == row].tolist() for row in range(len(jobs))]


def spans_of(spans):
    kinds = [SPAN_KINDS[kind] for kind in spans.kind.tolist()]
    columns = (spans.node.tolist(), spans.begin.tolist(), spans.end.tolist(), kinds)
    return list(zip(*columns, strict=True))


# Worked examples.


def test_fifo_lets_nobody_pass():
    jobs = workload([0, 0, 0], [5, 3, 4], cpus=[2, 4, 2])
    # The third job would fit beside the first, and waits for the second.
    assert starts(jobs, Cluster(nodes=1, cpus_per_node=4), "fifo") == [[0], [5], [8]]
    jobs = workload([0, 1, 2], [10, 5, 1], nodes=[1, 4, 1])
    assert starts(jobs, FOUR_NODES, "fifo") == [[0], [10], [15]]
    assert starts(workload([0, 0, 7], [3, 3, 1]), ONE_CPU, "fifo") == [[0], [3], [7]]


def test_priority_goes_before_arrival_but_stops_nobody():
    jobs = workload([0, 1, 2, 3, 3], [10, 2, 3, 1, 1], priority=[0, 0, 5, 5, 5])
    assert starts(jobs, ONE_CPU, "priority") == [[0], [15], [10], [13], [14]]
    # Nor does a job of low priority start while one of high priority waits for more nodes.
    jobs = workload([0, 1, 1], [10, 4, 1], nodes=[2, 4, 1], priority=[0, 1, 0])
    assert starts(jobs, FOUR_NODES, "priority") == [[0], [10], [14]]


def test_easy_lets_pass_who_will_be_over_in_time():
    jobs = workload([0, 1, 2], [10, 5, 8], nodes=[2, 4, 2])
    # The second is promised all nodes at 10, and the third is over by then.
    assert starts(jobs, FOUR_NODES, "easy") == [[0], [10], [2]]
    assert starts(jobs, FOUR_NODES, "fifo") == [[0], [10], [15]]


def test_easy_does_not_delay_the_first_in_the_queue():
    jobs = workload([0, 1, 2], [10, 5, 9], nodes=[2, 4, 2])
    # One second too long: it would still run at 10.
    assert starts(jobs, FOUR_NODES, "easy") == [[0], [10], [15]]


def test_easy_lets_pass_who_takes_what_the_first_does_not_need():
    jobs = workload([0, 1, 2, 3], [10, 5, 100, 100], nodes=[3, 3, 1, 1])
    # At 10 there will be four nodes for three. The last job finds none left until 15.
    assert starts(jobs, FOUR_NODES, "easy") == [[0], [10], [2], [15]]
    # On shared nodes it is the same with CPUs: at 10 there will be four for three.
    jobs = workload([0, 1, 2, 2], [10, 5, 100, 100], cpus=[2, 3, 1, 1])
    assert starts(jobs, Cluster(nodes=1, cpus_per_node=4), "easy") == [[0], [10], [2], [15]]
    # With a second node for the job that was promised one, both of the others may pass.
    jobs = workload([0, 0, 1, 2, 2], [10, 10, 5, 100, 100], cpus=[4, 2, 3, 1, 1])
    two = Cluster(nodes=2, cpus_per_node=4)
    assert starts(jobs, two, "easy") == [[0], [0], [10], [2], [2]]


def test_easy_believes_what_users_request():
    # The first asks for 20 s and is over at 10. Until then the third may pass, being over at 17;
    # so the second starts at 17, later than in a strict queue, but before the 20 s it was promised.
    jobs = workload([0, 1, 2], [10, 5, 15], nodes=[2, 4, 1], requested_s=[20, 5, 15])
    assert starts(jobs, FOUR_NODES, "easy") == [[0], [17], [2]]
    # A promise moves forward when jobs end early: at 3 it is 10 rather than 20.
    jobs = workload([0, 0, 1, 4], [10, 3, 5, 7], nodes=[2, 1, 4, 1], requested_s=[10, 20, 5, 7])
    assert starts(jobs, FOUR_NODES, "easy") == [[0], [0], [10], [15]]


def test_round_robin_gives_everybody_a_turn():
    jobs = workload([0, 0, 0], [5, 3, 4], interruptible=ANYWHERE)
    made = starts(jobs, ONE_CPU, RoundRobin(quantum_s=2))
    assert made == [[0, 6, 11], [2, 8], [4, 9]]
    # Two CPUs, and the turns of the first two are over at once: one of them makes way, the other
    # goes on, and is the first to make way the next time.
    jobs = workload([0, 0, 0], [6, 6, 6], interruptible=ANYWHERE)
    two = Cluster(nodes=2, cpus_per_node=1)
    assert starts(jobs, two, RoundRobin(quantum_s=2)) == [[0, 4], [0, 6], [2, 8]]
    # Who is alone goes on.
    assert starts(jobs.take(slice(1)), ONE_CPU, RoundRobin(quantum_s=2)) == [[0]]


def test_a_stop_costs_another_startup_and_the_switch():
    profile = PowerProfile(
        startup=[Phase(name="load", duration_s=1, power_w=50)],
        work=[Phase(name="run", duration_s=4, power_w=100)],
        stop=[Phase(name="save", duration_s=2, power_w=30)],
    )
    jobs = workload([0, 0], None, profile=0, profiles=[profile], interruptible=ANYWHERE)
    made = run_queue(jobs, jobs.arrival, ONE_CPU, RoundRobin(quantum_s=3, context_s=0.5))
    # A turn of 3 s is 1 s of startup and 2 s of work; then 2 s to stop. Who was stopped before
    # has the CPU half a second before it starts.
    assert made.held_from.tolist() == [0, 10, 5, 13.5]
    assert made.stretches.start.tolist() == [0, 10.5, 5, 14]
    assert made.held_until.tolist() == [5, 13.5, 10, 17]
    assert made.stretches.work_s.tolist() == [2, 2, 2, 2]
    signal = Signal.from_values([100, 100], start=0, step_s="1h")
    drawn_j = tally(jobs, made.stretches, signal).energy_j
    assert drawn_j.tolist() == [2 * 50 + 4 * 100 + 2 * 30] * 2


def test_a_stop_between_checkpoints_loses_work():
    phases = [Phase(name="epoch", duration_s=3, power_w=100, checkpoint=True)] * 3
    jobs = workload(
        [0, 0], None, profile=0, profiles=[PowerProfile(work=phases)], interruptible=[2, 2]
    )
    made = run_queue(jobs, jobs.arrival, ONE_CPU, RoundRobin(quantum_s=4))
    first = made.stretches.job == 0
    assert made.stretches.start[first].tolist() == [0, 8, 16]
    assert made.stretches.work_s[first].tolist() == [3, 3, 3]
    assert made.stretches.lost_s[first].tolist() == [1, 1, 0]
    # A turn that reaches no checkpoint would be in vain: the job goes on until it does.
    made = run_queue(jobs, jobs.arrival, ONE_CPU, RoundRobin(quantum_s=2))
    assert made.stretches.start[first].tolist() == [0, 8, 16]


def test_jobs_are_stopped_only_as_they_allow():
    columns = {"interruptible": ANYWHERE}
    # The first is not stopped after 2 s, and the rest of a job is at least 3 s, too.
    jobs = workload([0, 0], [8, 6], min_run_s=[3, 0], **columns)
    assert starts(jobs, ONE_CPU, RoundRobin(quantum_s=2)) == [[0, 6], [4, 10]]
    jobs = workload([0, 0], [6, 6], min_run_s=[3, 0], **columns)
    assert starts(jobs, ONE_CPU, RoundRobin(quantum_s=2)) == [[0], [6]]
    jobs = workload([0, 0], [6, 6], max_starts=[2, 0], **columns)
    assert starts(jobs, ONE_CPU, RoundRobin(quantum_s=2)) == [[0, 4], [2, 8]]


def test_feedback_sends_long_jobs_down():
    jobs = workload([0, 0], [5, 2], interruptible=ANYWHERE)
    discipline = Feedback(quanta_s=(1, 2, 4))
    assert starts(jobs, ONE_CPU, discipline) == [[0, 2, 5], [1, 4]]
    # Who comes later starts on the highest level, when the turn that is under way is over.
    jobs = workload([0, 4], [20, 1], interruptible=ANYWHERE)
    assert starts(jobs, ONE_CPU, discipline) == [[0, 8], [7]]


def test_a_boost_reaches_those_who_are_being_stopped():
    def profile(stop_s):
        stop = [Phase(name="z", duration_s=stop_s, power_w=1)] if stop_s else []
        return PowerProfile(work=[Phase(name="w", duration_s=20, power_w=1)], stop=stop)

    jobs = Workload(
        arrival=[0, 0, 9],
        deadline=1e6,
        profile=[0, 1, 1],
        profiles=[profile(3), profile(0)],
        interruptible=1,
    )
    # The first job is stopped from 5 to 8, and lifted at 7: at 13 it goes before who came at 9.
    turns = starts(jobs, ONE_CPU, Feedback(quanta_s=(5, 5), boost_s=7))
    assert [each[:2] for each in turns] == [[0, 13], [8, 26], [21, 39]]


def test_a_boost_brings_everybody_back_to_the_top():
    # Without a boost the turn at 8 takes 4 s, and then the newcomer goes before the first job.
    # With one at 8, turns are of 2 s again, and the first job has had its turn when it comes in.
    jobs = workload([0, 0, 9], [12, 12, 1], interruptible=ANYWHERE)
    plain, boosted = (
        starts(jobs, ONE_CPU, Feedback(quanta_s=(2, 4), boost_s=boost_s)) for boost_s in (None, 8)
    )
    assert plain == [[0, 4, 13, 21], [2, 8, 17, 23], [12]]
    assert boosted == [[0, 4, 10, 17, 21], [2, 8, 13, 19, 23], [12]]


def test_nodes_that_are_idle_go_off_and_take_time_to_boot():
    cluster = Cluster(
        nodes=1,
        cpus_per_node=1,
        idle_power_w=100,
        off_power_w=5,
        boot_s=3,
        boot_j=600,
        shutdown_s=2,
        shutdown_j=100,
        off_after_s=5,
    )
    jobs = workload([0, 20], [4, 1])
    made = run_queue(jobs, jobs.arrival, cluster)
    assert made.stretches.start.tolist() == [0, 23]
    assert made.held_from.tolist() == [0, 20]
    assert spans_of(made.node_spans) == [
        (0, 0, 9, "idle"),
        (0, 9, 11, "shutdown"),
        (0, 11, 20, "off"),
        (0, 20, 23, "boot"),
        (0, 23, 24, "idle"),
    ]
    spans = made.node_spans
    assert spans.energy_j.tolist() == [900, 100, 45, 600, 100]
    assert spans.energy_j[spans.booting].sum() == 700
    assert spans.energy_j[spans.on].sum() == 1000
    # Once nobody comes any more the node goes off, and stays off.
    assert spans_of(made.nodes)[-3:] == [
        (0, 23, 29, "idle"),
        (0, 29, 31, "shutdown"),
        (0, 31, float("inf"), "off"),
    ]
    # It is on from the first arrival, though nobody may be ready for long.
    late = run_queue(jobs, jobs.arrival + 30, cluster)
    assert spans_of(late.node_spans)[:4] == [
        (0, 0, 5, "idle"),
        (0, 5, 7, "shutdown"),
        (0, 7, 30, "off"),
        (0, 30, 33, "boot"),
    ]
    assert late.stretches.start[0] == 33
    # A node that is going off is waited for.
    jobs = workload([0, 10], [4, 1])
    made = run_queue(jobs, jobs.arrival, cluster)
    assert made.stretches.start.tolist() == [0, 14]
    assert made.held_from.tolist() == [0, 11]
    # A node that is on is taken before one that would have to boot.
    jobs = workload([0, 0, 10], [1, 9, 1])
    made = run_queue(jobs, jobs.arrival, replace(cluster, nodes=2), keep_nodes=True)
    assert made.stretches.start.tolist() == [0, 0, 10]
    assert made.placed.node.tolist() == [0, 1, 1]


def test_a_power_cap_makes_jobs_wait():
    cluster = Cluster(nodes=2, cpus_per_node=4, idle_power_w=100, power_cap_w=500)
    jobs = workload([0, 0, 0], [10, 10, 10], power=[200, 200, 100])
    assert starts(jobs, cluster, "fifo") == [[0], [10], [10]]
    # Backfilling minds power as it minds nodes: the third may pass.
    assert starts(jobs, cluster, "easy") == [[0], [10], [0]]
    # Nodes that are off leave more for jobs: from 1 on there are 100 W more.
    cluster = replace(cluster, off_after_s=1)
    assert starts(jobs, cluster, "fifo") == [[0], [1], [10]]


def test_waking_nodes_for_others_does_not_take_the_power_of_the_first_in_the_queue():
    cluster = Cluster(nodes=4, cpus_per_node=1, idle_power_w=10, off_after_s=0, power_cap_w=190)
    jobs = workload([0, 0, 1, 2], [10, 5, 5, 5], nodes=[1, 2, 1, 1], power=[12, 150, 0, 0])
    # The second would take 22 W to 192 W. At 10 it gets its 170 W; the 10 W beside them are
    # enough for one more node until then, not for two.
    assert starts(jobs, cluster, "easy") == [[0], [10], [1], [6]]


# The slow queue.


def compared(case, discipline):
    cluster, jobs, ready = case
    # Longer than the last job runs: nodes go on, and those that are idle go off.
    slow = TickingQueue(cluster, jobs, ready, discipline).run(beyond_s=8)
    fast = run_queue(jobs, ready, cluster, discipline, keep_nodes=True)
    stretches, placed = fast.stretches, fast.placed
    columns = (
        stretches.job.tolist(),
        fast.held_from.tolist(),
        stretches.start.tolist(),
        stretches.work_s.tolist(),
        stretches.lost_s.tolist(),
        fast.held_until.tolist(),
        [placed.node[placed.stretch == row].tolist() for row in range(stretches.job.size)],
    )
    assert list(zip(*columns, strict=True)) == slow.rows
    assert spans_of(fast.nodes.until(slow.t)) == slow.spans
    # Nodes are told or not; jobs start when they start.
    untold = run_queue(jobs, ready, cluster, discipline)
    assert untold.stretches.start.tobytes() == stretches.start.tobytes()
    return slow


@settings(max_examples=drawn(37, 750))
@given(queues(), in_order)
def test_jobs_in_order_run_as_in_the_slow_queue(case, discipline):
    compared(case, discipline)


@settings(max_examples=CASES)
@given(queues())
def test_easy_runs_as_in_the_slow_queue(case):
    slow = compared(case, Easy())
    cluster, jobs, ready = case
    # How finely jobs are sorted into kinds makes no difference.
    with mock.patch.object(queueing, "_MOST_KINDS", 1):
        coarse = run_queue(jobs, ready, cluster, Easy(), keep_nodes=True)
    fine = run_queue(jobs, ready, cluster, Easy(), keep_nodes=True)
    assert coarse.held_from.tobytes() == fine.held_from.tobytes()
    assert coarse.placed.node.tobytes() == fine.placed.node.tobytes()
    if cluster.off_after_s is None:
        # Nobody waits longer than was promised when it first was the first in the queue.
        for job, promised in slow.promises.items():
            assert slow.starts_of_first[job] <= promised


@settings(max_examples=drawn(50, 1000))
@given(queues(turns=True), in_turns)
def test_jobs_in_turns_run_as_in_the_slow_queue(case, discipline):
    compared(case, discipline)


# What always holds, on more jobs than the slow queue could take.

CROWDED = Cluster(
    nodes=16, cpus_per_node=8, gpus_per_node=2, memory_bytes_per_node=64e9, idle_power_w=50
)
SWITCHED = replace(CROWDED, off_after_s=60, boot_s=90, boot_j=9000, shutdown_s=30)
CAPPED = replace(CROWDED, power_cap_w=16 * 50 + 1500)
ALL = ("fifo", "priority", "easy", RoundRobin(quantum_s=300, context_s=7), Feedback(boost_s=3600))


def crowd(seed, count=600):
    rng = np.random.default_rng(seed)
    nodes = rng.choice([1, 1, 1, 2, 5], count)
    length_s = rng.lognormal(6, 1.5, count)
    return workload(
        1.7e9 + rng.uniform(0, 40_000, count),
        length_s,
        cpus=nodes * rng.choice([0.5, 1, 2, 3, 8], count),
        gpus=nodes * rng.choice([0, 0, 1, 2], count),
        memory_bytes=nodes * rng.uniform(0, 40e9, count),
        nodes=nodes,
        power=rng.uniform(0, 400, count),
        priority=rng.integers(0, 4, count),
        requested_s=length_s * rng.uniform(1, 10, count),
        interruptible=ANYWHERE,
    )


@pytest.mark.parametrize("cluster", [CROWDED, SWITCHED, CAPPED], ids=["on", "switched", "capped"])
@pytest.mark.parametrize("discipline", ALL, ids=lambda each: getattr(each, "name", each))
def test_nodes_are_never_overcommitted_and_all_work_is_done(discipline, cluster):
    jobs = crowd(1)
    made = run_queue(jobs, jobs.arrival, cluster, discipline, keep_nodes=True)
    stretches, placed = made.stretches, made.placed
    which = stretches.job[placed.stretch]
    begin, end = made.held_from[placed.stretch], made.held_until[placed.stretch]
    for column, most in (
        (jobs.cpus, cluster.cpus_per_node),
        (jobs.gpus, cluster.gpus_per_node),
        (jobs.memory_bytes, cluster.memory_bytes_per_node),
    ):
        share = (column / jobs.nodes)[which]
        for node in range(cluster.nodes):
            here = placed.node == node
            assert most_at_once(begin[here], end[here], share[here]) <= most + 1e-3
    assert np.bincount(placed.stretch).tolist() == jobs.nodes[stretches.job].tolist()
    assert np.bincount(stretches.job, stretches.work_s) == pytest.approx(jobs.work_s)
    assert (stretches.start >= made.held_from).all()
    assert (made.held_from >= jobs.arrival[stretches.job]).all()
    if cluster.power_cap_w is not None:
        drawn_w = most_at_once(made.held_from, made.held_until, jobs.power[stretches.job])
        assert drawn_w + cluster.nodes * cluster.idle_power_w <= cluster.power_cap_w + 1e-3
        assert drawn_w > 1000


@pytest.mark.parametrize("cluster", [CROWDED, SWITCHED], ids=["on", "switched"])
@pytest.mark.parametrize("discipline", ALL, ids=lambda each: getattr(each, "name", each))
def test_spans_of_nodes_tile_the_time(discipline, cluster):
    jobs = crowd(2, count=100)
    made = run_queue(jobs, jobs.arrival, cluster, discipline)
    first, last = jobs.arrival.min(), made.held_until.max()
    spans = spans_of(made.node_spans)
    for node in range(cluster.nodes):
        own = [(begin, end) for which, begin, end, _ in spans if which == node]
        edges = [own[0][0], *(end for _, end in own)]
        assert [begin for begin, _ in own] == edges[:-1]
        assert (edges[0], edges[-1]) == (first, last)
        assert all(begin < end for begin, end in own)
    assert {kind for *_, kind in spans} <= set(SPAN_KINDS)
    whole_s = (made.node_spans.end - made.node_spans.begin).sum()
    assert whole_s == pytest.approx(cluster.nodes * (last - first), rel=1e-12)


@pytest.mark.parametrize("seed", range(3))
def test_fifo_keeps_the_order_and_others_keep_it_in_part(seed):
    jobs = crowd(seed)
    fifo, priority, easy = (
        run_queue(jobs, jobs.arrival, CROWDED, name).held_from
        for name in ("fifo", "priority", "easy")
    )
    assert (np.diff(fifo) >= 0).all()
    for level in range(4):
        assert (np.diff(priority[jobs.priority == level]) >= 0).all()
    assert easy.mean() < fifo.mean()


@pytest.mark.parametrize("discipline", ALL, ids=lambda each: getattr(each, "name", each))
def test_without_limits_everybody_starts_when_ready(discipline):
    jobs = crowd(3)
    ready = jobs.arrival + np.random.default_rng(0).uniform(0, 9000, len(jobs))
    roomy = replace(CROWDED, nodes=3000)
    made = run_queue(jobs, ready, roomy, discipline)
    assert made.stretches.start.tolist() == ready.tolist()
    assert made.stretches.job.tolist() == list(range(len(jobs)))
    assert made.held_from.tolist() == ready.tolist()


@pytest.mark.parametrize("discipline", ALL, ids=lambda each: getattr(each, "name", each))
def test_the_same_input_gives_the_same_bytes(discipline):
    jobs = crowd(4)

    def made():
        queued = run_queue(jobs, jobs.arrival, SWITCHED, discipline)
        return [
            column.tobytes()
            for column in (
                queued.stretches.job,
                queued.stretches.start,
                queued.stretches.work_s,
                queued.held_from,
                queued.held_until,
                queued.node_spans.begin,
                queued.node_spans.kind,
            )
        ]

    assert made() == made()


def test_whole_nodes_are_as_good_as_a_pool():
    rng = np.random.default_rng(5)
    nodes = rng.integers(1, 12, 400)
    jobs = workload(
        rng.uniform(0, 4000, 400),
        rng.uniform(1, 400, 400),
        nodes=nodes,
        cpus=nodes * rng.uniform(4.5, 8, 400),
        requested_s=rng.uniform(1, 900, 400),
        interruptible=ANYWHERE,
    )
    for discipline in ALL:
        pooled, named = (
            run_queue(jobs, jobs.arrival, CROWDED, discipline, keep_nodes=keep)
            for keep in (False, True)
        )
        assert pooled.stretches.start.tobytes() == named.stretches.start.tobytes()
        assert pooled.stretches.job.tobytes() == named.stretches.job.tobytes()


def test_parts_of_cpus_add_up_to_no_more_than_the_whole():
    # Seven times a seventh fits, and three jobs of ten thirds, however floats round.
    jobs = workload([0] * 8, [1] * 8, cpus=[1 / 7] * 7 + [1])
    assert starts(jobs, ONE_CPU, "fifo") == [[0]] * 7 + [[1]]
    jobs = workload([0] * 4, [1] * 4, cpus=[10] * 4, nodes=3)
    assert starts(jobs, Cluster(nodes=3, cpus_per_node=10), "fifo") == [[0]] * 3 + [[1]]


# What is refused.


def test_jobs_that_may_not_be_stopped_cannot_take_turns():
    jobs = workload([0, 0, 0], [5, 5, 5], interruptible=[ANYWHERE, 0, 0], id=["a", "b", "c"])
    with pytest.raises(InvalidJob, match=r"job b \(row 2\) and 1 other job may never be stopped"):
        run_queue(jobs, jobs.arrival, ONE_CPU, "round_robin")


def test_a_turn_is_longer_than_a_startup():
    profile = PowerProfile(
        startup=[Phase(name="load", duration_s=600, power_w=50)],
        work=[Phase(name="run", duration_s=4, power_w=100)],
    )
    jobs = workload([0], None, profile=0, profiles=[profile], interruptible=ANYWHERE, id=["a"])
    with pytest.raises(InvalidJob, match=r"600 s is over before job a \(row 1\).* than 600 s"):
        run_queue(jobs, jobs.arrival, ONE_CPU, "feedback")


def test_a_job_is_not_ready_before_it_arrives():
    jobs = workload([0, 100], [5, 5])
    with pytest.raises(InvalidInput, match=r"job 2 \(row 2\) is ready at 50, before its arrival"):
        run_queue(jobs, np.array([0.0, 50.0]), ONE_CPU)
    with pytest.raises(InvalidInput, match="1 instants were given for 2 jobs"):
        run_queue(jobs, np.array([0.0]), ONE_CPU)


def test_disciplines_have_names():
    assert make_discipline("fifo") == Fifo()
    assert [kind.name for kind in DISCIPLINES.values()] == list(DISCIPLINES)
    given = make_discipline("feedback", quanta_s=[60, 600], boost_s=3600)
    assert given == Feedback(quanta_s=(60, 600), boost_s=3600)
    assert make_discipline(given) is given


def test_what_is_no_discipline_is_refused():
    with pytest.raises(UnknownName, match="did you mean 'round_robin'"):
        make_discipline("roundrobin")
    with pytest.raises(InvalidInput, match=r"takes no quantum \(did you mean 'quantum_s'\?\)"):
        make_discipline("round_robin", quantum=5)
    with pytest.raises(InvalidInput, match="nor any other"):
        make_discipline("fifo", quantum_s=5)
    with pytest.raises(InvalidInput, match="to the discipline object itself"):
        make_discipline(Fifo(), quantum_s=5)
    with pytest.raises(InvalidInput, match="unlike 5"):
        make_discipline(5)
    for wrong in ({"quantum_s": 0}, {"quantum_s": float("nan")}, {"context_s": -1}):
        with pytest.raises(InvalidInput):
            RoundRobin(**wrong)
    for wrong in ({"quanta_s": ()}, {"quanta_s": (5, -1)}, {"boost_s": 0}):
        with pytest.raises(InvalidInput):
            Feedback(**wrong)
