"""What one unit of energy costs over time: carbon intensity, price or PUE.

A `Signal` is piecewise constant on half-open steps of equal length. Integrals over any stretch
of time are exact and cost the same however long the stretch, because prefix integrals are kept.
It never extrapolates: asked about a time outside its span it raises `NotCovered`. A `Grid` is the
signals of one zone that belong together.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC
from importlib import import_module
from typing import Any, overload

import numpy as np
import numpy.typing as npt

from lowtide.errors import (
    InvalidSignal,
    InvalidTime,
    InvalidUnit,
    NotCovered,
    UnknownName,
)
from lowtide.units import (
    DurationLike,
    TimeLike,
    format_count,
    format_hours,
    format_html,
    format_time,
    intensity_factor,
    parse_duration,
    parse_time,
    price_factor,
)

FloatArray = npt.NDArray[np.float64]
MarkArray = npt.NDArray[np.uint8]

# What a step's mark says: a gap policy made the value up, or the provider estimated it.
FILLED = 1
ESTIMATED = 2

# What each kind's values must lie between, the rule in words, and the one unit it is kept in
# (prices name a currency). No grid is a hundred times dirtier than coal.
_RULES = {
    "average": (0.0, 1e5, "carbon intensity must be from 0 to 100,000 g/kWh", "g/kWh"),
    "marginal": (0.0, 1e5, "carbon intensity must be from 0 to 100,000 g/kWh", "g/kWh"),
    "price": (-1e6, 1e6, "a price must be from -1,000,000 to 1,000,000 per kWh", None),
    "pue": (1.0, 100.0, "PUE must be from 1 to 100", "1"),
    "occupancy": (0.0, 1e9, "a second on a machine must cost from 0 to 1e9", "1/s"),
    "power": (0.0, 1e12, "power must be from 0 to 1e12 W", "W"),
    "nodes": (0.0, 1e9, "nodes must be from 0 to 1e9", "1"),
    "objective": (-1e12, 1e12, "what is minimised must be from -1e12 to 1e12", "1/kWh"),
}
KINDS = tuple(_RULES)
BASES = ("lifecycle", "direct")
# Nobody's data changes once in three hundred years.
_LONGEST_STEP_S = 1e10

# How far outside its span rounding may carry a question: in steps, and in what floating-point
# numbers of the size of its times are told apart by.
_EDGE_STEPS = 1e-9
_EDGE_ROUNDINGS = 4
# Frames tell times to the microsecond.
_SAME_STEP_S = 2e-6
# Work through long arrays in pieces that stay in the processor's cache, and are small enough for
# memory to be used again rather than asked of the system anew: 65 against 25 million a second.
_CHUNK = 4_096


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class Signal:
    """A piecewise-constant series on equal half-open steps.

    Attributes:
        values: One value per step: g/kWh, currency/kWh, or a plain ratio for PUE.
        start: The instant at which the first step begins.
        step_s: Length of every step.
        kind: `average` or `marginal` carbon intensity, `price`, `pue`; for planners also
            `occupancy`, what a second on a machine counts, `power`, what may be drawn, and
            `objective`, a mix of others.
        basis: What an intensity counts: `lifecycle` or `direct` emissions; None for others.
        zone: The grid zone the values belong to, if known.
        unit: `g/kWh`, a currency per kWh such as `EUR/kWh`, `1` for PUE, `1/s` for occupancy.
        source: Where the values come from, in words.
        synthetic: Whether the values come from a model rather than from a grid.
        marks: Per step 0, `FILLED` or `ESTIMATED`; None where all are as measured.
        prefix: Integral of the values from the start to each edge.
    """

    values: FloatArray
    start: float
    step_s: float
    kind: str = "average"
    basis: str | None = "lifecycle"
    zone: str | None = None
    unit: str = "g/kWh"
    source: str = ""
    synthetic: bool = False
    marks: MarkArray | None = None
    prefix: FloatArray = field(init=False)
    _padded: FloatArray = field(init=False)

    def __post_init__(self) -> None:
        values = np.array(self.values, dtype=np.float64)
        if values.ndim != 1 or values.size == 0:
            raise InvalidSignal(f"a signal is a list of at least one value, not {values.shape}")
        if not (np.isfinite(self.step_s) and self.step_s > 0):
            raise InvalidSignal(f"a signal's step must be longer than 0 s, not {self.step_s}")
        if self.step_s > _LONGEST_STEP_S:
            raise InvalidSignal(
                f"a signal's step is {_LONGEST_STEP_S:g} s at most, not {self.step_s:g} s"
            )
        if not np.isfinite(self.start):
            raise InvalidTime(f"a signal's start must be finite, not {self.start}")
        if self.kind not in ("average", "marginal"):
            object.__setattr__(self, "basis", None)
        _check_labels(self.kind, self.basis, self.unit)
        _check_values(values, self.kind, self.start, self.step_s)
        values.flags.writeable = False
        # One step more than there is makes the very end of the span an ordinary look-up. It is as
        # the last: rounding may carry a question past the end.
        prefix = np.concatenate(([0.0], np.cumsum(values * self.step_s)))
        padded = np.append(values, values[-1])
        prefix.flags.writeable = False
        for name, array in (("values", values), ("prefix", prefix), ("_padded", padded)):
            object.__setattr__(self, name, array)
        if self.marks is not None:
            marks = np.array(self.marks, dtype=np.uint8)
            if marks.shape != values.shape:
                raise InvalidSignal(f"{marks.size} marks for {values.size} steps: give one each")
            marks.flags.writeable = False
            object.__setattr__(self, "marks", marks if marks.any() else None)

    @classmethod
    def from_values(
        cls,
        values: npt.ArrayLike,
        *,
        start: TimeLike,
        step_s: DurationLike,
        kind: str = "average",
        basis: str | None = "lifecycle",
        zone: str | None = None,
        unit: str = "g/kWh",
        source: str = "",
        synthetic: bool = False,
        marks: MarkArray | None = None,
    ) -> Signal:
        """Build a signal from values in any known unit.

        Args:
            values: One number per step.
            start: When the first step begins: aware datetime, ISO text or epoch seconds.
            step_s: Length of a step, in seconds or as a text such as `1h`.
            kind: `average`, `marginal`, `price` or `pue`.
            basis: `lifecycle` or `direct`; ignored for prices and PUE.
            zone: The grid zone.
            unit: The unit the values are in; they are kept per kWh.
            source: Where the values come from.
            synthetic: Whether they come from a model.
            marks: Which of them were filled in or estimated.

        >>> Signal.from_values([300, 100], start="2024-07-01T00:00Z", step_s="1h").mean()
        200.0
        """
        if kind not in KINDS:
            raise InvalidSignal(f"unknown kind {kind!r} of signal: known are {', '.join(KINDS)}")
        if kind == "price":
            factor, unit = price_factor(unit)
        elif kind in ("average", "marginal"):
            factor, unit = intensity_factor(unit), "g/kWh"
        else:
            factor, unit = 1.0, str(_RULES[kind][3])
        try:
            numbers: FloatArray = np.asarray(values, dtype=np.float64)
        except (TypeError, ValueError, OverflowError):
            raise InvalidSignal("a signal's values must all be numbers") from None
        return cls(
            values=np.multiply(numbers, factor),
            start=parse_time(start),
            step_s=parse_duration(step_s),
            kind=kind,
            basis=basis,
            zone=zone,
            unit=unit,
            source=source,
            synthetic=synthetic,
            marks=marks,
        )

    @property
    def end(self) -> float:
        """The instant at which the last step ends."""
        return self.start + self.values.size * self.step_s

    @property
    def edges(self) -> FloatArray:
        """The instants at which steps begin, and the end of the last one."""
        steps: FloatArray = np.arange(self.values.size + 1, dtype=np.float64)
        return self.start + steps * self.step_s

    @property
    def filled(self) -> int:
        """How many of the steps were missing and filled by a gap policy."""
        return 0 if self.marks is None else int(np.count_nonzero(self.marks == FILLED))

    @property
    def estimated(self) -> int:
        """How many of the steps the provider says it estimated."""
        return 0 if self.marks is None else int(np.count_nonzero(self.marks == ESTIMATED))

    @property
    def imputed(self) -> float:
        """The share of the steps that nobody measured: filled in, or estimated."""
        return (self.filled + self.estimated) / len(self)

    @property
    def caveat(self) -> str:
        """Which part of the steps nobody measured, in words; empty if none.

        Files mark values alike that their provider estimated and that it only carried on.
        """
        parts = ((self.filled, "filled in"), (self.estimated, "imputed (filled in or estimated)"))
        return ", ".join(f"{count} of {len(self)} steps {how}" for count, how in parts if count)

    @property
    def currency(self) -> str:
        """What a price is paid in; empty where the values are no prices."""
        return self.unit.removesuffix("/kWh") if self.kind == "price" else ""

    @property
    def label(self) -> str:
        """A few words for a heading: what it is, where, and whether it is synthetic."""
        what = {"price": "electricity price", "pue": "PUE", "power": "power cap"}.get(
            self.kind, f"{self.kind} carbon intensity"
        )
        zone = f", {self.zone}" if self.zone else ""
        told = self.synthetic and "synthetic" not in zone
        return f"{what}{zone}{' (synthetic)' if told else ''}"

    def columns(self) -> dict[str, npt.NDArray[np.generic]]:
        """Return when each step begins, in UTC, and its value: what a data frame is made of.

        >>> Signal.from_values([300, 100], start=0, step_s="1h").columns()["time"]
        array(['1970-01-01T00:00:00.000000', '1970-01-01T01:00:00.000000'],
              dtype='datetime64[us]')
        """
        times = np.round(1e6 * self.edges[:-1]).astype("datetime64[us]")
        return {"time": times, "value": self.values}

    def to_polars(self) -> Any:
        """Return a data frame of Polars: when each step begins, in UTC, and its value."""
        # The core knows NumPy alone; whoever asks for a frame has Polars.
        polars = import_module("polars")
        frame = polars.DataFrame(self.columns())
        return frame.with_columns(polars.col("time").dt.replace_time_zone("UTC"))

    @classmethod
    def from_polars(
        cls, frame: Any, *, time: str = "time", value: str = "value", **labels: Any
    ) -> Signal:
        """Return the signal of a data frame of Polars, with a row for each step.

        Args:
            time: The column of times; those without a zone are taken for UTC.
            value: The column of values.
            labels: What `from_values` takes besides: kind, unit, zone, basis, source.
        """
        _require_columns(frame, time, value)
        if not frame[time].dtype.is_temporal() or frame[time].null_count():
            raise InvalidSignal(
                f"column {time!r} of a frame holds times (str.to_datetime() makes them of texts), "
                f"none missing, and this one holds {frame[time].dtype}"
            )
        stamps = frame[time].dt.epoch("us").to_numpy()
        return cls._of_rows(stamps / 1e6, frame[value].to_numpy(), labels)

    @classmethod
    def from_pandas(
        cls, frame: Any, *, time: str | None = None, value: str = "value", **labels: Any
    ) -> Signal:
        """Return the signal of a data frame or a series of pandas, with a row for each step.

        Args:
            time: The column of times, by default the index; those without a zone are taken for UTC.
            value: The column of values, of a frame.
            labels: What `from_values` takes besides: kind, unit, zone, basis, source.
        """
        values = frame
        if hasattr(frame, "columns"):
            _require_columns(frame, *(each for each in (time, value) if each is not None))
            values = frame[value]
        elif time is not None:
            raise InvalidSignal("a series has its times as its index: leave time out")
        seconds = []
        for row, each in enumerate(frame.index if time is None else frame[time]):
            try:
                zoned = each if each.tzinfo else each.replace(tzinfo=UTC)
                seconds.append(zoned.timestamp())
            except (AttributeError, TypeError, ValueError):
                where = "the index" if time is None else f"column {time!r}"
                raise InvalidSignal(
                    f"{where} of a frame holds times, none missing (pandas.to_datetime makes them "
                    f"of texts; time= names a column), not {each!r} in row {row + 1}"
                ) from None
        return cls._of_rows(np.array(seconds, np.float64), np.asarray(values), labels)

    @classmethod
    def _of_rows(cls, times: FloatArray, values: Any, labels: Mapping[str, Any]) -> Signal:
        """Return a signal of stamped values, which must be one step apart."""
        steps = np.diff(times)
        if times.size < 2:
            raise InvalidSignal("a frame of at least two rows says how long a step is")
        uneven = np.flatnonzero(np.abs(steps - steps[0]) > _SAME_STEP_S)
        if steps[0] <= 0 or uneven.size:
            row = int(uneven[0]) + 1 if uneven.size else 1
            raise InvalidSignal(
                "rows of a frame are one step apart, in order: after "
                f"{format_time(times[row - 1])} comes {format_time(times[row])}, and the first "
                f"step has {steps[0]:g} s; sort the frame, and fill or leave out what is missing"
            )
        return cls.from_values(values, start=float(times[0]), step_s=float(steps[0]), **labels)

    def chart(self) -> Any:
        """Return the curve as a chart of Altair."""
        from lowtide.registry import chart_of

        return chart_of("signal", self)

    def _repr_html_(self) -> str:
        return format_html(repr(self))

    def __len__(self) -> int:
        return int(self.values.size)

    def __repr__(self) -> str:
        caveat = f"; {self.caveat}" if self.caveat else ""
        return (
            f"<Signal: {self.label}, {format_time(self.start)} to {format_time(self.end)}, "
            f"{format_count(len(self), 'step')} of {format_hours(self.step_s)}, "
            f"{self.values.min():.4g} to {self.values.max():.4g} {self.unit}{caveat}>"
        )

    @overload
    def at(self, instant: float) -> float: ...
    @overload
    def at(self, instant: FloatArray) -> FloatArray: ...
    def at(self, instant: float | FloatArray) -> float | FloatArray:
        """Return the value at an instant, or at each of many.

        Args:
            instant: Epoch seconds within the span; the end itself belongs to no step.
        """
        instants = np.asarray(instant, dtype=np.float64)
        if instants.size == 0:
            return np.zeros(instants.shape)
        self.require(float(instants.min()), float(instants.max()))
        # Looking the edges up, rather than dividing, finds the step that begins at a rounded edge.
        index = np.searchsorted(self.edges, instants, side="right") - 1
        if np.any(index >= self.values.size):
            raise NotCovered(f"the signal ends at {format_time(self.end)}, and has no value there")
        found = self.values[np.maximum(index, 0)]
        return found if instants.ndim else float(found)

    @overload
    def integral(self, begin: float, end: float, *, origin: float = 0.0) -> float: ...
    @overload
    def integral(
        self, begin: FloatArray, end: FloatArray, *, origin: float | FloatArray = 0.0
    ) -> FloatArray: ...
    def integral(
        self,
        begin: float | FloatArray,
        end: float | FloatArray,
        *,
        origin: float | FloatArray = 0.0,
    ) -> float | FloatArray:
        """Return the exact integral over time of the values from `begin` to `end`.

        Many stretches at once are given as arrays. Offsets from an `origin` keep more digits
        than epoch seconds do, which tell times apart only to 0.2 µs.

        Args:
            begin: Where each stretch begins, seconds after the origin.
            end: Where each stretch ends.
            origin: What the two count from, or what those of each stretch do; 0 means they are
                epoch seconds.

        >>> curve = Signal.from_values([300, 100], start=0, step_s=3600)
        >>> curve.integral(1800.0, 5400.0)
        720000.0
        """
        a, b, shift = (
            np.asarray(each, dtype=np.float64) for each in (begin, end, origin - self.start)
        )
        if a.ndim == b.ndim == shift.ndim == 0:
            p, q = a.reshape(1) + shift, b.reshape(1) + shift
            self._require_after(np.minimum(p[0], q[0]), np.maximum(p[0], q[0]))
            return float(self._between(p, q)[0])
        if a.shape != b.shape:
            a, b = np.broadcast_arrays(a, b)
        result = np.empty(a.shape)
        # One origin for all may be far away, as that of epoch seconds.
        own = isinstance(origin, np.ndarray)
        if own and shift.shape != a.shape:
            shift = np.broadcast_to(shift, a.shape)
        flat, a, b, shift = (each.reshape(-1) for each in (result, a, b, shift))
        low, high = np.float64(np.inf), np.float64(-np.inf)
        # Times that are no numbers are refused below.
        with np.errstate(invalid="ignore"):
            for i in range(0, flat.size, _CHUNK):
                chunk = slice(i, i + _CHUNK)
                moved = shift[chunk] if own else shift
                p, q = a[chunk] + moved, b[chunk] + moved
                low = np.minimum(low, np.minimum(p.min(), q.min()))
                high = np.maximum(high, np.maximum(p.max(), q.max()))
                if own:
                    flat[chunk] = self._between(p, q, a[chunk], b[chunk], moved)
                else:
                    flat[chunk] = self._between(p, q)
        if flat.size:
            self._require_after(low, high)
        return result

    def _require_after(self, low: np.float64, high: np.float64) -> None:
        """Raise `NotCovered` unless the span holds what lies between two times after its start."""
        self.require(self.start + float(low), self.start + float(high))

    def _between(
        self,
        p: FloatArray,
        q: FloatArray,
        a: FloatArray | None = None,
        b: FloatArray | None = None,
        shift: FloatArray | None = None,
    ) -> FloatArray:
        """Integrate from `p` to `q`, seconds after the start, without checking the span.

        Args:
            a: What p is after a moment that is `shift` later than the start, if that is known
                to more digits; so is b.
        """
        # Within one step the prefixes cancel exactly, and so does the shift: short stretches keep
        # their digits, however far they lie from the start.
        per_step = 1.0 / self.step_s
        i = (p * per_step).astype(np.intp)
        j = (q * per_step).astype(np.intp)
        total: FloatArray = self.prefix.take(j, mode="clip")
        total -= self.prefix.take(i, mode="clip")
        from_i, from_j = i * self.step_s, j * self.step_s
        if a is None or b is None or shift is None:
            a, b = p, q
        else:
            from_i -= shift
            from_j -= shift
        total += self._padded.take(j, mode="clip") * (b - from_j)
        total -= self._padded.take(i, mode="clip") * (a - from_i)
        return total

    def mean(self, begin: TimeLike | None = None, end: TimeLike | None = None) -> float:
        """Return the time-weighted mean between two instants, by default over the whole span.

        Args:
            begin: From when.
            end: Until when.
        """
        a = self.start if begin is None else parse_time(begin)
        b = self.end if end is None else parse_time(end, relative_to=a)
        if b <= a:
            raise InvalidTime(f"a mean needs an end after {format_time(a)}, not {format_time(b)}")
        return self.integral(a, b) / (b - a)

    def covers(self, begin: float, end: float) -> bool:
        """Return whether the span holds everything from `begin` to `end`."""
        slack = self._edge_s(begin, end)
        return begin >= self.start - slack and end <= self.end + slack

    def _edge_s(self, begin: float, end: float) -> float:
        return max(_EDGE_STEPS * self.step_s, _EDGE_ROUNDINGS * math.ulp(max(abs(begin), abs(end))))

    def require(self, begin: float, end: float, *, what: str = "the signal") -> None:
        """Raise `NotCovered` unless the span holds everything from `begin` to `end`.

        Args:
            begin: First instant that is needed.
            end: Last instant that is needed.
            what: What to call the signal in the message.
        """
        if not (math.isfinite(begin) and math.isfinite(end)):
            raise InvalidTime("a time must be finite, not NaN or infinite")
        if self.covers(begin, end):
            return
        if begin < self.start:
            lack = f"begins {format_hours(self.start - begin)} too late"
        else:
            lack = f"ends {format_hours(end - self.end)} too early"
        raise NotCovered(
            f"{what} covers {format_time(self.start)} to {format_time(self.end)} and {lack} for "
            f"{format_time(begin)} to {format_time(end)}: get a longer signal or move the window"
        )

    def window(self, begin: TimeLike, end: TimeLike) -> Signal:
        """Return the whole steps that touch the time from `begin` to `end`.

        Args:
            begin: From when.
            end: Until when.
        """
        a = parse_time(begin)
        b = parse_time(end, relative_to=a)
        if b <= a:
            raise InvalidTime(f"a window needs an end after {format_time(a)}, not {format_time(b)}")
        self.require(a, b)
        slack = self._edge_s(a, b) / self.step_s
        first = max(int(np.floor((a - self.start) / self.step_s + slack)), 0)
        last = min(int(np.ceil((b - self.start) / self.step_s - slack)), self.values.size)
        return replace(
            self,
            values=self.values[first:last],
            start=self.start + first * self.step_s,
            marks=None if self.marks is None else self.marks[first:last],
        )


def _require_columns(frame: Any, *names: str) -> None:
    """Refuse a data frame without one of these columns."""
    for name in names:
        if name not in frame.columns:
            raise UnknownName("column of the frame", name, [str(each) for each in frame.columns])


def _check_labels(kind: str, basis: str | None, unit: str) -> None:
    if kind not in KINDS:
        raise InvalidSignal(f"unknown kind {kind!r} of signal: known are {', '.join(KINDS)}")
    needed = _RULES[kind][3]
    if needed is None:
        if price_factor(unit) != (1.0, unit):
            raise InvalidUnit(
                f"prices are kept per kWh: use Signal.from_values to convert {unit!r}"
            )
    elif unit != needed:
        raise InvalidUnit(
            f"signals of kind {kind!r} are kept in {needed}: use Signal.from_values for {unit!r}"
        )
    if kind in ("average", "marginal") and basis not in BASES:
        raise InvalidSignal(f"unknown basis {basis!r}: known are {', '.join(BASES)}")


def _check_values(values: FloatArray, kind: str, start: float, step_s: float) -> None:
    lowest, highest, rule, _ = _RULES[kind]
    bad = np.flatnonzero(~((values >= lowest) & (values <= highest)))
    if bad.size:
        i = int(bad[0])
        raise InvalidSignal(
            f"{rule}, but step {i} (from {format_time(start + i * step_s)}) is {values[i]}"
            + (f", and {bad.size - 1} more are like it" if bad.size > 1 else "")
            + ": mend the data, or read it with a gap policy (hold, interpolate)"
        )
