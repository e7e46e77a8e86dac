"""Many jobs at once come to what each comes to alone."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import lowtide as lt
from lowtide.errors import InvalidInput, NotCovered
from lowtide.simulator import Cluster, simulate
from lowtide.simulator.series import Series
from lowtide.trace import STATUSES, Trace
from lowtide.workload import Workload

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


@settings(max_examples=40)
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


@settings(max_examples=30)
@given(days(("never", "anywhere", "checkpoints")), st.sampled_from(["run_now", "wait_awhile"]))
def test_power_over_time_adds_up(drawn, policy: str) -> None:
    jobs, signal = drawn
    done = simulate(jobs, signal, policy=policy)
    end = np.array([float(done.tally.end.max())])
    assert done.power.upto(end)[0] == pytest.approx(done.tally.energy_j.sum(), rel=1e-9)
    waited = (done.tally.start - done.jobs.arrival).sum()
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
        simulate(jobs, signal, policy="wait_awhile", cluster=Cluster(nodes=1, cpus_per_node=1))


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


def test_series() -> None:
    series = Series.of_spans(np.array([0.0, 2.0]), np.array([4.0, 3.0]), np.array([1.0, 10.0]))
    assert series.times.tolist() == [0.0, 2.0, 3.0, 4.0]
    assert series.values.tolist() == [1.0, 11.0, 1.0, 0.0]
    assert series.upto(np.array([-1.0, 2.5, 9.0])).tolist() == [0.0, 7.5, 14.0]
    assert series.mean(np.array([0.0, 2.0, 4.0])).tolist() == [1.0, 6.0]
