"""The shape that rows of stretches share: a head, a body that comes again, a tail.

A run is a row of stretches with labels: what the program said. Its shape is what describes all rows
most briefly: the head up to the end of the first epoch, the body that every further epoch repeats,
the tail. Each label of the shape counts one, and so does each label that a row lacks or has
besides, on average over rows. So any number of epochs is the same shape, and a mark that one epoch
lacks makes no other shape of it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from lowtide.changepoints import IntArray
from lowtide.signal import FloatArray

_LONGEST_BODY = 60
# So many different rows make proposals, and so many judge them.
_PROPOSERS = 6
_JUDGES = 12
# A row and a shape with more cells than this between them are compared to the letter alone.
_MOST_CELLS = 400_000
# Stretches resemble each other if power differs by no more than this share, and length by no more
# than this factor: a first epoch may be slower than all others.
_SIMILAR_POWER = 0.25
_SIMILAR_DURATION = 2.0
# Epochs that differ in length by more than this are none, whatever they are called.
_SAME_EPOCH = 4.0
# What a label costs that a row lacks, where one it has besides costs one more: a mark is sooner
# lost than made up.
_LACKS = 8
# What a label costs that a row lacks or has besides; one of the shape costs one.
_WRONG = 2.5
# What leaving out a label altogether costs, and each of its occurrences.
_LEFT_OUT, _LEFT_OUT_EACH = 1.0, 1.2


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Row:
    """A run as a row of stretches.

    Attributes:
        labels: What each is called.
        seconds: How long each takes.
        watts: What each draws.
    """

    labels: tuple[str, ...]
    seconds: FloatArray
    watts: FloatArray


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """What rows have in common.

    Attributes:
        head: What comes first, the first epoch included.
        body: What every further epoch consists of; empty if nothing repeats.
        tail: What comes last.
    """

    head: tuple[str, ...]
    body: tuple[str, ...] = ()
    tail: tuple[str, ...] = ()

    @property
    def startup(self) -> int:
        """How many stretches come before the first epoch."""
        return len(self.head) - len(self.body)

    def row(self, epochs: int) -> tuple[str, ...]:
        """Return the labels of a run with so many epochs."""
        return self.head + self.body * (epochs - 1) + self.tail


@dataclass(frozen=True, slots=True, kw_only=True)
class Parse:
    """How a row fits a shape.

    Attributes:
        epochs: How many it has.
        places: For each stretch of the shape's row, where the run has it; -1 where it lacks it.
        wrong: How many labels it lacks or has besides.
    """

    epochs: int
    places: tuple[int, ...]
    wrong: int


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class MarkedStretches:
    """A run's own stretches.

    Attributes:
        slots: Which of the stretches that all runs share each is; those of an epoch beyond the
            usual ones are the last epoch's.
        edges_s: Where each begins by the program's clock, and the end of the last.
        guessed: Whether the mark at each edge is missing, so that its place is but likely.
        epochs: How many epochs the run has, 1 where nothing repeats.
    """

    slots: IntArray
    edges_s: FloatArray
    guessed: npt.NDArray[np.bool_]
    epochs: int


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Outline:
    """Which stretches of a run are epochs, and where each run has them.

    Attributes:
        first: The stretch that the first epoch begins with.
        length: How many stretches an epoch has, 0 if nothing repeats.
        count: How many epochs runs usually have.
        runs: The stretches of each run.
    """

    first: int
    length: int
    count: int
    runs: tuple[MarkedStretches, ...]

    @property
    def end(self) -> int:
        """The stretch after the last epoch."""
        return self.first + self.length * self.count

    def kinds(self, own: MarkedStretches) -> IntArray:
        """Return for each stretch the one of the first epoch that it repeats, or itself."""
        slots = own.slots
        if not self.length:
            return slots
        again = self.first + (slots - self.first) % self.length
        return np.where((slots >= self.first) & (slots < self.end), again, slots)


def find_shape(rows: Sequence[Row]) -> tuple[Shape, frozenset[str]]:
    """Return the shape that describes rows most briefly, and labels that are better left out.

    What a program says now and then, such as its loss, tells no phases.
    """
    dropped: frozenset[str] = frozenset()
    shape, cost = _briefest(rows)
    paid = 0.0
    for _ in range(3):
        heard = Counter(label for row in rows for label in row.labels[1:] if label not in dropped)
        better = None
        for label, count in heard.items():
            # What each run says once at the same place costs less than to leave it out.
            if len(heard) == 1 or count <= 1.2 * len(rows):
                continue
            without = [leave_out(row, dropped | {label}) for row in rows]
            found, less = _briefest(without)
            price = paid + _LEFT_OUT + _LEFT_OUT_EACH * count / len(rows)
            if less + price < cost - 1e-9 and found.body:
                better, cost = (found, label, price), less + price
        if better is None:
            break
        shape, dropped, paid = better[0], dropped | {better[1]}, better[2]
    without = [leave_out(row, dropped) for row in rows]
    shape = _turned(without, shape)
    if shape.body and not all(_epochs_are_even(row, shape) for row in without[:_JUDGES]):
        shape = Shape(head=Counter(row.labels for row in without).most_common(1)[0][0])
    return shape, dropped


def leave_out(row: Row, labels: frozenset[str]) -> Row:
    """Return a row in which stretches of these labels belong to the one before."""
    if not labels:
        return row
    kept = np.array([not place or label not in labels for place, label in enumerate(row.labels)])
    begins = np.flatnonzero(kept)
    seconds = np.add.reduceat(row.seconds, begins)
    energy_j = np.add.reduceat(row.seconds * row.watts, begins)
    return Row(
        labels=tuple(row.labels[place] for place in begins),
        seconds=seconds,
        watts=energy_j / np.maximum(seconds, 1e-9),
    )


def _briefest(rows: Sequence[Row]) -> tuple[Shape, float]:
    """Return the shape that is briefest together with what rows have otherwise."""
    different = Counter(row.labels for row in rows)
    judges = different.most_common(_JUDGES)
    total = sum(count for _, count in judges)
    first_of = {row.labels: row for row in reversed(rows)}
    best, least = Shape(head=judges[0][0]), np.inf
    tried = set()
    for labels, _ in judges[:_PROPOSERS]:
        for shape in _proposals(first_of[labels]):
            if shape in tried:
                continue
            tried.add(shape)
            cost = float(shape.startup + len(shape.body) + len(shape.tail))
            for other, count in judges:
                if cost >= least - 1e-9:
                    break
                cost += _WRONG * parse(other, shape).wrong * count / total
            if cost < least - 1e-9:
                best, least = shape, cost
    return best, least


def _proposals(row: Row) -> Iterator[Shape]:
    labels = row.labels
    size = len(labels)
    number = {label: place for place, label in enumerate(dict.fromkeys(labels))}
    code = np.array([number[label] for label in labels])
    for length in range(1, min(size // 2, _LONGEST_BODY) + 1):
        same = np.concatenate(([False], code[:-length] == code[length:], [False]))
        turns = np.flatnonzero(same[1:] != same[:-1])
        for first, last in zip(turns[::2].tolist(), turns[1::2].tolist(), strict=True):
            if last - first < length or _is_power(labels[first : first + length]):
                continue
            begin, end = first, last + length
            end -= (end - begin) % length
            if end - begin < 2 * length:
                continue
            # The last epoch may be something else that is called after the one before.
            if end - begin > 2 * length and not _even(row.seconds[begin : end - length], length):
                continue
            body = labels[begin + length : begin + 2 * length]
            head = labels[: begin + length]
            yield Shape(head=head, body=body, tail=labels[end:])
            # A label that is missing or added in one epoch splits what repeats: go on to the last.
            over = next(
                at for at in range(size - length, -1, -1) if labels[at : at + length] == body
            )
            if over + length > end:
                yield Shape(head=head, body=body, tail=labels[over + length :])
            early = next(at for at in range(size) if labels[at : at + length] == body)
            if early < begin:
                tail = labels[max(over + length, end) :]
                yield Shape(head=labels[: early + length], body=body, tail=tail)
    yield Shape(head=labels)


def _turned(rows: Sequence[Row], shape: Shape) -> Shape:
    """Return a shape whose epochs begin where power and length say that they do.

    Where marks tell what is over, the first epoch's first stretch is called after what came before
    it, and what follows the last epoch after the epoch's end.
    """
    startup, length = shape.startup, len(shape.body)
    if not shape.body or not startup:
        return shape
    before, usual, over = (list[tuple[float, float]]() for _ in range(3))
    for row in rows:
        found = parse(row.labels, shape)
        last = startup + length * found.epochs - 1
        for place, values in (
            (startup - 1, before),
            *((at, usual) for at in range(startup + length - 1, last, length)),
            (last, over),
        ):
            if (at := found.places[place]) >= 0:
                values.append((float(row.seconds[at]), float(row.watts[at])))
    if not (before and usual and over):
        return shape
    first, again, final = (
        (
            float(np.median([each[0] for each in values])),
            float(np.median([each[1] for each in values])),
        )
        for values in (before, usual, over)
    )
    if not resembles(first, again):
        return shape
    turned = shape.body[-1:] + shape.body[:-1]
    head = shape.head[:startup] + shape.body[:-1]
    if length > 1 and shape.tail[: length - 1] == shape.body[:-1]:
        return Shape(head=head, body=turned, tail=shape.tail[length - 1 :])
    if resembles(final, again):
        return shape
    return Shape(head=head, body=turned, tail=shape.body[-1:] + shape.tail)


def resembles(one: tuple[float, float], other: tuple[float, float]) -> bool:
    """Return whether two stretches may be the same again, seen from afar.

    Args:
        one: Seconds and watts.
        other: Seconds and watts.
    """
    lengths, powers = sorted((one[0], other[0])), sorted((one[1], other[1]))
    return bool(
        lengths[1] <= _SIMILAR_DURATION * lengths[0]
        and powers[1] - powers[0] <= _SIMILAR_POWER * powers[1]
    )


def _is_power(labels: tuple[str, ...]) -> bool:
    """Return whether a row is a shorter one several times."""
    size = len(labels)
    return any(
        size % part == 0 and labels == labels[:part] * (size // part)
        for part in range(1, size // 2 + 1)
    )


def _epochs_are_even(row: Row, shape: Shape) -> bool:
    found = parse(row.labels, shape)
    inside = found.places[shape.startup : shape.startup + len(shape.body) * found.epochs]
    if min(inside) < 0 or found.epochs < 2:
        return True
    return _even(row.seconds[list(inside)], len(shape.body))


def _even(seconds: FloatArray, length: int) -> bool:
    """Return whether epochs take about as long as each other."""
    epochs = seconds.reshape(-1, length).sum(axis=1)
    return bool(epochs.max() <= _SAME_EPOCH * max(epochs.min(), 1e-9))


@lru_cache(maxsize=4096)
def parse(labels: tuple[str, ...], shape: Shape) -> Parse:
    """Return how a row of labels fits a shape with least wrong, by dynamic programming."""
    size, head, body, tail = len(labels), len(shape.head), len(shape.body), len(shape.tail)
    more = size - head - tail
    epochs = 1 + (more // body if body and more > 0 else 0)
    if labels == shape.row(epochs):
        return Parse(epochs=epochs, places=tuple(range(size)), wrong=0)
    if size * (head + body + tail) > _MOST_CELLS:
        return Parse(epochs=1, places=(-1,) * (head + tail), wrong=size + head + tail)
    # Where one stands: so much of the head, so much of a further epoch, so much of the tail. After
    # a whole epoch one stands where the head ended.
    steps: list[tuple[int, int, str]] = [(at, at + 1, label) for at, label in enumerate(shape.head)]
    inner = [head, *range(head + 1, head + body), head]
    steps += [(inner[at], inner[at + 1], label) for at, label in enumerate(shape.body)]
    inside = head + max(body, 1)
    after = [head, *range(inside, inside + tail)]
    steps += [(after[at], after[at + 1], label) for at, label in enumerate(shape.tail)]
    nodes = inside + tail
    # Around the body twice: lacking its last stretch one may lack its first one as well.
    quiet = [*range(head), *[*range(head, head + body)] * 2, *range(head + body, len(steps))]
    known = {*shape.head, *shape.body, *shape.tail}
    costs = [[_LACKS * (size + nodes)] * nodes for _ in range(size + 1)]
    came: list[list[tuple[int, int, int]]] = [[(-1, -1, -1)] * nodes for _ in range(size + 1)]
    costs[0][0] = 0
    for at in range(size + 1):
        here, from_ = costs[at], came[at]
        if at:
            before, label = costs[at - 1], labels[at - 1]
            besides = _LACKS + (label in known)
            for node in range(nodes):
                if before[node] + besides < here[node]:
                    here[node], from_[node] = before[node] + besides, (at - 1, node, -1)
            for number, (source, target, expected) in enumerate(steps):
                if expected == label and before[source] < here[target]:
                    here[target], from_[target] = before[source], (at - 1, source, number)
        for number in quiet:
            source, target, _ = steps[number]
            if here[source] + _LACKS < here[target]:
                here[target], from_[target] = here[source] + _LACKS, (at, source, number)
    at, node = size, after[-1]
    path: list[tuple[int, int]] = []
    while (at, node) != (0, 0):
        earlier, source, number = came[at][node]
        if number >= 0:
            path.append((number, at - 1 if earlier < at else -1))
        at, node = earlier, source
    path.reverse()
    repeats = sum(number == head for number, _ in path) if body else 0
    places = tuple(place for _, place in path)
    lacks = sum(place < 0 for place in places)
    return Parse(epochs=1 + repeats, places=places, wrong=lacks + size - (len(places) - lacks))
