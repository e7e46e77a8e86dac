"""What runs taught: of the profiles that jobs were planned by, and of who saves when it is asked.

Runs are compared with those of the same job name, script, partition and profile. A profile is taken
as its last runs came out. One that was off by more than a tenth twice in a row, in spite of that,
is no basis for a plan: its jobs run at once until a run comes out as it says.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

from lowtide.acting.book import BookPage
from lowtide.errors import LowtideError
from lowtide.files import read_document, write_whole
from lowtide.profile import Phase, PowerProfile

# How much longer than its profile says a job may take where runs have not told.
LONGER = 1.1
# A run that is further from its profile than this is a miss, and so many in a row are too many.
_MISS = 0.1
_MOST_MISSES = 2
# What no run can differ by.
_MOST = 1000.0
# How many runs count, and how many are kept.
_LAST, _KEPT = 5, 20
# Who takes longer than this to stop has not been seen to.
_LONGEST_STOP_S = 86_400.0


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOutcome:
    """How one run came out beside the profile as it was given.

    Attributes:
        token: Which job it was.
        gap: By what share more was measured than by the profile that it was planned by.
        energy: What it drew, as a share of the profile as it was given.
        duration: How long it took, as a share of that.
    """

    token: str
    gap: float
    energy: float
    duration: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Experience:
    """The runs of one program, oldest first."""

    runs: tuple[RunOutcome, ...] = ()

    @property
    def misses(self) -> int:
        """How many of the last runs in a row were misses."""
        count = 0
        for run in reversed(self.runs):
            if abs(run.gap) <= _MISS:
                break
            count += 1
        return count

    @property
    def is_trusted(self) -> bool:
        """Whether its profile may be planned by."""
        return self.misses < _MOST_MISSES

    @property
    def scales(self) -> tuple[float, float]:
        """What energy and duration are multiplied by, as the last runs have it."""
        last = self.runs[-_LAST:]
        if not last:
            return 1.0, 1.0
        return median(run.energy for run in last), median(run.duration for run in last)

    def adjusted(self, profile: PowerProfile) -> PowerProfile:
        """Return a profile as its last runs came out.

        >>> runs = [RunOutcome(token="a", gap=0.2, energy=1.2, duration=1.0)]
        >>> Experience(runs=tuple(runs)).adjusted(PowerProfile.constant(100, "1h")).energy_j
        432000.0
        """
        energy, duration = self.scales
        if (energy, duration) == (1.0, 1.0):
            return profile

        def changed(phases: Sequence[Phase]) -> tuple[Phase, ...]:
            return tuple(
                replace(
                    each,
                    duration_s=float(f"{each.duration_s * duration:.6g}"),
                    power_w=float(f"{each.power_w * energy / duration:.6g}"),
                )
                for each in phases
            )

        restart = None if profile.restart is None else changed(profile.restart)
        return replace(
            profile,
            startup=changed(profile.startup),
            restart=restart,
            work=changed(profile.work),
            stop=changed(profile.stop),
        )

    def most_s(self, profile: PowerProfile) -> float:
        """Return R: how long a run takes at most, by what its profile and its runs say.

        Args:
            profile: As it was given.
        """
        longest = max((run.duration for run in self.runs), default=0.0)
        spread = 1.0 if profile.spread is None else profile.spread.duration[1]
        usual_s = max(LONGER, spread) * self.adjusted(profile).run_s
        if len(self.runs) < _LAST:
            # A few that were over early say nothing of the next.
            usual_s = max(usual_s, max(LONGER, spread) * profile.run_s)
        return max(usual_s, longest * profile.run_s)


class Experiences:
    """What is known of all programs, in one file.

    Args:
        path: The file; it is made when something is kept.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    def of(self, program: str) -> Experience:
        """Return what is known of a program; nothing where it cannot be read."""
        rows = _read_document(self.path).get(program)
        rows = rows if isinstance(rows, list) else []
        found = [run for row in rows if (run := _read_run(row)) is not None]
        return Experience(runs=tuple(found))

    def learn(self, page: BookPage) -> None:
        """Take in how a job came out, once."""
        known = self.of(page.program)
        ratios = (page.energy_ratio, page.duration_ratio, page.gap)
        if not page.program or any(run.token == page.token for run in known.runs):
            return
        energy, duration, gap = ratios
        if energy is None or duration is None or gap is None:
            return
        run = RunOutcome(
            token=page.token,
            gap=gap,
            energy=energy * page.energy_scale,
            duration=duration * page.duration_scale,
        )
        rows = [asdict(each) for each in (*known.runs, run)][-_KEPT:]
        document = {**_read_document(self.path), page.program: rows}
        write_whole(self.path, json.dumps(document), lasting=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Habit:
    """What was seen of a script that was asked to stop.

    Attributes:
        saves: Whether it has saved, and was not deaf since.
        deaf: Whether it did not stop the last time that it was asked.
        stop_s: How long it took at most to save and leave, of the last times; None where it never
            has.
    """

    saves: bool = False
    deaf: bool = False
    stop_s: float | None = None


class Habits:
    """How scripts behave that are asked to stop, in one file.

    Args:
        path: The file; it is made when something is kept.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    def of(self, script: str) -> Habit:
        """Return what was seen of a script; nothing where it cannot be read."""
        rows = self._rows(script)[-_LAST:]
        took = [row["stop_s"] for row in rows if isinstance(row.get("stop_s"), int | float)]
        deaf = bool(rows) and rows[-1].get("deaf") is True
        return Habit(
            saves=bool(took) and not deaf,
            deaf=deaf,
            stop_s=max((each for each in took if 0 <= each < _LONGEST_STOP_S), default=None),
        )

    def learn(self, page: BookPage) -> None:
        """Take in how a job behaved, once; one that was never asked says nothing."""
        rows = self._rows(page.script)
        if not page.script or (page.stop_s is None and not page.deaf):
            return
        if any(row.get("token") == page.token for row in rows):
            return
        row = {"token": page.token, "deaf": page.deaf, "stop_s": page.stop_s}
        document = {**_read_document(self.path), page.script: [*rows, row][-_KEPT:]}
        write_whole(self.path, json.dumps(document), lasting=False)

    def _rows(self, script: str) -> list[dict[str, Any]]:
        rows = _read_document(self.path).get(script)
        return [row for row in rows if isinstance(row, dict)] if isinstance(rows, list) else []


def _read_document(path: Path) -> dict[str, Any]:
    try:
        document = read_document(path, "json")
    except LowtideError:
        return {}
    return document if isinstance(document, dict) else {}


def script_key(name: str, script: str) -> str:
    """Return what jobs have in common that behave alike when they are asked to stop."""
    words = json.dumps([name, script])
    return hashlib.sha256(words.encode(errors="surrogateescape")).hexdigest()[:12]


def program_key(name: str, script: str, partition: str | None, profile: PowerProfile) -> str:
    """Return what runs have in common that are compared."""
    words = json.dumps([name, script, partition, profile.to_dict()], sort_keys=True)
    return hashlib.sha256(words.encode(errors="surrogateescape")).hexdigest()[:12]


def _read_run(row: Any) -> RunOutcome | None:
    try:
        run = RunOutcome(**row)
    except TypeError:
        return None
    numbers = (run.gap, run.energy, run.duration)
    if not all(isinstance(each, int | float) and abs(each) < _MOST for each in numbers):
        return None
    return run if isinstance(run.token, str) and min(run.energy, run.duration) > 1 / _MOST else None
