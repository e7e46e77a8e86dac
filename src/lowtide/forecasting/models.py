"""Ways to foresee a signal from its own past: the day before, what is usual, what is learned.

What is learned is learned by lines, one for each hour of the day and hour ahead, or by trees.
Each answers many questions at once: what will be so many steps after each of some moments, all of
them foreseen with what was known at theirs.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import cache
from typing import Any

import numpy as np

from lowtide.forecasting.past import BoolArray, IntArray, Past
from lowtide.signal import FloatArray

#: What foresees values: a past, the last known step at each moment, and how many steps later.
Foresees = Callable[[Past, IntArray, IntArray], FloatArray]

# How far ahead anything is foreseen.
REACH_DAYS = 7
# So much of what is unusual now is left after a day.
_LEFT_AFTER_A_DAY = 0.3
# Lines go by so many hours back one by one, and by means of three hours up to the second number.
_BACK_H = (12, 48)
# Those of one hour of the day learn from hours so near to it as well, and by how much each of their
# factors is held back: what is worth so many days of evidence, of a feature that varies by 1.
_NEAR_H = 2
_HELD_BACK = 300.0
# What was longer ago tells of another grid: days.
_LINES_DAYS = 800
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


def draw_lines(past: Past) -> Foresees:
    """Learn by how much what will be departs from what is usual, given how it did so far.

    A ridge regression for each hour of the day at which it is asked and each hour ahead. What was
    not measured is left out of what is added up for its hour ahead, and where nothing was measured
    what is usual is foreseen.
    """
    per_hour = past.per_day / 24
    every = max(round(per_hour), 1)
    first = max(len(past) - _LINES_DAYS * past.per_day, 7 * past.per_day)
    now = np.arange(first, len(past), every)
    ahead = np.maximum(np.round(np.arange(1, 24 * REACH_DAYS + 1) * per_hour), 1).astype(np.intp)
    signs = _signs(past, now)
    centre, scale = np.nanmean(signs, axis=0), np.nanstd(signs, axis=0) + 1e-9
    hours = _hour_of_day(past, now)

    def weighed(signs: FloatArray) -> FloatArray:
        inputs = np.nan_to_num((signs - centre) / scale)
        return np.column_stack([np.ones(len(inputs)), inputs])

    inputs = weighed(signs)
    then = now[:, None] + ahead
    answered = then < len(past)
    then = np.minimum(then, len(past) - 1)
    usual = past.at(past.usual, _same_time(past, now[:, None], ahead, 1))
    above = past.values[then] - usual
    answered &= past.sure[then] & np.isfinite(above)
    above = np.where(answered, above, 0.0)
    with _one_thread():
        factors = _factors(inputs, above, answered, hours)

    def foresee(past: Past, now: IntArray, ahead: IntArray) -> FloatArray:
        moments, place = np.unique(now, return_inverse=True)
        inputs = weighed(_signs(past, moments))[place]
        lead = np.minimum(np.ceil(ahead / per_hour - 1e-9).astype(np.intp), 24 * REACH_DAYS) - 1
        above = (inputs * factors[_hour_of_day(past, now), lead]).sum(axis=1)
        foreseen: FloatArray = past.at(past.usual, _same_time(past, now, ahead, 1)) + above
        return foreseen

    return foresee


def _factors(
    inputs: FloatArray, above: FloatArray, answered: BoolArray, hours: IntArray
) -> FloatArray:
    """Return what the inputs count for, for each hour of the day and each lead.

    Args:
        above: For each row of inputs and each lead what is to be foreseen, 0 where not known.
        answered: Where it is known.
        hours: At which hour of the day each row was.
    """
    width, leads = inputs.shape[1], above.shape[1]
    squares, products = np.zeros((24, width, width)), np.zeros((24, width, leads))
    counts = np.zeros((24, leads))
    for hour in range(24):
        own = hours == hour
        squares[hour] = inputs[own].T @ inputs[own]
        products[hour] = inputs[own].T @ above[own]
        counts[hour] = answered[own].sum(axis=0)
    held = _HELD_BACK * np.eye(width)
    held[0, 0] = 1e-9
    factors = np.zeros((24, leads, width))
    offsets = np.arange(-_NEAR_H, _NEAR_H + 1)
    weights = 1 - np.abs(offsets) / (_NEAR_H + 1)
    for hour in range(24):
        near = (hour + offsets) % 24
        square = np.tensordot(weights, squares[near], 1)
        count = weights @ counts[near]
        # As if what was not measured had been as what was.
        share = np.divide(square[0, 0], count, out=np.zeros(leads), where=count > 0)
        product = np.tensordot(weights, products[near], 1) * share
        factors[hour] = np.linalg.solve(square + held, product).T
    return factors


def _hour_of_day(past: Past, steps: IntArray) -> IntArray:
    return past.step_of_day(steps) * 24 // past.per_day


def _signs(past: Past, now: IntArray) -> FloatArray:
    """Return what is known at moments that may tell of all that comes: a row for each of them."""
    day, per_hour = past.per_day, past.per_day / 24
    singly, together = _BACK_H
    by_hour, by_three = (past.mean_unusual(max(round(hours * per_hour), 1)) for hours in (1, 3))
    level = past.at(past.week_mean, now)
    columns = [past.at(by_hour, now - round(hour * per_hour)) for hour in range(singly)]
    columns += [
        past.at(by_three, now - round(hour * per_hour)) for hour in range(singly, together, 3)
    ]
    columns += [past.at(past.day_mean, now - back * day) - level for back in range(7)]
    columns.append(past.at(past.month_mean, now) - level)
    columns += [past.day_of_week(now) == day for day in range(7)]
    return np.column_stack(columns).astype(np.float64)


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
    with _one_thread():
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
        with _one_thread():
            above: FloatArray = model.predict(rows)
        return base + above

    return foresee


def _one_thread() -> AbstractContextManager[Any]:
    """Return what keeps sums to one thread: they come out the same, and small ones sooner.

    Threads that wait for each other on a busy machine take ten times as long. Without scikit-learn,
    which brings what it takes, they may.
    """
    # What is loaded later has threads that are not known before.
    pools = _pools("sklearn.ensemble" in sys.modules)
    return nullcontext() if pools is None else pools.limit(limits=1)


@cache
def _pools(_grows: bool) -> Any:
    try:
        from threadpoolctl import ThreadpoolController
    except ImportError:
        return None
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
    # After a gap of days there is no level to count from.
    there = np.isfinite(past.at(past.day_mean, now)) & np.isfinite(past.at(past.usual, now))
    answered = past.sure[now + ahead] & there
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
