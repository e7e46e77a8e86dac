"""`lowtide mark`: tell a recording what the program is doing, from a shell."""

from __future__ import annotations

from typing import Annotated

import typer

from lowtide.cli.options import AsJson, Parsable
from lowtide.cli.output import print_json, print_parsable


def mark(
    name: Annotated[str, typer.Argument(help="What begins now, such as epoch_1.")],
    checkpoint: Annotated[
        bool, typer.Option("--checkpoint", help="A later start can resume from here.")
    ] = False,
    as_json: AsJson = False,
    parsable: Parsable = False,
) -> None:
    """Mark a moment of a program that `lowtide measure` runs.

    Outside of one nothing is marked, so that scripts can keep their marks.
    """
    from lowtide.marks import mark as set_mark

    marked = set_mark(name, checkpoint=checkpoint)
    if as_json:
        print_json({"mark": name, "checkpoint": checkpoint, "marked": marked})
    elif parsable:
        print_parsable(("mark", "marked"), [[name, "yes" if marked else "no"]])
    else:
        print(f"marked {name}" if marked else f"nobody is recording: {name} was not marked")
