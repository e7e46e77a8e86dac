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
from functools import lru_cache
from itertools import pairwise

import numpy as np

from lowtide.changepoints import IntArray
from lowtide.learning.series import RunSeries
from lowtide.learning.shape import (
    Ignored,
    MarkedStretches,
    Outline,
    Parse,
    Row,
    Shape,
    find_shape,
    leave_out,
    parse,
    usual_epochs,
)
from lowtide.recording import Event
from lowtide.signal import FloatArray
from lowtide.units import format_count, format_hours

# A label says that a checkpoint is there, not that one is about to be written.
_SAVED = re.compile(
    r"(?<![a-z])(saved|checkpointed|checkpoint[ _.-]*(written|done|complete[d]?))(?![a-z])"
)
_NUMBER = re.compile(r"[ _.:=#-]*\d+(\.\d+)?")
# A run that lacks more than this share of the marks, or has so many more, did something else.
_ODD = 0.25
# An epoch so near to a multiple of the others' length lacks the marks in between.
_MULTIPLE = 0.12
# Epochs that are missing take between so many times as long as others, and what comes right before
# or after epochs holds one only if it takes so many times as long as it usually does.
_ABOUT_EPOCHS = (0.75, 1.75)
_FAR_LONGER = 2.0
# Epochs that take so many times as long as others are those of another size.
_OTHER_PACE = 1.5
# Marks further outside of a run than this were told by another clock.
_CLOCKS_S = 5.0
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

    def stretches_in(self, series: RunSeries) -> MarkedStretches | None:
        """Return the stretches of another run, None where too many marks are missing."""
        return self.hearing.stretches(series, self.outline.count)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Hearing:
    """How what a program said is heard.

    Attributes:
        ignored: What begins no stretch.
        brief: Which labels of the shape come so shortly before the next that they count as one.
        usual_s: How long each stretch of the shape takes, NaN where that is not known.
        first_s: How long the first epoch's first stretch takes, which may be slow; NaN where one
            run alone tells.
    """

    shape: Shape
    ignored: Ignored
    brief: frozenset[int]
    usual_s: FloatArray
    first_s: float = np.nan

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
        row, events = heard(series, self.ignored)
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
        if _why_odd(found, self.shape, heard(series, self.ignored)[0].labels) is not None:
            return None
        kinds = [self.kind(place, found.epochs) for place in range(len(found.places))]
        epochs = found.epochs
        if len(self.shape.body) == 1:
            kinds, begins_s, epochs = self._unsaid(kinds, begins_s, series.length_s, count)
        kept = [place for place, kind in enumerate(kinds) if kind not in self.brief] or [0]
        kinds = [kinds[place] for place in kept]
        edges_s = np.append(begins_s[kept], series.length_s)
        edges_s[0] = 0.0
        guessed = np.isnan(edges_s)
        self._fill(edges_s, kinds)
        slots = self._slots(kinds, count)
        return MarkedStretches(slots=slots, edges_s=edges_s, guessed=guessed, epochs=epochs)

    def _unsaid(
        self, kinds: list[int], begins_s: FloatArray, end_s: float, count: int
    ) -> tuple[list[int], FloatArray, int]:
        """Put in the epochs that nobody marked.

        One whose mark is missing makes an epoch of a multiple of the others' time. If a run has
        fewer than is usual and takes that much longer in an epoch, or in what comes right before
        or after them, they are there, however slow one of them was.
        """
        place, usual_s = self.shape.startup, self.usual_s[self.shape.startup]
        own_s = self.usual_s[kinds]
        if np.isfinite(self.first_s) or not place:
            # One that begins with the run holds its startup, and one run does not tell how long.
            own_s[kinds.index(place)] = self.first_s
        spent_s = np.diff(np.append(begins_s, end_s))
        more = np.zeros(len(kinds), dtype=np.intp)
        for at in np.flatnonzero(np.equal(kinds, place) & np.isfinite(spent_s - own_s)):
            times = max(round((spent_s[at] - own_s[at]) / usual_s), 0)
            wanted_s = own_s[at] + times * usual_s
            more[at] = times * (abs(spent_s[at] / wanted_s - 1) < _MULTIPLE)
        lacking = count - kinds.count(place) - int(more.sum())
        if lacking > 0:
            # A far longer one holds them; what comes before or after epochs may vary by itself.
            over_s = np.where(np.abs(np.subtract(kinds, place)) <= 1, spent_s - own_s, np.nan)
            over_s[(np.not_equal(kinds, place)) & (spent_s < _FAR_LONGER * own_s)] = np.nan
            if np.isfinite(over_s).any():
                longest = int(np.nanargmax(over_s))
                low, high = (share * lacking * usual_s for share in _ABOUT_EPOCHS)
                more[longest] += lacking * (low <= over_s[longest] <= high)
        found: list[int] = []
        begins: list[float] = []
        for kind, begin_s, times in zip(kinds, begins_s, more.tolist(), strict=True):
            epochs = [place] * times
            found += [*epochs, kind] if kind > place else [kind, *epochs]
            begins += [begin_s, *[np.nan] * times]
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
        slots, seen, epochs = [], Counter[int](), Counter(kinds)
        # Where nobody marks the end, the last epoch of each run has it.
        no_end = kept[-1] < last
        for kind in kinds:
            slot = place[kind]
            if kind in epoch:
                of_last = no_end and seen[kind] == epochs[kind] - 1
                slot += len(epoch) * (count - 1 if of_last else min(seen[kind], count - 1))
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


@lru_cache(maxsize=4096)
def plain_label(label: str) -> str:
    """Return a label without its numbers, so that epochs share it.

    >>> plain_label("epoch_1_train"), plain_label("Epoch 1.0 ended. Steps: 12")
    ('epoch_train', 'Epoch ended. Steps')
    """
    plain = _NUMBER.sub("", label).replace("/", "-").strip(" _.:=#-")
    return plain or label.replace("/", "-") or START


def heard(series: RunSeries, ignored: Ignored | None = None) -> tuple[Row, tuple[Event, ...]]:
    """Return a run as a row of stretches named by its marks, and the marks after the first.

    Args:
        ignored: What begins no stretch; None for nothing.
    """
    events = series.events
    labels = ["", *(plain_label(event.label) for event in events)]
    if ignored is not None:
        kept = ignored.kept(labels)
        events = tuple(events[place - 1] for place in kept[1:])
        labels = [labels[place] for place in kept]
    times_s = np.array([0.0, *(event.time - series.run.start for event in events), series.length_s])
    row = Row(
        labels=tuple(labels),
        seconds=np.diff(times_s),
        watts=series.mean_w(times_s),
        mean_w=series.mean_w,
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
    shape, ignored = find_shape([rows[number] for number in sound])
    used, notes = [], []
    for number, (each, row) in enumerate(zip(series, rows, strict=True)):
        if (said_why := against[number]) is not None:
            notes.append(f"run {each.run.id} {said_why}, and is left out")
            continue
        labels = leave_out(row, ignored).labels
        found = parse(labels, shape)
        why = _why_odd(found, shape, labels)
        if why is None:
            used.append(number)
            if lacking := found.lacking:
                notes.append(
                    f"run {each.run.id} lacks {format_count(lacking, 'mark')} that others have: "
                    "looked for in its power"
                )
        else:
            notes.append(f"run {each.run.id} {why} and is left out")
    # What only other programs say was said by runs that are left out.
    labels_used = {label for number in used for label in rows[number].labels}
    if passing := sorted(ignored.labels & labels_used):
        notes.append(f"marks that come now and then tell no phases: {', '.join(passing)}")
    if steps := sorted(ignored.again & labels_used):
        notes.append(
            f"marks that come again and again within an epoch count once: {', '.join(steps)}"
        )
    if len(shape.head) + len(shape.tail) == 1:
        return None, used, notes
    used, others = _of_one_pace(
        series, [leave_out(rows[number], ignored) for number in used], used, shape
    )
    notes += others
    chosen = [series[number] for number in used]
    hearing = _hearing(chosen, shape, ignored, step_s)
    epochs = Counter(own.epochs for each in chosen if (own := hearing.stretches(each, 1)))
    return _marks(chosen, hearing, usual_epochs(epochs)), used, notes


def _of_one_pace(
    series: Sequence[RunSeries], rows: Sequence[Row], used: list[int], shape: Shape
) -> tuple[list[int], list[str]]:
    """Return the runs whose epochs take about as long as most do, and why others are left out.

    Who says the same at another pace did something else, with other data say. Where as many go at
    each, the first run's is taken.

    Args:
        rows: What the runs that are used said.
    """
    paces_s = np.array([_pace_s(row, shape) for row in rows])
    near = np.abs(np.log(paces_s[:, None] / paces_s)) <= np.log(_OTHER_PACE)
    if near.sum() == np.isfinite(paces_s).sum() ** 2:
        return used, []
    usual_s = paces_s[int(np.argmax(near.sum(axis=1)))]
    own = ~(np.abs(np.log(paces_s / usual_s)) > np.log(_OTHER_PACE))
    notes = [
        f"run {series[number].run.id} takes {format_hours(pace_s)} for an epoch where others take "
        f"about {format_hours(usual_s)} and is left out"
        for number, pace_s, is_near in zip(used, paces_s.tolist(), own.tolist(), strict=True)
        if not is_near
    ]
    return [number for number, is_near in zip(used, own.tolist(), strict=True) if is_near], notes


def _pace_s(row: Row, shape: Shape) -> float:
    """Return how long a run's epochs take; NaN where it has too few to tell.

    The middle one, of two the lesser: a mark that is missing makes one longer. The first may be
    slow, and does not count.
    """
    begins_s = np.cumsum(row.seconds) - row.seconds
    first = [label == (shape.body or ("",))[0] for label in row.labels]
    lengths_s = np.sort(np.diff(begins_s[first])[1:])
    middle_s = lengths_s[(lengths_s.size - 1) // 2] if lengths_s.size > 1 else 0.0
    return float(middle_s) if middle_s > 0 else np.nan


def _contradictions(series: Sequence[RunSeries]) -> list[str | None]:
    """Return for each run what its marks contradict, None where they may all be true."""
    counts = [_counts(each) for each in series]
    # Labels that count up by one in most runs are numbered; a loss that falls is not.
    heard_in, numbered = Counter[str](), Counter[str]()
    for own in counts:
        for label, said in own.items():
            numbers = [number for _, number in said]
            heard_in[label] += 1
            numbered[label] += len(numbers) > 1 and set(np.diff(numbers)) == {1}
    found = []
    for each, own in zip(series, counts, strict=True):
        why = _outside(each)
        for label, said in own.items():
            numbers = [number for _, number in said]
            back = next((pair for pair in pairwise(numbers) if pair[1] < pair[0]), None)
            if why is None and back is not None and 2 * numbered[label] > heard_in[label]:
                why = f"says {label!r} {back[1]} after {back[0]}, which contradict each other"
        found.append(why)
    return found


def _counts(series: RunSeries) -> dict[str, list[tuple[float, int]]]:
    """Return when a run gave which number to what it said; labels with one number only."""
    found: dict[str, list[tuple[float, int]]] = {}
    for event in series.events:
        numbers = re.findall(r"\d+(?:\.\d+)?", event.label)
        if len(numbers) == 1 and "." not in numbers[0]:
            said = (event.time - series.run.start, int(numbers[0]))
            found.setdefault(plain_label(event.label), []).append(said)
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


def _why_odd(found: Parse, shape: Shape, labels: Sequence[str]) -> str | None:
    """Return why a run is not one of those that others are like, None where it is."""
    marks = max(len(found.places) - 1, 1)
    if found.lacking > _ODD * marks:
        return "lacks marks that others have"
    known = {*shape.head, *shape.body, *shape.tail}
    matched = set(found.places)
    more = [label for place, label in enumerate(labels) if place not in matched and label in known]
    if len(more) > _ODD * marks:
        return f"has more marks {more[0]!r} than others"
    return None


def _hearing(series: Sequence[RunSeries], shape: Shape, ignored: Ignored, step_s: float) -> Hearing:
    """Find how long each stretch of a shape takes, and which are too brief to be any."""
    size = len(shape.head) + len(shape.tail)
    plain = Hearing(shape=shape, ignored=ignored, brief=frozenset(), usual_s=np.full(size, np.nan))
    lengths: list[list[float]] = [[] for _ in range(size)]
    firsts = []
    for each in series:
        found, begins_s = plain.parsed(each)
        for place, length_s in enumerate(np.diff(np.append(begins_s, each.length_s))):
            if np.isfinite(length_s):
                lengths[plain.kind(place, found.epochs)].append(float(length_s))
                firsts += [float(length_s)] * (place == shape.startup)
    brief = frozenset(kind for kind, each in enumerate(lengths) if each and np.mean(each) <= step_s)
    usual_s = np.array([np.median(each) if each else np.nan for each in lengths])
    # The lesser of two: a mark that is missing makes a stretch longer.
    first_s = sorted(firsts)[(len(firsts) - 1) // 2] if len(firsts) > 1 else np.nan
    return replace(plain, brief=brief, usual_s=usual_s, first_s=first_s)


def _marks(series: Sequence[RunSeries], hearing: Hearing, count: int) -> Marks:
    shape, brief = hearing.shape, hearing.brief
    runs = [own for each in series if (own := hearing.stretches(each, count)) is not None]
    parses = [hearing.parsed(each)[0] for each in series]
    # The run that speaks for all: of usual length, and lacking as little as can be.
    model = min(range(len(series)), key=lambda at: (parses[at].epochs != count, parses[at].wrong))
    full = ["", *(event.label for event in heard(series[model], hearing.ignored)[1])]
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
        for kind in _saved(heard(each, hearing.ignored)[1], found, hearing)
    }
    kept = [place for place in range(len(told)) if hearing.kind(place, count) not in brief] or [0]
    length = sum(kind not in brief for kind in range(shape.startup, len(shape.head)) if shape.body)
    each, counted = _epochs_in_a_body(series, hearing) if length else (1, None)
    rest = shape.tail[: shape.broken_off if each > 1 else 0]
    begin = len(shape.head)
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
            each=each,
            rest=sum(label == counted for label in rest),
            rest_length=sum(kind not in brief for kind in range(begin, begin + len(rest))),
        ),
        hearing=hearing,
    )


def _epochs_in_a_body(series: Sequence[RunSeries], hearing: Hearing) -> tuple[int, str | None]:
    """Return how many epochs a body is by the program's own numbers, and which label counts them.

    Labels that count up by one tell. Of several, the one that counts slowest counts epochs: others
    may count steps.
    """
    startup, length = hearing.shape.startup, len(hearing.shape.body)
    told: dict[str, list[int]] = {}
    for each in series:
        found, begins_s = hearing.parsed(each)
        bodies_s = np.append(begins_s, np.inf)[
            startup : startup + length * found.epochs + 1 : length
        ]
        if np.isnan(bodies_s).any():
            continue
        for label, said in _counts(each).items():
            if set(np.diff([number for _, number in said])) == {1}:
                before = np.searchsorted([time_s for time_s, _ in said], bodies_s)
                # A first body may begin before the program says anything.
                told.setdefault(label, []).extend(np.diff(before).tolist()[not startup :])
    usual = [
        (int(np.median(counts)), label)
        for label, counts in told.items()
        if 2 * sum(count == np.median(counts) for count in counts) > len(counts)
    ]
    return min((pair for pair in usual if pair[0] > 0), default=(1, None))


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
