"""The questions of a study's report, each with its sentence, its table and its figures."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import islice

import numpy as np

from lowtide.studies.analysis import (
    COLUMNS,
    balanced,
    compare,
    find_ranges,
    frontier,
    group,
    lead,
    level_means,
    policy_mean,
    practical_difference,
    setting_ends,
    telling,
)
from lowtide.studies.axes import MOST_POLICIES, Axis, format_level, uncrossed
from lowtide.studies.chance import numbers
from lowtide.studies.closeup import (
    Look,
    cumulative_figure,
    jobs_figure,
    spread_figures,
    time_figure,
)
from lowtide.studies.figures import (
    Figure,
    axis_figure,
    comparison_figure,
    frontier_figure,
    map_figure,
    ranges_figure,
    tradeoffs_figure,
)
from lowtide.studies.folder import queue_words
from lowtide.studies.study import MEASURES, POLICY, Measure, Study, measure_in
from lowtide.studies.study_page import Section, Table
from lowtide.studies.words import (
    axis_answer,
    capital,
    comparison_answer,
    difference_range,
    difference_unit,
    ends_note,
    format_interval,
    format_p,
    format_value,
    frontier_answer,
    frontier_note,
    map_answer,
    policies_answer,
    practical_note,
    ranges_answer,
    run_answer,
    spread_answer,
    verdict,
)
from lowtide.units import MISSING, format_count, format_percent

# Outcomes that differ by less are the same.
_SAME = 1e-6
# Parameters with a figure of their own, bars in one, rows and columns of a map, failures listed.
_MOST_AXES = 8
_MOST_BARS = 40
_MOST_CELLS = 20
_MOST_FAILED = 100
_MOST_PAIRS = 3


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
    tradeoffs = tradeoffs_figure(study) if len(study.ranking) > 1 else None
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
    """Return every policy with the means of its runs and their intervals.

    Args:
        columns: Which numbers are told, where runs know them.
    """
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
        rows.append([policy, str(len(study.rows(policy))), *means, told])
    header = ("policy", "runs", *(measure.name for measure in measures), "missed deadlines")
    return Table(header=header, rows=rows)


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


def effects_section(study: Study) -> Section | None:
    """Say what the outcome depends on; None where nothing but the policy differs."""
    ranges = find_ranges(study)
    if not ranges or (len(ranges) == 1 and ranges[0].axis.key == POLICY):
        return None
    notes = [
        f"Of each parameter the value with the lowest and that with the highest mean "
        f"{study.outcome.name}, over policies and else over the runs of policy {study.leader}. "
        "Values were chosen, so these are ranges of what was run and no estimates of anything else."
    ]
    if study.baseline in study.ranking and len(study.ranking) > 1:
        notes.append(f"Without policy {study.baseline}, against which savings are told.")
    notes += [_together(axis) for axis in study.axes if axis.together]
    if not balanced(study.outcomes, [study.axis(POLICY), *study.axes]):
        apart = [
            f"of {one.name} and {two.name} {ran} of {len({*one.values}) * len({*two.values})}"
            for one, two, ran in uncrossed(study.axes)
        ]
        listed = f" ({'; '.join(apart[:_MOST_PAIRS])})" if apart else ""
        notes.append(
            f"Not every combination ran equally often{listed}, so means of different values are "
            "not over the same other settings."
        )
    rows = [
        [
            each.axis.name,
            str(each.levels),
            *(
                text
                for level, mean in (each.low, each.high)
                for text in (
                    format_level(each.axis, level),
                    format_value(mean, study.outcome),
                )
            ),
        ]
        for each in ranges
    ]
    header = ("parameter", "values", "lowest with", "mean", "highest with", "mean")
    return Section(
        name="effects",
        question=f"What does the {study.outcome.name} depend on?",
        answer=ranges_answer(study, ranges),
        notes=notes,
        parts=[Table(header=header, rows=rows), ranges_figure(study, ranges)],
    )


def axis_sections(study: Study) -> Iterator[Section]:
    """Say how the outcome changes with each parameter, the most telling first."""
    policies = shown_policies(study)
    color = policies if len(policies.levels) > 1 else None
    whose = f"policy {policies.levels[0]}" if color is None else "each policy"
    shown = np.where([name is not None for name in policies.values], study.outcomes, np.nan)
    axes = telling(study, shown, most_levels=len(study))
    for place, axis in enumerate(islice(axes, _MOST_AXES), 1):
        drawn, note = _cut(axis)
        figures = numbers(study, study.outcome)
        groups = group([drawn, *([color] if color is not None else [policies])], figures)
        yield Section(
            name=f"by-{place}",
            question=f"How does the {study.outcome.name} change with {axis.name}?",
            answer=axis_answer(study, axis, level_means(study, axis, study.leader)),
            notes=[*([_together(axis)] if axis.together else []), *note],
            parts=[
                axis_figure(
                    *(study, drawn, groups),
                    measure=study.outcome,
                    name=f"by-{_file_name(axis)}",
                    color=color,
                    title=f"mean {study.outcome.name} of {whose} by {axis.name}",
                )
            ],
        )


def map_sections(study: Study) -> Iterator[Section]:
    """Say where the leader does best, and where it is furthest ahead of the next."""
    measure, figures = study.outcome, numbers(study, study.outcome)
    values = {
        "map": (
            figures.only(name == study.leader for name in study.policies),
            f"Where does policy {study.leader} do best?",
            f"The {measure.name} of policy {study.leader}",
        )
    }
    for name in study.ranking[1:]:
        ahead = lead(study, study.leader, name, figures)
        ahead = replace(ahead, values=measure.best * ahead.values)
        # Over what comes to the same there is no lead, over the baseline it is the saving.
        if name != study.baseline and np.nanmax(np.abs(ahead.values), initial=0.0) > _SAME:
            values["lead"] = (
                ahead,
                f"Where does it matter that policy {study.leader} and not {name} decides?",
                f"The lead of policy {study.leader} over policy {name}",
            )
            break
    for name, (mapped, question, what) in values.items():
        axes = telling(study, mapped.values, most_levels=_MOST_CELLS)[:2]
        if len(axes) < 2:
            continue
        # The longer parameter goes across, where there is room.
        across, up = sorted(axes, key=lambda axis: -len(axis.levels))
        cells = group([across, up], mapped)
        told = (
            measure
            if name == "map"
            else replace(measure, name="lead", unit=difference_unit(measure))
        )
        yield Section(
            name=name,
            question=question,
            answer=map_answer(what, told, (across, up), cells),
            parts=[map_figure(study, (across, up), cells, measure=told, name=name, title=what)],
        )


def run_sections(study: Study, look: Look) -> Iterator[Section]:
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


def job_pairs(study: Study, look: Look) -> list[Table]:
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


def failures_section(study: Study) -> Section | None:
    """List the runs that failed; None where none did."""
    failed = study.failed
    if not failed.height:
        return None
    keys = [
        key
        for key in failed.columns
        if "." in key and len({*failed[key].to_list(), *study.runs[key].to_list()}) > 1
    ]
    rows = [
        [
            ", ".join(f"{key} = {row[key]}" for key in keys if row[key] is not None) or MISSING,
            row["reason"] or MISSING,
        ]
        for row in failed.head(_MOST_FAILED).iter_rows(named=True)
    ]
    reasons = failed["reason"].drop_nulls().to_list()
    counts = sorted({reason: reasons.count(reason) for reason in reasons}.items())
    commonest = max(counts, key=lambda each: each[1])[0] if counts else "not recorded"
    total = failed.height + len(study) + study.lost
    return Section(
        name="failed",
        question="Which runs failed?",
        answer=f"{failed.height} of {total} failed, most often because: {commonest}.".replace(
            "..", "."
        ),
        notes=([f"The first {_MOST_FAILED} are listed."] if failed.height > _MOST_FAILED else []),
        parts=[Table(header=("run", "reason"), rows=rows, words=(0, 1))],
    )


def shown_policies(study: Study) -> Axis:
    """Return the policies that figures over parameters tell apart, as an axis.

    What savings are told against saves nothing by definition, and is left out; so is what comes
    to the same.
    """
    every = study.axis(POLICY)
    names = [name for name in study.ranking if study.outcomes[study.rows(name)].any()]
    names = (names or study.ranking)[:MOST_POLICIES]
    values = tuple(value if value in names else None for value in every.values)
    return replace(every, levels=tuple(names), values=values)


def facts(study: Study) -> list[tuple[str, str]]:
    """Return what a reader must know first, by name."""
    runs = format_count(len(study), "run")
    if study.failed.height:
        runs += f"; {study.failed.height} more failed and are listed below"
    if study.lost:
        runs += f"; {study.lost} more are left out, as their {study.outcome.name} is not known"
    said = [("runs", runs), ("policies", ", ".join(study.ranking)), ("grids", study.grids)]
    if unused := queue_words(study.runs):
        said.append(("queue", unused))
    for axis in study.axes:
        levels = [format_level(axis, level) for level in axis.levels]
        shown = ", ".join(levels[:12]) + (f" and {len(levels) - 12} more" * (len(levels) > 12))
        listed = ", ".join(axis.keys) + (", which vary together" if axis.together else "")
        said.append((axis.name, f"{shown} ({listed})"))
    if study.judged:
        said.append(("judged by", study.judged))
    if study.baseline is not None:
        savings = f"against {study.baseline}, with the same jobs on the same grid"
        # Each run looks at its nodes until it and its own baseline are done: not as long as others.
        if study.told_of and study.has_nodes:
            savings += "; of what jobs emit or cost alone, without what nodes draw beside them"
        said.append(("savings", savings))
    said.append(("intervals", study.chance.sentence))
    return said


def _known(study: Study, measure: Measure) -> bool:
    values = study.measured(measure)
    return values is not None and bool(np.isfinite(values).any())


def _together(axis: Axis) -> str:
    """Say which parameters an axis stands for, where several vary together."""
    (_, first), *others = axis.together
    names = " and ".join(
        part for part in (", ".join(name for _, name in others[:-1]), others[-1][1]) if part
    )
    called = f" (here {axis.name})" if axis.name != first else ""
    return (
        f"{capital(first)} varies together with {names}{called}: which of them makes a difference "
        "cannot be told from these runs."
    )


def _cut(axis: Axis) -> tuple[Axis, list[str]]:
    """Return a parameter with no more names than there is room for, and what to say of it."""
    if axis.kind != "category" or len(axis.levels) <= _MOST_BARS:
        return axis, []
    kept = axis.levels[:_MOST_BARS]
    values = tuple(value if value in kept else None for value in axis.values)
    note = f"Of {len(axis.levels)} values the first {_MOST_BARS} are drawn."
    return replace(axis, levels=kept, values=values), [note]


def _file_name(axis: Axis) -> str:
    return axis.key.replace(".", "-").replace("_", "-")
