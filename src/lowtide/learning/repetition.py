"""What comes again: the block that a program repeats, and the startup that every start repeats."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from lowtide.learning.alignment import align
from lowtide.learning.marks import plain_label
from lowtide.learning.phases import PhaseModel
from lowtide.learning.series import RunSeries, even_edges
from lowtide.signal import FloatArray

# Phases are the same again if they differ by no more than this share, or by no more than two
# standard errors, from the mean of all.
_ALIKE = 0.10
_ERRORS = 2.0
# Before the block, a phase is work of the same kind if it comes as near as this: the first epoch
# may be slower than all others.
_SIMILAR_POWER = 0.25
_SIMILAR_DURATION = 2.0
_LONGEST_BLOCK = 60
# So many resumed runs are compared at most, each at so many places to jump from and to.
_MOST_RESUMED = 5
_MOST_COMPARED = 2000


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """Phases that come again and again.

    Attributes:
        first: The first phase of the first occurrence.
        length: How many phases it has.
        count: How often it comes.
    """

    first: int
    length: int
    count: int

    @property
    def end(self) -> int:
        """The phase after the last occurrence."""
        return self.first + self.length * self.count


@dataclass(frozen=True, slots=True, kw_only=True)
class Structure:
    """How a model's phases make up a profile.

    Attributes:
        startup: How many phases every start repeats.
        block: The repeated block, None if nothing repeats.
        why: How startup and work were told apart, in words.
    """

    startup: int
    block: Block | None
    why: str


def find_structure(
    model: PhaseModel, resumed: Sequence[RunSeries], *, repeats: bool = True
) -> Structure:
    """Return what of a model is startup and what repeats.

    Args:
        resumed: Runs that went on from a checkpoint; they show what every start repeats.
    """
    block = find_block(model)
    shared = startup_by_comparison(model, resumed, block) if resumed else None
    if shared is not None:
        if block is not None and block.first < shared:
            block = find_block(model, first=shared)
        return Structure(
            startup=shared,
            block=block if repeats else None,
            why="startup is what resumed runs began with as well",
        )
    if block is None:
        return Structure(
            startup=0,
            block=None,
            why="nothing repeats and there is no resumed run to compare with, so startup could not "
            "be told apart: all is taken as work",
        )
    startup = startup_by_position(model, block)
    why = (
        "startup is what comes before the repeated part; a resumed run would make sure"
        if startup
        else "the run begins with its repeated part, so it has no startup"
    )
    return Structure(startup=startup, block=block if repeats else None, why=why)


def find_block(model: PhaseModel, *, first: int = 0) -> Block | None:
    """Return the block of phases whose repetition explains most phases."""
    count = len(model.names)
    seconds = np.diff(model.edges_s, axis=1)
    found: list[Block] = []
    most = 0
    for length in range(2, min((count - first) // 2, _LONGEST_BLOCK) + 1):
        for begin in range(first, count - 2 * length + 1):
            if count - begin - length < most:
                # Even if all that follows were repetition, it would explain less.
                break
            times = 1
            while begin + (times + 1) * length <= count and _alike(
                model, seconds, begin, length, times + 1
            ):
                times += 1
            if times > 1:
                found.append(Block(first=begin, length=length, count=times))
                most = max(most, length * (times - 1))

    def worth(block: Block) -> tuple[int, bool, bool, int]:
        # A row such as a b a b a b a can be cut as (a b) or as (b a): a block ends in a checkpoint
        # where there are any, and begins where the program works hardest.
        power_w = model.power_w[block.first : block.first + block.length]
        return (
            block.length * (block.count - 1),
            model.checkpoints[block.first + block.length - 1],
            bool(np.argmax(power_w) == 0),
            -block.first,
        )

    return max(found, key=worth, default=None)


def startup_by_position(model: PhaseModel, block: Block) -> int:
    """Return how many phases come before the work, judged by where the repeated part begins.

    If the phases just before it resemble it, if only from afar, they are work as well: whole
    occurrences of it, or the end of one where the block was cut in the middle of what repeats.
    """
    first = block.first
    again = range(block.first, block.first + block.length)
    while (before := _occurrence(model, again, first)) is not None:
        first = before
    # The end of the block counts if the program works hardest there: that is no startup.
    hardest = block.first + int(
        np.argmax((model.power_w * model.duration_s)[again.start : again.stop])
    )
    for begin in range(again.start + 1, hardest + 1):
        before = _occurrence(model, range(begin, again.stop), first)
        if before is not None:
            return before
    return first


def _occurrence(model: PhaseModel, block: range, end: int) -> int | None:
    """Return where a row of phases like a block begins that ends at a place; None if none does."""
    for phase in reversed(block):
        # A phase of the block may have been cut in two here.
        for begin in (end - 1, end - 2):
            if begin < 0:
                return None
            seconds = model.duration_s[begin:end]
            power_w = float(np.average(model.power_w[begin:end], weights=seconds))
            powers = sorted((power_w, float(model.power_w[phase])))
            lengths = sorted((float(seconds.sum()), float(model.duration_s[phase])))
            if (
                powers[1] - powers[0] <= _SIMILAR_POWER * powers[1]
                and lengths[1] <= _SIMILAR_DURATION * lengths[0]
            ):
                end = begin
                break
        else:
            return None
    return end


def startup_by_comparison(
    model: PhaseModel, resumed: Sequence[RunSeries], block: Block | None
) -> int | None:
    """Return how many phases resumed runs begin with as well; None where they do not tell."""
    told = [
        _shared_by_power(model, series, block)
        if model.marks is None
        else _shared_by_marks(model, series, block)
        for series in resumed[:_MOST_RESUMED]
    ]
    known = [count for count in told if count is not None]
    return Counter(known).most_common(1)[0][0] if known else None


def _shared_by_marks(model: PhaseModel, series: RunSeries, block: Block | None) -> int | None:
    """Compare what was said: marks that both runs begin with, and what follows the last of them."""
    marks = model.marks
    assert marks is not None  # noqa: S101 - the caller has looked
    heard: dict[str, float] = {}
    for event in series.events:
        label = event.label if marks.exact else plain_label(event.label)
        heard.setdefault(label, event.time - series.run.start)
    shared = 0
    while shared < len(marks.said) and heard.keys() & set(marks.said[shared]):
        shared += 1
    if not heard or shared == len(marks.said):
        return None
    # What the last shared mark (else the program's start) began is startup too, unless it is the
    # first of what repeats.
    first = sum(model.parts[:shared])
    end = first + model.parts[shared]
    place = end if block is None else startup_by_position(model, block)
    begin_s = max(heard.get(label, 0.0) for label in marks.said[shared - 1]) if shared else 0.0
    if place >= end:
        later = [time_s for time_s in heard.values() if time_s > begin_s + model.step_s]
        begin_s = min(later, default=series.length_s)
        first, end = end, end + model.parts[shared + 1]
    if not first < place < end:
        return first
    # A warm-up and the first of what repeats share a stretch. Does the resumed run warm up too?
    seconds, power_w = model.duration_s[first:place], model.power_w[first:place]
    begin_s += model.lag_s
    inside = np.clip([begin_s, begin_s + float(seconds.sum())], 0.0, series.length_s)
    if inside[1] <= inside[0]:
        return first
    seen_w = float(series.mean_w(inside)[0])
    warm_w = float(np.average(power_w, weights=seconds))
    return place if abs(seen_w - warm_w) < abs(seen_w - model.power_w[place]) else first


def _shared_by_power(model: PhaseModel, series: RunSeries, block: Block | None) -> int | None:
    """Compare power: the resumed run begins with the same levels, then jumps to later ones."""
    grid = even_edges(0.0, series.length_s, model.step_s)
    trace = series.mean_w(grid)
    count = len(model.names)
    last = count - 1 if block is None else startup_by_position(model, block)
    if last * count > _MOST_COMPARED:
        return None
    costs = np.full(last + 1, np.inf)
    for shared in range(1, last + 1):
        for later in range(shared + 1, count):
            levels_w = np.concatenate([model.power_w[:shared], model.power_w[later:]])
            if levels_w.size <= trace.size:
                costs[shared] = min(costs[shared], align(trace, levels_w)[1])
    if not np.isfinite(costs).any():
        return None
    # Ramps and short phases fit into either part about as well: they belong to the startup.
    return int(np.flatnonzero(costs <= (1 + _ALIKE) * costs.min())[-1])


def _alike(model: PhaseModel, seconds: FloatArray, begin: int, length: int, times: int) -> bool:
    rows = begin + np.arange(times * length).reshape(times, length)
    for place in range(length):
        again = rows[:, place]
        if len({model.stretches[phase] for phase in again}) > 1:
            return False
        if len({model.checkpoints[phase] for phase in again}) > 1:
            return False
        if not (_all_near(model.run_power_w[:, again]) and _all_near(seconds[:, again])):
            return False
    return True


def _all_near(values: FloatArray) -> bool:
    """Return whether the columns' means over runs are near the mean of all."""
    means = values.mean(axis=0)
    allowed = np.full(means.size, _ALIKE * abs(means.mean()))
    if len(values) > 1:
        errors = values.std(axis=0, ddof=1) / np.sqrt(len(values))
        allowed = np.maximum(allowed, _ERRORS * errors)
    return bool((np.abs(means - means.mean()) <= allowed).all())
