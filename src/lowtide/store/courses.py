"""The course of things: from values as they are kept to a series that can be drawn."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from lowtide.monitor.snapshot import FloatArray
from lowtide.store.columns import NODE, UNIT, Layout
from lowtide.store.encoding import Points
from lowtide.store.records import Series
from lowtide.store.totals import last_known

IntArray = npt.NDArray[np.int64]

# The sum of many hosts has at most so many times the steps of one of them.
_FINER = 4
# Rounding leaves a trace of time where there is none.
_TRACE_S = 1e-3

# What a counter is called where its growth is divided by time; others are shown per step only.
_RATES = {
    UNIT.number: {
        "energy_j": "power_w",
        "cpu_s": "cpus_busy",
        "read_bytes": "read_bytes_per_s",
        "written_bytes": "written_bytes_per_s",
        "received_bytes": "received_bytes_per_s",
        "sent_bytes": "sent_bytes_per_s",
    },
    NODE.number: {"energy_j": "power_w", "idle_j": "idle_w", "unattributed_j": "unattributed_w"},
}


def names_of(layout: Layout) -> tuple[str, ...]:
    """Return the columns that a series has."""
    return (*_RATES[layout.number].values(), *layout.gauges, *layout.counters)


@dataclass(frozen=True, slots=True, kw_only=True)
class Courses:
    """The courses of many things of one kind, one after the other.

    Attributes:
        layout: Which columns are kept.
        owners: Whose each step is, ascending.
        times: When it ended, ascending for each owner.
        step_s: How long it was.
        columns: One value per step, as in `Series`.
    """

    layout: Layout
    owners: IntArray
    times: FloatArray
    step_s: FloatArray
    columns: Mapping[str, FloatArray]

    def of(self, owner: int) -> Series:
        """Return the course of one."""
        first, last = np.searchsorted(self.owners, [owner, owner + 1])
        rows = slice(int(first), int(last))
        return Series(
            times=self.times[rows],
            step_s=self.step_s[rows],
            columns={name: column[rows] for name, column in self.columns.items()},
        )

    @classmethod
    def joined(cls, series: Mapping[int, Series], layout: Layout) -> Courses:
        """Put courses one after the other."""
        parts = list(series.values())
        lengths = [len(part) for part in parts]
        names = names_of(layout)
        return cls(
            layout=layout,
            owners=np.repeat(np.array(list(series), dtype=np.int64), lengths),
            times=np.concatenate([part.times for part in parts]),
            step_s=np.concatenate([part.step_s for part in parts]),
            columns={
                name: np.concatenate([part.columns[name] for part in parts]) for name in names
            },
        )

    def renamed(self, names: Mapping[int, int]) -> Courses:
        """Return them as those of others."""
        known, place = np.unique(self.owners, return_inverse=True)
        owners = np.array([names[each] for each in known.tolist()], dtype=np.int64)
        return replace(self, owners=owners[place])


def courses(
    owners: Sequence[int], parts: Sequence[Points], layout: Layout, *, start: float, end: float
) -> Courses:
    """Return values as courses: each sorted by time, with holes filled by NaN.

    Args:
        parts: The values, in stretches that each know what their counters stood at before.
    """
    owner, time, length, table = _steps(owners, parts, layout)
    chosen = (time > start) & (time - length < end)
    # Clocks are set back now and then between two watchers.
    order = np.lexsort((time, owner))
    order = order[chosen[order]]
    owner, time, length, table = owner[order], time[order], length[order], table[order]
    follows = np.zeros(owner.size, dtype=bool)
    follows[1:] = owner[1:] == owner[:-1]
    before = np.append(-np.inf, time[:-1])
    begins = time - length
    begins = np.where(follows, np.maximum(begins, before), begins)
    hole = np.flatnonzero(follows & (begins - before > 1e-3))
    ends = np.insert(time, hole, begins[hole])
    begins = np.insert(begins, hole, before[hole])
    owner = np.insert(owner, hole, owner[hole])
    table = np.insert(table, hole, np.nan, axis=0)
    steps = ends - begins
    kept = steps > 0
    return Courses(
        layout=layout,
        owners=owner[kept],
        times=ends[kept],
        step_s=steps[kept],
        columns=_columns(steps[kept], table[kept], layout),
    )


def summed(parts: list[Series], layout: Layout) -> Series:
    """Return the series of a job that runs on several hosts: what it used on all of them.

    Before a host first saw it and after the last time it did, the job used nothing there. In a
    hole in between nobody knows, and the sum is unknown, too.
    """
    parts = [part for part in parts if len(part)]
    if not parts:
        return Series.nothing(names_of(layout))
    if len(parts) == 1:
        return parts[0]
    edges = np.unique(np.concatenate([np.append(part.starts, part.times[-1]) for part in parts]))
    # Rounding must not make steps of its own.
    edges = edges[np.append(np.diff(edges) > 1e-3, True)]
    longest = max(len(part) for part in parts)
    if edges.size > _FINER * longest:
        # Hundreds of hosts tick at moments of their own: no step need be shorter than theirs.
        grid = np.linspace(edges[0], edges[-1], longest + 1)
        table = sum(_onto(part, grid, layout) for part in parts)
        return _series(grid[1:], np.diff(grid), np.asarray(table), layout)
    steps = np.diff(edges)
    middles = (edges[:-1] + edges[1:]) / 2
    table = np.zeros((steps.size, len(layout.counters) + len(layout.gauges)))
    for part in parts:
        place = np.searchsorted(part.times, middles)
        inside = (middles > part.starts[0]) & (place < len(part))
        place = np.minimum(place, len(part) - 1)
        for number, name in enumerate(layout.names):
            values = part.columns[name][place]
            if number < len(layout.counters):
                values = values * (steps / part.step_s[place])
            table[:, number] += np.where(inside, values, 0.0)
    return _series(edges[1:], steps, table, layout)


def _onto(part: Series, edges: FloatArray, layout: Layout) -> FloatArray:
    """Return what a host used and held between other edges, nothing before and after its time."""
    ends = np.append(part.starts[:1], part.times)
    steps = np.diff(edges)
    table = np.empty((steps.size, len(layout.names)))
    for number, name in enumerate(layout.names):
        values = part.columns[name]
        unknown = np.isnan(values)
        counts = number < len(layout.counters)
        amounts = np.where(unknown, 0.0, values) * (1.0 if counts else part.step_s)
        reached = np.interp(edges, ends, np.append(0.0, np.cumsum(amounts)))
        table[:, number] = np.diff(reached) / (1.0 if counts else steps)
        if unknown.any():
            blind_s = np.append(0.0, np.cumsum(np.where(unknown, part.step_s, 0.0)))
            table[np.diff(np.interp(edges, ends, blind_s)) > _TRACE_S, number] = np.nan
    return table


def _steps(
    owners: Sequence[int], parts: Sequence[Points], layout: Layout
) -> tuple[IntArray, FloatArray, FloatArray, FloatArray]:
    """Return whose steps are, when they ended, how long they were, and what was used and held."""
    if not parts:
        empty = np.empty(0)
        return np.empty(0, dtype=np.int64), empty, empty, np.empty((0, len(layout.names)))
    time = np.concatenate([part.time for part in parts])
    length = time - np.concatenate([part.since for part in parts])
    counters = np.vstack([part.counters for part in parts])
    gauges = np.vstack([part.gauges for part in parts])
    part_of = np.repeat(np.arange(len(parts)), [len(part) for part in parts])
    # A look that comes at once has no step of its own: what it counted goes to the next.
    real = length > 0
    if not real.all():
        time, length, counters, gauges, part_of = (
            each[real] for each in (time, length, counters, gauges, part_of)
        )
    first = np.searchsorted(part_of, np.arange(len(parts)))
    # A counter that nobody knew began at 0; one that was not known for a while goes on from where
    # it stood. As every part begins with a known row, none is taken from the part before.
    bases = np.nan_to_num(np.stack([part.base for part in parts]))
    stood = last_known(np.insert(counters, first, bases, axis=0))
    place = np.arange(time.size) + part_of + 1
    used = np.where(np.isnan(counters), np.nan, stood[place] - stood[place - 1])
    whose = np.asarray(owners, dtype=np.int64)[part_of]
    return whose, time, length, np.hstack([used, gauges])


def _columns(steps: FloatArray, table: FloatArray, layout: Layout) -> dict[str, FloatArray]:
    columns = {name: table[:, place] for place, name in enumerate(layout.names)}
    rates = {rate: columns[name] / steps for name, rate in _RATES[layout.number].items()}
    return {name: (rates | columns)[name] for name in names_of(layout)}


def _series(ends: FloatArray, steps: FloatArray, table: FloatArray, layout: Layout) -> Series:
    return Series(times=ends, step_s=steps, columns=_columns(steps, table, layout))
