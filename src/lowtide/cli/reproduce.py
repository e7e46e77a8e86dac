"""`lowtide reproduce thesis|gaia|wait-awhile`: published evaluations, run again."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from lowtide.cli.examples import epilog
from lowtide.cli.options import grouped
from lowtide.cli.output import (
    TABLE,
    Form,
    print_json,
    print_page_table,
    print_parsable,
    say,
    tracked,
)

if TYPE_CHECKING:
    from lowtide.reproductions.findings import Findings

Item = TypeVar("Item")

reproduce = typer.Typer(
    name="reproduce",
    help="Run a published evaluation again, and check its numbers.",
    no_args_is_help=True,
    rich_markup_mode=None,
)

Data = Annotated[
    Path | None,
    typer.Option(help="Folder with the real data. [default: LOWTIDE_DATA, if that is set]"),
]
Out = Annotated[Path | None, typer.Option(help="Folder for report, figures and results.csv.")]


@reproduce.command(epilog=epilog("reproduce thesis"))
@grouped
def thesis(
    data: Data = None,
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
    out: Out = None,
    form: Form = TABLE,
) -> None:
    """Suspend and resume 2,400 jobs: Germany, July 2024.

    The jobs have phases and startups, and run uninterrupted or are suspended and resumed.
    Published totals stand beside what they truly are and what is possible.
    """
    from lowtide.reproductions.thesis_report import reproduce_thesis

    findings = reproduce_thesis(data, signal=signal, startup=startup, only=only, progress=tracked)
    _hand_over(findings, out=out, form=form)


@reproduce.command(epilog=epilog("reproduce gaia"))
@grouped
def gaia(
    data: Data = None,
    zone: Annotated[str, typer.Option(help="Which carbon intensity.")] = "US-CAL-CISO",
    start_row: Annotated[
        int,
        typer.Option(help="The row of its file, counted from 0, at which the first job arrives."),
    ] = 7000,
    out: Out = None,
    form: Form = TABLE,
) -> None:
    """Start 1,000 jobs by 17 policies and kinds of machines.

    By the original's rules, and with its errors fixed one after the other.
    """
    from lowtide.reproductions.gaia_report import reproduce_gaia

    findings = reproduce_gaia(data, zone=zone, start_row=start_row, progress=tracked)
    _hand_over(findings, out=out, form=form)


@reproduce.command(name="wait-awhile", epilog=epilog("reproduce wait-awhile"))
@grouped
def wait_awhile(
    data: Data = None,
    zone: Annotated[
        str | None, typer.Option(help="Which grid: ger, gb or fr.  [default: all]")
    ] = None,
    out: Out = None,
    form: Form = TABLE,
) -> None:
    """Shift nightly and training jobs on the grids of 2020.

    By the original's rules, and with one error fixed after the other.
    """
    from lowtide.reproductions.wait_awhile_report import reproduce_wait_awhile

    findings = reproduce_wait_awhile(data, zone=zone, progress=tracked)
    _hand_over(findings, out=out, form=form)


def _hand_over(findings: Findings, *, out: Path | None, form: Form) -> None:
    """Print what an evaluation found, and write it where a folder is named."""
    written = [] if out is None else findings.write(out)
    if not form.for_people:
        if findings.synthetic:
            typer.echo(findings.note, err=True)
        if form.as_json:
            print_json(findings.documents())
        else:
            print_parsable(findings.header, findings.rows())
        return
    say(findings.note)
    for section in findings.sections():
        print()
        print(f"{section.question}.")
        say(section.answer)
        for table in section.tables:
            print()
            print_page_table(table)
    for path in written:
        print(f"written: {path}")
