"""Plans node by node, where jobs share nodes: room in sum is no room on any one of them.

The bound is that of the sums. Each run of a plan is put on the nodes that it fits on most tightly;
a job for which there are none is planned anew on nodes that have most room, at the same prices,
and those that found none come first the next time.
"""

from __future__ import annotations

import copy
import itertools
import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cached_property
from typing import Any

import numpy as np

from lowtide.market.enumeration import ways_to_run
from lowtide.market.instance import Instance
from lowtide.market.kernels import TOLD, Room
from lowtide.market.lateness import lateness_s, lengthened, refuse_late
from lowtide.market.placing import Board, rebuilt, urgency
from lowtide.market.planner import QueueSolution
from lowtide.market.prices import Prices, run
from lowtide.precedence import in_order
from lowtide.signal import FloatArray
from lowtide.simulator.queueing import Placed
from lowtide.workload import IntArray

# How often all jobs are laid out anew until each has a place, how often for a better one at an
# effort of 1, and how often in vain; and on how many sets of nodes a job is tried.
_ROUNDS = 16
_BETTER = 40
_PATIENCE = 12
_TRIES = 24
# How often others are taken out for one without a place at an effort of 1, and how many.
_EXCHANGES = 200
_AT_ONCE = 4
# Of so few jobs all combinations are gone through, up to so many.
_FEW = 6
_MOST_STEPS = 20_000
# Orders in which those are tried that are late.
_ORDERS = 23
# How bad it is to have found no place, as a share of what a job comes to.
_NO_PLACE = 5.0
_SPARE = 1e-9


def place_on_nodes(
    solution: QueueSolution,
    *,
    doing: Callable[[str, float], None] = lambda _what, _share: None,
    is_over: Callable[[], bool] = lambda: False,
    effort: float = 1.0,
) -> tuple[Board, Placed]:
    """Return a plan whose runs each have nodes of their own, and which.

    Jobs for which no node could be found in time are placed as early as one has room.
    """
    auction, told = solution.auction, solution.board
    instance = auction.instance
    # Who is late in sum may be in time here, or late by less.
    wished = told.placed & ~np.isin(instance.job_of, solution.late)
    board = rebuilt(instance, told.delay, wished, auction.prices)
    base, push = np.log(urgency(instance)), np.zeros(len(instance))
    rng = np.random.default_rng(0)
    best: _Layout | None = None
    rounds, stale = max(round(_BETTER * effort), 1), 0
    for number in range(max(_ROUNDS, rounds)):
        doing("nodes", number / max(_ROUNDS, rounds))
        tried = _Layout(board, auction.prices)
        for row in in_order(base - push, instance.links).tolist():
            tried.put(row)
        better = best is None or tried.score < best.score
        best, stale = (tried, 0) if better or best is None else (best, stale + 1)
        if is_over() or (not best.failed and (number + 1 >= rounds or stale >= _PATIENCE)):
            break
        # Those that it cost most to be put elsewhere, or that found no place, come sooner.
        worse = np.maximum(tried.cost - board.cost, 0.0) / np.maximum(np.abs(board.cost), 1e-9)
        worse[tried.failed] = _NO_PLACE
        push = 0.9 * push + 2.0 * worse * rng.random(len(instance))
    assert best is not None  # noqa: S101 - there is at least one round
    if best.failed:
        best.exchange(max(round(_EXCHANGES * effort), 1), rng, is_over)
    if best.failed and len(instance) <= _FEW:
        best = best.go_through(_MOST_STEPS)
    if best.failed:
        best = best.lengthened()
    return best.result()


class _Layout:
    """Nodes with what is left on each, slot by slot, and who is where."""

    def __init__(self, board: Board, prices: Prices) -> None:
        instance = board.instance
        self.instance, self.prices = instance, prices
        queue = instance.queue
        self.wide = instance.jobs.nodes.astype(np.int64)
        wide = self.wide[:, None]
        self.queue = queue._replace(need=queue.need / wide, keep=queue.keep / wide)
        count, cluster = instance.cluster.nodes, instance.cluster
        on_one = {"cpus": 1.0 * cluster.cpus_per_node, "gpus": 1.0 * cluster.gpus_per_node}
        on_one["memory"] = cluster.memory_bytes_per_node / 2**30
        each = np.array([on_one.get(name, 1.0) for name in instance.resources])
        # Those that are away are the last.
        there = np.round(instance.room[0] / each[0]).astype(np.int64)
        self.free = (
            np.where(np.arange(count)[:, None] < there, 1.0, 0.0)[:, None, :] * each[:, None]
        )
        self.kw = instance.cap_kw[1].copy()
        self.delay, self.wished, self.planned = board.delay.copy(), board.placed, board.cost
        self.placed = np.zeros(len(instance), dtype=np.bool_)
        self.cost = queue.jobs["leave"].copy()
        self.where: dict[int, list[IntArray]] = {}
        self.failed: list[int] = []
        self._known: dict[tuple[int, bytes], tuple[float, FloatArray]] = {}

    @property
    def score(self) -> tuple[int, float]:
        """How many jobs have no place, and what all count: the lower, the better."""
        return len(self.failed), float(self.cost.sum())

    def _own(self, row: int) -> slice:
        """Return which delays are those of a job's parts."""
        return slice(int(self.queue.jobs["part"][row]), int(self.queue.jobs["end"][row]))

    def put(self, row: int) -> None:
        """Put a job on nodes: as it was planned, or else where there is room."""
        own = self._own(row)
        planned = self.delay[own].copy()
        found = self._as_planned(row) if self.wished[row] and self._in_turn(row) else None
        if found is not None:
            self.cost[row] = self.planned[row]
        if found is None:
            found = self._anew(row)
        if found is None:
            self.delay[own] = planned
            self.failed.append(row)
            return
        self._occupy(row, found)

    def _occupy(self, row: int, found: list[IntArray], sign: float = 1.0) -> None:
        """Take what the runs of a job hold, and what it keeps between them, or give it back."""
        self.placed[row] = sign > 0
        self.where[row] = found
        runs = self._runs(row)
        for nodes, (first, last) in zip(found, runs, strict=True):
            self.free[nodes, :, first:last] -= sign * self.queue.need[row][:, None]
        for nodes, (_, last), (again, _) in zip(found, runs, runs[1:], strict=False):
            self.free[nodes, :, last:again] -= sign * self.queue.keep[row][:, None]
        if self.instance.capped:
            self.kw -= sign * self._told(row)[1]

    def _told(self, row: int) -> tuple[float, FloatArray]:
        """Return what a job counts as its delays say, and the most that it draws in each slot."""
        key = row, self.delay[self._own(row)].tobytes()
        if key not in self._known:
            room = Room(np.zeros(self.instance.room.shape), np.zeros((1, self.kw.size)))
            placed, cost = np.arange(self.placed.size) == row, np.zeros(self.placed.size)
            none = Prices.nothing(self.instance).tariff(self.instance)
            plan, order = (self.delay, placed, cost), np.array([row])
            run(self.on_one, room, plan, none, how=TOLD, order=order)
            self._known[key] = float(cost[row]), -room.kw[0]
        return self._known[key]

    def _in_turn(self, row: int) -> bool:
        """Return whether all that a job waits for are done when it is to start."""
        links, jobs = self.instance.links, self.queue.jobs
        for place in np.flatnonzero(links.after == row).tolist():
            first = jobs[links.before[place]]
            end = first["first"] + self.queue.parts["at"][first["end"]]
            end += self.delay[first["end"] - 1] + links.gap_s[place] / self.instance.step_s
            start = jobs[row]["first"] + jobs[row]["begin"] + self.delay[jobs[row]["part"]]
            if not self.placed[links.before[place]] or start < end - 1e-7:
                return False
        return True

    def _runs(self, row: int) -> list[tuple[int, int]]:
        """Return the slots that each run of a job touches: first, and one past the last."""
        job, parts = self.queue.jobs[row], self.queue.parts
        first, last = int(job["part"]), int(job["end"])
        begin, runs = job["first"] + job["begin"] + self.delay[first], []
        for part in range(first, last):
            over = part + 1 == last
            if not over and self.delay[part + 1] == self.delay[part]:
                continue
            end = job["first"] + parts["at"][part + 1] + self.delay[part]
            end += 0.0 if over else job["stop_t"]
            runs.append((int(np.floor(begin + 1e-7)), int(np.ceil(end - 1e-7))))
            if not over:
                begin = job["first"] + parts["at"][part + 1] + self.delay[part + 1]
                begin -= job["restart_t"]
        return runs

    def _as_planned(self, row: int) -> list[IntArray] | None:
        """Return nodes for each run as it was planned; None where one has none."""
        return next(self._choices(row), None)

    def _choices(self, row: int, *, every: bool = False) -> Iterator[list[IntArray]]:
        """Yield nodes for the runs of a job as it was planned, those that they fill most first.

        Args:
            every: Whether to yield other nodes, too, but for those that are as good.
        """
        if self.instance.capped and (self.kw < self._told(row)[1] - _SPARE).any():
            return
        need, keep = self.queue.need[row], self.queue.keep[row]
        runs, keeps, wide = self._runs(row), bool(keep.any()), int(self.wide[row])

        def go_on(found: list[IntArray], over: int) -> Iterator[list[IntArray]]:
            if len(found) == len(runs):
                yield found
                return
            first, last = runs[len(found)]
            least = self.free[:, :, first:last].min(axis=2)
            good = (least >= need - _SPARE).all(axis=1)
            if keeps and found:
                # What it keeps lies where it ran.
                good &= np.isin(np.arange(good.size), found[0])
                if first > over:
                    good &= (self.free[:, :, over:first].min(axis=2) >= keep - _SPARE).all(axis=1)
            fits = np.flatnonzero(good)
            tight = fits[np.argsort(least[fits].sum(axis=1), kind="stable")]
            seen = set()
            for nodes in itertools.combinations(tight.tolist(), wide):
                alike = sorted(
                    (self.free[node].tobytes(), *(node in before for before in found))
                    for node in nodes
                    if every
                )
                if tuple(alike) not in seen:
                    seen.add(tuple(alike))
                    yield from go_on([*found, np.sort(np.array(nodes))], last)
                    if not every:
                        return

        yield from go_on([], 0)

    def _anew(self, row: int) -> list[IntArray] | None:
        """Plan a job where nodes have room, and return those of each run; None for none."""
        job, parts = self.queue.jobs[row], self.queue.parts
        wide, first = int(self.wide[row]), int(job["first"])
        last = first + int(np.ceil(parts["at"][job["end"]])) + int(job["delays"])
        need = np.maximum(self.queue.need[row], 1e-300)
        fits = (self.free[:, :, first:last] / need[:, None]).min(axis=1).clip(max=1.0)
        by_room = np.argsort(-np.floor(fits + _SPARE).sum(axis=1), kind="stable")
        share = Prices(rent=self.prices_over(self.instance) * wide, power=self.power_prices())
        tariff = share.tariff(self.instance)
        best: tuple[float, Any, list[IntArray]] | None = None
        stride = 1 if wide == 1 else max(wide // 2, 1)
        sets = [
            by_room[number : number + wide]
            for number in range(0, by_room.size - wide + 1, stride)[:_TRIES]
        ]
        rooms = [self.free[nodes].min(axis=0) for nodes in sets]
        if job["starts"] != 1 and not self.queue.keep[row].any():
            # Stopped, it may go on elsewhere: any nodes will do in each slot.
            there = (self.free >= self.queue.need[row][:, None] - _SPARE).all(axis=1).sum(axis=0)
            rooms.append(np.where(there >= wide, self.queue.need[row][:, None], 0.0))
        for number, free in enumerate(rooms):
            board = Board(
                instance=self.on_one,
                delay=self.delay,
                placed=self.placed,
                cost=self.cost,
                room=Room(free, self.kw[None].copy()),
            )
            board.insert(np.array([row]), tariff)
            if self.placed[row] and (best is None or self.cost[row] < best[0] - _SPARE):
                anywhere = number == len(sets)
                found = self._as_planned(row) if anywhere else [np.sort(sets[number])]
                if found is not None:
                    best = float(self.cost[row]), self.delay[self._own(row)].copy(), found
            self.placed[row] = False
        if best is None:
            self.cost[row] = self.queue.jobs["leave"][row]
            return None
        self.cost[row], self.delay[self._own(row)], found = best
        return found if len(found) > 1 else found * len(self._runs(row))

    def go_through(self, most: int) -> _Layout:
        """Return the best of all combinations of ways to run a few jobs, and of nodes for them.

        Args:
            most: How many to look at.
        """
        here = _Layout(Board.empty(self.instance), self.prices)
        ways: list[list[tuple[float, IntArray]]] = []
        for row in range(len(self.placed)):
            found = []
            for delay, _ in itertools.islice(ways_to_run(self.instance, row), most):
                here.delay[here._own(row)] = delay
                found.append((here._told(row)[0], np.array(delay)))
            ways.append(sorted(found, key=lambda way: way[0]))
        order = in_order(np.array([float(len(each)) for each in ways]), self.instance.links)
        ahead = np.cumsum([0.0, *(min((w[0] for w in ways[r]), default=0.0) for r in order[::-1])])
        best, steps = self, 0

        def go_on(place: int, out: int, cost: float) -> None:
            nonlocal best, steps
            if (out, cost + ahead[order.size - place]) >= best.score:
                return
            if place == order.size:
                best = copy.copy(here)
                best.delay, best.placed, best.where = (
                    here.delay.copy(),
                    here.placed.copy(),
                    here.where.copy(),
                )
                best.cost = here.cost.copy()
                best.failed = np.flatnonzero(~here.placed).tolist()
                return
            row = int(order[place])
            for own, delay in ways[row]:
                if steps > most:
                    return
                steps += 1
                here.delay[here._own(row)] = delay
                for found in here._choices(row, every=True) if here._in_turn(row) else ():
                    here.cost[row] = own
                    here._occupy(row, found)
                    go_on(place + 1, out, cost + own)
                    here._occupy(row, found, -1.0)
            leave = here.cost[row] = float(self.queue.jobs["leave"][row])
            go_on(place + 1, out + 1, cost + leave)

        go_on(0, 0, 0.0)
        return best

    def exchange(self, steps: int, rng: np.random.Generator, is_over: Callable[[], bool]) -> None:
        """Look for places for those without by taking others out, and putting them in after it."""
        rows = self.queue.jobs
        last = rows["first"] + np.ceil(self.queue.parts["at"][rows["end"]]) + rows["delays"]
        self.wished, self.planned = self.placed.copy(), self.cost.copy()
        for _ in range(steps):
            if not self.failed or is_over():
                return
            row = int(rng.choice(self.failed))
            near = (rows["first"] < last[row]) & (last > rows["first"][row])
            others = np.flatnonzero(near & self.placed)
            some = rng.permutation(others)[: int(rng.integers(1, _AT_ONCE + 1))]
            out: list[int] = some.tolist()
            before = self.score
            failed, cost = self.failed.copy(), self.cost.copy()
            kept = [(each, self.delay[self._own(each)].copy(), self.where[each]) for each in out]
            for each, _, found in kept:
                self._occupy(each, found, -1.0)
            # It comes first, unless it waits for one of them.
            key = np.where(np.arange(len(self.placed)) == row, -1.0, rng.random(len(self.placed)))
            moved = np.array([*out, row])
            self.failed.remove(row)
            for each in in_order(key, self.instance.links).tolist():
                if each in moved:
                    self.put(each)
            if self.score[0] < before[0] or (
                self.score[0] == before[0] and self.score[1] <= before[1]
            ):
                self.wished[moved], self.planned[moved] = self.placed[moved], self.cost[moved]
                continue
            for each in moved[self.placed[moved]].tolist():
                self._occupy(each, self.where[each], -1.0)
            for each, delay, found in kept:
                self.delay[self._own(each)] = delay
                self._occupy(each, found)
            self.failed, self.cost = failed, cost

    @cached_property
    def on_one(self) -> Instance:
        """The instance with what jobs need on each of their nodes."""
        return replace(self.instance, queue=self.queue)

    def prices_over(self, instance: Instance) -> FloatArray:
        """Return the prices of resources, nothing where a plan goes on beyond them."""
        rent = np.zeros((len(instance.resources), instance.slots))
        rent[:, : self.prices.rent.shape[1]] = self.prices.rent
        return rent

    def power_prices(self) -> FloatArray:
        """Return the prices of power, likewise."""
        power = np.zeros(self.instance.slots)
        power[: self.prices.power.size] = self.prices.power
        return power

    def lengthened(self) -> _Layout:
        """Return the layout with those that found no place placed after their deadlines.

        Of several orders the one with the least lateness is taken, then with the least of the
        latest.
        """
        late, deadline = np.array(self.failed), self.instance.jobs.deadline
        longer, penalty = lengthened(self.instance, late)
        board = Board.empty(longer)
        board.delay[:], board.placed[:] = self.delay, self.placed
        waits = longer.queue.jobs["wait"].copy()
        hurried = waits.copy()
        hurried[late] = penalty
        kept: tuple[tuple[int, float, float], _Layout] | None = None
        rng = np.random.default_rng(0)
        keys = [deadline, *(rng.random(deadline.size) for _ in range(_ORDERS))]
        for key in keys[: math.factorial(min(late.size, _AT_ONCE))]:
            other = _Layout(board, self.prices)
            for row in np.flatnonzero(self.placed).tolist():
                other._occupy(row, self.where[row])
            other.queue.jobs["wait"][:] = hurried
            order = in_order(key, self.instance.links)
            for row in order[np.isin(order, late)].tolist():
                other.put(row)
            by_s = lateness_s(other.board, deadline)[late]
            score = (len(other.failed), float(by_s.sum()), float(by_s.max()))
            kept = (score, other) if kept is None or score < kept[0] else kept
        assert kept is not None  # noqa: S101 - there is at least one order
        other = kept[1]
        other.queue.jobs["wait"][:] = waits
        if other.failed:
            refuse_late(self.instance, late, np.array(other.failed))
        return other

    @property
    def board(self) -> Board:
        """The plan, without its nodes."""
        none = Prices.nothing(self.instance)
        return rebuilt(self.instance, self.delay, self.placed, none)

    def result(self) -> tuple[Board, Placed]:
        """Return the plan, and the nodes of its runs."""
        stretch, node, number = [], [], 0
        for row in range(len(self.instance)):
            for nodes in self.where[row]:
                stretch.append(np.full(nodes.size, number))
                node.append(nodes)
                number += 1
        return self.board, Placed(stretch=np.concatenate(stretch), node=np.concatenate(node))
