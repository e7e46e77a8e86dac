"""`lowtide report`: what a sweep found, as one page with figures."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any

import typer

from lowtide.cli.options import AsJson, Parsable
from lowtide.cli.output import print_json, print_parsable, print_table, progress_bar, say


def report(
    folder: Annotated[Path, typer.Argument(help="Folder that lowtide sweep wrote.", metavar="DIR")],
    out: Annotated[
        Path | None,
        typer.Option("-o", "--out", help="The page.  [default: report.html in the folder]"),
    ] = None,
    figures: Annotated[
        Path | None,
        typer.Option(
            help="Folder for the figures as SVG, PNG and CSV.  [default: figures in the folder]"
        ),
    ] = None,
    no_figures: Annotated[
        bool, typer.Option("--no-figures", help="Write the page alone, which has them all.")
    ] = False,
    baseline: Annotated[
        str | None,
        typer.Option(
            help="Policy of the study to tell savings against.  [default: that of the runs]",
            metavar="POLICY",
        ),
    ] = None,
    workers: Annotated[
        int,
        typer.Option("-j", "--jobs", min=1, help="How many processes simulate and draw."),
    ] = 1,
    as_json: AsJson = False,
    parsable: Parsable = False,
) -> None:
    """Write what a sweep found as a page, with every figure.

    Each question is answered in a sentence: which policy does best, what it costs in waiting,
    what the saving depends on. The page needs no network.
    """
    from lowtide.errors import InvalidInput
    from lowtide.studies.analysis import policy_numbers
    from lowtide.studies.policies import policies_table
    from lowtide.studies.report import write_study_report
    from lowtide.studies.study import read_study

    if no_figures and figures is not None:
        raise InvalidInput("--figures and --no-figures exclude each other: leave one out")
    study = read_study(folder, baseline=baseline)
    written = write_study_report(
        study, out, figures=figures, images=not no_figures, workers=workers, track=_track
    )
    if as_json:
        print_json(
            {
                "title": study.title,
                "grids": study.grids,
                "runs": len(study),
                "failed": study.failed.height,
                "answers": [
                    {"question": section.question, "answer": section.answer}
                    for section in written.sections
                ],
                "policies": policy_numbers(study),
                "report": str(written.path.resolve()),
                "figures": [str(path.resolve()) for path in written.figures],
            }
        )
        return
    if parsable:
        numbers = policy_numbers(study)
        rows = [[_text(value) for value in each.values()] for each in numbers]
        print_parsable(list(numbers[0]), rows)
        return
    # The page has them all; a terminal has room for these.
    carbon = "total_carbon_g" if study.has_nodes and not study.told_of else "carbon_g"
    table = policies_table(study, ("saving", carbon, "mean_wait_s"))
    failed = f", {study.failed.height} more failed" if study.failed.height else ""
    say(f"{study.title}: {len(study)} runs{failed}, {study.grids}.")
    print()
    print_table(table.header, table.rows)
    for section in written.sections:
        print()
        say(section.question)
        say(section.answer)
    print()
    print(f"report:  {written.path.resolve()}")
    if written.figures:
        print(f"figures: {written.figures[0].parent.resolve()}/*.svg, *.png, *.csv")


def _text(value: str | float | None) -> str:
    return "" if value is None else value if isinstance(value, str) else f"{value:.10g}"


def _track(items: Iterable[Any], what: str, total: int) -> Iterable[Any]:
    with progress_bar() as bar:
        yield from bar.track(items, total=total, description=what)
