"""The queue over time, for jobs that run through: strictly in order, or others going ahead.

All kernels of queues see the jobs in the order in which they become ready, and go from one
instant at which something happens to the next. At each, what ends gives its nodes back, nodes are
done with booting or shutting down, jobs that are ready join the queue, and those whose turn it is
start. Last of all, nodes that have been idle for long enough go off.

Where jobs may go ahead, the first in the queue is promised its nodes at the moment at which it fits
if everybody runs for as long as requested. What will be free then, and just before then, is kept up
to date rather than worked out anew: jobs that end or go ahead change the promise only if they
change those two.

Jobs that wait are sorted into kinds that need about the same. Whether any of a kind could start is
asked once, not for every job of it; the first of it that asks for little enough is found in a
tree. So it hardly matters how many jobs wait.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from lowtide.compiled import compiled
from lowtide.simulator.heaps import (
    TOP,
    Rows,
    due,
    first_within,
    pop,
    push,
    remove,
    set_leaf,
    within,
)
from lowtide.simulator.machines import (
    FIRST,
    OFF,
    RESOURCES,
    FloatArray,
    IntArray,
    World,
    end_of,
    find,
    give,
    next_fit,
    room_for,
    settle,
    start_on,
    switch_off,
    take,
    waking_power,
)

# No job asks for longer, and it is less than for ever.
LONGEST_S = 1e300
# Instants round: who is short enough but for this is looked at closely.
_TOLERANCE_S = 1e-6
# Whether jobs of a kind may start now: not at all, if short enough, however long they are.
_NOT, _SHORT, _ANY = range(3)
# The two moments of a promise: when the first in the queue gets its nodes, and just before.
_MOMENTS: Any = np.arange(2)
_THEN, _BEFORE = _MOMENTS
_NUMBERS: Any = np.array([1, -1, -1])
_MORE, _LESS, _NOBODY = _NUMBERS

# What jobs ask for: a time, then resources on each node, then power.
_ESTIMATE, _NEED, _PEAK = 0, 1, 1 + RESOURCES
KEYS = 2 + RESOURCES

# What else is to be known of a job that may go ahead of others.
ASKING = np.dtype(
    [
        ("kind", np.int64),  # The kind of the job.
        ("rank", np.int64),  # Its place among those of its kind.
        ("until", np.float64),  # When it will be over at the latest, once it runs.
        ("waits", np.bool_),  # Whether it is in the queue.
        ("passed", np.int64),  # Room for a list of jobs.
    ]
)
KIND = np.dtype(
    [
        ("like", np.int64),  # A row among the jobs that needs what the least demanding needs.
        ("base", np.int64),  # Where its tree begins.
        ("size", np.int64),  # How many leaves that has.
        ("may", np.int64),  # Whether its jobs may start, in the present search.
        ("cursor", np.int64),  # Those before this place have been refused in it.
    ]
)
MOMENT = np.dtype(
    [
        ("at", np.float64),  # When it is, −inf where nobody can tell; the same in both rows.
        ("fitting", np.int64),  # On how many nodes the first in the queue fits.
        ("power", np.int64),  # What the power cap leaves.
    ]
)


class Backfill(NamedTuple):
    """What a queue knows besides in which jobs may go ahead.

    Attributes:
        asking: What else is to be known of the jobs.
        kinds: The kinds of jobs; one like each stands behind the jobs.
        tree: A tree for each kind. Its leaves are the jobs that wait in the order of the queue,
            and what they ask for; infinite for nobody.
        leaves: The job of each leaf, half as many as there are branches.
        moments: The two moments of the promise.
        requested: A heap of jobs by when they will be over at the latest.
        frontier: Room for a heap of places in that.
    """

    asking: Rows
    kinds: Rows
    tree: FloatArray
    leaves: IntArray
    moments: Rows
    requested: Rows
    frontier: Rows


@compiled()
def run_in_order(world: World, waiting: Rows) -> FloatArray:
    """Run jobs through, strictly in the order of their ranks; return the log.

    Args:
        waiting: An empty heap of jobs by rank.
    """
    jobs, places, site, nodes, changes, timers, ends, log = world
    arrived = done = FIRST
    while done < site[0]["jobs"]:
        now = min(min(due(ends), jobs[arrived]["ready"]), min(due(changes), due(timers)))
        if now == np.inf:
            break
        log = room_for(site, log)
        while due(ends) <= now:
            give(site, nodes, timers, jobs, places, pop(ends), now)
            done += 1
        settle(site, nodes, changes, now, log)
        while jobs[arrived]["ready"] <= now:
            push(waiting, jobs[arrived]["rank"], arrived)
            arrived += 1
        while True:
            while waiting[0]["thing"] and find(site, nodes, jobs, places, waiting[1]["thing"]):
                job = pop(waiting)
                take(site, nodes, changes, jobs, places, job, now, log)
                push(ends, end_of(jobs, job, jobs[job]["start"]), job)
            # A node that goes off may leave enough power for the next job.
            if not switch_off(site, nodes, changes, timers, now, log):
                break
    return log


@compiled(inner=True)
def _fits_later(nodes: Rows, node: int, moment: int, jobs: Rows, job: int) -> int:
    """Return 1 if a job will find what it needs on a node at a moment, else 0."""
    row = nodes[nodes.size // 2 + node]
    for kind in range(RESOURCES):
        if row["later"][moment, kind] < jobs[job]["need"][kind]:
            return 0
    return 1


@compiled(inner=True)
def _node_count(jobs: Rows, job: int) -> int:
    return int(jobs[job + 1]["place"] - jobs[job]["place"])


@compiled(inner=True)
def _power_of_first(site: Rows, jobs: Rows, first: int) -> int:
    """Return what the first in the queue takes of the power cap, had all its nodes to be woken."""
    power = jobs[first]["peak"]
    if site[0]["states"] > 1:
        power += _node_count(jobs, first) * waking_power(site)
    return int(power)


@compiled(inner=True)
def _holds(site: Rows, moments: Rows, moment: int, jobs: Rows, first: int) -> bool:
    """Return whether the first in the queue fits at a moment."""
    row = moments[moment]
    return bool(
        row["fitting"] >= _node_count(jobs, first)
        and row["power"] >= _power_of_first(site, jobs, first)
    )


@compiled(inner=True)
def _adjust(
    nodes: Rows,
    moments: Rows,
    moment: int,
    jobs: Rows,
    places: IntArray,
    first: int,
    job: int,
    sign: int,
) -> None:
    """Add or take away at a moment what a job holds."""
    moments[moment]["power"] += sign * jobs[job]["peak"]
    for at in range(jobs[job]["place"], jobs[job + 1]["place"]):
        node = places[at]
        row = nodes[nodes.size // 2 + node]
        moments[moment]["fitting"] -= _fits_later(nodes, node, moment, jobs, first)
        for kind in range(RESOURCES):
            row["later"][moment, kind] += sign * jobs[job]["need"][kind]
        moments[moment]["fitting"] += _fits_later(nodes, node, moment, jobs, first)


@compiled(inner=True)
def _mind(
    nodes: Rows,
    moments: Rows,
    jobs: Rows,
    places: IntArray,
    asking: Rows,
    first: int,
    job: int,
    sign: int,
) -> None:
    """Change the promise for a job that has ended early, or has started."""
    if asking[job]["until"] >= moments[_THEN]["at"]:
        _adjust(nodes, moments, _BEFORE, jobs, places, first, job, sign)
    if asking[job]["until"] > moments[_THEN]["at"]:
        _adjust(nodes, moments, _THEN, jobs, places, first, job, sign)


@compiled(inner=True)
def _make_promise(
    site: Rows,
    nodes: Rows,
    moments: Rows,
    jobs: Rows,
    places: IntArray,
    asking: Rows,
    requested: Rows,
    frontier: Rows,
    first: int,
    now: float,
) -> bool:
    """Work out when the first in the queue fits, if everybody runs for as long as requested.

    Returns:
        Whether anybody can tell: a power cap may ask for nodes to go off before.
    """
    then, before = moments[_THEN], moments[_BEFORE]
    then["power"] = site[0]["power"]
    then["fitting"] = 0
    for node in range(site[0]["nodes"]):
        row = nodes[nodes.size // 2 + node]
        for kind in range(RESOURCES):
            row["later"][_THEN, kind] = row["free"][kind]
        then["fitting"] += _fits_later(nodes, node, _THEN, jobs, first)
    # Where it fits already, it only waits for a node that is going off.
    fits = _holds(site, moments, _THEN, jobs, first)
    then["at"] = now if fits else -np.inf
    # The jobs by their ends without taking the heap apart: below a row of it nothing is due
    # sooner, so it is enough to look below the rows that had their turn.
    passed = FIRST
    frontier[0]["thing"] = 0
    if requested[0]["thing"]:
        push(frontier, requested[1]["time"], TOP)
    while frontier[0]["thing"] and not (fits and due(frontier) > then["at"]):
        at = due(frontier)
        place = pop(frontier)
        for below in range(2 * place, 2 * place + 2):
            if below <= requested[0]["thing"]:
                push(frontier, requested[below]["time"], below)
        job = requested[place]["thing"]
        asking[passed]["passed"] = job
        passed += 1
        _adjust(nodes, moments, _THEN, jobs, places, first, job, _MORE)
        if not fits and _holds(site, moments, _THEN, jobs, first):
            fits = True
            then["at"] = at
    before["at"], before["power"], before["fitting"] = then["at"], then["power"], then["fitting"]
    for node in range(site[0]["nodes"]):
        row = nodes[nodes.size // 2 + node]
        for kind in range(RESOURCES):
            row["later"][_BEFORE, kind] = row["later"][_THEN, kind]
    for number in range(passed - 1, -1, -1):
        job = asking[number]["passed"]
        if asking[job]["until"] != then["at"]:
            break
        _adjust(nodes, moments, _BEFORE, jobs, places, first, job, _LESS)
    return fits


@compiled(inner=True)
def _find_beside(
    site: Rows, nodes: Rows, moments: Rows, jobs: Rows, places: IntArray, first: int, job: int
) -> bool:
    """Choose nodes that a job can hold for ever without breaking the promise."""
    spare = moments[_THEN]["fitting"] - _node_count(jobs, first)
    power = moments[_THEN]["power"] - _power_of_first(site, jobs, first) - jobs[job]["peak"]
    if spare < 0 or power < 0:
        return False
    at, end = jobs[job]["place"], jobs[job + 1]["place"]
    for state in range(site[0]["states"]):
        node = next_fit(nodes, state, jobs, job, FIRST)
        while node >= 0:
            costs = 0
            if _fits_later(nodes, node, _THEN, jobs, first):
                row = nodes[nodes.size // 2 + node]
                for kind in range(RESOURCES):
                    left = row["later"][_THEN, kind] - jobs[job]["need"][kind]
                    if left < jobs[first]["need"][kind]:
                        costs = 1
            if spare >= costs:
                spare -= costs
                if state == OFF:
                    power -= waking_power(site)
                places[at] = node
                at += 1
                if at == end:
                    return bool(power >= 0)
            node = next_fit(nodes, state, jobs, job, node + 1)
    return False


@compiled(inner=True)
def _until(jobs: Rows, job: int, start: float) -> float:
    """Return when a job that starts at an instant will be over at the latest."""
    return max(float(start + jobs[job]["estimate_s"]), end_of(jobs, job, start))


@compiled(inner=True)
def _waking(site: Rows, nodes: Rows, jobs: Rows, places: IntArray, job: int) -> int:
    """Return what waking the nodes chosen for a job takes of the power cap."""
    power = 0
    if site[0]["states"] > 1:
        for at in range(jobs[job]["place"], jobs[job + 1]["place"]):
            if nodes[nodes.size // 2 + places[at]]["state"] == OFF:
                power += waking_power(site)
    return power


@compiled(inner=True)
def _may_go_ahead(
    site: Rows,
    nodes: Rows,
    moments: Rows,
    jobs: Rows,
    places: IntArray,
    first: int,
    job: int,
    now: float,
) -> bool:
    """Choose nodes for a job that is not first; return whether it can have them now."""
    if not find(site, nodes, jobs, places, job):
        return False
    until = _until(jobs, job, start_on(site, nodes, jobs, places, job, now))
    power = moments[_THEN]["power"] - _waking(site, nodes, jobs, places, job)
    if until <= moments[_THEN]["at"] and power >= _power_of_first(site, jobs, first):
        return True
    return _find_beside(site, nodes, moments, jobs, places, first, job)


@compiled(inner=True)
def _start(
    site: Rows,
    nodes: Rows,
    changes: Rows,
    jobs: Rows,
    places: IntArray,
    asking: Rows,
    ends: Rows,
    requested: Rows,
    job: int,
    now: float,
    log: FloatArray,
) -> None:
    """Start a job on the nodes chosen for it."""
    take(site, nodes, changes, jobs, places, job, now, log)
    start = jobs[job]["start"]
    asking[job]["waits"] = False
    asking[job]["until"] = _until(jobs, job, start)
    push(ends, end_of(jobs, job, start), job)
    push(requested, asking[job]["until"], job)


@compiled(inner=True)
def _start_ahead(
    site: Rows,
    nodes: Rows,
    moments: Rows,
    changes: Rows,
    jobs: Rows,
    places: IntArray,
    asking: Rows,
    ends: Rows,
    requested: Rows,
    first: int,
    job: int,
    now: float,
    log: FloatArray,
) -> None:
    """Start a job before the first in the queue, and mind the promise."""
    waking = _waking(site, nodes, jobs, places, job)
    _start(site, nodes, changes, jobs, places, asking, ends, requested, job, now, log)
    moments[_THEN]["power"] -= waking
    moments[_BEFORE]["power"] -= waking
    _mind(nodes, moments, jobs, places, asking, first, job, _LESS)


@compiled(inner=True)
def _note(asking: Rows, kinds: Rows, tree: FloatArray, job: int, values: FloatArray) -> None:
    """Note what a job that waits asks for, infinite for one that waits no more."""
    kind = kinds[asking[job]["kind"]]
    set_leaf(tree, kind["base"], kind["size"], asking[job]["rank"], values)


@compiled(inner=True)
def _next_ahead(
    site: Rows,
    nodes: Rows,
    moments: Rows,
    jobs: Rows,
    places: IntArray,
    kinds: Rows,
    tree: FloatArray,
    leaves: IntArray,
    limits: FloatArray,
    first: int,
    now: float,
) -> int:
    """Return who may start next before the first in the queue, −1 if nobody may.

    What is free only shrinks as jobs go ahead, so who was refused once is refused until `may` and
    `cursor` are reset.
    """
    best = jobs.size
    # Nobody can have more than there is anywhere.
    for resource in range(RESOURCES):
        limits[_NEED + resource] = -1
        for state in range(site[0]["states"]):
            most = nodes[1]["most"][state, resource]
            limits[_NEED + resource] = max(limits[_NEED + resource], most)
    limits[_PEAK] = site[0]["power"]
    for number in range(kinds.size):
        kind = kinds[number]
        base, size = kind["base"], kind["size"]
        limits[_ESTIMATE] = LONGEST_S
        if kind["may"] == _NOT or not within(tree, base + 1, limits):
            continue
        if not find(site, nodes, jobs, places, kind["like"]):
            kind["may"] = _NOT
            continue
        if kind["may"] == _ANY and not _find_beside(
            site, nodes, moments, jobs, places, first, kind["like"]
        ):
            kind["may"] = _SHORT
        if kind["may"] == _SHORT:
            limits[_ESTIMATE] = moments[_THEN]["at"] - now + _TOLERANCE_S
        place = first_within(tree, base, size, limits, kind["cursor"])
        while place >= 0:
            job = leaves[base // 2 + place]
            if job > best:
                break
            if _may_go_ahead(site, nodes, moments, jobs, places, first, job, now):
                best = job
                break
            place = first_within(tree, base, size, limits, place + 1)
        kind["cursor"] = place
        if place < 0:
            kind["may"] = _NOT
    return best if best < jobs.size else -1


@compiled()
def run_easy(world: World, queue: Backfill) -> FloatArray:
    """Run jobs through, others going ahead that do not delay the first; return the log."""
    jobs, places, site, nodes, changes, timers, ends, log = world
    asking, kinds, tree, leaves, moments, requested, frontier = queue
    arrived = done = waiting = front = FIRST
    first, promised = _NOBODY, False
    nothing, wish, limits = np.full(KEYS, np.inf), np.empty(KEYS), np.empty(KEYS)
    while done < site[0]["jobs"]:
        now = min(min(due(ends), jobs[arrived]["ready"]), min(due(changes), due(timers)))
        if now == np.inf:
            break
        log = room_for(site, log)
        changed = False
        while due(ends) <= now:
            job = pop(ends)
            remove(requested, job)
            give(site, nodes, timers, jobs, places, job, now)
            done += 1
            changed = True
            if promised:
                _mind(nodes, moments, jobs, places, asking, first, job, _MORE)
        if promised and _holds(site, moments, _BEFORE, jobs, first):
            promised = False
        if settle(site, nodes, changes, now, log):
            changed, promised = True, False
        while True:
            while changed and waiting:
                if first < 0:
                    while not asking[front]["waits"]:
                        front += 1
                    first = front
                    _note(asking, kinds, tree, first, nothing)
                if not find(site, nodes, jobs, places, first):
                    break
                _start(site, nodes, changes, jobs, places, asking, ends, requested, first, now, log)
                first, promised = _NOBODY, False
                waiting -= 1
            if waiting and not promised:
                promised = _make_promise(
                    site, nodes, moments, jobs, places, asking, requested, frontier, first, now
                )
            if changed and waiting > 1:
                for number in range(kinds.size):
                    kinds[number]["may"] = _ANY
                    kinds[number]["cursor"] = 0
                while True:
                    job = _next_ahead(
                        site, nodes, moments, jobs, places, kinds, tree, leaves, limits, first, now
                    )
                    if job < 0:
                        break
                    _start_ahead(
                        site,
                        nodes,
                        moments,
                        changes,
                        jobs,
                        places,
                        asking,
                        ends,
                        requested,
                        first,
                        job,
                        now,
                        log,
                    )
                    _note(asking, kinds, tree, job, nothing)
                    waiting -= 1
            while jobs[arrived]["ready"] <= now:
                job = arrived
                arrived += 1
                # Those who came before and still wait have been refused, and time helps nobody.
                if waiting:
                    if _may_go_ahead(site, nodes, moments, jobs, places, first, job, now):
                        _start_ahead(
                            site,
                            nodes,
                            moments,
                            changes,
                            jobs,
                            places,
                            asking,
                            ends,
                            requested,
                            first,
                            job,
                            now,
                            log,
                        )
                        continue
                    wish[_ESTIMATE], wish[_PEAK] = jobs[job]["estimate_s"], jobs[job]["peak"]
                    for resource in range(RESOURCES):
                        wish[_NEED + resource] = jobs[job]["need"][resource]
                    _note(asking, kinds, tree, job, wish)
                else:
                    if find(site, nodes, jobs, places, job):
                        _start(
                            site,
                            nodes,
                            changes,
                            jobs,
                            places,
                            asking,
                            ends,
                            requested,
                            job,
                            now,
                            log,
                        )
                        continue
                    first = job
                    promised = _make_promise(
                        site, nodes, moments, jobs, places, asking, requested, frontier, first, now
                    )
                asking[job]["waits"] = True
                waiting += 1
            # A node that goes off may leave enough power for the next job.
            if not switch_off(site, nodes, changes, timers, now, log):
                break
            changed, promised = True, False
    return log
