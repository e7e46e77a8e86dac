"""The inner loops of the planner on a grid of progress and delay.

Row i is the work from progress i·step on, column j the delay j·step; the work of row i runs in
time slot i + j. `flags` remembers the way back: 1 where a column is the cheapest so far among
those left of it at a row's beginning, 2 where a start was made there.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from lowtide.compiled import compiled

FloatArray = npt.NDArray[np.float64]
FlagArray = npt.NDArray[np.uint8]

# A later stop or another start must be worth more than rounding, relative to what there is to pay.
_WORTH = 1e-12
# More than any cost, yet finite: infinity times a tolerance would not be a number.
HUGE = 1e300
# NaN never occurs: infinities are added to finite numbers only. Saying so lets minima be fast.
_MATH = {"nnan", "nsz"}


# Epoch seconds tell times apart to 0.2 µs only.
_TOLERANCE_S = 1e-6


@compiled(inner=True)
def _upto(t: float, prefix: FloatArray, values: FloatArray, step_s: float) -> float:
    """Return the integral of a signal from its start to `t` seconds after it, within the signal."""
    i = min(max(int(t / step_s), 0), values.size - 1)
    return float(prefix[i] + values[i] * (t - i * step_s))


@compiled()
def slot_costs(
    count: int,
    step_s: float,
    horizon_s: float,
    signal: tuple[FloatArray, FloatArray, float, float],
    rent: tuple[FloatArray, FloatArray, float, float],
    startup: FloatArray,
    stop: FloatArray,
    suspended: float,
) -> tuple[FloatArray, FloatArray, FloatArray, FloatArray, FloatArray]:
    """Return what running, starting, stopping and being held cost at each slot's beginning.

    Args:
        signal: Prefix integrals, values and step of the signal, and where slot 0 lies in it.
        rent: The same of what a second of running or being held costs.
        startup: Durations and powers of a start's phases, in two rows.

    Returns:
        Per slot the signal's integral and the rent; per slot's beginning the cost of a start
        that is ready there, of having been held until that start, and of a stop that begins
        there less the cost of having been held until its end. Infinite where the deadline or
        the signal's beginning forbids it.
    """
    slot, extra = np.empty(count), np.empty(count)
    start, held, leave = np.empty(count + 1), np.empty(count + 1), np.empty(count + 1)
    # Loops rather than sums and fills from the library: those would take longer to compile.
    lead_s = trail_s = 0.0
    for k in range(startup.shape[1]):
        lead_s += startup[0, k]
    for k in range(stop.shape[1]):
        trail_s += stop[0, k]
    prefix, values, width_s, shift_s = signal
    rent_prefix, rent_values, rent_width_s, rent_shift_s = rent
    at_signal, at_rent = 0.0, 0.0
    for m in range(count + 1):
        at = min(m * step_s, horizon_s)
        before_signal, before_rent = at_signal, at_rent
        at_signal = _upto(shift_s + at, prefix, values, width_s)
        at_rent = _upto(rent_shift_s + at, rent_prefix, rent_values, rent_width_s)
        if m:
            slot[m - 1] = at_signal - before_signal
            extra[m - 1] = at_rent - before_rent
        if m * step_s > horizon_s + _TOLERANCE_S:
            start[m] = held[m] = leave[m] = np.inf
            continue
        begin = at - lead_s
        rent_then = at_rent
        if lead_s > 0.0:
            rent_then = _upto(rent_shift_s + begin, rent_prefix, rent_values, rent_width_s)
        held[m] = rent_then
        if suspended != 0.0:
            held[m] += suspended * _upto(shift_s + begin, prefix, values, width_s)
        start[m] = at_rent - rent_then
        for k in range(startup.shape[1]):
            end = begin + startup[0, k]
            part = _upto(shift_s + end, prefix, values, width_s)
            start[m] += startup[1, k] * (part - _upto(shift_s + begin, prefix, values, width_s))
            begin = end
        if m * step_s + trail_s > horizon_s + _TOLERANCE_S:
            leave[m] = np.inf
            continue
        begin = at
        leave[m] = 0.0
        for k in range(stop.shape[1]):
            end = begin + stop[0, k]
            part = _upto(shift_s + end, prefix, values, width_s)
            leave[m] += stop[1, k] * (part - _upto(shift_s + begin, prefix, values, width_s))
            begin = end
        # Rent is paid during the stop and, as being held, until its end: the two cancel.
        leave[m] -= at_rent
        if suspended != 0.0:
            leave[m] -= suspended * _upto(shift_s + begin, prefix, values, width_s)
    return slot, extra, start, held, leave


@compiled(inner=True)
def _worth(
    power: FloatArray, slot: FloatArray, extra: FloatArray, leave: FloatArray, start: FloatArray
) -> float:
    """Return what rounding may do to a cost: a small share of the largest that could add up."""
    largest = 0.0
    for i in range(slot.size):
        largest = max(largest, abs(slot[i]))
    drawn = 0.0
    for i in range(power.size):
        drawn += abs(power[i])
    largest *= drawn
    for costs, times in ((extra, power.size), (leave, 1), (start, 1)):
        most = 0.0
        for i in range(costs.size):
            if abs(costs[i]) < HUGE:
                most = max(most, abs(costs[i]))
        largest += times * most
    return _WORTH * float(largest)


@compiled()
def off_grid(edges_s: FloatArray, step_s: float) -> int:
    """Return how many edges lie between the beginnings of steps."""
    count = 0
    for edge_s in edges_s:
        steps = edge_s / step_s
        count += abs(steps - round(steps)) > 1e-9
    return count


@compiled()
def fill_rest(
    power: FloatArray,
    slot: FloatArray,
    leave: FloatArray,
    start: FloatArray,
    lag: int,
    rest: npt.NDArray[np.float64],
) -> None:
    """Fill in what is still to be paid, by starts left, row and column, from the last row back.

    Args:
        slot: What a row of power 1 costs, per time slot.
        start: What a start costs that is ready at a slot's beginning.
        lag: By how many columns a stop and a start delay the work.
        rest: Its last row is given, the others are filled in; with one layer starts are unlimited.
    """
    layers, rows, columns = rest.shape
    for i in range(rows - 2, -1, -1):
        for k in range(layers):
            source = k - 1 if layers > 1 else k
            lowest = np.inf
            for j in range(columns - 1, -1, -1):
                again = j + lag
                if source >= 0 and again < columns:
                    worked = power[i] * slot[i + again] + rest[source, i + 1, again]
                    lowest = min(lowest, start[i + again] + worked)
                rest[k, i, j] = min(
                    power[i] * slot[i + j] + rest[k, i + 1, j], leave[i + j] + lowest
                )


@compiled()
def settle(cost: FloatArray, wait: float, by_delay: FloatArray) -> int:
    """Add what waiting costs, fill in the least of each column, and return the cheapest column.

    Of columns that differ by rounding alone it is the first.

    Args:
        cost: Layers × columns; changed in place, what no schedule reaches becoming infinite.
        by_delay: Per column; filled in.
    """
    layers, columns = cost.shape
    least = np.inf
    for j in range(columns):
        by_delay[j] = np.inf
        for k in range(layers):
            cost[k, j] = np.inf if cost[k, j] >= HUGE else cost[k, j] + wait * j
            by_delay[j] = min(by_delay[j], cost[k, j])
        least = min(least, by_delay[j])
    for j in range(columns):
        if by_delay[j] - least <= _WORTH * abs(least):
            return j
    return 0


@compiled()
def row_powers(
    edges_s: FloatArray, power: FloatArray, step_s: float, rows: int
) -> tuple[FloatArray, npt.NDArray[np.int64]]:
    """Return each row's power, and numbers for the rows in which it changes, −1 for others.

    Args:
        edges_s: Progress at which the power changes, from 0 to the end of the work.
        step_s: Length of a row; the last may be shorter, and then counts as changing.
    """
    of_row = np.empty(rows)
    special = np.empty(rows, dtype=np.int64)
    found, k = 0, 0
    for i in range(rows):
        begin, end = i * step_s, (i + 1) * step_s
        while k + 1 < power.size and edges_s[k + 1] <= begin + _TOLERANCE_S:
            k += 1
        of_row[i] = power[k]
        special[i] = -1
        if edges_s[k + 1] < end - _TOLERANCE_S:
            special[i] = found
            found += 1
    return of_row, special


@compiled()
def way_back(
    flags: npt.NDArray[np.uint8],
    layer: int,
    column: int,
    lag: int,
    first: int,
    least: int,
    limited: bool,
    running: bool,
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Return the rows and columns of the starts that lead to a column, from the last to the first.

    Args:
        flags: What `forward` (as one layer) or `forward_with_rules` noted.
        lag: How many columns a stop and a start take at least.
        least: How many rows before its flag a start was made.
        running: Whether the job ran at row 0, so that its first start was made before.
    """
    rows = np.empty(flags.shape[0] + 1, dtype=np.int64)
    columns = np.empty(flags.shape[0] + 1, dtype=np.int64)
    found = 0
    row = flags.shape[0] - 1
    while row >= first:
        if not flags[row, layer, column] & 2:
            row -= 1
            continue
        origin = row - least
        rows[found], columns[found] = origin, column
        found += 1
        if origin == 0 and not running:
            return rows[:found], columns[:found]
        layer -= 1 if limited else 0
        column -= lag
        while not flags[origin, layer, column] & 1:
            column -= 1
        row = origin if least > 0 else origin - 1
    if not running:
        rows[found], columns[found] = 0, column
        found += 1
    return rows[:found], columns[:found]


@compiled(inner=True, fastmath=_MATH)
def _running_lowest(
    cost: FloatArray, left: FloatArray, worth: float, lowest: FloatArray, marks: FlagArray
) -> None:
    """Fill in the least of cost + left among each column and those left of it; mark new lows.

    Args:
        worth: By how much a low must be below the one before it.
        marks: Set to odd where there is a new low, else left alone. Writing nothing else keeps
            this a branch, foreseen by the processor, instead of a chain of minima in which each
            column waits for the one before it: three times faster.
    """
    low = bar = HUGE
    for j in range(cost.size):
        value = cost[j] + left[j]
        if value < bar:
            low = value
            bar = value - worth
            marks[j] |= 1
        lowest[j] = low


@compiled(fastmath=_MATH)
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
        special: Per row, −1, or the row of `special_cost` that says what it costs instead.
        special_cost: Costs per column of rows in which the power changes.
        slot_extra: Per time slot, what running costs whatever the power; inf where forbidden.
        leave: Per time slot, what a stop that begins there costs.
        start: Per time slot, what a start that is ready there costs.
        lag: How many columns a stop and a start take at least.
        first: The first row at whose beginning the job may be stopped.
        flags: Rows × columns, zeros; filled in.
    """
    rows, columns = flags.shape
    worth = _worth(power, slot, slot_extra, leave, start)
    lowest = np.empty(columns)
    for i in range(rows):
        if i >= first:
            marks = flags[i]
            _running_lowest(cost, leave[i : i + columns], worth, lowest, marks)
            again = start[i + lag : i + columns]
            later = cost[lag:]
            later_marks = marks[lag:]
            for j in range(columns - lag):
                value = lowest[j] + again[j]
                old = later[j]
                better = value + worth < old
                later_marks[j] |= np.uint8(better) << 1
                later[j] = value if better else old
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


@compiled(fastmath=_MATH)
def forward_with_rules(
    cost: FloatArray,
    begin: FloatArray,
    power: FloatArray,
    special: npt.NDArray[np.int64],
    special_cost: FloatArray,
    slot: FloatArray,
    slot_extra: FloatArray,
    blocked: npt.NDArray[np.int64],
    last_blocked: npt.NDArray[np.bool_],
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
        special: Per row, −1, or the row of `special_cost` that says what it costs instead.
        special_cost: Costs per column of rows in which the power changes.
        last_blocked: Per column, whether the last row, which may be a part of one, is forbidden.
        leave: Per time slot, what a stop that begins there costs.
        start: Per time slot, what a start that is ready there costs.
        lag: How many columns a stop and a start take at least.
        first: The first row at whose beginning the job may be stopped.
        least: How many rows each start must run.
        last: The last row at whose beginning a start leaves enough to run.
        limited: Whether each start leads to the next layer; else there is one layer.
        flags: (Rows + 1) × layers × columns, zeros; filled in.
    """
    layers, columns = cost.shape
    rows = power.size
    size = least + 1
    fresh = np.full((layers, size, columns), np.inf)
    ran = np.zeros(columns)
    lowest = np.empty(columns)
    worth = _worth(power, slot, slot_extra, leave, start)
    for i in range(rows + 1):
        for part in range(2):
            # Starts that have run long enough join before the job may be stopped again; those
            # that need not run at all join after.
            joining = (part == 0) == (least > 0)
            if joining:
                origin = i - least
                if origin < 0 or origin > last:
                    continue
                until = min(i, rows - 1)
                for k in range(layers):
                    for j in range(columns):
                        if blocked[until + j] != blocked[origin + j]:
                            continue
                        if i == rows and last_blocked[j]:
                            continue
                        value = fresh[k, origin % size, j] + ran[j]
                        if value + worth < cost[k, j]:
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
                        left = leave[i : i + columns]
                        _running_lowest(cost[k], left, worth, lowest, flags[i, k])
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
            shut = last_blocked[j] if i == rows - 1 else blocked[i + j + 1] != blocked[i + j]
            if shut:
                value = np.inf
            for k in range(layers):
                cost[k, j] += value
