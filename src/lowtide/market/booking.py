"""Room booked in advance: each job, as it arrives, takes the best that those before it left.

Nothing that is booked is moved, so a start that was booked is one at which the nodes are free: what
a policy comes to that looks at the machines, but at no job before its turn.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import ClassVar

import numpy as np

from lowtide.accounting import Stretches, tally
from lowtide.errors import InvalidInput
from lowtide.job import TIME_TOLERANCE_S, Job
from lowtide.market.instance import Instance, make_instance
from lowtide.market.lateness import place_late
from lowtide.market.placing import Board
from lowtide.market.prices import Prices
from lowtide.policies.exact import Exact
from lowtide.policies.policy import Decision, Policy, decide_many, make_policy, stops_jobs
from lowtide.precedence import in_order, links_of, windows
from lowtide.signal import Signal
from lowtide.simulator.cluster import Cluster
from lowtide.simulator.simulation import reaching
from lowtide.units import DurationLike, parse_duration
from lowtide.workload import Workload


def require_whole_nodes(instance: Instance) -> None:
    """Refuse jobs that share nodes: room in sum is no room on any one of them."""
    if not instance.whole_nodes:
        raise InvalidInput(
            "room is booked on nodes that jobs do not share: give each job more than half of what "
            "a node has, take cluster_plan, or plan all at once with plan_cluster"
        )


@dataclass(frozen=True, kw_only=True)
class Booking:
    """Let each job, as it arrives, book the best room that those before it have left.

    Nothing that is booked is moved. Jobs are stopped where that is best for them.

    Attributes:
        step_s: How long a slot is; by default one that loses nothing, or the finest that is quick.
    """

    stops_jobs: ClassVar[bool] = True
    step_s: DurationLike | None = None

    def decide(self, job: Job, signal: Signal) -> Decision:
        """Decide for a job that has the machines to itself: to the optimum."""
        return Exact().decide(job, signal)

    def decide_queue(self, jobs: Workload, signal: Signal, cluster: Cluster) -> Stretches:
        """Decide for all jobs of a queue, one after the other.

        Args:
            jobs: The jobs, by their arrivals.
            signal: What a kWh counts.
            cluster: The machines.
        """
        step_s = None if self.step_s is None else parse_duration(self.step_s)
        instance = make_instance(jobs, cluster, signal, step_s=step_s)
        require_whole_nodes(instance)
        nothing = Prices.nothing(instance)
        order = in_order(np.arange(len(jobs)), instance.links)
        board = Board.empty(instance).insert(order, nothing.tariff(instance))
        late = board.left_out
        if late.size:
            board = place_late(board, late)
        return board.instance.stretches(board.delay, board.placed)


@dataclass(frozen=True, kw_only=True)
class Booked:
    """A start policy that looks at the machines: it books the best start that they allow.

    It chooses within each stretch of time in which the nodes that the job needs stay free for all
    of its run, and of those starts the one at which the run comes to least. A job for which none
    is in time starts as soon as it can.

    Attributes:
        start: Who chooses: the name of a policy that stops no jobs, or the policy.
    """

    start: str | Policy = "carbon_time"

    def __post_init__(self) -> None:
        if stops_jobs(make_policy(self.start)[1]):
            raise InvalidInput(
                f"booked books starts, and {make_policy(self.start)[0]} stops jobs: use booking, "
                "or a start policy (oracle, carbon_time, lowest_window, ...)"
            )

    @property
    def label(self) -> str:
        """What it is called: after the policy that chooses."""
        return f"booked {make_policy(self.start)[0]}"

    def decide(self, job: Job, signal: Signal) -> Decision:
        """Decide for a job that has the machines to itself."""
        return make_policy(self.start)[1].decide(job, signal)

    def decide_queue(self, jobs: Workload, signal: Signal, cluster: Cluster) -> Stretches:
        """Decide for all jobs of a queue, one after the other.

        Args:
            jobs: The jobs, by their arrivals.
            signal: What a kWh counts.
            cluster: The machines.
        """
        require_whole_nodes(make_instance(jobs, cluster, signal, step_s=signal.step_s))
        if cluster.power_cap_w is not None:
            raise InvalidInput("booked minds nodes and no power cap: leave power_cap_w out")
        policy, free = make_policy(self.start)[1], _Profile(cluster.nodes)
        for each in cluster.gone():
            free.book(*each)
        starts, links = np.empty(len(jobs)), links_of(jobs)
        soonest, due = windows(jobs, links)
        for row in in_order(np.arange(len(jobs)), links).tolist():
            one = jobs.take(np.array([row]))
            wide, run_s = int(jobs.nodes[row]), float(jobs.run_s[row])
            begin = float(soonest[row])
            latest = begin + max(float(due[row]) - run_s - begin, 0.0)
            open_for = list(free.windows(begin, latest, wide, run_s))
            if open_for:
                starts[row] = _best_start(policy, one, open_for, signal)
            else:
                starts[row] = free.first(begin, wide, run_s)
            free.book(starts[row], starts[row] + run_s, wide)
            own = links.before == row
            np.maximum.at(soonest, links.after[own], starts[row] + run_s + links.gap_s[own])
        return Stretches.one_each(jobs, starts)


def _best_start(
    policy: Policy, job: Workload, windows: list[tuple[float, float]], signal: Signal
) -> float:
    """Return the best of the starts that a policy chooses within windows."""
    many = job.take(np.zeros(len(windows), dtype=np.int64))
    begin, end = np.array(windows).T
    many = replace(many, arrival=begin, deadline=end + many.run_s)
    reached = reaching(signal, float(many.deadline.max()), repeat=True)
    assert isinstance(reached, Signal)  # noqa: S101 - one signal remains one
    made = decide_many(policy, many, reached)
    paid = tally(many, made, reached).amount
    return float(made.start[int(np.argmin(paid))])


@dataclass(slots=True)
class _Profile:
    """How many nodes are free over time: from each instant on, until the next."""

    nodes: int
    times: list[float] = field(default_factory=lambda: [-np.inf])
    free: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.free = [self.nodes]

    def book(self, begin: float, end: float, wide: int) -> None:
        """Take nodes for a time."""
        for at in (begin, end):
            place = bisect_left(self.times, at)
            if place == len(self.times) or self.times[place] != at:
                self.times.insert(place, at)
                self.free.insert(place, self.free[place - 1])
        for place in range(bisect_left(self.times, begin), bisect_left(self.times, end)):
            self.free[place] -= wide

    def windows(
        self, earliest: float, latest: float, wide: int, run_s: float
    ) -> Iterator[tuple[float, float]]:
        """Yield from when to when a run could start that finds its nodes free throughout."""
        place = bisect_right(self.times, earliest) - 1
        since: float | None = None
        while place < len(self.times):
            at = max(self.times[place], earliest)
            if since is None and at > latest + TIME_TOLERANCE_S:
                return
            if self.free[place] >= wide:
                since = at if since is None else since
            elif since is not None:
                if at - run_s >= since:
                    yield since, min(at - run_s, max(latest, since))
                since = None
            place += 1
        if since is not None:
            yield since, max(latest, since)

    def first(self, earliest: float, wide: int, run_s: float) -> float:
        """Return the first moment at which a run could start."""
        return next(iter(self.windows(earliest, np.inf, wide, run_s)))[0]
