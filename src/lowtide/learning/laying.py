"""Laying a run along a row of kinds: startup, a body as often as it comes, an end.

A run is cut into pieces where its power changes, rather too finely. A kind has a level of power and
a usual length. Which pieces belong to which kind, and how often the body comes, is what costs
least: a dynamic programme for a hidden chain whose stays have lengths of their own (a hidden
semi-Markov chain). Costs are squared distances in units of the noise, as twice the logarithm of a
likelihood, and bounded, so that one odd epoch, throttled or slow, is an epoch still.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from lowtide.changepoints import IntArray
from lowtide.compiled import compiled
from lowtide.signal import FloatArray

# What a kind costs: as much as a change of level does when a trace is cut.
KIND = 20.0
# What a kind costs that a run lacks, and a whole epoch beside its kinds.
_LACKS = 25.0
_LACKS_ALL = 50.0
# What each stay costs, so that of two ways that fit alike the one with fewer is taken.
_STAY = 1.0
# Levels of one kind differ by this share of the range of power, and by their noise.
_LEVEL = 0.015
# A level that is off costs no more than this, since a machine may be throttled; beyond this share
# of the range it is not, and costs so much more for the whole range.
_WRONG_LEVEL = 25.0
_THROTTLED, _FAR = 0.3, 80.0
# What changes within a stay cost at most, and the share of the range that is none.
_WRONG_WITHIN = 150.0
_TOO_MUCH = 400.0
_WITHIN = 0.03
# Lengths of one kind differ by this share and by so many steps. What one that is off costs at most,
# unless its logarithm is off by more than this, and what it costs then.
_LENGTH, _LENGTH_STEPS = 0.15, 1.5
_WRONG_LENGTH = 12.0
_SLOW, _FAR_LENGTH = 0.7, 15.0
# A stay so many times as long as usual is none.
_LONGEST = 2.2


@dataclass(frozen=True, kw_only=True, eq=False)
class Pieces:
    """A run in pieces of constant power.

    Attributes:
        edges: Where pieces begin, in steps, and the end of the last.
        means_w: What each draws.
        weights: How many steps tell that; none where the meter was on its way between two levels.
    """

    edges: IntArray
    means_w: FloatArray
    weights: FloatArray

    @cached_property
    def sums(self) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Weights, and power and its square times them, summed up to each piece."""
        found = np.zeros((3, self.weights.size + 1))
        np.cumsum(self.weights * self.means_w ** np.arange(3)[:, None], axis=1, out=found[:, 1:])
        return found[0], found[1], found[2]

    @cached_property
    def _drawn(self) -> FloatArray:
        return np.concatenate(([0.0], np.cumsum(np.diff(self.edges) * self.means_w)))

    def between(self, begins: IntArray, ends: IntArray) -> tuple[FloatArray, FloatArray]:
        """Return what is drawn from each piece to another, and how many steps these last."""
        steps = (self.edges[ends] - self.edges[begins]).astype(np.float64)
        weight, power, _ = self.sums
        drawn = self._drawn
        steady = weight[ends] - weight[begins]
        all_w = (drawn[ends] - drawn[begins]) / np.maximum(steps, 1)
        steady_w = (power[ends] - power[begins]) / np.where(steady > 0, steady, 1.0)
        return np.where(steady > 0, steady_w, all_w), steps


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Kinds:
    """A row of kinds.

    Attributes:
        levels_w: What each draws, NaN for kinds of which nothing is known: those may come several
            times or not at all, and cost as much as a kind whenever they come.
        steps: How many steps each lasts.
        first: The first kind of the body.
        length: How many kinds the body has, 0 if nothing comes again.
    """

    levels_w: FloatArray
    steps: FloatArray
    first: int
    length: int

    @property
    def end(self) -> int:
        """The first kind after the body."""
        return self.first + self.length


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Laid:
    """How a run lies along a row of kinds.

    Attributes:
        kinds: The kind of each stay.
        begins: The piece that each begins with.
        ends: The piece after its last; the same as its begin where the run lacks it.
        cost: What this costs.
    """

    kinds: IntArray
    begins: IntArray
    ends: IntArray
    cost: float


def lay(pieces: Pieces, row: Kinds, *, noise: float, range_w: float) -> Laid:
    """Return how a run lies along a row at least cost.

    Args:
        noise: The variance of the noise in a step, in W², as it weighs over many.
        range_w: The range of power.
    """
    kinds, begins, ends, cost = _lay(
        pieces.edges.astype(np.float64),
        *pieces.sums,
        row.levels_w,
        row.steps,
        row.first,
        row.length,
        max(noise, 1e-12),
        max(range_w, 1e-9),
    )
    return Laid(kinds=kinds, begins=begins, ends=ends, cost=cost)


@compiled()
def _lay(
    edges: FloatArray,
    weight: FloatArray,
    first: FloatArray,
    second: FloatArray,
    levels_w: FloatArray,
    steps: FloatArray,
    body: int,
    length: int,
    noise: float,
    range_w: float,
) -> tuple[IntArray, IntArray, IntArray, float]:
    size, count, end = edges.size - 1, levels_w.size, body + length
    free = np.isnan(levels_w)
    # An epoch that lacks most of its time is hardly one.
    lacks = np.where(free, 0.0, _LACKS)
    lacks[body:end] += _LACKS_ALL * steps[body:end] / max(steps[body:end].sum(), 1.0)
    usual, room = np.log(steps), _LENGTH**2 + (_LENGTH_STEPS / steps) ** 2
    spread = (_LEVEL * range_w) ** 2
    within_of = noise + (_WITHIN * range_w) ** 2
    # What it costs to have left a kind where a piece begins, and to be about to enter one.
    left = np.full((size + 1, count), np.inf)
    since = np.zeros((size + 1, count), dtype=np.intp)
    ready = np.full((size + 1, count + 1), np.inf)
    came = np.full((size + 1, count + 1), -1, dtype=np.intp)
    ready[0, 0] = 0.0
    for at in range(size + 1):
        for begin in range(at - 1, -1, -1):
            lasts = edges[at] - edges[begin]
            length_of = np.log(lasts)
            steady = weight[at] - weight[begin]
            mean = 0.0
            within = 0.0
            if steady > 0:
                mean = (first[at] - first[begin]) / steady
                within = (second[at] - second[begin]) - steady * mean * mean
                within = max(within, 0.0) / within_of
                if within > _TOO_MUCH:
                    # The longer a stay is, the more changes within it.
                    break
            for kind in range(count):
                cost = ready[begin, kind]
                if cost >= left[at, kind]:
                    continue
                if free[kind]:
                    cost += KIND + within
                else:
                    again = body <= kind < end
                    # A single piece may be anything, so that every run can be laid somehow.
                    if again and lasts > _LONGEST * steps[kind] + 3 and begin < at - 1:
                        continue
                    if steady > 0:
                        apart = mean - levels_w[kind]
                        cost += min(within, _WRONG_WITHIN) if again else within
                        far = max(abs(apart) / range_w - _THROTTLED, 0.0)
                        wrong = _WRONG_LEVEL + _FAR * far
                        cost += min(apart * apart / (noise / steady + spread), wrong)
                    else:
                        cost += _WRONG_LEVEL
                    off = length_of - usual[kind]
                    far = max(abs(off) - _SLOW, 0.0)
                    cost += _STAY + min(off * off / room[kind], _WRONG_LENGTH + _FAR_LENGTH * far)
                if cost < left[at, kind]:
                    left[at, kind] = cost
                    since[at, kind] = begin
        for kind in range(count):
            cost = left[at, kind]
            if cost < ready[at, kind + 1]:
                ready[at, kind + 1] = cost
                came[at, kind + 1] = kind
            if free[kind] and cost < ready[at, kind]:
                ready[at, kind] = cost
                came[at, kind] = kind
            if kind == end - 1 and length and cost < ready[at, body]:
                ready[at, body] = cost
                came[at, body] = kind
        # Kinds that are lacking, around the body twice.
        for _ in range(2):
            for kind in range(count):
                cost = ready[at, kind] + lacks[kind]
                if cost < ready[at, kind + 1]:
                    ready[at, kind + 1] = cost
                    came[at, kind + 1] = count + kind
                if kind == end - 1 and length and cost < ready[at, body]:
                    ready[at, body] = cost
                    came[at, body] = count + kind
    most = size + (size + 2) * (count + 1)
    kinds = np.empty(most, dtype=np.intp)
    begins = np.empty(most, dtype=np.intp)
    ends = np.empty(most, dtype=np.intp)
    found = most
    at, node = size, count
    while at > 0 or node > 0:
        how = came[at, node]
        kind = how if how < count else how - count
        begin = since[at, kind] if how < count else at
        if how < count or not free[kind]:
            found -= 1
            kinds[found], begins[found], ends[found] = kind, begin, at
        at, node = begin, kind
    return kinds[found:], begins[found:], ends[found:], ready[size, count]
