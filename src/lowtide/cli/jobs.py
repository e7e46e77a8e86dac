"""`lowtide jobs`: what jobs used, drew and emitted, a line each."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lowtide.cli.options import AsJson, Parsable, Since, StorePlace, Until, Users
from lowtide.cli.output import print_json, print_parsable, say

if TYPE_CHECKING:
    from lowtide.cli.job_columns import JobColumn
    from lowtide.store import JobTable, Question

# Lines that are written at once.
_BLOCK = 5000
# What Slurm calls the states, short and long, where that differs.
_SLURM_STATES = {
    "r": "running",
    "pd": "pending",
    "s": "suspended",
    "cd": "completed",
    "f": "failed",
    "ca": "cancelled",
    "to": "timeout",
    "nf": "lost",
    "node_fail": "lost",
    "oom": "failed",
    "out_of_memory": "failed",
    "pr": "cancelled",
    "preempted": "cancelled",
}


def jobs(
    user: Users = None,
    start: Since = None,
    end: Until = None,
    job: Annotated[
        list[str] | None,
        typer.Option("-j", "--jobs", help="These jobs: 4711,4712_3.", metavar="IDS"),
    ] = None,
    state: Annotated[
        list[str] | None,
        typer.Option("-s", "--state", help="Jobs that stand so: R,CD or running,failed."),
    ] = None,
    host: Annotated[
        list[str] | None,
        typer.Option("-N", "--nodelist", help="Jobs on these nodes: n1,n2.", metavar="NAMES"),
    ] = None,
    columns: Annotated[
        str | None,
        typer.Option("-o", "--format", help="The columns: JobID,Energy,CO2e.", metavar="NAMES"),
    ] = None,
    sort: Annotated[
        str | None,
        typer.Option(
            help="The columns to sort by, largest first with a minus: -energy,user.",
            metavar="NAMES",
        ),
    ] = None,
    no_header: Annotated[
        bool, typer.Option("-n", "--noheader", help="Leave out the headings.")
    ] = False,
    store: StorePlace = None,
    as_json: AsJson = False,
    parsable: Parsable = False,
) -> None:
    """List jobs: what they used of what they asked for, and emitted.

    By default those of the last 24 hours, and with -j those jobs whenever they ran. What is marked
    with ~ was estimated in whole or in part, not measured. --- is not known.
    """
    import time

    now = time.time()
    ids = listed(job)
    if start is None and not ids:
        start = "now-1day"
    with _unswept():
        from lowtide.cli.job_columns import choose_columns, plain_cells
        from lowtide.cli.moments import parse_moment
        from lowtide.store import Question, Store

        chosen, order = choose_columns(columns), _order(sort)
        question = Question(
            users=listed(user),
            start=None if start is None else parse_moment(start, now=now),
            end=None if end is None else parse_moment(end, now=now),
            ids=ids,
            states=_states(state),
            hosts=listed(host),
        )
        check_window(question)
        whole = as_json or any(column.whole for column in (*chosen, *(each for each, _ in order)))
        with Store.open(store, readonly=True) as kept:
            table = kept.table(question, now=now, whole=whole)
            name = kept.name
        if order:
            table = _sorted(table, order)
        if as_json:
            print_json(_documents(table, chosen if columns else None))
        elif parsable:
            lines = [] if no_header else [tuple(column.key for column in chosen)]
            lines += zip(*(plain_cells(column, table) for column in chosen), strict=True)
            if lines:
                print_parsable(lines[0], lines[1:])
        elif not len(table):
            say(f"No such jobs in {name}.")
        else:
            _print(table, chosen, header=not no_header)


@contextmanager
def _unswept() -> Iterator[None]:
    """Look for no garbage meanwhile: much is read, none is made, and it takes a third longer."""
    import gc

    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def listed(given: Sequence[str] | None) -> list[str]:
    """Return what was listed with commas, in one option or several.

    Args:
        given: What each option was given.
    """
    return [name for text in given or () for name in text.split(",") if name]


def check_window(question: Question) -> None:
    """Refuse a window of time that ends before it begins.

    Args:
        question: What was asked for.
    """
    from lowtide.errors import InvalidTime
    from lowtide.units import format_time

    if question.start is None or question.end is None or question.start < question.end:
        return
    raise InvalidTime(
        f"a window begins before it ends: -S is {format_time(question.start)}, and -E "
        f"{format_time(question.end)}"
    )


def _states(given: Sequence[str] | None) -> list[str]:
    from lowtide.errors import UnknownName
    from lowtide.monitor.facts import STATES

    found = []
    for name in listed(given):
        plain = _SLURM_STATES.get(name.lower(), name.lower())
        if plain not in STATES:
            raise UnknownName("state", name, [*STATES, *_SLURM_STATES])
        found.append(plain)
    return found


def _order(text: str | None) -> list[tuple[JobColumn, bool]]:
    from lowtide.cli.job_columns import choose_columns

    names = [name.strip() for name in (text or "").split(",") if name.strip()]
    return [(choose_columns(name.lstrip("-"))[0], name.startswith("-")) for name in names]


def _sorted(table: JobTable, order: list[tuple[JobColumn, bool]]) -> JobTable:
    """Sort jobs; what is not known comes last either way."""
    import numpy as np

    places = list(range(len(table)))
    for column, largest_first in reversed(order):
        values = _plain(column.read(table))
        known = [place for place in places if values[place] is not None]
        known.sort(key=lambda place: values[place], reverse=largest_first)
        places = known + [place for place in places if values[place] is None]
    return table.chosen(np.array(places, dtype=np.int64))


def _plain(values: Any) -> list[Any]:
    """Return values as Python has them, None where not known."""
    if hasattr(values, "tolist"):
        return [None if value != value else value for value in values.tolist()]
    return list(values)


def _documents(table: JobTable, chosen: Sequence[JobColumn] | None) -> list[dict[str, Any]]:
    """Return jobs for programs: the columns that were asked for, or everything."""
    from dataclasses import fields

    if chosen is not None:
        keys = [column.key for column in chosen]
        rows = zip(*(_plain(column.read(table)) for column in chosen), strict=True)
        return [dict(zip(keys, row, strict=True)) for row in rows]
    records = table.records()
    derived = ("mean_power_w", "mean_cpus", "mean_gpus", "cpu_efficiency", "memory_efficiency")
    names = [
        *(field.name for record in records[:1] for field in fields(record)),
        *(*derived, "gpu_efficiency", "power"),
    ]
    return [{name: getattr(record, name) for name in names} for record in records]


def _print(table: JobTable, chosen: Sequence[JobColumn], *, header: bool) -> None:
    import numpy as np

    from lowtide.cli.job_columns import is_estimated

    guessed = is_estimated(table) if any(column.estimated for column in chosen) else []
    cells = []
    for column in chosen:
        values = column.read(table)
        texts = column.show(values)
        if column.estimated and any(guessed):
            texts = [
                f"~{text}" if mark and text != "---" else text
                for mark, text in zip(guessed, texts, strict=True)
            ]
        width = max(map(len, texts if not header else [column.heading, *texts]))
        # Numbers are set flush right. Nothing is filled up at the end of a line.
        is_text = not isinstance(values, np.ndarray)
        form = f"%-{width}s" if is_text else f"%{width}s"
        cells.append(("%s" if is_text and column is chosen[-1] else form, column.heading, texts))
    line = "  ".join(form for form, _, _ in cells)
    if header:
        print(line % tuple(heading for _, heading, _ in cells))
    rows = map(line.__mod__, zip(*(texts for _, _, texts in cells), strict=True))
    # In blocks, which share their memory.
    while block := list(islice(rows, _BLOCK)):
        sys.stdout.write("\n".join(block) + "\n")
    if header and any(guessed):
        say("~ estimated, in whole or in part: not measured.")
