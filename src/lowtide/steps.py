"""A quantity that is constant between instants: power, a queue, what a job used in each step.

`Steps` are as long as they happen to be, end, and may have stretches of which nothing is known.
Integrals are exact. What a kWh costs is a `Signal`: its steps are all of one length, which finds
a step by dividing, and it refuses what it does not cover, where `Steps` are 0.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Steps:
    """A quantity that is constant between instants.

    Attributes:
        times: Instants, in order.
        values: The quantity from each until the next, NaN where it is not known; 0 before the
            first, and from the last on.
    """

    times: FloatArray
    values: FloatArray
    _upto: FloatArray = field(init=False, repr=False)

    def __post_init__(self) -> None:
        known = np.nan_to_num(self.values[:-1], nan=0.0)
        object.__setattr__(self, "_upto", _summed(known * np.diff(self.times)))

    @classmethod
    def between(cls, edges: FloatArray, values: FloatArray) -> Steps:
        """Return steps from each edge to the next.

        Args:
            edges: Where steps begin, and the end of the last.
            values: One for each step.

        >>> Steps.between(np.array([0.0, 1.0, 3.0]), np.array([4.0, 2.0])).mean(np.array([0, 2]))
        array([3.])
        """
        return cls(times=edges, values=np.append(values, 0.0))

    @classmethod
    def held(cls, begin: FloatArray, end: FloatArray, values: FloatArray) -> Steps:
        """Return values that each hold for a span, of which none begins before another's end.

        Between two spans nothing is known.

        >>> held = Steps.held(np.array([0.0, 2.0]), np.array([1.0, 4.0]), np.array([5.0, 7.0]))
        >>> held.amounts(np.array([0, 3])), held.known_s(np.array([0, 3]))
        (array([12.]), array([2.]))
        """
        times = np.column_stack((begin, end)).ravel()
        return cls.between(
            times, np.column_stack((values, np.full(values.size, np.nan))).ravel()[:-1]
        )

    @classmethod
    def of_amounts(cls, edges: FloatArray, amounts: FloatArray) -> Steps:
        """Return steps of which is told how much each came to, evenly over its time.

        >>> Steps.of_amounts(np.array([0.0, 2.0, 4.0]), np.array([6.0, 2.0])).values
        array([3., 1., 0.])
        """
        lengths = np.diff(edges)
        steps = cls.between(
            edges, np.divide(amounts, lengths, where=lengths > 0, out=0.0 * amounts)
        )
        object.__setattr__(steps, "_upto", _summed(np.nan_to_num(amounts, nan=0.0)))
        return steps

    @classmethod
    def of_spans(cls, begin: FloatArray, end: FloatArray, amount: FloatArray | float) -> Steps:
        """Return the sum of amounts that each last for a span.

        >>> sums = Steps.of_spans(np.array([0.0, 1.0]), np.array([3.0, 2.0]), 5.0)
        >>> sums.times.tolist(), sums.values.tolist()
        ([0.0, 1.0, 2.0, 3.0], [5.0, 10.0, 5.0, 0.0])
        """
        amounts = np.broadcast_to(np.asarray(amount, dtype=np.float64), begin.shape)
        times, place = np.unique(np.concatenate((begin, end)), return_inverse=True)
        changes = np.bincount(place, weights=np.concatenate((amounts, -amounts)))
        values = np.cumsum(changes).astype(np.float64)
        # Nothing is left once all has ended, whatever rounding says.
        values[np.abs(values) < 1e-9 * np.abs(values).max(initial=0.0)] = 0.0
        return cls(times=times, values=values)

    def at(self, instants: FloatArray) -> FloatArray:
        """Return the quantity at each instant.

        >>> Steps.of_spans(np.array([1.0]), np.array([3.0]), 5.0).at(np.array([0.5, 1.0, 3.0]))
        array([0., 5., 0.])
        """
        if not self.times.size:
            return np.zeros(instants.shape)
        place = np.searchsorted(self.times, instants, side="right") - 1
        return np.where(place < 0, 0.0, self.values[np.maximum(place, 0)])

    def upto(self, instants: FloatArray) -> FloatArray:
        """Return the integral of what is known from the beginning to each instant."""
        if not self.times.size:
            return np.zeros(instants.shape)
        return np.interp(instants, self.times, self._upto)

    def amounts(self, edges: FloatArray) -> FloatArray:
        """Return the integral of what is known between neighbouring instants."""
        return np.diff(self.upto(edges))

    def mean(self, edges: FloatArray) -> FloatArray:
        """Return the mean between neighbouring instants, what is not known counted as 0."""
        return self.amounts(edges) / np.diff(edges)

    def known_s(self, edges: FloatArray) -> FloatArray:
        """Return for how long between neighbouring instants the quantity is known.

        Before the first and from the last on it is not.
        """
        return self._lasting(~np.isnan(self.values)).amounts(edges)

    def unknown_s(self, edges: FloatArray) -> FloatArray:
        """Return for how long between neighbouring instants there is a step without a value."""
        return self._lasting(np.isnan(self.values)).amounts(edges)

    def _lasting(self, which: npt.NDArray[np.bool_]) -> Steps:
        return Steps(times=self.times, values=which.astype(np.float64))


def _summed(amounts: FloatArray) -> FloatArray:
    return np.concatenate(([0.0], np.cumsum(amounts)))
