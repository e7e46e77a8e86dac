"""How the tables came to be as they are, step by step: a store of any age is brought up to date.

A new store runs through all steps, an old one through those it lacks when somebody writes to it.
Whoever only reads takes it as it is: `tables.present` says which tables it has, and older columns
are widened. A step is never changed once it was released; what is to be different gets a step of
its own.
"""

from __future__ import annotations

from collections.abc import Callable

import sqlalchemy as sa

from lowtide.errors import StoreProblem
from lowtide.store.database import Database
from lowtide.store.tables import (
    META,
    chunks,
    hosts,
    jobs,
    origins,
    phases,
    schema,
    synthetic_grids,
    ticks,
    units,
)


def _make_tables(connection: sa.Connection) -> None:
    META.create_all(connection, tables=[hosts, jobs, units, ticks, chunks])


def _add_phases(connection: sa.Connection) -> None:
    META.create_all(connection, tables=[phases])


def _keep_more(_connection: sa.Connection) -> None:
    """Change nothing: from here on chunks, ticks and totals may have columns of `columns.UNIT`.

    Whoever knows only the first ones would take them for damage.
    """


def _keep_checksums(_connection: sa.Connection) -> None:
    """Change nothing: from here on numbers may have a checksum behind them.

    Whoever knows nothing of that would take it for damage.
    """


def _add_synthetic_grids(connection: sa.Connection) -> None:
    META.create_all(connection, tables=[synthetic_grids])


def _add_origins(connection: sa.Connection) -> None:
    # Whoever only lists jobs need not wait for this to be imported.
    from lowtide.store.matching import drop_old_waits

    META.create_all(connection, tables=[origins])
    # Until here a job that had begun could be left behind as one that waits, too.
    drop_old_waits(connection)


# Any number, as long as no other program on the server has the same.
_LOCK = 0x6C6F7774
# The steps, counted from 1.
STEPS: tuple[Callable[[sa.Connection], None], ...] = (
    _make_tables,
    _add_phases,
    _keep_more,
    _keep_checksums,
    _add_synthetic_grids,
    _add_origins,
)


def bring_up_to_date(database: Database) -> None:
    """Run the steps that a store lacks, each in a transaction of its own."""
    while (version := _known_version(database)) < len(STEPS):
        with database.taking_long(), database.writing() as connection:
            if not database.is_file:
                # Two hosts that come first at once take turns; files have them do so anyway.
                connection.execute(sa.select(sa.func.pg_advisory_xact_lock(_LOCK)))
            META.create_all(connection, tables=[schema])
            # Somebody else may have been faster.
            if _version(connection) == version:
                STEPS[version](connection)
                connection.execute(sa.delete(schema))
                connection.execute(sa.insert(schema).values(version=version + 1))


def check_version(database: Database) -> None:
    """Refuse a store that cannot be read as it is: an older one can, an empty or newer one cannot.

    Args:
        database: The store, open for reading only.
    """
    if not _known_version(database):
        raise StoreProblem(
            f"the store {database.name} is empty: start watching with lowtide watch",
            where=database.name,
        )


def _known_version(database: Database) -> int:
    with database.reading() as connection:
        version = _version(connection)
    if version > len(STEPS):
        raise StoreProblem(
            f"the store {database.name} is of version {version}, and this lowtide knows versions "
            f"up to {len(STEPS)}: update lowtide, or name another store",
            where=database.name,
        )
    return version


def _version(connection: sa.Connection) -> int:
    if not sa.inspect(connection).has_table(schema.name):
        if sa.inspect(connection).has_table(jobs.name):
            # Some other program's tables; to add ours would be a mess.
            raise StoreProblem(
                "this database has a table 'jobs' that is not lowtide's: give lowtide a database "
                "of its own",
                where=str(connection.engine.url.database),
            )
        return 0
    return int(connection.execute(sa.select(schema.c.version)).scalar() or 0)
