"""The tables of the evaluation that is run again: savings, published totals, what explains them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from lowtide.experiments.report import Section
from lowtide.experiments.statistics import Effect, anova
from lowtide.experiments.thesis import LEVELS, STARTUP_MODES, Case, Outcome, savings
from lowtide.experiments.thesis_published import Published, belongs, judge
from lowtide.units import MISSING

_FACTORS = {
    "wait": "wait_h",
    "length": "length_s",
    "phases": "phases",
    "startup": "startup_s",
    "startup power": "startup_w",
    "power": "power",
}
# Waiting helps long jobs and not short ones. Left in the residual, that would drown the rest.
_INTERACTIONS = (("wait", "length"),)
_MODE_WORDS = {"carved": "carved out of the length", "added": "added to the length"}
# Below this probability a term is said to have an effect.
_SEEN = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class Study:
    """The outcomes of an evaluation, and what was published of it.

    Attributes:
        outcomes: What each job comes to at its best.
        published: Published totals; None where there are none to compare with.
    """

    outcomes: tuple[Outcome, ...]
    published: Mapping[Case, Published] | None = None

    @property
    def startup_modes(self) -> list[str]:
        """The readings of the startup that were planned."""
        found = {outcome.case.startup_mode for outcome in self.outcomes}
        return [mode for mode in STARTUP_MODES if mode in found]

    def of(self, mode: str) -> list[Outcome]:
        """Return the outcomes of one reading of the startup.

        Args:
            mode: `carved` or `added`.
        """
        return [outcome for outcome in self.outcomes if outcome.case.startup_mode == mode]

    @property
    def comparable(self) -> Mapping[Case, Published]:
        """The published totals, none where they belong to another signal."""
        known = self.published or {}
        return known if belongs(known, self.outcomes) else {}


def tables(study: Study) -> list[Section]:
    """Return all tables.

    Args:
        study: The outcomes.
    """
    return [
        savings_table(study),
        published_table(study),
        startup_table(study),
        *(anova_table(study, about) for about in ("saving", "emissions")),
    ]


def savings_table(study: Study) -> Section:
    """Return the mean saving by length and wait, for each reading of the startup.

    Args:
        study: The outcomes.
    """
    waits = [int(wait) for wait in LEVELS["wait_h"]]
    rows = []
    for mode in study.startup_modes:
        saved = savings(study.of(mode))
        for length_s in LEVELS["length_s"]:
            row = [
                _percent(_mean(saved, wait_h=wait_h, length_s=int(length_s))) for wait_h in waits
            ]
            if any(cell != MISSING for cell in row):
                rows.append([mode, _hours(int(length_s)), *row])
    text = (
        "Each job is planned under two readings of its startup. Carved, as published: the startup "
        "is carved out of the job's stated length, so that a longer one leaves less work, and "
        "uninterrupted jobs start on the arrival's own hours. Added: the startup comes on top of "
        "the length, so that the work stays the same, and jobs start at any moment. Told is the "
        "mean over jobs of 1 − suspend & resume / best uninterrupted start, each job counting the "
        "same."
    )
    text += _hour_grid(study)
    if not rows:
        text = "Needs both strategies of the same jobs."
    return Section(
        heading="What suspend & resume saves, by length and wait",
        text=text,
        header=("reading", "length", *(f"{wait_h} h" for wait_h in waits)),
        rows=rows,
    )


def _hour_grid(study: Study) -> str:
    """Say how much of the carved savings is owed to starts on the hour alone."""
    carved = study.of("carved")
    hourly, free = savings(carved), savings(carved, free_start=True)
    if not hourly:
        return ""
    owed = [hourly[case] - free[case] for case in hourly]
    return (
        f" The hours alone account for {100 * np.mean(owed):.2f} points of a carved job's saving "
        f"on average, {100 * max(owed):.2f} at most."
    )


def published_table(study: Study) -> Section:
    """Return how published totals compare with their true value and the optimum, by length.

    Args:
        study: The outcomes.
    """
    known = study.comparable
    carved = [each for each in study.of("carved") if each.case.strategy == "suspend"]
    lengths = sorted({outcome.case.length_s for outcome in carved})
    groups = [(_hours(s), [each for each in carved if each.case.length_s == s]) for s in lengths]
    rows = []
    for name, group in [*groups, ("all", carved)]:
        verdict = judge(known, group)
        if verdict is None:
            rows.append([name, *[MISSING] * 6])
            continue
        counts = (verdict.jobs, verdict.empty, verdict.below, verdict.wrong, verdict.above)
        rows.append([name, *map(str, counts), _percent(verdict.worst)])
    return Section(
        heading="Suspend & resume as published, as it truly was, and at its optimum",
        text=_published_text(study, known),
        header=(
            "length",
            "published",
            "no schedule",
            "below optimum",
            "misstated",
            "not optimal",
            "worst excess",
        ),
        rows=rows if carved else [],
    )


def _published_text(study: Study, known: Mapping[Case, Published]) -> str:
    if study.published is None:
        return f"Published totals were not found: {MISSING}. Name their folder by --data."
    if not known:
        return f"The published totals belong to other jobs or another signal: {MISSING}."
    return (
        "Below optimum: the published total is lower than any schedule can be. Misstated: it is "
        "not what its own schedule emits. Not optimal, worst excess: what the schedule truly "
        "emits, against the optimum. Totals without any schedule count nowhere else."
    )


def startup_table(study: Study) -> Section:
    """Return what a longer startup does, for each reading of the startup.

    Args:
        study: The outcomes.
    """
    rows = []
    for mode in study.startup_modes:
        outcomes = study.of(mode)
        saved = savings(outcomes)
        longest_s = max(outcome.case.length_s for outcome in outcomes)
        for startup_s in LEVELS["startup_s"]:
            here = [each for each in outcomes if each.case.startup_s == startup_s]
            if not here:
                continue
            grams = [
                [each.carbon_g for each in here if each.case.strategy == strategy]
                for strategy in ("uninterrupted", "suspend")
            ]
            starts = [each.starts for each in here if each.case.strategy == "suspend"]
            rows.append(
                [
                    mode,
                    f"{int(startup_s) // 60} min",
                    *(f"{np.mean(each):.1f} g" if each else MISSING for each in grams),
                    f"{np.mean(starts):.2f}" if starts else MISSING,
                    _percent(_mean(saved, startup_s=int(startup_s))),
                    _percent(_mean(saved, startup_s=int(startup_s), length_s=longest_s)),
                ]
            )
    return Section(
        heading="What a longer startup does",
        text="Means over all other factors; the last column is over the longest jobs alone.",
        header=(
            "reading",
            "startup",
            "uninterrupted",
            "suspend",
            "starts",
            "saving",
            "saving, longest",
        ),
        rows=rows,
    )


def anova_table(study: Study, about: str) -> Section:
    """Return which factor explains how much, for each reading of the startup side by side.

    Args:
        study: The outcomes.
        about: `saving`, or `emissions` of suspend & resume (their logarithm).
    """
    found = {mode: effects(study, mode, about) for mode in study.startup_modes}
    found = {mode: each for mode, each in found.items() if each}
    heading = f"What explains the {about}"
    if not found:
        return Section(heading=heading, text="Needs more jobs than were selected.")
    names = [effect.name for effect in next(iter(found.values()))]
    rows = []
    for place, name in enumerate(names):
        row = [name, str(next(iter(found.values()))[place].freedom)]
        for each in found.values():
            effect = each[place]
            row += [
                f"{effect.squares:.5f}",
                _number(effect.f),
                _p(effect.p),
                _percent(effect.share),
            ]
        rows.append(row)
    header = ["factor", "df"]
    for mode in found:
        header += [f"{mode}: SS", "F", "p", "η²"]
    what = {
        "saving": "the saving of each job",
        "emissions": "the logarithm of what each suspended job emits",
    }[about]
    text = (
        f"Analysis of variance of {what}: main effects, and wait × length where both vary. Nothing "
        "here is random: the residual is what combinations of the other factors do, and p only "
        f"says how a factor stands out from that. {startup_verdict(found)}"
    )
    return Section(heading=heading, text=text, header=header, rows=rows)


def effects(study: Study, mode: str, about: str) -> list[Effect]:
    """Return the analysis of variance for one reading of the startup; empty with too few jobs.

    Args:
        study: The outcomes.
        mode: `carved` or `added`.
        about: `saving` or `emissions`.
    """
    outcomes = study.of(mode)
    if about == "saving":
        values = savings(outcomes)
    else:
        values = {
            each.case: math.log(each.carbon_g)
            for each in outcomes
            if each.case.strategy == "suspend" and each.carbon_g > 0
        }
    if len(values) < 2:
        return []
    factors = {
        name: [getattr(case, column) for case in values] for name, column in _FACTORS.items()
    }
    return anova(list(values.values()), factors, interactions=_INTERACTIONS)


def startup_verdict(found: Mapping[str, Sequence[Effect]]) -> str:
    """Say in words whether the length of the startup has an effect, for each reading of it.

    Args:
        found: The analysis of variance by reading.
    """
    said = []
    for mode, each in found.items():
        effect = next((effect for effect in each if effect.name == "startup"), None)
        if effect is None or effect.p is None:
            continue
        seen = "an effect" if effect.p < _SEEN else "no effect to be seen"
        said.append(
            f"{_MODE_WORDS[mode]} it explains {_percent(effect.share)} of the variance "
            f"(F {_number(effect.f)}, p {_p(effect.p)}: {seen})"
        )
    return f"Length of the startup: {'; '.join(said)}." if said else ""


def _mean(saved: Mapping[Case, float], **levels: int) -> float | None:
    """Return the mean over the jobs at certain levels of some factors."""
    values = [
        value
        for case, value in saved.items()
        if all(getattr(case, name) == level for name, level in levels.items())
    ]
    return float(np.mean(values)) if values else None


def _hours(seconds: int) -> str:
    return f"{seconds // 3600} h"


def _percent(share: float | None) -> str:
    # Adding 0 turns a rounded −0 into 0.
    return MISSING if share is None else f"{round(100 * share, 2) + 0.0:.2f} %"


def _number(value: float | None) -> str:
    return MISSING if value is None else f"{value:.2f}" if value < 1e4 else f"{value:.0f}"


def _p(value: float | None) -> str:
    if value is None:
        return MISSING
    return "<1e-12" if value < 1e-12 else f"{value:.2g}"
