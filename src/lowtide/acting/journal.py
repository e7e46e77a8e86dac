"""What a driver knows besides: waits of the last week, profiles by their names. All of it a cache.

It lies in a folder of the user's (`LOWTIDE_ACTING`, or below `XDG_STATE_HOME`). Lost, or spoilt, it
costs carbon and no deadline: what keeps those is in the comments of the jobs.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from lowtide.acting.book import Book
from lowtide.acting.experience import Experiences
from lowtide.acting.tag import Tag
from lowtide.acting.waits import Wait, from_rows
from lowtide.errors import LowtideError
from lowtide.files import read_document, try_lock, user_folder, write_whole
from lowtide.profile import PowerProfile

# A driver whose last turn was longer ago than this is taken for dead.
_ALIVE_S = 3600.0


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
        try:
            rows = read_document(self.folder / "waits.json", "json")
        except LowtideError:
            return []
        return from_rows(rows if isinstance(rows, list) else [])

    def keep_waits(self, waits: Iterable[Wait]) -> None:
        """Keep all waits that are over; who still waits is seen again."""
        rows = [asdict(wait) for wait in waits if wait.started is not None]
        write_whole(self.folder / "waits.json", json.dumps(rows), lasting=False)

    def is_driven(self, now: float) -> bool:
        """Return whether a driver has lived of late: each of its turns leaves the waits behind."""
        try:
            return now - (self.folder / "waits.json").stat().st_mtime < _ALIVE_S
        except OSError:
            return False

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
