"""The centre's tables, beside those of the store, on SQLite and on PostgreSQL.

The store's tables mirror what the nodes hold. These have what pages ask for: a job's facts and
totals as columns that can be filtered, sorted and summed; sums by hour, day and month; who may see
what; who looked. On PostgreSQL jobs lie in partitions by the month in which they ended.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import fields
from datetime import UTC, datetime
from typing import Any

import sqlalchemy as sa

from lowtide.errors import StoreProblem
from lowtide.store import JobRecord
from lowtide.store.database import Database

CENTRE = sa.MetaData()
# Since 2 there are sums by month: whoever does not know them would leave them as they are.
VERSION = 2
_NUMBER = sa.BigInteger().with_variant(sa.Integer, "sqlite")
# Who takes turns at what, by numbers that no other program on the server has.
_TURNS = {"tables": 0x6C6F7776, "books": 0x6C6F7777, "tries": 0x6C6F7778, "mails": 0x6C6F7779}
# The year 2100: whatever is said to have ended later lies with what goes on.
FARTHEST = 4_102_444_800.0


def _key() -> sa.Column[int]:
    return sa.Column("id", _NUMBER, primary_key=True, autoincrement=True)


def _text(name: str, *, key: bool = False, unknown: bool = False) -> sa.Column[str]:
    return sa.Column(name, sa.Text, nullable=unknown, primary_key=key)


def _real(name: str, *, unknown: bool = False) -> sa.Column[float]:
    return sa.Column(name, sa.Double, nullable=unknown)


def _of_record(kind: str) -> list[sa.Column[Any]]:
    """Return a column for each number or text of a job's record: new ones come by themselves."""
    made = {"float": sa.Double, "int": sa.Integer}.get(kind, sa.Text)
    return [
        sa.Column(field.name, made)
        for field in fields(JobRecord)
        if field.name != "number" and kind == _KINDS.get(str(field.type).split(" ")[0], "text")
    ]


_KINDS = {"float": "float", "int": "int"}
# The widest columns come first: behind those of any length a server leaves room before each.
jobs = sa.Table(
    "centre_jobs",
    CENTRE,
    sa.Column("number", _NUMBER, primary_key=True, autoincrement=False),
    # When it was over, infinity while it is not.
    sa.Column("over", sa.Double, primary_key=True, autoincrement=False),
    *_of_record("float"),
    *_of_record("int"),
    # Whether the sums have it.
    sa.Column("settled", sa.Boolean, nullable=False),
    # Hosts stand between commas, so that each can be searched for.
    *_of_record("text"),
    # What it is called in addresses: as hard to guess as it is to count others by it.
    _text("ref"),
    # Its parts by hour.
    sa.Column("hours", sa.LargeBinary),
    # Each index has a row of each job, so each is as narrow as it can be. What tells two jobs apart
    # that ended at once is sorted when asked; of an account the last are soon found among all, or
    # there are few.
    sa.Index("centre_jobs_of_user", "user", "over"),
    sa.Index("centre_jobs_of_account", "account"),
    sa.Index("centre_jobs_by_over", "over").ddl_if(dialect="postgresql"),
    sa.Index("centre_jobs_by_over", "over", "ref").ddl_if(dialect="sqlite"),
    sa.Index("centre_jobs_by_ref", "ref"),
    sa.Index("centre_jobs_by_id", "job_id"),
    postgresql_partition_by="RANGE (over)",
)
# Those that go on are few, and asked for with every sum.
_goes_on = sa.not_(jobs.c.settled)
sa.Index("centre_jobs_going", jobs.c.last_seen, postgresql_where=_goes_on, sqlite_where=_goes_on)
# As users type them, where that is otherwise: for parts of arrays alone.
is_renamed = jobs.c.shown_id != jobs.c.job_id
sa.Index(
    "centre_jobs_by_shown",
    jobs.c.shown_id,
    postgresql_where=is_renamed,
    sqlite_where=is_renamed,
)
# These were of other columns, or of more, up to version 1.
_OTHERWISE = ("centre_jobs_of_user", "centre_jobs_of_account", "centre_jobs_by_over")
# Rows of these change each minute: beside each is room for the next.
_FILLED_PERCENT = 50

# What is summed: of what jobs used, the part of each hour. A job counts in the hour of its end, and
# as a part in each in which it used anything: a sum without parts is none.
SUMMED = (
    *("energy_j", "measured_j", "carbon_g", "marginal_g", "embodied_g", "gpu_j"),
    *("cpu_s", "gpu_busy_s", "core_s", "gpu_s", "unmetered_s", "unpriced_j"),
)
COUNTED = ("parts", "jobs", "without_energy", "without_carbon")
DIMENSIONS = ("cluster", "account", "user", "partition", "state")


def _usage(name: str) -> sa.Table:
    return sa.Table(
        name,
        CENTRE,
        sa.Column("begins", _NUMBER, primary_key=True, autoincrement=False),
        *(_text(each, key=True) for each in DIMENSIONS),
        *(sa.Column(each, _NUMBER, nullable=False) for each in COUNTED),
        *(_real(each) for each in SUMMED),
        sa.Index(f"{name}_of_user", "user", "begins"),
        sa.Index(f"{name}_of_account", "account", "begins"),
    )


usage_hour, usage_day, usage_month = (_usage(f"usage_{each}") for each in ("hour", "day", "month"))


def begin_of_hour(moment: float) -> int:
    """Return when the hour of a moment begins."""
    return int(moment // 3600 * 3600)


def begin_of_day(moment: float) -> int:
    """Return when the day of a moment begins."""
    return int(moment // 86400 * 86400)


def begin_of_month(moment: float) -> int:
    """Return when the month of a moment begins; of one that is no moment of ours, its day.

    >>> begin_of_month(1_700_000_000.0) == datetime(2023, 11, 1, tzinfo=UTC).timestamp()
    True
    """
    month = month_of(moment)
    if month is None:
        return begin_of_day(moment)
    return int(datetime(*month, 1, tzinfo=UTC).timestamp())


def end_of_month(moment: float) -> int:
    """Return when the month of a moment ends."""
    # The month after begins within so many days.
    later = 31 * 86400 if month_of(moment) else 86400
    return begin_of_month(begin_of_month(moment) + later)


# When that begins of which a table has sums.
USAGE = {usage_hour: begin_of_hour, usage_day: begin_of_day, usage_month: begin_of_month}

# What units have used by their last tick; the store's own row knows it up to the last chunk.
unit_now = sa.Table(
    "unit_now",
    CENTRE,
    sa.Column("unit", _NUMBER, primary_key=True, autoincrement=False),
    sa.Column("totals", sa.LargeBinary, nullable=False),
)

# What was seen of a job that is over and takes long to read, as `serve.kept_looks` packs it, and of
# which row of it that is so.
looks = sa.Table(
    "job_looks",
    CENTRE,
    sa.Column("job", _NUMBER, primary_key=True, autoincrement=False),
    _text("stands"),
    sa.Column("body", sa.LargeBinary, nullable=False),
)

# What jobs that go on did up to a moment, as `serve.job_courses` packs it, and of which chunks.
courses = sa.Table(
    "job_courses",
    CENTRE,
    sa.Column("job", _NUMBER, primary_key=True, autoincrement=False),
    sa.Column("until", sa.Double, primary_key=True, autoincrement=False),
    _text("stands"),
    sa.Column("body", sa.LargeBinary, nullable=False),
)

# What was found that a job wasted, as `serve.kept_waste` packs it, when, and of which row of it.
findings = sa.Table(
    "job_findings",
    CENTRE,
    sa.Column("job", _NUMBER, primary_key=True, autoincrement=False),
    _real("made"),
    sa.Column("settled", sa.Boolean, nullable=False),
    _text("stands"),
    sa.Column("body", sa.LargeBinary, nullable=False),
)

# What nodes that are an account's own drew on a day, of it what no job has, and of which course of
# the node that is so, as `serve.node_idle` says.
node_idle = sa.Table(
    "node_idle",
    CENTRE,
    _text("host", key=True),
    sa.Column("day", _NUMBER, primary_key=True, autoincrement=False),
    _text("cluster"),
    _text("account"),
    _text("stands"),
    _real("seen_s"),
    *(
        _real(name, unknown=True)
        for name in (
            *("energy_j", "measured_j", "idle_j", "unattributed_j", "idle_g", "unattributed_g"),
            *("unmetered_s", "unpriced_j"),
        )
    ),
    sa.Index("node_idle_by_account", "account", "day"),
)

incarnations = sa.Table(
    "incarnations",
    CENTRE,
    _text("cluster", key=True),
    _text("host", key=True),
    _text("incarnation", key=True),
    # The incarnation whose units it goes on with: its own, unless it continues another.
    _text("family"),
    sa.Column("seq", _NUMBER, nullable=False),
    _real("received"),
    # By how much the node's clock is ahead of this one's.
    _real("skew_s"),
)

quarantine = sa.Table(
    "quarantine",
    CENTRE,
    _key(),
    *(_text(name) for name in ("cluster", "host", "incarnation")),
    sa.Column("seq", _NUMBER, nullable=False),
    _real("received"),
    _text("reason"),
    sa.Column("body", sa.LargeBinary, nullable=False),
    sa.UniqueConstraint("cluster", "host", "incarnation", "seq"),
)

# A token is known by its digest alone.
tokens = sa.Table(
    "tokens",
    CENTRE,
    _key(),
    sa.Column("digest", sa.LargeBinary, nullable=False, unique=True),
    _text("owner"),
    _text("scope"),
    _text("note"),
    _real("made"),
    _real("expires"),
    _real("used", unknown=True),
)

sessions = sa.Table(
    "sessions",
    CENTRE,
    sa.Column("digest", sa.LargeBinary, primary_key=True),
    _text("owner"),
    _text("form_key"),
    _real("made"),
    _real("used"),
)

# Links that open a session of the one browser that shows the code.
links = sa.Table(
    "links",
    CENTRE,
    sa.Column("digest", sa.LargeBinary, primary_key=True),
    sa.Column("confirm", sa.LargeBinary, nullable=False, unique=True),
    _text("owner"),
    sa.Column("browser", sa.LargeBinary),
    _text("code"),
    sa.Column("tries", sa.Integer, nullable=False),
    sa.Column("confirmed", sa.Boolean, nullable=False),
    _real("expires"),
)

# Who tried to log in of late: what counts together, and when.
tries = sa.Table(
    "login_tries", CENTRE, _key(), _text("whose"), _real("time"), sa.Index("tries_by", "whose")
)

# Accounts form a tree; who left one keeps their own jobs.
accounts = sa.Table(
    "accounts", CENTRE, _text("cluster", key=True), _text("account", key=True), _text("parent")
)
members = sa.Table(
    "members",
    CENTRE,
    _text("cluster", key=True),
    _text("account", key=True),
    _text("user", key=True),
    sa.Column("leads", sa.Boolean, nullable=False),
    _real("since"),
    _real("until", unknown=True),
    sa.Index("members_by_user", "user"),
)
staff = sa.Table("staff", CENTRE, _text("user", key=True), _text("role"))

audit = sa.Table(
    "audit",
    CENTRE,
    _key(),
    _real("time"),
    _text("viewer"),
    _text("role"),
    _text("owner"),
    _text("what"),
    sa.Index("audit_by_owner", "owner", "time"),
)

# Who was written to and when, so that nobody is too often; and who wants no more of it.
mails = sa.Table(
    "mails",
    CENTRE,
    _key(),
    _text("user"),
    _real("time"),
    _text("subject"),
    sa.Index("mails_by_user", "user", "time"),
)
mail_stops = sa.Table("mail_stops", CENTRE, _text("user", key=True), _real("since"))

schema = sa.Table("centre_schema", CENTRE, sa.Column("version", sa.Integer, nullable=False))


def bring_centre_up_to_date(database: Database) -> None:
    """Make the centre's tables where they are not there, and columns for what is new."""
    with database.taking_long(), database.writing() as connection:
        is_file = database.is_file
        # In the order of those who write jobs: sums are not changed while they are made.
        take_turns(connection, "books")
        take_turns(connection, "tables")
        CENTRE.create_all(connection)
        version = connection.execute(sa.select(schema.c.version)).scalar()
        if version is None:
            connection.execute(sa.insert(schema).values(version=VERSION))
        elif version > VERSION:
            raise StoreProblem(
                f"the centre in {database.name} is of version {version}, and this lowtide knows "
                f"versions up to {VERSION}: update lowtide",
                where=database.name,
            )
        elif version < VERSION:
            sum_up_months(connection)
            for name in _OTHERWISE:
                connection.exec_driver_sql(f"DROP INDEX IF EXISTS {name}")
            connection.execute(sa.update(schema).values(version=VERSION))
        there = {each["name"] for each in sa.inspect(connection).get_columns(jobs.name)}
        for column in jobs.c:
            if column.name not in there:
                kind = column.type.compile(connection.dialect)
                name = connection.dialect.identifier_preparer.quote(column.name)
                connection.exec_driver_sql(f"ALTER TABLE {jobs.name} ADD COLUMN {name} {kind}")
        for index in jobs.indexes:
            index.create(connection, checkfirst=True)
        if not is_file:
            connection.exec_driver_sql(
                f"CREATE TABLE IF NOT EXISTS {jobs.name}_open PARTITION OF {jobs.name} DEFAULT "
                f"WITH (fillfactor = {_FILLED_PERCENT})"
            )
            # All that go on are over at once, and the only ones of which that many are.
            connection.exec_driver_sql(
                f"CREATE INDEX IF NOT EXISTS {jobs.name}_open_in_order ON {jobs.name}_open "
                "(over, ref)"
            )
            # What is held back is said of these tables, and so after them.
            from lowtide.serve.guards import put_up

            put_up(connection)


def sum_up_months(connection: sa.Connection) -> None:
    """Make the sums by month anew, of those by day."""
    connection.execute(sa.delete(usage_month))
    of = usage_day.c
    first, last = connection.execute(
        sa.select(sa.func.min(of.begins), sa.func.max(of.begins))
    ).one()
    names = ("begins", *DIMENSIONS, *COUNTED, *SUMMED)
    while first is not None and first <= last:
        begins = begin_of_month(first)
        ends = end_of_month(first)
        sums = (sa.func.sum(of[name]) for name in (*COUNTED, *SUMMED))
        days = sa.select(sa.literal(begins), *(of[name] for name in DIMENSIONS), *sums)
        days = days.where(of.begins >= begins, of.begins < ends)
        days = days.group_by(*(of[name] for name in DIMENSIONS))
        connection.execute(sa.insert(usage_month).from_select(names, days))
        later = sa.select(sa.func.min(of.begins)).where(of.begins >= ends)
        first = connection.execute(later).scalar()


def take_turns(connection: sa.Connection, what: str) -> None:
    """Write when nobody else writes the same, up to the end of the transaction.

    Files have those who write take turns anyway; on a server each would count what was there before
    all of them, or wait for the other for ever.
    """
    if connection.dialect.name == "postgresql":
        connection.execute(sa.select(sa.func.pg_advisory_xact_lock(_TURNS[what])))


def month_of(moment: float) -> tuple[int, int] | None:
    """Return the year and month of a moment; None of one that is no moment of ours.

    >>> month_of(1_700_000_000.0)
    (2023, 11)
    """
    if not 0 <= moment < FARTHEST:
        return None
    when = datetime.fromtimestamp(moment, UTC)
    return when.year, when.month


def make_partitions(connection: sa.Connection, months: Iterable[tuple[int, int]]) -> None:
    """Make room on a server for jobs that ended in some months."""
    for year, month in sorted(set(months)):
        name = f"{jobs.name}_{year:04}_{month:02}"
        if connection.execute(sa.select(sa.func.to_regclass(name))).scalar() is None:
            take_turns(connection, "tables")
            # Who writes what nodes send may make no tables, and has this one made.
            connection.execute(sa.select(sa.func.lowtide_make_room(year, month)))
