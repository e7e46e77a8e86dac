"""What a centre has grows coarser with age: sums stay to the last bit, and so do jobs."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from lowtide.errors import InvalidInput, UnknownName
from lowtide.serve import schema
from lowtide.serve.kept_looks import keep_looks
from lowtide.serve.retention import grow_coarser
from lowtide.serve.settings import KeepSettings, Settings
from lowtide.store import Store
from lowtide.store.tables import chunks
from support.pushed import Node, centre, rows
from support.ticks import START, facts, unit

DAY_S = 86400.0


def test_courses_grow_coarser_and_sums_stay(place: str, tmp_path: Path) -> None:
    node = Node(tmp_path / "n1.sqlite")
    known = {"user": "ada", "account": "phys", "started": START, "nodes": ("n1",)}
    with centre(place) as database:
        for turn in range(12):
            for _ in range(60):
                node.tick([unit(1), unit(2)])
            if turn == 11:
                node.put_facts([facts(1, state="completed", ended=node.watcher.time, **known)])
            node.push(database)
        for _ in range(3):
            node.tick([unit(2)])
        node.push(database)
        now = node.watcher.time

        def stands() -> tuple[object, ...]:
            return tuple(
                rows(database, table) for table in (schema.jobs, *schema.USAGE, schema.unit_now)
            )

        def course() -> tuple[int, float]:
            with Store.open(place, readonly=True) as store:
                series = store.series(next(each for each in store.jobs() if each.job_id == "1"))
            return len(series), float(np.nansum(series.columns["energy_j"]))

        before = stands()
        assert keep_looks(database, now=now, many=1) == 1
        fine = course()
        keep = KeepSettings(looks_days=2, minutes_days=10, courses_days=80)
        assert fine == (720, pytest.approx(720_000.0))
        assert grow_coarser(database, keep, now=now) == 0
        assert course() == fine
        for days, least, most in ((4, 100, 130), (45, 2, 4)):
            # Whole days, and then whole months, from a day that is long enough ago.
            assert grow_coarser(database, keep, now=now + days * DAY_S) > 0
            steps, energy = course()
            assert least <= steps <= most
            assert energy == pytest.approx(720_000.0, rel=1e-9)
            assert stands() == before
            assert len(rows(database, schema.looks)) == 1
        assert grow_coarser(database, keep, now=now + 100 * DAY_S) > 0
        # What a page showed of a course goes with it.
        assert not rows(database, chunks)
        assert not rows(database, schema.looks)
        assert stands() == before
        # The node goes on, and is counted on.
        node.watcher.time += 60.0
        for _ in range(70):
            node.tick([unit(2)])
        assert not any(answer.reason for answer in node.push(database))
        [second] = [row for row in rows(database, schema.jobs) if row["job_id"] == "2"]
        assert second["energy_j"] == pytest.approx(793_000.0)
    node.store.close()


def test_what_is_kept_is_said_in_the_file(tmp_path: Path) -> None:
    path = tmp_path / "serve.toml"
    path.write_text('cluster = "alps"\n[keep]\nlooks_days = 3\ncourses_days = 365\n')
    assert Settings.read(path).keep == KeepSettings(looks_days=3, courses_days=365)
    for words in ("looks_days = 1", "minutes_days = 3", "courses_days = 20", "jobs_days = 3"):
        path.write_text(f"[keep]\n{words}\n")
        with pytest.raises((InvalidInput, UnknownName)):
            Settings.read(path)
