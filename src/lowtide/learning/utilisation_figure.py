"""A figure of a power model: power over use, and what it says of runs left out over the truth."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from lowtide.errors import InvalidInput, MissingExtra
from lowtide.learning.utilisation import LearnedUtilisation
from lowtide.meters.power_model import UtilisationModel
from lowtide.signal import FloatArray

if TYPE_CHECKING:
    import altair as alt

_WIDTH = 620
_HEIGHT = 340
# So many windows are drawn at most, and so many points of the model.
_MOST_DOTS = 3000
_POINTS = 120
_BINS = 20
_DOT = "#999999"
_MODEL = "#0072B2"
_BAND_OPACITY = 0.18


def write_utilisation_figure(learned: LearnedUtilisation, path: Path | str) -> None:
    """Write the figure as PNG or SVG, by the file's name.

    Args:
        path: A file ending in `.png` or `.svg`.
    """
    try:
        from lowtide.experiments.figures import save_image
    except ImportError:  # pragma: no cover - needs an environment without the extra
        raise MissingExtra("drawing figures", extra="figures") from None

    save_image(utilisation_chart(learned), path)


def utilisation_chart(learned: LearnedUtilisation) -> alt.VConcatChart:
    """Draw power over the feature it follows most closely, and predicted over measured power.

    Where the model has more features than one, its line is the mean of what it says about windows
    of about the same use, and its interval is drawn over measured power alone: around that line it
    would seem to miss what other features explain.
    """
    import altair as alt

    if learned.model is None:
        raise InvalidInput(f"there is no model to draw: {learned.why}")
    return alt.vconcat(_over_use(learned, learned.model), _over_measured(learned, learned.model))


def _over_use(learned: LearnedUtilisation, model: UtilisationModel) -> alt.LayerChart:
    import altair as alt

    data, place = learned.data, learned.data.leading
    stride = -(-len(data) // _MOST_DOTS)
    dots = [
        {"use": round(float(use), 5), "power": round(float(power_w), 2)}
        for use, power_w in zip(data.use[::stride, place], data.power_w[::stride], strict=True)
    ]
    rows = _line(model, data.use, place)
    name = data.features[place]
    x = alt.X("use:Q", title=name, scale=alt.Scale(nice=False))
    y = alt.Y("power:Q", title="W")
    base = alt.Chart(
        alt.InlineData(values=rows),
        width=_WIDTH,
        height=_HEIGHT,
        title=f"Power over {name}: {learned.chosen}, {len(data.runs)} runs (grey: windows of "
        f"{data.average_s:g} s)",
    )
    layers: list[alt.Chart] = []
    if model.band is not None and len(model.features) == 1:
        layers.append(
            base.mark_area(opacity=_BAND_OPACITY, color=_MODEL).encode(
                x=x, y=alt.Y("low:Q", title="W"), y2="high:Q"
            )
        )
    layers.append(
        alt.Chart(alt.InlineData(values=dots))
        .mark_circle(size=9, opacity=0.45, color=_DOT)
        .encode(x=x, y=y)
    )
    layers.append(base.mark_line(color=_MODEL, strokeWidth=2).encode(x=x, y=y))
    return alt.LayerChart(layer=layers)


def _over_measured(learned: LearnedUtilisation, model: UtilisationModel) -> alt.LayerChart:
    """Draw what the model says of each window, not knowing its run, over what was measured."""
    import altair as alt

    measured, said = learned.data.power_w, learned.held_out_w
    stride = -(-measured.size // _MOST_DOTS)
    dots = [
        {"measured": round(float(truth), 2), "predicted": round(float(watts), 2)}
        for truth, watts in zip(measured[::stride], said[::stride], strict=True)
    ]
    ends = [float(min(measured.min(), said.min())), float(max(measured.max(), said.max()))]
    half_w = 0.0 if model.band is None else model.band.half_w
    diagonal = [
        {"measured": at, "predicted": at, "low": max(at - half_w, 0.0), "high": at + half_w}
        for at in ends
    ]
    title = "Runs left out: predicted over measured"
    if model.band is not None:
        title += f" (blue: ±{half_w:.0f} W, {100 * model.band.level:.0f} %)"
    x = alt.X("measured:Q", title="measured, W", scale=alt.Scale(domain=ends, nice=False))
    y = alt.Y("predicted:Q", title="predicted, W")
    base = alt.Chart(alt.InlineData(values=diagonal), width=_WIDTH, height=_HEIGHT, title=title)
    layers: list[alt.Chart] = []
    if model.band is not None:
        layers.append(
            base.mark_area(opacity=_BAND_OPACITY, color=_MODEL).encode(
                x=x, y=alt.Y("low:Q", title="predicted, W"), y2="high:Q"
            )
        )
    layers.append(
        alt.Chart(alt.InlineData(values=dots))
        .mark_circle(size=9, opacity=0.45, color=_DOT)
        .encode(x=x, y=y)
    )
    layers.append(base.mark_line(color=_MODEL, strokeWidth=2).encode(x=x, y=y))
    return alt.LayerChart(layer=layers)


def _line(model: UtilisationModel, use: FloatArray, place: int) -> list[dict[str, Any]]:
    names = [feature.name for feature in model.features]
    if len(names) == 1:
        grid = np.linspace(use.min(), use.max(), _POINTS)
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
    half_w = 0.0 if model.band is None else model.band.half_w
    return [
        {
            "use": round(at, 5),
            "power": round(watts, 3),
            "low": round(max(watts - half_w, 0.0), 3),
            "high": round(watts + half_w, 3),
        }
        for at, watts in said
    ]
