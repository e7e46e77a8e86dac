"""What to write in the next job script: less of what was not used, and a cleaner hour.

Nothing is advised of what was not watched all the time, or of a job that did not do its work. When
to begin follows from the grid as its own history lets one expect it, and says so.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from datetime import UTC, datetime, tzinfo

import numpy as np

from lowtide.errors import LowtideError
from lowtide.forecasting.auto import Auto
from lowtide.hindsight.job import Hindsight, Waiting, binned, plan_waiting
from lowtide.hindsight.waste import MARGIN
from lowtide.monitor.verdicts import Behaviour
from lowtide.profile import PowerProfile
from lowtide.signal import Signal
from lowtide.store import JobRecord, Series
from lowtide.units import format_duration, format_mass, format_percent, format_time

_STEP_S = 3600.0
# How far back the grid is looked at, and how much of that it takes to expect anything.
HISTORY_S = 28 * 86400.0
_LEAST_S = 2 * 86400.0
# What saves less is not worth waiting for.
_WORTH = 0.01
# Trees take seconds to grow, and a page is to be there at once.
_WAYS = ("persistence", "profile", "linear")


@dataclass(frozen=True, slots=True)
class ScriptLine:
    """A line for a job script, and why."""

    text: str
    why: str


def expected_grid(node: Series, *, now: float, ahead_s: float) -> Signal | None:
    """Return what the grid is expected to be from now on; None where too little is known of it.

    Args:
        node: What a node did up to now, of which the intensity is looked at.
        ahead_s: How far ahead.
    """
    last = now // _STEP_S * _STEP_S
    count = int(HISTORY_S // _STEP_S)
    edges = last + _STEP_S * np.arange(-count, 1, dtype=np.float64)
    values = binned(node, "intensity_g_per_kwh", edges)
    unknown = np.flatnonzero(np.isnan(values))
    first = int(unknown[-1]) + 1 if unknown.size else 0
    if (values.size - first) * _STEP_S < _LEAST_S:
        return None
    known = Signal(
        values=values[first:], start=float(edges[first]), step_s=_STEP_S, source="the watchers"
    )
    try:
        return Auto(ways=_WAYS).forecast(known, known.end, ahead_s + 2 * _STEP_S).signal
    except LowtideError:
        return None


def best_begin(
    profile: PowerProfile, grid: Signal, *, now: float, wait_s: float, pue: float
) -> Waiting | None:
    """Return the cleanest begin within a time; None where the grid is not known for so long.

    Args:
        pue: What the building draws for each watt of the job's; NaN where nobody said.
    """
    pue = 1.0 if math.isnan(pue) else pue
    found = plan_waiting(profile, grid, arrival=now, waits_s=(wait_s,), pue=pue)
    return found[0] if found else None


def next_script(told: Hindsight, begin: Waiting | None, *, tz: tzinfo = UTC) -> list[ScriptLine]:
    """Return what to write in the next job script.

    Args:
        begin: When to begin, beside beginning at once; None where that cannot be told.
        tz: The zone in which Slurm reads times there.
    """
    record, behaviour = told.record, told.behaviour
    if record.state != "completed" or not record.seen_s > 0.9 * record.elapsed_s:
        return []
    lines = []
    if len(record.hosts) == 1:
        lines += _resources(record, behaviour)
    limit_s = MARGIN * record.elapsed_s
    if limit_s < record.time_limit_s:
        limit = format_duration(math.ceil(limit_s / 60) * 60)
        why = f"it took {format_duration(record.elapsed_s)} of {_limit(record)}"
        lines.append(ScriptLine(f"#SBATCH --time={limit}", why))
    if begin is not None and (begin.plan.saving or 0.0) > _WORTH:
        made = begin.plan
        saved_g = made.baseline.amount - made.footprint.amount
        at = datetime.fromtimestamp(made.schedule.start, tz)
        lines.append(
            ScriptLine(
                f"#SBATCH --begin={at:%Y-%m-%dT%H:%M:%S}",
                f"saves about {format_mass(saved_g)} ({format_percent(made.saving)}) against "
                f"beginning now, as the grid is expected; {format_time(made.schedule.start)}",
            )
        )
    return lines


def _resources(record: JobRecord, behaviour: Behaviour) -> list[ScriptLine]:
    lines = []
    cores = math.ceil(record.peak_cpus) if record.peak_cpus > 0 else 1
    # Who waited for CPUs might have used more of them.
    if record.peak_cpus >= 0 and cores < record.cpus and not behaviour.starved:
        why = f"it kept {record.peak_cpus:.3g} of {record.cpus:g} busy at most"
        lines.append(ScriptLine(f"#SBATCH --cpus-per-task={cores}", why))
    memory = MARGIN * record.peak_memory_bytes
    if 0 < memory < record.memory_bytes:
        share = format_percent(record.memory_efficiency)
        why = f"it held {share} of its memory at most; this is a fifth more"
        lines.append(ScriptLine(f"#SBATCH --mem={math.ceil(memory / 2**20)}M", why))
    gpus = _gpus_needed(behaviour)
    if gpus is not None and gpus < record.gpus:
        why = f"it kept {behaviour.gpus.peak:.3g} of {record.gpus:g} busy at most"
        lines.append(ScriptLine(f"#SBATCH --gpus={gpus}", why))
    return lines


def _gpus_needed(behaviour: Behaviour) -> int | None:
    """Return how many GPUs could do the work and hold its data; None where that is not known.

    Several that are a little busy each would be fewer, if their memory is enough.
    """
    gpus, memory = behaviour.gpus, behaviour.gpu_memory
    if not gpus.asked > 0 or math.isnan(gpus.peak):
        return None
    if gpus.peak == 0:
        return 0
    if not memory.asked > 0 or math.isnan(memory.peak):
        return None
    return max(math.ceil(gpus.peak), math.ceil(memory.peak / (memory.asked / gpus.asked)))


def _limit(record: JobRecord) -> str:
    return format_duration(record.time_limit_s)
