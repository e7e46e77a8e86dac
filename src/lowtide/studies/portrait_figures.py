"""Figures of a trace: when jobs come, what they hold over time, how long and wide they are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from lowtide.page.looks import (
    BLUE,
    CURVE,
    INK,
    NEUTRAL,
    WIDTH,
    alt,
    inline,
    stamped,
    time_axis,
)
from lowtide.studies.portrait import (
    QUANTITIES,
    Portrait,
    PortraitClass,
    PortraitSlot,
    fields_of,
    zone_name,
)

_HEIGHT = 130
# Points of a curve over the whole of a trace, at most.
_MOST_POINTS = 2_000


def portrait_chart(portrait: Portrait) -> Any:
    """Return all figures of a trace below each other."""
    charts = portrait_charts(portrait).values()
    return alt.vconcat(*charts, spacing=18).resolve_scale(color="independent")


def portrait_charts(portrait: Portrait) -> Mapping[str, Any]:
    """Return the figures of a trace by name."""
    zone = f"hour ({zone_name(portrait.tz)})" if portrait.dated else "hour of the trace's day"
    charts = {
        "hours": _arrivals(portrait, portrait.hours, zone),
        "weekdays": _arrivals(portrait, portrait.weekdays, "weekday"),
    }
    if portrait.held is not None:
        charts["held"] = _held(portrait, portrait.held)
    return charts | {key: _sorted_by(key, kinds) for key, kinds in portrait.classes.items()}


def _arrivals(portrait: Portrait, slots: Sequence[PortraitSlot], name: str) -> Any:
    signal = portrait.signal
    # A curve that is of no real grid is called so.
    beside = "" if signal is None else f", beside {signal.label}"
    rows = inline([fields_of(slot) for slot in slots])
    base = alt.Chart(rows, width=WIDTH, height=_HEIGHT, title=f"Arrivals by {name}{beside}")
    x = alt.X("name:O", title=name, sort=None, axis=alt.Axis(labelAngle=0))
    jobs = base.mark_bar(color=BLUE, opacity=0.7).encode(
        x=x, y=alt.Y("jobs:Q", title="jobs"), tooltip=["name:N", "jobs:Q"]
    )
    if signal is None:
        return jobs
    rate = base.mark_line(color=CURVE, point=alt.OverlayMarkDef(color=CURVE)).encode(
        x=x, y=alt.Y("intensity:Q", title=signal.unit, scale=alt.Scale(zero=False))
    )
    return alt.layer(jobs, rate).resolve_scale(y="independent")


def _held(portrait: Portrait, held: Any) -> Any:
    """Draw the CPUs held over time, and below which line all that there are lie."""
    every = max(held.size // _MOST_POINTS, 1)
    means = [float(each.mean()) for each in np.split(held, range(every, held.size, every))]
    begins = portrait.edges[::every][: len(means)]
    x, rows = time_axis("time"), stamped(begins, means)
    if not portrait.dated:
        # Its times are of no calendar.
        x = alt.X("day:Q", title="days since the trace begins")
        days = (begins - begins[0]) / 86_400
        rows = [{"day": float(day), **row} for day, row in zip(days, rows, strict=True)]
    title, axis = "CPUs held over time", alt.Axis(tickCount=5)
    if portrait.cpus is not None:
        title += f"; the dashed line is all {portrait.cpus:g}"
    area = (
        alt.Chart(inline(rows), width=WIDTH, height=_HEIGHT, title=title)
        .mark_area(interpolate="step-after", color=BLUE, opacity=0.5)
        .encode(x=x, y=alt.Y("value:Q", title="CPUs", axis=axis))
    )
    if portrait.cpus is None:
        return area
    there = alt.Chart(inline([{"value": portrait.cpus}])).mark_rule(color=INK, strokeDash=[4, 3])
    return alt.layer(area, there.encode(y=alt.Y("value:Q", title="CPUs", axis=axis)))


def _sorted_by(key: str, kinds: Sequence[PortraitClass]) -> Any:
    """Draw how many jobs are of each class, and what they hold of all core-hours."""
    some = [number for number, each in enumerate(kinds) if each.jobs]
    both = {"of jobs": "share", "of core-hours": "core_share"}
    rows = [
        {"name": each.name, "of": of, "share": 100 * getattr(each, field)}
        for each in kinds[some[0] : some[-1] + 1]
        for of, field in both.items()
        if getattr(each, field) is not None
    ]
    name = QUANTITIES[key]
    base = alt.Chart(inline(rows), width=WIDTH, height=_HEIGHT)
    return (
        base.mark_bar(opacity=0.85)
        .encode(
            x=alt.X("name:N", title=None, sort=None, axis=alt.Axis(labelAngle=0)),
            xOffset=alt.XOffset("of:N", sort=list(both)),
            y=alt.Y("share:Q", title="%", axis=alt.Axis(tickCount=5)),
            color=alt.Color(
                "of:N", title=None, scale=alt.Scale(domain=list(both), range=[BLUE, NEUTRAL])
            ),
            tooltip=["name:N", "of:N", alt.Tooltip("share:Q", format=".1f")],
        )
        .properties(title=f"{name[:1].upper()}{name[1:]}: shares of jobs and of core-hours")
    )
