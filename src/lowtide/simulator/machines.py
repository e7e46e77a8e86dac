"""The nodes while jobs come and go: what is free where, and which are on.

What is free is counted in whole small units, so that nothing is lost to rounding however often
it is taken and given back. The nodes are the leaves of a tree whose branches know the most that
is free below them, for each state that a node may be in: the first node that fits is found
without looking at the others.

Everything is kept in tables of rows rather than in many arrays: each array that is passed from
one kernel to another costs time, both when it is compiled and when it runs. For the same reason
those who run a queue take a `World` of tables, and hand on only what is needed: handing on all of
it compiled half as long again and ran up to twice as long.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from lowtide.compiled import compiled
from lowtide.simulator.heaps import Rows, due, make_heap, next_branch, pop, push

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]

CPUS, GPUS, MEMORY = range(3)
RESOURCES = 3
SPAN_KINDS = ("idle", "boot", "shutdown", "off")
FIRST: Any = np.int64(0)
_STATES: Any = np.arange(len(SPAN_KINDS))
IDLE, BOOT, SHUTDOWN, OFF = _STATES

# A node changes its state fewer times than this at one instant.
_CHANGES = 8
# A row per branch of the tree, the root being row 1; the nodes are in the second half.
NODE = np.dtype(
    [
        ("most", np.int64, (len(SPAN_KINDS), RESOURCES)),  # −1 where no node is in that state.
        ("free", np.int64, RESOURCES),
        ("state", np.int64),  # What the node does, a place in SPAN_KINDS.
        ("since", np.float64),  # Since when.
        ("on", np.float64),  # When it is on, or will be.
        ("holders", np.int64),  # How many jobs hold something of it.
        ("idle", np.float64),  # Since when nobody does.
        ("timed", np.bool_),  # Whether it is in the heap of timers.
        ("later", np.int64, (2, RESOURCES)),  # What will be free at the moments of a promise.
    ]
)
# A single row.
SITE = np.dtype(
    [
        ("nodes", np.int64),  # How many there are.
        ("states", np.int64),  # How many states they may be in: one if never switched off.
        ("power", np.int64),  # What the power cap leaves.
        ("drawn", np.int64, len(SPAN_KINDS)),  # What a node counts for under it, per state.
        ("boot_s", np.float64),
        ("shutdown_s", np.float64),
        ("off_after_s", np.float64),  # How long a node is idle before that, infinite for ever.
        ("logged", np.int64),  # How many spans are in the log.
        ("jobs", np.int64),  # How many jobs there are.
    ]
)
# As the kernels that run queues need it of a job; they add columns of their own.
JOB = np.dtype(
    [
        ("ready", np.float64),  # When it enters the queue.
        ("startup_s", np.float64),  # How long a start takes: the first, or that under way.
        ("work_s", np.float64),  # How much work there is.
        ("estimate_s", np.float64),  # How long its user said it would run.
        ("rank", np.float64),  # The lower, the sooner its turn.
        ("need", np.int64, RESOURCES),  # What it needs on each of its nodes.
        ("peak", np.int64),  # What it draws at most, as the power cap counts.
        ("place", np.int64),  # Where its nodes begin in the list of places.
        ("held", np.float64),  # When it took its nodes.
        ("start", np.float64),  # When it started.
    ]
)


class World(NamedTuple):
    """Jobs and machines as all queues take them.

    Attributes:
        jobs: The jobs in the order in which they become ready, and one that never is; told when
            they took their nodes and started.
        places: Where the nodes of jobs are written to.
        site: What holds for all nodes.
        nodes: The nodes.
        changes: A heap of nodes that boot or shut down, by when they will have.
        timers: A heap of nodes by when to look whether they have been idle for long enough.
        ends: A heap of jobs by when they give their nodes back.
        log: What nodes did: node, begin, end and kind of a span in a row.
    """

    jobs: Rows
    places: IntArray
    site: Rows
    nodes: Rows
    changes: Rows
    timers: Rows
    ends: Rows
    log: FloatArray


def make_nodes(capacity: IntArray, count: int, begin: float) -> Rows:
    """Return nodes that are all on and idle.

    Args:
        capacity: What each holds, per resource.
    """
    size = 1 << (count - 1).bit_length()
    nodes = np.zeros(2 * size, dtype=NODE)
    nodes["most"] = -1
    leaves = nodes[size : size + count]
    leaves["most"][:, IDLE] = leaves["free"] = capacity
    leaves["since"] = leaves["idle"] = begin
    leaves["on"] = -np.inf
    while size > 1:
        below = nodes["most"][size : 2 * size].reshape(size // 2, 2, len(SPAN_KINDS), RESOURCES)
        nodes["most"][size // 2 : size] = below.max(axis=1)
        size //= 2
    return nodes


def make_timers(nodes: Rows, site: Rows) -> Rows:
    """Return the heap of nodes by when to look whether they have been idle for long enough."""
    count, size = int(site["nodes"][0]), nodes.size // 2
    timers = make_heap(count)
    if np.isfinite(site["off_after_s"][0]):
        nodes["timed"][size : size + count] = True
        # All are due at once, in the order of their numbers: that is a heap.
        timers["time"] = nodes["idle"][size] + site["off_after_s"][0]
        timers["thing"] = np.arange(-1, count)
        timers["place"] = np.arange(1, count + 2)
        timers["thing"][0] = count
    return timers


@compiled(inner=True)
def room_for(site: Rows, log: FloatArray) -> FloatArray:
    """Return the log, larger if what happens at one instant might not fit."""
    most = site[0]["logged"] + _CHANGES * site[0]["nodes"]
    if site[0]["states"] == 1 or most <= log.shape[0]:
        return log
    larger = np.empty((2 * most, 4))
    # Loops rather than slices, here and elsewhere: those would take long to compile.
    for row in range(log.shape[0]):
        for column in range(4):
            larger[row, column] = log[row, column]
    return larger


@compiled(inner=True)
def end_of(jobs: Rows, job: int, start: float) -> float:
    """Return when a job is over that starts at an instant and runs through."""
    return float(start + jobs[job]["startup_s"] + jobs[job]["work_s"])


@compiled(inner=True)
def next_fit(nodes: Rows, state: int, jobs: Rows, job: int, at: int) -> int:
    """Return the first node from one on, in a state, that has what a job needs; −1 for none."""
    size = nodes.size // 2
    if at >= size:
        return -1
    branch = at + size if at else 1
    while True:
        fits = True
        for kind in range(RESOURCES):
            if nodes[branch]["most"][state, kind] < jobs[job]["need"][kind]:
                fits = False
                break
        if fits:
            if branch >= size:
                return branch - size
            branch *= 2
        else:
            branch = next_branch(branch)
            if branch == 0:
                return -1


@compiled(inner=True)
def find(site: Rows, nodes: Rows, jobs: Rows, places: IntArray, job: int) -> bool:
    """Choose nodes for a job, those that are on first; return whether it can have them now."""
    at, end = jobs[job]["place"], jobs[job + 1]["place"]
    power = site[0]["power"] - jobs[job]["peak"]
    for state in range(site[0]["states"]):
        node = next_fit(nodes, state, jobs, job, FIRST)
        while node >= 0:
            places[at] = node
            at += 1
            if state == OFF:
                power -= waking_power(site)
            if at == end:
                return bool(power >= 0)
            node = next_fit(nodes, state, jobs, job, node + 1)
    return False


@compiled(inner=True)
def waking_power(site: Rows) -> int:
    """Return what waking a node takes of the power cap."""
    return int(site[0]["drawn"][BOOT] - site[0]["drawn"][OFF])


@compiled(inner=True)
def start_on(site: Rows, nodes: Rows, jobs: Rows, places: IntArray, job: int, now: float) -> float:
    """Return when a job could start on the nodes chosen for it, woken where they are off."""
    start = now
    if site[0]["states"] > 1:
        for at in range(jobs[job]["place"], jobs[job + 1]["place"]):
            row = nodes[nodes.size // 2 + places[at]]
            start = max(start, now + site[0]["boot_s"] if row["state"] == OFF else row["on"])
    return start


@compiled(inner=True)
def take(
    site: Rows,
    nodes: Rows,
    changes: Rows,
    jobs: Rows,
    places: IntArray,
    job: int,
    now: float,
    log: FloatArray,
) -> None:
    """Let a job hold the nodes chosen for it, and start on them as soon as they are on."""
    jobs[job]["held"] = now
    jobs[job]["start"] = start_on(site, nodes, jobs, places, job, now)
    site[0]["power"] -= jobs[job]["peak"]
    for at in range(jobs[job]["place"], jobs[job + 1]["place"]):
        node = places[at]
        row = nodes[nodes.size // 2 + node]
        if row["state"] == OFF:
            boots = site[0]["boot_s"] > 0
            row["on"] = now + site[0]["boot_s"]
            _change(site, nodes, node, BOOT if boots else IDLE, now, log)
            if boots:
                push(changes, row["on"], node)
        row["holders"] += 1
        for kind in range(RESOURCES):
            row["free"][kind] -= jobs[job]["need"][kind]
        _show(nodes, node)


@compiled(inner=True)
def give(
    site: Rows, nodes: Rows, timers: Rows, jobs: Rows, places: IntArray, job: int, now: float
) -> None:
    """Take back the nodes that a job held."""
    site[0]["power"] += jobs[job]["peak"]
    for at in range(jobs[job]["place"], jobs[job + 1]["place"]):
        node = places[at]
        row = nodes[nodes.size // 2 + node]
        for kind in range(RESOURCES):
            row["free"][kind] += jobs[job]["need"][kind]
        _show(nodes, node)
        row["holders"] -= 1
        if site[0]["states"] > 1 and row["holders"] == 0:
            row["idle"] = now
            if not row["timed"]:
                row["timed"] = True
                push(timers, now + site[0]["off_after_s"], node)


@compiled(inner=True)
def settle(site: Rows, nodes: Rows, changes: Rows, now: float, log: FloatArray) -> bool:
    """Let nodes that have booted be on, and those that have shut down be off."""
    any_did = False
    while due(changes) <= now:
        node = pop(changes)
        booted = nodes[nodes.size // 2 + node]["state"] == BOOT
        _change(site, nodes, node, IDLE if booted else OFF, now, log)
        any_did = True
    return any_did


@compiled(inner=True)
def switch_off(
    site: Rows, nodes: Rows, changes: Rows, timers: Rows, now: float, log: FloatArray
) -> bool:
    """Switch nodes off that have been idle for long enough."""
    any_did = False
    while due(timers) <= now:
        node = pop(timers)
        row = nodes[nodes.size // 2 + node]
        until = row["idle"] + site[0]["off_after_s"]
        row["timed"] = row["holders"] == 0 and until > now
        if row["timed"]:
            push(timers, until, node)
        elif row["holders"] == 0:
            any_did = True
            lasts = site[0]["shutdown_s"] > 0
            _change(site, nodes, node, SHUTDOWN if lasts else OFF, now, log)
            if lasts:
                push(changes, now + site[0]["shutdown_s"], node)
    return any_did


@compiled(inner=True)
def _change(site: Rows, nodes: Rows, node: int, after: int, now: float, log: FloatArray) -> None:
    """Log what a node has done until now, and let it do something else."""
    row = nodes[nodes.size // 2 + node]
    before = row["state"]
    if now > row["since"]:
        at = site[0]["logged"]
        log[at, 0] = node
        log[at, 1] = row["since"]
        log[at, 2] = now
        log[at, 3] = before
        site[0]["logged"] += 1
    row["since"] = now
    site[0]["power"] += site[0]["drawn"][before] - site[0]["drawn"][after]
    for kind in range(RESOURCES):
        row["most"][before, kind] = -1
    _climb(nodes, node, before)
    row["state"] = after
    _show(nodes, node)


@compiled(inner=True)
def _show(nodes: Rows, node: int) -> None:
    """Let the tree know what is free on a node; nobody can have one that is going off."""
    row = nodes[nodes.size // 2 + node]
    if row["state"] == SHUTDOWN:
        return
    for kind in range(RESOURCES):
        row["most"][row["state"], kind] = row["free"][kind]
    _climb(nodes, node, row["state"])


@compiled(inner=True)
def _climb(nodes: Rows, node: int, state: int) -> None:
    """Bring the branches above a node up to date."""
    branch = (node + nodes.size // 2) >> 1
    while branch >= 1:
        row, left, right = nodes[branch], nodes[2 * branch], nodes[2 * branch + 1]
        same = True
        for kind in range(RESOURCES):
            most = max(left["most"][state, kind], right["most"][state, kind])
            if row["most"][state, kind] != most:
                row["most"][state, kind] = most
                same = False
        if same:
            return
        branch >>= 1
