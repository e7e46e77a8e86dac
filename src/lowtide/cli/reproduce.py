"""`lowtide reproduce`: published evaluations, run again."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from lowtide.cli.options import AsJson, Parsable
from lowtide.cli.output import print_json, print_parsable, print_table

if TYPE_CHECKING:
    from lowtide.experiments.thesis import Outcome
    from lowtide.signal import Signal

STUDIES = ("thesis",)

# Where things lie in a folder of the real data.
_SIGNAL = Path("carbon", "DE-july2024.csv")
_PUBLISHED = Path("goldens", "thesis", "evaluation_jobs_to_8h.csv")
_SYNTHETIC = "windy"


def reproduce(
    study: Annotated[str, typer.Argument(help="Which evaluation: thesis.")],
    data: Annotated[
        Path | None,
        typer.Option(help="Folder with the real data. [default: LOWTIDE_DATA, if that is set]"),
    ] = None,
    signal: Annotated[
        Path | None,
        typer.Option(help="File with carbon intensity, instead of the one in the data folder."),
    ] = None,
    startup: Annotated[
        str,
        typer.Option(
            help="How the startup is read: carved out of the job's length as published, added to "
            "it as it should be, or both."
        ),
    ] = "both",
    only: Annotated[
        str | None,
        typer.Option(
            help="Which jobs, e.g. length=16h,wait=24h. A key may be given again. Keys: strategy, "
            "power, phases, startup, startup_w, wait, length, startup_mode.",
            metavar="KEY=VALUE,...",
        ),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="Folder for report, figures and results.csv.")
    ] = None,
    as_json: AsJson = False,
    parsable: Parsable = False,
) -> None:
    """Run a published evaluation again, planned to the optimum.

    thesis: 2,400 jobs with phases and startups on the German grid of July 2024, uninterrupted or
    suspended and resumed; published totals beside what they truly are and what is possible.
    """
    from lowtide.errors import InvalidInput, UnknownName
    from lowtide.experiments.thesis import STARTUP_MODES, evaluate, make_cases
    from lowtide.experiments.thesis_published import read_published
    from lowtide.experiments.thesis_report import COLUMNS, columns, write_study
    from lowtide.experiments.thesis_tables import Study, tables

    if study not in STUDIES:
        raise UnknownName("evaluation", study, STUDIES)
    if startup not in (*STARTUP_MODES, "both"):
        raise InvalidInput(f"--startup is carved, added or both, not {startup!r}")
    modes = STARTUP_MODES if startup == "both" else (startup,)
    cases = make_cases(startup_modes=modes, only=only)
    folder = _data_folder(data)
    curve, note = _load_signal(signal, folder, named=data is not None)
    totals = folder / _PUBLISHED if folder is not None else None
    result = Study(
        outcomes=tuple(_with_progress(evaluate(curve, cases), total=len(cases))),
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


def _data_folder(data: Path | None) -> Path | None:
    import os

    said = os.environ.get("LOWTIDE_DATA")
    return data if data is not None else Path(said) if said else None


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


def _with_progress(outcomes: Iterable[Outcome], *, total: int) -> Iterator[Outcome]:
    import sys

    from rich.console import Console
    from rich.progress import track

    return iter(
        track(
            outcomes,
            total=total,
            description="planning",
            console=Console(stderr=True),
            transient=True,
            disable=not sys.stderr.isatty(),
        )
    )
