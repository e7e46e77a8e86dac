"""Whether a store is sound, and saving what can still be read of one that is not."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import sqlalchemy as sa

from lowtide.errors import InvalidInput, StoreProblem
from lowtide.store.codec import decode, join, unpack_tick
from lowtide.store.database import Database
from lowtide.store.layout import (
    CHECKSUM_BYTES,
    COUNTED,
    FACT,
    FACTS,
    NODE,
    PLACE,
    TOTALS,
    checksum,
    pack_numbers,
    unpack_numbers,
)
from lowtide.store.matching import SHARED_SOURCES, refresh
from lowtide.store.tables import (
    CONTENTS,
    STEPS,
    bring_up_to_date,
    chunks,
    hosts,
    jobs,
    joined,
    origins,
    phases,
    present,
    schema,
    split,
    ticks,
    units,
)
from lowtide.store.totals import Tail, last_known, nothing_yet
from lowtide.store.writer import NODE_KEY

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
    ticks: lambda row: unpack_tick(row.since, row.time, row.body),
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


# Saving what can still be read of a damaged store.
#
# Rows are read number by number, round the places that cannot be read. What makes no sense is left
# behind, and what has lost what it refers to gets it back as far as it says itself what that was:
# the new store is sound.

# Rows that are read at once.
_SPAN = 2000
# Where a table cannot say how many rows it has: no row is shorter than this, and so many numbers
# are tried between each and its double.
_LEAST_ROW_BYTES = 16
_TRIES = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Rescue:
    """What was saved of a damaged store.

    Attributes:
        saved: Rows of each table that were saved.
        lost: Rows of each table that could not be read or make no sense; None where the table
            cannot even say how many it had.
    """

    saved: dict[str, int]
    lost: dict[str, int | None]


def rescue(damaged: Path, fresh: Path) -> Rescue:
    """Copy every row that can still be read into a new store."""
    if fresh.exists():
        raise StoreProblem(
            f"{fresh} is there already: name a new file to rescue into", where=str(fresh)
        )
    if not damaged.is_file():
        what = "is no file" if damaged.exists() else "is not there"
        raise StoreProblem(
            f"{damaged} {what}: name the damaged store with --store PATH", where=str(damaged)
        )
    old = sqlite3.connect(f"{damaged.absolute().as_uri()}?mode=ro", uri=True)
    old.row_factory = sqlite3.Row
    try:
        # Without this nothing is read of a file that lacks any page that the schema names.
        old.execute("PRAGMA writable_schema=1")
        _check_readable(old, damaged)
        new = Database(fresh)
        try:
            bring_up_to_date(new)
            lost = {table.name: _copy(old, new, table) for table in CONTENTS}
            with new.writing() as connection:
                alone = _reconnect(connection)
                saved = {
                    table.name: int(
                        connection.execute(
                            sa.select(sa.func.count()).select_from(table)
                        ).scalar_one()
                    )
                    for table in CONTENTS
                }
        finally:
            new.close()
        if not any(saved[table.name] for table in (jobs, units, chunks)):
            for part in ("", "-wal", "-shm"):
                Path(f"{fresh}{part}").unlink(missing_ok=True)
            raise StoreProblem(
                f"nothing of {damaged} can be read but its list of tables: take it from a backup",
                where=str(damaged),
            )
    except sqlite3.DatabaseError as error:
        raise _nothing(damaged, error) from None
    finally:
        old.close()
    counts = {name: None if known is None else known + alone[name] for name, known in lost.items()}
    return Rescue(saved=saved, lost=counts)


def _nothing(path: Path, error: Exception) -> StoreProblem:
    return StoreProblem(
        f"nothing of {path} can be read ({error}): not even its list of tables; take it from a "
        "backup",
        where=str(path),
    )


def _check_readable(old: sqlite3.Connection, path: Path) -> None:
    tables = {row[0] for row in old.execute("SELECT name FROM sqlite_master")}
    if jobs.name not in tables:
        raise StoreProblem(
            f"{path} has no jobs in it, and never was a store of lowtide's or has lost its list of "
            "tables: name another with --store, or take it from a backup",
            where=str(path),
        )
    try:
        [version] = old.execute(f"SELECT version FROM {schema.name}").fetchone()  # noqa: S608
    except (sqlite3.DatabaseError, TypeError):
        # That it cannot say how old it is need not keep anybody from reading the rest.
        return
    if version > len(STEPS):
        raise StoreProblem(
            f"the store {path} is of version {version}, and this lowtide knows versions up to "
            f"{len(STEPS)}: update lowtide",
            where=str(path),
        )


def _copy(old: sqlite3.Connection, new: Database, table: sa.Table) -> int | None:
    """Copy what makes sense, and return how many rows do not or cannot be read."""
    key = next(iter(table.primary_key.columns)).name
    names = [column.name for column in table.c]
    end, is_known = _end(old, table.name, key)
    lost = 0
    for rows in _readable(old, table.name, key, end):
        if rows is None:
            lost += 1
            continue
        sound = []
        for row in rows:
            given = set(row.keys())
            kept = _sensible(table, {name: row[name] for name in names if name in given})
            if kept is None:
                lost += 1
            else:
                sound.append(kept)
        if sound:
            with new.writing() as connection:
                # A damaged index may show a row twice.
                connection.execute(
                    sa.insert(table).prefix_with("OR IGNORE", dialect="sqlite"), sound
                )
    return lost if is_known else None


def _sensible(table: sa.Table, row: dict[str, Any]) -> dict[str, Any] | None:
    """Return a row without what makes no sense in it; None if nothing of it does."""
    if any(row.get(column.name) is None for column in table.c if not column.nullable):
        return None
    if table in (jobs, units):
        # Numbers that were summed up can be summed up again, and what a job is called is told.
        if table is jobs and not _fits(row["facts"], FACTS):
            row["facts"] = pack_numbers(np.full(len(FACTS), np.nan))
        of_node = table is units and row["job"] is None
        if not _fits(row["totals"], NODE.counters if of_node else TOTALS):
            row["totals"] = None if table is jobs else b""
        return row
    if table in READS:
        try:
            READS[table](SimpleNamespace(**row))
        except (InvalidInput, TypeError):
            return None
    return row


def _fits(blob: Any, names: tuple[str, ...]) -> bool:
    try:
        check_numbers(blob, names)
    except (InvalidInput, TypeError):
        return False
    return True


def _end(old: sqlite3.Connection, table: str, key: str) -> tuple[int, bool]:
    """Return the number after the last one of a table, and whether the table says so itself."""
    try:
        highest = old.execute(f"SELECT max({key}) FROM {table}").fetchone()[0]  # noqa: S608
    except sqlite3.DatabaseError as error:
        if "no such table" in str(error):
            return 0, True
    else:
        return (highest or 0) + 1, True
    pages = old.execute("PRAGMA page_count").fetchone()[0]
    size = old.execute("PRAGMA page_size").fetchone()[0]
    first, reached = 1, 0
    while first <= pages * size // _LEAST_ROW_BYTES:
        for number in range(first, 2 * first, max(first // _TRIES, 1)):
            try:
                old.execute(f"SELECT 1 FROM {table} WHERE {key} = ?", (number,)).fetchone()  # noqa: S608
            except sqlite3.DatabaseError:
                continue
            reached = 2 * first
        first *= 2
    return reached, False


def _readable(
    old: sqlite3.Connection, table: str, key: str, end: int
) -> Iterator[list[sqlite3.Row] | None]:
    """Yield the rows of a table that can be read; None for each number that cannot."""
    question = f"SELECT * FROM {table} WHERE {key} >= ? AND {key} < ?"  # noqa: S608
    spans = [(first, min(first + _SPAN, end)) for first in range(0, end, _SPAN)][::-1]
    while spans:
        first, last = spans.pop()
        try:
            yield old.execute(question, (first, last)).fetchall()
        except (sqlite3.DatabaseError, UnicodeDecodeError):
            if last - first == 1:
                yield None
            else:
                middle = (first + last) // 2
                spans += [(middle, last), (first, middle)]


def _reconnect(connection: sa.Connection) -> dict[str, int]:
    """Give back what rows have lost; delete those that nobody can place, and count them."""
    alone = dict.fromkeys((table.name for table in CONTENTS), 0)
    _name_hosts(connection)
    _name_jobs(connection)
    for host in connection.execute(sa.select(hosts.c.id)).scalars().all():
        node = (units.c.host == host) & units.c.job.is_(None)
        if connection.execute(sa.select(units.c.id).where(node)).first() is None:
            # Should its key have been kept by some other row, that one is no node.
            connection.execute(
                sa.delete(units).where(units.c.host == host, units.c.key == NODE_KEY)
            )
            connection.execute(
                sa.insert(units).values(host=host, key=NODE_KEY, started=0.0, totals=b"")
            )
    for table, child, parent in (
        (chunks, chunks.c.unit, units.c.id),
        (phases, phases.c.job, jobs.c.id),
        (origins, origins.c.job, jobs.c.id),
    ):
        lonely = sa.delete(table).where(~sa.exists().where(parent == child))
        alone[table.name] = connection.execute(lonely).rowcount
    alone[ticks.name] = _drop_ticks(connection)
    for row in connection.execute(sa.select(units).where(units.c.totals == b"")).all():
        connection.execute(
            sa.update(units)
            .where(units.c.id == row.id)
            .values(totals=pack_numbers(_counted_again(connection, row.id, row.job is None)))
        )
    seen = sa.select(units.c.job).where(units.c.job.is_not(None)).distinct()
    refresh(connection, connection.execute(seen).scalars().all())
    return alone


def _name_hosts(connection: sa.Connection) -> None:
    """Make the hosts that are only referred to; jobs that ran on one host know its name."""
    for child in (units.c.host, ticks.c.host):
        lonely = sa.select(child).where(~sa.exists().where(hosts.c.id == child)).distinct()
        for number in connection.execute(lonely).scalars().all():
            names = connection.execute(
                sa.select(jobs.c.hosts)
                .join(units, units.c.job == jobs.c.id)
                .where(units.c.host == number)
                .distinct()
            ).scalars()
            told = {split(each) for each in names}
            single = {each[0] for each in told if len(each) == 1}
            taken = set(connection.execute(sa.select(hosts.c.name)).scalars())
            name = next(iter(sorted(single - taken)), f"rescued-{number}")
            theirs = sa.select(units.c.id).where(units.c.host == number)
            last = connection.execute(
                sa.select(sa.func.max(chunks.c.ends)).where(chunks.c.unit.in_(theirs))
            ).scalar()
            connection.execute(sa.insert(hosts).values(id=number, name=name, last_time=last))


def _name_jobs(connection: sa.Connection) -> None:
    """Make the jobs that are only referred to, from what their units are called."""
    rows = connection.execute(
        sa.select(units, hosts.c.name.label("host_name"))
        .join(hosts, hosts.c.id == units.c.host)
        .where(units.c.job.is_not(None), ~sa.exists().where(jobs.c.id == units.c.job))
        .order_by(units.c.id)
    ).all()
    made: dict[int, dict[str, Any]] = {}
    for row in rows:
        source, _, rest = row.key.partition(":")
        facts = np.full(len(FACTS), np.nan)
        facts[FACT["started"]] = row.started
        first = {
            "id": row.job,
            "job_id": rest.rpartition("@")[0],
            "source": source,
            "facts": pack_numbers(facts),
            "home": "" if source in SHARED_SOURCES else row.host_name,
            "hosts": "",
            "nodes": "",
            "begins": row.started,
            "ends": row.started,
        }
        job = made.setdefault(row.job, first)
        job["hosts"] = joined([*split(job["hosts"]), row.host_name])
    if made:
        connection.execute(sa.insert(jobs), list(made.values()))


def _drop_ticks(connection: sa.Connection) -> int:
    """Delete ticks of units that are gone: what others did then cannot be told apart from it."""
    known = set(connection.execute(sa.select(units.c.id)).scalars())
    dropped = 0
    for row in connection.execute(sa.select(ticks)).all():
        if not set(READS[ticks](row).units.tolist()) <= known:
            connection.execute(sa.delete(ticks).where(ticks.c.id == row.id))
            dropped += 1
    return dropped


def _counted_again(connection: sa.Connection, unit: int, is_node: bool) -> Any:
    """Return the totals of a unit from its chunks."""
    bodies = connection.execute(
        sa.select(chunks.c.body).where(chunks.c.unit == unit).order_by(chunks.c.begins)
    ).scalars()
    parts = [decode(body)[1] for body in bodies]
    if not parts:
        return np.zeros(len(NODE.counters)) if is_node else nothing_yet()
    points = join(parts)
    if is_node:
        return np.nan_to_num(last_known(points.counters)[-1])
    tail = Tail(
        units=np.array([unit]),
        first=np.array([0]),
        since=points.since,
        time=points.time,
        whole_s=points.time - points.since,
        ended=np.full(len(points), np.nan),
        counters=points.counters,
        gauges=points.gauges,
        node=points,
    )
    return tail.carried_on(nothing_yet()[None])[0]
