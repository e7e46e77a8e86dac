"""One run of a study looked at closely: simulated again, beside its like under other policies."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

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
from lowtide.page.page import Figure, Row, Section, Table
from lowtide.schedule import SPAN_KINDS
from lowtide.signal import FloatArray, Signal, deciding_signal
from lowtide.simulator.results import Series
from lowtide.studies.figures import ROWS, layered, policy_color, titled
from lowtide.studies.study import POLICY, Study, parameter_keys, run_parameters
from lowtide.units import format_count, format_hours, format_iso, format_mass, format_percent

if TYPE_CHECKING:
    from lowtide.simulator import Simulation

# More curves than this in one chart hide each other.
MOST_CURVES = 6
# More jobs than this one by one, and their lines grow thin.
MOST_JOBS = 16

_DAY_S = 86_400.0
# Power and queue are shown over so many days: a year would hide the hours, which is what matters.
_SHOWN_S = 14 * _DAY_S
_MOST_STEPS = 24 * 14
# The axis of jobs shown one by one is at most so many times as long as a job runs, and goes on
# after the last by this share.
_THINNEST = 30.0
_MARGIN = 0.02
# Outcomes of jobs that differ by less, as a share, are the same.
_SAME = 1e-6
# Over more than this days alone are told on the axis, over less the hours too.
_DAYS_S = 5 * 86_400.0
# A logarithm has no 0: what is less than these is drawn as these.
_SHORTEST_H = 1 / 60
_LEAST_SHARE = 0.01
_CUMULATIVE_STEPS = 300


@dataclass(frozen=True, slots=True, kw_only=True)
class Closeup:
    """The same jobs on the same grid under several policies.

    Attributes:
        row: The run of the leader that was chosen.
        setting: What was run, in words.
        simulations: What came of it, by policy, the leader first.
        chosen: The rows of the jobs to show one by one, in order of arrival.
    """

    row: int
    setting: str
    simulations: Mapping[str, Simulation]
    chosen: tuple[int, ...]

    @property
    def signal(self) -> Signal:
        """The signal that decided."""
        return deciding_signal(self.first.signal)

    @property
    def first(self) -> Simulation:
        """The leader's run."""
        return next(iter(self.simulations.values()))

    @property
    def jobs_span(self) -> tuple[float, float]:
        """From the first arrival of the chosen jobs to the last end, and a little on."""
        rows = list(self.chosen)
        begin = float(self.first.jobs.arrival[rows].min())
        end = float(self.first.tally.end[rows].max())
        return begin, min(end + _MARGIN * (end - begin), self.signal.end)

    @property
    def steps(self) -> FloatArray:
        """The edges of the steps over which power and queue are averaged."""
        every = self.simulations.values()
        begin = min(float(each.jobs.arrival.min()) for each in every)
        end = min(max(float(each.tally.end.max()) for each in every), self.signal.end)
        if end - begin > _SHOWN_S:
            begin = min(max(self.jobs_span[0] - _DAY_S, begin), end - _SHOWN_S)
            end = begin + _SHOWN_S
        step_s = max(self.signal.step_s, (end - begin) / _MOST_STEPS)
        return np.append(np.arange(begin, end, step_s), end)

    def differences(self, study: Study) -> tuple[str, str]:
        """Return what the leader's run emitted, as the table has it and as it came out now."""
        column = "carbon_g" if self.first.tally.carbon_g is not None else "cost"
        amounts = getattr(self.first.tally, column)
        known = study.runs[column][self.row] if column in study.runs.columns else None
        now = f"{float(amounts.sum()):.6g}"
        return (now if known is None else f"{known:.6g}"), now


def choose_row(study: Study) -> int:
    """Return the run of the leader whose outcome lies nearest to the median of its runs."""
    rows = study.rows(study.leader)
    own = study.outcomes[rows]
    return rows[int(np.argmin(np.abs(own - np.median(own))))]


def look_closely(
    study: Study, simulate: Callable[[Sequence[dict[str, Any]]], Iterable[Simulation]]
) -> Closeup:
    """Simulate a run that is like most again, and its like under other policies.

    Args:
        simulate: Turns the parameters of runs into what comes of each.
    """
    row = choose_row(study)
    beside = runs_beside(study, row)
    parameters = [run_parameters(study, place) for place in beside.values()]
    simulations = dict(zip(beside, simulate(parameters), strict=True))
    return Closeup(
        row=row,
        setting=setting_words(study, row),
        simulations=simulations,
        chosen=choose_jobs(simulations[study.leader], MOST_JOBS),
    )


def runs_beside(study: Study, row: int) -> dict[str, int]:
    """Return a run per policy in the setting of a run, its own first, then the best."""
    found = {study.policies[row]: row}
    names = sorted(study.ranking, key=lambda name: name != study.baseline)
    for name in names:
        alike = [each for each in study.rows(name) if study.settings[each] == study.settings[row]]
        if alike and len(found) < MOST_CURVES:
            found.setdefault(name, alike[0])
    return {name: found[name] for name in study.ranking if name in found}


def setting_words(study: Study, row: int) -> str:
    """Return the parameters of a run that differ between runs, in words."""
    parts = [study.place(row)] if study.axes else []
    seeds = [key for key in parameter_keys(study.runs) if key.endswith(".seed")]
    varied = [key for key in seeds if study.runs[key].n_unique() > 1]
    parts += [f"{key} {study.runs[key][row]}" for key in varied]
    return ", ".join(parts)


def choose_jobs(simulation: Simulation, count: int) -> tuple[int, ...]:
    """Return rows of jobs that arrive within a few days around one that is like most.

    Where jobs are rare, only so many that each can still be seen beside the others.
    """
    jobs, saving = simulation.jobs, simulation.saving
    known = np.arange(len(jobs)) if saving is None else np.flatnonzero(np.isfinite(saving))
    middle = len(jobs) // 2
    if saving is not None and known.size:
        middle = int(known[np.argsort(saving[known], kind="stable")[known.size // 2]])
    allowed_s = float(np.median(jobs.deadline - jobs.arrival))
    reach_s = float(np.clip(allowed_s, _DAY_S / 2, 3.5 * _DAY_S))
    away_s = np.abs(jobs.arrival - jobs.arrival[middle])
    near = np.flatnonzero(away_s <= reach_s)
    if near.size < min(count, 3):
        # The nearest, as long as a job is no thinner than a line on the axis of them all.
        near = np.argsort(away_s, kind="stable")[:count]
        ends = np.maximum.accumulate(simulation.tally.end[near])
        spans_s = ends - np.minimum.accumulate(jobs.arrival[near])
        near = near[spans_s <= max(_THINNEST * float(np.median(jobs.run_s)), float(spans_s[0]))]
        near = np.sort(near)
    places = np.unique(np.linspace(0, near.size - 1, min(count, near.size)).round().astype(int))
    return tuple(near[places].tolist())


def quantiles(values: FloatArray, count: int = 200) -> tuple[FloatArray, FloatArray]:
    """Return a distribution as few points: values, and the share of all at most as large.

    Args:
        values: The numbers; NaN is left out.
    """
    known = np.sort(values[np.isfinite(values)])
    share = np.arange(1, known.size + 1) / known.size
    # The last of equal values is where the curve has risen past them.
    last = np.append(np.diff(known) > 0, True)
    known, share = known[last], share[last]
    places = np.unique(np.searchsorted(share, np.linspace(0, 1, count)).clip(0, share.size - 1))
    return known[places], share[places]


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


def run_answer(study: Study, look: Closeup) -> str:
    """Say what came of the run that is looked at."""
    summary = look.first.summary()
    # A saving stands beside what it is told of: jobs and nodes together, here and there.
    ours, theirs = summary["total_carbon_g"], summary.get("baseline_total_carbon_g")
    amount = f"{format_mass(ours)} of CO2e"
    beside = "" if theirs is None else f" ({format_mass(theirs)} under {summary['baseline']})"
    if ours is None:
        ours, theirs = summary["total_cost"], summary.get("baseline_total_cost")
        amount = f"{ours:.4g} {summary['currency']} of electricity"
        beside = "" if theirs is None else f" ({theirs:.4g} under {summary['baseline']})"
    amount += beside
    text = f"Under policy {study.leader} {format_count(summary['jobs'], 'job')} came to {amount}"
    if summary.get("saving") is not None:
        less = "less" if summary["saving"] >= 0 else "more"
        text += f", {format_percent(abs(summary['saving']))} {less} than under policy "
        text += f"{summary['baseline']}"
    correlation = summary["power_intensity_correlation"]
    if correlation is not None:
        sign = "−" if correlation < 0 else ""
        what = "price" if summary["carbon_g"] is None else "carbon intensity"
        text += f"; power and {what} correlate at {sign}{abs(correlation):.2f}"
    return f"{text} ({look.setting})." if look.setting else f"{text}."


def spread_answer(study: Study, look: Closeup) -> str:
    """Say how waits and savings are spread over the jobs of the run that is looked at."""
    waits = look.first.wait_s
    half, most = np.quantile(waits, [0.5, 0.95])
    at_once = float((waits == 0).mean())
    text = (
        f"Under policy {study.leader} half of the jobs wait at most {format_hours(half)} and one "
        f"in twenty {format_hours(most)} or longer; {format_percent(at_once)} do not wait at all"
    )
    saving = look.first.saving
    known = np.array([]) if saving is None else saving[np.isfinite(saving)]
    if known.size:
        what = "cost" if look.first.tally.carbon_g is None else "emit"
        text += (
            f"; half save more than {format_percent(float(np.median(known)))}, and "
            f"{format_percent(float((known < -1e-9).mean()))} {what} more than under policy "
            f"{look.first.baseline_policy}"
        )
    return f"{text}."


def job_pairs(study: Study, look: Closeup) -> list[Table]:
    """Return how the same jobs fare under other policies than the leader's, if there are any."""
    ours = look.first.tally
    rows = []
    for name, simulation in look.simulations.items():
        theirs = simulation.tally
        if name == study.leader or theirs.amount.shape != ours.amount.shape:
            continue
        apart = theirs.amount - ours.amount
        same = np.abs(apart) <= _SAME * np.maximum(np.abs(ours.amount), np.abs(theirs.amount))
        later = theirs.end - ours.end
        rows.append(
            [
                name,
                f"{apart.size:,}",
                *(format_percent(float(each.mean())) for each in (~same & (apart < 0), same)),
                format_percent(float((~same & (apart > 0)).mean())),
                *(format_percent(float(each.mean())) for each in (later < -60, later > 60)),
            ]
        )
    what = "emit" if ours.carbon_g is not None else "cost"
    header = (
        *(f"policy, beside {study.leader}", "the same jobs", f"{what} less", f"{what} the same"),
        *(f"{what} more", "are done earlier", "are done later"),
    )
    return [Table(header=header, rows=rows)] if rows else []


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
            nodes = Series.of_spans(drawn.begin, drawn.end, drawn.power_w)
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
