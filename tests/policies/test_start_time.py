"""At once, or in the cleanest slot."""

import numpy as np
import pytest
from hypothesis import given

from lowtide.job import Job
from lowtide.policies import plan
from lowtide.profile import PowerProfile
from lowtide.schedule import Schedule
from lowtide.signal import Signal
from support.strategies import cases

HOUR = 3600.0


def hourly(*values, start=0.0, **kwargs):
    return Signal.from_values(values, start=start, step_s="1h", **kwargs)


@given(cases())
def test_run_now_starts_at_arrival(case):
    job, signal = case
    made = plan(job, signal, policy="run_now")
    assert made.schedule == Schedule.uninterrupted(job, job.arrival)
    assert made.footprint == made.baseline
    assert made.saving in (0.0, None)


@given(cases(steps=(60.0, 300.0, 900.0, 3600.0)))
def test_lowest_slot_takes_the_first_lowest_value_within_the_wait(case):
    job, signal = case
    start = plan(job, signal, policy="lowest_slot").schedule.start
    # By numbers of steps rather than by instants, which round.
    into = (job.arrival - signal.start) / signal.step_s
    first = int(np.floor(into + 1e-6))
    last = int(np.floor(into + max(job.slack_s, 0.0) / signal.step_s + 1e-9))
    values = signal.values[first : max(last, first) + 1].tolist()
    chosen = first + values.index(min(values))
    want = max(job.arrival, signal.start + chosen * signal.step_s)
    assert start == pytest.approx(want, abs=1e-6)


def test_lowest_slot_looks_at_the_start_alone():
    job = Job(id="a", arrival=600, deadline="+4h", profile=PowerProfile.constant(1000, "2h"))
    assert plan(job, hourly(3, 1, 9, 9, 9), policy="lowest_slot").schedule.start == HOUR
    # The cheap hour that lies after the waiting time is out of reach.
    assert plan(job, hourly(3, 4, 4, 1, 1), policy="lowest_slot").schedule.start == 600
    # Ties go to the earliest, be it the arrival inside a step.
    assert plan(job, hourly(3, 3, 3, 3, 3), policy="lowest_slot").schedule.start == 600
    assert plan(job, hourly(3, 2, 2, 2, 2), policy="lowest_slot").schedule.start == HOUR


def test_lowest_slot_may_start_at_the_very_last_moment():
    job = Job(id="a", arrival=0, deadline="+3h", profile=PowerProfile.constant(1000, "1h"))
    assert plan(job, hourly(3, 2, 1), policy="lowest_slot").schedule.start == 2 * HOUR


@pytest.mark.parametrize("start", [1.72e9, 1_719_792_000.1, 1_719_792_000.7])
@pytest.mark.parametrize("step_s", [3600.0, 3600 / 7, 7.3])
def test_lowest_slot_finds_its_step_although_edges_round(start, step_s):
    # (edge - start) / step may come out a hair below a whole number.
    for cheap in range(1, 60):
        values = [9.0] * 60
        values[cheap] = 1.0
        signal = Signal.from_values(values, start=start, step_s=step_s)
        job = Job(
            id="a",
            arrival=start,
            deadline=signal.end,
            profile=PowerProfile.constant(1000, step_s / 2),
        )
        made = plan(job, signal, policy="lowest_slot")
        assert made.schedule.start == pytest.approx(start + cheap * step_s, abs=1e-6)
