"""One forecast of a signal's own history: several ways, weighed by how wrong each has been of late.

At the beginning of each day (UTC) the ways are tried on the weeks before it: what each would have
foreseen, with what was known then, is compared with what came. The less wrong a way was at a lead,
the more it counts at that lead. What was left of the error then is the band: nobody takes it to
be normal, a share of what came lay within it (split conformal prediction). What is learned is
learned from the time before those weeks, so it is not tried on what it has seen; what takes no
time to be learned is learned anew then, from all that is known.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from lowtide.errors import InvalidInput, NotCovered, UnknownName
from lowtide.forecast import DAY_S, Forecast, ForecastSteps, lay_out
from lowtide.forecasting.models import (
    REACH_DAYS,
    Foresees,
    day_before,
    draw_lines,
    grow,
    usual_course,
)
from lowtide.forecasting.past import IntArray, Past
from lowtide.signal import ESTIMATED, FloatArray, Signal
from lowtide.units import format_hours, format_percent, format_time

#: How a signal can be foreseen.
WAYS = ("persistence", "profile", "linear", "boosting")
# Leads up to these count as one: hours.
LEADS_H = (1, 3, 6, 12, 24, 48, 96, 168)
# For how long ways are tried: a quarter of the history, within these; and how often a day.
_TRIED_DAYS = (10, 28)
_TRIED_SHARE = 0.25
_TRIALS_A_DAY = 8
_TRIED_LEADS = 4
# How much better a way must be to count alone.
_SHARPNESS = 2.0
# What the ways need: days of history, and for learning days before those that it is tried on.
_USUAL_DAYS = 8
_LEARNED_DAYS = 21
# Trees are grown anew every four weeks, of a short history every day.
_RENEWED_DAYS = 28
# How far back tables of the past look.
_TABLE_DAYS = 29 + REACH_DAYS


@dataclass(frozen=True, slots=True, kw_only=True)
class Auto:
    """What a signal's own history lets one expect, and how wrong that tends to be.

    It looks at nothing after the step under way, so it may reach beyond the signal's end: 7 days
    ahead; what lies beyond that repeats the day before, and is marked as filled.

    Attributes:
        ways: How it is foreseen: `persistence` is the day before, `profile` what is usual at that
            time of the week, `linear` by how much what comes departs from that given how it did
            so far, `boosting` trees that learned from lags and the calendar, which scikit-learn
            grows. A way sits out as long as the history is too short for it.
        coverage: Share of what comes that is to lie between the lower and the upper band.
        seed: Seed of what is learned.

    >>> curve = Signal.from_values([300.0, 100.0] * 3, start=0, step_s="12h")
    >>> Auto().forecast(curve, curve.end, 86400.0).signal.values[-2:]
    array([300., 100.])
    """

    ways: tuple[str, ...] = WAYS
    coverage: float = 0.8
    seed: int = 0

    def __post_init__(self) -> None:
        object.__setattr__(self, "ways", tuple(self.ways))
        if not self.ways or not set(self.ways) <= set(WAYS):
            raise InvalidInput(
                f"ways of foreseeing are one or more of {', '.join(WAYS)}, not {self.ways!r}"
            )
        if not 0 < self.coverage < 1:
            raise InvalidInput(f"a band covers a share between 0 and 1, not {self.coverage}")
        if isinstance(self.seed, bool) or not isinstance(self.seed, int) or self.seed < 0:
            raise InvalidInput(f"a seed is a whole number of at least 0, not {self.seed!r}")

    def forecast(self, actual: Signal, issued: float, horizon_s: float) -> Forecast:
        """Return what the past lets one expect.

        Args:
            actual: The signal; nothing after the step under way is looked at.
            horizon_s: How far ahead the forecast must reach.
        """
        steps = ForecastSteps.of(actual, issued, horizon_s, beyond=True)
        past = Past.of(actual, steps.known)
        count = min(steps.end - steps.known, REACH_DAYS * past.per_day)
        ahead = np.arange(1, count + 1)
        tried = self.tried(past)
        recent = past.recent(_TABLE_DAYS)
        expected = tried.foresee(recent, np.full(count, len(recent) - 1), ahead)
        # What was never below 0 is not foreseen there, and no building draws less than its nodes.
        least = 1.0 if actual.kind == "pue" else min(float(np.nanmin(past.values)), 0.0)
        known = actual.values[: steps.known]
        source = f"forecast of its own history until {format_time(past.end)}, {tried.words}"

        def told(values: FloatArray) -> Signal:
            whole = np.concatenate((known, np.maximum(values, least)))
            made = lay_out(actual, steps, whole)
            marks = np.zeros(len(made), np.uint8) if made.marks is None else made.marks.copy()
            if actual.marks is not None:
                marks[: steps.known] = actual.marks[: steps.known]
            marks[steps.known : whole.size] = ESTIMATED
            return replace(made, marks=marks, source=source)

        lower = upper = None
        band = tried.band(past, ahead, self.coverage)
        if band is not None:
            lower, upper = (told(expected + side) for side in band)
        return Forecast(issued=issued, signal=told(expected), lower=lower, upper=upper)

    def about(self, actual: Signal, issued: float) -> list[str]:
        """Return how a forecast comes about and what its history lacks, in words."""
        past = Past.of(actual, ForecastSteps.of(actual, issued, 1.0, beyond=True).known)
        tried = self.tried(past)
        said = [f"Foreseen from {format_hours(DAY_S * int(past.days))} of history, {tried.words}."]
        said += [f"{reason[:1].upper()}{reason[1:]}." for reason in (*past.caveats(), *tried.out)]
        return said

    def tried(self, past: Past) -> TriedWay:
        """Return how the ways have done by the beginning of the day."""
        midnight = math.floor(past.end / DAY_S + 1e-9) * DAY_S
        count = math.floor((midnight - past.start) / past.step_s + 1e-9)
        return _try_out(_Key.of(past.before(max(count, 0))), self.ways, self.seed)


def make_forecasts(name: str) -> Auto:
    """Return the model of a name: `auto`, or one of its ways alone."""
    if name == "auto":
        return Auto()
    if name not in WAYS:
        raise UnknownName("forecast", name, ("auto", *WAYS))
    return Auto(ways=(name,))


class TriedWay(NamedTuple):
    """Ways of foreseeing, and how they have done.

    Attributes:
        ways: The ways, by their names.
        weights: What each counts at each of `LEADS_H`, a row for each way.
        errors: By how much what came was above what was foreseen, for each of `LEADS_H`; of those
            that were not tried, nothing.
        out: Which ways sat out, and why, in words.
    """

    ways: Mapping[str, Foresees]
    weights: FloatArray
    errors: tuple[FloatArray, ...]
    out: tuple[str, ...]

    @property
    def words(self) -> str:
        """How much each way counts, on average over the first day."""
        shares = self.weights[:, : LEADS_H.index(24) + 1].mean(axis=1)
        told = (
            f"{name} {format_percent(share)}" if len(shares) > 1 else name
            for name, share in zip(self.ways, shares, strict=True)
        )
        return "by " + ", ".join(told)

    def foresee(self, past: Past, now: IntArray, ahead: IntArray) -> FloatArray:
        """Return what the ways foresee together; the level of now where none says anything."""
        made = np.stack([way(past, now, ahead) for way in self.ways.values()])
        weights = np.where(np.isnan(made), 0.0, self.weights[:, _lead(past, ahead)])
        total = weights.sum(axis=0)
        mixed = past.at(past.week_mean, now)
        np.divide((weights * np.nan_to_num(made)).sum(axis=0), total, out=mixed, where=total > 0)
        return mixed

    def band(
        self, past: Past, ahead: IntArray, coverage: float
    ) -> tuple[FloatArray, FloatArray] | None:
        """Return how far below and above what is foreseen the truth may lie; None if not tried."""
        leads = _lead(past, ahead)
        edges = np.array([_quantiles(each, coverage) for each in self.errors])
        if not edges.size or np.isnan(edges[leads]).any():
            return None
        return np.minimum(edges[leads, 0], 0.0), np.maximum(edges[leads, 1], 0.0)


class _Key(NamedTuple):
    """A past that can be looked up."""

    values: bytes
    sure: bytes
    start: float
    step_s: float

    @classmethod
    def of(cls, past: Past) -> _Key:
        return cls(past.values.tobytes(), past.sure.tobytes(), past.start, past.step_s)

    @property
    def past(self) -> Past:
        return Past(
            values=np.frombuffer(self.values),
            sure=np.frombuffer(self.sure, dtype=np.bool_),
            start=self.start,
            step_s=self.step_s,
        )


@lru_cache(maxsize=64)
def _try_out(key: _Key, ways: tuple[str, ...], seed: int) -> TriedWay:
    """Try the ways on the last weeks of a past."""
    past = key.past
    share = _TRIED_SHARE * past.days
    tried_days = math.floor(min(max(share, _TRIED_DAYS[0]), _TRIED_DAYS[1]))
    taking, out = _ways(past, ways, seed, tried_days)
    flat = np.full((len(taking), len(LEADS_H)), 1.0 / len(taking))
    nothing = tuple(np.empty(0) for _ in LEADS_H)
    if past.days < _USUAL_DAYS:
        return TriedWay(taking, flat, nothing, out)
    recent = past.recent(tried_days + _TABLE_DAYS)
    now, ahead = _trials(recent, tried_days)
    truth = recent.values[now + ahead]
    leads = _lead(recent, ahead)
    made = np.stack([way(recent, now, ahead) for way in taking.values()])
    squares = np.square(made - truth)
    weights = flat.copy()
    for lead in range(len(LEADS_H)):
        of_lead = squares[:, leads == lead]
        told = np.isfinite(of_lead).all(axis=0)
        if told.any():
            error = of_lead[:, told].mean(axis=1)
            better = 1.0 / np.maximum(error, 1e-12 + 1e-6 * error.max()) ** _SHARPNESS
            weights[:, lead] = better / better.sum()
        elif lead:
            weights[:, lead] = weights[:, lead - 1]
    mixed = TriedWay(taking, weights, nothing, out)
    left = truth - mixed.foresee(recent, now, ahead)
    # After a gap of more than a week nothing could be foreseen.
    errors = tuple(left[(leads == lead) & np.isfinite(left)] for lead in range(len(LEADS_H)))
    if "linear" in taking:
        taking = {**taking, "linear": draw_lines(past)}
    return mixed._replace(ways=taking, errors=errors)


def _ways(
    past: Past, wanted: tuple[str, ...], seed: int, tried_days: int
) -> tuple[dict[str, Foresees], tuple[str, ...]]:
    """Return the ways that a past is long enough for, and why the others sit out."""
    taking: dict[str, Foresees] = {"persistence": day_before}
    out = []
    if past.days >= _USUAL_DAYS:
        taking["profile"] = usual_course
    elif "profile" in wanted:
        out.append(f"profile sits out: it needs {_USUAL_DAYS} whole days of history")
    learned = _learned_from(past, tried_days)
    least = format_hours(DAY_S * (_LEARNED_DAYS + _TRIED_DAYS[0]))
    for name in ("linear", "boosting"):
        if name not in wanted:
            continue
        if learned is None:
            out.append(f"{name} sits out: it needs {least} of measured history")
        elif name == "linear":
            taking[name] = draw_lines(learned)
        elif (grown := _grown(_Key.of(learned), seed)) is not None:
            taking[name] = grown
        else:
            out.append("boosting sits out: it needs scikit-learn, pip install 'lowtide[learn]'")
    chosen = {name: way for name, way in taking.items() if name in wanted}
    if not chosen:
        raise NotCovered(
            f"nothing can be foreseen: {'; '.join(out)}, and until "
            f"{format_time(past.end)} there are {format_hours(DAY_S * int(past.days))}. Take auto, "
            "which uses what there is"
        )
    return chosen, tuple(out)


def _learned_from(past: Past, tried_days: int) -> Past | None:
    """Return the part of a past that is learned from; None where it is too short."""
    until = past.end - tried_days * DAY_S
    if tried_days == _TRIED_DAYS[1]:
        until = math.floor(until / (_RENEWED_DAYS * DAY_S)) * _RENEWED_DAYS * DAY_S
    count = math.floor((until - past.start) / past.step_s + 1e-9)
    learned = past.before(max(count, 0))
    measured = int(np.count_nonzero(learned.sure))
    return learned if measured >= _LEARNED_DAYS * past.per_day else None


@lru_cache(maxsize=32)
def _grown(key: _Key, seed: int) -> Foresees | None:
    return grow(key.past, seed)


def _trials(past: Past, days: int) -> tuple[IntArray, IntArray]:
    """Return moments of the last days and steps after them whose truth was measured."""
    every = max(past.per_day // _TRIALS_A_DAY, 1)
    moments = np.arange(len(past) - 1 - every, len(past) - 1 - days * past.per_day, -every)
    moments = moments[moments >= past.per_day]
    hours = [
        hour
        for low, high in zip((0, *LEADS_H), LEADS_H, strict=False)
        for hour in np.linspace(low, high, _TRIED_LEADS + 1)[1:]
    ]
    leads = np.unique(np.maximum(np.round(np.array(hours) * past.per_day / 24), 1).astype(np.intp))
    now, ahead = (each.ravel() for each in np.meshgrid(moments, leads, indexing="ij"))
    fits = now + ahead < len(past)
    now, ahead = now[fits], ahead[fits]
    measured = past.sure[now + ahead]
    return now[measured], ahead[measured]


def _lead(past: Past, ahead: IntArray) -> IntArray:
    """Return which of `LEADS_H` steps ahead belong to."""
    hours = ahead * 24 / past.per_day
    return np.minimum(np.searchsorted(LEADS_H, hours - 1e-9), len(LEADS_H) - 1)


def _quantiles(errors: FloatArray, coverage: float) -> tuple[float, float]:
    """Return the errors between which the share lies, one more of which nothing is known counted.

    Errors of one half of a day are alike: it takes as many halves as one needs errors.
    """
    rank = math.ceil((errors.size + 1) * (1 + coverage) / 2)
    if errors.size < _TRIALS_A_DAY / 2 * (2 / (1 - coverage) - 1):
        return math.nan, math.nan
    ordered = np.sort(errors)
    return float(ordered[errors.size - rank]), float(ordered[rank - 1])
