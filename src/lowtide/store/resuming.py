"""Where a host was left: what ran there at its last tick, so that others can go on from it."""

from __future__ import annotations

import math
from collections.abc import Container, Sequence

import sqlalchemy as sa

from lowtide.monitor.snapshot import FloatArray, Unit
from lowtide.store.columns import PLACE, TOTALS, unpack_numbers
from lowtide.store.consolidation import consolidate
from lowtide.store.database import Database
from lowtide.store.reading import read_hosts
from lowtide.store.tables import clean, hosts, in_parts, jobs, units

# Times are kept to the millisecond.
_SAME_S = 2e-3
# By how much a start may differ that is known by the age of a process.
_AGE_S = 2.0


def last_look(database: Database, host: str) -> tuple[float, dict[Unit, float]] | None:
    """Return when a host was last looked at, and the CPU time of what ran there; None if never."""
    with database.writing() as connection:
        known = next((each for each in read_hosts(connection) if each.name == clean(host)), None)
        if known is None:
            return None
        consolidate(connection, known.number, known.node_unit)
        last = known.last_time
        rows = connection.execute(
            sa.select(
                jobs.c.source,
                jobs.c.job_id,
                jobs.c.user,
                jobs.c.name,
                units.c.started,
                units.c.totals,
            )
            .join(jobs, units.c.job == jobs.c.id)
            .where(units.c.host == known.number, jobs.c.ends >= last - _SAME_S)
            .order_by(units.c.id)
        ).all()
    totals = unpack_numbers([row.totals for row in rows], TOTALS)
    found = {}
    for row, total in zip(rows, totals, strict=True):
        if _was_there(total, last):
            unit = Unit(
                source=row.source,
                job_id=row.job_id,
                started=row.started,
                user=row.user or "",
                name=row.name or "",
            )
            parts = (total[PLACE["cpu_s"]], total[PLACE["unwatched_cpu_s"]])
            found[unit] = float(sum(part for part in parts if part >= 0))
    return last, found


def known_as(
    connection: sa.Connection, host: int, found: Sequence[Unit], *, taken: Container[str]
) -> dict[str, str]:
    """Return by which key units are known that were there at the last look of another watcher.

    What counts by its processes is known by the oldest of them, which may have ended since.

    Args:
        connection: A transaction; all ticks are in chunks.
    """
    last = connection.execute(sa.select(hosts.c.last_time).where(hosts.c.id == host)).scalar_one()
    if last is None:
        return {}
    there = {}
    for part in in_parts(sorted({clean(unit.job_id) for unit in found})):
        for row in connection.execute(
            sa.select(jobs.c.source, jobs.c.job_id, units.c.key, units.c.started, units.c.totals)
            .join(jobs, units.c.job == jobs.c.id)
            .where(units.c.host == host, jobs.c.job_id.in_(part), jobs.c.ends >= last - _SAME_S)
            .order_by(units.c.id)
        ):
            if _was_there(unpack_numbers([row.totals], TOTALS)[0], last) and row.key not in taken:
                there[row.source, row.job_id] = row
    named = {}
    for unit in found:
        known = there.get((unit.source, clean(unit.job_id)))
        if known is None:
            continue
        # Who began after the last look may be another start of it.
        latest = max(last, known.started + _AGE_S)
        if known.started - _AGE_S <= unit.started <= latest:
            named[clean(unit.key)] = known.key
            del there[unit.source, clean(unit.job_id)]
    return named


def _was_there(total: FloatArray, last: float) -> bool:
    """Return whether a unit went on at the last look."""
    return bool(total[PLACE["last_seen"]] >= last - _SAME_S) and math.isnan(
        total[PLACE["seen_end"]]
    )
