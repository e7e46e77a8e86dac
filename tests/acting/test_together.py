"""Jobs that wait, planned together: clean hours are shared out, and no promise is touched."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from lowtide.acting.backend import PENDING, Look, Seen
from lowtide.acting.driver import Driver
from lowtide.acting.tag import Tag, encode
from lowtide.acting.together import Together, constant_of, read_nodes
from lowtide.acting.waits import WaitModel
from lowtide.errors import InvalidInput
from lowtide.signal import Signal
from lowtide.simulator.cluster import Cluster

HOUR_S = 3600.0
NOW = 1_700_000_000.0 // 3600 * 3600
# The sixth hour is the cleanest, and its neighbours come next.
GRID = Signal.from_values(
    [500.0, 500, 500, 300, 200, 100, 200, 300, 500, 500, 500, 500] * 4, start=NOW, step_s="1h"
)


class Queue:
    """A backend with jobs that wait, which are moved as they are told to be."""

    def __init__(self, count, *, hours=1.0, slack_h=20.0, busy=()):
        self.busy = {"main": list(busy)}
        self.jobs = {}
        for number in range(count):
            tag = Tag(
                token=f"t{number}",
                deadline=NOW + slack_h * HOUR_S,
                arrival=NOW,
                run_s=hours * HOUR_S,
                wait_s=0.0,
                begin=NOW + 120.0,
            )
            self.jobs[str(number)] = Seen(
                id=str(number),
                state=PENDING,
                submitted=NOW,
                begin=NOW + 120.0,
                why="BeginTime",
                comment=encode(tag),
                partition="main",
                cpus=4.0,
            )

    def now(self):
        return NOW

    def can(self):
        return frozenset(("stop", "boost"))

    def look(self):
        return Look(jobs=list(self.jobs.values()), now=NOW, busy=self.busy)

    def begin(self, job, at, comment):
        self.jobs[job.id] = replace(self.jobs[job.id], begin=at, comment=comment)


def begins(queue, clusters=lambda _: Cluster(nodes=1, cpus_per_node=4), *, alone=False):
    together = Together(clusters=clusters, profile=constant_of, seconds=5.0)
    driver = Driver(
        backend=queue,
        forecast=lambda _: GRID,
        waits=WaitModel(unknown_s=0.0),
        together=None if alone else together,
    )
    turn = driver.turn()
    # Whoever looks again moves nothing.
    assert not driver.turn().deeds
    hours = sorted((job.begin - NOW) / HOUR_S for job in queue.jobs.values())
    return hours, turn.problems


def grams(hours):
    """What jobs of a kilowatt for an hour come to."""
    begin_s = NOW + np.array(hours) * HOUR_S
    return float(GRID.integral(begin_s, begin_s + HOUR_S).sum()) / HOUR_S


def test_alone_all_want_the_same_hour_and_together_they_share_it():
    alone, _ = begins(Queue(3), alone=True)
    assert alone == pytest.approx([5.0] * 3, abs=0.01)
    # By hand: the cleanest hour and the two beside it, one after the other on the one node. The
    # next low comes only after the promise.
    shared, problems = begins(Queue(3, slack_h=11.0))
    assert shared == pytest.approx([4.0, 5.0, 6.0], abs=0.26)
    assert not problems


def test_who_may_wait_for_the_next_low_leaves_the_hours_beside_this_one_to_others():
    slack_h = 20.0
    shared, problems = begins(Queue(3, slack_h=slack_h))
    assert not problems
    # One after the other on the one node, and none later than its promise.
    assert min(later - sooner for sooner, later in pairwise(shared)) >= 1.0 - 0.01
    assert max(shared) <= slack_h - 1.0
    # Of hours within the promise two are cleanest. Beside the first alone it would come to 500 g.
    assert grams(shared) == pytest.approx(100.0 + 100.0 + 200.0, rel=0.02)


def test_nodes_on_which_others_run_are_left_to_them():
    shared, _ = begins(Queue(2, slack_h=9.0), alone=False)
    assert max(shared) < 7.0
    held, _ = begins(Queue(2, slack_h=11.0, busy=[(NOW + 6 * HOUR_S, 4.0)]))
    assert min(held) >= 6.0 - 0.01


def test_no_begin_is_later_than_its_promise():
    # Four jobs and little time: whatever the plan says, S counts.
    queue = Queue(4, slack_h=7.0)
    hours, _ = begins(queue)
    assert max(hours) <= 7.0 - 1.0 - 271.0 / HOUR_S + 1e-6


@pytest.mark.parametrize("fails", ["nobody says", "an error", "no room"])
def test_where_no_plan_is_made_each_is_planned_alone(fails):
    def clusters(_):
        if fails == "an error":
            raise InvalidInput("the nodes are away")
        return None if fails == "nobody says" else Cluster(nodes=1, cpus_per_node=1)

    hours, problems = begins(Queue(3), clusters)
    assert hours == pytest.approx([5.0] * 3, abs=0.01)
    assert bool(problems) is (fails == "an error")


def test_the_nodes_are_read_from_what_sinfo_says():
    text = (
        "main 4 64 (null)\nmain 2 16 (null)\ngpu 3 32+ gpu:h200:4(S:0-1),tmp:1\nodd\nx 0 4 (null)\n"
    )
    found = read_nodes(text)
    assert (found["main"].nodes, found["main"].cpus_per_node) == (4, 64)
    assert (found["gpu"].nodes, found["gpu"].cpus_per_node, found["gpu"].gpus_per_node) == (
        3,
        32,
        4,
    )
    assert set(found) == {"main", "gpu"}
