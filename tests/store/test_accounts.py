"""Summing up: nothing is lost at edges, and no data is not nothing."""

from __future__ import annotations

import math
from datetime import UTC, timedelta, timezone

import numpy as np
import pytest

from lowtide.errors import UnknownName
from lowtide.store import Question, Store
from lowtide.store.accounts import NAMES, TIMES, sum_up
from support.ticks import Watcher, facts, unit

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
