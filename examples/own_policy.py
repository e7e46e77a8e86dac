"""A policy of one's own: start as soon as the grid is cleaner than its mean."""

from dataclasses import dataclass

import lowtide as lt
from lowtide.policies import Decision
from lowtide.policies.stopping import run_from


@dataclass(frozen=True, slots=True, kw_only=True)
class BelowMean:
    """Start at the first step below a share of the window's mean."""

    share: float = 1.0

    def decide(self, job: lt.Job, signal: lt.Signal) -> Decision:
        """Decide for one job."""
        limit = self.share * signal.mean(job.arrival, job.deadline)
        window = signal.window(job.arrival, job.deadline)
        for begin, value in zip(window.edges.tolist(), window.values.tolist(), strict=False):
            if value < limit:
                return Decision(schedule=run_from(job, begin))
        return Decision(schedule=run_from(job, job.latest_start))


grid = lt.synthetic_grid("sunny", seed=0)
job = lt.Job(
    id="md42",
    arrival="2024-07-01T00:00Z",
    deadline="+36h",
    profile=lt.PowerProfile.constant(300, "6h"),
)
for policy in ("run_now", BelowMean(), BelowMean(share=0.5), "oracle"):
    print(lt.plan(job, grid, policy=policy))
