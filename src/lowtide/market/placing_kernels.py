"""The inner loops of giving jobs room: what they hold and come to, taken out and put in again."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from lowtide.compiled import compiled
from lowtide.market.kernels import (
    ALONE,
    FITTING,
    HUGE,
    NEAR,
    TOLD,
    TOO_MUCH,
    BoolArray,
    Desk,
    FloatArray,
    IntArray,
    Queue,
    Room,
    Rows,
    Tariff,
    asked_kw,
    at_slot,
    ceil_slot,
    floor_slot,
    least,
)


@compiled(inner=True)
def _mark(notes: FloatArray, row: int, amount: float, begin: float, end: float) -> None:
    """Note that something is held for a time: running sums of the notes say how much of each slot.

    Args:
        row: Which row of the notes: kilowatts of each site, then the resources.
    """
    for sign in range(2):
        at = end if sign else begin
        i = int(at + NEAR)
        f = max(at - i, 0.0)
        notes[row, i] += (1.0 - 2.0 * sign) * amount * (1.0 - f)
        notes[row, i + 1] += (1.0 - 2.0 * sign) * amount * f


@compiled(inner=True)
def _draws(
    kw: float, begin: float, end: float, energy: FloatArray, notes: FloatArray, site: int
) -> float:
    """Return what drawing power for a time comes to, and note it."""
    _mark(notes, site, kw, begin, end)
    return kw * (at_slot(energy, end) - at_slot(energy, begin))


@compiled(inner=True)
def _draws_legs(
    legs: Rows, first: int, last: int, at: float, energy: FloatArray, notes: FloatArray, site: int
) -> float:
    """Return what the legs of a start or a stop come to, and note what they draw."""
    total = 0.0
    for number in range(first, last):
        until = at + legs[number]["lasts"]
        total += _draws(legs[number]["kw"], at, until, energy, notes, site)
        at = until
    return total


@compiled(inner=True)
def _hold(amounts: FloatArray, j: int, begin: float, end: float, notes: FloatArray) -> None:
    sites = notes.shape[0] - amounts.shape[1]
    for m in range(amounts.shape[1]):
        if amounts[j, m] != 0.0 and end > begin:
            _mark(notes, m + sites, amounts[j, m], begin, end)


@compiled(inner=True)
def _come_to(queue: Queue, j: int, delay: IntArray, tariff: Tariff, notes: FloatArray) -> float:
    """Return what a schedule comes to without prices, and note what it holds and draws when."""
    row, parts, legs = queue.jobs[j], queue.parts, queue.legs
    site = row["site"]
    energy = tariff.energy[site]
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
                total += _draws_legs(legs, row["stop"], row["legs"], stopped, energy, notes, site)
                stopped += row["stop_t"]
                _hold(queue.need, j, held_from, stopped, notes)
            if again:
                _hold(queue.keep, j, stopped, start, notes)
                if row["suspended_kw"] != 0.0:
                    total += _draws(row["suspended_kw"], stopped, start, energy, notes, site)
            from_leg = row["restart"] if again else row["startup"]
            to_leg = row["stop"] if again else row["restart"]
            total += _draws_legs(legs, from_leg, to_leg, start, energy, notes, site)
            held_from = start
        total += _draws(parts[k]["kw"], at, until, energy, notes, site)
        before = x
    _hold(queue.need, j, held_from, shift + parts[row["end"]]["at"] + before, notes)
    return float(row["weight"] * total + row["wait"] * before + row["already"])


@compiled(inner=True)
def _take(queue: Queue, j: int, delay: IntArray, sign: float, room: Room) -> None:
    """Take the room that a schedule needs, every slot that it touches, or give it back (−1)."""
    row, parts = queue.jobs[j], queue.parts
    if room.kw[row["site"], 0] < HUGE:
        _take_power(queue, j, delay, sign, room.kw[row["site"]])
    shift = row["first"]
    x = delay[row["part"]]
    begin = shift + row["begin"]
    until = begin
    if not row["running"]:
        begin += x
        if row["begun"]:
            _take_slots(queue.keep[j], sign, room, until, begin)
    elif x > 0:
        until = begin + row["stop_t"]
        _take_slots(queue.need[j], sign, room, begin, until)
        begin = shift + parts[row["part"]]["at"] + x - row["restart_t"]
        _take_kept(queue, j, sign, room, until, begin)
    for k in range(row["part"] + 1, row["end"] + 1):
        at = shift + parts[k]["at"]
        if k == row["end"]:
            _take_slots(queue.need[j], sign, room, begin, at + x)
        elif delay[k] != x:
            until = at + x + row["stop_t"]
            _take_slots(queue.need[j], sign, room, begin, until)
            x = delay[k]
            begin = at + x - row["restart_t"]
            _take_kept(queue, j, sign, room, until, begin)


@compiled(inner=True)
def _take_kept(queue: Queue, j: int, sign: float, room: Room, begin: float, end: float) -> None:
    """Take what a stopped job keeps, in the slots that its runs do not touch."""
    first, last = float(ceil_slot(begin)), float(floor_slot(end))
    if last > first:
        _take_slots(queue.keep[j], sign, room, first, last)


@compiled(inner=True)
def _take_slots(amounts: FloatArray, sign: float, room: Room, begin: float, end: float) -> None:
    first, last = floor_slot(begin), ceil_slot(end)
    for m in range(amounts.size):
        if amounts[m] != 0.0:
            for t in range(first, last):
                room.free[m, t] -= sign * amounts[m]


@compiled(inner=True)
def _take_power(queue: Queue, j: int, delay: IntArray, sign: float, left: FloatArray) -> None:
    """Take the most that a schedule draws in each slot from what is left of the cap."""
    row, parts = queue.jobs[j], queue.parts
    shift = row["first"]
    drawn: Any = (np.int64(0), 0.0)
    before: Any = np.int64(-1)
    if row["running"]:
        before = np.int64(0)
    for k in range(row["part"], row["end"]):
        x = delay[k]
        at = shift + parts[k]["at"]
        if x != before:
            ran = k > row["part"] or row["running"]
            again = ran or row["begun"]
            start = at + x - row["restart_t"] if again else shift + row["begin"] + x
            stopped = shift + row["begin"]
            if ran:
                stopped = at + before
                first, last = row["stop"], row["legs"]
                drawn = _take_legs(queue, row, first, last, stopped, sign, left, drawn)
                stopped += row["stop_t"]
            if again:
                drawn = _take_most(row["suspended_kw"], stopped, start, sign, left, drawn)
            first = row["restart"] if again else row["startup"]
            last = row["stop"] if again else row["restart"]
            drawn = _take_legs(queue, row, first, last, start, sign, left, drawn)
        until = shift + parts[k + 1]["at"] + x
        drawn = _take_most(asked_kw(row, parts[k]["kw"]), at + x, until, sign, left, drawn)
        before = x


@compiled(inner=True)
def _take_legs(
    queue: Queue,
    row: Any,
    first: int,
    last: int,
    begin: float,
    sign: float,
    left: FloatArray,
    drawn: Any,
) -> Any:
    at = begin
    for number in range(first, last):
        until = at + queue.legs[number]["lasts"]
        kw = asked_kw(row, queue.legs[number]["kw"])
        drawn = _take_most(kw, at, until, sign, left, drawn)
        at = until
    return drawn


@compiled(inner=True)
def _take_most(
    kw: float, begin: float, end: float, sign: float, left: FloatArray, drawn: Any
) -> Any:
    """Take what is drawn for a time, in a slot that was taken from no more than is drawn beyond.

    Args:
        drawn: Up to which slot was taken, and what of the last of them; the new ones are returned.
    """
    first, last = floor_slot(begin), ceil_slot(end)
    upto, most = drawn
    if last <= first:
        return drawn
    for t in range(first, last):
        if t < upto:
            left[t] -= sign * max(kw - most, 0.0)
        else:
            left[t] -= sign * kw
    return np.int64(last), max(kw, most) if last <= upto else kw


@compiled(inner=True)
def _way(queue: Queue, job: int, placed: BoolArray) -> int:
    """Return the way in which a job is placed, −1 for none."""
    for j in range(queue.ways[job], queue.ways[job + 1]):
        if placed[j]:
            return int(j)
    return -1


@compiled(inner=True)
def _within(queue: Queue, job: int, delay: IntArray, placed: BoolArray) -> tuple[float, float]:
    """Return when a job may start at the soonest and end at the latest, for those it is linked to.

    One that waits for somebody who has no place can have none: its window is empty.
    """
    soonest, latest = -HUGE, HUGE
    for at in range(queue.linked[job], queue.linked[job + 1]):
        link = queue.links[at]
        j = _way(queue, link["other"], placed)
        if j < 0:
            if link["first"]:
                soonest = HUGE
            continue
        row = queue.jobs[j]
        if link["first"]:
            end = row["first"] + queue.parts[row["end"]]["at"] + delay[row["end"] - 1]
            soonest = max(soonest, end + link["gap"])
        else:
            start = row["first"] + row["begin"] + delay[row["part"]]
            latest = min(latest, start - link["gap"])
    return soonest, latest


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
    way: IntArray
    cost: FloatArray
    key: FloatArray
    delay: IntArray
    mark: IntArray


class Guard(NamedTuple):
    """What the jobs of each user may come to at most; without any user nobody is looked at.

    Attributes:
        user: Whose each job is.
        own: What each job comes to, waiting apart.
        spent: What those of each user do.
        before: Room to remember that in.
        allowed: What they may.
    """

    user: IntArray
    own: FloatArray
    spent: FloatArray
    before: FloatArray
    allowed: FloatArray


@compiled(inner=True)
def _own(queue: Queue, job: int, plan: tuple[IntArray, BoolArray, FloatArray]) -> float:
    """Return what a job comes to, waiting apart."""
    delay, placed, cost = plan
    j = max(_way(queue, job, placed), queue.ways[job])
    row = queue.jobs[j]
    return float(cost[j] - row["wait"] * delay[row["end"] - 1] - row["already"])


@compiled(inner=True)
def _settle_up(
    queue: Queue,
    plan: tuple[IntArray, BoolArray, FloatArray],
    taken: Taken,
    got: int,
    guard: Guard,
) -> bool:
    """Write down what users come to with jobs put back; return whether nobody pays too much.

    Who did before may go on to, as long as it is no more.
    """
    for i in range(got):
        u = guard.user[taken.job[i]]
        guard.before[u] = guard.spent[u]
    for i in range(got):
        j = taken.job[i]
        guard.spent[guard.user[j]] += _own(queue, j, plan) - guard.own[j]
    fair = True
    for i in range(got):
        u = guard.user[taken.job[i]]
        if guard.spent[u] > max(guard.allowed[u], guard.before[u]):
            fair = False
    for i in range(got):
        j = taken.job[i]
        if fair:
            guard.own[j] = _own(queue, j, plan)
        else:
            guard.spent[guard.user[j]] = guard.before[guard.user[j]]
    return fair


@compiled(inner=True)
def _since(queue: Queue, slot: int) -> int:
    """Return how many jobs have windows that open before a slot."""
    low, high = 0, queue.by_first.size
    while low < high:
        middle = (low + high) // 2
        if queue.jobs[queue.ways[queue.by_first[middle]]]["first"] < slot:
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
    moment = int(_draw(chance) * room.kw.shape[1])
    low, last = _since(queue, moment - longest), _since(queue, moment + 1)
    if last - low < 2:
        return 0
    wanted = min(2 + int(_draw(chance) * (taken.key.size - 1)), last - low)
    until = moment + 1 + int(_draw(chance) * 6)
    near = _draw(chance) < 0.5
    how = int(_draw(chance) * 3)
    got, kept = 0, 0
    for _ in range(16 * wanted):
        job = queue.by_first[low + int(_draw(chance) * (last - low))]
        way = _way(queue, job, placed)
        j = max(way, queue.ways[job])
        row = jobs[j]
        size = row["end"] - row["part"]
        length = parts[row["end"]]["at"] + row["delays"]
        out = taken.mark[job] == step or row["first"] + length - 1 <= moment
        if out or kept + size > taken.delay.size:
            continue
        if near and way >= 0 and not _is_near(queue, j, delay, moment, until):
            continue
        taken.mark[job] = step
        for k in range(size):
            taken.delay[kept + k] = delay[row["part"] + k]
        kept += size
        taken.job[got], taken.cost[got], taken.way[got] = job, cost[j], way
        taken.key[got] = _draw(chance)
        if how == 1:
            wide = queue.need[j, 0]
            for m in range(1, queue.need.shape[1]):
                wide = max(wide, queue.need[j, m])
            taken.key[got] = -(0.5 + taken.key[got]) * wide
        elif how == 2:
            taken.key[got] = (0.5 + taken.key[got]) * length
        if way >= 0:
            _take(queue, j, delay, -1.0, room)
            placed[j] = False
            cost[j] = 0.0
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
        for j in range(queue.ways[taken.job[i]], queue.ways[taken.job[i] + 1]):
            if placed[j]:
                _take(queue, j, delay, -1.0, room)
            placed[j] = False
            cost[j] = 0.0
    kept = 0
    for i in range(got):
        j = max(taken.way[i], queue.ways[taken.job[i]])
        row = queue.jobs[j]
        for k in range(row["end"] - row["part"]):
            delay[row["part"] + k] = taken.delay[kept + k]
        kept += row["end"] - row["part"]
        placed[j], cost[j] = taken.way[i] >= 0, taken.cost[i]
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
    guard: Guard,
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
        order: Which jobs, the first first; who waits for another comes after it.
        steps: How often to take some out and put them back.
        heat: By how much worse a plan may be that is kept, about.
        chance: What is drawn from.
        shares: Tariffs with a growing share of the prices, from none to all.
        plan: Delays, who is placed, and costs, now; changed.
        best: The best so far, and its total; changed when beaten. Where jobs are planned alone,
            its totals are what each costs with prices; leaving it out is one of the ways.
        taken: Room to work in.
        guard: What users may come to, to be kept to in the search.
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
            job = order[i] if step < 0 else taken.job[at]
            first = queue.ways[job]
            leave = queue.jobs[first]["leave"]
            if how != TOLD:
                within = (-HUGE, HUGE)
                if how == FITTING:
                    within = _within(queue, job, delay, placed)
                best_cost, best_way = HUGE, -1
                for j in range(first, queue.ways[job + 1]):
                    placed[j], cost[j] = False, 0.0
                    one = least(queue, j, job, tariff, room, how == FITTING, within, desk, delay)
                    if one < best_cost:
                        best_cost, best_way = one, j
                limit = TOO_MUCH
                if how == ALONE:
                    limit = leave
                    for at in range(queue.linked[job], queue.linked[job + 1]):
                        if not queue.links[at]["first"]:
                            # Nobody has to wait for one that is left out.
                            limit -= tariff.bond[queue.links[at]["number"], 0]
                    best_total[job] = min(best_cost, limit)
                if best_way >= 0:
                    placed[best_way] = best_cost < limit
            way = _way(queue, job, placed)
            cost[first] = leave
            if way >= 0:
                cost[first] = 0.0
                if how != ALONE:
                    _take(queue, way, delay, 1.0, room)
                cost[way] = _come_to(queue, way, delay, tariff, notes)
                back += cost[way]
            else:
                back += leave
                if step >= 0 and _within(queue, job, delay, placed)[1] < TOO_MUCH:
                    # Somebody who runs waits for it, so that it cannot be left out.
                    back += HUGE
        if step < 0:
            for j in range(cost.size):
                now += cost[j]
            continue
        bearable = gone + 1e-9
        if heat > 0.0:
            bearable = gone - heat * math.log(1.0 - _draw(chance))
        if back > bearable or (
            guard.user.size and not _settle_up(queue, plan, taken, number, guard)
        ):
            _undo(queue, room, plan, taken, number)
            continue
        now += back - gone
        if now < best_total[0] - 1e-7:
            best_total[0] = now
            for j in range(placed.size):
                best_placed[j] = placed[j]
            for k in range(delay.size):
                best_delay[k] = delay[k]
