"""The questions of a study's report, each with its sentence, its table and its figures."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import islice

import numpy as np

from lowtide.experiments.statistics import Effect
from lowtide.experiments.study_analysis import (
    COLUMNS,
    balanced,
    compare,
    explain,
    frontier,
    group,
    lead,
    level_means,
    policy_mean,
    telling,
)
from lowtide.experiments.study_axes import MOST_POLICIES, Axis, format_level, uncrossed
from lowtide.experiments.study_figures import (
    axis_figure,
    comparison_figure,
    effects_figure,
    frontier_figure,
    map_figure,
)
from lowtide.experiments.study_looks import Figure, capital
from lowtide.experiments.study_page import Section, Table
from lowtide.experiments.study_run import Look
from lowtide.experiments.study_run_figures import jobs_figure, spread_figures, time_figure
from lowtide.experiments.study_table import MEASURES, POLICY, Measure, Study
from lowtide.experiments.study_words import (
    axis_answer,
    comparison_answer,
    difference_unit,
    effects_answer,
    format_interval,
    format_p,
    frontier_answer,
    map_answer,
    policies_answer,
    practical_note,
    run_answer,
    spread_answer,
    verdict,
)
from lowtide.units import MISSING, format_count

# Outcomes that differ by less are the same.
_SAME = 1e-6
# Parameters with a figure of their own, bars in one, rows and columns of a map, failures listed.
_MOST_AXES = 8
_MOST_BARS = 40
_MOST_CELLS = 20
_MOST_FAILED = 100
_MOST_EFFECTS = 15
_MOST_PAIRS = 3


def policies_section(study: Study) -> Section:
    """Say which policy does best, and what that costs in waiting.

    Args:
        study: The runs.
    """
    outcome = policy_mean(study, study.leader, study.outcome)
    waits = policy_mean(study, study.leader, MEASURES["mean_wait_s"])
    nearest = compare(study, study.leader)[0] if len(study.ranking) > 1 else None
    answer = (
        ""
        if outcome is None
        else policies_answer(study, outcome, nearest, waits, _misses(study, study.leader) or 0)
    )
    points, by = frontier(study)
    notes = [f"{capital(study.judged)}."] if study.judged else []
    parts: list[Table | Figure] = [policies_table(study)]
    if points:
        parts.append(frontier_figure(study, points, by))
    if points and len(study.ranking) > 1:
        notes.append(frontier_answer(study, points, by))
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
        else f"How does {study.leader} do?",
        answer=answer,
        notes=notes,
        parts=parts,
    )


def policies_table(study: Study, columns: Sequence[str] = COLUMNS) -> Table:
    """Return every policy with the means of its runs and their intervals.

    Args:
        study: The runs.
        columns: Which numbers are told, where runs know them.
    """
    # What policies are judged by comes first.
    keys = dict.fromkeys((study.outcome.key, *columns))
    measures = [MEASURES[key] for key in keys if _known(study, MEASURES[key])]
    rows = []
    for policy in study.ranking:
        means = [
            format_interval(policy_mean(study, policy, measure), measure) for measure in measures
        ]
        missed = _misses(study, policy)
        told = MISSING if missed is None else f"{missed:,.0f}"
        rows.append([policy, str(len(study.rows(policy))), *means, told])
    header = ("policy", "runs", *(measure.name for measure in measures), "missed deadlines")
    return Table(header=header, rows=rows)


def comparison_section(study: Study) -> Section | None:
    """Say whether policies differ by more than chance; None where there is only one.

    Args:
        study: The runs.
    """
    if len(study.ranking) < 2:
        return None
    reference = study.leader
    comparisons = compare(study, reference)
    told = replace(study.outcome, unit=difference_unit(study.outcome))
    rows = [
        [
            each.policy,
            MISSING if each.pairs is None else str(each.pairs.difference.count),
            MISSING if each.pairs is None else format_interval(each.pairs.difference, told),
            MISSING if each.pairs is None else str(each.pairs.higher),
            MISSING if each.pairs is None else str(each.pairs.lower),
            format_p(each.p),
            verdict(each),
        ]
        for each in comparisons
    ]
    header = (
        *(f"policy, beside {reference}", "pairs", f"difference in {study.outcome.name}"),
        *("higher in", "lower in", "p", "in practice"),
    )
    parts: list[Table | Figure] = [Table(header=header, rows=rows)]
    if any(each.pairs is not None for each in comparisons):
        parts.append(comparison_figure(study, comparisons))
    return Section(
        name="paired",
        question="Do policies differ by more than chance?",
        answer=comparison_answer(study, comparisons),
        notes=(
            f"{practical_note(study, comparisons[0].practical)} "
            "Runs with the same jobs, grid and seed are paired. p is of Wilcoxon's signed-rank "
            "test, two-sided, corrected for the number of policies (Holm). Runs that share a grid "
            "or a seed are not independent, so small p values overstate the evidence.",
        ),
        parts=parts,
    )


def effects_section(study: Study) -> Section | None:
    """Say what the outcome depends on; None where nothing differs.

    Args:
        study: The runs.
    """
    policies = shown_policies(study)
    axes = [policies, *study.axes]
    # What saves nothing by definition would only make the policy seem to matter more.
    shown = np.where([name is not None for name in policies.values], study.outcomes, np.nan)
    effects = explain(shown, axes, pairs=True)
    if len(effects) < 2:
        return None
    notes = [
        "An analysis of variance: η² is the share of the sum of squares, F compares a parameter "
        "with what is left over, and p is the chance of so large an F if it had no effect. "
        "a × b is what two parameters do together beyond what each does alone."
    ]
    if len(policies.levels) < len(study.ranking):
        hidden = [name for name in study.ranking if name not in policies.levels]
        notes.append(f"Without {', '.join(hidden)}, here and in the figures below.")
    notes += [_together(axis) for axis in study.axes if axis.together]
    if not balanced(shown, axes):
        apart = [
            f"of {one.name} and {two.name} {ran} of {len({*one.values}) * len({*two.values})}"
            for one, two, ran in uncrossed(study.axes)
        ]
        listed = f" ({'; '.join(apart[:_MOST_PAIRS])})" if apart else ""
        notes.append(
            f"Not every combination ran equally often{listed}, so shares depend on the order in "
            "which parameters are charged: policy first, then as the experiment lists them."
        )
    if not any(" × " in effect.name for effect in effects) and len(axes) > 1:
        notes.append("There are too few runs, or too many, to look at parameters two by two.")
    if len(effects) - 1 > _MOST_EFFECTS:
        notes.append(
            f"The {_MOST_EFFECTS} largest of {len(effects) - 1} terms are shown; effects.csv has "
            "them all."
        )
    parts: list[Table | Figure] = [_effects_table(effects)]
    if effects[-1].share is not None:
        parts.append(effects_figure(study, effects, most=_MOST_EFFECTS))
    return Section(
        name="effects",
        question=f"What does the {study.outcome.name} depend on?",
        answer=effects_answer(study, effects),
        notes=notes,
        parts=parts,
    )


def axis_sections(study: Study) -> Iterator[Section]:
    """Say how the outcome changes with each parameter, the most telling first.

    Args:
        study: The runs.
    """
    policies = shown_policies(study)
    color = policies if len(policies.levels) > 1 else None
    shown = np.where([name is not None for name in policies.values], study.outcomes, np.nan)
    axes = telling(study, shown, most_levels=len(study))
    for place, axis in enumerate(islice(axes, _MOST_AXES), 1):
        drawn, note = _cut(axis)
        groups = group([drawn, *([color] if color is not None else [policies])], study.outcomes)
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
                )
            ],
        )


def map_sections(study: Study) -> Iterator[Section]:
    """Say where the leader does best, and where it is furthest ahead of the next.

    Args:
        study: The runs.
    """
    own = np.array([name == study.leader for name in study.policies])
    measure = study.outcome
    values = {
        "map": (
            np.where(own, study.outcomes, np.nan),
            f"Where does {study.leader} do best?",
            f"The {measure.name} of {study.leader}",
        )
    }
    for name in study.ranking[1:]:
        ahead = measure.best * lead(study, study.leader, name, study.outcomes)
        # Over what comes to the same there is no lead, over the baseline it is the saving.
        if name != study.baseline and np.nanmax(np.abs(ahead), initial=0.0) > _SAME:
            values["lead"] = (
                ahead,
                f"Where does it matter that {study.leader} and not {name} decides?",
                f"The lead of {study.leader} over {name}",
            )
            break
    for name, (numbers, question, what) in values.items():
        axes = telling(study, numbers, most_levels=_MOST_CELLS)[:2]
        if len(axes) < 2:
            continue
        # The longer parameter goes across, where there is room.
        across, up = sorted(axes, key=lambda axis: -len(axis.levels))
        cells = group([across, up], numbers)
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
    """Show one run closely, and how its jobs fared.

    Args:
        study: The runs.
        look: The run, and its like under other policies.
    """
    notes = [
        "The run was simulated again for these figures: of the leader's runs the one nearest to "
        "the median."
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
        parts=[jobs_figure(study, look), time_figure(study, look)],
    )
    yield Section(
        name="spread",
        question="How are waits and savings spread over jobs?",
        answer=spread_answer(study, look),
        parts=spread_figures(study, look),
    )


def failures_section(study: Study) -> Section | None:
    """List the runs that failed; None where none did.

    Args:
        study: The runs.
    """
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

    Args:
        study: The runs.
    """
    every = study.axis(POLICY)
    names = [name for name in study.ranking if study.outcomes[study.rows(name)].any()]
    names = (names or study.ranking)[:MOST_POLICIES]
    values = tuple(value if value in names else None for value in every.values)
    return replace(every, levels=tuple(names), values=values)


def facts(study: Study) -> list[tuple[str, str]]:
    """Return what a reader must know first, by name.

    Args:
        study: The runs.
    """
    runs = format_count(len(study), "run")
    if study.failed.height:
        runs += f"; {study.failed.height} more failed and are listed below"
    if study.lost:
        runs += f"; {study.lost} more are left out, as their {study.outcome.name} is not known"
    said = [("runs", runs), ("policies", ", ".join(study.ranking)), ("grids", study.grids)]
    for axis in study.axes:
        levels = [format_level(axis, level) for level in axis.levels]
        shown = ", ".join(levels[:12]) + (f" and {len(levels) - 12} more" * (len(levels) > 12))
        listed = ", ".join(axis.keys) + (", which vary together" if axis.together else "")
        said.append((axis.name, f"{shown} ({listed})"))
    if study.judged:
        said.append(("judged by", study.judged))
    if study.baseline is not None:
        said.append(("savings", f"against {study.baseline}, with the same jobs on the same grid"))
    said.append(
        (
            "intervals",
            "95 %, by the bootstrap (BCa, 2,000 resamples) over runs: how far a mean would move if "
            "other settings like these had been drawn",
        )
    )
    return said


def _known(study: Study, measure: Measure) -> bool:
    values = study.measured(measure)
    return values is not None and bool(np.isfinite(values).any())


def _misses(study: Study, policy: str) -> float | None:
    values = study.measured(MEASURES["deadline_misses"])
    if values is None:
        return None
    own = values[study.rows(policy)]
    return float(np.nansum(own)) if np.isfinite(own).any() else None


def _effects_table(effects: list[Effect]) -> Table:
    rows = [
        [
            effect.name,
            MISSING if effect.share is None else f"{effect.share:.3f}",
            str(effect.freedom),
            MISSING if effect.f is None else f"{effect.f:,.4g}",
            format_p(effect.p),
        ]
        for effect in [
            *sorted(effects[:-1], key=lambda effect: -(effect.share or 0.0))[:_MOST_EFFECTS],
            effects[-1],
        ]
    ]
    return Table(header=("parameter", "η²", "degrees of freedom", "F", "p"), rows=rows)


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
