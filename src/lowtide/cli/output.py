"""What a verb prints: a table for people, columns for scripts, JSON for programs."""

from __future__ import annotations

import json
import math
import re
import shutil
import sys
import textwrap
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.progress import Progress, ProgressColumn
    from rich.table import Table

# A quantity, a duration or what is missing: columns of these are set flush right.
_NUMBER = re.compile(r"[-+~]?[\d.,:-]+( \S+)?|---")


def print_json(document: Any) -> None:
    """Print a document as JSON; what is missing is null.

    Args:
        document: Lists, mappings, texts and numbers.
    """
    print(json.dumps(_plain(document), indent=1, ensure_ascii=False, allow_nan=False))


def print_json_line(document: Any) -> None:
    """Print a document as one line of JSON, at once: the next one may take a while.

    Args:
        document: Lists, mappings, texts and numbers.
    """
    print(json.dumps(_plain(document), ensure_ascii=False, allow_nan=False), flush=True)


def print_parsable(header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print a header and rows with `|` between columns.

    Args:
        header: Names of the columns.
        rows: Their texts.
    """
    for row in (header, *rows):
        print("|".join(cell.replace("|", "/") for cell in row))


def print_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print a table for people, coloured on a terminal only.

    Args:
        header: Names of the columns.
        rows: Their texts.
    """
    from rich.console import Console

    # Off a terminal nothing is folded: whoever reads a pipe wants whole lines.
    # Brackets and colons in a cell are text, not markup.
    width = None if sys.stdout.isatty() else 10_000
    console = Console(width=width, highlight=False, markup=False, emoji=False)
    console.print(make_table(header, rows))


def make_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> Table:
    """Return a table for people, ready to be printed.

    Args:
        header: Names of the columns.
        rows: Their texts.
    """
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    for number, name in enumerate(header):
        numbers = all(_NUMBER.fullmatch(row[number]) for row in rows)
        table.add_column(name, justify="right" if numbers else "left", overflow="fold")
    for row in rows:
        table.add_row(*row)
    return table


def say(text: str) -> None:
    """Print a paragraph, folded to the terminal's width where there is one.

    Args:
        text: The paragraph.
    """
    if sys.stdout.isatty():
        text = textwrap.fill(text, shutil.get_terminal_size().columns)
    print(text)


@contextmanager
def waiting(what: str) -> Iterator[None]:
    """Show on a terminal that something takes a while.

    Args:
        what: What it is.
    """
    if not sys.stderr.isatty():
        yield
        return
    from rich.console import Console

    with Console(stderr=True).status(what):
        yield


def progress_bar(*columns: ProgressColumn, refresh_per_second: float = 10.0) -> Progress:
    """Return a bar that shows on a terminal how far something is, and is gone afterwards.

    Args:
        columns: What it shows; by default the task, a bar, the share and the time left.
        refresh_per_second: How often it is drawn.
    """
    from rich.console import Console
    from rich.progress import Progress

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
