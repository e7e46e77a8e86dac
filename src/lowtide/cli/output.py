"""What a verb prints: a table for people, columns for scripts, JSON for programs."""

from __future__ import annotations

import itertools
import json
import math
import operator
import re
import shutil
import sys
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from json.encoder import encode_basestring
from typing import TYPE_CHECKING, Any

from lowtide.units import MISSING

if TYPE_CHECKING:
    from rich.progress import Progress, ProgressColumn
    from rich.table import Table

# A quantity, a duration or what is missing: columns of these are set flush right.
_NUMBER = re.compile(r">?[-+~]?[\d.,:-]+(e[-+]\d+)?( \S+)?|---")


# Below every table with grams of a grid that is none.
SYNTHETIC = "CO2e is that of a synthetic grid, not of a real one"


def print_json(document: Any) -> None:
    """Print a document as JSON; what is missing is null."""
    print(json.dumps(_plain(document), indent=1, ensure_ascii=False, allow_nan=False))


def print_json_rows(parts: Iterable[Mapping[str, Sequence[Any]]]) -> None:
    """Print many documents alike as `print_json` prints a list of them, a part at a time.

    Args:
        parts: Columns of the documents, with the same names in each part.
    """
    printed = False
    for columns in parts:
        if not any(len(column) for column in columns.values()):
            continue
        entries = (f"  {json.dumps(name)}: %s" for name in columns)
        row = " {\n" + ",\n".join(entries) + "\n }"
        cells = zip(*(_json_cells(column) for column in columns.values()), strict=True)
        text = ",\n".join([row % each for each in cells])
        print(f",\n{text}" if printed else f"[\n{text}", end="")
        printed = True
    print("\n]" if printed else "[]")


def _json_cells(column: Sequence[Any]) -> list[str]:
    """Return the values of a column as JSON: those that are alike, or numbers, all at once."""
    kinds = set(map(type, column))
    if kinds == {float}:
        if all(map(operator.ne, column, column)):
            return ["null"] * len(column)
        if all(map(operator.eq, column, itertools.repeat(column[0]))):
            return [_json_cell(column[0])] * len(column)
        # Whoever wrote the encoder knows NaN, which JSON does not.
        text = json.dumps(column).replace("-Infinity", "null").replace("Infinity", "null")
        return text[1:-1].replace("NaN", "null").split(", ")
    if kinds == {int}:
        return [str(value) for value in column]
    if kinds == {str}:
        return [encode_basestring(value) for value in column]
    if kinds <= {str, tuple, type(None)}:
        known = {value: _json_cell(value) for value in set(column)}
        return [known[value] for value in column]
    return [_json_cell(value) for value in column]


def _json_cell(value: Any) -> str:
    text = json.dumps(_plain(value), indent=1, ensure_ascii=False, allow_nan=False)
    return text.replace("\n", "\n  ")


def print_json_line(document: Any) -> None:
    """Print a document as one line of JSON, at once: the next one may take a while."""
    print(json.dumps(_plain(document), ensure_ascii=False, allow_nan=False), flush=True)


def print_parsable(header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print a header and rows with `|` between columns."""
    for row in (header, *rows):
        print("|".join(cell.replace("|", "/") for cell in row))


def print_table(
    header: Sequence[str], rows: Sequence[Sequence[str]], *, most: int | None = None
) -> None:
    """Print a table for people, coloured on a terminal only.

    Where a terminal is too narrow, sentences are folded, and where that is not enough, each row
    becomes a block of lines.

    Args:
        most: How many characters a line has off a terminal, where that is not whatever it takes.
    """
    from rich.console import Console

    # Off a terminal little is folded: whoever reads a pipe wants whole lines.
    # Brackets and colons in a cell are text, not markup.
    if most is None and not sys.stdout.isatty():
        console = Console(width=10_000, highlight=False, markup=False, emoji=False)
        console.print(make_table(header, rows))
        return
    room = None if sys.stdout.isatty() else most
    console = Console(width=room, highlight=False, markup=False, emoji=False)
    widths = _fitted_widths(header, rows, console.width)
    if widths is None:
        _print_blocks(header, rows)
    else:
        console.print(make_table(header, rows, widths=widths))


def fit_table(header: Sequence[str], rows: Sequence[Sequence[str]], room: int) -> Table | None:
    """Return a table for people in which no word is cut; None where that takes too much room."""
    widths = _fitted_widths(header, rows, room)
    return None if widths is None else make_table(header, rows, widths=widths)


def _fitted_widths(
    header: Sequence[str], rows: Sequence[Sequence[str]], room: int
) -> list[int] | None:
    """Return how wide columns are where no word is cut; None where that takes too much room."""
    columns = [[name, *(row[number] for row in rows)] for number, name in enumerate(header)]
    widths = [max(map(len, column)) for column in columns]
    # A quantity and its unit stay together, and so does every word of a sentence.
    least = [
        max(
            len(part)
            for text in column
            for part in ([text] if _NUMBER.fullmatch(text) else text.split() or [""])
        )
        for column in columns
    ]
    while (excess := sum(widths) + 2 * (len(widths) - 1) - room) > 0:
        place = max(range(len(widths)), key=lambda place: widths[place] - least[place])
        if widths[place] <= least[place]:
            return None
        others = max((width for other, width in enumerate(widths) if other != place), default=0)
        # The widest gives way first, down to the next.
        widths[place] = max(widths[place] - excess, least[place], min(others, widths[place] - 1))
    return widths


def _print_blocks(header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print each row as lines of what and how much, its first cell as their heading."""
    label = max((len(name) for name in header[1:]), default=0)
    room = max(shutil.get_terminal_size().columns - label - 4, 10)
    for row in rows:
        print(row[0])
        for name, text in zip(header[1:], row[1:], strict=True):
            folded = textwrap.wrap(text, room) or [""]
            print(f"  {name:<{label}}  " + f"\n{' ' * (label + 4)}".join(folded))


def make_table(
    header: Sequence[str], rows: Sequence[Sequence[str]], *, widths: Sequence[int] | None = None
) -> Table:
    """Return a table for people, ready to be printed.

    Args:
        widths: How wide each column is; by default as wide as it takes.
    """
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    for number, name in enumerate(header):
        numbers = all(_NUMBER.fullmatch(row[number]) for row in rows)
        table.add_column(
            name,
            justify="right" if numbers else "left",
            overflow="fold",
            width=None if widths is None else widths[number],
        )
    for row in rows:
        table.add_row(*row)
    return table


def marked(text: str, *, estimated: bool, partial: bool) -> str:
    """Return a quantity with what has to be known of it: `~` estimated, `>` at least.

    Args:
        partial: Whether part of it is not known.
    """
    return text if text == MISSING else ">" * partial + "~" * estimated + text


def mark_notes(*, estimated: bool, partial: bool) -> list[str]:
    """Return what the marks mean that a table has.

    Args:
        estimated: Whether it has `~`.
        partial: Whether it has `>`.
    """
    notes = ["~ estimated, in whole or in part: not measured."] * estimated
    return (
        notes
        + ["> at least: what was drawn or emitted in part of the time is not known."] * partial
    )


def explain_marks(*, estimated: bool, partial: bool) -> None:
    """Print what the marks mean that a table has.

    Args:
        estimated: Whether it has `~`.
        partial: Whether it has `>`.
    """
    for note in mark_notes(estimated=estimated, partial=partial):
        say(note)


def say(text: str) -> None:
    """Print a paragraph, folded to the terminal's width where there is one."""
    if sys.stdout.isatty():
        text = textwrap.fill(text, shutil.get_terminal_size().columns)
    print(text)


@contextmanager
def waiting(what: str) -> Iterator[None]:
    """Show on a terminal that something takes a while."""
    if not sys.stderr.isatty():
        yield
        return
    from rich.console import Console

    with Console(stderr=True).status(what):
        yield


def progress_bar(*columns: ProgressColumn, refresh_per_second: float = 10.0) -> Progress:
    """Return a bar that shows on a terminal how far something is, and is gone afterwards.

    Args:
        columns: What it shows; by default the task, a bar, how many of all and the time left.
    """
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
    )

    columns = columns or (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
    )
    return Progress(
        *columns,
        console=Console(stderr=True),
        refresh_per_second=refresh_per_second,
        transient=True,
        disable=not sys.stderr.isatty(),
    )


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _plain(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(entry) for entry in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
