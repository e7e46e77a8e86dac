"""Every way of a few jobs: the fewest that must be late, where prices and searches leave it open.

Jobs come whole, and prices cannot see that: where few are left to decide on, all combinations of
ways to run them are gone through, but for those that the prices rule out.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from lowtide.market.instance import Instance
from lowtide.market.prices import Auction
from lowtide.signal import FloatArray
from lowtide.workload import IntArray

# Beyond so many ways of a job, or steps of the search, it is given up.
_MOST_WAYS = 400
_MOST_STEPS = 200_000
# What a field of a long number holds: amounts of one resource in one slot, below a guard.
_BITS = 16
_MOST = 1 << (_BITS - 2)
_NEAR = 1e-7


class _Way(NamedTuple):
    """A way to run a job: what it takes of every slot, what that is worth, and its delays."""

    use: int
    worth: float
    delay: tuple[int, ...]


class Enumerated(NamedTuple):
    """What going through all combinations gave.

    Attributes:
        delay: The delays of all parts, None where no combination was found.
        placed: Which jobs run then.
        complete: Whether all were gone through, so that what was not found does not exist.
    """

    delay: IntArray | None
    placed: Any
    complete: bool


def is_enumerable(instance: Instance) -> bool:
    """Return whether jobs and machines are of a kind that this can go through."""
    queue, rows = instance.queue, instance.queue.jobs
    whole = np.all(queue.need == np.floor(queue.need)) and instance.room.max() < _MOST
    special = (
        *(instance.capped, instance.sites, instance.links.before.size),
        *(queue.keep.any(), rows["running"].any(), rows["begun"].any()),
    )
    return bool(whole and not any(special) and np.all(instance.room == np.floor(instance.room)))


def at_most_late(instance: Instance, proof: Auction, most: int) -> Enumerated:
    """Look for a plan with so many late jobs at most.

    Args:
        proof: Prices at which nothing counts but to leave a job out.
        most: How many may be late.
    """
    nothing = np.zeros(len(instance), dtype=np.bool_)
    ways: list[list[_Way]] = []
    for row in range(len(instance)):
        found = _ways(instance, row, proof.prices.rent)
        if found is None:
            return Enumerated(None, nothing, complete=False)
        ways.append(found)
    # Who has least choice is decided on first.
    order = sorted(range(len(ways)), key=lambda row: len(ways[row]))
    cheapest = [min((1.0, *(way.worth for way in ways[row]))) for row in order]
    ahead = np.append(np.cumsum(cheapest[::-1])[::-1], 0.0).tolist()
    guard = _packed(np.full(instance.room.size, 1 << (_BITS - 1)))
    seen: list[dict[int, int]] = [{} for _ in range(len(order) + 1)]
    chosen: list[_Way | None] = [None] * len(ways)
    steps = 0

    def go_on(place: int, room: int, worth: float, out: int) -> bool:
        nonlocal steps
        steps += 1
        if place == len(order) or steps > _MOST_STEPS:
            return place == len(order)
        if out + ahead[place] - worth > most + 1e-6 or seen[place].get(room, most + 1) <= out:
            return False
        seen[place][room] = out
        row = order[place]
        for way in ways[row]:
            left = room - way.use
            if left & guard == guard:
                chosen[row] = way
                if go_on(place + 1, left, worth - way.worth, out):
                    return True
        chosen[row] = None
        return out < most and go_on(place + 1, room, worth, out + 1)

    room = _packed(np.round(instance.room).astype(np.int64).ravel()) | guard
    there = float((proof.prices.rent * np.minimum(instance.usable, instance.room)).sum())
    if not go_on(0, room, there, 0):
        return Enumerated(None, nothing, complete=steps <= _MOST_STEPS)
    delay, rows = instance.new_delay(), instance.queue.jobs
    for row, way in enumerate(chosen):
        if way is not None:
            delay[rows["part"][row] : rows["end"][row]] = way.delay
    return Enumerated(delay, np.array([way is not None for way in chosen]), complete=True)


def _packed(amounts: Any) -> int:
    """Return amounts as fields of one long number."""
    total = 0
    for amount in reversed(amounts.tolist()):
        total = (total << _BITS) | int(amount)
    return total


def _ways(instance: Instance, row: int, rent: FloatArray) -> list[_Way] | None:
    """Return the ways to run a job that take least, None where there are too many."""
    found: dict[int, _Way] = {}
    need = instance.queue.need[row]
    for delay, spans in ways_to_run(instance, row):
        slots = np.zeros(instance.slots, dtype=np.int64)
        for begin, end in spans:
            slots[math.floor(begin + _NEAR) : math.ceil(end - _NEAR)] += 1
        use = np.outer(need, slots).astype(np.int64)
        packed = _packed(use.ravel())
        if packed not in found:
            found[packed] = _Way(packed, float((rent * use).sum()), delay)
            if len(found) > _MOST_WAYS:
                return None
    guard = _packed(np.full(rent.size, 1 << (_BITS - 1)))
    # Who takes as much as another way everywhere, and more somewhere, is of no use.
    ways = sorted(found.values(), key=lambda way: (way.use.bit_count(), way.use))
    return [
        way
        for way in ways
        if not any(
            other.use != way.use and ((way.use | guard) - other.use) & guard == guard
            for other in ways
        )
    ]


def ways_to_run(
    instance: Instance, row: int
) -> Iterator[tuple[tuple[int, ...], list[tuple[float, float]]]]:
    """Yield the delays of every way to run a job, and from when to when it holds its machines."""
    job, parts = instance.queue.jobs[row], instance.queue.parts
    own = parts[job["part"] : job["end"] + 1]
    count, delays = own.size - 1, int(job["delays"])
    shift, at = float(job["first"]), own["at"].tolist()
    gap = max(math.ceil(float(job["restart_t"] + job["stop_t"]) - _NEAR), 1)
    limit = int(job["starts"]) or count
    stops, free = own["stop"].tolist(), own["free"].tolist()

    def go_on(
        start: int, x: int, starts: int, begin: float, delay: tuple[int, ...], spans: Any
    ) -> Iterator[tuple[tuple[int, ...], list[tuple[float, float]]]]:
        yield (*delay, *[x] * (count - start)), [*spans, (begin, shift + at[count] + x)]
        if starts == limit:
            return
        for k in range(max(start + 1, free[start]), count):
            if not stops[k] or free[k] > count:
                continue
            span = (begin, shift + at[k] + x + float(job["stop_t"]))
            for later in range(x + gap, delays):
                again = shift + at[k] + later - float(job["restart_t"])
                done = (*delay, *[x] * (k - start))
                yield from go_on(k, later, starts + 1, again, done, [*spans, span])

    if free[0] <= count:
        for x in range(delays):
            yield from go_on(0, x, 1, shift + float(job["begin"]) + x, (), [])
