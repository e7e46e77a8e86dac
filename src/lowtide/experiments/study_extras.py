"""Figures that an experiment asks for itself, by `[[report.figures]]`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lowtide.errors import InvalidInput, UnknownName
from lowtide.experiments.study_analysis import group
from lowtide.experiments.study_figures import axis_figure
from lowtide.experiments.study_looks import Figure
from lowtide.experiments.study_table import MEASURES, POLICY, Measure, Study, parameter_keys

KEYS = ("x", "color", "facet", "value", "title")


def extra_figures(study: Study, report: Mapping[str, Any]) -> list[Figure]:
    """Return the figures that the `[report]` of an experiment describes.

    Args:
        study: The runs.
        report: The table.
    """
    for key in report:
        if key != "figures":
            raise UnknownName("key of [report]", key, ["figures"])
    described = report.get("figures", [])
    if not isinstance(described, list) or not all(isinstance(each, dict) for each in described):
        raise InvalidInput("[[report.figures]] are tables of x, color, facet, value and title")
    return [_figure(study, each, f"extra-{place}") for place, each in enumerate(described, 1)]


def _figure(study: Study, described: Mapping[str, Any], name: str) -> Figure:
    for key in described:
        if key not in KEYS:
            raise UnknownName("key of [[report.figures]]", key, KEYS)
    if "x" not in described:
        raise InvalidInput("a figure of [[report.figures]] needs x, the parameter it is drawn over")
    parameters = [POLICY, *parameter_keys(study.runs)]
    axes = {}
    for role in ("x", "color", "facet"):
        key = described.get(role, POLICY if role == "color" else None)
        if key is None or (role == "color" and key == described["x"]):
            continue
        if key not in parameters:
            raise UnknownName(f"parameter for {role} of [[report.figures]]", str(key), parameters)
        axes[role] = study.axis(key)
    measure = _measure(study, str(described.get("value", study.outcome.key)))
    values = study.measured(measure)
    groups = [] if values is None else group(list(axes.values()), values)
    if not groups:
        raise InvalidInput(
            f"[[report.figures]]: no run knows both {measure.key} and its parameters"
        )
    return axis_figure(
        study,
        axes["x"],
        groups,
        measure=measure,
        name=name,
        color=axes.get("color"),
        facet=axes.get("facet"),
        title=str(described.get("title", "")),
    )


def _measure(study: Study, key: str) -> Measure:
    numbers = [
        name
        for name, kind in study.runs.schema.items()
        if kind.is_numeric() and name not in parameter_keys(study.runs)
    ]
    known = {*numbers, study.outcome.key}
    if key not in known:
        raise UnknownName("value of [[report.figures]]", key, known)
    return MEASURES.get(key, Measure(key=key, name=key.replace("_", " "), unit=""))
