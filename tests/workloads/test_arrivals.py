"""Arrival processes: their rates, their shapes over day and week, and what they refuse.

Tolerances are four standard deviations of what is measured, unless said otherwise.
"""

from __future__ import annotations

import math
from datetime import UTC, datetime

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lowtide.errors import InvalidInput, InvalidTime
from lowtide.workloads import draws

MONDAY = datetime(2024, 7, 1, tzinfo=UTC).timestamp()
HOUR = 3600.0
DAY = 86_400.0
WEEK = 7 * DAY

PROCESSES = {
    "poisson": draws.poisson(per_hour=3),
    "poisson, counted": draws.poisson(count=500),
    "daily": draws.daily(per_day=100),
    "daily, counted": draws.daily(count=500),
    "daily, all at work": draws.daily(per_day=100, work_share=1, weekend_share=0),
    "bursts": draws.bursts(bursts_per_day=10, jobs_per_burst=5, spread="30m"),
    "bursts at once": draws.bursts(bursts_per_day=10, jobs_per_burst=5, spread=0),
    "periodic": draws.periodic(period="17m", first="+5m", each=2),
    "nightly": draws.nightly(each=3, jitter="2h"),
    "uniform": draws.uniform(count=77),
}


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def ks_statistic(values: np.ndarray, cdf: np.ndarray) -> float:
    """Kolmogorov and Smirnov's distance times √n; above 1.95 in 1 of 1,000 true cases."""
    n = values.size
    steps = np.arange(n + 1) / n
    return math.sqrt(n) * float(max(np.max(steps[1:] - cdf), np.max(cdf - steps[:-1])))


@given(
    name=st.sampled_from(sorted(PROCESSES)),
    start=st.floats(-1e9, 2e9),
    duration=st.floats(1.0, 20 * DAY),
    seed=st.integers(0, 1000),
)
def test_every_process_stays_in_its_span_in_order_and_follows_its_seed(name, start, duration, seed):
    process, end = PROCESSES[name], start + duration
    if name == "daily, all at work":
        end = start + WEEK
    times = process(start, end, rng(seed))
    assert np.all((times >= start) & (times < end))
    assert np.all(np.diff(times) >= 0)
    assert times.tobytes() == process(start, end, rng(seed)).tobytes()


@pytest.mark.parametrize(
    ("name", "parameters"), [("poisson", {}), ("daily", {"work_share": 0.8, "weekend_share": 0.1})]
)
def test_counts_are_poisson_with_the_rate(name, parameters):
    make = draws.ARRIVALS[name]
    counts = np.array(
        [
            make(per_day=50, **parameters)(MONDAY, MONDAY + WEEK, rng(seed)).size
            for seed in range(400)
        ]
    )
    # The mean of 400 counts of mean 350 has a standard deviation of √(350/400).
    assert abs(counts.mean() - 350) < 4 * math.sqrt(350 / 400)
    # The variance of Poisson counts is their mean; its estimate has a relative error of √(2/400).
    assert abs(counts.var() / 350 - 1) < 4 * math.sqrt(2 / 400)


def test_per_hour_and_per_day_are_the_same():
    for make in (draws.poisson, draws.daily):
        hourly = make(per_hour=2)(MONDAY, MONDAY + DAY, rng())
        assert np.array_equal(hourly, make(per_day=48)(MONDAY, MONDAY + DAY, rng()))


def test_poisson_gaps_are_exponential():
    times = draws.poisson(per_hour=10)(0.0, 2000 * HOUR, rng(1))
    gaps = np.sort(np.diff(times))
    assert ks_statistic(gaps, 1 - np.exp(-gaps / 360)) < 1.95


def test_a_count_is_exact_and_evenly_spread():
    times = draws.poisson(count=10_000)(MONDAY, MONDAY + WEEK, rng(2))
    assert times.size == 10_000
    assert ks_statistic(times, (times - MONDAY) / WEEK) < 1.95
    assert draws.daily(count=123)(MONDAY, MONDAY + WEEK, rng(2)).size == 123


def weekly(start: float = MONDAY, **parameters: object) -> np.ndarray:
    """A hundred weeks of a thousand jobs a day."""
    process = draws.daily(per_day=1000, **parameters)  # type: ignore[arg-type]
    return process(start, start + 100 * WEEK, rng(3))


def test_daily_shares_are_those_asked_for():
    times = weekly(working_hours=[9, 17], work_share=0.7, weekend_share=0.1)
    assert abs(times.size - 700_000) < 4 * math.sqrt(700_000)
    weekday = ((times - MONDAY) // DAY) % 7
    hour = ((times - MONDAY) / HOUR) % 24

    def tolerance(share: float, of: int) -> float:
        return 4 * math.sqrt(share * (1 - share) / of)

    at_weekend = weekday >= 5
    assert abs(at_weekend.mean() - 0.1) < tolerance(0.1, times.size)
    at_work = (hour >= 9) & (hour < 17)
    for days in (at_weekend, ~at_weekend):
        assert abs(at_work[days].mean() - 0.7) < tolerance(0.7, int(days.sum()))
    # All weekdays alike, and evenly within working hours.
    for day in range(5):
        assert abs((weekday == day).mean() - 0.18) < tolerance(0.18, times.size)
    inside = np.sort(hour[at_work])
    assert ks_statistic(inside, (inside - 9) / 8) < 1.95


def test_even_shares_are_plain_poisson():
    times = weekly(work_share=10 / 24, weekend_share=2 / 7)
    assert ks_statistic(times, (times - MONDAY) / (100 * WEEK)) < 1.95


def test_local_time_moves_hours_and_weekends():
    plain = weekly()
    moved = weekly(MONDAY - 2 * HOUR, utc_offset_h=2)
    assert np.allclose(moved, plain - 2 * HOUR, rtol=0, atol=1e-5)


def test_a_span_within_a_day_has_that_days_rate():
    process = draws.daily(per_day=10_000, working_hours=[8, 18], weekend_share=0)
    noon = process(MONDAY + 11 * HOUR, MONDAY + 12 * HOUR, rng())
    # 7/5 of the mean day, 65 % of it in ten hours.
    expected = 10_000 * 7 / 5 * 0.65 / 10
    assert abs(noon.size - expected) < 4 * math.sqrt(expected)
    assert process(MONDAY + 5 * DAY, MONDAY + 7 * DAY, rng()).size == 0


def test_bursts_have_their_rate_size_and_spread():
    process = draws.bursts(bursts_per_day=4, jobs_per_burst=5, spread="1m")
    times = process(MONDAY, MONDAY + 1000 * DAY, rng(4))
    # The variance of a geometric sum is bursts × E[size²] = bursts × (2·25 − 5).
    assert abs(times.size - 20_000) < 4 * math.sqrt(4000 * 45)
    # Bursts 6 h apart on average seldom meet: gaps above a minute tell them apart.
    gaps = np.diff(times) > 60
    sizes = np.diff(np.flatnonzero(np.concatenate(([True], gaps, [True]))))
    assert abs(sizes.size - 4000) < 4 * math.sqrt(4000)
    # A geometric distribution of mean 5 gives a lone job in one of five bursts.
    assert abs((sizes == 1).mean() - 0.2) < 4 * math.sqrt(0.16 / 4000)
    assert abs(sizes.mean() - 5) < 4 * math.sqrt(20 / 4000) + 0.05


def test_bursts_have_their_rate_from_the_first_moment_on():
    process = draws.bursts(bursts_per_day=100, jobs_per_burst=3, spread="1d")
    counts = [process(0.0, DAY, rng(seed)).size for seed in range(300)]
    # Per day 100 bursts of E[size²] = 15, an upper bound on the variance when spread.
    assert abs(np.mean(counts) - 300) < 4 * math.sqrt(1500 / 300)


def test_bursts_of_one_job_at_once_are_poisson():
    times = draws.bursts(bursts_per_day=240, jobs_per_burst=1, spread=0)(0.0, 300 * DAY, rng(5))
    gaps = np.sort(np.diff(times))
    assert ks_statistic(gaps, 1 - np.exp(-gaps / 360)) < 1.95


def test_periodic_jobs_come_on_time():
    daily = draws.periodic(period="1d", first="+1h", each=2)
    assert daily(MONDAY, MONDAY + 2 * DAY, rng()).tolist() == [
        MONDAY + HOUR,
        MONDAY + HOUR,
        MONDAY + DAY + HOUR,
        MONDAY + DAY + HOUR,
    ]
    # An earlier first job goes on into the span; a later one leaves its beginning empty.
    before = draws.periodic(period="10h", first=MONDAY - 5 * HOUR)
    assert before(MONDAY, MONDAY + DAY, rng()).tolist() == [MONDAY + 5 * HOUR, MONDAY + 15 * HOUR]
    after = draws.periodic(period="10h", first="2024-07-01T20:00Z")
    assert after(MONDAY, MONDAY + DAY, rng()).tolist() == [MONDAY + 20 * HOUR]
    assert draws.periodic(period="1h", first="+2d")(MONDAY, MONDAY + DAY, rng()).size == 0


def test_nightly_jobs_come_at_their_hour():
    times = draws.nightly(hour=1.5)(MONDAY + 12 * HOUR, MONDAY + 60 * HOUR, rng())
    assert times.tolist() == [MONDAY + 25.5 * HOUR, MONDAY + 49.5 * HOUR]
    late = draws.nightly(hour=23, each=40, jitter="3h")(MONDAY, MONDAY + 100 * DAY, rng(6))
    offset = np.sort((late - 23 * HOUR - MONDAY) % DAY)
    assert offset.max() < 3 * HOUR
    assert ks_statistic(offset, offset / (3 * HOUR)) < 1.95
    # Jobs of the night before come after midnight of the first day: a third of 40 stays out at
    # the end, as much comes in at the beginning.
    assert abs(late.size - 4000) < 4 * math.sqrt(2 * 40 * (1 / 3) * (2 / 3))


def test_uniform_jobs_are_evenly_apart():
    times = draws.uniform(count=7)(MONDAY, MONDAY + WEEK, rng())
    assert np.array_equal(times, MONDAY + DAY * np.arange(7))


@pytest.mark.parametrize(
    ("name", "parameters", "message"),
    [
        ("poisson", {}, "poisson arrivals: give one of per_hour, per_day, count, not none"),
        ("daily", {"per_day": 1, "count": 2}, "daily arrivals: .* not per_day and count"),
        ("poisson", {"per_hour": 0}, "per_hour is a number above 0, not 0"),
        ("poisson", {"per_hour": "3"}, "per_hour is a number above 0, not '3'"),
        ("poisson", {"per_day": math.inf}, "per_day is a number above 0, not inf"),
        ("poisson", {"count": 2.5}, r"count is a whole number from 1 to 2e\+07, not 2.5"),
        ("poisson", {"count": True}, "not True"),
        ("daily", {"per_day": 1, "work_share": 1.5}, "work_share is a number from 0 to 1, not 1.5"),
        ("daily", {"per_day": 1, "weekend_share": -1}, "weekend_share is a number from 0 to 1"),
        ("daily", {"per_day": 1, "working_hours": 8}, "working_hours is a list such as"),
        ("daily", {"per_day": 1, "working_hours": [8]}, "working_hours is a list such as"),
        ("daily", {"per_day": 1, "working_hours": [18, 8]}, "a later hour when it ends"),
        ("daily", {"per_day": 1, "working_hours": [0, 24]}, "less than a whole day after"),
        ("daily", {"per_day": 1, "working_hours": [8, 25]}, "an hour of working_hours is a number"),
        ("daily", {"per_day": 1, "utc_offset_h": 30}, "utc_offset_h is a number from -24 to 24"),
        ("bursts", {"bursts_per_day": 1, "jobs_per_burst": 0.5}, "jobs_per_burst .* from 1 up"),
        ("bursts", {"bursts_per_day": 0, "jobs_per_burst": 2}, "bursts_per_day .* above 0"),
        ("periodic", {"period": "1h", "each": 0}, "each is a whole number from 1 up, not 0"),
        ("nightly", {"hour": 25}, "hour is a number from 0 to 24, not 25"),
        ("uniform", {"count": 0}, "count is a whole number from 1"),
    ],
)
def test_refused(name, parameters, message):
    with pytest.raises(InvalidInput, match=message):
        draws.ARRIVALS[name](**parameters)


@pytest.mark.parametrize(
    ("name", "parameters", "message"),
    [
        ("bursts", {"bursts_per_day": 1, "jobs_per_burst": 2, "spread": -1}, "spread is 0 or more"),
        ("periodic", {"period": 0}, "period is more than 0, not 0"),
        ("periodic", {"period": "5"}, "period: duration '5' has no unit"),
        ("nightly", {"jitter": "soon"}, "jitter: cannot read duration 'soon'"),
    ],
)
def test_refused_durations(name, parameters, message):
    with pytest.raises(InvalidTime, match=message):
        draws.ARRIVALS[name](**parameters)


@pytest.mark.parametrize(
    "process",
    [
        draws.poisson(per_hour=1e9),
        draws.bursts(bursts_per_day=1e5, jobs_per_burst=1e6),
        draws.periodic(period=1e-6),
        draws.nightly(each=10**9),
    ],
)
def test_too_many_jobs_are_refused(process):
    with pytest.raises(InvalidInput, match=r"jobs, and at most 2e\+07 are generated: lower the"):
        process(MONDAY, MONDAY + WEEK, rng())


def test_a_count_that_can_never_come_is_refused():
    process = draws.daily(count=5, weekend_share=0)
    with pytest.raises(InvalidInput, match="no job can come in this span, but count asks for 5"):
        process(MONDAY + 5 * DAY, MONDAY + 6 * DAY, rng())
