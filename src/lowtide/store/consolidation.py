"""Bringing ticks into chunks: from a row per moment to a row per unit and stretch of time."""

from __future__ import annotations

from typing import Any

import numpy as np
import sqlalchemy as sa

from lowtide.store.columns import (
    COUNTED,
    NODE,
    UNIT,
    Layout,
    pack_numbers,
)
from lowtide.store.encoding import Points, encode
from lowtide.store.matching import refresh
from lowtide.store.newest import read_tail, read_ticks
from lowtide.store.tables import chunks, hosts, ticks, units
from lowtide.store.totals import last_known


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
