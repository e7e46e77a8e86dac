"""What is kept of jobs that take long to read is what reading them shows."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
import sqlalchemy as sa

from lowtide.serve import schema
from lowtide.serve.ingest import take_facts
from lowtide.serve.kept_looks import keep_looks, kept_look, pack, unpack
from lowtide.serve.kept_waste import keep_findings, kept_findings
from lowtide.serve.viewer import Rights, Viewer, VisibleJob
from lowtide.serve.wanted import Wanted
from lowtide.store.database import Database
from lowtide.store.tables import chunks
from support.nightly import drawn
from support.pushed import Node, centre, rows
from support.ticks import START, facts, unit

HOSTS = ("n1", "n2", "n3")
MANY = 600


def watched(folder: Path, database: Database, chance: random.Random) -> tuple[float, list[Node]]:
    """Watch a job on three nodes with phases of its own, and a small one beside it."""
    nodes = [Node(folder / f"{host}.sqlite", host) for host in HOSTS]
    known = {"user": "ada", "account": "phys", "cpus": 12.0, "memory_bytes": 9e9}
    edges = sorted(chance.sample(range(10, 390), 3))
    watts = [chance.uniform(50.0, 500.0) for _ in range(4)]
    missed = chance.choice([None, *HOSTS])
    for step in range(400):
        phase = sum(step >= edge for edge in edges)
        for node in nodes:
            node.watcher.intensity = 200.0 + step
            beside = [unit(2, user="bob")] if node.host == "n1" and step < 50 else []
            if node.host == missed and 100 <= step < 110:
                node.watcher.time += 30.0
                continue
            node.tick([unit(1), *beside], step_s=30.0, watts={"1": watts[phase] + step % 3})
        if step % 100 == 99:
            for node in nodes:
                node.push(database)
    now = nodes[0].watcher.time
    told = [
        facts(1, state="completed", started=START, ended=now, nodes=HOSTS, **known),
        facts(2, state="completed", started=START, ended=START + 1500.0, user="bob",
              nodes=("n1",)),
    ]  # fmt: skip
    nodes[0].put_facts(told)
    for node in nodes:
        node.tick([], step_s=30.0)
        node.push(database)
    return now + 60.0, nodes


def job(database: Database, who: str, now: float) -> tuple[Viewer, VisibleJob]:
    one = Viewer(database, who, Rights(), now)
    [found] = one.jobs(Wanted())
    return one, found


@pytest.mark.parametrize("seed", range(drawn(1, 20)))
def test_what_is_kept_shows_what_reading_shows(
    place: str, tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    from lowtide.serve.pages import Pages

    shown = Pages(None, None, None)._looked_at  # type: ignore[arg-type]
    with centre(place) as database:
        now, nodes = watched(tmp_path, database, random.Random(seed))
        ada, found = job(database, "ada", now)
        read, told = shown(ada, found), ada.looked_back(found)
        assert told.phases is not None
        assert told.waiting or told.notes
        assert keep_looks(database, now=now, many=MANY) == 1
        assert keep_looks(database, now=now, many=MANY) == 0
        assert [row["job"] for row in rows(database, schema.looks)] == [found.record.number]

        def reading(*_: object) -> None:
            raise AssertionError("read again")

        with monkeypatch.context() as patched:
            patched.setattr("lowtide.serve.viewer.seen", reading)
            assert repr(shown(ada, found)) == repr(read)
            again = ada.looked_back(found)
            assert repr(again.behaviour) == repr(told.behaviour)
            assert again.phases == told.phases
            assert len(again.series) <= 300 < len(told.series)
            # A job of few looks is read, and so is one of which more was learned since.
            bob, small = job(database, "bob", now)
            with pytest.raises(AssertionError, match="read again"):
                bob.looked_back(small)
            nodes[0].put_facts([facts(1, state="failed", exit_code=3, nodes=HOSTS)])
            nodes[0].push(database)
            ada, found = job(database, "ada", now)
            assert found.record.state == "failed"
            with pytest.raises(AssertionError, match="read again"):
                ada.looked_back(found)
        assert keep_looks(database, now=now, many=MANY) == 1
        assert kept_look(database, found.record) is not None
        kept = shown(ada, found)
        with database.writing() as connection:
            connection.execute(sa.delete(schema.looks))
        assert repr(shown(ada, found)) == repr(kept)
        # What is kept of a job that is gone goes as well.
        assert keep_looks(database, now=now, many=MANY) == 1
        with database.writing() as connection:
            gone = schema.jobs.c.number == found.record.number
            connection.execute(sa.delete(schema.jobs).where(gone))
        keep_looks(database, now=now, many=MANY)
        assert not rows(database, schema.looks)
        for node in nodes:
            node.store.close()


def test_nothing_is_kept_of_jobs_that_go_on_or_ended_long_ago(tmp_path: Path) -> None:
    with centre(str(tmp_path / "centre.sqlite")) as database:
        node = Node(tmp_path / "n1.sqlite")
        for _ in range(70):
            node.tick([unit(1)])
        node.push(database)
        now = node.watcher.time
        assert keep_looks(database, now=now, many=1) == 0
        node.put_facts([facts(1, state="completed", started=START, ended=now, nodes=("n1",))])
        node.tick([])
        node.push(database)
        assert keep_looks(database, now=now + 9 * 86400.0, many=1) == 0
        # What there is no time for is for the next time.
        site = Viewer(database, "", Rights(role="owner"), now + 60.0)
        assert keep_looks(database, now=now + 60.0, many=1, most_s=0.0) == 0
        assert keep_looks(database, now=now + 60.0, many=1) == 1
        # A job that is too short for phases is kept with the reason.
        [found] = site.jobs(Wanted())
        told = kept_look(database, found.record)
        assert told is not None
        assert repr(unpack(pack(told))) == repr(told)
        # What cannot be read keeps nobody else's from being kept.
        with database.writing() as connection:
            connection.execute(sa.delete(schema.looks))
            connection.execute(sa.update(chunks).values(body=b"damaged"))
        assert keep_looks(database, now=now + 60.0, many=1) == 0
        node.store.close()


@pytest.mark.parametrize("goes_on", [False, True])
def test_what_is_kept_goes_with_the_job_to_whoever_has_it(
    place: str, tmp_path: Path, goes_on: bool
) -> None:
    """Slurm says that it was bob's all the time: ada is told no more, and bob of it as it is."""
    kept = (schema.looks, schema.courses, schema.findings)
    with centre(place) as database:
        node = Node(tmp_path / "n1.sqlite")
        for step in range(400):
            node.tick([unit(1)], watts={"1": 100.0 + 300.0 * (step > 200)}, cpus=0.2)
        now = node.watcher.time
        state = {"state": "running"} if goes_on else {"state": "completed", "ended": now}
        known = {"started": START, "nodes": ("n1",), "cpus": 16.0, "account": "phys", **state}
        node.put_facts([facts(1, user="ada", **known)])
        node.tick([unit(1)] if goes_on else [])
        node.push(database)
        now = node.watcher.time
        keep_looks(database, now=now, many=1)
        keep_findings(database, now=now)
        there = {table.name for table in kept if rows(database, table)}
        assert there == {"job_findings", "job_courses" if goes_on else "job_looks"}
        ada, before = job(database, "ada", now)
        assert ada.looked_back(before).phases is not None
        take_facts(database, [facts(1, user="bob", **{**known, "account": "chem"})], now=now)
        assert ada.job(before.ref) is None
        assert ada.jobs(Wanted()) == []
        bob, after = job(database, "bob", now)
        for one, count in ((ada, 0), (bob, 1)):
            if not database.is_file:
                with one.reading() as connection:
                    for table in kept:
                        seen = connection.execute(sa.select(table)).all()
                        assert len(seen) <= count, table.name
        # What was kept of hers is not what is shown of his.
        assert kept_look(bob.seen, after.record) is None
        assert not kept_findings(bob, [after])
        assert bob.looked_back(after).record.user == "bob"
        node.store.close()
