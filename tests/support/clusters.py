"""Clusters and jobs for queues, and a queue that is slow and obviously right.

`TickingQueue` goes through time second by second, looks at everything there is at every second,
and works everything out anew. All times are whole seconds. Nothing of it is shared with lowtide.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from fractions import Fraction

import numpy as np
from hypothesis import strategies as st

from lowtide.job import INTERRUPTIBLE
from lowtide.profile import Phase, PowerProfile
from lowtide.simulator.cluster import Cluster
from lowtide.simulator.disciplines import Easy, Feedback, Fifo, Priority, RoundRobin
from lowtide.workload import Workload

ORIGIN = 1_719_792_000.0
NEVER, ANYWHERE, CHECKPOINTS = range(len(INTERRUPTIBLE))


@st.composite
def profiles(draw, *, longest_startup_s=2):
    """Profiles of whole seconds, with checkpoints here and there."""
    seconds = st.integers(1, 5)
    work = [
        Phase(
            name=f"w{number}",
            duration_s=duration_s,
            power_w=draw(st.integers(0, 9)),
            checkpoint=draw(st.booleans()),
        )
        for number, duration_s in enumerate(draw(st.lists(seconds, min_size=1, max_size=4)))
    ]
    startup_s, stop_s = draw(st.integers(0, longest_startup_s)), draw(st.integers(0, 2))
    start = st.integers(1, longest_startup_s).map(
        lambda duration_s: [Phase(name="r", duration_s=duration_s, power_w=8)]
    )
    return PowerProfile(
        startup=[Phase(name="s", duration_s=startup_s, power_w=3)] if startup_s else [],
        restart=draw(st.none() | st.none() | start | st.just([])),
        work=work,
        stop=[Phase(name="e", duration_s=stop_s, power_w=2)] if stop_s else [],
    )


@st.composite
def clusters(draw, *, switched=None, capped=False):
    """Small clusters, most of them too small for their jobs."""
    switched = draw(st.booleans()) if switched is None else switched
    idle_w = draw(st.integers(0, 9))
    boot_s, shutdown_s = draw(st.integers(0, 3)), draw(st.integers(0, 3))
    return Cluster(
        nodes=draw(st.integers(1, 5)),
        cpus_per_node=draw(st.integers(1, 4)),
        gpus_per_node=draw(st.integers(0, 2)),
        memory_bytes_per_node=draw(st.sampled_from([float("inf"), 4.0, 6.0])),
        idle_power_w=idle_w,
        off_power_w=draw(st.integers(0, idle_w)),
        boot_s=boot_s,
        boot_j=boot_s * draw(st.integers(0, 12)),
        shutdown_s=shutdown_s,
        shutdown_j=shutdown_s * draw(st.integers(0, idle_w)),
        off_after_s=draw(st.integers(0, 6)) if switched else None,
        power_cap_w=1e6 if capped else None,
    )


@st.composite
def workloads(draw, cluster, *, turns=False, most=9):
    """Jobs that each fit on a cluster, and when they become ready."""
    count = draw(st.integers(1, most))
    kept = draw(st.lists(profiles(), max_size=2))

    def each(strategy):
        return draw(st.lists(strategy, min_size=count, max_size=count))

    place = each(st.integers(-1, len(kept) - 1))
    work_s = [kept[which].work_s if which >= 0 else draw(st.integers(1, 12)) for which in place]
    nodes = np.array(each(st.integers(1, cluster.nodes)))
    most_bytes = min(int(min(cluster.memory_bytes_per_node, 8)), 8)
    arrival = ORIGIN + np.array(each(st.one_of(st.sampled_from([0, 0, 4]), st.integers(0, 12))))
    jobs = Workload(
        arrival=arrival,
        deadline=arrival + 1e6,
        work_s=work_s,
        profile=place,
        profiles=kept,
        power=np.where(np.array(place) < 0, each(st.integers(0, 9)), 1.0),
        cpus=nodes * each(st.integers(0, cluster.cpus_per_node)),
        gpus=nodes * each(st.integers(0, cluster.gpus_per_node)),
        memory_bytes=nodes * each(st.integers(0, most_bytes)),
        nodes=nodes,
        requested_s=each(st.integers(1, 30)),
        priority=each(st.integers(0, 2)),
        interruptible=each(st.sampled_from([ANYWHERE, CHECKPOINTS] if turns else [NEVER])),
        min_run_s=[
            draw(st.sampled_from([0, 0, 1, 3])) * (turns and length_s >= 3) for length_s in work_s
        ],
        max_starts=each(st.sampled_from([0, 0, 1, 2])) if turns else 0,
    )
    return jobs, jobs.arrival + np.array(each(st.sampled_from([0, 0, 1, 5])))


@st.composite
def queues(draw, *, turns=False, switched=None):
    """A cluster, jobs that fit on it, and when they become ready; some with a power cap."""
    cluster = draw(clusters(switched=switched))
    jobs, ready = draw(workloads(cluster, turns=turns))
    if draw(st.booleans()):
        waking_w = max(cluster.idle_power_w, cluster.boot_power_w)
        on_w = cluster.nodes * cluster.idle_power_w
        if cluster.off_after_s is not None:
            on_w = jobs.nodes * waking_w + (cluster.nodes - jobs.nodes) * cluster.off_power_w
        least_w = float(np.max(jobs.peak_w + on_w))
        spare_w = draw(st.sampled_from([0, 1, 5, 20]))
        cluster = Cluster(
            **{name: getattr(cluster, name) for name in cluster.__slots__ if name != "power_cap_w"},
            power_cap_w=least_w + spare_w,
        )
    return cluster, jobs, ready


in_order = st.sampled_from([Fifo(), Priority()])
in_turns = st.one_of(
    st.builds(RoundRobin, quantum_s=st.integers(3, 6), context_s=st.sampled_from([0, 0, 1])),
    st.builds(
        Feedback,
        quanta_s=st.lists(st.sampled_from([3, 4, 4, 8]), min_size=1, max_size=3),
        context_s=st.sampled_from([0, 0, 1]),
        boost_s=st.one_of(st.none(), st.sampled_from([4, 8]), st.integers(1, 20)),
    ),
)


@dataclass
class Node:
    """A node of the slow queue."""

    state: str = "idle"
    since: int = 0
    ends: int | None = None
    idle_since: int = 0
    on: int = 0


@dataclass
class Run:
    """A start of the slow queue."""

    job: int
    nodes: list[int]
    held: int
    start: int
    latest: int
    begun: int
    turn_end: int | None = None
    until: int | None = None
    returns: bool = False


@dataclass
class TickingQueue:
    """A queue second by second.

    Attributes:
        cluster: The machines.
        jobs: What is to be run.
        ready: When each job enters the queue.
        discipline: Whose turn it is.
    """

    cluster: Cluster
    jobs: Workload
    ready: np.ndarray
    discipline: object
    rows: list[tuple] = field(default_factory=list)
    spans: list[tuple] = field(default_factory=list)
    promises: dict[int, int] = field(default_factory=dict)
    starts_of_first: dict[int, int] = field(default_factory=dict)

    def __post_init__(self):
        cluster, jobs = self.cluster, self.jobs
        self.ready = [int(instant) for instant in self.ready]
        # Nodes are on from the first arrival; boosts are counted from when somebody is ready.
        self.t, self.t0 = int(min(jobs.arrival)), min(self.ready)
        self.nodes = [Node(since=self.t, idle_since=self.t) for _ in range(cluster.nodes)]
        self.running: list[Run] = []
        self.levels: list[list[int]] = [[] for _ in self.quanta]
        self.level = [0] * len(jobs)
        self.done_s = [0] * len(jobs)
        self.starts = [0] * len(jobs)
        self.stopped: set[int] = set()
        self.boosted = None
        self.left = set(range(len(jobs)))
        self.to_come = sorted(self.left, key=lambda job: (self.ready[job], job))

    @property
    def quanta(self):
        if isinstance(self.discipline, RoundRobin):
            return [self.discipline.quantum_s]
        return list(getattr(self.discipline, "quanta_s", [None]))

    def need(self, job):
        nodes = Fraction(float(self.jobs.nodes[job]))
        return tuple(
            Fraction(float(column[job])) / nodes
            for column in (self.jobs.cpus, self.jobs.gpus, self.jobs.memory_bytes)
        )

    def free(self, runs):
        """What is free on each node when only these run."""
        cluster = self.cluster
        whole = (cluster.cpus_per_node, cluster.gpus_per_node, cluster.memory_bytes_per_node)
        free = [list(whole) for _ in self.nodes]
        for run in runs:
            for node in run.nodes:
                free[node] = [a - b for a, b in zip(free[node], self.need(run.job), strict=True)]
        return free

    def fits(self, free, job):
        return all(a >= b for a, b in zip(free, self.need(job), strict=True))

    def base_w(self):
        cluster = self.cluster
        draws = {
            "idle": cluster.idle_power_w,
            "boot": max(cluster.idle_power_w, cluster.boot_power_w),
            "shutdown": cluster.shutdown_power_w,
            "off": cluster.off_power_w,
        }
        return sum(draws[node.state] for node in self.nodes), draws["boot"] - draws["off"]

    def power_left(self, runs):
        cap = self.cluster.power_cap_w
        if cap is None:
            return float("inf")
        return cap - self.base_w()[0] - sum(self.jobs.peak_w[run.job] for run in runs)

    def candidates(self, job):
        """Nodes that have what a job needs now, the best first."""
        free = self.free(self.running)
        order = ["idle", "boot", "off"]
        usable = [n for n, node in enumerate(self.nodes) if node.state in order]
        usable.sort(key=lambda n: (order.index(self.nodes[n].state), n))
        return [n for n in usable if self.fits(free[n], job)]

    def choose(self, job):
        """The nodes that a job would take now, or None."""
        nodes = self.candidates(job)[: int(self.jobs.nodes[job])]
        if len(nodes) < self.jobs.nodes[job]:
            return None
        waking = sum(self.nodes[n].state == "off" for n in nodes) * self.base_w()[1]
        left = self.power_left(self.running) - self.jobs.peak_w[job] - waking
        return nodes if left >= 0 else None

    def start_on(self, nodes):
        woken = self.t + int(self.cluster.boot_s)
        return max(
            [self.t] + [woken if self.nodes[n].state == "off" else self.nodes[n].on for n in nodes]
        )

    def change(self, n, state, lasts=None):
        node = self.nodes[n]
        if self.t > node.since:
            self.spans.append((n, node.since, self.t, node.state))
        node.state, node.since = state, self.t
        node.ends = None if lasts is None else self.t + int(lasts)

    def begin(self, job, nodes):
        start = self.start_on(nodes)
        for n in nodes:
            if self.nodes[n].state == "off":
                self.nodes[n].on = self.t + int(self.cluster.boot_s)
                if self.cluster.boot_s:
                    self.change(n, "boot", self.cluster.boot_s)
                else:
                    self.change(n, "idle")
        if self.starts[job]:
            start += int(self.discipline.context_s)
        self.starts[job] += 1
        latest = start + int(self.jobs.requested_s[job])
        run = Run(job, nodes, self.t, start, latest, self.t)
        self.running.append(run)
        self.stopped.discard(job)
        return run

    def finish(self, run, work_s, lost_s, until):
        run.until = until
        self.rows.append((run.job, run.held, run.start, work_s, lost_s, until, sorted(run.nodes)))

    def run_through(self, job, nodes):
        run = self.begin(job, nodes)
        length_s = int(self.jobs.startup_s[job] + self.jobs.work_s[job])
        self.finish(run, int(self.jobs.work_s[job]), 0, run.start + length_s)

    def give_back(self, run):
        self.running.remove(run)
        for n in run.nodes:
            if not any(n in other.nodes for other in self.running):
                self.nodes[n].idle_since = self.t

    # What the disciplines do with those who wait.

    def serve(self):
        queue = self.levels[0]
        if isinstance(self.discipline, Easy):
            self.serve_easy(queue)
            return
        if isinstance(self.discipline, Priority):
            queue.sort(key=lambda job: (-self.jobs.priority[job], self.ready[job], job))
        while queue:
            nodes = self.choose(queue[0])
            if nodes is None:
                return
            self.run_through(queue.pop(0), nodes)

    def serve_easy(self, queue):
        while queue:
            nodes = self.choose(queue[0])
            if nodes is None:
                break
            self.starts_of_first[queue[0]] = self.t
            self.run_through(queue.pop(0), nodes)
        if not queue:
            return
        first = queue[0]
        at = self.promise(first)
        if at is not None:
            self.promises.setdefault(first, at)
        for job in list(queue[1:]):
            nodes = self.choose(job)
            if nodes is None or at is None:
                continue
            start = self.start_on(nodes)
            latest = start + int(self.jobs.requested_s[job])
            later = [run for run in self.running if run.latest > at]
            spare_w = self.power_left(later) - self.power_of_first(first)
            waking = sum(self.nodes[n].state == "off" for n in nodes) * self.base_w()[1]
            if latest > at or spare_w < waking:
                nodes = self.beside(first, job, later, spare_w)
            if nodes is not None:
                queue.remove(job)
                self.run_through(job, nodes)

    def power_of_first(self, first):
        switched = self.cluster.off_after_s is not None
        waking = self.jobs.nodes[first] * self.base_w()[1] if switched else 0
        return self.jobs.peak_w[first] + waking

    def promise(self, first):
        """When the first in the queue fits, going by what was requested."""
        for at in sorted({self.t, *(run.latest for run in self.running)}):
            later = [run for run in self.running if run.latest > at]
            if at == self.t:
                later = self.running
            fitting = sum(self.fits(free, first) for free in self.free(later))
            enough = self.power_left(later) >= self.power_of_first(first)
            if fitting >= self.jobs.nodes[first] and enough:
                return at
        return None

    def beside(self, first, job, later, spare_w):
        """Nodes for a job that leave enough for the first in the queue."""
        free = self.free(later)
        spare = sum(self.fits(each, first) for each in free) - self.jobs.nodes[first]
        chosen = []
        for n in self.candidates(job):
            without = [a - b for a, b in zip(free[n], self.need(job), strict=True)]
            costs = self.fits(free[n], first) and not self.fits(without, first)
            if len(chosen) < self.jobs.nodes[job] and spare >= costs:
                spare -= costs
                chosen.append(n)
        waking = sum(self.nodes[n].state == "off" for n in chosen) * self.base_w()[1]
        if len(chosen) < self.jobs.nodes[job] or spare_w < self.jobs.peak_w[job] + waking:
            return None
        return chosen

    # Turns.

    def serve_turns(self):
        while True:
            level = next((queue for queue in self.levels if queue), None)
            nodes = self.choose(level[0]) if level else None
            if nodes is not None:
                self.next_turn(self.begin(level.pop(0), nodes))
                continue
            over = [run for run in self.running if run.turn_end == self.t]
            if not over:
                return
            self.end_turn(over[0])

    def lead_s(self, job):
        """How long the start takes that a job is in."""
        place = self.jobs.profile[job]
        if place < 0:
            return 0
        profile = self.jobs.profiles[place]
        again = self.starts[job] > 1 and profile.restart is not None
        phases = profile.restart if again else profile.startup
        return int(sum(phase.duration_s for phase in phases))

    def next_turn(self, run):
        job = run.job
        quantum_s = self.quanta[self.level[job]]
        run.begun = self.t
        from_s = 0 if run.turn_end is None else run.turn_end - run.start
        left_s = int(self.jobs.work_s[job]) - self.done_s[job]
        length_s = self.lead_s(job) + left_s
        if length_s <= from_s + quantum_s:
            run.turn_end = None
            self.finish(run, left_s, 0, run.start + length_s)
        else:
            run.turn_end = run.start + from_s + quantum_s

    def end_turn(self, run):
        job, jobs = run.job, self.jobs
        lifted = self.boosted is not None and run.begun < self.boosted
        self.level[job] = 0 if lifted else min(self.level[job] + 1, len(self.levels) - 1)
        worked_s = self.t - run.start - self.lead_s(job)
        kept_s = worked_s
        if jobs.interruptible[job] == CHECKPOINTS:
            saved = [0]
            if jobs.profile[job] >= 0:
                saved += [int(s) for s in jobs.profiles[jobs.profile[job]].checkpoints_s]
            reached = [s for s in saved if s <= self.done_s[job] + worked_s]
            kept_s = max(max(reached) - self.done_s[job], 0)
        rest_s = int(jobs.work_s[job]) - self.done_s[job] - kept_s
        others = [
            other
            for queue in self.levels[: self.level[job] + 1]
            for other in queue
            if other not in self.stopped
        ]
        may = kept_s > 0 and rest_s > 0 and min(kept_s, rest_s) >= jobs.min_run_s[job]
        if jobs.max_starts[job]:
            may = may and self.starts[job] < jobs.max_starts[job]
        if not (others and may):
            self.next_turn(run)
            return
        stop_s = int(jobs.profiles[jobs.profile[job]].stop_s) if jobs.profile[job] >= 0 else 0
        self.done_s[job] += kept_s
        run.turn_end, run.returns = None, True
        self.finish(run, kept_s, worked_s - kept_s, self.t + stop_s)
        if not stop_s:
            self.give_back(run)
            self.levels[self.level[job]].append(job)
            self.stopped.add(job)

    def boost(self):
        every_s = getattr(self.discipline, "boost_s", None)
        if every_s is None or self.t <= self.t0 or (self.t - self.t0) % every_s:
            return
        self.boosted = self.t
        self.levels[0] = [job for queue in self.levels for job in queue]
        for job in (*self.levels[0], *(run.job for run in self.running if run.returns)):
            self.level[job] = 0
        for number in range(1, len(self.levels)):
            self.levels[number] = []

    # Time.

    def instant(self):
        self.stopped.clear()
        self.boost()
        while self.to_come and self.ready[self.to_come[0]] == self.t:
            self.levels[0].append(self.to_come.pop(0))
        for run in sorted(self.running, key=lambda run: (self.ready[run.job], run.job)):
            if run.until == self.t:
                self.give_back(run)
                if run.returns:
                    self.levels[self.level[run.job]].append(run.job)
                else:
                    self.left.discard(run.job)
        for n, node in enumerate(self.nodes):
            if node.ends == self.t:
                self.change(n, "idle" if node.state == "boot" else "off")
        while True:
            if isinstance(self.discipline, RoundRobin | Feedback):
                self.serve_turns()
            else:
                self.serve()
            if not self.switch_off():
                return

    def switch_off(self):
        if self.cluster.off_after_s is None:
            return False
        any_did = False
        for n, node in enumerate(self.nodes):
            used = any(n in run.nodes for run in self.running)
            if node.state != "idle" or used:
                continue
            if self.t - node.idle_since >= self.cluster.off_after_s:
                any_did = True
                if self.cluster.shutdown_s:
                    self.change(n, "shutdown", self.cluster.shutdown_s)
                else:
                    self.change(n, "off")
        return any_did

    def run(self, beyond_s=0):
        """Go through time until all jobs are done, and so much longer."""
        end = None
        while True:
            self.instant()
            if end is None and not self.left:
                end = self.t
            if end is not None and self.t == end + beyond_s:
                break
            self.t += 1
            assert self.t < self.t0 + 10_000, "the slow queue came to a stand"
        for n in range(len(self.nodes)):
            self.change(n, "off")
        self.rows.sort(key=lambda row: (row[0], row[2]))
        self.spans.sort()
        return self


def most_at_once(begin, end, amount):
    """The most that spans add up to at any instant; what ends makes room for what begins."""
    edges = np.concatenate((end, begin))
    changes = np.concatenate((-amount, amount))
    order = np.lexsort((changes > 0, edges))
    return np.cumsum(changes[order]).max(initial=0.0)
