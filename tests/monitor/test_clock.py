"""Stamps and intervals while somebody sets the clock."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lowtide.monitor import clock
from lowtide.monitor.clock import Clock
from lowtide.monitor.snapshot import Snapshot
from support.snapshots import snapshot

# Two steps back come to less than stamps wait for, even before the first is made up for.
STEPS = st.lists(st.tuples(st.floats(0.1, 20.0), st.floats(-25.0, 5000.0)), max_size=2)


def taken(steps: list[tuple[float, float]]) -> list[tuple[Snapshot, float, float]]:
    """Return snapshots after times that pass, with the clock set in each by so much."""
    wall, boot = [1.7e9], [1000.0]
    made = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(clock.time, "time", lambda: wall[0])
        patch.setattr(clock, "since_boot", lambda: boot[0])
        ticking = Clock()
        empty = snapshot(0.0, of=(), cpu_s=[], busy_s=0.0)
        for passed_s, step_s in [(0.0, 0.0), *steps]:
            boot[0] += passed_s
            wall[0] += passed_s + step_s
            moment = ticking.look()
            assert moment.ahead_s == moment.time - wall[0]
            told_s = moment.stepped_s or (step_s if abs(step_s) < 1.001 else 0.0)
            assert told_s == pytest.approx(step_s, abs=1e-5)
            made.append(
                (replace(empty, time=moment.time, clock_s=moment.since_boot), passed_s, wall[0])
            )
    return made


@given(steps=STEPS)
def test_no_time_is_there_twice_and_every_interval_is_whole(
    steps: list[tuple[float, float]],
) -> None:
    made = taken([*steps, (1.0, 0.0), (1.0, 0.0)])
    for (before, _, _), (after, passed_s, wall) in pairwise(made):
        assert after.seconds_after(before) == pytest.approx(passed_s)
        assert before.time <= after.begins(before) < after.time
        assert after.time >= wall
        assert after.time_of(before) <= after.begins(before)


def test_stamps_wait_for_a_clock_that_was_set_back_a_little() -> None:
    made = taken([(10.0, 0.0), (10.0, -30.0), *[(10.0, 0.0)] * 6])
    ahead = [round(shot.time - wall) for shot, _, wall in made]
    assert ahead == [0, 0, 25, 20, 15, 10, 5, 0, 0]


def test_stamps_follow_a_clock_that_was_set_back_by_much() -> None:
    made = taken([(10.0, 0.0), (10.0, -3600.0), (10.0, 0.0)])
    assert [shot.time - wall for shot, _, wall in made] == [0.0] * 4
    (before, _, _), (after, _, _) = made[1:3]
    assert after.time - after.begins(before) == 10.0


def test_a_step_forward_leaves_a_gap() -> None:
    made = taken([(10.0, 0.0), (10.0, 3600.0)])
    (before, _, _), (after, _, _) = made[1:]
    assert after.begins(before) - before.time == 3600.0
    assert after.time - after.begins(before) == 10.0
