"""What the runs of a study say: means with intervals, the frontier, pairs, what explains most."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import numpy as np

from lowtide.experiments.statistics import (
    Effect,
    Interval,
    Paired,
    anova,
    bootstrap,
    compare_pairs,
    holm,
    is_balanced,
)
from lowtide.experiments.study_axes import Axis, Level
from lowtide.experiments.study_table import MEASURES, POLICY, Measure, Study
from lowtide.signal import FloatArray

# What is told of every policy, where runs know it.
COLUMNS = (
    "saving",
    "total_carbon_g",
    "baseline_total_carbon_g",
    "carbon_g",
    "cost",
    "machine_cost",
    "mean_wait_s",
    "p95_wait_s",
    "mean_slowdown",
    "mean_starts",
    "utilisation",
)
# Differences that do not count in practice: points of a share, or part of another number.
PRACTICAL_POINTS = 0.1
PRACTICAL_SHARE = 0.005
# A frontier of more groups per policy than this is a cloud.
_MOST_GROUPS = 8
# A parameter that explains less of the waits than this makes no groups.
_MATTERS = 0.05
# Interactions of parameters are looked at only while they leave this share of the runs over, and
# while the numbers that takes are few enough to be had in a second.
_SPARE = 0.5
_MOST_NUMBERS = 5_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Runs that share some parameters.

    Attributes:
        levels: What they share, by key.
        interval: The mean of what was asked about, with its interval.
    """

    levels: Mapping[str, Level]
    interval: Interval


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """A group of runs between waiting and the outcome.

    Attributes:
        policy: Their policy.
        level: Their value of the parameter that groups are made by; None without one.
        wait: Mean wait in hours.
        outcome: Mean outcome.
        on_front: Whether no other group waits less and does better.
    """

    policy: str
    level: Level | None
    wait: Interval
    outcome: Interval
    on_front: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Two policies on the same jobs and grids.

    Attributes:
        policy: The one.
        reference: The other.
        pairs: What their runs say, the reference subtracted; None where no settings are shared.
        p: Its p value, corrected for how many policies are compared.
        practical: The least mean difference that counts in practice, in the outcome's unit.
    """

    policy: str
    reference: str
    pairs: Paired | None
    p: float | None
    practical: float

    @property
    def counts(self) -> bool:
        """Whether the mean difference is large enough to count in practice."""
        return self.pairs is not None and abs(self.pairs.difference.value) >= self.practical


def group(axes: Sequence[Axis], values: FloatArray) -> list[Group]:
    """Return the mean of a number by parameters, in the order of their levels.

    Args:
        axes: The parameters.
        values: The number, for each run; NaN is left out.
    """
    cells: dict[tuple[Any, ...], list[float]] = {}
    for row, value in enumerate(values.tolist()):
        levels = tuple(axis.values[row] for axis in axes)
        if None not in levels and value == value:
            cells.setdefault(levels, []).append(value)
    places = [{level: place for place, level in enumerate(axis.levels)} for axis in axes]
    ordered = sorted(cells, key=lambda cell: [at[x] for at, x in zip(places, cell, strict=True)])
    keys = [axis.key for axis in axes]
    return [
        Group(levels=dict(zip(keys, cell, strict=True)), interval=bootstrap(cells[cell]))
        for cell in ordered
    ]


def frontier(study: Study) -> tuple[list[Point], Axis | None]:
    """Return the outcome against waiting, by policy and by what changes waiting most.

    Args:
        study: The runs.
    """
    waits = study.measured(MEASURES["mean_wait_s"])
    if study.outcome.key == "mean_wait_s" or waits is None or not np.isfinite(waits).all():
        return [], None
    by = _tradeoff_axis(study, waits)
    axes = [study.axis(POLICY), *([by] if by is not None else [])]
    found = list(zip(group(axes, waits), group(axes, study.outcomes), strict=True))
    front = _front(
        [each.interval.value for each, _ in found],
        [study.outcome.best * each.interval.value for _, each in found],
    )
    points = [
        Point(
            policy=str(wait.levels[POLICY]),
            level=None if by is None else wait.levels[by.key],
            wait=wait.interval,
            outcome=outcome.interval,
            on_front=on_front,
        )
        for (wait, outcome), on_front in zip(found, front, strict=True)
    ]
    return points, by


def compare(study: Study, reference: str) -> list[Comparison]:
    """Return every other policy beside a reference, on settings that both ran in, best first.

    Args:
        study: The runs.
        reference: A policy.
    """
    theirs = _by_setting(study, reference, study.outcomes)
    others = [name for name in study.ranking if name != reference]
    found: list[Paired | None] = []
    for name in others:
        ours = _by_setting(study, name, study.outcomes)
        shared = [setting for setting in ours if setting in theirs]
        found.append(
            compare_pairs([ours[each] for each in shared], [theirs[each] for each in shared])
            if shared
            else None
        )
    corrected = holm([None if pairs is None else pairs.p for pairs in found])
    practical = practical_difference(study, reference)
    return [
        Comparison(policy=name, reference=reference, pairs=pairs, p=p, practical=practical)
        for name, pairs, p in zip(others, found, corrected, strict=True)
    ]


def practical_difference(study: Study, reference: str) -> float:
    """Return the least difference from a policy that counts in practice.

    Many runs tell apart what nobody would notice: a tenth of a point of a share, half a percent of
    any other number, is none.

    Args:
        study: The runs.
        reference: The policy.
    """
    if study.outcome.unit == "%":
        return PRACTICAL_POINTS
    return PRACTICAL_SHARE * abs(float(np.mean(study.outcomes[study.rows(reference)])))


def lead(study: Study, policy: str, other: str, values: FloatArray) -> FloatArray:
    """Return how much more a number is in each run of a policy than in another's like it.

    NaN for runs of other policies, and where the other has no run like it.

    Args:
        study: The runs.
        policy: The policy.
        other: The other policy.
        values: The number, for each run.
    """
    theirs = _by_setting(study, other, values)
    more = np.full(len(study), np.nan)
    for row in study.rows(policy):
        if study.settings[row] in theirs:
            more[row] = values[row] - theirs[study.settings[row]]
    return more


def explain(values: FloatArray, axes: Sequence[Axis], *, pairs: bool = False) -> list[Effect]:
    """Return what each parameter explains of a number, the residual last.

    Args:
        values: The number, for each run; NaN is left out.
        axes: The parameters.
        pairs: Whether to look at parameters two by two as well, where there are runs enough.
    """
    rows = np.flatnonzero(np.isfinite(values))
    if rows.size < 2:
        return []
    factors = {axis.name: [str(axis.values[row]) for row in rows] for axis in axes}
    factors = {name: levels for name, levels in factors.items() if len(set(levels)) > 1}
    if not factors:
        return []
    interactions: list[tuple[str, ...]] = []
    if pairs:
        free = {name: len(set(levels)) - 1 for name, levels in factors.items()}
        every = list(combinations(factors, 2))
        needed = sum(free.values()) + sum(free[one] * free[two] for one, two in every)
        if needed <= min(_SPARE * rows.size, _MOST_NUMBERS / rows.size):
            interactions = [*every]
    return anova(values[rows], factors, interactions=interactions)


def balanced(values: FloatArray, axes: Sequence[Axis]) -> bool:
    """Say whether every combination of parameters ran, and all equally often.

    Args:
        values: A number for each run; where it is NaN the run does not count.
        axes: The parameters, at least one.
    """
    rows = np.flatnonzero(np.isfinite(values))
    return is_balanced({axis.key: [axis.values[row] for row in rows] for axis in axes})


def telling(study: Study, values: FloatArray, *, most_levels: int) -> list[Axis]:
    """Return the parameters besides the policy, those that explain most of a number first.

    Args:
        study: The runs.
        values: The number, for each run; NaN is left out.
        most_levels: Parameters that take more values than this are left out.
    """
    rows = np.flatnonzero(np.isfinite(values))
    axes = [
        axis
        for axis in study.axes
        if 1 < len({axis.values[row] for row in rows} - {None}) <= most_levels
    ]
    shares = {axis.key: _share(axis, values) for axis in axes}
    return sorted(axes, key=lambda axis: -shares[axis.key])


def level_means(study: Study, axis: Axis, policy: str) -> list[tuple[Level, float]]:
    """Return the mean outcome of a policy's runs at each level of a parameter.

    Args:
        study: The runs.
        axis: The parameter.
        policy: Whose runs.
    """
    own = np.array([name == policy for name in study.policies])
    groups = group([axis], np.where(own, study.outcomes, np.nan))
    return [(each.levels[axis.key], each.interval.value) for each in groups]


def policy_mean(study: Study, policy: str, measure: Measure) -> Interval | None:
    """Return the mean of a number over a policy's runs; None where it is not known.

    Args:
        study: The runs.
        policy: The policy.
        measure: The number.
    """
    values = study.measured(measure)
    if values is None:
        return None
    own = values[study.rows(policy)]
    own = own[np.isfinite(own)]
    return bootstrap(own) if own.size else None


def policy_numbers(study: Study) -> list[dict[str, Any]]:
    """Return what each policy comes to for programs: by column of the table, in its units.

    Args:
        study: The runs.
    """
    found = []
    for policy in study.ranking:
        numbers: dict[str, Any] = {POLICY: policy, "runs": len(study.rows(policy))}
        for key in (*COLUMNS, "deadline_misses"):
            mean = policy_mean(study, policy, MEASURES[key])
            values = (None,) * 3 if mean is None else (mean.value, mean.low, mean.high)
            for end, value in zip(("", "_low", "_high"), values, strict=True):
                known = None if value is None else value / MEASURES[key].factor
                numbers[f"{key}{end}"] = known
        found.append(numbers)
    return found


def _by_setting(study: Study, policy: str, values: FloatArray) -> dict[tuple[Any, ...], float]:
    """Return a number of a policy in each setting, the mean where it ran several times."""
    found: dict[tuple[Any, ...], list[float]] = {}
    for row in study.rows(policy):
        found.setdefault(study.settings[row], []).append(float(values[row]))
    return {setting: float(np.mean(values)) for setting, values in found.items()}


def _tradeoff_axis(study: Study, waits: FloatArray) -> Axis | None:
    axes = telling(study, waits, most_levels=_MOST_GROUPS)
    # Names in no order cannot be joined by a line.
    axes = [axis for axis in axes if axis.kind == "number" and None not in axis.values]
    return axes[0] if axes and _share(axes[0], waits) >= _MATTERS else None


def _share(axis: Axis, values: FloatArray) -> float:
    """Return what a parameter explains alone, so that the order of parameters does not matter."""
    effects = explain(values, [axis])
    return (effects[0].share or 0.0) if effects else 0.0


def _front(waits: Sequence[float], values: Sequence[float]) -> list[bool]:
    """Say of each point whether no other waits at most as long and does at least as well."""
    return [
        not any(
            other_wait <= wait and other >= value and (other_wait, other) != (wait, value)
            for other_wait, other in zip(waits, values, strict=True)
        )
        for wait, value in zip(waits, values, strict=True)
    ]
