"""The inner loops of planning a queue: the best schedule of a job under prices, again and again.

Time is counted in slots. A job's schedule is a delay for each part of its work: how many slots
later than at once it runs. Where the delay rises the job was stopped, and started again. Row k of
the plane is the work from part k on, a column a delay: what running on costs is the same for all
ways into a cell, so that only what a way into it costs beyond that, `beyond`, is to be compared.

A job in prices holds as much of a slot as it runs in it. A job that is to be given room holds
every slot that it touches, and of the power cap the most that it draws there at any instant:
nothing is then exceeded.
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
TOO_MUCH = 1e280
# Positions that lie closer together than this, in slots, are one.
NEAR = 1e-7
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
        ("site", np.int64),  # Where it would run: whose grid and power cap count.
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
LINK = np.dtype(
    [
        ("other", np.int64),  # Which job it is about.
        ("number", np.int64),  # Which link it is: both sides have the same.
        ("gap", np.float64),  # How long after the end of the one the other may start.
        ("first", np.bool_),  # Whether the other comes first.
    ]
)


class Queue(NamedTuple):
    """Jobs as the kernels take them, each with one way to run it or several.

    Attributes:
        jobs: The ways to run them, rows of `JOB`; those of a job follow each other.
        parts: Their parts.
        legs: What starts and stops take.
        need: What each holds of each resource while it runs.
        keep: What it holds while it is stopped.
        ways: Where the ways of each job begin, and where the last ends.
        links: Which jobs wait for which, told from both sides.
        linked: Where the links of each job begin, and where the last ends.
        by_first: Jobs in the order in which their windows open.
    """

    jobs: Rows
    parts: Rows
    legs: Rows
    need: FloatArray
    keep: FloatArray
    ways: IntArray
    links: Rows
    linked: IntArray
    by_first: IntArray


class Tariff(NamedTuple):
    """What time costs: running sums over slots, from 0 to one slot past the last.

    Attributes:
        energy: Of a kilowatt for a slot, at each site.
        power: Of a kilowatt under its power cap, beside that.
        rent: Of a unit of each resource.
        bond: Of each link what it counts to have started from a slot on; who is done in time for
            that is given as much.
    """

    energy: FloatArray
    power: FloatArray
    rent: FloatArray
    bond: FloatArray


class Room(NamedTuple):
    """What is left in each slot.

    Attributes:
        free: Of each resource.
        kw: Of the power cap of each site.
    """

    free: FloatArray
    kw: FloatArray


class Desk(NamedTuple):
    """Room to work in, large enough for the largest job.

    Attributes:
        closed: Running sums of slots without room: of what the job does now, then of each leg.
        shut: Those of slots without room for what a stopped job keeps.
        halted: The last part that has no room at each delay.
    """

    energy: FloatArray
    rent: FloatArray
    held: FloatArray
    closed: Rows
    shut: IntArray
    halted: IntArray
    beyond: FloatArray
    through: FloatArray
    fresh: FloatArray
    leave: FloatArray
    finish: FloatArray
    came: npt.NDArray[np.int32]
    since: npt.NDArray[np.int32]
    later: FloatArray


@compiled(inner=True)
def at_slot(upto: FloatArray, place: float) -> float:
    """Return a running sum at a place between slots."""
    i = int(place + NEAR)
    f = place - i
    if f < NEAR:
        return float(upto[i])
    return float(upto[i] + f * (upto[i + 1] - upto[i]))


@compiled(inner=True)
def floor_slot(place: float) -> int:
    """Return the slot that a place lies in, by a rounding above its edge."""
    return int(place + NEAR)


@compiled(inner=True)
def ceil_slot(place: float) -> int:
    """Return the first slot that begins at a place or after it."""
    return math.ceil(place - NEAR)


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
    i, j = math.floor(begin + NEAR), math.floor(end + NEAR)
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
    first, site, last = row["first"], row["site"], tariff.energy.shape[1] - 1
    count = ceil_slot(queue.parts[row["end"]]["at"]) + row["delays"] + 1
    weight, suspended_kw = row["weight"], row["suspended_kw"]
    energy, rent, held = desk.energy, desk.rent, desk.held
    for t in range(count + 1):
        i = min(first + t, last)
        energy[t] = weight * tariff.energy[site, i] + tariff.power[site, i]
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
    capped = room.kw[site, 0] < HUGE
    if capped:
        for leg in range(row["startup"], row["legs"]):
            place = leg_place(row, leg, capped)
            _close(queue, j, asked_kw(row, queue.legs[leg]["kw"]), room, count, desk.closed[place])
    else:
        _close(queue, j, 0.0, room, count, desk.closed[0])
    shut = desk.shut
    shut[0] = 0
    most = room.kw.shape[1]
    for t in range(count):
        no = 0
        if first + t >= most or room.kw[site, first + t] < suspended_kw - _SPARE:
            no = 1
        else:
            for m in range(queue.need.shape[1]):
                if room.free[m, first + t] < queue.keep[j, m] - _SPARE:
                    no = 1
        shut[t + 1] = shut[t] + no


@compiled(inner=True)
def asked_kw(row: Any, kw: float) -> float:
    """Return the power that a job asks for while it draws some: as it is stopped, no less."""
    return float(max(kw, row["suspended_kw"]))


@compiled(inner=True)
def leg_place(row: Any, leg: int, capped: bool) -> int:
    """Return where it is written which slots are closed to a leg: without a cap, to all alike."""
    return 1 + leg - row["startup"] if capped else 0


@compiled(inner=True)
def _close(queue: Queue, j: int, kw: float, room: Room, count: int, closed: IntArray) -> None:
    """Write down in which slots of its window there is no room for a job that draws so much."""
    row = queue.jobs[j]
    first, site, most = row["first"], row["site"], room.kw.shape[1]
    closed[0] = 0
    for t in range(count):
        no = 0
        if first + t >= most or room.kw[site, first + t] < kw - _SPARE:
            no = 1
        else:
            for m in range(queue.need.shape[1]):
                if room.free[m, first + t] < queue.need[j, m] - _SPARE:
                    no = 1
        closed[t + 1] = closed[t] + no


@compiled(inner=True)
def _rule_out(
    into: FloatArray,
    low: int,
    high: int,
    queue: Queue,
    j: int,
    first: int,
    last: int,
    begin: float,
    capped: bool,
    closed: Rows,
) -> None:
    """Rule out the delays at which a start or a stop that begins at a place has no room."""
    at = begin
    for leg in range(first, last):
        until = at + queue.legs[leg]["lasts"]
        place = leg_place(queue.jobs[j], leg, capped)
        for x in range(low, high):
            if closed[place, ceil_slot(until + x)] != closed[place, floor_slot(at + x)]:
                into[x] = HUGE
        at = until


@compiled(inner=True)
def least(
    queue: Queue,
    j: int,
    job: int,
    tariff: Tariff,
    room: Room,
    blocked: bool,
    within: tuple[float, float],
    desk: Desk,
    delay: IntArray,
) -> float:
    """Return the least that a way can cost, and write the delays of its parts; HUGE for none.

    Args:
        job: Whose way it is.
        within: When it may start at the soonest, and end at the latest.
    """
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
    finish = desk.finish
    came, since, later, closed, shut = desk.came, desk.since, desk.later, desk.closed, desk.shut
    halted, capped, asked = desk.halted, room.kw[row["site"], 0] < HUGE, -1.0
    slots = ceil_slot(parts[row["end"]]["at"]) + columns + 1
    for at in range(wide):
        beyond[at] = HUGE
    for x in range(columns):
        through[x] = 0.0
        fresh[x] = 0.0
        halted[x] = -1
    begin = row["begin"]
    if row["running"]:
        for x in range(1, columns):
            fresh[x] = HUGE
    else:
        from_leg = row["restart"] if row["begun"] else row["startup"]
        to_leg = row["stop"] if row["begun"] else row["restart"]
        _spend_legs(fresh, 0, columns, legs, from_leg, to_leg, begin, energy, rent)
        if row["begun"]:
            for x in range(columns):
                fresh[x] += at_slot(desk.held, begin + x) - at_slot(desk.held, begin)
        if blocked:
            _rule_out(fresh, 0, columns, queue, j, from_leg, to_leg, begin, capped, closed)
            if row["begun"]:
                for x in range(columns):
                    if shut[floor_slot(begin + x)] != shut[floor_slot(begin)]:
                        fresh[x] = HUGE
    shift = float(row["first"])
    ends = shift + parts[first + count]["at"]
    for x in range(columns):
        finish[x] = row["wait"] * x
        if shift + begin + x < within[0] - NEAR and not row["running"]:
            fresh[x] = HUGE
        elif ends + x > within[1] + NEAR:
            finish[x] = HUGE
    for at in range(queue.linked[job], queue.linked[job + 1]):
        link, last = queue.links[at], tariff.bond.shape[1] - 1
        for x in range(columns):
            if link["first"]:
                fresh[x] += tariff.bond[link["number"], min(floor_slot(shift + begin + x), last)]
            else:
                done = min(floor_slot(ends + link["gap"] + x), last)
                finish[x] -= tariff.bond[link["number"], done]
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
    gap = max(ceil_slot(row["restart_t"] + row["stop_t"]), 1)
    oldest = 0
    for k in range(count + 1):
        at_k = parts[first + k]["at"]
        # Starts that have run for as long as they must.
        while oldest < k and parts[first + oldest]["free"] <= k:
            if parts[first + oldest]["free"] == k:
                base = oldest * wide
                for at in range(wide):
                    v = later[base + at]
                    less = v < beyond[at] - _WORTH * (abs(v) + 1.0)
                    if less and v < TOO_MUCH and halted[at % columns] < oldest:
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
                fresh[x] = at_slot(desk.held, start + x) - through[x]
            _spend_legs(fresh, gap, columns, legs, row["restart"], row["stop"], start, energy, rent)
            for x in range(columns - gap):
                leave[x] = through[x] - at_slot(desk.held, ended + x)
            _spend_legs(leave, 0, columns - gap, legs, row["stop"], row["legs"], at_k, energy, rent)
            if blocked:
                from_leg, to_leg = row["restart"], row["stop"]
                _rule_out(fresh, gap, columns, queue, j, from_leg, to_leg, start, capped, closed)
                from_leg, to_leg = row["stop"], row["legs"]
                _rule_out(leave, 0, columns - gap, queue, j, from_leg, to_leg, at_k, capped, closed)
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
                        and shut[floor_slot(start + x)] != shut[ceil_slot(ended + stopped)]
                    ):
                        low, stopped = HUGE, -1
                    v = beyond[source + x - gap] + leave[x - gap]
                    if (
                        v < low - _WORTH * (abs(v) + 1.0)
                        and v < TOO_MUCH
                        and (
                            not blocked
                            or shut[floor_slot(start + x)] <= shut[ceil_slot(ended + x - gap)]
                        )
                    ):
                        low, stopped = v, x - gap
                    since[place + x] = stopped
                for x in range(columns - 1, gap - 1, -1):
                    stopped = since[place + x]
                    if stopped < 0 or fresh[x] > TOO_MUCH:
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
            kw = asked_kw(row, part["kw"])
            if capped and kw != asked:
                _close(queue, j, kw, room, slots, closed[0])
                asked = kw
            for x in range(columns):
                if closed[0, ceil_slot(end + x)] != closed[0, floor_slot(at_k + x)]:
                    halted[x] = k
                    for layer in range(layers):
                        beyond[layer * columns + x] = HUGE
    best, chosen = HUGE, -1
    for at in range(wide):
        x = at % columns
        if beyond[at] < TOO_MUCH:
            v = beyond[at] + through[x] + finish[x]
            if v < best - _WORTH * (abs(v) + 1.0):
                best, chosen = v, at
    if chosen < 0 or best > TOO_MUCH:
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
