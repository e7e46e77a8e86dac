"""What was known of a signal at a moment, and models of how wrong that is.

A model is asked, at a moment, for a forecast of a signal whose true course it may look at. It
answers with a `Forecast` that begins with the signal: whatever lies before the moment, and the
step under way, is as it was. What lies ahead is wrong in the model's own manner.

The error grows with lead time, and the errors of neighbouring steps go together. Noise that is
drawn anew for every step is neither: a planner averages it away, and so looks better than it is.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import accumulate
from statistics import NormalDist
from typing import Protocol, runtime_checkable

import numpy as np

from lowtide.errors import InvalidInput, InvalidSignal, InvalidTime, NotCovered
from lowtide.signal import FILLED, FloatArray, Signal
from lowtide.units import TimeLike, format_count, format_time, parse_time

HOUR_S = 3600.0
DAY_S = 86400.0

# How far into a step, in steps, rounding of epoch seconds may put a moment that is its edge.
_EDGE_STEPS = 1e-9


@dataclass(frozen=True, slots=True, kw_only=True, init=False)
class Forecast:
    """A signal as it was foreseen at its time of issue, with a band around it.

    Attributes:
        issued: When the forecast was made; nothing in it knows of later news.
        signal: The value expected.
        lower: The lower edge of the band, on the same steps, if there is one.
        upper: The upper edge of the band, on the same steps, if there is one.

    >>> expected = Signal.from_values([300, 100], start=0, step_s=3600)
    >>> Forecast(issued=0, signal=expected).lead_s(5400.0)
    5400.0
    """

    issued: float
    signal: Signal
    lower: Signal | None
    upper: Signal | None

    def __init__(
        self,
        *,
        issued: TimeLike,
        signal: Signal,
        lower: Signal | None = None,
        upper: Signal | None = None,
    ) -> None:
        object.__setattr__(self, "issued", parse_time(issued))
        object.__setattr__(self, "signal", signal)
        object.__setattr__(self, "lower", lower)
        object.__setattr__(self, "upper", upper)
        for name, below, above in (
            ("lower", lower, signal),
            ("upper", signal, upper),
        ):
            if below is None or above is None:
                continue
            same_steps = (below.start, below.step_s, len(below)) == (
                above.start,
                above.step_s,
                len(above),
            )
            if not same_steps or below.kind != above.kind:
                raise InvalidSignal(
                    f"a forecast's {name} band must have the signal's kind and steps"
                )
            if np.any(below.values > above.values):
                raise InvalidSignal(
                    f"a forecast's {name} band lies on the wrong side of the signal"
                )

    def lead_s(self, instant: float) -> float:
        """Return how far ahead of its issue an instant lies."""
        return instant - self.issued

    @property
    def leads_s(self) -> FloatArray:
        """How far ahead of the issue each step begins; 0 or less for what had begun by then."""
        return self.signal.edges[:-1] - self.issued

    def relative_errors(self, actual: Signal) -> FloatArray:
        """Return by what share each step was foreseen too high; NaN where the truth is 0.

        Args:
            actual: The signal as it came to be, on the same steps; it may go on for longer.

        >>> expected = Signal.from_values([300, 120], start=0, step_s=3600)
        >>> came = Signal.from_values([300, 100, 50], start=0, step_s=3600)
        >>> Forecast(issued=0, signal=expected).relative_errors(came)
        array([0. , 0.2])
        """
        if (actual.kind, actual.step_s) != (self.signal.kind, self.signal.step_s):
            raise InvalidSignal("a forecast is compared with a signal of its kind and steps")
        truth = actual.window(self.signal.start, self.signal.end)
        if len(truth) != len(self.signal):
            raise InvalidSignal("a forecast is compared with a signal whose steps begin with its")
        errors = np.full(len(truth), np.nan)
        np.divide(self.signal.values, truth.values, out=errors, where=truth.values != 0)
        return errors - 1.0


@runtime_checkable
class ForecastModel(Protocol):
    """Anything that says what was known of a signal at a moment."""

    def forecast(self, actual: Signal, issued: float, horizon_s: float) -> Forecast:
        """Return what was foreseen at a moment.

        Args:
            actual: The signal as it came to be.
            issued: The moment.
            horizon_s: How far ahead the forecast must reach.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Perfect:
    """The future as it came to be.

    Attributes:
        reach_s: How far it sees; what lies beyond repeats the day before. None sees everything.

    >>> curve = Signal.from_values([300, 100, 200], start=0, step_s="1h")
    >>> Perfect().forecast(curve, 0.0, 7200.0).signal.values
    array([300., 100.])
    """

    reach_s: float | None = None

    def __post_init__(self) -> None:
        _check_reach(self.reach_s)

    def forecast(self, actual: Signal, issued: float, horizon_s: float) -> Forecast:
        """Return the true course.

        Args:
            horizon_s: How far ahead the forecast must reach.
        """
        steps = ForecastSteps.of(actual, issued, horizon_s)
        seen = steps.seen(self.reach_s)
        return Forecast(issued=issued, signal=lay_out(actual, steps, actual.values[:seen]))


@dataclass(frozen=True, slots=True, kw_only=True)
class LeadScaled:
    """The true course times an error that grows with lead time.

    News arrives all the time, and each piece bears on all steps ahead, on neighbours alike. What
    a forecast does not know yet is all the news between its issue and the step it is about. So
    forecasts of the same step, issued one after the other, differ by the news in between and end
    at the truth; and the error's spread grows as the square root of the lead, up to a cap. Errors
    multiply (log-normal with mean 1), so that no sign changes and 0 stays 0.

    Attributes:
        relative_error: Standard deviation of forecast / truth at the lead `lead_s`, up to 1.
        lead_s: That lead.
        most: Standard deviation that the error does not exceed at any lead; by default twice
            `relative_error`, which is reached at four times `lead_s`, and 1 at most.
        autocorrelation: Correlation of what one hour's news does to two steps that are an hour
            apart. Of their errors it is less, √(h / (h + 1)) times this at a lead of h hours up
            to the cap, as the later step awaits one more hour's news.
        coverage: Share of the truth that lies between the lower and the upper band.
        reach_s: How far it sees; what lies beyond repeats the day before. None sees everything.
        seed: Seed of the news.

    >>> curve = Signal.from_values([300.0] * 24, start=0, step_s="1h")
    >>> early = LeadScaled(seed=1).forecast(curve, 0.0, 86400.0)
    >>> late = LeadScaled(seed=1).forecast(curve, 64800.0, 21600.0)
    >>> [round(float(each.signal.at(72000.0))) for each in (early, late)]
    [354, 318]
    """

    relative_error: float = 0.1
    lead_s: float = DAY_S
    most: float | None = None
    autocorrelation: float = 0.9
    coverage: float = 0.8
    reach_s: float | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        if not 0 <= self.relative_error <= 1:
            raise InvalidInput(f"a relative error is from 0 to 1, not {self.relative_error}")
        if self.most is not None and not self.relative_error <= self.most <= 1:
            raise InvalidInput(
                f"the largest error is from relative_error = {self.relative_error:g} to 1, "
                f"not {self.most}"
            )
        if not (math.isfinite(self.lead_s) and self.lead_s > 0):
            raise InvalidInput(f"the lead of the stated error is above 0 s, not {self.lead_s}")
        if not 0 <= self.autocorrelation < 1:
            raise InvalidInput(
                f"an autocorrelation is from 0 to below 1, not {self.autocorrelation}"
            )
        if not 0 < self.coverage < 1:
            raise InvalidInput(f"a band covers a share between 0 and 1, not {self.coverage}")
        if isinstance(self.seed, bool) or not isinstance(self.seed, int) or self.seed < 0:
            raise InvalidInput(f"a seed is a whole number of at least 0, not {self.seed!r}")
        _check_reach(self.reach_s)

    def forecast(self, actual: Signal, issued: float, horizon_s: float) -> Forecast:
        """Return the true course with the error that is left at this moment.

        Args:
            horizon_s: How far ahead the forecast must reach.
        """
        steps = ForecastSteps.of(actual, issued, horizon_s)
        seen = steps.seen(self.reach_s)
        lead_s: FloatArray = np.maximum(actual.edges[:seen] - issued, 0.0)
        lead_s[: steps.known] = 0.0
        variance = self._variance(lead_s)
        error = np.zeros(seen)
        error[steps.known :] = self._error(actual, steps, issued, lead_s[steps.known :])
        expected = actual.values[:seen] * np.exp(error - variance / 2)

        # The truth is the forecast times exp(variance/2 − error): its quantiles are known.
        wide = NormalDist().inv_cdf((1 + self.coverage) / 2) * np.sqrt(variance)
        ends = np.stack([expected * np.exp(variance / 2 + side * wide) for side in (-1, 1)])
        lower = np.minimum(expected, ends.min(axis=0))
        upper = np.maximum(expected, ends.max(axis=0))
        made = [lay_out(actual, steps, values) for values in (expected, lower, upper)]
        return Forecast(issued=issued, signal=made[0], lower=made[1], upper=made[2])

    def _variance(self, lead_s: FloatArray) -> FloatArray:
        """Return the variance of the logarithm of forecast / truth at each lead."""
        most = min(2 * self.relative_error, 1.0) if self.most is None else self.most
        spread = self.relative_error * np.sqrt(lead_s / self.lead_s)
        variance: FloatArray = np.log1p(np.minimum(spread, most) ** 2)
        return variance

    def _error(
        self, actual: Signal, steps: ForecastSteps, issued: float, lead_s: FloatArray
    ) -> FloatArray:
        """Add up, for each step ahead, the news between the issue and the step."""
        error = np.zeros(lead_s.size)
        if not lead_s.size or not self.relative_error:
            return error
        rho = self.autocorrelation ** (actual.step_s / HOUR_S)
        begin = issued + lead_s
        first = math.floor(issued / HOUR_S)
        for hour in range(first, math.floor(float(begin[-1]) / HOUR_S) + 1):
            # The steps that this hour's news bears on begin after the hour has begun; counted
            # from the signal's start, so that every issue counts them alike.
            since = math.floor((hour * HOUR_S - actual.start) / actual.step_s + _EDGE_STEPS) + 1
            news = _news(self.seed, hour, steps.end - since, rho)
            skip = max(steps.known - since, 0)
            offset = max(since - steps.known, 0)
            news = news[skip : skip + lead_s.size - offset]
            ahead = slice(offset, offset + news.size)
            unknown_s = begin[ahead] - max(hour * HOUR_S, issued)
            later_s = np.maximum(begin[ahead] - (hour + 1) * HOUR_S, 0.0)
            weight = self._variance(unknown_s) - self._variance(later_s)
            error[ahead] += np.sqrt(np.maximum(weight, 0.0)) * news
        return error


@dataclass(frozen=True, slots=True, kw_only=True)
class Persistence:
    """What was seen a day before, or a week: the forecast that everybody can make.

    It knows the signal up to the step under way and nothing else, so it may reach beyond the
    signal's end. Where a day before is ahead too, it looks two days back, and so on; where the
    signal does not go back that far, it holds the last known value.

    Attributes:
        period_s: How far back it looks, to the nearest whole step.

    >>> curve = Signal.from_values([300, 100, 200, 250], start=0, step_s="12h")
    >>> Persistence().forecast(curve, 43200.0, 129600.0).signal.values
    array([300., 100., 300., 100.])
    """

    period_s: float = DAY_S

    def __post_init__(self) -> None:
        if not (math.isfinite(self.period_s) and self.period_s > 0):
            raise InvalidInput(f"a period is longer than 0 s, not {self.period_s}")

    def forecast(self, actual: Signal, issued: float, horizon_s: float) -> Forecast:
        """Return the past, repeated.

        Args:
            actual: The signal; nothing after the step under way is looked at.
            horizon_s: How far ahead the forecast must reach.
        """
        steps = ForecastSteps.of(actual, issued, horizon_s, beyond=True)
        values = _repeated(actual, steps, self.period_s)
        signal = replace(actual, values=values, marks=None, source="persistence")
        return Forecast(issued=issued, signal=signal)


@dataclass(frozen=True, slots=True, kw_only=True, init=False)
class Replay:
    """Forecasts that were recorded: the newest one there was at the moment.

    On the signal's own steps, by the mean over each. Steps that have come since it was issued are
    as they were; what lies beyond its end repeats the day before.

    Attributes:
        forecasts: What was recorded, in the order of issue.
    """

    forecasts: tuple[Forecast, ...]

    def __init__(self, forecasts: Sequence[Forecast]) -> None:
        if not forecasts:
            raise InvalidInput("a replay needs at least one recorded forecast")
        ordered = tuple(sorted(forecasts, key=lambda each: each.issued))
        object.__setattr__(self, "forecasts", ordered)

    def forecast(self, actual: Signal, issued: float, horizon_s: float) -> Forecast:
        """Return the newest recorded forecast.

        Args:
            horizon_s: How far ahead the forecast must reach.
        """
        there = [each for each in self.forecasts if each.issued <= issued]
        if not there:
            raise NotCovered(
                f"no forecast was recorded by {format_time(issued)}, the first is of "
                f"{format_time(self.forecasts[0].issued)}: add an earlier one, or plan from then on"
            )
        newest = there[-1]
        recorded_as, needed = (
            f"{signal.kind} {signal.basis or ''} in {signal.unit}"
            for signal in (newest.signal, actual)
        )
        if recorded_as != needed:
            raise InvalidInput(f"a forecast of {recorded_as} says nothing of a signal of {needed}")
        steps = ForecastSteps.of(actual, issued, horizon_s)

        def on_steps(recorded: Signal) -> Signal:
            edges = actual.edges[steps.known : steps.end + 1]
            inside = int(
                np.searchsorted(edges, recorded.end + _EDGE_STEPS * actual.step_s, "right")
            )
            edges = edges[: max(inside, 1)]
            ahead = recorded.integral(edges[:-1], edges[1:]) / actual.step_s
            return lay_out(actual, steps, np.concatenate((actual.values[: steps.known], ahead)))

        return Forecast(
            issued=issued,
            signal=on_steps(newest.signal),
            lower=None if newest.lower is None else on_steps(newest.lower),
            upper=None if newest.upper is None else on_steps(newest.upper),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ForecastSteps:
    """Which of a signal's steps a forecast is made of.

    Attributes:
        known: How many of them are known: those that have begun.
        end: How many there are in all.
        start: Where the first begins.
        step_s: Their length.
        issued: When the forecast is made.
    """

    known: int
    end: int
    start: float
    step_s: float
    issued: float

    @classmethod
    def of(
        cls, actual: Signal, issued: float, horizon_s: float, *, beyond: bool = False
    ) -> ForecastSteps:
        """Return the steps of a forecast that is made at a moment.

        Args:
            horizon_s: How far ahead it must reach.
            beyond: Whether it may reach beyond the signal's end.
        """
        if not (math.isfinite(issued) and math.isfinite(horizon_s) and horizon_s > 0):
            raise InvalidTime(
                f"a forecast reaches further than its moment, not {horizon_s} s from {issued}"
            )
        until = issued if beyond else issued + horizon_s
        actual.require(issued, until, what="the signal to be forecast")
        begun = math.floor((issued - actual.start) / actual.step_s + _EDGE_STEPS) + 1
        # A moment at the very end of the signal is within it, but no step begins there.
        known = min(begun, len(actual))
        end = math.ceil((issued + horizon_s - actual.start) / actual.step_s - _EDGE_STEPS)
        return cls(
            known=known,
            end=max(end, known),
            start=actual.start,
            step_s=actual.step_s,
            issued=issued,
        )

    def seen(self, reach_s: float | None) -> int:
        """Return how many of the steps somebody knows who sees so far: whole ones only."""
        if reach_s is None:
            return self.end
        whole = math.floor((self.issued + reach_s - self.start) / self.step_s + _EDGE_STEPS)
        return min(max(whole, self.known), self.end)


def lay_out(actual: Signal, steps: ForecastSteps, values: FloatArray) -> Signal:
    """Make a signal of what was foreseen; steps beyond that repeat the day before, and say so."""
    missing = steps.end - values.size
    if not missing:
        return replace(actual, values=values, marks=None, source="forecast")
    filled = _repeated(
        replace(actual, values=values, marks=None), replace(steps, known=values.size), DAY_S
    )
    marks = np.zeros(steps.end, dtype=np.uint8)
    marks[values.size :] = FILLED
    source = (
        f"forecast; the last {format_count(missing, 'step')}, beyond what it covers, repeat the "
        "day before"
    )
    return replace(actual, values=filled, marks=marks, source=source)


def _repeated(actual: Signal, steps: ForecastSteps, period_s: float) -> FloatArray:
    """Return the known values, and for the steps ahead those of whole periods before."""
    period = max(round(period_s / actual.step_s), 1)
    ahead = np.arange(steps.known, steps.end)
    back = ahead - period * ((ahead - steps.known) // period + 1)
    back = np.where(back >= 0, back, steps.known - 1)
    known = actual.values[: steps.known]
    return np.concatenate((known, known[back]))


@lru_cache(maxsize=4096)
def _news(seed: int, hour: int, count: int, rho: float) -> FloatArray:
    """Return what one hour's news does to each of the steps after it: an AR(1) series."""
    if count <= 0:
        return np.empty(0)
    # Hours before the epoch are negative, and a seed is not.
    draws = np.random.default_rng([seed, hour % 2**64]).standard_normal(count)
    fresh = math.sqrt(1 - rho * rho)
    draws[1:] *= fresh
    series = np.array(list(accumulate(draws.tolist(), lambda before, new: rho * before + new)))
    series.flags.writeable = False
    return series


def _check_reach(reach_s: float | None) -> None:
    if reach_s is not None and not (math.isfinite(reach_s) and reach_s > 0):
        raise InvalidInput(
            f"how far a forecast sees is above 0 s, not {reach_s}: None for everything"
        )
