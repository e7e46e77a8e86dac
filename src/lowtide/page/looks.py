"""One look for all charts: colours, axes, fonts; and the charts that more than one of us draw.

Times are shown in UTC. Every chart of a synthetic signal says so in its title.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from lowtide import files
from lowtide.accounting import power_steps
from lowtide.errors import InvalidInput, MissingExtra
from lowtide.page.page import Figure, Row
from lowtide.profile import PowerProfile
from lowtide.schedule import SPAN_KINDS, Schedule
from lowtide.signal import Signal
from lowtide.steps import Steps
from lowtide.units import format_duration, format_iso, format_time

try:
    import altair
except ImportError:  # pragma: no cover - needs an environment without the extra
    raise MissingExtra("drawing figures", extra="figures") from None

if TYPE_CHECKING:
    from lowtide.policies.tradeoff import Tradeoff

    Chart = altair.Chart | altair.LayerChart | altair.VConcatChart

#: Who imports it from here is told how to get it.
alt = altair

IMAGE_SUFFIXES = (".png", ".svg")
WIDTH = 680

# Colours that stay apart for colour-blind readers, on white and on black (after Okabe and Ito).
BLUE, RED, GREEN, PINK, YELLOW = "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00"
PALETTE = (BLUE, RED, GREEN, PINK, YELLOW, "#56B4E9", "#8F5BD1", "#8C6D31", "#6A8F00", "#D0312D")
NEUTRAL = "#8A8A8A"
PALE = "#BBBBBB"
# What is written and ruled; on a page it takes the colour of its words, which page.css knows it by.
INK = "#1b1f23"
#: What a job does, and the signal it does it under.
KINDS = dict(zip(SPAN_KINDS, (YELLOW, "#8C6D31", BLUE, RED, PINK, PALE), strict=True))
CURVE = GREEN

# What every axis of times is called: layers whose axes have one name share it.
_TIME = "time (UTC)"
# Axes of seven marks that span less than this have some within one minute.
_SHORT_S = 600.0
# The renderer's numbers of clips and gradients.
_CLIP = re.compile(r'((?:id="|url\(#)(?:clip|gradient_))(\d+)')


def dressed(chart: Any) -> Any:
    """Return a chart with the looks that all share."""
    words = {"labelFontSize": 12, "titleFontSize": 12, "titleFontWeight": "normal"}
    return (
        chart.configure_view(stroke=None)
        .configure_axis(**words, labelLimit=260, gridOpacity=0.5)
        .configure_axisQuantitative(tickCount=8)
        .configure_header(**words)
        .configure_legend(**words, orient="top", columns=5, labelLimit=320, symbolOpacity=1)
        .configure_title(anchor="start", fontSize=14, subtitleFontSize=12, offset=10)
        .configure_text(color=INK)
    )


def make_figure(
    name: str, chart: Any, rows: Sequence[Row] = (), *, caption: str = "", **others: Sequence[Row]
) -> Figure:
    """Return a chart as a figure of a page.

    Args:
        chart: The chart; it holds its data, or names them.
        rows: What it is drawn from, called `rows` in the chart.
        others: What else it is drawn from, by name.
    """
    tables = {"rows": rows, **others} if rows else {}
    # Altair copies data at every turn: they are laid beside the chart once it is done.
    document = dressed(chart).to_dict(validate=False)
    # What a chart brings of its own, such as where 0 is, stays with it.
    document["datasets"] = {**document.get("datasets", {}), **tables}
    return Figure(name=name, document=document, tables=tables, caption=caption)


def draw(document: dict[str, Any]) -> tuple[str, bytes]:
    """Return a chart as SVG and as PNG."""
    import vl_convert

    drawing: str = vl_convert.vegalite_to_svg(document)
    # The renderer counts clips on from chart to chart; counted anew, the same chart is the same.
    numbers: dict[str, int] = {}
    drawing = _CLIP.sub(
        lambda found: f"{found[1]}{numbers.setdefault(found[2], len(numbers) + 1)}", drawing
    )
    # From the drawing rather than anew from the chart, which takes twice as long.
    return drawing, vl_convert.svg_to_png(drawing, scale=2)


def save_images(folder: Path, figure: Figure) -> list[Path]:
    """Write a figure as PNG and SVG, and return the files."""
    svg, png = draw(figure.document)
    written = [folder / f"{figure.name}{suffix}" for suffix in IMAGE_SUFFIXES]
    files.write_whole(written[0], png)
    files.write_whole(written[1], svg)
    return written


def save_image(chart: Chart, path: Path | str) -> None:
    """Write a chart as PNG or SVG, by the file's name."""
    path = Path(path)
    if path.suffix not in IMAGE_SUFFIXES:
        raise InvalidInput(f"a figure is a .png or .svg file, not {path.name!r}")
    svg, png = draw(make_figure(path.stem, chart).document)
    files.write_whole(path, png if path.suffix == ".png" else svg)


def inline(rows: Sequence[Row]) -> Any:
    """Return rows as the data of a chart that holds them itself."""
    return alt.InlineData(values=list(rows))


def stamped(times: Any, values: Any, name: str = "value") -> list[dict[str, Any]]:
    """Return a stepped curve as rows: times in milliseconds, as charts count them, and values.

    Args:
        times: Epoch seconds; where there is one more than values, the last value holds to its end.
        values: What holds from each time on.
    """
    times, values = np.asarray(times).tolist(), list(values)
    values += values[-1:] * (len(times) - len(values))
    return [{"time": 1000 * time, name: value} for time, value in zip(times, values, strict=True)]


def time_axis(
    field: str,
    *,
    labels: bool = True,
    span_s: float = math.inf,
    within: tuple[float, float] | None = None,
    days: bool = False,
) -> Any:
    """Return an axis of times in UTC.

    Args:
        field: What holds them, in milliseconds or as texts.
        labels: Whether to write the times; of charts above each other the last will do.
        span_s: How much time it spans: where marks are less than a minute apart, seconds tell them
            apart, not days.
        within: Where it begins and ends, epoch seconds; where its data do unless told.
        days: Whether to tell days alone.
    """
    form = "%d %b" if days else "%a %d %b %H:%M" if span_s > _SHORT_S else "%H:%M:%S"
    bounds: Any = {} if within is None else {"domain": [1000 * each for each in within]}
    return alt.X(
        f"{field}:T",
        title=_TIME if labels else None,
        scale=alt.Scale(type="utc", **bounds),
        axis=alt.Axis(
            format=form,
            labelAngle=0,
            tickCount=7,
            labelOverlap=True,
            labelSeparation=8,
            labels=alt.Undefined if labels else False,
        ),
    )


def moment(field: str, title: str = "from (UTC)") -> Any:
    """Return a time as it is shown under the pointer."""
    return alt.Tooltip(f"{field}:T", format="%a %d %b %H:%M", title=title)


def tooltip(rows: Sequence[Row], names: Sequence[str] | None = None) -> list[Any]:
    """Return what is shown under the pointer.

    Args:
        names: Which of its columns; all of them unless told.
    """
    shown = names if names is not None else list(rows[0]) if rows else []
    return [
        alt.Tooltip(f"{name}:Q", format=".4~g")
        if any(isinstance(row[name], float) for row in rows)
        else alt.Tooltip(f"{name}:N")
        for name in shown
    ]


def zero_line(axis: Any, title: str) -> Any:
    """Return a dashed line at 0.

    Args:
        axis: `alt.X` or `alt.Y`.
        title: What the axis is called that it lies on.
    """
    rule = alt.Chart(inline([{"zero": 0}])).mark_rule(strokeDash=[5, 4], color=NEUTRAL)
    return rule.encode(axis("zero:Q", title=title))


def two_colours(field: str, names: Sequence[str]) -> Any:
    """Return the colours of what was published and what is set beside it."""
    return alt.Color(
        f"{field}:N", title=field, scale=alt.Scale(domain=list(names), range=[RED, BLUE])
    )


def stepped_curve(data: Any, unit: str, *, x: Any, height: int, title: Any = None) -> Any:
    """Draw a signal as a stepped curve over rows of `time` and `value`."""
    base = alt.Chart(data, width=WIDTH, height=height).encode(
        x=x,
        y=alt.Y("value:Q", title=unit, axis=alt.Axis(tickCount=4)),
        tooltip=[moment("time"), alt.Tooltip("value:Q", format=".1f", title=unit)],
    )
    base = base if title is None else base.properties(title=title)
    area = base.mark_area(interpolate="step-after", color=CURVE, opacity=0.18, clip=True)
    line = base.mark_line(interpolate="step-after", color=CURVE, strokeWidth=1.5, clip=True)
    return alt.LayerChart(layer=[area, line])


def span_colour(
    kinds: Sequence[str], others: Mapping[str, str] | None = None, *, channel: Any = alt.Color
) -> Any:
    """Return the colour of what a job does, the legend below.

    Args:
        kinds: What it does, of `SPAN_KINDS`.
        others: What else is shown, with its colour.
    """
    shades = {**{kind: KINDS[kind] for kind in kinds}, **(others or {})}
    return channel(
        "kind:N",
        title=None,
        scale=alt.Scale(domain=list(shades), range=list(shades.values())),
        legend=alt.Legend(orient="bottom") if channel is alt.Color else None,
    )


def signal_chart(signal: Signal, *, height: int = 220) -> alt.LayerChart:
    """Draw a signal as a stepped curve."""
    rows = inline(stamped(signal.edges, signal.values.tolist()))
    chart: alt.LayerChart = stepped_curve(
        rows, signal.unit, x=time_axis("time"), height=height, title=_heading(signal)
    )
    return chart


def schedules_chart(
    signal: Signal, schedules: Mapping[str, Schedule], *, deadline: float
) -> alt.VConcatChart:
    """Draw schedules as bars under the signal they were planned on.

    Args:
        signal: Carbon intensity or price, cut to what shall be seen.
        schedules: What a job does when, by the name to put beside it.
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
        alt.Chart(inline(rows), width=WIDTH, height=30 * len(schedules))
        .mark_bar(height=16)
        .encode(
            x=time_axis("start"),
            x2="end:T",
            y=alt.Y("policy:N", sort=list(schedules), title=None),
            color=span_colour(used),
            opacity=alt.condition("datum.kind == 'suspended'", alt.value(0.35), alt.value(1.0)),
            tooltip=["policy:N", "kind:N", moment("start"), "for:N"],
        )
    )
    due = (
        alt.Chart(inline([{"at": 1000 * deadline, "what": "deadline"}]))
        .mark_rule(strokeDash=[4, 3], color=INK)
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
    chart: alt.Chart = (
        alt.Chart(
            inline(stamped(times, power_w.tolist(), "power")),
            width=WIDTH,
            height=160,
            title=f"Power of the job under policy {name}, from {format_time(schedule.start)}"
            + (" (planned on a synthetic grid)" if synthetic else ""),
        )
        .mark_area(interpolate="step-after", color=KINDS["work"], opacity=0.75)
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
    base = alt.Chart(inline(rows), width=WIDTH, height=260, title=title).encode(
        x=time_axis("finish"),
        y=alt.Y("least:Q", title=f"{what}, {unit}"),
        tooltip=[
            moment("finish", "done by (UTC)"),
            alt.Tooltip("least:Q", format=".4g", title=unit),
            alt.Tooltip("saving:Q", format=".1%"),
        ],
    )
    # What is decided in continuous time falls in between; on steps it holds up to the next.
    way: Any = {} if every.step_s is None else {"interpolate": "step-after"}
    line = base.mark_line(color=BLUE, **way)
    knee = alt.Chart(inline([rows[every.knee]])).encode(
        x=alt.X("finish:T", title=_TIME), y=alt.Y("least:Q", title=f"{what}, {unit}")
    )
    point = knee.mark_point(size=90, filled=True, color=RED)
    return alt.LayerChart(layer=[line, point])


def _coarser(times: Any, power_w: Any, count: int) -> tuple[Any, Any]:
    """Average a long stepped curve over equal bins; energy stays the same."""
    edges = np.linspace(times[0], times[-1], count + 1)
    mean_w = Steps(times=times, values=power_w).mean(edges)
    return edges, np.append(mean_w, 0.0)


def _heading(signal: Signal) -> str:
    """Return what a signal is, where, and from when to when."""
    where = "" if signal.zone else ", zone not named"
    first, last = format_iso(signal.start)[:10], format_iso(signal.end)[:10]
    return f"{signal.label[:1].upper()}{signal.label[1:]}{where}, {first} to {last}"
