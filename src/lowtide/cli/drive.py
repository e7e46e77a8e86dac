"""`lowtide drive`: the loop that looks after jobs, as their user or as an operator."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lowtide.cli.options import StorePlace, UsualGridOptions
from lowtide.cli.output import TABLE, Column, Form, print_rows, say, warn
from lowtide.cli.queue import Everyone, make_driver, settle, tell_problems
from lowtide.units import format_iso, format_minute, parse_duration

if TYPE_CHECKING:
    from lowtide.acting.book import Book, BookPage
    from lowtide.acting.driver import Driver, Turn
    from lowtide.acting.journal import Journal
    from lowtide.acting.notices import Sender


def drive(
    *,
    asked: UsualGridOptions,
    all_users: Everyone = False,
    once: Annotated[
        bool, typer.Option("--once", help="Look once, for cron or scrontab, and end.")
    ] = False,
    every: Annotated[float, typer.Option(min=1.0, help="Seconds between looks.")] = 60.0,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Say what would be moved, and move nothing.")
    ] = False,
    suppose: Annotated[
        str | None,
        typer.Option(
            help="With --dry-run: count what would be saved could every job be done so much later "
            "than at once; lowtide queue report tells it.",
            metavar="DURATION",
        ),
    ] = None,
    reserve: Annotated[
        bool,
        typer.Option(
            "--reserve",
            help="Keep nodes free for jobs from their begin on, which needs more than a user may; "
            "with --all-users.",
        ),
    ] = False,
    table: Annotated[
        Path | None,
        typer.Option(
            help="Write here when it is clean, for a job_submit.lua that defers jobs.",
            metavar="FILE",
        ),
    ] = None,
    together: Annotated[
        bool,
        typer.Option(
            "--together",
            help="Plan all jobs that wait together, so that clean hours are shared out; with "
            "--all-users.",
        ),
    ] = False,
    notify: Annotated[
        list[str] | None,
        typer.Option(
            help="Tell users of their jobs, once each: mailto:ada@example.org, "
            "mailto:{user}@example.org for jobs of all users, or https://…",
            metavar="ADDRESS",
        ),
    ] = None,
    store: StorePlace = None,
    form: Form = TABLE,
) -> None:
    """Look after jobs of lowtide sbatch: move and stop them.

    Begins are moved as forecasts change, and what can save is stopped in dirty hours.
    Every promise holds without it. It may be killed at any time, and started again without memory.
    """
    from lowtide.errors import InvalidInput
    from lowtide.interruption import by_signals

    if asked.signal is None and asked.usual is None:
        raise InvalidInput(
            "without a forecast every job would begin now: say which grid it is, --grid with a "
            "provider's zone (gb, electricitymaps:DE, ...), LOWTIDE_GRID for all that follow, or "
            "--signal FILE"
        )
    from lowtide.acting.notices import sender_for

    senders = [sender_for(address, os.environ) for address in notify or ()]
    if suppose is not None and not dry_run:
        raise InvalidInput("what is only supposed moves no job: add --dry-run, or leave --suppose")
    if reserve and not all_users:
        raise InvalidInput(
            "nodes are reserved by who looks after all: add --all-users, or leave out --reserve"
        )
    slack_s = None if suppose is None else parse_duration(suppose)
    driver, journal = make_driver(
        asked,
        all_users=all_users,
        reserves=reserve,
        sees_others=suppose is not None,
    )
    driver.dry = dry_run
    if together:
        _plan_together(driver, journal, all_users=all_users)
    if slack_s is not None:
        from lowtide.acting.supposed import Supposition

        driver.supposition = Supposition(path=journal.supposed, slack_s=slack_s)
    said: set[str] = set()
    # Kept from turn to turn: an operator has thousands of jobs.
    book = journal.book
    try:
        with by_signals(), journal.claim() as alone:
            if not alone:
                warn("another lowtide drive looks after these jobs: both want the same")
            while True:
                turn = driver.turn()
                tell_problems(turn, said)
                if not turn.is_whole:
                    _tell_moves(turn, dry=dry_run)
                    continue
                _keep(driver, journal)
                _tabulate(table, turn, driver)
                settled = settle(turn, driver, journal, book, store)
                if senders and not dry_run:
                    _notify(turn, settled, book, senders)
                if once:
                    if not turn.reached:
                        # That nothing is known of any job is no list of no jobs.
                        raise typer.Exit(1)
                    _tell_turn(turn, driver, form)
                    return
                _tell_moves(turn, dry=dry_run)
                time.sleep(every)
    except KeyboardInterrupt:
        if once:
            raise


def _plan_together(driver: Driver, journal: Journal, *, all_users: bool) -> None:
    """Have a driver share clean hours out among all jobs that wait."""
    from lowtide.acting.slurm import SlurmBackend
    from lowtide.acting.together import Together, constant_of
    from lowtide.errors import InvalidInput

    if not all_users or not isinstance(driver.backend, SlurmBackend):
        raise InvalidInput(
            "jobs are planned together by who sees them all: add --all-users, or leave out "
            "--together"
        )
    driver.together = Together(
        clusters=driver.backend.nodes,
        profile=lambda verdict: journal.profile(verdict.tag) or constant_of(verdict),
    )


def _keep(driver: Driver, journal: Journal) -> None:
    from lowtide.errors import FileProblem

    try:
        journal.keep_waits(driver.waits.waits)
    except FileProblem as error:
        warn(f"{error}; how long jobs waited is not kept")


def _tabulate(path: Path | None, turn: Turn, driver: Driver) -> None:
    """Write when it is clean, for who defers jobs as they are handed in."""
    from lowtide.acting.table import write_table
    from lowtide.errors import LowtideError

    if path is None or not turn.reached:
        return
    try:
        write_table(path, turn.signal, driver.waits, turn.loops, turn.now, turn.backlog_s)
    except LowtideError as error:
        warn(f"{error}; jobs that are handed in begin now once the last table is two hours old")


def _notify(turn: Turn, settled: list[BookPage], book: Book, senders: list[Sender]) -> None:
    from lowtide.acting.notices import notices, send_new

    found = notices(turn.verdicts, settled, now=turn.now)
    for problem in send_new(found, book, senders, now=turn.now):
        warn(problem)


def _tell_moves(turn: Turn, *, dry: bool) -> None:
    for row in _moves(turn, dry=dry):
        warn(f"{row['job_id']}: {row['move']}, {row['why']}")


def _moves(turn: Turn, *, dry: bool) -> list[dict[str, Any]]:
    if dry:
        found = [(each, move, "") for each in turn.verdicts for move in each.moves]
    else:
        found = [(deed.verdict, deed.move, deed.problem) for deed in turn.deeds]
    return [
        {
            "job_id": verdict.seen.id,
            "move": move.kind,
            "at": None if move.at is None else format_iso(move.at),
            "why": verdict.why,
            "done": not (dry or problem),
            "problem": problem or None,
        }
        for verdict, move, problem in found
    ]


def _tell_turn(turn: Turn, driver: Driver, form: Form) -> None:
    rows = _moves(turn, dry=driver.dry)
    columns = (
        Column("job_id", "job"),
        Column("move", "move"),
        Column("at", "to"),
        Column("why", "why"),
        Column("done", "done"),
        Column("problem", "problem"),
    )

    def show() -> None:
        say(f"{len(turn.verdicts)} jobs looked after at {format_minute(turn.now)} UTC")
        if rows:
            print_rows(columns, rows)

    document = {"now": format_iso(turn.now), "jobs": len(turn.verdicts), "moves": rows}
    form.print(rows, columns=columns, document=document, show=show)
