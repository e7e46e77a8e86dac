"""What a provider has said of a zone over time: one value per step, and how it is known.

What came replaces what was expected, a newer word on the same thing replaces an older one, and an
expectation that nothing ever replaced stays one. Steps that nobody told of are gaps and stay gaps.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from lowtide.errors import InvalidInput, InvalidSignal, NotCovered
from lowtide.grids.providers import GridProvider, Part, ZoneName
from lowtide.signal import ESTIMATED, FILLED, FloatArray, MarkArray, Signal
from lowtide.units import format_hours, format_time, intensity_factor

# How a value is known.
MEASURED, ESTIMATE, FORECAST = range(3)

# More than a year of five minutes.
_LONGEST = 120_000
# Times are told to the second.
_TICK_S = 0.5


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class History:
    """Values of one zone, in the order of time.

    Attributes:
        name: The zone.
        title: What the provider calls itself.
        kind: `average` or `marginal` intensity.
        basis: `lifecycle` or `direct`.
        area: What the provider calls the zone.
        step_s: For how long a value holds.
        times: When each value's step begins.
        values: The values, g/kWh.
        states: How each is known: `MEASURED`, `ESTIMATE` or `FORECAST`.
        retrieved: When each was retrieved.
    """

    name: ZoneName
    title: str
    kind: str
    basis: str
    area: str
    step_s: float
    times: FloatArray
    values: FloatArray
    states: MarkArray
    retrieved: FloatArray

    def __len__(self) -> int:
        return int(self.times.size)

    @property
    def settled_until(self) -> float | None:
        """When the last step ends that was told of after it began; None if there is none."""
        known = np.flatnonzero((self.states < FORECAST) | (self.retrieved >= self.times))
        return float(self.times[known[-1]]) + self.step_s if known.size else None

    def signal(self, now: float, *, since: float | None = None, gaps: str = "refuse") -> Signal:
        """Return the values as a signal.

        Without a beginning it is the unbroken stretch that holds `now`, or the last one that
        began before.

        Args:
            since: The first moment that is needed; what lies between it and the end of the
                stretch must then be whole.
            gaps: What to do where it is not: `refuse`, `hold` or `interpolate`.
        """
        begin, end = self._stretch(now)
        states = self.states[begin:end]
        start, values = float(self.times[begin]), self.values[begin:end]
        marks: MarkArray = np.where(states == MEASURED, 0, ESTIMATED).astype(np.uint8)
        if since is not None:
            from lowtide.formats.source import Place
            from lowtide.formats.times import lay_out

            first = int(np.searchsorted(self.times + self.step_s, since, side="right"))
            wanted = slice(min(first, begin), end)
            line = lay_out(
                self.times[wanted],
                self.values[wanted],
                Place(path=Path(str(self.name))),
                gaps=gaps,
                step_s=self.step_s,
                marks=np.where(self.states[wanted] == MEASURED, 0, ESTIMATED).astype(np.uint8),
            )
            start, values, marks = line.start, line.values, line.marks
        return self._as_signal(start, values, marks)

    def _as_signal(self, start: float, values: FloatArray, marks: MarkArray) -> Signal:
        return Signal(
            values=values,
            start=start,
            step_s=self.step_s,
            kind=self.kind,
            basis=self.basis,
            zone=self.area,
            source=f"{self.title} ({self.name}), retrieved {format_time(self.retrieved.max())}",
            marks=marks,
        )

    def settled(self, now: float) -> Signal:
        """Return all that was told of steps after they had begun: what forecasts are made of.

        Steps in between that nobody told of hold the value before them, marked as filled.
        """
        came = (self.states < FORECAST) | (self.retrieved >= self.times)
        kept = np.flatnonzero(came & (self.times <= now))
        if not kept.size:
            raise NotCovered(
                f"{self.name} has told nothing yet of what came, and forecasts need a day of it"
            )
        index = np.round((self.times[kept] - self.times[kept[0]]) / self.step_s).astype(np.intp)
        places = np.arange(max(int(index[-1]) + 1 - _LONGEST, 0), int(index[-1]) + 1)
        held = np.searchsorted(index, places, side="right") - 1
        marks = np.where(self.states[kept[held]] == MEASURED, 0, ESTIMATED)
        return self._as_signal(
            float(self.times[kept[0]]) + float(places[0]) * self.step_s,
            self.values[kept[held]],
            np.where(index[held] == places, marks, FILLED).astype(np.uint8),
        )

    def caveat(self, signal: Signal) -> str:
        """Return from when on a signal is an estimate, and from when on a forecast, in words.

        Args:
            signal: What `signal` returned.
        """
        inside = (self.times >= signal.start - _TICK_S) & (self.times < signal.end - _TICK_S)
        times, states = self.times[inside], self.states[inside]
        words = []
        for state, what in ((ESTIMATE, "estimated"), (FORECAST, "a forecast")):
            better = np.flatnonzero(states < state)
            first = int(better[-1]) + 1 if better.size else 0
            if first < times.size and np.any(states[first:] == state):
                at = int(first + np.flatnonzero(states[first:] == state)[0])
                words.append(f"{what} from {format_time(float(times[at]))} on")
        return ", ".join(words)

    def _stretch(self, now: float) -> tuple[int, int]:
        """Return where the stretch begins and ends, as places of values."""
        breaks = np.flatnonzero(np.abs(np.diff(self.times) - self.step_s) > _TICK_S) + 1
        edges = np.concatenate(([0], breaks, [self.times.size]))
        begun = int(np.searchsorted(self.times[edges[:-1]], now, side="right"))
        place = max(begun - 1, 0)
        return int(edges[place]), int(edges[place + 1])

    def document(self) -> dict[str, Any]:
        """Return it as JSON holds it."""
        return {
            "title": self.title,
            "kind": self.kind,
            "basis": self.basis,
            "area": self.area,
            "step_s": self.step_s,
            "times": self.times.tolist(),
            "values": self.values.tolist(),
            "states": self.states.tolist(),
            "retrieved": self.retrieved.tolist(),
        }

    @classmethod
    def from_document(cls, name: ZoneName, document: Mapping[str, Any]) -> History:
        """Return what `document` made, or raise an error that says what is wrong with it.

        Args:
            document: What JSON held.
        """
        arrays = {
            key: np.array(document[key], dtype=np.float64)
            for key in ("times", "values", "states", "retrieved")
        }
        if len({array.shape for array in arrays.values()}) != 1:
            raise ValueError("columns of different length")
        if not all(np.all(np.isfinite(array)) for array in arrays.values()):
            raise ValueError("a number is missing")
        if np.any(np.diff(arrays["times"]) <= 0):
            raise ValueError("times out of order")
        if not np.isin(arrays["states"], (MEASURED, ESTIMATE, FORECAST)).all():
            raise ValueError("a value is neither measured nor estimated nor foreseen")
        history = cls(
            name=name,
            **{key: str(document[key]) for key in ("title", "kind", "basis", "area")},
            step_s=float(document["step_s"]),
            times=arrays["times"],
            values=arrays["values"],
            states=arrays["states"].astype(np.uint8),
            retrieved=arrays["retrieved"],
        )
        history.check()
        return history

    def check(self) -> None:
        """Raise `InvalidSignal` where the values could be no signal."""
        Signal(
            values=self.values,
            start=float(self.times[0]),
            step_s=self.step_s,
            kind=self.kind,
            basis=self.basis,
        )


def collect(
    parts: Sequence[Part], *, name: ZoneName, provider: GridProvider, now: float
) -> tuple[History, list[str]]:
    """Return what a provider has just said, and what of it could not be used, in words.

    Args:
        parts: What it said; the first says which steps there are.
    """
    # Readers bring polars along: whoever only looks at what is kept does without.
    from lowtide.formats.source import Place
    from lowtide.formats.times import usual_step

    place = Place(path=Path(str(name)))
    for part in parts:
        if part.series.kind != provider.kind:
            raise InvalidInput(
                f"{name} tells {part.series.kind} intensity where {provider.kind} was asked for"
            )
    told = [(part, np.isfinite(part.series.values)) for part in parts]
    times = np.concatenate([part.series.times[known] for part, known in told] or [np.empty(0)])
    if not times.size:
        raise place.error("there is no value in what was answered")
    first = parts[0].series
    history = _newest(
        History(
            name=name,
            title=provider.title,
            kind=provider.kind,
            basis=str(first.basis),
            area=first.zone or name.zone,
            step_s=first.step_s or usual_step(first.times, place),
            times=times,
            values=np.concatenate(
                [
                    part.series.values[known] * intensity_factor(part.series.unit)
                    for part, known in told
                ]
            ),
            states=np.concatenate([_states(part)[known] for part, known in told]),
            retrieved=np.full(times.size, now),
        )
    )
    off = _shift(history.times - first.times[0], history.step_s) > _TICK_S
    problems = []
    if np.any(off):
        problems.append(
            f"{name}: the value of {format_time(float(history.times[off][0]))} is left out, "
            f"between the steps of {format_hours(history.step_s)} that others have"
        )
        history = _only(history, np.flatnonzero(~off))
    try:
        history.check()
    except InvalidSignal as error:
        raise place.error(str(error)) from None
    return history, problems


def _states(part: Part) -> MarkArray:
    marks = part.series.marks
    states = np.full(part.series.times.size, MEASURED, dtype=np.uint8)
    if part.forecast:
        states[:] = FORECAST
    elif marks is not None:
        states[marks == ESTIMATED] = ESTIMATE
    return states


def fits(old: History, new: History) -> bool:
    """Return whether two histories may be one: the same steps, of the same basis."""
    shift = _shift(new.times[:1] - old.times[0], old.step_s)
    return bool(old.step_s == new.step_s and old.basis == new.basis and np.all(shift <= _TICK_S))


def merge(old: History, new: History) -> History:
    """Return what was known with what is known now.

    Args:
        new: What has been said since; it fits.
    """
    return _newest(
        replace(
            new,
            times=np.concatenate((old.times, new.times)),
            values=np.concatenate((old.values, new.values)),
            states=np.concatenate((old.states, new.states)),
            retrieved=np.concatenate((old.retrieved, new.retrieved)),
        )
    )


def _newest(history: History) -> History:
    """Return a history in order, with one value per time: a fact if there is any, then the last."""
    spoken = np.arange(history.times.size)
    order = np.lexsort((spoken, history.states != FORECAST, history.times))
    times = history.times[order]
    return _only(history, order[np.append(times[1:] != times[:-1], True)][-_LONGEST:])


def _only(history: History, places: npt.NDArray[np.intp]) -> History:
    return replace(
        history,
        times=history.times[places],
        values=history.values[places],
        states=history.states[places],
        retrieved=history.retrieved[places],
    )


def _shift(passed_s: FloatArray, step_s: float) -> FloatArray:
    """Return how far times are from the nearest edge of a step."""
    after = passed_s % step_s
    return np.minimum(after, step_s - after)
