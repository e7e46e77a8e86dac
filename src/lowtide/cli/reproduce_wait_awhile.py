"""`lowtide reproduce wait-awhile`: shifting nightly and training jobs on the grids of 2020."""

from __future__ import annotations

from pathlib import Path

from lowtide.cli.reproduce_output import Findings, hand_over, require_folder, with_progress

# Where things lie in a folder of the real data.
_CURVE = "carbon-raw/wait-awhile_{zone}_ci.csv"
_GOLDENS = Path("goldens", "wait-awhile")


def reproduce_wait_awhile(
    *, data: Path | None, zone: str | None, out: Path | None, as_json: bool, parsable: bool
) -> None:
    """Run both scenarios, by the original's rules and with its errors fixed.

    Args:
        data: Folder with the real data.
        zone: Which zone; None for all.
        out: Folder for report and figures.
        as_json: Whether to print JSON.
        parsable: Whether to print columns.
    """
    from lowtide.errors import UnknownName
    from lowtide.experiments import lets_wait_awhile_report as report
    from lowtide.experiments.lets_wait_awhile import (
        REPETITIONS,
        ZONES,
        read_curve,
        read_training_jobs,
    )

    if zone is not None and zone not in ZONES:
        raise UnknownName("zone", zone, ZONES)
    folder = require_folder(data, "wait-awhile")
    curves = [
        read_curve(folder / _CURVE.format(zone=each), each)
        for each in (ZONES if zone is None else (zone,))
    ]
    jobs = read_training_jobs(folder / _GOLDENS / "ml_jobs.csv")
    parts = with_progress(
        report.evaluate(curves, jobs), total=len(curves) * len(report.RULES), doing="simulating"
    )
    study = report.Study(
        parts=tuple(parts), published=report.read_published(folder / _GOLDENS / "published.json")
    )
    note = (
        f"Half-hour slots of 2020 in {', '.join(study.curves)}; {jobs.length.size} training jobs "
        "and a nightly one. Where a file has quarter-hours, all of them or from some day on, they "
        "are brought to half-hours. Forecast errors are seeded, and averaged over "
        f"{REPETITIONS} repetitions."
    )
    findings = Findings(
        title=report.TITLE,
        note=note,
        documents=study.documents,
        header=report.COLUMNS,
        rows=lambda: report.columns(study),
        sections=lambda: report.tables(study),
        charts=lambda: report.charts(study),
    )
    hand_over(findings, out=out, as_json=as_json, parsable=parsable)
