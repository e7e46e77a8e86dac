"""Jobs, their windows and their rules."""

import math
import re
from dataclasses import FrozenInstanceError, replace
from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lowtide.errors import DeadlineTooEarly, InvalidJob, InvalidTime
from lowtide.job import Job, Resources
from lowtide.profile import Phase, PowerProfile
from lowtide.units import parse_time
from support.strategies import profiles

MIDNIGHT = 1719792000.0
TWO_HOURS = PowerProfile.constant(200, "2h")


def make(**kwargs):
    defaults = {"id": "a", "arrival": MIDNIGHT, "deadline": "+6h", "profile": TWO_HOURS}
    return Job(**(defaults | kwargs))


@pytest.mark.parametrize(
    "arrival",
    [
        MIDNIGHT,
        int(MIDNIGHT),
        "2024-07-01T00:00Z",
        "2024-07-01T02:00+02:00",
        datetime(2024, 7, 1, tzinfo=UTC),
        datetime(2024, 6, 30, 19, tzinfo=timezone(timedelta(hours=-5))),
    ],
)
@pytest.mark.parametrize(
    "deadline",
    ["+6h", "+6:00:00", "2024-07-01T06:00Z", datetime(2024, 7, 1, 6, tzinfo=UTC), MIDNIGHT + 21600],
)
def test_times_in_every_form(arrival, deadline):
    job = make(arrival=arrival, deadline=deadline)
    assert (job.arrival, job.deadline) == (MIDNIGHT, MIDNIGHT + 6 * 3600)
    assert job.slack_s == 4 * 3600
    assert job.latest_start == MIDNIGHT + 4 * 3600


@pytest.mark.parametrize("naive", ["2024-07-01T06:00", datetime(2024, 7, 1, 6)])  # noqa: DTZ001
def test_naive_times_are_refused(naive):
    with pytest.raises(InvalidTime, match="no time zone"):
        make(arrival=naive)
    with pytest.raises(InvalidTime, match="no time zone"):
        make(deadline=naive)


def test_an_arrival_cannot_be_relative():
    with pytest.raises(InvalidTime, match="nothing to count from"):
        make(arrival="+3h")


def test_a_deadline_too_early_says_by_how_much_and_what_to_do():
    profile = PowerProfile(
        startup=[Phase(name="load", duration_s="30m", power_w=50)],
        work=[Phase(name="run", duration_s="3h", power_w=200)],
    )
    with pytest.raises(DeadlineTooEarly) as caught:
        make(arrival="2024-07-01T03:00Z", deadline="2024-07-01T06:00Z", profile=profile)
    assert str(caught.value) == (
        "job a: deadline 2024-07-01 06:00 UTC leaves 3 h for a job that needs 3.5 h "
        "(30 min startup + 3 h work): move the deadline to 2024-07-01 06:30 UTC or later"
    )
    assert caught.value.available_s == 3 * 3600
    assert caught.value.needed_s == 3.5 * 3600
    assert isinstance(caught.value, InvalidJob)
    assert isinstance(caught.value, ValueError)


def test_without_a_startup_the_message_does_not_mention_one():
    with pytest.raises(DeadlineTooEarly, match=r"needs 2 h: move the deadline"):
        make(deadline="+1h")


@given(profiles(), st.floats(0, 2e9), st.floats(0.0, 0.99))
def test_following_the_advice_gives_a_job_that_fits(profile, arrival, share):
    with pytest.raises(DeadlineTooEarly) as caught:
        make(arrival=arrival, deadline=arrival + share * profile.run_s - 1, profile=profile)
    advice = re.search(r"move the deadline to (\S+ \S+) UTC", str(caught.value))[1]
    job = make(arrival=arrival, deadline=parse_time(advice + "+00:00"), profile=profile)
    assert job.slack_s <= 1 + 1e-6


@given(profiles(), st.sampled_from([0.0, 1.72e9, 1719792000.1]))
def test_a_job_without_slack_fits_despite_rounding(profile, arrival):
    job = make(arrival=arrival, deadline=arrival + profile.run_s, profile=profile)
    assert job.slack_s == pytest.approx(0, abs=1e-6)
    assert job.latest_start - job.arrival == pytest.approx(0, abs=1e-6)
    assert job.latest_start >= job.arrival


def test_a_deadline_before_the_arrival_or_beyond_the_calendar():
    with pytest.raises(DeadlineTooEarly, match="does not come after its arrival"):
        make(deadline=MIDNIGHT - 3 * 3600)
    with pytest.raises(DeadlineTooEarly):
        make(arrival=MIDNIGHT * 1000, deadline=MIDNIGHT * 1000)


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        (
            {"interruptible": "sometimes"},
            "interruptible is one of never, anywhere, checkpoints, not 'sometimes'",
        ),
        ({"interruptible": True}, "interruptible is one of"),
        ({"max_starts": 0}, "max_starts is a whole number of at least 1, not 0"),
        ({"max_starts": 1.5}, "max_starts is a whole number of at least 1, not 1.5"),
        ({"min_run_s": -1}, "min_run_s is 0 or more, not -1"),
        ({"priority": float("nan")}, "priority is a number, not nan"),
        ({"priority": "high"}, "priority is a number, not 'high'"),
        (
            {"min_run_s": "3h"},
            "min_run_s asks for 3 h of work at every start, but there are only 2 h",
        ),
        ({"profile": "md.toml"}, "profile is a PowerProfile, not 'md.toml'"),
    ],
)
def test_rules_that_contradict_themselves_are_refused(kwargs, message):
    with pytest.raises(InvalidJob, match=re.escape("job a: " + message)):
        make(**kwargs)


@pytest.mark.parametrize("bad", [math.nan, "5", None])
def test_min_run_is_a_duration(bad):
    with pytest.raises(InvalidTime):
        make(min_run_s=bad)
    assert make(min_run_s="30m").min_run_s == 1800.0


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({"cpus": -1}, "cpus must be a whole number of at least 0, not -1"),
        ({"cpus": 1.5}, "cpus must be a whole number"),
        ({"gpus": -1}, "gpus must be a whole number of at least 0"),
        ({"nodes": 0}, "nodes must be a whole number of at least 1, not 0"),
        ({"memory_bytes": -1.0}, "memory_bytes is a number of at least 0"),
        ({"memory_bytes": math.nan}, "memory_bytes is a number of at least 0, not nan"),
    ],
)
def test_resources_are_whole_numbers(kwargs, message):
    with pytest.raises(InvalidJob, match=re.escape(message)):
        Resources(**kwargs)


def test_a_job_is_a_frozen_value():
    job = make(id=42, resources=Resources(cpus=4))
    assert job.id == "42"
    assert job == make(id="42", resources=Resources(cpus=4))
    assert len({job, make(id="42", resources=Resources(cpus=4))}) == 1
    with pytest.raises(FrozenInstanceError):
        job.deadline = 0.0
    later = replace(job, deadline=job.deadline + 60)
    assert (later.slack_s, later.resources) == (job.slack_s + 60, job.resources)
    assert make().resources == Resources(cpus=1, gpus=0, nodes=1, memory_bytes=None)


def test_min_run_may_be_all_the_work_to_within_rounding():
    tenths = [Phase(name="w", duration_s=0.1, power_w=1, checkpoint=True)] * 10
    profile = PowerProfile(work=tenths)
    assert profile.work_s < 1.0
    job = Job(id="a", arrival=1.7e9, deadline="+9s", profile=profile, min_run_s=1)
    assert job.min_run_s == profile.work_s
    with pytest.raises(InvalidJob, match="there are only"):
        Job(id="a", arrival=0, deadline="+9s", profile=profile, min_run_s=1.00001)
