"""Piecewise-linear functions of a delay, and what a planner does to them.

A function is three arrays `(x, left, right)`: segment i lies over the closed interval from x[i] to
x[i+1] and is linear from left[i] to right[i]. Neighbours need not meet; where they do not, the
lower of the two values counts. An infinite segment is a stretch of delays that cannot be.
"""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from lowtide.compiled import compiled

FloatArray: TypeAlias = npt.NDArray[np.float64]
Function: TypeAlias = tuple[FloatArray, FloatArray, FloatArray]

# Knots closer than this are one: a tenth of a microsecond, less than epoch seconds can tell.
_SAME_S = 1e-7
# Neighbouring segments that bend by less than this, relative to the largest value, are one.
_STRAIGHT = 1e-13
# The narrowest stretch of delays that is kept apart.
NARROW_S = 4 * _SAME_S
# What is too long for a place by no more than this fits it: epoch seconds are not told apart.
_FITS_S = 10 * _SAME_S
# How far an edge is moved where a function jumps: further than knots that are one lie apart.
_JUMP_S = 2 * _SAME_S
# Values closer than this, relative to their size, are equal: the earlier delay is preferred.
_TIE = 1e-10


def constant(value: float, length_s: float) -> Function:
    """Return a constant on the delays from 0 to a length."""
    return np.array([0.0, length_s]), np.array([value]), np.array([value])


@compiled()
def add_shifted(
    x: FloatArray,
    left: FloatArray,
    right: FloatArray,
    offsets_s: FloatArray,
    weights: FloatArray,
    prefix: FloatArray,
    values: FloatArray,
    step_s: float,
) -> Function:
    """Add Σ weight · C(offset + x), C the running integral of a signal, to a function.

    Args:
        offsets_s: Where each term reads the signal at delay 0, seconds after the signal's start.
    """
    # Where the function is infinite it stays so, whatever is added.
    first_x, last_x = 0, left.size
    while first_x < left.size - 1 and left[first_x] == np.inf:
        first_x += 1
    while last_x > first_x + 1 and left[last_x - 1] == np.inf:
        last_x -= 1
    low, high = x[first_x], x[last_x]
    count = 0
    for k in range(offsets_s.size):
        if weights[k] != 0.0:
            count += int((high - low) / step_s) + 2
    bends = np.empty(count)
    jumps = np.empty(count)
    ends = np.zeros(offsets_s.size + 1, dtype=np.int64)
    n = 0
    value, slope = 0.0, 0.0
    for k in range(offsets_s.size):
        weight, offset = weights[k], offsets_s[k]
        ends[k + 1] = n
        if weight == 0.0:
            continue
        first = min(max(int((offset + low) / step_s), 0), values.size - 1)
        last = min(int((offset + high) / step_s), values.size - 1)
        value += weight * (prefix[first] + values[first] * (offset + low - first * step_s))
        slope += weight * values[first]
        for i in range(first + 1, last + 1):
            bend = weight * (values[i] - values[i - 1])
            if bend != 0.0:
                bends[n] = i * step_s - offset
                jumps[n] = bend
                n += 1
        ends[k + 1] = n
    bends, jumps = _merged(bends, jumps, ends)
    knots = np.empty(n + x.size)
    total = np.empty(n + x.size)
    # Where a knot of the function and a bend of the signal fall together, the function's stays:
    # it may be a jump.
    size, i, j = 0, 0, 0
    before = low
    while i < x.size or j < n:
        if i < x.size and (j >= n or x[i] <= bends[j] + _SAME_S):
            at = x[i]
            i += 1
        else:
            at = bends[j]
            if at > high - _SAME_S:
                # A bend at the very end changes nothing.
                j = n
                continue
        if at > low:
            value += slope * (at - before)
            before = at
        while j < n and bends[j] <= at + _SAME_S:
            slope += jumps[j]
            j += 1
        knots[size] = at
        total[size] = value
        size += 1
    new_left = np.empty(size - 1)
    new_right = np.empty(size - 1)
    s = 0
    for i in range(size - 1):
        while x[s + 1] < knots[i + 1] - 0.5 * _SAME_S:
            s += 1
        a, b = left[s], right[s]
        if a == np.inf:
            new_left[i] = np.inf
            new_right[i] = np.inf
        else:
            slope = (b - a) / (x[s + 1] - x[s])
            new_left[i] = a + slope * (knots[i] - x[s]) + total[i]
            new_right[i] = b - slope * (x[s + 1] - knots[i + 1]) + total[i + 1]
    return simplified(knots[:size], new_left, new_right)


@compiled(inner=True)
def _merged(
    keys: FloatArray, values: FloatArray, ends: npt.NDArray[np.int64]
) -> tuple[FloatArray, FloatArray]:
    """Merge runs that are each sorted, pair by pair; `ends` says where each run ends."""
    # A sort from the library would do, but takes seconds to compile.
    other_keys, other_values = np.empty_like(keys), np.empty_like(values)
    runs = ends.size - 1
    while runs > 1:
        kept = 0
        for run in range(0, runs, 2):
            i, middle = ends[run], ends[run + 1]
            j, last = middle, ends[min(run + 2, runs)]
            for place in range(i, last):
                if j >= last or (i < middle and keys[i] <= keys[j]):
                    other_keys[place], other_values[place] = keys[i], values[i]
                    i += 1
                else:
                    other_keys[place], other_values[place] = keys[j], values[j]
                    j += 1
            kept += 1
            ends[kept] = last
        runs = kept
        keys, other_keys = other_keys, keys
        values, other_values = other_values, values
    return keys, values


@compiled(inner=True)
def simplified(x: FloatArray, left: FloatArray, right: FloatArray) -> Function:
    """Join neighbours that lie on one line."""
    scale = 0.0
    for i in range(left.size):
        if left[i] != np.inf:
            scale = max(scale, abs(left[i]), abs(right[i]))
    tiny = _STRAIGHT * scale
    keep_x = np.empty(x.size)
    keep_left = np.empty(left.size)
    keep_right = np.empty(left.size)
    keep_x[0], keep_x[1] = x[0], x[1]
    keep_left[0], keep_right[0] = left[0], right[0]
    n = 1
    for i in range(1, left.size):
        joined = False
        if left[i] == np.inf:
            joined = keep_left[n - 1] == np.inf
        elif keep_left[n - 1] != np.inf and abs(keep_right[n - 1] - left[i]) <= tiny:
            span = x[i + 1] - keep_x[n - 1]
            line = keep_left[n - 1] + (right[i] - keep_left[n - 1]) * (x[i] - keep_x[n - 1]) / span
            joined = abs(line - left[i]) <= tiny
        if joined:
            keep_x[n] = x[i + 1]
            keep_right[n - 1] = right[i]
        else:
            keep_x[n + 1] = x[i + 1]
            keep_left[n], keep_right[n] = left[i], right[i]
            n += 1
    return keep_x[: n + 1].copy(), keep_left[:n].copy(), keep_right[:n].copy()


@compiled()
def delayed_minimum(x: FloatArray, left: FloatArray, right: FloatArray, lag_s: float) -> Function:
    """Return x ↦ min over y ≤ x − lag of a function, infinite below the lag, on the same delays."""
    high = x[-1]
    out_x = np.empty(2 * left.size + 3)
    out_left = np.empty(2 * left.size + 2)
    out_right = np.empty(2 * left.size + 2)
    out_x[0] = x[0]
    n = 0
    if lag_s > _SAME_S:
        out_x[1] = min(x[0] + lag_s, high)
        out_left[0] = np.inf
        out_right[0] = np.inf
        n = 1
    lowest = np.inf
    for i in range(left.size):
        begin = x[i] + lag_s
        if begin >= high - _SAME_S:
            break
        end = min(x[i + 1] + lag_s, high)
        a, b = left[i], right[i]
        if a != np.inf:
            # A segment cut by the end of the delays stops where it is cut.
            b = a + (b - a) * ((end - begin) / (x[i + 1] - x[i]))
        lowest = min(lowest, a)
        if a == np.inf or b >= lowest:
            out_x[n + 1] = end
            out_left[n] = lowest
            out_right[n] = lowest
            n += 1
        else:
            cross = begin + (end - begin) * ((a - lowest) / (a - b))
            if cross - begin > _SAME_S and end - cross > _SAME_S:
                out_x[n + 1] = cross
                out_left[n] = lowest
                out_right[n] = lowest
                n += 1
            out_x[n + 1] = end
            out_left[n] = lowest
            out_right[n] = b
            n += 1
            lowest = b
    out_x[n] = high
    return simplified(out_x[: n + 1], out_left[:n], out_right[:n])


@compiled()
def first_lows(
    x: FloatArray, left: FloatArray, right: FloatArray, worth: float
) -> tuple[FloatArray, FloatArray]:
    """Return where a function that never rises first had the value that it has at a delay.

    Args:
        worth: By how much it must fall to be lower.

    Returns:
        Delays from which on something else holds, rising; and from each on the delay at which the
        value was reached, or −1 where the function falls and so reaches it there and then.
    """
    begin, place = np.empty(left.size + 1), np.empty(left.size + 1)
    begin[0], place[0] = -np.inf, -1.0
    n, low, falling = 1, np.inf, True
    for i in range(left.size):
        if left[i] == np.inf:
            continue
        # What is lower by less than it is worth is not told apart from what was before: where such
        # steps add up, the last of them is the one that counts, and not the level after it.
        steps = right[i] < low - worth and left[i] - right[i] <= worth
        jumps = left[i] < low - worth or steps
        if jumps:
            low = left[i]
        falls = right[i] < low - worth
        if falls:
            low = right[i]
        if falls != falling or (jumps and not falls):
            # A jump is on its lower side, and so is the end of what is level.
            begin[n] = x[i] if falling and not jumps else x[i] + (-_JUMP_S if jumps else _JUMP_S)
            place[n] = -1.0 if falls else x[i]
            n += 1
        falling = falls
    return begin[:n].copy(), place[:n].copy()


@compiled()
def lower_of(
    x1: FloatArray,
    left1: FloatArray,
    right1: FloatArray,
    x2: FloatArray,
    left2: FloatArray,
    right2: FloatArray,
    worth: float,
) -> tuple[Function, FloatArray]:
    """Return the lower of two functions on the same delays, and where that is the second.

    Args:
        worth: By how much the second must be lower to be taken.

    Returns:
        The function; and delays from and to which, in turn, the second was taken. One at which
        the function jumps is moved a little, so that the jump itself is on its lower side.
    """
    most = 2 * (left1.size + left2.size) + 2
    out_x = np.empty(most + 1)
    out_left = np.empty(most)
    out_right = np.empty(most)
    edges = np.empty(most + 2)
    out_x[0] = x1[0]
    n, i, j, turns = 0, 0, 0, 0
    begin = x1[0]
    while i < left1.size and j < left2.size:
        end = min(x1[i + 1], x2[j + 1])
        if end - begin > _SAME_S or (i == left1.size - 1 and j == left2.size - 1 and n == 0):
            a1, b1 = _between(x1, left1, right1, i, begin, end)
            a2, b2 = _between(x2, left2, right2, j, begin, end)
            # How much is gained by the second, at either end.
            a, b = -1.0, -1.0
            if a2 != np.inf:
                a, b = (1.0, 1.0) if a1 == np.inf else (a1 - a2 - worth, b1 - b2 - worth)
            share, parts = 1.0, 1
            if (a > 0) != (b > 0):
                share = a / (a - b)
                if min(share, 1.0 - share) * (end - begin) > _SAME_S:
                    parts = 2
                else:
                    # Too close to an end to be told from it: what counts is the rest.
                    a += b
            second = a > 0
            for part in range(parts):
                if part:
                    second = not second
                p, q = (a2, b2) if second else (a1, b1)
                out_left[n] = p + (q - p) * share if part else p
                out_right[n] = p + (q - p) * share if part + 1 < parts else q
                low = begin + share * (end - begin) if part else begin
                out_x[n] = low
                if second != (turns % 2 == 1):
                    edges[turns] = low
                    if n:
                        edges[turns] += -_JUMP_S if out_left[n] < out_right[n - 1] else _JUMP_S
                    turns += 1
                n += 1
            begin = end
        if x1[i + 1] <= end + _SAME_S:
            i += 1
        if j < left2.size and x2[j + 1] <= end + _SAME_S:
            j += 1
    out_x[n] = x1[-1]
    if turns:
        edges[0] = edges[0] if edges[0] > x1[0] else -np.inf
    if turns % 2 == 1:
        edges[turns] = np.inf
        turns += 1
    return simplified(out_x[: n + 1], out_left[:n], out_right[:n]), edges[:turns].copy()


@compiled(inner=True)
def _between(
    x: FloatArray, left: FloatArray, right: FloatArray, i: int, begin: float, end: float
) -> tuple[float, float]:
    """Return a segment's values at two delays within it."""
    a, b = left[i], right[i]
    if a == np.inf:
        return np.inf, np.inf
    slope = (b - a) / (x[i + 1] - x[i])
    return a + slope * (begin - x[i]), b - slope * (x[i + 1] - end)


@compiled()
def without(
    x: FloatArray, left: FloatArray, right: FloatArray, low: float, high: float
) -> Function:
    """Return a function that cannot be strictly between two delays.

    Where this leaves no more than a moment of a stretch of delays that can be, or all but a moment
    too little, the moment is kept: as the narrowest stretch that can be told from none.
    """
    out_x = np.empty(x.size + 2)
    out_left = np.empty(left.size + 2)
    out_right = np.empty(left.size + 2)
    out_x[0] = x[0]
    n, last = 0, left.size - 1
    for i in range(left.size):
        begin, end = x[i], x[i + 1]
        upto, since = min(max(low, begin), end), min(max(high, begin), end)
        if left[i] != np.inf and low < end and high > begin:
            if (i == 0 or left[i - 1] == np.inf) and -_FITS_S <= low - begin < NARROW_S:
                upto = min(begin + NARROW_S, end)
            if (i == last or left[i + 1] == np.inf) and -_FITS_S <= end - high < NARROW_S:
                since = max(end - NARROW_S, begin)
            since = max(since, upto)
        cuts = (begin, upto, since, end)
        for part in range(3):
            begin, end = cuts[part], cuts[part + 1]
            if end - begin <= _SAME_S:
                continue
            a, b = _between(x, left, right, i, begin, end)
            out_x[n + 1] = end
            out_left[n], out_right[n] = (np.inf, np.inf) if part == 1 else (a, b)
            n += 1
    out_x[n] = x[-1]
    return simplified(out_x[: n + 1], out_left[:n], out_right[:n])


@compiled()
def no_more_than(
    x: FloatArray, left: FloatArray, right: FloatArray, rest: FloatArray, step_s: float, most: float
) -> Function:
    """Return a function without the segments that lead to more than so much, whatever follows.

    Args:
        rest: What follows costs at least, by the delay in steps; the last holds from there on.
        most: What is too much if it is exceeded.
    """
    new_left, new_right = left.copy(), right.copy()
    for i in range(left.size):
        if left[i] == np.inf:
            continue
        first = min(max(int(x[i] / step_s), 0), rest.size - 1)
        last = min(max(int(x[i + 1] / step_s), 0), rest.size - 1)
        slope = (right[i] - left[i]) / (x[i + 1] - x[i])
        kept = False
        for j in range(first, last + 1):
            begin, end = left[i], right[i]
            if j > first:
                begin += slope * (j * step_s - x[i])
            if j < last:
                end = left[i] + slope * ((j + 1) * step_s - x[i])
            if min(begin, end) + rest[j] <= most:
                kept = True
                break
        if not kept:
            new_left[i] = np.inf
            new_right[i] = np.inf
    return simplified(x, new_left, new_right)


def ends_upto(
    x: FloatArray, left: FloatArray, right: FloatArray, until: float
) -> tuple[FloatArray, FloatArray]:
    """Return the delays and values at both ends of each segment, cut off at a delay."""
    ends, values = np.column_stack((x[:-1], x[1:])), np.column_stack((left, right))
    # Next to nothing lies beyond the limit: one segment as a rule.
    for i in range(left.size - 1, -1, -1):
        if x[i + 1] <= until:
            break
        if left[i] < np.inf:
            share = max((until - x[i]) / (x[i + 1] - x[i]), 0.0)
            values[i, 1] = left[i] + (right[i] - left[i]) * share
        ends[i] = np.minimum(ends[i], until)
    return ends.ravel(), values.ravel()


@compiled()
def first_minimum(
    x: FloatArray, left: FloatArray, right: FloatArray, until: float
) -> tuple[float, float]:
    """Return the first delay up to a limit at which a function is lowest, and its value."""
    place, lowest = -1.0, np.inf
    for i in range(left.size):
        if x[i] > until + _SAME_S:
            break
        if left[i] == np.inf:
            continue
        # A later delay must be lower by more than rounding to be preferred.
        tie = _TIE * abs(lowest) if lowest != np.inf else 0.0
        if left[i] < lowest - tie:
            place, lowest = x[i], left[i]
        end = min(x[i + 1], until)
        if end <= x[i]:
            continue
        value = left[i] + (right[i] - left[i]) * ((end - x[i]) / (x[i + 1] - x[i]))
        tie = _TIE * abs(lowest)
        if value < lowest - tie:
            place, lowest = end, value
    return place, lowest
