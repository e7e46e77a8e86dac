"""One run of a study looked at closely: simulated again, beside its like under other policies."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from lowtide.experiments.study_table import Study, parameter_keys, run_parameters
from lowtide.signal import FloatArray, Signal, deciding_signal

if TYPE_CHECKING:
    from lowtide.simulator import Simulation

# More curves than this in one chart hide each other.
MOST_CURVES = 6
# More jobs than this one by one, and their lines grow thin.
MOST_JOBS = 16

_DAY_S = 86_400.0
# Power and queue are shown over so many days: a year would hide the hours, which is what matters.
_SHOWN_S = 14 * _DAY_S
_MOST_STEPS = 24 * 14
# The axis of jobs shown one by one is at most so many times as long as a job runs, and goes on
# after the last by this share.
_THINNEST = 30.0
_MARGIN = 0.02


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """The same jobs on the same grid under several policies.

    Attributes:
        row: The run of the leader that was chosen.
        setting: What was run, in words.
        simulations: What came of it, by policy, the leader first.
        chosen: The rows of the jobs to show one by one, in order of arrival.
    """

    row: int
    setting: str
    simulations: Mapping[str, Simulation]
    chosen: tuple[int, ...]

    @property
    def signal(self) -> Signal:
        """The signal that decided."""
        return deciding_signal(self.first.signal)

    @property
    def first(self) -> Simulation:
        """The leader's run."""
        return next(iter(self.simulations.values()))

    @property
    def jobs_span(self) -> tuple[float, float]:
        """From the first arrival of the chosen jobs to the last end, and a little on."""
        rows = list(self.chosen)
        begin = float(self.first.jobs.arrival[rows].min())
        end = float(self.first.tally.end[rows].max())
        return begin, min(end + _MARGIN * (end - begin), self.signal.end)

    @property
    def steps(self) -> FloatArray:
        """The edges of the steps over which power and queue are averaged."""
        every = self.simulations.values()
        begin = min(float(each.jobs.arrival.min()) for each in every)
        end = min(max(float(each.tally.end.max()) for each in every), self.signal.end)
        if end - begin > _SHOWN_S:
            begin = min(max(self.jobs_span[0] - _DAY_S, begin), end - _SHOWN_S)
            end = begin + _SHOWN_S
        step_s = max(self.signal.step_s, (end - begin) / _MOST_STEPS)
        return np.append(np.arange(begin, end, step_s), end)

    def differences(self, study: Study) -> tuple[str, str]:
        """Return what the leader's run emitted, as the table has it and as it came out now."""
        column = "carbon_g" if self.first.tally.carbon_g is not None else "cost"
        amounts = getattr(self.first.tally, column)
        known = study.runs[column][self.row] if column in study.runs.columns else None
        now = f"{float(amounts.sum()):.6g}"
        return (now if known is None else f"{known:.6g}"), now


def choose_row(study: Study) -> int:
    """Return the run of the leader whose outcome lies nearest to the median of its runs."""
    rows = study.rows(study.leader)
    own = study.outcomes[rows]
    return rows[int(np.argmin(np.abs(own - np.median(own))))]


def look_closely(
    study: Study, simulate: Callable[[Sequence[dict[str, Any]]], Iterable[Simulation]]
) -> Look:
    """Simulate a run that is like most again, and its like under other policies.

    Args:
        simulate: Turns the parameters of runs into what comes of each.
    """
    row = choose_row(study)
    beside = runs_beside(study, row)
    parameters = [run_parameters(study, place) for place in beside.values()]
    simulations = dict(zip(beside, simulate(parameters), strict=True))
    return Look(
        row=row,
        setting=setting_words(study, row),
        simulations=simulations,
        chosen=choose_jobs(simulations[study.leader], MOST_JOBS),
    )


def runs_beside(study: Study, row: int) -> dict[str, int]:
    """Return a run per policy in the setting of a run, its own first, then the best."""
    found = {study.policies[row]: row}
    names = sorted(study.ranking, key=lambda name: name != study.baseline)
    for name in names:
        alike = [each for each in study.rows(name) if study.settings[each] == study.settings[row]]
        if alike and len(found) < MOST_CURVES:
            found.setdefault(name, alike[0])
    return {name: found[name] for name in study.ranking if name in found}


def setting_words(study: Study, row: int) -> str:
    """Return the parameters of a run that differ between runs, in words."""
    parts = [study.place(row)] if study.axes else []
    seeds = [key for key in parameter_keys(study.runs) if key.endswith(".seed")]
    varied = [key for key in seeds if study.runs[key].n_unique() > 1]
    parts += [f"{key} {study.runs[key][row]}" for key in varied]
    return ", ".join(parts)


def choose_jobs(simulation: Simulation, count: int) -> tuple[int, ...]:
    """Return rows of jobs that arrive within a few days around one that is like most.

    Where jobs are rare, only so many that each can still be seen beside the others.
    """
    jobs, saving = simulation.jobs, simulation.saving
    known = np.arange(len(jobs)) if saving is None else np.flatnonzero(np.isfinite(saving))
    middle = len(jobs) // 2
    if saving is not None and known.size:
        middle = int(known[np.argsort(saving[known], kind="stable")[known.size // 2]])
    allowed_s = float(np.median(jobs.deadline - jobs.arrival))
    reach_s = float(np.clip(allowed_s, _DAY_S / 2, 3.5 * _DAY_S))
    away_s = np.abs(jobs.arrival - jobs.arrival[middle])
    near = np.flatnonzero(away_s <= reach_s)
    if near.size < min(count, 3):
        # The nearest, as long as a job is no thinner than a line on the axis of them all.
        near = np.argsort(away_s, kind="stable")[:count]
        ends = np.maximum.accumulate(simulation.tally.end[near])
        spans_s = ends - np.minimum.accumulate(jobs.arrival[near])
        near = near[spans_s <= max(_THINNEST * float(np.median(jobs.run_s)), float(spans_s[0]))]
        near = np.sort(near)
    places = np.unique(np.linspace(0, near.size - 1, min(count, near.size)).round().astype(int))
    return tuple(near[places].tolist())


def quantiles(values: FloatArray, count: int = 200) -> tuple[FloatArray, FloatArray]:
    """Return a distribution as few points: values, and the share of all at most as large.

    Args:
        values: The numbers; NaN is left out.
    """
    known = np.sort(values[np.isfinite(values)])
    share = np.arange(1, known.size + 1) / known.size
    # The last of equal values is where the curve has risen past them.
    last = np.append(np.diff(known) > 0, True)
    known, share = known[last], share[last]
    places = np.unique(np.searchsorted(share, np.linspace(0, 1, count)).clip(0, share.size - 1))
    return known[places], share[places]
