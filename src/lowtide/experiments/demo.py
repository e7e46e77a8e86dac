"""The demonstration: a day of training on a synthetic week, under five policies."""

from __future__ import annotations

from lowtide.experiments.comparison import Comparison, compare
from lowtide.grids import synthetic_grid
from lowtide.job import Job, Resources
from lowtide.samples import sample_profile

POLICIES = ("run_now", "lowest_slot", "oracle", "wait_awhile", "exact")

WEEK = "2024-07-01T00:00Z"
ABOUT = (
    "A training job measured on one NVIDIA H200, scaled to a day: every measured second becomes a "
    "minute, and epochs are repeated until they fill 24 hours. It arrives on Monday at 08:00, has "
    "to be done five days later, and may be stopped at its checkpoints, one per epoch; each start "
    "costs 13 minutes of importing, loading and building. Saving takes longer than training an "
    "epoch, 7.1 s against 5.9 s as measured: the model trains fast and its checkpoint is large. "
    "Policies decide as published; what they decide is paid for on the real job, with repeated "
    "startups and lost work."
)


def run_demo(grid: str, *, seed: int) -> Comparison:
    """Plan the day of training on a synthetic week under the five policies."""
    job = Job(
        id="h200-day",
        arrival="2024-07-01T08:00Z",
        deadline="+5d",
        profile=sample_profile("h200-day"),
        interruptible="checkpoints",
        resources=Resources(cpus=16, gpus=1),
    )
    return compare(job, synthetic_grid(grid, start=WEEK, days=7, seed=seed), POLICIES)
