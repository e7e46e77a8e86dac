"""A study in words: each question gets one sentence, with figures taken from the runs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from lowtide.experiments.statistics import Effect, Interval
from lowtide.experiments.study_analysis import Comparison, Group, Point
from lowtide.experiments.study_axes import Axis, Level, format_level
from lowtide.experiments.study_table import PLAIN_VERB, Measure, Study
from lowtide.units import (
    MISSING,
    format_count,
    format_hours,
    format_mass,
    format_percent,
)

if TYPE_CHECKING:
    from lowtide.experiments.study_run import Look

# Below this a p value says no more than that it is small.
_SMALL_P = 0.001
_LEVEL = 0.05
# Differences smaller than this share of the larger value are told as none.
_SAME = 0.005


def format_value(value: float | None, measure: Measure) -> str:
    """Return a number of a run, or `---`.

    Args:
        value: It, in its unit.
        measure: What it is.
    """
    return MISSING if value is None else f"{_digits(value, measure)} {measure.unit}".rstrip()


def format_interval(interval: Interval | None, measure: Measure) -> str:
    """Return a mean and its bounds for a table: `23.1 % (21.0 to 25.3)`.

    Args:
        interval: The mean.
        measure: What it is a mean of.
    """
    if interval is None:
        return MISSING
    text = format_value(interval.value, measure)
    if interval.low is None:
        return text
    return f"{text} ({_bounds(interval, measure)})"


def difference_unit(measure: Measure) -> str:
    """Return the unit of a difference: shares differ by points.

    Args:
        measure: What differs.
    """
    return "points" if measure.unit == "%" else measure.unit


def format_p(p: float | None) -> str:
    """Return a p value, or `---`.

    Args:
        p: It.

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
    missed: float,
) -> str:
    """Say which policy does best, by how much, and how long its jobs wait.

    Args:
        study: The runs.
        outcome: The mean outcome of the leader.
        nearest: The policy that comes next, beside the leader; None where there is none.
        waits: The leader's mean wait in hours.
        missed: How many deadlines its jobs missed, in all runs together.
    """
    measure = study.outcome
    text = f"{study.leader} {_does(measure)} {_with_interval(outcome, measure)}"
    if outcome.count == 1:
        text += " in its only run"
    if nearest is not None and nearest.pairs is not None:
        # Of pairs, so that a run that failed under one policy alone does not count.
        behind = -nearest.pairs.difference.value
        if not behind:
            text += f", as does {nearest.policy}"
        else:
            more = "more" if behind > 0 else "less"
            text += f", {_difference(abs(behind), measure)} {more} than {nearest.policy}"
            text += "" if nearest.counts else ", which is no practical difference"
    if waits is not None and measure.key != "mean_wait_s":
        text += f"; its jobs wait {waits.value:.3g} h on average"
    if missed:
        text += f", and {missed:,.0f} missed their deadline"
    return text + "."


def frontier_answer(study: Study, points: Sequence[Point], by: Axis | None) -> str:
    """Say which policies no other beats in both.

    Args:
        study: The runs.
        points: Groups of runs.
        by: What groups were made by besides the policy.
    """
    front = list(dict.fromkeys(point.policy for point in points if point.on_front))
    beaten = [name for name in study.ranking if name not in front]
    if not beaten and by is not None:
        return f"Each policy is on the front for some {by.name}."
    if not beaten:
        return "Each policy is on the front: none waits less and does better than another."
    what = f" at any {by.name}" if by else ""
    return (
        f"On the front {'are' if len(front) > 1 else 'is'} {_listed(front)}; "
        f"{_listed(beaten)} {'are' if len(beaten) > 1 else 'is'} beaten in both wait and "
        f"{study.outcome.name}{what}."
    )


def comparison_answer(study: Study, comparisons: Sequence[Comparison]) -> str:
    """Say whether the nearest policies differ by more than chance.

    Args:
        study: The runs.
        comparisons: Policies beside a reference.
    """
    known = [(each, each.pairs) for each in comparisons if each.pairs is not None]
    if not known:
        return "No two policies ran with the same jobs and grid, so none can be paired."
    same = [each.policy for each, pairs in known if pairs.p is None]
    alike = f"{_listed(same)} came to the same as {known[0][0].reference} in every pair"
    known = [(each, pairs) for each, pairs in known if pairs.p is not None]
    if not known:
        return f"{alike}."
    first, pairs = known[0]
    difference = pairs.difference
    more = difference.value > 0
    # Told by its size, a difference that is less has its bounds the other way round.
    size = difference if more else _turned(difference)
    amount = _difference(size.value, study.outcome)
    if study.outcome.verb == PLAIN_VERB:
        text = f"The {study.outcome.name} of {first.policy} is {amount} "
        text += f"{'higher' if more else 'lower'} than that of {first.reference}"
    else:
        text = f"{first.policy} {study.outcome.verb} {amount} "
        text += f"{'more' if more else 'less'} than {first.reference}"
    if size.low is not None:
        points = replace(study.outcome, unit=difference_unit(study.outcome))
        text += f" (95 % interval {_bounds(size, points)})"
    text += f" over {format_count(difference.count, 'pair')} of runs, p {_p_phrase(first.p)}"
    text += "" if first.counts else ": no practical difference"
    others = [each for each, _ in known[1:]]
    verdicts = {
        f"also without practical difference from {first.reference}": [
            each.policy for each in others if not each.counts
        ],
        f"not told apart from {first.reference} at the 5 % level": [
            each.policy for each in others if each.counts and not _clear(each)
        ],
    }
    differ = [each for each in others if each.counts and _clear(each)]
    for verdict, names in verdicts.items():
        text += f"; {verdict}: {_listed(names)}" if names else ""
    if differ:
        sizes = [abs(pairs.difference.value) for each, pairs in known[1:] if each in differ]
        least = f"{_digits(sizes[0], study.outcome)} to " if len(sizes) > 1 else ""
        text += f"; {_listed([each.policy for each in differ])} "
        text += f"differ{'s' * (len(differ) == 1)} by "
        text += f"{least}{_difference(sizes[-1], study.outcome)}"
    return text + (f"; {alike}." if same else ".")


def verdict(comparison: Comparison) -> str:
    """Return what a paired comparison means in practice.

    Args:
        comparison: Two policies on the same jobs and grids.
    """
    if comparison.pairs is None:
        return MISSING
    if comparison.pairs.p is None:
        return "the same"
    if not comparison.counts:
        return "no practical difference"
    return "differs" if _clear(comparison) else "not told apart"


def practical_note(study: Study, practical: float) -> str:
    """Return what counts as a difference in practice, in a sentence.

    Args:
        study: The runs.
        practical: The least difference that counts.
    """
    least = _difference(practical, study.outcome)
    return f"A mean difference below {least} counts as none in practice."


def effects_answer(study: Study, effects: Sequence[Effect]) -> str:
    """Say what explains most of the differences between runs.

    Args:
        study: The runs.
        effects: What each parameter explains, the residual last.
    """
    known = [effect for effect in effects[:-1] if effect.share is not None]
    if not known:
        return f"The {study.outcome.name} is the same in every run."
    ordered = sorted(known, key=lambda effect: -(effect.share or 0.0))
    text = f"Differences in {study.outcome.name} go first of all with {ordered[0].name} "
    text += f"(η² = {ordered[0].share:.2f})"
    if len(ordered) > 1:
        text += f", then with {ordered[1].name} ({ordered[1].share:.2f})"
    return f"{text}; {_share(effects[-1])} is left to seeds and to what acts together."


def axis_answer(study: Study, axis: Axis, means: Sequence[tuple[Level, float]]) -> str:
    """Say how the leader's outcome changes with a parameter.

    Args:
        study: The runs.
        axis: The parameter.
        means: The leader's mean at each level, in order.
    """
    who, measure = study.leader, study.outcome
    if len(means) < 2:
        return f"{who} ran at one {axis.name} only."
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
            f"{who} {measure.verb} most with {told[high][0]} ({told[high][1]}) and least with "
            f"{told[low][0]} ({told[low][1]})."
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
    """Say where a map is highest and lowest.

    Args:
        what: What is mapped, as the subject of the sentence.
        measure: What it is in.
        axes: The parameters of the map.
        cells: Its means.
    """

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
    """Say what came of the run that is looked at.

    Args:
        study: The runs.
        look: The run.
    """
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
    text = f"Under {study.leader} {format_count(summary['jobs'], 'job')} came to {amount}"
    if summary.get("saving") is not None:
        text += f", {format_percent(summary['saving'])} less than under {summary['baseline']}"
    correlation = summary["power_intensity_correlation"]
    if correlation is not None:
        sign = "−" if correlation < 0 else ""
        text += f"; power and curve correlate at {sign}{abs(correlation):.2f}"
    return f"{text} ({look.setting})." if look.setting else f"{text}."


def spread_answer(study: Study, look: Look) -> str:
    """Say how waits and savings are spread over the jobs of the run that is looked at.

    Args:
        study: The runs.
        look: The run.
    """
    waits = look.first.wait_s
    half, most = np.quantile(waits, [0.5, 0.95])
    at_once = float((waits == 0).mean())
    text = (
        f"Under {study.leader} half of the jobs wait at most {format_hours(half)} and one in "
        f"twenty longer than {format_hours(most)}; {format_percent(at_once)} do not wait at all"
    )
    saving = look.first.saving
    known = np.array([]) if saving is None else saving[np.isfinite(saving)]
    if known.size:
        text += (
            f"; half save more than {format_percent(float(np.median(known)))}, and "
            f"{format_percent(float((known < -1e-9).mean()))} emit more than under "
            f"{look.first.baseline_policy}"
        )
    return f"{text}."


def _with_interval(interval: Interval, measure: Measure) -> str:
    text = format_value(interval.value, measure)
    return text if interval.low is None else f"{text} (95 % interval {_bounds(interval, measure)})"


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


def _clear(comparison: Comparison) -> bool:
    return comparison.p is not None and comparison.p <= _LEVEL


def _share(effect: Effect) -> str:
    return MISSING if effect.share is None else f"{100 * effect.share:.0f} %"


def _p_phrase(p: float | None) -> str:
    text = format_p(p)
    return text if text.startswith("<") else f"= {text}"


def _listed(names: Sequence[str]) -> str:
    return " and ".join(part for part in (", ".join(names[:-1]), *names[-1:]) if part)
