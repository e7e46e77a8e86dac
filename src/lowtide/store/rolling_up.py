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
# So many chunks are looked for in one transaction.
_AT_ONCE = 500


def roll_up_old(
    database: Database, retention: Retention, *, now: float, most: int | None = None
) -> int:
    """Roll up what is old enough, and return how many chunks that were.

    Args:
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
        some = sa.select(chunks.c.unit).where(due).order_by(chunks.c.ends).limit(_AT_ONCE)
        rows = connection.execute(
            sa.select(chunks.c.id, chunks.c.unit, chunks.c.begins, chunks.c.points)
            .where(due, chunks.c.unit.in_(sa.select(some.subquery().c.unit)))
            .order_by(chunks.c.unit, chunks.c.id)
        ).all()
        small: list[int] = []
        groups: list[tuple[int, list[int]]] = []
        for (unit, _), group in itertools.groupby(
            rows, key=lambda row: (row.unit, row.begins // span_s)
        ):
            members = list(group)
            if sum(row.points for row in members) <= _FEW:
                small += [row.id for row in members]
            else:
                groups.append((unit, [row.id for row in members]))
        for part in in_parts(small):
            connection.execute(
                sa.update(chunks).where(chunks.c.id.in_(part)).values(resolution=new)
            )
        _replace(connection, groups, new)
        return len(rows)


def _replace(
    connection: sa.Connection, groups: list[tuple[int, list[int]]], resolution: int
) -> None:
    """Put one coarser chunk in the place of each group of them."""
    numbers = [number for _, members in groups for number in members]
    if not numbers:
        return
    bodies: dict[int, bytes] = {}
    for part in in_parts(numbers):
        question = sa.select(chunks.c.id, chunks.c.body).where(chunks.c.id.in_(part))
        bodies |= {row.id: row.body for row in connection.execute(question)}
        connection.execute(sa.delete(chunks).where(chunks.c.id.in_(part)))
    made = []
    for unit, members in groups:
        decoded = [decode(bodies[number]) for number in members]
        points = join([part for _, part in decoded])
        if len(points) > _FEW:
            points = roll_up(points, resolution)
        made.append(chunk_row(unit, points, decoded[0][0], resolution=resolution))
    connection.execute(sa.insert(chunks), made)
