"""Charts of one run: jobs over the curve, power and queue over time, how jobs fared."""

from __future__ import annotations

from typing import Any

import altair as alt
import numpy as np

from lowtide.experiments.study_looks import (
    NEUTRAL,
    ROWS,
    WIDTH,
    Figure,
    Row,
    layered,
    make_figure,
    policy_color,
    titled,
    tooltip,
)
from lowtide.experiments.study_run import Look, quantiles
from lowtide.experiments.study_table import POLICY, Study
from lowtide.schedule import SPAN_KINDS
from lowtide.signal import FloatArray
from lowtide.units import format_iso

_KINDS = dict(zip(SPAN_KINDS, ("#E69F00", "#0072B2", "#D55E00", "#CC79A7", "#BBBBBB"), strict=True))
_CURVE = "#009E73"
# Over more than this days alone are told on the axis, over less the hours too.
_DAYS_S = 5 * 86_400.0
# A logarithm has no 0: what is less than these is drawn as these.
_SHORTEST_H = 1 / 60
_LEAST_SHARE = 0.01


def jobs_figure(study: Study, look: Look) -> Figure:
    """Draw jobs one by one under the curve they ran on.

    Args:
        study: The runs.
        look: The run.
    """
    begin, end = look.jobs_span
    simulation = look.first
    names = [str(simulation.jobs.id[row]) for row in look.chosen]
    rows: list[dict[str, Any]] = []
    for name, row in zip(names, look.chosen, strict=True):
        arrival, deadline = simulation.jobs.arrival[row], simulation.jobs.deadline[row]
        rows.append(_span(name, "allowed", float(arrival), float(deadline)))
        rows += [
            _span(name, each.kind, each.start, each.end) for each in simulation.schedule(row).spans
        ]
    used = [kind for kind in SPAN_KINDS if any(row["kind"] == kind for row in rows)]
    y = alt.Y("job:N", sort=names, title="job", axis=alt.Axis(labelLimit=90))
    x = _time("start", begin, end)
    shades = alt.Scale(domain=used, range=[_KINDS[kind] for kind in used])
    bars = (
        alt.Chart()
        .transform_filter("datum.kind != 'allowed'")
        # The outline keeps what is shorter than a pixel in sight.
        .mark_bar(height=11, clip=True, strokeWidth=1)
        .encode(
            x=x,
            x2="end:T",
            y=y,
            color=alt.Color("kind:N", scale=shades, legend=alt.Legend(title=None, orient="bottom")),
            stroke=alt.Stroke("kind:N", scale=shades, legend=None),
            opacity=alt.condition("datum.kind == 'suspended'", alt.value(0.35), alt.value(1.0)),
            tooltip=[
                alt.Tooltip("job:N"),
                alt.Tooltip("kind:N"),
                alt.Tooltip("start:T", format="%a %d %b %H:%M", title="from (UTC)"),
                alt.Tooltip("hours:Q", format=".3~g", title="h"),
            ],
        )
    )
    windows = (
        alt.Chart()
        .transform_filter("datum.kind == 'allowed'")
        .mark_rule(color=NEUTRAL, strokeWidth=1.5, clip=True)
        .encode(x=x, x2="end:T", y=y)
    )
    chart = alt.vconcat(
        _curve(look, begin, end),
        alt.layer(windows, bars, data=ROWS).properties(width=WIDTH, height=18 * len(names) + 10),
        spacing=10,
        title=titled(study, f"Jobs under {study.leader}", look.setting),
    ).resolve_scale(x="shared", color="independent")
    return make_figure(
        "jobs",
        chart,
        rows,
        curve=_curve_rows(look, begin, end),
        caption="Above the curve, below a line for each job: thin from its arrival to its "
        "deadline, thick where it ran. The axis ends soon after the last of them: a thin line that "
        "reaches its end goes on to a later deadline. Times are UTC.",
    )


def time_figure(study: Study, look: Look) -> Figure:
    """Draw power and queue length over time under the curve, the leader's and the baseline's.

    Args:
        study: The runs.
        look: The runs.
    """
    edges = look.steps
    begin, end = float(edges[0]), float(edges[-1])
    names = [name for name in look.simulations if name in (study.leader, study.baseline)]
    rows = [
        {POLICY: name, "time": format_iso(time), "power": power / 1000, "queue": queue}
        for name in names
        for time, power, queue in zip(
            edges[:-1].tolist(),
            look.simulations[name].power.mean(edges).tolist(),
            look.simulations[name].queue.mean(edges).tolist(),
            strict=True,
        )
    ]
    color = policy_color(study, names=names)
    parts = [_curve(look, begin, end)]
    for field, title in (("power", "power, kW"), ("queue", "jobs not yet started")):
        parts.append(
            alt.Chart(ROWS, width=WIDTH, height=130)
            .mark_line(interpolate="step-after", strokeWidth=1.5)
            .encode(
                x=_time("time", begin, end),
                y=alt.Y(f"{field}:Q", title=title, axis=alt.Axis(tickCount=4)),
                color=color,
                tooltip=[
                    alt.Tooltip(f"{POLICY}:N"),
                    alt.Tooltip("time:T", format="%a %d %b %H:%M", title="from (UTC)"),
                    alt.Tooltip(f"{field}:Q", format=".4~g", title=title),
                ],
            )
        )
    chart = alt.vconcat(
        *parts, spacing=10, title=titled(study, "Power and queue over time", look.setting)
    ).resolve_scale(x="shared")
    return make_figure(
        "over-time",
        chart,
        rows,
        curve=_curve_rows(look, begin, end),
        caption="The curve, what all jobs drew together, and how many had arrived and not yet "
        "begun. A policy that works draws power where the curve is low. Times are UTC.",
    )


def spread_figures(study: Study, look: Look) -> list[Figure]:
    """Draw how waits, slowdowns and emissions are spread over jobs, for each policy.

    Args:
        study: The runs.
        look: The runs.
    """
    every = look.simulations.items()
    waits_h = np.concatenate([each.wait_s for _, each in every]) / 3600
    floor_h = (
        max(float(np.quantile(waits_h[waits_h > 0], 0.05)), _SHORTEST_H) if waits_h.any() else 1
    )
    waits = {name: np.maximum(each.wait_s / 3600, floor_h) for name, each in every}
    slowdowns = {name: each.slowdown for name, each in every}
    savings = {name: each.saving for name, each in every}
    shares = {
        name: np.maximum(1 - saving, _LEAST_SHARE)
        for name, saving in savings.items()
        if saving is not None and np.isfinite(saving).any() and name != study.baseline
    }
    figures = [
        _spread(
            *(study, look, waits, "cdf-wait", "wait, h", "How long jobs wait"),
            "The share of jobs that wait at most so long, on a logarithmic scale; shorter waits "
            "than its least are drawn there.",
        ),
        _spread(
            *(study, look, slowdowns, "cdf-slowdown", "slowdown", "How much longer jobs take"),
            "The share of jobs whose time from arrival to end is at most so many times their run "
            "time, on a logarithmic scale. 1 is not delayed at all.",
        ),
    ]
    if shares:
        against = look.first.baseline_policy
        title = f"emissions relative to {against}"
        figures.append(
            _spread(
                *(study, look, shares, "cdf-saving", title, "What single jobs save"),
                f"The share of jobs that emit at most so many times what they emit under "
                f"{against}, on a logarithmic scale: 0.5 saves half, right of 1 emits more.",
            )
        )
    return figures


def _spread(
    study: Study,
    look: Look,
    values: dict[str, FloatArray],
    name: str,
    axis_title: str,
    title: str,
    caption: str,
) -> Figure:
    curves = {policy: quantiles(numbers) for policy, numbers in values.items()}
    end = max(float(along[-1]) for along, _ in curves.values())
    rows = [
        {POLICY: policy, "value": value, "share of jobs": share}
        for policy, (along, shares) in curves.items()
        # Every curve goes on to the end of the axis.
        for value, share in zip([*along.tolist(), end], [*shares.tolist(), 1.0], strict=True)
    ]
    line = (
        alt.Chart()
        .mark_line(interpolate="step-after", strokeWidth=2)
        .encode(
            x=alt.X(
                "value:Q",
                title=axis_title,
                scale=alt.Scale(type="log", nice=False),
                axis=alt.Axis(format=".3~g", labelOverlap=True),
            ),
            y=alt.Y(
                "share of jobs:Q",
                title="share of jobs",
                scale=alt.Scale(domain=[0, 1]),
                axis=alt.Axis(format=".0%", tickCount=5),
            ),
            color=policy_color(study, names=list(values)),
            tooltip=tooltip(rows),
        )
    )
    chart = layered(study, [line], title=title, height=260, more=look.setting)
    return make_figure(name, chart, rows, caption=caption)


def _curve(look: Look, begin: float, end: float) -> Any:
    unit = look.signal.unit
    base = alt.Chart().encode(
        x=_time("time", begin, end),
        y=alt.Y("value:Q", title=unit, axis=alt.Axis(tickCount=4)),
        tooltip=[
            alt.Tooltip("time:T", format="%a %d %b %H:%M", title="from (UTC)"),
            alt.Tooltip("value:Q", format=".1f", title=unit),
        ],
    )
    area = base.mark_area(interpolate="step-after", color=_CURVE, opacity=0.18, clip=True)
    line = base.mark_line(interpolate="step-after", color=_CURVE, strokeWidth=1.5, clip=True)
    data = alt.NamedData(name="curve")
    return alt.layer(area, line, data=data).properties(width=WIDTH, height=130)


def _curve_rows(look: Look, begin: float, end: float) -> list[Row]:
    window = look.signal.window(begin, end)
    values = window.values.tolist()
    return [
        {"time": format_iso(time), "value": value}
        for time, value in zip(window.edges.tolist(), [*values, values[-1]], strict=True)
    ]


def _span(job: str, kind: str, start: float, end: float) -> dict[str, Any]:
    hours = (end - start) / 3600
    begun, ended = format_iso(start), format_iso(end)
    return {"job": job, "kind": kind, "start": begun, "end": ended, "hours": hours}


def _time(field: str, begin: float, end: float) -> alt.X:
    hours = "" if end - begin > _DAYS_S else " %H:%M"
    return alt.X(
        f"{field}:T",
        title="time (UTC)",
        scale=alt.Scale(type="utc", domain=[1000 * begin, 1000 * end]),
        axis=alt.Axis(
            format=f"%d %b{hours}",
            labelAngle=0,
            tickCount=7,
            labelOverlap=True,
            labelSeparation=8,
        ),
    )
