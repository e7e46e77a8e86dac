"""What is kept of the waste of jobs is what their courses show, and of jobs as they are."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
import sqlalchemy as sa

from lowtide.serve import schema
from lowtide.serve.kept_waste import keep_findings
from lowtide.serve.overview import WasteBook, Wasted
from lowtide.serve.settings import Exempt
from lowtide.serve.viewer import Rights, Viewer
from lowtide.store.database import Database
from lowtide.store.tables import chunks
from support.nightly import drawn
from support.pushed import Node, centre, rows
from support.ticks import START, facts, unit

HOUR_S = 3600.0


def watched(folder: Path, database: Database, chance: random.Random) -> tuple[Node, float]:
    """Watch jobs that waste in one way or another: some are over, some go on."""
    node = Node(folder / "n1.sqlite")
    jobs = [unit(number, user=f"u{number % 3}") for number in range(9)]
    asked = {
        number: {
            "cpus": float(chance.choice([1, 4, 32])),
            "memory_bytes": chance.choice([2e9, 9e10]),
            "time_limit_s": chance.choice([2e4, 9e4]),
            "gpus": float(chance.choice([0, 2])),
        }
        for number in range(9)
    }
    for step in range(150):
        busy = 0.0 if 30 <= step < 100 and chance.random() < 0.999 else chance.uniform(0.5, 3.0)
        node.tick(jobs, step_s=60.0, cpus=busy, gpus=1.0 if step > 60 else 0.0,
                  watts={str(number): 50.0 + 10 * number for number in range(9)})  # fmt: skip
    now = node.watcher.time
    for number in range(9):
        ended = {"state": "completed", "ended": now} if number < 6 else {"state": "running"}
        known = {"started": START, "nodes": ("n1",), "account": "phys"} | asked[number] | ended
        node.put_facts([facts(number, user=f"u{number % 3}", **known)])
    node.tick(jobs[6:], step_s=60.0)
    node.push(database)
    return node, node.watcher.time


def told(database: Database, now: float, who: str = "") -> list[Wasted]:
    rights = Rights() if who else Rights(role="owner")
    return WasteBook(Exempt()).waste(
        Viewer(database, who, rights, now), start=now - 24 * HOUR_S, end=now + HOUR_S
    )


@pytest.mark.parametrize("seed", range(drawn(2, 30)))
def test_what_is_kept_is_what_courses_show(
    place: str, tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    with centre(place) as database:
        node, now = watched(tmp_path, database, random.Random(seed))
        before = {who: repr(told(database, now, who)) for who in ("", "u0", "u1", "nobody")}
        assert {each.finding.rule for each in told(database, now)} > {"dead_weight"}
        kept = keep_findings(database, now=now)
        assert kept >= 5
        assert keep_findings(database, now=now) == 0

        def read(*_: object) -> None:
            raise AssertionError("read again")

        with monkeypatch.context() as patched:
            patched.setattr("lowtide.serve.overview.find_waste", read)
            assert {who: repr(told(database, now, who)) for who in before} == before
            # Some are exempt here, whatever was found of them.
            site = Viewer(database, "", Rights(role="owner"), now)
            book = WasteBook(Exempt(users=("u1",), rules=("dead_weight",)))
            left = book.waste(site, start=now - 24 * HOUR_S, end=now)
            assert left
            assert not any(
                each.job.record.user == "u1" or each.finding.rule == "dead_weight" for each in left
            )
            # Of those that go on what was found holds for an hour and a half.
            later = now + 1.4 * HOUR_S
            assert len(told(database, later)) == len(told(database, now))
            with pytest.raises(AssertionError, match="read again"):
                told(database, now + 1.6 * HOUR_S)
        assert 0 < keep_findings(database, now=now + 1.1 * HOUR_S) < kept
        # A job of which more is told is another.
        node.put_facts([facts(5, state="failed", exit_code=3, user="u2", nodes=("n1",))])
        node.push(database)
        with monkeypatch.context() as patched:
            patched.setattr("lowtide.serve.overview.find_waste", read)
            with pytest.raises(AssertionError, match="read again"):
                told(database, now)
        assert any(each.job.record.state == "failed" for each in told(database, now))
        node.store.close()


def test_what_was_found_goes_in_time_and_nobody_is_in_its_way(tmp_path: Path) -> None:
    with centre(str(tmp_path / "centre.sqlite")) as database:
        node, now = watched(tmp_path, database, random.Random(1))
        assert keep_findings(database, now=now, most_s=0.0) == 0
        with database.writing() as connection:
            first = sa.select(sa.func.min(chunks.c.id)).scalar_subquery()
            connection.execute(sa.update(chunks).where(chunks.c.id == first).values(body=b"x"))
        kept = keep_findings(database, now=now)
        assert kept > 0
        assert len(rows(database, schema.findings)) == kept
        keep_findings(database, now=now + 101 * 24 * HOUR_S)
        # Those that go on are looked at anew, for whoever hears of them again.
        assert {row["settled"] for row in rows(database, schema.findings)} == {False}
        node.store.close()


def test_a_number_that_is_given_again_brings_no_waste_along(tmp_path: Path) -> None:
    with centre(str(tmp_path / "centre.sqlite")) as database:
        node, now = watched(tmp_path, database, random.Random(1))
        keep_findings(database, now=now)
        [one, *_] = [each for each in told(database, now) if each.job.record.state == "running"]
        number, user = one.job.record.number, one.job.record.user
        assert told(database, now, user or "")
        with database.writing() as connection:
            # Another's job by the same number, of which nothing was seen.
            this = sa.select(schema.jobs).where(schema.jobs.c.number == number)
            row = dict(connection.execute(this).mappings().one())
            connection.execute(sa.delete(schema.jobs))
            others = {"user": "eve", "ref": "anotherref", "number": number}
            connection.execute(sa.insert(schema.jobs).values({**row, **others}))
            connection.execute(sa.delete(chunks))
        assert not told(database, now, "eve")
        node.store.close()
