"""A study as a sweep leaves it: a table of runs, what differs between them, and a manifest."""

from __future__ import annotations

import json
import math
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from lowtide import files
from lowtide.errors import FileProblem, FormatError, InvalidInput, UnknownName
from lowtide.signal import FloatArray
from lowtide.studies.axes import (
    Axis,
    Design,
    find_axes,
    find_design,
    format_level,
    make_axis,
    policy_labels,
)
from lowtide.studies.chance import Blocks, Chance, Numbers, find_chance, read_blocks
from lowtide.studies.folder import DONE, MANIFEST, RUNS, TABLE, imputed_words
from lowtide.studies.settings import flatten
from lowtide.units import JOULES_PER_KWH, format_count, format_html

if TYPE_CHECKING:
    import polars as pl

# Which policies a run is set beside; no two may be called like a parameter's key.
POLICY = "policy"
# What a policy does to numbers that have no word of their own.
PLAIN_VERB = "comes to"
# What runs are judged by that all save the same, and how much differs by rounding alone.
_INSTEAD = ("mean_wait_s", "mean_slowdown", "utilisation", "carbon_g", "cost")
_SAME = 1e-9
# More zones or dates than this are counted rather than named.
_MOST_PLACES = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Measure:
    """A number of a run, and how it is told.

    Attributes:
        key: Its column.
        name: What it is called in words.
        unit: What it is told in.
        factor: What the column is multiplied by for that.
        verb: What a policy does to it, as in "exact saves 23 %".
        best: 1 where more is better, −1 where less is.
    """

    key: str
    name: str
    unit: str
    factor: float = 1.0
    verb: str = PLAIN_VERB
    best: int = -1


_KWH = 1 / JOULES_PER_KWH
MEASURES = {
    measure.key: measure
    for measure in (
        Measure(key="saving", name="saving", unit="%", factor=100.0, verb="saves", best=1),
        Measure(key="total_carbon_g", name="carbon in all", unit="kg", factor=1e-3, verb="emits"),
        Measure(key="baseline_total_carbon_g", name="under the baseline", unit="kg", factor=1e-3),
        Measure(key="carbon_g", name="carbon of jobs", unit="kg", factor=1e-3, verb="emits"),
        Measure(key="cost", name="cost of electricity", unit="", verb="costs"),
        Measure(key="machine_cost", name="cost of machines", unit=""),
        Measure(key="energy_j", name="energy", unit="kWh", factor=_KWH, verb="draws"),
        Measure(key="node_energy_j", name="energy of the nodes", unit="kWh", factor=_KWH),
        Measure(key="boot_energy_j", name="energy of booting", unit="kWh", factor=_KWH),
        Measure(key="wasted_energy_j", name="wasted energy", unit="kWh", factor=_KWH),
        Measure(key="node_carbon_g", name="carbon of the nodes", unit="kg", factor=1e-3),
        Measure(key="mean_wait_s", name="mean wait", unit="h", factor=1 / 3600),
        Measure(key="median_wait_s", name="median wait", unit="h", factor=1 / 3600),
        Measure(key="p95_wait_s", name="95th percentile of waits", unit="h", factor=1 / 3600),
        Measure(key="p99_wait_s", name="99th percentile of waits", unit="h", factor=1 / 3600),
        Measure(key="max_wait_s", name="longest wait", unit="h", factor=1 / 3600),
        Measure(key="makespan_s", name="makespan", unit="h", factor=1 / 3600),
        Measure(key="mean_slowdown", name="mean slowdown", unit=""),
        Measure(key="mean_starts", name="starts per job", unit=""),
        Measure(key="p95_slowdown", name="95th percentile of slowdowns", unit=""),
        Measure(key="deadline_misses", name="missed deadlines", unit=""),
        Measure(key="missed_share", name="share of deadlines missed", unit="%", factor=100.0),
        Measure(key="max_late_s", name="most lateness", unit="h", factor=1 / 3600),
        Measure(key="fairness", name="fairness among users", unit="", best=1),
        Measure(key="users_worse_off", name="users worse off", unit=""),
        Measure(key="energy_delay_js", name="energy times delay", unit="kWh·h", factor=_KWH / 3600),
        Measure(key="marginal_carbon_g", name="marginal carbon", unit="kg", factor=1e-3),
        Measure(key="marginal_saving", name="marginal saving", unit="%", factor=100.0, best=1),
        Measure(key="cost_saving", name="saving of cost", unit="%", factor=100.0, best=1),
        Measure(key="utilisation", name="utilisation", unit="%", factor=100.0, best=1),
        Measure(key="mean_queue", name="mean queue length", unit="jobs"),
    )
}


def measure_in(runs: pl.DataFrame, key: str) -> Measure:
    """Return a number of runs, and how it is told: what electricity costs in their currency.

    Args:
        key: Its column, one of `MEASURES`.
    """
    measure = MEASURES[key]
    if key != "cost" or "currency" not in runs.columns:
        return measure
    found = runs["currency"].drop_nulls().unique().to_list()
    return replace(measure, unit=str(found[0])) if len(found) == 1 else measure


@dataclass(frozen=True, kw_only=True)
class Study:
    """The runs of a sweep that came to an end.

    Attributes:
        runs: One row per run, as the table has them.
        policies: The policy of each run, as it is called here.
        axes: What else differs between runs.
        outcome: What policies are judged by.
        outcomes: It, in its unit, for each run.
        baseline: The policy that savings are told against; None without savings.
        manifest: How the runs were made.
        lost: How many runs were left out because their outcome, or the baseline's, is not known.
        judged: Why policies are judged by this outcome, where that is not the first choice.
        told_of: The column that savings were told of anew, against a policy of the study; empty
            where they are the runs' own.
    """

    folder: Path
    runs: pl.DataFrame
    failed: pl.DataFrame
    policies: tuple[str, ...]
    axes: tuple[Axis, ...]
    outcome: Measure
    outcomes: FloatArray
    baseline: str | None
    manifest: Mapping[str, Any]
    lost: int = 0
    judged: str = ""
    told_of: str = ""

    def __len__(self) -> int:
        return int(self.runs.height)

    def chart(self) -> Any:
        """Return the outcome of each policy against waiting, as a chart of Altair."""
        from lowtide.page.looks import alt
        from lowtide.studies.analysis import frontier
        from lowtide.studies.policies import frontier_figure

        points, by = frontier(self)
        if not points:
            raise InvalidInput("the runs of this study do not say how long their jobs waited")
        document = frontier_figure(self, points, by).document
        return alt.Chart.from_dict(document, validate=False)

    def _repr_html_(self) -> str:
        from lowtide.studies.policies import policies_table

        table = policies_table(self)
        head = f"{self.title}: {format_count(len(self), 'run')}, {self.grids}"
        rows = [[str(cell) for cell in row] for row in (table.header, *table.rows)]
        return format_html(head, rows)

    @property
    def title(self) -> str:
        """What the study is called."""
        return str(self.manifest.get("title") or f"Study {self.folder.resolve().name}")

    @cached_property
    def ranking(self) -> list[str]:
        """The policies, best first; of equals the first in the table.

        Those that miss more deadlines than the baseline come after those that do not, however
        much they save. Where all miss more, the baseline aside, those that miss fewest come first.
        """
        names = list(dict.fromkeys(self.policies))
        means = {name: self._rank_mean(name) for name in names}
        late = {name: self.excess_misses(name) for name in names}
        if any(not late[name] for name in names if name != self.baseline):
            return sorted(names, key=lambda name: (late[name] > 0, -means[name]))
        return sorted(names, key=lambda name: (name == self.baseline, late[name], -means[name]))

    def _rank_mean(self, name: str) -> float:
        mean = float(np.mean(self.outcomes[self.rows(name)]))
        # Means that differ by rounding alone are equal.
        return self.outcome.best * float(f"{mean:.9g}")

    @property
    def has_nodes(self) -> bool:
        """Whether nodes drew power beside the jobs, which savings of the runs' own then count."""
        drawn = self.measured(MEASURES["node_carbon_g"])
        return drawn is not None and bool(np.isfinite(drawn).any())

    @property
    def leader(self) -> str:
        """The policy that does best among those that keep deadlines as the baseline does."""
        return self.ranking[0]

    def misses(self, policy: str) -> float | None:
        """Return how many deadlines a policy missed in all its runs; None where unknown."""
        values = self.measured(MEASURES["deadline_misses"])
        own = np.array([]) if values is None else values[self.rows(policy)]
        return float(np.nansum(own)) if np.isfinite(own).any() else None

    def excess_misses(self, policy: str) -> float:
        """Return how many more deadlines a policy missed than the baseline on the same jobs.

        A baseline of which nothing is known counts as one that misses none.
        """
        rows = self.rows(policy)
        theirs = _numbers(self.runs, Measure(key="baseline_deadline_misses", name="", unit=""))
        if self.told_of or theirs is None:
            theirs = np.zeros(len(self))
            ours = self.measured(MEASURES["deadline_misses"])
            alike = self.alike(str(self.baseline))
            for row in rows if ours is not None else ():
                found = alike.get(self.settings[row], [])
                theirs[row] = np.mean(ours[found]) if found else 0.0  # type: ignore[index]
        return max((self.misses(policy) or 0.0) - float(np.nansum(theirs[rows])), 0.0)

    def rows(self, policy: str) -> list[int]:
        """Return the runs of a policy."""
        return [row for row, name in enumerate(self.policies) if name == policy]

    def axis(self, key: str) -> Axis:
        """Return a parameter, `policy` included."""
        for axis in self.axes:
            if key in axis.keys:
                return axis
        if key == POLICY:
            return Axis(
                key=POLICY,
                name=POLICY,
                kind="category",
                unit="",
                values=self.policies,
                levels=tuple(self.ranking),
            )
        return make_axis(key, self.runs[key].to_list())

    def measured(self, measure: Measure) -> FloatArray | None:
        """Return a number of each run in its unit, NaN where unknown; None without that column."""
        if measure.key == self.outcome.key:
            return self.outcomes
        return _numbers(self.runs, measure)

    @cached_property
    def settings(self) -> list[tuple[Any, ...]]:
        """Everything but the policy, for each run: those alike have the same jobs and grid."""
        keys = [key for key in parameter_keys(self.runs) if not key.startswith("policy.")]
        return _settings(self.runs, keys)

    def alike(self, policy: str) -> Mapping[tuple[Any, ...], Sequence[int]]:
        """Return the runs of a policy by their setting."""
        return self._alike.get(policy, {})

    @cached_property
    def _alike(self) -> dict[str, dict[tuple[Any, ...], list[int]]]:
        found: dict[str, dict[tuple[Any, ...], list[int]]] = {}
        for row, (policy, setting) in enumerate(zip(self.policies, self.settings, strict=True)):
            found.setdefault(policy, {}).setdefault(setting, []).append(row)
        return found

    @cached_property
    def design(self) -> Design:
        """What was drawn, and what was chosen."""
        columns = {key: self.runs[key].to_list() for key in parameter_keys(self.runs)}
        return find_design(columns, len(self))

    @cached_property
    def blocks(self) -> list[Blocks | None]:
        """The days or weeks of each run; None where they were not kept."""
        found = read_blocks(self.folder)
        return [found.get(name) for name in self.runs["id"].to_list()]

    @cached_property
    def chance(self) -> Chance:
        """What was random."""
        return find_chance(self.design, self.outcomes, self.blocks)

    @cached_property
    def known_numbers(self) -> dict[str, Numbers]:
        """Numbers of runs with what moves them, by column, as they come to be asked for."""
        return {}

    def place(self, row: int) -> str:
        """Return what was chosen of a run that differs between runs, in words."""
        return ", ".join(
            f"{axis.name} {format_level(axis, axis.values[row])}" for axis in self.axes
        )

    @cached_property
    def where(self) -> str:
        """On which grids and from when, in words that go on every figure."""
        said = []
        for key, one, many in (
            ("grid.zone", "zone", "zones"),
            ("grid.synthetic", "grid", "grids"),
            ("grid.start", "jobs from", "jobs from"),
        ):
            if key not in self.runs.columns:
                continue
            axis = make_axis(key, self.runs[key].to_list())
            levels = [format_level(axis, level) for level in axis.levels]
            if len(levels) > _MOST_PLACES:
                shown = f"{len(levels)} {many}"
                if axis.kind == "time":
                    shown = f"{many} {len(levels)} dates between {levels[0]} and {levels[-1]}"
            else:
                shown = f"{one if len(levels) == 1 else many} {', '.join(levels)}"
            said += [shown] if levels else []
        return "; ".join(said)

    @cached_property
    def grids(self) -> str:
        """Whether the grids are real, in words that go on every figure."""
        made_up = _synthetic(self.runs)
        if not made_up or None in made_up:
            return "whether grids are synthetic is not known"
        if len(made_up) == 2:
            return "some grids are synthetic"
        if True in made_up:
            return "synthetic grids"
        imputed = imputed_words(self.runs)
        return f"real grids; {imputed}" if imputed else "real grids"


def read_study(folder: Path | str, *, baseline: str | None = None) -> Study:
    """Read what a sweep left in a folder.

    Args:
        baseline: A policy of the study to tell savings against, instead of the runs' own.
    """
    import polars as pl

    folder = Path(folder)
    path = folder / TABLE
    if not path.is_file():
        what = "has no table of runs" if folder.is_dir() else "is no folder"
        raise FileProblem(
            f"{folder} {what} ({TABLE}): run `lowtide sweep EXPERIMENT.toml` first, and name the "
            "folder that it writes",
            path=path,
        )
    try:
        table = pl.read_parquet(path)
    except (pl.exceptions.PolarsError, OSError) as error:
        raise FormatError(f"not a table of runs: {error}", path=path) from error
    if not {"id", "status", "reason"} <= set(table.columns):
        raise FormatError("not a table of runs: it has no id, status and reason", path=path)
    done = table.filter(pl.col("status") == DONE)
    failed = table.filter(pl.col("status") != DONE)
    if not done.height:
        raise InvalidInput(_nothing_done(path, failed))
    columns = {key: done[key].to_list() for key in parameter_keys(done)}
    policies, told = policy_labels(columns, done.height)
    manifest = _manifest(folder)
    axes = find_axes(
        {key: values for key, values in columns.items() if key not in told},
        _case_lists(str(manifest.get("experiment", ""))),
    )
    outcome, known, judged = _outcome(done)
    study = Study(
        folder=folder,
        runs=done.filter(known),
        failed=failed,
        policies=_kept(policies, known),
        axes=tuple(_only(axis, known) for axis in axes),
        outcome=outcome,
        outcomes=_numbers(done, outcome)[known],  # type: ignore[index]
        baseline=_own_baseline(done, outcome),
        manifest=manifest,
        lost=int((~known).sum()),
        judged=judged,
    )
    return study if baseline is None else _against(study, baseline)


def parameter_keys(table: pl.DataFrame) -> list[str]:
    """Return the columns that are parameters: their names have a dot."""
    return [name for name in table.columns if "." in name]


def run_parameters(study: Study, row: int) -> dict[str, Any]:
    """Return the parameters of a run as it was made."""
    path = study.folder / RUNS / f"{study.runs['id'][row]}.json"
    try:
        parameters: dict[str, Any] = json.loads(files.read_text(path))["parameters"]
    except (ValueError, KeyError, TypeError) as error:
        raise FormatError(f"not the record of a run: {error}", path=path) from error
    return parameters


def _nothing_done(path: Path, failed: pl.DataFrame) -> str:
    if not failed.height:
        return f"{path} has no runs: let `lowtide sweep` finish at least one"
    reasons = failed["reason"].drop_nulls().to_list()
    first = f"; the first because: {reasons[0]}" if reasons else ""
    return f"there is nothing to report: {format_count(failed.height, 'run')} failed{first}"


def _outcome(runs: pl.DataFrame) -> tuple[Measure, np.ndarray[Any, np.dtype[np.bool_]], str]:
    """Return what policies are judged by, which runs know it, and why it is not the saving."""
    for key in ("saving", "carbon_g", "cost"):
        numbers = _numbers(runs, MEASURES[key])
        if numbers is None or not np.isfinite(numbers).any():
            continue
        measure, judged = measure_in(runs, key), ""
        if runs.height > 1 and key == "saving" and not _differs(numbers):
            # Queues, for instance, are told against the same queue: none saves anything.
            for other in _INSTEAD:
                found = _numbers(runs, MEASURES[other])
                if found is not None and np.isfinite(found).all() and _differs(found):
                    judged = (
                        f"the saving is {np.nanmean(numbers):.1f} % in every run, so they are "
                        f"judged by their {MEASURES[other].name}"
                    )
                    measure, numbers = measure_in(runs, other), found
                    break
        return measure, np.isfinite(numbers), judged
    raise InvalidInput("the runs of this study have neither savings nor carbon nor cost")


def _differs(numbers: FloatArray) -> bool:
    known = numbers[np.isfinite(numbers)]
    return bool(np.ptp(known) > _SAME * max(float(np.abs(known).max()), 1.0))


def _case_lists(text: str) -> dict[str, list[str]]:
    """Return the keys that each named list of cases of an experiment sets."""
    try:
        document = json.loads(text) if text.startswith("{") else tomllib.loads(text)
    except ValueError:
        return {}
    lists: dict[str, list[str]] = {}
    for part in (document, document.get("full", {}), document.get("without_data", {})):
        cases = part.get("cases")
        for name, each in cases.items() if isinstance(cases, dict) else ():
            keys = (key for case in each for key in flatten(case))
            lists[name] = [*dict.fromkeys([*lists.get(name, []), *keys])]
    return lists


def _numbers(runs: pl.DataFrame, measure: Measure) -> FloatArray | None:
    if measure.key not in runs.columns or not runs[measure.key].dtype.is_numeric():
        return None
    column = runs[measure.key].cast(float).to_numpy()
    scaled: FloatArray = measure.factor * np.where(np.isfinite(column), column, np.nan)
    return scaled


def _own_baseline(runs: pl.DataFrame, outcome: Measure) -> str | None:
    if outcome.key != "saving" or "baseline" not in runs.columns:
        return None
    names = runs["baseline"].drop_nulls().unique(maintain_order=True).to_list()
    return " or ".join(str(name) for name in names) or None


def _against(study: Study, baseline: str) -> Study:
    """Return the study with savings told against one of its own policies."""
    if baseline not in study.policies:
        raise UnknownName("policy of this study", baseline, set(study.policies))
    amounts, column = next(
        (
            (numbers, key)
            for key in ("carbon_g", "cost")
            if (numbers := _numbers(study.runs, MEASURES[key])) is not None
            and np.isfinite(numbers).any()
        ),
        (None, ""),
    )
    if amounts is None:
        raise InvalidInput("the runs of this study have neither carbon nor cost to compare")
    theirs: dict[tuple[Any, ...], list[float]] = {}
    for row in study.rows(baseline):
        theirs.setdefault(study.settings[row], []).append(float(amounts[row]))
    savings = np.full(len(study), np.nan)
    for row, setting in enumerate(study.settings):
        reference = math.fsum(theirs.get(setting, [])) / max(len(theirs.get(setting, [])), 1)
        if reference > 0:
            savings[row] = 100 * (1 - float(amounts[row]) / reference)
    known = np.isfinite(savings)
    return replace(
        study,
        runs=study.runs.filter(known),
        policies=_kept(study.policies, known),
        axes=tuple(_only(axis, known) for axis in study.axes),
        outcome=MEASURES["saving"],
        outcomes=savings[known],
        judged="",
        told_of=column,
        baseline=baseline,
        lost=study.lost + int((~known).sum()),
    )


def _kept(values: Sequence[Any], known: Iterable[Any]) -> tuple[Any, ...]:
    return tuple(value for value, keep in zip(values, known, strict=True) if keep)


def _only(axis: Axis, known: Iterable[Any]) -> Axis:
    return replace(axis, values=_kept(axis.values, known))


def _settings(runs: pl.DataFrame, keys: Sequence[str]) -> list[tuple[Any, ...]]:
    columns = [[str(value) for value in runs[key].to_list()] for key in keys]
    return list(zip(*columns, strict=True)) if columns else [()] * runs.height


def _synthetic(runs: pl.DataFrame) -> set[bool | None]:
    if "synthetic" in runs.columns:
        return set(runs["synthetic"].to_list())
    if "grid.synthetic" in runs.columns:
        return {name is not None for name in runs["grid.synthetic"].to_list()}
    return set()


def _manifest(folder: Path) -> dict[str, Any]:
    path = folder / MANIFEST
    if not path.is_file():
        return {}
    try:
        document = json.loads(files.read_text(path))
    except ValueError as error:
        raise FormatError(f"not valid JSON: {error}", path=path) from error
    if not isinstance(document, dict):
        raise FormatError("a manifest is an object", path=path)
    return document
