"""The phases of a job that nobody marked, found in what it drew."""

from __future__ import annotations

import numpy as np

from lowtide.errors import InvalidInput
from lowtide.learning import learn
from lowtide.learning.learned import Learned
from lowtide.recording import Recording, Run
from lowtide.store import JobRecord, Series
from lowtide.units import format_hours

# Longer than this many usual steps without data is a time that nobody watched.
_GAP_STEPS = 2.0
# Fewer steps than this show no phases.
_LEAST_STEPS = 4


def run_of(record: JobRecord, series: Series) -> Run:
    """Return a job as a measured run, so that it can be learned from.

    Args:
        record: The job.
        series: What it used over time.
    """
    power_w = series.columns.get("power_w", np.empty(0))
    known = np.isfinite(power_w)
    if np.count_nonzero(known) < _LEAST_STEPS:
        raise InvalidInput(
            f"what it drew is known for {np.count_nonzero(known)} steps, and phases take "
            f"{_LEAST_STEPS} or more"
        )
    first, last = int(np.argmax(known)), int(known.size - np.argmax(known[::-1]))
    inside = slice(first, last)
    unknown = np.where(known[inside], 0.0, series.step_s[inside])
    longest = float(unknown.max())
    if longest > _GAP_STEPS * float(np.median(series.step_s[inside][known[inside]])):
        raise InvalidInput(
            f"there is no data for {format_hours(longest)} of it, and what it drew then is unknown"
        )
    starts = series.starts[inside][known[inside]]
    return Run(
        id=record.shown_id,
        times=starts,
        power_w=power_w[inside][known[inside]],
        start=float(starts[0]),
        end=float(series.times[last - 1]),
        power="measured" if record.power == "measured" else "estimated",
    )


def phases_of(record: JobRecord, series: Series) -> Learned:
    """Return the phases of a job.

    Args:
        record: The job.
        series: What it used over time.
    """
    run = run_of(record, series)
    return learn(Recording(runs=(run,), source=f"job {record.shown_id}"), events=False)
