"""How a study tells its numbers and draws its charts: what all its questions share.

Every title tells the grids.
"""

from __future__ import annotations

import math
import textwrap
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from lowtide.page.looks import NEUTRAL, PALETTE, WIDTH, alt, make_figure, tooltip
from lowtide.page.page import Cell, Figure, Row
from lowtide.studies.analysis import Group
from lowtide.studies.axes import Axis, Level, format_level
from lowtide.studies.statistics import Bounded
from lowtide.studies.study import POLICY, Measure, Study
from lowtide.units import MISSING, format_iso

# What charts call the rows they are drawn from.
ROWS = alt.NamedData(name="rows")
# Numbers that span more than this factor are drawn on a logarithmic axis.
_WIDE = 25.0
# What is told of a mean under the pointer.
_SHOWN = ("runs", "mean", "low", "high", "least", "most")
# So many letters of a title fit above a chart.
_LINE = 90


def format_value(value: float | None, measure: Measure) -> str:
    """Return a number of a run, or `---`."""
    return MISSING if value is None else f"{digits(value, measure)} {measure.unit}".rstrip()


def format_interval(interval: Bounded | None, measure: Measure) -> str:
    """Return a mean and its bounds, where it has any, for a table: `23.1 % (21.0 to 25.3)`."""
    if interval is None:
        return MISSING
    below = "" if interval.low is None else bounds(interval, measure)
    return Cell(format_value(interval.value, measure), below)


def bounds(interval: Bounded, measure: Measure) -> str:
    """Return between which bounds a number lies."""
    low, high = (
        MISSING if bound is None else digits(bound, measure, like=interval.value)
        for bound in (interval.low, interval.high)
    )
    return f"{low} to {high}"


def digits(value: float, measure: Measure, like: float | None = None) -> str:
    """Return a number with one decimal for shares, else three digits, or as many as another has."""
    scale = abs(value if like is None else like)
    places = 2 - math.floor(math.log10(scale)) if scale > 0 else 0
    if measure.unit in ("%", "points"):
        # A difference below the first decimal is told by its first digit.
        places = min(max(places - 2, 1), 4) if measure.unit == "points" else 1
    places = min(max(places, 0), 6)
    # Adding 0 leaves no "-0".
    return f"{round(value, places) + 0.0:,.{places}f}"


def difference_unit(measure: Measure) -> str:
    """Return the unit of a difference: shares differ by points."""
    return "points" if measure.unit == "%" else measure.unit


def format_difference(value: float, measure: Measure) -> str:
    """Return a difference of two numbers with its unit."""
    return format_value(value, replace(measure, unit=difference_unit(measure)))


def capital(text: str) -> str:
    """Return a text that begins with a capital letter."""
    return text[:1].upper() + text[1:]


def axis_title(measure: Measure) -> str:
    """Return what an axis of a number is called."""
    return f"{measure.name}, {measure.unit}" if measure.unit else measure.name


def spread(interval: Bounded) -> dict[str, float | None]:
    """Return a mean and its bounds as columns."""
    return {"mean": interval.value, "low": interval.low, "high": interval.high}


def knows(rows: Sequence[Row], name: str) -> bool:
    """Say whether a column has a number at all; without one the renderer warns of no extent."""
    return any(row[name] is not None for row in rows)


def lines_across(study: Study, rows: Sequence[Row], what: str) -> tuple[str, str, str]:
    """Return the columns that lines across means are drawn from, and what to say of them.

    Where something was random these are intervals, else the least and the most of what was run.
    """
    if knows(rows, "low"):
        return "low", "high", f"; the lines across are 95 % intervals {study.chance.over}"
    if any(row["least"] != row["most"] for row in rows):
        return "least", "most", f"; the lines across go from the least to the most of single {what}"
    return "", "", ""


def layered(study: Study, layers: Sequence[Any], *, title: str, height: int, more: str = "") -> Any:
    """Return layers over the same rows as one chart.

    Args:
        more: What else stands below the title.
    """
    heading = titled(study, title, more)
    return alt.layer(*layers, data=ROWS).properties(width=WIDTH, height=height, title=heading)


def titled(study: Study, text: str, more: str = "") -> Any:
    """Return a title that says whether the grids are real, which they are, and from when."""
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
            **spread(each.interval),
            "least": each.least,
            "most": each.most,
        }
        for each in groups
    ]
    colored = _color(study, color)
    draw = _bars if axis.kind == "category" else _lines
    low, high, across_words = lines_across(study, rows, "runs")
    chart = draw(axis, rows, measure, colored, color, (low, high))
    heading = title or f"mean {measure.name} by {axis.name}"
    height = _bar_height(axis, rows, color) if axis.kind == "category" else 300
    if facet is None:
        chart = chart.properties(data=ROWS, width=WIDTH, height=height)
    else:
        across = min(len({row[facet.name] for row in rows}), 2)
        chart = chart.properties(width=(WIDTH - 60) // across, height=min(height, 260)).facet(
            facet=alt.Facet(f"{facet.name}:N", title=facet.name, sort=level_texts(facet)),
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
    levels = [""] if color is None else level_texts(color)
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
                y=alt.Y("mean:Q", title=axis_title(measure))
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
        encoding["yOffset"] = alt.YOffset(f"{color.name}:N", sort=level_texts(color))
    base = alt.Chart().encode(**encoding)
    names = [axis.name, *([color.name] if color is not None else []), *_SHOWN]
    bars = base.mark_bar(opacity=0.85).encode(
        x=alt.X("mean:Q", title=axis_title(measure)),
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
        sort=level_texts(color),
        scale=alt.Scale(domain=level_texts(color), range=list(PALETTE)),
    )


def level_texts(axis: Axis) -> list[str]:
    """Return the values of a parameter in words, in order."""
    return [format_level(axis, level) for level in axis.levels]


def _drawn(axis: Axis, level: Level) -> Level:
    """Return a level as charts and people take it: instants as dates."""
    return format_iso(float(level)) if axis.kind == "time" else level
