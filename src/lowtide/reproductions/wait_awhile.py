"""Let's Wait Awhile, run again: nightly and training jobs on the grids of 2020.

Time is cut into half-hour slots. In scenario I a job of one slot runs every night around 01:00; in
scenario II 3,387 jobs arrive on workdays and may wait until somebody looks at their results. Jobs
are placed by a forecast and pay by what came. `ORIGINAL` counts as published; `FIXES` mends one
error after the other:

- Every window of scenario II had one slot too many, even the baseline's. Scenario I had 365 nights
  of a leap year, dropped the first where its window reached into 2019, and divided by 365.
- Of quarter-hour values, every second one was dropped; a slot is the mean of what lies in it.
- A job done on Friday evening was due on Saturday, which is no workday.
- Forecast errors were drawn anew for every slot, as wide for the next one as for next week.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from lowtide.compiled import compiled
from lowtide.errors import FormatError, NotCovered
from lowtide.formats.source import Source
from lowtide.formats.table_reader import Sheet
from lowtide.formats.times import instants
from lowtide.signal import FloatArray

if TYPE_CHECKING:
    pass

IndexArray = npt.NDArray[np.int64]

ZONES = ("ger", "gb", "fr")
DEADLINES = ("next_workday", "semi_weekly")
ERRORS = (0.0, 0.05, 0.1)
NIGHTLY_ERRORS = (0.0, 0.05)
REPETITIONS = 10
# A nightly job may move by so many slots to either side.
WINDOWS = tuple(range(17))

SLOT_S = 1800.0
SLOT_MIN = 30
DAY_SLOTS = 48
# 2020-01-01T00:00, a Wednesday; stamps carry no offset and are taken as they stand.
YEAR_START = 1_577_836_800.0
YEAR_DAYS = 366
_FIRST_WEEKDAY = 2
_NINE, _SEVENTEEN = 18, 34
_NIGHT_SLOT = 2

# Errors that grow: as wide as published a day ahead, with the square root of the lead, up to twice
# that. Those of two slots an hour apart are correlated by 0.9.
_GROWTH = np.minimum(np.sqrt(np.arange(4 * DAY_SLOTS + 1) / DAY_SLOTS), 2.0)
_RHO = 0.9 ** (SLOT_S / 3600.0)
_CONSTANT = np.ones(1)


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotRules:
    """How the study counts: what is true of the original, and what is mended.

    Attributes:
        extra_slot: Windows of scenario II have one slot too many.
        short_year: Scenario I has 365 nights, and drops the first while dividing by all.
        sampled: Of several values in a slot the first stands for all.
        saturday: A job done on Friday evening is due on Saturday.
        same_error: Forecast errors are independent, and alike at every lead.
    """

    extra_slot: bool = True
    short_year: bool = True
    sampled: bool = True
    saturday: bool = True
    same_error: bool = True


ORIGINAL = SlotRules()
_WINDOWS = replace(ORIGINAL, extra_slot=False, short_year=False)
_MEANS = replace(_WINDOWS, sampled=False)
_MONDAY = replace(_MEANS, saturday=False)
FIXED = replace(_MONDAY, same_error=False)
FIXES = {"windows": _WINDOWS, "slot means": _MEANS, "Monday": _MONDAY, "fixed": FIXED}


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Curve:
    """The carbon intensity of one zone in half-hour slots.

    Attributes:
        sampled: The value that stands at the beginning of each slot.
        means: The mean of the values in each slot.
        lead_in: How many slots lie before 2020.
    """

    zone: str
    sampled: FloatArray
    means: FloatArray
    lead_in: int

    def values(self, rules: SlotRules) -> FloatArray:
        """Return the intensity of every slot."""
        return self.sampled if rules.sampled else self.means


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TrainingJobs:
    """The jobs of scenario II, in slots from the beginning of 2020."""

    arrival: IndexArray
    length: IndexArray

    def due(self, deadline: str, rules: SlotRules) -> IndexArray:
        """Return the slot at which each job must be done.

        Args:
            deadline: `next_workday`: results that would be there outside working hours may come
                until 9:00 of the next workday; `semi_weekly`: on Monday or Thursday, 9:00.
        """
        done = self.arrival + self.length
        day, slot = np.divmod(done, DAY_SLOTS)
        weekday = (day + _FIRST_WEEKDAY) % 7
        if deadline == "semi_weekly":
            # Days until Monday or Thursday, whichever comes first; 9:00 itself is in time.
            ahead = np.minimum((0 - weekday) % 7, (3 - weekday) % 7)
            ahead = np.where((ahead == 0) & (slot > _NINE), np.where(weekday == 0, 3, 4), ahead)
            return np.asarray((day + ahead) * DAY_SLOTS + _NINE)
        evening = slot > _SEVENTEEN
        ahead = np.select([weekday == 5, (weekday == 6) | evening], [2, 1], 0)
        if not rules.saturday:
            ahead = np.where((weekday == 4) & evening, 3, ahead)
        working = (weekday < 5) & (slot >= _NINE) & ~evening
        return np.asarray(np.where(working, done, (day + ahead) * DAY_SLOTS + _NINE))


@dataclass(frozen=True, slots=True, kw_only=True)
class Training:
    """What the training jobs come to in one case.

    Attributes:
        deadline: What they may wait for.
        stops: Whether they may be stopped.
        error: Standard deviation of the forecast, as a share of the mean intensity.
        emissions: Intensities of all slots in which jobs ran, added up; a mean over repetitions.
        baseline: The same of jobs that run at once.
    """

    zone: str
    deadline: str
    stops: bool
    error: float
    emissions: float
    baseline: float

    @property
    def saving(self) -> float:
        """The share of the baseline that is saved."""
        return 1.0 - self.emissions / self.baseline

    def document(self) -> dict[str, Any]:
        """Return the case and what it comes to."""
        return {
            "scenario": "training",
            "zone": self.zone,
            "deadline": self.deadline,
            "interruptible": self.stops,
            "error": self.error,
            "emissions_sum": self.emissions,
            "baseline_sum": self.baseline,
            "saving_pct": 100 * self.saving,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Nightly:
    """What the nightly job comes to in one case.

    Attributes:
        window: By how many slots it may move to either side.
        error: Standard deviation of the forecast, as a share of the mean intensity.
        intensity: The mean intensity of its slots, g/kWh.
    """

    zone: str
    window: int
    error: float
    intensity: float

    def document(self) -> dict[str, Any]:
        """Return the case and what it comes to."""
        return {
            "scenario": "nightly",
            "zone": self.zone,
            "window_h": self.window * SLOT_MIN / 60,
            "error": self.error,
            "intensity": self.intensity,
        }


def read_curve(path: Path | str, zone: str) -> Curve:
    """Read a carbon intensity whose step may change between 15 and 30 minutes.

    Args:
        path: A table with `Time` and `Carbon Intensity`.
    """
    sheet = Sheet.of(Source.open(path))
    if sheet is None:
        raise FormatError("not a table: the first line has no headings", path=path, line=1)
    heading, unit = sheet.find("Time"), sheet.find("Carbon Intensity")
    (stamps,), (values,) = sheet.read(texts=[heading], numbers=[unit])
    place = sheet.place(unit)
    if not np.isfinite(values).all():
        raise place.error("a value is missing", int(np.flatnonzero(~np.isfinite(values))[0]))
    slots = (instants(stamps, sheet.place(heading), tz="UTC") - YEAR_START) / SLOT_S
    number = np.floor(slots).astype(np.int64)
    starts = np.flatnonzero(slots == number)
    lacking = np.flatnonzero(np.diff(number[starts]) != 1)
    if starts.size == 0 or starts[0] != 0 or lacking.size:
        row = int(starts[lacking[0]]) if lacking.size else 0
        raise place.error("after this a half-hour does not begin with a value of its own", row)
    within = number - number[0]
    means = np.bincount(within, weights=values) / np.bincount(within)
    return Curve(zone=zone, sampled=values[starts], means=means, lead_in=-int(number[0]))


def read_training_jobs(path: Path | str) -> TrainingJobs:
    """Read the jobs of scenario II.

    Args:
        path: A table with `arrival_min` and `duration_min`, counted from 2020-01-01.
    """
    sheet = Sheet.of(Source.open(path))
    if sheet is None:
        raise FormatError("not a table: the first line has no headings", path=path, line=1)
    names = [sheet.find(name) for name in ("arrival_min", "duration_min")]
    _, columns = sheet.read(numbers=names)
    slots = []
    for name, minutes in zip(names, columns, strict=True):
        odd = np.flatnonzero(~((minutes >= 0) & (minutes % SLOT_MIN == 0)))
        if odd.size:
            row = int(odd[0])
            raise sheet.place(name).error(
                f"times are whole half-hours, not {minutes[row]:g} min", row
            )
        slots.append((minutes // SLOT_MIN).astype(np.int64))
    return TrainingJobs(arrival=slots[0], length=slots[1])


def train(curve: Curve, jobs: TrainingJobs, rules: SlotRules) -> Iterator[Training]:
    """Run scenario II in one zone."""
    forecasts = _forecasts(curve, rules, ERRORS)
    extra = int(rules.extra_slot)
    at_once = jobs.arrival + jobs.length + extra
    still = _Forecast(noise=np.zeros(curve.sampled.size), spread=_CONSTANT)
    baseline = _emissions(curve, rules, still, jobs.arrival, at_once, jobs.length, stops=False)
    for deadline in DEADLINES:
        due = jobs.due(deadline, rules) + extra
        for stops in (False, True):
            for error, drawn in forecasts.items():
                emissions = np.mean(
                    [
                        _emissions(curve, rules, each, jobs.arrival, due, jobs.length, stops=stops)
                        for each in drawn
                    ]
                )
                yield Training(
                    zone=curve.zone,
                    deadline=deadline,
                    stops=stops,
                    error=error,
                    emissions=float(emissions),
                    baseline=baseline,
                )


def nights(curve: Curve, rules: SlotRules) -> Iterator[Nightly]:
    """Run scenario I in one zone."""
    count = YEAR_DAYS - int(rules.short_year)
    planned: IndexArray = np.arange(count, dtype=np.int64) * DAY_SLOTS + _NIGHT_SLOT
    for error, drawn in _forecasts(curve, rules, NIGHTLY_ERRORS).items():
        for window in WINDOWS:
            kept = planned[planned >= window] if rules.short_year else planned
            begin, end = kept - window, kept + window + 1
            one = np.ones(kept.size, dtype=np.int64)
            sums = [_emissions(curve, rules, each, begin, end, one, stops=False) for each in drawn]
            yield Nightly(
                zone=curve.zone,
                window=window,
                error=error,
                intensity=float(np.mean(sums)) / count,
            )


def describe(curve: Curve, *, sampled: bool) -> Mapping[str, float]:
    """Return mean, standard deviation, extremes and weekend drop of a curve in 2020.

    Args:
        sampled: Whether to count as published: the first value of each slot, the first slot of
            2021 among them, and the drop between the medians of each slot of the week rather than
            between all values.
    """
    first = curve.lead_in
    values = (curve.sampled if sampled else curve.means)[first:]
    values = values[: YEAR_DAYS * DAY_SLOTS + int(sampled)]
    slot = (np.arange(values.size) + _FIRST_WEEKDAY * DAY_SLOTS) % (7 * DAY_SLOTS)
    weekend = slot >= 5 * DAY_SLOTS
    ends, workdays = float(values[weekend].mean()), float(values[~weekend].mean())
    if sampled:
        medians = np.array([np.median(values[slot == each]) for each in range(7 * DAY_SLOTS)])
        workdays, ends = (float(part.mean()) for part in np.split(medians, [5 * DAY_SLOTS]))
    return {
        "mean": float(values.mean()),
        "std": float(values.std(ddof=1)),
        "min": float(values.min()),
        "max": float(values.max()),
        "weekend_drop_pct": 100 * (1 - ends / workdays),
    }


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Forecast:
    """What a forecast is off by.

    Attributes:
        noise: The error of each slot, per unit of spread.
        spread: How wide it is so many slots ahead.
    """

    noise: FloatArray
    spread: FloatArray


def _forecasts(
    curve: Curve, rules: SlotRules, errors: tuple[float, ...]
) -> dict[float, list[_Forecast]]:
    """Return the forecasts of each error; one will do where there is none."""
    return {
        error: [_draw(curve, rules, error, seed) for seed in range(REPETITIONS if error else 1)]
        for error in errors
    }


def _draw(curve: Curve, rules: SlotRules, error: float, seed: int) -> _Forecast:
    year = curve.values(rules)[curve.lead_in :]
    rng = np.random.default_rng(seed)
    # The year first, as in the original, so that every set of rules meets the same errors.
    noise = rng.normal(0.0, error * year.mean(), size=year.size)
    before = rng.normal(0.0, error * year.mean(), size=curve.lead_in)
    noise = np.concatenate((before, noise))
    if rules.same_error:
        return _Forecast(noise=noise, spread=_CONSTANT)
    return _Forecast(noise=autocorrelated(noise, _RHO), spread=_GROWTH)


def _emissions(
    curve: Curve,
    rules: SlotRules,
    forecast: _Forecast,
    begin: IndexArray,
    end: IndexArray,
    length: IndexArray,
    *,
    stops: bool,
) -> float:
    """Return what all jobs emit; begin and end are counted from the beginning of 2020."""
    values, shift = curve.values(rules), curve.lead_in
    if begin.min() + shift < 0 or end.max() + shift > values.size:
        raise NotCovered(
            f"the curve of {curve.zone} covers slots {-shift} to {values.size - shift} of 2020, "
            f"and the jobs need {begin.min()} to {end.max()}: get a longer file"
        )
    return float(
        emit(
            values, forecast.noise, forecast.spread, begin + shift, end + shift, length, stops
        ).sum()
    )


@compiled(inner=True)
def _smallest(values: FloatArray, size: int, count: int) -> float:
    """Return the `count`-th smallest of the first `size` values, which change their order.

    A selection of our own compiles in a fraction of the time that the library's takes.
    """
    low, high, wanted = 0, size - 1, count - 1
    while low < high:
        pivot = values[(low + high) // 2]
        i, j = low, high
        while i <= j:
            while values[i] < pivot:
                i += 1
            while values[j] > pivot:
                j -= 1
            if i <= j:
                values[i], values[j] = values[j], values[i]
                i += 1
                j -= 1
        if wanted <= j:
            high = j
        elif wanted >= i:
            low = i
        else:
            break
    return float(values[wanted])


@compiled()
def emit(
    actual: FloatArray,
    noise: FloatArray,
    spread: FloatArray,
    begin: IndexArray,
    end: IndexArray,
    length: IndexArray,
    stops: bool,
) -> FloatArray:
    """Return what jobs emit that run when a forecast is lowest: intensities of their slots added.

    Args:
        noise: What the forecast of each slot is off by, per unit of spread.
        spread: How wide the error is so many slots ahead; the last holds from there on.
        begin: The slot at which each job arrives, and at which its forecast is made.
        end: The slot at which it must be done.
    """
    sums = np.zeros(begin.size)
    widest = 0
    for i in range(begin.size):
        widest = max(widest, end[i] - begin[i])
    foreseen, scratch = np.empty(widest), np.empty(widest)
    last = spread.size - 1
    for i in range(begin.size):
        first, size, need = begin[i], end[i] - begin[i], length[i]
        for k in range(size):
            foreseen[k] = actual[first + k] + spread[min(k, last)] * noise[first + k]
        if stops:
            for k in range(size):
                scratch[k] = foreseen[k]
            limit = _smallest(scratch, size, need)
            spare = need
            for k in range(size):
                if foreseen[k] < limit:
                    spare -= 1
            # Of slots that look the same, the earlier ones are taken.
            for k in range(size):
                if foreseen[k] == limit and spare > 0:
                    spare -= 1
                    sums[i] += actual[first + k]
                elif foreseen[k] < limit:
                    sums[i] += actual[first + k]
            continue
        total = 0.0
        for k in range(need):
            total += foreseen[k]
        best, start = total, 0
        for k in range(need, size):
            total += foreseen[k] - foreseen[k - need]
            if total < best:
                best, start = total, k - need + 1
        for k in range(start, start + need):
            sums[i] += actual[first + k]
    return sums


@compiled()
def autocorrelated(draws: FloatArray, rho: float) -> FloatArray:
    """Return a series of the same spread in which neighbours go together."""
    series = draws.copy()
    fresh = np.sqrt(1.0 - rho * rho)
    for k in range(1, series.size):
        series[k] = rho * series[k - 1] + fresh * draws[k]
    return series
