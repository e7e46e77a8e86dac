"""Options that several verbs share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Parsable = Annotated[
    bool, typer.Option("-P", "--parsable", help="Print columns separated by '|', as sacct does.")
]
SignalFile = Annotated[
    Path | None,
    typer.Option("--signal", help="File with carbon intensity or price; its format is recognised."),
]
GridName = Annotated[
    str | None,
    typer.Option("--grid", help="Synthetic grid instead of a file: sunny, windy, nuclear or coal."),
]
Seed = Annotated[int, typer.Option(help="Which weather the synthetic grid has.")]
How = Annotated[
    list[str] | None,
    typer.Option(
        "--how",
        help="How to read the file, KEY=VALUE, may be given again: gaps=hold or interpolate, "
        "tz=Europe/Paris, unit=EUR/MWh, column=NAME, zone=DE, kind=marginal, basis=direct, "
        "format=NAME.",
        metavar="KEY=VALUE",
    ),
]
Time = Annotated[
    str | None,
    typer.Option("-t", "--time", help="How long the job works, as for sbatch: 6:00:00, 1-12, 90."),
]
Power = Annotated[float | None, typer.Option(help="What the job draws, in watts.")]
Profile = Annotated[
    str | None,
    typer.Option(help="What the job draws over its phases: a .toml or .json file, or 'h200'."),
]
Arrival = Annotated[
    str | None,
    typer.Option(
        help="When it may start: now, or a time such as 2024-07-01T06:00Z.  [default: now, or the "
        "first moment of a file that does not reach it]"
    ),
]
Deadline = Annotated[
    str, typer.Option(help="When it must be done: a time, or +24h counted from the arrival.")
]
