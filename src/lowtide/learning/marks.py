"""What programs said, made comparable: the marks that runs share, and where each run has them.

A mark starts the stretch that it names. Marks too close together to be told apart by the meter
count as one, named by the last of them. Runs share the shape of what they say, not its length:
each may have as many epochs as it likes.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np

from lowtide.changepoints import IntArray
from lowtide.learning.series import RunSeries
from lowtide.learning.shape import (
    MarkedStretches,
    Outline,
    Parse,
    Row,
    Shape,
    find_shape,
    leave_out,
    parse,
)
from lowtide.recording import Event
from lowtide.signal import FloatArray
from lowtide.units import format_count

# A label says that a checkpoint is there, not that one is about to be written.
_SAVED = re.compile(
    r"(?<![a-z])(saved|checkpointed|checkpoint[ _.-]*(written|done|complete[d]?))(?![a-z])"
)
_NUMBER = re.compile(r"[ _.:=#-]*\d+(\.\d+)?")
# Meters are late, clocks differ: how far the power may lag behind what the program said.
_LAGS_S = np.round(np.arange(-0.5, 4.0 + 0.01, 0.05), 2)
# A run that lacks more than this share of the marks, or has so many more, did something else.
_ODD = 0.25
# An epoch so near to a multiple of the others' length lacks the marks in between.
_MULTIPLE = 0.12
# Marks further outside of a run than this were told by another clock.
_CLOCKS_S = 5.0
# Marks that leave more than this share of the variance of power may be off; they are if elsewhere
# they leave less than this share of that. Runs are looked at in so many steps.
_UNTOLD, _TOLD = 0.4, 0.35
_CLOCK_STEPS = 400
START = "start"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Marks:
    """The stretches between marks, in every run.

    Attributes:
        labels: What the program said at the beginning of each stretch of a run with the usual
            number of epochs, in full; the first may be empty, where it said nothing.
        exact: Whether runs agree to the letter; else their labels are compared without numbers.
        said: All that was said at each inner edge.
        checkpoints: Whether a checkpoint lies at the end of each stretch.
        outline: Which stretches are epochs, and where each run has them.
        hearing: How the marks of another run are to be heard.
    """

    labels: tuple[str, ...]
    exact: bool
    said: tuple[tuple[str, ...], ...]
    checkpoints: tuple[bool, ...]
    outline: Outline
    hearing: Hearing

    @property
    def names(self) -> tuple[str, ...]:
        """What the stretches are called: the labels without their numbers."""
        return tuple(plain_label(label) for label in self.labels)

    @property
    def edges_s(self) -> tuple[FloatArray, ...]:
        """Where the stretches of each run begin, and the end of the last."""
        return tuple(each.edges_s for each in self.outline.runs)

    def shifted(self, lag_s: float) -> tuple[FloatArray, ...]:
        """Return the edges as the meter sees them; start and end stay where they are."""
        return tuple(
            np.concatenate((edges_s[:1], edges_s[1:-1] + lag_s, edges_s[-1:]))
            for edges_s in self.edges_s
        )

    def stretches_in(self, series: RunSeries) -> MarkedStretches | None:
        """Return the stretches of another run, None where too many marks are missing."""
        return self.hearing.stretches(series, self.outline.count)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Hearing:
    """How what a program said is heard.

    Attributes:
        dropped: Labels that tell no stretches.
        brief: Which labels of the shape come so shortly before the next that they count as one.
        usual_s: How long each stretch of the shape takes, NaN where that is not known.
    """

    shape: Shape
    dropped: frozenset[str]
    brief: frozenset[int]
    usual_s: FloatArray

    def kind(self, place: int, epochs: int) -> int:
        """Return which of the shape's labels one of a row is: head or epoch, or tail."""
        startup, body = self.shape.startup, len(self.shape.body)
        if place < startup:
            return place
        if place < startup + body * epochs:
            return startup + (place - startup) % body
        return place - body * (epochs - 1)

    def parsed(self, series: RunSeries) -> tuple[Parse, FloatArray]:
        """Return how a run fits the shape, and when it said what: NaN where it did not."""
        row, events = heard(series, self.dropped)
        found = parse(row.labels, self.shape)
        times_s = [0.0, *(event.time - series.run.start for event in events)]
        begins_s = np.array([np.nan if at < 0 else times_s[at] for at in found.places])
        begins_s[0] = 0.0
        return found, begins_s

    def stretches(self, series: RunSeries, count: int) -> MarkedStretches | None:
        """Return a run's stretches, None where too many marks are missing.

        Args:
            count: How many epochs runs usually have.
        """
        found, begins_s = self.parsed(series)
        if _why_odd(found, self.shape, heard(series, self.dropped)[0].labels) is not None:
            return None
        kinds = [self.kind(place, found.epochs) for place in range(len(found.places))]
        epochs = found.epochs
        if len(self.shape.body) == 1:
            kinds, begins_s, epochs = self._unsaid(kinds, begins_s, series.length_s)
        kept = [place for place, kind in enumerate(kinds) if kind not in self.brief] or [0]
        kinds = [kinds[place] for place in kept]
        edges_s = np.append(begins_s[kept], series.length_s)
        edges_s[0] = 0.0
        guessed = np.isnan(edges_s)
        self._fill(edges_s, kinds)
        slots = self._slots(kinds, count)
        return MarkedStretches(slots=slots, edges_s=edges_s, guessed=guessed, epochs=epochs)

    def _unsaid(
        self, kinds: list[int], begins_s: FloatArray, end_s: float
    ) -> tuple[list[int], FloatArray, int]:
        """Put in the epochs that nobody marked: one takes a multiple of the others' time."""
        place, usual_s = self.shape.startup, self.usual_s[self.shape.startup]
        ends_s = np.append(begins_s[1:], end_s)
        found, begins = [], []
        for kind, begin_s, length_s in zip(kinds, begins_s, ends_s - begins_s, strict=True):
            times = 1
            if kind == place and np.isfinite(length_s / usual_s):
                times = max(round(length_s / usual_s), 1)
                times = times if abs(length_s / (times * usual_s) - 1) < _MULTIPLE else 1
            found += [kind] * times
            begins += [begin_s, *[np.nan] * (times - 1)]
        return found, np.array(begins), found.count(place)

    def _fill(self, edges_s: FloatArray, kinds: Sequence[int]) -> None:
        """Put edges whose marks are missing where they usually are between the others."""
        known = np.flatnonzero(~np.isnan(edges_s))
        usual_s = np.nan_to_num(self.usual_s[kinds], nan=0.0) + 1e-6
        for first, last in pairwise(known):
            if last - first > 1:
                shares = np.cumsum(usual_s[first:last]) / usual_s[first:last].sum()
                edges_s[first + 1 : last] = edges_s[first] + shares[:-1] * (
                    edges_s[last] - edges_s[first]
                )

    def _slots(self, kinds: Sequence[int], count: int) -> IntArray:
        """Return which stretch of a run with the usual number of epochs each is."""
        kept = [kind for kind in range(self.usual_s.size) if kind not in self.brief] or [0]
        place = {kind: number for number, kind in enumerate(kept)}
        first, last = self.shape.startup, self.shape.startup + len(self.shape.body)
        epoch = [kind for kind in kept if first <= kind < last]
        slots, seen = [], Counter[int]()
        for kind in kinds:
            slot = place[kind]
            if kind in epoch:
                slot += len(epoch) * min(seen[kind], count - 1)
                seen[kind] += 1
            elif kind >= last:
                slot += len(epoch) * (count - 1)
            slots.append(slot)
        return np.array(slots, dtype=np.intp)


def says_checkpoint(event: Event) -> bool:
    """Return whether an event is a checkpoint: it was marked so, or its label says so.

    >>> says_checkpoint(Event(time=0, label="epoch_1_saved"))
    True
    >>> says_checkpoint(Event(time=0, label="epoch_1_save"))
    False
    """
    return event.checkpoint or _SAVED.search(event.label.lower()) is not None


def plain_label(label: str) -> str:
    """Return a label without its numbers, so that epochs share it.

    >>> plain_label("epoch_1_train"), plain_label("Epoch 1.0 ended. Steps: 12")
    ('epoch_train', 'Epoch ended. Steps')
    """
    plain = _NUMBER.sub("", label).replace("/", "-").strip(" _.:=#-")
    return plain or label.replace("/", "-") or START


def heard(
    series: RunSeries, dropped: frozenset[str] = frozenset()
) -> tuple[Row, tuple[Event, ...]]:
    """Return a run as a row of stretches named by its marks, and the marks after the first.

    Args:
        dropped: Plain labels that tell no stretches.
    """
    events = tuple(event for event in series.events if plain_label(event.label) not in dropped)
    times_s = np.array([0.0, *(event.time - series.run.start for event in events), series.length_s])
    row = Row(
        labels=("", *(plain_label(event.label) for event in events)),
        seconds=np.diff(times_s),
        watts=series.mean_w(times_s),
    )
    return row, events


def common_marks(
    series: Sequence[RunSeries], step_s: float
) -> tuple[Marks | None, list[int], list[str]]:
    """Return the marks that most runs share, the runs that have them, and what was left out.

    Args:
        step_s: Marks closer together than this on average count as one.
    """
    against = _contradictions(series)
    sound = [number for number, why in enumerate(against) if why is None]
    if not sound:
        # Whom to believe is not known: power decides.
        said = [f"run {each.run.id} {why}" for each, why in zip(series, against, strict=True)]
        return None, [], [*said, "no run's marks can be believed: phases are told by power alone"]
    rows = [heard(each)[0] for each in series]
    shape, dropped = find_shape([rows[number] for number in sound])
    used, notes = [], []
    for number, (each, row) in enumerate(zip(series, rows, strict=True)):
        if (said_why := against[number]) is not None:
            notes.append(f"run {each.run.id} {said_why}, and is left out")
            continue
        labels = leave_out(row, dropped).labels
        found = parse(labels, shape)
        why = _why_odd(found, shape, labels)
        if why is None:
            used.append(number)
            if lacking := sum(place < 0 for place in found.places):
                notes.append(
                    f"run {each.run.id} lacks {format_count(lacking, 'mark')} that others have: "
                    "looked for in its power"
                )
        else:
            notes.append(f"run {each.run.id} {why} and is left out")
    if dropped:
        notes.append(f"marks that come now and then tell no phases: {', '.join(sorted(dropped))}")
    if len(shape.head) + len(shape.tail) == 1:
        return None, used, notes
    chosen = [series[number] for number in used]
    hearing = _hearing(chosen, shape, dropped, step_s)
    epochs = Counter(own.epochs for each in chosen if (own := hearing.stretches(each, 1)))
    most = max(epochs.values())
    count = min(number for number, times in epochs.items() if times == most)
    return _marks(chosen, hearing, count), used, notes


def _contradictions(series: Sequence[RunSeries]) -> list[str | None]:
    """Return for each run what its marks contradict, None where they may all be true."""
    counts = [_counts(each) for each in series]
    # Labels that count up by one in most runs are numbered; a loss that falls is not.
    heard_in, numbered = Counter[str](), Counter[str]()
    for own in counts:
        for label, numbers in own.items():
            heard_in[label] += 1
            numbered[label] += len(numbers) > 1 and set(np.diff(numbers)) == {1}
    found = []
    for each, own in zip(series, counts, strict=True):
        why = _outside(each)
        for label, numbers in own.items():
            back = next((pair for pair in pairwise(numbers) if pair[1] < pair[0]), None)
            if why is None and back is not None and 2 * numbered[label] > heard_in[label]:
                why = f"says {label!r} {back[1]} after {back[0]}, which contradict each other"
        found.append(why)
    return found


def _counts(series: RunSeries) -> dict[str, list[int]]:
    """Return the numbers that a run gave to what it said, in order; labels with one number only."""
    found: dict[str, list[int]] = {}
    for event in series.events:
        numbers = re.findall(r"\d+(?:\.\d+)?", event.label)
        if len(numbers) == 1 and "." not in numbers[0]:
            found.setdefault(plain_label(event.label), []).append(int(numbers[0]))
    return found


def _outside(series: RunSeries) -> str | None:
    """Return that too many of a run's marks lie before its start or after its end."""
    run = series.run
    away_s = [max(run.start - event.time, event.time - run.end) for event in run.events]
    outside = [each for each in away_s if each > _CLOCKS_S]
    if len(outside) <= _ODD * len(away_s):
        return None
    return (
        f"has {len(outside)} of {format_count(len(away_s), 'mark')} before its start or after its "
        f"end, by up to {max(outside):.0f} s: the clocks of who said them and of the meter differ"
    )


def off_by_clock_s(series: RunSeries, own: MarkedStretches, outline: Outline) -> float | None:
    """Return by how much a run's marks are off its power, None where they are not by much.

    Clocks of two hosts may differ by minutes. Marks explain power where they are, or where they
    would be by another clock.
    """
    size = min(_CLOCK_STEPS, series.times_s.size)
    grid = np.linspace(0.0, series.length_s, size + 1)
    if size < 2 * own.slots.size or own.slots.size < 2:
        return None
    power_w = series.mean_w(grid)
    mids = (grid[1:] + grid[:-1]) / 2
    inside = np.clip(np.searchsorted(own.edges_s, mids, side="right") - 1, 0, own.slots.size - 1)
    kinds = outline.kinds(own)[inside]

    def left(by: int) -> float:
        """Return the share of variance that marks leave if they are moved by so many steps."""
        shown = power_w[max(by, 0) : size + min(by, 0)]
        said = kinds[max(-by, 0) : size - max(by, 0)]
        counts = np.maximum(np.bincount(said), 1)
        sums = np.bincount(said, weights=shown)
        whole = float(shown.var()) * shown.size
        told = float((sums**2 / counts).sum() - shown.sum() ** 2 / shown.size)
        return 1 - told / (whole or 1.0)

    step_s = series.length_s / size
    near = range(-int(1 / step_s) - 1, int(_LAGS_S[-1] / step_s) + 2)
    least = 1.0
    for by in sorted(near, key=abs):
        least = min(least, left(by))
        if least < _UNTOLD:
            return None
    shifts = [by for by in range(-size // 2, size // 2 + 1) if by not in near]
    best = min(shifts, key=left)
    return best * step_s if left(best) < _TOLD * least else None


def _why_odd(found: Parse, shape: Shape, labels: Sequence[str]) -> str | None:
    """Return why a run is not one of those that others are like, None where it is."""
    marks = max(len(found.places) - 1, 1)
    lacking = sum(place < 0 for place in found.places)
    if lacking > _ODD * marks:
        return "lacks marks that others have"
    known = {*shape.head, *shape.body, *shape.tail}
    matched = set(found.places)
    more = [label for place, label in enumerate(labels) if place not in matched and label in known]
    if len(more) > _ODD * marks:
        return f"has more marks {more[0]!r} than others"
    return None


def _hearing(
    series: Sequence[RunSeries], shape: Shape, dropped: frozenset[str], step_s: float
) -> Hearing:
    """Find how long each stretch of a shape takes, and which are too brief to be any."""
    size = len(shape.head) + len(shape.tail)
    plain = Hearing(shape=shape, dropped=dropped, brief=frozenset(), usual_s=np.full(size, np.nan))
    lengths: list[list[float]] = [[] for _ in range(size)]
    for each in series:
        found, begins_s = plain.parsed(each)
        for place, length_s in enumerate(np.diff(np.append(begins_s, each.length_s))):
            if np.isfinite(length_s):
                lengths[plain.kind(place, found.epochs)].append(float(length_s))
    brief = frozenset(kind for kind, each in enumerate(lengths) if each and np.mean(each) <= step_s)
    usual_s = np.array([np.median(each) if each else np.nan for each in lengths])
    return replace(plain, brief=brief, usual_s=usual_s)


def _marks(series: Sequence[RunSeries], hearing: Hearing, count: int) -> Marks:
    shape, brief = hearing.shape, hearing.brief
    runs = [own for each in series if (own := hearing.stretches(each, count)) is not None]
    parses = [hearing.parsed(each)[0] for each in series]
    # The run that speaks for all: of usual length, and lacking as little as can be.
    model = min(range(len(series)), key=lambda at: (parses[at].epochs != count, parses[at].wrong))
    full = ["", *(event.label for event in heard(series[model], hearing.dropped)[1])]
    told = list(shape.row(count))
    if parses[model].epochs == count:
        told = [
            full[place] if place >= 0 else label
            for place, label in zip(parses[model].places, told, strict=True)
        ]
    labels, said = [], [list[str]()]
    for place, label in enumerate(told):
        said[-1] += [label] if place else []
        if hearing.kind(place, count) not in brief:
            labels.append(label)
            said.append([])
    saved = {
        kind
        for each, found in zip(series, parses, strict=True)
        for kind in _saved(heard(each, hearing.dropped)[1], found, hearing)
    }
    kept = [place for place in range(len(told)) if hearing.kind(place, count) not in brief] or [0]
    length = sum(kind not in brief for kind in range(shape.startup, len(shape.head)) if shape.body)
    return Marks(
        labels=tuple(labels),
        exact=_exact(series),
        said=tuple(map(tuple, said[1:-1])),
        checkpoints=tuple(hearing.kind(place, count) in saved for place in kept),
        outline=Outline(
            first=sum(kind not in brief for kind in range(shape.startup)),
            length=length,
            count=count if length else 1,
            runs=tuple(runs),
        ),
        hearing=hearing,
    )


def _saved(events: Sequence[Event], found: Parse, hearing: Hearing) -> set[int]:
    """Return the stretches of a shape at whose end a run said that there is a checkpoint."""
    saved, before = set(), None
    for at, place in enumerate(found.places):
        if place > 0 and says_checkpoint(events[place - 1]) and before is not None:
            saved.add(before)
        kind = hearing.kind(at, found.epochs)
        if kind not in hearing.brief:
            before = kind
    return saved


def _exact(series: Sequence[RunSeries]) -> bool:
    """Return whether most runs say the same to the letter, as far as they go."""
    said = [tuple(event.label for event in each.events) for each in series]
    common = Counter(label for each in said for label in set(each))
    shared = [sum(common[label] > 1 for label in each) >= len(each) / 2 for each in said]
    return len(series) == 1 or 2 * sum(shared) >= len(series)


def find_lag(series: Sequence[RunSeries], marks: Marks, step_s: float) -> float:
    """Return how late the meter is: the shift that leaves least variation within stretches.

    Args:
        step_s: A lag shorter than this cannot be told from none.
    """
    # Sums up to each sample: what lies within a stretch is then a difference of two of them.
    upto = []
    for each in series:
        powers = np.vstack([np.ones_like(each.power_w), each.power_w, each.power_w**2])
        upto.append(np.hstack([np.zeros((3, 1)), np.cumsum(powers, axis=1)]))
    kinds = [marks.outline.kinds(own) for own in marks.outline.runs]
    best_s, least = 0.0, np.inf
    for lag_s in sorted(_LAGS_S.tolist(), key=abs):
        shifted = marks.shifted(lag_s)
        if any((np.diff(edges_s) <= 0).any() for edges_s in shifted):
            continue
        moments = np.zeros((3, len(marks.labels)))
        for each, sums, edges_s, kind in zip(series, upto, shifted, kinds, strict=True):
            inside = np.diff(sums[:, np.searchsorted(each.times_s, edges_s)])
            for row, values in zip(moments, inside, strict=True):
                row += np.bincount(kind, weights=values, minlength=row.size)
        counts, sums, squares = moments
        left = float(squares.sum() - (sums**2 / np.maximum(counts, 1)).sum())
        # Ties, and all but ties, go to the smaller lag.
        if left < least * (1 - 1e-9):
            best_s, least = lag_s, left
    return best_s if abs(best_s) >= step_s else 0.0
