"""What comes again: the block that a program repeats, and the startup that every start repeats."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from lowtide.learning.alignment import align
from lowtide.learning.intervals import quantile
from lowtide.learning.marks import plain_label
from lowtide.learning.phase_model import PhaseModel
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
# How sure it is to be, and by which share of an epoch a phase must differ, for the first epoch to
# be one of its own, and for others to be.
_LIKELY, _SOME = 0.95, 0.05
_SURELY, _MUCH = 0.999, 0.10
# Work of a first epoch that is shorter than this share of the others' began as it warmed up, which
# takes no more than this share, and no longer together than so many times the others'.
_SHORTER, _WARM_UP, _SLOWER = 0.96, 0.25, 1.15
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
            startup=_without_work(model, shared),
            block=block if repeats else None,
            why="startup is what resumed runs began with as well",
        )
    if block is None and not model.outline.length:
        return Structure(
            startup=0,
            block=None,
            why="nothing repeats and there is no resumed run to compare with, so startup could not "
            "be told apart: all is taken as work",
        )
    startup = _without_work(model, startup_by_position(model, block))
    why = (
        "startup is what comes before the repeated part; a resumed run would make sure"
        if startup
        else "the run begins with its repeated part, so it has no startup"
    )
    return Structure(startup=startup, block=block if repeats else None, why=why)


def _without_work(model: PhaseModel, startup: int) -> int:
    """Return how many phases are startup, less those in which the first epoch is at work already.

    A program that warms up may work meanwhile: what follows is then shorter than in other epochs,
    and only what the first epoch takes longer is startup.
    """
    outline = model.outline
    if not outline.length or outline.count < 2:
        return startup
    bounds = np.concatenate(([0], np.cumsum(model.parts)))
    first, *others = (
        float(model.duration_s[bounds[slot] : bounds[slot + 1]].sum())
        for slot in range(outline.first, outline.end, outline.length)
    )
    begin = int(bounds[outline.first])
    first -= float(model.duration_s[begin : max(startup, begin)].sum())
    # A few epochs may have been slowed down, and what marks say comes before epochs is no work.
    usual, least = float(np.median(others)), begin if model.marks is not None else 0
    while startup > least and first < _SHORTER * usual:
        before = float(model.duration_s[startup - 1])
        if before > _WARM_UP * usual or first + before > _SLOWER * usual:
            break
        startup, first = startup - 1, first + before
    return startup


def find_block(model: PhaseModel, *, first: int = 0) -> Block | None:
    """Return the block of phases whose repetition explains most phases.

    Args:
        first: The first phase that it may begin with.
    """
    if model.outline.length:
        return _epochs(model, first)
    count = len(model.names)
    seconds, power_w = np.array(model.run_s), np.array(model.run_power_w)
    found: list[Block] = []
    most = 0
    for length in range(2, min((count - first) // 2, _LONGEST_BLOCK) + 1):
        for begin in range(first, count - 2 * length + 1):
            if count - begin - length < most:
                # Even if all that follows were repetition, it would explain less.
                break
            times = 1
            while begin + (times + 1) * length <= count and _alike(
                model, seconds, power_w, begin, length, times + 1
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


def _epochs(model: PhaseModel, least: int) -> Block | None:
    """Return the epochs that are averaged: marks made them one, levels may set some apart.

    A first epoch that clearly differs from the others is left out. If others differ as clearly,
    in every run alike, nothing is averaged.
    """
    outline = model.outline
    begins = np.concatenate(([0], np.cumsum(model.parts)))
    at = [int(begins[outline.first + outline.length * epoch]) for epoch in range(outline.count + 1)]
    if outline.count < 2:
        return None
    # The last epoch may end in phases that nobody marked.
    length = sum(model.parts[outline.first + outline.length :][: outline.length])
    if outline.count == 2:
        length = min(length, at[1] - at[0])
    warm = warm_up(model)
    whole = at[0] + warm + length == at[1] and at[0] + warm >= least
    rows = [range(begin, begin + length) for begin in at[1:-1]]
    rest_s, rest_j = _per_run(model, rows)
    if len(rows) > 1 and any(
        _differs(rest_s, rest_j, place, _SURELY, _MUCH) for place in range(len(rows))
    ):
        return None
    if whole:
        first_s, first_j = _per_run(model, [range(at[0] + warm, at[1])])
        seconds = np.concatenate((first_s, rest_s), axis=1)
        joules = np.concatenate((first_j, rest_j), axis=1)
        whole = not _differs(seconds, joules, 0, _LIKELY, _SOME)
    block = Block(
        first=at[0] + warm if whole else at[1],
        length=length,
        count=outline.count - (not whole),
    )
    while block.count > 1 and block.first < least:
        block = Block(first=block.first + length, length=length, count=block.count - 1)
    return block if block.count > 1 else None


def warm_up(model: PhaseModel) -> int:
    """Return how many phases the first epoch begins with that no other has."""
    outline = model.outline
    if not outline.length or outline.count < 2:
        return 0
    begins = np.concatenate(([0], np.cumsum(model.parts)))
    first, other = (
        model.power_w[begins[slot] : begins[slot + 1]]
        for slot in (outline.first, outline.first + outline.length)
    )
    more = first.size - other.size
    if more <= 0:
        return 0
    # A first epoch that was merely cut more finely does not warm up.
    apart_w = np.abs(first[more:] - other)
    return more if (apart_w <= _ALIKE * np.maximum(first[more:], other)).all() else 0


def _per_run(model: PhaseModel, rows: Sequence[range]) -> tuple[FloatArray, FloatArray]:
    """Return seconds and joules of phases by run, epoch and place; NaN where a run has none."""
    seconds, joules = [], []
    for own_s, own_w, row in zip(model.run_s, model.run_power_w, model.rows, strict=True):
        own_j = own_s * own_w
        times = np.bincount(row, minlength=len(model.names)).astype(float)
        times[times == 0] = np.nan
        in_s = np.bincount(row, weights=own_s, minlength=times.size) / times
        in_j = np.bincount(row, weights=own_j, minlength=times.size) / times
        seconds.append([[in_s[phase] for phase in each] for each in rows])
        joules.append([[in_j[phase] for phase in each] for each in rows])
    return np.array(seconds), np.array(joules)


def _differs(
    seconds: FloatArray, joules: FloatArray, epoch: int, level: float, share: float
) -> bool:
    """Return whether an epoch clearly differs from the others: by much, and not by chance.

    Args:
        level: How sure that is to be.
        share: By which share of a whole epoch one of its phases must differ.
    """
    others = np.arange(seconds.shape[1]) != epoch
    for values in (seconds, joules):
        known = np.asarray(~np.isnan(values).any(axis=2))
        apart = np.array(
            [
                own[epoch] - own[has & others].mean(axis=0)
                for own, has in zip(values, known, strict=True)
                if has[epoch] and (has & others).any()
            ]
        )
        again = values[known & others]
        if not len(apart) or not (whole := float(again.sum(axis=1).mean())) > 0:
            continue
        mean = apart.mean(axis=0)
        if len(apart) > 1:
            error = apart.std(axis=0, ddof=1) / np.sqrt(len(apart))
            sure = np.abs(mean) > quantile(level, len(apart) - 1) * error
        elif len(again) > 2:
            # One run alone: beyond what its other epochs vary by.
            sure = np.abs(mean) > quantile(level, len(again) - 1) * again.std(axis=0, ddof=1)
        else:
            sure = np.abs(mean) > _SIMILAR_POWER * whole
        if (sure & (np.abs(mean) > share * whole)).any():
            return True
    return False


def startup_by_position(model: PhaseModel, block: Block | None) -> int:
    """Return how many phases come before the work, judged by where the repeated part begins.

    If the phases just before it resemble it, if only from afar, they are work as well: whole
    occurrences of it, or the end of one where the block was cut in the middle of what repeats.
    """
    if model.outline.length:
        return sum(model.parts[: model.outline.first]) + warm_up(model)
    if block is None:
        return 0
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
    told = block is not None or model.outline.length
    place = startup_by_position(model, block) if told else end
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
    told = block is not None or model.outline.length
    last = startup_by_position(model, block) if told else count - 1
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


def _alike(
    model: PhaseModel,
    seconds: FloatArray,
    power_w: FloatArray,
    begin: int,
    length: int,
    times: int,
) -> bool:
    rows = begin + np.arange(times * length).reshape(times, length)
    for place in range(length):
        again = rows[:, place]
        if len({model.stretches[phase] for phase in again}) > 1:
            return False
        if len({model.checkpoints[phase] for phase in again}) > 1:
            return False
        if not (_all_near(power_w[:, again]) and _all_near(seconds[:, again])):
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
