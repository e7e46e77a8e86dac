"""Three ways to foresee a signal from its own past: the day before, what is usual, what is learned.

Each answers many questions at once: what will be so many steps after each of some moments, all of
them foreseen with what was known at theirs.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np

from lowtide.forecasting.past import IntArray, Past
from lowtide.signal import FloatArray

#: What foresees values: a past, the last known step at each moment, and how many steps later.
Foresees = Callable[[Past, IntArray, IntArray], FloatArray]

# How far ahead anything is foreseen.
REACH_DAYS = 7
# So much of what is unusual now is left after a day.
_LEFT_AFTER_A_DAY = 0.3
# What trees are grown from, and how.
_ROWS = 40_000
_TREES = 120
_LEAVES = 15
_NEAR_DAYS = 2


def day_before(past: Past, now: IntArray, ahead: IntArray) -> FloatArray:
    """Foresee what was seen a day before, or as many days before as are known."""
    return past.at(past.day_before, _same_time(past, now, ahead, 1))


def usual_course(past: Past, now: IntArray, ahead: IntArray) -> FloatArray:
    """Foresee what is usual at that time of the week, and that what is unusual now passes."""
    of_day = past.at(past.long_usual, _same_time(past, now, ahead, 1))
    of_week = past.at(past.weekly, _same_time(past, now, ahead, 7))
    usual = np.where(np.isnan(of_week), of_day, (of_day + of_week) / 2)
    left = _LEFT_AFTER_A_DAY ** (ahead / past.per_day)
    unusual = past.at(past.mean_unusual(max(past.per_day // 8, 1)), now)
    return usual + np.nan_to_num(unusual * left)


def _same_time(past: Past, now: IntArray, ahead: IntArray, days: int) -> IntArray:
    """Return the last known step that lies whole days (or weeks) before those ahead."""
    period = days * past.per_day
    return now + ahead - period * -(-ahead // period)


def grow(past: Past, seed: int) -> Foresees | None:
    """Learn from a past what follows what; None where scikit-learn is not installed.

    Args:
        seed: Which of the questions the past could be asked are learned from.
    """
    try:
        from sklearn.ensemble import HistGradientBoostingRegressor
    except ImportError:
        return None
    now, ahead = _questions(past, np.random.default_rng(seed))
    rows, base = _clues(past, now, ahead)
    with _one_thread().limit(limits=1):
        model: Any = HistGradientBoostingRegressor(
            max_iter=_TREES,
            learning_rate=0.06,
            max_leaf_nodes=_LEAVES,
            min_samples_leaf=40,
            l2_regularization=1.0,
            early_stopping=False,
            random_state=seed,
        ).fit(rows, past.values[now + ahead] - base)

    def foresee(past: Past, now: IntArray, ahead: IntArray) -> FloatArray:
        if not ahead.size:
            return np.empty(0)
        rows, base = _clues(past, now, ahead)
        with _one_thread().limit(limits=1):
            above: FloatArray = model.predict(rows)
        return base + above

    return foresee


@cache
def _one_thread() -> Any:
    """Return what keeps scikit-learn to one thread: sums come out the same, and few rows sooner."""
    from threadpoolctl import ThreadpoolController

    return ThreadpoolController()


def _questions(past: Past, rng: np.random.Generator) -> tuple[IntArray, IntArray]:
    """Draw moments of a past and steps after them whose answers were measured."""
    most, near = REACH_DAYS * past.per_day, _NEAR_DAYS * past.per_day
    # Most plans look a day or two ahead.
    ahead = rng.integers(1, np.where(rng.random(_ROWS) < 0.25, most, near) + 1)
    now = rng.integers(past.per_day, len(past), _ROWS)
    last = len(past) - 1
    fits = now + ahead <= last
    now, ahead = now[fits], ahead[fits]
    answered = past.sure[now + ahead] & np.isfinite(past.at(past.usual, now))
    return now[answered], ahead[answered]


def _clues(past: Past, now: IntArray, ahead: IntArray) -> tuple[FloatArray, FloatArray]:
    """Return what is known at moments that may tell of steps ahead, and the level it counts from.

    All values count from the level, so that what was learned holds on another one.
    """
    day, hours = past.per_day, past.per_day / 24
    then = now + ahead
    same, week = _same_time(past, now, ahead, 1), _same_time(past, now, ahead, 7)
    level = past.at(past.day_mean, now)

    def back(count: float) -> FloatArray:
        return past.at(past.values, now - round(count * hours))

    values = [
        *(back(count) for count in (0, 1, 2, 3, 6, 12)),
        past.at(past.day_mean, now - day),
        past.at(past.week_mean, now),
        past.at(past.values, same),
        past.at(past.values, same - day),
        past.at(past.values, week),
        past.at(past.usual, same),
        past.at(past.long_usual, same),
        past.at(past.weekly, week),
    ]
    columns = [
        ahead / day,
        past.step_of_day(then) / day,
        past.step_of_day(now) / day,
        past.day_of_week(then),
        level,
        *(each - level for each in values),
        past.at(past.unusual, now),
        past.at(past.mean_unusual(max(day // 4, 1)), now),
    ]
    return np.column_stack(columns).astype(np.float64), level
