"""The evaluation that is run again, on paper: savings, published totals, what explains them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from lowtide import files
from lowtide.errors import InvalidInput
from lowtide.formats import read_signal
from lowtide.grids import synthetic_grid
from lowtide.page.page import Section
from lowtide.reproductions.findings import (
    Findings,
    Progress,
    chart_section,
    table_section,
)
from lowtide.reproductions.thesis import (
    LEVELS,
    STARTUP_MODES,
    Case,
    Published,
    ThesisStudy,
    choose,
    effects,
    evaluate,
    judge,
    make_cases,
    read_totals,
    savings,
)
from lowtide.signal import Signal
from lowtide.studies.statistics import Effect
from lowtide.units import MISSING, format_percent

if TYPE_CHECKING:
    from lowtide.page.looks import Chart, alt

TITLE = "2,400 jobs: published, true and optimal"
COLUMNS = (
    *("strategy", "power", "phases", "startup_s", "startup_w", "wait_h", "length_s"),
    *("startup_mode", "carbon_g", "starts", "free_start_g", "published_g", "true_g"),
)

_percent = partial(format_percent, digits=2)

_ABOUT = {
    "schedules": (
        "Schedules over the curve",
        "The jobs that suspending saves most, with startups of every length. The dashed line is "
        "the latest deadline. Suspended time is pale.",
    ),
    "savings": (
        "What suspend & resume saves",
        "Mean saving of suspend & resume over the best uninterrupted start, by the length of jobs "
        "and how long they may wait.",
    ),
    "published": (
        "Published and true totals against the optimum",
        "A point per suspended job whose published total or schedule differs from the optimum. "
        "Below 0 % lies what no schedule can reach.",
    ),
}

# Where things lie in a folder of the real data, and what stands in where there is none.
_SIGNAL = Path("carbon", "DE-july2024.csv")
_PUBLISHED = Path("goldens", "thesis", "evaluation_jobs_to_8h.csv")
_SYNTHETIC = "windy"

_MODE_WORDS = {"carved": "carved out of the length", "added": "added to the length"}
# Below this probability a term is said to have an effect.
_SEEN = 0.05
_WIDTH = 420
_TITLES = {
    "carved": "Saving of suspend & resume, the startup carved out of the length (as published)",
    "added": "Saving of suspend & resume, the startup added to the length",
}
# Differences below this share are the six decimals that totals were published with.
_SAME = 1e-6
_TICKS = (-0.05, -0.02, 0.0, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0)


def reproduce_thesis(
    data: Path | None,
    *,
    signal: Path | None,
    startup: str,
    only: str | None,
    progress: Progress,
) -> Findings:
    """Plan the evaluation's jobs to the optimum, and set published totals beside them.

    Args:
        signal: File with carbon intensity, instead of the one in that folder.
        startup: How the startup is read: a reading, or `both`.
    """
    if startup not in (*STARTUP_MODES, "both"):
        raise InvalidInput(f"--startup is carved, added or both, not {startup!r}")
    modes = STARTUP_MODES if startup == "both" else (startup,)
    cases = make_cases(startup_modes=modes, only=only)
    folder = files.data_folder(data)
    curve, note = _load_signal(signal, folder, named=data is not None)
    totals = folder / _PUBLISHED if folder is not None else None
    study = ThesisStudy(
        outcomes=tuple(progress(evaluate(curve, cases), total=len(cases), doing="planning")),
        published=read_totals(totals) if totals is not None and totals.is_file() else None,
    )
    return findings(study, curve, note=note)


def findings(study: ThesisStudy, signal: Signal, *, note: str) -> Findings:
    """Return what was found, in every form.

    Args:
        note: What a reader must know of the signal.
    """
    return Findings(
        title=TITLE,
        note=note,
        documents=lambda: [outcome.document() for outcome in study.outcomes],
        header=COLUMNS,
        rows=lambda: columns(study),
        sections=lambda: tables(study),
        figures=lambda: figures(study, signal),
        synthetic=signal.synthetic,
        footer="Times are UTC.",
    )


def _load_signal(file: Path | None, folder: Path | None, *, named: bool) -> tuple[Signal, str]:
    """Return the signal, and what a reader must know of it."""
    if file is None and folder is not None and (named or (folder / _SIGNAL).is_file()):
        file = folder / _SIGNAL
    if file is None:
        curve = synthetic_grid(_SYNTHETIC, start="2024-07-01T00:00Z", days=5, seed=0).average
        return curve, (
            f"SYNTHETIC GRID ({_SYNTHETIC}): no real signal was found, so published numbers "
            "cannot be compared. Name the real data by --data DIR or --signal FILE."
        )
    # The first days decide alone; what is missing months later is no reason to refuse the file.
    curve = read_signal(file, gaps="hold")
    filled = f"; {curve.filled} of its {len(curve)} steps were missing and held" * bool(
        curve.filled
    )
    label = curve.label[:1].upper() + curve.label[1:]
    return curve, f"{label}, from {file.name}{filled}. Every job arrives at its first moment."


def tables(study: ThesisStudy) -> list[Section]:
    """Return all tables."""
    return [
        savings_table(study),
        published_table(study),
        startup_table(study),
        *(anova_table(study, about) for about in ("saving", "emissions")),
    ]


def savings_table(study: ThesisStudy) -> Section:
    """Return the mean saving by length and wait, for each reading of the startup."""
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
    return table_section(
        "What suspend & resume saves, by length and wait",
        text,
        ("reading", "length", *(f"{wait_h} h" for wait_h in waits)),
        rows,
    )


def _hour_grid(study: ThesisStudy) -> str:
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


def published_table(study: ThesisStudy) -> Section:
    """Return how published totals compare with their true value and the optimum, by length."""
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
    return table_section(
        "Suspend & resume as published, as it truly was, and at its optimum",
        _published_text(study, known),
        (
            "length",
            "published",
            "no schedule",
            "below optimum",
            "misstated",
            "not optimal",
            "worst excess",
        ),
        rows if carved else [],
    )


def _published_text(study: ThesisStudy, known: Mapping[Case, Published]) -> str:
    if study.published is None:
        return f"Published totals were not found: {MISSING}. Name their folder by --data."
    if not known:
        return f"The published totals belong to other jobs or another signal: {MISSING}."
    return (
        "Below optimum: the published total is lower than any schedule can be. Misstated: it is "
        "not what its own schedule emits. Not optimal, worst excess: what the schedule truly "
        "emits, against the optimum. Totals without any schedule count nowhere else."
    )


def startup_table(study: ThesisStudy) -> Section:
    """Return what a longer startup does, for each reading of the startup."""
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
    return table_section(
        "What a longer startup does",
        "Means over all other factors; the last column is over the longest jobs alone.",
        ("reading", "startup", "uninterrupted", "suspend", "starts", "saving", "saving, longest"),
        rows,
    )


def anova_table(study: ThesisStudy, about: str) -> Section:
    """Return which factor explains how much, for each reading of the startup side by side.

    Args:
        about: `saving`, or `emissions` of suspend & resume (their logarithm).
    """
    found = {mode: effects(study, mode, about) for mode in study.startup_modes}
    found = {mode: each for mode, each in found.items() if each}
    heading = f"What explains the {about}"
    if not found:
        return table_section(heading, "Needs more jobs than were selected.")
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
    return table_section(heading, text, header=header, rows=rows)


def startup_verdict(found: Mapping[str, Sequence[Effect]]) -> str:
    """Say in words whether the length of the startup has an effect, for each reading of it."""
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


def columns(study: ThesisStudy) -> list[list[str]]:
    """Return a row per job, as `COLUMNS` names them; what is missing is `---`."""
    known = study.comparable
    rows = []
    for outcome in study.outcomes:
        total = known.get(outcome.case)
        grams = (
            outcome.free_start_g,
            None if total is None else total.published_g,
            None if total is None else total.true_g,
        )
        rows.append(
            [
                *(_text(value) for value in outcome.document().values()),
                *(MISSING if each is None else _text(each) for each in grams),
            ]
        )
    return rows


def figures(study: ThesisStudy, signal: Signal) -> list[Section]:
    """Return the figures that these outcomes allow."""
    from lowtide.page.looks import schedules_chart

    charts: dict[str, Chart] = {}
    chosen = choose(study)
    if chosen:
        schedules = {
            f"{each.case.strategy}, startup {each.case.startup_s // 60} min": each.case.schedule(
                signal
            )
            for each in chosen
        }
        deadline = max(each.case.job(signal.start).deadline for each in chosen)
        window = signal.window(signal.start, deadline)
        charts["schedules"] = schedules_chart(window, schedules, deadline=deadline)
    saved = {mode: savings(study.of(mode)) for mode in study.startup_modes}
    if any(saved.values()):
        charts["savings"] = savings_chart(saved, synthetic=signal.synthetic)
    if study.comparable:
        charts["published"] = published_chart(study)
    return [chart_section(name, chart, *_ABOUT[name]) for name, chart in charts.items()]


def savings_chart(
    saved: Mapping[str, Mapping[Case, float]], *, synthetic: bool
) -> alt.VConcatChart:
    """Draw the mean saving by length and wait as a map, one for each reading of the startup.

    Args:
        saved: What suspending saves, by reading of the startup and by job.
    """
    import altair as alt

    means = {mode: _means(each) for mode, each in saved.items() if each}
    most = max(row["saving"] for rows in means.values() for row in rows)
    made_up = " (synthetic grid)" if synthetic else ""
    maps = [_map(_TITLES[mode] + made_up, rows, most) for mode, rows in means.items()]
    return alt.vconcat(*maps, spacing=16)


def _means(saved: Mapping[Case, float]) -> list[dict[str, Any]]:
    cells: dict[tuple[int, int], list[float]] = {}
    for case, saving in saved.items():
        cells.setdefault((case.length_s // 3600, case.wait_h), []).append(saving)
    return [
        {"length": length_h, "wait": wait_h, "saving": max(float(np.mean(values)), 0.0)}
        for (length_h, wait_h), values in sorted(cells.items())
    ]


def _map(title: str, rows: list[dict[str, Any]], most: float) -> alt.LayerChart:
    from lowtide.page.looks import alt, inline

    base = alt.Chart(inline(rows), width=_WIDTH, height=180, title=title).encode(
        x=alt.X("wait:O", title="may wait, h", axis=alt.Axis(labelAngle=0)),
        y=alt.Y("length:O", title="job length, h"),
    )
    cells = base.mark_rect().encode(
        color=alt.Color(
            "saving:Q",
            title="saving",
            scale=alt.Scale(scheme="tealblues", domain=[0.0, max(most, _SAME)]),
            legend=alt.Legend(format=".0%"),
        )
    )
    dark = f"datum.saving > {0.6 * most}"
    words = base.mark_text().encode(
        text=alt.Text("saving:Q", format=".1%"),
        color=alt.condition(dark, alt.value("white"), alt.value("black")),
    )
    return alt.LayerChart(layer=[cells, words])


def published_chart(study: ThesisStudy) -> alt.LayerChart:
    """Draw how far published and true totals of suspended jobs lie from the optimum."""
    from lowtide.page.looks import alt, inline, two_colours, zero_line

    known, above = study.comparable, "above the optimum"
    rows = []
    for outcome in study.of("carved"):
        total = known.get(outcome.case)
        if total is None or not total.stretches or outcome.case.strategy != "suspend":
            continue
        for what, grams in (("published", total.published_g), ("true", total.true_g)):
            if not math.isclose(grams, outcome.carbon_g, rel_tol=_SAME):
                excess = grams / outcome.carbon_g - 1
                rows.append({"optimum": outcome.carbon_g, "excess": excess, "total": what})
    points = (
        alt.Chart(
            inline(rows),
            width=_WIDTH,
            height=300,
            title="Published and true totals of suspended jobs against the optimum",
        )
        .mark_point(filled=True, opacity=0.75, size=45)
        .encode(
            x=alt.X("optimum:Q", title="optimum, g of CO2e", scale=alt.Scale(zero=False)),
            y=alt.Y(
                "excess:Q",
                title=above,
                scale=alt.Scale(type="symlog", constant=0.02),
                axis=alt.Axis(format="+.0%", values=list(_TICKS)),
            ),
            color=two_colours("total", ["published", "true"]),
            shape=alt.Shape(
                "total:N", title="total", scale=alt.Scale(domain=["published", "true"])
            ),
        )
    )
    return alt.LayerChart(layer=[points, zero_line(alt.Y, above)])


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


def _number(value: float | None) -> str:
    return MISSING if value is None else f"{value:.2f}" if value < 1e4 else f"{value:.0f}"


def _p(value: float | None) -> str:
    if value is None:
        return MISSING
    return "<1e-12" if value < 1e-12 else f"{value:.2g}"


def _text(value: str | float) -> str:
    return value if isinstance(value, str) else f"{value:.12g}"
