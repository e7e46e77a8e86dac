"""How the charts of a study look: colours, titles, sizes, and what a figure is made of."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import altair as alt

from lowtide.errors import MissingExtra
from lowtide.studies.analysis import (
    PRACTICAL_SHARE,
    PRACTICAL_WAIT_H,
    Comparison,
    Group,
    Point,
    Range,
    pareto,
    policy_mean,
)
from lowtide.studies.axes import Axis, Level, format_level
from lowtide.studies.statistics import Interval
from lowtide.studies.study import POLICY, Measure, Study, measure_in
from lowtide.studies.words import capital, difference_unit
from lowtide.units import format_iso

try:
    import altair as alt
except ImportError:  # pragma: no cover - needs an environment without the extra
    raise MissingExtra("drawing figures", extra="figures") from None

WIDTH = 680
# So many letters of a title fit above a chart.
_LINE = 90

# Colours that stay apart for colour-blind readers, on white and on black (after Okabe and Ito).
PALETTE = (
    "#0072B2",
    "#D55E00",
    "#009E73",
    "#CC79A7",
    "#E69F00",
    "#56B4E9",
    "#8F5BD1",
    "#8C6D31",
    "#6A8F00",
    "#D0312D",
)
NEUTRAL = "#8A8A8A"


# What charts call the rows they are drawn from.
ROWS = alt.NamedData(name="rows")

Row = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """A chart, what it shows and what it was drawn from.

    Attributes:
        name: What its files are called, without a suffix.
        document: The chart in the grammar of Vega-Lite.
        tables: What it was drawn from by name, `rows` first.
        caption: How to read it.
    """

    name: str
    document: dict[str, Any]
    tables: Mapping[str, Sequence[Row]]
    caption: str


def make_figure(
    name: str, chart: Any, rows: Sequence[Row], *, caption: str, **others: Sequence[Row]
) -> Figure:
    """Return a chart as a figure, with the looks that all figures of a study share.

    Args:
        chart: The chart; it names its data.
        rows: What it is drawn from, called `rows` in the chart.
        others: What else it is drawn from, by name.
    """
    looks = (
        chart.configure_view(stroke=None)
        .configure_axis(
            labelFontSize=12,
            titleFontSize=12,
            titleFontWeight="normal",
            labelLimit=260,
            gridOpacity=0.5,
        )
        .configure_axisQuantitative(tickCount=8)
        .configure_header(labelFontSize=12, titleFontSize=12, titleFontWeight="normal")
        .configure_legend(
            orient="top",
            columns=5,
            labelFontSize=12,
            titleFontSize=12,
            titleFontWeight="normal",
            labelLimit=320,
            symbolOpacity=1,
        )
        .configure_title(anchor="start", fontSize=14, subtitleFontSize=12, offset=10)
    )
    tables = {"rows": rows, **others}
    # Altair copies data at every turn: they are laid beside the chart once it is done.
    document = looks.to_dict(validate=False)
    # What a chart brings of its own, such as where 0 is, stays with it.
    document["datasets"] = {**document.get("datasets", {}), **tables}
    return Figure(name=name, document=document, tables=tables, caption=caption)


def layered(study: Study, layers: Sequence[Any], *, title: str, height: int, more: str = "") -> Any:
    """Return layers over the same rows as one chart.

    Args:
        more: What else stands below the title.
    """
    heading = titled(study, title, more)
    return alt.layer(*layers, data=ROWS).properties(width=WIDTH, height=height, title=heading)


def titled(study: Study, text: str, more: str = "") -> Any:
    """Return a title that says whether the grids are real, which they are, and from when.

    Args:
        more: What else stands below it.
    """
    below = [capital(study.grids)]
    for text_below in (capital(study.where), more):
        below += textwrap.wrap(text_below, _LINE)
    return alt.TitleParams(text=textwrap.wrap(capital(text), _LINE), subtitle=below)


def policy_color(
    study: Study,
    *,
    channel: Any = alt.Color,
    names: Sequence[str] | None = None,
    legend: bool = True,
) -> Any:
    """Return the colour of each policy, the same in every figure.

    Args:
        names: The policies that are shown; all of them unless told.
    """
    shown = [name for name in study.ranking if names is None or name in names]
    # A baseline that no run is of can be shown beside those that there are.
    shown += [name for name in names or () if name not in shown]
    others = [name for name in study.ranking if name != study.baseline]
    shades = [
        PALETTE[others.index(name) % len(PALETTE)] if name in others else NEUTRAL for name in shown
    ]
    return channel(
        f"{POLICY}:N",
        scale=alt.Scale(domain=shown, range=shades),
        legend=alt.Legend(title=None) if legend and len(shown) > 1 else None,
    )


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


# Numbers that span more than this factor are drawn on a logarithmic axis.
_WIDE = 25.0
# More cells than this have no room for a number in each.
_MOST_NUMBERS = 150
# What is told of a mean under the pointer.
_SHOWN = ("runs", "mean", "low", "high", "least", "most")


def frontier_figure(study: Study, points: Sequence[Point], by: Axis | None) -> Figure:
    """Draw the outcome against waiting, a point per group of runs, the front joined."""
    rows = [
        {
            POLICY: point.policy,
            **({} if by is None else {by.name: format_level(by, point.level)}),
            "runs": point.wait.count,
            "wait": point.wait.value,
            "wait low": point.wait.low,
            "wait high": point.wait.high,
            **_interval(point.outcome),
            "front": point.on_front,
        }
        for point in points
    ]
    x = alt.X("wait:Q", title="mean wait, h")
    y = alt.Y("mean:Q", title=_axis_title(study.outcome))
    base = alt.Chart().encode(color=policy_color(study))
    layers = [
        alt.Chart()
        .transform_filter("datum.front")
        .mark_line(color=NEUTRAL, strokeDash=[5, 4], strokeWidth=2, interpolate="step-after")
        .encode(x=x, y=y),
    ]
    # A field without a single number has no extent, which the renderer warns of.
    if _known(rows, "low"):
        layers.append(
            base.mark_rule(strokeWidth=1.5, opacity=0.55).encode(x=x, y="low:Q", y2="high:Q")
        )
    if _known(rows, "wait low"):
        layers.append(
            base.mark_rule(strokeWidth=1.5, opacity=0.55).encode(
                x="wait low:Q", x2="wait high:Q", y=y
            )
        )
    if by is not None:
        layers.append(base.mark_line(strokeWidth=1, opacity=0.5).encode(x=x, y=y))
    layers.append(
        base.mark_point(size=70, strokeWidth=2).encode(
            x=x,
            y=y,
            fill=policy_color(study, channel=alt.Fill),
            fillOpacity=alt.condition("datum.front", alt.value(1.0), alt.value(0.0)),
            tooltip=tooltip(rows),
        )
    )
    groups = f" and {by.name}" if by is not None else ""
    joined = f" Thin lines join the groups of a policy, by {by.name}." if by is not None else ""
    cross = (
        f"; its cross is the 95 % interval {study.chance.over}"
        if _known(rows, "low") or _known(rows, "wait low")
        else ""
    )
    better = "saves more" if study.outcome.key == "saving" else "does better"
    title = f"mean {study.outcome.name} of each policy against the mean wait of its jobs"
    return make_figure(
        "frontier",
        layered(study, layers, title=title, height=360),
        rows,
        caption=f"A point is the mean over runs of one policy{groups}{cross}. Filled points, "
        f"joined by dashes, are not beaten: nothing else waits less or {better} without being "
        f"worse in the other.{joined}",
    )


def tradeoffs_figure(study: Study) -> Figure | None:
    """Draw carbon, cost and waiting of each policy two by two; None where one is not known."""
    measures = [measure_in(study.runs, key) for key in ("mean_wait_s", "carbon_g", "cost")]
    means = {
        policy: [policy_mean(study, policy, measure) for measure in measures]
        for policy in study.ranking
    }
    known = {
        policy: [each.value for each in found if each is not None]
        for policy, found in means.items()
        if None not in found
    }
    if len(known) < 2:
        return None
    least = [max(abs(values[place]) for values in known.values()) for place in range(3)]
    front = pareto(
        [[-value for value in values] for values in known.values()],
        (PRACTICAL_WAIT_H, PRACTICAL_SHARE * least[1], PRACTICAL_SHARE * least[2]),
    )
    names = [measure.key for measure in measures]
    rows = [
        {POLICY: policy, **dict(zip(names, values, strict=True)), "front": unbeaten}
        for (policy, values), unbeaten in zip(known.items(), front, strict=True)
    ]
    parts = []
    for across, up in ((0, 1), (0, 2), (2, 1)):
        parts.append(
            alt.Chart(ROWS, width=WIDTH, height=170)
            .mark_point(size=80, strokeWidth=2)
            .encode(
                x=alt.X(
                    f"{names[across]}:Q",
                    title=_axis_title(measures[across]),
                    scale=alt.Scale(zero=False, padding=15),
                ),
                y=alt.Y(
                    f"{names[up]}:Q",
                    title=_axis_title(measures[up]),
                    scale=alt.Scale(zero=False, padding=15),
                    axis=alt.Axis(tickCount=4),
                ),
                color=policy_color(study, names=list(known)),
                fill=policy_color(study, channel=alt.Fill, names=list(known)),
                fillOpacity=alt.condition("datum.front", alt.value(1.0), alt.value(0.0)),
                tooltip=tooltip(rows),
            )
        )
    title = "carbon, cost of electricity and mean wait of each policy, two by two"
    return make_figure(
        "tradeoffs",
        alt.vconcat(*parts, spacing=14, title=titled(study, title)),
        rows,
        caption="A point is the mean over all runs of a policy; down and left is better in every "
        "panel. Filled points are not beaten: no other policy is better in one of the three "
        "without being worse in another. Less than 1 min and half a percent count as equal.",
    )


def comparison_figure(study: Study, comparisons: Sequence[Comparison]) -> Figure:
    """Draw by how much policies differ from a reference, with intervals."""
    reference = comparisons[0].reference
    rows = [
        {
            POLICY: each.policy,
            **_interval(each.pairs.difference),
            "least": each.ends[0][1],
            "most": each.ends[1][1],
            "pairs": each.pairs.difference.count,
        }
        for each in comparisons
        if each.pairs is not None
    ]
    unit = difference_unit(study.outcome)
    y = alt.Y(f"{POLICY}:N", title=None, sort=[each.policy for each in comparisons])
    title = f"difference in {study.outcome.name} from {reference}, {unit}".rstrip(", ")
    base = alt.Chart().encode(y=y, color=policy_color(study, legend=False))
    layers = [
        alt.Chart(alt.InlineData(values=[{"zero": 0}]))
        .mark_rule(color=NEUTRAL, strokeDash=[5, 4])
        .encode(x="zero:Q"),
        base.mark_point(size=90, filled=True, opacity=1).encode(
            x=alt.X("mean:Q", title=title), tooltip=tooltip(rows)
        ),
    ]
    low, high, across = _across(study, rows, "pairs of runs")
    if low:
        layers.insert(1, base.mark_rule(strokeWidth=3, opacity=0.6).encode(x=f"{low}:Q", x2=high))
    open_ = " A line across the dashed one leaves open who is better." if low == "low" else ""
    return make_figure(
        "paired",
        layered(
            study,
            layers,
            title=f"{study.outcome.name} of each policy less that of policy {reference}, on the "
            "same jobs and grids",
            height=34 * len(rows) + 20,
        ),
        rows,
        caption=f"Points are mean differences from policy {reference} over runs with the same jobs "
        f"and grid{across}.{open_}",
    )


def ranges_figure(study: Study, ranges: Sequence[Range]) -> Figure:
    """Draw between which means the outcome lies over each parameter."""
    rows = [
        {
            "parameter": each.axis.name,
            "least": each.low[1],
            "least with": format_level(each.axis, each.low[0]),
            "most": each.high[1],
            "most with": format_level(each.axis, each.high[0]),
            "values": each.levels,
        }
        for each in ranges
    ]
    base = alt.Chart().encode(
        y=alt.Y("parameter:N", title=None, sort=[str(row["parameter"]) for row in rows]),
        tooltip=tooltip(rows),
    )
    title = f"mean {_axis_title(study.outcome)}"
    layers = [
        base.mark_rule(strokeWidth=6, opacity=0.35, color=PALETTE[0]).encode(
            x=alt.X("least:Q", title=title, scale=alt.Scale(padding=70)), x2="most:Q"
        )
    ]
    for end, mark in (
        ("least", base.mark_text(align="right", dx=-8, fontSize=11, limit=200)),
        ("most", base.mark_text(align="left", dx=8, fontSize=11, limit=200)),
    ):
        layers += [
            base.mark_point(size=60, filled=True, opacity=1, color=PALETTE[0]).encode(x=f"{end}:Q"),
            mark.encode(x=f"{end}:Q", text=f"{end} with:N"),
        ]
    return make_figure(
        "effects",
        layered(
            study,
            layers,
            title=f"mean {study.outcome.name} of policy {study.leader} over each parameter, and of "
            "each policy",
            height=34 * len(rows) + 20,
        ),
        rows,
        caption="From the value of a parameter with the lowest mean to the one with the highest. "
        "Values were chosen: a wider choice would have made a wider range.",
    )


def axis_figure(
    study: Study,
    axis: Axis,
    groups: Sequence[Group],
    *,
    measure: Measure,
    name: str,
    color: Axis | None = None,
    facet: Axis | None = None,
    title: str = "",
) -> Figure:
    """Draw a number over a parameter: lines over numbers and times, bars over names.

    Args:
        title: A title, instead of one that says what is drawn.
    """
    others = [each for each in (color, facet) if each is not None]
    rows = [
        {
            axis.name: _drawn(axis, each.levels[axis.key]),
            **{other.name: format_level(other, each.levels[other.key]) for other in others},
            "runs": each.interval.count,
            **_interval(each.interval),
            "least": each.least,
            "most": each.most,
        }
        for each in groups
    ]
    colored = _color(study, color)
    draw = _bars if axis.kind == "category" else _lines
    low, high, across_words = _across(study, rows, "runs")
    chart = draw(axis, rows, measure, colored, color, (low, high))
    heading = title or f"mean {measure.name} by {axis.name}"
    height = _bar_height(axis, rows, color) if axis.kind == "category" else 300
    if facet is None:
        chart = chart.properties(data=ROWS, width=WIDTH, height=height)
    else:
        across = min(len({row[facet.name] for row in rows}), 2)
        chart = chart.properties(width=(WIDTH - 60) // across, height=min(height, 260)).facet(
            facet=alt.Facet(f"{facet.name}:N", title=facet.name, sort=_texts(facet)),
            columns=across,
            data=ROWS,
        )
    shown = "Bars are" if axis.kind == "category" else "Points are"
    return make_figure(
        name,
        chart.properties(title=titled(study, heading)),
        rows,
        caption=f"{shown} means over all runs with that {axis.name} ({', '.join(axis.keys)})"
        f"{across_words}.",
    )


def map_figure(
    study: Study,
    axes: tuple[Axis, Axis],
    cells: Sequence[Group],
    *,
    measure: Measure,
    name: str,
    title: str,
) -> Figure:
    """Draw a number over two parameters as a map."""
    across, up = axes
    rows = [
        {
            across.name: format_level(across, cell.levels[across.key]),
            up.name: format_level(up, cell.levels[up.key]),
            "runs": cell.interval.count,
            **_interval(cell.interval),
            "least": cell.least,
            "most": cell.most,
        }
        for cell in cells
    ]
    means = [cell.interval.value for cell in cells]
    low, high = min(means), max(means)
    numbers = len(rows) <= _MOST_NUMBERS
    base = alt.Chart().encode(
        x=alt.X(
            f"{across.name}:O",
            title=across.name,
            sort=_texts(across),
            axis=alt.Axis(labelAngle=0, labelOverlap=True),
        ),
        # Numbers rise upwards, as on any other axis.
        y=alt.Y(
            f"{up.name}:O",
            title=up.name,
            sort=_texts(up) if up.kind == "category" else _texts(up)[::-1],
        ),
        tooltip=tooltip(rows),
    )
    layers = [
        base.mark_rect(stroke="white", strokeWidth=1).encode(
            color=alt.Color(
                "mean:Q",
                title=_axis_title(measure),
                scale=alt.Scale(scheme="tealblues", domain=[low, high if high > low else low + 1]),
                legend=None if numbers else alt.Legend(gradientLength=200),
            )
        )
    ]
    if numbers:
        dark = f"datum.mean > {low + 0.55 * (high - low)}"
        layers.append(
            base.mark_text(fontSize=12).encode(
                text=alt.Text("mean:Q", format=".1f" if measure.unit in ("%", "points") else ".3g"),
                color=alt.condition(dark, alt.value("white"), alt.value("black")),
            )
        )
    return make_figure(
        name,
        layered(study, layers, title=title, height=max(32 * len(up.levels), 130)),
        rows,
        caption=f"Each cell is the mean over the runs with these two values, in "
        f"{measure.unit or measure.name}.",
    )


def _lines(
    axis: Axis,
    rows: Sequence[Row],
    measure: Measure,
    colored: Any,
    color: Axis | None,
    ends: tuple[str, str],
) -> Any:
    base = alt.Chart().encode(x=_along(axis, rows), color=colored)
    names = [axis.name, *([color.name] if color is not None else []), *_SHOWN]
    levels = [""] if color is None else _texts(color)
    layers = []
    for number, level in enumerate(levels):
        one = base
        if color is not None:
            one = base.transform_filter(alt.FieldEqualPredicate(field=color.name, equal=level))
        # Side by side, intervals at the same place can be told apart.
        aside = 4.0 * (number - (len(levels) - 1) / 2)
        if ends[0]:
            layers.append(
                one.mark_rule(strokeWidth=2, opacity=0.4, xOffset=aside).encode(
                    y=f"{ends[0]}:Q", y2=ends[1]
                )
            )
        layers += [
            one.mark_line(strokeWidth=2, xOffset=aside).encode(
                y=alt.Y("mean:Q", title=_axis_title(measure))
            ),
            one.mark_point(filled=True, size=55, opacity=1, xOffset=aside).encode(
                y="mean:Q", tooltip=tooltip(rows, names)
            ),
        ]
    return alt.layer(*layers)


def _along(axis: Axis, rows: Sequence[Row]) -> alt.X:
    if axis.kind == "time":
        return alt.X(
            f"{axis.name}:T",
            title=f"{axis.name} (UTC)",
            scale=alt.Scale(type="utc", nice=False, padding=30),
            axis=alt.Axis(
                values=[1000 * float(level) for level in axis.levels],
                format="%d %b %Y",
                labelOverlap=True,
                grid=False,
            ),
        )
    numbers = sorted({row[axis.name] for row in rows})
    wide = numbers[0] > 0 and numbers[-1] / numbers[0] > _WIDE
    return alt.X(
        f"{axis.name}:Q",
        title=f"{axis.name}, {axis.unit}" if axis.unit else axis.name,
        scale=alt.Scale(type="log" if wide else "linear", zero=False, nice=False, padding=30),
        # Ticks stand where there are runs; in between nothing is known.
        axis=alt.Axis(values=numbers, labelOverlap=True, format=".6~g", grid=False),
    )


def _bars(
    axis: Axis,
    rows: Sequence[Row],
    measure: Measure,
    colored: Any,
    color: Axis | None,
    ends: tuple[str, str],
) -> Any:
    sums: dict[str, float] = {}
    for row in rows:
        sums[row[axis.name]] = sums.get(row[axis.name], 0.0) + measure.best * row["mean"]
    encoding: dict[str, Any] = {
        "y": alt.Y(
            f"{axis.name}:N",
            title=axis.name,
            sort=sorted(sums, key=lambda level: -sums[level]),
            scale=alt.Scale(paddingInner=0.2, paddingOuter=0.1),
        )
    }
    if color is not None:
        encoding["yOffset"] = alt.YOffset(f"{color.name}:N", sort=_texts(color))
    base = alt.Chart().encode(**encoding)
    names = [axis.name, *([color.name] if color is not None else []), *_SHOWN]
    bars = base.mark_bar(opacity=0.85).encode(
        x=alt.X("mean:Q", title=_axis_title(measure)),
        color=colored,
        tooltip=tooltip(rows, names),
    )
    if not ends[0]:
        return alt.layer(bars)
    across = base.mark_rule(color=NEUTRAL, strokeWidth=2)
    return alt.layer(bars, across.encode(x=f"{ends[0]}:Q", x2=ends[1]))


def _bar_height(axis: Axis, rows: Sequence[Row], color: Axis | None) -> int:
    bars = len({row[axis.name] for row in rows})
    each = 1 if color is None else len({row[color.name] for row in rows})
    return bars * (12 * each + 10) + 10


def _color(study: Study, color: Axis | None) -> Any:
    if color is None:
        return alt.value(PALETTE[0])
    if color.key == POLICY:
        return policy_color(study, names=[str(level) for level in color.levels])
    return alt.Color(
        f"{color.name}:N",
        title=color.name,
        sort=_texts(color),
        scale=alt.Scale(domain=_texts(color), range=list(PALETTE)),
    )


def _texts(axis: Axis) -> list[str]:
    return [format_level(axis, level) for level in axis.levels]


def _drawn(axis: Axis, level: Level) -> Level:
    """Return a level as charts and people take it: instants as dates."""
    return format_iso(float(level)) if axis.kind == "time" else level


def _known(rows: Sequence[Row], name: str) -> bool:
    return any(row[name] is not None for row in rows)


def _across(study: Study, rows: Sequence[Row], what: str) -> tuple[str, str, str]:
    """Return the columns that lines across means are drawn from, and what to say of them.

    Where something was random these are intervals, else the least and the most of what was run.
    """
    if _known(rows, "low"):
        return "low", "high", f"; the lines across are 95 % intervals {study.chance.over}"
    if any(row["least"] != row["most"] for row in rows):
        return "least", "most", f"; the lines across go from the least to the most of single {what}"
    return "", "", ""


def _interval(interval: Interval) -> dict[str, float | None]:
    return {"mean": interval.value, "low": interval.low, "high": interval.high}


def _axis_title(measure: Measure) -> str:
    return f"{measure.name}, {measure.unit}" if measure.unit else measure.name
