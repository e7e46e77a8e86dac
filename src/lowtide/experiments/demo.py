"""The demonstration: a day of training on a synthetic week, under five policies."""

from __future__ import annotations

from dataclasses import replace

from lowtide.experiments.comparison import Comparison, compare
from lowtide.grids import synthetic_grid
from lowtide.job import Job, Resources
from lowtide.profile import PowerProfile
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

# A measured second stands for a minute: as if model and data were sixty times larger.
_STRETCH = 60.0
_DAY_S = 86400.0


def training_day() -> PowerProfile:
    """Return the measured H200 job, scaled to a day of training.

    >>> training_day()
    <PowerProfile: 13.04 min startup + 23.9 h work in 324 phases, 8.768 kWh, 108 checkpoints>
    """
    measured = sample_profile("h200")
    stretched = {
        group: [
            replace(phase, duration_s=_STRETCH * phase.duration_s)
            for phase in getattr(measured, group)
        ]
        for group in ("startup", "work")
    }
    epoch = stretched["work"][:3]
    count = round(_DAY_S / sum(phase.duration_s for phase in epoch))
    return PowerProfile(startup=stretched["startup"], work=epoch * count)


def run_demo(grid: str, *, seed: int) -> Comparison:
    """Plan the day of training on a synthetic week under the five policies.

    Args:
        grid: Name of a synthetic grid.
        seed: Which of its weeks.
    """
    job = Job(
        id="h200-day",
        arrival="2024-07-01T08:00Z",
        deadline="+5d",
        profile=training_day(),
        interruptible="checkpoints",
        resources=Resources(cpus=16, gpus=1),
    )
    return compare(job, synthetic_grid(grid, start=WEEK, days=7, seed=seed), POLICIES)
