"""Many jobs at once come to what each comes to alone."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import lowtide as lt
from lowtide.errors import InvalidInput, InvalidJob, NotCovered, UnknownName
from lowtide.policies.policy import make_policy
from lowtide.profile import PowerProfile
from lowtide.simulator import Cluster, simulate
from lowtide.simulator.disciplines import Feedback, RoundRobin
from lowtide.states import STATUSES
from lowtide.trace import Trace
from lowtide.workload import Workload
from support.clusters import queues
from support.nightly import drawn

HOUR = 3600.0
START_POLICIES = ("run_now", "latest", "lowest_slot", "lowest_window", "oracle", "carbon_time")
ANY_POLICIES = (*START_POLICIES, "wait_awhile", "threshold", "exact", "dtpr")


@st.composite
def days(draw, interruptible=("never",)):
    """Some jobs in a few days of a signal that covers them all."""
    values = draw(st.lists(st.integers(0, 600), min_size=96, max_size=96))
    signal = lt.Signal.from_values(values, start=0, step_s=HOUR)
    jobs = []
    for number in range(draw(st.integers(1, 6))):
        minutes = draw(st.sampled_from([7, 30, 60, 95, 240]))
        if draw(st.booleans()):
            profile = lt.PowerProfile.constant(draw(st.sampled_from([50, 300])), 60.0 * minutes)
        else:
            profile = lt.PowerProfile(
                startup=[lt.Phase(name="s", duration_s=120, power_w=80)],
                work=[
                    lt.Phase(name="a", duration_s=60.0 * minutes, power_w=400, checkpoint=True),
                    lt.Phase(name="b", duration_s=1800, power_w=90),
                ],
            )
        jobs.append(
            lt.Job(
                id=f"j{number}",
                arrival=float(draw(st.integers(0, 40 * 3600))),
                deadline=f"+{draw(st.sampled_from([6, 12, 30]))}h",
                profile=profile,
                interruptible=draw(st.sampled_from(interruptible)),
                resources=lt.Resources(cpus=draw(st.integers(1, 4))),
            )
        )
    return jobs, signal


@settings(max_examples=drawn(20, 400))
@given(days(("never", "anywhere")), st.sampled_from(ANY_POLICIES))
def test_a_simulation_is_its_plans(drawn, policy: str) -> None:
    jobs, signal = drawn
    done = simulate(jobs, signal, policy=policy)
    order = np.argsort([job.arrival for job in jobs], kind="stable")
    for row, number in enumerate(order):
        alone = lt.plan(jobs[number], signal, policy=policy)
        assert done.tally.carbon_g[row] == pytest.approx(
            alone.footprint.carbon_g, rel=1e-9, abs=1e-9
        )
        assert done.tally.start[row] == pytest.approx(alone.schedule.start, abs=1e-5)
        assert done.baseline.carbon_g[row] == pytest.approx(alone.baseline.carbon_g, rel=1e-9)
        assert done.tally.starts[row] == alone.schedule.starts
        done.schedule(row).check(jobs[number])
    assert not done.missed.any()


@settings(max_examples=30)
@given(days(), st.sampled_from(START_POLICIES), st.sampled_from(["fifo", "easy", "priority"]))
def test_machines_to_spare_change_nothing(drawn, policy: str, discipline: str) -> None:
    jobs, signal = drawn
    free = simulate(jobs, signal, policy=policy)
    roomy = Cluster(nodes=len(jobs), cpus_per_node=4)
    queued = simulate(jobs, signal, policy=policy, cluster=roomy, discipline=discipline)
    assert queued.tally.start == pytest.approx(free.tally.start, abs=1e-6)
    assert queued.tally.carbon_g == pytest.approx(free.tally.carbon_g, rel=1e-9)
    for name in ("carbon_g", "mean_wait_s", "deadline_misses"):
        assert queued.summary()[name] == pytest.approx(free.summary()[name], rel=1e-9, abs=1e-6)


def ran_s(done):
    """How long each stretch takes; no profile here has stop phases."""
    stretches = done.stretches
    return stretches.work_s + stretches.lost_s + done.jobs.startup_s[stretches.job]


@settings(max_examples=30)
@given(days(("never", "anywhere", "checkpoints")), st.sampled_from(["run_now", "wait_awhile"]))
def test_power_over_time_adds_up(drawn, policy: str) -> None:
    jobs, signal = drawn
    done = simulate(jobs, signal, policy=policy)
    end = np.array([float(done.tally.end.max())])
    assert done.power.upto(end)[0] == pytest.approx(done.tally.energy_j.sum(), rel=1e-9)
    waited = (done.tally.end - done.jobs.arrival).sum() - ran_s(done).sum()
    assert done.queue.upto(end)[0] == pytest.approx(waited, rel=1e-9, abs=1e-6)


def test_a_run_as_a_whole() -> None:
    signal = lt.Signal.from_values([400, 100, 100, 400], start=0, step_s=HOUR)
    jobs = Workload(
        arrival=[0, 0],
        deadline=[4 * HOUR, 4 * HOUR],
        work_s=[HOUR, HOUR],
        power=[1000, 1000],
        cpus=[2, 2],
        status=[STATUSES.index("completed"), STATUSES.index("failed")],
    )
    cluster = Cluster(nodes=1, cpus_per_node=2, idle_power_w=100, pue=1.5)
    numbers = simulate(jobs, signal, cluster=cluster, policy="run_now", baseline=None).summary()
    # One after the other: 0.4 and 0.1 kg, half as much again for the site.
    assert numbers["carbon_g"] == pytest.approx(750.0)
    assert numbers["energy_j"] == pytest.approx(7.2e6)
    assert numbers["wasted_energy_j"] == pytest.approx(3.6e6)
    assert (numbers["mean_wait_s"], numbers["max_wait_s"]) == (1800.0, 3600.0)
    assert numbers["mean_slowdown"] == 1.5
    assert numbers["utilisation"] == pytest.approx(1.0)
    assert numbers["node_energy_j"] == pytest.approx(100 * 7200)
    assert numbers["node_carbon_g"] == pytest.approx(0.1 * 500 * 1.5)
    assert (numbers["mean_queue"], numbers["max_queue"]) == (0.5, 1.0)
    assert numbers["deadline_misses"] == 0
    assert "saving" not in numbers


SAVING = PowerProfile(
    startup=[lt.Phase(name="s", duration_s=60, power_w=80)],
    work=[lt.Phase(name="w", duration_s=1800, power_w=300)],
    stop=[lt.Phase(name="e", duration_s=30, power_w=50)],
)


@pytest.mark.parametrize(
    "discipline",
    [
        RoundRobin(quantum_s=400),
        RoundRobin(quantum_s=200, context_s=20),
        Feedback(quanta_s=(300,)),
        Feedback(quanta_s=(100, 300, 900), boost_s=1000, context_s=5),
    ],
    ids=lambda each: f"{each.name}-{each.context_s:g}",
)
def test_the_queue_counts_everybody_who_does_not_run(discipline) -> None:
    rng = np.random.default_rng(4)
    arrival = np.sort(rng.uniform(0, 3 * HOUR, 40))
    jobs = Workload(
        arrival=arrival,
        deadline=arrival + 1e5,
        work_s=1800,
        profile=[0, -1] * 20,
        profiles=[SAVING],
        power=1,
        interruptible=1,
    )
    signal = lt.Signal.from_values([100.0] * 50, start=0, step_s=HOUR)
    cluster = Cluster(nodes=1, cpus_per_node=3)
    done = simulate(jobs, signal, cluster=cluster, discipline=discipline, baseline=None)
    assert done.tally.starts.max() > 2

    # Look at the spans of every job at many instants.
    instants = np.sort(rng.uniform(0, done.tally.end.max(), 400))
    there = np.zeros(instants.size)
    for row in range(len(jobs)):
        running = np.zeros(instants.size, dtype=bool)
        for span in done.schedule(row).spans:
            if span.kind != "suspended":
                running |= (span.start <= instants) & (instants < span.end)
        there += (arrival[row] <= instants) & (instants < done.tally.end[row]) & ~running
    series = done.queue
    found = series.values[np.searchsorted(series.times, instants, side="right") - 1]
    assert found.tolist() == there.tolist()
    assert done.summary()["max_queue"] >= there.max() > 5


def test_the_queue_of_three_jobs_in_turns() -> None:
    signal = lt.Signal.from_values([100.0] * 2, start=0, step_s=HOUR)
    jobs = Workload(arrival=[0, 0, 0], deadline=99, work_s=[5, 3, 4], power=1, interruptible=1)
    one = Cluster(nodes=1, cpus_per_node=1)
    turns = simulate(jobs, signal, cluster=one, discipline=RoundRobin(quantum_s=2)).summary()
    # A 0-2, 6-8, 11-12; B 2-4, 8-9; C 4-6, 9-11: two wait until 9, then one until 11.
    assert turns["mean_queue"] == pytest.approx((2 * 9 + 1 * 2) / 12)
    assert turns["max_queue"] == 2


def test_a_saving_counts_the_nodes() -> None:
    values = [300.0] * 9 + [100.0] + [300.0] * 20
    signal = lt.Signal.from_values(values, start=0, step_s=HOUR)
    jobs = Workload(arrival=[0, 0], deadline=12 * HOUR, work_s=HOUR, power=1000)
    always = Cluster(nodes=10, cpus_per_node=1, idle_power_w=200, pue=1.5)
    waits = simulate(jobs, signal, policy="oracle", cluster=always)
    numbers = waits.summary()
    assert numbers["jobs_saving"] == pytest.approx(2 / 3)
    # Nodes that are never off draw the same whoever decides: 2 kW for ten hours.
    assert numbers["node_energy_j"] == pytest.approx(2000 * 10 * HOUR)
    assert (numbers["idle_energy_j"], numbers["boot_energy_j"]) == (numbers["node_energy_j"], 0.0)
    nodes_g = 1.5 * 2 * (9 * 300 + 100)
    assert numbers["node_carbon_g"] == pytest.approx(nodes_g)
    jobs_g = 1.5 * 2 * 300
    assert numbers["baseline_amount"] == pytest.approx(jobs_g + nodes_g)
    assert numbers["saving"] == pytest.approx(1 - (jobs_g / 3 + nodes_g) / (jobs_g + nodes_g))

    # Nodes that go off at once are spared by who runs at once, and woken by who waits.
    off = replace(always, off_after_s=0.0, boot_s=600.0, boot_j=600.0 * 400)
    waits = simulate(jobs, signal, policy="oracle", cluster=off).summary()
    assert waits["boot_energy_j"] == pytest.approx(2 * 600 * 400)
    at_once = simulate(jobs, signal, policy="run_now", cluster=off).summary()
    assert at_once["saving"] == at_once["jobs_saving"] == 0.0
    jobs_of = {"waits": 1.5 * 2 * (300 * 10 / 60 + 100 * 50 / 60), "at once": jobs_g}
    nodes_of = {"waits": None, "at once": 1.5 * 2 * 0.2 * 300}
    # Two nodes boot from 9:00, at 400 W, and run from 9:10 to 10:10.
    nodes_of["waits"] = 1.5 * 2 * (0.4 * 100 / 6 + 0.2 * (100 * 50 / 60 + 300 * 10 / 60))
    total = {name: jobs_of[name] + nodes_of[name] for name in jobs_of}
    assert waits["baseline_amount"] == pytest.approx(total["at once"])
    assert waits["saving"] == pytest.approx(1 - total["waits"] / total["at once"])
    assert waits["saving"] < waits["jobs_saving"]


def test_a_small_saving_of_the_jobs_may_cost_more_in_nodes() -> None:
    signal = lt.Signal.from_values([110.0] + [100.0] * 20, start=0, step_s=HOUR)
    jobs = Workload(arrival=[0, 0], deadline=4 * HOUR, work_s=HOUR, power=100)
    cluster = Cluster(
        nodes=2,
        cpus_per_node=1,
        idle_power_w=200,
        off_after_s=HOUR / 4,
        boot_s=60,
        boot_j=200_000,
    )
    waits = simulate(jobs, signal, policy="oracle", cluster=cluster)
    numbers = waits.summary()
    assert numbers["jobs_saving"] > 0 > numbers["saving"]
    # Under both policies nodes are told of from the first arrival until both are done.
    for spans in (waits.node_spans, waits.baseline_node_spans):
        assert (spans.begin.min(), spans.end.max()) == (0.0, 2 * HOUR + 60)


def test_where_nodes_draw_nothing_a_saving_is_that_of_the_jobs() -> None:
    signal = lt.Signal.from_values([300.0, 100.0, 300.0], start=0, step_s=HOUR)
    jobs = Workload(arrival=[0], deadline=3 * HOUR, work_s=HOUR, power=1000)
    numbers = simulate(
        jobs, signal, policy="oracle", cluster=Cluster(nodes=1, cpus_per_node=1)
    ).summary()
    assert numbers["saving"] == pytest.approx(2 / 3)
    assert "jobs_saving" not in numbers
    assert numbers["node_energy_j"] == 0.0


def test_nodes_are_charged_by_price_where_there_is_nothing_else() -> None:
    signal = lt.Signal.from_values(
        [30.0, 10.0, 30.0], start=0, step_s=HOUR, kind="price", unit="EUR/kWh"
    )
    jobs = Workload(arrival=[0], deadline=3 * HOUR, work_s=HOUR, power=1000)
    cluster = Cluster(nodes=1, cpus_per_node=1, idle_power_w=1000)
    numbers = simulate(jobs, signal, policy="oracle", cluster=cluster).summary()
    assert (numbers["node_carbon_g"], numbers["node_cost"]) == (None, pytest.approx(40.0))
    assert numbers["saving"] == pytest.approx(1 - (10 + 40) / (30 + 40))


def test_jobs_that_fit_nowhere_are_refused_or_dropped_and_counted() -> None:
    signal = lt.Signal.from_values([100.0] * 9, start=0, step_s=HOUR)
    jobs = Workload(
        arrival=0 * np.arange(3), deadline=9 * HOUR, work_s=HOUR, power=1, cpus=[1, 3, 2]
    )
    cluster = Cluster(nodes=4, cpus_per_node=2)
    with pytest.raises(InvalidJob, match=r"3 CPUs on a node that has 2: .*run\.oversized = 'drop'"):
        simulate(jobs, signal, cluster=cluster)
    done = simulate(jobs, signal, cluster=cluster, oversized="drop")
    assert done.jobs.id.tolist() == [1, 3]
    assert (done.summary()["jobs"], done.summary()["left_out_oversized"]) == (2, 1)
    assert "left_out_oversized" not in simulate(jobs, signal, oversized="drop").summary()
    with pytest.raises(InvalidJob, match="3 CPUs"):
        simulate(jobs.take(slice(1, 2)), signal, cluster=cluster, oversized="drop")
    with pytest.raises(UnknownName, match="did you mean 'drop'"):
        simulate(jobs, signal, cluster=cluster, oversized="drp")


def test_a_job_on_a_cluster_holds_something() -> None:
    signal = lt.Signal.from_values([100.0] * 9, start=0, step_s=HOUR)
    jobs = Workload(arrival=[0, 0], deadline=9 * HOUR, work_s=HOUR, power=1, cpus=[1, 0])
    cluster = Cluster(nodes=1, cpus_per_node=2, gpus_per_node=1)
    for policy in ("run_now", "reserved_first"):
        with pytest.raises(InvalidJob, match=r"job 2 \(row 2\) holds neither .*workload\.cpus"):
            simulate(jobs, signal, cluster=cluster, policy=policy)
    assert simulate(jobs, signal).summary()["jobs"] == 2
    of_gpus = Workload(arrival=[0], deadline=9 * HOUR, work_s=HOUR, power=1, cpus=0, gpus=1)
    assert simulate(of_gpus, signal, cluster=cluster).summary()["jobs"] == 1


def test_rows_of_a_trace_that_never_ran_are_counted() -> None:
    trace = Trace(columns={"arrival": [0, 1, 2], "length_s": [0, 60, np.nan], "cpus": [1, 1, 1]})
    jobs = Workload.from_trace(trace, wait="1h")
    signal = lt.Signal.from_values([100.0] * 9, start=0, step_s=HOUR)
    numbers = simulate(jobs, signal).summary()
    assert (numbers["jobs"], numbers["left_out_never_ran"]) == (1, 2)


def test_a_full_machine_makes_jobs_miss_their_deadline() -> None:
    signal = lt.Signal.from_values([100.0] * 6, start=0, step_s=HOUR)
    jobs = Workload(arrival=[0, 0, 0], deadline=2.5 * HOUR, work_s=HOUR, power=1)
    numbers = simulate(jobs, signal, cluster=Cluster(nodes=1, cpus_per_node=1)).summary()
    assert numbers["deadline_misses"] == 1
    assert numbers["saving"] == 0.0


def test_a_signal_that_ends_too_early_says_by_how_long() -> None:
    signal = lt.Signal.from_values([100.0, 300.0], start=0, step_s=HOUR)
    jobs = Workload(arrival=[0], deadline=[5 * HOUR], work_s=[5 * HOUR], power=[1000])
    with pytest.raises(NotCovered, match=r"3 h longer: .*--repeat-signal"):
        simulate(jobs, signal)
    again = simulate(jobs, signal, repeat_signal=True)
    assert again.tally.carbon_g[0] == pytest.approx(100 + 300 + 100 + 300 + 100)
    # A queue may need more than the deadlines do.
    late = Workload(arrival=[0, 0], deadline=2 * HOUR, work_s=2 * HOUR, power=1000)
    crowded = Cluster(nodes=1, cpus_per_node=1)
    with pytest.raises(NotCovered, match="2 h longer"):
        simulate(late, signal, cluster=crowded)
    assert simulate(late, signal, cluster=crowded, repeat_signal=True).missed.tolist() == [
        False,
        True,
    ]


def test_what_cannot_be_simulated_is_refused() -> None:
    signal = lt.Signal.from_values([100.0, 10.0, 100.0, 10.0], start=0, step_s=HOUR)
    with pytest.raises(InvalidInput, match=r"Workload\.from_trace"):
        simulate(Trace(columns={"arrival": [0], "length_s": [5], "cpus": [1]}), signal)
    with pytest.raises(InvalidInput, match="no jobs"):
        simulate([], signal)
    jobs = Workload(arrival=[0], deadline=4 * HOUR, work_s=2 * HOUR, power=1, interruptible=1)
    with pytest.raises(InvalidInput, match="use a start policy"):
        simulate(
            jobs,
            signal,
            policy="wait_awhile",
            cluster=Cluster(nodes=1, cpus_per_node=1),
            discipline="feedback",
        )


def test_the_table_has_every_job() -> None:
    signal = lt.Signal.from_values([100.0, 10.0, 100.0, 10.0], start=0, step_s=HOUR)
    jobs = Workload(arrival=[0, 60], deadline=4 * HOUR, work_s=HOUR, power=1000, id=["a", "b"])
    table = simulate(jobs, signal, policy="oracle").table()
    assert table["id"].to_list() == ["a", "b"]
    assert table["carbon_g"].to_list() == [10.0, 10.0]
    assert table["saving"].to_list() == pytest.approx([0.9, 1 - 10 / 98.5])
    assert table["missed"].to_list() == [False, False]


def test_reserved_machines_are_paid_used_or_not() -> None:
    signal = lt.Signal.from_values([100.0] * 30, start=0, step_s=HOUR)
    jobs = Workload(arrival=[0, 0], deadline=9 * HOUR, work_s=HOUR, power=1, cpus=[1, 1])
    cluster = Cluster(nodes=1, cpus_per_node=1, reserved_cpus=1)
    done = simulate(jobs, signal, policy="reserved_first", cluster=cluster)
    assert done.summary()["machine_cost"] == pytest.approx(
        cluster.reserved_price * 1 * (done.tally.end.max() / HOUR)
        + sum(done.bought.cost[1:])
    )  # fmt: skip
    assert done.table()["bought"].to_list()[0] == "reserved"


@pytest.mark.parametrize(
    ("policy", "used"), [("reserved_first", 2 * 1 / (3 * 1.5)), ("spot_first", None)]
)
def test_of_bought_machines_the_reserved_ones_are_used_or_not(policy: str, used) -> None:
    signal = lt.Signal.from_values([100.0] * 30, start=0, step_s=HOUR)
    # Two of three reserved CPUs are busy for an hour; the second job finds too few of them.
    jobs = Workload(arrival=[0, HOUR / 2], deadline=9 * HOUR, work_s=HOUR, power=1, cpus=[2, 4])
    cluster = Cluster(nodes=1, cpus_per_node=4, reserved_cpus=3)
    done = simulate(jobs, signal, policy=make_policy(policy, start="run_now")[1], cluster=cluster)
    assert done.discipline is None
    found = done.summary()["utilisation"]
    assert found == (None if used is None else pytest.approx(used))
    without = Cluster(nodes=1, cpus_per_node=4)
    assert (
        simulate(
            jobs, signal, policy=make_policy(policy, start="run_now")[1], cluster=without
        ).summary()["utilisation"]
        is None
    )


@given(queues(switched=True), st.sampled_from(["carbon", "price", "grid"]))
@settings(max_examples=25, deadline=None)
def test_a_saving_is_told_of_numbers_that_stand_beside_it(case, kind):
    cluster, jobs, _ = case
    assume(bool((jobs.cpus + jobs.gpus > 0).all()))
    until = float(jobs.deadline.max()) + 4e6
    values = np.random.default_rng(int(jobs.work_s.sum())).uniform(50, 500, 400)
    span = (until - float(jobs.arrival.min())) / 400 + 1
    carbon = lt.Signal.from_values(values, start=float(jobs.arrival.min()), step_s=span)
    price = lt.Signal.from_values(
        values[::-1], start=carbon.start, step_s=span, kind="price", unit="EUR/MWh"
    )
    signal = {"carbon": carbon, "price": price, "grid": lt.Grid(average=carbon, price=price)}[kind]
    numbers = simulate(jobs, signal, policy="latest", cluster=cluster).summary()
    counted = "cost" if kind == "price" else "carbon_g"
    for what in ("energy_j", "carbon_g", "cost"):
        for of in ("", "baseline_"):
            parts = [numbers[f"{of}{part}{what}"] for part in ("", "node_", "total_")]
            if (what == "carbon_g" and kind == "price") or (what == "cost" and kind == "carbon"):
                assert parts == [None] * 3
            else:
                assert parts[2] == pytest.approx(parts[0] + parts[1], rel=1e-12)
    ours, theirs = numbers[f"total_{counted}"], numbers[f"baseline_total_{counted}"]
    assert theirs == numbers["baseline_amount"]
    assert numbers["saving"] == (pytest.approx(1 - ours / theirs) if theirs > 0 else None)
    assert numbers["currency"] == (None if kind == "carbon" else "EUR")


def test_what_was_imputed_is_counted_in_the_time_of_the_run():
    marks = np.array([1, 0, 0, 2, 0, 1, 1, 1], dtype=np.uint8)
    curve = lt.Signal.from_values([1.0] * 8, start=0, step_s="1h", marks=marks)
    profile = PowerProfile.constant(100, "1h")
    jobs = [lt.Job(id="a", arrival=3600, deadline="+4h", profile=profile)]
    for policy, share in (("run_now", 0.0), ("latest", 1 / 4)):
        done = simulate(jobs, curve, policy=policy)
        assert done.summary()["imputed_share"] == pytest.approx(share)
    assert done.used_signal.caveat == "1 of 4 steps imputed (filled in or estimated)"
