"""The library: a folder with a file for each program that is known."""

from __future__ import annotations

import getpass
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from lowtide import files
from lowtide.errors import FileProblem, InvalidInput, LowtideError, UnknownName
from lowtide.learning.likeness import are_alike, distances
from lowtide.library.entry import Entry, read_entry
from lowtide.library.programs import Program, common_name, plain_name
from lowtide.signal import FloatArray

VARIABLE = "LOWTIDE_PROFILES"
# What a program was before it was last learned lies here, below the folder.
_BEFORE = "before"
_ELSEWHERE = f"name another library with --library or {VARIABLE}"


def default_folder(environment: Mapping[str, str] | None = None) -> Path:
    """Return where the library is: `LOWTIDE_PROFILES`, or else below the user's data.

    >>> default_folder({"HOME": "/home/ada"}).as_posix()
    '/home/ada/.local/share/lowtide/profiles'
    """
    known = os.environ if environment is None else environment
    if named := known.get(VARIABLE):
        return files.expanded(named)
    return files.user_folder(known, "XDG_DATA_HOME", ".local/share") / "lowtide" / "profiles"


class Library:
    """The programs that are known.

    Args:
        folder: Where they are; by default `default_folder`. It is made when something is kept.
    """

    def __init__(self, folder: Path | str | None = None) -> None:
        self.folder = default_folder() if folder is None else files.expanded(folder)
        self._known: dict[str, Entry] | None = None
        self.problems: list[str] = []

    def names(self) -> list[str]:
        """Return what its programs are called, sorted, those that cannot be read among them."""
        try:
            return sorted(path.stem for path in self.folder.glob("*.toml") if path.is_file())
        except OSError as error:
            raise FileProblem(
                f"cannot read the library {self.folder}: {error.strerror}; {_ELSEWHERE}",
                path=self.folder,
            ) from error

    def entries(self) -> list[Entry]:
        """Return its programs; `problems` says which files are none."""
        if self._known is None:
            self._known, self.problems = {}, []
            for name in self.names():
                try:
                    self._known[name] = read_entry(self._path(name))
                except LowtideError as error:
                    self.problems.append(str(error))
        return [self._known[name] for name in sorted(self._known)]

    def get(self, name: str) -> Entry:
        """Return the program of that name in the library."""
        if name not in self.names():
            raise UnknownName("profile of the library", name, self.names(), self._hint())
        return read_entry(self._path(name))

    def before(self, name: str) -> Entry | None:
        """Return what a program was before it was last learned; None where it was not there."""
        path = self.folder / _BEFORE / f"{name}.toml"
        return read_entry(path) if name in self.names() and path.is_file() else None

    def find(self, name: str, *, user: str | None = None) -> Entry:
        """Return the program that somebody means: by its name here, or by the name of a job.

        Args:
            user: Whose is meant where several users have a job of that name; by default the one
                who asks.
        """
        if name in self.names():
            return self.get(name)
        found = [each for each in self.entries() if each.program.name == common_name(name)]
        whose = _who_asks() if user is None else user
        found = [each for each in found if each.program.user == whose] or found
        if not found:
            raise UnknownName("profile of the library", name, self.names(), self._hint())
        if len(found) > 1:
            listed = ", ".join(
                f"{each.name} ({each.program.user or '---'}, {each.program.shape})"
                for each in found
            )
            raise InvalidInput(f"{name!r} is {len(found)} programs, name one of them: {listed}")
        return found[0]

    def expected_of(self, program: Program, use: FloatArray | None = None) -> Entry | None:
        """Return the program that a job is, None where it is not known.

        Args:
            use: What it used, which tells apart programs that share all else.
        """
        found = [each for each in self.entries() if each.program == program]
        if len(found) > 1 and use is not None:
            found = [each for each in found if are_alike(each.use, use)]
        return max(found, key=lambda each: each.until, default=None)

    def counterparts(self, program: Program, uses: Sequence[FloatArray]) -> list[Entry | None]:
        """Return which of the known programs each of those that share a name is, by its use."""
        known = [each for each in self.entries() if each.program == program]
        if len(known) == len(uses) == 1:
            # It may have changed.
            return [known[0]]
        found: list[Entry | None] = [None] * len(uses)
        apart = [
            (float(distances(np.stack([use, each.use]))[0, 1]), place, each.name)
            for place, use in enumerate(uses)
            for each in known
            if are_alike(use, each.use)
        ]
        taken: set[str] = set()
        for _, place, name in sorted(apart):
            if found[place] is None and name not in taken:
                taken.add(name)
                found[place] = next(each for each in known if each.name == name)
        return found

    def free_name(self, program: Program, called: str = "") -> str:
        """Return what a program that is new may be called: by its job, and whose it is if taken.

        Args:
            called: What all its runs are called; empty where that differs.
        """
        taken = set(self.names())
        base = plain_name(called or program.name)
        others = [each.program for each in self.entries() if each.name.startswith(base)]
        tried = [base]
        if any(other.user != program.user for other in others):
            tried.append(plain_name(f"{base}-{program.user}"))
        if any(other.shape != program.shape for other in others):
            shape = program.shape.replace(" ", "").replace(",", "-")
            tried.append(plain_name(f"{tried[-1]}-{shape}"))
        tried += [f"{tried[-1]}-{number}" for number in range(2, len(taken) + 3)]
        return next(name for name in tried if name not in taken)

    def put(self, entry: Entry) -> Path:
        """Keep a program; what was there of it before is kept beside it."""
        path = self._path(entry.name)
        try:
            if path.is_file():
                files.write_whole(self.folder / _BEFORE / path.name, files.read_bytes(path))
            files.write_whole(path, entry.toml())
        except FileProblem as error:
            raise FileProblem(f"{error}; {_ELSEWHERE}", path=path) from error
        if self._known is not None:
            self._known[entry.name] = entry
        return path

    def _path(self, name: str) -> Path:
        return self.folder / f"{name}.toml"

    def _hint(self) -> str:
        return (
            f" (in {self.folder}): lowtide profiles learn makes some, --library names another place"
        )


def _who_asks() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        # In many a container nobody has a name.
        return ""
