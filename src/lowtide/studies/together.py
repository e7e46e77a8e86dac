"""Figures of a queue that was planned together: prices, machines held, who runs when."""

from __future__ import annotations

from datetime import UTC, datetime
from textwrap import wrap
from typing import TYPE_CHECKING, Any

import altair as alt
import numpy as np

from lowtide.grid import Grid, deciding_signal
from lowtide.market.cluster_plan import one_of
from lowtide.page.looks import (
    BLUE,
    WIDTH,
    inline,
    signal_chart,
    stamped,
    stepped_curve,
    time_axis,
    two_colours,
)
from lowtide.steps import Steps

if TYPE_CHECKING:
    from lowtide.market.cluster_plan import ClusterPlan
    from lowtide.market.sites import SitesPlan
    from lowtide.policies.bulk import Plans
    from lowtide.simulator.results import Simulation

_HEIGHT = 110
# More bars than this cannot be told apart.
_MOST_BARS = 4000
# So many letters of a title are as wide as a panel.
_LETTERS = 90


def plan_chart(plan: ClusterPlan) -> Any:
    """Draw carbon, what a node-hour is worth, machines held here and under EASY, and who runs."""
    scarce = plan.scarce or plan.resources[:1]
    prices = [_prices(plan, name) for name in scarce]
    panels = [_carbon(plan), *prices, _held(plan, scarce[0]), _heat(plan, scarce[0]), _gantt(plan)]
    return alt.VConcatChart(vconcat=panels, title=_title(plan)).resolve_scale(color="independent")


def sites_chart(plan: SitesPlan) -> Any:
    """Draw for each site what a kWh counts there, and how many of its nodes are held."""
    first, last = float(plan.jobs.arrival.min()), float(plan.end.max())
    panels = []
    for name, site in plan.sites.items():
        signal = site.signal.window(first, min(last, site.signal.end))
        axis = time_axis("time", within=(first, last))
        rows = inline(stamped(signal.edges, signal.values.tolist()))
        panels.append(
            stepped_curve(
                rows, signal.unit, x=axis, height=_HEIGHT, title=f"{name}: {signal.label}"
            )
        )
        ran, held = plan.simulations[name], np.zeros(len(signal))
        if ran is not None:
            begin, end = ran.runs
            nodes = ran.jobs.nodes[ran.stretches.job]
            held = Steps.of_spans(begin, end, nodes).mean(signal.edges)
        rows = inline(stamped(signal.edges, held.tolist()))
        title = f"{name}: nodes held of {site.cluster.nodes}"
        panels.append(
            alt.Chart(rows, width=WIDTH, height=_HEIGHT // 2, title=title)
            .mark_area(interpolate="step-after", color=BLUE, opacity=0.6)
            .encode(x=axis, y=alt.Y("value:Q", title="nodes", axis=alt.Axis(tickCount=4)))
        )
    return alt.VConcatChart(vconcat=panels, title=_title(plan))


def _title(plan: ClusterPlan | SitesPlan) -> Any:
    """Return a title in lines: one that is wider than its charts would leave half of them empty."""
    return alt.TitleParams(wrap(str(plan), _LETTERS), anchor="start")


def grid_chart(grid: Grid) -> Any:
    """Draw all curves of a grid below each other."""
    return alt.VConcatChart(vconcat=[signal_chart(each, height=_HEIGHT) for each in grid.signals])


def plans_chart(plans: Plans) -> Any:
    """Draw how many jobs save how much."""
    rows = [{"saving": 100 * float(each)} for each in plans.saving[np.isfinite(plans.saving)]]
    chart = alt.Chart(inline(rows), width=WIDTH, height=2 * _HEIGHT, title=repr(plans).strip("<>"))
    return chart.mark_bar(color=BLUE, opacity=0.85).encode(
        x=alt.X("saving:Q", bin=alt.Bin(maxbins=25), title="saved against running at once, %"),
        y=alt.Y("count():Q", title="jobs"),
    )


def simulation_chart(simulation: Simulation) -> Any:
    """Draw the signal, CPUs in use, the queue, and what jobs and nodes have emitted by then."""
    line, signal = simulation.timeline(), deciding_signal(simulation.signal)
    edges = [each.timestamp() for each in line["time"]]
    edges.append(edges[-1] + signal.step_s)
    amount = line.columns[-1]
    unit = signal.currency if signal.kind == "price" else "g"
    shown = {
        "rate": (signal.unit, signal.label),
        "cpus": ("CPUs", "CPUs in use"),
        "queue": ("jobs", "jobs that wait"),
        amount: (unit, "cost so far" if signal.kind == "price" else "emitted so far"),
    }
    panels = [
        stepped_curve(
            inline(stamped(edges, line[name].to_list())),
            axis,
            x=time_axis("time"),
            height=_HEIGHT,
            title=title,
        )
        for name, (axis, title) in shown.items()
    ]
    return alt.VConcatChart(vconcat=panels, title=repr(simulation).strip("<>"))


def _carbon(plan: ClusterPlan) -> Any:
    signal = deciding_signal(plan.simulation.signal)
    signal = signal.window(float(plan.edges[0]), min(float(plan.edges[-1]), signal.end))
    rows = stamped(signal.edges, signal.values.tolist())
    return stepped_curve(
        inline(rows), signal.unit, x=time_axis("time"), height=_HEIGHT, title=signal.label
    )


def _prices(plan: ClusterPlan, resource: str) -> Any:
    signal = deciding_signal(plan.simulation.signal)
    unit = signal.currency if signal.kind == "price" else "g"
    one = one_of(resource)
    price = plan.prices.rent[plan.resources.index(resource)] * 3600 / plan.step_s
    rows = stamped(plan.edges, price.tolist())
    title = f"What an hour of one {one} is worth"
    return stepped_curve(
        inline(rows), f"{unit} per {one}-hour", x=time_axis("time"), height=_HEIGHT, title=title
    )


def _held(plan: ClusterPlan, name: str) -> Any:
    kinds = {"plan": plan.held(resource=name)}
    if plan.easy is not None:
        kinds["EASY"] = plan.held(plan.easy, name)
    rows = [
        {**row, "of": of}
        for of, values in kinds.items()
        for row in stamped(plan.edges, values.tolist(), "held")
    ]
    chart = alt.Chart(inline(rows), width=WIDTH, height=_HEIGHT).mark_line(interpolate="step-after")
    there = alt.Chart(inline(stamped(plan.edges, plan.capacity(name).tolist(), "there")))
    there = there.mark_line(interpolate="step-after", strokeDash=[3, 3], color="grey")
    held = chart.encode(
        x=time_axis("time"),
        y=alt.Y("held:Q", title=f"{name} held"),
        color=two_colours("of", list(kinds)),
    )
    title = f"{name} held, and how many there are (dashed)"
    return (there.encode(x=time_axis("time"), y=alt.Y("there:Q")) + held).properties(title=title)


def _heat(plan: ClusterPlan, resource: str) -> Any:
    """Draw which share of the machines is held, a row for each day."""
    share = plan.held(resource=resource) / np.maximum(plan.capacity(resource), 1e-9)
    cells: dict[tuple[str, int], list[float]] = {}
    for instant, value in zip(plan.edges[:-1].tolist(), share.tolist(), strict=True):
        when = datetime.fromtimestamp(instant, UTC)
        cells.setdefault((f"{when:%Y-%m-%d}", when.hour), []).append(value)
    rows = [
        {"day": day, "hour": hour, "share": float(np.mean(values))}
        for (day, hour), values in cells.items()
    ]
    return (
        alt.Chart(inline(rows), width=WIDTH, height=_HEIGHT, title="Share held, by day and hour")
        .mark_rect()
        .encode(
            x=alt.X("hour:O", title="hour (UTC)"),
            y=alt.Y("day:O", title=None),
            color=alt.Color("share:Q", title="held", scale=alt.Scale(scheme="blues")),
        )
    )


def _gantt(plan: ClusterPlan) -> Any:
    """Draw the runs of jobs, in the order of their arrivals, by what a kWh emits meanwhile."""
    begin, end = plan.simulation.runs
    jobs, signal = plan.jobs, deciding_signal(plan.simulation.signal)
    mean = signal.integral(begin, np.minimum(end, signal.end)) / np.maximum(end - begin, 1e-9)
    every = max(begin.size // _MOST_BARS, 1)
    rows = [
        {
            "job": int(row),
            "id": str(jobs.id[row]),
            "begin": 1000 * float(begin[place]),
            "end": 1000 * float(end[place]),
            "intensity": float(mean[place]),
        }
        for place, row in enumerate(plan.stretches.job.tolist())
        if row % every == 0
    ]
    span = (float(plan.edges[0]), float(plan.edges[-1]))
    title = "Who runs when" + (f" (every {every}. job)" if every > 1 else "")
    return (
        alt.Chart(inline(rows), width=WIDTH, height=2 * _HEIGHT, title=title)
        .mark_bar()
        .encode(
            x=time_axis("begin", within=span),
            x2="end:T",
            y=alt.Y("job:O", title="jobs", axis=None),
            color=alt.Color(
                "intensity:Q",
                title=signal.unit,
                scale=alt.Scale(scheme="viridis"),
            ),
            tooltip=["id:N", alt.Tooltip("intensity:Q", format=".4g")],
        )
    )
