"""`lowtide convert`: from one file format to another."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import typer

from lowtide.cli.options import How
from lowtide.cli.output import TABLE, Form, warn


def convert(
    source: Annotated[Path, typer.Argument(help="File to read; its format is recognised.")],
    target: Annotated[
        Path,
        typer.Argument(
            help="File to write: .swf, .csv or .parquet for jobs, .csv or .parquet for a signal, "
            ".toml or .json for a profile."
        ),
    ],
    time_unit: Annotated[
        str | None, typer.Option(help="Unit of times in a plain job table: s, min, h or ms.")
    ] = None,
    start: Annotated[
        str | None, typer.Option(help="When the first job of a trace shall arrive.")
    ] = None,
    how: How = None,
    form: Form = TABLE,
) -> None:
    """Convert a job trace, a signal or a power profile."""
    from lowtide.cli.inputs import read_how
    from lowtide.errors import InvalidInput
    from lowtide.formats import read_jobs, read_signal, write_jobs, write_signal
    from lowtide.formats import table as signal_table
    from lowtide.profile import PowerProfile

    facts: dict[str, str | int] = {"wrote": str(target)}
    table = target.suffix in (".csv", ".parquet")
    if target.suffix == ".swf" or (table and _holds_jobs(source, how)):
        said = read_how(how)
        layout = said.pop("format", None)
        _refuse(said, "a job trace")
        trace = read_jobs(source, format=layout, time_unit=time_unit, start=start)
        write_jobs(trace, target, format=target.suffix[1:])
        for note in trace.notes:
            warn(f"{source.name}: {note}")
        facts |= {"what": "job trace", "count": len(trace)}
    elif table:
        _refuse({"--time-unit": time_unit, "--start": start}, "a signal")
        signal = read_signal(source, **read_how(how))
        if target.suffix == ".parquet":
            _write_parquet(target, signal_table.render(signal))
        else:
            write_signal(signal, target)
        facts |= {"what": "signal", "count": len(signal), "filled": signal.filled}
    elif target.suffix in (".toml", ".json"):
        _refuse({"--time-unit": time_unit, "--start": start, "--how": how}, "a power profile")
        profile = PowerProfile.load(source)
        profile.dump(target)
        facts |= {"what": "power profile", "count": len(profile.work)}
    else:
        raise InvalidInput(
            f"cannot tell what {target.name!r} shall be: end it in .swf (jobs), .csv or "
            ".parquet (jobs or a signal), .toml or .json (a power profile)"
        )
    what = {"job trace": "jobs", "signal": "steps", "power profile": "work phases"}
    filled = f", {facts['filled']} filled" if facts.get("filled") else ""
    words = f"{facts['wrote']}: {facts['count']} {what[str(facts['what'])]}{filled}"
    form.print([facts], document=facts, show=lambda: print(words))


def _write_parquet(path: Path, text: str) -> None:
    """Write a table that is there as CSV as Parquet; its remarks become metadata."""
    import polars as pl

    from lowtide import files

    remarks = [line[2:].partition(": ") for line in text.splitlines() if line.startswith("# ")]
    frame = pl.read_csv(
        text.encode(), try_parse_dates=True, comment_prefix="#", infer_schema_length=None
    )
    files.write_table(path, frame, metadata={key: value for key, _, value in remarks})


def _holds_jobs(source: Path, how: list[str] | None) -> bool:
    """Return whether a file is a job trace: it says so, or looks like one and like no signal."""
    from lowtide.cli.inputs import read_how
    from lowtide.formats import jobs, signals
    from lowtide.formats.source import Source

    said = read_how(how).get("format")
    if said is not None:
        return said in jobs.FORMATS.names() and said not in signals.FORMATS.names()
    opened = Source.open(source)
    return any(jobs.FORMATS.load(name).recognises(opened) for name in jobs.FORMATS.names())


def _refuse(options: Mapping[str, object], what: str) -> None:
    """Refuse options that say nothing about what is converted."""
    from lowtide.errors import InvalidInput

    for option, given in options.items():
        if given is not None:
            raise InvalidInput(f"{option} says nothing about {what}: leave it out")
