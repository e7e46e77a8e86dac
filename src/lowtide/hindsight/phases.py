"""The phases of a job that nobody marked, found in what it drew, or kept from when it ended."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from lowtide.learning import learn
from lowtide.learning.learned import Learned
from lowtide.library.sources import ROLLED_UP, run_of
from lowtide.profile import Phase, PowerProfile
from lowtide.recording import Recording
from lowtide.store import JobRecord, Series
from lowtide.units import format_hours


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundPhase:
    """One phase, a repeated one once.

    Attributes:
        duration_s: How long it takes each time.
    """

    name: str
    group: str
    times: int
    duration_s: float
    power_w: float


@dataclass(frozen=True, slots=True, kw_only=True)
class JobPhases:
    """The phases of a job, and where they come from.

    Attributes:
        found: The phases; those that repeat follow each other, and do so together.
        profile: What the job draws, made of them.
        origin: `samples` where they were found in what was seen, `kept` where the watcher found
            them when the job ended, `rolled up` where only coarser steps are left to find them in.
        step_s: How long the steps are that are left.
    """

    found: tuple[FoundPhase, ...]
    profile: PowerProfile
    origin: str
    step_s: float

    @property
    def note(self) -> str:
        """What a reader has to know of where they come from; empty where that is nothing."""
        if self.origin == "samples":
            return ""
        left = f"What it drew is kept in steps of {format_hours(self.step_s)} by now"
        if self.origin == "kept":
            return f"{left}: the phases are those that were found when it ended."
        return f"{left}, and shorter phases cannot be seen in that."


def phases_of(record: JobRecord, series: Series) -> Learned:
    """Return the phases of a job."""
    run = run_of(record, series)
    return learn(Recording(runs=(run,), source=f"job {record.shown_id}"), events=False)


def phases_document(learned: Learned) -> list[dict[str, Any]]:
    """Return phases as plain lists and numbers: as they are kept, and as programs get them."""
    return [
        {
            "name": phase.name,
            "group": phase.group,
            "times": phase.times,
            "duration_s": phase.duration_s.value,
            "power_w": phase.power_w.value,
        }
        for phase in learned.phases
    ]


def look_for_phases(record: JobRecord, series: Series, kept: str | None) -> JobPhases:
    """Return the phases of a job by the best that is left of it.

    Args:
        kept: What the store has of phases found earlier, as JSON text.
    """
    known = np.isfinite(series.columns.get("power_w", np.empty(0)))
    step_s = float(series.step_s[known].max()) if known.any() else 0.0
    origin = "samples"
    if 0 < np.count_nonzero(known) < record.looks / ROLLED_UP:
        if (found := read_phases(kept)) is not None:
            return JobPhases(found=found, profile=_profile(found), origin="kept", step_s=step_s)
        origin = "rolled up"
    learned = phases_of(record, series)
    found = _found(phases_document(learned))
    return JobPhases(found=found, profile=learned.profile, origin=origin, step_s=step_s)


def read_phases(kept: str | None) -> tuple[FoundPhase, ...] | None:
    """Return phases that were kept; None where there are none, or none that can be read.

    Args:
        kept: What the store has, as JSON text.
    """
    try:
        return _found(json.loads(kept)) or None if kept is not None else None
    except (ValueError, TypeError, KeyError, OverflowError, RecursionError):
        return None


def _found(document: Sequence[Mapping[str, Any]]) -> tuple[FoundPhase, ...]:
    return tuple(
        FoundPhase(
            name=str(each["name"]),
            group=str(each["group"]),
            times=int(each["times"]),
            duration_s=float(each["duration_s"]),
            power_w=float(each["power_w"]),
        )
        for each in document
    )


def _profile(found: Sequence[FoundPhase]) -> PowerProfile:
    """Return what phases make up: those that repeat are one block."""
    groups: dict[str, list[Phase]] = {"startup": [], "work": []}
    block = [each for each in found if each.times > 1]
    for each in found:
        if each.times == 1:
            groups[each.group].append(_phase(each))
        elif each is block[0]:
            for _ in range(each.times):
                groups[each.group].extend(map(_phase, block))
    return PowerProfile(startup=groups["startup"], work=groups["work"])


def _phase(each: FoundPhase) -> Phase:
    return Phase(name=each.name, duration_s=each.duration_s, power_w=max(each.power_w, 0.0))
