"""`lowtide reproduce thesis`: suspend & resume on the German grid of July 2024."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import typer

from lowtide.cli.output import print_json, print_parsable, print_table
from lowtide.cli.reproduce_output import data_folder, with_progress

if TYPE_CHECKING:
    from lowtide.signal import Signal

# Where things lie in a folder of the real data.
_SIGNAL = Path("carbon", "DE-july2024.csv")
_PUBLISHED = Path("goldens", "thesis", "evaluation_jobs_to_8h.csv")
_SYNTHETIC = "windy"


def reproduce_thesis(
    *,
    data: Path | None,
    signal: Path | None,
    startup: str,
    only: str | None,
    out: Path | None,
    as_json: bool,
    parsable: bool,
) -> None:
    """Plan the evaluation's jobs to the optimum, and set published totals beside them.

    Args:
        data: Folder with the real data.
        signal: File with carbon intensity, instead of the one in that folder.
        startup: How the startup is read.
        only: Which jobs.
        out: Folder for report and figures.
        as_json: Whether to print JSON.
        parsable: Whether to print columns.
    """
    from lowtide.errors import InvalidInput
    from lowtide.experiments.thesis import STARTUP_MODES, evaluate, make_cases
    from lowtide.experiments.thesis_published import read_published
    from lowtide.experiments.thesis_report import COLUMNS, columns, write_study
    from lowtide.experiments.thesis_tables import Study, tables

    if startup not in (*STARTUP_MODES, "both"):
        raise InvalidInput(f"--startup is carved, added or both, not {startup!r}")
    modes = STARTUP_MODES if startup == "both" else (startup,)
    cases = make_cases(startup_modes=modes, only=only)
    folder = data_folder(data)
    curve, note = _load_signal(signal, folder, named=data is not None)
    totals = folder / _PUBLISHED if folder is not None else None
    outcomes = with_progress(evaluate(curve, cases), total=len(cases), doing="planning")
    result = Study(
        outcomes=tuple(outcomes),
        published=read_published(totals) if totals is not None and totals.is_file() else None,
    )
    sections = tables(result) if out is not None or not (as_json or parsable) else []
    written = []
    if out is not None:
        written = write_study(out, result, curve, sections=sections, note=note)
    if as_json or parsable:
        if curve.synthetic:
            typer.echo(note, err=True)
        if as_json:
            print_json([outcome.document() for outcome in result.outcomes])
        else:
            print_parsable(COLUMNS, columns(result))
        return
    print(note)
    for section in sections:
        print()
        print(f"{section.heading}.")
        print(section.text)
        if section.rows:
            print()
            print_table(section.header, section.rows)
    for path in written:
        print(f"written: {path}")


def _load_signal(file: Path | None, folder: Path | None, *, named: bool) -> tuple[Signal, str]:
    """Return the signal, and what a reader must know of it."""
    from lowtide.formats import read_signal
    from lowtide.grids import synthetic_grid

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
