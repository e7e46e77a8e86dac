"""How long the queue keeps jobs waiting, by what it did lately, and how often that was too short.

Waits come in bursts, so that a quantile of past ones is exceeded far more often than it says. The
longest wait of seven days is robust, with those who still wait counted by how long they have by
now: they are the ones that tell of a burst. Jobs of one class wait alike: those of a partition, of
about the same size, with GPUs or without.
"""

from __future__ import annotations

import bisect
import heapq
import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeGuard

from lowtide.errors import InvalidInput
from lowtide.units import format_duration

DAY_S = 86_400.0
# Until so many waits of a class are known that are a day old, what is usual is not: all who run at
# a moment may be thousands, and tell of a quiet hour.
LEAST_WAITS = 60
UNKNOWN_WAIT_S = 4 * 3600.0
_WINDOW_S = 7 * DAY_S
# Which share of waits may be longer than was said before a class is not deferred any more.
_MOST_WRONG = 0.02
_SIZES = (1, 8, 64, 512)
# No clock shows a later moment.
_MOST_S = 1e12


@dataclass(frozen=True, slots=True, kw_only=True)
class Wait:
    """One job's wait in the queue.

    Attributes:
        kind: The class of the job, as `class_of` names it.
        eligible: When it could have started.
        started: When it did; None where it still waits.
        id: Which job and start it was, so that it counts once.
    """

    kind: str
    eligible: float
    started: float | None = None
    id: str = ""

    def __post_init__(self) -> None:
        if self.started is not None and not self.started >= self.eligible:
            raise InvalidInput(
                f"a job starts once it is eligible, unlike at {self.started:g} s, eligible at "
                f"{self.eligible:g} s"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """How often a class waited longer than was said.

    Attributes:
        kind: The class.
        starts: How many starts are known of the last seven days.
        said: How many of them came once enough was known to say anything.
        late: How many of those waited longer than was said.
        wait_s: What is said now.
    """

    kind: str
    starts: int
    said: int
    late: int
    wait_s: float

    @property
    def share(self) -> float | None:
        """The share that waited longer than was said; None where nothing was."""
        return self.late / self.said if self.said else None

    @property
    def sure(self) -> str:
        """How sure what is said is, in words: by how often it was wrong."""
        if not self.said:
            return f"unknown: {format_duration(self.wait_s)} taken for the queue"
        return f"{self.late} of {self.said} starts of this class waited longer than was said"

    @property
    def is_trusted(self) -> bool:
        """Whether jobs of this class may be deferred."""
        # A handful of starts says nothing of a share of one in fifty.
        return self.late <= max(_MOST_WRONG * self.said, 1.0)


def class_of(partition: str | None, cpus: float | None, gpus: float | None) -> str:
    """Return which jobs a job waits like.

    >>> class_of("main", 4, 0), class_of("gpu", 65, 2), class_of(None, None, None)
    ('main/2-8', 'gpu/65-512/gpu', '-/1')
    """
    count = max(cpus or 1, 1)
    place = bisect.bisect_left(_SIZES, count)
    low = _SIZES[place - 1] + 1 if place else 1
    high = "" if place == len(_SIZES) else f"-{_SIZES[place]}"
    size = str(low) if high == f"-{low}" else f"{low}{high or '+'}"
    return f"{partition or '-'}/{size}" + ("/gpu" if gpus else "")


@dataclass(slots=True, kw_only=True)
class WaitModel:
    """What is known of waits, and what follows from it.

    Attributes:
        window_s: How far back waits count.
        unknown_s: What is said of a class of which too little is known.
        looked: When it was last looked who waits; None for never.
    """

    window_s: float = _WINDOW_S
    unknown_s: float = UNKNOWN_WAIT_S
    looked: float | None = None
    _known: dict[str, dict[str, Wait]] = field(
        default_factory=lambda: defaultdict(dict), init=False
    )
    # Who has left unseen, and may have waited for longer than is known.
    _guessed: set[str] = field(default_factory=set, init=False)

    def learn(self, waits: Iterable[Wait]) -> list[Wait]:
        """Take in waits; return those that were not known, or are over by now."""
        news = []
        for wait in waits:
            known = self._known[wait.kind]
            key = wait.id or f"{wait.eligible}-{len(known)}"
            before = known.get(key)
            is_open = before is None or before.started is None or key in self._guessed
            if is_open and before != wait:
                known[key] = wait
                self._guessed.discard(key)
                news.append(wait)
        return news

    def see(self, now: float, waits: Sequence[Wait]) -> None:
        """Take in what one look at the whole queue has shown."""
        self.learn(waits)
        self.settle(now, (each.id for each in waits if each.started is None))

    def settle(self, now: float, waiting: Iterable[str]) -> None:
        """Forget what is too old; who waits no more has waited until it was last seen to.

        Whoever starts and ends between two looks would be forgotten else, and short jobs with that.

        Args:
            waiting: The jobs that wait now, by their `Wait.id`.
        """
        still = set(waiting)
        for known in self._known.values():
            for key, wait in list(known.items()):
                if wait.started is None and key not in still:
                    until = -math.inf if self.looked is None else self.looked
                    if until <= wait.eligible:
                        del known[key]
                        continue
                    wait = known[key] = replace(wait, started=until)
                    self._guessed.add(key)
                if wait.started is not None and wait.started < now - self.window_s:
                    del known[key]
                    self._guessed.discard(key)
        self.looked = now

    def wait_s(self, kind: str, now: float, *, unknown_s: float | None = None) -> float:
        """Return W: how long a job of a class that becomes eligible now may wait.

        Args:
            unknown_s: What was said of it when more was known than now.
        """
        return said_s(
            self._known.get(kind, {}).values(),
            now,
            window_s=self.window_s,
            unknown_s=self.unknown_s if unknown_s is None else unknown_s,
        )

    def is_trusted(self, kind: str, now: float) -> bool:
        """Return whether a class was foretold well enough for its jobs to be deferred."""
        return self.calibration(kind, now).is_trusted

    def calibration(self, kind: str, now: float) -> Calibration:
        """Return how often a class waited longer than was said, in the last days."""
        waits = [
            each
            for each in self._known.get(kind, {}).values()
            if each.started is None or now - self.window_s <= each.started <= now
        ]
        said = backtest(waits, now, window_s=self.window_s)
        return Calibration(
            kind=kind,
            starts=sum(each.started is not None for each in waits),
            said=len(said),
            late=sum(waited > foretold for waited, foretold in said),
            wait_s=self.wait_s(kind, now),
        )

    @property
    def kinds(self) -> list[str]:
        """The classes of which anything is known."""
        return sorted(kind for kind, known in self._known.items() if known)

    @property
    def waits(self) -> list[Wait]:
        """All that is known."""
        return [wait for known in self._known.values() for wait in known.values()]


def said_s(
    waits: Iterable[Wait],
    now: float,
    *,
    window_s: float = _WINDOW_S,
    unknown_s: float = UNKNOWN_WAIT_S,
) -> float:
    """Return the longest wait of the last days, those that are not over included.

    Args:
        waits: Those of one class; what lies after `now` is not looked at.
        unknown_s: What it is at least where too few are known.
    """
    longest, count = 0.0, 0
    for wait in waits:
        if wait.eligible > now:
            continue
        if wait.started is None or wait.started > now:
            longest = max(longest, now - wait.eligible)
        elif wait.started >= now - window_s:
            longest = max(longest, wait.started - wait.eligible)
            count += wait.started <= now - DAY_S
    return longest if count >= LEAST_WAITS else max(longest, unknown_s)


def backtest(
    waits: Sequence[Wait], now: float, *, window_s: float = _WINDOW_S
) -> list[tuple[float, float]]:
    """Return how long each job waited and what was said when it became eligible.

    Those that still wait count as soon as they have waited for longer than was said. Where too
    little was known then to say anything but the default, nothing is told.
    """
    ready = sorted(waits, key=lambda each: each.eligible)
    over = sorted((w for w in waits if w.started is not None), key=lambda w: w.started or 0.0)
    # Whoever waits at a moment is among those that were eligible by then and start later.
    waiting: list[tuple[float, float]] = []
    ended: list[tuple[float, float]] = []
    place = first = old = 0
    told = []
    for wait in ready:
        at = wait.eligible
        while place < len(over) and (over[place].started or 0.0) <= at:
            each = over[place]
            heapq.heappush(ended, (-((each.started or 0.0) - each.eligible), each.started or 0.0))
            place += 1
        while first < len(over) and (over[first].started or 0.0) < at - window_s:
            first += 1
        while old < len(over) and (over[old].started or 0.0) <= at - DAY_S:
            old += 1
        while ended and ended[0][1] < at - window_s:
            heapq.heappop(ended)
        while waiting and waiting[0][1] <= at:
            heapq.heappop(waiting)
        longest = -ended[0][0] if ended else 0.0
        if waiting:
            longest = max(longest, at - waiting[0][0])
        if old - first >= LEAST_WAITS:
            waited = (now if wait.started is None else wait.started) - at
            if wait.started is not None or waited > longest:
                told.append((waited, longest))
        until = math.inf if wait.started is None else wait.started
        heapq.heappush(waiting, (at, until))
    return told


def from_rows(rows: Iterable[object]) -> list[Wait]:
    """Return waits that were kept as rows; what makes no sense is left out."""
    found = []
    for row in rows:
        if not isinstance(row, Mapping):
            continue
        kind, eligible, started = row.get("kind"), row.get("eligible"), row.get("started")
        if not isinstance(kind, str) or not _is_instant(eligible):
            continue
        if started is not None and not (_is_instant(started) and started >= eligible):
            continue
        found.append(
            Wait(
                kind=kind,
                eligible=float(eligible),
                started=None if started is None else float(started),
                id=str(row.get("id", "")),
            )
        )
    return found


def _is_instant(value: object) -> TypeGuard[float]:
    return isinstance(value, int | float) and abs(value) < _MOST_S
