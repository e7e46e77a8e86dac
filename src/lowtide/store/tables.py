"""The tables of the store.

`ticks` holds what was seen since the last consolidation, a row per tick; `chunks` holds the rest, a
row per unit and stretch of time. A job is what people ask about; a unit is what one host saw of
it. The numbers of a job are packed into two columns, facts and totals: they are written together,
read together, and a hundred thousand jobs are read in a fraction of a second.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache
from typing import Any, TypeVar, cast

import sqlalchemy as sa

from lowtide.errors import StoreProblem
from lowtide.store.database import Database

META = sa.MetaData()
PUSHED = sa.MetaData()

_Value = TypeVar("_Value")
# Databases take only so many values in one statement.
_AT_ONCE = 500

_NUMBER = sa.BigInteger().with_variant(sa.Integer, "sqlite")


def _key() -> sa.Column[int]:
    return sa.Column("id", _NUMBER, primary_key=True, autoincrement=True)


def _text(name: str, *, unknown: bool = True) -> sa.Column[str]:
    return sa.Column(name, sa.Text, nullable=unknown)


def _real(name: str, *, unknown: bool = True) -> sa.Column[float]:
    return sa.Column(name, sa.Double, nullable=unknown)


def _link(name: str, *, unknown: bool = False) -> sa.Column[int]:
    return sa.Column(name, _NUMBER, nullable=unknown)


schema = sa.Table("lowtide_schema", META, sa.Column("version", sa.Integer, nullable=False))

hosts = sa.Table(
    "hosts",
    META,
    _key(),
    sa.Column("name", sa.Text, nullable=False, unique=True),
    # When the last tick was that has been brought into chunks, and how long ticks are.
    _real("last_time"),
    _real("interval_s"),
)

# What lists of jobs show comes first: a row is read from its beginning.
jobs = sa.Table(
    "jobs",
    META,
    _key(),
    _text("job_id", unknown=False),
    _text("shown_id"),
    _text("user"),
    _text("state"),
    sa.Column("facts", sa.LargeBinary, nullable=False),
    sa.Column("totals", sa.LargeBinary),
    _text("source", unknown=False),
    # Which host a job belongs to whose number means something only there.
    _text("home", unknown=False),
    # Where it was seen, and where facts say that it runs.
    _text("hosts", unknown=False),
    _text("nodes", unknown=False),
    _text("account"),
    _text("partition"),
    _text("name"),
    _text("comment"),
    # The stretch of time in which it has to do with anything, for searching.
    _real("begins"),
    _real("ends"),
    sa.Index("jobs_by_end", "ends"),
    sa.Index("jobs_by_id", "job_id", "source"),
)

units = sa.Table(
    "units",
    META,
    _key(),
    _link("host"),
    sa.Column("key", sa.Text, nullable=False),
    # The node itself is a unit without a job.
    _link("job", unknown=True),
    _real("started", unknown=False),
    sa.Column("totals", sa.LargeBinary, nullable=False),
    sa.UniqueConstraint("host", "key"),
    sa.Index("units_by_job", "job"),
)

ticks = sa.Table(
    "ticks",
    META,
    _key(),
    _link("host"),
    _real("since", unknown=False),
    _real("time", unknown=False),
    sa.Column("body", sa.LargeBinary, nullable=False),
    sa.Index("ticks_by_host", "host", "id"),
)

chunks = sa.Table(
    "chunks",
    META,
    _key(),
    _link("unit"),
    # Seconds of a step after rolling up; 0 for what is as it was seen.
    sa.Column("resolution", sa.Integer, nullable=False),
    _real("begins", unknown=False),
    _real("ends", unknown=False),
    sa.Column("points", sa.Integer, nullable=False),
    sa.Column("body", sa.LargeBinary, nullable=False),
    sa.Index("chunks_by_unit", "unit", "begins"),
    sa.Index("chunks_by_age", "resolution", "ends"),
)

phases = sa.Table(
    "phases",
    META,
    sa.Column("job", _NUMBER, primary_key=True, autoincrement=False),
    sa.Column("document", sa.Text, nullable=False),
)

# When a host's grams were those of a synthetic grid, which nothing else here would tell.
synthetic_grids = sa.Table(
    "synthetic_grids",
    META,
    _key(),
    _link("host"),
    _real("begins", unknown=False),
    _real("ends", unknown=False),
    sa.Index("synthetic_grids_by_host", "host", "ends"),
)

# What tells jobs of one number apart besides: only where it is known.
origins = sa.Table(
    "origins",
    META,
    sa.Column("job", _NUMBER, primary_key=True, autoincrement=False),
    # Each cluster counts its jobs by itself.
    _text("cluster", unknown=False),
    # What Slurm names the group of a job by, where that is not its number.
    _text("sluid", unknown=False),
    sa.Index("origins_by_sluid", "sluid"),
)

# What a node has told its centre, in a store that is pushed from; a copy of it tells nothing.
pushing = sa.Table(
    "pushing",
    PUSHED,
    sa.Column("id", sa.Integer, primary_key=True, autoincrement=False),
    _text("incarnation", unknown=False),
    _text("continues", unknown=False),
    # The piece, the chunk and the tick up to which the centre has everything, and with the next.
    *(_link(name) for name in ("seq", "chunk", "tick", "next_chunk", "next_tick")),
    # The newest chunk when pushing began: of later ones the coarser repeat what was sent.
    _link("first"),
    sa.Column("body", sa.LargeBinary),
)
pushed_facts = sa.Table(
    "pushed_facts",
    PUSHED,
    sa.Column("job", _NUMBER, primary_key=True, autoincrement=False),
    _text("job_id", unknown=False),
    _text("cluster", unknown=False),
    _link("digest"),
    sa.Column("waits", sa.Boolean, nullable=False),
)

# In the order in which a copy may be filled.
CONTENTS = (hosts, jobs, units, ticks, chunks, phases, synthetic_grids, origins)


def present(connection: sa.Connection) -> tuple[sa.Table, ...]:
    """Return those of `CONTENTS` that a store has; an older one may lack some."""
    names = set(sa.inspect(connection).get_table_names())
    return tuple(table for table in CONTENTS if table.name in names)


def in_parts(values: Sequence[_Value]) -> Iterator[Sequence[_Value]]:
    """Cut a list into parts that a database takes at once."""
    for first in range(0, len(values), _AT_ONCE):
        yield values[first : first + _AT_ONCE]


def clean(text: str) -> str:
    """Return a text that every database takes: no halves of characters, no NUL."""
    if text.isprintable():
        return text
    return text.encode(errors="replace").decode().replace("\0", "")


def joined(names: Iterable[str]) -> str:
    """Return names of hosts as the database holds them, so that each can be searched for.

    >>> joined(["n2", "n1"])
    ',n1,n2,'
    """
    listed = sorted({clean(name) for name in names})
    return f",{','.join(listed)}," if listed else ""


def split(text: str | None) -> tuple[str, ...]:
    """Return the names that `joined` joined."""
    return tuple(text.strip(",").split(",")) if text else ()


def insert_row(connection: sa.Connection, table: sa.Table, row: Mapping[str, Any]) -> int:
    """Insert a row and return its number."""
    made = connection.execute(sa.insert(table), row).inserted_primary_key
    return int(cast("tuple[int]", made)[0])


def update_row(
    connection: sa.Connection, table: sa.Table, number: int, values: Mapping[str, Any]
) -> None:
    """Change columns of a row."""
    connection.execute(_update_of(table, tuple(values)), {"number": number, **values})


@cache
def _update_of(table: sa.Table, names: tuple[str, ...]) -> sa.Update:
    # To put such a statement together takes longer than to run it.
    return (
        sa.update(table)
        .where(table.c.id == sa.bindparam("number"))
        .values({name: sa.bindparam(name) for name in names})
    )


def size_bytes(database: Database, connection: sa.Connection) -> int:
    """Return how much room the store takes, free pages left out."""
    if database.is_file:
        pages, free, page = (
            int(connection.exec_driver_sql(f"PRAGMA {name}").scalar_one())
            for name in ("page_count", "freelist_count", "page_size")
        )
        return (pages - free) * page
    # A server keeps the room of deleted rows for new ones: what counts is what is in use.
    total = 0
    for table in present(connection):
        packed = [column for column in table.c if isinstance(column.type, sa.LargeBinary)]
        sums = [sa.func.count(), *(sa.func.sum(sa.func.octet_length(each)) for each in packed)]
        rows, *lengths = connection.execute(sa.select(*sums).select_from(table)).one()
        total += 150 * int(rows) + sum(int(each or 0) for each in lengths)
    return total


def unsent(state: Any) -> sa.ColumnElement[bool]:
    """Return which chunks a centre has not: what was made coarser since it has as it was.

    Args:
        state: The row of `pushing`.
    """
    as_seen = (chunks.c.resolution == 0) | (chunks.c.id <= state.first)
    return sa.and_(chunks.c.id > state.chunk, as_seen)


def sent_so_far(connection: sa.Connection) -> tuple[int, float] | None:
    """Return up to which chunk a centre has everything, and when the first begins that it has not.

    None where nothing is told to a centre: then nothing has to wait for it.
    """
    if not sa.inspect(connection).has_table(pushing.name):
        return None
    state = connection.execute(sa.select(pushing)).first()
    if state is None:
        return None
    begins = connection.execute(sa.select(sa.func.min(chunks.c.begins)).where(unsent(state)))
    first = begins.scalar()
    return int(state.chunk), math.inf if first is None else float(first)


# How the tables came to be as they are, step by step: a store of any age is brought up to date.
#
# A new store runs through all steps, an old one through those it lacks when somebody writes to it.
# Whoever only reads takes it as it is: `present` says which tables it has, and older columns
# are widened. A step is never changed once it was released; what is to be different gets a step of
# its own.


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
