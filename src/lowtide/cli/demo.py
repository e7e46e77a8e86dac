"""`lowtide demo`: a day of training on a synthetic week, five ways."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from lowtide.cli.options import AsJson, Parsable, Seed
from lowtide.cli.output import print_json, print_parsable, print_table, say


def demo(
    grid: Annotated[
        str, typer.Option(help="Synthetic grid: sunny, windy, nuclear, coal.")
    ] = "windy",
    seed: Seed = 4,
    out: Annotated[Path, typer.Option(help="Folder for the report and its figures.")] = Path(
        "lowtide-demo"
    ),
    as_json: AsJson = False,
    parsable: Parsable = False,
) -> None:
    """Plan a measured training job five ways and write a report.

    The grid is a synthetic week. The report is one HTML file, with figures beside it.
    """
    from lowtide.cli.documents import PLAN_COLUMNS, comparison_document, plan_columns
    from lowtide.studies.comparison import ABOUT, run_demo

    result = run_demo(grid, seed=seed)
    report = out / "report.html"
    result.write_report(report, title="A day of training, five ways", about=ABOUT)
    images = result.write_images(out)
    if as_json:
        print_json(
            {
                **comparison_document(result),
                "report": str(report.resolve()),
                "figures": [str(image.resolve()) for image in images],
            }
        )
        return
    if parsable:
        print_parsable(PLAN_COLUMNS, [plan_columns(each) for each in result.plans])
        return
    say(result.note)
    print()
    print_table(result.header, result.rows())
    print()
    say("Policies decide as published; repeated startups and lost work are paid for.")
    print(f"report:  {report.resolve()}")
    print(f"figures: {out.resolve()}/*.png, *.svg")
