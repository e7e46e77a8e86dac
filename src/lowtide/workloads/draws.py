"""What chance decides of jobs: when they come, how long they work and may wait, what each holds.

Each kind is a function that takes its parameters and returns what draws. Arrivals are called with a
span and a generator of random numbers, and return the instants in [start, end), in order: `poisson`
and `daily` run a Poisson process of rate 1 and stretch it until it has the rate wanted (inversion),
so one draw is one job, whatever the rate. A length is work alone: what a start costs comes on top.
A wait is a time, a multiple of the run, or said by queue. Any other value is the same for all, one
of several, or spread around a median.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from statistics import NormalDist
from typing import Any, TypeGuard

import numpy as np

from lowtide.errors import InvalidInput, require_known
from lowtide.formats import read_jobs
from lowtide.signal import FloatArray
from lowtide.steps import Steps
from lowtide.trace import Trace
from lowtide.units import DurationLike, TimeLike, format_hours, parse_time
from lowtide.workloads.checks import number, one_of, optional_seconds, seconds

Arrivals = Callable[[float, float, np.random.Generator], FloatArray]

_HOUR_S = 3_600.0
_DAY_S = 86_400.0
_MONDAY_SHIFT_DAYS = 3  # the epoch began on a Thursday
# A slip of a unit in a rate shall not fill the memory.
_MOST_JOBS = 20_000_000

Lengths = Callable[[int, np.random.Generator], FloatArray]

# Below this share of lengths that fit, drawing until one fits takes long and says little.
_LEAST_SHARE = 1e-3
# Takes how long each job runs when it is never stopped, and returns how long each may wait.
Wait = Callable[[FloatArray, np.random.Generator], FloatArray]

WAIT_KEYS = ("wait", "slack", "queues")
Draw = Callable[[int, np.random.Generator], FloatArray]


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
    inside = (edges > start) & (edges < end)
    within = np.concatenate(([start], edges[inside], [end]))
    expected = Steps(times=edges, values=rates).upto(within)
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


def constant(*, length: DurationLike) -> Lengths:
    """Return lengths that are all the same."""
    return partial(_constant, length_s=seconds(length, "length"))


def lognormal(
    *,
    median: DurationLike,
    sigma: float,
    low: DurationLike | None = None,
    high: DurationLike | None = None,
) -> Lengths:
    """Return lengths whose logarithms have a normal distribution.

    A length outside `low` and `high` is drawn again, so none piles up at the limits. Limits that
    cut one side more than the other move the median.

    Args:
        median: Half of all jobs are shorter, before any are drawn again.
        sigma: Standard deviation of the natural logarithm: 68 % of lengths lie between the median
            divided and multiplied by exp(sigma).

    >>> lognormal(median="2h", sigma=1.2, high="1d")(3, np.random.default_rng(0)).round().tolist()
    [8373.0, 6144.0, 15527.0]
    """
    median_s = seconds(median, "median")
    spread = number(sigma, "sigma")
    low_s, high_s = optional_seconds(low, "low") or 0.0, optional_seconds(high, "high") or math.inf
    if _share(median_s, spread, low_s, high_s) < _LEAST_SHARE:
        raise InvalidInput(
            f"fewer than 1 in 1,000 lengths with median {format_hours(median_s)} and sigma "
            f"{spread:g} lie between low and high: widen them, or move the median"
        )
    return partial(_lognormal, median_s=median_s, sigma=spread, low_s=low_s, high_s=high_s)


def loguniform(*, low: DurationLike, high: DurationLike) -> Lengths:
    """Return lengths as often between 1 h and 2 h as between 10 h and 20 h."""
    low_s, high_s = seconds(low, "low"), seconds(high, "high")
    if low_s > high_s:
        raise InvalidInput(f"low is at most high, but {low!r} is longer than {high!r}")
    return partial(_loguniform, low_s=low_s, high_s=high_s)


def from_trace(
    *,
    trace: Trace | Path | str,
    format: str | None = None,  # noqa: A002 - as in `read_jobs`
    time_unit: str | None = None,
) -> Lengths:
    """Return lengths drawn from those of a trace, with replacement.

    Jobs that never ran have no length and are left out.

    Args:
        format: Which format the file has, where it should not be told by its content.
        time_unit: What a plain table counts time in: `s`, `min`, `h` or `ms`.

    >>> ran = Trace(columns={"arrival": [0, 1, 2], "length_s": [60, 0, 90]})
    >>> from_trace(trace=ran)(4, np.random.default_rng(0)).tolist()
    [90.0, 60.0, 60.0, 60.0]
    """
    ran = (
        trace if isinstance(trace, Trace) else read_jobs(trace, format=format, time_unit=time_unit)
    )
    known = ran.length_s[ran.length_s > 0]
    if not known.size:
        raise InvalidInput(f"no job of {ran.source or 'the trace'} has a length to draw from")
    return partial(_from_trace, known_s=known)


LENGTHS: Mapping[str, Callable[..., Lengths]] = {
    "constant": constant,
    "lognormal": lognormal,
    "loguniform": loguniform,
    "from_trace": from_trace,
}


def _constant(count: int, _: np.random.Generator, *, length_s: float) -> FloatArray:
    return np.full(count, length_s)


def _lognormal(
    count: int,
    rng: np.random.Generator,
    *,
    median_s: float,
    sigma: float,
    low_s: float,
    high_s: float,
) -> FloatArray:
    lengths = median_s * np.exp(sigma * rng.standard_normal(count))
    # Only those that do not fit are drawn again: other limits leave the rest as they were.
    while (wrong := np.flatnonzero((lengths < low_s) | (lengths > high_s))).size:
        lengths[wrong] = median_s * np.exp(sigma * rng.standard_normal(wrong.size))
    return lengths


def _loguniform(count: int, rng: np.random.Generator, *, low_s: float, high_s: float) -> FloatArray:
    lengths: FloatArray = low_s * (high_s / low_s) ** rng.random(count)
    return lengths


def _from_trace(count: int, rng: np.random.Generator, *, known_s: FloatArray) -> FloatArray:
    # One uniform number per job: job k keeps its place in the trace whatever comes after it.
    drawn: FloatArray = known_s[(rng.random(count) * known_s.size).astype(np.int64)]
    return drawn


def _share(median_s: float, sigma: float, low_s: float, high_s: float) -> float:
    """Return which share of lognormal lengths lies between two limits."""
    if sigma == 0:
        return float(low_s <= median_s <= high_s)
    normal = NormalDist(math.log(median_s), sigma)
    below = normal.cdf(math.log(low_s)) if low_s else 0.0
    return (normal.cdf(math.log(high_s)) if high_s < math.inf else 1.0) - below


def read_wait(document: Mapping[str, Any]) -> Wait:
    """Return how long jobs may wait, from the one key of a workload that says it.

    Args:
        document: A workload with `wait`, `slack` or `queues`.

    >>> queues = {"short": {"below": "2h", "wait": "6h"}, "long": {"wait": "24h"}}
    >>> wait = read_wait({"queues": queues})
    >>> wait(np.array([7199.0, 7200.0]), np.random.default_rng(0)).tolist()
    [21600.0, 86400.0]
    """
    said = one_of({key: document.get(key) for key in WAIT_KEYS}, "how long jobs may wait")
    if said == "wait":
        return partial(_wait, draw=read_draw(document["wait"], "wait", _seconds, spread=True))
    if said == "slack":
        return partial(_slack, draw=read_draw(document["slack"], "slack", number, spread=True))
    return _read_queues(document["queues"])


def _seconds(value: object, what: str) -> float:
    return seconds(value, what, positive=False)


def _read_queues(queues: object) -> Wait:
    if not isinstance(queues, Mapping) or not queues:
        raise InvalidInput(
            "queues is a table of queues, such as {short = {below = '2h', wait = '6h'}, "
            f"long = {{wait = '24h'}}}}, not {queues!r}"
        )
    limits: list[tuple[float, float]] = []
    for name, queue in queues.items():
        what = f"queue {name!r}"
        if not isinstance(queue, Mapping) or "wait" not in queue:
            raise InvalidInput(f"{what} is a table with wait, and below unless it takes the rest")
        require_known(queue, ("below", "wait"), f"key of {what}")
        below_s = seconds(queue["below"], f"below of {what}") if "below" in queue else np.inf
        limits.append((below_s, _seconds(queue["wait"], f"wait of {what}")))
    limits.sort()
    below = np.array([limit for limit, _ in limits])
    if below[-1] < np.inf or np.unique(below).size < below.size:
        raise InvalidInput(
            "each queue has a 'below' of its own, but for one, which has none and takes all "
            "longer jobs"
        )
    waits = np.array([wait_s for _, wait_s in limits])
    return partial(_queued, below_s=below[:-1], wait_s=waits)


def _wait(run_s: FloatArray, rng: np.random.Generator, *, draw: Draw) -> FloatArray:
    return draw(run_s.size, rng)


def _slack(run_s: FloatArray, rng: np.random.Generator, *, draw: Draw) -> FloatArray:
    return run_s * draw(run_s.size, rng)


def _queued(
    run_s: FloatArray, _: np.random.Generator, *, below_s: FloatArray, wait_s: FloatArray
) -> FloatArray:
    waits: FloatArray = wait_s[np.searchsorted(below_s, run_s, side="right")]
    return waits


def read_draw(
    value: object, what: str, read: Callable[[object, str], float], *, spread: bool = False
) -> Draw:
    """Return what draws one value per job.

    Args:
        value: One value, `{choices = [...], weights = [...]}`, or, where values may be spread,
            `{kind = "lognormal", median = ..., sigma = ...}`.

    >>> draw = read_draw({"choices": [1, 8], "weights": [3, 1]}, "cpus", number)
    >>> draw(6, np.random.default_rng(1)).tolist()
    [1.0, 8.0, 1.0, 8.0, 1.0, 1.0]
    """
    if not isinstance(value, Mapping):
        return same(read(value, what))
    if "choices" in value:
        require_known(value, ("choices", "weights"), f"key of {what}")
        return _choice(value["choices"], value.get("weights"), what, read)
    if not spread or value.get("kind") != "lognormal":
        or_spread = " or {kind = 'lognormal', median = ..., sigma = ...}" if spread else ""
        raise InvalidInput(
            f"{what} is one value, or {{choices = [...], weights = [...]}}{or_spread}, "
            f"not {dict(value)!r}"
        )
    require_known(value, ("kind", "median", "sigma"), f"key of {what}")
    return partial(
        _lognormal_choice,
        median=read(value.get("median"), f"median of {what}"),
        sigma=number(value.get("sigma"), f"sigma of {what}"),
    )


def same(value: float) -> Draw:
    """Return what gives every job the same value."""
    return partial(_same, value=value)


def _choice(
    choices: object, weights: object, what: str, read: Callable[[object, str], float]
) -> Draw:
    if not _is_list(choices) or len(choices) == 0:
        raise InvalidInput(f"choices of {what} is a list of at least one, not {choices!r}")
    values = np.array([read(each, what) for each in choices])
    if weights is None:
        shares = np.ones(values.size)
    elif _is_list(weights) and len(weights) == values.size:
        shares = np.array([number(each, f"a weight of {what}") for each in weights])
    else:
        raise InvalidInput(f"weights of {what} has a number per choice, {values.size} in all")
    if not shares.sum():
        raise InvalidInput(f"weights of {what} are all 0: one at least is more")
    return partial(_one_of, values=values, bounds=np.cumsum(shares) / shares.sum())


def _is_list(value: object) -> TypeGuard[Sequence[Any]]:
    return isinstance(value, Sequence | np.ndarray) and not isinstance(value, str)


def _same(count: int, _: np.random.Generator, *, value: float) -> FloatArray:
    return np.full(count, value)


def _one_of(
    count: int, rng: np.random.Generator, *, values: FloatArray, bounds: FloatArray
) -> FloatArray:
    # Rounding may leave the last bound below 1; what falls above it is the last choice too.
    places = np.searchsorted(bounds[:-1], rng.random(count), side="right")
    drawn: FloatArray = values[places]
    return drawn


def _lognormal_choice(
    count: int, rng: np.random.Generator, *, median: float, sigma: float
) -> FloatArray:
    drawn: FloatArray = median * np.exp(sigma * rng.standard_normal(count))
    return drawn
