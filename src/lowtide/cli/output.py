"""What a verb prints: a table for people, columns for scripts, JSON for programs.

A verb finds rows, says with `Column` what stands in them, and a `Form` prints them as was asked
for, with what the marks mean that figures have. Tables that a page has too come as its `Table`.
"""

from __future__ import annotations

import itertools
import json
import math
import operator
import os
import re
import shutil
import sys
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from json.encoder import encode_basestring
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Any, TypeVar

from lowtide.certainty import Marked, mark_notes, marks_in
from lowtide.cli.options import AsJson, Parsable
from lowtide.errors import FileProblem, InvalidInput
from lowtide.units import MISSING, words_for

if TYPE_CHECKING:
    from rich.progress import Progress
    from rich.table import Table

    from lowtide.page.page import Table as PageTable

Item = TypeVar("Item")

# A quantity, a duration or what is missing: columns of these are set flush right.
_NUMBER = re.compile(r">?[-+~]?[\d.,:-]+(e[-+]\d+)?( \S+)?|---")


# Below every table with grams of a grid that is none.
SYNTHETIC = "CO2e is that of a synthetic grid, not of a real one"


@dataclass(frozen=True, slots=True)
class Column:
    """One column of what a verb tells.

    Attributes:
        key: What programs call it; it names the unit. Empty where it is for people alone.
        heading: What people call it; None where it is for programs alone.
        show: How a known value is written for people; by default in the unit that its key ends
            with, and whether something is so as `yes` or `no`. An empty text stays one: nothing is
            told there.
        read: Where a row has its value; by default under the key.
        marks: How sure a row's value is (`certainty.marks_for`); by default nothing is said.
    """

    key: str
    heading: str | None = None
    show: Callable[[Any], str] | None = None
    read: Callable[[Any], Any] | None = None
    marks: Callable[[Any], str] | None = None

    def value(self, row: Any) -> Any:
        """Return what a row has in this column, None where that is not known."""
        if self.read is not None:
            found = self.read(row)
        else:
            found = row[self.key] if isinstance(row, Mapping) else getattr(row, self.key)
        return None if found != found else found

    def text(self, row: Any) -> str:
        """Return the same for people."""
        value = self.value(row)
        if value is None or value == "":
            return MISSING if value is None else ""
        as_said = plain if isinstance(value, bool) else str
        text = (self.show or words_for(self.key) or as_said)(value)
        return text if self.marks is None else Marked(text, self.marks(row))


def plain(value: Any, digits: int | None = 10) -> str:
    """Return a value for scripts: SI units, `yes` and `no`, empty where it is not known.

    Args:
        digits: How many digits numbers have; None for all.

    >>> plain(True), plain(0.1 + 0.2), plain(float("nan")), plain(("a", "b"))
    ('yes', '0.3', '', 'a,b')
    """
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list | tuple):
        return ",".join(map(str, value))
    if value is None or value != value:
        return ""
    return f"{value:.{digits}g}" if isinstance(value, float) and digits else str(value)


@dataclass(frozen=True, slots=True, kw_only=True)
class Form:
    """In which form a verb prints what it found: for people unless something else is asked for."""

    as_json: AsJson = False
    parsable: Parsable = False

    @property
    def for_people(self) -> bool:
        """Whether no program is to read it."""
        return not (self.as_json or self.parsable)

    def print(
        self,
        rows: Iterable[Any],
        columns: Sequence[Column] | None = None,
        *,
        document: Any = None,
        show: Callable[[], None] | None = None,
        none: str = "",
        digits: int | None = 10,
    ) -> None:
        """Print what a verb found.

        Args:
            rows: What it found, a line each in columns.
            columns: What stands in the rows; by default whatever the first has.
            document: What JSON holds, or what makes it; by default the rows.
            show: What prints it for people; by default a table of the rows.
            none: What that says where there are no rows.
            digits: How many digits numbers have for scripts; None for all.
        """
        if self.as_json:
            made = document() if callable(document) else document
            print_json(list(rows) if made is None else made)
        elif self.parsable:
            print_parsable(*plain_table(rows, columns, digits=digits))
        elif show is not None:
            show()
        else:
            print_rows(columns or (), rows, none=none)


# What is asked for unless something else is.
TABLE = Form()


@dataclass(slots=True)
class Written:
    """The files that a verb writes beside what it prints.

    What took minutes to compute is printed though a disk is full: that is told afterwards.
    """

    paths: list[Path] = field(default_factory=list)
    problem: FileProblem | None = None

    def add(self, path: Path | None, write: Callable[[Path], object]) -> None:
        """Write a file, if one was asked for."""
        try:
            if path is not None:
                write(path)
                self.paths.append(path)
        except FileProblem as problem:
            self.problem = self.problem or problem

    def settle(self) -> None:
        """Say what could not be written, now that all else is told."""
        if self.problem is not None:
            raise self.problem


def require_figure(path: Path | None) -> None:
    """Refuse a figure of a kind that cannot be drawn, before anything is computed."""
    if path is not None and path.suffix not in (".png", ".svg"):
        raise InvalidInput(f"a figure is a .png or .svg file, not {path.name!r}")


def require_table(path: Path | None) -> None:
    """Refuse a table of a kind that cannot be written, before anything is computed."""
    if path is not None and path.suffix not in (".parquet", ".csv"):
        raise InvalidInput(f"a table is a .parquet or .csv file, not {path.name!r}")


def plain_table(
    rows: Iterable[Any], columns: Sequence[Column] | None = None, *, digits: int | None = 10
) -> tuple[list[str], list[list[str]]]:
    """Return the keys and cells of rows, for scripts."""
    listed = list(rows)
    told = [column for column in columns or map(Column, listed[0]) if column.key]
    cells = [[plain(column.value(row), digits) for column in told] for row in listed]
    return [column.key for column in told], cells


def print_rows(
    columns: Sequence[Column],
    rows: Iterable[Any],
    *,
    none: str = "",
    marks: str = "",
    most: int | None = None,
) -> None:
    """Print rows as a table for people, and below it what its marks mean.

    Args:
        none: What to say instead where there are no rows.
        marks: Those of what is told below it.
        most: How many characters a line has off a terminal, where that is not whatever it takes.
    """
    header, cells = cells_of(columns, rows)
    if none and not cells:
        say(none)
        return
    _print_cells(header, cells, most=most)
    say_all(mark_notes(marks_in(cells) | set(marks)))


def print_page_table(table: PageTable) -> None:
    """Print for people a table that a page has, too."""
    _print_cells(table.header, table.rows)


def cells_of(columns: Sequence[Column], rows: Iterable[Any]) -> tuple[list[str], list[list[str]]]:
    """Return the headings and cells of rows, for people."""
    shown = [column for column in columns if column.heading is not None]
    cells = [[column.text(row) for column in shown] for row in rows]
    return [column.heading or "" for column in shown], cells


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


def _print_cells(
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


def say(text: str) -> None:
    """Print a paragraph, folded to the terminal's width where there is one."""
    if sys.stdout.isatty():
        text = textwrap.fill(text, shutil.get_terminal_size().columns)
    print(text)


def say_all(notes: Iterable[str]) -> None:
    """Print paragraphs, leaving out those that say nothing."""
    for note in filter(None, notes):
        say(note)


def warn(text: str) -> None:
    """Say on stderr what went wrong; that nobody can be told is no reason to stop."""
    with suppress(OSError, ValueError):
        print(f"lowtide: {text}", file=sys.stderr, flush=True)


def remark(text: str) -> None:
    """Say how it goes, on stderr, to people alone: stdout may belong to a program."""
    with suppress(OSError, ValueError):
        if sys.stderr.isatty():
            print(text, file=sys.stderr, flush=True)


def forget_unwritten() -> None:
    """Drop what cannot be printed: Python would try again at its end, and exit with 120."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError):
            with suppress(OSError, ValueError):
                os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


@contextmanager
def waiting(what: str) -> Iterator[None]:
    """Show on a terminal that something takes a while."""
    if not sys.stderr.isatty():
        yield
        return
    from rich.console import Console

    with Console(stderr=True).status(what):
        yield


class Bar:
    """How far something is, shown on a terminal and gone afterwards."""

    def __init__(self, bar: Progress, doing: str, total: float | None) -> None:
        self._bar = bar
        self._task = bar.add_task(doing, total=total, rate=0.0)
        self._since = monotonic()

    def advance(self, count: float = 1) -> None:
        """So many more are done."""
        self._bar.advance(self._task, count)
        took_s = max(monotonic() - self._since, 1e-9)
        self._bar.update(self._task, rate=self.done / took_s)

    def reach(self, done: float, total: float, doing: str | None = None) -> None:
        """So many of all are done, counted anew from here."""
        self._since = monotonic() if self.done == 0 else self._since
        self._bar.update(self._task, completed=done, total=total, description=doing)

    def say(self, doing: str) -> None:
        """Something else is being done."""
        self._bar.update(self._task, description=doing)

    @property
    def done(self) -> float:
        """How many are done."""
        return self._bar.tasks[0].completed


@contextmanager
def progress(
    doing: str,
    total: float | None = None,
    *,
    paced: bool = False,
    refresh_per_second: float = 10.0,
) -> Iterator[Bar]:
    """Show how far something is where somebody is watching.

    Args:
        paced: Whether to say how many are done in a second, too.
    """
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    pace = (TextColumn("{task.fields[rate]:,.3g}/s"), TimeElapsedColumn()) if paced else ()
    with Progress(
        *(TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), *pace),
        *(TextColumn("left"), TimeRemainingColumn()),
        console=Console(stderr=True),
        refresh_per_second=refresh_per_second,
        transient=True,
        disable=not sys.stderr.isatty(),
    ) as bar:
        yield Bar(bar, doing, total)


@contextmanager
def staged(doing: str, stages: Sequence[str]) -> Iterator[Callable[[str, float], None]]:
    """Show how far something is that goes through stages.

    What it yields is told the stage, by its name, and which share of that is done.
    """
    with progress(doing, len(stages)) as bar:

        def tell(stage: str, share: float) -> None:
            place = stages.index(stage) if stage in stages else len(stages) - 1
            bar.reach(place + share, len(stages), stage)

        yield tell


def tracked(items: Iterable[Item], doing: str, total: int) -> Iterator[Item]:
    """Pass items on, and show how many of all have been."""
    with progress(doing, total) as bar:
        for item in items:
            yield item
            bar.advance()


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _plain(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(entry) for entry in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
