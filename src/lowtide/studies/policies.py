"""What a study says of its policies: which does best, and by how much they differ.

A question is one function, which returns its sentence, its table and its figures together.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from lowtide.page.looks import NEUTRAL, WIDTH, alt, make_figure, tooltip, zero_line
from lowtide.page.page import Figure, Section, Table
from lowtide.studies.analysis import (
    COLUMNS,
    PRACTICAL_SHARE,
    PRACTICAL_WAIT_H,
    Point,
    PolicyPair,
    compare,
    frontier,
    group,
    pareto,
    policy_mean,
    practical_difference,
    setting_ends,
)
from lowtide.studies.axes import Axis, format_level
from lowtide.studies.chance import numbers
from lowtide.studies.figures import (
    ROWS,
    axis_title,
    bounds,
    capital,
    difference_unit,
    digits,
    format_difference,
    format_interval,
    format_value,
    knows,
    layered,
    lines_across,
    policy_color,
    spread,
    titled,
)
from lowtide.studies.statistics import Bounded
from lowtide.studies.study import MEASURES, PLAIN_VERB, POLICY, Measure, Study, measure_in
from lowtide.units import MISSING

# Below this a p value says no more than that it is small.
_SMALL_P = 0.001
# Of settings with more parameters than this the names stand below the answer.
_MOST_NAMED = 3
# Parameters that say what jobs are decided by.
_WEIGHING = ("run.weights", "run.decide", "policy.wait")
_NOT_RANDOM = "Nothing here is random: this holds for these runs and says nothing of others."


def policies_section(study: Study) -> Section:
    """Say which policy does best, and what that costs in waiting."""
    outcome = policy_mean(study, study.leader, study.outcome)
    waits = policy_mean(study, study.leader, MEASURES["mean_wait_s"])
    ends = setting_ends(study, study.leader)
    # Who misses more deadlines is told apart, and not as the next best.
    keeping = [
        each for each in compare(study, study.leader) if not study.excess_misses(each.policy)
    ]
    nearest = keeping[0] if keeping and not study.excess_misses(study.leader) else None
    answer = "" if outcome is None else policies_answer(study, outcome, nearest, waits, ends)
    points, by = frontier(study)
    notes = [f"{capital(study.judged)}."] if study.judged else []
    notes += [note for note in (ends_note(study, ends),) if note]
    parts: list[Table | Figure] = [policies_table(study)]
    if points:
        parts.append(frontier_figure(study, points, by))
    if points and len(study.ranking) > 1:
        practical = practical_difference(study, study.leader)
        notes.append(f"{frontier_answer(study, points, by)} {frontier_note(study, practical)}")
    tradeoffs = tradeoffs_figure(study)
    parts += [tradeoffs] if tradeoffs is not None else []
    settings = [sorted(study.settings[row] for row in study.rows(name)) for name in study.ranking]
    if any(each != settings[0] for each in settings):
        notes.append(
            "Not all policies ran in the same settings, so their means are not over the same "
            "jobs and grids; the pairs below are."
        )
    return Section(
        name="policies",
        question="Which policy does best, and what does it cost in waiting?"
        if len(study.ranking) > 1
        else f"How does policy {study.leader} do?",
        answer=answer,
        notes=notes,
        parts=parts,
    )


def policies_table(study: Study, columns: Sequence[str] = COLUMNS) -> Table:
    """Return every policy with the means of its runs and their intervals."""
    # What policies are judged by comes first.
    keys = dict.fromkeys((study.outcome.key, *columns))
    measures = [measure_in(study.runs, key) for key in keys if _known(study, MEASURES[key])]
    rows = []
    for policy in study.ranking:
        means = [
            format_interval(policy_mean(study, policy, measure), measure) for measure in measures
        ]
        missed = study.misses(policy)
        told = MISSING if missed is None else f"{missed:,.0f}"
        # First, as no saving makes up for them.
        rows.append([policy, str(len(study.rows(policy))), told, *means])
    header = ("policy", "runs", "missed deadlines", *(measure.name for measure in measures))
    return Table(header=header, rows=rows)


def policies_answer(
    study: Study,
    outcome: Bounded,
    nearest: PolicyPair | None,
    waits: Bounded | None,
    ends: Sequence[tuple[int, float]],
) -> str:
    """Say which policy does best, by how much, how long its jobs wait, and who was set aside.

    Args:
        nearest: The policy that comes next, beside the leader; None where there is none.
        ends: The leader's chosen settings with the least and the highest outcome, if several.
    """
    measure = study.outcome
    text = f"Policy {study.leader} {_does(measure)} {_with_interval(outcome, study, measure)}"
    if outcome.count == 1:
        text += " in its only run"
    elif ends:
        cells = {study.design.cells[row] for row in study.rows(study.leader)}
        text += f" on average over {len(cells)} settings"
    if nearest is not None and nearest.pairs is not None:
        # Of pairs, so that a run that failed under one policy alone does not count.
        behind = -nearest.pairs.difference.value
        if not behind:
            text += f", as does policy {nearest.policy}"
        else:
            more = "more" if behind > 0 else "less"
            text += (
                f", {format_difference(abs(behind), measure)} {more} than policy {nearest.policy}"
            )
            text += "" if nearest.counts else ", which is no practical difference"
    if waits is not None and measure.key != "mean_wait_s":
        text += f"; its jobs wait {waits.value:.3g} h on average"
    if study.misses(study.leader):
        text += f", and {_missed(study, study.leader)}"
    text += "."
    if ends:
        (first, least), (last, most) = ends
        near, far = format_value(least, measure), format_value(most, measure)
        if len(study.axes) <= _MOST_NAMED:
            near += f" ({study.place(first)})"
            far += f" ({study.place(last)})"
        text += f" Single settings range from {near} to {far}."
    return text + _set_aside(study)


def _with_interval(interval: Bounded, study: Study, measure: Measure) -> str:
    text = format_value(interval.value, measure)
    if interval.low is None:
        return text
    return f"{text} (95 % interval {bounds(interval, measure)} {study.chance.over})"


def ends_note(study: Study, ends: Sequence[tuple[int, float]]) -> str:
    """Name the settings in which the leader does least and most, where the answer does not."""
    if not ends or len(study.axes) <= _MOST_NAMED:
        return ""
    told = [f"{format_value(value, study.outcome)} with {study.place(row)}" for row, value in ends]
    return f"The range of policy {study.leader}: {told[0]}; {told[1]}."


def _set_aside(study: Study) -> str:
    """Say which policies were not named best because of deadlines they missed."""
    late = {name: more for name in study.ranking if (more := study.excess_misses(name))}
    text = ""
    if study.leader in late and len(study.ranking) > 1:
        kept = (
            f"as many deadlines as policy {study.baseline}" if study.baseline else "all deadlines"
        )
        text = f" No policy keeps {kept}; this one comes nearest."
    told = [
        f"policy {name} {_does(study.outcome)} "
        f"{format_value(float(np.mean(study.outcomes[study.rows(name)])), study.outcome)}, but "
        f"{_missed(study, name)}"
        + (f", {more:,.0f} more than under policy {study.baseline}" if study.baseline else "")
        for name, more in late.items()
        if name != study.leader
    ]
    return text + (f" Set aside for missed deadlines: {'; '.join(told)}." if told else "")


def _missed(study: Study, policy: str) -> str:
    jobs = "jobs"
    if "jobs" in study.runs.columns:
        jobs = f"of {sum(study.runs['jobs'][row] or 0 for row in study.rows(policy)):,} jobs"
    return f"{study.misses(policy) or 0:,.0f} {jobs} missed their deadline"


def frontier_answer(study: Study, points: Sequence[Point], by: Axis | None) -> str:
    """Say which policies no other beats."""
    front = list(dict.fromkeys(point.policy for point in points if point.on_front))
    beaten = [name for name in study.ranking if name not in front]
    better = "saves more" if study.outcome.key == "saving" else "does better"
    rule = f"waits less or {better} without being worse in the other"
    some = f" for at least one {by.name}" if by is not None else ""
    every = f" for every {by.name}" if by is not None else ""
    if not beaten:
        return f"No policy is beaten{every}: no other {rule}."
    return (
        f"{capital(_policies(front))} {'are' if len(front) > 1 else 'is'} not beaten{some}; "
        f"{_policies(beaten)} {'are' if len(beaten) > 1 else 'is'} beaten{every}: another {rule}."
    )


def frontier_note(study: Study, practical: float) -> str:
    """Return which differences make no policy beaten, in a sentence."""
    least = format_difference(practical, study.outcome)
    return f"Less than 1 min of waiting and {least} of {study.outcome.name} count as equal."


def frontier_figure(study: Study, points: Sequence[Point], by: Axis | None) -> Figure:
    """Draw the outcome against waiting, a point per group of runs, the front joined."""
    rows = [
        {
            POLICY: point.policy,
            **({} if by is None else {by.name: format_level(by, point.level)}),
            "runs": point.wait.count,
            "wait": point.wait.value,
            "wait low": point.wait.low,
            "wait high": point.wait.high,
            **spread(point.outcome),
            "front": point.on_front,
        }
        for point in points
    ]
    x = alt.X("wait:Q", title="mean wait, h")
    y = alt.Y("mean:Q", title=axis_title(study.outcome))
    base = alt.Chart().encode(color=policy_color(study))
    layers = [
        alt.Chart()
        .transform_filter("datum.front")
        .mark_line(color=NEUTRAL, strokeDash=[5, 4], strokeWidth=2, interpolate="step-after")
        .encode(x=x, y=y),
    ]
    # A field without a single number has no extent, which the renderer warns of.
    if knows(rows, "low"):
        layers.append(
            base.mark_rule(strokeWidth=1.5, opacity=0.55).encode(x=x, y="low:Q", y2="high:Q")
        )
    if knows(rows, "wait low"):
        layers.append(
            base.mark_rule(strokeWidth=1.5, opacity=0.55).encode(
                x="wait low:Q", x2="wait high:Q", y=y
            )
        )
    if by is not None:
        layers.append(base.mark_line(strokeWidth=1, opacity=0.5).encode(x=x, y=y))
    layers.append(
        base.mark_point(size=70, strokeWidth=2).encode(
            x=x,
            y=y,
            fill=policy_color(study, channel=alt.Fill),
            fillOpacity=alt.condition("datum.front", alt.value(1.0), alt.value(0.0)),
            tooltip=tooltip(rows),
        )
    )
    groups = f" and {by.name}" if by is not None else ""
    joined = f" Thin lines join the groups of a policy, by {by.name}." if by is not None else ""
    cross = (
        f"; its cross is the 95 % interval {study.chance.over}"
        if knows(rows, "low") or knows(rows, "wait low")
        else ""
    )
    better = "saves more" if study.outcome.key == "saving" else "does better"
    title = f"mean {study.outcome.name} of each policy against the mean wait of its jobs"
    return make_figure(
        "frontier",
        layered(study, layers, title=title, height=360),
        rows,
        caption=f"A point is the mean over runs of one policy{groups}{cross}. Filled points, "
        f"joined by dashes, are not beaten: nothing else waits less or {better} without being "
        f"worse in the other.{joined}",
    )


def tradeoffs_figure(study: Study) -> Figure | None:
    """Draw carbon, cost and waiting of each policy two by two; None where one is not known."""
    measures = [measure_in(study.runs, key) for key in ("mean_wait_s", "carbon_g", "cost")]
    # What jobs are decided by moves them along the front: each weight is a point of its own.
    by = next((axis for axis in study.axes if axis.key.startswith(_WEIGHING)), None)
    axes = [study.axis(POLICY), *([] if by is None else [by])]
    groups = [group(axes, numbers(study, measure)) for measure in measures]
    told = [[each.levels for each in found] for found in groups]
    if len(told[0]) < 2 or told.count(told[0]) < len(told):
        return None
    points = [[each.interval.value for each in found] for found in zip(*groups, strict=True)]
    least = np.abs(points).max(axis=0)
    front = pareto(
        [[-value for value in values] for values in points],
        (PRACTICAL_WAIT_H, *(PRACTICAL_SHARE * least[1:])),
    )
    names = [measure.key for measure in measures]
    rows = [
        {
            POLICY: str(levels[POLICY]),
            **({} if by is None else {by.name: format_level(by, levels[by.key])}),
            **dict(zip(names, values, strict=True)),
            "front": unbeaten,
        }
        for levels, values, unbeaten in zip(told[0], points, front, strict=True)
    ]
    known = list(dict.fromkeys(str(row[POLICY]) for row in rows))
    parts = []
    for across, up in ((0, 1), (0, 2), (2, 1)):
        parts.append(
            alt.Chart(ROWS, width=WIDTH, height=170)
            .mark_point(size=80, strokeWidth=2)
            .encode(
                x=alt.X(
                    f"{names[across]}:Q",
                    title=axis_title(measures[across]),
                    scale=alt.Scale(zero=False, padding=15),
                ),
                y=alt.Y(
                    f"{names[up]}:Q",
                    title=axis_title(measures[up]),
                    scale=alt.Scale(zero=False, padding=15),
                    axis=alt.Axis(tickCount=4),
                ),
                color=policy_color(study, names=known),
                fill=policy_color(study, channel=alt.Fill, names=known),
                fillOpacity=alt.condition("datum.front", alt.value(1.0), alt.value(0.0)),
                tooltip=tooltip(rows),
            )
        )
    title = "carbon, cost of electricity and mean wait of each policy, two by two"
    each = "" if by is None else f" and {by.name}"
    return make_figure(
        "tradeoffs",
        alt.vconcat(*parts, spacing=14, title=titled(study, title)),
        rows,
        caption=f"A point is the mean over all runs of a policy{each}; down and left is better in "
        "every panel. Filled points are not beaten: no other is better in one of the three "
        "without being worse in another. Less than 1 min and half a percent count as equal.",
    )


def comparison_section(study: Study) -> Section | None:
    """Say by how much policies differ on the same jobs and grids; None where there is only one."""
    if len(study.ranking) < 2:
        return None
    reference = study.leader
    comparisons = compare(study, reference)
    told = replace(study.outcome, unit=difference_unit(study.outcome))
    with_p = any(each.p is not None for each in comparisons)
    rows = []
    for each in comparisons:
        pairs = each.pairs
        row = [each.policy, MISSING if pairs is None else str(pairs.difference.count)]
        row.append(MISSING if pairs is None else format_interval(pairs.difference, told))
        row += (
            [MISSING] * 4
            if pairs is None
            else [
                *(format_value(value, told) for _, value in each.ends),
                str(pairs.higher),
                str(pairs.lower),
            ]
        )
        rows.append([*row, *([format_p(each.p)] if with_p else []), verdict(each)])
    header = (
        *(f"policy, beside {reference}", "pairs of runs"),
        *(f"mean difference in {study.outcome.name}", "least", "most", "higher in", "lower in"),
        *(["p"] if with_p else []),
        "in practice",
    )
    parts: list[Table | Figure] = [Table(header=header, rows=rows)]
    if any(each.pairs is not None for each in comparisons):
        parts.append(comparison_figure(study, comparisons))
    notes = [
        f"{practical_note(study, comparisons[0].practical)} Runs with the same jobs, grid and seed "
        "are paired. Least and most are single pairs."
    ]
    ranges = [
        f"{difference_range(study, each)}: policy {each.policy} less policy {reference}."
        for each in comparisons[:1]
        if difference_range(study, each)
    ]
    if with_p:
        notes[0] += (
            " p is of Wilcoxon's signed-rank test on the means of each draw, two-sided, corrected "
            "for the number of policies (Holm)."
        )
    return Section(
        name="paired",
        question="By how much do policies differ on the same jobs and grid?",
        answer=comparison_answer(study, comparisons),
        notes=[*ranges, *notes],
        parts=parts,
    )


def comparison_answer(study: Study, comparisons: Sequence[PolicyPair]) -> str:
    """Say by how much policies differ, and what of that could be chance."""
    known = [(each, each.pairs) for each in comparisons if each.pairs is not None]
    if not known:
        return "No two policies ran with the same jobs and grid, so none can be paired."
    reference = known[0][0].reference
    same = [each.policy for each, pairs in known if not pairs.higher + pairs.lower]
    alike = f"{_policies(same)} came to the same as policy {reference} in every pair of runs"
    known = [(each, pairs) for each, pairs in known if pairs.higher + pairs.lower]
    if not known:
        return f"{capital(alike)}."
    first, pairs = known[0]
    difference = pairs.difference
    more = difference.value > 0
    # Told by its size, a difference that is less has its bounds the other way round.
    size = difference if more else _turned(difference)
    plain = study.outcome.verb == PLAIN_VERB
    text = _beside(study, [first], [size.value], more=more)
    text += f" than {'that of ' * plain}policy {reference}"
    if size.low is not None:
        points = replace(study.outcome, unit=difference_unit(study.outcome))
        text += f" (95 % interval {bounds(size, points)} {study.chance.over})"
    if difference.count > 1:
        count = pairs.higher if more else pairs.lower
        text += (
            f", and {_way(study.outcome, more=more)} in {count} of {difference.count} pairs of runs"
        )
    text += "" if first.counts else ": no practical difference"
    others = [each for each, _ in known[1:]]
    for more in (False, True):
        differ = [
            (each, abs(pairs.difference.value))
            for each, pairs in known[1:]
            if each.counts and told_apart(each) and (pairs.difference.value > 0) == more
        ]
        if differ:
            names, sizes = zip(*differ, strict=True)
            text += f"; {_beside(study, names, sizes, more=more)}"
    if same_in_practice := [each.policy for each in others if not each.counts]:
        text += f"; between {_listed([f'policy {reference}', *same_in_practice])} there is no "
        text += "practical difference"
    if left_open := [each.policy for each in others if each.counts and not told_apart(each)]:
        text += f"; chance leaves open whether {_policies(left_open)} "
        text += f"{'are' if len(left_open) > 1 else 'is'} better or worse than policy {reference}"
    text = f"{capital(text)}; {alike}." if same else f"{capital(text)}."
    if study.outcome.key == "saving" and study.baseline:
        text += f" Savings are against policy {study.baseline}."
    return f"{text} {study.chance.limits or _NOT_RANDOM}"


def _beside(
    study: Study, policies: Sequence[PolicyPair], sizes: Sequence[float], *, more: bool
) -> str:
    """Say by how much policies lie above a reference, or below it."""
    outcome, many = study.outcome, len(policies) > 1
    amount = format_difference(max(sizes), outcome)
    if digits(min(sizes), outcome) != digits(max(sizes), outcome):
        amount = f"{digits(min(sizes), outcome)} to {amount}"
    names = _policies([each.policy for each in policies])
    if outcome.verb == PLAIN_VERB:
        return f"the {outcome.name} of {names} is {amount} {_way(outcome, more=more)}"
    verb = outcome.verb[: -1 if many else None]
    return f"{names} {verb} {amount} {_way(outcome, more=more)}"


def _way(outcome: Measure, *, more: bool) -> str:
    if outcome.verb == PLAIN_VERB:
        return "higher" if more else "lower"
    return "more" if more else "less"


def told_apart(comparison: PolicyPair) -> bool:
    """Say whether a difference is beyond chance; where nothing is random every one is."""
    if comparison.pairs is None:
        return False
    low, high = comparison.pairs.difference.low, comparison.pairs.difference.high
    return low is None or high is None or low > 0 or high < 0


def difference_range(study: Study, comparison: PolicyPair) -> str:
    """Return between what a difference lies in single pairs, and where; empty of a single pair."""
    if comparison.pairs is None or comparison.pairs.difference.count < 2:
        return ""
    ends = [
        f"{format_difference(value, study.outcome)} with {study.place(row)}"
        if study.axes
        else format_difference(value, study.outcome)
        for row, value in comparison.ends
    ]
    return f"From {ends[0]} to {ends[1]}"


def verdict(comparison: PolicyPair) -> str:
    """Return what a paired comparison means in practice."""
    pairs = comparison.pairs
    if pairs is None:
        return MISSING
    if not pairs.higher + pairs.lower:
        return "the same"
    if not comparison.counts:
        return "no practical difference"
    if pairs.difference.low is None:
        return "differs in these runs"
    return "differs" if told_apart(comparison) else "left open by chance"


def practical_note(study: Study, practical: float) -> str:
    """Return what counts as a difference in practice, in a sentence."""
    least = format_difference(practical, study.outcome)
    return f"A mean difference below {least} counts as none in practice."


def format_p(p: float | None) -> str:
    """Return a p value, or `---`.

    >>> format_p(0.0421), format_p(1e-9)
    ('0.042', '< 0.001')
    """
    if p is None:
        return MISSING
    return f"< {_SMALL_P}" if p < _SMALL_P else f"{p:.2g}"


def comparison_figure(study: Study, comparisons: Sequence[PolicyPair]) -> Figure:
    """Draw by how much policies differ from a reference, with intervals."""
    reference = comparisons[0].reference
    rows = [
        {
            POLICY: each.policy,
            **spread(each.pairs.difference),
            "least": each.ends[0][1],
            "most": each.ends[1][1],
            "pairs": each.pairs.difference.count,
        }
        for each in comparisons
        if each.pairs is not None
    ]
    unit = difference_unit(study.outcome)
    y = alt.Y(f"{POLICY}:N", title=None, sort=[each.policy for each in comparisons])
    title = f"difference in {study.outcome.name} from {reference}, {unit}".rstrip(", ")
    base = alt.Chart().encode(y=y, color=policy_color(study, legend=False))
    layers = [
        zero_line(alt.X, title),
        base.mark_point(size=90, filled=True, opacity=1).encode(
            x=alt.X("mean:Q", title=title), tooltip=tooltip(rows)
        ),
    ]
    low, high, across = lines_across(study, rows, "pairs of runs")
    if low:
        layers.insert(1, base.mark_rule(strokeWidth=3, opacity=0.6).encode(x=f"{low}:Q", x2=high))
    open_ = " A line across the dashed one leaves open who is better." if low == "low" else ""
    return make_figure(
        "paired",
        layered(
            study,
            layers,
            title=f"{study.outcome.name} of each policy less that of policy {reference}, on the "
            "same jobs and grids",
            height=34 * len(rows) + 20,
        ),
        rows,
        caption=f"Points are mean differences from policy {reference} over runs with the same jobs "
        f"and grid{across}.{open_}",
    )


def _turned(interval: Bounded) -> Bounded:
    low = None if interval.high is None else -interval.high
    high = None if interval.low is None else -interval.low
    return replace(interval, value=-interval.value, low=low, high=high)


def _does(measure: Measure) -> str:
    """Return what a policy does to a number, up to the number itself."""
    return measure.verb if measure.verb != PLAIN_VERB else f"{measure.verb} a {measure.name} of"


def _policies(names: Sequence[str]) -> str:
    return f"{'policies' if len(names) > 1 else 'policy'} {_listed(names)}"


def _listed(names: Sequence[str]) -> str:
    return " and ".join(part for part in (", ".join(names[:-1]), *names[-1:]) if part)


def _known(study: Study, measure: Measure) -> bool:
    values = study.measured(measure)
    return values is not None and bool(np.isfinite(values).any())
