"""What was known of a signal at a moment."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from lowtide.errors import InvalidSignal
from lowtide.signal import FloatArray, Signal
from lowtide.units import TimeLike, parse_time


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
