"""What the runs of a study say: means, the frontier, pairs, and what the outcome depends on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from lowtide.signal import FloatArray
from lowtide.studies.axes import Axis, Level
from lowtide.studies.chance import Numbers, numbers
from lowtide.studies.statistics import Bounded, anova, holm, is_balanced
from lowtide.studies.study import MEASURES, POLICY, Measure, Study

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
    "p99_wait_s",
    "mean_slowdown",
    "mean_starts",
    "utilisation",
    "fairness",
    "marginal_carbon_g",
)
# Differences that do not count in practice: points of a share, or part of another number.
PRACTICAL_POINTS = 0.1
PRACTICAL_SHARE = 0.005
PRACTICAL_WAIT_H = 1 / 60
# A frontier of more groups per policy than this is a cloud.
_MOST_GROUPS = 8
# A parameter that explains less of the waits than this makes no groups.
_MATTERS = 0.05
# Differences of outcomes below this share of the largest are rounding.
_ROUNDING = 1e-12


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Runs that share some parameters.

    Attributes:
        levels: What they share, by key.
        interval: The mean of what was asked about, with its interval where something was random.
    """

    levels: Mapping[str, Level]
    interval: Bounded
    least: float
    most: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Range:
    """Between which means an outcome lies over the values of a parameter.

    Attributes:
        low: The value with the least mean, and that mean.
        high: The value with the highest, likewise.
    """

    axis: Axis
    low: tuple[Level, float]
    high: tuple[Level, float]
    levels: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """A group of runs between waiting and the outcome.

    Attributes:
        level: Their value of the parameter that groups are made by; None without one.
        on_front: Whether no other group waits less or does better, and neither worse.
    """

    policy: str
    level: Level | None
    wait: Bounded
    outcome: Bounded
    on_front: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Paired:
    """What became of the same settings under two policies.

    Attributes:
        difference: The mean of the first less the second, with its interval.
        p: Probability of so lopsided ranks if the sign of each difference were a toss of a coin;
            None where nothing was drawn or nothing differs.
    """

    difference: Bounded
    higher: int
    lower: int
    p: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyPair:
    """Two policies on the same jobs and grids.

    Attributes:
        pairs: What their runs say, the reference subtracted; None where no settings are shared.
        p: Its p value, corrected for how many policies are compared; None unless seeds were drawn.
        practical: The least mean difference that counts in practice, in the outcome's unit.
        ends: The runs with the least and the most of the difference, and how large it is there.
    """

    policy: str
    reference: str
    pairs: Paired | None
    p: float | None
    practical: float
    ends: tuple[tuple[int, float], ...]

    @property
    def counts(self) -> bool:
        """Whether the mean difference is large enough to count in practice."""
        return self.pairs is not None and abs(self.pairs.difference.value) >= self.practical


def group(axes: Sequence[Axis], figures: Numbers) -> list[Group]:
    """Return the mean of a number by parameters, in the order of their levels.

    Args:
        figures: The number, for each run; NaN is left out.
    """
    cells: dict[tuple[Any, ...], list[int]] = {}
    for row in np.flatnonzero(np.isfinite(figures.values)).tolist():
        levels = tuple(axis.values[row] for axis in axes)
        if None not in levels:
            cells.setdefault(levels, []).append(row)
    places = [{level: place for place, level in enumerate(axis.levels)} for axis in axes]
    ordered = sorted(cells, key=lambda cell: [at[x] for at, x in zip(places, cell, strict=True)])
    keys = [axis.key for axis in axes]
    return [
        Group(
            levels=dict(zip(keys, cell, strict=True)),
            interval=figures.mean(cells[cell]),
            least=float(figures.values[cells[cell]].min()),
            most=float(figures.values[cells[cell]].max()),
        )
        for cell in ordered
    ]


def frontier(study: Study) -> tuple[list[Point], Axis | None]:
    """Return the outcome against waiting, by policy and by what changes waiting most."""
    waits = numbers(study, MEASURES["mean_wait_s"])
    if study.outcome.key == "mean_wait_s" or not np.isfinite(waits.values).all():
        return [], None
    by = _tradeoff_axis(study, waits.values)
    axes = [study.axis(POLICY), *([by] if by is not None else [])]
    outcomes = group(axes, numbers(study, study.outcome))
    found = list(zip(group(axes, waits), outcomes, strict=True))
    front = pareto(
        [
            (-wait.interval.value, study.outcome.best * outcome.interval.value)
            for wait, outcome in found
        ],
        (PRACTICAL_WAIT_H, practical_difference(study, study.leader)),
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


def pareto(points: Sequence[Sequence[float]], tolerances: Sequence[float]) -> list[bool]:
    """Say of each point whether no other beats it.

    One beats another where it is better in something by more than the tolerance, and worse in
    nothing by more than that: who waits two seconds longer is not beaten.

    >>> pareto([(0.0, 30.0), (-9.0, 30.05), (-9.0, 20.0)], (1.0, 0.1))
    [True, False, False]
    """
    table, slack = np.array(points), np.array(tolerances)
    front = []
    for one in table:
        better = table - one
        beaten = (better > slack).any(axis=1) & (better >= -slack).all(axis=1)
        front.append(not bool(beaten.any()))
    return front


def compare(study: Study, reference: str) -> list[PolicyPair]:
    """Return every other policy beside a reference, on settings that both ran in, best first."""
    figures = numbers(study, study.outcome)
    practical = practical_difference(study, reference)
    others = [name for name in study.ranking if name != reference]
    # What is smaller than this is rounding.
    rounding = _ROUNDING * float(np.abs(study.outcomes).max())
    found: list[tuple[Paired | None, tuple[tuple[int, float], ...]]] = []
    for name in others:
        ahead = lead(study, name, reference, figures)
        rows = np.flatnonzero(np.isfinite(ahead.values)).tolist()
        if not rows:
            found.append((None, ()))
            continue
        apart = ahead.values[rows]
        pairs = Paired(
            difference=ahead.mean(rows),
            higher=int((apart > rounding).sum()),
            lower=int((apart < -rounding).sum()),
            p=ahead.p(rows),
        )
        ends = (int(apart.argmin()), int(apart.argmax()))
        found.append((pairs, tuple((rows[place], float(apart[place])) for place in ends)))
    corrected = holm([None if pairs is None else pairs.p for pairs, _ in found])
    return [
        PolicyPair(
            policy=name,
            reference=reference,
            pairs=pairs,
            p=p,
            practical=practical,
            ends=ends,
        )
        for name, (pairs, ends), p in zip(others, found, corrected, strict=True)
    ]


def practical_difference(study: Study, reference: str) -> float:
    """Return the least difference from a policy that counts in practice.

    Many runs tell apart what nobody would notice: a tenth of a point of a share, half a percent of
    any other number, is none.
    """
    if study.outcome.unit == "%":
        return PRACTICAL_POINTS
    return PRACTICAL_SHARE * abs(float(np.mean(study.outcomes[study.rows(reference)])))


def lead(study: Study, policy: str, other: str, figures: Numbers) -> Numbers:
    """Return how much more a number is in each run of a policy than in another's like it.

    NaN for runs of other policies, and where the other has no run like it.
    """
    theirs = study.alike(other)
    return figures.less(
        {
            row: theirs[study.settings[row]]
            for row in study.rows(policy)
            if study.settings[row] in theirs
        }
    )


def find_ranges(study: Study) -> list[Range]:
    """Return between which means the outcome lies over each parameter, the widest first.

    Over policies these are the means of each; over other parameters those of the leader. What
    savings are told against saves nothing by definition, and is left out.
    """
    figures = numbers(study, study.outcome)
    named = study.axis(POLICY)
    kept = [name != study.baseline for name in study.policies]
    own = figures.only(name == study.leader for name in study.policies)
    every = [(named, figures.only(kept)), *((axis, own) for axis in study.axes)]
    found = []
    for axis, of in every:
        means = [(each.levels[axis.key], each.interval.value) for each in group([axis], of)]
        if len(means) > 1:
            low, high = (end(means, key=lambda each: each[1]) for end in (min, max))
            found.append(Range(axis=axis, low=low, high=high, levels=len(means)))
    return sorted(found, key=lambda each: each.low[1] - each.high[1])


def explained(values: FloatArray, axis: Axis) -> float:
    """Return the share of the differences in a number that goes with a parameter alone.

    It orders figures; nothing is concluded from it.

    Args:
        values: The number, for each run; NaN is left out.
    """
    rows = np.flatnonzero(np.isfinite(values))
    levels = [str(axis.values[row]) for row in rows]
    if len(set(levels)) < 2:
        return 0.0
    return anova(values[rows], {axis.name: levels})[0].share or 0.0


def balanced(values: FloatArray, axes: Sequence[Axis]) -> bool:
    """Say whether every combination of parameters ran, and all equally often.

    Args:
        values: A number for each run; where it is NaN the run does not count.
    """
    rows = np.flatnonzero(np.isfinite(values))
    return is_balanced({axis.key: [axis.values[row] for row in rows] for axis in axes})


def telling(study: Study, values: FloatArray, *, most_levels: int) -> list[Axis]:
    """Return the parameters besides the policy, those that explain most of a number first.

    Args:
        values: The number, for each run; NaN is left out.
        most_levels: Parameters that take more values than this are left out.
    """
    rows = np.flatnonzero(np.isfinite(values))
    axes = [
        axis
        for axis in study.axes
        if 1 < len({axis.values[row] for row in rows} - {None}) <= most_levels
    ]
    shares = {axis.key: explained(values, axis) for axis in axes}
    return sorted(axes, key=lambda axis: -shares[axis.key])


def level_means(study: Study, axis: Axis, policy: str) -> list[tuple[Level, float]]:
    """Return the mean outcome of a policy's runs at each level of a parameter."""
    own = numbers(study, study.outcome).only(name == policy for name in study.policies)
    return [(each.levels[axis.key], each.interval.value) for each in group([axis], own)]


def policy_mean(study: Study, policy: str, measure: Measure) -> Bounded | None:
    """Return the mean of a number over a policy's runs; None where it is not known."""
    figures = numbers(study, measure)
    rows = [row for row in study.rows(policy) if np.isfinite(figures.values[row])]
    return figures.mean(rows) if rows else None


def setting_ends(study: Study, policy: str) -> list[tuple[int, float]]:
    """Return a run of the chosen settings in which a policy does least and most, and its outcome.

    A setting that was drawn several times counts by its mean. Empty where there is only one.
    """
    cells: dict[int, list[int]] = {}
    for row in study.rows(policy):
        cells.setdefault(study.design.cells[row], []).append(row)
    means = [(rows[0], float(np.mean(study.outcomes[rows]))) for rows in cells.values()]
    if len(means) < 2:
        return []
    return [end(means, key=lambda each: each[1]) for end in (min, max)]


def policy_numbers(study: Study) -> list[dict[str, Any]]:
    """Return what each policy comes to for programs: by column of the table, in its units."""
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


def _tradeoff_axis(study: Study, waits: FloatArray) -> Axis | None:
    axes = telling(study, waits, most_levels=_MOST_GROUPS)
    # Names in no order cannot be joined by a line.
    axes = [axis for axis in axes if axis.kind == "number" and None not in axis.values]
    return axes[0] if axes and explained(waits, axes[0]) >= _MATTERS else None
