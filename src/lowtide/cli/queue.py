"""`lowtide queue` and `lowtide drive`: what is looked after, and the loop that looks after it."""

from __future__ import annotations

import getpass
import math
import os
import time
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lowtide.cli.options import GridName, How, Seed, SignalFile
from lowtide.cli.output import TABLE, Column, Form, print_rows, say, warn
from lowtide.cli.run import forecaster, iso_or_none
from lowtide.units import format_duration, format_iso, format_minute, format_percent

if TYPE_CHECKING:
    from lowtide.acting.driver import Driver, Turn
    from lowtide.acting.journal import Journal
    from lowtide.acting.judge import Judgement

Everyone = Annotated[
    bool,
    typer.Option(
        "--all-users", help="Look after jobs of all users that carry a tag, as an operator may."
    ),
]


def queue(
    signal: SignalFile = None,
    grid: GridName = None,
    seed: Seed = 0,
    how: How = None,
    all_users: Everyone = False,
    calibration: Annotated[
        bool,
        typer.Option("--calibration", help="Say how often jobs waited longer than was foretold."),
    ] = False,
    form: Form = TABLE,
) -> None:
    """Show jobs of lowtide sbatch: when they begin, how safely.

    Slack is how much later a job could begin and still be done in time. Nothing is changed.
    """
    driver, _ = _driver(signal, grid, seed, how, all_users=all_users)
    driver.dry = True
    turn = driver.turn()
    if calibration:
        _tell_calibration(driver, form)
        return
    _tell_problems(turn)
    looks_ahead = signal is not None or grid is not None
    columns = (
        Column("job_id", "job"),
        Column("name", "name"),
        Column("what", "stands"),
        Column("begin", "begins (UTC)", lambda text: text[:16].replace("T", " ")),
        Column("latest", "has to by", lambda text: text[:16].replace("T", " ")),
        Column("slack_s", "slack", format_duration),
        Column("wait_s", "queue", format_duration),
        Column("deadline", "done by", lambda text: text[:16].replace("T", " ")),
        Column("progress_s", "saved", format_duration),
        Column("why", "why"),
    )
    rows = [_row(verdict, turn.now, looks_ahead=looks_ahead) for verdict in turn.verdicts]

    def show() -> None:
        if not rows:
            say("no job that lowtide sbatch has submitted is in the queue")
            return
        print_rows(columns, rows)

    form.print(rows, columns=columns, document={"jobs": rows}, show=show)


def drive(
    signal: SignalFile = None,
    grid: GridName = None,
    seed: Seed = 0,
    how: How = None,
    all_users: Everyone = False,
    once: Annotated[
        bool, typer.Option("--once", help="Look once, for cron or scrontab, and end.")
    ] = False,
    every: Annotated[float, typer.Option(min=1.0, help="Seconds between looks.")] = 60.0,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Say what would be moved, and move nothing.")
    ] = False,
    form: Form = TABLE,
) -> None:
    """Look after jobs of lowtide sbatch: move and stop them.

    Begins are moved as forecasts change, and what can save is stopped in dirty hours.
    Every promise holds without it. It may be killed at any time, and started again without memory.
    """
    from lowtide.errors import InvalidInput
    from lowtide.interruption import by_signals

    if signal is None and grid is None:
        raise InvalidInput(
            "without a forecast every job would begin now: say which grid it is, --grid with a "
            "provider's zone (gb, electricitymaps:DE, ...) or --signal FILE"
        )
    driver, journal = _driver(signal, grid, seed, how, all_users=all_users)
    driver.dry = dry_run
    said: set[str] = set()
    try:
        with by_signals():
            while True:
                turn = driver.turn()
                _tell_problems(turn, said)
                _keep(driver, journal)
                if once:
                    _tell_turn(turn, driver, form)
                    return
                for row in _moves(turn, dry=dry_run):
                    warn(f"{row['job_id']}: {row['move']}, {row['why']}")
                time.sleep(every)
    except KeyboardInterrupt:
        if once:
            raise


def _driver(
    signal: Any, grid: str | None, seed: int, how: list[str] | None, *, all_users: bool
) -> tuple[Driver, Journal]:
    from lowtide.acting.driver import Driver
    from lowtide.acting.journal import Journal
    from lowtide.acting.slurm import SlurmBackend
    from lowtide.acting.waits import WaitModel

    journal = Journal.of_user()
    model = WaitModel()
    model.learn(journal.waits())
    forecast = forecaster(signal, grid, seed=seed, how=how, until=time.time() + 7 * 86_400.0)
    user = None if all_users else _user()
    return (
        Driver(
            backend=SlurmBackend(user=user, operator=all_users),
            forecast=forecast,
            profile=journal.profile,
            waits=model,
        ),
        journal,
    )


def _user() -> str:
    """Return what Slurm calls whoever asks."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return str(os.getuid())


def _keep(driver: Driver, journal: Journal) -> None:
    from lowtide.errors import FileProblem

    try:
        journal.keep_waits(driver.waits.waits)
    except FileProblem as error:
        warn(f"{error}; how long jobs waited is not kept")


def _row(verdict: Judgement, now: float, *, looks_ahead: bool) -> dict[str, Any]:
    seen, tag, promise = verdict.seen, verdict.tag, verdict.promise
    begin = seen.begin if seen.begin is not None else seen.started
    latest = None if promise is None else promise.latest
    pending = seen.state == "pending"
    what, why = verdict.what, verdict.why
    if pending and what in ("waits", "due") and not looks_ahead:
        # What a forecast would say of it was not asked.
        ahead = begin is not None and begin > now
        what = "waits" if ahead else "due"
        why = "as it was planned last" if ahead else "its begin has come: it waits for its turn"
    return {
        "job_id": seen.id,
        "name": seen.name or None,
        "user": seen.user or None,
        "what": what,
        "begin": None if begin is None else iso_or_none(begin),
        "latest": None if latest is None or not pending else iso_or_none(latest),
        "slack_s": None
        if latest is None or not pending or not math.isfinite(latest)
        else latest - max(begin or now, now),
        "wait_s": None if promise is None else promise.wait_s,
        "deadline": iso_or_none(tag.deadline),
        "progress_s": tag.progress_s or None,
        "why": why,
        "token": tag.token,
    }


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
        Column("done", "done", lambda done: "yes" if done else "no"),
        Column("problem", "problem"),
    )

    def show() -> None:
        say(f"{len(turn.verdicts)} jobs looked after at {format_minute(turn.now)} UTC")
        if rows:
            print_rows(columns, rows)

    document = {"now": format_iso(turn.now), "jobs": len(turn.verdicts), "moves": rows}
    form.print(rows, columns=columns, document=document, show=show)


def _tell_problems(turn: Turn, said: set[str] | None = None) -> None:
    for problem in turn.problems:
        if said is None or problem not in said:
            warn(problem)
            if said is not None:
                said.add(problem)


def _tell_calibration(driver: Driver, form: Form) -> None:
    now = time.time()
    rows = [driver.waits.calibration(kind, now) for kind in driver.waits.kinds]
    columns = (
        Column("kind", "class"),
        Column("starts", "starts"),
        Column("said", "foretold"),
        Column("late", "later"),
        Column("share", "share", format_percent),
        Column("wait_s", "queue takes up to", format_duration),
        Column("is_trusted", "deferred", lambda yes: "yes" if yes else "no"),
    )
    documents = [{each.key: each.value(row) for each in columns} for row in rows]
    form.print(
        documents,
        columns=columns,
        document={"classes": documents},
        show=lambda: print_rows(columns, documents),
    )
