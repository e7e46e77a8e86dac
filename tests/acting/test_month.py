"""Months of jobs with all faults: nothing is late but what nobody could have promised."""

from __future__ import annotations

from dataclasses import replace

import pytest

from lowtide.grids import synthetic_grid
from support.acting_month import DAYS, HOUR_S, Month, all_faults, live

GRID = synthetic_grid("windy", start=0, days=DAYS + 15, seed=1).average
JOBS = 40


def bad(seed: int) -> Month:
    faults, deaf = all_faults(seed)
    return Month(seed=seed, jobs=JOBS, faults=faults, deaf=deaf)


def test_without_waits_nothing_is_late_and_much_is_saved():
    outcome = live(Month(seed=3, jobs=JOBS, waits=0.0, margin_s=0.0), GRID)
    assert not outcome.missed
    assert outcome.change < -0.1


@pytest.mark.parametrize("dead_h", [0.0, 30.0, 24.0 * (DAYS + 14)])
def test_whatever_goes_wrong_the_driver_is_not_to_blame_dead_or_alive(dead_h):
    month = replace(bad(5), dead=[(100 * HOUR_S, (100 + dead_h) * HOUR_S)] if dead_h else ())
    outcome = live(month, GRID)
    assert outcome.missed["driver"] == 0
    assert outcome.change < 0


def test_without_forecasts_jobs_run_at_once():
    unforetold = live(replace(bad(5), foretold=False), GRID)
    at_once = live(replace(bad(5), defers=False), GRID)
    assert unforetold.change == pytest.approx(at_once.change, abs=0.01)


def test_a_driver_that_ignores_the_margin_would_be_found_out():
    # With no margin the queue makes jobs late that a margin keeps in time.
    careless = live(Month(seed=3, jobs=JOBS, margin_s=0.0, waits=1.0), GRID)
    careful = live(Month(seed=3, jobs=JOBS, margin_s=8 * HOUR_S, waits=1.0), GRID)
    assert sum(careless.missed.values()) > sum(careful.missed.values())


def test_the_same_seed_is_the_same_month():
    month = replace(bad(7), jobs=15)
    assert live(month, GRID) == live(month, GRID)
