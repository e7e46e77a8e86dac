"""A queue planned by somebody who knows every job beforehand: what others are measured by."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from lowtide.accounting import Stretches
from lowtide.job import Job
from lowtide.market.booking import require_whole_nodes
from lowtide.market.instance import make_instance
from lowtide.market.planning import plan_cluster
from lowtide.policies.exact import Exact
from lowtide.policies.policy import Decision
from lowtide.signal import Signal
from lowtide.simulator.cluster import Cluster
from lowtide.workload import Workload


@dataclass(frozen=True, kw_only=True)
class AllKnown:
    """Plan the whole queue at once, as `plan_cluster` does, with waiting free.

    Nobody can do this: it knows jobs before they arrive. Who does not is measured by it.

    Attributes:
        gap: How near to the proven bound is near enough, as a share.
        effort: How long to search, 1 for as long as `plan_cluster` usually does.
        seed: What is drawn by chance.
    """

    stops_jobs: ClassVar[bool] = True
    gap: float = 0.002
    effort: float = 0.1
    seed: int = 0

    def decide(self, job: Job, signal: Signal) -> Decision:
        """Decide for a job that has the machines to itself: to the optimum."""
        return Exact().decide(job, signal)

    def decide_queue(self, jobs: Workload, signal: Signal, cluster: Cluster) -> Stretches:
        """Decide for all jobs of a queue together.

        Args:
            jobs: The jobs, all of which are known.
            signal: What a kWh counts.
            cluster: The machines.
        """
        require_whole_nodes(make_instance(jobs, cluster, signal))
        plan = plan_cluster(
            jobs, cluster, signal, wait=0, gap=self.gap, effort=self.effort, seed=self.seed
        )
        return plan.simulation.stretches
