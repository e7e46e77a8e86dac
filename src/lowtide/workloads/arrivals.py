"""When jobs come: each kind is a function that takes its parameters and returns a process.

A process is called with a span and a generator of random numbers, and returns the instants in
[start, end), in order. `poisson` and `daily` run a Poisson process of rate 1 and stretch it until
it has the rate wanted (inversion), so one draw is one job, whatever the rate.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial

import numpy as np

from lowtide.errors import InvalidInput
from lowtide.signal import FloatArray
from lowtide.units import DurationLike, TimeLike, parse_time
from lowtide.workloads.checks import number, one_of, seconds

Arrivals = Callable[[float, float, np.random.Generator], FloatArray]

_HOUR_S = 3_600.0
_DAY_S = 86_400.0
_MONDAY_SHIFT_DAYS = 3  # the epoch began on a Thursday
# A slip of a unit in a rate shall not fill the memory.
_MOST_JOBS = 20_000_000


def poisson(
    *, per_hour: float | None = None, per_day: float | None = None, count: int | None = None
) -> Arrivals:
    """Return arrivals that know nothing of each other or of the time of day.

    Args:
        per_hour: Mean number of jobs per hour; or
        per_day: mean number per day; or

    >>> process = poisson(per_hour=2)
    >>> process(0.0, 7200.0, np.random.default_rng(2)).round(1).tolist()
    [233.8, 627.6, 1551.8, 2825.3, 5009.0]
    """
    per_s, exactly = _rate(per_hour, per_day, count, "poisson arrivals")
    return partial(_poisson, per_s=per_s, count=exactly)


def daily(
    *,
    per_hour: float | None = None,
    per_day: float | None = None,
    count: int | None = None,
    working_hours: Sequence[float] = (8, 18),
    work_share: float = 0.65,
    weekend_share: float = 0.15,
    utc_offset_h: float = 0.0,
) -> Arrivals:
    """Return arrivals that follow the hours of the day and the days of the week.

    The rate is constant within working hours and outside them, on weekdays and at weekends. Days
    at weekends have the same hours as others, with fewer jobs.

    Args:
        per_hour: Mean number of jobs per hour over a whole week; or
        per_day: mean number per day over a whole week; or
        working_hours: When work begins and ends, in hours of the local day.
        work_share: Share of a day's jobs that come in working hours.
        weekend_share: Share of a week's jobs that come on Saturday and Sunday.
        utc_offset_h: How many hours local time is ahead of UTC.
    """
    per_s, exactly = _rate(per_hour, per_day, count, "daily arrivals")
    if not isinstance(working_hours, list | tuple) or len(working_hours) != 2:
        raise InvalidInput(f"working_hours is a list such as [8, 18], not {working_hours!r}")
    begin, end = (number(hour, "an hour of working_hours", most=24) for hour in working_hours)
    if not 0 < end - begin < 24:
        raise InvalidInput(
            "working_hours is when work begins and a later hour when it ends, less than a whole "
            f"day after, such as [8, 18], not {list(working_hours)!r}"
        )
    return partial(
        _daily,
        per_s=per_s,
        count=exactly,
        hours=(begin, end),
        work_share=number(work_share, "work_share", most=1),
        weekend_share=number(weekend_share, "weekend_share", most=1),
        offset_s=_HOUR_S * number(utc_offset_h, "utc_offset_h", least=-24, most=24),
    )


def bursts(
    *, bursts_per_day: float, jobs_per_burst: float, spread: DurationLike = "10m"
) -> Arrivals:
    """Return arrivals in bursts, as of people who submit many jobs at a time.

    Bursts begin at random (Poisson); each has a geometric number of jobs, at least one, which
    come anywhere within the spread after its beginning. A burst that began before the span brings
    its later jobs, so the mean rate is the same from the first moment on.

    Args:
        bursts_per_day: Mean number of bursts per day.
        jobs_per_burst: Mean number of jobs in one, at least 1.
        spread: How long a burst lasts; 0 for all its jobs at once.
    """
    mean = number(jobs_per_burst, "jobs_per_burst", least=1)
    per_day = number(bursts_per_day, "bursts_per_day", positive=True)
    spread_s = seconds(spread, "spread", positive=False)
    return partial(_bursts, per_s=per_day / _DAY_S, mean=mean, spread_s=spread_s)


def periodic(*, period: DurationLike, first: TimeLike = "+0s", each: int = 1) -> Arrivals:
    """Return arrivals at a fixed interval.

    Args:
        first: When the first come: an instant, or `+1h` after the span's beginning.

    >>> periodic(period="1d", first="+1h")(0.0, 200_000.0, np.random.default_rng(0)).tolist()
    [3600.0, 90000.0, 176400.0]
    """
    return partial(
        _periodic,
        period_s=seconds(period, "period"),
        first=first,
        each=int(number(each, "each", least=1, whole=True)),
    )


def nightly(*, hour: float = 1.0, each: int = 1, jitter: DurationLike = 0.0) -> Arrivals:
    """Return arrivals at the same hour of every night.

    Args:
        hour: The hour of the day, in UTC.
        jitter: Up to how much later than that hour each comes, evenly spread.

    >>> nightly(hour=2)(0.0, 172_800.0, np.random.default_rng(0)).tolist()
    [7200.0, 93600.0]
    """
    after_midnight_s = _HOUR_S * number(hour, "hour", most=24)
    return partial(
        _nightly,
        after_midnight_s=after_midnight_s,
        each=int(number(each, "each", least=1, whole=True)),
        jitter_s=seconds(jitter, "jitter", positive=False),
    )


def uniform(*, count: int) -> Arrivals:
    """Return arrivals at equal distances, the first at the beginning of the span.

    >>> uniform(count=4)(0.0, 60.0, np.random.default_rng(0)).tolist()
    [0.0, 15.0, 30.0, 45.0]
    """
    return partial(_uniform, count=_count(count))


ARRIVALS: Mapping[str, Callable[..., Arrivals]] = {
    "poisson": poisson,
    "daily": daily,
    "bursts": bursts,
    "periodic": periodic,
    "nightly": nightly,
    "uniform": uniform,
}


def _rate(
    per_hour: float | None, per_day: float | None, count: int | None, what: str
) -> tuple[float, int | None]:
    """Return jobs per second, and how many exactly, of which one is given."""
    said = one_of({"per_hour": per_hour, "per_day": per_day, "count": count}, what)
    if said == "count":
        return 1.0, _count(count)
    rate = number(per_hour if said == "per_hour" else per_day, said, positive=True)
    return rate / (_HOUR_S if said == "per_hour" else _DAY_S), None


def _count(count: object) -> int:
    return int(number(count, "count", least=1, most=_MOST_JOBS, whole=True))


def _poisson(
    start: float, end: float, rng: np.random.Generator, *, per_s: float, count: int | None
) -> FloatArray:
    edges = np.array([start, end])
    return _stretched(edges, per_s * (edges - start), count, rng)


def _daily(
    start: float,
    end: float,
    rng: np.random.Generator,
    *,
    per_s: float,
    count: int | None,
    hours: tuple[float, float],
    work_share: float,
    weekend_share: float,
    offset_s: float,
) -> FloatArray:
    days = np.arange(
        math.floor((start + offset_s) / _DAY_S), math.ceil((end + offset_s) / _DAY_S) + 1
    )
    begin_s, end_s = (_HOUR_S * hour for hour in hours)
    midnight = days * _DAY_S - offset_s
    edges = np.stack([midnight, midnight + begin_s, midnight + end_s], axis=1).ravel()
    weekend = (days + _MONDAY_SHIFT_DAYS) % 7 >= 5
    per_day = per_s * _DAY_S * np.where(weekend, weekend_share / 2, (1 - weekend_share) / 5) * 7
    busy = work_share / (end_s - begin_s)
    quiet = (1 - work_share) / (_DAY_S - end_s + begin_s)
    rates = (per_day[:, None] * np.array([quiet, busy, quiet])).ravel()
    expected = np.concatenate(([0.0], np.cumsum(rates[:-1] * np.diff(edges))))
    inside = (edges > start) & (edges < end)
    within = np.concatenate(([start], edges[inside], [end]))
    expected = np.interp(within, edges, expected)
    return _stretched(within, expected - expected[0], count, rng)


def _bursts(
    start: float,
    end: float,
    rng: np.random.Generator,
    *,
    per_s: float,
    mean: float,
    spread_s: float,
) -> FloatArray:
    # Three generators: a longer span draws more of each and changes none that came before.
    when, how_many, where = rng.spawn(3)
    begins = _poisson(start - spread_s, end, when, per_s=per_s, count=None)
    sizes = how_many.geometric(1 / mean, begins.size)
    _check_many(float(sizes.sum()))
    jobs = np.repeat(begins, sizes)
    jobs += spread_s * where.random(jobs.size)
    return _within(jobs, start, end)


def _periodic(
    start: float,
    end: float,
    _: np.random.Generator,
    *,
    period_s: float,
    first: TimeLike,
    each: int,
) -> FloatArray:
    begin = parse_time(first, relative_to=start)
    skipped = max(math.ceil((start - begin) / period_s), 0)
    times = max(math.ceil((end - begin) / period_s), 0)
    _check_many(float(each) * (times - skipped))
    return _within(np.repeat(begin + period_s * np.arange(skipped, times), each), start, end)


def _nightly(
    start: float,
    end: float,
    rng: np.random.Generator,
    *,
    after_midnight_s: float,
    each: int,
    jitter_s: float,
) -> FloatArray:
    # Jobs that were late in the nights before may come within the span.
    first = math.floor((start - after_midnight_s - jitter_s) / _DAY_S)
    nights = np.arange(first, math.floor(end / _DAY_S) + 1)
    _check_many(float(each) * nights.size)
    jobs = np.repeat(nights * _DAY_S + after_midnight_s, each)
    if jitter_s:
        jobs += jitter_s * rng.random(jobs.size)
    return _within(jobs, start, end)


def _within(jobs: FloatArray, start: float, end: float) -> FloatArray:
    return np.sort(jobs[(jobs >= start) & (jobs < end)])


def _uniform(start: float, end: float, _: np.random.Generator, *, count: int) -> FloatArray:
    return start + (end - start) * (np.arange(count) / count)


def _stretched(
    edges: FloatArray, expected: FloatArray, count: int | None, rng: np.random.Generator
) -> FloatArray:
    """Return a Poisson process whose expected number of jobs up to each edge is given."""
    total = float(expected[-1])
    if count is None:
        _check_many(total)
        points = _unit_process(total, rng)
    elif total > 0:
        points = np.sort(rng.random(count)) * total
    else:
        raise InvalidInput(
            f"no job can come in this span, but count asks for {count}: lengthen the duration, or "
            "change work_share or weekend_share"
        )
    # Rounding may carry a job onto the end, which is no part of the span.
    last = np.nextafter(edges[-1], edges[0])
    times: FloatArray = np.minimum(np.interp(points, expected, edges), last)
    return times


def _unit_process(total: float, rng: np.random.Generator) -> FloatArray:
    """Return the points in [0, total) of a Poisson process of rate 1."""
    gaps: list[FloatArray] = []
    reached = 0.0
    while reached < total:
        left = total - reached
        gaps.append(rng.standard_exponential(int(left + 5 * math.sqrt(left)) + 16))
        reached += float(gaps[-1].sum())
    points: FloatArray = np.cumsum(np.concatenate(gaps)) if gaps else np.empty(0)
    return points[points < total]


def _check_many(jobs: float) -> None:
    if jobs > _MOST_JOBS:
        raise InvalidInput(
            f"these arrivals come to about {jobs:.3g} jobs, and at most {_MOST_JOBS:.3g} are "
            "generated: lower the rate or shorten the duration"
        )
