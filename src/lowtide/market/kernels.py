"""The inner loops of planning a queue: the best schedule of a job under prices, again and again.

Time is counted in slots. A job's schedule is a delay for each part of its work: how many slots
later than at once it runs. Where the delay rises the job was stopped, and started again. Row k of
the plane is the work from part k on, a column a delay: what running on costs is the same for all
ways into a cell, so that only what a way into it costs beyond that, `beyond`, is to be compared.

A job in prices holds as much of a slot as it runs in it. A job that is to be given room holds
every slot that it touches: nothing is then exceeded at any instant.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from lowtide.compiled import compiled

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]
BoolArray = npt.NDArray[np.bool_]
Rows = npt.NDArray[Any]

# More than any cost, yet finite, so that it can be added to.
HUGE = 1e290
_TOO_MUCH = 1e280
# Positions that lie closer together than this, in slots, are one.
_NEAR = 1e-7
# Another start must be worth more than rounding.
_WORTH = 1e-12
# What is free may be short of what is needed by rounding alone.
_SPARE = 1e-9
# How jobs are planned.
ALONE: Any = np.int64(0)
FITTING: Any = np.int64(1)
TOLD: Any = np.int64(2)

JOB = np.dtype(
    [
        ("first", np.int64),  # The slot that positions of this job count from.
        ("begin", np.float64),  # Where its first start begins at delay 0.
        ("delays", np.int64),  # How many delays there are to choose from, 0 for none.
        ("part", np.int64),  # Where its parts begin.
        ("end", np.int64),  # Where they end: at one more, which says where the last ends.
        ("startup", np.int64),  # Where the legs of its first start begin,
        ("restart", np.int64),  # those of every later one,
        ("stop", np.int64),  # those of a stop,
        ("legs", np.int64),  # and where they end.
        ("restart_t", np.float64),  # How long a later start takes.
        ("stop_t", np.float64),
        ("suspended_kw", np.float64),
        ("wait", np.float64),  # What a slot of delay of its end counts.
        ("already", np.float64),  # What counts whatever is decided.
        ("starts", np.int64),  # How often it may be started, 0 for any number.
        ("running", np.bool_),  # Whether it runs now: it goes on, or is stopped.
        ("begun", np.bool_),  # Whether it is suspended now.
        ("weight", np.float64),  # What a gram of its own counts.
        ("leave", np.float64),  # What leaving it out counts.
        ("peak_kw", np.float64),
    ]
)
PART = np.dtype(
    [
        ("at", np.float64),  # Where it begins at delay 0.
        ("kw", np.float64),
        ("stop", np.bool_),  # Whether the job may be stopped before it.
        ("free", np.int64),  # The row at which a start made here may be stopped again.
    ]
)
LEG = np.dtype([("lasts", np.float64), ("kw", np.float64)])


class Queue(NamedTuple):
    """Jobs as the kernels take them.

    Attributes:
        jobs: The jobs, rows of `JOB`.
        parts: Their parts.
        legs: What starts and stops take.
        need: What each holds of each resource while it runs.
        keep: What it holds while it is stopped.
    """

    jobs: Rows
    parts: Rows
    legs: Rows
    need: FloatArray
    keep: FloatArray


class Tariff(NamedTuple):
    """What time costs: running sums over slots, from 0 to one slot past the last.

    Attributes:
        energy: Of a kilowatt for a slot.
        power: Of a kilowatt under the power cap, beside that.
        rent: Of a unit of each resource.
    """

    energy: FloatArray
    power: FloatArray
    rent: FloatArray


class Room(NamedTuple):
    """What is left in each slot.

    Attributes:
        free: Of each resource.
        kw: Of the power cap.
    """

    free: FloatArray
    kw: FloatArray


class Desk(NamedTuple):
    """Room to work in, large enough for the largest job."""

    energy: FloatArray
    rent: FloatArray
    held: FloatArray
    closed: IntArray
    shut: IntArray
    beyond: FloatArray
    through: FloatArray
    fresh: FloatArray
    leave: FloatArray
    came: npt.NDArray[np.int32]
    since: npt.NDArray[np.int32]
    later: FloatArray


@compiled(inner=True)
def _at(upto: FloatArray, place: float) -> float:
    """Return a running sum at a place between slots."""
    i = int(place + _NEAR)
    f = place - i
    if f < _NEAR:
        return float(upto[i])
    return float(upto[i] + f * (upto[i + 1] - upto[i]))


@compiled(inner=True)
def _floor(place: float) -> int:
    return int(place + _NEAR)


@compiled(inner=True)
def _ceil(place: float) -> int:
    return math.ceil(place - _NEAR)


@compiled(inner=True)
def _spend(
    into: FloatArray,
    low: int,
    high: int,
    kw: float,
    begin: float,
    end: float,
    energy: FloatArray,
    rent: FloatArray,
) -> None:
    """Add what running from one place to another costs, for each of some delays."""
    i, j = math.floor(begin + _NEAR), math.floor(end + _NEAR)
    f, g = max(begin - i, 0.0), max(end - j, 0.0)
    # Within a slot, or on its edge, which is the same with a share of 0 of the next.
    for x in range(low, high):
        p, q = i + x, j + x
        into[x] += (
            kw * (energy[q] - energy[p] + g * (energy[q + 1] - energy[q]))
            - kw * f * (energy[p + 1] - energy[p])
            + (rent[q] - rent[p] + g * (rent[q + 1] - rent[q]) - f * (rent[p + 1] - rent[p]))
        )


@compiled(inner=True)
def _spend_legs(
    into: FloatArray,
    low: int,
    high: int,
    legs: Rows,
    first: int,
    last: int,
    begin: float,
    energy: FloatArray,
    rent: FloatArray,
) -> None:
    """Add what the legs of a start or a stop cost that begins at a place."""
    at = begin
    for number in range(first, last):
        until = at + legs[number]["lasts"]
        _spend(into, low, high, legs[number]["kw"], at, until, energy, rent)
        at = until


@compiled(inner=True)
def _lay_out(queue: Queue, j: int, tariff: Tariff, room: Room, blocked: bool, desk: Desk) -> None:
    """Write down what time costs a job within its window, and when there is no room for it."""
    row = queue.jobs[j]
    first, last = row["first"], tariff.energy.size - 1
    count = _ceil(queue.parts[row["end"]]["at"]) + row["delays"] + 1
    weight, suspended_kw = row["weight"], row["suspended_kw"]
    energy, rent, held = desk.energy, desk.rent, desk.held
    for t in range(count + 1):
        i = min(first + t, last)
        energy[t] = weight * tariff.energy[i] + tariff.power[i]
        rent[t] = 0.0
        held[t] = suspended_kw * energy[t]
    for m in range(queue.need.shape[1]):
        need, keep = queue.need[j, m], queue.keep[j, m]
        if need == 0.0:
            continue
        for t in range(count + 1):
            rent[t] += need * tariff.rent[m, min(first + t, last)]
        if keep != 0.0:
            for t in range(count + 1):
                held[t] += keep * tariff.rent[m, min(first + t, last)]
    if not blocked:
        return
    closed, shut = desk.closed, desk.shut
    closed[0] = shut[0] = 0
    most = room.kw.size
    for t in range(count):
        no = keeps_no = 0
        if first + t >= most:
            no = keeps_no = 1
        else:
            if room.kw[first + t] < row["peak_kw"] - _SPARE:
                no = 1
            for m in range(queue.need.shape[1]):
                if room.free[m, first + t] < queue.need[j, m] - _SPARE:
                    no = 1
                if room.free[m, first + t] < queue.keep[j, m] - _SPARE:
                    keeps_no = 1
            if room.kw[first + t] < suspended_kw - _SPARE:
                keeps_no = 1
        closed[t + 1] = closed[t] + no
        shut[t + 1] = shut[t] + keeps_no


@compiled(inner=True)
def least(
    queue: Queue,
    j: int,
    tariff: Tariff,
    room: Room,
    blocked: bool,
    desk: Desk,
    delay: IntArray,
) -> float:
    """Return the least that a job can cost, and write the delays of its parts; HUGE for none."""
    row, parts, legs = queue.jobs[j], queue.parts, queue.legs
    columns = row["delays"]
    if columns <= 0:
        return HUGE
    _lay_out(queue, j, tariff, room, blocked, desk)
    first, count = row["part"], row["end"] - row["part"]
    layers = max(row["starts"], 1)
    up = 1 if row["starts"] > 0 else 0
    wide = layers * columns
    energy, rent = desk.energy, desk.rent
    beyond, through, fresh, leave = desk.beyond, desk.through, desk.fresh, desk.leave
    came, since, later, closed, shut = desk.came, desk.since, desk.later, desk.closed, desk.shut
    for at in range(wide):
        beyond[at] = HUGE
    for x in range(columns):
        through[x] = 0.0
        fresh[x] = 0.0
    begin, work = row["begin"], parts[first]["at"]
    if row["running"]:
        for x in range(1, columns):
            fresh[x] = HUGE
    else:
        from_leg = row["restart"] if row["begun"] else row["startup"]
        to_leg = row["stop"] if row["begun"] else row["restart"]
        _spend_legs(fresh, 0, columns, legs, from_leg, to_leg, begin, energy, rent)
        if row["begun"]:
            for x in range(columns):
                fresh[x] += _at(desk.held, begin + x) - _at(desk.held, begin)
        if blocked:
            for x in range(columns):
                if closed[_ceil(work + x)] != closed[_floor(begin + x)] or (
                    row["begun"] and shut[_floor(begin + x)] != shut[_floor(begin)]
                ):
                    fresh[x] = HUGE
    free = parts[first]["free"]
    for x in range(columns):
        since[x] = -1
        if free == 0:
            beyond[x] = fresh[x]
        else:
            later[x] = fresh[x]
    for at in range(columns, wide):
        later[at] = HUGE
    for at in range((count + 1) * wide):
        came[at] = -1
    if free == 0:
        for x in range(columns):
            came[x] = 0
    gap = max(_ceil(row["restart_t"] + row["stop_t"]), 1)
    oldest = 0
    for k in range(count + 1):
        at_k = parts[first + k]["at"]
        # Starts that have run for as long as they must.
        while oldest < k and parts[first + oldest]["free"] <= k:
            if parts[first + oldest]["free"] == k:
                base = oldest * wide
                began = begin if oldest == 0 else parts[first + oldest]["at"]
                for at in range(wide):
                    v = later[base + at]
                    if v < beyond[at] - _WORTH * (abs(v) + 1.0) and v < _TOO_MUCH:
                        x = at % columns
                        if not blocked or closed[_ceil(at_k + x)] == closed[_floor(began + x)]:
                            beyond[at] = v
                            came[k * wide + at] = oldest
            oldest += 1
        if k == count:
            break
        part = parts[first + k]
        free = part["free"]
        must = free > k
        if k > 0 and must:
            for at in range(wide):
                later[k * wide + at] = HUGE
        if part["stop"] and (k > 0 or row["running"]) and free <= count and columns > gap:
            start = at_k - row["restart_t"]
            ended = at_k + row["stop_t"]
            for x in range(gap, columns):
                fresh[x] = _at(desk.held, start + x) - through[x]
            _spend_legs(fresh, gap, columns, legs, row["restart"], row["stop"], start, energy, rent)
            for x in range(columns - gap):
                leave[x] = through[x] - _at(desk.held, ended + x)
            _spend_legs(leave, 0, columns - gap, legs, row["stop"], row["legs"], at_k, energy, rent)
            if blocked:
                for x in range(columns - gap):
                    if closed[_ceil(ended + x)] != closed[_floor(at_k + x)]:
                        leave[x] = HUGE
            for layer in range(layers - up - 1, -1, -1):
                low, stopped = HUGE, -1
                source, target = layer * columns, (layer + up) * columns
                place = k * wide + target
                # Whom each delay would follow is found on the way up, and used on the way down:
                # so what is read is as it was before any start at this row.
                for x in range(gap, columns):
                    if (
                        blocked
                        and stopped >= 0
                        and shut[_floor(start + x)] != shut[_ceil(ended + stopped)]
                    ):
                        low, stopped = HUGE, -1
                    v = beyond[source + x - gap] + leave[x - gap]
                    if v < low - _WORTH * (abs(v) + 1.0) and v < _TOO_MUCH:
                        low, stopped = v, x - gap
                    since[place + x] = stopped
                for x in range(columns - 1, gap - 1, -1):
                    stopped = since[place + x]
                    if stopped < 0:
                        continue
                    if blocked and closed[_ceil(at_k + x)] != closed[_floor(start + x)]:
                        continue
                    v = beyond[source + stopped] + leave[stopped] + fresh[x]
                    if must:
                        later[place + x] = v
                    elif v < beyond[target + x] - _WORTH * (abs(v) + 1.0):
                        beyond[target + x] = v
                        came[place + x] = k
        end = parts[first + k + 1]["at"]
        _spend(through, 0, columns, part["kw"], at_k, end, energy, rent)
        if blocked:
            for x in range(columns):
                if closed[_ceil(end + x)] != closed[_floor(at_k + x)]:
                    for layer in range(layers):
                        beyond[layer * columns + x] = HUGE
    best, chosen = HUGE, -1
    for at in range(wide):
        x = at % columns
        if beyond[at] < _TOO_MUCH:
            v = beyond[at] + through[x] + row["wait"] * x
            if v < best - _WORTH * (abs(v) + 1.0):
                best, chosen = v, at
    if chosen < 0:
        return HUGE
    x, layer, k = chosen % columns, chosen // columns, count
    while True:
        start = came[k * wide + layer * columns + x]
        if start < 0:
            if k == 0:
                break
            k -= 1
            delay[first + k] = x
            continue
        # A start at this row has hidden whether another one was over here; none can have been.
        hides = start == k
        while k > start:
            k -= 1
            delay[first + k] = x
        before = since[k * wide + layer * columns + x]
        if before < 0 or k == 0:
            break
        x, layer = before, layer - up
        if hides:
            k -= 1
            delay[first + k] = x
    return float(best + row["already"])


@compiled(inner=True)
def _mark(notes: FloatArray, row: int, amount: float, begin: float, end: float) -> None:
    """Note that something is held for a time: running sums of the notes say how much of each slot.

    Args:
        row: Which row of the notes: 0 for kilowatts, then the resources.
    """
    for sign in range(2):
        at = end if sign else begin
        i = int(at + _NEAR)
        f = max(at - i, 0.0)
        notes[row, i] += (1.0 - 2.0 * sign) * amount * (1.0 - f)
        notes[row, i + 1] += (1.0 - 2.0 * sign) * amount * f


@compiled(inner=True)
def _draws(kw: float, begin: float, end: float, energy: FloatArray, notes: FloatArray) -> float:
    """Return what drawing power for a time comes to, and note it."""
    _mark(notes, 0, kw, begin, end)
    return kw * (_at(energy, end) - _at(energy, begin))


@compiled(inner=True)
def _draws_legs(
    legs: Rows, first: int, last: int, at: float, energy: FloatArray, notes: FloatArray
) -> float:
    """Return what the legs of a start or a stop come to, and note what they draw."""
    total = 0.0
    for number in range(first, last):
        until = at + legs[number]["lasts"]
        total += _draws(legs[number]["kw"], at, until, energy, notes)
        at = until
    return total


@compiled(inner=True)
def _hold(amounts: FloatArray, j: int, begin: float, end: float, notes: FloatArray) -> None:
    for m in range(amounts.shape[1]):
        if amounts[j, m] != 0.0 and end > begin:
            _mark(notes, m + 1, amounts[j, m], begin, end)


@compiled(inner=True)
def _come_to(queue: Queue, j: int, delay: IntArray, energy: FloatArray, notes: FloatArray) -> float:
    """Return what a schedule comes to without prices, and note what it holds and draws when.

    Args:
        energy: Running sums of what a kilowatt costs.
    """
    row, parts, legs = queue.jobs[j], queue.parts, queue.legs
    shift = row["first"]
    total = 0.0
    before: Any = np.int64(-1)
    if row["running"]:
        before = np.int64(0)
    held_from = shift + row["begin"]
    for k in range(row["part"], row["end"]):
        x = delay[k]
        at, until = shift + parts[k]["at"] + x, shift + parts[k + 1]["at"] + x
        if x != before:
            ran = k > row["part"] or row["running"]
            again = ran or row["begun"]
            start = at - row["restart_t"] if again else shift + row["begin"] + x
            stopped = held_from
            if ran:
                stopped = shift + parts[k]["at"] + before
                total += _draws_legs(legs, row["stop"], row["legs"], stopped, energy, notes)
                stopped += row["stop_t"]
                _hold(queue.need, j, held_from, stopped, notes)
            if again:
                _hold(queue.keep, j, stopped, start, notes)
                if row["suspended_kw"] != 0.0:
                    total += _draws(row["suspended_kw"], stopped, start, energy, notes)
            from_leg = row["restart"] if again else row["startup"]
            to_leg = row["stop"] if again else row["restart"]
            total += _draws_legs(legs, from_leg, to_leg, start, energy, notes)
            held_from = start
        total += _draws(parts[k]["kw"], at, until, energy, notes)
        before = x
    _hold(queue.need, j, held_from, shift + parts[row["end"]]["at"] + before, notes)
    return float(row["weight"] * total + row["wait"] * before + row["already"])


@compiled(inner=True)
def _take(queue: Queue, j: int, delay: IntArray, sign: float, room: Room) -> None:
    """Take the room that a schedule needs, every slot that it touches, or give it back (−1)."""
    row, parts = queue.jobs[j], queue.parts
    shift = row["first"]
    x = delay[row["part"]]
    begin = shift + row["begin"]
    until = begin
    if not row["running"]:
        begin += x
        if row["begun"]:
            _take_slots(queue.keep[j], row["suspended_kw"], sign, room, until, begin)
    elif x > 0:
        until = begin + row["stop_t"]
        _take_slots(queue.need[j], row["peak_kw"], sign, room, begin, until)
        begin = shift + parts[row["part"]]["at"] + x - row["restart_t"]
        _take_kept(queue, j, sign, room, until, begin)
    for k in range(row["part"] + 1, row["end"] + 1):
        at = shift + parts[k]["at"]
        if k == row["end"]:
            _take_slots(queue.need[j], row["peak_kw"], sign, room, begin, at + x)
        elif delay[k] != x:
            until = at + x + row["stop_t"]
            _take_slots(queue.need[j], row["peak_kw"], sign, room, begin, until)
            x = delay[k]
            begin = at + x - row["restart_t"]
            _take_kept(queue, j, sign, room, until, begin)


@compiled(inner=True)
def _take_kept(queue: Queue, j: int, sign: float, room: Room, begin: float, end: float) -> None:
    """Take what a stopped job keeps, in the slots that its runs do not touch."""
    first, last = float(_ceil(begin)), float(_floor(end))
    if last > first:
        _take_slots(queue.keep[j], queue.jobs[j]["suspended_kw"], sign, room, first, last)


@compiled(inner=True)
def _take_slots(
    amounts: FloatArray, kw: float, sign: float, room: Room, begin: float, end: float
) -> None:
    first, last = _floor(begin), _ceil(end)
    for m in range(amounts.size):
        if amounts[m] != 0.0:
            for t in range(first, last):
                room.free[m, t] -= sign * amounts[m]
    if kw != 0.0:
        for t in range(first, last):
            room.kw[t] -= sign * kw


@compiled(inner=True)
def _draw(state: Rows) -> float:
    """Return a number from 0 to 1 by chance: the same for the same state, on any machine."""
    state[0] += np.uint64(0x9E3779B97F4A7C15)
    z = state[0]
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return float((z ^ (z >> np.uint64(31))) >> np.uint64(11)) / 9007199254740992.0


@compiled(inner=True)
def _is_near(queue: Queue, j: int, delay: IntArray, begin: float, end: float) -> bool:
    """Return whether a job's schedule runs at some time between two places."""
    row, parts = queue.jobs[j], queue.parts
    for k in range(row["part"], row["end"]):
        at = row["first"] + parts[k]["at"] + delay[k]
        if at < end and row["first"] + parts[k + 1]["at"] + delay[k] > begin:
            return True
    return False


class Taken(NamedTuple):
    """Jobs that were taken out, and how they were: room to remember that in."""

    job: IntArray
    placed: BoolArray
    cost: FloatArray
    key: FloatArray
    delay: IntArray
    mark: IntArray


@compiled(inner=True)
def _since(jobs: Rows, slot: int) -> int:
    """Return how many jobs begin before a slot: they are sorted by their beginning."""
    low, high = 0, jobs.size
    while low < high:
        middle = (low + high) // 2
        if jobs[middle]["first"] < slot:
            low = middle + 1
        else:
            high = middle
    return low


@compiled(inner=True)
def _take_out(
    step: int,
    chance: Rows,
    queue: Queue,
    room: Room,
    plan: tuple[IntArray, BoolArray, FloatArray],
    taken: Taken,
    longest: int,
) -> int:
    """Take some jobs out that may run at a moment, drawn by chance; return how many."""
    delay, placed, cost = plan
    jobs, parts = queue.jobs, queue.parts
    moment = int(_draw(chance) * room.kw.size)
    low, last = _since(jobs, moment - longest), _since(jobs, moment + 1)
    if last - low < 2:
        return 0
    wanted = min(2 + int(_draw(chance) * (taken.key.size - 1)), last - low)
    until = moment + 1 + int(_draw(chance) * 6)
    near = _draw(chance) < 0.5
    how = int(_draw(chance) * 3)
    got, kept = 0, 0
    for _ in range(16 * wanted):
        j = low + int(_draw(chance) * (last - low))
        row = jobs[j]
        size = row["end"] - row["part"]
        length = parts[row["end"]]["at"] + row["delays"]
        out = taken.mark[j] == step or row["first"] + length - 1 <= moment
        if out or kept + size > taken.delay.size:
            continue
        if near and placed[j] and not _is_near(queue, j, delay, moment, until):
            continue
        taken.mark[j] = step
        for k in range(size):
            taken.delay[kept + k] = delay[row["part"] + k]
        kept += size
        taken.job[got], taken.cost[got], taken.placed[got] = j, cost[j], placed[j]
        taken.key[got] = _draw(chance)
        if how == 1:
            taken.key[got] = -(0.5 + taken.key[got]) * queue.need[j, 0]
        elif how == 2:
            taken.key[got] = (0.5 + taken.key[got]) * length
        if placed[j]:
            _take(queue, j, delay, -1.0, room)
        got += 1
        if got == wanted:
            break
    return got


@compiled(inner=True)
def _undo(
    queue: Queue,
    room: Room,
    plan: tuple[IntArray, BoolArray, FloatArray],
    taken: Taken,
    got: int,
) -> None:
    """Put jobs back as they were."""
    delay, placed, cost = plan
    for i in range(got):
        if placed[taken.job[i]]:
            _take(queue, taken.job[i], delay, -1.0, room)
    kept = 0
    for i in range(got):
        j = taken.job[i]
        row = queue.jobs[j]
        for k in range(row["end"] - row["part"]):
            delay[row["part"] + k] = taken.delay[kept + k]
        kept += row["end"] - row["part"]
        placed[j], cost[j] = taken.placed[i], taken.cost[i]
        if placed[j]:
            _take(queue, j, delay, 1.0, room)


@compiled()
def place(
    how: int,
    order: IntArray,
    steps: int,
    heat: float,
    chance: Rows,
    queue: Queue,
    shares: tuple[Tariff, Tariff, Tariff, Tariff],
    room: Room,
    desk: Desk,
    plan: tuple[IntArray, BoolArray, FloatArray],
    best: tuple[IntArray, BoolArray, FloatArray],
    taken: Taken,
    notes: FloatArray,
    longest: int,
) -> None:
    """Plan jobs one after the other; then search around that.

    To search, a few jobs are taken out around a moment and put back another way, again and again.
    What is a little worse is kept now and then, the less the cooler it is. All of it is one
    kernel: most of the work of compiling any part would be what they share.

    Args:
        how: `ALONE` as if each had the machines to itself, `FITTING` where there is room, or
            `TOLD`, as the delays say.
        order: Which jobs, the first first.
        steps: How often to take some out and put them back.
        heat: By how much worse a plan may be that is kept, about.
        chance: What is drawn from.
        shares: Tariffs with a growing share of the prices, from none to all.
        plan: Delays, who is placed, and costs, now; changed.
        best: The best so far, and its total; changed when beaten. Where jobs are planned alone,
            its totals are what each costs with prices; leaving it out is one of the ways.
        taken: Room to work in.
        notes: Told what is drawn and held of each slot, so that running sums say it.
        longest: The most slots that a window has.
    """
    delay, placed, cost = plan
    best_delay, best_placed, best_total = best
    now = 0.0
    for step in range(-1, steps):
        tariff, number = shares[3], order.size
        gone, back = 0.0, 0.0
        if step >= 0:
            number = _take_out(step, chance, queue, room, plan, taken, longest)
            for i in range(number):
                gone += taken.cost[i]
            tariff = shares[min(int(_draw(chance) * 4), 3)]
        for i in range(number):
            at = 0
            if step >= 0:
                for other in range(1, number):
                    if taken.key[other] < taken.key[at]:
                        at = other
                taken.key[at] = HUGE
            j = order[i] if step < 0 else taken.job[at]
            leave = queue.jobs[j]["leave"]
            if how != TOLD:
                least_cost = least(queue, j, tariff, room, how == FITTING, desk, delay)
                placed[j] = least_cost < (_TOO_MUCH if how == FITTING else leave)
                if how == ALONE:
                    best_total[j] = min(least_cost, leave)
            cost[j] = leave
            if placed[j]:
                if how != ALONE:
                    _take(queue, j, delay, 1.0, room)
                cost[j] = _come_to(queue, j, delay, tariff.energy, notes)
            back += cost[j]
        if step < 0:
            for j in range(cost.size):
                now += cost[j]
            continue
        bearable = gone + 1e-9
        if heat > 0.0:
            bearable = gone - heat * math.log(1.0 - _draw(chance))
        if back > bearable:
            _undo(queue, room, plan, taken, number)
            continue
        now += back - gone
        if now < best_total[0] - 1e-7:
            best_total[0] = now
            for j in range(placed.size):
                best_placed[j] = placed[j]
            for k in range(delay.size):
                best_delay[k] = delay[k]
