"""What a driver knows besides: waits of the last week, profiles by their names. All of it a cache.

It lies in a folder of the user's (`LOWTIDE_ACTING`, or below `XDG_STATE_HOME`). Lost, or spoilt, it
costs carbon and no deadline: what keeps those is in the comments of the jobs.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from lowtide.acting.book import Book
from lowtide.acting.experience import Experiences, Habits
from lowtide.acting.tag import Tag
from lowtide.acting.waits import Wait, from_rows
from lowtide.errors import FileProblem, LowtideError
from lowtide.files import read_document, try_lock, user_folder, write_whole
from lowtide.profile import PowerProfile

# A driver whose last turn was longer ago than this is taken for dead, and an accounting asked anew.
_ALIVE_S = 3600.0
# How often waits are kept: of a large site these are a hundred thousand.
_KEPT_S = 300.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Journal:
    """A folder with what a driver knows.

    Attributes:
        folder: The folder; it is made when something is kept.
    """

    folder: Path

    @classmethod
    def of_user(cls, environment: Mapping[str, str] = os.environ) -> Journal:
        """Return the journal of whoever asks."""
        below = user_folder(environment, "XDG_STATE_HOME", ".local/state") / "lowtide" / "acting"
        return cls(folder=Path(environment.get("LOWTIDE_ACTING") or below))

    def waits(self) -> list[Wait]:
        """Return the waits that were kept; nothing where they cannot be read."""
        return _read_waits(self.folder / "waits.json")

    def keep_waits(self, waits: Iterable[Wait]) -> None:
        """Keep all waits, of those too who still wait; what was kept a moment ago will do."""
        at = self.looked
        if at is None or not 0 <= time.time() - at < _KEPT_S:
            write_whole(self.folder / "waits.json", _rows(waits), lasting=False)

    @property
    def looked(self) -> float | None:
        """When waits were last kept; None for never."""
        try:
            return (self.folder / "waits.json").stat().st_mtime
        except OSError:
            return None

    def is_driven(self, now: float) -> bool:
        """Return whether a driver has lived of late: each of its turns leaves the waits behind."""
        at = self.looked
        return at is not None and now - at < _ALIVE_S

    def past(self, ask: Callable[[], list[Wait]]) -> list[Wait]:
        """Return the waits of the last days as an accounting tells them, asked for at times.

        Args:
            ask: Asks it; whatever goes wrong there, nothing is known of them.
        """
        path = self.folder / "past.json"
        with suppress(OSError):
            if 0 <= time.time() - path.stat().st_mtime < _ALIVE_S:
                return _read_waits(path)
        try:
            found = ask()
        except LowtideError:
            # An accounting that is down would keep each of a hundred submissions waiting.
            found = _read_waits(path)
        with suppress(FileProblem):
            write_whole(path, _rows(found), lasting=False)
        return found

    def profile(self, tag: Tag) -> PowerProfile | None:
        """Return the profile of a job; None where it is not known here."""
        return self.profile_named(tag.profile)

    def profile_named(self, name: str) -> PowerProfile | None:
        """Return the profile that a tag calls so; None where it is not known here."""
        if not name:
            return None
        try:
            return PowerProfile.load(self.folder / "profiles" / f"{name}.toml")
        except LowtideError:
            return None

    @property
    def book(self) -> Book:
        """The book of jobs that were handed in."""
        return Book(self.folder / "jobs")

    @property
    def supposed(self) -> Path:
        """Where it is kept what waiting would save."""
        return self.folder / "supposed.json"

    @property
    def habits(self) -> Habits:
        """What was seen of scripts that were asked to stop."""
        return Habits(self.folder / "habits.json")

    @property
    def experiences(self) -> Experiences:
        """What runs taught of profiles."""
        return Experiences(self.folder / "programs.json")

    @contextmanager
    def claim(self) -> Iterator[bool]:
        """Be the one driver of these jobs for a while; False where another lives.

        Two want the same and do no harm: this is for telling, not for keeping out.
        """
        with ExitStack() as stack:
            alone = True
            with suppress(OSError):
                self.folder.mkdir(parents=True, exist_ok=True)
                file = stack.enter_context((self.folder / "driver").open("w"))
                alone = try_lock(file.fileno()) is not False
            yield alone

    def keep_profile(self, profile: PowerProfile) -> str:
        """Keep a profile; return the name that a tag calls it by."""
        # All that it says: profiles may differ in their restart or their spread alone.
        words = json.dumps(profile.to_dict(), sort_keys=True)
        name = hashlib.sha256(words.encode()).hexdigest()[:12]
        profile.dump(self.folder / "profiles" / f"{name}.toml")
        return name


def _rows(waits: Iterable[Wait]) -> str:
    return json.dumps([asdict(wait) for wait in waits])


def _read_waits(path: Path) -> list[Wait]:
    try:
        rows = read_document(path, "json")
    except LowtideError:
        return []
    return from_rows(rows if isinstance(rows, list) else [])
