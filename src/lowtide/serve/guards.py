"""What PostgreSQL itself holds back: roles, and which rows each of them is given.

Whoever answers a viewer does so as `lowtide_web`, which sees what the settings of its transaction
allow: without a viewer none of what anybody did. What nodes send is written as `lowtide_ingest`,
which has no way to tokens, people or who looked. It is the net under the `Viewer`, and not the
filter: a question that lacks its rule gets too little, and never another's rows.
"""

from __future__ import annotations

from collections.abc import Callable

import sqlalchemy as sa

from lowtide.serve import schema
from lowtide.serve.waiting import of_others
from lowtide.store import tables
from lowtide.store.database import Database

READER, INGEST = "lowtide_web", "lowtide_ingest"
SEES, WHO, LEADS, MEMBER, KNOWS, ONLY = (
    f"lowtide.{name}" for name in ("sees", "user", "leads", "member", "knows", "only")
)
# Between the names in a setting; no name of Slurm's has it.
BETWEEN = "\x1f"
# Who cannot wait for longer has asked for too much.
_ANSWER = "5s"

# A setting of an earlier transaction is empty, and not unknown.
_WHO = f"nullif(current_setting('{WHO}', true), '')"
_EVERY = f"current_setting('{SEES}', true) = 'all'"
# Rows in which nobody is named by themselves: whoever is known may have some of them read.
_KNOWN = f"({_EVERY} OR {_WHO} IS NOT NULL)"


def _among(setting: str) -> str:
    named = f"string_to_array(current_setting('{setting}', true), E'\\x1f')"
    return f"(cluster || '/' || account) = ANY ({named})"


_MINE = f'{_EVERY} OR "user" = {_WHO}'
_OF_JOB = f"EXISTS (SELECT 1 FROM {schema.jobs.name} AS seen WHERE seen.number = "  # noqa: S608 - our own names
# What the reader sees of each table. It has no right at all to those that are not named here.
_RULES = {
    schema.jobs.name: f"{_MINE} OR {_among(LEADS)}",
    **{table.name: f"{_MINE} OR {_among(LEADS)} OR {_among(MEMBER)}" for table in schema.USAGE},
    schema.node_idle.name: f"{_EVERY} OR {_among(LEADS)}",
    schema.audit.name: f"{_EVERY} OR owner = {_WHO}",
    schema.tokens.name: f"owner = {_WHO}",
    schema.members.name: f"{_MINE} OR {_among(MEMBER)}",
    # Who sees a row of a job above sees what the store has of it.
    tables.jobs.name: f"{_OF_JOB}{tables.jobs.name}.id)",
    tables.phases.name: f"{_OF_JOB}{tables.phases.name}.job)",
    tables.origins.name: f"{_OF_JOB}{tables.origins.name}.job)",
    schema.looks.name: f"{_OF_JOB}{schema.looks.name}.job)",
    schema.courses.name: f"{_OF_JOB}{schema.courses.name}.job)",
    schema.findings.name: f"{_OF_JOB}{schema.findings.name}.job)",
    # A tick has all jobs of a node in one value, and courses are read by the thousand: of these
    # the numbers say nothing to whoever does not have the job's row.
    **dict.fromkeys(
        (tables.units.name, tables.chunks.name, tables.ticks.name, schema.unit_now.name), _KNOWN
    ),
    schema.accounts.name: _KNOWN,
    schema.incarnations.name: _KNOWN,
    schema.quarantine.name: _EVERY,
    tables.hosts.name: _KNOWN,
    tables.synthetic_grids.name: _KNOWN,
}
# Who looks by a link to one job: read once for each question, and not for each row.
_ONLY = f"(SELECT nullif(current_setting('{ONLY}', true), ''))"
# What such a look is held to besides. Courses and the like are asked for by numbers, as above, and
# what hangs on a job's row hangs on it here, too.
_BY_LINK = {
    schema.jobs.name: f"coalesce(ref = {_ONLY}, true)",
    **dict.fromkeys(
        (*(table.name for table in schema.USAGE), schema.audit.name, schema.tokens.name),
        f"{_ONLY} IS NULL",
    ),
    **dict.fromkeys(
        tuple(
            table.name
            for table in (schema.members, schema.accounts, schema.incarnations, schema.node_idle)
        ),
        f"{_ONLY} IS NULL",
    ),
}
# Of tokens the reader is told all but what they are known by.
_COLUMNS = {schema.tokens.name: "id, owner, scope, note, made, expires, used"}
# What pieces of nodes change, and what they only add to.
_OF_INGEST = {
    **dict.fromkeys(
        (*tables.CONTENTS, schema.jobs, *schema.USAGE, schema.unit_now),
        "SELECT, INSERT, UPDATE, DELETE",
    ),
    schema.incarnations: "SELECT, INSERT, UPDATE",
    schema.quarantine: "INSERT, SELECT (id)",
}


def put_up(connection: sa.Connection) -> None:
    """Make the roles, and have the server itself hold back what is not for them."""
    run = connection.exec_driver_sql
    for role in (READER, INGEST):
        there = run("SELECT 1 FROM pg_roles WHERE rolname = %(role)s", {"role": role}).first()
        if there is None:
            run(f"CREATE ROLE {role} NOLOGIN")
        run(f"GRANT {role} TO CURRENT_USER")
    for name, rule in _RULES.items():
        columns = f"({_COLUMNS[name]})" if name in _COLUMNS else ""
        run(f"GRANT SELECT {columns} ON {name} TO {READER}")
        run(f"ALTER TABLE {name} ENABLE ROW LEVEL SECURITY")
        run(f"DROP POLICY IF EXISTS lowtide_reads ON {name}")
        run(f"CREATE POLICY lowtide_reads ON {name} FOR SELECT TO {READER} USING ({rule})")
        run(f"DROP POLICY IF EXISTS lowtide_link ON {name}")
        if name in _BY_LINK:
            run(
                f"CREATE POLICY lowtide_link ON {name} AS RESTRICTIVE FOR SELECT TO {READER} "
                f"USING ({_BY_LINK[name]})"
            )
        # Others have the rights that they were granted, and no rows are kept from them.
        run(f"DROP POLICY IF EXISTS lowtide_others ON {name}")
        run(f"CREATE POLICY lowtide_others ON {name} USING (current_user <> '{READER}')")
    for table, rights in _OF_INGEST.items():
        run(f"GRANT {rights} ON {table.name} TO {INGEST}")
        if "id" in table.c:
            numbers = run(f"SELECT pg_get_serial_sequence('{table.name}', 'id')").scalar_one()
            run(f"GRANT USAGE ON SEQUENCE {numbers} TO {INGEST}")
    _make_functions(connection)


def _make_functions(connection: sa.Connection) -> None:
    """Make what each role may have done for it, and could not do by itself."""
    run = connection.exec_driver_sql
    where = connection.dialect.identifier_preparer.quote(
        str(run("SELECT current_schema()").scalar_one())
    )
    run(f"GRANT USAGE ON SCHEMA {where} TO {READER}, {INGEST}")
    jobs = schema.jobs.name
    made = {
        # Jobs that go on in accounts whose sums a viewer is told, for these sums alone.
        "lowtide_going()": (
            READER,
            f"RETURNS SETOF {jobs} LANGUAGE sql STABLE",
            f"SELECT * FROM {jobs} WHERE NOT settled AND {_among(MEMBER)}",  # noqa: S608
        ),
        # How many had jobs between two moments that a viewer may not know.
        "lowtide_people(since double precision, until double precision)": (
            READER,
            "RETURNS bigint LANGUAGE sql STABLE",
            f'SELECT count(DISTINCT "user") FROM {jobs} WHERE last_seen >= since '  # noqa: S608
            f"AND coalesce(started, first_seen) <= until "
            f'AND {_ONLY} IS NULL AND "user" <> {_WHO} AND NOT coalesce({_among(KNOWS)}, false) '
            f'AND "user" IN (SELECT "user" FROM {schema.members.name})',
        ),
        # What enough others wait for.
        "lowtide_queue(moment double precision, enough bigint)": (
            READER,
            'RETURNS TABLE ("partition" text, jobs bigint, arrays bigint, nodes double precision, '
            "cpus double precision, gpus double precision, first double precision) "
            "LANGUAGE sql STABLE",
            _queue(connection.dialect),
        ),
        "lowtide_make_room(of_year integer, of_month integer)": (
            INGEST,
            "RETURNS void LANGUAGE plpgsql",
            "BEGIN EXECUTE format('CREATE TABLE IF NOT EXISTS %%I PARTITION OF "
            f"{jobs} FOR VALUES FROM (%%s) TO (%%s)', "
            f"'{jobs}_' || to_char(of_year, 'FM0000') || '_' || to_char(of_month, 'FM00'), "
            "extract(epoch FROM make_timestamptz(of_year, of_month, 1, 0, 0, 0, 'UTC')), "
            "extract(epoch FROM make_timestamptz(of_year + of_month / 12, of_month %% 12 + 1, "
            "1, 0, 0, 0, 'UTC'))); END",
        ),
    }
    for called, (role, kind, body) in made.items():
        run(
            f"CREATE OR REPLACE FUNCTION {called} {kind} SECURITY DEFINER "
            f"SET search_path = {where}, pg_temp AS $${body}$$"
        )
        run(f"REVOKE ALL ON FUNCTION {called} FROM PUBLIC")
        run(f"GRANT EXECUTE ON FUNCTION {called} TO {role}")


def _queue(dialect: sa.Dialect) -> str:
    """Return the question for what others wait for, which is put to files as it stands."""
    question = of_others(
        sa.literal_column("moment", sa.Double),
        sa.literal_column(f"({_MINE} OR {_among(KNOWS)})", sa.Boolean),
        # Whatever somebody should ask: a sum of one user is that user.
        sa.literal_column("greatest(enough, 2)", sa.BigInteger),
    ).where(sa.literal_column(f"({_WHO} IS NOT NULL AND {_ONLY} IS NULL)", sa.Boolean))
    compiled = question.compile(dialect=dialect, compile_kwargs={"literal_binds": True})
    return str(compiled)


def for_viewer(
    database: Database,
    *,
    user: str,
    sees_all: bool,
    leads: frozenset[str],
    member: frozenset[str],
    knows: frozenset[str],
    only: str = "",
) -> Database:
    """Return a database that, on a server, gives what a viewer may see and nothing else.

    Args:
        knows: The accounts that are none of the others'.
        only: The `ref` of the one job that they may see; empty for no such limit.
    """
    settings = {
        SEES: "all" if sees_all else "own",
        WHO: user,
        LEADS: BETWEEN.join(sorted(leads)),
        MEMBER: BETWEEN.join(sorted(member)),
        KNOWS: BETWEEN.join(sorted(knows)),
        ONLY: only,
    }

    def rule(connection: sa.Connection) -> None:
        connection.exec_driver_sql(f"SET LOCAL ROLE {READER}")
        connection.exec_driver_sql(f"SET LOCAL statement_timeout = '{_ANSWER}'")
        connection.execute(
            sa.select(*(sa.func.set_config(name, said, True) for name, said in settings.items()))
        )

    return _held(database, rule)


def for_ingest(database: Database) -> Database:
    """Return a database that, on a server, takes what nodes send and nothing else."""

    def rule(connection: sa.Connection) -> None:
        connection.exec_driver_sql(f"SET LOCAL ROLE {INGEST}")

    return _held(database, rule)


def _held(database: Database, rule: Callable[[sa.Connection], None]) -> Database:
    return database if database.is_file else database.held_to(rule)
