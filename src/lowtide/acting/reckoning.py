"""Plan, replay and measurement apart, so that a gap between them has an owner.

The plan is what was expected with the forecast; the replay is the same profile at the starts that
came, on the grid that came; measured is what was. From plan to replay it is the queue, the
scheduler and the forecast that were off, from replay to measured it is the profile.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from lowtide.accounting import Footprint, footprint
from lowtide.errors import LowtideError
from lowtide.job import Job
from lowtide.measuring.payment import amount_of_run
from lowtide.profile import PowerProfile
from lowtide.recording import Run
from lowtide.schedule import Schedule, Stretch
from lowtide.signal import Signal


@dataclass(frozen=True, slots=True, kw_only=True)
class Reckoning:
    """What a job came to, in the unit of the signal that decided. None where it is not known.

    Attributes:
        planned: By the plan at submission.
        replayed: By the profile at the starts that came.
        measured: By meters.
        at_once: By the profile, had it started when it was handed in.
        counts: Whether it did what it was to, and in time: what failed has saved nothing.
    """

    planned: float | None = None
    replayed: float | None = None
    measured: float | None = None
    at_once: float | None = None
    counts: bool = True

    @property
    def planned_saving(self) -> float | None:
        """The share that the plan was to save."""
        return (
            None if self.planned is None or not self.at_once else 1.0 - self.planned / self.at_once
        )

    @property
    def saving(self) -> float | None:
        """The share that was saved; None before anything was measured, or where it failed.

        What was measured is set beside the same watts at submission: the replay's own error
        counts on neither side. Without a profile to replay, running at once is what was measured,
        at its mean power.
        """
        if self.measured is None or not self.at_once or not self.counts:
            return None
        came = self.measured if self.replayed is None else self.replayed
        return 1.0 - came / self.at_once

    @property
    def saved(self) -> float | None:
        """How much that is, by what was measured; None before that."""
        share = self.saving
        if share is None or self.measured is None or share >= 1.0:
            return None
        return self.measured / (1.0 - share) - self.measured


def amount(profile: PowerProfile, stretches: Sequence[Stretch], signal: Signal) -> float | None:
    """Return what running a profile so comes to; None where the signal does not tell all of it."""
    found = replay(profile, stretches, signal)
    return None if found is None else found.amount


def replay(profile: PowerProfile, stretches: Sequence[Stretch], signal: Signal) -> Footprint | None:
    """Return what running a profile so draws and comes to; None where that cannot be told."""
    if not stretches:
        return None
    start = stretches[0].start
    laid = _fitted(profile, stretches)
    *first, last = laid
    end = last.start + profile.run_s + profile.stop_s
    try:
        job = Job(
            id="1",
            arrival=start,
            deadline=max(end, start + profile.run_s),
            profile=profile,
            interruptible="anywhere" if first else "never",
        )
        return footprint(Schedule.from_stretches(job, laid), job, signal)
    except LowtideError:
        return None


def _fitted(profile: PowerProfile, stretches: Sequence[Stretch]) -> list[Stretch]:
    """Return starts with as much work as the profile has, however long they took."""
    *first, last = stretches
    fitted = []
    for number, (each, after) in enumerate(zip(first, stretches[1:], strict=True)):
        room_s = after.start - each.start - profile.starting_s(number) - profile.stop_s
        fitted.append(Stretch(start=each.start, work_s=max(min(each.work_s, room_s), 0.0)))
    done_s = sum(each.work_s for each in fitted)
    if done_s >= profile.work_s:
        # It took longer than it was to: what was left to the last is not known.
        shorter = profile.work_s * len(fitted) / len(stretches) / done_s
        fitted = [replace(each, work_s=shorter * each.work_s) for each in fitted]
        done_s *= shorter
    return [*fitted, Stretch(start=last.start, work_s=profile.work_s - done_s)]


def paused_and_running_w(
    runs: Sequence[Run], pauses: Sequence[tuple[float, float]]
) -> tuple[float, float]:
    """Return the mean watts while a measured program was paused, and while it was not."""
    paused_j = paused_s = all_j = all_s = 0.0
    for run in runs:
        all_j += run.energy_j()
        all_s += run.end - run.start
        for begin, end in pauses:
            cuts = np.clip([begin, end], run.start, run.end)
            paused_j += float(np.diff(run.energies_j(cuts))[0])
            paused_s += float(np.diff(cuts)[0])
    return paused_j / paused_s, (all_j - paused_j) / (all_s - paused_s)


def measured(runs: Sequence[Run], signal: Signal) -> float | None:
    """Return what measured runs came to; None where something of it is not known."""
    if not all(signal.covers(run.start, run.end) for run in runs):
        return None
    total = sum(amount_of_run(run, signal) for run in runs)
    return total if runs and np.isfinite(total) else None
