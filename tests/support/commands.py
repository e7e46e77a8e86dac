"""Run the command line in this process."""

from __future__ import annotations

import sys
from dataclasses import dataclass

import pytest

from lowtide.cli import main, whole


@dataclass(frozen=True)
class Answer:
    """What a command said and how it ended."""

    code: int
    out: str
    err: str


def all_verbs() -> list[str]:
    """What can follow `lowtide`, sorted; those of a group with its name before them."""
    groups = {
        "": whole(),
        **{
            f"{group.typer_instance.info.name} ": group.typer_instance
            for group in whole().registered_groups
        },
    }
    return sorted(
        prefix + (command.name or command.callback.__name__.replace("_", "-"))
        for prefix, group in groups.items()
        for command in group.registered_commands
    )


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> Answer:
    """Run `lowtide` with arguments, as the installed command does."""
    capsys.readouterr()
    before, sys.argv = sys.argv, ["lowtide", *arguments]
    try:
        main()
        code = 0
    except SystemExit as stop:
        code = int(stop.code or 0)
    finally:
        sys.argv = before
    said = capsys.readouterr()
    return Answer(code=code, out=said.out, err=said.err)
