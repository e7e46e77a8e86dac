"""How figures look on pages: marks for how sure they are, and curves drawn on the server.

A curve is a path in a box of fixed size, so that a page needs neither a script nor a style of its
own to show it; beside each stands a small table of the same.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from lowtide.certainty import is_estimated, lacks_grams, marked, tells_of_model
from lowtide.hindsight import Hindsight
from lowtide.monitor.snapshot import FloatArray
from lowtide.profile import PowerProfile
from lowtide.schedule import Schedule
from lowtide.serve.api import thinned
from lowtide.signal import Signal
from lowtide.store.records import JobRecord, Series
from lowtide.units import MISSING, format_duration, format_energy, format_mass, format_number

# How a course is drawn: so many points, in a box of this size.
_POINTS = 300
WIDE, HIGH = 720.0, 160.0
_ROW = 22.0
JOB_PANELS = (
    ("power_w", "Power", "W"),
    ("cpus_busy", "Cores busy", ""),
    ("memory_bytes", "Memory", "B"),
    ("gpus_busy", "GPUs busy", ""),
)
NODE_PANELS = (
    ("power_w", "Power", "W"),
    ("idle_w", "Idle", "W"),
    ("intensity_g_per_kwh", "Grid", "g/kWh"),
    ("jobs", "Jobs", ""),
)


def known(value: float | None) -> float | None:
    """Return a number, None where it is not known."""
    return None if value is None or math.isnan(value) else value


def sum_of_known(values: Iterable[float | None]) -> float | None:
    """Return the sum of what is known; None where nothing is."""
    found = [value for value in values if value is not None and not math.isnan(value)]
    return sum(found) if found else None


def energy_text(record: JobRecord) -> str:
    """Return a job's energy, marked by how sure it is."""
    return _marked(record, format_energy(known(record.energy_j)), record.unmetered_s > 0)


def mass_text(record: JobRecord) -> str:
    """Return a job's emissions, marked by how sure they are."""
    lacking = lacks_grams(record.energy_j, record.unmetered_s, record.unpriced_j)
    return _marked(record, format_mass(known(record.carbon_g)), lacking)


def summed_energy(sums: Mapping[str, Any]) -> str:
    """Return the energy of many jobs, marked by how sure it is."""
    return _mark_sum(sums, format_energy(sums["energy_j"]), bool(sums["without_energy"]))


def summed_mass(sums: Mapping[str, Any]) -> str:
    """Return what many jobs emitted, marked by how sure it is."""
    unpriced = lacks_grams(sums["energy_j"] or 0.0, 0.0, sums["unpriced_j"] or 0.0)
    return _mark_sum(sums, format_mass(sums["carbon_g"]), bool(sums["without_carbon"]) or unpriced)


def guessed(text: str) -> str:
    """Return a figure that is an estimate, marked as one."""
    return marked(text, estimated=True, partial=False)


def _mark_sum(sums: Mapping[str, Any], text: str, lacking: bool) -> str:
    estimated = is_estimated(sums["energy_j"] or 0.0, sums["measured_j"] or 0.0)
    # Of an account that they do not lead people may be told a part of the sum.
    lacking = lacking or (sums["unmetered_s"] or 0.0) > 0 or bool(sums.get("partial"))
    return marked(text, estimated=estimated, partial=lacking)


def _marked(record: JobRecord, text: str, lacking: bool) -> str:
    return marked(text, estimated=tells_of_model(record.power), partial=lacking)


def coverage(record: JobRecord) -> list[tuple[str, float]]:
    """Return which share of a job's time was watched and metered, and of its energy was priced."""
    elapsed, energy = record.elapsed_s, record.energy_j
    found = [
        ("watched", record.seen_s / elapsed if elapsed > 0 else math.nan),
        ("metered", 1 - record.unmetered_s / elapsed if elapsed > 0 else math.nan),
        ("priced", 1 - record.unpriced_j / energy if energy > 0 else math.nan),
    ]
    return [(name, min(max(share, 0.0), 1.0)) for name, share in found if not math.isnan(share)]


def panels(series: Series, wanted: Sequence[tuple[str, str, str]]) -> list[dict[str, Any]]:
    """Return curves to be drawn: what each is called, its line, its most, and a small table."""
    if len(series) < 2:
        return []
    if len(series) > _POINTS:
        series = thinned(series, _POINTS)
    first, last = float(series.starts[0]), float(series.times[-1])
    drawn = []
    for name, title, unit in wanted:
        column = series.columns.get(name)
        if column is None or not np.isfinite(column).any() or not np.nanmax(column) > 0:
            continue
        most = float(np.nanmax(column))
        parts = [part for part in np.array_split(np.arange(len(column)), 8) if part.size]
        drawn.append(
            {
                "name": name,
                "title": title,
                "unit": unit,
                "line": _line(series.starts, series.times, column, first, last, most),
                "most": most,
                "begins": first,
                "ends": last,
                "rows": [
                    (float(series.starts[part[0]]), _mean(column[part], series.step_s[part]))
                    for part in parts
                ],
                "phases": "",
                "grid": "",
            }
        )
    return drawn


def job_panels(told: Hindsight) -> list[dict[str, Any]]:
    """Return the curves of a job: over its power lie its phases, behind it the grid."""
    drawn = panels(told.series, JOB_PANELS)
    for each in drawn:
        if each["name"] != "power_w":
            continue
        first, last = each["begins"], each["ends"]
        if told.phases is not None:
            edges, watts = _phases(told.phases.profile, told.begin, last)
            each["phases"] = _line(edges[:-1], edges[1:], watts, first, last, each["most"])
        if told.signal is not None and told.signal.covers(first, min(last, told.signal.end)):
            each["grid"], each["grid_least"], each["grid_most"] = _area(told.signal, first, last)
    return drawn


def plan_figure(told: Hindsight) -> dict[str, Any] | None:
    """Return what happened beside the cleanest plans, over the grid; None where nothing is."""
    if not told.waiting or told.signal is None or told.phases is None:
        return None
    run_s = told.phases.profile.run_s
    first = told.arrival
    last = first + run_s + told.waiting[-1].wait_s
    rows = [("as it ran", [(first, first + run_s)])]
    rows += [
        (f"may wait {format_duration(each.wait_s)}", _runs(each.plan.schedule))
        for each in told.waiting
    ]
    grid, least, most = _area(told.signal, first, last, high=100.0)
    return {
        "grid": grid, "grid_least": least, "grid_most": most, "begins": first, "ends": last,
        "high": 100.0 + _ROW * len(rows),
        "bars": [
            {"label": label, "y": 104.0 + _ROW * place,
             "spans": [(_x(begin, first, last), max(_x(first + end - begin, first, last), 1.0))
                       for begin, end in spans]}
            for place, (label, spans) in enumerate(rows)
        ],
    }  # fmt: skip


def falling_line(times: FloatArray, values: FloatArray) -> dict[str, Any]:
    """Return a curve of points that are joined, such as what waiting longer comes to."""
    first, last, most = float(times[0]), float(times[-1]), float(values.max()) or 1.0
    span = last - first or 1.0
    points = [
        f"{WIDE * (float(at) - first) / span:.1f},{_y(float(value), most):.1f}"
        for at, value in zip(times, values, strict=True)
    ]
    return {"line": "M" + " L".join(points), "most": most, "begins": first, "ends": last}


def _runs(schedule: Schedule) -> list[tuple[float, float]]:
    return [(each.start, each.end) for each in schedule.spans if each.kind != "suspended"]


def _phases(profile: PowerProfile, begin: float, end: float) -> tuple[FloatArray, FloatArray]:
    phases = (*profile.startup, *profile.work)
    edges = begin + np.cumsum([0.0, *(phase.duration_s for phase in phases)])
    return np.minimum(edges, end), np.array([phase.power_w for phase in phases])


def _area(
    signal: Signal, first: float, last: float, *, high: float = HIGH
) -> tuple[str, float, float]:
    """Return the grid's curve as an area, and the least and the most of it."""
    window = signal.window(first, min(last, signal.end))
    edges, values = window.edges, window.values
    most = float(values.max()) or 1.0
    points = []
    for begin, end, value in zip(edges[:-1], edges[1:], values, strict=True):
        y = _y(float(value), most, high)
        points += [f"{_x(begin, first, last):.1f},{y:.1f}", f"{_x(end, first, last):.1f},{y:.1f}"]
    line = f"M0,{high:g} L{' L'.join(points)} L{_x(edges[-1], first, last):.1f},{high:g} Z"
    return line, float(values.min()), most


def _line(
    starts: FloatArray, ends: FloatArray, values: FloatArray, first: float, last: float, most: float
) -> str:
    pieces, pen = [], "M"
    for begin, end, value in zip(starts, ends, values, strict=True):
        if np.isnan(value):
            pen = "M"
            continue
        for moment in (begin, end):
            pieces.append(f"{pen}{_x(moment, first, last):.1f},{_y(float(value), most):.1f}")
            pen = "L"
    return " ".join(pieces)


def _x(moment: float, first: float, last: float) -> float:
    return float(WIDE * (moment - first) / (last - first)) if last > first else 0.0


def _y(value: float, most: float, high: float = HIGH) -> float:
    return high - (high - 4) * min(max(value / most, 0.0), 1.0)


def _mean(values: FloatArray, weights: FloatArray) -> float:
    there = ~np.isnan(values)
    if not there.any():
        return math.nan
    return float((values[there] * weights[there]).sum() / weights[there].sum())


def percent_change(before: float, after: float) -> str:
    """Return by how much something has changed, in percent; `---` where that is not known.

    >>> percent_change(200.0, 150.0), percent_change(0.0, 1.0)
    ('-25 %', '---')
    """
    if not before > 0 or math.isnan(after):
        return MISSING
    return f"{format_number(100 * (after / before - 1), digits=3)} %"
