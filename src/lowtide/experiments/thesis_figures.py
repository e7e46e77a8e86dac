"""Charts of the evaluation that is run again: savings, and published totals against the optimum."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import altair as alt
import numpy as np

from lowtide.experiments.thesis import Case
from lowtide.experiments.thesis_tables import Study

_WIDTH = 420
_TITLES = {
    "carved": "Saving of suspend & resume, the startup carved out of the length (as published)",
    "added": "Saving of suspend & resume, the startup added to the length",
}
# Differences below this share are the six decimals that totals were published with.
_SAME = 1e-6
_TICKS = (-0.05, -0.02, 0.0, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0)


def savings_chart(
    saved: Mapping[str, Mapping[Case, float]], *, synthetic: bool
) -> alt.VConcatChart:
    """Draw the mean saving by length and wait as a map, one for each reading of the startup.

    Args:
        saved: What suspending saves, by reading of the startup and by job.
        synthetic: Whether the signal comes from a model.
    """
    means = {mode: _means(each) for mode, each in saved.items() if each}
    most = max(row["saving"] for rows in means.values() for row in rows)
    made_up = " (synthetic grid)" if synthetic else ""
    maps = [_map(_TITLES[mode] + made_up, rows, most) for mode, rows in means.items()]
    return alt.vconcat(*maps, spacing=16)


def _means(saved: Mapping[Case, float]) -> list[dict[str, Any]]:
    cells: dict[tuple[int, int], list[float]] = {}
    for case, saving in saved.items():
        cells.setdefault((case.length_s // 3600, case.wait_h), []).append(saving)
    return [
        {"length": length_h, "wait": wait_h, "saving": max(float(np.mean(values)), 0.0)}
        for (length_h, wait_h), values in sorted(cells.items())
    ]


def _map(title: str, rows: list[dict[str, Any]], most: float) -> alt.LayerChart:
    base = alt.Chart(alt.InlineData(values=rows), width=_WIDTH, height=180, title=title).encode(
        x=alt.X("wait:O", title="may wait, h", axis=alt.Axis(labelAngle=0)),
        y=alt.Y("length:O", title="job length, h"),
    )
    cells = base.mark_rect().encode(
        color=alt.Color(
            "saving:Q",
            title="saving",
            scale=alt.Scale(scheme="tealblues", domain=[0.0, max(most, _SAME)]),
            legend=alt.Legend(format=".0%"),
        )
    )
    dark = f"datum.saving > {0.6 * most}"
    words = base.mark_text().encode(
        text=alt.Text("saving:Q", format=".1%"),
        color=alt.condition(dark, alt.value("white"), alt.value("black")),
    )
    return alt.LayerChart(layer=[cells, words])


def published_chart(study: Study) -> alt.LayerChart:
    """Draw how far published and true totals of suspended jobs lie from the optimum.

    Args:
        study: The outcomes, with totals that were published for them.
    """
    known = study.comparable
    rows = []
    for outcome in study.of("carved"):
        total = known.get(outcome.case)
        if total is None or not total.stretches or outcome.case.strategy != "suspend":
            continue
        for what, grams in (("published", total.published_g), ("true", total.true_g)):
            if not math.isclose(grams, outcome.carbon_g, rel_tol=_SAME):
                excess = grams / outcome.carbon_g - 1
                rows.append({"optimum": outcome.carbon_g, "excess": excess, "total": what})
    points = (
        alt.Chart(
            alt.InlineData(values=rows),
            width=_WIDTH,
            height=300,
            title="Published and true totals of suspended jobs against the optimum",
        )
        .mark_point(filled=True, opacity=0.75, size=45)
        .encode(
            x=alt.X("optimum:Q", title="optimum, g of CO2e", scale=alt.Scale(zero=False)),
            y=alt.Y(
                "excess:Q",
                title="above the optimum",
                scale=alt.Scale(type="symlog", constant=0.02),
                axis=alt.Axis(format="+.0%", values=list(_TICKS)),
            ),
            color=alt.Color(
                "total:N",
                title="total",
                scale=alt.Scale(domain=["published", "true"], range=["#D55E00", "#0072B2"]),
            ),
            shape=alt.Shape(
                "total:N", title="total", scale=alt.Scale(domain=["published", "true"])
            ),
        )
    )
    zero = (
        alt.Chart(alt.InlineData(values=[{"y": 0}]))
        .mark_rule(color="#444444", strokeDash=[4, 3])
        .encode(y="y:Q")
    )
    return alt.LayerChart(layer=[points, zero])
