"""The intensity of a zone now: asked for once by `fetch`, kept up to date by `LiveGrid`.

Both go through the cache: a provider is asked only where what is known has grown old, and where it
does not answer, what was known last does, with its age. Nothing is ever made up: a time that
nobody told of is outside of the signal.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

from lowtide.errors import FileProblem, FormatError, InvalidInput, LowtideError, ProviderProblem
from lowtide.grid import Grid
from lowtide.grids import history as histories
from lowtide.grids.cache import Cache, Entry, format_age
from lowtide.grids.providers import (
    PROVIDERS,
    Answer,
    GridProvider,
    ZoneName,
    find_keys,
    name_zone,
    parse_zones,
)
from lowtide.grids.web import LONGEST_WAIT_S
from lowtide.signal import Signal
from lowtide.units import TimeLike, format_hours, format_time, parse_time

# What is asked for at least: values of the last hours are still being corrected.
_BACK_S = 86_400.0
# The longest time without any answer that is made up for without being asked to.
_LONGEST_GAP_S = 31 * 86_400.0
# How long another process may take that asks for the same.
_PATIENCE_S = 40.0
# How far back providers are asked at all: what is older belongs in a file.
_LONGEST_BACK_S = 400 * 86_400.0
# When a watcher asks again after a failure: soon at first, then ever later.
_RETRY_S = 60.0


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
        try:
            self.cache.keep_forecast(told, now)
        except FileProblem as error:
            self.problems.append(f"{error}; what {self.name} foresees is not kept")
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
        self,
        now: float,
        *,
        since: float | None = None,
        gaps: str = "refuse",
        settled: bool = False,
    ) -> Retrieved | None:
        """Return what is known; None if nothing is.

        Args:
            gaps: What to do with steps between it and now that nobody told of.
            settled: Whether all that ever came is asked for, and nothing that was expected.
        """
        history, retrieved = self.entry.history, self.entry.retrieved
        if history is None or retrieved is None:
            return None
        signal = history.settled(now) if settled else history.signal(now, since=since, gaps=gaps)
        return Retrieved(
            name=self.name,
            signal=signal,
            retrieved=retrieved,
            caveat=history.caveat(signal),
            problems=(*self.problems, *self.entry.problems),
        )


def fetch(
    provider: str | GridProvider,
    zone: str = "",
    *,
    since: TimeLike | None = None,
    gaps: str = "refuse",
    now: float | None = None,
    cache: Cache | None = None,
    settled: bool = False,
) -> Retrieved:
    """Return the intensity of a zone, from the cache where it is new enough.

    Where the provider does not answer, the cache does, and `problems` says so.

    Args:
        zone: The zone; empty for the one that is meant where none is named.
        since: The first moment that is needed; by default as far back as is known without gaps.
        gaps: What to do with gaps since then: `refuse`, `hold` or `interpolate`.
        now: What time it is; by default what the clock says.
        cache: Where answers are kept; by default the user's.
        settled: Whether all that ever came is asked for, to make forecasts of, and nothing that
            was expected; what nobody told of in between is marked as filled.
    """
    from lowtide.formats.times import GAP_POLICIES

    moment = time.time() if now is None else now
    begin = None if since is None else parse_time(since)
    if gaps not in GAP_POLICIES:
        raise InvalidInput(f"gaps is one of {', '.join(GAP_POLICIES)}, not {gaps!r}")
    if begin is not None and begin < moment - _LONGEST_BACK_S:
        raise InvalidInput(
            f"providers are asked for the last {format_hours(_LONGEST_BACK_S)} at most, and "
            f"{format_time(begin)} is before that: read what is older from a file"
        )
    feed = Feed.of(provider, zone, cache)
    failed = ""
    try:
        feed.refresh(moment, since=begin)
    except LowtideError as error:
        if feed.entry.history is None:
            raise
        failed = str(error)
    found = feed.known(moment, since=begin, gaps=gaps, settled=settled)
    if found is None:
        raise ProviderProblem(f"{feed.name} has told nothing yet")
    if failed:
        found = replace(found, problems=(_from_cache(failed, moment - found.retrieved),))
    return found


def fetch_named(
    text: str,
    *,
    since: TimeLike | None = None,
    gaps: str = "refuse",
    now: float | None = None,
    cache: Cache | None = None,
    settled: bool = False,
) -> Sequence[Retrieved]:
    """Return what is known of the zones that a name such as `gb:13` lists.

    Args:
        cache: Where answers are kept; by default the user's.
        settled: Whether all that ever came is asked for, and nothing that was expected.
    """
    return [
        fetch(
            name.provider,
            name.zone,
            since=since,
            gaps=gaps,
            now=now,
            cache=cache,
            settled=settled,
        )
        for name in parse_zones(text)
    ]


class LiveGrid:
    """A zone's signals, kept up to date beside whatever asks for them again and again.

    Asking costs nothing and never waits: a thread of its own asks the provider when what is known
    has grown old.

    Args:
        zone: The zone; empty for the one that is meant where none is named.
        marginal: Provider and zone of marginal intensity, if that is wanted too.
        cache: Where answers are kept; by default the user's.
    """

    def __init__(
        self,
        provider: str | GridProvider,
        zone: str = "",
        *,
        marginal: tuple[str | GridProvider, str] | None = None,
        cache: Cache | None = None,
    ) -> None:
        self._feeds = [Feed.of(provider, zone, cache)]
        if marginal is not None:
            self._feeds.append(Feed.of(*marginal, cache))
        kinds = [feed.provider.kind for feed in self._feeds]
        if kinds != ["average", "marginal"][: len(kinds)]:
            names = " and ".join(f"{feed.name} tells {feed.provider.kind}" for feed in self._feeds)
            raise InvalidInput(
                f"{names} intensity, and what is emitted is counted by the average: name a zone of "
                "average intensity first, as in electricitymaps:US-CAL-CISO+watttime:CAISO_NORTH"
            )
        self._thread: threading.Thread | None = None
        self._grid: Grid | None = None
        self._failed: dict[ZoneName, str] = {}
        self._failures = 0
        self._due = -math.inf
        self._last = -math.inf

    @classmethod
    def named(cls, text: str, *, cache: Cache | None = None) -> LiveGrid:
        """Return the grid of a name such as `gb:13` or `electricitymaps:DE+watttime:DE`.

        Args:
            cache: Where answers are kept; by default the user's.
        """
        first, *others = parse_zones(text)
        marginal = (others[0].provider, others[0].zone) if others else None
        return cls(first.provider, first.zone, marginal=marginal, cache=cache)

    def grid(self, now: float) -> Grid | None:
        """Return what is known, None if nothing is, and see to it that it is kept up to date.

        Whether it covers `now` is for the caller to ask: it is not filled up to it.
        """
        busy = self._thread is not None and self._thread.is_alive()
        if not busy and not self._last <= now < self._due:
            if self._due == -math.inf:
                self._look(now)
            self._due = now + _RETRY_S
            self._thread = threading.Thread(target=self._refresh, args=(now,), daemon=True)
            self._thread.start()
        self._last = now
        return self._grid

    @property
    def problems(self) -> tuple[str, ...]:
        """What is wrong at the moment, in words."""
        return tuple(
            what if since is None else _from_cache(what, self._last - since)
            for what, since in self._wrong()
        )

    @property
    def failures(self) -> tuple[str, ...]:
        """The same, without how old the cache is: that changes all the time, and is no news."""
        return tuple(what for what, _ in self._wrong())

    def _wrong(self) -> Iterator[tuple[str, float | None]]:
        """Return what is wrong, and since when the cache answers instead."""
        for feed in self._feeds:
            if failed := self._failed.get(feed.name):
                yield failed, feed.entry.retrieved
            else:
                yield from ((each, None) for each in (*feed.problems, *feed.entry.problems))

    def wait(self, timeout_s: float) -> bool:
        """Wait until the provider has been asked; return whether it has."""
        if self._thread is not None:
            self._thread.join(timeout_s)
            return not self._thread.is_alive()
        return True

    def _refresh(self, now: float) -> None:
        failed: dict[ZoneName, str] = {}
        for feed in self._feeds:
            try:
                feed.refresh(now)
            except LowtideError as error:
                failed[feed.name] = str(error)
            except Exception as error:  # noqa: BLE001 - a stranger's plug-in stops no watcher
                failed[feed.name] = f"{feed.name}: an error of its own, {type(error).__name__}"
        self._failed = failed
        self._failures = self._failures + 1 if failed else 0
        longest = min(feed.provider.refresh_s for feed in self._feeds)
        self._due = now + (
            min(_RETRY_S * 2 ** min(self._failures - 1, 10), longest) if failed else longest
        )
        self._look(now)

    def _look(self, now: float) -> None:
        """Make the grid anew out of what is known."""
        found = [feed.known(now) for feed in self._feeds]
        average, *others = found
        if average is None:
            return
        marginal = others[0].signal if others and others[0] is not None else None
        self._grid = Grid(average=average.signal, marginal=marginal)


def _from_cache(failed: str, age_s: float) -> str:
    return f"{failed}; the cache answers, {format_age(age_s)} old"
