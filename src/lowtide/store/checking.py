"""Whether a store is sound: everything in it is read, and everything refers to what is there."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import sqlalchemy as sa

from lowtide.errors import InvalidInput
from lowtide.store.columns import (
    CHECKSUM_BYTES,
    COUNTED,
    FACTS,
    NODE,
    PLACE,
    TOTALS,
    checksum,
    unpack_numbers,
)
from lowtide.store.database import Database
from lowtide.store.encoding import decode
from lowtide.store.tables import chunks, hosts, jobs, origins, phases, present, ticks, units
from lowtide.store.ticks import unpack

# So many damaged places are named; what is beyond is counted.
_MOST_NAMED = 20
# No lowtide ever wrote fewer numbers than these into one row.
_LEAST = {TOTALS: PLACE["received_bytes"], FACTS: 6, NODE.counters: 4}


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """How a store is.

    Attributes:
        problems: What is wrong with it, in words; none if it is sound.
        rows: How many rows of each table were read.
    """

    problems: tuple[str, ...]
    rows: dict[str, int]

    @property
    def is_sound(self) -> bool:
        """Whether nothing is wrong with it."""
        return not self.problems


def check(database: Database) -> Check:
    """Read everything, and return what is wrong."""
    problems: list[str] = []
    rows: dict[str, int] = {}
    with database.reading() as connection:
        if database.is_file:
            found = connection.exec_driver_sql("PRAGMA integrity_check").scalars().all()
            problems += [str(each) for each in found if each != "ok"]
        tables = present(connection)
        for table in tables:
            rows[table.name] = int(
                connection.execute(sa.select(sa.func.count()).select_from(table)).scalar_one()
            )
        for table, read in READS.items():
            problems += _damaged(connection, table, read)
        for what, table, child, parent in _LINKS:
            if table not in tables:
                continue
            lonely = connection.execute(
                sa.select(sa.func.count()).where(
                    child.is_not(None), ~sa.exists().where(parent == child)
                )
            ).scalar_one()
            if lonely:
                problems.append(f"{lonely} {what}")
        node = sa.exists().where(units.c.host == hosts.c.id, units.c.job.is_(None))
        lacking = connection.execute(
            sa.select(sa.func.count()).select_from(hosts).where(~node)
        ).scalar_one()
        if lacking:
            problems.append(f"{lacking} hosts without values of their own")
    if len(problems) > _MOST_NAMED:
        rest = len(problems) - _MOST_NAMED
        problems = [*problems[:_MOST_NAMED], f"and {rest} more"]
    return Check(problems=tuple(problems), rows=rows)


def check_numbers(blob: bytes | None, names: tuple[str, ...]) -> None:
    """Refuse totals or facts that no lowtide ever wrote.

    Args:
        blob: What the database holds; None is fine.
        names: `TOTALS`, `FACTS` or the counters of a node.
    """
    if blob is None:
        return
    numbers, behind = blob[: len(blob) // 8 * 8], blob[len(blob) // 8 * 8 :]
    if len(behind) not in (0, CHECKSUM_BYTES) or len(numbers) < 8 * _LEAST[names]:
        raise InvalidInput(f"its numbers are damaged: {len(blob)} bytes")
    if behind and behind != checksum(numbers):
        raise InvalidInput("its numbers are damaged: they are not what was written")
    values = unpack_numbers([blob], names)[0]
    counted = values[COUNTED] if names is TOTALS else values if names is NODE.counters else None
    if np.isinf(values).any() or (counted is not None and (counted < 0).any()):
        raise InvalidInput("its numbers are damaged: they are beyond what can be")


def _read_job(row: Any) -> None:
    check_numbers(row.facts, FACTS)
    check_numbers(row.totals, TOTALS)


def _read_unit(row: Any) -> None:
    check_numbers(row.totals, NODE.counters if row.job is None else TOTALS)


# How a row of each table is read to see whether it makes sense.
READS: dict[sa.Table, Callable[[Any], Any]] = {
    jobs: _read_job,
    units: _read_unit,
    ticks: lambda row: unpack(row.since, row.time, row.body),
    chunks: lambda row: decode(row.body),
}
_LINKS = (
    ("chunks without their unit", chunks, chunks.c.unit, units.c.id),
    ("units without their job", units, units.c.job, jobs.c.id),
    ("units without their host", units, units.c.host, hosts.c.id),
    ("ticks without their host", ticks, ticks.c.host, hosts.c.id),
    ("phases without their job", phases, phases.c.job, jobs.c.id),
    ("origins without their job", origins, origins.c.job, jobs.c.id),
)


def _damaged(connection: sa.Connection, table: sa.Table, read: Callable[[Any], Any]) -> list[str]:
    found = []
    for row in connection.execute(sa.select(table).execution_options(yield_per=1000)):
        try:
            read(row)
        except InvalidInput as error:
            found.append(f"{table.name} {row.id}: {error}")
    return found
