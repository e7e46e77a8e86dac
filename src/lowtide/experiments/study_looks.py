"""How the charts of a study look: colours, titles, sizes, and what a figure is made of."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from lowtide.errors import MissingExtra
from lowtide.experiments.study_table import POLICY, Study
from lowtide.experiments.study_words import capital

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
