"""Sums by hour, day and month equal those over the jobs, whatever is learned of jobs later."""

from __future__ import annotations

import random
from collections import defaultdict
from pathlib import Path

import numpy as np
import pytest
import sqlalchemy as sa

from lowtide.serve import schema
from lowtide.serve.ingest import take_facts
from lowtide.serve.ledger import parts_of
from lowtide.store.database import Database
from support.nightly import drawn
from support.pushed import Node, centre, rows
from support.ticks import START, facts, unit

DAY_S = 86400.0
NOW = START + 100 * DAY_S
NAMES = (*schema.COUNTED, *schema.SUMMED)


def of_jobs(database: Database, table: sa.Table) -> dict[tuple[object, ...], list[float]]:
    """Return what a table of sums should have, added up from the rows of the jobs."""
    begin_of = schema.USAGE[table]
    sums: dict[tuple[object, ...], np.ndarray] = defaultdict(lambda: np.zeros(len(NAMES)))
    for row in rows(database, schema.jobs):
        if row["settled"]:
            hours = parts_of(row)
            for hour, used in hours.items():
                whose = (row[name] or "" for name in schema.DIMENSIONS)
                ended = [1, row["energy_j"] is None, row["carbon_g"] is None]
                counts = [1, *(ended if hour == max(hours) else (0, 0, 0))]
                sums[begin_of(hour * 3600), *whose] += [*counts, *used]
    return {key: values.tolist() for key, values in sums.items()}


def kept(database: Database, table: sa.Table) -> dict[tuple[object, ...], list[float]]:
    return {
        tuple(row[name] for name in ("begins", *schema.DIMENSIONS)): [row[name] for name in NAMES]
        for row in rows(database, table)
    }


def check(database: Database) -> None:
    for table in schema.USAGE:
        found, wanted = kept(database, table), of_jobs(database, table)
        assert found.keys() == wanted.keys()
        for key, values in wanted.items():
            assert found[key] == pytest.approx(values, rel=1e-9, abs=1e-6), (table.name, key)


@pytest.mark.parametrize("seed", range(drawn(2, 40)))
def test_sums_follow_jobs_from_month_to_month(place: str, tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    with centre(place) as database:
        node = Node(tmp_path / "n1.sqlite", time=START + 16 * DAY_S - 3600.0)
        for _ in range(200):
            # Over the end of a month.
            node.tick([unit(1), unit(2)], step_s=40.0)
        node.push(database)
        for _ in range(6):
            told = []
            for job in chance.sample(range(1, 9), 4):
                started = START + chance.uniform(0, 90 * DAY_S)
                length_s = chance.uniform(60.0, 9 * DAY_S)
                told.append(
                    facts(
                        job, started=started, cpus=float(chance.randint(1, 64)),
                        ended=started + length_s, state=chance.choice(["completed", "failed"]),
                        user=f"u{job}", account=chance.choice(["phys", "chem"]), nodes=("n1",),
                    )
                )  # fmt: skip
            take_facts(database, told, now=NOW)
            check(database)
        assert len({key[0] for key in kept(database, schema.usage_month)}) > 1
        node.store.close()


# The indexes of version 1 that are of other columns now.
EARLIER = {
    "centre_jobs_of_user": '("user", over DESC)',
    "centre_jobs_of_account": "(account, over DESC)",
    "centre_jobs_by_over": "(over DESC, ref DESC)",
}


def indexes(database: Database) -> dict[str, str]:
    """Return the indexes of jobs, and of what each is."""
    listed = "SELECT name, sql FROM sqlite_master WHERE tbl_name = 'centre_jobs' AND type = 'index'"
    if not database.is_file:
        listed = "SELECT indexname, indexdef FROM pg_indexes WHERE tablename = 'centre_jobs'"
    with database.reading() as connection:
        return {row[0]: row[1] for row in connection.execute(sa.text(listed)) if row[1]}


def test_a_centre_of_an_earlier_release_gets_its_months(place: str) -> None:
    with centre(place) as database:
        told = [
            facts(
                job, started=START + 9 * job * DAY_S, ended=START + (9 * job + 3) * DAY_S,
                cpus=4.0, user=f"u{job % 3}", account="phys", state="completed",
            )
            for job in range(9)
        ]  # fmt: skip
        take_facts(database, told, now=NOW)
        before, made = kept(database, schema.usage_month), indexes(database)
        assert EARLIER.keys() < made.keys()
        with database.writing() as connection:
            schema.usage_month.drop(connection)
            for name, columns in EARLIER.items():
                connection.exec_driver_sql(f"DROP INDEX {name}")
                connection.exec_driver_sql(f"CREATE INDEX {name} ON centre_jobs {columns}")
            connection.execute(sa.update(schema.schema).values(version=1))
        schema.bring_centre_up_to_date(database)
        check(database)
        assert indexes(database) == made
        assert kept(database, schema.usage_month).keys() == before.keys()
        assert len(before) > 3
        [row] = rows(database, schema.schema)
        assert row["version"] == schema.VERSION
        # They are kept from then on.
        take_facts(
            database,
            [facts(1, started=START, ended=START + DAY_S, cpus=9.0, user="u9", account="chem",
                   state="failed")],
            now=NOW,
        )  # fmt: skip
        check(database)
