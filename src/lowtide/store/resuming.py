"""Where a host was left: what ran there at its last tick, so that others can go on from it."""

from __future__ import annotations

import sqlalchemy as sa

from lowtide.monitor.snapshot import Unit
from lowtide.store.columns import PLACE, TOTALS, unpack_numbers
from lowtide.store.consolidation import consolidate
from lowtide.store.database import Database
from lowtide.store.reading import read_hosts
from lowtide.store.tables import clean, jobs, units

# Times are kept to the millisecond.
_SAME_S = 2e-3


def last_look(database: Database, host: str) -> tuple[float, dict[Unit, float]] | None:
    """Return when a host was last looked at, and the CPU time of what ran there; None if never.

    Args:
        database: The store.
        host: The host's name.
    """
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
        if total[PLACE["last_seen"]] >= last - _SAME_S:
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
