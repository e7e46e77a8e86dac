"""Plans node by node, where jobs share nodes: room in sum is no room on any one of them.

The bound is that of the sums. Each run of a plan is put on the nodes that it fits on most tightly;
a job for which there are none is planned anew on nodes that have most room, at the same prices,
and those that found none come first the next time.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cached_property
from typing import Any

import numpy as np

from lowtide.market.instance import Instance
from lowtide.market.kernels import Room
from lowtide.market.lateness import lengthened, refuse_late
from lowtide.market.placing import Board, rebuilt, urgency
from lowtide.market.planner import QueueSolution
from lowtide.market.prices import Prices
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
    board = solution.board
    instance = board.instance
    base, push = np.log(urgency(instance)), np.zeros(len(instance))
    rng = np.random.default_rng(0)
    best: _Layout | None = None
    rounds, stale = max(round(_BETTER * effort), 1), 0
    for number in range(max(_ROUNDS, rounds)):
        doing("nodes", number / max(_ROUNDS, rounds))
        tried = _Layout(board, solution.auction.prices)
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

    @property
    def score(self) -> tuple[int, float]:
        """How many jobs have no place, and what all count: the lower, the better."""
        return len(self.failed), float(self.cost.sum())

    def put(self, row: int) -> None:
        """Put a job on nodes: as it was planned, or else where there is room."""
        own = slice(int(self.queue.jobs["part"][row]), int(self.queue.jobs["end"][row]))
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

    def _occupy(self, row: int, found: list[IntArray]) -> None:
        """Take what the runs of a job hold, and what it keeps between them."""
        self.placed[row] = True
        self.where[row] = found
        runs = self._runs(row)
        for nodes, (first, last) in zip(found, runs, strict=True):
            self.free[nodes, :, first:last] -= self.queue.need[row][:, None]
            self.kw[first:last] -= self.queue.jobs["peak_kw"][row]
        for nodes, (_, last), (again, _) in zip(found, runs, runs[1:], strict=False):
            self.free[nodes, :, last:again] -= self.queue.keep[row][:, None]

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
        need, peak_kw = self.queue.need[row], self.queue.jobs["peak_kw"][row]
        found: list[IntArray] = []
        keeps, over = bool(self.queue.keep[row].any()), 0
        for first, last in self._runs(row):
            if keeps and found and first > over:
                kept = self.free[found[0], :, over:first].min(axis=(0, 2))
                if (kept < self.queue.keep[row] - _SPARE).any():
                    return None
            over = last
            least = self.free[:, :, first:last].min(axis=2)
            good = (least >= need - _SPARE).all(axis=1)
            if keeps and found:
                # What it keeps lies where it ran.
                good &= np.isin(np.arange(good.size), found[0])
            fits = np.flatnonzero(good)
            if fits.size < self.wide[row] or self.kw[first:last].min() < peak_kw - _SPARE:
                return None
            tight = np.argsort(least[fits].sum(axis=1), kind="stable")[: self.wide[row]]
            found.append(np.sort(fits[tight]))
        return found

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
        best: tuple[float, Any, IntArray] | None = None
        own = slice(int(job["part"]), int(job["end"]))
        stride = 1 if wide == 1 else max(wide // 2, 1)
        for number in range(min(_TRIES, max((by_room.size - wide) // stride + 1, 1))):
            nodes = by_room[number * stride : number * stride + wide]
            if nodes.size < wide:
                break
            room = Room(self.free[nodes].min(axis=0), self.kw[None].copy())
            board = Board(
                instance=self.on_one,
                delay=self.delay,
                placed=self.placed,
                cost=self.cost,
                room=room,
            )
            board.insert(np.array([row]), tariff)
            if self.placed[row] and (best is None or self.cost[row] < best[0] - _SPARE):
                best = float(self.cost[row]), np.sort(nodes), self.delay[own].copy()
            self.placed[row] = False
        if best is None:
            self.cost[row] = self.queue.jobs["leave"][row]
            return None
        self.cost[row], nodes, self.delay[own] = best
        return [nodes] * len(self._runs(row))

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
        """Return the layout with those that found no place placed after their deadlines."""
        longer, penalty = lengthened(self.instance, np.array(self.failed))
        board = Board.empty(longer)
        board.delay[:], board.placed[:] = self.delay, self.placed
        other = _Layout(board, self.prices)
        waits = longer.queue.jobs["wait"].copy()
        for row in np.flatnonzero(self.placed).tolist():
            other._occupy(row, self.where[row])
        other.queue.jobs["wait"][self.failed] = penalty
        for row in self.failed:
            other.put(row)
        other.queue.jobs["wait"][:] = waits
        if other.failed:
            refuse_late(self.instance, np.array(self.failed), np.array(other.failed))
        return other

    def result(self) -> tuple[Board, Placed]:
        """Return the plan, and the nodes of its runs."""
        none = Prices(rent=self.prices_over(self.instance) * 0, power=self.power_prices() * 0)
        board = rebuilt(self.instance, self.delay, self.placed, none)
        stretch, node, number = [], [], 0
        for row in range(len(self.instance)):
            for nodes in self.where[row]:
                stretch.append(np.full(nodes.size, number))
                node.append(nodes)
                number += 1
        return board, Placed(stretch=np.concatenate(stretch), node=np.concatenate(node))
