"""A figure of what was learned: the profile over the runs, as they were and aligned."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from lowtide.errors import MissingExtra
from lowtide.learning.learned import Learned
from lowtide.learning.series import Series, even_edges
from lowtide.signal import FloatArray

if TYPE_CHECKING:
    import altair as alt

_WIDTH = 760
_HEIGHT = 220
# So many points of a run are drawn at most.
_POINTS = 800
_RUN = "#999999"
_COLOURS = {"startup": "#E69F00", "work": "#0072B2", "checkpoint": "#009E73"}


def write_figure(learned: Learned, path: Path | str) -> None:
    """Write the figure as PNG or SVG, by the file's name.

    Args:
        path: A file ending in `.png` or `.svg`.
    """
    try:
        from lowtide.experiments.figures import save_image
    except ImportError:  # pragma: no cover - needs an environment without the extra
        raise MissingExtra("drawing figures", extra="figures") from None

    save_image(learned_chart(learned), path)


def learned_chart(learned: Learned) -> alt.VConcatChart:
    """Draw the profile over the runs: in their own time, and each moved to the phases' time."""
    import altair as alt

    absolute = [row for each in learned.series for row in _trace(each)]
    used = {each.run.id: each for each in learned.series}
    model = learned.fit.model
    mean_s = np.concatenate(([0.0], np.cumsum(learned.fit.duration_s)))
    aligned = [
        row
        for name, edges_s in zip(model.runs, model.edges_s, strict=True)
        for row in _trace(used[name], edges_s, mean_s)
    ]
    runs = f"{len(learned.series)} run" + "s" * (len(learned.series) > 1)
    return alt.vconcat(
        _panel(learned, absolute, f"What was learned, over {runs} (grey)"),
        _panel(learned, aligned, "The same, each run aligned to the phases"),
        spacing=12,
        resolve=alt.Resolve(scale=alt.ScaleResolveMap(x="shared", color="shared")),
    )


def _panel(learned: Learned, rows: list[dict[str, Any]], title: str) -> alt.LayerChart:
    import altair as alt

    top_w = max(row["power"] for row in rows)
    saved = [
        {"time": learned.profile.startup_s + end_s, "power": 1.06 * top_w, "part": "checkpoint"}
        for end_s in learned.profile.checkpoints_s
    ]
    shown = {
        part: colour
        for part, colour in _COLOURS.items()
        if part == "work" or (learned.profile.startup if part == "startup" else saved)
    }
    x = alt.X("time:Q", title="seconds since the start", scale=alt.Scale(nice=False))
    y = alt.Y(
        "power:Q",
        title=f"W ({learned.power})",
        scale=alt.Scale(domain=[0, 1.12 * top_w], nice=False),
    )
    base = alt.Chart(alt.InlineData(values=rows), width=_WIDTH, height=_HEIGHT, title=title)
    traces = base.mark_line(strokeWidth=0.7, opacity=0.55, color=_RUN).encode(
        x=x, y=y, detail="run:N"
    )
    steps = alt.Chart(alt.InlineData(values=_steps(learned)))
    profile = steps.mark_line(interpolate="step-after", strokeWidth=1.8).encode(
        x=x,
        y=y,
        detail="part:N",
        color=alt.Color(
            "part:N",
            title=None,
            scale=alt.Scale(domain=list(shown), range=list(shown.values())),
            legend=alt.Legend(orient="bottom"),
        ),
    )
    checkpoints = (
        alt.Chart(alt.InlineData(values=saved))
        .mark_point(shape="triangle-down", filled=True, size=45, opacity=1)
        .encode(x=x, y=y, color="part:N")
    )
    return alt.LayerChart(layer=[traces, profile, checkpoints])


def _steps(learned: Learned) -> list[dict[str, Any]]:
    rows, time_s = [], 0.0
    for part in ("startup", "work"):
        phases = getattr(learned.profile, part)
        for phase in phases:
            rows.append({"time": time_s, "power": phase.power_w, "part": part})
            time_s += phase.duration_s
        if phases:
            rows.append({"time": time_s, "power": phases[-1].power_w, "part": part})
    return rows


def _trace(
    series: Series, own_s: FloatArray | None = None, mean_s: FloatArray | None = None
) -> list[dict[str, Any]]:
    """Return a run's power over time, moved from its own edges to the mean ones if asked."""
    step_s = max(series.length_s / _POINTS, series.run.step_s)
    edges_s = even_edges(0.0, series.length_s, step_s)
    power_w = series.mean_w(edges_s)
    times_s = (edges_s[:-1] + edges_s[1:]) / 2
    if own_s is not None and mean_s is not None:
        times_s = np.interp(times_s, own_s, mean_s)
    return [
        {"run": series.run.id, "time": round(time, 3), "power": round(power, 2)}
        for time, power in zip(times_s.tolist(), power_w.tolist(), strict=True)
    ]
