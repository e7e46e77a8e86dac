"""Stores of any age: older ones are brought up to date, newer ones are refused."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest
import sqlalchemy as sa

from lowtide.errors import StoreProblem
from lowtide.store import Store, tables
from lowtide.store.tables import STEPS
from support.ticks import START, Watcher, facts, unit


@pytest.fixture
def first(file: str) -> str:
    """A store as version 1 made it."""
    script = Path(__file__).with_name("version_1.sql").read_text(encoding="utf-8")
    with sqlite3.connect(file) as connection:
        connection.executescript(script)
    connection.close()
    return file


def shape(file: str) -> dict[str, list[tuple[object, ...]]]:
    connection = sqlite3.connect(file)
    tables = [row[0] for row in connection.execute("SELECT name FROM sqlite_master ORDER BY name")]
    found = {
        name: [
            *connection.execute(f"PRAGMA table_info({name})"),
            *connection.execute(f"PRAGMA index_info({name})"),
        ]
        for name in tables
    }
    connection.close()
    return found


def test_a_store_of_version_1_is_brought_up_to_date(first: str, tmp_path: Path) -> None:
    with Store.open(first) as store:
        one, two = store.jobs(now=START + 635)
        assert (one.state, one.account, one.cpus) == ("completed", "physics", 8.0)
        assert (one.energy_j, two.energy_j) == (1000.0 * 61, 1000.0 * 63)
        assert (two.user, two.state) == ("bob", "running")
        assert store.series(two).columns["energy_j"].sum() == pytest.approx(two.energy_j)
        store.put_phases(one, "[]")
        # And it goes on.
        store.append(Watcher(time=START + 640).tick([unit(2, user="bob")]))
        assert store.jobs()[1].energy_j == 1000.0 * 64
        assert store.check().is_sound
    Store.open(tmp_path / "new.sqlite").close()
    assert shape(first) == shape(str(tmp_path / "new.sqlite"))


def test_an_old_store_is_read_as_it_is(first: str, tmp_path: Path) -> None:
    before = shape(first)
    with Store.open(first, readonly=True) as store:
        one, two = store.jobs(now=START + 635)
        assert (one.energy_j, two.energy_j) == (1000.0 * 61, 1000.0 * 63)
        assert store.series(two).columns["energy_j"].sum() == pytest.approx(two.energy_j)
        assert store.phases(one) is None
        assert store.check().is_sound
        assert store.sizes()["jobs"] == 2
        assert store.export(tmp_path / "out")["jobs"] == 2
    assert shape(first) == before


def test_a_newer_store_is_refused(place: str) -> None:
    with Store.open(place) as store, store._database.writing() as connection:
        connection.execute(sa.text("UPDATE lowtide_schema SET version = 99"))
    for readonly in (True, False):
        with pytest.raises(StoreProblem, match=r"version 99.*update lowtide"):
            Store.open(place, readonly=readonly)


def test_a_step_that_fails_changes_nothing(first: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def half(connection: sa.Connection) -> None:
        connection.execute(sa.text("CREATE TABLE half (id INTEGER)"))
        raise ZeroDivisionError

    before = shape(first)
    monkeypatch.setattr(tables, "STEPS", (STEPS[0], half))
    with pytest.raises(ZeroDivisionError):
        Store.open(first)
    monkeypatch.undo()
    assert shape(first) == before
    Store.open(first).close()


def test_somebody_elses_tables_are_left_alone(file: str) -> None:
    with sqlite3.connect(file) as connection:
        connection.execute("CREATE TABLE jobs (what TEXT)")
    connection.close()
    with pytest.raises(StoreProblem, match="not lowtide's"):
        Store.open(file)
    assert list(shape(file)) == ["jobs"]


def test_two_who_open_a_new_store_at_once_make_one(server: str) -> None:
    import threading

    problems: list[BaseException] = []

    def make() -> None:
        try:
            Store.open(server).close()
        except Exception as error:  # noqa: BLE001 - it is looked at below
            problems.append(error)

    threads = [threading.Thread(target=make) for _ in range(4)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert not problems
    with Store.open(server) as store:
        assert store.check().is_sound


def test_waits_that_were_left_behind_are_dropped(place: str) -> None:
    """Stores of version 3 could hold a job that began a second time, as one that waits."""
    begun = {"submitted": START, "started": START + 5, "state": "completed", "restarts": 0}
    with Store.open(place) as store:
        store.append(Watcher(time=START + 5).tick([unit(1, started=START + 5)]))
        store.put_facts([facts(number, **begun) for number in (1, 2, 3)])
        for number, submitted, restarts in ((1, START, 0), (2, START, 1), (3, START + 99, 0)):
            late = facts(9, state="pending", submitted=submitted, restarts=restarts)
            store.put_facts([late])
            with store._database.writing() as connection:
                words = f"UPDATE jobs SET job_id = '{number}', shown_id = '{number}' "
                connection.execute(sa.text(words + "WHERE job_id = '9'"))
        with store._database.writing() as connection:
            connection.execute(sa.text("DROP TABLE origins"))
            connection.execute(sa.text("UPDATE lowtide_schema SET version = 3"))
    with Store.open(place, readonly=True) as store:
        assert len(store.jobs()) == 6
        assert {job.cluster for job in store.jobs()} == {""}
    with Store.open(place) as store:
        # The others wait again: one was requeued, one's number was used again.
        assert sorted(job.job_id for job in store.jobs()) == ["1", "2", "2", "3", "3"]
        assert store.waiting("slurm") == [("2", START), ("3", START + 99)]
        assert store.check().is_sound
