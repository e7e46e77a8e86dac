"""What is newest: the ticks that are in no chunk yet."""

from __future__ import annotations

from typing import Any

import numpy as np
import sqlalchemy as sa

from lowtide.monitor.snapshot import FloatArray
from lowtide.store.columns import COUNTED, NODE, PLACE, TOTALS, unpack_numbers
from lowtide.store.encoding import Points
from lowtide.store.tables import in_parts, ticks, units
from lowtide.store.ticks import Look, unpack
from lowtide.store.totals import Tail


def read_ticks(connection: sa.Connection, host: int) -> tuple[int, list[Look]]:
    """Return the ticks of a host that are not in chunks yet, and the number of the last."""
    rows = connection.execute(
        sa.select(ticks.c.id, ticks.c.since, ticks.c.time, ticks.c.body)
        .where(ticks.c.host == host)
        .order_by(ticks.c.id)
    ).all()
    return (rows[-1].id if rows else 0), [unpack(row.since, row.time, row.body) for row in rows]


def read_tail(
    connection: sa.Connection, looks: list[Look], node_unit: int
) -> tuple[Tail, FloatArray, dict[int, int]]:
    """Return ticks sorted by unit, what those units had used before, and their jobs."""
    seen = np.unique(np.concatenate([look.units for look in looks])).tolist()
    rows: dict[int, Any] = {}
    for part in in_parts([*seen, node_unit]):
        for row in connection.execute(
            sa.select(units.c.id, units.c.job, units.c.started, units.c.totals).where(
                units.c.id.in_(part)
            )
        ):
            rows[row.id] = row
    node = unpack_numbers([rows[node_unit].totals], NODE.counters)[0]
    before = unpack_numbers([rows[number].totals for number in seen], TOTALS)
    new = {
        number: rows[number].started
        for number, totals in zip(seen, before, strict=True)
        if totals[PLACE["looks"]] == 0
    }
    tail = Tail.of(looks, started=new, node_base=node)
    return tail, before, {number: rows[number].job for number in seen}


class Newest:
    """What no chunk holds yet, of any unit, as of one moment; every host's is read once."""

    def __init__(self, connection: sa.Connection) -> None:
        self.connection = connection
        self._hosts: dict[int, tuple[Tail, FloatArray] | None] = {}
        self._nodes: dict[int, int] | None = None

    def of_node(self, host: int) -> list[Points]:
        """Return the values of a node."""
        read = self._tail(host)
        return [] if read is None else [read[0].node]

    def of_unit(self, unit: int, host: int) -> list[Points]:
        """Return the values of a unit."""
        read = self._tail(host)
        if read is None:
            return []
        tail, before = read
        place = int(np.searchsorted(tail.units, unit))
        if place == tail.units.size or tail.units[place] != unit:
            return []
        return [tail.points(place, before[place, COUNTED])]

    def _tail(self, host: int) -> tuple[Tail, FloatArray] | None:
        if self._nodes is None:
            # Those that have ticks: of the others there is nothing to ask, host by host.
            found = self.connection.execute(
                sa.select(units.c.host, units.c.id).where(
                    units.c.job.is_(None), units.c.host.in_(sa.select(ticks.c.host).distinct())
                )
            )
            self._nodes = {row.host: row.id for row in found}
        if host not in self._hosts:
            _, looks = read_ticks(self.connection, host) if host in self._nodes else (0, [])
            read = read_tail(self.connection, looks, self._nodes[host]) if looks else None
            self._hosts[host] = None if read is None else read[:2]
        return self._hosts[host]
