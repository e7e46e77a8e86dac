"""The shape that rows of stretches share: a head, a body that comes again, a tail.

A run is a row of stretches with labels: what the program said. Its shape is what describes all rows
most briefly: the head up to the end of the first epoch, the body that every further epoch repeats,
the tail. Each label of the shape counts one, and so does each label that a row lacks or has
besides, on average over rows. So any number of epochs is the same shape, and a mark that one epoch
lacks makes no other shape of it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import pairwise

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
# An epoch that nobody announced draws what others do but for this share, and what is before it
# takes this share of an epoch at least.
_SAME_POWER, _CLEARLY_BEFORE = 0.1, 0.1
# Epochs that differ in length by more than this are none, whatever they are called.
_SAME_EPOCH = 4.0
# What a label costs that a row lacks, where one it has besides costs one more: a mark is sooner
# lost than made up.
_LACKS = 8
# What a label costs that a row lacks, or has besides; one of the shape costs one.
_LACKING, _BESIDES = 1.5, 2.5
# What a label costs that epochs have, where it stands outside of them.
_ASTRAY = 2.0
# What it costs that a row has more or fewer of the part that a body begins with again and again.
_BROKEN_OFF = 10.0
# What leaving out a label altogether costs, and each of its occurrences.
_LEFT_OUT, _LEFT_OUT_EACH = 1.0, 1.2
# What it costs that epochs differ in length by their mean: between two shapes as brief it decides.
_UNEVEN = 0.1
# What it costs that a label counts once that comes again and again before any other does, as steps
# of an epoch do: most of its occurrences come right after one.
_ONCE, _AGAIN = 1.0, 0.5
# What tells epochs instead is in all of them, in more than this share of rows.
_MOSTLY = 0.6
# What leaving out one costs that comes at random: stretches before and after it have lengths that
# spread by more than this share of their mean, as far as so many tell.
_AT_RANDOM = 1.5
_IRREGULAR, _ENOUGH = 0.35, 4
# What does not: epochs that spread by less, of which the first may be slow.
_REGULAR = 0.2


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Row:
    """A run as a row of stretches.

    Attributes:
        labels: What each is called.
        seconds: How long each takes.
        watts: What each draws.
        mean_w: What the run draws between each of some times after its start and the next; None
            where no more is known than that.
    """

    labels: tuple[str, ...]
    seconds: FloatArray
    watts: FloatArray
    mean_w: Callable[[FloatArray], FloatArray] | None = None


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

    @property
    def broken_off(self) -> int:
        """With how many stretches the tail begins that are a body broken off; one alone is none."""
        body, tail = self.body, self.tail
        sizes = range(min(len(body) - 1, len(tail)), 1, -1)
        return next((size for size in sizes if body[:size] == tail[:size]), 0)

    def row(self, epochs: int) -> tuple[str, ...]:
        """Return the labels of a run with so many epochs."""
        return self.head + self.body * (epochs - 1) + self.tail


@dataclass(frozen=True, slots=True, kw_only=True)
class Ignored:
    """What a program says that begins no stretch.

    Attributes:
        labels: Labels that tell nothing, wherever they are.
        again: Labels that tell nothing where they come right after themselves.
    """

    labels: frozenset[str] = frozenset()
    again: frozenset[str] = frozenset()

    def kept(self, labels: Sequence[str]) -> list[int]:
        """Return which of a row's labels begin a stretch; the first does, whatever it is."""
        found: list[int] = []
        for place, label in enumerate(labels):
            if found and label in self.labels:
                continue
            if not (found and label in self.again and label == labels[found[-1]]):
                found.append(place)
        return found


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

    @property
    def lacking(self) -> int:
        """How many labels it lacks."""
        return sum(place < 0 for place in self.places)

    @property
    def cost(self) -> float:
        """What it costs to say what is wrong."""
        lacking = self.lacking
        return _LACKING * lacking + _BESIDES * (self.wrong - lacking)


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
        each: How many epochs one of these is by the program's own numbers: more than one where
            some of them differ, as if every second one saves.
        rest: How many come after the last of these.
        rest_length: How many stretches these have.
    """

    first: int
    length: int
    count: int
    runs: tuple[MarkedStretches, ...]
    each: int = 1
    rest: int = 0
    rest_length: int = 0

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


def usual_epochs(epochs: Counter[int]) -> int:
    """Return how many epochs most runs have; the middle one of those that are equally common.

    Args:
        epochs: How many runs have so many.

    >>> usual_epochs(Counter([5, 5, 4, 6])), usual_epochs(Counter([12, 3, 5]))
    (5, 5)
    """
    most = max(epochs.values())
    common = sorted(number for number, times in epochs.items() if times == most)
    return common[(len(common) - 1) // 2]


def find_shape(rows: Sequence[Row]) -> tuple[Shape, Ignored]:
    """Return the shape that describes rows most briefly, and what is better not listened to.

    What a program says now and then, such as its loss, tells no phases. Nor do the steps of an
    epoch, if something else tells epochs.
    """
    shape, ignored, cost = _without_what_passes(rows, Ignored())
    if steps := _said_again(rows):
        by_others, more, less = _without_what_passes(rows, Ignored(again=steps))
        now = [leave_out(row, more) for row in rows]
        fits = [parse(row.labels, by_others) for row in now]
        if (
            steps & set(by_others.body)
            and less + _ONCE * len(steps) < cost - 1e-9
            # What comes between steps by chance tells no epochs.
            and sum(found.epochs for found in fits) > _ENOUGH
            and sum(found.wrong == 0 for found in fits) > _MOSTLY * len(fits)
            and _unevenness(now, by_others) <= _REGULAR
            and not any(_comes_at_random(rows, label) for label in set(by_others.body) - steps)
        ):
            shape, ignored = by_others, more
    return _turned([leave_out(row, ignored) for row in rows], shape), ignored


def _without_what_passes(rows: Sequence[Row], ignored: Ignored) -> tuple[Shape, Ignored, float]:
    """Return the briefest shape, with labels left out that are said now and then, and its cost."""
    shape, cost = _briefest([leave_out(row, ignored) for row in rows])
    paid = 0.0
    for _ in range(3):
        now = [leave_out(row, ignored) for row in rows]
        heard = Counter(label for row in now for label in row.labels[1:])
        better = None
        for label, count in heard.items():
            if len(heard) == 1 or label in ignored.again:
                continue
            more = replace(ignored, labels=ignored.labels | {label})
            found, less = _briefest([leave_out(row, more) for row in rows])
            each = _LEFT_OUT_EACH * count / len(rows)
            price = paid + (_AT_RANDOM if _comes_at_random(now, label) else _LEFT_OUT + each)
            if less + price < cost - 1e-9 and found.body:
                better, cost = (found, more, price), less + price
        if better is None:
            break
        shape, ignored, paid = better
    return shape, ignored, cost


def _said_again(rows: Sequence[Row]) -> frozenset[str]:
    """Return the labels that mostly come right after themselves."""
    every, again = Counter[str](), Counter[str]()
    for row in rows:
        every.update(row.labels)
        again.update(one for one, other in pairwise(row.labels) if one == other)
    return frozenset(label for label, count in again.items() if count > _AGAIN * every[label])


def _comes_at_random(rows: Sequence[Row], label: str) -> bool:
    """Return whether a label says nothing of when: as irregular is what it ends and what it begins.

    To know that it was said then tells no more than to leave it out.
    """
    before, after = [], []
    for row in rows:
        # The last stretch ends with the run, whatever was said.
        for place, said in enumerate(row.labels[1:-1], start=1):
            if said == label:
                before.append(row.seconds[place - 1])
                after.append(row.seconds[place])
    return len(after) >= _ENOUGH and min(_spread(before), _spread(after)) > _IRREGULAR


def leave_out(row: Row, ignored: Ignored) -> Row:
    """Return a row in which stretches that nothing begins belong to the one before."""
    begins = np.array(ignored.kept(row.labels))
    if begins.size == len(row.labels):
        return row
    seconds = np.add.reduceat(row.seconds, begins)
    energy_j = np.add.reduceat(row.seconds * row.watts, begins)
    return replace(
        row,
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
            cost, part = _told_in(shape)
            for other, count in judges:
                if cost >= least - 1e-9:
                    break
                found = parse(other, shape)
                broken_off = _BROKEN_OFF * (0 < part <= found.wrong)
                cost += (found.cost + broken_off) * count / total
            if cost < least - 1e-9:
                cost += _UNEVEN * _unevenness(rows, _turned(rows, shape))
            if cost < least - 1e-9:
                best, least = shape, cost
    return best, least


def _told_in(shape: Shape) -> tuple[float, int]:
    """Return what it costs to say a shape, and how much of its body comes at once again.

    Of a body that begins with the same again and again, such as epochs of which each third saves,
    that is said once, and how often. One that is broken off at last is the body until there.
    """
    body = shape.body
    least, again = float(len(body)), 0
    # One mark again and again tells less: others may stand between them by chance.
    for part in range(2, len(body) // 2 + 1):
        times = 1
        while body[part * times : part * (times + 1)] == body[:part]:
            times += 1
        if times > 1 and (told := 1.0 + len(body) - part * (times - 1)) < least:
            least, again = told, part
    broken = shape.broken_off
    outside = (*shape.head[: shape.startup], *shape.tail[broken:])
    told = least + bool(broken)
    return told + sum(_ASTRAY if label in body else 1.0 for label in outside), again


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
            over = (end - begin) % length
            tail = labels[end:]
            end -= over
            if end - begin < 2 * length:
                continue
            # The last epoch may be something else that is called after the one before.
            if end - begin > 2 * length and not _even(row.seconds[begin : end - length], length):
                continue
            body = labels[begin + length : begin + 2 * length]
            head = labels[: begin + length]
            yield Shape(head=head, body=body, tail=labels[end:])
            if end == size and not _even(row.seconds[begin:end], length):
                # What was said when the last epoch was over may be called as if one began.
                yield Shape(head=head, body=body, tail=labels[end - length :])
            if over:
                # The last epoch lacks a mark, or the first does.
                yield Shape(head=head, body=body, tail=tail)
                turned = labels[begin + over : begin + over + length]
                yield Shape(head=labels[:begin] + turned, body=turned, tail=tail)
            # A label that is missing or added in one epoch splits what repeats: go on to the last.
            late = next(
                at for at in range(size - length, -1, -1) if labels[at : at + length] == body
            )
            if late + length > end:
                yield Shape(head=head, body=body, tail=labels[late + length :])
            early = next(at for at in range(size) if labels[at : at + length] == body)
            if early < begin:
                tail = labels[max(late + length, end) :]
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
        seconds, watts = _stays(row, found)
        last = startup + length * found.epochs - 1
        for place, values in (
            (startup - 1, before),
            *((at, usual) for at in range(startup + length - 1, last, length)),
            (last, over),
        ):
            if found.places[place] >= 0:
                values.append((float(seconds[place]), float(watts[place])))
    if not (before and usual and over):
        return shape
    first, again, final = (
        (
            float(np.median([each[0] for each in values])),
            float(np.median([each[1] for each in values])),
        )
        for values in (before, usual, over)
    )
    if not (resembles(first, again) or _ends_like_one(rows, shape, again)):
        return shape
    turned = shape.body[-1:] + shape.body[:-1]
    head = shape.head[:startup] + shape.body[:-1]
    if length > 1 and shape.tail[: length - 1] == shape.body[:-1]:
        return Shape(head=head, body=turned, tail=shape.tail[length - 1 :])
    if resembles(final, again):
        return shape
    return Shape(head=head, body=turned, tail=shape.body[-1:] + shape.tail)


def _ends_like_one(rows: Sequence[Row], shape: Shape, again: tuple[float, float]) -> bool:
    """Return whether most rows end what comes before epochs with one that nobody announced.

    Its end draws what the end of an epoch does, and what is before that clearly does not.

    Args:
        again: Seconds and watts of the stretch that epochs end with.
    """
    told = []
    for row in rows:
        place = parse(row.labels, shape).places[shape.startup]
        if place <= 0 or row.mean_w is None or not again[1] > 0:
            continue
        end_s = float(row.seconds[:place].sum())
        begin_s, before_s = end_s - float(row.seconds[place - 1]), end_s - again[0]
        if before_s - begin_s < _CLEARLY_BEFORE * again[0]:
            told.append(False)
            continue
        before_w, inside_w = row.mean_w(np.array([begin_s, before_s, end_s])).tolist()
        told.append(
            abs(inside_w / again[1] - 1) <= _SAME_POWER
            and abs(before_w / again[1] - 1) > _SIMILAR_POWER
        )
    return 2 * sum(told) > len(told)


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


def _stays(row: Row, found: Parse) -> tuple[FloatArray, FloatArray]:
    """Return how long a row stays in each stretch of its shape, and at what power.

    What it says besides tells no stretch, and does not end the one before. NaN where it lacks one.
    """
    places = np.array(found.places)
    begins = places[places >= 0]
    seconds, watts = np.full(places.size, np.nan), np.full(places.size, np.nan)
    if begins.size:
        spent_s = np.add.reduceat(row.seconds, begins)
        drawn_j = np.add.reduceat(row.seconds * row.watts, begins)
        seconds[places >= 0] = spent_s
        watts[places >= 0] = drawn_j / np.maximum(spent_s, 1e-9)
    return seconds, watts


def _unevenness(rows: Sequence[Row], shape: Shape) -> float:
    """Return by what share epochs differ in length; infinity where they differ too much to be any.

    Most rows decide: in one of them an epoch may have waited.
    """
    uneven, spreads = [], []
    for row in rows[:_JUDGES] if shape.body else ():
        found = parse(row.labels, shape)
        size = len(shape.body)
        # An epoch that begins with the run holds its startup as well, however long that is: then
        # the others have to be alike.
        others = not shape.startup and found.epochs > 2
        inside = slice(shape.startup + size * others, shape.startup + size * found.epochs)
        seconds = _stays(row, found)[0][inside]
        if found.epochs > 1 and not np.isnan(seconds).any():
            spreads.append(_spread(seconds.reshape(-1, size).sum(axis=1)))
            uneven.append(not _even(seconds, size) or (others and spreads[-1] > _IRREGULAR))
    if 2 * sum(uneven) > len(uneven):
        return np.inf
    return float(np.mean(spreads)) if spreads else 0.0


def _spread(values: FloatArray | list[float]) -> float:
    """Return by what share of their mean values differ."""
    return float(np.std(values) / max(float(np.mean(values)), 1e-9))


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
