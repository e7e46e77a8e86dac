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
Gaps = Annotated[
    str, typer.Option(help="What to do where the file has gaps: refuse, hold or interpolate.")
]
Zone = Annotated[
    str | None,
    typer.Option("--tz", help="Time zone of stamps in the file that name none, e.g. Europe/Paris."),
]
Unit = Annotated[
    str | None, typer.Option(help="Unit of the values where the file does not say: EUR/MWh, ...")
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
    str,
    typer.Option(help="When it may start: now, or a time such as 2024-07-01T06:00Z."),
]
Deadline = Annotated[
    str, typer.Option(help="When it must be done: a time, or +24h counted from the arrival.")
]
