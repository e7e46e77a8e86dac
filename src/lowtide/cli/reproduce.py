"""`lowtide reproduce`: published evaluations, run again."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from lowtide.cli.options import AsJson, Parsable

# The options that each study takes beside those of all.
STUDIES = {
    "thesis": ("--signal", "--startup", "--only"),
    "gaia": ("--zone", "--start-row"),
    "wait-awhile": ("--zone",),
}


def reproduce(
    study: Annotated[str, typer.Argument(help="Which evaluation: thesis, gaia or wait-awhile.")],
    data: Annotated[
        Path | None,
        typer.Option(help="Folder with the real data. [default: LOWTIDE_DATA, if that is set]"),
    ] = None,
    signal: Annotated[
        Path | None,
        typer.Option(
            help="thesis: file with carbon intensity, instead of the one in the data folder."
        ),
    ] = None,
    startup: Annotated[
        str,
        typer.Option(
            help="thesis: how the startup is read: carved out of the job's length as published, "
            "added to it as it should be, or both."
        ),
    ] = "both",
    only: Annotated[
        str | None,
        typer.Option(
            help="thesis: which jobs, e.g. length=16h,wait=24h. A key may be given again. Keys: "
            "strategy, power, phases, startup, startup_w, wait, length, startup_mode.",
            metavar="KEY=VALUE,...",
        ),
    ] = None,
    zone: Annotated[
        str | None,
        typer.Option(
            help="gaia: which carbon intensity, by default US-CAL-CISO. wait-awhile: ger, gb or "
            "fr, by default all."
        ),
    ] = None,
    start_row: Annotated[
        int | None,
        typer.Option(
            help="gaia: the row of its file, counted from 0, at which the first job arrives. "
            "[default: 7000]"
        ),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="Folder for report, figures and results.csv.")
    ] = None,
    as_json: AsJson = False,
    parsable: Parsable = False,
) -> None:
    """Run a published evaluation again, and check its numbers.

    thesis: 2,400 jobs with phases and startups on the German grid of July 2024, uninterrupted or
    suspended and resumed; published totals beside what they truly are and what is possible.

    gaia: 1,000 jobs under 17 start policies and kinds of machines, by the original's rules and with
    its errors fixed.

    wait-awhile: nightly and training jobs shifted on the grids of 2020, by the original's rules and
    with one error fixed after the other.
    """
    from lowtide.errors import InvalidInput, UnknownName

    if study not in STUDIES:
        raise UnknownName("evaluation", study, STUDIES)
    given = {
        "--signal": signal is not None,
        "--startup": startup != "both",
        "--only": only is not None,
        "--zone": zone is not None,
        "--start-row": start_row is not None,
    }
    for option, is_given in given.items():
        if is_given and option not in STUDIES[study]:
            known = " and ".join(name for name, options in STUDIES.items() if option in options)
            raise InvalidInput(f"{option} belongs to {known}, not to {study}: leave it out")
    if study == "gaia":
        from lowtide.cli.reproduce_gaia import reproduce_gaia

        reproduce_gaia(
            data=data, zone=zone, start_row=start_row, out=out, as_json=as_json, parsable=parsable
        )
    elif study == "wait-awhile":
        from lowtide.cli.reproduce_wait_awhile import reproduce_wait_awhile

        reproduce_wait_awhile(data=data, zone=zone, out=out, as_json=as_json, parsable=parsable)
    else:
        from lowtide.cli.reproduce_thesis import reproduce_thesis

        reproduce_thesis(
            data=data,
            signal=signal,
            startup=startup,
            only=only,
            out=out,
            as_json=as_json,
            parsable=parsable,
        )
