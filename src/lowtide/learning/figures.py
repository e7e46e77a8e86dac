"""Figures of what was learned: a profile over its runs, and a power model over use and truth."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from lowtide.errors import InvalidInput
from lowtide.learning.learned import Learned
from lowtide.learning.series import RunSeries, even_edges
from lowtide.learning.utilisation import LearnedUtilisation
from lowtide.meters.power_model import UtilisationModel
from lowtide.page.looks import BLUE, GREEN, KINDS, NEUTRAL, WIDTH, alt, inline, save_image
from lowtide.signal import FloatArray

_HEIGHT = 220
_MODEL_HEIGHT = 340
# So many points of a run, windows and points of a model are drawn at most.
_POINTS = 800
_MOST_DOTS = 3000
_MODEL_POINTS = 120
_BINS = 20
_COLOURS = {"startup": KINDS["startup"], "work": KINDS["work"], "checkpoint": GREEN}


def write_figure(learned: Learned, path: Path | str) -> None:
    """Write the figure as PNG or SVG, by the file's name."""
    save_image(learned_chart(learned), path)


def learned_chart(learned: Learned) -> alt.VConcatChart:
    """Draw the profile over the runs: in their own time, and each moved to the phases' time."""
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
    base = alt.Chart(inline(rows), width=WIDTH, height=_HEIGHT, title=title)
    traces = base.mark_line(strokeWidth=0.7, opacity=0.55, color=NEUTRAL).encode(
        x=x, y=y, detail="run:N"
    )
    steps = alt.Chart(inline(_steps(learned)))
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
        alt.Chart(inline(saved))
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
    series: RunSeries, own_s: FloatArray | None = None, mean_s: FloatArray | None = None
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


def write_utilisation_figure(learned: LearnedUtilisation, path: Path | str) -> None:
    """Write the figure as PNG or SVG, by the file's name."""
    save_image(utilisation_chart(learned), path)


def utilisation_chart(learned: LearnedUtilisation) -> alt.VConcatChart:
    """Draw power over the feature it follows most closely, and predicted over measured power.

    Where the model has more features than one, its line is the mean of what it says about windows
    of about the same use, and its interval is drawn over measured power alone: around that line it
    would seem to miss what other features explain.
    """
    if learned.model is None:
        raise InvalidInput(f"there is no model to draw: {learned.why}")
    return alt.vconcat(_over_use(learned, learned.model), _over_measured(learned, learned.model))


def _over_use(learned: LearnedUtilisation, model: UtilisationModel) -> alt.LayerChart:
    data, place = learned.data, learned.data.leading
    stride = -(-len(data) // _MOST_DOTS)
    dots = [
        {"use": round(float(use), 5), "power": round(float(power_w), 2)}
        for use, power_w in zip(data.use[::stride, place], data.power_w[::stride], strict=True)
    ]
    rows = _line(model, data.use, place)
    name = data.features[place]
    x = alt.X("use:Q", title=name, scale=alt.Scale(nice=False))
    base = alt.Chart(
        inline(rows),
        width=WIDTH,
        height=_MODEL_HEIGHT,
        title=f"Power over {name}: {learned.chosen}, {len(data.runs)} runs (grey: windows of "
        f"{data.average_s:g} s)",
    )
    return _with_dots(base, dots, x, "power", band=len(model.features) == 1 and bool(model.band))


def _over_measured(learned: LearnedUtilisation, model: UtilisationModel) -> alt.LayerChart:
    """Draw what the model says of each window, not knowing its run, over what was measured."""
    measured, said = learned.data.power_w, learned.held_out_w
    stride = -(-measured.size // _MOST_DOTS)
    dots = [
        {"measured": round(float(truth), 2), "predicted": round(float(watts), 2)}
        for truth, watts in zip(measured[::stride], said[::stride], strict=True)
    ]
    ends = [float(min(measured.min(), said.min())), float(max(measured.max(), said.max()))]
    steps = np.linspace(ends[0], ends[1], _MODEL_POINTS).tolist()
    diagonal = [
        {"measured": at, "predicted": at, "low": max(at - half_w, 0.0), "high": at + half_w}
        for at in steps
        for half_w in [_half_w(model, at)]
    ]
    title = "Runs left out: predicted over measured"
    if model.band is not None:
        title += f" (blue: {100 * model.band.level:.0f} % intervals)"
    x = alt.X("measured:Q", title="measured, W", scale=alt.Scale(domain=ends, nice=False))
    base = alt.Chart(inline(diagonal), width=WIDTH, height=_MODEL_HEIGHT, title=title)
    return _with_dots(base, dots, x, "predicted", band=model.band is not None)


def _with_dots(base: Any, dots: Any, x: Any, name: str, *, band: bool) -> alt.LayerChart:
    """Draw watts as a line over dots, over a band from `low` to `high` if asked."""
    watts = "W" if name == "power" else f"{name}, W"
    y = alt.Y(f"{name}:Q", title=watts)
    windows = alt.Chart(inline(dots)).mark_circle(size=9, opacity=0.45, color=NEUTRAL)
    layers = [
        windows.encode(x=x, y=y),
        base.mark_line(color=BLUE, strokeWidth=2).encode(x=x, y=y),
    ]
    if band:
        area = base.mark_area(opacity=0.18, color=BLUE)
        layers.insert(0, area.encode(x=x, y=alt.Y("low:Q", title=watts), y2="high:Q"))
    return alt.LayerChart(layer=layers)


def _line(model: UtilisationModel, use: FloatArray, place: int) -> list[dict[str, Any]]:
    names = [feature.name for feature in model.features]
    if len(names) == 1:
        grid = np.linspace(use.min(), use.max(), _MODEL_POINTS)
        said = [(each, model.at({names[0]: each}).power_w) for each in grid.tolist()]
    else:
        edges = np.unique(np.quantile(use[:, place], np.linspace(0, 1, _BINS + 1)))
        bin_of = np.searchsorted(edges[1:-1], use[:, place], side="right")
        said = []
        for number in np.unique(bin_of):
            some = use[bin_of == number]
            some = some[:: -(-some.shape[0] // 50)]
            watts = [model.at(dict(zip(names, row, strict=True))).power_w for row in some.tolist()]
            said.append((float(some[:, place].mean()), float(np.mean(watts))))
    return [
        {
            "use": round(at, 5),
            "power": round(watts, 3),
            "low": round(max(watts - half_w, 0.0), 3),
            "high": round(watts + half_w, 3),
        }
        for at, watts in said
        for half_w in [_half_w(model, watts)]
    ]


def _half_w(model: UtilisationModel, power_w: float) -> float:
    return 0.0 if model.band is None else model.band.half_at(power_w)
