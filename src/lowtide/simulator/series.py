"""How a quantity that changes in steps goes over time: power, queue length, jobs running."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from lowtide.signal import FloatArray


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """A quantity that is constant between instants.

    Attributes:
        times: Instants, rising.
        values: The quantity from each on; 0 before the first, and from the last on.
    """

    times: FloatArray
    values: FloatArray

    @classmethod
    def of_spans(cls, begin: FloatArray, end: FloatArray, amount: FloatArray | float) -> Series:
        """Return the sum of amounts that each last for a span.

        >>> series = Series.of_spans(np.array([0.0, 1.0]), np.array([3.0, 2.0]), 5.0)
        >>> series.times.tolist(), series.values.tolist()
        ([0.0, 1.0, 2.0, 3.0], [5.0, 10.0, 5.0, 0.0])
        """
        amounts = np.broadcast_to(np.asarray(amount, dtype=np.float64), begin.shape)
        edges = np.concatenate((begin, end))
        times, place = np.unique(edges, return_inverse=True)
        changes = np.bincount(place, weights=np.concatenate((amounts, -amounts)))
        values = np.cumsum(changes).astype(np.float64)
        # Nothing is left once all has ended, whatever rounding says.
        values[np.abs(values) < 1e-9 * np.abs(values).max(initial=0.0)] = 0.0
        return cls(times=times, values=values)

    def at(self, instants: FloatArray) -> FloatArray:
        """Return the quantity at each instant.

        >>> Series.of_spans(np.array([1.0]), np.array([3.0]), 5.0).at(np.array([0.5, 1.0, 3.0]))
        array([0., 5., 0.])
        """
        if not self.times.size:
            return np.zeros(instants.shape)
        place = np.searchsorted(self.times, instants, side="right") - 1
        return np.where(place < 0, 0.0, self.values[np.maximum(place, 0)])

    def upto(self, instants: FloatArray) -> FloatArray:
        """Return the integral from the beginning to each instant."""
        if not self.times.size:
            return np.zeros(instants.shape)
        total = np.concatenate(([0.0], np.cumsum(self.values[:-1] * np.diff(self.times))))
        return np.interp(instants, self.times, total)

    def mean(self, edges: FloatArray) -> FloatArray:
        """Return the mean between neighbouring instants."""
        return np.diff(self.upto(edges)) / np.diff(edges)
