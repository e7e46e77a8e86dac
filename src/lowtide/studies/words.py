"""A study in words: each question gets one sentence, with figures taken from the runs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from lowtide.studies.analysis import Comparison, Group, Point, Range
from lowtide.studies.axes import Axis, Level, format_level
from lowtide.studies.statistics import Interval
from lowtide.studies.study import PLAIN_VERB, POLICY, Measure, Study
from lowtide.units import (
    MISSING,
    format_count,
    format_hours,
    format_mass,
    format_percent,
)

if TYPE_CHECKING:
    from lowtide.studies.closeup import Look

# Below this a p value says no more than that it is small.
_SMALL_P = 0.001
# Of settings with more parameters than this the names stand below the answer.
_MOST_NAMED = 3
_NOT_RANDOM = "Nothing here is random: this holds for these runs and says nothing of others."
# Differences smaller than this share of the larger value are told as none.
_SAME = 0.005


def format_value(value: float | None, measure: Measure) -> str:
    """Return a number of a run, or `---`."""
    return MISSING if value is None else f"{_digits(value, measure)} {measure.unit}".rstrip()


def format_interval(interval: Interval | None, measure: Measure) -> str:
    """Return a mean and its bounds, where it has any, for a table: `23.1 % (21.0 to 25.3)`."""
    if interval is None:
        return MISSING
    text = format_value(interval.value, measure)
    if interval.low is None:
        return text
    return f"{text} ({_bounds(interval, measure)})"


def difference_unit(measure: Measure) -> str:
    """Return the unit of a difference: shares differ by points."""
    return "points" if measure.unit == "%" else measure.unit


def format_p(p: float | None) -> str:
    """Return a p value, or `---`.

    >>> format_p(0.0421), format_p(1e-9)
    ('0.042', '< 0.001')
    """
    if p is None:
        return MISSING
    return f"< {_SMALL_P}" if p < _SMALL_P else f"{p:.2g}"


def policies_answer(
    study: Study,
    outcome: Interval,
    nearest: Comparison | None,
    waits: Interval | None,
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
            text += f", {_difference(abs(behind), measure)} {more} than policy {nearest.policy}"
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


def ends_note(study: Study, ends: Sequence[tuple[int, float]]) -> str:
    """Name the settings in which the leader does least and most, where the answer does not.

    Args:
        ends: The leader's chosen settings with the least and the highest outcome, if several.
    """
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
    least = _difference(practical, study.outcome)
    return f"Less than 1 min of waiting and {least} of {study.outcome.name} count as equal."


def comparison_answer(study: Study, comparisons: Sequence[Comparison]) -> str:
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
        text += f" (95 % interval {_bounds(size, points)} {study.chance.over})"
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
    study: Study, policies: Sequence[Comparison], sizes: Sequence[float], *, more: bool
) -> str:
    """Say by how much policies lie above a reference, or below it."""
    outcome, many = study.outcome, len(policies) > 1
    amount = _difference(max(sizes), outcome)
    if _digits(min(sizes), outcome) != _digits(max(sizes), outcome):
        amount = f"{_digits(min(sizes), outcome)} to {amount}"
    names = _policies([each.policy for each in policies])
    if outcome.verb == PLAIN_VERB:
        return f"the {outcome.name} of {names} is {amount} {_way(outcome, more=more)}"
    verb = outcome.verb[: -1 if many else None]
    return f"{names} {verb} {amount} {_way(outcome, more=more)}"


def _way(outcome: Measure, *, more: bool) -> str:
    if outcome.verb == PLAIN_VERB:
        return "higher" if more else "lower"
    return "more" if more else "less"


def told_apart(comparison: Comparison) -> bool:
    """Say whether a difference is beyond chance; where nothing is random every one is."""
    if comparison.pairs is None:
        return False
    low, high = comparison.pairs.difference.low, comparison.pairs.difference.high
    return low is None or high is None or low > 0 or high < 0


def difference_range(study: Study, comparison: Comparison) -> str:
    """Return between what a difference lies in single pairs, and where; empty of a single pair."""
    if comparison.pairs is None or comparison.pairs.difference.count < 2:
        return ""
    ends = [
        f"{_difference(value, study.outcome)} with {study.place(row)}"
        if study.axes
        else _difference(value, study.outcome)
        for row, value in comparison.ends
    ]
    return f"From {ends[0]} to {ends[1]}"


def verdict(comparison: Comparison) -> str:
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
    least = _difference(practical, study.outcome)
    return f"A mean difference below {least} counts as none in practice."


def ranges_answer(study: Study, ranges: Sequence[Range]) -> str:
    """Say which parameters the outcome changes most with.

    Args:
        ranges: Between which means it lies over each parameter, the widest first.
    """
    parameters = [each for each in ranges if each.axis.key != POLICY]
    text = ""
    if parameters:
        told = [_range(study, each) for each in parameters[:2]]
        text = f"The mean {study.outcome.name} of policy {study.leader} changes most with {told[0]}"
        text += f"; then with {told[1]}." if len(told) > 1 else "."
    policies = next((each for each in ranges if each.axis.key == POLICY), None)
    if policies is not None:
        (least, low), (most, high) = policies.low, policies.high
        text += (
            f" Between policies it goes from {format_value(low, study.outcome)} ({least}) to "
            f"{format_value(high, study.outcome)} ({most})."
        )
    return text.strip()


def axis_answer(study: Study, axis: Axis, means: Sequence[tuple[Level, float]]) -> str:
    """Say how the leader's outcome changes with a parameter."""
    who, measure = f"policy {study.leader}", study.outcome
    if len(means) < 2:
        return f"{capital(who)} ran at one {axis.name} only."
    told = [(format_level(axis, level), format_value(mean, measure)) for level, mean in means]
    values = [mean for _, mean in means]
    high = max(range(len(values)), key=lambda place: values[place])
    low = min(range(len(values)), key=lambda place: values[place])
    if abs(values[high] - values[low]) <= _SAME * max(abs(values[high]), abs(values[low])):
        return f"The {measure.name} of {who} does not change with {axis.name}: {told[0][1]}."
    if axis.kind == "category" and measure.verb == PLAIN_VERB:
        return (
            f"The {measure.name} of {who} is highest with {told[high][0]} ({told[high][1]}) and "
            f"lowest with {told[low][0]} ({told[low][1]})."
        )
    if axis.kind == "category":
        return (
            f"{capital(who)} {measure.verb} most with {told[high][0]} ({told[high][1]}) and least "
            f"with {told[low][0]} ({told[low][1]})."
        )
    ends = {0, len(values) - 1}
    if {high, low} == ends:
        way = "rises" if high else "falls"
        return (
            f"From {axis.name} {told[0][0]} to {told[-1][0]} the {measure.name} of {who} {way} "
            f"from {told[0][1]} to {told[-1][1]}."
        )
    return (
        f"The {measure.name} of {who} is highest at {axis.name} {told[high][0]} "
        f"({told[high][1]}) and lowest at {told[low][0]} ({told[low][1]})."
    )


def map_answer(what: str, measure: Measure, axes: Sequence[Axis], cells: Sequence[Group]) -> str:
    """Say where a map is highest and lowest."""

    def place(cell: Group) -> str:
        return ", ".join(
            f"{axis.name} {format_level(axis, cell.levels[axis.key])}" for axis in axes
        )

    high = max(cells, key=lambda cell: cell.interval.value)
    low = min(cells, key=lambda cell: cell.interval.value)
    return (
        f"{what} is largest at {place(high)} ({format_value(high.interval.value, measure)}) and "
        f"smallest at {place(low)} ({format_value(low.interval.value, measure)})."
    )


def run_answer(study: Study, look: Look) -> str:
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


def spread_answer(study: Study, look: Look) -> str:
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


def _with_interval(interval: Interval, study: Study, measure: Measure) -> str:
    text = format_value(interval.value, measure)
    if interval.low is None:
        return text
    return f"{text} (95 % interval {_bounds(interval, measure)} {study.chance.over})"


def _range(study: Study, found: Range) -> str:
    (least, low), (most, high) = found.low, found.high
    return (
        f"{found.axis.name}: {format_value(low, study.outcome)} with "
        f"{format_level(found.axis, least)}, {format_value(high, study.outcome)} with "
        f"{format_level(found.axis, most)}"
    )


def _bounds(interval: Interval, measure: Measure) -> str:
    low, high = (
        MISSING if bound is None else _digits(bound, measure, like=interval.value)
        for bound in (interval.low, interval.high)
    )
    return f"{low} to {high}"


def _digits(value: float, measure: Measure, like: float | None = None) -> str:
    """Return a number with one decimal for shares, else three digits, or as many as another has."""
    scale = abs(value if like is None else like)
    places = 2 - math.floor(math.log10(scale)) if scale > 0 else 0
    if measure.unit in ("%", "points"):
        # A difference below the first decimal is told by its first digit.
        places = min(max(places - 2, 1), 4) if measure.unit == "points" else 1
    places = min(max(places, 0), 6)
    # Adding 0 leaves no "-0".
    return f"{round(value, places) + 0.0:,.{places}f}"


def _difference(value: float, measure: Measure) -> str:
    return format_value(value, replace(measure, unit=difference_unit(measure)))


def _turned(interval: Interval) -> Interval:
    low = None if interval.high is None else -interval.high
    high = None if interval.low is None else -interval.low
    return replace(interval, value=-interval.value, low=low, high=high)


def _does(measure: Measure) -> str:
    """Return what a policy does to a number, up to the number itself."""
    return measure.verb if measure.verb != PLAIN_VERB else f"{measure.verb} a {measure.name} of"


def _policies(names: Sequence[str]) -> str:
    return f"{'policies' if len(names) > 1 else 'policy'} {_listed(names)}"


def capital(text: str) -> str:
    """Return a text that begins with a capital letter."""
    return text[:1].upper() + text[1:]


def _listed(names: Sequence[str]) -> str:
    return " and ".join(part for part in (", ".join(names[:-1]), *names[-1:]) if part)
