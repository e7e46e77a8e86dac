"""Summing up: nothing is lost at edges, and no data is not nothing."""

from __future__ import annotations

import math
from datetime import UTC, timedelta, timezone
from tempfile import TemporaryDirectory

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lowtide.errors import UnknownName
from lowtide.store import Question, Store
from lowtide.store.accounts import NAMES, TIMES, sum_up
from support.ticks import START, Watcher, facts, unit

# A Monday, at midnight.
MONDAY = 1_704_672_000.0
HOUR = 3600.0


def test_ten_thousand_short_jobs_are_one_line(file: str) -> None:
    # The same in a tenth of the number: 1,000 jobs of 20 s on one core are 5.56 core-hours.
    with Store.open(file) as store:
        store.put_facts(
            facts(
                number,
                state="completed",
                name="shorty",
                user="ada",
                cpus=1,
                started=MONDAY + 20 * number,
                ended=MONDAY + 20 * number + 20,
            )
            for number in range(1000)
        )
        found = sum_up(store, Question(start=MONDAY), by="name", now=MONDAY + 86400)
    [row] = found.rows
    assert (row.label, row.jobs) == ("shorty", 1000)
    assert row.core_s / 3600 == pytest.approx(5.556, abs=0.001)
    # Nobody saw them: what they drew is not known, and not nothing.
    assert np.isnan(row.energy_j) and row.unknown_duration == 0


def watched_day(store: Store) -> tuple[float, float]:
    """Two users over 30 hours, with a night of nobody watching; return what they drew."""
    jobs = [unit("long", started=MONDAY, user="ada"), unit("short", started=MONDAY, user="bob")]
    watcher = Watcher(time=MONDAY)
    for number in range(60):
        store.append(watcher.tick(jobs if number < 20 else jobs[:1], step_s=600.0))
    return 100.0 * 600 * 60, 100.0 * 600 * 20


@pytest.mark.parametrize("by", [*NAMES, *TIMES])
def test_every_way_of_summing_comes_to_the_same(file: str, by: str) -> None:
    with Store.open(file) as store:
        drawn = sum(watched_day(store))
        found = sum_up(store, Question(start=MONDAY), by=by, now=MONDAY + 10 * HOUR, tz=UTC)
        assert sum(row.energy_j for row in found.rows) == pytest.approx(drawn, rel=1e-6)
        assert sum(row.cpu_s for row in found.rows) == pytest.approx(2 * 600 * 80, rel=1e-6)
        assert sum(row.core_s for row in found.rows) == pytest.approx(4 * 600 * 80, rel=1e-3)


def test_only_what_lies_in_the_window_counts(file: str) -> None:
    with Store.open(file) as store:
        watched_day(store)
        window = Question(start=MONDAY + 1.5 * HOUR, end=MONDAY + 4.5 * HOUR)
        rows = sum_up(store, window, by="user", now=MONDAY + 10 * HOUR).rows
    ada, bob = rows
    assert (ada.label, bob.label) == ("ada", "bob")
    assert ada.energy_j == pytest.approx(100.0 * 3 * HOUR, rel=1e-6)
    assert bob.energy_j == pytest.approx(100.0 * (200 * 60 - 1.5 * HOUR), rel=1e-6)
    assert ada.core_s == pytest.approx(4 * 3 * HOUR)


def test_hours_are_those_of_the_zone(file: str) -> None:
    with Store.open(file) as store:
        watched_day(store)
        question = Question(start=MONDAY, end=MONDAY + 24 * HOUR)
        nepal = timezone(timedelta(hours=5, minutes=45))
        found = sum_up(store, question, by="hour", now=MONDAY + 24 * HOUR, tz=nepal)
    assert found.zone == "UTC+05:45"
    rows = {row.label: row for row in found.rows}
    assert len(rows) == 24
    assert list(rows) == sorted(rows)
    # The first quarter of an hour of UTC's Monday is the end of Nepal's sixth hour.
    assert rows["05"].energy_j == pytest.approx(200.0 * 900, rel=1e-6)
    assert rows["06"].energy_j == pytest.approx(200.0 * HOUR, rel=1e-6)


def test_when_nobody_watched_there_is_no_data(file: str) -> None:
    with Store.open(file) as store:
        watched_day(store)
        question = Question(start=MONDAY, end=MONDAY + 24 * HOUR)
        found = sum_up(store, question, by="hour", now=MONDAY + 24 * HOUR, tz=UTC)
    rows = {row.label: row for row in found.rows}
    assert rows["09"].watched == pytest.approx(1.0)
    assert rows["12"].watched == 0
    assert math.isnan(rows["12"].energy_j)
    assert math.isnan(rows["12"].core_s)
    assert found.gaps == (("n1", MONDAY + 10 * HOUR, MONDAY + 24 * HOUR),)
    days = sum_up(store, question, by="weekday", now=MONDAY + 24 * HOUR, tz=UTC).rows
    assert [row.label for row in days] == ["Mon"]


def test_a_job_seen_once_has_no_duration_and_is_counted_so(file: str) -> None:
    with Store.open(file) as store:
        store.append(Watcher(time=MONDAY).tick([unit(1, started=MONDAY)]))
        [row] = sum_up(store, Question(start=MONDAY), by="user", now=MONDAY + HOUR).rows
    assert (row.jobs, row.unknown_duration) == (1, 1)
    assert math.isnan(row.core_s)
    assert row.energy_j == 1000.0


def test_an_unknown_way_lists_the_known(file: str) -> None:
    with Store.open(file) as store, pytest.raises(UnknownName, match="weekday"):
        sum_up(store, Question(start=MONDAY), by="weekend", now=MONDAY)


def test_sums_that_lack_unwatched_jobs_say_so(place: str) -> None:
    """A watcher that came late: Slurm tells of a job that nobody saw."""
    watcher = Watcher()
    with Store.open(place) as store:
        for _ in range(6):
            store.append(watcher.tick([unit(7)]))
        store.put_facts(
            [
                facts(
                    5,
                    user="ada",
                    account="a",
                    state="completed",
                    started=START - 7000,
                    ended=START - 7000 + 240,
                    cpus=2.0,
                    submitted=START - 7100,
                ),
                facts(
                    7,
                    user="ada",
                    account="a",
                    state="completed",
                    started=START,
                    ended=START + 60,
                    cpus=2.0,
                    submitted=START - 1,
                ),
                facts(
                    8,
                    user="bob",
                    account="b",
                    state="completed",
                    started=START - 7000,
                    ended=START - 7000 + 240,
                    cpus=2.0,
                    submitted=START - 7100,
                ),
            ]
        )
        question = Question(start=START - 8000, end=watcher.time)
        for by in ("user", "account"):
            ada, bob = sum_up(store, question, by=by, now=watcher.time).rows
            assert (ada.jobs, ada.energy_j, ada.unmetered_s) == (2, pytest.approx(6000.0), 240.0)
            assert set(ada.lacking) == {"cpu_s", "energy_j", "carbon_g"}
            # Job 5 kept 480 s of cores, and nobody knows what it used of them.
            assert (ada.cpu_s, ada.core_s) == (pytest.approx(120.0), pytest.approx(600.0))
            assert (ada.compared, ada.cpu_efficiency) == (1, pytest.approx(1.0))
            assert math.isnan(bob.energy_j)
            assert math.isnan(bob.cpu_efficiency)
        [day] = sum_up(store, question, by="weekday", now=watcher.time).rows
        assert set(day.lacking) == {"cpu_s", "energy_j", "carbon_g"}


@given(seen=st.lists(st.booleans(), min_size=1, max_size=6))
@settings(max_examples=15, deadline=None)
def test_a_sum_is_whole_only_if_all_of_it_was_seen(seen: list[bool]) -> None:
    watcher = Watcher()
    units = [unit(number) for number, there in enumerate(seen) if there]
    with TemporaryDirectory() as folder, Store.open(f"{folder}/store.sqlite") as store:
        for _ in range(3):
            store.append(watcher.tick(units))
        store.put_facts(
            facts(number, user="ada", state="completed", started=START, ended=START + 30, cpus=4.0)
            for number in range(len(seen))
        )
        question = Question(start=START - 60, end=watcher.time)
        [row] = sum_up(store, question, by="user", now=watcher.time).rows
    assert row.jobs == len(seen)
    assert row.core_s == pytest.approx(120.0 * len(seen))
    if not any(seen):
        assert math.isnan(row.energy_j + row.cpu_s + row.carbon_g)
        return
    assert row.energy_j == pytest.approx(3000.0 * sum(seen))
    assert (row.lacking == ()) == all(seen)
    assert (row.cpu_efficiency, row.compared) == (pytest.approx(0.5), sum(seen))
