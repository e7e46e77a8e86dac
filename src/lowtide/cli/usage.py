"""`lowtide usage`: who used how much, or when it was used."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from lowtide.certainty import is_estimated, marked, marks_for
from lowtide.cli.jobs import opened, sources_of, users_of, window
from lowtide.cli.options import ReadPlace, Since, Sources, Until, Users
from lowtide.cli.output import (
    SYNTHETIC,
    TABLE,
    Column,
    Form,
    print_rows,
    progress,
    say,
)

if TYPE_CHECKING:
    from lowtide.store.accounts import Account, Accounts, NodeAccount

_BLOCKS = " ▏▎▍▌▋▊▉█"
_BAR = 16
_USUAL_S = 30 * 86400.0
# So many stretches without data are named; more are counted.
_NAMED = 3
_KEYS = (
    *("jobs", "cpu_h", "core_h", "gpu_h", "energy_j", "measured_j", "carbon_g", "watched"),
    *("unknown_duration", "unmetered_s", "unpriced_j", "cpu_efficiency", "compared_jobs"),
)
# What an account calls its time, and programs get in hours.
_HOURS = {"cpu_s": "cpu_h", "core_s": "core_h", "gpu_s": "gpu_h"}


def usage(
    by: Annotated[
        str,
        typer.Option(
            help="What to sum over: user, account, partition, name, state, day, hour, weekday."
        ),
    ] = "user",
    user: Users = None,
    source: Sources = None,
    start: Since = None,
    end: Until = None,
    store: ReadPlace = None,
    form: Form = TABLE,
) -> None:
    """Sum up what jobs used and emitted, by user, hour, host.

    By default over the last 30 days. Jobs that ran on beyond the window count with what they used
    in it. Core-hours are those that were kept, CPU-hours those that were used. A time when nobody
    watched is no data, not nothing. What is marked with ~ was estimated, what is marked with > is
    the least it can be.
    """
    import time

    from lowtide.store import Question
    from lowtide.store.accounts import sum_up

    now = time.time()
    begin, until = window(start, end, now=now, usual_s=_USUAL_S)
    question = Question(
        users=users_of(user),
        sources=sources_of(source),
        start=begin,
        end=now if until is None else until,
    )
    with opened(store) as kept, progress("reading") as bar:
        accounts = sum_up(kept, question, by=by, now=now, told=bar.reach)
        name = kept.name
        made_up = any(
            begins < accounts.end and ends > accounts.start for _, begins, ends in kept.synthetic()
        )
    document = {**_document(accounts, by), "synthetic": made_up}

    def show() -> None:
        if not accounts.rows:
            say(f"No jobs in that time in {name}.")
            return
        _show(accounts, by)
        if made_up:
            say(f"{SYNTHETIC}, in all of that time or in a part of it.")

    form.print(
        document["rows"],
        columns=[
            *map(Column, (by, *_KEYS, "lacking")),
            *([Column("synthetic", read=lambda _: True)] * made_up),
        ],
        document=document,
        show=show,
        digits=15,
    )


def _document(accounts: Accounts, by: str) -> dict[str, Any]:
    from dataclasses import asdict

    return {
        "by": by,
        "start": accounts.start,
        "end": accounts.end,
        "rows": [
            {
                by: row.label,
                "jobs": row.jobs,
                "cpu_h": row.cpu_s / 3600,
                "core_h": row.core_s / 3600,
                "gpu_h": row.gpu_s / 3600,
                "energy_j": row.energy_j,
                "measured_j": row.measured_j,
                "carbon_g": row.carbon_g,
                "watched": row.watched,
                "unknown_duration": row.unknown_duration,
                "unmetered_s": row.unmetered_s,
                "unpriced_j": row.unpriced_j,
                "cpu_efficiency": row.cpu_efficiency,
                "compared_jobs": row.compared,
                "lacking": [_HOURS.get(name, name) for name in row.lacking],
            }
            for row in accounts.rows
        ],
        "gaps": [
            {"host": host, "start": first, "end": last} for host, first, last in accounts.gaps
        ],
        "nodes": None if accounts.nodes is None else asdict(accounts.nodes),
    }


def _show(accounts: Accounts, by: str) -> None:
    from lowtide.units import format_percent

    def quantity(name: str, heading: str) -> Column:
        hours = name in _HOURS
        return Column(
            name,
            heading,
            "{:,.1f}".format if hours else None,
            (lambda row: getattr(row, name) / 3600) if hours else None,
            lambda row: marks_for(
                estimated=not hours and is_estimated(row.energy_j, row.measured_j),
                partial=name in row.lacking,
            ),
        )

    rows = accounts.rows
    # Bars show energy; where nobody knows any, time.
    bars = "energy_j" if any(row.energy_j > 0 for row in rows) else "cpu_s"
    most = max((size for row in rows if (size := getattr(row, bars)) == size), default=0.0)

    def bar(row: Account) -> str:
        return _bar(getattr(row, bars) / most if most > 0 else 0.0) if row.watched else "no data"

    guessed = any(is_estimated(row.energy_j, row.measured_j) for row in rows)
    nodes_lack = accounts.nodes is not None and bool(accounts.nodes.lacking)
    by_time = by in ("day", "hour", "weekday")
    print_rows(
        (
            Column("label", f"{by} ({accounts.zone})" if by_time else by),
            Column("jobs", "jobs", read=lambda row: row.jobs if row.watched else None),
            quantity("cpu_s", "CPU-h"),
            quantity("core_s", "core-h"),
            Column("cpu_efficiency", "CPUEff", format_percent),
            quantity("gpu_s", "GPU-h"),
            quantity("energy_j", "energy"),
            quantity("carbon_g", "CO2e"),
            *([Column("watched", "watched", format_percent)] if by_time else ()),
            Column("", "", read=bar),
        ),
        rows,
        marks=marks_for(estimated=guessed, partial=nodes_lack),
    )
    _explain(accounts, guessed=guessed)


def _explain(accounts: Accounts, *, guessed: bool) -> None:
    from lowtide.units import format_count, format_time

    if accounts.nodes is not None and accounts.nodes.energy_j == accounts.nodes.energy_j:
        say(_told_of_nodes(accounts.nodes, estimated=guessed))
    if unknown := sum(row.unknown_duration for row in accounts.rows):
        say(
            f"{format_count(unknown, 'job')} of unknown duration (seen once): in CPU-h and energy, "
            "not in core-h and GPU-h."
        )
    if any("cpu_s" in row.lacking for row in accounts.rows):
        say("CPUEff is that of the jobs of which both CPU-h and core-h are known.")
    for host, first, last in accounts.gaps[:_NAMED]:
        say(f"No data of {host} from {format_time(first)} to {format_time(last)}.")
    if (more := len(accounts.gaps) - _NAMED) > 0:
        say(f"And {more} more {'stretch' if more == 1 else 'stretches'} without data.")


def _told_of_nodes(nodes: NodeAccount, *, estimated: bool) -> str:
    """Return what nodes drew and emitted, and what of it no job is charged with."""
    from lowtide.units import format_energy, format_mass

    def both(energy_j: float, carbon_g: float) -> str:
        energy = marked(
            format_energy(energy_j), estimated=estimated, partial="energy_j" in nodes.lacking
        )
        grams = marked(
            format_mass(carbon_g), estimated=estimated, partial="carbon_g" in nodes.lacking
        )
        return f"{energy}, {grams} CO2e"

    return (
        f"The nodes in all: {both(nodes.energy_j, nodes.carbon_g)}; of that idle "
        f"{both(nodes.idle_j, nodes.idle_g)}; charged to nobody "
        f"{both(nodes.unattributed_j, nodes.unattributed_g)}."
    )


def _bar(share: float) -> str:
    """Draw a share as a bar, to an eighth of a character."""
    eighths = round(8 * _BAR * share) if share == share else 0
    # Something is never drawn as nothing.
    eighths = max(eighths, 1) if share > 0 else 0
    whole, rest = divmod(eighths, 8)
    return "█" * whole + (_BLOCKS[rest] if rest else "")
