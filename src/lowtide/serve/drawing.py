"""How figures look on pages: marks for how sure they are, and curves drawn on the server.

A curve is a path in a box of fixed size, so that a page needs neither a script nor a style of its
own to show it; its scales are text beside the box, and a table of the same stands below.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import numpy as np

from lowtide.certainty import is_estimated, lacks_grams, marked, tells_of_model
from lowtide.hindsight import Hindsight
from lowtide.monitor.snapshot import FloatArray
from lowtide.profile import PowerProfile
from lowtide.schedule import Schedule
from lowtide.signal import Signal
from lowtide.store.records import JobRecord, Series, thinned
from lowtide.units import (
    ENERGIES,
    MASSES,
    MISSING,
    SIZES,
    format_alike,
    format_duration,
    format_energy,
    format_mass,
    format_number,
    format_time,
)

# How a course is drawn: so many points, in a box of this size.
POINTS = 300
WIDE, HIGH = 720.0, 160.0
# Of so many parts of it the mean is told, where a pointer rests and in the table.
_PARTS = 24
_DAY_S = 86400.0
# Where a scale may end, in powers of ten.
_ENDS = (1.0, 1.2, 1.5, 2.0, 2.5, 3.0, 4.0, 5.0, 6.0, 8.0, 10.0)
JOB_PANELS = (
    ("power_w", "Power", "W"),
    ("cpus_busy", "Cores busy", ""),
    ("memory_bytes", "Memory", "B"),
    ("gpus_busy", "GPUs busy", ""),
)
GRID_PANELS = (
    ("intensity_g_per_kwh", "Grid, average", "g/kWh"),
    ("marginal_g_per_kwh", "Grid, marginal", "g/kWh"),
)
NODE_PANELS = (
    ("power_w", "Power", "W"),
    ("idle_w", "Idle power", "W"),
    ("jobs", "Jobs", ""),
    *GRID_PANELS[:1],
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


def energy_texts(records: Sequence[JobRecord]) -> list[str]:
    """Return the energy of the jobs of a table, all in one unit."""
    texts = format_alike([known(each.energy_j) for each in records], ENERGIES)
    return [
        _marked(each, text, each.unmetered_s > 0) for each, text in zip(records, texts, strict=True)
    ]


def mass_texts(records: Sequence[JobRecord]) -> list[str]:
    """Return what the jobs of a table emitted, all in one unit."""
    texts = format_alike([known(each.carbon_g) for each in records], MASSES)
    return [
        _marked(each, text, lacks_grams(each.energy_j, each.unmetered_s, each.unpriced_j))
        for each, text in zip(records, texts, strict=True)
    ]


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
    """Return curves to be drawn: what each is called, its line, its scales, and a small table."""
    if len(series) < 2:
        return []
    if len(series) > POINTS:
        series = thinned(series, POINTS)
    first, last = float(series.starts[0]), float(series.times[-1])
    drawn = []
    for name, title, unit in wanted:
        column = series.columns.get(name)
        if column is None or not np.isfinite(column).any() or not np.nanmax(column) > 0:
            continue
        most = float(np.nanmax(column))
        top = _end_of_scale(most, unit)
        drawn.append(
            {
                "name": name,
                "title": title,
                "unit": unit,
                "line": _line(series.starts, series.times, column, first, last, top),
                "most": _with_unit(most, unit),
                "top": top,
                **_scales(top, unit, first, last),
                "rows": _parts(series, column, unit, first, last),
                "phases": "",
                "grid": "",
            }
        )
    return drawn


def _parts(
    series: Series, column: FloatArray, unit: str, first: float, last: float
) -> list[dict[str, Any]]:
    """Return the means of some parts of a course, and where each is in the box."""
    rows = []
    for part in np.array_split(np.arange(len(column)), _PARTS):
        if part.size:
            begins, ends = float(series.starts[part[0]]), float(series.times[part[-1]])
            x = _x(begins, first, last)
            rows.append(
                {
                    "when": f"{datetime.fromtimestamp(begins, UTC):%d %b %H:%M}",
                    "text": _with_unit(_mean(column[part], series.step_s[part]), unit),
                    "x": f"{x:.0f}",
                    "width": f"{_x(ends, first, last) - x:.0f}",
                }
            )
    return rows


def _end_of_scale(most: float, unit: str) -> float:
    """Return where the scale of a curve ends whose most is given.

    >>> _end_of_scale(122.1, "W"), _end_of_scale(3e9, "B") / 2**30
    (150.0, 3.0)
    """
    if not most > 0:
        return 1.0
    base = 1024.0 ** math.floor(math.log(most, 1024.0)) if unit == "B" else 1.0
    ten = 10.0 ** math.floor(math.log10(most / base))
    # A hundred percent by rounding is a hundred percent.
    least = most * (1 - 1e-9)
    return next((base * ten * end for end in _ENDS if base * ten * end >= least), 10 * base * ten)


def _scales(top: float, unit: str, first: float, last: float) -> dict[str, Any]:
    """Return what stands beside a box, from its top down, and below it, from left to right."""
    form = "%d %b %H:%M" if last - first < 5 * _DAY_S else "%d %b"
    moments = [datetime.fromtimestamp(each, UTC) for each in (first, (first + last) / 2, last)]
    return {
        "scale": [_with_unit(top, unit), _with_unit(top / 2, unit), "0"],
        "moments": [f"{each:{form}}" for each in moments],
        "begins": first,
        "ends": last,
    }


def _with_unit(value: float, unit: str) -> str:
    if math.isnan(value):
        return MISSING
    if unit == "B":
        return format_alike([value], SIZES)[0]
    return f"{format_number(value)} {unit}".rstrip()


def bars_by_day(rows: Iterable[Mapping[str, Any]], first: float, last: float) -> dict[str, Any]:
    """Return what jobs drew on each day between two moments, as bars to be drawn.

    Args:
        rows: Sums, each with its `day`.
    """
    drew = {float(row["day"]): row for row in rows}
    days = np.arange(first // _DAY_S, last // _DAY_S + 1) * _DAY_S
    joules = [(drew[day]["energy_j"] or 0.0) if day in drew else 0.0 for day in days.tolist()]
    top = _end_of_scale(max(joules) / 3.6e6, "kWh")
    width = WIDE / len(days)
    bars = []
    for place, (day, energy_j) in enumerate(zip(days.tolist(), joules, strict=True)):
        y = _y(energy_j / 3.6e6, top)
        text = summed_energy(drew[day]) if day in drew else "nothing"
        bars.append(
            {"x": f"{place * width + 1:.1f}", "width": f"{width - 2:.1f}", "y": f"{y:.1f}",
             "high": f"{HIGH - y:.1f}", "text": f"{datetime.fromtimestamp(day, UTC):%d %b}: {text}"}
        )  # fmt: skip
    return {"bars": bars, **_scales(top, "kWh", float(days[0]), float(days[-1]) + _DAY_S)}


def job_panels(told: Hindsight) -> list[dict[str, Any]]:
    """Return the curves of a job: over its power lie its phases, behind it the grid."""
    drawn = panels(told.series, JOB_PANELS)
    for each in drawn:
        if each["name"] != "power_w":
            continue
        first, last = each["begins"], each["ends"]
        if told.phases is not None:
            edges, watts = _phases(told.phases.profile, told.begin, last)
            each["phases"] = _line(edges[:-1], edges[1:], watts, first, last, each["top"])
        if told.signal is not None and told.signal.covers(first, min(last, told.signal.end)):
            each["grid"], each["grid_least"], each["grid_most"] = _area(told.signal, first, last)
    return drawn


def both_panel(first: Series, second: Series) -> dict[str, Any] | None:
    """Return the power of two jobs over the time since each began; None where one is not known."""
    lines, most, longest = [], 0.0, 0.0
    for series in (first, second):
        power_w = series.columns.get("power_w", np.empty(0))
        if len(series) < 2 or not np.isfinite(power_w).any():
            return None
        most = max(most, float(np.nanmax(power_w)))
        longest = max(longest, float(series.times[-1] - series.starts[0]))
    top = _end_of_scale(most, "W")
    for series in (first, second):
        part = thinned(series, POINTS) if len(series) > POINTS else series
        zero = float(part.starts[0])
        lines.append(
            _line(part.starts - zero, part.times - zero, part.columns["power_w"], 0.0, longest, top)
        )
    times = [format_duration(round(share * longest)) for share in (0.0, 0.5, 1.0)]
    return {"lines": lines, **_scales(top, "W", 0.0, longest), "moments": times}


def ahead_panel(grid: Signal) -> dict[str, Any]:
    """Return what the grid is expected to be as a curve to be drawn."""
    series = Series(
        times=grid.edges[1:], step_s=np.diff(grid.edges), columns={"expected": grid.values}
    )
    return panels(series, (("expected", "Expected", "g/kWh"),))[0]


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
    grid, least, most = _area(told.signal, first, last)
    scales = _scales(most, "g/kWh", first, last)
    return {
        "grid": grid, "grid_least": least, "grid_most": most, **scales,
        "bars": [
            {"label": label, "ran": not place,
             "text": "; ".join(f"{format_time(begin)} to {format_time(end)}"
                               for begin, end in spans),
             "spans": [(_x(begin, first, last), max(_x(first + end - begin, first, last), 1.0))
                       for begin, end in spans]}
            for place, (label, spans) in enumerate(rows)
        ],
    }  # fmt: skip


def falling_line(times: FloatArray, values: FloatArray) -> dict[str, Any]:
    """Return a curve of points that are joined: what waiting longer comes to, in percent."""
    first, last = float(times[0]), float(times[-1])
    top = _end_of_scale(float(values.max()), "%")
    points = [
        f"{_x(float(at), first, last):.1f},{_y(float(value), top):.1f}"
        for at, value in zip(times, values, strict=True)
    ]
    return {"line": "M" + " L".join(points), **_scales(top, "%", first, last)}


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
    pieces, pen = [], ""
    for begin, end, value in zip(starts, ends, values, strict=True):
        if np.isnan(value):
            pen = ""
            continue
        y = f"{_y(float(value), most):.1f}"
        if not pen:
            pieces.append(f"M{_x(begin, first, last):.1f},{y}")
        elif y != pen:
            # Across and up or down is all that a course of steps needs, at half the length.
            pieces.append(f"V{y}")
        pieces.append(f"H{_x(end, first, last):.1f}")
        pen = y
    return "".join(pieces)


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

    >>> percent_change(200.0, 150.0), percent_change(2.0, 3.0), percent_change(0.0, 1.0)
    ('-25 %', '+50 %', '---')
    """
    if not before > 0 or math.isnan(after):
        return MISSING
    change = 100 * (after / before - 1)
    return f"{'+' if change > 0 else ''}{format_number(change, digits=3)} %"
