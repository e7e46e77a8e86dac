"""`lowtide convert`: from one file format to another."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from lowtide.cli.options import AsJson, How, Parsable
from lowtide.cli.output import print_json, print_parsable


def convert(
    source: Annotated[Path, typer.Argument(help="File to read; its format is recognised.")],
    target: Annotated[
        Path,
        typer.Argument(
            help="File to write: .swf for jobs, .csv for a signal, .toml or .json for a profile."
        ),
    ],
    time_unit: Annotated[
        str | None, typer.Option(help="Unit of times in a plain job table: s, min or h.")
    ] = None,
    start: Annotated[
        str | None, typer.Option(help="When the first job of a trace shall arrive.")
    ] = None,
    how: How = None,
    as_json: AsJson = False,
    parsable: Parsable = False,
) -> None:
    """Convert a job trace, a signal or a power profile."""
    from lowtide.cli.inputs import read_how
    from lowtide.errors import InvalidInput
    from lowtide.formats import read_jobs, read_signal, write_jobs, write_signal
    from lowtide.profile import PowerProfile

    if target.suffix == ".swf":
        trace = read_jobs(source, time_unit=time_unit, start=start)
        write_jobs(trace, target)
        facts = {"wrote": str(target), "what": "job trace", "count": len(trace)}
    elif target.suffix == ".csv":
        signal = read_signal(source, **read_how(how))
        write_signal(signal, target)
        facts = {"wrote": str(target), "what": "signal", "count": len(signal)}
        facts["filled"] = signal.filled
    elif target.suffix in (".toml", ".json"):
        profile = PowerProfile.load(source)
        profile.dump(target)
        facts = {"wrote": str(target), "what": "power profile", "count": len(profile.work)}
    else:
        raise InvalidInput(
            f"cannot tell what {target.name!r} shall be: end it in .swf (jobs), .csv (a signal), "
            ".toml or .json (a power profile)"
        )
    if as_json:
        print_json(facts)
    elif parsable:
        print_parsable(list(facts), [[str(value) for value in facts.values()]])
    else:
        what = {"job trace": "jobs", "signal": "steps", "power profile": "work phases"}
        filled = f", {facts['filled']} filled" if facts.get("filled") else ""
        print(f"{facts['wrote']}: {facts['count']} {what[str(facts['what'])]}{filled}")
