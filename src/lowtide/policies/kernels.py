"""The inner loops of the planner on a grid of progress and delay.

Row i is the work from progress i·step on, column j the delay j·step; the work of row i runs in
time slot i + j. `flags` remembers the way back: 1 where a column is the cheapest so far among
those left of it at a row's beginning, 2 where a start was made there.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from numba import njit

FloatArray = npt.NDArray[np.float64]
FlagArray = npt.NDArray[np.uint8]

# NaN never occurs: infinities are added to finite numbers only. Saying so lets minima be fast.
_MATH = {"nnan", "nsz"}


@njit(cache=True, nogil=True, error_model="numpy", fastmath=_MATH)
def forward(
    cost: FloatArray,
    power: FloatArray,
    special: npt.NDArray[np.int64],
    special_cost: FloatArray,
    slot: FloatArray,
    slot_extra: FloatArray,
    leave: FloatArray,
    start: FloatArray,
    lag: int,
    first: int,
    flags: FlagArray,
) -> None:
    """Run a job through all rows; `cost` holds the cost of each column before and after.

    Args:
        cost: Per column, the least cost of standing at row 0; changed in place.
        power: Per row, what a slot's value is multiplied by.
        special: Per row, −1, or the row of `special_cost` that says what it costs instead.
        special_cost: Costs per column of rows in which the power changes.
        slot: Per time slot, the integral of the signal.
        slot_extra: Per time slot, what running costs whatever the power; inf where forbidden.
        leave: Per time slot, what a stop that begins there costs.
        start: Per time slot, what a start that is ready there costs.
        lag: How many columns a stop and a start take at least.
        first: The first row at whose beginning the job may be stopped.
        flags: Rows × columns, filled for rows from `first` on.
    """
    rows, columns = flags.shape
    lowest = np.empty(columns)
    for i in range(rows):
        if i >= first:
            marks = flags[i]
            left = leave[i : i + columns]
            low = np.inf
            for j in range(columns):
                value = cost[j] + left[j]
                marks[j] = np.uint8(value < low)
                low = min(low, value)
                lowest[j] = low
            again = start[i + lag : i + columns]
            later = cost[lag:]
            later_marks = marks[lag:]
            for j in range(columns - lag):
                value = lowest[j] + again[j]
                old = later[j]
                later_marks[j] |= np.uint8(value < old) << 1
                later[j] = min(value, old)
        if special[i] >= 0:
            row_cost = special_cost[special[i]]
            for j in range(columns):
                cost[j] += row_cost[j]
        else:
            factor = power[i]
            value_of = slot[i : i + columns]
            extra = slot_extra[i : i + columns]
            for j in range(columns):
                cost[j] += factor * value_of[j] + extra[j]


@njit(cache=True, nogil=True, error_model="numpy", fastmath=_MATH)
def forward_with_rules(
    cost: FloatArray,
    begin: FloatArray,
    power: FloatArray,
    special: npt.NDArray[np.int64],
    special_cost: FloatArray,
    slot: FloatArray,
    slot_extra: FloatArray,
    blocked: npt.NDArray[np.int64],
    leave: FloatArray,
    start: FloatArray,
    lag: int,
    first: int,
    least: int,
    last: int,
    limited: bool,
    flags: FlagArray,
) -> None:
    """Run a job through all rows with a limited number of starts and a least run of each.

    Flags are 1 as for `forward`, and 2 where a start made `least` rows before is taken over.

    Args:
        cost: Layers × columns, least cost of standing at row 0; changed in place.
        begin: Per column, the cost of a first start at row 0; inf where there is none.
        power: Per row, what a slot's value is multiplied by.
        special: Per row, −1, or the row of `special_cost` that says what it costs instead.
        special_cost: Costs per column of rows in which the power changes.
        slot: Per time slot, the integral of the signal.
        slot_extra: Per time slot, what running costs whatever the power.
        blocked: Number of forbidden slots before each.
        leave: Per time slot, what a stop that begins there costs.
        start: Per time slot, what a start that is ready there costs.
        lag: How many columns a stop and a start take at least.
        first: The first row at whose beginning the job may be stopped.
        least: How many rows each start must run.
        last: The last row at whose beginning a start leaves enough to run.
        limited: Whether each start leads to the next layer; else there is one layer.
        flags: (Rows + 1) × layers × columns.
    """
    layers, columns = cost.shape
    rows = power.size
    size = least + 1
    fresh = np.full((layers, size, columns), np.inf)
    ran = np.zeros(columns)
    lowest = np.empty(columns)
    flags[:] = 0
    for i in range(rows + 1):
        for part in range(2):
            # Starts that have run long enough join before the job may be stopped again; those
            # that need not run at all join after.
            joining = (part == 0) == (least > 0)
            if joining:
                origin = i - least
                if origin < 0 or origin > last:
                    continue
                for k in range(layers):
                    for j in range(columns):
                        if blocked[i + j] != blocked[origin + j]:
                            continue
                        value = fresh[k, origin % size, j] + ran[j]
                        if value < cost[k, j]:
                            cost[k, j] = value
                            flags[i, k, j] |= 2
            elif i <= last:
                place = i % size
                for k in range(layers):
                    for j in range(columns):
                        fresh[k, place, j] = np.inf
                if i == 0:
                    k = 1 if limited else 0
                    if k < layers:
                        for j in range(columns):
                            fresh[k, place, j] = begin[j]
                if i >= first:
                    for k in range(layers):
                        after = k + 1 if limited else k
                        if after >= layers:
                            continue
                        low = np.inf
                        for j in range(columns):
                            value = cost[k, j] + leave[i + j]
                            if value < low:
                                low = value
                                flags[i, k, j] |= 1
                            lowest[j] = low
                        for j in range(lag, columns):
                            value = lowest[j - lag] + start[i + j] - ran[j]
                            fresh[after, place, j] = min(fresh[after, place, j], value)
        if i == rows:
            break
        for j in range(columns):
            if special[i] >= 0:
                value = special_cost[special[i], j]
            else:
                value = power[i] * slot[i + j] + slot_extra[i + j]
            ran[j] += value
            if blocked[i + j + 1] != blocked[i + j]:
                value = np.inf
            for k in range(layers):
                cost[k, j] += value


@njit(cache=True, nogil=True, error_model="numpy", fastmath=_MATH)
def many(
    power: FloatArray,
    slot: FloatArray,
    start: FloatArray,
    origin: npt.NDArray[np.int64],
    columns: npt.NDArray[np.int64],
    lag: int,
    cost: FloatArray,
    at_once: FloatArray,
    count: npt.NDArray[np.int64],
    rows_of: npt.NDArray[np.int32],
    columns_of: npt.NDArray[np.int32],
) -> None:
    """Plan many jobs of one profile that may be stopped anywhere, each in its own window.

    Args:
        power: Per row, what a slot's value is multiplied by.
        slot: Per time slot of the whole signal, its integral.
        start: Per time slot, what a start that is ready there costs.
        origin: Per job, the slot in which it works first at delay 0.
        columns: Per job, how many delays it has.
        lag: How many columns a start takes.
        cost: Per job, the least cost; filled in.
        at_once: Per job, the cost of delay 0 without a stop; filled in.
        count: Per job, the number of starts; filled in.
        rows_of: Per job and start, last first, the row; filled in.
        columns_of: Per job and start, last first, the column; filled in.
    """
    rows = power.size
    widest = 0
    for job in range(origin.size):
        widest = max(widest, columns[job])
    value = np.empty(widest)
    lowest = np.empty(widest)
    flags = np.empty((rows, widest), dtype=np.uint8)
    for job in range(origin.size):
        width, first = columns[job], origin[job]
        total = start[first]
        for j in range(width):
            value[j] = start[first + j]
        for i in range(rows):
            here = first + i
            total += power[i] * slot[here]
            if i > 0:
                low = np.inf
                for j in range(width):
                    flags[i, j] = np.uint8(value[j] < low)
                    low = min(low, value[j])
                    lowest[j] = low
                for j in range(lag, width):
                    again = lowest[j - lag] + start[here + j]
                    flags[i, j] |= np.uint8(again < value[j]) << 1
                    value[j] = min(again, value[j])
            for j in range(width):
                value[j] += power[i] * slot[here + j]
        at_once[job] = total
        best = 0
        for j in range(1, width):
            if value[j] < value[best]:
                best = j
        cost[job] = value[best]
        found, i, j = 0, rows - 1, best
        while i > 0:
            if flags[i, j] & 2:
                rows_of[job, found], columns_of[job, found] = i, j
                found += 1
                j -= lag
                while not flags[i, j] & 1:
                    j -= 1
            i -= 1
        rows_of[job, found], columns_of[job, found] = 0, j
        count[job] = found + 1
