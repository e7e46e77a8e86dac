"""Stamps and intervals while somebody sets the clock."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lowtide.monitor import kernel_files
from lowtide.monitor.kernel_files import Clock
from lowtide.monitor.snapshot import Snapshot
from support.snapshots import snapshot

STEPS = st.lists(st.tuples(st.floats(0.1, 20.0), st.floats(-90.0, 5000.0)), max_size=4)


def taken(steps: list[tuple[float, float]]) -> list[tuple[Snapshot, float, float]]:
    """Return snapshots after times that pass, with the clock set in each by so much."""
    wall, boot = [1.7e9], [1000.0]
    made = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kernel_files.time, "time", lambda: wall[0])
        patch.setattr(kernel_files, "since_boot", lambda: boot[0])
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
def test_a_step_takes_as_long_as_it_took_or_little_less(steps: list[tuple[float, float]]) -> None:
    """Power is energy by the time between two stamps, so that those may not be too close."""
    made = taken([*steps, (1.0, 0.0), (1.0, 0.0)])
    for (before, _, _), (after, passed_s, wall) in pairwise(made):
        assert after.seconds_after(before) == pytest.approx(passed_s)
        assert -1e-5 <= after.time - wall < 1.0
        told_s = after.time - after.begins(before)
        assert max(passed_s / 2, passed_s - 1.0) - 1e-5 <= told_s <= passed_s + 1e-5


@given(passed_s=st.floats(0.1, 20.0), off_s=st.floats(-0.9, 0.9))
def test_no_time_is_there_twice_where_the_clock_was_not_set(passed_s: float, off_s: float) -> None:
    made = taken([(passed_s, off_s), (20.0, 0.0), (1.0, 0.0)])
    for (before, _, _), (after, _, _) in pairwise(made):
        assert before.time <= after.begins(before) < after.time


def test_stamps_wait_for_a_clock_that_went_back_by_less_than_a_second() -> None:
    made = taken([(0.5, 0.0), (0.5, -0.9), *[(0.5, 0.0)] * 4])
    ahead = [round(shot.time - wall, 2) for shot, _, wall in made]
    assert ahead == [0.0, 0.0, 0.65, 0.4, 0.15, 0.0, 0.0]


@pytest.mark.parametrize("passed_s", [2.0, 30.0])
@pytest.mark.parametrize("step_s", [-1.5, -20.0, -3600.0])
def test_stamps_follow_a_clock_that_was_set_back(passed_s: float, step_s: float) -> None:
    made = taken([(passed_s, 0.0), (passed_s, step_s), (passed_s, 0.0)])
    assert [shot.time - wall for shot, _, wall in made] == [0.0] * 4
    for (before, _, _), (after, _, _) in pairwise(made):
        assert after.time - after.begins(before) == pytest.approx(passed_s, abs=1e-5)


def test_a_step_forward_leaves_a_gap() -> None:
    made = taken([(10.0, 0.0), (10.0, 3600.0)])
    (before, _, _), (after, _, _) = made[1:]
    assert after.begins(before) - before.time == 3600.0
    assert after.time - after.begins(before) == 10.0
