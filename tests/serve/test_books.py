"""Sums by hour, day and month equal those over the jobs, whatever is learned of jobs later."""

from __future__ import annotations

import math
import random
from collections import defaultdict
from collections.abc import Callable
from functools import partial
from pathlib import Path
from threading import Thread
from typing import Any

import numpy as np
import pytest
import sqlalchemy as sa

from lowtide.serve import schema
from lowtide.serve.ingest import take_facts
from lowtide.serve.ledger import close_stale, parts_of
from lowtide.serve.viewer import Rights, Viewer
from lowtide.store.database import Database
from support.nightly import drawn
from support.pushed import Node, centre, rows
from support.ticks import START, facts, unit

DAY_S = 86400.0
NOW = START + 100 * DAY_S
Rows = list[dict[str, Any]]
NAMES = (*schema.COUNTED, *schema.SUMMED)


def of_jobs(given: Rows, table: sa.Table) -> dict[tuple[object, ...], list[float]]:
    """Return what a table of sums should have, added up from the rows of the jobs."""
    begin_of = schema.USAGE[table]
    sums: dict[tuple[object, ...], np.ndarray] = defaultdict(lambda: np.zeros(len(NAMES)))
    for row in given:
        if row["settled"]:
            hours = parts_of(row)
            for hour, used in hours.items():
                whose = (row[name] or "" for name in schema.DIMENSIONS)
                ended = [1, row["energy_j"] is None, row["carbon_g"] is None]
                counts = [1, *(ended if hour == max(hours) else (0, 0, 0))]
                sums[begin_of(hour * 3600), *whose] += [*counts, *used]
    return {key: values.tolist() for key, values in sums.items()}


def summed(given: Rows) -> dict[tuple[object, ...], list[float]]:
    return {
        tuple(row[name] for name in ("begins", *schema.DIMENSIONS)): [row[name] for name in NAMES]
        for row in given
    }


def kept(database: Database, table: sa.Table) -> dict[tuple[object, ...], list[float]]:
    return summed(rows(database, table))


def check(database: Database) -> None:
    """Compare sums and jobs, as of one moment."""
    with database.reading() as connection:
        jobs, *tables = [
            [dict(row) for row in connection.execute(sa.select(table)).mappings()]
            for table in (schema.jobs, *schema.USAGE)
        ]
    for table, given in zip(schema.USAGE, tables, strict=True):
        found, wanted = summed(given), of_jobs(jobs, table)
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


@pytest.mark.parametrize("seed", range(drawn(1, 20)))
def test_sums_are_those_of_the_jobs_whoever_writes_meanwhile(
    place: str, tmp_path: Path, seed: int
) -> None:
    """At every moment: while nodes push, facts move jobs about and jobs are closed."""
    border = START + 16 * DAY_S
    failed: list[BaseException] = []
    with centre(place) as database:

        def push(number: int) -> None:
            chance = random.Random(100 * seed + number)
            node = Node(tmp_path / f"n{number}.sqlite", f"n{number}", time=border - 3000.0)
            own = [10 * number + each for each in range(3)]
            for _ in range(30):
                for _ in range(20):
                    node.tick([unit(each, user=f"u{each % 4}") for each in own], step_s=10.0)
                told = {"started": border - 3000.0, "account": chance.choice(["phys", "chem"])}
                if chance.random() < 0.5:
                    ended = chance.choice([{"ended": node.watcher.time, "state": "completed"}, {}])
                    job = chance.choice(own)
                    node.put_facts([facts(job, nodes=(node.host,), user=f"u{job % 4}",
                                          **({"state": "running"} | told | ended))])  # fmt: skip
                node.push(database)
            node.store.close()

        def move() -> None:
            chance = random.Random(100 * seed)
            for _ in range(40):
                job = chance.choice([10, 11, 20, 21, 31])
                told = facts(
                    job, started=border - chance.choice([3000.0, 5e6]), ended=border + 9000.0,
                    user=f"u{chance.randrange(4)}", account=chance.choice(["phys", "math"]),
                    state=chance.choice(["completed", "failed"]), cpus=4.0,
                )  # fmt: skip
                take_facts(database, [told], now=NOW)
                close_stale(database, now=chance.choice([border, NOW]))

        def tried(do: Callable[[], None]) -> Callable[[], None]:
            def run() -> None:
                try:
                    do()
                except BaseException as error:  # noqa: BLE001 - it is raised again below
                    failed.append(error)

            return run

        writers = [Thread(target=tried(partial(push, number))) for number in (1, 2, 3)]
        writers.append(Thread(target=tried(move)))
        for each in writers:
            each.start()
        looked = 0
        while any(each.is_alive() for each in writers):
            check(database)
            looked += 1
        for each in writers:
            each.join()
        assert not failed
        assert looked > 5
        check(database)
        assert len({key[0] for key in kept(database, schema.usage_month)}) > 1


def test_what_was_told_wrongly_of_one_job_leaves_nothing_in_sums(
    place: str, tmp_path: Path
) -> None:
    """Whoever is root on a node tells of endless energy of bob's, and Slurm that it was not his."""
    with centre(place) as database:
        honest, other = (Node(tmp_path / f"{name}.sqlite", name) for name in ("n1", "n2"))
        for _ in range(130):
            mine = [unit(1, user="bob"), unit(2, user="bob")]
            honest.tick(mine, step_s=60.0, watts={"1": 0.1, "2": 0.1})
            other.tick([unit(3, user="bob")], step_s=60.0, watts={"3": 1e11})
        known = {"account": "phys", "partition": "main", "started": START, "state": "completed"}
        for node, numbers in ((other, (3,)), (honest, (1, 2))):
            ended = node.watcher.time
            node.put_facts([facts(number, user="bob", nodes=(node.host,), ended=ended, **known)
                            for number in numbers])  # fmt: skip
            node.tick([], step_s=60.0)
            assert [answer.reason for answer in node.push(database) if answer.reason] == []
            node.store.close()
        bobs = {"by": "user", "start": START // DAY_S * DAY_S, "end": NOW // DAY_S * DAY_S}
        site = Viewer(database, "root", Rights(role="owner"), NOW)
        [row] = site.usage(**bobs)
        assert row["energy_j"] > 1e13
        take_facts(database, [facts(3, user="eve", nodes=("n2",), **known)], now=NOW)
        check(database)
        told = {row["user"]: row for row in site.usage(**bobs)}
        assert told["bob"]["energy_j"] == pytest.approx(2 * 130 * 60 * 0.1, rel=1e-9)
        assert told["bob"]["jobs"] == 2


@pytest.mark.parametrize("seed", range(drawn(1, 30)))
def test_any_stretch_of_time_is_the_sum_of_its_hours(place: str, tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    with centre(place) as database:
        told = []
        for job in range(120):
            started = START + chance.uniform(0, 95 * DAY_S)
            ended = started + chance.choice([60.0, 7200.0, chance.uniform(0, 20 * DAY_S)])
            told.append(
                facts(
                    job, started=started, ended=min(ended, NOW), cpus=float(chance.randint(1, 64)),
                    user=f"u{job % 7}", account=chance.choice(["phys", "chem", "math"]),
                    state=chance.choice(["completed", "failed"]), partition="main",
                )
            )  # fmt: skip
        take_facts(database, told, now=NOW)
        node = Node(tmp_path / "n1.sqlite", time=NOW - 40_000.0)
        for _ in range(60):
            # It goes on.
            node.tick([unit(500, user="u1")], step_s=600.0)
        node.push(database)
        jobs = rows(database, schema.jobs)
        assert {row["settled"] for row in jobs} == {True, False}
        viewers = (Viewer(database, "root", Rights(role="owner"), NOW),
                   Viewer(database, "sue", Rights(role="support"), NOW),
                   Viewer(database, "u1", Rights(), NOW))  # fmt: skip
        for _ in range(40):
            viewer = chance.choice(viewers)
            by = chance.choice([*schema.DIMENSIONS, "day", "hour"])
            edges = [START // DAY_S * DAY_S + chance.randrange(0, 101) * DAY_S for _ in range(2)]
            if chance.random() < 0.5:
                edges = [each + 3600.0 * chance.randrange(24) for each in edges]
            start, end = min(edges), max(edges) + 3600.0
            wanted: dict[Any, list[float]] = defaultdict(list)
            for row in jobs:
                if viewer.sees_all or row["user"] == viewer.user:
                    for hour, values in parts_of(row).items():
                        moment = hour * 3600
                        if start <= moment < end:
                            times = {"hour": moment, "day": schema.begin_of_day(moment)}
                            group = times[by] if by in times else row[by] or ""
                            wanted[group].append(values[schema.SUMMED.index("core_s")])
            found = {row[by]: row["core_s"] for row in viewer.usage(by, start=start, end=end)}
            assert found.keys() == wanted.keys()
            for group, values in wanted.items():
                assert found[group] == pytest.approx(math.fsum(values), rel=1e-9), (by, group)


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
