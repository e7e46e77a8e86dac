"""Charts: the signal, schedules over it, and what a schedule draws.

Times are shown in UTC. Every chart of a synthetic signal says so in its title.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from lowtide import files
from lowtide.accounting import power_steps
from lowtide.errors import InvalidInput, MissingExtra
from lowtide.profile import PowerProfile
from lowtide.schedule import SPAN_KINDS, Schedule
from lowtide.signal import Signal
from lowtide.units import format_duration, format_iso, format_time

try:
    import altair as alt
except ImportError:  # pragma: no cover - needs an environment without the extra
    raise MissingExtra("drawing figures", extra="figures") from None

if TYPE_CHECKING:
    from lowtide.policies.tradeoff import Tradeoff

    Chart = alt.Chart | alt.LayerChart | alt.VConcatChart


IMAGE_SUFFIXES = (".png", ".svg")

_WIDTH = 760
# Colours that stay apart in print and for colour-blind readers (Okabe and Ito).
_COLOURS = {
    "startup": "#E69F00",
    "work": "#0072B2",
    "lost": "#D55E00",
    "stop": "#CC79A7",
    "suspended": "#BBBBBB",
}
_CURVE = "#009E73"
# What every axis of times is called: layers whose axes have one name share it.
_TIME = "time (UTC)"
# Axes of seven marks that span less than this have some within one minute.
_SHORT_S = 600.0


def signal_chart(signal: Signal, *, height: int = 220) -> alt.LayerChart:
    """Draw a signal as a stepped curve."""
    rows = [
        {"time": 1000 * begin, "value": value}
        for begin, value in zip(
            signal.edges.tolist(), [*signal.values.tolist(), float(signal.values[-1])], strict=True
        )
    ]
    base = alt.Chart(_data(rows), width=_WIDTH, height=height, title=_heading(signal)).encode(
        x=time_axis("time"),
        y=alt.Y("value:Q", title=signal.unit),
        tooltip=[
            alt.Tooltip("time:T", format="%a %d %b %H:%M", title="from (UTC)"),
            alt.Tooltip("value:Q", format=".1f", title=signal.unit),
        ],
    )
    area = base.mark_area(interpolate="step-after", color=_CURVE, opacity=0.18)
    line = base.mark_line(interpolate="step-after", color=_CURVE, strokeWidth=1.5)
    return alt.LayerChart(layer=[area, line])


def schedules_chart(
    signal: Signal, schedules: Mapping[str, Schedule], *, deadline: float
) -> alt.VConcatChart:
    """Draw schedules as bars under the signal they were planned on.

    Args:
        signal: Carbon intensity or price, cut to what shall be seen.
        schedules: What a job does when, by the name to put beside it.
        deadline: When the job must be done.
    """
    rows = [
        {
            "policy": name,
            "kind": span.kind,
            "start": 1000 * span.start,
            "end": 1000 * span.end,
            "for": format_duration(span.duration_s),
        }
        for name, schedule in schedules.items()
        for span in schedule.spans
    ]
    used = [kind for kind in SPAN_KINDS if any(row["kind"] == kind for row in rows)]
    bars = (
        alt.Chart(_data(rows), width=_WIDTH, height=30 * len(schedules))
        .mark_bar(height=16)
        .encode(
            x=time_axis("start"),
            x2="end:T",
            y=alt.Y("policy:N", sort=list(schedules), title=None),
            color=alt.Color(
                "kind:N",
                title=None,
                scale=alt.Scale(domain=used, range=[_COLOURS[kind] for kind in used]),
                legend=alt.Legend(orient="bottom"),
            ),
            opacity=alt.condition("datum.kind == 'suspended'", alt.value(0.35), alt.value(1.0)),
            tooltip=[
                alt.Tooltip("policy:N"),
                alt.Tooltip("kind:N"),
                alt.Tooltip("start:T", format="%a %d %b %H:%M", title="from (UTC)"),
                alt.Tooltip("for:N"),
            ],
        )
    )
    due = (
        alt.Chart(_data([{"at": 1000 * deadline, "what": "deadline"}]))
        .mark_rule(strokeDash=[4, 3], color="#444444")
        .encode(x=alt.X("at:T", title=_TIME), tooltip=["what:N"])
    )
    return alt.vconcat(
        alt.LayerChart(layer=[signal_chart(signal), due]),
        alt.LayerChart(layer=[bars, due]),
        spacing=8,
        resolve=alt.Resolve(scale=alt.ScaleResolveMap(x="shared")),
    )


def power_chart(
    schedule: Schedule, profile: PowerProfile, *, name: str, synthetic: bool
) -> alt.Chart:
    """Draw what a schedule draws over time."""
    times, power_w = power_steps(schedule, profile)
    if times.size > 4000:
        times, power_w = _coarser(times, power_w, 2000)
    rows = [
        {"time": 1000 * time, "power": power}
        for time, power in zip(times.tolist(), power_w.tolist(), strict=True)
    ]
    chart: alt.Chart = (
        alt.Chart(
            _data(rows),
            width=_WIDTH,
            height=160,
            title=f"Power of the job under policy {name}, from {format_time(schedule.start)}"
            + (" (planned on a synthetic grid)" if synthetic else ""),
        )
        .mark_area(interpolate="step-after", color=_COLOURS["work"], opacity=0.75)
        .encode(x=time_axis("time"), y=alt.Y("power:Q", title="power, W"))
    )
    return chart


def tradeoff_chart(every: Tradeoff, *, unit: str, what: str, of: str = "") -> alt.LayerChart:
    """Draw the least that a job can come to by each finish time, the knee marked.

    Args:
        what: What they are of, such as `CO2e`.
    """
    rows = [
        {"finish": 1000 * finish, "least": least, "saving": saving}
        for finish, least, saving in zip(
            every.finish.tolist(), every.amount.tolist(), every.saving.tolist(), strict=True
        )
    ]
    title = f"Least {what} of the job, by when it is done" + (f": {of}" if of else "")
    title += " (synthetic grid)" if every.synthetic and "synthetic" not in of else ""
    base = alt.Chart(_data(rows), width=_WIDTH, height=260, title=title).encode(
        x=time_axis("finish"),
        y=alt.Y("least:Q", title=f"{what}, {unit}"),
        tooltip=[
            alt.Tooltip("finish:T", format="%a %d %b %H:%M", title="done by (UTC)"),
            alt.Tooltip("least:Q", format=".4g", title=unit),
            alt.Tooltip("saving:Q", format=".1%"),
        ],
    )
    stepped = base.mark_line(interpolate="step-after", color=_COLOURS["work"])
    straight = base.mark_line(color=_COLOURS["work"])
    line = straight if every.step_s is None else stepped
    knee = alt.Chart(_data([rows[every.knee]])).encode(
        x=alt.X("finish:T", title=_TIME), y=alt.Y("least:Q", title=f"{what}, {unit}")
    )
    point = knee.mark_point(size=90, filled=True, color=_COLOURS["lost"])
    return alt.LayerChart(layer=[line, point])


def save_image(chart: Chart, path: Path | str) -> None:
    """Write a chart as PNG or SVG, by the file's name.

    Args:
        path: A file ending in `.png` or `.svg`.
    """
    path = Path(path)
    if path.suffix not in IMAGE_SUFFIXES:
        raise InvalidInput(f"a figure is a .png or .svg file, not {path.name!r}")
    import vl_convert

    document = chart.to_json()
    if path.suffix == ".png":
        files.write_whole(path, vl_convert.vegalite_to_png(document, scale=2))
    else:
        files.write_whole(path, vl_convert.vegalite_to_svg(document))


def _data(rows: list[dict[str, Any]]) -> Any:
    return alt.InlineData(values=rows)


def time_axis(field: str, *, labels: bool = True, span_s: float = math.inf) -> Any:
    """Return an axis of times in UTC.

    Args:
        field: What holds them, in milliseconds.
        labels: Whether to write the times; of charts above each other the last will do.
        span_s: How much time it spans: where marks are less than a minute apart, seconds tell them
            apart, not days.
    """
    return alt.X(
        f"{field}:T",
        title=_TIME if labels else None,
        scale=alt.Scale(type="utc"),
        axis=alt.Axis(
            format="%a %d %b %H:%M" if span_s > _SHORT_S else "%H:%M:%S",
            labelAngle=0,
            tickCount=7,
            labelOverlap=True,
            labels=alt.Undefined if labels else False,
        ),
    )


def _coarser(times: Any, power_w: Any, count: int) -> tuple[Any, Any]:
    """Average a long stepped curve over equal bins; energy stays the same."""
    energy_j = np.concatenate(([0.0], np.cumsum(power_w[:-1] * np.diff(times))))
    edges = np.linspace(times[0], times[-1], count + 1)
    mean_w = np.diff(np.interp(edges, times, energy_j)) / np.diff(edges)
    return edges, np.append(mean_w, 0.0)


def _heading(signal: Signal) -> str:
    """Return what a signal is, where, and from when to when."""
    where = "" if signal.zone else ", zone not named"
    first, last = format_iso(signal.start)[:10], format_iso(signal.end)[:10]
    return f"{_capital(signal.label)}{where}, {first} to {last}"


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]
