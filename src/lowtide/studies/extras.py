"""Figures that an experiment asks for itself, by `[[report.figures]]`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from lowtide.errors import InvalidInput, UnknownName
from lowtide.studies.analysis import PRACTICAL_POINTS, PRACTICAL_SHARE, group, lead
from lowtide.studies.axes import Axis, format_level
from lowtide.studies.chance import Numbers, numbers
from lowtide.studies.experiment import FIGURE_KEYS, flatten
from lowtide.studies.figures import Figure, Row, axis_figure
from lowtide.studies.study import MEASURES, POLICY, Measure, Study, measure_in, parameter_keys
from lowtide.studies.study_page import Section, Table
from lowtide.studies.words import difference_unit, format_interval, format_value
from lowtide.units import format_percent

# Less than this, in any unit, is rounding.
_ROUNDING = 1e-9


def extra_section(study: Study, report: Mapping[str, Any]) -> Section | None:
    """Return the figures that the `[report]` of an experiment describes; None where it has none."""
    for key in report:
        if key != "figures":
            raise UnknownName("key of [report]", key, ["figures"])
    described = report.get("figures", [])
    if not isinstance(described, list) or not all(isinstance(each, dict) for each in described):
        raise InvalidInput(f"[[report.figures]] are tables of {', '.join(FIGURE_KEYS)}")
    if not described:
        return None
    parts: list[Table | Figure] = []
    for place, each in enumerate(described, 1):
        parts += _figure(study, each, f"extra-{place}")
    return Section(
        name="extras",
        question="What else did the experiment ask for?",
        answer=f"It asks for {len(described)} figure{'s' * (len(described) > 1)} of its own.",
        parts=parts,
    )


def _figure(study: Study, described: Mapping[str, Any], name: str) -> list[Table | Figure]:
    """Return a figure, and where policies are compared the numbers behind it."""
    for key in described:
        if key not in FIGURE_KEYS:
            raise UnknownName("key of [[report.figures]]", key, FIGURE_KEYS)
    if "x" not in described:
        raise InvalidInput("a figure of [[report.figures]] needs x, the parameter it is drawn over")
    measure = _measure(study, str(described.get("value", study.outcome.key)))
    values = numbers(study, measure)
    compared, least = "over" in described, 0.0
    if compared:
        policy, other = (
            _policy(study, described.get(key, study.leader), key) for key in ("policy", "over")
        )
        theirs = values.values[study.rows(other)]
        least = (
            PRACTICAL_POINTS
            if measure.unit == "%"
            else PRACTICAL_SHARE * float(np.nanmean(np.abs(theirs)))
        )
        values = lead(study, policy, other, values)
        title = f"{measure.name}, policy {policy} less policy {other}"
        measure = replace(measure, name=title, unit=difference_unit(measure))
    elif "policy" in described:
        own = _policy(study, described["policy"], "policy")
        values = values.only(each == own for each in study.policies)
    values = values.only(_chosen(study, described.get("where", {})))
    axes = _axes(study, described, one_policy=compared or "policy" in described)
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
        title=str(described.get("title", "")),
    )
    if not compared:
        return [figure]
    rows, table = _pairs(list(axes.values()), values, measure, least)
    return [replace(figure, tables={**figure.tables, "pairs": rows}), table]


def _axes(study: Study, described: Mapping[str, Any], *, one_policy: bool) -> dict[str, Axis]:
    parameters = [POLICY, *parameter_keys(study.runs)]
    axes = {}
    for role in ("x", "color", "facet"):
        default = POLICY if role == "color" and not one_policy else None
        key = described.get(role, default)
        if key is None or (role == "color" and key == described["x"]):
            continue
        if key not in parameters:
            raise UnknownName(f"parameter for {role} of [[report.figures]]", str(key), parameters)
        axes[role] = study.axis(key)
    return axes


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


def _chosen(study: Study, where: object) -> Any:
    """Say of each run whether its parameters are among those that a figure is drawn from."""
    if not isinstance(where, Mapping):
        raise InvalidInput(f"where of [[report.figures]] is a table of keys and lists, not {where}")
    chosen = np.ones(len(study), dtype=bool)
    known = parameter_keys(study.runs)
    for key, values in flatten(where).items():
        if key not in known:
            raise UnknownName("parameter for where of [[report.figures]]", str(key), known)
        listed = values if isinstance(values, list) else [values]
        wanted = {str(value) for value in listed}
        chosen &= np.array([str(value) in wanted for value in study.runs[key].to_list()])
    return chosen


def _policy(study: Study, name: object, role: str) -> str:
    if name not in study.policies:
        raise UnknownName(
            f"policy for {role} of [[report.figures]]", str(name), set(study.policies)
        )
    return str(name)


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
