"""Which metrics every job has: what they are called, and where in a tick their values are."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from lowtide.monitor.snapshot import PRESSURES, FloatArray
from lowtide.monitor.tick import Tick


@dataclass(frozen=True, slots=True, kw_only=True)
class JobMetric:
    """A metric with one line per job; those of one name stand together.

    Attributes:
        name: What it is called, `lowtide_job_` left out.
        what: What it is, in words.
        of: The column of the tick, or of its shares.
        digits: Decimals.
        more: A label that its lines have besides.
        holders_only: Whether only jobs with GPUs have it.
        lack: Whether it says what others lack, so that jobs that lack nothing need no line.
    """

    name: str
    what: str
    of: str
    digits: int = 3
    more: str = ""
    holders_only: bool = False
    lack: bool = False

    def values(self, tick: Tick) -> FloatArray:
        """Return its values, one for each unit of a tick."""
        found: FloatArray = getattr(tick.shares if self.of.endswith("_w") else tick, self.of)
        if self.holders_only:
            return np.where(tick.reserved_gpus > 0, found, np.nan)
        return found

    @property
    def reserves(self) -> bool:
        """Whether it says what is kept for the job."""
        return self.of.startswith("reserved")


_GRAMS = "Emissions charged to the job, PUE included."
_WAITED = "Time in which something of the job waited for it."

COUNTERS = (
    JobMetric(name="energy_joules_total", what="Energy charged to the job.", of="energy_j"),
    JobMetric(
        name="measured_energy_joules_total",
        what="The part of the job's energy that was measured; the rest is estimated.",
        of="measured_j",
    ),
    JobMetric(name="cpu_seconds_total", what="CPU time that the job used.", of="cpu_s"),
    JobMetric(name="read_bytes_total", what="Read from storage.", of="read_bytes", digits=0),
    JobMetric(name="written_bytes_total", what="Written to storage.", of="written_bytes", digits=0),
    JobMetric(
        name="received_bytes_total",
        what="Received over a network of the job's own.",
        of="received_bytes",
        digits=0,
    ),
    JobMetric(
        name="sent_bytes_total",
        what="Sent over a network of the job's own.",
        of="sent_bytes",
        digits=0,
    ),
    *(
        JobMetric(name="pressure_seconds_total", what=_WAITED, of=f"{name}_wait_s", more=more)
        for name in PRESSURES
        for more in [f'resource="{name}"']
    ),
    *(
        JobMetric(name="emissions_grams_total", what=_GRAMS, of=of, digits=6, more=f'kind="{kind}"')
        for kind, of in (
            ("average", "carbon_g"),
            ("marginal", "marginal_g"),
            ("embodied", "embodied_g"),
        )
    ),
    JobMetric(
        name="unmetered_seconds_total",
        what="Time in which nobody could tell what the job drew: its energy lacks that.",
        of="unmetered_s",
        lack=True,
    ),
    JobMetric(
        name="unpriced_energy_joules_total",
        what="Energy whose emissions nobody can tell: the job's grams lack that.",
        of="unpriced_j",
        lack=True,
    ),
)

GAUGES = (
    JobMetric(name="power_watts", what="Power charged to the job.", of="power_w"),
    JobMetric(name="cpus_busy", what="CPUs that the job keeps busy.", of="cpus_busy"),
    JobMetric(name="memory_bytes", what="Memory that the job holds.", of="memory_bytes", digits=0),
    JobMetric(name="reserved_cpus", what="CPUs kept for the job.", of="reserved_cpus"),
    JobMetric(
        name="reserved_memory_bytes",
        what="Memory kept for the job.",
        of="reserved_bytes",
        digits=0,
    ),
    JobMetric(
        name="gpu_power_watts",
        what="The part of the job's power that its GPUs draw.",
        of="gpu_w",
        holders_only=True,
    ),
    JobMetric(
        name="gpus_busy", what="GPUs that the job keeps busy.", of="gpus_busy", holders_only=True
    ),
    JobMetric(
        name="gpu_memory_bytes",
        what="Memory that the job holds on GPUs.",
        of="gpu_memory_bytes",
        digits=0,
        holders_only=True,
    ),
    JobMetric(
        name="reserved_gpus", what="GPUs that the job holds.", of="reserved_gpus", holders_only=True
    ),
)
