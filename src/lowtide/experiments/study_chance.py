"""What was random in a study, and how far its means would move with it.

Settings are chosen: no interval over them says anything of chance. Random are the seeds, where
several were run of each setting; else the weeks or days in which the jobs of a run arrived, where
a run has enough of them; else nothing, and then there is no interval and no p.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from lowtide.experiments.blocks import DAY_S, LEAST_BLOCKS, Blocks, IntArray
from lowtide.experiments.statistics import Interval, block_bootstrap, signed_rank
from lowtide.signal import FloatArray

if TYPE_CHECKING:
    from lowtide.experiments.study_axes import Design
    from lowtide.experiments.study_table import Measure, Study

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Chance:
    """What was random.

    Attributes:
        kind: `draws`, `weeks`, `days` or `nothing`.
        count: How many of them there are.
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
        chance: What was random.
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

    def mean(self, rows: Sequence[int]) -> Interval:
        """Return the mean over some runs, with its interval where chance can be told."""
        value = float(np.mean(self.values[list(rows)]))
        moved = self._moved(rows, value)
        bare = Interval(value=value, low=None, high=None, count=len(rows))
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
