"""What the store keeps of every job and node: which columns, and how finely.

A counter only grows, so what was used in between is a difference, and leaving out values in
between loses nothing. A gauge is what was so on average since the value before.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from lowtide.monitor.snapshot import FloatArray


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """The columns of one kind of thing that is watched.

    Attributes:
        number: What it is called in the database; never used again for other columns.
        counters: Names of what only grows.
        quanta: How finely each is kept in chunks, in its own unit.
        gauges: Names of what goes up and down; they are kept to four digits in chunks.
    """

    number: int
    counters: tuple[str, ...]
    quanta: tuple[float, ...]
    gauges: tuple[str, ...]

    @property
    def names(self) -> tuple[str, ...]:
        """All columns, counters first."""
        return self.counters + self.gauges


_UNIT_QUANTA = {
    "cpu_s": 1e-4,
    "read_bytes": 1.0,
    "written_bytes": 1.0,
    "energy_j": 1e-3,
    "measured_j": 1e-3,
    "carbon_g": 1e-6,
    "marginal_g": 1e-6,
    "embodied_g": 1e-6,
}
UNIT = Layout(
    number=1,
    counters=tuple(_UNIT_QUANTA),
    quanta=tuple(_UNIT_QUANTA.values()),
    gauges=(
        "memory_bytes",
        "gpus_busy",
        "gpu_memory_bytes",
        "gpu_w",
        "reserved_cpus",
        "reserved_bytes",
        "reserved_gpus",
    ),
)
NODE = Layout(
    number=2,
    counters=("energy_j", "idle_j", "unattributed_j", "measured_j"),
    quanta=(1e-3, 1e-3, 1e-3, 1e-3),
    gauges=(
        "cpus",
        "cpus_busy",
        "cpus_reserved",
        "memory_bytes",
        "memory_used_bytes",
        "read_bytes_per_s",
        "written_bytes_per_s",
        "received_bytes_per_s",
        "sent_bytes_per_s",
        "cpu_pressure",
        "memory_pressure",
        "io_pressure",
        "gpus",
        "gpus_busy",
        "gpu_memory_bytes",
        "gpu_memory_total_bytes",
        "intensity_g_per_kwh",
        "jobs",
    ),
)
LAYOUTS = {layout.number: layout for layout in (UNIT, NODE)}

# What is known of a unit over its whole life, in the order in which the database holds it. New
# ones may only be added at the end: older rows are read with NaN for them.
TOTALS = (
    "first_seen",
    "last_seen",
    "looks",
    "seen_s",
    *UNIT.counters,
    "memory_byte_s",
    "gpu_busy_s",
    "gpu_j",
    "peak_cpus",
    "peak_memory_bytes",
    "peak_gpus",
    "peak_gpu_memory_bytes",
    "peak_power_w",
    "reserved_cpus",
    "reserved_bytes",
    "reserved_gpus",
)
PLACE = {name: place for place, name in enumerate(TOTALS)}
# The numbers among the facts of a job, in the same way. `told` is 1 where facts, and not only the
# age of a unit, say when it began.
FACTS = (
    *("started", "ended", "cpus", "memory_bytes", "gpus", "told", "submitted", "time_limit_s"),
    *("exit_code", "restarts"),
)
FACT = {name: place for place, name in enumerate(FACTS)}
COUNTED = slice(PLACE[UNIT.counters[0]], PLACE[UNIT.counters[-1]] + 1)


def pack_numbers(values: FloatArray) -> bytes:
    """Return totals or facts as the database holds them.

    Args:
        values: One for each of `TOTALS` or `FACTS`.
    """
    return values.astype("<f8").tobytes()


def unpack_numbers(blobs: Sequence[bytes | None], names: tuple[str, ...]) -> FloatArray:
    """Return the totals or facts of many, a row for each; all NaN for what nobody knows.

    Args:
        blobs: What the database holds.
        names: `TOTALS` or `FACTS`.
    """
    width = 8 * len(names)
    unknown = np.full(len(names), np.nan).tobytes()
    joined = b"".join([unknown if blob is None else blob for blob in blobs])
    if len(joined) != width * len(blobs):
        # Rows of an older lowtide know less, those of a newer one more.
        whole = [blob or b"" for blob in blobs]
        joined = b"".join([(blob + unknown[len(blob) :])[:width] for blob in whole])
    return np.frombuffer(joined, dtype="<f8").reshape(-1, len(names))
