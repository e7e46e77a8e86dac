"""What stands in columns, and how verbs print it: as a table, for scripts, as JSON."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from typing import Annotated

import pytest
import typer
from typer.testing import CliRunner

from lowtide.certainty import marks_for
from lowtide.cli.options import grouped, placed
from lowtide.cli.output import TABLE, Column, Form, plain, print_rows

ROWS = (
    {"job": "1", "energy_j": 2.5e6, "known": True},
    {"job": "2", "energy_j": math.nan, "known": False},
)
COLUMNS = (
    Column("job", "job"),
    Column("energy_j", "energy", lambda joules: f"{joules / 3.6e6:.3f} kWh"),
    Column("known"),
    Column("", "twice", str, lambda row: 2 * int(row["job"])),
)


def test_rows_are_printed_in_every_form(capsys: pytest.CaptureFixture[str]) -> None:
    TABLE.print(ROWS, COLUMNS)
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert lines == [["job", "energy", "twice"], ["1", "0.694", "kWh", "2"], ["2", "---", "4"]]
    Form(parsable=True).print(ROWS, COLUMNS)
    assert capsys.readouterr().out == "job|energy_j|known\n1|2500000|yes\n2||no\n"
    Form(as_json=True).print(ROWS, COLUMNS)
    assert json.loads(capsys.readouterr().out)[1] == {"job": "2", "energy_j": None, "known": False}
    Form(as_json=True).print(ROWS, COLUMNS, document=lambda: {"jobs": 2})
    assert json.loads(capsys.readouterr().out) == {"jobs": 2}


def test_digits_for_scripts() -> None:
    assert (plain(1 / 3), plain(1 / 3, 15), plain(0.1, None)) == (
        "0.3333333333",
        "0.333333333333333",
        "0.1",
    )


def test_a_table_says_what_its_marks_mean(capsys: pytest.CaptureFixture[str]) -> None:
    sure = Column("g", "CO2e", "{} g".format, marks=lambda row: marks_for(partial=row["lacks"]))
    print_rows([Column("job"), sure], [{"job": "~/a", "g": 4, "lacks": False}])
    assert capsys.readouterr().out.split() == ["CO2e", "4", "g"]
    rows = [{"job": "a", "g": 4, "lacks": True}, {"job": "b", "g": None, "lacks": True}]
    print_rows([sure], rows)
    _, least, missing, note = capsys.readouterr().out.splitlines()
    assert (least.strip(), missing.strip(), note[:10]) == (">4 g", "---", "> at least")


@dataclass(frozen=True, kw_only=True)
class Where:
    """A group of options."""

    zone: Annotated[str, typer.Option(help="The zone.")]
    seed: Annotated[int, typer.Option(help="The seed.")] = 3


def test_a_group_stands_for_its_options() -> None:
    @placed(seed="name")
    def verb(where: Where, name: Annotated[str, typer.Option()] = "n") -> None:
        print(where.zone, where.seed, name)

    app = typer.Typer(rich_markup_mode=None)
    app.command()(grouped(verb))
    help_text = CliRunner().invoke(app, ["--help"]).output
    assert help_text.index("--zone") < help_text.index("--name") < help_text.index("--seed")
    assert CliRunner().invoke(app, ["--zone", "DE"]).output == "DE 3 n\n"
    assert CliRunner().invoke(app, []).exit_code == 2
