"""From what a policy wants to what the real job does."""

import math
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lowtide.job import Job
from lowtide.policies.stopping import carry_out, run_from
from lowtide.profile import Phase, PowerProfile
from support import published_oracles
from support.nightly import drawn
from support.strategies import cases


def phase(name, duration_s, **kwargs):
    return Phase(name=name, duration_s=duration_s, power_w=100, **kwargs)


def make(*, startup=10, work=(100,), stop=0, deadline=1000, **kwargs):
    last = len(work) - 1
    profile = PowerProfile(
        startup=[phase("load", startup)] if startup else [],
        work=[phase(f"w{i}", s, checkpoint=i < last) for i, s in enumerate(work)],
        stop=[phase("save", stop)] if stop else [],
    )
    rules = {"interruptible": "anywhere"} | kwargs
    return Job(id="a", arrival=0, deadline=deadline, profile=profile, **rules)


def carried(job, *wanted):
    schedule = carry_out(job, wanted)
    schedule.check(job)
    return [(span.kind, span.start, span.end) for span in schedule.spans]


def same(one, other):
    """Hold what the kernel does against the same rules written down plainly."""
    assert [span.kind for span in one.spans] == [span.kind for span in other.spans]
    for name in ("start", "duration_s", "progress_s"):
        got, want = ([getattr(span, name) for span in each.spans] for each in (one, other))
        assert got == pytest.approx(want, rel=0, abs=1e-6)


def test_a_startup_is_placed_just_before_its_work():
    assert carried(make(), (200.0, 300.0)) == [("startup", 190, 200), ("work", 200, 300)]


def test_work_wanted_at_arrival_begins_after_the_startup():
    assert carried(make(), (0.0, 100.0)) == [("startup", 0, 10), ("work", 10, 110)]


def test_stretches_far_apart_are_two_starts():
    assert carried(make(), (100.0, 150.0), (300.0, 350.0)) == [
        ("startup", 90, 100),
        ("work", 100, 150),
        ("suspended", 150, 290),
        ("startup", 290, 300),
        ("work", 300, 350),
    ]


@pytest.mark.parametrize(("gap", "starts"), [(5.0, 1), (10.0, 1), (11.0, 2)])
def test_stretches_closer_than_a_startup_are_joined(gap, starts):
    got = carried(make(), (100.0, 150.0), (150.0 + gap, 200.0 + gap))
    assert sum(kind == "startup" for kind, _, _ in got) == starts
    if starts == 1:
        assert got == [("startup", 90, 100), ("work", 100, 200)]


@pytest.mark.parametrize(("gap", "starts"), [(30.0, 1), (31.0, 2)])
def test_a_stop_counts_into_the_gap(gap, starts):
    got = carried(make(stop=20), (100.0, 150.0), (150.0 + gap, 200.0 + gap))
    assert sum(kind == "startup" for kind, _, _ in got) == starts
    if starts == 2:
        assert ("stop", 150, 170) in got


def test_a_stop_between_checkpoints_loses_work_and_does_it_again():
    job = make(work=(50, 50), interruptible="checkpoints", stop=5)
    assert carried(job, (100.0, 170.0), (300.0, 330.0)) == [
        ("startup", 90, 100),
        ("work", 100, 150),
        ("lost", 150, 170),
        ("stop", 170, 175),
        ("suspended", 175, 290),
        ("startup", 290, 300),
        ("work", 300, 350),  # 20 s longer than was wished for
    ]


def test_a_stop_before_the_first_checkpoint_loses_everything():
    job = make(work=(50, 50), interruptible="checkpoints")
    assert carried(job, (100.0, 130.0), (300.0, 370.0)) == [
        ("startup", 90, 100),
        ("lost", 100, 130),
        ("suspended", 130, 290),
        ("startup", 290, 300),
        ("work", 300, 400),
    ]


def test_a_stop_at_a_checkpoint_keeps_everything():
    job = make(work=(50, 50), interruptible="checkpoints", stop=5)
    assert carried(job, (100.0, 150.0), (300.0, 350.0)) == [
        ("startup", 90, 100),
        ("work", 100, 150),
        ("stop", 150, 155),
        ("suspended", 155, 290),
        ("startup", 290, 300),
        ("work", 300, 350),
    ]


def test_work_beyond_the_wishes_is_put_off_to_the_last_moment():
    job = make(work=(50, 50), interruptible="checkpoints", deadline=800)
    # 20 s are lost in each of two kills; the last wish is used up before the work is done.
    got = carried(job, (100.0, 120.0), (300.0, 320.0), (400.0, 460.0))
    assert got[-1] == ("work", 400, 500)


def test_a_job_that_may_never_stop_runs_through():
    job = make(interruptible="never")
    assert carried(job, (100.0, 150.0), (300.0, 350.0)) == [
        ("startup", 90, 100),
        ("work", 100, 200),
    ]


@pytest.mark.parametrize(("max_starts", "starts"), [(1, 1), (2, 2), (3, 3), (None, 4)])
def test_starts_are_not_more_than_allowed(max_starts, starts):
    job = make(max_starts=max_starts)
    wishes = [(100.0 * i, 100.0 * i + 25) for i in range(1, 5)]
    got = carried(job, *wishes)
    assert sum(kind == "startup" for kind, _, _ in got) == starts


@pytest.mark.parametrize(("min_run_s", "starts"), [(40, 2), (41, 1), (60, 1)])
def test_every_start_does_its_least_work(min_run_s, starts):
    # 40 s first: not enough for 41; and 60 s would leave less than 60 s.
    got = carried(make(min_run_s=min_run_s), (100.0, 140.0), (300.0, 360.0))
    assert sum(kind == "startup" for kind, _, _ in got) == starts


def test_a_stop_that_would_leave_too_little_work_is_not_made():
    got = carried(make(min_run_s=30), (100.0, 180.0), (300.0, 320.0))
    assert got == [("startup", 90, 100), ("work", 100, 200)]


def test_without_slack_for_another_startup_it_runs_through():
    # The stop at 150 leaves 50 s of work and 10 s of startup: until 210 at best.
    kept = carried(make(deadline=210), (100.0, 150.0), (160.5, 210.0))
    assert kept[-1][2] <= 210
    got = carried(make(deadline=209), (100.0, 150.0), (159.0, 209.0))
    assert got == [("startup", 90, 100), ("work", 100, 200)]


def test_the_stop_itself_counts_against_the_deadline():
    # Stopped at 150 the job could be done at 150 + 20 + 10 + 50 = 230, and not before.
    wishes = (100.0, 150.0), (181.0, 231.0)
    assert carried(make(stop=20, deadline=230), *wishes)[-1] == ("work", 180, 230)
    assert carried(make(stop=20, deadline=229), *wishes)[-1] == ("work", 100, 200)


def test_without_any_wish_it_waits_for_the_last_moment():
    assert carried(make(deadline=210)) == [("startup", 100, 110), ("work", 110, 210)]


def test_a_late_wish_is_moved_forward_to_meet_the_deadline():
    assert carried(make(deadline=210), (150.0, 250.0)) == [
        ("startup", 100, 110),
        ("work", 110, 210),
    ]


@pytest.mark.parametrize("stop", [0, 60])
def test_a_restart_that_the_deadline_forces_at_once(stop):
    # No startup, and after the stop no slack is left: the next run follows without a pause.
    job = make(startup=0, work=(200,), stop=stop, deadline=200 + stop)
    got = carried(job, (0.0, 100.0), (200.0, 300.0))
    assert got[-1][2] == 200 + stop


def test_a_restart_that_the_deadline_forces_at_once_after_a_kill():
    job = make(startup=0, work=(50, 150), interruptible="checkpoints", deadline=250)
    got = carried(job, (0.0, 100.0), (150.0, 250.0))
    assert got[-1][2] == 250


def test_run_from_stays_inside_the_window():
    job = make(deadline=210)
    assert run_from(job, -50.0).start == 0.0
    assert run_from(job, 40.0).start == 40.0
    assert run_from(job, 5000.0).start == 100.0


@settings(max_examples=drawn(30, 600))
@given(st.data(), cases())
def test_whatever_is_wished_for_the_rules_are_kept(data, case):
    job, _ = case
    window_s = job.deadline - job.arrival
    shares = data.draw(st.lists(st.floats(0, 1), max_size=12))
    at = [job.arrival + share * window_s for share in sorted(shares)]
    wanted = [(a, b) for a, b in zip(at[::2], at[1::2], strict=False) if b - a > 1e-3]
    wanted = wanted or [(job.arrival, job.deadline)]
    schedule = carry_out(job, wanted)
    schedule.check(job)
    assert schedule.starts <= len(wanted)
    work_s = math.fsum(s.duration_s for s in schedule.spans if s.kind == "work")
    assert work_s == pytest.approx(job.profile.work_s, abs=1e-6)
    assert carry_out(job, wanted) == schedule
    same(schedule, published_oracles.carry_out(job, wanted))


@settings(max_examples=drawn(50, 1000))
@given(st.data())
def test_whole_numbers_of_everything_keep_the_rules(data):
    # Whole seconds bring about what random floats never do: slack that is gone to the second.
    draw = data.draw
    small = st.integers(1, 6)
    job = make(
        startup=draw(st.integers(0, 3)),
        work=draw(st.lists(small, min_size=1, max_size=4)),
        stop=draw(st.integers(0, 2)),
        deadline=60,
        interruptible=draw(st.sampled_from(["anywhere", "checkpoints"])),
        max_starts=draw(st.sampled_from([None, 2, 3])),
    )
    least = math.ceil(job.profile.run_s)
    again = st.integers(1, 4).map(lambda seconds: [phase("again", seconds)])
    restart = draw(st.none() | st.none() | st.just([]) | again)
    job = Job(
        id="a",
        arrival=0,
        deadline=least + draw(st.integers(0, 12)),
        profile=replace(job.profile, restart=restart),
        interruptible=job.interruptible,
        max_starts=job.max_starts,
    )
    marks = sorted(draw(st.sets(st.integers(0, int(job.deadline)), max_size=8)))
    wanted = [(float(a), float(b)) for a, b in zip(marks[::2], marks[1::2], strict=False)]
    wanted = wanted or [(0.0, job.deadline)]
    schedule = carry_out(job, wanted)
    schedule.check(job)
    same(schedule, published_oracles.carry_out(job, wanted))
