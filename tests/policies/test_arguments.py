"""What Python callers give by mistake is answered in our own words: what it was, and what to do."""

from collections.abc import Callable

import numpy as np
import pytest

import lowtide as lt
from lowtide.errors import InvalidInput, LowtideError
from lowtide.job import Resources
from lowtide.policies.exact import Exact
from lowtide.schedule import State
from lowtide.signal import Signal
from lowtide.simulator import Cluster, simulate
from lowtide.workload import Workload

_CURVE = Signal.from_values([400, 100, 300, 200], start=0, step_s="1h")
_JOB = lt.Job(id="a", arrival=0, deadline="+4h", profile=lt.PowerProfile.constant(300, "1h"))
_MACHINES = {"nodes": 1, "cpus_per_node": 1}


class Silent:
    """A policy whose author forgot the return."""

    def decide(self, job: lt.Job, signal: Signal) -> None:
        """Decide nothing."""


def _planned_with(name: str) -> Callable[[], object]:
    return lambda: lt.plan_cluster([_JOB], Cluster(**_MACHINES), _CURVE, **{name: "x"})


WRONG: dict[str, tuple[Callable[[], object], str]] = {
    "one edge of a window": (lambda: Exact(forbidden=[("x",)]), "pairs of moments"),
    "a window alone": (lambda: Exact(forbidden=(0.0, 3600.0)), "pairs of moments"),
    "a number for windows": (lambda: Exact(forbidden=3600), "pairs of moments"),
    "a word for a moment": (lambda: Exact(forbidden=[("x", "y")]), "cannot read time 'x'"),
    "swapped": (lambda: lt.plan(_CURVE, _JOB), "is a Job, not a Signal"),
    "swapped in tradeoff": (lambda: lt.tradeoff(_CURVE, _JOB), "is a Job, not a Signal"),
    "a list": (lambda: lt.plan([_JOB], _CURVE), "not a list of 1: use plan_many"),
    "no job": (lambda: lt.plan(None, _CURVE), "is a Job, not None"),
    "no signal": (lambda: lt.plan(_JOB, None), "Signal or a Grid, not None"),
    "plain values": (lambda: lt.plan(_JOB, [1, 2]), "Signal or a Grid, not a list"),
    "no signal to simulate": (lambda: simulate([_JOB], None), "Signal or a Grid, not None"),
    "one job to simulate": (lambda: simulate(_JOB, _CURVE), "a list of Job, not one Job"),
    "no jobs to simulate": (lambda: simulate(None, _CURVE), "a list of Job, not a NoneType"),
    "other things": (lambda: simulate([_CURVE], _CURVE), "is a Job, not a Signal"),
    "one of many": (lambda: lt.plan_many(_JOB, _CURVE), "a list of Job, not one Job"),
    "none of many": (lambda: lt.plan_many([7], _CURVE), "is a Job, not a int"),
    "undecided": (lambda: lt.plan(_JOB, _CURVE, policy=Silent()), "Silent is to return a Decision"),
    "undecided among many": (
        lambda: simulate([_JOB], _CURVE, policy=Silent()),
        "job a: decide of Silent is to return a Decision, not None",
    ),
    "short column": (
        lambda: Workload(arrival=[0, 1, 2], deadline=[9, 9], work_s=1),
        "deadline has 2 values for 3 jobs",
    ),
    "short users": (
        lambda: Workload(arrival=[0, 1, 2], deadline=9, work_s=1, user=["a", "b"]),
        "user has 2 values for 3 jobs",
    ),
    "table as column": (
        lambda: Workload(arrival=[0, 1], deadline=9, work_s=np.ones((2, 2))),
        "work_s has 4 values for 2 jobs",
    ),
    "words as column": (
        lambda: Workload(arrival=[0, 1], deadline=9, work_s="long"),
        "work_s of a workload are numbers, one per job, not 'long'",
    ),
    "no list": (lambda: Workload(arrival=0, deadline=9, work_s=1), "one value per job, not 0"),
    "weight in words": (
        lambda: lt.plan(_JOB, _CURVE, weights={"carbon": "x"}),
        "the weight of carbon is a number of at least 0, not 'x'",
    ),
    "weight below 0": (
        lambda: lt.plan(_JOB, _CURVE, weights={"carbon": -1}),
        "the weight of carbon is a number of at least 0, not -1",
    ),
    "wait in words": (
        lambda: lt.plan(_JOB, _CURVE, weights={"carbon": 1, "wait": "x"}),
        "what a second of waiting counts is a number of at least 0, not 'x'",
    ),
    "no weights": (lambda: lt.plan(_JOB, _CURVE, weights=1), "weights say what each counts"),
    "no state": (lambda: lt.plan(_JOB, _CURVE, state="paused"), "state is a State"),
    "running in words": (lambda: State(now=0, running="yes"), "True or False, not 'yes'"),
    "watts in words": (
        lambda: Cluster(**_MACHINES, idle_power_w="x"),
        "idle_power_w is a number of at least 0, not 'x'",
    ),
    "pue in words": (lambda: Cluster(**_MACHINES, pue="x"), "pue is a number of at least 1"),
    "memory in words": (
        lambda: Cluster(**_MACHINES, memory_bytes_per_node="4G"),
        "memory_bytes_per_node is a number, not '4G'",
    ),
    "no cluster": (lambda: simulate([_JOB], _CURVE, cluster=4), "a cluster is a Cluster"),
    "true starts": (
        lambda: lt.Job(id="b", arrival=0, deadline="+4h", profile=_JOB.profile, max_starts=True),
        "max_starts is a whole number of at least 1, not True",
    ),
    "true CPUs": (lambda: Resources(cpus=True), "cpus must be a whole number"),
    "memory of a job": (
        lambda: Resources(memory_bytes="4G"),
        "memory_bytes is a number of at least 0",
    ),
    "queue without a cluster": (
        lambda: lt.plan_cluster([_JOB], None, _CURVE),
        "a cluster is a Cluster",
    ),
    **{
        f"{name} in words": (_planned_with(name), f"{name} is a number, not 'x'")
        for name in ("gap", "effort", "seconds")
    },
    "spread of a number": (
        lambda: lt.PowerProfile(work=_JOB.profile.work, spread=0.1),
        "is a Spread or None, not 0.1",
    ),
    "step of nothing": (lambda: Exact(step_s="0h"), "longer than 0 s"),
    "unreadable step": (lambda: Exact(step_s="often"), "cannot read duration 'often'"),
    "budget in words": (lambda: Exact(time_budget_s="x"), "time_budget_s is a number"),
    "queue without machines": (
        lambda: simulate([_JOB], _CURVE, discipline="round_robin"),
        "('round_robin'), but without a cluster",
    ),
    "the same by its other name": (
        lambda: simulate([_JOB], _CURVE, queue="round_robin"),
        "('round_robin'), but without a cluster",
    ),
    "twice the queue": (
        lambda: simulate(
            [_JOB], _CURVE, cluster=Cluster(**_MACHINES), queue="easy", discipline="easy"
        ),
        "discipline= and queue= say the same",
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_is_given_by_mistake_is_told_in_our_words(name):
    do, words = WRONG[name]
    with pytest.raises(LowtideError) as caught:
        do()
    assert words in str(caught.value)


def test_a_step_is_read_alike_by_the_planner_and_by_plan():
    assert Exact(step_s="1h") == Exact(step_s=3600)
    anywhere = lt.Job(
        id="a", arrival=0, deadline="+4h", profile=_JOB.profile, interruptible="anywhere"
    )
    by_object = lt.plan(anywhere, _CURVE, policy=Exact(step_s="30m"))
    by_name = lt.plan(anywhere, _CURVE, step_s="30m")
    assert by_object.schedule == by_name.schedule
    assert by_object.step_s == by_name.step_s == 1800


def test_a_queue_is_served_by_either_name():
    cluster = Cluster(**_MACHINES)
    for words in ({"queue": "easy"}, {"discipline": "easy"}):
        assert simulate([_JOB], _CURVE, cluster=cluster, **words).discipline == "easy"
    assert simulate([_JOB], _CURVE, cluster=cluster).discipline == "fifo"
    assert simulate([_JOB], _CURVE).discipline is None


def test_columns_of_a_workload_take_one_value_for_all():
    assert Workload(arrival=[0, 1], deadline=[9], work_s=1, cpus=2).cpus.tolist() == [2, 2]
    with pytest.raises(InvalidInput):
        Workload(arrival=[0, 1], deadline=[9, 9, 9], work_s=1)
