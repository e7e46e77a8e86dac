"""Jobs that wait, planned together: clean hours are short, and all who want them do not fit.

Each job alone would begin at the cleanest moment, and so would all others. An operator's driver
lets the market of queues share these out, on the nodes that running jobs leave. What comes out is
when each had better begin and no more: the promise of every job stands above it, and where no plan
is made in time, each is planned alone.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from lowtide.acting.backend import PENDING, Look
from lowtide.acting.judge import Judgement
from lowtide.errors import LowtideError
from lowtide.job import Job, Resources
from lowtide.market import plan_cluster
from lowtide.profile import PowerProfile
from lowtide.signal import Signal
from lowtide.simulator.cluster import Cluster

# Slots of the joint plan, and how far ahead it looks.
_STEP_S = 900.0
_AHEAD_S = 48 * 3600.0
# One job alone needs no other's leave.
_LEAST_JOBS = 2


@dataclass(slots=True, kw_only=True)
class Together:
    """Plans the jobs of each partition together.

    Attributes:
        clusters: The nodes of a partition by its name.
        profile: The profile of a job that waits; one of constant power where none is known.
        seconds: CPU seconds that planning a partition may take.
        every_s: How long a plan serves, unless jobs or forecast are others.
    """

    clusters: Callable[[str], Cluster | None]
    profile: Callable[[Judgement], PowerProfile]
    seconds: float = 20.0
    every_s: float = 900.0
    _made: dict[str, tuple[object, float, dict[str, float]]] = field(
        default_factory=dict, init=False
    )

    def begins(
        self, verdicts: Sequence[Judgement], look: Look, signal: Signal
    ) -> tuple[dict[str, float], list[str]]:
        """Return when jobs that wait had better begin, and in words what could not be planned.

        Args:
            verdicts: All jobs as they stand, each planned alone.
        """
        found: dict[str, float] = {}
        problems = []
        partitions: dict[str, list[Judgement]] = {}
        for verdict in verdicts:
            if _is_open(verdict, look.now):
                partitions.setdefault(verdict.seen.partition, []).append(verdict)
        for name, waiting in partitions.items():
            if len(waiting) < _LEAST_JOBS:
                continue
            key = (id(signal), tuple(sorted(each.seen.id for each in waiting)))
            known = self._made.get(name)
            if known is None or known[0] != key or look.now - known[1] >= self.every_s:
                try:
                    begins = self._plan(name, waiting, look, signal)
                except LowtideError as error:
                    problems.append(f"{name or 'jobs'}: {error}; each job is planned alone")
                    begins = {}
                known = self._made[name] = key, look.now, begins
            found |= known[2]
        return found, problems

    def _plan(
        self, partition: str, waiting: Sequence[Judgement], look: Look, signal: Signal
    ) -> dict[str, float]:
        cluster = self.clusters(partition)
        if cluster is None:
            return {}
        end = min(look.now + _AHEAD_S, signal.end)
        window = signal.window(look.now, end)
        jobs = [
            job
            for verdict in waiting
            if (job := self._job(verdict, look.now, end, cluster)) is not None
        ]
        if len(jobs) < _LEAST_JOBS:
            return {}
        plan = plan_cluster(
            jobs,
            cluster,
            window,
            step=_STEP_S,
            gap=0.02,
            reserved=_taken(look.busy.get(partition, ()), cluster, look.now, end),
            seconds=self.seconds,
            compare=False,
        )
        late = {jobs[each.row].id for each in plan.late}
        return {
            job.id: schedule.start
            for job, schedule in zip(jobs, plan.schedules, strict=True)
            # Who would be late is not for this plan to decide.
            if job.id not in late
        }

    def _job(self, verdict: Judgement, now: float, end: float, cluster: Cluster) -> Job | None:
        """Return a job as the market takes it: from now until its promise lets it end."""
        seen, promise = verdict.seen, verdict.promise
        if promise is None:
            return None
        profile = self.profile(verdict)
        deadline = min(promise.latest + profile.run_s, end)
        cpus, gpus = max(math.ceil(seen.cpus or 1), 1), math.ceil(seen.gpus or 0)
        nodes = max(
            math.ceil(cpus / cluster.cpus_per_node),
            math.ceil(gpus / cluster.gpus_per_node) if cluster.gpus_per_node else 1,
        )
        if deadline - now < profile.run_s + _STEP_S or nodes > cluster.nodes:
            return None
        return Job(
            id=seen.id,
            arrival=now,
            deadline=deadline,
            profile=profile,
            resources=Resources(cpus=cpus, gpus=gpus, nodes=nodes),
            interruptible="never",
        )


def _is_open(verdict: Judgement, now: float) -> bool:
    """Return whether it is still to be decided when a job begins."""
    return (
        verdict.seen.state == PENDING
        and verdict.what == "waits"
        and bool(verdict.plan)
        and verdict.promise is not None
        and verdict.promise.latest > now
        and "_" not in verdict.seen.id
    )


def _taken(
    busy: Sequence[tuple[float, float]], cluster: Cluster, now: float, end: float
) -> list[tuple[float, float, int]]:
    """Return when how many nodes are not there, since jobs may run on them until their limits.

    Args:
        busy: Until when what runs may go on, and how many CPUs it holds.
    """
    ends = sorted((min(until, end), cpus) for until, cpus in busy if until > now)
    taken, held, since = [], sum(cpus for _, cpus in ends), now
    for until, cpus in ends:
        nodes = min(math.ceil(held / cluster.cpus_per_node), cluster.nodes)
        if until > since and nodes:
            taken.append((since, until, nodes))
        since, held = max(until, since), held - cpus
    return taken


def read_nodes(text: str) -> Mapping[str, Cluster]:
    """Read `sinfo -h -o '%R %D %c %G'`: the nodes of each partition, those of most CPUs alone.

    >>> read_nodes("gpu 2 32 gpu:h200:4(S:0-1)")["gpu"].gpus_per_node
    4
    """
    found: dict[str, Cluster] = {}
    for line in text.splitlines():
        words = line.split()
        if len(words) < 4:
            continue
        name, nodes, cpus = words[0], _count(words[1]), _count(words[2].rstrip("+"))
        gpus = sum(_gpus(each) for each in words[3].split(","))
        known = found.get(name)
        if nodes and cpus and (known is None or nodes * cpus > known.nodes * known.cpus_per_node):
            found[name] = Cluster(nodes=nodes, cpus_per_node=cpus, gpus_per_node=gpus)
    return found


def _gpus(word: str) -> int:
    """Return how many GPUs `gpu:h200:4(S:0-1)` are."""
    kind, *rest = word.partition("(")[0].split(":")
    return _count(rest[-1]) if kind == "gpu" and rest else 0


def _count(word: str) -> int:
    """Return a number of things, 0 where it is none that a site could have."""
    return int(word) if re.fullmatch(r"[0-9]{1,7}", word) else 0


def constant_of(verdict: Judgement) -> PowerProfile:
    """Return constant power for as long as a job takes at most, where nobody knows more."""
    promise = verdict.promise
    return PowerProfile.constant(1000.0, 60.0 if promise is None else max(promise.run_s, 60.0))
