"""Whether a store is sound, and saving what can still be read of one that is not."""

from __future__ import annotations

import sqlite3
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from lowtide.errors import InvalidInput, StoreProblem
from lowtide.store.database import Database
from lowtide.store.encoding import decode
from lowtide.store.migrations import STEPS, bring_up_to_date
from lowtide.store.tables import CONTENTS, chunks, jobs, schema, ticks, units
from lowtide.store.ticks import unpack

# So many damaged places are named; what is beyond is counted.
_MOST_NAMED = 20
# Where the database cannot say how many rows it has: no row is shorter than this.
_LEAST_ROW_BYTES = 16


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Rescue:
    """What was saved of a damaged store.

    Attributes:
        saved: Rows of each table that were saved.
        lost: Rows of each table that could not be read, as far as can be told.
    """

    saved: dict[str, int]
    lost: dict[str, int]


def check(database: Database) -> Check:
    """Read everything, and return what is wrong.

    Args:
        database: The store.
    """
    problems: list[str] = []
    rows: dict[str, int] = {}
    with database.reading() as connection:
        if database.is_file:
            found = connection.exec_driver_sql("PRAGMA integrity_check").scalars().all()
            problems += [str(each) for each in found if each != "ok"]
        for table in CONTENTS:
            rows[table.name] = int(
                connection.execute(sa.select(sa.func.count()).select_from(table)).scalar_one()
            )
        problems += _damaged(connection, chunks, lambda row: decode(row.body))
        problems += _damaged(connection, ticks, lambda row: unpack(row.since, row.time, row.body))
        for what, child, parent in (
            ("chunks without their unit", chunks.c.unit, units.c.id),
            ("units without their job", units.c.job, jobs.c.id),
        ):
            lonely = connection.execute(
                sa.select(sa.func.count()).where(
                    child.is_not(None), ~sa.exists().where(parent == child)
                )
            ).scalar_one()
            if lonely:
                problems.append(f"{lonely} {what}")
    if len(problems) > _MOST_NAMED:
        rest = len(problems) - _MOST_NAMED
        problems = [*problems[:_MOST_NAMED], f"and {rest} more"]
    return Check(problems=tuple(problems), rows=rows)


def _damaged(connection: sa.Connection, table: sa.Table, read: Any) -> list[str]:
    found = []
    for row in connection.execute(sa.select(table).execution_options(yield_per=1000)):
        try:
            read(row)
        except InvalidInput as error:
            found.append(f"{table.name} {row.id}: {error}")
    return found


def rescue(damaged: Path, fresh: Path) -> Rescue:
    """Copy every row that can still be read into a new store.

    Args:
        damaged: The file to read.
        fresh: The file to make.
    """
    if fresh.exists():
        raise StoreProblem(
            f"{fresh} is there already: name a new file to rescue into", where=str(fresh)
        )
    old = sqlite3.connect(f"{damaged.absolute().as_uri()}?mode=ro", uri=True)
    old.row_factory = sqlite3.Row
    try:
        _check_readable(old, damaged)
        new = Database(fresh)
        try:
            bring_up_to_date(new)
            saved, lost = {}, {}
            for table in CONTENTS:
                saved[table.name], lost[table.name] = _copy(old, new, table)
            return Rescue(saved=saved, lost=lost)
        finally:
            new.close()
    finally:
        old.close()


def _check_readable(old: sqlite3.Connection, path: Path) -> None:
    try:
        tables = {row[0] for row in old.execute("SELECT name FROM sqlite_master")}
        version = (
            old.execute(f"SELECT version FROM {schema.name}").fetchone()  # noqa: S608
            if schema.name in tables
            else None
        )
    except sqlite3.DatabaseError as error:
        raise StoreProblem(
            f"nothing of {path} can be read ({error}): not even its list of tables; take it from a "
            "backup",
            where=str(path),
        ) from None
    if version is not None and version[0] > len(STEPS):
        raise StoreProblem(
            f"the store {path} is of version {version[0]}, and this lowtide knows versions up to "
            f"{len(STEPS)}: update lowtide",
            where=str(path),
        )


def _copy(old: sqlite3.Connection, new: Database, table: sa.Table) -> tuple[int, int]:
    key = next(iter(table.primary_key.columns)).name
    saved = lost = 0
    for rows, damaged in _readable(old, table.name, key):
        lost += damaged
        names = [column.name for column in table.c]
        sound = [{name: row[name] for name in names if name in set(row.keys())} for row in rows]
        if sound:
            with new.writing() as connection:
                # A damaged index may show a row twice.
                done = connection.execute(
                    sa.insert(table).prefix_with("OR IGNORE", dialect="sqlite"), sound
                )
                saved += max(done.rowcount, 0)
    return saved, lost


def _readable(old: sqlite3.Connection, table: str, key: str) -> list[tuple[list[sqlite3.Row], int]]:
    """Return the rows of a table that can be read, going round the places that cannot."""
    try:
        highest = old.execute(f"SELECT max({key}) FROM {table}").fetchone()[0]  # noqa: S608
    except sqlite3.DatabaseError as error:
        if "no such table" in str(error):
            return []
        pages = old.execute("PRAGMA page_count").fetchone()[0]
        size = old.execute("PRAGMA page_size").fetchone()[0]
        highest = pages * size // _LEAST_ROW_BYTES
    found: list[tuple[list[sqlite3.Row], int]] = []
    spans = [(0, (highest or 0) + 1)]
    while spans:
        first, end = spans.pop()
        try:
            question = f"SELECT * FROM {table} WHERE {key} >= ? AND {key} < ?"  # noqa: S608
            rows = old.execute(question, (first, end)).fetchall()
        except sqlite3.DatabaseError:
            if end - first == 1:
                found.append(([], 1))
            else:
                middle = (first + end) // 2
                spans += [(middle, end), (first, middle)]
        else:
            found.append((rows, 0))
    return found
