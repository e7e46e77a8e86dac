"""Making what is old coarser: a value per minute, later one per hour, instead of every look."""

from __future__ import annotations

import itertools

import sqlalchemy as sa

from lowtide.store.consolidation import chunk_row, consolidate
from lowtide.store.database import Database
from lowtide.store.encoding import decode, join, roll_up
from lowtide.store.reading import read_hosts
from lowtide.store.records import DAY_S, Retention
from lowtide.store.tables import chunks, in_parts

# From which resolution to which, and how much time a new chunk spans.
_STEPS = ((0, 60, DAY_S), (60, 3600, 30 * DAY_S))
# With fewer values than this there is nothing to gain by rolling up.
_FEW = 8


def roll_up_old(
    database: Database, retention: Retention, *, now: float, most: int | None = None
) -> int:
    """Roll up what is old enough, and return how many chunks that were.

    Args:
        database: The store.
        retention: How long what is kept.
        now: The present moment, epoch seconds.
        most: Stop after about so many chunks; the rest is for another time.
    """
    done = 0
    for (old, new, span_s), keep_s in zip(
        _STEPS, (retention.looks_s, retention.minutes_s), strict=True
    ):
        # Only whole spans, so that the last of one is not done over and over.
        limit = (now - keep_s) // span_s * span_s
        while most is None or done < most:
            part = _roll_up_some(database, old, new, span_s, limit)
            done += part
            if not part:
                break
    return done


def consolidate_forgotten(database: Database, *, now: float) -> None:
    """Bring ticks into chunks whose watcher seems to be gone for good.

    Args:
        database: The store.
        now: The present moment, epoch seconds.
    """
    with database.reading() as connection:
        quiet = [host for host in read_hosts(connection) if now - host.last_time > DAY_S]
    for host in quiet:
        with database.writing() as connection:
            consolidate(connection, host.number, host.node_unit)


def _roll_up_some(database: Database, old: int, new: int, span_s: float, limit: float) -> int:
    """Roll up the old chunks of some units, all of a span together."""
    with database.writing() as connection:
        due = (chunks.c.resolution == old) & (chunks.c.ends <= limit)
        some = sa.select(chunks.c.unit).where(due).order_by(chunks.c.ends).limit(100).subquery()
        rows = connection.execute(
            sa.select(chunks)
            .where(due, chunks.c.unit.in_(sa.select(some.c.unit)))
            .order_by(chunks.c.unit, chunks.c.id)
        ).all()
        made = []
        for (unit, _), group in itertools.groupby(
            rows, key=lambda row: (row.unit, row.begins // span_s)
        ):
            members = list(group)
            decoded = [decode(row.body) for row in members]
            points = join([part for _, part in decoded])
            if len(points) > _FEW:
                points = roll_up(points, new)
            made.append(chunk_row(unit, points, decoded[0][0], resolution=new))
        if made:
            for part in in_parts([row.id for row in rows]):
                connection.execute(sa.delete(chunks).where(chunks.c.id.in_(part)))
            connection.execute(sa.insert(chunks), made)
        return len(rows)
