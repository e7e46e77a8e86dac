"""How one run of a study is shown: its jobs one by one, power over time, the spread over jobs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from lowtide.page.looks import (
    NEUTRAL,
    WIDTH,
    alt,
    make_figure,
    moment,
    span_colour,
    stepped_curve,
    time_axis,
    tooltip,
)
from lowtide.page.page import Figure, Row, Section
from lowtide.schedule import SPAN_KINDS
from lowtide.signal import FloatArray
from lowtide.steps import Steps
from lowtide.studies.closeup import Closeup, job_pairs, quantiles, run_answer, spread_answer
from lowtide.studies.figures import ROWS, layered, policy_color, titled
from lowtide.studies.study import POLICY, Study
from lowtide.units import format_iso

# Over more than this days alone are told on the axis, over less the hours too.
_DAYS_S = 5 * 86_400.0
# A logarithm has no 0: what is less than these is drawn as these.
_SHORTEST_H = 1 / 60
_LEAST_SHARE = 0.01
_CUMULATIVE_STEPS = 300


def run_sections(study: Study, look: Closeup) -> Iterator[Section]:
    """Show one run closely, and how its jobs fared."""
    notes = [
        f"The run was simulated again for these figures: of the runs of policy {study.leader} the "
        "one nearest to their median."
    ]
    before, now = look.differences(study)
    if before != now:
        notes.append(
            f"It came out differently this time: {now} instead of {before}. lowtide or the "
            "files that the run reads have changed since."
        )
    yield Section(
        name="run",
        question="What does one run look like?",
        answer=run_answer(study, look),
        notes=notes,
        parts=[jobs_figure(study, look), time_figure(study, look), cumulative_figure(study, look)],
    )
    yield Section(
        name="spread",
        question="How are waits and savings spread over jobs?",
        answer=spread_answer(study, look),
        parts=[*job_pairs(study, look), *spread_figures(study, look)],
    )


def jobs_figure(study: Study, look: Closeup) -> Figure:
    """Draw jobs one by one under the curve they ran on."""
    begin, end = look.jobs_span
    simulation = look.first
    names = [str(simulation.jobs.id[row]) for row in look.chosen]
    before, against = simulation.baseline, simulation.baseline_policy
    beside = f"under {against}" if before is not None and against != study.leader else ""
    rows: list[dict[str, Any]] = []
    for name, row in zip(names, look.chosen, strict=True):
        arrival, deadline = simulation.jobs.arrival[row], simulation.jobs.deadline[row]
        rows.append(_span(name, "allowed", float(arrival), float(deadline)))
        rows += [
            _span(name, each.kind, each.start, each.end) for each in simulation.schedule(row).spans
        ]
        if before is not None and beside:
            rows.append(_span(name, beside, float(before.start[row]), float(before.end[row])))
    used = [kind for kind in SPAN_KINDS if any(row["kind"] == kind for row in rows)]
    y = alt.Y("job:N", sort=names, title="job", axis=alt.Axis(labelLimit=90))
    # The curve above, on the same axis, says where that begins and ends. Said here as well, the
    # renderer would warn of two domains, as it reads those of spans differently.
    x = _time("start", begin, end, bounded=False)
    others = {beside: NEUTRAL} if beside else {}
    color = span_colour(used, others)
    bars = (
        alt.Chart()
        .transform_filter(alt.FieldOneOfPredicate(field="kind", oneOf=used))
        # The outline keeps what is shorter than a pixel in sight.
        .mark_bar(height=11, clip=True, strokeWidth=1)
        .encode(
            x=x,
            x2="end:T",
            y=y,
            color=color,
            stroke=span_colour(used, others, channel=alt.Stroke),
            opacity=alt.condition("datum.kind == 'suspended'", alt.value(0.35), alt.value(1.0)),
            tooltip=[
                "job:N",
                "kind:N",
                moment("start"),
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
    layers = [windows, bars]
    if beside:
        layers.append(
            alt.Chart()
            .transform_filter(alt.FieldEqualPredicate(field="kind", equal=beside))
            .mark_bar(height=3, yOffset=9, clip=True)
            .encode(x=x, x2="end:T", y=y, color=color)
        )
    title = f"when jobs ran under policy {study.leader}"
    title += f" and would have run under policy {against}" if beside else ""
    chart = alt.vconcat(
        _curve(look, begin, end),
        alt.layer(*layers, data=ROWS).properties(width=WIDTH, height=24 * len(names) + 10),
        spacing=10,
        title=titled(study, f"{title}, {_period(begin, end)}", look.setting),
    ).resolve_scale(x="shared", color="independent")
    thin_bars = f" The thin grey bars are when it would have run under {against}." if beside else ""
    return make_figure(
        "jobs",
        chart,
        rows,
        curve=_curve_rows(look, begin, end),
        caption="Above the curve that decided, below a line for each job: thin from its arrival to "
        f"its deadline, thick where it ran.{thin_bars} The axis ends soon after the last of them: "
        "a thin line that reaches its end goes on to a later deadline. Times are UTC.",
    )


def time_figure(study: Study, look: Closeup) -> Figure:
    """Draw power, queue and use over time under the curve, the leader's and the baseline's."""
    edges = look.steps
    begin, end = float(edges[0]), float(edges[-1])
    names = [name for name in look.simulations if name in (study.leader, study.baseline)]
    rows: list[Row] = []
    spans = [look.simulations[name].node_spans for name in names]
    # Nodes that nobody gave any watts of their own draw what their jobs do.
    with_nodes = any(each is not None and bool((each.power_w > 0).any()) for each in spans)
    for name in names:
        each = look.simulations[name]
        columns = {
            "power": each.power.mean(edges) / 1000,
            # A mean over an hour would be of parts of jobs.
            "queue": each.queue.at(edges[:-1]),
        }
        if with_nodes and (drawn := each.node_spans) is not None:
            nodes = Steps.of_spans(drawn.begin, drawn.end, drawn.power_w)
            columns["nodes"] = nodes.mean(edges) / 1000
        if each.cluster is not None and each.bought is None:
            columns["use"] = 100 * each.running.mean(edges) / each.cluster.cpus
        times = [format_iso(time) for time in edges[:-1].tolist()]
        for place, time in enumerate(times):
            values = {key: float(column[place]) for key, column in columns.items()}
            rows.append({POLICY: name, "time": time, **values})
    titles = {
        "power": "power of jobs and nodes, kW" if with_nodes else "power of all jobs, kW",
        "nodes": "power of nodes alone, kW",
        "queue": "jobs waiting",
        "use": "CPUs in use, %",
    }
    color = policy_color(study, names=names)
    x = _time("time", begin, end)
    parts = [
        _curve(look, begin, end),
        *(_panel(field, titles[field], x, color) for field in titles if field in rows[0]),
    ]
    shown = ["power", *(["use of CPUs"] if "use" in rows[0] else []), "jobs waiting"]
    title = f"{', '.join(shown[:-1])} and {shown[-1]} under "
    title += f"{' and '.join(f'policy {name}' for name in names)}, {_period(begin, end)}"
    chart = alt.vconcat(*parts, spacing=10, title=titled(study, title, look.setting)).resolve_scale(
        x="shared"
    )
    nodes_words = " and their nodes" if with_nodes else ""
    return make_figure(
        "over-time",
        chart,
        rows,
        curve=_curve_rows(look, begin, end),
        caption=f"The curve that decided, what all jobs{nodes_words} drew together, and how many "
        "jobs had arrived, were not done and did not run, counted at the beginning of each step. A "
        "policy that works draws power where the curve is low. Times are UTC.",
    )


def cumulative_figure(study: Study, look: Closeup) -> Figure:
    """Draw what the jobs that are done have come to by then, under each policy."""
    tallies = {name: each.tally for name, each in look.simulations.items()}
    against = look.first.baseline_policy
    if look.first.baseline is not None and against is not None:
        tallies.setdefault(against, look.first.baseline)
    carbon = look.first.tally.carbon_g is not None
    begin = float(look.first.jobs.arrival.min())
    end = max(float(each.end.max()) for each in tallies.values())
    times = np.linspace(begin, end, _CUMULATIVE_STEPS + 1)
    rows: list[Row] = []
    for name, tally in tallies.items():
        order = np.argsort(tally.end, kind="stable")
        sums = np.concatenate(([0.0], np.cumsum(tally.amount[order])))
        done = sums[np.searchsorted(tally.end[order], times, side="right")]
        rows += [
            {POLICY: name, "time": format_iso(time), "amount": value / (1000 if carbon else 1)}
            for time, value in zip(times.tolist(), done.tolist(), strict=True)
        ]
    what, unit = (
        ("carbon", "CO2e, kg")
        if carbon
        else ("cost of electricity", f"cost, {look.first.currency}")
    )
    line = (
        alt.Chart()
        .mark_line(interpolate="step-after", strokeWidth=2)
        .encode(
            x=_time("time", begin, end),
            y=alt.Y("amount:Q", title=f"{unit}, of all jobs done"),
            color=policy_color(study, names=list(tallies)),
            tooltip=[
                f"{POLICY}:N",
                moment("time", "until (UTC)"),
                alt.Tooltip("amount:Q", format=".4~g", title=unit),
            ],
        )
    )
    title = f"cumulative {what} of the jobs that are done, {_period(begin, end)}"
    return make_figure(
        "cumulative",
        layered(study, [line], title=title, height=260, more=look.setting),
        rows,
        caption="What all jobs that were done by then had come to, from the first arrival to the "
        "last end. A job counts when it is done, with all that it came to; what nodes draw of "
        "their own is not in it. Where the lines end tells what each policy came to. Times are "
        "UTC.",
    )


def spread_figures(study: Study, look: Closeup) -> list[Figure]:
    """Draw how waits, slowdowns and emissions are spread over jobs, for each policy."""
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
    drawn = [
        (
            *(waits, "cdf-wait", "wait, h", "How long jobs wait under each policy"),
            "The share of jobs that wait at most so long, on a logarithmic scale; shorter waits "
            "than its least are drawn there.",
        ),
        (
            *(slowdowns, "cdf-slowdown", "slowdown: from arrival to end, over run time"),
            "How much longer jobs take under each policy",
            "The share of jobs whose time from arrival to end is at most so many times their run "
            "time, on a logarithmic scale. 1 is not delayed at all.",
        ),
    ]
    if shares:
        than = f"relative to {look.first.baseline_policy}"
        drawn.append(
            (
                *(shares, "cdf-saving", f"emissions {than}", f"What single jobs emit {than}"),
                f"The share of jobs that emit at most so many times what they emit under "
                f"{look.first.baseline_policy}, on a logarithmic scale: 0.5 saves half, right of 1 "
                "emits more.",
            )
        )
    return [_spread(study, look, *each) for each in drawn]


def _spread(
    study: Study,
    look: Closeup,
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
                # A thousand is written out, and not as 1e+3.
                axis=alt.Axis(format=",.6~g", labelOverlap=True),
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


def _curve(look: Closeup, begin: float, end: float) -> Any:
    data = alt.NamedData(name="curve")
    return stepped_curve(data, look.signal.unit, x=_time("time", begin, end), height=130)


def _curve_rows(look: Closeup, begin: float, end: float) -> list[Row]:
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


def _panel(field: str, title: str, x: alt.X, color: Any) -> Any:
    """Return a stepped line for each policy over time."""
    return (
        alt.Chart(ROWS, width=WIDTH, height=130)
        .mark_line(interpolate="step-after", strokeWidth=1.5)
        .encode(
            x=x,
            y=alt.Y(f"{field}:Q", title=title, axis=alt.Axis(tickCount=4)),
            color=color,
            tooltip=[
                f"{POLICY}:N",
                moment("time"),
                alt.Tooltip(f"{field}:Q", format=".4~g", title=title),
            ],
        )
    )


def _period(begin: float, end: float) -> str:
    first, last = format_iso(begin)[:10], format_iso(end)[:10]
    return first if first == last else f"{first} to {last}"


def _time(field: str, begin: float, end: float, *, bounded: bool = True) -> Any:
    # Over many days the hours are left out.
    within = (begin, end) if bounded else None
    return time_axis(field, within=within, days=end - begin > _DAYS_S)
