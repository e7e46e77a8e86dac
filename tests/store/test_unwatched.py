"""What a job did while nobody watched: CPU time that its group counted, energy nobody knows."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from lowtide.monitor.tick import Tick
from lowtide.store import Question, Store
from lowtide.store.accounts import sum_up
from support.ticks import START, Watcher, facts, unit

A = unit(1, started=START - 100)


def grouped(tick: Tick, before_s: float) -> Tick:
    """The tick where a control group counted before the watcher came."""
    return replace(tick, watched_cpu_s=tick.cpu_s, cpu_s=tick.cpu_s + before_s)


def test_cpu_time_from_before_the_watcher_came_is_the_jobs(place: str) -> None:
    watcher = Watcher()
    with Store.open(place) as store:
        for _ in range(70):
            store.append(grouped(watcher.tick([A]), 150.0))
        [record] = store.jobs(now=watcher.time)
        course = store.series(record)
        table = store.table(Question(), now=watcher.time)
    assert record.cpu_s == 1400.0 + 150.0
    assert record.watched_cpu_s == 1400.0
    assert (record.mean_cpus, record.peak_cpus, record.cpu_efficiency) == (2.0, 2.0, 0.5)
    assert record.unmetered_s == pytest.approx(100.0)
    assert np.allclose(course.columns["cpus_busy"], 2.0)
    assert course.columns["unwatched_cpu_s"].sum() == 150.0
    assert table.cpu_efficiency[0] == 0.5
    assert table.total("cpu_s")[0] == 1550.0


def test_cpu_time_from_while_no_watcher_ran_is_the_jobs(place: str) -> None:
    first = Watcher()
    with Store.open(place) as store:
        for _ in range(5):
            store.append(grouped(first.tick([A]), 150.0))
    later = Watcher(time=first.time + 60.0)
    with Store.open(place) as store:
        for _ in range(5):
            # 150 s before anybody came, 100 s while the first watched, 90 s in between.
            store.append(grouped(later.tick([A]), 340.0))
        [record] = store.jobs(now=later.time)
    assert record.cpu_s == 340.0 + 100.0
    assert record.watched_cpu_s == 200.0
    assert record.mean_cpus == 2.0
    assert record.unmetered_s == pytest.approx(100.0 + 60.0)


def test_who_began_while_watched_lacks_nothing(file: str) -> None:
    watcher = Watcher()
    young = unit(2, started=START + 14)
    with Store.open(file) as store:
        store.append(watcher.tick([]))
        for _ in range(3):
            store.append(grouped(watcher.tick([young]), 0.0))
        # It is gone for a while, and comes back.
        store.append(watcher.tick([]))
        store.append(watcher.tick([]))
        for _ in range(2):
            store.append(grouped(watcher.tick([young]), 0.0))
        [record] = store.jobs(now=watcher.time)
    assert record.cpu_s == record.watched_cpu_s == 100.0
    assert record.unmetered_s == pytest.approx(20.0)


def test_a_job_that_went_on_after_its_watcher_lacks_that_time(file: str) -> None:
    watcher = Watcher()
    with Store.open(file) as store:
        for _ in range(10):
            store.append(watcher.tick([unit(1), unit(2)]))
        store.put_facts(
            [
                facts(1, state="completed", started=START, ended=START + 7300),
                facts(2, state="completed", started=START, ended=START + 105),
            ]
        )
        one, two = store.jobs()
    assert one.unmetered_s == pytest.approx(7200.0)
    assert two.unmetered_s == 0.0


def test_what_is_not_known_for_a_while_stays_as_it_was_known(place: str) -> None:
    watcher = Watcher()
    with Store.open(place) as store:
        for _ in range(5):
            store.append(watcher.tick([A]))
        known = store.jobs()[0].carbon_g
    blind = Watcher(time=watcher.time, intensity=math.nan)
    with Store.open(place) as store:
        for number in range(5):
            tick = blind.tick([A])
            tick.unpriced_j[:] = 1000.0 * (number + 1)
            store.append(tick)
        assert store.jobs()[0].carbon_g == known
    again = Watcher(time=blind.time)
    with Store.open(place) as store:
        for _ in range(5):
            store.append(again.tick([A]))
        [record] = store.jobs()
        course = store.series(record)
    assert record.carbon_g == pytest.approx(2 * known)
    assert record.unpriced_j == 5000.0
    assert np.isnan(course.columns["carbon_g"]).sum() == 5
    assert np.nansum(course.columns["carbon_g"]) == pytest.approx(2 * known)


def test_usage_counts_cpu_time_as_the_jobs_do(tmp_path: Path) -> None:
    began = START - START % 3600 + 600
    job = unit(1, started=began)
    watcher = Watcher(time=began + 3600)
    with Store.open(tmp_path / "store.sqlite") as store:
        for _ in range(60):
            store.append(grouped(watcher.tick([job]), 7200.0))
        question = Question(start=began - 600, end=watcher.time)
        by_user = sum_up(store, question, by="user", now=watcher.time)
        by_hour = sum_up(store, question, by="hour", now=watcher.time)
        late = sum_up(
            store, Question(start=began + 1800, end=watcher.time), by="user", now=watcher.time
        )
    assert by_user.rows[0].cpu_s == pytest.approx(7200.0 + 1200.0)
    # It kept two CPUs busy all the time; of an hour in which nobody watched nothing is said.
    assert [row.cpu_s for row in by_hour.rows] == pytest.approx([math.nan, 2 * 1200.0], nan_ok=True)
    assert late.rows[0].cpu_s == pytest.approx(2 * 2400.0)
