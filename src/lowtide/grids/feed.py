"""A zone, its provider and its cache: what is known, and asking when that has grown old."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace

from lowtide.errors import FileProblem, FormatError, LowtideError, ProviderProblem
from lowtide.grids import history as histories
from lowtide.grids.cache import Cache, Entry, format_age
from lowtide.grids.keys import find_keys
from lowtide.grids.providers import PROVIDERS, Answer, GridProvider, ZoneName, name_zone
from lowtide.grids.web import LONGEST_WAIT_S
from lowtide.signal import Signal
from lowtide.units import format_time

# What is asked for at least: values of the last hours are still being corrected.
_BACK_S = 86_400.0
# The longest time without any answer that is made up for without being asked to.
_LONGEST_GAP_S = 31 * 86_400.0
# How long another process may take that asks for the same.
_PATIENCE_S = 40.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Retrieved:
    """What is known of a zone.

    Attributes:
        name: The zone.
        signal: Its intensity, over an unbroken stretch of time.
        retrieved: When its provider last answered.
        caveat: From when on the signal is an estimate or a forecast, in words; empty if nowhere.
        problems: What went wrong when it was asked, in words.
    """

    name: ZoneName
    signal: Signal
    retrieved: float
    caveat: str = ""
    problems: tuple[str, ...] = ()

    def note(self, now: float) -> str:
        """Return how old it is and what of it has not come yet, in words."""
        age = format_age(now - self.retrieved)
        told = f"{self.name}: retrieved {format_time(self.retrieved)}, {age} ago"
        return f"{told}; {self.caveat}." if self.caveat else f"{told}."


@dataclass(slots=True, kw_only=True)
class Feed:
    """A zone, its provider and what the cache holds of it.

    Attributes:
        provider: Who is asked.
        name: The zone.
        cache: Where answers are kept.
        entry: What is known.
        problems: What went wrong since it was last looked at, in words.
    """

    provider: GridProvider
    name: ZoneName
    cache: Cache = field(default_factory=Cache)
    entry: Entry = field(init=False)
    problems: list[str] = field(default_factory=list, init=False)

    def __post_init__(self) -> None:
        self.entry = Entry(name=self.name)
        self.load()

    @classmethod
    def of(cls, provider: str | GridProvider, zone: str = "", cache: Cache | None = None) -> Feed:
        """Return the feed of a zone.

        Args:
            zone: The zone; empty for the one that is meant where none is named.
            cache: Where answers are kept; by default the user's.
        """
        known = PROVIDERS.load(provider)() if isinstance(provider, str) else provider
        return cls(provider=known, name=name_zone(known, zone), cache=cache or Cache())

    def load(self) -> None:
        """Read what is in the cache, unless more is known already."""
        try:
            entry = self.cache.load(self.name)
        except (FileProblem, FormatError) as error:
            self.problems.append(str(error))
            return
        if (entry.asked or -math.inf) >= (self.entry.asked or -math.inf):
            self.entry = entry

    def is_fresh(self, now: float, since: float | None = None) -> bool:
        """Return whether the provider need not be asked."""
        entry = self.entry
        if entry.retrieved is None or not 0 <= now - entry.retrieved < self.provider.refresh_s:
            return False
        return since is None or (entry.since is not None and entry.since <= since)

    def refresh(self, now: float, *, since: float | None = None) -> None:
        """Ask the provider if what is known has grown old; raise if it does not answer.

        Args:
            since: The first moment that is needed; by default a day before the last known value.
        """
        self.problems = []
        self.load()
        if self.is_fresh(now, since):
            return
        find_keys(self.provider.name, self.provider.keys)
        with self.cache.asking(self.name, patience_s=_PATIENCE_S):
            self.load()
            if self.is_fresh(now, since):
                return
            # A clock that was set back does not make the wait any longer.
            if now < self.entry.wait_until <= now + LONGEST_WAIT_S:
                raise ProviderProblem(
                    f"{self.name} is not asked before {format_time(self.entry.wait_until)}, as its "
                    "provider wishes",
                    wait_s=self.entry.wait_until - now,
                )
            self._ask(now, since)

    def _ask(self, now: float, since: float | None) -> None:
        begin = self._since(now, since)
        try:
            answer = self.provider.ask(self.name.zone, since=begin, now=now)
            told, left_out = histories.collect(
                answer.parts, name=self.name, provider=self.provider, now=now
            )
        except LowtideError as error:
            wait_s = error.wait_s if isinstance(error, ProviderProblem) else 0.0
            self._keep(
                replace(
                    self.entry,
                    asked=now,
                    problems=(str(error),),
                    wait_until=now + wait_s if wait_s else 0.0,
                )
            )
            raise
        answer = replace(answer, problems=(*answer.problems, *left_out))
        self._take(answer, told, begin, now)

    def _since(self, now: float, since: float | None) -> float:
        """Return from when on to ask: so that no gap remains, as far as there is something."""
        begin = now - _BACK_S
        history = self.entry.history
        if history is not None and history.settled_until is not None:
            begin = min(begin, max(history.settled_until, now - _LONGEST_GAP_S))
        return begin if since is None else min(begin, since)

    def _take(self, answer: Answer, told: histories.History, since: float, now: float) -> None:
        old = self.entry.history
        if old is not None and histories.fits(old, told):
            told = histories.merge(old, told)
        elif old is not None:
            # Steps or basis have changed: what was known stays readable beside what is known now.
            try:
                self.cache.set_aside(self.name, f"{old.step_s:g}s-{old.basis}")
            except FileProblem as error:
                self.problems.append(str(error))
        earliest = since if self.entry.since is None else min(since, self.entry.since)
        self._keep(
            Entry(
                name=self.name,
                history=told,
                asked=now,
                retrieved=now,
                since=earliest,
                wait_until=now + answer.wait_s if answer.wait_s else 0.0,
                problems=tuple(answer.problems),
            )
        )

    def _keep(self, entry: Entry) -> None:
        self.entry = entry
        try:
            self.cache.keep(entry)
        except FileProblem as error:
            self.problems.append(f"{error}; what {self.name} says is not kept")

    def known(
        self, now: float, *, since: float | None = None, gaps: str = "refuse"
    ) -> Retrieved | None:
        """Return what is known; None if nothing is.

        Args:
            gaps: What to do with steps between it and now that nobody told of.
        """
        history, retrieved = self.entry.history, self.entry.retrieved
        if history is None or retrieved is None:
            return None
        signal = history.signal(now, since=since, gaps=gaps)
        return Retrieved(
            name=self.name,
            signal=signal,
            retrieved=retrieved,
            caveat=history.caveat(signal),
            problems=(*self.problems, *self.entry.problems),
        )
