"""Ticks become chunks, chunks become coarser, and what is too old or too much is let go."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Any

import numpy as np
import sqlalchemy as sa

from lowtide.errors import InvalidInput
from lowtide.store.codec import Points, decode, encode, join, roll_up
from lowtide.store.database import Database
from lowtide.store.jobs import read_hosts
from lowtide.store.layout import COUNTED, NODE, UNIT, Layout, pack_numbers
from lowtide.store.matching import refresh
from lowtide.store.records import DAY_S, Retention
from lowtide.store.tables import (
    chunks,
    hosts,
    in_parts,
    jobs,
    origins,
    phases,
    sent_so_far,
    size_bytes,
    ticks,
    units,
)
from lowtide.store.totals import last_known, read_tail, read_ticks
from lowtide.units import format_hours


def consolidate(connection: sa.Connection, host: int, node_unit: int) -> None:
    """Bring all ticks of a host into chunks."""
    if connection.dialect.name == "postgresql":
        # Whoever tidies up and the host's own watcher take turns.
        connection.execute(sa.select(hosts.c.id).where(hosts.c.id == host).with_for_update())
    last, looks = read_ticks(connection, host)
    if not looks:
        return
    tail, before, jobs = read_tail(connection, looks, node_unit)
    after = tail.carried_on(before)
    rows = [
        chunk_row(number, tail.points(place, before[place, COUNTED]), UNIT)
        for place, number in enumerate(tail.units.tolist())
    ]
    changes = [
        {"number": number, "totals": pack_numbers(after[place])}
        for place, number in enumerate(tail.units.tolist())
    ]
    rows.append(chunk_row(node_unit, tail.node, NODE))
    node = last_known(np.vstack([np.nan_to_num(tail.node.base), tail.node.counters]))[-1]
    changes.append({"number": node_unit, "totals": pack_numbers(node)})
    connection.execute(sa.insert(chunks), rows)
    connection.execute(
        sa.update(units)
        .where(units.c.id == sa.bindparam("number"))
        .values(totals=sa.bindparam("totals")),
        changes,
    )
    refresh(connection, sorted(set(jobs.values())))
    lengths = tail.node.time - tail.node.since
    connection.execute(
        sa.update(hosts)
        .where(hosts.c.id == host)
        .values(last_time=looks[-1].time, interval_s=float(np.median(lengths)))
    )
    connection.execute(sa.delete(ticks).where(ticks.c.host == host, ticks.c.id <= last))


def chunk_row(unit: int, points: Points, layout: Layout, *, resolution: int = 0) -> dict[str, Any]:
    """Return values of a unit as a row of the database.

    Args:
        resolution: Seconds of a step; 0 for what is as it was seen.
    """
    return {
        "unit": unit,
        "resolution": resolution,
        "begins": float(points.since.min()),
        "ends": float(points.time.max()),
        "points": len(points),
        "body": encode(points, layout),
    }


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
    """Bring ticks into chunks whose watcher seems to be gone for good."""
    with database.reading() as connection:
        quiet = [host for host in read_hosts(connection) if now - host.last_time > DAY_S]
    for host in quiet:
        with database.writing() as connection:
            consolidate(connection, host.number, host.node_unit)


def _roll_up_some(database: Database, old: int, new: int, span_s: float, limit: float) -> int:
    """Roll up the old chunks of some units, all of a span together."""
    with database.writing() as connection:
        due = (chunks.c.resolution == old) & (chunks.c.ends <= limit)
        if (sent := sent_so_far(connection)) is not None:
            # What a centre has not stays as it is, and so does the last that it has: numbers of
            # chunks that are gone would be given again.
            due &= chunks.c.id < sent[0]
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


def drop_courses(database: Database, limit: float, *, most: int) -> int:
    """Delete what was seen over time before a moment, and leave what it came to.

    Args:
        limit: The moment, epoch seconds.
        most: Stop after so many chunks.
    """
    with database.writing() as connection:
        old = chunks.c.ends < limit
        if (sent := sent_so_far(connection)) is not None:
            old &= chunks.c.id < sent[0]
        some = sa.select(chunks.c.id).where(old).order_by(chunks.c.ends).limit(most)
        gone = sa.delete(chunks).where(chunks.c.id.in_(sa.select(some.subquery().c.id)))
        return connection.execute(gone).rowcount


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
            if not any(deleted):
                # What is left waits for a centre to have it.
                break
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
    with database.writing() as connection:
        kept = sent_so_far(connection)
        limit = limit if kept is None else min(limit, kept[1])
        over = sa.select(jobs.c.id).where(jobs.c.ends < limit)
        theirs = sa.select(units.c.id).where(units.c.job.in_(over))
        old = sa.or_(chunks.c.ends < limit, chunks.c.unit.in_(theirs))
        if kept is not None:
            old &= chunks.c.id != kept[0]
        gone_chunks = connection.execute(sa.delete(chunks).where(old)).rowcount
        for table in (phases, origins):
            connection.execute(sa.delete(table).where(table.c.job.in_(over)))
        connection.execute(sa.delete(units).where(units.c.job.in_(over)))
        gone_jobs = connection.execute(sa.delete(jobs).where(jobs.c.ends < limit)).rowcount
    return gone_jobs, gone_chunks
