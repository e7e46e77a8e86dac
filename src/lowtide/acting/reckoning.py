"""Plan, replay and measurement apart, so that a gap between them has an owner.

The plan is what was expected with the forecast; the replay is the same profile at the starts that
came, on the grid that came; measured is what was. From plan to replay it is the queue, the
scheduler and the forecast that were off, from replay to measured it is the profile.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from lowtide.accounting import footprint, integrate
from lowtide.errors import LowtideError
from lowtide.job import Job
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
    """

    planned: float | None = None
    replayed: float | None = None
    measured: float | None = None
    at_once: float | None = None

    @property
    def planned_saving(self) -> float | None:
        """The share that the plan was to save."""
        return (
            None if self.planned is None or not self.at_once else 1.0 - self.planned / self.at_once
        )

    @property
    def saving(self) -> float | None:
        """The share that was saved; None before anything was measured.

        What was measured is set beside the same watts at submission: the replay's own error
        counts on neither side.
        """
        if self.measured is None or self.replayed is None or not self.at_once:
            return None
        return 1.0 - self.replayed / self.at_once


def amount(profile: PowerProfile, stretches: Sequence[Stretch], signal: Signal) -> float | None:
    """Return what running a profile so comes to; None where the signal does not tell all of it."""
    if not stretches:
        return None
    start = stretches[0].start
    work_s = min(sum(each.work_s for each in stretches), profile.work_s)
    # The last start does what is left, however long it took.
    *first, last = stretches
    done_s = min(sum(each.work_s for each in first), work_s)
    laid = [*first, Stretch(start=last.start, work_s=profile.work_s - done_s)]
    end = last.start + profile.run_s + profile.stop_s
    try:
        job = Job(
            id="1",
            arrival=start,
            deadline=max(end, start + profile.run_s),
            profile=profile,
            interruptible="anywhere" if first else "never",
        )
        return footprint(Schedule.from_stretches(job, laid), job, signal).amount
    except LowtideError:
        return None


def measured(runs: Sequence[Run], signal: Signal) -> float | None:
    """Return what measured runs came to; None where something of it is not known."""
    total = 0.0
    for run in runs:
        if not signal.covers(run.start, run.end):
            return None
        inner = signal.edges[(signal.edges > run.start) & (signal.edges < run.end)]
        cuts = np.concatenate(([run.start], inner, [run.end]))
        power_w = np.diff(run.energies_j(cuts)) / np.diff(cuts)
        total += float(integrate(power_w, cuts[:-1], cuts[1:], signal).sum())
    return total if runs and np.isfinite(total) else None
