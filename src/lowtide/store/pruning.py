"""Letting go of what is too old or takes too much room."""

from __future__ import annotations

from dataclasses import dataclass

import sqlalchemy as sa

from lowtide.errors import InvalidInput
from lowtide.store.database import Database
from lowtide.store.records import DAY_S, Retention
from lowtide.store.rolling_up import consolidate_forgotten, roll_up_old
from lowtide.store.tables import chunks, jobs, origins, phases, size_bytes, units
from lowtide.units import format_hours

# Watchers remember for a day what they saw, and count on from it.
LEAST_AGE_S = 2 * DAY_S


@dataclass(frozen=True, slots=True, kw_only=True)
class Pruned:
    """What was let go.

    Attributes:
        rolled_up: Chunks that were made coarser.
        jobs: Jobs that are gone.
        chunks: Chunks that are gone.
        bytes_before: How much room the store took.
        bytes_after: How much it takes now.
        kept_from: The moment before which nothing is kept; None where there is no such limit.
    """

    rolled_up: int
    jobs: int
    chunks: int
    bytes_before: int
    bytes_after: int
    kept_from: float | None


def prune(
    database: Database,
    retention: Retention,
    *,
    now: float,
    older_than_s: float | None = None,
    most_bytes: int | None = None,
) -> Pruned:
    """Roll up what is due, delete what is too old, and give the room back.

    Args:
        now: The present moment, epoch seconds.
        older_than_s: Delete jobs that ended longer ago than this, and what was seen then; at least
            `LEAST_AGE_S`.
        most_bytes: Delete the oldest, day by day, until the store takes no more room than this, or
            nothing older than `LEAST_AGE_S` is left.
    """
    if older_than_s is not None and older_than_s < LEAST_AGE_S:
        raise InvalidInput(
            f"what is younger than {LEAST_AGE_S / DAY_S:g} days is kept, for watchers still count "
            f"on it: prune what is older than that, not than {format_hours(older_than_s)}"
        )
    before = _size(database)
    consolidate_forgotten(database, now=now)
    rolled_up = roll_up_old(database, retention, now=now)
    gone_jobs = gone_chunks = 0
    kept_from = None
    if older_than_s is not None:
        kept_from = now - older_than_s
        gone_jobs, gone_chunks = _delete(database, kept_from)
    if most_bytes is not None:
        while (oldest := _oldest(database)) is not None and _size(database) > most_bytes:
            # Whole days, the first of which has something in it.
            limit = (oldest // DAY_S + 1) * DAY_S
            if limit > now - LEAST_AGE_S:
                break
            deleted = _delete(database, limit)
            gone_jobs, gone_chunks = gone_jobs + deleted[0], gone_chunks + deleted[1]
            kept_from = limit
    database.tidy()
    return Pruned(
        rolled_up=rolled_up,
        jobs=gone_jobs,
        chunks=gone_chunks,
        bytes_before=before,
        bytes_after=_size(database),
        kept_from=kept_from,
    )


def _size(database: Database) -> int:
    with database.reading() as connection:
        return size_bytes(database, connection)


def _oldest(database: Database) -> float | None:
    with database.reading() as connection:
        moments = [
            connection.execute(sa.select(sa.func.min(column))).scalar()
            for column in (chunks.c.ends, jobs.c.ends)
        ]
    return min((moment for moment in moments if moment is not None), default=None)


def _delete(database: Database, limit: float) -> tuple[int, int]:
    """Delete jobs that were over by then, and what was seen until then of others."""
    over = sa.select(jobs.c.id).where(jobs.c.ends < limit)
    theirs = sa.select(units.c.id).where(units.c.job.in_(over))
    with database.writing() as connection:
        gone_chunks = connection.execute(
            sa.delete(chunks).where(sa.or_(chunks.c.ends < limit, chunks.c.unit.in_(theirs)))
        ).rowcount
        for table in (phases, origins):
            connection.execute(sa.delete(table).where(table.c.job.in_(over)))
        connection.execute(sa.delete(units).where(units.c.job.in_(over)))
        gone_jobs = connection.execute(sa.delete(jobs).where(jobs.c.ends < limit)).rowcount
    return gone_jobs, gone_chunks
