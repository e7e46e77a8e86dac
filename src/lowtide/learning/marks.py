"""What programs said, made comparable: the marks that all runs share, and where each run has them.

A mark starts the stretch that it names. Marks too close together to be told apart by the meter
count as one, named by the last of them.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from lowtide.learning.series import RunSeries
from lowtide.recording import Event
from lowtide.signal import FloatArray

# A label says that a checkpoint is there, not that one is about to be written.
_SAVED = re.compile(
    r"(?<![a-z])(saved|checkpointed|checkpoint[ _.-]*(written|done|complete[d]?))(?![a-z])"
)
_NUMBER = re.compile(r"[ _.:=#-]*\d+(\.\d+)?")
# Meters are late, clocks differ: how far the power may lag behind what the program said.
_LAGS_S = np.round(np.arange(-0.5, 2.0 + 0.01, 0.05), 2)
START = "start"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Marks:
    """The stretches between marks, in every run.

    Attributes:
        labels: What the program said at the beginning of each stretch, in full; the first may be
            empty, where it said nothing.
        exact: Whether runs agree to the letter; else their labels are compared without numbers.
        keys: The label that stands for each inner edge.
        said: All that was said at each inner edge.
        checkpoints: Whether a checkpoint lies at the end of each stretch.
        edges_s: Where the stretches of each run begin, and the end of the last.
    """

    labels: tuple[str, ...]
    exact: bool
    keys: tuple[str, ...]
    said: tuple[tuple[str, ...], ...]
    checkpoints: tuple[bool, ...]
    edges_s: FloatArray

    @property
    def names(self) -> tuple[str, ...]:
        """What the stretches are called: the labels without their numbers."""
        return tuple(plain_label(label) for label in self.labels)

    def shifted(self, lag_s: float) -> FloatArray:
        """Return the edges as the meter sees them; start and end stay where they are."""
        edges_s = self.edges_s.copy()
        edges_s[:, 1:-1] += lag_s
        return edges_s

    def edges_in(self, series: RunSeries, lag_s: float) -> FloatArray | None:
        """Return the edges in another run as the meter sees them, None where marks are missing."""
        places = _places(_heard(series, exact=self.exact), self.keys)
        if places is None:
            return None
        inner = np.array([series.events[place].time for place in places]) - series.run.start
        edges_s = np.concatenate(([0.0], inner + lag_s, [series.length_s]))
        return edges_s if (np.diff(edges_s) > 0).all() else None


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


def common_marks(
    series: Sequence[RunSeries], step_s: float
) -> tuple[Marks | None, list[int], list[str]]:
    """Return the marks that most runs share, the runs that have them, and what was left out.

    Args:
        step_s: Marks closer together than this on average count as one.
    """
    # Where fewer than half of the runs agree, their labels may tell losses or times.
    for exact in (True, False):
        said = [_heard(each, exact=exact) for each in series]
        keys, agreed = Counter(said).most_common(1)[0]
        if 2 * agreed >= len(series):
            break
    used, rows, notes = [], [], []
    for number, (each, labels) in enumerate(zip(series, said, strict=True)):
        places = _places(labels, keys)
        if places is None:
            notes.append(f"run {each.run.id} lacks marks that others have and is left out")
            continue
        if more := _more(labels, keys):
            notes.append(f"run {each.run.id} has more marks {more!r} than others and is left out")
            continue
        used.append(number)
        rows.append([each.events[place] for place in places])
    if not keys:
        return None, used, notes
    times = np.array(
        [
            [event.time - each.run.start for event in row]
            for row, each in zip(rows, (series[number] for number in used), strict=True)
        ]
    )
    ends = np.array([[series[number].length_s] for number in used])
    edges_s = np.hstack([np.zeros((len(used), 1)), times, ends])
    saved = [any(says_checkpoint(row[place]) for row in rows) for place in range(len(keys))]
    return _joined(edges_s, keys, saved, step_s, exact=exact), used, notes


def _joined(
    edges_s: FloatArray, keys: Sequence[str], saved: Sequence[bool], step_s: float, *, exact: bool
) -> Marks:
    """Join marks that are closer together than a step; those at start and end join these."""
    mean_s = edges_s.mean(axis=0)
    # What was said at the start, at each inner edge, and where its last mark is.
    groups: list[list[int]] = [[0]]
    for place in range(1, len(keys) + 1):
        if mean_s[-1] - mean_s[place] <= step_s:
            break
        if mean_s[place] - mean_s[groups[-1][-1]] <= step_s:
            groups[-1].append(place)
        else:
            groups.append([place])
    inner = groups[1:]
    said = [tuple(keys[place - 1] for place in group) for group in inner]
    at_start = [keys[place - 1] for place in groups[0][1:]]
    last = range(groups[-1][-1] + 1, len(keys) + 1)
    return Marks(
        labels=("" if not at_start else at_start[-1], *(labels[-1] for labels in said)),
        exact=exact,
        keys=tuple(labels[-1] for labels in said),
        said=tuple(said),
        checkpoints=tuple(any(saved[place - 1] for place in group) for group in (*inner, last)),
        edges_s=edges_s[:, [0, *(group[-1] for group in inner), -1]],
    )


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
    best_s, least = 0.0, np.inf
    for lag_s in sorted(_LAGS_S.tolist(), key=abs):
        edges_s = marks.shifted(lag_s)
        if (np.diff(edges_s) <= 0).any():
            continue
        moments = np.zeros((3, edges_s.shape[1] - 1))
        for each, sums, edges in zip(series, upto, edges_s, strict=True):
            moments += np.diff(sums[:, np.searchsorted(each.times_s, edges)])
        counts, sums, squares = moments
        left = float(squares.sum() - (sums**2 / np.maximum(counts, 1)).sum())
        # Ties, and all but ties, go to the smaller lag.
        if left < least * (1 - 1e-9):
            best_s, least = lag_s, left
    return best_s if abs(best_s) >= step_s else 0.0


def _heard(series: RunSeries, *, exact: bool) -> tuple[str, ...]:
    labels = (event.label for event in series.events)
    return tuple(labels) if exact else tuple(map(plain_label, labels))


def _more(labels: Sequence[str], keys: Sequence[str]) -> str | None:
    """Return a mark that comes more often than it should, numbers aside: one epoch too many."""
    usual = Counter(map(plain_label, keys))
    heard = Counter(map(plain_label, labels))
    return next((label for label in usual if heard[label] > usual[label]), None)


def _places(labels: Sequence[str], keys: Sequence[str]) -> list[int] | None:
    """Return where keys stand among labels, in order, others skipped; None where one is missing."""
    places, begin = [], 0
    for key in keys:
        try:
            begin = labels.index(key, begin) + 1
        except ValueError:
            return None
        places.append(begin - 1)
    return places
