"""The figure of the GAIA comparison: what waiting buys, under either set of rules."""

from __future__ import annotations

from typing import TYPE_CHECKING

import altair as alt

from lowtide.experiments.gaia import FIXED, ORIGINAL, RUNS

if TYPE_CHECKING:
    from lowtide.experiments.gaia_report import Study

_NAMES = {ORIGINAL: "original", FIXED: "fixed"}
_COLOURS = ["#D55E00", "#0072B2"]


def policies_chart(study: Study) -> alt.LayerChart:
    """Draw what every run emits over how long its jobs wait.

    Args:
        study: The outcomes.
    """
    rows = []
    # Runs that differ in what machines cost alone lie on one point, and share its label.
    labels: dict[tuple[float, float], list[str]] = {}
    for run in RUNS:
        for rules, name in _NAMES.items():
            outcome = study.by_rules[rules][run.policy]
            wait_h, carbon_g = outcome.mean_wait_h, float(outcome.carbon_g.sum())
            rows.append({"policy": run.policy, "rules": name, "wait": wait_h, "carbon": carbon_g})
            if rules == FIXED:
                labels.setdefault((wait_h, carbon_g), []).append(run.policy)
    base = alt.Chart(
        alt.InlineData(values=rows),
        width=680,
        height=420,
        title=f"{study.zone} from row {study.start_row}",
    ).encode(
        x=alt.X("wait:Q", title="mean wait, h"),
        y=alt.Y("carbon:Q", title="g", scale=alt.Scale(zero=False)),
    )
    lines = base.mark_line(color="#999999").encode(detail="policy:N")
    points = base.mark_point(filled=True, size=60).encode(
        color=alt.Color(
            "rules:N", title="rules", scale=alt.Scale(domain=[*_NAMES.values()], range=_COLOURS)
        ),
        tooltip=["policy:N", "rules:N", "wait:Q", "carbon:Q"],
    )
    # Neighbours in carbon take turns above and below their points, so that labels stay apart.
    words = []
    for side, dy in ((0, -11), (1, 13)):
        names = [
            {"wait": wait_h, "carbon": carbon_g, "label": ", ".join(labels[wait_h, carbon_g])}
            for wait_h, carbon_g in sorted(labels, key=lambda point: point[1])[side::2]
        ]
        words.append(
            alt.Chart(alt.InlineData(values=names))
            .mark_text(align="left", dx=6, dy=dy, fontSize=10)
            .encode(x="wait:Q", y="carbon:Q", text="label:N")
        )
    return alt.LayerChart(layer=[lines, points, *words])
