"""What `lowtide run` has waiting or running on this machine, for others to see.

A file for each, in the journal's folder, and beside it one that is locked for as long as the run
lives: whoever finds that lock free knows that it was killed, whatever the file says. Nothing here
decides anything.
"""

from __future__ import annotations

import json
import shlex
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

from lowtide.errors import FileProblem, LowtideError
from lowtide.files import read_document, try_lock, write_whole

# For how long one that was killed is told of.
_TOLD_S = 7 * 86_400.0
_TRIES = 50


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalJob:
    """A program that is to run here.

    Attributes:
        token: Tells it from every other.
        pid: The process of `lowtide run`.
        name: What it runs.
        arrival: When it was handed in.
        deadline: By when it must be done; None where nobody says.
        begin: When it is to begin, or to go on.
        latest: S; None where it was promised nothing.
        what: `waits`, `runs` or `paused`.
        why: The reason, for people.
        again: What starts it again.
        lives: Whether somebody still looks after it.
    """

    token: str
    pid: int
    name: str
    arrival: float
    deadline: float | None
    begin: float
    latest: float | None
    what: str
    why: str
    again: str
    lives: bool = True


@dataclass(slots=True)
class LocalJobs:
    """All of them, below a folder."""

    folder: Path

    @contextmanager
    def kept(self, job: LocalJob) -> Iterator[None]:
        """Let others see a job for as long as this lasts; where that fails nobody sees it."""
        path, lock = self._paths(job.token)
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            held = lock.open("w")
        except OSError:
            yield
            return
        with held:
            for _ in range(_TRIES):
                # Who looks at it holds it for a moment.
                if try_lock(held.fileno()) is not False:
                    break
                time.sleep(0.01)
            self.put(job)
            try:
                yield
            finally:
                for each in (path, lock):
                    with suppress(OSError):
                        each.unlink()

    def put(self, job: LocalJob) -> None:
        """Write down how a job stands."""
        with suppress(FileProblem):
            write_whole(self._paths(job.token)[0], json.dumps(asdict(job)), lasting=False)

    def all(self, now: float) -> list[LocalJob]:
        """Return all that can be read, those that were killed included; old ones are removed."""
        found = []
        paths: list[Path] = []
        # Who may not look there sees nobody.
        with suppress(OSError):
            paths = sorted(self.folder.glob("*.json"))
        for path in paths:
            job = _read(path)
            if job is None:
                continue
            lives = self._lives(job.token)
            if not lives and now - max(job.begin, job.arrival) > _TOLD_S:
                for each in self._paths(job.token):
                    with suppress(OSError):
                        each.unlink()
                continue
            found.append(job if lives else _killed(job))
        return sorted(found, key=lambda job: (job.begin, job.token))

    def _paths(self, token: str) -> tuple[Path, Path]:
        return self.folder / f"{token}.json", self.folder / f"{token}.lock"

    def _lives(self, token: str) -> bool:
        try:
            with self._paths(token)[1].open("r+") as file:
                # Where no locks are known nobody can tell.
                return try_lock(file.fileno()) is not True
        except OSError:
            return False


def _killed(job: LocalJob) -> LocalJob:
    """Return how a job stands of which nobody is alive."""
    again = f"start it again: {job.again}"
    if job.what == "waits":
        why = f"lowtide run was killed while it waited, and nothing will start it; {again}"
    else:
        why = f"lowtide run was killed while it ran: look whether it goes on; else {again}"
    return replace(job, lives=False, what="killed", why=why)


def again(words: Sequence[str], folder: Path, deadline: float | None, told: str) -> str:
    """Return what starts a run again, by the deadline that it had.

    Args:
        words: What was typed behind lowtide.
        told: The deadline as it can be typed.

    >>> again(["run", "--finish-by", "+2h", "--", "a b"], Path("/tmp"), 1.0, "2030-01-01T00:00Z")
    "cd /tmp && lowtide run --finish-by 2030-01-01T00:00Z -- 'a b'"
    """
    said = list(words)
    for place, word in enumerate(said if deadline is not None else ()):
        if word == "--":
            break
        if word == "--finish-by" and place + 1 < len(said):
            said[place + 1] = told
        elif word.startswith("--finish-by="):
            said[place] = f"--finish-by={told}"
    return f"cd {shlex.quote(str(folder))} && {shlex.join(['lowtide', *said])}"


def _read(path: Path) -> LocalJob | None:
    try:
        said: dict[str, Any] = read_document(path, "json")
        job = LocalJob(**{each.name: said[each.name] for each in fields(LocalJob)})
        numbers = (job.arrival, job.begin, job.pid, job.deadline or 0, job.latest or 0)
    except (LowtideError, TypeError, KeyError, AttributeError):
        return None
    fits = all(isinstance(each, int | float) for each in numbers)
    return job if fits and job.token == path.stem else None
