"""What PostgreSQL holds back by itself, should a question of ours ever lack its rule."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from lowtide.errors import StoreProblem
from lowtide.serve import schema
from lowtide.serve.guards import INGEST, READER, for_ingest
from lowtide.serve.ingest import receive
from lowtide.serve.people import rights_of
from lowtide.serve.viewer import Viewer
from lowtide.store import tables
from lowtide.store.database import Database
from support.postgres import emptied
from support.pushed import Node, rows
from support.ticks import START, unit
from support.worlds import BOBS, NOW, PEOPLE, World, world

ALL = {**tables.META.tables, **schema.CENTRE.tables}
# What says nothing of anybody.
OF_NOBODY = {"lowtide_schema", "centre_schema"}
# What is read before it is known who asks, and by nobody else.
SHUT = {"links", "sessions", "login_tries", "staff", "mails", "mail_stops"}


@pytest.fixture(scope="module")
def one(postgres: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with (
        emptied(postgres, "guards") as where,
        world(where, tmp_path_factory.mktemp("guards"), BOBS["many"]) as made,
    ):
        yield made


@contextmanager
def reading(database: Database, role: str) -> Iterator[sa.Connection]:
    with database.reading() as connection:
        connection.exec_driver_sql(f"SET LOCAL ROLE {role}")
        yield connection


def count(database: Database, table: sa.Table, role: str) -> int | None:
    """Return how many rows a role sees; None where it may not look."""
    columns = [each for each in table.c if each.name != "digest"] or [sa.literal(1)]
    try:
        with reading(database, role) as connection:
            return len(connection.execute(sa.select(*columns).select_from(table)).all())
    except StoreProblem as error:
        assert "permission denied" in str(error), error
        return None


def viewer(database: Database, who: str) -> Viewer:
    return Viewer(database, who, rights_of(database, who), NOW)


def test_without_a_viewer_there_is_nothing(one: World) -> None:
    database = one.keeper.database
    one.get("sue", "/jobs")
    one.link("bob")
    with database.writing() as connection:
        # Of a process nobody may know whose it is.
        row = dict(connection.execute(sa.select(schema.jobs)).mappings().first() or {})
        nobodys = {**row, "number": -1, "ref": "nobodys", "user": "", "account": None}
        connection.execute(sa.insert(schema.jobs).values(nobodys))
        connection.execute(sa.insert(schema.audit).values(
            time=NOW, viewer="sue", role="support", owner="", what="x"
        ))  # fmt: skip
    there = {name: len(rows(database, table)) for name, table in ALL.items()}
    assert sum(map(bool, there.values())) >= 15
    for _ in range(2):
        for name, table in ALL.items():
            found = count(database, table, READER)
            assert found in (0, None), name
            assert (found is None) == (name in SHUT | OF_NOBODY | {"pushing"}), name
        with (
            pytest.raises(StoreProblem, match="permission denied"),
            reading(database, READER) as connection,
        ):
            connection.execute(sa.select(schema.tokens.c.digest))
        for asked in ("SELECT count(*) FROM lowtide_going()", "SELECT lowtide_people(0, 1e12)"):
            with reading(database, READER) as connection:
                assert connection.exec_driver_sql(asked).scalar() == 0
        # A connection that served somebody is as blind as before.
        for who in PEOPLE:
            with viewer(database, who).reading() as connection:
                connection.execute(sa.select(schema.jobs)).all()


SEEN = {
    "ada": {"ada"},
    "nobody": set(),
    "cy": {"cy"},
    "lea": {"ada", "cy", "lea"},
    "sue": {"ada", "bob", "cy", "lea"},
    "": set(),
    "' OR 1=1 --": set(),
}


@pytest.mark.parametrize("who", SEEN)
def test_a_question_without_its_rule_gets_no_others_rows(one: World, who: str) -> None:
    database, wanted = one.keeper.database, SEEN[who]
    one.get("adam", "/jobs")
    with viewer(database, who).reading() as connection:
        for table in (schema.jobs, tables.jobs):
            found = set(connection.execute(sa.select(table.c.user)).scalars())
            assert found - {""} == wanted
            assert who == "sue" or "" not in found
        mine = set(connection.execute(sa.select(schema.jobs.c.number)).scalars())
        kept = (schema.looks.c.job, schema.courses.c.job, schema.findings.c.job)
        for column in (tables.phases.c.job, tables.origins.c.job, *kept):
            assert set(connection.execute(sa.select(column)).scalars()) <= mine
        owners = set(connection.execute(sa.select(schema.audit.c.owner)).scalars())
        assert owners <= (owners if who == "sue" else {who})
        held = set(connection.execute(sa.select(schema.tokens.c.owner)).scalars())
        assert held == ({who} if who in PEOPLE else set())
        for table in (schema.jobs, schema.audit, schema.usage_day, tables.chunks):
            for change in (sa.delete(table), sa.update(table).values({table.c[0]: None})):
                with pytest.raises(sa.exc.ProgrammingError), connection.begin_nested():
                    connection.execute(change)


def test_whoever_looks_is_answered(one: World) -> None:
    jobs = one.get("ada", "/api/v1/jobs").json()["jobs"]
    ref = next(each["ref"] for each in jobs if each["account"])
    for who in ("ada", "lea", "sue"):
        for target in (
            *("/", "/jobs", "/usage?by=day", "/usage", "/projects/alps/phys", "/reports"),
            *("/nodes", "/nodes/n1", "/cluster", "/waste", "/settings", "/looks"),
            *("/api/v1/table?phases=1", "/api/v1/nodes", "/api/v1/health", "/api/v1/tokens"),
            *(f"/jobs/{ref}", f"/api/v1/jobs/{ref}/course", f"/api/v1/jobs/{ref}/steps"),
            *("/api/v1/nodes/n1/steps", "/api/v1/nodes/n1", "/api/v1/synthetic"),
        ):
            assert one.get(who, target).status == 200, (who, target)
        # A server counts in decimals, which are no numbers to JSON.
        sums = one.get(who, "/api/v1/usage?by=user").json()["usage"]
        assert all(isinstance(row["jobs"], int) for row in sums)
        assert sums


def test_what_nodes_send_is_written_by_who_may_write_no_more(one: World, tmp_path: Path) -> None:
    database = one.keeper.database
    held = for_ingest(database)
    # Months later, so that a partition has to be made as well.
    later = START + 100 * 86400.0
    node = Node(tmp_path / "n7.sqlite", "n7", time=later)
    for _ in range(30):
        node.tick([unit(70, started=later, user="ada")])
    for place in range(3):
        parcel = node.outbox.next(now=node.watcher.time)
        if parcel is None:
            break
        body = parcel.body if place else b"nothing that could be read"
        taken = receive(held, node.sender(parcel), body, now=node.watcher.time)
        assert taken.taken and bool(taken.reason) == (place == 0)
        if place == 0:
            sender = replace(node.sender(parcel), seq=parcel.seq + 1)
            assert not receive(held, sender, parcel.body, now=node.watcher.time).reason
            break
    assert any(each["job_id"] == "70" for each in rows(database, schema.jobs))
    for name, table in ALL.items():
        if name in SHUT | {"tokens", "audit", "members", "accounts", "pushing", "quarantine"} | {
            "job_looks",
            "job_courses",
            "job_findings",
        }:
            assert count(database, table, INGEST) is None, name
    refused: list[Any] = [
        sa.insert(schema.staff).values(user="eve", role="admin"),
        sa.update(schema.tokens).values(owner="eve"),
        sa.delete(schema.audit),
        sa.delete(schema.quarantine),
        sa.delete(schema.incarnations),
        sa.insert(schema.looks).values(job=1, stands="", body=b""),
        sa.delete(schema.courses),
        sa.text("DROP TABLE centre_jobs"),
        sa.text("SELECT lowtide_people(0, 1)"),
    ]
    for change in refused:
        with (
            pytest.raises(StoreProblem, match=r"permission denied|must be owner"),
            reading(database, INGEST) as connection,
        ):
            connection.execute(change)


def test_what_is_done_for_a_viewer_reads_no_tables_of_theirs(one: World) -> None:
    """A table of their own, where theirs are found first, is not the one that is counted."""
    with viewer(one.keeper.database, "ada").reading() as connection:
        asked = f"SELECT {connection.exec_driver_sql('SELECT current_schema()').scalar()}."
        asked += "lowtide_people(0, 1e12)"
        known = connection.exec_driver_sql(asked).scalar()
        assert known > 1
        for table in (schema.jobs, schema.members):
            made = f"CREATE TEMPORARY TABLE {table.name} (LIKE {table.name}) ON COMMIT DROP"
            connection.exec_driver_sql(made)
        connection.exec_driver_sql("SET LOCAL search_path = pg_temp, pg_catalog")
        assert connection.exec_driver_sql(f"SELECT count(*) FROM {schema.jobs.name}").scalar() == 0
        assert connection.exec_driver_sql(asked).scalar() == known


def test_others_of_the_server_keep_their_rights(one: World) -> None:
    """A watcher that writes to the server directly, as a user of its own, goes on as before."""
    database = one.keeper.database
    with database.writing() as connection:
        connection.exec_driver_sql("CREATE ROLE a_watcher NOLOGIN")
        connection.exec_driver_sql("GRANT a_watcher TO CURRENT_USER")
        connection.exec_driver_sql("GRANT SELECT, INSERT, UPDATE ON ALL TABLES IN SCHEMA public"
                                   " TO a_watcher")  # fmt: skip
    try:
        for table in (tables.chunks, tables.jobs, tables.units, tables.hosts):
            assert count(database, table, "a_watcher") == len(rows(database, table)) > 0
    finally:
        with database.writing() as connection:
            connection.exec_driver_sql("DROP OWNED BY a_watcher")
            connection.exec_driver_sql("DROP ROLE a_watcher")
