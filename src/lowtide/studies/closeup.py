"""One run of a study looked at closely: simulated again, beside its like under other policies."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from lowtide.grid import deciding_signal
from lowtide.page.page import Table
from lowtide.signal import FloatArray, Signal
from lowtide.studies.study import Study, parameter_keys, run_parameters
from lowtide.units import format_count, format_hours, format_mass, format_percent

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
# Outcomes of jobs that differ by less, as a share, are the same.
_SAME = 1e-6


@dataclass(frozen=True, slots=True, kw_only=True)
class Closeup:
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
) -> Closeup:
    """Simulate a run that is like most again, and its like under other policies.

    Args:
        simulate: Turns the parameters of runs into what comes of each.
    """
    row = choose_row(study)
    beside = runs_beside(study, row)
    parameters = [run_parameters(study, place) for place in beside.values()]
    simulations = dict(zip(beside, simulate(parameters), strict=True))
    return Closeup(
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


def run_answer(study: Study, look: Closeup) -> str:
    """Say what came of the run that is looked at."""
    summary = look.first.summary()
    # A saving stands beside what it is told of: jobs and nodes together, here and there.
    ours, theirs = summary["total_carbon_g"], summary.get("baseline_total_carbon_g")
    amount = f"{format_mass(ours)} of CO2e"
    beside = "" if theirs is None else f" ({format_mass(theirs)} under {summary['baseline']})"
    if ours is None:
        ours, theirs = summary["total_cost"], summary.get("baseline_total_cost")
        amount = f"{ours:.4g} {summary['currency']} of electricity"
        beside = "" if theirs is None else f" ({theirs:.4g} under {summary['baseline']})"
    amount += beside
    text = f"Under policy {study.leader} {format_count(summary['jobs'], 'job')} came to {amount}"
    if summary.get("saving") is not None:
        less = "less" if summary["saving"] >= 0 else "more"
        text += f", {format_percent(abs(summary['saving']))} {less} than under policy "
        text += f"{summary['baseline']}"
    correlation = summary["power_intensity_correlation"]
    if correlation is not None:
        sign = "−" if correlation < 0 else ""
        what = "price" if summary["carbon_g"] is None else "carbon intensity"
        text += f"; power and {what} correlate at {sign}{abs(correlation):.2f}"
    return f"{text} ({look.setting})." if look.setting else f"{text}."


def spread_answer(study: Study, look: Closeup) -> str:
    """Say how waits and savings are spread over the jobs of the run that is looked at."""
    waits = look.first.wait_s
    half, most = np.quantile(waits, [0.5, 0.95])
    at_once = float((waits == 0).mean())
    text = (
        f"Under policy {study.leader} half of the jobs wait at most {format_hours(half)} and one "
        f"in twenty {format_hours(most)} or longer; {format_percent(at_once)} do not wait at all"
    )
    saving = look.first.saving
    known = np.array([]) if saving is None else saving[np.isfinite(saving)]
    if known.size:
        what = "cost" if look.first.tally.carbon_g is None else "emit"
        text += (
            f"; half save more than {format_percent(float(np.median(known)))}, and "
            f"{format_percent(float((known < -1e-9).mean()))} {what} more than under policy "
            f"{look.first.baseline_policy}"
        )
    return f"{text}."


def job_pairs(study: Study, look: Closeup) -> list[Table]:
    """Return how the same jobs fare under other policies than the leader's, if there are any."""
    ours = look.first.tally
    rows = []
    for name, simulation in look.simulations.items():
        theirs = simulation.tally
        if name == study.leader or theirs.amount.shape != ours.amount.shape:
            continue
        apart = theirs.amount - ours.amount
        same = np.abs(apart) <= _SAME * np.maximum(np.abs(ours.amount), np.abs(theirs.amount))
        later = theirs.end - ours.end
        rows.append(
            [
                name,
                f"{apart.size:,}",
                *(format_percent(float(each.mean())) for each in (~same & (apart < 0), same)),
                format_percent(float((~same & (apart > 0)).mean())),
                *(format_percent(float(each.mean())) for each in (later < -60, later > 60)),
            ]
        )
    what = "emit" if ours.carbon_g is not None else "cost"
    header = (
        *(f"policy, beside {study.leader}", "the same jobs", f"{what} less", f"{what} the same"),
        *(f"{what} more", "are done earlier", "are done later"),
    )
    return [Table(header=header, rows=rows)] if rows else []
