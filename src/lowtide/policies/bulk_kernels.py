"""The inner loops of planning many jobs of constant power to the optimum."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from lowtide.compiled import compiled
from lowtide.job import TIME_TOLERANCE_S
from lowtide.policies.columns import Series
from lowtide.policies.kernels import forward, row_powers, settle, slot_costs, way_back
from lowtide.policies.piecewise import add_shifted, first_minimum
from lowtide.policies.published_kernels import (
    FloatArray,
    IntArray,
    Made,
    longer,
    no_stretches,
    upto,
)

# As in `continuous`: how far past its slack a job may be planned.
_ROOM_S = TIME_TOLERANCE_S / 2


@compiled()
def best_straight(
    arrival: FloatArray, deadline: FloatArray, work_s: FloatArray, power: FloatArray, series: Series
) -> FloatArray:
    """Return the best starts of jobs of constant power that run through, as `continuous` does.

    Args:
        deadline: When it must be done.
    """
    chosen = np.empty(arrival.size)
    offsets_s, weights = np.empty(2), np.empty(2)
    nothing = np.zeros(1)
    for job in range(arrival.size):
        slack_s = deadline[job] - arrival[job] - work_s[job]
        if slack_s <= TIME_TOLERANCE_S:
            chosen[job] = arrival[job]
            continue
        longest_s = slack_s + _ROOM_S
        shift_s = arrival[job] - series.start
        offsets_s[0], offsets_s[1] = 0.0 + shift_s, work_s[job] + shift_s
        weights[0], weights[1] = -power[job], power[job]
        x, left, right = add_shifted(
            np.array([0.0, longest_s]),
            nothing,
            nothing,
            offsets_s,
            weights,
            series.prefix,
            series.values,
            series.step_s,
        )
        delay_s, _ = first_minimum(x, left, right, longest_s)
        chosen[job] = arrival[job] + min(delay_s, slack_s)
    return chosen


@compiled()
def best_gridded(
    arrival: FloatArray,
    deadline: FloatArray,
    work_s: FloatArray,
    power: FloatArray,
    lossless: npt.NDArray[np.bool_],
    series: Series,
    step_s: float,
) -> tuple[Made, FloatArray]:
    """Plan jobs of constant power that may be stopped anywhere, as `exact` does on a step.

    Args:
        deadline: When it must be done.
        lossless: Whether nothing is lost by deciding on the step, counted from its arrival.

    Returns:
        Job, start, work and lost work of every stretch; and what each job comes to.
    """
    made = no_stretches(2 * arrival.size + 64)
    costs = np.empty(arrival.size)
    count = 0
    for job in range(arrival.size):
        begin, end, needed_s = arrival[job], deadline[job], work_s[job]
        slack_s = end - begin - needed_s
        if slack_s <= TIME_TOLERANCE_S:
            # There is one way to run a job without slack.
            rows, columns = np.zeros(1, dtype=np.int64), np.zeros(1, dtype=np.int64)
            shift_s = begin - series.start
            cost = -power[job] * upto(shift_s, series)
            cost += power[job] * upto(needed_s + shift_s, series)
        else:
            cost, rows, columns = _gridded(begin, end, needed_s, power[job], series, step_s)
            offset_s = (series.start - begin) % step_s
            if not lossless[job] and TIME_TOLERANCE_S < offset_s < slack_s - step_s:
                later = begin + offset_s
                other, its_rows, its_columns = _gridded(
                    later, end, needed_s, power[job], series, step_s
                )
                if other < cost:
                    begin, cost, rows, columns = later, other, its_rows, its_columns
        costs[job] = cost
        if count + rows.size > made[0].size:
            made = longer(made, 2 * (count + rows.size))
        for k in range(rows.size - 1, -1, -1):
            progress_s = step_s * rows[k]
            until_s = step_s * rows[k - 1] if k else needed_s
            made[0][count], made[1][count] = job, begin + progress_s + step_s * columns[k]
            made[2][count], made[3][count] = until_s - progress_s, 0.0
            count += 1
    return (made[0][:count], made[1][:count], made[2][:count], made[3][:count]), costs


@compiled(inner=True)
def _gridded(
    base: float, deadline: float, work_s: float, power: float, series: Series, step_s: float
) -> tuple[float, IntArray, IntArray]:
    """Solve one job on a grid, as `gridded.solve` does.

    Returns:
        The least cost, and the rows and columns of the starts that reach it, last first.
    """
    slack_s = deadline - base - work_s
    rows = max(int(np.ceil(work_s / step_s - 1e-9)), 1)
    columns = int(np.floor(max(slack_s, 0.0) / step_s + 1e-9)) + 1
    shift_s = base - series.start
    phases = np.empty((2, 0))
    slot, extra, start, _, leave = slot_costs(
        rows + columns,
        step_s,
        deadline - base,
        (series.prefix, series.values, series.step_s, shift_s),
        (np.zeros(2), np.zeros(1), 1.0, 0.0),
        phases,
        phases,
        0.0,
    )
    powers, special = row_powers(np.array([0.0, work_s]), np.array([power]), step_s, rows)
    # The last row alone can be shorter than a step.
    special_cost = np.empty((1, columns))
    if special[rows - 1] >= 0:
        begin_s = (rows - 1) * step_s
        end_s = min(rows * step_s, work_s)
        for j in range(columns):
            before = -power * upto(step_s * j + (begin_s + shift_s), series)
            special_cost[0, j] = before + power * upto(step_s * j + (end_s + shift_s), series)
    cost = np.empty((1, columns))
    for j in range(columns):
        cost[0, j] = start[j]
    flags = np.zeros((rows, columns), dtype=np.uint8)
    forward(cost[0], powers, special, special_cost, slot, extra, leave, start, 0, 1, flags)
    by_delay = np.empty(columns)
    column = settle(cost, 0.0, by_delay)
    of_starts = flags.reshape((rows, 1, columns))
    rows_of, columns_of = way_back(of_starts, 0, column, 0, 1, 0, False, False)
    return float(by_delay[column]), rows_of, columns_of
