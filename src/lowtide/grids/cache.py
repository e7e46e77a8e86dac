"""What providers have said, kept on disk: read without network, merged over time, never torn.

One file holds all that is known of a zone. It is written beside its place and renamed there, and
whoever asks a provider holds a lock meanwhile, so that several processes ask it once and none
loses what another has learned.
"""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from lowtide import files
from lowtide.errors import FileProblem, FormatError, ProviderProblem
from lowtide.forecast import Forecast
from lowtide.grids.history import FORECAST, History
from lowtide.grids.providers import ZoneName
from lowtide.signal import Signal
from lowtide.units import format_hours

_VERSION = 1
_LOOK_AGAIN_S = 0.05
# What a provider foresees is kept once an hour, for some months.
_KEPT_EVERY_S = 3600.0
_KEPT_FORECASTS = 2400
# What damaged files make of themselves: numbers of hundreds of digits, lists for texts, ...
_UNREADABLE = (LookupError, TypeError, ValueError, OverflowError, RecursionError)


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """What the cache knows of a zone.

    Attributes:
        name: The zone.
        history: What its provider said; None if nothing yet.
        asked: When it was last asked; None if never.
        retrieved: When it last answered.
        since: The earliest moment it was asked about.
        wait_until: Before when it does not want to be asked again.
        problems: What went wrong the last time, in words.
    """

    name: ZoneName
    history: History | None = None
    asked: float | None = None
    retrieved: float | None = None
    since: float | None = None
    wait_until: float = 0.0
    problems: tuple[str, ...] = ()

    def document(self) -> dict[str, Any]:
        """Return it as JSON holds it."""
        return {
            "lowtide_grid": _VERSION,
            "provider": self.name.provider,
            "zone": self.name.zone,
            "asked": self.asked,
            "retrieved": self.retrieved,
            "since": self.since,
            "wait_until": self.wait_until,
            "problems": list(self.problems),
            "history": None if self.history is None else self.history.document(),
        }

    @classmethod
    def from_document(cls, name: ZoneName, document: Mapping[str, Any]) -> Entry:
        """Return what `document` made, or raise an error that says what is wrong with it.

        Args:
            document: What JSON held.
        """
        if document["lowtide_grid"] != _VERSION:
            raise ValueError(f"version {document['lowtide_grid']}")
        history = document["history"]
        moments = {
            key: None if document[key] is None else float(document[key])
            for key in ("asked", "retrieved", "since")
        }
        return cls(
            name=name,
            history=None if history is None else History.from_document(name, history),
            **moments,
            wait_until=float(document["wait_until"]),
            problems=tuple(str(problem) for problem in document["problems"]),
        )


def format_age(passed_s: float) -> str:
    """Return how old something is, as a person would say it.

    Args:
        passed_s: Its age; less than nothing, where a clock was set back, is nothing.

    >>> [format_age(age) for age in (-3.0, 12.3, 764.0, 9000.0, 864000.0)]
    ['0 s', '12 s', '13 min', '2.5 h', '10 d']
    """
    for limit_s, grain_s in ((120.0, 1.0), (3600.0, 60.0), (4 * 86400.0, 360.0)):
        if passed_s < limit_s:
            return format_hours(max(grain_s * round(passed_s / grain_s), 0.0))
    return format_hours(86400.0 * round(passed_s / 86400.0))


def cache_folder(environment: Mapping[str, str] | None = None) -> Path:
    """Return where signals are kept.

    Args:
        environment: The environment, by default this process's.

    >>> cache_folder({"HOME": "/home/ada"}).as_posix()
    '/home/ada/.cache/lowtide/grids'
    """
    return files.user_folder(environment, "XDG_CACHE_HOME", ".cache") / "lowtide" / "grids"


@dataclass(frozen=True, slots=True)
class Cache:
    """A folder with a file for each zone.

    Attributes:
        folder: The folder; it is made when something is kept.
    """

    folder: Path = field(default_factory=cache_folder)

    def path(self, name: ZoneName) -> Path:
        """Return where a zone is kept."""
        return self.folder / name.provider / f"{name.zone}.json"

    def load(self, name: ZoneName) -> Entry:
        """Return what is known of a zone; an empty entry where nothing is.

        A file that cannot be read is set aside, and that is told once.
        """
        path = self.path(name)
        # Whoever has a home that is another's cannot even look, and Path would raise an error.
        if not os.path.exists(path):  # noqa: PTH110
            return Entry(name=name)
        try:
            return Entry.from_document(name, json.loads(files.read_bytes(path)))
        except _UNREADABLE as error:
            beside = self.set_aside(name, "unreadable")
            raise FormatError(
                f"this is no cache of this version of lowtide ({type(error).__name__}: {error}); "
                f"it is now called {beside.name}, and all begins anew",
                path=path,
            ) from None

    def keep(self, entry: Entry) -> None:
        """Write down what is known of a zone."""
        text = json.dumps(entry.document(), allow_nan=False, separators=(",", ":"))
        files.write_whole(self.path(entry.name), text)

    def forecasts(self, name: ZoneName, history: Signal) -> list[Forecast]:
        """Return what a provider foresaw, as far as it was kept, in the order of issue.

        Args:
            history: What came; forecasts of other steps or another basis are left out.
        """
        made = []
        for line in self._lines(name):
            try:
                told = json.loads(line)
                if (told["step_s"], told["basis"]) != (history.step_s, history.basis):
                    continue
                values = np.array(told["values"], dtype=np.float64)
                signal = replace(history, values=values, start=float(told["start"]), marks=None)
                made.append(Forecast(issued=float(told["issued"]), signal=signal))
            except _UNREADABLE:
                # The last line of a disk that was full.
                continue
        return made

    def keep_forecast(self, history: History, now: float) -> None:
        """Write down what a provider has just foreseen, once an hour at most."""
        ahead = np.flatnonzero((history.states == FORECAST) & (history.times > now))
        whole = ahead.size > 0 and ahead[-1] - ahead[0] + 1 == ahead.size
        lines = self._lines(history.name)
        # A clock that was wrong once does not keep others from being kept.
        if not whole or (lines and 0 <= now - _issued(lines[-1]) < _KEPT_EVERY_S):
            return
        told = {
            "issued": now,
            "start": float(history.times[ahead[0]]),
            "step_s": history.step_s,
            "basis": history.basis,
            "values": history.values[ahead].tolist(),
        }
        kept = [*lines[1 - _KEPT_FORECASTS :], json.dumps(told, separators=(",", ":"))]
        files.write_whole(self._forecasts(history.name), "\n".join(kept) + "\n")

    def _forecasts(self, name: ZoneName) -> Path:
        return self.path(name).with_suffix(".forecasts.jsonl")

    def _lines(self, name: ZoneName) -> list[str]:
        try:
            return self._forecasts(name).read_text().splitlines()
        except (OSError, ValueError):
            return []

    def set_aside(self, name: ZoneName, why: str) -> Path:
        """Give a zone's file another name, so that nothing in it is lost, and return that name."""
        path = self.path(name)
        beside, number = path.with_suffix(f".{why}.json"), 1
        while beside.exists():
            number += 1
            beside = path.with_suffix(f".{why}-{number}.json")
        try:
            path.rename(beside)
        except OSError as error:
            raise FileProblem(f"cannot rename {path}: {error.strerror}", path=path) from None
        return beside

    def names(self, provider: str) -> list[ZoneName]:
        """Return the zones of a provider of which something is known."""
        try:
            found = sorted((self.folder / provider).iterdir())
        except OSError:
            return []
        return [
            ZoneName(provider=provider, zone=path.stem)
            for path in found
            if path.suffix == ".json" and "." not in path.stem
        ]

    @contextmanager
    def asking(self, name: ZoneName, *, patience_s: float) -> Iterator[None]:
        """Keep other processes from asking for the same zone meanwhile.

        A folder that cannot be written, or that knows no locks, is no reason not to ask.
        """
        path = self.path(name).with_suffix(".lock")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        except OSError:
            yield
            return
        try:
            _lock(handle, name, time.monotonic() + patience_s, patience_s)
            yield
        finally:
            os.close(handle)


def _issued(line: str) -> float:
    try:
        return float(json.loads(line)["issued"])
    except _UNREADABLE:
        return -math.inf


def _lock(handle: int, name: ZoneName, deadline: float, patience_s: float) -> None:
    while files.try_lock(handle) is False:
        if time.monotonic() > deadline:
            raise ProviderProblem(
                f"another process has been asking for {name} for more than "
                f"{format_hours(patience_s)}"
            )
        time.sleep(_LOOK_AGAIN_S)
