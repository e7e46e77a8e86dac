"""`lowtide jobs`: what jobs used, drew and emitted, a line each."""

from __future__ import annotations

import re
import shutil
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import chain, islice
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lowtide.certainty import mark_notes, word_for_power
from lowtide.cli.options import ReadPlace, Since, Sources, Until, Users
from lowtide.cli.output import (
    SYNTHETIC,
    TABLE,
    Form,
    print_json_rows,
    print_parsable,
    say,
    say_all,
)
from lowtide.units import MISSING

if TYPE_CHECKING:
    from lowtide.cli.job_columns import JobColumn, LaidOut
    from lowtide.store import JobTable, Store

_DAY_S = 86400.0
# Jobs that are made JSON of together.
_AT_ONCE = 5000
# Lines that are written at once.
_BLOCK = 5000
# A step is part of its job, and some elements of an array are written as one.
_STEP = re.compile(r"(\d+(?:[_+]\d+)?)\.(?:batch|extern|interactive|\d+)")
_ELEMENTS = re.compile(r"(\d+)_\[([\d,:-]+)(?:%\d+)?\]")
_RANGE = re.compile(r"(\d+)(?:-(\d+)(?::([1-9]\d*))?)?")
_MOST_ELEMENTS = 10_000
# Which of the usual columns make room on a narrow terminal, and how narrow texts get.
_GIVEN_UP = ("MemEff", "GPUEff", "AvgW", "CPUEff", "Elapsed", "User", "State")
_NARROW, _NARROWEST = 20, 8
_BETWEEN = 2


def jobs(
    user: Users = None,
    account: Annotated[
        list[str] | None,
        typer.Option("-A", "--accounts", help="Jobs that these pay for.", metavar="NAMES"),
    ] = None,
    partition: Annotated[
        list[str] | None,
        typer.Option("-r", "--partition", help="Jobs in these partitions.", metavar="NAMES"),
    ] = None,
    name: Annotated[
        list[str] | None,
        typer.Option("--name", help="Jobs that are called so: train,'md-*'.", metavar="NAMES"),
    ] = None,
    source: Sources = None,
    cluster: Annotated[
        list[str] | None,
        typer.Option("-M", "--cluster", help="Jobs of these clusters.", metavar="NAMES"),
    ] = None,
    start: Since = None,
    end: Until = None,
    job: Annotated[
        list[str] | None,
        typer.Option("-j", "--jobs", help="These jobs: 4711,4712_3,4713_[1-9].", metavar="IDS"),
    ] = None,
    state: Annotated[
        list[str] | None,
        typer.Option("-s", "--state", help="Jobs that stand so: R,CD or running,failed."),
    ] = None,
    host: Annotated[
        list[str] | None,
        typer.Option("-N", "--nodelist", help="Jobs on these nodes: n1,n2.", metavar="NAMES"),
    ] = None,
    nodes: Annotated[
        str | None,
        typer.Option("-i", "--nnodes", help="Jobs on so many nodes: 4, or 2-8.", metavar="N[-M]"),
    ] = None,
    columns: Annotated[
        str | None,
        typer.Option(
            "-o",
            "--format",
            help="The columns: JobID,Energy,CO2e, or ALL; JobID%20 sets one so wide.",
            metavar="NAMES",
        ),
    ] = None,
    sort: Annotated[
        str | None,
        typer.Option(
            help="The columns to sort by, largest first with a minus: -energy,user.",
            metavar="NAMES",
        ),
    ] = None,
    _everybody: Annotated[
        bool, typer.Option("-a", "--allusers", help="Jobs of all users, which is so anyway.")
    ] = False,
    _allocations: Annotated[
        bool, typer.Option("-X", "--allocations", help="Jobs, not steps, which is so anyway.")
    ] = False,
    no_header: Annotated[
        bool, typer.Option("-n", "--noheader", help="Leave out the headings.")
    ] = False,
    store: ReadPlace = None,
    form: Form = TABLE,
) -> None:
    """List jobs: what they asked for, used and emitted.

    By default those of the last 24 hours, and with -j those jobs whenever they ran. What is marked
    with ~ was estimated in whole or in part, not measured; what is marked with > is the least it
    can be, as part is not known. --- is not known.
    """
    import time

    now = time.time()
    ids = ids_of(job)
    with _unswept():
        from lowtide.cli.job_columns import choose_columns, plain_cells
        from lowtide.store import Question

        chosen, order = choose_columns(columns), _order(sort)
        begin, until = window(start, end, now=now, usual_s=None if ids else _DAY_S)
        question = Question(
            users=users_of(user),
            start=begin,
            end=until,
            ids=ids,
            states=_states(state),
            hosts=listed(host),
            accounts=listed(account),
            partitions=listed(partition),
            names=listed(name),
            sources=sources_of(source),
            # Slurm writes the names of clusters small, whatever was typed.
            clusters=[*(names := listed(cluster)), *(each.lower() for each in names)],
        )
        used = (*chosen, *(each for each, _ in order))
        whole = form.as_json or nodes is not None or any(column.whole for column in used)
        with opened(store) as kept:
            made_up = kept.synthetic()
            table = kept.table(question, now=now, whole=whole or bool(made_up))
            table = _with_synthetic(table, made_up)
            if any(column.key == "phases" for column in used):
                table = _with_phases(kept, table)
            place = kept.name
        if nodes is not None:
            table = table.chosen(_on_so_many(table, nodes))
        if order:
            table = _sorted(table, order)
        if form.as_json:
            print_json_rows(_documents(table, chosen if columns else None))
        elif form.parsable:
            if made_up and columns is None:
                chosen = [*chosen, *choose_columns("synthetic")]
            lines = [] if no_header else [tuple(column.key for column in chosen)]
            lines += zip(*(plain_cells(column, table) for column in chosen), strict=True)
            if lines:
                print_parsable(lines[0], lines[1:])
        elif not len(table):
            say(f"No such jobs in {place}.")
        else:
            _print(table, chosen, header=not no_header, usual=columns is None)


def opened(place: str | None) -> Store:
    """Open what jobs are read from, for reading.

    That is what --store or LOWTIDE_STORE names, a centre by its address; else the centre that the
    user is logged in to, else this machine's store.
    """
    import os

    from lowtide.centre.account import read_login
    from lowtide.errors import InvalidInput
    from lowtide.store import Store

    named = place or os.environ.get("LOWTIDE_STORE")
    is_centre = (named or "").startswith(("https://", "http://"))
    if named and not is_centre:
        return Store.open(named, readonly=True)
    login = read_login()
    if named and (login is None or login.url != named.rstrip("/")):
        raise InvalidInput(f"you are not logged in there: lowtide login {named}")
    if login is None:
        return Store.open(None, readonly=True)
    from lowtide.centre.store import CentreStore

    return CentreStore(login)


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
    """Return what was listed with commas, in one option or several."""
    return [name for text in given or () for name in text.split(",") if name]


def users_of(given: Sequence[str] | None) -> list[str]:
    """Return the users that were listed, those given by number by their name as well."""
    import pwd

    found = listed(given)
    for name in tuple(found):
        if name.isdecimal():
            # Whoever has no name is known by the number.
            with suppress(KeyError, OverflowError):
                found.append(pwd.getpwuid(int(name)).pw_name)
    return found


def sources_of(given: Sequence[str] | None) -> list[str]:
    """Return where jobs were found that were listed."""
    from lowtide.errors import UnknownName
    from lowtide.monitor.snapshot import SOURCES

    found = [name.lower() for name in listed(given)]
    for name in found:
        if name not in SOURCES:
            raise UnknownName("source of jobs", name, SOURCES)
    return found


def ids_of(given: Sequence[str] | None) -> list[str]:
    """Return the jobs that were listed: steps are their job, `4_[1-3]` are three elements."""
    # A comma inside brackets is not one between jobs.
    words = [each for text in given or () for each in re.findall(r"(?:\[[^]]*\]|[^,])+", text)]
    found: list[str] = []
    for word in words:
        found.append(step[1] if (step := _STEP.fullmatch(word)) else word)
        if some := _ELEMENTS.fullmatch(word):
            found += [f"{some[1]}_{element}" for element in _elements(some[2], word)]
    return found


def _elements(text: str, word: str) -> Iterator[int]:
    from lowtide.errors import InvalidInput

    count = 0
    for part in text.split(","):
        ends = _RANGE.fullmatch(part)
        if ends is None:
            raise InvalidInput(f"elements of an array are written as 4_[1-3,7], not {word}")
        elements = range(int(ends[1]), int(ends[2] or ends[1]) + 1, int(ends[3] or 1))
        count += len(elements)
        if count > _MOST_ELEMENTS:
            raise InvalidInput(
                f"{word} names more than {_MOST_ELEMENTS} jobs: the array's number alone stands "
                "for all of them"
            )
        yield from elements


def window(
    start: str | None, end: str | None, *, now: float, usual_s: float | None
) -> tuple[float | None, float | None]:
    """Return the window of time that `-S` and `-E` say, and refuse one that ends before it begins.

    Args:
        usual_s: How long before its end a window begins of which that was not said; None for any
            time.
    """
    from lowtide.cli.moments import parse_moment
    from lowtide.errors import InvalidTime
    from lowtide.units import format_time

    until = None if end is None else parse_moment(end, now=now)
    if start is None:
        begin = None if usual_s is None else (now if until is None else until) - usual_s
    else:
        begin = parse_moment(start, now=now)
    if begin is not None and until is not None and begin >= until:
        raise InvalidTime(
            f"a window begins before it ends: -S is {format_time(begin)}, and -E "
            f"{format_time(until)}"
        )
    return begin, until


def _on_so_many(table: JobTable, text: str) -> Any:
    """Return which jobs ran on so many nodes."""
    from lowtide.cli.job_columns import node_counts
    from lowtide.errors import InvalidInput

    ends = re.fullmatch(r"(\d+)(?:-(\d+))?", text.strip())
    if ends is None:
        raise InvalidInput(f"-i takes a number of nodes such as 4 or 2-8, not {text!r}")
    counts = node_counts(table)
    return (counts >= int(ends[1])) & (counts <= int(ends[2] or ends[1]))


def _with_phases(kept: Store, table: JobTable) -> JobTable:
    """Return the jobs with the phases that were found in them."""
    from dataclasses import asdict, replace

    from lowtide.hindsight.phases import read_phases

    numbers = [int(number) for number in table.columns["id"]]
    texts = kept.phases_of_many(numbers)
    found = [read_phases(texts.get(number)) for number in numbers]
    listed = [None if each is None else [asdict(phase) for phase in each] for each in found]
    return replace(table, columns={**table.columns, "phases": listed})


def _with_synthetic(table: JobTable, made_up: Sequence[tuple[str, float, float]]) -> JobTable:
    """Return the jobs with whether their grams are those of a synthetic grid, even in part."""
    from dataclasses import replace

    first, last = table.total("first_seen"), table.total("last_seen")
    flags = [False] * len(table)
    for host, begins, ends in made_up:
        # Few jobs of many are of that time, and only those need to be looked at.
        for place in ((first < ends) & (last > begins)).nonzero()[0].tolist():
            flags[place] = flags[place] or f",{host}," in (table.text("hosts")[place] or "")
    return replace(table, columns={**table.columns, "synthetic": flags})


def _states(given: Sequence[str] | None) -> list[str]:
    from lowtide.errors import UnknownName
    from lowtide.states import WORDS

    names = listed(given)
    for name in names:
        if name.lower() not in WORDS:
            raise UnknownName("state", name, WORDS)
    return [WORDS[name.lower()] for name in names]


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
        known.sort(key=lambda place: _comparable(values[place]), reverse=largest_first)
        places = known + [place for place in places if values[place] is None]
    return table.chosen(np.array(places, dtype=np.int64))


def _comparable(value: Any) -> Any:
    """Return what a value is sorted by: lists by how long they are."""
    return len(value) if isinstance(value, list) else value


def _plain(values: Any) -> list[Any]:
    """Return values as Python has them, None where not known."""
    if hasattr(values, "tolist"):
        return [None if value != value else value for value in values.tolist()]
    return list(values)


def _documents(
    table: JobTable, chosen: Sequence[JobColumn] | None
) -> Iterator[dict[str, Sequence[Any]]]:
    """Yield jobs for programs, in columns: those that were asked for, or everything."""
    for part in table.parts(_AT_ONCE):
        if chosen is not None:
            yield {column.key: _plain(column.read(part)) for column in chosen}
            continue
        everything = part.everything()
        energies = zip(everything["energy_j"], everything["measured_j"], strict=True)
        yield everything | {
            "mean_power_w": part.mean_power_w.tolist(),
            "mean_cpus": part.per_second("cpu_s").tolist(),
            "mean_gpus": part.per_second("gpu_busy_s").tolist(),
            "cpu_efficiency": part.cpu_efficiency.tolist(),
            "memory_efficiency": part.memory_efficiency.tolist(),
            "gpu_efficiency": part.gpu_efficiency.tolist(),
            "power": [word_for_power(energy, measured) for energy, measured in energies],
            "synthetic": list(part.columns["synthetic"]),
        }


def _print(table: JobTable, chosen: Sequence[JobColumn], *, header: bool, usual: bool) -> None:
    from lowtide.cli.job_columns import LaidOut, marks_of

    marks = marks_of(table)
    laid_out = [LaidOut.of(column, table, marks, header=header) for column in chosen]
    left_out: list[str] = []
    between = _BETWEEN
    if sys.stdout.isatty():
        room = shutil.get_terminal_size().columns
        laid_out, left_out, between = _fitted(laid_out, room, _GIVEN_UP if usual else ())
    line = (between * " ").join(
        "%s" if each.is_text and each is laid_out[-1] else f"%{'-' * each.is_text}{each.width}s"
        for each in laid_out
    )
    if header:
        print(line % tuple(each.heading for each in laid_out))
    rows = zip(*(each.texts for each in laid_out), strict=True)
    # In blocks, which share their memory.
    while block := list(islice(rows, _BLOCK)):
        sys.stdout.write(f"{line}\n" * len(block) % tuple(chain.from_iterable(block)))
    if header:
        shown = {mark for each in laid_out for mark in each.marks}
        say_all(mark_notes(shown))
        count = sum(table.columns["synthetic"])
        if count and any(column.quantity == "grams" for column in chosen):
            part = "" if count == len(table) else f", of {count} of {len(table)} jobs"
            say(f"{SYNTHETIC}{part}.")
        if left_out:
            say(
                f"No room for {', '.join(left_out)}: a wider terminal shows them, and -o chooses "
                "columns."
            )


def _fitted(
    columns: list[LaidOut], room: int, given_up: Sequence[str]
) -> tuple[list[LaidOut], list[str], int]:
    """Return what fits into a line, what does not, and how much room is between columns.

    Long texts are cut first, then columns stand closer, then some are left out: at first those
    that say nothing.
    """
    between = _BETWEEN

    def excess() -> int:
        return sum(each.width + between for each in columns) - between - room

    def cut(least: int) -> None:
        for place, each in sorted(enumerate(columns), key=lambda pair: -pair[1].width):
            if each.is_text and each.width > least and (over := excess()) > 0:
                columns[place] = each.cut(max(each.width - over, least))

    cut(_NARROW)
    if excess() > 0:
        between = 1
    left_out = []
    silent = {each.heading for each in columns if set(each.texts) <= {MISSING}}
    for heading in sorted(given_up, key=lambda heading: heading not in silent):
        if excess() > 0:
            columns = [each for each in columns if each.heading != heading]
            left_out.append(heading)
    cut(_NARROWEST)
    return columns, left_out, between
