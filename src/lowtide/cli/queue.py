"""`lowtide queue`: what is looked after, how it stands, and what became of it."""

from __future__ import annotations

import getpass
import math
import os
import shutil
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lowtide.cli.deferring import forecaster, iso_or_none
from lowtide.cli.options import StorePlace, UsualGridOptions
from lowtide.cli.output import TABLE, Column, Form, print_rows, say, warn
from lowtide.units import (
    format_number,
    format_percent,
)

if TYPE_CHECKING:
    from lowtide.acting.backend import Seen
    from lowtide.acting.book import Book, BookPage
    from lowtide.acting.driver import Driver, Turn
    from lowtide.acting.journal import Journal
    from lowtide.acting.judge import Judgement
    from lowtide.acting.local_jobs import LocalJob
    from lowtide.acting.slurm import SlurmBackend
    from lowtide.acting.tag import Tag
    from lowtide.acting.waits import Calibration
    from lowtide.store import Store

# For how long jobs that have ended are listed.
_LISTED_S = 7 * 86_400.0

Everyone = Annotated[
    bool,
    typer.Option(
        "--all-users", help="Look after jobs of all users that carry a tag, as an operator may."
    ),
]


def queue(
    *,
    asked: UsualGridOptions,
    all_users: Everyone = False,
    store: StorePlace = None,
    form: Form = TABLE,
) -> None:
    """Show jobs of lowtide sbatch: when they begin.

    Slack is how much later a job could begin and still be done in time. Of jobs that ended within
    a week it is told what was planned, what that comes to at the starts that came, and what was
    measured, if a store of lowtide watch knows. No job is changed.
    """
    turn, driver, journal = _settled(asked, all_users, store)
    here = journal.local.all(turn.now)
    is_known = _is_known(turn, here)
    looks_ahead = asked.signal is not None or asked.usual is not None
    columns = (
        Column("job_id", "job"),
        Column("name", "name"),
        Column("what", "stands"),
        Column("begin", "begins (UTC)", lambda text: text[:16].replace("T", " ")),
        Column("latest", "has to by", lambda text: text[:16].replace("T", " ")),
        Column("slack_s", "slack"),
        Column("wait_s", "queue"),
        Column("deadline", "done by", lambda text: text[:16].replace("T", " ")),
        Column("promise", "promise"),
        Column("sure", "how sure"),
        Column("progress_s", "saved"),
        Column("why", "why"),
    )
    pages = {page.token: page for page in journal.book.pages(now=turn.now)}
    calibrations: dict[str, Calibration] = {}
    rows = [
        {
            **_row(verdict, turn.now, looks_ahead=looks_ahead),
            **_sure(verdict, driver, turn.now, calibrations),
            **_planned(pages.get(verdict.tag.token)),
        }
        for verdict in turn.verdicts
    ]
    ended = [
        acted_document(page)
        for page in pages.values()
        if page.is_over and turn.now - (page.ended or page.arrival) < _LISTED_S
    ]

    local = [_local_row(job, turn.now) for job in here]

    def show() -> None:
        if rows or local:
            print_rows(columns, [*rows, *local])
        elif turn.reached:
            say("no job that lowtide sbatch has submitted is in the queue")
        if not is_known:
            say("Slurm does not answer: which jobs are in its queue is not known")
        if ended:
            print()
            print_rows(ENDED, ended)

    document = {"jobs": rows if is_known else None, "local": local, "ended": ended}
    form.print([*rows, *local], columns=columns, document=document, show=show)
    if not is_known:
        raise typer.Exit(1)


def _local_row(job: LocalJob, now: float) -> dict[str, Any]:
    waits = job.what == "waits" and job.latest is not None and math.isfinite(job.latest)
    return {
        "job_id": f"here:{job.pid}",
        "name": job.name,
        "what": job.what,
        "begin": iso_or_none(job.begin),
        "latest": iso_or_none(job.latest) if waits and job.latest is not None else None,
        "slack_s": job.latest - max(job.begin, now) if waits and job.latest is not None else None,
        "wait_s": None,
        "deadline": None if job.deadline is None else iso_or_none(job.deadline),
        "promise": None,
        "sure": None,
        "progress_s": None,
        "why": job.why,
        "token": job.token,
        "again": None if job.lives else job.again,
    }


def _settled(
    asked: UsualGridOptions, all_users: bool, store: str | None
) -> tuple[Turn, Driver, Journal]:
    """Look at the queue, moving nothing, and find out what became of jobs that have left it."""
    driver, journal = make_driver(asked, all_users=all_users)
    driver.dry = True
    turn = driver.turn()
    if turn.reached or not _is_known(turn, journal.local.all(turn.now)):
        tell_problems(turn)
    settle(turn, driver, journal, journal.book, store)
    return turn, driver, journal


def _is_known(turn: Turn, here: Sequence[LocalJob]) -> bool:
    """Return whether it is known what waits: without a Slurm, what runs here is all there is."""
    return turn.reached or (bool(here) and shutil.which("squeue") is None)


JobNumber = Annotated[
    str, typer.Argument(help="The job's number as lowtide queue shows it.", metavar="JOB")
]


def release(job: JobNumber, form: Form = TABLE) -> None:
    """Let a job begin now.

    It is its user's own from then on: nobody defers it again, or stops it.
    """
    from dataclasses import replace

    from lowtide.acting.tag import encode

    backend, found, tag, text = _found(job)
    if found.held:
        backend.release(found)
    if found.state == "pending":
        backend.begin(found, backend.now(), encode(replace(tag, users_own=True), text))
    else:
        backend.note(found, encode(replace(tag, users_own=True), text))
    _tell_change(found, f"job {job} begins as soon as there is room for it, and is yours", form)


def hold(job: JobNumber, form: Form = TABLE) -> None:
    """Keep a job from starting until it is released.

    Nobody looks after its deadline meanwhile.
    """
    from lowtide.acting.slurm import asked

    backend, found, _, _ = _found(job)
    asked(backend, "scontrol", "hold", found.id)
    words = f"job {job} is held: lowtide queue release {job}, or scontrol release {job}, lets it go"
    _tell_change(found, words, form)


def forget(job: JobNumber, form: Form = TABLE) -> None:
    """Look after a job no more; it begins when it was to."""
    backend, found, _, text = _found(job)
    backend.note(found, text)
    words = f"job {job} is not looked after any more, and begins when it was to"
    _tell_change(found, words, form)


def _tell_change(job: Seen, words: str, form: Form) -> None:
    row = {"job_id": job.id, "name": job.name or None, "told": words}
    form.print([row], columns=[Column(key) for key in row], document=row, show=lambda: say(words))


def _found(job: str) -> tuple[SlurmBackend, Seen, Tag, str]:
    """Return the backend, a job that is looked after, and what stands beside it."""
    from lowtide.acting.slurm import SlurmBackend
    from lowtide.acting.tag import decode
    from lowtide.errors import InvalidInput

    backend = SlurmBackend()
    jobs = backend.look().jobs
    for seen in jobs:
        tag, text = decode(seen.comment)
        if tag is not None and job in (seen.id, seen.id.partition("_")[0]):
            return backend, seen, tag, text
    known = ", ".join(seen.id for seen in jobs[:20]) or "none"
    raise InvalidInput(
        f"no job {job} of lowtide sbatch is in the queue: lowtide queue lists them ({known})"
    )


def make_driver(
    asked: UsualGridOptions,
    *,
    all_users: bool,
    reserves: bool = False,
    sees_others: bool = False,
) -> tuple[Driver, Journal]:
    """Return a driver of the jobs of whoever asks, or of all, and what is known besides."""
    from lowtide.acting.driver import Driver
    from lowtide.acting.journal import Journal
    from lowtide.acting.slurm import SlurmBackend
    from lowtide.acting.waits import WaitModel

    journal = Journal.of_user()
    model = WaitModel(looked=journal.looked)
    forecast = forecaster(asked, until=time.time() + 7 * 86_400.0)
    user = None if all_users else who_asks()
    backend = SlurmBackend(
        user=user, operator=all_users, reserves=reserves, sees_others=sees_others
    )
    model.learn([*journal.waits(), *journal.past(backend.past_waits)])
    driver = Driver(backend=backend, forecast=forecast, profile=journal.profile, waits=model)
    return driver, journal


def who_asks() -> str:
    """Return what Slurm calls whoever asks."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return str(os.getuid())


def settle(
    turn: Turn,
    driver: Driver,
    journal: Journal,
    book: Book,
    place: str | None,
) -> list[BookPage]:
    """Find out what became of jobs that have left the queue; whatever fails, nothing else does.

    A driver that moves jobs brings those back of which a controller has forgotten that they save.
    """
    from lowtide.acting.settling import Settler
    from lowtide.acting.slurm import SlurmBackend
    from lowtide.errors import LowtideError

    backend = driver.backend
    if not turn.reached or not isinstance(backend, SlurmBackend):
        return []
    try:
        gone = book.see((verdict.seen for verdict in turn.verdicts), now=turn.now)
        with _watched(place) as store:
            settler = Settler(
                client=backend.client,
                book=book,
                experiences=journal.experiences,
                journal=journal,
                store=store,
                signal=turn.signal,
                rescue=None if driver.dry else backend.bring_back,
            )
            return settler.settle(gone, now=turn.now)
    except LowtideError as error:
        warn(f"{error}; what became of ended jobs is not known")
        return []


@contextmanager
def _watched(place: str | None) -> Iterator[Store | None]:
    """Open what was watched; None where nobody has, unless a place was named."""
    from lowtide.errors import MissingExtra, StoreProblem
    from lowtide.store import Store

    try:
        store = Store.open(place, readonly=True)
    except (StoreProblem, MissingExtra):
        if place is not None:
            raise
        yield None
        return
    with store:
        yield store


def _sure(
    verdict: Judgement, driver: Driver, now: float, kept: dict[str, Calibration]
) -> dict[str, Any]:
    """Return which kind of promise a job has, and how sure it is."""
    seen, promise = verdict.seen, verdict.promise
    kind = "boost" if seen.is_next or "boost" in driver.backend.can() else "probability"
    kind = "reservation" if seen.reserved is not None else kind
    # What runs, or was promised nothing, has none.
    is_kept = promise is not None and seen.state == "pending" and promise.latest >= now
    known = kept.get(seen.kind)
    if known is None:
        known = kept[seen.kind] = driver.waits.calibration(seen.kind, now)
    return {
        "promise": kind if is_kept else None,
        "starts": known.said if is_kept else None,
        "late": known.late if is_kept else None,
        "sure": known.sure if is_kept and kind == "probability" else None,
    }


def _planned(page: BookPage | None) -> dict[str, Any]:
    """Return what was planned for a job."""
    known = page and page.reckoning
    return {
        "planned": page and page.planned,
        "planned_at_once": page and page.planned_at_once,
        "planned_saving": known and known.planned_saving,
        "unit": page and page.unit,
    }


def acted_document(page: BookPage) -> dict[str, Any]:
    """Return what scripts get of a job that has ended: plan, replay, measurement, saving."""
    known = page.reckoning
    return {
        "job_id": page.job_id,
        "name": page.name or None,
        "ended": None if page.ended is None else iso_or_none(page.ended),
        "outcome": page.outcome,
        "in_time": page.in_time,
        "deadline": iso_or_none(page.deadline),
        "starts": len(page.begun) or None,
        "planned": page.planned,
        "replayed": page.replayed,
        "measured": page.measured,
        "at_once": page.at_once,
        "unit": page.unit,
        "power": page.power,
        "saving": known.saving,
        "saved": known.saved,
        "gap": page.gap,
        "token": page.token,
    }


ENDED = (
    Column("job_id", "job"),
    Column("name", "name"),
    Column("ended", "ended (UTC)", lambda text: text[:16].replace("T", " ")),
    Column("outcome", "how"),
    Column("in_time", "in time"),
    Column("planned", "planned", format_number),
    Column("replayed", "replayed", format_number),
    Column("measured", "measured", format_number),
    Column("unit", "in"),
    Column("saving", "saved"),
)


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
    if tag.changed:
        why += "; it went on with programs that were changed since it was submitted"
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


def tell_problems(turn: Turn, said: set[str] | None = None) -> None:
    """Say what went wrong in a turn, and what was said before no more."""
    for problem in turn.problems:
        if said is None or problem not in said:
            warn(problem)
            if said is not None:
                said.add(problem)


def waits(*, asked: UsualGridOptions, all_users: Everyone = False, form: Form = TABLE) -> None:
    """Say how often jobs waited longer than was foretold."""
    driver, _ = make_driver(asked, all_users=all_users)
    driver.dry = True
    driver.turn()
    now = time.time()
    rows = [driver.waits.calibration(kind, now) for kind in driver.waits.kinds]
    columns = (
        Column("kind", "class"),
        Column("starts", "starts"),
        Column("said", "foretold"),
        Column("late", "later"),
        Column("share", "share", format_percent),
        Column("wait_s", "queue takes up to"),
        Column("is_trusted", "deferred"),
    )
    documents = [{each.key: each.value(row) for each in columns} for row in rows]
    form.print(documents, columns=columns, document={"classes": documents})


def report(
    *,
    asked: UsualGridOptions,
    all_users: Everyone = False,
    days: Annotated[float, typer.Option(min=0.0, help="How far back it goes, in days.")] = 7.0,
    store: StorePlace = None,
    form: Form = TABLE,
) -> None:
    """Say what jobs that have ended came to, class by class.

    And what lowtide drive --suppose has counted.
    """
    from lowtide.acting.book import by_class
    from lowtide.acting.supposed import would_save

    turn, _, journal = _settled(asked, all_users, store)
    book = journal.book
    since = turn.now - days * 86_400.0
    pages = [page for page in book.pages(now=turn.now) if (page.ended or page.arrival) >= since]
    rows = by_class(pages)
    supposed = would_save(journal.supposed, since=since)
    columns = (
        Column("kind", "class"),
        Column("jobs", "jobs"),
        Column("in_time", "in time"),
        Column("late", "late"),
        Column("planned", "planned", format_number),
        Column("replayed", "replayed", format_number),
        Column("measured", "measured", format_number),
        Column("unit", "in"),
        Column("plan_gap", "plan off", format_percent),
        Column("profile_gap", "profile off", format_percent),
        Column("measured_jobs", "measured jobs"),
        Column("saving", "saved"),
    )
    would = (
        Column("kind", "class"),
        Column("jobs", "jobs"),
        Column("deferred", "would wait"),
        Column("cpu_hours", "CPU hours by limits", format_number),
        Column("saving", "would save, by plan"),
    )

    def show() -> None:
        print_rows(columns, rows, none="no job of lowtide sbatch has ended in that time")
        if supposed:
            print()
            print_rows(would, supposed)

    form.print(rows, columns=columns, document={"classes": rows, "supposed": supposed}, show=show)
