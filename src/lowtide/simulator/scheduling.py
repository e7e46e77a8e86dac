"""Schedulers that see the queue: asked at every event, they start jobs, stop them, and go on.

A scheduler is any object with `on(event, view)`. All that happens at an instant has happened before
it is asked, once for each event. It sees who waits and who runs, what is free now and, going by
what users requested, later, and the signal as it is foreseen; how long a job really runs it does
not see. What it did is then laid on the nodes by `carrying`, as any plan is.
"""

from __future__ import annotations

import heapq
import math
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Protocol, runtime_checkable

import numpy as np

from lowtide.errors import InvalidSchedule
from lowtide.forecast import ForecastModel
from lowtide.job import INTERRUPTIBLE, TIME_TOLERANCE_S
from lowtide.precedence import links_of
from lowtide.signal import Signal
from lowtide.simulator.cluster import Cluster
from lowtide.simulator.events import Happening, Pause, QueueEvent, Running
from lowtide.simulator.node_pool import AWAY, NodePool
from lowtide.simulator.outages import Gone
from lowtide.units import format_time
from lowtide.workload import IntArray, Workload

_NEVER, _ANYWHERE, _CHECKPOINTS = range(len(INTERRUPTIBLE))
_KINDS = ("end", "stopped", "stopped", "back", "down", "arrival", "step", "wake", "on")
# A job that a break-down hits has worked for so long at least.
_WORKED_S = 1.0
# Whoever loses its nodes so often never gets through.
_MOST_LOSSES = 1000


@runtime_checkable
class Scheduler(Protocol):
    """Whoever decides, at every event, who runs.

    One that switches nodes off and on itself says so by `switches_nodes = True`.
    """

    def on(self, event: QueueEvent, view: QueueView) -> None:
        """Start, stop and resume jobs, by the view's methods.

        Args:
            event: What has happened.
            view: The queue and the machines as they are now.
        """
        ...


class QueueView:
    """What a scheduler sees, and what it can do.

    Attributes:
        now: The instant.
        jobs: All jobs, in columns; of those that have not arrived nothing is to be looked at.
        cluster: The machines.
    """

    def __init__(
        self,
        jobs: Workload,
        cluster: Cluster,
        signal: Signal | None,
        forecasts: ForecastModel | None,
        *,
        switches_nodes: bool = False,
    ) -> None:
        self.jobs, self.cluster, self.now = jobs, cluster, float(jobs.arrival.min())
        self._signal, self._forecasts = signal, forecasts
        self._foreseen: tuple[float, Signal] | None = None
        self._queue: OrderedDict[int, None] = OrderedDict()
        self._running: dict[int, Running] = {}
        self._pool = NodePool(jobs, cluster, self.now, switches_nodes=switches_nodes)
        self._startup_s, self._restart_s = jobs.startup_s.tolist(), jobs.restart_s.tolist()
        self._work_s, self._requested_s = jobs.work_s.tolist(), jobs.requested_s.tolist()
        self._stop_s = np.array([*(each.stop_s for each in jobs.profiles), 0.0])[jobs.profile]
        self._done_s = [0.0] * len(jobs)
        self._starts = [0] * len(jobs)
        self.over = 0
        self.runs: list[tuple[int, float, float, float, IntArray | None]] = []
        self._events: list[tuple[float, int, int, int, Any]] = []
        self._number = 0
        self._woken: set[float] = set()
        self._wishes: dict[int, list[Pause]] = {}
        self._resting: set[int] = set()
        # Who waits for others, and until when at least; who has come meanwhile; whom each keeps.
        links = links_of(jobs)
        self._waits_for = np.bincount(links.after, minlength=len(jobs)).tolist()
        self._soonest = [-math.inf] * len(jobs)
        self._came: set[int] = set()
        self._followers: dict[int, list[tuple[int, float]]] = {}
        for before, after, gap_s in zip(links.before, links.after, links.gap_s, strict=True):
            self._followers.setdefault(int(before), []).append((int(after), float(gap_s)))
        self.joined: dict[int, float] = {}
        self._foreseen_room: tuple[tuple[float, int], IntArray, float] | None = None
        away = cluster.gone()
        self._gone = Gone(away) if away else None
        sleeps = switches_nodes or cluster.off_after_s is not None
        self._wakes_s = cluster.shutdown_s + cluster.boot_s if sleeps else 0.0
        for each in away:
            self._push(each.end, Happening.BACK, -1)
        # Until when jobs that are stopped hold their nodes; how often each lost them.
        self._stopping: dict[int, tuple[float, Running]] = {}
        self._losses = [0] * len(jobs)
        # Nodes that broke down, from when and until when; when each would next, and for how long.
        self.down: list[tuple[int, float, float]] = []
        self._repair_s = 0.0
        self._breaks: list[Iterator[tuple[float, float]]] = []
        if cluster.failures is not None:
            self._repair_s = float(cluster.failures.repair_s)  # type: ignore[arg-type]
            nodes = range(cluster.nodes)
            self._breaks = [cluster.failures.of_node(node, self.now) for node in nodes]
            for node in nodes:
                self._break_next(node)

    @property
    def queue(self) -> tuple[int, ...]:
        """Jobs that wait, in the order in which they joined: rows of the workload."""
        return tuple(self._queue)

    @property
    def first(self) -> int | None:
        """The first of them; None where nobody waits."""
        return next(iter(self._queue), None)

    @property
    def running(self) -> Mapping[int, Running]:
        """Jobs that run, by their rows."""
        return MappingProxyType(self._running)

    @property
    def signal(self) -> Signal:
        """What a kWh counts, as it is foreseen now."""
        if self._signal is None:
            raise InvalidSchedule("who serves a queue alone is told of no signal: be the policy")
        if self._forecasts is None:
            return self._signal
        if self._foreseen is None or self._foreseen[0] != self.now:
            reach_s = self._signal.end - self.now
            made = self._forecasts.forecast(self._signal, self.now, reach_s)
            self._foreseen = (self.now, made.signal)
        return self._foreseen[1]

    @property
    def free_nodes(self) -> int:
        """How many nodes nobody runs on."""
        pool, gone = self._pool, self.away_until(self.now)
        if pool.pooled:
            return pool.left - gone
        there = pool.holders[: self.cluster.nodes - gone] == 0
        return int(np.count_nonzero(there)) - sum(
            node < self.cluster.nodes - gone for node in pool.broken
        )

    def done_s(self, job: int) -> float:
        """Return how much of its work a job has done and kept before it was last started."""
        return self._done_s[job]

    def starts(self, job: int) -> int:
        """Return how often a job was started."""
        return self._starts[job]

    def lasts_s(self, job: int) -> float:
        """Return how long a job that waits would run by what was requested, its start included."""
        again = self._starts[job] > 0
        lead_s = self._restart_s[job] if again else self._startup_s[job]
        run_s = self._startup_s[job] + self._work_s[job]
        left_s = self._work_s[job] - self._done_s[job]
        return float(self._requested_s[job] - run_s + lead_s + left_s)

    def _holds_s(self, job: int) -> float:
        """Return how long a job that starts would hold its nodes at most: they may have to wake."""
        return self.lasts_s(job) + self._wakes_s

    def fits(self, job: int) -> bool:
        """Return whether a job would find room now."""
        return self._find(job) is not None

    def away_until(self, when: float) -> int:
        """Return how many nodes are away at most from now to an instant, as is known in advance."""
        return 0 if self._gone is None else self._gone.most(self.now, when)

    @property
    def broken_nodes(self) -> Mapping[int, float]:
        """Nodes that have broken down, by number, and until when they are repaired."""
        return MappingProxyType(self._pool.broken)

    @property
    def stopping(self) -> Mapping[int, float]:
        """Jobs that are being stopped, and until when."""
        return {job: until for job, (until, _) in self._stopping.items()}

    def _find(self, job: int) -> IntArray | None:
        """Return nodes for a job that are there for as long as it runs by what was requested."""
        if self._gone is None:
            return self._pool.find(job)
        return self._pool.find(job, self._short(job))

    def _short(self, job: int) -> int:
        """Return how many nodes a job that starts now is not to have, as they go away."""
        end = self.now + self._holds_s(job)
        if not self._pool.pooled or self._gone is None:
            return self.away_until(end)
        # Of nodes that are counted only those are short that nobody gives back by then.
        wide, running = self._pool.wide, self._running.values()
        return max(
            count - sum(int(wide[run.job]) for run in running if run.latest <= at)
            for at, count in self._gone.changes(self.now, end)
        )

    def wake(self, at: float) -> None:
        """Ask to be asked again at an instant.

        Args:
            at: When; an instant that has passed is refused.
        """
        if not self.now <= at < math.inf:
            raise InvalidSchedule(
                f"at {format_time(self.now)} nobody can be woken at {at!r}: say a later instant"
            )
        # Whoever asks at every event for the same instant is woken there once.
        if at not in self._woken:
            self._woken.add(at)
            self._push(at, Happening.WAKE, -1)

    def start(self, job: int, nodes: Sequence[int] | None = None) -> bool:
        """Start a job that waits, or let it go on; return whether there was room.

        Args:
            job: Which, a row of the workload.
            nodes: On which nodes; by default the first that have room, those that are on first.
        """
        if job not in self._queue:
            raise self._wrong(job, "start", "it does not wait")
        found = self._find(job) if nodes is None else self._given(job, nodes)
        if found is None:
            return False
        del self._queue[job]
        begin = self._pool.take(job, found)
        again = self._starts[job] > 0
        lead_s = self._restart_s[job] if again else self._startup_s[job]
        rest_s = self._work_s[job] - self._done_s[job]
        latest = begin + (self.lasts_s(job) if again else self._requested_s[job])
        run = Running(job, begin, latest, None if self._pool.pooled else found, lead_s)
        self._starts[job] += 1
        self._running[job] = run
        pause = self._next_pause(job, begin + lead_s, rest_s)
        if pause is None:
            self._push(begin + lead_s + rest_s, Happening.END, job, run)
        else:
            run.latest = pause + float(self._stop_s[job])
            self._push(pause, Happening.STOP, job, run)
        return True

    def stop(self, job: int) -> None:
        """Stop a job that runs. It keeps what its rules let it keep, and waits again.

        Args:
            job: Which, a row of the workload.
        """
        self._stop(job)
        if not self._stop_s[job]:
            self._join(job)

    def is_on(self, node: int) -> bool:
        """Return whether a node is on now."""
        return float(self._pool.ready_at(np.array([self._pool.numbered(node)]))[0]) <= self.now

    def power_off(self, node: int) -> None:
        """Switch a node off that is on and that nobody runs on, or keeps anything on.

        Args:
            node: Which, from 0 on.
        """
        if self._pool.holders[self._pool.numbered(node)] or not self.is_on(node):
            raise InvalidSchedule(
                f"node {node} cannot be switched off at {format_time(self.now)}: it is used, or "
                "not on; ask view.is_on(node) and view.idle_nodes first"
            )
        self._pool.off_at[node] = self.now

    def power_on(self, node: int) -> None:
        """Switch a node on that is off. It is on once it has shut down and booted.

        Args:
            node: Which, from 0 on.
        """
        number = np.array([self._pool.numbered(node)])
        ready = float(self._pool.ready_at(number)[0])
        if ready > self.now and self._pool.boots_until[node] < ready:
            self._pool.wake_up(number)
            self._push(ready, Happening.ON, node)

    @property
    def idle_nodes(self) -> tuple[int, ...]:
        """Nodes that nobody runs on, or keeps anything on, by number; on or off."""
        self._pool.numbered(0)
        return tuple(np.flatnonzero(self._pool.holders == 0).tolist())

    def may_stop(self, job: int) -> bool:
        """Return whether a job that runs may be stopped now, by its own rules."""
        return self._keeps_s(job) is not None

    def free_at(self, when: float) -> IntArray:
        """Return what will be free by an instant, if everybody runs for as long as requested.

        Returns:
            Of each node what is left of CPUs, GPUs and memory, in whole small units as `needs`
            has them; a single number of nodes where jobs never share one.
        """
        pool = self._pool
        if pool.pooled:
            freed = sum(pool.wide[run.job] for run in self._running.values() if run.latest <= when)
            return np.array([[pool.left + freed]])
        free = pool.free.copy()
        for run in self._running.values():
            if run.latest <= when:
                free[run.nodes] += pool.need[run.job]
        return free

    def needs(self, job: int) -> IntArray:
        """Return what a job needs on each of its nodes, or how many where they are not shared."""
        return self._pool.needs(job)

    def promise(self, job: int) -> float | None:
        """Return from when on there is room for a job if everybody runs for as long as requested.

        Args:
            job: Which; None is returned where only power keeps it waiting.
        """
        pool = self._pool
        wide, enough = 1 if pool.pooled else pool.wide[job], self.needs(job)
        own = pool.where.get(job)
        if own is not None:
            enough = enough - pool.kept[job]
        free, left_w = self.free_at(-math.inf), pool.left_w
        ahead = sorted(self._running.values(), key=lambda run: run.latest)
        back = [] if self._gone is None else [at for at in self._gone.ends if at > self.now]
        back = sorted([*back, *pool.broken.values()])
        at, place = self.now, 0
        while True:
            gone = 0 if self._gone is None else self._gone.most(at, at + self._holds_s(job))
            there = free if own is None else free[own]
            if pool.pooled:
                there = there - gone
            elif gone:
                there = there[: self.cluster.nodes - gone] if own is None else there
            fits = np.count_nonzero((there >= enough).all(axis=1)) >= wide
            if fits and left_w >= pool.peak_w[job]:
                return at
            if place == len(ahead) and not back:
                return None
            if back and (place == len(ahead) or back[0] <= ahead[place].latest):
                at = max(back.pop(0), at)
                for node, until in pool.broken.items():
                    if until == at:
                        free[node] += AWAY
                continue
            at = max(ahead[place].latest, self.now)
            while place < len(ahead) and ahead[place].latest <= at:
                run = ahead[place]
                free[slice(None) if run.nodes is None else run.nodes] += self.needs(run.job)
                left_w += pool.peak_w[run.job]
                place += 1

    def beside(self, first: int, job: int, at: float) -> Sequence[int] | None:
        """Return nodes for a job that leave enough for another one later; None where none do.

        Args:
            first: Who was promised room.
            job: Who would run now, for longer.
            at: When the other one was.
        """
        pool = self._pool
        if not self.fits(job):
            return None
        free, spare_w = self._by(at)
        if spare_w - pool.peak_w[first] < pool.peak_w[job]:
            return None
        if self._gone is None:
            return pool.beside(first, job, free)
        later = self._gone.most(at, at + self._holds_s(first))
        return pool.beside(first, job, free, (later, self._short(job)))

    # What the loop below does.

    def _by(self, when: float) -> tuple[IntArray, float]:
        """Return what will be free by an instant, and watts under the cap, worked out once."""
        key = (when, self._pool.changes)
        if self._foreseen_room is None or self._foreseen_room[0] != key:
            over = (run.job for run in self._running.values() if run.latest <= when)
            left_w = self._pool.left_w + sum(self._pool.peak_w[job] for job in over)
            self._foreseen_room = (key, self.free_at(when), left_w)
        return self._foreseen_room[1:]

    def _push(self, when: float, code: int, job: int, run: Running | None = None) -> None:
        self._number += 1
        heapq.heappush(self._events, (when, code, self._number, job, run))

    def _wrong(self, job: int, what: str, why: str) -> InvalidSchedule:
        name = self.jobs.id[job] if 0 <= job < len(self.jobs) else job
        return InvalidSchedule(
            f"job {name} (row {job + 1}) cannot {what} at {format_time(self.now)}: {why}"
        )

    def _given(self, job: int, nodes: Sequence[int]) -> IntArray | None:
        chosen = np.unique(np.asarray(nodes, dtype=np.int64))
        pool = self._pool
        if pool.pooled:
            return self._find(job)
        if job in pool.where and not np.array_equal(chosen, pool.where[job]):
            raise self._wrong(job, "start", "what it keeps lies on the nodes that it ran on")
        if chosen.size != pool.wide[job] or chosen[0] < 0 or chosen[-1] >= self.cluster.nodes:
            raise self._wrong(job, "start", f"it needs {pool.wide[job]} different nodes")
        if self._gone is not None and chosen[-1] >= self.cluster.nodes - self._short(job):
            return None
        return chosen if pool.is_free(job, chosen) else None

    def _keeps_s(self, job: int) -> float | None:
        """Return how much of its present run a job would keep; None where it may not be stopped."""
        run, jobs = self._running.get(job), self.jobs
        if run is None or jobs.interruptible[job] == _NEVER:
            return None
        worked_s = self.now - run.start - run.lead_s
        kept_s = worked_s
        if jobs.interruptible[job] == _CHECKPOINTS:
            points = (
                jobs.profiles[jobs.profile[job]].checkpoints_s if jobs.profile[job] >= 0 else ()
            )
            reached_s = self._done_s[job] + worked_s + TIME_TOLERANCE_S
            kept_s = max((each for each in points if each <= reached_s), default=0.0)
            kept_s -= self._done_s[job]
        # A start that keeps nothing would be in vain, and so would be the one after it.
        least_s = max(float(jobs.min_run_s[job]), 2 * TIME_TOLERANCE_S) - TIME_TOLERANCE_S
        rest_s = self._work_s[job] - self._done_s[job] - kept_s
        most = int(jobs.max_starts[job])
        too_often = most and self._starts[job] >= most
        return None if too_often or min(kept_s, rest_s) < least_s else kept_s

    def _stop(self, job: int) -> None:
        if job not in self._running:
            raise self._wrong(job, "be stopped", "it does not run")
        kept_s = self._keeps_s(job)
        if kept_s is None:
            raise self._wrong(
                job,
                "be stopped",
                "its rules do not let it (interruptible, max_starts, min_run_s), or it would keep "
                "nothing: ask view.may_stop(job) first",
            )
        worked_s = self.now - self._running[job].start - self._running[job].lead_s
        self._halt(job, kept_s, max(worked_s - kept_s, 0.0))

    def _halt(self, job: int, kept_s: float, lost_s: float) -> None:
        """Let a run be over, and its nodes be given back once it has stopped."""
        run = self._running.pop(job)
        self.runs.append((job, run.start, kept_s, lost_s, run.nodes))
        self._done_s[job] += kept_s
        if self._stop_s[job]:
            until = self.now + float(self._stop_s[job])
            self._stopping[job] = (until, run)
            self._push(until, Happening.GIVEN, job, run)
        else:
            self._pool.give(job, run.nodes, over=False)

    def _next_pause(self, job: int, work_from: float, rest_s: float) -> float | None:
        """Return when a job is to be stopped that wishes to wait meanwhile; None for never.

        It goes on where its next start has come by then, or would come too late.
        """
        wishes = self._wishes.get(job)
        while wishes:
            wish = wishes[0]
            does_s = wish.upto_s - self._done_s[job]
            pause = work_from + (does_s + wish.lost_s)
            left_s = self._restart_s[job] + rest_s - does_s
            in_time = wish.until + left_s <= self.jobs.deadline[job] + TIME_TOLERANCE_S
            after = pause + float(self._stop_s[job])
            runs = does_s > -TIME_TOLERANCE_S and does_s + wish.lost_s > 0
            if runs and in_time and wish.until >= after - TIME_TOLERANCE_S:
                return pause
            wishes.pop(0)
        return None

    def _join(self, job: int) -> None:
        """Let a job wait. Others may wait for what it keeps, so that it has its turn first."""
        self._queue[job] = None
        if job in self._pool.where:
            self._queue.move_to_end(job, last=False)

    def _pause(self, job: int) -> None:
        """Stop a job for a while, as its policy wished."""
        wish = self._wishes[job].pop(0)
        self._halt(job, wish.upto_s - self._done_s[job], wish.lost_s)
        self._resting.add(job)
        self._push(max(wish.until, self.now + float(self._stop_s[job])), Happening.READY, job)

    def _break_next(self, node: int) -> None:
        """Let a node break down when it was drawn to, next."""
        broke = self.now
        while broke <= self.now:
            broke, _ = next(self._breaks[node])
        self._push(broke, Happening.DOWN, node)

    def _break_down(self, node: int) -> QueueEvent | None:
        """Let a node break down; None where it does later, as a job on it starts or is stopped."""
        here = [
            run
            for run in self._running.values()
            if node in (run.nodes if run.nodes is not None else ())
        ]
        later = [run.start + run.lead_s + _WORKED_S for run in here]
        later += [
            at for at, run in self._stopping.values() if run.nodes is not None and node in run.nodes
        ]
        if later and max(later) > self.now:
            self._push(max(later), Happening.DOWN, node)
            return None
        for run in here:
            self._lose(run)
        until = self.now + self._repair_s
        self.down.append((node, self.now, until))
        self._pool.break_down(node, until)
        self._push(until, Happening.BACK, node)
        return QueueEvent("down", self.now, node)

    def _lose(self, run: Running) -> None:
        """Have a job lose what it did since its last checkpoint, and wait before all others."""
        job, jobs = run.job, self.jobs
        worked_s, kept_s = self.now - run.start - run.lead_s, 0.0
        if jobs.interruptible[job] == _CHECKPOINTS and jobs.profile[job] >= 0:
            reached_s = self._done_s[job] + worked_s + TIME_TOLERANCE_S
            points = jobs.profiles[jobs.profile[job]].checkpoints_s
            kept_s = max((each for each in points if each <= reached_s), default=0.0)
            kept_s = max(kept_s - self._done_s[job], 0.0)
        self._losses[job] += 1
        if self._losses[job] > _MOST_LOSSES:
            raise self._wrong(
                job,
                "go on",
                f"it has lost its nodes {_MOST_LOSSES} times: nodes break down more often than it "
                "is done or reaches a checkpoint",
            )
        del self._running[job]
        self.runs.append((job, run.start, kept_s, worked_s - kept_s, run.nodes))
        self._done_s[job] += kept_s
        self._pool.give(job, run.nodes)
        self._wishes.pop(job, None)
        self._queue[job] = None
        self._queue.move_to_end(job, last=False)

    def happen(self, code: int, job: int, run: Running | None) -> QueueEvent | None:
        """Let something happen; return what is to be told of it, None for nothing."""
        if code in (Happening.END, Happening.STOP):
            if self._running.get(job) is not run or run is None:
                return None
            if code == Happening.STOP:
                self._pause(job)
                return None if self._stop_s[job] else QueueEvent("stopped", self.now, job)
            del self._running[job]
            rest_s = self._work_s[job] - self._done_s[job]
            self.runs.append((job, run.start, rest_s, 0.0, run.nodes))
            self._pool.give(job, run.nodes)
            self.over += 1
            for other, gap_s in self._followers.get(job, ()):
                self._waits_for[other] -= 1
                self._soonest[other] = max(self._soonest[other], self.now + gap_s)
                if not self._waits_for[other] and other in self._came:
                    self._push(self._soonest[other], Happening.READY, other)
        elif code == Happening.GIVEN and run is not None:
            self._stopping.pop(job, None)
            self._pool.give(job, run.nodes, over=False)
            # One that its policy lets wait joins the queue later.
            if job not in self._resting:
                self._join(job)
        elif code == Happening.DOWN:
            return self._break_down(job)
        elif code == Happening.BACK and job in self._pool.broken:
            self._pool.repair(job)
            self._break_next(job)
        elif code == Happening.READY:
            if self._waits_for[job] or self._soonest[job] > self.now:
                self._came.add(job)
                if not self._waits_for[job]:
                    self._push(self._soonest[job], Happening.READY, job)
                return None
            self._resting.discard(job)
            self._join(job)
            self.joined.setdefault(job, self.now)
        return QueueEvent(_KINDS[code], self.now, job)
