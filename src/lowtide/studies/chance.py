"""What was random in a study, and how far its means would move with it.

Settings are chosen: no interval over them says anything of chance. Random are the seeds, where
several were run of each setting; else the weeks or days in which the jobs of a run arrived, where
a run has enough of them; else nothing, and then there is no interval and no p.

One trace under one policy is one run, and a run by itself says nothing of chance. Its weeks do: had
others like them come, how far would the sum have moved? So a sweep keeps, beside the numbers of
each run, their sums by day of arrival, or by week where a run is long.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from lowtide.accounting import integrate
from lowtide.errors import FormatError
from lowtide.grid import carbon_and_price
from lowtide.signal import FloatArray, Signal
from lowtide.steps import Steps
from lowtide.studies.statistics import Bounded, block_bootstrap, signed_rank

if TYPE_CHECKING:
    import polars as pl

    from lowtide.simulator import Simulation
    from lowtide.simulator.queueing import NodeSpans
    from lowtide.studies.axes import Design
    from lowtide.studies.study import Measure, Study


IntArray = np.ndarray[tuple[int], np.dtype[np.int64]]

# Fewer draws say next to nothing of how draws differ, and fewer pairs can reach no small p.
_LEAST_DRAWS = 3
_LEAST_PAIRS = 6
# Numbers that differ by less, relative to the larger, are the same.
_SAME = 1e-9
# A sum of blocks that is further off than this is not that of the run in the table.
_AGREES = 1e-6

DRAWS, WEEKS, DAYS, NOTHING = "draws", "weeks", "days", "nothing"

# How many of which unit move a number by how much: one entry per unit, of each run.
Parts = tuple[IntArray, FloatArray]

TABLE = "blocks.parquet"
DAY_S = 86_400.0
WEEK_S = 7 * DAY_S
#: So many blocks let chance be told; runs of fewer weeks are kept by days.
LEAST_BLOCKS = 20
# Weeks begin on Mondays, and the first day of 1970 was a Thursday.
_MONDAY_S = 4 * DAY_S

#: What is summed. `amount` is what savings are told of, the nodes' share of it included.
SUMS = ("jobs", "wait_s", "carbon_g", "cost", "amount", "baseline_amount")


@dataclass(frozen=True, slots=True, kw_only=True)
class Blocks:
    """The days or weeks of a run in which jobs arrived.

    Attributes:
        step_s: How long a block is: a day or a week.
        number: Which each is, counted from the first Monday of 1970.
        sums: What its jobs came to, by name; what is not known is left out.
    """

    step_s: float
    number: IntArray
    sums: Mapping[str, FloatArray]

    def by_weeks(self) -> Blocks:
        """Return the same by weeks."""
        if self.step_s == WEEK_S:
            return self
        weeks, place = np.unique(self.number // 7, return_inverse=True)
        sums = {name: _added(place, each) for name, each in self.sums.items()}
        return Blocks(step_s=WEEK_S, number=weeks, sums=sums)


def block_sums(simulation: Simulation) -> dict[str, Any]:
    """Return what jobs came to by the day or week of their arrival, as plain lists.

    What nodes drew counts in the block in which they drew it, the last one after that.
    """
    arrival = simulation.jobs.arrival
    long = float(np.ptp(arrival)) >= LEAST_BLOCKS * WEEK_S
    step_s = WEEK_S if long else DAY_S
    numbers, place = np.unique(
        np.floor((arrival - _MONDAY_S) / step_s).astype(np.int64), return_inverse=True
    )

    def summed(values: FloatArray | float | None) -> FloatArray | None:
        if values is None:
            return None
        return _added(place, np.broadcast_to(values, place.shape))

    tally, before = simulation.tally, simulation.baseline
    amount = summed(tally.amount)
    theirs = None if before is None else summed(before.amount)
    cluster = simulation.cluster
    if cluster is not None and cluster.draws_power and theirs is not None:
        carbon, price = carbon_and_price(simulation.signal)
        counted = price if carbon is None else carbon
        edges = _MONDAY_S + step_s * numbers[1:].astype(np.float64)
        for total, spans in (
            (amount, simulation.node_spans),
            (theirs, simulation.baseline_node_spans),
        ):
            if spans is not None and counted is not None and total is not None:
                total += cluster.pue * _by_time(spans, edges, counted)
    sums = {
        "jobs": summed(1.0),
        "wait_s": summed(simulation.wait_s),
        "carbon_g": summed(tally.carbon_g),
        "cost": summed(tally.cost),
        "amount": amount,
        "baseline_amount": theirs,
    }
    known = {name: each.tolist() for name, each in sums.items() if each is not None}
    return {"step_s": step_s, "number": numbers.tolist(), **known}


def blocks_table(blocks: Iterable[tuple[str, Mapping[str, Any]]]) -> pl.DataFrame:
    """Return the blocks of many runs, a row for each.

    Args:
        blocks: The id of each run, and its blocks as plain lists.
    """
    import polars as pl

    every = list(blocks)
    lengths = [len(each["number"]) for _, each in every]
    columns: dict[str, Any] = {
        "id": [name for (name, _), count in zip(every, lengths, strict=True) for _ in range(count)],
        "step_s": np.repeat([float(each["step_s"]) for _, each in every], lengths),
        "number": [number for _, each in every for number in each["number"]],
    }
    for name in SUMS:
        columns[name] = [
            value
            for (_, each), count in zip(every, lengths, strict=True)
            for value in each.get(name, [None] * count)
        ]
    kinds = {"id": pl.String, "step_s": pl.Float64, "number": pl.Int64}
    return pl.DataFrame(
        columns, schema={name: kinds.get(name, pl.Float64) for name in columns}, strict=False
    )


def read_blocks(folder: Path) -> dict[str, Blocks]:
    """Return the blocks of each run of a study by its id; none where the sweep kept none."""
    import polars as pl

    path = folder / TABLE
    if not path.is_file():
        return {}
    try:
        table = pl.read_parquet(path).sort("id", "number")
        number, step_s = table["number"].to_numpy(), table["step_s"].to_numpy()
        # Whole columns, cut where the next run begins: a study may have a hundred thousand runs.
        columns = {key: table[key].cast(pl.Float64).to_numpy() for key in SUMS}
        ends = np.flatnonzero(np.diff(table["id"].rle_id().to_numpy(), append=-1)) + 1
        names = table["id"].to_list()
    except (pl.exceptions.PolarsError, OSError) as error:
        raise FormatError(f"not a table of blocks: {error}", path=path) from error
    found = {}
    for begin, end in zip([0, *ends[:-1].tolist()], ends.tolist(), strict=True):
        own = {key: each[begin:end] for key, each in columns.items()}
        found[str(names[begin])] = Blocks(
            step_s=float(step_s[begin]),
            number=number[begin:end],
            sums={key: each for key, each in own.items() if not np.isnan(each).any()},
        )
    return found


def _by_time(spans: NodeSpans, edges: FloatArray, signal: Signal) -> FloatArray:
    """Return what nodes drew came to between edges; before the first and after the last too."""
    if not spans.begin.size:
        return np.zeros(edges.size + 1)
    drawn = Steps.of_spans(spans.begin, spans.end, spans.power_w)
    inside = edges[(edges > drawn.times[0]) & (edges < drawn.times[-1])]
    times = np.union1d(drawn.times, inside)
    came_to = integrate(drawn.at(times[:-1]), times[:-1], times[1:], signal)
    place = np.searchsorted(edges, times[:-1], side="right")
    return _added(place, came_to, count=edges.size + 1)


def _added(place: IntArray, values: FloatArray, count: int = 0) -> FloatArray:
    return np.bincount(place, weights=values, minlength=count).astype(np.float64)


@dataclass(frozen=True, slots=True, kw_only=True)
class Chance:
    """What was random.

    Attributes:
        kind: `draws`, `weeks`, `days` or `nothing`.
        seeds: The seeds that vary, by key; they need not make a difference.
        why: Why nothing is random, as the end of a sentence; empty where something is.
    """

    kind: str
    count: int = 0
    seeds: tuple[str, ...] = ()
    why: str = ""

    @property
    def over(self) -> str:
        """What an interval is taken over, as in "over 52 weeks of arrivals"."""
        if self.kind == DRAWS:
            return f"over {self.count} draws of {' and '.join(self.seeds)}"
        return f"over {self.count} {self.kind} of arrivals" if self.kind != NOTHING else ""

    @property
    def limits(self) -> str:
        """What an interval does not cover, in a sentence; empty where there is none."""
        return {
            DRAWS: "An interval says how far other seeds would move a mean; other settings, traces "
            "and grids may differ.",
            WEEKS: "An interval says how far other weeks like these would move a mean; other "
            "traces and grids may differ.",
            DAYS: "An interval says how far other days like these would move a mean; other "
            "seasons, traces and grids may differ.",
            NOTHING: "",
        }[self.kind]

    @property
    def sentence(self) -> str:
        """What intervals are, or why there are none."""
        if self.kind == NOTHING:
            return f"none, as nothing here is random: {self.why}. Ranges are over what was run"
        how = "bootstrap" if self.kind == DRAWS else "block bootstrap, as neighbours are alike"
        return (
            f"95 %, {self.over} ({how}, widened by Student's t for small numbers). {self.limits} "
            "Settings were chosen, not drawn: they are told by ranges"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Numbers:
    """A number of each run, and how what was random moves it.

    Attributes:
        values: The number; NaN where it is not known.
        parts: For each run the units that move it, and by how much each does; None for a run of
            which that is not known.
    """

    values: FloatArray
    parts: Sequence[Parts | None]
    chance: Chance

    def only(self, keep: Iterable[bool]) -> Numbers:
        """Return the number of some runs, NaN for the others."""
        return replace(self, values=np.where(list(keep), self.values, np.nan))

    def less(self, others: Mapping[int, Sequence[int]]) -> Numbers:
        """Return how much more it is in some runs than in others like them, NaN for the rest.

        Args:
            others: For each of these runs those that are taken off, their mean where several.
        """
        values = np.full(self.values.size, np.nan)
        parts: list[Parts | None] = [None] * self.values.size
        for row, theirs in others.items():
            values[row] = self.values[row] - np.mean(self.values[list(theirs)])
            every = [self.parts[each] for each in (row, *theirs)]
            weights = [1.0, *[-1 / len(theirs)] * len(theirs)]
            known = [(each, w) for each, w in zip(every, weights, strict=True) if each is not None]
            if len(known) == len(every):
                units = np.concatenate([each[0] for each, _ in known])
                parts[row] = (units, np.concatenate([w * each[1] for each, w in known]))
        return replace(self, values=values, parts=parts)

    def mean(self, rows: Sequence[int]) -> Bounded:
        """Return the mean over some runs, with its interval where chance can be told."""
        value = float(np.mean(self.values[list(rows)]))
        moved = self._moved(rows, value)
        bare = Bounded(value=value, low=None, high=None, count=len(rows))
        if moved is None:
            return bare
        found = block_bootstrap(moved, length=1 if self.chance.kind == DRAWS else None)
        return replace(bare, low=found.low, high=found.high)

    def p(self, rows: Sequence[int]) -> float | None:
        """Return the p value of a mean over some runs being other than 0; None without draws."""
        if self.chance.kind != DRAWS:
            return None
        moved = self._moved(rows, float(np.mean(self.values[list(rows)])))
        return None if moved is None or moved.size < _LEAST_PAIRS else signed_rank(moved)

    def _moved(self, rows: Sequence[int], value: float) -> FloatArray | None:
        """Return what the mean would be by each unit alone, in order; None where that is unknown.

        Their mean is the mean over runs. Of draws that all settings share, each is the mean over
        settings in that draw.
        """
        every = [self.parts[row] for row in rows]
        known = [each for each in every if each is not None]
        if self.chance.kind == NOTHING or len(known) < len(every):
            return None
        units, place = np.unique(np.concatenate([each[0] for each in known]), return_inverse=True)
        if units.size < (_LEAST_DRAWS if self.chance.kind == DRAWS else LEAST_BLOCKS):
            return None
        by_unit = np.bincount(place, weights=np.concatenate([each[1] for each in known]))
        moved: FloatArray = units.size * by_unit / len(rows)
        size = max(abs(value), float(np.abs(self.values[list(rows)]).max()))
        # What nothing moves, as the saving of the baseline, has no interval.
        return None if np.ptp(moved) <= _SAME * size or not size else value + moved


def find_chance(design: Design, outcomes: FloatArray, blocks: Sequence[Blocks | None]) -> Chance:
    """Return what of a study was random.

    Args:
        blocks: The days or weeks of each run; None where they were not kept.
    """
    draws, seeds = len({*design.draws}), design.seeds
    repeated = max(design.repeats, default=1)
    acts = repeated > 1 and bool(
        np.abs(_apart(design, outcomes)).max() > _SAME * max(float(np.abs(outcomes).max()), 1.0)
    )
    if acts and repeated >= _LEAST_DRAWS:
        return Chance(kind=DRAWS, count=draws, seeds=seeds)
    known = [each for each in blocks if each is not None]
    if known and len(known) == len(blocks):
        by_day = all(each.step_s == DAY_S for each in known)
        weeks, days = (
            len({*np.concatenate([each.number for each in every]).tolist()})
            for every in ([each.by_weeks() for each in known], known)
        )
        for kind, count in ((WEEKS, weeks), *([(DAYS, days)] if by_day else [])):
            if count >= LEAST_BLOCKS:
                return Chance(kind=kind, count=count, seeds=seeds)
    if acts:
        why = f"of {repeated} draws too little can be told, {_LEAST_DRAWS} are the least"
    else:
        why = "settings were chosen, and each was run once"
        if repeated > 1:
            why = "settings were chosen, and seeds make no difference in them"
        why += f", and jobs arrived on fewer than {LEAST_BLOCKS} days" if known else ""
    return Chance(kind=NOTHING, seeds=seeds, why=why)


def numbers(study: Study, measure: Measure) -> Numbers:
    """Return a number of each run with what moves it."""
    if measure.key in study.known_numbers:
        return study.known_numbers[measure.key]
    values = study.measured(measure)
    values = np.full(len(study), np.nan) if values is None else values
    chance = study.chance
    parts: list[Parts | None] = [None] * len(study)
    if chance.kind == DRAWS:
        apart = _apart(study.design, values)
        for row, (draw, repeats) in enumerate(
            zip(study.design.draws, study.design.repeats, strict=True)
        ):
            if repeats >= _LEAST_DRAWS:
                parts[row] = (np.array([draw]), apart[row : row + 1])
    elif chance.kind != NOTHING:
        for row, each in enumerate(study.blocks):
            if each is not None:
                used = each.by_weeks() if chance.kind == WEEKS else each
                parts[row] = _moves(study, measure, row, used, float(values[row]))
    found = Numbers(values=values, parts=parts, chance=chance)
    study.known_numbers[measure.key] = found
    return found


def _apart(design: Design, values: FloatArray) -> FloatArray:
    """Return how far each run lies from the mean of its like under other seeds."""
    cells = np.array(design.cells)
    finite = np.isfinite(values)
    sums = np.bincount(cells, weights=np.where(finite, values, 0.0))
    counts = np.bincount(cells, weights=finite)
    with np.errstate(invalid="ignore", divide="ignore"):
        apart: FloatArray = np.where(finite, values - (sums / counts)[cells], 0.0)
    return apart


def _moves(study: Study, measure: Measure, row: int, blocks: Blocks, value: float) -> Parts | None:
    """Return how far each block of a run moves one of its numbers; None where that is unknown."""
    sums = blocks.sums
    if measure.key == "saving":
        ours, theirs = sums.get("amount"), sums.get("baseline_amount")
        scale, offset = -measure.factor, measure.factor
        if study.told_of:
            ours, theirs = sums.get(study.told_of), _of_baseline(study, row, blocks)
    elif measure.key == "mean_wait_s":
        ours, theirs, scale, offset = sums.get("wait_s"), sums.get("jobs"), measure.factor, 0.0
    else:
        # A sum has no denominator: each block counts by how far it is from its share.
        ours = sums.get(measure.key)
        theirs = None if ours is None else np.full(ours.size, 1 / ours.size)
        scale, offset = measure.factor, 0.0
    if ours is None or theirs is None or not theirs.sum() > 0:
        return None
    ratio = float(ours.sum() / theirs.sum())
    if not abs(offset + scale * ratio - value) <= _AGREES * max(abs(value), 1.0):
        return None
    return blocks.number, scale * (ours - ratio * theirs) / theirs.sum()


def _of_baseline(study: Study, row: int, blocks: Blocks) -> FloatArray | None:
    """Return what the runs of the baseline's policy came to in the blocks of a run like them."""
    found = []
    for other in study.alike(str(study.baseline)).get(study.settings[row], ()):
        theirs = study.blocks[other]
        if theirs is not None:
            theirs = theirs if theirs.step_s == blocks.step_s else theirs.by_weeks()
            amounts = theirs.sums.get(study.told_of)
            if amounts is None or not np.array_equal(theirs.number, blocks.number):
                return None
            found.append(amounts)
    return np.mean(found, axis=0) if found else None
