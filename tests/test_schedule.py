"""Spans, and the rules that they keep."""

import math
from dataclasses import replace

import pytest
from hypothesis import given, settings

from lowtide.errors import FormatError, InvalidSchedule
from lowtide.job import Job
from lowtide.profile import Phase, PowerProfile
from lowtide.schedule import SPAN_KINDS, Schedule, Span, Stretch
from support.nightly import drawn
from support.strategies import scheduled


def phase(name, duration_s, **kwargs):
    return Phase(name=name, duration_s=duration_s, power_w=100, **kwargs)


PROFILE = PowerProfile(
    startup=[phase("load", 10)],
    work=[phase("one", 50, checkpoint=True), phase("two", 50, checkpoint=True), phase("end", 50)],
    stop=[phase("save", 5)],
)


def make(**kwargs):
    defaults = {
        "id": "a",
        "arrival": 1000,
        "deadline": 2000,
        "profile": PROFILE,
        "interruptible": "checkpoints",
    }
    return Job(**(defaults | kwargs))


def rows(schedule):
    return [(s.kind, s.start, s.duration_s, s.progress_s) for s in schedule.spans]


# A stop at the first checkpoint, a kill 20 s after it, and the rest.
STRETCHES = [
    Stretch(start=1100.0, work_s=50.0),
    Stretch(start=1200.0, work_s=0.0, lost_s=20.0),
    Stretch(start=1300.0, work_s=100.0),
]


@pytest.fixture
def job():
    return make()


@pytest.fixture
def schedule(job):
    return Schedule.from_stretches(job, STRETCHES)


def test_stretches_become_spans(schedule, job):
    assert rows(schedule) == [
        ("startup", 1100, 10, 0),
        ("work", 1110, 50, 0),
        ("stop", 1160, 5, 50),
        ("suspended", 1165, 35, 50),
        ("startup", 1200, 10, 50),
        ("lost", 1210, 20, 50),
        ("stop", 1230, 5, 50),
        ("suspended", 1235, 65, 50),
        ("startup", 1300, 10, 50),
        ("work", 1310, 100, 50),
    ]
    assert (schedule.start, schedule.end) == (1100, 1410)
    assert schedule.starts == 3
    assert schedule.busy_s == 65 + 35 + 110
    assert [[s.kind for s in run] for run in schedule.runs] == [
        ["startup", "work", "stop"],
        ["startup", "lost", "stop"],
        ["startup", "work"],
    ]
    schedule.check(job)


def test_work_may_be_kept_and_lost_in_one_run(job):
    stretches = [Stretch(start=1000.0, work_s=50.0, lost_s=20.0), replace(STRETCHES[2])]
    schedule = Schedule.from_stretches(job, stretches)
    assert [s.kind for s in schedule.spans] == [
        "startup",
        "work",
        "lost",
        "stop",
        "suspended",
        "startup",
        "work",
    ]
    schedule.check(job)


def test_an_uninterrupted_run_has_no_stop(job):
    schedule = Schedule.uninterrupted(job, 1234.5)
    assert rows(schedule) == [("startup", 1234.5, 10, 0), ("work", 1244.5, 150, 0)]
    schedule.check(job)


def test_a_start_before_the_last_run_has_ended_is_refused(job):
    early = [STRETCHES[0], Stretch(start=1164.0, work_s=100.0)]
    with pytest.raises(InvalidSchedule, match="comes before the last run has ended"):
        Schedule.from_stretches(job, early)
    with pytest.raises(InvalidSchedule, match="at least one span"):
        Schedule.from_stretches(job, [])


@pytest.mark.parametrize("stop", [[], [phase("save", 5)]])
def test_a_restart_right_after_a_stop_is_a_second_start(stop):
    profile = PowerProfile(work=[phase("run", 100)], stop=stop)
    job = make(profile=profile, interruptible="anywhere")
    again = 1050.0 + profile.stop_s
    halves = [Stretch(start=1000.0, work_s=50.0), Stretch(start=again, work_s=50.0)]
    schedule = Schedule.from_stretches(job, halves)
    schedule.check(job)
    assert schedule.starts == (2 if stop else 1)


def test_a_restart_right_after_a_kill_is_a_second_start():
    profile = PowerProfile(work=[phase("one", 50, checkpoint=True), phase("two", 50)])
    job = make(profile=profile)
    stretches = [
        Stretch(start=1000.0, work_s=50.0, lost_s=20.0),
        Stretch(start=1070.0, work_s=50.0),
    ]
    schedule = Schedule.from_stretches(job, stretches)
    schedule.check(job)
    assert schedule.starts == 2


@settings(max_examples=drawn(30, 600))
@given(scheduled())
def test_valid_schedules_pass(case):
    job, _, schedule = case
    schedule.check(job)
    work_s = math.fsum(s.duration_s for s in schedule.spans if s.kind == "work")
    assert work_s == pytest.approx(job.profile.work_s, abs=1e-6)
    assert schedule.starts == len(schedule.runs)
    profile = job.profile
    again = ["startup"] * bool(profile.startup)
    if profile.restart is not None:
        again = ["restart"] * bool(profile.restart)
    wanted = ["startup"] * bool(profile.startup) + again * (schedule.starts - 1)
    assert [s.kind for s in schedule.spans if s.kind in ("startup", "restart")] == wanted


@settings(max_examples=drawn(30, 600))
@given(scheduled())
def test_schedules_read_back_equal(tmp_path_factory, case):
    _, _, schedule = case
    path = tmp_path_factory.getbasetemp() / "schedule.json"
    schedule.dump(path)
    assert Schedule.load(path) == Schedule.from_dict(schedule.to_dict()) == schedule


def spoil(schedule, index, **changes):
    spans = list(schedule.spans)
    spans[index] = replace(spans[index], **changes)
    return replace(schedule, spans=tuple(spans))


@pytest.mark.parametrize("change", ["start", "duration_s", "progress_s"])
@pytest.mark.parametrize("by", [0.01, 1.0, 1e4])
def test_every_span_moved_lengthened_or_misnumbered_is_caught(job, schedule, change, by):
    for index, span in enumerate(schedule.spans):
        spoilt = spoil(schedule, index, **{change: getattr(span, change) + by})
        with pytest.raises(InvalidSchedule):
            spoilt.check(job)
            pytest.fail(f"{change} of span {index} ({span.kind}) was not looked at")


def test_every_span_of_another_kind_is_caught(job, schedule):
    for index, span in enumerate(schedule.spans):
        # What a stop takes could as well be work that is then thrown away.
        alike = {span.kind, "lost"} if span.kind == "stop" else {span.kind}
        for kind in sorted(set(SPAN_KINDS) - alike):
            with pytest.raises(InvalidSchedule):
                spoil(schedule, index, kind=kind).check(job)
                pytest.fail(f"{span.kind} {index} passes for {kind}")


@settings(max_examples=drawn(30, 600))
@given(scheduled())
def test_every_span_spoilt_in_any_schedule_is_caught(case):
    job, _, schedule = case
    for index, span in enumerate(schedule.spans):
        if span.kind == "suspended":
            continue
        for change in ("duration_s", "progress_s"):
            with pytest.raises(InvalidSchedule):
                spoil(schedule, index, **{change: getattr(span, change) + 1.0}).check(job)


@settings(max_examples=drawn(30, 600))
@given(scheduled())
def test_every_span_left_out_is_caught(case):
    job, _, schedule = case
    for index in range(len(schedule.spans)):
        spans = schedule.spans[:index] + schedule.spans[index + 1 :]
        with pytest.raises(InvalidSchedule):
            replace(schedule, spans=spans).check(job)


@settings(max_examples=drawn(30, 600))
@given(scheduled())
def test_a_schedule_moved_out_of_its_window_is_caught(case):
    job, _, schedule = case
    for by in (job.arrival - schedule.start - 0.01, job.deadline - schedule.end + 0.01):
        moved = tuple(replace(span, start=span.start + by) for span in schedule.spans)
        with pytest.raises(InvalidSchedule, match=r"before its arrival|after its deadline"):
            replace(schedule, spans=moved).check(job)


@pytest.mark.parametrize(
    ("rules", "message"),
    [
        ({"interruptible": "never"}, "started 3 times, and may be 1 times"),
        ({"max_starts": 2}, "started 3 times, and may be 2 times"),
        ({"arrival": 1101}, "it starts at 1970-01-01 00:18:20 UTC, before its arrival"),
        ({"deadline": 1409}, "after its deadline at 1970-01-01 00:23:29 UTC"),
        ({"min_run_s": 21}, "start 2 does 0 s of work, less than min_run_s = 21 s"),
    ],
)
def test_each_rule_of_the_job_is_checked(schedule, rules, message):
    with pytest.raises(InvalidSchedule, match=f"job a: .*{message}"):
        schedule.check(make(**rules))


def test_a_stop_between_checkpoints_keeps_nothing():
    job = make(interruptible="anywhere")
    stretches = [Stretch(start=1100.0, work_s=60.0), Stretch(start=1300.0, work_s=90.0)]
    schedule = Schedule.from_stretches(job, stretches)
    schedule.check(job)
    with pytest.raises(InvalidSchedule, match="stops after 60 s of work, which is no checkpoint"):
        schedule.check(make())


def test_work_left_over_or_done_twice_is_caught(job):
    for work_s in (90.0, 110.0):
        schedule = Schedule.from_stretches(
            job, [STRETCHES[0], Stretch(start=1300.0, work_s=work_s)]
        )
        with pytest.raises(InvalidSchedule, match=r"it does .* of 2\.5 min of work"):
            schedule.check(job)


def test_a_startup_without_work_is_caught(job):
    orphan = Schedule.from_stretches(
        job, [Stretch(start=1000.0, work_s=0.0), Stretch(start=1300.0, work_s=150.0)]
    )
    with pytest.raises(InvalidSchedule, match="start 1 runs"):
        orphan.check(job)


def test_losing_more_work_than_there_is_is_caught(job):
    schedule = Schedule.from_stretches(
        job, [Stretch(start=1000.0, work_s=100.0, lost_s=70.0), Stretch(start=1300.0, work_s=50.0)]
    )
    with pytest.raises(InvalidSchedule):
        schedule.check(job)


def test_the_schedule_of_a_job_of_another_shape_is_caught(schedule):
    shorter = PowerProfile(startup=PROFILE.startup, work=PROFILE.work[:2], stop=PROFILE.stop)
    longer_start = PowerProfile(startup=[phase("load", 11)], work=PROFILE.work, stop=PROFILE.stop)
    no_stop = PowerProfile(startup=PROFILE.startup, work=PROFILE.work)
    for profile in (shorter, longer_start, no_stop):
        with pytest.raises(InvalidSchedule):
            schedule.check(make(profile=profile))


def test_it_ends_in_work_and_begins_with_a_start(job, schedule):
    with pytest.raises(InvalidSchedule, match="at least one span"):
        replace(schedule, spans=()).check(job)
    waits = Span(kind="suspended", start=1000.0, duration_s=100.0, progress_s=0.0)
    with pytest.raises(InvalidSchedule, match="begins suspended"):
        replace(schedule, spans=(waits, *schedule.spans)).check(job)
    after = Span(kind="stop", start=schedule.end, duration_s=5.0, progress_s=150.0)
    with pytest.raises(InvalidSchedule, match="ends in stop, not in work"):
        replace(schedule, spans=(*schedule.spans, after)).check(job)


@pytest.mark.parametrize(
    "changes",
    [
        {"kind": "idle"},
        {"duration_s": 0.0},
        {"duration_s": -1.0},
        {"duration_s": math.nan},
        {"duration_s": math.inf},
        {"start": math.nan},
        {"progress_s": -1.0},
        {"progress_s": math.nan},
    ],
)
def test_a_span_is_some_stretch_of_time(changes):
    with pytest.raises(InvalidSchedule):
        Span(**({"kind": "work", "start": 0.0, "duration_s": 1.0, "progress_s": 0.0} | changes))


@pytest.mark.parametrize(
    "document",
    [{}, {"job_id": "a"}, {"job_id": "a", "spans": [{}]}, {"job_id": "a", "spans": [5]}, [], 5],
)
def test_documents_that_are_no_schedule_are_refused(document):
    with pytest.raises(InvalidSchedule, match="a schedule has job_id and spans of kind"):
        Schedule.from_dict(document)


def test_a_broken_file_is_named(tmp_path):
    (tmp_path / "a.json").write_text("{")
    with pytest.raises(FormatError, match=r"a\.json: not valid JSON"):
        Schedule.load(tmp_path / "a.json")


def test_it_prints_a_row_per_span(schedule):
    lines = str(schedule).splitlines()
    assert len(lines) == 1 + len(schedule.spans)
    for line, span in zip(lines[1:], schedule.spans, strict=True):
        assert f" {span.kind} " in line
    assert "UTC" in str(schedule)
    assert "00:18:30" in lines[2]
    assert "00:19:20" in lines[2]
    assert "00:00:50" in lines[2]
    assert lines[1].endswith(" 0.0 %")
    assert lines[2].endswith(" 33.3 %")
