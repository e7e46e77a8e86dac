"""The figures of Let's Wait Awhile: savings of training jobs, and what nightly jobs meet."""

from __future__ import annotations

from typing import TYPE_CHECKING

import altair as alt

from lowtide.experiments.lets_wait_awhile import FIXED, ORIGINAL, WINDOWS

if TYPE_CHECKING:
    from lowtide.experiments.lets_wait_awhile_report import Study

_NAMES = {ORIGINAL: "original", FIXED: "fixed"}
_ERROR = 0.05
_COLOUR = alt.Color(
    "rules:N",
    title="rules",
    scale=alt.Scale(domain=[*_NAMES.values()], range=["#D55E00", "#0072B2"]),
)


def training_chart(study: Study) -> alt.Chart:
    """Draw what training jobs save with a forecast error of 5 %.

    Args:
        study: The outcomes.
    """
    rows = [
        {
            "case": f"{zone}, {deadline.replace('_', ' ')}{', stops' if stops else ''}",
            "rules": _NAMES[rules],
            "saving": saving,
        }
        for (rules, zone, deadline, stops, error), saving in study.saving_pct.items()
        if rules in _NAMES and error == _ERROR
    ]
    chart: alt.Chart = (
        alt.Chart(alt.InlineData(values=rows), width=420, title="Training jobs, 5 % error")
        .mark_bar()
        .encode(
            x=alt.X("saving:Q", title="saving, %"),
            y=alt.Y("case:N", title=None, sort=None),
            yOffset=alt.YOffset("rules:N", sort=[*_NAMES.values()]),
            color=_COLOUR,
        )
    )
    return chart


def nightly_chart(study: Study) -> alt.VConcatChart:
    """Draw what the nightly job meets over the width of its window, zone by zone.

    Args:
        study: The outcomes.
    """
    charts = []
    for zone in study.curves:
        rows = [
            {
                "window": window / 2,
                "rules": name,
                "intensity": study.intensity[rules, zone, window, _ERROR],
            }
            for rules, name in _NAMES.items()
            for window in WINDOWS
        ]
        charts.append(
            alt.Chart(
                alt.InlineData(values=rows), width=420, height=160, title=f"{zone}, 5 % error"
            )
            .mark_line(point=True)
            .encode(
                x=alt.X("window:Q", title="window, ± h"),
                y=alt.Y("intensity:Q", title="g/kWh", scale=alt.Scale(zero=False)),
                color=_COLOUR,
            )
        )
    return alt.vconcat(*charts, spacing=16)
