"""What a trace is like: when jobs come, how long, wide and patient they are, and what they held.

Beside it stands what a kWh emitted at those hours, so that one sees whether load and clean hours go
together. Nothing is simulated here: what the trace does not say is missing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, tzinfo
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from lowtide.errors import InvalidInput
from lowtide.page.page import Page, Section, Table
from lowtide.signal import FloatArray, Signal
from lowtide.states import STATUSES
from lowtide.steps import Steps
from lowtide.trace import Trace
from lowtide.units import (
    MISSING,
    format_count,
    format_html,
    format_number,
    format_percent,
    format_quantity,
)

WEEKDAYS = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")
# Arrivals this late are instants rather than seconds since some origin (1973).
_DATED_FROM = 1e8
_HOUR_S, _DAY_S = 3600.0, 86_400.0
# What is told of each job, by what it is called: its key, and its name.
QUANTITIES = {
    "length_s": "length",
    "cpus": "CPUs",
    "gpus": "GPUs",
    "nodes": "nodes",
    "wait_s": "wait",
    "overestimate": "asked for over used",
    "power_w": "power",
}
PARTS = {
    "mean": "mean",
    "p05": "5 %",
    "median": "median",
    "p95": "95 %",
    "p99": "99 %",
    "max": "most",
}
# Classes that jobs are sorted into, each by what is below its end: durations, sizes, ratios.
_DURATIONS = (
    *(("under 1 min", 60.0), ("1 to 10 min", 600.0), ("10 min to 1 h", _HOUR_S)),
    *(("1 to 6 h", 6 * _HOUR_S), ("6 to 24 h", _DAY_S), ("1 to 7 days", 7 * _DAY_S)),
    ("over 7 days", np.inf),
)
_SIZES = (
    *(("none", 1e-9), ("up to 1", 1.0 + 1e-9), ("2 to 4", 4.0 + 1e-9), ("5 to 16", 16.0 + 1e-9)),
    *(("17 to 64", 64.0 + 1e-9), ("65 to 256", 256.0 + 1e-9), ("over 256", np.inf)),
)
_RATIOS = (
    *(("less than used", 1.0), ("1 to 2 times", 2.0), ("2 to 5 times", 5.0)),
    *(("5 to 10 times", 10.0), ("over 10 times", np.inf)),
)
_CLASSES = {
    "length_s": _DURATIONS,
    "cpus": _SIZES,
    "gpus": _SIZES,
    "nodes": _SIZES,
    "wait_s": _DURATIONS,
    "overestimate": _RATIOS,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class PortraitSlot:
    """An hour of the day, or a day of the week.

    Attributes:
        name: What it is called.
        jobs: How many jobs arrive in it.
        share: Which share of all that is.
        core_h: Core-hours of those jobs; None where no CPUs are known.
        held_cpus: How many CPUs jobs held in it, in the mean; None likewise.
        intensity: What a kWh emits or costs in it, in the mean; None without a signal.
    """

    name: str
    jobs: int
    share: float
    core_h: float | None
    held_cpus: float | None
    intensity: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class PortraitClass:
    """Jobs that are alike in something: in length, in width, in how long they waited.

    Attributes:
        name: What they are called.
        jobs: How many there are.
        share: Which share that is of those of which it is known.
        core_h: Their core-hours; None where no CPUs are known.
        core_share: Which share of all that is.
    """

    name: str
    jobs: int
    share: float
    core_h: float | None
    core_share: float | None


@dataclass(frozen=True, kw_only=True)
class Portrait:
    """What a trace is like.

    Attributes:
        trace: The jobs.
        signal: What a kWh emits or costs, to be shown beside; None for nothing.
        tz: The zone of hours and days.
        cpus: How many CPUs there are, to tell utilisation by; None where that is not known.
    """

    trace: Trace
    signal: Signal | None = None
    tz: tzinfo | None = UTC
    cpus: float | None = None

    def __post_init__(self) -> None:
        if not len(self.trace):
            raise InvalidInput("there are no jobs in the trace")
        if self.cpus is not None and not self.cpus > 0:
            raise InvalidInput(f"a machine has more than 0 CPUs, not {self.cpus:g}")

    @property
    def dated(self) -> bool:
        """Whether arrivals are instants, so that hours and days are those of a clock."""
        return float(self.trace.arrival[0]) >= _DATED_FROM

    @property
    def notes(self) -> list[str]:
        """What to know of the numbers."""
        notes = list(self.trace.notes)
        if not self.dated:
            notes.append(
                "times count from the trace's own beginning: hours and days are its own, not a "
                "clock's (--start says when it began)"
            )
        if np.isnan(self.trace.column("wait_s")).any() and self._held is not None:
            notes.append("where no wait is known, a job is taken to have started as it arrived")
        if self.signal is not None and not self._overlapping:
            notes.append("the signal is of another time than the trace: hours are set side by side")
        return notes

    @cached_property
    def span(self) -> tuple[float, float]:
        """From the first arrival to the last end that is known."""
        ends = self._starts + np.nan_to_num(self.trace.length_s)
        return float(self.trace.arrival[0]), max(float(np.nanmax(ends)), self.trace.arrival[-1])

    @property
    def _starts(self) -> FloatArray:
        starts: FloatArray = self.trace.arrival + np.nan_to_num(self.trace.column("wait_s"))
        return starts

    @cached_property
    def _held(self) -> Steps | None:
        """CPUs that were held over time; None where none are known."""
        known = (self.trace.cpus > 0) & (self.trace.length_s > 0)
        if not known.any():
            return None
        starts = self._starts[known]
        return Steps.of_spans(starts, starts + self.trace.length_s[known], self.trace.cpus[known])

    @cached_property
    def edges(self) -> FloatArray:
        """The edges of the hours that the trace touches."""
        first, last = self.span
        begin = np.floor(first / _HOUR_S)
        count = max(int(np.ceil(last / _HOUR_S) - begin), 1)
        edges: FloatArray = _HOUR_S * (begin + np.arange(count + 1))
        return edges

    @cached_property
    def held(self) -> FloatArray | None:
        """CPUs that were held in each hour, in the mean."""
        return None if self._held is None else self._held.mean(self.edges)

    @property
    def peak_cpus(self) -> float | None:
        """The most CPUs that were held at once."""
        return None if self._held is None else float(self._held.values.max())

    @cached_property
    def _overlapping(self) -> bool:
        signal, (first, last) = self.signal, self.span
        return signal is not None and signal.start < last and signal.end > first

    def _slots(self, names: Sequence[str], place: int) -> list[PortraitSlot]:
        """Return what comes of each hour (0) or weekday (1)."""
        trace = self.trace
        of_job = _clock(trace.arrival, self.tz, self.dated)[place]
        jobs = np.bincount(of_job, minlength=len(names))
        core_s = trace.cpus * trace.length_s
        known = np.isfinite(core_s)
        core_h = np.bincount(of_job[known], weights=core_s[known] / _HOUR_S, minlength=len(names))
        held = _by_slot(self.held, _clock(self.edges[:-1], self.tz, self.dated)[place], len(names))
        rates: list[float | None] = [None] * len(names)
        if self.signal is not None:
            first, last = self.span
            steps = self.signal.edges[:-1]
            inside = (steps < last) & (steps + self.signal.step_s > first)
            if not self._overlapping:
                inside[:] = True
            rates = _by_slot(
                self.signal.values[inside], _clock(steps[inside], self.tz, True)[place], len(names)
            )
        return [
            PortraitSlot(
                name=name,
                jobs=int(jobs[slot]),
                share=float(jobs[slot] / len(trace)),
                core_h=float(core_h[slot]) if known.any() else None,
                held_cpus=held[slot],
                intensity=rates[slot],
            )
            for slot, name in enumerate(names)
        ]

    @cached_property
    def hours(self) -> list[PortraitSlot]:
        """What comes at each hour of the day."""
        return self._slots([f"{hour:02}" for hour in range(24)], 0)

    @cached_property
    def weekdays(self) -> list[PortraitSlot]:
        """What comes on each day of the week; of the trace's own weeks where it has no clock."""
        names = WEEKDAYS if self.dated else [f"day {day}" for day in range(1, 8)]
        return self._slots(names, 1)

    @cached_property
    def _quantities(self) -> dict[str, FloatArray]:
        """What is told of each job, by its key, NaN where it is not known."""
        trace = self.trace
        with np.errstate(divide="ignore", invalid="ignore"):
            asked = trace.column("requested_s") / np.where(
                trace.length_s > 0, trace.length_s, np.nan
            )
        watts = trace.watts(np.nan)
        for row in np.flatnonzero(trace.column("profile") >= 0).tolist():
            profile = trace.profiles[int(trace.column("profile")[row])]
            watts[row] = profile.energy_j / profile.run_s
        made = {"overestimate": asked, "power_w": watts}
        return {key: made[key] if key in made else trace.column(key) for key in QUANTITIES}

    @cached_property
    def spreads(self) -> dict[str, dict[str, float]]:
        """How each quantity is spread over jobs, those left out of which nothing is known."""
        found = {}
        for key, values in self._quantities.items():
            column = values[np.isfinite(values)]
            if column.size:
                low, middle, high, most = np.quantile(column, [0.05, 0.5, 0.95, 0.99])
                parts = (column.mean(), low, middle, high, most, column.max())
                told = dict(zip(PARTS, map(float, parts), strict=True))
                found[key] = {"known": float(column.size), **told}
        return found

    @cached_property
    def classes(self) -> dict[str, list[PortraitClass]]:
        """How many jobs are how long, wide and patient, and what these hold; empty ones too."""
        core_h = self.trace.cpus * self.trace.length_s / _HOUR_S
        found = {}
        for key, kinds in _CLASSES.items():
            values = self._quantities[key]
            known = np.isfinite(values)
            if not known.any():
                continue
            place = np.searchsorted([end for _, end in kinds], values[known], side="right")
            jobs = np.bincount(place, minlength=len(kinds))
            held = np.bincount(place, np.nan_to_num(core_h[known]), minlength=len(kinds))
            whole = float(held.sum())
            found[key] = [
                PortraitClass(
                    name=name,
                    jobs=int(jobs[number]),
                    share=float(jobs[number] / jobs.sum()),
                    core_h=float(held[number]) if whole else None,
                    core_share=float(held[number] / whole) if whole else None,
                )
                for number, (name, _) in enumerate(kinds)
            ]
        return found

    @cached_property
    def states(self) -> list[tuple[str, int, float]]:
        """How jobs ended: the state, how many, and their core-hours; the most first."""
        core_h = np.nan_to_num(self.trace.cpus * self.trace.length_s) / _HOUR_S
        codes = self.trace.column("status").astype(np.intp)
        count = np.bincount(codes, minlength=len(STATUSES))
        held = np.bincount(codes, weights=core_h, minlength=len(STATUSES))
        order = sorted(np.flatnonzero(count).tolist(), key=lambda code: -count[code])
        return [(STATUSES[code], int(count[code]), float(held[code])) for code in order]

    @property
    def correlation(self) -> float | None:
        """How CPUs held and what a kWh emits go together, hour by hour; None where unknown."""
        if self.signal is None or self.held is None or not self._overlapping:
            return None
        begin = self.edges[:-1]
        inside = (begin >= self.signal.start) & (begin + _HOUR_S <= self.signal.end)
        if np.count_nonzero(inside) < 3:
            return None
        rates = self.signal.integral(begin[inside], begin[inside] + _HOUR_S)
        held = self.held[inside]
        if not (np.ptp(rates) > 0 and np.ptp(held) > 0):
            return None
        return float(np.corrcoef(held, rates)[0, 1])

    def summary(self) -> dict[str, Any]:
        """Return the trace as a whole, one number per question, None where there is none."""
        trace, (first, last) = self.trace, self.span
        users = {each for each in trace.column("user").tolist() if each is not None}
        mean = None
        if self._held is not None:
            mean = float(self._held.upto(np.array([last]))[0] / max(last - first, 1e-9))
        core_s = trace.cpus * trace.length_s
        return {
            "jobs": len(trace),
            "never_ran": int(np.count_nonzero(trace.length_s == 0)),
            "length_unknown": int(np.count_nonzero(np.isnan(trace.length_s))),
            "users": len(users) or None,
            "start": first,
            "span_s": last - first,
            "core_h": float(np.nansum(core_s)) / _HOUR_S if np.isfinite(core_s).any() else None,
            "mean_held_cpus": mean,
            "peak_held_cpus": self.peak_cpus,
            "utilisation": None if mean is None or self.cpus is None else mean / self.cpus,
            "held_intensity_correlation": self.correlation,
        }

    def document(self) -> dict[str, Any]:
        """Return all of it for programs."""
        return {
            **self.summary(),
            "dated": self.dated,
            "source": self.trace.source,
            "notes": self.notes,
            "quantities": self.spreads,
            "classes": {
                key: [fields_of(each) for each in kinds] for key, kinds in self.classes.items()
            },
            "states": [
                {"state": state, "jobs": jobs, "core_h": core_h}
                for state, jobs, core_h in self.states
            ],
            "hours": [fields_of(slot) for slot in self.hours],
            "weekdays": [fields_of(slot) for slot in self.weekdays],
        }

    def spread_table(self) -> Table:
        """Return how quantities are spread."""
        rows = [
            [
                QUANTITIES[key],
                f"{parts['known']:,.0f}",
                *(_told(key, parts[part]) for part in PARTS),
            ]
            for key, parts in self.spreads.items()
        ]
        return Table(header=["per job", "known", *PARTS.values()], rows=rows)

    def state_table(self) -> Table:
        """Return how jobs ended."""
        whole = sum(core_h for _, _, core_h in self.states)
        rows = [
            [
                state.replace("_", " "),
                f"{jobs:,}",
                format_percent(jobs / len(self.trace)),
                f"{core_h:,.0f}" if whole else MISSING,
                format_percent(core_h / whole if whole else None),
            ]
            for state, jobs, core_h in self.states
        ]
        return Table(header=["state", "jobs", "share", "core-h", "share of core-h"], rows=rows)

    def class_table(self, key: str) -> Table:
        """Return how many jobs are of each class of a quantity."""
        rows = [
            [
                each.name,
                f"{each.jobs:,}",
                format_percent(each.share),
                MISSING if each.core_h is None else f"{each.core_h:,.0f}",
                format_percent(each.core_share),
            ]
            for each in self.classes[key]
        ]
        return Table(
            header=[QUANTITIES[key], "jobs", "share", "core-h", "share of core-h"], rows=rows
        )

    def slot_table(self, name: str, slots: Sequence[PortraitSlot]) -> Table:
        """Return hours or weekdays, under a name for them."""
        beside = [] if self.signal is None else [self.signal.unit]
        rows = [
            [
                slot.name,
                f"{slot.jobs:,}",
                format_percent(slot.share),
                MISSING if slot.core_h is None else f"{slot.core_h:,.0f}",
                MISSING if slot.held_cpus is None else format_number(slot.held_cpus),
                *([] if self.signal is None else [_told("rate", slot.intensity)]),
            ]
            for slot in slots
        ]
        header = [name, "arrivals", "share", "core-h", "CPUs held", *beside]
        return Table(header=header, rows=rows)

    def chart(self) -> Any:
        """Return arrivals, CPUs held, the signal and what jobs are like as a chart of Altair."""
        from lowtide.studies.portrait_figures import portrait_chart

        return portrait_chart(self)

    def _repr_html_(self) -> str:
        told = self.summary()
        lines = [f"{key:<28}{format_quantity(key, value)}" for key, value in told.items()]
        return format_html("\n".join([self.trace.source, "", *lines]))

    def page(self) -> Page:
        """Return all of it as a page."""
        from lowtide.page.looks import make_figure
        from lowtide.studies.portrait_figures import portrait_charts

        charts = portrait_charts(self)
        figures = {name: make_figure(name, chart) for name, chart in charts.items()}
        told = self.summary()
        held = ""
        if told["mean_held_cpus"] is not None:
            held = (
                f"{format_number(told['mean_held_cpus'])} CPUs were held in the mean, "
                f"{format_number(told['peak_held_cpus'])} at most."
            )
        sections = [
            Section(
                name="arrivals",
                question="When do jobs come?",
                answer=f"{self._busiest()}",
                parts=[
                    self.slot_table("hour", self.hours),
                    figures["hours"],
                    self.slot_table("weekday", self.weekdays),
                    figures["weekdays"],
                ],
            ),
            Section(
                name="jobs",
                question="What are they like?",
                parts=[
                    self.spread_table(),
                    self.state_table(),
                    *(
                        part
                        for key in self.classes
                        for part in (self.class_table(key), figures[key])
                    ),
                ],
            ),
            Section(
                name="held",
                question="What did they hold?",
                answer=held or "The trace does not say how many CPUs its jobs held.",
                parts=[figures["held"]] if "held" in figures else [],
            ),
        ]
        return Page(title=f"Trace: {self.trace.source}", lead=self.notes, sections=sections)

    def _busiest(self) -> str:
        hour = max(self.hours, key=lambda slot: slot.jobs)
        day = max(self.weekdays, key=lambda slot: slot.jobs)
        return (
            f"{format_count(len(self.trace), 'job')}; most arrive at hour {hour.name} "
            f"({format_percent(hour.share)}) and on {day.name} ({format_percent(day.share)})."
        )


def _clock(
    instants: FloatArray, tz: tzinfo | None, dated: bool
) -> tuple[npt.NDArray[np.intp], npt.NDArray[np.intp]]:
    """Return the hour of the day and the day of the week of instants.

    Args:
        dated: Whether they are of a calendar, or count from a beginning of their own.
    """
    hours = np.floor(instants / _HOUR_S).astype(np.intp)
    if not dated:
        return hours % 24, hours // 24 % 7
    if tz is UTC:
        # The first of January 1970 was a Thursday.
        return hours % 24, (hours // 24 + 3) % 7
    told = [datetime.fromtimestamp(float(each), UTC).astimezone(tz) for each in instants]
    return np.array([each.hour for each in told]), np.array([each.weekday() for each in told])


def _by_slot(
    values: FloatArray | None, slots: npt.NDArray[np.intp], count: int
) -> list[float | None]:
    """Return the mean of values in each slot, None where there is none."""
    if values is None:
        return [None] * count
    sums = np.bincount(slots, weights=values, minlength=count)
    times = np.bincount(slots, minlength=count)
    return [
        float(total / number) if number else None for total, number in zip(sums, times, strict=True)
    ]


def fields_of(of: PortraitSlot | PortraitClass) -> dict[str, Any]:
    """Return an hour, a day or a class as a row."""
    return {name: getattr(of, name) for name in type(of).__slots__}


def _told(key: str, value: float | None) -> str:
    if value is None:
        return MISSING
    return format_quantity(key, value) if key.endswith("_s") else format_number(value)


def zone_name(tz: tzinfo | None) -> str:
    """Return what a zone is called."""
    return "local" if tz is None else "UTC" if tz is UTC else str(tz)
