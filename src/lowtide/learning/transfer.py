"""A program's profile on a machine that it never ran on, by how busy it kept its own.

Phases and how long they take are those that were measured. What each draws is what the other
machine's model says of the use that was recorded while it ran: window by window, since a machine
that is busy half of the time need not draw what one does that is half busy all the time. So the
power is estimated and the durations are another machine's, and both is said.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from lowtide.certainty import marked
from lowtide.errors import InvalidInput
from lowtide.learning.costs import format_joules
from lowtide.learning.learned import Learned, PhaseFit, make_profile, with_intervals
from lowtide.learning.observations import IntArray, use_between
from lowtide.meters.power_model import Estimated, UtilisationModel
from lowtide.profile import Phase, PowerProfile, Spread
from lowtide.recording import Run
from lowtide.signal import FloatArray
from lowtide.units import format_hours

# Models are plain Python: so many windows of a run tell enough.
_MOST_WINDOWS = 2000
# So much of a run's time must have its use recorded.
_LEAST_KNOWN = 0.5


def on_machine(
    learned: Learned,
    model: UtilisationModel,
    *,
    features: Sequence[str] | None = None,
    speed: float = 1.0,
) -> Learned:
    """Return what was learned as if it had run on the machine of a model.

    Args:
        features: Where the model's features stand in the recordings, such as `gpu=gpu_util/100`;
            by default under their own names.
        speed: How many times as fast the other machine is.
    """
    if learned.baseline_w:
        raise InvalidInput(
            "a machine's model says what all of it draws, idle power included: leave out "
            "--baseline excluded"
        )
    if not (math.isfinite(speed) and speed > 0):
        raise InvalidInput(f"a machine is so many times as fast, more than 0, not {speed:g}")
    model_here = learned.fit.model
    power_w: list[FloatArray] = []
    lows: list[FloatArray] = []
    highs: list[FloatArray] = []
    outside: set[str] = set()
    for series, own_s in zip(learned.series, model_here.run_s, strict=True):
        said, lasts_s, place = _estimated(series.run, own_s, model, features)
        outside |= {why for each in said for why in each.outside}
        spent_s = np.maximum(np.bincount(place, lasts_s, own_s.size), 1e-9)
        for kept, values in (
            (power_w, [each.power_w for each in said]),
            (lows, [each.low_w for each in said]),
            (highs, [each.high_w for each in said]),
        ):
            kept.append(np.bincount(place, lasts_s * np.array(values), own_s.size) / spent_s)
    seconds, rows = np.concatenate(model_here.run_s), np.concatenate(model_here.rows)
    size = len(model_here.names)
    drawn_j = np.bincount(rows, seconds * np.concatenate(power_w), size)
    there = replace(
        model_here,
        power_w=drawn_j / np.maximum(np.bincount(rows, seconds, size), 1e-9),
        run_power_w=tuple(power_w),
        duration_s=model_here.duration_s / speed,
        run_s=tuple(own_s / speed for own_s in model_here.run_s),
    )
    fit = PhaseFit.of(there, learned.fit.structure)
    low_j, high_j = (float(seconds @ np.concatenate(each)) for each in (lows, highs))
    shares = (low_j / drawn_j.sum(), high_j / drawn_j.sum()) if drawn_j.sum() > 0 else None
    if model.band is None or shares is None or any(map(math.isnan, shares)):
        shares = None
    profile = make_profile(
        fit, _spread(learned.profile.spread, model, shares), _restart(learned, fit, speed)
    )
    return replace(
        learned,
        profile=profile,
        phases=tuple(with_intervals(fit)),
        validation=None,
        checks=(),
        costs=(),
        fit=fit,
        power="estimated",
        notes=(*learned.notes, *_told(learned, profile, model, shares, speed), *sorted(outside)),
    )


def _estimated(
    run: Run, phases_s: FloatArray, model: UtilisationModel, features: Sequence[str] | None
) -> tuple[list[Estimated], FloatArray, IntArray]:
    """Return what a model says of the windows of a run, how long each lasts, and of which phase.

    Args:
        phases_s: How long the run's phases took by the program's clock: how late the meter was
            says nothing of use. No window lies in two of them.
    """
    names = [each.name for each in model.features]
    window_s = max(model.average_s or 1.0, run.step_s, run.duration_s / _MOST_WINDOWS)
    counts = np.maximum(np.round(phases_s / window_s), 1).astype(np.intp)
    place = np.repeat(np.arange(phases_s.size), counts)
    lasts_s = (phases_s / counts)[place]
    edges = run.start + np.concatenate(([0.0], np.cumsum(lasts_s)))
    chosen, use = use_between(run, features or names, edges)
    if lacking := [name for name in names if name not in chosen]:
        raise InvalidInput(
            f"the model goes by {', '.join(lacking)}, and --features names {', '.join(chosen)}: "
            f"say where it stands in the recordings, {lacking[0]}=COLUMN"
        )
    known = np.isfinite(use).all(axis=1)
    if lasts_s[known].sum() < _LEAST_KNOWN * lasts_s.sum():
        raise InvalidInput(
            f"how busy the machine was is known for {format_hours(lasts_s[known].sum())} of the "
            f"{format_hours(lasts_s.sum())} of run {run.id}, and half of it is needed: record it "
            "with lowtide measure"
        )
    # What is shorter than a sample, or was missed, is taken to be as what is nearest to it.
    mids = (edges[:-1] + edges[1:]) / 2
    nearest = np.abs(mids[:, None] - mids[known]).argmin(axis=1)
    said = [model.at(dict(zip(chosen, row, strict=True))) for row in use[known].tolist()]
    return [said[each] for each in nearest.tolist()], lasts_s, place


def _restart(learned: Learned, fit: PhaseFit, speed: float) -> tuple[Phase, ...] | None:
    """Return what resumed runs start with: as the startup's phases of the same name are scaled."""
    if learned.profile.restart is None:
        return None
    before = {phase.name: phase.power_w for phase in learned.profile.startup}
    after = {phase.name: phase.power_w for phase in make_profile(fit).startup}
    return tuple(
        replace(
            phase,
            duration_s=phase.duration_s / speed,
            power_w=phase.power_w * after[phase.name] / (before[phase.name] or 1.0),
        )
        for phase in learned.profile.restart
    )


def _spread(
    spread: Spread | None, model: UtilisationModel, shares: tuple[float, float] | None
) -> Spread | None:
    """Return what an unseen run lies between: as runs differ, and as far as the model is off."""
    if spread is None or model.band is None or shares is None:
        return None
    low, high = (float(f"{own * off:.6g}") for own, off in zip(spread.energy, shares, strict=True))
    return replace(spread, level=min(spread.level, model.band.level), energy=(low, high))


def _told(
    learned: Learned,
    profile: PowerProfile,
    model: UtilisationModel,
    shares: tuple[float, float] | None,
    speed: float,
) -> list[str]:
    """Return what a reader has to know of a profile of another machine."""
    energy_j = profile.energy_j
    drawn = marked(format_joules(energy_j), estimated=True)
    said = f"{drawn} on another machine, by its model ({model.source})"
    if model.band is None or shares is None:
        said += "; how far off that is nobody has found out"
    else:
        low, high = (format_joules(share * energy_j) for share in shares)
        said += f": {low} to {high} by how far off the model was ({model.band.level:.0%})"
    took = "durations are those of the machine it was measured on"
    took += (
        ": say how many times as fast the other one is, if you know, with --speed"
        if speed == 1.0
        else f", divided by {speed:g}"
    )
    return [said, f"{format_joules(learned.profile.energy_j)} was measured here", took]
