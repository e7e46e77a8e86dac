"""What a study says of its parameters: what the outcome depends on, and where a policy does best.

A question is one function, which returns its sentence, its table and its figures together. Those
that an experiment asks for itself, by `[[report.figures]]`, come last.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from typing import Any

import numpy as np

from lowtide.errors import InvalidInput, UnknownName
from lowtide.page.looks import PALETTE, alt, make_figure, tooltip
from lowtide.page.page import Figure, Row, Section, Table
from lowtide.studies.analysis import (
    PRACTICAL_POINTS,
    PRACTICAL_SHARE,
    Group,
    Range,
    balanced,
    find_ranges,
    group,
    lead,
    level_means,
    telling,
)
from lowtide.studies.axes import MOST_POLICIES, Axis, Level, format_level, uncrossed
from lowtide.studies.chance import Numbers, numbers
from lowtide.studies.experiment import AskedFigure
from lowtide.studies.figures import (
    axis_figure,
    axis_title,
    capital,
    difference_unit,
    format_interval,
    format_value,
    layered,
    level_texts,
    spread,
)
from lowtide.studies.study import (
    MEASURES,
    PLAIN_VERB,
    POLICY,
    Measure,
    Study,
    measure_in,
    parameter_keys,
)
from lowtide.units import format_percent

# Outcomes that differ by less are the same; those by less than this share are told as such.
_SAME = 1e-6
_SAME_SHARE = 0.005
# Less than this, in any unit, is rounding.
_ROUNDING = 1e-9
# Parameters with a figure of their own, bars in one, rows and columns of a map, failures listed.
_MOST_AXES = 8
_MOST_BARS = 40
_MOST_CELLS = 20
_MOST_PAIRS = 3
# More cells than this have no room for a number in each.
_MOST_NUMBERS = 150


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


def _range(study: Study, found: Range) -> str:
    (least, low), (most, high) = found.low, found.high
    return (
        f"{found.axis.name}: {format_value(low, study.outcome)} with "
        f"{format_level(found.axis, least)}, {format_value(high, study.outcome)} with "
        f"{format_level(found.axis, most)}"
    )


def ranges_figure(study: Study, ranges: Sequence[Range]) -> Figure:
    """Draw between which means the outcome lies over each parameter."""
    rows = [
        {
            "parameter": each.axis.name,
            "least": each.low[1],
            "least with": format_level(each.axis, each.low[0]),
            "most": each.high[1],
            "most with": format_level(each.axis, each.high[0]),
            "values": each.levels,
        }
        for each in ranges
    ]
    base = alt.Chart().encode(
        y=alt.Y("parameter:N", title=None, sort=[str(row["parameter"]) for row in rows]),
        tooltip=tooltip(rows),
    )
    title = f"mean {axis_title(study.outcome)}"
    layers = [
        base.mark_rule(strokeWidth=6, opacity=0.35, color=PALETTE[0]).encode(
            x=alt.X("least:Q", title=title, scale=alt.Scale(padding=70)), x2="most:Q"
        )
    ]
    for end, mark in (
        ("least", base.mark_text(align="right", dx=-8, fontSize=11, limit=200)),
        ("most", base.mark_text(align="left", dx=8, fontSize=11, limit=200)),
    ):
        layers += [
            base.mark_point(size=60, filled=True, opacity=1, color=PALETTE[0]).encode(x=f"{end}:Q"),
            mark.encode(x=f"{end}:Q", text=f"{end} with:N"),
        ]
    return make_figure(
        "effects",
        layered(
            study,
            layers,
            title=f"mean {study.outcome.name} of policy {study.leader} over each parameter, and of "
            "each policy",
            height=34 * len(rows) + 20,
        ),
        rows,
        caption="From the value of a parameter with the lowest mean to the one with the highest. "
        "Values were chosen: a wider choice would have made a wider range.",
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


def axis_answer(study: Study, axis: Axis, means: Sequence[tuple[Level, float]]) -> str:
    """Say how the leader's outcome changes with a parameter."""
    who, measure = f"policy {study.leader}", study.outcome
    if len(means) < 2:
        return f"{capital(who)} ran at one {axis.name} only."
    told = [(format_level(axis, level), format_value(mean, measure)) for level, mean in means]
    values = [mean for _, mean in means]
    high = max(range(len(values)), key=lambda place: values[place])
    low = min(range(len(values)), key=lambda place: values[place])
    if abs(values[high] - values[low]) <= _SAME_SHARE * max(abs(values[high]), abs(values[low])):
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


def map_figure(
    study: Study,
    axes: tuple[Axis, Axis],
    cells: Sequence[Group],
    *,
    measure: Measure,
    name: str,
    title: str,
) -> Figure:
    """Draw a number over two parameters as a map."""
    across, up = axes
    rows = [
        {
            across.name: format_level(across, cell.levels[across.key]),
            up.name: format_level(up, cell.levels[up.key]),
            "runs": cell.interval.count,
            **spread(cell.interval),
            "least": cell.least,
            "most": cell.most,
        }
        for cell in cells
    ]
    means = [cell.interval.value for cell in cells]
    low, high = min(means), max(means)
    numbers = len(rows) <= _MOST_NUMBERS
    base = alt.Chart().encode(
        x=alt.X(
            f"{across.name}:O",
            title=across.name,
            sort=level_texts(across),
            axis=alt.Axis(labelAngle=0, labelOverlap=True),
        ),
        # Numbers rise upwards, as on any other axis.
        y=alt.Y(
            f"{up.name}:O",
            title=up.name,
            sort=level_texts(up) if up.kind == "category" else level_texts(up)[::-1],
        ),
        tooltip=tooltip(rows),
    )
    layers = [
        base.mark_rect(stroke="white", strokeWidth=1).encode(
            color=alt.Color(
                "mean:Q",
                title=axis_title(measure),
                scale=alt.Scale(scheme="tealblues", domain=[low, high if high > low else low + 1]),
                legend=None if numbers else alt.Legend(gradientLength=200),
            )
        )
    ]
    if numbers:
        dark = f"datum.mean > {low + 0.55 * (high - low)}"
        layers.append(
            base.mark_text(fontSize=12).encode(
                text=alt.Text("mean:Q", format=".1f" if measure.unit in ("%", "points") else ".3g"),
                color=alt.condition(dark, alt.value("white"), alt.value("black")),
            )
        )
    return make_figure(
        name,
        layered(study, layers, title=title, height=max(32 * len(up.levels), 130)),
        rows,
        caption=f"Each cell is the mean over the runs with these two values, in "
        f"{measure.unit or measure.name}.",
    )


def extra_section(study: Study, report: Mapping[str, Any]) -> Section | None:
    """Return the figures that the `[report]` of an experiment describes; None where it has none."""
    asked = AskedFigure.read_all(report, [POLICY, *parameter_keys(study.runs)])
    if not asked:
        return None
    parts: list[Table | Figure] = []
    for place, each in enumerate(asked, 1):
        parts += _extra(study, each, f"extra-{place}")
    return Section(
        name="extras",
        question="What else did the experiment ask for?",
        answer=f"It asks for {len(asked)} figure{'s' * (len(asked) > 1)} of its own.",
        parts=parts,
    )


def _extra(study: Study, asked: AskedFigure, name: str) -> list[Table | Figure]:
    """Return a figure, and where policies are compared the numbers behind it."""
    measure = _measure(study, asked.value or study.outcome.key)
    values, least = numbers(study, measure), 0.0
    if asked.over is not None:
        policy = _policy(study, asked.policy or study.leader, "policy")
        other = _policy(study, asked.over, "over")
        theirs = values.values[study.rows(other)]
        least = (
            PRACTICAL_POINTS
            if measure.unit == "%"
            else PRACTICAL_SHARE * float(np.nanmean(np.abs(theirs)))
        )
        values = lead(study, policy, other, values)
        title = f"{measure.name}, policy {policy} less policy {other}"
        measure = replace(measure, name=title, unit=difference_unit(measure))
    elif asked.policy is not None:
        own = _policy(study, asked.policy, "policy")
        values = values.only(each == own for each in study.policies)
    values = values.only(_chosen(study, asked.where))
    one_policy = asked.over is not None or asked.policy is not None
    color = asked.color or (None if one_policy else POLICY)
    keys = {"x": asked.x, "color": None if color == asked.x else color, "facet": asked.facet}
    axes = {role: study.axis(key) for role, key in keys.items() if key is not None}
    groups = group(list(axes.values()), values)
    if not groups:
        raise InvalidInput(
            f"[[report.figures]]: no run knows both {measure.key} and its parameters, or none is "
            "left by where"
        )
    figure = axis_figure(
        study,
        axes["x"],
        groups,
        measure=measure,
        name=name,
        color=axes.get("color"),
        facet=axes.get("facet"),
        title=asked.title,
    )
    if asked.over is None:
        return [figure]
    rows, table = _pairs(list(axes.values()), values, measure, least)
    return [replace(figure, tables={**figure.tables, "pairs": rows}), table]


def _pairs(
    axes: Sequence[Axis], values: Numbers, measure: Measure, least: float
) -> tuple[list[Row], Table]:
    """Return what is behind the means of paired differences: extremes, and how many are worse."""
    cells: dict[tuple[Any, ...], list[float]] = {}
    for row, value in enumerate(values.values.tolist()):
        levels = tuple(axis.values[row] for axis in axes)
        if value == value and None not in levels:
            cells.setdefault(levels, []).append(measure.best * value)
    rows: list[Row] = []
    shown = []
    for found in group(axes, values):
        levels = tuple(found.levels[axis.key] for axis in axes)
        better = np.array(cells[levels])
        worst, best = measure.best * better.min(), measure.best * better.max()
        worse, much = float((better < -_ROUNDING).mean()), float((better < -least).mean())
        interval = found.interval
        texts = [format_level(axis, level) for axis, level in zip(axes, levels, strict=True)]
        rows.append(
            {
                **{axis.name: text for axis, text in zip(axes, texts, strict=True)},
                "pairs": interval.count,
                "mean": interval.value,
                "low": interval.low,
                "high": interval.high,
                "worst": worst,
                "best": best,
                "worse": worse,
                f"worse by {least:.3g}": much,
            }
        )
        shown.append(
            [
                *texts,
                f"{interval.count:,}",
                format_interval(interval, measure),
                format_value(worst, measure),
                format_value(best, measure),
                format_percent(worse),
                format_percent(much),
            ]
        )
    header = (
        *(axis.name for axis in axes),
        *("pairs", f"{measure.name}, mean", "worst", "best", "worse at all"),
        f"worse by more than {least:.3g} {measure.unit}".rstrip(),
    )
    return rows, Table(header=header, rows=shown)


def _chosen(study: Study, where: Mapping[str, Iterable[str]]) -> Any:
    """Say of each run whether its parameters are among those that a figure is drawn from."""
    chosen = np.ones(len(study), dtype=bool)
    for key, wanted in where.items():
        found = study.policies if key == POLICY else study.runs[key].to_list()
        chosen &= np.array([str(value) in wanted for value in found])
    return chosen


def _policy(study: Study, name: str, role: str) -> str:
    if name not in study.policies:
        raise UnknownName(f"policy for {role} of [[report.figures]]", name, set(study.policies))
    return name


def _measure(study: Study, key: str) -> Measure:
    numbers = [
        name
        for name, kind in study.runs.schema.items()
        if kind.is_numeric() and name not in parameter_keys(study.runs)
    ]
    known = {*numbers, study.outcome.key}
    if key not in known:
        raise UnknownName("value of [[report.figures]]", key, known)
    if key in MEASURES:
        return measure_in(study.runs, key)
    return Measure(key=key, name=key.replace("_", " "), unit="")


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
