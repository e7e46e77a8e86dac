"""What is kept of jobs that go on is what reading all of it shows, and of that job alone."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import sqlalchemy as sa

from lowtide.hindsight.job import SeenJob
from lowtide.serve import job_courses, schema
from lowtide.serve.ingest import receive
from lowtide.serve.job_courses import _SoFar, seen
from lowtide.serve.kept_looks import keep_looks
from lowtide.serve.pages import Pages
from lowtide.serve.retention import grow_coarser
from lowtide.serve.settings import KeepSettings
from lowtide.serve.viewer import Rights, Viewer, VisibleJob
from lowtide.serve.wanted import Wanted
from lowtide.store.database import Database
from lowtide.store.tables import chunks
from support.nightly import drawn
from support.pushed import Node, centre, rows
from support.ticks import START, facts, unit

DAY_S = 86400.0
TICK_S = 10.0


def found(database: Database, now: float, who: str = "ada") -> VisibleJob:
    [one] = Viewer(database, who, Rights(), now).jobs(Wanted())
    return one


def read(database: Database, job: VisibleJob) -> SeenJob:
    """Return what was seen of a job, with all of it read."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(job_courses, "_kept", lambda *_: _SoFar())
        return seen(database, job.record)


def used(database: Database, job: VisibleJob) -> bool:
    """Return whether what is kept of a job is used."""
    with database.reading() as connection:
        return len(job_courses._kept(connection, job.record).series) > 0


def check(database: Database, job: VisibleJob) -> SeenJob:
    """Compare what is shown with what was kept and without; return it."""
    whole, told = read(database, job), seen(database, job.record)
    assert told.series.times == pytest.approx(whole.series.times, rel=0, abs=1e-6)
    assert told.series.step_s == pytest.approx(whole.series.step_s, rel=0, abs=1e-6)
    for name in job_courses._COLUMNS:
        kept, wanted = told.series.columns[name], whole.series.columns[name]
        assert kept == pytest.approx(wanted, rel=1e-9, abs=1e-6, nan_ok=True), name
    assert (told.begin, told.end, told.pue) == pytest.approx(
        (whole.begin, whole.end, whole.pue), nan_ok=True
    )
    assert told.behaviour.load == pytest.approx(whole.behaviour.load, rel=1e-9, nan_ok=True)
    same = replace(told.behaviour, load=0.0)
    assert repr(same) == repr(replace(whole.behaviour, load=0.0))
    assert (told.phases is None) == (whole.phases is None)
    if told.phases is not None and whole.phases is not None:
        assert [each.name for each in told.phases.found] == [
            each.name for each in whole.phases.found
        ]
        for one, other in zip(told.phases.found, whole.phases.found, strict=True):
            assert one.duration_s == pytest.approx(other.duration_s, rel=1e-6)
            assert one.power_w == pytest.approx(other.power_w, rel=1e-6)
    assert told.notes == whole.notes
    return told


@pytest.mark.parametrize("seed", range(drawn(6, 150)))
def test_what_is_kept_while_it_runs_is_what_reading_shows(
    place: str, tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    chance = random.Random(seed)
    monkeypatch.setattr(job_courses, "_STEPS", chance.choice([50, 150, 1000]))
    count = chance.choice([1, 2, 3, 8])
    # Nodes that look at moments of their own, or all at the same.
    ahead = [chance.uniform(0.0, TICK_S) if chance.random() < 0.5 else 0.0 for _ in range(count)]
    if chance.random() < 0.3:
        ahead = [0.0] * count
    steps = 420
    edge, extra_w = chance.randrange(50, steps - 50), chance.uniform(50.0, 400.0)
    kept = 0
    with centre(place) as database:
        nodes = [
            Node(tmp_path / f"n{n}.sqlite", f"n{n}", time=START + 30 * TICK_S * (n > 4) + late)
            for n, late in enumerate(ahead)
        ]
        # Some join late, some leave, some are not heard of for a while, some are started anew.
        joins = {each.host: chance.choice([0, 0, 0, 90]) for each in nodes[1:]}
        leaves = {each.host: chance.choice([steps, steps, 250]) for each in nodes[1:]}
        silent = {each.host: chance.choice([None, None, chance.randrange(300)]) for each in nodes}
        for step in range(steps):
            for node in nodes:
                if step == silent[node.host]:
                    node.watcher.time += chance.uniform(20.0, 900.0)
                inside = joins.get(node.host, 0) <= step < leaves.get(node.host, steps)
                beside = [unit(2, user="bob")] if step % 100 < chance.choice([0, 60]) else []
                watts = 100.0 + extra_w * (step > edge) + chance.uniform(0.0, 3.0)
                node.watcher.intensity = 200.0 + step
                node.tick(
                    [*([unit(1)] if inside else []), *beside],
                    step_s=TICK_S, watts={"1": watts}, cpus=chance.uniform(1.0, 4.0),
                    memory_bytes=4e9 * chance.uniform(0.9, 1.1),
                )  # fmt: skip
            if step % 35 == 34:
                for node in nodes:
                    if chance.random() < 0.8:
                        node.push(database, most=chance.choice([1, 1000]))
                now = max(each.watcher.time for each in nodes)
                keep_looks(database, now=now, many=1)
                mine = Viewer(database, "ada", Rights(), now).jobs(Wanted())
                if mine:
                    check(database, mine[0])
                    kept += used(database, mine[0])
        assert kept > 2
        for node in nodes:
            node.push(database)
        job = found(database, now)
        check(database, job)
        pages = Pages(None, None, None)._looked_at  # type: ignore[arg-type]
        shown = pages(Viewer(database, "ada", Rights(), now), job)
        with monkeypatch.context() as patched:
            patched.setattr(job_courses, "_kept", lambda *_: _SoFar())
            whole = pages(Viewer(database, "ada", Rights(), now), job)
        assert shown["verdicts"] == whole["verdicts"]
        assert shown["tables"] == whole["tables"]
        for one, other in zip(shown["panels"], whole["panels"], strict=True):
            assert (one["name"], one["begins"], one["ends"]) == (
                other["name"], other["begins"], other["ends"],
            )  # fmt: skip
        # It goes once the job is over and its look is kept.
        ended = nodes[0].watcher.time
        nodes[0].put_facts([facts(1, state="completed", ended=ended, started=START, user="ada")])
        nodes[0].tick([])
        nodes[0].push(database)
        assert keep_looks(database, now=now + 60.0, many=1) >= 1
        number = found(database, now).record.number
        assert number not in {row["job"] for row in rows(database, schema.courses)}
        for node in nodes:
            node.store.close()


@contextmanager
def running(place: str, folder: Path) -> Iterator[tuple[Database, Node, float]]:
    """Make a centre with a job that goes on and of which something is kept."""
    with centre(place) as database:
        node = Node(folder / "n1.sqlite")
        for _ in range(300):
            node.tick([unit(1)])
        node.push(database)
        keep_looks(database, now=node.watcher.time, many=1)
        assert used(database, found(database, node.watcher.time))
        yield database, node, node.watcher.time
        node.store.close()


def test_what_is_otherwise_by_now_is_not_used(place: str, tmp_path: Path) -> None:
    with running(place, tmp_path) as (database, _, now):
        job = found(database, now)
        # Old looks are rolled up, and later they go.
        grow_coarser(database, KeepSettings(looks_days=7), now=now + 9 * DAY_S)
        assert not used(database, job)
        check(database, job)
        keep_looks(database, now=now, many=1)
        assert used(database, job)
        with database.writing() as connection:
            connection.execute(sa.delete(chunks))
        assert not used(database, job)
        assert not len(check(database, job).series)


def test_a_number_that_is_given_again_brings_nothing_along(tmp_path: Path) -> None:
    """On a file numbers of what is gone are given again, in the store and in the centre."""
    with running(str(tmp_path / "centre.sqlite"), tmp_path) as (database, _, now):
        job = found(database, now)
        for changed in (
            {"user": "bob"}, {"job_id": "2"}, {"started": START + 5.0}, {"number": 9},
            {"source": "pid"}, {"cluster": "other"},
        ):  # fmt: skip
            with database.reading() as connection:
                theirs = replace(job.record, **changed)
                assert not len(job_courses._kept(connection, theirs).series), changed
        with database.writing() as connection:
            connection.execute(sa.delete(schema.jobs))
        keep_looks(database, now=now, many=1)
        assert not rows(database, schema.courses)


def test_what_cannot_be_read_keeps_nobody_from_being_read(tmp_path: Path) -> None:
    with running(str(tmp_path / "centre.sqlite"), tmp_path) as (database, node, now):
        for _ in range(100):
            node.tick([unit(1), unit(2)])
        node.push(database)
        with database.writing() as connection:
            connection.execute(sa.update(schema.courses).values(stands="", body=b"damaged"))
            of = sa.select(sa.func.min(chunks.c.id))
            connection.execute(
                sa.update(chunks).where(chunks.c.id == of.scalar_subquery()).values(body=b"")
            )
        keep_looks(database, now=now, many=1)
        both = Viewer(database, "ada", Rights(), now).jobs(Wanted())
        assert {used(database, each) for each in both} == {True, False}


def eves(database: Database, folder: Path, *, bobs: bool) -> float:
    """Have eve, who is root on n1, tell of a job there that was on n2 for five minutes only."""
    first, second = Node(folder / "n1.sqlite", "n1"), Node(folder / "n2.sqlite", "n2")
    second.tells_all = first.tells_all = False
    for step in range(180):
        here = [unit(50, user="eve")] if step < 5 else []
        his = [unit(60, user="bob")] if bobs and 20 <= step < 170 else []
        first.tick([unit(50, user="eve")], step_s=60.0, cpus=0.1)
        second.tick([*here, *his], step_s=60.0, cpus=60.0 if his else 0.5)
        if step % 10 == 9:
            for node in (first, second):
                assert not any(answer.reason for answer in node.push(database))
    now = first.watcher.time
    ended = facts(50, state="completed", started=START, ended=now, user="eve", account="phys",
                  cpus=4.0, memory_bytes=8e9, nodes=("n1", "n2"))  # fmt: skip
    first.put_facts([ended])
    first.tick([], step_s=60.0)
    parcel = first.outbox.next(now=now + 60.0)
    assert parcel is not None
    assert not receive(database, first.sender(parcel), parcel.body, now=now + 60.0).reason
    for node in (first, second):
        node.store.close()
    return now + 60.0


@pytest.mark.parametrize("kept", [False, True])
def test_a_node_is_told_of_only_while_the_job_was_on_it(
    place: str, tmp_path: Path, kept: bool
) -> None:
    """Whoever is root on one node may have a job of theirs last there as long as they like."""
    told = []
    for bobs in (False, True):
        folder = tmp_path / str(bobs)
        folder.mkdir()
        with ExitStack() as stack:
            where = place if bobs else str(folder / "centre.sqlite")
            database = stack.enter_context(centre(where))
            now = eves(database, folder, bobs=bobs)
            if kept:
                assert keep_looks(database, now=now, many=1) >= 1
            eve = Viewer(database, "eve", Rights(), now)
            job = found(database, now, "eve")
            back = eve.looked_back(job)
            _, nodes = eve.behind(job)
            busy = [node.columns["cpus_busy"] for node in nodes]
            told.append((repr(back.behaviour), [np.nansum(each) for each in busy]))
            assert not np.isnan(busy[1][1:5]).any()
    assert told[0] == told[1]
