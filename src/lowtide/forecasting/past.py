"""What is known of a signal at a moment, as forecasts are made of it.

Steps that a gap policy filled are not known. Steps that the provider estimated may be looked back
at, as they are all there is of the last hours, but nothing is learned from them and no forecast
is judged by them. Everything here is causal: a value of a table hangs on its own step and those
before it alone.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from lowtide.errors import InvalidSignal, NotCovered
from lowtide.forecast import DAY_S
from lowtide.signal import ESTIMATED, FILLED, FloatArray, Signal
from lowtide.units import format_count, format_hours, format_number, format_percent, format_time

IntArray = npt.NDArray[np.intp]
BoolArray = npt.NDArray[np.bool_]

# A day has at least so many steps: what is coarser has no course of the day.
_LEAST_PER_DAY = 2
# Of the last day, so much must be known.
_LEAST_KNOWN = 0.5
# A level is new where the last day's mean is this many ranges outside of the days before it.
_SHIFTED = 0.5
_SHIFT_DAYS = 28
_SHIFT_LEAST_DAYS = 7


@dataclass(frozen=True, kw_only=True, eq=False)
class Past:
    """Values up to a moment.

    Attributes:
        values: One per step, NaN where it is not known.
        sure: Which of them somebody measured.
        start: When the first step begins.
        step_s: How long a step is.
    """

    values: FloatArray
    sure: BoolArray
    start: float
    step_s: float

    @classmethod
    def of(cls, signal: Signal, count: int | None = None) -> Past:
        """Return the first steps of a signal; refuse what nothing can be foreseen from.

        Args:
            count: How many steps are known; by default all.
        """
        per_day = DAY_S / signal.step_s
        if abs(per_day - round(per_day)) > 1e-9 * per_day or round(per_day) < _LEAST_PER_DAY:
            raise InvalidSignal(
                "forecasts are made of steps of which a whole number makes a day (5, 15, 30 or "
                f"60 min, up to 12 h), not of {format_hours(signal.step_s)}: give the history "
                "in such steps"
            )
        marks = np.zeros(len(signal), dtype=np.uint8) if signal.marks is None else signal.marks
        kept = slice(0, len(signal) if count is None else count)
        known = marks[kept] != FILLED
        sure = known & (marks[kept] != ESTIMATED)
        past = cls(
            values=np.where(known, signal.values[kept], np.nan),
            # Of some zones estimates are all there is.
            sure=sure if sure.any() else known,
            start=signal.start,
            step_s=signal.step_s,
        )
        past._require_enough()
        return past

    def _require_enough(self) -> None:
        if self.values.size < self.per_day:
            raise NotCovered(
                "a forecast needs a day of history at least, and there are "
                f"{format_hours(self.values.size * self.step_s)} up to {format_time(self.end)}: "
                "wait until there is more, or give a longer file"
            )
        known = float(np.isfinite(self.values[-self.per_day :]).mean())
        if known < _LEAST_KNOWN:
            raise NotCovered(
                f"a forecast needs half of the last day at least, and {format_percent(known)} of "
                f"the day up to {format_time(self.end)} is known: the rest is missing, or was "
                "filled in. Get what is missing, or forecast from a moment after the gap"
            )

    def __len__(self) -> int:
        return int(self.values.size)

    @property
    def per_day(self) -> int:
        """How many steps make a day."""
        return round(DAY_S / self.step_s)

    @property
    def end(self) -> float:
        """When the last known step ends."""
        return self.start + len(self) * self.step_s

    @property
    def days(self) -> float:
        """How many days it spans."""
        return len(self) / self.per_day

    def before(self, count: int) -> Past:
        """Return its first steps alone."""
        return self._cut(0, count)

    def recent(self, days: float) -> Past:
        """Return its last days alone, or all of it."""
        return self._cut(max(len(self) - round(days * self.per_day), 0), len(self))

    def _cut(self, first: int, last: int) -> Past:
        return Past(
            values=self.values[first:last],
            sure=self.sure[first:last],
            start=self.start + first * self.step_s,
            step_s=self.step_s,
        )

    def step_of_day(self, steps: IntArray) -> IntArray:
        """Return which step of its day, in UTC, each step is."""
        first = math.floor(self.start / self.step_s + 1e-9)
        return (steps + first) % self.per_day

    def day_of_week(self, steps: IntArray) -> IntArray:
        """Return which day of the week, in UTC, each step lies in; 0 is Monday."""
        first = math.floor(self.start / self.step_s + 1e-9)
        # The epoch began on a Thursday.
        return ((steps + first) // self.per_day + 3) % 7

    def at(self, table: FloatArray, steps: IntArray) -> FloatArray:
        """Return a table's values at some steps, NaN before the first."""
        return np.where(steps >= 0, table[np.maximum(steps, 0)], np.nan)

    @cached_property
    def day_mean(self) -> FloatArray:
        """At each step the mean of the day up to it."""
        return self._mean_back(1, self.per_day)

    @cached_property
    def week_mean(self) -> FloatArray:
        """At each step the mean of the week up to it."""
        return self._mean_back(1, 7 * self.per_day)

    @cached_property
    def month_mean(self) -> FloatArray:
        """At each step the mean of the four weeks up to it."""
        return self._mean_back(1, 28 * self.per_day)

    @cached_property
    def usual(self) -> FloatArray:
        """At each step the mean of its time of day over the week up to it."""
        return self._mean_back(self.per_day, 7)

    @cached_property
    def long_usual(self) -> FloatArray:
        """At each step the mean of its time of day over the four weeks up to it."""
        return self._mean_back(self.per_day, 28)

    @cached_property
    def weekly(self) -> FloatArray:
        """At each step the mean of its time of the week over the four weeks up to it."""
        return self._mean_back(7 * self.per_day, 4)

    @cached_property
    def day_before(self) -> FloatArray:
        """At each step its value, or the last known one of its time of day within a week."""
        found = self.values.copy()
        for days in range(1, 7):
            if not np.isnan(found).any():
                break
            back = self.at(self.values, np.arange(len(self)) - days * self.per_day)
            found = np.where(np.isnan(found), back, found)
        return found

    @cached_property
    def unusual(self) -> FloatArray:
        """At each step by how much it lies above what was usual for its time of day before it."""
        before = self.at(self.usual, np.arange(len(self)) - self.per_day)
        return self.values - before

    def mean_unusual(self, steps: int) -> FloatArray:
        """Return at each step the mean of `unusual` over so many steps up to it."""
        return _mean_back(self.unusual, 1, steps)

    def _mean_back(self, stride: int, count: int) -> FloatArray:
        return _mean_back(self.values, stride, count)

    def caveats(self) -> list[str]:
        """Return what somebody who relies on a forecast should know of its history, in words."""
        said = []
        missing = int(np.count_nonzero(np.isnan(self.values)))
        estimated = len(self) - missing - int(np.count_nonzero(self.sure))
        for count, how in ((missing, "missing or filled in"), (estimated, "imputed")):
            if count:
                said.append(
                    f"{count} of {format_count(len(self), 'step')} of the history are {how}, and "
                    "nothing is learned from them"
                )
        known = self.values[np.isfinite(self.values)]
        if known.min() == known.max():
            said.append(f"the history is constant, {format_number(float(known[0]))} throughout")
        elif shift := self._shift():
            said.append(shift)
        return said

    def _shift(self) -> str:
        """Return in words that the last day's level is unlike those before; empty if it is not."""
        days = int(min(self.days - 1, _SHIFT_DAYS))
        if days < _SHIFT_LEAST_DAYS:
            return ""
        means = self.day_mean[-1 - self.per_day * np.arange(days + 1)]
        last, before = float(means[0]), means[1:][np.isfinite(means[1:])]
        if not before.size:
            return ""
        low, high = float(before.min()), float(before.max())
        if low - _SHIFTED * (high - low) <= last <= high + _SHIFTED * (high - low):
            return ""
        return (
            f"the level has shifted: the last day's mean is {format_number(last)}, and those of "
            f"the {days} days before lie from {format_number(low)} to {format_number(high)}; "
            "forecasts take days to follow"
        )


def _mean_back(values: FloatArray, stride: int, count: int) -> FloatArray:
    """Return at each step the mean of the known values so many strides back, itself included."""
    size = values.size
    known = np.isfinite(values)
    sums, counts = np.where(known, values, 0.0), known.astype(np.float64)
    if stride == 1:
        added, seen = (np.concatenate(([0.0], np.cumsum(each))) for each in (sums, counts))
        last = np.arange(1, size + 1)
        first = np.maximum(last - count, 0)
        total, number = added[last] - added[first], seen[last] - seen[first]
    else:
        total, number = sums.copy(), counts.copy()
        for back in range(stride, min(stride * count, size), stride):
            total[back:] += sums[:-back]
            number[back:] += counts[:-back]
    means = np.full(size, np.nan)
    np.divide(total, number, out=means, where=number > 0)
    return means
