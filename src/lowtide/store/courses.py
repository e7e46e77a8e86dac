"""The course of things: from values as they are kept to a series that can be drawn."""

from __future__ import annotations

import numpy as np

from lowtide.monitor.snapshot import FloatArray
from lowtide.store.columns import NODE, UNIT, Layout
from lowtide.store.encoding import Points
from lowtide.store.records import Series

# What a counter is called where its growth is divided by time; others are shown per step only.
_RATES = {
    UNIT.number: {
        "energy_j": "power_w",
        "cpu_s": "cpus_busy",
        "read_bytes": "read_bytes_per_s",
        "written_bytes": "written_bytes_per_s",
    },
    NODE.number: {"energy_j": "power_w", "idle_j": "idle_w", "unattributed_j": "unattributed_w"},
}


def names_of(layout: Layout) -> tuple[str, ...]:
    """Return the columns that a series has.

    Args:
        layout: The columns that are kept.
    """
    return (*_RATES[layout.number].values(), *layout.gauges, *layout.counters)


def course(parts: list[Points], layout: Layout, *, start: float, end: float) -> Series:
    """Return values as a series: sorted by time, with holes filled by NaN.

    Args:
        parts: The values, in stretches that each know what their counters stood at before.
        layout: Which columns they have.
        start: Leave out what was over by then.
        end: Leave out what began then or later.
    """
    if not parts:
        return Series.nothing(names_of(layout))
    steps_of_parts = [_steps(part) for part in parts]
    time, length, table = (
        np.concatenate([each[number] for each in steps_of_parts]) for number in range(3)
    )
    # Clocks are set back now and then between two watchers.
    order = np.argsort(time, kind="stable")
    order = order[(time[order] > start) & (time[order] - length[order] < end)]
    time, length, table = time[order], length[order], table[order]
    if not time.size:
        return Series.nothing(names_of(layout))
    begins = time - length
    begins[1:] = np.maximum(begins[1:], time[:-1])
    hole = np.flatnonzero(begins[1:] - time[:-1] > 1e-3) + 1
    ends = np.insert(time, hole, begins[hole])
    table = np.insert(table, hole, np.nan, axis=0)
    steps = np.diff(np.concatenate([begins[:1], ends]))
    kept = steps > 0
    return _series(ends[kept], steps[kept], table[kept], layout)


def summed(parts: list[Series], layout: Layout) -> Series:
    """Return the series of a job that runs on several hosts: what it used on all of them.

    Before a host first saw it and after the last time it did, the job used nothing there. In a
    hole in between nobody knows, and the sum is unknown, too.

    Args:
        parts: A series for each host.
        layout: Which columns are kept.
    """
    parts = [part for part in parts if len(part)]
    if not parts:
        return Series.nothing(names_of(layout))
    if len(parts) == 1:
        return parts[0]
    edges = np.unique(np.concatenate([np.append(part.starts, part.times[-1]) for part in parts]))
    # Rounding must not make steps of its own.
    edges = edges[np.append(np.diff(edges) > 1e-3, True)]
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


def _steps(points: Points) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Return when steps ended, how long they were, and what was used and held in them."""
    length = points.time - points.since
    # A look that comes at once has no step of its own: what it counted goes to the next.
    real = length > 0
    used = np.diff(np.vstack([points.base, points.counters[real]]), axis=0)
    return points.time[real], length[real], np.hstack([used, points.gauges[real]])


def _series(ends: FloatArray, steps: FloatArray, table: FloatArray, layout: Layout) -> Series:
    columns = {name: table[:, place] for place, name in enumerate(layout.names)}
    for counter, rate in _RATES[layout.number].items():
        columns[rate] = columns[counter] / steps
    return Series(
        times=ends, step_s=steps, columns={name: columns[name] for name in names_of(layout)}
    )
