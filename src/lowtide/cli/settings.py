"""Options that experiments share, those of the form KEY=VALUE among them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

Settings = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        help="Set a parameter, such as policy.name=exact or run.seed=3; may be given again. One "
        "that the file sweeps over is swept no more.",
        metavar="KEY=VALUE",
    ),
]
Data = Annotated[
    Path | None,
    typer.Option(
        help="Folder with the real data, carbon/ZONE.csv in it. [default: LOWTIDE_DATA, if that is "
        "set]"
    ),
]
RepeatSignal = Annotated[
    bool,
    typer.Option("--repeat-signal", help="Go on with the signal from its beginning where it ends."),
]
ExperimentFile = Annotated[Path, typer.Argument(help="The experiment, a TOML file.")]

# Jobs that runs do without, by the number of a run that counts them.
LEFT_OUT = {
    "left_out_never_ran": "of the trace that never ran",
    "left_out_oversized": "too large for the nodes",
}


def read_settings(said: list[str] | None, *, repeat_signal: bool = False) -> dict[str, Any]:
    """Return what `--set KEY=VALUE` says: a value as TOML has it, or else a text.

    Args:
        repeat_signal: Whether `--repeat-signal` was.

    >>> read_settings(["run.seed=3", "policy.name=exact", "policy.step_s='1h'"])
    {'run.seed': 3, 'policy.name': 'exact', 'policy.step_s': '1h'}
    """
    import tomllib

    settings: dict[str, Any] = {"run.repeat_signal": True} if repeat_signal else {}
    for key, value in _pairs(said, "--set", "policy.name=exact"):
        try:
            settings[key] = tomllib.loads(f"value = {value}")["value"]
        except tomllib.TOMLDecodeError:
            settings[key] = value
    return settings


def read_slurm(said: list[str] | None) -> dict[str, str]:
    """Return what `--slurm KEY=VALUE` says."""
    return dict(_pairs(said, "--slurm", "memory=4GB"))


def _pairs(said: list[str] | None, option: str, example: str) -> Iterator[tuple[str, str]]:
    from lowtide.errors import InvalidInput

    for each in said or []:
        key, equals, value = each.partition("=")
        if not key.strip() or not equals or not value.strip():
            raise InvalidInput(f"{option} takes KEY=VALUE, such as {example}, not {each!r}")
        yield key.strip(), value.strip()
