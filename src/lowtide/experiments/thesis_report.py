"""The evaluation that is run again, on paper: a report, its figures and a table of every job."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

from lowtide import files
from lowtide.experiments.report import Section, write_report
from lowtide.experiments.thesis import Outcome, savings
from lowtide.experiments.thesis_tables import Study
from lowtide.signal import Signal
from lowtide.units import MISSING

if TYPE_CHECKING:
    from lowtide.experiments.figures import Chart

TITLE = "2,400 jobs: published, true and optimal"
COLUMNS = (
    "strategy",
    "power",
    "phases",
    "startup_s",
    "startup_w",
    "wait_h",
    "length_s",
    "startup_mode",
    "carbon_g",
    "starts",
    "free_start_g",
    "published_g",
    "true_g",
)

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


def columns(study: Study) -> list[list[str]]:
    """Return a row per job, as `COLUMNS` names them; what is missing is `---`.

    Args:
        study: The outcomes.
    """
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


def write_study(
    folder: Path | str,
    study: Study,
    signal: Signal,
    *,
    sections: Sequence[Section],
    note: str,
) -> list[Path]:
    """Write report.html, the figures as PNG and SVG, and results.csv; return what was written.

    Args:
        folder: Where to.
        study: The outcomes.
        signal: What they were planned on.
        sections: The tables.
        note: What a reader must know of the signal.
    """
    from lowtide.experiments.figures import IMAGE_SUFFIXES, save_image

    folder = Path(folder)
    charts = make_charts(study, signal)
    written = [folder / "results.csv", folder / "report.html"]
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows([COLUMNS, *columns(study)])
    files.write_whole(written[0], text.getvalue())
    write_report(
        written[1],
        title=TITLE,
        note=note,
        sections=[*sections, *(_section(name, chart) for name, chart in charts.items())],
        footer=f"Made by lowtide {version('lowtide')}. Times are UTC.",
    )
    for name, chart in charts.items():
        for suffix in IMAGE_SUFFIXES:
            written.append(folder / f"{name}{suffix}")
            save_image(chart, written[-1])
    return written


def make_charts(study: Study, signal: Signal) -> dict[str, Chart]:
    """Return the figures that these outcomes allow, by the name of their files.

    Args:
        study: The outcomes.
        signal: What they were planned on.
    """
    from lowtide.experiments.figures import schedules_chart
    from lowtide.experiments.thesis_figures import published_chart, savings_chart

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
    return charts


def choose(study: Study) -> list[Outcome]:
    """Return the jobs whose schedules tell most: those like the one that suspending saves most.

    They differ in strategy and length of the startup alone.

    Args:
        study: The outcomes.
    """
    outcomes = study.of(study.startup_modes[0])
    saved = savings(outcomes)
    if not saved:
        return []
    best = max(saved, key=lambda case: saved[case])
    same = ("power", "phases", "startup_w", "wait_h", "length_s")
    return sorted(
        (
            each
            for each in outcomes
            if all(getattr(each.case, name) == getattr(best, name) for name in same)
        ),
        key=lambda each: (each.case.strategy == "suspend", each.case.startup_s),
    )


def _section(name: str, chart: Chart) -> Section:
    heading, text = _ABOUT[name]
    return Section(heading=heading, text=text, chart=chart)


def _text(value: str | float) -> str:
    return value if isinstance(value, str) else f"{value:.12g}"
