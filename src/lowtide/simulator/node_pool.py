"""Nodes as a queue fills them: what is free on each, what stopped jobs keep, which are on.

What jobs need of CPUs, GPUs and memory is counted in whole small units, node by node; where no two
jobs can share a node, and none is told from another, nodes are counted and no more.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from lowtide.errors import InvalidSchedule
from lowtide.job import TIME_TOLERANCE_S
from lowtide.signal import FloatArray
from lowtide.simulator.cluster import Cluster
from lowtide.simulator.queueing import kept_of, needs_of
from lowtide.workload import IntArray, Workload

# So much less than nothing is free on a node that has broken down.
AWAY = 2**60
# Nodes that are counted have no numbers.
ANY: IntArray = np.empty(0, dtype=np.int64)


class NodePool:
    """The nodes of a cluster at an instant, and what jobs hold of them.

    Attributes:
        now: The instant, as late as whoever moves it says.
        cluster: The machines.
        pooled: Whether one node is as good as another, so that they are only counted.
        switches: Whether somebody switches nodes off and on.
        wide: On how many nodes each job runs.
        need: What each needs of each of its nodes.
        kept: What of that it goes on holding while it is stopped.
        where: On which nodes stopped jobs keep something.
        left: How many nodes are free, where they are counted.
        free: What is free on each node, else.
        holders: How many jobs hold something of each.
        off_at: When each was switched off; infinite for those that were not.
        boots_until: Until when each that was switched on boots.
        switched: Nodes that were off: which, from when, and until when.
        left_w: Watts left under the cap.
        peak_w: What each job draws at most.
        changes: How often something was taken or given back.
        broken: Nodes that have broken down, and until when they are repaired.
    """

    def __init__(
        self, jobs: Workload, cluster: Cluster, now: float, *, switches_nodes: bool
    ) -> None:
        self.cluster, self.now, self.changes = cluster, now, 0
        self.wide = jobs.nodes.astype(np.int64).tolist()
        capacity, self.need = needs_of(jobs, np.arange(len(jobs)), cluster)
        self._asks = self.need.tolist()
        self._most: list[int] | None = None
        alone = bool(np.any(2 * self.need.min(axis=0) > capacity))
        by_node = switches_nodes or cluster.off_after_s is not None or bool(cluster.keeps)
        by_node |= cluster.failures is not None
        self.pooled, self.switches = alone and not by_node, switches_nodes
        self.kept = kept_of(self.need, cluster)
        self.where: dict[int, IntArray] = {}
        self.left = cluster.nodes
        self.free = np.tile(capacity, (1 if self.pooled else cluster.nodes, 1))
        self.holders = np.zeros(self.free.shape[0], dtype=np.int64)
        self._idle_since = np.full(self.free.shape[0], self.now)
        self.off_at = np.full(self.free.shape[0], np.inf)
        self.boots_until = np.full(self.free.shape[0], -np.inf)
        self.switched: list[tuple[int, float, float]] = []
        cap_w = math.inf if cluster.power_cap_w is None else cluster.power_cap_w
        self.left_w = cap_w - cluster.nodes * cluster.idle_power_w + TIME_TOLERANCE_S
        self.peak_w = jobs.peak_w.tolist()
        self.broken: dict[int, float] = {}

    def break_down(self, node: int, until: float) -> None:
        """Let a node be away that nobody runs on."""
        self.changes, self._most = self.changes + 1, None
        self.broken[node] = until
        self.free[node] -= AWAY

    def repair(self, node: int) -> None:
        """Have a node back."""
        self.changes, self._most = self.changes + 1, None
        del self.broken[node]
        self.free[node] += AWAY
        self._idle_since[node] = self.now

    def numbered(self, node: int) -> int:
        """Return the number of a node that may be switched, and refuse any other."""
        if not self.switches or not 0 <= node < self.cluster.nodes:
            raise InvalidSchedule(
                f"there is no node {node} to be switched: nodes are numbered from 0 to "
                f"{self.cluster.nodes - 1}, for a scheduler with switches_nodes = True"
            )
        return node

    def wake_up(self, nodes: IntArray) -> None:
        """Begin to boot nodes that are off, and note for how long they were."""
        ready = self.ready_at(nodes)
        off_at = np.minimum(self.off_at[nodes], self._goes_off(nodes))
        for node, at, until in zip(nodes.tolist(), off_at.tolist(), ready.tolist(), strict=True):
            if until > self.now and self.boots_until[node] < until:
                self.switched.append((node, at, until - self.cluster.boot_s))
                self.off_at[node], self.boots_until[node] = np.inf, until
                self._idle_since[node] = until

    def find(self, job: int, gone: int = 0) -> IntArray | None:
        """Return nodes for a job, those that are on first; None where there are too few.

        Args:
            gone: How many nodes, the last ones, are not to be had.
        """
        if self.peak_w[job] > self.left_w:
            return None
        wide = self.wide[job]
        if self.pooled:
            return ANY if wide <= self.left - gone else None
        if job in self.where:
            own = self.where[job]
            room = (self.free[own] >= self.need[job] - self.kept[job]).all()
            return own if room and own[-1] < self.cluster.nodes - gone else None
        if self._most is None:
            self._most = self.free.max(axis=0).tolist()
        # Most that wait find no room on any node: that is soon said.
        cpus, gpus, memory = self._asks[job]
        if cpus > self._most[0] or gpus > self._most[1] or memory > self._most[2]:
            return None
        there = self.free[: self.cluster.nodes - gone]
        fits = np.flatnonzero((there >= self.need[job]).all(axis=1))
        if fits.size < wide:
            return None
        if self.cluster.off_after_s is not None or self.switches:
            fits = fits[np.argsort(self.ready_at(fits), kind="stable")]
        return np.sort(fits[:wide])

    def needs(self, job: int) -> IntArray:
        """Return what a job needs on each of its nodes, or how many where they are not shared."""
        return np.array([self.wide[job]]) if self.pooled else self.need[job]

    def ready_at(self, nodes: IntArray) -> FloatArray:
        """Return when nodes would be on: now, or once they have gone off and been woken."""
        cluster = self.cluster
        if cluster.off_after_s is None and not self.switches:
            return np.full(nodes.size, self.now)
        goes = np.minimum(self._goes_off(nodes), self.off_at[nodes])
        on = (self.holders[nodes] > 0) | ((self.now <= goes) & np.isinf(self.off_at[nodes]))
        waked = np.maximum(goes + cluster.shutdown_s, self.now) + cluster.boot_s
        ready: FloatArray = np.where(on, np.maximum(self.now, self.boots_until[nodes]), waked)
        return ready

    def _goes_off(self, nodes: IntArray) -> FloatArray:
        """Return when nodes go off by themselves if nobody uses them: never, or after a while."""
        after_s = math.inf if self.cluster.off_after_s is None else self.cluster.off_after_s
        goes: FloatArray = self._idle_since[nodes] + after_s
        return goes

    def take(self, job: int, nodes: IntArray) -> float:
        """Let a job have nodes; return when they are on."""
        self.changes += 1
        self.left_w -= self.peak_w[job]
        if self.pooled:
            self.left -= self.wide[job]
            return self.now
        begin = float(self.ready_at(nodes).max())
        if self.switches:
            self.wake_up(nodes)
        again = self.where.pop(job, None) is not None
        self.free[nodes] -= self.need[job] - self.kept[job] * again
        self._most = None
        self.holders[nodes] += not again
        return begin

    def give(self, job: int, nodes: IntArray | None, *, over: bool = True) -> None:
        """Take back what a run held; of one that goes on later not what it keeps."""
        self.changes += 1
        self.left_w += self.peak_w[job]
        if nodes is None:
            self.left += self.wide[job]
            return
        self._most = None
        if not over and self.kept[job].any():
            self.where[job] = nodes
            self.free[nodes] += self.need[job] - self.kept[job]
            return
        self.free[nodes] += self.need[job]
        self.holders[nodes] -= 1
        self._idle_since[nodes] = self.now

    def is_free(self, job: int, nodes: IntArray) -> bool:
        """Return whether a job finds room on certain nodes, and watts under the cap."""
        more = self.need[job] - self.kept[job] * (job in self.where)
        room = bool((self.free[nodes] >= more).all())
        return room and bool(self.peak_w[job] <= self.left_w)

    def beside(
        self, first: int, job: int, free: IntArray, gone: tuple[int, int] = (0, 0)
    ) -> Sequence[int] | None:
        """Return nodes for a job that leave enough for another one; None where none do.

        Args:
            first: Who is to find room later.
            free: What will be free then, were it not for the job.
            gone: How many nodes, the last ones, the first and the job are not to have.
        """
        if self.pooled:
            return () if free[0, 0] - gone[0] - self.wide[first] >= self.wide[job] else None
        held = self.where.get(first)
        wanted = self.need[first] - (0 if held is None else self.kept[first])
        holds_first = (free >= wanted).all(axis=1)
        holds_both = (free - self.need[job] >= wanted).all(axis=1)
        if gone[0]:
            holds_first[-gone[0] :] = holds_both[-gone[0] :] = False
        if held is not None:
            # It goes on where it was, and nowhere else.
            elsewhere = ~np.isin(np.arange(free.shape[0]), held)
            holds_first[elsewhere] = holds_both[elsewhere] = False
        spare = int(np.count_nonzero(holds_first)) - self.wide[first]
        chosen: list[int] = []
        if job in self.where:
            own = self.where[job]
            costs = int(np.count_nonzero(holds_first[own] & ~holds_both[own]))
            return own.tolist() if spare >= costs else None
        there = self.free[: self.cluster.nodes - gone[1]]
        fits = np.flatnonzero((there >= self.need[job]).all(axis=1))
        for node in fits[np.argsort(self.ready_at(fits), kind="stable")].tolist():
            costs = int(holds_first[node] and not holds_both[node])
            if len(chosen) < self.wide[job] and spare >= costs:
                spare -= costs
                chosen.append(node)
        return chosen if len(chosen) == self.wide[job] else None
